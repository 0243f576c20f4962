"""One path of a running transfer dies and heals; when the sender noticed, and whom else it blamed.

Runs in the sender's process, beside the transfer.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from time import monotonic_ns
from typing import Any

import mrc
from mrc.udp import FaultySockets
from mrc.units import NS_PER_S

NOTICE_TIMEOUT_S = 5.0
"""A path not withdrawn, or not taken back, by then never is as far as we wait."""
DEAD_S = 1.0
"""How long it stays dead at least: enough bins of goodput to take a median of."""
AFTER_S = 0.3
"""How long the transfer goes on when all is well again."""
POLL_S = 0.005


class PathWatch:
    """Collects what happens to the paths of a queue pair, until it is closed.

    Attributes:
        changes: so far, oldest first.
    """

    def __init__(self, qp: mrc.QueuePair) -> None:
        self.changes: list[mrc.EvChanged] = []
        self._task = asyncio.ensure_future(self._watch(qp))

    async def _watch(self, qp: mrc.QueuePair) -> None:
        async for event in qp.events():
            if isinstance(event, mrc.EvChanged):
                self.changes.append(event)

    @property
    def withdrawn(self) -> list[mrc.EvChanged]:
        """Those by which an EV was taken out of use."""
        return [change for change in self.changes if change.after is mrc.EvState.ASSUMED_BAD]

    async def first(self, source_port: int, after: mrc.EvState, since_ns: int) -> int | None:
        """Wait until an EV is in a state; return when it got there, None if it never does."""
        with suppress(TimeoutError):
            async with asyncio.timeout(NOTICE_TIMEOUT_S):
                while True:
                    for change in self.changes:
                        if (
                            change.source_port == source_port
                            and change.after is after
                            and change.at_ns >= since_ns
                        ):
                            return change.at_ns
                    await asyncio.sleep(POLL_S)
        return None

    def close(self) -> None:
        """Stop watching."""
        self._task.cancel()


async def kill_and_heal(
    qp: mrc.QueuePair, faults: FaultySockets, watch: PathWatch, seed: int
) -> dict[str, Any]:
    """Let everything sent on one active path vanish for a while.

    Returns:
        Port of the path, times in ns of the monotonic clock (None where something never happened),
        and the withdrawals of other paths with their reasons.
    """
    active = [path.source_port for path in qp.statistics().paths if path.active]
    port = random.Random(seed).choice(active)
    killed_ns = monotonic_ns()
    faults.blackholed_ports.add(port)
    withdrawn_ns = await watch.first(port, mrc.EvState.ASSUMED_BAD, killed_ns)
    await asyncio.sleep(max(0.0, DEAD_S - (monotonic_ns() - killed_ns) / NS_PER_S))
    healed_ns = monotonic_ns()
    faults.blackholed_ports.discard(port)
    good_ns = await watch.first(port, mrc.EvState.GOOD, healed_ns)
    await asyncio.sleep(AFTER_S)
    return {
        "port": port,
        "first_drop_ns": faults.first_blackholed_ns.get(port),
        "withdrawn_ns": withdrawn_ns,
        "healed_ns": healed_ns,
        "good_ns": good_ns,
        "dropped": faults.lost[port],
        "others": [
            [change.source_port, change.reason, change.at_ns - killed_ns]
            for change in watch.withdrawn
            if change.source_port != port and change.at_ns >= killed_ns
        ],
    }
