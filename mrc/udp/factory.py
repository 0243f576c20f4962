"""How the engine gets its sockets: a factory, so that tests and demos can put faults in between."""

from __future__ import annotations

from typing import Protocol

from mrc.udp.address import SockAddr
from mrc.udp.caps import Caps
from mrc.udp.errqueue import SocketError
from mrc.udp.outcome import SendOutcome
from mrc.udp.receive_socket import Datagrams, ReceiveSocket, ReceiveStatistics
from mrc.udp.send_socket import SendSocket, SendStatistics


class Sender(Protocol):
    """What the engine needs of a sending socket; `SendSocket` documents it."""

    @property
    def address(self) -> str:
        """The local address, as given."""

    @property
    def port(self) -> int:
        """The local port."""

    @property
    def last_errno(self) -> int:
        """Of the last outcome other than SENT; 0 if there was none."""

    def fileno(self) -> int:
        """The descriptor for a selector."""

    def send(
        self,
        buffer: memoryview,
        segment_bytes: int,
        destination: SockAddr,
        tos: int,
        flow_label: int = 0,
    ) -> SendOutcome:
        """Send a run."""

    def drain_errors(self) -> list[SocketError]:
        """Take what the error queue holds."""

    def statistics(self) -> SendStatistics:
        """The counters so far."""

    def close(self) -> None:
        """Free the port."""


class Receiver(Protocol):
    """What the engine needs of a receiving socket; `ReceiveSocket` documents it."""

    @property
    def address(self) -> str:
        """The local address, as given."""

    @property
    def port(self) -> int:
        """The local port."""

    @property
    def receive_buffer_asked_bytes(self) -> int:
        """Receive buffer asked for."""

    @property
    def receive_buffer_granted_bytes(self) -> int:
        """Receive buffer granted, less if the kernel's limit is too low."""

    def fileno(self) -> int:
        """The descriptor for a selector."""

    def receive_into(self, buffer: memoryview) -> Datagrams | None:
        """Receive the next train."""

    def statistics(self) -> ReceiveStatistics:
        """The counters so far."""

    def close(self) -> None:
        """Free the port."""


class Sockets(Protocol):
    """Opens the sockets of an endpoint."""

    def sender(self, address: str, port: int, caps: Caps) -> Sender:
        """Open the sending socket of one EV."""

    def receiver(self, address: str, port: int, caps: Caps, receive_buffer_bytes: int) -> Receiver:
        """Open the receiving socket of one plane."""


class KernelSockets:
    """The real thing, and the default."""

    def sender(self, address: str, port: int, caps: Caps) -> Sender:
        """Open a `SendSocket`."""
        return SendSocket(address, port, caps=caps)

    def receiver(self, address: str, port: int, caps: Caps, receive_buffer_bytes: int) -> Receiver:
        """Open a `ReceiveSocket`."""
        return ReceiveSocket(address, port, caps=caps, receive_buffer_bytes=receive_buffer_bytes)
