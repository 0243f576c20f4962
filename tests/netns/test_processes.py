"""A traffic process in the hands of a run: what it says, complains about, and how it ends."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from netns import processes
from netns.processes import COMPLAINT_BYTES, LINE_BYTES_MAX, Traffic, TrafficFailed

Start = Callable[[str], Awaitable[Traffic]]

STUBBORN = (
    "import signal\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('ready', flush=True)\n"
    # Deaf to SIGTERM and to a closed input; the alarm is for the case that the test is not there.
    "signal.alarm(60)\n"
    "signal.pause()"
)


@pytest_asyncio.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Start Python with a program as the process `child`."""
    started = []

    async def begin(program: str) -> Traffic:
        command = [sys.executable, "-c", program]
        traffic = await Traffic.start("child", command, dict(os.environ), tmp_path / "child.json")
        started.append(traffic)
        return traffic

    yield begin
    for traffic in started:
        await traffic.end()


async def until_ended(traffic: Traffic) -> None:
    """Poll as a run does."""
    async with asyncio.timeout(5):
        while not traffic.ended:  # noqa: ASYNC110  # polling is what is tested
            await asyncio.sleep(0.005)


@pytest.mark.asyncio
async def test_what_it_says_and_leaves(start: Start, tmp_path: Path) -> None:
    """The rest of its line, then its record; no complaint."""
    traffic = await start("print('ready mrc://x/', input())")
    traffic.tell("go")
    assert await traffic.expect("ready", 5) == "mrc://x/ go"
    await traffic.finished(5)
    assert traffic.ended
    assert traffic.complaint == ""
    assert traffic.record() == {}
    (tmp_path / "child.json").write_text('{"half":')
    assert traffic.record() == {}
    (tmp_path / "child.json").write_text('{"flows": []}')
    assert traffic.record() == {"flows": []}


@pytest.mark.asyncio
async def test_the_wrong_word(start: Start) -> None:
    """Both words are named, and it runs no more."""
    traffic = await start("print('reddy', flush=True); input()")
    with pytest.raises(TrafficFailed, match="child said 'reddy' instead of 'ready'"):
        await traffic.expect("ready", 5)
    assert traffic.ended


@pytest.mark.asyncio
async def test_nothing_in_time(start: Start) -> None:
    """Who, what, and the limit."""
    traffic = await start("input()")
    with pytest.raises(TrafficFailed, match=r"child did not say 'ready' within 0\.05 s"):
        await traffic.expect("ready", 0.05)
    assert traffic.ended


@pytest.mark.asyncio
async def test_it_goes_on_when_it_is_late(start: Start) -> None:
    """A run may wait again, and a second time says the same: it was a CancelledError once."""
    traffic = await start("input()")
    for _ in range(2):
        with pytest.raises(TrafficFailed, match=r"child did not end within 0\.01 s"):
            await traffic.finished(0.01)
    assert not traffic.ended
    traffic.close_input()
    await traffic.finished(5)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("program", "complaint"),
    [("raise SystemExit(3)", "exit status 3"), ("raise SystemExit('no route')", "no route")],
)
async def test_ended_at_once(start: Start, program: str, complaint: str) -> None:
    """Its complaint is there as soon as it counts as ended, and in what `expect` raises."""
    traffic = await start(program)
    await until_ended(traffic)
    assert traffic.complaint == complaint
    with pytest.raises(TrafficFailed, match=f"child ended instead of 'ready': {complaint}"):
        await traffic.expect("ready", 5)


@pytest.mark.asyncio
async def test_long_lines(start: Start) -> None:
    """2 MiB on standard error do not stop it, and on standard output are a wrong word."""
    traffic = await start("import sys; sys.stderr.write('x' * (2 << 20) + 'end'); sys.exit(1)")
    await traffic.finished(5)
    assert traffic.complaint == "x" * (COMPLAINT_BYTES - 3) + "end"
    traffic = await start(f"print('y' * {2 * LINE_BYTES_MAX})")
    with pytest.raises(TrafficFailed, match="a line of more than 1048576 bytes"):
        await traffic.expect("ready", 5)


@pytest.mark.asyncio
async def test_it_is_let_finish_first(start: Start, tmp_path: Path) -> None:
    """A closed input comes before signals, so that there is a record."""
    path = tmp_path / "child.json"
    traffic = await start(f"import sys; sys.stdin.read(); open({str(path)!r}, 'w').write('{{}}')")
    await traffic.end()
    assert path.exists()
    assert traffic.complaint == ""


@pytest.mark.asyncio
async def test_it_is_made_to_end(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hears neither its input nor SIGTERM; that we ended it is no complaint of its own."""
    monkeypatch.setattr(processes, "END_TIMEOUT_S", 0.02)
    traffic = await start(STUBBORN)
    await traffic.expect("ready", 5)
    await traffic.end()
    await until_ended(traffic)
    assert traffic.complaint == ""


@pytest.mark.asyncio
async def test_silence_is_told_to_a_run_that_is_cancelled(start: Start) -> None:
    """And the process is ended, as at any other time."""
    traffic = await start("input()")

    async def run() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await traffic.expect("ready", 0.05)

    running = asyncio.ensure_future(run())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(TrafficFailed, match=r"did not say 'ready' within 0\.05 s"):
        await running
    assert traffic.ended
