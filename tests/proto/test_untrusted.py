"""A network full of other people's packets: what is dropped, for which reason, with what effect."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mrc.proto.config import Config
from mrc.proto.events import QpFailure
from mrc.proto.runs import ReceivedRun
from mrc.proto.statistics import DropReason
from mrc.wire.control import (
    Ack,
    EndpointOp,
    EndpointRequest,
    EndpointResponse,
    Nack,
    NackReason,
    Probe,
    Sack,
)
from mrc.wire.fields import Opcode
from mrc.wire.icrc import append_icrc
from mrc.wire.runs import RunBuffer
from mrc.wire.writes import Write
from tests.support.filters import DSCP, Tap, data
from tests.support.packets import Forger
from tests.support.pair import FIRST_EV_PORT, Datagram, Pair

# Whose packets?


def dropped_by(deliver: Any) -> dict[DropReason, int]:
    """Return what B counted as dropped after a forged packet."""
    pair = Pair(Config(mtu=1024))
    deliver(pair, Forger(pair, 1))
    assert not pair.b.responder.owes_reply
    return pair.b.dropped()


def a_write(pair: Pair, **fields: Any) -> bytes:
    """Headers and payload of a write that B would take."""
    region = pair.b.endpoint.register(bytearray(4096))
    plain = {"opcode": Opcode.WRITE_ONLY, "dqp": pair.b.qp.qpn, "psn": pair.a.qp.first_psn,
             "va": region.va, "r_key": region.r_key, "dma_length": 64}  # fmt: skip
    return Write(**plain | fields).encode() + bytes(64)


def test_unknown_queue_pair() -> None:
    """A packet for a queue pair that does not exist is dropped without an answer."""
    found = dropped_by(lambda pair, forger: forger.deliver(a_write(pair, dqp=0x123456)))
    assert found == {DropReason.UNKNOWN_QP: 1}


def test_stranger() -> None:
    """A packet for a queue pair from an address that is not its peer's is dropped."""
    found = dropped_by(lambda pair, forger: forger.deliver(a_write(pair), host="10.9.9.9"))
    assert found == {DropReason.NOT_PEER: 1}


@pytest.mark.parametrize("state", ["created", "failed"])
def test_queue_pair_not_ready(state: str) -> None:
    """A packet for a queue pair that is not connected yet, or has failed, is dropped."""

    def deliver(pair: Pair, forger: Forger) -> None:
        if state == "failed":
            pair.b.endpoint.fail_qp(pair.b.qp, QpFailure.LOCAL_CLOSE, pair.now_ns)
            forger.deliver(a_write(pair))
        else:
            forger.deliver(a_write(pair, dqp=pair.b.endpoint.create_qp().qpn))

    assert dropped_by(deliver) == {DropReason.QP_STATE: 1}


def test_destroyed_queue_pair() -> None:
    """After destroying a queue pair its packets are those of an unknown one."""

    def deliver(pair: Pair, forger: Forger) -> None:
        packet = a_write(pair)
        pair.b.endpoint.destroy_qp(pair.b.qp)
        pair.b.endpoint.destroy_qp(pair.b.qp)
        forger.deliver(packet)

    assert dropped_by(deliver) == {DropReason.UNKNOWN_QP: 1}


@pytest.mark.parametrize("trimmed", [False, True])
def test_trimmed_packet_of_a_stranger(*, trimmed: bool) -> None:
    """A trimmed packet carries no iCRC, but must come from the peer and for a known queue pair."""

    def deliver(pair: Pair, forger: Forger) -> None:
        qpn = 0x123456 if trimmed else pair.b.qp.qpn
        host = None if trimmed else "10.9.9.9"
        packet = a_write(pair, dqp=qpn)[:36]
        forger.deliver(packet, host=host, icrc=False, dscp=DSCP.trimmed)

    reason = DropReason.UNKNOWN_QP if trimmed else DropReason.NOT_PEER
    assert dropped_by(deliver) == {reason: 1}


# What is wrong with them?


@pytest.mark.parametrize("size", [0, 1, 11, 12, 15])
def test_short(size: int) -> None:
    """Less than a BTH and an iCRC is dropped as short."""
    found = dropped_by(lambda pair, forger: forger.deliver(bytes(size), icrc=False))
    assert found == ({DropReason.SHORT: 1} if size else {})


