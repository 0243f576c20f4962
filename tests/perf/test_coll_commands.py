"""`mrc-perf --coll` as people and scripts run it: columns, JSON, ranks that die, refusals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mrc.cli.failures import ExitCode
from mrc.errors import ConfigError, PeerUnreachable
from mrc.perf import command
from mrc.perf.collective.figures import CollectiveTest
from mrc.perf.collective.own_ranks import OwnRanks, RankEnded
from mrc.perf.collective.session import CollectiveSession
from mrc.perf.collective.settings import Collective, CollectivePlan
from tests.cli.commands import DEADLINE_S, Running, environment, eventually, running
from tests.collectives.cluster import free_port

WORKER = Path(__file__).with_name("coll_worker.py")
ENDLESS = ("--coll", "all_reduce", "--ranks", 3, "--min-size", 8, "-s", "64M", "-n", 50)
"""A run that is still going on when a test strikes."""


def collective(*arguments: object) -> Running:
    """Start mrc-perf --coll."""
    return running("mrc-perf", "--coll", *arguments, "-n", 2, "-w", 1)


def is_running(pid: int) -> bool:
    """Tell whether a process is there, and no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@contextmanager
def started(*arguments: object) -> Iterator[tuple[Running, list[int]]]:
    """Yield a run after its first test, and the processes of its ranks."""
    with running("mrc-perf", *arguments, "--json-stream") as process:
        assert process.process.stdout is not None
        start = json.loads(process.process.stdout.readline())
        assert start["event"] == "start", start
        assert json.loads(process.process.stdout.readline())["event"] == "test"
        yield process, [rank["pid"] for rank in start["data"]["ranks"]]


@pytest.mark.slow
def test_the_columns_are_those_of_nccl_tests() -> None:
    """Two lines of names, a row a size, and the average at the end; comments begin with a hash."""
    sizes = ("--min-size", 8, "-s", 128, "--step-factor", 4)
    with collective("all_reduce", "--ranks", 3, *sizes) as run:
        ended = run.end()
    assert ended.code == ExitCode.DONE, ended.err
    lines = ended.out.decode().splitlines()
    comments = [line for line in lines if line.startswith("#")]
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert comments[-4].split() == (
        "# size count type redop root time algbw busbw #wrong".split()  # noqa: SIM905
    )
    assert comments[-3].split() == ["#", "(B)", "(elements)", "(us)", "(GB/s)", "(GB/s)"]
    assert comments[-2] == "# Out of bounds values : 0 OK"
    assert comments[-1].startswith("# Avg bus bandwidth    : ")
    assert [row[:5] + row[8:] for row in rows] == [
        ["8", "2", "float32", "sum", "-1", "0"],
        ["32", "8", "float32", "sum", "-1", "0"],
        ["128", "32", "float32", "sum", "-1", "0"],
    ]


@pytest.mark.slow
def test_json_is_one_document_in_the_shape_of_all_others() -> None:
    """Behind a lock here; figures that follow from each other, and who measured."""
    arguments = ("broadcast", "--ranks", 2, "--root", 1, "-s", "64K", "--dtype", "int8", "--lock")
    with collective(*arguments, "--json") as run:
        ended = run.end()
    body = ended.document
    assert (ended.code, body["error"], body["schema"]) == (ExitCode.DONE, None, "mrc-perf/1")
    assert set(body) == {"schema", "start", "intervals", "end", "error"}
    assert body["start"]["locked"] is True
    assert [rank["rank"] for rank in body["start"]["ranks"]] == [0, 1]
    (test,) = body["end"]["tests"]
    assert (test["kind"], test["message_bytes"], test["elements"]) == ("broadcast", 65536, 65536)
    assert (test["root"], test["op"], test["wrong_elements"]) == (1, None, 0)
    assert test["bits_per_second"] == pytest.approx(8 * 65536 / test["seconds"])
    assert body["end"]["bus_bits_per_second"] == pytest.approx(test["bits_per_second"])


@pytest.mark.slow
@pytest.mark.parametrize(("given", "icrc"), [((), False), (("--icrc", "on"), True)])
def test_settings_are_those_of_join_but_for_what_is_given(
    given: tuple[str, ...], *, icrc: bool
) -> None:
    """On loopback there is no iCRC unless it is asked for; all ranks agree, or could not talk."""
    with collective("all_reduce", "--ranks", 2, "-s", "8", "-n", 1, *given, "-J") as run:
        ended = run.end()
    assert ended.code == ExitCode.DONE, ended.err
    assert ended.document["start"]["icrc"] is icrc


