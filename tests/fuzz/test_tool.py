"""What `tools/fuzz` is made of: choices from bytes, odd JSON, and reading what libFuzzer prints."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from fuzzing import campaign, corpus, odd
from fuzzing.campaign import Result, fuzz, merge, progress_line
from fuzzing.feed import Feed
from fuzzing.vloop import virtual_loop
from hypothesis import given
from hypothesis import strategies as st

# Choices.


def test_choices_beyond_the_end_are_the_first_ones() -> None:
    """A short input is complete: what it does not say is zero."""
    feed = Feed(b"\x02")
    assert (feed.pick("abc"), bool(feed)) == ("c", False)
    assert (feed.pick("abc"), feed.number(4), feed.signed(2), feed.flag()) == ("a", 0, 0, False)
    assert (feed.take(3), feed.rest()) == (b"", b"")


def test_a_choice_takes_as_many_bytes_whatever_it_is() -> None:
    """Changing one choice leaves those behind it as they are."""
    assert [Feed(bytes((first, 7))).pick("ab") for first in (0, 1, 2, 3)] == ["a", "b", "a", "b"]
    feed = Feed(b"\xff\xff\x01\x02\x03")
    assert (feed.signed(2), feed.number(1), feed.rest()) == (-1, 1, b"\x02\x03")


@given(data=st.binary(max_size=60))
def test_a_spoilt_document_is_json_still(data: bytes) -> None:
    """Whatever a peer does to a document, a line of JSON can carry it."""
    document = {"a": [1, {"b": "c"}], "d": {"e": None}}
    json.loads(json.dumps(odd.spoil(Feed(data), document)))
    assert document == {"a": [1, {"b": "c"}], "d": {"e": None}}


def test_an_hour_of_waiting_takes_no_time_and_fails() -> None:
    """The virtual loop jumps to the next timer, and bears no endless silence."""
    loop = virtual_loop()
    before_s = loop.time()
    loop.run(asyncio.sleep(600))
    assert 600 <= loop.time() - before_s < 601
    with pytest.raises(TimeoutError):
        loop.run(asyncio.sleep(4000))


def test_a_wait_without_any_timer_is_a_fault() -> None:
    """Where nothing can ever happen the target fails instead of hanging."""

    async def wait_for_ever() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(TimeoutError):
        virtual_loop().run(wait_for_ever())


def test_a_task_left_behind_is_a_fault() -> None:
    """Whoever ends without ending what it began fails."""

    async def leave() -> None:
        # Kept by the loop alone, which is the fault.
        asyncio.ensure_future(asyncio.sleep(1))  # noqa: RUF006

    with pytest.raises(AssertionError, match="tasks left behind"):
        virtual_loop().run(leave())


# What libFuzzer prints.


def test_progress_and_statistics_are_read() -> None:
    """Executions, coverage, inputs and memory come from the lines libFuzzer prints."""
    result = Result("decoders", seconds=2.0)
    for line in (
        "INFO: seed corpus: files: 3 min: 1b max: 283b total: 2b rss: 77Mb",
        "#1024\tpulse  cov: 222 ft: 646 corp: 156/10993b lim: 256 exec/s: 3864 rss: 232Mb",
        "#2048\tREDUCE cov: 223 ft: 647 corp: 157/9Kb lim: 256 exec/s: 0 rss: 2Mb L: 1/2 MS: 1 -",
    ):
        result.read(line)
    assert (result.executions, result.coverage, result.corpus) == (2048, 223, 157)
    assert "2,048 executions    1,024/s   coverage   223   157 inputs" in progress_line(result)
    for line in (
        "stat::number_of_executed_units: 3000",
        "stat::new_units_added:          8",
        "stat::peak_rss_mb:              356",
    ):
        result.read(line)
    assert (result.executions, result.new_inputs, result.peak_memory_mib) == (3000, 8, 356)
    assert not result.failed


# Processes, with a script in the place of the fuzzing engine.

STAND_IN = """
import os, signal, sys, time
from pathlib import Path
target, *arguments = sys.argv[1:]
options = dict(each.split("=", 1) for each in arguments if each.startswith("-"))
folders = [each for each in arguments if not each.startswith("-")]
if {stubborn!r}:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
print("#10\\tpulse  cov: 7 ft: 9 corp: 3/99b lim: 4 exec/s: 5 rss: 6Mb", flush=True)
if "-merge" in options:
    Path(folders[0], "blank").write_bytes(b" ")
    Path(folders[0], "chosen").write_bytes(b"x")