def test_wrong_icrc() -> None:
    """A packet whose iCRC does not match is dropped, alone or in the middle of a run."""

    def deliver(pair: Pair, forger: Forger) -> None:
        packet = bytearray(append_icrc(a_write(pair), ("10.0.0.1", FIRST_EV_PORT), ("10.0.0.2", 1)))
        forger.deliver(bytes(packet), icrc=False)

    assert dropped_by(deliver) == {DropReason.ICRC: 1}


def test_corrupted_packet_of_a_run() -> None:
    """Of a run with one corrupted packet all others are taken, and that one is sent again."""
    pair = Pair(Config(mtu=1024, spray_run=8))
    corrupted: list[int] = []

    def corrupt(datagram: Datagram) -> None:
        if data(datagram) and datagram.psn == pair.a.qp.first_psn + 3 and not corrupted:
            datagram.data[500] ^= 1
            corrupted.append(datagram.psn)

    pair.filters.append(corrupt)
    sent = pair.rng.randbytes(1 << 16)
    assert pair.transfer(sent) == sent
    assert pair.b.dropped() == {DropReason.ICRC: 1}
    assert pair.a.requestor.statistics().packets_retransmitted == 1


def test_reserved_byte_is_not_covered() -> None:
    """BTH byte 4 may change on the way: the iCRC takes it as ones, also in a run."""
    pair = Pair(Config(mtu=1024, spray_run=8))

    def set_byte_4(datagram: Datagram) -> None:
        if data(datagram) and datagram.psn % 2:
            datagram.data[4] = 0xC0

    pair.filters.append(set_byte_4)
    sent = pair.rng.randbytes(1 << 16)
    assert pair.transfer(sent) == sent
    assert pair.b.dropped() == {}
    assert pair.a.requestor.statistics().packets_retransmitted == 0


def test_icrc_off() -> None:
    """With the iCRC off on both sides it is neither written nor looked at."""
    tap = Tap(lambda _: True)
    pair = Pair(Config(mtu=1024, icrc=False), filters=[tap])
    assert pair.transfer(bytes(3000), imm=1) == bytes(3000)
    assert {bytes(datagram.data[-4:]) for datagram in tap.datagrams} == {bytes(4)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ((0, 0xC1), DropReason.OPCODE),
        ((0, 0x0A), DropReason.OPCODE),
        ((1, 0x01), DropReason.VERSION),
    ],
)
def test_unknown_kind(change: tuple[int, int], reason: DropReason) -> None:
    """An opcode or transport version that MRC does not have is dropped."""

    def deliver(pair: Pair, forger: Forger) -> None:
        packet = bytearray(a_write(pair))
        packet[change[0]] = change[1]
        forger.deliver(bytes(packet))

    assert dropped_by(deliver) == {reason: 1}


@pytest.mark.parametrize(
    "opcode",
    [Opcode.SACK, Opcode.NACK, Opcode.ACKNOWLEDGE, Opcode.PROBE, Opcode.WRITE_ONLY],
)
def test_headers_cut_off(opcode: Opcode) -> None:
    """A packet that ends inside its headers is dropped."""

    def deliver(pair: Pair, forger: Forger) -> None:
        qpn = pair.b.qp.qpn.to_bytes(3, "big")
        forger.deliver(bytes([opcode, 0, 0xFF, 0xFF, 0, *qpn, 0, 0, 0, 0, 0, 0]))

    assert sum(dropped_by(deliver).values()) == 1


@pytest.mark.parametrize("fields", [{"pad": 3, "opcode": Opcode.WRITE_LAST_IMMEDIATE, "imm": 1}])
def test_write_without_payload(fields: dict[str, Any]) -> None:
    """A data packet that is not trimmed and has no payload is malformed."""
    found = dropped_by(lambda pair, forger: forger.deliver(a_write(pair, **fields)[:-64]))
    assert found == {DropReason.MALFORMED: 1}


