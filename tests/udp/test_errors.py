"""What the kernel says about a send becomes an outcome: never an exception, never a stall."""

import errno
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from mrc.udp import Caps, SendOutcome, SendSocket, family_of, peer_address, probe_caps
from mrc.udp.errqueue import parse_error
from mrc.udp.linux import SOL_UDP
from tests.udp.isolation import in_new_network, ip
from tests.udp.pair import ECT0, Pair, numbered, open_pair, readable
from tests.udp.scripted import ScriptedSocket

DEVICE_MTU_BYTES = 1500
SO_NO_CHECK = 11
UDP_NO_CHECK6_TX = 101
UDP_NO_CHECK6_RX = 102


@pytest.fixture
def dead_port(address: str) -> int:
    """A port that nobody listens at."""
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as sock:
        sock.bind((address, 0))
        return int(sock.getsockname()[1])


@pytest.fixture
def sender(address: str, caps: Caps) -> Iterator[SendSocket]:
    """A sending socket alone."""
    sender = SendSocket(address, 0, caps=caps)
    yield sender
    sender.close()


def test_a_datagram_larger_than_udp_takes_is_too_big(pair: Pair) -> None:
    """EMSGSIZE is an outcome, and what is sent next goes out."""
    assert pair.send(bytes(65_530), 65_530) is SendOutcome.TOO_BIG
    assert pair.sender.last_errno == errno.EMSGSIZE
    assert pair.send(b"x", 1) is SendOutcome.SENT
    assert pair.datagrams(1) == [b"x"]


@pytest.mark.root
def test_larger_than_the_device_takes_is_too_big(address: str) -> None:
    """What exceeds the device's MTU is refused, never fragmented; the error names the MTU."""

    def run() -> None:
        ip(f"link set lo mtu {DEVICE_MTU_BYTES}")
        pair = open_pair(address)
        headers = 48 if ":" in address else 28
        most = DEVICE_MTU_BYTES - headers
        try:
            for size in (most, most + 1):
                expected = SendOutcome.SENT if size == most else SendOutcome.TOO_BIG
                assert pair.send(bytes(size), size) is expected
                assert pair.send(bytes(3 * size), size) is expected
            assert readable(pair.sender)
            assert {error.mtu_bytes for error in pair.sender.drain_errors()} == {DEVICE_MTU_BYTES}
        finally:
            pair.close()

    in_new_network(run)


@pytest.mark.root
def test_datagrams_carry_dont_fragment_and_no_identification() -> None:
    """Over IPv4 DF is set, and the identification is 0, for nothing will be put together."""

    def run() -> bytes:
        with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800)) as tap:
            tap.settimeout(5)
            pair = open_pair("127.0.0.1")
            pair.send(b"hello", 5)
            pair.close()
            return tap.recv(100)

    header = in_new_network(run)
    assert header[4:8] == bytes.fromhex("00004000")


def test_nobody_listening_is_reported_once_and_stops_nothing(
    sender: SendSocket, address: str, dead_port: int
) -> None:
    """ECONNREFUSED is told of an earlier datagram: it is cleared, and the send repeated at once."""
    destination = peer_address(address, dead_port)
    for _ in range(2):
        assert sender.send(memoryview(b"hello"), 5, destination, ECT0) is SendOutcome.SENT
        assert readable(sender)
    assert sender.statistics().pending_errors == 1
    errors = sender.drain_errors()
    assert {error.errno for error in errors} == {errno.ECONNREFUSED}
    assert {error.destination for error in errors} == {destination}
    assert {error.reporter for error in errors} == {address}
    assert "refused" in str(errors[0])
    assert not readable(sender, timeout_ms=0)


