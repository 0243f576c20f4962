"""The other ranks of a run, as processes of this host that end with it, whatever happens."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn, Self

from mrc.cli.failures import ExitCode
from mrc.errors import ConfigError, MrcError, TransportError
from mrc.perf.own_listener import UNTIL_EOF, end_or_kill
from mrc.perf.session import COMMAND
from mrc.text import printable

END_TIMEOUT_S = 10.0
"""For a rank to end by itself once all is done."""
STOP_TIMEOUT_S = 3.0
"""For one that was told to end."""
_LOST_ANOTHER = (ExitCode.LOST, ExitCode.NOT_REACHED)
_ANOTHER_FAILED = re.compile(r"rank (?P<rank>\d+) at \S+ failed: ")
"""How the message of `mrc.collectives.RankFailed` begins."""
_LINES_KEPT = 20
_WORDS_CHARACTERS = 500


class RankEnded(TransportError):
    """A rank that was started here ended, or was lost, before the run did.

    Attributes:
        rank: its number.
    """

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


@dataclass(slots=True, eq=False)
class _Rank:
    """A process, and what it said last on standard error."""

    rank: int
    process: asyncio.subprocess.Process
    said: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES_KEPT))
    reading: asyncio.Task[None] | None = None

    async def read(self) -> None:
        """Take what it says until it ends: a full pipe would stop it."""
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.said.append(line.decode(errors="replace").strip().removeprefix(f"{COMMAND}: "))

    async def failure(self) -> MrcError:
        """Tell why it ended."""
        code = await self.process.wait()
        if self.reading is not None:
            # Whoever it has started may still hold its standard error.
            await asyncio.wait((self.reading,), timeout=STOP_TIMEOUT_S)
        words = printable(" ".join(self.said), _WORDS_CHARACTERS)
        about = _ANOTHER_FAILED.match(self.said[-1]) if self.said else None
        if code in _LOST_ANOTHER and about is not None and int(about["rank"]) != self.rank:
            # It has seen the failure of another one, which is all there is to say.
            return RankEnded(printable(self.said[-1], _WORDS_CHARACTERS), int(about["rank"]))
        who = f"rank {self.rank}, process {self.process.pid},"
        if code == ExitCode.USAGE:
            return ConfigError(f"{who} could not be what was asked for: {words}")
        how = f"was killed by {_name(-code)}" if code < 0 else f"ended with status {code}"
        return RankEnded(f"{who} {how}" + (f": {words}" if words else ""), self.rank)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class OwnRanks:
    """Processes that are ranks for as long as the ``async with`` block lasts.

    Args:
        environments: of each process: rank 1 first.
        words: options that all of them get.
    """

    def __init__(self, environments: Sequence[Mapping[str, str]], words: Sequence[str]) -> None:
        self._environments = environments
        self._words = words
        self._ranks: list[_Rank] = []

    async def __aenter__(self) -> Self:
        try:
            for rank, environment in enumerate(self._environments, 1):
                self._ranks.append(await self._start(rank, environment))
        except BaseException:
            await self._stop()
            raise
        return self

    async def _start(self, rank: int, environment: Mapping[str, str]) -> _Rank:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mrc.perf", UNTIL_EOF, *self._words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
            # Ctrl-C is for us: we end them.
            start_new_session=True,
        )
        started = _Rank(rank, process)
        started.reading = asyncio.ensure_future(started.read())
        return started

    async def watch(self) -> NoReturn:
        """Wait until one of them has failed.

        Raises:
            ConfigError: it could not be what was asked for.
            RankEnded: it ended otherwise.
        """
        ends = {asyncio.ensure_future(each.process.wait()): each for each in self._ranks}
        try:
            while True:
                running = [end for end in ends if not end.done()]
                if running:
                    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                failed = [each for end, each in ends.items() if end.done() and end.result()]
                if failed:
                    # Who lost another rank has seen the failure, and is not its cause.
                    failed.sort(key=lambda each: each.process.returncode in _LOST_ANOTHER)
                    raise await failed[0].failure()
                if not running:
                    await asyncio.get_running_loop().create_future()
        finally:
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            await self._stop()
            return
        try:
            await self._ended()
        finally:
            await self._stop()

    async def _ended(self) -> None:
        """Wait for ranks that are done.

        Raises:
            RankEnded: one failed in the end, or did not end.
        """
        for each in self._ranks:
            try:
                async with asyncio.timeout(END_TIMEOUT_S):
                    code = await each.process.wait()
            except TimeoutError as error:
                raise RankEnded(
                    f"rank {each.rank}, process {each.process.pid}, did not end within"
                    f" {END_TIMEOUT_S:g} s after all was done, and was killed",
                    each.rank,
                ) from error
            if code:
                raise await each.failure()

    async def _stop(self) -> None:
        """End all that still run: by asking, then by force."""
        await asyncio.gather(*map(_stop, self._ranks))


async def _stop(rank: _Rank) -> None:
    process = rank.process
    if process.stdin is not None:
        process.stdin.close()
    with suppress(ProcessLookupError):
        if process.returncode is None:
            process.terminate()
    await end_or_kill(process, STOP_TIMEOUT_S)
    if rank.reading is not None:
        rank.reading.cancel()
        await asyncio.gather(rank.reading, return_exceptions=True)
