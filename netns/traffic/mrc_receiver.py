"""Receives MRC flows: gives each sender a buffer, checks every message, counts bytes.

Orders: addresses (one a plane), port, config (fields of `mrc.Config`), lock (arguments of
`mrc.Lock.load`, or None), record (path), period_ms.
"""

from __future__ import annotations

import asyncio
import traceback
from time import monotonic_ns
from typing import Any

import numpy as np

import mrc
from netns.traffic.common import (
    Sampler,
    change,
    input_ended,
    orders,
    run,
    save,
    say,
    standard_input,
)
from netns.traffic.payload import Expected


class _Flow:
    """One sender: its queue pair, what it wrote, when how much of it had been placed."""

    def __init__(self, qp: mrc.QueuePair) -> None:
        self.qp = qp
        self.name = ""
        self.samples: list[tuple[int, int]] = []
        self.arrivals: list[int] = []
        self.messages = 0
        self.corrupt = 0
        self.out_of_order = 0
        self.error = ""
        self.changes: list[dict[str, Any]] = []

    def sample(self, now_ns: int) -> None:
        """Note what has been placed so far."""
        if self.qp.failure is None:
            placed = self.qp.statistics().responder.payload_bytes_placed
            self.samples.append((now_ns, placed))

    async def serve(self) -> None:
        """Take messages until the sender closes."""
        try:
            hello = await self.qp.channel.receive()
            self.name = str(hello["name"])
            size, slots = int(hello["message_bytes"]), int(hello["slots"])
            # Written, not only asked for: the kernel's zeroing of fresh pages took 0.3 ms a packet.
            memory = np.full(size * slots, 0, np.uint8)
            expected = Expected(size)
            with self.qp.register(memory) as region:
                await self.qp.channel.send(region.remote.to_json())
                await self._take(memory, expected, size)
        except mrc.MrcError as error:
            # A sender that closes in good order is the usual end.
            self.error = (
                "" if self.messages and "closed the connection" in str(error) else str(error)
            )

    async def _take(self, memory: np.ndarray[Any, Any], expected: Expected, size: int) -> None:
        while True:
            immediate = await self.qp.next_immediate()
            self.arrivals.append(monotonic_ns())
            self.out_of_order += immediate.imm != self.messages & 0xFFFFFFFF
            self.messages += 1
            at = immediate.offset
            self.corrupt += not expected.matches(immediate.imm, memory[at : at + size])

    async def watch(self) -> None:
        """Note what becomes of the paths back to the sender."""
        async for event in self.qp.events():
            if isinstance(event, mrc.EvChanged):
                self.changes.append(change(event))

    def record(self) -> dict[str, Any]:
        """Return all that was seen."""
        return {
            "name": self.name,
            "messages": self.messages,
            "corrupt": self.corrupt,
            "out_of_order": self.out_of_order,
            "samples": self.samples,
            "arrivals_ns": self.arrivals,
            "error": self.error,
            "reverse_changes": self.changes,
        }


async def _main() -> None:
    told = orders()
    flows: list[_Flow] = []
    addresses = told["addresses"]
    host = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
    config = mrc.Config(**told["config"])
    lock = mrc.Lock.load(*told["lock"]) if told["lock"] else None
    async with mrc.listen(
        f"{host}:{told['port']}", config=config, planes=addresses, lock=lock
    ) as listener:
        say(f"ready {listener.url}")

        async def accept() -> None:
            while True:
                flow = _Flow(await listener.accept())
                flows.append(flow)
                tasks.append(asyncio.create_task(flow.serve()))
                tasks.append(asyncio.create_task(flow.watch()))

        def sample(now_ns: int) -> None:
            for flow in flows:
                flow.sample(now_ns)

        tasks = [
            asyncio.create_task(accept()),
            asyncio.create_task(Sampler(told["period_ms"], sample).run()),
        ]
        try:
            await input_ended(await standard_input())
        finally:
            # Nothing is waited for: a second word to end would cut it short without a record.
            errors = _end(tasks)
            record = {"flows": [flow.record() for flow in flows], "errors": errors}
            save(told["record"], record)


def _end(tasks: list[asyncio.Task[None]]) -> list[str]:
    """Cancel tasks; return what went wrong in those that have failed."""
    errors = []
    for task in tasks:
        if task.cancel() or task.cancelled():
            continue
        if error := task.exception():
            traceback.print_exception(error)
            errors.append(str(error))
    return errors


if __name__ == "__main__":
    run(_main)
