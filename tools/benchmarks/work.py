"""What queue pairs of mrc do while something is measured: write through memory, and ping-pong."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from time import monotonic_ns

import mrc
from mrc.units import NS_PER_S

BLOCK_BYTES = 16 << 20
BLOCKS_IN_FLIGHT = 4
PING_BYTES = 64


class Stream:
    """Writes a buffer to the peer's, block by block, round and round.

    Args:
        qp: through which.
        data: what is written.
        target: as large as `data`, at the peer.
        block_bytes: of a write.
        in_flight: writes under way at once.

    Attributes:
        done_bytes: placed at the peer so far.
    """

    def __init__(
        self,
        qp: mrc.QueuePair,
        data: memoryview,
        target: mrc.RemoteRegion,
        *,
        block_bytes: int = BLOCK_BYTES,
        in_flight: int = BLOCKS_IN_FLIGHT,
    ) -> None:
        self.done_bytes = 0
        self._qp = qp
        self._data = data
        self._target = target
        self._block_bytes = block_bytes
        self._in_flight = in_flight
        self._offsets = itertools.cycle(range(0, data.nbytes - block_bytes + 1, block_bytes))

    async def write_while(self, wanted: Callable[[], bool]) -> None:
        """Write as long as it is wanted; done when all of it is placed."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._in_flight):
                group.create_task(self._write_while(wanted))

    async def write_for(self, seconds: float) -> None:
        """Write for a while; done when all of it is placed."""
        end_ns = monotonic_ns() + int(seconds * NS_PER_S)
        await self.write_while(lambda: monotonic_ns() < end_ns)

    async def _write_while(self, wanted: Callable[[], bool]) -> None:
        while wanted():
            offset = next(self._offsets)
            block = self._data[offset : offset + self._block_bytes]
            await self._qp.write(block, self._target, offset)
            self.done_bytes += block.nbytes


async def ping(qp: mrc.QueuePair, target: mrc.RemoteRegion, data: bytes) -> None:
    """Write a little with an immediate, and wait for the answer.

    Its acknowledgement is no part of the way and is not waited for; where the write fails, so does
    the wait for the answer.
    """
    qp.post(data, target, imm=1)
    await qp.next_immediate()


async def answer(qp: mrc.QueuePair, target: mrc.RemoteRegion) -> None:
    """Answer each immediate with one, until the peer leaves."""
    with suppress(mrc.MrcError):
        data = bytes(PING_BYTES)
        while True:
            imm = (await qp.next_immediate()).imm
            qp.post(data, target, imm=imm)


async def tell_region(qp: mrc.QueuePair, memory: bytearray) -> None:
    """Let the peer write to this memory, and tell it so."""
    await qp.channel.send(qp.register(memory).remote.to_json())


async def told_region(qp: mrc.QueuePair) -> mrc.RemoteRegion:
    """Return the memory that the peer tells of."""
    return mrc.RemoteRegion.from_json_untrusted(await qp.channel.receive())


def processor_ns(pid: int) -> int:
    """Return the processor time that a process has used, the kernel's for it included."""
    # The clock that clock_getcpuclockid of the C library returns, which Python does not offer.
    return time.clock_gettime_ns(~pid << 3 | 2)
