"""One EV: what is known of it, its states, and what moves it between them (MRC 1.0 §11.2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from mrc.proto.events import EvState
from mrc.proto.statistics import PathStatistics

EV_PROBE_NS_MIN = 1_000_000
"""Least pause before an EV probe; it grows with the round trip and doubles."""


class EvInput(Enum):
    """What can happen to an EV."""

    CONGESTED = auto()
    """SACK with m = 1, or NACK TRIMMED."""
    LOST = auto()
    """Loss or timeout without a trim, SACK with m = 2, or the local kernel cannot send there."""
    ROTATED = auto()
    """The rotation met it while in SKIP."""
    PROBED = auto()
    """Enough probes were answered, or what was lost had arrived after all."""
    DENY = auto()
    ALLOW = auto()


_GOOD, _SKIP, _BAD, _DENIED = EvState.GOOD, EvState.SKIP, EvState.ASSUMED_BAD, EvState.DENIED

# A pair that is not here changes nothing: feedback in SKIP does not add up, a denied EV stays
# denied.
TRANSITIONS: dict[tuple[EvState, EvInput], EvState] = {
    (_GOOD, EvInput.CONGESTED): _SKIP,
    (_GOOD, EvInput.LOST): _BAD,
    (_SKIP, EvInput.LOST): _BAD,
    (_SKIP, EvInput.ROTATED): _GOOD,
    (_BAD, EvInput.PROBED): _GOOD,
    (_GOOD, EvInput.DENY): _DENIED,
    (_SKIP, EvInput.DENY): _DENIED,
    (_BAD, EvInput.DENY): _DENIED,
    (_DENIED, EvInput.ALLOW): _GOOD,
}


@dataclass(slots=True, eq=False)
class Path:
    """One EV and what is known of it."""

    index: int
    plane: int
    source_port: int
    flow_label: int
    state: EvState = EvState.GOOD
    active: bool = True
    busy: bool = False
    """The kernel's buffer for it is full: not to be chosen until it has drained."""
    srtt_ns: float = 0.0
    rttvar_ns: float = 0.0
    sent_packets: int = 0
    lost_packets: int = 0
    recent_sent: int = 0
    recent_lost: int = 0
    trimmed_packets: int = 0
    marked_packets: int = 0
    spurious_packets: int = 0
    retransmitted_packets: int = 0
    changes: int = 0
    recovered_ns: int = -(1 << 62)
    relapses: int = 0
    probe_ns: int = 0
    probe_backoff_ns: int = EV_PROBE_NS_MIN
    probes_answered: int = 0
    probes_failed: int = 0

    @property
    def entropy(self) -> int:
        """The 32-bit EV: flow label's low half above the UDP source port."""
        return (self.flow_label << 16) | self.source_port

    def statistics(self, acked_packets: int, confirmed_ns: int) -> PathStatistics:
        """Return a row of the table of paths; two columns are kept for all EVs together."""
        return PathStatistics(
            index=self.index,
            plane=self.plane,
            source_port=self.source_port,
            flow_label=self.flow_label,
            state=self.state.value,
            active=self.active,
            sent_packets=self.sent_packets,
            acked_packets=acked_packets,
            lost_packets=self.lost_packets,
            retransmitted_packets=self.retransmitted_packets,
            trimmed_packets=self.trimmed_packets,
            marked_packets=self.marked_packets,
            spurious_packets=self.spurious_packets,
            srtt_ns=int(self.srtt_ns),
            state_changes=self.changes,
            confirmed_ns=confirmed_ns,
        )
