"""A listener in a process of its own on loopback, for runs that need no second machine."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from mrc.cli.failures import ExitCode
from mrc.errors import ConfigError, PeerUnreachable
from mrc.perf.parts import within
from mrc.text import printable

START_TIMEOUT_S = 30.0
"""For its URL: on a busy machine the imports alone can take seconds."""
END_TIMEOUT_S = 5.0
UNTIL_EOF = "--until-eof"
"""The listener's option that makes it end with us, however we end: our end of its pipe closes."""
_LINES_KEPT = 20


async def end_or_kill(process: asyncio.subprocess.Process, timeout_s: float) -> None:
    """Wait for the end of a process that was told to end, and make one if it does not come."""
    try:
        # Not asyncio.timeout: where a cancelled task cleans up, that of Python before 3.11.3
        # raises CancelledError in place of TimeoutError (gh-102780), and nobody is killed.
        await asyncio.wait_for(process.wait(), timeout_s)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class OwnListener:
    """An mrc-perf that listens for as long as the ``async with`` block lasts.

    Args:
        arguments: its options beyond where it listens.

    Attributes:
        url: where it is, once entered.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None
        self._said: deque[str] = deque(maxlen=_LINES_KEPT)
        self._reading: asyncio.Task[None] | None = None
        self._url: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def url(self) -> str:
        """Its URL, with the key to its lock if it has one."""
        return self._url.result()

    async def __aenter__(self) -> Self:
        """Start it and wait until it listens.

        Raises:
            ConfigError: it cannot be what was asked for; with its last words.
            PeerUnreachable: it ended otherwise.
            PeerSilent: it said nothing.
        """
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "mrc.perf", "--listen", "127.0.0.1:0", UNTIL_EOF, "--json", *self._arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            # Ctrl-C is for us: we still need it when we end.
            start_new_session=True,
        )
        try:
            self._reading = asyncio.ensure_future(self._read())
            await within(START_TIMEOUT_S, asyncio.shield(self._url), "its URL", "own listener")
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def _read(self) -> None:
        """Take what it says until it ends: a full pipe would stop it."""
        process = self._process
        if process is None or process.stderr is None:
            return
        while line := await process.stderr.readline():
            text = line.decode(errors="replace").strip()
            if text.startswith("mrc://") and not self._url.done():
                self._url.set_result(text)
            self._said.append(text)
        if not self._url.done():
            usage = await process.wait() == ExitCode.USAGE
            words = printable(" ".join(self._said), 500)
            error = ConfigError if usage else PeerUnreachable
            self._url.set_exception(error(f"own listener did not start: {words}"))

    async def _end(self) -> None:
        """End it, gently first."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        await end_or_kill(process, END_TIMEOUT_S)
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._url.done() and not self._url.cancelled():
            # Whoever waited has been told; nobody else will ask.
            self._url.exception()
