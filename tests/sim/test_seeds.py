"""Seeds: fresh ones each time, and every one that ever failed.

A seed that fails is named in the failure; `python -m mrc.sim --seed SEED` shows and records it.
Then it goes into `seeds.txt`, and the fault it found gets a test of its own in `tests/proto`: a
change of what is drawn makes of an old seed another simulation.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from mrc.sim.running import run_seed
from mrc.sim.simulation import Outcome

SEEDS_FILE = Path(__file__).resolve().parent / "seeds.txt"
FRESH_SEEDS = 300
WORKERS = 2


def kept_seeds() -> list[int]:
    """Return the seeds that failed once."""
    lines = SEEDS_FILE.read_text(encoding="utf-8").splitlines()
    fields = [line.partition("#")[0].strip() for line in lines]
    return [int(field) for field in fields if field]


def failures(seeds: list[int]) -> list[str]:
    """Run seeds on several processors; return what went wrong."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, mp_context=context) as pool:
        outcomes: list[Outcome] = list(pool.map(run_seed, seeds, chunksize=10))
    return [f"seed {outcome.seed}: {outcome.message}" for outcome in outcomes if outcome.rule]


@pytest.mark.slow
def test_fresh_seeds() -> None:
    """Seeds that nobody has tried before break no rule; MRC_SIM_FIRST_SEED tries them again."""
    first = int(os.environ.get("MRC_SIM_FIRST_SEED", secrets.randbits(40)))
    assert failures(list(range(first, first + FRESH_SEEDS))) == []


@pytest.mark.slow
def test_seeds_that_failed_once() -> None:
    """What has failed before does not fail again."""
    assert failures(kept_seeds()) == []
