"""Control packets as values: SACK, NACK, probe, Transport ACK, endpoint request and response.

`encode` gives BTH and extension headers without the iCRC; `decode_untrusted` takes the same bytes.
PSNs here are the 24 bits of the wire. The word layouts come from the tables in `fields`.

`encode` trusts each value to fit its field, as the protocol sees to: one that does not would spill
into its neighbours. `Header.pack` is the slower way that checks.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from mrc.wire.fields import (
    AETH,
    BTH,
    CC_STATE,
    EETH,
    ERTH,
    NETH,
    PETH,
    SETH,
    BadPacket,
    Buffer,
    Header,
    Opcode,
)

P_KEY_DEFAULT = 0xFFFF
ENDPOINT_QP = 0x000002
"""Destination QP of endpoint requests and responses (MRC 1.0 §7.5.5)."""
TIMESTAMP_UNIT_NS = 128
FTYPE_TIMESTAMP = 1
TIMESTAMP_WORD = FTYPE_TIMESTAMP
"""The second half of a TSETH with tsr = 0 (unit of 128 ns)."""
CC_TYPE_NSCC = 0
CC_TYPE_NACK = 2
FLAG_ACK_REQUEST = 1 << 31
FLAG_RTX = 1 << 29
FLAG_TS = 1 << 28
BTH_BYTES = BTH.size


class SackMark(IntEnum):
    """SETH.m: what the responder thinks of the path the packet came on."""

    NONE = 0
    SKIP_ONCE = 1
    ALWAYS_SKIP = 2
    RESERVED = 3


class NackReason(IntEnum):
    """NETH reasons (MRC 1.0 §7.5.6)."""

    TRIMMED = 0x01
    TRIMMED_LASTHOP = 0x02
    NO_BITMAP = 0x06
    NO_PKT_BUFFER = 0x07
    NO_RESOURCE = 0x0A
    PSN_OOR_WINDOW = 0x0B
    UNEXP_EVENT = 0x19


class Syndrome(IntEnum):
    """AETH syndromes, as in the InfiniBand specification."""

    ACK = 0x1F
    NAK_PSN_SEQUENCE = 0x60
    NAK_INVALID_REQUEST = 0x61
    NAK_REMOTE_ACCESS = 0x62
    NAK_REMOTE_OPERATION = 0x63


class EndpointOp(IntEnum):
    """ERTH.op and EETH.op."""

    PORT_STATUS_UPDATE = 0
    EV_PROBE = 1


def timestamp(now_ns: int) -> int:
    """Return the 16-bit TSETH timestamp of a time: units of 128 ns, wrapping at 8.39 ms."""
    return (now_ns // TIMESTAMP_UNIT_NS) & 0xFFFF


def _layout(*headers: Header) -> struct.Struct:
    return struct.Struct(">" + "".join(header.format for header in headers))


def _words_untrusted(layout: struct.Struct, opcode: Opcode, buffer: Buffer) -> tuple[int, ...]:
    if len(buffer) < layout.size:
        raise BadPacket(f"{opcode.name}: needs {layout.size} bytes, has {len(buffer)}")
    words: tuple[int, ...] = layout.unpack_from(buffer)
    if words[0] != opcode:
        raise BadPacket(f"opcode {words[0]:#04x} is not {opcode.name}")
    return words


_SACK = _layout(BTH, SETH, CC_STATE)
_NACK = _layout(BTH, NETH)
_PROBE = _layout(BTH, PETH)
_ACK = _layout(BTH, AETH)
_REQUEST = _layout(BTH, ERTH)
_RESPONSE = _layout(BTH, EETH)
SACK_BYTES = _SACK.size


@dataclass(slots=True)
class Sack:
    """Reliability SACK (0xDC).

    `ack_psn_offset` is signed: triggering PSN minus `cack_psn`. With `pr` it is the probe's id.
    `rcvd_bytes` counts units of 256 modulo 2^24, `mpr` units of 128 PSNs, 0 with dynamic MPR off.
    """

    dqp: int
    cack_psn: int
    rtx: bool = False
    m: int = SackMark.NONE
    pr: bool = False
    ack_psn_offset: int = 0
    entropy: int = 0
    spdcid: int = 0
    dpdcid: int = 0
    mpr: int = 0
    sack_offset: int = 0
    sack_bitmap: int = 0
    tx_timestamp: int = 0
    ooo_count: int = 0
    restore_cwnd: bool = False
    rcv_cwnd_pen: int = 0
    rcvd_bytes: int = 0

    def encode(self) -> bytes:
        """Return BTH, SETH and CC_STATE: 48 bytes."""
        return _SACK.pack(
            Opcode.SACK,
            0,
            P_KEY_DEFAULT,
            self.dqp,
            (FLAG_RTX if self.rtx else 0) | self.cack_psn,
            (self.m << 5) | (self.pr << 1),
            self.ack_psn_offset & 0xFFFF,
            self.entropy,
            self.spdcid,
            self.dpdcid,
            self.cack_psn,
            CC_TYPE_NSCC << 4,
            self.mpr,
            self.sack_offset & 0xFFFF,
            self.sack_bitmap,
            self.tx_timestamp,
            self.ooo_count,
            (self.restore_cwnd << 31) | (self.rcv_cwnd_pen << 24) | self.rcvd_bytes,
        )

    @classmethod
    def decode_untrusted(cls, buffer: Buffer) -> Self:
        """Read a SACK.

        Raises:
            BadPacket: too short, another opcode, or a congestion type that is not NSCC's.
        """
        w = _words_untrusted(_SACK, Opcode.SACK, buffer)
        if w[11] >> 4 != CC_TYPE_NSCC:
            raise BadPacket(f"SACK: cc_type {w[11] >> 4} is not NSCC")
        pr = bool(w[5] & 2)
        return cls(
            dqp=w[3] & 0xFFFFFF,
            cack_psn=w[10] & 0xFFFFFF,
            rtx=bool(w[4] & FLAG_RTX),
            m=(w[5] >> 5) & 3,
            pr=pr,
            ack_psn_offset=w[6] if pr else _signed16(w[6]),
            entropy=w[7],
            spdcid=w[8],
            dpdcid=w[9],
            mpr=w[12],
            sack_offset=_signed16(w[13]),
            sack_bitmap=w[14],
            tx_timestamp=w[15],
            ooo_count=w[16] & 0x7FFF,
            restore_cwnd=bool(w[17] >> 31),
            rcv_cwnd_pen=(w[17] >> 24) & 0x7F,
            rcvd_bytes=w[17] & 0xFFFFFF,
        )


def _signed16(value: int) -> int:
    return value - 0x10000 if value & 0x8000 else value


@dataclass(slots=True)
class Nack:
    """Reliability NACK (0xDD): packet `nack_psn` was refused for `reason` (may be unknown)."""

    dqp: int
    nack_psn: int
    reason: int
    vendor_info: int = 0
    entropy: int = 0
    spdcid: int = 0
    dpdcid: int = 0
    tx_timestamp: int = 0
    rtx: bool = False

    def encode(self) -> bytes:
        """Return BTH and NETH: 32 bytes."""
        return _NACK.pack(
            Opcode.NACK,
            0,
            P_KEY_DEFAULT,
            self.dqp,
            (FLAG_RTX if self.rtx else 0) | self.nack_psn,
            0,
            self.reason,
            self.vendor_info,
            self.entropy,
            self.spdcid,
            self.dpdcid,
            self.nack_psn,
            CC_TYPE_NACK << 4,
            0,
            self.tx_timestamp,
        )

    @classmethod
    def decode_untrusted(cls, buffer: Buffer) -> Self:
        """Read a NACK.

        Raises:
            BadPacket: too short or another opcode.
        """
        w = _words_untrusted(_NACK, Opcode.NACK, buffer)
        return cls(
            dqp=w[3] & 0xFFFFFF,
            nack_psn=w[11] & 0xFFFFFF,
            reason=w[6],
            vendor_info=w[7],
            entropy=w[8],
            spdcid=w[9],
            dpdcid=w[10],
            tx_timestamp=w[14],
            rtx=bool(w[4] & FLAG_RTX),
        )


@dataclass(slots=True)
class Probe:
    """Reliability Probe Request (0xDE): consumes no PSN, is answered by a SACK with `pr` set."""

    dqp: int
    probe_id: int
    spdcid: int = 0
    dpdcid: int = 0
    tx_timestamp: int = 0

    def encode(self) -> bytes:
        """Return BTH and PETH: 28 bytes."""
        return _PROBE.pack(
            Opcode.PROBE,
            0,
            P_KEY_DEFAULT,
            self.dqp,
            0,
            0,
            0,
            0,
            self.probe_id,
            0,
            self.spdcid,
            self.dpdcid,
            self.tx_timestamp,
            TIMESTAMP_WORD,
        )

    @classmethod
    def decode_untrusted(cls, buffer: Buffer) -> Self:
        """Read a probe.

        Raises:
            BadPacket: too short or another opcode.
        """
        w = _words_untrusted(_PROBE, Opcode.PROBE, buffer)
        return cls(
            dqp=w[3] & 0xFFFFFF,
            probe_id=w[8],
            spdcid=w[10],
            dpdcid=w[11],
            tx_timestamp=w[12],
        )


@dataclass(slots=True)
class Ack:
    """Acknowledge (0xD1): Transport ACK or NAK, by `syndrome`; `msn` counts completed messages."""

    dqp: int
    psn: int
    syndrome: int = Syndrome.ACK
    msn: int = 0

    def encode(self) -> bytes:
        """Return BTH and AETH: 16 bytes."""
        return _ACK.pack(
            Opcode.ACKNOWLEDGE,
            0,
            P_KEY_DEFAULT,
            self.dqp,
            self.psn,
            (self.syndrome << 24) | self.msn,
        )

    @classmethod
    def decode_untrusted(cls, buffer: Buffer) -> Self:
        """Read a Transport ACK or NAK.

        Raises:
            BadPacket: too short or another opcode.
        """
        w = _words_untrusted(_ACK, Opcode.ACKNOWLEDGE, buffer)
        return cls(
            dqp=w[3] & 0xFFFFFF,
            psn=w[4] & 0xFFFFFF,
            syndrome=w[5] >> 24,
            msn=w[5] & 0xFFFFFF,
        )


@dataclass(slots=True)
class EndpointRequest:
    """Endpoint Request (0xD8) to QP 2: an EV probe or a port status update."""

    request_id: int
    op: int
    port_status_mask: int = 0
    tx_timestamp: int = 0

    def encode(self) -> bytes:
        """Return BTH and ERTH: 28 bytes."""
        return _REQUEST.pack(
            Opcode.ENDPOINT_REQUEST,
            0,
            P_KEY_DEFAULT,
            ENDPOINT_QP,
            self.request_id,
            self.op,
            0,
            0,
            self.port_status_mask,
            0,
            self.tx_timestamp,
            TIMESTAMP_WORD,
        )

    @classmethod
    def decode_untrusted(cls, buffer: Buffer) -> Self:
        """Read an endpoint request.

        Raises:
            BadPacket: too short, another opcode, or not addressed to QP 2.
        """
        w = _words_untrusted(_REQUEST, Opcode.ENDPOINT_REQUEST, buffer)
        _endpoint_qp_untrusted(w)
        return cls(
            request_id=w[4] & 0xFFFF,
            op=w[5] & 3,
            port_status_mask=w[8],
            tx_timestamp=w[10],
        )


@dataclass(slots=True)
class EndpointResponse:
    """Endpoint Response (0xD9): echoes request id, op and timestamp."""

    request_id: int
    op: int
    tx_timestamp: int = 0

    def encode(self) -> bytes:
        """Return BTH and EETH: 48 bytes."""
        return _RESPONSE.pack(
            Opcode.ENDPOINT_RESPONSE,
            0,
            P_KEY_DEFAULT,
            ENDPOINT_QP,
            self.request_id,
            self.op << 2,
            0,
            0,
            0,
            0,
            self.tx_timestamp,
            0,
            0,
        )

    @classmethod
    def decode_untrusted(cls, buffer: Buffer) -> Self:
        """Read an endpoint response.

        Raises:
            BadPacket: too short, another opcode, or not addressed to QP 2.
        """
        w = _words_untrusted(_RESPONSE, Opcode.ENDPOINT_RESPONSE, buffer)
        _endpoint_qp_untrusted(w)
        return cls(request_id=w[4] & 0xFFFF, op=(w[5] >> 2) & 3, tx_timestamp=w[10])


def _endpoint_qp_untrusted(words: tuple[int, ...]) -> None:
    if words[3] & 0xFFFFFF != ENDPOINT_QP:
        raise BadPacket(f"endpoint operation for QP {words[3] & 0xFFFFFF:#x}, not 0x000002")
