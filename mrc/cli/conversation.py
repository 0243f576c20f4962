"""One side of the talk beside the data: messages in and out, signs of life, and how it ends.

Both the sender and the receiver run their work inside `carry_out`, which reads the channel
meanwhile, says every second that it is alive, and gives up when the peer says nothing for too
long. Knows nothing of files.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from mrc.cli.failures import AbortCode, PeerSilent, PeerStopped, abort_code
from mrc.cli.link import Link
from mrc.cli.messages import (
    BATCH_MESSAGES_MAX,
    TEXT_CHARACTERS_MAX,
    Abort,
    Entries,
    Hello,
    Message,
    Status,
    batch_to_json,
    hello_untrusted,
    messages_untrusted,
)
from mrc.cli.progress import Progress
from mrc.errors import MrcError, PeerProtocolError, TransportError
from mrc.text import printable
from mrc.units import format_bytes

BEAT_S = 1.0
"""Between two signs of life."""

LAST_WORDS_S = 1.0
"""How long a failing connection is listened to: the peer may have said why it ended it."""

FAREWELL_S = 3.0
"""How long the peer has to close after being told that the transfer is over."""

_INBOX_MESSAGES_MAX = 16
_OUTBOX_MESSAGES_MAX = 1024
"""Said and not yet sent: enough that many small files do not wait a round trip each."""

_T = TypeVar("_T")
_M = TypeVar("_M", bound=Message)

Handlers = Mapping[type[Any], Callable[[Any], None]]


class Conversation:
    """One side's talk with its peer.

    Args:
        link: the connection.
        progress: told to the peer once a second; the peer's goes in there.
        timeout_s: seconds without a word from the peer after which it counts as lost.
    """

    def __init__(self, link: Link, progress: Progress, *, timeout_s: float) -> None:
        self.link = link
        self._progress = progress
        self._timeout_s = timeout_s
        self._inbox: asyncio.Queue[Message] = asyncio.Queue(_INBOX_MESSAGES_MAX)
        self._outbox: deque[Message] = deque()
        self._room = asyncio.Event()
        self._words = asyncio.Event()
        self._silence = asyncio.Event()
        self._heard_s = asyncio.get_running_loop().time()
        self._moved_bytes = 0

    async def say(self, message: Message) -> None:
        """Send one message after those before it, without waiting until it has arrived."""
        while len(self._outbox) >= _OUTBOX_MESSAGES_MAX:
            self._room.clear()
            await self._room.wait()
        self._outbox.append(message)
        self._words.set()

    async def _post(self) -> None:
        """Carry what is said to the peer, as much at a time as has come up meanwhile."""
        while True:
            await self._words.wait()
            line = [self._outbox.popleft()]
            while self._outbox and len(line) < BATCH_MESSAGES_MAX and not _is_long(line[-1]):
                line.append(self._outbox.popleft())
            self._room.set()
            await self.link.channel.send(batch_to_json(line))
            if not self._outbox:
                self._words.clear()
                self._silence.set()

    async def _flush(self, post: asyncio.Future[None]) -> None:
        """Wait until everything said has arrived, or the peer has closed without waiting for it."""
        self._silence.clear()
        if self._words.is_set():
            quiet: asyncio.Future[Any] = asyncio.ensure_future(self._silence.wait())
            either: set[asyncio.Future[Any]] = {quiet, post}
            await asyncio.wait(either, timeout=FAREWELL_S, return_when=asyncio.FIRST_COMPLETED)
            quiet.cancel()

    async def greeting(self) -> Hello:
        """Wait for the receiver's first line.

        Raises:
            PeerVersionError: the peer is something else, or another version.
            PeerStopped: it refuses to talk.
            PeerSilent: it says nothing.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                line = await self.link.channel.receive()
        except TimeoutError:
            raise self._silent() from None
        message = hello_untrusted(line)
        if isinstance(message, Abort):
            raise self._stopped(message)
        return message

    async def expect(self, kind: type[_M]) -> _M:
        """Wait for the next message that no handler takes, which must be of this kind.

        Raises:
            PeerProtocolError: it is of another kind.
        """
        message = await self._inbox.get()
        if not isinstance(message, kind):
            raise PeerProtocolError(
                f"{message.TYPE} where {kind.TYPE} was due", peer=self.link.peer
            )
        return message

    async def carry_out(self, work: Coroutine[Any, Any, _T], handlers: Handlers) -> _T:
        """Do the work while listening to the peer; on failure tell the peer why.

        Args:
            work: sends with `say`, and waits with `expect`.
            handlers: called for each message of their kind; what they raise ends it all.

        Returns:
            What the work returns.

        Raises:
            MrcError: whatever ended the work first, or what the peer says ended it.
        """
        self._heard_s = asyncio.get_running_loop().time()
        main = asyncio.ensure_future(_ungrouped(work))
        listener = asyncio.ensure_future(self._listen(handlers))
        watch = asyncio.ensure_future(self._watch())
        beat = asyncio.ensure_future(self._beat())
        post = asyncio.ensure_future(self._post())
        tasks: list[asyncio.Future[Any]] = [main, listener, watch, beat, post]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if main.done() and main.exception() is None:
                await self._flush(post)
                return main.result()
            await self._last_words(tasks, listener)
            raise _cause(*tasks)
        except BaseException as error:
            await _cancel(tasks)
            await self._tell(error)
            raise
        finally:
            await _cancel(tasks)

    async def farewell(self) -> None:
        """Wait, not for long, until the peer has closed: what was said has then been read."""
        try:
            async with asyncio.timeout(FAREWELL_S):
                while True:
                    await self.link.channel.receive()
        except (MrcError, OSError, TimeoutError):
            return

    async def _listen(self, handlers: Handlers) -> None:
        """Read the channel for as long as it lasts."""
        while True:
            line = await self.link.channel.receive()
            self._heard_s = asyncio.get_running_loop().time()
            for message in messages_untrusted(line):
                await self._hear(message, handlers)

    async def _hear(self, message: Message, handlers: Handlers) -> None:
        handler = handlers.get(type(message))
        if isinstance(message, Abort):
            raise self._stopped(message)
        if isinstance(message, Status):
            self._progress.peer_phase = message.phase
            self._progress.peer_phase_bytes = message.bytes
        elif handler is not None:
            handler(message)
        else:
            await self._inbox.put(message)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            await self.say(Status(self._progress.phase, self._progress.phase_bytes))

    async def _watch(self) -> None:
        """Give up when for too long there was neither a word nor a byte."""
        loop = asyncio.get_running_loop()
        while True:
            moved_bytes = self._progress.moved_bytes()
            if moved_bytes != self._moved_bytes:
                # On a slow network words wait behind the blocks that were posted before them.
                self._moved_bytes = moved_bytes
                self._heard_s = loop.time()
            left_s = self._heard_s + self._timeout_s - loop.time()
            if left_s <= 0:
                raise self._silent()
            await asyncio.sleep(min(left_s, BEAT_S))

    async def _last_words(
        self, tasks: list[asyncio.Future[Any]], listener: asyncio.Future[Any]
    ) -> None:
        """When the connection broke, give the peer's explanation the time to come out of it."""
        errors = [task.exception() for task in tasks if task.done()]
        broken = any(
            isinstance(error, TransportError) and not isinstance(error, PeerSilent)
            for error in errors
        )
        if broken and not listener.done():
            await asyncio.wait([listener], timeout=LAST_WORDS_S)

    async def _tell(self, error: BaseException) -> None:
        """Tell the peer why it is over, unless it knows or cannot be told."""
        if isinstance(error, PeerStopped | TransportError):
            return
        if isinstance(error, asyncio.CancelledError):
            code, text = AbortCode.INTERRUPTED, "stopped by its user"
        else:
            code, text = abort_code(error), str(error) or type(error).__name__
        try:
            async with asyncio.timeout(FAREWELL_S):
                abort = Abort(code, text[:TEXT_CHARACTERS_MAX])
                await self.link.channel.send(batch_to_json([abort]))
                await self.farewell()
        except (MrcError, OSError, TimeoutError):
            return

    def _silent(self) -> PeerSilent:
        progress = self._progress
        last = f"; it was {progress.peer_phase.value}" if progress.peer_phase else ""
        return PeerSilent(
            f"no word from {self.link.peer} for {self._timeout_s:g} s"
            f" ({format_bytes(progress.done_bytes)} transferred{last})",
            peer=self.link.peer,
        )

    def _stopped(self, message: Abort) -> PeerStopped:
        return PeerStopped(
            f"{self.link.peer} ended the transfer: {printable(message.text)}",
            code=message.code,
            peer=self.link.peer,
        )


