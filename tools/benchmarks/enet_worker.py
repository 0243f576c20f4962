"""Reliable packets with ENet, a C library called with ctypes: `receive JOB` and `send JOB`."""

from __future__ import annotations

import ctypes
import ipaddress
import json
import sys
from dataclasses import dataclass
from itertools import cycle
from time import monotonic_ns

from benchmarks.lines import emit, run
from benchmarks.meter import WALK_BYTES, WARM_UP_S, Meter, touched
from mrc.units import NS_PER_S

LIBRARY, PACKAGE = "libenet.so.7", "libenet7"
PIECE_BYTES = 8 << 10
IN_FLIGHT_BYTES = 4 << 20
"""Handed to ENet and not yet acknowledged: far more than its window of 64 KiB."""
SERVICE_MS = 10
CONNECT_MS = 5000
RELIABLE, NO_ALLOCATE = 1, 4
CONNECT, DISCONNECT, RECEIVE = 1, 2, 3
LOOPBACK = int.from_bytes(ipaddress.ip_address("127.0.0.1").packed, sys.byteorder)
FREED = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Address(ctypes.Structure):
    """`ENetAddress`: host in network order, port in the machine's."""

    _fields_ = (("host", ctypes.c_uint32), ("port", ctypes.c_uint16))


class Packet(ctypes.Structure):
    """`ENetPacket`."""

    _fields_ = (
        ("references", ctypes.c_size_t),
        ("flags", ctypes.c_uint32),
        ("data", ctypes.c_void_p),
        ("byte_count", ctypes.c_size_t),
        ("on_free", FREED),
        ("user", ctypes.c_void_p),
    )


class Event(ctypes.Structure):
    """`ENetEvent`."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("peer", ctypes.c_void_p),
        ("channel", ctypes.c_uint8),
        ("data", ctypes.c_uint32),
        ("packet", ctypes.POINTER(Packet)),
    )


class Host(ctypes.Structure):
    """The beginning of `ENetHost`."""

    _fields_ = (
        ("socket", ctypes.c_int),
        ("address", Address),
        ("incoming_bandwidth", ctypes.c_uint32),
        ("outgoing_bandwidth", ctypes.c_uint32),
        ("throttle_epoch", ctypes.c_uint32),
        ("mtu", ctypes.c_uint32),
    )


def load() -> ctypes.CDLL:
    """Load the library and say what its functions return."""
    library = ctypes.CDLL(LIBRARY)
    library.enet_host_create.restype = ctypes.POINTER(Host)
    library.enet_host_connect.restype = ctypes.c_void_p
    library.enet_packet_create.restype = ctypes.POINTER(Packet)
    library.enet_packet_create.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32)
    library.enet_peer_send.argtypes = (ctypes.c_void_p, ctypes.c_uint8, ctypes.POINTER(Packet))
    library.enet_peer_disconnect_later.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
    library.enet_initialize()
    return library


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the two sides do.

    Attributes:
        mtu_bytes: UDP payloads are at most so large: 576 to 4096, ENet's default is 1392.
        seconds: how long to send.
        port: where the receiver is, for the sender.
    """

    mtu_bytes: int
    seconds: float
    port: int = 0


async def receive(job: Job) -> None:
    """Take packets and copy them to their place until the sender leaves."""
    library, event, meter = load(), Event(), Meter()
    memory = touched(WALK_BYTES)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    host = library.enet_host_create(ctypes.byref(Address(LOOPBACK, 0)), 1, 1, 0, 0)
    host.contents.mtu = job.mtu_bytes
    bound = Address()
    library.enet_socket_get_address(host.contents.socket, ctypes.byref(bound))
    emit({"port": bound.port})
    for offset in cycle(range(0, WALK_BYTES, PIECE_BYTES)):
        while library.enet_host_service(host, ctypes.byref(event), SERVICE_MS) == 0:
            pass
        if event.type == DISCONNECT:
            break
        if event.type == RECEIVE:
            packet = event.packet.contents
            ctypes.memmove(start + offset, packet.data, packet.byte_count)
            meter.add(packet.byte_count)
            library.enet_packet_destroy(event.packet)
    emit(meter.report())


async def send(job: Job) -> None:
    """Keep enough packets under way until the time is up."""
    library, event = load(), Event()
    memory = touched(WALK_BYTES)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    host = library.enet_host_create(None, 1, 1, 0, 0)
    host.contents.mtu = job.mtu_bytes
    address = Address(LOOPBACK, job.port)
    peer = library.enet_host_connect(host, ctypes.byref(address), 1, 0)
    if library.enet_host_service(host, ctypes.byref(event), CONNECT_MS) <= 0:
        raise SystemExit("ENet: no connection")
    under_way = 0

    def freed(_packet: int) -> None:
        nonlocal under_way
        under_way -= PIECE_BYTES

    on_free = FREED(freed)
    end_ns = monotonic_ns() + int((job.seconds + WARM_UP_S) * NS_PER_S)
    offsets = cycle(range(0, WALK_BYTES, PIECE_BYTES))
    while monotonic_ns() < end_ns:
        while under_way < IN_FLIGHT_BYTES:
            packet = library.enet_packet_create(
                start + next(offsets), PIECE_BYTES, RELIABLE | NO_ALLOCATE
            )
            packet.contents.on_free = on_free
            library.enet_peer_send(peer, 0, packet)
            under_way += PIECE_BYTES
        library.enet_host_service(host, ctypes.byref(event), 1)
    library.enet_peer_disconnect_later(peer, 0)
    while library.enet_host_service(host, ctypes.byref(event), SERVICE_MS) >= 0:
        if event.type == DISCONNECT:
            break
    emit({})


def main(role: str, job: str) -> None:
    """Play a role, `receive` or `send`."""
    roles = {"receive": receive, "send": send}
    run(roles[role](Job(**json.loads(job))))


if __name__ == "__main__":
    main(*sys.argv[1:])
