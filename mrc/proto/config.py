"""Settings of an endpoint, and the attributes that two queue pairs tell each other.

MRC 1.0 has no handshake of its own: `QpAttributes` travels out of band, by a rendezvous.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from mrc.errors import ConfigError
from mrc.units import NS_PER_S

MTUS = (256, 512, 1024, 2048, 4096)
"""Path MTUs of InfiniBand: payload bytes of one packet."""
PSNS_PER_MPR = 128
"""Unit of the maximum PSN range (MPR) on the wire."""
MPR_PSNS_MIN, MPR_PSNS_MAX = 8 * PSNS_PER_MPR, 255 * PSNS_PER_MPR
UDP_PORT_DEFAULT = 4971
"""MRC 1.0 §7.5.5.2; plain RoCEv2 has 4791, and some sites keep that."""
MESSAGE_BYTES_MAX = (1 << 32) - 1
"""One WRITE: 1 to 2^32 - 1 bytes."""
RETRY_FOREVER = 25
"""The largest `retry_exponential`: a queue pair that never gives up."""
PATHS_MAX = 4096
"""EVs of one peer: each costs a socket and about 1 KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DscpMap:
    """DSCP code points; every site may choose its own."""

    no_trim: int = 0
    trimmable: int = 4
    trimmable_retx: int = 8
    trimmed: int = 12
    trimmed_lasthop: int = 16
    control: int = 46

    def __post_init__(self) -> None:
        for name in self.__slots__:
            _check(name, getattr(self, name), 0, 63, "DSCP code point")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of one endpoint. Every field has a default that works; times are nanoseconds."""

    paths: int = 16
    """Active EVs (UDP source ports) towards a peer, spread evenly over the planes. 1 to 4096. Too
    few: no spraying; far above 100: little gain and slower detection on each (MRC 1.0 §11.2.1)."""
    backup_paths: int | None = None
    """Spare EVs that replace withdrawn ones of their plane. None: a quarter of `paths`."""
    paths_min: int | None = None
    """Never let fewer EVs than this be usable (`ev_min_active`). None: a quarter of `paths`."""
    reverse_paths: int = 2
    """EVs per plane that carry SACKs and NACKs."""
    mtu: int = 4096
    """Payload bytes of a packet: 256, 512, 1024, 2048 or 4096. The smaller of both sides counts."""
    mpr_psns: int = 4096
    """Tracking window of the responder in PSNs, a multiple of 128 from 1024 to 32640. Bounds what
    may be in flight to `mpr_psns * mtu` bytes and costs 2 to 4 bytes a PSN at the responder, 60
    to 120 at the requestor."""
    dynamic_mpr: bool = True
    """Tell the window in every SACK."""
    immediates_max: int = 256
    """WRITE-with-Immediate messages in flight; at least 32 (`wimm`)."""
    immediates_held_max: int = 4096
    """Immediates received in order and not yet taken by the application, about 200 bytes each.
    Above half of it the peer's window is cut, at the limit more are refused with NACK NO_RESOURCE.
    """
    spray_run: int = 0
    """Consecutive packets on one EV. 0: grows with the window, so that every active EV stays busy,
    but takes no longer than 0.4 ms of one plane where `link_bps` is known."""
    timeout: int = 16
    """Retransmission interval T = 1.024 * 2^timeout us; 16 is 67 ms. 0 to 24. Too small: timeouts
    while the peer's process only waits for its turn; too large: what probes cannot find out waits
    that long."""
    retry_linear: int = 7
    """Timeouts at the fixed interval, 0 to 7."""
    retry_exponential: int = 6
    """Timeouts with doubling after that, 0 to 24; 25 is for ever. With the defaults a silent peer
    costs T * (1 + 7 + 2^7 - 2) = 9.0 s until the queue pair fails."""
    sack_bytes: int = 16384
    """Bytes that make the responder send a SACK unasked (`sack_gen_threshold`), at least 1024."""
    trim_nack: bool = True
    """Answer trimmed packets with a NACK (device capability TRIM_NACK)."""
    icrc: bool = True
    """Write and check the iCRC. Off: sent as zero and not looked at; both sides must agree."""
    base_rtt_ns: int = 0
    """Round trip of one packet on the idle network over the longest path, the reference for
    congestion control. 0: measured. Too small: the window stays below what the path holds; too
    large: standing queues."""
    link_bps: int = 0
    """Rate of all planes together. 0: taken from the interfaces where the kernel knows it."""
    congestion_control: bool = True
    """NSCC. Off: only the tracking window and the receiver's buffer bound what is in flight."""
    quick_adapt: bool = True
    """NSCC quick adapt: fall to what was delivered when a round trip lost heavily."""
    trimming: bool = False
    """The fabric trims: lower delay target, and delay alone never triggers quick adapt."""
    probe_interval_ns_max: int = 250_000_000
    """A withdrawn EV is probed at least this often. Too small: load of dead paths; too large: they
    come back late."""
    recovery_successes: int = 1
    """Answered probes that bring a withdrawn EV back; raised by itself for EVs that flap."""
    dscp: DscpMap = field(default_factory=DscpMap)

    def __post_init__(self) -> None:
        if self.mtu not in MTUS:
            raise ConfigError(f"mtu = {self.mtu} bytes; must be one of {', '.join(map(str, MTUS))}")
        if self.mpr_psns % PSNS_PER_MPR:
            raise ConfigError(f"mpr_psns = {self.mpr_psns}; must be a multiple of {PSNS_PER_MPR}")
        for name, low, high, unit in _RANGES:
            value = getattr(self, name)
            if value is not None:
                _check(name, value, low, high, unit)

    @property
    def backups(self) -> int:
        """Backup EVs, all planes together."""
        return self.backup_paths if self.backup_paths is not None else (self.paths + 3) // 4

    @property
    def floor(self) -> int:
        """EVs that stay usable whatever is lost on them."""
        return self.paths_min if self.paths_min is not None else max(1, self.paths // 4)

    @property
    def timeout_ns(self) -> int:
        """Retransmission interval T."""
        return 1024 << self.timeout

    def retrying_for(self, duration_s: float) -> Self:
        """Return the same with as few doublings as let a queue pair retry for at least so long.

        With fewer it would give up a peer that stands still before its user wants to.
        """
        for doublings in range(RETRY_FOREVER):
            intervals = 1 + self.retry_linear + (2 << doublings) - 2
            if intervals * self.timeout_ns >= duration_s * NS_PER_S:
                return replace(self, retry_exponential=doublings)
        return replace(self, retry_exponential=RETRY_FOREVER)


_RANGES = (
    ("paths", 1, PATHS_MAX, "EVs"),
    ("backup_paths", 0, PATHS_MAX, "EVs"),
    ("paths_min", 1, PATHS_MAX, "EVs"),
    ("reverse_paths", 1, 64, "EVs per plane"),
    ("mpr_psns", MPR_PSNS_MIN, MPR_PSNS_MAX, "PSNs"),
    ("immediates_max", 32, 32767, "messages"),
    ("immediates_held_max", 64, 1 << 20, "messages"),
    ("spray_run", 0, 64, "packets"),
    ("timeout", 0, 24, "(T = 1.024 * 2^timeout us)"),
    ("retry_linear", 0, 7, "retries"),
    ("retry_exponential", 0, 25, "retries"),
    ("sack_bytes", 1024, 1 << 20, "bytes"),
    ("base_rtt_ns", 0, 10_000_000_000, "ns"),
    ("link_bps", 0, 10**13, "bit/s"),
    ("probe_interval_ns_max", 1_000_000, 60_000_000_000, "ns"),
    ("recovery_successes", 1, 1000, "probes"),
)


def _check(name: str, value: int, low: int, high: int, unit: str) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name} = {value} {unit}; must be {low} to {high}")


