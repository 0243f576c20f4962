"""Sealed queue pairs: the same protocol, and nobody without the key takes part in it."""

from __future__ import annotations

from typing import Any

import pytest

from mrc.proto.config import Config
from mrc.proto.events import EvState, PortStatusChanged, QpFailure, WriteDone
from mrc.proto.qp import QueuePair
from mrc.proto.statistics import DropReason
from mrc.wire import seal as seal_module
from mrc.wire.control import (
    EndpointOp,
    EndpointRequest,
    EndpointResponse,
    NackReason,
    Syndrome,
)
from mrc.wire.fields import Opcode
from mrc.wire.runs import SEAL_BYTES
from mrc.wire.seal import SECRET_BYTES, Cipher, make_seal
from mrc.wire.writes import HEADER_BYTES, Write
from tests.support.filters import DSCP, Tap, cut, jitter, lose, nth, trim
from tests.support.packets import Forger
from tests.support.pair import MS, RECEIVE_BUFFER_BYTES, UDP_PORT, Datagram, Pair, S


def sealed_pair(**settings: Any) -> Pair:
    """Return a sealed pair with packets of 1 KiB."""
    filters = settings.pop("filters", [])
    planes = settings.pop("planes", 1)
    return Pair(Config(mtu=1024, **settings), sealed=True, filters=filters, planes=planes)


# What it carries.


@pytest.mark.parametrize("icrc", [True, False])
@pytest.mark.parametrize("size", [1, 2, 1023, 1024, 1025, 5000, 200_000])
def test_any_message_arrives(size: int, *, icrc: bool) -> None:
    """Whole packets, short last ones, one byte; with immediate data and without."""
    pair = sealed_pair(icrc=icrc)
    data = pair.rng.randbytes(size)
    assert pair.transfer(data) == data
    assert pair.transfer(data, imm=7) == data
    assert pair.immediates() == [7]
    assert not pair.a.dropped()
    assert not pair.b.dropped()


@pytest.mark.parametrize("faults", ["loss", "trims", "reordering"])
def test_it_recovers_as_without(faults: str) -> None:
    """Loss, trims and reordering are made good as ever; a retransmission opens like any packet."""
    filters = {"loss": lose(0.05), "trims": trim(0.1), "reordering": jitter(300)}
    pair = sealed_pair(filters=[filters[faults]])
    data = pair.rng.randbytes(300_000)
    assert pair.transfer(data) == data
    assert not pair.b.dropped()


def test_nothing_is_readable_but_headers() -> None:
    """No packet holds eight bytes of the payload; headers say what they always say."""
    pair = sealed_pair()
    pair.keep_wire = True
    tap = Tap()
    pair.filters.append(tap)
    data = pair.rng.randbytes(20_000)
    pair.transfer(data)
    wire = b"".join(pair.wire)
    assert not any(data[i : i + 8] in wire for i in range(0, len(data), 64))
    assert {write.dqp for write in tap.writes()} == {pair.b.qp.qpn}


def test_every_packet_is_sealed() -> None:
    """Data, SACKs, ACKs and the probes of paths: each has its own counter, in its direction."""
    pair = sealed_pair(filters=[lose(0.05), trim(0.02)], planes=2)
    counters: dict[int, list[int]] = {0: [], 1: []}
    opcodes = set()

    def note(datagram: Datagram) -> None:
        if datagram.copies and datagram.tos >> 2 != DSCP.trimmed:
            counters[datagram.sender].append(int.from_bytes(datagram.data[-12:-4], "big"))
            opcodes.add(datagram.opcode)

    pair.filters.append(note)
    pair.transfer(bytes(500_000))
    pair.a.endpoint.port_status(1, up=False, now_ns=pair.now_ns)
    pair.run_for(500 * MS)
    assert opcodes >= {
        Opcode.SACK,
        Opcode.NACK,
        Opcode.ACKNOWLEDGE,
        Opcode.ENDPOINT_REQUEST,
        Opcode.ENDPOINT_RESPONSE,
    }
    for used in counters.values():
        assert len(used) == len(set(used))
        assert max(used) < 2 * len(used)


