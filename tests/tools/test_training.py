"""What `tools/demo-training` makes of the steps it saw, what it refuses, and what is learnt."""

import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest
from training import figures
from training.classroom import Training
from training.lesson import BATCH, Images, network

ROOT = Path(__file__).resolve().parents[2]
MS = 1_000_000


def training(
    steps_ms: list[float], dead_ms: tuple[float, float] | None = None, loss: float = 0.5
) -> Training:
    """Return what two ranks saw of steps; the second is 2 ms ahead of the first throughout."""
    ends = [int(end * MS) for end in accumulate(steps_ms, initial=2)]
    return Training(
        moments_ns=[ends, [end - 2 * MS for end in ends]],
        losses=[loss / (1 + step) for step in range(len(steps_ms))],
        right=0.9,
        dead_ns=None if dead_ms is None else (int(dead_ms[0] * MS), int(dead_ms[1] * MS)),
    )


def trainings(
    steps_ms: list[float], dead_ms: tuple[float, float], loss: float = 0.5
) -> dict[str, Training]:
    """Return both trainings of a backend; the undisturbed one has steps of 50 ms."""
    still = training([50] * len(steps_ms))
    return {figures.UNDISTURBED: still, figures.DISTURBED: training(steps_ms, dead_ms, loss)}


def rows(ours_ms: float, theirs_ms: float) -> list[figures.Row]:
    """Return two backends whose third step took so long, while a plane was dead."""
    dead = 110.0, 120.0
    return [
        figures.row(figures.OURS, trainings([50, 50, ours_ms, 50], dead)),
        figures.row(figures.OTHERS, trainings([50, 50, theirs_ms, 50], dead)),
    ]


# Steps.


def test_a_step_is_over_when_it_is_on_the_slowest_rank() -> None:
    """Whoever waits for it waits that long."""
    seen = Training(moments_ns=[[0, 10 * MS, 20 * MS], [0, 7 * MS, 25 * MS]], losses=[], right=0)
    assert seen.steps_ms == [10, 15]


@pytest.mark.parametrize(
    ("dead_ms", "steps"),
    [
        ((62, 92), range(1, 2)),
        ((62, 140), range(1, 3)),
        ((10, 20), range(1)),
        ((110, 500), range(2, 4)),
    ],
)
def test_dead_steps_are_all_that_the_plane_was_dead_in(
    dead_ms: tuple[float, float], steps: range
) -> None:
    """From the one in which it dies to the one in which it is healed; none begins after the end."""
    assert training([50, 50, 50, 50], dead_ms).dead_steps == steps


def test_the_longest_step_is_the_longest_while_the_plane_is_dead() -> None:
    """A step that was slow before says nothing of the fault."""
    row = figures.row(figures.OURS, trainings([500, 50, 90, 50, 50], (560, 570)))
    assert (row.longest_step, row.longest_ms, row.median_ms, row.medians) == (2, 90, 50, 1.8)


def test_the_median_is_that_of_the_steps_with_all_planes() -> None:
    """What the fault makes slow for long is not what it is measured by."""
    row = figures.row(figures.OURS, trainings([50, 60, 110, 110, 110, 110, 50], (120, 500)))
    assert (row.median_ms, row.medians) == (50, 2.2)
    with pytest.raises(ValueError, match="no median"):
        figures.row(figures.OURS, trainings([50, 50], (10, 90)))


def test_a_fault_that_no_step_saw_is_no_figure() -> None:
    """It would pass for the best there is."""
    with pytest.raises(ValueError, match="mrc: the plane was dead in no step"):
        figures.row(figures.OURS, trainings([50, 50], (900, 950)))


# Verdicts.


@pytest.mark.parametrize(
    ("ours_ms", "theirs_ms", "held"),
    [
        (99, 500, [True, True, True, True]),
        (100, 500, [False, True, True, True]),
        (99, 490, [True, False, True, True]),
    ],
)
def test_what_must_hold(ours_ms: float, theirs_ms: float, held: list[bool]) -> None:
    """Ours under two medians, theirs five times as long as ours, and losses as without a fault."""
    assert [each.holds for each in figures.verdicts(rows(ours_ms, theirs_ms))] == held


def test_losses_that_the_fault_changed_are_a_failure() -> None:
    """A transport may be slow, and never wrong."""
    row = figures.row(figures.OURS, trainings([50, 50], (60, 70), loss=0.5001))
    assert [each.holds for each in figures.verdicts([row])] == [True, False]


def test_a_document_has_every_step_and_the_verdicts() -> None:
    """So that anybody can judge anew."""
    seen = {
        figures.OURS: trainings([50, 60, 50], (60, 70)),
        figures.OTHERS: trainings([50, 700, 50], (60, 70)),
    }
    found = [figures.row(name, each) for name, each in seen.items()]
    document = figures.document(found, seen, {"seed": 1})
    assert document["passed"] is True
    assert document["settings"] == {"seed": 1}
    disturbed = document["backends"]["gloo"]["trainings"]["disturbed"]
    assert disturbed["steps_ms"] == [50, 700, 50]
    assert disturbed["dead_steps"] == [1]


# The lesson.


def test_ranks_share_an_epoch_and_the_seed_decides_how() -> None:
    """No image is in two batches of an epoch, and the same seed gives the same ones."""
    images, again = Images(3), Images(3)
    batches = [images.batch(step, rank, 4) for step in range(2) for rank in range(4)]
    rows = {tuple(image.flatten().tolist()) for pixels, _ in batches for image in pixels}
    assert len(rows) == len(batches) * BATCH
    assert all(
        bool((pixels == again.batch(step, rank, 4)[0]).all())
        for (pixels, _), (step, rank) in zip(
            batches, [(step, rank) for step in range(2) for rank in range(4)], strict=True
        )
    )


def test_the_seed_decides_where_parameters_begin() -> None:
    """Two runs begin alike."""
    one, two, other = network(1), network(1), network(2)
    first = [next(iter(each.parameters())) for each in (one, two, other)]
    assert bool((first[0] == first[1]).all())
    assert not bool((first[0] == first[2]).all())


# The command line.


def run(*arguments: str, user: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command without the bootstrap, which would install."""
    line = [sys.executable, "-m", "training.command", *arguments]
    if user is not None:
        line = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", *line]
    return subprocess.run(
        line, cwd=ROOT / "tools", capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--backend", "nccl"], "'nccl' is not one of 'mrc', 'gloo'"),
        (["--dead", "0"], "0.0 is not in the range"),
        (["--plane", "4"], "4 is not in the range 0<=x<=3"),
        (["--steps", "20"], "20 is not in the range"),
        (["--picture", "no/such/folder/x.png"], "there is no such folder"),
        (["--name", "Lab"], "no name for a lab"),
    ],
)
def test_what_cannot_be_is_refused_by_name(arguments: list[str], complaint: str) -> None:
    """Before anything is built; status 2."""
    ran = run(*arguments)
    assert ran.returncode == 2
    assert complaint in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.slow
@pytest.mark.root
def test_without_root_it_says_so() -> None:
    """One line, status 2."""
    ran = run(user="65534")
    if "Permission denied" in ran.stderr:
        pytest.skip("nobody may not read this folder")
    assert ran.returncode == 2
    assert "the lab needs root" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.slow
def test_help_has_examples() -> None:
    """And what the exit codes mean."""
    ran = run("--help")
    assert ran.returncode == 0
    assert "sudo tools/demo-training --dead 2" in ran.stdout
    assert "Exit codes: 0 all that must hold held" in ran.stdout
