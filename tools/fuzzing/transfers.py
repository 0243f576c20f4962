"""Whole file transfers with a hostile peer, over a link in memory and on a virtual clock.

The peer knows how to do it right and, by choice, does: otherwise nothing would ever come far. In
between it says what it likes, when it likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar
from unittest.mock import patch

from fuzzing import odd
from fuzzing.disk import playground, sha256
from fuzzing.feed import Feed
from fuzzing.vloop import virtual_loop
from mrc.cli import receiving, sending, streaming
from mrc.cli.failures import AbortCode
from mrc.cli.link import Remote
from mrc.cli.manifest import Entry, Kind
from mrc.cli.messages import (
    Abort,
    Accept,
    Bye,
    Credit,
    Entries,
    FileDigest,
    Finished,
    Hello,
    Message,
    Mode,
    Offer,
    Open,
    Phase,
    Prefix,
    Resume,
    Sink,
    Status,
    Stored,
    batch_to_json,
    to_json,
)
from mrc.cli.progress import FileResult, Progress
from mrc.cli.sending import SendSettings
from mrc.cli.source import Listing
from mrc.cli.transfer import FolderSink, StreamSource, receive, send
from mrc.errors import MrcError, RemoteAccessError
from tests.cli.fakelink import FakeLink, linked

BLOCK_BYTES = 64 << 10
_SIZES = (0, 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 1)
_NAMES = ("a", "b", "t", "t/c")
_STEPS_MAX = 24
_SETTLE_S = 0.01
"""Virtual time in which everything that can go on does."""
_TIMEOUT_S = 5.0
_RING_BYTES = 4 * BLOCK_BYTES


_P = ParamSpec("_P")
_T = TypeVar("_T")


class _InlineWorker:
    """What a `Worker` does, at once and in the same thread: the order of things is the input's."""

    def __init__(self, _name: str, _threads: int = 1) -> None:
        """Make one; it has nothing."""

    async def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        await asyncio.sleep(0)
        return function(*args, **kwargs)

    def close(self, last: Callable[[], None] | None = None) -> None:
        if last is not None:
            last()


@contextlib.contextmanager
def _small_and_inline() -> Iterator[None]:
    """Transfers without threads, with small rings."""
    with contextlib.ExitStack() as stack:
        for module in (receiving, sending, streaming):
            stack.enter_context(patch.object(module, "Worker", _InlineWorker))
        stack.enter_context(patch.object(streaming, "RING_BYTES", _RING_BYTES))
        stack.enter_context(patch.object(streaming, "STREAM_BLOCK_BYTES", BLOCK_BYTES))
        yield


@lru_cache(maxsize=64)
def _content(index: int, size: int) -> bytes:
    return bytes((index + 1,)) * size


def _digest(index: int, size: int) -> str:
    return hashlib.sha256(_content(index, size)).hexdigest()


class _Output:
    """A stream's output, in memory."""

    name = "output"

    def __init__(self) -> None:
        self.written_bytes = 0

    def write(self, data: memoryview) -> None:
        self.written_bytes += data.nbytes

    def finish(self) -> None:
        """Nothing: it is memory."""

    def close(self) -> None:
        """Nothing: it is memory."""


class _Input:
    """A stream's input: so many bytes."""

    name = "input"

    def __init__(self, size: int) -> None:
        self._left = size

    def read(self, buffer: memoryview) -> int:
        count = min(self._left, buffer.nbytes)
        self._left -= count
        return count

    def close(self) -> None:
        """Nothing: it is memory."""


class _Hostile:
    """What both kinds of hostile peer have: a link, what was heard on it, and things to say."""

    def __init__(self, feed: Feed, link: FakeLink) -> None:
        self.feed = feed
        self.link = link
        self.opens: list[dict[str, Any]] = []
        self._steps: tuple[Callable[[], Awaitable[None]], ...] = ()

    async def act(self) -> None:
        """Do one thing after the other until the input is used up, then cut the link."""
        with contextlib.suppress(MrcError):
            for _ in range(_STEPS_MAX):
                if not self.feed:
                    break
                await self.feed.pick(self._steps)()
                if self.feed.flag():
                    await self._settle()
            await self._settle()
        self.link.cut()

    async def _settle(self) -> None:
        """Let the other side do what it can, and hear what it says."""
        await asyncio.sleep(_SETTLE_S)
        while not self.link.channel.lines.empty():
            line = await self.link.channel.receive()
            for message in line.get("messages", [line]):
                if message["type"] == Open.TYPE:
                    self.opens.append(message)

    async def say(self, *messages: Message) -> None:
        """Say something as it should be said."""
        await self.link.channel.send(batch_to_json(messages))

    async def say_anything(self) -> None:
        """Say a message with any numbers, or one that is spoilt."""
        message = to_json(self.feed.pick(_MESSAGES)(self.feed))
        spoilt = odd.spoil(self.feed, message)
        if isinstance(spoilt, dict):
            # Anything else is refused by the channel itself.
            await self.link.channel.send(spoilt)

    async def say_in_place(self) -> None:
        """Say a message that is well-formed, whether it is due or not."""
        await self.say(*[self.feed.pick(_MESSAGES)(self.feed) for _ in range(self.feed.below(4))])

    async def wait(self) -> None:
        """Say nothing, for less or more than the other side bears."""
        await asyncio.sleep(self.feed.below(4) * _TIMEOUT_S / 2)


