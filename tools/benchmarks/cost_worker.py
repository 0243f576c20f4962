"""What a queue pair of mrc costs, and how soon it answers: `receive JOB` and `send JOB`.

The receiver lets everybody in, gives memory to the first few and answers immediates with
immediates. All measuring is the sender's: it may ask the kernel for the other process's memory and
processor time as well as for its own.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import statistics
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns, perf_counter_ns
from typing import Any

import mrc
from benchmarks.lines import emit, run
from benchmarks.meter import WALK_BYTES, touched
from benchmarks.work import (
    BLOCK_BYTES,
    BLOCKS_IN_FLIGHT,
    PING_BYTES,
    Stream,
    answer,
    ping,
    processor_ns,
    tell_region,
    told_region,
)
from mrc.units import NS_PER_S, NS_PER_US

EV_COUNTS = (1, 16, 256)
QP_COUNTS = (1, 100, 1000)
ENDPOINTS = 16
MESSAGE_SIZES = (64, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 16 << 20)
WINDOWS = 3
"""A QP count is measured so often in a row, and the median counts."""
CONNECTS_AT_ONCE = 16
MESSAGES_IN_FLIGHT = 32
KIB = 1 << 10

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the two sides do.

    Attributes:
        what: key of `MEASUREMENTS`.
        paths: EVs, where they are not what is varied.
        seconds: how long to measure, all in all; connecting comes on top.
        url: where the receiver is; the sender needs it.
        pid: of the receiver.
    """

    what: str
    paths: int
    seconds: float
    url: str = ""
    pid: int = 0


async def receive(job: Job) -> None:
    """Let in whoever comes; done when the first one leaves."""
    allow_descriptors()
    memory = touched(WALK_BYTES)
    active = len(EV_COUNTS) if job.what == "evs" else 1
    config = mrc.Config(paths=job.paths)
    async with mrc.listen("127.0.0.1:0", config=config) as listener, asyncio.TaskGroup() as group:
        emit({"url": listener.url, "pid": os.getpid()})
        served = []
        for _ in range(active):
            qp = await listener.accept()
            await tell_region(qp, memory)
            served.append(group.create_task(answer(qp, await told_region(qp))))
        kept: list[mrc.QueuePair] = []
        keeping = group.create_task(keep(listener, kept))
        await asyncio.wait(served, return_when=asyncio.FIRST_COMPLETED)
        for task in (keeping, *served):
            task.cancel()
        emit({})


async def keep(listener: mrc.Listener, kept: list[mrc.QueuePair]) -> None:
    """Accept queue pairs that will do nothing."""
    while True:
        kept.append(await listener.accept())


async def send(job: Job) -> None:
    """Measure, and tell."""
    allow_descriptors()
    async with AsyncExitStack() as stack:
        emit(await MEASUREMENTS[job.what](job, stack))


def allow_descriptors() -> None:
    """Each queue pair holds a TCP connection: take all that this user may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@dataclass(frozen=True, slots=True)
class Target:
    """A queue pair and the memory at its other end."""

    qp: mrc.QueuePair
    remote: mrc.RemoteRegion


async def open_target(job: Job, stack: AsyncExitStack, endpoint: mrc.Endpoint) -> Target:
    """Connect a queue pair that is given memory."""
    qp = await stack.enter_async_context(endpoint.connect(job.url))
    remote = await told_region(qp)
    await tell_region(qp, bytearray(PING_BYTES))
    return Target(qp, remote)


async def open_endpoint(stack: AsyncExitStack, paths: int) -> mrc.Endpoint:
    """Open an endpoint with so many EVs."""
    return await stack.enter_async_context(mrc.Endpoint(mrc.Config(paths=paths)))


# Latency.


async def ping_pong(job: Job, stack: AsyncExitStack) -> Metrics:
    """Write 64 bytes with an immediate, wait for the peer's: from one to the other."""
    target = await open_target(job, stack, await open_endpoint(stack, job.paths))
    data = bytes(PING_BYTES)
    round_trips_ns: list[int] = []
    warm_ns = monotonic_ns() + NS_PER_S // 5
    end_ns = warm_ns + int(job.seconds * NS_PER_S)
    while monotonic_ns() < end_ns:
        began_ns = perf_counter_ns()
        await ping(target.qp, target.remote, data)
        ended_ns = perf_counter_ns()
        if monotonic_ns() > warm_ns:
            round_trips_ns.append(ended_ns - began_ns)
    return percentiles(round_trips_ns)


def percentiles(round_trips_ns: list[int]) -> Metrics:
    """Return the half and the 99 percent of round trips, in microseconds."""
    cuts = statistics.quantiles(round_trips_ns, n=100)
    return {"p50_us": cuts[49] / NS_PER_US, "p99_us": cuts[98] / NS_PER_US}


# Cost per packet.


class Writer:
    """Writes through 64 MiB at a target, and says what it cost.

    Args:
        target: where to.
        peer_pid: whose processor time counts beside that of this process.
    """

    def __init__(self, target: Target, peer_pid: int) -> None:
        self._target = target
        self._pids = os.getpid(), peer_pid
        self._data = memoryview(touched(WALK_BYTES))

    async def goodput(
        self, seconds: float, size: int = BLOCK_BYTES, in_flight: int = BLOCKS_IN_FLIGHT
    ) -> tuple[int, float]:
        """Write messages of a size for a while; return bytes and seconds until all were placed."""
        qp, remote = self._target.qp, self._target.remote
        stream = Stream(qp, self._data, remote, block_bytes=size, in_flight=in_flight)
        began_ns = monotonic_ns()
        await stream.write_for(seconds)
        return stream.done_bytes, (monotonic_ns() - began_ns) / NS_PER_S

    async def packet_cost_ns(self, seconds: float) -> float:
        """Return the processor time of both sides for one packet, without retransmissions."""
        before_ns, sent = sum(map(processor_ns, self._pids)), self._packets()
        await self.goodput(seconds)
        return (sum(map(processor_ns, self._pids)) - before_ns) / (self._packets() - sent)

    def _packets(self) -> int:
        requestor = self._target.qp.statistics().requestor
        return requestor.packets_sent - requestor.packets_retransmitted


