"""EVs: which of them carry the traffic, which leave, and how they come back (MRC 1.0 §11.2)."""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrc.proto.config import Config
from mrc.proto.events import EvChanged, Event, EvState, PortStatusChanged
from mrc.proto.paths import PROBE_NS_MIN, EvInput, Path, PathSet
from mrc.proto.peer import evs_per_plane, pair_planes
from mrc.proto.rotation import Rotation, Shuffler
from mrc.proto.runs import PathFault
from mrc.wire.control import EndpointOp, EndpointResponse
from mrc.wire.fields import Opcode
from tests.support.filters import Tap, black_hole, data, from_b, lose, lose_nth, mark, on_ev, opcode
from tests.support.packets import Forger
from tests.support.pair import FIRST_EV_PORT, MS, US, Datagram, Pair, S

GOOD, SKIP, BAD, DENIED = EvState.GOOD, EvState.SKIP, EvState.ASSUMED_BAD, EvState.DENIED


def path_set(planes: int = 1, **config: Any) -> PathSet:
    """EVs of a peer with that many planes, no traffic on them."""
    settings = Config(**config)
    count = evs_per_plane(settings, planes)
    evs = [(plane, FIRST_EV_PORT + i, 0) for plane in range(planes) for i in range(count)]
    events: deque[Event] = deque()
    return PathSet(settings, random.Random(1), 1, evs, events)


def choose(paths: PathSet, count: int = 1) -> list[Path]:
    """Choose EVs for that many runs."""
    chosen = [paths.choose() for _ in range(count)]
    assert None not in chosen
    return [path for path in chosen if path is not None]


def active(paths: PathSet) -> list[int]:
    """Indexes of the EVs that one turn uses."""
    return sorted({path.index for path in choose(paths, 2 * paths.active_count)})


# The rotation.


def test_each_turn_uses_every_ev_once() -> None:
    """A turn goes through all active EVs, and the next one in another order."""
    paths = path_set(paths=8, backup_paths=0)
    turns = [tuple(path.index for path in choose(paths, 8)) for _ in range(10)]
    assert all(sorted(turn) == list(range(8)) for turn in turns)
    assert len(set(turns)) == 10


def test_ev_to_be_skipped_is_passed_over_once() -> None:
    """The first EV met in SKIP becomes GOOD but is not used; in the next turn it is."""
    paths = path_set(paths=4, backup_paths=0)
    paths.on_congested(2, trimmed=False)
    assert [p.index for p in choose(paths, 6)].count(2) <= 1
    assert paths.paths[2].state is GOOD
    assert sorted(p.index for p in choose(paths, 4)).count(2) <= 2


def test_one_skip_ends_per_choice() -> None:
    """Of several EVs in SKIP met in one choice the first becomes GOOD, the others stay."""
    paths = path_set(paths=4, backup_paths=0)
    for index in (0, 1, 2):
        paths.on_congested(index, trimmed=False)
    (first,) = choose(paths)
    assert first.index == 3
    assert sum(path.state is SKIP for path in paths.paths) >= 2


def test_all_to_be_skipped() -> None:
    """When all are in SKIP the one reset is used: traffic never stops, no special case."""
    paths = path_set(paths=4, backup_paths=0)
    for index in range(4):
        paths.on_congested(index, trimmed=False)
    (chosen,) = choose(paths)
    assert chosen.state is GOOD
    assert sum(path.state is SKIP for path in paths.paths) == 3


def test_retransmission_avoids_the_ev_that_failed() -> None:
    """The EV to avoid is not chosen as long as there is any other, whatever state that is in."""
    paths = path_set(paths=2, backup_paths=0)
    for _ in range(20):
        paths.on_congested(1, trimmed=False)
        chosen = paths.choose(avoid=0)
        assert chosen is not None
        assert chosen.index == 1


def test_only_ev_cannot_be_avoided() -> None:
    """With a single EV a retransmission takes it again."""
    paths = path_set(paths=1, backup_paths=0)
    assert paths.choose(avoid=0) is paths.paths[0]


def test_busy_ev_is_passed_over() -> None:
    """An EV whose local send buffer is full waits; when all are full nothing is chosen."""
    paths = path_set(paths=2, backup_paths=0)
    paths.paths[0].busy = True
    assert {path.index for path in choose(paths, 8)} == {1}
    paths.paths[1].busy = True
    assert paths.choose() is None


