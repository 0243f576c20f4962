"""24-bit PSN arithmetic against a naive model: all pairs near every edge, and any pair at all."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from mrc.wire.psn import PSN_BITS, PSN_HALF, PSN_MODULUS, from_wire, to_wire, wire_difference

EDGES = (0, PSN_HALF, PSN_MODULUS, 3 * PSN_HALF)
SPAN = 24
NEAR_AN_EDGE = [edge + step for edge in EDGES for step in range(-SPAN, SPAN + 1)]
DISTANCES = [
    *range(-SPAN, SPAN + 1),
    *range(-PSN_HALF, -PSN_HALF + SPAN),
    *range(PSN_HALF - SPAN, PSN_HALF),
]
PSNS = st.integers(0, 1 << 40)


def naive_difference(a: int, b: int) -> int:
    """Return a - b, by looking at every number that is the same modulo 2^24."""
    laps = range((a - b) // PSN_MODULUS - 2, (a - b) // PSN_MODULUS + 3)
    (found,) = [
        candidate
        for candidate in (a - b - lap * PSN_MODULUS for lap in laps)
        if -(2**23) <= candidate < 2**23
    ]
    return found


def test_a_psn_has_24_bits() -> None:
    """The wire has 24 bits of a PSN, so it wraps at 16,777,216."""
    assert (PSN_BITS, PSN_MODULUS, PSN_HALF) == (24, 16_777_216, 8_388_608)


def test_a_psn_is_found_again_around_every_wrap() -> None:
    """From its 24 bits and any reference less than half the circle away, a PSN comes back."""
    for lap in (0, 1, 5):
        for psn, distance in itertools.product(NEAR_AN_EDGE, DISTANCES):
            near = lap * PSN_MODULUS + psn
            assert from_wire(to_wire(near + distance), near) == near + distance


def test_half_the_circle_away_counts_as_before() -> None:
    """At a distance of exactly 2^23, where both directions are as far, the lower PSN is meant."""
    for near in NEAR_AN_EDGE:
        assert from_wire(to_wire(near + PSN_HALF), near) == near - PSN_HALF


def test_a_psn_before_the_first_is_negative() -> None:
    """A PSN from before the start, as a stray packet has, is below zero and so never expected."""
    assert from_wire(0xFFFFFF, 0) == -1


def test_the_difference_is_the_naive_one_around_every_wrap() -> None:
    """For all pairs near an edge the difference is the one in [-2^23, 2^23)."""
    for a, b in itertools.product(NEAR_AN_EDGE, NEAR_AN_EDGE):
        assert wire_difference(a, b) == naive_difference(a, b)


@given(a=PSNS, b=PSNS)
def test_the_difference_is_the_naive_one(a: int, b: int) -> None:
    """For any pair the difference is the one in [-2^23, 2^23), whatever lap either is on."""
    assert wire_difference(a, b) == naive_difference(a, b)
    assert wire_difference(to_wire(a), to_wire(b)) == naive_difference(a, b)


@given(psn=PSNS)
def test_the_wire_has_the_low_bits(psn: int) -> None:
    """What is sent of a PSN is its remainder, and at the PSN itself it is unambiguous."""
    assert to_wire(psn) == psn % 2**24
    assert from_wire(to_wire(psn), psn) == psn
