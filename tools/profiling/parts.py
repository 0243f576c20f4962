"""The parts of the work on a run, and how to tell from a stack which one it was in.

A sample belongs to the innermost frame that is ours: what numpy does for a line of `mrc/wire` is
work of `mrc/wire`. What a line of ours calls in C has no frame, so the line itself decides whether
it was a system call or the copy of payloads.
"""

from __future__ import annotations

import linecache
import re
from enum import Enum
from pathlib import Path

from profiling.stacks import Frame, Stack

ROOT = Path(__file__).resolve().parent.parent.parent
_OURS = f"{ROOT}/mrc/"
_TOOLS = f"{ROOT}/tools/"
_SYSTEM_CALL = re.compile(r"\b_?(?:sendmsg|recvmsg_into|recvmsg|sendto|recv_into)\(")
_COPY = re.compile(r"copyto\(.*payload|payload\S*\[.*\] = ")


class Part(Enum):
    """What is done for a run, in the order in which a run that is sent meets it."""

    APPLICATION = "application"
    API = "api"
    LOOP = "event loop"
    ENGINE = "engine"
    PROTO = "protocol"
    WIRE = "headers"
    COPY = "payload copy"
    AEAD = "AEAD"
    ICRC = "iCRC"
    UDP = "socket layer"
    SYSTEM_CALL = "system call"


ABOUT = {
    Part.APPLICATION: "the code that writes, here the profile's own",
    Part.API: "mrc/api.py and what it stands on: connections, messages, regions",
    Part.LOOP: "asyncio or uvloop, epoll included",
    Part.ENGINE: "mrc/engine.py",
    Part.PROTO: "mrc/proto: queue pairs, paths, windows, congestion control, SACKs",
    Part.WIRE: "mrc/wire: headers written and checked",
    Part.COPY: "payloads between memory and run",
    Part.AEAD: "mrc/wire/seal.py: payloads encrypted and decrypted, which copies them too",
    Part.ICRC: "mrc/wire/icrc.py and its callers",
    Part.UDP: "mrc/udp without the system calls",
    Part.SYSTEM_CALL: "sendmsg and recvmsg, with the kernel's copy; on loopback a send also does"
    " what the receiver's kernel would",
}

_BY_PREFIX = (
    ("wire/seal.py", Part.AEAD),
    ("wire/icrc.py", Part.ICRC),
    ("wire/", Part.WIRE),
    ("proto/", Part.PROTO),
    ("udp/", Part.UDP),
    ("engine.py", Part.ENGINE),
    ("", Part.API),
)


def place(stack: Stack) -> tuple[Part, Frame]:
    """Return the part that a stack was in, and the frame that tells."""
    for frame in stack:
        if frame.file.startswith(_OURS):
            return _part_of(frame), frame
    innermost = stack[0]
    of_tools = innermost.file.startswith(_TOOLS)
    return Part.APPLICATION if of_tools else Part.LOOP, innermost


def _part_of(frame: Frame) -> Part:
    """The part of a frame of ours: by what its line does, else by where it stands."""
    text = linecache.getline(frame.file, frame.line)
    if _SYSTEM_CALL.search(text):
        return Part.SYSTEM_CALL
    if _COPY.search(text):
        return Part.COPY
    if "icrc" in frame.function:
        return Part.ICRC
    name = frame.file.removeprefix(_OURS)
    return next(part for prefix, part in _BY_PREFIX if name.startswith(prefix))
