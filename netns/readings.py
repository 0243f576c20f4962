"""Reads a report that may be incomplete: what is missing, or no number, reads as nothing.

A run that failed half-way leaves whatever it had, and that is when its report is read most
carefully. Nothing here raises because of what a report holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Part = Mapping[str, Any]
Numbers = NDArray[np.float64]

DEFAULT_BIN_S = 0.01
TRANSPORT_NAMES = {"mrc": "MRC", "mptcp": "MPTCP", "tcp": "TCP"}
BINS_MAX = 1600
"""More than the picture has columns of pixels."""
MOST = 1e18
"""Nothing that a run counts or measures is more; what claims to be is a mistake."""


def part(parent: object, key: str) -> Part:
    """Return what is under a key if it holds keys itself, otherwise an empty mapping."""
    value = parent.get(key) if isinstance(parent, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def parts(parent: object, key: str) -> list[Part]:
    """Return the mappings of the list under a key."""
    value = parent.get(key) if isinstance(parent, Mapping) else None
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def number(parent: object, key: str) -> float | None:
    """Return the number under a key; none that is absurd."""
    value = parent.get(key) if isinstance(parent, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= MOST else None


def text(parent: object, key: str) -> str:
    """Return what is under a key as one line that every font and encoding can take."""
    value = parent.get(key) if isinstance(parent, Mapping) else None
    if value is None or isinstance(value, list | Mapping):
        return ""
    return " ".join(str(value).encode("utf-8", "replace").decode("utf-8").split())


def numbers(values: object) -> Numbers:
    """Return a list of numbers; those that are missing or absurd become NaN."""
    if not isinstance(values, list):
        return np.empty(0)
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        array = np.array([number({"": each}, "") for each in values], dtype=np.float64)
    if array.ndim != 1:
        return np.full(len(values), np.nan)
    return np.where(np.abs(array) <= MOST, array, np.nan)


def columns(table: Part, *keys: str) -> list[Numbers]:
    """Return columns of a table, cut to the shortest."""
    found = [numbers(table.get(key)) for key in keys]
    length = min(each.size for each in found)
    return [each[:length] for each in found]


def total(binned: Part) -> float:
    """Return all bytes of a series."""
    return float(np.nansum(numbers(binned.get("bytes"))))


def pieces(flow: Part) -> list[tuple[str, Part]]:
    """Return plane and series of a flow, the planes in their order."""
    found = part(flow, "planes")
    return [(name, part(found, name)) for name in sorted(found, key=plane_order)]


def plane_order(name: object) -> tuple[float, str]:
    """Order planes by number, and those without one after them by name."""
    word = str(name)
    return (float(word), "") if word.isdecimal() else (math.inf, word)


def paths_in_order(flow: Part) -> list[Part]:
    """Return the paths of a flow, plane by plane."""
    return sorted(
        parts(flow, "paths"),
        key=lambda path: (plane_order(text(path, "plane")), number(path, "index") or 0),
    )


def unused(path: Part) -> bool:
    """Whether a path never carried anything: a backup that was not needed."""
    return not number(path, "sent") and not number(path, "acked") and not total(part(path, "bytes"))


def changes(path: Part) -> list[tuple[float, str, str]]:
    """Return when a path took which state, and why."""
    return sorted(
        (at_s, text(change, "state"), text(change, "reason"))
        for change in parts(path, "changes")
        if (at_s := number(change, "at_s")) is not None
    )


def states(path: Part, end_s: float) -> Iterator[tuple[str, float, float]]:
    """Yield the states of a path with their begin and end; paths begin as good."""
    since_s, state = 0.0, "good"
    for at_s, becomes, _ in changes(path):
        yield state, since_s, at_s
        since_s, state = at_s, becomes
    yield state, since_s, max(end_s, since_s)


def fault_spans(run: Part, end_s: float) -> list[tuple[float, float, str]]:
    """Return begin, end and description of the faults; one without an end lasts to the last.

    One that was there before the start begins at 0 s.
    """
    found = []
    for fault in parts(run, "faults"):
        at_s = number(fault, "at_s")
        until_s = number(fault, "until_s")
        if at_s is not None:
            found.append(
                (max(at_s, 0.0), end_s if until_s is None else until_s, text(fault, "what"))
            )
    return sorted(found)


def busiest(flows: list[Part]) -> Part:
    """Return the flow whose paths changed most, the first of equals."""
    return max(
        flows, key=lambda flow: sum(len(changes(path)) for path in parts(flow, "paths")), default={}
    )


def completions_ms(flow: Part) -> tuple[Numbers, Numbers]:
    """Return when messages were done, and how long each took, leaving out what is no number."""
    at_s, took_ms = columns(part(flow, "completions"), "at_s", "took_ms")
    known = ~np.isnan(at_s) & ~np.isnan(took_ms)
    return at_s[known], took_ms[known]


def transport_name(run: Part) -> str:
    """Return a transport's name as people write it."""
    name = text(run, "transport")
    return TRANSPORT_NAMES.get(name, name) or "?"


