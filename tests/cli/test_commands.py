"""mrc-send and mrc-recv as processes: what users see, and the codes they end with."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import mrc
from mrc.cli.names import journal_name, part_name
from tests.cli.commands import (
    DEADLINE_S,
    Running,
    command,
    environment,
    eventually,
    receiver,
    running,
    send,
)

pytestmark = pytest.mark.slow

MIB = 1 << 20


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A file of a few packets."""
    path = tmp_path / "small"
    path.write_bytes(os.urandom(10_000))
    return path


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file of ten blocks, most of it a hole so that the disk is spared."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        for block in range(10):
            file.seek(block * 16 * MIB)
            file.write(os.urandom(5000))
        file.truncate(160 * MIB)
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- what works ----------------------------------------------------------------------------------


def test_a_tree_is_sent_and_the_url_stands_alone(tmp_path: Path) -> None:
    """Modes, empty files and folders arrive; the URL can be pasted; both sides end with 0."""
    top = tmp_path / "t"
    (top / "hollow").mkdir(parents=True)
    (top / "empty").write_bytes(b"")
    (top / "run").write_bytes(os.urandom(100_000))
    (top / "run").chmod(0o755)
    (top / "link").symlink_to("run")
    (top / "away").symlink_to("/etc")
    with receiver(tmp_path / "out", "--once") as recv:
        url = recv.url()
        sent = send(top, url)
        received = recv.end()
    assert (sent.code, received.code) == (0, 0)
    assert received.out == b""
    assert "sent 2 files" in sent.err
    assert "away: a symbolic link to an absolute path" in sent.err
    assert "received 2 files" in received.err
    out = tmp_path / "out" / "t"
    assert (out / "run").read_bytes() == (top / "run").read_bytes()
    assert (out / "run").stat().st_mode == (top / "run").stat().st_mode
    assert (out / "empty").read_bytes() == b""
    assert list((out / "hollow").iterdir()) == []
    assert str((out / "link").readlink()) == "run"
    assert not (out / "away").is_symlink()


def test_json_of_both_sides_agrees(tmp_path: Path, small: Path) -> None:
    """One document each, with the plain sha256, bytes, seconds, goodput and counters of paths."""
    with receiver(tmp_path / "out", "--once", "--json") as recv:
        sent = send("--json", "--paths", 4, small, recv.url())
        received = recv.end()
    documents = [sent.document, received.document]
    for document in documents:
        end = document["end"]
        assert document["error"] is None
        assert end["bytes"] == 10_000
        assert end["seconds"] > 0
        assert end["goodput_bits_per_second"] > 0
        assert end["files"] == [
            {"path": "small", "bytes": 10_000, "resumed_bytes": 0, "sha256": _sha256(small)}
        ]
    assert documents[0]["schema"] == "mrc-send/1"
    assert len([path for path in documents[0]["end"]["paths"] if path["active"]]) == 4
    assert len(documents[1]["transfers"]) == 1


def test_quiet_means_quiet(tmp_path: Path, small: Path) -> None:
    """Without trouble --quiet prints the URL and nothing else."""
    with receiver(tmp_path / "out", "--once", "--quiet") as recv:
        sent = send("--quiet", small, recv.url())
        received = recv.end()
    assert (sent.code, sent.out, sent.err) == (0, b"", "")
    assert (received.code, received.out, received.err) == (0, b"", "")


def test_a_stream_goes_from_standard_input_to_standard_output(tmp_path: Path) -> None:
    """Bytes pass unchanged, and nothing else gets onto standard output."""
    data = os.urandom(5 * MIB + 1)
    with receiver("-") as recv:
        sending = running("mrc-send", "-", recv.url(), stdin=data)
        out: list[bytes] = []
        reader = threading.Thread(target=lambda: out.append(_read(recv)))
        reader.start()
        sent = sending.end(data)
        reader.join()
        assert (sent.code, recv.process.wait()) == (0, 0)
    assert out == [data]


def _read(recv: Running) -> bytes:
    assert recv.process.stdout is not None
    data: bytes = recv.process.stdout.read()
    return data


def test_a_file_can_go_to_standard_output(tmp_path: Path, small: Path) -> None:
    """A receiver in a pipe takes a file by name as well; many files it refuses."""
    with receiver("-") as recv:
        sent = send(small, recv.url())
        received = recv.end()
    assert (sent.code, received.code, received.out) == (0, 0, small.read_bytes())
    with receiver("-") as recv:
        sent = send(small.parent, recv.url())
        received = recv.end()
    assert (sent.code, received.code) == (2, 1)
    assert "send one file, or a stream" in sent.err


