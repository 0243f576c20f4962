"""The command as people and scripts run it: tables, JSON, exit codes, signals."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TextIO

import pytest

import mrc
from mrc.cli.failures import ExitCode, Interrupted, exit_code
from mrc.cli.report import failure
from mrc.perf import command
from mrc.perf.client import WrongContents
from mrc.perf.options import PAIRS_DEFAULT
from mrc.perf.report import Report, SizeReport, document
from mrc.perf.runs import Log, Wishes, listener_options
from mrc.perf.session import PerfSession
from mrc.perf.settings import Kind, Plan
from tests.cli.commands import DEADLINE_S, Ended, Running, environment, running
from tests.cli.commands import command as words

QUICK = ("--buffer", "1M", "-w", "2")


def listener(*arguments: object) -> Running:
    """Start a listener on a free port of the loopback."""
    return running("mrc-perf", "--listen", "127.0.0.1:0", *arguments)


def client(*arguments: object) -> Running:
    """Start a client."""
    return running("mrc-perf", *arguments, *QUICK)


def until_moving(process: Running) -> None:
    """Wait for the first line of interim figures that are not of nothing."""
    assert process.process.stderr is not None
    for line in process.process.stderr:
        if b"bit/s" in line and b" s 0" not in line:
            return
    raise AssertionError(f"no interim figures: {process.end().err}")


def measured_in(ended: Ended) -> list[dict[str, Any]]:
    """Return the tests of a document."""
    tests: list[dict[str, Any]] = ended.document["end"]["tests"]
    return tests


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Return the URL of one listener for many clients: it serves one after the other."""
    with listener() as process:
        yield process.url()


@pytest.mark.slow
def test_a_sweep_prints_a_table_of_the_columns_people_know(url: str) -> None:
    """One row a size, below lines that say what was measured and how."""
    with client(url, "-n", 50, "--min-size", "1K", "-s", "16K", "--step-factor", 4) as process:
        ended = process.end()
    assert ended.code == ExitCode.DONE, ended.err
    what, _, how, counted, columns, *rows = ended.out.decode().splitlines()
    assert "not encrypted" in what
    assert "walk through 1.0 MiB" in how
    assert "50 messages a test, 2 messages of warm-up" in counted
    assert columns.split() == ["MsgSize", "TotalOps", "BW_avg(Gbps)", "MsgRate(Mpps)"]
    assert [row.split()[:2] for row in rows] == [["1024", "50"], ["4096", "50"], ["16384", "50"]]


@pytest.mark.slow
def test_latency_says_that_it_is_half_of_the_round_trip(url: str) -> None:
    """The percentiles stand in their columns."""
    with client(url, "--latency", "-n", 30) as process:
        ended = process.end()
    assert ended.code == ExitCode.DONE, ended.err
    what, _, _, _, columns, row = ended.out.decode().splitlines()
    assert "half of the round trip" in what
    assert {"t_p50(us)", "t_p99(us)", "t_p99.9(us)", "t_max(us)"} <= {*columns.split()}
    assert row.split()[:2] == ["64", "30"]


@pytest.mark.slow
def test_json_is_one_document_with_each_side_under_its_own_name(url: str) -> None:
    """Sender and receiver, both ways, paths, explanation: and nothing but it on standard output."""
    arguments = ("-b", "-q", 2, "-n", 40, "--verify", "--explain", "--json")
    with client(url, *arguments) as process:
        ended = process.end()
    body = ended.document
    assert (ended.code, body["error"], body["schema"]) == (ExitCode.DONE, None, "mrc-perf/1")
    (test,) = body["end"]["tests"]
    assert test["sender"]["bytes"] == test["receiver"]["bytes"] == 2 * 40 * 65536
    assert test["reverse"]["sender"]["bytes"] == test["reverse"]["receiver"]["bytes"]
    assert test["wrong_bytes"] == 0
    assert body["start"]["cipher"] is None
    assert len(body["end"]["paths"]) >= 16
    assert body["end"]["explain"]["listening"]
    assert isinstance(body["intervals"], list)


