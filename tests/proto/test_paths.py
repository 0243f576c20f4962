"""EVs: which of them carry the traffic, which leave, and how they come back (MRC 1.0 §11.2)."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrc.proto.config import Config
from mrc.proto.events import EvChanged, EvState
from mrc.proto.paths import PathSet
from mrc.proto.peer import pair_planes
from mrc.proto.rotation import Rotation, Shuffler
from mrc.wire.control import EndpointOp, EndpointRequest, EndpointResponse
from mrc.wire.fields import Opcode
from tests.support.evs import active, choose, path_set
from tests.support.filters import Tap, black_hole, data, lose, mark, on_ev, opcode
from tests.support.packets import Forger
from tests.support.pair import FIRST_EV_PORT, MS, Pair, S

GOOD, SKIP, BAD, DENIED = EvState.GOOD, EvState.SKIP, EvState.ASSUMED_BAD, EvState.DENIED


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
    paths.on_marked(2)
    assert [p.index for p in choose(paths, 6)].count(2) <= 1
    assert paths.paths[2].state is GOOD
    assert sorted(p.index for p in choose(paths, 4)).count(2) <= 2


def test_one_skip_ends_per_choice() -> None:
    """Of several EVs in SKIP met in one choice the first becomes GOOD, the others stay."""
    paths = path_set(paths=4, backup_paths=0)
    for index in (0, 1, 2):
        paths.on_marked(index)
    (first,) = choose(paths)
    assert first.index == 3
    assert sum(path.state is SKIP for path in paths.paths) >= 2


def test_all_to_be_skipped() -> None:
    """When all are in SKIP the one reset is used: traffic never stops, no special case."""
    paths = path_set(paths=4, backup_paths=0)
    for index in range(4):
        paths.on_marked(index)
    (chosen,) = choose(paths)
    assert chosen.state is GOOD
    assert sum(path.state is SKIP for path in paths.paths) == 3


def test_retransmission_avoids_the_ev_that_failed() -> None:
    """The EV to avoid is not chosen as long as there is any other, whatever state that is in."""
    paths = path_set(paths=2, backup_paths=0)
    for _ in range(20):
        paths.on_marked(1)
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


def test_plane_that_is_silent_since_a_loss_is_passed_over_at_once() -> None:
    """The first packet lost on a silent plane speaks for all its EVs; what arrives clears it."""
    paths = path_set(paths=8, planes=2, backup_paths=0)
    plane = paths.paths[0].plane
    paths.on_lost(0, 10 * MS, sent_ns=5 * MS)
    assert plane not in {path.plane for path in choose(paths, 16)}
    assert paths.paths[1].state is GOOD
    paths.on_acked(np.array([1], np.uint16), 11 * MS)
    assert plane in {path.plane for path in choose(paths, 16)}


def test_plane_on_which_later_packets_arrived_is_not_suspect() -> None:
    """Then one EV of it is dead, not the plane."""
    paths = path_set(paths=8, planes=2, backup_paths=0)
    paths.on_acked(np.array([1], np.uint16), 6 * MS)
    paths.on_lost(0, 10 * MS, sent_ns=5 * MS)
    assert paths.paths[0].plane in {path.plane for path in choose(paths, 16)}


@pytest.mark.parametrize("planes", [1, 2])
def test_suspect_planes_are_used_when_there_is_no_other(planes: int) -> None:
    """Rather a plane that may be dead than none."""
    paths = path_set(paths=8, planes=planes, backup_paths=0)
    for path in paths.paths[:: 8 // planes]:
        paths.on_lost(path.index, 10 * MS, sent_ns=5 * MS)
    assert len({path.index for path in choose(paths, 16)}) > planes


def test_one_dead_ev_does_not_cost_its_plane() -> None:
    """Where traffic is thin the loss of one EV makes the plane suspect; a probe of another ends it.

    What is sent on the plane afterwards is as much as on the others.
    """
    config = Config(mtu=1024, paths=16, backup_paths=0, link_bps=400_000_000)
    pair = Pair(config, planes=4, filters=[black_hole(on_ev({FIRST_EV_PORT + 1}, 0))])
    for _ in range(100):
        pair.post(bytes(512))
        pair.run_for(20 * MS)
    assert [change.index for change in pair.a.ev_changes()] == [1]
    tap = Tap(data)
    pair.filters.insert(0, tap)
    for _ in range(100):
        pair.post(bytes(512))
        pair.run_for(20 * MS)
    carried = Counter(datagram.plane for datagram in tap.datagrams)
    assert min(carried[plane] for plane in range(4)) >= 15


def test_suspect_plane_is_probed_until_it_answers() -> None:
    """On its usable EVs in turn, ever more seldom, whether or not any of them was withdrawn."""
    paths = path_set(paths=8, planes=2, backup_paths=0)
    paths.on_lost(0, 10 * MS, sent_ns=5 * MS)
    probed, now_ns = [], 10 * MS
    while now_ns < 200 * MS:
        now_ns = paths.next_deadline_ns()
        probed += [path for path in paths.due_probes(now_ns) if path.state is GOOD]
    assert len(probed) >= 5
    assert {path.plane for path in probed} == {paths.paths[0].plane}
    assert len({path.index for path in probed}) == 3
    paths.on_probe_answer(probed[-1], now_ns, now_ns + MS)
    assert paths.paths[0].plane in {path.plane for path in choose(paths, 16)}


def test_backup_of_a_healthy_plane_comes_before_a_suspect_plane() -> None:
    """A retransmission does not go where packets vanish while there is a spare elsewhere."""
    paths = path_set(paths=2, planes=2, backup_paths=2)
    first, second = (p for p in paths.paths if p.active)
    paths.on_lost(first.index, 10 * MS, sent_ns=5 * MS)
    chosen = paths.choose(avoid=second.index)
    assert chosen is not None
    assert (chosen.plane, chosen.active) == (second.plane, False)


def test_dead_plane_gets_nothing_more_after_its_first_loss() -> None:
    """No retransmission and no backup EV is wasted on it, so no timeout is needed."""
    pair = Pair(Config(mtu=1024, paths=16, link_bps=400_000_000), planes=4, link_bps=100e6)
    pair.post(bytes(4 << 20))
    pair.run_for(10 * MS)
    tap = Tap(lambda d: data(d) and d.plane == 2)
    pair.filters[:0] = [tap, black_hole(lambda d: d.plane == 2)]
    pair.run_for(60 * MS)
    first_loss_ns = min(change.at_ns for change in pair.a.ev_changes())
    assert max(d.sent_ns for d in tap.datagrams) <= first_loss_ns
    assert pair.a.requestor.statistics().timeouts == 0


@pytest.mark.parametrize(
    ("plane_mbps", "packets"),
    [(5, 1), (50, 2), (200, 8), (1_000, 44), (10_000, 61)],
)
def test_run_is_no_longer_than_a_plane_takes_in_less_than_half_a_millisecond(
    plane_mbps: int, packets: int
) -> None:
    """Where the link's rate is known; a longer burst would only wait in the switch."""
    pair = Pair(Config(mtu=1024, paths=4, link_bps=2_000_000 * plane_mbps), planes=2)
    pair.a.requestor.nscc.cwnd = 1e9
    assert pair.a.requestor.spray_run == packets


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


