"""Labs for the tests of this folder: only where the machine can, and gone afterwards."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netns import kernel
from netns.leftovers import labs, sweep

ROOT = Path(__file__).resolve().parents[2]
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def lab_name() -> Iterator[str]:
    """A name no other run of these tests has; whatever is left of it is removed.

    Where the testbed cannot run its tests are skipped with the reason, except in CI, which has all
    it needs: there a test that did not run is a failure.
    """
    if missing := kernel.missing():
        reason = f"the testbed needs {'; '.join(missing)}"
        (pytest.fail if "CI" in os.environ else pytest.skip)(reason)
    # With a letter behind it, or 12 would sweep what belongs to 123.
    name = f"t{os.getpid()}x"
    try:
        yield name
    finally:
        for each in labs():
            if each.startswith(name):
                sweep(each)


@pytest.fixture
def mrc_lab(lab_name: str) -> Command:
    """Run the command line on the test's own lab."""

    def run(*arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        command, *rest = arguments
        name = [] if command == "--help" else ["--name", lab_name]
        return subprocess.run(
            [sys.executable, "-m", "netns", command, *name, *rest],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    return run
