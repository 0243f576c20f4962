"""Which packets are lost, when packets of one connection overtake each other all the time.

A 0 bit in a SACK means nothing by itself. A packet is *missing* when a SACK did not have it that
was caused by a packet (or probe) sent later. A missing packet is *lost* when one sent later on the
same EV has arrived, because a path is first-in-first-out, or when it is later than its EV's round
trip and a margin allow. NACKs and timeouts are the requestor's own business.

What was called lost and then arrived is spurious: the EV is given back, and the rule that erred
trusts less from then on (that EV is no longer taken to keep order, or the margin doubles).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mrc.proto.paths import NEVER_NS, PathSet
from mrc.proto.window import BITMAP_BITS, Acked, SendWindow
from mrc.wire.control import Sack

_CAUSES_MAX = 4096
_PROBES_MAX = 64


class Trigger(NamedTuple):
    """The packet or probe that caused a SACK, as we sent it."""

    psn: int
    """The packet's PSN; for a probe the cumulative acknowledgement of its answer."""
    order: int
    ev: int
    rtt_ns: int | None


class _Cause(NamedTuple):
    ev: int
    by_order: bool


class LossDetector:
    """Loss rules of one requestor."""

    def __init__(self, window: SendWindow, paths: PathSet) -> None:
        self._window = window
        self._paths = paths
        self._acked_order = np.full(len(paths.paths), -1, np.int64)
        self._causes: dict[int, _Cause] = {}
        self._probes: dict[int, tuple[int, int, int]] = {}
        self._probe_id = 0
        self._any_missing = False
        self.probes_sent = 0
        self.lost_packets = 0
        self.spurious_packets = 0
        self.deadline_ns = NEVER_NS
        """When a missing packet will be too late."""

    # What a SACK says.

    def new_probe(self, ev: int, now_ns: int) -> int:
        """Note that a reliability probe leaves now on this EV; return its id."""
        if len(self._probes) >= _PROBES_MAX:
            del self._probes[next(iter(self._probes))]
        self._probe_id = (self._probe_id + 1) & 0xFFFF
        self._probes[self._probe_id] = (ev, now_ns, self._window.order)
        self.probes_sent += 1
        return self._probe_id

    def trigger(self, sack: Sack, psn: int, now_ns: int) -> Trigger | None:
        """Return what caused a SACK; None for a probe or packet no longer remembered.

        A round trip is a valid sample when it is clear which transmission was answered: the only
        one, or the one retransmission.
        """
        window = self._window
        if sack.pr:
            probe = self._probes.pop(sack.ack_psn_offset, None)
            if probe is None:
                return None
            ev, sent_ns, order = probe
            return Trigger(psn, order, ev, now_ns - sent_ns)
        if not window.remembers(psn):
            return None
        at = window.index(psn)
        valid = int(window.retries[at]) == int(sack.rtx)
        rtt_ns = now_ns - int(window.sent_ns[at]) if valid else None
        order = int(window.orders[at]) if valid else 0
        return Trigger(psn, order, int(window.ev[at]), rtt_ns)

    def on_acked(self, acked: Acked) -> None:
        """Note how far each EV has delivered."""
        np.maximum.at(self._acked_order, acked.evs, acked.orders)

    def note_missing(self, sack: Sack, cack: int, base: int, trigger: Trigger) -> None:
        """Mark what the SACK did not have although it was sent before its trigger."""
        if not sack.ooo_count and not sack.pr:
            return
        window = self._window
        if sack.ooo_count:
            window.mark_missing(cack + 1, cack + 2, trigger.order)
            window.mark_missing(base, base + BITMAP_BITS, trigger.order)
        else:
            window.mark_missing(cack + 1, window.nxt, trigger.order)
        self._any_missing = True

    # The verdict.

    def detect(self, now_ns: int) -> list[int]:
        """Return the PSNs now found lost, oldest first."""
        self.deadline_ns = NEVER_NS
        if not self._any_missing:
            return []
        psns = self._window.missing()
        if not len(psns):
            self._any_missing = False
            return []
        at = psns & (self._window.size - 1)
        evs = self._window.ev[at]
        by_order = self._paths.fifo[evs] & (self._window.orders[at] < self._acked_order[evs])
        late_at = self._window.sent_ns[at] + self._paths.late_ns[evs]
        lost = by_order | (late_at <= now_ns)
        if not lost.all():
            self.deadline_ns = int(late_at[~lost].min())
        for psn, ev, order in zip(psns[lost], evs[lost], by_order[lost], strict=True):
            self._remember(int(psn), _Cause(int(ev), bool(order)))
        found: list[int] = psns[lost].tolist()
        self.lost_packets += len(found)
        return found

    def _remember(self, psn: int, cause: _Cause) -> None:
        if len(self._causes) >= _CAUSES_MAX:
            del self._causes[next(iter(self._causes))]
        self._causes[psn] = cause

    def was_called_lost(self, psn: int) -> bool:
        """Tell whether this packet was found lost by these rules, and not yet taken back."""
        return psn in self._causes

    def undo(self, psn: int, now_ns: int) -> bool:
        """Take a verdict back: the packet's first transmission has arrived."""
        cause = self._causes.pop(psn, None)
        if cause is None:
            return False
        self.spurious_packets += 1
        self._paths.on_spurious(cause.ev, now_ns, by_order=cause.by_order)
        return True
