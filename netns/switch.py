"""What one direction of a link does to packets, and what it has done: the switch program's outside.

    with SwitchPort.load(seed=1) as port:           # compiles once, then loads
        ...                                         # attach port.program_fd to a device
        port.configure(LinkSettings(rate_bps=100_000_000, trim_bytes=65_536))
        port.counters().trimmed

`SwitchPort.open(map_ids)` reaches the same port from another process. The program itself, and the
order in which the settings act, is in `bpf/switch.bpf.c`.
"""

from __future__ import annotations

import errno
import operator
import os
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, Self, get_args

from netns.bpf import libbpf
from netns.bpf.compile import switch_object
from netns.errors import LabError

CLASS_CONTROL, CLASS_DATA = 0x00010010, 0x00010020
"""Classes 1:10 and 1:20 of the HTB qdisc behind the program, as `skb->priority` names them."""

Kind = Literal["all", "data", "control"]

RATE_BPS_MIN, RATE_BPS_MAX = 100_000, 1_000_000_000_000
BYTES_MAX = (1 << 32) - 1
MILLION = 1_000_000

_QUEUE_SHIFT = 24
_NANOSECONDS, _BITS = 1_000_000_000, 8

_FLAG_BLACKHOLE = 1
_FLAG_ONLY_DATA = 2
_FLAG_ONLY_CONTROL = 4
_FLAG_LAST_HOP = 8
_FLAG_MARKS_OFF = 16
_FLAG_REWRITE_SOURCE_PORT = 32

# Members and struct codes of the values in the maps, as bpf/switch.h declares them.
CONFIG_LAYOUT = {
    "rate_bps": "Q",
    "drain": "Q",
    "queue_bytes_max": "I",
    "ecn_min_bytes": "I",
    "ecn_max_bytes": "I",
    "trim_bytes": "I",
    "packet_bytes_max": "I",
    "loss_ppm": "I",
    "ev_loss_ppm": "I",
    "corrupt_ppm": "I",
    "duplicate_ppm": "I",
    "ev_source_port": "H",
    "flags": "B",
    "dscp_trimmable": "B",
    "dscp_trimmable_retx": "B",
    "dscp_trimmed": "B",
    "dscp_trimmed_lasthop": "B",
    "dscp_control": "B",
    "reserved": "4s",
}
STATE_LAYOUT = {
    "lock": "4s",
    "reserved": "I",
    "random": "Q",
    "queue": "Q",
    "queue_ns": "Q",
    "queue_drain": "Q",
    "queue_bytes_max": "Q",
    "packets": "Q",
    "bytes": "Q",
    "control_packets": "Q",
    "marked": "Q",
    "trimmed": "Q",
    "tail_dropped": "Q",
    "lost": "Q",
    "blackholed": "Q",
    "oversized": "Q",
    "ev_dropped": "Q",
    "corrupted": "Q",
    "duplicated": "Q",
    "rewritten": "Q",
}

