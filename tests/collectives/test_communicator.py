"""Handles, groups within groups, sends and receives, and calls that do not fit."""

from __future__ import annotations

import array
import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mrc.collectives import (
    CommunicatorClosed,
    Operation,
    OperationBroken,
    OperationTimeout,
    Plan,
    Receive,
    ReduceOp,
    Send,
    World,
    member,
    plans,
    register,
)
from mrc.errors import ConfigError, MrcError, PeerProtocolError
from tests.collectives.cluster import cluster, each

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left"), pytest.mark.slow]


# Handles.


async def test_operations_begun_at_once_run_in_order() -> None:
    """Nobody has to wait for one before the next is called."""

    async def one(world: World) -> None:
        value = np.array([1])
        works = [world.all_reduce(value) for _ in range(5)]
        assert not works[-1].done()
        results = [await work for work in works]
        assert all(work.done() for work in works)
        assert works[0].result() is results[0]
        assert value.tolist() == [3**5]

    async with cluster(3) as worlds:
        await each([one(world) for world in worlds])


async def test_a_handle_tells_when_it_is_done() -> None:
    """By a callback, without being awaited."""
    async with cluster(2) as worlds:
        done: asyncio.Queue[str] = asyncio.Queue()
        for world in worlds:
            world.barrier().add_done_callback(lambda work: done.put_nowait(work.what))
        assert [await done.get(), await done.get()] == ["barrier by dissemination"] * 2


async def test_whoever_stops_waiting_does_not_stop_the_operation() -> None:
    """The others depend on it."""
    async with cluster(2) as worlds:
        value = [np.array([1.0]), np.array([2.0])]
        work = worlds[0].all_reduce(value[0])
        waiting = asyncio.ensure_future(_wait(work))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await worlds[1].all_reduce(value[1])
        await work
        assert value[0].tolist() == value[1].tolist() == [3.0]


async def _wait(work: Any) -> Any:
    return await work


# Buffers.


async def test_anything_with_a_writable_buffer() -> None:
    """Bytes as they are, or as what the caller says they are."""
    async with cluster(2) as worlds:
        raw = [bytearray(b"\1\2\3\4"), bytearray(b"\1\1\1\1")]
        await each([world.all_reduce(raw[world.rank]) for world in worlds])
        assert raw == [bytearray(b"\2\3\4\5")] * 2
        half = [np.array([1.5, 2.0], np.float16).tobytes() for _ in range(2)]
        floats = [memoryview(bytearray(each_half)) for each_half in half]
        await each([world.all_reduce(floats[world.rank], dtype="float16") for world in worlds])
        assert np.frombuffer(floats[0], np.float16).tolist() == [3.0, 4.0]
        numbers = [array.array("d", [1.0, 2.0]) for _ in range(2)]
        await each([world.all_reduce(numbers[world.rank], "max") for world in worlds])
        assert numbers[0].tolist() == [1.0, 2.0]


async def test_bfloat16_in_the_bytes_of_something_else() -> None:
    """As a framework hands it over that numpy does not know the type of."""
    async with cluster(2) as worlds:
        one = np.array([0x3F80], np.uint16)
        values = [one.copy(), one.copy()]
        await each([world.all_reduce(values[world.rank], dtype="bfloat16") for world in worlds])
        assert values[0].tolist() == values[1].tolist() == [0x4000]


@pytest.mark.parametrize(
    ("buffer", "reason"),
    [
        (np.zeros((4, 4))[:, 1], "not contiguous"),
        (b"bytes", "read-only"),
        (np.zeros(3, np.complex64), "complex64 cannot be reduced"),
        (np.array(["a"]), "cannot be reduced"),
        (np.array([object()]), "Python objects"),
        (np.zeros(2, ">f8"), "cannot be reduced"),
        ([1, 2], "has no buffer"),
        (memoryview(bytearray(8))[::2], "not contiguous"),
    ],
)
async def test_what_cannot_be_reduced_is_refused_by_name(buffer: Any, reason: str) -> None:
    """Before anything is sent."""
    async with cluster(1) as (world,):
        with pytest.raises(ConfigError, match=reason):
            world.all_reduce(buffer)


