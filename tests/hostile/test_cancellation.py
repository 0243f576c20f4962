"""Cancellation at every await: whoever gives up, wherever, leaves nothing behind.

A life of a queue pair is lived again and again, each time cancelled one suspension later, until it
comes to its natural end.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import mrc
from mrc.errors import MrcError, PeerLost
from tests.engine.conftest import (
    is_ours,
    nothing_left,  # noqa: F401 - looks after each test
    turns,
    until,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

T = TypeVar("T")
SIZE = 400_000
STEPS_MAX = 400
"""More awaits than any of these lives has."""


class CancelledAt(Awaitable[T]):
    """A coroutine whose task is cancelled when it suspends for the n-th time, counted from 0.

    Attributes:
        reached: it got so far.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T], step: int) -> None:
        self._coroutine = coroutine
        self._step = step
        self.reached = False

    def __await__(self) -> Generator[Any, Any, T]:
        """Run the coroutine, and cancel the task as it is about to wait."""
        resume: Callable[[], Any] = lambda: self._coroutine.send(None)  # noqa: E731
        for number in range(1 << 30):
            try:
                waits_for = resume()
            except StopIteration as stop:
                result: T = stop.value
                return result
            if number == self._step:
                self.reached = True
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - all of them go to the coroutine
                resume = _thrower(self._coroutine, error)
            else:
                resume = lambda: self._coroutine.send(None)  # noqa: E731
        raise AssertionError("it never ends")


def _thrower(coroutine: Coroutine[Any, Any, Any], error: BaseException) -> Callable[[], Any]:
    return lambda: coroutine.throw(error)


def descriptors() -> int:
    """Return how many descriptors this process has open."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def our_tasks() -> list[str]:
    """Return what of the package still runs."""
    return [str(task.get_coro()) for task in asyncio.all_tasks() if is_ours(task)]


class Complaints:
    """What the loop had to report because nobody was there to be told."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: self.heard.append(f"{context['message']} {context.get('exception')}")
        )


Life = Callable[[], Coroutine[Any, Any, None]]


async def cancel_at_every_await(life: Life, aftermath: Callable[[], Awaitable[None]]) -> int:
    """Live a life again and again, each time cancelled one await later; return how many it has.

    After each no task of the package is left, no descriptor and no complaint.
    """
    complaints = Complaints()
    # After one whole life the loop and the other side have what they will ever need.
    await life()
    await aftermath()
    await until(lambda: not our_tasks())
    before = descriptors()
    for step in range(STEPS_MAX):
        cancelled = CancelledAt(life(), step)
        (outcome,) = await asyncio.gather(_run(cancelled), return_exceptions=True)
        await until(lambda: not our_tasks())
        await aftermath()
        await until(lambda: descriptors() <= before)
        assert complaints.heard == [], step
        if not cancelled.reached:
            assert outcome is None, step
            return step
        assert isinstance(outcome, asyncio.CancelledError), (step, outcome)
    raise AssertionError(f"more than {STEPS_MAX} awaits")


async def _run(awaitable: Awaitable[T]) -> T:
    return await awaitable


# The two sides of one life.


async def visit(url: str) -> None:
    """Use everything a queue pair has, and close it."""
    async with mrc.connect(url) as qp:
        remote = mrc.RemoteRegion.from_json_untrusted(await qp.channel.receive())
        await qp.write(bytes(SIZE), remote)
        await qp.write_imm(b"x", remote, imm=3)
        await qp.send(b"y" * 100_000)
        assert await qp.receive() == b"y" * 100_000
        assert await qp.channel.receive() == {"imm": 3}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.002):
                await anext(qp.events(), None)


async def receive_a_visit(peer: mrc.QueuePair) -> None:
    """Offer memory, send back what is announced and said, and wait for the goodbye."""
    async with peer:
        region = peer.register(bytearray(SIZE))
        await peer.channel.send(region.remote.to_json())
        immediate = await peer.next_immediate()
        await peer.send(await peer.receive())
        await peer.channel.send({"imm": immediate.imm})
        with contextlib.suppress(PeerLost):
            await peer.receive()


@contextlib.asynccontextmanager
async def again_and_again(work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Do something in the background, whatever becomes of it, as long as the block runs."""

    async def repeat() -> None:
        while True:
            with contextlib.suppress(MrcError):
                await work()

    task = asyncio.ensure_future(repeat())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def new_lock(*, locked: bool) -> mrc.Lock | None:
    """Return what the door of a listener is locked with, if it shall be."""
    return mrc.Lock.new(one_time=False) if locked else None


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait long for the goodbye of a peer that was cancelled."""
    monkeypatch.setattr("mrc.connection.BYE_TIMEOUT_S", 0.2)


@pytest.mark.parametrize("locked", [False, True], ids=["open", "locked"])
async def test_connecting_side_can_be_cancelled_at_every_await(*, locked: bool) -> None:
    """From the first packet of the rendezvous to the last of the goodbye."""
    async with (
        mrc.Endpoint() as server,
        server.listen("127.0.0.1:0", lock=new_lock(locked=locked)) as listener,
    ):

        async def serve() -> None:
            await receive_a_visit(await listener.accept())

        async def nobody_is_left() -> None:
            await until(lambda: server.statistics().queue_pairs == server.statistics().regions == 0)

        async with again_and_again(serve), asyncio.timeout(60):
            awaits = await cancel_at_every_await(lambda: visit(listener.url), nobody_is_left)
    assert awaits >= 8


@pytest.mark.parametrize("locked", [False, True], ids=["open", "locked"])
async def test_listening_side_can_be_cancelled_at_every_await(*, locked: bool) -> None:
    """From opening the door to the end of the visit; the peer is told each time."""
    urls: asyncio.Queue[str] = asyncio.Queue()
    lock = new_lock(locked=locked)

    async def host() -> None:
        async with mrc.listen("127.0.0.1:0", lock=lock) as listener:
            urls.put_nowait(listener.url)
            await receive_a_visit(await listener.accept())

    async def call() -> None:
        url = await urls.get()
        try:
            await visit(url)
        finally:
            urls.task_done()

    async with again_and_again(call), asyncio.timeout(60):
        assert await cancel_at_every_await(host, urls.join) > 8


# Plain asyncio itself forgets a connection that it accepts while its server is being closed.
@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize("fits", [True, False], ids=["accepted", "refused"])
async def test_listener_can_be_closed_at_every_step_of_a_handshake(*, fits: bool) -> None:
    """Whether it was about to let a peer in or to tell it why not: there is no complaint."""
    complaints = Complaints()
    for turn in range(60):
        async with mrc.listen("127.0.0.1:0", config=mrc.Config(icrc=fits)) as listener:
            connecting = asyncio.ensure_future(visit(listener.url))
            await turns(turn)
        with contextlib.suppress(MrcError):
            await connecting
        await until(lambda: not our_tasks())
        assert complaints.heard == [], turn
