"""Every header against golden bytes, in both directions, by table and by scalar codec."""

import pytest

from mrc.wire.control import Ack, EndpointRequest, EndpointResponse, Nack, Probe, Sack
from mrc.wire.fields import BTH, HEADERS, Header, Opcode
from mrc.wire.writes import Write
from tests.wire.golden import VECTORS, Vector

EACH_HEADER = [
    pytest.param(vector, header, id=f"{vector.name}:{header.name}")
    for vector in VECTORS.values()
    for header in vector.headers
]

P_KEY, DQP, PSN = 0xFFFF, 0x012345, 0x00A1B2


def _bth(opcode: Opcode, psn: int = PSN, dqp: int = DQP) -> bytes:
    return BTH.pack(opcode=opcode, p_key=P_KEY, dqp=dqp, psn=psn)


@pytest.mark.parametrize(("vector", "header"), EACH_HEADER)
def test_a_table_packs_the_golden_bytes(vector: Vector, header: Header) -> None:
    """The fields of a vector, put through the header's table, are its bytes."""
    assert header.pack(**vector.fields_of(header)) == vector.data_of(header)


@pytest.mark.parametrize(("vector", "header"), EACH_HEADER)
def test_a_table_reads_the_golden_fields(vector: Vector, header: Header) -> None:
    """The bytes of a vector, read by the header's table, are its fields: all of them, no more."""
    assert header.unpack_untrusted(vector.data_of(header)) == vector.fields_of(header)


def test_every_header_has_golden_bytes() -> None:
    """No header of the tables is without a vector, and no vector has fields of no header."""
    assert {header for vector in VECTORS.values() for header in vector.headers} == set(HEADERS)
    for vector in VECTORS.values():
        named = {name for header in vector.headers for name in header.fields}
        assert named == set(vector.fields)
        assert len(vector.data) == sum(header.size for header in vector.headers)


def test_sack_codec_meets_the_golden_bytes() -> None:
    """A SACK with a hole behind cack_psn and an ECN mark has the bytes of the vector."""
    vector = VECTORS["SETH+CC_STATE-1"]
    fields = vector.fields
    sack = Sack(
        dqp=DQP,
        cack_psn=fields["cack_psn"],
        m=fields["m"],
        ack_psn_offset=fields["ack_psn_offset"],
        entropy=fields["entropy"],
        spdcid=fields["spdcid"],
        dpdcid=fields["dpdcid"],
        mpr=fields["mpr"],
        sack_offset=fields["sack_offset"],
        sack_bitmap=fields["sack_bitmap"],
        tx_timestamp=fields["cc_tx_timestamp"],
        ooo_count=fields["ooo_count"],
        rcvd_bytes=fields["rcvd_bytes"],
    )
    data = _bth(Opcode.SACK, fields["cack_psn"]) + vector.data
    assert sack.encode() == data
    assert Sack.decode_untrusted(data) == sack


def test_nack_codec_meets_the_golden_bytes() -> None:
    """A NACK for a trimmed packet has the bytes of the vector."""
    vector = VECTORS["NETH-1"]
    fields = vector.fields
    nack = Nack(
        dqp=DQP,
        nack_psn=fields["nack_psn"],
        reason=fields["nack_reason"],
        entropy=fields["entropy"],
        spdcid=fields["spdcid"],
        dpdcid=fields["dpdcid"],
        tx_timestamp=fields["tx_timestamp"],
    )
    data = _bth(Opcode.NACK, fields["nack_psn"]) + vector.data
    assert nack.encode() == data
    assert Nack.decode_untrusted(data) == nack


def test_probe_codec_meets_the_golden_bytes() -> None:
    """A probe has the bytes of the vector, and PSN 0 since it consumes none."""
    vector = VECTORS["PETH-1"]
    fields = vector.fields
    probe = Probe(
        dqp=DQP,
        probe_id=fields["probe_id"],
        spdcid=fields["spdcid"],
        dpdcid=fields["dpdcid"],
        tx_timestamp=fields["tx_timestamp"],
    )
    data = _bth(Opcode.PROBE, psn=0) + vector.data
    assert probe.encode() == data
    assert Probe.decode_untrusted(data) == probe


def test_transport_ack_codec_meets_the_golden_bytes() -> None:
    """A Transport ACK has the bytes of the vector."""
    vector = VECTORS["AETH-1"]
    ack = Ack(dqp=DQP, psn=PSN, syndrome=vector.fields["syndrome"], msn=vector.fields["msn"])
    data = _bth(Opcode.ACKNOWLEDGE) + vector.data
    assert ack.encode() == data
    assert Ack.decode_untrusted(data) == ack


def test_endpoint_request_codec_meets_the_golden_bytes() -> None:
    """An endpoint request has the bytes of the vector, QP 2, and its request id as PSN."""
    vector = VECTORS["ERTH-1"]
    request = EndpointRequest(
        request_id=PSN, op=vector.fields["op"], tx_timestamp=vector.fields["tx_timestamp"]
    )
    data = _bth(Opcode.ENDPOINT_REQUEST, dqp=2) + vector.data
    assert request.encode() == data
    assert EndpointRequest.decode_untrusted(data) == request


def test_endpoint_response_codec_meets_the_golden_bytes() -> None:
    """An endpoint response has the bytes of the vector, with op in bits [3:2]."""
    vector = VECTORS["EETH-1"]
    response = EndpointResponse(
        request_id=PSN, op=vector.fields["op"], tx_timestamp=vector.fields["tx_timestamp"]
    )
    data = _bth(Opcode.ENDPOINT_RESPONSE, dqp=2) + vector.data
    assert response.encode() == data
    assert EndpointResponse.decode_untrusted(data) == response


@pytest.mark.parametrize("immediate", [False, True])
def test_write_codec_meets_the_golden_bytes(immediate: bool) -> None:
    """A WRITE is the vectors of BTH, METH, TSETH, RETH and, with immediate data, ImmDt in a row."""
    bth, meth, tseth, reth, immdt = (
        VECTORS[name] for name in ("BTH-1", "METH-1", "TSETH-1", "RETH-1", "ImmDt-1")
    )
    write = Write(
        opcode=Opcode.WRITE_ONLY_IMMEDIATE if immediate else Opcode.WRITE_ONLY,
        dqp=bth.fields["dqp"],
        psn=bth.fields["psn"],
        va=reth.fields["va"],
        r_key=reth.fields["r_key"],
        dma_length=reth.fields["dma_length"],
        rqmsn=meth.fields["rqmsn"],
        msn=meth.fields["msn"],
        ack_request=True,
        tx_timestamp=tseth.fields["tx_timestamp"],
        imm=immdt.fields["imm"] if immediate else None,
    )
    first = bytes((write.opcode,)) + bth.data[1:]
    data = b"".join((first, meth.data, tseth.data, reth.data, immdt.data if immediate else b""))
    assert write.encode() == data
    assert Write.decode_untrusted(data) == write
    assert write.header_bytes == len(data)