async def test_what_is_printed_says_what_it_is() -> None:
    """Of communicators and of operations."""
    async with cluster(2) as (one, other):
        work = one.barrier()
        assert repr(one) == "<World world: rank 0 of 2, open>"
        assert repr(work) == "<barrier by dissemination, under way>"
        await each([work, other.barrier()])
        assert repr(work) == "<barrier by dissemination, over>"
        part = one.subset([0], "alone")
        await part.close()
        assert repr(part) == "<Communicator world/alone: rank 0 of 1, closed>"


async def test_arguments_that_do_not_fit_are_refused() -> None:
    """Roots, ranks, tags, sizes, reductions and algorithms."""
    async with cluster(1) as (world,):
        two, three = np.zeros(2), np.zeros(3)
        wrong: list[tuple[Callable[[], Any], str]] = [
            (lambda: world.broadcast(two, root=1), "root 1"),
            (lambda: world.send(two, 0), "rank 0 is not another"),
            (lambda: world.receive(two, 5), "rank 5 is not another"),
            (lambda: world.all_gather(two, three), "3 float64 are not 1 blocks of 2 float64"),
            (lambda: world.reduce_scatter(three, two), "3 float64 are not 1 blocks"),
            (lambda: world.all_reduce(two, "median"), "no reduction 'median'; there are sum"),
            (lambda: world.all_reduce(np.zeros(2, bool), "average"), "no average of bools"),
            (lambda: world.all_reduce(two, algorithm="magic"), "there are doubling, ring"),
            (lambda: world.all_reduce(bytearray(3), dtype="int32"), "no whole number"),
            (lambda: world.all_reduce(bytearray(4), dtype="int31"), "no element type"),
            (lambda: world.all_to_all(two, two.copy(), source_counts=[1]), "are not 1 numbers"),
            (lambda: world.all_to_all(two, three), "gives itself 2 elements"),
            (lambda: world.gather(two), "needs a target"),
            (lambda: world.scatter(None, two), "needs a source"),
        ]
        for call, reason in wrong:
            with pytest.raises(ConfigError, match=reason):
                call()


# Groups.


async def test_split() -> None:
    """By color, in the order of the keys; at the same time, without getting in each other's way."""

    async def one(world: World) -> tuple[int, ...] | None:
        group = await world.split(world.rank % 2 if world.rank < 4 else None, key=-world.rank)
        if group is None:
            return None
        async with group:
            for size in (1, 50_000):
                value = np.full(size, world.rank)
                await group.all_reduce(value)
                assert set(value) == {sum(group.ranks)}
            assert group.ranks[group.rank] == world.rank
            return group.ranks

    async with cluster(5) as worlds:
        found = await each([one(world) for world in worlds])
    assert found == [(2, 0), (3, 1), (2, 0), (3, 1), None]


