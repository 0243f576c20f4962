"""A link with slots: what goes through it, and what a hostile peer cannot do."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import mrc
from mrc.collectives import transfer
from mrc.collectives.transfer import SEGMENT_BYTES, SLOTS, Link, OtherOperation
from mrc.errors import MrcError, PeerProtocolError

pytestmark = pytest.mark.asyncio

CONTROL = struct.Struct("<IIQQ")


@contextlib.asynccontextmanager
async def pair() -> AsyncIterator[tuple[mrc.QueuePair, mrc.QueuePair]]:
    """Yield both ends of a queue pair."""
    async with (
        mrc.listen("127.0.0.1:0") as listener,
        mrc.connect(listener.url) as qp,
        await listener.accept() as peer,
    ):
        yield qp, peer


@contextlib.asynccontextmanager
async def links() -> AsyncIterator[tuple[Link, Link]]:
    """Yield both ends of a link."""
    async with pair() as (qp, peer):
        one, other = Link(qp), Link(peer)
        await asyncio.gather(one.set_up(), other.set_up())
        yield one, other


@contextlib.asynccontextmanager
async def hostile() -> AsyncIterator[tuple[Link, mrc.QueuePair, mrc.RemoteRegion]]:
    """Yield a link, and a peer that may write whatever it likes to its slots."""
    async with pair() as (qp, peer):
        link = Link(qp)
        mine = {"slots": peer.register(bytearray(SEGMENT_BYTES * SLOTS)).remote.to_json()}
        await peer.channel.send(mine | {"segment_bytes": SEGMENT_BYTES})
        await link.set_up()
        theirs = await peer.channel.receive()
        yield link, peer, mrc.RemoteRegion.from_json_untrusted(theirs["slots"])


async def test_pieces_arrive_in_order_through_all_slots() -> None:
    """More pieces than slots: the sender waits until they are free again."""
    async with links() as (one, other), asyncio.timeout(20):

        async def send() -> None:
            for number in range(3 * SLOTS):
                await one.send(bytes([number]) * (number + 1), 7)

        sending = asyncio.ensure_future(send())
        for number in range(3 * SLOTS):
            piece = await other.arrival(7)
            assert bytes(other.slot_untrusted(piece, number + 1)) == bytes([number]) * (number + 1)
            other.free()
        await sending


async def test_a_sender_waits_while_no_slot_is_free() -> None:
    """The receiver's memory is not overwritten."""
    async with links() as (one, other), asyncio.timeout(20):
        for _ in range(SLOTS):
            await (await one.send(b"x", 1))
        waiting = asyncio.ensure_future(one.send(b"y", 1))
        for _ in range(SLOTS):
            other.slot_untrusted(await other.arrival(1), 1)
        assert not waiting.done()
        for _ in range(SLOTS):
            other.free()
        await (await waiting)


async def test_a_place_is_used_in_the_order_it_was_told() -> None:
    """And is closed when the chunk is there."""
    async with links() as (one, other), asyncio.timeout(20):
        memory = np.zeros((2, 1000), np.uint8)
        regions = [other.offer(row) for row in memory]
        for number in (0, 1):
            place = await one.place(1000)
            await one.qp.write_imm(bytes([number + 1]) * 1000, place, imm=3)
            piece = await other.arrival(3)
            other.check_place_untrusted(piece, regions[number], 0, 1000)
        assert memory[0].tolist() == [1] * 1000
        assert memory[1].tolist() == [2] * 1000


async def test_another_operation_is_noticed() -> None:
    """By the first piece."""
    async with links() as (one, other):
        await one.send(b"x", 5)
        with pytest.raises(OtherOperation):
            await other.arrival(6)


async def test_another_length_is_noticed_before_anything_is_written() -> None:
    """The two ranks disagree about the size of a chunk."""
    async with links() as (one, other):
        other.offer(np.zeros(10, np.uint8))
        with pytest.raises(PeerProtocolError, match="expects 10 bytes where this side has 11"):
            await one.place(11)


