"""The numbers that scenarios are judged by, each computed from what a run saw.

`fair` is the goodput that the links of both hosts allow: their rate times payload over wire bytes,
less what the fault under way takes (`Fault.leaves`). What no number can be had for is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from netns.recording import FlowSeen, Happened, Recording

FINE_S = 0.002
"""Bins in which gaps are looked for."""
COARSE_S = 0.01
"""Bins of what links carry, whose counters are read that often."""
SETTLED_S = 0.2
"""Long enough a stretch to say that a rate is held."""
RETURN_S = 0.1
ADAPTED_S = 0.1
"""Time for paths that are harmed to leave."""
WINDOW_S = 1.0
VICTIM = "victim"


class NothingToGoBy(Exception):
    """The run has no such flow or fault: the number does not exist."""


Of = Callable[["Recording"], "float | None"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A number: what it says, in which unit, and how it is had, if there is anything to go by."""

    what: str
    unit: str
    of: Of
    of_ranks: str = ""
    """What it says where flows are ranks, if those are other words."""

    def says(self, traffic: str) -> str:
        """Return what it says of a scenario's kind of traffic."""
        return self.of_ranks if self.of_ranks and traffic == "all-reduce" else self.what


METRICS: dict[str, Metric] = {}


def metric(what: str, unit: str, *, of_ranks: str = "") -> Callable[[Of], Of]:
    """Register a function as the metric of its name."""

    def register(function: Of) -> Of:
        def finite(run: Recording) -> float | None:
            try:
                value = function(run)
            except NothingToGoBy:
                return None
            return value if value is not None and math.isfinite(value) else None

        METRICS[function.__name__] = Metric(what, unit, finite, of_ranks)
        return function

    return register


# What the network allows.


def fair_mbps(run: Recording, flow: FlowSeen, during: Happened | None = None) -> float:
    """Return the goodput that the planes two hosts share allow, during a fault or without one."""
    total = 0.0
    payload = flow.mtu_bytes / (flow.mtu_bytes + flow.header_bytes)
    far = {link.plane: link for link in run.fabric.planes(flow.target)}
    for link in run.fabric.planes(flow.source):
        if link.plane in far:
            rate = min(link.rate_mbps, far[link.plane].rate_mbps)
            hit = during is not None and link.plane in during.planes
            total += rate * payload * (during.fault.leaves if during is not None and hit else 1)
    return total


def _main(run: Recording) -> FlowSeen:
    """The first flow that is no victim."""
    for flow in run.flows:
        if flow.name != VICTIM:
            return flow
    raise NothingToGoBy


def _first(run: Recording) -> Happened:
    """The first fault that was not there from the start."""
    for each in run.happened:
        if each.begin_s > 0:
            return each
    raise NothingToGoBy


def _fault_end_s(run: Recording, fault: Happened) -> float:
    return min(run.duration_s if fault.end_s is None else fault.end_s, run.duration_s)


def _quiet(run: Recording) -> tuple[float, float]:
    """The stretch before anything breaks, without the warm-up."""
    begins = [each.begin_s for each in run.happened if each.begin_s > 0]
    end_s = min(begins, default=run.duration_s)
    return run.scenario.warmup_s, max(end_s, run.scenario.warmup_s + FINE_S)


def _percent(part: float, whole: float) -> float | None:
    return 100 * part / whole if whole else None


# Goodput.


@metric("goodput before any fault, all flows together", "Mbit/s")
def goodput_mbps(run: Recording) -> float | None:
    """All flows together."""
    return sum(flow.rate_mbps(*_quiet(run)) for flow in run.flows) if run.flows else None


@metric("goodput before any fault, as a share of what the links carry of payload", "%")
def steady_percent(run: Recording) -> float | None:
    """The main flow alone."""
    flow = _main(run)
    return 100 * flow.rate_mbps(*_quiet(run)) / fair_mbps(run, flow)


@metric("goodput of the flow that gets least, as a share of what its links carry of payload", "%")
def least_flow_percent(run: Recording) -> float | None:
    """Before any fault."""
    shares = [flow.rate_mbps(*_quiet(run)) / fair_mbps(run, flow) for flow in run.flows]
    return 100 * min(shares) if shares else None


