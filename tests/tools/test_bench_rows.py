"""How `tools/bench` makes rows of measurements: turns, ratios within a round, and gaps."""

import asyncio
import json
import math
from io import StringIO
from pathlib import Path

import pytest
from benchmarks.child import MeasurementError, MissingError, running
from benchmarks.comparison import (
    GOODPUT,
    Better,
    Comparison,
    Outcome,
    Row,
    RowSpec,
    Status,
    Variant,
    compare,
    turns,
)
from benchmarks.context import Context, Settings
from benchmarks.report import document, print_table
from benchmarks.table import COMPARISONS
from rich.console import Console

SETTINGS = Settings(paths=16, seconds=1.0, quic_bytes=1, file_bytes=1, seed=1)


def scripted(*results: float | Exception) -> tuple[Variant, list[int]]:
    """A variant that returns these goodputs in turn, or raises, and the count of its runs."""
    left = list(results)
    runs = [0]

    async def variant(context: Context) -> Outcome:
        runs[0] += 1
        result = left.pop(0)
        if isinstance(result, Exception):
            raise result
        return Outcome({GOODPUT: result})

    return variant, runs


def rows_of(
    variants: dict[str, Variant], rounds: int, *specs: RowSpec, seconds_max: float = math.inf
) -> list[Row]:
    """Compare, without telling anybody of the runs."""
    comparison = Comparison("c", "", variants, specs, rounds, rounds, seconds_max)
    context = Context(SETTINGS, Path())
    return asyncio.run(compare(comparison, context, rounds, seconds_max, lambda _key, _run: None))


def test_every_other_round_runs_backwards() -> None:
    """A drift of the machine hits all variants alike: A B, B A, A B."""
    assert list(turns(["a", "b"], 3)) == [["a", "b"], ["b", "a"], ["a", "b"]]


def test_a_ratio_is_taken_within_its_round() -> None:
    """The median of the ratios counts, not the ratio of the medians."""
    fast, _ = scripted(10.0, 2.0, 3.0)
    slow, _ = scripted(1.0, 2.0, 1.0)
    (row,) = rows_of({"a": fast, "b": slow}, 3, RowSpec("a / b", "ratio", "a", over=("b",)))
    assert row.samples == (10.0, 1.0, 3.0)
    assert (row.median, row.min, row.max, row.pairs) == (3.0, 1.0, 10.0, 3)
    assert row.status is Status.OK


def test_what_is_missing_is_tried_once_and_said() -> None:
    """A variant that cannot run here costs one try, and its rows say what is missing."""
    here, _ = scripted(1.0, 1.0, 1.0)
    absent, tries = scripted(MissingError("no such program"))
    specs = (RowSpec("here", "", "h"), RowSpec("h / a", "", "h", over=("a",)))
    plain, ratio = rows_of({"h": here, "a": absent}, 3, *specs)
    assert tries == [1]
    assert (plain.status, plain.pairs) == (Status.OK, 3)
    assert (ratio.status, ratio.median, ratio.pairs) == (Status.MISSING, None, 0)
    assert ratio.notes == ("no such program",)


def test_the_best_of_several_divides() -> None:
    """A row over several peers takes the largest in each round, whichever that is."""
    mine, _ = scripted(12.0, 12.0)
    one, _ = scripted(2.0, 3.0)
    other, _ = scripted(4.0, 1.0)
    spec = RowSpec("m / best", "ratio", "m", over=("o", "p"))
    (row,) = rows_of({"m": mine, "o": one, "p": other}, 2, spec)
    assert row.samples == (3.0, 4.0)


def test_a_missing_peer_is_said_and_the_others_stand_for_it() -> None:
    """One of several that is not installed costs no number, and is not passed over in silence."""
    mine, _ = scripted(12.0)
    here, _ = scripted(4.0)
    absent, _ = scripted(MissingError("no such library"))
    spec = RowSpec("m / best", "ratio", "m", over=("h", "a"))
    (row,) = rows_of({"m": mine, "h": here, "a": absent}, 1, spec)
    assert (row.status, row.samples, row.notes) == (Status.OK, (3.0,), ("no such library",))


