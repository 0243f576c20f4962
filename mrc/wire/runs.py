"""Runs of WRITE packets in one buffer, read and written as numpy columns.

A run is up to 64 packets of one message that follow each other, each with TSETH and without
immediate data, all but the last of one size: the segment. Its headers are nine 32-bit words a
packet, and from one packet to the next only two of them change, by a constant: PSN by 1, address by
the payload. So a run is written by adding a constant pattern to one row of words, and checked by
subtracting the first row and comparing with that pattern.

Packets of any other form (immediate data, no TSETH, trimmed) take `mrc.wire.writes`.

A sealed packet (`mrc.wire.seal`) has a tag and a counter between payload and iCRC; everything here
that knows a segment size then also knows whether it is one of sealed packets.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mrc.wire.fields import BTH, METH, RETH, TSETH, Opcode
from mrc.wire.icrc import ICRC_BYTES, PAYLOAD_BYTES_MAX, byte4_delta, icrcs
from mrc.wire.writes import HEADER_BYTES

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]

RUN_BYTES_MAX = PAYLOAD_BYTES_MAX
"""What one GSO send may hold."""
RUN_PACKETS_MAX = 64
"""Segments one GSO send may hold on every kernel that has GSO."""
TRAINS_MAX = 8
"""Trains, each what one call of the kernel received, that a buffer may hold behind each other."""
OVERHEAD_BYTES = HEADER_BYTES + ICRC_BYTES
TAG_BYTES, COUNTER_BYTES = 16, 8
SEAL_BYTES = TAG_BYTES + COUNTER_BYTES
"""What a seal adds to a packet, before its iCRC."""
SALT_BYTES = 4
_NONCE = np.dtype([("salt", f"S{SALT_BYTES}"), ("counter", ">u8")])

HEADER_WORDS = HEADER_BYTES // 4
WORD_BTH, WORD_DQP, WORD_PSN = 0, 1, 2
WORD_MSN = BTH.size // 4
WORD_TIMESTAMP = WORD_MSN + METH.size // 4
WORD_VA_HIGH = WORD_TIMESTAMP + TSETH.size // 4
WORD_VA_LOW, WORD_R_KEY, WORD_LENGTH = WORD_VA_HIGH + 1, WORD_VA_HIGH + 2, WORD_VA_HIGH + 3
if WORD_LENGTH + 1 != HEADER_WORDS or RETH.size != 16:
    raise ImportError("the columns of a run do not cover its headers")

_ROW = struct.Struct(f">{HEADER_WORDS}I")
_ICRC = struct.Struct("<I")
_BYTE_FLAGS = 8
_ACK_REQUEST_BIT = 0x80
_WITHOUT_ACK_REQUEST = 0x7FFFFFFF
# Opcodes that may precede, and follow, another packet of the same run.
_BEGINS = bytes((Opcode.WRITE_FIRST, Opcode.WRITE_MIDDLE))
_CONTINUES = bytes((Opcode.WRITE_MIDDLE, Opcode.WRITE_LAST))


@lru_cache(maxsize=64)
def pattern(payload_bytes: int) -> U32:
    """Return what each row of a run adds to its first: PSN + i, low address word + i * payload."""
    rows = np.zeros((TRAINS_MAX * RUN_PACKETS_MAX, HEADER_WORDS), np.uint32)
    index = np.arange(len(rows), dtype=np.uint32)
    rows[:, WORD_PSN] = index
    rows[:, WORD_VA_LOW] = index * np.uint32(payload_bytes)
    rows.setflags(write=False)
    return rows


def packets_max(segment_bytes: int) -> int:
    """Return how many packets of this size one run may hold."""
    return max(1, min(RUN_PACKETS_MAX, RUN_BYTES_MAX // segment_bytes))


class Nonces:
    """Rows of nonces (salt and counter) that are written as a column, for one run at a time.

    One per buffer, and so per endpoint: two threads with an endpoint each share none.
    """

    def __init__(self) -> None:
        memory = bytearray(_NONCE.itemsize * RUN_PACKETS_MAX)
        self._table = np.frombuffer(memory, _NONCE)
        self._steps = np.arange(RUN_PACKETS_MAX, dtype=np.uint64)
        self._rows = [
            memoryview(memory)[i * _NONCE.itemsize : (i + 1) * _NONCE.itemsize]
            for i in range(RUN_PACKETS_MAX)
        ]

    def rows(self, salt: bytes, first: int, count: int) -> Sequence[memoryview]:
        """Return the nonces of `count` packets from this counter on; valid until the next call."""
        self._table["salt"][:count] = salt
        self._table["counter"][:count] = self.counters(first, count)
        return self._rows[:count]

    def counters(self, first: int, count: int) -> NDArray[np.uint64]:
        """Return the counters from `first` on."""
        return self._steps[:count] + np.uint64(first)


class RunBuffer:
    """A buffer of 64 KiB a train, seen as rows of one segment size: header words, payloads, iCRCs.

    The views for a segment size are made once and kept; a run then costs a handful of numpy calls
    whatever its length. The owner hands `memory` to the socket layer.

    Args:
        trains: how many it has to hold, 1 to `TRAINS_MAX`.
    """

    SIZE = 65536
    """Of one train."""
    VIEWS_MAX = 32
    """Segment sizes whose views are kept; a peer choosing sizes freely costs no more memory."""

    def __init__(self, trains: int = 1) -> None:
        self.packets_max = trains * RUN_PACKETS_MAX
        self.bytes = bytearray(trains * self.SIZE)
        self.memory = memoryview(self.bytes)
        self._views: dict[tuple[int, bool], SegmentViews] = {}
        self._opened: memoryview | None = None
        self._nonces: Nonces | None = None
        self.scratch = np.empty((self.packets_max, HEADER_WORDS), np.uint32)
        self.scratch_opcodes = self.scratch.view(np.uint8)[:, 3 if np.little_endian else 0]
        """The highest byte of each row's first word."""
        self.scratch_2 = np.empty((self.packets_max, HEADER_WORDS), np.uint32)

    @property
    def opened(self) -> memoryview:
        """As much memory again, for what sealed packets hold; made when it is first asked for."""
        if self._opened is None:
            self._opened = memoryview(bytearray(len(self.bytes)))
        return self._opened

    @property
    def nonces(self) -> Nonces:
        """Room for the nonces of a train; made when it is first asked for."""
        if self._nonces is None:
            self._nonces = Nonces()
        return self._nonces

    def views(self, segment_bytes: int, *, sealed: bool = False) -> SegmentViews:
        """Return the views for a segment size: a multiple of 4, more than headers and trailer.

        Raises:
            ValueError: another size.
        """
        key = segment_bytes, sealed
        found = self._views.get(key)
        if found is None:
            if len(self._views) >= self.VIEWS_MAX:
                self._views.clear()
            found = self._views[key] = SegmentViews(self, segment_bytes, sealed=sealed)
        return found


