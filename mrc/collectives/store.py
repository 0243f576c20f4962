"""Rank 0's small store: how ranks that know one address only find out about each other.

Keys and values are text. A client says one JSON object a request over the channel of its queue pair
to rank 0, which is behind the same lock as everything, and gets one answer:

    {"id": 1, "set": key, "value": text}      {"id": 1, "value": text}
    {"id": 2, "get": key}                     {"id": 2, "value": text}, once somebody has set it
    {"id": 3, "add": key, "amount": n}        {"id": 3, "value": text}, the sum so far
    {"id": 4, "delete": key}                  {"id": 4, "value": ""}
    anything else                             {"id": ..., "error": text}

Keys begin with the token of this start of the job, so that nothing of the last one is read.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Protocol

from mrc.collectives.failures import TEXT_CHARACTERS_MAX
from mrc.errors import MrcError, PeerProtocolError, PeerRefused, QueuePairClosed
from mrc.text import printable

KEYS_MAX = 1 << 16
KEY_CHARACTERS_MAX = 512
VALUE_CHARACTERS_MAX = 64 << 10
"""With the keys, at most 4 GiB of what members of the job say; a URL has 120 characters."""
REQUESTS_MAX = 256
"""Waiting requests of one client."""


class Talk(Protocol):
    """JSON objects both ways, such as the channel of a queue pair."""

    async def send(self, message: dict[str, Any]) -> None:
        """Send one object."""

    async def receive(self) -> dict[str, Any]:
        """Return the next object of the other side."""


class Store(Protocol):
    """What both ends of the store can do."""

    async def set(self, key: str, value: str) -> None:
        """Set a value, and wake who waits for it."""

    async def get(self, key: str) -> str:
        """Return a value, waiting until somebody has set it."""

    async def add(self, key: str, amount: int) -> int:
        """Add to a number, which begins with 0, and return the sum."""

    async def delete(self, key: str) -> None:
        """Forget a value, if there is one."""


class LocalStore:
    """The store itself, on rank 0."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._waiting: dict[str, asyncio.Future[str]] = {}
        self._error: MrcError | None = None

    async def set(self, key: str, value: str) -> None:
        """Set a value, and wake who waits for it.

        Raises:
            PeerRefused: the store is full, or key or value is too long.
        """
        if len(key) > KEY_CHARACTERS_MAX or len(value) > VALUE_CHARACTERS_MAX:
            raise PeerRefused(
                f"store: key of {len(key)} characters, value of {len(value)}; at most"
                f" {KEY_CHARACTERS_MAX} and {VALUE_CHARACTERS_MAX}"
            )
        if key not in self._values and len(self._values) >= KEYS_MAX:
            raise PeerRefused(f"store: {KEYS_MAX} keys already")
        self._values[key] = value
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            waiting.set_result(value)

    async def get(self, key: str) -> str:
        """Return a value, waiting until somebody has set it.

        Raises:
            MrcError: the store has failed; it says why.
        """
        if key in self._values:
            return self._values[key]
        if self._error is not None:
            raise self._error
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(waiting)

    def peek(self, key: str) -> str:
        """Return a value, empty if there is none."""
        return self._values.get(key, "")

    async def add(self, key: str, amount: int) -> int:
        """Add to a number, which begins with 0, and return the sum.

        Raises:
            PeerRefused: there is something else than a number, it has too many digits, or the store
                is full.
        """
        try:
            total = int(self._values.get(key, "0")) + amount
            text = str(total)
        except ValueError as error:
            raise PeerRefused(f"store: {key!r:.80} is no number to add to") from error
        await self.set(key, text)
        return total

    async def delete(self, key: str) -> None:
        """Forget a value, if there is one."""
        self._values.pop(key, None)

    def fail(self, error: MrcError) -> None:
        """Make all that wait, now and later, raise."""
        self._error = self._error or error
        for waiting in self._waiting.values():
            waiting.set_exception(error)
            # Perhaps everybody has stopped waiting by now.
            waiting.exception()
        self._waiting.clear()

    async def serve(self, talk: Talk) -> None:
        """Answer one client until it ends.

        Raises:
            MrcError: it is gone, or asks too much at once.
        """
        answering: set[asyncio.Task[None]] = set()
        try:
            while True:
                request = await talk.receive()
                if len(answering) >= REQUESTS_MAX:
                    raise PeerProtocolError(f"store: over {REQUESTS_MAX} requests at once")
                task = asyncio.ensure_future(self._answer(talk, request))
                answering.add(task)
                task.add_done_callback(answering.discard)
        finally:
            for task in answering:
                task.cancel()
            await asyncio.gather(*answering, return_exceptions=True)

    async def _answer(self, talk: Talk, request: dict[str, Any]) -> None:
        number = request.get("id")
        answer: dict[str, Any] = {"id": number if type(number) is int else None}
        try:
            answer["value"] = await self._do_untrusted(request)
        except MrcError as error:
            answer["error"] = str(error)
        with contextlib.suppress(MrcError):
            await talk.send(answer)

    async def _do_untrusted(self, request: dict[str, Any]) -> str:
        """Do what a client asks.

        Raises:
            MrcError: it is nothing that can be asked, or it cannot be had.
        """
        match request:
            case {"set": str(key), "value": str(value)}:
                await self.set(key, value)
                return value
            case {"get": str(key)} if len(key) <= KEY_CHARACTERS_MAX:
                return await self.get(key)
            case {"add": str(key), "amount": int(amount)} if abs(amount) < 1 << 63:
                return str(await self.add(key, amount))
            case {"delete": str(key)}:
                await self.delete(key)
                return ""
            case _:
                raise PeerProtocolError(f"store: no such request: {request!r:.80}")


