"""Virtual time, and clocks of hosts that cannot be trusted."""

from __future__ import annotations

from mrc.sim.clock import HostClock, Timeline


def test_events_happen_in_order_of_time_then_of_entry() -> None:
    """What is due earlier comes first; of two due at once the one that was entered first."""
    seen: list[str] = []
    timeline = Timeline()
    timeline.at(20, seen.append, "later")
    timeline.at(10, seen.append, "first")
    timeline.at(10, seen.append, "second")
    timeline.run_until(30)
    assert seen == ["first", "second", "later"]
    assert timeline.now_ns == 30


def test_what_is_due_after_the_end_waits() -> None:
    """Running up to a time leaves the rest, and tells when it is due."""
    seen: list[str] = []
    timeline = Timeline()
    timeline.at(50, seen.append, "late")
    timeline.run_until(49)
    assert (seen, timeline.next_ns) == ([], 50)
    timeline.run_until(50)
    assert (seen, timeline.next_ns) == (["late"], None)


def test_clock_has_its_own_origin() -> None:
    """It shows true time plus an offset, and says when it will show a reading."""
    clock = HostClock(1_000)
    assert clock.read(5) == 1_005
    assert clock.when(1_020, 5) == 20
    assert clock.when(900, 5) == 5


def test_stopped_clock_loses_the_time_it_stood_still() -> None:
    """While it stands, nothing that lies ahead of it is ever due; then it goes on from there."""
    clock = HostClock(0)
    clock.stop(10)
    assert (clock.read(60), clock.when(11, 60), clock.when(10, 60)) == (10, None, 60)
    clock.go_on(100)
    assert (clock.read(100), clock.when(11, 100)) == (10, 101)


def test_jump_moves_what_it_shows_and_what_is_due() -> None:
    """After a jump back a reading comes later, after one ahead it is due at once."""
    clock = HostClock(0)
    clock.jump(-30)
    assert (clock.read(50), clock.when(40, 50)) == (20, 70)
    clock.jump(100)
    assert (clock.read(50), clock.when(40, 50)) == (120, 50)