@pytest.mark.slow
def test_a_stream_has_an_object_a_line_as_it_happens(url: str) -> None:
    """Start first, every test, and the end, each line a document of its own."""
    arguments = ("-n", 20, "--min-size", "1K", "-s", "2K", "--json-stream")
    with client(url, *arguments) as process:
        ended = process.end()
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert [line["event"] for line in lines] == ["start", "test", "test", "end"]
    assert [line["data"]["message_bytes"] for line in lines[1:3]] == [1024, 2048]
    assert lines[3]["data"]["tests"] == [line["data"] for line in lines[1:3]]


@pytest.mark.slow
def test_a_url_measures_encrypted_and_a_wrong_key_does_not_measure() -> None:
    """The listener's whole URL is all that the other side needs."""
    with listener("--lock") as process:
        right = process.url()
        with client(right, "-n", 20, "-J") as measuring:
            ended = measuring.end()
        address, _, _ = right.rpartition("/")
        with client(f"{address}/{mrc.Lock.new().key}", "-n", 20, "-J") as strange:
            refused = strange.end()
    assert ended.document["start"]["cipher"] is not None
    assert ended.code == ExitCode.DONE
    assert refused.code == ExitCode.NOT_REACHED
    assert refused.document["error"]["kind"] == "PeerNotTrusted"
    assert right.rpartition("/")[2].partition(".")[2] not in ended.out.decode()


