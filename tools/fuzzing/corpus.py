"""Where inputs lie: those that are kept with the tests, those that a run found, and crashes."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
KEPT = ROOT / "tests" / "fuzz" / "corpus"
"""One folder a target: the fewest inputs that reach all that is known to be reachable."""
CRASHES = ROOT / "tests" / "fuzz" / "crashes"
"""One folder a target: inputs that once failed. The tests replay them for ever."""
FOUND = ROOT / "build" / "fuzz"
"""One folder a target: every input of every run that reached something new, and fresh crashes."""
CRASH_PREFIXES = ("crash-", "timeout-", "oom-")
"""How libFuzzer calls an input that raised, took too long, or took too much memory."""
KEPT_BYTES_MAX = 300 << 10
"""Of all targets together: what is kept in the repository stays small."""


def kept(target: str) -> Path:
    """Return the folder of the inputs that are kept; made if missing."""
    return _made(KEPT / target)


def found(target: str) -> Path:
    """Return the folder of the inputs that runs found; made if missing."""
    return _made(FOUND / target / "corpus")


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def inputs(target: str) -> list[Path]:
    """Return every input to be replayed: those kept, and those that once failed."""
    folders = (KEPT / target, CRASHES / target)
    return [path for folder in folders if folder.is_dir() for path in sorted(folder.iterdir())]


def keep_crashes(target: str) -> list[Path]:
    """Move crashes of a run to where the tests replay them; return where they are now."""
    fresh = [path for path in (FOUND / target).iterdir() if path.name.startswith(CRASH_PREFIXES)]
    return [Path(shutil.move(path, _made(CRASHES / target) / path.name)) for path in sorted(fresh)]


def replace_kept(target: str, chosen: Path) -> None:
    """Keep exactly the inputs in a folder, but for those of nothing but blanks."""
    folder = kept(target)
    for path in folder.iterdir():
        path.unlink()
    for path in chosen.iterdir():
        # An empty input runs in every campaign anyway.
        if path.read_bytes().strip():
            shutil.copyfile(path, folder / path.name)
