"""The header tables of MRC 1.0: one table per header drives codec, dtype, dump and tests.

A header is a row of big-endian words of 8, 16, 32 or 64 bits; a field is a bit range of one word,
`[hi:lo]` inclusive with 0 the least significant bit, as the specification prints it. Reserved bits
are named by no field: they are sent as zero and ignored on receipt.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np

Buffer = bytes | bytearray | memoryview


class BadPacket(Exception):
    """The bytes are no such packet: all that functions ending in `_untrusted` raise in this layer.

    Those of the layers above raise `mrc.errors.PeerProtocolError`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Opcode(IntEnum):
    """BTH opcodes; bits [7:5] are 0b110 for MRC."""

    WRITE_FIRST = 0xC6
    WRITE_MIDDLE = 0xC7
    WRITE_LAST = 0xC8
    WRITE_LAST_IMMEDIATE = 0xC9
    WRITE_ONLY = 0xCA
    WRITE_ONLY_IMMEDIATE = 0xCB
    ACKNOWLEDGE = 0xD1
    ENDPOINT_REQUEST = 0xD8
    ENDPOINT_RESPONSE = 0xD9
    SACK = 0xDC
    NACK = 0xDD
    PROBE = 0xDE


@dataclass(frozen=True, slots=True)
class Field:
    """Bits [hi:lo] of one word."""

    name: str
    hi: int
    lo: int
    signed: bool = False

    @property
    def width(self) -> int:
        """Number of bits."""
        return self.hi - self.lo + 1

    def check(self, value: int) -> int:
        """Return the value's bits, unsigned.

        Raises:
            ValueError: the value does not fit; the message names it and the range.
        """
        low = -(1 << (self.width - 1)) if self.signed else 0
        high = low + (1 << self.width) - 1
        if not low <= value <= high:
            raise ValueError(f"{self.name} = {value} is outside {low}..{high}")
        return value & ((1 << self.width) - 1)


@dataclass(frozen=True, slots=True)
class Word:
    """One big-endian word: 8, 16, 32 or 64 bits. Without fields it is all reserved."""

    name: str
    bits: int
    fields: tuple[Field, ...] = ()


_CODES = {8: "B", 16: "H", 32: "I", 64: "Q"}


