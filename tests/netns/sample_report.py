"""Makes reports as a run of the lab leaves them, of runs that never were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BIN_S = 0.01
PAYLOAD = 4096
COUNTERS = (
    *("packets", "bytes", "marked", "trimmed", "tail_dropped", "lost", "blackholed"),
    *("oversized", "ev_dropped", "corrupted", "duplicated", "rewritten"),
)
Series = NDArray[np.float64]
Report = dict[str, Any]
Dead = tuple[int, float, float]
"""Plane, and when it died and healed."""


def binned(values: Series) -> Report:
    """A series as reports hold it."""
    return {"bin_ms": 10, "bytes": [int(value) for value in values]}


def path_of(
    rng: np.random.Generator,
    index: int,
    plane: int,
    rate_mbps: Series,
    dead: Sequence[Dead],
) -> Report:
    """A path with a rate; it leaves and returns a little after its plane dies and heals."""
    times = np.arange(rate_mbps.size) * BIN_S
    carried = np.maximum(0, rate_mbps * rng.normal(1, 0.12, times.size)) * 1e6 / 8 * BIN_S
    changes = []
    for where, at_s, until_s in dead:
        if where == plane:
            left_s = at_s + rng.uniform(0.004, 0.03)
            back_s = until_s + rng.uniform(0.02, 0.09)
            carried[(times >= at_s) & (times < back_s)] = 0
            changes += [
                {"at_s": left_s, "state": "assumed_bad", "reason": "loss"},
                {"at_s": back_s, "state": "good", "reason": "probe"},
            ]
    packets = int(carried.sum() / PAYLOAD)
    lost = 11 * len(changes)
    return {
        "index": index,
        "plane": plane,
        "source_port": 49152 + index,
        "active": bool(rate_mbps.any()),
        "bytes": binned(carried),
        "changes": changes,
        "sent": packets + lost,
        "acked": packets,
        "lost": lost,
        "spurious": lost // 4,
        "trimmed": 3 * index,
        "marked": 7 * index,
        "srtt_ms": 1.2 + 0.05 * plane,
    }


def flow_of(
    name: str = "a to b",
    ends: tuple[str, str] = ("a", "b"),
    *,
    seconds: float = 8.0,
    planes: int = 4,
    evs: int = 5,
    backups: int = 0,
    plane_mbps: float = 190.0,
    dead: Sequence[Dead] = (),
    seed: int = 1,
) -> Report:
    """A flow over several planes; those that live share what a dead one cannot carry."""
    rng = np.random.default_rng(seed)
    count = round(seconds / BIN_S)
    times: Series = (np.arange(count) * BIN_S).astype(np.float64)
    alive = np.ones((planes, count))
    for plane, at_s, until_s in dead:
        alive[plane, (times >= at_s) & (times < until_s + 0.05)] = 0
    ramp = np.clip(times / 0.3, 0.05, 1)
    paths = [
        path_of(rng, index, index % planes, plane_mbps / evs * ramp, dead)
        for index in range(planes * evs)
    ]
    paths += [
        path_of(rng, index, index % planes, np.zeros(count), ())
        for index in range(planes * evs, planes * evs + backups)
    ]
    by_plane = {
        str(plane): np.sum(
            [path["bytes"]["bytes"] for path in paths if path["plane"] == plane], axis=0
        )
        for plane in range(planes)
    }
    delivered: Series = np.sum(list(by_plane.values()), axis=0).astype(np.float64)
    return {
        "name": name,
        "from": ends[0],
        "to": ends[1],
        "start_s": 0.0,
        "stop_s": seconds,
        "error": "",
        "goodput": binned(np.append(0, delivered[:-1]) * rng.normal(1, 0.02, count)),
        "planes": {plane: binned(series) for plane, series in by_plane.items()},
        "paths": paths,
        "samples": samples_of(rng, times, dead, delivered),
        "completions": completions_of(rng, seconds, dead),
        "totals": {"messages": 640, "corrupt": 0, "out_of_order": 0},
    }


def samples_of(
    rng: np.random.Generator,
    times: Series,
    dead: Sequence[Dead],
    delivered: Series,
) -> Report:
    """What a sender says of itself every 10 ms."""
    rtt_ms = 1.4 + rng.gamma(2, 0.12, times.size)
    cwnd_kib = np.clip(times * 900, 64, 512) * rng.normal(1, 0.02, times.size)
    lost = np.zeros(times.size)
    probes = np.zeros(times.size)
    for _, at_s, until_s in dead:
        begin, end = int(at_s / BIN_S), int(until_s / BIN_S)
        lost[begin : begin + 3] = 40
        probes[begin + 3 : end + 6 : 5] = 5
        rtt_ms[begin : begin + 12] += np.linspace(9, 0, 12)
        cwnd_kib[begin:end] *= 0.75
    return {
        "at_s": [float(at) for at in times],
        "cwnd_kib": [float(each) for each in cwnd_kib],
        "inflight_kib": [float(each) for each in cwnd_kib * rng.uniform(0.6, 1, times.size)],
        "rtt_ms": [float(each) for each in rtt_ms],
        "sent": [int(each) for each in np.cumsum(delivered / PAYLOAD)],
        "retransmitted": [int(each) for each in np.cumsum(lost)],
        "lost": [int(each) for each in np.cumsum(lost)],
        "spurious": [int(each) for each in np.cumsum(lost // 30)],
        "trims": [0] * times.size,
        "timeouts": [0] * times.size,
        "probes": [int(each) for each in np.cumsum(probes)],
        "marked": [0] * times.size,
    }


def completions_of(rng: np.random.Generator, seconds: float, dead: Sequence[Dead]) -> Report:
    """Messages of a megabyte, some of them caught by a fault."""
    at_s = np.sort(rng.uniform(0.05, seconds, 640))
    took_ms = 11 + rng.gamma(2, 1.5, at_s.size)
    for _, begin_s, _ in dead:
        took_ms[(at_s > begin_s) & (at_s < begin_s + 0.05)] += 35
    return {"at_s": [float(at) for at in at_s], "took_ms": [float(each) for each in took_ms]}


def link_of(name: str, plane: int, counters: Report, series: Report) -> Report:
    """A link with counters; those not given are zero."""
    return {
        "name": name,
        "plane": plane,
        "rate_mbps": 200,
        "bin_ms": 10,
        "bytes": [240_000] * 800,
        "counters": dict.fromkeys(COUNTERS, 0)
        | {"packets": 46_000, "bytes": 190_000_000}
        | counters,
        "series": {"marked": [], "trimmed": [], "dropped": []} | series,
    }


def run_of(
    transport: str, flows: list[Report], links: list[Report], faults: list[Report]
) -> Report:
    """One transport's run."""
    return {
        "transport": transport,
        "duration_s": 8.0,
        "faults": faults,
        "metrics": {
            "goodput_mbps": 712.4,
            "fair_mbps_before": 4 * 190.0,
            "fair_mbps_during": 3 * 190.0,
            "recovery_ms": None,
        },
        "flows": flows,
        "links": links,
        "trouble": [],
    }


