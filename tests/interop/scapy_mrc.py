"""MRC 1.0 as scapy layers, made from the tables of the specification and from nothing of ours.

A second reading of the same tables: where it disagrees with `mrc.wire`, one of the two is wrong.
"""

from __future__ import annotations

from typing import Any

from scapy.fields import (
    BitField,
    ByteField,
    Field,
    IntField,
    ShortField,
    SignedShortField,
    ThreeBytesField,
    XIntField,
    XLongField,
    XShortField,
    XStrFixedLenField,
)
from scapy.packet import Packet, Raw

ICRC_BYTES = 4

WRITES = {
    0xC6: "RDMA WRITE First",
    0xC7: "RDMA WRITE Middle",
    0xC8: "RDMA WRITE Last",
    0xC9: "RDMA WRITE Last with Immediate",
    0xCA: "RDMA WRITE Only",
    0xCB: "RDMA WRITE Only with Immediate",
}
WITH_IMMEDIATE = (0xC9, 0xCB)
ACKNOWLEDGE, ENDPOINT_REQUEST, ENDPOINT_RESPONSE = 0xD1, 0xD8, 0xD9
SACK, NACK, PROBE = 0xDC, 0xDD, 0xDE


def _table(*fields: Field[Any, Any]) -> list[Any]:
    """The fields of a layer, first on the wire first."""
    return list(fields)


class BTH(Packet):
    """Base transport header, 12 bytes."""

    name = "BTH"
    fields_desc = _table(
        ByteField("opcode", 0),
        BitField("m", 0, 1),
        BitField("se", 0, 1),
        BitField("pad", 0, 2),
        BitField("tver", 0, 4),
        XShortField("p_key", 0xFFFF),
        ByteField("reserved_1", 0),
        ThreeBytesField("dqp", 0),
        BitField("a", 0, 1),
        BitField("r", 0, 1),
        BitField("rtx", 0, 1),
        BitField("ts", 0, 1),
        BitField("reserved_2", 0, 4),
        ThreeBytesField("psn", 0),
    )

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """What follows is told by the opcode."""
        if self.opcode in WRITES:
            return METH
        return {
            ACKNOWLEDGE: AETH,
            ENDPOINT_REQUEST: ERTH,
            ENDPOINT_RESPONSE: EETH,
            SACK: SETH,
            NACK: NETH,
            PROBE: PETH,
        }.get(self.opcode, Raw)


class METH(Packet):
    """Message numbers, 4 bytes."""

    name = "METH"
    fields_desc = _table(ShortField("rqmsn", 0), ShortField("msn", 0))

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """The timestamp is there when BTH.ts says so."""
        bth: Any = self.underlayer
        return TSETH if bth.ts else RETH


class TSETH(Packet):
    """Timestamp, 4 bytes."""

    name = "TSETH"
    fields_desc = _table(
        ShortField("tx_timestamp", 0),
        BitField("tsr", 0, 1),
        BitField("reserved", 0, 11),
        BitField("ftype", 1, 4),
    )

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """The address always follows."""
        return RETH


class RETH(Packet):
    """Where the payload goes, 16 bytes, in every write packet."""

    name = "RETH"
    fields_desc = _table(XLongField("va", 0), XIntField("r_key", 0), IntField("dma_length", 0))

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """Immediate data follows where the opcode says so, else the payload."""
        below: Any = self
        while not isinstance(below, BTH):
            below = below.underlayer
        return ImmDt if below.opcode in WITH_IMMEDIATE else Raw


class ImmDt(Packet):
    """Immediate data, 4 bytes."""

    name = "ImmDt"
    fields_desc = _table(IntField("imm", 0))


class AETH(Packet):
    """Transport ACK or NAK, 4 bytes."""

    name = "AETH"
    fields_desc = _table(ByteField("syndrome", 0), ThreeBytesField("msn", 0))


class SETH(Packet):
    """Selective acknowledgement, 28 bytes."""

    name = "SETH"
    fields_desc = _table(
        BitField("type", 0, 4),
        BitField("nxt", 0, 5),
        BitField("m", 0, 2),
        BitField("reserved_1", 0, 3),
        BitField("pr", 0, 1),
        BitField("reserved_2", 0, 1),
        SignedShortField("ack_psn_offset", 0),
        XIntField("entropy", 0),
        XShortField("spdcid", 0),
        XShortField("dpdcid", 0),
        ByteField("reserved_3", 0),
        ThreeBytesField("cack_psn", 0),
        BitField("cc_type", 0, 4),
        BitField("cc_fl", 0, 4),
        ByteField("mpr", 0),
        SignedShortField("sack_offset", 0),
        XLongField("sack_bitmap", 0),
    )

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """CC_STATE always follows."""
        return CcState


