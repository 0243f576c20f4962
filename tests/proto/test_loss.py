"""Which packets count as lost, and what a verdict costs when it was wrong.

A gap means nothing where packets take many paths: they overtake each other all the time.
"""

from __future__ import annotations

import itertools

import pytest

from mrc.proto.config import Config
from mrc.proto.ev import Path
from mrc.proto.events import EvState
from mrc.proto.statistics import RequestorStatistics
from mrc.wire.fields import Opcode
from tests.support.evs import path_set
from tests.support.filters import (
    Match,
    Tap,
    black_hole,
    data,
    first_time,
    from_b,
    jitter,
    lose,
    lose_nth,
    on_ev,
    opcode,
    plane_delays,
)
from tests.support.packets import Forger
from tests.support.pair import FIRST_EV_PORT, MS, US, Datagram, Filter, Pair

MIB = 1 << 20


def run(pair: Pair, size: int = MIB) -> RequestorStatistics:
    """Send that much, check that it arrived, return A's counters."""
    data_sent = pair.rng.randbytes(size)
    assert pair.transfer(data_sent) == data_sent
    return pair.a.requestor.statistics()


def one_ev(*filters: Filter, **pair: float) -> Pair:
    """Pair with a single EV and 1 Gbit/s."""
    config = Config(mtu=1024, paths=1, backup_paths=0)
    return Pair(config, link_bps=1e9, filters=list(filters))


# Order on one EV.


def test_overtaken_on_its_own_ev() -> None:
    """A packet is lost once one sent later on the same EV has arrived: in one round trip."""
    pair = one_ev(lose_nth({10}))
    found = run(pair)
    assert (found.packets_lost, found.packets_retransmitted) == (1, 1)
    assert (found.packets_spurious, found.timeouts, found.probes) == (0, 0, 0)


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.1])
def test_only_what_was_lost_is_sent_again(rate: float) -> None:
    """Whatever the loss rate, every retransmission answers a packet that really was lost."""
    lost = Tap(lambda d: not d.copies)
    config = Config(mtu=1024, link_bps=800_000_000)
    pair = Pair(config, planes=4, link_bps=200e6, filters=[lose(rate), lost])
    found = run(pair, 2 * MIB)
    assert found.packets_retransmitted == found.packets_lost == len(lost.datagrams)
    assert (found.packets_spurious, found.timeouts) == (0, 0)


def test_lost_retransmission() -> None:
    """A retransmission that is lost too is found and sent once more."""
    pair = one_ev(lose_nth({10}), lose_nth({0, 1}, lambda d: data(d) and d.rtx))
    found = run(pair)
    assert (found.packets_lost, found.packets_retransmitted) == (3, 3)
    assert found.timeouts == 0


def test_retransmission_says_so_and_takes_another_ev() -> None:
    """A retransmission sets BTH.rtx and goes over an EV other than the one that lost it."""
    lost, again = Tap(lambda d: not d.copies), Tap(lambda d: data(d) and d.rtx)
    filters: list[Filter] = [lose(0.05, first_time), lost, again]
    pair = Pair(Config(mtu=1024, paths=4), planes=2, link_bps=200e6, filters=filters)
    run(pair)
    first_ev = {d.psn: (d.plane, d.source_port) for d in lost.datagrams}
    assert len(again.datagrams) == len(lost.datagrams) > 10
    for datagram in again.datagrams:
        assert (datagram.plane, datagram.source_port) != first_ev[datagram.psn]


def test_neighbours_lost_on_different_evs_avoid_each_its_own() -> None:
    """Lost packets share a run only if the same EV lost them."""
    tap = Tap(lambda d: data(d) and d.rtx)
    pair = Pair(Config(mtu=256, paths=2, backup_paths=0, paths_min=2, spray_run=1), filters=[tap])
    pair.filters.append(black_hole(first_time))
    pair.post(bytes(512))
    pair.flush()
    window = pair.a.requestor.window
    used = [int(window.ev[window.index(pair.a.qp.first_psn + i)]) for i in range(2)]
    assert sorted(used) == [0, 1]
    forger = Forger(pair, 0)
    for place in range(2):
        forger.nack(place)
    pair.flush()
    assert [d.source_port - FIRST_EV_PORT for d in tap.datagrams] == [1 - ev for ev in used]


def in_flight(order: list[int]) -> tuple[Pair, Forger]:
    """One packet per entry in flight on the EV it names; nothing arrives by itself."""
    config = Config(mtu=256, paths=2, backup_paths=0, paths_min=2, spray_run=1)
    pair = Pair(config, filters=[black_hole(lambda _: True)])
    pair.post(bytes(256 * len(order)))
    evs = iter(order)
    paths = pair.a.paths
    paths.choose = lambda avoid=-1: paths.paths[next(evs, 1)]  # type: ignore[method-assign]
    pair.flush()
    pair.now_ns += 100 * US
    return pair, Forger(pair, 0)


