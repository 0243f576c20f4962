"""Memory in flight, marks that rise, and threads that must not hold up the end."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from mrc.cli.blocks import BlockPool, Watermark
from mrc.cli.worker import Worker

pytestmark = pytest.mark.asyncio


async def test_no_more_is_lent_than_the_limit() -> None:
    """Whoever asks for more waits until something comes back, first come first served."""
    pool = BlockPool(100, 50)
    first, second = await pool.take(50), await pool.take(50)
    large = asyncio.ensure_future(pool.take(50))
    small = asyncio.ensure_future(pool.take(1))
    await asyncio.sleep(0)
    assert not large.done()
    assert not small.done()
    pool.give(first)
    assert (await large).nbytes == 50
    assert not small.done()
    pool.give(second)
    assert (await small).nbytes == 1


async def test_whole_blocks_are_lent_again() -> None:
    """The buffers of a long transfer are always the same ones."""
    pool = BlockPool(100, 50)
    first = await pool.take(50)
    pool.give(first)
    assert await pool.take(50) is first


async def test_who_stops_waiting_gives_up_the_place() -> None:
    """A cancelled wait takes nothing, neither before nor after its turn has come."""
    pool = BlockPool(50, 50)
    first = await pool.take(50)
    waiting = [asyncio.ensure_future(pool.take(50)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    pool.give(first)
    waiting[1].cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting[1]
    assert (await waiting[2]).nbytes == 50


async def test_marks_wake_whom_they_reach() -> None:
    """Waiting ends when the mark is at the number or above; marks never fall."""
    mark = Watermark()
    waiting = {number: asyncio.ensure_future(mark.reach(number)) for number in (3, 1, 2)}
    await asyncio.sleep(0)
    mark.rise(2)
    await asyncio.sleep(0)
    assert {number for number, task in waiting.items() if task.done()} == {1, 2}
    mark.rise(1)
    assert mark.value == 2
    waiting[3].cancel()
    await asyncio.sleep(0)
    mark.rise(9)
    await mark.reach(9)


async def test_jobs_run_in_order_and_bring_back_what_happened() -> None:
    """Results and exceptions reach the one who waits."""
    worker = Worker("test")
    done: list[int] = []
    jobs = [worker.run(done.append, number) for number in range(50)]
    await asyncio.gather(*jobs)
    assert done == list(range(50))
    with pytest.raises(ZeroDivisionError):
        await worker.run(lambda: 1 // 0)
    worker.close()


async def test_a_cancelled_job_that_waits_is_not_begun() -> None:
    """Only what runs already runs on."""
    worker = Worker("test")
    gate = threading.Event()
    begun: list[str] = []
    first = asyncio.ensure_future(worker.run(gate.wait))
    second = asyncio.ensure_future(worker.run(begun.append, "second"))
    await asyncio.sleep(0)
    second.cancel()
    gate.set()
    assert await first
    await worker.run(begun.append, "third")
    assert begun == ["third"]
    worker.close()


async def test_the_last_call_comes_behind_all_jobs() -> None:
    """What jobs use is let go of when they have ended, without anybody waiting."""
    worker = Worker("test")
    order: list[str] = []
    done = threading.Event()
    job = asyncio.ensure_future(worker.run(order.append, "job"))
    await asyncio.sleep(0)

    def last() -> None:
        order.append("last")
        done.set()

    worker.close(last)
    await job
    assert done.wait(10)
    assert order == ["job", "last"]
