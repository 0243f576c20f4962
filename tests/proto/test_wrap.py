"""Numbers that run over: PSNs of 24 bits, received bytes in units of 256 modulo 2^24.

Nobody waits for 16 million packets: the counters begin shortly before the edge.
"""

from __future__ import annotations

import random

import pytest

from mrc.proto.config import Config
from mrc.wire.psn import PSN_MODULUS
from tests.support.filters import Tap, jitter, lose, trim
from tests.support.pair import Filter, Pair


class NearTheEdge(random.Random):
    """Generator whose 24-bit numbers, so also the first PSNs, lie just below 2^24."""

    def getrandbits(self, bits: int, /) -> int:
        """Return a number of that many random bits, a large one for 24."""
        number = super().getrandbits(bits)
        return PSN_MODULUS - 1 - number % 64 if bits == 24 else number


def near_the_edge(config: Config, **pair: object) -> Pair:
    """Pair whose PSNs are about to wrap."""
    return Pair(config, rng=NearTheEdge(3), planes=2, link_bps=400e6, **pair)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "filters",
    [[], [lose(0.05)], [lose(0.05), jitter(200)], [trim(0.1)]],
    ids=["calm", "lost", "reordered", "trimmed"],
)
def test_psn_wraps(filters: list[Filter]) -> None:
    """A transfer across PSN 2^24 - 1 goes on at 0, whatever the network does to it."""
    tap = Tap()
    config = Config(mtu=1024, link_bps=800_000_000)
    pair = near_the_edge(config, filters=[tap, *filters])
    sent = pair.rng.randbytes(1 << 18)
    assert pair.transfer(sent, imm=5) == sent
    psns = [write.psn for write in tap.writes() if not write.rtx]
    assert psns[0] >= PSN_MODULUS - 64
    assert psns == [(psns[0] + i) % PSN_MODULUS for i in range(256)]
    assert pair.immediates() == [5]
    assert pair.a.requestor.statistics().timeouts == 0


def test_wrap_with_both_sides_sending() -> None:
    """Both directions wrap at the same time, each for itself."""
    pair = near_the_edge(Config(mtu=1024, link_bps=800_000_000), filters=[lose(0.02)])
    target = bytearray(1 << 17)
    region = pair.a.endpoint.register(target)
    sent = pair.rng.randbytes(len(target))
    back = pair.b.endpoint.post_write(pair.b.qp, sent, region.va, region.r_key)
    there = pair.rng.randbytes(1 << 17)
    assert pair.transfer(there) == there
    pair.run(lambda: pair.b.requestor.idle)
    assert back == 1
    assert target == sent


def test_psn_wraps_again_and_again() -> None:
    """The window forgets what lies a whole turn back: 2^24 packets on, PSNs are as good as new."""
    pair = Pair(Config(mtu=1024))
    for _ in range(3):
        sent = pair.rng.randbytes(1 << 16)
        assert pair.transfer(sent) == sent
        for side in pair.sides:
            skip_a_turn(side is pair.a, pair)


def skip_a_turn(sending: bool, pair: Pair) -> None:
    """Let 2^24 packets have gone by on an idle connection, on one of its sides."""
    if sending:
        requestor = pair.a.requestor
        requestor.window.una += PSN_MODULUS
        requestor.window.nxt += PSN_MODULUS
        requestor._posted_psn += PSN_MODULUS  # noqa: SLF001 - no other way to get there in time
        requestor._transport_acked += PSN_MODULUS  # noqa: SLF001
    else:
        window = pair.b.responder.window
        window.cack += PSN_MODULUS
        window.max_psn += PSN_MODULUS


@pytest.mark.parametrize("before", [1, 100_000, 1 << 20])
def test_received_bytes_wrap(before: int) -> None:
    """The count of received bytes runs over after 4 GiB, and nothing stalls."""
    pair = Pair(Config(mtu=1024, link_bps=800_000_000), planes=2, link_bps=400e6)
    near = (1 << 32) - before
    pair.b.responder._rcvd_bytes = near  # noqa: SLF001 - 4 GiB take too long
    pair.a.requestor._rcvd_units = -(-near // 256) & 0xFFFFFF  # noqa: SLF001
    started_ns = pair.now_ns
    sent = pair.rng.randbytes(2 << 20)
    assert pair.transfer(sent) == sent
    found = pair.a.requestor.statistics()
    assert (found.packets_retransmitted, found.timeouts, found.inflight_bytes) == (0, 0, 0)
    assert 8 * len(sent) / (pair.now_ns - started_ns) > 0.8 * 0.8
