"""Runs mrc-send on sockets with faults: for tests, through `commands.running`.

The first argument is a `Plan` in JSON, all others go to mrc-send. The faults are in this process's
socket wrapper; protocol and command are the ones everybody runs.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import mrc
import mrc.cli.send
from mrc.udp import FaultySockets

RUNNER = "tests.cli.faulty_send"
"""What `commands.running` takes for the name of this command."""

HEALED = "--- healed: source port"
"""Begins the line on standard error that names a path which was dead and works again."""

POLL_S = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What goes wrong on the way out.

    Attributes:
        loss, corruption, duplication: probabilities, as in `FaultySockets`.
        timeout: the setting of this name. Far longer than usual, so that a timeout means that
            nothing else helped, and not that a busy machine let a process wait for its turn.
        cut: the path that swallows everything for a while, from 0; None for no such path.
        cut_at_bytes: payload sent before it does.
        cut_for_bytes: payload sent, after it was found out, before it works again.
    """

    loss: float = 0.0
    corruption: float = 0.0
    duplication: float = 0.0
    timeout: int = 20
    cut: int | None = None
    cut_at_bytes: int = 16 << 20
    cut_for_bytes: int = 32 << 20

    def to_json(self) -> str:
        """Return the argument for the runner."""
        return json.dumps(asdict(self))

    def sockets(self) -> FaultySockets:
        """Make the sockets; the seed is fixed, what meets a fate still depends on timing."""
        return FaultySockets(
            seed=1, loss=self.loss, corruption=self.corruption, duplication=self.duplication
        )


def main() -> None:
    """Run mrc-send as the first argument says."""
    plan = Plan(**json.loads(sys.argv.pop(1)))
    sys.argv[0] = "mrc-send"
    with mock.patch.object(mrc, "connect", partial(connect, plan, mrc.connect)):
        mrc.cli.send.main()


@asynccontextmanager
async def connect(plan: Plan, real: Any, *words: Any, **names: Any) -> AsyncIterator[mrc.QueuePair]:
    """Connect as `mrc.connect` does, with faults."""
    faults = plan.sockets()
    names["config"] = replace(names["config"], timeout=plan.timeout)
    async with real(*words, sockets=faults, **names) as qp:
        if plan.cut is None:
            yield qp
            return
        breaking = asyncio.ensure_future(break_and_heal(qp, faults, plan.cut, plan))
        try:
            yield qp
        finally:
            breaking.cancel()


async def break_and_heal(qp: mrc.QueuePair, faults: FaultySockets, cut: int, plan: Plan) -> None:
    """Let one path swallow everything until it has been found out, and heal it a while later."""

    def sent_bytes() -> int:
        return qp.statistics().requestor.payload_bytes_sent

    def is_in(state: str) -> bool:
        return any(p.source_port == port and p.state == state for p in qp.statistics().paths)

    await _until(lambda: sent_bytes() >= plan.cut_at_bytes)
    port = faults.blackhole_nth(cut)
    await _until(lambda: is_in("assumed_bad"))
    mark = sent_bytes() + plan.cut_for_bytes
    await _until(lambda: sent_bytes() >= mark)
    faults.heal_nth(cut)
    await _until(lambda: is_in("good"))
    sys.stderr.write(f"{HEALED} {port}\n")
    sys.stderr.flush()


async def _until(predicate: Callable[[], bool]) -> None:
    while not predicate():  # noqa: ASYNC110 - nobody is woken by a counter
        await asyncio.sleep(POLL_S)
