"""The picture of a run: what the transport did, and the faults, on one axis of time.

    draw(json.loads(path.read_text()), Path("report.png"))

One transport gives faults, goodput per plane (or per flow where there are several), the states of
all EVs, events per bin, RTT and window, completion times, and the first fault enlarged. Several
transports give their goodput over each other, goodput per plane for each, and MRC's EVs. Panels
for which a report holds nothing are left out.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes

from netns import ev_panel, panels
from netns.panels import MUTED, Faults
from netns.readings import (
    Grid,
    Part,
    bins_around,
    busiest,
    changes,
    columns,
    completions_ms,
    fault_spans,
    grid_of,
    number,
    part,
    parts,
    pieces,
    text,
    total,
    transport_name,
)
from netns.sheet import TITLE_ROOM, Panel, Row, print_sheet

CLOSE = 0.07
"""Room between the lanes of events, in inches."""
ZOOM_BEFORE_S = 0.05
ZOOM_IDLE_S = 0.2
"""Shown when no plane is left because of the fault."""
ZOOM_AFTER_S = (0.1, 0.2, 0.4, 1.0, 2.0)


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Draw the picture of a report as a PNG, 1400 pixels wide.

    Args:
        report: what a scenario's run has left; anything may be missing.
        path: the file to write.

    Raises:
        OSError: the file cannot be written.
    """
    print_sheet(report, _rows, path)


def _rows(report: Mapping[str, Any]) -> list[Row]:
    runs = parts(report, "runs")
    warmup_s = number(part(report, "scenario"), "warmup_s") or 0.0
    known = [run for run in runs if any(map(_has_something, parts(run, "flows")))]
    known.sort(key=lambda run: text(run, "transport") != "mrc")
    if not known:
        words = "No flow has left anything to draw."
        return [Row(0.8, (Panel("", partial(_only_words, words=words), (0, 1)),))]
    grid = grid_of(known)
    faults = next((spans for run in known if (spans := fault_spans(run, grid.end_s))), [])
    lanes = panels.fault_lanes(faults)
    rows = []
    if lanes or warmup_s:
        strip = partial(panels.fault_strip, grid=grid, lanes=lanes, warmup_s=warmup_s)
        panel = Panel("", strip, (0, grid.end_s))
        rows.append(Row(0.25 * max(1, len(lanes)), (panel,), room=0.2))
    several = len(known) > 1
    if several:
        rows += _compared(known, grid, faults)
    else:
        ranks = text(part(report, "scenario"), "traffic") == "all-reduce"
        moved = "Operation" if ranks else "Message"
        rows += _alone(known[0], grid, faults, moved=moved)
    rows[-1] = Row(rows[-1].height, rows[-1].panels, rows[-1].room, ends_axis=True)
    return [*rows, *_enlarged(known, faults)]


def _has_something(flow: Part) -> bool:
    return (
        panels.carried(flow)
        or bool(completions_ms(flow)[0].size)
        or any(changes(path) or total(part(path, "bytes")) for path in parts(flow, "paths"))
    )


def _only_words(axes: Axes, words: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, words, ha="center", va="center", fontsize=14, color=MUTED)


def _bin(grid: Grid) -> str:
    return f"{grid.width_s:g} s bin" if grid.width_s >= 1 else f"{grid.width_s * 1e3:g} ms bin"


def _bins(grid: Grid) -> str:
    return f"{_bin(grid)}s"


def _row(
    height: float, title: str, grid: Grid, faults: Faults, function: Callable[[Axes], None]
) -> Row:
    def drawn(axes: Axes) -> None:
        panels.shade(axes, faults)
        function(axes)

    return Row(height, (Panel(title, drawn, (0, grid.end_s)),))


def _goodput(
    run: Part, grid: Grid, faults: Faults, height: float, title: str, top: float | None = None
) -> Row:
    function = partial(
        panels.goodput_per_plane,
        grid=grid,
        flows=parts(run, "flows"),
        faults=faults,
        metrics=part(run, "metrics"),
        top=top,
    )
    return _row(height, title, grid, faults, function)