@pytest.mark.parametrize("data", [b"", b"some bytes"])
def test_a_stream_becomes_a_file(tmp_path: Path, data: bytes) -> None:
    """Standard input arrives in a folder under the name it was given, also when it is empty."""
    with receiver(tmp_path / "out", "--once") as recv:
        sent = send("--name", "notes", "-", recv.url(), stdin=data)
        assert (sent.code, recv.end().code) == (0, 0)
    assert (tmp_path / "out" / "notes").read_bytes() == data


def test_a_receiver_serves_several_senders(tmp_path: Path, small: Path) -> None:
    """Without --once it goes on, also after trouble, and its document tells of all of it."""
    with receiver(tmp_path / "out", "--json") as recv:
        url = recv.url()
        assert send(small, url).code == 0
        small.write_bytes(b"another")
        assert send(small, url).code == 1
        other = tmp_path / "other"
        other.write_bytes(b"x")
        assert send(other, url).code == 0
        recv.signal(signal.SIGTERM)
        received = recv.end()
    assert received.code == 143
    codes = [
        transfer["error"] and transfer["error"]["exit_code"]
        for transfer in received.document["transfers"]
    ]
    assert codes == [None, 6, None]
    assert received.document["error"]["exit_code"] == 143


def test_planes_and_other_settings_reach_the_connection(tmp_path: Path, small: Path) -> None:
    """Two planes, a small MTU and no iCRC work together when both sides say so."""
    both = ("--plane", "127.0.0.1", "--plane", "127.0.0.2", "--mtu", "1024", "--no-icrc")
    with receiver(tmp_path / "out", "--once", *both) as recv:
        sent = send("--json", "--spray-run", 1, *both, small, recv.url())
        assert (sent.code, recv.end().code) == (0, 0)
    assert {path["plane"] for path in sent.document["end"]["paths"]} == {0, 1}
    assert sent.document["start"]["mtu_bytes"] == 1024


# ---- resuming ------------------------------------------------------------------------------------


def _journal_blocks(out: Path) -> int:
    """How many blocks the journal of `large` has."""
    journal = out / journal_name("large")
    return journal.read_bytes().count(b"\n") - 1 if journal.exists() else 0


def _wait_for_blocks(out: Path) -> None:
    eventually(lambda: _journal_blocks(out) >= 2, "two blocks in the journal")


SLOW = ("--mtu", "256", "--paths", "1")
"""Small packets make a transfer slow enough to be caught in the middle."""


@pytest.mark.parametrize("killed", ["sender", "receiver"])
def test_a_killed_transfer_is_resumed(tmp_path: Path, large: Path, killed: str) -> None:
    """After kill -9 of either side the same commands send what is missing, and verify it all."""
    out = tmp_path / "out"
    with receiver(out) as recv, running("mrc-send", *SLOW, large, recv.url()) as sending:
        _wait_for_blocks(out)
        victim, other = (sending, recv) if killed == "sender" else (recv, sending)
        victim.signal(signal.SIGKILL)
        victim.end()
        if killed == "receiver":
            ended = other.end()
            assert ended.code == 4
            assert "run it again" in ended.err
        assert not (out / "large").exists()
        if killed == "sender":
            again = send("--json", large, recv.url_seen)
    if killed == "receiver":
        with receiver(out, "--once") as recv:
            again = send("--json", large, recv.url())
            assert recv.end().code == 0
    assert again.code == 0
    end = again.document["end"]
    assert end["resumed_bytes"] >= 32 * MIB
    assert end["bytes"] + end["resumed_bytes"] == 160 * MIB
    assert _sha256(out / "large") == _sha256(large)
    assert [item.name for item in out.iterdir()] == ["large"]


# ---- signals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"]
)
@pytest.mark.parametrize("stopped", ["sender", "receiver"])
def test_a_signal_ends_both_sides_cleanly(
    tmp_path: Path, large: Path, number: signal.Signals, code: int, stopped: str
) -> None:
    """The stopped side ends with the signal's code, the other with 4; it can be resumed."""
    out = tmp_path / "out"
    with (
        receiver(out, "--once", "--json") as recv,
        running("mrc-send", "--json", *SLOW, large, recv.url()) as sending,
    ):
        _wait_for_blocks(out)
        victim, other = (sending, recv) if stopped == "sender" else (recv, sending)
        victim.signal(number)
        ended, told = victim.end(), other.end()
    assert (ended.code, told.code) == (code, 4)
    assert ended.document["error"]["exit_code"] == code
    assert told.document["end"]["error"]["kind"] in {"PeerStopped", "PeerLost"}
    assert (out / part_name("large")).exists()
    assert _journal_blocks(out) >= 2


def test_a_waiting_receiver_ends_on_ctrl_c_with_a_document(tmp_path: Path) -> None:
    """Before any transfer the document is as valid as after one."""
    with receiver(tmp_path / "out", "--json") as recv:
        recv.url()
        recv.signal(signal.SIGINT)
        ended = recv.end()
    assert ended.code == 130
    assert ended.document["end"] is None
    assert ended.document["error"]["kind"] == "Interrupted"


