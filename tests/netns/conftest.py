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

    Tests marked `root` are skipped for anyone else. Root has what the testbed needs, or can install
    it: there a test that did not run is a failure, unless MRC_SKIP_LAB says that it may be.
    """
    if missing := kernel.missing():
        reason = f"the testbed needs {'; '.join(missing)}; MRC_SKIP_LAB=1 skips its tests"
        (pytest.skip if "MRC_SKIP_LAB" in os.environ else pytest.fail)(reason)
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
