"""The two processes of an upload over one QUIC stream with aioquic: `serve JOB` and `upload JOB`.

The server counts what comes and answers with the count when the stream ends; the client's clock
runs from its first write to that answer, as it does for mrc from the first write to the last
completion.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic_ns
from typing import Any

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent, StreamDataReceived
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from benchmarks.lines import emit, run
from mrc.units import NS_PER_S

ALPN = "upload"
HOST = "localhost"
WINDOW_BYTES = 1 << 30
"""Flow control never is the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the two sides do.

    Attributes:
        congestion_control: by aioquic's name: reno or cubic.
        datagram_bytes: largest UDP payload that is sent; aioquic's default is 1200.
        upload_bytes: size of the upload.
        port: where the server is, for the client.
        certificate: of the server in PEM, for the client.
    """

    congestion_control: str
    datagram_bytes: int
    upload_bytes: int
    port: int = 0
    certificate: str = ""

    def configuration(self, *, is_client: bool) -> QuicConfiguration:
        """Settings of a side, generous where that makes it faster."""
        return QuicConfiguration(
            alpn_protocols=[ALPN],
            congestion_control_algorithm=self.congestion_control,
            is_client=is_client,
            max_data=WINDOW_BYTES,
            max_datagram_size=self.datagram_bytes,
            max_stream_data=WINDOW_BYTES,
            server_name=HOST,
        )


class CountingServer(QuicConnectionProtocol):
    """Counts the bytes of a stream, and answers with their number."""

    received_bytes = 0

    def quic_event_received(self, event: QuicEvent) -> None:
        """Take what came."""
        if isinstance(event, StreamDataReceived):
            self.received_bytes += len(event.data)
            if event.end_stream:
                answer = str(self.received_bytes).encode()
                self._quic.send_stream_data(event.stream_id, answer, end_stream=True)
                self.transmit()


async def serve_uploads(job: Job) -> None:
    """Wait for uploads until ended from outside."""
    configuration = job.configuration(is_client=False)
    certificate, key = make_certificate()
    load_certificate(configuration, certificate + key)
    server = await serve(
        "127.0.0.1", 0, configuration=configuration, create_protocol=CountingServer
    )
    transport: Any = server._transport  # noqa: SLF001  # there is no other way to its port
    port = transport.get_extra_info("sockname")[1]
    emit({"port": port, "certificate": certificate.decode()})
    await asyncio.Event().wait()


def load_certificate(configuration: QuicConfiguration, pem: bytes) -> None:
    """Give a server its certificate and key, which aioquic takes from a file only."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(pem)
        file.flush()
        configuration.load_cert_chain(file.name)


async def upload(job: Job) -> None:
    """Upload zeros and tell how long it took."""
    configuration = job.configuration(is_client=True)
    configuration.load_verify_locations(cadata=job.certificate.encode())
    data = bytes(job.upload_bytes)
    async with connect("127.0.0.1", job.port, configuration=configuration) as client:
        reader, writer = await client.create_stream()
        began_ns = monotonic_ns()
        writer.write(data)
        writer.write_eof()
        answer = await reader.read()
        seconds = (monotonic_ns() - began_ns) / NS_PER_S
        emit({"bytes": int(answer), "seconds": seconds})


def make_certificate() -> tuple[bytes, bytes]:
    """Return a self-signed certificate for this run, and its key, both in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def main(role: str, job: str) -> None:
    """Play a role, `serve` or `upload`."""
    roles = {"serve": serve_uploads, "upload": upload}
    # aioquic is faster without uvloop: 1.5 to 7 times in interleaved runs.
    run(roles[role](Job(**json.loads(job))), with_uvloop=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