def test_arrived_retransmission_is_evidence() -> None:
    """What was sent on an EV before a retransmission that arrived there is lost."""
    pair, forger = in_flight([0, 1, 1, 0])
    forger.nack(0)
    pair.flush()
    pair.now_ns += 100 * US
    forger.sack(0, ack_psn_offset=0, rtx=True, rcvd_bytes=2)
    pair.flush()
    found = pair.a.requestor.statistics()
    assert found.packets_lost == 2
    assert not pair.a.requestor.window.is_missing(pair.a.qp.first_psn + 1)


def test_arrived_original_is_no_evidence_for_the_retransmission() -> None:
    """When a packet was sent twice, its arrival says nothing of the EV it was sent on again."""
    pair, forger = in_flight([0, 1, 1, 0])
    forger.nack(0)
    pair.flush()
    pair.now_ns += 100 * US
    forger.sack(0, ack_psn_offset=3, sack_offset=1, sack_bitmap=0b100, ooo_count=1, rcvd_bytes=4)
    assert pair.a.requestor.window.is_missing(pair.a.qp.first_psn + 1)
    assert pair.a.requestor.statistics().packets_lost == 0


# Reordering.


@pytest.mark.parametrize("delays_ms", [[0, 0.3], [0, 0.1, 0.5, 0.9], [0, 2, 5, 10]])
def test_reordering_between_planes_is_not_loss(delays_ms: list[float]) -> None:
    """Planes of any difference in delay: nothing is sent twice, no EV is withdrawn."""
    planes = len(delays_ms)
    pair = Pair(Config(mtu=2048), planes=planes, filters=[plane_delays(delays_ms)])
    found = run(pair, 4 * MIB)
    assert (found.packets_retransmitted, found.packets_lost, found.timeouts) == (0, 0, 0)
    assert pair.a.ev_changes() == []


@pytest.mark.parametrize("mbps", [5, 20, 200, 2000])
@pytest.mark.parametrize("planes", [2, 4])
def test_queues_that_build_up_are_not_loss(planes: int, mbps: int) -> None:
    """At the start queues grow faster than any average of round trips; nothing is called lost."""
    pair = Pair(Config(mtu=2048), planes=planes, link_bps=mbps * 1e6)
    found = run(pair, min(4 * MIB, mbps * 200_000))
    assert (found.packets_retransmitted, found.packets_lost) == (0, 0)
    assert pair.a.ev_changes() == []


def test_reordering_on_every_ev_is_learned() -> None:
    """Where packets overtake each other on their own EV, order is soon no longer trusted."""
    pair = Pair(Config(mtu=1024, paths=8), filters=[jitter(300)], link_bps=1e9)
    found = run(pair, MIB)
    assert 0 < found.packets_lost == found.packets_spurious
    assert found.packets_retransmitted < 0.02 * found.packets_sent
    later = run(pair, MIB)
    assert later.packets_lost == found.packets_lost


def test_zero_bits_alone_never_cause_a_retransmission() -> None:
    """A SACK with holes is no verdict as long as nothing else speaks for a loss."""
    pair = Pair(Config(mtu=256, paths=8, spray_run=1), filters=[black_hole(data)])
    pair.post(bytes(256 * 8))
    pair.flush()
    pair.now_ns += 100 * US
    Forger(pair, 0).sack(-1, ack_psn_offset=8, sack_offset=1, sack_bitmap=1 << 7, ooo_count=1)
    pair.flush()
    assert pair.a.requestor.statistics().packets_retransmitted == 0


# Lateness.


class EightInFlight:
    """Eight packets in flight on eight EVs, after round trips of 100 us; all but the first arrive.

    Nothing of it comes by itself: the SACKs are forged.
    """

    def __init__(self) -> None:
        config = Config(mtu=256, paths=8, backup_paths=0, spray_run=1)
        self.pair = Pair(config, delay_ns=50 * US)
        for _ in range(8):
            self.pair.transfer(b"x")
        self.pair.filters.append(black_hole(lambda _: True))
        self.pair.post(bytes(256 * 8))
        self.pair.flush()
        self.sent_ns = self.pair.now_ns
        self.forger = Forger(self.pair, 0)

    def without_the_first(self, at_ns: int) -> RequestorStatistics:
        """Let a SACK come, so long after sending, that has all but the first of the eight."""
        self.pair.now_ns = self.sent_ns + at_ns
        fields = {"sack_offset": 2, "sack_bitmap": 0b1111111, "ooo_count": 7, "rcvd_bytes": 1000}
        self.forger.sack(7, ack_psn_offset=8, **fields)
        self.pair.flush()
        return self.pair.a.requestor.statistics()

    def with_the_first(self) -> RequestorStatistics:
        """Let a SACK come that the first of the eight caused."""
        self.forger.sack(15, ack_psn_offset=-7, rcvd_bytes=1002)
        return self.pair.a.requestor.statistics()


