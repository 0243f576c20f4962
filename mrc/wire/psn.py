"""24-bit packet sequence numbers.

Inside the protocol a PSN is a plain integer that only grows, so that comparisons are comparisons.
Only here does it meet the 24 bits of the wire (MRC 1.0 §6.2.2): `to_wire` cuts it down, `from_wire`
finds the one integer that has those 24 bits and lies nearest to a reference.
"""

from __future__ import annotations

PSN_BITS = 24
PSN_MODULUS = 1 << PSN_BITS
PSN_MASK = PSN_MODULUS - 1
PSN_HALF = PSN_MODULUS >> 1


def to_wire(psn: int) -> int:
    """Return the low 24 bits of a PSN."""
    return psn & PSN_MASK


def from_wire(wire_psn: int, near: int) -> int:
    """Return the PSN with these 24 bits in [near - 2^23, near + 2^23).

    The result may be negative when `near` is small: such a PSN lies before the first one.
    """
    return near + wire_difference(wire_psn, near)


def wire_difference(a: int, b: int) -> int:
    """Return a - b modulo 2^24 as a signed number in [-2^23, 2^23)."""
    return ((a - b + PSN_HALF) & PSN_MASK) - PSN_HALF
