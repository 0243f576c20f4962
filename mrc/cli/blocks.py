"""Bookkeeping of the blocks in flight: memory for them, and how far a file has come.

Bounds what a sender holds, whatever the size of a file and the number of files.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque


class BlockPool:
    """Lends buffers until a number of bytes is out; whoever asks then waits for one to come back.

    Args:
        limit_bytes: most bytes lent at once, at least one block.
        block_bytes: buffers of this length are kept and lent again; shorter ones are made anew.
    """

    def __init__(self, limit_bytes: int, block_bytes: int) -> None:
        self._free_bytes = max(limit_bytes, block_bytes)
        self._block_bytes = block_bytes
        self._spare: list[memoryview] = []
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, length_bytes: int) -> memoryview:
        """Borrow a buffer of exactly this length; first come, first served."""
        if self._waiting or length_bytes > self._free_bytes:
            await self._wait(length_bytes)
        else:
            self._free_bytes -= length_bytes
        if length_bytes == self._block_bytes and self._spare:
            return self._spare.pop()
        return memoryview(bytearray(length_bytes))

    async def _wait(self, length_bytes: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = (length_bytes, future)
        self._waiting.append(place)
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._waiting.remove(place)
            else:
                self._free_bytes += length_bytes
            self._serve()
            raise

    def give(self, buffer: memoryview) -> None:
        """Return a buffer that nobody reads or writes any more."""
        self._free_bytes += buffer.nbytes
        if buffer.nbytes == self._block_bytes:
            self._spare.append(buffer)
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free_bytes:
            length_bytes, future = self._waiting.popleft()
            if not future.done():
                self._free_bytes -= length_bytes
                future.set_result(None)


class Watermark:
    """A number that only rises, and tasks that wait until it has reached theirs."""

    def __init__(self) -> None:
        self.value = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = 0

    def rise(self, value: int) -> None:
        """Raise the mark; a lower value than before is ignored."""
        self.value = max(self.value, value)
        while self._waiting and self._waiting[0][0] <= self.value:
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                future.set_result(None)

    async def reach(self, value: int) -> None:
        """Wait until the mark is at `value` or above."""
        if self.value >= value:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._order += 1
        heapq.heappush(self._waiting, (value, self._order, future))
        await future
