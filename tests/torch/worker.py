"""What one rank of a torch job does in a test: RANK and the like say who it is, as with torchrun.

What a scenario returns is told to the test.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import mrc.torch
from mrc.torch import worlds
from tests.torch import grid, training

VICTIM = 2


def everything() -> dict[str, Any]:
    """Every operation, beside gloo in the same processes."""
    gloo = dist.new_group(backend="gloo")
    wrong = grid.differences(gloo) + grid.lacking()
    return {"wrong": wrong, "checks": grid.COUNT[0]}


def trained() -> dict[str, Any]:
    """Train in every form, with this group and with gloo's."""
    gloo = dist.new_group(backend="gloo")
    world = dist.group.WORLD
    assert world is not None
    return {name: [form(world), form(gloo), form(world)] for name, form in training.FORMS.items()}


def groups() -> dict[str, Any]:
    """Sub-groups that overlap, one without rank 0, and one beside a default group of gloo."""
    rank, size = dist.get_rank(), dist.get_world_size()
    found: dict[str, Any] = {}
    every = [list(range(size)), [0, 1], [1, 2], [2, 1]]
    for number, members in enumerate(every):
        group = dist.new_group(members, timeout=timedelta(seconds=30))
        if rank in members:
            tensor = torch.tensor([10**rank])
            dist.all_reduce(tensor, group=group)
            found[f"sum {number}"] = int(tensor)
            dist.broadcast(tensor, src=members[-1], group=group)
            dist.destroy_process_group(group)
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    beside = dist.new_group([1, 2], backend="mrc")
    if rank in {1, 2}:
        tensor = torch.tensor([rank])
        dist.all_reduce(tensor, group=beside)
        found["beside gloo"] = int(tensor)
    found["missing"] = _missing(size)
    return found


def _missing(size: int) -> str:
    """Make a group that the last rank does not come to."""
    if dist.get_rank() < size - 1:
        try:
            dist.new_group(list(range(size)), backend="mrc", timeout=timedelta(seconds=1))
        except mrc.MrcError as error:
            return str(error)
    return ""


def asynchronous() -> dict[str, Any]:
    """Operations under way at once end in order, each with its own result."""
    tensors = [torch.full((50_000,), float(i)) for i in range(8)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    last = works[-1].get_future()
    doubled = last.then(lambda done: done.value()[0][0].item() * 2)
    failing = last.then(lambda done: done.value()[1])
    nested = last.then(_reduce_once_more)
    for work in works:
        work.wait()
    found: dict[str, Any] = {
        "sums": [tensor[0].item() for tensor in tensors],
        "then": doubled.wait(),
        "nested": nested.wait(),
        "done": [work.is_completed() and work.is_success() for work in works],
        "failing": _error_of(failing.wait),
    }
    # What a callback did wrong is no concern of the group.
    dist.barrier()
    if dist.get_rank() == 0:
        alone = dist.all_reduce(torch.ones(1), async_op=True)
        found["early"] = _error_of(lambda: alone.wait(timedelta(milliseconds=50)))
        found["early is over"] = alone.is_completed()
        dist.send(torch.ones(1), 1)
        alone.wait()
    else:
        if dist.get_rank() == 1:
            dist.recv(torch.ones(1), 0)
        dist.all_reduce(torch.ones(1))
    return found


def _reduce_once_more(done: Any) -> float:
    """Wait, in a callback, for another operation, as PowerSGD does."""
    tensor = done.value()[0][:10].clone()
    again = dist.all_reduce(tensor, async_op=True).get_future()
    return float(again.wait()[0][0])


def _error_of(doing: Callable[[], Any]) -> str:
    try:
        doing()
    except RuntimeError as error:
        return str(error)
    return ""


def late() -> dict[str, Any]:
    """An operation that another rank does not come to says who is missing, after its own time."""
    dist.barrier()
    group = dist.new_group(timeout=timedelta(seconds=0.5))
    found = {}
    if dist.get_rank() != VICTIM:
        found["said"] = _error_of(lambda: dist.all_reduce(torch.ones(1), group=group))
        found["again"] = _error_of(lambda: dist.barrier(group=group))
    # Other groups go on.
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return found | {"sum": tensor.item()}


def clean() -> dict[str, Any]:
    """Begin and end twice; what is left?"""
    found: dict[str, Any] = {"sums": [], "threads": [], "sockets": []}
    for turn in range(2):
        if turn:
            # torch's own store of the first turn may be there a moment longer.
            os.environ["MASTER_PORT"] = os.environ["OTHER_PORT"]
            dist.init_process_group("cpu:mrc,cuda:nccl")
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        found["sums"].append(tensor[0].item())
        under_way = dist.all_reduce(torch.ones(100_000), async_op=True)
        dist.destroy_process_group()
        assert under_way is not None
        found["over"] = under_way.is_success()
        gc.collect()
        found["threads"].append([thread.name for thread in threading.enumerate()])
        found["sockets"].append(_sockets())
    return found


def _sockets() -> int:
    """Return how many this process has open."""
    return sum(_is_socket(entry) for entry in Path("/proc/self/fd").iterdir())


def _is_socket(entry: Path) -> bool:
    try:
        return str(entry.readlink()).startswith("socket:")
    except FileNotFoundError:  # the folder's own descriptor
        return False


def forgotten() -> dict[str, Any]:
    """End without destroying anything: rank 0 in the middle of something, both in a callback."""
    last = dist.all_reduce(torch.ones(3), async_op=True)
    assert last is not None
    # A sleeping thread that wakes in C++ when the interpreter has ended would abort the process.
    last.get_future().then(lambda _: time.sleep(0.5))
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        assert work is not None
        work.get_future().then(lambda done: done.value())
    last.wait()
    return {}


def late_first() -> dict[str, Any]:
    """Do something, although rank 0 came late."""
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return {"sum": tensor.item()}


def dies_in_all_reduce() -> dict[str, Any]:
    """The victim dies while all go round and round."""

    def step() -> None:
        dist.all_reduce(torch.ones(1 << 20))

    return _dying(step, turns=3)


def dies_in_barrier() -> dict[str, Any]:
    """The others wait in a barrier when the victim dies; then they make a group without it."""
    found = _dying(dist.barrier, turns=1)
    left = [rank for rank in range(dist.get_world_size()) if rank != VICTIM]
    group = dist.new_group(left, use_local_synchronization=True)
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=group)
    return found | {"left": tensor.item()}


