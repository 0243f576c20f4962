"""The header tables: sizes, ranges, reserved bits, and what they refuse."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrc.wire.fields import (
    AETH,
    BTH,
    CC_STATE,
    EETH,
    ERTH,
    HEADERS,
    IMMDT,
    IMMEDIATE_OPCODES,
    LAYOUTS,
    METH,
    NETH,
    PETH,
    RETH,
    SETH,
    TSETH,
    WRITE_OPCODES,
    BadPacket,
    Field,
    Header,
    Opcode,
)
from tests.wire.packets import field_values

BYTES = {
    "BTH": 12, "METH": 4, "TSETH": 4, "RETH": 16, "ImmDt": 4, "AETH": 4, "SETH": 28, "CC_STATE": 8,
    "NETH": 20, "PETH": 16, "ERTH": 16, "EETH": 36,
}  # fmt: skip

EVERY_HEADER = pytest.mark.parametrize("header", HEADERS, ids=lambda header: header.name)
EVERY_FIELD = pytest.mark.parametrize(
    ("header", "field"),
    [
        pytest.param(header, field, id=f"{header.name}.{name}")
        for header in HEADERS
        for name, (_, field) in header.fields.items()
    ],
)

FILLED = st.sampled_from(HEADERS).flatmap(
    lambda header: st.tuples(st.just(header), field_values(header))
)
"""Any header, with a value for each of its fields."""

_WRITE = (METH, TSETH, RETH)
_IMMEDIATE = (METH, TSETH, RETH, IMMDT)


def limits(field: Field) -> tuple[int, int]:
    """Smallest and largest value, worked out anew."""
    values = 2 ** (field.hi - field.lo + 1)
    return (-values // 2, values // 2 - 1) if field.signed else (0, values - 1)


@EVERY_HEADER
def test_a_header_has_its_size_in_every_form(header: Header) -> None:
    """Table, packed bytes and numpy structure of a header have the bytes MRC 1.0 gives it."""
    assert header.size == len(header.pack()) == header.dtype.itemsize == BYTES[header.name]


@EVERY_HEADER
def test_fields_share_no_bit(header: Header) -> None:
    """Every field lies inside its word, and no two of them have a bit in common."""
    for index, word in enumerate(header.words):
        taken = 0
        for at, field in header.fields.values():
            if at == index:
                assert 0 <= field.lo <= field.hi < word.bits
                bits = (2**field.width - 1) << field.lo
                assert not taken & bits
                taken |= bits


@pytest.mark.parametrize(
    ("opcode", "value", "headers"),
    [
        (Opcode.WRITE_FIRST, 0xC6, _WRITE),
        (Opcode.WRITE_MIDDLE, 0xC7, _WRITE),
        (Opcode.WRITE_LAST, 0xC8, _WRITE),
        (Opcode.WRITE_LAST_IMMEDIATE, 0xC9, _IMMEDIATE),
        (Opcode.WRITE_ONLY, 0xCA, _WRITE),
        (Opcode.WRITE_ONLY_IMMEDIATE, 0xCB, _IMMEDIATE),
        (Opcode.ACKNOWLEDGE, 0xD1, (AETH,)),
        (Opcode.ENDPOINT_REQUEST, 0xD8, (ERTH,)),
        (Opcode.ENDPOINT_RESPONSE, 0xD9, (EETH,)),
        (Opcode.SACK, 0xDC, (SETH, CC_STATE)),
        (Opcode.NACK, 0xDD, (NETH,)),
        (Opcode.PROBE, 0xDE, (PETH,)),
    ],
)
def test_an_opcode_has_its_value_and_headers(
    opcode: Opcode, value: int, headers: tuple[Header, ...]
) -> None:
    """Each opcode is the byte, and is followed by the headers, that MRC 1.0 gives it."""
    assert opcode == value
    assert LAYOUTS[opcode] == headers
    assert (opcode in WRITE_OPCODES) == (RETH in headers)
    assert (opcode in IMMEDIATE_OPCODES) == (IMMDT in headers)


def test_every_opcode_has_a_layout() -> None:
    """No opcode is without headers, and all have 0b110 in front."""
    assert set(LAYOUTS) == set(Opcode)
    assert {opcode >> 5 for opcode in Opcode} == {0b110}


@EVERY_FIELD
def test_a_field_takes_its_limits(header: Header, field: Field) -> None:
    """Smallest and largest value of a field come back unchanged, and touch no other field."""
    for value in limits(field):
        fields = header.unpack_untrusted(header.pack(**{field.name: value}))
        assert fields.pop(field.name) == value
        assert set(fields.values()) <= {0}


@EVERY_FIELD
def test_a_value_out_of_range_is_refused_by_name(header: Header, field: Field) -> None:
    """One beyond either limit is an error that names the field, the value and the range."""
    low, high = limits(field)
    for value in (low - 1, high + 1):
        with pytest.raises(
            ValueError, match=rf"^{field.name} = {value} is outside {low}\.\.{high}$"
        ):
            header.pack(**{field.name: value})


@EVERY_HEADER
def test_an_unknown_field_is_refused(header: Header) -> None:
    """A name that is no field of the header is an error, not a value lost."""
    with pytest.raises(KeyError, match="colour"):
        header.pack(colour=1)


@given(filled=FILLED, lead=st.binary(max_size=5))
def test_values_come_back_from_bytes(filled: tuple[Header, dict[str, int]], lead: bytes) -> None:
    """Whatever is packed is read again, at any place in a buffer."""
    header, values = filled
    packed = lead + header.pack(**values) + b"\xff"
    assert header.unpack_untrusted(packed, len(lead)) == values


@given(filled=FILLED)
def test_the_numpy_structure_reads_the_same_words(filled: tuple[Header, dict[str, int]]) -> None:
    """A row of the header's dtype holds, word for word, what the table reads."""
    header, values = filled
    row = np.frombuffer(header.pack(**values), header.dtype)[0]
    for name, (index, field) in header.fields.items():
        bits = int(row[header.words[index].name]) >> field.lo & (2**field.width - 1)
        assert bits == values[name] % 2**field.width


@EVERY_HEADER
def test_reserved_bits_are_ignored_and_sent_as_zero(header: Header) -> None:
    """Bits that no field names change nothing that is read, and are zero in what is packed."""
    ones = header.unpack_untrusted(b"\xff" * header.size)
    zeros = header.unpack_untrusted(bytes(header.size))
    named = header.pack(**ones)
    reserved = bytes(~byte & 0xFF for byte in named)
    assert header.unpack_untrusted(named) == ones
    assert header.unpack_untrusted(reserved) == zeros
    bits = sum(field.width for _, field in header.fields.values())
    assert int.from_bytes(named).bit_count() == bits


@EVERY_HEADER
def test_too_few_bytes_are_a_bad_packet(header: Header) -> None:
    """One byte short, or an offset outside the buffer, is a bad packet that names the header."""
    data = header.pack()
    for short, offset in ((data[:-1], 0), (data, 1), (data, len(data) + 5), (data, -1), (b"", 0)):
        with pytest.raises(
            BadPacket, match=rf"^{header.name}: needs {header.size} bytes"
        ) as caught:
            header.unpack_untrusted(short, offset)
        assert caught.value.reason == str(caught.value)


def test_the_two_flags_in_dispute_are_zero_unless_asked_for() -> None:
    """Byte 1 of a BTH is zero where no solicited event is asked for, whichever bit that is."""
    assert BTH.pack(opcode=Opcode.SACK, p_key=0xFFFF)[1] == 0
