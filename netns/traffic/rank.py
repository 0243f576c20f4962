"""One rank of an all-reduce that is repeated for a time, and how long each operation took.

Orders: name, rank, size, url (of rank 0), interfaces (in NCCL's grammar), config (fields of
`mrc.Config`), message_bytes (the buffer), start_s, stop_s, record (path), period_ms. When all ranks
have met it says `connected` and waits for the moment that is zero. How many operations there are is
rank 0's business: its part of the last element, where the others have 0, is 1 in the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from time import monotonic_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mrc
from mrc import collectives
from netns.traffic import counters
from netns.traffic.common import (
    Sampler,
    moment_zero_ns,
    orders,
    run,
    save,
    say,
    standard_input,
    until_ns,
    while_input_lasts,
)

OPERATION_TIMEOUT_S = 60.0
STEPS = 251
"""Operations before the numbers repeat: sums of so many ranks are whole numbers in float32."""


class _Rank:
    def __init__(self, told: dict[str, Any], world: collectives.World) -> None:
        self.told = told
        self.world = world
        # Small whole numbers: float32 adds them without rounding, so that all bits are known.
        count = told["message_bytes"] // 4
        self.pattern = np.arange(count, dtype=np.float32) % 1021
        self.pattern[-1] = 0
        self.buffer: NDArray[np.float32] = np.zeros_like(self.pattern)
        self.completions: list[tuple[int, int]] = []
        self.samples: list[list[int]] = []
        self.wrong = 0
        self.error = ""

    def sample(self, now_ns: int) -> None:
        """Note the counters of all queue pairs that live."""
        taken = []
        for qp in self.world.endpoint.queue_pairs:
            # One that is about to be connected has none yet.
            with contextlib.suppress(mrc.MrcError):
                if qp.failure is None:
                    taken.append(qp.statistics())
        if taken:
            row = counters.row(now_ns, taken)
            self.samples.append(counters.grown(row, self.samples[-1] if self.samples else row))

    async def reduce_until_told(self, zero_ns: int) -> None:
        """Repeat the operation until rank 0 says that it is the last one."""
        stop_ns = zero_ns + int(self.told["stop_s"] * 1e9)
        await until_ns(zero_ns + int(self.told["start_s"] * 1e9))
        last = False
        while not last:
            self._fill(is_last=self.world.rank == 0 and monotonic_ns() >= stop_ns)
            began_ns = monotonic_ns()
            await self.world.all_reduce(self.buffer)
            self.completions.append((began_ns, monotonic_ns()))
            last = bool(self.buffer[-1])
            self.wrong += not self._is_sum()

    def _fill(self, *, is_last: bool) -> None:
        number = len(self.completions) % STEPS
        np.add(self.pattern, number + self.world.rank, out=self.buffer)
        self.buffer[-1] = is_last

    def _is_sum(self) -> bool:
        size = self.world.size
        number = (len(self.completions) - 1) % STEPS
        of_numbers = size * number + size * (size - 1) // 2
        self.buffer -= of_numbers
        # Exact: what is divided is a multiple.
        self.buffer /= size
        return bool(np.array_equal(self.buffer[:-1], self.pattern[:-1]))

    def record(self) -> dict[str, Any]:
        """Return all that was seen."""
        return {
            "name": self.told["name"],
            "messages": len(self.completions),
            "completions_ns": self.completions,
            "samples": self.samples,
            "corrupt": self.wrong,
            "error": self.error,
        }


async def _main() -> None:
    told = orders()
    bootstrap = collectives.Bootstrap(
        rank=told["rank"],
        size=told["size"],
        url=mrc.Url.parse(told["url"]),
        interface_list=collectives.InterfaceList.parse(told["interfaces"]),
    )
    config = mrc.Config(**told["config"])
    async with collectives.join(bootstrap, config=config, timeout_s=OPERATION_TIMEOUT_S) as world:
        rank = _Rank(told, world)
        sampling = asyncio.create_task(Sampler(told["period_ms"], rank.sample).run())
        try:
            # Queue pairs are opened when they are first needed.
            await world.all_reduce(rank.buffer)
            say("connected []")
            words = await standard_input()
            zero_ns = await moment_zero_ns(words)
            await while_input_lasts(words, rank.reduce_until_told(zero_ns))
        except* mrc.MrcError as group:
            rank.error = "; ".join(str(error) for error in group.exceptions)
            traceback.print_exc()
        finally:
            rank.sample(monotonic_ns())
            save(told["record"], rank.record())
            sampling.cancel()


if __name__ == "__main__":
    run(_main)
