"""The scalar codecs of all packets, held against the header tables and against themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrc.wire.control import (
    SACK_BYTES,
    Ack,
    EndpointRequest,
    EndpointResponse,
    Nack,
    Probe,
    Sack,
    timestamp,
)
from mrc.wire.fields import BTH, EETH, ERTH, IMMEDIATE_OPCODES, SETH, BadPacket, Opcode
from mrc.wire.writes import HEADER_BYTES, Write, opcode_of
from tests.wire.packets import ANY_PACKET, DECODERS, PACKETS, WRITES, Packet, by_table

KINDS = pytest.mark.parametrize("kind", PACKETS, ids=lambda kind: kind.__name__)

EXAMPLES: dict[Opcode, Packet] = {
    Opcode.SACK: Sack(5, 4),
    Opcode.NACK: Nack(5, 4, 1),
    Opcode.PROBE: Probe(5, 4),
    Opcode.ACKNOWLEDGE: Ack(5, 4),
    Opcode.ENDPOINT_REQUEST: EndpointRequest(5, 1),
    Opcode.ENDPOINT_RESPONSE: EndpointResponse(5, 1),
}
CONTROL = pytest.mark.parametrize("opcode", EXAMPLES, ids=lambda opcode: opcode.name)


@KINDS
@given(data=st.data())
def test_a_packet_is_what_the_tables_make_of_it(kind: type[Packet], data: st.DataObject) -> None:
    """The quick codec writes the bytes that the field tables give, for all values of all fields."""
    packet = data.draw(PACKETS[kind])
    assert packet.encode() == by_table(packet)


@KINDS
@given(data=st.data())
def test_a_packet_comes_back_from_its_bytes(kind: type[Packet], data: st.DataObject) -> None:
    """Decoding what was encoded gives the same values, whatever follows and in any buffer."""
    packet = data.draw(PACKETS[kind])
    encoded = packet.encode()
    more = data.draw(st.binary(max_size=8))
    for form in (encoded, bytearray(encoded), memoryview(encoded + more)):
        assert DECODERS[kind](form) == packet


@given(packet=ANY_PACKET)
def test_byte_4_of_the_bth_is_zero(packet: Packet) -> None:
    """No packet of ours sets the byte that the iCRC takes as ones."""
    assert packet.encode()[4] == 0


@CONTROL
def test_a_packet_one_byte_short_is_refused(opcode: Opcode) -> None:
    """A control packet without its last byte is a bad packet, and says what it lacks."""
    packet = EXAMPLES[opcode]
    data = packet.encode()
    with pytest.raises(BadPacket, match=rf"^{opcode.name}: needs {len(data)} bytes"):
        DECODERS[type(packet)](data[:-1])


@CONTROL
def test_a_packet_of_another_opcode_is_refused(opcode: Opcode) -> None:
    """No decoder takes the bytes of another opcode, even of a longer packet."""
    packet = EXAMPLES[opcode]
    for other in Opcode:
        if other != opcode:
            data = bytes((other,)) + bytes(100)
            with pytest.raises(BadPacket, match="is not"):
                DECODERS[type(packet)](data)


def test_a_sack_of_another_congestion_control_is_refused() -> None:
    """CC_STATE can be read only where cc_type says NSCC."""
    data = bytearray(Sack(5, 4).encode())
    data[BTH.size + 16] = 0x10
    with pytest.raises(BadPacket, match="cc_type 1 is not NSCC"):
        Sack.decode_untrusted(data)


@pytest.mark.parametrize("kind", [EndpointRequest, EndpointResponse])
def test_an_endpoint_operation_is_for_qp_2(
    kind: type[EndpointRequest] | type[EndpointResponse],
) -> None:
    """Endpoint requests and responses go to QP 2, and are refused for any other."""
    data = bytearray(kind(5, 1).encode())
    assert data[5:8] == b"\x00\x00\x02"
    data[7] = 3
    with pytest.raises(BadPacket, match="endpoint operation for QP 0x3"):
        kind.decode_untrusted(data)


def test_a_request_id_has_16_bits_of_the_psn() -> None:
    """The request id is the low 16 bits of the PSN; what stands above them does not count."""
    request, response = EndpointRequest(0xA1B2, 1), EndpointResponse(0xA1B2, 1)
    for packet in (request, response):
        data = bytearray(packet.encode())
        data[9] = 0x77
        assert type(packet).decode_untrusted(data) == packet


def test_the_answer_to_a_probe_has_the_probe_id_where_the_offset_is() -> None:
    """With pr set the 16 bits are a probe id without a sign, otherwise a signed offset."""
    answer = Sack(5, 4, pr=True, ack_psn_offset=0xFFFE)
    offset = Sack(5, 4, pr=False, ack_psn_offset=-2)
    assert SETH.unpack_untrusted(answer.encode(), BTH.size)["ack_psn_offset"] == -2
    assert Sack.decode_untrusted(answer.encode()).ack_psn_offset == 0xFFFE
    assert Sack.decode_untrusted(offset.encode()).ack_psn_offset == -2


def test_op_stands_in_other_bits_of_request_and_response() -> None:
    """ERTH has op in bits [1:0] of its first word, EETH in [3:2]."""
    assert EndpointRequest(1, 3).encode()[BTH.size + 1] == 0b0011
    assert EndpointResponse(1, 3).encode()[BTH.size + 1] == 0b1100
    assert ERTH.fields["op"][1].lo == 0
    assert EETH.fields["op"][1].lo == 2


def test_a_sack_has_48_bytes() -> None:
    """The size that others reckon with is the size that is sent."""
    assert len(Sack(5, 4).encode()) == SACK_BYTES == 48


@pytest.mark.parametrize(
    ("now_ns", "ticks"),
    [(0, 0), (127, 0), (128, 1), (128 * 0xFFFF, 0xFFFF), (128 << 16, 0), ((128 << 16) + 256, 2)],
)
def test_a_timestamp_counts_128_ns_and_wraps(now_ns: int, ticks: int) -> None:
    """TSETH holds the low 16 bits of the time in units of 128 ns."""
    assert timestamp(now_ns) == ticks


@pytest.mark.parametrize(
    ("first", "last", "immediate", "opcode"),
    [
        (True, False, False, Opcode.WRITE_FIRST),
        (False, False, False, Opcode.WRITE_MIDDLE),
        (False, True, False, Opcode.WRITE_LAST),
        (True, True, False, Opcode.WRITE_ONLY),
        (True, False, True, Opcode.WRITE_FIRST),
        (False, False, True, Opcode.WRITE_MIDDLE),
        (False, True, True, Opcode.WRITE_LAST_IMMEDIATE),
        (True, True, True, Opcode.WRITE_ONLY_IMMEDIATE),
    ],
)
def test_the_opcode_tells_the_place_in_the_message(
    first: bool, last: bool, immediate: bool, opcode: Opcode
) -> None:
    """First, middle, last or only; the immediate is in the last packet alone."""
    assert opcode_of(first=first, last=last, immediate=immediate) is opcode


@given(write=WRITES)
def test_a_write_knows_where_its_payload_begins(write: Write) -> None:
    """`header_bytes` is the length of the headers, with and without TSETH and ImmDt."""
    assert write.header_bytes == len(write.encode())


def test_a_plain_write_header_has_36_bytes() -> None:
    """BTH, METH, TSETH and RETH: what must be left of a trimmed packet."""
    assert len(Write(Opcode.WRITE_ONLY, 1, 2, 3, 4, 5).encode()) == HEADER_BYTES == 36


@given(write=WRITES)
def test_a_write_that_lost_a_part_of_its_headers_is_refused(write: Write) -> None:
    """Cut anywhere inside its headers a WRITE is a bad packet; cut behind them it is read."""
    data = write.encode()
    assert Write.decode_untrusted(data) == write
    for length in range(len(data)):
        with pytest.raises(BadPacket):
            Write.decode_untrusted(data[:length])


@pytest.mark.parametrize("opcode", sorted(set(Opcode) - {0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xCB}))
def test_a_control_packet_is_no_write(opcode: Opcode) -> None:
    """The reader of data packets refuses the opcodes of all others."""
    with pytest.raises(BadPacket, match="not a WRITE packet"):
        Write.decode_untrusted(bytes((opcode,)) + bytes(100))


@given(write=WRITES)
def test_immediate_data_is_there_by_opcode(write: Write) -> None:
    """A decoded WRITE has immediate data exactly when its opcode says so."""
    decoded = Write.decode_untrusted(write.encode())
    assert (decoded.imm is not None) == (decoded.opcode in IMMEDIATE_OPCODES)