@given(start=members, steps=st.lists(st.tuples(st.sampled_from("nnar"), st.integers(0, 9))))
def test_rotation_is_a_set(start: list[int], steps: list[tuple[str, int]]) -> None:
    """However members come and go, each turn gives exactly those that are in, none twice."""
    rotation, model = Rotation(start, Shuffler(random.Random(1))), set(start)
    to_come: set[int] = set()
    for what, member in steps:
        if what == "a":
            to_come |= {member} - model
            rotation.add(member)
            model.add(member)
        elif what == "r" and len(model) > 1:
            rotation.remove(member)
            model.discard(member)
            to_come.discard(member)
        elif what == "n":
            to_come = to_come or set(model)
            found = rotation.next()
            assert found in to_come
            to_come.discard(found)
        assert (set(rotation), len(rotation)) == (model, len(model))


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
    """The first probe leaves after 1 ms, further ones after twice the time, 250 ms at most."""
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


def test_probe_cap_bounds_the_first_pauses_too() -> None:
    """After a round trip of a minute, as a stopped process measures it, an EV is not left alone."""
    paths = path_set(paths=4)
    paths.on_rtt(paths.paths[0], 60 * S, 0)
    paths.on_lost(0, 0)
    times = probe_times(paths, 0, 1_000 * MS)
    assert times == [250 * MS, 500 * MS, 750 * MS, 1_000 * MS]


