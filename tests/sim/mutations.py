"""Ways to break the protocol that the simulator must notice: the proof that its checkers look.

Each is a small mistake that someone could make, named for what the protocol then does wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

from mrc.proto import dispatch, requestor, responder
from mrc.proto.endpoint import Endpoint
from mrc.proto.events import WriteDone
from mrc.proto.memory import MemoryTable
from mrc.proto.nscc import Nscc
from mrc.proto.paths import NEVER_NS, PathSet
from mrc.proto.requestor import Requestor
from mrc.proto.responder import Responder
from mrc.proto.retry import RetryTimer
from mrc.proto.window import Advance, ReceiveWindow
from mrc.proto.work import WorkQueue, WorkRequest
from mrc.wire.psn import PSN_MASK
from mrc.wire.runs import SegmentViews

Mutation = Callable[[], AbstractContextManager[Any]]


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def without_wrap(wire_psn: int, near: int) -> int:
    """Take a PSN for one of the same 2^24 as the last."""
    return near & ~PSN_MASK | wire_psn


def replaced(holder: Any, name: str, instead: Any) -> Mutation:
    """Put something else in the place of an attribute."""
    return lambda: patch.object(holder, name, instead)


def credited_twice() -> AbstractContextManager[Any]:
    """Take received bytes off what is in flight a second time."""
    original = Nscc.on_ack

    def on_ack(self: Nscc, size_bytes: int, now_ns: int, **rest: Any) -> None:
        original(self, size_bytes, now_ns, **rest)
        self.inflight_bytes -= size_bytes

    return patch.object(Nscc, "on_ack", on_ack)


def complete_when_sent(self: Requestor) -> bool:
    """Report what has been sent as done."""
    done = self._works.pop_done(self.window.nxt - 1)
    for work in done:
        self._events.append(WriteDone(self._qpn, work.work_id))
    return bool(done)


def immediates_at_once() -> AbstractContextManager[Any]:
    """Hand an immediate over when it arrives, whatever is missing before it."""
    original = Responder._accept  # noqa: SLF001

    def accept(self: Responder, header: Any, psn: int, count: int, *rest: Any) -> None:
        original(self, header, psn, count, *rest)
        if self._immediates:
            self._complete(Advance(psn, max(self._immediates), 0))

    return patch.object(Responder, "_accept", accept)


def forgetful_loss(self: Requestor, psn: int, now_ns: int, *, blame: bool = True) -> bool:
    """Find a packet lost, and not send it again."""
    return self.window.set_lost(psn)


def shifted_bitmap() -> AbstractContextManager[Any]:
    """Tell of packets as if each were the next one."""
    original = ReceiveWindow.bitmap

    def bitmap(self: ReceiveWindow) -> tuple[int, int]:
        base, bits = original(self)
        return base + bool(bits), bits

    return patch.object(ReceiveWindow, "bitmap", bitmap)


def icrc_unchecked() -> AbstractContextManager[Any]:
    """Believe every datagram."""
    stack = ExitStack()
    stack.enter_context(patch.object(dispatch, "check_icrc_untrusted", nothing))
    stack.enter_context(patch.object(SegmentViews, "is_icrc_right", lambda *_: True))
    stack.enter_context(patch.object(SegmentViews, "bad_icrcs", lambda *_: []))
    return stack


def deaf_to_loss_undone(self: Requestor, psn: int, now_ns: int, *, resent: bool) -> None:
    """Leave what was taken off for a loss that was none."""
    self.loss.undo(psn, now_ns)


def silent_probe() -> AbstractContextManager[Any]:
    """Answer a probe with a SACK, and not say again which messages are done."""
    original = Responder.receive_probe

    def receive_probe(self: Responder, *rest: Any) -> None:
        wanted = self._ack_wanted
        original(self, *rest)
        self._ack_wanted = wanted

    return patch.object(Responder, "receive_probe", receive_probe)


def backoff_kept() -> AbstractContextManager[Any]:
    """Go on counting retries when the window has moved."""

    def on_window_moved(self: RetryTimer, now_ns: int) -> None:
        self.progress_ns = self._step_ns = now_ns

    return patch.object(RetryTimer, "on_window_moved", on_window_moved)


def has_forgotten_the_past(self: ReceiveWindow, psn: int) -> bool:
    """Know only what is held above the cumulative acknowledgement."""
    return self.cack < psn <= self.max_psn and bool(self._held[psn & self._mask])


def last_first(self: WorkQueue, psn: int) -> list[WorkRequest]:
    """Report messages in the wrong order."""
    done: list[WorkRequest] = []
    while self._queue and self._queue[0].last_psn <= psn:
        done.insert(0, self._queue.pop(0))
    return done


MUTATIONS: dict[str, tuple[Mutation, int]] = {
    "NACKs are ignored": (replaced(Requestor, "on_nack", nothing), 40),
    "the receiver forgets the wrap": (replaced(responder, "from_wire", without_wrap), 20),
    "the sender forgets the wrap": (replaced(requestor, "from_wire", without_wrap), 20),
    "progress does not reset the backoff": (backoff_kept, 100),
    "a SACK is credited twice": (credited_twice, 40),
    "done when sent": (lambda: patch.object(Requestor, "_complete", complete_when_sent), 20),
    "immediates come out of order": (immediates_at_once, 40),
    "lost packets are not sent again": (replaced(Requestor, "_lose", forgetful_loss), 40),
    "the SACK bitmap is one off": (shifted_bitmap, 40),
    "the iCRC is not checked": (icrc_unchecked, 100),
    "an undone loss is not given back": (
        replaced(Requestor, "_undo_loss", deaf_to_loss_undone),
        100,
    ),
    "a lost Transport ACK is never repeated": (silent_probe, 100),
    "probes are not answered": (replaced(Responder, "receive_probe", nothing), 100),
    "nobody probes": (replaced(RetryTimer, "_probe_ns", lambda _: NEVER_NS), 100),
    "duplicates are placed again": (replaced(ReceiveWindow, "has", has_forgotten_the_past), 40),
    "completions come in another order": (replaced(WorkQueue, "pop_done", last_first), 40),
    "timers are not armed": (replaced(Endpoint, "_arm", nothing), 20),
    "withdrawn EVs never come back": (replaced(PathSet, "on_probe_answer", nothing), 40),
    "a closed region stays open": (replaced(MemoryTable, "deregister", nothing), 300),
    "gives up at the second timeout": (
        replaced(RetryTimer, "_exhausted", property(lambda self: self.count > 1)),
        100,
    ),
}
"""Name, and within how many seeds from 0 on it must be noticed."""