def test_keys_are_renewed_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transfer over several epochs, with loss and reordering, notices nothing."""
    monkeypatch.setattr(seal_module, "EPOCH_BITS", 7)
    monkeypatch.setattr(seal_module, "EPOCH_PACKETS", 128)
    pair = sealed_pair(filters=[lose(0.02), jitter(200)])
    data = pair.rng.randbytes(1_000_000)
    assert pair.transfer(data) == data
    assert not pair.b.dropped()


# Who has no key.


def unsealed(pair: Pair) -> bytes:
    """Return a write that B would place if it were not sealed, and its whole region's key."""
    region = pair.b.endpoint.register(bytearray(4096))
    write = Write(
        Opcode.WRITE_ONLY, pair.b.qp.qpn, pair.a.qp.first_psn, region.va, region.r_key, 64
    )
    return write.encode() + b"\xee" * 64


@pytest.mark.parametrize("behind", [0, SEAL_BYTES, 100])
def test_a_packet_without_the_key_is_dropped(behind: int) -> None:
    """Number, PSN, key and bounds are right, but no seal: nothing placed, nothing answered."""
    pair = sealed_pair()
    heard_ns = list(pair.b.paths.heard_ns)
    Forger(pair, 1).deliver(unsealed(pair) + bytes(behind))
    assert pair.b.dropped() == {DropReason.UNAUTHENTIC: 1}
    assert not pair.b.responder.owes_reply
    assert pair.b.responder.statistics().packets_received == 0
    assert list(pair.b.paths.heard_ns) == heard_ns


def test_an_altered_packet_is_lost_and_sent_again() -> None:
    """Who changes a packet on its way only loses it."""

    def alter(datagram: Datagram) -> None:
        if datagram.is_data and not datagram.rtx and datagram.psn % 7 == 0:
            datagram.data[HEADER_BYTES + 5] ^= 1

    pair = sealed_pair(filters=[alter], icrc=False)
    data = pair.rng.randbytes(100_000)
    assert pair.transfer(data) == data
    assert pair.b.dropped()[DropReason.UNAUTHENTIC] > 10


def test_redirected_packet_is_not_placed() -> None:
    """The address in the header is authenticated: a payload cannot be moved elsewhere."""
    moved: list[int] = []

    def redirect(datagram: Datagram) -> None:
        if datagram.is_data and not moved:
            moved.append(datagram.psn)
            datagram.data[HEADER_BYTES - 16 + 7] ^= 0x40

    pair = sealed_pair(filters=[redirect], icrc=False)
    data = pair.rng.randbytes(900)
    assert pair.transfer(data) == data
    assert pair.b.dropped() == {DropReason.UNAUTHENTIC: 1}


def test_replayed_packets_change_nothing() -> None:
    """Everything that crossed the wire, sent once more: no effect, no answer."""
    pair = sealed_pair()
    tap = Tap(lambda datagram: True)
    pair.filters.append(tap)
    target = pair.transfer(pair.rng.randbytes(50_000), imm=3)
    before = bytes(target)
    pair.run_for(2 * S)
    pair.filters.clear()
    sent = [side.endpoint.datagrams_sent for side in pair.sides]
    for datagram in tap.datagrams:
        pair.send_later(datagram, 0)
    pair.run_for(10 * MS)
    assert bytes(target) == before
    assert pair.immediates() == [3]
    assert [side.endpoint.datagrams_sent for side in pair.sides] == sent
    drops = pair.a.endpoint.drops + pair.b.endpoint.drops
    answers = sum(datagram.opcode == Opcode.ENDPOINT_RESPONSE for datagram in tap.datagrams)
    assert drops[DropReason.UNKNOWN_REQUEST] == answers
    assert drops[DropReason.REPLAYED] == len(tap.datagrams) - answers


