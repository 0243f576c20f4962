"""UDP_SEGMENT and UDP_GRO from plain Python, with nothing else done: `receive JOB`, `send JOB`.

No headers, no reliability, no flow control: what any transport in Python can at most reach here.
The datagrams are as large as those of mrc, and a run of them takes as many source ports in turn.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from time import monotonic_ns

import numpy as np
from numpy.typing import NDArray

from benchmarks.lines import emit, run
from benchmarks.meter import WALK_BYTES, WARM_UP_S, Meter, touched
from mrc.udp.linux import MSG_ERRQUEUE, SOL_UDP, UDP_GRO, UDP_SEGMENT
from mrc.udp.options import set_buffer
from mrc.units import NS_PER_S

HEADER_BYTES, PAYLOAD_BYTES, PACKETS = 40, 4096, 15
"""Headers and iCRC of mrc together; they stand in front here."""
DATAGRAM_BYTES = HEADER_BYTES + PAYLOAD_BYTES
RUN_BYTES = PACKETS * DATAGRAM_BYTES
BUFFER_BYTES = 16 << 20
SILENCE = struct.pack("ll", 1, 0)
"""Seconds and microseconds after which the datagrams that mark the end were lost: kept by the
kernel, since a timeout of Python's costs another system call each time."""
END = b"."
SO_ZEROCOPY, MSG_ZEROCOPY = 60, 0x4000000
"""Of Linux; the socket module has no names for them."""
TOLD_EVERY = 64

Pieces = list[memoryview]
Rows = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the two sides do.

    Attributes:
        memory: where datagrams come from and go to: "hot", one buffer again and again; "walking",
            64 MiB from end to end; "scattered", the same with payloads packed tightly and headers
            apart, by the kernel; "placed", the same by a copy after receipt, as whoever checks a
            packet before he lets it touch memory must do.
        sources: source ports.
        seconds: how long to send.
        zero_copy: ask the kernel to send from where the data lies.
        port: where the receiver is, for the sender.
    """

    memory: str
    sources: int
    seconds: float
    zero_copy: bool = False
    port: int = 0


def runs_of(memory: str) -> list[Pieces]:
    """Return the runs that a side goes through in turn, as pieces of memory for one system call."""
    if memory in {"scattered", "placed"}:
        return list(_scattered(memoryview(touched(WALK_BYTES))))
    size = RUN_BYTES if memory == "hot" else WALK_BYTES
    flat = memoryview(touched(size))
    return [[flat[i : i + RUN_BYTES]] for i in range(0, size - RUN_BYTES + 1, RUN_BYTES)]


def _scattered(payloads: memoryview) -> Iterator[Pieces]:
    """Pieces that leave headers in one small buffer and payloads side by side."""
    headers = memoryview(bytearray(PACKETS * HEADER_BYTES))
    step = PACKETS * PAYLOAD_BYTES
    for start in range(0, payloads.nbytes - step + 1, step):
        pieces: Pieces = []
        for i in range(PACKETS):
            pieces.append(headers[i * HEADER_BYTES : (i + 1) * HEADER_BYTES])
            first = start + i * PAYLOAD_BYTES
            pieces.append(payloads[first : first + PAYLOAD_BYTES])
        yield pieces


def _copies(run: memoryview) -> list[tuple[Rows, Rows]]:
    """Return, for all places of the walk in turn, rows of payloads to copy to and from."""
    rows = np.frombuffer(run, np.uint8).reshape(PACKETS, DATAGRAM_BYTES)[:, HEADER_BYTES:]
    memory = np.frombuffer(touched(WALK_BYTES), np.uint8)
    size = rows.size
    return [
        (memory[i : i + size].reshape(rows.shape), rows) for i in range(0, len(memory) - size, size)
    ]


async def receive(job: Job) -> None:
    """Take runs until one datagram tells that it was the last."""
    meter = Meter()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(SOL_UDP, UDP_GRO, 1)
        set_buffer(sock, socket.SO_RCVBUF, BUFFER_BYTES)
        sock.bind(("127.0.0.1", 0))
        runs = cycle(runs_of("hot" if job.memory == "placed" else job.memory))
        place = cycle(_copies(next(runs)[0])) if job.memory == "placed" else None
        emit({"port": sock.getsockname()[1]})
        with suppress(BlockingIOError):
            while (byte_count := sock.recvmsg_into(next(runs), 64)[0]) != len(END):
                if place is not None:
                    np.copyto(*next(place))
                meter.add(byte_count)
                if meter.total_bytes == byte_count:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, SILENCE)
    emit(meter.report() | {"total": meter.total_bytes})


async def send(job: Job) -> None:
    """Send runs until the time is up."""
    runs = cycle(runs_of(job.memory))
    socks = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(job.sources)]
    for sock in socks:
        sock.setsockopt(SOL_UDP, UDP_SEGMENT, DATAGRAM_BYTES)
        sock.connect(("127.0.0.1", job.port))
        if job.zero_copy:
            sock.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    flags = MSG_ZEROCOPY if job.zero_copy else 0
    end_ns = monotonic_ns() + int((job.seconds + WARM_UP_S) * NS_PER_S)
    sent = 0
    for turn, sock in enumerate(cycle(socks)):
        sent += sock.sendmsg(next(runs), (), flags)
        if job.zero_copy and turn % TOLD_EVERY == 0:
            for told in socks:
                _forget_sent(told)
        if monotonic_ns() >= end_ns:
            break
    for sock in socks:
        sock.send(END)
        sock.close()
    emit({"total": sent})


def _forget_sent(sock: socket.socket) -> None:
    """Empty the queue in which the kernel tells what it has sent without a copy."""
    with suppress(BlockingIOError):
        for _ in range(TOLD_EVERY):
            sock.recvmsg(1, 256, MSG_ERRQUEUE | socket.MSG_DONTWAIT)


def main(role: str, job: str) -> None:
    """Play a role, `receive` or `send`."""
    roles = {"receive": receive, "send": send}
    run(roles[role](Job(**json.loads(job))))


if __name__ == "__main__":
    main(*sys.argv[1:])
