"""All ranks of a torch job, each a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.collectives.cluster import free_port

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 90.0
"""For one job, on a busy machine."""
BAD_SIGNS = ("ResourceWarning", "Traceback", "never retrieved", "was destroyed", "ProcessGroup has")
"""On standard error of a rank that ended well."""


class Ended(NamedTuple):
    """What became of a rank."""

    code: int
    said: dict[str, Any]
    errors: str


class Rank(NamedTuple):
    """A process that was started."""

    pid: int
    said: Path
    errors: Path


class Jobs:
    """Starts jobs; torch, which takes seconds to import, is imported once for all of them."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._nursery = subprocess.Popen(
            [sys.executable, "-W", "error::ResourceWarning", "-m", "tests.torch.nursery"],
            env=os.environ | {"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._heard = b""
        self._codes: dict[int, int] = {}
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._nursery.kill()
        self._nursery.communicate()
        self._folder.cleanup()

    def _start(self, scenario: str, environment: Mapping[str, str]) -> Rank:
        self._count += 1
        base = Path(self._folder.name) / str(self._count)
        said, errors = base.with_suffix(".said"), base.with_suffix(".errors")
        wanted = {"scenario": scenario, "environment": dict(environment)}
        wanted |= {"said": str(said), "errors": str(errors)}
        self._ask(wanted)
        deadline_s = time.monotonic() + DEADLINE_S
        while "code" in (message := self._hear(deadline_s)):
            pass
        return Rank(message["pid"], said, errors)

    def _ask(self, wanted: Mapping[str, Any]) -> None:
        assert self._nursery.stdin is not None
        self._nursery.stdin.write(json.dumps(wanted).encode() + b"\n")

    def _hear(self, deadline_s: float) -> dict[str, Any]:
        assert self._nursery.stdout is not None
        while b"\n" not in self._heard:
            left_s = max(0, deadline_s - time.monotonic())
            ready, _, _ = select.select([self._nursery.stdout], [], [], left_s)
            if not ready:
                raise TimeoutError("a rank does not end")
            said = self._nursery.stdout.read(1 << 16)
            if not said:
                raise EOFError("the nursery has ended")
            self._heard += said
        line, _, self._heard = self._heard.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        if "code" in message:
            self._codes[message["pid"]] = message["code"]
        return message

    @contextlib.contextmanager
    def processes(
        self,
        scenario: str,
        ranks: int,
        *,
        port: int | None = None,
        extra: Mapping[str, str] | None = None,
    ) -> Iterator[list[Rank]]:
        """Start all ranks; what is left of them at the end is killed."""
        given = {"WORLD_SIZE": str(ranks), "MASTER_PORT": str(port or free_port())}
        given |= {"MASTER_ADDR": "127.0.0.1"} | dict(extra or {})
        started: list[Rank] = []
        try:
            started.extend(
                self._start(scenario, given | {"RANK": str(rank)}) for rank in range(ranks)
            )
            yield started
        finally:
            for each in started:
                self.kill(each)

    def kill(self, rank: Rank) -> None:
        """End a rank without a warning, if it has not ended yet."""
        if rank.pid not in self._codes:
            self._ask({"kill": rank.pid})
            self._wait(rank, time.monotonic() + DEADLINE_S)

    def _wait(self, rank: Rank, deadline_s: float) -> int:
        while rank.pid not in self._codes:
            self._hear(deadline_s)
        return self._codes[rank.pid]

    def finish(self, started: list[Rank]) -> list[Ended]:
        """Wait for all ranks."""
        deadline_s = time.monotonic() + DEADLINE_S
        ended = []
        for rank in started:
            code = self._wait(rank, deadline_s)
            said = rank.said.read_text(encoding="utf-8")
            errors = rank.errors.read_text(encoding="utf-8")
            ended.append(Ended(code, json.loads(said) if said else {}, errors))
        return ended

    def run(self, scenario: str, ranks: int, **settings: Any) -> list[dict[str, Any]]:
        """Run a scenario, and return what all ranks said, once all of them ended well."""
        with self.processes(scenario, ranks, **settings) as started:
            ended = self.finish(started)
        for rank, (code, _, errors) in enumerate(ended):
            assert code == 0, f"rank {rank}: {errors[-3000:]}"
            assert not any(sign in errors for sign in BAD_SIGNS), f"rank {rank}: {errors[-3000:]}"
        return [each.said for each in ended]
