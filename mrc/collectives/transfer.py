"""How a chunk gets into the memory of a peer: slots for what is small, its own place for the rest.

A link is one queue pair of a communicator. Each side has registered a ring of slots for the other.
A piece of at most `SEGMENT_BYTES` is one WRITE-with-Immediate into the next slot; the receiver
combines or copies it and, now and then, tells how many slots it is through with. What replaces a
large chunk does not go through slots: the receiver registers the very place, tells its key, and the
pieces are written there.

What a link says beside data is one message of 24 bytes:

    r_key, 4 | number, 4 | address, 8 | length, 8

With the r_key 0, which no region has, `number` slots in all are free again; else it is a place to
write to, and they are used in the order they come. Everything from the peer is checked; what does
not fit raises `PeerProtocolError`, and the link is of no use any more.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mrc
from mrc.errors import PeerProtocolError

Bytes = NDArray[np.uint8]

RUN_BYTES = 15 * 4096
"""What one run of packets carries where they are as large as usual; what is left over at the end of
a piece costs as much as another one."""
SEGMENT_BYTES = 64 * RUN_BYTES
"""Largest piece of a chunk, and size of a slot, 3.75 MiB: each piece costs about 0.1 ms."""
PIECE_BYTES_MIN = 17 * RUN_BYTES
"""Below 1 MiB that is more than overlapping reduction and transfer saves."""
PIECES_WANTED = 4
"""Of a chunk: while the first is reduced and passed on, the others are on their way."""
SLOTS = 4
"""Pieces on their way or not yet taken, a link and direction: 15 MiB of address space, of which as
much becomes memory as pieces fill."""
_CREDIT_STEP = SLOTS // 2
PLACES_MAX = 1 << 16
"""Places a peer may have told ahead; each takes about 100 bytes."""
SET_UP_TIMEOUT_S = 10.0
_CONTROL = struct.Struct("<IIQQ")


def piece_bytes(chunk_bytes: int) -> int:
    """Return the size of the pieces of a chunk but the last; both ends of a link find the same."""
    wanted = chunk_bytes // PIECES_WANTED // RUN_BYTES * RUN_BYTES
    return min(max(wanted, PIECE_BYTES_MIN), SEGMENT_BYTES)


class Link:
    """A queue pair to one peer, and the slots at both its ends.

    One coroutine at a time sends, and one receives.

    Args:
        qp: the queue pair; it belongs to the link from now on.

    Attributes:
        qp: the queue pair.
    """

    def __init__(self, qp: mrc.QueuePair) -> None:
        self.qp = qp
        self._memory = mmap.mmap(-1, SEGMENT_BYTES * SLOTS)
        self._slots = qp.register(self._memory)
        self._bytes: Bytes = np.frombuffer(self._memory, np.uint8)
        self._remote: mrc.RemoteRegion | None = None
        self._places: deque[mrc.RemoteRegion] = deque()
        self._sent = 0
        self._freed = 0
        """Slots at the peer: pieces sent so far, and how many of them it is through with."""
        self._taken = 0
        self._told = 0
        """Slots here: pieces we are through with, and how many of them the peer was told of."""
        self._arrived = 0
        self._telling: set[asyncio.Task[None]] = set()

    async def set_up(self) -> None:
        """Tell each other where the slots are.

        Raises:
            PeerProtocolError: the peer says nothing, something else, or has other slots.
            TransportError: the queue pair failed.
        """
        ours = {"slots": self._slots.remote.to_json(), "segment_bytes": SEGMENT_BYTES}
        await self.qp.channel.send(ours)
        try:
            async with asyncio.timeout(SET_UP_TIMEOUT_S):
                theirs = await self.qp.channel.receive()
        except TimeoutError as error:
            raise PeerProtocolError(
                f"{self.qp.peer} said nothing of its slots", peer=self.qp.peer
            ) from error
        remote = mrc.RemoteRegion.from_json_untrusted(theirs.get("slots"))
        if theirs.get("segment_bytes") != SEGMENT_BYTES or remote.length != SEGMENT_BYTES * SLOTS:
            raise PeerProtocolError(
                f"{self.qp.peer} has {remote.length} bytes of slots of"
                f" {theirs.get('segment_bytes')!r:.40}, this side {SLOTS} of {SEGMENT_BYTES}",
                peer=self.qp.peer,
            )
        self._remote = remote

    # Sending.

    async def send(self, data: Any, imm: int) -> asyncio.Future[None]:
        """Write a piece into the peer's next slot, waiting until it is free.

        Args:
            data: 1 to `SEGMENT_BYTES` bytes; they must not change until the result is done.
            imm: 32 bits for the peer.

        Returns:
            Done when every byte is placed.
        """
        remote = self._remote
        assert remote is not None, "set_up comes first"
        while self._sent - self._freed >= SLOTS:
            await self._hear_untrusted()
        slot = self._sent % SLOTS
        self._sent += 1
        return self.qp.post(data, remote, slot * SEGMENT_BYTES, imm=imm)

    async def place(self, length: int) -> mrc.RemoteRegion:
        """Return the place that the peer has for the next chunk, waiting until it tells.

        Raises:
            PeerProtocolError: it is not for `length` bytes: the two ranks disagree.
        """
        while not self._places:
            await self._hear_untrusted()
        place = self._places.popleft()
        if place.length != length:
            raise PeerProtocolError(
                f"{self.qp.peer} expects {place.length} bytes where this side has {length}",
                peer=self.qp.peer,
            )
        return place

    async def _hear_untrusted(self) -> None:
        """Take one message of the peer."""
        message = await self.qp.receive()
        if len(message) != _CONTROL.size:
            raise PeerProtocolError(
                f"{self.qp.peer} sent a message of {len(message)} bytes, not {_CONTROL.size}",
                peer=self.qp.peer,
            )
        r_key, number, va, length = _CONTROL.unpack(message)
        if r_key:
            if len(self._places) >= PLACES_MAX:
                raise PeerProtocolError(
                    f"{self.qp.peer} told {PLACES_MAX} places ahead", peer=self.qp.peer
                )
            named = {"va": va, "r_key": r_key, "length": length}
            self._places.append(mrc.RemoteRegion.from_json_untrusted(named))
            return
        freed = self._freed + ((number - self._freed) & 0xFFFFFFFF)
        if freed > self._sent:
            raise PeerProtocolError(
                f"{self.qp.peer} freed {freed - self._sent} slots more than were used",
                peer=self.qp.peer,
            )
        self._freed = freed

    # Receiving.

    def offer(self, memory: Bytes) -> mrc.MemoryRegion:
        """Tell the peer where the next chunk that is large goes; deregister it when it is there."""
        region = self.qp.register(memory)
        self._tell(_CONTROL.pack(region.r_key, 0, region.va, len(memory)))
        return region

    async def arrival(self, imm: int) -> mrc.Immediate:
        """Return the peer's next piece, waiting for it.

        Raises:
            OtherOperation: it belongs to another operation than `imm` says.
        """
        piece = await self.qp.next_immediate()
        if piece.imm != imm:
            raise OtherOperation(f"{self.qp.peer} is in another operation", peer=self.qp.peer)
        return piece

    def slot_untrusted(self, piece: mrc.Immediate, length: int) -> Bytes:
        """Return what came into a slot; it stays there until `free`.

        Raises:
            PeerProtocolError: it is not in the next slot, or not of this length.
        """
        offset = self._arrived % SLOTS * SEGMENT_BYTES
        if piece.region is not self._slots or piece.offset != offset or piece.length != length:
            raise PeerProtocolError(
                f"{self.qp.peer} sent {piece.length} bytes to another place than the next slot,"
                f" which waits for {length}",
                peer=self.qp.peer,
            )
        self._arrived += 1
        return self._bytes[offset : offset + length]

    def check_place_untrusted(
        self, piece: mrc.Immediate, region: mrc.MemoryRegion, offset: int, length: int
    ) -> None:
        """Make sure that a piece came to its place.

        Raises:
            PeerProtocolError: it came elsewhere.
        """
        if piece.region is not region or piece.offset != offset or piece.length != length:
            raise PeerProtocolError(
                f"{self.qp.peer} sent {piece.length} bytes to another place than {length} at"
                f" {offset} of the one it was told",
                peer=self.qp.peer,
            )

    def free(self) -> None:
        """Give the oldest slot in use back to the peer."""
        self._taken += 1
        if self._taken - self._told >= _CREDIT_STEP:
            self._told = self._taken
            self._tell(_CONTROL.pack(0, self._told & 0xFFFFFFFF, 0, 0))

    def _tell(self, message: bytes) -> None:
        """Send a message behind those before it, without waiting."""
        task = asyncio.ensure_future(self.qp.send(message))
        self._telling.add(task)
        task.add_done_callback(self._told_it)

    def _told_it(self, task: asyncio.Task[None]) -> None:
        self._telling.discard(task)
        if not task.cancelled():
            # The queue pair has failed; who waits for it is told there.
            task.exception()

    # The end.

    def abort(self) -> None:
        """End at once."""
        for task in self._telling:
            task.cancel()
        self.qp.abort()
        self._slots.deregister()

    async def close(self) -> None:
        """End when what was sent is placed."""
        await self.qp.close()
        for task in self._telling:
            task.cancel()


class OtherOperation(PeerProtocolError):
    """A peer is in another operation than this rank: their calls differ, or their order does."""
