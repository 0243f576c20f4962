"""One seed, one simulation: the same to the nanosecond, in any process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mrc.sim.running import record, run_seed
from mrc.sim.swarm import options_of

ROOT = Path(__file__).resolve().parents[2]
SEED = 5


def traced_elsewhere(folder: Path, hash_seed: str) -> bytes:
    """Return the trace that another process with that hash seed writes."""
    trace = folder / f"{hash_seed}.json"
    command = [sys.executable, "-m", "mrc.sim", "--seed", str(SEED), "--trace", str(trace)]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    return trace.read_bytes()


def test_options_come_from_the_seed_alone() -> None:
    """Drawn twice they are equal; another seed gives others."""
    assert options_of(SEED) == options_of(SEED)
    assert options_of(SEED) != options_of(SEED + 1)


def test_same_seed_same_trace(tmp_path: Path) -> None:
    """Neither an earlier simulation in the same process nor the writing of a file shows."""
    first = record(options_of(SEED), None, None)
    again = record(options_of(SEED), tmp_path / "trace.json", tmp_path / "datagrams.pcap")
    assert first == again


def test_without_a_trace_the_same_happens() -> None:
    """Looking does not change what is looked at."""
    traced, plain = record(options_of(SEED), None, None), run_seed(SEED)
    assert traced.trace_sha256
    assert (traced.events, traced.virtual_ns, traced.datagrams) == (
        plain.events,
        plain.virtual_ns,
        plain.datagrams,
    )


@pytest.mark.slow
def test_same_trace_in_other_processes(tmp_path: Path) -> None:
    """Two processes with different hash seeds write the same trace, byte for byte."""
    assert traced_elsewhere(tmp_path, "0") == traced_elsewhere(tmp_path, "4711")


def test_time_and_randomness_have_one_source() -> None:
    """Only `chance.py` imports `random`, and nobody looks at a real clock."""
    imported = re.compile(r"^(?:import|from) (random|time|secrets|os)\b", re.MULTILINE)
    found = {
        path.stem: imported.findall(path.read_text(encoding="utf-8"))
        for path in (ROOT / "mrc" / "sim").rglob("*.py")
    }
    assert {name: names for name, names in found.items() if names} == {"chance": ["random"]}
