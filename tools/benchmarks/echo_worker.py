"""A bare UDP echo on asyncio, with uvloop where it is installed: `receive JOB` and `send JOB`."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
from dataclasses import dataclass
from time import monotonic_ns, perf_counter_ns
from typing import Any

from benchmarks.lines import emit, run
from mrc.units import NS_PER_S, NS_PER_US

DATAGRAM_BYTES = 64
END = b"."
WARM_UP_NS = NS_PER_S // 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the two sides do.

    Attributes:
        seconds: how long to measure.
        port: of the echo.
    """

    seconds: float
    port: int = 0


class Echo(asyncio.DatagramProtocol):
    """Sends back what comes; done when END does."""

    transport: Any

    def __init__(self) -> None:
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way out."""
        self.transport = transport

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        """Answer."""
        if data == END:
            self.done.set_result(None)
        self.transport.sendto(data, address)


class Pinger(Echo):
    """Sends the next datagram when the last has come back."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.round_trips_ns: list[int] = []
        self._warm_ns = monotonic_ns() + WARM_UP_NS
        self._end_ns = self._warm_ns + int(seconds * NS_PER_S)
        self._data = bytes(DATAGRAM_BYTES)
        self._sent_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        super().connection_made(transport)
        self._ping()

    def _ping(self) -> None:
        self._sent_ns = perf_counter_ns()
        self.transport.sendto(self._data)

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        """Note how long it took, and go on."""
        del address  # there is but one
        round_trip_ns = perf_counter_ns() - self._sent_ns
        now_ns = monotonic_ns()
        if data == END:
            self.done.set_result(None)
        elif now_ns >= self._end_ns:
            self.transport.sendto(END)
        else:
            if now_ns >= self._warm_ns:
                self.round_trips_ns.append(round_trip_ns)
            self._ping()


async def receive(_job: Job) -> None:
    """Echo."""
    loop = asyncio.get_running_loop()
    transport, echo = await loop.create_datagram_endpoint(Echo, local_addr=("127.0.0.1", 0))
    emit({"port": transport.get_extra_info("sockname")[1]})
    await echo.done
    emit({})


async def send(job: Job) -> None:
    """Ping, and tell the half and the 99 percent of round trips."""
    loop = asyncio.get_running_loop()
    _, pinger = await loop.create_datagram_endpoint(
        lambda: Pinger(job.seconds), remote_addr=("127.0.0.1", job.port)
    )
    await pinger.done
    cuts = statistics.quantiles(pinger.round_trips_ns, n=100)
    emit({"p50_us": cuts[49] / NS_PER_US, "p99_us": cuts[98] / NS_PER_US})


def main(role: str, job: str) -> None:
    """Play a role, `receive` or `send`."""
    roles = {"receive": receive, "send": send}
    run(roles[role](Job(**json.loads(job))))


if __name__ == "__main__":
    main(*sys.argv[1:])
