"""Every operation beside numpy's answer: what ranks bring, the call, and what must come of it.

A check lets all ranks do one operation, compares what they got with numpy and with each other, and
returns the bytes, which are to be the same from run to run.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrc.collectives import Communicator, ReduceOp
from mrc.collectives.reduction import SUPPORTED, element_type
from tests.collectives.cluster import each

Array = NDArray[Any]

UFUNCS = {
    ReduceOp.SUM: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.AVERAGE: np.add,
    ReduceOp.BIT_AND: np.bitwise_and,
    ReduceOp.BIT_OR: np.bitwise_or,
    ReduceOp.BIT_XOR: np.bitwise_xor,
}
BITWISE = frozenset({ReduceOp.BIT_AND, ReduceOp.BIT_OR, ReduceOp.BIT_XOR})
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
"""Distance from 1 to the next number; every reduction rounds by half of it at most."""
PERIOD = 8191
"""After so many elements what a rank brings begins anew: a prime, so that no piece is alike."""
LATE_TURNS = 100
"""Of the event loop: more than the others need to go on if they did not wait."""


@dataclass(frozen=True, slots=True)
class Case:
    """One call on all ranks.

    Attributes:
        count: elements of a buffer; of a block, where there is one a rank.
        dtype: of them.
        op: where something is reduced.
        root: where there is one.
        algorithm: by name; None: as chosen by size.
    """

    count: int
    dtype: np.dtype[Any]
    op: ReduceOp = ReduceOp.SUM
    root: int = 0
    algorithm: str | None = None


Check = Callable[[Sequence[Communicator], Case], Awaitable[bytes]]


def element_types() -> list[np.dtype[Any]]:
    """Return all types that can be reduced."""
    return [element_type(name) for name in SUPPORTED]


def reductions(dtype: np.dtype[Any]) -> list[ReduceOp]:
    """Return the reductions that there are for a type."""
    if dtype.kind == "b":
        return [op for op in ReduceOp if op is not ReduceOp.AVERAGE]
    return [op for op in ReduceOp if dtype.kind in "iu" or op not in BITWISE]


def brought(rank: int, count: int, dtype: np.dtype[Any]) -> Array:
    """Return what a rank brings: integers of the whole range, and floats between 0.5 and 1.5."""
    rng = np.random.default_rng([rank, count])
    length = min(count, PERIOD)
    if dtype.kind == "b":
        some = rng.integers(0, 2, length).astype(dtype)
    elif dtype.kind in "iu":
        limits = np.iinfo(dtype)
        some = rng.integers(limits.min, limits.max, length, dtype, endpoint=True)
    else:
        some = (rng.random(length) + 0.5).astype(dtype)
    return np.resize(some, count)


def _all_brought(worlds: Sequence[Communicator], count: int, case: Case) -> list[Array]:
    return [brought(rank, count, case.dtype) for rank in range(len(worlds))]


def _combined(parts: list[Array], op: ReduceOp) -> Array:
    """Return numpy's answer, floats as float64."""
    floats = parts[0].dtype.name in EPSILON
    if floats:
        parts = [part.astype(np.float64) for part in parts]
    total: Array = reduce(UFUNCS[op], parts)
    if op is not ReduceOp.AVERAGE:
        return total
    # As in C: what is left over has the sign of the dividend.
    return total / len(parts) if floats else (total - np.fmod(total, len(parts))) // len(parts)


def _near(found: Array, wanted: Array, case: Case, roundings: int) -> None:
    """Fail unless it is numpy's answer: as near as so many roundings allow, integers bit by bit."""
    if case.dtype.name in EPSILON:
        tolerance = roundings * EPSILON[case.dtype.name]
        floats = found.astype(np.float64)
        np.testing.assert_allclose(floats, wanted, rtol=tolerance, err_msg=f"{case}")
    else:
        _same(found, wanted, case)


