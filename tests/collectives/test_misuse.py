"""What clumsy callers do: it works, or is refused by name, and never spoils data in silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mrc.collectives import (
    Communicator,
    CommunicatorClosed,
    OperationBroken,
    RankFailed,
    Work,
    World,
    member,
)
from mrc.errors import ConfigError
from tests.collectives.cluster import cluster, each

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left"), pytest.mark.slow]


# Messages.


async def test_a_message_never_passes_one_of_its_tag() -> None:
    """Though one waits for the queue pair or for a receive, and the next finds both there."""
    count = 200
    got = [np.zeros(1, np.int32) for _ in range(count)]

    async def begun(begin: Callable[[int], Work[Any]]) -> list[Work[Any]]:
        works = []
        for number in range(count):
            works.append(begin(number))
            await asyncio.sleep(0)
        return works

    async with cluster(2) as (one, other):
        sending, receiving = await asyncio.gather(
            begun(lambda number: one.send(np.array([number], np.int32), 1, tag=4)),
            begun(lambda number: other.receive(got[number], 0, tag=4)),
        )
        await each([*sending, *receiving])
        assert [int(memory[0]) for memory in got] == list(range(count))


# Buffers.

Call = Callable[[World, np.ndarray[Any, Any]], Any]
OVERLAPPING: dict[str, Call] = {
    "all_to_all": lambda world, room: world.all_to_all(room[:4], room[:4]),
    "all_to_all, partly": lambda world, room: world.all_to_all(room[:4], room[3:7]),
    "all_gather": lambda world, room: world.all_gather(room[3:5], room[:4]),
    "reduce_scatter": lambda world, room: world.reduce_scatter(room[:4], room[1:3]),
    "gather": lambda world, room: world.gather(room[1:3], room[:4], root=world.rank),
    "scatter": lambda world, room: world.scatter(room[:4], room[3:5], root=world.rank),
}


@pytest.mark.parametrize("name", OVERLAPPING)
async def test_overlapping_memory_is_refused(name: str) -> None:
    """What comes in would change what has not been sent yet."""
    async with cluster(2) as worlds:
        for world in worlds:
            with pytest.raises(ConfigError, match="overlap"):
                OVERLAPPING[name](world, np.zeros(8))


async def test_source_and_target_of_two_types_are_refused() -> None:
    """Bytes of the one would be taken for the other."""
    async with cluster(1) as (world,):
        floats, integers, doubles = np.ones(4, "f4"), np.ones(4, "i4"), np.ones(4, "f8")
        with pytest.raises(ConfigError, match="4 float32 are not 1 blocks of 4 int32"):
            world.reduce_scatter(floats, integers)
        with pytest.raises(ConfigError, match="float32 into float64"):
            world.all_to_all(floats, doubles)


async def test_arrays_that_are_more_than_arrays() -> None:
    """The mask of one would be lost; a matrix is the memory that it has."""
    async with cluster(2) as worlds:
        with pytest.raises(ConfigError, match="mask"):
            worlds[0].all_reduce(np.ma.masked_array([1.0, 2.0], [True, False]))
        with pytest.warns(PendingDeprecationWarning):
            matrices = [np.matrix([[1.0, 2.0], [3.0, 4.0]]) for _ in worlds]
        await each([world.all_reduce(matrices[world.rank]) for world in worlds])
        assert [matrix.tolist() for matrix in matrices] == [[[2.0, 4.0], [6.0, 8.0]]] * 2


async def test_a_broadcast_returns_what_it_was_given() -> None:
    """Of any type that has no Python objects in it."""
    kind = np.dtype([("small", "i1"), ("other way round", ">f8")])
    async with cluster(2) as worlds:
        arrays = [np.zeros(3, kind) for _ in worlds]
        arrays[1]["other way round"] = 1.5
        results = await each([world.broadcast(arrays[world.rank], root=1) for world in worlds])
        for result, array in zip(results, arrays, strict=True):
            assert result.dtype == kind
            assert np.shares_memory(result, array)
            assert result["other way round"].tolist() == [1.5] * 3


async def test_counts_and_colors_are_numbers() -> None:
    """And are refused before the others are told anything."""
    async with cluster(1) as (world,):
        with pytest.raises(ConfigError, match=r"source counts \[4.0\]"):
            world.all_to_all(np.ones(4), np.ones(4), source_counts=[4.0])  # type: ignore[list-item]
        for color in ("red", 1 << 63, 0.5):
            with pytest.raises(ConfigError, match="64 bits"):
                await world.split(color)  # type: ignore[arg-type]


async def test_a_color_is_the_number_that_it_is() -> None:
    """However it is written: True is 1."""
    async with cluster(2) as (one, other):
        made = await each([one.split(True), other.split(1)])
        groups = [group for group in made if group is not None]
        await each([group.barrier() for group in groups])
        await each([group.close() for group in groups])


# Names.


async def test_a_name_that_is_too_long_is_no_death() -> None:
    """It is refused where it is said."""
    async with cluster(2) as worlds:
        for world in worlds:
            with pytest.raises(ConfigError, match="at most 240"):
                world.subset([0, 1], "x" * 300)
        await each([world.barrier() for world in worlds])


async def test_a_name_is_had_once_at_a_time() -> None:
    """Two of them would take each other's queue pairs."""
    async with cluster(2) as worlds:
        groups = [world.subset([0, 1], "name") for world in worlds]
        with pytest.raises(ConfigError, match="close it first"):
            worlds[0].subset([0, 1], "name")
        await each([group.barrier() for group in groups])
        await each([group.close() for group in groups])
        groups = [world.subset([0, 1], "name") for world in worlds]
        await each([group.barrier() for group in groups])
        await each([group.close() for group in groups])


