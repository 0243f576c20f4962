"""The endpoint as the world sees it: five calls, its limits, and how things come to an end."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from mrc.errors import ConfigError
from mrc.proto import endpoint as endpoint_module
from mrc.proto.config import Config
from mrc.proto.endpoint import Endpoint
from mrc.proto.events import QpFailure
from mrc.proto.paths import NEVER_NS
from mrc.proto.peer import Plane
from mrc.proto.statistics import DropReason
from mrc.wire.control import (
    EndpointOp,
    EndpointRequest,
    timestamp,
)
from mrc.wire.fields import Opcode
from mrc.wire.writes import Write
from tests.support.filters import Tap, black_hole, lose
from tests.support.packets import Forger
from tests.support.pair import MS, UDP_PORT, US, Pair, S

# The five calls.


def test_nothing_to_do() -> None:
    """A new endpoint has nothing to send, no timer, no event."""
    endpoint = Endpoint(Config(), random.Random(1))
    assert endpoint.transmit(0) is None
    assert endpoint.next_deadline_ns() is None
    endpoint.advance(1_000_000_000)
    assert endpoint.poll() == []


def test_events_are_told_once() -> None:
    """Poll returns each event once, in order."""
    pair = Pair()
    pair.a.endpoint.fail_qp(pair.a.qp, QpFailure.LOCAL_CLOSE, pair.now_ns)
    assert len(pair.a.endpoint.poll()) == 1
    assert pair.a.endpoint.poll() == []


def test_time_never_goes_back() -> None:
    """A time below one seen before counts as that one."""
    pair = Pair()
    pair.transfer(b"x")
    before = pair.a.requestor.statistics()
    pair.now_ns -= 500 * MS
    pair.transfer(b"x")
    assert pair.a.requestor.statistics().timeouts == 0
    assert pair.a.requestor.statistics().srtt_ns <= before.srtt_ns


def test_deadline_is_when_something_is_due() -> None:
    """At the deadline `advance` does something; before it, nothing."""
    pair = Pair(Config(timeout=10), filters=[black_hole(lambda _: True)])
    pair.post(b"x")
    pair.flush()
    deadline_ns = pair.a.endpoint.next_deadline_ns()
    assert deadline_ns == pair.now_ns + (1024 << 10)
    pair.a.endpoint.advance(deadline_ns - 1)
    assert pair.a.endpoint.transmit(deadline_ns - 1) is None
    pair.a.endpoint.advance(deadline_ns)
    assert pair.a.endpoint.transmit(deadline_ns) is not None


def test_what_is_owed_waits_for_one_run_and_no_more() -> None:
    """An answer with data is waited for; a SACK goes out right behind its first run."""
    tap = Tap(lambda d: d.sender == 1)
    pair = Pair(Config(mtu=1024, spray_run=1), filters=[tap])
    pair.b.endpoint.post_write(pair.b.qp, bytes(4096), 0, 1)
    Forger(pair, 1).probe(1)
    pair.flush()
    assert [d.opcode == Opcode.SACK for d in tap.datagrams] == [False, True, False, False, False]


def test_nothing_is_called_lost_while_something_waits_to_be_heard() -> None:
    """What waits at a socket may tell that a missing packet has arrived."""
    one_path = Config(mtu=256, paths=1, backup_paths=0, spray_run=1)
    pair = Pair(one_path, filters=[black_hole(lambda d: d.is_data)])
    pair.post(bytes(1024))
    pair.flush()
    pair.now_ns += 100 * US
    forger = Forger(pair, 0)
    forger.sack(0, ack_psn_offset=3, sack_offset=1, sack_bitmap=0b100, ooo_count=1, rcvd_bytes=4)
    assert pair.a.endpoint.transmit(pair.now_ns, all_heard=False) is None
    again = pair.a.endpoint.transmit(pair.now_ns)
    assert again is not None
    assert again.psn == pair.a.qp.first_psn + 1


def test_queue_pairs_take_turns() -> None:
    """Queue pairs with data send one run each in turn."""
    tap = Tap()
    pair = Pair(Config(mtu=1024, spray_run=1), filters=[tap])
    second = second_qp(pair)
    for qp in (pair.a.qp, second):
        pair.a.endpoint.post_write(qp, bytes(8192), 0, 1)
    pair.flush()
    qpns = [write.dqp for write in tap.writes()]
    assert len(set(qpns)) == 2
    assert all(one != other for one, other in zip(qpns[0::2], qpns[1::2], strict=True))


def second_qp(pair: Pair) -> Any:
    """Connect a second queue pair of A with a second one of B, to the same peer."""
    made = [side.endpoint.create_qp() for side in pair.sides]
    told = [
        side.endpoint.attributes(qp, ((side.hosts[0], UDP_PORT),), receive_buffer_bytes=8 << 20)
        for side, qp in zip(pair.sides, made, strict=True)
    ]
    for side, qp, local, remote in zip(pair.sides, made, told, reversed(told), strict=True):
        side.endpoint.connect_qp(qp, side.peer, local, remote, pair.now_ns)
        qp.activate()
    return made[0]


def test_runs_that_arrive_together() -> None:
    """A transfer is the same whether datagrams arrive as runs or one by one."""
    for link_bps in (0.0, 1e9):
        pair = Pair(Config(mtu=1024), planes=2, link_bps=link_bps)
        sent = pair.rng.randbytes(300_001)
        assert pair.transfer(sent, imm=1) == sent


def test_several_runs_in_one_buffer() -> None:
    """Messages that share an EV may arrive in one buffer; each packet counts."""
    pair = Pair(Config(mtu=1024, paths=1, backup_paths=0))
    works = [pair.post(bytes([i]) * 2048) for i in range(1, 9)]
    pair.run(lambda: pair.done(works[-1][0]))
    assert [target[:1] * 2048 for _, target in works] == [target for _, target in works]
    assert {target[0] for _, target in works} == set(range(1, 9))


# Limits.


def test_number_of_queue_pairs_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """More queue pairs than the limit are refused."""
    monkeypatch.setattr(endpoint_module, "QPS_MAX", 2)
    endpoint = Endpoint(Config(), random.Random(1))
    qps = [endpoint.create_qp() for _ in range(2)]
    with pytest.raises(ConfigError, match="2 queue pairs"):
        endpoint.create_qp()
    endpoint.destroy_qp(qps[0])
    endpoint.create_qp()


def test_number_of_peers_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """More peers than the limit are refused."""
    monkeypatch.setattr(endpoint_module, "PEERS_MAX", 1)
    pair = Pair()
    with pytest.raises(ConfigError, match="1 peers"):
        pair.a.endpoint.add_peer([Plane(0, "10.0.0.1", ("10.0.0.9", 1))])


def test_queue_pair_numbers_are_not_reserved_ones() -> None:
    """Numbers 0 to 2 and those in use are never given out."""

    class Scripted(random.Random):
        numbers = iter((0, 1, 2, 7, 100, 7, 8, 100))

        def getrandbits(self, bits: int, /) -> int:
            return next(self.numbers)

    endpoint = Endpoint(Config(), Scripted())
    assert [endpoint.create_qp().qpn for _ in range(2)] == [7, 8]


# The end of a queue pair.


def test_destroying_the_last_queue_pair_forgets_the_peer() -> None:
    """A peer goes with its last queue pair, its endpoint operations are those of a stranger."""
    pair = Pair()
    second = second_qp(pair)
    pair.a.endpoint.destroy_qp(pair.a.qp)
    assert len(pair.a.endpoint.peers) == 1
    pair.a.endpoint.destroy_qp(second)
    assert len(pair.a.endpoint.peers) == 0
    Forger(pair, 0).deliver(EndpointRequest(1, EndpointOp.EV_PROBE).encode())
    assert pair.a.dropped() == {DropReason.UNKNOWN_ENDPOINT: 1}


def test_destroying_with_timers_running() -> None:
    """Timers of a queue pair or peer that is gone do nothing, and come to an end."""
    pair = Pair(Config(mtu=1024, paths=4), filters=[black_hole(lambda _: True)])
    pair.post(bytes(4096))
    pair.flush()
    pair.a.paths.withdraw(pair.a.paths.paths[0], pair.now_ns, "test")
    pair.a.endpoint.after_feedback(pair.a.qp, pair.now_ns)
    pair.a.endpoint.destroy_qp(pair.a.qp)
    pair.run_for(10 * S)
    assert pair.a.endpoint.next_deadline_ns() is None
    assert pair.a.endpoint.transmit(pair.now_ns) is None


def test_destroyed_while_it_owed_an_answer() -> None:
    """A queue pair that is gone answers nothing, whatever it owed."""
    pair = Pair(Config(mtu=1024))
    Forger(pair, 1).probe(1)
    assert pair.b.responder.owes_reply
    pair.b.endpoint.destroy_qp(pair.b.qp)
    assert pair.b.endpoint.transmit(pair.now_ns) is None


def test_queue_pairs_share_the_paths_of_a_peer() -> None:
    """What one queue pair learns of an EV holds for all of them."""
    pair = Pair(Config(mtu=1024, paths=4))
    second = second_qp(pair)
    assert second.peer is pair.a.peer
    assert second.peer.qps.keys() == {pair.a.qp.qpn, second.qpn}


# Several peers behind one address.


def test_peers_behind_one_address_are_told_apart() -> None:
    """Of peers that share an address an endpoint request belongs to the one that uses its tag."""
    pair = Pair(Config(mtu=1024, paths=4), planes=2)
    endpoint = pair.a.endpoint
    qp = endpoint.create_qp()
    remote = replace(
        pair.b.endpoint.attributes(
            pair.b.qp, ((pair.b.hosts[0], UDP_PORT), (pair.b.hosts[1], UDP_PORT)),
            receive_buffer_bytes=1 << 20,
        ),
        endpoint_tag=9,
    )  # fmt: skip
    planes = [Plane(i, pair.a.hosts[i], remote.planes[i]) for i in range(2)]
    twin = endpoint.add_peer(planes)
    local = endpoint.attributes(qp, remote.planes, receive_buffer_bytes=1 << 20)
    endpoint.connect_qp(qp, twin, local, remote, pair.now_ns)
    assert (pair.a.qp.tag, qp.tag) == (0, 1)

    down = EndpointRequest(1 << 8 | 5, EndpointOp.PORT_STATUS_UPDATE, 0b01)
    Forger(pair, 0).deliver(down.encode())
    assert set(twin.paths.planes_down) == {1}
    assert set(pair.a.paths.planes_down) == set()
    stray = EndpointRequest(7 << 8 | 5, EndpointOp.PORT_STATUS_UPDATE, 0b00)
    Forger(pair, 0).deliver(stray.encode())
    assert pair.a.dropped() == {DropReason.UNKNOWN_ENDPOINT: 1}


# Counters.


def test_statistics() -> None:
    """An endpoint counts datagrams, queue pairs, regions and drops by reason."""
    pair = Pair(Config(mtu=1024))
    pair.transfer(bytes(4096))
    Forger(pair, 1).deliver(b"12345678901", icrc=False)
    a, b = pair.a.endpoint.statistics(), pair.b.endpoint.statistics()
    assert a.datagrams_sent == b.datagrams_received - 1
    assert (b.queue_pairs, b.regions) == (1, 1)
    assert b.drops == {"short": 1}


def test_statistics_of_a_queue_pair() -> None:
    """A queue pair counts both of its halves; what A sent B placed."""
    pair = Pair(Config(mtu=1024), filters=[lose(0.05)])
    pair.transfer(bytes(100_000))
    a, b = pair.a.qp.statistics(), pair.b.qp.statistics()
    assert a is not None
    assert b is not None
    assert (a.qpn, a.state) == (pair.a.qp.qpn, "RTS")
    assert a.requestor.payload_bytes_sent == b.responder.payload_bytes_placed == 100_000
    assert (a.requestor.writes_posted, a.requestor.writes_done) == (1, 1)
    assert a.requestor.packets_sent - a.requestor.packets_retransmitted == 98
    assert b.responder.packets_received == 98
    assert b.responder.messages_done == 1
    assert NEVER_NS > a.requestor.rtt_min_ns == 2 * pair.delay_ns
    assert pair.delay_ns > US


def test_a_queue_pair_that_does_not_fit_leaves_no_peer() -> None:
    """Who disagrees again and again fills no table, and a port that goes down asks nobody."""
    pair = Pair(Config(mtu=1024))
    endpoint = pair.a.endpoint
    known = set(endpoint.peers)
    planes = (("10.0.0.9", UDP_PORT),)
    qp = endpoint.create_qp()
    local = endpoint.attributes(qp, planes, receive_buffer_bytes=1 << 20)
    peer = endpoint.add_peer([Plane(0, pair.a.hosts[0], planes[0])])
    with pytest.raises(ConfigError, match="iCRC"):
        endpoint.connect_qp(qp, peer, local, replace(local, icrc=False), pair.now_ns)
    assert set(endpoint.peers) == known
    assert "10.0.0.9" not in endpoint.peers_at
    endpoint.port_status(0, up=False, now_ns=pair.now_ns)


def test_runs_are_no_shorter_when_several_queue_pairs_are_busy() -> None:
    """A run costs the same whatever its length: busy ones share the EVs, and do not cut as much."""
    pair = Pair(Config(mtu=1024, paths=16), link_bps=10e9)
    pair.post(bytes(1 << 20))
    requestor = pair.a.requestor
    requestor.nscc.cwnd = 48 * 1100.0
    alone = requestor.spray_run
    pair.a.peer.busy_qpns |= {1, 2, 3}
    beside_three = requestor.spray_run
    pair.a.peer.busy_qpns |= set(range(4, 100))
    assert (alone, beside_three, requestor.spray_run) == (2, 11, 23)


def test_a_queue_pair_is_busy_until_its_work_is_done_or_it_ends() -> None:
    """What is posted makes it busy; acknowledgement, failure and destruction end that."""
    pair = Pair()
    busy = pair.a.peer.busy_qpns
    pair.post(b"x")
    assert busy == {pair.a.qp.qpn}
    pair.run(lambda: pair.a.requestor.idle)
    assert busy == set()
    pair.post(b"x")
    pair.a.endpoint.fail_qp(pair.a.qp, QpFailure.LOCAL_CLOSE, pair.now_ns)
    assert busy == set()


def test_a_destroyed_queue_pair_is_not_asked_again_when_all_is_heard() -> None:
    """It waited for a verdict when it was destroyed: nothing more is sent of it."""
    pair = Pair()
    endpoint = pair.a.endpoint
    for _ in range(3):
        endpoint.wake(pair.a.qp)
        assert endpoint.transmit(pair.now_ns, all_heard=False) is None
        assert endpoint.undecided
    endpoint.destroy_qp(pair.a.qp)
    assert not endpoint.undecided
    assert endpoint.transmit(pair.now_ns) is None


def test_whole_runs_are_chosen_several_at_once_and_leave_one_by_one() -> None:
    """Their packets carry the time at which they were noted as sent, whenever they are built."""
    pair = Pair(Config(mtu=4096, paths=4, backup_paths=0))
    pair.transfer(bytes(4 << 20))  # the ring has grown
    pair.filters.append(black_hole(lambda _: True))
    pair.post(bytes(4 << 20))
    requestor = pair.a.requestor
    requestor.nscc.cwnd = 1e6
    first = pair.a.endpoint.transmit(pair.now_ns)
    assert first is not None
    assert (first.packets, requestor.window.outstanding) == (15, 8 * 15)
    sent_ns = pair.now_ns
    evs = [first.ev_index]
    for turn in range(1, 8):
        run = pair.a.endpoint.transmit(pair.now_ns + turn * 50 * US)
        assert run is not None
        assert run.psn == first.psn + 15 * turn
        write = Write.decode_untrusted(run.memory[: run.segment_bytes])
        assert write.tx_timestamp == timestamp(sent_ns)
        evs.append(run.ev_index)
    assert sorted(evs) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert requestor.window.outstanding == 8 * 15
