"""Locked connections on real sockets: what is on the wire, and what happens to who has no key."""

import contextlib
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

import mrc
from mrc.errors import PeerUnreachable
from mrc.udp import FaultySockets
from tests.engine.conftest import Connected, until
from tests.interop.recording import RecordingSockets

pytestmark = pytest.mark.asyncio


@contextlib.asynccontextmanager
async def locked(*, config: mrc.Config | None = None, **sender: Any) -> AsyncIterator[Connected]:
    """Yield connected queue pairs of a listener with a lock."""
    async with (
        mrc.listen("127.0.0.1:0", config=config, lock=mrc.Lock.new()) as listener,
        mrc.connect(listener.url, config=config, **sender) as qp,
        await listener.accept() as peer,
    ):
        yield qp, peer


@pytest.mark.parametrize("mtu", [1024, 4096])
async def test_a_locked_connection_carries_writes_and_messages(mtu: int) -> None:
    """Writes, immediates and messages, both ways, of any size."""
    data = os.urandom(1_234_567)
    async with locked(config=mrc.Config(mtu=mtu)) as (qp, peer):
        memory = bytearray(len(data))
        await qp.write_imm(data, peer.register(memory).remote, imm=5)
        assert (await peer.next_immediate()).imm == 5
        assert memory == data
        await peer.send(b"back")
        assert await qp.receive() == b"back"


async def test_nothing_of_the_payload_is_on_the_wire() -> None:
    """What is sent cannot be found in what leaves the sockets; without a lock it can."""
    data = os.urandom(100_000)
    tapped = RecordingSockets()
    async with locked(sockets=tapped) as (qp, peer):
        await qp.write(data, peer.register(bytearray(len(data))).remote)
    seen = b"".join(datagram.data for datagram in tapped.sent)
    assert len(seen) > len(data)
    assert not any(data[i : i + 16] in seen for i in range(0, len(data), 1000))
    plain = RecordingSockets()
    async with (
        mrc.listen("127.0.0.1:0") as listener,
        mrc.connect(listener.url, sockets=plain) as qp,
        await listener.accept() as peer,
    ):
        await qp.write(data, peer.register(bytearray(len(data))).remote)
    assert any(data[:1000] in datagram.data for datagram in plain.sent)


@pytest.mark.parametrize(
    "faults",
    [{"loss": 0.05}, {"corruption": 0.02}, {"duplication": 0.05}, {"inbound_loss": 0.1}],
    ids=str,
)
async def test_faults_cost_retransmissions_as_without_a_lock(faults: dict[str, float]) -> None:
    """What the network does to sealed packets is made good."""
    data = os.urandom(3_000_001)
    memory = bytearray(len(data))
    async with locked(sockets=FaultySockets(seed=4, **faults)) as (qp, peer):
        await qp.write(data, peer.register(memory).remote)
    assert memory == data


async def test_packets_replayed_at_the_sockets_change_nothing() -> None:
    """A datagram once more, from the sender's address and with a right iCRC: it is refused."""
    tapped = RecordingSockets()
    data = os.urandom(4096)
    async with (
        mrc.Endpoint(mrc.Config(icrc=False)) as server,
        mrc.Endpoint(mrc.Config(icrc=False), sockets=tapped) as client,
        server.listen("127.0.0.1:0", lock=mrc.Lock.new()) as listener,
        client.connect(listener.url) as qp,
        await listener.accept() as peer,
    ):
        memory = bytearray(len(data))
        region = peer.register(memory)
        tapped.sent.clear()
        await qp.write(data, region.remote)
        memory[:] = bytes(len(data))
        target = ("127.0.0.1", server.engine.endpoint.ports[0].udp_port)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as attacker:
            (sealed,) = [sent.data for sent in tapped.sent if len(sent.data) > len(data)]
            attacker.sendto(sealed, target)
        await until(lambda: server.statistics().drops == {"replayed": 1})
        assert memory == bytes(len(data))


async def test_an_address_that_answers_no_probe_gets_no_data() -> None:
    """A peer's plane that no probe reaches makes connecting fail, and says what to look for."""
    deaf = FaultySockets(loss=1.0)
    async with mrc.listen("127.0.0.1:0") as listener:
        with pytest.raises(PeerUnreachable, match="answered no probe within 0"):
            await mrc.connect(listener.url, sockets=deaf, timeout_s=0.5)
