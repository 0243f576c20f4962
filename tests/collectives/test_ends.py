"""How things end: no late write, no task, queue pair or wait is left, whatever ends in which order.

What a communicator holds is looked at from inside, since outside nothing would show it for long.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mrc
from mrc.collectives import (
    CommunicatorClosed,
    OperationBroken,
    OperationTimeout,
    RankFailed,
    World,
    mesh,
)
from mrc.collectives.loop_thread import LoopThread
from mrc.errors import MrcError, PeerProtocolError, QueuePairClosed
from tests.collectives.cluster import cluster, each

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left"), pytest.mark.slow]

BYTES = 3 << 20


async def until(met: Callable[[], bool]) -> None:
    """Wait for what is no event."""
    async with asyncio.timeout(10):
        while not met():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# Memory of callers.


async def test_nobody_writes_to_the_buffer_of_an_operation_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though the others come late, and hear late that it did."""
    async with cluster(3) as worlds:
        arrays = [np.full(BYTES, world.rank + 1, np.uint8) for world in worlds]
        reduced = [world.all_reduce(arrays[world.rank], algorithm="ring") for world in worlds]
        await each(reduced)
        monkeypatch.setattr(worlds[0]._health, "_spread", lambda _: None)  # noqa: SLF001
        with pytest.raises(OperationTimeout):
            await worlds[0].all_reduce(arrays[0], algorithm="ring", timeout_s=0.1)
        arrays[0][:] = 77
        late = [
            world.all_reduce(arrays[world.rank], algorithm="ring", timeout_s=0.3)
            for world in worlds[1:]
        ]
        ended = await asyncio.gather(*late, return_exceptions=True)
        assert all(isinstance(error, MrcError) for error in ended)
        assert np.unique(arrays[0]).tolist() == [77]
        assert not regions(worlds[0])


async def test_survivors_leave_nothing_of_the_operation_under_way() -> None:
    """Its places are taken back, and its queue pairs are ended: a late write has nowhere to go."""
    async with cluster(3) as worlds:
        arrays = [np.full(BYTES, world.rank + 1, np.uint8) for world in worlds]
        reduced = [world.all_reduce(arrays[world.rank], algorithm="ring") for world in worlds]
        await each(reduced)
        work = worlds[0].all_reduce(arrays[0], algorithm="ring")
        await until(lambda: bool(regions(worlds[0])))
        await worlds[1].abort()
        left = [worlds[0], worlds[2]]
        groups = await each([world.survivors() for world in left])
        with pytest.raises(MrcError):
            await work
        assert not regions(worlds[0])
        numbers = [np.ones(10), np.ones(10)]
        await each([group.all_reduce(numbers[group.rank]) for group in groups])
        assert numbers[0].tolist() == [2.0] * 10
        await each([group.close() for group in groups])


async def test_what_survivors_ends_says_so() -> None:
    """Also where nobody has failed; the communicator is of no use afterwards."""
    async with cluster(2) as worlds:
        works = [world.receive(bytearray(3), 1 - world.rank) for world in worlds]
        groups = await each([world.survivors() for world in worlds])
        for work in works:
            with pytest.raises(OperationBroken, match="survivors"):
                await work
        await each([group.barrier() for group in groups])
        await each([group.close() for group in groups])


def regions(world: World) -> list[int]:
    """Return the sizes of what peers may write to, but for the slots of the links."""
    links = [task.result() for task in world._links.values()]  # noqa: SLF001
    return [
        region.remote.length
        for link in links
        for region in link.qp._regions.values()  # noqa: SLF001
        if region is not link._slots  # noqa: SLF001
    ]


# Closing.