def _small(feed: Feed) -> int:
    """A number that is likely near a limit of these small transfers."""
    return feed.pick((0, 1, 2, 3, 4, 5, 8, 255, 1 << 17, 1 << 40))


def _sha(feed: Feed) -> str:
    return _digest(feed.below(4), feed.pick(_SIZES))


_MESSAGES: tuple[Callable[[Feed], Message], ...] = (
    lambda f: Hello(f.pick(tuple(Sink))),
    lambda f: Offer(f.pick(tuple(Mode)), BLOCK_BYTES, _small(f), _small(f), f.pick(_NAMES)),
    lambda f: Entries([_entry(f, i).to_json() for i in range(f.below(4))]),
    lambda _: Accept(),
    lambda f: Open(f.below(4), _small(f), _small(f), None),
    lambda f: Prefix(f.below(4), _small(f), _sha(f)),
    lambda f: Resume(f.below(4), _small(f)),
    lambda f: FileDigest(f.below(4), f.pick(_SIZES), _sha(f)),
    lambda f: Credit(f.below(4), _small(f), _small(f)),
    lambda f: Stored(f.below(4), _sha(f)),
    lambda _: Bye(),
    lambda _: Finished(),
    lambda f: Status(f.pick(tuple(Phase)), _small(f)),
    lambda f: Abort(f.pick(tuple(AbortCode)), f.pick(("", "x", "\x1b[2J"))),
)


def _entry(feed: Feed, index: int) -> Entry:
    kind = feed.pick((Kind.FILE, Kind.FOLDER, Kind.LINK))
    path = _NAMES[index % len(_NAMES)]
    if kind is Kind.LINK:
        return Entry(path, kind, 0, 0o777, 0, feed.pick(("a", "../a", "..", "/", "t/../..")))
    return Entry(path, kind, feed.pick(_SIZES) if kind is Kind.FILE else 0, 0o644, feed.below(2))


# A hostile sender.


