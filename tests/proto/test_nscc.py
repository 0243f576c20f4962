"""NSCC, step by step: every expected window was worked out by hand from the formulas.

The network is UET's reference, 100 Gb/s and 12 us, with trimming, unless a test says otherwise.
"""

from __future__ import annotations

from typing import Any

import pytest

from mrc.proto.nscc import Nscc, NsccParameters

US = 1_000
NOW = 1_000_000_000
MTU = 4096
TARGET = 9 * US
"""Delay target of the reference network."""


def parameters(**changed: Any) -> NsccParameters:
    """Parameters of the reference network."""
    reference: dict[str, Any] = {
        "mtu": MTU,
        "link_bps": 100e9,
        "base_rtt_ns": 12 * US,
        "trimming": True,
    }
    return NsccParameters.derive(**reference | changed)


def nscc(cwnd: float, **changed: Any) -> Nscc:
    """Controller with a given window, last adjusted just now."""
    made = Nscc(parameters(**changed), NOW)
    made.cwnd = cwnd
    return made


def ack(made: Nscc, delay_ns: int, *, count: int = 1, marked: bool = False, now: int = NOW) -> None:
    """Feed acknowledgements of one MTU each, all with the same queueing delay."""
    for _ in range(count):
        made.on_ack(MTU, now, marked=marked, rtt_ns=12 * US + delay_ns)


# Parameters: UET table 3-76.


@pytest.mark.parametrize(
    ("gbps", "rtt_us", "trimming", "expected"),
    [
        (100, 12, True, "225000  9.0 1365.3 20480  614.4 0.250  28125"),
        (400, 12, True, "900000  9.0 5461.3 81920 2457.6 1.000 112500"),
        (800, 6, True, " 900000  4.5 5461.3 81920 2457.6 1.000 112500"),
        (400, 8, False, "600000  8.0 3640.9 54613 1638.4 0.667  75000"),
        (10, 100, True, "187500 75.0 1137.8 17067  512.0 0.208  23437"),
    ],
)
def test_parameters_of_known_networks(
    gbps: int, rtt_us: int, *, trimming: bool, expected: str
) -> None:
    """Rate, idle round trip and trimming give MaxWnd, target, alpha, fi, eta, fi_scale and gate."""
    p = parameters(link_bps=gbps * 1e9, base_rtt_ns=rtt_us * US, trimming=trimming)
    window = Nscc(p, NOW).max_wnd
    found = (
        window,
        p.target_qdelay_ns / US,
        p.alpha * US,
        p.fi,
        p.eta,
        p.fi_scale,
        int(window) >> p.qa_gate,
    )
    assert found == pytest.approx([float(text) for text in expected.split()], rel=2e-3)


def test_first_window_is_the_largest() -> None:
    """A connection begins with MaxWnd, 1.5 BDP."""
    assert Nscc(parameters(), NOW).cwnd == 225_000


def test_delay_alone_triggers_quick_adapt_only_without_trimming() -> None:
    """The quick-adapt threshold is four targets where nothing trims, and out of reach else."""
    assert parameters(trimming=False).qa_threshold_ns == 48 * US
    assert parameters(trimming=True).qa_threshold_ns == float("inf")


def test_window_stays_below_the_receive_buffer() -> None:
    """What the receiver's sockets can hold bounds the window, whatever the network holds."""
    assert Nscc(parameters(window_bytes_max=50_000), NOW).cwnd == 50_000


def test_measured_round_trip_allows_for_the_host() -> None:
    """Where the base round trip was measured, delays that a busy host adds are no queues."""
    p = parameters(trimming=False, measured=True)
    assert (p.target_qdelay_ns, p.qa_threshold_ns) == (1_000 * US, 20_000 * US)
    slow = parameters(trimming=False, measured=True, base_rtt_ns=50_000 * US)
    assert (slow.target_qdelay_ns, slow.qa_threshold_ns) == (50_000 * US, 200_000 * US)


