"""Hypothesis strategies for headers and packets, and each packet's bytes by the header tables."""

from collections.abc import Callable

from hypothesis import strategies as st

from mrc.wire.control import (
    Ack,
    EndpointRequest,
    EndpointResponse,
    Nack,
    Probe,
    Sack,
)
from mrc.wire.fields import (
    AETH,
    BTH,
    CC_STATE,
    EETH,
    ERTH,
    IMMDT,
    IMMEDIATE_OPCODES,
    METH,
    NETH,
    PETH,
    RETH,
    SETH,
    TSETH,
    WRITE_OPCODES,
    Buffer,
    Header,
    Opcode,
)
from mrc.wire.writes import Write

Packet = Sack | Nack | Probe | Ack | EndpointRequest | EndpointResponse | Write

P_KEY = 0xFFFF
ENDPOINT_QP = 2


def bits(width: int) -> st.SearchStrategy[int]:
    """An unsigned number of so many bits."""
    return st.integers(0, (1 << width) - 1)


U2, U7, U8, U15, U16, U24, U32, U64 = map(bits, (2, 7, 8, 15, 16, 24, 32, 64))
S16 = st.integers(-0x8000, 0x7FFF)
FLAG = st.booleans()


def field_values(header: Header) -> st.SearchStrategy[dict[str, int]]:
    """A value for every field of a header."""
    return st.fixed_dictionaries(
        {
            name: st.integers(-(1 << field.width - 1), (1 << field.width - 1) - 1)
            if field.signed
            else bits(field.width)
            for name, (_, field) in header.fields.items()
        }
    )


def _sack(*, pr: bool) -> st.SearchStrategy[Sack]:
    return st.builds(
        Sack,
        dqp=U24,
        cack_psn=U24,
        rtx=FLAG,
        m=U2,
        pr=st.just(pr),
        ack_psn_offset=U16 if pr else S16,
        entropy=U32,
        spdcid=U16,
        dpdcid=U16,
        mpr=U8,
        sack_offset=S16,
        sack_bitmap=U64,
        tx_timestamp=U16,
        ooo_count=U15,
        restore_cwnd=FLAG,
        rcv_cwnd_pen=U7,
        rcvd_bytes=U24,
    )


def _write(opcode: Opcode) -> st.SearchStrategy[Write]:
    return st.builds(
        Write,
        opcode=st.just(opcode),
        dqp=U24,
        psn=U24,
        va=U64,
        r_key=U32,
        dma_length=U32,
        rqmsn=U16,
        msn=U16,
        ack_request=FLAG,
        rtx=FLAG,
        tx_timestamp=st.none() | U16,
        imm=U32 if opcode in IMMEDIATE_OPCODES else st.none(),
        pad=U2,
        p_key=U16,
    )


SACKS = FLAG.flatmap(lambda pr: _sack(pr=pr))
NACKS = st.builds(
    Nack,
    dqp=U24,
    nack_psn=U24,
    reason=U8,
    vendor_info=U8,
    entropy=U32,
    spdcid=U16,
    dpdcid=U16,
    tx_timestamp=U16,
    rtx=FLAG,
)
PROBES = st.builds(Probe, dqp=U24, probe_id=U16, spdcid=U16, dpdcid=U16, tx_timestamp=U16)
ACKS = st.builds(Ack, dqp=U24, psn=U24, syndrome=U8, msn=U24)
REQUESTS = st.builds(EndpointRequest, request_id=U16, op=U2, port_status_mask=U32, tx_timestamp=U16)
RESPONSES = st.builds(EndpointResponse, request_id=U16, op=U2, tx_timestamp=U16)
WRITES = st.sampled_from(sorted(WRITE_OPCODES)).flatmap(_write)

PACKETS: dict[type[Packet], st.SearchStrategy[Packet]] = {
    Sack: SACKS,
    Nack: NACKS,
    Probe: PROBES,
    Ack: ACKS,
    EndpointRequest: REQUESTS,
    EndpointResponse: RESPONSES,
    Write: WRITES,
}
"""Every kind of packet there is, with a strategy for its values."""

ANY_PACKET = st.one_of(*PACKETS.values())


def _bth(opcode: int, **fields: int) -> bytes:
    return BTH.pack(**{"opcode": opcode, "p_key": P_KEY, **fields})


