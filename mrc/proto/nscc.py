"""NSCC, the window-based congestion control of MRC ("uet-1.0-nscc", UET §3.6.13, MRC 1.0 §8).

Driven by what the SACK says was received (`rcvd_bytes`), ECN marks, round trips and trims. Bytes
are nominal: UDP length + 40. All names are those of the specification; the handlers follow its
pseudo-code line by line, except where a comment says so. `inflight_bytes` is signed: rounding can
push it a little below zero.
"""

from __future__ import annotations

from dataclasses import dataclass

BDP_REF_BYTES = 150_000
RTT_REF_NS = 12_000
"""The reference network of the scaling factors a and b: 100 Gb/s, 12 us."""
UDP_HEADER_BYTES = 8
NOMINAL_OVERHEAD_BYTES = 40
RCVD_UNIT_BYTES = 256
"""Unit of CC_STATE.rcvd_bytes."""
_WINDOW_BDPS = 1.5
_FIRST_WINDOW_PACKETS = 32
"""First window where the link's rate is not known; MaxWnd, as UET has it, where it is."""
_MEASURED_PACKETS_MIN = 4
"""A window of less stands still while a host waits for its turn, whatever the network holds."""
_HOST_DELAY_NS = 1_000_000
"""Delay that a host's own scheduling adds now and then; less is no sign of a queue."""
_HOST_STALL_NS = 20_000_000
"""Delay that a busy host can add; less is no sign of a network in trouble."""
_FABRIC_RTT_NS_MAX = 1_000_000
"""Longer round trips are no hardware fabric's. There alpha, which grows with their square, lets a
window jump from nothing to full in one, and flows that meet share badly: seven had a Jain index of
0.94 to 0.97, and have 0.98 to 0.99 when it takes `_STEPS_TO_TARGET` round trips at least."""
_STEPS_TO_TARGET = 16
_PENALTY_SHIFT = 7
_NO_DELAY_DIVISOR = 12
_NO_DELAY_NS_MIN = 1_000


