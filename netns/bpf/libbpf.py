"""The few calls of libbpf that load a program and reach its maps, through ctypes.

File descriptors are plain numbers, closed on exec, that the caller closes. A loaded program and its
maps live as long as a descriptor of theirs, or a filter of a device that uses them.
"""

from __future__ import annotations

import ctypes
import errno
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from netns.errors import LabError, LabMissing

LOG_BYTES = 1 << 20
LOG_LINES_SHOWN = 25
"""Of the end of what the kernel says about a program that it rejects."""

_LOCKED = 4  # BPF_F_LOCK: copy the value under its spin lock.
_LIBBPF_ERRNO_START = 4000

ARRAY = 2
"""BPF_MAP_TYPE_ARRAY."""


class BpfError(LabError):
    """A call of libbpf failed; `errno` says why."""

    def __init__(self, what: str, number: int, log: str = "") -> None:
        text = os.strerror(number) if number < _LIBBPF_ERRNO_START else f"libbpf error {number}"
        if number == errno.EPERM:
            text += " (loading programs needs root)"
        super().__init__(f"{what}: {text}{log and f'; the kernel says:{os.linesep}{log}'}")
        self.errno = number


@dataclass(frozen=True, slots=True)
class Loaded:
    """Descriptors of what an object file became."""

    program_fd: int
    map_fds: dict[str, int]


@dataclass(frozen=True, slots=True)
class MapInfo:
    """What the kernel says about a map."""

    kind: int
    number: int
    """By which another process can open it."""
    value_bytes: int
    name: str


class _MapInfo(ctypes.Structure):
    """The start of `struct bpf_map_info`, of which the kernel fills as much as is asked for."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("key_size", ctypes.c_uint32),
        ("value_size", ctypes.c_uint32),
        ("max_entries", ctypes.c_uint32),
        ("map_flags", ctypes.c_uint32),
        ("name", ctypes.c_char * 16),
    )


def load(path: Path, program: str, maps: tuple[str, ...]) -> Loaded:
    """Load one tc program of an object file, with new maps.

    Raises:
        BpfError: the file is no such object, or the kernel rejects the program.
        LabMissing: libbpf is not installed.
    """
    library = shared_library()
    handle = library.bpf_object__open_file(os.fsencode(path), None)
    if not handle:
        raise BpfError(f"cannot open {path}", ctypes.get_errno())
    try:
        chosen = _choose(library, handle, program)
        log = ctypes.create_string_buffer(LOG_BYTES)
        library.bpf_program__set_log_buf(chosen, log, LOG_BYTES)
        status = library.bpf_object__load(handle)
        if status < 0:
            said = log.value.decode(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
            raise BpfError(f"cannot load {program}", -status, "\n".join(said))
        found = [library.bpf_program__fd(chosen)]
        found += [_map_fd(library, handle, name) for name in maps]
        # Closing the object closes its descriptors, so the caller gets copies.
        program_fd, *map_fds = _duplicates(found)
        return Loaded(program_fd, dict(zip(maps, map_fds, strict=True)))
    finally:
        library.bpf_object__close(handle)


def map_info(fd: int) -> MapInfo:
    """Return what the kernel says about a map.

    Raises:
        BpfError: not a map.
    """
    info = _MapInfo()
    length = ctypes.c_uint32(ctypes.sizeof(info))
    status = shared_library().bpf_obj_get_info_by_fd(fd, ctypes.byref(info), ctypes.byref(length))
    _check("cannot ask about a map", status)
    return MapInfo(info.type, info.id, info.value_size, info.name.decode(errors="replace"))


def open_map(number: int) -> int:
    """Open a map by its number.

    Raises:
        BpfError: there is no such map any more, or no right to open it.
    """
    return _check(f"no map with id {number}", shared_library().bpf_map_get_fd_by_id(number))


def read_value(fd: int, size: int, *, locked: bool = False) -> bytes:
    """Return the one value of an array map.

    Args:
        fd: the map.
        size: of its values, in bytes.
        locked: read it under the spin lock that it holds.

    Raises:
        BpfError: not such a map.
    """
    value = ctypes.create_string_buffer(size)
    status = shared_library().bpf_map_lookup_elem_flags(fd, _KEY, value, _LOCKED if locked else 0)
    if status < 0:
        _check("cannot read a map", status)
    return value.raw


def write_value(fd: int, value: bytes) -> None:
    """Write the one value of an array map; programs may see half of it for a moment.

    Raises:
        BpfError: not such a map.
    """
    _check("cannot write a map", shared_library().bpf_map_update_elem(fd, _KEY, value, 0))


_KEY = bytes(4)


@lru_cache(maxsize=1)
def shared_library() -> ctypes.CDLL:
    """Return libbpf, with the types of the calls that are made here.

    Raises:
        LabMissing: libbpf is not installed.
    """
    try:
        library = ctypes.CDLL("libbpf.so.1", use_errno=True)
    except OSError as error:
        raise LabMissing("the lab needs libbpf.so.1 (apt-get install libbpf1)") from error
    library.bpf_object__open_file.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    library.bpf_object__open_file.restype = ctypes.c_void_p
    for name in ("load", "close"):
        getattr(library, f"bpf_object__{name}").argtypes = [ctypes.c_void_p]
    library.bpf_object__close.restype = None
    library.bpf_object__next_program.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.bpf_object__next_program.restype = ctypes.c_void_p
    library.bpf_object__find_map_fd_by_name.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    library.bpf_program__name.argtypes = [ctypes.c_void_p]
    library.bpf_program__name.restype = ctypes.c_char_p
    library.bpf_program__fd.argtypes = [ctypes.c_void_p]
    library.bpf_program__set_autoload.argtypes = [ctypes.c_void_p, ctypes.c_bool]
    library.bpf_program__set_log_buf.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    library.bpf_map_lookup_elem_flags.argtypes = [
        ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64,
    ]  # fmt: skip
    library.bpf_map_update_elem.argtypes = [
        ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64,
    ]  # fmt: skip
    # What it would print on standard error is in the exceptions.
    library.libbpf_set_print(None)
    return library


def _choose(library: ctypes.CDLL, handle: int, name: str) -> int:
    """Return the program with a name, the only one that will be loaded."""
    chosen = None
    program = library.bpf_object__next_program(handle, None)
    while program:
        is_chosen = library.bpf_program__name(program) == name.encode()
        chosen = program if is_chosen else chosen
        library.bpf_program__set_autoload(program, is_chosen)
        program = library.bpf_object__next_program(handle, program)
    if chosen is None:
        raise BpfError(f"no program {name}", errno.ENOENT)
    return int(chosen)


def _map_fd(library: ctypes.CDLL, handle: int, name: str) -> int:
    return _check(f"no map {name}", library.bpf_object__find_map_fd_by_name(handle, name.encode()))


def _duplicates(fds: list[int]) -> list[int]:
    """Return a copy of each descriptor, or of none."""
    copies: list[int] = []
    try:
        for fd in fds:
            copies.append(os.dup(fd))  # noqa: PERF401  # those made so far are closed below
        return copies
    except OSError:
        for fd in copies:
            os.close(fd)
        raise


def _check(what: str, status: int) -> int:
    if status < 0:
        raise BpfError(what, -status)
    return status
