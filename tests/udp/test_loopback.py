"""Runs go out and trains come in, through the real kernel, over both address families."""

import errno
import socket
from collections.abc import Callable

import pytest

from mrc.errors import ConfigError, LocalError
from mrc.udp import Caps, ReceiveSocket, SendOutcome, SendSocket, peer_address
from tests.udp.pair import Pair, eventually, numbered, readable, without


def test_a_run_arrives_as_one_train(pair: Pair, caps: Caps) -> None:
    """With GSO and GRO, fifteen datagrams cost one call on either side, the last one shorter."""
    if not (caps.gso and caps.gro):
        pytest.skip("this kernel lacks UDP_SEGMENT or UDP_GRO")
    run = numbered(15, 4136, last_bytes=100)
    assert pair.send(run, 4136) is SendOutcome.SENT
    train = pair.train()
    assert bytes(pair.buffer[: train.byte_count]) == run
    assert train.segment_bytes == 4136
    sent, received = pair.sender.statistics(), pair.receiver.statistics()
    assert (sent.calls, sent.datagrams, sent.sent_bytes) == (1, 15, len(run))
    assert (received.calls, received.datagrams, received.received_bytes) == (1, 15, len(run))


@pytest.mark.parametrize("missing", [["gso"], ["gro"], ["gso", "gro"]], ids="-".join)
def test_a_run_arrives_whole_without_kernel_help(
    pair_of: Callable[..., Pair], caps: Caps, missing: list[str]
) -> None:
    """Without GSO, GRO or both the same datagrams arrive in the same order."""
    pair = pair_of(caps=without(caps, *missing))
    run = numbered(15, 500, last_bytes=7)
    assert pair.send(run, 500) is SendOutcome.SENT
    assert b"".join(pair.datagrams(15)) == run
    assert pair.sender.statistics().calls == (1 if caps.gso and "gso" not in missing else 15)


def test_a_single_datagram_has_its_own_size(pair: Pair) -> None:
    """The segment size of a single datagram is its length."""
    assert pair.send(b"hello", 4136) is SendOutcome.SENT
    train = pair.train()
    assert (train.byte_count, train.segment_bytes) == (5, 5)


def test_a_run_longer_than_a_call_takes_goes_out_in_several(pair: Pair) -> None:
    """More than 64 datagrams, or more than 65,507 bytes, are sent in order all the same."""
    assert pair.send(numbered(150, 10), 10) is SendOutcome.SENT
    assert pair.numbers(150) == list(range(150))
    assert pair.send(numbered(20, 4136), 4136) is SendOutcome.SENT
    assert pair.numbers(20) == list(range(20))


def test_the_source_is_the_address_and_port_of_the_ev(pair: Pair) -> None:
    """The receiver sees the port that makes the EV."""
    pair.send(b"x", 1)
    assert pair.train().source[:2] == (pair.sender.address, pair.sender.port)


@pytest.mark.parametrize("tos", [0, 1, 2, 3, 0x2A << 2, 0x2A << 2 | 1, 0xFF])
def test_dscp_and_ecn_arrive_with_each_run(pair: Pair, caps: Caps, tos: int) -> None:
    """DSCP and ECN are set a run, and read a train."""
    if not caps.ecn:
        pytest.skip("this kernel does not carry ECN")
    pair.send(numbered(3, 100), 100, tos)
    assert {train.tos for _, train in pair.described(3)} == {tos}


def test_runs_of_different_tos_are_not_merged(pair: Pair, caps: Caps) -> None:
    """A train has one TOS: a trimmed packet is never hidden among others."""
    if not caps.ecn:
        pytest.skip("this kernel does not carry ECN")
    for tos in (2, 3, 2):
        pair.send(numbered(2, 100), 100, tos)
    assert [train.tos for _, train in pair.described(6)] == [2, 2, 3, 3, 2, 2]


def test_without_ecn_only_dscp_is_carried(pair_of: Callable[..., Pair], caps: Caps) -> None:
    """Where ECN is off the two bits are neither sent nor reported."""
    pair = pair_of(caps=without(caps, "ecn"))
    pair.send(b"x", 1, 0x2A << 2 | 3)
    assert pair.train().tos == 0x2A << 2


@pytest.mark.parametrize("address", ["::1"], indirect=True)
def test_flow_label_arrives_with_each_run(pair: Pair, caps: Caps) -> None:
    """Over IPv6 a flow label is chosen a run, without asking the kernel for a lease."""
    if not caps.flow_label:
        pytest.skip("no choice of flow label here")
    for label in (0xABCDE, 1, 0xFFFFF):
        pair.send(numbered(3, 100), 100, flow_label=label)
        assert {train.flow_label for _, train in pair.described(3)} == {label}


def test_a_flow_label_is_ignored_where_it_cannot_be_chosen(
    pair_of: Callable[..., Pair], caps: Caps
) -> None:
    """Over IPv4, or without the capability, a run goes out all the same."""
    pair = pair_of(caps=without(caps, "flow_label"))
    assert pair.send(b"hello", 5, flow_label=0xABCDE) is SendOutcome.SENT
    assert pair.train().byte_count == 5


def test_nothing_waiting_is_none(pair: Pair) -> None:
    """Receiving never waits."""
    assert pair.receiver.receive_into(pair.buffer) is None


