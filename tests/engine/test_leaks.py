"""The check that nothing is left after a test: it must be able to fail."""

import asyncio

import pytest

import mrc
from tests.engine.conftest import is_ours

pytestmark = pytest.mark.asyncio


async def test_a_task_that_is_left_running_is_seen() -> None:
    """The channel watcher of an open queue pair counts as ours, and is gone when it is closed."""
    async with (
        mrc.listen("127.0.0.1:0") as listener,
        mrc.connect(listener.url),
        await listener.accept(),
    ):
        assert any(is_ours(task) for task in asyncio.all_tasks())
