"""What a test came to, in the columns of nccl-tests and in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from mrc.perf.collective.settings import CollectivePlan
from mrc.units import NS_PER_S, NS_PER_US

GIGA = 1e9


def _line(*cells: object) -> str:
    widths = (12, 13, 9, 6, 5, 10, 9, 9, 7)
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


HEADING = (
    "#" + _line("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong")[1:],
    "#" + _line("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "")[1:].rstrip(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTest:
    """One size, by one algorithm.

    Attributes:
        plan: it is part of.
        count: elements of a block.
        algorithm: by which it was carried out; None where there are none.
        time_ns: of one operation: the mean of all ranks, and the median of the rounds.
        time_ns_min: the same of the fastest rank and round.
        time_ns_max: of the slowest.
        wrong: elements that were not what they must be, on all ranks; None where nobody looked.
    """

    plan: CollectivePlan
    count: int
    algorithm: str | None
    time_ns: float
    time_ns_min: float
    time_ns_max: float
    wrong: int | None

    @property
    def size_bytes(self) -> int:
        """As nccl-tests counts it."""
        return self.plan.size_bytes(self.count)

    @property
    def bytes_per_second(self) -> float:
        """Algorithm bandwidth."""
        return self.size_bytes * NS_PER_S / self.time_ns

    @property
    def bus_bytes_per_second(self) -> float:
        """Bus bandwidth."""
        return self.bytes_per_second * self.plan.facts.bus_factor(self.plan.ranks)

    def __str__(self) -> str:
        """Return a row of the table."""
        plan = self.plan
        redop = plan.op if plan.facts.reduces else "none"
        root = plan.root if plan.facts.rooted else -1
        wrong = "N/A" if self.wrong is None else self.wrong
        row = _line(
            self.size_bytes,
            self.count,
            plan.type_name,
            redop,
            root,
            _short(self.time_ns / NS_PER_US),
            _short(self.bytes_per_second / GIGA),
            _short(self.bus_bytes_per_second / GIGA),
            wrong,
        )
        return row if len(plan.algorithms) == 1 else f"{row}  {self.algorithm}"

    def to_json(self) -> dict[str, Any]:
        """Return plain values, under the names that other tests of mrc-perf have for them."""
        plan = self.plan
        return {
            "kind": plan.collective.value,
            "message_bytes": self.size_bytes,
            "operations": plan.iterations * plan.rounds,
            "bits_per_second": 8 * self.bytes_per_second,
            "bus_bits_per_second": 8 * self.bus_bytes_per_second,
            "elements": self.count,
            "element_type": plan.type_name,
            "op": plan.op if plan.facts.reduces else None,
            "root": plan.root if plan.facts.rooted else None,
            "algorithm": self.algorithm,
            "seconds": self.time_ns / NS_PER_S,
            "seconds_min": self.time_ns_min / NS_PER_S,
            "seconds_max": self.time_ns_max / NS_PER_S,
            "wrong_elements": self.wrong,
            "complete": True,
        }


def _short(value: float) -> str:
    """Four digits or so, as nccl-tests has them, and as many of what is less than a hundredth."""
    if 0 < value < 0.01:
        return f"{value:#.4g}"
    decimals = 0 if value >= 10_000 else 1 if value >= 100 else 2 if value >= 1 else 4
    return f"{value:.{decimals}f}"


def average_bus_bytes_per_second(tests: Sequence[CollectiveTest]) -> float | None:
    """Return the mean bus bandwidth of all tests, small and large alike, as nccl-tests does it.

    Algorithms that are compared have none together.
    """
    if len(tests[0].plan.algorithms) > 1:
        return None
    return fmean(test.bus_bytes_per_second for test in tests)


def closing_lines(tests: Sequence[CollectiveTest]) -> list[str]:
    """Return the last lines of a table, in the words of nccl-tests."""
    wrong = sum(bool(test.wrong) for test in tests)
    average = average_bus_bytes_per_second(tests)
    lines = []
    if tests[0].wrong is not None:
        lines.append(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
    if average is not None:
        lines.append(f"# Avg bus bandwidth    : {average / GIGA:.6g}")
    return lines
