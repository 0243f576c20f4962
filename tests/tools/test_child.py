"""The processes that a measurement of `tools/bench` starts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

import pytest
from benchmarks import child

STUBBORN = (
    "import signal, os; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    # The alarm is for the case that the test is not there.
    "signal.alarm(60); print(os.getpid(), flush=True); signal.pause()"
)


@pytest.mark.asyncio
async def test_a_measurement_that_is_cancelled_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that does not hear SIGTERM is killed."""
    monkeypatch.setattr(child, "STOP_TIMEOUT_S", 0.05)
    said: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def measure() -> None:
        async with child.running("stubborn", sys.executable, "-c", STUBBORN) as process:
            said.set_result(int(await process.line(30.0)))
            await asyncio.Event().wait()

    measuring = asyncio.ensure_future(measure())
    pid = await said
    measuring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await measuring
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        pytest.fail("it still runs")
