"""One stream of a C library over UDP, SRT or UDT: `receive JOB` and `send JOB`."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from time import monotonic_ns

from benchmarks.clibrary import LIBRARIES, Stream
from benchmarks.lines import emit, run
from benchmarks.meter import WALK_BYTES, WARM_UP_S, Meter, touched
from mrc.units import NS_PER_S

PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the two sides do.

    Attributes:
        library: key of `LIBRARIES`.
        mss_bytes: IP packets are at most so large.
        seconds: how long to send.
        port: where the receiver is, for the sender.
    """

    library: str
    mss_bytes: int
    seconds: float
    port: int = 0

    def stream(self) -> Stream:
        """Return a socket."""
        return Stream(LIBRARIES[self.library], self.mss_bytes)


class Walk:
    """64 MiB of memory, taken piece by piece from one end to the other."""

    def __init__(self) -> None:
        self._memory = touched(WALK_BYTES)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def addresses(self) -> Iterator[int]:
        """Yield the address of each piece, over and over."""
        return cycle(range(self._start, self._start + WALK_BYTES, PIECE_BYTES))


async def receive(job: Job) -> None:
    """Take one stream to its end."""
    meter, walk = Meter(), Walk()
    stream = job.stream()
    emit({"port": stream.listen()})
    stream.accept()
    addresses = walk.addresses()
    while byte_count := stream.receive_into(next(addresses), PIECE_BYTES):
        meter.add(byte_count)
    emit(meter.report())


async def send(job: Job) -> None:
    """Send until the time is up."""
    walk = Walk()
    stream = job.stream()
    stream.connect(job.port)
    end_ns = monotonic_ns() + int((job.seconds + WARM_UP_S) * NS_PER_S)
    for address in walk.addresses():
        left = PIECE_BYTES
        while left:
            left -= stream.send(address + PIECE_BYTES - left, left)
        if monotonic_ns() >= end_ns:
            break
    stream.close()
    emit({})


def main(role: str, job: str) -> None:
    """Play a role, `receive` or `send`."""
    roles = {"receive": receive, "send": send}
    run(roles[role](Job(**json.loads(job))))


if __name__ == "__main__":
    main(*sys.argv[1:])
