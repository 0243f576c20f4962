"""Both sides of a measurement in one event loop, with small buffers: quick, no processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import mrc
from mrc.perf.client import Client
from mrc.perf.report import Report
from mrc.perf.serving import Service
from mrc.perf.settings import Kind, Plan

BUFFER_BYTES = 1 << 20
DEADLINE_S = 30.0


class Quiet:
    """An audience that only remembers what it was told.

    Attributes:
        told: the names of what came, in order.
        moving: set when there were interim figures, and not of nothing.
    """

    def __init__(self) -> None:
        self.told: list[str] = []
        self.moving = asyncio.Event()

    def began(self, report: Report) -> None:
        """Note it."""
        self.told.append("began")

    def interval(self, report: Report) -> None:
        """Note it."""
        self.told.append("interval")
        if report.intervals[-1]["bytes"]:
            self.moving.set()

    def tested(self, report: Report) -> None:
        """Note it."""
        self.told.append("tested")


class Bench:
    """A listener that serves, and clients that measure against it.

    Attributes:
        url: of the listener.
        ended: reports of the clients that the listener has seen the end of, and their errors.
    """

    def __init__(self) -> None:
        self.url = ""
        self.ended: list[tuple[Report, BaseException | None]] = []
        self._news = asyncio.Event()

    def _told(self, report: Report, error: BaseException | None) -> None:
        self.ended.append((report, error))
        self._news.set()

    async def measure(self, plan: Plan, config: mrc.Config | None = None) -> Report:
        """Run one client to its end."""
        report = Report()
        async with asyncio.timeout(DEADLINE_S), mrc.Endpoint(config) as endpoint:
            await Client(plan, report, Quiet()).measure(
                endpoint, lambda: endpoint.connect(self.url)
            )
        return report

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so after the end of some client."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._news.clear()
                await self._news.wait()


@contextlib.asynccontextmanager
async def bench(
    *, lock: mrc.Lock | None = None, config: mrc.Config | None = None, timeout_s: float = 10.0
) -> AsyncIterator[Bench]:
    """Yield a bench whose listener serves for as long as the block lasts."""
    made = Bench()
    async with mrc.Endpoint(config) as endpoint, endpoint.listen("127.0.0.1:0", lock=lock) as door:
        made.url = door.url
        service = Service(endpoint, timeout_s, made._told)  # noqa: SLF001 - two halves of one thing
        serving = asyncio.ensure_future(service.serve(door, once=False))
        try:
            yield made
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


def plan(kind: Kind = Kind.BANDWIDTH, **settings: Any) -> Plan:
    """Return a plan that is over soon, but for what is said otherwise."""
    quick = {"sizes": (4096,), "operations": 20, "depth": 8, "warm_up": 2, "timeout_s": 10.0}
    return Plan(kind=kind, **{"buffer_bytes": BUFFER_BYTES, **quick, **settings})