_CONFIG = struct.Struct("=" + "".join(CONFIG_LAYOUT.values()))
_STATE = struct.Struct("=" + "".join(STATE_LAYOUT.values()))
_COUNTERS_START = list(STATE_LAYOUT).index("packets")
_SAME_IN_CONFIG = tuple(
    name for name in CONFIG_LAYOUT if name not in ("drain", "flags", "reserved")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """What one direction of a link does; by default it forwards everything as it is.

    Data and control: control is what has DSCP `dscp_control`, `dscp_trimmed` or
    `dscp_trimmed_lasthop`, TCP segments without payload, IPv6 neighbour discovery and what is not
    IP, such as ARP; data is all else.
    Thresholds of the queue are compared with the queue as it would be with the packet in it.

    Raises:
        ValueError: a value is outside its limits, or two contradict each other.
        TypeError: a value is no whole number.
    """

    rate_bps: int = 0
    """Bits a second at which the virtual queue drains; 0: no queue, and nothing that needs one."""
    queue_bytes_max: int = 0
    """Bytes; data beyond it is dropped (tail drop), control never is. 0: no limit."""
    ecn_min_bytes: int = 0
    """Bytes (Kmin); up to it nothing is marked."""
    ecn_max_bytes: int = 0
    """Bytes (Kmax); from it on all ECN-capable data is marked, between the two with a probability
    that rises linearly. 0: no marks."""
    marks: bool = True
    """Whether the ECN thresholds count; off where MRC wants no marks, on the last hop."""
    trim_bytes: int = 0
    """Bytes; beyond it data with DSCP `dscp_trimmable` or `dscp_trimmable_retx` is cut behind its
    MRC headers and goes on in the control class. 0: no trimming."""
    last_hop: bool = False
    """Trimmed packets get DSCP `dscp_trimmed_lasthop` instead of `dscp_trimmed`."""
    loss_ppm: int = 0
    """Packets of a million that are lost at random."""
    blackhole: bool = False
    """All packets vanish, with only="all" ARP and neighbour discovery as well."""
    only: Kind = "all"
    """Which packets loss_ppm, ev_loss_ppm and blackhole are for: all, only data, only control."""
    packet_bytes_max: int = 0
    """Bytes of IP header and all behind it; longer packets vanish without a word. 0: no limit."""
    ev_source_port: int = 0
    """UDP source port, the EV, whose packets are lost with ev_loss_ppm."""
    ev_loss_ppm: int = 0
    """Packets of a million from ev_source_port that are lost at random."""
    corrupt_ppm: int = 0
    """UDP data packets of a million of which one bit behind the MRC headers is flipped and the UDP
    checksum mended, so that only the iCRC can tell."""
    duplicate_ppm: int = 0
    """Packets of a million that arrive twice."""
    rewrite_source_port: bool = False
    """A middlebox: UDP data gets its source port XOR 0x0155 (and a right UDP checksum)."""
    dscp_trimmable: int = 4
    """DSCP of data that may be trimmed."""
    dscp_trimmable_retx: int = 8
    """DSCP of retransmitted data that may be trimmed."""
    dscp_trimmed: int = 12
    """DSCP that trimmed packets get in the fabric."""
    dscp_trimmed_lasthop: int = 16
    """DSCP that trimmed packets get on the last hop."""
    dscp_control: int = 46
    """DSCP of the control class."""

    def __post_init__(self) -> None:
        """Check every value."""
        if self.rate_bps:
            _check("rate_bps", self.rate_bps, RATE_BPS_MIN, RATE_BPS_MAX, "bit/s")
        for name in (*_THRESHOLDS, "packet_bytes_max"):
            _check(name, getattr(self, name), 0, BYTES_MAX, "bytes")
        for name in ("loss_ppm", "ev_loss_ppm", "corrupt_ppm", "duplicate_ppm"):
            _check(name, getattr(self, name), 0, MILLION, "packets of a million")
        _check("ev_source_port", self.ev_source_port, 0, 65535, "a UDP port")
        for name in _CODE_POINTS:
            _check(name, getattr(self, name), 0, 63, "a DSCP code point")
        if self.only not in get_args(Kind):
            raise ValueError(f"only = {self.only!r} is none of {', '.join(get_args(Kind))}")
        self._check_together()

    def _check_together(self) -> None:
        if self.ecn_min_bytes > self.ecn_max_bytes:
            raise ValueError(
                f"ecn_min_bytes = {self.ecn_min_bytes} bytes is above"
                f" ecn_max_bytes = {self.ecn_max_bytes} bytes"
            )
        if not self.rate_bps:
            for name in _THRESHOLDS:
                if value := getattr(self, name):
                    raise ValueError(f"{name} = {value} bytes needs a queue: rate_bps is 0")
        if self.ev_loss_ppm and not self.ev_source_port:
            raise ValueError(
                f"ev_loss_ppm = {self.ev_loss_ppm} needs an ev_source_port, 1 to 65535"
            )
        codes = {name: getattr(self, name) for name in _CODE_POINTS}
        if len(set(codes.values())) < len(codes):
            raise ValueError(f"two classes have the same DSCP code point: {codes}")


_THRESHOLDS = ("queue_bytes_max", "ecn_min_bytes", "ecn_max_bytes", "trim_bytes")
_CODE_POINTS = tuple(name for name in CONFIG_LAYOUT if name.startswith("dscp_"))


@dataclass(frozen=True, slots=True)
class LinkCounters:
    """What one direction of a link has done since it was loaded, in packets unless said."""

    packets: int
    """Forwarded, whole or trimmed; both of a packet and its duplicate."""
    bytes: int
    """Forwarded, Ethernet header included."""
    control_packets: int
    """Forwarded in the control class."""
    marked: int
    """CE marked; one that carried a mark already is not counted."""
    trimmed: int
    """Cut behind their headers."""
    tail_dropped: int
    """Data dropped because the queue was full."""
    lost: int
    """Lost at random (loss_ppm)."""
    blackholed: int
    """Taken by the blackhole."""
    oversized: int
    """Longer than packet_bytes_max."""
    ev_dropped: int
    """Lost at random on the one EV (ev_loss_ppm)."""
    corrupted: int
    """One bit flipped."""
    duplicated: int
    """Sent twice."""
    rewritten: int
    """UDP source port changed."""
    queue_bytes_now: int
    """Bytes in the virtual queue."""
    queue_bytes_max: int
    """Most bytes that were in the virtual queue since it was loaded."""


class SwitchPort:
    """The program of one direction of a link, with its maps. Made by `load` or `open`."""

    def __init__(self, map_fds: Mapping[str, int], program_fd: int | None) -> None:
        self.program_fd = program_fd
        """For attaching; None in a port that was opened by its maps, or closed."""
        self.map_ids = {name: _map_id(name, fd) for name, fd in map_fds.items()}
        """For `open` in another process."""
        self._fds = dict(map_fds)

    @classmethod
    def load(cls, *, seed: int, at_ingress: bool = False) -> SwitchPort:
        """Load the program with maps of its own, ready to be attached.

        Args:
            seed: of its random decisions, 0 to 2^64 - 1: the same seed makes the same decisions
                about the same packets.
            at_ingress: for clsact ingress instead of clsact egress.

        Raises:
            LabMissing: no clang, headers or libbpf.
            BpfError: the kernel rejects the program, or this is not root.
            ValueError: the seed.
        """
        _check("seed", seed, 0, (1 << 64) - 1, "a number")
        loaded = libbpf.load(
            switch_object(), "switch_ingress" if at_ingress else "switch_egress", _MAPS
        )
        try:
            port = cls(loaded.map_fds, loaded.program_fd)
            values = [bytes(4), 0, seed, *[0] * (len(STATE_LAYOUT) - 3)]
            libbpf.write_value(port._fd("state"), _STATE.pack(*values))
            port.configure(LinkSettings())
            return port
        except BaseException:
            for fd in (loaded.program_fd, *loaded.map_fds.values()):
                os.close(fd)
            raise

    @classmethod
    def open(cls, map_ids: Mapping[str, int]) -> SwitchPort:
        """Reach a port that another process has loaded, by its `map_ids`.

        Raises:
            BpfError: it is gone.
            LabError: these are not the maps of a port.
        """
        if set(map_ids) != set(_MAPS):
            raise LabError(f"a port has the maps {', '.join(_MAPS)}, not {', '.join(map_ids)}")
        fds: dict[str, int] = {}
        try:
            for name, number in map_ids.items():
                fds[name] = libbpf.open_map(number)
            return cls(fds, None)
        except BaseException:
            for fd in fds.values():
                os.close(fd)
            raise

    def configure(self, settings: LinkSettings) -> None:
        """Change the settings; they hold from the next packet on."""
        flags = (
            _FLAG_BLACKHOLE * settings.blackhole
            | _FLAG_ONLY_DATA * (settings.only == "data")
            | _FLAG_ONLY_CONTROL * (settings.only == "control")
            | _FLAG_LAST_HOP * settings.last_hop
            | _FLAG_MARKS_OFF * (not settings.marks)
            | _FLAG_REWRITE_SOURCE_PORT * settings.rewrite_source_port
        )
        values = {name: getattr(settings, name) for name in _SAME_IN_CONFIG}
        values |= {"drain": _drain(settings.rate_bps), "flags": flags, "reserved": b""}
        value = _CONFIG.pack(*(values[name] for name in CONFIG_LAYOUT))
        libbpf.write_value(self._fd("config"), value)

    def settings(self) -> LinkSettings:
        """Return the settings that hold now, whoever made them."""
        value = libbpf.read_value(self._fd("config"), _CONFIG.size)
        values = dict(zip(CONFIG_LAYOUT, _CONFIG.unpack(value), strict=True))
        flags = values["flags"]
        only: Kind = "all"
        if flags & (_FLAG_ONLY_DATA | _FLAG_ONLY_CONTROL):
            only = "data" if flags & _FLAG_ONLY_DATA else "control"
        return LinkSettings(
            **{name: values[name] for name in _SAME_IN_CONFIG},
            only=only,
            blackhole=bool(flags & _FLAG_BLACKHOLE),
            last_hop=bool(flags & _FLAG_LAST_HOP),
            marks=not flags & _FLAG_MARKS_OFF,
            rewrite_source_port=bool(flags & _FLAG_REWRITE_SOURCE_PORT),
        )

    def counters(self) -> LinkCounters:
        """Return what the port has done so far; one system call."""
        value = libbpf.read_value(self._fd("state"), _STATE.size, locked=True)
        _, _, _, queue, queue_ns, drain, peak, *counters = _STATE.unpack(value)
        # The program looks at the queue only when a packet comes; it has drained since.
        idle_ns = max(0, time.monotonic_ns() - queue_ns)
        now = max(0, queue - idle_ns * drain) >> _QUEUE_SHIFT
        return LinkCounters(*(*counters, now, peak))

    def close(self) -> None:
        """Let go of program and maps; a device that has the program attached keeps it."""
        fds = [*self._fds.values()]
        if self.program_fd is not None:
            fds.append(self.program_fd)
        self._fds, self.program_fd = {}, None
        for fd in fds:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fd(self, name: str) -> int:
        if name not in self._fds:
            raise libbpf.BpfError("the port is closed", errno.EBADF)
        return self._fds[name]


_MAPS = ("config", "state")
if [field.name for field in fields(LinkCounters)][:-2] != list(STATE_LAYOUT)[_COUNTERS_START:]:
    raise ImportError("LinkCounters and STATE_LAYOUT name different counters")


def _map_id(name: str, fd: int) -> int:
    """Return the number of a map whose values have the size that we read and write.

    Raises:
        LabError: it is another's, which got the number of a map of ours that is gone; the kernel
            copies as much as the map's values have, whatever we made room for.
    """
    found = libbpf.map_info(fd)
    expected = {"config": _CONFIG, "state": _STATE}[name].size
    if found.name != name or found.kind != libbpf.ARRAY or found.value_bytes != expected:
        raise LabError(
            f"map {found.number} is no {name} of a switch port: it is {found.name!r}, of kind "
            f"{found.kind} with values of {found.value_bytes} bytes instead of {expected}"
        )
    return found.number


def _drain(rate_bps: int) -> int:
    """Return a rate in what the program counts: bytes << QUEUE_SHIFT in a nanosecond."""
    return round((rate_bps << _QUEUE_SHIFT) / (_BITS * _NANOSECONDS))


def _check(name: str, value: int, low: int, high: int, unit: str) -> None:
    if not low <= operator.index(value) <= high:
        raise ValueError(f"{name} = {value} is outside {low}..{high} ({unit})")
