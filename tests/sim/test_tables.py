"""The tables of the simulator: the same to the last digit as those stored, and within their bounds.

`tests/golden/NAME.txt` holds what is expected. A change there is a change of behaviour: look at it,
then write the tables anew with the command that the failure names. What each of them says, and why
these are its bounds, is in its module.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mrc.sim.tables import TABLES
from mrc.sim.tables.layout import Row, jain, rows_of, text_of

ROOT = Path(__file__).resolve().parent.parent.parent
GOLDEN = ROOT / "tests" / "golden"


def stored(name: str, **only: str) -> list[Row]:
    """Return the rows of a stored table that have these cells; there is at least one."""
    rows = rows_of((GOLDEN / f"{name}.txt").read_text(encoding="utf-8"))
    found = [row for row in rows if only.items() <= row.items()]
    assert found
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_table_is_what_it_was(name: str) -> None:
    """Every cell is exactly that of the stored table."""
    found = text_of(TABLES[name].rows())
    expected = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
    again = f"python -m mrc.sim.tables {name} --into tests/golden"
    assert found == expected, f"if this is meant: {again}"


@pytest.mark.slow
def test_table_does_not_depend_on_the_hash_seed() -> None:
    """Two processes with different hash seeds print the same table."""
    command = [sys.executable, "-m", "mrc.sim.tables", "goodput"]
    printed = [
        subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1]
    assert (GOLDEN / "goodput.txt").read_bytes() in printed[0]


# Goodput.


def test_nothing_is_sent_twice_without_a_reason() -> None:
    """No loss is spurious, no timer runs out; only what was lost, cut or dropped is sent again."""
    for row in stored("goodput"):
        assert (row["spurious"], row["timeouts"]) == ("0", "0")
    for row in stored("goodput", **{"loss_%": "0"}):
        assert int(row["again"]) == int(row["trims"]) + int(row["drops"])


def test_one_path_is_used_up() -> None:
    """A clean path carries more than nine tenths of its rate in payload, trimmed or dropped."""
    for row in stored("goodput", **{"loss_%": "0", "paths": "1"}):
        assert float(row["share_%"]) > 90


def test_more_paths_are_faster() -> None:
    """Whatever is lost, trimmed or dropped, more paths beat fewer."""
    one, four, sixteen = (stored("goodput", paths=paths) for paths in ("1", "4", "16"))
    for slow, medium, fast in zip(one, four, sixteen, strict=True):
        assert float(slow["Mbit/s"]) < float(medium["Mbit/s"]) < float(fast["Mbit/s"])


def test_goodput_follows_the_losses() -> None:
    """One datagram in a hundred lost costs less than a tenth, one in twenty a fourth at most."""
    clean, some, many = (stored("goodput", **{"loss_%": loss}) for loss in ("0", "1", "5"))
    for without, one, five in zip(clean, some, many, strict=True):
        assert float(one["Mbit/s"]) > 0.9 * float(without["Mbit/s"])
        assert float(five["Mbit/s"]) > 0.75 * float(without["Mbit/s"])


# Unequal paths.


def test_reordering_is_not_loss() -> None:
    """Paths of 0, 2, 5 and 10 ms more: under 0.5 % spurious, under 0.5 % sent again."""
    for row in stored("unequal"):
        assert float(row["spurious_%"]) < 0.5
        assert int(row["again"]) < 0.005 * int(row["sent"])
        assert row["timeouts"] == "0"


@pytest.mark.parametrize(("over", "base"), [("planes", "measured"), ("spines", "given")])
def test_unequal_paths_are_used_up(over: str, base: str) -> None:
    """A long message gets more than 85 % of the sum of the rates."""
    for row in stored("unequal", over=over, base=base, MiB="16"):
        assert float(row["share_%"]) > 85


# Recovery.


def test_dead_path_is_left_and_taken_back() -> None:
    """It is withdrawn and data flows again within 20 ms; it is good again within 250 ms."""
    for row in stored("recovery"):
        assert float(row["out_ms"]) < 20
        assert float(row["gap_ms"]) < 20
        assert float(row["back_ms"]) < 250
        assert row["timeouts"] == "0"


def test_no_living_path_is_blamed() -> None:
    """Only EVs through the dead switch are withdrawn, and nothing that arrived was called lost."""
    for row in stored("recovery"):
        assert (row["blamed"], row["spurious"]) == ("0", "0")


def test_rate_of_what_is_left() -> None:
    """A dead spine costs nothing, one plane of four a quarter."""
    for row in stored("recovery"):
        least = 0.95 * (100 if row["dies"] == "spine" else 75)
        assert float(row["rate_%"]) > least


# Congestion control.


def test_link_is_used_up_by_many_flows() -> None:
    """However many compete, the link is 95 % full, and nothing is sent again without a reason."""
    for row in stored("fairness"):
        assert float(row["line_%"]) > 95
        assert row["spurious"] == "0"
        assert int(row["again"]) <= int(row["trims"]) + int(row["drops"])


def test_flows_share_evenly() -> None:
    """With the base round trip given, 2 to 32 flows converge to a Jain index of 0.9 or more."""
    for row in stored("fairness", base="given"):
        assert float(row["jain"]) >= 0.9
        assert row["fair_ms"] != "-"


def test_trimmed_flows_need_no_timer() -> None:
    """Where the queue trims, every flow learns at once, and no retransmission timer runs out."""
    for row in [*stored("fairness", full="trims"), *stored("incast")]:
        assert (row["drops"], row["timeouts"], row["spurious"]) == ("0", "0", "0")


def test_incast_is_fair_and_fast() -> None:
    """Up to 64 senders at once get nine tenths of the line, with a Jain index of 0.9 or more."""
    for row in stored("incast"):
        assert int(row["again"]) == int(row["trims"])
        assert float(row["line_%"]) > 90
        assert float(row["jain"]) > 0.9


# The layout.


def test_table_reads_back() -> None:
    """What is printed is what was measured, column by column."""
    rows = [{"flows": "2", "jain": "1.000"}, {"flows": "32", "jain": "0.5"}]
    assert text_of(rows) == "flows   jain\n    2  1.000\n   32    0.5\n"
    assert rows_of(text_of(rows)) == rows


def test_jain_index() -> None:
    """1 when all are equal, 1/n when one has everything."""
    assert jain([5, 5, 5]) == pytest.approx(1)
    assert jain([0, 0, 0, 7]) == pytest.approx(0.25)
