"""Ranks that measure together, all of them in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from mrc.collectives import Communicator, Operation, Plan, Receive, Send, register
from mrc.collectives.plans import forget
from mrc.errors import PeerProtocolError
from mrc.perf.collective.compare import fastest
from mrc.perf.collective.figures import HEADING, CollectiveTest, closing_lines
from mrc.perf.collective.measuring import Where, measure
from mrc.perf.collective.settings import FACTS, Collective, CollectivePlan
from tests.collectives.cluster import cluster, each

QUICK: dict[str, Any] = {"iterations": 2, "warm_up": 1}


class Quiet:
    """An audience that remembers."""

    def __init__(self) -> None:
        self.ranks: list[Where] = []
        self.tests: list[CollectiveTest] = []

    def met(self, ranks: list[Where]) -> None:
        """Remember who is there."""
        self.ranks = ranks

    def measured(self, test: CollectiveTest) -> None:
        """Remember a test."""
        self.tests.append(test)


async def measured(*plans: CollectivePlan) -> list[list[CollectiveTest]]:
    """Return the tests of each plan, which all ranks must agree on."""
    found = []
    async with cluster(plans[0].ranks) as worlds:
        for plan in plans:
            audiences = [Quiet() for _ in worlds]
            results = await each(
                measure(world, plan, audience)
                for world, audience in zip(worlds, audiences, strict=True)
            )
            assert all(told == results[0] for told in results)
            assert [rank.rank for rank in audiences[-1].ranks] == list(range(plan.ranks))
            assert audiences[0].tests == results[0]
            found.append(results[0])
    return found


@pytest.mark.slow
def test_every_collective_is_measured_and_right() -> None:
    """Three ranks, sizes that they do not share evenly, every root: no wrong value."""
    plans = [
        CollectivePlan(
            collective=collective,
            ranks=3,
            sizes=(1, 1000, 300_001),
            type_name=type_name,
            root=2 if FACTS[collective].rooted else 0,
            **QUICK,
        )
        for collective in Collective
        for type_name in ("float32", "bfloat16")
    ]
    for plan, tests in zip(plans, asyncio.run(measured(*plans)), strict=True):
        assert [test.wrong for test in tests] == [0, 0, 0], plan.collective
        assert all(test.time_ns_min <= test.time_ns <= test.time_ns_max for test in tests)
        assert [test.count for test in tests] == plan.counts


@pytest.fixture
def swapping() -> Iterator[str]:
    """Name an algorithm for two ranks that swap what they should add up."""

    @register(Operation.ALL_REDUCE, "swap")
    def swap(rank: int, ranks: int, root: int) -> Plan:
        del ranks, root
        return Plan(1, (Send(0, 1 - rank), Receive(0, 1 - rank)))

    yield "swap"
    forget(Operation.ALL_REDUCE, "swap")


def test_a_wrong_result_is_counted_and_an_unverified_one_is_not(swapping: str) -> None:
    """Of the elements of both ranks; and where nobody looks nothing is claimed."""
    plan = CollectivePlan(
        collective=Collective.ALL_REDUCE,
        ranks=2,
        sizes=(4000,),
        algorithms=(swapping,),
        **QUICK,
    )
    (looked,), (blind,) = asyncio.run(measured(plan, replace(plan, verify=False)))
    assert looked.wrong is not None
    assert looked.wrong > 1900
    assert blind.wrong is None
    assert closing_lines([looked])[0] == "# Out of bounds values : 1 FAILED"
    assert len(closing_lines([blind])) == 1
    assert "N/A" in str(blind)


def test_ranks_with_different_plans_all_say_so_and_name_the_odd_ones() -> None:
    """Before anything is measured; how long a rank waits may differ."""
    plan = CollectivePlan(collective=Collective.ALL_REDUCE, ranks=3, sizes=(64,), **QUICK)
    plans = [replace(plan, timeout_s=9), plan, replace(plan, sizes=(128,))]

    async def meet(world: Communicator, own: CollectivePlan) -> None:
        with pytest.raises(PeerProtocolError, match="rank 2 measures something else than rank 0"):
            await measure(world, own, Quiet())

    async def run() -> None:
        async with cluster(3) as worlds:
            await each(meet(world, own) for world, own in zip(worlds, plans, strict=True))

    asyncio.run(run())


def of_size(size_bytes: int, time_ns: float, algorithms: tuple[str, ...] = ("ring",)) -> list[str]:
    """Return the lines of tests that took so long, and what they come to."""
    plan = CollectivePlan(
        collective=Collective.ALL_REDUCE, ranks=2, sizes=(size_bytes,), algorithms=algorithms
    )
    times: dict[str, float] = dict.fromkeys(("time_ns", "time_ns_min", "time_ns_max"), time_ns)
    tests = [
        CollectiveTest(plan=plan, count=size_bytes // 4, algorithm=name, wrong=0, **times)
        for name in algorithms
    ]
    return [*map(str, tests), *closing_lines(tests)]


@pytest.mark.parametrize(
    ("size_bytes", "time_ns", "shown"),
    [
        (8, 960e3, "8.333e-06"),
        (1024, 1e6, "0.001024"),
        (4096, 1e5, "0.0410"),
        (1 << 20, 1e6, "1.05"),
    ],
)
def test_slow_tests_have_four_digits_too_and_columns_stand(
    size_bytes: int, time_ns: float, shown: str
) -> None:
    """A small message has a bandwidth that is not nothing."""
    row, *_ = of_size(size_bytes, time_ns)
    assert row.split()[6:8] == [shown, shown]
    assert len(row) == len(HEADING[0])


def test_rivals_have_no_average() -> None:
    """It would be the bandwidth of nothing."""
    assert of_size(64, 1e6, ("doubling", "ring"))[2:] == ["# Out of bounds values : 0 OK"]
    assert of_size(64, 1e6)[-1].startswith("# Avg bus bandwidth")


def test_algorithms_take_turns_and_the_fastest_is_named() -> None:
    """Both are measured at every size, and what the library chooses stands beside them."""
    plan = CollectivePlan(
        collective=Collective.ALL_REDUCE,
        ranks=2,
        sizes=(64, 4096),
        algorithms=("doubling", "ring"),
        rounds=3,
        **QUICK,
    )
    (tests,) = asyncio.run(measured(plan))
    assert [(test.size_bytes, test.algorithm) for test in tests] == [
        (64, "doubling"),
        (64, "ring"),
        (4096, "doubling"),
        (4096, "ring"),
    ]
    small, large = fastest(tests)
    assert {test.algorithm for test in small.tests} == {"doubling", "ring"}
    assert small.tests[0].time_ns <= small.tests[1].time_ns
    assert small.chosen == large.chosen == "doubling"
