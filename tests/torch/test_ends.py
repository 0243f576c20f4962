"""The end of a job: in order, forgotten, by the death of a rank; and what is left then."""

import time

import pytest

from tests.collectives.cluster import free_port
from tests.torch import job
from tests.torch.job import Jobs
from tests.torch.worker import VICTIM

pytestmark = pytest.mark.slow

NOTICED_S_MAX = 20.0
"""The detection timeout, and patience for a busy machine."""


def test_destroying_leaves_nothing_behind(jobs: Jobs) -> None:
    """No thread, no socket, nothing under way; and one may begin again, with devices named."""
    for said in jobs.run("clean", 2, extra={"OTHER_PORT": str(free_port())}):
        assert said["sums"] == [2.0, 2.0]
        assert said["over"] is True
        assert said["threads"] == [["MainThread"]] * 2
        # torch's own store has some.
        assert said["sockets"][0] == said["sockets"][1]


def test_an_end_without_destroying_does_not_hang(jobs: Jobs) -> None:
    """Nor does anybody take it for death, nor is a callback cut off."""
    started_s = time.monotonic()
    jobs.run("forgotten", 2)
    assert time.monotonic() - started_s < job.DEADLINE_S


def test_rank_0_may_come_late_and_jobs_are_apart(jobs: Jobs) -> None:
    """Two jobs on one host at the same time, and one more on the port of the first."""
    port = free_port()
    late = {"LATE_S": "1.5"}
    with (
        jobs.processes("late_first", 2, port=port, extra=late) as one,
        jobs.processes("late_first", 2, extra=late) as other,
    ):
        ended = jobs.finish(one) + jobs.finish(other)
    assert [(each.code, each.said) for each in ended] == [(0, {"sum": 2.0})] * 4
    assert jobs.run("late_first", 2, port=port, extra={"LATE_S": "0"}) == [{"sum": 2.0}] * 2


@pytest.mark.parametrize("where", ["all_reduce", "barrier", "subgroup", "training"])
def test_the_death_of_a_rank_is_named_on_all_others(jobs: Jobs, where: str) -> None:
    """And their processes end; or go on in a group of those that are left."""
    with jobs.processes(f"dies_in_{where}", 4) as started:
        ended = jobs.finish(started)
    assert ended.pop(VICTIM).code == -9
    for code, said, errors in ended:
        assert code == 0, errors
        # In the group of two its members have other numbers.
        assert "rank 2 at" in said["said"] or "(rank 2 of the job)" in said["said"]
        assert "last heard" in said["said"]
        assert said["after_s"] < NOTICED_S_MAX
        assert said.get("left", 3) == 3


def test_how_long_a_rank_may_be_silent_is_set_by_a_variable(jobs: Jobs) -> None:
    """MRC_DETECT_S; a rank that stands still counts as dead."""
    with jobs.processes("falls_silent", 3, extra={"MRC_DETECT_S": "0.7"}) as started:
        others = [each for rank, each in enumerate(started) if rank != VICTIM]
        ended = jobs.finish(others)
    for code, said, errors in ended:
        assert code == 0, errors
        assert "rank 2 at" in said["said"]
        assert "silent on all paths for" in said["said"]
        assert said["after_s"] < 4, "that is nearly the default"


def test_leaving_does_not_wait_for_who_does_not_come(jobs: Jobs) -> None:
    """What is under way is given up after a while, and says so."""
    first, _ = jobs.run("leaves", 2)
    assert 0.5 <= first["after_s"] < 20
    assert "destroyed meanwhile" in first["said"]
