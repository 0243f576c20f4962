"""`tools/demo-training` with real ranks, in short: what it shows, and how it ends."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from netns.leftovers import labs, processes
from tests.netns.conftest import ROOT

pytestmark = [pytest.mark.root, pytest.mark.slow]

LONGEST_MEDIANS_MAX = 20
"""On a machine with other work; a TCP connection over the dead plane takes seconds."""
PNG = b"\x89PNG\r\n\x1a\n"


def command(lab_name: str, picture: Path, *arguments: str) -> list[str]:
    """Return the line that starts a short demonstration, without the bootstrap that installs."""
    line = [sys.executable, "-m", "training.command", "--name", lab_name]
    return [*line, "--picture", str(picture), "--dead", "1", *arguments]


def test_a_plane_that_dies_costs_a_training_nothing(lab_name: str, tmp_path: Path) -> None:
    """No error, the same losses bit for bit, no step that waits for the dead plane."""
    picture = tmp_path / "training.png"
    ran = subprocess.run(
        command(lab_name, picture, "--backend", "mrc", "--json"),
        cwd=ROOT / "tools",
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    # 1: a machine with other work misses what the figures must be.
    assert ran.returncode in (0, 1), ran.stderr
    document: dict[str, Any] = json.loads(ran.stdout)
    ours = document["backends"]["mrc"]
    assert ours["loss_difference"] == 0
    assert ours["medians"] < LONGEST_MEDIANS_MAX
    still, hit = (ours["trainings"][name] for name in ("undisturbed", "disturbed"))
    assert still["losses"] == hit["losses"]
    assert still["losses"][-1] < still["losses"][0]
    assert len(hit["dead_steps"]) > 1
    assert hit["dead_s"] == pytest.approx(1, abs=0.5)
    assert picture.read_bytes().startswith(PNG)
    assert not [name for name in labs() if name.startswith(lab_name)]


@pytest.mark.parametrize(
    ("number", "status", "behind"),
    [(signal.SIGINT, 130, "without a fault"), (signal.SIGTERM, 143, "starting")],
)
def test_one_that_is_ended_leaves_nothing(
    lab_name: str, tmp_path: Path, number: signal.Signals, status: int, behind: str
) -> None:
    """Neither a lab nor a rank nor a picture, in the midst of a training or before; it says so."""
    picture = tmp_path / "training.png"
    with subprocess.Popen(
        command(lab_name, picture, "--backend", "gloo"),
        cwd=ROOT / "tools",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if behind in line:
                break
        running.send_signal(number)
        _, complaint = running.communicate(timeout=30)
    assert running.returncode == status, complaint
    assert complaint.strip() == "demo-training: interrupted; everything it made is removed"
    assert not [name for name in labs() if name.startswith(lab_name)]
    assert not picture.exists()
    assert not processes_of(lab_name)


def test_a_rank_that_dies_is_told_by_name(lab_name: str, tmp_path: Path) -> None:
    """One message with the status of failure, and nothing is left."""
    with subprocess.Popen(
        command(lab_name, tmp_path / "training.png", "--backend", "gloo"),
        cwd=ROOT / "tools",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if "without a fault" in line:
                break
        os.kill(processes_of(lab_name)["gloo-2"], signal.SIGKILL)
        _, complaint = running.communicate(timeout=60)
    assert running.returncode == 1
    assert "demo-training: gloo-" in complaint
    assert not [name for name in labs() if name.startswith(lab_name)]


def processes_of(lab_name: str) -> dict[str, int]:
    """Return the ranks of a lab by their names: what has its mark, and orders."""
    found = {}
    for pid in processes(f"{lab_name}run"):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
            if "training.rank" in words:
                orders = json.loads(words[words.index("training.rank") + 1])
                found[f"{orders['backend']}-{orders['rank']}"] = pid
    return found
