"""Interfaces going up and down, and which one carries an address.

Knows interfaces and addresses; what a plane is, is the engine's business.
"""

from __future__ import annotations

import array
import fcntl
import ipaddress
import os
import socket
import struct
from dataclasses import dataclass
from errno import EADDRNOTAVAIL, ENOBUFS

from mrc.errors import LocalError
from mrc.udp.address import local_address
from mrc.udp.netlink import (
    MESSAGE_BYTES_MAX,
    RTMGRP_IPV4_IFADDR,
    RTMGRP_IPV6_IFADDR,
    RTMGRP_LINK,
    Address,
    Link,
    dump_addresses,
    dump_links,
    open_netlink,
    parse_messages,
)
from mrc.udp.options import open_udp

_SIOCETHTOOL = 0x8946
_SIOCGIFMTU = 0x8921
_ETHTOOL_GDRVINFO = 0x03
_ETHTOOL_DRVINFO_BYTES = 196
_INVENTED_SPEEDS = (b"veth", b"tun", b"bridge", b"dummy")
"""Drivers without a wire, whose speed is a number out of the air."""
_ETHTOOL_GSET = 0x1
_ETHTOOL_CMD_BYTES = 44
# Where struct ethtool_cmd keeps the two halves of the speed in Mbit/s.
_SPEED_LOW, _SPEED_HIGH = 12, 28
_SPEED_UNKNOWN_MBPS = (0, 0xFFFF, 0xFFFFFFFF)

# More than a full queue holds, and an end to a call whatever happens.
_RECEIVES_A_CALL = 1024


@dataclass(frozen=True, slots=True)
class LinkChange:
    """An interface, or one of its addresses, became usable or stopped being so."""

    interface: str
    up: bool
    address: str | None = None
    """The address that came or went; None when the interface itself changed."""


class LinkMonitor:
    """Hears from the kernel of every change in this network namespace; no privileges needed.

    Make it before the addresses are bound, so that no change falls between.

    Raises:
        LocalError: this system has no rtnetlink, or does not let us use it.
    """

    def __init__(self) -> None:
        self._socket = open_netlink(RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR)
        self._socket.setblocking(False)
        self._names: dict[int, str] = {}
        # What is up: an interface as (index, None), an address as (index of interface, address).
        self._up: set[tuple[int, str | None]] = set()
        try:
            self._resynchronise()
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """The descriptor for a selector: readable means changes to read. -1 once closed."""
        return self._socket.fileno()

    def read(self) -> list[LinkChange]:
        """The changes since the last call, oldest first; repetitions are left out.

        After more changes than the kernel can queue, the news is what differs from what was
        known: what came and went in between is missed, what lasts is not.
        """
        changes: list[LinkChange] = []
        overrun = False
        for _ in range(_RECEIVES_A_CALL):
            try:
                data = self._socket.recv(MESSAGE_BYTES_MAX)
            except OSError as error:
                if error.errno != ENOBUFS:
                    break
                # Older than what was lost, the rest of the queue would mislead: it is skipped.
                overrun = True
                continue
            if not overrun:
                for item in parse_messages(data):
                    changes += self._update(item)
        return changes + self._resynchronise() if overrun else changes

    def close(self) -> None:
        """Stop listening. Closing twice is fine."""
        self._socket.close()

    def _resynchronise(self) -> list[LinkChange]:
        """Compare what is known with the kernel's lists."""
        items: list[Link | Address] = [*dump_links(), *dump_addresses()]
        gone = self._up - {_key(item) for item in items}
        self._up -= gone
        changes = [
            LinkChange(self._names[index], False, address)
            for index, address in sorted(gone, key=str)
        ]
        for item in items:
            changes += self._update(item)
        return changes

    def _update(self, item: Link | Address) -> list[LinkChange]:
        """Take one fact in: a change if it is news, else nothing."""
        if isinstance(item, Link):
            self._names[item.index] = item.name
        key = _key(item)
        if (key in self._up) == item.up:
            return []
        if item.up:
            self._up.add(key)
        else:
            self._up.discard(key)
        return [LinkChange(self._names.get(item.index, ""), item.up, key[1])]


def _key(item: Link | Address) -> tuple[int, str | None]:
    return (item.index, item.address if isinstance(item, Address) else None)


def interface_of(address: str) -> str:
    """The name of the interface that carries `address`, an address of this machine.

    Any address of a subnet that is local as a whole, such as 127.0.0.2, counts.

    Raises:
        ConfigError: not a numeric address, or a link-local one without its interface.
        LocalError: no interface carries it, or the kernel's lists cannot be had.
    """
    name = local_address(address, 0)
    if len(name) == 4 and name[3]:
        return _name(name[3], address)
    wanted = ipaddress.ip_address(name[0])
    for item in dump_addresses():
        held = ipaddress.ip_interface(f"{item.address}/{item.prefix_bits}")
        if wanted == held.ip or (held.is_loopback and wanted in held.network):
            return _name(item.index, address)
    raise LocalError(EADDRNOTAVAIL, f"no interface of this machine carries {address}")


def _name(index: int, address: str) -> str:
    try:
        return socket.if_indextoname(index)
    except OSError as error:
        raise LocalError(error.errno, f"the interface of {address} is gone") from error


def is_up(interface: str) -> bool:
    """Whether an interface exists, is switched on and has a carrier."""
    return any(link.up for link in dump_links() if link.name == interface)


def link_speed_bps(interface: str) -> int | None:
    """What an interface says its speed is, in bits per second; None if it does not know.

    Raises:
        LocalError: too many files are open.
    """
    info = _ethtool(interface, _ETHTOOL_GDRVINFO, _ETHTOOL_DRVINFO_BYTES)
    if info is None or info[4:36].rstrip(b"\0") in _INVENTED_SPEEDS:
        return None
    command = _ethtool(interface, _ETHTOOL_GSET, _ETHTOOL_CMD_BYTES)
    if command is None:
        return None
    (low,) = struct.unpack_from("=H", command, _SPEED_LOW)
    (high,) = struct.unpack_from("=H", command, _SPEED_HIGH)
    mbps = high << 16 | low
    return None if mbps in _SPEED_UNKNOWN_MBPS else mbps * 1_000_000


def _ethtool(interface: str, command: int, size: int) -> bytes | None:
    """Ask an interface's driver something; None when it does not answer that."""
    data = array.array("B", struct.pack("=I", command).ljust(size, b"\0"))
    request = struct.pack("@16sP16x", os.fsencode(interface)[:15], data.buffer_info()[0])
    with open_udp(socket.AF_INET) as sock:
        try:
            fcntl.ioctl(sock, _SIOCETHTOOL, request)
        except OSError:
            return None
    return data.tobytes()


def link_mtu_bytes(interface: str) -> int:
    """The largest IP packet an interface takes.

    Raises:
        LocalError: there is no such interface, or too many files are open.
    """
    request = struct.pack("16si20x", os.fsencode(interface)[:15], 0)
    with open_udp(socket.AF_INET) as sock:
        try:
            answer = fcntl.ioctl(sock, _SIOCGIFMTU, request)
        except OSError as error:
            raise LocalError(error.errno, f"the MTU of {interface} cannot be had") from error
    mtu: int = struct.unpack_from("16si", answer)[1]
    return mtu
