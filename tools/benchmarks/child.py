"""Processes that a measurement starts: they speak JSON lines, and none outlives the measurement.

Knows processes and pipes, not what is measured.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

TOOLS = Path(__file__).resolve().parent.parent
LINE_BYTES_MAX = 8 << 20
ERROR_BYTES_KEPT = 2000
STOP_TIMEOUT_S = 3.0
START_TIMEOUT_S = 20.0
TRANSFER_TIMEOUT_S = 40.0
MEMORY_POLL_S = 0.05
"""The peak is lost with the process: what it adds in its last moments may be missed."""

T = TypeVar("T")

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


class MeasurementError(Exception):
    """A measurement went wrong: its process failed, was silent too long, or delivered nonsense.

    Attributes:
        details: what the process said last on standard error.
    """

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.details = tuple(details)


class MissingError(Exception):
    """A measurement cannot be made here; the message says what is missing."""


class Child:
    """A running process; made by `running` or `worker`.

    Attributes:
        name: for messages.
        peak_resident_bytes: the most it had resident so far, files it maps included.
    """

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.peak_resident_bytes = 0
        self._process = process
        self._errors = b""
        self._tasks = [
            asyncio.ensure_future(self._keep_errors()),
            asyncio.ensure_future(self._watch_memory()),
        ]

    async def line(self, timeout_s: float) -> str:
        """Return its next line of output.

        Raises:
            MeasurementError: it ended, or said nothing in time.
        """
        text = await self._in_time(self._stdout.readline(), timeout_s)
        if not text:
            raise self._failed(f"ended with status {await self.wait(timeout_s)}")
        return text.decode(errors="replace").rstrip("\n")

    async def receive(self, timeout_s: float) -> dict[str, Any]:
        """Return its next JSON line.

        Raises:
            MeasurementError: it ended, said nothing in time, or something else than JSON.
        """
        return self._parsed(await self.line(timeout_s))

    async def document(self, timeout_s: float) -> dict[str, Any]:
        """Return all of its output as one JSON document, and wait for its end.

        Raises:
            MeasurementError: it failed, took too long, or printed something else.
        """
        return self._parsed(await self.text(timeout_s))

    async def text(self, timeout_s: float) -> str:
        """Return all of its output, and wait for its end.

        Raises:
            MeasurementError: it failed or took too long.
        """
        text = await self._in_time(self._stdout.read(), timeout_s)
        status = await self.wait(timeout_s)
        if status != 0:
            raise self._failed(f"ended with status {status}")
        return text.decode(errors="replace")

    async def wait(self, timeout_s: float) -> int:
        """Return its exit status.

        Raises:
            MeasurementError: it did not end in time.
        """
        return await self._in_time(self._process.wait(), timeout_s)

    async def stop(self) -> None:
        """End it if it still runs: by asking, then by force."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.terminate()
            try:
                # Not asyncio.timeout: where a cancelled task cleans up, that of Python before
                # 3.11.3 raises CancelledError in place of TimeoutError (gh-102780).
                await asyncio.wait_for(self._process.wait(), STOP_TIMEOUT_S)
            except TimeoutError:
                with suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def _stdout(self) -> asyncio.StreamReader:
        assert self._process.stdout is not None
        return self._process.stdout

    async def _in_time(self, what: Awaitable[T], timeout_s: float) -> T:
        try:
            async with asyncio.timeout(timeout_s):
                return await what
        except TimeoutError:
            raise self._failed(f"said nothing for {timeout_s:g} s") from None
        except ValueError as error:
            raise self._failed("printed a line without end") from error

    def _failed(self, what: str) -> MeasurementError:
        lines = self._errors.decode(errors="replace").splitlines()
        last = f": {lines[-1]}" if lines else ""
        return MeasurementError(f"{self.name} {what}{last}", lines)

    def _parsed(self, text: str) -> dict[str, Any]:
        try:
            message = json.loads(text)
        except ValueError as error:
            raise self._failed(f"printed no JSON: {text[:200]!r}") from error
        if not isinstance(message, dict):
            raise self._failed(f"printed no JSON object: {text[:200]!r}")
        return message

    async def _keep_errors(self) -> None:
        assert self._process.stderr is not None
        while text := await self._process.stderr.read(1 << 16):
            self._errors = (self._errors + text)[-ERROR_BYTES_KEPT:]

    async def _watch_memory(self) -> None:
        while True:
            peak_bytes = _peak_resident_bytes(self._process.pid)
            self.peak_resident_bytes = max(self.peak_resident_bytes, peak_bytes)
            await asyncio.sleep(MEMORY_POLL_S)


def _peak_resident_bytes(pid: int) -> int:
    """Read it; 0 when the process is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    peak = _PEAK.search(status)
    return int(peak[1]) << 10 if peak is not None else 0


@asynccontextmanager
async def running(name: str, *command: str) -> AsyncIterator[Child]:
    """Start a command; it is ended when the block is left, whatever happened in it."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=LINE_BYTES_MAX, cwd=TOOLS
    )
    child = Child(name, process)
    try:
        yield child
    finally:
        await child.stop()


def free_port() -> int:
    """Return a TCP port of loopback that nobody had just now, for programs that cannot choose."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    return port


def worker(
    module: str, role: str, job: dict[str, Any], *, package: str = "benchmarks"
) -> AbstractAsyncContextManager[Child]:
    """Start a role of one of the worker modules of a package of tools, with its job as JSON."""
    command = (sys.executable, "-m", f"{package}.{module}", role, json.dumps(job))
    return running(f"{module} {role}", *command)


async def transfer(
    module: str,
    job: dict[str, Any],
    timeout_s: float = TRANSFER_TIMEOUT_S,
    *,
    package: str = "benchmarks",
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the roles `receive` and `send` of a worker module; return what sender and receiver tell.

    What the receiver says first, such as its port, becomes part of the sender's job.

    Raises:
        MeasurementError: one of them failed or took too long.
    """
    async with worker(module, "receive", job, package=package) as receiver:
        job = job | await receiver.receive(START_TIMEOUT_S)
        async with worker(module, "send", job, package=package) as sender:
            sent = await sender.receive(timeout_s)
            received = await receiver.receive(timeout_s)
    return sent, received
