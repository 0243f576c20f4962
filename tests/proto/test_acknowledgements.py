"""Acknowledgements that are late, doubled, made up or contradict each other change nothing.

A's packets are on their way and the network is cut, so that only the forged ones come back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mrc.proto.config import Config
from mrc.proto.events import QpFailed, QpFailure
from mrc.proto.statistics import DropReason, RequestorStatistics
from mrc.wire.control import NackReason, SackMark, Syndrome
from tests.support.filters import black_hole, data, from_b, jitter, lose
from tests.support.packets import Forger
from tests.support.pair import MS, US, Datagram, Pair, S

PACKETS = 20
STALE, IMPOSSIBLE = DropReason.STALE_ACK, DropReason.IMPOSSIBLE_ACK
PACKET_BYTES = 256 + 40 + 48
"""Nominal bytes of one of them."""


class Waiting:
    """A with twenty packets in flight, one EV each, none of which arrived; places count them."""

    def __init__(self, **config: Any) -> None:
        settings = {"mtu": 256, "paths": 32, "backup_paths": 0, "spray_run": 1} | config
        self.pair = Pair(Config(**settings), filters=[black_hole(data)])
        self.pair.post(bytes(256 * PACKETS))
        self.pair.flush()
        self.forger = Forger(self.pair, 0)
        self.requestor = self.pair.a.requestor
        self.first = self.pair.a.qp.first_psn
        self.pair.now_ns += 100 * US

    def in_flight(self) -> list[int]:
        """Places of what is not acknowledged."""
        window = self.requestor.window
        places = range(window.una, window.nxt)
        return [psn - self.first for psn in places if window.state[window.index(psn)]]

    def drops(self) -> dict[DropReason, int]:
        """What was counted as dropped."""
        return self.pair.a.dropped()

    def statistics(self) -> RequestorStatistics:
        """A's counters."""
        return self.requestor.statistics()


def without(*places: int) -> list[int]:
    """All places but these."""
    return [place for place in range(PACKETS) if place not in places]


# What a SACK acknowledges.


def test_cumulative() -> None:
    """Everything up to cack_psn has arrived."""
    a = Waiting()
    a.forger.sack(4, ack_psn_offset=0, rcvd_bytes=7)
    assert a.in_flight() == list(range(5, PACKETS))


def test_selective() -> None:
    """Each bit that is set acknowledges the PSN it stands for."""
    a = Waiting()
    a.forger.sack(-1, ack_psn_offset=4, sack_offset=1, sack_bitmap=0b1010, ooo_count=2)
    assert a.in_flight() == without(1, 3)


@pytest.mark.parametrize("offset", [-30, -3, 0, 3])
def test_any_base_is_understood(offset: int) -> None:
    """The bitmap may begin anywhere, also below cack (MRC 1.0 §7.5.2.2)."""
    a = Waiting()
    bitmap = 1 << (7 - offset) | ((1 << -offset) - 1 if offset < 0 else 0)
    a.forger.sack(0, ack_psn_offset=7, sack_offset=offset, sack_bitmap=bitmap, ooo_count=1)
    assert a.in_flight() == without(0, 7)


def test_zero_bits_say_nothing() -> None:
    """A SACK without bits, whatever it counts as held, makes nothing lost."""
    a = Waiting()
    a.forger.sack(-1, ack_psn_offset=10, sack_offset=1, sack_bitmap=0, ooo_count=9)
    a.pair.flush()
    assert a.in_flight() == without(9)
    assert (a.statistics().packets_lost, a.statistics().packets_retransmitted) == (0, 0)


def test_trigger_is_acknowledged() -> None:
    """The packet that caused a SACK has arrived, whether the bitmap reaches it or not."""
    a = Waiting()
    a.forger.sack(-1, ack_psn_offset=16, sack_offset=1, sack_bitmap=0b10, ooo_count=2)
    assert a.in_flight() == without(1, 15)


# Old news.


def test_stale_sack_is_counted_and_harmless() -> None:
    """A SACK for less than is known is counted and changes nothing."""
    a = Waiting()
    a.forger.sack(9, ack_psn_offset=0, rcvd_bytes=13)
    before = a.statistics()
    a.forger.sack(3, ack_psn_offset=0, rcvd_bytes=6)
    assert a.drops() == {STALE: 1}
    assert a.statistics() == replace(before, sacks=before.sacks + 1)


