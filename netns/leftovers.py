"""Finds and removes what there is of a lab, whoever made it and whatever state it is in."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import time
from pathlib import Path

from pyroute2 import netns as namespaces

from netns.errors import LabError
from netns.places import FILES, NAME, STATES, checked_name, prefix

MARK = "MRC_LAB"
"""Environment variable of every process the lab starts: its value is the lab's name."""
END_TIMEOUT_S = 5.0
START_TIMEOUT_S = 1.0
KEPT = (".json", ".part", ".hop")
"""Suffixes of what a lab keeps in STATES, beside the lock, which is its holder's to remove."""

_NAMESPACE = re.compile(rf"mrclab-(?P<lab>{NAME.pattern})-.*")


def labs() -> list[str]:
    """Return the names of labs of which anything exists."""
    found = {path.stem for path in STATES.glob("*.json") if NAME.fullmatch(path.stem)}
    for name in namespaces.listnetns():
        if match := _NAMESPACE.fullmatch(name):
            found.add(match["lab"])
    return sorted(found)


def sweep(name: str) -> list[str]:
    """Remove everything of a lab, for whoever has its claim; return what was removed, in words.

    Raises:
        LabError: no name of a lab, or this process is a part of it.
    """
    if os.environ.get(MARK) == checked_name(name):
        raise LabError(f"lab {name} would end with this command inside it: leave its shell first")
    removed = [f"process {pid}" for pid in _end_processes(name)]
    for namespace in namespaces.listnetns():
        if namespace.startswith(prefix(name)):
            namespaces.remove(namespace)
            removed.append(f"namespace {namespace}")
    for suffix in KEPT:
        (STATES / f"{name}{suffix}").unlink(missing_ok=True)
    if (FILES / name).is_dir():
        shutil.rmtree(FILES / name)
        removed.append(f"folder {FILES / name}")
    return removed


def processes(name: str) -> list[int]:
    """Return the processes a lab started that still run: they carry its mark."""
    wanted = f"{MARK}={checked_name(name)}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in environment(process).split(b"\0"):
                found.append(int(process.name))
    return found


def environment(process: Path) -> bytes:
    """Return the environment with which a process, a folder of /proc, began.

    execve(2) lets the parent go on before the new program's environment can be read: until
    then the file is empty, and a process that is just being started would go unseen.

    Raises:
        OSError: it has none, has ended, or is somebody else's.
    """
    (process / "exe").readlink()  # Threads of the kernel have none: they are never waited for.
    deadline = time.monotonic() + START_TIMEOUT_S
    while _is_starting(process) and time.monotonic() < deadline:
        time.sleep(0.001)
    return (process / "environ").read_bytes()


def _is_starting(process: Path) -> bool:
    """Whether the address where the environment ends, `env_end` of proc_pid_stat(5), is unset."""
    return (process / "stat").read_bytes().split()[-2] == b"0"


def _end_processes(name: str) -> list[int]:
    """Ask the lab's processes to end, insist after a while, and return them."""
    ended: list[int] = []
    for number in (signal.SIGTERM, signal.SIGKILL):
        asked: set[int] = set()
        deadline = time.monotonic() + END_TIMEOUT_S
        # Those that ours have started meanwhile are asked as well.
        while (left := processes(name)) and time.monotonic() < deadline:
            for pid in set(left) - asked:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            asked |= set(left)
            time.sleep(0.01)
        ended += [pid for pid in asked if pid not in ended]
    return ended
