"""What hosts of the lab run, on loopback: what they leave, and how they end."""

import json
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic_ns
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from netns.recording import SAMPLE_FIELDS
from netns.traffic import counters, files, tcp
from netns.traffic.payload import Expected
from tests.netns.conftest import ROOT

SIZE = 64 * 1024
MTU_BYTES_MAX = 4096
WAIT_S = 10

Process = subprocess.Popen[str]
Run = Callable[..., Process]


@pytest.fixture
def port() -> int:
    """A port of loopback that is free for UDP and TCP now."""
    with socket.socket() as taken, socket.socket(type=socket.SOCK_DGRAM) as also:
        taken.bind(("127.0.0.1", 0))
        number: int = taken.getsockname()[1]
        also.bind(("127.0.0.1", number))
        return number


@pytest.fixture
def run() -> Iterator[Run]:
    """Start a traffic process; `under` a process of its own that can be killed."""
    started: list[Process] = []

    def start(module: str, told: dict[str, Any], *, under: bool = False) -> Process:
        command = [sys.executable, "-m", f"netns.traffic.{module}", json.dumps(told)]
        between = "import subprocess, sys; subprocess.run(sys.argv[1:])"
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", between, *command] if under else command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def heard(process: Process, word: str) -> None:
    """Wait for a process to say a word."""
    assert process.stdout is not None
    said = process.stdout.readline()
    if not said.startswith(word):
        process.kill()
        pytest.fail(f"said {said!r}, not {word!r}: {process.communicate()[1]}")


def begin(process: Process) -> None:
    """Let a sender start now."""
    assert process.stdin is not None
    process.stdin.write(f"{monotonic_ns()}\n")
    process.stdin.flush()


def close_input(process: Process) -> None:
    """Tell a process to finish."""
    assert process.stdin is not None
    process.stdin.close()
    # Otherwise communicate() would flush it.
    process.stdin = None


def ended(process: Process) -> int:
    """Wait for the end of a process that is to come now."""
    return process.wait(WAIT_S)


class Orders:
    """Orders of a receiver and a sender of one kind, with their records in a folder."""

    def __init__(self, kind: str, port: int, folder: Path) -> None:
        self.records = {role: folder / f"{role}.json" for role in ("receive", "send")}
        both = {"address": "127.0.0.1", "port": port, "period_ms": 5}
        flow = {
            "name": "main",
            "message_bytes": SIZE,
            "depth": 4,
            "start_s": 0,
            "stop_s": 0.3,
            "pause_ms": 1,
        }
        self.modules = ("mrc_receiver", "mrc_sender") if kind == "mrc" else (kind, kind)
        place: dict[str, Any] = {
            "addresses": ["127.0.0.1"],
            "planes": ["127.0.0.1"],
            "config": {},
            "lock": None,
            "token": None,
        }
        place |= {"url": f"mrc://127.0.0.1:{port}/", "protocol": kind}
        if kind == "files":
            flow |= {
                "options": ["--insecure"],
                "mib": 2,
                "folder": str(folder),
                "target": str(folder / "in"),
            }
            (folder / "in").mkdir()
        self.receive = {**both, **place, **flow, "role": "receive"}
        self.send = {**both, **place, **flow, "role": "send"}
        for told in (self.receive, self.send):
            told["record"] = str(self.records[str(told["role"])])
        if kind == "files":
            self.receive["folder"] = str(folder / "in")

    def record(self, role: str) -> dict[str, Any]:
        """Return what one end has left."""
        record: dict[str, Any] = json.loads(self.records[role].read_text())
        return record


# What messages carry.


def test_messages_differ_from_those_they_follow() -> None:
    """A part of the buffer into which nothing was placed holds an earlier message, or nothing."""
    expected = Expected(SIZE)
    for depth in range(1, 257):
        slots = 4 * depth
        assert not expected.matches(7 + slots, expected.message(7)), depth
    assert expected.matches(10**6, expected.message(10**6).copy())
    assert not expected.matches(0, np.zeros(SIZE, np.uint8))


