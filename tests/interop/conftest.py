"""One transfer for all tests of this folder, and a capture of it."""

import socket
from pathlib import Path

import pytest

from tests.interop.capture import write_capture
from tests.interop.transfer import ADDRESS, Transfer, run_transfer


@pytest.fixture(scope="session")
def transfer() -> Transfer:
    """A transfer over IPv6 loopback in which two packets are trimmed and one is lost."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.bind((ADDRESS, 0))
    except OSError as error:
        pytest.skip(f"{ADDRESS} is not available here: {error.strerror}")
    return run_transfer(trims=2, losses=1)


@pytest.fixture(scope="session")
def capture(transfer: Transfer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The transfer as a capture file, with the ports it really had."""
    path = tmp_path_factory.mktemp("capture") / "transfer.pcap"
    write_capture(path, transfer.sent)
    return path
