"""report.json: everything a run saw, in bins of 10 ms and with units in its keys, and the verdict.

The picture and the page are drawn from this alone, and so can be anybody's.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from netns.metrics import METRICS, fair_mbps
from netns.page import write_page
from netns.picture import draw
from netns.recording import FlowSeen, Recording, binned
from netns.runner import COUNTER_NAMES
from netns.scenario import Expectation, Scenario

SCHEMA = "mrc-lab report 1"
BIN_MS = 10
BIN_S = BIN_MS / 1e3
DROPS = ("tail_dropped", "lost", "blackholed", "oversized", "ev_dropped")
"""Counters of packets that a link took away."""


def build(scenario: Scenario, recordings: list[Recording]) -> dict[str, Any]:
    """Return the report of one scenario over one or more transports; the first one is judged."""
    runs = [_run(each) for each in recordings]
    expectations = _judge(scenario, runs[0])
    return {
        "schema": SCHEMA,
        "scenario": {
            "name": scenario.name,
            "title": scenario.title,
            "what": scenario.what.strip(),
            "topology": scenario.topology,
            "traffic": scenario.traffic,
            "mtu": recordings[0].fabric.mtu,
            "duration_s": scenario.duration_s,
            "warmup_s": scenario.warmup_s,
        },
        "machine": {
            "kernel": platform.release(),
            "processors": os.cpu_count(),
            "python": platform.python_version(),
            "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        },
        "passed": all(each["must_met"] for each in expectations) and not runs[0]["trouble"],
        "expectations": expectations,
        "runs": runs,
    }


def write(report: dict[str, Any], folder: Path) -> None:
    """Leave report.json, report.png and report.html in a folder of the scenario's name."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1, allow_nan=False)
    (folder / "report.json").write_text(text + "\n", encoding="utf-8")
    draw(report, folder / "report.png")
    write_page(report, folder / "report.png", folder / "report.html")


def _judge(scenario: Scenario, run: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for name, expected in scenario.expect.items():
        value = run["metrics"].get(name)
        aimed = expected.aim != (None, None)
        found.append(
            {
                "metric": name,
                "what": METRICS[name].says(scenario.traffic),
                "unit": METRICS[name].unit,
                "value": value,
                "aim": list(expected.aim),
                "must": list(expected.must),
                "aim_met": Expectation.holds(value, expected.aim) if aimed else None,
                "must_met": Expectation.holds(value, expected.must),
            }
        )
    return found


def _run(run: Recording) -> dict[str, Any]:
    return {
        "transport": run.transport,
        "duration_s": run.duration_s,
        "faults": [
            {"at_s": each.begin_s, "until_s": each.end_s, "what": each.what}
            for each in run.happened
        ],
        "metrics": _metrics(run),
        "flows": [_flow(run, each) for each in run.flows],
        "links": [_link(run, name) for name in run.link_counters],
        "trouble": run.trouble,
        "busy_percent_before": round(run.busy_percent, 1),
    }


def _metrics(run: Recording) -> dict[str, float | None]:
    values = {name: each.of(run) for name, each in METRICS.items()}
    if run.flows:
        later = [each for each in run.happened if each.begin_s > 0]
        values["fair_mbps_before"] = fair_mbps(run, run.flows[0])
        values["fair_mbps_during"] = fair_mbps(run, run.flows[0], later[0]) if later else None
    return {name: _number(value) for name, value in values.items()}


def _number(value: float | None) -> float | None:
    return round(float(value), 4) if value is not None and math.isfinite(value) else None


def _flow(run: Recording, flow: FlowSeen) -> dict[str, Any]:
    at_s = flow.samples["at_s"]
    paths = flow.path_bytes
    by_path = [binned(at_s, paths[:, i], BIN_S, 0, run.duration_s) for i in range(paths.shape[1])]
    planes = {}
    for plane in sorted({path["plane"] for path in flow.paths}):
        mine = [by_path[i] for i, path in enumerate(flow.paths) if path["plane"] == plane]
        planes[str(plane)] = _bins(sum(mine, start=np.zeros_like(mine[0])))
    if not planes and len(run.flows) == 1:
        carried = run.plane_bins(flow.target, BIN_S, 0, run.duration_s)
        planes = {str(plane): _bins(each) for plane, each in carried.items()}
    done_s, took_s = flow.completions
    moved = "operations" if run.scenario.traffic == "all-reduce" else "messages"
    return {
        "name": flow.name,
        "from": flow.source,
        "to": flow.target,
        "start_s": flow.start_s,
        "stop_s": flow.stop_s,
        "error": flow.error,
        "goodput": _bins(flow.bins(BIN_S, 0, run.duration_s)),
        "planes": planes,
        "paths": [_path(flow, i, by_path[i]) for i in range(min(len(flow.paths), len(by_path)))],
        "samples": _samples(flow),
        "completions": {
            "at_s": [round(float(t), 4) for t in done_s],
            "took_ms": [round(float(t) * 1e3, 3) for t in took_s],
        },
        "totals": {
            moved: flow.sender.get("messages"),
            "arrived": flow.receiver.get("messages"),
            "corrupt": flow.receiver.get("corrupt"),
            "out_of_order": flow.receiver.get("out_of_order"),
            "processor_s": flow.sender.get("processor_s"),
        },
    }


def _path(flow: FlowSeen, index: int, by_bin: NDArray[np.float64]) -> dict[str, Any]:
    path = flow.paths[index]
    changes = [
        {"at_s": round(each["at_s"], 5), "state": each["after"], "reason": each["reason"]}
        for each in flow.changes
        if each["path"] == index
    ]
    counters = {name: value for name, value in path.items() if name not in ("srtt_ns", "state")}
    return {
        "index": index,
        **counters,
        "srtt_ms": path["srtt_ns"] / 1e6,
        "bytes": _bins(by_bin),
        "changes": changes,
    }


def _samples(flow: FlowSeen) -> dict[str, list[float]]:
    table = flow.samples
    scaled = {
        "at_s": table["at_s"],
        "cwnd_kib": table["cwnd_bytes"] / 1024,
        "inflight_kib": table["inflight_bytes"] / 1024,
        "rtt_ms": table["rtt_ns"] / 1e6,
    }
    counts = ("sent", "retransmitted", "lost", "spurious", "trims", "timeouts", "probes", "marked")
    scaled |= {name: table[name] for name in counts}
    return {name: [round(float(x), 4) for x in values] for name, values in scaled.items()}


def _link(run: Recording, name: str) -> dict[str, Any]:
    columns = run.link_counters[name]
    link = run.fabric.link(name.partition(">")[0])

    def series(counters: tuple[str, ...]) -> list[int]:
        total = sum((columns[each] for each in counters), start=np.zeros(len(run.link_at_s)))
        return _whole(binned(run.link_at_s, total, BIN_S, 0, run.duration_s))

    return {
        "name": name,
        "plane": link.plane,
        "rate_mbps": link.rate_mbps,
        "bin_ms": BIN_MS,
        "bytes": series(("bytes",)),
        "counters": {each: int(columns[each][-1]) for each in COUNTER_NAMES},
        "series": {
            "marked": series(("marked",)),
            "trimmed": series(("trimmed",)),
            "dropped": series(DROPS),
        },
    }


def _bins(values: NDArray[np.float64]) -> dict[str, Any]:
    return {"bin_ms": BIN_MS, "bytes": _whole(values)}


def _whole(values: NDArray[np.float64]) -> list[int]:
    return [round(float(each)) for each in values]
