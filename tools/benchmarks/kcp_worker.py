"""Messages with KCP, whose core is C and whose packets Python moves: `receive JOB`, `send JOB`."""

from __future__ import annotations

import importlib
import json
import select
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from time import monotonic_ns
from typing import Any

from benchmarks.lines import emit, run
from benchmarks.meter import WALK_BYTES, WARM_UP_S, Meter, touched
from mrc.udp.options import set_buffer
from mrc.units import NS_PER_MS, NS_PER_S

PIECE_BYTES = 64 << 10
QUEUE_PACKETS = 2048
WINDOW_PACKETS = 1024
DATAGRAMS_AT_ONCE = 32
DATAGRAM_BYTES_MAX = 1 << 16
BUFFER_BYTES = 8 << 20
CONVERSATION = 1
END = b"."


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the two sides do.

    Attributes:
        mtu_bytes: UDP payloads are at most so large; KCP's default is 1400.
        seconds: how long to send.
        port: where the receiver is, for the sender.
    """

    mtu_bytes: int
    seconds: float
    port: int = 0


def core(mtu_bytes: int, outbound: Callable[[bytes], Any]) -> Any:
    """Return KCP in its fastest setting: no delay, no congestion control, a large window."""
    # By name: it is not among what is installed for the checks of this file.
    found = importlib.import_module("kcp").KCP(
        CONVERSATION,
        max_transmission=mtu_bytes,
        no_delay=True,
        update_interval=10,
        resend_count=2,
        no_congestion_control=True,
        send_window_size=WINDOW_PACKETS,
        receive_window_size=WINDOW_PACKETS,
    )
    found.include_outbound_handler(lambda _core, data: outbound(data))
    found.update(now_ms())
    return found


def now_ms() -> int:
    """Return KCP's clock."""
    return monotonic_ns() // NS_PER_MS & 0x7FFFFFFF


def take(sock: socket.socket, connection: Any) -> bool:
    """Hand over what waits at the socket; tell whether the end was among it."""
    with suppress(BlockingIOError):
        for _ in range(DATAGRAMS_AT_ONCE):
            datagram = sock.recv(DATAGRAM_BYTES_MAX)
            if datagram == END:
                return True
            connection.receive(datagram)
    return False


async def receive(job: Job) -> None:
    """Take messages and copy them to their place until the sender leaves."""
    meter, memory = Meter(), memoryview(touched(WALK_BYTES))
    offsets = cycle(range(0, WALK_BYTES, PIECE_BYTES))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        set_buffer(sock, socket.SO_RCVBUF, BUFFER_BYTES)
        sock.bind(("127.0.0.1", 0))
        emit({"port": sock.getsockname()[1]})
        sock.connect(sock.recvfrom(DATAGRAM_BYTES_MAX)[1])
        sock.setblocking(False)
        connection = core(job.mtu_bytes, sock.send)
        # Where the end was lost, an acknowledgement finds nobody.
        with suppress(ConnectionRefusedError):
            while not take(sock, connection):
                while connection.next_packet_available:
                    message = connection.get_received()
                    start = next(offsets)
                    memory[start : start + len(message)] = message
                    meter.add(len(message))
                connection.flush()
                select.select((sock,), (), (), 0.01)
                connection.update(now_ms())
    emit(meter.report())


async def send(job: Job) -> None:
    """Keep KCP's queue full until the time is up."""
    memory = memoryview(touched(WALK_BYTES))
    offsets = cycle(range(0, WALK_BYTES, PIECE_BYTES))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        set_buffer(sock, socket.SO_RCVBUF, BUFFER_BYTES)
        sock.connect(("127.0.0.1", job.port))
        sock.send(b"hello")
        sock.setblocking(False)
        connection = core(job.mtu_bytes, sock.send)
        end_ns = monotonic_ns() + int((job.seconds + WARM_UP_S) * NS_PER_S)
        while monotonic_ns() < end_ns:
            while connection.get_outbound_packets() < QUEUE_PACKETS:
                start = next(offsets)
                connection.enqueue(bytes(memory[start : start + PIECE_BYTES]))
            connection.update(now_ms())
            connection.flush()
            select.select((sock,), (), (), 0.001)
            take(sock, connection)
        with suppress(ConnectionRefusedError):
            for _ in range(DATAGRAMS_AT_ONCE):
                sock.send(END)
    emit({})


def main(role: str, job: str) -> None:
    """Play a role, `receive` or `send`."""
    roles = {"receive": receive, "send": send}
    run(roles[role](Job(**json.loads(job))))


if __name__ == "__main__":
    main(*sys.argv[1:])