@dataclass(frozen=True)
class Header:
    """A header: its name and its words, first on the wire first."""

    name: str
    words: tuple[Word, ...]

    @cached_property
    def format(self) -> str:
        """Struct codes of the words, without the byte-order prefix."""
        return "".join(_CODES[word.bits] for word in self.words)

    @cached_property
    def size(self) -> int:
        """Bytes on the wire."""
        return sum(word.bits for word in self.words) // 8

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Numpy structure with one big-endian unsigned member per word."""
        return np.dtype([(word.name, f">u{word.bits // 8}") for word in self.words])

    @cached_property
    def fields(self) -> dict[str, tuple[int, Field]]:
        """Field name to (index of its word, field)."""
        return {f.name: (i, f) for i, word in enumerate(self.words) for f in word.fields}

    @cached_property
    def _struct(self) -> struct.Struct:
        return struct.Struct(">" + self.format)

    def pack(self, **values: int) -> bytes:
        """Encode; fields not named are zero.

        Raises:
            ValueError: a value does not fit its field.
            KeyError: no such field.
        """
        words = [0] * len(self.words)
        for name, value in values.items():
            index, field = self.fields[name]
            words[index] |= field.check(value) << field.lo
        return self._struct.pack(*words)

    def unpack_untrusted(self, buffer: Buffer, offset: int = 0) -> dict[str, int]:
        """Decode every field at `offset`.

        Raises:
            BadPacket: fewer bytes than the header has.
        """
        if offset < 0 or len(buffer) - offset < self.size:
            raise BadPacket(f"{self.name}: needs {self.size} bytes, has {len(buffer) - offset}")
        words = self._struct.unpack_from(buffer, offset)
        return {name: _extract(words[i], field) for name, (i, field) in self.fields.items()}


def _extract(word: int, field: Field) -> int:
    value = (word >> field.lo) & ((1 << field.width) - 1)
    if field.signed and value >> (field.width - 1):
        value -= 1 << field.width
    return value


def _word(name: str, bits: int, *fields: tuple[str, int, int]) -> Word:
    """Make a word of several fields given as (name, hi, lo)."""
    return Word(name, bits, tuple(Field(*field) for field in fields))


def _whole(name: str, bits: int, *, signed: bool = False) -> Word:
    """Make a word that is one field."""
    return Word(name, bits, (Field(name, bits - 1, 0, signed),))


def _reserved(name: str, bits: int) -> Word:
    return Word(name, bits)


# Three public transcriptions give byte 1 as (m, se), one and IBTA's BTH as (se, m). Both are sent
# as zero unless a solicited event is asked for, and m is ignored on receipt.
_M_SE = (("m", 7, 7), ("se", 6, 6))

BTH = Header(
    "BTH",
    (
        _whole("opcode", 8),
        _word("flags", 8, *_M_SE, ("pad", 5, 4), ("tver", 3, 0)),
        _whole("p_key", 16),
        _word("dqp_word", 32, ("dqp", 23, 0)),
        _word(
            "psn_word",
            32,
            ("a", 31, 31),
            ("r", 30, 30),
            ("rtx", 29, 29),
            ("ts", 28, 28),
            ("psn", 23, 0),
        ),
    ),
)
METH = Header("METH", (_whole("rqmsn", 16), _whole("msn", 16)))
_TSR_WORD = _word("tsr_word", 16, ("tsr", 15, 15), ("ftype", 3, 0))
TSETH = Header("TSETH", (_whole("tx_timestamp", 16), _TSR_WORD))
RETH = Header("RETH", (_whole("va", 64), _whole("r_key", 32), _whole("dma_length", 32)))
IMMDT = Header("ImmDt", (_whole("imm", 32),))
AETH = Header("AETH", (_word("aeth_word", 32, ("syndrome", 31, 24), ("msn", 23, 0)),))
SETH = Header(
    "SETH",
    (
        _word("type_word", 16, ("type", 15, 12), ("nxt", 11, 7), ("m", 6, 5), ("pr", 1, 1)),
        # With pr = 1 the same 16 bits are the probe_id of the probe that is answered.
        _whole("ack_psn_offset", 16, signed=True),
        _whole("entropy", 32),
        _whole("spdcid", 16),
        _whole("dpdcid", 16),
        _word("cack_word", 32, ("cack_psn", 23, 0)),
        _word("cc_word", 8, ("cc_type", 7, 4), ("cc_fl", 3, 0)),
        _whole("mpr", 8),
        _whole("sack_offset", 16, signed=True),
        _whole("sack_bitmap", 64),
    ),
)
CC_STATE = Header(
    "CC_STATE",
    (
        _whole("cc_tx_timestamp", 16),
        _word("ooo_word", 16, ("ooo_count", 14, 0)),
        _word(
            "rcvd_word",
            32,
            ("restore_cwnd", 31, 31),
            ("rcv_cwnd_pen", 30, 24),
            ("rcvd_bytes", 23, 0),
        ),
    ),
)
NETH = Header(
    "NETH",
    (
        _word("type_word", 16, ("type", 15, 12), ("nxt", 11, 7)),
        _whole("nack_reason", 8),
        _whole("vendor_info", 8),
        _whole("entropy", 32),
        _whole("spdcid", 16),
        _whole("dpdcid", 16),
        _word("nack_word", 32, ("nack_psn", 23, 0)),
        _word("cc_word", 8, ("cc_type", 7, 4), ("cc_fl", 3, 0)),
        _reserved("reserved", 8),
        _whole("tx_timestamp", 16),
    ),
)
PETH = Header(
    "PETH",
    (
        _word("type_word", 16, ("type", 15, 12), ("nxt", 11, 7)),
        _reserved("reserved", 8),
        _whole("vendor_info", 8),
        _whole("probe_id", 16),
        _reserved("reserved_2", 16),
        _whole("spdcid", 16),
        _whole("dpdcid", 16),
        _whole("tx_timestamp", 16),
        _TSR_WORD,
    ),
)
ERTH = Header(
    "ERTH",
    (
        _word("type_word", 16, ("type", 15, 12), ("nxt", 11, 7), ("op", 1, 0)),
        _reserved("reserved", 8),
        _whole("vendor_info", 8),
        _whole("port_status_mask", 32),
        _reserved("reserved_2", 32),
        _whole("tx_timestamp", 16),
        _TSR_WORD,
    ),
)
EETH = Header(
    "EETH",
    (
        # Two transcriptions have op at [3:2], one at [5:4]; the table of the specification gives
        # [3:2].
        _word("type_word", 16, ("type", 15, 12), ("nxt", 11, 7), ("op", 3, 2)),
        _reserved("reserved", 16),
        *(_reserved(f"reserved_{i}", 64) for i in (2, 3, 4)),
        _whole("tx_timestamp", 16),
        _reserved("reserved_5", 16),
        _reserved("reserved_6", 32),
    ),
)

HEADERS: tuple[Header, ...] = (
    BTH, METH, TSETH, RETH, IMMDT, AETH, SETH, CC_STATE, NETH, PETH, ERTH, EETH,
)  # fmt: skip

_WRITE = (METH, TSETH, RETH)
_WRITE_IMMEDIATE = (METH, TSETH, RETH, IMMDT)

# Headers after the BTH, in order. TSETH is there only when BTH.ts is set.
LAYOUTS: dict[Opcode, tuple[Header, ...]] = {
    Opcode.WRITE_FIRST: _WRITE,
    Opcode.WRITE_MIDDLE: _WRITE,
    Opcode.WRITE_LAST: _WRITE,
    Opcode.WRITE_LAST_IMMEDIATE: _WRITE_IMMEDIATE,
    Opcode.WRITE_ONLY: _WRITE,
    Opcode.WRITE_ONLY_IMMEDIATE: _WRITE_IMMEDIATE,
    Opcode.ACKNOWLEDGE: (AETH,),
    Opcode.ENDPOINT_REQUEST: (ERTH,),
    Opcode.ENDPOINT_RESPONSE: (EETH,),
    Opcode.SACK: (SETH, CC_STATE),
    Opcode.NACK: (NETH,),
    Opcode.PROBE: (PETH,),
}

WRITE_OPCODES = frozenset(op for op, headers in LAYOUTS.items() if RETH in headers)
IMMEDIATE_OPCODES = frozenset((Opcode.WRITE_LAST_IMMEDIATE, Opcode.WRITE_ONLY_IMMEDIATE))

for _header, _size in zip(HEADERS, (12, 4, 4, 16, 4, 4, 28, 8, 20, 16, 16, 36), strict=True):
    if _header.size != _size or _header.dtype.itemsize != _size:
        raise ImportError(f"{_header.name}: table has {_header.size} bytes, MRC 1.0 has {_size}")
