"""What a network does to datagrams, as filters for `Pair`: loss, black holes, trims, marks, delay.

A filter acts on what it is told to match, by default the data packets of A. All randomness is
seeded, so the same test sees the same faults.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import replace

from mrc.proto.config import DscpMap
from mrc.proto.runs import ECN_CE
from mrc.wire.control import Ack, Nack, Sack
from mrc.wire.fields import IMMDT, IMMEDIATE_OPCODES, Opcode
from mrc.wire.writes import HEADER_BYTES, Write
from tests.support.pair import MS, US, Datagram, Filter

Match = Callable[[Datagram], bool]

DSCP = DscpMap()


def data(datagram: Datagram) -> bool:
    """Match data packets of A."""
    return datagram.is_data and datagram.sender == 0


def first_time(datagram: Datagram) -> bool:
    """Match data packets of A that are sent for the first time."""
    return data(datagram) and not datagram.rtx


def from_b(datagram: Datagram) -> bool:
    """Match everything that B sends: SACKs, NACKs, ACKs, answers."""
    return datagram.sender == 1


def opcode(code: Opcode) -> Match:
    """Match one kind of packet."""
    return lambda datagram: datagram.opcode == code


def on_ev(ports: Collection[int], plane: int | None = None) -> Match:
    """Match what A sends from these source ports, on one plane or on all."""

    def matches(datagram: Datagram) -> bool:
        here = plane is None or datagram.plane == plane
        return datagram.sender == 0 and here and datagram.source_port in ports

    return matches


class Tap:
    """Keeps copies of matching datagrams as they leave."""

    def __init__(self, match: Match = data) -> None:
        self._match = match
        self.datagrams: list[Datagram] = []

    def __call__(self, datagram: Datagram) -> None:
        """See a datagram."""
        if self._match(datagram):
            self.datagrams.append(replace(datagram, data=bytearray(datagram.data)))

    def writes(self) -> list[Write]:
        """Return the headers of those that are data packets."""
        return [Write.decode_untrusted(d.data) for d in self.datagrams if d.is_data]

    def sacks(self) -> list[Sack]:
        """Return those that are SACKs."""
        found = [d.data for d in self.datagrams if d.opcode == Opcode.SACK]
        return [Sack.decode_untrusted(packet) for packet in found]

    def nacks(self) -> list[Nack]:
        """Return those that are NACKs."""
        found = [d.data for d in self.datagrams if d.opcode == Opcode.NACK]
        return [Nack.decode_untrusted(packet) for packet in found]

    def acks(self) -> list[Ack]:
        """Return those that are Transport ACKs."""
        found = [d.data for d in self.datagrams if d.opcode == Opcode.ACKNOWLEDGE]
        return [Ack.decode_untrusted(packet) for packet in found]


def lose(rate: float, match: Match = data, seed: int = 7) -> Filter:
    """Lose matching datagrams at random."""
    rng = random.Random(seed)

    def act(datagram: Datagram) -> None:
        if match(datagram) and rng.random() < rate:
            datagram.copies = 0

    return act


def nth(places: Collection[int], match: Match = data) -> Match:
    """Match those at these places in the order of sending among what matches, counted from 0."""
    count = -1

    def matches(datagram: Datagram) -> bool:
        nonlocal count
        count += match(datagram)
        return count in places and match(datagram)

    return matches


def lose_nth(places: Collection[int], match: Match = data) -> Filter:
    """Lose the matching datagrams at these places in the order of sending, counted from 0."""
    return lose(1.0, nth(places, match))


def black_hole(match: Match, *, since_ns: int = 0, until_ns: int = 1 << 62) -> Filter:
    """Lose every matching datagram sent in [since_ns, until_ns)."""

    def act(datagram: Datagram) -> None:
        if since_ns <= datagram.sent_ns < until_ns and match(datagram):
            datagram.copies = 0

    return act


def cut(datagram: Datagram, *, last_hop: bool = False) -> None:
    """Trim a datagram as a congested switch does: headers stay, the DSCP tells."""
    immediate = IMMDT.size if datagram.opcode in IMMEDIATE_OPCODES else 0
    del datagram.data[HEADER_BYTES + immediate :]
    dscp = DSCP.trimmed_lasthop if last_hop else DSCP.trimmed
    datagram.tos = dscp << 2 | datagram.tos & 3


def trim(
    rate: float, match: Match = first_time, seed: int = 7, *, last_hop: bool = False
) -> Filter:
    """Trim matching data packets at random."""
    rng = random.Random(seed)

    def act(datagram: Datagram) -> None:
        if match(datagram) and rng.random() < rate:
            cut(datagram, last_hop=last_hop)

    return act


def mark(match: Match = data) -> Filter:
    """Mark matching datagrams as having met congestion (ECN CE)."""

    def act(datagram: Datagram) -> None:
        if match(datagram):
            datagram.tos |= ECN_CE

    return act


def plane_delays(delays_ms: list[float]) -> Filter:
    """Add a one-way delay to everything on a plane, in both directions."""

    def act(datagram: Datagram) -> None:
        datagram.delay_ns += int(delays_ms[datagram.plane] * MS)

    return act


def jitter(limit_us: int, match: Match = data, seed: int = 7) -> Filter:
    """Delay matching datagrams by a random time, so that they overtake each other anywhere."""
    rng = random.Random(seed)

    def act(datagram: Datagram) -> None:
        if match(datagram):
            datagram.delay_ns += rng.randrange(limit_us * US)

    return act
