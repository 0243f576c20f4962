"""Makes or reuses `.venv` at the root of the repository and installs what a command needs in it.

Every command in `tools/` begins with two lines, before it imports anything that is not in the
standard library:

    import bootstrap

    bootstrap.enter()

`enter` returns at once when the interpreter already is the one in `.venv` and all is installed.
Otherwise it installs, then starts the same command again under `.venv`. Arguments:

    extras    which optional dependencies of pyproject.toml: `bootstrap.enter("bench")`; none by
              default, `"dev"` is all of them
    commands  programs to be had from the system, or files by their full path, each with the Debian
              package that brings it: `bootstrap.enter("dev", commands={"tshark": "tshark"})`. One
              that is missing is installed with apt when running as root; anyone else is told the
              line to type, and the command goes on without it.

Afterwards `sys.executable` is `.venv/bin/python`, and `.venv/bin` leads `PATH`, so that `mrc-send`
and `mrc-recv` are found. The package is installed in place: edits count at once. pip runs again
only when pyproject.toml has changed or an extra is asked for that was not installed.

This module must never import anything but the standard library.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "installed.json"

OLDEST_PYTHON = (3, 11)
LAB_COMMANDS = {
    "ip": "iproute2",
    "clang": "clang",
    "/usr/include/bpf/bpf_helpers.h": "libbpf-dev",
    "/usr/include/linux/bpf.h": "linux-libc-dev",
}
"""What the testbed in `netns/` needs of the system."""
NEWER_PYTHONS = ("python3.14", "python3.13", "python3.12", "python3.11")

# Set while a command is started again, so that a broken `.venv` cannot make it start for ever.
_RESTARTED = "MRC_BOOTSTRAP_RESTARTED"


def enter(*extras: str, commands: Mapping[str, str] | None = None) -> None:
    """Return only inside `.venv`, with the package, these extras and these commands installed.

    Ends the process with status 2 and one line on standard error when that cannot be had.
    """
    _require_python()
    with _one_at_a_time():
        _install_commands(commands or {})
        _install_package(frozenset(extras))
    bin_folder = str(PYTHON.parent)
    search_path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if search_path[0] != bin_folder:
        os.environ["PATH"] = os.pathsep.join([bin_folder, *search_path])
    # By prefix, not by sys.executable: `.venv/bin/python` is a link to an interpreter elsewhere.
    if Path(sys.prefix).resolve() == VENV:
        os.environ.pop(_RESTARTED, None)
        return
    if _RESTARTED in os.environ:
        _fail(f"{PYTHON} does not run inside {VENV}: delete that folder and try again")
    os.environ[_RESTARTED] = "1"
    _restart(str(PYTHON))


def _require_python() -> None:
    """Go on with a newer interpreter when the system's `python3` is too old and one is there."""
    if sys.version_info >= OLDEST_PYTHON:
        return
    for name in NEWER_PYTHONS:
        found = shutil.which(name)
        if found is not None:
            _restart(found)
    _fail(
        f"Python {_dotted(OLDEST_PYTHON)} or newer is needed; this is {_dotted(sys.version_info)}"
    )


def _dotted(version: tuple[object, ...]) -> str:
    return ".".join(str(part) for part in version[:2])


def _restart(python: str) -> None:
    sys.stdout.flush()
    os.execv(python, [python, *sys.argv])  # noqa: S606  # the very command that is running


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two commands started together must not both install: the second waits for the first."""
    descriptor = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _install_package(extras: frozenset[str]) -> None:
    """Bring `.venv` up to date with pyproject.toml and these extras; quick when it is."""
    state = {
        "root": str(ROOT),  # a folder that was moved or copied has a `.venv` that points elsewhere
        "pyproject": hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest(),
    }
    installed = _read_stamp()
    usable = installed.get("root") in (None, str(ROOT)) and _runs(PYTHON)
    have = frozenset(installed.get("extras", ())) if usable else frozenset()
    if usable and extras <= have and installed.get("pyproject") == state["pyproject"]:
        return
    if not usable:
        _make_venv()
    wanted = sorted(extras | have)
    _say(f"installing into {VENV.name}: {', '.join(['mrc-transport', *wanted])}")
    STAMP.unlink(missing_ok=True)
    target = f"{ROOT}[{','.join(wanted)}]" if wanted else str(ROOT)
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "--editable", target], "the Python packages could not be installed")
    STAMP.write_text(json.dumps({**state, "extras": wanted}, indent=2) + "\n", encoding="utf-8")


def _read_stamp() -> dict[str, Any]:
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def _runs(python: Path) -> bool:
    """Whether this interpreter starts and has pip: the one it was made from may be gone."""
    try:
        probe = subprocess.run([python, "-c", "import pip"], capture_output=True, check=False)
    except OSError:
        return False
    return probe.returncode == 0


def _make_venv() -> None:
    _say(f"making {VENV.name} with Python {sys.version.split()[0]}")
    if importlib.util.find_spec("ensurepip") is None:
        # Debian keeps this part of the standard library in a package of its own.
        _install_debian_packages([f"python{_dotted(sys.version_info)}-venv"])
    command = [sys.executable, "-m", "venv", "--clear", str(VENV)]
    _run(command, "the virtual environment could not be made (python3-venv missing?)")


def _install_commands(commands: Mapping[str, str]) -> None:
    missing = sorted({package for name, package in commands.items() if not _is_there(name)})
    if missing:
        _install_debian_packages(missing)


def _is_there(name: str) -> bool:
    return Path(name).exists() if name.startswith("/") else shutil.which(name) is not None


def _install_debian_packages(packages: list[str]) -> None:
    """Install with apt as root; otherwise, or when apt fails, say so and go on."""
    hint = f"missing on this system: {' '.join(packages)}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        _say(f"{hint} (as root: apt-get install {' '.join(packages)})")
        return
    _say(f"installing with apt: {' '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # An update that fails for one source of many does not matter if the install works.
    _quietly(["apt-get", "update", "--quiet"], environment)
    options = ["--yes", "--quiet", "--no-install-recommends"]
    result = _quietly(["apt-get", "install", *options, *packages], environment)
    if result.returncode != 0:
        _say(f"{result.stdout}{result.stderr}{hint}")


def _run(command: list[str], failure: str) -> None:
    result = _quietly(command)
    if result.returncode != 0:
        sys.stderr.write(result.stdout + result.stderr)
        _fail(failure)


def _quietly(
    command: list[str], environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run without input, and keep what is printed for the case that it fails."""
    return subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def _say(line: str) -> None:
    print(f"bootstrap: {line}", file=sys.stderr, flush=True)


def _fail(line: str) -> None:
    _say(line)
    raise SystemExit(2)
