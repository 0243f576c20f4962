"""One traffic process: started, told things, waited for with a deadline, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from pathlib import Path
from typing import Any, Self

END_TIMEOUT_S = 3.0
"""For each way of asking a process to end."""
COMPLAINT_BYTES = 2000
LINE_BYTES_MAX = 1 << 20


class TrafficFailed(Exception):
    """A traffic process ended, was silent, or said something else than it should."""


class Traffic:
    """A process inside a host that leaves a record."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, record: Path) -> None:
        self.name = name
        self._process = process
        self._record = record
        self._errors = b""
        self._told_to_end = False
        self._life = asyncio.create_task(self._live())

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

    async def _live(self) -> None:
        """Read what it complains about as it comes, so that it never waits for us, to its end."""
        stream = self._process.stderr
        while stream is not None and (some := await stream.read(1 << 16)):
            self._errors = (self._errors + some)[-COMPLAINT_BYTES:]
        await self._process.wait()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended, whoever wanted that; its complaint is then complete."""
        return self._life.done()

    @property
    def complaint(self) -> str:
        """What it said on standard error if it failed, or how it ended."""
        status = self._process.returncode
        if not status:
            return ""
        text = self._errors.decode(errors="replace").strip()
        return text or ("" if self._told_to_end else f"exit status {status}")

    async def expect(self, word: str, timeout_s: float = math.inf) -> str:
        """Wait for the line that begins with a word; return the rest of it.

        Raises:
            TrafficFailed: it ended, said something else, or nothing in time.
        """
        try:
            # Not asyncio.timeout: where a cancelled task cleans up, that of Python before 3.11.3
            # raises CancelledError in place of TimeoutError (gh-102780), and it is not ended.
            said = await asyncio.wait_for(self._line(), timeout_s)
        except TimeoutError as error:
            await self.end()
            raise self._late(f"did not say {word!r}", timeout_s) from error
        first, _, rest = said.partition(" ")
        if first != word:
            await self.end()
            what = f"said {said[:200]!r}" if said else "ended"
            raise TrafficFailed(f"{self.name} {what} instead of {word!r}: {self.complaint}")
        return rest

    async def _line(self) -> str:
        """Return the next line of its standard output, or nothing when there is none."""
        stream = self._process.stdout
        if stream is None:
            return ""
        try:
            return (await stream.readline()).decode(errors="replace").strip()
        except ValueError:
            return f"a line of more than {LINE_BYTES_MAX} bytes"

    def tell(self, line: str) -> None:
        """Write a line to it."""
        if self._process.stdin is not None:
            self._process.stdin.write(line.encode() + b"\n")

    def close_input(self) -> None:
        """End its standard input: it shall finish."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def finished(self, timeout_s: float = math.inf) -> None:
        """Wait until it has ended by itself.

        Raises:
            TrafficFailed: it still runs when the time is over; it goes on.
        """
        done, _ = await asyncio.wait({self._life}, timeout=timeout_s)
        if not done:
            raise self._late("did not end", timeout_s)

    def _late(self, what: str, timeout_s: float) -> TrafficFailed:
        said = self._errors.decode(errors="replace").strip()
        return TrafficFailed(
            f"{self.name} {what} within {timeout_s:g} s (is the machine busy? then run it alone)"
            f"{': ' if said else ''}{said}"
        )

    async def end(self) -> None:
        """Let it finish by closing its input; ask by a signal if it does not, and then insist."""
        for ask in (self.close_input, self._process.terminate, self._process.kill):
            if self.ended:
                return
            self._told_to_end = True
            with contextlib.suppress(ProcessLookupError):
                ask()
            await asyncio.wait({self._life}, timeout=END_TIMEOUT_S)

    def record(self) -> dict[str, Any]:
        """Return what it left behind, or nothing."""
        try:
            record: dict[str, Any] = json.loads(self._record.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return record