def test_unknown_link() -> None:
    """Without a rate the window begins with 32 packets and only the receive buffer bounds it."""
    made = Nscc(parameters(link_bps=0, window_bytes_max=5e6), NOW)
    assert (made.cwnd, made.max_wnd) == (32 * MTU, 5e6)
    reference = parameters(trimming=False)
    assert (made.p.fi, made.p.eta) == (reference.fi, reference.eta)


def test_rebase() -> None:
    """A measured base round trip, also a longer one, changes all that follows from it."""
    made = Nscc(parameters(), NOW)
    made.rebase(100 * US)
    known = parameters(base_rtt_ns=100 * US)
    assert made.p == known
    assert (made.base_rtt_ns, made.max_wnd) == (100 * US, Nscc(known, NOW).max_wnd)


# Sending.


def test_room_is_what_the_window_leaves() -> None:
    """A packet may go while inflight + size <= cwnd (UET CanSend)."""
    made = nscc(10_000)
    made.on_send(6_000)
    assert made.room_bytes() == 4_000


@pytest.mark.parametrize(
    ("cwnd", "inflight", "wants"),
    [(100_000, 95_904, False), (100_000, 95_905, True), (16_383, 0, True), (16_384, 0, False)],
)
def test_ack_request(cwnd: int, inflight: int, *, wants: bool) -> None:
    """A SACK is asked for when less than an MTU fits, or below the SACK trigger (UET)."""
    made = nscc(cwnd)
    made.on_send(inflight)
    assert made.wants_ack() is wants


# Increase.


def test_fair_increase() -> None:
    """At the target delay without a mark the window grows by fi * n / cwnd."""
    made = nscc(150_000)
    ack(made, TARGET, count=8)
    assert made.cwnd == 150_000
    ack(made, TARGET)
    assert made.cwnd == pytest.approx(155_033.16, abs=0.01)


def test_proportional_increase() -> None:
    """Below the target the window grows by alpha * n * (target - delay) / cwnd."""
    made = nscc(150_000)
    ack(made, 4_500, count=9)
    assert made.cwnd == pytest.approx(151_509.95, abs=0.01)


def test_fast_increase_begins_after_one_window_without_delay() -> None:
    """Once a whole window came back undelayed, each further byte adds fi_scale bytes."""
    made = nscc(20_480)
    ack(made, 0, count=5)
    assert (made.cwnd, made.increase_mode) == (20_480, False)
    ack(made, 0)
    assert (made.cwnd, made.increase_mode) == (21_504, True)
    ack(made, 0)
    assert made.cwnd == 22_528


def test_fast_increase_ends_with_the_first_delay() -> None:
    """A delay that is not about zero clears the count and leaves fast increase."""
    made = nscc(20_480)
    ack(made, 0, count=6)
    ack(made, 2 * US)
    assert (made.increase_mode, made.fi_count) == (False, 0)


def test_fast_increase_stops_at_the_largest_window() -> None:
    """No increase takes the window above 1.5 BDP."""
    made = nscc(224_900)
    made.increase_mode = True
    ack(made, 0)
    assert made.cwnd == 225_000


def test_adjust_period_adds_eta() -> None:
    """Once an adjust period the window grows by eta, up to the largest window."""
    made = nscc(100_000)
    made.on_ack(0, NOW + 12 * US, marked=True, rtt_ns=12 * US)
    assert made.cwnd == pytest.approx(100_614.4)

    made = nscc(224_900)
    made.on_ack(0, NOW + 12 * US, marked=True, rtt_ns=12 * US)
    assert made.cwnd == 225_000


def test_adjustment_waits_for_bytes_or_time() -> None:
    """Increases are gathered until more than 8 MTU came back or an adjust period is over."""
    made = nscc(150_000)
    ack(made, TARGET, count=8)
    ack(made, TARGET, now=NOW + 12 * US)
    assert made.cwnd == pytest.approx(155_033.16 + 614.4, abs=0.01)
    assert (made.inc_bytes, made.received_bytes) == (0, 0)