@dataclass(frozen=True, slots=True)
class NsccParameters:
    """Parameters of UET table 3-76, worked out for one network; see `derive`."""

    mtu: int
    link_bytes_per_ns: float
    base_rtt_ns: int
    trimming: bool
    target_qdelay_ns: float
    alpha: float
    """Proportional increase, bytes per ns of delay below the target."""
    alpha_sharing: float
    """The same while others compete for the link: less on links of long round trips."""
    fi: float
    """Fair increase, bytes."""
    fi_scale: float
    """Fast increase: window bytes per byte acknowledged without any delay."""
    eta: float
    """Bytes added once per adjust period."""
    gamma: float
    max_md_jump: float
    """Lower bound of one decrease factor."""
    quick_adapt: bool
    qa_gate: int
    qa_threshold_ns: float
    adjust_bytes: int
    adjust_period_ns: int
    ack_trigger_bytes: int
    window_bytes_max: float
    """What the receiver's buffer can hold, whatever the network would."""
    measured: bool
    """The base round trip was measured by this host, not given."""

    @classmethod
    def derive(
        cls,
        *,
        mtu: int,
        link_bps: float,
        base_rtt_ns: int,
        trimming: bool,
        quick_adapt: bool = True,
        ack_trigger_bytes: int = 16384,
        window_bytes_max: float = float("inf"),
        measured: bool = False,
    ) -> NsccParameters:
        """Work out the parameters from link rate and idle round trip.

        Where the rate is not known the window grows with the steps of the reference network (a and
        b are 1) and only the receiver's buffer bounds it.

        Args:
            mtu: payload bytes of a packet.
            link_bps: the slower of both sides, all planes together; 0 when not known.
            base_rtt_ns: round trip of one packet on the idle network over the longest path.
            trimming: whether switches trim; sets the delay target and switches the delay-triggered
                quick adapt off.
            quick_adapt: off only for experiments.
            ack_trigger_bytes: below this window every packet asks for a SACK.
            window_bytes_max: upper bound from the receiver's buffer.
            measured: the base round trip comes from samples of this host. Then the delay of its
                processes, milliseconds when they wait for their turn, is not taken for queues.
        """
        link = link_bps / 8 / 1e9
        target = base_rtt_ns * (0.75 if trimming else 1.0)
        threshold = float("inf") if trimming else 4 * target
        if measured:
            target = max(target, _HOST_DELAY_NS)
            threshold = max(threshold, _HOST_STALL_NS)
        a = link * base_rtt_ns / BDP_REF_BYTES if link else 1.0
        b = target / RTT_REF_NS if link else 1.0
        alpha = 4.0 * a * b * mtu / target
        calm = alpha
        if link and base_rtt_ns > _FABRIC_RTT_NS_MAX:
            calm = min(alpha, link * (base_rtt_ns + target) / target / _STEPS_TO_TARGET)
        return cls(
            mtu=mtu,
            link_bytes_per_ns=link,
            base_rtt_ns=base_rtt_ns,
            trimming=trimming,
            target_qdelay_ns=target,
            alpha=alpha,
            alpha_sharing=calm,
            fi=5 * mtu * a,
            fi_scale=0.25 * a,
            eta=0.15 * mtu * a,
            gamma=0.8,
            max_md_jump=0.5,
            quick_adapt=quick_adapt,
            qa_gate=3,
            qa_threshold_ns=threshold,
            adjust_bytes=8 * mtu,
            adjust_period_ns=base_rtt_ns,
            ack_trigger_bytes=ack_trigger_bytes,
            window_bytes_max=window_bytes_max,
            measured=measured,
        )

    def rebased(self, base_rtt_ns: int) -> NsccParameters:
        """Return the parameters of the same network with another base round trip."""
        return self.derive(
            mtu=self.mtu,
            link_bps=self.link_bytes_per_ns * 8e9,
            base_rtt_ns=base_rtt_ns,
            trimming=self.trimming,
            quick_adapt=self.quick_adapt,
            ack_trigger_bytes=self.ack_trigger_bytes,
            window_bytes_max=self.window_bytes_max,
            measured=self.measured,
        )


