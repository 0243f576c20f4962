"""What all traffic processes share: their orders, their clock and their record."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns
from typing import Any

PR_SET_PDEATHSIG = 1


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


async def until_ns(at_ns: int) -> None:
    """Wait for a moment of the monotonic clock."""
    await asyncio.sleep(max(0, at_ns - monotonic_ns()) / 1e9)


async def _input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    return reader


async def input_ended() -> None:
    """Wait until the runner closes our standard input."""
    reader = await _input()
    while await reader.read(4096):
        pass


async def moment_zero_ns() -> int:
    """Wait for the runner's word when the scenario begins; it may be a little in the future."""
    line = await (await _input()).readline()
    if not line:
        raise SystemExit(1)
    return int(line)


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


def run(main: Callable[[], Any]) -> None:
    """Run a traffic process: SIGTERM ends it as a closed standard input would."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        import uvloop  # noqa: PLC0415  # it only makes things faster

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
    except ImportError:
        asyncio.run(main())
    except KeyboardInterrupt:
        os._exit(130)
