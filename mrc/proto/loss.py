"""Which packets are lost, when packets of one connection overtake each other all the time.

A 0 bit in a SACK means nothing by itself. A packet is *missing* when a SACK did not have it that
was caused by a packet (or probe) sent later. A missing packet is *lost* when that SACK, or one
before it, had a packet sent later on the same EV, because a path is first-in-first-out; or when
that SACK came later than the slowest path and a margin allow. Where no SACK comes so late, a probe
asks for one. NACKs and timeouts are the requestor's own business.

What was called lost and then arrived is spurious: the EV is given back, and the rule that erred
trusts less from then on (that EV is no longer taken to keep order, or the margin doubles).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mrc.proto.paths import NEVER_NS, PathSet
from mrc.proto.window import FREE, Acked, SendWindow
from mrc.wire.control import Sack, timestamp

CAUSES_MAX = 4096
PROBES_MAX = 64


class Trigger(NamedTuple):
    """The packet or probe that caused a SACK, as we sent it."""

    psn: int
    """The packet's PSN; for a probe the cumulative acknowledgement of its answer."""
    order: int
    """Its place in the sending order; 0 when the SACK is stale and tells nothing."""
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
        self._missing: dict[int, tuple[Trigger, int]] = {}
        """What to decide about at the next `verdicts`; what caused the SACK that lacked it, and
        when that came."""
        self._probes: dict[int, tuple[int, int, int]] = {}
        self._probe_id = 0
        self.probes_sent = 0
        self.lost_packets = 0
        self.spurious_packets = 0
        self.deadline_ns = NEVER_NS
        """When a missing packet is so late that it is time to ask for it."""
        self.judged_ns = 0
        """When a SACK last told what is missing."""

    # What a SACK says.

    def new_probe(self, ev: int, now_ns: int) -> int:
        """Note that a reliability probe leaves now on this EV; return its id."""
        if len(self._probes) >= PROBES_MAX:
            del self._probes[next(iter(self._probes))]
        self._probe_id = (self._probe_id + 1) & 0xFFFF
        self._probes[self._probe_id] = (ev, now_ns, self._window.order)
        self.probes_sent += 1
        return self._probe_id

    def trigger(self, sack: Sack, psn: int, now_ns: int, *, stale: bool) -> Trigger | None:
        """Return what caused a SACK; None for a probe or packet no longer remembered.

        A round trip is a valid sample when it is clear that the latest transmission was answered,
        and for the first time. A stale SACK, built before one that is known, tells neither a round
        trip nor what is missing.
        """
        window = self._window
        news = True
        if sack.pr:
            probe = self._probes.pop(sack.ack_psn_offset, None)
            if probe is None:
                return None
            ev, sent_ns, order = probe
        elif window.remembers(psn):
            at = window.index(psn)
            ev, sent_ns, order = int(window.ev[at]), int(window.sent_ns[at]), int(window.orders[at])
            # The flag tells the first transmission from the next; of more than two, the time does.
            told = int(window.retries[at]) == int(sack.rtx) or (
                sack.rtx and sack.tx_timestamp == timestamp(sent_ns)
            )
            stale = stale or not told
            news = window.state[at] != FREE
        else:
            return None
        # A clock that stood still meanwhile has measured nothing.
        measured = news and not stale and now_ns > sent_ns
        rtt_ns = now_ns - sent_ns if measured else None
        return Trigger(psn, 0 if stale else order, ev, rtt_ns)

    def on_acked(self, acked: Acked) -> None:
        """Note how far each EV has delivered; of what was sent twice nobody knows which arrived."""
        start = self._window.index(acked.first_psn)
        if len(acked.orders) == 1:
            ev, order = acked.evs[0], acked.orders[0]
            if order > self._acked_order[ev] and not self._window.retries[start]:
                self._acked_order[ev] = order
            return
        again = self._window.retries[start : start + len(acked.orders)] > 0
        orders = np.where(again, -1, acked.orders)
        self._acked_order[acked.evs] = np.maximum(self._acked_order[acked.evs], orders)

    # The verdict.

    def note(self, sack: Sack, cack: int, base: int, trigger: Trigger, now_ns: int) -> None:
        """Mark what the SACK did not have although it was sent before its trigger."""
        # In order, only what was sent again or asks by itself comes later than what is missing.
        later = sack.pr or sack.rtx
        if not trigger.order or not (sack.ooo_count or later):
            return
        self.judged_ns = now_ns
        window, order = self._window, trigger.order
        self._acked_order[trigger.ev] = max(self._acked_order[trigger.ev], order)
        if later and sack.ooo_count == window.held:
            # All that the responder holds is known to us, so it has nothing else.
            missing = window.mark_missing(cack + 1, window.nxt, order)
        else:
            missing = window.mark_missing(cack + 1, min(cack + 2, base), order)
            missing += window.mark_missing(base, base + sack.sack_bitmap.bit_length(), order)
        for psn in missing:
            self._missing[psn] = trigger, now_ns

    def verdicts(self) -> list[int]:
        """Return the packets that are lost, oldest first.

        To be asked when all that has come in was heard: after a while without the processor several
        SACKs wait, and what is late by the first of them has arrived by the last.
        """
        if not self._missing:
            return []
        candidates, self._missing = self._missing, {}
        found = [
            psn
            for psn, (trigger, noted_ns) in sorted(candidates.items())
            if self._window.is_missing(psn) and self._is_lost(psn, trigger, noted_ns)
        ]
        self.lost_packets += len(found)
        return found

    def _is_lost(self, psn: int, trigger: Trigger, noted_ns: int) -> bool:
        """Tell whether a missing packet is lost; if it may yet come, note when to ask again."""
        at = self._window.index(psn)
        ev = int(self._window.ev[at])
        by_order = bool(self._paths.fifo[ev] and self._window.orders[at] < self._acked_order[ev])
        late_ns = self._paths.late_ns(ev, trigger.ev, trigger.rtt_ns)
        late_at_ns = int(self._window.sent_ns[at]) + late_ns
        if by_order or late_at_ns <= noted_ns:
            self._remember(psn, _Cause(ev, by_order))
            return True
        self.deadline_ns = min(self.deadline_ns, late_at_ns + int(self._paths.srtt_ns))
        return False

    def _remember(self, psn: int, cause: _Cause) -> None:
        if len(self._causes) >= CAUSES_MAX:
            del self._causes[next(iter(self._causes))]
        self._causes[psn] = cause

    def arrived_behind(self, psn: int) -> bool:
        """Tell whether a packet found lost was overtaken on its own EV."""
        cause = self._causes.get(psn)
        return cause is not None and cause.by_order

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
