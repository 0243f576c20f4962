"""Which address to tell another machine, when listening on all of them."""

from __future__ import annotations

import socket

_ANYWHERE = {"": (socket.AF_INET, "192.0.2.1"), "0.0.0.0": (socket.AF_INET, "192.0.2.1")}
_ANYWHERE_V6 = {"::": (socket.AF_INET6, "2001:db8::1")}
_LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


def reachable_host(host: str) -> str:
    """Replace a wildcard by the address this machine would use towards others.

    Asks the routing table only: no packet is sent. Without any route it is the loopback address,
    which is then all there is.

    Args:
        host: an address or a name that is being listened on.
    """
    wildcard = {**_ANYWHERE, **_ANYWHERE_V6}.get(host)
    if wildcard is None:
        return host
    family, elsewhere = wildcard
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((elsewhere, 9))
        except OSError:
            return _LOOPBACK[family]
        address: str = probe.getsockname()[0]
    return address
