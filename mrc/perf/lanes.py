"""One queue pair that carries data, with the memory of this side behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any, TypeVar

import mrc
from mrc.errors import ConfigError, QueuePairClosed
from mrc.perf.memory import Bytes, clear, count_wrong, empty, patterned, slots, walked_bytes

CONNECTING, LISTENING = 0, 1
"""Which side wrote: the two write different patterns."""

_T = TypeVar("_T")


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
    _stop: Event = field(default_factory=Event)

    def post(self, number: int, message_bytes: int, imm: int | None = None) -> asyncio.Future[None]:
        """Begin to write a message of a test: each from, and to, the next place of the buffers.

        Raises:
            ConfigError: there is nothing to write from, or to.
            TransportError: the queue pair has failed.
        """
        if self.source is None or self.remote is None:
            raise ConfigError("a lane that has nothing to write from, or to")
        places = slots(min(len(self.source), self.remote.length), message_bytes)
        offset = number % places * message_bytes
        data = self.source[offset : offset + message_bytes]
        return self.qp.post(data, self.remote, offset, imm=imm)

    async def fill_source(self, size_bytes: int, seed: int, side: int) -> None:
        """Make the memory that this side writes from."""
        filled = await self._in_thread(patterned, size_bytes, (seed, self.index, side))
        self.source = filled.data

    async def open_target(self, size_bytes: int) -> mrc.RemoteRegion:
        """Make the memory that the peer writes to, and return its name."""
        self.target = await self._in_thread(empty, size_bytes)
        self.region = self.qp.register(self.target)
        return self.region.remote

    async def clear_target(self) -> None:
        """Forget what came before, so that only what comes now can be found right."""
        if self.target is not None:
            await self._in_thread(clear, self.target)

    async def wrong_bytes(self, message_bytes: int, operations: int, seed: int, side: int) -> int:
        """Count the bytes of the peer's messages that are not as it sent them."""
        if self.target is None:
            return 0
        size_bytes = walked_bytes(len(self.target), message_bytes, operations)
        pattern = (seed, self.index, side)
        return await self._in_thread(count_wrong, self.target, size_bytes, pattern)

    def free(self) -> None:
        """Let go of all memory, whoever still knows this lane: an exception may, for long.

        What is being filled is let go of by whoever fills it, soon. Twice is once.
        """
        self._stop.set()
        if self.region is not None:
            self.region.deregister()
        self.source = self.target = self.region = self.remote = None

    async def _in_thread(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Run what touches all of the memory: the loop has a network to see to meanwhile.

        However it ends, the thread has ended as well.

        Raises:
            QueuePairClosed: the lane was freed meanwhile.
        """
        work = asyncio.ensure_future(asyncio.to_thread(function, *arguments, self._stop))
        try:
            done = await asyncio.shield(work)
        except asyncio.CancelledError:
            self._stop.set()
            await asyncio.wait((work,))
            raise
        if self._stop.is_set():
            raise QueuePairClosed("its memory was freed while it was worked on", peer=self.qp.peer)
        return done


async def clear_targets(lanes: Sequence[Lane]) -> None:
    """Forget what came before on all lanes."""
    for lane in lanes:
        await lane.clear_target()


async def count_wrong_bytes(
    lanes: Sequence[Lane], message_bytes: int, operations: Sequence[int], seed: int, side: int
) -> int:
    """Count what is wrong with the peer's messages; `operations` says how many, by lane."""
    return sum(
        [
            await lane.wrong_bytes(message_bytes, count, seed, side)
            for lane, count in zip(lanes, operations, strict=True)
        ]
    )
