"""A lab with a rank in every host: lets them train, and breaks a plane at a given step."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import monotonic_ns
from typing import Any

from netns import faults
from netns.fabric import FabricLink
from netns.lab import Lab
from netns.processes import Traffic, TrafficFailed

TOOLS = Path(__file__).resolve().parent.parent
PORT = 29500
START_TIMEOUT_S = 60.0
"""Four interpreters import torch at once."""
STEP_TIMEOUT_S = 60.0
"""Far longer than a plane is dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What happens in a training.

    Attributes:
        steps: how many.
        dies_at: behind this step the plane dies; None: never.
        dead_s: for how long.
    """

    steps: int
    dies_at: int | None = None
    dead_s: float = 0.0


@dataclass(slots=True)
class Training:
    """What one training was like.

    Attributes:
        moments_ns: by rank: when the first step began, and when each ended.
        losses: of each step, the mean over the ranks.
        right: share of the images kept back that the network tells right in the end.
        dead_ns: when the plane died and was healed, if it did.
    """

    moments_ns: list[list[int]]
    losses: list[float]
    right: float
    dead_ns: tuple[int, int] | None = None

    @property
    def steps_ms(self) -> list[float]:
        """Time of every step: it is over when it is on the slowest rank."""
        ends = [max(moments) for moments in zip(*self.moments_ns, strict=True)]
        return [(end - begin) / 1e6 for begin, end in pairwise(ends)]

    @property
    def dead_s(self) -> float:
        """How long the plane was dead."""
        return 0.0 if self.dead_ns is None else (self.dead_ns[1] - self.dead_ns[0]) / 1e9

    @property
    def dead_steps(self) -> range | None:
        """The steps that were under way while the plane was dead."""
        if self.dead_ns is None:
            return None
        ends = [max(moments) for moments in zip(*self.moments_ns, strict=True)]
        died, healed = self.dead_ns
        first = sum(end <= died for end in ends[1:])
        last = sum(end < healed for end in ends[1:])
        return range(first, min(last + 1, len(ends) - 1))


@dataclass(slots=True)
class Classroom:
    """The ranks of one backend, ready to train; made by `assembled`.

    Attributes:
        backend: over what they exchange gradients.
        lab: where they are.
        plane: which one dies. The address that rank 0 is found at is on it, and all of gloo.
    """

    backend: str
    lab: Lab
    plane: int
    ranks: list[Traffic] = field(default_factory=list)
    _dead_ns: dict[str, tuple[int, int]] = field(default_factory=dict)

    async def start(self, seed: int) -> None:
        """Start a rank in every host, and wait until all have met.

        Raises:
            TrafficFailed: one of them ended, or was silent for too long.
        """
        hosts = self.lab.fabric.topology.hosts
        environment = self.lab.environment() | {
            "MASTER_ADDR": self.lab.fabric.addresses(hosts[0])[self.plane],
            "MASTER_PORT": str(PORT),
            "WORLD_SIZE": str(len(hosts)),
            "MRC_SOCKET_IFNAME": "p",
            "GLOO_SOCKET_IFNAME": f"p{self.plane}",
            "PYTHONPATH": os.pathsep.join([str(TOOLS), os.environ.get("PYTHONPATH", "")]),
        }
        for rank, host in enumerate(hosts):
            name = f"{self.backend}-{rank}"
            record = self.lab.folder / f"{name}.json"
            orders = {"backend": self.backend, "rank": rank, "size": len(hosts), "seed": seed}
            command = [sys.executable, "-m", "training.rank"]
            command.append(json.dumps({**orders, "record": str(record)}))
            self.ranks.append(
                await Traffic.start(
                    name,
                    self.lab.command(host, command),
                    environment | {"RANK": str(rank)},
                    record,
                )
            )
        await self._all(rank.expect("ready", START_TIMEOUT_S) for rank in self.ranks)

    async def train(self, name: str, plan: Plan, say: Callable[[str], None]) -> float:
        """Let all ranks train once; return the seconds a step took, as heard from rank 0.

        A plane dies meanwhile if the plan says so.

        Args:
            name: of the training, a word.
            plan: what happens in it.
            say: told what was done, one line each.

        Raises:
            TrafficFailed: a rank ended, or was silent for too long.
        """
        for rank in self.ranks:
            rank.tell(f"{name} {plan.steps}")
        over, outage = asyncio.Event(), asyncio.ensure_future(asyncio.sleep(0))
        try:
            heard_ns = []
            for step in range(plan.steps):
                await self.ranks[0].expect("step", STEP_TIMEOUT_S)
                heard_ns.append(monotonic_ns())
                if step == plan.dies_at:
                    outage = asyncio.ensure_future(self._outage(name, plan.dead_s, over, say))
            await self._all(rank.expect("trained", STEP_TIMEOUT_S) for rank in self.ranks)
        finally:
            over.set()
            await outage
        return (heard_ns[-1] - heard_ns[0]) / 1e9 / max(plan.steps - 1, 1)

    async def _outage(
        self, name: str, dead_s: float, over: asyncio.Event, say: Callable[[str], None]
    ) -> None:
        """Let every link of the plane swallow everything for a time, or until all is over."""
        died_ns = monotonic_ns()
        say(f"plane {self.plane} goes silent, in both directions")
        await asyncio.to_thread(self._break)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(dead_s):
                await over.wait()
        # What talks to the kernel has an event loop of its own.
        await asyncio.to_thread(faults.heal, self.lab, *self._links())
        self._dead_ns[name] = died_ns, monotonic_ns()
        say(f"plane {self.plane} is healed")

    def _break(self) -> None:
        for link in self._links():
            faults.fail(self.lab, link, "blackhole")

    def _links(self) -> list[FabricLink]:
        return [link for link in self.lab.fabric.links if link.plane == self.plane]

    async def finish(self) -> dict[str, Training]:
        """Let all ranks end, and return what every training was like, by its name.

        Raises:
            TrafficFailed: one does not end, or has failed.
        """
        for rank in self.ranks:
            rank.close_input()
        await self._all(rank.finished(START_TIMEOUT_S) for rank in self.ranks)
        for rank in self.ranks:
            if rank.complaint:
                raise TrafficFailed(f"{rank.name}: {rank.complaint}")
        records = [rank.record()["trainings"] for rank in self.ranks]
        return {name: self._training(name, [each[name] for each in records]) for name in records[0]}

    def _training(self, name: str, seen: list[dict[str, Any]]) -> Training:
        losses = zip(*(each["losses"] for each in seen), strict=True)
        return Training(
            moments_ns=[each["moments_ns"] for each in seen],
            losses=[sum(of_step) / len(of_step) for of_step in losses],
            right=seen[0]["right"],
            dead_ns=self._dead_ns.get(name),
        )

    @staticmethod
    async def _all(doing: Iterable[Coroutine[Any, Any, Any]]) -> None:
        """Wait for all; the first that fails ends the waiting, and is raised."""
        tasks = [asyncio.ensure_future(each) for each in doing]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def assembled(backend: str, lab: Lab, plane: int, seed: int) -> AsyncIterator[Classroom]:
    """Start the ranks of a backend; they are gone when the block is left, however that is.

    Raises:
        TrafficFailed: one of them ended, or was silent for too long.
    """
    classroom = Classroom(backend, lab, plane)
    try:
        await classroom.start(seed)
        yield classroom
    finally:
        await asyncio.gather(*(rank.end() for rank in classroom.ranks))
