"""The endpoint: the one object through which the world talks to the protocol.

Five calls, each for a run of packets, never for one:

    receive(run, now_ns)      a run that arrived
    transmit(now_ns)          the next run to send, or None
    next_deadline_ns()        when to call advance, or None
    advance(now_ns)           timers
    poll()                    events since the last poll

After any of `receive`, `advance` or a post, call `transmit` until it returns None, then `poll`.
Time never goes back: when `now_ns` does, it goes on from the latest seen. What `transmit` returned
is valid until its next call. When the kernel refuses a run, say so with `path_fault` before that.
Nothing here is re-entrant.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from heapq import heappop, heappush
from typing import Any

from mrc.errors import ConfigError
from mrc.proto.config import Config, QpAttributes
from mrc.proto.dispatch import Dispatcher
from mrc.proto.ev import Path
from mrc.proto.events import Event, ImmediateReceived, PortStatusChanged, QpFailure, Random
from mrc.proto.memory import MemoryTable, Region
from mrc.proto.paths import NEVER_NS
from mrc.proto.peer import LocalPort, Peer, Plane
from mrc.proto.qp import QpInput, QpState, QueuePair
from mrc.proto.requests import Request, Requests
from mrc.proto.runs import ECN_ECT0, ECN_NOT_ECT, PathFault, ReceivedRun, RunToSend
from mrc.proto.statistics import DropReason, Drops, EndpointStatistics
from mrc.proto.tags import Tags
from mrc.wire.control import (
    ENDPOINT_QP,
    EndpointOp,
    EndpointRequest,
    EndpointResponse,
    timestamp,
)
from mrc.wire.icrc import append_icrc
from mrc.wire.runs import RunBuffer
from mrc.wire.seal import Seal

QPS_MAX = 1 << 16
PEERS_MAX = 4096
CONTROL_QUEUE_MAX = 4096
"""Control packets waiting to be sent, about 150 bytes each; beyond it the oldest give way."""
DOUBT_NS = 1_000_000_000
"""A peer not heard of for so long is not told of others' losses: it would be probed for nothing."""
_QPN_BITS = 24
_PSN_BITS = 24