def test_a_sender_waiting_for_input_ends_on_ctrl_c(tmp_path: Path) -> None:
    """A blocked read does not keep the process."""
    with receiver(tmp_path / "out", "--once") as recv:
        with running("mrc-send", "-", recv.url(), stdin=b"") as sending:
            eventually((tmp_path / "out" / part_name("stdin")).exists, "the stream has begun")
            sending.signal(signal.SIGINT)
            assert sending.process.wait(timeout=20) == 130
        assert recv.end().code == 4
    assert list((tmp_path / "out").iterdir()) == []


def test_a_reader_that_leaves_is_no_riddle(tmp_path: Path) -> None:
    """When the receiver's pipe is closed it says nothing, and the sender says so in one line."""
    head = subprocess.Popen(["head", "-c", "10"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert head.stdin is not None
    with receiver("-", stdout=head.stdin) as recv:
        head.stdin.close()
        head.stdin = None
        sent = send("-", recv.url(), stdin=bytes(50 * MIB))
        received = recv.end()
    assert head.stdout is not None
    with head.stdout as taken:
        assert len(taken.read()) == 10
    head.wait()
    assert (sent.code, received.code) == (1, 1)
    assert "output went away" in sent.err
    assert "Traceback" not in received.err
    assert "mrc-recv:" not in received.err


# ---- what goes wrong -----------------------------------------------------------------------------


def test_existing_files_are_refused_by_both(tmp_path: Path, small: Path) -> None:
    """Exit 6 at the receiver, 1 at the sender, one line with the name and the remedy on each."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "small").write_text("old")
    with receiver(out, "--once", "--quiet") as recv:
        sent = send("--quiet", small, recv.url())
        received = recv.end()
    assert (sent.code, received.code) == (1, 6)
    for side in (sent, received):
        assert side.err.count("\n") == 1
        assert "already exists" in side.err
        assert "--overwrite" in side.err
    with receiver(out, "--once", "--overwrite") as recv:
        assert send(small, recv.url()).code == 0
    assert (out / "small").read_bytes() == small.read_bytes()


def test_nobody_there_is_exit_3(small: Path) -> None:
    """A port without a listener, with and without JSON."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"mrc://127.0.0.1:{taken.getsockname()[1]}/"
        sent = send("--json", "--insecure", "--quiet", small, url)
    assert sent.code == 3
    assert sent.document["error"]["kind"] == "PeerUnreachable"
    assert sent.err.count("\n") == 1
    assert "is anything listening there?" in sent.err


@pytest.mark.parametrize("words", [b"SSH-2.0-OpenSSH_9.9\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
@pytest.mark.parametrize("key", ["", "A" * 43 + "." + "A" * 22], ids=["open", "locked"])
def test_something_else_there_is_exit_7(small: Path, words: bytes, key: str) -> None:
    """A peer that speaks another protocol is named as such, in one line."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = threading.Thread(target=_answer, args=(server, words))
        answering.start()
        url = f"mrc://127.0.0.1:{server.getsockname()[1]}/{key}"
        sent = send("--quiet", *(() if key else ("--insecure",)), small, url)
        answering.join()
    assert sent.code == 7
    assert sent.err.count("\n") == 1


def _answer(server: socket.socket, words: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.sendall(words)
        while connection.recv(4096):
            pass


@pytest.mark.parametrize("options", [(), ("--insecure",)], ids=["locked", "open"])
def test_garbage_at_the_receiver_does_not_disturb_it(
    tmp_path: Path, small: Path, options: tuple[str, ...]
) -> None:
    """A port scan costs nothing: the next sender is served, even with --once."""
    with receiver(tmp_path / "out", "--once", *options) as recv:
        url = recv.url()
        port = mrc.Url.parse(url).address.port
        for words in (b"", b"GET / HTTP/1.1\r\n\r\n", b'{"protocol": 1}\n', b"[" * 100_000):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(words)
        assert send(*options, small, url).code == 0
        assert recv.end().code == 0


@pytest.mark.parametrize("options", [(), ("--insecure",)], ids=["locked", "open"])
def test_who_offers_nothing_does_not_use_up_once(
    tmp_path: Path, small: Path, options: tuple[str, ...]
) -> None:
    """Whoever connects as mrc does and leaves without an offer is not the one transfer."""

    async def look_in(url: str) -> None:
        async with mrc.connect(url) as qp:
            await qp.channel.receive()

    with receiver(tmp_path / "out", "--once", *options) as recv:
        url = recv.url()
        asyncio.run(look_in(url))
        assert send(*options, small, url).code == 0
        assert recv.end().code == 0


def _shell(redirections: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run mrc-send as a shell does with these redirections."""
    script = f'exec "$@" {redirections}'
    return subprocess.run(
        ["sh", "-c", script, "sh", *command("mrc-send", *words)],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )


@pytest.mark.parametrize("redirections", ["<&- >&- 2>&-", "2>/dev/full"])
def test_a_file_is_sent_without_standard_descriptors(
    tmp_path: Path, small: Path, redirections: str
) -> None:
    """Closed or broken ones cost what would have been said, and neither the file nor the code."""
    with receiver(tmp_path / "out", "--once") as recv:
        assert _shell(redirections, small, recv.url()).returncode == 0
        assert recv.end().code == 0
    assert (tmp_path / "out" / "small").read_bytes() == small.read_bytes()


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
def test_a_document_that_cannot_be_printed_is_exit_6(
    tmp_path: Path, small: Path, redirection: str
) -> None:
    """A program that asked for JSON and gets none is told so, in one line and by the code."""
    with receiver(tmp_path / "out", "--once") as recv:
        sent = _shell(redirection, "--json", "--quiet", small, recv.url())
        assert recv.end().code == 0
    assert sent.returncode == 6
    assert sent.stderr.count("\n") == 1
    assert "standard output" in sent.stderr


def test_a_closed_standard_input_is_not_sent(tmp_path: Path) -> None:
    """It is said to be closed, rather than sent as an empty stream."""
    sent = _shell("<&-", "--insecure", "-", "mrc://127.0.0.1:1/")
    assert sent.returncode == 2
    assert "standard input is closed" in sent.stderr


def test_a_port_in_use_is_exit_2(tmp_path: Path) -> None:
    """The line names the address and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        ended = running("mrc-recv", "--listen", address, "--out", tmp_path).end()
    assert ended.code == 2
    assert address in ended.err
    assert "--listen" in ended.err


def test_a_missing_source_is_exit_6(tmp_path: Path) -> None:
    """It is found before anything is connected."""
    sent = send("--insecure", tmp_path / "missing", "mrc://127.0.0.1:1/")
    assert sent.code == 6
    assert "missing: No such file or directory" in sent.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--json",),
        ("--json", "x", "http://127.0.0.1/"),
        ("--json", "x", "mrc://127.0.0.1:99999/"),
        ("--json", "--paths", "0", "x", "mrc://127.0.0.1/"),
        ("--json", "--mtu", "1500", "x", "mrc://127.0.0.1/"),
        ("--json", "--spray-run", "0.5", "x", "mrc://127.0.0.1/"),
        ("--json", "--insecure", "-", "x", "mrc://127.0.0.1/"),
    ],
)
def test_mistakes_in_the_arguments_are_exit_2_and_still_json(arguments: tuple[str, ...]) -> None:
    """A program that asked for JSON gets a document, a person the usage line."""
    sent = send(*arguments)
    assert sent.code == 2
    assert sent.document["error"]["exit_code"] == 2
    assert sent.err


# ---- disks ---------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 24 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    path = tmp_path / "disk"
    path.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(path)]
    if subprocess.run(words, check=False, capture_output=True).returncode:
        pytest.skip("this container may not mount file systems")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.root
def test_a_full_disk_is_told_to_both(disk: Path, large: Path) -> None:
    """Before a byte is sent the receiver says what is missing; nothing is left behind."""
    with receiver(disk, "--once") as recv:
        sent = send(large, recv.url())
        received = recv.end()
    assert (sent.code, received.code) == (1, 6)
    for side in (sent, received):
        assert "No space left on device" in side.err
    assert list(disk.iterdir()) == []


@pytest.mark.root
def test_a_disk_that_fills_up_under_a_stream(disk: Path) -> None:
    """A stream's length is not known beforehand; when the disk is full both are told."""
    with receiver(disk, "--once") as recv:
        sent = send("-", recv.url(), stdin=bytes(40 * MIB))
        received = recv.end()
    assert (sent.code, received.code) == (1, 6)
    for side in (sent, received):
        assert "No space left on device" in side.err
    assert list(disk.iterdir()) == []


@pytest.mark.root
def test_a_read_only_folder_is_trouble_at_the_start_or_later(disk: Path, small: Path) -> None:
    """Found at once when it is so from the beginning, told to both when it becomes so."""
    remount = ["mount", "-o", "remount,{}", str(disk)]
    with receiver(disk, "--once") as recv:
        url = recv.url()
        subprocess.run([word.format("ro") for word in remount], check=True)
        sent = send(small, url)
        received = recv.end()
    assert (sent.code, received.code) == (1, 6)
    assert "Read-only file system" in sent.err
    assert "Read-only file system" in received.err
    with receiver(disk) as recv:
        received = recv.end()
    assert received.code == 6
    assert "Read-only file system" in received.err