@pytest.mark.slow
def test_algorithms_are_compared_in_one_command() -> None:
    """Each at each size, and which was the fastest, in one document."""
    arguments = ("all_reduce", "--ranks", 2, "-s", "4K", "--compare", "algorithms", "--pairs", 2)
    with collective(*arguments, "-J") as run:
        ended = run.end()
    assert ended.code == ExitCode.DONE, ended.err
    (row,) = ended.document["comparison"]["rows"]
    assert set(row["seconds"]) == {"doubling", "ring"}
    assert row["fastest"] == min(row["seconds"], key=row["seconds"].__getitem__)
    assert row["chosen"] == "doubling"
    assert ended.document["end"]["bus_bits_per_second"] is None


def ranks_of_a_job(*arguments: str) -> list[subprocess.Popen[str]]:
    """Start two ranks as torchrun does, with an algorithm that is wrong at hand."""
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [
        subprocess.Popen(
            [sys.executable, str(WORKER), "--coll", "all_reduce", "-n", "1", *arguments],
            env={**environment(), **job, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


@pytest.mark.slow
def test_wrong_values_in_a_job_of_somebody_elses_are_a_one_on_every_rank() -> None:
    """RANK and its like say who it is; rank 0 alone prints, and all ranks end with code 1."""
    ranks = ranks_of_a_job("-s", "4K", "--algorithm", "swap")
    (out, err), (other_out, other_err) = (
        process.communicate(timeout=DEADLINE_S) for process in ranks
    )
    assert [process.returncode for process in ranks] == [ExitCode.FAILED] * 2, err + other_err
    (row,) = [line.split() for line in out.splitlines() if not line.startswith("#")]
    assert int(row[8]) > 1900
    assert "# Out of bounds values : 1 FAILED" in out
    assert "wrong values in 1 of 1 tests, the first of 4096 bytes by swap" in err
    assert (other_out, other_err) == ("", "")


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_run_and_is_named() -> None:
    """Exit code 4; the error has the rank, its process and the signal, and nobody is left."""
    with started(*ENDLESS) as (run, pids):
        os.kill(pids[2], signal.SIGKILL)
        ended = run.end()
    assert ended.code == ExitCode.LOST, ended.err
    told = json.loads(ended.out.splitlines()[-1])
    assert told["event"] == "error"
    assert told["data"]["message"] == f"rank 2, process {pids[2]}, was killed by SIGKILL"
    assert not any(map(is_running, pids))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)],
)
def test_a_run_that_is_stopped_tells_what_it_had(number: signal.Signals, code: ExitCode) -> None:
    """The tests so far, the signal, and no process left."""
    with started(*ENDLESS) as (run, pids):
        run.signal(number)
        ended = run.end()
    assert ended.code == code, ended.err
    *_, end, error = map(json.loads, ended.out.splitlines())
    assert end["event"] == "end"
    assert end["data"]["tests"][0]["message_bytes"] == 8
    assert error["data"]["kind"] == "Interrupted"
    assert not any(map(is_running, pids))


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(word) for word in text.split()]


@pytest.mark.slow
def test_a_stop_before_all_ranks_are_there_is_one_document() -> None:
    """Ctrl-C while they start: no end, an error, and no process left."""
    with running("mrc-perf", *ENDLESS, "--json") as run:
        pid = run.process.pid
        eventually(lambda: len(children_of(pid)) == 2, "two ranks are started")
        others = children_of(pid)
        run.signal(signal.SIGINT)
        ended = run.end()
    assert ended.code == ExitCode.INTERRUPTED, ended.err
    assert ended.document["end"] is None
    assert ended.document["error"]["kind"] == "Interrupted"
    assert not any(map(is_running, others))


@pytest.mark.slow
def test_ranks_do_not_outlive_a_command_that_is_killed() -> None:
    """They notice at their standard input, whatever they are doing."""
    with started(*ENDLESS) as (run, pids):
        run.signal(signal.SIGKILL)
        eventually(lambda: not any(map(is_running, pids[1:])), "the ranks are gone")


@pytest.mark.slow
def test_a_rank_that_cannot_be_what_was_asked_for_says_so() -> None:
    """Its last words, and which one it was."""

    async def start() -> None:
        async with OwnRanks([environment()], ["--coll", "nonsense"]) as ranks:
            async with asyncio.timeout(DEADLINE_S):
                await ranks.watch()

    with pytest.raises(ConfigError, match=r"rank 1, process \d+, could not be .*nonsense"):
        asyncio.run(start())


