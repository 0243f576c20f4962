"""The faults of a scenario while it runs: begun and mended on time, and what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Self

from pyroute2.netlink.exceptions import NetlinkError

from netns import faults
from netns.errors import LabError
from netns.lab import Lab
from netns.recording import Happened
from netns.scenario import Fault, Scenario

Step = tuple[float, Callable[[float], None]]


class Damage:
    """Breaks a lab as a scenario says. What talks to the kernel runs in a thread of its own."""

    def __init__(self, scenario: Scenario, lab: Lab, say: Callable[[str], None]) -> None:
        """Plan the faults.

        Args:
            scenario: whose faults.
            lab: where.
            say: told about each, one line.
        """
        self._lab = lab
        self._say = say
        self._hands = ThreadPoolExecutor(1)
        self._under_way: list[asyncio.Future[None]] = []
        self._broken: dict[int, Happened] = {}
        self.happened: list[Happened] = []
        self.trouble: list[str] = []
        """What the kernel refused."""
        self.source_ports: dict[str, list[int]] = {}
        """By flow: the UDP source port of each of its EVs, as the senders told."""
        timed = [fault for fault in scenario.faults if not fault.before_start]
        self._early = [fault for fault in scenario.faults if fault.before_start]
        self._steps = sorted((s for fault in timed for s in self._steps_of(fault)), key=_due_s)

    def _steps_of(self, fault: Fault) -> list[Step]:
        steps: list[Step] = []
        for begin_s, end_s in fault.spans:
            steps.append((begin_s, partial(self._begin, fault)))
            if end_s is not None:
                steps.append((end_s, partial(self._mend, fault)))
        return steps

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._hands.shutdown()

    async def begin_early(self) -> None:
        """Break what is broken before anything starts."""
        for fault in self._early:
            await self._do(partial(self._begin, fault), -1.0)

    @property
    def next_s(self) -> float:
        """When something is to be done next."""
        return self._steps[0][0] if self._steps else float("inf")

    def act(self, now_s: float) -> None:
        """Begin what is due, without waiting for it."""
        while self.next_s <= now_s:
            self._under_way.append(self._do(self._steps.pop(0)[1], now_s))

    async def mend_all(self, now_s: float) -> None:
        """Wait for what is under way and mend what is left, but for what was so from the start."""
        await asyncio.gather(*self._under_way)
        for each in list(self._broken.values()):
            if each.begin_s >= 0:
                await self._do(partial(self._mend, each.fault), now_s)
                each.end_s = None

    def _do(self, work: Callable[[float], None], now_s: float) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(self._hands, self._try, work, now_s)

    def _try(self, work: Callable[[float], None], now_s: float) -> None:
        try:
            work(now_s)
        except (LabError, NetlinkError, OSError) as error:
            self.trouble.append(f"a fault could not be made or mended: {error}")

    def _begin(self, fault: Fault, now_s: float) -> None:
        lab = self._lab
        links = [lab.fabric.link(name) for name in fault.links]
        port = self._source_port(fault)
        for link in links:
            faults.fail(
                lab,
                link,
                fault.kind,
                amount=fault.amount,
                towards=fault.towards,
                only=fault.only,
                source_port=port,
            )
        for node in fault.nodes:
            faults.switch_down(lab, node)
            links += [link for link, _ in lab.fabric.interfaces(node)]
        planes = tuple(sorted({link.plane for link in links}))
        happened = Happened(fault, in_words(fault), now_s, None, planes)
        self.happened.append(happened)
        self._broken[id(fault)] = happened
        self._say(f"{max(now_s, 0):6.2f} s: {happened.what}")

    def _source_port(self, fault: Fault) -> int | None:
        if fault.flow is None or fault.path is None:
            return None
        ports = self.source_ports.get(fault.flow, [])
        if fault.path >= len(ports):
            raise LabError(f"flow {fault.flow} has {len(ports)} EVs; there is no EV {fault.path}")
        return ports[fault.path]

    def _mend(self, fault: Fault, now_s: float) -> None:
        happened = self._broken.pop(id(fault), None)
        if happened is None:
            return
        faults.heal(self._lab, *(self._lab.fabric.link(name) for name in fault.links))
        for node in fault.nodes:
            faults.switch_up(self._lab, node)
        happened.end_s = now_s
        self._say(f"{now_s:6.2f} s: {happened.what} is mended")


def _due_s(step: Step) -> float:
    return step[0]


def in_words(fault: Fault) -> str:
    """Return what a fault does and where, for people."""
    where = ", ".join([*fault.links, *fault.nodes])
    amount = ""
    # A reboot, which is of a switch, takes none.
    if fault.amount is not None and fault.kind in faults.KINDS:
        unit = faults.KINDS[fault.kind].unit
        amount = f" {fault.amount:g} {'%' if unit == 'percent' else unit}"
    only = "" if fault.only == "all" else f" ({fault.only} only)"
    towards = "" if fault.towards is None else f" towards {fault.towards}"
    ev = "" if fault.path is None else f" of EV {fault.path} of {fault.flow}"
    return f"{fault.kind}{amount}{only}{ev} on {where}{towards}"
