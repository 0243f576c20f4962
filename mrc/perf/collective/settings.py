"""What a run of collectives measures, in the conventions of nccl-tests.

A size is what nccl-tests calls one: of the buffer that is reduced or broadcast, and of the blocks
of all ranks together where ranks have blocks. The bus bandwidth is the algorithm bandwidth times
what makes it comparable with the speed of a link, whatever the number of ranks (PERFORMANCE.md of
nccl-tests).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any

import numpy as np

from mrc.collectives.choose import choose
from mrc.collectives.plans import Operation
from mrc.collectives.reduction import ReduceOp, element_type

RANKS_HERE_MAX = 64
"""Started by one command: each is a process with 40 MiB of its own, beside the buffers."""
SIZE_DEFAULT = 32 << 20
"""As that of nccl-tests."""
ITERATIONS_DEFAULT = 20
WARM_UP_DEFAULT = 5


class Collective(StrEnum):
    """What can be measured; a `sendrecv` is a send to the next rank and a receive from the last."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    SENDRECV = "sendrecv"


class Room(Enum):
    """How large a buffer is, in blocks."""

    NONE = "there is none: the result replaces what was given"
    BLOCK = "one block"
    WHOLE = "a block of every rank"
    WHOLE_AT_ROOT = "the same, at the root alone"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a collective.

    Attributes:
        source: what a rank gives.
        target: where the result goes.
        bus_factor: of so many ranks: bus bandwidth by algorithm bandwidth.
        operation: whose algorithms carry it out, if there are any.
        reduces: values are combined.
        rooted: one rank is special.
    """

    source: Room
    target: Room
    bus_factor: Callable[[int], float]
    operation: Operation | None
    reduces: bool = False
    rooted: bool = False

    @property
    def in_blocks(self) -> bool:
        """A size is that of the blocks of all ranks."""
        return {self.source, self.target} & {Room.WHOLE, Room.WHOLE_AT_ROOT} != set()


def _all_but_own(ranks: int) -> float:
    return (ranks - 1) / ranks


def _all_but_own_twice(ranks: int) -> float:
    return 2 * _all_but_own(ranks)


def _as_it_is(_: int) -> float:
    return 1.0


FACTS = {
    Collective.ALL_REDUCE: Facts(
        Room.BLOCK, Room.NONE, _all_but_own_twice, Operation.ALL_REDUCE, reduces=True
    ),
    Collective.ALL_GATHER: Facts(Room.BLOCK, Room.WHOLE, _all_but_own, Operation.ALL_GATHER),
    Collective.REDUCE_SCATTER: Facts(
        Room.WHOLE, Room.BLOCK, _all_but_own, Operation.REDUCE_SCATTER, reduces=True
    ),
    Collective.ALL_TO_ALL: Facts(Room.WHOLE, Room.WHOLE, _all_but_own, Operation.ALL_TO_ALL),
    Collective.BROADCAST: Facts(Room.BLOCK, Room.NONE, _as_it_is, Operation.BROADCAST, rooted=True),
    Collective.REDUCE: Facts(
        Room.BLOCK, Room.NONE, _as_it_is, Operation.REDUCE, reduces=True, rooted=True
    ),
    Collective.GATHER: Facts(
        Room.BLOCK, Room.WHOLE_AT_ROOT, _all_but_own, Operation.GATHER, rooted=True
    ),
    Collective.SCATTER: Facts(
        Room.WHOLE_AT_ROOT, Room.BLOCK, _all_but_own, Operation.SCATTER, rooted=True
    ),
    Collective.SENDRECV: Facts(Room.BLOCK, Room.BLOCK, _as_it_is, None),
}

OPS = {
    "sum": ReduceOp.SUM,
    "prod": ReduceOp.PRODUCT,
    "min": ReduceOp.MIN,
    "max": ReduceOp.MAX,
    "avg": ReduceOp.AVERAGE,
}
"""The words of nccl-tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePlan:
    """All tests of one run; the same on all ranks.

    Attributes:
        collective: what is measured.
        ranks: how many take part.
        sizes: wished for, in bytes; `counts` says what they come to.
        type_name: of the elements.
        op: how values are combined, a key of `OPS`.
        root: the special rank, where there is one.
        algorithms: by name, measured in turns; None: `mrc.collectives.choose` decides.
        rounds: of those turns.
        iterations: of a test, in each round.
        warm_up: iterations before that are not counted.
        verify: check the result of one more.
        timeout_s: of each operation.
    """

    collective: Collective
    ranks: int
    sizes: tuple[int, ...] = (SIZE_DEFAULT,)
    type_name: str = "float32"
    op: str = "sum"
    root: int = 0
    algorithms: tuple[str | None, ...] = (None,)
    rounds: int = 1
    iterations: int = ITERATIONS_DEFAULT
    warm_up: int = WARM_UP_DEFAULT
    verify: bool = True
    timeout_s: float = 30.0

    @property
    def facts(self) -> Facts:
        """Of the collective."""
        return FACTS[self.collective]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the elements.

        Raises:
            ConfigError: it is bfloat16, and the package that brings it is missing.
        """
        return element_type(self.type_name)

    @property
    def counts(self) -> list[int]:
        """Elements of a test, those of one block: as many as fit the size, at least one."""
        unit_bytes = self.size_bytes(1)
        return list(dict.fromkeys(max(1, size // unit_bytes) for size in self.sizes))

    def size_bytes(self, count: int) -> int:
        """Return the size of a test with so many elements in a block."""
        return count * self.dtype.itemsize * (self.ranks if self.facts.in_blocks else 1)

    def elements(self, room: Room, count: int, rank: int) -> int:
        """Return how many elements a buffer of a rank has, in a test with so many in a block."""
        whole = room is Room.WHOLE or (room is Room.WHOLE_AT_ROOT and rank == self.root)
        return count * self.ranks if whole else count if room is Room.BLOCK else 0

    def chosen(self, count: int) -> str | None:
        """Return the algorithm that a communicator takes by itself, if there are any."""
        operation = self.facts.operation
        if operation is None:
            return None
        # What ranks give to each other may differ, so its size is no criterion.
        size_bytes = 0 if operation is Operation.ALL_TO_ALL else self.size_bytes(count)
        return choose(operation, size_bytes, self.ranks).algorithm

    def memory_bytes(self, rank: int) -> int:
        """Return the memory that the buffers of a rank take in the largest test."""
        rooms = (self.facts.source, self.facts.target)
        count = max(self.counts)
        return self.dtype.itemsize * sum(self.elements(room, count, rank) for room in rooms)
