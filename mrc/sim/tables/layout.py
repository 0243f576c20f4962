"""Tables as text: one head, one line a row, cells right-aligned, nothing but spaces between.

Cells hold few digits, so that a table is the same on every machine and in every release of Python.
"""

from __future__ import annotations

from collections.abc import Iterable

Row = dict[str, str]
"""Cells by the name of their column, in the order of the columns; no cell is empty or has spaces.
"""


def text_of(rows: Iterable[Row]) -> str:
    """Return a table; all rows have the same columns."""
    found = list(rows)
    lines = [list(found[0]), *(list(row.values()) for row in found)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)) + "\n"
        for line in lines
    )


def rows_of(text: str) -> list[Row]:
    """Read a table back from its text."""
    head, *lines = [line.split() for line in text.splitlines()]
    return [dict(zip(head, line, strict=True)) for line in lines]


def ms(duration_ns: int | None) -> str:
    """Return a duration in milliseconds to two digits, or a dash."""
    return "-" if duration_ns is None else f"{duration_ns / 1e6:.2f}"


def percent(part: float, whole: float) -> str:
    """Return a share in percent to one digit."""
    return f"{100 * part / whole:.1f}"


def jain(values: list[int]) -> float:
    """Return Jain's index of fairness: 1 when all are equal, 1/n when one has everything."""
    squares = len(values) * sum(value * value for value in values)
    return sum(values) ** 2 / squares if squares else 0.0