def test_a_document_of_a_failed_run_has_the_tests_before() -> None:
    """Whatever ends it."""
    plan = CollectivePlan(collective=Collective.ALL_REDUCE, ranks=2, sizes=(8,))
    session = CollectiveSession(plan, 0, as_json=True, as_stream=False, start={})
    test = CollectiveTest(
        plan=plan, count=2, algorithm="ring", time_ns=8, time_ns_min=7, time_ns_max=9, wrong=None
    )

    async def fail() -> ExitCode:
        session.measured(test)
        raise ConfigError("enough")

    printed: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mrc.perf.session.print_document", printed.append)
        assert session.run(fail) is ExitCode.USAGE
    (body,) = printed
    assert body["error"]["message"] == "enough"
    assert body["end"]["tests"][0]["bits_per_second"] == 8e9
    assert body["end"]["tests"][0]["wrong_elements"] is None


@pytest.mark.parametrize("as_stream", [False, True])
def test_a_rank_that_is_not_0_prints_json_where_it_fails(
    capfd: pytest.CaptureFixture[str], *, as_stream: bool
) -> None:
    """Its own error, which rank 0 may never hear of; where all goes well rank 0 speaks for all."""
    plan = CollectivePlan(collective=Collective.ALL_REDUCE, ranks=2, sizes=(8,))

    def session() -> CollectiveSession:
        return CollectiveSession(plan, 1, as_json=True, as_stream=as_stream, start={})

    async def fail() -> ExitCode:
        raise PeerUnreachable("rank 0 is not there")

    async def succeed() -> ExitCode:
        return ExitCode.DONE

    assert session().run(succeed) is ExitCode.DONE
    assert capfd.readouterr().out == ""
    assert session().run(fail) is ExitCode.NOT_REACHED
    told = json.loads(capfd.readouterr().out)
    error = told["data"] if as_stream else told["error"]
    assert (error["message"], error["exit_code"]) == ("rank 0 is not there", ExitCode.NOT_REACHED)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"locked": False, "paths": 16}, "# not encrypted; 16 paths, MTU up to 4096, iCRC off"),
        ({"locked": True, "paths": 1}, "# encrypted; 1 path, MTU up to 4096, iCRC off"),
    ],
)
def test_the_table_says_what_its_figures_depend_on(
    given: dict[str, object], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Lock, paths, packets, and the algorithms of all sizes."""
    sizes = (8, 64 << 20)
    plan = CollectivePlan(collective=Collective.ALL_REDUCE, ranks=4, sizes=sizes)
    start = {"mtu_bytes": 4096, "icrc": False, **given}
    CollectiveSession(plan, 0, as_json=False, as_stream=False, start=start).met([])
    assert f"{words}; by doubling and ring\n" in capfd.readouterr().out


def test_a_rank_that_lost_another_one_is_not_the_one_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line about the lost rank, with one prefix at most, which whoever prints it adds."""
    command = tmp_path / "rank"
    words = "rank 1 at 127.0.0.1:9 failed: silent on all paths for 5.00 s"
    command.write_text(
        f'#!/bin/sh\n[ "$RANK" = 1 ] && exec sleep 60\necho "mrc-perf: {words}" >&2\nexit 4\n'
    )
    command.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(command))
    others = [{**environment(), "RANK": str(rank)} for rank in (1, 2)]

    async def start() -> None:
        async with OwnRanks(others, ()) as ranks, asyncio.timeout(DEADLINE_S):
            await ranks.watch()

    with pytest.raises(RankEnded) as caught:
        asyncio.run(start())
    assert str(caught.value) == words
    assert caught.value.rank == 1


# Refusals.

TWO = ("--ranks", "2")
REFUSED: dict[str, tuple[list[str], str]] = {
    "a host": (["h", *TWO], "HOST means nothing with --coll; MASTER_ADDR"),
    "nccl-tests' -b": (["-b", *TWO], "--bidirectional means nothing with --coll; nccl-tests' -b"),
    "seconds": (["-D", "2", *TWO], "--duration means nothing with --coll; -n"),
    "queue pairs": (["-q", "2", *TWO], "--qps means nothing with --coll"),
    "planes": (["--plane", "::1", *TWO], "--plane means nothing with --coll; MRC_SOCKET_IFNAME"),
    "a listener": (["--self", *TWO], "--self means nothing with --coll; --ranks"),
    "the cost of a lock": (["--compare", "lock", *TWO], "--compare lock means nothing"),
    "pairs of nothing": (["--pairs", "3", *TWO], "--pairs is for --compare"),
    "no ranks": ([], "--ranks N starts all ranks here; a rank of a job is told by RANK"),
    "too many ranks": (["--ranks", "65"], "65 is not in the range 1<=x<=64"),
    "a root that is none": (["--root", "0", *TWO], "--root means nothing to all_reduce"),
    "a sweep downwards": (["--min-size", "2K", "-s", "1K", *TWO], "--min-size 2048 is above"),
    "no such algorithm": (["--algorithm", "magic", *TWO], "there are doubling, ring"),
    "one and all": (
        ["--algorithm", "ring", "--compare", "algorithms", *TWO],
        "--algorithm takes one and --compare algorithms takes all",
    ),
    "no average": (["--dtype", "bool", "--op", "avg", *TWO], "there is no average of bools"),
}


