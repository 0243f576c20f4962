"""The picture: how long each step took, over each backend, and what was learnt meanwhile."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from training.classroom import Training
from training.figures import DISTURBED, OTHERS, OURS, UNDISTURBED, Row, Trainings

COLOURS = {OURS: "#0072b2", OTHERS: "#d55e00"}
NAMES = {OURS: "mrc, four planes", OTHERS: "gloo, TCP over the plane that dies"}
INK, MUTED, LINES = "#1f2930", "#5b6770", "#dfe4e8"
SIZE_INCHES = (9.6, 5.6)
DPI = 100
COLOURS_MAX = 64
LABEL_OFFSETS = {OURS: (8, -38), OTHERS: (8, 2)}
"""In points, from the longest step to the words about it: ours have room below."""
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": "#a7b0b8",
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
}


def draw(rows: list[Row], trainings: Trainings, path: Path) -> None:
    """Draw all trainings as a PNG.

    Args:
        rows: the numbers of each backend.
        trainings: what they are from.
        path: the file to write.

    Raises:
        OSError: it cannot be written.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=SIZE_INCHES, dpi=DPI, layout="constrained", facecolor="white")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        _steps(upper, rows, trainings)
        _losses(lower, rows, trainings)
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png")
    # A third of the size, for as many colours as there are and what lies between them.
    Image.open(drawn).convert("RGB").quantize(COLOURS_MAX).save(path, format="png", optimize=True)


def _steps(axes: Axes, rows: list[Row], trainings: Trainings) -> None:
    dead_s = max(trainings[row.backend][DISTURBED].dead_s for row in rows)
    axes.set_title(
        f"Time of each training step, one plane of four dead for {dead_s:.2g} s;"
        " thin: without the fault"
    )
    axes.set_yscale("log")
    axes.set_ylabel("ms, logarithmic")
    axes.grid(axis="y", color=LINES, linewidth=0.7)
    for row in rows:
        hit = trainings[row.backend][DISTURBED]
        colour = COLOURS[row.backend]
        _shade(axes, hit, colour)
        still_ms = trainings[row.backend][UNDISTURBED].steps_ms
        axes.plot(still_ms, color=colour, linewidth=0.8, alpha=0.35)
        axes.plot(hit.steps_ms, color=colour, linewidth=1.4, label=NAMES[row.backend])
        words = f"{row.longest_ms:,.0f} ms, {row.medians:.3g} medians"
        axes.annotate(
            words,
            (row.longest_step, row.longest_ms),
            xytext=LABEL_OFFSETS[row.backend],
            textcoords="offset points",
            color=colour,
            fontweight="bold",
        )
    seen = [step for row in rows for step in trainings[row.backend][DISTURBED].steps_ms]
    axes.set_ylim(0.5 * min(seen), 2 * max(seen))
    axes.legend(loc="upper right", frameon=False)


def _shade(axes: Axes, hit: Training, colour: str) -> None:
    """Shade the steps in which the plane was dead: one that takes for ever is one of them."""
    if hit.dead_steps:
        axes.axvspan(hit.dead_steps[0] - 0.5, hit.dead_steps[-1] + 0.5, color=colour, alpha=0.12)


def _losses(axes: Axes, rows: list[Row], trainings: Trainings) -> None:
    axes.set_title("Loss: with the dead plane (lines) and without (dots)")
    axes.set_ylabel("cross entropy, logarithmic")
    axes.set_xlabel("step; shaded, in each one's colour: its steps while the plane was dead")
    axes.set_yscale("log")
    axes.grid(axis="y", color=LINES, linewidth=0.7)
    for row, width in zip(rows, (3.2, 1.2), strict=False):
        colour = COLOURS[row.backend]
        hit = trainings[row.backend][DISTURBED]
        _shade(axes, hit, colour)
        axes.plot(hit.losses, color=colour, linewidth=width, alpha=0.6, label=row.backend)
        still = np.array(trainings[row.backend][UNDISTURBED].losses)
        every = range(0, len(still), max(1, len(still) // 30))
        axes.plot(every, still[list(every)], ".", color=colour, markersize=4)
    axes.legend(loc="upper right", frameon=False)
