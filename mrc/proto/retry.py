"""When silence becomes a probe, a timeout, and the end of a queue pair.

The k-th timeout comes T * 2^max(0, k - linear) after the last sign of life, T = 1.024 * 2^timeout
us. The counter belongs to the queue pair: it takes at most one step per interval, progress of the
cumulative acknowledgement clears it, and above linear + exponential the queue pair fails. Well
before a timeout a reliability probe asks for a SACK, so that a lost tail costs a round trip, not a
timeout.
"""

from __future__ import annotations

from mrc.proto.config import RETRY_FOREVER, Config
from mrc.proto.paths import NEVER_NS, PathSet

PROBE_NS_MIN = 2_000_000
"""A busy process answers late by about a scheduling quantum; below it probes would be noise."""
_FIRST_INTERVALS_MAX = 4


class RetryTimer:
    """Probe and retransmission timers of one requestor; all times in ns."""

    def __init__(self, config: Config, paths: PathSet, now_ns: int) -> None:
        self._timeout_t_ns = config.timeout_ns
        self._paths = paths
        self._linear = config.retry_linear
        self._exponential = config.retry_exponential
        self.count = 0
        self.timeouts = 0
        self.progress_ns = now_ns
        """When the cumulative acknowledgement moved last, or sending began."""
        self._heard_ns = now_ns
        self._step_ns = now_ns
        self._quiet_ns = NEVER_NS
        """Since when nothing was sent and nothing acknowledged."""
        self._ask_ns = NEVER_NS
        """When a probe was asked for."""
        self._probe_backoff = 0
        self._patience_shift = 0

    def interval_ns(self) -> int:
        """Return the interval of the present transmission."""
        if self.count == 0:
            return self._first_ns()
        return self._timeout_t_ns << max(0, self.count - self._linear)

    def _first_ns(self) -> int:
        """Return T, or what acknowledgements take if that is longer, within reason."""
        paths = self._paths
        needed = int(2 * paths.srtt_ns + 4 * paths.rttvar_ns)
        return max(self._timeout_t_ns, min(needed, _FIRST_INTERVALS_MAX * self._timeout_t_ns))

    @property
    def _exhausted(self) -> bool:
        return self._exponential < RETRY_FOREVER and self.count > self._linear + self._exponential

    # What happened.

    def restart(self, now_ns: int) -> None:
        """Sending begins after an idle time."""
        self.count = 0
        self.progress_ns = self._heard_ns = self._step_ns = now_ns

    def on_sent(self, now_ns: int) -> None:
        """Data left: silence is counted from here."""
        self._quiet_ns = now_ns
        self._ask_ns = NEVER_NS
        self._patience_shift = 0

    def on_progress(self, now_ns: int) -> None:
        """Something new was acknowledged."""
        self._heard_ns = now_ns
        self._probe_backoff = 0
        self.on_sent(now_ns)

    def on_window_moved(self, now_ns: int) -> None:
        """The cumulative acknowledgement moved: the retry counter starts anew."""
        self.count = 0
        self.progress_ns = self._step_ns = now_ns

    def on_nack(self, now_ns: int) -> bool:
        """Count a recoverable NACK, one step an interval at most; True when that was the last."""
        if now_ns - self._step_ns >= self.interval_ns():
            self.count += 1
            self._step_ns = now_ns
        return self._exhausted

    def on_timeout(self, now_ns: int) -> bool:
        """Count a timeout; True when the retry counter is exceeded."""
        self.timeouts += 1
        self.count += 1
        self._step_ns = now_ns
        return self._exhausted

    def on_probe_sent(self, now_ns: int) -> None:
        """Wait twice as long for the next one."""
        self._probe_backoff = min(self._probe_backoff + 1, 10)
        self._quiet_ns = now_ns
        self._ask_ns = NEVER_NS
        self._patience_shift = self._probe_backoff

    def probe_by(self, at_ns: int) -> None:
        """Probe at that time at the latest."""
        self._ask_ns = min(self._ask_ns, at_ns)

    # What is due.

    def _probe_ns(self) -> int:
        """Return when to probe: after a good round trip of silence, doubled for each probe."""
        if self._quiet_ns == NEVER_NS:
            return self._ask_ns
        quiet_until_ns = self._quiet_ns + (self._patience_ns() << self._patience_shift)
        return min(self._ask_ns, quiet_until_ns)

    def _patience_ns(self) -> int:
        """Return a good round trip, and early enough for the answer to come before a timeout."""
        paths = self._paths
        if not paths.srtt_ns:
            return self._timeout_t_ns
        patience = max(2 * paths.srtt_ns, paths.srtt_ns + 4 * paths.rttvar_ns)
        return max(PROBE_NS_MIN, min(int(patience), self._first_ns() // 2))

    def _timeout_ns(self, una_sent_ns: int) -> int:
        return max(self._heard_ns, self._step_ns, una_sent_ns) + self.interval_ns()

    def deadline_ns(self, una_sent_ns: int) -> int:
        """Return when something is due, given when the oldest packet was sent last."""
        return min(self._probe_ns(), self._timeout_ns(una_sent_ns))

    def timeout_due(self, now_ns: int, una_sent_ns: int) -> bool:
        """Tell whether the oldest packet has waited its whole interval in silence."""
        return now_ns >= self._timeout_ns(una_sent_ns)

    def probe_due(self, now_ns: int) -> bool:
        """Tell whether a reliability probe shall be sent."""
        return now_ns >= self._probe_ns()
