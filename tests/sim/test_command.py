"""`python -m mrc.sim` and `tools/soak`: what they print, write and exit with."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pcapfile import udp_datagrams

from mrc.sim import __main__ as command
from mrc.sim.running import run_seed
from mrc.sim.swarm import options_of
from mrc.wire.fields import BadPacket, Opcode
from mrc.wire.icrc import check_icrc_untrusted
from tests.sim.mutations import MUTATIONS

ROOT = Path(__file__).resolve().parents[2]
SEED = 0


def run(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(command.main, arguments)


def soak(*arguments: str) -> subprocess.Popen[str]:
    """Start `tools/soak`."""
    return subprocess.Popen(
        [sys.executable, ROOT / "tools" / "soak", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_seed_is_explained() -> None:
    """One seed: its options, and that all rules held."""
    result = run("--seed", str(SEED))
    assert result.exit_code == 0
    assert options_of(SEED).table() in result.output
    assert "all rules held" in result.output


def test_json_is_one_document() -> None:
    """With --json nothing else is printed."""
    document = json.loads(run("--seed", str(SEED), "--json").output)
    assert document["options"]["seed"] == [str(SEED)]
    assert document["outcome"]["rule"] == ""


def test_many_seeds_are_counted() -> None:
    """A range of seeds: how many, how many failed."""
    assert run("--seeds", "0:3").output == "3 seeds, 0 failed\n"
    assert json.loads(run("--seeds", "0:3", "--json").output) == {"seeds": 3, "failed": []}


def test_failing_seed_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed that fails says what it broke, is recorded, and the exit status is 1."""
    monkeypatch.chdir(tmp_path)
    mutation, _ = MUTATIONS["done when sent"]
    with mutation():
        result = run("--seed", str(SEED))
        many = run("--seeds", f"{SEED}:{SEED + 1}")
    assert (result.exit_code, many.exit_code) == (1, 1)
    assert "FAILED" in result.output
    assert "completion" in result.output
    trace = json.loads((tmp_path / f"mrc-sim-{SEED}.json").read_text())
    assert trace["outcome"]["rule"] == "completion"
    assert {"connect", "post", "send", "deliver"} <= {event["what"] for event in trace["events"]}
    assert (tmp_path / f"mrc-sim-{SEED}.pcap").stat().st_size > 0


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--seed", "1", "--seeds", "0:3"),
        ("--seeds", "3:3"),
        ("--seeds", "three"),
        ("--seeds", "0:3", "--pcap", "x.pcap"),
        ("--seed", "1", "--trace", "/no/such/folder/trace.json"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    """What makes no sense is refused with status 2."""
    assert run(*arguments).exit_code == 2


@pytest.mark.slow
def test_without_assertions_it_does_not_run() -> None:
    """`python -O` takes out what a simulation is there for."""
    result = subprocess.run(
        [sys.executable, "-O", "-m", "mrc.sim", "--seed", "0"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert result.returncode == 2
    assert b"assertions" in result.stderr


def test_capture_is_what_was_on_the_wire(tmp_path: Path) -> None:
    """Every datagram is in the pcap with right checksums, and an iCRC unless it was damaged."""
    seed = next(n for n in range(100) if not options_of(n).ipv6)
    capture = tmp_path / "datagrams.pcap"
    assert run("--seed", str(seed), "--pcap", str(capture)).exit_code == 0
    sent = 0
    with capture.open("rb") as file:
        for datagram in udp_datagrams(file):
            if datagram.tos >> 2 in (12, 16):
                continue
            sent += 1
            assert datagram.payload[0] in set(Opcode)
            try:
                check_icrc_untrusted(datagram.payload, datagram.source, datagram.destination)
            except BadPacket:
                sent -= 1
    assert sent > run_seed(seed).datagrams


@pytest.mark.slow
def test_soak_runs_seeds_and_sums_up(tmp_path: Path) -> None:
    """So many seeds, a summary, status 0, and no file when nothing failed."""
    failures = tmp_path / "failures.txt"
    process = soak("--seeds", "5", "--first", "0", "--jobs", "1", "--failures", str(failures))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert re.search(r"\b5 seeds", output)
    assert "broken rules: none" in output
    assert not failures.exists()


@pytest.mark.slow
def test_soak_ends_with_a_summary_when_interrupted(tmp_path: Path) -> None:
    """Ctrl-C: the workers end, what was done is summed up."""
    process = soak("--jobs", "1", "--failures", str(tmp_path / "failures.txt"))
    assert process.stdout is not None
    assert "seeds from" in process.stdout.readline()
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "stopped" in output
    assert "broken rules: none" in output


@pytest.mark.slow
def test_soak_refuses_nonsense() -> None:
    """No workers, no soak."""
    process = soak("--jobs", "0")
    process.communicate(timeout=60)
    assert process.returncode == 2


@pytest.mark.slow
def test_soak_ends_at_once_when_interrupted_again(tmp_path: Path) -> None:
    """Whoever asks twice gets the summary without waiting for the workers."""
    process = soak("--jobs", "1", "--failures", str(tmp_path / "failures.txt"))
    assert process.stdout is not None
    assert "seeds from" in process.stdout.readline()
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(process.pid, number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "broken rules: none" in output
