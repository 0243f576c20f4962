"""What queue pairs, EVs and messages of mrc cost, each in one run of two processes."""

from __future__ import annotations

from dataclasses import asdict

from benchmarks.child import transfer
from benchmarks.comparison import Outcome
from benchmarks.context import Context
from benchmarks.cost_worker import Job


async def ping_pong(context: Context) -> Outcome:
    """Measure the round trip of a WRITE-with-Immediate and the one that answers it."""
    return await _measure(context, "ping-pong", 1)


async def many_evs(context: Context) -> Outcome:
    """Measure the cost of a packet with few and many EVs."""
    return await _measure(context, "evs", 3)


async def many_qps(context: Context) -> Outcome:
    """Measure the cost of a packet beside idle queue pairs, and the memory of those."""
    return await _measure(context, "qps", 3)


async def many_endpoints(context: Context) -> Outcome:
    """Measure the memory of endpoints."""
    return await _measure(context, "endpoints", 0.2)


async def sizes(context: Context) -> Outcome:
    """Measure goodput by the size of messages."""
    return await _measure(context, "sizes", 3)


async def _measure(context: Context, what: str, times: float) -> Outcome:
    """Measure for so many times the seconds of a plain run."""
    job = Job(what=what, paths=context.settings.paths, seconds=times * context.settings.seconds)
    found, _ = await transfer("cost_worker", asdict(job))
    return Outcome(found)
