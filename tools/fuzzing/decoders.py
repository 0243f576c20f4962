"""Every decoder of `mrc.wire`: raw datagrams, runs of data packets in one buffer, sealed packets.

What a decoder accepts it must be able to say again; what the column-wise reader of runs finds must
be what the decoder of single packets finds, packet by packet; what opens is what was sealed, once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from fuzzing.feed import Feed
from mrc.wire.control import (
    Ack,
    EndpointRequest,
    EndpointResponse,
    Nack,
    Probe,
    Sack,
)
from mrc.wire.dump import dump_untrusted
from mrc.wire.fields import HEADERS, WRITE_OPCODES, BadPacket, Opcode
from mrc.wire.icrc import (
    ICRC_BYTES,
    PAYLOAD_BYTES_MAX,
    append_icrc,
    check_icrc_untrusted,
    flow_seed,
)
from mrc.wire.runs import (
    HEADER_WORDS,
    OVERHEAD_BYTES,
    RUN_PACKETS_MAX,
    SEAL_BYTES,
    RunBuffer,
    split_runs,
)
from mrc.wire.seal import (
    EPOCH_PACKETS,
    REPLAY_WINDOW_PACKETS,
    SECRET_BYTES,
    Cipher,
    Opener,
    Replayed,
    Sealer,
    Unauthentic,
)
from mrc.wire.writes import HEADER_BYTES, Write

FLOW = (("10.0.0.1", 50_000), ("10.0.0.2", 4971))

_PACKETS: tuple[Any, ...] = (Ack, EndpointRequest, EndpointResponse, Nack, Probe, Sack, Write)
_PAYLOAD_BYTES = (4, 8, 256, 1024)
_CHANGES_MAX = 6
_LOW_32 = 0xFFFFFFFF
_FLAG_TS = 0x10
_PSN_BITS = 0x5F
"""Of BTH byte 8: the reserved bits and the one that tells of a TSETH."""

_buffer = RunBuffer()


def run(data: bytes) -> None:
    """Read the first byte as which reader gets the rest."""
    feed = Feed(data)
    feed.pick((_datagram, _run, _sealed))(feed)


def _datagram(feed: Feed) -> None:
    """Give the same bytes to every decoder of one datagram."""
    datagram = feed.rest()
    for kind in _PACKETS:
        with suppress(BadPacket):
            packet = kind.decode_untrusted(memoryview(datagram))
            assert kind.decode_untrusted(packet.encode()) == packet, packet
    for header in HEADERS:
        with suppress(BadPacket):
            values = header.unpack_untrusted(datagram)
            assert header.unpack_untrusted(header.pack(**values)) == values, values
    for trimmed in (False, True):
        with suppress(BadPacket):
            lines = dump_untrusted(datagram, trimmed=trimmed)
            assert all(line.isprintable() for line in lines), lines
    _icrc(datagram)


def _icrc(datagram: bytes) -> None:
    """Check the iCRC as it came, the right one, and that any byte it covers counts."""
    with suppress(BadPacket):
        check_icrc_untrusted(datagram, *FLOW)
    if not 12 <= len(datagram) <= PAYLOAD_BYTES_MAX - ICRC_BYTES:
        return
    whole = bytearray(append_icrc(datagram, *FLOW))
    check_icrc_untrusted(whole, *FLOW)
    place = sum(datagram) % len(whole)
    whole[place] ^= 1
    assert _refused(lambda: check_icrc_untrusted(whole, *FLOW)) == (place != 4), place


def _refused(read: Callable[[], object]) -> bool:
    """Tell whether reading finds a bad packet."""
    try:
        read()
    except BadPacket:
        return True
    return False


def _run(feed: Feed) -> None:
    """Lay out a run that is right, change words of it, and read it both ways."""
    payload_bytes = feed.pick(_PAYLOAD_BYTES)
    segment_bytes = payload_bytes + OVERHEAD_BYTES
    count = 1 + feed.below(min(RUN_PACKETS_MAX, _buffer.SIZE // segment_bytes))
    first, last = feed.pick(sorted(Opcode)), feed.pick(sorted(Opcode))
    header = feed.take(4 * HEADER_WORDS).ljust(4 * HEADER_WORDS, b"\0")
    row = np.frombuffer(header, ">u4").astype(np.uint32)
    row[0] = Opcode.WRITE_MIDDLE << 24 | int(row[0]) & 0xFFFFFF
    views = _buffer.views(segment_bytes)
    views.write_headers(count, row, first, last)
    views.write_icrcs(count, flow_seed(*FLOW, segment_bytes))
    for _ in range(min(feed.below(_CHANGES_MAX), count)):
        place = feed.below(count) * segment_bytes + feed.below(4 * HEADER_WORDS)
        _buffer.bytes[place] ^= feed.number(1)
    _compare(count, segment_bytes)


def _compare(count: int, segment_bytes: int) -> None:
    """Hold what the reader of columns says against what the decoder of single packets says."""
    views = _buffer.views(segment_bytes)
    words, opcodes = views.read_headers(count), views.opcodes(count)
    wrong = views.bad_icrcs(0, count, flow_seed(*FLOW, segment_bytes))
    packets = [_buffer.memory[i * segment_bytes : (i + 1) * segment_bytes] for i in range(count)]
    for i, packet in enumerate(packets):
        # With the reserved byte set only the exact check tells; the dispatcher asks that then.
        if not packet[4]:
            exact = _refused(lambda packet=packet: check_icrc_untrusted(packet, *FLOW))  # type: ignore[misc]
            assert exact == (i in wrong), i
    runs = split_runs(words, opcodes, views.payload_bytes)
    assert views.is_one_run(words, opcodes) == (runs == [(0, count)]), runs
    assert [start for start, _ in runs] == [0, *(end for _, end in runs[:-1])], runs
    assert views.read_row()[1:] == tuple(words[0].tolist())[1:]
    assert runs[-1][1] == count
    for start, end in runs:
        _one_run(packets[start:end], views.payload_bytes)
        assert views.ack_requested(start, end - start) == any(
            packet[8] & 0x80 for packet in packets[start:end]
        )


def _one_run(packets: list[memoryview], payload_bytes: int) -> None:
    """Check that each packet of a run continues the one before, read by itself."""
    # The dispatcher takes no run whose first packet is no write, has no TSETH or reserved bits set.
    if packets[0][0] not in WRITE_OPCODES or packets[0][8] & _PSN_BITS != _FLAG_TS:
        return
    first = Write.decode_untrusted(packets[0])
    for i, packet in enumerate(packets):
        each = Write.decode_untrusted(packet)
        assert each.psn == (first.psn + i) & 0xFFFFFF, (first, each)
        assert each.va & _LOW_32 == (first.va + i * payload_bytes) & _LOW_32, (first, each)
        shared = ("dqp", "r_key", "dma_length", "rqmsn", "msn", "rtx", "p_key", "tx_timestamp")
        for name in shared:
            assert getattr(each, name) == getattr(first, name), (name, first, each)


# Sealed packets: the order in which they come, and what happens to them on the way, is the input's.

_SECRET = bytes(SECRET_BYTES)
_ROWS = 8
_PLAIN_BYTES = 8
_ROW_BYTES = OVERHEAD_BYTES + _PLAIN_BYTES + SEAL_BYTES
_STEPS_MAX = 24
_JUMPS = (0, 1, 63, REPLAY_WINDOW_PACKETS - 9, REPLAY_WINDOW_PACKETS, EPOCH_PACKETS - 9)


class _Sealed:
    """A sealer, its opener, every packet sealed so far, and which of them were opened."""

    def __init__(self) -> None:
        self.sealer = Sealer(Cipher.AES_256_GCM, _SECRET)
        self.opener = Opener(Cipher.AES_256_GCM, _SECRET)
        self.packets: list[bytes] = []
        self.opened: set[int] = set()

    def seal(self, header: bytes) -> None:
        """Seal a packet whose payload is told by its place."""
        self.packets.append(header + self.sealer.seal(header, self._plain(len(self.packets))))

    def _plain(self, place: int) -> bytes:
        return bytes((place,)) * _PLAIN_BYTES

    def open(self, place: int, change: int) -> None:
        """Open one packet, as it was sealed or with one bit changed."""
        packet = bytearray(self.packets[place])
        if change:
            packet[change % len(packet)] ^= 1 << change % 8
        with suppress(Unauthentic, Replayed):
            plain = self.opener.open_untrusted(packet, len(packet) - SEAL_BYTES - _PLAIN_BYTES)
            assert not change, change
            self._note(place, plain)

    def open_run(self, places: list[int], change: int) -> None:
        """Open packets as one run; what is no run must have changed nothing."""
        views = _buffer.views(_ROW_BYTES, sealed=True)
        for row, place in enumerate(places):
            start = row * _ROW_BYTES
            packet = self.packets[place]
            _buffer.bytes[start : start + len(packet)] = packet
        if change:
            _buffer.bytes[change % (len(places) * _ROW_BYTES)] ^= 1 << change % 8
        plains = self.opener.open_rows_untrusted(views, 0, len(places))
        if plains is not None:
            for place, plain in zip(places, plains, strict=True):
                self._note(place, plain.tobytes())

    def _note(self, place: int, plain: bytes) -> None:
        assert place not in self.opened, f"packet {place} opened twice"
        assert plain == self._plain(place), (place, plain)
        self.opened.add(place)


def _sealed(feed: Feed) -> None:
    """Seal, lose, repeat, reorder and change packets."""
    sealed = _Sealed()
    for _ in range(_STEPS_MAX):
        if not feed:
            return
        step, where = feed.below(4), feed.number(1)
        if step == 0 or not sealed.packets:
            for _ in range(1 + where % _ROWS):
                sealed.seal(feed.take(HEADER_BYTES).ljust(HEADER_BYTES, b"\0"))
        elif step == 1:
            sealed.open(where % len(sealed.packets), feed.number(2))
        elif step == 2:
            first = where % len(sealed.packets)
            places = list(range(len(sealed.packets)))[first : first + 1 + feed.below(_ROWS)]
            sealed.open_run(places, feed.number(2))
        else:
            # Packets that were sealed and lost.
            sealed.sealer._take(_JUMPS[where % len(_JUMPS)])  # noqa: SLF001 - or it takes minutes