def test_marked_packets_move_the_traffic() -> None:
    """An EV whose packets are marked carries less than the others, and is never withdrawn."""
    pair = Pair(Config(mtu=1024, paths=4, backup_paths=0, spray_run=1, link_bps=400_000_000),
                planes=2, link_bps=200e6, filters=[mark(on_ev({FIRST_EV_PORT}, 0))])  # fmt: skip
    pair.transfer(bytes(1 << 20))
    sent = [path.sent_packets for path in pair.a.paths.paths]
    assert sent[0] < 0.7 * min(sent[1:])
    assert pair.a.paths.paths[0].marked_packets > 0
    assert pair.a.ev_changes() == []


members = st.lists(st.integers(0, 9), unique=True, min_size=1)


@given(start=members, steps=st.lists(st.tuples(st.sampled_from("nar"), st.integers(0, 9))))
def test_rotation_is_a_set(start: list[int], steps: list[tuple[str, int]]) -> None:
    """However members come and go, each turn gives those that are in, none twice."""
    rotation, model = Rotation(start, Shuffler(random.Random(1))), set(start)
    turn: list[int] = []
    for what, member in steps:
        if what == "a":
            rotation.add(member)
            model.add(member)
        elif what == "r" and len(model) > 1:
            rotation.remove(member)
            model.discard(member)
            turn = [m for m in turn if m != member]
        elif what == "n":
            found = rotation.next()
            turn = [] if found in turn else turn
            turn.append(found)
            assert found in model
        assert set(rotation) == model
        assert len(rotation) == len(model)
    assert set(turn) <= model


# Planes and backups.


@pytest.mark.parametrize(
    ("planes", "count", "backups", "share", "spare"),
    [(1, 16, 4, 16, 4), (4, 16, 4, 4, 1), (4, 10, 0, 3, 0), (8, 4, 1, 1, 1), (3, 16, 4, 6, 2)],
)
def test_planes_have_equal_shares(
    planes: int, count: int, backups: int, share: int, spare: int
) -> None:
    """Every plane has the same number of active EVs and of backups, at least one active."""
    paths = path_set(planes, paths=count, backup_paths=backups)
    by_plane = Counter((path.plane, path.active) for path in paths.paths)
    assert {by_plane[plane, True] for plane in range(planes)} == {share}
    assert {by_plane[plane, False] for plane in range(planes)} == {spare}


def test_backup_of_the_same_plane_takes_over() -> None:
    """A withdrawn EV is replaced by a backup of its own plane, as long as there is one."""
    paths = path_set(2, paths=4, backup_paths=2)
    assert active(paths) == [0, 1, 3, 4]
    paths.on_lost(3, 0)
    assert active(paths) == [0, 1, 4, 5]
    paths.on_lost(4, 0)
    assert active(paths) == [0, 1, 5]


def test_withdrawn_backup_does_not_take_over() -> None:
    """A backup that was found bad itself replaces nobody."""
    paths = path_set(paths=2, backup_paths=1)
    paths.on_lost(2, 0)
    paths.on_lost(0, 0)
    assert active(paths) == [1]


def test_returning_ev_is_a_backup_when_its_place_is_taken() -> None:
    """An EV that comes back serves where its plane lacks one, otherwise it waits."""
    paths = path_set(paths=2, backup_paths=1)
    paths.on_lost(0, 0)
    assert active(paths) == [1, 2]
    paths.on_probe_answer(paths.paths[0], 0, 100)
    assert (paths.paths[0].state, active(paths)) == (GOOD, [1, 2])
    paths.on_lost(1, 200)
    assert active(paths) == [0, 2]
    paths.on_lost(2, 300)
    paths.on_probe_answer(paths.paths[1], 300, 400)
    assert active(paths) == [0, 1]


def test_planes_are_paired_in_order() -> None:
    """Both sides come to the same pairs; the shorter list is gone through again."""
    local, remote = [(0, "a1"), (1, "a2")], (("b1", 1), ("b2", 2), ("b3", 3))
    assert pair_planes(local, remote) == [
        (0, "a1", ("b1", 1)), (1, "a2", ("b2", 2)), (0, "a1", ("b3", 3)),
    ]  # fmt: skip
    reverse = pair_planes(list(enumerate(["b1", "b2", "b3"])), (("a1", 1), ("a2", 2)))
    assert [(host, peer[0]) for _, host, peer in reverse] == [
        ("b1", "a1"), ("b2", "a2"), ("b3", "a1"),
    ]  # fmt: skip