@dataclass(frozen=True, slots=True, kw_only=True)
class QpAttributes:
    """What one side tells the other about its queue pair before the first packet.

    `planes` holds (numeric address, UDP port) where this side receives, one per plane.
    """

    qpn: int
    first_psn: int
    mtu: int
    mpr_psns: int
    dynamic_mpr: bool
    immediates_max: int
    trim_nack: bool
    service_time: bool
    """Told, as MRC 1.0 asks, like `dynamic_mpr` and `trim_nack`; none is needed here."""
    icrc: bool
    endpoint_tag: int
    """High byte of the request ids the peer shall put into endpoint requests to us, so that peers
    which share an address can be told apart."""
    link_bps: int
    """Rate of all planes of this side together in bit/s; 0 when not known."""
    receive_buffer_bytes: int
    """What the receiving sockets of a plane can hold; the window stays below it."""
    planes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        limits = (
            ("qpn", self.qpn, 3, 0xFFFFFF, ""),
            ("first_psn", self.first_psn, 0, 0xFFFFFF, ""),
            ("mpr_psns", self.mpr_psns, PSNS_PER_MPR, MPR_PSNS_MAX, "PSNs"),
            ("immediates_max", self.immediates_max, 1, 32767, "messages"),
            ("endpoint_tag", self.endpoint_tag, 0, 255, ""),
            ("link_bps", self.link_bps, 0, 10**13, "bit/s"),
            ("receive_buffer_bytes", self.receive_buffer_bytes, 4096, 1 << 40, "bytes"),
            ("planes", len(self.planes), 1, 64, "planes"),
        )
        for name, value, low, high, unit in limits:
            _check(name, value, low, high, unit)
        if self.mtu not in MTUS:
            raise ConfigError(f"mtu = {self.mtu} bytes; must be one of {', '.join(map(str, MTUS))}")
        for _, port in self.planes:
            _check("UDP port", port, 1, 65535, "")