def test_one_peers_refusal_does_not_cost_anothers_run(
    pair: Pair, address: str, dead_port: int
) -> None:
    """The error one destination caused surfaces at the next send to any: that run still arrives."""
    pair.sender.send(memoryview(b"hello"), 5, peer_address(address, dead_port), ECT0)
    assert readable(pair.sender)
    run = numbered(5, 100)
    assert pair.send(run, 100) is SendOutcome.SENT
    assert b"".join(pair.datagrams(5)) == run
    assert pair.receiver.receive_into(pair.buffer) is None


def test_draining_the_error_queue_is_bounded(
    sender: SendSocket, address: str, dead_port: int
) -> None:
    """However many errors wait, a call takes 64, and the socket stays readable for the rest."""
    for _ in range(80):
        sender.send(memoryview(b"x"), 1, peer_address(address, dead_port), ECT0)
    assert readable(sender)
    first = sender.drain_errors()
    assert len(first) <= 64
    total = len(first)
    while readable(sender, timeout_ms=0):
        total += len(sender.drain_errors())
    assert sender.statistics().errors == total


def turn_checksums_off(pair: Pair) -> None:
    """Send without UDP checksums, for which the kernel never segments, and take such datagrams."""
    options = [(pair.sender.fileno(), socket.SOL_SOCKET, SO_NO_CHECK)]
    if ":" in pair.sender.address:
        options = [
            (pair.sender.fileno(), SOL_UDP, UDP_NO_CHECK6_TX),
            (pair.receiver.fileno(), SOL_UDP, UDP_NO_CHECK6_RX),
        ]
    for descriptor, level, option in options:
        with socket.socket(fileno=socket.dup(descriptor)) as same:
            same.setsockopt(level, option, 1)


@pytest.mark.parametrize("count", [2, 15])
def test_real_einval_on_a_segmented_run_falls_back(pair: Pair, caps: Caps, count: int) -> None:
    """A socket without checksums cannot segment: the run goes out singly, once, whole, in order."""
    if not caps.gso:
        pytest.skip("this kernel lacks UDP_SEGMENT")
    turn_checksums_off(pair)
    assert pair.send(numbered(count, 100, last_bytes=9), 100) is SendOutcome.SENT
    assert pair.numbers(count) == list(range(count))
    assert pair.receiver.receive_into(pair.buffer) is None
    statistics = pair.sender.statistics()
    assert statistics.gso_off == (pair.destination,)
    assert (statistics.calls, statistics.datagrams) == (count, count)


@pytest.mark.parametrize("code", [errno.EIO, errno.EINVAL])
def test_gso_stays_off_for_that_destination_only(
    scripted: tuple[Pair, ScriptedSocket], pair_of: Callable[..., Pair], caps: Caps, code: int
) -> None:
    """Once refused, segmenting is not tried there again; elsewhere it is."""
    if not caps.gso:
        pytest.skip("this kernel lacks UDP_SEGMENT")
    pair, sock = scripted
    sock.segmenting_fails_with = code
    assert pair.send(numbered(4, 100), 100) is SendOutcome.SENT
    sock.segmenting_fails_with = 0
    assert pair.send(numbered(4, 100), 100) is SendOutcome.SENT
    assert pair.numbers(8) == [0, 1, 2, 3] * 2
    assert pair.sender.statistics().calls == 8
    elsewhere = Pair(pair.sender, pair_of().receiver)
    assert elsewhere.send(numbered(4, 100), 100) is SendOutcome.SENT
    assert elsewhere.numbers(4) == [0, 1, 2, 3]
    assert pair.sender.statistics().calls == 9


def test_einval_that_singles_get_too_does_not_turn_gso_off(
    scripted: tuple[Pair, ScriptedSocket],
) -> None:
    """A blackhole route says EINVAL to everything: the destination is unreachable, GSO is fine."""
    pair, sock = scripted
    sock.script += [errno.EINVAL] * 2
    assert pair.send(numbered(4, 100), 100) is SendOutcome.UNREACHABLE
    assert pair.sender.statistics().gso_off == ()
    assert pair.sender.statistics().datagrams == 0


