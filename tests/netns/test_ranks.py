"""Ranks in hosts of a lab: what becomes of the others when a machine goes silent, or one dies."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

import pytest

from netns import faults, topology
from netns.fabric import plan
from netns.lab import Lab
from netns.processes import Traffic

pytestmark = [pytest.mark.root, pytest.mark.slow]

DETECT_S = 5.0
"""Of silence, after which a rank has failed: the default."""
MARGIN_S = 3.0
START_TIMEOUT_S = 40.0
LOST = 2

Break = Callable[[Lab, list[Traffic]], None]


async def started(lab: Lab) -> list[Traffic]:
    """Start a rank in every host, and wait until they have met."""
    hosts = lab.fabric.topology.hosts
    ranks = []
    for rank, host in enumerate(hosts):
        record = lab.folder / f"{rank}.json"
        orders = {
            "name": f"rank-{rank}",
            "rank": rank,
            "size": len(hosts),
            "url": f"mrc://{lab.fabric.addresses(hosts[0])[0]}:18515/",
            "interfaces": "p",
            "config": {},
            "message_bytes": 1 << 20,
            "start_s": 0,
            "stop_s": 3600,
            "record": str(record),
            "period_ms": 10,
        }
        command = [sys.executable, "-m", "netns.traffic.rank", json.dumps(orders)]
        command = lab.command(host, command)
        ranks.append(await Traffic.start(f"rank-{rank}", command, lab.environment(), record))
    await asyncio.gather(*(rank.expect("connected", START_TIMEOUT_S) for rank in ranks))
    return ranks


async def survived(lab: Lab, lose: Break) -> tuple[list[dict[str, Any]], float]:
    """Let all exchange, lose rank 2; return the records of the others, and how long that took."""
    ranks = await started(lab)
    try:
        zero_ns = monotonic_ns()
        for rank in ranks:
            rank.tell(str(zero_ns))
        await asyncio.to_thread(lose, lab, ranks)
        others = [rank for number, rank in enumerate(ranks) if number != LOST]
        await asyncio.gather(*(rank.finished(DETECT_S + MARGIN_S) for rank in others))
        return [rank.record() for rank in others], (monotonic_ns() - zero_ns) / 1e9
    finally:
        await asyncio.gather(*(rank.end() for rank in ranks))


def silence(lab: Lab, ranks: list[Traffic]) -> None:
    """Let all planes of the host swallow everything, as a machine does that has stopped."""
    del ranks
    for link in lab.fabric.planes(lab.fabric.topology.hosts[LOST]):
        faults.fail(lab, link, "blackhole")


def kill(lab: Lab, ranks: list[Traffic]) -> None:
    """Let the kernel end the process."""
    del lab
    os.kill(ranks[LOST].pid, signal.SIGKILL)


@pytest.mark.parametrize(("lose", "at_least_s"), [(silence, DETECT_S / 2), (kill, 0.0)])
def test_a_rank_that_is_lost_is_an_error_on_all_others_that_names_it(
    lab_name: str, lose: Break, at_least_s: float
) -> None:
    """Within the time that silence may last, and with where it was."""
    with Lab(plan(topology.load("ring")), lab_name) as lab:
        records, took_s = asyncio.run(survived(lab, lose))
    assert took_s > at_least_s
    for record in records:
        assert f"rank {LOST}" in record["error"], record["error"]
        assert "10.0.3.1" in record["error"]
