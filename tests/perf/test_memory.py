"""The memory behind a client: given back when it has gone, however it went."""

from __future__ import annotations

import asyncio
import gc
import weakref
from threading import Event
from typing import Any, cast

import pytest

import mrc
from mrc.errors import PeerRefused, QueuePairClosed
from mrc.perf import lanes, memory
from mrc.perf.client import Client
from mrc.perf.conversation import Accept, Join, Offer
from mrc.perf.lanes import Lane
from mrc.perf.report import Report
from mrc.perf.settings import Kind
from mrc.perf.talk import Talk
from tests.perf.bench import DEADLINE_S, Bench, Quiet, bench, plan

pytestmark = pytest.mark.asyncio

FREE_BYTES = 8 << 20
OFFER = Offer(Kind.BANDWIDTH, 1, FREE_BYTES // 2, 4096, bidirectional=False, verify=False, seed=1)


class Slow:
    """Fills memory when it is let, whatever it is told.

    Attributes:
        begun: set in the event loop once somebody waits for memory.
        go_on: lets all go on.
    """

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go_on = Event()
        self.stops: list[Event] = []
        self._loop = asyncio.get_running_loop()

    def empty(self, size_bytes: int, stop: Event) -> Any:
        """Stand in for `memory.empty`."""
        self.stops.append(stop)
        self._loop.call_soon_threadsafe(self.begun.set)
        assert self.go_on.wait(DEADLINE_S)
        return memory.empty(size_bytes, stop)


@pytest.mark.parametrize("bidirectional", [False, True])
async def test_nothing_is_kept_of_a_client_that_was_aborted_in_a_round(
    bidirectional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error knows the frames it came through; what was written to is let go of at once."""
    made_of: list[weakref.ref[Any]] = []

    def watched(*arguments: Any) -> Any:
        array = memory.empty(*arguments)
        made_of.append(weakref.ref(array))
        return array

    audience = Quiet()
    async with bench() as made, mrc.Endpoint() as endpoint:
        monkeypatch.setattr(lanes, "empty", watched)
        wished = plan(operations=0, duration_s=60, interval_s=0.02, bidirectional=bidirectional)
        gc.disable()
        try:
            running = asyncio.ensure_future(
                Client(wished, Report(), audience).measure(
                    endpoint, lambda: endpoint.connect(made.url)
                )
            )
            await asyncio.wait_for(audience.moving.wait(), DEADLINE_S)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await made.until(lambda: len(made.ended) == 1)
            assert made.ended[0][1] is not None
            assert len(made_of) == (2 if bidirectional else 1)
            async with asyncio.timeout(DEADLINE_S):
                while any(array() is not None for array in made_of):  # noqa: ASYNC110 - no news
                    await asyncio.sleep(0)
        finally:
            gc.enable()


async def test_the_next_client_waits_until_the_memory_of_the_last_one_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients that come and go faster than memory is filled do not get more than there is."""
    monkeypatch.setattr(memory, "available_bytes", lambda: FREE_BYTES)
    slow = Slow()
    monkeypatch.setattr(lanes, "empty", slow.empty)
    async with bench() as made, mrc.Endpoint() as endpoint:
        try:
            qp = await endpoint.connect(made.url)
            session = (await Talk(qp, DEADLINE_S).ask(OFFER, Accept)).session
            lane = await endpoint.connect(made.url)
            await Talk(lane, DEADLINE_S).say(Join(session, 0, None))
            await asyncio.wait_for(slow.begun.wait(), DEADLINE_S)
            lane.abort()
            qp.abort()
            await made.until(lambda: len(made.ended) == 1)
            with pytest.raises(PeerRefused, match="busy with"):
                await _offer(endpoint, made)
        finally:
            slow.go_on.set()
        assert slow.stops[0].is_set()
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    await _offer(endpoint, made)
                except PeerRefused:
                    continue
                break


async def _offer(endpoint: mrc.Endpoint, made: Bench) -> None:
    """Come as a client, and leave when accepted."""
    qp = await endpoint.connect(made.url)
    try:
        await Talk(qp, DEADLINE_S).ask(OFFER, Accept)
    finally:
        qp.abort()


class _Qp:
    """All of a queue pair that memory needs."""

    peer = "192.0.2.9:1"


async def test_who_is_cancelled_while_memory_is_filled_stops_that() -> None:
    """Ctrl-C does not wait for gigabytes, and leaves no thread behind."""
    lane, begun, ended = Lane(cast("mrc.QueuePair", _Qp()), 0), Event(), Event()

    def until_stopped(stop: Event) -> None:
        begun.set()
        if stop.wait(DEADLINE_S):
            ended.set()

    working = asyncio.ensure_future(lane._in_thread(until_stopped))  # noqa: SLF001 - any work
    await asyncio.to_thread(begun.wait, DEADLINE_S)
    working.cancel()
    await asyncio.wait((working,))
    assert working.cancelled()
    assert ended.is_set()


async def test_what_is_filled_for_a_lane_that_was_freed_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that left has nothing, also when its memory is ready after that."""
    slow = Slow()
    monkeypatch.setattr(lanes, "empty", slow.empty)
    lane = Lane(cast("mrc.QueuePair", _Qp()), 0)
    opening = asyncio.ensure_future(lane.open_target(4096))
    await asyncio.wait_for(slow.begun.wait(), DEADLINE_S)
    lane.free()
    slow.go_on.set()
    with pytest.raises(QueuePairClosed):
        await opening
    assert lane.target is None
