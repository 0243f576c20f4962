"""Every scenario that ships, with real packets: what must hold on any machine holds.

The bounds asserted are the generous ones (`must`); the figures go into the reports.
"""

import json
from pathlib import Path

import pytest

from netns import scenario
from tests.netns.conftest import Command

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.mark.parametrize("name", scenario.names())
def test_scenario(mrc_lab: Command, tmp_path: Path, name: str) -> None:
    """The protocol keeps what the scenario demands, and leaves a report of it."""
    ran = mrc_lab("run", name, "--quiet", "--report", str(tmp_path), timeout_s=110)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads((tmp_path / name / "report.json").read_text(encoding="utf-8"))
    assert report["passed"]
    for kind in ("png", "html"):
        assert (tmp_path / name / f"report.{kind}").stat().st_size > 10_000


def test_a_comparison_has_all_three_transports_in_one_report(
    mrc_lab: Command, tmp_path: Path
) -> None:
    """MRC is judged; the kernel's MPTCP, with a subflow a plane, and TCP are beside it."""
    ran = mrc_lab("compare", "steady", "--quiet", "--report", str(tmp_path), timeout_s=110)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads((tmp_path / "steady" / "report.json").read_text(encoding="utf-8"))
    mrc, mptcp, tcp = report["runs"]
    assert [run["transport"] for run in report["runs"]] == ["mrc", "mptcp", "tcp"]
    # One connection cannot use more than one plane; MPTCP uses all four.
    assert tcp["metrics"]["steady_percent"] < 30
    assert mptcp["metrics"]["steady_percent"] > 60
    assert mrc["metrics"]["undelivered"] == 0
