"""A simulation that is measured: who is connected to whom, when what was done, what links hold.

All senders write to one receiver, the last host. What is measured is seen from outside, in true
time: bytes placed in the receiver's memory, completions told to the senders, changes of EVs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from mrc.proto.config import Config
from mrc.proto.events import EvChanged, Event, WriteDone
from mrc.proto.statistics import RequestorStatistics
from mrc.sim.connection import Connection
from mrc.sim.failure import CheckFailed
from mrc.sim.host import Host
from mrc.sim.options import Fault, HostOptions, LinkOptions, Options, WriteOptions
from mrc.sim.simulation import Simulation
from mrc.units import NS_PER_MS, NS_PER_S

START_NS = NS_PER_MS
"""When the first write may be posted: all queue pairs are ready by then."""
_SLICE_NS = NS_PER_MS
_STALL_NS = 20 * NS_PER_S


def to_one_receiver(
    config: Config,
    links: dict[str, LinkOptions],
    *,
    size_bytes: int,
    senders: int = 1,
    planes: int = 1,
    ways: int = 1,
    faults: tuple[Fault, ...] = (),
) -> Options:
    """Return a simulation in which every sender writes one message to the last host.

    Args:
        config: of every endpoint.
        links: all of them by name.
        size_bytes: of each message; all are posted at `START_NS`.
        senders: hosts beside the receiver.
        planes: of every host.
        ways: switches in the middle of each plane, 1 for none.
        faults: what goes wrong.
    """
    return Options(
        seed=1,
        hosts=(senders + 1) * (HostOptions(config=config),),
        planes=planes,
        ways=ways,
        links=links,
        faults=faults,
        connections=tuple((sender, senders) for sender in range(senders)),
        writes=tuple(
            WriteOptions(
                connection=sender,
                backwards=False,
                at_ns=START_NS,
                size_bytes=size_bytes,
                immediate=False,
            )
            for sender in range(senders)
        ),
    )


@dataclass(slots=True, eq=False)
class Flow:
    """What one sender writes to the receiver."""

    connection: Connection
    done_ns: list[int] = field(default_factory=list)
    """When each of its writes was reported done."""
    placed: list[tuple[int, int]] = field(default_factory=list)
    """(time, bytes in the receiver's memory) at each change, where that is watched."""
    ev_changes: list[tuple[int, EvChanged]] = field(default_factory=list)
    """What happened to the sender's EVs, and when."""

    @property
    def statistics(self) -> RequestorStatistics:
        """Counters of the sender."""
        qp = self.connection.ends[0].qp
        assert qp is not None
        assert qp.requestor is not None
        return qp.requestor.statistics()

    @property
    def placed_bytes(self) -> int:
        """Bytes in the receiver's memory by now."""
        qp = self.connection.ends[1].qp
        assert qp is not None
        assert qp.responder is not None
        return qp.responder.statistics().payload_bytes_placed

    def placed_ns(self, least_bytes: int) -> int:
        """Return when that many bytes were in the receiver's memory; it has to be watched."""
        return next(at_ns for at_ns, placed in self.placed if placed >= least_bytes)


class Bench:
    """One simulation and its flows, in the order of `Options.connections`."""

    def __init__(self, options: Options) -> None:
        self.simulation = Simulation(options)
        self.timeline = self.simulation.timeline
        self.network = self.simulation.network
        self.flows = [Flow(connection) for connection in self.simulation.connections]
        self._by_sender = {flow.connection.ends[0].host: flow for flow in self.flows}
        for host in self.simulation.hosts:
            # The invariants after every wake-up are what seeds are for; they cost more than all
            # else where one host has many connections. What the end must be like is checked.
            host.after_wake = _nothing
            host.on_event = partial(self._on_event, host.on_event)
        for connection in self.simulation.connections:
            connection.connect()

    def _on_event(self, judge: Callable[[Host, Event], None], host: Host, event: Event) -> None:
        judge(host, event)
        flow = self._by_sender.get(host)
        if flow is not None and isinstance(event, WriteDone):
            flow.done_ns.append(self.timeline.now_ns)
        elif flow is not None and isinstance(event, EvChanged):
            flow.ev_changes.append((self.timeline.now_ns, event))

    def watch(self, flow: Flow) -> None:
        """Note from now on when bytes of a flow are placed; of one flow for each receiver."""
        flow.connection.ends[1].host.after_wake = partial(self._watch, flow)

    def _watch(self, flow: Flow, _: Host) -> None:
        placed_bytes = flow.placed_bytes
        if not flow.placed or placed_bytes > flow.placed[-1][1]:
            flow.placed.append((self.timeline.now_ns, placed_bytes))

    def every(self, period_ns: int, look: Callable[[], None], *, since_ns: int = START_NS) -> None:
        """Call a function now and then, as long as the simulation runs."""
        self.timeline.at(since_ns, self._look, (period_ns, look))

    def _look(self, what: tuple[int, Callable[[], None]]) -> None:
        period_ns, look = what
        look()
        self.timeline.at(self.timeline.now_ns + period_ns, self._look, what)

    def complete(self) -> None:
        """Run until everything is written and nothing is on its way; check what must be true then.

        Raises:
            CheckFailed: bytes or counters are wrong, or the end does not come.
        """
        timeline, deadline_ns = self.timeline, self.timeline.now_ns + _STALL_NS
        while not self._finished():
            if timeline.now_ns > deadline_ns:
                raise CheckFailed("liveness", f"not complete after {_STALL_NS} ns")
            timeline.run_until(timeline.now_ns + _SLICE_NS)
        self.simulation.checks.at_the_end()

    def _finished(self) -> bool:
        return (
            all(connection.finished for connection in self.simulation.connections)
            and not self.network.on_the_way
            and not any(host.unread for host in self.simulation.hosts)
        )


def _nothing(_: Host) -> None:
    """Nobody looks."""