def test_repeated_sack_changes_nothing_more() -> None:
    """The same SACK again, whenever, takes nothing off what is in flight a second time."""
    a = Waiting()
    for _ in range(3):
        a.forger.sack(9, ack_psn_offset=0, rcvd_bytes=13)
    assert a.statistics().inflight_bytes == PACKETS * PACKET_BYTES - 13 * 256
    assert a.in_flight() == list(range(10, PACKETS))
    assert a.drops() == {}


def test_replayed_sacks_do_not_spoil_the_round_trip() -> None:
    """A replay of an old SACK long after is no sample of a round trip."""
    a = Waiting()
    a.forger.sack(0, ack_psn_offset=0, rcvd_bytes=2)
    a.forger.sack(9, ack_psn_offset=0, rcvd_bytes=13)
    before = a.statistics()
    a.pair.now_ns += 50 * MS
    a.forger.sack(0, ack_psn_offset=0, rcvd_bytes=2)
    assert a.statistics().srtt_ns == before.srtt_ns == 100 * US


def test_sacks_that_overtake_each_other() -> None:
    """What an overtaken SACK has in its bitmap still counts; its holes are not missing."""
    a = Waiting()
    a.forger.sack(
        -1, ack_psn_offset=12, sack_offset=11, sack_bitmap=0b110, ooo_count=2, rcvd_bytes=4
    )
    a.forger.sack(
        -1, ack_psn_offset=5, sack_offset=1, sack_bitmap=1 << 4, ooo_count=1, rcvd_bytes=2
    )
    assert a.in_flight() == without(4, 11, 12)
    assert a.drops() == {STALE: 1}
    assert not a.requestor.window.is_missing(a.first + 3)


@pytest.mark.parametrize("place", [-1, -100, -8000, -(1 << 15)])
def test_trigger_before_the_first_packet(place: int) -> None:
    """A SACK said to be caused by something never sent is no sample of a round trip."""
    a = Waiting()
    a.forger.sack(0, ack_psn_offset=place, rcvd_bytes=2)
    assert a.statistics().srtt_ns == 0


# What cannot be.


@pytest.mark.parametrize(
    ("cack", "fields"),
    [
        (PACKETS, {}),
        (1 << 22, {}),
        (0, {"ack_psn_offset": PACKETS}),
        (0, {"sack_offset": PACKETS, "sack_bitmap": 1}),
        (0, {"sack_offset": 1, "sack_bitmap": 1 << 63}),
        (0, {"sack_offset": 32767, "sack_bitmap": (1 << 64) - 1}),
    ],
)
def test_impossible_sack(cack: int, fields: dict[str, int]) -> None:
    """A SACK for what was never sent is counted, and nothing of it is believed."""
    a = Waiting()
    before = a.statistics()
    a.forger.sack(cack, **fields)
    assert (a.drops(), a.in_flight()) == ({IMPOSSIBLE: 1}, without())
    assert a.statistics() == before


@pytest.mark.parametrize("place", [PACKETS, PACKETS + 1, 1 << 22])
def test_impossible_nack(place: int) -> None:
    """A NACK for what was never sent is counted and nothing is sent again."""
    a = Waiting()
    a.forger.nack(place)
    a.pair.flush()
    assert a.drops() == {IMPOSSIBLE: 1}
    assert a.statistics().packets_retransmitted == 0


@pytest.mark.parametrize("syndrome", [Syndrome.ACK, Syndrome.NAK_REMOTE_ACCESS])
def test_impossible_transport_ack(syndrome: int) -> None:
    """A Transport ACK or NAK for what was never sent is counted and completes or ends nothing."""
    a = Waiting()
    a.forger.ack(PACKETS, syndrome)
    a.pair.flush()
    assert (a.drops(), a.pair.a.events) == ({IMPOSSIBLE: 1}, [])


def test_probe_answer_that_was_not_asked() -> None:
    """The answer to a probe never sent is no sample and proves nothing missing."""
    a = Waiting()
    a.forger.sack(-1, pr=True, ack_psn_offset=77)
    assert a.statistics().srtt_ns == 0
    assert not a.requestor.window.any_missing


def test_sack_for_another_queue_pair() -> None:
    """A SACK or NACK whose dpdcid is not ours is not believed."""
    a = Waiting()
    wrong = (a.pair.a.qp.qpn + 1) & 0xFFFF
    a.forger.sack(9, dpdcid=wrong)
    a.forger.nack(3, dpdcid=wrong)
    assert (a.in_flight(), a.statistics().sacks, a.statistics().nacks) == (without(), 0, 0)
    assert a.pair.a.dropped() == {DropReason.MALFORMED: 2}