def test_late_packet() -> None:
    """Still missing after the slowest round trip and a margin of 1 ms at least, it is lost."""
    eight = EightInFlight()
    assert eight.without_the_first(100 * US).packets_lost == 0
    assert eight.without_the_first(1_100 * US - 1).packets_lost == 0
    assert eight.without_the_first(1_100 * US).packets_lost == 1
    assert [path.lost_packets for path in eight.pair.a.paths.paths].count(1) == 1


def test_all_that_waits_is_heard_before_the_verdict() -> None:
    """After a pause of ours the first SACK lacks what the next one has: nothing was lost."""
    eight = EightInFlight()
    eight.pair.now_ns = eight.sent_ns + 5 * MS
    fields = {"sack_offset": 2, "sack_bitmap": 0b1111111, "ooo_count": 7, "rcvd_bytes": 1000}
    eight.forger.sack(7, ack_psn_offset=8, **fields)
    assert eight.with_the_first().packets_lost == 0
    eight.pair.flush()
    assert eight.pair.a.requestor.statistics().packets_lost == 0


def test_late_packet_is_asked_for() -> None:
    """Where no SACK comes that late, a probe asks for one: silence alone is no verdict."""
    eight = EightInFlight()
    eight.without_the_first(100 * US)
    probes = Tap(opcode(Opcode.PROBE))
    eight.pair.filters.insert(0, probes)
    eight.pair.run_for(5 * MS)
    assert probes.datagrams[0].sent_ns - eight.sent_ns == 1_200 * US
    assert eight.pair.a.requestor.statistics().packets_lost == 0


def test_packet_that_comes_in_time_is_not_late() -> None:
    """A missing packet that is acknowledged before its time is up is not asked for."""
    eight = EightInFlight()
    eight.without_the_first(100 * US)
    eight.with_the_first()
    eight.pair.run_for(1_500 * US)
    found = eight.pair.a.requestor.statistics()
    assert (found.packets_lost, found.probes) == (0, 0)


def test_sack_that_came_a_long_way() -> None:
    """What the SACK itself needed is allowed to a missing packet, and more where it is farther."""
    paths = path_set(planes=2, paths=4, backup_paths=0)
    near, far = paths.paths[0], paths.paths[2]
    paths.on_rtt(near, 1 * MS, 0)
    paths.on_rtt(far, 9 * MS, 0)
    margin_ns = int(2 * paths.rttvar_ns)

    def late_ns(trigger: Path, rtt_ns: int | None) -> list[int]:
        return [paths.late_ns(ev.index, trigger.index, rtt_ns) for ev in (near, far)]

    assert late_ns(near, None) == [9 * MS + margin_ns] * 2
    assert late_ns(near, 20 * MS) == [20 * MS + margin_ns, 28 * MS + margin_ns]
    assert late_ns(far, 20 * MS) == [20 * MS + margin_ns] * 2


# Wrong verdicts.


def slow_ev(delay_ns: int, since_ns: int, until_ns: int) -> Filter:
    """The first EV of plane 0 is slower for a while."""
    match: Match = on_ev({FIRST_EV_PORT}, 0)

    def act(datagram: Datagram) -> None:
        if match(datagram) and since_ns <= datagram.sent_ns < until_ns:
            datagram.delay_ns += delay_ns

    return act


def test_spurious_loss_is_undone() -> None:
    """An EV that suddenly gets slower is blamed, and cleared as soon as its packets arrive."""
    pair = Pair(Config(mtu=1024, link_bps=400_000_000), planes=2, link_bps=200e6)
    pair.filters.append(slow_ev(20 * MS, pair.now_ns + 5 * MS, pair.now_ns + 6 * MS))
    found = run(pair, 2 * MIB)
    assert found.packets_lost == found.packets_spurious > 0
    changes = pair.a.ev_changes()
    assert {change.source_port for change in changes} == {FIRST_EV_PORT}
    assert changes[-1].after is EvState.GOOD
    assert found.timeouts == 0


def test_window_survives_a_spurious_loss() -> None:
    """The window lost to a verdict comes back when the verdict falls."""
    eight = EightInFlight()
    eight.without_the_first(100 * US)
    eight.without_the_first(1_100 * US)
    eight.pair.flush()
    cut = eight.pair.a.requestor.nscc.cwnd
    assert eight.with_the_first().packets_spurious == 1
    assert eight.pair.a.requestor.nscc.cwnd == cut + 256 + 40 + 48


