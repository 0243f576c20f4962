"""Recordings made up to the byte, so that every metric has a right answer."""

from __future__ import annotations

from typing import Any

import numpy as np

from netns import topology
from netns.fabric import plan
from netns.metrics import METRICS
from netns.recording import FlowSeen, Happened, Recording
from netns.scenario import Fault, Flow, Scenario

MTU_BYTES = 4096
HEADER_BYTES = 82
ZERO_NS = 10**12
PAYLOAD_SHARE = MTU_BYTES / (MTU_BYTES + HEADER_BYTES)
FAIR_BYTES_A_SECOND = 4 * 200e6 / 8 * PAYLOAD_SHARE
"""What four planes of 200 Mbit/s carry of payload."""


def staircase(*stretches: tuple[float, float]) -> list[tuple[int, float]]:
    """Return samples of a running total every 2 ms: stretches of (end in s, bytes a second)."""
    samples, total, step = [(ZERO_NS, 0.0)], 0.0, 0
    for end_s, rate in stretches:
        while (step + 1) * 0.002 <= end_s + 1e-9:
            step += 1
            total += rate * 0.002
            samples.append((ZERO_NS + step * 2_000_000, total))
    return samples


def flow(placed: list[tuple[int, float]], *, name: str = "main", **sender: Any) -> FlowSeen:
    """Return a flow from a to b that placed these bytes and whose sender noted these things."""
    receiver = {"samples": placed, "messages": sender.get("messages", 0)}
    sizes = (262144, MTU_BYTES, HEADER_BYTES)
    return FlowSeen(name, "a", "b", 0.0, 8.0, *sizes, ZERO_NS, sender, receiver)


def recording(
    flows: list[FlowSeen],
    seen: list[Happened] | None = None,
    plane_rates: dict[int, list[tuple[float, float]]] | None = None,
) -> Recording:
    """Return a run of 8 s on four planes; `plane_rates` are the staircases of their last hops."""
    story = Scenario(
        name="story",
        title="A story",
        topology="four-plane",
        flows=[Flow.model_validate({"name": f.name, "from": "a", "to": "b"}) for f in flows],
    )
    rates = plane_rates or {}
    carried = {plane: np.array(staircase(*steps)) for plane, steps in rates.items()}
    at_s = next(
        ((each[:, 0] - ZERO_NS) / 1e9 for each in carried.values()), np.zeros(1, np.float64)
    )
    links = {f"s{plane}-b>b": {"bytes": each[:, 1]} for plane, each in carried.items()}
    fabric = plan(topology.load("four-plane"))
    return Recording(story, fabric, "mrc", flows, seen or [], at_s, links)


def blackhole(begin_s: float = 2.0, end_s: float | None = 5.0) -> Happened:
    """Return plane 2 going silent."""
    return happened(begin_s, end_s, kind="blackhole", links=("a-s2", "s2-b"))


def happened(begin_s: float, end_s: float | None, **fault: Any) -> Happened:
    """Return a fault on plane 2."""
    return Happened(Fault(**fault), "something on plane 2", begin_s, end_s, (2,))


def measure(name: str, run: Recording) -> float | None:
    """Return one metric of a run."""
    return METRICS[name].of(run)
