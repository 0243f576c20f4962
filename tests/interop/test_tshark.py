"""Wireshark's InfiniBand dissector agrees with us on the BTH of every datagram."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.interop import scapy_mrc
from tests.interop.capture import ROCE_PORT, write_capture
from tests.interop.transfer import Transfer

BTH_FIELDS = ("opcode", "se", "m", "padcnt", "tver", "p_key", "destqp", "a", "reserved7", "psn")

pytestmark = pytest.mark.slow


def tshark(capture: Path, *options: str) -> list[tuple[int, ...]]:
    """What tshark says of the BTH of every packet, in the order of `BTH_FIELDS`."""
    command = shutil.which("tshark")
    if command is None:
        pytest.skip("needs tshark (apt-get install tshark)")
    fields = [option for name in BTH_FIELDS for option in ("-e", f"infiniband.bth.{name}")]
    result = subprocess.run(
        [command, "-n", "-r", capture, *options, "-T", "fields", *fields],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    # Flags come as 0 and 1 or as True and False, depending on the version.
    words = {"True": 1, "False": 0}
    return [
        tuple(words[text] if text in words else int(text, 0) for text in line.split("\t"))
        for line in result.stdout.splitlines()
    ]


def expected(transfer: Transfer) -> list[tuple[int, ...]]:
    """The same, by the decoder written from the tables."""
    rows: list[tuple[int, ...]] = []
    for sent in transfer.sent:
        bth = scapy_mrc.dissect(sent.data, trimmed=True)
        flags = bth.r << 6 | bth.rtx << 5 | bth.ts << 4 | bth.reserved_2
        rows.append(
            (
                bth.opcode, bth.se, bth.m, bth.pad, bth.tver, bth.p_key, bth.dqp, bth.a, flags,
                bth.psn,
            )
        )  # fmt: skip
    return rows


def test_tshark_reads_every_bth_as_roce(transfer: Transfer, tmp_path: Path) -> None:
    """Sent to UDP port 4791, every datagram is RoCEv2 to tshark, with the BTH that we meant."""
    capture = tmp_path / "roce.pcap"
    write_capture(capture, transfer.sent, destination_port=ROCE_PORT)
    assert tshark(capture) == expected(transfer)


def test_tshark_reads_every_bth_on_the_real_ports(transfer: Transfer, capture: Path) -> None:
    """Told that our ports are InfiniBand, tshark reads the capture as it is."""
    ports = (transfer.receiver_port, transfer.sender_port)
    options = [option for port in ports for option in ("-d", f"udp.port=={port},infiniband")]
    assert tshark(capture, *options) == expected(transfer)