class Endpoint:
    """Queue pairs, peers and memory of one process."""

    def __init__(self, config: Config, rng: Random, now_ns: int = 0) -> None:
        """Make an endpoint without ports, peers or queue pairs.

        Args:
            config: settings of everything made here.
            rng: `random.Random(seed)` for a repeatable run, `random.SystemRandom()` for r_keys that
                cannot be guessed.
            now_ns: the time.
        """
        self.config = config
        self.memory = MemoryTable(rng)
        self.ports: list[LocalPort] = []
        self.peers: dict[int, Peer] = {}
        self.peers_at: dict[str, list[Peer]] = {}
        self.qps: dict[int, QueuePair] = {}
        self.drops: Drops = Drops()
        self._rng = rng
        self._now_ns = now_ns
        self._clock_lead_ns = 0
        """What time here is ahead of the caller's: all that his clock has ever gone back."""
        self._events: deque[Event] = deque()
        self._control: deque[RunToSend] = deque(maxlen=CONTROL_QUEUE_MAX)
        self._ready: deque[QueuePair] = deque()
        self._owing: QueuePair | None = None
        """The one whose run was sent last, if it has yet to answer what came in."""
        self._undecided: dict[int, QueuePair] = {}
        """Those that were asked for runs while not all was heard, and may find losses when it is.
        """
        self._ready_qpns: set[int] = set()
        self._timers: list[tuple[int, int, QueuePair | Peer]] = []
        self._timer_count = 0
        self._peer_count = 0
        self._tags = Tags()
        self.requests = Requests()
        self._run = RunBuffer()
        self._tos_control = config.dscp.control << 2 | ECN_NOT_ECT
        self._dispatcher = Dispatcher(self)
        self.datagrams_received = 0
        self.datagrams_sent = 0

    # Set-up.

    def add_port(self, host: str, udp_port: int, ev_ports: list[int]) -> LocalPort:
        """Add a local port (NIC): where packets for us arrive and which source ports it sprays."""
        port = LocalPort(len(self.ports), host, udp_port, ev_ports)
        self.ports.append(port)
        return port

    def add_peer(self, planes: list[Plane]) -> Peer:
        """Add a peer and make its EV profile.

        Where the peer alone says what its addresses are, `peer.paths.demand_proof` comes next.

        Raises:
            ConfigError: too many peers.
        """
        if len(self.peers) >= PEERS_MAX:
            raise ConfigError(f"{PEERS_MAX} peers already; close some connections")
        self._peer_count += 1
        peer = Peer(
            peer_id=self._peer_count,
            config=self.config,
            rng=self._rng,
            planes=planes,
            ports=self.ports,
            events=self._events,
        )
        self.peers[peer.peer_id] = peer
        peer.paths.on_suspect = partial(self._spread_suspicion, peer)
        for host in peer.hosts:
            self.peers_at.setdefault(host, []).append(peer)
        return peer

    def create_qp(self, user: str = "") -> QueuePair:
        """Create a queue pair in INIT with a number and first PSN nobody can guess.

        Args:
            user: what the peer is known by: queue pairs of one get the same tag. Nothing if each
                queue pair shall have its own.

        Raises:
            ConfigError: too many queue pairs.
        """
        if len(self.qps) >= QPS_MAX:
            raise ConfigError(f"{QPS_MAX} queue pairs already; close some connections")
        qpn = self._rng.getrandbits(_QPN_BITS)
        while qpn in self.qps or qpn <= ENDPOINT_QP:
            qpn = self._rng.getrandbits(_QPN_BITS)
        qp = QueuePair(
            config=self.config,
            qpn=qpn,
            first_psn=self._rng.getrandbits(_PSN_BITS),
            memory=self.memory,
            drops=self.drops,
            events=self._events,
        )
        qp.tag_user = user or f"queue pair {qpn}"
        qp.tag = self._tags.take(qp.tag_user)
        self.qps[qpn] = qp
        return qp

    def attributes(
        self,
        qp: QueuePair,
        planes: tuple[tuple[str, int], ...],
        *,
        receive_buffer_bytes: int,
        mtu: int = 0,
        link_bps: int = 0,
    ) -> QpAttributes:
        """Return what the peer must know about a queue pair of ours.

        Args:
            qp: the queue pair.
            planes: (address, UDP port) of each plane we receive on.
            receive_buffer_bytes: what the smallest of their sockets holds.
            mtu: what fits the interfaces, if that is less than the setting.
            link_bps: what the interfaces carry together, if the setting does not say.
        """
        c = self.config
        return QpAttributes(
            qpn=qp.qpn,
            first_psn=qp.first_psn,
            mtu=min(c.mtu, mtu or c.mtu),
            mpr_psns=c.mpr_psns,
            dynamic_mpr=c.dynamic_mpr,
            immediates_max=c.immediates_max,
            trim_nack=c.trim_nack,
            service_time=False,
            icrc=c.icrc,
            endpoint_tag=qp.tag,
            link_bps=c.link_bps or link_bps,
            receive_buffer_bytes=receive_buffer_bytes,
            planes=planes,
        )

    def connect_qp(
        self,
        qp: QueuePair,
        peer: Peer,
        local: QpAttributes,
        remote: QpAttributes,
        now_ns: int,
        seal: Seal | None = None,
    ) -> None:
        """Take a queue pair to RTR with the attributes of both sides.

        With a seal, every packet of it is sealed, and nothing else is taken for one of it.

        Raises:
            ConfigError: they do not fit together; a peer made for this queue pair is forgotten.
        """
        try:
            qp.connect(peer, local, remote, seal, self._time(now_ns))
        except ConfigError:
            if not peer.qps:
                self._forget(peer)
            raise
        peer.qps[qp.qpn] = qp
        self._arm(peer)

    def destroy_qp(self, qp: QueuePair) -> None:
        """Forget a queue pair; its packets are dropped from now on. Its peer goes with the last."""
        if self.qps.pop(qp.qpn, None) is None:
            return
        self._tags.give_back(qp.tag_user)
        if self._owing is qp:
            self._owing = None
        self._undecided.pop(qp.qpn, None)
        if qp.qpn in self._ready_qpns:
            self._ready_qpns.discard(qp.qpn)
            self._ready.remove(qp)
        if qp.peer is not None:
            qp.peer.qps.pop(qp.qpn, None)
            qp.peer.busy_qpns.discard(qp.qpn)
            if not qp.peer.qps:
                self._forget(qp.peer)
        if qp.requestor is not None:
            qp.requestor.forget_work()
        qp.move(QpInput.RESET)

    def _forget(self, peer: Peer) -> None:
        del self.peers[peer.peer_id]
        peer.paths.on_suspect = None
        for host in peer.hosts:
            self.peers_at[host].remove(peer)
            if not self.peers_at[host]:
                del self.peers_at[host]
        self.requests.forget(peer)

    def fail_qp(self, qp: QueuePair, failure: QpFailure, now_ns: int) -> None:
        """Take a queue pair to ERROR from this side."""
        qp.fail(failure, self._time(now_ns))

    # Work.

    def register(self, buffer: Any, qp: QueuePair | None = None) -> Region:
        """Register a writable buffer that the peer of a queue pair may write to, or any peer."""
        return self.memory.register(buffer, qp.qpn if qp is not None else 0)

    def deregister(self, region: Region) -> None:
        """Refuse all further writes to a region."""
        self.memory.deregister(region)

    def post_write(
        self, qp: QueuePair, data: Any, va: int, r_key: int, imm: int | None = None
    ) -> int:
        """Post a WRITE, or a WRITE-with-Immediate; return the id its `WriteDone` will carry.

        Raises:
            ConfigError: the queue pair is not in RTS, or an argument is out of range.
        """
        if qp.state is not QpState.RTS or qp.requestor is None:
            raise ConfigError(f"queue pair {qp.qpn:#08x} is in {qp.state.value}, not RTS")
        work_id = qp.new_work_id()
        qp.requestor.post(work_id, data, va, r_key, imm)
        self.wake(qp)
        return work_id

    # The five calls.

    def receive(self, run: ReceivedRun, now_ns: int) -> None:
        """Take a run that arrived; whatever is wrong with it is dropped and counted."""
        self._dispatcher.receive_untrusted(run, self._time(now_ns))

    def transmit(self, now_ns: int, *, all_heard: bool = True) -> RunToSend | None:
        """Return the next run to send: control packets first, then queue pairs in turn.

        What a queue pair owes in answer to what came in goes behind its first run.

        Args:
            now_ns: the time.
            all_heard: nothing that has come in waits to be received. Else no packet is found lost:
                what waits may tell that it has arrived.
        """
        now_ns = self._time(now_ns)
        if self._owing is not None:
            self._queue_replies(self._owing, now_ns)
            self._owing = None
        if all_heard and self._undecided:
            for qp in self._undecided.values():
                self.wake(qp)
            self._undecided.clear()
        while True:
            if self._control:
                self.datagrams_sent += 1
                return self._control.popleft()
            if not self._ready:
                return None
            qp = self._ready[0]
            run = self._data_run(qp, now_ns, all_heard=all_heard)
            owes = qp.responder is not None and qp.responder.owes_reply
            if run is not None:
                # An answer of the application is waited for; acknowledgements can wait for one run.
                self._owing = qp if owes else None
                self._ready.rotate(-1)
                return run
            if owes:
                self._queue_replies(qp, now_ns)
                continue
            self._arm(qp)
            self._ready.popleft()
            self._ready_qpns.discard(qp.qpn)
            if not all_heard:
                self._undecided[qp.qpn] = qp

    def next_deadline_ns(self) -> int | None:
        """Return when `advance` should be called, or None when no timer runs."""
        return self._timers[0][0] - self._clock_lead_ns if self._timers else None

    def advance(self, now_ns: int) -> None:
        """Run the timers that are due."""
        now_ns = self._time(now_ns)
        while self._timers and self._timers[0][0] <= now_ns:
            deadline_ns, _, owner = heappop(self._timers)
            gone = isinstance(owner, Peer) and owner.peer_id not in self.peers
            if gone or deadline_ns != owner.armed_ns:
                continue
            owner.armed_ns = NEVER_NS
            if isinstance(owner, Peer):
                self._advance_peer(owner, now_ns)
            elif owner.next_deadline_ns() <= now_ns:
                self._advance_qp(owner, now_ns)
            self._arm(owner)

    @property
    def undecided(self) -> bool:
        """Tell whether a queue pair waits for a `transmit` at which all is heard."""
        return bool(self._undecided)

    @property
    def has_immediate(self) -> bool:
        """Tell whether the last event that `poll` would return is an immediate."""
        return bool(self._events) and isinstance(self._events[-1], ImmediateReceived)

    def poll(self) -> list[Event]:
        """Return the events since the last call, oldest first."""
        events = list(self._events)
        self._events.clear()
        return events

    # Paths.

    def path_fault(self, run: RunToSend, fault: PathFault, now_ns: int) -> None:
        """The kernel refused a run: nothing of it has left this machine."""
        peer = self.peers.get(run.peer_id)
        if peer is None:
            return
        now_ns = self._time(now_ns)
        path = peer.paths.paths[run.ev_index]
        qp = self.qps.get(run.qpn)
        if qp is not None and qp.requestor is not None:
            qp.requestor.on_path_fault(run.psn, run.packets, now_ns, fault)
        peer.paths.withdraw(path, now_ns, fault.value)
        self._arm(peer)

    def path_busy(self, run: RunToSend, *, busy: bool) -> None:
        """The kernel's buffer for the EV of a run is full, or has room again."""
        peer = self.peers.get(run.peer_id)
        if peer is None:
            return
        peer.paths.paths[run.ev_index].busy = busy
        if not busy:
            for qp in peer.qps.values():
                self.wake(qp)

    def port_status(self, port_index: int, *, up: bool, now_ns: int) -> None:
        """One of our ports went down or came up: leave it or try it, and tell every peer."""
        now_ns = self._time(now_ns)
        self.ports[port_index].up = up
        for peer in self.peers.values():
            mask = 0
            for plane, where in enumerate(peer.plane_list):
                if where.port == port_index:
                    peer.paths.plane_status(plane, up=up, local=True, now_ns=now_ns)
                mask |= self.ports[where.port].up << plane
            peer.tell_status(mask, now_ns)
            self._advance_peer(peer, now_ns)
            self._arm(peer)

    def deny(self, peer: Peer, ev_index: int, *, denied: bool, now_ns: int) -> None:
        """Take an EV out of use, or give it back, by decision of the application."""
        peer.paths.deny(ev_index, denied=denied, now_ns=self._time(now_ns))

    def statistics(self) -> EndpointStatistics:
        """Return a snapshot of the counters."""
        return EndpointStatistics(
            queue_pairs=len(self.qps),
            regions=len(self.memory),
            datagrams_received=self.datagrams_received,
            datagrams_sent=self.datagrams_sent,
            drops={reason.name.lower(): count for reason, count in self.drops.items()},
        )

    # Used by the dispatcher.

    def wake(self, qp: QueuePair) -> None:
        """Ask a queue pair for runs at the next `transmit`."""
        if qp.qpn not in self._ready_qpns:
            self._ready_qpns.add(qp.qpn)
            self._ready.append(qp)

    def after_feedback(self, qp: QueuePair, now_ns: int) -> None:
        """A SACK, NACK or ACK was handled: the queue pair may fail, send, or need other timers."""
        if qp.requestor is not None and qp.requestor.failure is not None:
            qp.fail(qp.requestor.failure, now_ns)
            return
        self.wake(qp)
        if qp.peer is not None:
            self._arm(qp.peer)

    def on_port_status(self, peer: Peer, mask: int, now_ns: int) -> None:
        """The peer told which of its ports are up."""
        for plane in range(peer.planes):
            up = bool(mask >> plane & 1)
            if up == (plane in peer.paths.planes_down):
                peer.paths.plane_status(plane, up=up, local=False, now_ns=now_ns)
        self._events.append(PortStatusChanged(peer.peer_id, mask, now_ns))
        self._arm(peer)

    def on_response(self, request: Request, response: EndpointResponse, now_ns: int) -> bool:
        """Handle what claims to answer a request; False when it is a wrong answer."""
        if not self.requests.is_answered(request, response):
            return False
        if request.op == EndpointOp.EV_PROBE:
            request.peer.paths.on_probe_answer(request.path, request.sent_ns, now_ns)
        else:
            request.peer.status_confirmed(request.mask)
        return True

    def answer(self, peer: Peer, qp: QueuePair, request: EndpointRequest, now_ns: int) -> None:
        """Answer an endpoint request of a known peer, which named one of its queue pairs."""
        response = EndpointResponse(request.request_id, request.op, request.tx_timestamp)
        path = peer.paths.choose_reverse(now_ns)
        self._queue(peer, path, response.encode(), self._tos_control, qp.seal)

    def watch_reverse(self, peer: Peer, now_ns: int) -> None:
        """Traffic came in: make sure that the EVs which carry our SACKs are verified."""
        peer.paths.watch_reverse(now_ns)
        self._arm(peer)

    def drop(self, reason: DropReason) -> None:
        """Count a datagram that is thrown away."""
        self.drops[reason] += 1

    # The inside.

    def _spread_suspicion(self, of: Peer, plane: int, sent_ns: int, now_ns: int) -> None:
        """Let other peers doubt a port on which packets to one of them vanish.

        It may be the port, or the switch behind it: each of them would lose packets of its own to
        find that out, and who exchanges with them in turn would wait for every one.
        """
        port = of.plane_list[plane].port
        for other in self.peers.values():
            if other is of or now_ns - max(other.paths.heard_ns) > DOUBT_NS:
                continue
            for index, its in enumerate(other.plane_list):
                if its.port == port and other.paths.doubt(index, sent_ns, now_ns):
                    self._arm(other)

    def _time(self, now_ns: int) -> int:
        self._clock_lead_ns = max(self._clock_lead_ns, self._now_ns - now_ns)
        self._now_ns = now_ns + self._clock_lead_ns
        return self._now_ns

    def _arm(self, owner: QueuePair | Peer) -> None:
        deadline_ns = owner.next_deadline_ns()
        if deadline_ns < owner.armed_ns:
            owner.armed_ns = deadline_ns
            self._timer_count += 1
            heappush(self._timers, (deadline_ns, self._timer_count, owner))

    def _advance_qp(self, qp: QueuePair, now_ns: int) -> None:
        if qp.requestor is None or qp.peer is None:
            return
        probe = qp.requestor.advance(now_ns)
        if probe is not None:
            path, packet = probe
            tos = self.config.dscp.trimmable << 2 | ECN_ECT0
            self._queue(qp.peer, path, packet.encode(), tos, qp.seal)
        self.after_feedback(qp, now_ns)

    def _advance_peer(self, peer: Peer, now_ns: int) -> None:
        for path in peer.paths.due_probes(now_ns):
            self._request(peer, path, EndpointOp.EV_PROBE, 0, now_ns)
        if peer.status_mask is not None and peer.status_due(now_ns):
            for path in peer.paths.one_per_plane():
                operation = EndpointOp.PORT_STATUS_UPDATE
                self._request(peer, path, operation, peer.status_mask, now_ns)

    def _request(
        self, peer: Peer, path: Path, operation: EndpointOp, mask: int, now_ns: int
    ) -> None:
        """Send an endpoint request and remember what its answer will mean.

        It names a queue pair by the tag its other end gave it, and is sealed with its keys.
        """
        qp = next(peer.named(), None)
        if qp is None:
            return
        request_id = self.requests.add(Request(peer, qp, path, operation, mask, now_ns))
        request = EndpointRequest(request_id, operation, mask, timestamp(now_ns))
        tos = self.config.dscp.no_trim << 2 | ECN_ECT0
        self._queue(peer, path, request.encode(), tos, qp.seal)

    def _queue_replies(self, qp: QueuePair, now_ns: int) -> None:
        peer, responder = qp.peer, qp.responder
        if peer is None or responder is None:
            return
        for packet in responder.replies():
            path = peer.paths.choose_reverse(now_ns)
            self._queue(peer, path, packet, self._tos_control, qp.seal)

    def _queue(self, peer: Peer, path: Path, packet: bytes, tos: int, seal: Seal | None) -> None:
        """Finish a control packet with its seal and iCRC, and queue it."""
        if seal is not None:
            packet += seal.sealer.seal(packet)
        source, destination = peer.flow(path)
        datagram = (
            append_icrc(packet, source, destination) if self.config.icrc else packet + bytes(4)
        )
        plane = peer.plane_list[path.plane]
        self._control.append(
            RunToSend(
                memoryview(datagram),
                len(datagram),
                plane.port,
                path.source_port,
                path.flow_label,
                plane.remote,
                tos,
                peer.peer_id,
                path.index,
            )
        )

    def _data_run(self, qp: QueuePair, now_ns: int, *, all_heard: bool) -> RunToSend | None:
        if qp.state is not QpState.RTS or qp.requestor is None or qp.peer is None:
            return None
        built = qp.requestor.transmit(self._run, now_ns, all_heard=all_heard)
        if built is None:
            return None
        self.datagrams_sent += -(-built.byte_count // built.segment_bytes)
        dscp = self.config.dscp
        code = dscp.trimmable_retx if built.retransmission else dscp.trimmable
        path = built.path
        plane = qp.peer.plane_list[path.plane]
        return RunToSend(
            self._run.memory[: built.byte_count],
            built.segment_bytes,
            plane.port,
            path.source_port,
            path.flow_label,
            plane.remote,
            code << 2 | ECN_ECT0,
            qp.peer.peer_id,
            path.index,
            qp.qpn,
            built.psn,
            built.packets,
        )
