"""Faulty sockets lose exactly what they say they lose, and leave the rest alone."""

import errno
import itertools
import time
from collections.abc import Callable

import pytest

from mrc.errors import ConfigError
from mrc.udp import Caps, FaultySockets, SendOutcome
from tests.udp.pair import Pair, numbered
from tests.udp.scripted import ScriptedSocket

RUNS = 40
PER_RUN = 15


def send_runs(pair: Pair) -> None:
    """Send forty runs of fifteen datagrams: six hundred chances."""
    for _ in range(RUNS):
        assert pair.send(numbered(PER_RUN, 100), 100) is SendOutcome.SENT


def end_marked(pair: Pair) -> list[int]:
    """The numbers of all datagrams that arrive before one that is sent last, without faults."""
    pair.send(bytes([255]) * 10, 10)
    numbers: list[int] = []
    while 255 not in numbers:
        numbers += pair.numbers(1)
    return numbers[:-1]


def test_without_faults_runs_pass_whole(pair_of: Callable[..., Pair], caps: Caps) -> None:
    """A factory told nothing works as the kernel's sockets do."""
    pair = pair_of(FaultySockets())
    run = numbered(15, 100)
    assert pair.send(run, 100) is SendOutcome.SENT
    assert b"".join(pair.datagrams(15)) == run
    assert pair.sender.statistics().calls == (1 if caps.gso else 15)


def test_loss_takes_single_datagrams_out_of_runs(pair_of: Callable[..., Pair]) -> None:
    """Each datagram is lost by itself; those that remain arrive once, in order, and add up."""
    faults = FaultySockets(seed=1, loss=0.1)
    pair = pair_of(faults)
    send_runs(pair)
    faults.loss = 0.0
    numbers = end_marked(pair)
    lost = faults.lost[pair.sender.port]
    assert len(numbers) == RUNS * PER_RUN - lost
    assert 30 <= lost <= 90
    # Within a run numbers rise; forty runs make at most forty rising stretches.
    assert sum(b <= a for a, b in itertools.pairwise(numbers)) == RUNS - 1


def test_the_same_seed_loses_the_same_datagrams(pair_of: Callable[..., Pair]) -> None:
    """A demonstration can be repeated."""
    arrived = []
    for seed in (7, 7, 8):
        faults = FaultySockets(seed=seed, loss=0.2)
        pair = pair_of(faults)
        send_runs(pair)
        faults.loss = 0.0
        arrived.append(end_marked(pair))
    assert arrived[0] == arrived[1] != arrived[2]


def test_losing_everything_still_counts_as_sent(pair_of: Callable[..., Pair]) -> None:
    """Nobody tells a sender of a loss."""
    faults = FaultySockets(loss=1.0)
    pair = pair_of(faults)
    send_runs(pair)
    assert faults.lost[pair.sender.port] == RUNS * PER_RUN
    assert pair.receiver.receive_into(pair.buffer) is None


def test_corruption_flips_one_bit_of_what_arrives(pair_of: Callable[..., Pair]) -> None:
    """A corrupted datagram arrives in its place, with one bit wrong; the sender's copy stays."""
    faults = FaultySockets(seed=1, corruption=0.2)
    pair = pair_of(faults)
    run = bytearray(100 * PER_RUN)
    pair.sender.send(memoryview(run), 100, pair.destination, 2)
    arrived = b"".join(pair.datagrams(PER_RUN))
    flipped = int.from_bytes(arrived, "big").bit_count()
    assert len(arrived) == len(run)
    assert flipped == faults.corrupted[pair.sender.port] > 0
    assert not any(run)


def test_duplication_repeats_a_datagram_at_once(pair_of: Callable[..., Pair]) -> None:
    """A duplicated datagram comes twice in a row, and the order is kept."""
    faults = FaultySockets(seed=1, duplication=0.3)
    pair = pair_of(faults)
    pair.send(numbered(PER_RUN, 100), 100)
    faults.duplication = 0.0
    numbers = end_marked(pair)
    assert sorted(set(numbers)) == list(range(PER_RUN))
    assert numbers == sorted(numbers)
    assert len(numbers) == PER_RUN + faults.duplicated[pair.sender.port] > PER_RUN