@pytest.mark.parametrize(
    ("better", "median", "reached"),
    [("more", 2.0, True), ("more", 1.9, False), ("less", 2.0, True), ("less", 2.1, False)],
)
def test_a_bound_is_reached_from_its_better_side(
    better: Better, median: float, reached: bool
) -> None:
    """More is better for some rows and less for others; on the bound is good enough."""
    variant, _ = scripted(median)
    (row,) = rows_of({"v": variant}, 1, RowSpec("v", "", "v", must=2.0, better=better))
    assert row.reaches(row.must) is reached
    assert row.reaches(row.aim) is None


def test_a_row_in_json_says_what_it_must_reach() -> None:
    """Numbers where there are some, null where there are none, and which way is better."""
    here, _ = scripted(1.0)
    absent, _ = scripted(MissingError("no such program"))
    specs = (
        RowSpec("here", "us", "h", must=2.5, aim=1.5, better="less"),
        RowSpec("absent", "us", "a"),
    )
    rows = rows_of({"h": here, "a": absent}, 1, *specs)
    told = json.loads(json.dumps(document({}, {}, rows, [])))["rows"]
    wanted = ("name", "status", "median", "min", "max", "pairs", "must", "aim", "better")
    assert [[row[key] for key in wanted] for row in told] == [
        ["here", "ok", 1.0, 1.0, 1.0, 1, 2.5, 1.5, "less"],
        ["absent", "missing", None, None, None, 0, None, None, "more"],
    ]


def test_the_table_shows_bounds_and_what_is_missing() -> None:
    """A reader sees how far each row got, and what would have to be installed."""
    good, _ = scripted(3.0)
    short, _ = scripted(1.0)
    absent, _ = scripted(MissingError("libnone is not installed"))
    specs = (
        RowSpec("good", "", "g", must=2.0, aim=4.0),
        RowSpec("weak", "", "s", must=2.0),
        RowSpec("absent", "", "a"),
    )
    rows = rows_of({"g": good, "s": short, "a": absent}, 1, *specs)
    console = Console(width=120, file=StringIO())
    print_table(rows, console)
    assert isinstance(console.file, StringIO)
    lines = [" ".join(line.split()) for line in console.file.getvalue().splitlines()]
    assert "good 3 3 3 1 >= 2 >= 4 must" in lines
    assert "weak 1 1 1 1 >= 2 short" in lines
    assert "absent [1] missing 0" in lines
    assert "[1] libnone is not installed" in lines


def test_a_failed_run_leaves_the_others_their_numbers() -> None:
    """One failure marks the row, and the rounds that went well still count; two end the tries."""
    once, _ = scripted(1.0, MeasurementError("lost"), 3.0)
    twice, tries = scripted(*[MeasurementError("dead")] * 2)
    specs = (RowSpec("once", "", "o"), RowSpec("twice", "", "t"))
    one, two = rows_of({"o": once, "t": twice}, 3, *specs)
    assert (one.status, one.samples, one.notes) == (Status.FAILED, (1.0, 3.0), ("lost",))
    assert (two.status, two.samples, tries) == (Status.FAILED, (), [2])


def test_a_comparison_without_time_left_still_has_one_round() -> None:
    """A slow machine gets fewer rounds, and never none."""
    variant, tries = scripted(1.0, 2.0, 3.0)
    (row,) = rows_of({"v": variant}, 3, RowSpec("v", "", "v"), seconds_max=0)
    assert (tries, row.samples, row.status) == ([1], (1.0,), Status.OK)


@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda each: each.name)
def test_every_row_names_variants_of_its_comparison(comparison: Comparison) -> None:
    """The table of rows refers to nothing that is not measured, and no two rows share a name."""
    for spec in comparison.rows:
        assert {spec.variant, *spec.over} <= {*comparison.variants}, spec.name
    assert len({spec.name for spec in comparison.rows}) == len(comparison.rows)


def test_all_comparisons_together_take_less_than_five_minutes() -> None:
    """Each is held to its time on any machine; what they may take adds up to less."""
    assert sum(comparison.seconds_max for comparison in COMPARISONS) < 300
    assert all(comparison.rounds >= 5 for comparison in COMPARISONS)


def test_no_process_outlives_its_block() -> None:
    """A process that would run for ever is ended when the block is left by an error."""

    async def leave() -> int:
        with pytest.raises(MeasurementError, match="said nothing"):
            async with running("sleeper", "sleep", "1000") as child:
                await child.line(timeout_s=0.01)
        return await child.wait(timeout_s=1)

    assert asyncio.run(leave()) == -15