@metric("difference between the most and the least loaded plane, of their mean", "%")
def plane_spread_percent(run: Recording) -> float | None:
    """By the bytes that reached the receiver before any fault."""
    flow = _main(run)
    begin_s, end_s = _quiet(run)
    carried = [
        bins[0] for bins in run.plane_bins(flow.target, end_s - begin_s, begin_s, end_s).values()
    ]
    return float(100 * (max(carried) - min(carried)) / np.mean(carried)) if any(carried) else None


@metric("goodput during the fault, as a share of what it leaves", "%")
def during_fair_percent(run: Recording) -> float | None:
    """From the moment it begins."""
    flow, fault = _main(run), _first(run)
    rate = flow.rate_mbps(fault.begin_s, _fault_end_s(run, fault))
    return 100 * rate / fair_mbps(run, flow, fault)


@metric("goodput during the fault, as a share of that before it", "%")
def during_percent(run: Recording) -> float | None:
    """From the moment it begins."""
    flow, fault = _main(run), _first(run)
    rate = flow.rate_mbps(fault.begin_s, _fault_end_s(run, fault))
    return _percent(rate, flow.rate_mbps(*_quiet(run)))


@metric("goodput from 100 ms after the fault began, as a share of that before it", "%")
def adapted_percent(run: Recording) -> float | None:
    """When paths that are harmed had time to leave."""
    flow, fault = _main(run), _first(run)
    rate = flow.rate_mbps(fault.begin_s + ADAPTED_S, _fault_end_s(run, fault))
    return _percent(rate, flow.rate_mbps(*_quiet(run)))


@metric("goodput during the fault, as a share of what the planes it spares carry", "%")
def spared_planes_percent(run: Recording) -> float | None:
    """More than 100: the harmed planes help."""
    flow, fault = _main(run), _first(run)
    planes = run.fabric.planes(flow.source)
    spared = sum(link.rate_mbps for link in planes if link.plane not in fault.planes)
    share = spared / sum(link.rate_mbps for link in planes)
    rate = flow.rate_mbps(fault.begin_s, _fault_end_s(run, fault))
    return 100 * rate / (fair_mbps(run, flow) * share) if share else None


# Time to notice and to return.


@metric("longest stretch of 2 ms bins below half of the fair rate, from the fault on", "ms")
def gap_ms(run: Recording) -> float | None:
    """Up to the end of the fault."""
    flow, fault = _main(run), _first(run)
    bins = flow.bins(FINE_S, fault.begin_s, _fault_end_s(run, fault))
    half = fair_mbps(run, flow, fault) * 1e6 / 8 * FINE_S / 2
    return longest(bins < half) * FINE_S * 1e3


@metric("from the fault to the first 200 ms at 90 % of the fair rate", "ms")
def settle_ms(run: Recording) -> float | None:
    """Bursts of what was held back count at line rate at most."""
    flow, fault = _main(run), _first(run)
    bins = flow.bins(FINE_S, fault.begin_s, _fault_end_s(run, fault))
    line = fair_mbps(run, flow, fault) * 1e6 / 8 * FINE_S
    first = _first_stretch(np.minimum(bins, line), round(SETTLED_S / FINE_S), 0.9 * line)
    return None if first is None else first * FINE_S * 1e3


@metric("from healing to the first 100 ms in which the plane carries half of its rate", "ms")
def plane_back_ms(run: Recording) -> float | None:
    """By the bytes that come out of the plane's last hop."""
    flow, fault = _main(run), _first(run)
    if fault.end_s is None or not fault.planes:
        return None
    plane = fault.planes[0]
    link = run.fabric.planes(flow.target)[plane]
    bins = run.plane_bins(flow.target, COARSE_S, fault.end_s, run.duration_s).get(plane)
    if bins is None:
        return None
    half = link.rate_mbps * 1e6 / 8 * COARSE_S / 2
    first = _first_stretch(bins, round(RETURN_S / COARSE_S), half)
    return None if first is None else first * COARSE_S * 1e3


