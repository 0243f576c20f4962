"""The two state machines, pair by pair: queue pairs, and EVs (MRC 1.0 §11.2.2)."""

from __future__ import annotations

import itertools
import random
from collections import deque

import pytest

from mrc.errors import ConfigError
from mrc.proto.config import Config, QpAttributes
from mrc.proto.endpoint import Endpoint
from mrc.proto.ev import TRANSITIONS as EV_TRANSITIONS
from mrc.proto.ev import EvInput
from mrc.proto.events import EvChanged, Event, EvState, QpFailed, QpFailure
from mrc.proto.paths import PathSet
from mrc.proto.qp import TRANSITIONS as QP_TRANSITIONS
from mrc.proto.qp import QpInput, QpState, QueuePair
from tests.support.pair import Pair

QP_TABLE = """
            CREATE  CONNECT  ACTIVATE  FAIL   RESET
    RESET   INIT    -        -         -      -
    INIT    -       RTR      -         ERROR  RESET
    RTR     -       -        RTS       ERROR  RESET
    RTS     -       -        -         ERROR  RESET
    ERROR   -       -        -         -      RESET
"""
EV_TABLE = """
                 CONGESTED  LOST         ROTATED  PROBED  DENY    ALLOW
    GOOD         SKIP       ASSUMED_BAD  -        -       DENIED  -
    SKIP         -          ASSUMED_BAD  GOOD     -       DENIED  -
    ASSUMED_BAD  -          -            -        GOOD    DENIED  -
    DENIED       -          -            -        -       -       GOOD
"""


def cells(table: str) -> dict[tuple[str, str], str]:
    """Read a table of states after each pair of state and input; "-" is no transition."""
    head, *rows = [line.split() for line in table.strip().splitlines()]
    return {(row[0], what): cell for row in rows for what, cell in zip(head, row[1:], strict=True)}


QP_CELLS, EV_CELLS = cells(QP_TABLE), cells(EV_TABLE)


# Queue pairs.


def attributes(endpoint: Endpoint, qp: QueuePair) -> QpAttributes:
    """What a peer is told of a queue pair."""
    return endpoint.attributes(qp, (("10.0.0.2", 4971),), receive_buffer_bytes=1 << 20)


def test_qp_table_is_complete() -> None:
    """Every pair of state and input of a queue pair is in the table of these tests."""
    pairs = itertools.product(QpState, QpInput)
    assert set(QP_CELLS) == {(state.name, what.name) for state, what in pairs}


@pytest.mark.parametrize(("state", "what"), QP_CELLS)
def test_qp_transition(state: str, what: str) -> None:
    """An input moves a queue pair as the table says; where it says nothing it is an error."""
    qp = Endpoint(Config(), random.Random(1)).create_qp()
    qp.state = QpState[state]
    after = QP_CELLS[state, what]
    if after == "-":
        with pytest.raises(ConfigError, match=f"is in {state}; {what} is not possible"):
            qp.move(QpInput[what])
        assert qp.state is QpState[state]
    else:
        qp.move(QpInput[what])
        assert qp.state is QpState[after]
    assert ((QpState[state], QpInput[what]) in QP_TRANSITIONS) == (after != "-")


def test_qp_is_created_in_init() -> None:
    """A new queue pair is in INIT and neither receives nor sends."""
    qp = Endpoint(Config(), random.Random(1)).create_qp()
    assert qp.state is QpState.INIT
    assert not qp.can_receive
    assert qp.statistics() is None


def test_qp_receives_before_it_may_send() -> None:
    """Connected is ready to receive; only activated may it send, since the peer is ready then."""
    pair = Pair()
    qp = pair.a.endpoint.create_qp()
    local = attributes(pair.a.endpoint, qp)
    remote = attributes(pair.b.endpoint, pair.b.qp)
    pair.a.endpoint.connect_qp(qp, pair.a.peer, local, remote, pair.now_ns)
    assert qp.state is QpState.RTR
    assert qp.can_receive
    with pytest.raises(ConfigError, match="is in RTR, not RTS"):
        pair.a.endpoint.post_write(qp, b"x", 0, 1)
    qp.activate()
    assert pair.a.endpoint.post_write(qp, b"x", 0, 1) == 1


def test_qp_fails_once() -> None:
    """Going to ERROR tells the application once, however often it fails."""
    pair = Pair()
    for _ in range(3):
        pair.a.endpoint.fail_qp(pair.a.qp, QpFailure.LOCAL_CLOSE, pair.now_ns)
    assert pair.a.qp.state is QpState.ERROR
    failures = [event for event in pair.a.endpoint.poll() if isinstance(event, QpFailed)]
    assert [(f.qpn, f.failure) for f in failures] == [(pair.a.qp.qpn, QpFailure.LOCAL_CLOSE)]