def _same(found: Array, wanted: Array, case: Case) -> None:
    """Fail unless every bit is the same."""
    if not np.array_equal(found.view(np.uint8), wanted.view(np.uint8)):
        np.testing.assert_array_equal(found, wanted, err_msg=f"{case}")
        raise AssertionError(f"{case}: another zero")


def _digest(found: Iterable[Array]) -> bytes:
    """Return what stands for the bits of some arrays."""
    digest = hashlib.sha256()
    for array in found:
        digest.update(array.view(np.uint8).data)
    return digest.digest()


async def all_reduce(worlds: Sequence[Communicator], case: Case) -> bytes:
    """All get the combination."""
    arrays = _all_brought(worlds, case.count, case)
    wanted = _combined(arrays, case.op)
    await each(
        world.all_reduce(arrays[world.rank], case.op, algorithm=case.algorithm) for world in worlds
    )
    _near(arrays[0], wanted, case, len(worlds))
    for other in arrays[1:]:
        _same(other, arrays[0], case)
    return _digest(arrays[:1])


async def reduce_to_root(worlds: Sequence[Communicator], case: Case) -> bytes:
    """The root gets the combination; the others keep what they brought."""
    arrays = _all_brought(worlds, case.count, case)
    kept = [array.copy() for array in arrays]
    await each(
        world.reduce(arrays[world.rank], case.op, root=case.root, algorithm=case.algorithm)
        for world in worlds
    )
    for rank, array in enumerate(arrays):
        if rank == case.root:
            _near(array, _combined(kept, case.op), case, len(worlds))
        else:
            _same(array, kept[rank], case)
    return _digest([arrays[case.root]])


async def reduce_scatter(worlds: Sequence[Communicator], case: Case) -> bytes:
    """Every rank gets its block of the combination, and its source is left alone."""
    sources = _all_brought(worlds, case.count * len(worlds), case)
    kept = [source.copy() for source in sources]
    targets = [np.zeros(case.count, case.dtype) for _ in worlds]
    await each(
        world.reduce_scatter(
            sources[world.rank], targets[world.rank], case.op, algorithm=case.algorithm
        )
        for world in worlds
    )
    _near(np.concatenate(targets), _combined(kept, case.op), case, len(worlds))
    for source, before in zip(sources, kept, strict=True):
        _same(source, before, case)
    return _digest(targets)


async def broadcast(worlds: Sequence[Communicator], case: Case) -> bytes:
    """All get what the root has."""
    arrays = _all_brought(worlds, case.count, case)
    wanted = arrays[case.root].copy()
    await each(
        world.broadcast(arrays[world.rank], root=case.root, algorithm=case.algorithm)
        for world in worlds
    )
    for array in arrays:
        _same(array, wanted, case)
    return _digest(arrays[:1])


async def all_gather(worlds: Sequence[Communicator], case: Case) -> bytes:
    """All get the blocks of all, in order."""
    sources = _all_brought(worlds, case.count, case)
    targets = [np.zeros(case.count * len(worlds), case.dtype) for _ in worlds]
    await each(
        world.all_gather(sources[world.rank], targets[world.rank], algorithm=case.algorithm)
        for world in worlds
    )
    wanted = np.concatenate(sources)
    for target in targets:
        _same(target, wanted, case)
    return _digest(targets[:1])


async def gather(worlds: Sequence[Communicator], case: Case) -> bytes:
    """The root gets the blocks of all, in order."""
    sources = _all_brought(worlds, case.count, case)
    target = np.zeros(case.count * len(worlds), case.dtype)
    await each(
        world.gather(
            sources[world.rank],
            target if world.rank == case.root else None,
            root=case.root,
            algorithm=case.algorithm,
        )
        for world in worlds
    )
    _same(target, np.concatenate(sources), case)
    return _digest([target])


