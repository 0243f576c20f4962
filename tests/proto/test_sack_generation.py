"""What a responder answers to each kind of packet, and when it keeps quiet (MRC 1.0 §7.5.2)."""

from __future__ import annotations

from typing import Any

import pytest

from mrc.proto.config import Config
from mrc.proto.responder import SACK_SPACING_NS
from mrc.proto.runs import ECN_CE
from mrc.wire.control import Ack, Nack, NackReason, Sack, SackMark, timestamp
from mrc.wire.fields import Opcode
from tests.support.filters import DSCP, Tap, from_b
from tests.support.packets import Forger
from tests.support.pair import FIRST_EV_PORT, Pair

FIRST, MIDDLE, LAST = Opcode.WRITE_FIRST, Opcode.WRITE_MIDDLE, Opcode.WRITE_LAST
NOMINAL = 8 + 40
"""Bytes that count for a packet beside its UDP payload."""
WRITE_BYTES = 40
"""Headers and iCRC of a data packet, with TSETH and without immediate."""


class Responding:
    """B, and what it answers to forged packets of A. Places are PSNs counted from A's first."""

    def __init__(self, **config: Any) -> None:
        self.tap = Tap(from_b)
        self.pair = Pair(Config(mpr_psns=1024, mtu=1024, **config), filters=[self.tap])
        self.forger = Forger(self.pair, 1)
        self.region = self.pair.b.endpoint.register(bytearray(1 << 21))
        self.first_psn = self.pair.a.qp.first_psn

    def write(self, place: int, size: int = 1024, **fields: Any) -> None:
        """Let a data packet come in, by default from the middle of a long message."""
        plain = {"opcode": MIDDLE, "dma_length": 1 << 21}
        va = self.region.va + place % 1024 * 1024
        self.forger.write(place, bytes(size), va, self.region.r_key, **plain | fields)

    def _answers(self) -> Tap:
        self.tap.datagrams.clear()
        self.pair.flush()
        return self.tap

    def sacks(self) -> list[Sack]:
        """Let B send, and return the SACKs; it must have sent nothing else."""
        found = self._answers().sacks()
        assert len(found) == len(self.tap.datagrams)
        return found

    def sack(self) -> Sack:
        """Let B send exactly one SACK."""
        (sack,) = self.sacks()
        return sack

    def nack(self) -> Nack:
        """Let B send exactly one NACK."""
        (nack,) = self._answers().nacks()
        assert len(self.tap.datagrams) == 1
        return nack

    def acks(self) -> list[Ack]:
        """Let B send, and return the Transport ACKs."""
        return self._answers().acks()

    def settle(self) -> None:
        """Let B have sent a SACK just now, so that its triggers are at zero."""
        self.write(0, ack_request=True)
        self.sack()


# When.


def test_nothing_is_said_without_a_reason() -> None:
    """A packet in order, unmarked, unasked and below the byte trigger is not answered."""
    b = Responding()
    b.settle()
    b.write(1)
    assert b.sacks() == []


def test_ack_request() -> None:
    """BTH.a set is answered at once."""
    b = Responding()
    b.write(0, ack_request=True)
    assert b.sack().ack_psn_offset == 0


def test_congestion_mark() -> None:
    """A packet that met congestion is answered at once, with m = SKIP_ONCE."""
    b = Responding()
    b.write(0, ecn=ECN_CE)
    assert b.sack().m == SackMark.SKIP_ONCE
    b.write(1, ack_request=True)
    assert b.sack().m == SackMark.NONE


def test_retransmission() -> None:
    """A retransmission is answered at once, and the SACK says that one caused it."""
    b = Responding()
    b.write(0, rtx=True)
    assert b.sack().rtx
    b.write(1, ack_request=True)
    assert not b.sack().rtx


def test_gap_opens_and_closes() -> None:
    """The packet that opens a gap and each that fills one are answered at once."""
    b = Responding()
    b.write(2)
    assert b.sack().cack_psn == b.first_psn - 1
    b.write(0)
    assert b.sack().cack_psn == b.first_psn
    b.write(1)
    assert b.sack().cack_psn == b.first_psn + 2


