"""Two endpoints joined by a virtual network: the protocol's test bench.

Time is a number that jumps from event to event. A `Filter` sees every datagram on its way and may
drop, delay, duplicate or change it; everything is seeded, so a failing test fails again.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from mrc.proto.config import Config
from mrc.proto.endpoint import Endpoint
from mrc.proto.events import EvChanged, Event, ImmediateReceived, QpFailed, WriteDone
from mrc.proto.paths import NEVER_NS, PathSet
from mrc.proto.peer import Peer, Plane, evs_per_plane, pair_planes
from mrc.proto.qp import QueuePair
from mrc.proto.requestor import Requestor
from mrc.proto.responder import Responder
from mrc.proto.runs import ReceivedRun, RunToSend, SockAddr
from mrc.proto.statistics import DropReason
from mrc.wire.fields import WRITE_OPCODES, Buffer
from mrc.wire.runs import RUN_PACKETS_MAX, RunBuffer
from mrc.wire.seal import Cipher, make_seal

US = 1_000
MS = 1_000_000
S = 1_000_000_000
UDP_PORT = 4971
FIRST_EV_PORT = 50_000
"""Source port of the first EV of every plane; the others follow it."""
RECEIVE_BUFFER_BYTES = 8 << 20
SECRETS = bytes(range(32)), bytes(range(32, 64))
"""What the two sides of a sealed pair contribute to its keys."""


@dataclass(slots=True)
class Datagram:
    """One datagram on the virtual wire; a filter may change any field."""

    sender: int
    """0 is A, 1 is B."""
    data: bytearray
    plane: int
    source_port: int
    flow_label: int
    tos: int
    sent_ns: int
    delay_ns: int
    copies: int = 1

    @property
    def opcode(self) -> int:
        """BTH opcode."""
        return self.data[0]

    @property
    def is_data(self) -> bool:
        """Whether it is a WRITE of any kind."""
        return self.data[0] in WRITE_OPCODES

    @property
    def psn(self) -> int:
        """BTH psn."""
        return int.from_bytes(self.data[9:12], "big")

    @property
    def rtx(self) -> bool:
        """Whether BTH says that it is a retransmission."""
        return bool(self.data[8] & 0x20)

    @property
    def flow(self) -> tuple[int, int, int, int, int]:
        """What must be equal for datagrams to arrive as one run."""
        return self.sender, self.plane, self.source_port, self.flow_label, self.tos


Filter = Callable[[Datagram], None]
"""Called for each datagram; `copies = 0` drops it."""


@dataclass
class Side:
    """One endpoint with one connected queue pair."""

    endpoint: Endpoint
    qp: QueuePair
    hosts: list[str]
    events: list[Event] = field(default_factory=list)

    @property
    def requestor(self) -> Requestor:
        """The sending half of its queue pair."""
        assert self.qp.requestor is not None
        return self.qp.requestor

    @property
    def responder(self) -> Responder:
        """The receiving half of its queue pair."""
        assert self.qp.responder is not None
        return self.qp.responder

    @property
    def peer(self) -> Peer:
        """The other side, as this one knows it."""
        assert self.qp.peer is not None
        return self.qp.peer

    @property
    def paths(self) -> PathSet:
        """The EVs towards the other side."""
        return self.peer.paths

    def ev_changes(self) -> list[EvChanged]:
        """Return what happened to its EVs, in order."""
        return [event for event in self.events if isinstance(event, EvChanged)]

    def dropped(self) -> dict[DropReason, int]:
        """Return how many datagrams were dropped, by reason."""
        return {reason: count for reason, count in self.endpoint.drops.items() if count}


class Pair:
    """Endpoints A and B, each with one queue pair to the other, and the network between them."""

    def __init__(  # noqa: PLR0913  # one for every property of a network that a test may want
        self,
        config: Config | None = None,
        *,
        config_b: Config | None = None,
        seed: int = 1,
        rng: random.Random | None = None,
        planes: int = 1,
        ipv6: bool = False,
        delay_ns: int = 20 * US,
        filters: list[Filter] | None = None,
        link_bps: float = 0,
        sealed: bool = False,
    ) -> None:
        self.config = config or Config()
        self.now_ns = 1 * S
        self.delay_ns = delay_ns
        self.filters: list[Filter] = filters if filters is not None else []
        self.dropped: Counter[int] = Counter()
        self.wire: list[bytes] = []
        self.keep_wire = False
        self._link_bps = link_bps
        self._free_at: dict[tuple[int, int], int] = {}
        self._queue: list[tuple[int, int, Datagram]] = []
        self._sequence = itertools.count()
        self._buffer = RunBuffer()
        rng = rng or random.Random(seed)
        self.rng = random.Random(seed + 1)
        self.sides: list[Side] = []
        for name, settings in (("a", self.config), ("b", config_b or self.config)):
            endpoint = Endpoint(settings, rng, self.now_ns)
            hosts = [
                f"fd00:{name}::{i + 1}" if ipv6 else f"10.{i}.0.{1 + (name == 'b')}"
                for i in range(planes)
            ]
            wanted = evs_per_plane(settings, planes)
            for host in hosts:
                ports = list(range(FIRST_EV_PORT, FIRST_EV_PORT + wanted))
                endpoint.add_port(host, UDP_PORT, ports)
            self.sides.append(Side(endpoint, endpoint.create_qp(), hosts))
        self.a, self.b = self.sides
        self._connect(sealed=sealed)

    def _connect(self, *, sealed: bool) -> None:
        attributes = [
            side.endpoint.attributes(
                side.qp,
                tuple((host, UDP_PORT) for host in side.hosts),
                receive_buffer_bytes=RECEIVE_BUFFER_BYTES,
            )
            for side in self.sides
        ]
        for side, local, remote in zip(self.sides, attributes, reversed(attributes), strict=True):
            hosts = list(enumerate(side.hosts))
            planes = [Plane(p, h, r) for p, h, r in pair_planes(hosts, remote.planes)]
            peer = side.endpoint.add_peer(planes)
            seal = None
            if sealed:
                seal = make_seal(Cipher.AES_256_GCM, SECRETS, connecting=side is self.a)
            side.endpoint.connect_qp(side.qp, peer, local, remote, self.now_ns, seal)
            side.qp.activate()

    # Driving.

    def flush(self) -> None:
        """Let both sides send all they may, and collect their events."""
        for index, side in enumerate(self.sides):
            while (run := side.endpoint.transmit(self.now_ns)) is not None:
                self._send(index, run)
            side.events += side.endpoint.poll()

    def _send(self, sender: int, run: RunToSend) -> None:
        memory = memoryview(run.memory)
        for start in range(0, len(memory), run.segment_bytes):
            datagram = Datagram(
                sender,
                bytearray(memory[start : start + run.segment_bytes]),
                run.port,
                run.source_port,
                run.flow_label,
                run.tos,
                self.now_ns,
                self.delay_ns,
            )
            if self.keep_wire:
                self.wire.append(bytes(datagram.data))
            for each in self.filters:
                each(datagram)
            if not datagram.copies:
                self.dropped[datagram.opcode] += 1
            for _ in range(datagram.copies):
                self.send_later(datagram, datagram.delay_ns + self._queueing(datagram))

    def send_later(self, datagram: Datagram, delay_ns: int) -> None:
        """Let a datagram arrive after that time."""
        heapq.heappush(self._queue, (self.now_ns + delay_ns, next(self._sequence), datagram))

    def _queueing(self, datagram: Datagram) -> int:
        """Return how long the datagram waits for and takes on its plane's link."""
        if not self._link_bps:
            return 0
        key = (datagram.sender, datagram.plane)
        start = max(self.now_ns, self._free_at.get(key, 0))
        self._free_at[key] = start + int((len(datagram.data) + 28) * 8e9 / self._link_bps)
        return self._free_at[key] - self.now_ns

    def _next_ns(self) -> int:
        """Return when the next datagram arrives or the next timer is due."""
        due = [deadline for s in self.sides if (deadline := s.endpoint.next_deadline_ns())]
        return min([*due, self._queue[0][0] if self._queue else NEVER_NS])

    def step(self) -> bool:
        """Go to the next arrival or timer; False when there is none."""
        self.flush()
        next_ns = self._next_ns()
        if next_ns == NEVER_NS:
            return False
        self.now_ns = max(self.now_ns, next_ns)
        while self._queue and self._queue[0][0] <= self.now_ns:
            self._deliver(self._next_run())
        for side in self.sides:
            side.endpoint.advance(self.now_ns)
        self.flush()
        return True

    def _next_run(self) -> list[Datagram]:
        """Take the next datagram due, and those that a kernel with GRO would hand over with it."""
        run = [heapq.heappop(self._queue)[2]]
        size = len(run[0].data)
        while self._queue and self._queue[0][0] <= self.now_ns and len(run[-1].data) == size:
            following = self._queue[0][2]
            fits = len(following.data) <= size and len(run) < min(
                RUN_PACKETS_MAX, RunBuffer.SIZE // size
            )
            if not fits or following.flow != run[0].flow:
                break
            run.append(heapq.heappop(self._queue)[2])
        return run

    def _deliver(self, datagrams: list[Datagram]) -> None:
        first = datagrams[0]
        host = self.sides[first.sender].hosts[first.plane]
        self.inject(
            1 - first.sender,
            b"".join(datagram.data for datagram in datagrams),
            segment_bytes=len(first.data),
            plane=first.plane,
            source=(host, first.source_port, 0, 0) if ":" in host else (host, first.source_port),
            tos=first.tos,
            flow_label=first.flow_label,
        )

    def inject(
        self,
        receiver: int,
        data: bytes,
        *,
        source: SockAddr,
        segment_bytes: int = 0,
        plane: int = 0,
        tos: int = 0,
        flow_label: int = 0,
    ) -> None:
        """Hand bytes to a side as if they had just come in; nobody needs to have sent them."""
        self._buffer.bytes[: len(data)] = data
        run = ReceivedRun(
            self._buffer,
            len(data),
            segment_bytes or len(data),
            plane,
            source,
            tos,
            flow_label,
        )
        self.sides[receiver].endpoint.receive(run, self.now_ns)

    def run(self, until: Callable[[], bool], timeout_ns: int = 10 * S) -> None:
        """Step until a condition holds; fail when virtual time or events run out."""
        deadline_ns = self.now_ns + timeout_ns
        self.flush()
        while not until():
            if not self.step():
                raise AssertionError("nothing left to happen, and the condition does not hold")
            if self.now_ns > deadline_ns:
                raise AssertionError(f"condition does not hold after {timeout_ns / MS:.0f} ms")

    def run_for(self, duration_ns: int) -> None:
        """Step until that much virtual time has gone by."""
        end_ns = self.now_ns + duration_ns
        self.flush()
        while self._next_ns() <= end_ns:
            self.step()
        self.now_ns = end_ns

    # Work.

    def post(self, data: Buffer, *, imm: int | None = None) -> tuple[int, bytearray]:
        """Post a write from A to fresh memory at B; return its id and the memory."""
        target = bytearray(memoryview(data).nbytes)
        region = self.b.endpoint.register(target)
        work = self.a.endpoint.post_write(self.a.qp, data, region.va, region.r_key, imm)
        return work, target

    def transfer(
        self, data: Buffer, *, imm: int | None = None, timeout_ns: int = 10 * S
    ) -> bytearray:
        """Write data from A to fresh memory at B, run until done, return the memory."""
        work, target = self.post(data, imm=imm)
        self.run(lambda: self.done(work) or self.failed(), timeout_ns)
        return target

    def done(self, work_id: int) -> bool:
        """Tell whether a work request of A is complete."""
        return any(isinstance(e, WriteDone) and e.work_id == work_id for e in self.a.events)

    def failed(self) -> bool:
        """Tell whether a queue pair went to ERROR."""
        return any(isinstance(e, QpFailed) for side in self.sides for e in side.events)

    def immediate_events(self) -> list[ImmediateReceived]:
        """Return what B was told of immediates, in order."""
        return [event for event in self.b.events if isinstance(event, ImmediateReceived)]

    def immediates(self) -> list[int]:
        """Return the immediates B received, in order."""
        return [event.imm for event in self.immediate_events()]
