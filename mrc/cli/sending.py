"""The sending side of a transfer of files: reads, hashes and writes blocks into the peer's memory.

Knows queue pairs only as a `Link`. What the peer says is held against what it was asked before it
has any effect.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TypeVar

from mrc.cli.blocks import BlockPool, Watermark
from mrc.cli.conversation import Conversation, Handlers
from mrc.cli.digest import EMPTY_SHA256, Digest
from mrc.cli.failures import IntegrityError
from mrc.cli.link import Remote
from mrc.cli.manifest import Entry, Kind, entry_lines
from mrc.cli.messages import (
    Accept,
    Bye,
    Credit,
    Entries,
    FileDigest,
    Finished,
    Mode,
    Offer,
    Open,
    Phase,
    Prefix,
    Resume,
    Stored,
)
from mrc.cli.progress import FileResult, Progress
from mrc.cli.source import Listing, SourceFile
from mrc.cli.worker import Worker
from mrc.errors import PeerProtocolError
from mrc.text import printable

BLOCK_BYTES = 16 << 20
"""One write-with-immediate. Large enough that what is done once a block costs nothing; small
enough that a restart repeats little."""

WINDOW_BYTES = 64 << 20
"""Read but not yet hashed by the receiver: four blocks, which is what this side keeps in memory."""


OPEN_FILES_MAX = 256
"""Files a receiver may have opened ahead; a peer cannot make this side keep more in mind."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SendSettings:
    """How a sender works.

    Attributes:
        block_bytes: length of a block, 64 KiB to 64 MiB in steps of 64 KiB.
        window_bytes: most bytes in memory at once, at least one block.
        timeout_s: seconds of silence after which the peer counts as lost.
    """

    block_bytes: int = BLOCK_BYTES
    window_bytes: int = WINDOW_BYTES
    timeout_s: float = 30.0


