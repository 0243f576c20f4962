"""The requestor: an endpoint that has sent data, and a peer that answers what it likes.

In between a network that loses what it likes carries data to a real responder and back its answers,
so that there are losses to be forged about. Whatever is acknowledged, refused or kept silent, the
window makes sense, nothing is reported done that the peer did not say it has, and as soon as the
peer behaves everything comes to an end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from fuzzing.feed import Feed
from mrc.proto.config import RETRY_FOREVER, Config, DscpMap
from mrc.proto.events import QpFailed, WriteDone
from mrc.proto.nscc import RCVD_UNIT_BYTES
from mrc.proto.qp import QpState
from mrc.proto.runs import PathFault, RunToSend
from mrc.wire.control import (
    Ack,
    EndpointOp,
    EndpointRequest,
    EndpointResponse,
    Nack,
    NackReason,
    Probe,
    Sack,
    Syndrome,
    timestamp,
)
from mrc.wire.fields import Opcode
from mrc.wire.icrc import append_icrc
from mrc.wire.psn import from_wire, to_wire
from mrc.wire.seal import Seal
from tests.support.pair import FIRST_EV_PORT, MS, UDP_PORT, US, Pair

_CONFIGS = {
    (icrc, control, forged): Config(
        mtu=256,
        paths=4,
        mpr_psns=1024,
        icrc=icrc,
        congestion_control=control,
        timeout=8,
        # Where nothing is forged all comes to its end, however long the network was dead.
        retry_exponential=6 if forged else RETRY_FOREVER,
    )
    for icrc, control, forged in product((False, True), repeat=3)
}
_DSCP = DscpMap()
_SIZES = (1, 256, 257, 2000, 12_000)
_WORKS_MAX = 8
_REASONS = (*NackReason, 0, 255)
_SYNDROMES = (*Syndrome, 0, 0x20, 0xFF)
_RUNS_MAX = 4 * 1024
"""More runs in one go than the tracking window has PSNs, even if all of them were lost at once."""
_STEPS_MAX = 40
_WIRE_RUNS_MAX = 64
_STILL_ROUNDS_MAX = 30
_PACKET_BYTES_MAX = 400
"""Nominal bytes of a whole packet, its seal included, and a few more."""
_ALL_ONES = (1 << 64) - 1


class _Heard:
    """What the peer has said so far, read by these rules: an upper bound of what may be done."""

    def __init__(self, first_psn: int) -> None:
        self.through = first_psn - 1
        self.psns: set[int] = set()
        self.transport_psn = first_psn - 1

    def sack(self, sack: Sack, cack: int, end: int) -> None:
        """Note a SACK; nothing from `end` on was sent."""
        base = cack + sack.sack_offset
        named = [base + bit for bit in range(64) if sack.sack_bitmap >> bit & 1]
        if not sack.pr:
            named.append(cack + sack.ack_psn_offset)
        if max([cack, *named]) < end:
            self.through = max(self.through, cack)
            self.psns.update(named)

    def ack(self, ack: Ack, psn: int, end: int) -> None:
        """Note a Transport ACK; nothing from `end` on was sent."""
        if psn < end and ack.syndrome >> 5 == 0:
            self.transport_psn = max(self.transport_psn, psn)

    def has(self, psn: int) -> bool:
        """Tell whether the peer has said that a packet arrived."""
        return psn <= self.through or psn in self.psns


class _Attack:
    """A sending endpoint, and its hostile peer."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        forging = feed.below(4) != 0
        self._config = _CONFIGS[feed.flag(), feed.flag(), forging]
        sealed, planes = feed.flag(), feed.pick((1, 2))
        self._pair = Pair(self._config, sealed=sealed, planes=planes)
        side = self._pair.a
        self._endpoint, self._qp = side.endpoint, side.qp
        self._requestor, self._window = side.requestor, side.requestor.window
        self._heard = _Heard(self._qp.first_psn)
        self._works: dict[int, tuple[int, int]] = {}
        """First and last PSN of what was posted and is not done."""
        self._end_psn = self._qp.first_psn
        self._runs: list[RunToSend] = []
        self._wire: list[tuple[RunToSend, bytes]] = []
        """What was sent and has neither arrived nor been lost."""
        self._ids = [0]
        self._probes = [0]
        self._rcvd_units = 0
        self._failures = 0
        self._forged = False
        self._refused_packets = 0
        self._target = self._pair.b.endpoint.register(bytearray(max(_SIZES)))
        self._steps: tuple[Callable[[], None], ...] = (
            self._flush, self._wait, self._network, self._network, self._post, self._fault,
            self._port, self._deny,
        )  # fmt: skip
        if forging:
            self._steps += (
                self._sack, self._nack, self._ack, self._sack, self._nack, self._ack,
                self._honest, self._response, self._request, self._spoilt,
            )  # fmt: skip

    def run(self) -> None:
        """Do what the input says until it is used up, then behave."""
        self._post()
        self._flush()
        for _ in range(_STEPS_MAX):
            if not self._feed:
                break
            self._feed.pick(self._steps)()
            self._check()
        self._come_to_an_end()

    # What must hold.

    def _check(self) -> None:
        """Fail if window, congestion control, paths or completions make no sense."""
        window, nscc = self._window, self._requestor.nscc
        assert self._qp.first_psn <= window.una <= window.nxt <= self._end_psn
        assert window.nxt - window.una <= self._config.mpr_psns
        assert window.outstanding == np.count_nonzero(window.state), "outstanding is miscounted"
        assert window.held >= 0
        for psn in range(self._heard.through + 1, window.una):
            assert self._heard.has(psn), f"{psn} was never acknowledged"
        assert math.isfinite(nscc.cwnd)
        assert nscc.p.mtu <= nscc.cwnd, nscc.cwnd
        assert nscc.inflight_bytes >= -self._slack_bytes(), nscc.inflight_bytes
        assert self._pair.a.paths.active_count, "no path is left to send on"
        for event in self._endpoint.poll():
            if isinstance(event, WriteDone):
                self._check_done(event.work_id)
            elif isinstance(event, QpFailed):
                self._failures += 1
        assert self._failures == (self._qp.state is QpState.ERROR)

    def _slack_bytes(self) -> int:
        """What was taken off the bytes in flight twice at most: received, it says, and refused."""
        told = self._requestor.statistics()
        packets = told.packets_lost + told.nacks + told.timeouts + self._refused_packets
        return packets * _PACKET_BYTES_MAX + RCVD_UNIT_BYTES

    def _check_done(self, work_id: int) -> None:
        """Fail if a completion is out of order, or of something that was not acknowledged."""
        assert work_id == next(iter(self._works)), "done out of order, or twice"
        first, last = self._works.pop(work_id)
        assert last <= self._heard.transport_psn, "done without a Transport ACK"
        assert all(self._heard.has(psn) for psn in range(first, last + 1)), "done without SACKs"

    def _come_to_an_end(self) -> None:
        """With a peer that behaves from here on everything is done, or the queue pair has failed.

        Where nothing was forged it is the network alone that behaves from here on.

        What had to wait for a probe or a timer may take a while; that none is armed is a fault.
        """
        still = 0
        while still < _STILL_ROUNDS_MAX:
            before = self._window.una, self._window.nxt, len(self._works)
            self._flush()
            self._check()
            if not self._works or self._qp.state is not QpState.RTS:
                return
            deadline_ns = self._endpoint.next_deadline_ns()
            assert deadline_ns is not None, "work is queued, and nothing will ever happen"
            if self._forged:
                # The peer itself may lack what was acknowledged in its name.
                self._honest()
            else:
                self._carry(lost=0, lost_back=0)
            moved = before != (self._window.una, self._window.nxt, len(self._works))
            still = 0 if moved else still + 1
            self._advance(50 * US if moved else max(deadline_ns - self._pair.now_ns, US))
        raise AssertionError("everything is acknowledged, and it does not come to an end")

    # The endpoint's own doing.

    def _flush(self) -> None:
        """Let it send all it may, and note what it sends."""
        for count in range(_RUNS_MAX + 1):
            run = self._endpoint.transmit(self._pair.now_ns)
            if run is None:
                return
            assert count < _RUNS_MAX, "it sends without end"
            self._note(run)

    def _note(self, run: RunToSend) -> None:
        if run.qpn:
            assert self._qp.state is QpState.RTS, "data of a queue pair that has failed"
            assert self._qp.first_psn <= run.psn, run
            assert run.psn + run.packets <= self._window.nxt, run
            self._runs = [*self._runs[-7:], run._replace(memory=memoryview(b""))]
        self._wire = [*self._wire[-_WIRE_RUNS_MAX:], (run, bytes(run.memory))]
        packet = run.memory
        if packet[0] == Opcode.ENDPOINT_REQUEST:
            self._ids = [*self._ids[-7:], int.from_bytes(packet[10:12], "big")]
        elif packet[0] == Opcode.PROBE:
            self._probes = [*self._probes[-7:], Probe.decode_untrusted(packet).probe_id]

    def _post(self) -> None:
        """Post a write."""
        size = self._feed.pick(_SIZES)
        imm = self._feed.pick((None, 5))
        if self._qp.state is not QpState.RTS or len(self._works) >= _WORKS_MAX:
            return
        va = self._feed.pick((*(self._target.va,) * 6, (1 << 32) - 512, (1 << 64) - size))
        work_id = self._endpoint.post_write(self._qp, bytes(size), va, self._target.r_key, imm)
        first, self._end_psn = self._end_psn, self._end_psn + -(-size // self._config.mtu)
        self._works[work_id] = first, self._end_psn - 1

    def _network(self) -> None:
        """Carry what was sent to the peer, and its answers back, all but what is lost."""
        feed = self._feed
        lost, lost_back = feed.number(2), feed.number(1)
        self._pair.now_ns += feed.pick((20 * US, 20 * US, 2 * MS))
        self._carry(lost=lost, lost_back=lost_back)

    def _carry(self, *, lost: int, lost_back: int) -> None:
        """Carry packets both ways; a bit of a mask stands for every 16th, or on the way back 8th.

        Args:
            lost: which are lost on the way to the peer.
            lost_back: which are lost on the way back.
        """
        wire, self._wire = self._wire, []
        count = 0
        for run, data in wire:
            for start in range(0, len(data), run.segment_bytes):
                count += 1
                if not lost >> count % 16 & 1:
                    datagram = data[start : start + run.segment_bytes]
                    self._arrive(1, datagram, run, self._pair.a.hosts)
        count = 0
        while (answer := self._pair.b.endpoint.transmit(self._pair.now_ns)) is not None:
            count += 1
            if not lost_back >> count % 8 & 1:
                self._hear(bytes(answer.memory))
                self._arrive(0, bytes(answer.memory), answer, self._pair.b.hosts)
        self._pair.b.endpoint.poll()
        self._pair.b.endpoint.advance(self._pair.now_ns)

    def _arrive(self, receiver: int, datagram: bytes, run: RunToSend, hosts: list[str]) -> None:
        source = (hosts[run.port], run.source_port)
        self._pair.inject(receiver, datagram, source=source, plane=run.port, tos=run.tos)

    def _hear(self, packet: bytes) -> None:
        """Note what the real responder says."""
        if packet[0] == Opcode.SACK:
            sack = Sack.decode_untrusted(packet)
            cack = from_wire(sack.cack_psn, self._window.una - 1)
            self._heard.sack(sack, cack, self._window.nxt)
        elif packet[0] == Opcode.ACKNOWLEDGE:
            ack = Ack.decode_untrusted(packet)
            self._heard.ack(ack, from_wire(ack.psn, self._window.una - 1), self._window.nxt)

    def _wait(self) -> None:
        """Let time go by, and timers run."""
        self._advance(self._feed.pick((US, 50 * US, MS, 5 * MS, 100 * MS)))

    def _advance(self, after_ns: int) -> None:
        self._pair.now_ns += after_ns
        self._endpoint.advance(self._pair.now_ns)

    def _fault(self) -> None:
        """Let the kernel have refused one of the last runs, or have no room for it for a while."""
        feed = self._feed
        if not self._runs:
            return
        run = feed.pick(self._runs)
        if feed.flag():
            self._endpoint.path_busy(run, busy=True)
            self._endpoint.path_busy(run, busy=False)
        else:
            self._refused_packets += run.packets
            self._endpoint.path_fault(run, feed.pick(tuple(PathFault)), self._pair.now_ns)

    def _port(self) -> None:
        """Let a port of our own go down, or come up."""
        port = self._feed.below(len(self._endpoint.ports))
        self._endpoint.port_status(port, up=self._feed.flag(), now_ns=self._pair.now_ns)

    def _deny(self) -> None:
        """Let the application take an EV away, or give it back."""
        index = self._feed.below(len(self._pair.a.paths.paths))
        denied = self._feed.flag()
        self._endpoint.deny(self._pair.a.peer, index, denied=denied, now_ns=self._pair.now_ns)

    # What the peer says.

    def _deliver(self, packet: bytes) -> None:
        """Finish a control packet in the peer's name, and deliver it."""
        self._forged = True
        host = self._pair.b.hosts[0]
        seal: Seal | None = self._pair.b.qp.seal
        if seal is not None:
            packet += seal.sealer.seal(packet)
        source, target = (host, FIRST_EV_PORT), (self._pair.a.hosts[0], UDP_PORT)
        whole = append_icrc(packet, source, target) if self._config.icrc else packet + bytes(4)
        self._pair.inject(0, whole, source=source, tos=_DSCP.control << 2)

    def _numbers(self) -> dict[str, Any]:
        """The queue pair numbers in every SACK and NACK."""
        qpn = self._qp.qpn
        return {"dqp": qpn, "spdcid": self._pair.b.qp.qpn & 0xFFFF, "dpdcid": qpn & 0xFFFF}

    def _psn(self) -> int:
        """Choose a PSN around the window, most of the time inside."""
        feed, window = self._feed, self._window
        inside = window.una + feed.number(2) % max(1, window.nxt - window.una)
        return feed.pick((inside, inside, window.una - 1, window.nxt - 1, window.nxt,
                          window.una + feed.signed(3)))  # fmt: skip

    def _sack(self) -> None:
        """Acknowledge something, in any of its many ways."""
        feed, window = self._feed, self._window
        cack = feed.pick((window.una - 1, window.una - 1, self._psn()))
        pr = feed.below(4) == 3
        self._say_sack(
            cack,
            m=feed.below(4),
            rtx=feed.flag(),
            pr=pr,
            ack_psn_offset=feed.pick(self._probes) if pr else _clamp(self._psn() - cack),
            sack_offset=feed.pick((1, 1, _clamp(self._psn() - cack), feed.signed(2))),
            sack_bitmap=feed.pick((0, feed.number(1), feed.number(8), _ALL_ONES)),
            mpr=feed.pick((0, 8, feed.number(1))),
            tx_timestamp=feed.number(2),
            ooo_count=feed.pick((0, window.held, feed.number(2) & 0x7FFF)),
            restore_cwnd=feed.flag(),
            rcv_cwnd_pen=feed.pick((0, 0, 64, feed.number(1) & 0x7F)),
            rcvd_bytes=feed.pick(
                (self._rcvd_units, self._rcvd_units + feed.number(1), feed.number(3))
            ),
        )

    def _say_sack(self, cack: int, **fields: Any) -> None:
        fields["rcvd_bytes"] &= 0xFFFFFF
        sack = Sack(cack_psn=to_wire(cack), **self._numbers(), **fields)
        said = from_wire(sack.cack_psn, self._window.una - 1)
        self._heard.sack(sack, said, self._window.nxt)
        self._deliver(sack.encode())

    def _nack(self) -> None:
        """Refuse a packet."""
        feed, psn = self._feed, self._psn()
        sent_ns = int(self._window.sent_ns[self._window.index(psn)])
        self._deliver(
            Nack(
                nack_psn=to_wire(psn),
                reason=feed.pick(_REASONS),
                tx_timestamp=feed.pick((timestamp(sent_ns), 0, feed.number(2))),
                **self._numbers(),
            ).encode()
        )

    def _ack(self) -> None:
        """Complete messages, or end the queue pair."""
        feed = self._feed
        self._say_ack(self._psn(), feed.pick((*(Syndrome.ACK,) * 40, *_SYNDROMES)))

    def _say_ack(self, psn: int, syndrome: int = Syndrome.ACK) -> None:
        ack = Ack(self._qp.qpn, to_wire(psn), syndrome)
        self._heard.ack(ack, from_wire(ack.psn, self._window.una - 1), self._window.nxt)
        self._deliver(ack.encode())

    def _honest(self) -> None:
        """Acknowledge all that was sent."""
        last = self._window.nxt - 1
        self._rcvd_units += 8 * self._window.outstanding
        self._say_sack(last, rcvd_bytes=self._rcvd_units)
        self._say_ack(last)

    def _response(self) -> None:
        """Answer an endpoint request, or what was never asked."""
        feed = self._feed
        request_id = feed.pick((*self._ids, feed.number(2)))
        op = feed.pick((EndpointOp.EV_PROBE, EndpointOp.PORT_STATUS_UPDATE, 3))
        self._deliver(EndpointResponse(request_id, op, feed.number(2)).encode())

    def _request(self) -> None:
        """Say which ports of the peer are up."""
        feed = self._feed
        request_id = self._qp.tag << 8 | feed.number(1)
        self._deliver(EndpointRequest(request_id, feed.below(4), feed.number(1)).encode())

    def _spoilt(self) -> None:
        """Send a control packet of any kind with bytes changed, or cut."""
        feed = self._feed
        packet = bytearray(feed.take(48).ljust(48, b"\0"))
        packet[0] = feed.pick(sorted(Opcode))
        packet[1] = 0
        packet[5:8] = self._qp.qpn.to_bytes(3, "big")
        if packet[0] in (Opcode.SACK, Opcode.ACKNOWLEDGE):
            # What these say has to be noted: `_sack` and `_ack` say everything that they can.
            return
        self._deliver(bytes(packet[: feed.pick((48, feed.below(49)))]))


def _clamp(value: int) -> int:
    return max(-0x8000, min(0x7FFF, value))


def run(data: bytes) -> None:
    """Attack as these bytes say."""
    _Attack(Feed(data)).run()
