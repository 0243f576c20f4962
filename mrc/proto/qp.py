"""A queue pair: its state, its two halves, and the attributes they were made from.

States are those of InfiniBand as far as MRC has them; `TRANSITIONS` is the whole machine, and what
is not in it is an error.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto

from mrc.errors import ConfigError
from mrc.proto.config import Config, QpAttributes
from mrc.proto.events import Event, QpFailed, QpFailure
from mrc.proto.memory import MemoryTable
from mrc.proto.nscc import Nscc, NsccParameters
from mrc.proto.paths import NEVER_NS
from mrc.proto.peer import Peer
from mrc.proto.requestor import Requestor
from mrc.proto.responder import Responder
from mrc.proto.statistics import Drops, QpStatistics
from mrc.wire.runs import OVERHEAD_BYTES, SEAL_BYTES
from mrc.wire.seal import Seal

BASE_RTT_NS_UNKNOWN = 200_000
"""Taken for the idle round trip before the first one is measured."""
_RECEIVE_BUFFER_SHARE = 2
"""The window takes at most this part of the peer's socket buffer: the kernel charges small packets
with two to three times their size."""


class QpState(Enum):
    """States of a queue pair."""

    RESET = "RESET"
    INIT = "INIT"
    RTR = "RTR"
    RTS = "RTS"
    ERROR = "ERROR"


class QpInput(Enum):
    """What moves a queue pair from state to state."""

    CREATE = auto()
    CONNECT = auto()
    """The peer's attributes are known: ready to receive."""
    ACTIVATE = auto()
    """The peer is ready to receive: ready to send."""
    FAIL = auto()
    RESET = auto()


_S, _I = QpState, QpInput

TRANSITIONS: dict[tuple[QpState, QpInput], QpState] = {
    (_S.RESET, _I.CREATE): _S.INIT,
    (_S.INIT, _I.CONNECT): _S.RTR,
    (_S.RTR, _I.ACTIVATE): _S.RTS,
    (_S.INIT, _I.FAIL): _S.ERROR,
    (_S.RTR, _I.FAIL): _S.ERROR,
    (_S.RTS, _I.FAIL): _S.ERROR,
    (_S.INIT, _I.RESET): _S.RESET,
    (_S.RTR, _I.RESET): _S.RESET,
    (_S.RTS, _I.RESET): _S.RESET,
    (_S.ERROR, _I.RESET): _S.RESET,
}


class QueuePair:
    """One connection's end. The endpoint feeds it packets and asks it for runs."""

    def __init__(
        self,
        *,
        config: Config,
        qpn: int,
        first_psn: int,
        memory: MemoryTable,
        drops: Drops,
        events: deque[Event],
    ) -> None:
        """Make a queue pair in INIT."""
        self.config = config
        self.qpn = qpn
        self.first_psn = first_psn
        self.state = TRANSITIONS[QpState.RESET, QpInput.CREATE]
        self.peer: Peer | None = None
        self.requestor: Requestor | None = None
        self.responder: Responder | None = None
        self.armed_ns = NEVER_NS
        """Earliest timer the endpoint holds for it."""
        self._memory = memory
        self._drops = drops
        self._events = events
        self.tag = 0
        """High byte of the request ids the peer puts into endpoint requests to us."""
        self.tag_user = ""
        """Who was given it."""
        self.remote_tag = 0
        """High byte of the request ids that we put into ours, when we name this queue pair."""
        self.segment_bytes = 0
        """Size of its whole packets, as they are in runs; 0 before it is connected."""
        self.seal: Seal | None = None
        """What its packets are sealed and opened with, if they are."""
        self._work_id = 0

    def move(self, what: QpInput) -> None:
        """Change state by the table.

        Raises:
            ConfigError: the table has no such transition.
        """
        after = TRANSITIONS.get((self.state, what))
        if after is None:
            raise ConfigError(
                f"queue pair {self.qpn:#08x} is in {self.state.value}; {what.name} is not possible"
            )
        self.state = after

    @property
    def failed(self) -> bool:
        """In ERROR: the other end may have forgotten it already."""
        return self.state is _S.ERROR

    @property
    def can_receive(self) -> bool:
        """In RTR or RTS; asked for every run, and a set of states would cost more than the rest."""
        return self.state is _S.RTS or self.state is _S.RTR

    def connect(
        self,
        peer: Peer,
        local: QpAttributes,
        remote: QpAttributes,
        seal: Seal | None,
        now_ns: int,
    ) -> None:
        """Go to RTR: both halves are made from what both sides told each other.

        Raises:
            ConfigError: not in INIT, or the attributes do not fit together.
        """
        if remote.icrc != self.config.icrc:
            raise ConfigError("one side has the iCRC on and the other off; set both the same")
        self.move(QpInput.CONNECT)
        self.peer = peer
        self.remote_tag = remote.endpoint_tag
        self.seal = seal
        mtu = min(local.mtu, remote.mtu)
        self.segment_bytes = mtu + OVERHEAD_BYTES + (SEAL_BYTES if seal is not None else 0)
        rates = [rate for rate in (local.link_bps, remote.link_bps) if rate]
        parameters = NsccParameters.derive(
            mtu=mtu,
            link_bps=min(rates, default=0),
            base_rtt_ns=self.config.base_rtt_ns or BASE_RTT_NS_UNKNOWN,
            measured=not self.config.base_rtt_ns,
            trimming=self.config.trimming,
            quick_adapt=self.config.quick_adapt,
            ack_trigger_bytes=self.config.sack_bytes,
            window_bytes_max=max(
                2 * mtu, peer.planes * remote.receive_buffer_bytes / _RECEIVE_BUFFER_SHARE
            ),
        )
        self.requestor = Requestor(
            config=self.config,
            local=local,
            remote=remote,
            peer=peer,
            nscc=Nscc(parameters, now_ns),
            drops=self._drops,
            events=self._events,
            now_ns=now_ns,
            sealer=seal.sealer if seal is not None else None,
        )
        self.responder = Responder(
            config=self.config,
            qpn=self.qpn,
            remote=remote,
            memory=self._memory,
            drops=self._drops,
            events=self._events,
        )

    def activate(self) -> None:
        """Go to RTS: the peer is ready to receive."""
        self.move(QpInput.ACTIVATE)

    def new_work_id(self) -> int:
        """Return the id of the next work request."""
        self._work_id += 1
        return self._work_id

    def fail(self, failure: QpFailure, now_ns: int) -> None:
        """Go to ERROR and tell the application once, with the numbers of the failure."""
        if self.state is QpState.ERROR:
            return
        self.move(QpInput.FAIL)
        psn, retries, silent_ns = (
            self.requestor.progress(now_ns) if self.requestor is not None else (0, 0, 0)
        )
        if self.peer is not None:
            self.peer.busy_qpns.discard(self.qpn)
        refused = self.requestor.last_fault if self.requestor is not None else None
        fault = refused.value if refused is not None else ""
        self._events.append(QpFailed(self.qpn, failure, psn, retries, silent_ns, fault))

    def next_deadline_ns(self) -> int:
        """Return when the queue pair has a timer due, or NEVER_NS."""
        if self.state is not QpState.RTS or self.requestor is None:
            return NEVER_NS
        return self.requestor.next_deadline_ns()

    def statistics(self) -> QpStatistics | None:
        """Return a snapshot, or None before the queue pair is connected."""
        if self.requestor is None or self.responder is None or self.peer is None:
            return None
        return QpStatistics(
            qpn=self.qpn,
            state=self.state.value,
            requestor=self.requestor.statistics(),
            responder=self.responder.statistics(),
            paths=self.peer.paths.statistics(),
        )