def test_a_blackholed_port_loses_all_and_no_other_any(pair_of: Callable[..., Pair]) -> None:
    """A black hole is one source port's; when it goes, the port works again."""
    faults = FaultySockets()
    dead, alive = pair_of(faults), pair_of(faults)
    before_ns = time.monotonic_ns()
    faults.blackholed_ports.add(dead.sender.port)
    for pair in (dead, alive):
        assert pair.send(numbered(5, 100), 100) is SendOutcome.SENT
    assert alive.numbers(5) == [0, 1, 2, 3, 4]
    assert dead.receiver.receive_into(dead.buffer) is None
    assert faults.lost == {dead.sender.port: 5}
    assert list(faults.first_blackholed_ns) == [dead.sender.port]
    assert before_ns <= faults.first_blackholed_ns[dead.sender.port] <= time.monotonic_ns()
    faults.blackholed_ports.clear()
    dead.send(numbered(5, 100), 100)
    assert dead.numbers(5) == [0, 1, 2, 3, 4]


def test_the_nth_socket_can_be_blackholed_and_healed(pair_of: Callable[..., Pair]) -> None:
    """A demonstration names an EV by the order of opening, not by its random port."""
    faults = FaultySockets()
    pairs = [pair_of(faults), pair_of(faults)]
    assert faults.blackhole_nth(1) == pairs[1].sender.port
    for pair in pairs:
        pair.send(b"x", 1)
    assert pairs[0].datagrams(1) == [b"x"]
    assert pairs[1].receiver.receive_into(pairs[1].buffer) is None
    assert faults.heal_nth(1) == pairs[1].sender.port
    assert pairs[1].sender.port in faults.first_blackholed_ns
    pairs[1].send(b"x", 1)
    assert pairs[1].datagrams(1) == [b"x"]
    faults.blackhole_nth(1)
    assert pairs[1].sender.port not in faults.first_blackholed_ns


def test_naming_a_socket_that_was_not_opened_is_refused() -> None:
    """The error says how many there are."""
    with pytest.raises(ConfigError, match="0 were opened"):
        FaultySockets().blackhole_nth(0)


def test_inbound_loss_takes_datagrams_out_of_trains(pair_of: Callable[..., Pair]) -> None:
    """What remains of a train is moved together, in order, its last datagram as short as it was."""
    faults = FaultySockets(seed=1, inbound_loss=0.3)
    pair = pair_of(faults)
    pair.send(numbered(PER_RUN, 100, last_bytes=7), 100)
    lost = 0
    arrived: list[bytes] = []
    while len(arrived) + lost < PER_RUN:
        arrived += pair.datagrams(1)
        lost = faults.inbound_lost[pair.sender.port]
    numbers = [datagram[0] for datagram in arrived]
    assert lost > 0
    assert numbers == sorted(set(numbers))
    assert all(set(datagram) == {datagram[0]} for datagram in arrived)
    assert [len(datagram) for datagram in arrived if datagram[0] == PER_RUN - 1] in ([], [7])


def test_an_inbound_black_hole_swallows_one_peer_port(pair_of: Callable[..., Pair]) -> None:
    """The return path dies alone: by the port the peer sends from."""
    faults = FaultySockets()
    pair = pair_of(faults)
    faults.inbound_blackholed_ports.add(pair.sender.port)
    pair.send(numbered(5, 100), 100)
    pair.send(numbered(5, 100), 100)
    while faults.inbound_lost[pair.sender.port] < 10:
        assert pair.receiver.receive_into(pair.buffer) is None
    faults.inbound_blackholed_ports.clear()
    pair.send(b"x", 1)
    assert pair.datagrams(1) == [b"x"]


def test_a_full_send_buffer_does_not_throw_the_dice_again(
    scripted_sockets: list[ScriptedSocket], pair_of: Callable[..., Pair]
) -> None:
    """After WOULD_BLOCK the rest of the run goes out with the fate it had: nothing comes twice."""
    faults = FaultySockets(seed=3, loss=0.3)
    pair = pair_of(faults)
    scripted_sockets[0].script += [0, errno.EAGAIN]
    run = numbered(PER_RUN, 100)
    assert pair.send(run, 100) is SendOutcome.WOULD_BLOCK
    assert pair.send(run, 100) is SendOutcome.SENT
    faults.loss = 0.0
    numbers = end_marked(pair)
    assert numbers == sorted(set(numbers))
    assert len(numbers) == PER_RUN - faults.lost[pair.sender.port]