def test_an_earlier_error_and_a_refusal_to_segment_cost_nothing_together(
    scripted: tuple[Pair, ScriptedSocket], caps: Caps
) -> None:
    """A pending error met on the very run that cannot be segmented loses no datagram of it."""
    if not caps.gso:
        pytest.skip("this kernel lacks UDP_SEGMENT")
    pair, sock = scripted
    sock.segmenting_fails_with = errno.EIO
    sock.script += [errno.ECONNREFUSED]
    assert pair.send(numbered(4, 100), 100) is SendOutcome.SENT
    assert pair.numbers(4) == [0, 1, 2, 3]
    assert pair.sender.statistics().pending_errors == 1


def test_a_full_send_buffer_in_the_middle_resumes_there(
    scripted: tuple[Pair, ScriptedSocket],
) -> None:
    """After WOULD_BLOCK the same call sends the rest of the run: nothing twice, nothing lost."""
    pair, sock = scripted
    run = numbered(150, 10)
    sock.segmenting_fails_with = errno.EIO
    sock.script += [0, 0, 0, errno.EAGAIN, errno.EAGAIN]
    assert pair.send(run, 10) is SendOutcome.WOULD_BLOCK
    assert pair.send(run, 10) is SendOutcome.WOULD_BLOCK
    assert pair.send(run, 10) is SendOutcome.SENT
    assert pair.numbers(150) == list(range(150))
    assert pair.sender.statistics().datagrams == 150
    assert pair.sender.statistics().outcomes[SendOutcome.WOULD_BLOCK] == 2


def test_another_run_after_would_block_starts_at_its_beginning(
    scripted: tuple[Pair, ScriptedSocket],
) -> None:
    """Where a run was cut short is forgotten as soon as another is sent."""
    pair, sock = scripted
    cut, other = numbered(100, 10), numbered(100, 10)[::-1]
    sock.script += [0, errno.EAGAIN]
    assert pair.send(cut, 10) is SendOutcome.WOULD_BLOCK
    assert pair.send(other, 10) is SendOutcome.SENT
    assert pair.send(cut, 10) is SendOutcome.SENT
    first = list(range(64)) if pair.sender.statistics().calls == 5 else [0]
    rest = [*range(99, -1, -1), *range(100)]
    assert pair.numbers(len(first) + 200) == [*first, *rest]


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (errno.EAGAIN, SendOutcome.WOULD_BLOCK),
        (errno.ENOBUFS, SendOutcome.NO_BUFFERS),
        (errno.EMSGSIZE, SendOutcome.TOO_BIG),
        (errno.ENETUNREACH, SendOutcome.UNREACHABLE),
        (errno.EHOSTUNREACH, SendOutcome.UNREACHABLE),
        (errno.ENETDOWN, SendOutcome.UNREACHABLE),
        (errno.ENODEV, SendOutcome.UNREACHABLE),
        (errno.EADDRNOTAVAIL, SendOutcome.UNREACHABLE),
        (errno.ECONNREFUSED, SendOutcome.REFUSED),
        (errno.EPERM, SendOutcome.BLOCKED),
        (errno.EACCES, SendOutcome.BLOCKED),
        (errno.EPROTO, SendOutcome.FAILED),
    ],
)
def test_each_errno_has_its_outcome(
    scripted: tuple[Pair, ScriptedSocket], code: int, outcome: SendOutcome
) -> None:
    """Whatever the kernel says twice becomes an outcome, is counted, and keeps its number."""
    pair, sock = scripted
    sock.script += [code, code]
    assert pair.send(b"x", 1) is outcome
    statistics = pair.sender.statistics()
    assert (statistics.last_errno, statistics.datagrams) == (code, 0)
    assert statistics.outcomes[outcome] == sum(statistics.outcomes) == 1


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.ENOBUFS, errno.EPERM])
def test_errors_of_this_very_send_are_not_repeated(
    scripted: tuple[Pair, ScriptedSocket], code: int
) -> None:
    """A full queue or a firewall is never an earlier datagram's error: one call is enough."""
    pair, sock = scripted
    sock.script += [code, 0]
    assert pair.send(b"x", 1) is not SendOutcome.SENT
    assert len(sock.script) == 1


