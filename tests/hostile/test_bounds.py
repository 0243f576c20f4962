"""The ends of what numbers can say: addresses up to 2^64, lengths from 0 to 2^32 - 1.

Bounds of ordinary regions are in tests/proto/test_memory, what may be posted in
tests/proto/test_segmentation, and 2^32 - 1 bytes are carried in test_volume.
"""

from __future__ import annotations

from typing import Any

import pytest

import mrc
from mrc.errors import ConfigError, PeerProtocolError
from mrc.proto.config import Config
from mrc.wire.control import Ack, Syndrome
from mrc.wire.fields import Opcode
from mrc.wire.icrc import append_icrc
from mrc.wire.psn import to_wire
from mrc.wire.writes import Write
from tests.support.packets import Forger
from tests.support.pair import FIRST_EV_PORT, UDP_PORT, Pair

TOP = 1 << 64
SIZE = 4096


class AtTheTop:
    """B with a region that ends at the last address there is, and A's name to write to it."""

    def __init__(self) -> None:
        self.pair = Pair(Config(mtu=1024))
        self.buffer = bytearray(SIZE)
        self.region = self.pair.b.endpoint.register(self.buffer)
        self.region.va = TOP - SIZE
        self.forger = Forger(self.pair, 1)

    def refused(self) -> bool:
        """Whether no byte was placed and one access NAK is owed."""
        (reply,) = self.pair.b.responder.replies()
        denied = Ack.decode_untrusted(reply).syndrome == Syndrome.NAK_REMOTE_ACCESS
        return denied and self.buffer == bytes(SIZE)


# Addresses.


@pytest.mark.parametrize(
    "form",
    [{}, {"opcode": Opcode.WRITE_ONLY_IMMEDIATE, "imm": 1}, {"opcode": Opcode.WRITE_FIRST}],
    ids=["plain", "immediate", "first of many"],
)
@pytest.mark.parametrize("before_the_top", [1, 4, 63])
def test_packet_past_the_last_address_is_refused(before_the_top: int, form: dict[str, Any]) -> None:
    """Address + length beyond 2^64 never comes out at 0, nor at the end of the region."""
    victim = AtTheTop()
    victim.forger.write(0, b"\xff" * 64, TOP - before_the_top, victim.region.r_key, **form)
    assert victim.refused()


@pytest.mark.parametrize("length", [SIZE + 1, (1 << 32) - 1])
def test_immediate_of_a_message_that_began_before_the_region_is_refused(length: int) -> None:
    """The last packet lies inside, the message it says to end does not, or not even at 0."""
    for va in (TOP - 64, 0):
        victim = AtTheTop()
        victim.region.va = va if va == 0 else TOP - SIZE
        fields = {"opcode": Opcode.WRITE_LAST_IMMEDIATE, "imm": 1, "dma_length": length}
        victim.forger.write(0, b"\xff" * 64, va, victim.region.r_key, **fields)
        assert victim.refused()
        assert victim.pair.immediates() == []


def test_run_past_the_last_address_ends_there() -> None:
    """Of two packets in a row the second is at address 0: the first is placed, it is refused."""
    victim = AtTheTop()
    source = (victim.pair.a.hosts[0], FIRST_EV_PORT)
    packets = b""
    for place, va in enumerate((TOP - 1024, 0)):
        header = Write(
            opcode=Opcode.WRITE_FIRST if place == 0 else Opcode.WRITE_MIDDLE,
            dqp=victim.pair.b.qp.qpn,
            psn=to_wire(victim.pair.a.qp.first_psn + place),
            va=va,
            r_key=victim.region.r_key,
            dma_length=4096,
            tx_timestamp=1,
        )
        packet = header.encode() + b"\xff" * 1024
        packets += append_icrc(packet, source, (victim.pair.b.hosts[0], UDP_PORT))
    victim.pair.inject(1, packets, source=source, segment_bytes=len(packets) // 2, tos=4 << 2)
    assert victim.buffer == bytes(SIZE - 1024) + b"\xff" * 1024
    (reply,) = victim.pair.b.responder.replies()
    assert Ack.decode_untrusted(reply).syndrome == Syndrome.NAK_REMOTE_ACCESS


def test_last_address_may_be_written() -> None:
    """A write that ends exactly at 2^64 is inside."""
    victim = AtTheTop()
    sent = victim.pair.rng.randbytes(SIZE)
    work = victim.pair.a.endpoint.post_write(
        victim.pair.a.qp, sent, victim.region.va, victim.region.r_key, 7
    )
    victim.pair.run(lambda: victim.pair.done(work))
    assert victim.buffer == sent
    assert victim.pair.immediates() == [7]


@pytest.mark.parametrize("size", [1, 2, SIZE + 1])
def test_write_that_would_end_past_the_last_address_is_not_posted(size: int) -> None:
    """The error names the address and the highest that would do."""
    victim = AtTheTop()
    va = TOP - size + 1
    with pytest.raises(ConfigError, match=f"va = {va}; .* from 0 to {TOP - size:#x}"):
        victim.pair.a.endpoint.post_write(victim.pair.a.qp, bytes(size), va, 1)


@pytest.mark.parametrize(("va", "length"), [(TOP - 1, 2), (1, TOP), (TOP, 1), (0, 0), (-1, 4)])
def test_region_past_the_last_address_is_no_region(va: int, length: int) -> None:
    """What a peer offers as its memory must lie below 2^64 to its last byte."""
    with pytest.raises(PeerProtocolError, match="not a memory region"):
        mrc.RemoteRegion.from_json_untrusted({"va": va, "r_key": 1, "length": length})


def test_region_up_to_the_last_address_is_one() -> None:
    """The last byte may have the last address."""
    region = mrc.RemoteRegion.from_json_untrusted({"va": TOP - 5, "r_key": 1, "length": 5})
    assert region.va + region.length == TOP


# Lengths.


def test_packet_without_a_byte_is_dropped_and_not_answered() -> None:
    """MRC has no write of 0 bytes: a peer that sends one gets neither SACK nor completion."""
    victim = AtTheTop()
    victim.forger.write(0, b"", victim.region.va, victim.region.r_key, ack_request=True)
    assert victim.pair.b.responder.replies() == []
    assert [reason.name for reason in victim.pair.b.dropped()] == ["MALFORMED"]
    assert victim.pair.b.responder.window.cack == victim.pair.a.qp.first_psn - 1
