"""iperf3 over loopback, one stream: the kernel's TCP, and bare UDP datagrams."""

from __future__ import annotations

import shutil
from typing import Any

from benchmarks.child import START_TIMEOUT_S, TRANSFER_TIMEOUT_S, MissingError, free_port, running
from benchmarks.comparison import GOODPUT, Outcome
from benchmarks.context import Context

SECONDS = "1"
"""The least it knows."""
UDP_BYTES = "4136"
UDP_BUFFER = "4M"


async def tcp(_context: Context) -> Outcome:
    """Send one TCP stream, from one buffer again and again, as iperf3 does."""
    end = await _iperf3()
    return Outcome({GOODPUT: end["sum_received"]["bits_per_second"] / 1e9})


async def udp(_context: Context) -> Outcome:
    """Send UDP datagrams as large as those of mrc, one a system call, as fast as it can."""
    end = await _iperf3("-u", "-b", "0", "-l", UDP_BYTES, "-w", UDP_BUFFER)
    total = end["sum"]
    arrived = 1 - total["lost_packets"] / total["packets"]
    return Outcome({GOODPUT: total["bits_per_second"] * arrived / 1e9})


async def _iperf3(*options: str) -> dict[str, Any]:
    """Run a server for one test, and a client; return the end of what the client tells."""
    if shutil.which("iperf3") is None:
        raise MissingError("iperf3 is not installed (apt-get install iperf3)")
    port = str(free_port())
    command = ("iperf3", "-s", "-1", "--forceflush", "-B", "127.0.0.1", "-p", port)
    async with running("iperf3 server", *command) as server:
        while "listening" not in await server.line(START_TIMEOUT_S):
            pass
        client = ("iperf3", "-c", "127.0.0.1", "-p", port, "-t", SECONDS, "-J", *options)
        async with running("iperf3", *client) as child:
            document = await child.document(TRANSFER_TIMEOUT_S)
    end: dict[str, Any] = document["end"]
    return end
