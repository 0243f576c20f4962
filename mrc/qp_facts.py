"""What two sides settled on for a queue pair, and what bounds what it may have in flight."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QpFacts:
    """One queue pair, as agreed in its handshake; it stays so until its end."""

    cipher: str | None
    """What its packets are sealed with; None without a lock."""
    icrc: bool
    mtu_bytes: int
    """Payload of one packet: the smaller of both sides' wishes."""
    planes: int
    mpr_bytes: int
    """The peer's tracking window (MPR): what may be in flight, in bytes."""
    window_bytes_max: int
    """How far congestion control may open the window: the least of what the links hold and of the
    peer's socket buffers' share."""
    receive_buffer_window_bytes: int
    """That share of the peer's socket buffers; where it equals `window_bytes_max`, it is the bound.
    """