def refused(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> str:
    """Run the command in this process, and return why it refused in its document."""
    left: list[ExitCode] = []
    monkeypatch.setattr("sys.argv", ["mrc-perf", *arguments, "-J"])
    monkeypatch.setattr(command, "leave", left.append)
    monkeypatch.setattr(command, "fill_standard_descriptors", lambda: None)
    command.main()
    assert left == [ExitCode.USAGE]
    body = json.loads(capfd.readouterr().out)
    assert set(body) == {"schema", "start", "intervals", "end", "error"}
    return str(body["error"]["message"])


@pytest.mark.parametrize("mistake", REFUSED)
def test_what_means_nothing_here_is_refused_by_name(
    mistake: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and what to do instead where there is something."""
    words, why = REFUSED[mistake]
    assert why in refused(["--coll", "all_reduce", *words], monkeypatch, capfd)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["gather", "--root", "2", *TWO], "--root 2: the ranks are 0 to 1"),
        (["all_gather", "--op", "sum", *TWO], "--op means nothing to all_gather"),
        (["sendrecv", "--ranks", "1"], "sendrecv between 1 rank; must be 2 at least"),
        (["sendrecv", "--algorithm", "ring", *TWO], "sendrecv has no algorithms"),
    ],
)
def test_what_a_collective_has_not_is_refused(
    words: list[str],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Roots, ways to combine, and algorithms: each where they mean something."""
    assert why in refused(["--coll", *words], monkeypatch, capfd)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--dtype", "int8"], "--dtype is for --coll"),
        (["h", "--ranks", "2"], "--ranks is for --coll"),
        (["--compare", "algorithms"], "--compare algorithms is for --coll"),
    ],
)
def test_what_belongs_to_collectives_is_refused_elsewhere(
    words: list[str],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Nothing is silently ignored."""
    assert why in refused(words, monkeypatch, capfd)


@pytest.mark.parametrize(
    ("variables", "words", "why"),
    [
        ({"RANK": "0"}, [], "(not set: WORLD_SIZE, MASTER_ADDR, MASTER_PORT)"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, [], "rank 2 of 2; must be 0 to 1"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ["--ranks", "2"], "--ranks 2 starts ranks here, but"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ["--lock"], "--lock: MRC_IDENTITY and MRC_TOKEN"),
    ],
)
def test_an_environment_that_says_something_else_is_refused(
    variables: dict[str, str],
    words: list[str],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A rank that is half told which it is, and a job that is started twice."""
    rest = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"} if len(variables) > 1 else {}
    for name, value in (variables | rest).items():
        monkeypatch.setenv(name, value)
    assert why in refused(["--coll", "all_reduce", *words], monkeypatch, capfd)


def test_buffers_beyond_the_memory_are_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The sum of all ranks here, the limit, and what to do."""
    monkeypatch.setattr("mrc.perf.collective.runs.available_bytes", lambda: 1 << 20)
    words = ["--coll", "all_to_all", *TWO, "-s", "1M"]
    why = refused(words, monkeypatch, capfd)
    assert why.startswith("buffers of 4.0 MiB in all ranks here; 512.0 KiB at most")


def test_help_has_an_example_of_collectives(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What people read first shows whole commands, and where nccl-tests' letters went."""
    monkeypatch.setattr("sys.argv", ["mrc-perf", "--help"])
    monkeypatch.setattr(command, "leave", lambda _: None)
    monkeypatch.setattr(command, "fill_standard_descriptors", lambda: None)
    command.main()
    out = capfd.readouterr().out
    assert "mrc-perf --coll all_reduce --ranks 4" in out
    assert "nccl-tests' -b, -e and -f are --min-size, --size and --step-factor" in out
