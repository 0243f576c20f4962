"""Trimming: congestion that is answered in one round trip, and is nobody's fault (MRC 1.0 §7.5.6).

A switch that cannot queue a packet cuts it behind its headers; the NACK it causes is exact.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from mrc.proto.config import Config
from mrc.proto.events import EvState
from mrc.wire.control import NackReason
from tests.support.filters import (
    DSCP,
    Match,
    Tap,
    cut,
    data,
    first_time,
    from_b,
    nth,
    trim,
)
from tests.support.pair import MS, US, Datagram, Filter, Pair

CONFIG = Config(mtu=1024, trimming=True)
DELAY_NS = 20 * US


def again(datagram: Datagram) -> bool:
    """Match retransmissions of A."""
    return data(datagram) and datagram.rtx


def trimmed(places: set[int], *, last_hop: bool = False) -> Filter:
    """Trim the data packets at these places in the order of sending."""
    return trim(1.0, nth(places), last_hop=last_hop)


def test_trimmed_packet_is_sent_again_in_one_round_trip() -> None:
    """The NACK makes the packet go again at once, with rtx set, in the class of retransmissions."""
    tap = Tap(again)
    pair = Pair(CONFIG, planes=2, delay_ns=DELAY_NS, filters=[trimmed({3}), tap])
    sent_ns = pair.now_ns
    sent = pair.rng.randbytes(8192)
    assert pair.transfer(sent) == sent
    (datagram,) = tap.datagrams
    assert datagram.sent_ns - sent_ns == 2 * DELAY_NS
    assert datagram.tos >> 2 == DSCP.trimmable_retx
    assert pair.now_ns - sent_ns == 4 * DELAY_NS
    found = pair.a.requestor.statistics()
    assert (found.nacks, found.trims, found.packets_lost, found.timeouts) == (1, 1, 0, 0)


def test_first_transmissions_may_be_trimmed() -> None:
    """First transmissions leave in the class TRIMMABLE, control packets in CONTROL."""
    first, control = Tap(first_time), Tap(from_b)
    Pair(CONFIG, filters=[first, control]).transfer(bytes(8192))
    assert {datagram.tos >> 2 for datagram in first.datagrams} == {DSCP.trimmable}
    assert {datagram.tos >> 2 for datagram in control.datagrams} == {DSCP.control}


def test_fresh_ev() -> None:
    """The retransmission never takes the EV on which the packet was trimmed."""
    cut_ones, tap = Tap(lambda d: d.tos >> 2 == DSCP.trimmed), Tap(again)
    filters: list[Filter] = [trim(0.2), cut_ones, tap]
    pair = Pair(Config(mtu=1024, paths=4, trimming=True), planes=2, filters=filters)
    sent = pair.rng.randbytes(1 << 18)
    assert pair.transfer(sent) == sent
    first_ev = {d.psn: (d.plane, d.source_port) for d in cut_ones.datagrams}
    assert len(tap.datagrams) == len(cut_ones.datagrams) > 20
    for datagram in tap.datagrams:
        assert (datagram.plane, datagram.source_port) != first_ev[datagram.psn]


def test_ev_is_passed_over_once() -> None:
    """A trim in the fabric lets the EV be passed over, and is no reason to withdraw it."""
    pair = Pair(Config(mtu=1024, trimming=True, spray_run=1), planes=2, filters=[trimmed({0})])
    pair.post(bytes(1024))
    pair.run_for(2 * DELAY_NS)
    states = [path.state for path in pair.a.paths.paths]
    assert (states.count(EvState.SKIP), states.count(EvState.ASSUMED_BAD)) == (1, 0)
    assert pair.a.ev_changes() == []


def test_last_hop_leaves_the_ev_alone() -> None:
    """The last hop is common to all EVs: a trim there cuts the window and blames no EV."""
    pair = Pair(CONFIG, planes=2, filters=[trimmed({0}, last_hop=True)])
    window = pair.a.requestor.nscc.cwnd
    pair.post(bytes(1024))
    pair.run_for(2 * DELAY_NS)
    assert {path.state for path in pair.a.paths.paths} == {EvState.GOOD}
    assert pair.a.requestor.nscc.cwnd < window
    assert pair.a.requestor.statistics().trims == 1
    assert sum(path.trimmed_packets for path in pair.a.paths.paths) == 1


def test_trim_that_arrived_otherwise() -> None:
    """What is left of a packet whose copy came through gets a SACK, and nothing is sent again."""
    nacks = Tap(from_b)

    def duplicate_then_cut(datagram: Datagram) -> None:
        if data(datagram):
            pair.filters.clear()
            pair.filters.append(nacks)
            late = replace(datagram, data=bytearray(datagram.data))
            cut(late)
            pair.send_later(late, DELAY_NS + 10 * US)

    pair = Pair(CONFIG, filters=[duplicate_then_cut])
    assert pair.transfer(b"x" * 500) == b"x" * 500
    pair.run_for(1 * MS)
    assert nacks.nacks() == []
    assert len(nacks.sacks()) == 2
    assert pair.a.requestor.statistics().packets_retransmitted == 0


@pytest.mark.parametrize("rate", [0.02, 0.3])
def test_heavy_trimming(rate: float) -> None:
    """However much is trimmed, all arrives, without a timeout and without an EV withdrawn."""
    pair = Pair(CONFIG, planes=4, link_bps=1e9, filters=[trim(rate)])
    sent = pair.rng.randbytes(1 << 20)
    assert pair.transfer(sent) == sent
    found = pair.a.requestor.statistics()
    assert (found.timeouts, found.packets_lost, found.packets_spurious) == (0, 0, 0)
    assert found.packets_retransmitted == found.trims
    assert pair.a.ev_changes() == []


def test_trimmed_retransmissions() -> None:
    """A retransmission may be trimmed too, and is asked for again."""
    match: Match = nth({0, 1, 2}, data)
    pair = Pair(CONFIG, filters=[trim(1.0, match)])
    assert pair.transfer(b"y" * 700) == b"y" * 700
    assert pair.a.requestor.statistics().trims == 3
    assert pair.a.requestor.statistics().timeouts == 0


def test_question_cut_with_its_packet_is_asked_again() -> None:
    """The last packet that the window allows asks for a SACK; where it is trimmed, a probe does.

    What arrived is too little for a SACK unasked, and leaves no room to send: it would stand still
    until the retransmission timer.
    """
    config = Config(trimming=True, link_bps=1_000_000_000, base_rtt_ns=300 * US)
    pair = Pair(config, filters=[trimmed(set(range(1, 13)), last_hop=True)])
    sent = pair.rng.randbytes(1 << 16)
    started_ns = pair.now_ns
    assert pair.transfer(sent) == sent
    assert pair.now_ns - started_ns < 5 * MS
    found = pair.a.requestor.statistics()
    assert (found.trims, found.timeouts) == (12, 0)


def test_round_trip_of_a_packet_trimmed_again() -> None:
    """Its time of sending tells which of many transmissions was answered; rtx alone does not."""
    pair = Pair(CONFIG, delay_ns=DELAY_NS, filters=[trimmed({0, 1})])
    pair.transfer(b"y" * 700)
    assert pair.a.requestor.statistics().srtt_ns == 2 * DELAY_NS


def test_answer_to_an_earlier_retransmission_is_no_round_trip() -> None:
    """The second of three transmissions arrives after all: nothing is measured by it."""

    def act(datagram: Datagram) -> None:
        if data(datagram):
            transmissions.append(datagram)
            if len(transmissions) == 2:
                pair.send_later(replace(datagram, data=bytearray(datagram.data)), 1 * MS)
            if len(transmissions) < 3:
                cut(datagram)
            else:
                datagram.copies = 0

    transmissions: list[Datagram] = []
    pair = Pair(CONFIG, delay_ns=DELAY_NS, filters=[act])
    assert pair.transfer(b"y" * 700) == b"y" * 700
    assert len(transmissions) == 3
    assert pair.a.requestor.statistics().srtt_ns == 0


def test_immediate_survives_a_trim() -> None:
    """The immediate of a trimmed packet is delivered once, with the retransmission."""
    pair = Pair(CONFIG, filters=[trimmed({0})])
    pair.transfer(b"z" * 10, imm=9)
    assert pair.immediates() == [9]


def test_responder_without_trim_nack() -> None:
    """Without the device capability TRIM_NACK a trimmed packet is as good as lost."""
    filters: list[Filter] = [trimmed({3})]
    pair = Pair(Config(mtu=1024, trimming=True, trim_nack=False), planes=2, filters=filters)
    sent = pair.rng.randbytes(1 << 18)
    assert pair.transfer(sent) == sent
    found = pair.a.requestor.statistics()
    assert (found.nacks, found.packets_lost, found.timeouts) == (0, 1, 0)


def test_trims_do_not_add_up() -> None:
    """Further trims while the EV is to be passed over leave it at once passed over."""
    paths = Pair(CONFIG).a.paths
    for _ in range(3):
        paths.on_trimmed(0, skip=True)
    chosen = [paths.choose() for _ in range(3 * paths.active_count)]
    assert chosen.count(paths.paths[0]) == 2


def test_reason_travels() -> None:
    """The NACK says whether the fabric or the last hop trimmed."""
    for last_hop, reason in ((False, NackReason.TRIMMED), (True, NackReason.TRIMMED_LASTHOP)):
        tap = Tap(from_b)
        Pair(CONFIG, filters=[trimmed({0}, last_hop=last_hop), tap]).transfer(b"x")
        assert [nack.reason for nack in tap.nacks()] == [reason]
