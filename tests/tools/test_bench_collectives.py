"""The rows of collectives in `tools/bench`: both sides measure, and what is missing is said."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from benchmarks import collective_variants
from benchmarks.child import MissingError
from benchmarks.comparison import GOODPUT
from benchmarks.context import Context, Settings

CONTEXT = Context(Settings(paths=16, seconds=1.0, quic_bytes=1, file_bytes=1, seed=1), Path())


@pytest.mark.slow
@pytest.mark.parametrize("role", ["mrc", "gloo"])
def test_four_processes_reduce_and_tell_how_fast(role: str) -> None:
    """The sum is checked by every rank; bandwidth and latency come of the same run."""
    outcome = asyncio.run(collective_variants.measure(role, large_bytes=1 << 20))
    assert set(outcome.metrics) == {GOODPUT, "small_us"}
    assert all(value > 0 for value in outcome.metrics.values())


def test_without_torch_the_row_says_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is missing, which is no failure of the run."""
    monkeypatch.setattr(collective_variants, "find_spec", lambda _: None)
    with pytest.raises(MissingError, match=r"pip install 'mrc-transport\[torch\]'"):
        asyncio.run(collective_variants.by_gloo(CONTEXT))
