"""The page of a run: one HTML file with everything in it, to be read, mailed and kept.

    write_page(json.loads(report.read_text()), Path("report.png"), Path("report.html"))

The picture is embedded and nothing is loaded from anywhere. All text is escaped by the template;
numbers are made ready here.
"""

from __future__ import annotations

import base64
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from netns.readings import (
    Part,
    changes,
    completions_ms,
    errors,
    number,
    numbers,
    part,
    parts,
    paths_in_order,
    text,
    total,
    transport_name,
)

TEMPLATE = "page.html.j2"
NOTHING = "–"
CHANGES_SHOWN = 4
UNWIELDY = 1e15
COUNTED = {
    "sent": "sent, packets",
    "retransmitted": "retransmitted",
    "lost": "lost",
    "spurious": "spurious",
    "trims": "trims",
    "marked": "marked",
    "timeouts": "timeouts",
    "probes": "probes",
}
PER_PATH = {
    "sent": "sent, packets",
    "acked": "acknowledged",
    "lost": "lost",
    "spurious": "spurious",
    "trimmed": "trimmed",
    "marked": "marked",
}


@dataclass(frozen=True)
class Column:
    """The head of a column."""

    label: str
    kind: str = "number"
    """How its cells look: `number`, `name` or `words`."""


@dataclass(frozen=True)
class Table:
    """Text in rows and columns."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]


def write_page(report: Mapping[str, Any], picture: Path | bytes, path: Path) -> None:
    """Write the page of a report.

    Args:
        report: what a scenario's run has left; anything may be missing.
        picture: the PNG, or where it is; without such a file the page has no picture.
        path: the file to write.

    Raises:
        OSError: the file cannot be written.
    """
    scenario = part(report, "scenario")
    runs = parts(report, "runs")
    title = text(scenario, "title") or text(scenario, "name") or "A run without a name"
    passed = report.get("passed")
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    page = environment.get_template(TEMPLATE).render(
        title=title,
        what=text(scenario, "what"),
        verdict={"True": "passed", "False": "failed"}.get(str(passed), ""),
        facts=_facts(scenario, runs),
        errors=errors(report),
        expectations=[_expectation(each) for each in parts(report, "expectations")],
        picture=_embedded(picture),
        alternative=f"{title}: goodput, states of paths, events and delays over time",
        faults=_faults(runs),
        runs=[_run(run) for run in runs],
        metrics=_metrics(runs),
        command=_command(scenario, runs),
        machine=_machine(part(report, "machine")),
    )
    path.write_bytes(page.encode("utf-8", "replace"))


def figure(value: float | None, decimals: int | None = None) -> str:
    """Return a number for people: four significant digits, unless decimals are given."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if abs(value) >= UNWIELDY:
        return f"{value:.3e}"
    if decimals is not None:
        return f"{value:,.{decimals}f}"
    if value == round(value):
        return f"{value:,.0f}"
    decimals = min(6, max(0, 3 - math.floor(math.log10(abs(value)))))
    words = f"{value:,.{decimals}f}"
    return words.rstrip("0").rstrip(".") if "." in words else words


