"""What all traffic processes share: their orders, their clock, their record and their end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Only for its type: what goes over TCP starts without it.
    from mrc import EvChanged

PR_SET_PDEATHSIG = 1
TERMINATED = 128 + signal.SIGTERM


def orders() -> dict[str, Any]:
    """Return what the process was told to do, its one argument."""
    value: dict[str, Any] = json.loads(sys.argv[1])
    return value


def say(word: str) -> None:
    """Tell the scenario's runner something: one line."""
    print(word, flush=True)


def save(path: str, record: dict[str, Any]) -> None:
    """Leave the record, whole or not at all, with the processor time the process has used."""
    used = os.times()
    record = {**record, "processor_s": {"user": used.user, "system": used.system}}
    partial = Path(path + ".part")
    partial.write_text(json.dumps(record, separators=(",", ":")), encoding="utf-8")
    partial.replace(path)


def change(event: EvChanged) -> dict[str, Any]:
    """Return one change of a path as plain values."""
    return {
        "at_ns": event.at_ns,
        "path": event.index,
        "plane": event.plane,
        "before": event.before.value,
        "after": event.after.value,
        "reason": event.reason,
    }


class Sampler:
    """Calls functions at a fixed pace and keeps what they return, each with its moment."""

    def __init__(self, period_ms: float, take: Callable[[int], None]) -> None:
        """Make a sampler; it runs inside `run`.

        Args:
            period_ms: pace in milliseconds; a moment that a busy loop misses is left out.
            take: called with the time in nanoseconds.
        """
        self._period_ns = int(period_ms * 1e6)
        self._take = take

    async def run(self) -> None:
        """Sample until cancelled."""
        due_ns = monotonic_ns()
        while True:
            now_ns = monotonic_ns()
            self._take(now_ns)
            due_ns = max(due_ns + self._period_ns, now_ns)
            await asyncio.sleep((due_ns - now_ns) / 1e9)


# The end: a closed standard input, SIGTERM, or the death of whoever started the process.


def end_with_parent() -> None:
    """Have the kernel send SIGTERM when the process that started this one is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


# Processes on an event loop.


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a traffic process; SIGTERM cancels what it does, so that it can leave its record."""
    end_with_parent()
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415  # it only makes things faster

        new_loop = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=new_loop) as runner:
        try:
            runner.run(_until_told(main))
        except asyncio.CancelledError:
            sys.exit(TERMINATED)


async def _until_told(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    task = asyncio.ensure_future(main())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await task


async def until_ns(at_ns: int) -> None:
    """Wait for a moment of the monotonic clock."""
    await asyncio.sleep(max(0, at_ns - monotonic_ns()) / 1e9)


async def standard_input() -> asyncio.StreamReader:
    """Return what the runner tells us."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    return reader


async def input_ended(reader: asyncio.StreamReader) -> None:
    """Wait until the runner closes our standard input."""
    while await reader.read(4096):
        pass


async def while_input_lasts(reader: asyncio.StreamReader, work: Coroutine[Any, Any, None]) -> None:
    """Do some work, and cancel it when the runner closes our standard input.

    Raises:
        CancelledError: that was so.
    """
    working, ending = asyncio.create_task(work), asyncio.create_task(input_ended(reader))
    try:
        await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        ending.cancel()
    await working


async def moment_zero_ns(reader: asyncio.StreamReader) -> int:
    """Wait for the runner's word when the scenario begins; it may be a little in the future."""
    return _zero_ns((await reader.readline()).decode())


def _zero_ns(line: str) -> int:
    if not line:
        raise SystemExit("standard input was closed before the moment of the start")
    return int(line)


# Processes that block.


def run_blocking(**roles: Callable[[dict[str, Any]], None]) -> None:
    """Run a traffic process by the role in its orders; SIGTERM raises SystemExit in it."""
    end_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(TERMINATED))
    told = orders()
    roles[told["role"]](told)


def wait_for_zero_ns() -> int:
    """Do as `moment_zero_ns`; from then on a closed standard input is as good as SIGTERM."""
    zero_ns = _zero_ns(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    return zero_ns


def _end_with_input() -> None:
    # Not by sys.stdin: its lock, held while the interpreter ends, would be fatal.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
