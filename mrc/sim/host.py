"""One host: its kernel's sockets, its clock, and the process that drives an unmodified endpoint.

The process does what the engine does on real sockets. Woken by a datagram, a timer or its
application, it reads all that has come in, runs the timers that are due, sends what the endpoint
has to send, and hands out events. Between wake-ups it can be paused; it can crash and start anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from mrc.proto.endpoint import Endpoint
from mrc.proto.events import Event
from mrc.proto.peer import Peer, Plane, evs_per_plane
from mrc.proto.runs import PathFault, ReceivedRun, RunToSend, SockAddr
from mrc.sim.addresses import FIRST_EV_PORT, HOST_NAMES, UDP_PORT, address
from mrc.sim.chance import Chance
from mrc.sim.clock import HostClock, Timeline
from mrc.sim.datagram import Datagram
from mrc.sim.failure import CheckFailed
from mrc.sim.ledger import Ledger
from mrc.sim.link import Link
from mrc.sim.network import Network
from mrc.sim.options import Options
from mrc.wire.runs import RUN_PACKETS_MAX, TRAINS_MAX, RunBuffer

RUNS_PER_WAKE_MAX = 256
"""What one wake-up reads from a plane, and sends, at most."""
_ORIGIN_BITS = 50
_PAUSE_POLL_NS = 1_000_000
_OVERDUE_MAX = 100
"""A process that so often in a row has something overdue when it is done will never be done."""
_FAULTS = tuple(PathFault)


class Host:
    """A machine with one port per plane and one process."""

    def __init__(
        self, index: int, options: Options, timeline: Timeline, chance: Chance, network: Network
    ) -> None:
        self.index = index
        self.name = HOST_NAMES[index]
        self.options = options.hosts[index]
        self.incarnation = 0
        self.clock = HostClock(chance.generator.getrandbits(_ORIGIN_BITS))
        self.on_wake: Callable[[Host], None] = _nothing
        """The application's turn: it may post work."""
        self.on_event: Callable[[Host, Event], None] = _nothing
        self.after_wake: Callable[[Host], None] = _nothing
        """Looks at what the wake-up has left behind."""
        self._sim = options
        self._timeline = timeline
        self._chance = chance
        self._network = network
        self._run = ReceivedRun(RunBuffer(TRAINS_MAX), 0, 0, 0, ("", 0), 0)
        self._refuse = self.options.refuse
        self._paused = self._crashed = False
        self._wake_ns: int | None = None
        self._overdue = 0
        self._inboxes: list[deque[Datagram]] = []
        self._inbox_bytes: list[int] = []
        self._held: dict[tuple[int, int], deque[RunToSend]] = {}
        self._peers: dict[tuple[int, int], Peer] = {}
        self.ledger = Ledger()
        self.received = self.received_before = 0
        """Datagrams handed to the endpoint of this incarnation, and lost or handed before it."""
        self.sent = self.sent_before = 0
        """Datagrams taken from it, refused ones included, and from those before it."""
        self._boot()
        network.receivers.append(self.arrive)

    def _boot(self) -> None:
        options = self._sim
        self.endpoint = Endpoint(
            self.options.config, self._chance.fork().generator, self.clock.read(self.true_ns)
        )
        evs = evs_per_plane(self.options.config, options.planes)
        self.ports = [
            self.endpoint.add_port(
                address(self.index, plane, ipv6=options.ipv6),
                UDP_PORT,
                list(range(FIRST_EV_PORT, FIRST_EV_PORT + evs)),
            )
            for plane in range(options.planes)
        ]
        self._inboxes = [deque() for _ in self.ports]
        self._inbox_bytes = [0] * len(self.ports)
        self._peers.clear()
        self.ledger = Ledger()
        self.received_before += self.received
        self.sent_before += self.sent
        self.received = self.sent = 0

    @property
    def true_ns(self) -> int:
        """The true time, which its process does not know."""
        return self._timeline.now_ns

    @property
    def up(self) -> bool:
        """Whether its process exists; it may be paused."""
        return not self._crashed

    @property
    def unread(self) -> int:
        """Datagrams that lie in its sockets."""
        return sum(map(len, self._inboxes))

    def local_ns(self) -> int:
        """Return what its clock shows."""
        return self.clock.read(self.true_ns)

    def peer(self, other: Host) -> Peer:
        """Return the peer that is the present incarnation of another host, a new one if need be.

        Like the engine, it knows a peer for as long as a queue pair to it exists.
        """
        key = other.index, other.incarnation
        found = self._peers.get(key)
        if found is None or found.peer_id not in self.endpoint.peers:
            planes = [
                Plane(port.index, port.host, self._sockaddr(other.index, port.index, UDP_PORT))
                for port in self.ports
            ]
            found = self._peers[key] = self.endpoint.add_peer(planes)
        return found

    def _sockaddr(self, host: int, plane: int, port: int) -> SockAddr:
        where = address(host, plane, ipv6=self._sim.ipv6)
        return (where, port, 0, 0) if self._sim.ipv6 else (where, port)

    # What happens to it.

    def pause(self) -> None:
        """Stop the process: nothing is read, no timer runs."""
        self._paused = True

    def resume(self) -> None:
        """Let the process go on."""
        if self._paused:
            self._paused = False
            self.wake_by(self.true_ns)

    def crash(self) -> None:
        """Forget everything; what arrives from now on goes nowhere."""
        self._crashed = True
        self.received_before += self.unread
        self._network.refused += sum(datagrams(run) for runs in self._held.values() for run in runs)
        self._inboxes = [deque() for _ in self.ports]
        self._held.clear()

    def restart(self) -> None:
        """Start anew, as another incarnation that knows nothing of the one before."""
        self._crashed = False
        self.incarnation += 1
        self._boot()

    def set_port(self, plane: int, *, up: bool) -> None:
        """A port loses or regains its carrier, and the kernel says so."""
        if self.up and self.ports[plane].up != up:
            self.endpoint.port_status(plane, up=up, now_ns=self.local_ns())
            self.wake_by(self.true_ns)

    def clock_changed(self) -> None:
        """Its clock was stopped, set going or moved: timers are due at other times."""
        self._wake_ns = None
        self.wake_by(self.true_ns)

    def heal(self) -> None:
        """End its faults; a crashed host is started by whoever connects it again."""
        self._refuse = 0.0
        self.clock.go_on(self.true_ns)
        for port in self.ports:
            self.set_port(port.index, up=True)
        self._paused = False
        self.clock_changed()

    # Waking.

    def wake_by(self, at_ns: int) -> None:
        """Wake the process at that time at the latest."""
        if self._wake_ns is None or at_ns < self._wake_ns:
            self._wake_ns = at_ns
            self._timeline.at(at_ns, self._wake, at_ns)

    def arrive(self, datagram: Datagram) -> str | None:
        """Take a datagram into the receiving socket of its plane; return why not, if not."""
        if self._crashed:
            return "host down"
        plane, size = datagram.plane, len(datagram.data)
        if not self.ports[plane].up:
            return "port down"
        if self._inbox_bytes[plane] + size > self.options.receive_buffer_bytes:
            return "socket full"
        self._inbox_bytes[plane] += size
        self._inboxes[plane].append(datagram)
        self.wake_by(self.true_ns + self.options.wake_ns)
        return None

    def _wake(self, at_ns: int) -> None:
        if at_ns != self._wake_ns:
            return
        self._wake_ns = None
        if self._paused or self._crashed:
            return
        for plane in range(len(self._inboxes)):
            self._read(plane)
        endpoint, local_ns = self.endpoint, self.local_ns()
        deadline_ns = endpoint.next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= local_ns:
            endpoint.advance(local_ns)
        self.on_wake(self)
        more = self._transmit()
        for event in endpoint.poll():
            self.on_event(self, event)
        if more or any(self._inboxes):
            self.wake_by(self.true_ns + 1)
        else:
            self.after_wake(self)
        self._arm()

    def _arm(self) -> None:
        deadline_ns = self.endpoint.next_deadline_ns()
        if deadline_ns is None:
            self._overdue = 0
            return
        self._overdue = self._overdue + 1 if deadline_ns <= self.local_ns() else 0
        if self._overdue > _OVERDUE_MAX:
            raise CheckFailed("livelock", f"host {self.name} has something due again and again")
        when_ns = self.clock.when(deadline_ns, self.true_ns)
        if when_ns is not None:
            late_ns = self.options.timer_late_ns
            self.wake_by(when_ns + (self._chance.below(late_ns) if late_ns else 0))

    # Reading.

    def _read(self, plane: int) -> None:
        """Hand what has arrived at a port to the endpoint, runs as GRO would have made them."""
        inbox = self._inboxes[plane]
        for _ in range(RUNS_PER_WAKE_MAX):
            if not inbox:
                break
            joining = self._enter(self._train(inbox))
            while joining and inbox and self._run.trains < TRAINS_MAX:
                train = self._train(inbox)
                if not self._enter(train, behind=True):
                    inbox.extendleft(reversed(train))
                    break
            self.endpoint.receive(self._run, self.local_ns())

    def _train(self, inbox: deque[Datagram]) -> list[Datagram]:
        """Take the next train that GRO would have made."""
        train = [inbox.popleft()]
        size = len(train[0].data)
        room = min(RUN_PACKETS_MAX, RunBuffer.SIZE // size) if self.options.gro else 1
        while inbox and len(train) < room and len(train[-1].data) == size:
            if len(inbox[0].data) > size or inbox[0].flow != train[0].flow:
                break
            train.append(inbox.popleft())
        return train

    def _enter(self, train: list[Datagram], *, behind: bool = False) -> bool:
        """Put a train into the run, alone or behind others; tell whether others may follow.

        Behind others it is not put there when it is not like them.
        """
        run, first = self._run, train[0]
        data = b"".join([datagram.data for datagram in train])
        start = run.byte_count if behind else 0
        run.port = first.plane
        source = self._sockaddr(first.sender, first.plane, first.source_port)
        taken = (run.join if behind else run.begin)(
            len(data), len(first.data), first.tos, source, first.flow_label
        )
        if taken or not behind:
            run.buffer.bytes[start : start + len(data)] = data
            self._inbox_bytes[first.plane] -= len(data)
            self.received += len(train)
            for datagram in train:
                self.ledger.enter(datagram, self.endpoint)
        return taken

    # Sending.

    def _transmit(self) -> bool:
        """Send what the endpoint has to send; return whether there may be more."""
        endpoint, local_ns = self.endpoint, self.local_ns()
        for _ in range(RUNS_PER_WAKE_MAX):
            run = endpoint.transmit(local_ns)
            if run is None:
                return False
            self.sent += datagrams(run)
            self._send(run)
        return True

    def _send(self, run: RunToSend) -> None:
        if not self.ports[run.port].up:
            self._refuse_run(run, PathFault.UNREACHABLE)
            return
        if self._refuse and self._chance.happens(self._refuse):
            self._refuse_run(run, self._chance.one_of(_FAULTS))
            return
        key = run.port, run.source_port
        if key in self._held or self._is_full(run.port):
            self._hold(run, key)
            return
        self._network.send(self.index, run)

    def _refuse_run(self, run: RunToSend, fault: PathFault) -> None:
        """The kernel sends nothing of a run, and says so."""
        self._network.refused += datagrams(run)
        self.endpoint.path_fault(run, fault, self.local_ns())

    def _is_full(self, plane: int) -> bool:
        limit = self.options.send_buffer_bytes
        return bool(limit) and self._uplink(plane).backlog_bytes > limit

    def _uplink(self, plane: int) -> Link:
        return self._network.links[f"up {self.name}.{plane}"]

    def _hold(self, run: RunToSend, key: tuple[int, int]) -> None:
        """Keep a run until its socket takes more; control packets are not kept."""
        if not run.qpn:
            self._network.refused += 1
            return
        if key not in self._held:
            self._held[key] = deque()
            drained_ns = self._uplink(run.port).drained_ns(self.options.send_buffer_bytes // 2)
            self._timeline.at(max(self.true_ns, drained_ns), self._release, (key, self.incarnation))
        self._held[key].append(run._replace(memory=memoryview(bytes(run.memory))))
        self.endpoint.path_busy(run, busy=True)

    def _release(self, what: tuple[tuple[int, int], int]) -> None:
        """A socket takes more: send the runs that were held back."""
        key, incarnation = what
        if incarnation != self.incarnation or self._crashed:
            return
        if self._paused:
            self._timeline.at(self.true_ns + _PAUSE_POLL_NS, self._release, what)
            return
        for run in self._held.pop(key, ()):
            self.endpoint.path_busy(run, busy=False)
            self._send(run)
        self.wake_by(self.true_ns)


def datagrams(run: RunToSend) -> int:
    """Return how many datagrams a run is cut into."""
    return -(-len(run.memory) // run.segment_bytes)


def _nothing(*_: object) -> None:
    """Nobody listens."""
