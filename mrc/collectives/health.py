"""Who is alive: every rank keeps a queue pair, the heart, to the lowest one that is.

Both ends of a heart say something five times per detection timeout. That goes over all paths, so a
dead path changes nothing; silence for the whole timeout, or the end of the peer's process, means
that the rank has failed. Whoever finds that out, by a heart or by any other queue pair, tells the
lowest rank, and that tells everybody: all name the same rank, also those that have nothing to do
with it at the moment. When the lowest rank itself fails, the hearts go to the next.

A rank whose event loop stands still, because something computes in it without awaiting, is as
silent as a dead one. What it missed meanwhile it does not hold against the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import mrc
from mrc.collectives.failures import (
    TEXT_CHARACTERS_MAX,
    Obituary,
    RankFailed,
    heard_ns,
    path_lines,
    path_states,
    seconds,
)
from mrc.collectives.mesh import CONTEXT_CHARACTERS_MAX, Mesh
from mrc.errors import MrcError, PeerError, PeerProtocolError
from mrc.units import NS_PER_S

HEART = "heart"
BEATS_PER_TIMEOUT = 5
DETECT_S_DEFAULT = 5.0
LEAVE_TIMEOUT_S = 2.0
"""How long the lowest rank waits, when it leaves, for the others to do so as well."""
BROKEN_MAX = 1024
"""Contexts remembered as broken, and agreements under way."""


class Health:
    """What this rank knows of the others, and how it finds out.

    Args:
        mesh: whose ranks; the members are known.
        detect_s: silence after which a rank has failed.

    Attributes:
        failed: obituaries, by rank of the job.
        left: ranks that have closed the job on their side.
        watchers: called whenever either has changed, a heart has begun, or a context was broken.
        broken: contexts that some rank gave up, each with the reason.
    """

    def __init__(self, mesh: Mesh, detect_s: float) -> None:
        self._mesh = mesh
        self._me = mesh.members.rank
        self._size = mesh.members.size
        self.detect_s = detect_s
        self.failed: dict[int, Obituary] = {}
        self.left: set[int] = set()
        self.broken: dict[str, str] = {}
        self.watchers: list[Callable[[], None]] = []
        self._hearts: dict[int, mrc.QueuePair] = {}
        self._heard_ns: dict[int, int] = {}
        self._attending: dict[int, asyncio.Task[None]] = {}
        self._saying: set[asyncio.Task[None]] = set()
        self._asked: dict[str, dict[int, list[int]]] = {}
        """As the lowest rank: context, then who asked to agree on it, and about which ranks."""
        self._agreed: dict[str, asyncio.Future[list[int]]] = {}
        self._closing = False
        mesh.serve(HEART, self._on_heart)
        self._watching = asyncio.ensure_future(self._watch())

    @property
    def lowest(self) -> int:
        """The lowest rank that is alive: the one all hearts go to."""
        return next(rank for rank in range(self._size) if self.alive(rank))

    def alive(self, rank: int) -> bool:
        """Tell whether a rank has neither failed nor left, as far as is known."""
        return rank not in self.failed and rank not in self.left

    def failure(self, rank: int) -> Obituary | None:
        """Return how a rank that is not there any more ended, or None while it is."""
        if rank in self.left:
            why = "it has left: its side of the job was closed"
            return Obituary(rank, self._mesh.members.address(rank), why, self._heard_ago_ns(rank))
        return self.failed.get(rank)

    async def started(self, timeout_s: float) -> None:
        """Wait until the hearts beat: the one of this rank, on the lowest rank those of all.

        Raises:
            RankFailed: a rank died meanwhile.
            PeerError: some did not come in time.
        """
        wanted = set(range(1, self._size)) if self._me == 0 else {0}
        timer = asyncio.timeout(timeout_s)
        try:
            async with timer:
                await self._until(lambda: bool(self.failed) or wanted <= set(self._hearts))
        except TimeoutError as error:
            missing = ", ".join(map(str, sorted(wanted - set(self._hearts))))
            raise PeerError(f"no heart to rank {missing} within {seconds(timeout_s)}") from error
        for obituary in self.failed.values():
            raise RankFailed(obituary)

    # What happened.

    def report(self, rank: int, error: MrcError, qp: mrc.QueuePair | None = None) -> None:
        """Note, and tell all, that a rank failed.

        Args:
            rank: which one.
            error: how this rank found out.
            qp: to that rank, if there is one: the state of its paths is told too.
        """
        why = str(error).replace("\n", " ")[:TEXT_CHARACTERS_MAX]
        address, heard = self._mesh.members.address(rank), self._heard_ago_ns(rank)
        if qp is None:
            self._bury(Obituary(rank, address, why, heard))
        else:
            paths, states = path_lines(qp), path_states(qp)
            self._bury(Obituary(rank, address, why, heard_ns(qp), paths, states))

    def _heard_ago_ns(self, rank: int) -> int:
        heard = self._heard_ns.get(rank)
        return max(0, time.monotonic_ns() - heard) if heard is not None else -1

    def _bury(self, obituary: Obituary) -> None:
        rank = obituary.rank
        if not self.alive(rank) or rank == self._me or self._closing:
            return
        self.failed[rank] = obituary
        self._spread({"failed": obituary.to_json()})
        self._changed()

    def _leave(self, rank: int) -> None:
        if self.alive(rank):
            self.left.add(rank)
            self._changed()

    def break_context(self, context: str, why: str) -> None:
        """Note, and tell all, that nobody can go on in a context."""
        if context in self.broken or len(self.broken) >= BROKEN_MAX:
            return
        self.broken[context] = why
        self._spread({"broken": context, "why": why[:TEXT_CHARACTERS_MAX]})
        self._changed()

    def _changed(self) -> None:
        self._settle()
        for watcher in list(self.watchers):
            watcher()

    def _spread(self, news: dict[str, Any]) -> None:
        """Tell everybody one has a heart to: those with the lowest rank reach all."""
        for qp in self._hearts.values():
            self._say(qp, news)

    def _say(self, qp: mrc.QueuePair, message: dict[str, Any]) -> None:
        task = asyncio.ensure_future(_say_if_it_hears(qp, message))
        self._saying.add(task)
        task.add_done_callback(self._saying.discard)

    # Hearts.

    async def _watch(self) -> None:
        """Keep a heart to the lowest rank, whichever that is, until this rank leaves."""
        while True:
            lowest = self.lowest
            if lowest == self._me:
                await self._expect_all()
                return
            try:
                qp = await self._mesh.connect(HEART, lowest, self.detect_s)
            except MrcError as error:
                self.report(lowest, error)
                continue
            await self._attend(qp, lowest)

    async def _expect_all(self) -> None:
        """As the lowest rank: who has no heart within the timeout has failed."""
        await asyncio.sleep(2 * self.detect_s)
        for rank in range(self._size):
            if rank != self._me and rank not in self._hearts and self.alive(rank):
                silence = f"no heart of it for {seconds(2 * self.detect_s)}"
                self.report(rank, PeerError(silence))

    def _on_heart(self, qp: mrc.QueuePair, rank: int) -> None:
        """A rank takes this one for the lowest.

        Raises:
            PeerProtocolError: it has a heart here already, or was given up.
        """
        if rank in self._hearts or not self.alive(rank) or self._closing:
            raise PeerProtocolError(f"rank {rank}: one heart is enough", peer=qp.peer)
        self._attending[rank] = asyncio.ensure_future(self._attend(qp, rank))

    async def _attend(self, qp: mrc.QueuePair, rank: int) -> None:
        """Listen to a heart until it ends, and say why it did."""
        self._hearts[rank] = qp
        self._heard_ns[rank] = time.monotonic_ns()
        beating = asyncio.ensure_future(self._beat(qp, rank))
        for obituary in self.failed.values():
            self._say(qp, {"failed": obituary.to_json()})
        self._changed()
        try:
            while True:
                message = await qp.channel.receive()
                self._heard_ns[rank] = time.monotonic_ns()
                self._hear_untrusted(rank, message)
        except MrcError as error:
            self.report(rank, qp.failure or error, qp)
        finally:
            beating.cancel()
            self._hearts.pop(rank, None)
            if self._closing:
                await qp.close()
            else:
                qp.abort()

    async def _beat(self, qp: mrc.QueuePair, rank: int) -> None:
        """Say that this rank is alive, and notice when the other is silent for too long."""
        interval_s = self.detect_s / BEATS_PER_TIMEOUT
        silent_ns_max = int(self.detect_s * NS_PER_S)
        while True:
            before_ns = time.monotonic_ns()
            self._say(qp, {"beat": True})
            await asyncio.sleep(interval_s)
            late_ns = time.monotonic_ns() - before_ns - int(interval_s * NS_PER_S)
            if late_ns > interval_s * NS_PER_S:
                self._heard_ns[rank] += late_ns
            silent_ns = time.monotonic_ns() - self._heard_ns[rank]
            if silent_ns > silent_ns_max:
                silence = PeerError(f"silent on all paths for {seconds(silent_ns / NS_PER_S)}")
                self.report(rank, silence, qp)
                qp.abort()
                return

    def _hear_untrusted(self, rank: int, message: dict[str, Any]) -> None:
        """Take one message of another rank.

        Raises:
            PeerProtocolError: it is nothing that there is.
        """
        match message:
            case {"beat": True}:
                pass
            case {"failed": dict(obituary)}:
                self._bury(Obituary.from_json_untrusted(obituary, self._size))
            case {"left": True}:
                self._leave(rank)
            case {"broken": str(context), "why": str(why)} if (
                len(context) <= CONTEXT_CHARACTERS_MAX and len(why) <= TEXT_CHARACTERS_MAX
            ):
                self.break_context(context, why)
            case {"agree": str(context), "ranks": list(ranks)} if len(
                context
            ) <= CONTEXT_CHARACTERS_MAX and self._are_ranks(ranks):
                self._on_agree(rank, context, ranks)
            case {"agreed": str(context), "ranks": list(ranks)} if self._are_ranks(ranks):
                future = self._agreed.get(context)
                if future is not None and not future.done():
                    future.set_result(ranks)
                    self._changed()
            case _:
                raise PeerProtocolError(f"rank {rank} said {message!r:.80}")

    def _are_ranks(self, ranks: list[Any]) -> bool:
        return all(type(rank) is int and 0 <= rank < self._size for rank in ranks)

    # Agreement on who is left.

    async def agree(self, context: str, ranks: list[int]) -> list[int]:
        """Return which of some ranks are alive; all of them that ask get the same answer.

        Waits until each of them has asked, failed or left.

        Args:
            context: a name for this question, the same on all ranks.
            ranks: of the job, in order.

        Raises:
            RankFailed: the lowest rank failed meanwhile; ask again, under the same name.
        """
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._agreed[context] = future
        lowest = self.lowest
        try:
            if lowest == self._me:
                self._on_agree(self._me, context, ranks)
                return await future
            await self._until(lambda: lowest in self._hearts or not self.alive(lowest))
            if lowest in self._hearts:
                self._say(self._hearts[lowest], {"agree": context, "ranks": ranks})
            await self._until(lambda: future.done() or not self.alive(lowest))
            obituary = self.failure(lowest)
            if obituary is not None and not future.done():
                raise RankFailed(obituary)
            return future.result()
        finally:
            self._agreed.pop(context, None)

    async def end_of(self, rank: int) -> None:
        """Return when a rank is not there any more."""
        await self._until(lambda: not self.alive(rank))

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Return when something is so; all that can make it so calls the watchers."""
        met = asyncio.Event()

        def look() -> None:
            if condition():
                met.set()

        self.watchers.append(look)
        try:
            look()
            await met.wait()
        finally:
            self.watchers.remove(look)

    def _on_agree(self, rank: int, context: str, ranks: list[int]) -> None:
        if len(self._asked) < BROKEN_MAX or context in self._asked:
            self._asked.setdefault(context, {})[rank] = ranks
            self._settle()

    def _settle(self) -> None:
        """As the lowest rank: answer the questions that all have asked who are left."""
        for context, asked in list(self._asked.items()):
            ranks = next(iter(asked.values()))
            alive = [rank for rank in ranks if self.alive(rank)]
            if not set(alive) <= set(asked):
                continue
            del self._asked[context]
            for rank in alive:
                if rank in self._hearts:
                    self._say(self._hearts[rank], {"agreed": context, "ranks": alive})
            future = self._agreed.get(context)
            if future is not None and not future.done():
                future.set_result(alive)

    # The end.

    async def close(self, *, gently: bool = True) -> None:
        """Say goodbye; the lowest rank waits a little for the others to do so first.

        Args:
            gently: False: nobody is waited for.
        """
        if self._closing:
            return
        if gently and self._hearts and self.lowest == self._me:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_TIMEOUT_S):
                    await asyncio.gather(*(self.end_of(rank) for rank in list(self._hearts)))
        self._closing = True
        for qp in list(self._hearts.values()):
            await _say_if_it_hears(qp, {"left": True})
        tasks = [self._watching, *self._attending.values(), *self._saying]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _say_if_it_hears(qp: mrc.QueuePair, message: dict[str, Any]) -> None:
    with contextlib.suppress(MrcError):
        await qp.channel.send(message)
