"""Which UDP source ports the EVs of a plane get.

A port is the part of an EV that switches hash, so many different ones are wanted, and none that
somebody on the way drops on sight. Randomness is handed in.
"""

from __future__ import annotations

import random
from errno import EADDRINUSE

from mrc.errors import ConfigError, LocalError
from mrc.udp.address import SockAddr, family_of, local_address
from mrc.udp.options import bind, open_udp

PORT_LOW = 49152
PORT_HIGH = 65535

REFLECTION_PORTS = {
    0: "unusable, and what fragments look like",
    7: "echo",
    17: "quote of the day",
    19: "chargen",
    53: "DNS",
    69: "TFTP",
    111: "portmapper",
    123: "NTP",
    137: "NetBIOS names",
    138: "NetBIOS datagrams",
    161: "SNMP",
    389: "CLDAP",
    500: "IKE",
    520: "RIP",
    1434: "SQL Server Browser",
    1900: "SSDP",
    3283: "Apple Remote Desktop",
    3702: "WS-Discovery",
    5353: "mDNS",
    5683: "CoAP",
    10001: "Ubiquiti discovery",
    11211: "memcached",
    20800: "Call of Duty",
    27005: "Source engine client",
    27015: "Source engine server",
    30718: "Lantronix discovery",
    32414: "Plex discovery",
    37810: "DVR discovery",
}
"""Source ports seen in reflection attacks, which servers and scrubbers therefore drop.

An EV on one of them would be a dead path at such a peer. The default range holds none of them.
"""


def choose_ports(
    address: str,
    count: int,
    rng: random.Random,
    low: int = PORT_LOW,
    high: int = PORT_HIGH,
) -> list[int]:
    """Choose `count` different ports of `address`, free at this moment, in random order.

    A port chosen is not held: whoever binds it later may still find it taken.

    Args:
        address: numeric address of this machine.
        count: how many EVs the plane gets, at least 1.
        rng: only its `random()` is used.
        low: first port of the range, at least 1.
        high: last port of the range, at most 65535.

    Raises:
        ConfigError: the range or the count makes no sense.
        LocalError: the range has too few free ports, or the address is not on this machine.
    """
    if not 1 <= low <= high <= 0xFFFF:
        raise ConfigError(f"port range {low}-{high} is not within 1-65535")
    if count < 1:
        raise ConfigError(f"{count} ports asked for; at least 1 is needed")
    # Says so at once, and once, if the address itself is the trouble.
    _check_bind(address, local_address(address, 0))
    candidates = [port for port in range(low, high + 1) if port not in REFLECTION_PORTS]
    chosen: list[int] = []
    while candidates and len(chosen) < count:
        index = int(rng.random() * len(candidates))
        port = candidates[index]
        candidates[index] = candidates[-1]
        candidates.pop()
        if _is_free(address, port):
            chosen.append(port)
    if len(chosen) < count:
        raise LocalError(
            EADDRINUSE,
            f"{count} UDP ports of {address} are needed, and {low}-{high} has {len(chosen)} free:"
            " widen the range or use fewer paths",
        )
    return chosen


def _is_free(address: str, port: int) -> bool:
    try:
        _check_bind(address, local_address(address, port))
    except LocalError:
        return False
    return True


def _check_bind(address: str, name: SockAddr) -> None:
    with open_udp(family_of(address)) as sock:
        bind(sock, name)
