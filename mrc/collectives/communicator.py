"""The communicator: all operations of a group of ranks, one after the other, and how they end.

    async with collectives.join() as communicator:
        await communicator.all_reduce(gradient)

Every operation returns a `Work` at once and runs by itself; who awaits it gets its result. The
operations of one communicator run in the order of the calls, which must be the same on all ranks;
sends and receives run beside them, in any order. Buffers must not be touched meanwhile.

What goes wrong once is wrong for good: the failure of a member, a timeout, or two ranks in
different calls. Whatever runs or is begun then raises the same; the ranks that are left make a new
communicator with `survivors`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike

import mrc
from mrc.collectives import operations
from mrc.collectives.buffers import elements_of
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
from mrc.collectives.operations import FINGERPRINT_BITS, Group, Job
from mrc.collectives.point_to_point import TAG_BITS, PointToPoint
from mrc.collectives.reduction import Array, ReduceOp, Reduction, element_type
from mrc.collectives.transfer import Link
from mrc.errors import ConfigError, MrcError, PeerError, PeerProtocolError

T = TypeVar("T")
L = TypeVar("L", Link, PointToPoint)

TIMEOUT_S_DEFAULT = 600.0
"""For one operation: long enough for one rank to write a checkpoint while the others wait."""
GRACE_S = 0.25
"""How long a failed queue pair waits for news of who failed first: whoever sees a rank die may end
before others have heard why."""


class Work(Generic[T]):
    """An operation under way; await it for its result, or for what went wrong.

    Cancelling the waiting does not stop the operation.
    """

    def __init__(self, task: asyncio.Task[T], what: str) -> None:
        self.what = what
        self._task = task
        # Who never asks is told nothing; the communicator is.
        task.add_done_callback(lambda task: task.cancelled() or task.exception())

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
        return self._task.result()

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.shield(self._task).__await__()


class Communicator:
    """A group of ranks; `join` makes the first one, `split` and `survivors` make others.

    Attributes:
        rank: of this one, in the group.
        size: of the group.
        ranks: numbers of its members in the whole job.
        timeout_s: for an operation that says nothing else.
    """

    def __init__(
        self,
        mesh: Mesh,
        health: Health,
        context: str,
        ranks: Sequence[int],
        *,
        timeout_s: float = TIMEOUT_S_DEFAULT,
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
        self._last: asyncio.Task[Any] | None = None
        self._running: set[asyncio.Task[Any]] = set()
        self._sequence = itertools.count()
        self._children = itertools.count()
        self._closed = False
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        health.watchers.append(self._look)
        self._look()

    # Operations of all ranks.

    def all_reduce(
        self,
        buffer: Any,
        op: ReduceOp | str = ReduceOp.SUM,
        *,
        dtype: DTypeLike | None = None,
        algorithm: str | None = None,
        timeout_s: float | None = None,
    ) -> Work[Array]:
        """Combine the buffers of all ranks, in place, on all of them.

        Args:
            buffer: a numpy array or anything with a writable buffer, as large on all ranks.
            op: how; a name will do.
            dtype: what its elements are; None: what the buffer says, "bfloat16" by name.
            algorithm: by name, the same on all ranks; None: `mrc.collectives.choose` decides.
            timeout_s: from when its turn has come; None: the communicator's.

        Raises:
            ConfigError: the buffer or the elements cannot be used.
        """
        array = elements_of(buffer, dtype)
        job = operations.all_reduce(self._group(algorithm), array, _reduction(op, array))
        return self._begin(job, timeout_s)

    def reduce(
        self,
        buffer: Any,
        op: ReduceOp | str = ReduceOp.SUM,
        *,
        root: int = 0,
        dtype: DTypeLike | None = None,
        algorithm: str | None = None,
        timeout_s: float | None = None,
    ) -> Work[Array]:
        """Combine the buffers of all ranks, in place at `root`; the others keep what they have."""
        array = elements_of(buffer, dtype, writable=self.rank == root)
        job = operations.reduce(self._group(algorithm), array, _reduction(op, array), root)
        return self._begin(job, timeout_s)

    def broadcast(
        self,
        buffer: Any,
        *,
        root: int = 0,
        algorithm: str | None = None,
        timeout_s: float | None = None,
    ) -> Work[Array]:
        """Give all ranks what `root` has in its buffer."""
        array = elements_of(buffer, writable=self.rank != root)
        job = operations.broadcast(self._group(algorithm), array, root)
        return self._begin(job, timeout_s)

    def reduce_scatter(
        self,
        source: Any,
        target: Any,
        op: ReduceOp | str = ReduceOp.SUM,
        *,
        dtype: DTypeLike | None = None,
        algorithm: str | None = None,
        timeout_s: float | None = None,
    ) -> Work[Array]:
        """Combine the sources of all ranks; rank r gets block r of the result as its target.

        The source is left as it is. The target may be this rank's own block of it.
        """
        array = elements_of(source, dtype, writable=False)
        into = elements_of(target, dtype)
        job = operations.reduce_scatter(
            self._group(algorithm), array, into, _reduction(op, array)
        )
        return self._begin(job, timeout_s)

    def all_gather(
        self,
        source: Any,
        target: Any,
        *,
        algorithm: str | None = None,
        timeout_s: float | None = None,
    ) -> Work[Array]:
        """Put the sources of all ranks into the targets of all ranks, in order.

        The source may be this rank's own block of the target.
        """
        job = operations.all_gather(
            self._group(algorithm), elements_of(source, writable=False), elements_of(target)
        )
        return self._begin(job, timeout_s)

    def gather(
        self,
        source: Any,
        target: Any = None,
        *,
        root: int = 0,
        algorithm: str | None = None,
        timeout_s: float | None = None,
    ) -> Work[Array | None]:
        """Put the sources of all ranks into the target of `root`, in order."""
        if self.rank == root and target is None:
            raise ConfigError("gather: the root needs a target")
        job = operations.gather(
            self._group(algorithm),
            elements_of(source, writable=False),
            elements_of(target) if self.rank == root else None,
            root,
        )
        return self._begin(job, timeout_s)

    def scatter(
        self,
        source: Any,
        target: Any,
        *,
        root: int = 0,
        algorithm: str | None = None,
        timeout_s: float | None = None,
    ) -> Work[Array]:
        """Put block r of the source of `root` into the target of rank r; others pass None."""
        if self.rank == root and source is None:
            raise ConfigError("scatter: the root needs a source")
        job = operations.scatter(
            self._group(algorithm),
            elements_of(source, writable=False) if self.rank == root else None,
            elements_of(target),
            root,
        )
        return self._begin(job, timeout_s)

    def all_to_all(
        self,
        source: Any,
        target: Any,
        *,
        source_counts: Sequence[int] | None = None,
        target_counts: Sequence[int] | None = None,
        algorithm: str | None = None,
        timeout_s: float | None = None,
    ) -> Work[Array]:
        """Put block r of every source into the target of rank r, in the order of who gave it.

        Args:
            source: what this rank gives: a block for each rank.
            target: where what it gets goes; not the same memory.
            source_counts: elements for each rank; None: all the same.
            target_counts: elements from each rank; None: all the same.
            algorithm: by name.
            timeout_s: from when its turn has come.
        """
        job = operations.all_to_all(
            self._group(algorithm),
            elements_of(source, writable=False),
            elements_of(target),
            source_counts,
            target_counts,
        )
        return self._begin(job, timeout_s)

    def barrier(
        self, *, algorithm: str | None = None, timeout_s: float | None = None
    ) -> Work[None]:
        """Return when all ranks have come here."""
        return self._begin(operations.barrier(self._group(algorithm)), timeout_s)

    # Operations of two ranks.

    def send(
        self, buffer: Any, to: int, *, tag: int = 0, timeout_s: float | None = None
    ) -> Work[None]:
        """Send a buffer to a rank; over when it is in the buffer that the other receives into.

        Args:
            buffer: any contiguous buffer.
            to: which rank.
            tag: what it is; it goes to a receive with the same one.
            timeout_s: None: the communicator's.

        Raises:
            ConfigError: no such rank, or it is this one.
        """
        self._check_peer(to, tag)
        data = elements_of(buffer, writable=False).view(np.uint8)

        async def sent() -> None:
            await (await self._lane(to)).send(data, tag)

        return self._begin_alone(f"send of {data.size} bytes to rank {to}", sent(), to, timeout_s)

    def receive(
        self, buffer: Any, source: int, *, tag: int = 0, timeout_s: float | None = None
    ) -> Work[None]:
        """Receive into a buffer what a rank sends with this tag; lengths must be the same."""
        self._check_peer(source, tag)
        memory = elements_of(buffer).view(np.uint8)

        async def received() -> None:
            await (await self._lane(source)).receive(memory, tag)

        what = f"receive of {memory.size} bytes from rank {source}"
        return self._begin_alone(what, received(), source, timeout_s)

    def _check_peer(self, rank: int, tag: int) -> None:
        if not 0 <= rank < self.size or rank == self.rank:
            raise ConfigError(f"rank {rank} is not another one of 0 to {self.size - 1}")
        if not 0 <= tag < 1 << TAG_BITS:
            raise ConfigError(f"tag {tag}; must be 0 to 2^{TAG_BITS} - 1")

    # Other communicators.

    async def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Make a communicator of the ranks that say the same color; all must call it.

        Args:
            color: which one; None: none, and None is returned.
            key: ranks in the new one are in the order of their keys, then of their ranks here.
        """
        child = next(self._children)
        told = np.array([color is not None, color or 0, key], np.int64)
        all_told = np.empty(3 * self.size, np.int64)
        await self.all_gather(told, all_told)
        if color is None:
            return None
        rows = all_told.reshape(self.size, 3).tolist()
        members = sorted(
            (key, rank) for rank, (takes_part, its, key) in enumerate(rows)
            if takes_part and its == color
        )
        ranks = [self.ranks[rank] for _, rank in members]
        return self._child(f"{self._context}/{child}.{color}", ranks)

    def subset(self, ranks: Sequence[int], name: str) -> Communicator:
        """Make a communicator of some ranks, this one among them, without asking the others.

        Args:
            ranks: in the order they have in the new one; the same on all of them.
            name: the same on all of them, and another one each time.

        Raises:
            ConfigError: this rank is not among them, or there is no such rank.
        """
        if self.rank not in ranks or len(set(ranks)) < len(ranks):
            raise ConfigError(f"ranks {list(ranks)!r:.80}: rank {self.rank} must be one, once")
        if not all(0 <= rank < self.size for rank in ranks):
            raise ConfigError(f"ranks {list(ranks)!r:.80}; must be 0 to {self.size - 1}")
        return self._child(f"{self._context}/{name}", [self.ranks[rank] for rank in ranks])

    async def survivors(self, *, timeout_s: float | None = None) -> Communicator:
        """Make a communicator of the ranks that are left; all that are must call it.

        The operations under way here are ended first.

        Raises:
            OperationTimeout: a rank that is alive did not call it.
        """
        await self._stop()
        context = f"{self._context}+{next(self._children)}"
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        timer = asyncio.timeout(limit_s)
        try:
            async with timer:
                while True:
                    # The one that answers may be the next to fail.
                    with contextlib.suppress(RankFailed):
                        ranks = await self._health.agree(context, list(self.ranks))
                        return self._child(context, ranks)
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise OperationTimeout(
                f"survivors: not all ranks that are alive asked within {seconds(limit_s)}"
            ) from error

    def _child(self, context: str, ranks: Sequence[int]) -> Communicator:
        self._check_open()
        return Communicator(self._mesh, self._health, context, ranks, timeout_s=self.timeout_s)

    # Carrying out.

    def _group(self, algorithm: str | None) -> Group:
        return Group(self.rank, self.size, algorithm)

    def _check_open(self) -> None:
        if self._closed:
            raise CommunicatorClosed("the communicator is closed")

    def _begin(self, job: Job, timeout_s: float | None) -> Work[Any]:
        """Let a job run when those before it are over."""
        self._check_open()
        running = self._carry_out(job, self._last, next(self._sequence), timeout_s)
        task = self._last = self._start(running)
        return Work(task, job.what)

    def _begin_alone(
        self, what: str, doing: Coroutine[Any, Any, None], peer: int, timeout_s: float | None
    ) -> Work[None]:
        """Let something run beside everything else."""
        if self._closed:
            doing.close()
            self._check_open()
        return Work(self._start(self._guarded(what, doing, lambda: [peer], timeout_s)), what)

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
        await self._guarded(job.what, execution.run(), execution.waiting_for, timeout_s)
        job.finish()
        return job.result

    async def _guarded(
        self,
        what: str,
        doing: Coroutine[Any, Any, None],
        waiting_for: Callable[[], Sequence[int]],
        timeout_s: float | None,
    ) -> None:
        """Do something until it is over, takes too long, or the communicator is broken."""
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        task = asyncio.ensure_future(doing)
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
        if not self._broken.done():
            link = self._links.get(rank)
            qp = link.result().qp if link is not None and _is_there(link) else None
            self._health.report(job_rank, error, qp)
        if not self._broken.done():
            obituary = self._health.failure(job_rank)
            gone = RankFailed(obituary, rank) if obituary is not None else error
            self._break(gone)
        self._broken.result()

    def _break(self, error: MrcError) -> None:
        """Let everything raise from now on, here and on the other ranks."""
        if not self._broken.done():
            self._broken.set_exception(error)
            # Perhaps nothing is under way.
            self._broken.exception()
            if not isinstance(error, RankFailed):
                self._health.break_context(self._context, f"rank {self.rank}: {error}")

    def _look(self) -> None:
        """Look whether a member has failed, or given up."""
        if self._broken.done():
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
        return await self._opened(self._lanes, rank, f"{self._context}/p2p", self._open_lane)

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

    async def _stop(self) -> None:
        """End what is under way."""
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def close(self) -> None:
        """Wait for what is under way, and let go of the queue pairs. Twice is once."""
        if self._closed:
            return
        self._closed = True
        if self._running:
            await asyncio.wait(set(self._running))
        await self._let_go()

    async def abort(self) -> None:
        """End at once; what is under way is cancelled."""
        self._closed = True
        await self._stop()
        await self._let_go(gently=False)

    async def _let_go(self, *, gently: bool = True) -> None:
        if self._look in self._health.watchers:
            self._health.watchers.remove(self._look)
        gently = gently and not self._broken.done()
        opened: list[asyncio.Task[Any]] = [*self._links.values(), *self._lanes.values()]
        for task in opened:
            task.cancel()
        await asyncio.gather(*opened, return_exceptions=True)
        there = [task.result() for task in opened if _is_there(task)]
        if gently:
            await asyncio.gather(*(each.close() for each in there))
        else:
            for each in there:
                each.abort()
        self._mesh.let_go(self._context)
        self._mesh.let_go(f"{self._context}/p2p")

    async def __aenter__(self) -> Communicator:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abort()


def _is_there(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _reduction(op: ReduceOp | str, array: Array) -> Reduction:
    try:
        chosen = ReduceOp(op)
    except ValueError as error:
        names = ", ".join(each.value for each in ReduceOp)
        raise ConfigError(f"no reduction {op!r:.40}; there are {names}") from error
    return Reduction(chosen, element_type(array.dtype))