# The floor.


@pytest.mark.parametrize(("count", "floor"), [(8, 2), (8, 8), (8, 1), (4, 100), (2, 1), (1, 1)])
def test_floor(count: int, floor: int) -> None:
    """Never fewer than `paths_min` EVs are usable, but also never all unusable, nor none given up.

    A floor above the number of EVs would mean that a dead one is never left: one may always go.
    """
    paths = path_set(paths=count, backup_paths=0, paths_min=floor)
    for index in range(count):
        paths.on_lost(index, 0)
    usable = sum(path.state is GOOD for path in paths.paths)
    assert usable == max(1, min(floor, count - 1))


def test_floor_is_a_quarter_by_default() -> None:
    """Without a setting a quarter of the EVs stays, whatever is lost."""
    assert [Config(paths=n).floor for n in (1, 3, 4, 16, 100)] == [1, 1, 1, 4, 25]


def test_uniform_loss_does_not_collapse() -> None:
    """Losses that fall on all EVs alike leave enough of them in use, and the transfer goes on."""
    config = Config(mtu=1024, paths=8, link_bps=800_000_000)
    pair = Pair(config, planes=2, link_bps=400e6, filters=[lose(0.05)])
    sent = pair.rng.randbytes(1 << 20)
    started_ns = pair.now_ns
    assert pair.transfer(sent) == sent
    assert 8 * len(sent) / (pair.now_ns - started_ns) > 0.2
    assert pair.a.requestor.statistics().timeouts == 0


# Probes and recovery.


def probe_times(paths: PathSet, index: int, until_ns: int) -> list[int]:
    """Let time go by and note when the EV is probed."""
    times = []
    while (now_ns := paths.next_deadline_ns()) <= until_ns:
        times += [now_ns for path in paths.due_probes(now_ns) if path.index == index]
    return times


