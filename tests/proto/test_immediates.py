"""WRITE-with-Immediate: each immediate exactly once, in order, after everything before it."""

from __future__ import annotations

import itertools

import pytest

from mrc.proto.config import Config
from mrc.proto.events import ImmediateReceived
from mrc.wire.control import NackReason
from mrc.wire.fields import Opcode
from tests.support.filters import Tap, data, from_b, jitter, lose, lose_nth, nth, trim
from tests.support.packets import Forger
from tests.support.pair import MS, US, Datagram, Pair, S


def post_many(pair: Pair, count: int, size: int = 8) -> int:
    """Post that many small writes with the immediates 0, 1, 2 ...; return the last work id."""
    region = pair.b.endpoint.register(bytearray(size))
    work = 0
    for imm in range(count):
        work = pair.a.endpoint.post_write(pair.a.qp, bytes(size), region.va, region.r_key, imm)
    return work


def duplicate(datagram: Datagram) -> None:
    """Deliver every data packet twice."""
    if data(datagram):
        datagram.copies = 2


@pytest.mark.parametrize(
    "filters",
    [
        [],
        [jitter(500)],
        [duplicate],
        [lose(0.2)],
        [trim(0.2)],
        [lose(0.2, from_b)],
        [lose(0.1), jitter(300), duplicate],
    ],
    ids=["calm", "reordered", "doubled", "lost", "trimmed", "acks lost", "all of it"],
)
def test_in_order_and_exactly_once(filters: list[Tap]) -> None:
    """Whatever happens on the way, immediates come out as they were posted, each once."""
    pair = Pair(Config(mtu=1024, link_bps=10**9), planes=2, link_bps=1e9, filters=list(filters))
    work = post_many(pair, 200)
    pair.run(lambda: pair.done(work))
    assert pair.immediates() == list(range(200))


def test_what_an_immediate_tells() -> None:
    """It names the region, where in it the message lies, and how long that is."""
    pair = Pair(Config(mtu=1024))
    target = bytearray(10_000)
    region = pair.b.endpoint.register(target)
    sent = pair.rng.randbytes(5000)
    pair.a.endpoint.post_write(pair.a.qp, sent, region.va + 100, region.r_key, 0xFFFFFFFF)
    pair.run(lambda: pair.done(1))
    (event,) = (event for event in pair.b.events if isinstance(event, ImmediateReceived))
    expected = (pair.b.qp.qpn, 0xFFFFFFFF, region.r_key, region.va + 100, 5000)
    assert (event.qpn, event.imm, event.r_key, event.va, event.length) == expected
    assert target[100:5100] == sent


def test_early_immediate_waits() -> None:
    """An immediate whose predecessors are missing is kept, and delivered when they are there."""
    pair = Pair(Config(mtu=1024))
    region = pair.b.endpoint.register(bytearray(64))
    forger = Forger(pair, 1)
    only = Opcode.WRITE_ONLY_IMMEDIATE
    for place in (2, 1):
        forger.write(place, b"x", region.va, region.r_key, opcode=only, imm=place)
    pair.flush()
    assert pair.immediates() == []
    forger.write(0, b"x", region.va, region.r_key)
    pair.flush()
    assert pair.immediates() == [1, 2]


def test_immediate_waits_for_plain_writes_before_it() -> None:
    """A message posted before, without an immediate, is placed before the immediate comes out."""
    pair = Pair(Config(mtu=1024, paths=2), filters=[lose_nth({0})])
    first, target = pair.post(b"\x01" * 700)
    second = post_many(pair, 1)
    pair.run(lambda: bool(pair.immediates()))
    assert target == b"\x01" * 700
    pair.run(lambda: pair.done(second))
    assert pair.done(first)


def test_no_more_in_flight_than_agreed() -> None:
    """At most `immediates_max` messages with immediate are in flight, and none is kept waiting."""
    tap = Tap()
    pair = Pair(Config(mtu=1024, immediates_max=32, link_bps=10**10), filters=[tap])
    work = post_many(pair, 500)
    pair.flush()
    assert len(tap.datagrams) == 32
    started_ns = pair.now_ns
    pair.run(lambda: pair.done(work))
    assert pair.immediates() == list(range(500))
    assert pair.now_ns - started_ns < 20 * 2 * pair.delay_ns
    assert pair.a.requestor.statistics().probes == 0


