"""The processes that a command starts beside its own: they end when it does."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from mrc.perf.own_listener import end_or_kill

STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    # The alarm is for the case that the test is not there.
    "signal.alarm(60); print(flush=True); signal.pause()"
)


@pytest.mark.asyncio
async def test_a_process_that_does_not_end_is_killed_by_a_cancelled_command() -> None:
    """Ctrl-C came, and it hears no signal that it could ignore."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STUBBORN, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()

    async def command() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            process.terminate()
            await end_or_kill(process, 0.05)

    running = asyncio.ensure_future(command())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert process.returncode == -signal.SIGKILL
