"""What users do with mrc and what goes wrong meanwhile: files, loss, a path that dies."""

from __future__ import annotations

from benchmarks import file_variants, mrc_variants, peer_variants
from benchmarks.comparison import COUNT, GBPS, MIB, MS, RATIO, Comparison, RowSpec

_SEND, _LOSSY = "mrc-send", "mrc-send, 1% loss"

FILE = Comparison(
    "file",
    "mrc-send to mrc-recv: a real file, hashed, made durable and verified",
    {
        _SEND: file_variants.file_transfer,
        "mrc-send --insecure": file_variants.file_insecure,
        _LOSSY: file_variants.file_lossy,
        "aioquic": peer_variants.aioquic_default,
    },
    (
        RowSpec("file", GBPS, _SEND),
        RowSpec("file, --insecure", GBPS, "mrc-send --insecure"),
        RowSpec("file / --insecure", RATIO, _SEND, over=("mrc-send --insecure",)),
        RowSpec("file / aioquic default", RATIO, _SEND, over=("aioquic",)),
        RowSpec(
            "file: sender's peak memory", MIB, _SEND, "sender_peak_mib", must=250, better="less"
        ),
        RowSpec(
            "file: receiver's peak memory", MIB, _SEND, "receiver_peak_mib", must=250, better="less"
        ),
        RowSpec("file, 1% loss", GBPS, _LOSSY),
        RowSpec("file, 1% loss / loss-free", RATIO, _LOSSY, over=(_SEND,)),
        RowSpec("file, 1% loss: timeouts", COUNT, _LOSSY, "timeouts", must=0, better="less"),
        RowSpec("file: sha256 equal (1 = yes)", COUNT, _SEND, "sha256_equal", must=1),
        RowSpec("file: timeouts of the QP", COUNT, _SEND, "timeouts", must=0, better="less"),
    ),
    rounds=5,
    rounds_quick=1,
    seconds_max=37,
)

LOSS = Comparison(
    "loss",
    "1% of datagrams lost at random, in both directions, on all paths",
    {"mrc": mrc_variants.undisturbed, "mrc, 1% loss": mrc_variants.lossy},
    (
        RowSpec("1% loss", GBPS, "mrc, 1% loss"),
        RowSpec("1% loss / loss-free", RATIO, "mrc, 1% loss", over=("mrc",)),
        RowSpec("1% loss: timeouts", COUNT, "mrc, 1% loss", "timeouts", must=0, better="less"),
    ),
    rounds=5,
    rounds_quick=1,
    seconds_max=18,
)

DEAD_PATH = Comparison(
    "dead path",
    "one path of a running transfer loses all its datagrams, and heals",
    {"mrc": mrc_variants.dead_path},
    (
        RowSpec("dead path: loss to ASSUMED_BAD", MS, "mrc", "notice_ms", must=50, better="less"),
        RowSpec(
            "dead path: EVs blamed wrongly", COUNT, "mrc", "others_blamed", must=0, better="less"
        ),
        RowSpec("dead path: goodput / before", RATIO, "mrc", "recovered_ratio", must=0.9),
        RowSpec("dead path: worst 100 ms / before", RATIO, "mrc", "worst_bin_ratio"),
        RowSpec("dead path: first 100 ms at 90%", MS, "mrc", "recover_ms", better="less"),
        RowSpec("dead path: healed to GOOD", MS, "mrc", "heal_ms", must=2000, better="less"),
        RowSpec("dead path: timeouts of the QP", COUNT, "mrc", "timeouts", better="less"),
    ),
    rounds=5,
    rounds_quick=1,
    seconds_max=21,
)