def _alone(run: Part, grid: Grid, faults: Faults, *, moved: str) -> Iterator[Row]:
    flows = parts(run, "flows")
    moving = [flow for flow in flows if panels.carried(flow)]
    if len(flows) == 1 and moving:
        title = f"Goodput per plane, {_bins(grid)}"
        yield _goodput(run, grid, faults, 2.5, title)
    elif moving:
        steady = panels.STEADY_BINS * grid.width_s * 1e3
        many = len(moving) >= panels.STEADY_FROM_FLOWS
        title = f"Goodput per flow, {f'mean over {steady:g} ms' if many else _bins(grid)}"
        lines = [
            panels.Line(name, colour, grid.mbps(part(flow, "goodput")))
            for name, colour, flow in _coloured(moving)
        ]
        yield _row(2.8, title, grid, faults, partial(panels.goodput_lines, grid=grid, lines=lines))
    focus = busiest(flows)
    of = f" of {text(focus, 'name')}" if len(flows) > 1 else ""
    yield from _evs(focus, grid, faults, f"State of each EV{of}, {_bins(grid)}")
    yield from _events(run, grid, faults)
    if columns(part(focus, "samples"), "at_s", "rtt_ms")[0].size:
        yield _row(
            1.5,
            f"Round-trip time and window{of}",
            grid,
            faults,
            partial(panels.rtt_and_window, flow=focus),
        )
    title = f"{moved} completion: {_spread(flows, grid.end_s)}"
    yield from _completions(_coloured(flows)[::-1], grid, faults, title)


def _coloured(flows: Sequence[Part]) -> list[tuple[str, str, Part]]:
    """Give flows their names and colours; one that goes elsewhere than the others stands out."""
    goals = Counter(text(flow, "to") for flow in flows)
    usual = max(goals.values(), default=0)
    odd = [flow for flow in flows if goals[text(flow, "to")] < usual]
    same = [flow for flow in flows if goals[text(flow, "to")] == usual]
    if not odd or len(goals) == len(flows):
        return [
            (text(flow, "name") or f"flow {position}", panels.colour_of(position), flow)
            for position, flow in enumerate(flows)
        ]
    tints = mpl.colormaps["Blues"](np.linspace(0.4, 0.95, len(same)))
    found = [(text(flow, "name"), "#d98200", flow) for flow in odd]
    return found + [
        (text(flow, "name"), mpl.colors.to_hex(tint), flow)
        for flow, tint in zip(same, tints, strict=True)
    ]


def _evs(flow: Part, grid: Grid, faults: Faults, title: str) -> Iterator[Row]:
    groups, count = ev_panel.ev_rows(flow)
    if groups:
        height = min(max(0.17 * count, 0.5 * len(groups), 0.9), max(3.8, 0.05 * count), 8.0)
        function = partial(ev_panel.ev_states, grid=grid, flow=flow, faults=faults)
        yield _row(height, title, grid, faults, function)


def _events(run: Part, grid: Grid, faults: Faults) -> Iterator[Row]:
    events = panels.events_per_bin(grid, run)
    there = {name: values for name, values in events.items() if values.max() > 0}
    highest = max((values.max() for values in there.values()), default=0)
    decades = bool(highest > 50)
    title = f"Packets per {_bin(grid)}{', logarithmic' if decades else ''}"
    none = ", ".join(name for name in events if name not in there)
    title += f"; none {none}" if none else ""
    for position, (name, values) in enumerate(there.items()):
        lane = partial(panels.event_lane, grid=grid, name=name, values=values, decades=decades)
        row = _row(0.42, "" if position else title, grid, faults, lane)
        yield Row(row.height, row.panels, CLOSE if position else TITLE_ROOM)


def _spread(flows: Sequence[Part], end_s: float = math.inf) -> str:
    """Return in words how long messages took, and how many were complete after the end."""
    times = [completions_ms(flow) for flow in flows]
    took_ms = np.concatenate([[], *(took_ms for _, took_ms in times)])
    if not took_ms.size:
        return "none"
    values = (*np.percentile(took_ms, (50, 99)), took_ms.max())
    half, most, longest = (f"{v:.3g}" if v < 999.5 else f"{v:,.0f}" for v in values)
    late = sum(int((at_s > end_s).sum()) for at_s, _ in times)
    after = f" ({late} after the end)" if late else ""
    return f"p50 {half}, p99 {most}, longest {longest} ms{after}"


