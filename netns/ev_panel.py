"""The panel of EVs: a row for each path, so that a dead plane is a red block."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Patch

from netns.panels import (
    BAD,
    DENIED,
    IDLE,
    INK,
    MUTED,
    PIXELS_PER_CHARACTER,
    Faults,
    key,
    plane_colour,
)
from netns.readings import Grid, Part, changes, part, parts, paths_in_order, states, text, unused

FASTER = LinearSegmentedColormap.from_list("faster", ["#e8f0f5", "#9cc3dc", "#4a8bb5"])
REACTIONS_MAX = 8
"""With more faults than this there is no room to write after each how fast it was answered."""


def ev_rows(flow: Part) -> tuple[list[tuple[str, list[Part], float]], float]:
    """Return plane, paths and first row of each group of paths, and how many rows that is."""
    groups: list[tuple[str, list[Part], float]] = []
    row = 0.0
    for plane, same in itertools.groupby(paths_in_order(flow), lambda path: text(path, "plane")):
        members = list(same)
        gap = max(0.35, 0.02 * len(parts(flow, "paths"))) if groups else 0.0
        groups.append((plane, members, row + gap))
        row += gap + len(members)
    return groups, row


def ev_states(axes: Axes, grid: Grid, flow: Part, faults: Faults, words: bool = True) -> None:
    """Draw a row per EV: darker is faster, red is withdrawn, black is denied by the peer."""
    groups, height = ev_rows(flow)
    speeds = [[grid.mbps(part(path, "bytes")) for path in paths] for _, paths, _ in groups]
    every = np.concatenate([np.asarray(each).ravel() for each in speeds])
    fastest = float(np.percentile(every[every > 0], 98)) if np.any(every > 0) else 1.0
    ticks: list[tuple[float, str]] = []
    seen: set[str] = set()
    for (plane, paths, first), speed in zip(groups, speeds, strict=True):
        extent = (grid.begin_s, grid.end_s, first + len(paths), first)
        image = np.asarray(speed)
        axes.imshow(image, FASTER, aspect="auto", extent=extent, vmin=0, vmax=fastest, zorder=1)
        for row, path in enumerate(paths, 1):
            begin = first + row - 1
            ticks.append((begin + 0.5, text(path, "index")))
            if unused(path):
                axes.axhspan(begin, begin + 1, color=IDLE, linewidth=0, zorder=2)
                seen.add("unused")
            for state, colour in (("assumed_bad", BAD), ("denied", DENIED)):
                bars = [
                    (since_s, until_s - since_s)
                    for was, since_s, until_s in states(path, grid.end_s)
                    if was == state
                ]
                if bars:
                    axes.broken_barh(bars, (begin, 1), color=colour, linewidth=0.6, zorder=3)
                    seen.add(state)
        _plane_mark(axes, plane, first, len(paths))
        if words and len(faults) <= REACTIONS_MAX:
            _reactions(axes, paths, first + len(paths) / 2, faults, grid.end_s)
    axes.set_ylim(height, 0)
    axes.set_yticks([])
    if words and axes.bbox.height / max(height, 1) >= 11:
        axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks], fontsize=7)
    axes.tick_params(axis="y", length=0, pad=2, colors=MUTED)
    if words:
        marks: dict[str, Any] = {"good, darker is faster": FASTER(0.75)}
        marks |= {"assumed bad": BAD} if "assumed_bad" in seen else {}
        marks |= {"denied": DENIED} if "denied" in seen else {}
        marks |= {"backup, not used": "#dde2e5"} if "unused" in seen else {}
        key(axes, [(name, Patch(color=colour)) for name, colour in marks.items()])


def _plane_mark(axes: Axes, plane: str, first: float, count: int) -> None:
    along = axes.get_yaxis_transform()
    bar: dict[str, Any] = {"transform": along, "clip_on": False, "solid_capstyle": "butt"}
    x = -22 / axes.bbox.width
    axes.plot([x, x], [first, first + count], color=plane_colour(plane), linewidth=5, **bar)
    axes.text(
        x - 6 / axes.bbox.width,
        first + count / 2,
        f"plane {plane}",
        transform=along,
        ha="right",
        va="center",
        fontsize=9,
    )


def reaction_ms(
    paths: Sequence[Part], state: str, begin_s: float, end_s: float
) -> tuple[int, float, float] | None:
    """Return how many paths took a state in a time, and after how long the first and the last."""
    firsts = [
        min(found)
        for path in paths
        if (found := [at for at, new, _ in changes(path) if new == state and begin_s <= at < end_s])
    ]
    if not firsts:
        return None
    return len(firsts), (min(firsts) - begin_s) * 1e3, (max(firsts) - begin_s) * 1e3


def abandoned(
    paths: Sequence[Part], begin_s: float, end_s: float
) -> tuple[int, float, float] | None:
    """Return what `reaction_ms` does for EVs being left, if half of those in use were."""
    left = reaction_ms(paths, "assumed_bad", begin_s, end_s)
    return (
        left if left is not None and left[0] * 2 >= len(paths) - sum(map(unused, paths)) else None
    )


def _reactions(
    axes: Axes, paths: Sequence[Part], middle: float, faults: Faults, end_s: float
) -> None:
    """Write into the block of a plane how fast its EVs left and came back."""
    begins = [begin_s for begin_s, _, _ in faults]
    for begin_s, until_s, _ in faults:
        left = abandoned(paths, begin_s, until_s)
        if left is None:
            continue
        following_s = min((other for other in begins if other > begin_s), default=end_s)
        words = f"{left[0]} EVs left after {_between(left[1], left[2])} ms"
        _note(axes, begin_s + left[2] / 1e3, min(until_s, following_s), middle, words, "white")
        following_s = min((other for other in begins if other > until_s), default=end_s)
        back = reaction_ms(paths, "good", until_s, following_s)
        if until_s < end_s and back is not None:
            words = f"{back[0]} back after {_between(back[1], back[2])} ms"
            _note(axes, until_s + back[2] / 1e3, following_s, middle, words, INK)


def _between(low: float, high: float) -> str:
    first, last = (f"{value:.1f}" if high < 10 else f"{value:.0f}" for value in (low, high))
    return first if first == last else f"{first} to {last}"


def _note(axes: Axes, left_s: float, right_s: float, y: float, words: str, colour: str) -> None:
    begin_s, end_s = axes.get_xlim()
    pixel_s = (end_s - begin_s) / axes.bbox.width
    if len(words) * PIXELS_PER_CHARACTER + 24 > (right_s - left_s) / pixel_s:
        return
    box = {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "boxstyle": "round,pad=0.25"}
    axes.text(
        left_s + 12 * pixel_s,
        y,
        words,
        color=colour,
        va="center",
        fontsize=9,
        fontweight="bold",
        zorder=5,
        bbox=None if colour == "white" else box,
    )
