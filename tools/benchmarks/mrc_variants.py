"""Transfers of mrc from memory to memory over loopback, in two processes: undisturbed and not."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from benchmarks.child import MeasurementError, transfer
from benchmarks.comparison import GOODPUT, Outcome
from benchmarks.context import Context
from benchmarks.mrc_worker import Job
from mrc.units import NS_PER_MS, NS_PER_S, NS_PER_US

KIB, GIB = 1 << 10, 1 << 30
LOSS = 0.01
SETTLE_NS = 200 * NS_PER_MS
"""The goodput with a dead path is taken from so long after its first loss on."""
BINS_BEFORE = 10
RECOVERED = 0.9
"""Share of the goodput before that counts as recovered."""

Report = dict[str, Any]


async def undisturbed(context: Context) -> Outcome:
    """Measure as the defaults are: with iCRC."""
    return _quiet_outcome(await _transfer(context, Job(paths=context.settings.paths)))


async def without_icrc(context: Context) -> Outcome:
    """Measure without iCRC."""
    return _quiet_outcome(await _transfer(context, Job(paths=context.settings.paths, icrc=False)))


async def locked(context: Context) -> Outcome:
    """Measure with sealed packets, as behind a lock; the iCRC stays on."""
    return _quiet_outcome(await _transfer(context, Job(paths=context.settings.paths, locked=True)))


async def lossy(context: Context) -> Outcome:
    """Measure with datagrams lost at random, in both directions, on all paths."""
    job = Job(paths=context.settings.paths, loss=LOSS)
    sent, received = await _transfer(context, job)
    metrics = {
        "lost_datagrams": sum(sent["lost"]),
        "retransmitted_packets": sent["requestor"]["packets_retransmitted"],
        "spurious_packets": sent["requestor"]["packets_spurious"],
    }
    return Outcome(_metrics(sent, received) | metrics)


async def dead_path(context: Context) -> Outcome:
    """Let one path die and heal; measure how fast that is noticed and what it costs."""
    job = Job(paths=context.settings.paths, dead_path=True)
    sent, received = await _transfer(context, job)
    report = sent["dead_path"]
    dead = f"port {report['port']}"
    if report["first_drop_ns"] is None:
        raise MeasurementError(f"nothing was sent on {dead} while it was dead")
    metrics = _metrics(sent, received) | {"others_blamed": len(report["others"])}
    notes = [
        f"port {port} withdrawn for {reason!r} {after_ns / NS_PER_MS:.0f} ms after {dead} died"
        for port, reason, after_ns in report["others"]
    ]
    if report["withdrawn_ns"] is None:
        notes.append(f"{dead} was not withdrawn")
    else:
        metrics["notice_ms"] = (report["withdrawn_ns"] - report["first_drop_ns"]) / NS_PER_MS
    if report["good_ns"] is None:
        notes.append(f"{dead} was not taken back")
    else:
        metrics["heal_ms"] = (report["good_ns"] - report["healed_ns"]) / NS_PER_MS
    metrics |= _recovery(received["placed"], report["first_drop_ns"], report["healed_ns"])
    return Outcome(metrics, tuple(notes))


def _metrics(sent: Report, received: Report) -> dict[str, float]:
    """What every transfer tells."""
    first, last = received["placed"][0], received["placed"][-1]
    return {
        GOODPUT: sent["bytes"] * 8 / sent["seconds"] / 1e9,
        "sender_cpu_s_per_gib": sent["cpu_seconds"] / (sent["bytes"] / GIB),
        "receiver_cpu_s_per_gib": (last[2] - first[2]) / NS_PER_S / ((last[1] - first[1]) / GIB),
        "timeouts": sent["requestor"]["timeouts"],
        "withdrawn_evs": len(sent["withdrawn"]),
        "cwnd_kib": sent["requestor"]["cwnd_bytes"] / KIB,
        "srtt_us": sent["requestor"]["srtt_ns"] / NS_PER_US,
    }


def _quiet_outcome(reports: tuple[Report, Report]) -> Outcome:
    """The outcome of a transfer in which no EV should be blamed."""
    sent, received = reports
    reasons = Counter(reason for _, reason in sent["withdrawn"])
    notes = [f"{count} EVs withdrawn for {reason!r}" for reason, count in reasons.items()]
    return Outcome(_metrics(sent, received) | _steadiness(sent, received), tuple(notes))


def _steadiness(sent: Report, received: Report) -> dict[str, float]:
    """The slowest bin by the fastest: far below 1, the transfer fell into a slow mode."""
    rates = [
        rate
        for start_ns, end_ns, rate in _bins(received["placed"])
        if start_ns >= sent["began_ns"] and end_ns <= sent["ended_ns"]
    ]
    fastest = max(rates, default=0.0)
    return {"steadiness_ratio": min(rates) / fastest} if fastest else {}


def _recovery(placed: list[list[int]], drop_ns: int, healed_ns: int) -> dict[str, float]:
    """Goodput with the dead path by goodput before, and how long it took to be back."""
    bins = _bins(placed)
    before = [rate for _, end_ns, rate in bins if end_ns <= drop_ns]
    during = [each for each in bins if each[0] >= drop_ns and each[1] <= healed_ns]
    settled = [rate for start_ns, _, rate in during if start_ns >= drop_ns + SETTLE_NS]
    if not before or not settled:
        return {}
    # The last ones only: the first hold the warm-up.
    usual = statistics.median(before[-BINS_BEFORE:])
    found = {
        "recovered_ratio": statistics.median(settled) / usual,
        "worst_bin_ratio": min(rate for _, _, rate in during) / usual,
    }
    for _, end_ns, rate in during:
        if rate >= RECOVERED * usual:
            found["recover_ms"] = (end_ns - drop_ns) / NS_PER_MS
            break
    return found


def _bins(placed: list[list[int]]) -> list[tuple[int, int, float]]:
    """Start and end in ns, and bytes per ns, between one look at the counters and the next."""
    return [
        (start_ns, end_ns, (end_bytes - start_bytes) / (end_ns - start_ns))
        for (start_ns, start_bytes, _), (end_ns, end_bytes, _) in pairwise(placed)
    ]


async def _transfer(context: Context, job: Job) -> tuple[Report, Report]:
    """Run both processes; return what sender and receiver report.

    Raises:
        MeasurementError: one of them failed, or what arrived is not what was sent.
    """
    plain = asdict(job) | {"seconds": context.settings.seconds, "seed": context.next_seed()}
    sent, received = await transfer("mrc_worker", plain)
    if sent["sha256"] != received["sha256"]:
        raise MeasurementError("what was placed at the receiver differs from what was sent")
    return sent, received
