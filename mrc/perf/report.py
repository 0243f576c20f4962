"""What a run has to tell, gathered as it happens: the JSON document has the same in its own words.

Builds values; prints nothing and has no clock.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mrc.perf.conversation import Finding
from mrc.perf.latency import LatencyFigures
from mrc.perf.measures import ReceiverFigures, SenderFigures
from mrc.perf.settings import Kind, Plan
from mrc.units import NS_PER_S, NS_PER_US

SCHEMA = "mrc-perf/1"


@dataclass(slots=True)
class SizeReport:
    """One test: one message size.

    Attributes:
        kind: of test.
        message_bytes: of each message.
        sent: what the connecting side sent, by its own count; a listener does not know it.
        received: the same by the count of the listening side.
        sent_back: what the listening side sent, by its own count.
        received_back: the same by the count of the connecting side.
        latency: half round trips.
        wrong_bytes: that did not arrive as sent, both ways; None where nobody looked.
        complete: it came to its end.
    """

    kind: Kind
    message_bytes: int
    sent: SenderFigures | None = None
    received: ReceiverFigures | None = None
    sent_back: SenderFigures | None = None
    received_back: ReceiverFigures | None = None
    latency: LatencyFigures | None = None
    wrong_bytes: int | None = None
    complete: bool = False

    @property
    def operations(self) -> int:
        """Messages of both ways together; a message and its answer are one."""
        counts = [count for count, _ in self._ways()]
        return counts[0] if self.kind is Kind.LATENCY else sum(counts)

    @property
    def bits_per_second(self) -> float:
        """Goodput of both ways together."""
        return 8 * self.message_bytes * self.messages_per_second

    @property
    def messages_per_second(self) -> float:
        """Messages of both ways together: each way by its own clock."""
        return sum(count * NS_PER_S / took_ns for count, took_ns in self._ways() if took_ns)

    def _ways(self) -> list[tuple[int, int]]:
        """Return messages and duration each way: by who sent them, else by who received them."""
        ways = []
        for sent, received in (
            (self.sent, self.received),
            (self.sent_back, self.received_back),
        ):
            if sent is not None:
                ways.append((sent.operations, sent.duration_ns))
            elif received is not None:
                ways.append((received.messages, received.duration_ns))
            else:
                ways.append((0, 0))
        return ways


@dataclass(slots=True)
class Report:
    """Everything about one client, as one side saw it.

    Attributes:
        start: what was known at the beginning.
        plan: what is measured; a listener has none.
        tests: in their order.
        intervals: interim figures.
        paths: counters of every path at the end.
        findings: what limited it, by side, the most important first.
    """

    start: dict[str, Any] = field(default_factory=dict)
    plan: Plan | None = None
    tests: list[SizeReport] = field(default_factory=list)
    intervals: list[dict[str, Any]] = field(default_factory=list)
    paths: list[dict[str, Any]] = field(default_factory=list)
    findings: dict[str, tuple[Finding, ...]] = field(default_factory=dict)


def document(
    report: Report, error: dict[str, Any] | None, more: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Build the JSON document of one side, whatever became of the run.

    Args:
        report: of the run.
        error: what ended it, as `failure` tells it, or nothing.
        more: further members.
    """
    body = {
        "schema": SCHEMA,
        "start": report.start,
        "intervals": report.intervals,
        "end": end_json(report),
        "error": error,
        **(more or {}),
    }
    plain: dict[str, Any] = _plain(body)
    return plain


def end_json(report: Report) -> dict[str, Any] | None:
    """Return what was measured, or None when nothing was."""
    if not report.tests:
        return None
    return {
        "tests": [size_json(test) for test in report.tests],
        "paths": report.paths,
        "explain": {
            side: [asdict(each) for each in told] for side, told in report.findings.items()
        },
    }


def event_line(name: str, data: Any) -> str:
    """Return one line of the document as it comes up."""
    return json.dumps({"event": name, "data": _plain(data)}, allow_nan=False)


def size_json(test: SizeReport) -> dict[str, Any]:
    """Return the figures of one test, each side's under its own name."""
    both_ways = test.sent_back is not None or test.received_back is not None
    back = {
        "sender": _figures_json(test.sent_back),
        "receiver": _figures_json(test.received_back),
    }
    return {
        "kind": test.kind.value,
        "message_bytes": test.message_bytes,
        "operations": test.operations,
        "bits_per_second": test.bits_per_second,
        "messages_per_second": test.messages_per_second,
        "sender": _figures_json(test.sent),
        "receiver": _figures_json(test.received),
        "reverse": back if both_ways else None,
        "half_round_trip": _latency_json(test.latency),
        "wrong_bytes": test.wrong_bytes,
        "complete": test.complete,
    }


def _figures_json(figures: SenderFigures | ReceiverFigures | None) -> dict[str, Any] | None:
    if figures is None:
        return None
    values = asdict(figures)
    took_ns, cpu_ns = values.pop("duration_ns"), values.pop("cpu_ns")
    return {
        **values,
        "seconds": took_ns / NS_PER_S,
        "bits_per_second": rate(8 * figures.bytes, took_ns),
        "cpu_seconds": cpu_ns / NS_PER_S,
        "cpu_percent": rate(100 * cpu_ns / NS_PER_S, took_ns),
    }


def _latency_json(figures: LatencyFigures | None) -> dict[str, Any] | None:
    if figures is None:
        return None
    values = asdict(figures)
    count = values.pop("samples")
    return {
        "samples": count,
        **{name.replace("_ns", "_us"): value / NS_PER_US for name, value in values.items()},
    }


def rate(amount: float, took_ns: int) -> float | None:
    """Return so much a second, or None of no time at all."""
    return amount * NS_PER_S / took_ns if took_ns > 0 else None


def _plain(value: Any) -> Any:
    """Reduce to what every JSON reader takes: no NaN, no infinities, no broken text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return str(value).encode("utf-8", "backslashreplace").decode()
    return value
