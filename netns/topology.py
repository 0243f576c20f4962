"""Topology files: what a fabric consists of, read from YAML and checked.

    title: Four planes, one switch each
    rate_mbps: 200
    hosts: [a, b]
    switches: [s0, s1]
    links:
      - [a, s0]
      - [s0, b]
      - ends: [a, s1]
        rate_mbps: 100

A host's links are its planes, in the order in which they are listed. Quantities carry their unit in
their name, so that a file needs no grammar of units.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from netns.errors import LabError
from netns.files import read_yaml

FOLDER = Path(__file__).parent / "topologies"
NAME_CHARACTERS_MAX = 10
"""A device is called after the node it leads to, and the kernel takes 15 characters."""
RESERVED_NAMES = ("wires", "lo", "all", "default")
"""Of the hop's namespace, and what a device cannot be called."""


def _node_name(name: str) -> str:
    if not (name.isascii() and name.isalnum() and name.islower()):
        raise ValueError(f"{name!r} is no name for a node: lower-case letters and digits only")
    if name in RESERVED_NAMES:
        raise ValueError(f"no node can be called {name}; nor {', '.join(RESERVED_NAMES)}")
    return name


NodeName = Annotated[str, Field(max_length=NAME_CHARACTERS_MAX), AfterValidator(_node_name)]
Kib = Annotated[float, Field(ge=0, le=1 << 20)]
Mbps = Annotated[float, Field(ge=0.1, le=100_000)]
Mtu = Annotated[int, Field(ge=1280, le=9216)]


class Strict(BaseModel):
    """A part of a file: unknown keys are mistakes, and nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Queue(Strict):
    """The queue of a switch port in front of a link."""

    tail_drop_kib: Kib = 512
    """Data beyond this is dropped."""
    trim_kib: Kib = 384
    """Data beyond this is cut to its headers; 0: never, it is dropped at the tail."""
    ecn_min_kib: Kib = 96
    """Marking begins here; both 0: no marks."""
    ecn_max_kib: Kib = 256
    """Every packet is marked from here on."""
    last_hop_marks: bool = True
    """Whether a port that leads to a host marks as well."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.ecn_min_kib > self.ecn_max_kib:
            raise ValueError(
                f"ecn_min_kib = {self.ecn_min_kib} KiB is above ecn_max_kib = {self.ecn_max_kib}"
            )
        return self


class Wire(Strict):
    """What a link does to packets in both directions, beside its rate."""

    delay_ms: Annotated[float, Field(ge=0, le=1000)] = 0
    jitter_ms: Annotated[float, Field(ge=0, le=1000)] = 0
    """Uniform around the delay; order is kept."""
    reorder_percent: Annotated[float, Field(ge=0, le=100)] = 0
    """Packets that skip the delay."""

    @property
    def plain(self) -> bool:
        """Whether packets pass untouched."""
        return not (self.delay_ms or self.jitter_ms or self.reorder_percent)


class Link(Strict):
    """Two nodes joined; written as `[a, s0]` or with settings as `{ends: [a, s0], ...}`."""

    ends: tuple[NodeName, NodeName]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,40}$")] = ""
    """Empty: the ends joined by a dash, and a number from the second such link on."""
    rate_mbps: Mbps | None = None
    """None: the topology's."""
    wire: Wire = Wire()

    @model_validator(mode="before")
    @classmethod
    def _from_pair(cls, value: Any) -> Any:
        return {"ends": value} if isinstance(value, list | tuple) else value


class Topology(Strict):
    """A fabric."""

    title: Annotated[str, Field(min_length=1)]
    what: str = ""
    """A sentence or two for people."""
    mtu: Mtu = 9000
    """Of every device, in bytes of IP packet."""
    rate_mbps: Mbps = 200
    """Of every link that does not say otherwise, per direction, counted with Ethernet headers."""
    queue: Queue = Queue()
    """Of every switch port."""
    base_rtt_ms: Annotated[float, Field(gt=0, le=1000)] = 2
    """What endpoints are told as the round trip of the idle network over its longest path; the wait
    of their processes for a processor, which is most of it here, counts as well."""
    hosts: Annotated[list[NodeName], Field(min_length=2, max_length=200)]
    switches: Annotated[list[NodeName], Field(min_length=1, max_length=200)]
    links: Annotated[list[Link], Field(min_length=2, max_length=1000)]

    @model_validator(mode="after")
    def _joined(self) -> Self:
        nodes = [*self.hosts, *self.switches]
        doubled = {name for name in nodes if nodes.count(name) > 1}
        if doubled:
            raise ValueError(f"two nodes are called {', '.join(sorted(doubled))}")
        for link in self.links:
            self._check_ends(link)
        linked = {end for link in self.links for end in link.ends}
        if alone := [host for host in self.hosts if host not in linked]:
            raise ValueError(f"no link leads to host {', '.join(alone)}")
        return self

    def _check_ends(self, link: Link) -> None:
        name = "-".join(link.ends)
        for end in link.ends:
            if end not in self.hosts and end not in self.switches:
                raise ValueError(f"link {name}: there is no node {end}")
        if link.ends[0] == link.ends[1]:
            raise ValueError(f"link {name}: its ends must be two nodes")
        if not any(end in self.switches for end in link.ends):
            raise ValueError(f"link {name}: one end must be a switch")


def load(name: str, **changes: Any) -> Topology:
    """Read a topology that ships, by its name, or any other by the path of its file.

    Args:
        name: `four-plane`, or a path that ends in .yaml.
        changes: values of the top level that replace those of the file, such as `mtu=1500`.

    Raises:
        LabError: no such file, or what is wrong in it and where.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    if not path.is_file():
        raise LabError(
            f"there is no topology {name}; there are {', '.join(names())}, and any .yaml file"
        )
    return read_yaml(path, Topology, changes)


def names() -> list[str]:
    """Return the topologies that ship."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))
