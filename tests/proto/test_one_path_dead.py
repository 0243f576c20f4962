"""One path dies and comes back: found by itself, left by itself, taken back by itself.

Eight EVs on four planes of 200 Mbit/s; the first EV of plane 1 swallows everything for a while.
"""

from __future__ import annotations

import pytest

from mrc.proto.config import Config
from mrc.proto.events import EvState
from mrc.wire.fields import Opcode
from tests.support.filters import Tap, black_hole, on_ev, opcode
from tests.support.pair import FIRST_EV_PORT, MS, Datagram, Pair, S

CONFIG = Config(mtu=4096, paths=8, backup_paths=4, link_bps=800_000_000)
PLANES = 4
SIZE = 12 << 20
"""Takes 126 ms with all planes."""
DEAD = on_ev({FIRST_EV_PORT}, 1)
DEAD_INDEX = 3
"""Each plane has two active EVs and one backup."""


class Outage:
    """A long transfer; the path dies after `healthy_ns` and works again `dead_ns` later."""

    def __init__(self, healthy_ns: int, dead_ns: int, config: Config = CONFIG) -> None:
        self.pair = Pair(config, planes=PLANES, link_bps=200e6)
        self.dead_ns = self.pair.now_ns + healthy_ns
        self.healed_ns = self.dead_ns + dead_ns
        self.lost = Tap(lambda datagram: not datagram.copies and datagram.is_data)
        hole = black_hole(DEAD, since_ns=self.dead_ns, until_ns=self.healed_ns)
        self.pair.filters += [hole, self.lost]
        self.work, self.target = self.pair.post(bytes(SIZE))

    def state(self) -> EvState:
        """State of the path that dies."""
        return self.pair.a.paths.paths[DEAD_INDEX].state

    def placed(self) -> int:
        """Bytes that arrived at B."""
        return self.pair.b.responder.statistics().payload_bytes_placed

    def run_until(self, state: EvState) -> int:
        """Run until the path is in that state; return the time."""
        self.pair.run(lambda: self.state() is state)
        return self.pair.now_ns


@pytest.mark.parametrize("healthy_ms", [0, 1, 20])
def test_dead_path_is_left(healthy_ms: int) -> None:
    """Within 50 ms of its first lost packet the EV is ASSUMED_BAD, also when it never worked."""
    outage = Outage(healthy_ms * MS, 1 * S)
    found_ns = outage.run_until(EvState.ASSUMED_BAD)
    assert found_ns - outage.lost.datagrams[0].sent_ns < 30 * MS
    outage.pair.run_for(100 * MS)
    assert {change.index for change in outage.pair.a.ev_changes()} == {DEAD_INDEX}


def test_dead_path_is_left_in_a_few_round_trips() -> None:
    """On an idle, fast network it takes about a millisecond."""
    outage = Outage(20 * MS, 1 * S)
    found_ns = outage.run_until(EvState.ASSUMED_BAD)
    assert found_ns - outage.lost.datagrams[0].sent_ns < 3 * MS


def test_nobody_else_is_blamed() -> None:
    """Through outage and recovery no other EV changes its state."""
    outage = Outage(5 * MS, 60 * MS)
    outage.pair.run(lambda: outage.pair.done(outage.work))
    changes = outage.pair.a.ev_changes()
    assert {change.index for change in changes} == {DEAD_INDEX}
    assert [change.after for change in changes] == [EvState.ASSUMED_BAD, EvState.GOOD]
    assert outage.target == bytes(SIZE)


@pytest.mark.parametrize("dead_ms", [30, 300, 3000])
def test_healed_path_is_taken_back(dead_ms: int) -> None:
    """The EV is GOOD again within 2 s of healing, whether or not there is traffic."""
    outage = Outage(5 * MS, dead_ms * MS)
    outage.run_until(EvState.ASSUMED_BAD)
    outage.pair.run_for(outage.healed_ns - outage.pair.now_ns)
    assert outage.run_until(EvState.GOOD) - outage.healed_ns < 0.3 * S


