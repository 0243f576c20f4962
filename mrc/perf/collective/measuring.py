"""The ranks measure together: each its own time, and all learn what all have measured."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter_ns
from typing import Protocol

import numpy as np

from mrc.collectives import Communicator
from mrc.errors import PeerProtocolError
from mrc.perf.collective.contents import Contents
from mrc.perf.collective.exercise import Exercise
from mrc.perf.collective.figures import CollectiveTest
from mrc.perf.collective.settings import CollectivePlan

_PID_BYTES, _PLAN_BYTES, _HOST_BYTES = 8, 32, 64


@dataclass(frozen=True, slots=True)
class Where:
    """Where a rank runs."""

    rank: int
    pid: int
    host: str


class Audience(Protocol):
    """Is told how a run goes on."""

    def met(self, ranks: list[Where]) -> None:
        """All ranks are there."""

    def measured(self, test: CollectiveTest) -> None:
        """A test is through."""


async def measure(
    communicator: Communicator, plan: CollectivePlan, audience: Audience
) -> list[CollectiveTest]:
    """Run all tests of a plan, and return what all ranks have measured.

    Raises:
        PeerProtocolError: on all ranks: they have not been given the same plan.
        MrcError: a rank has failed, or took too long.
    """
    audience.met(await _meet(communicator, plan))
    contents = Contents(plan.dtype, plan.op, plan.ranks)
    tests = []
    for count in plan.counts:
        for test in await _measure_size(communicator, plan, count, contents):
            tests.append(test)
            audience.measured(test)
    return tests


async def _meet(communicator: Communicator, plan: CollectivePlan) -> list[Where]:
    """Learn which process on which host every rank is, and that all have the same plan.

    Raises:
        PeerProtocolError: they have not; it names those whose plan is not rank 0's.
    """
    # How long a rank waits is its own business.
    shared = hashlib.sha256(repr(replace(plan, timeout_s=0)).encode()).digest()
    host = socket.gethostname().encode()[:_HOST_BYTES].ljust(_HOST_BYTES, b"\0")
    own = np.frombuffer(os.getpid().to_bytes(_PID_BYTES, "big") + shared + host, np.uint8)
    told = np.empty(communicator.size * own.size, np.uint8)
    await communicator.all_gather(own, told)
    rows = [row.tobytes() for row in told.reshape(communicator.size, own.size)]
    plans = [row[_PID_BYTES : _PID_BYTES + _PLAN_BYTES] for row in rows]
    others = [str(rank) for rank, each in enumerate(plans) if each != plans[0]]
    if others:
        raise PeerProtocolError(
            f"rank {', '.join(others)} measures something else than rank 0: give all ranks the same"
            " options"
        )
    return [
        Where(
            rank,
            int.from_bytes(row[:_PID_BYTES], "big"),
            row[_PID_BYTES + _PLAN_BYTES :].rstrip(b"\0").decode(errors="replace"),
        )
        for rank, row in enumerate(rows)
    ]


async def _measure_size(
    communicator: Communicator, plan: CollectivePlan, count: int, contents: Contents
) -> list[CollectiveTest]:
    """Measure one size with every algorithm, which take turns; the median of the rounds counts."""
    # In a thread: a rank whose event loop stands still for long is as silent as a dead one.
    exercise = await asyncio.to_thread(Exercise, plan, communicator, count)
    rounds: dict[str | None, list[list[int]]] = {name: [] for name in plan.algorithms}
    for number in range(plan.rounds):
        there_and_back = plan.algorithms if number % 2 == 0 else plan.algorithms[::-1]
        for name in there_and_back:
            took_ns = await _time(communicator, plan, exercise, name)
            rounds[name].append(await _told(communicator, took_ns))
    tests = []
    for name, in_rounds in rounds.items():
        wrong = None
        if plan.verify:
            wrong = sum(await _told(communicator, await _verify(exercise, name, contents)))
        times_ns = [time_ns / plan.iterations for told in in_rounds for time_ns in told]
        tests.append(
            CollectiveTest(
                plan=plan,
                count=count,
                algorithm=name or plan.chosen(count),
                time_ns=median(sum(told) / len(told) for told in in_rounds) / plan.iterations,
                time_ns_min=min(times_ns),
                time_ns_max=max(times_ns),
                wrong=wrong,
            )
        )
    return tests


async def _time(
    communicator: Communicator, plan: CollectivePlan, exercise: Exercise, name: str | None
) -> int:
    """Carry it out so often, one after the other, and return the nanoseconds of all together."""
    for _ in range(plan.warm_up):
        await exercise.run(name)
    await communicator.barrier()
    began_ns = perf_counter_ns()
    for _ in range(plan.iterations):
        await exercise.run(name)
    return perf_counter_ns() - began_ns


async def _verify(exercise: Exercise, name: str | None, contents: Contents) -> int:
    """Carry it out once more with known contents, and return how many elements are wrong here."""
    await asyncio.to_thread(exercise.prepare, contents)
    await exercise.run(name)
    return await asyncio.to_thread(exercise.count_wrong, contents)


async def _told(communicator: Communicator, number: int) -> list[int]:
    """Return the numbers of all ranks."""
    told = np.empty(communicator.size, np.int64)
    await communicator.all_gather(np.array([number]), told)
    numbers: list[int] = told.tolist()
    return numbers