class _Sender(_Hostile):
    """Sends to a receiver of ours."""

    def __init__(self, feed: Feed, link: FakeLink) -> None:
        super().__init__(feed, link)
        self._steps = (
            self._offer, self._fill, self._write, self._finish, self._offer_stream,
            self.say_in_place, self.say_anything, self.wait,
        )  # fmt: skip
        self._entries: list[Entry] = []

    async def _offer(self) -> None:
        """Offer a few files, or links and folders among them."""
        count = 1 + self.feed.below(len(_NAMES))
        self._entries = [_entry(self.feed, i) for i in range(count)]
        total_bytes = sum(entry.size for entry in self._entries)
        await self.say(
            Offer(Mode.FILES, BLOCK_BYTES, count, total_bytes),
            Entries([entry.to_json() for entry in self._entries]),
        )

    async def _offer_stream(self) -> None:
        await self.say(Offer(Mode.STREAM, BLOCK_BYTES, name=self.feed.pick(("s", "..", "a/b"))))

    async def _fill(self) -> None:
        """Do for each file that was opened what is due, some of it left out."""
        await self._settle()
        opens, self.opens = self.opens, []
        for message in opens:
            index, first = message["file"], message["blocks"]
            size = self._entries[index].size if index < len(self._entries) else BLOCK_BYTES
            if first:
                first = first if self.feed.flag() else 0
                await self.say(Resume(index, first))
                await self._settle()
            if message["region"] is not None:
                await self._write_blocks(Remote(**message["region"]), index, first, size)
            if self.feed.below(4) != 3:
                await self.say(FileDigest(index, size, _digest(index, size)))

    async def _write_blocks(self, where: Remote, index: int, first: int, size: int) -> None:
        """Write the blocks of a file from one on, to the end or not quite."""
        content = _content(index, size)
        blocks = -(-size // BLOCK_BYTES) - (self.feed.below(4) == 3)
        for block in range(first, blocks):
            offset = block * BLOCK_BYTES
            with contextlib.suppress(RemoteAccessError):
                data = content[offset : offset + BLOCK_BYTES]
                await self.link.write_imm(data, where, offset, imm=block)

    async def _write(self) -> None:
        """Write something somewhere: also beyond what is open, or to what is closed again."""
        keys = [*(self.link.other.regions if self.link.other is not None else ()), 1, 99]
        where = Remote(0, self.feed.pick(keys), 1 << 40)
        offset = self.feed.pick((0, 1, BLOCK_BYTES, 2 * BLOCK_BYTES, 1 << 39))
        length = self.feed.pick((1, 17, BLOCK_BYTES, BLOCK_BYTES + 1))
        with contextlib.suppress(RemoteAccessError, ValueError):
            await self.link.write_imm(bytes(length), where, offset, imm=_small(self.feed))

    async def _finish(self) -> None:
        await self._fill()
        await self._settle()
        await self.say(Bye())


def receiver(feed: Feed) -> None:
    """Let a hostile peer send to a folder, or to a standard output, of ours."""
    with _small_and_inline(), playground().attacked() as out:
        for _ in range(feed.below(3)):
            playground().plant(feed, feed.pick(("a", "b", "t", ".a.mrc-part", ".a.mrc-journal")))
        for _ in range(1 + feed.below(2)):
            sink = FolderSink(str(out), overwrite=feed.flag(), flush=False)
            into_folder = feed.below(4) != 3
            results = virtual_loop().run(_receive(feed, sink if into_folder else _Output))
            for result in results if into_folder else ():
                assert sha256(out / result.path) == result.sha256, result


async def _receive(feed: Feed, sink: FolderSink | Callable[[], _Output]) -> list[FileResult]:
    """Receive once; return what is said to have been stored."""
    theirs, ours = linked()
    progress = Progress()
    acting = asyncio.ensure_future(_Sender(feed, theirs).act())
    with contextlib.suppress(MrcError):
        await receive(ours, sink, progress, timeout_s=_TIMEOUT_S)
    ours.cut()
    await acting
    assert not ours.regions, "memory is still open to the peer"
    return progress.results


# A hostile receiver.


class _Receiver(_Hostile):
    """Receives from a sender of ours."""

    def __init__(self, feed: Feed, link: FakeLink, listing: Listing) -> None:
        super().__init__(feed, link)
        self._steps = (
            self._greet, self._open, self._take, self._claim, self._finish,
            self.say_in_place, self.say_anything, self.wait,
        )  # fmt: skip
        self._listing = listing

    async def _greet(self) -> None:
        await self.say(Hello(self.feed.pick(tuple(Sink))), Accept())

    async def _open(self) -> None:
        """Open memory for a file, of its length or another."""
        index = self.feed.below(len(self._listing.entries))
        size = self._listing.entries[index].size + self.feed.pick((0, 0, 0, 1, -1))
        where = self.link.register(bytearray(max(size, 1))).remote
        place = {"va": where.va, "r_key": where.r_key, "length": max(size, 1)}
        await self.say(Open(index, self.feed.pick((0, 0, 0, 1, 2)), _small(self.feed), place))

    async def _take(self) -> None:
        """Take what has been written, and say so."""
        await self._settle()
        while not self.link.immediates.empty():
            landed = await self.link.next_immediate()
            await self.say(Credit(self.feed.below(4), landed.imm + 1, landed.imm + 4))

    async def _claim(self) -> None:
        """Say that a file, or its beginning, is there already."""
        index = self.feed.below(len(self._listing.entries))
        size = self._listing.entries[index].size
        blocks = -(-size // BLOCK_BYTES)
        await self.say(Open(index, blocks, 0, None), Prefix(index, blocks, _digest(index, size)))

    async def _finish(self) -> None:
        for index, entry in enumerate(self._listing.entries):
            await self._take()
            await self.say(Stored(index, _digest(index, entry.size)))
        await self._settle()
        await self.say(Finished())


def sender(feed: Feed) -> None:
    """Let a hostile peer receive files, or a stream, of ours."""
    with _small_and_inline(), playground().attacked() as folder:
        listing = Listing()
        for index in range(1 + feed.below(3)):
            path, content = folder / str(index), _content(index, feed.pick(_SIZES))
            path.write_bytes(content)
            mtime_ns = path.stat().st_mtime_ns
            entry = Entry(str(index), Kind.FILE, len(content), 0o644, mtime_ns)
            listing.add(entry, str(path))
        stream = StreamSource(_Input(feed.pick(_SIZES)), "s") if feed.below(4) == 3 else None
        virtual_loop().run(_send(feed, listing, stream))
        for index, entry in enumerate(listing.entries):
            assert sha256(folder / str(index)) == _digest(index, entry.size)


async def _send(feed: Feed, listing: Listing, stream: StreamSource | None) -> None:
    """Send once."""
    ours, theirs = linked()
    progress = Progress()
    acting = asyncio.ensure_future(_Receiver(feed, theirs, listing).act())
    settings = SendSettings(BLOCK_BYTES, 3 * BLOCK_BYTES, _TIMEOUT_S)
    with contextlib.suppress(MrcError):
        await send(ours, stream or listing, progress, settings)
    ours.cut()
    await acting
