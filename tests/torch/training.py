"""A small model, trained for a few steps in all forms that spread it over ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

STEPS = 20


def model() -> nn.Sequential:
    """Return a small model, the same on all ranks."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(20, 33), nn.ReLU(), nn.Linear(33, 5))


def batches() -> Iterable[Tensor]:
    """Yield data of this rank's own."""
    for step in range(STEPS):
        torch.manual_seed(1000 * step + dist.get_rank())
        yield torch.randn(8, 20)


def train(wrapped: nn.Module, data: Iterable[Tensor] | None = None) -> None:
    """Take some steps."""
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for batch in batches() if data is None else data:
        step(wrapped, batch, optimizer)


def step(wrapped: nn.Module, batch: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Take one."""
    optimizer.zero_grad()
    wrapped(batch).square().mean().backward()
    optimizer.step()


def steps_of(group: Any) -> Callable[[], None]:
    """Return what takes one step of a replica."""
    wrapped = DistributedDataParallel(model(), process_group=group)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    batch = next(iter(batches()))
    return lambda: step(wrapped, batch, optimizer)


def flat(parameters: Iterable[Any]) -> list[float]:
    """Return all numbers of a model."""
    whole = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in parameters]
    return [float(number) for each in whole for number in each.detach().reshape(-1)]


def replicas(group: Any) -> list[float]:
    """Train a replica a rank."""
    wrapped = DistributedDataParallel(model(), process_group=group)
    train(wrapped)
    return flat(wrapped.parameters())


def half_the_bits(group: Any) -> list[float]:
    """Send gradients as float16."""
    wrapped = DistributedDataParallel(model(), process_group=group)
    wrapped.register_comm_hook(group, default_hooks.fp16_compress_hook)
    train(wrapped)
    return flat(wrapped.parameters())


def low_rank(group: Any) -> list[float]:
    """Send gradients as PowerSGD does, which waits for one reduction in the callback of another."""
    wrapped = DistributedDataParallel(model(), process_group=group)
    state = powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2, min_compression_rate=0.5)
    wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(wrapped)
    return flat(wrapped.parameters())


def loaded(group: Any) -> list[float]:
    """Get the data from processes forked off this one."""
    wrapped = DistributedDataParallel(model(), process_group=group)
    data = TensorDataset(torch.cat(list(batches())))
    loader = DataLoader(data, batch_size=8, num_workers=2)
    train(wrapped, (batch for (batch,) in loader))
    return flat(wrapped.parameters())


def sharded(group: Any) -> list[float]:
    """Train shards, in the older form."""
    wrapped = FullyShardedDataParallel(model(), process_group=group, device_id=torch.device("cpu"))
    train(wrapped)
    with FullyShardedDataParallel.summon_full_params(wrapped):
        return flat(wrapped.parameters())


def sharded_by_layers(group: Any) -> list[float]:
    """Train shards, in the newer form."""
    mesh = DeviceMesh.from_group(group, "cpu")
    whole = model()
    for layer in whole:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(whole, mesh=mesh)
    train(whole)
    return flat(whole.parameters())


FORMS: dict[str, Callable[[Any], list[float]]] = {
    each.__name__: each
    for each in (replicas, half_the_bits, low_rank, loaded, sharded, sharded_by_layers)
}
"""Each trains with a group, and returns the parameters."""
