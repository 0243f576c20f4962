"""Streams: standard input or one file sent through a ring of blocks, to an output of any kind.

For what has no length beforehand or cannot be mapped. Each side holds a fixed number of blocks,
whatever the length of the stream. A stream is not resumed: nobody can wind a pipe back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from mrc.cli.blocks import Watermark
from mrc.cli.conversation import Conversation, Handlers
from mrc.cli.digest import Digest
from mrc.cli.failures import IntegrityError
from mrc.cli.link import Immediate, Region, Remote
from mrc.cli.messages import (
    Accept,
    Bye,
    Credit,
    FileDigest,
    Finished,
    Mode,
    Offer,
    Open,
    Phase,
    Stored,
)
from mrc.cli.names import path_parts_untrusted
from mrc.cli.progress import FileResult, Progress
from mrc.cli.stream_io import Input, Output
from mrc.cli.worker import DRAIN_S, Worker
from mrc.errors import PeerProtocolError
from mrc.text import printable

STREAM_BLOCK_BYTES = 2 << 20
RING_BYTES = 32 << 20
"""Memory of each side for a stream: sixteen blocks of two MiB, a few milliseconds at full rate."""

STREAM_BLOCK_BYTES_MAX = 8 << 20
"""Largest block of a stream that is accepted: the ring must hold several."""

STREAM_FILE = 0
"""The number under which both sides speak of the one file of a stream."""

NEWS_MAX = 1024
"""Blocks that have landed and wait to be written. The ring holds 512 of the smallest; a sender with
more does not keep to its window."""

_T = TypeVar("_T")


class StreamSender:
    """Sends one input to a receiver of any kind.

    Args:
        talk: the conversation, with the greeting already heard.
        source: what to send.
        name: what the receiver may call it.
        progress: written to as the transfer goes.
    """

    def __init__(self, talk: Conversation, source: Input, name: str, progress: Progress) -> None:
        self._talk = talk
        self._source = source
        self._name = name
        self._progress = progress
        self._worker = Worker("read")
        self._opened: asyncio.Queue[Open] = asyncio.Queue(1)
        self._stored: asyncio.Queue[Stored] = asyncio.Queue(1)
        self._ready = Watermark()
        self._sent = 0
        self._digest = Digest()

    async def run(self) -> None:
        """Send everything to the end of the input and wait until the receiver has it.

        Raises:
            FileTrouble: the input cannot be read, or changed.
            IntegrityError, PeerStopped, PeerProtocolError, TransportError: as for files.
        """
        self._progress.files = 1
        handlers: Handlers = {
            Open: self._on_open_untrusted,
            Credit: self._on_credit_untrusted,
            Stored: self._on_stored_untrusted,
        }
        try:
            await self._talk.carry_out(self._work(), handlers)
        finally:
            self._worker.close(self._source.close)

    async def _work(self) -> None:
        talk = self._talk
        await talk.say(Offer(Mode.STREAM, STREAM_BLOCK_BYTES, name=self._name))
        await talk.expect(Accept)
        opened = await self._opened.get()
        if opened.region is None or opened.region["length"] < 2 * STREAM_BLOCK_BYTES:
            raise PeerProtocolError("a ring of less than two blocks", peer=talk.link.peer)
        slots = min(opened.region["length"], RING_BYTES) // STREAM_BLOCK_BYTES
        self._progress.current = self._name
        async with asyncio.TaskGroup() as group:
            await self._pump(group, Remote(**opened.region), slots)
        self._progress.enter(Phase.FINISHING)
        sha256 = self._digest.hex()
        await talk.say(FileDigest(STREAM_FILE, self._digest.byte_count, sha256))
        stored = await self._stored.get()
        if stored.sha256 != sha256:
            raise IntegrityError(f"sha256 is {sha256} here and {stored.sha256} at the receiver")
        self._progress.store(FileResult(self._name, self._digest.byte_count, 0, sha256))
        await talk.say(Bye())
        await talk.expect(Finished)

    async def _pump(self, group: asyncio.TaskGroup, ring: Remote, slots: int) -> None:
        """Fill one block after the other while the earlier ones travel."""
        buffers = [memoryview(bytearray(STREAM_BLOCK_BYTES)) for _ in range(slots)]
        writes: list[asyncio.Task[None] | None] = [None] * slots
        while True:
            slot = self._sent % slots
            await self._ready.reach(self._sent + 1)
            last = writes[slot]
            if last is not None:
                await last
            self._progress.enter(Phase.READING)
            filled = await self._worker.run(self._load, buffers[slot])
            self._progress.enter(Phase.MOVING)
            if not filled:
                return
            write = self._talk.link.write_imm(
                buffers[slot][:filled],
                ring,
                slot * STREAM_BLOCK_BYTES,
                imm=self._sent & 0xFFFFFFFF,
            )
            self._sent += 1
            writes[slot] = group.create_task(write)

    def _load(self, buffer: memoryview) -> int:
        """Read and hash what comes next. Runs in a worker."""
        filled = self._source.read(buffer)
        self._digest.update(buffer[:filled])
        return filled

    def _on_open_untrusted(self, message: Open) -> None:
        self._put_untrusted(self._opened, message)
        self._ready.rise(message.ready)

    def _on_stored_untrusted(self, message: Stored) -> None:
        self._put_untrusted(self._stored, message)

    def _put_untrusted(self, queue: asyncio.Queue[_T], message: _T) -> None:
        try:
            queue.put_nowait(message)
        except asyncio.QueueFull:
            raise PeerProtocolError("the same said twice", peer=self._talk.link.peer) from None

    def _on_credit_untrusted(self, message: Credit) -> None:
        if message.blocks > self._sent:
            raise PeerProtocolError("took more than was sent", peer=self._talk.link.peer)
        self._ready.rise(message.ready)


def stream_name_untrusted(name: str) -> str:
    """Check what a sender would like its stream to be called.

    Raises:
        PeerProtocolError: it is no plain name.
    """
    if len(path_parts_untrusted(name)) != 1:
        raise PeerProtocolError(f"a stream called {printable(name)!r}")
    return name


class StreamReceiver:
    """Receives one stream into an output.

    Args:
        talk: the conversation.
        offer: what the sender wants to send.
        make_output: opens the output; called in a worker.
        progress: written to as the transfer goes.
    """

    def __init__(
        self,
        talk: Conversation,
        offer: Offer,
        make_output: Callable[[], Output],
        progress: Progress,
    ) -> None:
        self._talk = talk
        self._offer = offer
        self._make_output = make_output
        self._progress = progress
        self._worker = Worker("write")
        self._output: Output | None = None
        self._region: Region | None = None
        self._news: asyncio.Queue[Immediate | FileDigest] = asyncio.Queue(NEWS_MAX)
        self._slots = RING_BYTES // offer.block_bytes
        self._blocks = 0
        self._digest = Digest()

    def handlers(self) -> Handlers:
        """What to call for which message."""
        return {FileDigest: self._on_digest_untrusted}

    async def run(self) -> None:
        """Receive the stream to its end.

        Raises:
            FileTrouble: the output cannot be written to.
            OutputClosed: nobody reads the output any more.
            IntegrityError: what arrived is not what was sent.
            PeerProtocolError: the sender said or wrote something out of place.
        """
        talk = self._talk
        if self._offer.block_bytes > STREAM_BLOCK_BYTES_MAX:
            raise PeerProtocolError(f"stream blocks over {STREAM_BLOCK_BYTES_MAX} bytes")
        self._progress.files = 1
        self._progress.current = self._offer.name
        output = await self._worker.run(self._open)
        await talk.say(Accept())
        ring = memoryview(bytearray(self._slots * self._offer.block_bytes))
        self._region = talk.link.register(ring)
        remote = self._region.remote
        place = {"va": remote.va, "r_key": remote.r_key, "length": remote.length}
        await talk.say(Open(STREAM_FILE, 0, self._slots, place))
        async with asyncio.TaskGroup() as group:
            landings = group.create_task(self._sort_landings())
            announced = await self._drain(ring, output)
            landings.cancel()
        await self._conclude(announced, output)
        await talk.expect(Bye)
        await talk.say(Finished())

    async def close(self) -> None:
        """Let go of the output; a file that is not finished is removed."""
        if self._region is not None:
            self._region.deregister()
        try:
            async with asyncio.timeout(DRAIN_S):
                # In the worker, behind whatever it still opens or writes.
                await self._worker.run(self._close)
        except TimeoutError:
            # Whoever reads the output does not; the thread does not keep the process.
            pass
        finally:
            self._worker.close()

    def _open(self) -> Output:
        self._output = self._make_output()
        return self._output

    def _close(self) -> None:
        if self._output is not None:
            self._output.close()

    async def _sort_landings(self) -> None:
        while True:
            self._put_untrusted(await self._talk.link.next_immediate())

    async def _drain(self, ring: memoryview, output: Output) -> FileDigest:
        """Write out block after block until the sender has said how long it all is."""
        self._progress.enter(Phase.MOVING)
        announced: FileDigest | None = None
        while announced is None or self._digest.byte_count < announced.bytes:
            news = await self._news.get()
            if isinstance(news, FileDigest):
                announced = news
                continue
            length = self._length_untrusted(news)
            start = self._blocks % self._slots * self._offer.block_bytes
            self._progress.enter(Phase.WRITING)
            await self._worker.run(self._absorb, ring[start : start + length], output)
            self._progress.enter(Phase.MOVING)
            self._blocks += 1
            await self._talk.say(Credit(STREAM_FILE, self._blocks, self._blocks + self._slots))
        return announced

    def _length_untrusted(self, landed: Immediate) -> int:
        """Make sure that what landed is the block that is due, and return its length."""
        block_bytes = self._offer.block_bytes
        due = (self._blocks & 0xFFFFFFFF, self._blocks % self._slots * block_bytes)
        if (landed.imm, landed.offset) != due or not 0 < landed.length <= block_bytes:
            raise PeerProtocolError(
                f"{landed.length} bytes numbered {landed.imm} at {landed.offset} where block"
                f" {self._blocks} was due",
                peer=self._talk.link.peer,
            )
        return landed.length

    def _absorb(self, block: memoryview, output: Output) -> None:
        """Hash and write one block. Runs in a worker."""
        # A copy: the sender may write to the ring meanwhile, and what is hashed is what is written.
        block = memoryview(bytes(block))
        self._digest.update(block)
        output.write(block)

    async def _conclude(self, announced: FileDigest, output: Output) -> None:
        """Compare digests, finish the output and say so."""
        sha256 = self._digest.hex()
        if announced.bytes != self._digest.byte_count or announced.sha256 != sha256:
            raise IntegrityError(
                f"{announced.bytes} bytes with sha256 {announced.sha256} were sent,"
                f" {self._digest.byte_count} with {sha256} arrived"
            )
        self._progress.enter(Phase.FINISHING)
        await self._worker.run(output.finish)
        self._progress.store(FileResult(self._offer.name, announced.bytes, 0, sha256))
        await self._talk.say(Stored(STREAM_FILE, sha256))

    def _on_digest_untrusted(self, message: FileDigest) -> None:
        if message.file != STREAM_FILE:
            raise PeerProtocolError("a stream is one file", peer=self._talk.link.peer)
        self._put_untrusted(message)

    def _put_untrusted(self, news: Immediate | FileDigest) -> None:
        try:
            self._news.put_nowait(news)
        except asyncio.QueueFull:
            raise PeerProtocolError(
                "sent far ahead of its window", peer=self._talk.link.peer
            ) from None