def report_of(name: str, title: str, what: str, runs: list[Report]) -> Report:
    """A report around runs, with two expectations met and one aim missed."""
    return {
        "schema": "mrc-lab report 1",
        "scenario": {
            "name": name,
            "title": title,
            "what": what,
            "topology": "four-plane",
            "mtu": 4500,
            "duration_s": 8.0,
            "warmup_s": 1.0,
        },
        "machine": {"kernel": "6.8.0", "processors": 8, "python": "3.11.9", "date": "2026-05-04"},
        "passed": True,
        "expectations": [
            {
                "metric": "goodput_mbps",
                "what": "Goodput stays near what the planes left alive can carry.",
                "value": 712.4,
                "unit": "Mb/s",
                "aim": [700, None],
                "must": [500, 800],
                "aim_met": True,
                "must_met": True,
            },
            {
                "metric": "evs_away_ms",
                "what": "All EVs of the dead plane are left within 30 ms.",
                "value": 28.125,
                "unit": "ms",
                "aim": [None, 20],
                "must": [None, 50],
                "aim_met": False,
                "must_met": True,
            },
            {
                "metric": "corrupt",
                "what": "No byte arrives wrong.",
                "value": 0,
                "unit": "",
                "aim": [None, None],
                "must": [0, 0],
                "aim_met": None,
                "must_met": True,
            },
        ],
        "runs": runs,
    }


