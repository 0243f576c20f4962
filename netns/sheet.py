"""The sheet of paper that a picture is drawn on: style, heading, verdict, and panels in rows."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from netns.panels import BAD, INK, LINES, MUTED
from netns.readings import errors, missed, part, parts, text, transport_name

GREEN = "#00735a"
DPI = 100
WIDTH = 14.0
LEFT, RIGHT = 1.35, 0.75
MARGIN = 0.4
"""Margins in inches; a panel's own height and the room above it are inches as well."""
TITLE_ROOM = 0.46
AXIS_ROOM = 0.42
BETWEEN = 1.15
SUBTITLE_COLUMNS = 155
ERRORS_MAX = 5
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "text.color": INK,
    "axes.edgecolor": "#a7b0b8",
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlepad": 6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 9,
    "ytick.labelsize": 8.5,
    "image.interpolation": "nearest",
    "path.simplify": True,
    "savefig.bbox": "standard",
    "savefig.dpi": "figure",
    "agg.path.chunksize": 20000,
}


@dataclass(frozen=True)
class Panel:
    """What is drawn in one place."""

    title: str
    draw: Callable[[Axes], None]
    span_s: tuple[float, float]
    since_s: float | None = None
    """The time axis counts milliseconds from here; None: seconds from the start."""


@dataclass(frozen=True)
class Row:
    """Panels beside each other."""

    height: float
    panels: tuple[Panel, ...]
    room: float = TITLE_ROOM
    ends_axis: bool = False


def print_sheet(
    report: Mapping[str, Any], rows_of: Callable[[Mapping[str, Any]], list[Row]], path: Path
) -> None:
    """Draw heading and rows and write them as PNG.

    Args:
        report: what the heading is about.
        rows_of: says what comes below it; called with the style in force.
        path: the file to write.
    """
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        rows = rows_of(report)
        lines = _heading(report)
        top = 0.25 + sum(height for height, _ in lines)
        height = top + 0.25 + sum(r.room + r.height + r.ends_axis * AXIS_ROOM for r in rows)
        figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white")
        y = height - 0.25
        for line_height, properties in lines:
            y -= line_height
            figure.text(y=(y + 0.07) / height, **properties)
        _verdict(figure, report)
        for row in rows:
            y -= row.room + row.height
            _place(figure, row, y)
            y -= row.ends_axis * AXIS_ROOM
        figure.savefig(path, format="png")


def _place(figure: Figure, row: Row, bottom: float) -> None:
    height = figure.get_figheight()
    width = (WIDTH - LEFT - RIGHT - BETWEEN * (len(row.panels) - 1)) / len(row.panels)
    for column, panel in enumerate(row.panels):
        left = LEFT + column * (width + BETWEEN)
        axes = figure.add_axes(
            (left / WIDTH, bottom / height, width / WIDTH, row.height / height), xlim=panel.span_s
        )
        panel.draw(axes)
        axes.set_xlim(panel.span_s)
        axes.set_title(panel.title)
        axes.grid(axis="x", color=LINES, linewidth=0.7)
        if panel.since_s is not None:
            _count_from(axes, panel.since_s)
        elif row.ends_axis:
            axes.set_xlabel("seconds since the start")
        else:
            axes.tick_params(axis="x", labelbottom=False, length=0)


def _count_from(axes: Axes, since_s: float) -> None:
    begin_s, end_s = axes.get_xlim()
    step_ms = next(each for each in (20, 50, 100, 250, 500) if (end_s - begin_s) * 1e3 / each < 11)
    first = int(np.ceil((begin_s - since_s) * 1e3 / step_ms))
    last = int(np.floor((end_s - since_s) * 1e3 / step_ms + 1e-6))
    ticks_ms = [step_ms * k for k in range(first, last + 1)]
    axes.set_xticks([since_s + ms / 1e3 for ms in ticks_ms], [str(ms) for ms in ticks_ms])
    axes.set_xlabel("ms since the fault")


def _heading(report: Mapping[str, Any]) -> list[tuple[float, dict[str, Any]]]:
    """Return height and properties of each line above the panels."""
    scenario = part(report, "scenario")
    title = text(scenario, "title") or text(scenario, "name") or "A run without a name"
    big = {"x": MARGIN / WIDTH, "fontsize": 17, "fontweight": "bold"}
    lines = [(0.36, big | {"s": textwrap.shorten(title, 75, placeholder=" …")})]
    what = textwrap.wrap(text(scenario, "what"), SUBTITLE_COLUMNS, max_lines=3, placeholder=" …")
    small = {"x": MARGIN / WIDTH, "fontsize": 10.5, "color": MUTED}
    lines += [(0.21, small | {"s": each}) for each in what]
    transports = [transport_name(run) for run in parts(report, "runs")]
    facts = [
        text(scenario, "topology") and f"topology {text(scenario, 'topology')}",
        text(scenario, "mtu") and f"MTU {text(scenario, 'mtu')}",
        ", ".join(transports),
        text(part(report, "machine"), "date")[: len("2026-05-04T12:30")].replace("T", " "),
    ]
    lines.append((0.23, small | {"s": "  ·  ".join(filter(None, facts)), "fontsize": 9}))
    wrong = [*errors(report), *missed(report)]
    more = len(wrong) - ERRORS_MAX
    wrong = wrong[:ERRORS_MAX] + ([f"and {more} more"] if more > 0 else [])
    red = small | {"color": BAD, "fontweight": "bold"}
    return lines + [
        (0.22, red | {"s": textwrap.shorten(each, SUBTITLE_COLUMNS - 10, placeholder=" …")})
        for each in wrong
    ]


def _verdict(figure: Figure, report: Mapping[str, Any]) -> None:
    passed = report.get("passed")
    expected = parts(report, "expectations")
    met = sum(each.get("must_met") is True for each in expected)
    word, colour = "NOT JUDGED", MUTED
    if isinstance(passed, bool):
        word, colour = ("PASSED", GREEN) if passed else ("FAILED", BAD)
    box = {"facecolor": colour, "linewidth": 0, "boxstyle": "round,pad=0.4"}
    figure.text(
        1 - (MARGIN + 0.05) / WIDTH,
        1 - 0.43 / figure.get_figheight(),
        f"{word}  {met} of {len(expected)}" if expected else word,
        ha="right",
        va="center",
        color="white",
        fontweight="bold",
        bbox=box,
    )
