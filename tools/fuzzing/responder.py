"""The responder: an endpoint with a connected queue pair, and a peer that writes what it likes.

Everything arrives twice: as it comes at one endpoint, run by run, and packet by packet at its twin.
Both must end up with the same memory. Bytes are placed only inside regions that are open to this
queue pair, and only where the packet said; acknowledged is only what has arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fuzzing.feed import Feed
from mrc.proto.config import Config, DscpMap
from mrc.proto.events import ImmediateReceived
from mrc.proto.qp import QpState
from mrc.proto.runs import ECN_CE
from mrc.proto.statistics import DropReason, ResponderStatistics
from mrc.wire.control import Ack, EndpointRequest, Nack, Probe, Sack
from mrc.wire.fields import IMMEDIATE_OPCODES, WRITE_OPCODES, BadPacket, Opcode
from mrc.wire.icrc import append_icrc
from mrc.wire.psn import from_wire, to_wire
from mrc.wire.writes import Write, opcode_of
from tests.support.pair import FIRST_EV_PORT, MS, UDP_PORT, US, Pair

_MTU = 256
_IMMEDIATES_MAX = 64
_CONFIGS = {
    icrc: Config(
        mtu=_MTU,
        paths=2,
        backup_paths=0,
        mpr_psns=1024,
        immediates_held_max=_IMMEDIATES_MAX,
        icrc=icrc,
    )
    for icrc in (False, True)
}
_DSCP = DscpMap()
_REGION_BYTES = 4096
_GUARD_BYTES = 512
_PLACES = np.array([1 + i % 251 for i in range(_REGION_BYTES)], np.uint8)
"""What belongs at each place of the region. Packets that are spoilt carry zeros."""
_NOWHERE = 255
_OPCODES = tuple(sorted(WRITE_OPCODES))
_LENGTHS = (1, 4, 5, _MTU)
_RUN_PACKETS_MAX = 16
_REPLIES_MAX = 4096 + 2 * 256 + 1
"""The endpoint's control queue, and the responder's two queues of what it owes and its NAK."""
_STRANGER = "10.9.9.9"
_STEPS_MAX = 40


class _Side:
    """One endpoint that receives, and its memory."""

    def __init__(self, config: Config, *, sealed: bool) -> None:
        self.pair = Pair(config, sealed=sealed)
        endpoint = self.pair.b.endpoint
        self.memory = bytearray(_REGION_BYTES + 2 * _GUARD_BYTES)
        inside = memoryview(self.memory)[_GUARD_BYTES:-_GUARD_BYTES]
        self.region = endpoint.register(inside, self.pair.b.qp)
        self.bytes = np.frombuffer(inside, np.uint8)
        # What no packet of this queue pair may write to: another's memory, and what was closed.
        self.foreign_bytes = bytearray(_MTU)
        self.foreign = endpoint.register(self.foreign_bytes, endpoint.create_qp())
        self.closed_bytes = bytearray(_MTU)
        self.closed = endpoint.register(self.closed_bytes, self.pair.b.qp)
        endpoint.deregister(self.closed)
        self.kept = b""
        """What was in the sealed beginning of the region when it was sealed."""
        self.immediates = 0
        self.cack = self.pair.b.responder.window.cack

    def receive(self, datagrams: list[bytes], *, host: str, tos: int) -> None:
        """Take datagrams of one size as one run; the last may be shorter."""
        self.pair.inject(
            1,
            b"".join(datagrams),
            source=(host, FIRST_EV_PORT),
            segment_bytes=len(datagrams[0]),
            tos=tos,
        )

    def check(self) -> None:
        """Fail if bytes are where they do not belong, or the window makes no sense."""
        place = self.bytes
        assert ((place == 0) | (place == _PLACES)).all(), "bytes where no packet put them"
        assert self.memory[:_GUARD_BYTES] == bytes(_GUARD_BYTES), "written before the region"
        assert self.memory[-_GUARD_BYTES:] == bytes(_GUARD_BYTES), "written behind the region"
        assert self.foreign_bytes == bytes(_MTU), "written to another queue pair's region"
        assert self.closed_bytes == bytes(_MTU), "written to a closed region"
        assert place[: len(self.kept)].tobytes() == self.kept, "written to what is sealed"
        window = self.pair.b.responder.window
        assert window.cack >= self.cack, "the cumulative acknowledgement went back"
        assert window.cack <= window.max_psn <= window.cack + window.window_psns
        assert window.ooo_count == 0 or not window.has(window.cack + 1)
        self.cack = window.cack
        for event in self.pair.b.endpoint.poll():
            if isinstance(event, ImmediateReceived):
                self.immediates += 1
                offset = event.va - self.region.va
                assert event.r_key == self.region.r_key, event
                assert 0 <= offset <= offset + event.length <= _REGION_BYTES, event
        # Those that waited for a hole to be filled are all there at once when it is.
        waited = self.pair.b.responder.statistics().out_of_order_max
        assert self.immediates <= _IMMEDIATES_MAX + waited, "immediates held beyond the limit"

    def flush(self, *, icrc: bool) -> None:
        """Let it answer, and hold every answer against what it has."""
        endpoint, replies = self.pair.b.endpoint, 0
        while (run := endpoint.transmit(self.pair.now_ns)) is not None:
            replies += 1
            assert replies <= _REPLIES_MAX, "answers without end"
            assert len(run.memory) <= 76, "an answer longer than a SACK with its seal"
            source = (self.pair.b.hosts[0], run.source_port)
            packet = bytes(run.memory[:-4])
            if icrc:
                expected = append_icrc(packet, source, (run.destination[0], run.destination[1]))
                assert run.memory == expected
            self._check_answer(packet)

    def _check_answer(self, packet: bytes) -> None:
        window = self.pair.b.responder.window
        if packet[0] == Opcode.SACK:
            sack = Sack.decode_untrusted(packet)
            assert from_wire(sack.cack_psn, window.cack) == window.cack
            for bit in range(sack.sack_bitmap.bit_length()):
                if sack.sack_bitmap >> bit & 1:
                    assert window.has(window.cack + sack.sack_offset + bit), (sack, bit)
        elif packet[0] == Opcode.NACK:
            Nack.decode_untrusted(packet)
        elif packet[0] == Opcode.ACKNOWLEDGE:
            Ack.decode_untrusted(packet)

    @property
    def state(self) -> tuple[Any, ...]:
        """What must be the same however the packets were put together."""
        responder = self.pair.b.responder
        window = responder.window
        return (
            bytes(self.memory), window.cack, window.max_psn, window.ooo_count, self.immediates,
            responder.statistics().messages_done,
        )  # fmt: skip

    def told(self, tos: int) -> ResponderStatistics | None:
        """Return what it has counted, but for a trimmed packet: anybody may make that a hint."""
        trimmed = tos >> 2 in (_DSCP.trimmed, _DSCP.trimmed_lasthop)
        return None if trimmed else self.pair.b.responder.statistics()


class _Attack:
    """A hostile peer of both endpoints."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._icrc, self._sealed = feed.flag(), feed.flag()
        config = _CONFIGS[self._icrc]
        self._sides = [_Side(config, sealed=self._sealed) for _ in range(2)]
        side = self._sides[0]
        self._pair, self._region = side.pair, side.region
        self._keys = (side.region.r_key, side.foreign.r_key, side.closed.r_key, 0)
        self._same = True
        self._last: tuple[list[bytes], str, int] = [], "", 0
        self._steps: tuple[Callable[[], None], ...] = (
            self._one, self._many, self._one_spoilt, self._again, self._probe, self._request,
            self._flush, self._take, self._seal, self._wait, self._announce,
        )  # fmt: skip

    def run(self) -> None:
        """Do what the input says until it is used up."""
        for _ in range(_STEPS_MAX):
            if not self._feed:
                break
            self._feed.pick(self._steps)()
            for side in self._sides:
                side.check()
            self._compare()
        self._flush()

    def _compare(self) -> None:
        """Hold the twins against each other, until one of them has refused something.

        A run is refused as a whole, and packets one by one: after a refusal the peer's queue pair
        is at its end, and what was placed before it does not matter.
        """
        first, second = self._sides
        refused = any(side.pair.b.endpoint.drops[DropReason.MALFORMED] for side in self._sides)
        self._same = self._same and not refused
        assert not self._same or first.state == second.state

    # Packets.

    def _deliver(self, packets: list[tuple[bytes, bytes]], *, spoilt: bool = False) -> None:
        """Finish packets, given as headers and payload, and deliver them to both."""
        if spoilt and not all(_carries_zeros(header + payload) for header, payload in packets):
            return
        feed, seal = self._feed, self._pair.a.qp.seal
        host = feed.pick((*self._pair.a.hosts * 7, _STRANGER))
        codes = (_DSCP.trimmable,) * 6 + (_DSCP.trimmed, _DSCP.trimmed_lasthop)
        tos = feed.pick(codes) << 2 | feed.pick((0, 0, 0, ECN_CE))
        altered = feed.number(2) if feed.below(8) == 7 and seal is not None else 0
        target = (self._pair.b.hosts[0], UDP_PORT)
        datagrams = []
        for header, payload in packets:
            body = payload if seal is None else seal.sealer.seal(header, payload)
            packet = bytearray(header + body)
            if altered:
                packet[altered % len(packet)] ^= 1 << altered % 8
            if self._icrc:
                datagrams.append(append_icrc(bytes(packet), (host, FIRST_EV_PORT), target))
            else:
                datagrams.append(bytes(packet) + bytes(4))
        self._last = datagrams, host, tos
        self._arrive(in_vain=host == _STRANGER or altered != 0)

    def _arrive(self, *, in_vain: bool) -> None:
        """Deliver what was finished last; nothing may change when it is not to be believed."""
        datagrams, host, tos = self._last
        before = [(side.state, side.told(tos)) for side in self._sides]
        self._sides[0].receive(datagrams, host=host, tos=tos)
        for datagram in datagrams:
            self._sides[1].receive([datagram], host=host, tos=tos)
        if in_vain:
            after = [(side.state, side.told(tos)) for side in self._sides]
            assert after == before, "a forgery changed something"

    def _again(self) -> None:
        """Deliver the last packets once more; what was sealed is no news."""
        if self._last[0]:
            self._arrive(in_vain=self._sealed)

    def _psn(self) -> int:
        """Choose a PSN: the next one, near it, anywhere, or at the window's end."""
        feed, window = self._feed, self._pair.b.responder.window
        distance = feed.pick((0, 0, feed.signed(1), feed.signed(3), window.window_psns))
        return to_wire(window.cack + 1 + distance)

    def _header(self, opcode: int, offset: int, length: int) -> Write:
        """Choose the other fields of a packet that goes to this place of the region."""
        feed = self._feed
        return Write(
            opcode=opcode,
            dqp=self._pair.b.qp.qpn,
            psn=self._psn(),
            va=(self._region.va + offset) & ((1 << 64) - 1),
            r_key=feed.pick((*self._keys[:1] * 5, *self._keys[1:])),
            dma_length=feed.pick((length, length, _REGION_BYTES, 0, length + 7, (1 << 32) - 1)),
            msn=feed.number(1),
            ack_request=feed.flag(),
            rtx=feed.flag(),
            tx_timestamp=feed.pick((7, 7, None)),
            imm=feed.number(1) if opcode in IMMEDIATE_OPCODES else None,
        )

    def _offset(self) -> int:
        """Choose a place: inside, at the ends, before or far behind the region."""
        feed = self._feed
        anywhere = feed.number(2)
        return feed.pick(
            (anywhere % _REGION_BYTES, 0, _REGION_BYTES - _MTU, anywhere - 0x8000, -1, 1 << 63)
        )

    def _one(self) -> None:
        """Deliver one data packet."""
        opcode, length, offset = self._feed.pick(_OPCODES), self._feed.pick(_LENGTHS), 0
        offset = self._offset()
        write = self._header(opcode, offset, length)
        write.pad = self._feed.pick((-length & 3, -length & 3, 3))
        self._deliver([(write.encode(), _payload(offset, length) + bytes(-length & 3))])

    def _many(self) -> None:
        """Deliver packets of one message that follow each other, some of them perhaps spoilt."""
        feed = self._feed
        count, length, offset = 2 + feed.below(_RUN_PACKETS_MAX - 1), feed.pick((8, _MTU)), 0
        offset = feed.pick((0, feed.number(2) % _REGION_BYTES, -length))
        first = self._header(Opcode.WRITE_MIDDLE, offset, length * count)
        begins, ends, spoilt = feed.flag(), feed.flag(), feed.below(4) == 3
        packets = []
        for i in range(count):
            place = offset + i * length
            write = Write(
                opcode=opcode_of(
                    first=begins and i == 0, last=ends and i == count - 1, immediate=False
                ),
                dqp=first.dqp,
                psn=to_wire(first.psn + i),
                va=(first.va + i * length) & ((1 << 64) - 1),
                r_key=first.r_key,
                dma_length=first.dma_length,
                msn=first.msn,
                ack_request=first.ack_request and i % 3 == 0,
                rtx=first.rtx,
                tx_timestamp=first.tx_timestamp,
            )
            payload = bytes(length) if spoilt else _payload(place, length)
            packets.append((bytearray(write.encode()), payload))
        for _ in range(feed.below(4) if spoilt else 0):
            header = packets[feed.below(count)][0]
            header[feed.below(len(header))] ^= feed.number(1)
        self._deliver([(bytes(header), payload) for header, payload in packets], spoilt=spoilt)

    def _announce(self) -> None:
        """Deliver many small messages with immediate data, in order."""
        next_psn = self._pair.b.responder.window.cack + 1
        writes = [
            Write(
                opcode=Opcode.WRITE_ONLY_IMMEDIATE,
                dqp=self._pair.b.qp.qpn,
                psn=to_wire(next_psn + i),
                va=self._region.va + 8 * i,
                r_key=self._region.r_key,
                dma_length=8,
                imm=i,
            )
            for i in range(_RUN_PACKETS_MAX)
        ]
        self._deliver([(write.encode(), _payload(8 * i, 8)) for i, write in enumerate(writes)])

    def _one_spoilt(self) -> None:
        """Deliver a packet of any kind with bytes of its headers changed, or cut."""
        feed = self._feed
        write = self._header(feed.pick(_OPCODES), self._offset(), 8)
        header = bytearray(write.encode())
        if feed.flag():
            header[0] = feed.pick((*sorted(Opcode), 0))
        for _ in range(feed.below(4)):
            header[feed.below(len(header))] ^= feed.number(1)
        kept = feed.pick((len(header), len(header), feed.below(len(header) + 1)))
        self._deliver([(bytes(header[:kept]), bytes(feed.pick((0, 8, 12, _MTU))))], spoilt=True)

    def _probe(self) -> None:
        """Deliver a reliability probe."""
        probe = Probe(self._pair.b.qp.qpn, self._feed.number(2), tx_timestamp=9)
        self._deliver([(probe.encode(), b"")])

    def _request(self) -> None:
        """Deliver an endpoint request: an EV probe, a port status, or neither."""
        feed = self._feed
        tag = feed.pick((self._pair.b.qp.tag, 200))
        request = EndpointRequest(tag << 8 | feed.number(1), feed.below(4), feed.number(4))
        self._deliver([(request.encode(), b"")])

    # What happens at the receiver meanwhile.

    def _flush(self) -> None:
        """Let both answer."""
        for side in self._sides:
            side.flush(icrc=self._icrc)

    def _take(self) -> None:
        """Let the application take immediates."""
        count = min(1 + self._feed.number(1), *(side.immediates for side in self._sides))
        for side in self._sides:
            side.pair.b.responder.release_immediates(count)
            side.immediates -= count

    def _seal(self) -> None:
        """Seal more of the beginning of the region."""
        size = self._feed.number(2) % _REGION_BYTES
        for side in self._sides:
            if size > side.region.sealed:
                side.region.sealed = size
                side.kept = side.bytes[:size].tobytes()

    def _wait(self) -> None:
        """Let time go by, and timers run."""
        after_ns = self._feed.pick((US, 100 * US, 21 * MS, 500 * MS))
        for side in self._sides:
            side.pair.now_ns += after_ns
            side.pair.b.endpoint.advance(side.pair.now_ns)
            assert side.pair.b.qp.state in {QpState.RTS, QpState.ERROR}


def _payload(offset: int, length: int) -> bytes:
    """Return what belongs at this place of the region; outside of it what belongs nowhere."""
    places = np.arange(offset, offset + length) if abs(offset) < 1 << 62 else np.full(length, -1)
    inside = (places >= 0) & (places < _REGION_BYTES)
    content = np.where(inside, _PLACES[np.where(inside, places, 0)], _NOWHERE)
    return content.astype(np.uint8).tobytes()


def _carries_zeros(packet: bytes) -> bool:
    """Tell whether what a packet would place, if it is taken for a write, are zeros.

    A header whose length was changed ends elsewhere, and then a part of it is payload.
    """
    try:
        write = Write.decode_untrusted(packet)
    except BadPacket:
        return True
    return not any(packet[write.header_bytes :])


def run(data: bytes) -> None:
    """Attack as these bytes say."""
    _Attack(Feed(data)).run()
