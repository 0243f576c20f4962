"""Groups of some ranks, operations under way at once, and time limits."""

import re

import pytest

from tests.torch.job import Jobs
from tests.torch.worker import VICTIM

pytestmark = pytest.mark.slow


def test_groups_of_some_ranks(jobs: Jobs) -> None:
    """They overlap, go without rank 0, have an order of their own, and stand beside gloo's."""
    first, second, third = jobs.run("groups", 3)
    for said in (first, second):
        text = said.pop("missing")
        assert re.search(r"rank 2 said nothing through torch's store within 1 s", text), text
    del third["missing"]
    assert first == {"sum 0": 111, "sum 1": 11}
    assert second == {"sum 0": 111, "sum 1": 11, "sum 2": 110, "sum 3": 110, "beside gloo": 3}
    assert third == {"sum 0": 111, "sum 2": 110, "sum 3": 110, "beside gloo": 3}


def test_operations_under_way_at_once(jobs: Jobs) -> None:
    """They end in order, futures go on, and a wait that is too short ends nothing."""
    ranks = 3
    for rank, said in enumerate(jobs.run("asynchronous", ranks)):
        assert said["sums"] == [ranks * float(i) for i in range(8)]
        assert said["then"] == ranks * 7.0 * 2
        assert said["nested"] == ranks * ranks * 7.0
        assert "list index out of range" in said["failing"]
        assert said["done"] == [True] * 8
        if rank == 0:
            assert "all_reduce is not over after 0.05 s" in said["early"]
            assert said["early is over"] is False


def test_a_group_has_a_timeout_of_its_own(jobs: Jobs) -> None:
    """The error names who did not come; the group is of no use then, and others are."""
    for rank, said in enumerate(jobs.run("late", 3)):
        assert said["sum"] == 3
        if rank != VICTIM:
            for text in (said["said"], said["again"]):
                assert re.search("not over within 500.0 ms; waiting for rank|gave up", text), text
