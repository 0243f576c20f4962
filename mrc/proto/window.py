"""The two tracking windows: what the requestor has in flight, what the responder has received.

Both are rings indexed by PSN modulo a power of two, so that a run of packets is a slice and a wrap
of the 24-bit PSN is invisible. PSNs here are plain growing integers (`mrc.wire.psn`).

Neither has its full size before it is needed: a queue pair that is idle, or never far ahead of its
acknowledgements, costs a few KiB, and there may be thousands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FREE, SENT, LOST = 0, 1, 2
"""States of a PSN at the requestor: not in flight; in flight; found lost and waiting for its
retransmission."""

BITMAP_BITS = 64
RING_PSNS_MIN = 16
"""What the send window begins with: 22 bytes each."""
REMEMBERED_NS = 1_000_000_000
"""How long the send window remembers what it sent, as far as its full size allows: of a packet that
comes later nobody sees that it was called lost for nothing."""
SENT_AT_ONCE_MAX = 128
"""Packets that are entered together at most: eight runs of 15."""
_COUNTING = np.arange(SENT_AT_ONCE_MAX, dtype=np.int64)


def ring_size(window_psns: int) -> int:
    """Return the power of two that holds a window twice, so that history outlives the window."""
    return 1 << (2 * window_psns - 1).bit_length()


def stretches(bits: int) -> Iterator[tuple[int, int]]:
    """Yield (position of the first, count) for each stretch of consecutive ones."""
    position = 0
    while bits:
        skip = (bits & -bits).bit_length() - 1
        bits >>= skip
        position += skip
        count = (bits ^ (bits + 1)).bit_length() - 1
        yield position, count
        bits >>= count
        position += count


class Acked(NamedTuple):
    """Consecutive packets newly known to have arrived, as columns."""

    first_psn: int
    evs: NDArray[np.uint16]
    orders: NDArray[np.int64]
    states: NDArray[np.uint8]

    def lost_psns(self) -> list[int]:
        """Return those of them that were waiting for their retransmission."""
        lost: list[int] = (np.flatnonzero(self.states == LOST) + self.first_psn).tolist()
        return lost


class SendWindow:
    """What is in flight: one entry per PSN, never more than the ring holds.

    `una` is the lowest PSN not yet acknowledged, `nxt` the next new one; PSNs in [una, nxt) are in
    flight, lost, or acknowledged out of order. Which of them are acknowledged, and which are
    *missing* (a SACK caused by something sent later did not have them), are bit sets in two
    integers, bit 0 for `una`: most SACKs repeat what is known, and an integer tells that at once.
    """

    def __init__(self, first_psn: int, window_psns: int) -> None:
        self.size_max = ring_size(window_psns)
        self.size = min(RING_PSNS_MIN, self.size_max)
        """Entries of the ring; it doubles when what is in flight asks for it."""
        self._mask = self.size - 1
        self._first = first_psn
        self.una = first_psn
        self.nxt = first_psn
        self.outstanding = 0
        """PSNs in [una, nxt) that are not acknowledged."""
        self.order = 0
        """Packets sent so far, retransmissions included: the place of the next in the order."""
        self._acked_bits = 0
        self._missing_bits = 0
        self.state = np.zeros(self.size, np.uint8)
        self.ev = np.zeros(self.size, np.uint16)
        self.orders = np.zeros(self.size, np.int64)
        self.sent_ns = np.zeros(self.size, np.int64)
        self.bytes = np.zeros(self.size, np.uint16)
        self.retries = np.zeros(self.size, np.uint8)

    def index(self, psn: int) -> int:
        """Return the ring index of a PSN."""
        return psn & self._mask

    def room_to_edge(self, psn: int) -> int:
        """Return how many PSNs from this one lie in the ring without a wrap."""
        return self.size - (psn & self._mask)

    def remembers(self, psn: int) -> bool:
        """Tell whether the entry of a PSN that was sent has not been reused yet."""
        return max(self._first, self.nxt - self.size) <= psn < self.nxt

    @property
    def held(self) -> int:
        """PSNs above `una` that are acknowledged: what the responder holds, as far as is known."""
        return self.nxt - self.una - self.outstanding

    # Sending.

    def send_new(
        self, count: int, evs: Sequence[int], now_ns: int, size_bytes: int, last_bytes: int
    ) -> None:
        """Enter the next PSNs: `count` for each of these EVs, SENT_AT_ONCE_MAX together at most.

        They must not cross the ring's edge. All packets are of one size, but for the last.
        """
        total = count * len(evs)
        if self.size < self.size_max:
            self._make_room(total, now_ns)
        first = self.nxt
        at = self._at(first, total)
        self.retries[at] = 0
        self._enter(at, total, evs[0], now_ns)
        for i, ev in enumerate(evs[1:], 1):
            self.ev[self._at(first + i * count, count)] = ev
        self.bytes[at] = size_bytes
        self.nxt += total
        self.outstanding += total
        self.bytes[self.index(self.nxt - 1)] = last_bytes

    def _make_room(self, count: int, now_ns: int) -> None:
        """Make the ring longer when what is in flight, or was sent of late, asks for it."""
        end, size = self.nxt + count, self.size
        if end - self._first > size and (
            now_ns - self.sent_ns[self.index(end - 1)] < REMEMBERED_NS
        ):
            size *= 2
        while size < min(2 * (end - self.una), self.size_max):
            size *= 2
        if size > self.size:
            self._lengthen(size)

    def _lengthen(self, size: int) -> None:
        """Go over to a longer ring: what did not cross the edge does not cross the new one."""
        # What is forgotten by now is not remembered again because there is more room.
        self._first = max(self._first, self.nxt - self.size)
        psns = np.arange(self._first, self.nxt)
        before = psns & self._mask
        self.size = size
        self._mask = size - 1
        after = psns & self._mask
        for name in ("state", "ev", "orders", "sent_ns", "bytes", "retries"):
            column = getattr(self, name)
            longer = np.zeros(size, column.dtype)
            longer[after] = column[before]
            setattr(self, name, longer)

    def send_again(self, psn: int, count: int, ev: int, now_ns: int) -> None:
        """Enter the retransmission of PSNs that were lost."""
        at = self._at(psn, count)
        self.retries[at] = np.minimum(self.retries[at], 254) + 1
        self._enter(at, count, ev, now_ns)

    def _at(self, psn: int, count: int) -> slice | int:
        """Return where consecutive PSNs are; of one its index, which costs a third."""
        first = psn & self._mask
        return slice(first, first + count) if count > 1 else first

    def _enter(self, at: slice | int, count: int, ev: int, now_ns: int) -> None:
        self.state[at] = SENT
        self.ev[at] = ev
        self.sent_ns[at] = now_ns
        self.orders[at] = self.order if count == 1 else _COUNTING[:count] + self.order
        self.order += count

    # Acknowledgements.

    def ack_through(self, psn: int) -> list[Acked]:
        """Acknowledge everything up to a PSN and move `una` behind it."""
        span = psn - self.una + 1
        if span <= 0:
            return []
        new = ~self._acked_bits & ((1 << span) - 1)
        found = self._take(new)
        self.una += span
        self._acked_bits >>= span
        self._missing_bits >>= span
        return found

    def ack_bits(self, base: int, bitmap: int) -> list[Acked]:
        """Acknowledge the PSNs of a SACK bitmap; bit 0 stands for `base`."""
        new = self._shifted(base, bitmap) & ~self._acked_bits
        if not new:
            return []
        self._acked_bits |= new
        self._missing_bits &= ~new
        return self._take(new)

    def _shifted(self, base: int, bits: int) -> int:
        """Return bits that count from `base` as bits that count from `una`, none beyond `nxt`."""
        shift = base - self.una
        bits = bits << shift if shift >= 0 else bits >> -shift
        return bits & ((1 << (self.nxt - self.una)) - 1)

    def _take(self, bits: int) -> list[Acked]:
        """Free the entries of bits that count from `una`; return them, cut at the ring's edge."""
        found = []
        for start, total in stretches(bits):
            psn, end = self.una + start, self.una + start + total
            while psn < end:
                count = min(end - psn, self.room_to_edge(psn))
                at = slice(self.index(psn), self.index(psn) + count)
                states = self.state[at]
                found.append(Acked(psn, self.ev[at], self.orders[at], states.copy()))
                states[:] = FREE
                psn += count
            self.outstanding -= total
        return found

    # Losses.

    def mark_missing(self, start: int, end: int, before_order: int) -> list[int]:
        """Note that PSNs in [start, end) had not arrived when something sent later had.

        Returns:
            The missing PSNs among them, also those that were missing already.
        """
        if end <= start:
            return []
        found: list[int] = []
        asked = self._shifted(start, (1 << (end - start)) - 1)
        for first, total in stretches(asked & ~self._acked_bits):
            # Mostly one or two: an array would cost more than it saves.
            for offset in range(first, first + total):
                at = (self.una + offset) & self._mask
                if self.state[at] == SENT and self.orders[at] < before_order:
                    self._missing_bits |= 1 << offset
                    found.append(self.una + offset)
        return found

    @property
    def any_missing(self) -> bool:
        """Tell whether any PSN is missing."""
        return self._missing_bits != 0

    def is_missing(self, psn: int) -> bool:
        """Tell whether a PSN below nxt is missing."""
        return psn >= self.una and bool(self._missing_bits >> (psn - self.una) & 1)

    def set_lost(self, psn: int) -> bool:
        """Move a PSN that is in flight to LOST; False when it is not in flight."""
        at = self.index(psn)
        if not self.una <= psn < self.nxt or self.state[at] != SENT:
            return False
        self.state[at] = LOST
        self._missing_bits &= ~(1 << (psn - self.una))
        return True


