"""Scenario files: what they may say, and how a mistake is told."""

from pathlib import Path

import pytest

from netns import scenario
from netns.damage import in_words
from netns.errors import LabError
from netns.runner import fabric_of
from netns.scenario import Expectation, Fault

GOOD = """
title: A story
topology: four-plane
flows: [{name: main, from: a, to: b}]
faults: [{kind: blackhole, at_s: 2, links: [a-s2]}]
expect: {gap_ms: {aim: [null, 20]}}
"""

MUST_SHIP = """
steady plane-blackhole plane-carrier-down flap t1-reboot one-ev-20-percent-loss loss-0.1 loss-1
incast-trim incast-taildrop victim two-flows-collide nic-port-down startup-with-bad-paths
only-acks-lost one-way-blackhole unequal-delay source-port-rewrite big-packets-blackhole corrupt
asymmetric plane-20-percent-loss all-reduce-loss-0.1 all-reduce-loss-1 all-reduce-plane-dies
"""

RING = """
title: Three ranks
topology: ring
traffic: all-reduce
compare: false
flows: [{name: r0, from: a, to: b}, {name: r1, from: b, to: c}, {name: r2, from: c, to: a}]
"""


def load(folder: Path, text: str) -> scenario.Scenario:
    """Read a scenario of this text."""
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return scenario.load(str(path))


def test_all_stories_ship() -> None:
    """Those that people are promised."""
    assert set(MUST_SHIP.split()) <= set(scenario.names())


@pytest.mark.parametrize("name", scenario.names())
def test_what_ships_fits_its_fabric(name: str) -> None:
    """Every link, host and node it names is there, and it expects something."""
    story = scenario.load(name)
    fabric_of(story)
    assert story.expect
    assert story.name == name


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("kind: blackhole", "kind: fire"), "no fault fire; there are reboot, blackhole"),
        (("gap_ms", "gap"), "no metric gap; there are .*gap_ms"),
        (("links: [a-s2]", "nodes: [s2]"), "blackhole needs links and no nodes"),
        (("at_s: 2", "at_s: 200"), "at 200.0 s: the end is earlier"),
        (("at_s: 2", "at_s: 2, for_s: 2, times: 3"), "for_s = 2.0 s must be below every_s = 1"),
        (("kind: blackhole", "kind: ev-loss, amount: 5"), "flow and path say which EV"),
        (("name: main", "name: Main"), r"flows\.0\.name"),
        (("to: b", "to: a"), "flow main crosses no link"),
        (("title: A story", "title: A story\nwarmup_s: 9"), "warmup_s = 9.0 leaves nothing of 8"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    """Before anything is built."""
    with pytest.raises(LabError, match=complaint):
        load(tmp_path, GOOD.replace(*change))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("to: a}", "to: b}"), "lead from each rank to the next, in a ring"),
        (("from: c, to: a", "from: b, to: a"), "lead from each rank to the next, in a ring"),
        (("compare: false", "compare: true"), "only over MRC: compare: false"),
        (("to: a}", "to: a, message_kib: 1}"), "the same message_kib and times"),
    ],
)
def test_ranks_are_a_ring_of_equals(
    tmp_path: Path, change: tuple[str, str], complaint: str
) -> None:
    """Each rank has one host and the next rank; all have the same buffer for the same time."""
    assert load(tmp_path, RING).traffic == "all-reduce"
    with pytest.raises(LabError, match=complaint):
        load(tmp_path, RING.replace(*change))


def test_a_host_has_one_rank(tmp_path: Path) -> None:
    """A ring that passes a host twice is none of hosts."""
    twice = RING.replace("to: a}]", "to: b}, {name: r3, from: b, to: a}]")
    with pytest.raises(LabError, match="one rank a host"):
        load(tmp_path, twice)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("topology: four-plane", "topology: five-plane"), "no topology five-plane"),
        (("from: a", "from: z"), "no host z; there are a, b"),
        (("links: [a-s2]", "links: [a-s9]"), "no link a-s9; there are a-s0"),
        (("links: [a-s2]", "links: [a-s2], towards: b"), "a-s2 does not lead to b"),
    ],
)
def test_what_the_fabric_lacks_is_named(
    tmp_path: Path, change: tuple[str, str], complaint: str
) -> None:
    """A scenario and its topology are checked against each other before anything is built."""
    with pytest.raises(LabError, match=complaint):
        fabric_of(load(tmp_path, GOOD.replace(*change)))


def test_a_topology_of_ones_own_lies_beside_the_scenario(tmp_path: Path) -> None:
    """Wherever the command is run."""
    (tmp_path / "net.yaml").write_text(
        "title: t\nhosts: [a, b]\nswitches: [s]\nlinks: [[a, s], [s, b]]\n", encoding="utf-8"
    )
    text = GOOD.replace("topology: four-plane", "topology: net.yaml").replace("a-s2", "a-s")
    assert fabric_of(load(tmp_path, text)).topology.title == "t"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"kind": "loss", "amount": 1, "towards": "b"}, "loss 1 % on a-s2 towards b"),
        ({"kind": "big-packets", "amount": 1500}, "big-packets 1500 bytes on a-s2"),
        ({"kind": "blackhole"}, "blackhole on a-s2"),
    ],
)
def test_a_fault_in_words_has_its_unit(fault: dict[str, object], words: str) -> None:
    """Where it takes a number."""
    assert in_words(Fault.model_validate({**fault, "links": ["a-s2"]})) == words


def test_a_fault_that_repeats_has_a_span_each_time() -> None:
    """Ten flaps are ten begins and ten ends."""
    fault = Fault(kind="blackhole", links=("a-s2",), at_s=2, for_s=0.1, times=3, every_s=0.5)
    assert fault.spans == [(2.0, 2.1), (2.5, 2.6), (3.0, 3.1)]


@pytest.mark.parametrize(
    ("value", "bounds", "holds"),
    [
        (5.0, (None, None), True),
        (None, (None, None), True),
        (None, (None, 5), False),
        (5.0, (5, 5), True),
        (4.9, (5, None), False),
        (5.1, (None, 5), False),
    ],
)
def test_bounds_include_their_ends_and_nothing_is_in_no_bounds(
    value: float | None, bounds: tuple[float | None, float | None], holds: bool
) -> None:
    """A number that could not be computed fails what asks for it."""
    assert Expectation.holds(value, bounds) is holds
