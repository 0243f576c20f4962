"""Many ranks in lockstep: an all-reduce by its plan, over unmodified endpoints.

The plan is that of `mrc.collectives`; each rank is a host, each step a WRITE-with-Immediate into
the memory of the next. What arrives is reduced at once, so all time is the network's. The sums are
real ones, and checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

import mrc.collectives.algorithms  # noqa: F401 - makes the names of plans known
from mrc.collectives.plans import Operation, Plan, Reduce, Send, build
from mrc.errors import ConfigError
from mrc.proto.config import Config, QpAttributes
from mrc.proto.events import Event, ImmediateReceived, QpFailed
from mrc.proto.memory import Region
from mrc.proto.qp import QueuePair
from mrc.proto.statistics import RequestorStatistics
from mrc.sim.addresses import HOST_NAMES, UDP_PORT
from mrc.sim.chance import Chance
from mrc.sim.failure import CheckFailed
from mrc.sim.host import Host
from mrc.sim.options import Fault, FaultKind, HostOptions, LinkOptions, Options, link_names
from mrc.sim.simulation import Simulation
from mrc.units import NS_PER_MS, NS_PER_S

RANKS_MAX = 256
PLANES = 4
BPS = 1_000_000_000
HOP_NS = 5_000
MTU = 1024
CHUNK_BYTES = 4 * MTU
START_NS = NS_PER_MS
DEAD_NS = 200 * NS_PER_MS
"""How long a link that dies is dead."""
_SLICE_NS = NS_PER_MS
_STALL_NS = 2 * NS_PER_S
_WORD = np.dtype(np.uint32)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is run.

    Attributes:
        ranks: 2 to `RANKS_MAX`, a host each, with four planes of 1 Gbit/s.
        seed: of everything that is left to chance.
        loss: of datagrams on their way from host to host, 0 to 1.
        deaths: ports that go silent in both directions for `DEAD_NS`, each another one, at times
            spread over the shortest run that there can be; at most all of them.
    """

    ranks: int
    seed: int
    loss: float = 0.0
    deaths: int = 0

    def options(self) -> Options:
        """Return the network, its hosts and what goes wrong."""
        chance = Chance(self.seed)
        link = LinkOptions(rate_bps=BPS, delay_ns=HOP_NS)
        lossy = replace(link, loss=self.loss)
        links = {
            # Once on each way, on the second of its two links.
            name: lossy if name.startswith("down ") else link
            for name in link_names(self.ranks, PLANES, 1)
        }
        config = Config(mtu=MTU, link_bps=PLANES * BPS)
        return Options(
            seed=self.seed,
            hosts=self.ranks * (HostOptions(config=config),),
            planes=PLANES,
            ways=1,
            links=links,
            faults=tuple(self._deaths(chance)),
            connections=(),
            writes=(),
        )

    def _deaths(self, chance: Chance) -> Iterator[Fault]:
        # A step takes no less than one of its packets does, on the two links of a plane: the other
        # packets can be on other planes meanwhile. So each dies before a run can be over.
        packet_ns = 2 * (HOP_NS + 8 * MTU * NS_PER_S // BPS)
        least_ns = 2 * (self.ranks - 1) * packet_ns
        ports = [f"{name}.{plane}" for name in HOST_NAMES[: self.ranks] for plane in range(PLANES)]
        for _ in range(self.deaths):
            port = ports.pop(chance.below(len(ports)))
            at_ns = START_NS + chance.below(least_ns)
            for way in ("up", "down"):
                yield Fault(kind=FaultKind.CUT, where=f"{way} {port}", at_ns=at_ns, for_ns=DEAD_NS)


@dataclass(frozen=True, slots=True)
class Result:
    """What came of it.

    Attributes:
        took_ns: until the last rank had everything.
        steps_ns: of each step of each rank, how long it took.
        packets: sent by all, those sent again among them.
        again: packets sent again.
        timeouts: of retransmission timers.
    """

    took_ns: int
    steps_ns: tuple[int, ...]
    packets: int
    again: int
    timeouts: int


class Rank:
    """One rank: its host, its memory, and where it is in its plan."""

    def __init__(self, host: Host, plan: Plan, data: NDArray[np.uint32]) -> None:
        self.host = host
        self.plan = plan
        self.chunks = data.reshape(plan.chunks, -1)
        self.inbox = np.zeros_like(self.chunks)
        """A slot a chunk: what is reduced arrives here; in the end all chunks have been sent on."""
        self.region: Region = host.endpoint.register(self.inbox)
        self.to: QueuePair | None = None
        self.source: QueuePair | None = None
        self.place: Region | None = None
        """Of the next rank."""
        self.next_step = 0
        self.arrived: list[int] = []
        self.steps_ns: list[int] = []
        self.moved_ns = START_NS
        """When it took its last step."""
        self._sent: list[NDArray[np.uint32]] = []

    @property
    def over(self) -> bool:
        """Whether it has done all of its plan."""
        return self.next_step == len(self.plan.steps)

    @property
    def statistics(self) -> RequestorStatistics:
        """Counters of what it sends."""
        assert self.to is not None
        assert self.to.requestor is not None
        return self.to.requestor.statistics()

    def go_on(self) -> None:
        """Take the steps that can be taken now."""
        now_ns = self.host.true_ns
        while not self.over:
            step = self.plan.steps[self.next_step]
            if isinstance(step, Send):
                self._send(step.chunk)
            elif not self._take(step.chunk, reduced=isinstance(step, Reduce)):
                return
            else:
                self.steps_ns.append(now_ns - self.moved_ns)
                self.moved_ns = now_ns
            self.next_step += 1

    def _send(self, chunk: int) -> None:
        assert self.to is not None
        assert self.place is not None
        # What is on its way must not change, and the next step of the chunk may change it.
        data = self.chunks[chunk].copy()
        self._sent.append(data)
        va = self.place.va + chunk * CHUNK_BYTES
        self.host.endpoint.post_write(self.to, data, va, self.place.r_key, chunk)

    def _take(self, chunk: int, *, reduced: bool) -> bool:
        if not self.arrived:
            return False
        came = self.arrived.pop(0)
        if came != chunk:
            raise CheckFailed("immediates", f"{self.host.name}: chunk {came}, not {chunk}")
        if reduced:
            self.chunks[chunk] += self.inbox[chunk]
        else:
            self.chunks[chunk] = self.inbox[chunk]
        return True


class AllReduce:
    """One run of a scenario.

    Raises:
        ConfigError: no such scenario.
    """

    def __init__(self, scenario: Scenario) -> None:
        if not 2 <= scenario.ranks <= RANKS_MAX:
            raise ConfigError(f"{scenario.ranks} ranks; must be 2 to {RANKS_MAX}")
        ports = PLANES * scenario.ranks
        if not 0 <= scenario.deaths <= ports:
            raise ConfigError(f"{scenario.deaths} dead of {ports} ports")
        self._simulation = Simulation(scenario.options())
        self.network = self._simulation.network
        ranks, chance = scenario.ranks, Chance(scenario.seed)
        words = ranks * CHUNK_BYTES // _WORD.itemsize
        given = [np.frombuffer(chance.data(4 * words), _WORD).copy() for _ in range(ranks)]
        self._total = np.add.reduce(given, dtype=_WORD)
        self.ranks = [
            Rank(host, build(Operation.ALL_REDUCE, "ring", number, ranks), data)
            for number, (host, data) in enumerate(zip(self._simulation.hosts, given, strict=True))
        ]
        for number, rank in enumerate(self.ranks):
            self._join(rank, self.ranks[(number + 1) % ranks])
            rank.host.after_wake = _nothing
            rank.host.on_wake = _nothing
            rank.host.on_event = partial(self._on_event, rank)
        self._simulation.timeline.at(START_NS, self._start, None)

    def _join(self, rank: Rank, following: Rank) -> None:
        """Connect a rank to the next one, out of band."""
        ends = (rank.host, following.host)
        qps = [host.endpoint.create_qp() for host in ends]
        offers = [_offer(host, qp) for host, qp in zip(ends, qps, strict=True)]
        for i, (host, qp) in enumerate(zip(ends, qps, strict=True)):
            peer = host.peer(ends[1 - i])
            host.endpoint.connect_qp(qp, peer, offers[i], offers[1 - i], host.local_ns(), None)
            qp.activate()
        rank.to, following.source = qps
        rank.place = following.region

    def _start(self, _: object) -> None:
        for rank in self.ranks:
            rank.go_on()
            rank.host.wake_by(START_NS)

    def _on_event(self, rank: Rank, _: Host, event: Event) -> None:
        match event:
            case ImmediateReceived():
                if rank.source is not None and rank.source.responder is not None:
                    rank.source.responder.release_immediates(1)
                rank.arrived.append(event.imm)
                rank.go_on()
                rank.host.wake_by(rank.host.true_ns)
            case QpFailed():
                raise CheckFailed("failure", f"{rank.host.name}: {event.failure}")
            case _:
                pass

    def run(self) -> Result:
        """Run to the end.

        Raises:
            CheckFailed: it does not come, a queue pair fails, or a sum is wrong.
        """
        timeline, before, since_ns = self._simulation.timeline, -1, 0
        while not all(rank.over for rank in self.ranks):
            timeline.run_until(timeline.now_ns + _SLICE_NS)
            done = sum(rank.next_step for rank in self.ranks)
            if done != before:
                before, since_ns = done, timeline.now_ns
            elif timeline.now_ns - since_ns > _STALL_NS:
                raise CheckFailed("liveness", f"no step for {_STALL_NS} ns, {done} done")
        for rank in self.ranks:
            if not np.array_equal(rank.chunks.reshape(-1), self._total):
                raise CheckFailed("placement", f"{rank.host.name}: its sums are wrong")
        found = [rank.statistics for rank in self.ranks]
        return Result(
            took_ns=max(rank.moved_ns for rank in self.ranks) - START_NS,
            steps_ns=tuple(each for rank in self.ranks for each in rank.steps_ns),
            packets=sum(each.packets_sent for each in found),
            again=sum(each.packets_retransmitted for each in found),
            timeouts=sum(each.timeouts for each in found),
        )


def _offer(host: Host, qp: QueuePair) -> QpAttributes:
    return host.endpoint.attributes(
        qp,
        tuple((port.host, UDP_PORT) for port in host.ports),
        receive_buffer_bytes=host.options.receive_buffer_bytes,
    )


def _nothing(_: Host) -> None:
    """The work of this application is done when something arrives."""
