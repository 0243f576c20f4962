"""The receiving half of a queue pair: data packets in, bytes placed, SACKs, NACKs and ACKs out.

Each packet says where its payload belongs, so it is placed the moment it arrives, in any order.
What is delivered in order are completions: messages counted, immediates handed over when everything
before them is there.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mrc.proto.config import PSNS_PER_MPR, Config, QpAttributes
from mrc.proto.events import Event, ImmediateReceived
from mrc.proto.memory import MemoryTable
from mrc.proto.nscc import NOMINAL_OVERHEAD_BYTES, RCVD_UNIT_BYTES, UDP_HEADER_BYTES
from mrc.proto.statistics import DropReason, Drops, ResponderStatistics
from mrc.proto.window import Advance, ReceiveWindow
from mrc.wire.control import Ack, Nack, NackReason, Probe, Sack, SackMark, Syndrome
from mrc.wire.psn import from_wire, to_wire
from mrc.wire.writes import Write

_SACK_PACKET_BYTES_MIN = 1024
"""What a small packet counts towards the SACK trigger (MRC 1.0 §7.5.2, UET ACK_Gen_Min_Pkt_Add)."""
SACK_SPACING_NS = 200_000
"""Least time between SACKs that volume alone causes; at 650 Mbit/s the byte trigger is as long."""
_SACK_TRIGGERS_MAX = 16
"""Byte triggers after which a SACK goes out whatever the time."""
_PENALTY_HALF = 64
T = TypeVar("T")
REPLIES_MAX = 256
"""SACK requests and NACKs waiting to be sent, about 100 bytes each; older ones give way."""


class Arrival(NamedTuple):
    """What is known of a packet, or of the packets of a run, beside headers and payload."""

    entropy: int
    marked: bool
    udp_payload_bytes: int
    at_ns: int


class DataHeader(NamedTuple):
    """The headers that a run of data packets shares, from its first packet."""

    psn: int
    va: int
    r_key: int
    dma_length: int
    rtx: bool
    ack_request: bool
    tx_timestamp: int
    last_of_message: bool


@dataclass(slots=True)
class _SackRequest:
    """A SACK to be sent: it is built when it leaves, with what is known then."""

    psn: int
    entropy: int
    tx_timestamp: int
    rtx: bool
    mark: int
    probe_id: int | None
    plain: bool


@dataclass(slots=True)
class _Immediate:
    imm: int
    r_key: int
    va: int
    length: int


@dataclass(slots=True)
class _Counters:
    placed_bytes: int = 0
    packets: int = 0
    duplicates: int = 0
    trimmed: int = 0
    marked: int = 0
    messages: int = 0
    immediates: int = 0
    sacks: int = 0
    nacks: int = 0
    ooo_max: int = 0


class Responder:
    """Receives the writes of one queue pair."""

    def __init__(
        self,
        *,
        config: Config,
        qpn: int,
        remote: QpAttributes,
        memory: MemoryTable,
        drops: Drops,
        events: deque[Event],
    ) -> None:
        """Make a responder that expects the peer's first PSN first.

        Args:
            config: tracking window, SACK trigger, trim NACKs, how many immediates may be held.
            qpn: own queue pair number.
            remote: the peer's attributes: its number and first PSN.
            memory: the regions the peer may write to.
            drops: where refused packets are counted.
            events: where immediates go.
        """
        self._config = config
        self._qpn = qpn
        self._remote_qpn = remote.qpn
        self._memory = memory
        self._drops = drops
        self._events = events
        self.window = ReceiveWindow(remote.first_psn, config.mpr_psns)
        self._trigger_bytes = 0
        self._sacked_ns = 0
        self._rcvd_bytes = 0
        self._requests: list[_SackRequest] = []
        self._nacks: list[Nack] = []
        self._ack_wanted = False
        self._nak: Ack | None = None
        self._immediates: dict[int, _Immediate] = {}
        self._immediates_held = 0
        self._penalised = False
        self._messages_done = 0
        self._counters = _Counters()

    # Data.

    def receive_run(
        self, header: DataHeader, payloads: NDArray[np.uint8], arrival: Arrival
    ) -> None:
        """Take whole packets of one message that follow each other.

        Args:
            header: of the first packet, but ack request and end of message of any of them.
            payloads: one row per packet.
            arrival: `udp_payload_bytes` is that of each packet.
        """
        count, payload_bytes = payloads.shape
        psn = from_wire(header.psn, self.window.cack + 1)
        if not self.window.is_new(psn, count):
            self._receive_singly(header, payloads, arrival, psn)
            return
        size = count * payload_bytes
        target = self._memory.find(header.r_key, header.va, size, self._qpn)
        if target is None or size > header.dma_length:
            self._refuse(psn, Syndrome.NAK_REMOTE_ACCESS)
            return
        np.copyto(target.reshape(count, payload_bytes), payloads)
        self._accept(header, psn, count, size, arrival)

    def _receive_singly(
        self, header: DataHeader, payloads: NDArray[np.uint8], arrival: Arrival, psn: int
    ) -> None:
        count, payload_bytes = payloads.shape
        for i in range(count):
            self._receive_one(
                header._replace(
                    psn=to_wire(psn + i),
                    va=header.va + i * payload_bytes,
                    last_of_message=header.last_of_message and i == count - 1,
                ),
                payloads[i],
                arrival,
                None,
            )

    def receive_packet(
        self, write: Write, payload: NDArray[np.uint8], arrival: Arrival, *, last: bool
    ) -> None:
        """Take one data packet of any form."""
        header = DataHeader(
            write.psn,
            write.va,
            write.r_key,
            write.dma_length,
            write.rtx,
            write.ack_request,
            write.tx_timestamp or 0,
            last,
        )
        self._receive_one(header, payload, arrival, write.imm)

    def _receive_one(
        self,
        header: DataHeader,
        payload: NDArray[np.uint8],
        arrival: Arrival,
        imm: int | None,
    ) -> None:
        window = self.window
        psn = from_wire(header.psn, window.cack + 1)
        if window.beyond(psn):
            self._nack(psn, header, arrival, NackReason.PSN_OOR_WINDOW)
            return
        if window.has(psn):
            self._counters.duplicates += 1
            self._request_sack(psn, header, arrival, plain=False)
            self._ack_wanted |= psn <= window.cack
            return
        if imm is not None and self._immediates_held >= self._config.immediates_held_max:
            self._nack(psn, header, arrival, NackReason.NO_RESOURCE)
            return
        target = self._memory.find(header.r_key, header.va, len(payload), self._qpn)
        # A message with immediate data ends with this packet, so it begins its length before.
        start = header.va + len(payload) - header.dma_length
        whole = target
        if start != header.va and imm is not None:
            whole = self._memory.find(header.r_key, start, header.dma_length, self._qpn)
        if target is None or whole is None or len(payload) > header.dma_length:
            self._refuse(psn, Syndrome.NAK_REMOTE_ACCESS)
            return
        target[:] = payload
        if imm is not None:
            self._immediates[psn] = _Immediate(imm, header.r_key, start, header.dma_length)
        self._accept(header, psn, 1, len(payload), arrival)

    def _accept(
        self, header: DataHeader, psn: int, count: int, size: int, arrival: Arrival
    ) -> None:
        """Enter new packets whose bytes are placed, complete what they complete, owe a SACK."""
        window, counters = self.window, self._counters
        opened_gap = psn > window.max_psn + 1
        filled = window.ooo_count > 0 and psn <= window.max_psn
        counters.packets += count
        counters.marked += count if arrival.marked else 0
        counters.placed_bytes += size
        nominal = arrival.udp_payload_bytes + UDP_HEADER_BYTES + NOMINAL_OVERHEAD_BYTES
        self._rcvd_bytes += count * nominal
        advance = window.add(psn, count, last_of_message=header.last_of_message)
        if advance is not None:
            self._complete(advance)
        counters.ooo_max = max(counters.ooo_max, window.ooo_count)
        self._trigger_bytes += count * max(size // count, _SACK_PACKET_BYTES_MIN)
        if opened_gap or header.rtx or arrival.marked:
            self._request_sack(psn + count - 1, header, arrival, plain=False)
        elif header.ack_request or filled or self._volume_due(arrival.at_ns):
            self._request_sack(psn + count - 1, header, arrival, plain=True)

    def _volume_due(self, now_ns: int) -> bool:
        """Tell whether enough has come for a SACK unasked.

        At high rates the trigger alone would answer every run; there, a SACK in a while is enough,
        because a sender whose window fills asks for one.
        """
        if self._trigger_bytes <= self._config.sack_bytes:
            return False
        return (
            now_ns - self._sacked_ns >= SACK_SPACING_NS
            or self._trigger_bytes > _SACK_TRIGGERS_MAX * self._config.sack_bytes
        )

    def _complete(self, advance: Advance) -> None:
        if advance.messages:
            self._messages_done += advance.messages
            self._counters.messages += advance.messages
            self._ack_wanted = True
        if not self._immediates:
            return
        for psn in sorted(p for p in self._immediates if p <= advance.last):
            done = self._immediates.pop(psn)
            self._immediates_held += 1
            self._counters.immediates += 1
            self._events.append(
                ImmediateReceived(self._qpn, done.imm, done.r_key, done.va, done.length)
            )

    def release_immediates(self, count: int) -> None:
        """The application took that many immediates: as many more may come."""
        self._immediates_held -= count

    def receive_trimmed(self, write: Write, arrival: Arrival, *, last_hop: bool) -> None:
        """Take what is left of a trimmed packet: a hint, nothing more.

        If its PSN has arrived otherwise a SACK says so, else a NACK asks for it again.
        """
        psn = from_wire(write.psn, self.window.cack + 1)
        header = DataHeader(write.psn, 0, 0, 0, write.rtx, False, write.tx_timestamp or 0, False)
        self._counters.trimmed += 1
        if self.window.beyond(psn):
            self._drops[DropReason.OUT_OF_WINDOW] += 1
        elif self.window.has(psn):
            # Nothing forged shall push out what is owed to packets and probes.
            if len(self._requests) < REPLIES_MAX // 2:
                self._request_sack(psn, header, arrival, plain=False)
        elif self._config.trim_nack:
            reason = NackReason.TRIMMED_LASTHOP if last_hop else NackReason.TRIMMED
            self._nack(psn, header, arrival, reason)

    def receive_probe(self, probe: Probe, arrival: Arrival) -> None:
        """Answer a reliability probe with a SACK and, if messages are done, a Transport ACK."""
        header = DataHeader(0, 0, 0, 0, False, False, probe.tx_timestamp, False)
        self._request_sack(self.window.cack, header, arrival, plain=False, probe_id=probe.probe_id)
        self._ack_wanted |= self._messages_done > 0

    # Replies.

    def _request_sack(
        self,
        psn: int,
        header: DataHeader,
        arrival: Arrival,
        *,
        plain: bool,
        probe_id: int | None = None,
    ) -> None:
        """Owe a SACK. A plain one, caused by volume alone, replaces a plain one before it."""
        self._trigger_bytes = 0
        self._sacked_ns = arrival.at_ns
        if plain and self._requests and self._requests[-1].plain:
            self._requests.pop()
        _owe(
            self._requests,
            _SackRequest(
                psn,
                arrival.entropy,
                header.tx_timestamp,
                header.rtx,
                SackMark.SKIP_ONCE if arrival.marked else SackMark.NONE,
                probe_id,
                plain,
            ),
        )

    def _nack(self, psn: int, header: DataHeader, arrival: Arrival, reason: NackReason) -> None:
        self._counters.nacks += 1
        _owe(
            self._nacks,
            Nack(
                dqp=self._remote_qpn,
                nack_psn=to_wire(psn),
                reason=reason,
                entropy=arrival.entropy,
                spdcid=self._qpn & 0xFFFF,
                dpdcid=self._remote_qpn & 0xFFFF,
                tx_timestamp=header.tx_timestamp,
            ),
        )

    def _refuse(self, psn: int, syndrome: Syndrome) -> None:
        """Owe a Transport NAK: the peer's queue pair will fail, ours takes nothing more of it."""
        self._drops[DropReason.MALFORMED] += 1
        if self._nak is None:
            self._nak = Ack(
                dqp=self._remote_qpn,
                psn=to_wire(psn),
                syndrome=syndrome,
                msn=self._messages_done & 0xFFFFFF,
            )

    @property
    def owes_reply(self) -> bool:
        """Tell whether `replies` would return something."""
        return bool(self._requests or self._nacks or self._ack_wanted or self._nak)

    def replies(self) -> list[bytes]:
        """Return the control packets owed, without iCRC, in the order to send them."""
        packets = [nack.encode() for nack in self._nacks]
        packets += [self._sack(request).encode() for request in self._requests]
        if self._nak is not None:
            packets.append(self._nak.encode())
        elif self._ack_wanted and self._messages_done:
            packets.append(
                Ack(
                    dqp=self._remote_qpn,
                    psn=to_wire(self.window.cack),
                    msn=self._messages_done & 0xFFFFFF,
                ).encode()
            )
        self._nacks.clear()
        self._requests.clear()
        self._nak = None
        self._ack_wanted = False
        return packets

    def _sack(self, request: _SackRequest) -> Sack:
        window = self.window
        base, bitmap = window.bitmap()
        self._counters.sacks += 1
        penalty = self._penalty()
        restore = self._penalised and not penalty
        self._penalised = penalty > 0
        offset = request.probe_id
        return Sack(
            dqp=self._remote_qpn,
            cack_psn=to_wire(window.cack),
            rtx=request.rtx,
            m=request.mark,
            pr=offset is not None,
            ack_psn_offset=_clamp16(request.psn - window.cack) if offset is None else offset,
            entropy=request.entropy,
            spdcid=self._qpn & 0xFFFF,
            dpdcid=self._remote_qpn & 0xFFFF,
            mpr=window.window_psns // PSNS_PER_MPR if self._config.dynamic_mpr else 0,
            sack_offset=base - window.cack,
            sack_bitmap=bitmap,
            tx_timestamp=request.tx_timestamp,
            ooo_count=min(window.ooo_count, 0x7FFF),
            restore_cwnd=restore,
            rcv_cwnd_pen=penalty,
            rcvd_bytes=-(-self._rcvd_bytes // RCVD_UNIT_BYTES) & 0xFFFFFF,
        )

    def _penalty(self) -> int:
        """Slow the peer down when the application does not take its immediates."""
        crowded = 2 * self._immediates_held > self._config.immediates_held_max
        return _PENALTY_HALF if crowded else 0

    def statistics(self) -> ResponderStatistics:
        """Return a snapshot of the counters."""
        c = self._counters
        return ResponderStatistics(
            payload_bytes_placed=c.placed_bytes,
            packets_received=c.packets,
            packets_duplicate=c.duplicates,
            packets_trimmed=c.trimmed,
            packets_marked=c.marked,
            messages_done=c.messages,
            immediates=c.immediates,
            sacks=c.sacks,
            nacks=c.nacks,
            out_of_order_max=c.ooo_max,
        )


def _owe(replies: list[T], reply: T) -> None:
    """Add a reply to be sent; when there are too many, the oldest gives way."""
    if len(replies) >= REPLIES_MAX:
        del replies[0]
    replies.append(reply)


def _clamp16(value: int) -> int:
    """Keep a signed offset in 16 bits; only ancient duplicates lie further away."""
    return max(-0x8000, min(0x7FFF, value))
