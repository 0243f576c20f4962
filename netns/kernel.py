"""What the lab needs of this machine, and how to be inside a network namespace for a moment."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from netns.errors import LabError, LabMissing

T = TypeVar("T")

NAMESPACES = Path("/run/netns")
CLONE_NEWNET = 0x40000000

COMMANDS = {
    "ip": "the ip command (apt-get install iproute2)",
    "clang": "clang, which compiles the switch (apt-get install clang libbpf-dev)",
}
LIBBPF = "libbpf.so.1"


def missing() -> list[str]:
    """Return what keeps the lab from running here, each with its remedy; nothing means it runs."""
    lacks = [text for command, text in COMMANDS.items() if shutil.which(command) is None]
    if os.name != "posix" or not Path("/proc/sys/net").is_dir():
        return ["Linux"]
    if os.geteuid() != 0:
        return ["root (try sudo)", *lacks]
    if not Path("/proc/sys/net/ipv6").is_dir():
        lacks.append("a kernel with IPv6 (boot without ipv6.disable=1)")
    try:
        ctypes.CDLL(LIBBPF)
    except OSError:
        lacks.append(f"{LIBBPF} (apt-get install libbpf1)")
    if in_thread(lambda: ctypes.CDLL(None).unshare(CLONE_NEWNET)) != 0:
        lacks.append("the right to make network namespaces (CAP_SYS_ADMIN in a container)")
    return lacks


def require() -> None:
    """Go on only where the lab can run.

    Raises:
        LabMissing: what is missing.
    """
    lacks = missing()
    if lacks:
        raise LabMissing(f"the lab needs {'; '.join(lacks)}")


def in_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread made for it: what it changes about its thread ends with it."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def in_namespace(namespace: str, function: Callable[[], T]) -> T:
    """Call a function inside a network namespace; nothing stays changed.

    Raises:
        OSError: there is no such namespace; and whatever the function raises.
    """

    def enter() -> T:
        _set_namespace(NAMESPACES / namespace)
        return function()

    return in_thread(enter)


def _set_namespace(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(descriptor)


def write_sysctls(values: Mapping[str, str]) -> None:
    """Set kernel parameters of the namespace this thread is in.

    Args:
        values: by path below /proc/sys, such as `net/ipv4/ip_forward`.

    Raises:
        LabError: the kernel has no such parameter, or does not let us set it.
    """
    for name, value in values.items():
        try:
            (Path("/proc/sys") / name).write_text(value, encoding="ascii")
        except FileNotFoundError as error:
            raise LabError(f"this kernel has no {name}; Linux 4.18 and later do") from error
        except OSError as error:
            raise LabError(f"cannot set {name} to {value}: {error.strerror}") from error
