"""Every operation gives numpy's answer, with the same bits on all ranks."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mrc.collectives import Communicator, ReduceOp
from mrc.collectives.reduction import SUPPORTED, element_type
from tests.collectives.cluster import cluster, each

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.slow,
]

Array = NDArray[Any]

SIZES = (0, 1, 7, 1000, 20_011)
"""Elements: none, one, odd, not divisible by the ranks, and many pieces."""
RANKS = (1, 2, 3, 5, 8)
COMBINE = {
    ReduceOp.SUM: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.AVERAGE: np.add,
}
TOLERANCE = {"float16": 2e-2, "bfloat16": 0.1, "float32": 1e-5, "float64": 1e-12}


def data(rank: int, count: int, dtype: np.dtype[Any]) -> Array:
    """Return what a rank brings: small numbers, so that floats stay comparable."""
    rng = np.random.default_rng([rank, count])
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0, 100, count).astype(dtype)
    return (rng.random(count) + 0.5).astype(dtype)


def expected(ranks: int, count: int, dtype: np.dtype[Any], op: ReduceOp) -> Array:
    """Return numpy's answer, in twice the precision for floats."""
    parts = [data(rank, count, dtype) for rank in range(ranks)]
    if dtype.kind in "fV":
        parts = [part.astype(np.float64) for part in parts]
    total: Array = reduce(COMBINE[op], parts)
    if op is ReduceOp.AVERAGE:
        total = total / ranks
        total = total if dtype.kind in "fV" else np.trunc(total).astype(dtype)
    return total


def check(found: list[Array], wanted: Array) -> None:
    """All ranks have the same bits, and they are numpy's, or near them for floats."""
    assert len({part.tobytes() for part in found}) == 1
    name = found[0].dtype.name
    if name in TOLERANCE:
        np.testing.assert_allclose(found[0].astype(np.float64), wanted, rtol=TOLERANCE[name])
    else:
        np.testing.assert_array_equal(found[0], wanted)


def pairs_of(dtype: np.dtype[Any]) -> list[ReduceOp]:
    """Return the reductions that there are for a type."""
    return [op for op in ReduceOp if op is not ReduceOp.AVERAGE or dtype.kind != "b"]


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ranks", RANKS)
async def test_all_reduce(ranks: int) -> None:
    """Of every type, size and reduction."""
    async with cluster(ranks) as worlds:
        for name in SUPPORTED:
            dtype = element_type(name)
            for op in pairs_of(dtype):
                for count in SIZES if op is ReduceOp.SUM else SIZES[2:4]:
                    arrays = [data(rank, count, dtype) for rank in range(ranks)]
                    await each([one.all_reduce(arrays[one.rank], op) for one in worlds])
                    check(arrays, expected(ranks, count, dtype, op))


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ranks", RANKS)
async def test_reduce(ranks: int) -> None:
    """At every root; the others keep what they brought."""
    dtype = np.dtype(np.float32)
    async with cluster(ranks) as worlds:
        for root in range(ranks):
            for count in SIZES:
                arrays = [data(rank, count, dtype) for rank in range(ranks)]
                await each([one.reduce(arrays[one.rank], root=root) for one in worlds])
                check([arrays[root]], expected(ranks, count, dtype, ReduceOp.SUM))
                for rank in set(range(ranks)) - {root}:
                    np.testing.assert_array_equal(arrays[rank], data(rank, count, dtype))


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ranks", RANKS)
async def test_broadcast(ranks: int) -> None:
    """From every root, small and in pieces."""
    async with cluster(ranks) as worlds:
        for root in range(ranks):
            for count in (*SIZES, 70_001):
                arrays = [data(rank, count, np.dtype(np.int32)) for rank in range(ranks)]
                wanted = arrays[root].copy()
                await each([one.broadcast(arrays[one.rank], root=root) for one in worlds])
                check(arrays, wanted)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MAX, ReduceOp.AVERAGE])
async def test_reduce_scatter(ranks: int, op: ReduceOp) -> None:
    """Every rank gets its block, and its source is left alone."""
    dtype = np.dtype(np.float64)
    async with cluster(ranks) as worlds:
        for count in SIZES:
            sources = [data(rank, count * ranks, dtype) for rank in range(ranks)]
            targets = [np.zeros(count, dtype) for _ in range(ranks)]
            await each(
                [one.reduce_scatter(sources[one.rank], targets[one.rank], op) for one in worlds]
            )
            check([np.concatenate(targets)], expected(ranks, count * ranks, dtype, op))
            for rank in range(ranks):
                np.testing.assert_array_equal(sources[rank], data(rank, count * ranks, dtype))


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ranks", RANKS)
async def test_all_gather_and_gather(ranks: int) -> None:
    """All blocks in order: everywhere, or at the root."""
    dtype = np.dtype(np.int16)
    async with cluster(ranks) as worlds:
        for count in SIZES:
            sources = [data(rank, count, dtype) for rank in range(ranks)]
            wanted = np.concatenate(sources)
            targets = [np.zeros(count * ranks, dtype) for _ in range(ranks)]
            await each([one.all_gather(sources[one.rank], targets[one.rank]) for one in worlds])
            check(targets, wanted)
            for root in range(ranks):
                target = np.zeros(count * ranks, dtype)
                await each(
                    [
                        one.gather(
                            sources[one.rank], target if one.rank == root else None, root=root
                        )
                        for one in worlds
                    ]
                )
                check([target], wanted)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ranks", RANKS)
