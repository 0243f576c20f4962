"""Variants run in turns, and the rows made of what they measured.

The machine is noisy: what is compared runs side by side, and a ratio is taken within each round
before the median of all rounds is. Knows numbers and names, not what is measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from benchmarks.child import MeasurementError, MissingError
from benchmarks.context import Context

GOODPUT = "goodput_gbps"
"""The metric that most variants have: payload gigabits a second."""
GBPS, RATIO, COUNT, US, MS, MIB, KIB = "Gbit/s", "ratio", "count", "us", "ms", "MiB", "KiB"
"""Units of rows."""
FAILURES_MAX = 2
"""A variant that failed so often is not run again: each failure may have cost its whole timeout."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run of a variant measured.

    Attributes:
        metrics: number by name; a name ends in its unit.
        notes: sentences for the reader, such as an anomaly that was seen.
    """

    metrics: dict[str, float]
    notes: tuple[str, ...] = ()


Variant = Callable[[Context], Awaitable[Outcome]]
"""Measures one thing once. Raises MissingError or MeasurementError, and leaves nothing behind."""


Better = Literal["more", "less"]


@dataclass(frozen=True, slots=True)
class RowSpec:
    """Where the numbers of a row come from.

    Attributes:
        name: what the reader sees.
        unit: of the numbers; a ratio has none.
        variant: key of a variant of the same comparison.
        metric: one of its metrics.
        over: divide by the largest of the same metric of these variants in the same round; one
            that is missing is said, and the others stand for it.
        must: what the number has to reach, if anything; nothing enforces it.
        aim: what it should reach.
        better: whether more or less of it is better.
    """

    name: str
    unit: str
    variant: str
    metric: str = GOODPUT
    over: tuple[str, ...] = ()
    must: float | None = None
    aim: float | None = None
    better: Better = "more"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Variants that take turns, and their rows.

    Attributes:
        name: for `--only`.
        about: what it shows, in one line.
        variants: by key, in the order of the first round; every other round runs backwards.
        rows: what is told of them.
        rounds: of a default run.
        rounds_quick: of a quick run.
        seconds_max: of a default run; a slow machine gets fewer rounds.
    """

    name: str
    about: str
    variants: dict[str, Variant]
    rows: tuple[RowSpec, ...]
    rounds: int
    rounds_quick: int
    seconds_max: float


class Status(Enum):
    """Whether all runs behind a row gave a number, and why not."""

    OK = "ok"
    MISSING = "missing"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that measured nothing, why, and the last words of what failed."""

    status: Status
    why: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the result; without samples there is no median, minimum or maximum."""

    comparison: str
    name: str
    unit: str
    status: Status
    median: float | None
    min: float | None
    max: float | None
    pairs: int
    samples: tuple[float, ...]
    must: float | None
    aim: float | None
    better: Better
    notes: tuple[str, ...]

    def reaches(self, bound: float | None) -> bool | None:
        """Tell whether the median is as good as a bound; None without one of them."""
        if self.median is None or bound is None:
            return None
        return self.median >= bound if self.better == "more" else self.median <= bound


Round = dict[str, Outcome | Failure]
Report = Callable[[str, Outcome | Failure], None]
"""Told of every run as it ends, with the key of its variant."""


async def compare(
    comparison: Comparison, context: Context, rounds: int, seconds_max: float, report: Report
) -> list[Row]:
    """Run the rounds of a comparison and return its rows.

    Args:
        comparison: what to run.
        context: handed to the variants.
        rounds: how many, if the time allows.
        seconds_max: no round but the first is begun that would probably end later than this.
        report: told of every run.
    """
    history: list[Round] = []
    began_s = time.monotonic()
    for keys in turns(list(comparison.variants), rounds):
        spent_s = time.monotonic() - began_s
        if history and spent_s * (len(history) + 1) / len(history) > seconds_max:
            break
        done: Round = {}
        for key in keys:
            given_up = _given_up(key, history)
            if given_up is not None:
                done[key] = given_up
                continue
            done[key] = await _measure(comparison, key, context)
            report(key, done[key])
        history.append(done)
    return [make_row(comparison.name, spec, history) for spec in comparison.rows]


def turns(keys: Sequence[str], rounds: int) -> Iterator[list[str]]:
    """Yield the order of each round: there and back, so that a drift hits all alike."""
    for number in range(rounds):
        yield list(keys if number % 2 == 0 else reversed(keys))


def make_row(comparison: str, spec: RowSpec, history: Sequence[Round]) -> Row:
    """Make a row of what the rounds gave; one that failed lends its reason and no number."""
    samples: list[float] = []
    notes: dict[str, None] = {}
    status = Status.OK
    for done in history:
        run = done[spec.variant]
        others = [done[key] for key in spec.over]
        notes |= dict.fromkeys(each.why for each in (run, *others) if isinstance(each, Failure))
        if not spec.over and isinstance(run, Outcome):
            notes |= dict.fromkeys(run.notes)
        sample = _sample(spec, run, others)
        if isinstance(sample, Status):
            status = sample
        else:
            samples.append(sample)
    return Row(
        comparison,
        spec.name,
        spec.unit,
        status,
        statistics.median(samples) if samples else None,
        min(samples, default=None),
        max(samples, default=None),
        len(samples),
        tuple(samples),
        spec.must,
        spec.aim,
        spec.better,
        tuple(notes),
    )


def _sample(
    spec: RowSpec, run: Outcome | Failure, others: Sequence[Outcome | Failure]
) -> float | Status:
    """The number that one round gives a row, or why it gives none."""
    if isinstance(run, Failure):
        return run.status
    if spec.metric not in run.metrics:
        return Status.FAILED
    if not others:
        return run.metrics[spec.metric]
    failed = [each.status for each in others if isinstance(each, Failure)]
    divisors = [
        each.metrics[spec.metric]
        for each in others
        if isinstance(each, Outcome) and spec.metric in each.metrics
    ]
    if not divisors:
        return failed[0] if failed else Status.FAILED
    return run.metrics[spec.metric] / max(divisors)


async def _measure(comparison: Comparison, key: str, context: Context) -> Outcome | Failure:
    try:
        return await comparison.variants[key](context)
    except MissingError as missing:
        return Failure(Status.MISSING, str(missing))
    except MeasurementError as failed:
        return Failure(Status.FAILED, str(failed), failed.details)
    except OSError as failed:
        return Failure(Status.FAILED, str(failed))


def _given_up(key: str, history: Sequence[Round]) -> Failure | None:
    """The reason not to run a variant again, if there is one."""
    failures = [run for done in history if isinstance(run := done[key], Failure)]
    for failure in failures:
        if failure.status is Status.MISSING or len(failures) >= FAILURES_MAX:
            return failure
    return None