def test_packets_behind_an_open_gap_wait() -> None:
    """A packet that continues the highest received changes no hole and is not answered by itself.

    How many are held behind the gap is told by the next SACK.
    """
    b = Responding()
    b.write(1)
    b.sack()
    b.write(2)
    assert b.sacks() == []
    b.write(3, ack_request=True)
    assert b.sack().ooo_count == 3


def test_duplicate() -> None:
    """A duplicate is answered, and the offset tells which PSN it was; nothing is written."""
    b = Responding()
    for place in range(3):
        b.write(place)
    b.sacks()
    before = b.pair.b.responder.statistics()
    b.write(0)
    assert b.sack().ack_psn_offset == -2
    after = b.pair.b.responder.statistics()
    assert after.payload_bytes_placed == before.payload_bytes_placed
    assert after.packets_duplicate == before.packets_duplicate + 1


def test_duplicate_above_a_gap() -> None:
    """A packet that is held already is a duplicate too."""
    b = Responding()
    b.write(5)
    b.sack()
    b.write(5)
    assert b.sack().ack_psn_offset == 6
    assert b.pair.b.responder.statistics().packets_duplicate == 1


@pytest.mark.parametrize(("size", "count"), [(1024, 17), (1, 17), (2048, 9)])
def test_byte_trigger(size: int, count: int) -> None:
    """More than 16 KiB since the last SACK cause one; a small packet counts as 1 KiB."""
    b = Responding()
    b.settle()
    b.pair.now_ns += SACK_SPACING_NS
    for place in range(1, count):
        b.write(place, size)
    assert b.sacks() == []
    b.write(count, size)
    assert b.sack().cack_psn == b.first_psn + count


def test_byte_trigger_keeps_its_distance() -> None:
    """Volume alone causes a SACK at most each 200 us, or after sixteen times the trigger."""
    b = Responding()
    b.settle()
    for place in range(1, 257):
        b.write(place)
        assert not b.pair.b.responder.owes_reply
    b.write(257)
    assert b.sack().cack_psn == b.first_psn + 257
    b.pair.now_ns += SACK_SPACING_NS
    for place in range(258, 275):
        b.write(place)
    assert b.sack().cack_psn == b.first_psn + 274


def test_byte_trigger_is_a_setting() -> None:
    """`sack_bytes` sets the trigger."""
    b = Responding(sack_bytes=2048)
    b.settle()
    b.pair.now_ns += SACK_SPACING_NS
    for place in (1, 2):
        b.write(place)
        assert b.sacks() == []
    b.write(3)
    b.sack()


def test_probe() -> None:
    """A reliability probe is answered by a SACK that carries its id and pr = 1."""
    b = Responding()
    b.write(0)
    b.forger.probe(0xBEEF)
    sack = b.sack()
    assert (sack.pr, sack.ack_psn_offset, sack.cack_psn) == (True, 0xBEEF, b.first_psn)


def test_plain_sacks_coalesce() -> None:
    """Of SACKs that were only asked for, and not sent yet, the latest is enough."""
    b = Responding()
    for place in range(5):
        b.write(place, ack_request=True)
    sack = b.sack()
    assert (sack.cack_psn, sack.ack_psn_offset) == (b.first_psn + 4, 0)


def test_sacks_with_news_do_not_coalesce() -> None:
    """Each mark, retransmission and probe is answered by itself, since each tells of its EV."""
    b = Responding()
    b.write(0, ecn=ECN_CE)
    b.write(1, rtx=True)
    b.forger.probe(5)
    b.write(2, ack_request=True)
    assert [(sack.m, sack.rtx, sack.pr) for sack in b.sacks()] == [
        (1, False, False), (0, True, False), (0, False, True), (0, False, False),
    ]  # fmt: skip


