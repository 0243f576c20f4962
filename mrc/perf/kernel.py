"""What the kernel counts for the whole host: busy cores, and UDP datagrams that it dropped."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_IDLE_FIELDS = (3, 4)
"""Of a line of /proc/stat: idle, and waiting for a disk."""
_GUEST_FIELD = 8
"""From here on the time is counted a second time, in `user`."""
UDP_ERRORS = ("RcvbufErrors", "SndbufErrors", "InCsumErrors", "MemErrors")
"""Counters of /proc/net/snmp and snmp6 that a run may move."""


@dataclass(frozen=True, slots=True)
class HostCounters:
    """All that the kernel has counted since it started.

    Attributes:
        cores: (busy, all) clock ticks of every core that this process may use, by its number.
        udp: datagrams of IPv4 and IPv6 together, by the kernel's names in `UDP_ERRORS`.
    """

    cores: Mapping[int, tuple[int, int]]
    udp: Mapping[str, int]


def host_counters(proc: Path = _PROC) -> HostCounters:
    """Read the counters; what cannot be read is missing."""
    return HostCounters(_cores(_lines(proc / "stat")), _udp(proc / "net"))


def busy_percent(before: HostCounters, after: HostCounters) -> dict[int, float]:
    """Return how busy every core was between two looks, in percent."""
    shares = {}
    for core, (busy, total) in after.cores.items():
        busy_before, total_before = before.cores.get(core, (busy, total))
        if total > total_before:
            shares[core] = 100 * (busy - busy_before) / (total - total_before)
    return shares


def udp_errors(before: HostCounters, after: HostCounters) -> dict[str, int]:
    """Return the errors that came up between two looks."""
    grown = {name: count - before.udp.get(name, 0) for name, count in after.udp.items()}
    return {name: count for name, count in grown.items() if count > 0}


def _lines(path: Path) -> list[list[str]]:
    try:
        return [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return []


def _cores(lines: list[list[str]]) -> dict[int, tuple[int, int]]:
    usable = os.sched_getaffinity(0)
    cores = {}
    for name, *fields in filter(None, lines):
        number = name.removeprefix("cpu")
        if name.startswith("cpu") and number.isdecimal() and int(number) in usable:
            ticks = [int(field) for field in fields[:_GUEST_FIELD]]
            total = sum(ticks)
            cores[int(number)] = (total - sum(ticks[field] for field in _IDLE_FIELDS), total)
    return cores


def _udp(net: Path) -> dict[str, int]:
    counts = dict.fromkeys(UDP_ERRORS, 0)
    names: list[str] = []
    for line in _lines(net / "snmp"):
        if line and line[0] == "Udp:":
            if names:
                values = dict(zip(names, line[1:], strict=False))
                for name in UDP_ERRORS:
                    counts[name] += int(values.get(name, 0))
            names = line[1:]
    for line in _lines(net / "snmp6"):
        name = line[0].removeprefix("Udp6") if line else ""
        if line and line[0] == f"Udp6{name}" and name in counts:
            counts[name] += int(line[1])
    return counts