def test_withdrawn_ev_is_probed_with_capped_patience() -> None:
    """The first probe leaves after 1 ms at least, further ones after twice the time, 250 ms at most."""
    paths = path_set(paths=4)
    paths.on_lost(0, 0)
    times = [0, *probe_times(paths, 0, 1_200 * MS)]
    gaps = [(b - a) // MS for a, b in itertools.pairwise(times)]
    assert gaps == [1, 1, 2, 4, 8, 16, 32, 64, 128, 250, 250, 250]


def test_first_probe_waits_a_round_trip() -> None:
    """Where a round trip takes longer than 1 ms the first probe leaves after one."""
    paths = path_set(paths=4)
    paths.on_rtt(paths.paths[0], 7 * MS, 0)
    paths.on_lost(0, 100)
    assert paths.next_deadline_ns() == 100 + 7 * MS


def test_probe_cap_is_a_setting() -> None:
    """`probe_interval_ns_max` bounds the pause between probes."""
    paths = path_set(paths=4, probe_interval_ns_max=5 * MS)
    paths.on_lost(0, 0)
    times = probe_times(paths, 0, 100 * MS)
    assert times[-1] - times[-2] == 5 * MS


def test_answer_brings_the_ev_back() -> None:
    """One answered probe is enough for an EV that does not flap."""
    paths = path_set(paths=4)
    paths.on_lost(0, 0)
    paths.on_probe_answer(paths.paths[0], 0, 100)
    assert paths.paths[0].state is GOOD
    assert paths.next_deadline_ns() > 10 * S


def test_number_of_answers_is_a_setting() -> None:
    """`recovery_successes` probes must be answered, and each answer is followed by the next probe."""
    paths = path_set(paths=4, recovery_successes=3)
    paths.on_lost(0, 0)
    for answer in range(3):
        assert paths.paths[0].state is BAD
        assert paths.due_probes(10 * MS + answer) == [paths.paths[0]]
        paths.on_probe_answer(paths.paths[0], 0, 10 * MS + answer)
    assert paths.paths[0].state is GOOD


def test_flapping_ev_must_answer_more() -> None:
    """An EV that fails again soon after it came back needs one answer more each time, up to six."""
    paths = path_set(paths=8)
    path, now_ns, needed = paths.paths[0], 0, []
    paths.on_sent(path, 1, retransmission=False)
    paths.on_sent(paths.paths[1], 1000, retransmission=False)
    for _ in range(8):
        paths.on_lost(0, now_ns)
        answers = 0
        while path.state is BAD:
            now_ns += 1 * MS
            answers += 1
            paths.on_probe_answer(path, now_ns, now_ns)
        needed.append(answers)
    assert needed == [1, 2, 3, 4, 5, 6, 6, 6]
    paths.on_lost(0, now_ns + 3 * S)
    paths.on_probe_answer(path, now_ns, now_ns + 3 * S)
    assert path.state is GOOD


def test_uniform_loss_is_no_flapping() -> None:
    """Where all EVs lose alike nobody has to answer more: it would only keep good EVs out."""
    paths = path_set(paths=8)
    for path in paths.paths:
        paths.on_sent(path, 100, retransmission=False)
    for now_ns in range(0, 10 * MS, 1 * MS):
        for path in paths.paths:
            paths.on_lost(path.index, now_ns)
            paths.on_probe_answer(path, now_ns, now_ns + 10)
    assert {path.relapses for path in paths.paths} == {0}


def test_probe_on_the_wire() -> None:
    """An EV probe is an Endpoint Request to QP 2 on the EV, answered in the control class."""
    asked, answered = Tap(opcode(Opcode.ENDPOINT_REQUEST)), Tap(opcode(Opcode.ENDPOINT_RESPONSE))
    pair = Pair(Config(paths=4), filters=[asked, answered])
    path = pair.a.paths.paths[1]
    pair.a.paths.withdraw(path, pair.now_ns, "test")
    pair.a.endpoint.after_feedback(pair.a.qp, pair.now_ns)
    pair.run(lambda: path.state is GOOD)
    (request,), (response,) = asked.datagrams, answered.datagrams
    assert (request.source_port, request.tos) == (path.source_port, 0 << 2 | 2)
    assert response.tos == pair.config.dscp.control << 2
    assert int.from_bytes(response.data[5:8], "big") == 2
    assert response.psn & 0xFFFF == request.psn & 0xFFFF


def test_answer_that_was_not_asked() -> None:
    """An answer to no probe, to another operation or from a stranger brings no EV back."""
    pair = Pair(Config(paths=4))
    path = pair.a.paths.paths[1]
    pair.a.paths.withdraw(path, pair.now_ns, "test")
    pair.a.endpoint.after_feedback(pair.a.qp, pair.now_ns)
    pair.filters.append(black_hole(lambda _: True))
    tap = Tap(opcode(Opcode.ENDPOINT_REQUEST))
    pair.filters.insert(0, tap)
    pair.run(lambda: bool(tap.datagrams))
    request_id = tap.datagrams[0].psn & 0xFFFF
    forger = Forger(pair, 0)
    forger.deliver(EndpointResponse(request_id + 1, EndpointOp.EV_PROBE).encode())
    forger.deliver(EndpointResponse(request_id, EndpointOp.PORT_STATUS_UPDATE).encode())
    answer = EndpointResponse(request_id, EndpointOp.EV_PROBE).encode()
    forger.deliver(answer, host="10.9.9.9")
    assert path.state is BAD
    forger.deliver(answer)
    assert path.state is GOOD
    forger.deliver(answer)
    assert sum(pair.a.dropped().values()) == 4


# Controllers.


def test_denied_ev_carries_nothing() -> None:
    """A denied EV is replaced, not probed, and used again only when allowed."""
    paths = path_set(paths=2, backup_paths=1)
    paths.deny(0, denied=True, now_ns=0)
    assert active(paths) == [1, 2]
    assert paths.next_deadline_ns() > 10 * S
    paths.on_probe_answer(paths.paths[0], 0, 100)
    assert paths.paths[0].state is DENIED
    paths.deny(0, denied=False, now_ns=200)
    assert paths.paths[0].state is GOOD


def test_denied_twice_is_denied_once() -> None:
    """Denying a denied EV and allowing a good one change nothing."""
    paths = path_set(paths=2, backup_paths=0)
    for _ in range(2):
        paths.deny(0, denied=True, now_ns=0)
    assert active(paths) == [1]
    for _ in range(2):
        paths.deny(0, denied=False, now_ns=0)
    assert active(paths) == [0, 1]
    assert paths.paths[0].changes == 2


def test_denied_bad_ev_is_no_longer_probed() -> None:
    """A withdrawn EV that is denied waits for the controller, not for an answer."""
    paths = path_set(paths=2, backup_paths=0)
    paths.on_lost(0, 0)
    paths.deny(0, denied=True, now_ns=0)
    assert paths.next_deadline_ns() > 10 * S


def test_bad_evs_are_better_than_none() -> None:
    """With the last usable EV denied, withdrawn ones carry the traffic until one comes back."""
    paths = path_set(paths=2, backup_paths=1)
    paths.on_lost(0, 0)
    paths.on_lost(1, 0)
    paths.deny(2, denied=True, now_ns=0)
    assert active(paths) == [0, 1]
    paths.on_probe_answer(paths.paths[1], 0, 100)
    assert active(paths) == [1]


def test_deny_through_the_endpoint() -> None:
    """`Endpoint.deny` takes an EV of a peer out of use; no data packet takes it any more."""
    tap = Tap()
    pair = Pair(Config(mtu=1024, paths=4), filters=[tap])
    pair.a.endpoint.deny(pair.a.peer, 1, denied=True, now_ns=pair.now_ns)
    pair.transfer(bytes(1 << 18))
    used = {datagram.source_port - FIRST_EV_PORT for datagram in tap.datagrams}
    assert 1 not in used
    assert 4 in used


# Ports.


def test_local_port_down() -> None:
    """EVs of a plane whose port goes down leave at once, and the transfer goes on without them."""
    tap = Tap()
    config = Config(mtu=1024, paths=4, link_bps=400_000_000)
    pair = Pair(config, planes=2, link_bps=200e6, filters=[tap])
    work, target = pair.post(b"\x01" * (1 << 20))
    pair.run_for(5 * MS)
    pair.filters.append(black_hole(lambda d: d.plane == 0))
    pair.a.endpoint.port_status(0, up=False, now_ns=pair.now_ns)
    tap.datagrams.clear()
    pair.run(lambda: pair.done(work))
    assert target == b"\x01" * (1 << 20)
    assert {datagram.plane for datagram in tap.datagrams} == {1}
    reasons = {change.reason for change in pair.a.ev_changes()}
    assert reasons <= {"local port down", "loss"}


def test_port_status_reaches_the_peer() -> None:
    """A port going down is told to the peer over the planes that work; it leaves that plane."""
    pair = Pair(Config(paths=4), planes=2)
    pair.a.endpoint.port_status(1, up=False, now_ns=pair.now_ns)
    pair.run_for(1 * MS)
    (change,) = (event for event in pair.b.events if isinstance(event, PortStatusChanged))
    assert change.mask == 0b01
    assert {path.plane for path in pair.b.paths.paths if path.state is BAD} == {1}
    assert {event.reason for event in pair.b.ev_changes()} == {"peer's port down"}
    assert all(path.state is GOOD for path in pair.b.paths.paths if path.plane == 0)


def test_port_comes_back() -> None:
    """When the port is up again its EVs are probed at once on both sides, and used."""
    pair = Pair(Config(paths=4), planes=2)
    pair.filters.append(black_hole(lambda d: d.plane == 1))
    pair.a.endpoint.port_status(1, up=False, now_ns=pair.now_ns)
    pair.run_for(300 * MS)
    pair.filters.clear()
    up_ns = pair.now_ns
    pair.a.endpoint.port_status(1, up=True, now_ns=pair.now_ns)
    for side in pair.sides:
        pair.run(lambda side=side: all(p.state is GOOD for p in side.paths.paths))  # type: ignore[misc]
    assert pair.now_ns - up_ns < 1 * MS


def test_lost_port_status_is_repeated() -> None:
    """The update is told again, each after twice the time, until the peer confirms it."""
    pair = Pair(Config(paths=4), planes=2)
    tap = Tap(lambda d: d.sender == 0 and d.opcode == Opcode.ENDPOINT_REQUEST and d.plane == 0)
    pair.filters[:] = [tap, lose_nth({0, 1, 2}, tap._match)]  # noqa: SLF001 - the same ones
    pair.a.endpoint.port_status(1, up=False, now_ns=pair.now_ns)
    pair.run(lambda: bool(pair.b.paths.planes_down))
    times = [datagram.sent_ns for datagram in tap.datagrams]
    assert [(b - a) // MS for a, b in itertools.pairwise(times)] == [5, 10, 20]
    pair.run_for(1 * S)
    assert len(tap.datagrams) == 4


def test_port_down_counts_more_than_the_floor() -> None:
    """EVs of a port that is down leave even below the floor, as long as another plane works."""
    paths = path_set(2, paths=4, backup_paths=0, paths_min=4)
    paths.plane_status(0, up=False, now_ns=0, reason="down")
    assert active(paths) == [2, 3]


def test_all_ports_down() -> None:
    """With every port said to be down the last EVs stay: it may be a mistake."""
    paths = path_set(2, paths=4, backup_paths=0)
    for plane in range(2):
        paths.plane_status(plane, up=False, now_ns=0, reason="down")
    assert len(active(paths)) == 1
    assert paths.one_per_plane() == []


def test_spurious_loss_does_not_bring_back_a_port_that_is_down() -> None:
    """An EV of a port that is down stays out, whatever arrives late."""
    paths = path_set(2, paths=4, backup_paths=0)
    paths.plane_status(0, up=False, now_ns=0, reason="down")
    paths.on_spurious(0, 10, by_order=True)
    assert paths.paths[0].state is BAD


def test_answered_probe_refutes_a_port_said_to_be_down() -> None:
    """An EV that answers a probe sent after the port was said to be down is believed."""
    paths = path_set(2, paths=4, backup_paths=0)
    paths.plane_status(0, up=False, now_ns=1000, reason="down")
    paths.on_probe_answer(paths.paths[0], 900, 1100)
    assert paths.paths[0].state is BAD
    paths.on_probe_answer(paths.paths[0], 1200, 1300)
    assert paths.paths[0].state is GOOD


# What the local kernel says.


@pytest.mark.parametrize("fault", list(PathFault))
def test_refused_run(fault: PathFault) -> None:
    """A run the kernel refused is sent again on another EV; its EV leaves with the reason."""
    pair = Pair(Config(mtu=1024, paths=4))
    work, target = pair.post(b"\x05" * 2048)
    run = pair.a.endpoint.transmit(pair.now_ns)
    assert run is not None
    pair.a.endpoint.path_fault(run, fault, pair.now_ns)
    pair.run(lambda: pair.done(work))
    assert target == b"\x05" * 2048
    assert pair.a.ev_changes()[0].reason == fault.value
    assert pair.a.ev_changes()[0].index == run.ev_index
    assert pair.a.requestor.statistics().packets_lost == 0


def test_refused_control_packet() -> None:
    """A control packet that was refused withdraws its EV; nothing is sent again."""
    pair = Pair(Config(mtu=1024, paths=4))
    pair.post(b"x")
    pair.run_for(21 * US)
    pair.filters.append(black_hole(from_b))
    Forger(pair, 1).probe(1)
    run = pair.b.endpoint.transmit(pair.now_ns)
    assert run is not None
    assert run.qpn == 0
    pair.b.endpoint.path_fault(run, PathFault.UNREACHABLE, pair.now_ns)
    pair.flush()
    assert [change.index for change in pair.b.ev_changes()] == [run.ev_index]


def test_fault_of_a_peer_that_is_gone() -> None:
    """A fault or a full buffer that concerns a peer no longer known is ignored."""
    pair = Pair(Config(mtu=1024))
    pair.post(b"x")
    run = pair.a.endpoint.transmit(pair.now_ns)
    assert run is not None
    pair.a.endpoint.destroy_qp(pair.a.qp)
    pair.a.endpoint.path_fault(run, PathFault.FAILED, pair.now_ns)
    pair.a.endpoint.path_busy(run, busy=True)
    assert pair.a.endpoint.poll() == []


def test_full_send_buffer() -> None:
    """Runs wait while the buffers of all EVs are full, and go on when one has room."""
    pair = Pair(Config(mtu=1024, paths=2, backup_paths=0))
    work, _ = pair.post(bytes(1 << 16))
    runs = {}
    while (run := pair.a.endpoint.transmit(pair.now_ns)) is not None:
        runs[run.ev_index] = run
        pair.a.endpoint.path_busy(run, busy=True)
    assert sorted(runs) == [0, 1]
    pair.a.endpoint.path_busy(runs[1], busy=False)
    following = pair.a.endpoint.transmit(pair.now_ns)
    assert following is not None
    assert following.ev_index == 1
    pair.a.endpoint.path_busy(runs[0], busy=False)
    pair.run(lambda: pair.done(work))


# The reverse set.


def test_reverse_set() -> None:
    """SACKs take turns over `reverse_paths` EVs of each plane."""
    paths = path_set(2, paths=8, reverse_paths=2)
    chosen = Counter(paths.choose_reverse(0).index for _ in range(40))
    assert [paths.paths[index].plane for index in sorted(chosen)] == [0, 0, 1, 1]
    assert set(chosen.values()) == {10}


def test_reverse_set_avoids_withdrawn_evs() -> None:
    """A reverse EV that is withdrawn is replaced by another of its plane."""
    paths = path_set(2, paths=8, reverse_paths=2)
    before = {paths.choose_reverse(0).index for _ in range(40)}
    paths.on_lost(min(before), 0)
    after = {paths.choose_reverse(0).index for _ in range(40)}
    assert min(before) not in after
    assert len(after) == 4


def test_reverse_set_prefers_confirmed_evs() -> None:
    """EVs on which something is known to have arrived come before those never confirmed."""
    paths = path_set(paths=8, reverse_paths=2)
    paths.on_acked(np.array([5, 6], np.uint16), 100)
    paths.on_lost(0, 0)
    assert {paths.choose_reverse(0).index for _ in range(10)} == {5, 6}


def test_plane_that_was_heard_of_carries_control_packets() -> None:
    """SACKs go over planes on which the peer was heard of lately, if there is any."""
    pair = Pair(Config(mtu=1024, paths=4, link_bps=400_000_000), planes=2, link_bps=200e6)
    pair.post(bytes(1 << 20))
    pair.run_for(5 * MS)
    pair.filters.append(black_hole(lambda d: d.plane == 0))
    pair.run_for(50 * MS)
    tap = Tap(from_b)
    pair.filters.insert(0, tap)
    pair.run_for(5 * MS)
    assert {d.plane for d in tap.datagrams if d.opcode == Opcode.SACK} == {1}


def test_dead_reverse_ev_is_found() -> None:
    """A receiver that sends nothing itself probes its reverse EVs and leaves a dead one."""

    def dead(datagram: Datagram) -> bool:
        return from_b(datagram) and datagram.source_port == FIRST_EV_PORT

    config = Config(mtu=1024, link_bps=200_000_000)
    pair = Pair(config, link_bps=200e6, filters=[black_hole(dead)])
    pair.post(bytes(16 << 20))
    pair.run(lambda: pair.b.paths.paths[0].state is BAD)
    assert pair.b.ev_changes()[-1].reason == "reverse probes unanswered"
    tap = Tap(from_b)
    pair.filters.append(tap)
    pair.run_for(5 * MS)
    assert FIRST_EV_PORT not in {d.source_port for d in tap.datagrams if d.opcode == Opcode.SACK}
    assert pair.a.ev_changes() == []


def test_working_reverse_evs_are_left_alone() -> None:
    """Reverse EVs whose probes are answered stay, however long the transfer takes."""
    pair = Pair(Config(mtu=1024, link_bps=20_000_000), link_bps=20e6)
    pair.post(bytes(4 << 20))
    pair.run_for(1 * S)
    assert pair.b.ev_changes() == []


# Statistics.


def test_statistics() -> None:
    """One row per EV says what was sent, acknowledged and when something last arrived."""
    pair = Pair(Config(mtu=1024, paths=4))
    pair.transfer(bytes(1 << 16))
    rows = pair.a.paths.statistics()
    assert sum(row.sent_packets for row in rows) == sum(row.acked_packets for row in rows) == 64
    assert {row.state for row in rows} == {"good"}
    assert [row.active for row in rows] == [True] * 4 + [False]
    assert rows[4].confirmed_ns == -1
    assert all(row.confirmed_ns > 0 for row in rows if row.sent_packets)


def test_events_name_the_ev() -> None:
    """An event carries plane, source port, both states, the reason and when it happened."""
    pair = Pair(Config(mtu=1024, paths=4, spray_run=1), filters=[])
    dead = black_hole(lambda d: data(d) and d.source_port == FIRST_EV_PORT + 2)
    pair.filters.append(dead)
    pair.transfer(bytes(1 << 18))
    event = pair.a.ev_changes()[0]
    assert isinstance(event, EvChanged)
    assert (event.plane, event.source_port, event.index) == (0, FIRST_EV_PORT + 2, 2)
    assert (event.before, event.after, event.reason) == (GOOD, BAD, "loss")
    assert 1 * S < event.at_ns <= pair.now_ns
    assert EvInput.LOST.name
    assert PROBE_NS_MIN == 1 * MS
