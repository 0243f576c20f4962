"""Paths: the EVs towards one peer, which of them are used, and how dead ones come back.

An EV is a path through the fabric, named by plane, UDP source port and flow label. All queue pairs
to a peer share its EVs. Each plane has the same number of active ones; a withdrawn EV is replaced
by a backup of its own plane and probed until it answers again.

Reason for the length: selection, blame and recovery read and change the same state of the same EVs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mrc.proto.config import Config
from mrc.proto.ev import EV_PROBE_NS_MIN, TRANSITIONS, EvInput, Path
from mrc.proto.events import EvChanged, Event, EvState, PlaneProved, Random
from mrc.proto.rotation import Rotation, Shuffler
from mrc.proto.statistics import PathStatistics

NEVER_NS = 1 << 62
_MS = 1_000_000
FIRST_RTT_NS = 25 * _MS
"""Round trip that a plane without a sample is taken to need, so that a long one is not called dead.
"""
SLOW_ROUND_TRIPS = 2
"""A slow round trip is remembered for as many of its kind, twice that at most."""
REORDER_NS_MIN = 1 * _MS
"""Least lateness that counts as loss: a busy process is late by that much."""
REORDER_SCALE_MAX = 16
REORDER_CALM_NS = 1_000 * _MS
"""Without a spurious loss for that long, the reordering window halves again."""
REVERSE_CHECK_NS = 20 * _MS
REVERSE_PROBES_FAILED_MAX = 2
HEARD_NS_MIN = 10 * _MS
"""How long a plane counts as working after something came in on it."""
NEVER_HEARD_NS = -(1 << 62)
RELAPSE_NS = 2_000 * _MS
RELAPSES_MAX = 5
WORSE_FACTOR = 4
"""An EV that loses so many times what all lose together is a bad one, not an unlucky one."""
RECENT_PACKETS_MAX = 1 << 16
"""Packets after which the loss rates of the past count for half."""

_GOOD, _SKIP, _BAD, _DENIED = EvState.GOOD, EvState.SKIP, EvState.ASSUMED_BAD, EvState.DENIED
_USABLE = frozenset((_GOOD, _SKIP))


@dataclass(slots=True)
class _Suspicion:
    """When a suspect plane is probed next, and on which of its usable EVs."""

    probe_ns: int
    backoff_ns: int
    turn: int = 0


class PathSet:
    """All EVs of one peer: selection, blame, recovery, and the reverse set for control packets."""

    on_suspect: Callable[[int, int, int], None] | None = None
    """Called with a plane that has become suspect, when the lost packet was sent, and the time."""

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
        self._peer_id = peer_id
        self.paths = [Path(i, *ev) for i, ev in enumerate(evs)]
        self.planes = 1 + max(path.plane for path in self.paths)
        self._share = max(1, -(-config.paths // self.planes))
        for plane in range(self.planes):
            for path in [p for p in self.paths if p.plane == plane][self._share :]:
                path.active = False
        self.planes_down: dict[int, int] = {}
        """Planes with a port that is down: when the peer said so, NEVER_NS for a port of ours."""
        self._suspect: dict[int, _Suspicion] = {}
        """Planes on which a packet was lost and nothing sent since is known to have arrived: their
        EVs are passed over, and probed in turn, until something arrives."""
        self.unproved: set[int] = set()
        """Planes on which no probe was answered yet: anyone's address might have been named."""
        self._evs_of_plane = [
            np.array([path.index for path in self.paths if path.plane == plane])
            for plane in range(self.planes)
        ]
        self.heard_ns = [NEVER_HEARD_NS] * self.planes
        """Per plane: when something from the peer last came in on it."""
        self._usable = len(self.paths)
        self._recent_sent = self._recent_lost = 0
        self._bad: list[Path] = []
        self._rotation = Rotation([p for p in self.paths if p.active], Shuffler(rng))
        self._reverse: list[Path] = []
        self._reverse_cursor = 0
        self._reverse_check_ns = NEVER_NS
        self.srtt_ns = 0.0
        self.rttvar_ns = 0.0
        self.rtt_min_ns = NEVER_NS
        self.plane_rtt_min_ns = [config.base_rtt_ns or NEVER_NS] * self.planes
        """Per plane: smallest round trip of a whole packet, and no more than was given."""
        self.base_rtt_ns = 0
        """Largest of them; 0 before the first."""
        self.slow_rtt_ns = 0
        """Largest round trip of late, over all EVs."""
        self._slow_stretch = (0, 0, 0)
        """Begin of the present stretch of time, largest round trip in it and in the one before."""
        self.reorder_scale = 1
        self._spurious_ns = 0
        self._events = events
        self.acked_packets = np.zeros(len(self.paths), np.int64)
        self.fifo = np.ones(len(self.paths), np.bool_)
        """Per EV: packets on it have not been seen to overtake each other."""
        self._srtts_ns = [FIRST_RTT_NS] * len(self.paths)
        """Per EV: smoothed round trip of any packet; before the first, of its plane."""
        self._planes_heard: set[int] = set()
        self._rtt_mins_ns = [FIRST_RTT_NS] * self.planes
        """Per plane: smallest round trip of any packet, probes included."""
        self.confirmed_ns = np.full(len(self.paths), -1, np.int64)
        """Per EV: when something sent on it was last known to have arrived; -1 for never."""
        self._choose_reverse_set()

    def demand_proof(self, now_ns: int) -> None:
        """Let planes carry nothing but probes until one is answered, for addresses only claimed.

        Until the first one is proved, what the peer sends is answered wherever it says it is.
        """
        self.unproved = set(range(self.planes))
        self._suspect = {plane: _Suspicion(now_ns, EV_PROBE_NS_MIN) for plane in self.unproved}

    # Selection.

    def choose(self, avoid: int = -1) -> Path | None:
        """Return the EV for the next run: the next GOOD one of the rotation; None if all are busy.

        The first SKIP met becomes GOOD but is passed over; after one whole turn without another
        GOOD it is the one used (MRC 1.0 §11.2.2). EVs of suspect planes are used when there is
        nothing else.

        Args:
            avoid: index of an EV not to take if there is any other, as for a retransmission; then
                a backup will do.
        """
        reset: Path | None = None
        suspect: Path | None = None
        # The rest of this turn and the whole next one: nobody is missed.
        for _ in range(2 * len(self._rotation)):
            path = self._rotation.next()
            if path.busy or path.index == avoid or path.plane in self.unproved:
                continue
            if path.state is _GOOD:
                if path.plane not in self._suspect:
                    return path
                suspect = suspect or path
            elif path.state is _SKIP and reset is None and path.plane not in self._suspect:
                reset = path
                self._move(path, EvInput.ROTATED, "", 0)
        spares = self._spares(avoid) if avoid >= 0 or self._suspect else iter(())
        return reset or next(spares, None) or suspect or next(iter(self._not_busy(avoid)), None)

    def _spares(self, avoid: int) -> Iterator[Path]:
        """Yield the EVs of planes beyond suspicion that are good, in use or not, but for one."""
        for path in self.paths:
            good = path.state is _GOOD and path.plane not in self._suspect
            if good and path.index != avoid and not path.busy:
                yield path

    def _not_busy(self, avoid: int) -> list[Path]:
        """Return what can be sent on at all, best first: any state beats standing still."""
        able = [p for p in self._rotation if not p.busy and p.plane not in self.unproved]
        return sorted(able, key=lambda path: (path.state not in _USABLE, path.index == avoid))

    def choose_reverse(self, now_ns: int) -> Path:
        """Return the EV for the next control packet, taking turns among the reverse set.

        Planes on which the peer was heard of late are known to work, one way at least, and are
        preferred.
        """
        patience_ns = max(HEARD_NS_MIN, int(4 * self.srtt_ns))
        for _ in self._reverse:
            self._reverse_cursor = (self._reverse_cursor + 1) % len(self._reverse)
            path = self._reverse[self._reverse_cursor]
            heard = now_ns - self.heard_ns[path.plane] <= patience_ns
            if heard and not path.busy and path.plane not in self._suspect:
                return path
        self._reverse_cursor = (self._reverse_cursor + 1) % len(self._reverse)
        return self._reverse[self._reverse_cursor]

    def one_per_plane(self) -> list[Path]:
        """Return a usable EV of each plane that has one, is proved and is not down."""
        usable = [p for p in self.paths if p.state in _USABLE]
        usable = [p for p in usable if p.plane not in (*self.planes_down, *self.unproved)]
        return list({p.plane: p for p in usable}.values())

    @property
    def active_count(self) -> int:
        """EVs in the rotation."""
        return len(self._rotation)

    def _refill(self) -> None:
        """Never let the rotation be empty: rather bad EVs than none."""
        if not len(self._rotation):
            for path in [p for p in self.paths if p.state is not _DENIED] or self.paths:
                self._rotation.add(path)

    def _choose_reverse_set(self) -> None:
        """Take per plane the few usable EVs that are known best to work."""
        chosen: list[Path] = []
        claimed = self.unproved if len(self.unproved) < self.planes else ()
        for plane in [plane for plane in range(self.planes) if plane not in claimed]:
            usable = [p for p in self.paths if p.plane == plane and p.state in _USABLE]
            usable.sort(key=lambda p: (self.confirmed_ns[p.index] < 0, p.probes_failed, p.index))
            chosen += usable[: self._config.reverse_paths]
        self._reverse = chosen or list(self._rotation)

    # What happened to packets sent on them.

    def on_sent(self, path: Path, packets: int, *, retransmission: bool) -> None:
        """Count packets put on an EV."""
        path.sent_packets += packets
        path.recent_sent += packets
        self._recent_sent += packets
        if self._recent_sent > RECENT_PACKETS_MAX:
            self._forget_half()
        if retransmission:
            path.retransmitted_packets += packets

    def on_acked(self, evs: NDArray[np.uint16], now_ns: int) -> None:
        """Take note of packets that arrived, given by the EVs they were sent on."""
        if len(evs) == 1:
            self.acked_packets[evs[0]] += 1
        else:
            self.acked_packets += np.bincount(evs, minlength=len(self.paths))
        self.confirmed_ns[evs] = now_ns
        if self._suspect:
            for ev in evs.tolist():
                self._suspect.pop(self.paths[ev].plane, None)

    def on_whole_packet_rtt(self, path: Path, rtt_ns: int) -> bool:
        """Feed a round trip of a whole packet; tell whether the longest path's minimum changed.

        The base round trip of congestion control is that of one MTU packet over the longest path on
        the idle network: the largest of the smallest round trips seen on each plane. Not on each
        EV: one that is new would take the queues it meets for its length, and let them grow. So
        would who begins in a standing queue; what is given as the base round trip prevents it.
        """
        if rtt_ns >= self.plane_rtt_min_ns[path.plane]:
            return False
        self.plane_rtt_min_ns[path.plane] = rtt_ns
        known = [minimum for minimum in self.plane_rtt_min_ns if minimum != NEVER_NS]
        before, self.base_rtt_ns = self.base_rtt_ns, max(known)
        return self.base_rtt_ns != before

    def on_rtt(self, path: Path, rtt_ns: int, now_ns: int) -> None:
        """Feed a round trip of one EV (smoothing of RFC 6298)."""
        self.rtt_min_ns = min(self.rtt_min_ns, rtt_ns)
        path.srtt_ns, path.rttvar_ns = _smooth(path.srtt_ns, path.rttvar_ns, rtt_ns)
        self.srtt_ns, self.rttvar_ns = _smooth(self.srtt_ns, self.rttvar_ns, rtt_ns)
        if path.plane not in self._planes_heard:
            self._planes_heard.add(path.plane)
            for mate in self.paths:
                if mate.plane == path.plane:
                    self._srtts_ns[mate.index] = rtt_ns
        self._srtts_ns[path.index] = int(path.srtt_ns)
        self._rtt_mins_ns[path.plane] = min(self._rtt_mins_ns[path.plane], rtt_ns)
        begin_ns, slowest_ns, before_ns = self._slow_stretch
        if now_ns - begin_ns > SLOW_ROUND_TRIPS * max(self.slow_rtt_ns, REORDER_NS_MIN):
            begin_ns, slowest_ns, before_ns = now_ns, 0, slowest_ns
        slowest_ns = max(slowest_ns, rtt_ns)
        self._slow_stretch = begin_ns, slowest_ns, before_ns
        self.slow_rtt_ns = max(slowest_ns, before_ns)
        if self.reorder_scale > 1 and now_ns - self._spurious_ns > REORDER_CALM_NS:
            self.reorder_scale //= 2
            self._spurious_ns = now_ns

    def late_ns(self, ev: int, trigger_ev: int, rtt_ns: int | None) -> int:
        """Return how long after it was sent on an EV a missing packet counts as lost.

        It is measured against the slowest of all EVs: while queues build up, the round trip of one
        alone is too old to tell a packet that waits from one that is lost. And it is measured
        against what the SACK itself needed, which may have come back a long way.

        Args:
            ev: EV of the missing packet.
            trigger_ev: EV of the packet that caused the SACK in which it is missing.
            rtt_ns: its round trip, if known.
        """
        due_ns = max(self._srtts_ns[ev], self.slow_rtt_ns)
        if rtt_ns is not None:
            plane, trigger_plane = self.paths[ev].plane, self.paths[trigger_ev].plane
            longer_ns = self._rtt_mins_ns[plane] - self._rtt_mins_ns[trigger_plane]
            due_ns = max(due_ns, rtt_ns + max(longer_ns, 0))
        margin_ns = max(self.slow_rtt_ns // 4, int(2 * self.rttvar_ns), REORDER_NS_MIN)
        return due_ns + margin_ns * self.reorder_scale

    def on_lost(
        self, index: int, now_ns: int, *, alive: bool = False, sent_ns: int = NEVER_NS
    ) -> None:
        """Blame an EV for a packet lost without a trim.

        Args:
            index: the EV.
            now_ns: the time.
            sent_ns: when the packet was sent; where nothing on its plane is known to have arrived
                since, the whole plane is suspect.
            alive: a packet sent on it later has arrived. Then it is no dead path, and withdrawing
                it helps only if it loses more than the others: losses that fall on all EVs alike
                go on whichever is used.
        """
        path = self.paths[index]
        path.lost_packets += 1
        path.recent_lost += 1
        self._recent_lost += 1
        if not alive and self._silent_since(path.plane, sent_ns):
            pause_ns = self._probe_pause_ns()
            if path.plane not in self._suspect:
                self._suspect[path.plane] = _Suspicion(now_ns + pause_ns, pause_ns)
                if self.on_suspect is not None:
                    self.on_suspect(path.plane, sent_ns, now_ns)
        if not alive or self._is_worse(path):
            self.withdraw(path, now_ns, "loss")

    def doubt(self, plane: int, sent_ns: int, now_ns: int) -> bool:
        """Suspect a plane for what happened to another peer's packet on the same port.

        It is probed at once: a plane that is dead for the other peer alone is passed over for one
        round trip. One on which this peer was heard since is not doubted, nor is the last one.

        Args:
            plane: of this peer.
            sent_ns: when the packet was sent that the other one lost.
            now_ns: the time.

        Returns:
            Whether there is something to probe.
        """
        others = self.planes - len(self._suspect.keys() - {plane}) - 1
        if plane in self._suspect or self.heard_ns[plane] >= sent_ns or others < 1:
            return False
        self._suspect[plane] = _Suspicion(now_ns, self._probe_pause_ns())
        return True

    def _silent_since(self, plane: int, at_ns: int) -> bool:
        """Tell whether nothing on a plane is known to have arrived since a moment."""
        newest_ns = int(self.confirmed_ns[self._evs_of_plane[plane]].max())
        return self.planes > 1 and newest_ns < at_ns < NEVER_NS

    def on_marked(self, index: int) -> None:
        """Pass an EV over once: a mark is congestion, not failure."""
        path = self.paths[index]
        path.marked_packets += 1
        self._move(path, EvInput.CONGESTED, "", 0)

    def on_trimmed(self, index: int, *, skip: bool) -> None:
        """Count a trimmed packet; pass its EV over once if another could have spared it that."""
        path = self.paths[index]
        path.trimmed_packets += 1
        if skip:
            self._move(path, EvInput.CONGESTED, "", 0)

    def on_spurious(self, index: int, now_ns: int, *, by_order: bool) -> None:
        """Undo the blame for a loss that was none, and grow more patient."""
        path = self.paths[index]
        path.spurious_packets += 1
        self._suspect.pop(path.plane, None)
        if by_order:
            self.fifo[index] = False
        elif self.reorder_scale < REORDER_SCALE_MAX:
            self.reorder_scale *= 2
        self._spurious_ns = now_ns
        if path.state is _BAD and path.plane not in self.planes_down:
            self._recover(path, now_ns, "spurious loss")

    # Withdrawing and recovering.

    def withdraw(self, path: Path, now_ns: int, reason: str) -> None:
        """Take an EV out of use unless that would leave fewer than the floor; then probe it."""
        if self._usable <= max(1, min(self._config.floor, len(self.paths) - 1)) and (
            not self._has_better_plane(path)
        ):
            return
        if not self._move(path, EvInput.LOST, reason, now_ns):
            return
        relapsed = now_ns - path.recovered_ns < RELAPSE_NS and self._is_worse(path)
        path.relapses = min(path.relapses + 1, RELAPSES_MAX) if relapsed else 0
        path.probes_answered = 0
        pause_ns = self._probe_pause_ns()
        path.probe_ns = now_ns + pause_ns
        path.probe_backoff_ns = min(pause_ns << path.relapses, self._config.probe_interval_ns_max)
        self._bad.append(path)
        self._leave(path)

    def _probe_pause_ns(self) -> int:
        """Return the pause before the first probe: a round trip, but no longer than any pause.

        A process that was stopped has measured round trips of seconds, which no path needs.
        """
        return min(max(EV_PROBE_NS_MIN, int(self.srtt_ns)), self._config.probe_interval_ns_max)

    def _has_better_plane(self, path: Path) -> bool:
        """Tell whether an EV ends at a port that is down while another plane can be used."""
        return path.plane in self.planes_down and any(
            other.state in _USABLE and other.plane not in self.planes_down for other in self.paths
        )

    def _is_worse(self, path: Path) -> bool:
        """Tell whether an EV loses far more than all of them together do.

        Where losses fall on all EVs alike, harder conditions for coming back would only keep good
        EVs out.
        """
        return path.recent_lost * self._recent_sent > (
            WORSE_FACTOR * self._recent_lost * path.recent_sent
        )

    def _forget_half(self) -> None:
        """Let old losses and old packets count for half."""
        for path in self.paths:
            path.recent_sent //= 2
            path.recent_lost //= 2
        self._recent_sent = sum(path.recent_sent for path in self.paths)
        self._recent_lost = sum(path.recent_lost for path in self.paths)

    def _leave(self, path: Path) -> None:
        """Take an EV out of the rotation; a usable backup of its plane takes its place."""
        if path.active:
            for backup in self.paths:
                if not backup.active and backup.plane == path.plane and backup.state is _GOOD:
                    path.active, backup.active = False, True
                    self._rotation.add(backup)
                    break
        self._rotation.remove(path)
        self._refill()
        if path in self._reverse:
            self._choose_reverse_set()

    def _recover(self, path: Path, now_ns: int, reason: str) -> None:
        if not self._move(path, EvInput.PROBED, reason, now_ns):
            return
        self._bad.remove(path)
        path.recovered_ns = now_ns
        self._enter(path)

    def _enter(self, path: Path) -> None:
        """Put a usable EV into the rotation, or among the backups when its plane has its share."""
        mates = [p for p in self._rotation if p.plane == path.plane and p is not path]
        path.active = sum(mate.state in _USABLE for mate in mates) < self._share
        if path.active:
            self._rotation.add(path)
        if len(self._reverse) < self.planes * self._config.reverse_paths:
            self._choose_reverse_set()
        for other in [p for p in self._rotation if p.state not in _USABLE]:
            self._rotation.remove(other)

    def deny(self, index: int, *, denied: bool, now_ns: int) -> None:
        """Take an EV out of use, or give it back, by decision of a controller."""
        path = self.paths[index]
        if not self._move(path, EvInput.DENY if denied else EvInput.ALLOW, "controller", now_ns):
            return
        if path in self._bad:
            self._bad.remove(path)
        if denied:
            self._leave(path)
        else:
            self._enter(path)

    def plane_status(self, plane: int, *, up: bool, local: bool, now_ns: int) -> None:
        """Withdraw all EVs of a plane whose port is down, or probe them when it is up.

        Args:
            plane: the plane.
            up: whether the port at its end is up.
            local: our own port, of which only our kernel can say that it is up again; what the
                peer said of its port is refuted by an answered probe, in case its word got lost.
            now_ns: the time.
        """
        reason = f"{'local' if local else 'peer'} port {'up' if up else 'down'}"
        ours_is_down = self.planes_down.get(plane) == NEVER_NS
        if ours_is_down and not local:
            return
        if up:
            self.planes_down.pop(plane, None)
        else:
            self.planes_down[plane] = NEVER_NS if local else now_ns
        for path in self.paths:
            if path.plane != plane:
                continue
            if up and path.state is _BAD:
                path.probe_ns = now_ns
                path.probe_backoff_ns = EV_PROBE_NS_MIN
            elif not up:
                self.withdraw(path, now_ns, reason)

    def _move(self, path: Path, what: EvInput, reason: str, now_ns: int) -> bool:
        """Apply the transition table; tell whether the state changed."""
        after = TRANSITIONS.get((path.state, what))
        if after is None:
            return False
        before, path.state = path.state, after
        self._usable += (after in _USABLE) - (before in _USABLE)
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
        if not self._bad and not self._suspect:
            return self._reverse_check_ns
        bad = min((path.probe_ns for path in self._bad), default=NEVER_NS)
        suspect = min((doubt.probe_ns for doubt in self._suspect.values()), default=NEVER_NS)
        return min(bad, suspect, self._reverse_check_ns)

    def due_probes(self, now_ns: int) -> list[Path]:
        """Return the EVs to send EV probes on now."""
        due = []
        for path in self._bad:
            if path.probe_ns <= now_ns:
                due.append(path)
                path.probe_ns = now_ns + path.probe_backoff_ns
                path.probe_backoff_ns = min(
                    2 * path.probe_backoff_ns, self._config.probe_interval_ns_max
                )
        for plane, doubt in self._suspect.items():
            if doubt.probe_ns <= now_ns:
                due += self._probe_suspect(plane, doubt, now_ns)
        if self._reverse_check_ns <= now_ns:
            self._reverse_check_ns = NEVER_NS
            due += self._check_reverse(now_ns)
        return due

    def _probe_suspect(self, plane: int, doubt: _Suspicion, now_ns: int) -> list[Path]:
        """Return an EV of a suspect plane that nothing else probes, another one each time."""
        doubt.probe_ns = now_ns + doubt.backoff_ns
        doubt.backoff_ns = min(2 * doubt.backoff_ns, self._config.probe_interval_ns_max)
        usable = [p for p in self.paths if p.plane == plane and p.state in _USABLE]
        doubt.turn += 1
        return [usable[doubt.turn % len(usable)]] if usable else []

    def _check_reverse(self, now_ns: int) -> list[Path]:
        """Probe the reverse EVs; those silent several times while others answer are withdrawn."""
        confirmed = {p: int(self.confirmed_ns[p.index]) for p in self._reverse}
        heard = any(at >= 0 and now_ns - at < 4 * REVERSE_CHECK_NS for at in confirmed.values())
        due = []
        for path, at in confirmed.items():
            if at >= 0 and now_ns - at < REVERSE_CHECK_NS:
                continue
            if path.probes_failed >= REVERSE_PROBES_FAILED_MAX and heard:
                path.probes_failed = 0
                self.withdraw(path, now_ns, "reverse probes unanswered")
                continue
            path.probes_failed += 1
            due.append(path)
        return due

    def on_probe_answer(self, path: Path, sent_ns: int, now_ns: int) -> None:
        """Handle the answer to an EV probe; it refutes a port that was said to be down before."""
        if self.planes_down.get(path.plane, NEVER_NS) < sent_ns:
            del self.planes_down[path.plane]
        self.confirmed_ns[path.index] = now_ns
        self._suspect.pop(path.plane, None)
        if path.plane in self.unproved:
            self.unproved.discard(path.plane)
            self._choose_reverse_set()
            self._events.append(PlaneProved(self._peer_id, path.plane, now_ns))
        path.probes_failed = 0
        self.on_rtt(path, now_ns - sent_ns, now_ns)
        if path.state is _BAD and path.plane not in self.planes_down:
            path.probes_answered += 1
            if path.probes_answered >= self._config.recovery_successes + path.relapses:
                self._recover(path, now_ns, "probe answered")
            else:
                path.probe_ns = now_ns

    def statistics(self) -> tuple[PathStatistics, ...]:
        """Return one row per EV."""
        return tuple(
            p.statistics(int(self.acked_packets[p.index]), int(self.confirmed_ns[p.index]))
            for p in self.paths
        )


def _smooth(srtt_ns: float, rttvar_ns: float, sample_ns: int) -> tuple[float, float]:
    if srtt_ns == 0:
        return float(sample_ns), sample_ns / 2
    error = sample_ns - srtt_ns
    return srtt_ns + error / 8, rttvar_ns + (abs(error) - rttvar_ns) / 4
