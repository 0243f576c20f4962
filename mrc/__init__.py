"""MRC, the Multipath Reliable Connection, in user space on ordinary UDP sockets.

`listen` and `connect` give queue pairs; see `mrc.api`. Errors are in `mrc.errors`, settings in
`Config`, the lock on a listener's door in `Lock`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from mrc.errors import MrcError

if TYPE_CHECKING:
    from mrc.api import (
        Connecting,
        Endpoint,
        Immediate,
        Listener,
        QueuePair,
        connect,
        listen,
    )
    from mrc.json_channel import JsonChannel
    from mrc.lock import Key, Lock
    from mrc.proto.config import Config, DscpMap
    from mrc.proto.events import EvChanged, EvState, PortStatusChanged
    from mrc.proto.statistics import EndpointStatistics, PathStatistics, QpStatistics
    from mrc.qp_facts import QpFacts
    from mrc.regions import MemoryRegion, RemoteRegion
    from mrc.rendezvous import Address, Url
    from mrc.socket_facts import PortFacts
else:
    _HOMES = (
        "api",
        "lock",
        "proto.config",
        "proto.events",
        "proto.statistics",
        "rendezvous",
        "qp_facts",
        "socket_facts",
    )

    def __getattr__(name: str) -> object:
        """Bring a public name when it is first asked for.

        All of it together takes 0.2 s, in which the commands must be able to say how they end when
        somebody presses Ctrl-C: they get that far before anything heavy is imported.
        """
        if name in __all__:
            for home in _HOMES:
                found = vars(import_module(f"mrc.{home}"))
                if name in found:
                    globals()[name] = found[name]
                    return found[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Address",
    "Config",
    "Connecting",
    "DscpMap",
    "Endpoint",
    "EndpointStatistics",
    "EvChanged",
    "EvState",
    "Immediate",
    "JsonChannel",
    "Key",
    "Listener",
    "Lock",
    "MemoryRegion",
    "MrcError",
    "PathStatistics",
    "PortFacts",
    "PortStatusChanged",
    "QpFacts",
    "QpStatistics",
    "QueuePair",
    "RemoteRegion",
    "Url",
    "connect",
    "listen",
]
