"""Connected queue pairs on real loopback sockets, on plain asyncio and on uvloop alike."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import pytest_asyncio
import uvloop

import mrc

Connected = tuple[mrc.QueuePair, mrc.QueuePair]
Connect = Callable[..., AbstractAsyncContextManager[Connected]]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run each test on both event loops that are supported."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@contextlib.asynccontextmanager
async def connected(
    address: str = "127.0.0.1:0", *, config: mrc.Config | None = None, **sender: Any
) -> AsyncIterator[Connected]:
    """Yield (connecting, accepting) queue pairs."""
    async with (
        mrc.listen(address, config=config) as listener,
        mrc.connect(listener.url, config=config, **sender) as qp,
        await listener.accept() as peer,
    ):
        yield qp, peer


@pytest.fixture
def connect() -> Connect:
    """Return the maker of connected queue pairs."""
    return connected


async def turns(count: int) -> None:
    """Let the event loop go round that often."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; fail when it does not within a time nobody would wait."""
    async with asyncio.timeout(30):
        while not condition():
            await turns(1)


def is_ours(task: asyncio.Task[Any]) -> bool:
    """Tell whether a task runs code of the package."""
    code = getattr(task.get_coro(), "cr_code", None)
    return "/mrc/" in getattr(code, "co_filename", "")


@pytest_asyncio.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    """After a test no task of ours runs, and unclosed sockets warn, which is an error."""
    yield
    await asyncio.sleep(0)
    current = asyncio.current_task()
    left = [task for task in asyncio.all_tasks() if task is not current and not task.done()]
    assert not [str(task.get_coro()) for task in left if is_ours(task)]
    gc.collect()