# NACKs.


def test_nack_for_what_has_arrived() -> None:
    """A NACK for an acknowledged packet is counted as stale."""
    a = Waiting()
    a.forger.sack(4, ack_psn_offset=0, rcvd_bytes=7)
    for place in (4, -1):
        a.forger.nack(place)
    assert a.drops() == {STALE: 2}
    assert a.in_flight() == list(range(5, PACKETS))


def test_repeated_nack() -> None:
    """The second of two NACKs for one packet is stale: it is sent again once."""
    a = Waiting()
    a.forger.nack(3)
    a.forger.nack(3)
    a.pair.flush()
    assert a.drops() == {STALE: 1}
    assert a.statistics().packets_retransmitted == 1


def test_nack_for_an_earlier_transmission() -> None:
    """A NACK whose timestamp is not that of the latest transmission is stale."""
    a = Waiting()
    a.forger.nack(3)
    a.pair.flush()
    a.forger.nack(3, tx_timestamp=1)
    a.pair.flush()
    assert a.drops() == {STALE: 1}
    assert a.statistics().packets_retransmitted == 1


def test_acknowledged_before_the_retransmission_left() -> None:
    """A packet acknowledged while it waits for its retransmission is not sent again."""
    a = Waiting()
    a.forger.nack(3)
    inflight = a.statistics().inflight_bytes
    a.forger.sack(3, ack_psn_offset=0, rcvd_bytes=6)
    a.pair.flush()
    assert a.statistics().packets_retransmitted == 0
    assert a.statistics().inflight_bytes == inflight + PACKET_BYTES - 6 * 256


def test_fatal_nack() -> None:
    """UNEXP_EVENT ends the queue pair at once with a remote operation error, without a retry."""
    a = Waiting()
    a.forger.nack(3, NackReason.UNEXP_EVENT)
    a.pair.flush()
    (failed,) = (event for event in a.pair.a.events if isinstance(event, QpFailed))
    assert failed.failure is QpFailure.REMOTE_OPERATION


@pytest.mark.parametrize("reason", [0x06, 0x07, 0x0A, 0x0B, 0x55])
def test_refused_for_want_of_resources(reason: int) -> None:
    """Any other reason, known or not, is retryable: the packet is sent again after 1 ms."""
    a = Waiting()
    a.forger.nack(3, reason)
    a.pair.flush()
    assert a.statistics().packets_retransmitted == 0
    sent_ns = a.pair.now_ns
    a.pair.run(lambda: a.statistics().packets_retransmitted == 1)
    assert a.pair.now_ns - sent_ns == 1 * MS


# Transport ACKs and NAKs.


def test_complete_needs_sack_and_transport_ack() -> None:
    """A write is done when SACK and Transport ACK both cover it, in whatever order they come."""
    for first, second in (("sack", "ack"), ("ack", "sack")):
        a = Waiting()
        for what in (first, second):
            assert a.pair.a.events == []
            if what == "sack":
                a.forger.sack(PACKETS - 1, ack_psn_offset=0, rcvd_bytes=27)
            else:
                a.forger.ack(PACKETS - 1, msn=1)
            a.pair.flush()
        assert a.pair.done(1)


def test_transport_ack_never_goes_back() -> None:
    """An older Transport ACK after a newer one takes nothing back."""
    a = Waiting()
    a.forger.ack(PACKETS - 1, msn=1)
    a.forger.ack(0, msn=0)
    a.forger.sack(PACKETS - 1, ack_psn_offset=0, rcvd_bytes=27)
    a.pair.flush()
    assert a.pair.done(1)


@pytest.mark.parametrize(
    ("syndrome", "failure"),
    [
        (Syndrome.NAK_INVALID_REQUEST, QpFailure.REMOTE_INVALID_REQUEST),
        (Syndrome.NAK_REMOTE_ACCESS, QpFailure.REMOTE_ACCESS),
        (Syndrome.NAK_REMOTE_OPERATION, QpFailure.REMOTE_OPERATION),
    ],
)
def test_transport_nak_ends_the_queue_pair(syndrome: int, failure: QpFailure) -> None:
    """Each fatal syndrome has its own failure, and nothing more is sent."""
    a = Waiting()
    a.forger.ack(3, syndrome)
    a.pair.flush()
    (failed,) = (event for event in a.pair.a.events if isinstance(event, QpFailed))
    assert failed.failure is failure
    sent = a.statistics().packets_sent
    a.pair.run_for(1 * S)
    assert a.statistics().packets_sent == sent


