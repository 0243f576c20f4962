"""Other transports on the same machine, each in its best setting that we know of.

aioquic encrypts, which mrc does not yet: a ratio to it compares what a user gets, not equal work.
"""

from __future__ import annotations

import importlib.util
from dataclasses import asdict

from benchmarks.child import MeasurementError, MissingError, worker
from benchmarks.comparison import GOODPUT, Outcome
from benchmarks.context import Context
from benchmarks.quic_worker import Job

START_TIMEOUT_S = 20.0
UPLOAD_TIMEOUT_S = 60.0
DATAGRAM_BYTES_DEFAULT = 1200
DATAGRAM_BYTES_MRC = 4136
"""What mrc sends: 4096 bytes of payload, headers and checksum."""
CONGESTION_CONTROLS = ("reno", "cubic")


async def aioquic_default(context: Context) -> Outcome:
    """Upload over one stream with datagrams of aioquic's default size."""
    return await _best(DATAGRAM_BYTES_DEFAULT, context.settings.quic_bytes)


async def aioquic_large(context: Context) -> Outcome:
    """Upload over one stream with datagrams as large as those of mrc."""
    upload_bytes = context.settings.quic_bytes * DATAGRAM_BYTES_MRC // DATAGRAM_BYTES_DEFAULT
    return await _best(DATAGRAM_BYTES_MRC, upload_bytes)


async def _best(datagram_bytes: int, upload_bytes: int) -> Outcome:
    """The better one of the congestion controls that aioquic has."""
    goodputs = {}
    for name in CONGESTION_CONTROLS:
        job = Job(congestion_control=name, datagram_bytes=datagram_bytes, upload_bytes=upload_bytes)
        goodputs[f"{name}_gbps"] = await _upload(job)
    return Outcome({GOODPUT: max(goodputs.values()), **goodputs})


async def _upload(job: Job) -> float:
    """Run both processes and return gigabits a second."""
    if importlib.util.find_spec("aioquic") is None:
        raise MissingError("aioquic is not installed")
    plain = asdict(job)
    async with worker("quic_worker", "serve", plain) as server:
        plain |= await server.receive(START_TIMEOUT_S)
        async with worker("quic_worker", "upload", plain) as client:
            result = await client.receive(UPLOAD_TIMEOUT_S)
    if result["bytes"] != job.upload_bytes:
        raise MeasurementError(f"aioquic: {result['bytes']} of {job.upload_bytes} bytes arrived")
    return float(result["bytes"] * 8 / result["seconds"] / 1e9)