def test_write_from_before_the_wrap_is_refused_after_it() -> None:
    """The PSN comes round again, the counter never: an old write cannot pass for a new one."""
    pair = sealed_pair()
    tap = Tap()
    pair.filters.append(tap)
    region = pair.b.endpoint.register(bytearray(1024))
    pair.a.endpoint.post_write(pair.a.qp, b"old" * 300, region.va, region.r_key)
    pair.run(lambda: pair.done(1))
    old = tap.datagrams[0]
    # As after 2^24 packets: what B expects next is the number of the old packet again.
    window = pair.b.responder.window
    window.cack = window.max_psn = window.cack - 1 + (1 << 24)
    pair.send_later(old, 0)
    pair.run_for(1 * MS)
    assert pair.b.dropped() == {DropReason.REPLAYED: 1}


@pytest.mark.parametrize("kind", ["sack", "nack", "nak", "port status"])
def test_forged_control_packets_change_nothing(kind: str) -> None:
    """An acknowledgement, a refusal, a fatal NAK, a port status: without the key all are noise."""
    pair = sealed_pair(planes=2)
    pair.filters.append(lose(1.0, nth(range(100))))
    pair.post(bytes(20_000))
    pair.flush()
    outstanding = pair.a.requestor.window.outstanding
    forger = Forger(pair, 0)
    if kind == "sack":
        forger.sack(5)
    elif kind == "nack":
        forger.nack(2, NackReason.TRIMMED)
    elif kind == "nak":
        forger.ack(0, Syndrome.NAK_REMOTE_ACCESS)
    else:
        down = EndpointRequest(pair.a.qp.tag << 8, EndpointOp.PORT_STATUS_UPDATE, 0)
        forger.deliver(down.encode())
    assert pair.a.requestor.window.outstanding == outstanding > 0
    assert not pair.failed()
    assert not pair.a.paths.planes_down
    assert pair.a.dropped() == {DropReason.UNAUTHENTIC: 1}


def test_endpoint_request_that_names_no_queue_pair() -> None:
    """Where queue pairs are sealed, a request must name one: a lone peer is no excuse."""
    pair = sealed_pair()
    stray = EndpointRequest(0x7700, EndpointOp.PORT_STATUS_UPDATE, 0)
    Forger(pair, 0).deliver(stray.encode())
    assert pair.a.dropped() == {DropReason.UNKNOWN_ENDPOINT: 1}


def test_a_wrong_answer_to_a_probe_is_the_only_one() -> None:
    """Who guesses what a probe asked, to prove another address, has one guess a probe."""
    pair = sealed_pair(planes=2)
    path = pair.a.paths.paths[0]
    pair.filters.append(lose(1.0, lambda datagram: datagram.sender == 0))
    pair.a.paths.withdraw(path, pair.now_ns, "test")
    pair.a.endpoint.after_feedback(pair.a.qp, pair.now_ns)
    tap = Tap(lambda datagram: datagram.opcode == Opcode.ENDPOINT_REQUEST)
    pair.filters.insert(0, tap)
    pair.run(lambda: bool(tap.datagrams))
    asked = EndpointRequest.decode_untrusted(tap.datagrams[0].data)
    for at in (asked.tx_timestamp ^ 1, asked.tx_timestamp):
        answer = EndpointResponse(asked.request_id, EndpointOp.EV_PROBE, at).encode()
        assert pair.b.qp.seal is not None
        Forger(pair, 0).deliver(answer + pair.b.qp.seal.sealer.seal(answer))
    assert path.state is EvState.ASSUMED_BAD
    assert pair.a.dropped() == {DropReason.UNKNOWN_REQUEST: 2}


# Trimmed packets.