def _completions(
    named: Sequence[tuple[str, str, Part]], grid: Grid, faults: Faults, title: str
) -> Iterator[Row]:
    if any(completions_ms(flow)[1].size for _, _, flow in named):
        function = partial(panels.completion_dots, named_flows=named)
        yield _row(1.5, title, grid, faults, function)


def _lines(runs: Sequence[Part], grid: Grid) -> list[panels.Line]:
    """Return the goodput of each transport."""
    return [
        panels.Line(
            transport_name(run),
            panels.TRANSPORTS.get(text(run, "transport"), panels.colour_of(position + 2)),
            np.sum([grid.mbps(part(flow, "goodput")) for flow in parts(run, "flows")], axis=0),
        )
        for position, run in enumerate(runs)
    ]


def _compared(runs: Sequence[Part], grid: Grid, faults: Faults) -> Iterator[Row]:
    lines = _lines(runs, grid)
    dots = []
    for run, line in zip(runs, lines, strict=True):
        flows = parts(run, "flows")
        dots += [(f"{line.name}: {_spread(flows)}", line.colour, flow) for flow in flows]
    overlay = partial(panels.goodput_lines, grid=grid, lines=lines)
    yield _row(2.6, f"Goodput of each transport, {_bins(grid)}", grid, faults, overlay)
    top = panels.scale_of([line.mbps for line in lines])
    for run in runs:
        if any(pieces(flow) for flow in parts(run, "flows")):
            title = f"{transport_name(run)}, goodput per plane"
            yield _goodput(run, grid, faults, 1.2, title, top)
    for run in itertools.islice((each for each in runs if text(each, "transport") == "mrc"), 1):
        focus = busiest(parts(run, "flows"))
        yield from _evs(focus, grid, faults, f"MRC, state of each EV, {_bins(grid)}")
    yield from _completions(dots[::-1], grid, faults, "Message completion")


def _enlarged(runs: Sequence[Part], faults: Faults) -> Iterator[Row]:
    """Show the first moments of the first fault on a time axis of its own."""
    run = next((each for each in runs if text(each, "transport") == "mrc"), runs[0])
    flow = busiest(parts(run, "flows"))
    later = [fault for fault in faults if 0 < fault[0] < grid_of(runs).end_s]
    if not later or not pieces(flow) or not parts(flow, "paths"):
        return
    at_s, until_s, what = later[0]
    until_s = min([until_s, *(fault[0] for fault in later if fault[0] > at_s)])
    groups, _ = ev_panel.ev_rows(flow)
    left = [ev_panel.abandoned(paths, at_s, until_s) for _, paths, _ in groups]
    wanted_s = max((1.5e-3 * each[2] for each in left if each is not None), default=ZOOM_IDLE_S)
    after_s = next((each for each in ZOOM_AFTER_S if each >= wanted_s), ZOOM_AFTER_S[-1])
    span_s = (at_s - ZOOM_BEFORE_S, at_s + after_s)
    fine = bins_around(span_s, runs)

    def goodput(axes: Axes) -> None:
        panels.shade(axes, faults)
        if len(runs) > 1:
            panels.goodput_lines(axes, fine, _lines(runs, fine), keyed=False)
        else:
            panels.goodput_per_plane(axes, fine, [flow], faults, {}, keyed=False)

    def evs(axes: Axes) -> None:
        panels.shade(axes, faults)
        ev_panel.ev_states(axes, fine, flow, faults, words=False)

    name = textwrap.shorten(what, 50, placeholder=" …") or "the first fault"
    first = Panel(f"Enlarged: {name}", goodput, span_s, at_s)
    second = Panel("", evs, span_s, at_s)
    yield Row(2.0, (first, second), ends_axis=True)
