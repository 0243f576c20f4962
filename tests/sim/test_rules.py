"""The rules look where they say, and a broken one is told by its name."""

from __future__ import annotations

from operator import attrgetter

import pytest

from mrc.proto.config import Config
from mrc.proto.events import QpFailed, QpFailure
from mrc.proto.qp import QueuePair
from mrc.sim.checks import THOROUGH_EVERY
from mrc.sim.connection import End
from mrc.sim.failure import CheckFailed
from mrc.sim.options import HostOptions, LinkOptions
from mrc.sim.rules import ENDPOINT_LIMITS, QP_LIMITS, WINDOW_LIMITS
from mrc.sim.simulation import EVENTS_MAX, Simulation
from tests.sim.small import MS, options

SLOW = LinkOptions(rate_bps=100_000_000, delay_ns=MS)
"""100 KB take 8 ms."""


@pytest.fixture
def simulation() -> Simulation:
    """Return a simulation in the middle of a transfer."""
    running = Simulation(options(link=SLOW))
    running.connections[0].connect()
    running.timeline.run_until(2 * MS)
    assert not running.connections[0].finished
    return running


def sender(simulation: Simulation) -> End:
    """Return the end that writes."""
    return simulation.connections[0].ends[0]


def qp_of(simulation: Simulation) -> QueuePair:
    """Return the queue pair that sends."""
    qp = sender(simulation).qp
    assert qp is not None
    return qp


def broken_rule(simulation: Simulation) -> str:
    """Return the rule that is found broken after the next wake-ups of the sender."""
    try:
        for _ in range(THOROUGH_EVERY):
            simulation.checks.after_wake(simulation.hosts[0])
    except CheckFailed as failed:
        return failed.rule
    return ""


@pytest.mark.parametrize("name", [name for name, _ in QP_LIMITS] + list(WINDOW_LIMITS))
def test_containers_of_queue_pairs_exist(simulation: Simulation, name: str) -> None:
    """Every container with a limit is one: a new name for it would leave it without."""
    assert len(attrgetter(name)(qp_of(simulation))) >= 0


@pytest.mark.parametrize("name", [name for name, _ in ENDPOINT_LIMITS])
def test_containers_of_endpoints_exist(simulation: Simulation, name: str) -> None:
    """The same for what an endpoint holds."""
    assert len(attrgetter(name)(simulation.hosts[0].endpoint)) >= 0


def test_container_beyond_its_limit_is_found(simulation: Simulation) -> None:
    """Memory that grows is a broken rule."""
    requestor = qp_of(simulation).requestor
    assert requestor is not None
    attrgetter("loss._probes")(requestor).update(dict.fromkeys(range(65), (0, 0, 0)))
    assert broken_rule(simulation) == "memory"


def test_window_that_lost_count_is_found(simulation: Simulation) -> None:
    """One packet more outstanding than there is."""
    requestor = qp_of(simulation).requestor
    assert requestor is not None
    requestor.window.outstanding += 1
    assert broken_rule(simulation) == "window"


def test_credit_that_was_never_given_is_found(simulation: Simulation) -> None:
    """Fewer bytes in flight than there are."""
    requestor = qp_of(simulation).requestor
    assert requestor is not None
    requestor.nscc.inflight_bytes -= 2000
    assert broken_rule(simulation) == "in flight"


def test_timer_that_nobody_set_is_found(simulation: Simulation) -> None:
    """Work waits, and nothing will wake the queue pair."""
    qp_of(simulation).armed_ns = 1 << 62
    assert broken_rule(simulation) == "timer"


def failing(simulation: Simulation, failure: QpFailure, silent_ns: int) -> None:
    """Let the sending queue pair say that it failed."""
    event = QpFailed(qp_of(simulation).qpn, failure, 0, 1, silent_ns, "")
    simulation.checks.on_failure(simulation.connections[0], sender(simulation), event)


def with_budget(timeout: int, exponential: int) -> Simulation:
    """Return a connected simulation whose queue pairs have that budget."""
    config = Config(mtu=1024, timeout=timeout, retry_linear=0, retry_exponential=exponential)
    simulation = Simulation(options(host=HostOptions(config=config)))
    simulation.connections[0].connect()
    simulation.timeline.run_until(20 * MS)
    return simulation


def test_failure_after_the_whole_budget_is_right() -> None:
    """T = 1 ms and two doublings: 7 ms of silence are enough, 5 are not."""
    simulation = with_budget(10, 2)
    failing(simulation, QpFailure.RETRY_EXCEEDED, 8 * MS)
    with pytest.raises(CheckFailed, match="gave up after"):
        failing(simulation, QpFailure.RETRY_EXCEEDED, 5 * MS)


def test_failure_of_silence_that_began_after_healing_is_wrong() -> None:
    """When nothing fails any more, nobody may give up."""
    simulation = with_budget(10, 2)
    simulation.checks.healed_ns = 10 * MS
    with pytest.raises(CheckFailed, match="nothing fails"):
        failing(simulation, QpFailure.RETRY_EXCEEDED, 8 * MS)


def test_who_may_never_give_up_must_not() -> None:
    """25 doublings mean for ever."""
    with pytest.raises(CheckFailed, match="told never to"):
        failing(with_budget(10, 25), QpFailure.RETRY_EXCEEDED, 1_000_000 * MS)


@pytest.mark.parametrize("failure", [QpFailure.REMOTE_ACCESS, QpFailure.REMOTE_OPERATION])
def test_refusal_without_a_reason_is_wrong(failure: QpFailure) -> None:
    """The region is open, and the peer works."""
    with pytest.raises(CheckFailed, match="failure"):
        failing(with_budget(10, 2), failure, 0)


def test_whatever_the_protocol_raises_is_a_failure() -> None:
    """An exception ends the simulation, and its outcome says where it came from."""
    simulation = Simulation(options())

    def raises(*_: object) -> None:
        raise ZeroDivisionError("in the middle")

    simulation.hosts[1].endpoint.receive = raises  # type: ignore[assignment, method-assign]
    outcome = simulation.run()
    assert outcome.rule == "exception"
    assert "in the middle" in outcome.message


def test_no_progress_is_a_failure() -> None:
    """What never completes ends with the time that went by without progress."""
    simulation = Simulation(options(faulty_ns=MS))
    simulation.network.receivers[1] = lambda _: "deaf"
    outcome = simulation.run()
    assert outcome.rule == "liveness"


def test_storm_is_a_failure() -> None:
    """Events without end end the simulation."""
    simulation = Simulation(options(faulty_ns=MS))

    def again(_: object) -> None:
        simulation.timeline.at(simulation.timeline.now_ns + 20, again)

    simulation.timeline.at(0, again)
    simulation.network.receivers[1] = lambda _: "deaf"
    assert simulation.options.stall_ns / 20 > EVENTS_MAX
    assert simulation.run().rule == "storm"


def test_datagrams_that_nobody_counts_are_found(simulation: Simulation) -> None:
    """The account of the network must balance."""
    simulation.network.sent += 1
    with pytest.raises(CheckFailed, match="account"):
        simulation.checks.at_the_end()