@pytest.mark.parametrize("name", ["p2p", "0.1", "#0.1", "+0", "a/b", "", "\x1b\N{SNOWMAN}"])
async def test_no_name_means_another_group(name: str) -> None:
    """Messages, parts and survivors have names of their own."""

    async def one(world: World) -> None:
        parts: list[Communicator | None] = [world.subset([0, 1], name)]
        parts += [world.subset([0, 1], "a"), await world.split(1), await world.survivors()]
        for part in parts:
            assert part is not None
            await part.barrier()
        if world.rank:
            await world.send(b"abc", 0)
        else:
            await world.receive(bytearray(3), 1)
        for part in parts:
            assert part is not None
            await part.close()

    async with cluster(2) as worlds:
        await each([one(world) for world in worlds])


async def test_messages_that_wait_are_not_taken_for_a_group() -> None:
    """Whatever it is called: a queue pair that came first belongs to what it was opened for."""
    async with cluster(2) as (one, other):
        sending = other.send(b"abc", 0)
        async with asyncio.timeout(10):
            # Until it has come, and nobody has asked for it; that is no event.
            while not one._mesh._held:  # noqa: SLF001, ASYNC110
                await asyncio.sleep(0.01)
        groups = [world.subset([0, 1], "p2p") for world in (one, other)]
        await each([group.barrier() for group in groups])
        memory = bytearray(3)
        await each([sending, one.receive(memory, 1)])
        assert memory == b"abc"
        await each([group.close() for group in groups])


# Ends.


async def test_who_waits_for_what_was_aborted_is_not_cancelled() -> None:
    """A cancellation that nobody asked for would pass for one of the waiting task."""
    async with cluster(2) as worlds:
        group = worlds[0].subset([0, 1], "pair")
        work = group.barrier()
        waiting = asyncio.ensure_future(_result(work))
        await asyncio.sleep(0)
        await group.abort()
        with pytest.raises(CommunicatorClosed, match="meanwhile"):
            await waiting
        with pytest.raises(CommunicatorClosed, match="meanwhile"):
            work.result()


async def test_who_is_cancelled_itself_is_cancelled() -> None:
    """Even when the operation ends in the same moment."""
    async with cluster(2) as worlds:
        group = worlds[0].subset([0, 1], "pair")
        waiting = asyncio.ensure_future(_result(group.barrier()))
        await asyncio.sleep(0)
        ending = asyncio.ensure_future(group.abort())
        waiting.cancel()
        await ending
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def _result(work: Work[Any]) -> Any:
    return await work


async def test_who_leaves_amid_an_operation_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the lowest rank hears that it has left; rank 2 waits for rank 0 alone, and is told."""
    monkeypatch.setattr(member, "GRACE_S", 0.05)

    async with cluster(3) as worlds:
        # Each pair has met, so that nothing is left to fail but the links of rank 1.
        await each([world.all_reduce(np.zeros(10), algorithm="doubling") for world in worlds])
        works = [
            world.all_reduce(np.zeros(10), algorithm="doubling")
            for world in worlds
            if world.rank != 1
        ]
        await worlds[1].abort()
        async with asyncio.timeout(10):
            ended = await asyncio.gather(*works, return_exceptions=True)
        for error in ended:
            assert isinstance(error, RankFailed | OperationBroken)
            assert "rank 1" in str(error)