async def test_all_gather_in_place(ranks: int) -> None:
    """The source may be the own block of the target."""
    async with cluster(ranks) as worlds:
        targets = [np.zeros((ranks, 1001), np.float32) for _ in range(ranks)]
        for rank, target in enumerate(targets):
            target[rank] = rank + 1
        await each(
            [one.all_gather(targets[one.rank][one.rank], targets[one.rank]) for one in worlds]
        )
        check(targets, np.repeat(np.arange(1, ranks + 1, dtype=np.float32), 1001).reshape(-1, 1001))


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ranks", RANKS)
async def test_scatter(ranks: int) -> None:
    """Every rank gets its block of what the root has."""
    async with cluster(ranks) as worlds:
        for root in range(ranks):
            for count in SIZES:
                source = data(root, count * ranks, np.dtype(np.uint8))
                targets = [np.zeros(count, np.uint8) for _ in range(ranks)]
                await each(
                    [
                        one.scatter(
                            source if one.rank == root else None, targets[one.rank], root=root
                        )
                        for one in worlds
                    ]
                )
                check([np.concatenate(targets)], source)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ranks", RANKS)
async def test_all_to_all(ranks: int) -> None:
    """Block r of every rank, in the order of who gave it."""
    async with cluster(ranks) as worlds:
        for count in SIZES:
            sources = [data(rank, count * ranks, np.dtype(np.int64)) for rank in range(ranks)]
            targets = [np.zeros(count * ranks, np.int64) for _ in range(ranks)]
            await each([one.all_to_all(sources[one.rank], targets[one.rank]) for one in worlds])
            for rank in range(ranks):
                wanted = [source[rank * count : (rank + 1) * count] for source in sources]
                check([targets[rank]], np.concatenate(wanted))


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ranks", RANKS)
async def test_all_to_all_uneven(ranks: int) -> None:
    """Blocks of different sizes, some of them empty, some large."""
    counts = [[(3 * a + 5 * b) % 4 * 20_011 for b in range(ranks)] for a in range(ranks)]
    async with cluster(ranks) as worlds:
        sources = [data(rank, sum(counts[rank]), np.dtype(np.int32)) for rank in range(ranks)]
        given = [[counts[a][b] for a in range(ranks)] for b in range(ranks)]
        targets = [np.zeros(sum(given[rank]), np.int32) for rank in range(ranks)]
        await each(
            [
                one.all_to_all(
                    sources[one.rank],
                    targets[one.rank],
                    source_counts=counts[one.rank],
                    target_counts=given[one.rank],
                )
                for one in worlds
            ]
        )
        for rank in range(ranks):
            starts = [sum(counts[a][:rank]) for a in range(ranks)]
            wanted = [sources[a][start : start + counts[a][rank]] for a, start in enumerate(starts)]
            check([targets[rank]], np.concatenate(wanted))


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ranks", RANKS)
async def test_barrier(ranks: int) -> None:
    """Nobody leaves before the last one has come."""
    come: list[int] = []

    async def do(one: Communicator) -> None:
        for turn in range(3):
            come.append(turn)
            await one.barrier()
            assert come.count(turn) == ranks

    async with cluster(ranks) as worlds:
        await each([do(one) for one in worlds])


@pytest.mark.usefixtures("small_pieces")
async def test_the_same_bits_from_run_to_run() -> None:
    """Floats are added in the same order, whoever comes first."""
    results = []
    for _ in range(2):
        async with cluster(3) as worlds:
            arrays = [data(rank, 40_001, np.dtype(np.float32)) for rank in range(3)]
            await each([one.all_reduce(arrays[one.rank]) for one in worlds])
            results.append(arrays[0].tobytes())
    assert results[0] == results[1]


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("name", ["doubling", "ring"])
async def test_an_exchange_of_more_pieces_than_slots(name: str) -> None:
    """Two ranks that send and reduce the same chunk do not wait for each other's last piece."""
    dtype, count = np.dtype(np.float32), 40 * 1024
    async with cluster(2) as worlds:
        arrays = [data(rank, count, dtype) for rank in range(2)]
        await each([one.all_reduce(arrays[one.rank], algorithm=name) for one in worlds])
        check(arrays, expected(2, count, dtype, ReduceOp.SUM))


@pytest.mark.parametrize("count", [0, 1, 16_385, 300_007, 1_000_003, 16 << 20])
async def test_pieces_as_they_are(count: int) -> None:
    """From nothing to 64 MiB, the size that gradients have."""
    async with cluster(4) as worlds:
        arrays = [np.full(count, rank + 1, np.float32) for rank in range(4)]
        for array in arrays:
            array[::1001] += np.arange(len(array[::1001]), dtype=np.float32)
        wanted: Array = reduce(np.add, arrays)
        await each([one.all_reduce(arrays[one.rank]) for one in worlds])
        check(arrays, wanted)
