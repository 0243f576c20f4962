"""Ceilings and floors: what plain Python, and the kernel's own transports, do on this machine."""

from __future__ import annotations

import socket
from dataclasses import asdict

from benchmarks import ceiling_worker, echo_worker, kernel_worker
from benchmarks.child import MeasurementError, MissingError, transfer
from benchmarks.comparison import GOODPUT, Outcome
from benchmarks.context import Context

PAYLOAD_SHARE = ceiling_worker.PAYLOAD_BYTES / ceiling_worker.DATAGRAM_BYTES


async def ceiling_hot(context: Context) -> Outcome:
    """Send one buffer again and again."""
    return await _ceiling(context, "hot")


async def ceiling_walking(context: Context) -> Outcome:
    """Walk through 64 MiB on both sides, headers and payloads as they come."""
    return await _ceiling(context, "walking")


async def ceiling_scattered(context: Context) -> Outcome:
    """Walk through 64 MiB on both sides; the kernel gathers payloads there and scatters them."""
    return await _ceiling(context, "scattered")


async def ceiling_placed(context: Context) -> Outcome:
    """Walk through 64 MiB on both sides; payloads are copied there after they were received."""
    return await _ceiling(context, "placed")


async def ceiling_zero_copy(context: Context) -> Outcome:
    """Walk through 64 MiB on both sides, sent with MSG_ZEROCOPY."""
    return await _ceiling(context, "walking", zero_copy=True)


async def _ceiling(context: Context, memory: str, *, zero_copy: bool = False) -> Outcome:
    job = ceiling_worker.Job(
        memory=memory,
        sources=context.settings.paths,
        seconds=context.settings.seconds,
        zero_copy=zero_copy,
    )
    sent, received = await transfer("ceiling_worker", asdict(job))
    lost = 1 - received["total"] / sent["total"]
    return Outcome({GOODPUT: goodput_gbps(received) * PAYLOAD_SHARE, "lost_ratio": lost})


async def mptcp(context: Context) -> Outcome:
    """Send one MPTCP stream of the kernel."""
    protocol = getattr(socket, "IPPROTO_MPTCP", 262)
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol).close()
    except OSError as error:
        raise MissingError(f"MPTCP is not in this kernel, or off ({error.strerror})") from error
    job = kernel_worker.Job(protocol=protocol, seconds=context.settings.seconds)
    _, received = await transfer("kernel_worker", asdict(job))
    if not received["subflows"]:
        raise MeasurementError("the connection fell back to plain TCP")
    note = f"MPTCP: {received['subflows']} subflow, since loopback is one path"
    return Outcome({GOODPUT: goodput_gbps(received)}, (note,))


async def tcp_walking(context: Context) -> Outcome:
    """Send one TCP stream through as much memory as mrc walks through."""
    job = kernel_worker.Job(protocol=socket.IPPROTO_TCP, seconds=context.settings.seconds)
    _, received = await transfer("kernel_worker", asdict(job))
    return Outcome({GOODPUT: goodput_gbps(received)})


async def echo(context: Context) -> Outcome:
    """Measure the round trip of a bare UDP echo."""
    job = echo_worker.Job(seconds=context.settings.seconds)
    sent, _ = await transfer("echo_worker", asdict(job))
    return Outcome(sent)


def goodput_gbps(report: dict[str, float]) -> float:
    """Return what the meter of a receiver says, in gigabits a second.

    Raises:
        MeasurementError: too little arrived.
    """
    if not report["seconds"]:
        raise MeasurementError("nothing arrived after the warm-up")
    return report["bytes"] * 8 / report["seconds"] / 1e9
