"""The table and the lines above it: what a person reads."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from mrc.perf.conversation import TEXT_CHARACTERS_MAX
from mrc.perf.report import Report, SizeReport
from mrc.perf.settings import Kind
from mrc.text import printable
from mrc.units import NS_PER_US, format_bytes

_BANDWIDTH = ("MsgSize", "TotalOps", "BW_avg(Gbps)", "MsgRate(Mpps)")
_LATENCY = (
    "MsgSize",
    "TotalOps",
    "t_min(us)",
    "t_p50(us)",
    "t_avg(us)",
    "t_stdev(us)",
    "t_p99(us)",
    "t_p99.9(us)",
    "t_max(us)",
)
_WIDTH = 14
COLUMNS = 100


def header(report: Report) -> list[str]:
    """Return the lines that say what is measured, and how."""
    start, plan = report.start, report.plan
    if plan is None:
        return []
    what = "WRITE bandwidth"
    if plan.kind is Kind.LATENCY:
        what = "WRITE-with-Immediate latency (half of the round trip)"
    elif plan.bidirectional:
        what = "WRITE bandwidth, both ways, their sum"
    cipher = f"encrypted, {start['cipher']}" if start["cipher"] else "not encrypted"
    length = f"{plan.operations} messages" if plan.operations else f"{plan.duration_s:g} s"
    connection = (
        f"{_count(plan.qps, 'queue pair')}, {_count(start['paths'], 'path')} over"
        f" {_count(start['planes'], 'plane')}, MTU {start['mtu_bytes']},"
        f" iCRC {'on' if start['icrc'] else 'off'}; goodput, 1 Gbps = 10^9 bit/s"
    )
    walk = (
        f"messages walk through {format_bytes(plan.lane_bytes)} a queue pair at both ends,"
        f" {_span(plan.depth_for(size) for size in plan.sizes)} outstanding"
    )
    warm_up = _span(plan.warm_up_operations(size) for size in plan.sizes)
    counted = f"{length} a test, {warm_up} messages of warm-up not counted"
    verified = "; contents verified" if plan.verify else ""
    return [f"{what} to {start['peer']}, {cipher}", connection, walk, counted + verified]


def _span(numbers: Iterable[int]) -> str:
    least, *_, most = sorted(numbers) * 2
    return f"{least}" if least == most else f"{least} to {most}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def explained(side: str, text: str) -> str:
    """Return what a side says of itself, in lines that a terminal holds, whatever it says."""
    shown = printable(text, TEXT_CHARACTERS_MAX)
    return textwrap.fill(f"{side}: {shown}", COLUMNS, subsequent_indent="    ")


def heading(kind: Kind) -> str:
    """Return the names of the columns."""
    return _line(_LATENCY if kind is Kind.LATENCY else _BANDWIDTH)


def row(test: SizeReport) -> str:
    """Return the figures of one test."""
    shown = _line((str(test.message_bytes), str(test.operations), *_figures(test)))
    remark = "" if test.complete else " (stopped)"
    if test.wrong_bytes:
        remark += f" ({test.wrong_bytes} bytes wrong)"
    return shown + remark


def _figures(test: SizeReport) -> tuple[str, ...]:
    if test.kind is not Kind.LATENCY:
        return f"{test.bits_per_second / 1e9:.3f}", f"{test.messages_per_second / 1e6:.6f}"
    half = test.latency
    if half is None:
        return ("-",) * (len(_LATENCY) - 2)
    in_ns = (
        half.min_ns,
        half.p50_ns,
        half.mean_ns,
        half.stdev_ns,
        half.p99_ns,
        half.p999_ns,
        half.max_ns,
    )
    return tuple(f"{value / NS_PER_US:.2f}" for value in in_ns)


def _line(cells: tuple[str, ...]) -> str:
    return "".join(f"{cell:<{_WIDTH}}" for cell in cells).rstrip()