SetUp = dict[str, Any]


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"slots": None, "segment_bytes": SEGMENT_BYTES},
        {"slots": {"va": 0, "r_key": 1, "length": 5}, "segment_bytes": SEGMENT_BYTES},
        {"slots": {"va": 0, "r_key": 1, "length": SEGMENT_BYTES * SLOTS}, "segment_bytes": "x"},
        {"slots": {"va": -1, "r_key": 1, "length": SEGMENT_BYTES * SLOTS}, "segment_bytes": 1},
    ],
    ids=str,
)
async def test_slots_that_cannot_be_are_refused(said: SetUp) -> None:
    """Before anything is sent there."""
    async with pair() as (qp, peer):
        await peer.channel.send(said)
        with pytest.raises(PeerProtocolError):
            await Link(qp).set_up()


async def test_a_peer_that_says_nothing_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is an error of the peer."""
    monkeypatch.setattr(transfer, "SET_UP_TIMEOUT_S", 0.05)
    async with pair() as (qp, _):
        with pytest.raises(PeerProtocolError, match="said nothing"):
            await Link(qp).set_up()


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"x",
        bytes(25),
        CONTROL.pack(0, 1, 0, 0),
        CONTROL.pack(0, 0xFFFFFFFF, 0, 0),
        CONTROL.pack(1, 0, (1 << 64) - 1, 2),
        CONTROL.pack(1, 0, 0, 0),
    ],
    ids=bytes.hex,
)
async def test_messages_that_cannot_be_are_refused(message: bytes) -> None:
    """No message at all, slots that were not used, and places that there are not."""
    async with hostile() as (link, peer, _):
        await peer.send(message)
        with pytest.raises(PeerProtocolError):
            await link.place(1)


async def test_places_are_not_told_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes memory."""
    monkeypatch.setattr(transfer, "PLACES_MAX", 3)
    async with hostile() as (link, peer, _):
        for _ in range(4):
            await peer.send(CONTROL.pack(1, 0, 0, 8))
        for _ in range(3):
            await link._hear_untrusted()  # noqa: SLF001 - what send and place do
        with pytest.raises(PeerProtocolError, match="3 places ahead"):
            await link._hear_untrusted()  # noqa: SLF001


Write = Callable[[mrc.QueuePair, mrc.RemoteRegion], Awaitable[None]]


@pytest.mark.parametrize(("offset", "length"), [(1, 8), (SEGMENT_BYTES, 8), (0, 7), (0, 9)])
async def test_a_piece_in_another_place_is_refused(offset: int, length: int) -> None:
    """Not in the next slot, or of another length."""
    async with hostile() as (link, peer, slots):
        await peer.write_imm(bytes(length), slots, offset, imm=1)
        piece = await link.arrival(1)
        with pytest.raises(PeerProtocolError, match="another place"):
            link.slot_untrusted(piece, 8)


async def test_a_slot_is_not_a_place() -> None:
    """A chunk that has its place does not come through slots, nor elsewhere into its place."""
    async with hostile() as (link, peer, slots):
        region = link.offer(np.zeros(16, np.uint8))
        await peer.write_imm(bytes(8), slots, imm=1)
        await peer.write_imm(bytes(8), region.remote, 8, imm=1)
        for _ in range(2):
            piece = await link.arrival(1)
            with pytest.raises(PeerProtocolError, match="another place"):
                link.check_place_untrusted(piece, region, 0, 8)


async def test_the_end_of_the_peer_ends_the_link() -> None:
    """Whoever waits is told."""
    async with hostile() as (link, peer, _):
        waiting = [asyncio.ensure_future(link.arrival(1)), asyncio.ensure_future(link.place(1))]
        await asyncio.sleep(0)
        peer.abort()
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(error, MrcError)
