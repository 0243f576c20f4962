"""From a call to a job: which plan, over which chunks of whose memory.

All of it is decided before anything is sent, and from what all ranks know, so that all decide the
same. What they must agree on is hashed into the immediates: a rank in another call is noticed with
its first piece.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import index
from typing import Any

import numpy as np

from mrc.collectives import plans
from mrc.collectives.buffers import cut, even_cuts
from mrc.collectives.choose import choose
from mrc.collectives.executor import Memory
from mrc.collectives.plans import Operation, Plan
from mrc.collectives.reduction import Array, Reduction
from mrc.errors import ConfigError

FINGERPRINT_BITS = 20


def _nothing() -> None:
    """Do nothing before or after."""


@dataclass(slots=True)
class Job:
    """One collective, ready to be carried out.

    Attributes:
        what: the call, as all ranks must have made it.
        plan: of this rank.
        memory: where its chunks are.
        result: what the call returns.
        reduction: how to combine, if at all.
        prepare: what to do with the memory first.
        finish: what to do with it in the end.
    """

    what: str
    plan: Plan
    memory: Memory
    result: Any = None
    reduction: Reduction | None = None
    prepare: Callable[[], None] = _nothing
    finish: Callable[[], None] = _nothing

    @property
    def fingerprint(self) -> int:
        """A number that differs, most likely, where the call differs."""
        return zlib.crc32(self.what.encode()) >> (32 - FINGERPRINT_BITS)


@dataclass(frozen=True, slots=True)
class Group:
    """Which rank this is, of how many, and which algorithm the caller wants.

    Attributes:
        rank: this one.
        ranks: how many.
        algorithm: by name; None: the table chooses.
    """

    rank: int
    ranks: int
    algorithm: str | None = None

    def plan(self, operation: Operation, size_bytes: int, root: int = 0) -> tuple[Plan, str]:
        """Return the plan of this rank, and the name of the algorithm.

        Raises:
            ConfigError: no such algorithm, or no such root.
        """
        if not 0 <= root < self.ranks:
            raise ConfigError(f"root {root}; the ranks are 0 to {self.ranks - 1}")
        name = self.algorithm or choose(operation, size_bytes, self.ranks).algorithm
        return plans.build(operation, name, self.rank, self.ranks, root), name


def all_reduce(group: Group, array: Array, reduction: Reduction) -> Job:
    """Combine the arrays of all ranks, in place, everywhere."""
    plan, name = group.plan(Operation.ALL_REDUCE, array.nbytes)
    chunks = dict(enumerate(cut(array, even_cuts(array.size, plan.chunks))))
    memory = Memory(array.dtype, _sizes(chunks), chunks, chunks)
    what = f"all_reduce {reduction.op.value} of {array.size} {array.dtype} by {name}"

    def finish() -> None:
        reduction.finish(array, group.ranks)

    return Job(what, plan, memory, array, reduction, finish=finish)


def reduce(group: Group, array: Array, reduction: Reduction, root: int) -> Job:
    """Combine the arrays of all ranks, in place at the root; the others keep what they have."""
    plan, name = group.plan(Operation.REDUCE, array.nbytes, root)
    chunks = dict(enumerate(cut(array, even_cuts(array.size, plan.chunks))))
    at_root = group.rank == root
    memory = Memory(array.dtype, _sizes(chunks), chunks, chunks if at_root else {})
    what = f"reduce {reduction.op.value} of {array.size} {array.dtype} to {root} by {name}"

    def finish() -> None:
        if at_root:
            reduction.finish(array, group.ranks)

    return Job(what, plan, memory, array, reduction, finish=finish)


def broadcast(group: Group, array: Array, root: int) -> Job:
    """Give all ranks what the root has."""
    data = array.view(np.uint8)
    plan, name = group.plan(Operation.BROADCAST, data.nbytes, root)
    chunks = dict(enumerate(cut(data, even_cuts(data.size, plan.chunks))))
    memory = Memory(data.dtype, _sizes(chunks), chunks if group.rank == root else {}, chunks)
    return Job(f"broadcast of {data.size} bytes from {root} by {name}", plan, memory, array)


def reduce_scatter(group: Group, source: Array, target: Array, reduction: Reduction) -> Job:
    """Combine the arrays of all ranks; rank r gets block r of the result.

    Raises:
        ConfigError: `source` is not as large as the blocks of all ranks, or overlaps `target`
            elsewhere than in this rank's block.
    """
    _check_blocks("reduce_scatter", source, target, group)
    plan, name = group.plan(Operation.REDUCE_SCATTER, source.nbytes)
    blocks = dict(enumerate(cut(source, even_cuts(source.size, group.ranks))))
    memory = Memory(source.dtype, _always(target.size), blocks, {group.rank: target})
    what = f"reduce_scatter {reduction.op.value} of {source.size} {source.dtype} by {name}"

    def finish() -> None:
        if group.ranks == 1:
            target[...] = source
        reduction.finish(target, group.ranks)

    return Job(what, plan, memory, target, reduction, finish=finish)


def all_gather(group: Group, source: Array, target: Array) -> Job:
    """Give all ranks the blocks of all ranks, in order.

    Raises:
        ConfigError: `target` is not as large as the blocks of all ranks, or overlaps `source`
            elsewhere than in this rank's block.
    """
    _check_blocks("all_gather", target, source, group)
    source, into = source.view(np.uint8), target.view(np.uint8)
    plan, name = group.plan(Operation.ALL_GATHER, into.nbytes)
    blocks = dict(enumerate(cut(into, even_cuts(into.size, group.ranks))))
    memory = Memory(into.dtype, _always(source.size), blocks, blocks)
    what = f"all_gather of {source.size} bytes by {name}"
    return Job(what, plan, memory, target, prepare=_own_block(blocks[group.rank], source))


def gather(group: Group, source: Array, target: Array | None, root: int) -> Job:
    """Give the root the blocks of all ranks, in order.

    Raises:
        ConfigError: the root's `target` is not as large as the blocks of all ranks, or overlaps
            `source` elsewhere than in its block.
    """
    given = source.view(np.uint8)
    plan, name = group.plan(Operation.GATHER, given.nbytes * group.ranks, root)
    what = f"gather of {given.size} bytes to {root} by {name}"
    blocks = {group.rank: given}
    if group.rank != root or target is None:
        memory = Memory(given.dtype, _always(given.size), blocks, {})
        return Job(what, plan, memory)
    _check_blocks("gather", target, source, group)
    into = target.view(np.uint8)
    blocks = dict(enumerate(cut(into, even_cuts(into.size, group.ranks))))
    memory = Memory(given.dtype, _always(given.size), blocks, blocks)
    return Job(what, plan, memory, target, prepare=_own_block(blocks[root], given))


def scatter(group: Group, source: Array | None, target: Array, root: int) -> Job:
    """Give rank r block r of what the root has.

    Raises:
        ConfigError: the root's `source` is not as large as the blocks of all ranks, or overlaps
            `target` elsewhere than in its block.
    """
    into = target.view(np.uint8)
    plan, name = group.plan(Operation.SCATTER, into.nbytes * group.ranks, root)
    what = f"scatter of {into.size} bytes from {root} by {name}"
    if group.rank != root or source is None:
        memory = Memory(into.dtype, _always(into.size), {}, {group.rank: into})
        return Job(what, plan, memory, target)
    _check_blocks("scatter", source, target, group)
    given = source.view(np.uint8)
    blocks = dict(enumerate(cut(given, even_cuts(given.size, group.ranks))))
    memory = Memory(into.dtype, _always(into.size), blocks, {})
    return Job(what, plan, memory, target, prepare=_own_block(into, blocks[root]))


def all_to_all(
    group: Group,
    source: Array,
    target: Array,
    source_counts: Sequence[int] | None = None,
    target_counts: Sequence[int] | None = None,
) -> Job:
    """Give rank r block r of what each has, in the order of who gave it.

    Args:
        group: who.
        source: what this rank gives, block after block.
        target: where what it gets goes, block after block.
        source_counts: elements for each rank; None: all the same.
        target_counts: elements of each rank.

    Raises:
        ConfigError: the counts are not those of the arrays, or these are of two types, or overlap.
    """
    if source.dtype != target.dtype:
        raise ConfigError(f"all_to_all: {source.dtype} into {target.dtype}; both must be the same")
    if np.may_share_memory(source, target):
        raise ConfigError("all_to_all: source and target overlap; what comes in would be sent on")
    plan, name = group.plan(Operation.ALL_TO_ALL, 0)
    given = cut(source, _cuts("source", source, source_counts, group.ranks))
    into = cut(target, _cuts("target", target, target_counts, group.ranks))
    own = group.rank
    if given[own].size != into[own].size:
        raise ConfigError(
            f"all_to_all: rank {own} gives itself {given[own].size} elements, and expects"
            f" {into[own].size}"
        )
    base = own * group.ranks
    sources = {base + to: block for to, block in enumerate(given)}
    targets = {rank * group.ranks + own: block for rank, block in enumerate(into)}
    del sources[base + own], targets[base + own]
    memory = Memory(source.dtype, _sizes(sources | targets), sources, targets)
    what = f"all_to_all of {source.dtype} by {name}"
    return Job(what, plan, memory, target, prepare=_own_block(into[own], given[own]))


def barrier(group: Group) -> Job:
    """Return when all have come."""
    plan, name = group.plan(Operation.BARRIER, 0)
    room = np.zeros(plan.chunks, np.uint8)
    chunks = {chunk: room[chunk : chunk + 1] for chunk in range(plan.chunks)}
    return Job(f"barrier by {name}", plan, Memory(room.dtype, _always(1), chunks, chunks))


def _sizes(chunks: Mapping[int, Array]) -> Callable[[int], int]:
    """Return what tells the elements of a chunk, none of those that do not concern this rank."""
    return lambda chunk: chunks[chunk].size if chunk in chunks else 0


def _always(elements: int) -> Callable[[int], int]:
    """Return what tells the elements of a chunk, where all have the same."""
    return lambda _: elements


def _own_block(into: Array, given: Array) -> Callable[[], None]:
    """Return what puts a rank's own block in its place, where it is not there already."""

    def prepare() -> None:
        if into.size and not _same_place(into, given):
            into[...] = given

    return prepare


