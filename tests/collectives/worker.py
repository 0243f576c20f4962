"""One rank as a process of its own, for tests that kill it.

    python worker.py SCENARIO

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say who it is. It says what happened to it as one JSON
object on standard output, and "ready" where the test may strike.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable

import numpy as np

from mrc import collectives
from mrc.collectives import BlockingCommunicator

VICTIM = 2
DETECT_S = float(os.environ.get("DETECT_S", "1"))
LARGE = 4 << 20


def die() -> None:
    """End as a machine does whose power is gone."""
    os.kill(os.getpid(), signal.SIGKILL)


def before(world: BlockingCommunicator) -> None:
    """The victim dies before a collective; the others come to it later."""
    world.barrier()
    if world.rank == VICTIM:
        die()
    time.sleep(0.2)
    world.all_reduce(np.ones(1000, np.float32))


def inside(world: BlockingCommunicator) -> None:
    """The victim dies while all go round and round."""
    world.barrier()
    array = np.ones(LARGE, np.float32)
    for turn in range(1000):
        if world.rank == VICTIM and turn == 1:
            world.begin.all_reduce(array)
            time.sleep(0.02)
            die()
        world.all_reduce(array)
        array[:] = 1


def after(world: BlockingCommunicator) -> None:
    """The victim dies after a collective; the others have nothing to do with it for a while."""
    world.all_reduce(np.ones(1000, np.float32))
    if world.rank == VICTIM:
        die()
    time.sleep(0.5)
    world.barrier()


def barrier(world: BlockingCommunicator) -> None:
    """The others wait in a barrier when the victim dies."""
    if world.rank == VICTIM:
        time.sleep(0.3)
        die()
    world.barrier()


def subgroup(world: BlockingCommunicator) -> None:
    """The victim dies in a sub-group with rank 3; the others are in theirs, which goes on."""
    group = world.split(world.rank // 2)
    assert group is not None
    group.barrier()
    if world.rank == VICTIM:
        die()
    if world.rank == 3:
        group.all_reduce(np.ones(10, np.float32))
    else:
        for _ in range(20):
            group.all_reduce(np.ones(10, np.float32))
            time.sleep(0.01)
        say(group="goes on")
    world.barrier()


def silent(world: BlockingCommunicator) -> None:
    """The victim stops without ending: no TCP connection of it closes."""
    world.barrier()
    if world.rank == VICTIM:
        os.kill(os.getpid(), signal.SIGSTOP)
    world.all_reduce(np.ones(1000, np.float32))


def first(world: BlockingCommunicator) -> None:
    """Rank 0 dies, which keeps the store and all the hearts."""
    world.barrier()
    if world.rank == 0:
        die()
    world.all_reduce(np.ones(1000, np.float32))


def first_and_victim(world: BlockingCommunicator) -> None:
    """Rank 0 dies, and with it one that the next lowest rank has not heard of yet."""
    world.barrier()
    if world.rank in {0, VICTIM}:
        die()
    world.all_reduce(np.ones(1000, np.float32))


def exits(world: BlockingCommunicator) -> None:
    """The victim ends like a script that forgot to close; the others do not take that for death."""
    world.barrier()
    if world.rank == VICTIM:
        sys.exit()
    time.sleep(0.3)


def restarts(world: BlockingCommunicator) -> None:
    """All do one thing and end."""
    array = np.full(10, world.rank + 1)
    world.all_reduce(array)
    say(sum=int(array[0]))


SCENARIOS: dict[str, Callable[[BlockingCommunicator], None]] = {
    scenario.__name__: scenario
    for scenario in (
        before,
        inside,
        after,
        barrier,
        subgroup,
        silent,
        first,
        first_and_victim,
        exits,
        restarts,
    )
}


def say(**what: object) -> None:
    """Tell the test."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main(scenario: str) -> None:
    """Do it, and then make a new communicator with who is left."""
    world = collectives.join_blocking(detect_s=DETECT_S, timeout_s=20.0)
    if scenario == "exits":
        SCENARIOS[scenario](world)
        say(done=True)
        return
    started_s = time.monotonic()
    with world:
        try:
            SCENARIOS[scenario](world)
            say(done=True)
        except collectives.RankFailed as error:
            after_s = time.monotonic() - started_s
            say(failed=error.rank, address=error.address, text=str(error), after_s=after_s)
            with world.survivors(timeout_s=10.0) as left:
                array = np.array([left.rank + 1])
                left.all_reduce(array)
                say(left=left.size, sum=int(array[0]), ranks=left.ranks)


if __name__ == "__main__":
    main(sys.argv[1])
