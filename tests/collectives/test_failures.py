"""A rank dies: every other rank raises in time, names it, ends, and can go on with who is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.collectives.cluster import free_port

pytestmark = pytest.mark.slow

WORKER = Path(__file__).with_name("worker.py")
RANKS = 4
VICTIM = 2
DEADLINE_S = 60.0
"""For everything, with four interpreters that start on a busy machine."""
NOTICED_S_MAX = 10.0
"""From the start of a scenario: what it does, the detection timeout, and patience."""


class Job:
    """The processes of all ranks."""

    def __init__(
        self, scenario: str, *, ranks: int = RANKS, port: int | None = None, **settings: object
    ) -> None:
        root = str(WORKER.parents[2])
        path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
        port = port or free_port()
        self.processes = []
        for rank in range(ranks):
            names = {"RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port, **settings}
            given = {name: str(value) for name, value in names.items()}
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, str(WORKER), scenario],
                    env=os.environ | given | {"MASTER_ADDR": "127.0.0.1", "PYTHONPATH": path},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def finish(self, *, frozen: int | None = None) -> list[tuple[int, list[dict[str, Any]], str]]:
        """Wait for all, and return exit code, what was said and standard error of each."""
        deadline = time.monotonic() + DEADLINE_S
        ended: list[tuple[int, list[dict[str, Any]], str]] = []
        try:
            for rank, process in enumerate(self.processes):
                if rank == frozen:
                    ended.append((0, [], ""))
                    continue
                said, errors = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
                lines = [json.loads(line) for line in said.splitlines()]
                ended.append((process.returncode, lines, errors))
        finally:
            for process in self.processes:
                process.kill()
                process.communicate()
        return ended


@pytest.mark.parametrize("scenario", ["before", "inside", "after", "barrier", "silent", "subgroup"])
def test_all_others_name_the_dead_rank_and_go_on(scenario: str) -> None:
    """Killed before, in and after a collective, in a sub-group, in a barrier; or just silent."""
    ended = Job(scenario).finish(frozen=VICTIM if scenario == "silent" else None)
    for rank, (code, said, errors) in enumerate(ended):
        if rank == VICTIM:
            assert code == -signal.SIGKILL or scenario == "silent"
            continue
        assert (code, errors) == (0, "")
        failure, left = said[-2:]
        named = 0 if scenario == "subgroup" and rank == 3 else VICTIM
        assert failure["failed"] == named
        assert failure["after_s"] < NOTICED_S_MAX
        assert failure["address"].startswith("127.0.0.1:")
        assert "last heard" in failure["text"]
        assert left == {"left": 3, "sum": 6, "ranks": [0, 1, 3]}


def test_the_lowest_rank_may_die_as_well() -> None:
    """The next one takes over the hearts, and the others go on."""
    ended = Job("first").finish()
    for code, said, errors in ended[1:]:
        assert (code, errors) == (0, "")
        assert said[0]["failed"] == 0
        assert said[1] == {"left": 3, "sum": 6, "ranks": [1, 2, 3]}


def test_the_next_lowest_finds_out_at_once_who_died_with_the_lowest() -> None:
    """Nobody listens there any more: the detection timeout is for who is silent."""
    ended = Job("first_and_victim", DETECT_S=20).finish()
    for rank in (1, 3):
        code, said, errors = ended[rank]
        assert (code, errors) == (0, "")
        assert said[0]["failed"] in {0, VICTIM}
        assert said[1] == {"left": 2, "sum": 3, "ranks": [1, 3]}


def test_a_rank_that_ends_without_closing_does_not_hang() -> None:
    """Its end says goodbye, and nobody raises who does not need it."""
    for code, said, errors in Job("exits").finish():
        assert (code, errors) == (0, "")
        assert said in ([], [{"done": True}])


def test_a_restart_on_the_same_port() -> None:
    """As soon as the last processes are gone, the next start finds itself and not them."""
    port = free_port()
    for _ in range(3):
        for code, said, errors in Job("restarts", ranks=2, port=port).finish():
            assert (code, errors) == (0, "")
            assert said == [{"sum": 3}, {"done": True}]


def test_two_jobs_on_one_host() -> None:
    """At the same time, on ports of their own."""
    jobs = [Job("restarts", ranks=2) for _ in range(2)]
    for job in jobs:
        for code, said, errors in job.finish():
            assert (code, errors) == (0, "")
            assert said == [{"sum": 3}, {"done": True}]
