"""One rank of a torch job, for tests.

    python worker.py SCENARIO

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say who it is, as torchrun does. What it found is one
JSON object on standard output.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import mrc.torch
from tests.torch import grid

VICTIM = 2
STEPS = 20


def everything() -> dict[str, Any]:
    """Every operation, beside gloo in the same processes."""
    gloo = dist.new_group(backend="gloo")
    return {"wrong": grid.differences(gloo), "checks": grid.COUNT[0]}


def model() -> nn.Module:
    """Return a small model, the same on all ranks."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(20, 33), nn.ReLU(), nn.Linear(33, 5))


def train(wrapped: nn.Module) -> None:
    """Take some steps, on data of this rank's own."""
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for step in range(STEPS):
        torch.manual_seed(1000 * step + dist.get_rank())
        optimizer.zero_grad()
        wrapped(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()


def flat(parameters: Any) -> list[float]:
    """Return all numbers of a model."""
    whole = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in parameters]
    return [float(number) for each in whole for number in each.detach().reshape(-1)]


def data_parallel() -> dict[str, Any]:
    """Train a replica; once more with gradients sent in half the bits."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(model())
    train(wrapped)
    half = DistributedDataParallel(model())
    half.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(half)
    return {"plain": flat(wrapped.parameters()), "half": flat(half.parameters())}


def fully_sharded() -> dict[str, Any]:
    """Train shards, in the older and the newer form."""
    from torch.distributed.fsdp import (
        FullyShardedDataParallel,
        fully_shard,
    )

    older = FullyShardedDataParallel(model(), device_id=torch.device("cpu"))
    train(older)
    with FullyShardedDataParallel.summon_full_params(older):
        first = flat(older.parameters())
    newer = model()
    for layer in newer.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(newer)
    train(newer)
    return {"older": first, "newer": flat(newer.parameters())}


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
    return found


def asynchronous() -> dict[str, Any]:
    """Operations under way at once end in order, each with its own result."""
    tensors = [torch.full((50_000,), float(i)) for i in range(8)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    doubled = works[-1].get_future().then(lambda done: done.value()[0][0].item() * 2)
    for work in works:
        work.wait()
    found: dict[str, Any] = {
        "sums": [tensor[0].item() for tensor in tensors],
        "then": doubled.wait(),
        "done": [work.is_completed() and work.is_success() for work in works],
    }
    if dist.get_rank() == 0:
        alone = dist.all_reduce(torch.ones(1), async_op=True)
        try:
            alone.wait(timedelta(milliseconds=50))
        except RuntimeError as error:
            found["early"] = str(error)
        found["early is over"] = alone.is_completed()
        dist.send(torch.ones(1), 1)
        alone.wait()
    else:
        if dist.get_rank() == 1:
            dist.recv(torch.ones(1), 0)
        dist.all_reduce(torch.ones(1))
    return found


def late() -> dict[str, Any]:
    """An operation that another rank does not come to says who is missing."""
    group = dist.new_group(timeout=timedelta(seconds=0.5))
    said = ""
    if dist.get_rank() != VICTIM:
        try:
            dist.all_reduce(torch.ones(1), group=group)
        except RuntimeError as error:
            said = str(error)
    return {"said": said}


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
        dist.barrier()
        dist.destroy_process_group()
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
    """End without destroying anything."""
    dist.all_reduce(torch.ones(3))
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
    """The others wait in a barrier when the victim dies."""
    return _dying(dist.barrier, turns=1)


def dies_in_subgroup() -> dict[str, Any]:
    """The victim and rank 3 are in a group of their own."""
    group = dist.new_group([VICTIM, 3])

    def step() -> None:
        if dist.get_rank() in {VICTIM, 3}:
            dist.all_reduce(torch.ones(10), group=group)
        else:
            dist.barrier()

    return _dying(step, turns=1)


def _dying(step: Callable[[], None], *, turns: int) -> dict[str, Any]:
    dist.barrier()
    for turn in range(1000):
        if turn == turns and dist.get_rank() == VICTIM:
            os.kill(os.getpid(), signal.SIGKILL)
        started_s = time.monotonic()
        try:
            step()
        except RuntimeError as error:
            return {
                "said": str(error),
                "cause": type(error.__cause__).__name__,
                "after_s": time.monotonic() - started_s,
            }
    return {}


SCENARIOS: dict[str, Callable[[], dict[str, Any]]] = {
    each.__name__: each
    for each in (
        everything,
        data_parallel,
        fully_sharded,
        groups,
        asynchronous,
        late,
        clean,
        forgotten,
        late_first,
        dies_in_all_reduce,
        dies_in_barrier,
        dies_in_subgroup,
    )
}


def main(scenario: str) -> None:
    """Join, do it, say what came of it, and end."""
    torch.set_num_threads(1)
    if scenario == "late_first" and dist.is_available() and os.environ["RANK"] == "0":
        time.sleep(float(os.environ["LATE_S"]))
    dist.init_process_group(os.environ.get("BACKEND", mrc.torch.BACKEND))
    found = SCENARIOS[scenario]()
    sys.stdout.write(json.dumps(found))
    sys.stdout.flush()
    if dist.is_initialized() and scenario != "forgotten":
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
