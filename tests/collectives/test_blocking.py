"""The face for scripts: the same calls, one thread, and nothing left of it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pytest

from mrc.collectives import (
    BlockingCommunicator,
    Bootstrap,
    CommunicatorClosed,
    blocking,
    join_blocking,
)
from mrc.errors import ConfigError, PeerUnreachable
from tests.collectives.cluster import bootstraps

pytestmark = pytest.mark.slow

T = TypeVar("T")
NAME = "mrc-collectives"


def on_all(size: int, do: Callable[[BlockingCommunicator], T]) -> list[T]:
    """Run a script for every rank, each in a thread of its own."""

    def script(start: Bootstrap) -> T:
        with join_blocking(start) as world:
            return do(world)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(script, bootstraps(size), timeout=60))


def threads() -> list[threading.Thread]:
    """Return those of ours that run."""
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def test_the_same_operations_and_nothing_left() -> None:
    """Each returns when it is over."""

    def script(world: BlockingCommunicator) -> list[int]:
        value = np.array([world.rank + 1])
        world.all_reduce(value)
        world.barrier()
        block, blocks = np.array([world.rank]), np.zeros(3, int)
        world.all_gather(block, blocks)
        world.broadcast(value, root=1)
        world.reduce(value, "max", root=2)
        world.reduce_scatter(blocks, block)
        if world.rank == 0:
            world.send(b"hello", 1)
        if world.rank == 1:
            memory = bytearray(5)
            world.receive(memory, 0)
            assert memory == b"hello"
        return [*value.tolist(), *blocks.tolist(), *block.tolist()]

    assert on_all(3, script) == [[6, 0, 1, 2, 0], [6, 0, 1, 2, 3], [6, 0, 1, 2, 6]]
    assert not threads()
    gc.collect()


def test_what_is_begun_can_be_waited_for() -> None:
    """Several at once, with callbacks."""

    def script(world: BlockingCommunicator) -> int:
        value = np.array([1])
        done = threading.Event()
        works = [world.begin.all_reduce(value) for _ in range(3)]
        works[-1].add_done_callback(lambda _: done.set())
        for work in works:
            work.wait()
        assert done.wait(10)
        assert all(work.done() for work in works)
        return int(value[0])

    assert on_all(2, script) == [8, 8]


def test_waiting_has_an_end() -> None:
    """The operation goes on, and can be waited for again."""

    def script(world: BlockingCommunicator) -> None:
        if world.rank:
            world.receive(bytearray(1), 0, tag=1)
            world.barrier()
        else:
            work = world.begin.barrier()
            with pytest.raises(TimeoutError):
                work.wait(0.05)
            world.send(b"x", 1, tag=1)
            work.wait()

    on_all(2, script)


def test_groups_use_the_same_thread() -> None:
    """And end with the first one at the latest."""

    def script(world: BlockingCommunicator) -> int:
        group = world.split(world.rank % 2)
        assert group is not None
        with world.subset(range(4), "all") as everybody:
            everybody.barrier()
        value = np.array([world.rank])
        group.all_reduce(value)
        assert len(threads()) <= 4
        return int(value[0])

    assert on_all(4, script) == [2, 4, 2, 4]
    assert not threads()


def test_an_argument_that_does_not_fit_is_refused_here() -> None:
    """Where it was passed."""
    (start,) = bootstraps(1)
    with join_blocking(start) as world, pytest.raises(ConfigError, match="root 7"):
        world.broadcast(np.zeros(1), root=7)


def test_a_closed_one_is_refused() -> None:
    """Twice closed is once closed."""
    (start,) = bootstraps(1)
    world = join_blocking(start)
    world.close()
    world.close()
    with pytest.raises(CommunicatorClosed):
        world.barrier()


def test_one_that_nobody_holds_ends_with_the_process() -> None:
    """A script may lose it in a function: it says goodbye all the same, and its thread ends."""
    (start,) = bootstraps(1)
    join_blocking(start)
    gc.collect()
    assert threads()
    blocking._close_at_exit()  # noqa: SLF001 - what atexit calls
    assert not threads()


def test_a_start_that_fails_leaves_no_thread() -> None:
    """Nor does an error in the script."""
    start = bootstraps(2)[1]
    short = Bootstrap(rank=1, size=2, url=start.url, timeout_s=0.2)
    with pytest.raises(PeerUnreachable):
        join_blocking(short)
    (alone,) = bootstraps(1)
    with pytest.raises(ZeroDivisionError), join_blocking(alone):
        _ = 1 // 0
    assert not threads()
