"""What there is to measure. A new row goes here: a variant, and the numbers told of it."""

from __future__ import annotations

from benchmarks import file_variants, mrc_variants, peer_variants
from benchmarks.comparison import Comparison, RowSpec

GBPS = "Gbit/s"
RATIO = "ratio"
COUNT = "count"
MIB = "MiB"

COMPARISONS = (
    Comparison(
        "loopback",
        "memory to memory in two processes, and aioquic's single-stream upload",
        {
            "mrc": mrc_variants.undisturbed,
            "mrc, no iCRC": mrc_variants.without_icrc,
            "mrc, locked": mrc_variants.locked,
            "aioquic 1200 B": peer_variants.aioquic_default,
            "aioquic 4136 B": peer_variants.aioquic_large,
        },
        (
            RowSpec("mrc, iCRC on", GBPS, "mrc"),
            RowSpec("mrc, iCRC off", GBPS, "mrc, no iCRC"),
            RowSpec("mrc, locked", GBPS, "mrc, locked"),
            RowSpec("aioquic, 1200 B datagrams", GBPS, "aioquic 1200 B"),
            RowSpec("aioquic, 4136 B datagrams", GBPS, "aioquic 4136 B"),
            RowSpec("mrc / aioquic 1200 B", RATIO, "mrc", over="aioquic 1200 B"),
            RowSpec("mrc / aioquic 4136 B", RATIO, "mrc", over="aioquic 4136 B"),
            RowSpec("iCRC on / off", RATIO, "mrc", over="mrc, no iCRC"),
            RowSpec("locked / not", RATIO, "mrc, locked", over="mrc", wanted=">= 0.45"),
            RowSpec("mrc: sender's processor time", "s/GiB", "mrc", "sender_cpu_s_per_gib"),
            RowSpec("mrc: receiver's processor time", "s/GiB", "mrc", "receiver_cpu_s_per_gib"),
            RowSpec("mrc: slowest / fastest 100 ms", RATIO, "mrc", "steadiness_ratio"),
            RowSpec("mrc: timeouts of the QP", COUNT, "mrc", "timeouts", wanted="0"),
            RowSpec("mrc: EVs withdrawn", COUNT, "mrc", "withdrawn_evs", wanted="0"),
        ),
        rounds=5,
        rounds_quick=2,
        seconds_max=90,
    ),
    Comparison(
        "file",
        "mrc-send to mrc-recv: a real file, hashed, made durable and verified",
        {
            "mrc-send": file_variants.file_transfer,
            "mrc-send --insecure": file_variants.file_insecure,
            "mrc-send, 1% loss": file_variants.file_lossy,
            "aioquic 1200 B": peer_variants.aioquic_default,
            "aioquic 4136 B": peer_variants.aioquic_large,
        },
        (
            RowSpec("file", GBPS, "mrc-send"),
            RowSpec("file, --insecure", GBPS, "mrc-send --insecure"),
            RowSpec("file / --insecure", RATIO, "mrc-send", over="mrc-send --insecure"),
            RowSpec(
                "file / aioquic 1200 B", RATIO, "mrc-send", over="aioquic 1200 B", wanted=">= 15"
            ),
            RowSpec("file / aioquic 4136 B", RATIO, "mrc-send", over="aioquic 4136 B"),
            RowSpec(
                "file: sender's peak memory", MIB, "mrc-send", "sender_peak_mib", wanted="< 250"
            ),
            RowSpec(
                "file: receiver's peak memory", MIB, "mrc-send", "receiver_peak_mib", wanted="< 250"
            ),
            RowSpec("file, 1% loss", GBPS, "mrc-send, 1% loss"),
            RowSpec(
                "file, 1% loss / loss-free",
                RATIO,
                "mrc-send, 1% loss",
                over="mrc-send",
                wanted=">= 0.85",
            ),
            RowSpec("file, 1% loss: timeouts", COUNT, "mrc-send, 1% loss", "timeouts", wanted="0"),
            RowSpec("file: sha256 equal", "1 = yes", "mrc-send", "sha256_equal", wanted="1"),
            RowSpec("file: timeouts of the QP", COUNT, "mrc-send", "timeouts", wanted="0"),
        ),
        rounds=3,
        rounds_quick=1,
        seconds_max=75,
    ),
    Comparison(
        "loss",
        "1% of datagrams lost at random, in both directions, on all paths",
        {"mrc": mrc_variants.undisturbed, "mrc, 1% loss": mrc_variants.lossy},
        (
            RowSpec("1% loss", GBPS, "mrc, 1% loss"),
            RowSpec("1% loss / loss-free", RATIO, "mrc, 1% loss", over="mrc"),
            RowSpec("1% loss: timeouts of the QP", COUNT, "mrc, 1% loss", "timeouts", wanted="0"),
        ),
        rounds=5,
        rounds_quick=2,
        seconds_max=40,
    ),
    Comparison(
        "dead path",
        "one path of a running transfer loses all its datagrams, and heals",
        {"mrc": mrc_variants.dead_path},
        (
            RowSpec("dead path: loss to ASSUMED_BAD", "ms", "mrc", "notice_ms", wanted="<= 50"),
            RowSpec("dead path: other EVs blamed", COUNT, "mrc", "others_blamed", wanted="0"),
            RowSpec(
                "dead path: goodput / before", RATIO, "mrc", "recovered_ratio", wanted=">= 0.9"
            ),
            RowSpec("dead path: worst 100 ms / before", RATIO, "mrc", "worst_bin_ratio"),
            RowSpec("dead path: first 100 ms at 90%", "ms", "mrc", "recover_ms"),
            RowSpec("dead path: healed to GOOD", "ms", "mrc", "heal_ms", wanted="<= 2000"),
            RowSpec("dead path: timeouts of the QP", COUNT, "mrc", "timeouts"),
        ),
        rounds=5,
        rounds_quick=1,
        seconds_max=30,
    ),
)
