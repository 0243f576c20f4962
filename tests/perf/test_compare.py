"""What a feature costs: in turns, and by the ratio of each pair."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from mrc.perf.compare import Comparison
from mrc.perf.latency import LatencyFigures
from mrc.perf.measures import SenderFigures
from mrc.perf.report import SizeReport
from mrc.perf.settings import Kind


def _test(gbps: float) -> SizeReport:
    sent = SenderFigures(1, 1, 8, 0, 1, 0, 0, 0, 0, 0)
    test = SizeReport(Kind.BANDWIDTH, 1, sent=sent)
    object.__setattr__(test.sent, "duration_ns", int(8 / gbps))
    return test


def _compare(figures: Sequence[tuple[float, float]]) -> tuple[Comparison, list[bool]]:
    order: list[bool] = []
    counts = [0, 0]

    async def measure(enabled: bool) -> Sequence[SizeReport]:
        order.append(enabled)
        number, counts[enabled] = counts[enabled], counts[enabled] + 1
        return [_test(figures[number][enabled])]

    comparison = Comparison("lock", Kind.BANDWIDTH)
    asyncio.run(comparison.run(measure, len(figures)))
    return comparison, order


def test_pairs_begin_with_either_in_turns() -> None:
    """What drifts in one direction falls on both alike."""
    _, order = _compare([(4.0, 2.0)] * 3)
    assert order == [False, True, True, False, False, True]


def test_the_ratio_is_taken_within_each_pair() -> None:
    """A slow moment that both runs of a pair share leaves their ratio alone."""
    comparison, _ = _compare([(4.0, 2.0), (2.0, 1.0), (8.0, 2.0)])
    without, enabled, ratio = comparison.rows()
    assert without.figures == pytest.approx((4, 2, 8))
    assert enabled.figures == pytest.approx((2, 1, 2))
    assert ratio.figures == pytest.approx((0.5, 0.5, 0.25))
    assert ratio.to_json()["median"] == pytest.approx(0.5)
    assert ratio.to_json()["min"] == pytest.approx(0.25)


def test_without_a_complete_pair_there_are_no_rows() -> None:
    """A comparison that was stopped early claims nothing."""
    comparison, _ = _compare([])
    assert comparison.rows() == []
    assert comparison.to_json()["pairs"] == 0


def test_latency_is_compared_by_its_median() -> None:
    """Microseconds, not bits, where messages go to and fro."""
    half = LatencyFigures(1, 1.0, 1.0, 0.0, 5000.0, 1.0, 1.0, 1.0)

    async def measure(_: bool) -> Sequence[SizeReport]:
        return [SizeReport(Kind.LATENCY, 64, latency=half)]

    comparison = Comparison("icrc", Kind.LATENCY)
    asyncio.run(comparison.run(measure, 1))
    assert comparison.rows()[0].figures == (5.0,)
    assert str(comparison.rows()[0]).split() == ["64", "iCRC", "off", "(p50", "us)", *["5.000"] * 3]
