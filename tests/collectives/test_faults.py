"""The same answers over a network that loses, repeats and reorders, and whose paths die."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest

import mrc
from mrc.collectives import ReduceOp, World
from mrc.udp import FaultySockets, KernelSockets, Receiver, Sender, SendOutcome
from tests.collectives.cluster import cluster, each

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left"), pytest.mark.slow]

RANKS = 4


class Reordering:
    """Sockets some of whose runs leave later than what was sent after them.

    Args:
        seed: of the generator that chooses them.
        chance: of each run.
        delay_s: how much later.
    """

    def __init__(self, seed: int, *, chance: float, delay_s: float) -> None:
        self.rng = random.Random(seed)
        self.chance = chance
        self.delay_s = delay_s
        self.delayed = 0

    def sender(self, address: str, port: int, caps: Any) -> Sender:
        """Open the sending socket of one EV."""
        sender = KernelSockets().sender(address, port, caps)
        send = sender.send

        def later(buffer: memoryview, *how: Any) -> SendOutcome:
            if self.rng.random() >= self.chance:
                return send(buffer, *how)
            self.delayed += 1
            kept = memoryview(bytes(buffer))

            def leave() -> None:
                if sender.fileno() >= 0:
                    send(kept, *how)

            asyncio.get_running_loop().call_later(self.delay_s, leave)
            return SendOutcome.SENT

        sender.send = later  # type: ignore[method-assign,assignment]
        return sender

    def receiver(self, *how: Any) -> Receiver:
        """Open the receiving socket of one plane."""
        return KernelSockets().receiver(*how)


async def grid(world: World) -> list[bytes]:
    """Do some of everything, and return what came of it."""
    results = []
    for count in (1, 1003, 100_003):
        rng = np.random.default_rng([world.rank, count])
        for op in (ReduceOp.SUM, ReduceOp.MAX):
            floats = rng.random(count).astype(np.float32)
            await world.all_reduce(floats, op)
            results.append(floats.tobytes())
        numbers = rng.integers(0, 1000, count)
        await world.all_reduce(numbers)
        results.append(numbers.tobytes())
        blocks = np.zeros(count * world.size, numbers.dtype)
        await world.all_gather(numbers + world.rank, blocks)
        results.append(blocks.tobytes())
        swapped = np.zeros_like(blocks)
        await world.all_to_all(blocks, swapped)
        await world.all_gather(swapped[:count], blocks)
        results.append(blocks.tobytes())
        await world.broadcast(floats, root=world.size - 1)
        await world.barrier()
    return results


_CLEAN: list[bytes] = []
"""What came of it without faults."""


async def clean_results() -> list[bytes]:
    """Return what all ranks get without faults."""
    _CLEAN[:] = _CLEAN or await results()
    return _CLEAN


async def results(sockets: Any = None) -> list[bytes]:
    """Return what all ranks got, which is the same."""
    # On loopback nobody would look for damage.
    async with cluster(RANKS, sockets=sockets, config=mrc.Config(icrc=True)) as worlds:
        found = await each([grid(world) for world in worlds])
        assert all(bits == found[0] for bits in found)
        return found[0]


@pytest.mark.parametrize("fault", ["loss", "duplication", "corruption", "inbound_loss"])
async def test_the_same_bits_whatever_the_network_does(fault: str) -> None:
    """With 1 % of the datagrams lost, repeated or spoiled."""
    used = [FaultySockets(seed=rank, **{fault: 0.01}) for rank in range(RANKS)]
    assert await results(lambda rank: used[rank]) == await clean_results()
    counters = {"loss": "lost", "duplication": "duplicated", "corruption": "corrupted"}
    counter = counters.get(fault, "inbound_lost")
    assert sum(sum(getattr(sockets, counter).values()) for sockets in used) > 0


async def test_the_same_bits_when_datagrams_overtake_each_other() -> None:
    """Every tenth run leaves two milliseconds late."""
    used = [Reordering(rank, chance=0.1, delay_s=0.002) for rank in range(RANKS)]
    assert await results(lambda rank: used[rank]) == await clean_results()
    assert sum(sockets.delayed for sockets in used) > 0


async def test_dead_paths_are_no_error() -> None:
    """A quarter of the paths of one rank swallows everything, from amid an operation on."""
    used = [FaultySockets(seed=rank) for rank in range(RANKS)]
    async with cluster(RANKS, sockets=lambda rank: used[rank], detect_s=5.0) as worlds:
        arrays = [np.full(2 << 20, rank, np.float32) for rank in range(RANKS)]
        await each([world.barrier() for world in worlds])
        works = [world.all_reduce(arrays[world.rank]) for world in worlds]
        for index in range(0, len(used[1].senders), 4):
            used[1].blackhole_nth(index)
        await each(works)
        assert all(set(array) == {6.0} for array in arrays)
        assert sum(used[1].lost.values()) > 0
        assert not worlds[0]._health.failed  # noqa: SLF001 - the point of it
