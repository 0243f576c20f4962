"""Data packets that come long after their time, or every other one not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mrc.proto.config import Config
from mrc.proto.statistics import DropReason
from mrc.wire.psn import PSN_MODULUS
from tests.proto.test_wrap import near_the_edge
from tests.support.filters import Match, Tap, black_hole, data, from_b, nth, on_ev, plane_delays
from tests.support.pair import FIRST_EV_PORT, MS, Datagram, Filter, Pair, S

LINK_BPS = 800_000_000
LATE_NS = 25 * MS
"""2,000 packets of 1 KiB take 22 ms at that rate."""


def fast(**pair: object) -> Pair:
    """Four planes of 200 Mbit/s."""
    settings = Config(mtu=1024, link_bps=LINK_BPS)
    return Pair(settings, planes=4, link_bps=LINK_BPS / 4, **pair)  # type: ignore[arg-type]


def once_more(pair: Pair, match: Match, after_ns: int) -> Filter:
    """Let matching datagrams arrive a second time, long after the first."""

    def act(datagram: Datagram) -> None:
        if match(datagram):
            again = replace(datagram, data=bytearray(datagram.data))
            pair.send_later(again, after_ns)

    return act


def before_the_wrap(match: Match) -> Match:
    """Match of these what has a PSN from before the wrap."""
    return lambda datagram: match(datagram) and datagram.psn > PSN_MODULUS // 2


# From before the wrap.


@pytest.mark.slow
def test_packets_from_before_the_wrap_are_duplicates_after_it() -> None:
    """What comes again when the PSN has begun anew is counted; its old place stays as it is."""
    pair = near_the_edge(Config(mtu=1024, link_bps=LINK_BPS))
    pair.filters.append(once_more(pair, before_the_wrap(data), LATE_NS))
    first = pair.rng.randbytes(64 << 10)
    target = pair.transfer(first, imm=1)
    assert target == first
    assert pair.b.responder.window.cack > PSN_MODULUS
    early = PSN_MODULUS - pair.a.qp.first_psn
    # The application has taken what was written and uses the memory for something else.
    target[:] = bytes(len(target))
    second = pair.rng.randbytes(4 << 20)
    assert pair.transfer(second, imm=2) == second
    pair.run_for(LATE_NS)
    assert pair.b.responder.statistics().packets_duplicate == early
    assert not any(target)
    assert pair.immediates() == [1, 2]
    assert pair.a.requestor.statistics().packets_spurious == 0


@pytest.mark.slow
def test_originals_from_before_the_wrap_lose_to_their_retransmissions() -> None:
    """A whole EV stands still across the wrap: each packet is placed once, the late one is none."""
    pair = near_the_edge(Config(mtu=1024, link_bps=LINK_BPS, paths=4))
    late = before_the_wrap(on_ev({FIRST_EV_PORT}))
    pair.filters.append(delayed(late, LATE_NS))
    tap = Tap(lambda datagram: data(datagram) and late(datagram))
    pair.filters.append(tap)
    sent = pair.rng.randbytes(4 << 20)
    assert pair.transfer(sent, imm=1) == sent
    pair.run_for(LATE_NS)
    assert tap.datagrams
    found = pair.b.responder.statistics()
    assert found.packets_received == len(sent) // 1024
    assert found.packets_duplicate == len(tap.datagrams)
    # A retransmission may be as late as its original: the loss of a packet is taken back once.
    late_psns = {datagram.psn for datagram in tap.datagrams}
    assert pair.a.requestor.statistics().packets_spurious == len(late_psns)


def test_sacks_from_before_the_wrap_are_old_news_after_it() -> None:
    """An acknowledgement that was true before the wrap acknowledges nothing behind it."""
    pair = near_the_edge(Config(mtu=1024, link_bps=LINK_BPS))
    tap = Tap(before_the_wrap(from_b))
    pair.filters += [tap, once_more(pair, before_the_wrap(from_b), LATE_NS)]
    sent = pair.rng.randbytes(4 << 20)
    work, target = pair.post(sent)
    pair.run_for(LATE_NS - 1 * MS)
    assert not pair.done(work)
    assert len(tap.sacks()) > 5
    pair.run(lambda: pair.done(work))
    assert target == sent
    assert pair.a.dropped()[DropReason.STALE_ACK] >= len(tap.sacks())
    found = pair.a.requestor.statistics()
    assert (found.packets_retransmitted, found.timeouts, found.inflight_bytes) == (0, 0, 0)


# Two thousand packets late.


def delayed(match: Match, by_ns: int) -> Filter:
    """Delay what matches."""

    def act(datagram: Datagram) -> None:
        if match(datagram):
            datagram.delay_ns += by_ns

    return act


def overtaken_by(datagram: Datagram, others: list[Datagram]) -> int:
    """Return how many datagrams were sent later and arrived earlier."""
    arrives_ns = datagram.sent_ns + datagram.delay_ns
    return sum(
        datagram.sent_ns < other.sent_ns and other.sent_ns + other.delay_ns < arrives_ns
        for other in others
    )


@pytest.mark.slow
@pytest.mark.parametrize("since_ns", [0, 20 * MS], ids=["from the start", "all at once"])
def test_ev_that_is_two_thousand_packets_late(since_ns: int) -> None:
    """Each verdict against its packets is taken back, and with it the blame; the rate stays."""
    tap = Tap()
    pair = fast()
    begin_ns = pair.now_ns + since_ns
    late = on_ev({FIRST_EV_PORT}, plane=0)
    pair.filters += [delayed(lambda d: late(d) and d.sent_ns >= begin_ns, LATE_NS), tap]
    sent = pair.rng.randbytes(8 << 20)
    started_ns = pair.now_ns
    assert pair.transfer(sent) == sent
    assert 8e9 * len(sent) / (pair.now_ns - started_ns) > 0.85 * LINK_BPS
    pair.run_for(LATE_NS)
    latest = max((d for d in tap.datagrams if late(d)), key=lambda d: d.delay_ns)
    assert overtaken_by(latest, tap.datagrams) > 2000
    found = pair.a.requestor.statistics()
    assert found.packets_retransmitted == found.packets_lost == found.packets_spurious < 20
    assert pair.b.responder.statistics().packets_duplicate == found.packets_spurious
    assert found.timeouts == 0
    assert {(change.plane, change.source_port) for change in pair.a.ev_changes()} == {
        (0, FIRST_EV_PORT)
    }
    assert {path.state for path in pair.a.paths.statistics()} == {"good"}


@pytest.mark.slow
def test_plane_that_is_two_thousand_packets_late() -> None:
    """As many packets are held in front of what is missing, in one bitmap of 64 after the other."""
    pair = fast(filters=[plane_delays([0, 0, 0, 30])])
    sent = pair.rng.randbytes(12 << 20)
    assert pair.transfer(sent, imm=4) == sent
    assert pair.b.responder.statistics().out_of_order_max > 2000
    found = pair.a.requestor.statistics()
    assert found.packets_retransmitted == found.packets_spurious < 40
    assert found.timeouts == 0
    pair.run_for(100 * MS)
    assert {path.state for path in pair.a.paths.statistics()} == {"good"}


# Every other one.


def every_other(first: int, count: int, match: Callable[[Datagram], bool] = data) -> Filter:
    """Lose every second of `count` packets."""
    return black_hole(nth(range(first, first + count, 2), match))


def test_every_other_packet_of_a_window_is_sent_again_once() -> None:
    """Thirty-two holes, no two neighbours: found by SACKs alone, in a few round trips."""
    pair = fast()
    whole = pair.rng.randbytes(1 << 20)
    started_ns = pair.now_ns
    assert pair.transfer(whole) == whole
    calm_ns = pair.now_ns - started_ns
    pair.filters.append(every_other(200, 64))
    started_ns = pair.now_ns
    assert pair.transfer(whole) == whole
    found = pair.a.requestor.statistics()
    assert (found.packets_retransmitted, found.packets_spurious, found.timeouts) == (32, 0, 0)
    assert pair.b.responder.statistics().packets_duplicate == 0
    assert pair.now_ns - started_ns < calm_ns + 10 * MS


def test_every_other_packet_of_the_widest_window_is_sent_again_once() -> None:
    """With a thousand packets out and half of them lost, sixteen bitmaps tell which."""
    config = Config(mtu=1024, mpr_psns=1024, congestion_control=False)
    pair = Pair(config, filters=[every_other(0, 1024)])
    sent = pair.rng.randbytes(2 << 20)
    started_ns = pair.now_ns
    assert pair.transfer(sent) == sent
    assert pair.b.responder.statistics().out_of_order_max > 400
    found = pair.a.requestor.statistics()
    assert (found.packets_retransmitted, found.packets_spurious) == (512, 0)
    assert pair.b.responder.statistics().packets_duplicate == 0
    assert pair.now_ns - started_ns < 1 * S
