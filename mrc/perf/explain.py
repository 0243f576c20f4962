"""What limited a run, in plain sentences, the most important first.

Each rule looks at what was measured and says something or nothing; what was not measured is not
spoken of. A sentence that names a remedy gives the exact command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mrc.perf.conversation import Finding
from mrc.perf.probe import Observed
from mrc.perf.settings import Kind
from mrc.units import format_bytes

CORE_FULL_PERCENT = 85.0
"""A process that has so much of a core waits for nothing else to speak of."""
HOST_FULL_PERCENT = 90.0
WINDOW_FULL_SHARE = 0.5
"""Of the looks; in fewer the window is full only for moments."""
REPEATED_SHARE_MIN = 0.001
AROUND_PAYLOAD_BYTES_MAX = 128
"""Headers and seal around a payload, with IPv6."""
MTU_BYTES_MAX = 4096
RUN_BYTES_MAX = 65_507
"""What one UDP system call takes, segmented or not."""
SHORT_RUN_SHARE = 0.75


def findings(observed: Observed | None) -> tuple[Finding, ...]:
    """Return what there is to say about one side, the most important first."""
    if observed is None:
        return ()
    found = [finding for rule in _RULES for finding in rule(observed)]
    return tuple(sorted(found, key=lambda finding: -finding.weight))


_Said = Iterator[Finding]


def _drops(observed: Observed) -> _Said:
    for port in observed.ports:
        if port.kernel_drops <= 0:
            continue
        granted = format_bytes(port.receive_buffer_granted_bytes)
        said = (
            f"the kernel dropped {port.kernel_drops:,} datagrams at {port.address} UDP port"
            f" {port.udp_port}: the receive buffer of {granted} was full"
        )
        if port.receive_buffer_granted_bytes >= port.receive_buffer_asked_bytes:
            said += ", all that was asked for: this process did not read for too long"
        yield Finding(95, said)
    ours = sum(max(0, port.kernel_drops) for port in observed.ports)
    others = observed.udp_errors.get("RcvbufErrors", 0) - ours
    if others > 0:
        yield Finding(
            45, f"other UDP sockets of this host lost {others:,} datagrams to full buffers"
        )
    refused = observed.udp_errors.get("SndbufErrors", 0)
    if refused:
        yield Finding(
            60, f"UDP sockets of this host could not send {refused:,} datagrams (SndbufErrors)"
        )


def _processor(observed: Observed) -> _Said:
    share = observed.process_percent
    cores = observed.core_percents
    shown = ", ".join(f"core {core} {busy:.0f} %" for core, busy in sorted(cores.items())[:8])
    least = min(cores.values(), default=0.0)
    if share >= CORE_FULL_PERCENT:
        yield Finding(
            90,
            f"the processor is the limit: this process used {share:.0f} % of one core, and cannot"
            f" use a second ({shown} busy)",
        )
    elif least >= HOST_FULL_PERCENT:
        yield Finding(
            85,
            f"this host is full: this process had {share:.0f} % of one core, others the rest"
            f" ({shown} busy)",
        )
    else:
        yield Finding(20, f"this process used {share:.0f} % of one core ({shown} busy)")


def _window(observed: Observed) -> _Said:
    looks = observed.window.looks
    if not observed.writes or observed.kind is not Kind.BANDWIDTH or not looks:
        return
    cwnd_bytes = observed.window.cwnd_bytes // looks
    full = observed.window.full / looks
    cwnd = format_bytes(cwnd_bytes)
    most = observed.qp.window_bytes_max
    outstanding = observed.wanted.depth * observed.wanted.message_bytes
    if full >= WINDOW_FULL_SHARE and cwnd_bytes >= 0.95 * most:
        bound = "what the links hold"
        if most == observed.qp.receive_buffer_window_bytes:
            bound = "half of the peer's receive buffers, its bound"
        yield Finding(
            65,
            f"the window was full in {100 * full:.0f} % of {looks} looks, at {cwnd}: {bound}",
        )
    elif full >= WINDOW_FULL_SHARE:
        yield Finding(
            70,
            f"congestion control is the limit: the window was full in {100 * full:.0f} % of"
            f" {looks} looks, at {cwnd} of at most {format_bytes(most)}",
        )
    elif outstanding < cwnd_bytes and observed.wanted.message_bytes >= observed.qp.mtu_bytes:
        yield Finding(
            65,
            f"too little was outstanding: {observed.wanted.depth} writes of"
            f" {format_bytes(observed.wanted.message_bytes)} do not fill a window of {cwnd};"
            " raise -t",
        )
    else:
        yield Finding(
            15, f"the window was not the limit: full in {100 * full:.0f} % of looks, at {cwnd}"
        )


def _buffers(observed: Observed) -> _Said:
    for port in observed.ports:
        asked, granted = port.receive_buffer_asked_bytes, port.receive_buffer_granted_bytes
        if granted < asked:
            yield Finding(
                75,
                f"the receive buffer of {port.address} has {format_bytes(granted)} of the"
                f" {format_bytes(asked)} asked for: sysctl -w net.core.rmem_max={asked}",
            )
        asked, granted = port.send_buffer_asked_bytes, port.send_buffer_granted_bytes
        if granted < asked:
            yield Finding(
                40,
                f"send buffers of {port.address} have {format_bytes(granted)} of the"
                f" {format_bytes(asked)} asked for: sysctl -w net.core.wmem_max={asked}",
            )
        blocked = port.send_outcomes.get("would_block", 0)
        if blocked:
            yield Finding(
                35,
                f"send buffers of {port.address} were full {blocked:,} times: the interface"
                f" {port.interface} is slower than this process",
            )


def _offloads(observed: Observed) -> _Said:
    for port in observed.ports:
        if not port.gso:
            yield Finding(
                80,
                f"no GSO (UDP_SEGMENT) on the {port.senders} sending sockets of {port.address}:"
                " every packet sent costs a system call; Linux 4.18 has it (MRC_GSO must not be"
                " 0)",
            )
        elif port.gso_refused:
            yield Finding(
                80,
                f"GSO was refused on {port.gso_refused} of {port.senders} sockets of"
                f" {port.address}: every packet sent there costs a system call",
            )
        if not port.gro:
            yield Finding(
                80,
                f"no GRO (UDP_GRO) on the receiving socket of {port.address}: every packet"
                " received costs a system call; Linux 5.0 has it (and MRC_GRO must not be 0)",
            )
        if not port.ecn:
            yield Finding(
                30, f"no ECN on the sockets of {port.address}: marks of switches are not seen"
            )
        if port.gso and port.gro and port.ecn:
            yield Finding(
                12,
                f"GSO, GRO and ECN work on all {port.senders + 1} sockets of {port.address}:"
                f" {_each(port.sent_datagrams, port.send_calls)} packets a call sent,"
                f" {_each(port.received_datagrams, port.receive_calls)} received",
            )


def _each(amount: int, calls: int) -> str:
    return f"{amount / calls:.1f}" if calls > 0 else "no"


def _path_mtu(observed: Observed) -> _Said:
    mtu = observed.qp.mtu_bytes
    for port in observed.ports:
        fits = port.link_mtu_bytes - AROUND_PAYLOAD_BYTES_MAX
        if mtu >= MTU_BYTES_MAX:
            yield Finding(
                10,
                f"plane {port.plane}: path MTU {mtu}, interface {port.interface} carries"
                f" {port.link_mtu_bytes} bytes",
            )
        elif fits < 2 * mtu:
            wanted = MTU_BYTES_MAX + AROUND_PAYLOAD_BYTES_MAX
            yield Finding(
                55,
                f"plane {port.plane}: path MTU {mtu}, because interface {port.interface}"
                f" carries {port.link_mtu_bytes} bytes: ip link set dev {port.interface} mtu"
                f" {wanted}, if the network takes it",
            )
        else:
            yield Finding(
                50,
                f"plane {port.plane}: path MTU {mtu}, less than interface {port.interface}"
                f" carries ({port.link_mtu_bytes} bytes): one side asked for it (-m), or the"
                " other side's interface has less",
            )


def _repetitions(observed: Observed) -> _Said:
    sent = observed.sent
    if sent.packets and sent.retransmitted_packets >= REPEATED_SHARE_MIN * sent.packets:
        share = 100 * sent.retransmitted_packets / sent.packets
        yield Finding(
            58,
            f"{share:.1f} % of {sent.packets:,} packets were sent again:"
            f" {sent.lost_packets:,} lost, {sent.trims:,} trimmed,"
            f" {sent.spurious_packets:,} given up too soon, {sent.timeouts:,} timeouts",
        )


def _short_runs(observed: Observed) -> _Said:
    """A system call costs the same whatever its length."""
    mtu, calls = observed.qp.mtu_bytes, sum(port.send_calls for port in observed.ports)
    whole = RUN_BYTES_MAX // (mtu + AROUND_PAYLOAD_BYTES_MAX)
    if not observed.writes or observed.kind is not Kind.BANDWIDTH or not calls:
        return
    each = observed.sent.packets / calls
    packets = -(-observed.wanted.message_bytes // mtu)
    if packets == 1 or each >= SHORT_RUN_SHARE * whole or not all(p.gso for p in observed.ports):
        return
    short = f"calls were short: {each:.1f} packets each of the {whole} that one takes; "
    if each >= SHORT_RUN_SHARE * packets / -(-packets // whole):
        yield Finding(
            60,
            f"{short}a message of {packets} packets is cut by itself, so multiples of"
            f" {format_bytes(whole * mtu)} fit best",
        )
    elif observed.window.looks:
        window = format_bytes(observed.window.cwnd_bytes // observed.window.looks)
        yield Finding(
            64,
            f"{short}a window of {window} is spread over all paths: fewer queue pairs (-q) or"
            " --paths make longer ones",
        )


def _small_messages(observed: Observed) -> _Said:
    size, mtu = observed.wanted.message_bytes, observed.qp.mtu_bytes
    if observed.writes and observed.kind is Kind.BANDWIDTH and size < mtu:
        yield Finding(
            62,
            f"messages of {size} bytes are a packet each and none fills one ({mtu} bytes):"
            " it is messages a second that count here, not bits",
        )


_RULES: tuple[Callable[[Observed], _Said], ...] = (
    _drops,
    _processor,
    _window,
    _small_messages,
    _short_runs,
    _buffers,
    _offloads,
    _path_mtu,
    _repetitions,
)
