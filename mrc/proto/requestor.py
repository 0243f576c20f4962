"""The sending half of a queue pair: work requests in, runs out, SACKs and NACKs back.

It decides what to send next and keeps the in-flight window; what counts as lost is in `loss`, how
much may be in flight in `nscc`, over which EV in `paths`, how bytes are laid out in `packetizer`.

Reason for the length: sending, feedback and timers turn on one window and its dozen counters, and
each of them changes what the others may do next.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from mrc.errors import ConfigError
from mrc.proto.config import MESSAGE_BYTES_MAX, PSNS_PER_MPR, Config, QpAttributes
from mrc.proto.ev import Path
from mrc.proto.events import Event, QpFailure, WriteDone
from mrc.proto.loss import LossDetector, Trigger
from mrc.proto.memory import bytes_of
from mrc.proto.nscc import NOMINAL_OVERHEAD_BYTES, RCVD_UNIT_BYTES, UDP_HEADER_BYTES, Nscc
from mrc.proto.packetizer import Packetizer
from mrc.proto.paths import NEVER_NS
from mrc.proto.peer import Peer
from mrc.proto.retry import PROBE_NS_MIN, RetryTimer
from mrc.proto.runs import DataRun, PathFault
from mrc.proto.statistics import DropReason, Drops, RequestorStatistics
from mrc.proto.window import LOST, SENT_AT_ONCE_MAX, Acked, SendWindow
from mrc.proto.work import WorkQueue, WorkRequest, checked_integer
from mrc.wire.control import Ack, Nack, NackReason, Probe, Sack, SackMark, Syndrome, timestamp
from mrc.wire.psn import from_wire, to_wire, wire_difference
from mrc.wire.runs import RunBuffer
from mrc.wire.seal import Sealer

_NOMINAL_BYTES = UDP_HEADER_BYTES + NOMINAL_OVERHEAD_BYTES
_RUNS_PER_WINDOW = 16
_RUNS_PER_WINDOW_MIN = 2
"""One on its way, one to be built."""
_RUN_NS_MAX = 400_000
"""What a run may take on the link of one plane, where its rate is known. Longer ones arrive in
bursts that fill the switches' queues: at 200 Mbit/s runs of 15 packets cost a fifth of the rate."""
_HOLD_NS = 1_000_000
"""Pause before a packet refused for want of resources is sent again (NACK_Retx_Time of UET)."""
_VA_MODULUS = 1 << 64

_NAK_FAILURES: dict[int, QpFailure] = {
    Syndrome.NAK_INVALID_REQUEST: QpFailure.REMOTE_INVALID_REQUEST,
    Syndrome.NAK_REMOTE_ACCESS: QpFailure.REMOTE_ACCESS,
    Syndrome.NAK_REMOTE_OPERATION: QpFailure.REMOTE_OPERATION,
}


class _Planned(NamedTuple):
    """A run that is noted as sent and waits to be built."""

    work: WorkRequest
    psn: int
    packets: int
    path: Path
    again: bool
    ack_request: bool
    sent_ns: int
    """What the packets say, and what is remembered of them."""


@dataclass(slots=True)
class _Counters:
    posted: int = 0
    done: int = 0
    payload_bytes: int = 0
    packets: int = 0
    retransmitted: int = 0
    nacks: int = 0
    trims: int = 0
    sacks: int = 0


