"""All-reduce between processes over loopback, by mrc and by what PyTorch has for processors."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import asdict
from importlib.util import find_spec
from statistics import fmean

from benchmarks.child import START_TIMEOUT_S, TRANSFER_TIMEOUT_S, MissingError, free_port, worker
from benchmarks.collective_worker import LARGE_BYTES, LARGE_TIMES, Job
from benchmarks.comparison import GOODPUT, Outcome
from benchmarks.context import Context

RANKS = 4


async def by_mrc(context: Context) -> Outcome:
    """Measure mrc's collectives."""
    del context
    return await measure("mrc")


async def by_gloo(context: Context) -> Outcome:
    """Measure gloo, which torch brings."""
    del context
    if find_spec("torch") is None:
        raise MissingError("torch is not installed: pip install 'mrc-transport[torch]'")
    return await measure("gloo")


async def measure(role: str, large_bytes: int = LARGE_BYTES) -> Outcome:
    """Run all ranks; algorithm bandwidth by the mean of their times, as mrc-perf and nccl-tests.

    Args:
        role: of the worker.
        large_bytes: of the buffer for the bandwidth.

    Raises:
        MeasurementError: a rank failed, took too long, or has a wrong sum.
    """
    port = free_port()
    jobs = [
        Job(rank=rank, ranks=RANKS, port=port, large_bytes=large_bytes) for rank in range(RANKS)
    ]
    async with AsyncExitStack() as stack:
        ranks = [
            await stack.enter_async_context(worker("collective_worker", role, asdict(job)))
            for job in jobs
        ]
        timeout_s = START_TIMEOUT_S + TRANSFER_TIMEOUT_S
        reports = await asyncio.gather(*(rank.receive(timeout_s) for rank in ranks))
        await asyncio.gather(*(rank.wait(timeout_s) for rank in ranks))
    seconds = fmean(report["large_s"] for report in reports) / LARGE_TIMES
    return Outcome(
        {
            GOODPUT: large_bytes * 8 / seconds / 1e9,
            "small_us": fmean(report["small_us"] for report in reports),
        }
    )