def test_answers_are_bounded() -> None:
    """However many packets come between two sends, no more than 256 SACKs and NACKs are kept."""
    b = Responding()
    for _ in range(300):
        b.write(0, rtx=True)
        b.write(2000)
    b._answers()  # noqa: SLF001 - both kinds
    assert (len(b.tap.sacks()), len(b.tap.nacks())) == (256, 256)


# What.


def test_bth_and_identity() -> None:
    """BTH.psn and cack_psn are equal; the numbers of both queue pairs stand in it."""
    b = Responding()
    b.write(0, ack_request=True)
    b._answers()  # noqa: SLF001 - the datagram itself is looked at
    datagram, sack = b.tap.datagrams[0], b.tap.sacks()[0]
    a_qpn, b_qpn = b.pair.a.qp.qpn, b.pair.b.qp.qpn
    assert datagram.psn == sack.cack_psn == b.first_psn
    assert (sack.dqp, sack.spdcid, sack.dpdcid) == (a_qpn, b_qpn & 0xFFFF, a_qpn & 0xFFFF)
    assert datagram.tos == DSCP.control << 2


def test_entropy_and_timestamp_come_back() -> None:
    """The EV and the timestamp of the packet that caused the SACK are reflected."""
    b = Responding()
    stamp = timestamp(b.pair.now_ns)
    b.write(0, ack_request=True, tx_timestamp=stamp)
    sack = b.sack()
    assert (sack.entropy, sack.tx_timestamp) == (FIRST_EV_PORT, stamp)


def test_flow_label_is_the_upper_half_of_the_entropy() -> None:
    """Over IPv6 the EV's upper half travels in the flow label and is reflected."""
    tap = Tap(from_b)
    pair = Pair(Config(paths=1, backup_paths=0), ipv6=True, filters=[tap])
    pair.transfer(b"x")
    path = pair.a.paths.paths[0]
    assert path.flow_label > 0
    assert tap.sacks()[0].entropy == path.entropy == path.flow_label << 16 | FIRST_EV_PORT


def test_packet_without_a_timestamp() -> None:
    """Where a packet has no TSETH the SACK's timestamp is 0."""
    b = Responding()
    b.write(0, ack_request=True, tx_timestamp=None)
    assert b.sack().tx_timestamp == 0


def test_bitmap_and_count() -> None:
    """Bit i stands for cack + sack_offset + i; ooo_count is how many are held above cack."""
    b = Responding()
    for place in (0, 2, 3, 6):
        b.write(place)
    sack = b.sacks()[-1]
    assert (sack.cack_psn, sack.sack_offset, sack.ooo_count) == (b.first_psn, 1, 3)
    assert sack.sack_bitmap == 0b100110