def _sack_by_table(sack: Sack) -> bytes:
    offset = sack.ack_psn_offset
    return (
        _bth(Opcode.SACK, dqp=sack.dqp, psn=sack.cack_psn, rtx=sack.rtx)
        + SETH.pack(
            m=sack.m,
            pr=sack.pr,
            # The table knows these bits as a signed number only.
            ack_psn_offset=offset - 0x10000 if offset > 0x7FFF else offset,
            entropy=sack.entropy,
            spdcid=sack.spdcid,
            dpdcid=sack.dpdcid,
            cack_psn=sack.cack_psn,
            mpr=sack.mpr,
            sack_offset=sack.sack_offset,
            sack_bitmap=sack.sack_bitmap,
        )
        + CC_STATE.pack(
            cc_tx_timestamp=sack.tx_timestamp,
            ooo_count=sack.ooo_count,
            restore_cwnd=sack.restore_cwnd,
            rcv_cwnd_pen=sack.rcv_cwnd_pen,
            rcvd_bytes=sack.rcvd_bytes,
        )
    )


def _nack_by_table(nack: Nack) -> bytes:
    return _bth(Opcode.NACK, dqp=nack.dqp, psn=nack.nack_psn, rtx=nack.rtx) + NETH.pack(
        nack_reason=nack.reason,
        vendor_info=nack.vendor_info,
        entropy=nack.entropy,
        spdcid=nack.spdcid,
        dpdcid=nack.dpdcid,
        nack_psn=nack.nack_psn,
        cc_type=2,
        tx_timestamp=nack.tx_timestamp,
    )


def _probe_by_table(probe: Probe) -> bytes:
    return _bth(Opcode.PROBE, dqp=probe.dqp) + PETH.pack(
        probe_id=probe.probe_id,
        spdcid=probe.spdcid,
        dpdcid=probe.dpdcid,
        tx_timestamp=probe.tx_timestamp,
        ftype=1,
    )


def _ack_by_table(ack: Ack) -> bytes:
    bth = _bth(Opcode.ACKNOWLEDGE, dqp=ack.dqp, psn=ack.psn)
    return bth + AETH.pack(syndrome=ack.syndrome, msn=ack.msn)


def _request_by_table(request: EndpointRequest) -> bytes:
    bth = _bth(Opcode.ENDPOINT_REQUEST, dqp=ENDPOINT_QP, psn=request.request_id)
    return bth + ERTH.pack(
        op=request.op,
        port_status_mask=request.port_status_mask,
        tx_timestamp=request.tx_timestamp,
        ftype=1,
    )


def _response_by_table(response: EndpointResponse) -> bytes:
    bth = _bth(Opcode.ENDPOINT_RESPONSE, dqp=ENDPOINT_QP, psn=response.request_id)
    return bth + EETH.pack(op=response.op, tx_timestamp=response.tx_timestamp)


def _write_by_table(write: Write) -> bytes:
    has_tseth = write.tx_timestamp is not None
    parts = [
        _bth(
            write.opcode,
            pad=write.pad,
            p_key=write.p_key,
            dqp=write.dqp,
            a=write.ack_request,
            rtx=write.rtx,
            ts=has_tseth,
            psn=write.psn,
        ),
        METH.pack(rqmsn=write.rqmsn, msn=write.msn),
    ]
    if write.tx_timestamp is not None:
        parts.append(TSETH.pack(tx_timestamp=write.tx_timestamp, ftype=1))
    parts.append(RETH.pack(va=write.va, r_key=write.r_key, dma_length=write.dma_length))
    if write.imm is not None:
        parts.append(IMMDT.pack(imm=write.imm))
    return b"".join(parts)


def by_table(packet: Packet) -> bytes:
    """The bytes of a packet, put together header by header from the tables."""
    match packet:
        case Sack():
            return _sack_by_table(packet)
        case Nack():
            return _nack_by_table(packet)
        case Probe():
            return _probe_by_table(packet)
        case Ack():
            return _ack_by_table(packet)
        case EndpointRequest():
            return _request_by_table(packet)
        case EndpointResponse():
            return _response_by_table(packet)
        case Write():
            return _write_by_table(packet)


DECODERS: dict[type[Packet], Callable[[Buffer], Packet]] = {
    kind: kind.decode_untrusted for kind in PACKETS
}