class CcState(Packet):
    """Congestion control state of the responder, 8 bytes."""

    name = "CC_STATE"
    fields_desc = _table(
        ShortField("tx_timestamp", 0),
        BitField("reserved", 0, 1),
        BitField("ooo_count", 0, 15),
        BitField("restore_cwnd", 0, 1),
        BitField("rcv_cwnd_pen", 0, 7),
        ThreeBytesField("rcvd_bytes", 0),
    )


class NETH(Packet):
    """Refusal of one packet, 20 bytes."""

    name = "NETH"
    fields_desc = _table(
        BitField("type", 0, 4),
        BitField("nxt", 0, 5),
        BitField("reserved_1", 0, 7),
        ByteField("nack_reason", 0),
        ByteField("vendor_info", 0),
        XIntField("entropy", 0),
        XShortField("spdcid", 0),
        XShortField("dpdcid", 0),
        ByteField("reserved_2", 0),
        ThreeBytesField("nack_psn", 0),
        BitField("cc_type", 2, 4),
        BitField("cc_fl", 0, 4),
        ByteField("reserved_3", 0),
        ShortField("tx_timestamp", 0),
    )


class PETH(Packet):
    """Reliability probe, 16 bytes."""

    name = "PETH"
    fields_desc = _table(
        BitField("type", 0, 4),
        BitField("nxt", 0, 5),
        BitField("reserved_1", 0, 7),
        ByteField("reserved_2", 0),
        ByteField("vendor_info", 0),
        ShortField("probe_id", 0),
        ShortField("reserved_3", 0),
        XShortField("spdcid", 0),
        XShortField("dpdcid", 0),
        ShortField("tx_timestamp", 0),
        BitField("tsr", 0, 1),
        BitField("reserved_4", 0, 11),
        BitField("ftype", 1, 4),
    )


class ERTH(Packet):
    """Endpoint request, 16 bytes."""

    name = "ERTH"
    fields_desc = _table(
        BitField("type", 0, 4),
        BitField("nxt", 0, 5),
        BitField("reserved_1", 0, 5),
        BitField("op", 0, 2),
        ByteField("reserved_2", 0),
        ByteField("vendor_info", 0),
        XIntField("port_status_mask", 0),
        IntField("reserved_3", 0),
        ShortField("tx_timestamp", 0),
        BitField("tsr", 0, 1),
        BitField("reserved_4", 0, 11),
        BitField("ftype", 1, 4),
    )


class EETH(Packet):
    """Endpoint response, 36 bytes."""

    name = "EETH"
    fields_desc = _table(
        BitField("type", 0, 4),
        BitField("nxt", 0, 5),
        BitField("reserved_1", 0, 3),
        BitField("op", 0, 2),
        BitField("reserved_2", 0, 2),
        XStrFixedLenField("reserved_3", bytes(26), 26),
        ShortField("tx_timestamp", 0),
        ShortField("reserved_4", 0),
        IntField("reserved_5", 0),
    )


LAYERS = (METH, TSETH, RETH, ImmDt, AETH, SETH, CcState, NETH, PETH, ERTH, EETH)


def dissect(data: bytes, *, trimmed: bool = False) -> Any:
    """Read a UDP payload; the iCRC, which a trimmed packet does not have, is left out."""
    return BTH(data if trimmed else data[:-ICRC_BYTES])


def layers(packet: Any) -> list[Any]:
    """The headers of a packet behind the BTH, without its payload."""
    found = []
    layer = packet.payload
    while isinstance(layer, LAYERS):
        found.append(layer)
        layer = layer.payload
    return found


def payload(packet: Any) -> bytes:
    """What follows the headers of a packet, its pad included."""
    last = [packet, *layers(packet)][-1]
    return bytes(last.payload)


def reserved_values(layer: Any) -> set[int]:
    """What the reserved fields of a layer hold."""
    values = (
        layer.getfieldval(field.name)
        for field in layer.fields_desc
        if field.name.startswith("reserved")
    )
    return {int.from_bytes(value) if isinstance(value, bytes) else value for value in values}
