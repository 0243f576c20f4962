"""Who is alive: every rank keeps a queue pair, the heart, to the lowest one that is.

Both ends of a heart say something five times per detection timeout. That goes over all paths, so a
dead path changes nothing; silence for the whole timeout, or the end of the peer's process, means
that the rank has failed. Whoever finds that out, by a heart or by any other queue pair, tells the
lowest rank, and that tells everybody: all name the same rank, also those that have nothing to do
with it at the moment. When the lowest rank itself fails, the hearts go to the next.

A rank whose event loop stands still, because something computes in it without awaiting, is as
silent as a dead one. What it missed meanwhile it does not hold against the others. When a heart
ends, its rank is asked again before it is taken for dead: it may live, and have given up this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

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
from mrc.errors import MrcError, PeerError, PeerProtocolError, QueuePairClosed
from mrc.text import printable
from mrc.units import NS_PER_S

V = TypeVar("V")

HEART = "heart"
BEATS_PER_TIMEOUT = 5
DETECT_S_DEFAULT = 5.0
LEAVE_TIMEOUT_S = 2.0
"""How long the lowest rank waits, when it leaves, for the others to do so as well, and all that
they hear of it."""
ANSWER_TIMEOUT_S = 1.0
"""To ask a rank that has ended a heart whether it took this one for dead."""
_RETRY_S = 0.05
BROKEN_MAX = 1024
"""Contexts remembered as broken, agreements under way, and agreements remembered."""


class Health:
    """What this rank knows of the others, and how it finds out.

    Args:
        mesh: whose ranks; the members are known.
        detect_s: silence after which a rank has failed.

    Attributes:
        failed: obituaries, by rank of the job.
        left: ranks that have closed the job on their side.
        given_up: set when the others have taken this rank for dead: it is out of the job.
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
        self.given_up: Obituary | None = None
        self.broken: dict[str, str] = {}
        self.watchers: list[Callable[[], None]] = []
        self._hearts: dict[int, mrc.QueuePair] = {}
        self._heard_ns: dict[int, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked: dict[str, dict[int, list[int]]] = {}
        """As the lowest rank: context, then who asked to agree on it, and about which ranks."""
        self._agreed: dict[str, asyncio.Future[list[int]]] = {}
        self._answers: dict[str, list[int]] = {}
        """What was agreed on: the lowest rank may have failed before all had heard it."""
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
                # Who has left already had a heart.
                await self._until(
                    lambda: bool(self.failed) or wanted <= self.left.union(self._hearts)
                )
        except TimeoutError as error:
            missing = ", ".join(map(str, sorted(wanted.difference(self._hearts))))
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
        why = printable(str(error), TEXT_CHARACTERS_MAX)
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
        if not self.alive(rank) or self._closing or self.given_up is not None:
            return
        if rank == self._me:
            why = (
                f"the others took this rank for dead, as one is whose machine stops or whose event"
                f" loop computes for as long as {seconds(self.detect_s)}: {obituary.why}"
            )
            self.given_up = replace(obituary, why=why)
            self._changed()
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
        if context in self.broken:
            return
        _remember(self.broken, context, why)
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
        self._keep(_say_if_it_hears(qp, message))

    def _keep(self, doing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Hearts.

    async def _watch(self) -> None:
        """Keep a heart to the lowest rank, whichever that is, until this rank leaves."""
        while self.given_up is None:
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
        """As the lowest rank: who has no heart within the timeout has failed, or has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * self.detect_s):
                while True:
                    await asyncio.sleep(self.detect_s / BEATS_PER_TIMEOUT)
                    await self._look_for_ended()
        for rank in self._missing():
            silence = f"no heart of it for {seconds(2 * self.detect_s)}"
            self.report(rank, PeerError(silence))

    async def _look_for_ended(self) -> None:
        missing = self._missing()
        listening = await asyncio.gather(*map(self._mesh.listens, missing))
        for rank, listens in zip(missing, listening, strict=True):
            if not listens:
                self.report(rank, PeerError("nothing listens at its address: it has ended"))

    def _missing(self) -> list[int]:
        """Return who should have a heart here and has none."""
        return [
            rank
            for rank in range(self._size)
            if rank != self._me and rank not in self._hearts and self.alive(rank)
        ]

    def _on_heart(self, qp: mrc.QueuePair, rank: int) -> None:
        """A rank takes this one for the lowest; if it was given up it is told so.

        Raises:
            PeerProtocolError: it has a heart here already, or has left.
        """
        if rank in self.failed and not self._closing:
            self._keep(self._tell_given_up(qp, rank))
            return
        if rank in self._hearts or not self.alive(rank) or self._closing:
            raise PeerProtocolError(f"rank {rank}: one heart is enough", peer=qp.peer)
        self._keep(self._attend(qp, rank))

    async def _tell_given_up(self, qp: mrc.QueuePair, rank: int) -> None:
        """Tell a rank that comes back that the others go on without it."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await _say_if_it_hears(qp, {"failed": self.failed[rank].to_json()})
                await qp.close()
        except TimeoutError:
            qp.abort()

    async def _again(self, rank: int) -> mrc.QueuePair | None:
        """Return a new heart to a rank whose last one has ended.

        None where that rank is gone, or took this one for dead and says so, or has come itself. Of
        a process that has ended the host says at once that nobody listens.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                while self._misses(rank) and await self._mesh.listens(rank):
                    with contextlib.suppress(MrcError):
                        qp = await self._mesh.connect(HEART, rank, ANSWER_TIMEOUT_S)
                        try:
                            self._hear_untrusted(rank, await qp.channel.receive())
                        except BaseException:
                            qp.abort()
                            raise
                        if self._misses(rank):
                            return qp
                        qp.abort()
                    await asyncio.sleep(_RETRY_S)
        return None

    def _misses(self, rank: int) -> bool:
        return rank not in self._hearts and self._goes_on_with(rank)

    async def _attend(self, qp: mrc.QueuePair, rank: int) -> None:
        """Listen to the hearts of a rank, one after the other, until there is no more."""
        heart: mrc.QueuePair | None = qp
        while heart is not None:
            heart = await self._attend_one(heart, rank)

    async def _attend_one(self, qp: mrc.QueuePair, rank: int) -> mrc.QueuePair | None:
        """Listen to a heart until it ends; return the next, or say why there is none."""
        self._hearts[rank] = qp
        self._heard_ns[rank] = time.monotonic_ns()
        beating = asyncio.ensure_future(self._beat(qp, rank))
        for obituary in self.failed.values():
            self._say(qp, {"failed": obituary.to_json()})
        for context, alive in self._answers.items():
            self._say(qp, {"agreed": context, "ranks": alive})
        self._changed()
        try:
            while True:
                message = await qp.channel.receive()
                self._heard_ns[rank] = time.monotonic_ns()
                self._hear_untrusted(rank, message)
        except MrcError as error:
            self._forget(qp, rank)
            again = None
            # Who talks nonsense is not asked again, nor anybody once this side has closed.
            if self.alive(rank) and not isinstance(error, PeerProtocolError | QueuePairClosed):
                again = await self._again(rank)
            if again is None and rank not in self._hearts:
                self.report(rank, qp.failure or error, qp)
            return again
        finally:
            beating.cancel()
            self._forget(qp, rank)
            if self._closing:
                await qp.close()
            else:
                qp.abort()

    def _forget(self, qp: mrc.QueuePair, rank: int) -> None:
        if self._hearts.get(rank) is qp:
            del self._hearts[rank]

    async def _beat(self, qp: mrc.QueuePair, rank: int) -> None:
        """Say that this rank is alive, and notice when the other is silent for too long."""
        interval_s = self.detect_s / BEATS_PER_TIMEOUT
        silent_ns_max = int(self.detect_s * NS_PER_S)
        while True:
            before_ns = time.monotonic_ns()
            self._say(qp, {"beat": True})
            # Soon after the timeout, and not up to one interval.
            left_s = (self._heard_ns[rank] + silent_ns_max - before_ns) / NS_PER_S
            pause_s = min(interval_s, max(left_s, interval_s / BEATS_PER_TIMEOUT))
            await asyncio.sleep(pause_s)
            late_ns = time.monotonic_ns() - before_ns - int(pause_s * NS_PER_S)
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
                self.break_context(context, printable(why, TEXT_CHARACTERS_MAX))
            case {"agree": str(context), "ranks": list(ranks)} if len(
                context
            ) <= CONTEXT_CHARACTERS_MAX and self._are_ranks(ranks):
                self._on_agree(rank, context, ranks)
            case {"agreed": str(context), "ranks": list(ranks)} if (
                len(context) <= CONTEXT_CHARACTERS_MAX
                and self._are_ranks(ranks)
                and (rank < self._me or rank in ranks)
            ):
                # From the one that was asked, or from one that it told before it failed.
                self._answer(context, ranks)
                self._changed()
            case _:
                raise PeerProtocolError(f"rank {rank} said {message!r:.80}")

    def _are_ranks(self, ranks: list[Any]) -> bool:
        return all(type(rank) is int and 0 <= rank < self._size for rank in ranks) and len(
            set(ranks)
        ) == len(ranks)

    # Agreement on who is left.

    async def agree(self, context: str, ranks: list[int]) -> list[int]:
        """Return which of some ranks are alive; all of them that ask get the same answer.

        Waits until each of them has asked, failed or left.

        Args:
            context: a name for this question, the same on all ranks.
            ranks: of the job, in order.

        Raises:
            RankFailed: the lowest rank failed meanwhile: ask again, under the same name; or it is
                this one that the others have given up.
            PeerProtocolError: the answer is none.
        """
        self._check_in()
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._agreed[context] = future
        lowest = self.lowest
        try:
            if lowest == self._me:
                self._on_agree(self._me, context, ranks)
                return self._check_answer_untrusted(await future, ranks)
            await self._until(lambda: lowest in self._hearts or not self._goes_on_with(lowest))
            if lowest in self._hearts:
                self._say(self._hearts[lowest], {"agree": context, "ranks": ranks})
            await self._until(lambda: future.done() or not self._goes_on_with(lowest))
            self._check_in()
            obituary = self.failure(lowest)
            if obituary is not None and not future.done():
                raise RankFailed(obituary)
            return self._check_answer_untrusted(future.result(), ranks)
        finally:
            self._agreed.pop(context, None)

    def _check_answer_untrusted(self, ranks: list[int], asked: list[int]) -> list[int]:
        """Return an answer, which is some of those that were asked about, this one among them.

        Raises:
            PeerProtocolError: it is not.
        """
        if self._me not in ranks or ranks != [rank for rank in asked if rank in ranks]:
            raise PeerProtocolError(f"{ranks!r:.80} are not who is left of {asked!r:.80}")
        return ranks

    def _check_in(self) -> None:
        if self.given_up is not None:
            raise RankFailed(self.given_up)

    def _goes_on_with(self, rank: int) -> bool:
        return self.alive(rank) and self.given_up is None

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
        """As the lowest rank: note who asks; what was agreed on before stays so."""
        if context in self._answers:
            self._asked[context] = {rank: ranks}
            self._answer(context, self._answers[context])
            return
        if any(asked != ranks for asked in self._asked.get(context, {}).values()):
            raise PeerProtocolError(f"rank {rank} asks who is left of {ranks!r:.80}, others do not")
        if len(self._asked) < BROKEN_MAX or context in self._asked:
            self._asked.setdefault(context, {})[rank] = ranks
            self._settle()

    def _settle(self) -> None:
        """As the lowest rank: answer the questions that all have asked who are left."""
        for context, asked in list(self._asked.items()):
            ranks = next(iter(asked.values()))
            alive = [rank for rank in ranks if self.alive(rank)]
            if set(alive) <= set(asked):
                self._answer(context, alive)

    def _answer(self, context: str, alive: list[int]) -> None:
        """Give the answer to a question to who has asked it here."""
        _remember(self._answers, context, alive)
        for rank in self._asked.pop(context, ()):
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
            await _not_for_long(*(self.end_of(rank) for rank in list(self._hearts)))
        self._closing = True
        # A peer that stands still takes nothing.
        await _not_for_long(
            *(_say_if_it_hears(qp, {"left": True}) for qp in list(self._hearts.values()))
        )
        tasks = [self._watching, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _not_for_long(*doing: Coroutine[Any, Any, None]) -> None:
    """Wait, but at most `LEAVE_TIMEOUT_S`."""
    tasks = [asyncio.ensure_future(each) for each in doing]
    try:
        if tasks:
            await asyncio.wait(tasks, timeout=LEAVE_TIMEOUT_S)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _say_if_it_hears(qp: mrc.QueuePair, message: dict[str, Any]) -> None:
    with contextlib.suppress(MrcError):
        await qp.channel.send(message)


def _remember(what: dict[str, V], context: str, value: V) -> None:
    """Keep something, and forget the oldest when there is much."""
    what[context] = value
    if len(what) > BROKEN_MAX:
        del what[next(iter(what))]
