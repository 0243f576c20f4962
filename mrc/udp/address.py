"""Numeric addresses as sockets take them, checked once so that the hot path need not.

Resolves no names: a name in a send would block in the resolver. Never binds anything.
"""

from __future__ import annotations

import ipaddress
import socket

from mrc.errors import ConfigError

SockAddr = tuple[str, int] | tuple[str, int, int, int]
"""IPv4: address, port. IPv6: address without scope, port, flow info (0), scope index."""


def family_of(address: str) -> socket.AddressFamily:
    """AF_INET or AF_INET6 for a numeric address.

    Raises:
        ConfigError: not a numeric address.
    """
    return socket.AF_INET if _parse(address).version == 4 else socket.AF_INET6


def local_address(address: str, port: int) -> SockAddr:
    """The socket address to bind; port 0 lets the kernel choose.

    Args:
        address: IPv4 or IPv6 in digits; a link-local one carries its interface, `fe80::1%eth0`.
        port: 0 to 65535.

    Raises:
        ConfigError: not numeric, IPv4 written as IPv6, a link-local address without an interface
            or with one that does not exist, or a port out of range.
    """
    if not 0 <= port <= 0xFFFF:
        raise ConfigError(f"port {port} is not between 0 and 65535")
    parsed = _parse(address)
    if isinstance(parsed, ipaddress.IPv4Address):
        return (str(parsed), port)
    if parsed.ipv4_mapped is not None:
        raise ConfigError(f"{address} is an IPv4 address; write {parsed.ipv4_mapped}")
    # Without a scope the kernel picks some interface for a send, silently.
    if parsed.is_link_local and parsed.scope_id is None:
        raise ConfigError(f"{address} is link-local; name its interface, as in {address}%eth0")
    return (str(parsed).partition("%")[0], port, 0, _scope_index(parsed.scope_id))


def peer_address(address: str, port: int) -> SockAddr:
    """The socket address of a peer: as `local_address`, and port 0 is an error too."""
    if port == 0:
        raise ConfigError(f"port 0 of {address} cannot be sent to; give 1 to 65535")
    return local_address(address, port)


def _parse(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        raise ConfigError(f"{address!r} is not an IPv4 or IPv6 address in digits") from None


def _scope_index(scope: str | None) -> int:
    if scope is None:
        return 0
    if scope.isdecimal():
        return int(scope)
    try:
        return socket.if_nametoindex(scope)
    except (OSError, ValueError):
        # ValueError where it cannot even be a name: a zero byte, half a surrogate.
        raise ConfigError(f"there is no interface {scope!r} on this machine") from None