@pytest.mark.slow
def test_nobody_there_is_an_error_in_json_too() -> None:
    """Exit code 3, one document, no end."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    with client(f"127.0.0.1:{port}", "--json", "--connect-timeout", 2) as process:
        ended = process.end()
    assert ended.code == ExitCode.NOT_REACHED
    assert ended.document["end"] is None
    assert ended.document["error"]["exit_code"] == ExitCode.NOT_REACHED
    assert f"127.0.0.1:{port}" in ended.document["error"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)],
)
def test_a_client_that_is_stopped_tells_what_it_had(
    url: str, number: signal.Signals, code: ExitCode
) -> None:
    """One document, with the figures so far, marked as not complete."""
    with client(url, "-D", 60, "--interval", 0.05, "--json") as process:
        until_moving(process)
        process.signal(number)
        ended = process.end()
    assert ended.code == code
    (test,) = measured_in(ended)
    assert test["complete"] is False
    assert test["sender"]["bytes"] > 0
    assert test["receiver"] is None
    assert ended.document["intervals"]
    assert ended.document["error"]["kind"] == "Interrupted"


@pytest.mark.slow
def test_a_listener_that_is_stopped_tells_what_it_had_and_its_client_ends() -> None:
    """Both have one document: 130 here, and there 4, a peer lost after the start."""
    with (
        listener("--json") as process,
        client(process.url(), "-D", 60, "--interval", 0.05, "--json") as measuring,
    ):
        until_moving(measuring)
        process.signal(signal.SIGINT)
        lost, ended = measuring.end(), process.end()
    assert ended.code == ExitCode.INTERRUPTED
    (served,) = ended.document["clients"]
    assert served["end"]["tests"][0]["receiver"]["bytes"] > 0
    assert served["end"]["tests"][0]["complete"] is False
    assert lost.code == ExitCode.LOST
    assert lost.document["end"]["tests"][0]["sender"]["bytes"] > 0
    assert "127.0.0.1" in lost.document["error"]["message"]


@pytest.mark.slow
def test_both_sides_here_in_one_command() -> None:
    """A listener of its own comes and goes with the run."""
    with client("--self", "-n", 30, "--explain") as process:
        ended = process.end()
    assert ended.code == ExitCode.DONE, ended.err
    assert "listening: " in ended.out.decode()
    assert ended.out.decode().splitlines()[5].split()[:2] == ["65536", "30"]


@pytest.mark.slow
def test_the_cost_of_the_lock_in_one_command() -> None:
    """Pairs in turns, and their ratio, in one document."""
    with client("--compare", "lock", "--pairs", 2, "-n", 30, "-J") as process:
        ended = process.end()
    assert ended.code == ExitCode.DONE, ended.err
    told = ended.document["comparison"]
    assert told["pairs"] == 2
    assert [row["name"] for row in told["rows"]] == ["not locked", "locked", "locked / not locked"]
    assert all(len(row["figures"]) == 2 for row in told["rows"])


@pytest.mark.slow
def test_a_signal_among_the_imports_keeps_the_promise_of_json(tmp_path: Path) -> None:
    """The document is the one that would be printed a moment later."""
    stub = f"import os; os.kill(os.getpid(), {int(signal.SIGINT)}); raise SystemExit('went on')"
    (tmp_path / "click.py").write_text(stub)
    ended = subprocess.run(
        words("mrc-perf", "-J"),
        env={**environment(), "PYTHONPATH": f"{tmp_path}:{environment()['PYTHONPATH']}"},
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    error = failure(Interrupted(signal.SIGINT), ExitCode.INTERRUPTED)
    assert json.loads(ended.stdout) == document(Report(), error)
    assert ended.returncode == ExitCode.INTERRUPTED


def test_wrong_contents_are_a_one() -> None:
    """A benchmark that measured wrong data has failed, as for perftest, and not lost a file."""
    assert exit_code(WrongContents("9 bytes"), established=True) is ExitCode.FAILED


WRONG: dict[str, list[str]] = {
    "an unknown option": ["--fast"],
    "letters in one word": ["h", "-s", "0", "-bJ"],
    "no size": ["h", "-s", "0"],
    "words for a size": ["h", "-s", "huge"],
    "a size beyond a write": ["h", "-s", "4G"],
    "both ends of a test": ["h", "-n", "5", "-D", "5"],
    "latency of several": ["h", "--latency", "-q", "2"],
    "latency both ways": ["h", "--latency", "-b"],
    "a sweep downwards": ["h", "--min-size", "2K", "-s", "1K"],
    "too much at once": ["h", "-q", "128", "-t", "4096"],
    "a lock on the wrong side": ["h", "--lock"],
    "two listeners": ["h", "--self"],
    "no address": ["http://h/"],
    "two ports": ["h:1", "-p", "2"],
    "no number of seconds": ["h", "-D", "nan"],
    "endless patience": ["h", "--timeout", "nan"],
    "figures without a pause": ["h", "--interval", "0.001"],
    "an address to listen on, and one to go to": ["h", "--listen", "127.0.0.1:0"],
    "one client, of somebody else's": ["h", "--once"],
    "an address for both sides here": ["--self", "--listen", "127.0.0.1:0"],
    "a port for both sides here": ["--self", "-p", "5"],
    "one client of both sides here": ["--compare", "icrc", "--once"],
    "two ports to listen on": ["--listen", "127.0.0.1:0", "-p", "5"],
    "pairs of nothing": ["h", "--pairs", "3"],
    "a lock for the side without": ["--compare", "lock", "--lock"],
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_on_the_command_line_is_a_document_too(
    mistake: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and still one valid document of the same shape."""
    left: list[ExitCode] = []
    monkeypatch.setattr("sys.argv", ["mrc-perf", *WRONG[mistake], "-J"])
    monkeypatch.setattr(command, "leave", left.append)
    monkeypatch.setattr(command, "fill_standard_descriptors", lambda: None)
    command.main()
    out, err = capfd.readouterr()
    body = json.loads(out)
    assert left == [ExitCode.USAGE]
    assert body["error"]["exit_code"] == ExitCode.USAGE
    assert set(body) == {"schema", "start", "intervals", "end", "error"}
    assert err


