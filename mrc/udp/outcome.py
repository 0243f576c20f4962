"""What became of a send: errno values sorted by what the sender should do about them.

Knows the kernel's habits, and no socket.
"""

from __future__ import annotations

from enum import IntEnum
from errno import (
    EACCES,
    EADDRNOTAVAIL,
    EAGAIN,
    ECONNREFUSED,
    EHOSTDOWN,
    EHOSTUNREACH,
    EINVAL,
    EIO,
    EMSGSIZE,
    ENETDOWN,
    ENETUNREACH,
    ENOBUFS,
    ENODEV,
    ENOMEM,
    ENXIO,
    EPERM,
)


class SendOutcome(IntEnum):
    """What became of a run."""

    SENT = 0
    """Handed to the kernel, whole."""
    WOULD_BLOCK = 1
    """The send buffer is full: wait until the socket is writable, then repeat the same call."""
    NO_BUFFERS = 2
    """ENOBUFS: a queue of this machine dropped some of the run. It counts as lost: slow down."""
    TOO_BIG = 3
    """EMSGSIZE: a datagram is larger than the device's MTU. Nothing of that size will pass."""
    UNREACHABLE = 4
    """No way from this address to that destination: no route, interface down, address gone."""
    REFUSED = 5
    """ECONNREFUSED twice in a row: nobody listens at the destination."""
    BLOCKED = 6
    """EPERM or EACCES: a firewall rule or a `prohibit` route of this machine dropped it."""
    FAILED = 7
    """Anything else; the socket's `last_errno` says what."""


_OUTCOMES = {
    0: SendOutcome.SENT,
    EAGAIN: SendOutcome.WOULD_BLOCK,
    ENOBUFS: SendOutcome.NO_BUFFERS,
    ENOMEM: SendOutcome.NO_BUFFERS,
    EMSGSIZE: SendOutcome.TOO_BIG,
    ENETUNREACH: SendOutcome.UNREACHABLE,
    EHOSTUNREACH: SendOutcome.UNREACHABLE,
    EHOSTDOWN: SendOutcome.UNREACHABLE,
    ENETDOWN: SendOutcome.UNREACHABLE,
    ENODEV: SendOutcome.UNREACHABLE,
    ENXIO: SendOutcome.UNREACHABLE,
    EADDRNOTAVAIL: SendOutcome.UNREACHABLE,
    # What is left of EINVAL once segmenting is ruled out: a `blackhole` route or, over IPv4, a
    # source address that was taken off its interface.
    EINVAL: SendOutcome.UNREACHABLE,
    ECONNREFUSED: SendOutcome.REFUSED,
    EPERM: SendOutcome.BLOCKED,
    EACCES: SendOutcome.BLOCKED,
}

_GSO_REFUSALS = frozenset({EIO, EINVAL})
_NEVER_PENDING = frozenset({EAGAIN, ENOBUFS, ENOMEM, EPERM, EINVAL, EIO})


def outcome_of(code: int) -> SendOutcome:
    """The outcome for an errno value; 0 is SENT."""
    return _OUTCOMES.get(code, SendOutcome.FAILED)


def may_refuse_gso(code: int) -> bool:
    """Whether a run may have failed because the device or socket cannot segment."""
    return code in _GSO_REFUSALS


def may_be_pending(code: int) -> bool:
    """Whether an errno may tell of an earlier datagram.

    What ICMP says of a datagram is reported once, by the next send of that socket, whatever its
    destination, and that send does not happen.
    """
    return code != 0 and code not in _NEVER_PENDING
