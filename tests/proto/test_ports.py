"""Ports that go down and come back, runs the kernel refuses, and the EVs that carry our SACKs."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from mrc.proto.config import Config
from mrc.proto.events import EvState, PortStatusChanged
from mrc.proto.runs import PathFault
from mrc.wire.fields import Opcode
from tests.support.evs import active, path_set
from tests.support.filters import Tap, black_hole, from_b, lose_nth
from tests.support.packets import Forger
from tests.support.pair import FIRST_EV_PORT, MS, US, Datagram, Pair, S

GOOD, BAD = EvState.GOOD, EvState.ASSUMED_BAD


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
    assert {event.reason for event in pair.b.ev_changes()} == {"peer port down"}
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
    paths.plane_status(0, up=False, local=True, now_ns=0)
    assert active(paths) == [2, 3]


def test_all_ports_down() -> None:
    """With every port said to be down the last EVs stay: it may be a mistake."""
    paths = path_set(2, paths=4, backup_paths=0)
    for plane in range(2):
        paths.plane_status(plane, up=False, local=True, now_ns=0)
    assert len(active(paths)) == 1
    assert paths.one_per_plane() == []


def test_spurious_loss_does_not_bring_back_a_port_that_is_down() -> None:
    """An EV of a port that is down stays out, whatever arrives late."""
    paths = path_set(2, paths=4, backup_paths=0)
    paths.plane_status(0, up=False, local=True, now_ns=0)
    paths.on_spurious(0, 10, by_order=True)
    assert paths.paths[0].state is BAD


def test_local_port_is_known_better_than_the_peer_says() -> None:
    """A port of ours that is down stays down whatever the peer says or answers."""
    paths = path_set(2, paths=4, backup_paths=0)
    paths.plane_status(0, up=False, local=True, now_ns=0)
    paths.plane_status(0, up=True, local=False, now_ns=10)
    paths.on_probe_answer(paths.paths[0], 20, 30)
    assert paths.paths[0].state is BAD
    paths.plane_status(0, up=True, local=True, now_ns=40)
    paths.on_probe_answer(paths.paths[0], 50, 60)
    assert paths.paths[0].state is GOOD


def test_answered_probe_refutes_a_port_said_to_be_down() -> None:
    """An EV that answers a probe sent after the port was said to be down is believed."""
    paths = path_set(2, paths=4, backup_paths=0)
    paths.plane_status(0, up=False, local=False, now_ns=1000)
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
    pair = Pair(Config(mtu=1024, paths=2, backup_paths=0, spray_run=1))
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
    pair.post(bytes(4 << 20))
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
