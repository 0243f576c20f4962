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
from mrc.proto.events import Event, ImmediateReceived, QpFailed, WriteDone
from mrc.proto.peer import Plane, evs_per_plane, pair_planes
from mrc.proto.qp import QueuePair
from mrc.proto.runs import ReceivedRun, RunToSend
from mrc.wire.runs import RunBuffer

US = 1_000
MS = 1_000_000
S = 1_000_000_000
UDP_PORT = 4971
RECEIVE_BUFFER_BYTES = 8 << 20


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


Filter = Callable[[Datagram], None]
"""Called for each datagram; `copies = 0` drops it."""


@dataclass
class Side:
    """One endpoint with one connected queue pair."""

    endpoint: Endpoint
    qp: QueuePair
    hosts: list[str]
    events: list[Event] = field(default_factory=list)


class Pair:
    """Endpoints A and B, each with one queue pair to the other, and the network between them."""

    def __init__(
        self,
        config: Config | None = None,
        *,
        seed: int = 1,
        planes: int = 1,
        ipv6: bool = False,
        delay_ns: int = 20 * US,
        filters: list[Filter] | None = None,
        link_bps: float = 0,
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
        rng = random.Random(seed)
        self.rng = random.Random(seed + 1)
        self.sides: list[Side] = []
        for name in "ab":
            endpoint = Endpoint(self.config, rng, self.now_ns)
            hosts = [
                f"fd00:{name}::{i + 1}" if ipv6 else f"10.{i}.0.{1 + (name == 'b')}"
                for i in range(planes)
            ]
            wanted = evs_per_plane(self.config, planes)
            for host in hosts:
                endpoint.add_port(host, UDP_PORT, list(range(50_000, 50_000 + wanted)))
            self.sides.append(Side(endpoint, endpoint.create_qp(), hosts))
        self.a, self.b = self.sides
        self._connect()

    def _connect(self) -> None:
        attributes = [
            side.endpoint.attributes(
                side.qp, tuple((host, UDP_PORT) for host in side.hosts), RECEIVE_BUFFER_BYTES
            )
            for side in self.sides
        ]
        for side, remote in zip(self.sides, reversed(attributes), strict=True):
            local = list(enumerate(side.hosts))
            planes = [Plane(p, h, r) for p, h, r in pair_planes(local, remote.planes)]
            peer = side.endpoint.add_peer(planes, remote.endpoint_tag)
            side.endpoint.connect_qp(side.qp, peer, remote, self.now_ns)
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
                at = self.now_ns + datagram.delay_ns + self._queueing(datagram)
                heapq.heappush(self._queue, (at, next(self._sequence), datagram))

    def _queueing(self, datagram: Datagram) -> int:
        """Return how long the datagram waits for and takes on its plane's link."""
        if not self._link_bps:
            return 0
        key = (datagram.sender, datagram.plane)
        start = max(self.now_ns, self._free_at.get(key, 0))
        self._free_at[key] = start + int((len(datagram.data) + 28) * 8e9 / self._link_bps)
        return self._free_at[key] - self.now_ns

    def step(self) -> bool:
        """Go to the next arrival or timer; False when there is none."""
        self.flush()
        due = [deadline for s in self.sides if (deadline := s.endpoint.next_deadline_ns())]
        if self._queue:
            due.append(self._queue[0][0])
        if not due:
            return False
        self.now_ns = max(self.now_ns, min(due))
        while self._queue and self._queue[0][0] <= self.now_ns:
            self._deliver(heapq.heappop(self._queue)[2])
        for side in self.sides:
            side.endpoint.advance(self.now_ns)
        self.flush()
        return True

    def _deliver(self, datagram: Datagram) -> None:
        data = datagram.data
        self._buffer.bytes[: len(data)] = data
        sender, receiver = self.sides[datagram.sender], self.sides[1 - datagram.sender]
        host = sender.hosts[datagram.plane]
        source = (host, datagram.source_port, 0, 0) if ":" in host else (host, datagram.source_port)
        receiver.endpoint.receive(
            ReceivedRun(
                self._buffer,
                len(data),
                len(data),
                datagram.plane,
                source,
                datagram.tos,
                datagram.flow_label,
            ),
            self.now_ns,
        )

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
        while self.now_ns < end_ns:
            if not self.step():
                break
        self.now_ns = max(self.now_ns, end_ns)

    # Work.

    def transfer(
        self, data: bytes, *, imm: int | None = None, timeout_ns: int = 10 * S
    ) -> bytearray:
        """Write data from A to fresh memory at B, run until done, return the memory."""
        target = bytearray(len(data))
        region = self.b.endpoint.register(target)
        work = self.a.endpoint.post_write(self.a.qp, data, region.va, region.r_key, imm)
        self.run(lambda: self.done(work) or self.failed(), timeout_ns)
        self.b.endpoint.deregister(region)
        return target

    def done(self, work_id: int) -> bool:
        """Tell whether a work request of A is complete."""
        return any(isinstance(e, WriteDone) and e.work_id == work_id for e in self.a.events)

    def failed(self) -> bool:
        """Tell whether a queue pair went to ERROR."""
        return any(isinstance(e, QpFailed) for side in self.sides for e in side.events)

    def immediates(self) -> list[int]:
        """Return the immediates B received, in order."""
        return [e.imm for e in self.b.events if isinstance(e, ImmediateReceived)]
