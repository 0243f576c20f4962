"""Runs simulations: by their seed alone, or with everything written down."""

from __future__ import annotations

from pathlib import Path

from mrc.sim.options import Options
from mrc.sim.simulation import Outcome, Simulation
from mrc.sim.swarm import options_of


def run_seed(seed: int) -> Outcome:
    """Run the simulation that a seed stands for."""
    return Simulation(options_of(seed)).run()


def record(options: Options, trace: Path | None, pcap: Path | None) -> Outcome:
    """Run a simulation again, or for the first time, and write what happened.

    Args:
        options: the simulation; the outcome is the same as without recording.
        trace: where the JSON trace goes.
        pcap: where every datagram goes, once as it is sent (TTL 64) and once as it is delivered
            (TTL 62 or 61).

    Raises:
        OSError: a file cannot be written.
    """
    if pcap is None:
        simulation = Simulation(options, traced=True)
        outcome = simulation.run()
    else:
        with pcap.open("wb") as file:
            simulation = Simulation(options, traced=True, pcap=file)
            outcome = simulation.run()
    if trace is not None and simulation.trace is not None:
        simulation.trace.write(trace, options, outcome.to_json())
    return outcome
