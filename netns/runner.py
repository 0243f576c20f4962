"""Runs a scenario in a lab: starts its traffic, breaks things on time, reads counters."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from time import monotonic_ns
from typing import Any

import numpy as np
from pydantic import ValidationError

from netns import faults
from netns.damage import Damage
from netns.errors import LabError
from netns.fabric import Fabric, plan
from netns.lab import Lab
from netns.processes import Traffic, TrafficFailed
from netns.recording import FlowSeen, Recording
from netns.scenario import Flow, Scenario
from netns.switch import LinkCounters
from netns.topology import Queue
from netns.topology import load as load_topology
from netns.transports import Transport

READY_TIMEOUT_S = 20.0
DRAIN_TIMEOUT_S = 40.0
"""After the end: a queue pair that gets no answer fails within 30 s, and says why."""
LEAD_S = 0.2
"""From the word to start to the start: all senders have heard it by then."""
PERIOD_S = 0.01
"""Between two readings of the links' counters."""
COUNTER_NAMES = tuple(LinkCounters.__slots__)
_numbers = attrgetter(*COUNTER_NAMES)

BUSY_PERCENT_MAX = 15
"""Of all processors, taken by others, above which what is measured is the machine."""

Say = Callable[[str], None]


def fabric_of(scenario: Scenario) -> Fabric:
    """Return the fabric a scenario asks for.

    Raises:
        LabError: it names what is not there.
    """
    topology = load_topology(scenario.topology, mtu=scenario.mtu)
    try:
        queue = Queue.model_validate({**topology.queue.model_dump(), **scenario.queue})
    except ValidationError as error:
        raise LabError(f"{scenario.name}: queue: {error.errors()[0]['msg']}") from error
    fabric = plan(topology.model_copy(update={"queue": queue}))
    for host in {end for flow in scenario.flows for end in (flow.source, flow.target)}:
        fabric.planes(host)
    for fault in scenario.faults:
        for name in fault.links:
            faults.harmed(fabric, fabric.link(name), fault.kind, fault.towards)
        for node in fault.nodes:
            if node not in fabric.nodes:
                raise LabError(f"fault {fault.kind}: there is no node {node}")
    return fabric


def run(scenario: Scenario, transport: Transport, lab_name: str, say: Say) -> Recording:
    """Build the fabric, run the scenario once and remove everything again.

    Args:
        scenario: what to run.
        transport: over what.
        lab_name: prefix of what is made.
        say: told about each step, one line.

    Raises:
        LabError: a mistake in the files, or this machine lacks something.
    """
    if transport.name != "mrc" and not scenario.compare:
        raise LabError(
            f"{scenario.name} is about what only MRC has; {transport.name} cannot run it"
        )
    fabric = fabric_of(scenario)
    busy = busy_percent()
    if warning := busy_warning(busy):
        say(warning)
    with Lab(fabric, lab_name) as lab, Damage(scenario, lab, say) as damage:
        transport.prepare(lab, scenario)
        return asyncio.run(_Run(scenario, transport, lab, damage, say, busy).run())


def busy_percent(over_s: float = 0.2) -> float:
    """Return how much of the processors is in use just now."""
    before = _processor_ticks()
    time.sleep(over_s)
    total, idle = (now - then for now, then in zip(_processor_ticks(), before, strict=True))
    return 100 * (1 - idle / total) if total else 0.0


def busy_warning(percent: float) -> str:
    """Say what use of the processors by others means to a measurement; nothing if it is little."""
    if percent <= BUSY_PERCENT_MAX:
        return ""
    return f"other programs take {percent:.0f} % of the processors: numbers show that"


def _processor_ticks() -> tuple[int, int]:
    """Return all ticks of the processors so far, and those spent idle (proc_stat(5))."""
    first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    ticks = [int(word) for word in first.split()[1:]]
    return sum(ticks[:8]), ticks[3] + ticks[4]


