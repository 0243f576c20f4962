"""One collective of one size on one rank: its buffers, the call, and what must come of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import numpy as np

from mrc.collectives import Communicator
from mrc.perf.collective.contents import Array, Contents, count_wrong, fill, fill_never
from mrc.perf.collective.settings import OPS, Collective, CollectivePlan, Room


class Exercise:
    """A collective that can be called again and again.

    Args:
        plan: which one.
        communicator: of all ranks.
        count: elements in a block.
    """

    def __init__(self, plan: CollectivePlan, communicator: Communicator, count: int) -> None:
        self._plan = plan
        self._communicator = communicator
        self._count = count
        rank, facts = communicator.rank, plan.facts
        # Of ones: products stay what they are, and no page is touched for the first time later.
        self._source = np.ones(plan.elements(facts.source, count, rank), plan.dtype)
        self._target = np.ones(plan.elements(facts.target, count, rank), plan.dtype)

    async def run(self, algorithm: str | None) -> None:
        """Carry it out once."""
        await self._begin(algorithm)

    def _begin(self, algorithm: str | None) -> Awaitable[Any]:
        plan, ranks = self._plan, self._communicator
        source, target, op, root = self._source, self._target, OPS[plan.op], plan.root
        at_root = ranks.rank == root
        match plan.collective:
            case Collective.ALL_REDUCE:
                return ranks.all_reduce(source, op, algorithm=algorithm)
            case Collective.REDUCE:
                return ranks.reduce(source, op, root=root, algorithm=algorithm)
            case Collective.BROADCAST:
                return ranks.broadcast(source, root=root, algorithm=algorithm)
            case Collective.ALL_GATHER:
                return ranks.all_gather(source, target, algorithm=algorithm)
            case Collective.REDUCE_SCATTER:
                return ranks.reduce_scatter(source, target, op, algorithm=algorithm)
            case Collective.ALL_TO_ALL:
                return ranks.all_to_all(source, target, algorithm=algorithm)
            case Collective.GATHER:
                into = target if at_root else None
                return ranks.gather(source, into, root=root, algorithm=algorithm)
            case Collective.SCATTER:
                given = source if at_root else None
                return ranks.scatter(given, target, root=root, algorithm=algorithm)
            case Collective.SENDRECV:
                after, before = (ranks.rank + 1) % ranks.size, (ranks.rank - 1) % ranks.size
                return asyncio.gather(ranks.send(source, after), ranks.receive(target, before))

    # Verification.

    def prepare(self, contents: Contents) -> None:
        """Fill the buffers with known contents, and with what no result is where results go."""
        rank, plan = self._communicator.rank, self._plan
        if plan.collective is Collective.BROADCAST and rank != plan.root:
            fill_never(self._source)
        else:
            fill(self._source, contents.of(rank))
        fill_never(self._target)

    def count_wrong(self, contents: Contents) -> int:
        """Count the elements of the result on this rank that are not what they must be."""
        rank, root = self._communicator.rank, self._plan.root
        count, at_root = self._count, rank == root
        match self._plan.collective:
            case Collective.ALL_REDUCE:
                return count_wrong(self._source, contents.reduced)
            case Collective.REDUCE:
                expected = contents.reduced if at_root else contents.of(rank)
                return count_wrong(self._source, expected)
            case Collective.BROADCAST:
                return count_wrong(self._source, contents.of(root))
            case Collective.REDUCE_SCATTER:
                return count_wrong(self._target, contents.reduced, rank * count)
            case Collective.SCATTER:
                return count_wrong(self._target, contents.of(root), rank * count)
            case Collective.ALL_GATHER | Collective.GATHER:
                return self._wrong_blocks(contents, 0)
            case Collective.ALL_TO_ALL:
                return self._wrong_blocks(contents, rank * count)
            case Collective.SENDRECV:
                before = (rank - 1) % self._plan.ranks
                return count_wrong(self._target, contents.of(before))

    def _wrong_blocks(self, contents: Contents, start: int) -> int:
        """The same of a target with a block of every rank, if it is here."""
        blocks: list[Array] = []
        if self._target.size:
            blocks = np.split(self._target, self._plan.ranks)
        return sum(
            count_wrong(block, contents.of(rank), start) for rank, block in enumerate(blocks)
        )


def in_place(plan: CollectivePlan) -> bool:
    """Whether the result replaces what was given."""
    return plan.facts.target is Room.NONE
