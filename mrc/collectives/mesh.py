"""One endpoint a rank, and queue pairs to the other ranks as they are needed.

All queue pairs of a rank are on the same endpoint, so those to one peer share its paths: what one
of them finds out about a path, all know. A queue pair belongs to a context, a name that both ranks
have for what it is for: a communicator, the heart, messages. Of two ranks the higher one connects,
the lower one waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import mrc
from mrc.errors import (
    ConfigError,
    MrcError,
    PeerError,
    PeerLost,
    PeerNotTrusted,
    PeerProtocolError,
)

HELLO_TIMEOUT_S = 10.0
HELD_MAX = 256
"""Queue pairs of one rank that came before this one asked for them: 16 KiB each, behind a lock 47.
"""
CONTEXT_CHARACTERS_MAX = 256
"""A communicator's is that of its parent and a name; one word in front says what a queue pair does
in it."""
NAME_CHARACTERS_MAX = 240
CONNECT_TIMEOUT_S = 10.0
_ATTEMPT_TIMEOUT_S = 3.0
"""For one address of a rank that has several: the network of one of them may be dead."""
_RETRY_S = 0.05

OnConnection = Callable[[mrc.QueuePair, int], None]
"""(queue pair, rank): raises PeerProtocolError when it does not want it."""
OnJoin = Callable[[mrc.QueuePair, dict[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Membership:
    """Who is in the job.

    Attributes:
        rank: which one this is.
        urls: of the listener of each rank, with its key, at each address that it has.
        token: of this start of the job; another start has another one.
    """

    rank: int
    urls: tuple[tuple[str, ...], ...]
    token: str

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.urls)

    def address(self, rank: int) -> str:
        """Return where a rank listens, without the key to its lock."""
        return str(mrc.Url.parse(self.urls[rank][0]).address)


def same_text(one: str, other: str) -> bool:
    """Compare two texts in a time that tells nothing, whatever characters a peer sends."""
    one_bytes, other_bytes = (text.encode("utf-8", "surrogatepass") for text in (one, other))
    return hmac.compare_digest(one_bytes, other_bytes)


async def _say_hello(qp: mrc.QueuePair, hello: dict[str, Any]) -> mrc.QueuePair:
    """Say what a new queue pair is for, and return it; it ends with what goes wrong."""
    try:
        await qp.channel.send(hello)
    except BaseException:
        qp.abort()
        raise
    return qp


class Mesh:
    """The endpoint of this rank, its listener, and who has connected.

    Args:
        endpoint: open; it belongs to the mesh from now on.
        listener: entered; so does it.
        token: of this start of the job.
        planes: own addresses, one a plane; empty for the one that reaches a peer.
        first_token: for the lock of rank 0, where its URL has none.
        on_join: awaited for who wants to join the job; None: nobody may.

    Attributes:
        planes: own addresses.
    """

    def __init__(
        self,
        endpoint: mrc.Endpoint,
        listener: mrc.Listener,
        token: str,
        *,
        planes: tuple[str, ...] = (),
        first_token: str | None = None,
        on_join: OnJoin | None = None,
    ) -> None:
        self.planes = planes
        self._members = Membership(0, (), token)
        self._known = asyncio.Event()
        self.on_join = on_join
        self._handlers: dict[str, OnConnection] = {}
        self._begun: set[str] = set()
        self._first_token = first_token
        self._endpoint = endpoint
        self._listener = listener
        self._held: dict[tuple[str, int], mrc.QueuePair] = {}
        self._waiting: dict[tuple[str, int], asyncio.Future[mrc.QueuePair]] = {}
        self._greeting: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.ensure_future(self._accept())

    @property
    def members(self) -> Membership:
        """Who is in the job; empty until that is known."""
        return self._members

    @members.setter
    def members(self, members: Membership) -> None:
        self._members = members
        self._known.set()

    @property
    def url(self) -> str:
        """Of this rank's listener, with its key."""
        return self._listener.url

    async def queue_pair(self, context: str, rank: int) -> mrc.QueuePair:
        """Return a queue pair to a rank, which asks for the same: one a context and rank.

        Waits for the other rank as long as it takes.

        Raises:
            PeerError: it cannot be reached, or is not who it should be.
        """
        if rank < self.members.rank:
            return await self.connect(context, rank)
        key = context, rank
        held = self._held.pop(key, None)
        if held is not None:
            return held
        future: asyncio.Future[mrc.QueuePair] = asyncio.get_running_loop().create_future()
        self._waiting[key] = future
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                # It came in the same moment, and nobody takes it.
                future.result().abort()
            raise
        finally:
            self._waiting.pop(key, None)

    async def connect(
        self, context: str, rank: int, timeout_s: float = CONNECT_TIMEOUT_S
    ) -> mrc.QueuePair:
        """Connect to a rank, at its addresses in turn while it does not answer.

        Raises:
            PeerError: it did not within `timeout_s`, or is not who it should be.
        """
        hello = {"token": self.members.token, "context": context, "rank": self.members.rank}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        token = None if rank else self._first_token
        for url in itertools.cycle(self.members.urls[rank]):
            left_s = max(deadline - loop.time(), 0.1)
            if len(self.members.urls[rank]) > 1:
                left_s = min(left_s, _ATTEMPT_TIMEOUT_S)
            try:
                qp: mrc.QueuePair = await self._endpoint.connect(
                    url, planes=self.planes, timeout_s=left_s, token=token
                )
                return await _say_hello(qp, hello)
            except PeerNotTrusted:
                raise
            except (PeerError, PeerLost):
                # Many connect at once at the start, and a listener has places for so many only.
                if loop.time() + _RETRY_S >= deadline or not await self.listens(rank):
                    raise
                await asyncio.sleep(_RETRY_S)
        raise AssertionError("a rank has at least one address")

    async def listens(self, rank: int) -> bool:
        """Tell whether a rank may be there: False where its host says that nobody listens.

        A rank listens for as long as it is in the job. One that cannot be reached may be there.
        """
        for url in self.members.urls[rank]:
            address = mrc.Url.parse(url).address
            try:
                async with asyncio.timeout(_ATTEMPT_TIMEOUT_S):
                    _, writer = await asyncio.open_connection(address.host, address.port)
            except ConnectionRefusedError:
                continue
            except (OSError, TimeoutError):
                return True
            writer.transport.abort()
            return True
        return False

    # Accepting.

    async def _accept(self) -> None:
        with contextlib.suppress(MrcError):
            while True:
                qp = await self._listener.accept()
                task = asyncio.ensure_future(self._greet(qp))
                self._greeting.add(task)
                task.add_done_callback(self._greeting.discard)

    async def _greet(self, qp: mrc.QueuePair) -> None:
        """Hear what a new queue pair is for, and hand it on; whoever says nonsense is let go."""
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                hello = await qp.channel.receive()
            if "join" in hello:
                if self.on_join is None:
                    raise PeerProtocolError(f"{qp.peer} wants to join, and nobody can here")
                await self.on_join(qp, hello)
                return
            await self._hand_on_untrusted(qp, hello)
        except (MrcError, TimeoutError):
            qp.abort()
        except asyncio.CancelledError:
            qp.abort()
            raise

    async def _hand_on_untrusted(self, qp: mrc.QueuePair, hello: dict[str, Any]) -> None:
        """Give a queue pair to who waits for it.

        Raises:
            PeerProtocolError: it is of another job, of no rank, or for nothing that there can be.
        """
        match hello:
            case {"token": str(token), "context": str(context), "rank": int(rank)} if (
                type(rank) is int
                and same_text(token, self.members.token)
                and len(context) <= CONTEXT_CHARACTERS_MAX
            ):
                key = context, rank
            case _:
                raise PeerProtocolError(f"{qp.peer} is not of this job", peer=qp.peer)
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            # Who learns a moment sooner than this rank who is there may connect before it does.
            await self._known.wait()
        if not 0 <= rank < self.members.size or rank == self.members.rank:
            raise PeerProtocolError(f"{qp.peer} is no rank of this job", peer=qp.peer)
        handler = self._handlers.get(context)
        if handler is not None:
            handler(qp, rank)
            return
        waiting = self._waiting.get(key)
        if waiting is not None and not waiting.done():
            waiting.set_result(qp)
        elif rank < self.members.rank or not self._has_room(key):
            raise PeerProtocolError(f"rank {rank} connects once too often", peer=qp.peer)
        else:
            self._held[key] = qp

    def _has_room(self, key: tuple[str, int]) -> bool:
        """Tell whether a queue pair can be held; those that have ended make room."""
        for other, qp in list(self._held.items()):
            if qp.failure is not None:
                del self._held[other]
                qp.abort()
        return key not in self._held and sum(rank == key[1] for _, rank in self._held) < HELD_MAX

    def serve(self, context: str, handler: OnConnection) -> None:
        """Call a handler for every rank that connects in a context, whenever it does."""
        self._handlers[context] = handler
        for key in [key for key in self._held if key[0] == context]:
            qp = self._held.pop(key)
            try:
                handler(qp, key[1])
            except PeerProtocolError:
                qp.abort()

    def begin(self, context: str) -> None:
        """Note that a context is in use, until `let_go`.

        Raises:
            ConfigError: it is already, or its name is too long.
        """
        if len(context) > NAME_CHARACTERS_MAX:
            raise ConfigError(
                f"communicator {context:.60}...: the names of it and of those it was made from have"
                f" {len(context)} characters; at most {NAME_CHARACTERS_MAX}"
            )
        if context in self._begun:
            raise ConfigError(f"communicator {context}: there is one of this name; close it first")
        self._begun.add(context)

    def let_go(self, context: str) -> None:
        """Drop what came for a context that is over."""
        self._begun.discard(context)
        for key in [key for key in self._held if key[0] == context]:
            self._held.pop(key).abort()

    async def close(self) -> None:
        """End all queue pairs and free the sockets. Twice is once."""
        self._accepting.cancel()
        for task in list(self._greeting):
            task.cancel()
        await asyncio.gather(self._accepting, *self._greeting, return_exceptions=True)
        for qp in self._held.values():
            qp.abort()
        self._held.clear()
        await self._listener.close()
        await self._endpoint.close()
