"""The proof that the checkers look: broken protocols, and a network that lies, must be noticed."""

from __future__ import annotations

import pytest

from mrc.sim.canary import Canary
from mrc.sim.running import run_seed
from mrc.sim.simulation import Outcome, Simulation
from mrc.sim.swarm import options_of
from tests.sim.mutations import MUTATIONS

CANARY_SEEDS = 10
"""A canary is noticed in so many seeds, from 0 on, at least once."""


def first_failure(seeds: range) -> Outcome | None:
    """Return the first outcome that is a failure."""
    outcomes = (run_seed(seed) for seed in seeds)
    return next((outcome for outcome in outcomes if not outcome.passed), None)


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_is_noticed(name: str) -> None:
    """A protocol with this mistake fails within the stated number of seeds."""
    mutation, seeds = MUTATIONS[name]
    with mutation():
        assert first_failure(range(seeds)) is not None


@pytest.mark.slow
def test_without_mutation_the_same_seeds_pass() -> None:
    """What is noticed is the mutation: most are within these seeds, which break no rule."""
    assert first_failure(range(40)) is None


@pytest.mark.parametrize("canary", Canary)
def test_canary_is_noticed(canary: Canary) -> None:
    """Datagrams changed behind the protocol's back are noticed."""
    outcomes = [Simulation(options_of(seed), canary=canary).run() for seed in range(CANARY_SEEDS)]
    assert {outcome.rule for outcome in outcomes} & CAUGHT_BY[canary]


CAUGHT_BY = {
    Canary.PAYLOAD: {"completion", "immediates", "placement"},
    Canary.ADDRESS: {"bounds", "completion", "immediates", "placement", "failure"},
    Canary.ACKNOWLEDGEMENT: {"belief"},
}