class SegmentViews:
    """The rows of a `RunBuffer` for one segment size."""

    def __init__(self, run: RunBuffer, segment_bytes: int, *, sealed: bool = False) -> None:
        trailer_bytes = ICRC_BYTES + (SEAL_BYTES if sealed else 0)
        payload_bytes = segment_bytes - HEADER_BYTES - trailer_bytes
        if segment_bytes % 4 or payload_bytes <= 0 or segment_bytes > run.SIZE:
            raise ValueError(f"segment of {segment_bytes} bytes cannot be a run")
        count = min(len(run.bytes) // segment_bytes, run.packets_max)
        flat = np.frombuffer(run.bytes, np.uint8)[: count * segment_bytes]
        rows = flat.reshape(count, segment_bytes)
        self._run = run
        self.segment_bytes = segment_bytes
        self.payload_bytes = payload_bytes
        self.sealed = sealed
        self.payloads: U8 = rows[:, HEADER_BYTES:-trailer_bytes]
        self._headers = rows.view(">u4")[:, :HEADER_WORDS]
        self._icrcs = rows.view("<u4")[:, -1]
        self._covered = [
            run.memory[i * segment_bytes : (i + 1) * segment_bytes - ICRC_BYTES]
            for i in range(count)
        ]
        self._pattern = pattern(self.payload_bytes)
        # Equality of bytes costs a quarter of what it costs of arrays.
        self._pattern_bytes = self._pattern[:count].tobytes()
        self._delta_int = byte4_delta(segment_bytes - ICRC_BYTES)
        self._delta = np.uint32(self._delta_int)
        self._middles = bytes((Opcode.WRITE_MIDDLE,)) * count
        if sealed:
            self._view_seals(count)

    def _view_seals(self, count: int) -> None:
        """Make the views that only sealed packets have."""
        end = HEADER_BYTES + self.payload_bytes + TAG_BYTES
        datagrams = [
            self._run.memory[i * self.segment_bytes : (i + 1) * self.segment_bytes]
            for i in range(count)
        ]
        self.nonces = self._run.nonces
        self.headers = [datagram[:HEADER_BYTES] for datagram in datagrams]
        self.boxes = [datagram[HEADER_BYTES:end] for datagram in datagrams]
        """Encrypted payload and tag of each row."""
        self.counters: NDArray[np.uint64] = np.ndarray(
            count, ">u8", self._run.bytes, end, (self.segment_bytes,)
        )
        opened = self._run.opened[: count * self.payload_bytes]
        self.opened: U8 = np.frombuffer(opened, np.uint8).reshape(count, self.payload_bytes)
        """Where payloads are decrypted to: what arrived stays as it is until all is known good."""
        self.opened_rows = [
            opened[i * self.payload_bytes : (i + 1) * self.payload_bytes] for i in range(count)
        ]

    # Writing a run.

    def write_headers(self, count: int, row: U32, opcode_first: int, opcode_last: int) -> None:
        """Write the headers of `count` packets.

        Neither the PSN's 24 bits nor the low half of the address may wrap from one of these packets
        to another: the carry would go into the flags, or get lost.

        Args:
            count: packets, at least 1.
            row: the first packet's words, in host order, with the opcode of a middle packet.
            opcode_first: opcode of the first packet.
            opcode_last: opcode of the last one, which wins when they are the same packet.
        """
        words = np.add(row, self._pattern[:count], out=self._run.scratch[:count])
        self._headers[:count] = words
        self._run.bytes[0] = opcode_first
        self._run.bytes[(count - 1) * self.segment_bytes] = opcode_last

    def request_ack(self, index: int) -> None:
        """Set BTH.a in one packet."""
        self._run.bytes[index * self.segment_bytes + _BYTE_FLAGS] |= _ACK_REQUEST_BIT

    def write_icrcs(self, count: int, seed: int | None) -> None:
        """Write the iCRC of `count` whole segments of a flow; no seed writes zeros."""
        if seed is None:
            self._icrcs[:count] = 0
            return
        values = icrcs(self._covered[:count], seed)
        np.bitwise_xor(np.array(values, np.uint32), self._delta, out=self._icrcs[:count])

    # Reading a run.

    def read_headers(self, count: int) -> U32:
        """Return the header words of `count` rows in host order; valid until the next call.

        Opcodes are left out, as 0: they differ within a run, and `opcodes` has them.
        """
        words = self._run.scratch[:count]
        np.copyto(words, self._headers[:count])
        self._run.scratch_opcodes.fill(0)
        return words

    def read_row(self) -> tuple[int, ...]:
        """Return the header words of the first row; what `read_headers` does for one at a fifth."""
        return _ROW.unpack_from(self._run.bytes)

    def is_icrc_right(self, seed: int) -> bool:
        """Tell whether the iCRC of the first row is right, as `bad_icrcs` does for many."""
        covered = self._covered[0]
        stored: int = _ICRC.unpack_from(self._run.bytes, len(covered))[0]
        return icrcs((covered,), seed)[0] ^ self._delta_int == stored

    def opcodes(self, count: int) -> bytes:
        """Return the opcode byte of each of `count` rows."""
        return bytes(self._run.memory[0 : count * self.segment_bytes : self.segment_bytes])

    def ack_requested(self, start: int, count: int) -> bool:
        """Tell whether any of these rows has BTH.a set."""
        size = self.segment_bytes
        first = start * size + _BYTE_FLAGS
        if count == 1:
            return self._run.bytes[first] >= _ACK_REQUEST_BIT
        return (
            max(self._run.memory[first : first + (count - 1) * size + 1 : size]) >= _ACK_REQUEST_BIT
        )

    def is_one_run(self, words: U32, opcodes: bytes, *, any_time: bool = False) -> bool:
        """Tell whether all rows read continue the first: same message, PSNs and addresses in step.

        The ack request may differ from row to row, and opcodes only by position in the message.
        A run whose PSN or low half of the address wraps is not one: `split_runs` cuts it there.

        Args:
            words: as read.
            opcodes: of the same rows.
            any_time: rows may have been sent at different times, as those of several trains are.
        """
        count = len(opcodes)
        if count > 1 and not (
            opcodes[0] in _BEGINS
            and opcodes[-1] in _CONTINUES
            and opcodes[1:-1] == self._middles[: count - 2]
        ):
            return False
        steps = self._run.scratch_2[:count]
        np.subtract(words, words[0], out=steps)
        if self.ack_requested(0, count):
            steps[:, WORD_PSN] &= _WITHOUT_ACK_REQUEST
        if any_time:
            steps[:, WORD_TIMESTAMP] = 0
        return steps.tobytes() == self._pattern_bytes[: steps.nbytes]

    def bad_icrcs(self, start: int, end: int, seed: int) -> list[int]:
        """Return which of the rows [start, end), all of one flow, have a wrong iCRC."""
        values = np.array(icrcs(self._covered[start:end], seed), "<u4")
        values ^= self._delta
        stored = self._icrcs[start:end]
        if values.tobytes() == stored.tobytes():
            return []
        wrong: list[int] = (np.flatnonzero(values != stored) + start).tolist()
        return wrong


def split_runs(words: U32, opcodes: bytes, payload_bytes: int) -> list[tuple[int, int]]:
    """Cut rows into the longest stretches that each are one run: [(start, end), ...]."""
    count = len(opcodes)
    steps = np.diff(words, axis=0)
    steps[:, WORD_PSN] &= _WITHOUT_ACK_REQUEST
    joined = (steps == pattern(payload_bytes)[1]).all(axis=1)
    cuts = [
        i + 1
        for i in range(count - 1)
        if not (joined[i] and opcodes[i + 1] in _CONTINUES and opcodes[i] in _BEGINS)
    ]
    return list(zip([0, *cuts], [*cuts, count], strict=True))