def bounds(value: object) -> str:
    """Return in signs what a number should lie within; nothing where nothing is asked."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return ""
    low, high = (number({"": each}, "") for each in value)
    if low is None:
        return "" if high is None else f"≤ {figure(high)}"
    if high is None:
        return f"≥ {figure(low)}"
    return f"= {figure(low)}" if low == high else f"{figure(low)} to {figure(high)}"


def _expectation(each: Part) -> dict[str, Any]:
    must, aim = bounds(each.get("must")), bounds(each.get("aim"))
    return {
        "what": text(each, "what") or text(each, "metric"),
        "metric": text(each, "metric"),
        "value": figure(number(each, "value")),
        "unit": text(each, "unit"),
        "must": must,
        "aim": aim,
        # Where nothing is asked it would be noise to say that it is met; a miss is always shown.
        "must_met": each.get("must_met") if must or each.get("must_met") is False else None,
        "aim_met": each.get("aim_met") if aim else None,
    }


def _embedded(picture: Path | bytes) -> str:
    if isinstance(picture, Path):
        try:
            picture = picture.read_bytes()
        except FileNotFoundError:
            return ""
    return base64.b64encode(picture).decode("ascii")


def _facts(scenario: Part, runs: Sequence[Part]) -> list[str]:
    facts = [
        (", ".join(transport_name(run) for run in runs), "{}"),
        (text(scenario, "topology"), "topology {}"),
        (text(scenario, "mtu"), "MTU {} bytes"),
        (number(scenario, "duration_s"), "{:g} s"),
        (number(scenario, "warmup_s"), "the first {:g} s not judged"),
    ]
    return [words.format(fact) for fact, words in facts if fact]


def _command(scenario: Part, runs: Sequence[Part]) -> str:
    """Return what to type to have such a run again."""
    name = shlex.quote(text(scenario, "name") or "NAME")
    transport = text(runs[0], "transport") if runs else ""
    if len(runs) > 1:
        return f"mrc-lab compare {name}"
    other = f" --transport {shlex.quote(transport)}" if transport not in ("mrc", "") else ""
    return f"mrc-lab run{other} {name}"


def _machine(machine: Part) -> list[str]:
    facts = [
        (text(machine, "date"), "{}"),
        (text(machine, "kernel"), "kernel {}"),
        (text(machine, "processors"), "{} processors"),
        (text(machine, "python"), "Python {}"),
    ]
    return [words.format(fact) for fact, words in facts if fact]


def _faults(runs: Sequence[Part]) -> Table:
    columns = [Column("at, s"), Column("until, s"), Column("fault", "words")]
    several = len(runs) > 1
    if several:
        columns.insert(0, Column("transport", "name"))
    rows = []
    for run in runs:
        for fault in parts(run, "faults"):
            until_s = number(fault, "until_s")
            row = [
                figure(number(fault, "at_s"), 3),
                "the end" if until_s is None else figure(until_s, 3),
                text(fault, "what"),
            ]
            rows.append([transport_name(run), *row] if several else row)
    return Table(columns, rows)


def _metrics(runs: Sequence[Part]) -> Table:
    """Return a row per metric and a column per transport."""
    names = list(dict.fromkeys(str(name) for run in runs for name in part(run, "metrics")))
    columns = [Column("metric", "name"), *(Column(transport_name(run)) for run in runs)]
    rows = [[name, *(figure(number(part(run, "metrics"), name)) for run in runs)] for name in names]
    return Table(columns, rows)


def _run(run: Part) -> dict[str, Any]:
    flows = parts(run, "flows")
    return {
        "title": transport_name(run),
        "flows": _flows(flows),
        "packets": _packets(flows),
        "paths": [
            (text(flow, "name") or "a flow", _paths(flow)) for flow in flows if parts(flow, "paths")
        ],
        "links": _links(run),
    }


def _flows(flows: Sequence[Part]) -> Table:
    totals = [
        name
        for name in dict.fromkeys(str(name) for flow in flows for name in part(flow, "totals"))
        if any(text(part(flow, "totals"), name) for flow in flows)
    ]
    wrong = any(text(flow, "error") for flow in flows)
    columns = [
        *(Column(name, "name") for name in ("flow", "from", "to")),
        *map(Column, ("start, s", "stop, s", "goodput, Mb/s", "p50, ms", "p99, ms", "max, ms")),
        *(Column(name.replace("_", " ")) for name in totals),
        *([Column("error", "words")] if wrong else []),
    ]
    rows = []
    for flow in flows:
        took_ms = completions_ms(flow)[1]
        spread = np.percentile(took_ms, (50, 99, 100)) if took_ms.size else [None] * 3
        rows.append(
            [
                *(text(flow, name) for name in ("name", "from", "to")),
                *(figure(number(flow, name), 2) for name in ("start_s", "stop_s")),
                figure(_goodput_mbps(flow), 1),
                *(figure(each, 2) for each in spread),
                *(_anything(part(flow, "totals"), name) for name in totals),
                *([text(flow, "error")] if wrong else []),
            ]
        )
    return Table(columns, rows)


def _packets(flows: Sequence[Part]) -> Table:
    """Return what senders counted; transports differ, so only what some flow has gets a column."""
    counted = [name for name in COUNTED if any(_last(flow, name) is not None for flow in flows)]
    columns = [Column("flow", "name"), *(Column(COUNTED[name]) for name in counted)]
    rows = [
        [text(flow, "name"), *(figure(_last(flow, name), 0) for name in counted)] for flow in flows
    ]
    return Table(columns, rows if counted else [])


def _anything(table: Part, name: str) -> str:
    value = number(table, name)
    return text(table, name) or NOTHING if value is None else figure(value)


def _last(flow: Part, counter: str) -> float | None:
    """Return what a counter stood at in the last sample that has it."""
    known = numbers(part(flow, "samples").get(counter))
    known = known[~np.isnan(known)]
    return float(known[-1]) if known.size else None


def _goodput_mbps(flow: Part) -> float | None:
    start_s, stop_s = number(flow, "start_s") or 0.0, number(flow, "stop_s")
    goodput = part(flow, "goodput")
    if stop_s is None or stop_s <= start_s or not goodput:
        return None
    return total(goodput) * 8e-6 / (stop_s - start_s)


def _paths(flow: Part) -> Table:
    changed = any(changes(path) for path in parts(flow, "paths"))
    columns = [
        *map(Column, ("EV", "plane", "source port")),
        *map(Column, PER_PATH.values()),
        Column("SRTT, ms"),
        Column("changes"),
        *([Column("which", "words")] if changed else []),
    ]
    rows = [
        [
            *(text(path, name) for name in ("index", "plane", "source_port")),
            *(figure(number(path, name), 0) for name in PER_PATH),
            figure(number(path, "srtt_ms") or None, 2),
            str(len(changes(path))),
            *([_story(path)] if changed else []),
        ]
        for path in paths_in_order(flow)
    ]
    return Table(columns, rows)


def _story(path: Part) -> str:
    """Return in words what became of a path, and when."""
    story = [
        f"{at_s:.3f} s {state.replace('_', ' ')}{f' ({reason})' if reason else ''}"
        for at_s, state, reason in changes(path)
    ]
    more = len(story) - CHANGES_SHOWN
    return "; ".join(story[:CHANGES_SHOWN] + ([f"{more} more"] if more > 0 else []))


def _links(run: Part) -> Table:
    """Return counters of links, leaving out links and counters that are zero throughout."""
    links = [link for link in parts(run, "links") if _count(link, part(link, "counters"))]
    names = [
        name
        for name in dict.fromkeys(str(key) for link in links for key in part(link, "counters"))
        if any(number(part(link, "counters"), name) for link in links)
    ]
    duration_s = number(run, "duration_s")
    columns = [
        Column("link", "name"),
        *map(Column, ("plane", "rate, Mb/s", "load, %")),
        *(Column(name.replace("_", " ")) for name in names),
    ]
    rows = [
        [
            text(link, "name"),
            text(link, "plane"),
            figure(number(link, "rate_mbps")),
            figure(_load(link, duration_s), 1),
            *(figure(number(part(link, "counters"), name), 0) for name in names),
        ]
        for link in links
    ]
    return Table(columns, rows)


def _count(link: Part, names: Iterable[object]) -> float:
    return sum(abs(number(part(link, "counters"), str(name)) or 0) for name in names)


def _load(link: Part, duration_s: float | None) -> float | None:
    count, rate_mbps = number(part(link, "counters"), "bytes"), number(link, "rate_mbps")
    if count is None or not rate_mbps or not duration_s:
        return None
    return 100 * count * 8e-6 / rate_mbps / duration_s
