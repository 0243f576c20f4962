"""`mrc-lab` as people use it: a command, what it prints, what it returns, what it leaves."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, cast

import pytest

from netns import cli, faults, scenario, topology
from netns.leftovers import labs
from netns.places import prefix
from netns.recording import Recording
from netns.transports import Transport
from tests.netns.conftest import ROOT, Command

pytestmark = [pytest.mark.root, pytest.mark.slow]


def read_until(lines: IO[str], word: str) -> None:
    """Read lines until one has a word; before it may come that the machine is busy."""
    assert any(word in line for line in lines)


def test_help_has_examples_and_exit_codes() -> None:
    """Of the group, and every command has a help of its own."""
    run = [sys.executable, "-m", "netns"]
    text = subprocess.run([*run, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "mrc-lab run plane-blackhole" in text.stdout
    assert "Exit codes" in text.stdout
    for command in ("up", "down", "exec", "shell", "fail", "heal", "show", "run", "compare"):
        subprocess.run([*run, command, "--help"], cwd=ROOT, capture_output=True, check=True)


def test_a_lab_from_up_to_down(mrc_lab: Command, lab_name: str) -> None:
    """Built, used, broken, healed, shown, removed, by separate commands."""
    built = mrc_lab("up", "four-plane")
    assert built.returncode == 0, built.stderr
    assert "a: 10.0.1.1 10.1.1.1 10.2.1.1 10.3.1.1" in built.stdout
    echo = (sys.executable, "-m", "tests.netns.udp_echo", "10.2.2.1", "--via", "b")
    ping = ("exec", "a", "--", *echo)
    assert mrc_lab(*ping).returncode == 0
    assert mrc_lab("fail", "s2-b", "blackhole", "--towards", "b").returncode == 0
    assert mrc_lab(*ping).returncode == 1
    shown = mrc_lab("show")
    assert "s2-b>b: blackhole = True" in shown.stdout
    assert "blackholed" in shown.stdout
    document = json.loads(mrc_lab("show", "--json").stdout)
    assert document["links"]["s2-b>b"]["blackholed"] > 0
    assert document["settings"]["s2-b>b"]["blackhole"] is True
    assert mrc_lab("heal", "s2-b").returncode == 0
    assert mrc_lab(*ping).returncode == 0
    gone = mrc_lab("down")
    assert gone.returncode == 0
    assert f"removed namespace {prefix(lab_name)}a" in gone.stdout
    assert lab_name not in labs()
    assert mrc_lab("down").stdout == ""


def test_small_packets_are_an_option(mrc_lab: Command) -> None:
    """The MTU of every device."""
    assert mrc_lab("up", "two-path", "--mtu", "1500").returncode == 0
    shown = mrc_lab("exec", "s1", "--", "cat", "/sys/class/net/s2.2/mtu")
    assert shown.stdout == "1500\n"


def test_exec_returns_what_the_command_returns(mrc_lab: Command) -> None:
    """With its output and its status."""
    mrc_lab("up", "two-path")
    ran = mrc_lab("exec", "b", "--", "sh", "-c", "echo here; exit 7")
    assert (ran.stdout, ran.returncode) == ("here\n", 7)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("up", "moon"), "there is no topology moon"),
        (("show",), "no lab .* is up; start one with: mrc-lab up"),
        (("run", "moon"), "there is no scenario moon"),
        (("up", "two-path", "--name", "../x"), "'../x' is no name for a lab"),
        (("down", "--name", "*"), "'[*]' is no name for a lab"),
        (("exec", "a", "true", "--name", ""), "'' is no name for a lab"),
        (("up", "two-path", "--name", "labrun"), "labrun: labs of scenarios end in 'run'"),
        (("run", "steady", "--name", "x" * 14), f"'{'x' * 14}' is no name for a lab"),
        (("compare", "one-ev-20-percent-loss"), "there is nothing to compare"),
    ],
)
def test_a_mistake_is_one_line_and_status_two(
    mrc_lab: Command, arguments: tuple[str, ...], complaint: str
) -> None:
    """On standard error, without a traceback."""
    ran = mrc_lab(*arguments)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert len(ran.stderr.splitlines()) == 1
    assert re.search(complaint, ran.stderr)


def test_a_mistake_in_a_lab_that_is_up_names_what_there_is(mrc_lab: Command) -> None:
    """Links, nodes and kinds."""
    mrc_lab("up", "two-path")
    assert "there is no link a-b; there are a-s1" in mrc_lab("fail", "a-b", "blackhole").stderr
    assert "there is no node z; there are a, b" in mrc_lab("exec", "z", "--", "true").stderr
    assert "loss needs a number (percent)" in mrc_lab("fail", "a-s1", "loss").stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_scenario_that_is_told_to_end_leaves_nothing(
    lab_name: str, number: int, status: int
) -> None:
    """Processes and namespaces are gone when the command is, and it says so."""
    command = [sys.executable, "-m", "netns", "run", "steady", "--name", lab_name]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        read_until(running.stdout, "steady over mrc")
        running.send_signal(number)
        _, complaint = running.communicate(timeout=30)
    assert running.returncode == status
    assert "everything it made is removed" in complaint
    assert "Traceback" not in complaint
    assert not [name for name in labs() if name.startswith(lab_name)]


def test_a_scenario_under_way_is_not_swept_by_others(mrc_lab: Command, lab_name: str) -> None:
    """Neither by `down` nor by another `run`; both say which process to end."""
    command = [sys.executable, "-m", "netns", "run", "steady", "--name", lab_name]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        read_until(running.stdout, "steady over mrc")
        for other in (("down",), ("run", "steady")):
            ran = mrc_lab(*other)
            assert ran.returncode == 2
            assert f"lab {lab_name}run is in use by process {running.pid}" in ran.stderr
        assert f"{lab_name}run" in labs()
        running.terminate()


def test_a_device_that_is_gone_is_told_without_a_traceback(mrc_lab: Command, lab_name: str) -> None:
    """Somebody renamed what the lab had made."""
    mrc_lab("up", "two-path")
    ip = ["ip", "-n", f"{prefix(lab_name)}a", "link", "set", "p0"]
    subprocess.run([*ip, "down"], check=True)
    subprocess.run([*ip, "name", "other"], check=True)
    ran = mrc_lab("fail", "a-s1", "port-down")
    assert ran.returncode == 2
    assert "node a has lost its device p0" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_the_help_of_faults_and_topologies_is_made_of_them() -> None:
    """What is added later is named as well."""
    run = [sys.executable, "-m", "netns"]
    for command, words in (("up", topology.names()), ("fail", list(faults.kinds()))):
        text = subprocess.run([*run, command, "--help"], cwd=ROOT, capture_output=True, check=True)
        assert all(word in text.stdout.decode() for word in words)


def test_a_comparison_reports_what_worked(
    lab_name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kernel without MPTCP does not cost the run of MRC before it; the first must work."""
    wanted = scenario.load("steady")
    done: list[str] = []

    def run(_: object, over: Transport, *__: object) -> Recording:
        if over.name == "mptcp":
            raise OSError("this kernel has no MPTCP")
        done.append(over.name)
        return cast("Recording", None)

    monkeypatch.setattr("netns.runner.run", run)
    assert len(cli.record(wanted, ["mrc", "mptcp", "tcp"], lab_name, print)) == 2
    assert done == ["mrc", "tcp"]
    assert "mptcp: this kernel has no MPTCP" in capsys.readouterr().err
    with pytest.raises(OSError, match="no MPTCP"):
        cli.record(wanted, ["mptcp"], lab_name, print)


def test_a_killed_scenario_can_be_swept(mrc_lab: Command, lab_name: str) -> None:
    """Its traffic ends with it, and `down` removes the namespaces."""
    command = [sys.executable, "-m", "netns", "run", "steady", "--name", lab_name]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        read_until(running.stdout, "steady over mrc")
        running.kill()
    assert mrc_lab("down").returncode == 0
    deadline = time.monotonic() + 10
    while any(n.startswith(lab_name) for n in labs()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [name for name in labs() if name.startswith(lab_name)]


def test_without_root_it_says_what_is_missing(tmp_path: Path) -> None:
    """One line, status 2."""
    line = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    ran = subprocess.run(
        [*line, sys.executable, "-m", "netns", "up", "two-path"],
        cwd=ROOT,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "Permission denied" in ran.stderr:
        pytest.skip("nobody may not read this folder")
    assert ran.returncode == 2
    assert "the lab needs root" in ran.stderr


def test_the_list_of_scenarios_needs_no_root_and_names_all(mrc_lab: Command) -> None:
    """A line each."""
    listed = mrc_lab("run", "--list")
    assert "plane-blackhole" in listed.stdout
    assert "One plane of four goes silent" in listed.stdout
