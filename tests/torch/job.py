"""All ranks of a torch job, each a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.collectives.cluster import free_port

WORKER = Path(__file__).with_name("worker.py")
DEADLINE_S = 90.0
"""For everything: an interpreter with torch takes seconds to start on a busy machine."""


class Ended(NamedTuple):
    """What became of a rank."""

    code: int
    said: dict[str, Any]
    errors: str


@contextlib.contextmanager
def processes(
    scenario: str, ranks: int, *, port: int | None = None, extra: Mapping[str, str] | None = None
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start all ranks; what is left of them at the end is killed."""
    root = str(WORKER.parents[2])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    given = {"WORLD_SIZE": str(ranks), "MASTER_PORT": str(port or free_port())}
    given |= {"MASTER_ADDR": "127.0.0.1", "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo"}
    started: list[subprocess.Popen[str]] = []
    try:
        for rank in range(ranks):
            process = subprocess.Popen(
                [sys.executable, "-W", "error::ResourceWarning", str(WORKER), scenario],
                env=os.environ | given | {"RANK": str(rank)} | dict(extra or {}),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            started.append(process)
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def finish(started: list[subprocess.Popen[str]]) -> list[Ended]:
    """Wait for all ranks."""
    deadline = time.monotonic() + DEADLINE_S
    ended = []
    for process in started:
        said, errors = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
        ended.append(Ended(process.returncode, json.loads(said) if said else {}, errors))
    return ended


def run(scenario: str, ranks: int, **settings: Any) -> list[dict[str, Any]]:
    """Run a scenario, and return what all ranks said, once all of them ended well."""
    with processes(scenario, ranks, **settings) as started:
        ended = finish(started)
    for rank, (code, _, errors) in enumerate(ended):
        assert code == 0, f"rank {rank}: {errors[-3000:]}"
    return [each.said for each in ended]
