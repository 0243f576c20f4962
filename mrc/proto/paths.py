"""Paths: the EVs towards one peer, which of them are used, and how dead ones come back.

An EV is a path through the fabric, named by plane, UDP source port and flow label. All queue pairs
to a peer share its EVs. Each plane has the same number of active ones; a withdrawn EV is replaced
by a backup of its own plane and probed until it answers again.

States and what moves an EV between them are one table, `TRANSITIONS` (MRC 1.0 §11.2.2).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from mrc.proto.config import Config
from mrc.proto.events import EvChanged, Event, EvState, Random
from mrc.proto.statistics import PathStatistics

NEVER_NS = 1 << 62
_MS = 1_000_000
FIRST_RTT_NS = 50 * _MS
"""What an EV without a sample is taken to need at most, so that a slow path is not called dead."""
REORDER_NS_MIN = 1 * _MS
"""Least lateness that counts as loss: a busy process is late by that much."""
REORDER_SCALE_MAX = 16
PROBE_NS_MIN = 1 * _MS
REVERSE_CHECK_NS = 50 * _MS
REVERSE_PROBES_FAILED_MAX = 3
RELAPSE_NS = 2_000 * _MS
RELAPSES_MAX = 5
PROBES_OUTSTANDING_MAX = 256


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
    srtt_ns: float = 0.0
    rttvar_ns: float = 0.0
    confirmed_ns: int = -1
    """When something sent on it was last known to have arrived."""
    sent_packets: int = 0
    lost_packets: int = 0
    trimmed_packets: int = 0
    marked_packets: int = 0
    spurious_packets: int = 0
    retransmitted_packets: int = 0
    changes: int = 0
    withdrawn_ns: int = 0
    recovered_ns: int = -(1 << 62)
    relapses: int = 0
    probe_ns: int = NEVER_NS
    probe_backoff_ns: int = PROBE_NS_MIN
    probes_answered: int = 0
    probes_failed: int = 0

    @property
    def entropy(self) -> int:
        """The 32-bit EV: flow label's low half above the UDP source port."""
        return (self.flow_label << 16) | self.source_port


