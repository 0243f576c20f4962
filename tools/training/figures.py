"""What the steps of all trainings say, and what must hold of them.

Knows numbers, not where they come from.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from training.classroom import Training

OURS, OTHERS = "mrc", "gloo"
UNDISTURBED, DISTURBED = "undisturbed", "disturbed"
"""Names of the two trainings of each backend: without and with a plane that dies."""
LONGEST_MEDIANS_MAX = 2.0
"""Our longest step while a plane is dead, in median steps with all planes: below this."""
STALL_RATIO_MIN = 5.0
"""The longest step of gloo over the dead path, in longest steps of ours."""
LOSS_TOLERANCE = 1e-5
"""Between two losses that float32 should have the same: some hundred of its last bits."""

Trainings = Mapping[str, Mapping[str, Training]]
"""By backend and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One backend, in numbers.

    Attributes:
        backend: which.
        median_ms: step before the plane dies and after it is healed, in the training in which it
            does.
        longest_ms: step while the plane is dead.
        longest_step: its number, from 0.
        medians: the one in units of the other.
        undisturbed_ms: median step of the training in which nothing dies,
        undisturbed_longest_ms: and its longest.
        loss: of the last step.
        loss_difference: largest between the two trainings, of all steps.
        right: share of images never seen that the trained network tells right.
    """

    backend: str
    median_ms: float
    longest_ms: float
    longest_step: int
    medians: float
    undisturbed_ms: float
    undisturbed_longest_ms: float
    loss: float
    loss_difference: float
    right: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """One thing that must hold, and whether it does."""

    what: str
    holds: bool
    value: float


def row(backend: str, trainings: Mapping[str, Training]) -> Row:
    """Return the numbers of a backend.

    Raises:
        ValueError: no step was under way while the plane was dead, or none at another time: nothing
            was shown.
    """
    still, hit = trainings[UNDISTURBED], trainings[DISTURBED]
    if not hit.dead_steps:
        raise ValueError(f"{backend}: the plane was dead in no step")
    steps_ms, still_ms = hit.steps_ms, still.steps_ms
    longest = max(hit.dead_steps, key=lambda step: steps_ms[step])
    # Of four planes three are left, so the dead steps may be slower: they are no measure.
    living = [time_ms for step, time_ms in enumerate(steps_ms) if step not in hit.dead_steps]
    median_ms = statistics.median(living)
    return Row(
        backend=backend,
        median_ms=median_ms,
        longest_ms=steps_ms[longest],
        longest_step=longest,
        medians=steps_ms[longest] / median_ms,
        undisturbed_ms=statistics.median(still_ms),
        undisturbed_longest_ms=max(still_ms),
        loss=hit.losses[-1],
        loss_difference=difference(still.losses, hit.losses),
        right=hit.right,
    )


def difference(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the largest difference between two curves."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Return what must hold of the backends that have run."""
    found = []
    by_name = {each.backend: each for each in rows}
    ours, theirs = by_name.get(OURS), by_name.get(OTHERS)
    if ours is not None:
        medians = ours.medians
        what = f"{OURS}: longest step while the plane is dead, in medians of the others: under 2"
        found.append(Verdict(what, medians < LONGEST_MEDIANS_MAX, medians))
    if ours is not None and theirs is not None:
        ratio = theirs.longest_ms / ours.longest_ms
        what = f"{OTHERS}'s longest step over the dead path, in ours: at least 5"
        found.append(Verdict(what, ratio >= STALL_RATIO_MIN, ratio))
    for each in rows:
        what = f"{each.backend}: losses as in the training without a fault, to {LOSS_TOLERANCE:g}"
        found.append(Verdict(what, each.loss_difference <= LOSS_TOLERANCE, each.loss_difference))
    return found


def document(
    rows: Sequence[Row], trainings: Trainings, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return everything as one JSON object, every step among it."""
    judged = verdicts(rows)
    return {
        "settings": dict(settings),
        "passed": all(each.holds for each in judged),
        "verdicts": [
            {"what": each.what, "holds": each.holds, "value": each.value} for each in judged
        ],
        "backends": {
            each.backend: {
                **{name: getattr(each, name) for name in each.__dataclass_fields__},
                "trainings": {
                    name: {
                        "steps_ms": training.steps_ms,
                        "losses": training.losses,
                        "right": training.right,
                        "dead_steps": list(training.dead_steps or ()),
                        "dead_s": training.dead_s,
                    }
                    for name, training in trainings[each.backend].items()
                },
            }
            for each in rows
        },
    }
