"""Scenario files: who sends what over which fabric, what breaks when, what must then be true.

title: A plane goes silent and comes back
topology: four-plane
duration_s: 8
flows:
  - {name: main, from: a, to: b}
faults:
  - {at_s: 3, for_s: 3, kind: blackhole, links: [a-s2, s2-b]}
expect:
  gap_ms: {aim: [null, 20], must: [null, 200]}
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

import mrc
from netns.errors import LabError
from netns.faults import check, kinds
from netns.files import read_yaml
from netns.metrics import METRICS
from netns.topology import Mtu, NodeName, Strict

FOLDER = Path(__file__).parent / "scenarios"
ANY_PORT = 1
"""Stands for the port of an EV, which is known only when its flow has connected."""


def _endpoint_settings(values: dict[str, Any]) -> dict[str, Any]:
    try:
        mrc.Config(**values)
    except (TypeError, mrc.MrcError) as error:
        raise ValueError(f"no settings of mrc.Config: {error}") from error
    return values


EndpointSettings = Annotated[dict[str, Any], AfterValidator(_endpoint_settings)]
Seconds = Annotated[float, Field(ge=0, le=3600)]
Bounds = tuple[float | None, float | None]


class Flow(Strict):
    """Messages from one host to another, as fast as they are taken unless there is a pause."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,20}$")]
    source: Annotated[NodeName, Field(alias="from")]
    target: Annotated[NodeName, Field(alias="to")]
    message_kib: Annotated[int, Field(ge=1, le=65536)] = 256
    depth: Annotated[int, Field(ge=1, le=256)] = 16
    """Messages under way at once."""
    start_s: Seconds = 0
    stop_s: Seconds | None = None
    """None: at the end."""
    pause_ms: Annotated[float, Field(ge=0, le=10_000)] = 0
    """Between one message's completion and the next."""
    file_mib: Annotated[int, Field(ge=1, le=4096)] = 64
    """Where the traffic is files."""
    endpoint: EndpointSettings = Field(default_factory=dict)
    """Settings of this sender's `mrc.Config`, over those of the scenario."""


class Fault(Strict):
    """Something that breaks, and when it is mended."""

    kind: str
    at_s: Seconds = 0
    before_start: bool = False
    """Already so when senders connect."""
    for_s: Annotated[float, Field(gt=0, le=3600)] | None = None
    """None: to the end."""
    times: Annotated[int, Field(ge=1, le=1000)] = 1
    every_s: Annotated[float, Field(gt=0, le=3600)] = 1
    """From one begin to the next."""
    links: tuple[str, ...] = ()
    """Which; with `kind: reboot`, `nodes` instead."""
    nodes: tuple[NodeName, ...] = ()
    amount: float | None = None
    towards: NodeName | None = None
    """Only the direction that leads to this node."""
    only: Literal["all", "data", "control"] = "all"
    flow: str | None = None
    """With `ev-loss`: the flow whose EV it is,"""
    path: Annotated[int, Field(ge=0, le=4095)] | None = None
    """and the index of that EV."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        if (self.kind == "ev-loss") != (self.flow is not None and self.path is not None):
            raise ValueError("flow and path say which EV ev-loss harms, and only that needs them")
        if self.kind == "reboot":
            if self.links or not self.nodes:
                raise ValueError("reboot needs nodes and no links")
        elif self.kind not in kinds():
            raise ValueError(f"no fault {self.kind}; there are reboot, {', '.join(kinds())}")
        elif self.nodes or not self.links:
            raise ValueError(f"{self.kind} needs links and no nodes")
        else:
            self._check_kind()
        if self.times > 1 and (self.for_s is None or self.for_s >= self.every_s):
            raise ValueError(f"for_s = {self.for_s} s must be below every_s = {self.every_s} s")
        timed = self.at_s or self.for_s is not None or self.times > 1 or self.path is not None
        if self.before_start and timed:
            raise ValueError("before_start is for the whole run: no at_s, for_s, times or path")
        return self

    def _check_kind(self) -> None:
        try:
            check(
                self.kind,
                amount=self.amount,
                towards=self.towards,
                only=self.only,
                source_port=None if self.path is None else ANY_PORT,
            )
        except LabError as error:
            raise ValueError(str(error)) from error

    @property
    def leaves(self) -> float:
        """Share of its planes' rate that data still has; 1 where that is not known."""
        if self.only == "control":
            return 1.0
        if self.kind == "loss":
            return 1 - (self.amount or 0) / 100
        return 0.0 if self.kind in ("blackhole", "carrier-down", "port-down") else 1.0

    @property
    def harms_data(self) -> bool:
        """Whether packets with data are lost by it, so that an EV that crosses it may be blamed."""
        harmless = ("rewrite-ports", "tail-drop", "no-marks", "rate", "duplicate")
        return self.only != "control" and self.kind not in harmless

    @property
    def spans(self) -> list[tuple[float, float | None]]:
        """Begin and end of every time it happens, in seconds."""
        begins = [self.at_s + i * self.every_s for i in range(self.times)]
        return [(at, None if self.for_s is None else at + self.for_s) for at in begins]


