"""One rank of the training job: trains with DistributedDataParallel when it is told to.

Orders, its one argument: backend, rank, size, seed, record (path). RANK, WORLD_SIZE and MASTER_ADDR
are in the environment, as of torchrun. It says `ready` when all ranks have met; then each line of
its standard input, `NAME STEPS`, is a training from the beginning. Rank 0 says `step` behind each
step, and everybody `trained` behind the last. At the end of the input it leaves its record: for
each training the moments its steps began and the last one ended, each loss, and how many of the
images that nobody trained with it tells right.
"""

from __future__ import annotations

import datetime as dt
import importlib
import signal
import sys
from time import monotonic_ns
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from netns.traffic.common import end_with_parent, orders, save, say
from training.lesson import MOMENTUM, RATE, Images, network

TIMEOUT = dt.timedelta(seconds=60)
"""For an operation: longer than a plane is dead."""


def main() -> None:
    """Meet the others, train as often as told, leave the record."""
    # Ctrl-C in a terminal is for who started us, and who ends us in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    told = orders()
    # One thread: the ranks share the processors, and sums have one order.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    if told["backend"] == "mrc":
        importlib.import_module("mrc.torch")
    distributed.init_process_group(told["backend"], timeout=TIMEOUT)
    try:
        images = Images(told["seed"])
        distributed.barrier()
        say("ready")
        trainings: dict[str, Any] = {}
        for line in sys.stdin:
            name, steps = line.split()
            trainings[name] = train(images, told, int(steps))
            say("trained")
        save(told["record"], {"trainings": trainings})
    finally:
        distributed.destroy_process_group()


def train(images: Images, told: dict[str, Any], steps: int) -> dict[str, Any]:
    """Train a new network for some steps; return what each was like."""
    rank, size = told["rank"], told["size"]
    model = DistributedDataParallel(network(told["seed"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    measure = nn.CrossEntropyLoss()
    distributed.barrier()
    moments_ns, losses = [monotonic_ns()], []
    for step in range(steps):
        pixels, labels = images.batch(step, rank, size)
        optimizer.zero_grad()
        loss = measure(model(pixels), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        moments_ns.append(monotonic_ns())
        if rank == 0:
            say("step")
    return {"moments_ns": moments_ns, "losses": losses, "right": _right(model.module, images)}


def _right(model: nn.Module, images: Images) -> float:
    """Return which share of the images it never saw a network tells right."""
    pixels, labels = images.test
    with torch.no_grad():
        return float((model(pixels).argmax(1) == labels).float().mean())


if __name__ == "__main__":
    main()
