"""Silence: timeouts at a fixed interval, then doubling, and the end of a queue pair.

T = 1.024 * 2^timeout us; with (L, E) linear and exponential retries a silent peer costs
T * (1 + L + 2^(E+1) - 2). A timeout is the last resort: whoever answers is asked by a probe first.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from mrc.proto.config import Config
from mrc.proto.events import QpFailed, QpFailure
from mrc.proto.paths import PathSet
from mrc.proto.qp import QpState
from mrc.proto.retry import RetryTimer
from mrc.wire.control import NackReason
from mrc.wire.fields import Opcode
from tests.support.filters import Tap, black_hole, data, from_b, lose_nth, on_ev, opcode
from tests.support.packets import Forger
from tests.support.pair import FIRST_EV_PORT, MS, US, Datagram, Pair, S

T_NS = 1024 << 8
"""Timeout 8: 262.144 us."""


def everything(datagram: Datagram) -> bool:
    """Match every datagram of both sides."""
    return True


def silent(linear: int, exponential: int, **config: int) -> tuple[Pair, Tap]:
    """A alone in the dark: nothing arrives anywhere. And what it sent."""
    tap = Tap()
    settings: dict[str, Any] = {
        "timeout": 8,
        "retry_linear": linear,
        "retry_exponential": exponential,
    }
    return Pair(Config(**settings | config), filters=[tap, black_hole(everything)]), tap


def failure(pair: Pair) -> QpFailed:
    """Return why A failed."""
    (failed,) = (event for event in pair.a.events if isinstance(event, QpFailed))
    return failed


# The intervals.


def test_first_linear_then_exponential() -> None:
    """The k-th transmission waits T for k <= L, then T * 2^(k - L)."""
    pair, tap = silent(3, 3)
    pair.post(b"x")
    pair.run(pair.failed)
    times = [datagram.sent_ns for datagram in tap.datagrams] + [pair.now_ns]
    gaps = [round((b - a) / T_NS) for a, b in itertools.pairwise(times)]
    assert gaps == [1, 1, 1, 1, 2, 4, 8]


@pytest.mark.parametrize(("linear", "exponential"), [(7, 5), (3, 5), (0, 0), (0, 3), (7, 0)])
def test_silent_peer(linear: int, exponential: int) -> None:
    """A peer that never answers costs T * (1 + L + 2^(E+1) - 2) until the queue pair fails."""
    pair, _ = silent(linear, exponential)
    started_ns = pair.now_ns
    pair.post(bytes(100_000))
    pair.run(pair.failed)
    expected_ns = T_NS * (1 + linear + 2 ** (exponential + 1) - 2)
    assert pair.now_ns - started_ns == pytest.approx(expected_ns, rel=0.1)
    failed = failure(pair)
    assert failed.failure is QpFailure.RETRY_EXCEEDED
    assert failed.retry_count == linear + exponential + 1
    assert failed.psn == pair.a.qp.first_psn
    assert failed.silent_ns == pytest.approx(expected_ns, rel=0.1)
    assert pair.a.qp.state is QpState.ERROR


def test_numbers_of_the_specification() -> None:
    """With T = 262 us, L = 7 and E = 5 a silent peer costs 18.35 ms."""
    pair, _ = silent(7, 5)
    started_ns = pair.now_ns
    pair.post(b"x")
    pair.run(pair.failed)
    assert (pair.now_ns - started_ns) / MS == pytest.approx(18.35, abs=0.01)


def test_retry_for_ever() -> None:
    """With retry_exponential = 25 the queue pair never fails by itself."""
    pair, _ = silent(0, 25)
    pair.post(b"x")
    pair.run_for(3600 * S)
    assert not pair.failed()
    pair.filters.clear()
    pair.run(lambda: pair.done(1), timeout_ns=4000 * S)


@pytest.mark.parametrize(
    ("duration_s", "doublings"), [(0.1, 0), (0.6, 1), (8.9, 6), (30, 8), (600, 13), (1e9, 25)]
)
def test_retries_that_last_for_a_time(duration_s: float, doublings: int) -> None:
    """At least so long, with as few doublings as that takes; all else stays as it is."""
    config = Config(icrc=False).retrying_for(duration_s)
    assert config == Config(icrc=False, retry_exponential=doublings)


def test_peer_that_dies_in_the_middle() -> None:
    """The budget counts from the last progress, whatever went before."""
    pair = Pair(Config(timeout=10, retry_linear=2, retry_exponential=2), link_bps=1e9)
    pair.post(bytes(4 << 20))
    pair.run_for(10 * MS)
    cut_ns = pair.now_ns
    pair.filters.append(black_hole(everything))
    pair.run(pair.failed)
    assert failure(pair).failure is QpFailure.RETRY_EXCEEDED
    assert pair.now_ns - cut_ns > (1024 << 10) * 9
    assert pair.a.ev_changes() == []


def test_failed_queue_pair_is_quiet() -> None:
    """After the retry counter is exceeded nothing is sent and nothing answered."""
    pair, tap = silent(1, 1)
    pair.post(b"x")
    pair.run(pair.failed)
    sent = len(tap.datagrams)
    pair.filters.clear()
    pair.run_for(1 * S)
    assert len(tap.datagrams) == sent
    assert pair.b.events == []


# What clears the counter.


def test_progress_clears_the_counter() -> None:
    """After the cumulative acknowledgement moved the first interval is T again."""
    pair, tap = silent(2, 4)
    target = bytearray(8192)
    region = pair.b.endpoint.register(target)
    pair.a.endpoint.post_write(pair.a.qp, b"\x07" * 8192, region.va, region.r_key)
    pair.run_for(5 * T_NS)
    assert pair.a.requestor.retry.count > 2
    Forger(pair, 0).sack(0, ack_psn_offset=0, rcvd_bytes=17)
    assert pair.a.requestor.retry.count == 0
    tap.datagrams.clear()
    started_ns = pair.now_ns
    pair.run(lambda: pair.a.requestor.retry.count == 1)
    assert pair.now_ns - started_ns == pytest.approx(T_NS, rel=0.2)


def test_each_message_has_its_whole_budget() -> None:
    """After an idle time the counter and the silence start anew."""
    pair = Pair(Config(timeout=8, retry_linear=2, retry_exponential=2))
    for _ in range(5):
        pair.filters[:] = [lose_nth({0, 1}, data)]
        assert pair.transfer(b"x") == b"x"
        pair.run_for(1 * S)
    assert not pair.failed()


def test_lost_window_is_one_step() -> None:
    """A hundred packets lost at once are one timeout, not a hundred."""
    config = Config(mtu=256, timeout=12, link_bps=10_000_000_000)
    pair = Pair(config, filters=[lose_nth(set(range(100)))])
    sent = bytes(256 * 100)
    assert pair.transfer(sent) == sent
    found = pair.a.requestor.statistics()
    assert (found.timeouts, found.packets_retransmitted) == (1, 100)


# NACKs count too.


def test_nacks_count_one_step_an_interval() -> None:
    """Refusals without progress add one an interval, however many there are."""
    pair, _ = silent(1, 0, mtu=256, timeout=12)
    pair.post(bytes(256 * 8))
    pair.flush()
    forger = Forger(pair, 0)
    interval_ns = 1024 << 12
    counts = []
    for _ in range(3):
        pair.now_ns += interval_ns - 1
        for place in range(8):
            forger.nack(place, NackReason.NO_PKT_BUFFER)
        counts.append(pair.a.requestor.retry.count)
        pair.now_ns += 2 * MS
        pair.flush()
    assert counts == [0, 1, 2]
    assert failure(pair).failure is QpFailure.RETRY_EXCEEDED


# Whose fault is it?


def cut_return_path(pair: Pair, from_ns: int, for_ns: int) -> None:
    """Lose whatever B says for a while."""
    start_ns = pair.now_ns + from_ns
    pair.filters.append(black_hole(from_b, since_ns=start_ns, until_ns=start_ns + for_ns))


@pytest.mark.parametrize("planes", [1, 4])
def test_silence_of_all_blames_nobody(planes: int) -> None:
    """All SACKs of 300 ms lost: no EV is withdrawn, and the transfer completes."""
    pair = Pair(Config(mtu=1024, link_bps=800_000_000), planes=planes, link_bps=200e6)
    cut_return_path(pair, 5 * MS, 300 * MS)
    sent = pair.rng.randbytes(2 << 20)
    assert pair.transfer(sent) == sent
    assert pair.a.ev_changes() == []
    assert pair.a.requestor.statistics().timeouts > 0


def test_last_acknowledgement_lost() -> None:
    """Is only the last SACK lost, a probe brings it: nothing is sent twice."""
    pair = Pair(Config(mtu=1024), filters=[])
    pair.transfer(b"x")
    pair.filters.append(lose_nth({0}, opcode(Opcode.SACK)))
    tap = Tap()
    pair.filters.append(tap)
    assert pair.transfer(bytes(1000)) == bytes(1000)
    assert [datagram.rtx for datagram in tap.datagrams] == [False]
    assert pair.a.requestor.statistics().timeouts == 0


def test_last_transport_ack_lost() -> None:
    """With everything acknowledged but the message, a probe brings the Transport ACK."""
    pair = Pair(Config(mtu=1024))
    pair.transfer(b"x")
    pair.filters.append(lose_nth({0, 1, 2}, opcode(Opcode.ACKNOWLEDGE)))
    tap = Tap()
    pair.filters.append(tap)
    assert pair.transfer(bytes(1000)) == bytes(1000)
    assert len(tap.datagrams) == 1
    assert pair.a.requestor.statistics().timeouts == 0


def test_transport_ack_lost_before_any_round_trip_is_known() -> None:
    """Without a round trip to go by, the timeout itself asks for what is missing."""
    pair = Pair(Config(mtu=1024), filters=[lose_nth({0, 1}, from_b)])
    assert pair.transfer(b"x") == b"x"


def test_first_packet_lost() -> None:
    """The very first packet has nothing to be compared with: one timeout, and nobody is blamed."""
    pair = Pair(Config(mtu=1024, paths=2), filters=[lose_nth({0})])
    started_ns = pair.now_ns
    assert pair.transfer(b"x") == b"x"
    assert pair.now_ns - started_ns == pair.config.timeout_ns + 2 * pair.delay_ns
    assert pair.a.requestor.statistics().timeouts == 1
    assert pair.a.ev_changes() == []


def test_timeout_of_a_missing_packet_blames_its_ev() -> None:
    """Where later packets are known to have arrived the timeout is the fault of the EV."""
    pair = Pair(Config(mtu=256, paths=4, backup_paths=0, timeout=0, spray_run=1))
    pair.filters.append(black_hole(on_ev({FIRST_EV_PORT})))
    sent = bytes(256 * 8)
    assert pair.transfer(sent) == sent
    assert {change.source_port for change in pair.a.ev_changes()} == {FIRST_EV_PORT}


def test_timeout_goes_out_whatever_the_window() -> None:
    """The packet that timed out is sent again even when the window is full."""
    pair, tap = silent(3, 3, mtu=1024)
    pair.post(bytes(1 << 20))
    pair.flush()
    pair.a.requestor.nscc.cwnd = 1024.0
    sent = len(tap.datagrams)
    pair.run_for(T_NS + 1 * US)
    assert [datagram.psn for datagram in tap.datagrams[sent:]] == [pair.a.qp.first_psn]


# The timer by itself.


class Trips:
    """Round trips as the timer sees them."""

    srtt_ns = 0.0
    rttvar_ns = 0.0


def timer(srtt_ns: float = 0, **config: Any) -> RetryTimer:
    """Timer started at 0 for a connection with that round trip."""
    trips = Trips()
    trips.srtt_ns = srtt_ns
    paths: PathSet = trips  # type: ignore[assignment] # all it looks at
    return RetryTimer(Config(**config), paths, 0)


def test_first_interval_is_not_below_the_round_trip() -> None:
    """Where an acknowledgement takes longer than T the first interval waits for it, up to 4 T."""
    assert timer(timeout=8).interval_ns() == T_NS
    assert timer(200 * US, timeout=8).interval_ns() == 400 * US
    assert timer(10 * MS, timeout=8).interval_ns() == 4 * T_NS


def test_probe_comes_before_the_timeout() -> None:
    """A probe is due after a good round trip, 2 ms at least, and half the interval at most."""
    for srtt_ns, probe_ns in ((100 * US, 2 * MS), (5 * MS, 8 * MS), (3 * MS, 6 * MS)):
        made = timer(srtt_ns, timeout=14)
        made.on_sent(0)
        assert made.deadline_ns(0) == pytest.approx(probe_ns, rel=0.05)
        assert made.probe_due(made.deadline_ns(0))
        assert not made.timeout_due(made.deadline_ns(0), 0)
