"""One side of a conversation: what it says, what it waits for and how long, and its last word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import mrc
from mrc.cli.failures import PeerSilent
from mrc.errors import MrcError, PeerProtocolError, PeerVersionError, TransportError
from mrc.perf.conversation import (
    TEXT_CHARACTERS_MAX,
    Message,
    Reason,
    Refuse,
    Working,
    message_untrusted,
    to_json,
)
from mrc.perf.parts import while_progressing, within
from mrc.text import printable

WORKING_S = 1.0
"""Between two words that this side still works, or a quarter of its own time-out."""
LAST_WORD_S = 1.0
"""To say why this is the end, or to hear it: neither may hold up the end itself."""

_M = TypeVar("_M")
_T = TypeVar("_T")


class Talk:
    """One side of the conversation over one queue pair.

    Args:
        qp: whose channel carries it.
        timeout_s: that an answer may take, as long as the peer does not say that it works.
    """

    def __init__(self, qp: mrc.QueuePair, timeout_s: float) -> None:
        self._qp = qp
        self._timeout_s = timeout_s
        self._refused = False
        self.peer = qp.peer

    async def say(self, message: Message) -> None:
        """Say something; done when it is placed at the peer."""
        said = self._qp.channel.send(to_json(message))
        await within(self._timeout_s, said, "room for a message", self.peer)

    async def line_untrusted(
        self, what: str, progress: Callable[[], int] | None = None
    ) -> dict[str, Any]:
        """Wait for whatever the peer says next, beyond that it works.

        Args:
            what: is waited for.
            progress: bytes moved so far: as long as they grow there is no hurry.

        A peer that says and moves nothing is a `PeerSilent`.
        """
        while True:
            said = self._qp.channel.receive()
            if progress is None:
                line = await within(self._timeout_s, said, what, self.peer)
            else:
                line = await while_progressing(
                    said, progress, self._timeout_s, what=what, peer=self.peer
                )
            self._refused = line.get("type") == Refuse.TYPE
            if line.get("type") != Working.TYPE:
                return line

    async def hear_untrusted(
        self, expected: type[_M], progress: Callable[[], int] | None = None
    ) -> _M:
        """Wait for a message of one type: raises what `message_untrusted` and a wait raise."""
        what = f"the message {expected.__name__}"
        return message_untrusted(await self.line_untrusted(what, progress), expected)

    async def ask(self, message: Message, expected: type[_M]) -> _M:
        """Say something and wait for its answer."""
        await self.say(message)
        return await self.hear_untrusted(expected)

    async def working(self, work: Awaitable[_T]) -> _T:
        """Do what takes long, and say so every now and then, so that the peer waits."""
        saying = asyncio.ensure_future(self._say_working())
        try:
            return await work
        finally:
            saying.cancel()
            await asyncio.gather(saying, return_exceptions=True)

    async def _say_working(self) -> None:
        while True:
            await asyncio.sleep(min(WORKING_S, self._timeout_s / 4))
            await self.say(Working())

    # The end.

    @asynccontextmanager
    async def telling_why(self) -> AsyncIterator[None]:
        """Tell the peer what ended the block; where the peer ended it, raise what it has told."""
        try:
            yield
        except MrcError as error:
            lost = isinstance(error, TransportError) and not isinstance(error, PeerSilent)
            if lost:
                await self._hear_why_untrusted()
            elif not self._refused:
                await self.refuse(error)
            raise

    async def refuse(self, error: MrcError) -> None:
        """Tell the peer why this is the end, if it can still be told."""
        text = printable(str(error), TEXT_CHARACTERS_MAX)
        said = self._qp.channel.send(to_json(Refuse(_reason(error), text)))
        with suppress(MrcError):
            await within(LAST_WORD_S, said, "room for a message", self.peer)

    async def _hear_why_untrusted(self) -> None:
        """Look for a last word among what the peer has said, and raise it as it is read."""
        with suppress(TransportError):
            await within(LAST_WORD_S, self._until_refused(), "a last word", self.peer)

    async def _until_refused(self) -> None:
        while True:
            line = await self._qp.channel.receive()
            if line.get("type") == Refuse.TYPE:
                message_untrusted(line, Working)


def _reason(error: MrcError) -> Reason:
    if isinstance(error, PeerVersionError):
        return Reason.VERSION
    return Reason.PROTOCOL if isinstance(error, PeerProtocolError) else Reason.UNWANTED