def black_hole(backups: int = 4, evs: int = 5) -> Report:
    """One flow, one plane that swallows everything for three seconds."""
    rng = np.random.default_rng(2)
    dropped = np.zeros(800)
    dropped[200:203] = (38, 41, 12)
    dropped[203:500:5] = 5
    marked = rng.poisson(3, 800) * (rng.random(800) < 0.3)
    links = [
        link_of("a>s2", 2, {"blackholed": 391}, {"dropped": dropped.tolist()}),
        link_of("s2-b>b", 2, {"marked": int(marked.sum())}, {"marked": marked.tolist()}),
        link_of("a>s0", 0, {"packets": 0, "bytes": 0}, {}),
    ]
    fault = {"at_s": 2.0, "until_s": 5.0, "what": "black hole on a-s2, s2-b"}
    flow = flow_of(dead=[(2, 2.0, 5.0)], backups=backups, evs=evs)
    return report_of(
        "black-hole",
        "A plane turns into a black hole",
        "One of four planes takes every packet and gives none back for three seconds. The sender"
        " must notice by itself, leave the plane, and return when it heals.",
        [run_of("mrc", [flow], links, [fault])],
    )


def incast() -> Report:
    """Seven flows to one host, and one to another that must not suffer."""
    rng = np.random.default_rng(3)
    flows = [
        flow_of(f"h{i} to z", (f"h{i}", "z"), plane_mbps=27 + i, evs=2, seed=i) for i in range(7)
    ]
    flows.append(flow_of("victim", ("h7", "y"), plane_mbps=95.0, evs=2, seed=9))
    trimmed = rng.poisson(40, 800) + (np.arange(800) < 40) * 900
    marked = rng.poisson(120, 800)
    series = {"trimmed": trimmed.tolist(), "marked": marked.tolist()}
    counters = {"trimmed": int(trimmed.sum()), "marked": int(marked.sum())}
    return report_of(
        "incast",
        "Seven senders, one receiver",
        "Seven hosts write to one at once; an eighth flow shares their switches only.",
        [run_of("mrc", flows, [link_of("s0>z", 0, counters, series)], [])],
    )


def compare() -> Report:
    """Three transports that meet the same fault."""
    fault = {"at_s": 2.0, "until_s": 5.0, "what": "black hole on a-s2, s2-b"}
    runs = [run_of("tcp", [flow_of(planes=1, evs=1, seed=4)], [], [fault])]
    slow = flow_of(evs=1, dead=[(2, 2.0, 6.3)], plane_mbps=170, seed=5)
    for path in slow["paths"]:
        path["changes"] = []
    slow["completions"]["took_ms"] = [3 * each for each in slow["completions"]["took_ms"]]
    runs.append(run_of("mptcp", [slow], [], [fault]))
    runs.append(run_of("mrc", [flow_of(dead=[(2, 2.0, 5.0)])], [], [fault]))
    return report_of("compare", "Three transports, one dead plane", "The same fault for all.", runs)


def failed() -> Report:
    """A run of which nothing came but an error."""
    report = report_of("failed", "A run that failed", "It never got as far as sending.", [])
    flow = {"name": "a to b", "from": "a", "to": "b", "error": "no answer from 10.0.2.1 in 5 s"}
    report["runs"] = [{"transport": "mrc", "flows": [flow], "links": None, "metrics": None}]
    report["runs"][0]["trouble"] = ["receiver-b: ended with status 1"]
    report["passed"] = False
    for expectation in report["expectations"]:
        expectation |= {"value": None, "aim_met": False, "must_met": False}
    return report
