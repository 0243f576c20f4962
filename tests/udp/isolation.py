"""Run a function where the machine looks different: without privileges, or in a network of its own.

Both are properties of a thread in Linux, so a thread made for it and then ended leaves no trace.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
_CAPABILITY_VERSION_3 = 0x20080522


def _in_thread(prepare: Callable[[], None], function: Callable[[], T]) -> T:
    def run() -> T:
        prepare()
        return function()

    # pytest's skips and failures are no Exceptions, and come back as well.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


def unprivileged(function: Callable[[], T]) -> T:
    """Call a function without any capability, as an ordinary user has none."""
    return _in_thread(_drop_capabilities, function)


def in_new_network(function: Callable[[], T]) -> T:
    """Call a function in a network namespace that holds nothing but a loopback, switched on."""
    if shutil.which("ip") is None:
        pytest.skip("needs the ip command (iproute2)")
    return _in_thread(_enter_new_network, function)


def ip(arguments: str) -> None:
    """Run the `ip` command in the network namespace of this thread."""
    subprocess.run(["ip", *arguments.split()], check=True, timeout=20)


def _drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capset(header, nothing) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _enter_new_network() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        pytest.skip(f"no network namespace: {os.strerror(ctypes.get_errno())}")
    ip("link set lo up")