def test_a_trimmed_header_is_a_hint_and_nothing_else() -> None:
    """Forged, it makes B ask for the packet again; window, memory and paths stay as they are."""
    pair = sealed_pair()
    pair.transfer(bytes(10_000))
    pair.run_for(10 * MS)
    before = (pair.b.responder.window.cack, list(pair.b.paths.heard_ns))
    psn = (pair.a.qp.first_psn + 10) & 0xFFFFFF
    header = Write(Opcode.WRITE_MIDDLE, pair.b.qp.qpn, psn, 0, 1, 64, rqmsn=9).encode()
    Forger(pair, 1).deliver(header, icrc=False, dscp=DSCP.trimmed)
    assert (pair.b.responder.window.cack, list(pair.b.paths.heard_ns)) == before
    assert pair.b.responder.owes_reply
    data = pair.rng.randbytes(50_000)
    assert pair.transfer(data) == data
    assert not pair.failed()
    assert {path.state for path in pair.a.paths.paths} == {EvState.GOOD}


@pytest.mark.parametrize("at_ns", [0, 1 * MS])
def test_who_did_not_see_a_packet_cannot_have_it_sent_again(at_ns: int) -> None:
    """A forged trimmed header must name the time the packet was sent: 16 bits to guess."""
    pair = sealed_pair(filters=[lose(1.0, nth(range(4)))])
    pair.post(bytes(4096))
    pair.flush()
    header = Write(
        Opcode.WRITE_MIDDLE, pair.b.qp.qpn, pair.a.qp.first_psn, 0, 1, 64, tx_timestamp=at_ns // 128
    ).encode()
    Forger(pair, 1).deliver(header, icrc=False, dscp=DSCP.trimmed)
    pair.run(lambda: pair.a.dropped() != {})
    assert pair.a.dropped() == {DropReason.STALE_ACK: 1}
    assert pair.a.requestor.statistics().trims == 0


def test_a_whole_packet_marked_as_trimmed_is_not_believed() -> None:
    """The code point is not authenticated: with it even a whole packet is only a hint."""
    marked: list[int] = []

    def mark_trimmed(datagram: Datagram) -> None:
        if datagram.is_data and not datagram.rtx:
            marked.append(datagram.psn)
            datagram.tos = DSCP.trimmed << 2

    pair = sealed_pair(filters=[mark_trimmed])
    data = pair.rng.randbytes(3000)
    assert pair.transfer(data) == data
    assert pair.b.responder.statistics().packets_trimmed == len(marked) == 3


# Several queue pairs, sealed and not, share nothing but paths.


def another(pair: Pair, *, sealed: bool) -> tuple[QueuePair, QueuePair]:
    """Connect one more queue pair between the endpoints of a pair; return its two ends."""
    ends, attributes = [], []
    for side in pair.sides:
        ends.append(side.endpoint.create_qp())
        planes = tuple((host, UDP_PORT) for host in side.hosts)
        attributes.append(
            side.endpoint.attributes(ends[-1], planes, receive_buffer_bytes=RECEIVE_BUFFER_BYTES)
        )
    for index, side in enumerate(pair.sides):
        local, remote = attributes[index], attributes[1 - index]
        seal = None
        if sealed:
            secrets = (bytes([ends[0].tag] * SECRET_BYTES), bytes([7] * SECRET_BYTES))
            seal = make_seal(Cipher.AES_256_GCM, secrets, connecting=index == 0)
        side.endpoint.connect_qp(ends[index], side.peer, local, remote, pair.now_ns, seal)
        ends[index].activate()
    return ends[0], ends[1]


def write_on(pair: Pair, ends: tuple[QueuePair, QueuePair], data: bytes) -> bytes:
    """Write over a queue pair of a pair's endpoints; return what arrived."""
    memory = bytearray(len(data))
    region = pair.b.endpoint.register(memory, ends[1])
    work = pair.a.endpoint.post_write(ends[0], data, region.va, region.r_key)
    done = WriteDone(ends[0].qpn, work)
    pair.run(lambda: done in pair.a.events)
    return bytes(memory)