def test_margin_grows_with_each_mistake_and_shrinks_in_calm() -> None:
    """Each late verdict that falls doubles the margin, up to 16 times; a calm second halves it."""
    paths = Pair(Config(mtu=1024)).a.paths
    first = paths.paths[0]
    scales = []
    for _ in range(6):
        paths.on_spurious(0, 0, by_order=False)
        scales.append(paths.reorder_scale)
    assert scales == [2, 4, 8, 16, 16, 16]
    for second in range(1, 6):
        paths.on_rtt(first, 100 * US, second * 1_000 * MS + second)
        scales.append(paths.reorder_scale)
    assert scales[6:] == [8, 4, 2, 1, 1]


# The tail.


def test_tail_loss_costs_a_probe_not_a_timeout() -> None:
    """When the last packets are lost a reliability probe finds out long before the timeout."""
    pair = Pair(Config(mtu=1024, timeout=17), planes=2, link_bps=200e6)
    count = 512
    pair.filters.append(lose_nth(set(range(count - 5, count))))
    started_ns = pair.now_ns
    found = run(pair, count * 1024)
    assert (found.packets_retransmitted, found.timeouts) == (5, 0)
    assert found.probes >= 1
    assert pair.now_ns - started_ns < 50 * MS < pair.config.timeout_ns


def test_probe_goes_over_another_ev() -> None:
    """The probe that asks for a lost tail does not take the EV of the oldest packet."""
    probes = Tap(opcode(Opcode.PROBE))
    pair = Pair(Config(mtu=256, paths=2, backup_paths=0), filters=[probes])
    pair.transfer(b"x")
    tail = Tap()
    pair.filters += [lose_nth({0}), tail]
    pair.transfer(b"x")
    lost, again = (datagram.source_port for datagram in tail.datagrams)
    assert probes.datagrams[0].source_port != lost
    assert again != lost


def test_lost_probe_is_repeated_with_patience() -> None:
    """Probes that are lost are sent again, each after twice the time."""
    probes = Tap(opcode(Opcode.PROBE))
    pair = Pair(Config(mtu=256, timeout=18), filters=[probes])
    pair.transfer(b"x")
    pair.filters.append(black_hole(lambda d: True))
    pair.post(b"x")
    pair.run_for(100 * MS)
    times = [datagram.sent_ns for datagram in probes.datagrams]
    gaps = [(b - a) // MS for a, b in itertools.pairwise(times)]
    assert gaps == [4, 8, 16, 32]


def test_what_one_bitmap_could_not_tell_is_asked_for() -> None:
    """When more is held than all SACKs told, a probe asks soon, and again until all is known."""
    pair, forger = in_flight([0, 1, 1, 0])
    probes = Tap(opcode(Opcode.PROBE))
    pair.filters.insert(0, probes)
    pair.a.paths.on_rtt(pair.a.paths.paths[0], 10 * MS, pair.now_ns)
    started_ns = pair.now_ns
    forger.sack(-1, ack_psn_offset=2, ooo_count=3, rcvd_bytes=4)
    pair.run(lambda: bool(probes.datagrams))
    assert pair.now_ns - started_ns == 2 * MS
    for held, asked in ((3, 2), (3, 3), (1, 3)):
        probe_id = int.from_bytes(probes.datagrams[-1].data[16:18], "big")
        forger.sack(-1, pr=True, ack_psn_offset=probe_id, ooo_count=held, rcvd_bytes=4)
        pair.run_for(10 * US)
        assert len(probes.datagrams) == asked


def test_many_probes_are_forgotten_in_turn() -> None:
    """No more than 64 probes are remembered; the answer to an older one is no news."""
    pair = Pair(Config(mtu=256))
    loss = pair.a.requestor.loss
    ids = [loss.new_probe(0, pair.now_ns) for _ in range(65)]
    assert len(set(ids)) == 65
    forger = Forger(pair, 0)
    forger.sack(-1, pr=True, ack_psn_offset=ids[0])
    assert pair.a.requestor.statistics().srtt_ns == 0
    pair.now_ns += 1 * MS
    forger.sack(-1, pr=True, ack_psn_offset=ids[1])
    assert pair.a.requestor.statistics().srtt_ns == 1 * MS


def test_lost_acknowledgements_are_not_lost_packets() -> None:
    """Half of the SACKs lost: nothing is sent twice, no EV is blamed."""
    config = Config(mtu=1024, link_bps=400_000_000, base_rtt_ns=2 * MS)
    filters = [lose(0.5, from_b)]
    pair = Pair(config, planes=2, link_bps=200e6, delay_ns=1 * MS, filters=filters)
    found = run(pair, 2 * MIB)
    assert (found.packets_retransmitted, found.packets_lost) == (0, 0)
    assert pair.a.ev_changes() == []