def test_received_bytes() -> None:
    """rcvd_bytes is the nominal size of what was new, in units of 256, rounded up."""
    b = Responding()
    b.write(0, 1000, ack_request=True)
    nominal = 1000 + WRITE_BYTES + NOMINAL
    assert b.sack().rcvd_bytes == -(-nominal // 256)
    b.write(0, 1000)
    assert b.sack().rcvd_bytes == -(-nominal // 256)
    b.write(1, 1000, ack_request=True)
    assert b.sack().rcvd_bytes == -(-2 * nominal // 256)


def test_received_bytes_wrap() -> None:
    """rcvd_bytes is counted modulo 2^24 units, 4 GiB."""
    b = Responding()
    b.pair.b.responder._rcvd_bytes = (1 << 32) - 100  # noqa: SLF001 - 4 GiB on
    b.write(0, 1000, ack_request=True)
    assert b.sack().rcvd_bytes == -(-(1000 + WRITE_BYTES + NOMINAL - 100) // 256)


@pytest.mark.parametrize(("dynamic", "told"), [(True, 8), (False, 0)])
def test_tracking_window_is_told(told: int, *, dynamic: bool) -> None:
    """Mpr is the window in units of 128 PSNs, 0 where dynamic MPR is off."""
    b = Responding(dynamic_mpr=dynamic)
    b.write(0, ack_request=True)
    assert b.sack().mpr == told


# Window and NACKs.


def test_last_psn_of_the_window_is_accepted() -> None:
    """PSNs up to cack + MPR are accepted, the next one is refused with PSN_OOR_WINDOW."""
    b = Responding()
    b.write(1023)
    assert b.sack().ooo_count == 1
    b.write(1024)
    nack = b.nack()
    assert nack.reason == NackReason.PSN_OOR_WINDOW
    assert nack.nack_psn == b.first_psn + 1024


def test_nack_reflects() -> None:
    """A NACK carries PSN, EV, timestamp and the queue pairs of what it refuses."""
    b = Responding()
    b.write(1024, tx_timestamp=77)
    nack = b.nack()
    a_qpn, b_qpn = b.pair.a.qp.qpn, b.pair.b.qp.qpn
    assert (nack.entropy, nack.tx_timestamp) == (FIRST_EV_PORT, 77)
    assert (nack.dqp, nack.spdcid, nack.dpdcid) == (a_qpn, b_qpn & 0xFFFF, a_qpn & 0xFFFF)


@pytest.mark.parametrize(
    ("dscp", "reason"),
    [
        (DSCP.trimmed, NackReason.TRIMMED),
        (DSCP.trimmed_lasthop, NackReason.TRIMMED_LASTHOP),
    ],
)
def test_trimmed_packet(dscp: int, reason: NackReason) -> None:
    """A packet trimmed on its way is known by its DSCP and asked for again by a NACK."""
    b = Responding()
    b.write(0, 0, dscp=dscp)
    assert (b.nack().reason, b.pair.b.responder.statistics().packets_trimmed) == (reason, 1)


def test_trimmed_packet_that_has_arrived() -> None:
    """What is left of a packet that arrived otherwise gets a SACK, not a NACK."""
    b = Responding()
    b.write(0)
    b.write(0, 0, dscp=DSCP.trimmed)
    assert b.sack().cack_psn == b.first_psn


def test_trimmed_packet_beyond_the_window() -> None:
    """What is left of a packet beyond the window is dropped: the NACK would not help."""
    b = Responding()
    b.write(1024, 0, dscp=DSCP.trimmed)
    assert b.sacks() == []


def test_trim_nack_can_be_off() -> None:
    """A responder without TRIM_NACK says nothing of trimmed packets."""
    b = Responding(trim_nack=False)
    b.write(0, 0, dscp=DSCP.trimmed)
    assert b.sacks() == []


# Transport ACKs.


def test_message_end_is_acknowledged_in_order() -> None:
    """A Transport ACK goes out once a message and all before it are there."""
    b = Responding()
    b.write(1, opcode=LAST)
    assert b.acks() == []
    b.write(0, opcode=FIRST)
    (ack,) = b.acks()
    assert (ack.psn, ack.msn, ack.syndrome) == (b.first_psn + 1, 1, 0x1F)


def test_message_number_counts() -> None:
    """AETH.msn is the number of messages done, and one ACK stands for several."""
    b = Responding()
    for place in range(3):
        b.write(place, opcode=Opcode.WRITE_ONLY)
    (ack,) = b.acks()
    assert (ack.psn, ack.msn) == (b.first_psn + 2, 3)


@pytest.mark.parametrize("again", ["duplicate", "probe"])
def test_lost_transport_ack_is_repeated(again: str) -> None:
    """A duplicate below ePSN and a probe are answered by the Transport ACK as well."""
    b = Responding()
    b.write(0, opcode=Opcode.WRITE_ONLY)
    assert len(b.acks()) == 1
    if again == "probe":
        b.forger.probe(1)
    else:
        b.write(0, opcode=Opcode.WRITE_ONLY)
    assert [ack.msn for ack in b.acks()] == [1]


def test_nothing_done_nothing_acknowledged() -> None:
    """A probe before the first message is done gets no Transport ACK."""
    b = Responding()
    b.forger.probe(1)
    assert b.sack().pr
