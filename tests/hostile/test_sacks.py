"""SACKs that contradict each other or claim what cannot be, one by one and through a transfer.

What a single old, doubled or impossible SACK does is in tests/proto/test_acknowledgements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mrc.proto.config import Config
from mrc.proto.statistics import DropReason
from mrc.wire.control import Ack, Nack, NackReason, Sack, Syndrome
from mrc.wire.fields import Opcode
from mrc.wire.psn import to_wire
from tests.proto.test_acknowledgements import PACKETS, Waiting, without
from tests.support.filters import from_b, nth, opcode
from tests.support.packets import Forger
from tests.support.pair import MS, Datagram, Pair

MIB = 1 << 20

# Two that do not agree.


def test_sack_that_takes_bits_back_is_not_believed() -> None:
    """What one SACK had is acknowledged for good; another without it makes nothing lost."""
    a = Waiting()
    a.forger.sack(
        -1, ack_psn_offset=8, sack_offset=1, sack_bitmap=0b1111_0000, ooo_count=4, rcvd_bytes=6
    )
    a.forger.sack(
        -1, ack_psn_offset=9, sack_offset=1, sack_bitmap=1 << 8, ooo_count=1, rcvd_bytes=7
    )
    a.pair.flush()
    window = a.requestor.window
    assert a.in_flight() == without(4, 5, 6, 7, 8)
    assert not any(window.is_missing(a.first + place) for place in (4, 5, 6, 7, 8))
    assert a.statistics().packets_lost == 0


def test_two_bitmaps_for_one_trigger_add_up() -> None:
    """Both are true: a packet that either of them has did arrive."""
    a = Waiting()
    for bitmap, units in ((0b1000_0010, 3), (0b1000_1000, 4)):
        a.forger.sack(
            -1, ack_psn_offset=8, sack_offset=1, sack_bitmap=bitmap, ooo_count=3, rcvd_bytes=units
        )
    assert a.in_flight() == without(1, 3, 7)


@pytest.mark.parametrize("held", [0, 1, PACKETS, 0x7FFF])
def test_count_that_contradicts_the_bitmap_loses_nothing(held: int) -> None:
    """Whatever a SACK says is held, its bits count, and no hole is lost before its time."""
    a = Waiting()
    a.forger.sack(
        -1, ack_psn_offset=3, sack_offset=1, sack_bitmap=0b111, ooo_count=held, rcvd_bytes=4
    )
    a.pair.flush()
    assert a.in_flight() == without(0, 1, 2)
    assert a.statistics().packets_retransmitted == 0


def test_nack_contradicts_what_a_sack_had() -> None:
    """A packet that has arrived is not sent again because somebody asks for it."""
    a = Waiting()
    a.forger.sack(
        -1, ack_psn_offset=5, sack_offset=1, sack_bitmap=1 << 4, ooo_count=1, rcvd_bytes=2
    )
    a.forger.nack(4, NackReason.TRIMMED)
    a.pair.flush()
    assert a.drops() == {DropReason.STALE_ACK: 1}
    assert a.statistics().packets_retransmitted == 0


def test_sack_contradicts_a_nack() -> None:
    """A packet asked for again that has arrived after all is not sent again."""
    a = Waiting()
    a.forger.nack(4, NackReason.TRIMMED)
    a.forger.sack(
        -1, ack_psn_offset=5, sack_offset=1, sack_bitmap=1 << 4, ooo_count=1, rcvd_bytes=2
    )
    a.pair.flush()
    assert a.in_flight() == without(4)
    assert a.statistics().packets_retransmitted == 0


def test_count_of_bytes_beyond_what_was_sent_is_forgotten_with_the_next() -> None:
    """A SACK whose cumulative acknowledgement moves is true, however much one before it counted."""
    a = Waiting()
    a.forger.sack(4, ack_psn_offset=0, rcvd_bytes=1 << 22)
    assert a.statistics().inflight_bytes == 0
    a.forger.sack(9, ack_psn_offset=0, rcvd_bytes=14)
    assert a.drops() == {}
    a.forger.sack(9, ack_psn_offset=3, sack_offset=1, sack_bitmap=0b100, ooo_count=1, rcvd_bytes=15)
    assert a.drops() == {}
    assert a.requestor.window.any_missing


# Through a transfer.


def fast(seed: int = 1) -> Pair:
    """Two planes of 400 Mbit/s."""
    return Pair(Config(mtu=1024, link_bps=800_000_000), planes=2, link_bps=400e6, seed=seed)


def forge_beyond(pair: Pair, everything: list[str]) -> Callable[[Datagram], None]:
    """With each SACK of B send A others, that acknowledge or refuse what was never sent."""
    forger = Forger(pair, 0)

    def act(datagram: Datagram) -> None:
        if datagram.opcode != Opcode.SACK or datagram.sender == 0:
            return
        sack, window = Sack.decode_untrusted(datagram.data), pair.a.requestor.window
        beyond = to_wire(window.nxt)
        for forged in (
            replace(sack, cack_psn=beyond),
            replace(sack, cack_psn=to_wire(window.nxt + (1 << 22))),
            replace(sack, sack_offset=0x7FFF, sack_bitmap=(1 << 64) - 1),
            replace(sack, pr=False, ack_psn_offset=0x7FFF),
            Nack(sack.dqp, beyond, NackReason.TRIMMED, dpdcid=sack.dpdcid),
            Ack(sack.dqp, beyond, Syndrome.ACK, 1),
            Ack(sack.dqp, beyond, Syndrome.NAK_REMOTE_ACCESS, 1),
        ):
            everything.append(type(forged).__name__)
            forger.deliver(forged.encode())

    return act


def test_forgeries_beyond_what_was_sent_change_nothing() -> None:
    """Every counter but that of the forgeries is what it is without them."""
    calm, attacked = fast(), fast()
    forged: list[str] = []
    attacked.filters.append(forge_beyond(attacked, forged))
    found = []
    for pair in (calm, attacked):
        sent = pair.rng.randbytes(MIB)
        assert pair.transfer(sent, imm=6) == sent
        found.append((pair.a.requestor.statistics(), pair.a.paths.statistics(), pair.now_ns))
    assert found[0] == found[1]
    assert len(forged) > 1000
    assert attacked.a.dropped() == {DropReason.IMPOSSIBLE_ACK: len(forged)}


@pytest.mark.parametrize("late_ms", [0, 1, 20])
def test_replays_change_nothing(late_ms: int) -> None:
    """Each acknowledgement comes twice more, at once or when it is old: nothing is sent twice."""
    pair = fast()

    def replay(datagram: Datagram) -> None:
        if from_b(datagram):
            for _ in range(2):
                again = replace(datagram, data=bytearray(datagram.data))
                pair.send_later(again, datagram.delay_ns + late_ms * MS)

    pair.filters.append(replay)
    sent = pair.rng.randbytes(2 * MIB)
    assert pair.transfer(sent) == sent
    found = pair.a.requestor.statistics()
    assert (found.packets_retransmitted, found.packets_spurious, found.timeouts) == (0, 0, 0)
    assert found.inflight_bytes == 0
    assert pair.a.ev_changes() == []


def test_one_count_of_bytes_that_cannot_be_does_not_slow_the_transfer() -> None:
    """One SACK counts a gigabyte too many: the rest is believed as soon as it says more."""
    times_ns = []
    for inflated in (False, True):
        pair = fast()
        if inflated:
            pair.filters.append(inflate(pair, 100))
        sent = pair.rng.randbytes(4 * MIB)
        started_ns = pair.now_ns
        assert pair.transfer(sent) == sent
        times_ns.append(pair.now_ns - started_ns)
    assert times_ns[1] < 1.1 * times_ns[0]


def inflate(pair: Pair, place: int) -> Callable[[Datagram], None]:
    """Let the SACK of B at that place, counted from 0, count a gigabyte more."""
    chosen, forger = nth({place}, opcode(Opcode.SACK)), Forger(pair, 0)

    def act(datagram: Datagram) -> None:
        if chosen(datagram):
            sack = Sack.decode_untrusted(datagram.data)
            forger.deliver(replace(sack, rcvd_bytes=sack.rcvd_bytes + (1 << 22)).encode())
            datagram.copies = 0

    return act