@pytest.mark.parametrize("syndrome", [Syndrome.NAK_PSN_SEQUENCE, 0x20, 0xE0])
def test_other_syndromes_are_ignored(syndrome: int) -> None:
    """MRC has no sequence NAK and no RNR NAK: holes are the SACK's business."""
    a = Waiting()
    a.forger.ack(3, syndrome)
    a.pair.flush()
    assert a.pair.a.events == []


# What else a SACK says.


def test_mark_is_taken_once() -> None:
    """A mark, m = SKIP_ONCE, lets the EV of the triggering packet be passed over, and no other."""
    a = Waiting()
    a.forger.sack(0, ack_psn_offset=0, m=SackMark.SKIP_ONCE, rcvd_bytes=2)
    skipped = [path for path in a.pair.a.paths.paths if path.state.name == "SKIP"]
    assert [path.marked_packets for path in skipped] == [1]
    assert skipped[0].index == a.requestor.window.ev[a.requestor.window.index(a.first)]


def test_path_judged_bad_by_the_responder() -> None:
    """A verdict, m = ALWAYS_SKIP, withdraws the EV of the triggering packet."""
    a = Waiting()
    a.forger.sack(0, ack_psn_offset=0, m=SackMark.ALWAYS_SKIP, rcvd_bytes=2)
    a.pair.flush()
    (change,) = a.pair.a.ev_changes()
    assert change.reason == "responder judges it bad"
    assert change.index == a.requestor.window.ev[a.requestor.window.index(a.first)]


def test_dynamic_window() -> None:
    """Mpr in a SACK bounds how far beyond cack may be sent, up to what was agreed."""
    config = Config(mtu=256, mpr_psns=2048, link_bps=100_000_000_000)
    pair = Pair(config, filters=[black_hole(data)])
    pair.post(bytes(256 * 5000))
    pair.flush()
    forger = Forger(pair, 0)
    requestor, first = pair.a.requestor, pair.a.qp.first_psn
    assert requestor.window.nxt == first + 2048
    for mpr, sent in ((8, 2048), (0, 2048), (16, 2051), (255, 2052)):
        forger.sack(requestor.window.una - first, ack_psn_offset=0, mpr=mpr, rcvd_bytes=2)
        pair.flush()
        assert requestor.window.nxt == first + sent


def test_window_shrinks_by_the_receivers_penalty() -> None:
    """rcv_cwnd_pen reaches the congestion window."""
    a = Waiting()
    before = a.requestor.nscc.cwnd
    a.forger.sack(9, ack_psn_offset=0, rcvd_bytes=13, rcv_cwnd_pen=64)
    assert a.requestor.nscc.cwnd < before
    a.forger.sack(9, ack_psn_offset=0, rcvd_bytes=13, restore_cwnd=True)
    assert a.requestor.nscc.cwnd == before


@pytest.mark.parametrize(("base_us", "delay_us"), [(100, 300), (500, 0), (0, 0)])
def test_delay_is_counted_from_the_idle_network(base_us: int, delay_us: int) -> None:
    """Who begins in a standing queue, 300 us here, knows it where the base round trip is given.

    A plane may be shorter than that of the longest path, and where nothing is given, what is
    measured is all that is known.
    """
    config = Config(mtu=1024, link_bps=1_000_000_000, base_rtt_ns=base_us * US)
    pair = Pair(config, delay_ns=200 * US)
    pair.transfer(bytes(1 << 16))
    assert pair.a.requestor.nscc.average_delay_ns == pytest.approx(delay_us * US, abs=1 * US)


# All of it at once.


def repeat(datagram: Datagram) -> None:
    """Send each acknowledgement three times."""
    if from_b(datagram):
        datagram.copies = 3


def test_transfer_survives_a_bad_return_path() -> None:
    """SACKs that are lost, doubled and overtake each other make nothing be sent twice."""
    pair = Pair(
        Config(mtu=1024), planes=2, filters=[lose(0.3, from_b), jitter(500, from_b), repeat]
    )
    data_sent = pair.rng.randbytes(1 << 20)
    assert pair.transfer(data_sent) == data_sent
    assert pair.a.requestor.statistics().packets_retransmitted == 0
    assert pair.a.ev_changes() == []
