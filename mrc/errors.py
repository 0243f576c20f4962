"""The one exception tree, its families named by who can act.

`ConfigError` is for the caller, `PeerError` for whoever runs the other side, `TransportError` for
the network between, `LocalError` for this machine. Each class keeps its numbers as attributes; the
message names value, unit, limit and remedy. Families derive from the standard library's exceptions
that users already catch.
"""

from __future__ import annotations


class MrcError(Exception):
    """Everything this package raises on purpose."""


class ConfigError(MrcError, ValueError):
    """A value given by the caller cannot be used: it names the value, its unit and the limit."""


class PeerError(MrcError, ConnectionError):
    """The peer answered, or should have, and the connection cannot be had."""

    def __init__(self, message: str, *, peer: str = "") -> None:
        super().__init__(message)
        self.peer = peer


class PeerUnreachable(PeerError):
    """Nothing answered at the peer's rendezvous address."""


class PeerRefused(PeerError):
    """The peer answered and said no; the message carries its reason."""


class PeerNotTrusted(PeerError):
    """Somebody answered who is not the one that the URL names; nothing was told to them.

    Attributes:
        expected: the fingerprint in the URL.
        found: that of whoever answered.
    """

    def __init__(self, message: str, *, peer: str, expected: str, found: str) -> None:
        super().__init__(message, peer=peer)
        self.expected = expected
        self.found = found


class PeerVersionError(PeerError):
    """The peer speaks another version, or something else altogether."""


class PeerProtocolError(PeerError):
    """The peer said something that the protocol does not allow."""


class TransportError(MrcError, ConnectionError):
    """A queue pair failed after it was established.

    Attributes:
        peer: the peer's rendezvous address, or empty.
        paths: one line per path tried, with when it last answered.
    """

    def __init__(self, message: str, *, peer: str = "", paths: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.peer = peer
        self.paths = paths


class RetriesExceeded(TransportError, TimeoutError):
    """Retry counter exceeded: the peer acknowledged nothing for the whole retry budget."""

    def __init__(
        self,
        message: str,
        *,
        peer: str = "",
        paths: tuple[str, ...] = (),
        psn: int = 0,
        retry_count: int = 0,
        waited_ns: int = 0,
    ) -> None:
        super().__init__(message, peer=peer, paths=paths)
        self.psn = psn
        self.retry_count = retry_count
        self.waited_ns = waited_ns


class RemoteAccessError(TransportError):
    """The peer refused a write: unknown r_key, or outside its memory region."""


class RemoteOperationError(TransportError):
    """The peer could not carry a write out (NAK remote operational error, NACK UNEXP_EVENT)."""


class PeerLost(TransportError):
    """The peer's process or machine went away."""


class QueuePairClosed(TransportError):
    """The queue pair was closed on this side while the operation waited."""


class LocalError(MrcError, OSError):
    """The local kernel refused; `errno` and `strerror` are kept."""