def _first_stretch(bins: np.ndarray, length: int, least: float) -> int | None:
    """Return the bin with which the first stretch of this length and mean begins."""
    if len(bins) < length:
        return None
    means = np.convolve(bins, np.ones(length) / length, mode="valid")
    enough = np.flatnonzero(means >= least)
    return int(enough[0]) if len(enough) else None


def longest(flags: np.ndarray) -> int:
    """Return the length of the longest run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.astype(np.int8), [0]))))
    return int((edges[1::2] - edges[::2]).max()) if len(edges) else 0


# Paths.


def harmed_paths(flow: FlowSeen, happened: Happened) -> set[int]:
    """Return the paths of a flow whose data a fault takes: the one EV, or all of its planes."""
    fault = happened.fault
    if not fault.harms_data:
        return set()
    if fault.path is not None:
        return {fault.path} if fault.flow == flow.name else set()
    return {i for i, path in enumerate(flow.paths) if path["plane"] in happened.planes}


def _bad_since(flow: FlowSeen, begin_s: float, paths: set[int]) -> dict[int, float]:
    """Return when each of these paths was first withdrawn after a moment."""
    first: dict[int, float] = {}
    for change in flow.changes:
        path = change["path"]
        bad = change["after"] == "assumed_bad" and change["at_s"] >= begin_s
        if bad and path in paths and path not in first:
            first[path] = change["at_s"]
    return first


@metric("from the fault to the withdrawal of a path it harms, the first time", "ms")
def withdrawn_ms(run: Recording) -> float | None:
    """The first one."""
    flow, fault = _main(run), _first(run)
    found = _bad_since(flow, fault.begin_s, harmed_paths(flow, fault))
    return 1e3 * (min(found.values()) - fault.begin_s) if found else None


@metric("from healing to the return of a path that was harmed, the first one", "ms")
def recovered_ms(run: Recording) -> float | None:
    """By a probe that was answered."""
    flow, fault = _main(run), _first(run)
    harmed = harmed_paths(flow, fault)
    if fault.end_s is None:
        return None
    back_s = [
        change["at_s"]
        for change in flow.changes
        if change["after"] == "good" and change["path"] in harmed and change["at_s"] >= fault.end_s
    ]
    return 1e3 * (min(back_s) - fault.end_s) if back_s else None


@metric("from the start to the withdrawal of the last active path that was dead before", "ms")
def found_bad_ms(run: Recording) -> float | None:
    """None while one of them is still in use at the end; 0 where none ever carried a packet."""
    flow = _main(run)
    before = [each for each in run.happened if each.begin_s <= 0]
    if not before:
        return None
    harmed = {p for each in before for p in harmed_paths(flow, each)}
    used = {p for p in harmed if flow.paths[p]["sent"]}
    found = _bad_since(flow, -1e9, used)
    if used - set(found):
        return None
    return 1e3 * max(found.values(), default=0.0)


@metric("withdrawals of paths that no fault harms", "")
def healthy_blamed(run: Recording) -> float | None:
    """Those that were taken back as spurious count as well."""
    flow = _main(run)
    if not flow.paths:
        return None
    harmed = {p for each in run.happened for p in harmed_paths(flow, each)}
    return float(sum(c["after"] == "assumed_bad" and c["path"] not in harmed for c in flow.changes))


@metric("packets sent again although the first one arrived", "% of packets")
def spurious_percent(run: Recording) -> float | None:
    """Of all flows."""
    sent = _total(run, "sent")
    return None if not sent else 100 * (_total(run, "spurious") or 0) / sent


def _total(run: Recording, name: str) -> float | None:
    """Return the sum of a counter over all flows at their end."""
    ends = [flow.samples[name][-1] for flow in run.flows if len(flow.samples[name])]
    return float(sum(ends)) if ends else None


@metric("retransmission timeouts, all flows together", "")
def timeouts(run: Recording) -> float | None:
    """What probes and NACKs did not find."""
    return _total(run, "timeouts")


@metric("packets trimmed, as the senders were told", "")
def trims(run: Recording) -> float | None:
    """All flows together."""
    return _total(run, "trims")


@metric("packets marked, as the senders were told", "")
def marks(run: Recording) -> float | None:
    """All flows together."""
    return _total(run, "marked")


# Messages.


@metric(
    "messages that did not arrive whole, in order and once",
    "",
    of_ranks="operations with a result that is wrong or missing",
)
def undelivered(run: Recording) -> float | None:
    """All flows together."""
    return float(sum(flow.undelivered for flow in run.flows)) if run.flows else None


@metric("flows that ended with an error, and troubles of the run itself", "")
def errors(run: Recording) -> float | None:
    """All flows together."""
    return float(sum(bool(flow.error) for flow in run.flows) + len(run.trouble))


def _took(run: Recording) -> np.ndarray:
    """Seconds of every message of the main flows that was complete after the warm-up."""
    parts = [np.zeros(0)]
    for flow in run.flows:
        at_s, took_s = flow.completions
        if flow.name != VICTIM:
            parts.append(took_s[at_s >= run.scenario.warmup_s])
    return np.concatenate(parts)


@metric(
    "99th percentile of the time a message takes",
    "ms",
    of_ranks="99th percentile of the time an operation takes",
)
def completion_p99_ms(run: Recording) -> float | None:
    """Of all flows but the victim."""
    took = _took(run)
    return float(np.percentile(took, 99)) * 1e3 if len(took) else None


@metric("longest time a message takes", "ms", of_ranks="longest time an operation takes")
def completion_max_ms(run: Recording) -> float | None:
    """Of all flows but the victim."""
    took = _took(run)
    return float(took.max()) * 1e3 if len(took) else None


@metric("bandwidth of operations during the fault, as a share of that before it", "%")
def operations_percent(run: Recording) -> float | None:
    """By the time they take, of those that lie in the one or the other and are the same size."""
    fault = _first(run)
    before = _mean_s(run, *_quiet(run))
    return _percent(before, _mean_s(run, fault.begin_s, _fault_end_s(run, fault)))


@metric("longest time an operation takes, as a multiple of the mean before the fault", "")
def completion_times(run: Recording) -> float | None:
    """Of all flows but the victim."""
    took, before = _took(run), _mean_s(run, *_quiet(run))
    return float(took.max()) / before if len(took) and before else None


def _mean_s(run: Recording, begin_s: float, end_s: float) -> float:
    """Return the mean time of the main flows' messages that lie in a stretch; NaN without any."""
    parts = [np.zeros(0)]
    for flow in run.flows:
        at_s, took_s = flow.completions
        if flow.name != VICTIM:
            parts.append(took_s[(at_s - took_s >= begin_s) & (at_s <= end_s)])
    took = np.concatenate(parts)
    return float(took.mean()) if len(took) else math.nan