@pytest.mark.parametrize("at", [0, SIZE // 2 + 3, SIZE - 1])
def test_one_wrong_byte_is_seen(at: int) -> None:
    """Wherever it is."""
    expected = Expected(SIZE)
    got = expected.message(5).copy()
    got[at] ^= 1
    assert not expected.matches(5, got)


def test_messages_are_whole_words() -> None:
    """Others cannot be compared."""
    with pytest.raises(ValueError, match="1001 bytes is no multiple of 8"):
        Expected(1001)


# From one end to the other.


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mrc", "tcp"])
def test_messages_arrive(run: Run, port: int, tmp_path: Path, kind: str) -> None:
    """As many as were sent, all right; both end by themselves and leave a record."""
    orders = Orders(kind, port, tmp_path)
    receiver = run(orders.modules[0], orders.receive)
    heard(receiver, "ready")
    sender = run(orders.modules[1], orders.send)
    heard(sender, "connected")
    begin(sender)
    assert ended(sender) == 0, sender.communicate()[1]
    close_input(receiver)
    assert ended(receiver) == 0, receiver.communicate()[1]
    sent, (got,) = orders.record("send"), orders.record("receive")["flows"]
    assert sent["messages"] == len(sent["completions_ns"]) == got["messages"] > 4
    assert (got["corrupt"], got["out_of_order"]) == (0, 0)
    assert (sent["error"], got["error"]) == ("", "")
    # MRC counts what the two ends agree on as well; the last message may be later than a sample.
    assert 0 < got["samples"][-1][1] < (got["messages"] + 1) * SIZE


@pytest.mark.slow
def test_a_file_arrives(run: Run, port: int, tmp_path: Path) -> None:
    """By mrc-send and mrc-recv, compared byte by byte."""
    orders = Orders("files", port, tmp_path)
    receiver = run("files", orders.receive)
    heard(receiver, "ready mrc://127.0.0.1")
    sender = run("files", orders.send)
    heard(sender, "connected")
    begin(sender)
    assert ended(sender) == 0, sender.communicate()[1]
    close_input(receiver)
    assert ended(receiver) == 0, receiver.communicate()[1]
    sent, (got,) = orders.record("send"), orders.record("receive")["flows"]
    assert (sent["error"], got["error"]) == ("", "")
    assert len(sent["completions_ns"]) == got["messages"] == 1
    assert (tmp_path / "in/main.bin").read_bytes() == (tmp_path / "main.bin").read_bytes()


@pytest.mark.slow
def test_wrong_bytes_over_tcp_are_counted(run: Run, port: int, tmp_path: Path) -> None:
    """The receiver looked at none of them once."""
    orders = Orders("tcp", port, tmp_path)
    receiver = run("tcp", orders.receive)
    heard(receiver, "ready")
    expected = Expected(SIZE)
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        connection.sendall(json.dumps({"name": "main", "message_bytes": SIZE}).encode() + b"\n")
        for number in (0, 1, 1):
            connection.sendall(expected.message(number).data)
            assert connection.recv(1) == b"!"
    close_input(receiver)
    assert ended(receiver) == 0
    (got,) = orders.record("receive")["flows"]
    assert (got["messages"], got["corrupt"]) == (3, 1)


@pytest.mark.slow
def test_waiting_to_start_is_no_silence(
    run: Run, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender whose start is further off than it waits for an answer."""
    orders = Orders("tcp", port, tmp_path)
    receiver = run("tcp", orders.receive)
    heard(receiver, "ready")
    monkeypatch.setattr(tcp, "SILENCE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(tcp, "wait_for_zero_ns", monotonic_ns)
    tcp.send({**orders.send, "start_s": 0.3, "stop_s": 0.35})
    sent = orders.record("send")
    assert sent["error"] == ""
    assert len(sent["completions_ns"]) == sent["messages"] > 0


def test_a_tcp_receiver_that_is_silent_or_gone(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record says which."""
    orders = Orders("tcp", port, tmp_path)
    monkeypatch.setattr(tcp, "SILENCE_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", port)) as server:
        monkeypatch.setattr(tcp, "wait_for_zero_ns", monotonic_ns)
        tcp.send(orders.send)
        assert "timed out" in orders.record("send")["error"]

        def leave() -> int:
            for _ in range(2):
                server.accept()[0].close()
            return monotonic_ns()

        monkeypatch.setattr(tcp, "wait_for_zero_ns", leave)
        tcp.send(orders.send)
        assert orders.record("send")["error"]


@pytest.mark.slow
def test_ranks_reduce_and_note_what_their_queue_pairs_count(
    run: Run, port: int, tmp_path: Path
) -> None:
    """One row a period, all counters in their columns; they only ever grow."""
    told = {
        "size": 2,
        "url": f"mrc://127.0.0.1:{port}/",
        "interfaces": "lo",
        "config": {},
        "message_bytes": SIZE,
        "start_s": 0,
        "stop_s": 0.3,
        "period_ms": 5,
    }
    records = [tmp_path / f"{rank}.json" for rank in range(2)]
    ranks = [
        run("rank", {**told, "name": f"rank-{rank}", "rank": rank, "record": str(records[rank])})
        for rank in range(2)
    ]
    for process in ranks:
        heard(process, "connected")
    for process in ranks:
        begin(process)
    assert [ended(process) for process in ranks] == [0, 0], ranks[0].communicate()[1]
    for record in (json.loads(path.read_text()) for path in records):
        assert (record["corrupt"], record["error"]) == (0, "")
        samples = np.array(record["samples"])
        assert samples.shape[1] == 1 + len(SAMPLE_FIELDS)
        assert (np.diff(samples[:, 4:], axis=0) >= 0).all()
        sent = samples[-1, 1 + SAMPLE_FIELDS.index("sent")]
        # Each sends half of the buffer twice.
        assert sent >= record["messages"] * SIZE / MTU_BYTES_MAX


class SharedPath(NamedTuple):
    """What two queue pairs tell of a path of both, the same each time."""

    marked_packets: int


def test_a_row_is_of_all_queue_pairs_but_for_what_cannot_be_added() -> None:
    """Windows and times are those of the busiest; two share their paths, and marks on them."""
    names = (*counters.GAUGES, *counters.COUNTERS)
    paths = [SharedPath(marked_packets) for marked_packets in (3, 4)]
    taken: Any = [
        SimpleNamespace(requestor=SimpleNamespace(**dict.fromkeys(names, number)), paths=paths)
        for number in (10, 5)
    ]
    assert counters.row(99, taken) == [99, *[10] * 3, *[15] * 7, 7]


def test_a_queue_pair_that_goes_does_not_take_its_counts_along() -> None:
    """Windows and times may shrink."""
    before, now = [1, 9, 9, 9, *[20] * 8], [2, 4, 4, 4, *[15] * 7, 21]
    assert counters.grown(now, before) == [2, 4, 4, 4, *[20] * 7, 21]


# How they end.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("mrc", "input"),
        ("mrc", "SIGTERM"),
        ("tcp", "input"),
        ("tcp", "SIGTERM"),
        # With its input closed it would wait a while for mrc-recv, which waits for a sender.
        ("files", "SIGTERM"),
    ],
)
def test_a_receiver_that_is_ended_leaves_a_record(
    run: Run, port: int, tmp_path: Path, kind: str, how: str
) -> None:
    """By its input as at the end of a run, by a signal as when the lab goes."""
    orders = Orders(kind, port, tmp_path)
    receiver = run(orders.modules[0], orders.receive)
    heard(receiver, "ready")
    close_input(receiver) if how == "input" else receiver.send_signal(signal.SIGTERM)
    assert ended(receiver) == (0 if how == "input" else 143)
    assert "flows" in orders.record("receive")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["input", "SIGTERM"])
