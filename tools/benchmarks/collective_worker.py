"""One rank of an all-reduce, by mrc or by torch's gloo: `mrc JOB` and `gloo JOB`.

Both do the same, in processes that differ in nothing else: the sum of a large buffer is checked,
then it is timed, then a small one. torch is imported by who plays gloo alone.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mrc
from benchmarks.lines import emit, run
from mrc import collectives
from mrc.units import NS_PER_S, NS_PER_US

LARGE_BYTES, LARGE_TIMES = 64 << 20, 3
SMALL_BYTES, SMALL_TIMES = 4 << 10, 100
START_TIMEOUT_S = 30.0
"""For all ranks to meet."""
HOST = "127.0.0.1"

Floats = NDArray[np.float32]
AllReduce = Callable[[Floats], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a rank is.

    Attributes:
        rank: which one.
        ranks: of how many.
        port: of loopback, where they meet.
        large_bytes: of the buffer for the bandwidth.
    """

    rank: int
    ranks: int
    port: int
    large_bytes: int = LARGE_BYTES


async def by_mrc(job: Job) -> None:
    """Use mrc's collectives as they are by default."""
    url = mrc.Url.parse(f"{HOST}:{job.port}")
    bootstrap = collectives.Bootstrap(
        rank=job.rank, size=job.ranks, url=url, timeout_s=START_TIMEOUT_S
    )
    async with collectives.join(bootstrap) as world:

        async def all_reduce(buffer: Floats) -> None:
            await world.all_reduce(buffer)

        await _measure(job, all_reduce)


async def by_gloo(job: Job) -> None:
    """Use torch.distributed over TCP on loopback, with one thread to reduce, as mrc has."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch, distributed = import_module("torch"), import_module("torch.distributed")
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{HOST}:{job.port}",
        rank=job.rank,
        world_size=job.ranks,
        timeout=timedelta(seconds=START_TIMEOUT_S),
    )

    async def all_reduce(buffer: Floats) -> None:
        # The same memory, and no copy.
        distributed.all_reduce(torch.from_numpy(buffer))

    await _measure(job, all_reduce)
    distributed.destroy_process_group()


async def _measure(job: Job, all_reduce: AllReduce) -> None:
    """Check the sum, which is the warm-up too, then take the times and tell them."""
    large = np.full(job.large_bytes // 4, job.rank + 1, np.float32)
    await all_reduce(large)
    if not (large == job.ranks * (job.ranks + 1) / 2).all():
        raise ValueError("the all-reduce has not summed up what the ranks gave")
    small = np.zeros(SMALL_BYTES // 4, np.float32)
    await all_reduce(small)
    report: dict[str, Any] = {"rank": job.rank}
    report["large_s"] = sum(await _times_ns(all_reduce, large, LARGE_TIMES)) / NS_PER_S
    times_ns = await _times_ns(all_reduce, small, SMALL_TIMES)
    report["small_us"] = statistics.median(times_ns) / NS_PER_US
    emit(report)


async def _times_ns(all_reduce: AllReduce, buffer: Floats, times: int) -> list[int]:
    """Carry it out so often, one after the other; the one before the first lets all begin alike."""
    await all_reduce(np.zeros(1, np.float32))
    times_ns = []
    for _ in range(times):
        began_ns = perf_counter_ns()
        await all_reduce(buffer)
        times_ns.append(perf_counter_ns() - began_ns)
    return times_ns


def main(role: str, job: str) -> None:
    """Play a role, `mrc` or `gloo`."""
    roles = {"mrc": by_mrc, "gloo": by_gloo}
    run(roles[role](Job(**json.loads(job))))


if __name__ == "__main__":
    main(*sys.argv[1:])