# Fairness.


@metric("least Jain index of the flows over windows of 1 s", "")
def jain(run: Recording) -> float | None:
    """Of all flows but the victim, while all of them send."""
    flows = [flow for flow in run.flows if flow.name != VICTIM]
    begin_s = max((flow.start_s for flow in flows), default=0.0) + run.scenario.warmup_s
    windows = int((min((flow.stop_s for flow in flows), default=0.0) - begin_s) / WINDOW_S)
    if len(flows) < 2 or windows < 1:
        return None
    end_s = begin_s + windows * WINDOW_S
    rates = np.array([flow.bins(WINDOW_S, begin_s, end_s) for flow in flows])
    if not rates.sum(0).all():
        return 0.0
    return float((rates.sum(0) ** 2 / (len(flows) * (rates**2).sum(0))).min())


@metric("the victim's goodput beside the others, as a share of that alone", "%")
def victim_percent(run: Recording) -> float | None:
    """It must start before the others do."""
    victim, others = run.flow(VICTIM), [flow for flow in run.flows if flow.name != VICTIM]
    if victim is None or not others:
        return None
    begin_s = min(flow.start_s for flow in others)
    end_s = min(flow.stop_s for flow in run.flows)
    alone = victim.rate_mbps(victim.start_s + run.scenario.warmup_s, begin_s)
    return _percent(victim.rate_mbps(begin_s, end_s), alone)
