"""`mrc.torch` beside gloo: the same results, groups, training, and what is refused."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _make_nccl_premul_sum
from torch.distributed import HashStore  # type: ignore[attr-defined]

import mrc.torch
from mrc.errors import ConfigError
from mrc.torch.tensors import Flat
from tests.collectives.cluster import free_port
from tests.torch import job

pytestmark = pytest.mark.slow

VICTIM = 2
NOTICED_S_MAX = 20.0
"""The detection timeout, and patience for a busy machine."""


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_operation_gives_what_gloos_gives(ranks: int) -> None:
    """Integers bit for bit, floats within the usual tolerance; of 0, 1, 7 and 1000 elements."""
    for said in job.run("everything", ranks):
        assert said["wrong"] == []
        assert said["checks"] > 300


@pytest.mark.parametrize("scenario", ["data_parallel", "fully_sharded"])
def test_training_ends_with_the_parameters_of_gloo(scenario: str) -> None:
    """After 20 steps of a small model, whichever way it is spread over the ranks."""
    ours, theirs = (job.run(scenario, 2, extra={"BACKEND": name}) for name in ("mrc", "gloo"))
    assert ours[0] == ours[1]
    for form, parameters in ours[0].items():
        assert parameters == pytest.approx(theirs[0][form], rel=1e-4, abs=1e-6), form


def test_groups_of_some_ranks() -> None:
    """They overlap, go without rank 0, have an order of their own, and stand beside gloo's."""
    first, second, third = job.run("groups", 3)
    assert first == {"sum 0": 111, "sum 1": 11}
    assert second == {"sum 0": 111, "sum 1": 11, "sum 2": 110, "sum 3": 110, "beside gloo": 3}
    assert third == {"sum 0": 111, "sum 2": 110, "sum 3": 110, "beside gloo": 3}


def test_operations_under_way_at_once() -> None:
    """They end in order, futures go on, and a wait that is too short ends nothing."""
    ranks = 3
    for rank, said in enumerate(job.run("asynchronous", ranks)):
        assert said["sums"] == [ranks * float(i) for i in range(8)]
        assert said["then"] == ranks * 7.0 * 2
        assert said["done"] == [True] * 8
        if rank == 0:
            assert "all_reduce is not over after 0.05 s" in said["early"]
            assert said["early is over"] is False


def test_a_group_has_a_timeout_of_its_own() -> None:
    """The error names who did not come."""
    for rank, said in enumerate(job.run("late", 3)):
        if rank != VICTIM:
            assert re.search("not over within 500.0 ms; waiting for rank|gave up", said["said"])


def test_destroying_leaves_nothing_behind() -> None:
    """No thread, no socket; and one may begin again, with devices named as well."""
    for said in job.run("clean", 2, extra={"OTHER_PORT": str(free_port())}):
        assert said["sums"] == [2.0, 2.0]
        assert all("mrc-collectives" not in names for names in said["threads"])
        # torch's own store has some.
        assert said["sockets"][0] == said["sockets"][1]


def test_an_end_without_destroying_does_not_hang() -> None:
    """Nor does anybody take it for death."""
    started_s = time.monotonic()
    job.run("forgotten", 2)
    assert time.monotonic() - started_s < job.DEADLINE_S


def test_rank_0_may_come_late_and_jobs_are_apart() -> None:
    """Two jobs on one host at the same time, and one more on the port of the first."""
    port = free_port()
    late = {"LATE_S": "2"}
    with (
        job.processes("late_first", 2, port=port, extra=late) as one,
        job.processes("late_first", 2, extra=late) as other,
    ):
        ended = job.finish(one) + job.finish(other)
    assert [(each.code, each.said) for each in ended] == [(0, {"sum": 2.0})] * 4
    assert job.run("late_first", 2, port=port, extra={"LATE_S": "0"}) == [{"sum": 2.0}] * 2


@pytest.mark.parametrize("where", ["all_reduce", "barrier", "subgroup"])
def test_the_death_of_a_rank_is_named_on_all_others(where: str) -> None:
    """And their processes end."""
    with job.processes(f"dies_in_{where}", 4) as started:
        ended = job.finish(started)
    for rank, (code, said, errors) in enumerate(ended):
        if rank == VICTIM:
            continue
        assert code == 0, errors
        # In the group of two its members have other numbers.
        named = "rank 0" if where == "subgroup" and rank == 3 else "rank 2"
        assert named in said["said"]
        assert "last heard" in said["said"]
        assert said["cause"] == "RankFailed"
        assert said["after_s"] < NOTICED_S_MAX


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of one rank, in this process."""
    dist.init_process_group("mrc", rank=0, world_size=1, store=HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_group_of_one_rank_does_what_there_is_to_do() -> None:
    """Nothing is sent, and everything is where it belongs."""
    tensor = torch.arange(5.0)
    dist.all_reduce(tensor)
    into = torch.empty(5)
    dist.all_gather_into_tensor(into, tensor)
    dist.reduce_scatter_tensor(into, tensor)
    dist.barrier()
    assert torch.equal(into, torch.arange(5.0))


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize(
    ("what", "text"),
    [
        (lambda: Flat([torch.ones(2, dtype=torch.complex64)]), "complex64"),
        (lambda: dist.broadcast(torch.eye(3).to_sparse(), 0), "sparse"),
        (lambda: dist.broadcast(torch.ones(2, device="meta"), 0), "on meta"),
        (
            lambda: dist.broadcast(torch.quantize_per_tensor(torch.ones(2), 1, 0, torch.qint8), 0),
            "quantized",
        ),
        (lambda: dist.recv(torch.ones(1)), "any source"),
        (lambda: dist.all_reduce(torch.ones(1, dtype=torch.float8_e5m2)), "float8_e5m2"),
        (lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BXOR), "bit_xor of float32"),
        (
            lambda: dist.all_reduce(torch.ones(2), _make_nccl_premul_sum(2.0)),
            "PREMUL_SUM",
        ),
        (lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG), "bools"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_cannot_be_done_is_refused_by_name(what: Any, text: str) -> None:
    """The text says what it is, and what to do instead."""
    with pytest.raises((ConfigError, RuntimeError), match=text):
        what()


def test_the_rest_of_the_package_does_without_torch() -> None:
    """It is an extra, and takes seconds to import."""
    code = (
        "import sys, mrc, mrc.collectives, mrc.perf.command, mrc.cli.entry;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_the_name_of_the_backend() -> None:
    """`init_process_group` knows it as soon as the module is imported."""
    assert dist.Backend("mrc") == mrc.torch.BACKEND == "mrc"
