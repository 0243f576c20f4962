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
from collections.abc import Sequence
from operator import index
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import DTypeLike

from mrc.collectives import operations
from mrc.collectives.buffers import elements_of
from mrc.collectives.failures import OperationBroken, OperationTimeout, RankFailed, seconds
from mrc.collectives.member import Member, Work
from mrc.collectives.operations import Group
from mrc.collectives.point_to_point import TAG_BITS
from mrc.collectives.reduction import Array, ReduceOp, Reduction, element_type
from mrc.errors import ConfigError


class Communicator(Member):
    """A group of ranks; `join` makes the first one, `split` and `survivors` make others.

    Attributes:
        rank: of this one, in the group.
        size: of the group.
        ranks: numbers of its members in the whole job.
        timeout_s: for an operation that says nothing else.
    """

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
        job = operations.reduce_scatter(self._group(algorithm), array, into, _reduction(op, array))
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
            target_counts: elements from each rank; None: all the same. They must be what the others
                give: 0 here and something there, or the other way round, shows by the timeout only.
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

        return self._begin_alone(f"send of {data.size} bytes to rank {to}", sent, to, timeout_s)

    def receive(
        self, buffer: Any, source: int, *, tag: int = 0, timeout_s: float | None = None
    ) -> Work[None]:
        """Receive into a buffer what a rank sends with this tag; lengths must be the same."""
        self._check_peer(source, tag)
        memory = elements_of(buffer).view(np.uint8)

        async def received() -> None:
            await (await self._lane(source)).receive(memory, tag)

        what = f"receive of {memory.size} bytes from rank {source}"
        return self._begin_alone(what, received, source, timeout_s)

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

        Raises:
            ConfigError: color or key is no number of 64 bits.
        """
        try:
            told = np.array([color is not None, index(color or 0), index(key)], np.int64)
        except (TypeError, OverflowError) as error:
            raise ConfigError(
                f"split: color {color!r:.40}, key {key!r:.40}; both must be numbers of 64 bits"
            ) from error
        child = next(self._children)
        all_told = np.empty(3 * self.size, np.int64)
        await self.all_gather(told, all_told)
        if color is None:
            return None
        rows = all_told.reshape(self.size, 3).tolist()
        members = sorted(
            (key, rank)
            for rank, (takes_part, its, key) in enumerate(rows)
            if takes_part and its == color
        )
        ranks = [self.ranks[rank] for _, rank in members]
        return self._child(f"{self._context}/#{child}.{told[1]}", ranks)

    def subset(self, ranks: Sequence[int], name: str) -> Communicator:
        """Make a communicator of some ranks, this one among them, without asking the others.

        Args:
            ranks: in the order they have in the new one; the same on all of them.
            name: the same on all of them, and another one each time.

        Raises:
            ConfigError: this rank is not among them, there is no such rank, or the name is too
                long, or that of a communicator that is open.
        """
        if self.rank not in ranks or len(set(ranks)) < len(ranks):
            raise ConfigError(f"ranks {list(ranks)!r:.80}: rank {self.rank} must be one, once")
        if not all(0 <= rank < self.size for rank in ranks):
            raise ConfigError(f"ranks {list(ranks)!r:.80}; must be 0 to {self.size - 1}")
        # Quoted, no name means what `split` or `survivors` makes, nor a subset of a subset.
        context = f"{self._context}/{quote(name, safe='')}"
        return self._child(context, [self.ranks[rank] for rank in ranks])

    async def survivors(self, *, timeout_s: float | None = None) -> Communicator:
        """Make a communicator of the ranks that are left; all that are must call it.

        The operations under way here are ended first, and with them this communicator. Ranks whom
        all networks between them leave at once cannot tell that from the death of the others: each
        side goes on by itself.

        Raises:
            OperationTimeout: a rank that is alive did not call it.
            RankFailed: it is this one that the others have given up.
        """
        if self._running:
            self._break(OperationBroken("what was under way was ended by `survivors`"))
            await asyncio.wait(set(self._running))
        context = f"{self._context}+{next(self._children)}"
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        timer = asyncio.timeout(limit_s)
        try:
            async with timer:
                while True:
                    try:
                        ranks = await self._health.agree(context, list(self.ranks))
                    except RankFailed as error:
                        # The one that answers may be the next to fail.
                        if error.job_rank == self.ranks[self.rank]:
                            raise
                    else:
                        return self._child(context, ranks)
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise OperationTimeout(
                f"survivors: not all ranks that are alive asked within {seconds(limit_s)}"
            ) from error

    def _child(self, context: str, ranks: Sequence[int]) -> Communicator:
        self._check_open()
        return Communicator(
            self._mesh,
            self._health,
            context,
            ranks,
            timeout_s=self.timeout_s,
            family=self._family,
        )

    def _group(self, algorithm: str | None) -> Group:
        return Group(self.rank, self.size, algorithm)


def _reduction(op: ReduceOp | str, array: Array) -> Reduction:
    try:
        chosen = ReduceOp(op)
    except ValueError as error:
        names = ", ".join(each.value for each in ReduceOp)
        raise ConfigError(f"no reduction {op!r:.40}; there are {names}") from error
    return Reduction(chosen, element_type(array.dtype))