def dies_in_subgroup() -> dict[str, Any]:
    """The victim and rank 3 are in a group of their own."""
    group = dist.new_group([VICTIM, 3])

    def step() -> None:
        if dist.get_rank() in {VICTIM, 3}:
            dist.all_reduce(torch.ones(10), group=group)
        else:
            dist.barrier()

    return _dying(step, turns=1)


def dies_in_training() -> dict[str, Any]:
    """The victim dies between two steps of DistributedDataParallel."""
    return _dying(training.steps_of(dist.group.WORLD), turns=3)


def falls_silent() -> dict[str, Any]:
    """The victim stands still, as a machine that is gone."""
    return _dying(dist.barrier, turns=1, by=signal.SIGSTOP)


def _dying(
    step: Callable[[], None], *, turns: int, by: signal.Signals = signal.SIGKILL
) -> dict[str, Any]:
    dist.barrier()
    for turn in range(1000):
        if turn == turns and dist.get_rank() == VICTIM:
            os.kill(os.getpid(), by)
        started_s = time.monotonic()
        try:
            step()
        except RuntimeError as error:
            return {"said": str(error), "after_s": time.monotonic() - started_s}
    return {}


def leaves() -> dict[str, Any]:
    """Rank 0 leaves while an operation is under way to which rank 1 does not come."""
    store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no other way
    if dist.get_rank():
        store.wait(["left"])
        return {}
    vars(worlds)["CLOSE_TIMEOUT_S"] = 0.5
    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert work is not None
    started_s = time.monotonic()
    dist.destroy_process_group()
    after_s = time.monotonic() - started_s
    store.set("left", "")
    return {"after_s": after_s, "said": str(work.exception())}


SCENARIOS: dict[str, Callable[[], dict[str, Any]]] = {
    each.__name__: each
    for each in (
        everything,
        trained,
        groups,
        asynchronous,
        late,
        clean,
        forgotten,
        late_first,
        dies_in_all_reduce,
        dies_in_barrier,
        dies_in_subgroup,
        dies_in_training,
        falls_silent,
        leaves,
    )
}


def main(scenario: str) -> dict[str, Any]:
    """Join, do it, and end."""
    torch.set_num_threads(1)
    if scenario == "late_first" and os.environ["RANK"] == "0":
        time.sleep(float(os.environ["LATE_S"]))
    dist.init_process_group(mrc.torch.BACKEND)
    found = SCENARIOS[scenario]()
    if dist.is_initialized() and scenario != "forgotten":
        dist.destroy_process_group()
    return found
