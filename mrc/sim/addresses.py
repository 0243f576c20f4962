"""Addresses and UDP ports of the virtual hosts."""

from __future__ import annotations

from functools import lru_cache
from string import ascii_lowercase

UDP_PORT = 4971
"""Where every host receives, in every plane."""
FIRST_EV_PORT = 49_152
"""Source port of the first EV of every plane; the others follow it."""
HOST_NAMES = (*ascii_lowercase, *(f"{x}{y}" for x in "abcdefghi" for y in ascii_lowercase))
"""a to z, then aa to iz."""


@lru_cache(maxsize=1024)
def address(host: int, plane: int, *, ipv6: bool) -> str:
    """Return the address of a host's port in a plane; `host` is its index."""
    return (
        f"fd00:{plane:x}::{host + 1:x}" if ipv6 else f"10.{plane}.{host + 1 >> 8}.{host + 1 & 255}"
    )
