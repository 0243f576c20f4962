"""UDP sockets: runs of datagrams in and out, and what this kernel can do for them.

One `SendSocket` for each EV, one `ReceiveSocket` for each plane. Knows nothing of queue pairs,
packets or paths: bytes, sizes, addresses and outcomes only.
"""

from mrc.udp.address import SockAddr, family_of, local_address, peer_address
from mrc.udp.caps import Caps, probe_caps
from mrc.udp.errqueue import SocketError
from mrc.udp.factory import KernelSockets, Receiver, Sender, Sockets
from mrc.udp.faults import FaultySockets
from mrc.udp.links import (
    LinkChange,
    LinkMonitor,
    interface_of,
    is_up,
    link_mtu_bytes,
    link_speed_bps,
)
from mrc.udp.outcome import SendOutcome
from mrc.udp.ports import choose_ports
from mrc.udp.receive_socket import (
    RECEIVE_BUFFER_BYTES,
    TRAIN_BYTES_MAX,
    Datagrams,
    ReceiveSocket,
    ReceiveStatistics,
)
from mrc.udp.send_socket import SEND_BUFFER_BYTES, SendSocket, SendStatistics

__all__ = [
    "RECEIVE_BUFFER_BYTES",
    "SEND_BUFFER_BYTES",
    "TRAIN_BYTES_MAX",
    "Caps",
    "Datagrams",
    "FaultySockets",
    "KernelSockets",
    "LinkChange",
    "LinkMonitor",
    "ReceiveSocket",
    "ReceiveStatistics",
    "Receiver",
    "SendOutcome",
    "SendSocket",
    "SendStatistics",
    "Sender",
    "SockAddr",
    "SocketError",
    "Sockets",
    "choose_ports",
    "family_of",
    "interface_of",
    "is_up",
    "link_mtu_bytes",
    "link_speed_bps",
    "local_address",
    "peer_address",
    "probe_caps",
]
