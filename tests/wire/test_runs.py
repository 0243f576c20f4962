"""Runs of data packets as numpy columns, held against the scalar codec packet by packet."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrc.wire.fields import WRITE_OPCODES, Opcode
from mrc.wire.icrc import flow_seed, icrc
from mrc.wire.runs import (
    OVERHEAD_BYTES,
    RUN_BYTES_MAX,
    RUN_PACKETS_MAX,
    RunBuffer,
    SegmentViews,
    packets_max,
    pattern,
    split_runs,
)
from mrc.wire.writes import HEADER_BYTES, Write
from tests.wire.packets import FLAG, U16, U24, U32

SOURCE, DESTINATION = ("2001:db8::1", 50000), ("2001:db8::2", 4971)
FIRST, MIDDLE, LAST = Opcode.WRITE_FIRST, Opcode.WRITE_MIDDLE, Opcode.WRITE_LAST
PAYLOADS = (4, 8, 60, 256, 1024, 2048, 4096)


@dataclass(frozen=True)
class Run:
    """Packets of one message that follow each other, as a list of scalar headers."""

    packets: list[Write]
    payload_bytes: int

    @property
    def segment_bytes(self) -> int:
        """UDP payload of each packet."""
        return self.payload_bytes + OVERHEAD_BYTES

    @property
    def seed(self) -> int:
        """CRC of what precedes each packet."""
        return flow_seed(SOURCE, DESTINATION, self.segment_bytes)

    @property
    def opcodes(self) -> bytes:
        """The first byte of each packet."""
        return bytes(packet.opcode for packet in self.packets)

    def payload(self, index: int) -> bytes:
        """The payload of one packet: no two are the same."""
        return bytes(index + i * 7 & 0xFF for i in range(self.payload_bytes))

    def datagram(self, index: int) -> bytes:
        """One packet as the scalar codec writes it, with payload and iCRC."""
        data = self.packets[index].encode() + self.payload(index)
        return data + icrc(data, self.seed).to_bytes(4, "little")

    def in_buffer(self) -> tuple[RunBuffer, SegmentViews]:
        """A buffer that holds all packets, each written by the scalar codec."""
        buffer = RunBuffer()
        data = b"".join(self.datagram(i) for i in range(len(self.packets)))
        buffer.bytes[: len(data)] = data
        return buffer, buffer.views(self.segment_bytes)


@st.composite
def runs(draw: st.DrawFn, *, count_min: int = 1) -> Run:
    """A run as a sender makes it, anywhere in its message."""
    payload_bytes = draw(st.sampled_from(PAYLOADS))
    count = draw(st.integers(count_min, packets_max(payload_bytes + OVERHEAD_BYTES)))
    rtx, begins, ends = draw(FLAG), draw(FLAG), draw(FLAG)
    asks = draw(st.integers(0, count))  # of the packets, or of none
    high, low = draw(U32), draw(st.integers(0, (1 << 32) - RUN_BYTES_MAX))
    first = Write(
        opcode=MIDDLE,
        dqp=draw(U24),
        psn=draw(st.integers(0, (1 << 24) - count)),
        va=high << 32 | low,
        r_key=draw(U32),
        dma_length=draw(U32),
        rqmsn=draw(U16),
        msn=draw(U16),
        rtx=rtx,
        tx_timestamp=draw(U16),
        p_key=draw(U16),
    )
    packets = [
        replace(first, psn=first.psn + i, va=first.va + i * payload_bytes, ack_request=i == asks)
        for i in range(count)
    ]
    if begins:
        packets[0].opcode = FIRST
    if ends:
        packets[-1].opcode = Opcode.WRITE_ONLY if begins and count == 1 else LAST
    return Run(packets, payload_bytes)


def _nudged(value: int, width: int) -> int:
    return value + 1 & (1 << width) - 1


CHANGES: dict[str, Callable[[Write], Write]] = {
    "opcode FIRST": lambda p: replace(p, opcode=FIRST),
    "opcode MIDDLE": lambda p: replace(p, opcode=MIDDLE),
    "opcode LAST": lambda p: replace(p, opcode=LAST),
    "opcode ONLY": lambda p: replace(p, opcode=Opcode.WRITE_ONLY),
    "opcode LAST_IMMEDIATE": lambda p: replace(p, opcode=Opcode.WRITE_LAST_IMMEDIATE),
    "psn": lambda p: replace(p, psn=_nudged(p.psn, 24)),
    "va": lambda p: replace(p, va=p.va + 4 & (1 << 64) - 1),
    "va, high half": lambda p: replace(p, va=p.va + (1 << 32) & (1 << 64) - 1),
    "dqp": lambda p: replace(p, dqp=_nudged(p.dqp, 24)),
    "p_key": lambda p: replace(p, p_key=_nudged(p.p_key, 16)),
    "r_key": lambda p: replace(p, r_key=_nudged(p.r_key, 32)),
    "dma_length": lambda p: replace(p, dma_length=_nudged(p.dma_length, 32)),
    "msn": lambda p: replace(p, msn=_nudged(p.msn, 16)),
    "rqmsn": lambda p: replace(p, rqmsn=_nudged(p.rqmsn, 16)),
    "timestamp": lambda p: replace(p, tx_timestamp=_nudged(p.tx_timestamp or 0, 16)),
    "rtx": lambda p: replace(p, rtx=not p.rtx),
    "pad": lambda p: replace(p, pad=1),
    "ack request": lambda p: replace(p, ack_request=not p.ack_request),
}


@st.composite
def disturbed_runs(draw: st.DrawFn) -> Run:
    """A run of which some packets, or all from some packet on, were changed."""
    run = draw(runs())
    packets = list(run.packets)
    for name in draw(st.lists(st.sampled_from(sorted(CHANGES)), max_size=3)):
        start = draw(st.integers(0, len(packets) - 1))
        end = len(packets) if draw(FLAG) else start + 1
        packets[start:end] = [CHANGES[name](packet) for packet in packets[start:end]]
    return Run(packets, run.payload_bytes)


def continues(before: Write, after: Write, payload_bytes: int) -> bool:
    """Whether one packet continues another as far as a run goes, field by field."""
    expected = replace(
        before,
        psn=before.psn + 1,
        va=before.va + payload_bytes,
        opcode=after.opcode,
        ack_request=after.ack_request,
    )
    return after == expected and before.opcode in (FIRST, MIDDLE) and after.opcode in (MIDDLE, LAST)


def naive_split(run: Run) -> list[tuple[int, int]]:
    """Where to cut the packets, by comparing each with the one before."""
    packets = run.packets
    cuts = [
        i
        for i in range(1, len(packets))
        if not continues(packets[i - 1], packets[i], run.payload_bytes)
    ]
    return list(zip([0, *cuts], [*cuts, len(packets)], strict=True))


def _row(packet: Write) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """The words of a packet in host order, as of a middle one and with no ack request."""
    plain = replace(packet, opcode=MIDDLE, ack_request=False)
    return np.frombuffer(plain.encode(), ">u4").astype(np.uint32)


@given(run=runs(), sign=FLAG)
def test_a_run_is_written_as_its_packets_one_by_one(run: Run, sign: bool) -> None:
    """Every packet of a run has the bytes that the scalar codec gives it, payload and iCRC too."""
    count, size = len(run.packets), run.segment_bytes
    buffer = RunBuffer()
    views = buffer.views(size)
    views.write_headers(count, _row(run.packets[0]), run.opcodes[0], run.opcodes[-1])
    for i, packet in enumerate(run.packets):
        views.payloads[i] = np.frombuffer(run.payload(i), np.uint8)
        if packet.ack_request:
            views.request_ack(i)
    views.write_icrcs(count, run.seed if sign else None)
    for i in range(count):
        expected = run.datagram(i) if sign else run.datagram(i)[:-4] + bytes(4)
        assert buffer.bytes[i * size : (i + 1) * size] == expected
    assert not any(buffer.bytes[count * size :])


def test_the_opcode_of_the_last_packet_wins() -> None:
    """A run of one packet, which is first and last, has the opcode given for the last."""
    buffer = RunBuffer()
    buffer.views(4136).write_headers(1, _row(_plain_run(1).packets[0]), FIRST, LAST)
    assert buffer.bytes[0] == LAST


@given(run=runs())
def test_a_run_is_read_as_its_packets_one_by_one(run: Run) -> None:
    """What scalar packets say comes back as columns: words, opcodes, payloads, ack requests."""
    count = len(run.packets)
    _, views = run.in_buffer()
    words = views.read_headers(count)
    for i, packet in enumerate(run.packets):
        assert words[i].astype(">u4").tobytes() == b"\0" + packet.encode()[1:]
        assert views.payloads[i].tobytes() == run.payload(i)
        assert views.ack_requested(i, 1) == packet.ack_request
    assert views.opcodes(count) == run.opcodes
    assert views.ack_requested(0, count) == any(packet.ack_request for packet in run.packets)
    assert views.is_one_run(words, run.opcodes)
    assert split_runs(words, run.opcodes, run.payload_bytes) == [(0, count)]


@given(run=runs())
def test_one_row_alone_reads_as_the_first_of_many(run: Run) -> None:
    """The short way for a single packet and the columns say the same."""
    buffer, views = run.in_buffer()
    first, *others = views.read_row()
    assert [first & 0x00FFFFFF, *others] == views.read_headers(1)[0].tolist()
    assert views.is_icrc_right(run.seed)
    for at in (0, 4, run.segment_bytes - 1):
        buffer.bytes[at] ^= 0x40
        assert not views.is_icrc_right(run.seed)
        assert views.bad_icrcs(0, 1, run.seed) == [0]
        buffer.bytes[at] ^= 0x40


@given(run=runs(count_min=2), data=st.data())
def test_an_ack_request_is_seen_only_in_its_stretch(run: Run, data: st.DataObject) -> None:
    """Whether an acknowledgement is asked for is told of the packets named, not of others."""
    _, views = run.in_buffer()
    start = data.draw(st.integers(0, len(run.packets) - 1))
    end = data.draw(st.integers(start + 1, len(run.packets)))
    asked = any(packet.ack_request for packet in run.packets[start:end])
    assert views.ack_requested(start, end - start) == asked


@given(run=disturbed_runs())
def test_rows_are_cut_where_a_naive_comparison_cuts_them(run: Run) -> None:
    """Packets that do not continue the one before begin a new run, and only they do."""
    count = len(run.packets)
    _, views = run.in_buffer()
    words = views.read_headers(count)
    expected = naive_split(run)
    assert views.is_one_run(words, run.opcodes) == (len(expected) == 1)
    assert split_runs(words, run.opcodes, run.payload_bytes) == expected


def _plain_run(count: int, *, psn: int = 0, va: int = 0) -> Run:
    first = Write(MIDDLE, dqp=5, psn=psn, va=va, r_key=1, dma_length=1 << 20)
    packets = [replace(first, psn=psn + i & 0xFFFFFF, va=va + 256 * i) for i in range(count)]
    return Run(packets, 256)


@pytest.mark.parametrize("name", CHANGES)
def test_one_changed_packet_is_found(name: str) -> None:
    """A change of any field in the middle of a run ends it there; an ack request does not."""
    run = _plain_run(5)
    run.packets[2] = CHANGES[name](run.packets[2])
    _, views = run.in_buffer()
    words = views.read_headers(5)
    harmless = name in ("ack request", "opcode MIDDLE")
    assert views.is_one_run(words, run.opcodes) == harmless
    assert (split_runs(words, run.opcodes, 256) == [(0, 5)]) == harmless
    assert split_runs(words, run.opcodes, 256) == naive_split(run)


@pytest.mark.parametrize("first", sorted(WRITE_OPCODES))
@pytest.mark.parametrize("second", sorted(WRITE_OPCODES))
def test_two_packets_are_one_run_by_their_opcodes(first: Opcode, second: Opcode) -> None:
    """Only a middle or last packet follows, and only a first or middle one is followed."""
    run = _plain_run(2)
    run.packets[0].opcode, run.packets[1].opcode = first, second
    _, views = run.in_buffer()
    joined = first in (FIRST, MIDDLE) and second in (MIDDLE, LAST)
    assert views.is_one_run(views.read_headers(2), run.opcodes) == joined


@pytest.mark.parametrize(
    ("psn", "va"), [((1 << 24) - 2, 0), (0, (1 << 32) - 512), (0, (3 << 32) - 512)]
)
def test_a_run_is_cut_where_psn_or_low_address_wraps(psn: int, va: int) -> None:
    """At a carry out of the 24 bits of the PSN or the low word of the address a new run begins."""
    run = _plain_run(5, psn=psn, va=va)
    _, views = run.in_buffer()
    words = views.read_headers(5)
    assert not views.is_one_run(words, run.opcodes)
    assert split_runs(words, run.opcodes, 256) == [(0, 2), (2, 5)]


@given(run=runs(), data=st.data())
def test_rows_with_a_wrong_icrc_are_told(run: Run, data: st.DataObject) -> None:
    """A flipped bit makes its packet wrong and no other; without any, all are right."""
    count, size = len(run.packets), run.segment_bytes
    buffer, views = run.in_buffer()
    assert views.bad_icrcs(0, count, run.seed) == []
    wrong = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=3))
    for row in wrong:
        # Byte 4 is the one that must be zero for the sender's and receiver's short cut to hold.
        at = data.draw(st.integers(0, size - 1).filter(lambda at: at != 4))
        buffer.bytes[row * size + at] ^= 1 << data.draw(st.integers(0, 7))
    assert views.bad_icrcs(0, count, run.seed) == sorted(wrong)


def test_a_row_with_byte_4_set_is_told_as_wrong() -> None:
    """Where a switch has marked byte 4 the quick check says wrong, and the scalar check decides."""
    run = _plain_run(2)
    buffer, views = run.in_buffer()
    buffer.bytes[4] = 0x80
    assert views.bad_icrcs(0, 2, run.seed) == [0]


@pytest.mark.parametrize("segment_bytes", [0, 4, OVERHEAD_BYTES, 4136 + 2, 65536 + 4, -44])
def test_a_size_that_no_run_has_is_refused(segment_bytes: int) -> None:
    """A segment is a multiple of four, holds some payload, and fits the buffer."""
    with pytest.raises(ValueError, match=f"segment of {segment_bytes} bytes"):
        RunBuffer().views(segment_bytes)


@pytest.mark.parametrize("segment_bytes", [OVERHEAD_BYTES + 4, 4136, 65536])
def test_a_buffer_holds_what_fits_it(segment_bytes: int) -> None:
    """There is a row for every whole segment in 64 KiB, and never more than 64."""
    views = RunBuffer().views(segment_bytes)
    assert len(views.payloads) == min(65536 // segment_bytes, RUN_PACKETS_MAX)
    assert views.payload_bytes == segment_bytes - OVERHEAD_BYTES
    assert OVERHEAD_BYTES == HEADER_BYTES + 4 == 40


@pytest.mark.parametrize(
    ("payload_bytes", "count"),
    [(256, 64), (512, 64), (1024, 61), (2048, 31), (4096, 15), (65467, 1), (100_000, 1)],
)
def test_a_run_holds_what_one_send_takes(payload_bytes: int, count: int) -> None:
    """At most 64 packets and 65,507 bytes go out at once, and always at least one packet."""
    assert packets_max(payload_bytes + OVERHEAD_BYTES) == count


def test_views_are_kept_but_not_without_limit() -> None:
    """The views of a size are made once; a peer that sends many sizes does not fill the memory."""
    buffer = RunBuffer()
    kept = buffer.views(4136)
    assert buffer.views(4136) is kept
    for size in range(44, 44 + 4 * RunBuffer.VIEWS_MAX, 4):
        buffer.views(size)
    assert buffer.views(4136) is not kept
    assert np.shares_memory(buffer.views(4136).payloads, kept.payloads)


def test_the_pattern_cannot_be_changed() -> None:
    """The pattern is shared by all buffers, so nobody may write to it."""
    with pytest.raises(ValueError, match="read-only"):
        pattern(256)[0, 0] = 1
