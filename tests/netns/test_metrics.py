"""The numbers scenarios are judged by, each from a recording whose answer is known."""

from dataclasses import replace

import numpy as np
import pytest

from netns import scenario
from netns.metrics import METRICS, longest
from netns.recording import binned
from netns.report import build
from netns.scenario import Expectation
from tests.netns.stories import (
    FAIR_BYTES_A_SECOND,
    ZERO_NS,
    blackhole,
    flow,
    measure,
    recording,
    staircase,
)

FULL = FAIR_BYTES_A_SECOND
SAMPLE = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
"""cwnd, inflight, rtt, sent, retransmitted, lost, spurious, trims, timeouts, probes, marked."""


def broken(*stretches: tuple[float, float]) -> float:
    """Return the longest gap of a run whose plane 2 is silent from 2 s to 5 s."""
    found = measure("gap_ms", recording([flow(staircase(*stretches))], [blackhole()]))
    assert found is not None
    return found


def path(plane: int, sent: int = 1) -> dict[str, int]:
    """Return a path at the end of a run."""
    return {"plane": plane, "source_port": 50000, "sent": sent}


def change(at_s: float, index: int, after: str = "assumed_bad") -> dict[str, object]:
    """Return a change of a path's state."""
    return {"at_ns": ZERO_NS + int(at_s * 1e9), "path": index, "after": after, "reason": "loss"}


def test_steady_is_the_share_of_what_links_carry_of_payload() -> None:
    """Headers are no goodput: all planes full are 100 %."""
    run = recording([flow(staircase((8, FULL / 2)))])
    assert measure("steady_percent", run) == pytest.approx(50)


def test_steady_looks_at_nothing_before_the_warm_up_or_after_a_fault() -> None:
    """The first second opens windows; from 2 s on the network is another."""
    run = recording([flow(staircase((1, 0), (2, FULL), (8, 0)))], [blackhole()])
    assert measure("steady_percent", run) == pytest.approx(100)


def test_gap_is_the_longest_stretch_below_half_of_what_is_left() -> None:
    """Three planes are left; half of that is three eighths of all."""
    assert broken((2, FULL), (2.1, 0), (3, FULL / 2), (3.04, FULL / 4), (8, FULL)) == 100
    assert broken((2, FULL), (8, 0.76 * FULL)) == 0


def test_settled_is_the_begin_of_a_stretch_at_nine_tenths() -> None:
    """200 ms must hold it, and a burst of what was held back counts at line rate at most."""
    stretches = ((2, FULL), (2.06, 0), (2.08, 3 * FULL), (2.3, 0.3 * FULL), (8, 0.75 * FULL))
    found = measure("settle_ms", recording([flow(staircase(*stretches))], [blackhole()]))
    # Up to a tenth of the 200 ms may be missing: the stretch begins 20 to 30 ms before 300 ms.
    assert found == pytest.approx(300, abs=35)


def test_never_settled_is_no_number() -> None:
    """And no bounds hold for it."""
    run = recording([flow(staircase((2, FULL), (8, FULL / 2)))], [blackhole()])
    assert measure("settle_ms", run) is None


def test_a_plane_is_back_when_its_last_hop_carries_half_of_its_rate() -> None:
    """100 ms of it, counted from the moment it was healed."""
    plane = {2: [(5.0, 0.0), (5.3, 1e6), (8.0, 20e6)]}
    run = recording([flow(staircase((8, FULL)))], [blackhole()], plane)
    # At 265 ms the next 100 ms hold 65 at 160 Mbit/s and 35 at 8: just more than half of 200.
    assert measure("plane_back_ms", run) == pytest.approx(265, abs=10)


def test_the_spread_of_planes_is_of_their_mean() -> None:
    """Most minus least."""
    planes = {i: [(8.0, rate)] for i, rate in enumerate((10e6, 10e6, 9e6, 11e6))}
    run = recording([flow(staircase((8, FULL)))], plane_rates=planes)
    assert measure("plane_spread_percent", run) == pytest.approx(20)


def test_only_paths_that_no_fault_harms_are_healthy() -> None:
    """Plane 2 is silent: its path may be withdrawn, the others may not."""
    paths = [path(1), path(2)]
    run = recording(
        [flow([], paths=paths, changes=[change(2.01, 1), change(2.5, 0), change(2.6, 0, "good")])],
        [blackhole()],
    )
    assert measure("healthy_blamed", run) == 1
    assert measure("withdrawn_ms", run) == pytest.approx(10)


def test_a_path_is_back_with_the_first_good_after_healing() -> None:
    """One that came back while the plane was silent, by a verdict undone, does not count."""
    changes = [change(2.01, 0), change(2.5, 0, "good"), change(2.6, 0), change(5.02, 0, "good")]
    run = recording([flow([], paths=[path(2)], changes=changes)], [blackhole()])
    assert measure("recovered_ms", run) == pytest.approx(20)
    never = recording([flow([], paths=[path(2)], changes=changes[:3])], [blackhole()])
    assert measure("recovered_ms", never) is None


