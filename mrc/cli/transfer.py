"""One whole transfer over an established connection: who greets, who offers, and in which mode.

The two functions here are all that the commands need to know of the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from mrc.cli.conversation import Conversation, Handlers
from mrc.cli.link import Link
from mrc.cli.manifest import Kind
from mrc.cli.messages import Hello, Mode, Offer, Phase, Sink
from mrc.cli.progress import Progress
from mrc.cli.receiving import Receiver
from mrc.cli.sending import Sender, SendSettings
from mrc.cli.source import Listing
from mrc.cli.store import Folder
from mrc.cli.stream_io import FileInput, FolderOutput, Input, Output
from mrc.cli.streaming import StreamReceiver, StreamSender, stream_name_untrusted
from mrc.errors import ConfigError, PeerProtocolError


@dataclass(frozen=True, slots=True)
class StreamSource:
    """Standard input, or something else without a length.

    Attributes:
        source: where to read.
        name: what the receiver may call it.
    """

    source: Input
    name: str


async def send(
    link: Link, what: Listing | StreamSource, progress: Progress, settings: SendSettings
) -> None:
    """Send files, folders or a stream; return when the receiver has stored and verified them.

    Raises:
        ConfigError: the receiver's output takes a single file or stream, and this is more.
        MrcError: whatever went wrong here, at the peer or between.
    """
    progress.moved_bytes = link.moved_bytes
    talk = Conversation(link, progress, timeout_s=settings.timeout_s)
    hello = await talk.greeting()
    if isinstance(what, StreamSource):
        await StreamSender(talk, what.source, what.name, progress).run()
    elif hello.sink is Sink.FOLDER:
        await Sender(talk, what, progress, settings).run()
    elif len(what.entries) == 1 and what.entries[0].kind is Kind.FILE:
        await _send_as_stream(talk, what, progress)
    else:
        await talk.carry_out(_refuse_list(), {})


async def _send_as_stream(talk: Conversation, listing: Listing, progress: Progress) -> None:
    """Send one file to a receiver that writes to its standard output."""
    entry = listing.entries[0]
    progress.total_bytes = entry.size
    source = FileInput(listing.local_paths[0], entry)
    await StreamSender(talk, source, entry.path, progress).run()


async def _refuse_list() -> None:
    raise ConfigError(
        "the receiver writes to its standard output: send one file, or a stream"
        " (tar c . | mrc-send - URL)"
    )


class _Side(Protocol):
    """What receives, whichever way."""

    def handlers(self) -> Handlers:
        """What to call for which message."""

    async def run(self) -> None:
        """Receive everything."""

    async def close(self) -> None:
        """Let go of everything."""


@dataclass(frozen=True, slots=True)
class FolderSink:
    """A folder to be filled, opened anew for each transfer.

    Attributes:
        path: where it is.
        overwrite: replace files that exist.
        flush: make files durable before they are reported as stored.
    """

    path: str
    overwrite: bool = False
    flush: bool = True

    def open(self) -> Folder:
        """Open it.

        Raises:
            FileTrouble: it cannot be made or written to.
        """
        return Folder(self.path, overwrite=self.overwrite, flush=self.flush)


async def receive(
    link: Link, sink: FolderSink | Callable[[], Output], progress: Progress, *, timeout_s: float
) -> None:
    """Receive one transfer, files or a stream, and verify it.

    Args:
        link: the connection.
        sink: the folder to fill, or what opens the output that takes a single stream.
        progress: written to as the transfer goes.
        timeout_s: seconds of silence after which the sender counts as lost.

    Raises:
        MrcError: whatever went wrong here, at the peer or between.
    """
    progress.moved_bytes = link.moved_bytes
    talk = Conversation(link, progress, timeout_s=timeout_s)
    handlers: dict[type[Any], Callable[[Any], None]] = {}
    # Memory is taken from the sender only after it has been told that it is over: a write that is
    # refused would break the connection, and with it the way to say why.
    async with AsyncExitStack() as held:
        await talk.carry_out(_receive(talk, sink, progress, handlers, held), handlers)
        await talk.farewell()


async def _receive(
    talk: Conversation,
    sink: FolderSink | Callable[[], Output],
    progress: Progress,
    handlers: dict[type[Any], Callable[[Any], None]],
    held: AsyncExitStack,
) -> None:
    """Greet, hear the offer and do as it says; `handlers` are in force before it is accepted.

    What has to be let go of at the end goes into `held`.
    """
    progress.enter(Phase.PREPARING)
    side: _Side
    if isinstance(sink, FolderSink):
        await talk.say(Hello(Sink.FOLDER))
        folder = sink.open()
        held.callback(folder.close)
        offer = await talk.expect(Offer)
        progress.offered = True
        side = _into_folder_untrusted(talk, folder, offer, progress)
    else:
        await talk.say(Hello(Sink.STREAM))
        offer = await talk.expect(Offer)
        progress.offered = True
        if offer.mode is not Mode.STREAM:
            raise PeerProtocolError("files offered to a standard output", peer=talk.link.peer)
        side = StreamReceiver(talk, offer, sink, progress)
    held.push_async_callback(side.close)
    handlers.update(side.handlers())
    await side.run()


def _into_folder_untrusted(
    talk: Conversation, folder: Folder, offer: Offer, progress: Progress
) -> _Side:
    """Choose what receives this offer into a folder."""
    if offer.mode is Mode.FILES:
        return Receiver(talk, offer, folder, progress)
    name = stream_name_untrusted(offer.name)
    return StreamReceiver(talk, offer, lambda: FolderOutput(folder, name), progress)
