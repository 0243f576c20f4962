"""The two processes of a transfer that is profiled: `receive JOB` and `send JOB`.

The same happens twice: first undisturbed, then with stacks taken on both sides. What a run costs in
each tells what the taking of stacks costs.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic_ns, process_time_ns

from benchmarks.lines import emit, run
from benchmarks.meter import WALK_BYTES, touched
from benchmarks.work import (
    PING_BYTES,
    Stream,
    answer,
    ping,
    processor_ns,
    tell_region,
    told_region,
)

import mrc
from mrc.units import NS_PER_S
from profiling.stacks import sampled

RUN_BYTES = 15 * 4096
"""Payload of a run: 15 packets of 4 KiB."""
WARM_UP_S = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the two sides do.

    Attributes:
        paths: EVs of the sender.
        icrc: whether packets carry a checksum.
        locked: whether they are sealed.
        ping_pong: send one small write with an immediate at a time, and wait for the same from the
            peer, instead of many large writes.
        seconds: how long stacks are taken.
        bare_seconds: how long before, undisturbed.
        interval_s: processor time between two stacks.
        folder: where they are written, to `sender` and `receiver`.
        url: where the receiver is; the sender needs it.
        pid: of the receiver.
    """

    paths: int
    icrc: bool
    locked: bool
    ping_pong: bool
    seconds: float
    interval_s: float
    folder: str
    bare_seconds: float = 1.0
    url: str = ""
    pid: int = 0

    @property
    def config(self) -> mrc.Config:
        """Settings of the endpoint."""
        return mrc.Config(paths=self.paths, icrc=self.icrc)

    def stacks(self, side: str) -> Path:
        """Return the file for the stacks of a side."""
        return Path(self.folder) / side


async def receive(job: Job) -> None:
    """Take what is written; take stacks between the first message and the second."""
    memory = touched(WALK_BYTES)
    lock = mrc.Lock.new() if job.locked else None
    async with mrc.listen("127.0.0.1:0", config=job.config, lock=lock) as listener:
        emit({"url": listener.url, "pid": os.getpid()})
        async with await listener.accept() as qp:
            await tell_region(qp, memory)
            answering = asyncio.ensure_future(answer(qp, await told_region(qp)))
            await qp.channel.receive()
            with sampled(job.stacks("receiver"), job.interval_s):
                await qp.channel.receive()
            answering.cancel()
            await qp.channel.send({})
    emit({})


async def send(job: Job) -> None:
    """Write undisturbed, then with stacks taken; tell what either cost."""
    async with mrc.connect(job.url, config=job.config) as qp:
        target = await told_region(qp)
        await tell_region(qp, bytearray(PING_BYTES))
        stream = Stream(qp, memoryview(touched(WALK_BYTES)), target)
        work = partial(ping_for, qp, target) if job.ping_pong else partial(write_for, stream)
        await work(WARM_UP_S)
        bare = await measure(job, work, job.bare_seconds)
        await qp.channel.send({})
        with sampled(job.stacks("sender"), job.interval_s):
            profiled = await measure(job, work, job.seconds)
        await qp.channel.send({})
        await qp.channel.receive()
    emit({"bare": bare, "profiled": profiled})


async def write_for(stream: Stream, seconds: float) -> float:
    """Write through the memory for a while; return the runs, all of them placed."""
    before_bytes = stream.done_bytes
    await stream.write_for(seconds)
    return (stream.done_bytes - before_bytes) / RUN_BYTES


async def ping_for(qp: mrc.QueuePair, target: mrc.RemoteRegion, seconds: float) -> float:
    """Write a little with an immediate and wait for the answer, for a while; return how often."""
    end_ns = monotonic_ns() + int(seconds * NS_PER_S)
    data = bytes(PING_BYTES)
    answered = 0
    while monotonic_ns() < end_ns:
        await ping(qp, target, data)
        answered += 1
    return answered


async def measure(
    job: Job, work: Callable[[float], Awaitable[float]], seconds: float
) -> dict[str, float]:
    """Return how many runs or round trips, the time it took, and processor time of both sides."""
    began_ns = monotonic_ns()
    sender_ns, receiver_ns = process_time_ns(), processor_ns(job.pid)
    done = await work(seconds)
    return {
        "count": done,
        "ns": monotonic_ns() - began_ns,
        "sender_cpu_ns": process_time_ns() - sender_ns,
        "receiver_cpu_ns": processor_ns(job.pid) - receiver_ns,
    }


def main(role: str, job: str) -> None:
    """Play a role, `receive` or `send`."""
    roles = {"receive": receive, "send": send}
    run(roles[role](Job(**json.loads(job))))


if __name__ == "__main__":
    main(*sys.argv[1:])
