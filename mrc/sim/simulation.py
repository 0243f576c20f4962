"""One simulation: a phase in which anything may fail, then healing, then everything must complete.

Safety is demanded all the time: no byte, completion or immediate may ever be wrong. Liveness is
demanded after healing: never longer than `Options.stall_ns` without progress, until everything is
written; then every EV must be in use again within `Options.recovery_ns`, and all counters must
balance.
"""

from __future__ import annotations

import traceback
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from mrc.sim.canary import Canary, tamper
from mrc.sim.chance import Chance
from mrc.sim.checks import Checks
from mrc.sim.clock import Timeline
from mrc.sim.connection import Connection
from mrc.sim.failure import CheckFailed
from mrc.sim.faults import Faults
from mrc.sim.host import Host
from mrc.sim.network import Network
from mrc.sim.options import Options
from mrc.sim.pcap import PcapWriter
from mrc.sim.trace import Trace
from mrc.units import NS_PER_MS

SLICE_NS = 20 * NS_PER_MS
"""How often progress is looked at."""
EVENTS_MAX = 1_000_000
"""More events than that are a storm: the largest simulations that a seed makes have a fifth."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a simulation ended."""

    seed: int
    rule: str
    """The rule that was broken; empty when none was."""
    message: str
    """How it was broken, or where the protocol raised an exception."""
    virtual_ns: int
    datagrams: int
    lost: int
    events: int
    reconnects: int
    trace_sha256: str = ""
    """Digest of the trace, where one was kept."""

    @property
    def passed(self) -> bool:
        """Whether all rules held."""
        return not self.rule

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as plain values."""
        return asdict(self)


class Simulation:
    """Hosts, network, connections, faults and checkers of one set of options."""

    def __init__(
        self,
        options: Options,
        *,
        traced: bool = False,
        pcap: BinaryIO | None = None,
        canary: Canary | None = None,
    ) -> None:
        """Put everything in place; nothing happens yet.

        Args:
            options: what to simulate.
            traced: keep a trace of all that happens, about 300 bytes per event.
            pcap: an open file that takes every datagram, as sent and as delivered.
            canary: a fault that the checkers must notice.
        """
        self.options = options
        self.timeline = Timeline()
        writer = PcapWriter(pcap, ipv6=options.ipv6) if pcap is not None else None
        self.trace = Trace(self.timeline, pcap=writer) if traced or pcap else None
        chance = Chance(options.seed)
        self.network = Network(options, self.timeline, chance.fork(), self.trace)
        if canary is not None:
            self.network.tamper = tamper(canary, ipv6=options.ipv6)
        self.hosts = [
            Host(index, options, self.timeline, chance.fork(), self.network)
            for index in range(len(options.hosts))
        ]
        self.connections = [
            Connection(
                index,
                (self.hosts[a], self.hosts[b]),
                options,
                self.timeline,
                chance.fork(),
                self.trace,
            )
            for index, (a, b) in enumerate(options.connections)
        ]
        self.checks = Checks(self.hosts, self.connections, self.network)
        for host in self.hosts:
            host.on_wake = self._on_wake
            host.on_event = self._on_event
        self._faults = Faults(
            options.faults, self.timeline, self.network, self.hosts, self.connections, self.trace
        )

    def _on_wake(self, host: Host) -> None:
        for connection in self.connections:
            connection.post_due(host)

    def _on_event(self, host: Host, event: Any) -> None:
        if self.trace is not None:
            self.trace.note("event", host=host.name, event=repr(event))
        for connection in self.connections:
            connection.on_event(host, event)

    # The phases.

    def run(self) -> Outcome:
        """Run all phases; whatever goes wrong is in the outcome."""
        rule = message = ""
        try:
            self._run()
        except CheckFailed as failed:
            rule, message = failed.rule, str(failed)
        except Exception:  # noqa: BLE001  # whatever the protocol raises is a finding
            rule, message = "exception", traceback.format_exc(limit=-6)
        return Outcome(
            seed=self.options.seed,
            rule=rule,
            message=message,
            virtual_ns=self.timeline.now_ns,
            datagrams=self.network.sent,
            lost=sum(self.network.lost.values()),
            events=self.timeline.events_done,
            reconnects=sum(c.times_connected - 1 for c in self.connections),
            trace_sha256=self.trace.digest() if self.trace is not None else "",
        )

    def _run(self) -> None:
        for connection in self.connections:
            connection.connect()
        self.timeline.run_until(self.options.faulty_ns)
        self._heal()
        self._complete()
        self._settle()
        self.checks.at_the_end()

    def _heal(self) -> None:
        self.checks.check_memory()
        if self.trace is not None:
            self.trace.note("heal")
        self._faults.heal()
        self.checks.healed_ns = self.timeline.now_ns

    def _complete(self) -> None:
        """Go on until everything is written."""
        timeline = self.timeline
        since_ns, before = timeline.now_ns, self._progress()
        while not all(connection.finished for connection in self.connections):
            self._advance()
            now = self._progress()
            if now != before:
                since_ns, before = timeline.now_ns, now
            elif timeline.now_ns - since_ns > self.options.stall_ns:
                waits = "; ".join(c.state() for c in self.connections if not c.finished)
                stall_ns = timeline.now_ns - since_ns
                raise CheckFailed("liveness", f"no progress for {stall_ns} ns: {waits}")

    def _settle(self) -> None:
        """Go on until nothing is on its way and every EV is in use."""
        deadline_ns = self.timeline.now_ns + self.options.recovery_ns
        while (
            (unusable := self.checks.unusable_evs())
            or self.network.on_the_way
            or any(host.unread for host in self.hosts)
        ):
            if self.timeline.now_ns > deadline_ns:
                raise CheckFailed("recovery", "; ".join(unusable) or "some are never read")
            self._advance()

    def _advance(self) -> None:
        """Go on for one slice of time, or to the next event if it comes later."""
        timeline = self.timeline
        if timeline.events_done > EVENTS_MAX:
            raise CheckFailed("storm", f"{timeline.events_done} events, and no end")
        next_ns = timeline.next_ns
        timeline.run_until(max(timeline.now_ns + SLICE_NS, next_ns or 0))

    def _progress(self) -> list[tuple[int, ...]]:
        """Return what changes when anything gets further."""
        found: list[tuple[int, ...]] = []
        for connection in self.connections:
            for end in connection.ends:
                qp = end.qp
                if qp is None or qp.requestor is None or qp.responder is None:
                    found.append((connection.times_connected,))
                else:
                    una, cack = qp.requestor.window.una, qp.responder.window.cack
                    held = qp.responder.window.ooo_count
                    left = len(end.undone)
                    found.append((connection.times_connected, una, cack, held, left))
        return found
