"""What the kernel made of an endpoint's sockets: buffers granted, features that work, drops.

Reads counters and options; changes nothing. For whoever wants to know why a host is slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mrc.proto.peer import LocalPort
from mrc.udp import (
    Receiver,
    Sender,
    SendOutcome,
    family_of,
    link_mtu_bytes,
    link_speed_bps,
    probe_caps,
)


@dataclass(frozen=True, slots=True)
class PortFacts:
    """One port of this host (a plane's address): its receiving socket and its EVs' sockets."""

    plane: int
    address: str
    udp_port: int
    interface: str
    link_mtu_bytes: int
    """MTU of the interface, IP header included."""
    link_bits_per_second: int | None
    """Rate of the interface; None where it does not say, as on loopback."""
    receive_buffer_asked_bytes: int
    receive_buffer_granted_bytes: int
    """Less than asked for: net.core.rmem_max is too low."""
    received_datagrams: int
    receive_calls: int
    """System calls that brought them: with GRO many datagrams each."""
    kernel_drops: int
    """Datagrams the kernel dropped at the receiving socket, nearly always for a full buffer."""
    gso: bool
    gro: bool
    ecn: bool
    senders: int
    """Sending sockets, one an EV."""
    send_buffer_asked_bytes: int
    """Of one sending socket; 0 without any."""
    send_buffer_granted_bytes: int
    """The least of all; less than asked for: net.core.wmem_max is too low."""
    sent_datagrams: int
    send_calls: int
    gso_refused: int
    """EVs on which the kernel would not segment after all: one system call a datagram there."""
    send_outcomes: dict[str, int]
    """What became of the sends that did not go through, by `SendOutcome`'s names."""


def port_facts(
    ports: Sequence[LocalPort],
    interfaces: Sequence[str],
    receivers: Sequence[Receiver],
    senders: Mapping[tuple[int, int], Sender],
) -> tuple[PortFacts, ...]:
    """Return the facts of every port of an endpoint.

    Args:
        ports: of the endpoint; their position is their plane.
        interfaces: of each port.
        receivers: of each port.
        senders: by port and source port.
    """
    return tuple(
        _facts_of(
            port,
            interface,
            receiver,
            [sender for (index, _), sender in senders.items() if index == port.index],
        )
        for port, interface, receiver in zip(ports, interfaces, receivers, strict=True)
    )


def _facts_of(
    port: LocalPort, interface: str, receiver: Receiver, senders: Iterable[Sender]
) -> PortFacts:
    received = receiver.statistics()
    sent = [sender.statistics() for sender in senders]
    caps = probe_caps(family_of(port.host))
    refused = [sum(each.outcomes[outcome] for each in sent) for outcome in SendOutcome]
    return PortFacts(
        plane=port.index,
        address=port.host,
        udp_port=port.udp_port,
        interface=interface,
        link_mtu_bytes=link_mtu_bytes(interface),
        link_bits_per_second=link_speed_bps(interface),
        receive_buffer_asked_bytes=received.receive_buffer_asked_bytes,
        receive_buffer_granted_bytes=received.receive_buffer_granted_bytes,
        received_datagrams=received.datagrams,
        receive_calls=received.calls,
        kernel_drops=received.kernel_drops,
        gso=caps.gso,
        gro=caps.gro,
        ecn=caps.ecn,
        senders=len(sent),
        send_buffer_asked_bytes=max((each.send_buffer_asked_bytes for each in sent), default=0),
        send_buffer_granted_bytes=min((each.send_buffer_granted_bytes for each in sent), default=0),
        sent_datagrams=sum(each.datagrams for each in sent),
        send_calls=sum(each.calls for each in sent),
        gso_refused=sum(bool(each.gso_off) for each in sent),
        send_outcomes={
            outcome.name.lower(): count
            for outcome, count in zip(SendOutcome, refused, strict=True)
            if count
        },
    )
