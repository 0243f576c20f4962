"""The same answers over a network that loses, repeats and reorders, and whose paths die."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import mrc
from mrc.udp import FaultySockets, KernelSockets, Receiver, Sender, SendOutcome, Sockets
from tests.collectives.answers import BY_BLOCKS, EVERY, Case
from tests.collectives.cluster import cluster, each

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left"), pytest.mark.slow]

RANKS = 4


class Reordering:
    """Sockets some of whose runs leave later than what was sent after them.

    Args:
        seed: of the generator that chooses them.
        chance: of each run.
        delay_s: how much later.
        below: opens the sockets.
    """

    def __init__(
        self, seed: int, *, chance: float, delay_s: float, below: Sockets | None = None
    ) -> None:
        self.below = below or KernelSockets()
        self.rng = random.Random(seed)
        self.chance = chance
        self.delay_s = delay_s
        self.delayed = 0

    def sender(self, address: str, port: int, caps: Any) -> Sender:
        """Open the sending socket of one EV."""
        sender = self.below.sender(address, port, caps)
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
        return self.below.receiver(*how)


FLOAT, INTEGER = np.dtype(np.float32), np.dtype(np.int64)


async def results(
    ranks: int = RANKS, *, types: Sequence[np.dtype[Any]] = (FLOAT, INTEGER), **settings: Any
) -> list[bytes]:
    """Return what stands for the answers of every operation, each of them numpy's."""
    async with cluster(ranks, **settings) as worlds:
        return [
            await EVERY[name](worlds, Case(count, dtype, root=ranks - 1))
            for name in EVERY
            for count in (1, 1003, 100_003 // (ranks if name in BY_BLOCKS else 1))
            for dtype in types
        ]


_CLEAN: list[bytes] = []
"""What came of it without faults."""


async def clean_results() -> list[bytes]:
    """Return what all ranks get without faults."""
    _CLEAN[:] = _CLEAN or await results()
    return _CLEAN


@pytest.mark.parametrize("fault", ["loss", "duplication", "corruption", "inbound_loss"])
async def test_the_same_bits_whatever_the_network_does(fault: str) -> None:
    """With 1 % of the datagrams lost, repeated or spoiled."""
    used = [FaultySockets(seed=rank, **{fault: 0.01}) for rank in range(RANKS)]
    # On loopback nothing is spoiled, so it is not looked for there by default.
    config = mrc.Config(icrc=True)
    found = await results(sockets=lambda rank: used[rank], config=config)
    assert found == await clean_results()
    counters = {"loss": "lost", "duplication": "duplicated", "corruption": "corrupted"}
    counter = counters.get(fault, "inbound_lost")
    assert sum(sum(getattr(sockets, counter).values()) for sockets in used) > 0


async def test_the_same_bits_when_datagrams_overtake_each_other() -> None:
    """Every tenth run leaves two milliseconds late."""
    used = [Reordering(rank, chance=0.1, delay_s=0.002) for rank in range(RANKS)]
    assert await results(sockets=lambda rank: used[rank]) == await clean_results()
    assert sum(sockets.delayed for sockets in used) > 0


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
async def test_every_fault_at_once(ranks: int) -> None:
    """1 % is lost, 1 % comes twice, and every tenth run is late, through slots and in place."""
    faulty = [FaultySockets(seed=rank, loss=0.01, duplication=0.01) for rank in range(ranks)]
    late = [
        Reordering(rank, chance=0.1, delay_s=0.002, below=faulty[rank]) for rank in range(ranks)
    ]
    await results(ranks, types=[FLOAT], sockets=lambda rank: late[rank])
    assert sum(sum(sockets.lost.values()) for sockets in faulty) > 0
    assert sum(sum(sockets.duplicated.values()) for sockets in faulty) > 0
    assert sum(sockets.delayed for sockets in late) > 0


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