def test_trimmed_write_may_be_longer_than_its_headers() -> None:
    """What a switch leaves beyond the headers does not matter; a cut inside them does."""
    pair = Pair(Config(mtu=1024))
    forger = Forger(pair, 1)
    packet = a_write(pair)
    for size, drops in ((36, 0), (64, 0), (100, 0), (35, 1)):
        forger.deliver(packet[:size], icrc=False, dscp=DSCP.trimmed)
        assert sum(pair.b.dropped().values()) == drops
    assert pair.b.responder.statistics().nacks == 3


@pytest.mark.parametrize(
    ("packet", "host", "reason"),
    [
        (EndpointRequest(1, EndpointOp.EV_PROBE), "10.9.9.9", DropReason.UNKNOWN_ENDPOINT),
        (EndpointRequest(1, 3), None, DropReason.MALFORMED),
        (EndpointResponse(1, EndpointOp.EV_PROBE), None, DropReason.UNKNOWN_REQUEST),
    ],
)
def test_endpoint_operations_of_strangers(
    packet: EndpointRequest | EndpointResponse, host: str | None, reason: DropReason
) -> None:
    """Endpoint operations from nowhere, of no kind, or as answers to nothing are dropped."""
    assert dropped_by(lambda _, forger: forger.deliver(packet.encode(), host=host)) == {reason: 1}


def test_endpoint_request_for_another_queue_pair() -> None:
    """Endpoint operations go to QP 2 and to no other."""

    def deliver(pair: Pair, forger: Forger) -> None:
        packet = bytearray(EndpointRequest(1, EndpointOp.EV_PROBE).encode())
        packet[7] = 3
        forger.deliver(bytes(packet))

    assert sum(dropped_by(deliver).values()) == 1


def test_no_answer_is_longer_than_the_question() -> None:
    """Whoever forges a question gets back little more than it cost: 52 bytes at most."""
    pair = Pair(Config(mtu=1024))
    tap = Tap(lambda d: d.sender == 1)
    pair.filters.append(tap)
    forger = Forger(pair, 1)
    forger.deliver(EndpointRequest(1, EndpointOp.EV_PROBE).encode())
    forger.probe(1)
    pair.flush()
    sizes = [len(datagram.data) for datagram in tap.datagrams]
    assert max(sizes) <= 52


# Junk.


def random_datagram(rng: random.Random, genuine: list[bytes]) -> bytes:
    """Return noise, or a datagram that was seen before with something changed or cut."""
    if not genuine or rng.random() < 0.3:
        return rng.randbytes(rng.choice((0, 1, 12, 16, 40, 52, 68, 300, 1064)))
    changed = bytearray(rng.choice(genuine))
    for _ in range(rng.randrange(1, 4)):
        changed[rng.randrange(min(60, len(changed)))] = rng.randrange(256)
    return bytes(changed[: rng.randrange(len(changed) + 1)] if rng.random() < 0.3 else changed)


HARMLESS = {
    DropReason.SHORT, DropReason.ICRC, DropReason.VERSION, DropReason.OPCODE, DropReason.STALE_ACK,
}  # fmt: skip
"""Noise is none of ours; a genuine acknowledgement that was not changed at all is only stale."""


@pytest.mark.parametrize("seed", range(4))
def test_junk_changes_nothing(seed: int) -> None:
    """Thousands of random and mutated datagrams: a transfer completes as if there were none."""
    pair = Pair(Config(mtu=1024, link_bps=10**9), planes=2, link_bps=1e9)
    pair.keep_wire = True
    rng = random.Random(seed)
    work, target = pair.post(pair.rng.randbytes(200_000))
    offered = 0
    while not pair.done(work):
        for receiver in (0, 1) * 5:
            junk = random_datagram(rng, pair.wire[-50:])
            source = (rng.choice([*pair.sides[1 - receiver].hosts, "10.9.9.9"]), FIRST_EV_PORT)
            tos = rng.choice((0, DSCP.trimmable, DSCP.control)) << 2 | rng.randrange(4)
            pair.inject(receiver, junk, source=source, plane=rng.randrange(2), tos=tos)
        offered += 10
        pair.step()
    assert target == random.Random(2).randbytes(200_000)
    assert offered > 2000
    for side in pair.sides:
        assert side.dropped().keys() <= HARMLESS
        assert side.ev_changes() == []
    assert pair.a.requestor.statistics().packets_retransmitted == 0