def test_paths_dead_before_the_start_must_all_be_found() -> None:
    """The time of the last one; one that is still in use makes it no number."""
    dead = blackhole(begin_s=-1.0, end_s=None)
    paths = [path(1), path(2), path(2), path(2, sent=0)]
    found = [change(0.02, 1), change(0.05, 2)]
    assert measure("found_bad_ms", recording([flow([], paths=paths, changes=found)], [dead])) == (
        pytest.approx(50)
    )
    late = recording([flow([], paths=paths, changes=found[:1])], [dead])
    assert measure("found_bad_ms", late) is None


def test_undelivered_counts_what_is_missing_wrong_and_disordered() -> None:
    """A message counts however it went wrong."""
    good = flow([], messages=5)
    assert measure("undelivered", recording([good])) == 0
    bad = replace(good, receiver={"messages": 4, "corrupt": 1})
    assert measure("undelivered", recording([bad])) == 2


def test_counters_are_those_of_the_last_sample_of_all_flows() -> None:
    """They only ever grow."""
    last = [ZERO_NS, 0, 0, 0, 200, 0, 9, 1, 7, 3, 0, 5]
    run = recording([flow([], samples=[[ZERO_NS, *SAMPLE], last]), flow([], name="two")])
    assert measure("timeouts", run) == 3
    assert measure("trims", run) == 7
    assert measure("spurious_percent", run) == pytest.approx(0.5)


def test_completions_are_those_after_the_warm_up() -> None:
    """Percentiles of what took how long."""
    done = [(ZERO_NS, ZERO_NS + 5 * 10**8)]
    done += [(ZERO_NS + 2 * 10**9, ZERO_NS + 2 * 10**9 + i * 10**6) for i in range(1, 101)]
    run = recording([flow([], completions_ns=done)])
    assert measure("completion_max_ms", run) == pytest.approx(100)
    assert measure("completion_p99_ms", run) == pytest.approx(99, abs=0.1)


def operations(*ends: tuple[float, float]) -> list[tuple[int, int]]:
    """Return when operations began and ended, from seconds of the run."""
    return [(ZERO_NS + int(begin * 1e9), ZERO_NS + int(end * 1e9)) for begin, end in ends]


def test_the_bandwidth_of_operations_is_of_those_wholly_before_and_wholly_during_a_fault() -> None:
    """One that saw both says nothing of either, and neither does one after the fault."""
    took = operations((1.1, 1.5), (1.6, 1.8), (1.9, 2.4), (2.5, 3.0), (4.9, 7.0), (7, 8))
    run = recording([flow([], completions_ns=took)], [blackhole(2.0, 5.0)])
    assert measure("operations_percent", run) == pytest.approx(100 * 0.3 / 0.5)
    assert measure("completion_times", run) == pytest.approx(2.1 / 0.3)


def test_operations_that_all_saw_both_are_no_number() -> None:
    """There is nothing to compare."""
    run = recording([flow([], completions_ns=operations((1.5, 2.5)))], [blackhole(2.0, 5.0)])
    assert measure("operations_percent", run) is None
    assert measure("completion_times", run) is None


def test_ranks_carry_out_operations() -> None:
    """Nothing that a scenario of ranks asks for speaks of messages; other traffic is messages."""
    stories = [scenario.load(name) for name in scenario.names()]
    names = {name for each in stories if each.traffic == "all-reduce" for name in each.expect}
    assert names
    assert not [name for name in names if "message" in METRICS[name].says("all-reduce")]
    assert "a message takes" in METRICS["completion_max_ms"].says("messages")
    assert "an operation takes" in METRICS["completion_max_ms"].says("all-reduce")


def test_the_report_of_ranks_speaks_of_operations() -> None:
    """In what is judged, and in the totals of a flow."""
    ranks = {"traffic": "all-reduce", "expect": {"undelivered": Expectation(must=(0, 0))}}
    run = recording([flow([], messages=3)])
    run = replace(run, scenario=run.scenario.model_copy(update=ranks))
    made = build(run.scenario, [run])
    assert made["scenario"]["traffic"] == "all-reduce"
    assert made["expectations"][0]["what"] == "operations with a result that is wrong or missing"
    totals = made["runs"][0]["flows"][0]["totals"]
    assert (totals["operations"], "messages" in totals) == (3, False)


def test_jain_is_the_least_over_windows_of_a_second() -> None:
    """Equal shares are 1; one of two getting nothing for a second is a half."""
    one, two = staircase((8, 10e6)), staircase((3, 10e6), (4, 0), (8, 10e6))
    run = recording([flow(one, name="one"), flow(two, name="two")])
    assert measure("jain", run) == pytest.approx(0.5)


def test_a_run_that_saw_nothing_has_no_numbers_and_breaks_no_metric() -> None:
    """A sender that could not connect leaves no record."""
    for name in METRICS:
        measure(name, recording([flow([])], [blackhole()]))
    assert measure("steady_percent", recording([flow([])])) == 0


def test_longest_run_of_true_values() -> None:
    """At the ends as well."""
    assert longest(np.array([True, True, False, True])) == 2
    assert longest(np.array([False])) == 0
    assert longest(np.array([True] * 3)) == 3


def test_bins_are_straight_between_samples() -> None:
    """A bin that begins between two samples gets its share."""
    bins = binned(np.array([0.0, 1.0, 2.0]), np.array([0.0, 10.0, 10.0]), 0.5, 0.25, 2.25)
    assert bins.tolist() == pytest.approx([5, 2.5, 0, 0])