# Decrease.


def settled(average_us: int, *, now: int) -> Nscc:
    """Controller that has seen only this delay for long, with its last cut long ago."""
    made = nscc(150_000)
    made.average_delay_ns = average_us * US
    made.last_sample_ns = now
    return made


@pytest.mark.parametrize(("average_us", "window"), [(18, 90_000), (90, 75_000)])
def test_decrease(average_us: int, window: int) -> None:
    """A mark with delay cuts by gamma * (avg - target) / avg, at most by half."""
    now = NOW + 13 * US
    made = settled(average_us, now=now)
    made.last_adjust_ns = now
    ack(made, 9 * US, marked=True, now=now)
    assert made.cwnd == pytest.approx(window)


def test_decrease_once_a_round_trip() -> None:
    """A second cut comes only when more than a round trip has gone by since the first."""
    now = NOW + 13 * US
    made = settled(18, now=now)
    made.last_adjust_ns = now
    ack(made, 9 * US, count=3, marked=True, now=now)
    assert made.cwnd == pytest.approx(90_000)


def test_mark_without_delay_changes_nothing() -> None:
    """A marked packet that did not wait long is left to load balancing."""
    made = settled(18, now=NOW + 13 * US)
    made.last_adjust_ns = NOW + 13 * US
    ack(made, 8 * US, marked=True, now=NOW + 13 * US)
    assert (made.cwnd, made.inc_bytes) == (150_000, 0)


def slow(cwnd: float) -> Nscc:
    """Controller on 200 Mb/s and 3 ms, where alpha alone would fill the window in a round trip."""
    made = nscc(cwnd, link_bps=200e6, base_rtt_ns=3_000 * US)
    made.last_adjust_ns = NOW
    return made


def test_who_met_congestion_on_a_slow_link_grows_gently() -> None:
    """From then on a sixteenth of what link and queue hold a round trip at most."""
    growing, sharing = slow(20_000), slow(20_000)
    sharing.on_nack(0, NOW, trimmed=True)
    for made in (growing, sharing):
        made.on_ack(4 * MTU, NOW, marked=False, rtt_ns=4_000 * US)
    alpha = growing.p.alpha
    assert growing.inc_bytes == pytest.approx(4 * MTU * alpha * (2_250 - 1_000) * US)
    held = 200e6 / 8 * (3_000 + 2_250) / 1e6
    assert sharing.inc_bytes == pytest.approx(4 * MTU * held / 16 * (2_250 - 1_000) / 2_250)


def test_marks_in_a_long_queue_tell_that_others_are_there() -> None:
    """As trims do, where nothing trims; a mark without delay does not."""
    for trimming, rtt_ns, told in (
        (False, 4_000 * US, False),
        (False, 8_000 * US, True),
        (True, 8_000 * US, False),
    ):
        made = nscc(20_000, link_bps=200e6, base_rtt_ns=3_000 * US, trimming=trimming)
        made.on_ack(MTU, NOW, marked=True, rtt_ns=rtt_ns)
        assert made.sharing == told


def test_full_window_ends_the_sharing() -> None:
    """Nobody else is there any more: the next loss is made good quickly."""
    made = slow(20_000)
    made.on_nack(0, NOW, trimmed=True)
    assert made.sharing
    made.cwnd = made.max_wnd
    made.on_ack(MTU, NOW + 4_000 * US, marked=False, rtt_ns=3_500 * US)
    assert not made.sharing


def test_fabrics_of_hardware_keep_the_alpha_of_the_specification() -> None:
    """Up to round trips of a millisecond nothing is different."""
    made = parameters(link_bps=10e9, base_rtt_ns=100 * US)
    assert made.alpha_sharing == made.alpha


def test_average_delay_follows_over_one_round_trip() -> None:
    """A sample weighs by the time since the last, and wholly after one base round trip."""
    made = nscc(150_000)
    ack(made, 8 * US, now=NOW + 6 * US)
    assert made.average_delay_ns == pytest.approx(4 * US)
    ack(made, 2 * US, now=NOW + 60 * US)
    assert made.average_delay_ns == pytest.approx(2 * US)


