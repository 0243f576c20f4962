"""Numbers of the Linux socket interface that Python's `socket` module does not name.

From the kernel's own headers (`linux/in.h`, `in6.h`, `udp.h`, `asm-generic/socket.h`): its stable
interface, alike on every architecture this package runs on. Nothing else is here.
"""

from __future__ import annotations

import socket

SOL_SOCKET = socket.SOL_SOCKET
SOL_IP = 0
SOL_UDP = 17
SOL_IPV6 = 41

# SOL_SOCKET
SO_ATTACH_FILTER = 26
SO_RCVBUFFORCE = 33
SO_MEMINFO = 55
MEMINFO_WORDS = 9
MEMINFO_DROPS = 8

# SOL_IP
IP_TOS = 1
IP_MTU_DISCOVER = 10
IP_RECVERR = 11
IP_RECVTOS = 13

# SOL_IPV6
IPV6_FLOWINFO = 11
IPV6_MTU_DISCOVER = 23
IPV6_RECVERR = 25
IPV6_V6ONLY = 26
IPV6_FLOWINFO_SEND = 33
IPV6_AUTOFLOWLABEL = 70
IPV6_DONTFRAG = 62
IPV6_RECVTCLASS = 66
IPV6_TCLASS = 67

# SOL_UDP
UDP_SEGMENT = 103
UDP_GRO = 104

PMTUDISC_PROBE = 3
"""Set Don't Fragment and hold a datagram against the device's MTU only.

`PMTUDISC_DO` would also hold it against the path MTU cached from ICMP messages, which anyone can
forge; with either, what is too big fails with EMSGSIZE and what fits leaves with DF set.
"""

MSG_ERRQUEUE = 0x2000

UDP_PAYLOAD_BYTES_MAX = 65507
"""The most one system call takes over IPv4, segmented or not; 20 bytes below IPv6's limit."""

UDP_SEGMENTS_MAX = 64
"""Segments a call that every kernel with UDP_SEGMENT takes; newer ones take 128."""
