"""What a feature costs: runs without it and with it in turns, and the ratio of each pair.

Taking turns is what makes the ratio mean something where other programs come and go: both runs of a
pair see about the same machine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from mrc.perf.report import SizeReport
from mrc.perf.settings import Kind
from mrc.units import NS_PER_US

OPTIONS = {"lock": ((), ("--lock",)), "icrc": (("--icrc", "off"), ("--icrc", "on"))}
"""Options of the listener without and with each feature that can be compared."""
NAMES = {"lock": ("not locked", "locked"), "icrc": ("iCRC off", "iCRC on")}

Measure = Callable[[bool], Awaitable[Sequence[SizeReport]]]
"""Runs the plan once, without the feature or with it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the comparison, of one message size.

    Attributes:
        message_bytes: of each message.
        name: of the variant, or of the ratio.
        unit: of the figures; empty for a ratio.
        figures: one a pair.
    """

    message_bytes: int
    name: str
    unit: str
    figures: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "message_bytes": self.message_bytes,
            "name": self.name,
            "unit": self.unit or None,
            "median": median(self.figures),
            "min": min(self.figures),
            "max": max(self.figures),
            "figures": list(self.figures),
        }

    def __str__(self) -> str:
        """Return a line of the table."""
        low, middle, high = min(self.figures), median(self.figures), max(self.figures)
        name = f"{self.name} ({self.unit})" if self.unit else self.name
        return f"{self.message_bytes:<14}{name:<26}{middle:<12.3f}{low:<12.3f}{high:.3f}"


HEADING = f"{'MsgSize':<14}{'what':<26}{'median':<12}{'min':<12}max"


class Comparison:
    """Pairs of runs.

    Args:
        feature: a key of `OPTIONS`.
        kind: of test: bandwidth is compared by Gbps, latency by the median in microseconds.

    Attributes:
        pairs: complete so far: the figure of each message size, without and with.
    """

    def __init__(self, feature: str, kind: Kind) -> None:
        self._feature = feature
        self._kind = kind
        self.pairs: list[dict[int, tuple[float, float]]] = []

    async def run(self, measure: Measure, pairs: int) -> None:
        """Measure so many pairs; every second one begins with the other variant."""
        for number in range(pairs):
            order = (False, True) if number % 2 == 0 else (True, False)
            tests = {enabled: await measure(enabled) for enabled in order}
            self.pairs.append(
                {
                    without.message_bytes: (self._figure(without), self._figure(enabled))
                    for without, enabled in zip(tests[False], tests[True], strict=True)
                }
            )

    def _figure(self, test: SizeReport) -> float:
        if self._kind is Kind.LATENCY:
            return test.latency.p50_ns / NS_PER_US if test.latency is not None else 0.0
        return test.bits_per_second / 1e9

    def rows(self) -> list[Row]:
        """Return what the pairs come to: of each size both variants, and their ratio."""
        unit = "p50 us" if self._kind is Kind.LATENCY else "Gbps"
        without, enabled = NAMES[self._feature]
        rows = []
        for size in self.pairs[0] if self.pairs else ():
            figures = [pair[size] for pair in self.pairs]
            ratios = tuple(after / before for before, after in figures if before)
            rows += [
                Row(size, without, unit, tuple(before for before, _ in figures)),
                Row(size, enabled, unit, tuple(after for _, after in figures)),
            ]
            if ratios:
                rows.append(Row(size, f"{enabled} / {without}", "", ratios))
        return rows

    def to_json(self) -> dict[str, Any]:
        """Return the member of the document that tells of it."""
        return {
            "feature": self._feature,
            "pairs": len(self.pairs),
            "rows": [row.to_json() for row in self.rows()],
        }