def test_a_plain_queue_pair_beside_a_sealed_one() -> None:
    """The seal belongs to the queue pair: one without it at the same endpoints goes on as ever."""
    pair = sealed_pair()
    plain = another(pair, sealed=False)
    for ends in (plain, (pair.a.qp, pair.b.qp), plain):
        data = pair.rng.randbytes(50_000)
        assert write_on(pair, ends, data) == data
    assert not pair.b.dropped()


def test_packets_of_several_sealed_queue_pairs_come_as_one_run() -> None:
    """What GRO joins may belong to several: each packet is opened with the keys of its own."""
    pair = sealed_pair(paths=1, backup_paths=0)
    others = [another(pair, sealed=True) for _ in range(3)]
    all_ends = [(pair.a.qp, pair.b.qp), *others]
    memories = []
    for a, b in all_ends:
        data, memory = pair.rng.randbytes(30_000), bytearray(30_000)
        region = pair.b.endpoint.register(memory, b)
        pair.a.endpoint.post_write(a, data, region.va, region.r_key)
        memories.append((data, memory))
    pair.run(lambda: sum(isinstance(event, WriteDone) for event in pair.a.events) == 4)
    assert all(data == memory for data, memory in memories)
    assert not pair.b.dropped()


def status_told(pair: Pair) -> bool:
    """Let plane 1 of A go down; tell whether B heard of it and A knows that."""
    pair.a.endpoint.port_status(1, up=False, now_ns=pair.now_ns)
    pair.run_for(1 * S)
    told = any(isinstance(event, PortStatusChanged) for event in pair.b.events)
    return told and pair.a.peer.status_mask is None


def test_requests_name_a_queue_pair_that_both_sides_still_have() -> None:
    """When the first of two has ended at the peer, requests go on under the second one's keys."""
    pair = sealed_pair(planes=2)
    another(pair, sealed=True)
    pair.b.endpoint.destroy_qp(pair.b.qp)
    pair.a.endpoint.fail_qp(pair.a.qp, QpFailure.LOCAL_CLOSE, pair.now_ns)
    assert status_told(pair)


def test_two_queue_pairs_with_one_tag() -> None:
    """Tags are a byte: a request is tried with the keys of each that has it."""
    pair = sealed_pair(planes=2)
    pair.transfer(bytes(1_000_000))
    first_a, first_b = pair.a.qp, pair.b.qp
    second_a, second_b = another(pair, sealed=True)
    second_a.tag, second_b.tag = first_a.tag, first_b.tag
    second_a.remote_tag, second_b.remote_tag = first_b.tag, first_a.tag
    pair.a.peer.qps = dict(reversed(pair.a.peer.qps.items()))
    assert status_told(pair)


def test_dead_path_is_found_and_comes_back() -> None:
    """Probes of a withdrawn EV are sealed, and are answered so."""
    pair = sealed_pair(planes=2, paths=4)
    dead = [True]

    def black_hole(datagram: Datagram) -> None:
        if dead[0] and datagram.plane == 1:
            datagram.copies = 0

    pair.filters.append(black_hole)
    pair.transfer(bytes(300_000))
    states = {path.state for path in pair.a.paths.paths if path.plane == 1}
    assert EvState.ASSUMED_BAD in states
    dead[0] = False
    pair.run_for(2 * S)
    assert {path.state for path in pair.a.paths.paths} == {EvState.GOOD}


def test_trim_in_flight_of_a_sealed_packet() -> None:
    """A switch that cuts a sealed packet to its header: NACK, and the packet again."""
    match = nth({3})

    def act(datagram: Datagram) -> None:
        if match(datagram):
            cut(datagram)

    pair = sealed_pair(filters=[act])
    data = pair.rng.randbytes(20_000)
    assert pair.transfer(data) == data
    assert pair.a.requestor.statistics().trims == 1