class RemoteStore:
    """The store as the other ranks see it.

    Args:
        talk: the channel to rank 0; nobody else may read from it.
    """

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._asked: dict[int, asyncio.Future[str]] = {}
        self._last_id = 0
        self._error: MrcError | None = None
        self._reading = asyncio.ensure_future(self._read())

    async def set(self, key: str, value: str) -> None:
        """Set a value, and wake who waits for it.

        Raises:
            PeerRefused: rank 0 says why.
            TransportError: rank 0 is gone.
        """
        await self._ask({"set": key, "value": value})

    async def get(self, key: str) -> str:
        """Return a value, waiting until somebody has set it.

        Raises:
            PeerRefused: rank 0 says why.
            TransportError: rank 0 is gone.
        """
        return await self._ask({"get": key})

    async def add(self, key: str, amount: int) -> int:
        """Add to a number, which begins with 0, and return the sum.

        Raises:
            PeerRefused: rank 0 says why.
            PeerProtocolError: its answer is no number.
            TransportError: rank 0 is gone.
        """
        answer = await self._ask({"add": key, "amount": amount})
        try:
            return int(answer)
        except ValueError as error:
            raise PeerProtocolError(f"store: a sum of {answer!r:.80}") from error

    async def delete(self, key: str) -> None:
        """Forget a value, if there is one.

        Raises:
            TransportError: rank 0 is gone.
        """
        await self._ask({"delete": key})

    async def _ask(self, request: dict[str, Any]) -> str:
        if self._error is not None:
            raise self._error
        self._last_id += 1
        number = self._last_id
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            await self._talk.send({"id": number, **request})
            answer: str = await future
            return answer
        finally:
            self._asked.pop(number, None)

    async def _read(self) -> None:
        try:
            while True:
                self._hear_untrusted(await self._talk.receive())
        except MrcError as error:
            self._fail(error)

    def _fail(self, error: MrcError) -> None:
        self._error = self._error or error
        for future in self._asked.values():
            if not future.done():
                future.set_exception(self._error)
                future.exception()

    def _hear_untrusted(self, answer: dict[str, Any]) -> None:
        """Give an answer to who asked.

        Raises:
            PeerProtocolError: it is no answer.
        """
        match answer:
            case {"id": int(number), "value": str(value)}:
                future = self._asked.get(number)
                if future is not None and not future.done():
                    future.set_result(value)
            case {"id": int(number), "error": str(text)}:
                future = self._asked.get(number)
                if future is not None and not future.done():
                    text = printable(text, TEXT_CHARACTERS_MAX)
                    future.set_exception(PeerRefused(f"rank 0: {text}"))
            case _:
                raise PeerProtocolError(f"store: no answer: {answer!r:.80}")

    async def close(self) -> None:
        """Stop reading; who waits for an answer is told. Twice is once."""
        self._fail(QueuePairClosed("store: this rank has closed the job"))
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