# Losses and trims.


def gated(achieved: int) -> Nscc:
    """Controller at the end of a quick-adapt period in which that much was achieved."""
    made = nscc(150_000)
    made.qa_endtime_ns = NOW - 1
    made.achieved_bytes = achieved
    made.inflight_bytes = 100_000
    return made


def test_quick_adapt_falls_to_what_was_achieved() -> None:
    """A trim after a period that achieved less than max_wnd / 8 sets the window to that."""
    made = gated(20_000)
    made.on_nack(4_180, NOW, trimmed=True)
    assert made.cwnd == 20_000
    assert made.bytes_to_ignore == made.inflight_bytes == 95_820


def test_trim_after_a_good_period_costs_its_own_size() -> None:
    """A trim cuts the window by the packet when the period achieved max_wnd / 8 or more."""
    made = gated(30_000)
    made.on_nack(4_180, NOW, trimmed=True)
    assert made.cwnd == 150_000 - 4_180


def test_quick_adapt_ignores_what_was_already_in_flight() -> None:
    """Until as much as was in flight came back, further marks and trims are not counted again."""
    made = gated(20_000)
    made.on_nack(4_180, NOW, trimmed=True)
    made.on_nack(4_180, NOW, trimmed=True)
    made.on_ack(4_180, NOW, marked=True, rtt_ns=40 * US)
    assert made.cwnd == 20_000
    assert made.bytes_ignored == 8_360


def test_quick_adapt_by_delay_without_trimming() -> None:
    """Without trimming a delay above four targets is as good as a loss."""
    made = nscc(150_000, trimming=False)
    made.qa_endtime_ns = NOW - 1
    ack(made, 49 * US)
    assert made.cwnd == MTU


def test_quick_adapt_can_be_switched_off() -> None:
    """With quick adapt disabled a trim costs its own size only."""
    made = nscc(150_000, quick_adapt=False)
    made.qa_endtime_ns = NOW - 1
    made.on_nack(4_180, NOW, trimmed=True)
    assert made.cwnd == 145_820


def test_nack_without_a_trim_is_no_congestion() -> None:
    """Any other NACK takes the packet off what is in flight and leaves the window alone."""
    made = nscc(150_000)
    made.on_send(4_180)
    made.on_nack(4_180, NOW, trimmed=False, rtt_ns=11 * US)
    assert (made.cwnd, made.inflight_bytes, made.base_rtt_ns) == (150_000, 0, 11 * US)


def test_inferred_loss_costs_its_own_size() -> None:
    """A packet lost without a NACK cuts the window by its size, never below one MTU."""
    made = nscc(150_000)
    made.on_send(4_180)
    made.on_inferred_loss(4_180)
    assert (made.cwnd, made.inflight_bytes) == (145_820, 0)
    made.cwnd = 5_000
    made.on_inferred_loss(4_180)
    assert made.cwnd == MTU


def test_spurious_loss_gives_the_window_back() -> None:
    """A loss that was none is undone; its bytes are in flight again unless they were sent again."""
    made = nscc(150_000)
    made.on_send(4_180)
    made.on_inferred_loss(4_180)
    made.on_spurious_loss(4_180, resent=False)
    assert (made.cwnd, made.inflight_bytes) == (150_000, 4_180)

    made.on_inferred_loss(4_180)
    made.on_send(4_180)
    made.on_spurious_loss(4_180, resent=True)
    assert (made.cwnd, made.inflight_bytes) == (150_000, 4_180)


# Base round trip.


def test_shorter_round_trip_lowers_the_largest_window() -> None:
    """max_wnd follows the least round trip at once, cwnd at the next adjustment."""
    made = nscc(225_000)
    made.on_ack(MTU, NOW, marked=True, rtt_ns=10 * US)
    assert (made.max_wnd, made.cwnd) == (187_500, 225_000)
    made.on_ack(MTU, NOW + 12 * US, marked=True, rtt_ns=10 * US)
    assert made.cwnd == 187_500


