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
from contextlib import suppress
from pathlib import Path
from unittest import mock

import numpy as np

from mrc import collectives
from mrc.collectives import BlockingCommunicator, RankFailed
from mrc.collectives.reduction import Array, Reduction

VICTIM = 2
RANKS = 4
DETECT_S = float(os.environ.get("DETECT_S", "1"))
LARGE = 4 << 20


def die() -> None:
    """End as a machine does whose power is gone."""
    os.kill(os.getpid(), signal.SIGKILL)


def let_die(world: BlockingCommunicator) -> None:
    """The victim dies when all have come here; the others go on when they know of it."""
    aside = world.subset(range(world.size), "aside")
    if world.rank == VICTIM:
        aside.barrier()
        die()
    with suppress(RankFailed):
        while True:
            aside.barrier()


def before(world: BlockingCommunicator) -> None:
    """The victim dies before a collective; the others come to it later."""
    let_die(world)
    world.all_reduce(np.ones(1000, np.float32))


def inside(world: BlockingCommunicator) -> None:
    """The victim dies with a sum of all in its hands: all are in, and nobody can be through."""
    array = np.ones(LARGE, np.float32)
    world.all_reduce(array, algorithm="ring")
    array[:] = 1
    if world.rank == VICTIM:
        mock.patch.object(Reduction, "combine", _combine_or_die).start()
    world.all_reduce(array, algorithm="ring")


def _combine_or_die(_: Reduction, lower: Array, higher: Array, out: Array) -> None:
    np.add(lower, higher, out=out)
    if out[0] == RANKS:
        die()


def after(world: BlockingCommunicator) -> None:
    """The victim dies after a collective; the others have nothing to do with it for a while."""
    world.all_reduce(np.ones(1000, np.float32))
    let_die(world)
    world.barrier()


def barrier(world: BlockingCommunicator) -> None:
    """The others wait in a barrier when the victim dies."""
    world.barrier()
    if world.rank == VICTIM:
        let_die(world)
    waiting = world.begin.barrier()
    let_die(world)
    waiting.wait()


def subgroup(world: BlockingCommunicator) -> None:
    """The victim dies in a sub-group with rank 3; the others are in theirs, which goes on."""
    group = world.split(world.rank // 2)
    assert group is not None
    group.barrier()
    if world.rank == VICTIM:
        let_die(world)
    if world.rank == 3:
        waiting = group.begin.all_reduce(np.ones(10, np.float32))
        let_die(world)
        waiting.wait()
    else:
        let_die(world)
        for _ in range(20):
            group.all_reduce(np.ones(10, np.float32))
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
    pids = np.empty(world.size, np.int64)
    world.all_gather(np.array([os.getpid()]), pids)
    world.barrier()
    if world.rank == VICTIM:
        sys.exit()
    deadline_s = time.monotonic() + 20.0
    while not _ended(int(pids[VICTIM])):
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def _ended(pid: int) -> bool:
    """Tell whether a process is gone, or waits for its parent to read how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2][1] == "Z"
    except FileNotFoundError:
        return True


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
        except RankFailed as error:
            after_s = time.monotonic() - started_s
            say(failed=error.rank, address=error.address, text=str(error), after_s=after_s)
            with world.survivors(timeout_s=10.0) as left:
                array = np.array([left.rank + 1])
                left.all_reduce(array)
                say(left=left.size, sum=int(array[0]), ranks=left.ranks)


if __name__ == "__main__":
    main(sys.argv[1])
