"""Hosts whose clock jumps or stands still, and processes that were stopped for a minute.

In virtual time; a real process that is stopped for a while is in tests/cli/test_faulty_transfers.
"""

from __future__ import annotations

from typing import Any

import pytest

from mrc.proto.config import Config
from mrc.proto.events import QpFailed, QpFailure
from mrc.proto.statistics import RequestorStatistics
from tests.hostile.hosts import Host
from tests.support.filters import lose
from tests.support.pair import MS, Filter, Pair, S

SIZE = 4 << 20
PAUSE_NS = 60 * S
CALM_NS = 60 * MS
"""What the transfer takes where nothing happens is 42 ms."""


class Transfer:
    """A write of 4 MiB from A to B over four planes, 5 ms after its beginning."""

    def __init__(self, odd_one: int, filters: list[Filter] | None = None, **config: Any) -> None:
        """Let the host of A (0) or B (1) be the odd one."""
        settings = Config(mtu=1024, link_bps=800_000_000, **config)
        self.pair = Pair(settings, planes=4, link_bps=200e6, filters=filters)
        self.host = Host(self.pair.sides[odd_one])
        self.data = self.pair.rng.randbytes(SIZE)
        self.work, self.target = self.pair.post(self.data, imm=3)
        self.pair.run_for(5 * MS)
        assert not self.pair.done(self.work)

    def pause(self) -> None:
        """Stop the odd host's process for a minute."""
        self.host.stopped = True
        self.pair.run_for(PAUSE_NS)
        self.host.go_on(self.pair.now_ns)

    def ends_well_within(self, limit_ns: int) -> RequestorStatistics:
        """Run to the end: every byte is there, announced once, nothing failed, no EV blamed."""
        self.pair.run(lambda: self.pair.done(self.work), limit_ns)
        assert self.target == self.data
        assert self.pair.immediates() == [3]
        assert not self.pair.failed()
        found = self.pair.a.requestor.statistics()
        assert found.inflight_bytes == 0
        return found


# The clock.


@pytest.mark.parametrize("odd_one", [0, 1], ids=["sender", "receiver"])
def test_clock_that_jumps_back_is_no_event(odd_one: int) -> None:
    """Ten seconds back in mid-transfer: nothing is sent twice, nobody is blamed."""
    transfer = Transfer(odd_one)
    transfer.host.ahead_ns -= 10 * S
    found = transfer.ends_well_within(CALM_NS)
    assert (found.packets_retransmitted, found.packets_spurious, found.timeouts) == (0, 0, 0)
    assert transfer.pair.a.ev_changes() == []


@pytest.mark.parametrize("odd_one", [0, 1], ids=["sender", "receiver"])
def test_clock_that_jumps_ahead_costs_a_timeout_at_most(odd_one: int) -> None:
    """Ten seconds ahead look like ten seconds of silence: one packet goes again, no EV leaves."""
    transfer = Transfer(odd_one)
    transfer.host.ahead_ns += 10 * S
    found = transfer.ends_well_within(CALM_NS)
    assert found.packets_retransmitted == found.timeouts <= 1
    assert transfer.pair.a.ev_changes() == []


@pytest.mark.parametrize("odd_one", [0, 1], ids=["sender", "receiver"])
def test_clock_that_jumps_back_does_not_stop_the_timers(odd_one: int) -> None:
    """Ten seconds back while packets get lost: no timer waits until the old time is reached."""
    transfer = Transfer(odd_one, [lose(0.02)])
    transfer.host.ahead_ns -= 10 * S
    assert transfer.ends_well_within(CALM_NS).packets_spurious == 0


def test_clock_that_stands_still_measures_nothing() -> None:
    """What comes back at the time it was sent is no sample; the first one comes when it goes on."""
    pair = Pair(Config(mtu=1024, link_bps=800_000_000), planes=4, link_bps=200e6)
    host = Host(pair.a)
    host.stands_at_ns = pair.now_ns
    data = pair.rng.randbytes(100_000)
    assert pair.transfer(data) == data
    assert pair.a.requestor.statistics().srtt_ns == 0
    host.stands_at_ns = None
    assert pair.transfer(data) == data
    found = pair.a.requestor.statistics()
    assert found.rtt_min_ns > 2 * pair.delay_ns
    assert found.packets_retransmitted == 0


# The process.


def test_sender_stopped_for_a_minute_goes_on_where_it_was() -> None:
    """It hears what waited before it looks at its timers: no timeout, no loss, nobody blamed."""
    transfer = Transfer(0)
    transfer.pause()
    found = transfer.ends_well_within(CALM_NS)
    assert (found.packets_retransmitted, found.timeouts) == (0, 0)
    assert transfer.pair.a.ev_changes() == []


def test_receiver_stopped_for_a_minute_costs_timeouts_only() -> None:
    """With a budget above it the sender waits, and resends no more than one packet a timeout."""
    transfer = Transfer(1, retry_exponential=9)
    transfer.pause()
    found = transfer.ends_well_within(CALM_NS)
    assert found.packets_retransmitted == found.timeouts > 0
    assert found.packets_lost == 0
    assert [side.ev_changes() for side in transfer.pair.sides] == [[], []]


def test_receiver_stopped_beyond_the_retry_budget_is_given_up() -> None:
    """The default budget is 9 s: then the queue pair fails, and says how long and how often."""
    transfer = Transfer(1)
    transfer.pause()
    (failed,) = (event for event in transfer.pair.a.events if isinstance(event, QpFailed))
    assert failed.failure is QpFailure.RETRY_EXCEEDED
    assert failed.retry_count == 14
    assert failed.silent_ns == pytest.approx(9 * S, rel=0.01)
    # What the receiver held when it was stopped is placed; nothing beyond it is announced.
    assert transfer.pair.immediates() == []
