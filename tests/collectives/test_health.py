"""Hearts: who is alive, who says so, and what a member may say."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mrc
from mrc.collectives import Bootstrap, RankFailed, World, health, join
from mrc.collectives.failures import Obituary
from mrc.errors import PeerError, PeerLost, PeerProtocolError
from tests.collectives.cluster import bootstraps, cluster, each

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left"), pytest.mark.slow]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
NEWS = st.dictionaries(
    st.sampled_from(["beat", "failed", "left", "broken", "why", "agree", "agreed", "ranks"]), JSON
)
GONE = {"rank": 1, "address": "a:1", "why": "w", "heard_ns": 5, "paths": ["p"], "states": "1 good"}


@settings(max_examples=100)
@given(st.lists(NEWS, max_size=4))
async def test_no_news_breaks_anything(news: list[dict[str, Any]]) -> None:
    """Whatever a member says is taken, or is one exception."""
    one = object.__new__(health.Health)
    one._size, one._me, one._closing = 4, 0, False
    one.failed, one.left, one.broken, one.watchers = {}, set(), {}, []
    one._hearts, one._asked, one._agreed, one._heard_ns = {}, {}, {}, {}
    one._answers, one.given_up = {}, None
    for message in news:
        with contextlib.suppress(PeerProtocolError):
            one._hear_untrusted(1, message)


@pytest.mark.parametrize(
    "change",
    [
        {"rank": 4},
        {"rank": -1},
        {"rank": True},
        {"rank": "1"},
        {"address": None},
        {"why": "two\nlines"},
        {"why": "x" * 10_000},
        {"heard_ns": -2},
        {"heard_ns": 1 << 63},
        {"paths": ["p"] * 17},
        {"paths": ["\x1b[2J"]},
        {"states": 1},
    ],
    ids=str,
)
async def test_an_obituary_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    """It ends in an error message, so nothing in it may write to a terminal or fill a log."""
    assert Obituary.from_json_untrusted(GONE, 4) == Obituary(1, "a:1", "w", 5, ("p",), "1 good")
    assert Obituary.from_json_untrusted(Obituary(2, "b:2", "x").to_json(), 4).rank == 2
    with pytest.raises(PeerProtocolError):
        Obituary.from_json_untrusted(GONE | change, 4)


async def test_what_one_rank_finds_out_all_know() -> None:
    """Also those that have nothing to do with it; the one that is named has no say in it."""
    async with cluster(4) as worlds:
        await each([world.barrier() for world in worlds])
        waiting = [world.receive(bytearray(1), 3) for world in worlds[:2]]
        worlds[1]._health.report(3, PeerError("the test says so"))  # noqa: SLF001
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        for error in (*ended, *[await broken(world) for world in worlds[:3]]):
            assert isinstance(error, RankFailed)
            assert error.rank == error.job_rank == 3
            assert "the test says so" in str(error)


async def test_who_is_given_up_by_mistake_is_told() -> None:
    """And does not take itself for the only one left."""
    async with cluster(3) as worlds:
        await each([world.barrier() for world in worlds])
        worlds[0]._health.report(2, PeerError("the test says so"))  # noqa: SLF001
        assert await names_itself(worlds[2])


@pytest.mark.parametrize("silent", [0, 2])
async def test_who_was_silent_for_too_long_is_told(silent: int) -> None:
    """The lowest rank, which has all hearts, and another: as if a machine had stopped for a while.

    The silent one says something every 12 s, which is too seldom for the others.
    """
    joining = [
        join(start, detect_s=60.0 if start.rank == silent else 0.5) for start in bootstraps(3)
    ]
    worlds = await each(joining)
    try:
        for world in worlds:
            if world.rank != silent:
                error = await broken(world)
                assert isinstance(error, RankFailed)
                assert error.rank == silent
        assert await names_itself(worlds[silent])
    finally:
        await each([world.abort() for world in worlds])


async def test_a_heart_that_was_cut_is_taken_up_again() -> None:
    """Both sides ask at once, both live, and nobody is taken for dead."""
    async with cluster(2) as worlds:
        await each([world.barrier() for world in worlds])
        cut = [world._health._hearts[1 - world.rank] for world in worlds]  # noqa: SLF001
        for qp in cut:
            qp._connection.fail(PeerLost("cut"))  # noqa: SLF001
        async with asyncio.timeout(10):
            # Until each has another one; that is no event.
            while not all(  # noqa: ASYNC110
                world._health._hearts.get(1 - world.rank) not in (None, qp)  # noqa: SLF001
                for world, qp in zip(worlds, cut, strict=True)
            ):
                await asyncio.sleep(0.01)
        assert not any(world._health.failed for world in worlds)  # noqa: SLF001
        await each([world.barrier() for world in worlds])


async def names_itself(world: World) -> bool:
    """Tell whether a rank says that it is out, and makes no group of its own."""
    error = await broken(world)
    for told in (error, *await asyncio.gather(world.survivors(), return_exceptions=True)):
        assert isinstance(told, RankFailed)
        assert "the others took this rank for dead" in str(told)
        assert told.rank == told.job_rank == world.rank
    return True


async def test_words_that_cannot_be_printed_do_not_make_the_messenger_fail() -> None:
    """What a rank says of another ends in a message, and is spelled out before it is told."""
    async with cluster(3) as worlds:
        worlds[1]._health.report(2, PeerError("one\ttwo\x1b[2J"))  # noqa: SLF001
        error = await broken(worlds[0])
        assert isinstance(error, RankFailed)
        assert error.rank == 2
        assert r"one\x09two\x1b[2J" in str(error)


async def test_an_answer_that_only_some_heard_stays_the_answer() -> None:
    """The lowest rank fails amid giving it: who has it asks no more, and tells the next one."""
    async with cluster(4) as worlds:
        await each([world.barrier() for world in worlds])
        hearts = [world._health for world in worlds]  # noqa: SLF001
        alive = [0, 1, 2, 3]
        hearts[3]._hear_untrusted(0, {"agreed": "question", "ranks": alive})  # noqa: SLF001
        await worlds[0].abort()
        answers = await each([heart.agree("question", alive) for heart in hearts[1:3]])
        assert answers == [alive, alive]


async def test_who_leaves_at_once_has_been_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lowest rank waits for the hearts of all, and one has ended well before the last came."""
    left = asyncio.Event()
    watch, leave = health.Health._watch, health.Health._leave  # noqa: SLF001

    async def watch_later(one: health.Health) -> None:
        if one._me == 2:  # noqa: SLF001
            await left.wait()
        await watch(one)

    def leave_loudly(one: health.Health, rank: int) -> None:
        leave(one, rank)
        left.set()

    monkeypatch.setattr(health.Health, "_watch", watch_later)
    monkeypatch.setattr(health.Health, "_leave", leave_loudly)

    async def one(start: Bootstrap) -> int:
        async with join(start) as world:
            return world.rank

    assert await each([one(start) for start in bootstraps(3)]) == [0, 1, 2]


