"""The panels of the picture of a run: each function draws one kind of thing into one axes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from netns.readings import (
    Grid,
    Numbers,
    Part,
    bin_s,
    columns,
    completions_ms,
    number,
    part,
    parts,
    pieces,
    plane_order,
    total,
)

INK, MUTED, LINES = "#1d2329", "#5c666f", "#dfe4e8"
BAD, DENIED, IDLE = "#c3272b", "#2f3338", "#eceff1"
# After Okabe and Ito, without its reds, which mean death here, and without yellow on white.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#8c6d1f", "#5b4fa0", "#8a9299")
TRANSPORTS = {"mrc": "#0072b2", "mptcp": "#e69f00", "tcp": "#7b858d"}
EVENTS = {
    "dropped": BAD,
    "trimmed": "#c77700",
    "marked": "#5b4fa0",
    "retransmitted": "#0072b2",
    "spurious": "#cc79a7",
    "timeouts": INK,
    "probes": "#009e73",
}
KEY_BEGINS_PIXELS = 300
"""To the left of this is the title of a panel."""
PIXELS_PER_CHARACTER = 6.4
LANES_MAX = 6
WARM_UP = "warm-up, not judged"
USUAL_PERCENT = 97
"""What a rate reaches more rarely than this must not decide the scale."""
EDGES_MAX = 20
"""More faults than this are shaded only: lines at their begins and ends would hide the data."""
STEADY_FROM_FLOWS = 4
"""With this many flows a line each in single bins is a thicket; then a running mean is drawn."""
STEADY_BINS = 5
STEPS_BELOW_BINS = 300
"""So few bins are wide enough to be seen as such."""

Faults = Sequence[tuple[float, float, str]]


@dataclass(frozen=True)
class Line:
    """A curve of the overlay: its name, its colour and its values per bin."""

    name: str
    colour: str
    mbps: Numbers


def colour_of(position: int) -> str:
    """Return the colour of a plane or flow."""
    return COLOURS[position % len(COLOURS)]


def plane_colour(name: str) -> str:
    """Return the colour of a plane, the same in every panel."""
    return colour_of(int(name) if name.isdecimal() else 0)


def key(axes: Axes, entries: Iterable[tuple[str, Artist]]) -> None:
    """Write what the colours mean above the right end of a panel, where no data is."""
    listed = list(entries)
    room = axes.bbox.width - KEY_BEGINS_PIXELS
    fits = list(itertools.accumulate(len(name) * 6 + 40 for name, _ in listed))
    if fits and fits[-1] > room:
        shown = sum(end <= room - 100 for end in fits)
        more = f"and {len(listed) - shown} more"
        listed = [*listed[:shown], (more, Line2D([], [], linewidth=0))]
    if listed:
        axes.legend(
            [artist for _, artist in listed],
            [name for name, _ in listed],
            loc="lower right",
            bbox_to_anchor=(1.0, 1.0),
            ncols=len(listed),
            frameon=False,
            fontsize=9,
            handlelength=1.1,
            handletextpad=0.45,
            columnspacing=1.3,
            borderaxespad=0.15,
        )


def shade(axes: Axes, faults: Faults) -> None:
    """Show when something was broken."""
    along = axes.get_xaxis_transform()
    bars = [(begin_s, end_s - begin_s) for begin_s, end_s, _ in faults]
    axes.broken_barh(bars, (0, 1), color=BAD, alpha=0.07, linewidth=0, zorder=0, transform=along)
    if len(faults) <= EDGES_MAX:
        at_s = sorted({moment for fault in faults for moment in fault[:2]})
        axes.vlines(
            at_s, 0, 1, BAD, (0, (3, 3)), alpha=0.55, linewidth=0.8, transform=along, zorder=2.5
        )


def fault_lanes(faults: Faults) -> list[Faults]:
    """Sort faults into lanes: those of the same description share one, and are named once."""
    by_what = itertools.groupby(sorted(faults, key=lambda fault: fault[2]), lambda fault: fault[2])
    lanes: list[Faults] = [list(same) for _, same in by_what]
    return sorted(lanes, key=lambda lane: lane[0])[:LANES_MAX]


def fault_strip(axes: Axes, grid: Grid, lanes: Sequence[Faults], warmup_s: float) -> None:
    """Draw faults as bars with their description, and the warm-up."""
    axes.set_ylim(len(lanes) or 1, 0)
    axes.set_axis_off()
    if warmup_s > 0:
        axes.axvspan(0, warmup_s, color=LINES, linewidth=0, zorder=0)
        begins_s = [lane[0][0] for lane in lanes] or [grid.end_s]
        _warmup_words(axes, grid.end_s, warmup_s, begins_s)
    for row, lane in enumerate(lanes):
        bars = [(begin_s, max(end_s - begin_s, 0.0)) for begin_s, end_s, _ in lane]
        axes.broken_barh(bars, (row + 0.1, 0.8), color=BAD, linewidth=1)
        _fault_words(axes, grid.end_s, row + 0.5, lane)


def _warmup_words(axes: Axes, all_s: float, warmup_s: float, begins_s: Sequence[float]) -> None:
    """Say what the grey is, in it or beside it, in the first lane that is free for as long."""
    pixel_s = all_s / axes.bbox.width
    needs_s = (len(WARM_UP) * PIXELS_PER_CHARACTER + 12) * pixel_s
    inside = needs_s < warmup_s
    until_s = warmup_s if inside else warmup_s + needs_s
    row = next((row for row, begin_s in enumerate(begins_s) if until_s <= begin_s), None)
    if row is not None:
        at_s = 6 * pixel_s + (0 if inside else warmup_s)
        axes.text(at_s, row + 0.5, WARM_UP, va="center", fontsize=9, color=MUTED)


def _fault_words(axes: Axes, all_s: float, y: float, lane: Faults) -> None:
    """Write what a fault is into its bar, or beside it, or as much of it as there is room for."""
    begin_s, end_s, what = lane[0]
    words = what if len(lane) == 1 else f"{len(lane)} × {what}"
    pixel_s = all_s / axes.bbox.width
    needs_s = (len(words) * PIXELS_PER_CHARACTER * 1.1 + 16) * pixel_s
    gap_s = 6 * pixel_s
    style: dict[str, Any] = {"va": "center", "fontsize": 9, "fontweight": "bold"}
    if needs_s < end_s - begin_s:
        axes.text(begin_s + gap_s, y, words, color="white", **style)
    elif lane[-1][1] + needs_s < all_s:
        axes.text(lane[-1][1] + gap_s, y, words, color=BAD, **style)
    elif needs_s < begin_s:
        axes.text(begin_s - gap_s, y, words, color=BAD, ha="right", **style)
    else:
        room = int(((end_s - begin_s) / pixel_s - 16) / (PIXELS_PER_CHARACTER * 1.1))
        if room > 8:
            axes.text(begin_s + gap_s, y, words[: room - 2] + " …", color="white", **style)


def scale_of(curves: Sequence[Numbers]) -> float:
    """Return how far an axis should reach: to the highest value, unless that is a rare peak."""
    highest = max((float(each.max(initial=0.0)) for each in curves), default=0.0)
    usual = max((float(np.percentile(each, USUAL_PERCENT)) for each in curves), default=0.0)
    return 1.3 * usual if 0 < 1.6 * usual < highest else highest


def rates(axes: Axes, curves: Sequence[Numbers], top: float | None = None) -> None:
    """Label the left axis as a rate that begins at zero, and say so where peaks are cut."""
    top = (scale_of(curves) if top is None else top) * 1.08 or 1.0
    axes.set_ylim(0, top)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.grid(axis="y", color=LINES, linewidth=0.7)
    axes.set_ylabel("Mb/s")
    highest = max((float(each.max(initial=0.0)) for each in curves), default=0.0)
    if highest > top:
        words = f"peaks up to {highest:,.0f} Mb/s"
        place: dict[str, Any] = {"xy": (1, 1), "xytext": (-4, -3), "textcoords": "offset points"}
        style: dict[str, Any] = {"fontsize": 8.5, "color": MUTED, "ha": "right", "va": "top"}
        box = {"facecolor": "white", "alpha": 0.9, "linewidth": 0, "pad": 1.5}
        axes.annotate(words, **place, **style, xycoords="axes fraction", bbox=box, zorder=5)


def goodput_per_plane(
    axes: Axes,
    grid: Grid,
    flows: Sequence[Part],
    faults: Faults,
    metrics: Mapping[str, object],
    top: float | None = None,
    keyed: bool = True,
) -> None:
    """Stack what each plane carried, under the total as a line and the fair rate as dashes.

    Args:
        axes: where.
        grid: the bins.
        flows: their sum is shown.
        faults: when the other fair rate holds.
        metrics: may have `fair_mbps_before` and `fair_mbps_during`.
        top: where the scale ends, so that several panels compare; None: where the data does.
        keyed: say which colour is which plane.
    """
    layers: dict[str, Numbers] = {}
    for flow in flows:
        for name, binned in pieces(flow):
            layers[name] = layers.get(name, np.zeros(grid.count)) + grid.mbps(binned)
    named: list[tuple[str, Artist]] = [("total", Line2D([], [], color=INK, linewidth=1))]
    planes: list[tuple[str, Artist]] = []
    floor = np.zeros(grid.count)
    for name in sorted(layers, key=plane_order):
        colour = plane_colour(name)
        ceiling = floor + layers[name]
        axes.stairs(ceiling, grid.edges, baseline=floor, fill=True, color=colour, alpha=0.8, lw=0)
        planes.append((f"plane {name}", Patch(color=colour, alpha=0.8)))
        floor = ceiling
    arrived = np.sum([grid.mbps(part(flow, "goodput")) for flow in flows], axis=0)
    line = arrived if np.any(arrived) else floor
    axes.stairs(line, grid.edges, baseline=None, color=INK, linewidth=0.7, alpha=0.85)
    fair = _fair(grid, faults, number(metrics, "fair_mbps_before"), metrics)
    if fair is not None:
        dashes = (0, (5, 3))
        axes.stairs(fair, grid.edges, baseline=None, color=INK, linewidth=1.3, linestyle=dashes)
        named.append(("fair rate", Line2D([], [], color=INK, linewidth=1.3, linestyle=dashes)))
    rates(axes, [floor, line] + ([] if fair is None else [np.nan_to_num(fair)]), top)
    if keyed:
        key(axes, [*named, *planes])


def _fair(
    grid: Grid, faults: Faults, before: float | None, metrics: Mapping[str, object]
) -> Numbers | None:
    during = number(metrics, "fair_mbps_during")
    if before is None and during is None:
        return None
    middles = grid.edges[:-1] + grid.width_s / 2
    broken = np.zeros(grid.count, dtype=bool)
    for begin_s, end_s, _ in faults:
        broken |= (begin_s <= middles) & (middles < end_s)
    return np.where(
        broken,
        np.nan if during is None else during,
        np.nan if before is None else before,
    )


def goodput_lines(axes: Axes, grid: Grid, lines: Sequence[Line], keyed: bool = True) -> None:
    """Lay the rates of several flows or transports over each other, the first one in front."""
    smooth = len(lines) >= STEADY_FROM_FLOWS
    width = min(STEADY_BINS, grid.count)
    middles = grid.edges[:-1] + grid.width_s / 2
    style: Any = "steps-mid" if grid.count < STEPS_BELOW_BINS else "default"
    curves = []
    for behind, line in enumerate(lines):
        values = line.mbps
        if smooth:
            reach = np.ones(width)
            values = np.convolve(values, reach, "same") / np.convolve(
                np.ones(grid.count), reach, "same"
            )
        axes.plot(
            middles, values, color=line.colour, lw=1.1, zorder=3 - 0.01 * behind, drawstyle=style
        )
        curves.append(values)
    rates(axes, curves)
    if keyed:
        key(axes, [(line.name, Line2D([], [], color=line.colour, lw=2.2)) for line in lines])


def events_per_bin(grid: Grid, run: Part) -> dict[str, Numbers]:
    """Count what happened to packets: at the links where they say so, else at the senders.

    What nobody counted is left out.
    """
    counted: dict[str, Numbers] = {}

    def add(name: str, values: Numbers) -> None:
        counted[name] = counted.get(name, np.zeros(grid.count)) + values

    for link in parts(run, "links"):
        for name in ("dropped", "trimmed", "marked"):
            add(name, grid.sums(part(link, "series").get(name), bin_s(link)))
    at_sender = {"trimmed": "trims", "marked": "marked", "dropped": "lost"}
    at_sender = {kind: k for kind, k in at_sender.items() if not parts(run, "links")}
    at_sender |= {name: name for name in ("retransmitted", "spurious", "timeouts", "probes")}
    for flow in parts(run, "flows"):
        samples = part(flow, "samples")
        for name, counter in at_sender.items():
            if columns(samples, "at_s", counter)[0].size:
                add(name, grid.counted(samples, counter))
    return {name: counted[name] for name in EVENTS if name in counted}


def event_lane(axes: Axes, grid: Grid, name: str, values: Numbers, decades: bool) -> None:
    """Draw how often one thing happened, as bars."""
    colour = EVENTS[name]
    axes.stairs(values, grid.edges, fill=True, color=colour, linewidth=0.8)
    highest = float(values.max())
    if decades:
        axes.set_yscale("symlog", linthresh=1, linscale=0.4)
        axes.set_ylim(0, 10 ** np.ceil(np.log10(max(highest, 1.0) * 1.02)))
        axes.yaxis.set_minor_locator(NullLocator())
        top = axes.get_ylim()[1]
        axes.set_yticks([top], [f"{top:,.0f}"])
    else:
        axes.set_ylim(0, highest * 1.1 or 1.0)
        axes.set_yticks([highest], [f"{highest:,.0f}"])
    axes.text(
        -44 / axes.bbox.width,
        0.5,
        f"{name}\n{values.sum():,.0f}",
        transform=axes.transAxes,
        ha="right",
        va="center",
        fontsize=8.5,
        color=colour,
        linespacing=1.25,
    )


def rtt_and_window(axes: Axes, flow: Part) -> None:
    """Draw the round-trip time on the left axis, window and data in flight on the right one."""
    samples = part(flow, "samples")
    at_s, rtt_ms = columns(samples, "at_s", "rtt_ms")
    rtt_ms = np.where(rtt_ms > 0, rtt_ms, np.nan)
    colour, window = "#0072b2", "#b06f00"
    named: list[tuple[str, Artist]] = []
    axes.grid(axis="y", color=LINES, linewidth=0.7)
    if np.isfinite(rtt_ms).any():
        axes.plot(at_s, rtt_ms, color=colour, linewidth=1.1, zorder=4)
        axes.set_ylim(0, float(np.nanmax(rtt_ms)) * 1.08)
        if np.nanmax(rtt_ms) > 30 * np.nanmedian(rtt_ms):
            axes.set_ylim(float(np.nanmin(rtt_ms)) / 1.3, float(np.nanmax(rtt_ms)) * 1.5)
            logarithmic(axes)
        named.append(("RTT (left)", Line2D([], [], color=colour, lw=1.5)))
    axes.set_ylabel("ms", color=colour)
    axes.tick_params(axis="y", colors=colour)
    twin = axes.twinx()
    twin.spines[["top", "left"]].set_visible(False)
    axes.set_zorder(twin.get_zorder() + 1)
    axes.patch.set_visible(False)
    twin.patch.set_visible(True)
    kinds = (("cwnd_kib", "window", "#fbf0dc"), ("inflight_kib", "in flight", "#f2d6a0"))
    highest = 0.0
    for name, label, tint in kinds:
        at_s, kib = columns(samples, "at_s", name)
        if np.isfinite(kib).any():
            twin.fill_between(at_s, kib, color=tint, linewidth=0)
            highest = max(highest, float(np.nanmax(kib)))
            named.append((f"{label} (right)", Patch(color=tint)))
    twin.set_ylim(0, highest * 1.08 or 1.0)
    twin.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    twin.set_ylabel("KiB", color=window)
    twin.tick_params(axis="y", colors=window, length=3)
    key(axes, named)


def completion_dots(axes: Axes, named_flows: Sequence[tuple[str, str, Part]]) -> None:
    """Draw a dot per message: when it was done, and how long it took; the last flow in front."""
    shortest, longest = np.inf, 0.0
    for _, colour, flow in named_flows:
        at_s, took_ms = completions_ms(flow)
        at_s, took_ms = at_s[took_ms > 0], took_ms[took_ms > 0]
        if took_ms.size:
            axes.plot(at_s, took_ms, ".", color=colour, markersize=4, mew=0, alpha=0.7)
            shortest, longest = min(shortest, took_ms.min()), max(longest, took_ms.max())
    if longest > 0:
        axes.set_ylim(shortest / 1.4, longest * 1.6)
    logarithmic(axes)
    axes.grid(axis="y", color=LINES, linewidth=0.7)
    axes.set_ylabel("ms")
    names = {name: colour for name, colour, _ in reversed(named_flows)}
    if len(names) > 1:
        marker: dict[str, Any] = {"marker": "o", "markersize": 5, "linewidth": 0}
        key(axes, [(name, Line2D([], [], color=c, **marker)) for name, c in names.items()])


def logarithmic(axes: Axes) -> None:
    """Make the left axis logarithmic, with as many plain numbers as there is room for."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    narrow = ((1.0, 2.0, 3.0, 5.0, 7.0), 12), ((1.0, 2.0, 5.0), 300)
    subs = next((each for each, ratio in narrow if high / low < ratio), (1.0,))
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def carried(flow: Part) -> bool:
    """Whether anything is known about what a flow moved."""
    return bool(total(part(flow, "goodput")) or any(total(binned) for _, binned in pieces(flow)))