class Expectation(Strict):
    """Bounds of a number: what is aimed at, and what a busy machine must still keep."""

    aim: Bounds = (None, None)
    must: Bounds = (None, None)

    @staticmethod
    def holds(value: float | None, bounds: Bounds) -> bool:
        """Whether a number lies within; one that does not exist lies in no bounds."""
        low, high = bounds
        if low is None and high is None:
            return True
        return value is not None and (
            (low is None or value >= low) and (high is None or value <= high)
        )


class Scenario(Strict):
    """A story of one fabric."""

    name: str
    title: Annotated[str, Field(min_length=1)]
    what: str = ""
    topology: str
    mtu: Mtu | None = None
    queue: dict[str, Any] = Field(default_factory=dict)
    """Settings of the switch ports, over those of the topology."""
    duration_s: Annotated[float, Field(gt=0, le=3600)] = 8
    warmup_s: Seconds = 1
    """Not looked at: windows open, paths are learnt."""
    endpoint: EndpointSettings = Field(default_factory=dict)
    """Settings of `mrc.Config` for all senders and receivers."""
    locked: bool = False
    """MRC's packets are sealed, as behind a lock."""
    traffic: Literal["messages", "file", "all-reduce"] = "messages"
    """`file`: each flow is one file, by mrc-send and mrc-recv, to a host of its own. `all-reduce`:
    each host is a rank, the flows are the ring they form, and a message is their buffer."""
    options: list[str] = Field(default_factory=list)
    """Of mrc-send and mrc-recv both."""
    flows: Annotated[list[Flow], Field(min_length=1, max_length=64)]
    faults: list[Fault] = Field(default_factory=list)
    expect: dict[str, Expectation] = Field(default_factory=dict)
    compare: bool = True
    """Whether kernel TCP and MPTCP can run the same."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.warmup_s >= self.duration_s:
            raise ValueError(f"warmup_s = {self.warmup_s} leaves nothing of {self.duration_s} s")
        targets = {flow.target for flow in self.flows}
        if self.traffic == "file" and (self.compare or len(targets) < len(self.flows)):
            raise ValueError("files go to one host each, and only MRC sends them: compare: false")
        if self.traffic == "all-reduce":
            self._check_ring()
        if loops := [flow.name for flow in self.flows if flow.source == flow.target]:
            raise ValueError(f"flow {loops[0]} crosses no link: it goes from a host to itself")
        names = [flow.name for flow in self.flows]
        if len(set(names)) < len(names):
            raise ValueError("two flows have one name")
        for fault in self.faults:
            if fault.flow is not None and fault.flow not in names:
                raise ValueError(f"fault {fault.kind}: there is no flow {fault.flow}")
            if fault.at_s > self.duration_s:
                raise ValueError(f"fault {fault.kind} at {fault.at_s} s: the end is earlier")
        self._check_overlaps()
        for metric in self.expect:
            if metric not in METRICS:
                raise ValueError(f"no metric {metric}; there are {', '.join(METRICS)}")
        return self

    def _check_ring(self) -> None:
        """Ranks are numbered as their flows are, and each sends to the next."""
        sources = [flow.source for flow in self.flows]
        if [flow.target for flow in self.flows] != [*sources[1:], sources[0]]:
            raise ValueError(
                "the flows of an all-reduce lead from each rank to the next, in a ring"
            )
        if len(set(sources)) < len(sources) or self.compare:
            raise ValueError("an all-reduce has one rank a host, and only over MRC: compare: false")
        if len({(flow.message_kib, flow.start_s, flow.stop_s) for flow in self.flows}) > 1:
            raise ValueError("all ranks of an all-reduce have the same message_kib and times")

    def _check_overlaps(self) -> None:
        """Mending gives a link back all it had, so two faults must not be on one at a time."""
        spans: dict[str, list[tuple[float, float]]] = {}
        for fault in self.faults:
            for begin_s, end_s in fault.spans:
                for place in (*fault.links, *fault.nodes):
                    spans.setdefault(place, []).append((begin_s, end_s or self.duration_s))
        for place, times in spans.items():
            for (_, end_s), (begin_s, _) in pairwise(sorted(times)):
                if begin_s < end_s:
                    raise ValueError(f"two faults on {place} at {begin_s} s: mend one before")


def load(name: str, **changes: Any) -> Scenario:
    """Read a scenario that ships, by its name, or any other by the path of its file.

    Raises:
        LabError: no such file, or what is wrong in it and where.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    if not path.is_file():
        raise LabError(f"there is no scenario {name}; there are {', '.join(names())}")
    story = read_yaml(path, Scenario, {"name": path.stem, **changes})
    if story.topology.endswith((".yaml", ".yml")):
        # Beside the scenario, wherever it is run from.
        return story.model_copy(update={"topology": str(path.parent / story.topology)})
    return story


def names() -> list[str]:
    """Return the scenarios that ship."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))