def test_base_round_trip_never_grows() -> None:
    """Longer samples, and impossible ones of zero or less, leave the base round trip alone."""
    made = nscc(150_000)
    for sample_ns in (13 * US, 0, -5):
        made.on_base_rtt(sample_ns)
    assert made.base_rtt_ns == 12 * US


# The receiver's penalty.


def test_penalty_takes_its_share_of_what_arrived() -> None:
    """rcv_cwnd_pen 64 of 128 takes half the acknowledged bytes off the window."""
    made = nscc(150_000)
    made.on_send(150_000)
    made.on_ack(MTU, NOW, marked=False, rtt_ns=12 * US, penalty=64)
    assert made.cwnd == 150_000 - MTU - 2_048
    assert made.saved_cwnd == 150_000


def test_penalty_of_one_round_trip_halves_the_window() -> None:
    """64 in each SACK of a round trip halves the window, 127 leaves about one packet."""
    for penalty, low, high in ((64, 70_000, 80_000), (127, MTU, 6_000)):
        made = nscc(150_000)
        made.on_send(150_000)
        for _ in range(36):
            made.on_ack(MTU, NOW, marked=True, rtt_ns=None, penalty=penalty)
            made.on_send(MTU)
        assert low <= made.cwnd < high


def test_penalty_holds_increases_back() -> None:
    """While the receiver penalises, no acknowledgement makes the window grow."""
    made = nscc(150_000)
    made.on_send(150_000)
    made.on_ack(MTU, NOW, marked=False, rtt_ns=21 * US, penalty=1)
    assert made.inc_bytes == 0


def test_restore_gives_back_the_window_of_before() -> None:
    """restore_cwnd brings back the window of before the first penalty, once."""
    made = nscc(150_000)
    made.on_send(150_000)
    for penalty in (64, 64):
        made.on_ack(MTU, NOW, marked=True, rtt_ns=None, penalty=penalty)
    made.on_ack(0, NOW, marked=True, rtt_ns=None, restore=True)
    assert (made.cwnd, made.saved_cwnd) == (150_000, 0)

    made.cwnd = 100_000
    made.on_ack(0, NOW, marked=True, rtt_ns=None, restore=True)
    assert made.cwnd == 100_000


# Counting.


def test_acknowledgement_without_a_sample_counts_bytes_only() -> None:
    """Without a valid round trip only the byte counters move."""
    made = nscc(150_000)
    made.on_send(MTU)
    made.on_ack(MTU, NOW + 12 * US, marked=True, rtt_ns=None)
    assert (made.cwnd, made.inflight_bytes) == (150_000, 0)
    assert (made.achieved_bytes, made.received_bytes, made.bytes_ignored) == (MTU, MTU, MTU)


def test_inflight_may_go_below_zero() -> None:
    """In-flight bytes are signed: rounding on the wire may take off a little too much."""
    made = nscc(150_000)
    made.on_send(4_180)
    made.on_ack(4_352, NOW, marked=False, rtt_ns=None)
    assert made.inflight_bytes == -172


@pytest.mark.parametrize("measured", [True, False])
def test_delay_alone_on_a_busy_host_leaves_an_eighth_of_the_window(*, measured: bool) -> None:
    """Who was off the processor has achieved nothing, whatever the network can carry."""
    made = Nscc(parameters(trimming=False, measured=measured), 0)
    made.qa_endtime_ns = 1
    made.on_ack(256, 100_000 * US, marked=False, rtt_ns=99_000 * US)
    least = int(made.max_wnd) >> made.p.qa_gate
    assert made.cwnd == (least if measured else made.p.mtu)
    made.trigger_qa, made.qa_endtime_ns = True, 1
    made.on_ack(256, 200_000 * US, marked=False, rtt_ns=99_000 * US)
    assert made.cwnd == made.p.mtu, "a trim is a sign of the network"
