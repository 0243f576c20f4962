"""What a run says: a line for each measurement as it ends, the table, and the JSON document."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.comparison import Failure, Outcome, Row
from mrc.udp import probe_caps

NUMBERS = ("median", "min", "max", "pairs", "must", "aim")
SCHEMA = "mrc-bench/2"
PACKAGES = ("mrc-transport", "numpy", "isal", "uvloop", "cryptography", "aioquic", "kcp")


def machine() -> dict[str, Any]:
    """Describe what this ran on, as far as it bears on the numbers."""
    return {
        "time_unix_s": time.time(),
        "cpu": _first(r"^model name\s*:\s*(.+)$", "/proc/cpuinfo"),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_kib": int(_first(r"^MemTotal:\s*(\d+) kB$", "/proc/meminfo") or 0),
        "load_average": os.getloadavg(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "udp": asdict(probe_caps(2)),
    }


def _first(pattern: str, file: str) -> str:
    found = re.search(pattern, Path(file).read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else ""


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def machine_line(found: dict[str, Any]) -> str:
    """Sum the machine up in one line."""
    load = found["load_average"][0]
    return (
        f"{found['cpu'] or 'unknown processor'}, {found['cpus']} cpus, kernel {found['kernel']},"
        f" Python {found['python']}, load {load:.1f} before the run"
    )


def run_line(comparison: str, variant: str, run: Outcome | Failure) -> str:
    """Tell of one run as it ends."""
    if isinstance(run, Failure):
        details = "".join(f"\n    {line}" for line in run.details)
        return f"{comparison}: {variant}: {run.status.value}: {run.why}{details}"
    numbers = ", ".join(f"{name} {_number(value)}" for name, value in run.metrics.items())
    return f"{comparison}: {variant}: {numbers}"


def print_table(rows: Sequence[Row], console: Console) -> None:
    """Print all rows, and below them what is to be said about some."""
    table = Table("", box=box.SIMPLE)
    for title in ("median", "min", "max", "pairs", "unit", "must", "aim", "reached"):
        justify: Literal["left", "right"] = "right" if title in NUMBERS else "left"
        table.add_column(title, justify=justify, no_wrap=True, min_width=len(title))
    noted: dict[str, int] = {}
    for row, following in zip_longest(rows, rows[1:]):
        marks = [f"[{noted.setdefault(note, len(noted) + 1)}]" for note in row.notes]
        name = Text(" ".join([row.name, *marks]))
        bounds = [_bound(row, row.must), _bound(row, row.aim), _reached(row)]
        table.add_row(name, *_numbers(row), str(row.pairs), row.unit, *bounds)
        if following is not None and following.comparison != row.comparison:
            table.add_section()
    console.print(table)
    for note, number in noted.items():
        console.print(Text(f"[{number}] {note}"))


def _numbers(row: Row) -> list[str]:
    """Median, minimum and maximum, or why there are none."""
    found = [_number(value) for value in (row.median, row.min, row.max) if value is not None]
    return found or [row.status.value, "", ""]


def _bound(row: Row, bound: float | None) -> str:
    """What the median is held against."""
    if bound is None:
        return ""
    return f"{'>' if row.better == 'more' else '<'}= {_number(bound)}"


def _reached(row: Row) -> str:
    """How far the median got."""
    if row.reaches(row.aim):
        return "aim"
    if row.reaches(row.must):
        return "must"
    return "" if row.reaches(row.must) is None and row.reaches(row.aim) is None else "short"


def document(
    about: dict[str, Any], settings: dict[str, Any], rows: Sequence[Row], runs: Sequence[Any]
) -> dict[str, Any]:
    """Build the JSON document."""
    return {
        "schema": SCHEMA,
        "machine": about,
        "settings": settings,
        "rows": [asdict(row) | {"status": row.status.value} for row in rows],
        "runs": list(runs),
    }


def _number(value: float) -> str:
    """Three digits that mean something."""
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