def test_qp_that_never_connected_can_fail() -> None:
    """A queue pair in INIT fails with no numbers to tell."""
    endpoint = Endpoint(Config(), random.Random(1))
    qp: QueuePair = endpoint.create_qp()
    endpoint.fail_qp(qp, QpFailure.LOCAL_CLOSE, 5)
    assert endpoint.poll() == [QpFailed(qp.qpn, QpFailure.LOCAL_CLOSE, 0, 0, 0, "")]


def test_icrc_must_be_the_same_on_both_sides() -> None:
    """One side with and one without an iCRC could never understand each other."""
    pair = Pair()
    endpoint = Endpoint(Config(icrc=False), random.Random(1))
    remote = attributes(endpoint, endpoint.create_qp())
    qp = pair.a.endpoint.create_qp()
    local = attributes(pair.a.endpoint, qp)
    with pytest.raises(ConfigError, match="iCRC on and the other off"):
        pair.a.endpoint.connect_qp(qp, pair.a.peer, local, remote, 0)
    assert qp.state is QpState.INIT


# EVs.


def test_ev_table_is_complete() -> None:
    """Every pair of state and input of an EV is in the table of these tests."""
    pairs = itertools.product(EvState, EvInput)
    assert set(EV_CELLS) == {(state.name, what.name) for state, what in pairs}
    moves = {(s.name, w.name): after.name for (s, w), after in EV_TRANSITIONS.items()}
    assert moves == {pair: after for pair, after in EV_CELLS.items() if after != "-"}


PORT_0, PORT_1 = 50_000, 50_001
TO_STATE = {"GOOD": (), "SKIP": ("CONGESTED",), "ASSUMED_BAD": ("LOST",), "DENIED": ("DENY",)}


class TwoEvs:
    """Two EVs on one plane: the first is moved about, the second takes the traffic meanwhile."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        evs = [(0, PORT_0, 0), (0, PORT_1, 0)]
        config = Config(paths=2, backup_paths=0)
        self.paths = PathSet(config, random.Random(1), 1, evs, self.events)
        self.first = self.paths.paths[0]

    def happens(self, what: str) -> None:
        """Let an input happen in the way the protocol causes it."""
        match EvInput[what]:
            case EvInput.CONGESTED:
                self.paths.on_marked(0)
            case EvInput.LOST:
                self.paths.on_lost(0, 100)
            case EvInput.ROTATED:
                for _ in range(3):
                    self.paths.choose()
            case EvInput.PROBED:
                self.answer_probes()
            case EvInput.DENY:
                self.paths.deny(0, denied=True, now_ns=100)
            case EvInput.ALLOW:
                self.paths.deny(0, denied=False, now_ns=100)

    def answer_probes(self) -> None:
        """Answer whatever EV probes are due within a second."""
        for path in self.paths.due_probes(1_000_000_000):
            self.paths.on_probe_answer(path, 1_000_000_000, 1_000_040_000)


@pytest.mark.parametrize(("state", "what"), EV_CELLS)
def test_ev_transition(state: str, what: str) -> None:
    """An input moves an EV as the table says; where it says nothing the EV stays as it is."""
    evs = TwoEvs()
    for before in TO_STATE[state]:
        evs.happens(before)
    assert evs.first.state is EvState[state]
    evs.happens(what)
    after = EV_CELLS[state, what]
    assert evs.first.state is EvState[state if after == "-" else after]


def test_ev_events() -> None:
    """Withdrawal, return, denial and allowance are told with EV, reason and time; SKIP is not."""
    evs = TwoEvs()
    for what in ("CONGESTED", "ROTATED", "LOST", "PROBED", "DENY", "ALLOW"):
        evs.happens(what)
    good, bad, denied = EvState.GOOD, EvState.ASSUMED_BAD, EvState.DENIED
    assert list(evs.events) == [
        EvChanged(1, 0, 0, PORT_0, good, bad, "loss", 100),
        EvChanged(1, 0, 0, PORT_0, bad, good, "probe answered", 1_000_040_000),
        EvChanged(1, 0, 0, PORT_0, good, denied, "controller", 100),
        EvChanged(1, 0, 0, PORT_0, denied, good, "controller", 100),
    ]
    assert evs.first.changes == 4
