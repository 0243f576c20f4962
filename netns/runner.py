"""Runs a scenario in a lab: starts its traffic, breaks things on time, reads counters."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import attrgetter
from time import monotonic_ns
from typing import Any

import numpy as np

from netns import faults
from netns.errors import LabError
from netns.fabric import Fabric, plan
from netns.lab import Lab
from netns.metrics import HEADERS_BYTES
from netns.processes import Traffic, TrafficFailed
from netns.recording import FlowSeen, Happened, Recording
from netns.scenario import Fault, Flow, Scenario
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

Say = Callable[[str], None]


def fabric_of(scenario: Scenario) -> Fabric:
    """Return the fabric a scenario asks for.

    Raises:
        LabError: it names what is not there.
    """
    topology = load_topology(scenario.topology, mtu=scenario.mtu)
    if scenario.queue:
        changed = Queue.model_validate({**topology.queue.model_dump(), **scenario.queue})
        topology = topology.model_copy(update={"queue": changed})
    fabric = plan(topology)
    for flow in scenario.flows:
        fabric.planes(flow.source), fabric.planes(flow.target)
    for fault in scenario.faults:
        for name in fault.links:
            faults.directions(fabric.link(name), fault.towards)
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
    fabric = fabric_of(scenario)
    with Lab(fabric, lab_name) as lab:
        transport.prepare(lab, scenario)
        return asyncio.run(_Run(scenario, transport, lab, say).run())


class _Run:
    def __init__(self, scenario: Scenario, transport: Transport, lab: Lab, say: Say) -> None:
        self.scenario = scenario
        self.transport = transport
        self.lab = lab
        self.say = say
        self.zero_ns = 0
        self._hands = ThreadPoolExecutor(1)
        self.happened: list[Happened] = []
        self.broken: list[Fault] = []
        self.trouble: list[str] = []
        self.receivers: dict[str, Traffic] = {}
        self.senders: dict[str, Traffic] = {}
        self.source_ports: dict[str, list[int]] = {}
        self.readings: list[tuple[int, list[tuple[int, ...]]]] = []

    async def run(self) -> Recording:
        """Run it; processes are gone afterwards, however it ends."""
        try:
            for fault in self.scenario.faults:
                if fault.before_start:
                    await self._do(partial(self._begin, fault, -1.0, None))
            await self._start_receivers()
            await self._start_senders()
            await self._play()
            await self._finish()
        except (TrafficFailed, TimeoutError) as error:
            self.trouble.append(str(error) or "a traffic process did not answer in time")
        finally:
            for traffic in [*self.senders.values(), *self.receivers.values()]:
                await traffic.end()
            self._hands.shutdown()
        return self._recording()

    # Traffic.

    async def _start_receivers(self) -> None:
        for host in dict.fromkeys(flow.target for flow in self.scenario.flows):
            orders = self.transport.receiver_orders(self.lab, self.scenario, host)
            self.receivers[host] = await self._start(f"receiver-{host}", host, orders)
        async with asyncio.timeout(READY_TIMEOUT_S):
            for traffic in self.receivers.values():
                await traffic.expect("ready")

    async def _start_senders(self) -> None:
        """Connect them one after the other: forty interpreters at once would starve each other."""
        for flow in self.scenario.flows:
            orders = self.transport.sender_orders(self.lab, self.scenario, flow)
            traffic = await self._start(f"sender-{flow.name}", flow.source, orders)
            self.senders[flow.name] = traffic
            async with asyncio.timeout(READY_TIMEOUT_S):
                self.source_ports[flow.name] = json.loads(await traffic.expect("connected"))

    async def _start(self, name: str, host: str, orders: dict[str, Any]) -> Traffic:
        record = self.lab.folder / f"{name}.json"
        module = orders.pop("module")
        command = [sys.executable, "-m", module, json.dumps({**orders, "record": str(record)})]
        return await Traffic.start(
            name, self.lab.command(host, command), self.lab.environment(), record
        )

    async def _play(self) -> None:
        """Say when zero is, then read counters and do what is planned until the end."""
        self.zero_ns = monotonic_ns() + int(LEAD_S * 1e9)
        for traffic in self.senders.values():
            traffic.tell(str(self.zero_ns))
        plan = self._plan()
        working: set[asyncio.Future[None]] = set()
        self.say(f"{self.scenario.name} over {self.transport.name}: {self.scenario.duration_s:g} s")
        while (now_s := self._now_s()) < self.scenario.duration_s:
            while plan and plan[0][0] <= now_s:
                working.add(self._do(plan.pop(0)[1]))
            self._read_counters()
            next_s = min(plan[0][0] if plan else now_s + PERIOD_S, now_s + PERIOD_S)
            await asyncio.sleep(max(0.0, next_s - self._now_s()))
        self._read_counters()
        await asyncio.gather(*working)

    def _do(self, work: Callable[[], None]) -> asyncio.Future[None]:
        """Do what talks to the kernel in the one thread for it: its library waits for answers."""
        return asyncio.get_running_loop().run_in_executor(self._hands, work)

    async def _finish(self) -> None:
        """Wait for the last messages with everything mended, then for the records."""
        for fault in list(self.broken):
            if not fault.before_start:
                await self._do(partial(self._mend, fault))
        async with asyncio.timeout(DRAIN_TIMEOUT_S):
            for traffic in self.senders.values():
                await traffic.finished()
        for traffic in self.receivers.values():
            traffic.close_input()
        async with asyncio.timeout(READY_TIMEOUT_S):
            for traffic in self.receivers.values():
                await traffic.finished()

    # Faults.

    def _plan(self) -> list[tuple[float, Callable[[], None]]]:
        """Return what is to be done when, in order."""
        steps: list[tuple[float, Callable[[], None]]] = []

        def begin(fault: Fault, end_s: float | None) -> None:
            self._begin(fault, self._now_s(), end_s)

        for fault in self.scenario.faults:
            if fault.before_start:
                continue
            for begin_s, end_s in fault.spans:
                steps.append((begin_s, partial(begin, fault, end_s)))
                if end_s is not None:
                    steps.append((end_s, partial(self._mend, fault)))
        return sorted(steps, key=lambda step: step[0])

    def _begin(self, fault: Fault, now_s: float, end_s: float | None) -> None:
        links = [self.lab.fabric.link(name) for name in fault.links]
        port = None
        if fault.flow is not None and fault.path is not None:
            ports = self.source_ports[fault.flow]
            port = ports[fault.path] if ports else None
            if port is None:
                return
        for link in links:
            faults.fail(
                self.lab,
                link,
                fault.kind,
                amount=fault.amount,
                towards=fault.towards,
                only=fault.only,
                source_port=port,
            )
        for node in fault.nodes:
            faults.switch_down(self.lab, node)
            links += [link for link, _ in self.lab.fabric.interfaces(node)]
        self.broken.append(fault)
        names = tuple(link.name for link in links)
        planes = tuple(sorted({link.plane for link in links}))
        self.happened.append(Happened(fault.kind, _in_words(fault), now_s, end_s, names, planes))
        self.say(f"{max(now_s, 0):6.2f} s: {_in_words(fault)}")

    def _mend(self, fault: Fault) -> None:
        self.broken.remove(fault)
        faults.heal(self.lab, *(self.lab.fabric.link(name) for name in fault.links))
        for node in fault.nodes:
            faults.switch_up(self.lab, node)
        self.say(f"{self._now_s():6.2f} s: {_in_words(fault)} is mended")

    # What was seen.

    def _now_s(self) -> float:
        return (monotonic_ns() - self.zero_ns) / 1e9

    def _read_counters(self) -> None:
        counters = [_numbers(port.counters()) for port in self.lab.ports.values()]
        self.readings.append((monotonic_ns(), counters))

    def _recording(self) -> Recording:
        fabric = self.lab.fabric
        received: dict[str, Any] = {}
        for traffic in self.receivers.values():
            record = traffic.record()
            received |= {each["name"]: each for each in record.get("flows", [])}
            self.trouble += record.get("errors", [])
        at_s = (np.array([at for at, _ in self.readings], np.float64) - self.zero_ns) / 1e9
        links = _by_link(list(self.lab.ports), [each for _, each in self.readings])
        flows = []
        for flow in self.scenario.flows:
            sender = self.senders[flow.name].record() if flow.name in self.senders else {}
            got = received.get(flow.name, {})
            if "samples" not in got:
                got = {**got, "samples": self._carried(flow, links)}
            flows.append(self._flow_seen(flow, sender, got))
        for traffic in [*self.senders.values(), *self.receivers.values()]:
            if traffic.complaint:
                self.trouble.append(f"{traffic.name}: {traffic.complaint}")
        return Recording(
            self.scenario,
            fabric,
            self.transport.name,
            flows,
            self.happened,
            at_s,
            links,
            self.trouble,
        )

    def _carried(self, flow: Flow, links: Mapping[str, Mapping[str, Any]]) -> list[list[float]]:
        """Return what the receiver's last hops carried of payload, where it does not say itself."""
        payload = self.transport.payload_bytes(self.lab.fabric)
        names = [f"{link.name}>{flow.target}" for link in self.lab.fabric.planes(flow.target)]
        share = payload / (payload + HEADERS_BYTES)
        total = sum((links[name]["bytes"] for name in names if name in links), np.zeros(1))
        times = [at for at, _ in self.readings]
        return [list(pair) for pair in zip(times, (total * share).tolist(), strict=False)]

    def _flow_seen(self, flow: Flow, sender: dict[str, Any], got: dict[str, Any]) -> FlowSeen:
        stop_s = self.scenario.duration_s if flow.stop_s is None else flow.stop_s
        return FlowSeen(
            flow.name,
            flow.source,
            flow.target,
            flow.start_s,
            stop_s,
            flow.message_kib * 1024,
            int(sender.get("mtu", self.transport.payload_bytes(self.lab.fabric))),
            self.zero_ns,
            sender,
            got,
        )


def _in_words(fault: Fault) -> str:
    where = ", ".join([*fault.links, *fault.nodes])
    amount = "" if fault.amount is None else f" {fault.amount:g}"
    only = "" if fault.only == "all" else f" ({fault.only} only)"
    towards = "" if fault.towards is None else f" towards {fault.towards}"
    ev = "" if fault.path is None else f" of EV {fault.path} of {fault.flow}"
    return f"{fault.kind}{amount}{only}{ev} on {where}{towards}"


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
