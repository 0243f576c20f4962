"""What limits a run: each rule speaks when its numbers say so, and only then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mrc
from mrc.perf.conversation import Round
from mrc.perf.explain import findings
from mrc.perf.kernel import busy_percent, host_counters, udp_errors
from mrc.perf.measures import SenderFigures
from mrc.perf.probe import Observed, WindowLooks
from mrc.perf.settings import Kind

SECOND_NS = 1_000_000_000
PORT = mrc.PortFacts(
    plane=0,
    address="192.0.2.7",
    udp_port=4971,
    interface="eth0",
    link_mtu_bytes=9000,
    link_bits_per_second=None,
    receive_buffer_asked_bytes=4 << 20,
    receive_buffer_granted_bytes=4 << 20,
    received_datagrams=100,
    receive_calls=10,
    kernel_drops=0,
    gso=True,
    gro=True,
    ecn=True,
    senders=20,
    send_buffer_asked_bytes=1 << 20,
    send_buffer_granted_bytes=1 << 20,
    sent_datagrams=15_000,
    send_calls=1000,
    gso_refused=0,
    send_outcomes={},
)
QP = mrc.QpFacts(
    cipher=None,
    icrc=True,
    mtu_bytes=4096,
    planes=1,
    mpr_bytes=16 << 20,
    window_bytes_max=1 << 20,
    receive_buffer_window_bytes=1 << 20,
)
SENT = SenderFigures(100, 100 << 20, SECOND_NS, SECOND_NS // 2, 15_000, 0, 0, 0, 0, 0)
IDLE_CORES = {0: 50.0, 1: 10.0}


def observed(**changes: Any) -> Observed:
    """Return what a side saw that nothing limits, but for the changes."""
    usual = {
        "kind": Kind.BANDWIDTH,
        "wanted": Round(1 << 20, 0, 128),
        "writes": True,
        "qp": QP,
        "sent": SENT,
        "ports": (PORT,),
        "window": WindowLooks(20, 1, 20 << 20),
        "core_percents": IDLE_CORES,
    }
    return Observed(**{**usual, **changes})


def first(**changes: Any) -> str:
    """Return the most important sentence."""
    return findings(observed(**changes))[0].text


def port(**changes: Any) -> tuple[mrc.PortFacts, ...]:
    """Return one port, changed."""
    return (replace(PORT, **changes),)


def window(*, full: int = 0, cwnd_bytes: int = 1 << 20) -> WindowLooks:
    """Return twenty looks at a window."""
    return WindowLooks(20, full, 20 * cwnd_bytes)


LIMITS: dict[str, tuple[dict[str, Any], str]] = {
    "drops": (
        {"ports": port(kernel_drops=7)},
        "the kernel dropped 7 datagrams at 192.0.2.7 UDP port 4971",
    ),
    "a full core": (
        {"sent": replace(SENT, cpu_ns=95 * SECOND_NS // 100)},
        "the processor is the limit: this process used 95 % of one core",
    ),
    "a full host": ({"core_percents": {0: 99.0, 1: 98.0}}, "this host is full"),
    "no gso": ({"ports": port(gso=False)}, "no GSO"),
    "no gro": ({"ports": port(gro=False)}, "no GRO"),
    "gso refused": ({"ports": port(gso_refused=3)}, "GSO was refused on 3 of 20 sockets"),
    "receive buffer": (
        {"ports": port(receive_buffer_granted_bytes=212_992)},
        "sysctl -w net.core.rmem_max=4194304",
    ),
    "send buffer": (
        {"ports": port(send_buffer_granted_bytes=212_992)},
        "sysctl -w net.core.wmem_max=1048576",
    ),
    "receiver's window": ({"window": window(full=20)}, "half of the peer's receive buffers"),
    "the links": (
        {"window": window(full=20), "qp": replace(QP, receive_buffer_window_bytes=1 << 22)},
        "what the links hold",
    ),
    "congestion control": (
        {"window": window(full=20, cwnd_bytes=1 << 16)},
        "congestion control is the limit",
    ),
    "depth": ({"wanted": Round(1 << 16, 0, 2)}, "raise -t"),
    "small messages": ({"wanted": Round(64, 0, 128)}, "messages of 64 bytes"),
    "messages that do not fit": (
        {"sent": replace(SENT, packets=8000), "wanted": Round(1 << 16, 0, 128)},
        "calls were short: 8.0 packets each of the 15 that one takes; a message of 16 packets",
    ),
    "a window in pieces": (
        {"sent": replace(SENT, packets=2000), "window": window(cwnd_bytes=1 << 17)},
        "calls were short: 2.0 packets each of the 15 that one takes; a window of 128.0 KiB",
    ),
    "mtu of the interface": (
        {
            "ports": port(link_mtu_bytes=1500),
            "qp": replace(QP, mtu_bytes=1024),
            "sent": replace(SENT, packets=60_000),
        },
        "ip link set dev eth0 mtu 4224",
    ),
    "mtu of the peer": (
        {"qp": replace(QP, mtu_bytes=1024), "sent": replace(SENT, packets=60_000)},
        "one side asked for it (-m)",
    ),
    "repetitions": (
        {"sent": replace(SENT, retransmitted_packets=150, lost_packets=150)},
        "1.0 % of 15,000 packets were sent again: 150 lost",
    ),
    "others' drops": ({"udp_errors": {"RcvbufErrors": 9}}, "other UDP sockets of this host lost 9"),
    "send errors": ({"udp_errors": {"SndbufErrors": 5}}, "could not send 5 datagrams"),
    "slow interface": ({"ports": port(send_outcomes={"would_block": 4})}, "were full 4 times"),
    "no ecn": ({"ports": port(ecn=False)}, "no ECN on the sockets"),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_what_limits_a_run_is_said_first(limit: str) -> None:
    """One thing out of order comes before all that is in order, with its number and its remedy."""
    changes, words = LIMITS[limit]
    assert words in first(**changes)


def test_where_nothing_stands_out_no_limit_is_made_up() -> None:
    """What is in order is told with little weight and no remedy."""
    for finding in findings(observed()):
        assert finding.weight <= 20
        assert "sysctl" not in finding.text


def test_a_side_that_only_receives_has_no_window_to_speak_of() -> None:
    """Windows, depths and runs are the sender's."""
    for finding in findings(observed(writes=False, window=window(full=20))):
        assert "window" not in finding.text


