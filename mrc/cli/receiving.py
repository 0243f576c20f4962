"""The receiving side of a transfer of files: memory for each, digests of what lands, final names.

Knows queue pairs only as a `Link`. The peer decides what the files are called below the output
folder and what is in them, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from mrc.cli.blocks import Watermark
from mrc.cli.conversation import Conversation, Handlers
from mrc.cli.digest import EMPTY_SHA256, Digest
from mrc.cli.failures import IntegrityError
from mrc.cli.link import Immediate, Region
from mrc.cli.manifest import Entry, Kind, ManifestReader
from mrc.cli.messages import (
    Accept,
    Bye,
    Credit,
    Entries,
    FileDigest,
    Finished,
    Offer,
    Open,
    Phase,
    Prefix,
    Resume,
    Stored,
)
from mrc.cli.part import MappedPart, hash_existing
from mrc.cli.progress import FileResult, Progress
from mrc.cli.store import Folder, Standing
from mrc.cli.worker import DRAIN_S, Worker
from mrc.errors import PeerProtocolError
from mrc.text import printable

OPEN_FILES = 64
"""Files opened ahead, so that small ones do not wait for one another. Three descriptors each."""

LANDED_MAX = 4096
"""Blocks of one file that have landed and wait to be hashed. A sender that keeps to its window has
at most 1024; one that does not is no sender of ours."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Incoming:
    """One file on its way in."""

    def __init__(self, index: int, entry: Entry, block_bytes: int) -> None:
        self.index = index
        self.entry = entry
        self.blocks = -(-entry.size // block_bytes)
        self.block_bytes = block_bytes
        self.part: MappedPart | None = None
        self.region: Region | None = None
        self.landed: asyncio.Queue[Immediate] = asyncio.Queue(LANDED_MAX)
        self.resume: asyncio.Queue[int] = asyncio.Queue(1)
        self.announced: asyncio.Future[FileDigest] = asyncio.get_running_loop().create_future()
        self.resumed_bytes = 0

    def open(self, folder: Folder) -> MappedPart:
        """Make the unfinished file. Runs in a worker: the file is kept even if nobody waits."""
        self.part = MappedPart(folder, self.entry, self.block_bytes)
        return self.part

    def bytes_of(self, blocks: int) -> int:
        """The length of the first blocks together."""
        return min(blocks * self.block_bytes, self.entry.size)

    def check_untrusted(self, block: int, landed: Immediate) -> None:
        """Make sure that what landed is the block that is due.

        Raises:
            PeerProtocolError: it is another block, or part of one.
        """
        offset = block * self.block_bytes
        due = (block & 0xFFFFFFFF, offset, self.bytes_of(block + 1) - offset)
        if (landed.imm, landed.offset, landed.length) != due:
            raise PeerProtocolError(
                f"{printable(self.entry.path)}: {landed.length} bytes numbered {landed.imm} at"
                f" {landed.offset} where block {block} was due"
            )

    def let_go(self) -> None:
        """End all access by the peer."""
        if self.region is not None:
            self.region.deregister()
            self.region = None


class Receiver:
    """Receives files and folders into a folder.

    Args:
        talk: the conversation.
        offer: what the sender wants to send.
        folder: where it goes.
        progress: written to as the transfer goes.
    """

    def __init__(
        self, talk: Conversation, offer: Offer, folder: Folder, progress: Progress
    ) -> None:
        self._talk = talk
        self._offer = offer
        self._folder = folder
        self._progress = progress
        # Three threads, so that opening, hashing and flushing do not wait for one another.
        self._opener = Worker("open")
        self._hasher = Worker("hash")
        self._finisher = Worker("store")
        self._jobs: set[asyncio.Future[Any]] = set()
        self._stopping = False
        self._room = asyncio.Semaphore(OPEN_FILES)
        self._stored = Watermark()
        self._under_way: dict[int, _Incoming] = {}
        self._by_key: dict[int, _Incoming] = {}

    def handlers(self) -> Handlers:
        """What to call for which message."""
        return {Resume: self._on_resume_untrusted, FileDigest: self._on_digest_untrusted}

    async def run(self) -> None:
        """Receive everything the offer announced.

        Raises:
            FileTrouble: names are taken, the disk is full, or the kernel refused something else.
            IntegrityError: what arrived is not what was sent; it is gone again.
            PeerProtocolError: the sender said or wrote something out of place.
        """
        entries = await self._hear_entries()
        self._progress.enter(Phase.PREPARING)
        standings = await self._job(self._opener, self._folder.survey, entries)
        await self._talk.say(Accept())
        self._progress.enter(Phase.MOVING)
        async with asyncio.TaskGroup() as group:
            landings = group.create_task(self._sort_landings())
            for index, entry in enumerate(entries):
                if entry.kind is Kind.FOLDER:
                    await self._job(self._opener, self._folder.make_folder, entry)
                elif entry.kind is Kind.FILE:
                    await self._room.acquire()
                    group.create_task(self._receive(index, entry, standings[index]))
            await self._stored.reach(self._progress.files)
            landings.cancel()
        await self._talk.expect(Bye)
        self._progress.enter(Phase.FINISHING)
        await self._job(self._finisher, self._finish, entries)
        await self._talk.say(Finished())

    async def close(self) -> None:
        """Let go of everything; what can be resumed stays on the disk."""
        self._stopping = True
        for incoming in self._under_way.values():
            incoming.let_go()
        if self._jobs:
            await asyncio.wait(self._jobs, timeout=DRAIN_S)
        if not self._jobs:
            self._abandon()
        # A disk that takes longer has the files yet: they are let go of behind its last job.
        self._opener.close(lambda: self._hasher.close(lambda: self._finisher.close(self._abandon)))

    def _abandon(self) -> None:
        for incoming in self._under_way.values():
            if incoming.part is not None:
                incoming.part.abandon()
        self._under_way.clear()

    async def _hear_entries(self) -> list[Entry]:
        self._progress.enter(Phase.LISTING)
        manifest = ManifestReader(self._offer.entries, self._offer.bytes)
        while not manifest.complete:
            message = await self._talk.expect(Entries)
            manifest.add_untrusted(message.entries)
        self._progress.files = sum(entry.kind is Kind.FILE for entry in manifest.entries)
        self._progress.total_bytes = self._offer.bytes
        return manifest.entries

    def _finish(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.kind is Kind.LINK:
                self._folder.make_link(entry)
        self._folder.finish(entries)

    # ---- one file ----------------------------------------------------------------------------

    async def _receive(self, index: int, entry: Entry, standing: Standing) -> None:
        """Receive one file, from looking at what is there to its final name."""
        incoming = _Incoming(index, entry, self._offer.block_bytes)
        self._under_way[index] = incoming
        self._progress.current = entry.path
        sha256 = await self._recognise(incoming) if standing is Standing.ALIKE else ""
        if not sha256:
            part = await self._job(self._opener, incoming.open, self._folder)
            if entry.size:
                await self._fill(incoming, part)
            sha256 = part.digest.hex()
            await self._judge(incoming, sha256)
            await self._job(self._finisher, part.commit)
        # Only what went well comes here: the rest is for close().
        del self._under_way[index]
        self._room.release()
        self._progress.store(FileResult(entry.path, entry.size, incoming.resumed_bytes, sha256))
        await self._talk.say(Stored(index, sha256))
        self._stored.rise(self._stored.value + 1)

    async def _recognise(self, incoming: _Incoming) -> str:
        """Find out whether the file that is there is the one that would be sent.

        Returns:
            Its digest, or nothing when it is another and may be replaced.
        """
        entry = incoming.entry
        if not entry.size:
            return EMPTY_SHA256
        await self._talk.say(Open(incoming.index, incoming.blocks, 0, None))
        self._progress.enter(Phase.HASHING)
        digest = await self._job(self._opener, hash_existing, self._folder, entry, self._advance)
        blocks = await self._agree(incoming, incoming.blocks, digest)
        self._progress.enter(Phase.MOVING)
        if not blocks:
            self._folder.forbid_replacing(entry)
            return ""
        self._resume(incoming, blocks)
        await self._judge(incoming, digest.hex())
        return digest.hex()

    async def _agree(self, incoming: _Incoming, blocks: int, digest: Digest) -> int:
        """Tell the sender what is there, and return how much of it is good."""
        await self._talk.say(Prefix(incoming.index, blocks, digest.hex()))
        resume = await incoming.resume.get()
        if resume not in {0, blocks}:
            raise self._wrong(incoming, f"to be resumed at {resume} of {blocks} blocks")
        return resume

    def _resume(self, incoming: _Incoming, blocks: int) -> None:
        """Note how much of a file need not be sent."""
        incoming.resumed_bytes = incoming.bytes_of(blocks)
        self._progress.resumed_bytes += incoming.resumed_bytes

    async def _fill(self, incoming: _Incoming, part: MappedPart) -> None:
        """Open the file's memory to the sender and take block after block."""
        region = await self._open_memory(incoming, part)
        while part.claimed and not await self._verified(incoming, part):
            # What is not good was sealed before it was hashed: it is written to by another key.
            self._close_memory(incoming, region)
            region = await self._open_memory(incoming, part)
        self._resume(incoming, part.blocks_done)
        if part.claimed:
            ready = await self._job(self._opener, part.make_ready)
            await self._talk.say(Credit(incoming.index, part.blocks_done, ready))
        self._progress.enter(Phase.MOVING)
        for block in range(part.blocks_done, incoming.blocks):
            incoming.check_untrusted(block, await incoming.landed.get())
            # What is hashed is what stays: nobody writes to it any more.
            region.seal(incoming.bytes_of(block + 1))
            await self._job(self._hasher, part.absorb)
            if incoming.blocks > 1:
                ready = await self._job(self._hasher, part.make_ready)
                await self._talk.say(Credit(incoming.index, block + 1, ready))
        self._close_memory(incoming, region)

    async def _open_memory(self, incoming: _Incoming, part: MappedPart) -> Region:
        """Let the sender write to the file, beyond the blocks that are claimed to be there."""
        region = self._talk.link.register(memoryview(part.map or b""))
        claimed = len(part.claimed)
        region.seal(incoming.bytes_of(claimed))
        incoming.region = region
        remote = region.remote
        self._by_key[remote.r_key] = incoming
        place = {"va": remote.va, "r_key": remote.r_key, "length": remote.length}
        await self._talk.say(Open(incoming.index, claimed, part.blocks_ready, place))
        return region

    def _close_memory(self, incoming: _Incoming, region: Region) -> None:
        del self._by_key[region.remote.r_key]
        incoming.let_go()

    async def _verified(self, incoming: _Incoming, part: MappedPart) -> bool:
        """Hash the blocks that are claimed; when some are not good, claim those that are."""
        self._progress.enter(Phase.HASHING)
        await self._job(self._opener, part.verify, self._advance)
        blocks = await self._agree(incoming, part.blocks_done, part.digest)
        if blocks == len(part.claimed):
            return True
        part.claimed = part.claimed[:blocks]
        if not blocks:
            await self._job(self._opener, part.start_over)
            await self._job(self._opener, part.make_ready)
        return False

    async def _judge(self, incoming: _Incoming, sha256: str) -> None:
        """Compare the digest of what is here with the sender's.

        Raises:
            IntegrityError: they differ; what is here is removed if it came by this transfer.
        """
        if not incoming.entry.size:
            return
        announced = await incoming.announced
        if announced.sha256 == sha256:
            return
        if incoming.part is not None:
            incoming.part.discard()
        raise IntegrityError(
            f"{printable(incoming.entry.path)}: sha256 is {sha256} here and {announced.sha256} at"
            f" {self._talk.link.peer}"
        )

    async def _sort_landings(self) -> None:
        """Give each block that lands to the file it belongs to."""
        while True:
            landed = await self._talk.link.next_immediate()
            key = landed.region.remote.r_key if landed.region is not None else 0
            incoming = self._by_key.get(key)
            if incoming is None:
                raise PeerProtocolError("a block for a file that is complete")
            try:
                incoming.landed.put_nowait(landed)
            except asyncio.QueueFull:
                raise self._wrong(incoming, "sent far ahead of its window") from None

    # ---- what the sender says ----------------------------------------------------------------

    def _on_resume_untrusted(self, message: Resume) -> None:
        incoming = self._file_untrusted(message.file)
        try:
            incoming.resume.put_nowait(message.blocks)
        except asyncio.QueueFull:
            raise self._wrong(incoming, "resumed twice") from None

    def _on_digest_untrusted(self, message: FileDigest) -> None:
        incoming = self._file_untrusted(message.file)
        if incoming.announced.done() or message.bytes != incoming.entry.size:
            raise self._wrong(incoming, "with a second digest, or one of another length")
        incoming.announced.set_result(message)

    def _file_untrusted(self, index: int) -> _Incoming:
        incoming = self._under_way.get(index)
        if incoming is None:
            raise PeerProtocolError(
                f"file {index} is not being received", peer=self._talk.link.peer
            )
        return incoming

    def _wrong(self, incoming: _Incoming, what: str) -> PeerProtocolError:
        return PeerProtocolError(
            f"{printable(incoming.entry.path)}: {what}", peer=self._talk.link.peer
        )

    # ---- work in threads ---------------------------------------------------------------------

    async def _job(
        self, worker: Worker, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Run something in a worker, and know about it until it has really ended."""
        job = asyncio.ensure_future(worker.run(function, *args, **kwargs))
        self._jobs.add(job)
        job.add_done_callback(self._ended)
        return await asyncio.shield(job)

    def _ended(self, job: asyncio.Future[Any]) -> None:
        self._jobs.discard(job)
        if not job.cancelled():
            # When the transfer is over nobody else asks, and asyncio would complain.
            job.exception()

    def _advance(self, byte_count: int) -> None:
        """Count hashing; end it when the transfer has ended. Called from workers."""
        if self._stopping:
            raise InterruptedError("the transfer is over")
        self._progress.advance(byte_count)
