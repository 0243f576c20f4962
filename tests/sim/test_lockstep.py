"""An all-reduce of many ranks on the virtual network: right sums, in the same time on every run."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mrc.errors import ConfigError
from mrc.sim.failure import CheckFailed
from mrc.sim.lockstep import CHUNK_BYTES, PLANES, RANKS_MAX, START_NS, AllReduce, Scenario
from tests.sim.test_tables import stored


def test_without_faults_a_step_is_two_hops_and_its_bytes() -> None:
    """Every byte goes once: 2 (n - 1) chunks of four packets a rank, nothing twice."""
    ranks = 6
    result = AllReduce(Scenario(ranks, seed=1)).run()
    assert len(result.steps_ns) == ranks * 2 * (ranks - 1)
    assert result.packets == ranks * 2 * (ranks - 1) * CHUNK_BYTES // 1024
    assert (result.again, result.timeouts) == (0, 0)


@pytest.mark.parametrize("deaths", [0, 2])
def test_the_same_scenario_takes_the_same_time(deaths: int) -> None:
    """To the nanosecond, in each step of each rank."""
    scenario = Scenario(5, seed=3, loss=0.02, deaths=deaths)
    assert AllReduce(scenario).run() == AllReduce(scenario).run()


def test_wrong_sums_are_found() -> None:
    """The check at the end looks at every rank's memory."""
    run = AllReduce(Scenario(3, seed=1))
    run.ranks[1].chunks[2, 5] += 1
    with pytest.raises(CheckFailed, match="sums are wrong"):
        run.run()


def test_an_end_that_does_not_come_is_found() -> None:
    """All planes of one rank are silent: nobody can go on."""
    run = AllReduce(Scenario(3, seed=1))
    for plane in range(PLANES):
        run.network.links[f"up b.{plane}"].cut()
    with pytest.raises(CheckFailed, match=r"no step for|RETRY"):
        run.run()


@pytest.mark.parametrize("ranks", [2, 4])
def test_ports_die_before_the_end_and_each_once(ranks: int) -> None:
    """As many as were asked for, in the shortest run as well: that without a loss."""
    least_ns = AllReduce(Scenario(ranks, seed=1)).run().took_ns
    for seed in range(1, 21):
        faults = Scenario(ranks, seed, deaths=5).options().faults
        assert len({fault.where for fault in faults}) == 2 * 5
        assert all(START_NS <= fault.at_ns < START_NS + least_ns for fault in faults)


def test_no_more_ports_die_than_there_are() -> None:
    """Two ranks have eight."""
    with pytest.raises(ConfigError, match="9 dead of 8 ports"):
        AllReduce(Scenario(2, seed=1, deaths=9))


@pytest.mark.parametrize("ranks", [0, 1, RANKS_MAX + 1])
def test_a_ring_has_two_ranks_or_more(ranks: int) -> None:
    """And as many as there are names for hosts."""
    with pytest.raises(ConfigError, match=str(ranks)):
        AllReduce(Scenario(ranks, seed=1))


def test_plans_bring_no_network_into_the_simulator() -> None:
    """They are pure: neither sockets nor asyncio come with them."""
    code = (
        "import sys, mrc.sim.lockstep;"
        "sys.exit(bool({'mrc.api', 'mrc.engine', 'asyncio'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_losses_and_deaths_cost_milliseconds() -> None:
    """A lost packet holds the ring up for about one, a dead port for some tens, without a timer."""
    for row in stored("all_reduce"):
        assert row["timeouts"] == "0"
        assert float(row["max_ms"]) < 100
    for row in stored("all_reduce", **{"loss_%": "0.1", "dead": "0"}):
        assert float(row["ratio"]) < 2
