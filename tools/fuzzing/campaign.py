"""Runs targets in processes of their own, and reads what libFuzzer prints.

None outlives the run: whatever ends it ends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fuzzing import corpus
from fuzzing.targets import TARGETS

WORKER = (sys.executable, "-m", "fuzzing.worker")
INPUT_SECONDS_MAX = 30
"""An input that takes longer has found an endless loop, or what is as bad."""
MEMORY_MIB_MAX = 2048
STOP_TIMEOUT_S = 5.0
PROGRESS_S = 10.0
LINES_KEPT = 60
LINE_BYTES_MAX = 1 << 20
_LENGTH_CONTROL = 10
"""How soon libFuzzer tries longer inputs; its own 100 keeps to a few bytes for minutes."""

_PROGRESS = re.compile(
    r"#(?P<executions>\d+)\s+(?P<event>\w+)\s+cov: (?P<coverage>\d+) ft: (?P<features>\d+)"
    r" corp: (?P<corpus>\d+)/"
)
_STATISTIC = re.compile(r"stat::(?P<name>\w+):\s+(?P<value>\d+)")
_TRACEBACK = "=== Uncaught Python exception: ==="


@dataclass(slots=True)
class Result:
    """What became of one target.

    Attributes:
        target: its name.
        seconds: how long it ran.
        executions: inputs that were run.
        coverage: edges of the code under test that were reached.
        corpus: inputs that reach them all.
        new_inputs: those among them that this run found.
        peak_memory_mib: of its process.
        crashes: files with inputs that failed.
        failure: the last words of a process that failed; empty after a clean run.
        ended: the run came to its end, and was not cut short.
    """

    target: str
    seconds: float = 0.0
    executions: int = 0
    coverage: int = 0
    corpus: int = 0
    new_inputs: int = 0
    peak_memory_mib: int = 0
    crashes: list[str] = field(default_factory=list)
    failure: list[str] = field(default_factory=list)
    ended: bool = False

    @property
    def executions_per_s(self) -> float:
        """Executions a second."""
        return self.executions / self.seconds if self.seconds else 0.0

    @property
    def failed(self) -> bool:
        """Whether there was a crash, or the process went wrong in another way."""
        return bool(self.crashes or self.failure)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "executions_per_s": round(self.executions_per_s, 1)}

    def read(self, line: str) -> None:
        """Take what one line of libFuzzer says."""
        if progress := _PROGRESS.match(line):
            self.executions = int(progress["executions"])
            self.coverage = int(progress["coverage"])
            self.corpus = int(progress["corpus"])
        elif statistic := _STATISTIC.match(line):
            value = int(statistic["value"])
            match statistic["name"]:
                case "number_of_executed_units":
                    self.executions = value
                case "new_units_added":
                    self.new_inputs = value
                case "peak_rss_mb":
                    self.peak_memory_mib = value


async def fuzz(result: Result, seconds: int, tell: Callable[[str], None]) -> None:
    """Fuzz one target.

    Args:
        result: which one; filled in as it goes, so that a run that is cut short has told something.
        seconds: how long.
        tell: gets a line of progress now and then.
    """
    target = result.target
    begun_s = told_s = time.monotonic()
    last: deque[str] = deque(maxlen=LINES_KEPT)
    arguments = [
        f"-max_total_time={seconds}",
        f"-max_len={TARGETS[target].bytes_max}",
        f"-len_control={_LENGTH_CONTROL}",
        f"-timeout={INPUT_SECONDS_MAX}",
        f"-rss_limit_mb={MEMORY_MIB_MAX}",
        "-print_final_stats=1",
        f"-artifact_prefix={corpus.FOUND / target}{os.sep}",
        # What is new goes into the first folder.
        str(corpus.found(target)),
        str(corpus.kept(target)),
    ]
    async with _worker(target, arguments) as process:
        async for line in _lines(process):
            last.append(line)
            result.read(line)
            result.seconds = time.monotonic() - begun_s
            if time.monotonic() - told_s >= PROGRESS_S:
                told_s = time.monotonic()
                tell(progress_line(result))
        status = await process.wait()
    result.seconds = time.monotonic() - begun_s
    crashes = corpus.keep_crashes(target)
    result.crashes = [str(path.relative_to(corpus.ROOT)) for path in crashes]
    if status or crashes:
        result.failure = _last_words(list(last))
    result.ended = True


def progress_line(result: Result) -> str:
    """Return how far a target has come, in one line."""
    return (
        f"{result.target:<11}{result.seconds:>7.0f} s{result.executions:>12,} executions"
        f"{result.executions_per_s:>9,.0f}/s   coverage {result.coverage:>5,}"
        f"   {result.corpus:,} inputs"
    )


def _last_words(lines: list[str]) -> list[str]:
    """Return the traceback in what was printed last, or the end of it."""
    begin = next((i for i, line in enumerate(lines) if _TRACEBACK in line), max(len(lines) - 20, 0))
    end = next((i for i, line in enumerate(lines) if i > begin and "ERROR:" in line), len(lines))
    return [line for line in lines[begin:end] if line.strip()]


async def merge(target: str) -> tuple[int, int]:
    """Keep the fewest inputs that reach everything; return their number before and after.

    Raises:
        RuntimeError: the process failed; it says how.
    """
    before = len(list(corpus.kept(target).iterdir()))
    with tempfile.TemporaryDirectory(prefix="mrc-fuzz-merge-") as chosen:
        # Without counters: how often an edge is passed made six times as many inputs.
        arguments = ["-merge=1", "-use_counters=0", f"-timeout={INPUT_SECONDS_MAX}", chosen]
        arguments += [str(corpus.kept(target)), str(corpus.found(target))]
        async with _worker(target, arguments) as process:
            said = [line async for line in _lines(process)]
            if await process.wait():
                raise RuntimeError("\n".join(said[-LINES_KEPT:]))
        corpus.replace_kept(target, Path(chosen))
    return before, len(list(corpus.kept(target).iterdir()))


@contextlib.asynccontextmanager
async def _worker(target: str, arguments: list[str]) -> AsyncIterator[Process]:
    """Start a worker with a temporary folder of its own; both are gone afterwards."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder with a name nobody can guess is made in it
    where = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="mrc-fuzz-", dir=where) as folder:
        process = await asyncio.create_subprocess_exec(
            *WORKER,
            target,
            *arguments,
            stdout=PIPE,
            stderr=STDOUT,
            limit=LINE_BYTES_MAX,
            # Ctrl-C comes from here alone, so that it comes once.
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(corpus.ROOT), str(corpus.ROOT / "tools")]),
                "PYTHONHASHSEED": "0",
                "TMPDIR": folder,
            },
        )
        try:
            yield process
        finally:
            await _stop(process)


async def _lines(process: Process) -> AsyncIterator[str]:
    """Yield what a process prints."""
    assert process.stdout is not None
    with contextlib.suppress(ValueError):  # a line without end: there is nothing to read in it
        while line := await process.stdout.readline():
            yield line.decode(errors="replace").rstrip("\n")


async def _stop(process: Process) -> None:
    """End a worker and all it started: by asking, then by force."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            # Not asyncio.timeout: where a cancelled task cleans up, that of Python before 3.11.3
            # raises CancelledError in place of TimeoutError (gh-102780), and nobody is killed.
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