def test_drops_weigh_more_than_a_full_core() -> None:
    """Of several limits the one that loses data comes first."""
    told = findings(
        observed(sent=replace(SENT, cpu_ns=SECOND_NS), ports=port(kernel_drops=1, gro=False))
    )
    assert [text.text.split()[1] for text in told[:3]] == ["kernel", "processor", "GRO"]


STAT = """\
cpu  300 0 100 700 100 0 0 0 50 0
cpu0 {busy} 0 0 {idle} 0 0 0 0 0 0
intr 1 2 3
"""
SNMP = """\
Ip: Forwarding
Ip: 1
Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors
Udp: 10 0 0 10 {errors} 0
"""
SNMP6 = "Ip6InReceives 5\nUdp6RcvbufErrors 2\nUdp6InDatagrams 3\n"


def _proc(folder: Path, *, busy: int, idle: int, errors: int) -> Path:
    (folder / "net").mkdir(parents=True)
    (folder / "stat").write_text(STAT.format(busy=busy, idle=idle))
    (folder / "net" / "snmp").write_text(SNMP.format(errors=errors))
    (folder / "net" / "snmp6").write_text(SNMP6)
    return folder


def test_cores_and_errors_are_differences_of_the_kernels_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IPv4 and IPv6 count together; only cores that this process may use are looked at."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    before = host_counters(_proc(tmp_path / "a", busy=100, idle=100, errors=1))
    after = host_counters(_proc(tmp_path / "b", busy=175, idle=125, errors=4))
    assert busy_percent(before, after) == {0: 75.0}
    assert before.udp["RcvbufErrors"] == 3
    assert udp_errors(before, after) == {"RcvbufErrors": 3}


def test_a_host_without_proc_says_nothing(tmp_path: Path) -> None:
    """What cannot be read is not spoken of."""
    nothing = host_counters(tmp_path)
    assert busy_percent(nothing, nothing) == {}
    assert udp_errors(nothing, nothing) == {}
