"""Names of files as they travel: what a peer may call something.

Pure text: this module never looks at a file system. What it lets through has no way out of the
output folder by its spelling; `store` makes sure that links on the disk are no way out either.
"""

from __future__ import annotations

import hashlib
import os

from mrc.errors import PeerProtocolError
from mrc.text import printable

PATH_BYTES_MAX = 4096
"""Longest relative path a peer may name, as the kernel's PATH_MAX."""

COMPONENT_BYTES_MAX = 255
"""Longest single name, as the kernel's NAME_MAX."""

DEPTH_MAX = 128
"""Most folders deep: each level costs one open call for each file below it."""

PART_SUFFIX = ".mrc-part"
JOURNAL_SUFFIX = ".mrc-journal"


def path_parts_untrusted(path: str) -> tuple[str, ...]:
    """Split a relative path a peer sent into names that are safe to create one below the other.

    Raises:
        PeerProtocolError: the path is absolute, climbs, is empty or odd, too long or too deep, or
            uses a name kept for unfinished files.
    """
    reason = path_objection(path)
    if reason:
        raise PeerProtocolError(f"a path {reason}: {printable(path)}")
    parts = tuple(path.split("/"))
    for part in parts:
        reason = _objection(part)
        if reason:
            raise PeerProtocolError(f"a path {reason}: {printable(path)!r}")
    return parts


def path_objection(path: str) -> str:
    """Say why a path as a whole cannot travel, or nothing."""
    try:
        if len(path) > PATH_BYTES_MAX or len(os.fsencode(path)) > PATH_BYTES_MAX:
            return f"longer than {PATH_BYTES_MAX} bytes"
    except UnicodeEncodeError:
        return "that is not text"
    if path.count("/") >= DEPTH_MAX:
        return f"more than {DEPTH_MAX} deep"
    return ""


def _objection(part: str) -> str:
    """Say what is wrong with one component of a path, or nothing."""
    if part == "":
        return "with an empty name in it, or an absolute one"
    if part in {".", ".."}:
        return "that climbs or stands still"
    if "\0" in part:
        return "with a zero byte"
    if is_reserved(part):
        return "kept for unfinished files"
    if len(os.fsencode(part)) > COMPONENT_BYTES_MAX:
        return f"with a name over {COMPONENT_BYTES_MAX} bytes"
    return ""


def link_target_untrusted(target: str, depth: int) -> str:
    """Check where a symbolic link points; `depth` is how many folders it may climb.

    The climb (`..`) may stand at the start only. A link's own folder is a real folder, so climbing
    from it leads to real folders; `..` after a name could climb from wherever that name, itself a
    link, leads to.

    Raises:
        PeerProtocolError: the target is absolute, empty, too long, or could lead out.
    """
    reason = link_objection(target, depth)
    if reason:
        raise PeerProtocolError(f"a symbolic link {reason}: {printable(target)!r}")
    return target


def link_objection(target: str, depth: int) -> str:
    """Say why a link target cannot be sent or taken, or nothing when it stays inside."""
    try:
        length = len(os.fsencode(target))
    except UnicodeEncodeError:
        return "whose target is not text"
    if not 0 < length < PATH_BYTES_MAX or "\0" in target:
        return "with no usable target"
    if target.startswith("/"):
        return "to an absolute path"
    climbs = 0
    named = False
    for part in target.split("/"):
        if part == "..":
            if named:
                return "that climbs after a name"
            climbs += 1
        elif part not in {"", "."}:
            named = True
    return "that leads out of the folder" if climbs > depth else ""


def is_reserved(name: str) -> bool:
    """Tell whether a name is one of ours for unfinished files, on some disk at least."""
    # There are disks that ignore case, and others that ignore dots and blanks at the end.
    folded = name.casefold().rstrip(". ")
    return folded.startswith(".") and folded.endswith((PART_SUFFIX, JOURNAL_SUFFIX))


def part_name(name: str) -> str:
    """Name the unfinished file that stands beside the final `name`."""
    return _beside(name, PART_SUFFIX)


def journal_name(name: str) -> str:
    """Name the journal that stands beside the unfinished file of `name`."""
    return _beside(name, JOURNAL_SUFFIX)


def _beside(name: str, suffix: str) -> str:
    whole = f".{name}{suffix}"
    raw = os.fsencode(name)
    if len(os.fsencode(whole)) <= COMPONENT_BYTES_MAX:
        return whole
    # Too long for one name: keep as much as fits, and a digest so that no two names meet.
    mark = "~" + hashlib.sha256(raw).hexdigest()[:32]
    room = COMPONENT_BYTES_MAX - len(f".{mark}{suffix}")
    return f".{os.fsdecode(raw[:room])}{mark}{suffix}"
