"""One traffic process: started, told things, waited for with a deadline, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from pathlib import Path
from typing import Any, Self

END_TIMEOUT_S = 3.0
COMPLAINT_CHARACTERS = 2000
LINE_BYTES_MAX = 1 << 20


class TrafficFailed(Exception):
    """A traffic process ended or said something else than it should."""


class Traffic:
    """A process inside a host that leaves a record."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, record: Path) -> None:
        self.name = name
        self._process = process
        self._record = record
        self._errors: list[str] = []
        self._listening = asyncio.create_task(self._listen())
        self.complaint = ""

    @classmethod
    async def start(
        cls, name: str, command: list[str], environment: dict[str, str], record: Path
    ) -> Self:
        """Start it with its three streams in our hands."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            limit=LINE_BYTES_MAX,
        )
        return cls(name, process, record)

    async def _listen(self) -> None:
        """Read what it complains about as it comes, so that it never waits for us."""
        stream = self._process.stderr
        while stream is not None and (line := await stream.readline()):
            self._errors.append(line.decode(errors="replace"))
            del self._errors[:-100]

    async def expect(self, word: str) -> str:
        """Wait for the line that begins with a word; return the rest of it.

        Raises:
            TrafficFailed: it ended, or said something else.
        """
        stream = self._process.stdout
        line = (await stream.readline()).decode().strip() if stream is not None else ""
        first, _, rest = line.partition(" ")
        if first != word:
            await self.end()
            said = f"said {line!r}" if line else "ended"
            raise TrafficFailed(f"{self.name} {said} instead of {word!r}: {self.complaint}")
        return rest

    def tell(self, line: str) -> None:
        """Write a line to it."""
        if self._process.stdin is not None:
            self._process.stdin.write(line.encode() + b"\n")

    def close_input(self) -> None:
        """End its standard input: it shall finish."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def finished(self) -> None:
        """Wait until it has ended by itself."""
        await self._process.wait()
        await self._gather_errors()

    async def end(self) -> None:
        """End it if it still runs, harder the second time."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.returncode is not None:
                break
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_TIMEOUT_S):
                    await self._process.wait()
        await self._gather_errors()

    async def _gather_errors(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                await self._listening
        if self._process.returncode:
            text = "".join(self._errors).strip()[-COMPLAINT_CHARACTERS:]
            self.complaint = text or f"exit status {self._process.returncode}"

    def record(self) -> dict[str, Any]:
        """Return what it left behind, or nothing."""
        try:
            record: dict[str, Any] = json.loads(self._record.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return record
