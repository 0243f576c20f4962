"""Hosts and what befalls them: each fault does what its name says, and everything completes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mrc.proto.config import Config
from mrc.proto.events import QpFailure
from mrc.sim.connection import Connection, End
from mrc.sim.failure import CheckFailed
from mrc.sim.host import Host
from mrc.sim.options import Fault, FaultKind, HostOptions, LinkOptions, LossMask
from mrc.sim.simulation import Simulation
from tests.sim.small import MS, options, passed

SLOW = LinkOptions(rate_bps=100_000_000, delay_ns=100_000)
"""100 KB take 8 ms: long enough for things to happen meanwhile."""


def end_of(simulation: Simulation, index: int) -> End:
    """Return an end of the only connection."""
    return simulation.connections[0].ends[index]


def fault(kind: FaultKind, where: str, *, at_ns: int = 2 * MS, **more: int) -> Fault:
    """Return something that happens in the middle of the transfer."""
    return Fault(kind=kind, where=where, at_ns=at_ns, **more)


def test_paused_process_reads_nothing() -> None:
    """Datagrams lie in its sockets until it runs again."""
    simulation = Simulation(
        options(link=SLOW, faults=(fault(FaultKind.PAUSE, "b", for_ns=30 * MS),))
    )
    simulation.connections[0].connect()
    simulation.timeline.run_until(20 * MS)
    assert simulation.hosts[1].unread > 0
    simulation.timeline.run_until(50 * MS)
    assert simulation.hosts[1].unread == 0


def test_socket_holds_only_so_much() -> None:
    """What a process does not read in time is lost."""
    config = Config(mtu=1024, congestion_control=False)
    small = HostOptions(config=config, receive_buffer_bytes=8192)
    paused = fault(FaultKind.PAUSE, "b", for_ns=30 * MS)
    simulation = passed(options(link=SLOW, host=small, faults=(paused,)))
    assert simulation.network.lost["socket full"] > 0


def test_crashed_host_is_another_one_afterwards() -> None:
    """It knows nothing of what was, is connected anew, and gets what was not done."""
    crash = fault(FaultKind.CRASH, "b", for_ns=5 * MS)
    simulation = passed(options(link=SLOW, faults=(crash,)))
    assert simulation.hosts[1].incarnation == 1
    assert simulation.connections[0].times_connected == 2
    assert simulation.network.lost["host down"] > 0


def test_what_was_sent_to_the_dead_changes_nothing() -> None:
    """Packets for a queue pair of the incarnation before are dropped by the next."""
    late = LinkOptions(rate_bps=100_000_000, delay_ns=10 * MS)
    crash = fault(FaultKind.CRASH, "b", at_ns=12 * MS, for_ns=1)
    simulation = passed(options(link=late, faults=(crash,), reconnect_ns=1))
    drops = simulation.hosts[1].endpoint.statistics().drops
    assert drops["unknown_qp"] > 0


def test_clock_that_stands_still_stops_timers_only() -> None:
    """What is acknowledged goes on; nothing is asked for and nothing times out."""
    stop = fault(FaultKind.CLOCK_STOP, "a", at_ns=1, for_ns=40 * MS)
    simulation = passed(options(link=SLOW, faults=(stop,)))
    assert end_of(simulation, 0).qp is not None
    assert simulation.timeline.now_ns < 100 * MS


@pytest.mark.parametrize("amount_ns", [-10_000 * MS, 10_000 * MS])
def test_clock_that_jumps_kills_nobody(amount_ns: int) -> None:
    """Ten seconds back or ahead: the transfer completes on the same queue pair."""
    jump = fault(FaultKind.CLOCK_JUMP, "a", amount_ns=amount_ns)
    lossy = replace(SLOW, mask=LossMask(20, 5))
    simulation = passed(options(link=SLOW, links={"up a.0": lossy}, faults=(jump,)))
    assert simulation.connections[0].times_connected == 1


def test_port_without_carrier_sends_and_receives_nothing() -> None:
    """The kernel refuses what is sent there, and the other plane carries everything."""
    down = fault(FaultKind.PORT_DOWN, "a.1", for_ns=20 * MS)
    simulation = passed(options(link=SLOW, planes=2, faults=(down,)))
    assert simulation.network.refused > 0 or simulation.network.lost["port down"] > 0
    assert all(port.up for port in simulation.hosts[0].ports)


def test_refused_runs_are_sent_again() -> None:
    """A kernel that refuses now and then costs time, no data."""
    refusing = HostOptions(config=Config(paths=4, mtu=1024), refuse=0.3)
    assert passed(options(link=SLOW, host=refusing)).network.refused > 0


def test_full_send_buffer_holds_runs_back() -> None:
    """What the kernel does not take yet is sent later; nothing is lost by it."""
    config = Config(paths=4, mtu=1024, congestion_control=False)
    blocking = HostOptions(config=config, send_buffer_bytes=16384)
    simulation = passed(options(link=replace(SLOW, queue_bytes=1 << 20), host=blocking))
    assert not simulation.network.lost


def test_datagrams_of_a_flow_are_read_together() -> None:
    """With GRO one run holds several; without it each comes alone."""
    counts = []
    for gro in (True, False):
        host = HostOptions(config=Config(paths=1, mtu=1024, spray_run=8), wake_ns=MS, gro=gro)
        simulation = Simulation(options(host=host))
        receive = simulation.hosts[1].endpoint.receive
        sizes: list[int] = []

        def count(run: object, now_ns: int, sizes: list[int] = sizes, to=receive) -> None:  # type: ignore[no-untyped-def]
            sizes.append(run.byte_count // run.segment_bytes)  # type: ignore[attr-defined]
            to(run, now_ns)

        simulation.hosts[1].endpoint.receive = count  # type: ignore[method-assign]
        assert simulation.run().passed
        counts.append(max(sizes))
    assert counts[0] > 1
    assert counts[1] == 1


def test_closed_region_fails_the_queue_pair_and_nothing_else() -> None:
    """The writer is refused, connects anew, and learns of the region that is open now."""
    seen: list[QpFailure] = []
    close = fault(FaultKind.CLOSE_REGION, "0 b")
    simulation = Simulation(options(link=SLOW, faults=(close,)))
    judge = simulation.connections[0].on_failure

    def note(connection: Connection, end: End, event: object) -> None:
        seen.append(event.failure)  # type: ignore[attr-defined]
        judge(connection, end, event)  # type: ignore[arg-type]

    simulation.connections[0].on_failure = note
    assert simulation.run().passed
    assert seen == [QpFailure.REMOTE_ACCESS]
    assert len(end_of(simulation, 1).retired) == 1


def test_dead_network_ends_a_queue_pair_after_its_budget() -> None:
    """It gives up when its retries are used up; then it is connected anew, as often as needed."""
    config = Config(mtu=1024, timeout=10, retry_linear=1, retry_exponential=2)
    cut = fault(FaultKind.CUT, "up a.0", for_ns=30 * MS)
    simulation = passed(options(link=SLOW, host=HostOptions(config=config), faults=(cut,)))
    assert simulation.connections[0].times_connected > 1


def test_endless_timer_is_a_livelock() -> None:
    """A process that always has something overdue is found out."""
    simulation = Simulation(options())
    host: Host = simulation.hosts[0]
    host.endpoint.next_deadline_ns = lambda: 0  # type: ignore[method-assign]
    host.wake_by(0)
    with pytest.raises(CheckFailed, match="livelock"):
        simulation.timeline.run_until(MS)
