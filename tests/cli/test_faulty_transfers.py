"""mrc-send and mrc-recv when the network, or the machine, does not behave."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest

from mrc.cli.names import journal_name
from tests.cli import faulty_send, peak_memory
from tests.cli.commands import DEADLINE_S, Running, eventually, receiver, running
from tests.cli.faulty_send import Plan

pytestmark = pytest.mark.slow

MIB = 1 << 20
BLOCK_BYTES = 16 * MIB
PEAK_BYTES_MAX = 250 * MIB
STOPPED_S = 3.0
USABLE = {"good", "skip"}


def _random_file(path: Path, size: int) -> Path:
    path.write_bytes(random.Random(size).randbytes(size))
    return path


def _sparse_file(path: Path, size: int) -> Path:
    """Make a file whose blocks all differ, most of it a hole so that the disk is spared."""
    with path.open("wb") as file:
        for offset in range(0, size, BLOCK_BYTES):
            file.seek(offset)
            file.write(random.Random(offset).randbytes(5000))
        file.truncate(size)
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _transfer(
    tmp_path: Path, plan: Plan, source: Path, *options: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Send a file with faults; return what both documents say of it, after comparing it."""
    out = tmp_path / "out"
    with receiver(out, "--once", "--json", *options) as recv:
        words = (plan.to_json(), "--json", *options, source, recv.url())
        sent = running(faulty_send.RUNNER, *words).end()
        received = recv.end()
    assert (sent.code, received.code) == (0, 0), sent.err + received.err
    assert _sha256(out / source.name) == _sha256(source)
    return sent.document["end"], received.document["end"]


# ---- what the network does -----------------------------------------------------------------------


def test_one_lost_datagram_in_a_hundred_costs_retransmissions_only(tmp_path: Path) -> None:
    """With 1 % lost on every path the file arrives, and the queue pair never times out."""
    source = _random_file(tmp_path / "source", 64 * MIB)
    sent, _ = _transfer(tmp_path, Plan(loss=0.01), source)
    assert sent["counters"]["requestor"]["packets_retransmitted"] > 0
    assert sent["counters"]["requestor"]["timeouts"] == 0


def test_spoiled_datagrams_are_sent_again(tmp_path: Path) -> None:
    """A flipped bit in one datagram of a hundred never gets into the file."""
    source = _random_file(tmp_path / "source", 64 * MIB)
    sent, _ = _transfer(tmp_path, Plan(corruption=0.01), source)
    assert sent["counters"]["requestor"]["packets_retransmitted"] > 0


def test_datagrams_that_come_twice_are_taken_once(tmp_path: Path) -> None:
    """When one datagram of a hundred comes twice, the second is recognized and dropped."""
    source = _random_file(tmp_path / "source", 64 * MIB)
    # Sealed, the second would be dropped as a replay, before it comes to where it is counted.
    _, received = _transfer(tmp_path, Plan(duplication=0.01), source, "--insecure")
    assert received["counters"]["responder"]["packets_duplicate"] > 0


def test_a_dead_path_is_blamed_alone_and_comes_back(tmp_path: Path) -> None:
    """One path of sixteen swallows all for a while: it is left and taken back, no other is."""
    with receiver(tmp_path / "out", "--once") as recv:
        words = (Plan(cut=5).to_json(), "--json", "-", recv.url())
        with running(faulty_send.RUNNER, *words, stdin=b"") as sending:
            digest, port = _feed_until_healed(sending)
            sent = sending.end()
        assert (sent.code, recv.end().code) == (0, 0), sent.err
    assert _sha256(tmp_path / "out" / "stdin") == digest
    paths = {path["source_port"]: path for path in sent.document["end"]["paths"]}
    dead = paths.pop(port)
    assert dead["state_changes"] >= 1
    assert dead["state"] in USABLE
    assert {port: path["state_changes"] for port, path in paths.items()} == dict.fromkeys(paths, 0)


def _feed_until_healed(sending: Running) -> tuple[str, int]:
    """Give it input until a path has died and come back; return the SHA-256 and the path's port."""
    process, digest, rng = sending.process, hashlib.sha256(), random.Random(0)
    assert process.stdin is not None
    assert process.stderr is not None
    heard: list[str] = []
    listening = threading.Thread(target=_listen_until_healed, args=(process.stderr, heard))
    listening.start()
    block = bytearray(rng.randbytes(MIB))
    deadline = time.monotonic() + DEADLINE_S
    while listening.is_alive():
        assert time.monotonic() < deadline, heard
        block[:8] = rng.randbytes(8)
        process.stdin.write(block)
        digest.update(block)
    return digest.hexdigest(), int(heard[-1].removeprefix(faulty_send.HEALED))


def _listen_until_healed(stderr: IO[bytes], heard: list[str]) -> None:
    for line in stderr:
        heard.append(line.decode())
        if heard[-1].startswith(faulty_send.HEALED):
            return


# ---- what the machine does -----------------------------------------------------------------------


@pytest.mark.parametrize("stopped", ["sender", "receiver"])
def test_a_side_that_stands_still_for_a_while_goes_on(tmp_path: Path, stopped: str) -> None:
    """After SIGSTOP, 3 s and SIGCONT the transfer completes, and no path is left for dead."""
    source = _sparse_file(tmp_path / "source", 192 * MIB)
    out = tmp_path / "out"
    with (
        receiver(out, "--once", "--json") as recv,
        running("mrc-send", "--json", source, recv.url()) as sending,
    ):
        eventually((out / journal_name("source")).exists, "some of it has been stored")
        victim = sending if stopped == "sender" else recv
        victim.signal(signal.SIGSTOP)
        time.sleep(STOPPED_S)
        assert not (out / "source").exists()
        victim.signal(signal.SIGCONT)
        ended = [sending.end(), recv.end()]
    assert [side.code for side in ended] == [0, 0], [side.err for side in ended]
    assert _sha256(out / "source") == _sha256(source)
    for side in ended:
        assert {path["state"] for path in side.document["end"]["paths"]} <= USABLE


# ---- memory --------------------------------------------------------------------------------------


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Sending and receiving 600 MB each stay under 250 MiB of resident memory."""
    source = _sparse_file(tmp_path / "source", 600_000_000)
    out, reports = tmp_path / "out", [tmp_path / "recv.json", tmp_path / "send.json"]
    listen = ("--listen", "127.0.0.1:0", "--out", out, "--once")
    with _measured(reports[0], "mrc.cli.recv", *listen) as recv:
        with _measured(reports[1], "mrc.cli.send", source, recv.url()) as sending:
            sent = sending.end()
        received = recv.end()
    assert (sent.code, received.code) == (0, 0), sent.err + received.err
    assert (out / "source").stat().st_size == 600_000_000
    peaks = [json.loads(report.read_text())["peak_bytes"] for report in reports]
    assert max(peaks) < PEAK_BYTES_MAX


@contextmanager
def _measured(report: Path, module: str, *arguments: object) -> Iterator[Running]:
    """Start a command whose peak memory goes into a report; whatever happens, it is gone after."""
    words = (report, module, *arguments)
    with running(peak_memory.RUNNER, *words, start_new_session=True) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.process.pid, signal.SIGKILL)
