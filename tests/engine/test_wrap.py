"""The 24-bit PSN begins anew during a transfer, on real sockets that lose datagrams."""

import asyncio
import os

import pytest

import mrc
from mrc.proto import endpoint, qp
from mrc.udp import FaultySockets
from mrc.wire.psn import PSN_MODULUS
from tests.engine.conftest import Connect

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

SIZE = 2_000_003
MTU = 256
"""Small, for many packets: a full window of them is out when the PSN wraps."""

HANG_S = 30


@pytest.fixture(params=[1, 64, 1500, 6000])
def pairs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[qp.QueuePair]:
    """Let queue pairs begin so many PSNs before the wrap; return those that have been made."""
    made: list[qp.QueuePair] = []
    create_qp = endpoint.Endpoint.create_qp

    def create_near_the_wrap(self: endpoint.Endpoint, user: str = "") -> qp.QueuePair:
        pair = create_qp(self, user)
        pair.first_psn = PSN_MODULUS - request.param
        made.append(pair)
        return pair

    monkeypatch.setattr(endpoint.Endpoint, "create_qp", create_near_the_wrap)
    return made


async def test_every_byte_arrives_across_the_wrap_under_loss(
    connect: Connect, pairs: list[qp.QueuePair]
) -> None:
    """Writes both ways, 1 % of each way lost, pass from PSN 2^24 - 1 to 0 without a trace."""
    data = [os.urandom(SIZE), os.urandom(SIZE)]
    memory = [bytearray(SIZE), bytearray(SIZE)]
    sockets = FaultySockets(seed=3, loss=0.01, inbound_loss=0.01)
    async with (
        asyncio.timeout(HANG_S),
        connect(config=mrc.Config(mtu=MTU), sockets=sockets) as (one, other),
    ):
        await asyncio.gather(
            one.write_imm(data[0], other.register(memory[0]).remote, imm=1),
            other.write_imm(data[1], one.register(memory[1]).remote, imm=2),
        )
        assert (await other.next_immediate()).imm == 1
        assert (await one.next_immediate()).imm == 2
        sent = [each.statistics().requestor for each in (one, other)]
    assert memory == data
    assert min(each.packets_retransmitted for each in sent) > 0
    assert len(pairs) == 2
    for pair in pairs:
        assert pair.first_psn < PSN_MODULUS
        assert pair.requestor is not None
        assert pair.responder is not None
        assert pair.requestor.window.una > PSN_MODULUS
        assert pair.responder.window.cack > PSN_MODULUS
