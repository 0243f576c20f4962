"""The rules that hold after every wake-up of a host, one function each.

Each raises `CheckFailed`, with the name of the rule, when it does not hold. What the protocol keeps
to itself is looked at through the getters below, all in one place; nothing is changed.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np

from mrc.proto.config import Config
from mrc.proto.endpoint import CONTROL_QUEUE_MAX
from mrc.proto.loss import CAUSES_MAX, PROBES_MAX
from mrc.proto.paths import NEVER_NS
from mrc.proto.qp import QueuePair
from mrc.proto.requestor import Requestor
from mrc.proto.requests import AN_ID_MAX
from mrc.proto.responder import REPLIES_MAX, Responder
from mrc.proto.statistics import DropReason
from mrc.proto.window import LOST, SENT
from mrc.sim.connection import End
from mrc.sim.failure import CheckFailed
from mrc.sim.ledger import Ledger

_CREDIT_SLACK_BYTES = 2 * 256
"""Received bytes are told in units of 256, rounded up."""
RETRY_SHARE_MIN = 0.9
_FIRST_INTERVALS_MAX = 4
"""The first retransmission interval is at most that many T."""

ENDPOINT_LIMITS: tuple[tuple[str, int], ...] = (
    ("_control", CONTROL_QUEUE_MAX),
    ("_timers", 4096),
    ("requests", 256 * 256 * AN_ID_MAX),
    ("_events", 0),
)
"""What an endpoint holds between two wake-ups, and how much of it at most."""

QP_LIMITS: tuple[tuple[str, int], ...] = (
    ("requestor.loss._causes", CAUSES_MAX),
    ("requestor.loss._probes", PROBES_MAX),
    ("responder._requests", REPLIES_MAX),
    ("responder._nacks", REPLIES_MAX),
)
"""The same for a queue pair."""

time_of = attrgetter("_now_ns")
"""What an endpoint takes for the time: the latest it was ever told."""
duplicates_of = attrgetter("_counters.duplicates")
"""Packets that a responder had already."""
posted_of = attrgetter("_posted_psn")
"""PSN of the next packet that will be posted."""
immediates_of = attrgetter("_rqmsn", "_rqmsn_done", "_remote.immediates_max")
"""Writes with immediate that were posted, that are done, and how many may be in flight."""
held_until = attrgetter("_hold_until_ns")
"""Until when a requestor waits before it sends again what was refused; 0: it does not."""
queued_again = attrgetter("_lost")
"""PSNs that a requestor will send again."""

WINDOW_LIMITS = ("requestor._lost", "requestor.loss._missing", "responder._immediates")
"""What a queue pair holds of, at most, twice the PSNs of its window."""


def check_send_window(requestor: Requestor, where: str, *, thorough: bool) -> None:
    """Check a send window in itself."""
    window = requestor.window
    span = window.nxt - window.una
    if not 0 <= span <= window.size:
        raise CheckFailed("window", f"{where}: una {window.una}, next {window.nxt}")
    if not 0 <= window.outstanding <= span:
        raise CheckFailed("window", f"{where}: {window.outstanding} outstanding of {span}")
    nscc = requestor.nscc
    if not (nscc.cwnd >= min(nscc.p.mtu, nscc.max_wnd) and nscc.cwnd < 1 << 40):
        raise CheckFailed("window", f"{where}: cwnd {nscc.cwnd} bytes")
    if not window.outstanding and nscc.inflight_bytes:
        raise CheckFailed("in flight", f"{where}: {nscc.inflight_bytes} bytes of no packets")
    if not thorough:
        return
    at = np.arange(window.una, window.nxt) & (window.size - 1)
    states = window.state[at]
    waiting = int(np.count_nonzero((states == SENT) | (states == LOST)))
    if waiting != window.outstanding:
        raise CheckFailed("window", f"{where}: {window.outstanding} outstanding, not {waiting}")
    if span and states[0] not in (SENT, LOST):
        raise CheckFailed("window", f"{where}: una {window.una} is acknowledged")
    lost = {window.una + place for place in np.flatnonzero(states == LOST).tolist()}
    if not lost <= set(queued_again(requestor)):
        raise CheckFailed("window", f"{where}: a lost packet is not queued to be sent again")


def check_receive_window(responder: Responder, where: str, *, thorough: bool) -> None:
    """Check a receive window in itself."""
    window = responder.window
    span = window.max_psn - window.cack
    if not 0 <= span <= window.window_psns:
        raise CheckFailed("window", f"{where}: cack {window.cack}, highest {window.max_psn}")
    if not 0 <= window.ooo_count <= span:
        raise CheckFailed("window", f"{where}: {window.ooo_count} held of {span}")
    if window.ooo_count and (window.has(window.cack + 1) or not window.has(window.max_psn)):
        raise CheckFailed("window", f"{where}: cack {window.cack} is not where the first gap is")
    if thorough and span:
        held = sum(window.has(psn) for psn in range(window.cack + 1, window.max_psn + 1))
        if held != window.ooo_count:
            raise CheckFailed("window", f"{where}: {window.ooo_count} held, not {held}")


def check_belief(requestor: Requestor, responder: Responder, where: str, *, thorough: bool) -> None:
    """Check that a sender believes of the receiver nothing that is not so."""
    window, there = requestor.window, responder.window
    if window.una - 1 > there.cack:
        raise CheckFailed("belief", f"{where}: {window.una - 1} acknowledged, {there.cack} is so")
    if there.max_psn >= window.nxt:
        raise CheckFailed("belief", f"{where}: {there.max_psn} received, {window.nxt} not sent")
    if not thorough or not window.outstanding:
        return
    really = told_twice = 0
    for psn in range(window.una, window.nxt):
        at = window.index(psn)
        state = window.state[at]
        received = there.has(psn)
        if state not in (SENT, LOST) and not received:
            raise CheckFailed("belief", f"{where}: {psn} acknowledged, and not received")
        if state == SENT and not received:
            really += int(window.bytes[at])
        elif state == LOST and received:
            # Taken off when it was found lost, and again with the bytes received, until the sender
            # learns which packet those were.
            told_twice += int(window.bytes[at])
    if really > requestor.nscc.inflight_bytes + told_twice + _CREDIT_SLACK_BYTES:
        raise CheckFailed(
            "in flight", f"{where}: {requestor.nscc.inflight_bytes} bytes, {really} are"
        )


def check_timers(qp: QueuePair, requestor: Requestor, where: str) -> None:
    """Check that whoever waits for anything has a timer: nobody waits for ever."""
    if requestor.idle or requestor.failure is not None:
        return
    due_ns = requestor.next_deadline_ns()
    if due_ns >= NEVER_NS:
        raise CheckFailed("timer", f"{where}: work waits, and nothing is due")
    # What is known of round trips is shared by queue pairs, so one may learn from another that it
    # could have asked earlier. But a timeout never comes later than it should, by more than what
    # that knowledge makes of the first interval.
    patience_ns = _FIRST_INTERVALS_MAX * qp.config.timeout_ns
    sent_ns = int(requestor.window.sent_ns[requestor.window.index(requestor.window.una)])
    if requestor.retry.timeout_due(qp.armed_ns - patience_ns - 1, sent_ns):
        raise CheckFailed("timer", f"{where}: due at {due_ns}, woken at {qp.armed_ns}")


def check_eagerness(qp: QueuePair, requestor: Requestor, where: str) -> None:
    """Check that who has something to send and nothing in flight is held back by something else."""
    window = requestor.window
    unsent = posted_of(requestor) - window.nxt
    if requestor.failure is not None or not (unsent or queued_again(requestor)):
        return
    if window.outstanding:
        at = np.arange(window.una, window.nxt) & (window.size - 1)
        if np.any(window.state[at] == SENT):
            return
    else:
        posted, done, limit = immediates_of(requestor)
        if posted - done > limit:
            return
    assert qp.peer is not None
    held_back = held_until(requestor) or qp.peer.paths.unproved
    if not held_back and not any(path.busy for path in qp.peer.paths.paths):
        waits = f"{unsent} new packets and {window.outstanding} lost ones wait"
        raise CheckFailed("idle", f"{where}: {waits}, and none is in flight")


def check_backoff(requestor: Requestor, config: Config, local_ns: int, where: str) -> None:
    """Check that a queue pair has not counted more retries than the silence was long."""
    if requestor.idle or not requestor.window.outstanding:
        return
    _, retries, silent_ns = requestor.progress(local_ns)
    if silent_ns < int(RETRY_SHARE_MIN * retries * config.timeout_ns):
        raise CheckFailed("backoff", f"{where}: {retries} retries in {silent_ns} ns")


def check_duplicates(responder: Responder, ledger: Ledger, qpn: int, where: str) -> None:
    """Check that only what came before is taken for a duplicate."""
    came = ledger.of(qpn)
    again = came.writes - len(came.psns) + ledger.damaged
    if duplicates_of(responder) > again:
        raise CheckFailed("ledger", f"{where}: {duplicates_of(responder)} duplicates, not {again}")


def check_ledger(end: End, there: End) -> None:
    """Check that one direction's counters tell what was handed over, no more and no less.

    `sent = delivered + lost + trimmed + duplicate`: what the network lost, it has counted; here the
    rest is compared. Datagrams with flipped bits may have been taken for anything.
    """
    assert end.qp is not None and end.qp.requestor is not None  # noqa: PT018
    assert there.qp is not None and there.qp.responder is not None  # noqa: PT018
    where, data, feedback = end.name, there.host.ledger, end.host.ledger
    got, sent = there.qp.responder.statistics(), end.qp.requestor.statistics()
    came, answers = data.of(there.qp.qpn), feedback.of(end.qp.qpn)
    drops = end.host.endpoint.drops
    replayed = drops[DropReason.REPLAYED]
    unbelieved = drops[DropReason.STALE_ACK] + drops[DropReason.IMPOSSIBLE_ACK] + replayed
    for what, low, found, high in (
        ("packets placed", len(came.psns), got.packets_received, None),
        ("duplicates", None, got.packets_duplicate, came.writes - len(came.psns) + data.damaged),
        (
            "packets placed, duplicate or refused",
            came.writes - there.host.endpoint.drops[DropReason.REPLAYED],
            got.packets_received + got.packets_duplicate + got.nacks,
            came.writes + came.trimmed + data.damaged,
        ),
        ("trimmed packets", came.trimmed, got.packets_trimmed, came.trimmed + data.damaged),
        ("SACKs", answers.sacks - unbelieved, sent.sacks, answers.sacks + feedback.damaged),
        ("NACKs", answers.nacks - unbelieved, sent.nacks, answers.nacks + feedback.damaged),
    ):
        if not (low or 0) <= found <= (found if high is None else high):
            raise CheckFailed("ledger", f"{where}: {found} {what}, not {low or 0} to {high}")


def check_limits(holder: Any, limits: tuple[tuple[str, int], ...], where: str) -> None:
    """Check that containers hold no more than they may."""
    for name, limit in limits:
        held = len(attrgetter(name)(holder))
        if held > limit:
            raise CheckFailed("memory", f"{where}: {name} holds {held}, {limit} at most")