def errors(report: Part) -> list[str]:
    """Return what went wrong, with the flow it happened to."""
    found = [text(report, "error")]
    for run in parts(report, "runs"):
        trouble = run.get("trouble")
        told = [text({"": each}, "") for each in trouble] if isinstance(trouble, list) else []
        told.append(text(run, "error"))
        found += [f"{transport_name(run)}: {each}" for each in told if each]
        found += [
            f"{transport_name(run)}, {text(flow, 'name') or 'a flow'}: {text(flow, 'error')}"
            for flow in parts(run, "flows")
            if text(flow, "error")
        ]
    return [each for each in found if each]


def missed(report: Part) -> list[str]:
    """Return what had to be true and was not."""
    return [
        f"not met: {text(each, 'what') or text(each, 'metric')}"
        for each in parts(report, "expectations")
        if each.get("must_met") is False
    ]


@dataclass(frozen=True)
class Grid:
    """Bins of equal width: of a whole run, or of a part of it."""

    width_s: float
    count: int
    skipped: int = 0
    """Bins between 0 s and the first."""

    @property
    def edges(self) -> Numbers:
        """Return where the bins begin, and where the last ends."""
        return (self.skipped + np.arange(self.count + 1, dtype=np.float64)) * self.width_s

    @property
    def end_s(self) -> float:
        """Return where the last bin ends."""
        return (self.skipped + self.count) * self.width_s

    @property
    def begin_s(self) -> float:
        """Return where the first bin begins."""
        return self.skipped * self.width_s

    def sums(self, values: object, bin_s: float) -> Numbers:
        """Return a series with bins of its own in ours; nothing is lost or made up."""
        filled = np.nan_to_num(numbers(values))
        if not filled.size:
            return np.zeros(self.count)
        own = np.arange(filled.size + 1) * bin_s
        reached = np.interp(self.edges, own, np.concatenate([[0.0], np.cumsum(filled)]))
        return np.diff(reached)

    def mbps(self, binned: Part) -> Numbers:
        """Return bytes per bin as a rate in Mb/s."""
        return self.sums(binned.get("bytes"), bin_s(binned)) * 8e-6 / self.width_s

    def counted(self, samples: Part, key: str) -> Numbers:
        """Return by how much a counter rose in each bin."""
        at_s, value = columns(samples, "at_s", key)
        known = ~np.isnan(at_s) & ~np.isnan(value)
        if not known.any():
            return np.zeros(self.count)
        before = np.concatenate([[0.0], np.maximum.accumulate(value[known])])
        return np.diff(before[np.searchsorted(at_s[known], self.edges, side="right")])


def bins_around(span_s: tuple[float, float], runs: Iterable[Part]) -> Grid:
    """Return the bins that runs have themselves, as many as cover a stretch of time."""
    width_s = grid_of(runs, bins_max=1 << 40).width_s
    first = max(0, math.floor(span_s[0] / width_s))
    return Grid(width_s, max(1, math.ceil(span_s[1] / width_s) - first), first)


def bin_s(binned: Part) -> float:
    """Return the width of the bins of a series."""
    width_ms = number(binned, "bin_ms")
    return width_ms / 1e3 if width_ms is not None and width_ms > 0 else DEFAULT_BIN_S


def grid_of(runs: Iterable[Part], bins_max: int = BINS_MAX) -> Grid:
    """Return the bins in which runs are shown: their own, or wider ones if they are too many."""
    end_s, width_s, sampled_s = 0.0, 0.0, 0.0
    for run in runs:
        end_s = max(end_s, number(run, "duration_s") or 0.0)
        for flow in parts(run, "flows"):
            every = [part(flow, "goodput"), *(series for _, series in pieces(flow))]
            for binned in every:
                size = numbers(binned.get("bytes")).size
                if size:
                    width_s = max(width_s, bin_s(binned))
                    end_s = max(end_s, size * bin_s(binned))
            for at_s in (completions_ms(flow)[0], numbers(part(flow, "samples").get("at_s"))):
                known = at_s[~np.isnan(at_s)]
                sampled_s = max(sampled_s, float(known.max(initial=0.0)))
    width_s = width_s or DEFAULT_BIN_S
    # What flows did after their bins end is not shown: it would look as if they did nothing.
    end_s = end_s or sampled_s or 1.0
    if end_s / width_s > bins_max:
        wider = (step * 10.0**power * width_s for power in range(12) for step in (1, 2, 5))
        width_s = next((each for each in wider if end_s / each <= bins_max), end_s / bins_max)
    return Grid(width_s, max(1, math.ceil(end_s / width_s - 1e-6)))
