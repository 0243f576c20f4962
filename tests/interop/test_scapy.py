"""A transfer, read by a decoder that was written from the specification's tables alone."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given

from mrc.wire.fields import BTH, LAYOUTS, TSETH, Opcode
from tests.interop import scapy_mrc
from tests.interop.capture import icrc_of, ip_packet, scapy_icrc
from tests.interop.recording import TOS_TRIMMED, Sent
from tests.interop.transfer import MTU, Transfer
from tests.wire.invariant import description_icrc
from tests.wire.packets import ANY_PACKET, Packet

FIRST, MIDDLE, LAST, LAST_IMMEDIATE, ONLY, ONLY_IMMEDIATE = scapy_mrc.WRITES

HEADERS = {
    **{opcode: ["METH", "TSETH", "RETH"] for opcode in scapy_mrc.WRITES},
    **{opcode: ["METH", "TSETH", "RETH", "ImmDt"] for opcode in scapy_mrc.WITH_IMMEDIATE},
    scapy_mrc.ACKNOWLEDGE: ["AETH"],
    scapy_mrc.ENDPOINT_REQUEST: ["ERTH"],
    scapy_mrc.ENDPOINT_RESPONSE: ["EETH"],
    scapy_mrc.SACK: ["SETH", "CC_STATE"],
    scapy_mrc.NACK: ["NETH"],
    scapy_mrc.PROBE: ["PETH"],
}


def is_trimmed(sent: Sent) -> bool:
    """Whether a switch cut this datagram."""
    return sent.tos == TOS_TRIMMED


def read(sent: Sent) -> Any:
    """A datagram as scapy layers."""
    return scapy_mrc.dissect(sent.data, trimmed=is_trimmed(sent))


def writes(transfer: Transfer) -> list[Any]:
    """All data packets that arrived whole."""
    found = [read(sent) for sent in transfer.to_receiver() if not is_trimmed(sent)]
    return [packet for packet in found if packet.opcode in scapy_mrc.WRITES]


def answers(transfer: Transfer, opcode: int) -> list[Any]:
    """All packets of one opcode that went back to the sender."""
    found = [read(sent) for sent in transfer.to_sender()]
    return [packet for packet in found if packet.opcode == opcode]


def opcodes(count: int, imm: int | None) -> list[int]:
    """The opcodes of a message of so many packets."""
    if count == 1:
        return [ONLY if imm is None else ONLY_IMMEDIATE]
    return [FIRST, *[MIDDLE] * (count - 2), LAST if imm is None else LAST_IMMEDIATE]


def test_the_transfer_shows_every_kind_of_feedback(transfer: Transfer) -> None:
    """In the transfer are all kinds of writes, and SACKs, NACKs and Transport ACKs."""
    seen = {sent.data[0] for sent in transfer.sent}
    assert seen >= set(scapy_mrc.WRITES) | {
        scapy_mrc.SACK,
        scapy_mrc.NACK,
        scapy_mrc.ACKNOWLEDGE,
    }
    assert sum(is_trimmed(sent) for sent in transfer.sent) == 2
    assert transfer.memory == b"".join(data for _, data, _ in transfer.writes)


def test_every_bth_is_sound(transfer: Transfer) -> None:
    """Each datagram has an MRC opcode, version 0, the default p_key, and zero where reserved."""
    for sent in transfer.sent:
        bth = read(sent)
        assert bth.opcode in HEADERS
        assert (bth.m, bth.se, bth.tver, bth.r, bth.p_key) == (0, 0, 0, 0, 0xFFFF)
        assert scapy_mrc.reserved_values(bth) == {0}
        assert bth.ts == (bth.opcode in scapy_mrc.WRITES)
        assert len(sent.data) % 4 == 0


def test_every_header_is_there_and_sound(transfer: Transfer) -> None:
    """Each datagram has the headers of its opcode, with zero in all that is reserved."""
    for sent in transfer.sent:
        packet = read(sent)
        found = scapy_mrc.layers(packet)
        assert [layer.name for layer in found] == HEADERS[packet.opcode]
        for layer in found:
            assert scapy_mrc.reserved_values(layer) <= {0}
            assert getattr(layer, "type", 0) == getattr(layer, "nxt", 0) == 0
            assert getattr(layer, "cc_type", None) in {"SETH": (0,), "NETH": (2,)}.get(
                layer.name, (None,)
            )
            assert (getattr(layer, "tsr", 0), getattr(layer, "ftype", 1)) == (0, 1)
        if packet.opcode not in scapy_mrc.WRITES:
            assert not scapy_mrc.payload(packet)


def test_every_icrc_is_right(transfer: Transfer) -> None:
    """Scapy's RoCE layers, and the description itself, give the iCRC that each datagram has."""
    checked = 0
    for sent in transfer.sent:
        if not is_trimmed(sent):
            assert scapy_icrc(ip_packet(sent)) == icrc_of(sent.data)
            assert description_icrc(sent.data[:-4], sent.source, sent.destination) == icrc_of(
                sent.data
            )
            checked += 1
    assert checked == len(transfer.sent) - 2


