"""One stream over loopback: mrc, the ceiling above it, and what users would take instead."""

from __future__ import annotations

from benchmarks import iperf_variants, mrc_variants, peer_variants, raw_variants
from benchmarks.comparison import COUNT, GBPS, RATIO, Comparison, RowSpec

CEILING = ("ceiling, placed",)
"""Whoever checks a packet before it may touch memory moves each payload twice at the receiver."""
SCATTERED = ("ceiling, scattered",)
PEERS = ("SRT", "UDT", "ENet", "KCP", "picoquic")
"""Reliable transports over UDP in C, with the packets they have by default."""
PEERS_LARGE = (*PEERS, "UDT 4136 B", "KCP 4136 B")

_PLAIN = "mrc"
_WALKING = "payloads walking through 64 MiB on both sides"

COMPARISON = Comparison(
    "goodput",
    f"one stream in two processes, {_WALKING}, and peers",
    {
        "ceiling, hot": raw_variants.ceiling_hot,
        "ceiling, walking": raw_variants.ceiling_walking,
        "ceiling, zero copy": raw_variants.ceiling_zero_copy,
        "ceiling, scattered": raw_variants.ceiling_scattered,
        "ceiling, placed": raw_variants.ceiling_placed,
        "mrc, no iCRC": mrc_variants.without_icrc,
        _PLAIN: mrc_variants.undisturbed,
        "mrc, locked": mrc_variants.locked,
        "iperf3 UDP": iperf_variants.udp,
        "iperf3 TCP": iperf_variants.tcp,
        "TCP, walking": raw_variants.tcp_walking,
        "MPTCP": raw_variants.mptcp,
        "aioquic 4136 B": peer_variants.aioquic_large,
        "aioquic": peer_variants.aioquic_default,
        "SRT": peer_variants.srt,
        "UDT": peer_variants.udt,
        "UDT 4136 B": peer_variants.udt_large,
        "ENet": peer_variants.enet,
        "KCP": peer_variants.kcp,
        "KCP 4136 B": peer_variants.kcp_large,
        "picoquic": peer_variants.picoquic,
    },
    (
        RowSpec("mrc, iCRC off", GBPS, "mrc, no iCRC"),
        RowSpec("mrc, iCRC on", GBPS, _PLAIN),
        RowSpec("mrc, locked (AEAD and iCRC)", GBPS, "mrc, locked"),
        RowSpec("UDP GSO+GRO from Python, hot", GBPS, "ceiling, hot"),
        RowSpec("UDP GSO+GRO, walking", GBPS, "ceiling, walking"),
        RowSpec("the same with MSG_ZEROCOPY", GBPS, "ceiling, zero copy"),
        RowSpec("UDP GSO+GRO, walking, scattered", GBPS, "ceiling, scattered"),
        RowSpec("UDP GSO+GRO, walking, placed", GBPS, "ceiling, placed"),
        RowSpec("iperf3 UDP, 4136 B", GBPS, "iperf3 UDP"),
        RowSpec("iperf3 TCP (hot)", GBPS, "iperf3 TCP"),
        RowSpec("TCP, walking", GBPS, "TCP, walking"),
        RowSpec("kernel MPTCP, walking", GBPS, "MPTCP"),
        RowSpec("aioquic, 4136 B", GBPS, "aioquic 4136 B"),
        RowSpec("aioquic, 1200 B (default)", GBPS, "aioquic"),
        RowSpec("SRT, file mode", GBPS, "SRT"),
        RowSpec("UDT", GBPS, "UDT"),
        RowSpec("UDT, 4136 B", GBPS, "UDT 4136 B"),
        RowSpec("ENet", GBPS, "ENet"),
        RowSpec("KCP", GBPS, "KCP"),
        RowSpec("KCP, 4136 B", GBPS, "KCP 4136 B"),
        RowSpec("picoquic", GBPS, "picoquic"),
        RowSpec(
            "iCRC off / ceiling, placed", RATIO, "mrc, no iCRC", over=CEILING, must=0.4, aim=0.55
        ),
        RowSpec("iCRC on / ceiling, placed", RATIO, _PLAIN, over=CEILING, must=0.3, aim=0.45),
        RowSpec("iCRC off / ceiling, scattered", RATIO, "mrc, no iCRC", over=SCATTERED),
        RowSpec("MSG_ZEROCOPY / a copy", RATIO, "ceiling, zero copy", over=("ceiling, walking",)),
        RowSpec("mrc / iperf3 UDP", RATIO, _PLAIN, over=("iperf3 UDP",), must=1.6, aim=2.3),
        RowSpec("mrc / aioquic 4136 B", RATIO, _PLAIN, over=("aioquic 4136 B",), must=30, aim=50),
        RowSpec("mrc / aioquic default", RATIO, _PLAIN, over=("aioquic",)),
        RowSpec("mrc / best C peer", RATIO, _PLAIN, over=PEERS, must=3, aim=6),
        RowSpec("mrc / best C peer, packets alike", RATIO, _PLAIN, over=PEERS_LARGE),
        RowSpec("mrc / iperf3 TCP", RATIO, _PLAIN, over=("iperf3 TCP",)),
        RowSpec("mrc / kernel MPTCP", RATIO, _PLAIN, over=("MPTCP",)),
        RowSpec("locked / not", RATIO, "mrc, locked", over=(_PLAIN,), must=0.45, aim=0.6),
        RowSpec("iCRC on / off", RATIO, _PLAIN, over=("mrc, no iCRC",)),
        RowSpec("sender's processor time", "s/GiB", _PLAIN, "sender_cpu_s_per_gib", better="less"),
        RowSpec(
            "receiver's processor time", "s/GiB", _PLAIN, "receiver_cpu_s_per_gib", better="less"
        ),
        RowSpec("slowest / fastest 100 ms", RATIO, _PLAIN, "steadiness_ratio"),
        RowSpec("timeouts of the QP", COUNT, _PLAIN, "timeouts", must=0, aim=0, better="less"),
        RowSpec("EVs withdrawn", COUNT, _PLAIN, "withdrawn_evs", must=0, aim=0, better="less"),
    ),
    rounds=5,
    rounds_quick=1,
    seconds_max=108,
)