async def many_evs(job: Job, stack: AsyncExitStack) -> Metrics:
    """Let endpoints with few and many EVs take turns, there and back."""
    writers = {}
    for paths in EV_COUNTS:
        target = await open_target(job, stack, await open_endpoint(stack, paths))
        writers[paths] = Writer(target, job.pid)
    costs_ns: dict[int, list[float]] = {paths: [] for paths in EV_COUNTS}
    for paths in EV_COUNTS:
        await writers[paths].packet_cost_ns(0.1)
    seconds = job.seconds / (2 * len(EV_COUNTS))
    for paths in (*EV_COUNTS, *reversed(EV_COUNTS)):
        costs_ns[paths].append(await writers[paths].packet_cost_ns(seconds))
    return cost_metrics("evs", {paths: statistics.mean(each) for paths, each in costs_ns.items()})


async def many_qps(job: Job, stack: AsyncExitStack) -> Metrics:
    """Add idle queue pairs beside the one that writes; what they cost, and what they hold."""
    endpoint = await open_endpoint(stack, job.paths)
    writer = Writer(await open_target(job, stack, endpoint), job.pid)
    await writer.packet_cost_ns(0.2)
    held = 1
    costs_ns = {}
    before = resident_bytes(job.pid)
    seconds = job.seconds / (WINDOWS * len(QP_COUNTS))
    for count in QP_COUNTS:
        while held < count:
            step = min(CONNECTS_AT_ONCE, count - held)
            await asyncio.gather(*(endpoint.connect(job.url) for _ in range(step)))
            held += step
        windows = [await writer.packet_cost_ns(seconds) for _ in range(WINDOWS)]
        costs_ns[count] = statistics.median(windows)
    after = resident_bytes(job.pid)
    added = [(now - then) / (held - 1) / KIB for now, then in zip(after, before, strict=True)]
    return cost_metrics("qps", costs_ns) | {
        "qp_requestor_kib": added[0],
        "qp_responder_kib": added[1],
        "qp_kib": max(added),
    }


async def many_endpoints(job: Job, stack: AsyncExitStack) -> Metrics:
    """Open endpoints with their sockets and a queue pair each; what each holds on its own side."""
    first = await open_target(job, stack, await open_endpoint(stack, job.paths))
    await Writer(first, job.pid).packet_cost_ns(job.seconds)
    before, _ = resident_bytes(job.pid)
    for _ in range(ENDPOINTS):
        await (await open_endpoint(stack, job.paths)).connect(job.url)
    after, _ = resident_bytes(job.pid)
    return {"endpoint_kib": (after - before) / ENDPOINTS / KIB}


def cost_metrics(name: str, costs_ns: dict[int, float]) -> Metrics:
    """Return costs by how many there were of something, and by the cost with the fewest."""
    least = costs_ns[min(costs_ns)]
    found = {f"{name}_{count}_ns": cost_ns for count, cost_ns in costs_ns.items()}
    return found | {f"{name}_{count}_ratio": cost_ns / least for count, cost_ns in costs_ns.items()}


def resident_bytes(peer_pid: int) -> tuple[int, int]:
    """Return what this process and its peer have in memory."""
    gc.collect()
    page_bytes = resource.getpagesize()

    def of(process: str) -> int:
        return int(Path(f"/proc/{process}/statm").read_text("ascii").split()[1]) * page_bytes

    return of("self"), of(str(peer_pid))


# Goodput by size.


async def sizes(job: Job, stack: AsyncExitStack) -> Metrics:
    """Write messages of several sizes, many at once, there and back."""
    endpoint = await open_endpoint(stack, job.paths)
    writer = Writer(await open_target(job, stack, endpoint), job.pid)
    await writer.packet_cost_ns(0.2)
    moved: dict[int, tuple[int, float]] = dict.fromkeys(MESSAGE_SIZES, (0, 0.0))
    for size in (*MESSAGE_SIZES, *reversed(MESSAGE_SIZES)):
        in_flight = min(MESSAGES_IN_FLIGHT, WALK_BYTES // size)
        each = await writer.goodput(job.seconds / (2 * len(MESSAGE_SIZES)), size, in_flight)
        moved[size] = (moved[size][0] + each[0], moved[size][1] + each[1])
    found = {f"size_{size}_gbps": count * 8 / s / 1e9 for size, (count, s) in moved.items()}
    largest = found[f"size_{MESSAGE_SIZES[-1]}_gbps"]
    return found | {
        f"size_{size}_ratio": found[f"size_{size}_gbps"] / largest for size in MESSAGE_SIZES
    }


MEASUREMENTS: dict[str, Callable[[Job, AsyncExitStack], Any]] = {
    "ping-pong": ping_pong,
    "evs": many_evs,
    "qps": many_qps,
    "endpoints": many_endpoints,
    "sizes": sizes,
}


def main(role: str, job: str) -> None:
    """Play a role, `receive` or `send`."""
    roles = {"receive": receive, "send": send}
    run(roles[role](Job(**json.loads(job))))


if __name__ == "__main__":
    main(*sys.argv[1:])