class _Outgoing:
    """One file on its way."""

    def __init__(self, index: int, entry: Entry, path: str, block_bytes: int) -> None:
        self.index = index
        self.entry = entry
        self.path = path
        self.block_bytes = block_bytes
        self.blocks = -(-entry.size // block_bytes)
        self.opened: asyncio.Queue[Open] = asyncio.Queue(2)
        self.prefix: asyncio.Queue[Prefix] = asyncio.Queue(1)
        self.hashed = Watermark()
        self.ready = Watermark()
        self.digest = Digest()
        self.sha256 = ""
        self.resumed_bytes = 0
        self.source: SourceFile | None = None

    def span(self, block: int) -> tuple[int, int]:
        """The offset and length of one block."""
        offset = block * self.block_bytes
        return offset, min(self.block_bytes, self.entry.size - offset)

    def load(self, block: int, buffer: memoryview) -> None:
        """Read and hash one block. Runs in a worker, in order; the first call opens the file."""
        source = self._open()
        source.read(buffer, block * self.block_bytes)
        self.digest.update(buffer)
        if block + 1 == self.blocks:
            self.finish()

    def hash_prefix(self, blocks: int, progress: Progress) -> str:
        """Digest the first blocks, and go on from there. Runs in a worker."""
        length_bytes = min(blocks * self.block_bytes, self.entry.size)
        self.digest = self._open().hash_prefix(length_bytes, progress.advance)
        return self.digest.hex()

    def finish(self) -> None:
        """All has been read: it must have been one state of the file."""
        source = self._open()
        source.check_unchanged()
        self.sha256 = self.digest.hex()
        self.close()

    def _open(self) -> SourceFile:
        if self.source is None:
            self.source = SourceFile(self.path, self.entry)
        return self.source

    def close(self) -> None:
        """Close the file, if it is open."""
        if self.source is not None:
            self.source.close()
            self.source = None


class Sender:
    """Sends a listing of files and folders to a receiver that fills a folder.

    Args:
        talk: the conversation, with the greeting already heard.
        listing: what to send.
        progress: written to as the transfer goes.
        settings: sizes and time limits.
    """

    def __init__(
        self, talk: Conversation, listing: Listing, progress: Progress, settings: SendSettings
    ) -> None:
        self._talk = talk
        self._listing = listing
        self._progress = progress
        self._settings = settings
        self._pool = BlockPool(settings.window_bytes, settings.block_bytes)
        self._worker = Worker("read")
        self._stored = Watermark()
        self._files = [i for i, entry in enumerate(listing.entries) if entry.kind is Kind.FILE]
        self._under_way: dict[int, _Outgoing] = {}
        self._is_stored = bytearray(len(listing.entries))
        self._writes: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Send everything and return when the receiver has stored all of it.

        Raises:
            FileTrouble: a file vanished, changed or cannot be read.
            IntegrityError: the receiver stored something else than was read here.
            PeerStopped: the receiver ended it.
            PeerProtocolError: the receiver said something out of place.
            TransportError: the connection or the peer was lost.
        """
        self._progress.files = len(self._files)
        self._progress.total_bytes = self._listing.total_bytes
        try:
            await self._talk.carry_out(self._work(), self._handlers())
        finally:
            self._worker.close(self._close_files)

    def _close_files(self) -> None:
        for outgoing in list(self._under_way.values()):
            outgoing.close()

    def _handlers(self) -> Handlers:
        return {
            Open: self._on_open_untrusted,
            Prefix: self._on_prefix_untrusted,
            Credit: self._on_credit_untrusted,
            Stored: self._on_stored_untrusted,
        }

    async def _work(self) -> None:
        await self._offer()
        self._progress.enter(Phase.MOVING)
        async with asyncio.TaskGroup() as self._writes:
            for index in self._files:
                # An empty file is complete when it has been made; there is nothing to write.
                if self._listing.entries[index].size:
                    await self._send(self._file_untrusted(index))
        self._progress.enter(Phase.FINISHING)
        await self._stored.reach(len(self._files))
        await self._talk.say(Bye())
        await self._talk.expect(Finished)

    async def _offer(self) -> None:
        """Announce everything and wait until the receiver has agreed."""
        listing = self._listing
        await self._talk.say(
            Offer(
                Mode.FILES,
                self._settings.block_bytes,
                entries=len(listing.entries),
                bytes=listing.total_bytes,
            )
        )
        for line in entry_lines(listing.entries):
            await self._talk.say(Entries(line))
        await self._talk.expect(Accept)

    # ---- one file ----------------------------------------------------------------------------

    async def _send(self, outgoing: _Outgoing) -> None:
        """Send what the receiver does not have of one file."""
        self._progress.current = outgoing.entry.path
        first, remote = await self._agree(outgoing)
        length_bytes = outgoing.span(first)[0] if first < outgoing.blocks else outgoing.entry.size
        outgoing.resumed_bytes = length_bytes
        self._progress.resumed_bytes += length_bytes
        self._progress.enter(Phase.MOVING)
        if remote is not None:
            for block in range(first, outgoing.blocks):
                await self._send_block(outgoing, block, remote)
        if not outgoing.sha256:
            await self._worker.run(outgoing.finish)
        await self._talk.say(FileDigest(outgoing.index, outgoing.entry.size, outgoing.sha256))

    async def _agree(self, outgoing: _Outgoing) -> tuple[int, Remote | None]:
        """Find the first block to send, and where to; nowhere when the receiver has them all."""
        while True:
            opened = await outgoing.opened.get()
            remote = Remote(**opened.region) if opened.region else None
            if opened.blocks == 0:
                return 0, remote
            blocks = await self._compare(outgoing, opened)
            await self._talk.say(Resume(outgoing.index, blocks))
            if blocks == opened.blocks:
                return blocks, remote
            # Less is good than the receiver thought: it opens the file anew.

    async def _compare(self, outgoing: _Outgoing, opened: Open) -> int:
        """Hash the blocks the receiver says it has, as it does meanwhile, and compare."""
        self._progress.enter(Phase.HASHING)
        own = await self._worker.run(outgoing.hash_prefix, opened.blocks, self._progress)
        prefix = await outgoing.prefix.get()
        if prefix.blocks > opened.blocks:
            raise self._wrong(outgoing, f"{prefix.blocks} blocks hashed of {opened.blocks}")
        if prefix.blocks < opened.blocks:
            own = await self._worker.run(outgoing.hash_prefix, prefix.blocks, self._progress)
        if own == prefix.sha256:
            return prefix.blocks
        outgoing.digest = Digest()
        return 0

    async def _send_block(self, outgoing: _Outgoing, block: int, remote: Remote) -> None:
        """Read one block, and write it while the next one is read."""
        offset, length_bytes = outgoing.span(block)
        await outgoing.ready.reach(block + 1)
        buffer = await self._pool.take(length_bytes)
        await self._worker.run(outgoing.load, block, buffer)
        if self._writes is not None:
            self._writes.create_task(self._write(outgoing, block, remote, offset, buffer))

    async def _write(
        self, outgoing: _Outgoing, block: int, remote: Remote, offset: int, buffer: memoryview
    ) -> None:
        """Write one block; its memory is free when the receiver has hashed what arrived."""
        await self._talk.link.write_imm(buffer, remote, offset, imm=block & 0xFFFFFFFF)
        await outgoing.hashed.reach(block + 1)
        self._pool.give(buffer)

    # ---- what the receiver says --------------------------------------------------------------

    def _file_untrusted(self, index: int) -> _Outgoing:
        """Find the file the receiver speaks of, among those that are under way.

        Raises:
            PeerProtocolError: there is no such file, it is done, or too many have been begun.
        """
        outgoing = self._under_way.get(index)
        if outgoing is not None:
            return outgoing
        entries = self._listing.entries
        if index >= len(entries) or entries[index].kind is not Kind.FILE or self._is_stored[index]:
            raise PeerProtocolError(f"file {index} is none that is to be sent", peer=self._peer)
        if len(self._under_way) > OPEN_FILES_MAX:
            raise PeerProtocolError(f"over {OPEN_FILES_MAX} files opened at once", peer=self._peer)
        outgoing = _Outgoing(
            index, entries[index], self._listing.local_paths[index], self._settings.block_bytes
        )
        self._under_way[index] = outgoing
        return outgoing

    def _on_open_untrusted(self, message: Open) -> None:
        outgoing = self._file_untrusted(message.file)
        length = message.region["length"] if message.region else outgoing.entry.size
        if message.blocks > outgoing.blocks or length != outgoing.entry.size:
            raise self._wrong(outgoing, "opened with another length")
        if message.region is None and message.blocks != outgoing.blocks:
            raise self._wrong(outgoing, "opened without memory")
        self._put_untrusted(outgoing, outgoing.opened, message)
        outgoing.ready.rise(message.ready)

    def _on_prefix_untrusted(self, message: Prefix) -> None:
        outgoing = self._file_untrusted(message.file)
        self._put_untrusted(outgoing, outgoing.prefix, message)

    def _put_untrusted(self, outgoing: _Outgoing, queue: asyncio.Queue[_T], message: _T) -> None:
        try:
            queue.put_nowait(message)
        except asyncio.QueueFull:
            raise self._wrong(outgoing, "spoken of too often") from None

    def _on_credit_untrusted(self, message: Credit) -> None:
        outgoing = self._file_untrusted(message.file)
        if message.blocks > outgoing.blocks:
            raise self._wrong(outgoing, f"{message.blocks} blocks of {outgoing.blocks} hashed")
        outgoing.hashed.rise(message.blocks)
        outgoing.ready.rise(message.ready)

    def _on_stored_untrusted(self, message: Stored) -> None:
        outgoing = self._file_untrusted(message.file)
        own = outgoing.sha256 if outgoing.blocks else EMPTY_SHA256
        if not own:
            raise self._wrong(outgoing, "stored before it was sent")
        if message.sha256 != own:
            raise IntegrityError(
                f"{printable(outgoing.path)}: sha256 is {own} here and {message.sha256} at"
                f" {self._peer}"
            )
        del self._under_way[message.file]
        self._is_stored[message.file] = 1
        outgoing.hashed.rise(outgoing.blocks)
        self._progress.store(
            FileResult(outgoing.entry.path, outgoing.entry.size, outgoing.resumed_bytes, own)
        )
        self._stored.rise(self._stored.value + 1)

    @property
    def _peer(self) -> str:
        return self._talk.link.peer

    def _wrong(self, outgoing: _Outgoing, what: str) -> PeerProtocolError:
        return PeerProtocolError(f"{printable(outgoing.entry.path)}: {what}", peer=self._peer)