async def test_a_group_within_a_group() -> None:
    """Its ranks are those of the job."""

    async def one(world: World) -> None:
        async with world.subset([3, 2, 1, 0], "backwards") as all_of_them:
            half = await all_of_them.split(all_of_them.rank // 2)
            assert half is not None
            async with half:
                value = np.array([world.rank])
                await half.all_reduce(value)
                assert value[0] == (5 if world.rank > 1 else 1)

    async with cluster(4) as worlds:
        await each([one(world) for world in worlds])


async def test_a_subset_must_have_this_rank_in_it() -> None:
    """Once, and no rank that there is not."""
    async with cluster(2) as worlds:
        for ranks in ([1], [0, 0], [0, 2]):
            with pytest.raises(ConfigError):
                worlds[0].subset(ranks, "name")


# Sends and receives.


async def test_send_and_receive() -> None:
    """Nothing, little and much; by tag, in any order, both ways at once, in a ring."""
    sizes = (0, 1, 100_000)

    async def one(world: World) -> None:
        after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
        given = [np.full(size, world.rank, np.int64) for size in sizes]
        got = [np.full(size, -1, np.int64) for size in sizes]
        works = [world.send(data, after, tag=tag) for tag, data in enumerate(given)]
        works += [world.receive(got[tag], before, tag=tag) for tag in reversed(range(len(sizes)))]
        for work in works:
            await work
        assert all((data == before).all() for data in got)

    async with cluster(3) as worlds:
        await each([one(world) for world in worlds])


async def test_messages_of_one_tag_stay_in_order() -> None:
    """The first send goes to the first receive."""
    async with cluster(2) as (one, other):
        got = [np.zeros(1, np.int32) for _ in range(20)]
        works = [one.send(np.array([number], np.int32), 1, tag=4) for number in range(20)]
        works += [other.receive(memory, 0, tag=4) for memory in got]
        await each(works)
        assert [int(memory[0]) for memory in got] == list(range(20))


async def test_a_receive_of_another_length_is_an_error_of_both() -> None:
    """Nothing is cut off, and nothing is written."""
    async with cluster(2) as (one, other):
        memory = np.zeros(3, np.uint8)
        works = [one.send(b"four", 1), other.receive(memory, 0)]
        for error in await asyncio.gather(*works, return_exceptions=True):
            assert isinstance(error, MrcError)
            assert "4 bytes were sent where 3 are received" in str(error)
        assert not memory.any()


# What does not fit together.


async def test_ranks_in_different_calls_all_raise() -> None:
    """The one that notices tells the others, who would wait in vain."""
    async with cluster(3) as worlds:
        works: list[Any] = [world.all_reduce(np.zeros(4, np.float32)) for world in worlds[:2]]
        works.append(worlds[2].all_reduce(np.zeros(5, np.float32)))
        ended = await asyncio.gather(*works, return_exceptions=True)
        assert all(isinstance(error, PeerProtocolError | OperationBroken) for error in ended)
        assert any("do all ranks make the same calls" in str(error) for error in ended)
        with pytest.raises(MrcError):
            await worlds[0].barrier()


async def test_an_operation_that_takes_too_long_names_who_is_waited_for() -> None:
    """And the one that was not there finds out when it comes."""
    async with cluster(3) as worlds:
        works = [world.barrier(timeout_s=0.2) for world in worlds[:2]]
        ended = await asyncio.gather(*works, return_exceptions=True)
        late = [error for error in ended if isinstance(error, OperationTimeout)]
        assert late
        assert all(2 in error.waited_for for error in late)
        assert "was not over within 200.0 ms" in str(late[0])
        with pytest.raises(OperationBroken, match="not over within"):
            await worlds[2].barrier()


async def test_whoever_leaves_an_operation_half_way_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is alive, so the job goes on; the group does not."""
    monkeypatch.setattr(member, "GRACE_S", 0.05)

    async def one(world: World) -> None:
        group = world.subset([0, 1], "pair")
        await group.barrier()
        if world.rank:
            await group.abort()
        else:
            with pytest.raises(OperationBroken, match="rank 1 is alive, but closed its side"):
                await group.all_reduce(np.zeros(1 << 20))
            await group.abort()
        await world.barrier()

    async with cluster(2) as worlds:
        await each([one(world) for world in worlds])


async def test_an_algorithm_that_fails_here_does_not_keep_the_others_waiting() -> None:
    """A plan with a mistake in it."""

    @register(Operation.BARRIER, "mistake of a test")
    def mistake(rank: int, ranks: int, root: int) -> Plan:
        del ranks, root
        return Plan(1, (Receive(0, 1),) if rank == 0 else (Send(0, 99),))

    try:
        async with cluster(2) as worlds:
            works = [world.barrier(algorithm="mistake of a test") for world in worlds]
            ended = await asyncio.gather(*works, return_exceptions=True)
            assert [type(error) for error in ended] == [OperationBroken, IndexError]
    finally:
        plans.forget(Operation.BARRIER, "mistake of a test")


async def test_a_closed_communicator_is_refused() -> None:
    """By name, and closing it twice is closing it once."""
    async with cluster(1) as (world,):
        group = world.subset([0], "alone")
        await group.close()
        await group.close()
        with pytest.raises(CommunicatorClosed):
            group.subset([0], "within")
        with pytest.raises(CommunicatorClosed):
            group.barrier()


async def test_the_store_stays() -> None:
    """For what a program wants to tell its ranks."""
    async with cluster(3) as worlds:
        await worlds[1].store.set("key", "value")
        assert await each([world.store.get("key") for world in worlds]) == ["value"] * 3


@pytest.mark.parametrize("op", list(ReduceOp))
async def test_one_rank_alone_is_a_group_too(op: ReduceOp) -> None:
    """Everything is what it was."""
    async with cluster(1) as (world,):
        value, target = np.array([7, -7]), np.zeros(2, int)
        await world.all_reduce(value, op)
        await world.reduce_scatter(value, target, op)
        assert value.tolist() == target.tolist() == [7, -7]
