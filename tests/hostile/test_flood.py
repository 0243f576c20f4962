"""A flood of junk at the receiving port: it costs processor time, and nothing else.

What each kind of junk is counted as is in tests/proto/test_untrusted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Self

import pytest

import mrc
from mrc.udp.linux import SOL_UDP, UDP_SEGMENT
from mrc.wire.fields import Opcode
from tests.engine.conftest import (
    nothing_left,  # noqa: F401 - looks after each test
    until,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

SIZE = 6_000_000
BURST_RUNS, RUN_DATAGRAMS, PAUSE_S = 10, 60, 0.02
"""30,000 datagrams a second, in bursts of 600, as fast as the kernel takes them."""
TICK_S = 0.005
LATE_S_MAX = 0.02
KINDS = (*range(0xC6, 0xCC), *Opcode, 0x00, 0xFF)


class Flood:
    """Sends junk to a port of the loopback from a thread of its own, until it is stopped.

    Half of it knows the number of a queue pair and what kinds of packets there are.
    """

    def __init__(self, port: int, qpn: int) -> None:
        rng = random.Random(7)
        self._runs = [self._run(rng, qpn) for _ in range(100)]
        self._target = ("127.0.0.1", port)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.sent = 0

    @staticmethod
    def _run(rng: random.Random, qpn: int) -> tuple[int, bytes]:
        """Return the size of datagrams, and a run of them."""
        size = rng.randrange(4, 1000)
        kind = rng.choice(KINDS)
        run = bytearray()
        for _ in range(RUN_DATAGRAMS):
            junk = bytearray(rng.randbytes(size))
            if rng.random() < 0.5 and size > 12:
                junk[0], junk[1] = kind, 0
                junk[5:8] = qpn.to_bytes(3, "big")
            run += junk
        return size, bytes(run)

    def _send(self) -> None:
        rng = random.Random(8)
        while not self._stopped.wait(PAUSE_S):
            for _ in range(BURST_RUNS):
                size, run = rng.choice(self._runs)
                segment = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", size))]
                with contextlib.suppress(OSError):
                    self._socket.sendmsg([run], segment, 0, self._target)
                    self.sent += RUN_DATAGRAMS

    def answers(self) -> int:
        """Return how many datagrams came back."""
        count = 0
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(100):
                count += 1
        return count

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._socket.close()


class Ticker:
    """Measures how late timers of the running loop are, by the loop's own fault.

    What the machine gave to other processes meanwhile is not counted: a timer cannot be later by
    our fault than the time that this thread was running.
    """

    def __init__(self) -> None:
        self.late_s: list[float] = []

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            due, ran = time.monotonic() + TICK_S, time.thread_time()
            await asyncio.sleep(TICK_S)
            self.late_s.append(min(time.monotonic() - due, time.thread_time() - ran))


@contextlib.asynccontextmanager
async def ticking() -> AsyncIterator[Ticker]:
    """Measure the loop as long as the block runs."""
    ticker = Ticker()
    task = asyncio.ensure_future(ticker.run())
    try:
        yield ticker
    finally:
        task.cancel()


async def test_flood_of_junk_stops_neither_transfers_nor_timers() -> None:
    """One that runs and one that begins both complete; no timer is 20 ms late; junk is dropped."""
    async with (
        mrc.Endpoint() as server,
        mrc.Endpoint() as client,
        server.listen("127.0.0.1:0") as listener,
        client.connect(listener.url) as qp,
        await listener.accept() as peer,
        asyncio.timeout(60),
    ):
        port = server.engine.endpoint.ports[0].udp_port
        first, second = os.urandom(SIZE), os.urandom(SIZE)
        first_memory, second_memory = bytearray(SIZE), bytearray(SIZE)
        remote = peer.register(first_memory).remote
        async with ticking() as ticker:
            with Flood(port, peer.statistics().qpn) as flood:
                flooded = partial(is_flooded, server, flood)
                writing = asyncio.ensure_future(write_while(qp, first, remote, flooded))
                await until(lambda: sum(server.statistics().drops.values()) > RUN_DATAGRAMS)
                async with client.connect(listener.url) as other, await listener.accept() as there:
                    await other.write(second, there.register(second_memory).remote)
                    assert second_memory == second
                await writing
                assert first_memory == first
                assert flood.answers() == 0
        drops = server.statistics().drops
        placed = peer.statistics().responder.payload_bytes_placed
        assert placed == qp.statistics().requestor.writes_done * SIZE
    assert max(ticker.late_s) < LATE_S_MAX
    assert {"icrc", "short"} <= set(drops)


def is_flooded(server: mrc.Endpoint, flood: Flood) -> bool:
    """Tell whether the flood has done its worst: much was sent, and much was read."""
    return flood.sent >= 20_000 and sum(server.statistics().drops.values()) > 10_000


async def write_while(
    qp: mrc.QueuePair, data: bytes, remote: mrc.RemoteRegion, enough: Callable[[], bool]
) -> None:
    """Write the same again and again until it is enough."""
    while not enough():
        await qp.write(data, remote)
