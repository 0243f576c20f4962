"""The same seed gives the same bytes on the wire, at the same times, in any process."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mrc.proto.config import Config
from tests.support.filters import jitter, lose, trim
from tests.support.pair import MS, Pair

ROOT = Path(__file__).resolve().parents[2]


def digest(seed: int) -> str:
    """Return a digest of all that crosses the wire in an eventful transfer, and of all events."""
    filters = [lose(0.02), trim(0.02), jitter(200), lose(0.02, lambda d: d.sender == 1, seed=8)]
    config = Config(mtu=1024, link_bps=800_000_000)
    pair = Pair(config, seed=seed, planes=4, ipv6=True, link_bps=200e6, filters=filters)
    pair.keep_wire = True
    pair.post(pair.rng.randbytes(1 << 18), imm=1)
    pair.run_for(3 * MS)
    pair.a.endpoint.port_status(2, up=False, now_ns=pair.now_ns)
    pair.run(lambda: pair.done(1))
    seen = hashlib.sha256()
    for datagram in pair.wire:
        seen.update(datagram)
    seen.update(repr([pair.now_ns, pair.a.events, pair.b.events]).encode())
    return seen.hexdigest()


def in_another_process(hash_seed: str) -> str:
    """Return the digest for seed 1, worked out by a process with its own hash seed."""
    code = "from tests.proto.test_determinism import digest; print(digest(1))"
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, check=True, capture_output=True
    )
    return found.stdout.decode().strip()


def test_same_seed_same_trace() -> None:
    """Two runs from one seed do not differ in a single byte."""
    assert digest(1) == digest(1)


def test_another_seed_another_trace() -> None:
    """Another seed gives other queue pair numbers, keys, PSNs and shuffles."""
    assert digest(1) != digest(2)


@pytest.mark.slow
def test_same_trace_in_other_processes() -> None:
    """Neither the process nor its hash seed shows on the wire."""
    assert in_another_process("0") == in_another_process("4711") == digest(1)
