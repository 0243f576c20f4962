"""Why nothing moves: the sentence a person gets instead of a frozen bar.

A pure function of what both sides say they are doing and of the paths' counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mrc.cli.link import PathCounters
from mrc.cli.messages import Phase
from mrc.cli.progress import Progress
from mrc.units import NS_PER_S

STALL_NS = 5 * NS_PER_S
"""Without a new byte for so long, a reason is given; and again each time as long."""

_SENDER_REASONS = {
    Phase.LISTING: "still listing what there is to send",
    Phase.READING: "waiting for input, nothing comes from {current}",
}
_SENDER_PEER_REASONS = {
    Phase.PREPARING: "the receiver is looking at its folder",
    Phase.HASHING: "the receiver is hashing what it has already",
    Phase.WRITING: "the receiver waits for its disk, or for whoever reads its output",
    Phase.FINISHING: "the receiver is flushing to its disk",
}
_RECEIVER_REASONS = {
    Phase.PREPARING: "still looking at the output folder",
    Phase.HASHING: "hashing what is here already",
    Phase.WRITING: "this side's disk is slow, or nobody reads the output",
    Phase.FINISHING: "this side is flushing to its disk",
}
_RECEIVER_PEER_REASONS = {
    Phase.LISTING: "the sender is listing what it has",
    Phase.READING: "the sender waits for its own input",
    Phase.HASHING: "the sender is hashing what is here already",
}


def stall_reason(
    progress: Progress,
    *,
    sending: bool,
    before: Sequence[PathCounters],
    now: Sequence[PathCounters],
) -> str:
    """Say in a few words why no byte has arrived for a while.

    Args:
        progress: of the transfer.
        sending: which side this is.
        before: counters of the paths when the last byte arrived.
        now: counters of the paths at present.
    """
    own = _SENDER_REASONS if sending else _RECEIVER_REASONS
    peer = _SENDER_PEER_REASONS if sending else _RECEIVER_PEER_REASONS
    reason = own.get(progress.phase) or (progress.peer_phase and peer.get(progress.peer_phase))
    if reason:
        return reason.format(current=progress.current or "it")
    if not sending:
        return "nothing arrives from the sender on any path"
    return _paths_reason(before, now)


def _paths_reason(before: Sequence[PathCounters], now: Sequence[PathCounters]) -> str:
    """Tell an unanswering network from a slow one."""
    if not now:
        return "no path is known"
    states = Counter(path.state for path in now)
    shown = ", ".join(f"{count} {state}" for state, count in states.most_common())
    if sum(path.acked_packets for path in now) == sum(path.acked_packets for path in before):
        sent = sum(path.sent_packets for path in now) - sum(path.sent_packets for path in before)
        return f"no acknowledgement on any of {len(now)} paths ({shown}; {sent} packets sent)"
    return f"acknowledgements arrive, but no block is complete ({len(now)} paths: {shown})"
