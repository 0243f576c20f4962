"""Opening UDP sockets and setting their options, with the errors this layer wants.

What must work raises `LocalError`; what only makes things better says whether it worked. Knows
nothing of runs, of sending or of receiving.
"""

from __future__ import annotations

import array
import resource
import socket
import struct
import sys
from errno import EMFILE, ENFILE

from mrc.errors import LocalError
from mrc.udp.address import SockAddr
from mrc.udp.linux import (
    MEMINFO_DROPS,
    MEMINFO_WORDS,
    SO_ATTACH_FILTER,
    SO_MEMINFO,
    SO_RCVBUFFORCE,
    SOL_SOCKET,
)

# One instruction of classic BPF, `ret 0`: keep no byte of any datagram.
_DROP_ALL = struct.pack("=HBBI", 0x06, 0, 0, 0)


def open_udp(family: int) -> socket.socket:
    """A non-blocking UDP socket, not yet bound.

    Raises:
        LocalError: the family is not available here, or too many files are open.
    """
    try:
        sock = socket.socket(family, socket.SOCK_DGRAM)
    except OSError as error:
        name = "IPv6" if family == socket.AF_INET6 else "IPv4"
        raise LocalError(error.errno, f"cannot open an {name} UDP socket: {why(error)}") from error
    sock.setblocking(False)
    return sock


def why(error: OSError) -> str:
    """What the kernel said, and where it is a limit of this process, the limit and the remedy."""
    if error.errno != EMFILE:
        return str(error.strerror)
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"{error.strerror}; this process may have {most}: raise `ulimit -n`, or use fewer paths"


def is_out_of_descriptors(error: OSError) -> bool:
    """Whether it says nothing but that too many files are open, here or on the whole machine."""
    return error.errno in (EMFILE, ENFILE)


def bind(sock: socket.socket, name: SockAddr) -> None:
    """Bind to an address and port of this machine.

    Raises:
        LocalError: the port is in use, or the address is not here; errno kept.
    """
    try:
        sock.bind(name)
    except OSError as error:
        raise LocalError(
            error.errno, f"cannot bind UDP {name[0]} port {name[1]}: {error.strerror}"
        ) from error


def try_option(sock: socket.socket, level: int, option: int, value: int = 1) -> bool:
    """Set an option that older kernels may not have; whether it was taken."""
    try:
        sock.setsockopt(level, option, value)
    except OSError:
        return False
    return True


def set_buffer(sock: socket.socket, option: int, size_bytes: int) -> int:
    """Ask for a buffer (SO_SNDBUF or SO_RCVBUF) and return what was granted, in bytes.

    The kernel reports twice what it granted, because it charges its own overhead to the buffer:
    compared with the size asked for, a clamp to half would go unseen.
    """
    sock.setsockopt(SOL_SOCKET, option, size_bytes)
    granted_bytes = sock.getsockopt(SOL_SOCKET, option) // 2
    if granted_bytes < size_bytes and option == socket.SO_RCVBUF:
        # Goes past net.core.rmem_max for those who may raise that limit anyway.
        try_option(sock, SOL_SOCKET, SO_RCVBUFFORCE, size_bytes)
        granted_bytes = sock.getsockopt(SOL_SOCKET, option) // 2
    return granted_bytes


def drop_all_input(sock: socket.socket) -> bool:
    """Let the kernel throw away whatever arrives, waking nobody; whether it agreed.

    Error messages about what was sent still reach the error queue: they pass no filter.
    """
    program = array.array("B", _DROP_ALL)
    try:
        sock.setsockopt(
            SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("@HP", 1, program.buffer_info()[0])
        )
    except OSError:
        return False
    return True


def dropped_datagrams(sock: socket.socket) -> int:
    """Datagrams this socket's kernel side dropped, modulo 2**32: full buffer, filter, checksum."""
    try:
        words = sock.getsockopt(SOL_SOCKET, SO_MEMINFO, 4 * MEMINFO_WORDS)
    except OSError:
        return 0
    return int.from_bytes(words[4 * MEMINFO_DROPS :][:4], sys.byteorder)