class PathSet:
    """All EVs of one peer: selection, blame, recovery, and the reverse set for control packets."""

    def __init__(
        self,
        config: Config,
        rng: Random,
        peer_id: int,
        evs: list[tuple[int, int, int]],
        events: deque[Event],
    ) -> None:
        """Make the EV profile.

        Args:
            config: `paths`, `backup_paths`, `paths_min` and the recovery settings.
            rng: shuffles the rotation.
            peer_id: goes into events.
            evs: (plane, source port, flow label), best first within each plane.
            events: where changes of state go.
        """
        self._config = config
        self._rng = rng
        self._peer_id = peer_id
        self.paths = [Path(i, *ev) for i, ev in enumerate(evs)]
        self.planes = 1 + max(path.plane for path in self.paths)
        self._share = max(1, -(-config.paths // self.planes))
        for plane in range(self.planes):
            for path in [p for p in self.paths if p.plane == plane][self._share :]:
                path.active = False
        self.planes_down: set[int] = set()
        self._rotation: list[Path] = []
        self._cursor = 0
        self._reverse: list[Path] = []
        self._reverse_cursor = 0
        self._reverse_check_ns = NEVER_NS
        self._probes: dict[int, tuple[Path, int]] = {}
        self._probe_id = 0
        self.srtt_ns = 0.0
        self.rttvar_ns = 0.0
        self.rtt_min_ns = NEVER_NS
        self.reorder_scale = 1
        self._events = events
        self.acked_packets = np.zeros(len(self.paths), np.int64)
        self.fifo = np.ones(len(self.paths), np.bool_)
        """Per EV: packets on it have not been seen to overtake each other."""
        self.late_ns = np.full(len(self.paths), FIRST_RTT_NS, np.int64)
        """Per EV: how long after sending a packet that is reported missing counts as lost."""
        self._shuffle()

    # Selection.

    def choose(self, avoid: int = -1) -> Path:
        """Return the EV for the next run: the next GOOD one of the rotation.

        The first SKIP met becomes GOOD but is passed over; after one whole turn without another
        GOOD it is the one used (MRC 1.0 §11.2.2).

        Args:
            avoid: index of an EV not to take if there is any other, as for a retransmission.
        """
        reset: Path | None = None
        fallback: Path | None = None
        for _ in range(len(self._rotation) + 1):
            if self._cursor >= len(self._rotation):
                self._shuffle()
            path = self._rotation[self._cursor]
            self._cursor += 1
            if path.state is _GOOD:
                if path.index != avoid:
                    return path
                fallback = path
            elif path.state is _SKIP and reset is None:
                reset = path
                self._move(path, EvInput.ROTATED, "", 0)
        return reset or fallback or self._rotation[0]

    def choose_reverse(self) -> Path:
        """Return the EV for the next control packet, taking turns among the reverse set."""
        self._reverse_cursor = (self._reverse_cursor + 1) % len(self._reverse)
        return self._reverse[self._reverse_cursor]

    def one_per_plane(self) -> list[Path]:
        """Return a usable EV of each plane that has one and is not down."""
        usable = [p for p in self.paths if p.state in (_GOOD, _SKIP)]
        usable = [p for p in usable if p.plane not in self.planes_down]
        return list({p.plane: p for p in usable}.values())

    @property
    def active_count(self) -> int:
        """EVs in the rotation."""
        return len(self._rotation)

    def _shuffle(self) -> None:
        """Start a new turn: the usable active EVs in a fresh pseudo-random order."""
        usable = [p for p in self.paths if p.active and p.state in (_GOOD, _SKIP)]
        pool = usable or [p for p in self.paths if p.state is not _DENIED] or self.paths
        for i in range(len(pool) - 1, 0, -1):
            j = int(self._rng.random() * (i + 1))
            pool[i], pool[j] = pool[j], pool[i]
        self._rotation = pool
        self._cursor = 0
        self._choose_reverse_set()

    def _choose_reverse_set(self) -> None:
        """Take per plane the few usable EVs that were confirmed last."""
        chosen: list[Path] = []
        for plane in range(self.planes):
            usable = [p for p in self.paths if p.plane == plane and p.state in (_GOOD, _SKIP)]
            usable.sort(key=lambda p: (p.confirmed_ns < 0, p.probes_failed, p.index))
            chosen += usable[: self._config.reverse_paths]
        self._reverse = chosen or self._rotation

    # What happened to packets sent on them.

    def on_sent(self, path: Path, packets: int, *, retransmission: bool) -> None:
        """Count packets put on an EV."""
        path.sent_packets += packets
        if retransmission:
            path.retransmitted_packets += packets

    def on_acked(self, evs: NDArray[np.uint16], now_ns: int) -> None:
        """Take note of packets that arrived, given by the EVs they were sent on."""
        counts = np.bincount(evs, minlength=len(self.paths))
        self.acked_packets += counts
        for index in np.flatnonzero(counts):
            self.paths[index].confirmed_ns = now_ns

    def on_rtt(self, path: Path, rtt_ns: int) -> None:
        """Feed a round trip of one EV (smoothing of RFC 6298)."""
        self.rtt_min_ns = min(self.rtt_min_ns, rtt_ns)
        path.srtt_ns, path.rttvar_ns = _smooth(path.srtt_ns, path.rttvar_ns, rtt_ns)
        self.srtt_ns, self.rttvar_ns = _smooth(self.srtt_ns, self.rttvar_ns, rtt_ns)
        self._update_late(path)

    def _update_late(self, path: Path) -> None:
        margin = max(4 * path.rttvar_ns, path.srtt_ns / 4, REORDER_NS_MIN) * self.reorder_scale
        self.late_ns[path.index] = int(path.srtt_ns + margin)

    def on_lost(self, index: int, now_ns: int, reason: str = "loss") -> None:
        """Blame an EV for a packet lost without a trim."""
        path = self.paths[index]
        path.lost_packets += 1
        self.withdraw(path, now_ns, reason)

    def on_congested(self, index: int, *, trimmed: bool) -> None:
        """Pass an EV over once: a mark or a trim is congestion, not failure."""
        path = self.paths[index]
        if trimmed:
            path.trimmed_packets += 1
        else:
            path.marked_packets += 1
        self._move(path, EvInput.CONGESTED, "", 0)

    def on_spurious(self, index: int, now_ns: int, *, by_order: bool) -> None:
        """Undo the blame for a loss that was none, and grow more patient."""
        path = self.paths[index]
        path.spurious_packets += 1
        if by_order:
            self.fifo[index] = False
        if path.state is _BAD:
            self._recover(path, now_ns, "spurious loss")
        if self.reorder_scale < REORDER_SCALE_MAX and not by_order:
            self.reorder_scale *= 2
            for other in self.paths:
                if other.srtt_ns:
                    self._update_late(other)

    # Withdrawing and recovering.

    def withdraw(self, path: Path, now_ns: int, reason: str) -> None:
        """Take an EV out of use unless that would leave fewer than the floor; then probe it."""
        usable = sum(p.state in (_GOOD, _SKIP) for p in self.paths)
        if usable <= min(self._config.floor, len(self.paths) - 1) or usable <= 1:
            return
        if not self._move(path, EvInput.LOST, reason, now_ns):
            return
        relapsed = now_ns - path.recovered_ns < RELAPSE_NS
        path.relapses = min(path.relapses + 1, RELAPSES_MAX) if relapsed else 0
        path.withdrawn_ns = now_ns
        path.probes_answered = 0
        path.probe_backoff_ns = max(PROBE_NS_MIN, int(self.srtt_ns)) << path.relapses
        path.probe_ns = now_ns + max(PROBE_NS_MIN, int(self.srtt_ns))
        if path.active:
            self._replace(path)
        self._shuffle()

    def _replace(self, path: Path) -> None:
        """Activate a usable backup of the same plane in place of a withdrawn EV."""
        for backup in self.paths:
            if not backup.active and backup.plane == path.plane and backup.state is _GOOD:
                path.active, backup.active = False, True
                return

    def _recover(self, path: Path, now_ns: int, reason: str) -> None:
        if not self._move(path, EvInput.PROBED, reason, now_ns):
            return
        path.recovered_ns = now_ns
        path.probe_ns = NEVER_NS
        in_plane = sum(
            p.active and p.plane == path.plane and p.state is not _BAD for p in self.paths
        )
        path.active = in_plane - path.active < self._share
        self._shuffle()

    def deny(self, index: int, *, denied: bool, now_ns: int) -> None:
        """Take an EV out of use, or give it back, by decision of a controller."""
        path = self.paths[index]
        if self._move(path, EvInput.DENY if denied else EvInput.ALLOW, "controller", now_ns):
            if denied and path.active:
                self._replace(path)
            self._shuffle()

    def plane_status(self, plane: int, *, up: bool, now_ns: int, reason: str) -> None:
        """Withdraw all EVs of a plane whose port is down, or probe them when it is up."""
        if up:
            self.planes_down.discard(plane)
        else:
            self.planes_down.add(plane)
        for path in self.paths:
            if path.plane != plane:
                continue
            if up and path.state is _BAD:
                path.probe_ns = now_ns
                path.probe_backoff_ns = PROBE_NS_MIN
            elif not up:
                self.withdraw(path, now_ns, reason)

    def _move(self, path: Path, what: EvInput, reason: str, now_ns: int) -> bool:
        """Apply the transition table; tell whether the state changed."""
        after = TRANSITIONS.get((path.state, what))
        if after is None:
            return False
        before, path.state = path.state, after
        if _SKIP not in (before, after) or after is _BAD or after is _DENIED:
            path.changes += 1
            self._events.append(
                EvChanged(
                    self._peer_id,
                    path.index,
                    path.plane,
                    path.source_port,
                    before,
                    after,
                    reason,
                    now_ns,
                )
            )
        return True

    # EV probes.

    def watch_reverse(self, now_ns: int) -> None:
        """Verify the reverse EVs soon: traffic comes in and nothing of ours confirms them."""
        if self._reverse_check_ns == NEVER_NS:
            self._reverse_check_ns = now_ns + REVERSE_CHECK_NS

    def next_deadline_ns(self) -> int:
        """Return when `due_probes` has something to do."""
        bad = min((p.probe_ns for p in self.paths if p.state is _BAD), default=NEVER_NS)
        return min(bad, self._reverse_check_ns)

    def due_probes(self, now_ns: int) -> list[tuple[Path, int]]:
        """Return (EV, request id's low byte) for the EV probes to send now."""
        due = []
        for path in self.paths:
            if path.state is _BAD and path.probe_ns <= now_ns:
                due.append((path, self._new_probe(path, now_ns)))
                path.probe_ns = now_ns + path.probe_backoff_ns
                path.probe_backoff_ns = min(
                    2 * path.probe_backoff_ns, self._config.probe_interval_ns_max
                )
        if self._reverse_check_ns <= now_ns:
            self._reverse_check_ns = NEVER_NS
            due += self._check_reverse(now_ns)
        return due

    def _new_probe(self, path: Path, now_ns: int) -> int:
        while len(self._probes) >= PROBES_OUTSTANDING_MAX:
            self._probes.pop(next(iter(self._probes)))
        self._probe_id = (self._probe_id + 1) & 0xFF
        self._probes.pop(self._probe_id, None)
        self._probes[self._probe_id] = (path, now_ns)
        return self._probe_id

    def _check_reverse(self, now_ns: int) -> list[tuple[Path, int]]:
        """Probe the reverse EVs; those silent several times while others answer are withdrawn."""
        heard = any(now_ns - p.confirmed_ns < 4 * REVERSE_CHECK_NS for p in self._reverse)
        due = []
        for path in list(self._reverse):
            if now_ns - path.confirmed_ns < REVERSE_CHECK_NS and path.confirmed_ns >= 0:
                continue
            if path.probes_failed >= REVERSE_PROBES_FAILED_MAX and heard:
                path.probes_failed = 0
                self.withdraw(path, now_ns, "reverse probes unanswered")
                continue
            path.probes_failed += 1
            due.append((path, self._new_probe(path, now_ns)))
        return due

    def on_probe_answer(self, probe_id: int, now_ns: int) -> bool:
        """Handle the answer to an EV probe; False when no such probe is outstanding."""
        found = self._probes.pop(probe_id, None)
        if found is None:
            return False
        path, sent_ns = found
        path.confirmed_ns = now_ns
        path.probes_failed = 0
        self.on_rtt(path, now_ns - sent_ns)
        if path.state is _BAD and path.plane not in self.planes_down:
            path.probes_answered += 1
            if path.probes_answered >= self._config.recovery_successes + path.relapses:
                self._recover(path, now_ns, "probe answered")
            else:
                path.probe_ns = now_ns
        return True

    def statistics(self) -> tuple[PathStatistics, ...]:
        """Return one row per EV."""
        return tuple(
            PathStatistics(
                index=p.index,
                plane=p.plane,
                source_port=p.source_port,
                flow_label=p.flow_label,
                state=p.state.value,
                active=p.active,
                sent_packets=p.sent_packets,
                acked_packets=int(self.acked_packets[p.index]),
                lost_packets=p.lost_packets,
                retransmitted_packets=p.retransmitted_packets,
                trimmed_packets=p.trimmed_packets,
                marked_packets=p.marked_packets,
                spurious_packets=p.spurious_packets,
                srtt_ns=int(p.srtt_ns),
                state_changes=p.changes,
                confirmed_ns=p.confirmed_ns,
            )
            for p in self.paths
        )


def _smooth(srtt_ns: float, rttvar_ns: float, sample_ns: int) -> tuple[float, float]:
    if srtt_ns == 0:
        return float(sample_ns), sample_ns / 2
    error = sample_ns - srtt_ns
    return srtt_ns + error / 8, rttvar_ns + (abs(error) - rttvar_ns) / 4
