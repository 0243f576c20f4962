"""Carries out the plan of one rank: chunks in pieces, so that reduction overlaps transfer.

There is one task a peer that sends, one that receives, and one that tells it where large chunks go.
Each takes the steps with this peer in the order of the plan; what a step has to wait for is counted
piece by piece, so a chunk is passed on while its rest is still coming in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import mrc
from mrc.collectives.failures import LinkFailed
from mrc.collectives.plans import Plan, Reduce, Send, Step
from mrc.collectives.reduction import Array, Reduction
from mrc.collectives.transfer import Bytes, Link, piece_bytes
from mrc.errors import MrcError

DIRECT_BYTES_MIN = 64 << 10
"""Chunks from this size on that replace what was there are written to their place: telling it costs
a message, which is more than a copy of less."""
COPY_BYTES_MAX = 16 << 10
"""Pieces up to this size are copied before they are sent, so that nobody waits until they are
acknowledged: the copy takes a few microseconds, the acknowledgement a round trip."""


@dataclass(slots=True)
class Memory:
    """Where the chunks of one rank are.

    Attributes:
        dtype: of the elements.
        elements: how many a chunk has.
        source: chunks this rank has at the beginning; they are not written to, unless `destination`
            has the same memory.
        destination: where chunks go that are received or reduced; for others room is made.
    """

    dtype: np.dtype[Any]
    elements: Callable[[int], int]
    source: Mapping[int, Array]
    destination: Mapping[int, Array]
    _room: dict[int, Array] = field(default_factory=dict)

    def size_bytes(self, chunk: int) -> int:
        """Return the size of a chunk."""
        return self.elements(chunk) * self.dtype.itemsize

    def target(self, chunk: int) -> Array:
        """Return where a chunk goes."""
        if chunk in self.destination:
            return self.destination[chunk]
        if chunk not in self._room:
            self._room[chunk] = np.empty(self.elements(chunk), self.dtype)
        return self._room[chunk]


class _Progress:
    """How many pieces of a step are through, one after the other, and who waits for that."""

    __slots__ = ("_ahead", "_waiting", "done")

    def __init__(self) -> None:
        self.done = 0
        self._ahead: set[int] = set()
        """Pieces that were through before the one in front of them."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def through(self, number: int) -> None:
        self._ahead.add(number)
        while self.done in self._ahead:
            self._ahead.remove(self.done)
            self.done += 1
        if self._waiting:
            for wanted, future in self._waiting:
                if wanted <= self.done and not future.done():
                    future.set_result(None)
            self._waiting = [each for each in self._waiting if not each[1].done()]

    async def reach(self, wanted: int) -> None:
        if self.done < wanted:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((wanted, future))
            await future


