"""What one run of a scenario saw, on one clock: seconds since its begin."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from netns.fabric import Fabric
from netns.scenario import Fault, Scenario

Array = NDArray[np.float64]

SAMPLE_FIELDS = (
    "cwnd_bytes",
    "inflight_bytes",
    "rtt_ns",
    "sent",
    "retransmitted",
    "lost",
    "spurious",
    "trims",
    "timeouts",
    "probes",
    "marked",
)
"""Columns of a sender's samples behind the time."""


@dataclass(slots=True)
class Happened:
    """A fault as it was: when it began and was mended, and what it harmed."""

    fault: Fault
    what: str
    begin_s: float
    """Below zero: before the start."""
    end_s: float | None
    """None: not before the end."""
    planes: tuple[int, ...]


@dataclass(frozen=True)
class FlowSeen:
    """One flow: the record of its sender and that of its receiver."""

    name: str
    source: str
    target: str
    start_s: float
    stop_s: float
    message_bytes: int
    mtu_bytes: int
    """Payload of a full packet,"""
    header_bytes: int
    """and what is around it on the wire."""
    zero_ns: int
    sender: dict[str, Any]
    receiver: dict[str, Any]

    def seconds(self, at_ns: Any) -> Array:
        """Turn moments of the machine's clock into seconds of the scenario."""
        return (np.asarray(at_ns, np.float64) - self.zero_ns) / 1e9

    @cached_property
    def placed(self) -> tuple[Array, Array]:
        """Moments, and the bytes the receiver had by then."""
        samples = np.asarray(self.receiver.get("samples", []), np.float64).reshape(-1, 2)
        return self.seconds(samples[:, 0]), samples[:, 1]

    @cached_property
    def samples(self) -> dict[str, Array]:
        """The sender's counters by name, and `at_s`."""
        columns = np.asarray(self.sender.get("samples", []), np.float64)
        columns = columns.reshape(-1, 1 + len(SAMPLE_FIELDS))
        named = {name: columns[:, i + 1] for i, name in enumerate(SAMPLE_FIELDS)}
        return {"at_s": self.seconds(columns[:, 0]), **named}

    @cached_property
    def path_bytes(self) -> Array:
        """Bytes acknowledged per path: a row a sample, a column a path."""
        rows = np.asarray(self.sender.get("path_samples", []), np.float64)
        return rows.reshape(len(rows), rows.shape[1] if rows.ndim == 2 else 0) * self.mtu_bytes

    @cached_property
    def completions(self) -> tuple[Array, Array]:
        """Moments at which messages were complete, and seconds each took."""
        pairs = np.asarray(self.sender.get("completions_ns", []), np.float64).reshape(-1, 2)
        return self.seconds(pairs[:, 1]), (pairs[:, 1] - pairs[:, 0]) / 1e9

    @property
    def paths(self) -> list[dict[str, Any]]:
        """The paths as they were at the end."""
        found: list[dict[str, Any]] = self.sender.get("paths", [])
        return found

    @cached_property
    def changes(self) -> list[dict[str, Any]]:
        """Changes of the paths' states, with `at_s`."""
        return [
            {**each, "at_s": float(self.seconds(each["at_ns"]))}
            for each in self.sender.get("changes", [])
        ]

    @property
    def error(self) -> str:
        """What went wrong at either end, or nothing."""
        return str(self.sender.get("error") or self.receiver.get("error") or "")

    @property
    def undelivered(self) -> int:
        """Messages that were sent and did not arrive whole, in order and once."""
        messages = int(self.sender.get("messages", 0))
        got = self.receiver
        wrong = int(got.get("corrupt", 0)) + int(got.get("out_of_order", 0))
        return abs(messages - int(got.get("messages", 0))) + wrong

    def bins(self, bin_s: float, begin_s: float, end_s: float) -> Array:
        """Return the bytes placed in each bin of a stretch."""
        return binned(*self.placed, bin_s, begin_s, end_s)

    def rate_mbps(self, begin_s: float, end_s: float) -> float:
        """Return the goodput of a stretch; one that has no length has none (NaN)."""
        if end_s <= begin_s:
            return math.nan
        return float(self.bins(end_s - begin_s, begin_s, end_s)[0]) * 8e-6 / (end_s - begin_s)


@dataclass
class Recording:
    """One run over one transport."""

    scenario: Scenario
    fabric: Fabric
    transport: str
    flows: list[FlowSeen]
    happened: list[Happened]
    link_at_s: Array
    """When the links' counters were read."""
    link_counters: dict[str, dict[str, Array]]
    """By direction and name of the counter, one number a reading."""
    trouble: list[str] = field(default_factory=list)
    """What went wrong with the run itself."""
    busy_percent: float = 0.0
    """What others took of the processors just before it."""

    @property
    def duration_s(self) -> float:
        """Length of the scenario."""
        return self.scenario.duration_s

    def flow(self, name: str) -> FlowSeen | None:
        """Return a flow by its name."""
        return next((flow for flow in self.flows if flow.name == name), None)

    def last_hops(self, host: str) -> dict[int, str]:
        """Return by plane the direction that leads to a host."""
        return {
            link.plane: f"{link.name}>{host}"
            for link in self.fabric.links
            if host in (end.node for end in link.ends)
        }

    def plane_bins(self, host: str, bin_s: float, begin_s: float, end_s: float) -> dict[int, Array]:
        """Return by plane the bytes that reached a host in each bin of a stretch."""
        return {
            plane: binned(self.link_at_s, self.link_counters[name]["bytes"], bin_s, begin_s, end_s)
            for plane, name in self.last_hops(host).items()
            if name in self.link_counters
        }


def binned(at_s: Array, total: Array, bin_s: float, begin_s: float, end_s: float) -> Array:
    """Return how much a running total grew in each bin, straight between its samples."""
    edges = begin_s + bin_s * np.arange(max(1, round((end_s - begin_s) / bin_s)) + 1)
    if len(at_s) == 0:
        return np.zeros(len(edges) - 1)
    return np.diff(np.interp(edges, at_s, total))
