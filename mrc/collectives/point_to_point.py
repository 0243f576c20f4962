"""Send and receive between two ranks: the receiver says where to, and the sender writes there.

A receive registers its buffer and tells the other rank, with a tag; a send waits for the first
telling of its tag and writes straight into that buffer. So nothing is kept for who has not asked
yet, and a send is over when the data is where it belongs.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from dataclasses import dataclass
from typing import Any, TypeVar

import mrc
from mrc.collectives.failures import TEXT_CHARACTERS_MAX, LinkFailed
from mrc.collectives.transfer import Bytes
from mrc.errors import MrcError, PeerProtocolError
from mrc.text import printable

V = TypeVar("V")

WRITE_BYTES_MAX = 1 << 30
"""One write: MRC has 2^32 - 1."""
ASKED_MAX = 1 << 16
"""Receives that a peer may have told and this rank has not answered: about 300 bytes each."""
TAG_BITS = 63


@dataclass(frozen=True, slots=True)
class _Wish:
    """A receive of the peer."""

    number: int
    length: int
    place: mrc.RemoteRegion | None


@dataclass(frozen=True, slots=True)
class _Expected:
    """A receive of this side; without a region where nothing is to come."""

    done: asyncio.Future[None]
    length: int
    region: mrc.MemoryRegion | None


class PointToPoint:
    """Messages to and from one rank, on a queue pair of their own.

    Args:
        qp: the queue pair; it belongs to this from now on.
        rank: of the peer, for messages.
    """

    def __init__(self, qp: mrc.QueuePair, rank: int) -> None:
        self.qp = qp
        self._rank = rank
        self._numbers = itertools.count(1)
        self._expected: dict[int, _Expected] = {}
        self._wishes: dict[int, deque[_Wish]] = {}
        self._wished = 0
        self._waiting: dict[int, deque[asyncio.Future[_Wish]]] = {}
        """Sends without a receive yet, by tag, in the order of the calls."""
        self._error: LinkFailed | None = None
        self._reading = [
            asyncio.ensure_future(self._read(self._hear_next)),
            asyncio.ensure_future(self._read(self._arrive_next)),
        ]

    async def receive(self, memory: Bytes, tag: int) -> None:
        """Fill memory with what the peer sends with this tag.

        Raises:
            LinkFailed: the peer is gone, or sends something of another length.
        """
        number = next(self._numbers) & 0xFFFFFFFF
        done = asyncio.get_running_loop().create_future()
        region = self.qp.register(memory) if len(memory) else None
        self._expected[number] = _Expected(done, len(memory), region)
        place = region.remote.to_json() if region is not None else None
        try:
            await self._say({"receive": number, "tag": tag, "length": len(memory), "place": place})
            await done
        finally:
            self._expected.pop(number, None)
            if region is not None:
                region.deregister()

    async def send(self, data: Bytes, tag: int) -> None:
        """Write data to where the peer receives this tag, waiting until it does.

        Raises:
            LinkFailed: the peer is gone, or receives something of another length.
        """
        wish = await self._wish(tag)
        if wish.length != len(data):
            why = f"{len(data)} bytes were sent where {wish.length} are received, tag {tag}"
            await self._say({"refused": wish.number, "why": why})
            raise LinkFailed(self._rank, PeerProtocolError(why, peer=self.qp.peer))
        if wish.place is None:
            await self._say({"empty": wish.number})
            return
        posted = []
        try:
            for start in range(0, len(data), WRITE_BYTES_MAX):
                last = start + WRITE_BYTES_MAX >= len(data)
                piece = data[start : start + WRITE_BYTES_MAX]
                imm = wish.number if last else None
                posted.append(self.qp.post(piece, wish.place, start, imm=imm))
            for future in posted:
                await future
        except MrcError as error:
            raise LinkFailed(self._rank, error) from error

    async def _wish(self, tag: int) -> _Wish:
        """Return the next receive of a tag; whoever called first gets the first one."""
        wishes = self._wishes.get(tag)
        if wishes:
            self._wished -= 1
            return _next_of(self._wishes, tag)
        if self._error is not None:
            raise self._error
        turn: asyncio.Future[_Wish] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tag, deque()).append(turn)
        return await turn

    def _wish_came(self, tag: int, wish: _Wish) -> None:
        while tag in self._waiting:
            turn = _next_of(self._waiting, tag)
            if not turn.done():
                turn.set_result(wish)
                return
        if self._wished >= ASKED_MAX:
            raise PeerProtocolError(f"{self.qp.peer} has {ASKED_MAX} receives waiting")
        self._wished += 1
        self._wishes.setdefault(tag, deque()).append(wish)

    async def _say(self, message: dict[str, Any]) -> None:
        try:
            await self.qp.channel.send(message)
        except MrcError as error:
            raise LinkFailed(self._rank, error) from error

    # What the peer says.

    async def _read(self, hear_next: Any) -> None:
        try:
            while True:
                await hear_next()
        except MrcError as error:
            self._error = self._error or LinkFailed(self._rank, error)
            waiting: list[asyncio.Future[Any]] = [each.done for each in self._expected.values()]
            for turns in self._waiting.values():
                waiting += turns
            self._waiting.clear()
            for future in waiting:
                if not future.done():
                    future.set_exception(self._error)
                    future.exception()

    async def _hear_next(self) -> None:
        self._hear_untrusted(await self.qp.channel.receive())

    def _hear_untrusted(self, message: dict[str, Any]) -> None:
        """Take one message of the peer.

        Raises:
            PeerProtocolError: it is nothing that there is, or too much.
        """
        match message:
            case {
                "receive": int(number),
                "tag": int(tag),
                "length": int(length),
                "place": place,
            } if 0 <= number < 1 << 32 and 0 <= tag < 1 << TAG_BITS and length >= 0:
                remote = None
                if length:
                    remote = mrc.RemoteRegion.from_json_untrusted(place)
                    if remote.length != length:
                        raise PeerProtocolError(f"{length} bytes into a region of {remote.length}")
                self._wish_came(tag, _Wish(number, length, remote))
            case {"empty": int(number)}:
                self._finish_untrusted(number, None, 0)
            case {"refused": int(number), "why": str(why)} if len(why) <= TEXT_CHARACTERS_MAX:
                expected = self._expected.get(number)
                if expected is not None and not expected.done.done():
                    refusal = PeerProtocolError(printable(why), peer=self.qp.peer)
                    expected.done.set_exception(LinkFailed(self._rank, refusal))
            case _:
                raise PeerProtocolError(f"{self.qp.peer} said {message!r:.80}", peer=self.qp.peer)

    async def _arrive_next(self) -> None:
        arrived = await self.qp.next_immediate()
        if arrived.region is not None:
            end = arrived.offset + arrived.length
            self._finish_untrusted(arrived.imm, arrived.region, end)

    def _finish_untrusted(self, number: int, region: mrc.MemoryRegion | None, end: int) -> None:
        """Note that a receive is over.

        Raises:
            PeerProtocolError: it is not, or there is none.
        """
        expected = self._expected.get(number)
        if expected is None or (expected.region, expected.length) != (region, end):
            raise PeerProtocolError(
                f"{self.qp.peer} ends receive {number} after {end} bytes", peer=self.qp.peer
            )
        if not expected.done.done():
            expected.done.set_result(None)

    # The end.

    def abort(self) -> None:
        """End at once."""
        for task in self._reading:
            task.cancel()
        self.qp.abort()

    async def close(self) -> None:
        """End when what was sent is placed."""
        await self.qp.close()
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)


def _next_of(queues: dict[int, deque[V]], tag: int) -> V:
    """Take the first of a tag; a queue that is empty is not kept."""
    first = queues[tag].popleft()
    if not queues[tag]:
        del queues[tag]
    return first