async def test_closing_goes_on_when_the_waiting_is_cancelled() -> None:
    """And who closes again waits for the same end."""
    async with cluster(2) as (one, other):
        receiving = one.receive(bytearray(3), 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await one.close()
        closing = [asyncio.ensure_future(one.close()) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(each.done() for each in closing)
        await each([other.send(b"abc", 0), receiving])
        await other.close()
        await each(closing)
        assert not one.endpoint.queue_pairs
        assert one._mesh._accepting.done()  # noqa: SLF001


async def test_an_abort_overtakes_a_close_that_waits() -> None:
    """What the close waited for is cancelled."""
    async with cluster(2) as (one, _):
        work = one.receive(bytearray(3), 1)
        closing = asyncio.ensure_future(one.close())
        await asyncio.sleep(0)
        await one.abort()
        await closing
        with pytest.raises(CommunicatorClosed):
            await work


@pytest.mark.parametrize("how", ["abort", "close"])
async def test_the_end_of_a_world_is_that_of_all_made_from_it(how: str) -> None:
    """Nobody waits in a part of it any more."""
    async with cluster(2) as worlds:
        parts = [world.subset([0, 1], "part") for world in worlds]
        below = parts[0].subset([0, 1], "below")
        works = [parts[0].barrier(), below.barrier()]
        await asyncio.sleep(0)
        if how == "close":
            parts[1].barrier()
            other = parts[1].subset([0, 1], "below")
            await other.barrier()
        await each([getattr(world, how)() for world in worlds])
        for work in works:
            assert work.done()
            if how == "abort":
                with pytest.raises(CommunicatorClosed):
                    await work
        with pytest.raises(CommunicatorClosed):
            parts[0].barrier()


async def test_who_waits_in_the_store_hears_of_the_end() -> None:
    """On rank 0 and elsewhere."""
    async with cluster(2) as worlds:
        waiting = [asyncio.ensure_future(world.store.get("never")) for world in worlds]
        await asyncio.sleep(0)
        await each([world.close() for world in worlds])
        for each_wait in waiting:
            with pytest.raises(QueuePairClosed, match="closed the job"):
                await each_wait


async def test_a_message_begun_and_aborted_at_once_warns_of_nothing() -> None:
    """Its coroutine was never begun."""
    async with cluster(2) as worlds:
        part = worlds[0].subset([0, 1], "part")
        part.send(b"abc", 1)
        await part.abort()
        gc.collect()


# Queue pairs.


async def test_a_cancelled_connect_leaves_no_queue_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it was waiting for."""
    async with cluster(2) as worlds:
        said = asyncio.Event()

        async def say(*_: object) -> None:
            said.set()
            await asyncio.get_running_loop().create_future()

        queue_pairs = worlds[1].endpoint.queue_pairs
        before = len(queue_pairs)
        with monkeypatch.context() as patch:
            patch.setattr("mrc.json_channel.JsonChannel.send", say)
            connecting = asyncio.ensure_future(
                worlds[1]._mesh.connect("context", 0)  # noqa: SLF001
            )
            await said.wait()
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
        await until(lambda: len(queue_pairs) == before)


async def test_queue_pairs_that_nobody_took_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once they have ended: a job may make and leave communicators for ever."""
    monkeypatch.setattr(mesh, "HELD_MAX", 3)
    async with cluster(2) as (one, other):
        held = one._mesh._held  # noqa: SLF001
        for number in range(10):
            name = str(number)
            parts = [world.subset([0, 1], name) for world in (one, other)]
            await parts[0].abort()
            parts[1].send(b"", 0)
            await until(lambda: any(qp.failure is None for qp in held.values()))
            await parts[1].abort()
            await until(lambda: all(qp.failure is not None for qp in held.values()))
        assert len(held) <= 3
        await each([one.barrier(), other.barrier()])


# What others say.


@pytest.mark.parametrize("ranks", [[0, 2, 1], [2], [2, 1]])
async def test_an_answer_that_is_none_is_an_error(ranks: list[int]) -> None:
    """Of who is left: in another order, or without this rank."""
    async with cluster(3) as worlds:
        hearts = worlds[2]._health  # noqa: SLF001
        hearts._say(hearts._hearts[0], {"agreed": "world+0", "ranks": ranks})  # noqa: SLF001
        answers = worlds[0]._health._answers  # noqa: SLF001
        await until(lambda: "world+0" in answers)
        with pytest.raises(PeerProtocolError, match="not who is left"):
            await worlds[0].survivors()


async def test_who_passes_on_an_answer_without_itself_has_failed() -> None:
    """Nobody was asked, so nobody can have heard that answer."""
    async with cluster(3) as worlds:
        hearts = worlds[2]._health  # noqa: SLF001
        hearts._say(hearts._hearts[0], {"agreed": "world+0", "ranks": [0]})  # noqa: SLF001
        with pytest.raises(RankFailed, match="rank 2"):
            await worlds[0].receive(bytearray(1), 1)
        groups = await each([world.survivors() for world in worlds[:2]])
        assert {group.ranks for group in groups} == {(0, 1)}
        await each([group.close() for group in groups])


async def test_a_write_elsewhere_does_not_end_a_receive() -> None:
    """Its number is not enough: the last byte must be that of its own memory."""
    async with cluster(2) as (one, other):
        here, there = np.zeros(64, np.uint8), np.zeros(64, np.uint8)
        works = [one.receive(here, 1, tag=1), one.receive(there, 1, tag=2)]
        lane = await other._lane(0)  # noqa: SLF001
        await until(lambda: lane._wished == 2)  # noqa: SLF001
        place, number = lane._wishes[1][0].place, lane._wishes[2][0].number  # noqa: SLF001
        assert isinstance(place, mrc.RemoteRegion)
        await lane.qp.write_imm(b"\x05", place, 63, imm=number)
        for work in works:
            with pytest.raises(PeerProtocolError, match=f"ends receive {number}"):
                await work


@pytest.mark.parametrize("algorithm", ["doubling", "ring"])
@pytest.mark.parametrize("count", [1, 2, 3])
async def test_which_nan_is_the_same_everywhere(count: int, algorithm: str) -> None:
    """Of two with different bits all ranks keep that of the lower rank."""
    async with cluster(2) as worlds:
        arrays = [np.full(count, 0x7FC00001 + world.rank, np.uint32) for world in worlds]
        await each(
            [
                world.all_reduce(arrays[world.rank].view(np.float32), algorithm=algorithm)
                for world in worlds
            ]
        )
        assert arrays[0].tolist() == arrays[1].tolist()


# The thread of those that have no event loop.


async def test_no_call_outlives_the_thread_that_should_do_it() -> None:
    """However the end falls between the calls."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(20):
            await asyncio.to_thread(_stop_amid_calls)
    finally:
        sys.setswitchinterval(before)


def _stop_amid_calls() -> None:
    thread, ended, begun = LoopThread(), list[BaseException](), threading.Event()

    def call() -> None:
        try:
            while True:
                thread.call(asyncio.sleep(0))
                begun.set()
        except BaseException as error:  # noqa: BLE001 - which one is the question
            ended.append(error)

    callers = [threading.Thread(target=call, daemon=True) for _ in range(3)]
    for caller in callers:
        caller.start()
    begun.wait(10)
    thread.stop()
    for caller in callers:
        caller.join(10)
    assert [type(error) for error in ended] == [CommunicatorClosed] * 3


async def test_what_a_cancelled_call_was_is_still_cancelled() -> None:
    """`close` ends what runs, and whoever waits for it is told by name."""
    thread = LoopThread()
    waiting = asyncio.ensure_future(asyncio.to_thread(_call_for_ever, thread))
    await until(_begun.is_set)
    await asyncio.to_thread(thread.stop)
    with pytest.raises(CommunicatorClosed, match="meanwhile"):
        await waiting


_begun = threading.Event()


def _call_for_ever(thread: LoopThread) -> Any:
    async def wait() -> None:
        _begun.set()
        await asyncio.get_running_loop().create_future()

    return thread.call(wait())