class Nscc:
    """State of UET table 3-77 for one queue pair, and its handlers."""

    def __init__(self, parameters: NsccParameters, now_ns: int) -> None:
        self.p = parameters
        self.base_rtt_ns = float(parameters.base_rtt_ns)
        self.max_wnd = self._max_window()
        self.cwnd = self.max_wnd
        if not parameters.link_bytes_per_ns:
            self.cwnd = min(self.max_wnd, float(_FIRST_WINDOW_PACKETS * parameters.mtu))
        self.inflight_bytes = 0
        self.average_delay_ns = 0.0
        self.saved_cwnd = 0.0
        self.achieved_bytes = 0
        self.received_bytes = 0
        self.fi_count = 0
        self.bytes_to_ignore = 0
        self.bytes_ignored = 0
        self.inc_bytes = 0.0
        self.trigger_qa = False
        self.qa_endtime_ns = 0
        self.last_adjust_ns = now_ns
        self.last_decrease_ns = now_ns
        self.last_sample_ns = now_ns
        self.increase_mode = False
        self.sharing = False
        """Packets were trimmed or, where nothing trims, marked in a queue that is too long, and the
        window has not been full since."""

    def _max_window(self) -> float:
        bdp = self.p.link_bytes_per_ns * self.base_rtt_ns
        window = _WINDOW_BDPS * bdp if bdp else self.p.window_bytes_max
        least = _MEASURED_PACKETS_MIN if self.p.measured else 1
        return max(least * self.p.mtu, min(window, self.p.window_bytes_max))

    # Sending.

    def on_send(self, size_bytes: int) -> None:
        """Count bytes put on the network."""
        self.inflight_bytes += size_bytes

    def room_bytes(self) -> float:
        """Return how many bytes may be sent now: inflight + size <= cwnd."""
        return self.cwnd - self.inflight_bytes

    def wants_ack(self) -> bool:
        """Tell whether the packet just counted should ask for a SACK."""
        return self.room_bytes() < self.p.mtu or self.cwnd < self.p.ack_trigger_bytes

    # Feedback.

    def on_ack(
        self,
        size_bytes: int,
        now_ns: int,
        *,
        marked: bool,
        rtt_ns: int | None,
        penalty: int = 0,
        restore: bool = False,
    ) -> None:
        """Handle newly received bytes.

        Args:
            size_bytes: nominal bytes that the SACK says are new.
            now_ns: arrival of the SACK.
            marked: the packet that triggered it was ECN-marked.
            rtt_ns: its round trip, or None when there is no valid sample.
            penalty: `rcv_cwnd_pen`, 0 to 127; 64 in each SACK of a round trip halves the window.
            restore: `restore_cwnd`: the receiver takes its penalty back.
        """
        self.inflight_bytes -= size_bytes
        self.bytes_ignored += size_bytes
        self.received_bytes += size_bytes
        self.achieved_bytes += size_bytes
        limited = self._penalty(penalty, size_bytes, restore=restore)
        if rtt_ns is None:
            return
        self.on_base_rtt(rtt_ns)
        delay = max(0.0, rtt_ns - self.base_rtt_ns)
        self._average(delay, now_ns)
        if self._quick_adapt(now_ns, loss=False, marked=marked, delay_ns=delay):
            return
        target = self.p.target_qdelay_ns
        if marked:
            if delay >= target:
                self._decrease(now_ns)
        elif not limited:
            if delay >= target:
                self.inc_bytes += self.p.fi * size_bytes
            else:
                self._fast_increase(size_bytes, delay)
                if not self.increase_mode:
                    alpha = self.p.alpha_sharing if self.sharing else self.p.alpha
                    self.inc_bytes += alpha * size_bytes * (target - delay)
        period_over = now_ns - self.last_adjust_ns >= self.p.adjust_period_ns
        if period_over or self.received_bytes > self.p.adjust_bytes:
            self._fulfil(now_ns, period_over=period_over)

    def on_inferred_loss(self, size_bytes: int) -> None:
        """Handle a packet lost without a NACK."""
        self.cwnd = max(self.cwnd - size_bytes, self.p.mtu)
        self.bytes_ignored += size_bytes
        self.inflight_bytes -= size_bytes

    def on_spurious_loss(self, size_bytes: int, *, resent: bool) -> None:
        """Undo `on_inferred_loss` for a packet that had arrived after all.

        Its arrival takes it off the bytes in flight a second time; a retransmission has put it back
        on, so it is put back here only when there was none.
        """
        self.cwnd = min(self.cwnd + size_bytes, self.max_wnd)
        if not resent:
            self.inflight_bytes += size_bytes

    def on_nack(
        self, size_bytes: int, now_ns: int, *, trimmed: bool, rtt_ns: int | None = None
    ) -> None:
        """Handle a NACK; only a trim is a sign of congestion."""
        self.inflight_bytes -= size_bytes
        if rtt_ns is not None:
            self.on_base_rtt(rtt_ns)
        if not trimmed:
            return
        self.sharing = True
        self._average(float(self.p.base_rtt_ns), now_ns)
        self.bytes_ignored += size_bytes
        self.trigger_qa = True
        if not self._quick_adapt(now_ns, loss=True, marked=True, delay_ns=0):
            self.cwnd = max(self.cwnd - size_bytes, self.p.mtu)

    def on_base_rtt(self, rtt_ns: int) -> None:
        """Learn a shorter idle round trip; the window follows at the next adjustment."""
        if 0 < rtt_ns < self.base_rtt_ns:
            self.base_rtt_ns = float(rtt_ns)
            self.max_wnd = self._max_window()

    def rebase(self, base_rtt_ns: int) -> None:
        """Take over a measured base round trip, shorter or longer, and all that follows from it."""
        self.p = self.p.rebased(base_rtt_ns)
        self.base_rtt_ns = float(base_rtt_ns)
        self.max_wnd = self._max_window()

    # The pieces of the pseudo-code.

    def _fulfil(self, now_ns: int, *, period_over: bool) -> None:
        self.cwnd += self.inc_bytes / self.cwnd
        if period_over:
            self.last_adjust_ns = now_ns
            self.cwnd += self.p.eta
        self.cwnd = min(self.cwnd, self.max_wnd)
        self.sharing = self.sharing and self.cwnd < self.max_wnd
        self.inc_bytes = 0.0
        self.received_bytes = 0

    def _fast_increase(self, size_bytes: int, delay_ns: float) -> None:
        # "Delay about zero": a software path jitters more than hardware's microsecond.
        if delay_ns < max(_NO_DELAY_NS_MIN, self.p.base_rtt_ns / _NO_DELAY_DIVISOR):
            self.fi_count += size_bytes
            if self.fi_count > self.cwnd or self.increase_mode:
                self.cwnd = min(self.cwnd + size_bytes * self.p.fi_scale, self.max_wnd)
                self.increase_mode = True
                return
        else:
            self.fi_count = 0
        self.increase_mode = False

    def _decrease(self, now_ns: int) -> None:
        self.increase_mode = False
        self.fi_count = 0
        # Where switches trim, trims tell; marks alone made a flow beside others give way too long.
        self.sharing |= not self.p.trimming
        average, target = self.average_delay_ns, self.p.target_qdelay_ns
        if average > target and now_ns - self.last_decrease_ns > self.base_rtt_ns:
            factor = max(1 - self.p.gamma * (average - target) / average, self.p.max_md_jump)
            self.cwnd = max(self.p.mtu, self.cwnd * factor)
            self.last_decrease_ns = now_ns

    def _quick_adapt(self, now_ns: int, *, loss: bool, marked: bool, delay_ns: float) -> bool:
        if not self.p.quick_adapt:
            return False
        handled = False
        if self.bytes_ignored < self.bytes_to_ignore and marked:
            handled = True
        elif now_ns >= self.qa_endtime_ns:
            bad = self.trigger_qa or loss or delay_ns > self.p.qa_threshold_ns
            gate = int(self.max_wnd) >> self.p.qa_gate
            if self.qa_endtime_ns != 0 and bad and self.achieved_bytes < gate:
                # Delay alone, where hosts are part of it: who was off the processor has achieved
                # nothing, whatever the network can carry.
                stalled = self.p.measured and not (self.trigger_qa or loss or marked)
                self.cwnd = float(max(self.achieved_bytes, gate if stalled else 0, self.p.mtu))
                self.bytes_to_ignore = self.inflight_bytes
                self.bytes_ignored = 0
                self.trigger_qa = False
                handled = True
            self.achieved_bytes = 0
            self.qa_endtime_ns = now_ns + int(self.base_rtt_ns + self.p.target_qdelay_ns)
        if handled:
            self.inc_bytes = 0.0
            self.received_bytes = 0
        return handled

    def _penalty(self, penalty: int, size_bytes: int, *, restore: bool) -> bool:
        if penalty > 0:
            if self.saved_cwnd == 0:
                self.saved_cwnd = self.cwnd
            self.cwnd = min(self.cwnd, self.inflight_bytes)
            self.cwnd = max(self.p.mtu, self.cwnd - ((penalty * size_bytes) >> _PENALTY_SHIFT))
            return True
        if restore and self.saved_cwnd > 0:
            self.cwnd = self.saved_cwnd
            self.saved_cwnd = 0.0
        return False

    def _average(self, sample_ns: float, now_ns: int) -> None:
        weight = min(1.0, (now_ns - self.last_sample_ns) / self.base_rtt_ns)
        self.average_delay_ns += weight * (sample_ns - self.average_delay_ns)
        self.last_sample_ns = now_ns
