"""One queue pair that carries data, with the memory of this side behind it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import mrc
from mrc.perf.memory import Bytes, count_wrong, empty, patterned, walked_bytes

CONNECTING, LISTENING = 0, 1
"""Which side wrote: the two write different patterns."""


@dataclass(slots=True)
class Lane:
    """A queue pair and its buffers.

    Attributes:
        qp: established.
        index: its number among the client's.
        source: what this side writes from, if it writes.
        target: what the peer writes to, if it does.
        region: the same, registered.
        remote: where this side writes to.
    """

    qp: mrc.QueuePair
    index: int
    source: memoryview | None = None
    target: Bytes | None = None
    region: mrc.MemoryRegion | None = None
    remote: mrc.RemoteRegion | None = None

    # What touches all of the memory runs in a thread: the loop has a network to see to meanwhile.

    async def fill_source(self, size_bytes: int, seed: int, side: int) -> None:
        """Make the memory that this side writes from."""
        filled = await asyncio.to_thread(patterned, size_bytes, (seed, self.index, side))
        self.source = filled.data

    async def open_target(self, size_bytes: int) -> mrc.RemoteRegion:
        """Make the memory that the peer writes to, and return its name."""
        self.target = await asyncio.to_thread(empty, size_bytes)
        self.region = self.qp.register(self.target)
        return self.region.remote

    async def clear_target(self) -> None:
        """Forget what came before, so that only what comes now can be found right."""
        if self.target is not None:
            await asyncio.to_thread(self.target.fill, 0)

    async def wrong_bytes(self, message_bytes: int, operations: int, seed: int, side: int) -> int:
        """Count the bytes of the peer's messages that are not as it sent them."""
        if self.target is None:
            return 0
        size_bytes = walked_bytes(len(self.target), message_bytes, operations)
        pattern = (seed, self.index, side)
        return await asyncio.to_thread(count_wrong, self.target, size_bytes, pattern)
