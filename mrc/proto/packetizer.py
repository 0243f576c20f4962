"""From a stretch of a message to the bytes of a run: headers, payload, seal, iCRC.

Whole packets are written as numpy columns; a short or immediate-carrying last packet is written by
itself behind them. The first can be followed by the second in one run because only the last segment
of a run may be shorter.
"""

from __future__ import annotations

import struct

import numpy as np

from mrc.proto.work import WorkRequest
from mrc.wire.control import (
    FLAG_RTX,
    FLAG_TS,
    P_KEY_DEFAULT,
    TIMESTAMP_WORD,
)
from mrc.wire.fields import IMMDT, Opcode
from mrc.wire.icrc import ICRC_BYTES, Address, flow_seed, icrc
from mrc.wire.psn import to_wire
from mrc.wire.runs import (
    HEADER_WORDS,
    OVERHEAD_BYTES,
    SEAL_BYTES,
    RunBuffer,
    SegmentViews,
    packets_max,
)
from mrc.wire.seal import Sealer
from mrc.wire.writes import Write, opcode_of

_ROW = struct.Struct(f"={HEADER_WORDS}I")
_ICRC = struct.Struct("<I")
_MIDDLE_WORD = (Opcode.WRITE_MIDDLE << 24) | P_KEY_DEFAULT
_LOW_32 = 0xFFFFFFFF


class Packetizer:
    """Builds the runs of one queue pair in a buffer that it is given."""

    def __init__(self, *, mtu: int, remote_qpn: int, icrc: bool, sealer: Sealer | None) -> None:
        self.mtu = mtu
        self._overhead_bytes = OVERHEAD_BYTES + (SEAL_BYTES if sealer is not None else 0)
        self.segment_bytes = mtu + self._overhead_bytes
        self.packets_max = packets_max(self.segment_bytes)
        self.sealed = sealer is not None
        self._sealer = sealer
        self._remote_qpn = remote_qpn
        self._icrc = icrc
        self._row = np.empty(HEADER_WORDS, np.uint32)

    def stretch(self, work: WorkRequest, psn: int, limit: int) -> int:
        """Return how many packets of a message, from this PSN on, may share a run: 1 to `limit`.

        A last packet that is longer than the others (whole payload and immediate) goes alone, and
        the low half of the address must not wrap inside a run.
        """
        count = min(limit, work.last_psn - psn + 1, self.packets_max)
        if count > 1 and work.imm is not None and psn + count - 1 == work.last_psn:
            tail = self._last_bytes(work)
            count -= tail + IMMDT.size > self.mtu
        return max(1, min(count, self.packets_to_carry(work, psn)))

    def packets_to_carry(self, work: WorkRequest, psn: int) -> int:
        """Return how many packets from this one on begin before the low address half wraps."""
        low = (work.va + (psn - work.first_psn) * self.mtu) & _LOW_32
        return (_LOW_32 - low) // self.mtu + 1

    def _last_bytes(self, work: WorkRequest) -> int:
        """Return the payload of a message's last packet."""
        return len(work.data) - (work.packets - 1) * self.mtu

    def packet_bytes(self, work: WorkRequest, psn: int) -> int:
        """Return the UDP payload of one packet of a message."""
        if psn < work.last_psn:
            return self.segment_bytes
        payload = self._last_bytes(work)
        padded = payload + (-payload & 3)
        return padded + self._overhead_bytes + (IMMDT.size if work.imm is not None else 0)

    def build(
        self,
        run: RunBuffer,
        work: WorkRequest,
        psn: int,
        count: int,
        *,
        timestamp: int,
        rtx: bool,
        ack_request: bool,
        source: Address,
        destination: Address,
    ) -> int:
        """Write `count` packets of a message into the buffer; return the bytes of the run."""
        has_tail = psn + count - 1 == work.last_psn and (
            work.imm is not None or len(work.data) != work.packets * self.mtu
        )
        whole = count - has_tail
        if whole:
            views = run.views(self.segment_bytes, sealed=self._sealer is not None)
            self._write_headers(views, work, psn, whole, timestamp=timestamp, rtx=rtx)
            if ack_request and not has_tail:
                views.request_ack(whole - 1)
            self._write_payloads(views, work, psn, whole)
            seed = flow_seed(source, destination, self.segment_bytes) if self._icrc else None
            views.write_icrcs(whole, seed)
        end = whole * self.segment_bytes
        if not has_tail:
            return end
        header = self._tail_header(work, timestamp=timestamp, rtx=rtx, ack_request=ack_request)
        return end + self._put_tail(run, end, header, work, source, destination)

    def _write_headers(
        self,
        views: SegmentViews,
        work: WorkRequest,
        psn: int,
        count: int,
        *,
        timestamp: int,
        rtx: bool,
    ) -> None:
        va = work.va + (psn - work.first_psn) * self.mtu
        _ROW.pack_into(
            self._row.data,
            0,
            _MIDDLE_WORD,
            self._remote_qpn,
            FLAG_TS | (FLAG_RTX if rtx else 0) | to_wire(psn),
            (work.rqmsn & 0xFFFF) << 16 | (work.msn & 0xFFFF),
            timestamp << 16 | TIMESTAMP_WORD,
            va >> 32,
            va & _LOW_32,
            work.r_key,
            len(work.data),
        )
        first, end = psn == work.first_psn, psn + count - 1 == work.last_psn
        views.write_headers(
            count,
            self._row,
            opcode_of(first=first, last=end and count == 1, immediate=False),
            opcode_of(first=first and count == 1, last=end, immediate=False),
        )

    def _write_payloads(self, views: SegmentViews, work: WorkRequest, psn: int, count: int) -> None:
        """Copy payloads behind their headers, which a seal covers: they must be written before."""
        offset, mtu = (psn - work.first_psn) * self.mtu, self.mtu
        stretch = work.data[offset : offset + count * mtu]
        if self._sealer is None:
            np.copyto(views.payloads[:count], stretch.reshape(count, mtu))
            return
        plain = stretch.data
        self._sealer.seal_rows(views, [plain[i * mtu : (i + 1) * mtu] for i in range(count)])

    def _tail_header(
        self, work: WorkRequest, *, timestamp: int, rtx: bool, ack_request: bool
    ) -> bytes:
        payload = self._last_bytes(work)
        return Write(
            opcode=opcode_of(first=work.packets == 1, last=True, immediate=work.imm is not None),
            dqp=self._remote_qpn,
            psn=to_wire(work.last_psn),
            va=work.va + len(work.data) - payload,
            r_key=work.r_key,
            dma_length=len(work.data),
            rqmsn=work.rqmsn & 0xFFFF,
            msn=work.msn & 0xFFFF,
            ack_request=ack_request,
            rtx=rtx,
            tx_timestamp=timestamp,
            imm=work.imm,
            pad=-payload & 3,
        ).encode()

    def _put_tail(
        self,
        run: RunBuffer,
        start: int,
        header: bytes,
        work: WorkRequest,
        source: Address,
        destination: Address,
    ) -> int:
        payload = work.data[(work.packets - 1) * self.mtu :]
        plain = (
            payload.data if not -len(payload) & 3 else payload.tobytes() + bytes(-len(payload) & 3)
        )
        packet = header + (plain if self._sealer is None else self._sealer.seal(header, plain))
        end = start + len(packet)
        run.bytes[start:end] = packet
        value = 0
        if self._icrc:
            seed = flow_seed(source, destination, len(packet) + ICRC_BYTES)
            value = icrc(run.memory[start:end], seed)
        _ICRC.pack_into(run.bytes, end, value)
        return len(packet) + ICRC_BYTES