class Requestor:
    """Sends the work requests of one queue pair reliably over all paths."""

    def __init__(
        self,
        *,
        config: Config,
        local: QpAttributes,
        remote: QpAttributes,
        peer: Peer,
        nscc: Nscc,
        drops: Drops,
        events: deque[Event],
        now_ns: int,
        sealer: Sealer | None = None,
    ) -> None:
        """Make a requestor that may send at once.

        Args:
            config: spray run, timeouts, whether congestion control is on.
            local: own attributes: number, first PSN, MTU.
            remote: the peer's attributes: its number, window, MTU and limits.
            peer: the paths to it.
            nscc: how much may be in flight.
            drops: where refused acknowledgements are counted.
            events: where completions go.
            now_ns: the time.
            sealer: what to seal data packets with, if they shall be.
        """
        self._config = config
        self._qpn = local.qpn
        self._remote = remote
        self._peer = peer
        self._paths = peer.paths
        self._drops = drops
        self._events = events
        self._packetizer = Packetizer(
            mtu=min(local.mtu, remote.mtu),
            remote_qpn=remote.qpn,
            icrc=config.icrc,
            sealer=sealer,
        )
        self._packet_bytes = self._packetizer.segment_bytes + _NOMINAL_BYTES
        self._run_packets_max = self._packetizer.packets_max
        if plane_bytes_per_ns := nscc.p.link_bytes_per_ns / peer.planes:
            fitting = int(plane_bytes_per_ns * _RUN_NS_MAX / self._packet_bytes)
            self._run_packets_max = max(1, min(self._run_packets_max, fitting))
        self._works = WorkQueue()
        self._posted_psn = local.first_psn
        self._rqmsn = 0
        self._rqmsn_done = 0
        self._transport_acked = local.first_psn - 1
        self._lost: list[int] = []
        self._planned: list[_Planned] = []
        self._hold_until_ns = 0
        self._forced = False
        self._mpr_psns = remote.mpr_psns
        self._rcvd_units = 0
        self._uncredited_bytes = 0
        self._counters = _Counters()
        self.window = SendWindow(local.first_psn, remote.mpr_psns)
        self.nscc = nscc
        self.loss = LossDetector(self.window, peer.paths)
        self.retry = RetryTimer(config, peer.paths, now_ns)
        self.failure: QpFailure | None = None
        self.last_fault: PathFault | None = None
        """What the local kernel refused last, and why."""

    # Work requests.

    def post(self, work_id: int, data: Any, va: int, r_key: int, imm: int | None = None) -> None:
        """Queue a WRITE, or a WRITE-with-Immediate when `imm` is given.

        The buffer is read until the work request completes; it is not copied.

        Args:
            work_id: comes back in `WriteDone`.
            data: any contiguous buffer of 1 byte to 2^32 - 1 bytes.
            va: remote address of the first byte.
            r_key: key of the peer's memory region.
            imm: 32-bit immediate data.

        Raises:
            ConfigError: data or address out of range, naming the value and the limit.
        """
        array = bytes_of(data)
        if len(array) > MESSAGE_BYTES_MAX:
            raise ConfigError(
                f"write of {len(array)} bytes; one message holds at most {MESSAGE_BYTES_MAX}"
            )
        va = checked_integer("va", va, _VA_MODULUS - len(array))
        r_key = checked_integer("r_key", r_key, 0xFFFFFFFF)
        imm = None if imm is None else checked_integer("imm", imm, 0xFFFFFFFF)
        packets = -(-len(array) // self._packetizer.mtu)
        self._counters.posted += 1
        self._rqmsn += imm is not None
        self._peer.busy_qpns.add(self._qpn)
        self._works.append(
            WorkRequest(
                work_id,
                array,
                va,
                r_key,
                imm,
                self._posted_psn,
                packets,
                self._counters.posted,
                self._rqmsn,
            )
        )
        self._posted_psn += packets

    def forget_work(self) -> None:
        """Let go of the buffers of all that was posted: the queue pair is gone."""
        self._works.clear()
        self._planned.clear()

    @property
    def idle(self) -> bool:
        """Nothing posted is waiting for anything."""
        return not self._works

    # Sending.

    def transmit(self, run: RunBuffer, now_ns: int, *, all_heard: bool) -> DataRun | None:
        """Build the next run into the buffer, or return None when nothing may be sent now."""
        if self.failure is not None:
            return None
        if not self._planned:
            self._plan(now_ns, all_heard=all_heard)
            if not self._planned:
                return None
        return self._build(run, self._planned.pop(0))

    def _plan(self, now_ns: int, *, all_heard: bool) -> None:
        """Choose what is sent next and note it as sent: one run, or several whole ones at once.

        To choose costs as much as to build, and little more for several runs than for one.
        """
        if all_heard:
            for psn in self.loss.verdicts():
                self._lose(psn, now_ns)
        lost = self._next_lost(now_ns)
        stretch = lost or self._next_new()
        if stretch is None:
            return
        work, psn, count = stretch
        again = lost is not None
        if again:
            path = self._paths.choose(int(self.window.ev[self.window.index(psn)]))
            paths = [path] if path is not None else []
        else:
            paths = self._paths_for(self._whole_runs(work, psn, count))
        if not paths:
            return
        if again:
            del self._lost[:count]
        self._enter(work, psn, count, paths, now_ns, again=again)
        # Whoever cannot go on without a SACK asks for one.
        ack_request = again or self._forced or self.nscc.wants_ack() or not self._new_packets()
        self._forced = False
        last = len(paths) - 1
        self._planned = [
            _Planned(work, psn + i * count, count, path, again, ack_request and i == last, now_ns)
            for i, path in enumerate(paths)
        ]

    def _whole_runs(self, work: WorkRequest, psn: int, count: int) -> int:
        """Return how many runs like this one may follow each other now, itself included.

        More than one only if all are of whole packets of one message, as many as a run can hold:
        on a slow link, where runs are shorter, what is chosen early is sent late.
        """
        if count < self._packetizer.packets_max:
            return 1
        packets = min(
            SENT_AT_ONCE_MAX,
            work.last_psn - psn,
            self._packetizer.packets_to_carry(work, psn),
            self.window.una + self._mpr_psns - psn,
            self.window.room_to_edge(psn),
            self._allowed_packets(),
        )
        return max(1, packets // count)

    def _paths_for(self, runs: int) -> list[Path]:
        """Return EVs for that many runs, or for as many as there is one."""
        paths = []
        for _ in range(runs):
            path = self._paths.choose()
            if path is None:
                break
            paths.append(path)
        return paths

    def _build(self, run: RunBuffer, planned: _Planned) -> DataRun:
        work, psn, count, path, again, ack_request, sent_ns = planned
        source, destination = self._peer.flow(path)
        byte_count = self._packetizer.build(
            run,
            work,
            psn,
            count,
            timestamp=timestamp(sent_ns),
            rtx=again,
            ack_request=ack_request,
            source=source,
            destination=destination,
        )
        segment = self._packetizer.segment_bytes if count > 1 else byte_count
        return DataRun(byte_count, segment, path, psn, count, again)

    def _next_lost(self, now_ns: int) -> tuple[WorkRequest, int, int] | None:
        """Return the next stretch to retransmit, as far as the window allows."""
        window, lost = self.window, self._lost
        while lost and not (lost[0] >= window.una and window.state[window.index(lost[0])] == LOST):
            del lost[0]
        if not lost or now_ns < self._hold_until_ns:
            return None
        psn = lost[0]
        limit = min(self._packetizer.packets_max, len(lost), window.room_to_edge(psn))
        count = 1
        ev = window.ev[window.index(psn)]
        while (
            count < limit
            and lost[count] == psn + count
            and window.state[window.index(psn + count)] == LOST
            and window.ev[window.index(psn + count)] == ev
        ):
            count += 1
        allowed = self._allowed_packets()
        if allowed < 1:
            return None
        work = self._works.find(psn)
        return work, psn, self._packetizer.stretch(work, psn, min(count, allowed))

    def _next_new(self) -> tuple[WorkRequest, int, int] | None:
        """Return the next stretch of new packets, if any may be sent."""
        count = self._new_packets()
        if not count:
            return None
        psn = self.window.nxt
        work = self._works.find(psn)
        return work, psn, self._packetizer.stretch(work, psn, count)

    def _new_packets(self) -> int:
        """Return how many new packets may go out now, as far as windows and the peer allow."""
        window = self.window
        psn = window.nxt
        posted = self._posted_psn - psn
        if not posted:
            return 0
        wanted = min(
            posted,
            self.spray_run,
            window.una + self._mpr_psns - psn,
            window.room_to_edge(psn),
        )
        if wanted < 1:
            return 0
        allowed = self._allowed_packets()
        if allowed < self._worth_while(wanted, posted):
            # What is left of the window is not worth a turn, while more than half of it is still
            # out to open it.
            if allowed < 1 or 2 * self.nscc.inflight_bytes > self.nscc.cwnd:
                return 0
            wanted = min(wanted, allowed)
        immediates_max = self._rqmsn_done + self._remote.immediates_max
        if self._rqmsn > immediates_max:
            work = self._works.find(psn)
            if work.imm is not None and work.rqmsn > immediates_max:
                return 0
        return wanted

    def _worth_while(self, run: int, posted: int) -> int:
        """Return how many packets to wait for, where a run of `run` packets is next.

        A run costs the same whatever its length. Where runs are as long as they can be, several
        chosen together cost little more than one: a quarter of the window, for the peer reads them
        together as well.
        """
        if run < self._run_packets_max:
            return run
        quarter = int(self.nscc.cwnd / (4 * self._packet_bytes))
        return max(run, min(posted, SENT_AT_ONCE_MAX - SENT_AT_ONCE_MAX % run, quarter))

    def _allowed_packets(self) -> int:
        if not self._config.congestion_control:
            return self._packetizer.packets_max
        room = int(self.nscc.room_bytes() // self._packet_bytes)
        # The least window, one MTU, is less than a packet; what is received is told in units.
        empty = self.nscc.inflight_bytes < RCVD_UNIT_BYTES
        return max(room, 1) if self._forced or empty else room

    @property
    def spray_run(self) -> int:
        """Consecutive packets on one EV: what keeps every active EV busy, at least 1.

        With very many EVs not every one needs a run in flight, and a run costs the same whatever
        its length: the windows of all queue pairs to a peer together are cut into no more than
        `_RUNS_PER_WINDOW`, and each into `_RUNS_PER_WINDOW_MIN`. On slow links, whose rate is
        known, a run is at most as long as `_RUN_NS_MAX`.
        """
        if self._config.spray_run:
            return self._config.spray_run
        runs = min(self._paths.active_count, _RUNS_PER_WINDOW)
        runs //= max(1, len(self._peer.busy_qpns))
        runs = max(runs, _RUNS_PER_WINDOW_MIN)
        share = self.nscc.cwnd / (runs * self._packet_bytes)
        return max(1, min(self._run_packets_max, int(share)))

    def _enter(
        self,
        work: WorkRequest,
        psn: int,
        count: int,
        paths: list[Path],
        now_ns: int,
        *,
        again: bool,
    ) -> None:
        """Note the packets of runs in the in-flight window and in the counters."""
        window = self.window
        if not window.outstanding:
            self.retry.restart(now_ns)
        packets = count * len(paths)
        tail_bytes = self._packetizer.packet_bytes(work, psn + packets - 1) + _NOMINAL_BYTES
        if again:
            window.send_again(psn, count, paths[0].index, now_ns)
        else:
            evs = [path.index for path in paths]
            window.send_new(count, evs, now_ns, self._packet_bytes, tail_bytes)
        total = (packets - 1) * self._packet_bytes + tail_bytes
        self.nscc.on_send(total)
        self._uncredited_bytes += total
        for path in paths:
            self._paths.on_sent(path, count, retransmission=again)
        self.retry.on_sent(now_ns)
        self._counters.packets += packets
        if again:
            self._counters.retransmitted += packets
        else:
            rest = len(work.data) - (psn - work.first_psn) * self._packetizer.mtu
            self._counters.payload_bytes += min(packets * self._packetizer.mtu, rest)

    # Feedback.

    def on_sack(self, sack: Sack, now_ns: int) -> None:
        """Handle a reliability SACK; one that acknowledges what was never sent is only counted."""
        window = self.window
        cack = from_wire(sack.cack_psn, window.una - 1)
        base = cack + sack.sack_offset
        highest = max(cack, base + sack.sack_bitmap.bit_length() - 1) if sack.sack_bitmap else cack
        trigger_psn = cack if sack.pr else cack + sack.ack_psn_offset
        if max(highest, trigger_psn) >= window.nxt:
            self._drops[DropReason.IMPOSSIBLE_ACK] += 1
            return
        units = wire_difference(sack.rcvd_bytes, self._rcvd_units)
        # A cumulative acknowledgement that moves is news, whatever else was counted before.
        stale = cack < window.una - 1 or (units < 0 and cack < window.una)
        if stale:
            units = 0
            self._drops[DropReason.STALE_ACK] += 1
        elif sack.mpr:
            self._mpr_psns = min(sack.mpr * PSNS_PER_MPR, self._remote.mpr_psns)
        self._counters.sacks += 1
        trigger = self.loss.trigger(sack, trigger_psn, now_ns, stale=stale)
        progress = self._absorb(window.ack_through(cack), now_ns)
        if progress:
            self.retry.on_window_moved(now_ns)
        if sack.sack_bitmap and highest >= window.una:
            progress |= self._absorb(window.ack_bits(base, sack.sack_bitmap), now_ns)
        if not sack.pr and trigger_psn >= window.una:
            # The packet that caused the SACK has arrived, whether the bitmap reaches it or not.
            progress |= self._absorb(window.ack_bits(trigger_psn, 1), now_ns)
        if progress:
            self.retry.on_progress(now_ns)
        self._credit(sack, units, trigger, now_ns)
        if trigger is not None:
            self._judge_path(sack, trigger, now_ns)
            self.loss.note(sack, cack, base, trigger, now_ns)
            if sack.ooo_count > window.held:
                # One bitmap could not tell all that has arrived: should nothing follow, ask for
                # the next, and without delay when nothing was sent since the last question.
                at_once = sack.pr and trigger.order == window.order
                self.retry.probe_by(now_ns if at_once else now_ns + PROBE_NS_MIN)
        self._complete()

    def _absorb(self, stretches: list[Acked], now_ns: int) -> bool:
        for acked in stretches:
            self.loss.on_acked(acked)
            self._paths.on_acked(acked.evs, now_ns)
            if self._lost:
                for psn in acked.lost_psns():
                    self._undo_loss(psn, now_ns, resent=False)
        return bool(stretches)

    def _credit(self, sack: Sack, units: int, trigger: Trigger | None, now_ns: int) -> None:
        """Take newly received bytes off what is in flight and let the window react."""
        size = 0
        if units:
            self._rcvd_units = sack.rcvd_bytes
            size = min(max(units, 0) * RCVD_UNIT_BYTES, self._uncredited_bytes)
            self._uncredited_bytes -= size
        self.nscc.on_ack(
            size,
            now_ns,
            marked=sack.m == SackMark.SKIP_ONCE,
            rtt_ns=self._congestion_rtt_ns(sack, trigger) if size else None,
            penalty=sack.rcv_cwnd_pen,
            restore=sack.restore_cwnd,
        )
        if not self.window.outstanding:
            self.nscc.inflight_bytes = 0
            self._uncredited_bytes = 0

    def _congestion_rtt_ns(self, sack: Sack, trigger: Trigger | None) -> int | None:
        """Return the round trip to give to congestion control, or None.

        Only whole data packets count: a probe is faster than what the base round trip is for. On
        planes of unequal length the delay is that above the plane's own minimum.
        """
        if trigger is None or trigger.rtt_ns is None or sack.pr:
            return None
        if self.window.bytes[self.window.index(trigger.psn)] != self._packet_bytes:
            return None
        path = self._paths.paths[trigger.ev]
        if self._paths.on_whole_packet_rtt(path, trigger.rtt_ns) and not self._config.base_rtt_ns:
            self.nscc.rebase(self._paths.base_rtt_ns)
        delay_ns = trigger.rtt_ns - self._paths.plane_rtt_min_ns[path.plane]
        return int(self.nscc.base_rtt_ns) + delay_ns

    def _judge_path(self, sack: Sack, trigger: Trigger, now_ns: int) -> None:
        path = self._paths.paths[trigger.ev]
        if trigger.rtt_ns is not None:
            self._paths.on_rtt(path, trigger.rtt_ns, now_ns)
        if sack.m == SackMark.SKIP_ONCE:
            self._paths.on_marked(trigger.ev)
        elif sack.m == SackMark.ALWAYS_SKIP:
            self._paths.withdraw(path, now_ns, "responder judges it bad")
        if not sack.pr and not sack.rtx and self.loss.was_called_lost(trigger.psn):
            self._undo_loss(trigger.psn, now_ns, resent=True)

    def _undo_loss(self, psn: int, now_ns: int, *, resent: bool) -> None:
        size = int(self.window.bytes[self.window.index(psn)])
        if self.loss.undo(psn, now_ns):
            self.nscc.on_spurious_loss(size, resent=resent)
        elif not resent:
            # Found lost by a timeout or NACK: its arrival is about to be credited all the same.
            self.nscc.on_send(size)

    def on_nack(self, nack: Nack, now_ns: int) -> None:
        """Handle a reliability NACK: the packet was refused and is sent again, or all is over."""
        window = self.window
        psn = from_wire(nack.nack_psn, window.una)
        if psn >= window.nxt:
            self._drops[DropReason.IMPOSSIBLE_ACK] += 1
            return
        at = window.index(psn)
        # One for an earlier transmission says nothing of the latest; who forges knows no times.
        told = nack.tx_timestamp == timestamp(int(window.sent_ns[at])) or (
            not nack.tx_timestamp and not self._packetizer.sealed
        )
        if not told or not window.set_lost(psn):
            self._drops[DropReason.STALE_ACK] += 1
            return
        self._counters.nacks += 1
        if nack.reason == NackReason.UNEXP_EVENT:
            self.failure = QpFailure.REMOTE_OPERATION
            return
        trimmed = nack.reason in (NackReason.TRIMMED, NackReason.TRIMMED_LASTHOP)
        self._lost.append(psn)
        self.nscc.on_nack(int(window.bytes[at]), now_ns, trimmed=trimmed)
        if trimmed:
            self._counters.trims += 1
            # The last hop is the same whichever EV is used: no reason to pass one over.
            self._paths.on_trimmed(int(window.ev[at]), skip=nack.reason == NackReason.TRIMMED)
            if self._allowed_packets() < 1:  # the request for a SACK was cut, and none can follow
                self.retry.probe_by(2 * now_ns - int(window.sent_ns[at]))
        else:
            self._hold_until_ns = now_ns + _HOLD_NS
        if self.retry.on_nack(now_ns):
            self.failure = QpFailure.RETRY_EXCEEDED

    def on_transport_ack(self, ack: Ack, now_ns: int) -> None:
        """Handle a Transport ACK or NAK: messages complete, or the queue pair fails."""
        psn = from_wire(ack.psn, self.window.una - 1)
        if psn >= self.window.nxt:
            self._drops[DropReason.IMPOSSIBLE_ACK] += 1
            return
        if ack.syndrome >> 5 == 0:
            self._transport_acked = max(self._transport_acked, psn)
            if self._complete():
                self.retry.on_progress(now_ns)
            return
        self.failure = _NAK_FAILURES.get(ack.syndrome, self.failure)

    def _complete(self) -> bool:
        """Report the messages that are acknowledged by both SACK and Transport ACK."""
        done = self._works.pop_done(min(self._transport_acked, self.window.una - 1))
        for work in done:
            self._rqmsn_done = work.rqmsn
            self._counters.done += 1
            self._events.append(WriteDone(self._qpn, work.work_id))
        if not self._works:
            self._peer.busy_qpns.discard(self._qpn)
        return bool(done)

    def _lose(self, psn: int, now_ns: int, *, blame: bool = True) -> bool:
        if not self.window.set_lost(psn):
            return False
        at = self.window.index(psn)
        self._lost.append(psn)
        self.nscc.on_inferred_loss(int(self.window.bytes[at]))
        if blame:
            alive = self.loss.arrived_behind(psn)
            sent_ns = int(self.window.sent_ns[at])
            self._paths.on_lost(int(self.window.ev[at]), now_ns, alive=alive, sent_ns=sent_ns)
        return True

    def on_path_fault(self, psn: int, count: int, now_ns: int, fault: PathFault) -> None:
        """The kernel refused these packets: they are sent again at once."""
        self.last_fault = fault
        for each in range(psn, psn + count):
            if self.window.set_lost(each):
                self._lost.append(each)
                size = int(self.window.bytes[self.window.index(each)])
                self.nscc.on_nack(size, now_ns, trimmed=False)
        self._hold_until_ns = now_ns + _HOLD_NS

    # Timers.

    def next_deadline_ns(self) -> int:
        """Return when `advance` has something to do, or NEVER_NS."""
        if self.failure is not None or not self._works:
            return NEVER_NS
        held = self._hold_until_ns if self._lost and self._hold_until_ns else NEVER_NS
        return min(self.retry.deadline_ns(self._una_sent_ns()), self.loss.deadline_ns, held)

    def _una_sent_ns(self) -> int:
        """When the oldest packet in flight was sent last; 0 while it waits to be sent again."""
        at = self.window.index(self.window.una)
        # Else a kernel that refuses it each time would put the timeout off for ever.
        return 0 if self.window.state[at] == LOST else int(self.window.sent_ns[at])

    def advance(self, now_ns: int) -> tuple[Path, Probe] | None:
        """Run the timers that are due; return a reliability probe to send, if one is."""
        if self._hold_until_ns <= now_ns:
            self._hold_until_ns = 0
        if self.failure is not None or not self._works:
            return None
        if self.loss.deadline_ns <= now_ns:
            self.loss.deadline_ns = NEVER_NS
            if self.window.any_missing:
                self.retry.probe_by(now_ns)
        if self.retry.timeout_due(now_ns, self._una_sent_ns()):
            self._on_timeout(now_ns)
        elif self.retry.probe_due(now_ns):
            return self._probe(now_ns)
        return None

    def _on_timeout(self, now_ns: int) -> None:
        if self.retry.on_timeout(now_ns):
            self.failure = QpFailure.RETRY_EXCEEDED
            return
        self._forced = True
        # Only while SACKs go on coming, and do not have the packet, is it the fault of its EV.
        una, heard_ns = self.window.una, self.loss.judged_ns - self._una_sent_ns()
        blame = self.window.is_missing(una) and 2 * heard_ns > self.retry.interval_ns()
        self._lose(una, now_ns, blame=blame)
        if self.window.state[self.window.index(una)] == LOST and una < self.window.nxt:
            # First of all, whatever else waits: only this one lets the window move.
            self._lost.insert(0, una)
        elif not self._lost:
            self.retry.probe_by(now_ns)

    def _probe(self, now_ns: int) -> tuple[Path, Probe] | None:
        at = self.window.index(self.window.una)
        path = self._paths.choose(int(self.window.ev[at]))
        # Also where no path can take it now: due without end, the timer would never rest.
        self.retry.on_probe_sent(now_ns)
        if path is None:
            return None
        probe_id = self.loss.new_probe(path.index, now_ns)
        return path, Probe(
            dqp=self._remote.qpn,
            probe_id=probe_id,
            spdcid=self._qpn & 0xFFFF,
            dpdcid=self._remote.qpn & 0xFFFF,
            tx_timestamp=timestamp(now_ns),
        )

    def progress(self, now_ns: int) -> tuple[int, int, int]:
        """Return (wire PSN of the oldest packet in flight, retry count, ns without progress)."""
        return to_wire(self.window.una), self.retry.count, now_ns - self.retry.progress_ns

    def statistics(self) -> RequestorStatistics:
        """Return a snapshot of the counters."""
        counters = self._counters
        return RequestorStatistics(
            writes_posted=counters.posted,
            writes_done=counters.done,
            payload_bytes_sent=counters.payload_bytes,
            packets_sent=counters.packets,
            packets_retransmitted=counters.retransmitted,
            packets_lost=self.loss.lost_packets,
            packets_spurious=self.loss.spurious_packets,
            nacks=counters.nacks,
            trims=counters.trims,
            timeouts=self.retry.timeouts,
            probes=self.loss.probes_sent,
            sacks=counters.sacks,
            cwnd_bytes=int(self.nscc.cwnd),
            inflight_bytes=self.nscc.inflight_bytes,
            srtt_ns=int(self._paths.srtt_ns),
            rtt_min_ns=self._paths.rtt_min_ns if self._paths.rtt_min_ns != NEVER_NS else 0,
        )