def test_an_empty_datagram_is_dropped_and_counted(pair: Pair, caps: Caps) -> None:
    """What has no payload is not handed on, and what follows it is."""
    family = socket.AF_INET6 if ":" in pair.sender.address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(b"", pair.destination)
    pair.send(b"x", 1)
    assert pair.datagrams(1) == [b"x"]
    assert pair.receiver.statistics().empty == 1


def test_a_train_that_does_not_fit_is_dropped_and_counted(pair: Pair, caps: Caps) -> None:
    """A train cut short by a small buffer is never handed on; the next one is."""
    pair.send(numbered(5, 500), 500)
    pair.send(b"x", 1)
    pair.buffer = memoryview(bytearray(100))
    assert pair.datagrams(1) == [b"x"]
    assert pair.receiver.statistics().truncated == (1 if caps.gso and caps.gro else 5)


def test_dropping_ends(pair_of: Callable[..., Pair], caps: Caps) -> None:
    """A flood of datagrams to be dropped gives the caller its turn back, still readable."""
    pair = pair_of(caps=without(caps, "gso", "gro"))
    pair.buffer = memoryview(bytearray(1))
    pair.send(numbered(20, 2), 2)
    assert readable(pair.receiver)
    assert pair.receiver.receive_into(pair.buffer) is None
    assert readable(pair.receiver)
    assert 0 < pair.receiver.statistics().truncated < 20


def test_what_overflows_the_receive_buffer_is_counted(address: str, caps: Caps) -> None:
    """Datagrams the kernel had no room for show in the statistics."""
    receiver = ReceiveSocket(address, 0, caps=caps, receive_buffer_bytes=4096)
    sender = SendSocket(address, 0, caps=caps)
    with_room = Pair(sender, receiver)
    try:
        for _ in range(50):
            with_room.send(numbered(10, 1000), 1000)
        assert eventually(lambda: receiver.statistics().kernel_drops > 0)
    finally:
        with_room.close()


def test_stray_datagrams_at_an_ev_wake_nobody(pair: Pair) -> None:
    """What arrives at a sending socket is thrown away by the kernel, and counted."""
    family = socket.AF_INET6 if ":" in pair.sender.address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as stranger:
        for _ in range(3):
            stranger.sendto(b"stray", (pair.sender.address, pair.sender.port))
    assert eventually(lambda: pair.sender.statistics().stray_datagrams == 3)
    assert not readable(pair.sender, timeout_ms=0)
    assert pair.sender.drain_errors() == []


def test_strays_are_thrown_away_where_the_kernel_does_not(
    pair_of: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the filter, draining the errors empties the socket as well, and counts."""
    monkeypatch.setattr("mrc.udp.send_socket.drop_all_input", lambda sock: False)
    pair = pair_of()
    other = pair_of()
    other.sender.send(
        memoryview(b"stray"), 1, peer_address(pair.sender.address, pair.sender.port), 0
    )
    assert readable(pair.sender)
    while pair.sender.statistics().stray_datagrams < 5:
        assert pair.sender.drain_errors() == []
    assert not readable(pair.sender, timeout_ms=0)


def test_a_port_in_use_is_a_local_error(pair: Pair, caps: Caps) -> None:
    """Binding a taken port names the address and the port, and keeps errno."""
    for kind, port in ((SendSocket, pair.sender.port), (ReceiveSocket, pair.receiver.port)):
        with pytest.raises(LocalError, match=str(port)) as caught:
            kind(pair.sender.address, port, caps=caps)
        assert caught.value.errno == errno.EADDRINUSE


def test_an_address_of_another_machine_is_a_local_error(caps: Caps) -> None:
    """Binding an address that is not here keeps errno."""
    with pytest.raises(LocalError, match=r"192\.0\.2\.1") as caught:
        SendSocket("192.0.2.1", 0, caps=caps)
    assert caught.value.errno == errno.EADDRNOTAVAIL


@pytest.mark.parametrize(("segment_bytes", "tos"), [(0, 2), (-1, 2), (65508, 2), (10, 256)])
def test_sizes_and_tos_out_of_range_are_the_callers_mistake(
    pair: Pair, segment_bytes: int, tos: int
) -> None:
    """A value no datagram can have is refused by name before any is sent."""
    run = bytes(70_000)
    with pytest.raises(ConfigError):
        pair.send(run, segment_bytes, tos)
    assert pair.sender.statistics().calls == 0


def test_closing_twice_is_fine_and_sending_after_it_fails(pair: Pair) -> None:
    """A closed socket has no descriptor, sends nothing, receives nothing, and keeps its counts."""
    pair.send(b"x", 1)
    destination = pair.destination
    pair.close()
    pair.close()
    assert (pair.sender.fileno(), pair.receiver.fileno()) == (-1, -1)
    outcome = pair.sender.send(memoryview(b"x"), 1, destination, 2)
    assert (outcome, pair.sender.last_errno) == (SendOutcome.FAILED, errno.EBADF)
    assert pair.receiver.receive_into(pair.buffer) is None
    assert pair.sender.drain_errors() == []
    assert pair.sender.statistics().calls == 1
    assert pair.receiver.statistics().kernel_drops == 0
