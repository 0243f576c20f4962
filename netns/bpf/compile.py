"""Compiles the switch program when it is needed, once per version of its sources.

The object is kept under a name made of the hash of sources and flags, and is put there whole, so
two labs may do it at once: root's in a folder that only root writes, since root's kernel runs it,
and others' in `$XDG_CACHE_HOME/mrc-lab` (`~/.cache/mrc-lab`). Where that folder cannot be written,
it is compiled for this process alone.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from netns.errors import LabError, LabMissing
from netns.places import FILES, own_folder

FOLDER = Path(__file__).parent
SOURCE, HEADER = FOLDER / "switch.bpf.c", FOLDER / "switch.h"
COMPILE_SECONDS_MAX = 60
ERROR_LINES_SHOWN = 15

# Debian and its kin keep asm/types.h, which linux/bpf.h includes, in a folder of the machine's own.
FLAGS = (
    "-O2", "-g", "-Wall", "-Werror", "--target=bpf", "-mcpu=v3",
    f"-I/usr/include/{platform.machine()}-linux-gnu",
)  # fmt: skip

_PACKAGES = {
    "bpf/": "libbpf-dev",
    "linux/": "linux-libc-dev",
    "asm/": "linux-libc-dev",
    "std": "clang",
}


@lru_cache(maxsize=1)
def switch_object() -> Path:
    """Return the compiled program, compiling it first where no earlier run has left it.

    Raises:
        LabMissing: no clang, or no headers; the message names the package.
        LabError: the source does not compile, or others can write root's folder.
    """
    name = f"switch-{_digest()}.o"
    folder = _cache_folder()
    if not (folder / name).is_file():
        _compile_into(folder, name)
    return folder / name


def compile_switch(target: Path) -> None:
    """Compile the program into a file.

    Raises:
        LabMissing: no clang, or no headers; the message names the package.
        LabError: the source does not compile.
    """
    clang = shutil.which("clang")
    if clang is None:
        raise LabMissing("the lab needs clang to compile its switch (apt-get install clang)")
    command = [clang, *FLAGS, "-c", str(SOURCE), "-o", str(target)]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=COMPILE_SECONDS_MAX
        )
    except subprocess.TimeoutExpired as error:
        raise LabError(
            f"clang was not done with {SOURCE.name} after {COMPILE_SECONDS_MAX} s;"
            " try again when the machine has less to do"
        ) from error
    except OSError as error:
        raise LabError(f"{clang} does not start: {error.strerror}") from error
    if result.returncode == 0:
        return
    for start, package in _PACKAGES.items():
        if f"fatal error: '{start}" in result.stderr:
            header = result.stderr.partition("fatal error: '")[2].partition("'")[0]
            raise LabMissing(
                f"the lab needs {header} to compile its switch (apt-get install {package})"
            )
    said = "\n".join(result.stderr.splitlines()[:ERROR_LINES_SHOWN])
    raise LabError(f"clang cannot compile {SOURCE.name}:\n{said}")


def _compile_into(folder: Path, name: str) -> None:
    """Compile beside the final name, then rename: nobody ever loads half an object."""
    descriptor, unfinished = tempfile.mkstemp(prefix=f".{name}-", dir=folder)
    os.close(descriptor)
    try:
        compile_switch(Path(unfinished))
        Path(unfinished).replace(folder / name)
    finally:
        Path(unfinished).unlink(missing_ok=True)


def _cache_folder() -> Path:
    folder = FILES
    if os.geteuid() != 0:
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = (base if base.is_absolute() else Path.home() / ".cache") / "mrc-lab"
    try:
        own_folder(folder, 0o700)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass  # a file in its place, or a file system without room for it
    folder = Path(tempfile.mkdtemp(prefix="mrc-lab-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _digest() -> str:
    content = b"\0".join([" ".join(FLAGS).encode(), HEADER.read_bytes(), SOURCE.read_bytes()])
    return hashlib.sha256(content).hexdigest()[:20]
