"""`mrc-send` and `mrc-recv` moving a real file, as a user runs them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from benchmarks.child import Child, MeasurementError, MissingError, running
from benchmarks.comparison import GOODPUT, Outcome
from benchmarks.context import Context, sha256_of

START_TIMEOUT_S = 20.0
TRANSFER_TIMEOUT_S = 90.0
SCHEME = "mrc://"
MIB = 1 << 20
FAULTY_SEND = Path(__file__).resolve().parent.parent / "faulty_send.py"
LOSS = 0.01


async def file_transfer(context: Context) -> Outcome:
    """Move the file as the defaults are: sealed, and durable before the receiver says done."""
    return await _transfer(context, ("mrc-send",))


async def file_insecure(context: Context) -> Outcome:
    """Move it without the lock."""
    return await _transfer(context, ("mrc-send",), insecure=True)


async def file_lossy(context: Context) -> Outcome:
    """Move it with the sender's datagrams lost at random on all paths."""
    return await _transfer(context, (sys.executable, str(FAULTY_SEND), "--loss", str(LOSS), "--"))


async def _transfer(
    context: Context, sender_command: tuple[str, ...], *, insecure: bool = False
) -> Outcome:
    """Move the file with this sender, and check what arrived."""
    lock = ("--insecure",) if insecure else ()
    for command in ("mrc-recv", "mrc-send"):
        if shutil.which(command) is None:
            raise MissingError(f"{command} is not installed")
    source = await context.source_file()
    out = context.folder / "received"
    receive = ("mrc-recv", "--listen", "127.0.0.1:0", "--out", str(out), "--once", "--quiet", *lock)
    try:
        async with running("mrc-recv", *receive) as receiver:
            url = await _url(receiver)
            paths = str(context.settings.paths)
            send = (*sender_command, str(source.path), url, "--paths", paths, "--json", *lock)
            async with running("mrc-send", *send) as sender:
                document = await sender.document(TRANSFER_TIMEOUT_S)
            status = await receiver.wait(START_TIMEOUT_S)
        if status != 0:
            raise MeasurementError(f"mrc-recv ended with status {status}")
        if await sha256_of(out / source.path.name) != source.sha256:
            raise MeasurementError("the received file differs from the one that was sent")
    finally:
        shutil.rmtree(out, ignore_errors=True)
    end = document["end"]
    metrics = {
        GOODPUT: end["goodput_bits_per_second"] / 1e9,
        "sender_peak_mib": sender.peak_resident_bytes / MIB,
        "receiver_peak_mib": receiver.peak_resident_bytes / MIB,
        "sha256_equal": 1,
        "timeouts": end["counters"]["requestor"]["timeouts"],
    }
    return Outcome(metrics)


async def _url(receiver: Child) -> str:
    """Return what the receiver prints for a sender to paste."""
    while True:
        line = (await receiver.line(START_TIMEOUT_S)).strip()
        if line.startswith(SCHEME):
            return line
