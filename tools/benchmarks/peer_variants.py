"""Reliable transports over UDP that others made, each in its best setting that we know of.

QUIC encrypts; SRT, UDT, ENet and KCP do not here, and neither does mrc where it is not said.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
from dataclasses import asdict

from benchmarks import enet_worker, quic_worker, stream_worker
from benchmarks.child import (
    START_TIMEOUT_S,
    TRANSFER_TIMEOUT_S,
    MeasurementError,
    MissingError,
    free_port,
    running,
    transfer,
    worker,
)
from benchmarks.clibrary import LIBRARIES
from benchmarks.comparison import GOODPUT, Outcome
from benchmarks.context import Context
from benchmarks.raw_variants import goodput_gbps

UPLOAD_TIMEOUT_S = 60.0
DATAGRAM_BYTES_DEFAULT = 1200
DATAGRAM_BYTES_MRC = 4136
"""What mrc sends: 4096 bytes of payload, headers and checksum."""
IP_UDP_BYTES = 28
MSS_BYTES_DEFAULT = 1500
ENET_MTU_BYTES_MAX = 4096
KCP_MTU_BYTES_DEFAULT = 1400
PICOQUIC = "picoquicdemo"
PICOQUIC_BYTES = 192 << 20
_PICOQUIC_RATE = re.compile(r"bytes in [\d.]+ seconds, ([\d.]+) Mbps")


async def aioquic_default(context: Context) -> Outcome:
    """Upload over one stream with datagrams of aioquic's default size."""
    return await _upload(DATAGRAM_BYTES_DEFAULT, context.settings.quic_bytes)


async def aioquic_large(context: Context) -> Outcome:
    """Upload over one stream with datagrams as large as those of mrc."""
    upload_bytes = context.settings.quic_bytes * DATAGRAM_BYTES_MRC // DATAGRAM_BYTES_DEFAULT
    return await _upload(DATAGRAM_BYTES_MRC, upload_bytes)


async def _upload(datagram_bytes: int, upload_bytes: int) -> Outcome:
    """Run both processes, with reno: as good as cubic with small datagrams, better with large."""
    if importlib.util.find_spec("aioquic") is None:
        raise MissingError("aioquic is not installed (pip install aioquic)")
    plain = asdict(
        quic_worker.Job(
            congestion_control="reno", datagram_bytes=datagram_bytes, upload_bytes=upload_bytes
        )
    )
    async with worker("quic_worker", "serve", plain) as server:
        plain |= await server.receive(START_TIMEOUT_S)
        async with worker("quic_worker", "upload", plain) as client:
            result = await client.receive(UPLOAD_TIMEOUT_S)
    if result["bytes"] != upload_bytes:
        raise MeasurementError(f"aioquic: {result['bytes']} of {upload_bytes} bytes arrived")
    return Outcome({GOODPUT: result["bytes"] * 8 / result["seconds"] / 1e9})


async def srt(context: Context) -> Outcome:
    """Send a stream with SRT in file mode; it connects with no larger packets than by default."""
    return await _stream(context, "srt", MSS_BYTES_DEFAULT)


async def udt(context: Context) -> Outcome:
    """Send a stream with UDT and its default packets."""
    return await _stream(context, "udt", MSS_BYTES_DEFAULT)


async def udt_large(context: Context) -> Outcome:
    """Send a stream with UDT and packets as large as those of mrc."""
    return await _stream(context, "udt", DATAGRAM_BYTES_MRC + IP_UDP_BYTES)


async def _stream(context: Context, name: str, mss_bytes: int) -> Outcome:
    _require_library(LIBRARIES[name].file, LIBRARIES[name].package)
    job = stream_worker.Job(library=name, mss_bytes=mss_bytes, seconds=context.settings.seconds)
    _, received = await transfer("stream_worker", asdict(job))
    return Outcome({GOODPUT: goodput_gbps(received)})


async def enet(context: Context) -> Outcome:
    """Send reliable packets with ENet; its window of 64 KiB is the limit, not its packets."""
    _require_library(enet_worker.LIBRARY, enet_worker.PACKAGE)
    job = enet_worker.Job(mtu_bytes=ENET_MTU_BYTES_MAX, seconds=context.settings.seconds)
    _, received = await transfer("enet_worker", asdict(job))
    return Outcome({GOODPUT: goodput_gbps(received)})


def _require_library(file: str, package: str) -> None:
    try:
        ctypes.CDLL(file)
    except OSError as error:
        raise MissingError(f"{file} is not installed (apt-get install {package})") from error


async def kcp(context: Context) -> Outcome:
    """Send messages with KCP and its default packets: the C core, packets moved by Python."""
    return await _kcp(context, KCP_MTU_BYTES_DEFAULT)


async def kcp_large(context: Context) -> Outcome:
    """Send messages with KCP and packets as large as those of mrc."""
    return await _kcp(context, DATAGRAM_BYTES_MRC)


async def _kcp(context: Context, mtu_bytes: int) -> Outcome:
    if importlib.util.find_spec("kcp") is None:
        raise MissingError("kcp is not installed (pip install kcp, which needs a C compiler)")
    job = {"mtu_bytes": mtu_bytes, "seconds": context.settings.seconds}
    _, received = await transfer("kcp_worker", job)
    return Outcome({GOODPUT: goodput_gbps(received)})


async def picoquic(context: Context) -> Outcome:
    """Download with picoquic's example program, where somebody has built it."""
    if shutil.which(PICOQUIC) is None:
        raise MissingError(f"{PICOQUIC} is not on PATH (no package has it: build picoquic)")
    certificate, key = quic_worker.make_certificate()
    certificate_file, key_file = context.folder / "quic.pem", context.folder / "quic.key"
    certificate_file.write_bytes(certificate)
    key_file.write_bytes(key)
    port = str(free_port())
    shared = ("-p", port, "-G", "cubic")
    serve = (PICOQUIC, "-c", str(certificate_file), "-k", str(key_file), *shared)
    download = (PICOQUIC, "-D", "-n", quic_worker.HOST, "-G", "cubic", "127.0.0.1", port)
    # The client repeats its first packets until the server, which says nothing, is there.
    async with (
        running("picoquic server", *serve),
        running("picoquic", *download, f"0:/{PICOQUIC_BYTES}") as client,
    ):
        text = await client.text(TRANSFER_TIMEOUT_S)
    found = _PICOQUIC_RATE.search(text)
    if found is None:
        raise MeasurementError("picoquic told no rate")
    return Outcome({GOODPUT: float(found[1]) / 1e3})
