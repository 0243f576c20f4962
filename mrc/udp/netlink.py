"""Just enough rtnetlink to know the interfaces and addresses of this network namespace.

Parses what the kernel sends and asks for lists; keeps no state. Needs no privileges and, unlike
/sys, always speaks of the namespace the socket was opened in.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from mrc.errors import LocalError
from mrc.udp.options import why

RTMGRP_LINK = 0x1
RTMGRP_IPV4_IFADDR = 0x10
RTMGRP_IPV6_IFADDR = 0x100

_NETLINK_ROUTE = 0
_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_NLM_F_REQUEST = 0x1
_NLM_F_DUMP = 0x300
_RTM_NEWLINK, _RTM_DELLINK, _RTM_GETLINK = 16, 17, 18
_RTM_NEWADDR, _RTM_DELADDR, _RTM_GETADDR = 20, 21, 22
_IFLA_IFNAME = 3
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_IFA_F_TENTATIVE = 0x40
_IFF_UP, _IFF_RUNNING = 0x1, 0x40

# nlmsghdr: length, type, flags, sequence, port. ifinfomsg: family, type, index, flags, change.
# ifaddrmsg: family, prefix length, flags, scope, index. rtattr: length, type.
_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_ATTRIBUTE_TYPE_MASK = 0x3FFF

MESSAGE_BYTES_MAX = 1 << 16
_DUMP_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Link:
    """An interface as it is now, or was when it was removed."""

    index: int
    name: str
    up: bool
    """Switched on, present, and with a carrier."""


@dataclass(frozen=True, slots=True)
class Address:
    """An address on an interface."""

    index: int
    """Of the interface."""
    address: str
    prefix_bits: int
    up: bool
    """Present, and past duplicate address detection."""


def open_netlink(groups: int = 0) -> socket.socket:
    """A blocking netlink socket that hears the given multicast groups.

    Raises:
        LocalError: this system has no rtnetlink, or does not let us use it.
    """
    try:
        sock = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE
        )
    except OSError as error:
        raise LocalError(error.errno, f"cannot ask for interfaces: {why(error)}") from error
    sock.settimeout(_DUMP_TIMEOUT_S)
    try:
        sock.bind((0, groups))
    except OSError as error:
        sock.close()
        raise LocalError(error.errno, f"cannot watch interfaces: {error.strerror}") from error
    return sock


def dump_links() -> list[Link]:
    """All interfaces.

    Raises:
        LocalError: as `open_netlink`.
    """
    return [item for item in _dump(_RTM_GETLINK) if isinstance(item, Link)]


def dump_addresses() -> list[Address]:
    """All addresses of all interfaces.

    Raises:
        LocalError: as `open_netlink`.
    """
    return [item for item in _dump(_RTM_GETADDR) if isinstance(item, Address)]


def _dump(request: int) -> Iterator[Link | Address]:
    message = _HEADER.pack(_HEADER.size + 4, request, _NLM_F_REQUEST | _NLM_F_DUMP, 1, 0) + bytes(4)
    with open_netlink() as sock:
        try:
            sock.sendto(message, (0, 0))
            done = False
            while not done:
                data = sock.recv(MESSAGE_BYTES_MAX)
                yield from parse_messages(data)
                done = any(kind in (_NLMSG_DONE, _NLMSG_ERROR) for kind, _ in _messages(data))
        except OSError as error:
            raise LocalError(error.errno, f"cannot list interfaces: {error}") from error


def parse_messages(data: bytes) -> Iterator[Link | Address]:
    """What the messages in one receive say of interfaces and addresses; others are skipped."""
    for kind, body in _messages(data):
        # A bridge tells of its ports in the same messages, under its own family.
        if kind in (_RTM_NEWLINK, _RTM_DELLINK) and body[0] == socket.AF_UNSPEC:
            yield _parse_link(kind, body)
        elif kind in (_RTM_NEWADDR, _RTM_DELADDR):
            yield _parse_address(kind, body)


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size:
            return
        yield kind, data[offset + _HEADER.size : offset + length]
        offset += _aligned(length)


def _parse_link(kind: int, body: bytes) -> Link:
    _, _, index, flags, _ = _LINK.unpack_from(body)
    name = _attributes(body[_LINK.size :]).get(_IFLA_IFNAME, b"")
    running = flags & (_IFF_UP | _IFF_RUNNING) == _IFF_UP | _IFF_RUNNING
    return Link(index, os.fsdecode(name.rstrip(b"\0")), kind == _RTM_NEWLINK and running)


def _parse_address(kind: int, body: bytes) -> Address:
    family, prefix_bits, flags, _, index = _ADDRESS.unpack_from(body)
    attributes = _attributes(body[_ADDRESS.size :])
    # On a point-to-point link IFA_ADDRESS is the far end's.
    packed = attributes.get(_IFA_LOCAL) or attributes[_IFA_ADDRESS]
    usable = kind == _RTM_NEWADDR and not flags & _IFA_F_TENTATIVE
    return Address(index, socket.inet_ntop(family, packed), prefix_bits, usable)


def _attributes(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size:
            break
        found[kind & _ATTRIBUTE_TYPE_MASK] = data[offset + _ATTRIBUTE.size : offset + length]
        offset += _aligned(length)
    return found


def _aligned(length: int) -> int:
    return (length + 3) & ~3