async def scatter(worlds: Sequence[Communicator], case: Case) -> bytes:
    """Every rank gets its block of what the root has."""
    source = brought(case.root, case.count * len(worlds), case.dtype)
    targets = [np.zeros(case.count, case.dtype) for _ in worlds]
    await each(
        world.scatter(
            source if world.rank == case.root else None,
            targets[world.rank],
            root=case.root,
            algorithm=case.algorithm,
        )
        for world in worlds
    )
    _same(np.concatenate(targets), source, case)
    return _digest(targets)


async def all_to_all(worlds: Sequence[Communicator], case: Case) -> bytes:
    """Every rank gets its block of what each has, in the order of who gave it."""
    ranks = len(worlds)
    sources = _all_brought(worlds, case.count * ranks, case)
    targets = [np.zeros(case.count * ranks, case.dtype) for _ in worlds]
    await each(
        world.all_to_all(sources[world.rank], targets[world.rank], algorithm=case.algorithm)
        for world in worlds
    )
    blocks = [source.reshape(ranks, -1) for source in sources]
    for rank, target in enumerate(targets):
        _same(target, np.concatenate([block[rank] for block in blocks]), case)
    return _digest(targets)


async def all_to_all_uneven(worlds: Sequence[Communicator], case: Case) -> bytes:
    """Blocks of different sizes, up to that of the case, some of them empty."""
    ranks = range(len(worlds))
    counts = [[(3 * a + 5 * b + 1) % 4 * case.count // 3 for b in ranks] for a in ranks]
    given = [[counts[a][b] for a in ranks] for b in ranks]
    sources = [brought(rank, sum(counts[rank]), case.dtype) for rank in ranks]
    targets = [np.zeros(sum(given[rank]), case.dtype) for rank in ranks]
    await each(
        world.all_to_all(
            sources[world.rank],
            targets[world.rank],
            source_counts=counts[world.rank],
            target_counts=given[world.rank],
            algorithm=case.algorithm,
        )
        for world in worlds
    )
    blocks = [np.split(sources[a], np.cumsum(counts[a])[:-1]) for a in ranks]
    for rank in ranks:
        _same(targets[rank], np.concatenate([blocks[a][rank] for a in ranks]), case)
    return _digest(targets)


async def send_and_receive(worlds: Sequence[Communicator], case: Case) -> bytes:
    """In a ring: every rank gets what the one before it has."""
    ranks = len(worlds)
    given = _all_brought(worlds, case.count, case)
    got = [np.zeros(case.count, case.dtype) for _ in worlds]
    works = []
    for world in worlds if ranks > 1 else ():
        works.append(world.send(given[world.rank], (world.rank + 1) % ranks))
        works.append(world.receive(got[world.rank], (world.rank - 1) % ranks))
    await each(works)
    for rank in range(ranks if ranks > 1 else 0):
        _same(got[rank], given[rank - 1], case)
    return _digest(got)


async def barrier(worlds: Sequence[Communicator], case: Case) -> bytes:
    """Nobody leaves before the root has come, which is late."""
    come: set[int] = set()

    async def one(world: Communicator) -> None:
        for _ in range(LATE_TURNS if world.rank == case.root else 0):
            await asyncio.sleep(0)
        come.add(world.rank)
        await world.barrier(algorithm=case.algorithm)
        assert len(come) == len(worlds), case

    await each(one(world) for world in worlds)
    return b""


REDUCING: dict[str, Check] = {
    "all_reduce": all_reduce,
    "reduce": reduce_to_root,
    "reduce_scatter": reduce_scatter,
}
MOVING: dict[str, Check] = {
    "broadcast": broadcast,
    "all_gather": all_gather,
    "gather": gather,
    "scatter": scatter,
    "all_to_all": all_to_all,
    "all_to_all_uneven": all_to_all_uneven,
    "send_and_receive": send_and_receive,
}
EVERY: dict[str, Check] = REDUCING | MOVING | {"barrier": barrier}
BY_BLOCKS = frozenset(
    ["reduce_scatter", "all_gather", "gather", "scatter", "all_to_all", "all_to_all_uneven"]
)
"""Operations whose buffers on one side are as large as the blocks of all ranks together."""