def test_help_has_examples(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What people read first shows whole commands."""
    monkeypatch.setattr("sys.argv", ["mrc-perf", "--help"])
    monkeypatch.setattr(command, "leave", lambda _: None)
    monkeypatch.setattr(command, "fill_standard_descriptors", lambda: None)
    command.main()
    out = capfd.readouterr().out
    assert "mrc-perf --compare lock" in out
    assert "--until-eof" not in out


def invoked(
    monkeypatch: pytest.MonkeyPatch, way: str, *arguments: str
) -> tuple[Wishes, Plan, tuple[Any, ...]]:
    """Return what the command would do, the way of a run that it takes being known."""
    seen: list[tuple[Any, ...]] = []

    async def noted(_: PerfSession, *given: Any) -> ExitCode:
        seen.append(given)
        return ExitCode.DONE

    monkeypatch.setattr(command, way, noted)
    assert command.command.main(list(arguments), standalone_mode=False) is ExitCode.DONE
    ((wishes, plan, *more),) = seen
    return wishes, plan, tuple(more)


@pytest.mark.parametrize(
    ("words", "url"),
    [
        (("::1",), "mrc://[::1]:18515/"),
        (("::1", "-p", "7"), "mrc://[::1]:7/"),
        (("fe80::1%lo",), "mrc://[fe80::1%lo]:18515/"),
        (("[::1]:9",), "mrc://[::1]:9/"),
        (("192.0.2.7:9",), "mrc://192.0.2.7:9/"),
    ],
)
def test_an_address_needs_brackets_only_before_a_port(
    words: tuple[str, ...], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on the command line alone cannot be taken for anything else."""
    assert invoked(monkeypatch, "connect", *words)[2] == (url,)


def test_a_comparison_of_something_else_keeps_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the iCRC costs can be measured behind a lock: both listeners have one."""
    wishes, _, more = invoked(monkeypatch, "compare", "--compare", "icrc", "--lock")
    assert "--lock" in listener_options(wishes)
    assert more == ("icrc", PAIRS_DEFAULT)
    wishes, _, more = invoked(monkeypatch, "compare", "--compare", "lock", "--pairs", "2")
    assert "--lock" not in listener_options(wishes)
    assert more == ("lock", 2)


class Full(io.StringIO):
    """A standard output on a full disk."""

    def write(self, _: str, /) -> int:
        """Refuse as the kernel does."""
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def spoken(
    target: TextIO | None, *, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> tuple[ExitCode, str]:
    """Run something that prints twice to a standard output; return its code and its errors."""
    errors = io.StringIO()
    monkeypatch.setattr("sys.stdout", target)
    monkeypatch.setattr("sys.stderr", errors)
    session = PerfSession(as_json=False, as_stream=stream, start={})

    async def talk() -> ExitCode:
        session.say("words")
        session.began(session.report)
        return ExitCode.DONE

    return session.run(talk), errors.getvalue()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("target", "number"), [(Full(), errno.ENOSPC), (None, errno.EBADF)])
def test_an_output_that_takes_nothing_is_one_line_and_one_code(
    target: TextIO | None, number: int, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full or closed: what could not be told is not called done, in words as in JSON."""
    code, errors = spoken(target, stream=stream, monkeypatch=monkeypatch)
    assert code is ExitCode.LOCAL_FILE
    assert errors == f"mrc-perf: standard output: {os.strerror(number)}\n"


@pytest.mark.parametrize("stream", [False, True])
def test_a_reader_that_leaves_is_no_news(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind `| head -1` nobody wants to hear that head has gone."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as target:
        code, errors = spoken(target, stream=stream, monkeypatch=monkeypatch)
    assert (code, errors) == (ExitCode.FAILED, "")


@pytest.mark.slow
def test_a_listener_whose_reader_leaves_ends_with_its_client() -> None:
    """`mrc-perf --once | head -1`: the URL was read, the figures have no reader."""
    with listener("--once") as process:
        url = process.url()
        assert process.process.stdout is not None
        process.process.stdout.close()
        process.process.stdout = None
        with client(url, "-n", 5) as measuring:
            assert measuring.end().code == ExitCode.DONE
        assert process.process.wait(DEADLINE_S) == ExitCode.FAILED


@pytest.mark.slow
def test_a_listener_of_our_own_that_cannot_be_is_a_mistake_of_ours() -> None:
    """A plane that this machine does not have is exit code 2, as without --self."""
    with client("--self", "--plane", "192.0.2.1", "-n", 5) as process:
        ended = process.end()
    assert ended.code == ExitCode.USAGE
    assert "192.0.2.1" in ended.err


def test_a_client_that_measured_nothing_has_no_table(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """No heading without figures below it."""
    log = Log(PerfSession(as_json=False, as_stream=False, start={}))
    log.told(Report(start={"peer": "192.0.2.7:1"}), None)
    assert capfd.readouterr().out == ""
    log.told(Report(start={"peer": "192.0.2.7:1"}, tests=[SizeReport(Kind.LATENCY, 64)]), None)
    assert capfd.readouterr().out.splitlines()[0] == "192.0.2.7:1, as counted here:"
