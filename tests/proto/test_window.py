"""The tracking windows against naive models: sets of PSNs, and nothing clever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrc.proto.window import (
    BITMAP_BITS,
    LOST,
    REMEMBERED_NS,
    RING_PSNS_MIN,
    SENT,
    ReceiveWindow,
    SendWindow,
    stretches,
)

WINDOW = 16
FIRST_PSNS = st.sampled_from([0, 5, (1 << 24) - 3, 31])


# ReceiveWindow.


class NaiveReceiver:
    """What has arrived, as a set."""

    def __init__(self, first_psn: int) -> None:
        self.first = first_psn
        self.arrived: set[int] = set()
        self.ends: set[int] = set()

    @property
    def cack(self) -> int:
        """Highest PSN with nothing missing below it (MRC 1.0 §7.5.2)."""
        psn = self.first - 1
        while psn + 1 in self.arrived:
            psn += 1
        return psn


arrivals = st.lists(
    st.tuples(st.integers(-4, WINDOW + 4), st.integers(1, 5), st.booleans()), max_size=60
)


@given(first=FIRST_PSNS, offered=arrivals)
def test_receive_window_is_a_set(first: int, offered: list[tuple[int, int, bool]]) -> None:
    """Stretches offered anywhere around the window are new, known or beyond as in a set."""
    window, naive = ReceiveWindow(first, WINDOW), NaiveReceiver(first)
    for offset, count, last in offered:
        psn, cack = naive.cack + 1 + offset, naive.cack
        psns = set(range(psn, psn + count))
        new = cack < psn and psn + count - 1 <= cack + WINDOW and not psns & naive.arrived
        assert window.is_new(psn, count) == new
        assert window.beyond(psn) == (psn > cack + WINDOW)
        assert window.has(psn) == (psn <= cack or psn in naive.arrived)
        if not new:
            continue
        advance = window.add(psn, count, last_of_message=last)
        naive.arrived |= psns
        naive.ends |= {psn + count - 1} if last else set()
        assert window.cack == naive.cack
        assert window.max_psn == max(naive.arrived)
        assert window.ooo_count == sum(p > naive.cack for p in naive.arrived)
        if naive.cack == cack:
            assert advance is None
        else:
            ends = {p for p in naive.ends if cack < p <= naive.cack}
            assert advance == (cack + 1, naive.cack, len(ends))


def test_receive_window_goes_on_past_its_ring() -> None:
    """The ring is used round and round: a thousand packets in pairs that arrive swapped."""
    window = ReceiveWindow(7, WINDOW)
    for psn in range(7, 1007, 2):
        assert window.add(psn + 1, 1, last_of_message=False) is None
        assert window.add(psn, 1, last_of_message=True) == (psn, psn + 1, 1)
    assert (window.cack, window.ooo_count) == (1006, 0)


@pytest.mark.parametrize("first", [0, (1 << 24) - 1])
def test_accept_window(first: int) -> None:
    """New PSNs are accepted in [ePSN, ePSN + MPR), no further."""
    window = ReceiveWindow(first, WINDOW)
    assert [window.beyond(first + i) for i in (0, WINDOW - 1, WINDOW)] == [False, False, True]
    assert window.is_new(first + WINDOW - 1, 1)
    assert not window.is_new(first + WINDOW - 1, 2)


# The bitmap of a SACK: MRC 1.0 §7.5.2.2.


def held(first: int, *psns: int) -> ReceiveWindow:
    """Window of 1024 PSNs in which these have arrived, counted from the first."""
    window = ReceiveWindow(first, 1024)
    for psn in psns:
        window.add(first + psn, 1, last_of_message=False)
    return window


def bits(*places: int) -> int:
    """Bit map with these bits set."""
    return sum(1 << place for place in places)


def test_bitmap_of_a_window_without_holes_is_empty() -> None:
    """With nothing above cack the base is cack + 1 and no bit is set."""
    assert held(100, 0, 1).bitmap() == (102, 0)


def test_bitmap_begins_behind_cack() -> None:
    """Bit 0 stands for the first PSN that no SACK has covered, at first cack + 1."""
    assert held(100, 0, 2, 5).bitmap() == (101, bits(1, 4))


def test_bitmap_holds_the_highest_received() -> None:
    """The base is pulled back so that the highest received is the last bit."""
    window = held(100, 70)
    window.bitmap()
    assert window.bitmap() == (100 + 70 - 63, bits(63))


def test_bitmap_rolls_through_a_wide_window() -> None:
    """Further SACKs go on where the last one ended, and begin again behind the highest."""
    window = held(100, 1, 2, 64, 70, 150)
    assert window.bitmap() == (100, bits(1, 2))
    assert window.bitmap() == (164, bits(0, 6))
    assert window.bitmap() == (100 + 150 - 63, bits(63))
    assert window.bitmap() == (100, bits(1, 2))


def test_bitmap_starts_again_when_everything_arrived() -> None:
    """Once there is no hole the next bitmap begins behind the new cack."""
    window = held(100, 1)
    window.bitmap()
    window.add(100, 1, last_of_message=False)
    assert window.bitmap() == (102, 0)
    window.add(103, 1, last_of_message=False)
    assert window.bitmap() == (102, bits(1))


@given(
    first=st.sampled_from([0, 2040, (1 << 24) - 30]),
    places=st.sets(st.integers(1, 1000), min_size=1, max_size=80),
)
def test_bitmap_says_what_has_arrived(first: int, places: set[int]) -> None:
    """Every bit is exactly whether that PSN has arrived, and a few SACKs cover the whole window."""
    window = held(first, *places)
    covered: set[int] = set()
    for _ in range(2 + max(places) // BITMAP_BITS):
        base, bitmap = window.bitmap()
        seen = {base + i - first for i in range(BITMAP_BITS) if bitmap >> i & 1}
        assert seen == {p for p in places if base <= first + p < base + BITMAP_BITS}
        covered |= seen
    assert covered == places


# SendWindow.


def sent(first: int, *runs: tuple[int, int]) -> SendWindow:
    """Window in which runs of (count, EV) were sent one after the other, a nanosecond each."""
    window = SendWindow(first, WINDOW)
    for time, (count, ev) in enumerate(runs):
        window.send_new(count, [ev], time, 1000 + ev, 1000 + ev)
    return window


def test_entries_of_a_run() -> None:
    """Each packet sent is remembered with EV, time, size and its place in the sending order."""
    window = sent(10, (2, 3), (1, 4))
    columns = (window.ev, window.sent_ns, window.orders, window.bytes, window.retries)
    found = [[int(column[window.index(psn)]) for column in columns] for psn in (10, 11, 12)]
    assert found == [[3, 0, 0, 1003, 0], [3, 0, 1, 1003, 0], [4, 1, 2, 1004, 0]]
    assert (window.una, window.nxt, window.outstanding) == (10, 13, 3)


def test_retransmission_is_sent_last() -> None:
    """A packet sent again is the latest in the order, on its new EV, with one retry more."""
    window = sent(10, (3, 1))
    assert window.set_lost(11)
    window.send_again(11, 1, 2, 50)
    at = window.index(11)
    assert (window.orders[at], window.ev[at], window.retries[at]) == (3, 2, 1)
    assert (window.state[at], window.sent_ns[at], window.outstanding) == (SENT, 50, 3)


def test_retries_are_counted_to_255() -> None:
    """The retry count of a packet stops at what one byte holds."""
    window = sent(10, (1, 1))
    for _ in range(300):
        window.set_lost(10)
        window.send_again(10, 1, 1, 0)
    assert window.retries[window.index(10)] == 255


@pytest.mark.parametrize(("psn", "known"), [(9, False), (10, True), (19, True), (20, False)])
def test_entries_of_the_first_ring(psn: int, *, known: bool) -> None:
    """Only what was sent is remembered, nothing before the first PSN and nothing to come."""
    window = SendWindow(10, WINDOW)
    window.send_new(10, [0], 0, 1, 1)
    assert window.remembers(psn) is known


def test_entries_are_remembered_for_one_ring() -> None:
    """An entry is known until its place in the ring is used again."""
    window = SendWindow(0, WINDOW)
    for _ in range(96):
        window.send_new(1, [0], 0, 1, 1)
        window.ack_through(window.nxt - 1)
    assert window.size == 32
    assert [window.remembers(p) for p in (63, 64, 95, 96)] == [False, True, True, False]


def test_lost_only_while_in_flight() -> None:
    """A PSN is found lost once; not when acknowledged, waiting for retransmission or never sent."""
    window = sent(10, (3, 1))
    window.ack_through(10)
    window.ack_bits(12, 1)
    assert [window.set_lost(psn) for psn in (9, 10, 11, 11, 12, 13)] == [
        False, False, True, False, False, False,
    ]  # fmt: skip
    assert window.state[window.index(11)] == LOST


def test_acknowledged_while_lost() -> None:
    """A packet that arrives while it waits for its retransmission is told apart."""
    window = sent(10, (3, 1))
    window.set_lost(11)
    (acked,) = window.ack_through(12)
    assert acked.lost_psns() == [11]
    assert window.outstanding == 0


def test_missing_are_those_sent_before_the_trigger() -> None:
    """A hole is missing only if it was sent before what caused the SACK, retransmissions too."""
    window = sent(10, (4, 1))
    assert window.mark_missing(10, 14, 2) == [10, 11]
    assert [window.is_missing(psn) for psn in range(10, 14)] == [True, True, False, False]
    window.set_lost(10)
    window.send_again(10, 1, 2, 9)
    assert window.mark_missing(10, 14, 4) == [11, 12, 13]


def test_acknowledged_is_no_longer_missing() -> None:
    """What a later SACK has is not missing any more."""
    window = sent(10, (4, 1))
    window.mark_missing(10, 14, 4)
    window.ack_bits(12, 1)
    window.ack_through(10)
    assert [window.is_missing(psn) for psn in (11, 12, 13)] == [True, False, True]
    window.ack_through(13)
    assert not window.any_missing


def test_missing_outside_the_window_is_nothing() -> None:
    """PSNs below una and beyond nxt are never missing, nor is an empty stretch."""
    window = sent(10, (4, 1))
    window.ack_through(11)
    assert window.mark_missing(0, 100, 4) == [12, 13]
    assert window.mark_missing(12, 12, 4) == []


class NaiveSender:
    """What is in flight, as a set."""

    def __init__(self, first_psn: int) -> None:
        self.una = self.nxt = first_psn
        self.flying: set[int] = set()

    def send(self, count: int) -> None:
        """Send new packets."""
        self.flying |= set(range(self.nxt, self.nxt + count))
        self.nxt += count

    def ack(self, psns: set[int]) -> set[int]:
        """Acknowledge PSNs; return those that were in flight."""
        found = self.flying & psns
        self.flying -= found
        return found


steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, WINDOW), st.just(0)),
        st.tuples(st.just("through"), st.integers(-3, WINDOW), st.just(0)),
        st.tuples(st.just("bits"), st.integers(-70, WINDOW), st.integers(0, (1 << 64) - 1)),
    ),
    max_size=40,
)


@given(first=FIRST_PSNS, todo=steps)
def test_send_window_is_a_set(first: int, todo: list[tuple[str, int, int]]) -> None:
    """Any order of sends and acknowledgements finds the same packets as a set would."""
    window, naive = SendWindow(first, WINDOW), NaiveSender(first)
    for what, number, bitmap in todo:
        if what == "send":
            room = naive.una + WINDOW - naive.nxt
            count = min(number, room, window.room_to_edge(naive.nxt))
            if count > 0:
                window.send_new(count, [0], 0, 1, 1)
                naive.send(count)
            continue
        if what == "through":
            last = min(naive.una + number, naive.nxt - 1)
            found = window.ack_through(last)
            expected = naive.ack(set(range(naive.una - 3, last + 1)))
            naive.una = max(naive.una, last + 1)
        else:
            base = naive.una + number
            found = window.ack_bits(base, bitmap)
            expected = naive.ack({base + i for i in range(BITMAP_BITS) if bitmap >> i & 1})
        psns = [acked.first_psn + i for acked in found for i in range(len(acked.evs))]
        assert psns == sorted(expected)
        assert (window.una, window.nxt) == (naive.una, naive.nxt)
        assert window.outstanding == len(naive.flying)


@given(bits=st.integers(0, (1 << 80) - 1))
def test_stretches(bits: int) -> None:
    """A bit set falls into its stretches of ones, in order and apart."""
    found = list(stretches(bits))
    assert sum(((1 << count) - 1) << start for start, count in found) == bits
    ends = [start + count for start, count in found]
    assert all(end < start for end, (start, _) in zip(ends, found[1:], strict=False))


def test_the_ring_grows_with_what_is_in_flight_and_forgets_nothing() -> None:
    """Twice what is in flight fits, and every entry is where its PSN says."""
    window = SendWindow(9, 4096)
    sizes = {window.size}
    for psn in range(9, 309):
        window.send_new(1, [psn % 100], psn, 1, 1)
        sizes.add(window.size)
    at = [window.index(psn) for psn in range(9, 309)]
    assert window.ev[at].tolist() == [psn % 100 for psn in range(9, 309)]
    assert window.orders[at].tolist() == list(range(300))
    assert sizes == {RING_PSNS_MIN << doubled for doubled in range(7)}


@pytest.mark.parametrize(("pause_ns", "size"), [(REMEMBERED_NS, 16), (REMEMBERED_NS // 40, 64)])
def test_the_ring_holds_what_was_sent_of_late(pause_ns: int, size: int) -> None:
    """One packet in flight, sent again and again: only those of the last second are kept."""
    window = SendWindow(0, 4096)
    for turn in range(300):
        window.send_new(1, [0], turn * pause_ns, 1, 1)
        window.ack_through(turn)
    assert window.size == size


def test_what_was_forgotten_stays_forgotten_when_the_ring_grows() -> None:
    """Every PSN that is remembered has the entry that it was sent with."""
    window = SendWindow(0, 4096)
    for psn in range(40):
        window.send_new(1, [psn], psn * REMEMBERED_NS, 1, 1)
        window.ack_through(psn)
    for psn in range(40, 80):
        window.send_new(1, [psn], 40 * REMEMBERED_NS, 1, 1)
        remembered = [p for p in range(psn + 1) if window.remembers(p)]
        assert [int(window.ev[window.index(p)]) for p in remembered] == remembered


def test_runs_on_several_evs_are_entered_at_once() -> None:
    """Each run has its EV, all packets follow each other, and only the last may be shorter."""
    window = SendWindow(5, 256)
    window.send_new(3, [7, 8, 7], 1, 100, 40)
    at = [window.index(psn) for psn in range(5, 14)]
    assert window.ev[at].tolist() == [7, 7, 7, 8, 8, 8, 7, 7, 7]
    assert window.orders[at].tolist() == list(range(9))
    assert window.bytes[at].tolist() == [100] * 8 + [40]
    assert (window.nxt, window.outstanding) == (14, 9)