@pytest.mark.root
def test_a_device_that_holds_datagrams_back_makes_the_sender_wait() -> None:
    """A send buffer full of datagrams that wait for a neighbour's answer is WOULD_BLOCK."""

    def run() -> set[SendOutcome]:
        ip("link add left type veth peer name right")
        ip("link set right up")
        ip("link set left up")
        ip("address add 10.7.0.1/24 dev left")
        caps = probe_caps(socket.AF_INET)
        with closing(SendSocket("10.7.0.1", 0, caps=caps, send_buffer_bytes=8192)) as sender:
            datagram = memoryview(bytes(1000))
            return {sender.send(datagram, 1000, ("10.7.0.2", 5000), ECT0) for _ in range(50)}

    assert in_new_network(run) == {SendOutcome.SENT, SendOutcome.WOULD_BLOCK}


@pytest.mark.root
def test_routes_and_interfaces_that_go_away_are_outcomes() -> None:
    """Each way of this machine to refuse a packet is told apart; when it ends, sending goes on."""

    def run() -> dict[str, SendOutcome]:
        ip("link add left type veth peer name right")
        ip("link set left up")
        ip("link set right up")
        ip("address add 10.7.0.1/24 dev left")
        ip("neighbour add 10.7.0.2 lladdr 02:00:00:00:00:02 dev left")
        for kind, network in (("unreachable", 1), ("prohibit", 2), ("blackhole", 3)):
            ip(f"route add {kind} 10.8.{network}.0/24")
        sender = SendSocket("10.7.0.1", 0, caps=probe_caps(socket.AF_INET))
        outcomes = {}

        def note(name: str, destination: str) -> None:
            run = memoryview(numbered(3, 100))
            outcomes[name] = sender.send(run, 100, (destination, 5000), ECT0)

        note("good", "10.7.0.2")
        note("unreachable", "10.8.1.1")
        note("prohibit", "10.8.2.1")
        note("blackhole", "10.8.3.1")
        ip("link set left down")
        note("down", "10.7.0.2")
        ip("link set left up")
        ip("neighbour replace 10.7.0.2 lladdr 02:00:00:00:00:02 dev left")
        note("up", "10.7.0.2")
        assert sender.statistics().gso_off == ()
        sender.close()
        return outcomes

    assert in_new_network(run) == {
        "good": SendOutcome.SENT,
        "unreachable": SendOutcome.UNREACHABLE,
        "prohibit": SendOutcome.BLOCKED,
        "blackhole": SendOutcome.UNREACHABLE,
        "down": SendOutcome.UNREACHABLE,
        "up": SendOutcome.SENT,
    }


def test_errors_while_receiving_are_passed_over(address: str, caps: Caps) -> None:
    """What the kernel reports on a receiving socket is counted, and the next datagram is had."""
    pair = open_pair(address)
    try:
        pair.receiver.close()
        assert pair.receiver.receive_into(pair.buffer) is None
        assert pair.receiver.statistics().errors > 0
    finally:
        pair.close()


def test_entries_that_tell_of_no_error_are_skipped() -> None:
    """An error queue also carries other things, and a report may lack an address."""
    refused = struct.pack("=IBBBxII", errno.ECONNREFUSED, 2, 3, 3, 0, 0)
    assert parse_error([(0, 1, b"\0")], ("10.0.0.1", 5)) is None
    error = parse_error([(0, 11, refused + bytes(16))], ("10.0.0.1", 5))
    assert error is not None
    assert (error.errno, error.icmp_type, error.icmp_code) == (errno.ECONNREFUSED, 3, 3)
    assert (error.reporter, error.mtu_bytes) == ("", 0)