@pytest.mark.parametrize("kind", ["mrc", "tcp"])
def test_a_sender_that_is_ended_leaves_a_record(
    run: Run, port: int, tmp_path: Path, kind: str, how: str
) -> None:
    """Long before its time is up."""
    orders = Orders(kind, port, tmp_path)
    receiver = run(orders.modules[0], orders.receive)
    heard(receiver, "ready")
    sender = run(orders.modules[1], {**orders.send, "stop_s": 60})
    heard(sender, "connected")
    begin(sender)
    heard(sender, "moving")
    close_input(sender) if how == "input" else sender.send_signal(signal.SIGTERM)
    assert ended(sender) == 143
    assert orders.record("send")["completions_ns"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mrc", "tcp", "files"])
def test_none_outlives_a_killed_run(run: Run, port: int, tmp_path: Path, kind: str) -> None:
    """Its standard input stays open here, and still it goes: with it what it started."""
    orders = Orders(kind, port, tmp_path)
    parent = run(orders.modules[0], orders.receive, under=True)
    heard(parent, "ready")
    parent.kill()
    # The pipe ends when the last process that holds it does.
    assert parent.stdout is not None
    assert select.select([parent.stdout], [], [], WAIT_S)[0]
    assert parent.stdout.read() == ""
    assert "flows" in orders.record("receive")


@pytest.mark.slow
def test_told_twice_to_end_it_leaves_a_record(run: Run, port: int, tmp_path: Path) -> None:
    """By its input and a signal at once; the signal once cut the record off."""
    orders = Orders("mrc", port, tmp_path)
    receiver = run("mrc_receiver", orders.receive)
    heard(receiver, "ready")
    close_input(receiver)
    receiver.send_signal(signal.SIGTERM)
    ended(receiver)
    assert "flows" in orders.record("receive")


# A file that does not arrive.


def sent_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> dict[str, Any]:
    """Return the record of sending a file with a program instead of mrc-send."""
    orders = Orders("files", 1, tmp_path)
    monkeypatch.setattr(files, "SEND", [sys.executable, "-c", program])
    monkeypatch.setattr(files, "LATE_S", 0.2)
    monkeypatch.setattr(files, "wait_for_zero_ns", monotonic_ns)
    files.send({**orders.send, "mib": 1, "stop_s": 0})
    return orders.record("send")


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("raise SystemExit(2)", "mrc-send ended with 2"),
        ("print('{}')", "what has arrived cannot be read: .*main.bin"),
        ("""print('{"half":')""", "said no JSON: .*half"),
        ("import time; time.sleep(9)", r"did not end within 0\.2 s: send less"),
    ],
)
def test_a_file_that_does_not_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, error: str
) -> None:
    """There is a record all the same, and it says why."""
    record = sent_file(tmp_path, monkeypatch, program)
    assert record["completions_ns"] == []
    assert re.search(error, record["error"])


def test_a_file_that_arrives_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same length."""
    arrived = tmp_path / "in/main.bin"
    program = f"open({str(arrived)!r}, 'wb').write(bytes(1 << 20)); print('{{}}')"
    assert (
        sent_file(tmp_path, monkeypatch, program)["error"] == "main.bin differs from what was sent"
    )
