"""RDMA WRITE packets, one by one.

A `Write` is the header of one data packet as a value; `mrc.wire.runs` does the same for whole runs.
Every packet of a message carries RETH with its own address, so packets may arrive in any order.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Self

from mrc.wire.control import (
    BTH_BYTES,
    FLAG_ACK_REQUEST,
    FLAG_RTX,
    FLAG_TS,
    P_KEY_DEFAULT,
    TIMESTAMP_WORD,
)
from mrc.wire.fields import (
    BTH,
    IMMDT,
    IMMEDIATE_OPCODES,
    METH,
    RETH,
    TSETH,
    WRITE_OPCODES,
    BadPacket,
    Buffer,
    Opcode,
)

_WITH_TSETH = struct.Struct(">" + BTH.format + METH.format + TSETH.format + RETH.format)
_BTH_METH = struct.Struct(">" + BTH.format + METH.format)
_TSETH = struct.Struct(">" + TSETH.format)
_RETH = struct.Struct(">" + RETH.format)
_IMMDT = struct.Struct(">" + IMMDT.format)

HEADER_BYTES = BTH.size + METH.size + TSETH.size + RETH.size
"""Header of a write packet with TSETH and without immediate data."""


@dataclass(slots=True)
class Write:
    """Headers of one WRITE packet; `tx_timestamp` is None when the packet has no TSETH.

    `va` is the address of this packet's first byte, `dma_length` the bytes of the whole message.
    """

    opcode: int
    dqp: int
    psn: int
    va: int
    r_key: int
    dma_length: int
    rqmsn: int = 0
    msn: int = 0
    ack_request: bool = False
    rtx: bool = False
    tx_timestamp: int | None = 0
    imm: int | None = None
    pad: int = 0
    p_key: int = P_KEY_DEFAULT

    @property
    def header_bytes(self) -> int:
        """Bytes before the payload."""
        return (
            HEADER_BYTES
            - (0 if self.tx_timestamp is not None else TSETH.size)
            + (IMMDT.size if self.imm is not None else 0)
        )

    def encode(self) -> bytes:
        """Return the headers, ready for the payload to follow."""
        flags = (
            (FLAG_ACK_REQUEST if self.ack_request else 0)
            | (FLAG_RTX if self.rtx else 0)
            | (FLAG_TS if self.tx_timestamp is not None else 0)
        )
        bth_meth = (
            self.opcode,
            self.pad << 4,
            self.p_key,
            self.dqp,
            flags | self.psn,
            self.rqmsn,
            self.msn,
        )
        reth = self.va, self.r_key, self.dma_length
        if self.tx_timestamp is not None:
            packet = _WITH_TSETH.pack(*bth_meth, self.tx_timestamp, TIMESTAMP_WORD, *reth)
        else:
            packet = _BTH_METH.pack(*bth_meth) + _RETH.pack(*reth)
        return packet if self.imm is None else packet + _IMMDT.pack(self.imm)

    @classmethod
    def decode_untrusted(cls, buffer: Buffer) -> Self:
        """Read the headers of a data packet, which may be trimmed: the payload is not looked at.

        Raises:
            BadPacket: not a write opcode, or shorter than its headers.
        """
        if len(buffer) < BTH_BYTES + METH.size or buffer[0] not in WRITE_OPCODES:
            raise BadPacket("not a WRITE packet, or shorter than BTH and METH")
        opcode, flags, p_key, dqp, psn_word, rqmsn, msn = _BTH_METH.unpack_from(buffer)
        offset = _BTH_METH.size
        has_tseth, has_imm = bool(psn_word & FLAG_TS), opcode in IMMEDIATE_OPCODES
        needed = offset + TSETH.size * has_tseth + RETH.size + IMMDT.size * has_imm
        if len(buffer) < needed:
            raise BadPacket(f"WRITE headers need {needed} bytes, has {len(buffer)}")
        timestamp = None
        if has_tseth:
            timestamp = _TSETH.unpack_from(buffer, offset)[0]
            offset += TSETH.size
        va, r_key, dma_length = _RETH.unpack_from(buffer, offset)
        imm = _IMMDT.unpack_from(buffer, offset + RETH.size)[0] if has_imm else None
        return cls(
            opcode=opcode,
            dqp=dqp & 0xFFFFFF,
            psn=psn_word & 0xFFFFFF,
            va=va,
            r_key=r_key,
            dma_length=dma_length,
            rqmsn=rqmsn,
            msn=msn,
            ack_request=bool(psn_word & FLAG_ACK_REQUEST),
            rtx=bool(psn_word & FLAG_RTX),
            tx_timestamp=timestamp,
            imm=imm,
            pad=(flags >> 4) & 3,
            p_key=p_key,
        )


def opcode_of(*, first: bool, last: bool, immediate: bool) -> Opcode:
    """Return the write opcode for a packet at this position of its message."""
    if last and immediate:
        return Opcode.WRITE_ONLY_IMMEDIATE if first else Opcode.WRITE_LAST_IMMEDIATE
    if last:
        return Opcode.WRITE_ONLY if first else Opcode.WRITE_LAST
    return Opcode.WRITE_FIRST if first else Opcode.WRITE_MIDDLE