_EMPTY, _HELD, _HELD_LAST = 0, 1, 2
_HELD_BYTE = bytes((_HELD,))


class Advance(NamedTuple):
    """What became contiguous when a hole was filled."""

    first: int
    last: int
    messages: int


class ReceiveWindow:
    """What has arrived: `cack` is the highest PSN with nothing missing below it (MRC 1.0 §7.5.2).

    PSNs in (cack, cack + window] are accepted. Those held above `cack` are one byte each.
    """

    def __init__(self, first_psn: int, window_psns: int) -> None:
        self._size = ring_size(window_psns)
        self._mask = self._size - 1
        self._held = bytearray()
        """A byte each; empty until the first packet arrives out of order."""
        self.window_psns = window_psns
        self.cack = first_psn - 1
        self.max_psn = first_psn - 1
        self.ooo_count = 0
        self._lowest_unsacked = first_psn

    def has(self, psn: int) -> bool:
        """Tell whether a PSN at or below the window's end has arrived."""
        return psn <= self.cack or (psn <= self.max_psn and self._held[psn & self._mask] != _EMPTY)

    def is_new(self, psn: int, count: int) -> bool:
        """Tell whether `count` PSNs from `psn` are all inside the window and none has arrived."""
        if psn <= self.cack or self.beyond(psn + count - 1):
            return False
        if not self.ooo_count or psn > self.max_psn:
            return True
        start = psn & self._mask
        if start + count <= self._size:
            return not any(self._held[start : start + count])
        return not any(self.has(psn + i) for i in range(count))

    def beyond(self, psn: int) -> bool:
        """Tell whether a PSN lies above the window."""
        return psn > self.cack + self.window_psns

    def add(self, psn: int, count: int, *, last_of_message: bool) -> Advance | None:
        """Enter new PSNs; return what became contiguous, if anything.

        Args:
            psn: the first of them; all must be new (`is_new`).
            count: how many.
            last_of_message: the last of them ends a message.
        """
        if psn == self.cack + 1 and not self.ooo_count:
            self.cack = self.max_psn = psn + count - 1
            return Advance(psn, self.cack, int(last_of_message))
        if not self._held:
            self._held = bytearray(self._size)
        start = psn & self._mask
        if start + count <= self._size:
            self._held[start : start + count] = _HELD_BYTE * count
        else:
            for i in range(count):
                self._held[(psn + i) & self._mask] = _HELD
        if last_of_message:
            self._held[(psn + count - 1) & self._mask] = _HELD_LAST
        self.ooo_count += count
        self.max_psn = max(self.max_psn, psn + count - 1)
        return self._advance() if psn == self.cack + 1 else None

    def _advance(self) -> Advance:
        first, messages = self.cack + 1, 0
        while self.ooo_count:
            start = (self.cack + 1) & self._mask
            limit = min(self._size, start + self.max_psn - self.cack)
            end = self._held.find(_EMPTY, start, limit)
            end = limit if end < 0 else end
            if end == start:
                break
            count = end - start
            messages += self._held.count(_HELD_LAST, start, end)
            self._held[start:end] = bytes(count)
            self.cack += count
            self.ooo_count -= count
        return Advance(first, self.cack, messages)

    def bitmap(self) -> tuple[int, int]:
        """Return (base PSN, 64-bit map) for the next SACK, rolling through a wide window.

        The base follows MRC 1.0 §7.5.2.2: the lowest PSN no SACK has covered yet, pulled back so
        that the highest received is always inside, and starting again when it has passed that.
        """
        if not self.ooo_count:
            self._lowest_unsacked = self.cack + 1
            return self.cack + 1, 0
        base = max(self._lowest_unsacked, self.cack + 1)
        if base > self.max_psn:
            base = self.cack + 1
        if base + BITMAP_BITS > self.max_psn:
            base = max(self.max_psn - BITMAP_BITS + 1, self.cack + 1)
        self._lowest_unsacked = base + BITMAP_BITS
        at = base & self._mask
        held = self._held[at : at + BITMAP_BITS]
        if len(held) < BITMAP_BITS:
            held += self._held[: BITMAP_BITS - len(held)]
        bits = np.packbits(np.frombuffer(held, np.uint8) != _EMPTY, bitorder="little")
        return base, int.from_bytes(bits.tobytes(), "little")
