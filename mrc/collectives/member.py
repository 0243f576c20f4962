"""One rank's side of a group of ranks: its queue pairs, what is under way, and how it ends.

Collectives run one after the other, sends and receives beside them. What goes wrong once is wrong
for good, here and on the other ranks, which are told.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, Generic, Self, TypeVar

import mrc
from mrc.collectives.executor import Execution
from mrc.collectives.failures import (
    CommunicatorClosed,
    LinkFailed,
    OperationBroken,
    OperationTimeout,
    RankFailed,
    seconds,
)
from mrc.collectives.health import Health
from mrc.collectives.mesh import Mesh
from mrc.collectives.operations import FINGERPRINT_BITS, Job
from mrc.collectives.point_to_point import PointToPoint
from mrc.collectives.transfer import Link
from mrc.errors import MrcError, PeerError, PeerProtocolError, RetriesExceeded

T = TypeVar("T")
L = TypeVar("L", Link, PointToPoint)

TIMEOUT_S_DEFAULT = 600.0
"""For one operation: long enough for one rank to write a checkpoint while the others wait."""
GRACE_S = 1.0
"""How long a failed queue pair waits for news of who failed first: whoever sees a rank die may end
before others have heard why. The end of a process shows at the hearts at once."""


class Work(Generic[T]):
    """An operation under way; await it for its result, or for what went wrong.

    Cancelling the waiting does not stop the operation.
    """

    def __init__(self, task: asyncio.Task[T], what: str) -> None:
        self.what = what
        self._task = task
        # Who never asks is told nothing; the communicator is.
        task.add_done_callback(lambda task: task.cancelled() or task.exception())

    def __repr__(self) -> str:
        return f"<{self.what}, {'over' if self.done() else 'under way'}>"

    def done(self) -> bool:
        """Tell whether it is over, well or not."""
        return self._task.done()

    def add_done_callback(self, callback: Callable[[Work[T]], None]) -> None:
        """Call something when it is over."""
        self._task.add_done_callback(lambda _: callback(self))

    def result(self) -> T:
        """Return what it returned, once it is done.

        Raises:
            MrcError: what went wrong.
        """
        if self._task.cancelled():
            raise self._ended()
        return self._task.result()

    def __await__(self) -> Generator[Any, None, T]:
        try:
            return (yield from asyncio.shield(self._task).__await__())
        except asyncio.CancelledError:
            waiter = asyncio.current_task()
            if self._task.cancelled() and waiter is not None and not waiter.cancelling():
                # Not the waiter was cancelled, and nothing above it should think so.
                raise self._ended() from None
            raise

    def _ended(self) -> CommunicatorClosed:
        return CommunicatorClosed(
            f"{self.what}: the communicator was closed or destroyed meanwhile"
        )


class Member:
    """What a communicator is made of, but for its operations.

    Attributes:
        rank: of this one, in the group.
        size: of the group.
        ranks: numbers of its members in the whole job.
        timeout_s: for an operation that says nothing else.

    Raises:
        ConfigError: the context is too long, or another member's that is open.
    """

    def __init__(
        self,
        mesh: Mesh,
        health: Health,
        context: str,
        ranks: Sequence[int],
        *,
        timeout_s: float = TIMEOUT_S_DEFAULT,
        family: set[Member] | None = None,
    ) -> None:
        self.ranks = tuple(ranks)
        self.rank = self.ranks.index(mesh.members.rank)
        self.size = len(self.ranks)
        self.timeout_s = timeout_s
        self._mesh = mesh
        self._health = health
        self._context = context
        self._links: dict[int, asyncio.Task[Link]] = {}
        self._lanes: dict[int, asyncio.Task[PointToPoint]] = {}
        self._lane_turns: dict[int, asyncio.Lock] = {}
        self._lane_context = f"p2p {context}"
        self._last: asyncio.Task[Any] | None = None
        self._running: set[asyncio.Task[Any]] = set()
        self._sequence = itertools.count()
        self._children = itertools.count()
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._family: set[Member] = set() if family is None else family
        """The open ones that were made from the same world, which ends them when it ends."""
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        mesh.begin(context)
        if family is not None:
            family.add(self)
        health.watchers.append(self._look)
        self._look()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "broken" if self._broken.done() else "open"
        kind = type(self).__name__
        return f"<{kind} {self._context}: rank {self.rank} of {self.size}, {state}>"

    # Carrying out.

    def _check_open(self) -> None:
        if self._closed:
            raise CommunicatorClosed("the communicator is closed")

    def _begin(self, job: Job, timeout_s: float | None) -> Work[Any]:
        """Let a job run when those before it are over."""
        self._check_open()
        running = self._carry_out(job, self._last, next(self._sequence), timeout_s)
        task = self._last = self._start(running)
        task.add_done_callback(self._forget)
        return Work(task, job.what)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        """Let go of an operation that is over, and with it of its buffers."""
        if self._last is task:
            self._last = None

    def _begin_alone(
        self,
        what: str,
        do: Callable[[], Coroutine[Any, Any, None]],
        peer: int,
        timeout_s: float | None,
    ) -> Work[None]:
        """Let something run beside everything else."""
        self._check_open()
        return Work(self._start(self._guarded(what, do, lambda: [peer], timeout_s)), what)

    def _start(self, running: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(running)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _carry_out(
        self,
        job: Job,
        before: asyncio.Task[Any] | None,
        sequence: int,
        timeout_s: float | None,
    ) -> Any:
        if before is not None and not before.done():
            await asyncio.wait({before})
        if self._broken.done():
            self._broken.result()
        job.prepare()
        imm = (sequence << FINGERPRINT_BITS | job.fingerprint) & 0xFFFFFFFF
        execution = Execution(
            job.plan, job.memory, self.rank, self._link, imm=imm, reduction=job.reduction
        )
        await self._guarded(job.what, execution.run, execution.waiting_for, timeout_s)
        job.finish()
        return job.result

    async def _guarded(
        self,
        what: str,
        do: Callable[[], Coroutine[Any, Any, None]],
        waiting_for: Callable[[], Sequence[int]],
        timeout_s: float | None,
    ) -> None:
        """Do something until it is over, takes too long, or the communicator is broken."""
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        task = asyncio.ensure_future(do())
        try:
            await asyncio.wait(
                {task, self._broken}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
            )
            if task.done():
                task.result()
            elif self._broken.done():
                self._broken.result()
            else:
                raise self._too_late(what, limit_s, tuple(waiting_for()))
        except LinkFailed as failed:
            await self._diagnose(what, failed)
        except MrcError:
            raise
        except Exception as error:
            # The others must not wait for this rank until their time is over.
            self._break(OperationBroken(f"{what}: {error!r}"))
            raise
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _too_late(self, what: str, limit_s: float, ranks: tuple[int, ...]) -> OperationTimeout:
        named = ", ".join(str(rank) for rank in ranks) or "nobody"
        error = OperationTimeout(
            f"{what} was not over within {seconds(limit_s)}; waiting for rank {named}", ranks
        )
        self._break(error)
        return error

    async def _diagnose(self, what: str, failed: LinkFailed) -> None:
        """Say what the failure of a link means.

        Raises:
            MrcError: always: that a rank failed, or does something else.
        """
        error, rank = failed.error, failed.rank
        if isinstance(error, PeerProtocolError):
            wrong = PeerProtocolError(
                f"{what}: rank {rank}: {error}; do all ranks make the same calls, in the same"
                " order, with the same sizes?",
                peer=error.peer,
            )
            self._break(wrong)
            raise wrong from error
        await asyncio.wait({self._broken}, timeout=GRACE_S)
        job_rank = self.ranks[rank]
        if isinstance(error, RetriesExceeded) and not self._broken.done():
            # Others may reach it, but nobody can go on with two ranks that do not.
            link = self._links.get(rank)
            qp = link.result().qp if link is not None and _is_there(link) else None
            self._health.report(job_rank, error, qp)
        if not self._broken.done():
            left = self._health.failure(job_rank)
            text = f"{what}: rank {rank} is alive, but closed its side of it: {error}"
            self._break(OperationBroken(text) if left is None else RankFailed(left, rank))
        self._broken.result()

    def _break(self, error: MrcError) -> None:
        """Let everything raise from now on, here and on the other ranks."""
        if not self._broken.done():
            self._broken.set_exception(error)
            # Perhaps nothing is under way.
            self._broken.exception()
            self._cut()
            if not isinstance(error, RankFailed) or error.job_rank in self._health.left:
                # All hear of a failure, but only who needs it that a rank has left.
                self._health.break_context(self._context, f"rank {self.rank}: {error}")

    def _look(self) -> None:
        """Look whether a member has failed, or given up."""
        if self._broken.done():
            return
        if self._health.given_up is not None:
            self._break(RankFailed(self._health.given_up, self.rank))
            return
        why = self._health.broken.get(self._context)
        for rank, job_rank in enumerate(self.ranks):
            obituary = self._health.failed.get(job_rank)
            if obituary is not None:
                self._break(RankFailed(obituary, rank))
                return
        if why is not None:
            self._break(OperationBroken(f"another rank gave up: {why}"))

    # Queue pairs.

    async def _link(self, rank: int) -> Link:
        """Return the link to a rank; the first time it is opened."""
        return await self._opened(self._links, rank, self._context, self._open_link)

    async def _lane(self, rank: int) -> PointToPoint:
        # In the order of the calls: a later one must not pass those that wait for it to open.
        async with self._lane_turns.setdefault(rank, asyncio.Lock()):
            return await self._opened(self._lanes, rank, self._lane_context, self._open_lane)

    async def _opened(
        self,
        known: dict[int, asyncio.Task[L]],
        rank: int,
        context: str,
        make: Callable[[mrc.QueuePair, int], Awaitable[L]],
    ) -> L:
        task = known.get(rank)
        if task is None:
            task = known[rank] = asyncio.ensure_future(self._open(context, rank, make))
        return await asyncio.shield(task)

    async def _open(
        self, context: str, rank: int, make: Callable[[mrc.QueuePair, int], Awaitable[L]]
    ) -> L:
        job_rank = self.ranks[rank]
        opening = asyncio.ensure_future(self._mesh.queue_pair(context, job_rank))
        ended = asyncio.ensure_future(self._health.end_of(job_rank))
        try:
            await asyncio.wait({opening, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                raise LinkFailed(rank, PeerError(f"rank {rank} is not there any more"))
            return await make(opening.result(), rank)
        except MrcError as error:
            raise LinkFailed(rank, error) from error
        finally:
            for task in (opening, ended):
                task.cancel()
            await asyncio.gather(opening, ended, return_exceptions=True)

    async def _open_link(self, qp: mrc.QueuePair, rank: int) -> Link:
        del rank
        link = Link(qp)
        try:
            await link.set_up()
        except BaseException:
            link.abort()
            raise
        return link

    async def _open_lane(self, qp: mrc.QueuePair, rank: int) -> PointToPoint:
        return PointToPoint(qp, rank)

    # The end.

    def _cut(self) -> None:
        """End the queue pairs at once: nothing is read from or written to a caller's memory now."""
        for task in self._opened_tasks():
            if _is_there(task):
                task.result().abort()

    def _opened_tasks(self) -> list[asyncio.Task[Any]]:
        return [*self._links.values(), *self._lanes.values()]

    async def _stop(self) -> None:
        """End what is under way, and with it the queue pairs, whose ends are not in step then."""
        if self._running:
            self._cut()
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def close(self) -> None:
        """Wait for what is under way, and let go of the queue pairs. Twice is once.

        It goes on when the waiting is cancelled.
        """
        self._closed = True
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def abort(self) -> None:
        """End at once; what is under way is cancelled, what was over before still arrives."""
        self._closed = True
        await self._stop()
        await self.close()

    async def _close(self) -> None:
        if self._running:
            await asyncio.wait(set(self._running))
        if self._look in self._health.watchers:
            self._health.watchers.remove(self._look)
        opened = self._opened_tasks()
        for task in opened:
            task.cancel()
        await asyncio.gather(*opened, return_exceptions=True)
        if self._broken.done():
            self._cut()
        await asyncio.gather(*(task.result().close() for task in opened if _is_there(task)))
        self._family.discard(self)
        self._mesh.let_go(self._context)
        self._mesh.let_go(self._lane_context)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abort()


def _is_there(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