def test_answer_brings_the_ev_back() -> None:
    """One answered probe is enough for an EV that does not flap."""
    paths = path_set(paths=4)
    paths.on_lost(0, 0)
    paths.on_probe_answer(paths.paths[0], 0, 100)
    assert paths.paths[0].state is GOOD
    assert paths.next_deadline_ns() > 10 * S


def test_number_of_answers_is_a_setting() -> None:
    """`recovery_successes` probes must be answered; each answer is followed by the next probe."""
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
    request = EndpointRequest.decode_untrusted(tap.datagrams[0].data)
    number, at = request.request_id, request.tx_timestamp
    forger = Forger(pair, 0)
    forger.deliver(EndpointResponse(number + 1, EndpointOp.EV_PROBE, at).encode())
    forger.deliver(EndpointResponse(number, EndpointOp.PORT_STATUS_UPDATE, at).encode())
    forger.deliver(EndpointResponse(number, EndpointOp.EV_PROBE, at ^ 1).encode())
    answer = EndpointResponse(number, EndpointOp.EV_PROBE, at).encode()
    forger.deliver(answer, host="10.9.9.9")
    assert path.state is BAD
    forger.deliver(answer)
    assert path.state is GOOD
    forger.deliver(answer)
    assert sum(pair.a.dropped().values()) == 5


# Losses of all and losses of one.


def sent_on_all(paths: PathSet, packets: int) -> None:
    """Send that many packets on every EV."""
    for path in paths.paths:
        paths.on_sent(path, packets, retransmission=False)


def test_ev_that_goes_on_delivering_is_kept() -> None:
    """A loss on an EV that delivers later packets is no reason to leave it where all lose alike."""
    paths = path_set(paths=8, backup_paths=0)
    sent_on_all(paths, 100)
    for path in paths.paths:
        path.recent_lost = 1
    paths._recent_lost = 8  # noqa: SLF001 - each has lost one
    for path in paths.paths:
        paths.on_lost(path.index, 0, alive=True)
    assert {path.state for path in paths.paths} == {GOOD}
    paths.on_lost(0, 0)
    assert paths.paths[0].state is BAD


def test_ev_that_loses_more_than_the_others_is_left() -> None:
    """One that loses four times what all lose together is left although it goes on delivering."""
    paths = path_set(paths=8, backup_paths=0)
    sent_on_all(paths, 100)
    paths.on_lost(0, 0, alive=True)
    assert paths.paths[0].state is BAD
    assert paths.paths[0].lost_packets == 1


def test_old_losses_fade() -> None:
    """After 65536 packets what was lost before counts for half, what is told does not change."""
    paths = path_set(paths=8, backup_paths=0, paths_min=8)
    paths.on_lost(0, 0)
    paths.on_lost(0, 0)
    sent_on_all(paths, 10_000)
    path = paths.paths[0]
    assert (path.lost_packets, path.sent_packets) == (2, 10_000)
    assert (path.recent_lost, path.recent_sent) == (1, 5_000)


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


def test_ev_that_comes_back_replaces_bad_ones() -> None:
    """Withdrawn EVs that stood in for lack of others do not keep one out that works."""
    paths = path_set(paths=1, backup_paths=2)
    paths.on_lost(0, 0)
    paths.on_lost(1, 0)
    paths.deny(2, denied=True, now_ns=0)
    assert active(paths) == [0, 1]
    paths.on_probe_answer(paths.paths[0], 0, 100)
    assert active(paths) == [0]
    assert paths.paths[0].active


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
