"""What every test of the collectives gets: a look at what is left behind."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from mrc.collectives import executor, transfer


def _is_ours(task: asyncio.Task[Any]) -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return "/mrc/" in getattr(code, "co_filename", "")


@pytest_asyncio.fixture
async def nothing_left() -> AsyncIterator[None]:
    """After a test no task of ours runs, and unclosed sockets warn, which is an error."""
    # Only what the test has made is looked at: to look at everything takes as long as many a test.
    gc.freeze()
    try:
        yield
        for _ in range(3):
            await asyncio.sleep(0)
        current = asyncio.current_task()
        left = [task for task in asyncio.all_tasks() if task is not current and not task.done()]
        assert not [str(task.get_coro()) for task in left if _is_ours(task)]
        gc.collect()
    finally:
        gc.unfreeze()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut chunks into pieces as small as the buffers of a test: many of them, through all slots."""
    monkeypatch.setattr(transfer, "SEGMENT_BYTES", 4096)
    monkeypatch.setattr(executor, "DIRECT_BYTES_MIN", 8192)
    monkeypatch.setattr(executor, "COPY_BYTES_MAX", 1024)
