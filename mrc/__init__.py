"""MRC, the Multipath Reliable Connection, in user space on ordinary UDP sockets.

`listen` and `connect` give queue pairs; see `mrc.api`. Errors are in `mrc.errors`, settings in
`Config`.
"""

from mrc.api import (
    Connecting,
    Endpoint,
    Immediate,
    JsonChannel,
    Listener,
    MemoryRegion,
    QueuePair,
    RemoteRegion,
    connect,
    listen,
)
from mrc.errors import MrcError
from mrc.proto.config import Config, DscpMap
from mrc.proto.events import EvChanged, EvState, PortStatusChanged
from mrc.proto.statistics import EndpointStatistics, PathStatistics, QpStatistics

__all__ = [
    "Config",
    "Connecting",
    "DscpMap",
    "Endpoint",
    "EndpointStatistics",
    "EvChanged",
    "EvState",
    "Immediate",
    "JsonChannel",
    "Listener",
    "MemoryRegion",
    "MrcError",
    "PathStatistics",
    "PortStatusChanged",
    "QpStatistics",
    "QueuePair",
    "RemoteRegion",
    "connect",
    "listen",
]