def test_only_what_was_lost_is_sent_again() -> None:
    """Every packet the path swallowed is sent again once, nothing else, without a timeout."""
    outage = Outage(5 * MS, 60 * MS)
    outage.pair.run(lambda: outage.pair.done(outage.work))
    found = outage.pair.a.requestor.statistics()
    assert found.packets_retransmitted == len(outage.lost.datagrams) > 0
    assert (found.packets_spurious, found.timeouts) == (0, 0)


def test_dead_path_costs_little() -> None:
    """A backup takes the place of the dead EV: the rate stays that of four planes."""
    outage = Outage(20 * MS, 1 * S)
    outage.pair.run_for(20 * MS)
    before = outage.placed()
    outage.pair.run_for(50 * MS)
    assert outage.placed() - before > 0.9 * 800e6 / 8 * 0.05


def test_dead_plane() -> None:
    """With a whole plane dead the rate settles at that of the other three."""
    pair = Pair(CONFIG, planes=PLANES, link_bps=200e6)
    pair.filters.append(black_hole(lambda d: d.plane == 1, since_ns=pair.now_ns + 10 * MS))
    pair.post(bytes(SIZE))
    pair.run_for(40 * MS)
    before = pair.b.responder.statistics().payload_bytes_placed
    pair.run_for(50 * MS)
    placed = pair.b.responder.statistics().payload_bytes_placed - before
    assert placed > 0.9 * 600e6 / 8 * 0.05
    assert {change.plane for change in pair.a.ev_changes()} == {1}


def test_dead_path_costs_a_probe_now_and_then() -> None:
    """A dead EV carries no data, only probes: about four a second in the end."""
    outage = Outage(5 * MS, 10 * S)
    outage.run_until(EvState.ASSUMED_BAD)
    outage.pair.run_for(1 * S)
    probes = Tap(opcode(Opcode.ENDPOINT_REQUEST))
    outage.lost.datagrams.clear()
    outage.pair.filters.insert(0, probes)
    outage.pair.run_for(2 * S)
    assert outage.lost.datagrams == []
    assert 7 <= len(probes.datagrams) <= 9


def test_path_that_loses_a_fifth() -> None:
    """An EV that drops every fifth packet is withdrawn at once, and again when it came back."""
    count = 0

    def fifth(datagram: object) -> bool:
        nonlocal count
        count += 1
        return count % 5 == 0

    pair = Pair(CONFIG, planes=PLANES, link_bps=200e6)
    pair.filters.append(black_hole(lambda d: DEAD(d) and fifth(d)))
    pair.post(bytes(SIZE))
    pair.run_for(20 * MS)
    before = pair.b.responder.statistics().payload_bytes_placed
    pair.run_for(100 * MS)
    placed = pair.b.responder.statistics().payload_bytes_placed - before
    assert placed > 0.9 * 800e6 / 8 * 0.1
    assert {change.index for change in pair.a.ev_changes()} == {DEAD_INDEX}
    row = pair.a.paths.statistics()[DEAD_INDEX]
    assert row.sent_packets < 200


def test_single_ev() -> None:
    """The only EV is never withdrawn: there is nothing better."""
    pair = Pair(Config(mtu=2048, paths=1, backup_paths=0, link_bps=200_000_000), link_bps=200e6)
    dead_ns = pair.now_ns + 5 * MS
    pair.filters.append(black_hole(on_ev({FIRST_EV_PORT}), since_ns=dead_ns, until_ns=dead_ns + S))
    work, target = pair.post(b"\x01" * (1 << 20))
    pair.run(lambda: pair.done(work))
    assert target == b"\x01" * (1 << 20)
    assert pair.a.ev_changes() == []


def test_the_only_active_path_dies_and_its_backup_takes_over() -> None:
    """With one active EV silence proves nothing, but what is sent again takes the spare."""
    pair = Pair(Config(paths=1, backup_paths=1))
    assert bytes(pair.transfer(bytes(100_000))) == bytes(100_000)
    dead = pair.a.paths.paths[0].source_port

    def swallow(datagram: Datagram) -> None:
        if datagram.sender == 0 and datagram.source_port == dead:
            datagram.copies = 0

    pair.filters.append(swallow)
    data = bytes(range(256)) * 4000
    assert bytes(pair.transfer(data)) == data
    assert not pair.failed()
    assert [path.state for path in pair.a.paths.paths] == [EvState.ASSUMED_BAD, EvState.GOOD]
