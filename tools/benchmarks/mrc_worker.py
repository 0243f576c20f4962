"""The two processes of an mrc transfer from memory to memory: `receive JOB` and `send JOB`.

The sender writes the blocks of a buffer over and over, several at once, until its time is up; it
may lose datagrams or a whole path meanwhile. Both tell in JSON lines what they saw.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from time import monotonic_ns, process_time_ns
from typing import Any

import numpy as np

import mrc
from benchmarks.deadpath import PathWatch, kill_and_heal
from benchmarks.lines import emit, run
from benchmarks.meter import WALK_BYTES
from benchmarks.work import Stream, tell_region, told_region
from mrc.udp import FaultySockets
from mrc.units import NS_PER_MS, NS_PER_S

BUFFER_BYTES = WALK_BYTES
BIN_NS = 100 * NS_PER_MS

Sample = tuple[int, int, int]
"""Monotonic time in ns, bytes placed so far, processor time of the receiver in ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the two sides do.

    Attributes:
        paths: EVs of the sender.
        icrc: whether packets carry a checksum.
        locked: whether they are sealed.
        seconds: how long to send; with a path that dies, how long before it does.
        loss: probability that a datagram vanishes, in each direction.
        dead_path: let a path die and heal.
        seed: of contents, losses and the choice of the path.
        url: where the receiver is; the sender needs it.
    """

    paths: int
    icrc: bool = True
    locked: bool = False
    seconds: float = 2.0
    loss: float = 0.0
    dead_path: bool = False
    seed: int = 0
    url: str = ""

    @property
    def config(self) -> mrc.Config:
        """Settings of the endpoint."""
        return mrc.Config(paths=self.paths, icrc=self.icrc)


async def receive(job: Job) -> None:
    """Take what is written, and tell how it came in."""
    buffer = bytearray(BUFFER_BYTES)
    lock = mrc.Lock.new() if job.locked else None
    async with mrc.listen("127.0.0.1:0", config=job.config, lock=lock) as listener:
        emit({"url": listener.url})
        async with await listener.accept() as qp:
            await tell_region(qp, buffer)
            placed: list[Sample] = []
            sampling = asyncio.ensure_future(_sample(qp, placed))
            await qp.channel.receive()
            sampling.cancel()
            emit(
                {
                    "placed": placed,
                    "sha256": hashlib.sha256(buffer).hexdigest(),
                    "responder": asdict(qp.statistics().responder),
                }
            )
            with suppress(mrc.MrcError):
                await qp.channel.receive()


async def _sample(qp: mrc.QueuePair, placed: list[Sample]) -> None:
    """Note the time, the bytes placed and the processor time so far at the end of every bin."""
    for number in itertools.count(monotonic_ns() // BIN_NS + 1):
        await asyncio.sleep(max(0, number * BIN_NS - monotonic_ns()) / NS_PER_S)
        placed_bytes = qp.statistics().responder.payload_bytes_placed
        placed.append((monotonic_ns(), placed_bytes, process_time_ns()))


async def send(job: Job) -> None:
    """Write until the time is up, and tell what became of it."""
    buffer = np.random.default_rng(job.seed).integers(0, 256, BUFFER_BYTES, np.uint8)
    faults = FaultySockets(seed=job.seed) if job.loss or job.dead_path else None
    async with mrc.connect(job.url, config=job.config, sockets=faults) as qp:
        stream = Stream(qp, buffer.data, await told_region(qp))
        watch = PathWatch(qp)
        # The first pass touches all memory and opens the window; it is not measured.
        await stream.write_while(lambda: stream.done_bytes < BUFFER_BYTES)
        result = await _measure(job, qp, stream, faults, watch)
        watch.close()
        await qp.channel.send({"done": True})
        result["sha256"] = hashlib.sha256(buffer.data).hexdigest()
        emit(result)


async def _measure(
    job: Job, qp: mrc.QueuePair, stream: Stream, faults: FaultySockets | None, watch: PathWatch
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    began_ns, began_cpu_ns, began_bytes = monotonic_ns(), process_time_ns(), stream.done_bytes
    if faults is not None:
        faults.loss = faults.inbound_loss = job.loss
    if faults is not None and job.dead_path:
        async with asyncio.TaskGroup() as group:
            wanted = True
            group.create_task(stream.write_while(lambda: wanted))
            await asyncio.sleep(job.seconds)
            result["dead_path"] = await kill_and_heal(qp, faults, watch, job.seed)
            wanted = False
    else:
        await stream.write_for(job.seconds)
    ended_ns = monotonic_ns()
    result |= {
        "began_ns": began_ns,
        "ended_ns": ended_ns,
        "seconds": (ended_ns - began_ns) / NS_PER_S,
        "cpu_seconds": (process_time_ns() - began_cpu_ns) / NS_PER_S,
        "bytes": stream.done_bytes - began_bytes,
        "withdrawn": [[change.source_port, change.reason] for change in watch.withdrawn],
        "requestor": asdict(qp.statistics().requestor),
    }
    if faults is not None:
        faults.loss = faults.inbound_loss = 0.0
        result["lost"] = [faults.lost.total(), faults.inbound_lost.total()]
    return result


def main(role: str, job: str) -> None:
    """Play a role, `receive` or `send`."""
    roles = {"receive": receive, "send": send}
    run(roles[role](Job(**json.loads(job))))


if __name__ == "__main__":
    main(*sys.argv[1:])