def test_limit_is_the_peers() -> None:
    """The limit is what the receiving side said, whatever the sender's own setting."""
    tap = Tap()
    pair = Pair(Config(), config_b=Config(immediates_max=40), filters=[tap])
    post_many(pair, 100)
    pair.a.requestor.nscc.cwnd = 1e6
    pair.flush()
    assert len(tap.datagrams) == 40


def test_plain_writes_are_not_limited() -> None:
    """Messages without immediate do not count towards the limit."""
    tap = Tap()
    pair = Pair(Config(immediates_max=32, link_bps=10**10), filters=[tap])
    region = pair.b.endpoint.register(bytearray(8))
    for _ in range(100):
        pair.a.endpoint.post_write(pair.a.qp, bytes(8), region.va, region.r_key)
    pair.flush()
    assert len(tap.datagrams) == 100


# When the application does not take them.

HELD_MAX = 64


def lazy() -> tuple[Pair, int]:
    """Pair whose receiving application takes nothing yet, and twice the limit on its way."""
    pair = Pair(Config(mtu=1024, immediates_held_max=HELD_MAX, link_bps=10**10))
    return pair, post_many(pair, 2 * HELD_MAX)


def test_immediates_nobody_takes_are_refused() -> None:
    """With `immediates_held_max` not taken, more are refused with NO_RESOURCE."""
    pair, work = lazy()
    tap = Tap(from_b)
    pair.filters.append(tap)
    pair.run_for(50 * MS)
    assert pair.immediates() == list(range(HELD_MAX))
    assert not pair.done(work)
    assert {nack.reason for nack in tap.nacks()} == {NackReason.NO_RESOURCE}


def test_penalty_before_refusal() -> None:
    """Above half of the limit SACKs carry a penalty, below it again they restore the window."""
    pair, _ = lazy()
    tap = Tap(from_b)
    pair.filters.append(tap)
    pair.run_for(50 * MS)
    assert tap.sacks()[-1].rcv_cwnd_pen == 64
    assert pair.a.requestor.nscc.saved_cwnd > 0
    pair.b.responder.release_immediates(HELD_MAX)
    tap.datagrams.clear()
    pair.run(lambda: any(sack.restore_cwnd for sack in tap.sacks()), timeout_ns=1 * S)
    assert tap.sacks()[-1].rcv_cwnd_pen == 0


def test_transfer_goes_on_when_they_are_taken() -> None:
    """As soon as the application takes some, the refused ones come and everything completes."""
    pair, work = lazy()
    pair.run_for(50 * MS)
    pair.b.responder.release_immediates(HELD_MAX)
    pair.run(lambda: pair.done(work), timeout_ns=1 * S)
    assert pair.immediates() == list(range(2 * HELD_MAX))
    assert pair.a.ev_changes() == []


def test_refused_immediate_is_tried_again_after_a_millisecond() -> None:
    """A refusal for want of resources is answered by a pause of 1 ms, not by a storm."""
    pair, _ = lazy()
    pair.run_for(10 * MS)
    tap = Tap(lambda d: data(d) and d.rtx)
    pair.filters.append(tap)
    pair.run_for(20 * MS)
    times = sorted({datagram.sent_ns for datagram in tap.datagrams})
    assert len(times) >= 10
    assert all(b - a >= 1 * MS for a, b in itertools.pairwise(times))


def test_early_ones_do_not_fill_the_place_of_the_missing_one() -> None:
    """Immediates that wait for an earlier one never keep that one out, however many they are."""
    pair = Pair(Config(mtu=1024, immediates_held_max=HELD_MAX, link_bps=10**10))
    pair.filters.append(lose_nth({0}))
    work = post_many(pair, HELD_MAX)
    pair.run(lambda: pair.done(work), timeout_ns=1 * S)
    assert pair.immediates() == list(range(HELD_MAX))
    assert pair.b.responder.statistics().nacks == 0


def test_lost_answer_to_the_last_immediate() -> None:
    """An immediate that arrived is not delivered again when its acknowledgement is lost."""
    pair = Pair(Config(mtu=1024))
    pair.transfer(b"x")
    pair.filters.append(lose(1.0, nth(range(3), from_b)))
    work = post_many(pair, 1)
    pair.run(lambda: pair.done(work))
    pair.run_for(100 * US)
    assert pair.immediates() == [0]