def _is_long(message: Message) -> bool:
    """Tell whether a message fills a line by itself."""
    return isinstance(message, Entries)


async def _ungrouped(work: Coroutine[Any, Any, _T]) -> _T:
    """Do the work; of several failures in a task group raise the one that explains most."""
    try:
        return await work
    except BaseExceptionGroup as group:
        raise _telling(group) from None


def _telling(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Find the failure worth reporting: ours before others, the connection's last."""
    leaves: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending:
        error = pending.pop()
        if isinstance(error, BaseExceptionGroup):
            pending.extend(reversed(error.exceptions))
        else:
            leaves.append(error)
    return min(leaves, key=_rank)


def _rank(error: BaseException) -> int:
    if isinstance(error, TransportError):
        return 2
    return 0 if isinstance(error, MrcError) else 1


def _cause(main: asyncio.Future[Any], *others: asyncio.Future[Any]) -> BaseException:
    """Choose what to report when some of these have failed: the peer's own words explain most."""
    errors = [task.exception() for task in (main, *others) if task.done()]
    known = [error for error in errors if error is not None]
    stopped = [error for error in known if isinstance(error, PeerStopped)]
    own = main.exception() if main.done() else None
    if own is not None and not isinstance(own, TransportError):
        return own
    return (stopped or known)[0]


async def _cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """End tasks and wait for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