def _same_place(one: Array, other: Array) -> bool:
    return bool(one.__array_interface__["data"] == other.__array_interface__["data"])


def _check_blocks(what: str, whole: Array, block: Array, group: Group) -> None:
    if whole.size != block.size * group.ranks or whole.dtype != block.dtype:
        raise ConfigError(
            f"{what}: {whole.size} {whole.dtype} are not {group.ranks} blocks of {block.size}"
            f" {block.dtype}"
        )
    own = whole[group.rank * block.size :]
    if np.may_share_memory(whole, block) and not _same_place(own, block):
        raise ConfigError(
            f"{what}: source and target overlap, and not just in block {group.rank}, this rank's"
        )


def _cuts(what: str, array: Array, counts: Sequence[int] | None, ranks: int) -> list[int]:
    if counts is None:
        if array.size % ranks:
            raise ConfigError(
                f"all_to_all: {array.size} {what} elements for {ranks} ranks; give the counts"
            )
        return even_cuts(array.size, ranks)
    try:
        cuts = [0, *accumulate(index(count) for count in counts)]
    except TypeError:
        cuts = []
    if len(cuts) != ranks + 1 or cuts != sorted(cuts) or cuts[-1] != array.size:
        raise ConfigError(
            f"all_to_all: {what} counts {list(counts)!r:.80} are not {ranks} numbers that make"
            f" {array.size}"
        )
    return cuts
