"""Every operation gives numpy's answer, with the same bits on all ranks."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from mrc.collectives import Operation, ReduceOp
from mrc.collectives.plans import names
from tests.collectives import answers
from tests.collectives.answers import BY_BLOCKS, EVERY, MOVING, REDUCING, Case
from tests.collectives.cluster import cluster, each

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.slow,
]

SIZES = (0, 1, 7, 1001, 20_011)
"""Elements: none, one, odd, not divisible by the ranks, and many pieces."""
RANKS = (1, 2, 3, 5, 8)
FLOAT = np.dtype(np.float32)
LARGE_BYTES = 64 << 20


def sizes(operation: str, ranks: int) -> tuple[int, ...]:
    """Return the sizes for an operation: where there is a block a rank, the last is of them all."""
    return (*SIZES[:-1], SIZES[-1] // ranks) if operation in BY_BLOCKS else SIZES


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("operation", REDUCING)
async def test_reductions(operation: str, ranks: int) -> None:
    """Of every type, by every reduction, of every size: all with all between three ranks."""
    async with cluster(ranks) as worlds:
        for dtype in answers.element_types():
            for op in answers.reductions(dtype):
                everything = ranks == 3 or op is ReduceOp.SUM
                for count in sizes(operation, ranks) if everything else SIZES[3:4]:
                    await REDUCING[operation](worlds, Case(count, dtype, op))


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("operation", MOVING)
async def test_movements(operation: str, ranks: int) -> None:
    """Of every type and of every size: all with all between three ranks."""
    async with cluster(ranks) as worlds:
        for dtype in answers.element_types():
            everything = ranks == 3 or dtype == FLOAT
            for count in sizes(operation, ranks) if everything else SIZES[3:4]:
                await MOVING[operation](worlds, Case(count, dtype))


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("operation", ["reduce", "broadcast", "gather", "scatter", "barrier"])
async def test_every_rank_may_be_the_root(operation: str, ranks: int) -> None:
    """Of one element, and of many."""
    async with cluster(ranks) as worlds:
        for root, count in product(range(ranks), sizes(operation, ranks)[1::3]):
            await EVERY[operation](worlds, Case(count, FLOAT, root=root))


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ranks", RANKS)
async def test_every_algorithm(ranks: int) -> None:
    """Also where another one would be chosen for the size."""
    async with cluster(ranks) as worlds:
        for operation in Operation:
            for name, count in product(names(operation), sizes(operation.value, ranks)):
                case = Case(count, FLOAT, root=ranks - 1, algorithm=name)
                await EVERY[operation.value](worlds, case)


@pytest.mark.parametrize("operation", [*REDUCING, *MOVING])
async def test_64_mib(operation: str) -> None:
    """The size that gradients have, in pieces as they are."""
    ranks = 4
    count = LARGE_BYTES // FLOAT.itemsize // (ranks if operation in BY_BLOCKS else 1)
    async with cluster(ranks) as worlds:
        await EVERY[operation](worlds, Case(count, FLOAT))


@pytest.mark.parametrize("count", [16_385, 300_007])
async def test_pieces_as_they_are(count: int) -> None:
    """Between small and 64 MiB, where other algorithms are chosen, and other ways to write."""
    async with cluster(4) as worlds:
        for check in EVERY.values():
            await check(worlds, Case(count, FLOAT))


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ranks", RANKS)
async def test_all_gather_in_place(ranks: int) -> None:
    """The source may be the own block of the target."""
    async with cluster(ranks) as worlds:
        targets = [np.zeros((ranks, 1001), np.float32) for _ in range(ranks)]
        for rank, target in enumerate(targets):
            target[rank] = rank + 1
        await each(
            world.all_gather(targets[world.rank][world.rank], targets[world.rank])
            for world in worlds
        )
        for target in targets:
            assert (target == np.arange(1, ranks + 1)[:, None]).all()


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ranks", RANKS)
async def test_reduce_scatter_in_place(ranks: int) -> None:
    """The target may be the own block of the source."""
    async with cluster(ranks) as worlds:
        sources = [np.full((ranks, 1001), rank + 1, np.int32) for rank in range(ranks)]
        await each(
            world.reduce_scatter(sources[world.rank], sources[world.rank][world.rank])
            for world in worlds
        )
        for rank, source in enumerate(sources):
            assert set(source[rank]) == {ranks * (ranks + 1) // 2}


@pytest.mark.usefixtures("small_pieces")
async def test_the_same_bits_from_run_to_run() -> None:
    """Floats are added in the same order, whoever comes first."""
    results = set()
    for _ in range(2):
        async with cluster(3) as worlds:
            results.add(await answers.all_reduce(worlds, Case(40_001, FLOAT)))
    assert len(results) == 1


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("name", ["doubling", "ring"])
async def test_an_exchange_of_more_pieces_than_slots(name: str) -> None:
    """Two ranks that send and reduce the same chunk do not wait for each other's last piece."""
    async with cluster(2) as worlds:
        await answers.all_reduce(worlds, Case(40 * 1024, FLOAT, algorithm=name))