class _Run:
    def __init__(
        self,
        scenario: Scenario,
        transport: Transport,
        lab: Lab,
        damage: Damage,
        say: Say,
        busy: float,
    ) -> None:
        self.scenario = scenario
        self.transport = transport
        self.lab = lab
        self.damage = damage
        self.say = say
        self.zero_ns = 0
        self.busy_percent = busy
        self.trouble: list[str] = []
        self.receivers: dict[str, Traffic] = {}
        self.senders: dict[str, Traffic] = {}
        self.readings: list[tuple[int, list[tuple[int, ...]]]] = []

    async def run(self) -> Recording:
        """Run it; processes are gone afterwards, however it ends."""
        try:
            await self.damage.begin_early()
            await self._start_receivers()
            await self._start_senders()
            await self._play()
            await self._finish()
        except TrafficFailed as error:
            self.trouble.append(str(error))
        finally:
            await asyncio.gather(*(traffic.end() for traffic in self._all_traffic()))
        return self._recording()

    def _all_traffic(self) -> list[Traffic]:
        return [*self.senders.values(), *self.receivers.values()]

    # Traffic.

    async def _start_receivers(self) -> None:
        if self.transport.among_senders:
            return
        for host in dict.fromkeys(flow.target for flow in self.scenario.flows):
            orders = self.transport.receiver_orders(self.lab, self.scenario, host)
            self.receivers[host] = await self._start(f"receiver-{host}", host, orders)
        for traffic in self.receivers.values():
            await traffic.expect("ready", READY_TIMEOUT_S)

    async def _start_senders(self) -> None:
        """Connect them one after the other: forty interpreters at once would starve each other.

        Those that connect to each other have to start together.
        """
        for flow in self.scenario.flows:
            orders = self.transport.sender_orders(self.lab, self.scenario, flow)
            self.senders[flow.name] = await self._start(f"sender-{flow.name}", flow.source, orders)
            if not self.transport.among_senders:
                await self._connected(flow)
        if self.transport.among_senders:
            for flow in self.scenario.flows:
                await self._connected(flow)

    async def _connected(self, flow: Flow) -> None:
        ports = await self.senders[flow.name].expect("connected", READY_TIMEOUT_S)
        self.damage.source_ports[flow.name] = json.loads(ports)

    async def _start(self, name: str, host: str, orders: dict[str, Any]) -> Traffic:
        record = self.lab.folder / f"{name}.json"
        module = orders.pop("module")
        command = [sys.executable, "-m", module, json.dumps({**orders, "record": str(record)})]
        return await Traffic.start(
            name, self.lab.command(host, command), self.lab.environment(), record
        )

    async def _play(self) -> None:
        """Say when zero is, then read counters and do what is planned until the end.

        Raises:
            TrafficFailed: a process has died meanwhile.
        """
        self.zero_ns = monotonic_ns() + int(LEAD_S * 1e9)
        for traffic in self.senders.values():
            traffic.tell(str(self.zero_ns))
        self.say(f"{self.scenario.name} over {self.transport.name}: {self.scenario.duration_s:g} s")
        while (now_s := self._now_s()) < self.scenario.duration_s:
            self.damage.act(now_s)
            self._read_counters()
            self._see_that_all_live()
            next_s = min(self.damage.next_s, now_s + PERIOD_S)
            await asyncio.sleep(max(0.0, next_s - self._now_s()))
        self._read_counters()

    def _see_that_all_live(self) -> None:
        if trouble := self.lab.hop_trouble():
            raise TrafficFailed("; ".join(trouble))
        for traffic in self._all_traffic():
            if traffic.ended and traffic.complaint:
                raise TrafficFailed(f"{traffic.name} died: {traffic.complaint}")

    async def _finish(self) -> None:
        """Wait for the last messages with everything mended, then for the records."""
        await self.damage.mend_all(self._now_s())
        for traffic in self.senders.values():
            await traffic.finished(DRAIN_TIMEOUT_S)
        for traffic in self.receivers.values():
            traffic.close_input()
            await traffic.finished(READY_TIMEOUT_S)
        self.trouble += self.lab.end_hop()

    # What was seen.

    def _now_s(self) -> float:
        return (monotonic_ns() - self.zero_ns) / 1e9

    def _read_counters(self) -> None:
        counters = [_numbers(port.counters()) for port in self.lab.ports.values()]
        self.readings.append((monotonic_ns(), counters))

    def _recording(self) -> Recording:
        received: dict[str, Any] = {}
        for traffic in self.receivers.values():
            record = traffic.record()
            received |= {each["name"]: each for each in record.get("flows", [])}
            self.trouble += record.get("errors", [])
        for traffic in self._all_traffic():
            if traffic.complaint and not any(traffic.complaint in each for each in self.trouble):
                self.trouble.append(f"{traffic.name}: {traffic.complaint}")
        links = _by_link(list(self.lab.ports), [each for _, each in self.readings])
        flows = []
        for flow in self.scenario.flows:
            sender = self.senders[flow.name].record() if flow.name in self.senders else {}
            got = received.get(flow.name, {})
            if self.transport.among_senders:
                got = self._record_at(flow.target)
            if self.transport.bytes_by_links:
                got = {**got, "samples": self._carried(flow, links)}
            flows.append(self._flow_seen(flow, sender, got))
        return Recording(
            self.scenario,
            self.lab.fabric,
            self.transport.name,
            flows,
            self.damage.happened,
            (np.array([at for at, _ in self.readings], np.float64) - self.zero_ns) / 1e9,
            links,
            [*self.trouble, *self.damage.trouble],
            self.busy_percent,
        )

    def _record_at(self, host: str) -> dict[str, Any]:
        """Return the record of the sender at a host."""
        names = [flow.name for flow in self.scenario.flows if flow.source == host]
        return self.senders[names[0]].record() if names[0] in self.senders else {}

    def _carried(self, flow: Flow, links: Mapping[str, Mapping[str, Any]]) -> list[list[float]]:
        """Return what the receiver's last hops carried of payload, where it does not say itself."""
        payload = self.transport.payload_bytes(self.lab.fabric)
        share = payload / (payload + self.transport.header_bytes)
        names = [f"{link.name}>{flow.target}" for link in self.lab.fabric.planes(flow.target)]
        total = sum((links[name]["bytes"] for name in names if name in links), np.zeros(1))
        times = [at for at, _ in self.readings]
        return [list(pair) for pair in zip(times, (total * share).tolist(), strict=False)]

    def _flow_seen(self, flow: Flow, sender: dict[str, Any], got: dict[str, Any]) -> FlowSeen:
        return FlowSeen(
            name=flow.name,
            source=flow.source,
            target=flow.target,
            start_s=flow.start_s,
            stop_s=self.scenario.duration_s if flow.stop_s is None else flow.stop_s,
            message_bytes=flow.message_kib * 1024,
            mtu_bytes=self.transport.payload_bytes(self.lab.fabric),
            header_bytes=self.transport.header_bytes,
            zero_ns=self.zero_ns,
            sender=sender,
            receiver=got,
        )


def _by_link(
    names: Sequence[str], readings: list[list[tuple[int, ...]]]
) -> dict[str, dict[str, Any]]:
    """Turn readings into one column per link and counter."""
    if not readings:
        return {}
    table = np.array(readings, np.float64)
    return {
        name: {counter: table[:, i, j] for j, counter in enumerate(COUNTER_NAMES)}
        for i, name in enumerate(names)
    }
