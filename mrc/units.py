"""Quantities with their units: parse what people type, print what people read."""

from __future__ import annotations

import re

from mrc.errors import ConfigError

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

_BINARY = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Read a size such as ``4096``, ``64K``, ``16MiB`` or ``1.5G``; suffixes are powers of 1024.

    Raises:
        ConfigError: the text is not a size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is not a size; write bytes, or a number with K, M, G or T")
    return int(float(match[1]) * _BINARY[match[2].lower()])


def format_bytes(count: float) -> str:
    """Print bytes in the largest binary unit that keeps at least one digit before the point."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def format_bps(bits_per_second: float) -> str:
    """Print a rate in decimal bit units, as network people quote links."""
    value = float(bits_per_second)
    for unit in ("bit/s", "kbit/s", "Mbit/s"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "bit/s" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} Gbit/s"


def format_ns(duration_ns: float) -> str:
    """Print a duration in the unit a person would choose for it."""
    if duration_ns < NS_PER_US:
        return f"{duration_ns:.0f} ns"
    if duration_ns < NS_PER_MS:
        return f"{duration_ns / NS_PER_US:.1f} us"
    if duration_ns < NS_PER_S:
        return f"{duration_ns / NS_PER_MS:.1f} ms"
    return f"{duration_ns / NS_PER_S:.2f} s"
