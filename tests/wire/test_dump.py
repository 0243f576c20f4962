"""The text that people read about a datagram."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrc.wire.control import (
    Ack,
    EndpointOp,
    EndpointRequest,
    EndpointResponse,
    Nack,
    NackReason,
    Sack,
    SackMark,
    Syndrome,
)
from mrc.wire.dump import dump_untrusted
from mrc.wire.fields import BTH, LAYOUTS, SETH, TSETH, BadPacket, Opcode
from mrc.wire.writes import Write
from tests.wire.packets import ANY_PACKET, Packet

ICRC = b"\x78\x56\x34\x12"
WRITE = Write(
    Opcode.WRITE_LAST_IMMEDIATE,
    dqp=0x12345,
    psn=77,
    va=0x7F0012345000,
    r_key=0xA1B2,
    dma_length=8190,
    rqmsn=5,
    msn=258,
    tx_timestamp=15450,
    imm=0xC0FFEE,
    pad=2,
)


def _value(lines: list[str], header: str, field: str) -> str:
    """What a dump says of one field."""
    (line,) = [line for line in lines if line.split()[0] == header]
    return dict(pair.split("=") for pair in line.split()[1:])[field]


def test_a_write_is_told_header_by_header() -> None:
    """A data packet is a line each for BTH, its headers, payload with pad, and iCRC."""
    bth, *others = dump_untrusted(WRITE.encode() + bytes(10) + ICRC)
    assert bth == (
        "BTH      opcode=WRITE_LAST_IMMEDIATE m=0 se=0 pad=2 tver=0 p_key=0xffff dqp=0x012345"
        " a=0 r=0 rtx=0 ts=1 psn=77"
    )
    assert others == [
        "METH     rqmsn=5 msn=258",
        "TSETH    tx_timestamp=15450 tsr=0 ftype=1",
        "RETH     va=0x00007f0012345000 r_key=0x0000a1b2 dma_length=8190",
        "ImmDt    imm=0x00c0ffee",
        "payload  8 bytes, pad 2",
        "iCRC     0x12345678",
    ]


def test_a_sack_is_told_with_its_bitmap_in_hexadecimal() -> None:
    """A SACK shows names for the mark, signs for offsets and bits for the bitmap."""
    sack = Sack(
        5, 41393, m=SackMark.SKIP_ONCE, ack_psn_offset=-4, entropy=0xC3D1A7, sack_bitmap=0xE
    )
    lines = dump_untrusted(sack.encode() + ICRC)
    assert [line.split()[0] for line in lines] == ["BTH", "SETH", "CC_STATE", "iCRC"]
    assert _value(lines, "SETH", "m") == "SKIP_ONCE"
    assert _value(lines, "SETH", "ack_psn_offset") == "-4"
    assert _value(lines, "SETH", "entropy") == "0x00c3d1a7"
    assert _value(lines, "SETH", "sack_bitmap") == "0x000000000000000e"


def test_the_answer_to_a_probe_shows_the_probe_id() -> None:
    """With pr set the offset is shown as what it is then, the id of the probe."""
    lines = dump_untrusted(Sack(5, 4, pr=True, ack_psn_offset=0xFFFE).encode() + ICRC)
    assert _value(lines, "SETH", "probe_id") == "65534"
    assert "ack_psn_offset" not in lines[1]


@pytest.mark.parametrize(
    ("packet", "header", "field", "text"),
    [
        (Nack(5, 4, NackReason.PSN_OOR_WINDOW), "NETH", "nack_reason", "PSN_OOR_WINDOW"),
        (Nack(5, 4, 0x44), "NETH", "nack_reason", "0x44"),
        (Ack(5, 4, Syndrome.NAK_REMOTE_ACCESS), "AETH", "syndrome", "NAK_REMOTE_ACCESS"),
        (Ack(5, 4, 0x05), "AETH", "syndrome", "0x05"),
        (EndpointRequest(5, EndpointOp.EV_PROBE), "ERTH", "op", "EV_PROBE"),
        (EndpointRequest(5, 0, port_status_mask=3), "ERTH", "port_status_mask", "0x00000003"),
        (EndpointResponse(5, 3), "EETH", "op", "0x3"),
    ],
)
def test_a_value_is_shown_by_name_where_it_has_one(
    packet: Packet, header: str, field: str, text: str
) -> None:
    """A reason, syndrome or operation is named; one that MRC 1.0 does not have is hexadecimal."""
    assert _value(dump_untrusted(packet.encode() + ICRC), header, field) == text


@given(packet=ANY_PACKET, payload=st.binary(min_size=3, max_size=9))
def test_every_header_and_field_is_told(packet: Packet, payload: bytes) -> None:
    """A dump has a line for each header the packet has, with each field in table order."""
    data = packet.encode()
    bth = BTH.unpack_untrusted(data)
    lines = dump_untrusted(data + payload + ICRC)
    for header in (BTH, *LAYOUTS[Opcode(data[0])]):
        if header is TSETH and not bth["ts"]:
            continue
        name, *pairs = lines.pop(0).split()
        shown = [pair.split("=")[0] for pair in pairs]
        if header is SETH and "probe_id" in shown:
            shown[shown.index("probe_id")] = "ack_psn_offset"
        assert name == header.name
        assert shown == list(header.fields)
    assert re.fullmatch(r"(payload|surplus) +\d+ bytes(, pad \d)?", lines.pop(0))
    assert lines == ["iCRC     0x12345678"]


def test_bytes_behind_a_control_packet_are_told() -> None:
    """A control packet has no payload: what follows its headers is called surplus."""
    assert dump_untrusted(Ack(5, 4).encode() + bytes(3) + ICRC)[-2:] == [
        "surplus  3 bytes",
        "iCRC     0x12345678",
    ]


def test_a_seal_is_told_when_it_is_known_to_be_there() -> None:
    """Tag and counter of a sealed packet stand before its iCRC; headers are shown as ever."""
    seal = bytes(range(16)) + (258).to_bytes(8, "big")
    told = "seal     counter=258 tag=000102030405060708090a0b0c0d0e0f"
    control = dump_untrusted(Ack(5, 4).encode() + seal + ICRC, sealed=True)
    assert [line.split()[0] for line in control] == ["BTH", "AETH", "seal", "iCRC"]
    assert control[-2] == told
    data = dump_untrusted(WRITE.encode() + bytes(100) + seal + ICRC, sealed=True)
    assert data[-3:-1] == [f"payload  {100 - WRITE.pad} bytes, pad {WRITE.pad}", told]
    with pytest.raises(BadPacket, match="no room"):
        dump_untrusted(Ack(5, 4).encode() + ICRC, sealed=True)


@pytest.mark.parametrize("left", [0, 100])
def test_a_trimmed_packet_has_no_icrc(left: int) -> None:
    """What a switch left of a packet ends somewhere in the payload: no pad, no iCRC."""
    lines = dump_untrusted(WRITE.encode() + bytes(left), trimmed=True)
    assert lines[-1] == f"trimmed  {left} bytes of payload left, no iCRC"
    assert [line.split()[0] for line in lines[:-1]] == ["BTH", "METH", "TSETH", "RETH", "ImmDt"]


@pytest.mark.parametrize("trimmed", [False, True])
def test_an_opcode_of_another_protocol_is_refused(trimmed: bool) -> None:
    """A datagram that is not MRC is a bad packet that shows its opcode."""
    with pytest.raises(BadPacket, match="opcode 0x0a is not one of MRC"):
        dump_untrusted(b"\x0a" + bytes(60), trimmed=trimmed)


def test_a_packet_without_all_its_headers_is_refused() -> None:
    """A datagram that ends inside a header is a bad packet that names the header."""
    with pytest.raises(BadPacket, match="RETH: needs 16 bytes"):
        dump_untrusted(WRITE.encode()[:30])


def test_a_packet_without_room_for_pad_and_icrc_is_refused() -> None:
    """The pad a BTH announces and the iCRC must be there."""
    assert len(dump_untrusted(WRITE.encode() + bytes(2 + 4))) == 7
    with pytest.raises(BadPacket, match="no room for 2 bytes of pad and 4 behind"):
        dump_untrusted(WRITE.encode() + bytes(2 + 3))