def test_the_payloads_lie_where_their_headers_say(transfer: Transfer) -> None:
    """Putting each payload at the address of its own RETH gives the memory that was written."""
    memory = bytearray(len(transfer.memory))
    for packet in writes(transfer):
        data = scapy_mrc.payload(packet)
        data = data[: len(data) - packet.pad]
        reth = packet.getlayer(scapy_mrc.RETH)
        at = reth.va - transfer.va
        assert reth.r_key == transfer.r_key
        assert 0 < len(data) <= MTU
        memory[at : at + len(data)] = data
    assert memory == transfer.memory


def test_every_packet_tells_of_its_message(transfer: Transfer) -> None:
    """All packets of a message have its number, length and count of immediates, in PSN order."""
    messages: dict[int, dict[int, Any]] = defaultdict(dict)
    for packet in writes(transfer):
        messages[packet.getlayer(scapy_mrc.METH).msn][packet.psn] = packet
    rqmsn = 0
    psn = next(iter(messages[1]))
    for msn, (_, data, imm) in enumerate(transfer.writes, 1):
        rqmsn += imm is not None
        count = -(-len(data) // MTU)
        packets = [messages[msn][(psn + i) % 2**24] for i in range(count)]
        assert len(messages[msn]) == count
        psn += count
        assert [packet.opcode for packet in packets] == opcodes(count, imm)
        assert {packet.getlayer(scapy_mrc.RETH).dma_length for packet in packets} == {len(data)}
        if imm is not None:
            # The n-th WRITE with immediate data: repeated in each packet of that message.
            assert {packet.getlayer(scapy_mrc.METH).rqmsn for packet in packets} == {rqmsn}
            assert packets[-1].getlayer(scapy_mrc.ImmDt).imm == imm
        assert [packet.pad for packet in packets] == [0] * (count - 1) + [-len(data) % 4]


def test_a_retransmission_says_so(transfer: Transfer) -> None:
    """A PSN is sent once without rtx, and whenever it comes again it has rtx set."""
    seen = set()
    for sent in transfer.to_receiver():
        packet = read(sent)
        if packet.opcode in scapy_mrc.WRITES:
            lost_before = packet.opcode == LAST_IMMEDIATE and packet.psn not in seen
            assert packet.rtx == (packet.psn in seen or lost_before)
            seen.add(packet.psn)


def test_a_nack_names_the_trimmed_packet(transfer: Transfer) -> None:
    """For each trimmed packet a NACK gives its PSN, its path, its timestamp and the reason."""
    trimmed = {read(s).psn: (read(s), s) for s in transfer.to_receiver() if is_trimmed(s)}
    nacks = answers(transfer, scapy_mrc.NACK)
    assert {nack.psn for nack in nacks} == set(trimmed)
    for nack in nacks:
        packet, sent = trimmed[nack.psn]
        neth = nack.getlayer(scapy_mrc.NETH)
        assert neth.nack_reason == 1
        assert neth.nack_psn == packet.psn
        # The upper half is the flow label, which the kernel may choose: see test_real_wire.py.
        assert neth.entropy & 0xFFFF == sent.source[1]
        assert neth.tx_timestamp == packet.getlayer(scapy_mrc.TSETH).tx_timestamp
        assert (neth.spdcid, neth.dpdcid) == (packet.dqp & 0xFFFF, nack.dqp & 0xFFFF)


def test_a_sack_names_what_caused_it(transfer: Transfer) -> None:
    """A SACK repeats its cack_psn and the queue pair, and tells the path and time of its cause."""
    paths = {sent.source[1] for sent in transfer.to_receiver()}
    times = {packet.getlayer(scapy_mrc.TSETH).tx_timestamp for packet in writes(transfer)}
    psns = {packet.psn for packet in writes(transfer)}
    sender_qp, receiver_qp = answers(transfer, scapy_mrc.NACK)[0].dqp, writes(transfer)[0].dqp
    for sack in answers(transfer, scapy_mrc.SACK):
        seth, state = sack.getlayer(scapy_mrc.SETH), sack.getlayer(scapy_mrc.CcState)
        assert sack.dqp == sender_qp
        assert (seth.spdcid, seth.dpdcid) == (receiver_qp & 0xFFFF, sender_qp & 0xFFFF)
        assert seth.cack_psn == sack.psn
        assert seth.entropy & 0xFFFF in paths
        if not seth.pr:
            assert state.tx_timestamp in times
            assert (seth.cack_psn + seth.ack_psn_offset) % 2**24 in psns


def test_an_endpoint_operation_is_answered_in_kind(transfer: Transfer) -> None:
    """Endpoint requests and responses go to QP 2, and each response repeats a request."""
    requests, responses = [], []
    for sent in transfer.sent:
        packet = read(sent)
        if packet.opcode == scapy_mrc.ENDPOINT_REQUEST:
            erth = packet.getlayer(scapy_mrc.ERTH)
            requests.append((packet.psn, erth.op, erth.tx_timestamp))
        elif packet.opcode == scapy_mrc.ENDPOINT_RESPONSE:
            eeth = packet.getlayer(scapy_mrc.EETH)
            responses.append((packet.psn, eeth.op, eeth.tx_timestamp))
        else:
            continue
        assert packet.dqp == 2
        assert packet.psn < 2**16
    assert set(responses) <= set(requests)


@given(packet=ANY_PACKET)
def test_both_decoders_read_the_same(packet: Packet) -> None:
    """For any packet at all, the tables here and the tables of `mrc.wire` give equal values."""
    data = packet.encode()
    theirs = scapy_mrc.dissect(data, trimmed=True)
    bth = BTH.unpack_untrusted(data)
    offset, headers = BTH.size, [BTH]
    values = [bth]
    for header in LAYOUTS[Opcode(data[0])]:
        if header is not TSETH or bth["ts"]:
            values.append(header.unpack_untrusted(data, offset))
            headers.append(header)
            offset += header.size
    for header, ours, layer in zip(
        headers, values, [theirs, *scapy_mrc.layers(theirs)], strict=True
    ):
        assert layer.name == header.name
        fields = {field.name: layer.getfieldval(field.name) for field in layer.fields_desc}
        named = {name: fields[name] for name in fields if not name.startswith("reserved")}
        # The tables of mrc.wire call this field by a longer name.
        assert named == {name.replace("cc_tx_", "tx_"): value for name, value in ours.items()}


@pytest.mark.parametrize("bit", [0, 8 * 5, 8 * 13, 8 * 40])
def test_a_spoilt_datagram_would_be_noticed(transfer: Transfer, bit: int) -> None:
    """The check itself fails a datagram of which one bit is another."""
    sent = next(each for each in transfer.sent if not is_trimmed(each) and 8 * len(each.data) > bit)
    data = bytearray(sent.data)
    data[bit // 8] ^= 1
    assert scapy_icrc(ip_packet(sent._replace(data=bytes(data)))) != icrc_of(sent.data)
