"""From datagrams to queue pairs: every check that comes before a packet is believed.

The order is fixed: length before field, iCRC before meaning, queue pair before seal, seal before
PSN, window before bitmap, key and bounds before any byte is placed. What fails is dropped and
counted by reason; feedback for a queue pair that has sent nothing yet is ignored.

Of a queue pair with a seal, a packet that does not open changes nothing. The exception is a trimmed
one, which cannot open: it is answered with a request to send it again, and that is all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mrc.proto.qp import QpState, QueuePair
from mrc.proto.requestor import Requestor
from mrc.proto.responder import Arrival, DataHeader
from mrc.proto.runs import ECN_CE, ReceivedRun, SockAddr
from mrc.proto.statistics import DropReason
from mrc.wire.control import (
    BTH_BYTES,
    FLAG_RTX,
    FLAG_TS,
    Ack,
    EndpointOp,
    EndpointRequest,
    EndpointResponse,
    Nack,
    Probe,
    Sack,
)
from mrc.wire.fields import IMMEDIATE_OPCODES, WRITE_OPCODES, BadPacket, Buffer, Opcode
from mrc.wire.icrc import ICRC_BYTES, Address, check_icrc_untrusted, flow_seed
from mrc.wire.runs import (
    SEAL_BYTES,
    U8,
    WORD_BTH,
    WORD_DQP,
    WORD_LENGTH,
    WORD_PSN,
    WORD_R_KEY,
    WORD_TIMESTAMP,
    WORD_VA_HIGH,
    WORD_VA_LOW,
    SegmentViews,
    split_runs,
)
from mrc.wire.seal import Replayed, Unauthentic
from mrc.wire.writes import Write

if TYPE_CHECKING:
    from mrc.proto.endpoint import Endpoint

_RUN_OPCODES = frozenset(WRITE_OPCODES - IMMEDIATE_OPCODES)
_LAST_OPCODES = (Opcode.WRITE_LAST, Opcode.WRITE_ONLY)
_PLAIN_BTH = 0x0000FFFF
"""Flags and p_key of every packet a run may hold: no pad, version 0, the default partition."""
_MASK_24 = 0xFFFFFF
_PSN_WORD_RESERVED = 0x4F000000
_ENDINGS = frozenset(
    (
        Opcode.WRITE_LAST,
        Opcode.WRITE_ONLY,
        Opcode.WRITE_LAST_IMMEDIATE,
        Opcode.WRITE_ONLY_IMMEDIATE,
    )
)


class Dispatcher:
    """Reads what comes from the network on behalf of one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._control: dict[int, Callable[[QueuePair, memoryview, int], None]] = {
            Opcode.SACK: self._sack_untrusted,
            Opcode.NACK: self._nack_untrusted,
            Opcode.ACKNOWLEDGE: self._ack_untrusted,
        }

    def receive_untrusted(self, run: ReceivedRun, now_ns: int) -> None:
        """Take a run; nothing in it can raise."""
        size = run.segment_bytes
        whole = run.byte_count // size if size > 0 else 0
        done = 0
        self._endpoint.datagrams_received += whole + (whole * size < run.byte_count)
        if (
            whole
            and run.buffer.bytes[0] in _RUN_OPCODES
            and run.buffer.bytes[8] & (FLAG_TS >> 24)
            and run.tos >> 2 not in self._trimmed
            and (views := self._views_untrusted(run)) is not None
        ):
            done = min(whole, len(views.payloads))
            if done == 1:
                self._row_untrusted(run, views, now_ns)
            else:
                self._rows_untrusted(run, views, done, now_ns)
        for start in range(done * size, run.byte_count, size or 1):
            end = min(start + size, run.byte_count)
            run.turn_to(start // size)
            self._datagram_untrusted(run.buffer.memory[start:end], run, now_ns)

    def _views_untrusted(self, run: ReceivedRun) -> SegmentViews | None:
        """Return the buffer as rows of whole packets of a queue pair, None when it is none.

        Views are made for that one size and for nobody but the peer: who sends junk of all sizes
        makes none. Packets of another size, such as last ones, come alone.
        """
        first = run.buffer.bytes
        qp = self._endpoint.qps.get(first[5] << 16 | first[6] << 8 | first[7])
        if qp is None or qp.peer is None or run.segment_bytes != qp.segment_bytes:
            return None
        if run.source[0] not in qp.peer.hosts:
            return None
        return run.buffer.views(run.segment_bytes, sealed=qp.seal is not None)

    @property
    def _trimmed(self) -> tuple[int, int]:
        dscp = self._endpoint.config.dscp
        return dscp.trimmed, dscp.trimmed_lasthop

    def _flow(self, run: ReceivedRun) -> tuple[Address, Address]:
        port = self._endpoint.ports[run.port]
        return (run.source[0], run.source[1]), (port.host, port.udp_port)

    # Runs of data packets.

    def _row_untrusted(self, run: ReceivedRun, views: SegmentViews, now_ns: int) -> None:
        """Take a buffer of one row, as slow or much spread flows bring it: no columns needed."""
        if self._endpoint.config.icrc:
            source, destination = self._flow(run)
            if not views.is_icrc_right(flow_seed(source, destination, views.segment_bytes)):
                # Wrong, or right with the reserved byte set, which only the exact check allows for.
                self._singly_untrusted(run, 0, 1, now_ns)
                return
        self._run_untrusted(run, views, views.read_row(), views.opcodes(1), 0, 1, now_ns)

    def _rows_untrusted(
        self, run: ReceivedRun, views: SegmentViews, count: int, now_ns: int
    ) -> None:
        """Take `count` rows of the buffer, each a data packet by its looks."""
        words = views.read_headers(count)
        opcodes = views.opcodes(count)
        wrong = self._wrong_untrusted(run, views, count) if self._endpoint.config.icrc else ()
        trains = bool(run.sources)
        # Counters of seals may jump from one train to the next.
        whole = not wrong and not (trains and views.sealed)
        if whole and views.is_one_run(words, opcodes, any_time=trains):
            row = words[0].tolist()
            if trains:
                # It is the last packet that is answered.
                run.source = run.sources[-1]
                row[WORD_TIMESTAMP] = int(words[count - 1, WORD_TIMESTAMP])
            self._run_untrusted(run, views, row, opcodes, 0, count, now_ns)
            return
        each = run.train_packets if trains else count
        for first in range(0, count, each):
            run.turn_to(first)
            rows = slice(first, first + each)
            for start, end in split_runs(words[rows], opcodes[rows], views.payload_bytes):
                for i, stop in _without(first + start, first + end, wrong):
                    self._run_untrusted(run, views, words[i].tolist(), opcodes, i, stop, now_ns)
        for row in wrong:
            # Wrong, or right with the reserved byte set, which only the exact check allows for.
            self._singly_untrusted(run, row, row + 1, now_ns)

    def _wrong_untrusted(
        self, run: ReceivedRun, views: SegmentViews, count: int
    ) -> Collection[int]:
        """Return the rows whose iCRC is wrong."""
        if not run.sources:
            return views.bad_icrcs(0, count, flow_seed(*self._flow(run), views.segment_bytes))
        wrong: list[int] = []
        for first in range(0, count, run.train_packets):
            run.turn_to(first)
            seed = flow_seed(*self._flow(run), views.segment_bytes)
            wrong += views.bad_icrcs(first, first + run.train_packets, seed)
        return wrong

    def _run_untrusted(
        self,
        run: ReceivedRun,
        views: SegmentViews,
        row: Sequence[int],
        opcodes: bytes,
        start: int,
        end: int,
        now_ns: int,
    ) -> None:
        """Take rows [start, end), which are one run: each continues the one before.

        `row` holds the header words of the first, `opcodes` the opcode of every row.
        """
        plain = (
            row[WORD_BTH] & 0x00FFFFFF == _PLAIN_BTH
            and not row[WORD_PSN] & _PSN_WORD_RESERVED
            and row[WORD_DQP] <= _MASK_24
            and row[WORD_PSN] & FLAG_TS
        )
        if not plain or not _RUN_OPCODES.issuperset(opcodes[start:end]):
            self._singly_untrusted(run, start, end, now_ns)
            return
        qp = self._qp_untrusted(row[WORD_DQP], run)
        if qp is None or qp.responder is None:
            self._endpoint.drops[self._why(row[WORD_DQP])] += end - start
            return
        payloads = _payloads_untrusted(qp, views, start, end)
        if payloads is None:
            self._singly_untrusted(run, start, end, now_ns)
            return
        self._heard(qp, run, now_ns)
        header = DataHeader(
            row[WORD_PSN] & _MASK_24,
            row[WORD_VA_HIGH] << 32 | row[WORD_VA_LOW],
            row[WORD_R_KEY],
            row[WORD_LENGTH],
            bool(row[WORD_PSN] & FLAG_RTX),
            views.ack_requested(start, end - start),
            row[WORD_TIMESTAMP] >> 16,
            opcodes[end - 1] in _LAST_OPCODES,
        )
        qp.responder.receive_run(header, payloads, _arrival(run, views.segment_bytes, now_ns))
        self._after_data(qp, now_ns)

    def _singly_untrusted(self, run: ReceivedRun, start: int, end: int, now_ns: int) -> None:
        size = run.segment_bytes
        for i in range(start, end):
            run.turn_to(i)
            self._datagram_untrusted(run.buffer.memory[i * size : (i + 1) * size], run, now_ns)

    def _after_data(self, qp: QueuePair, now_ns: int) -> None:
        if qp.responder is not None and qp.responder.owes_reply:
            self._endpoint.wake(qp)
        if qp.peer is not None and qp.requestor is not None and qp.requestor.idle:
            self._endpoint.watch_reverse(qp.peer, now_ns)

    # Whose is it?

    def _qp_untrusted(self, qpn: int, run: ReceivedRun) -> QueuePair | None:
        """Return the queue pair if it may receive and the packet's source is its peer's."""
        qp = self._endpoint.qps.get(qpn)
        if qp is None or not qp.can_receive or qp.peer is None:
            return None
        return qp if run.source[0] in qp.peer.hosts else None

    def _heard(self, qp: QueuePair, run: ReceivedRun, now_ns: int) -> None:
        """Note that something of a queue pair's peer arrived, now that it is known to be its."""
        if qp.peer is not None:
            qp.peer.heard(run.port, run.source[0], now_ns)

    def _why(self, qpn: int) -> DropReason:
        """Return why `_qp_untrusted` gave none."""
        qp = self._endpoint.qps.get(qpn)
        if qp is None:
            return DropReason.UNKNOWN_QP
        return DropReason.NOT_PEER if qp.can_receive else DropReason.QP_STATE

    # Single datagrams.

    def _datagram_untrusted(self, datagram: memoryview, run: ReceivedRun, now_ns: int) -> None:
        """Take one datagram of any kind."""
        try:
            self._packet_untrusted(datagram, run, now_ns)
        except Unauthentic:
            self._endpoint.drop(DropReason.UNAUTHENTIC)
        except Replayed:
            self._endpoint.drop(DropReason.REPLAYED)
        except BadPacket:
            self._endpoint.drop(DropReason.SHORT)

    def _packet_untrusted(self, datagram: memoryview, run: ReceivedRun, now_ns: int) -> None:
        """Check what all datagrams have, and hand it to who takes its kind.

        Raises:
            BadPacket: shorter than its headers, or they are none of MRC's.
        """
        endpoint = self._endpoint
        if len(datagram) < BTH_BYTES + ICRC_BYTES:
            endpoint.drop(DropReason.SHORT)
            return
        opcode = datagram[0]
        if datagram[1] & 0x0F:
            endpoint.drop(DropReason.VERSION)
            return
        if opcode in WRITE_OPCODES and run.tos >> 2 in self._trimmed:
            self._trimmed_untrusted(datagram, run, now_ns)
            return
        if endpoint.config.icrc:
            try:
                check_icrc_untrusted(datagram, *self._flow(run))
            except BadPacket:
                endpoint.drop(DropReason.ICRC)
                return
        packet = datagram[:-ICRC_BYTES]
        if opcode == Opcode.ENDPOINT_REQUEST:
            self._request_untrusted(packet, run, now_ns)
        elif opcode == Opcode.ENDPOINT_RESPONSE:
            self._response_untrusted(packet, run, now_ns)
        elif opcode in WRITE_OPCODES or opcode == Opcode.PROBE or opcode in self._control:
            qpn = int.from_bytes(packet[5:8], "big")
            qp = self._qp_untrusted(qpn, run)
            if qp is None:
                endpoint.drop(self._why(qpn))
            elif opcode in WRITE_OPCODES:
                self._write_untrusted(qp, packet, run, now_ns)
            else:
                packet = _control_untrusted(qp, packet)
                self._heard(qp, run, now_ns)
                if opcode == Opcode.PROBE:
                    self._probe_untrusted(qp, packet, run, now_ns)
                else:
                    self._control[opcode](qp, packet, now_ns)
        else:
            endpoint.drop(DropReason.OPCODE)

    def _write_untrusted(
        self, qp: QueuePair, packet: memoryview, run: ReceivedRun, now_ns: int
    ) -> None:
        write = Write.decode_untrusted(packet)
        plain: Buffer = packet[write.header_bytes :]
        if qp.seal is not None:
            plain = qp.seal.opener.open_untrusted(packet, write.header_bytes)
        self._heard(qp, run, now_ns)
        payload = plain[: len(plain) - write.pad]
        if not payload or qp.responder is None:
            self._endpoint.drop(DropReason.MALFORMED)
            return
        qp.responder.receive_packet(
            write,
            np.frombuffer(payload, np.uint8),
            _arrival(run, len(packet) + ICRC_BYTES, now_ns),
            last=write.opcode in _ENDINGS,
        )
        self._after_data(qp, now_ns)

    def _trimmed_untrusted(self, datagram: memoryview, run: ReceivedRun, now_ns: int) -> None:
        write = Write.decode_untrusted(datagram)
        qp = self._qp_untrusted(write.dqp, run)
        if qp is None or qp.responder is None:
            self._endpoint.drop(self._why(write.dqp))
            return
        if qp.seal is None:
            self._heard(qp, run, now_ns)
        last_hop = run.tos >> 2 == self._endpoint.config.dscp.trimmed_lasthop
        arrival = _arrival(run, len(datagram), now_ns)
        if qp.seal is not None:
            # A hint that the packet was cut, and nothing else that its header says.
            arrival = arrival._replace(marked=False)
        qp.responder.receive_trimmed(write, arrival, last_hop=last_hop)
        self._endpoint.wake(qp)

    def _probe_untrusted(
        self, qp: QueuePair, packet: memoryview, run: ReceivedRun, now_ns: int
    ) -> None:
        probe = Probe.decode_untrusted(packet)
        if qp.responder is None:
            self._endpoint.drop(DropReason.QP_STATE)
            return
        qp.responder.receive_probe(probe, _arrival(run, len(packet) + ICRC_BYTES, now_ns))
        self._after_data(qp, now_ns)

    def _sack_untrusted(self, qp: QueuePair, packet: memoryview, now_ns: int) -> None:
        sack = Sack.decode_untrusted(packet)
        if (requestor := self._requestor_untrusted(qp, sack.dpdcid)) is not None:
            requestor.on_sack(sack, now_ns)
            self._endpoint.after_feedback(qp, now_ns)

    def _nack_untrusted(self, qp: QueuePair, packet: memoryview, now_ns: int) -> None:
        nack = Nack.decode_untrusted(packet)
        if (requestor := self._requestor_untrusted(qp, nack.dpdcid)) is not None:
            requestor.on_nack(nack, now_ns)
            self._endpoint.after_feedback(qp, now_ns)

    def _ack_untrusted(self, qp: QueuePair, packet: memoryview, now_ns: int) -> None:
        ack = Ack.decode_untrusted(packet)
        if (requestor := self._requestor_untrusted(qp, qp.qpn & 0xFFFF)) is not None:
            requestor.on_transport_ack(ack, now_ns)
            self._endpoint.after_feedback(qp, now_ns)

    def _requestor_untrusted(self, qp: QueuePair, dpdcid: int) -> Requestor | None:
        """Return who takes feedback, if it may come now and names our number a second time."""
        if qp.state is not QpState.RTS:
            # Nothing of ours can be meant yet; it is early, not wrong.
            return None
        if dpdcid != qp.qpn & 0xFFFF:
            self._endpoint.drop(DropReason.MALFORMED)
            return None
        return qp.requestor

    # Endpoint operations.

    def _request_untrusted(self, packet: memoryview, run: ReceivedRun, now_ns: int) -> None:
        request = EndpointRequest.decode_untrusted(packet)
        qp = self._named_untrusted(packet, run.source, request.request_id >> 8)
        if qp is None or qp.peer is None:
            self._endpoint.drop(DropReason.UNKNOWN_ENDPOINT)
            return
        self._heard(qp, run, now_ns)
        if request.op == EndpointOp.PORT_STATUS_UPDATE:
            self._endpoint.on_port_status(qp.peer, request.port_status_mask, now_ns)
        elif request.op != EndpointOp.EV_PROBE:
            self._endpoint.drop(DropReason.MALFORMED)
            return
        self._endpoint.answer(qp.peer, qp, request, now_ns)

    def _named_untrusted(self, packet: memoryview, source: SockAddr, tag: int) -> QueuePair | None:
        """Return the queue pair that a request names by its tag, if it opens with its keys.

        Where only one peer has this address, a request without a seal is its, whatever it names:
        other implementations need not know of tags.

        Raises:
            Unauthentic, Replayed: it is sealed, and opens with the keys of none.
        """
        peers = self._endpoint.peers_at.get(source[0], [])
        named = [qp for peer in peers for qp in peer.named() if qp.tag == tag]
        named.sort(key=lambda qp: qp.seal is None)
        for qp in named:
            if qp.seal is None:
                return qp
            try:
                _control_untrusted(qp, packet)
            except (Unauthentic, Replayed):
                if qp is named[-1]:
                    raise
                continue
            return qp
        if len(peers) != 1:
            return None
        return next((qp for qp in peers[0].qps.values() if qp.seal is None), None)

    def _response_untrusted(self, packet: memoryview, run: ReceivedRun, now_ns: int) -> None:
        response = EndpointResponse.decode_untrusted(packet)
        request = self._endpoint.requests.claimed_by(response, run.source[0])
        if request is not None:
            _control_untrusted(request.qp, packet)
        if request is None or not self._endpoint.on_response(request, response, now_ns):
            self._endpoint.drop(DropReason.UNKNOWN_REQUEST)


def _control_untrusted(qp: QueuePair, packet: memoryview) -> memoryview:
    """Return a control packet without its seal.

    Raises:
        Unauthentic, Replayed: the queue pair has keys, and it does not open with them.
    """
    if qp.seal is None:
        return packet
    header_bytes = max(0, len(packet) - SEAL_BYTES)
    qp.seal.opener.open_untrusted(packet, header_bytes)
    return packet[:header_bytes]


def _payloads_untrusted(qp: QueuePair, views: SegmentViews, start: int, end: int) -> U8 | None:
    """Return the payloads of rows, None when they are sealed and have to be opened one by one."""
    if qp.seal is None or not views.sealed:
        return views.payloads[start:end] if qp.seal is None and not views.sealed else None
    return qp.seal.opener.open_rows_untrusted(views, start, end)


def _without(start: int, end: int, wrong: Collection[int]) -> list[tuple[int, int]]:
    """Return the stretches of [start, end) between wrong rows."""
    stretches = []
    first = start
    for i in range(start, end + 1):
        if i == end or i in wrong:
            if i > first:
                stretches.append((first, i))
            first = i + 1
    return stretches


def _arrival(run: ReceivedRun, udp_payload_bytes: int, now_ns: int) -> Arrival:
    entropy = (run.flow_label & 0xFFFF) << 16 | run.source[1]
    return Arrival(entropy, run.tos & 3 == ECN_CE, udp_payload_bytes, now_ns)
