"""Links: what each option does to datagrams, seen from the network's account."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mrc.proto.config import Config
from mrc.sim.datagram import DSCP, Datagram
from mrc.sim.link import OVERHEAD_BYTES, Link
from mrc.sim.options import HostOptions, Kind, LinkOptions, LossMask, link_names
from mrc.sim.simulation import Simulation
from mrc.wire.fields import Opcode
from mrc.wire.writes import HEADER_BYTES
from tests.sim.small import MS, options, passed

WRITE = bytes([Opcode.WRITE_MIDDLE]) + bytes(1071)
"""1072 bytes, and 28 of IP and UDP: 8.8 us at 1 Gbit/s."""
RATE_BPS = 1_000_000_000
TAKES_NS = 8_800


class Wire:
    """One link by itself, and what comes out of it when."""

    def __init__(self, link: LinkOptions) -> None:
        self.simulation = Simulation(options(link=link))
        self.timeline, self.network = self.simulation.timeline, self.simulation.network
        self.link: Link = self.network.links["up a.0"]
        self.arrivals: list[tuple[int, Datagram]] = []
        self.network.receivers[1] = self._arrive

    def _arrive(self, datagram: Datagram) -> None:
        self.arrivals.append((self.timeline.now_ns, datagram))

    def send(self, data: bytes = WRITE, dscp: int = DSCP.trimmable, ecn: int = 2) -> Datagram:
        """Let a datagram enter the link now."""
        self.network.sent += 1
        datagram = Datagram(
            number=self.network.sent,
            data=data,
            sender=0,
            receiver=1,
            plane=0,
            source_port=50_000,
            flow_label=0,
            tos=dscp << 2 | ecn,
            links=(self.link,),
        )
        self.link.enter(datagram)
        return datagram

    def numbers(self) -> list[int]:
        """Let everything arrive; return the numbers of what did, in that order."""
        self.timeline.run_until(self.timeline.now_ns + 1_000 * MS)
        return [datagram.number for _, datagram in self.arrivals]

    def times_ns(self) -> list[int]:
        """Let everything arrive; return when it did."""
        self.numbers()
        return [at_ns for at_ns, _ in self.arrivals]


def test_rate_and_delay() -> None:
    """Each datagram takes its length on the link, one after the other, and then the delay."""
    wire = Wire(LinkOptions(rate_bps=RATE_BPS, delay_ns=5_000))
    assert len(WRITE) + OVERHEAD_BYTES == 1100
    for _ in range(3):
        wire.send()
    assert wire.times_ns() == [5_000 + TAKES_NS * n for n in (1, 2, 3)]


def test_full_queue_drops_the_last() -> None:
    """What does not fit behind what waits is lost, and counted."""
    wire = Wire(LinkOptions(rate_bps=RATE_BPS, queue_bytes=2500))
    for _ in range(4):
        wire.send()
    assert wire.numbers() == [1, 2]
    assert wire.network.lost == {"queue full": 2}


def test_jitter_keeps_the_order() -> None:
    """Random delays never let one datagram overtake another."""
    wire = Wire(LinkOptions(jitter_ns=50_000))
    for _ in range(50):
        wire.send()
    assert wire.numbers() == list(range(1, 51))


def test_control_overtakes_data_that_waits() -> None:
    """A control packet leaves after what is being sent, before what waits, at the same rate."""
    wire = Wire(LinkOptions(rate_bps=RATE_BPS, delay_ns=0))
    for _ in range(3):
        wire.send()
    control = wire.send(bytes([Opcode.SACK]) + bytes(51), dscp=DSCP.control, ecn=0)
    assert wire.numbers().index(control.number) == 0
    wire.send()
    assert wire.times_ns()[-1] - wire.arrivals[-2][0] > TAKES_NS - 1


def test_trimming_starts_at_its_threshold() -> None:
    """Data that meets a longer queue is cut to its headers, told by its DSCP, and delivered."""
    wire = Wire(LinkOptions(rate_bps=RATE_BPS, trim_bytes=2500))
    for _ in range(4):
        wire.send()
    wire.numbers()
    trimmed = [datagram for _, datagram in wire.arrivals if datagram.is_trimmed]
    assert [len(datagram.data) for datagram in trimmed] == 2 * [HEADER_BYTES]
    assert {datagram.tos >> 2 for datagram in trimmed} == {DSCP.trimmed}
    assert wire.network.done_to == {"trim": 2}


def test_last_hop_says_so() -> None:
    """Trimming in front of a host has a code point of its own."""
    wire = Wire(LinkOptions(rate_bps=RATE_BPS, trim=1.0, last_hop=True))
    assert wire.send().tos >> 2 == DSCP.trimmed_lasthop


def test_trimmed_headers_do_not_starve_data() -> None:
    """While data waits, headers get half of the rate at most."""
    wire = Wire(LinkOptions(rate_bps=RATE_BPS, trim_bytes=10_000, queue_bytes=1 << 20, delay_ns=0))
    for _ in range(2000):
        wire.send()
    wire.timeline.run_until(100_000)
    whole = sum(not datagram.is_trimmed for _, datagram in wire.arrivals)
    assert whole >= 5


def test_only_data_is_trimmed() -> None:
    """Control packets and what may not be trimmed are left whole."""
    wire = Wire(LinkOptions(trim=1.0))
    wire.send(bytes([Opcode.SACK]) + bytes(51), dscp=DSCP.control)
    wire.send(dscp=DSCP.no_trim)
    assert not wire.network.done_to


def test_marks_above_a_queue_length() -> None:
    """ECN-capable datagrams that meet a long queue are marked, others are not."""
    wire = Wire(LinkOptions(rate_bps=RATE_BPS, mark_bytes=1500))
    marked = [wire.send(), wire.send(), wire.send(), wire.send(ecn=0)]
    assert [datagram.tos & 3 for datagram in marked] == [2, 2, 3, 0]


@pytest.mark.parametrize(
    ("mask", "arrive"),
    [
        (LossMask(0, 1), [2, 3, 4, 5, 6]),
        (LossMask(1, 3), [1, 5, 6]),
        (LossMask(0, 3, 2), [2, 4, 6]),
    ],
)
def test_mask_loses_exactly_these(mask: LossMask, arrive: list[int]) -> None:
    """A mask names the places of the datagrams that are lost."""
    wire = Wire(LinkOptions(mask=mask))
    for _ in range(6):
        wire.send()
    assert wire.numbers() == arrive
    assert str(mask)


def test_mask_may_count_one_kind_only() -> None:
    """Places are counted among what the mask falls on."""
    wire = Wire(LinkOptions(mask=LossMask(1, 1), loss_of=Kind.CONTROL))
    control = bytes([Opcode.SACK]) + bytes(51)
    for data in (control, WRITE, WRITE, control, control):
        wire.send(data)
    assert sorted(wire.numbers()) == [1, 2, 3, 5]


def test_large_datagrams_vanish() -> None:
    """Above a size nothing arrives, and nobody is told."""
    wire = Wire(LinkOptions(size_max=1071))
    wire.send()
    wire.send(WRITE[:1071])
    assert wire.numbers() == [2]


def test_reordering_lets_others_overtake() -> None:
    """Some are held up; all arrive."""
    wire = Wire(LinkOptions(reorder=0.5, reorder_ns=MS, delay_ns=0))
    for _ in range(40):
        wire.send()
    found = wire.numbers()
    assert found != sorted(found)
    assert sorted(found) == list(range(1, 41))


def test_duplicates_have_numbers_of_their_own() -> None:
    """A copy arrives as well, and the account knows of it."""
    wire = Wire(LinkOptions(duplicate=1.0))
    wire.send()
    assert sorted(wire.numbers()) == [1, 2]
    assert wire.network.duplicated == 1
    assert wire.network.on_the_way == 0


def test_corruption_flips_few_bits() -> None:
    """The length stays, up to three bits differ, and the datagram is known to be damaged."""
    wire = Wire(LinkOptions(corrupt=1.0))
    datagram = wire.send()
    differing = int.from_bytes(datagram.data, "big") ^ int.from_bytes(WRITE, "big")
    assert len(datagram.data) == len(WRITE)
    assert differing.bit_count() <= 3
    assert datagram.corrupted


def test_rewritten_port_comes_back_the_second_time() -> None:
    """Two translators in a row give the first port again."""
    wire = Wire(LinkOptions(rewrite_ports=True))
    datagram = wire.send()
    assert datagram.rewritten
    assert datagram.source_port != 50_000
    datagram.rewrite_port()
    assert (datagram.source_port, datagram.rewritten) == (50_000, False)


def test_cut_swallows_until_it_is_mended() -> None:
    """What entered before the cut still arrives, what enters during it does not."""
    wire = Wire(LinkOptions())
    wire.send()
    wire.link.cut()
    wire.send()
    wire.link.mend()
    wire.send()
    assert wire.numbers() == [1, 3]
    assert wire.network.lost == {"cut": 1}


def test_two_cuts_need_two_mendings() -> None:
    """A link that was cut twice works only when both are over."""
    wire = Wire(LinkOptions())
    for act in (wire.link.cut, wire.link.cut, wire.link.mend, wire.send, wire.link.mend, wire.send):
        act()
    assert wire.numbers() == [2]


def test_reboot_loses_what_is_on_its_way() -> None:
    """Queues of a switch do not outlive it."""
    wire = Wire(LinkOptions(rate_bps=RATE_BPS))
    wire.send()
    wire.link.flush()
    wire.send()
    assert wire.numbers() == [2]
    assert wire.network.lost == {"reboot": 1}


def test_healing_ends_faults_and_leaves_the_link_as_it_is() -> None:
    """Rate, queue and what a switch does to it stay; everything that may fail is over."""
    sound = LinkOptions(rate_bps=RATE_BPS, trim_bytes=9000, mark_bytes=4000, jitter_ns=5)
    spoilt = replace(sound, loss=0.5, mask=LossMask(0, 1), corrupt=0.1, duplicate=0.1, reorder=0.1)
    spoilt = replace(spoilt, size_max=9, rewrite_ports=True, trim=0.1, mark=0.1)
    assert spoilt.healed() == sound


def test_ways_are_chosen_by_the_source_port() -> None:
    """With several ways in a plane the EVs of one host pair spread over them."""
    simulation = passed(options(ways=4, host=HostOptions(config=Config(paths=16, mtu=1024))))
    used = {name for name, link in simulation.network.links.items() if link.entered}
    assert len([name for name in used if name.startswith("way 0.") and name.endswith(" b")]) > 1
    assert used <= set(link_names(2, 1, 4))