def test_junk_with_a_right_icrc() -> None:
    """Mutated packets with a right iCRC, as from a broken peer: nothing raises, B still works."""
    pair = Pair(Config(mtu=1024))
    pair.keep_wire = True
    pair.transfer(bytes(20_000), imm=3)
    rng = random.Random(9)
    for _ in range(3000):
        packet = random_datagram(rng, pair.wire[:60])
        if len(packet) > 16 and packet[0] != Opcode.ACKNOWLEDGE:
            for receiver in (0, 1):
                Forger(pair, receiver).deliver(packet[:-4], ecn=rng.randrange(4))
                while pair.sides[receiver].endpoint.transmit(pair.now_ns) is not None:
                    pass
    assert sum(pair.a.dropped().values()) > 100
    assert pair.b.qp.state.value in {"RTS", "ERROR"}


@pytest.mark.parametrize("segment_bytes", [1, 13, 40, 44, 100, 1064, 65536])
def test_odd_segment_sizes(segment_bytes: int) -> None:
    """However a buffer is cut into segments, nothing but counters changes."""
    pair = Pair(Config(mtu=1024))
    noise = random.Random(5).randbytes(4000)
    for first in (0x00, Opcode.WRITE_MIDDLE):
        junk = bytes([first]) + noise[1:8] + b"\x10" + noise[9:]
        pair.inject(0, junk, segment_bytes=segment_bytes, source=("10.0.0.2", 1))
    count = -(-4000 // segment_bytes)
    assert pair.a.endpoint.statistics().datagrams_received == 2 * count
    assert sum(pair.a.dropped().values()) == 2 * count


def test_empty_run() -> None:
    """A run of no bytes, or of segments of no bytes, is no datagram."""
    pair = Pair()
    for size in (0, 1064):
        run = ReceivedRun(RunBuffer(), 0, size, 0, ("10.0.0.2", 1), 0)
        pair.a.endpoint.receive(run, pair.now_ns)
    assert pair.a.dropped() == {}


# Left over from other packets.


def test_acknowledgements_before_the_peer_may_be_answered() -> None:
    """SACK, NACK and ACK for a queue pair that may receive but not send yet are ignored."""
    pair = Pair(Config(mtu=1024))
    qp = pair.a.endpoint.create_qp()
    side = pair.b
    remote = side.endpoint.attributes(side.qp, ((side.hosts[0], 1),), receive_buffer_bytes=1 << 20)
    local = pair.a.endpoint.attributes(qp, ((pair.a.hosts[0], 1),), receive_buffer_bytes=1 << 20)
    pair.a.endpoint.connect_qp(qp, pair.a.peer, local, remote, pair.now_ns)
    forger = Forger(pair, 0)
    ids: dict[str, Any] = {"dqp": qp.qpn, "dpdcid": qp.qpn & 0xFFFF}
    forger.deliver(Sack(cack_psn=qp.first_psn, **ids).encode())
    forger.deliver(Nack(nack_psn=qp.first_psn, reason=NackReason.TRIMMED, **ids).encode())
    forger.deliver(Ack(qp.qpn, qp.first_psn).encode())
    forger.deliver(Probe(qp.qpn, 5).encode())
    assert qp.requestor is not None
    assert qp.requestor.statistics().sacks == 0
    assert pair.a.dropped() == {}


def test_junk_of_many_sizes_makes_no_views() -> None:
    """Columns are laid out for the size of a queue pair's packets, and for its peer alone."""
    pair = Pair(Config(mtu=1024))
    pair.transfer(bytes(10_000))
    buffer = RunBuffer()
    for size in range(44, 2000, 4):
        for host in ("10.0.0.1", "10.9.9.9"):
            buffer.bytes[:36] = a_write(pair)[:36]
            source = (host, FIRST_EV_PORT)
            run = ReceivedRun(buffer, size, size, 0, source, DSCP.trimmable << 2)
            pair.b.endpoint.receive(run, pair.now_ns)
    assert len(buffer._views) <= 1  # noqa: SLF001 - that none are made is the point
