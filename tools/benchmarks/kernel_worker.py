"""One stream of the kernel's own transports, TCP or MPTCP: `receive JOB` and `send JOB`.

Both sides walk through as much memory as mrc does; iperf3 sends one buffer again and again.
"""

from __future__ import annotations

import json
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from time import monotonic_ns

from benchmarks.lines import emit, run
from benchmarks.meter import WALK_BYTES, WARM_UP_S, Meter, touched
from mrc.units import NS_PER_S

SOL_MPTCP, MPTCP_INFO = 284, 1
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the two sides do.

    Attributes:
        protocol: `socket.IPPROTO_TCP` or `socket.IPPROTO_MPTCP`.
        seconds: how long to send.
        port: where the receiver is, for the sender.
    """

    protocol: int
    seconds: float
    port: int = 0

    def socket(self) -> socket.socket:
        """Return a socket of the protocol."""
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM, self.protocol)


def pieces() -> cycle[memoryview]:
    """Walk through 64 MiB again and again."""
    flat = memoryview(touched(WALK_BYTES))
    return cycle([flat[i : i + PIECE_BYTES] for i in range(0, WALK_BYTES, PIECE_BYTES)])


async def receive(job: Job) -> None:
    """Take one stream to its end."""
    meter, walk = Meter(), pieces()
    with job.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        emit({"port": listener.getsockname()[1]})
        sock, _ = listener.accept()
    with sock:
        while byte_count := sock.recv_into(next(walk)):
            meter.add(byte_count)
        emit(meter.report() | {"subflows": subflows(sock)})


def subflows(sock: socket.socket) -> int:
    """Return how many TCP connections carry an MPTCP one; 0 when it is plain TCP."""
    with suppress(OSError):
        # The first byte of struct mptcp_info counts those beside the first.
        return 1 + sock.getsockopt(SOL_MPTCP, MPTCP_INFO, 64)[0]
    return 0


async def send(job: Job) -> None:
    """Send until the time is up."""
    walk = pieces()
    with job.socket() as sock:
        sock.connect(("127.0.0.1", job.port))
        end_ns = monotonic_ns() + int((job.seconds + WARM_UP_S) * NS_PER_S)
        while monotonic_ns() < end_ns:
            sock.sendall(next(walk))
    emit({})


def main(role: str, job: str) -> None:
    """Play a role, `receive` or `send`."""
    roles = {"receive": receive, "send": send}
    run(roles[role](Job(**json.loads(job))))


if __name__ == "__main__":
    main(*sys.argv[1:])
