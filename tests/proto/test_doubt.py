"""A plane on which one peer lost packets is doubted by the others, and nobody is blamed for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mrc.proto.config import Config
from mrc.proto.events import EvState
from tests.support.evs import choose, path_set
from tests.support.filters import black_hole
from tests.support.pair import MS, Pair

GOOD = EvState.GOOD


def test_a_plane_that_another_peer_lost_packets_on_is_doubted_and_probed_at_once() -> None:
    """An answer ends that after one round trip, and nobody was blamed."""
    paths = path_set(paths=8, planes=2, backup_paths=0)
    plane = paths.paths[0].plane
    assert paths.doubt(plane, 5 * MS, 10 * MS)
    assert plane not in {path.plane for path in choose(paths, 16)}
    assert paths.next_deadline_ns() == 10 * MS
    (probe,) = paths.due_probes(10 * MS)
    assert (probe.plane, probe.state) == (plane, GOOD)
    paths.on_probe_answer(probe, 10 * MS, 11 * MS)
    assert plane in {path.plane for path in choose(paths, 16)}


def test_a_plane_on_which_a_peer_was_heard_since_is_not_doubted() -> None:
    """The port and the switch behind it work: the other peer is dead there alone."""
    paths = path_set(paths=8, planes=2, backup_paths=0)
    paths.heard_ns[0] = 6 * MS
    assert not paths.doubt(0, 5 * MS, 10 * MS)


def test_the_last_plane_beyond_suspicion_is_not_doubted() -> None:
    """There would be none to send on meanwhile."""
    paths = path_set(paths=8, planes=2, backup_paths=0)
    assert paths.doubt(0, 5 * MS, 10 * MS)
    assert not paths.doubt(1, 5 * MS, 10 * MS)


@pytest.mark.parametrize(("heard_ms", "doubted"), [(-1, True), (20, False), (-2000, False)])
def test_peers_on_the_port_of_a_suspect_plane_doubt_it(heard_ms: int, doubted: bool) -> None:
    """Those heard of late, but not on this port since: who exchanges with all loses once."""
    pair = Pair(Config(mtu=1024, paths=16, link_bps=400_000_000), planes=4, link_bps=100e6)
    endpoint = pair.a.endpoint
    planes = [replace(each, remote=("192.0.2.7", 4791)) for each in pair.a.peer.plane_list]
    other = endpoint.add_peer(planes)
    pair.post(bytes(4 << 20))
    pair.run_for(10 * MS)
    other.paths.heard_ns[2] = pair.now_ns + heard_ms * MS
    pair.filters.insert(0, black_hole(lambda d: d.plane == 2))
    pair.run_for(20 * MS)
    assert pair.a.ev_changes()
    used = {path.plane for path in choose(other.paths, 32)}
    assert (2 not in used) is doubted
