"""What seeds draw: every fault now and then, none always, and tables that say so."""

from __future__ import annotations

from dataclasses import fields

import pytest

from mrc.sim.options import FaultKind, LinkOptions, Options
from mrc.sim.swarm import options_of

SAMPLE = [options_of(seed) for seed in range(300)]
LINK_FAULTS = [
    field.name
    for field in fields(LinkOptions)
    if getattr(LinkOptions(loss=1, trim=1, mark=1, corrupt=1, duplicate=1), field.name)
    != getattr(LinkOptions(), field.name)
] + ["mask", "reorder", "size_max", "rewrite_ports"]


def share(of: list[bool]) -> float:
    """Return which part of them is true."""
    return sum(of) / len(of)


@pytest.mark.parametrize("kind", FaultKind)
def test_every_kind_of_fault_happens_in_some(kind: FaultKind) -> None:
    """Each happens in some simulations, and in most it does not."""
    found = share([any(fault.kind is kind for fault in options.faults) for options in SAMPLE])
    assert 0.01 < found < 0.6


@pytest.mark.parametrize("name", LINK_FAULTS)
def test_every_fault_of_links_happens_in_some(name: str) -> None:
    """Each is on for a link of some simulations, and off for all links of others."""

    def is_on(options: Options) -> bool:
        return any(getattr(link, name) for link in options.links.values())

    assert 0.05 < share([is_on(options) for options in SAMPLE]) < 0.9


def test_some_have_no_fault_at_all() -> None:
    """A network where nothing fails is drawn too: there nothing must be lost or late."""
    sound = [
        not options.faults and all(link == link.healed() for link in options.links.values())
        for options in SAMPLE
    ]
    assert 0.01 < share(sound) < 0.3


def test_faults_begin_in_the_safety_phase() -> None:
    """Nothing begins to fail after healing, or before the first moment."""
    for options in SAMPLE:
        for fault in options.faults:
            assert 0 < fault.at_ns < options.faulty_ns


def test_links_are_those_of_the_topology() -> None:
    """Every link of the topology has its options, and there are no others."""
    for options in SAMPLE:
        assert list(options.links) == options.link_names()


def test_table_names_every_fault_once() -> None:
    """However often a link flaps, the table stays short enough to be read."""
    options = next(o for o in SAMPLE if len(o.faults) > 20)
    lines = options.table().splitlines()
    assert len(lines) < 120
    for fault in options.faults:
        found = [line for line in lines if line.startswith(f"{fault.kind.value} {fault.where} ")]
        assert len(found) == 1


def test_stall_that_is_forgiven_covers_a_clock_that_jumped_back() -> None:
    """Until it has caught up, the protocol's time stands still."""
    options = next(o for o in SAMPLE if any(fault.amount_ns < -1_000_000 for fault in o.faults))
    assert options.stall_ns > sum(abs(fault.amount_ns) for fault in options.faults)