elif {crash!r}:
    print("=== Uncaught Python exception: ===\\nAssertionError: so it is")
    print("==1== ERROR: libFuzzer: fuzz target exited", flush=True)
    Path(options["-artifact_prefix"] + "crash-01").write_bytes(b"spoilt")
    sys.exit(77)
elif {hang!r}:
    time.sleep(600)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of its own, and a place for the script."""
    monkeypatch.setattr(corpus, "ROOT", tmp_path)
    for name in ("KEPT", "CRASHES", "FOUND"):
        monkeypatch.setattr(corpus, name, tmp_path / name.lower())
    script = tmp_path / "stand_in.py"
    monkeypatch.setattr(campaign, "WORKER", (sys.executable, str(script)))
    return script


def write(script: Path, *, crash: bool = False, hang: bool = False, stubborn: bool = False) -> None:
    """Write the script."""
    text = STAND_IN.format(crash=crash, hang=hang, stubborn=stubborn)
    script.write_text(text, encoding="utf-8")


@pytest.mark.asyncio
async def test_a_clean_run_is_told_as_one(stand_in: Path) -> None:
    """A process that ends by itself without a crash is clean, and its numbers are kept."""
    write(stand_in)
    result = Result("decoders")
    await fuzz(result, 1, lambda _: None)
    assert (result.executions, result.coverage) == (10, 7)
    assert (result.failed, result.ended) == (False, True)
    assert result.to_json()["crashes"] == []


@pytest.mark.asyncio
async def test_a_crash_is_moved_to_the_tests_with_its_trace(stand_in: Path) -> None:
    """The input that failed is replayed by the tests from then on; the trace says what happened."""
    write(stand_in, crash=True)
    result = Result("decoders")
    await fuzz(result, 1, lambda _: None)
    assert result.crashes == ["crashes/decoders/crash-01"]
    assert (corpus.ROOT / result.crashes[0]).read_bytes() == b"spoilt"
    assert result.failure == [
        "=== Uncaught Python exception: ===",
        "AssertionError: so it is",
    ]
    assert [path.name for path in corpus.inputs("decoders")] == ["crash-01"]


@pytest.mark.asyncio
async def test_a_process_that_cannot_start_is_a_failure(stand_in: Path) -> None:
    """Without a crash, but with an error, a run is not clean."""
    stand_in.write_text("raise SystemExit('no such module')", encoding="utf-8")
    result = Result("decoders")
    await fuzz(result, 1, lambda _: None)
    assert (result.crashes, result.failure, result.failed) == ([], ["no such module"], True)


@pytest.mark.asyncio
@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_run_that_is_cancelled_leaves_no_process(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch, *, stubborn: bool
) -> None:
    """Ctrl-C ends the workers, and then the run; one that does not hear it is killed."""
    write(stand_in, hang=True, stubborn=stubborn)
    monkeypatch.setattr(campaign, "PROGRESS_S", 0)
    if stubborn:
        monkeypatch.setattr(campaign, "STOP_TIMEOUT_S", 0.05)
    before, began = children(), asyncio.Event()
    result = Result("decoders")
    run = asyncio.ensure_future(fuzz(result, 600, lambda _: began.set()))
    async with asyncio.timeout(30):
        await began.wait()
        assert children() != before
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    assert children() == before
    assert (result.executions, result.ended) == (10, False)


def children() -> list[str]:
    """Return the processes that this one has started and that still run."""
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    return found.split()


@pytest.mark.asyncio
async def test_a_merge_keeps_what_was_chosen_and_no_blanks(stand_in: Path) -> None:
    """What is kept is what libFuzzer chose, except for inputs that no file may hold."""
    write(stand_in)
    (corpus.kept("decoders") / "old").write_bytes(b"y")
    assert await merge("decoders") == (1, 1)
    assert [path.name for path in corpus.kept("decoders").iterdir()] == ["chosen"]