async def broken(world: World) -> BaseException | None:
    """Return what ends the operations of a communicator, once it does."""
    with contextlib.suppress(RankFailed):
        async with asyncio.timeout(10):
            await world._broken  # noqa: SLF001 - nothing else waits without taking part
    return world._broken.exception()  # noqa: SLF001


async def test_a_blackhole_for_all_paths_is_noticed_in_time() -> None:
    """No connection of it closes, and nothing of it arrives: the machine, or its cables."""
    used = [mrc_sockets(rank) for rank in range(3)]
    async with cluster(3, sockets=lambda rank: used[rank], detect_s=0.5) as worlds:
        await each([world.barrier() for world in worlds])
        used[2].loss = used[2].inbound_loss = 1.0
        started = asyncio.get_running_loop().time()
        for world in worlds[:2]:
            error = await broken(world)
            assert isinstance(error, RankFailed)
            assert error.rank == 2
            assert "silent on all paths" in str(error)
            assert error.paths
        assert asyncio.get_running_loop().time() - started > 0.4


def mrc_sockets(seed: int) -> Any:
    """Return sockets that can be made to lose everything."""
    from mrc.udp import FaultySockets

    return FaultySockets(seed=seed)


async def test_a_loop_that_stood_still_blames_nobody() -> None:
    """What this rank missed because it computed is not the others' silence."""
    async with cluster(3, detect_s=0.3) as worlds:
        await each([world.barrier() for world in worlds])
        np.sort(np.random.default_rng(1).random(1 << 23))
        until = asyncio.get_running_loop().time() + 0.6
        while asyncio.get_running_loop().time() < until:
            pass
        await each([world.barrier() for world in worlds])
        assert not any(world._health.failed for world in worlds)  # noqa: SLF001


async def test_survivors_agree_when_news_of_a_death_comes_while_they_ask() -> None:
    """All get the same list, whoever asked first."""
    async with cluster(4) as worlds:
        await each([world.barrier() for world in worlds])
        asking = [asyncio.ensure_future(world.survivors()) for world in worlds[:3]]
        await asyncio.sleep(0)
        worlds[2]._health.report(3, PeerError("the test says so"))  # noqa: SLF001
        groups = await each(asking)
        assert [group.ranks for group in groups] == [(0, 1, 2)] * 3
        values = [np.array([group.rank]) for group in groups]
        await each([group.all_reduce(values[group.rank]) for group in groups])
        assert [int(value[0]) for value in values] == [3, 3, 3]
        for group in groups:
            await group.abort()


async def test_a_stranger_who_knows_the_token_has_one_heart() -> None:
    """A second one for the same rank is let go."""
    async with cluster(2) as worlds:
        mesh = worlds[1]._mesh  # noqa: SLF001
        second = await mesh.connect(health.HEART, 0)
        with contextlib.suppress(mrc.MrcError):
            async with asyncio.timeout(10):
                while True:
                    await second.channel.receive()
        assert second.failure is not None
        await each([world.barrier() for world in worlds])
        await second.close()