@dataclass(slots=True, eq=False)
class _Stage:
    """One step of the plan, and what it needs to know of those before it.

    Attributes:
        step: what to do.
        written_by: the last step before it that wrote the chunk, or None.
        read_by: steps since then that send the chunk.
        size_bytes: of the chunk.
        progress: how many of its pieces are applied, or placed at the peer.
    """

    step: Step
    written_by: _Stage | None
    read_by: tuple[_Stage, ...]
    size_bytes: int
    progress: _Progress = field(default_factory=_Progress)

    @property
    def pieces(self) -> int:
        return -(-self.size_bytes // piece_bytes(self.size_bytes))

    @property
    def is_direct(self) -> bool:
        """Whether the chunk is written to its place, and not to slots."""
        step = self.step
        reduced = step.reduced if isinstance(step, Send) else isinstance(step, Reduce)
        return not reduced and self.size_bytes >= DIRECT_BYTES_MIN

    def segments(self) -> Iterator[tuple[int, int, int]]:
        """Yield number, beginning and end in bytes of every piece."""
        size = piece_bytes(self.size_bytes)
        for number, start in enumerate(range(0, self.size_bytes, size)):
            yield number, start, min(start + size, self.size_bytes)

    async def free_to_write(self, pieces: int) -> None:
        """Wait until what the steps before it left in the first pieces is not needed any more.

        Two ranks that exchange a chunk would wait for each other if one piece waited for all.
        """
        if self.written_by is not None:
            await self.written_by.progress.reach(pieces)
        for reader in self.read_by:
            await reader.progress.reach(pieces)


class Execution:
    """One collective of one rank, from its plan to its end.

    Args:
        plan: what to do.
        memory: where the chunks are.
        rank: which one this is.
        link: returns the link to a peer.
        imm: what the immediates of this operation say, the same on all ranks.
        reduction: how to combine; None where the plan reduces nothing.
    """

    def __init__(
        self,
        plan: Plan,
        memory: Memory,
        rank: int,
        link: Callable[[int], Awaitable[Link]],
        *,
        imm: int,
        reduction: Reduction | None = None,
    ) -> None:
        self._memory = memory
        self._rank = rank
        self._link = link
        self._imm = imm
        self._reduction = reduction
        self._sending: dict[int, list[_Stage]] = {}
        self._taking: dict[int, list[_Stage]] = {}
        self._posted: list[tuple[int, asyncio.Future[None]]] = []
        self._failed: asyncio.Future[None] | None = None
        self._places: dict[_Stage, asyncio.Future[mrc.MemoryRegion]] = {}
        self._lay_out(plan)

    def _lay_out(self, plan: Plan) -> None:
        """Find out which step waits for which."""
        written_by: dict[int, _Stage] = {}
        read_by: dict[int, list[_Stage]] = {}
        for step in plan.steps:
            size_bytes = self._memory.size_bytes(step.chunk)
            readers = read_by.setdefault(step.chunk, [])
            stage = _Stage(step, written_by.get(step.chunk), tuple(readers), size_bytes)
            if isinstance(step, Send):
                readers.append(stage)
                peers = self._sending
            else:
                written_by[step.chunk] = stage
                read_by[step.chunk] = []
                peers = self._taking
            if size_bytes:
                peers.setdefault(step.peer, []).append(stage)

    async def run(self) -> None:
        """Do it; done when all chunks are where they belong here, and so are those sent from here.

        Those that were copied to be sent may still be on their way. Whatever becomes of it, nobody
        can write to the chunks afterwards.

        Raises:
            LinkFailed: a peer is gone, or does something else.
        """
        loop = asyncio.get_running_loop()
        self._failed = loop.create_future()
        # Something else may be raised first.
        self._failed.add_done_callback(lambda future: future.cancelled() or future.exception())
        jobs: list[Coroutine[Any, Any, None]] = []
        for peer, stages in self._taking.items():
            direct = [stage for stage in stages if stage.is_direct]
            if direct:
                self._places |= {stage: loop.create_future() for stage in direct}
                jobs.append(_of(peer, self._offer(peer, direct)))
            jobs.append(_of(peer, self._take(peer, stages)))
        jobs += [_of(peer, self._send(peer, stages)) for peer, stages in self._sending.items()]
        try:
            await _together(jobs, self._failed)
            for peer, posted in self._posted:
                await _of(peer, posted)
        finally:
            self._withdraw()

    def _withdraw(self) -> None:
        """Take back the places that peers were told and have not filled."""
        for place in self._places.values():
            if place.done() and not place.cancelled():
                place.result().deregister()

    def waiting_for(self) -> list[int]:
        """Return the peers that have not done all of their part yet."""
        return sorted(
            peer
            for peer in {*self._sending, *self._taking}
            if any(
                stage.progress.done < stage.pieces
                for stages in (self._sending, self._taking)
                for stage in stages.get(peer, ())
            )
        )

    # Sending.

    async def _send(self, peer: int, stages: list[_Stage]) -> None:
        """Send a peer its chunks, in order."""
        link = await self._link(peer)
        for stage in stages:
            source = self._bytes_before(stage)
            place = await link.place(stage.size_bytes) if stage.is_direct else None
            for number, start, end in stage.segments():
                if stage.written_by is not None:
                    await stage.written_by.progress.reach(number + 1)
                data: Any = source[start:end]
                copied = end - start <= COPY_BYTES_MAX
                if copied:
                    data = data.tobytes()
                if place is None:
                    posted = await link.send(data, self._imm)
                else:
                    posted = link.qp.post(data, place, start, imm=self._imm)
                if copied:
                    stage.progress.through(number)
                else:
                    self._follow(stage, number, posted)

    def _follow(self, stage: _Stage, number: int, posted: asyncio.Future[None]) -> None:
        """Count a piece when it is placed at the peer."""
        peer, failed = stage.step.peer, self._failed
        self._posted.append((peer, posted))

        def placed(future: asyncio.Future[None]) -> None:
            error = None if future.cancelled() else future.exception()
            if isinstance(error, MrcError) and failed is not None and not failed.done():
                failed.set_exception(LinkFailed(peer, error))
            elif error is None:
                stage.progress.through(number)

        posted.add_done_callback(placed)

    # Receiving.

    async def _offer(self, peer: int, stages: list[_Stage]) -> None:
        """Tell a peer where its large chunks go, as soon as they may."""
        link = await self._link(peer)
        for stage in stages:
            await stage.free_to_write(stage.pieces)
            memory = _bytes(self._memory.target(stage.step.chunk))
            self._places[stage].set_result(link.offer(memory))

    async def _take(self, peer: int, stages: list[_Stage]) -> None:
        """Take the chunks of a peer, in order."""
        link = await self._link(peer)
        for stage in stages:
            if stage.is_direct:
                await self._take_placed(link, stage)
            else:
                await self._take_slots(link, stage)

    async def _take_placed(self, link: Link, stage: _Stage) -> None:
        """Watch a chunk come in where it belongs."""
        region = await self._places[stage]
        with region:
            for number, start, end in stage.segments():
                piece = await link.arrival(self._imm)
                link.check_place_untrusted(piece, region, start, end - start)
                stage.progress.through(number)

    async def _take_slots(self, link: Link, stage: _Stage) -> None:
        """Copy or combine what comes into the slots."""
        before, after = self._bytes_before(stage), _bytes(self._memory.target(stage.step.chunk))
        for number, start, end in stage.segments():
            piece = await link.arrival(self._imm)
            came = link.slot_untrusted(piece, end - start)
            await stage.free_to_write(number + 1)
            if isinstance(stage.step, Reduce):
                self._combine(stage.step.peer, came, before[start:end], after[start:end])
            else:
                after[start:end] = came
            link.free()
            stage.progress.through(number)

    def _combine(self, peer: int, came: Bytes, mine: Bytes, out: Bytes) -> None:
        assert self._reduction is not None, "a plan that reduces, and nothing to reduce with"
        dtype = self._memory.dtype
        lower, higher = (came, mine) if peer < self._rank else (mine, came)
        self._reduction.combine(lower.view(dtype), higher.view(dtype), out.view(dtype))

    def _bytes_before(self, stage: _Stage) -> Bytes:
        """Return where the chunk is before a step."""
        chunk = stage.step.chunk
        if stage.written_by is None and chunk in self._memory.source:
            return _bytes(self._memory.source[chunk])
        return _bytes(self._memory.target(chunk))


def _bytes(array: Array) -> Bytes:
    return array.view(np.uint8)


async def _of(peer: int, doing: Awaitable[None]) -> None:
    """Do something with a peer; what goes wrong is said to be with that one.

    Raises:
        LinkFailed: it went wrong.
    """
    try:
        await doing
    except MrcError as error:
        raise LinkFailed(peer, error) from error


async def _together(jobs: list[Coroutine[Any, Any, None]], failed: asyncio.Future[None]) -> None:
    """Run coroutines at the same time; the first that fails ends all others, and is raised.

    Args:
        jobs: all of them.
        failed: raises when something else has gone wrong.
    """
    tasks = {asyncio.ensure_future(job) for job in jobs}
    waiting: set[asyncio.Future[None]] = {*tasks, failed}
    try:
        while waiting != {failed}:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
