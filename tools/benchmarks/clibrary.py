"""Reliable streams over UDP in C libraries, called with ctypes: SRT and UDT.

SRT began as UDT, so their interfaces are alike: a socket is a number, and the calls are those of
the socket interface. UDT's are C++ functions with arguments that C has as well.
"""

from __future__ import annotations

import ctypes
import ipaddress
import socket
import struct
from dataclasses import dataclass
from typing import Any

BUFFER_BYTES = 48 << 20
"""Large enough that no window is the limit."""
BUFFER_PACKETS = 1 << 15
SRTO_TRANSTYPE, SRTT_FILE = 50, 1
_MSS, _SNDBUF, _RCVBUF, _FC = 0, 5, 6, 4
_SOCKADDR = struct.Struct("=HH4s8x")


class LibraryError(Exception):
    """A call of a C library failed."""


@dataclass(frozen=True, slots=True)
class Library:
    """Where a library is and what its functions are called.

    Attributes:
        file: of the shared library.
        package: of Debian that brings it.
        names: of its functions, by what the socket interface calls them.
        socket_arguments: of its function that makes a socket.
        options: option and value beside those that both have.
    """

    file: str
    package: str
    names: dict[str, str]
    socket_arguments: tuple[int, ...]
    options: tuple[tuple[int, int], ...] = ()


SRT = Library(
    "libsrt.so.1.5",
    "libsrt1.5-openssl",
    {
        "startup": "srt_startup",
        "socket": "srt_create_socket",
        "setsockopt": "srt_setsockopt",
        "bind": "srt_bind",
        "listen": "srt_listen",
        "getsockname": "srt_getsockname",
        "accept": "srt_accept",
        "connect": "srt_connect",
        "send": "srt_send",
        "recv": "srt_recv",
        "close": "srt_close",
    },
    (),
    ((SRTO_TRANSTYPE, SRTT_FILE),),
)
UDT = Library(
    "libudt.so.0",
    "libudt0",
    {
        "startup": "_ZN3UDT7startupEv",
        "socket": "_ZN3UDT6socketEiii",
        "setsockopt": "_ZN3UDT10setsockoptEii6UDTOptPKvi",
        "bind": "_ZN3UDT4bindEiPK8sockaddri",
        "listen": "_ZN3UDT6listenEii",
        "getsockname": "_ZN3UDT11getsocknameEiP8sockaddrPi",
        "accept": "_ZN3UDT6acceptEiP8sockaddrPi",
        "connect": "_ZN3UDT7connectEiPK8sockaddri",
        "send": "_ZN3UDT4sendEiPKcii",
        "recv": "_ZN3UDT4recvEiPcii",
        "close": "_ZN3UDT5closeEi",
    },
    (socket.AF_INET, socket.SOCK_STREAM, 0),
)
LIBRARIES = {"srt": SRT, "udt": UDT}


class Stream:
    """A socket of such a library.

    Args:
        library: which one.
        mss_bytes: IP packets are at most so large.
    """

    def __init__(self, library: Library, mss_bytes: int) -> None:
        self._library = library
        self._dll = ctypes.CDLL(library.file)
        self._call("startup")
        self._handle = self._call("socket", *library.socket_arguments)
        for option, value in (
            *library.options,
            (_MSS, mss_bytes),
            (_FC, BUFFER_PACKETS),
            (_SNDBUF, BUFFER_BYTES),
            (_RCVBUF, BUFFER_BYTES),
        ):
            number = ctypes.c_int(value)
            size = ctypes.sizeof(number)
            self._call("setsockopt", self._handle, 0, option, ctypes.byref(number), size)

    def _call(self, name: str, *arguments: Any) -> int:
        result: int = self._dll[self._library.names[name]](*arguments)
        if result < 0:
            raise LibraryError(f"{self._library.file}: {name} failed")
        return result

    def listen(self) -> int:
        """Listen on loopback, and return the port."""
        self._call("bind", self._handle, _sockaddr(0), _SOCKADDR.size)
        self._call("listen", self._handle, 1)
        name, size = ctypes.create_string_buffer(_SOCKADDR.size), ctypes.c_int(_SOCKADDR.size)
        self._call("getsockname", self._handle, name, ctypes.byref(size))
        return socket.ntohs(_SOCKADDR.unpack(name.raw)[1])

    def accept(self) -> None:
        """Wait for a connection, which takes the place of this socket."""
        name, size = ctypes.create_string_buffer(_SOCKADDR.size), ctypes.c_int(_SOCKADDR.size)
        self._handle = self._call("accept", self._handle, name, ctypes.byref(size))

    def connect(self, port: int) -> None:
        """Connect over loopback."""
        self._call("connect", self._handle, _sockaddr(port), _SOCKADDR.size)

    def send(self, address: int, byte_count: int) -> int:
        """Send bytes from memory; return how many were taken, at least one."""
        return self._call("send", self._handle, ctypes.c_void_p(address), byte_count, 0)

    def receive_into(self, address: int, byte_count: int) -> int:
        """Receive bytes to memory; return how many: 0 at the end of the stream."""
        try:
            return self._call("recv", self._handle, ctypes.c_void_p(address), byte_count, 0)
        except LibraryError:
            return 0

    def close(self) -> None:
        """Close the connection when all is sent."""
        self._call("close", self._handle)


def _sockaddr(port: int) -> bytes:
    host = ipaddress.ip_address("127.0.0.1").packed
    return _SOCKADDR.pack(socket.AF_INET, socket.htons(port), host)
