"""The hop's ring by itself: frames put in by hand, with no kernel and no right to ask of anyone."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from netns import hop_ring
from netns.hop_ring import BadValueError, Direction, Port, Settings

SLOT_WORDS = 1024


class Ring:
    """A port of each kind, without a kernel: frames are put in by hand, and what is sent is kept.

    Args:
        slots: how many frames it holds.
        settings: of the direction.
        seed: of its random numbers.
    """

    def __init__(self, slots: int, settings: Settings, seed: str = "1") -> None:
        self.slots = slots
        self.words = memoryview(bytearray(slots * SLOT_WORDS * 4)).cast("I")
        self.sent: list[int] = []
        self.next = 0
        source = SimpleNamespace(
            ring=self.words.cast("B"), slots=slots, slot_bytes=SLOT_WORDS * 4, overflowed=int
        )
        sink = SimpleNamespace(socket=SimpleNamespace(send=self._send))
        self.direction = Direction(cast("Port", source), cast("Port", sink), settings, seed)

    def _send(self, data: memoryview) -> None:
        assert len(data) == hop_ring.VNET_BYTES + 60
        self.sent.append(data[hop_ring.VNET_BYTES])

    def put(self, number: int, *, status: int = 1, length: int = 60) -> bool:
        """Do as the kernel does with a frame that arrives now; false if there is no room."""
        word = self.next * SLOT_WORDS
        if self.words[word]:
            return False
        seconds, nanoseconds = divmod(time.time_ns(), 10**9)
        for index, value in enumerate((status, length, 60, 0, seconds, nanoseconds)):
            self.words[word + index] = value
        self.words[word + hop_ring.FRAME_AT // 4] = number
        self.next = (self.next + 1) % self.slots
        return True


def test_the_ring_goes_round() -> None:
    """A full ring takes no frame, and every slot that was sent is used again."""
    ring = Ring(4, Settings())
    for turn in range(5):
        assert [ring.put(turn * 4 + number) for number in range(5)] == [True] * 4 + [False]
        ring.direction.take()
        assert len(ring.direction.dues) == 4
        ring.direction.deliver(time.monotonic_ns())
    assert ring.sent == list(range(20))
    assert ring.direction.counters()["forwarded"] == 20


def test_the_same_seed_draws_the_same() -> None:
    """Which frames overtake depends on the seed alone."""
    drawn = {}
    for run, seed in (("first", "1"), ("again", "1"), ("other", "2")):
        ring = Ring(64, Settings(delay_us=1_000_000, reorder_ppm=300_000), seed)
        for number in range(64):
            ring.put(number)
        ring.direction.take()
        drawn[run] = ring.sent
        assert ring.direction.reordered == len(ring.sent) > 0
        ring.direction.deliver(time.monotonic_ns() + 2_000_000_000)
        assert sorted(ring.sent) == list(range(64))
    assert drawn["first"] == drawn["again"] != drawn["other"]


def test_what_cannot_be_sent_whole_is_refused() -> None:
    """A frame cut by its slot, or with a VLAN tag that the kernel took off, is counted and gone."""
    ring = Ring(4, Settings())
    ring.put(1, length=9000)
    ring.put(2, status=1 | hop_ring.STATUS_VLAN)
    ring.put(3)
    ring.direction.take()
    ring.direction.deliver(time.monotonic_ns())
    assert ring.sent == [3]
    assert ring.direction.counters()["refused"] == 2
    assert not any(ring.words[slot * SLOT_WORDS] for slot in range(4))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"delay_us": -1}, "delay_us is -1"),
        ({"delay_us": 10_000_001}, "10000001"),
        ({"delay_us": 1.5}, "1.5"),
        ({"delay_us": 5, "jitter_us": 6}, "jitter_us 6"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], named: str) -> None:
    """Each is refused by name and value."""
    with pytest.raises(BadValueError, match=named):
        Settings(**settings)
