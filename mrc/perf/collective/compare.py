"""Which algorithm is fastest at each size: the limits in `mrc.collectives.choose` are from here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mrc.perf.collective.figures import CollectiveTest
from mrc.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class Fastest:
    """The algorithms at one size.

    Attributes:
        tests: one an algorithm, the fastest first.
        chosen: what `mrc.collectives.choose` takes.
    """

    tests: tuple[CollectiveTest, ...]
    chosen: str | None

    def __str__(self) -> str:
        """Return a line for people."""
        first, *others = self.tests
        behind = "".join(
            f", {other.algorithm} takes {other.time_ns / first.time_ns:.2f} times as long"
            for other in others
        )
        return f"#{first.size_bytes:>11} {first.algorithm}{behind}; chosen: {self.chosen}"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "message_bytes": self.tests[0].size_bytes,
            "fastest": self.tests[0].algorithm,
            "chosen": self.chosen,
            "seconds": {str(test.algorithm): test.time_ns / NS_PER_S for test in self.tests},
        }


def fastest(tests: Sequence[CollectiveTest]) -> list[Fastest]:
    """Sort the algorithms of every size, where there were several."""
    by_count: dict[int, list[CollectiveTest]] = {}
    for test in tests:
        by_count.setdefault(test.count, []).append(test)
    return [
        Fastest(tuple(sorted(each, key=lambda test: test.time_ns)), each[0].plan.chosen(count))
        for count, each in by_count.items()
        if len(each) > 1
    ]
