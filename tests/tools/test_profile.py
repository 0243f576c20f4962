"""What `tools/profile` makes of stacks: which part of the work, and how much of a run."""

import asyncio
import linecache
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from benchmarks.child import transfer
from profiling.parts import ABOUT, ROOT, Part, place
from profiling.report import document_of, rate_line, side_of, sort_shares, text_of
from profiling.stacks import RESUME, Frame, RawStack, Stack, merge, read_stacks, sampled
from profiling.worker import Job

LineOf = Callable[[str, str, str], Frame]

LOOP = Frame("/usr/lib/python3.11/asyncio/runners.py", 118, "run")
NUMPY = Frame("/site-packages/numpy/_core/numeric.py", 2601, "array_equal")
BARE = {"count": 100, "ns": 10_000_000, "sender_cpu_ns": 4_000_000}
PROFILED = {"count": 100, "ns": 11_000_000, "sender_cpu_ns": 4_400_000}


ENGINE = Frame(f"{ROOT}/mrc/engine.py", 300, "_pump")


@pytest.fixture(name="line_of")
def line_of_fixture(monkeypatch: pytest.MonkeyPatch) -> LineOf:
    """Makes a frame at the first line of a file of ours, which holds this text while it lasts."""

    def line_of(file: str, text: str, function: str) -> Frame:
        name = f"{ROOT}/{file}"
        monkeypatch.setitem(linecache.cache, name, (len(text), None, [text], name))
        return Frame(name, 1, function)

    return line_of


@pytest.mark.parametrize(
    ("file", "text", "function", "part"),
    [
        ("mrc/udp/x.py", "self._sendmsg((buffer,), ancillary)", "send", Part.SYSTEM_CALL),
        ("mrc/udp/x.py", "got = self._recvmsg_into(", "receive_into", Part.SYSTEM_CALL),
        ("mrc/udp/x.py", "byte_count = buffer.nbytes", "send", Part.UDP),
        ("mrc/proto/x.py", "np.copyto(target, payloads)", "receive_run", Part.COPY),
        ("mrc/wire/x.py", "views.payloads[:count] = stretch", "write", Part.COPY),
        ("mrc/wire/x.py", "np.copyto(words, headers)", "read_headers", Part.WIRE),
        ("mrc/wire/icrc.py", "return list(map(crc32, rows))", "rows", Part.ICRC),
        ("mrc/wire/x.py", "np.bitwise_xor(values, delta)", "write_icrcs", Part.ICRC),
        ("mrc/wire/seal.py", "encrypt(nonce, row)", "seal_rows", Part.AEAD),
        ("mrc/wire/x.py", "np.subtract(words, words[0])", "is_one_run", Part.WIRE),
        ("mrc/proto/x.py", "return None", "transmit", Part.PROTO),
        ("mrc/engine.py", "run = transmit(now_ns)", "_pump", Part.ENGINE),
        ("mrc/api.py", "await self.post(data)", "write", Part.API),
        ("tools/benchmarks/x.py", "await qp.write(block)", "write_on", Part.APPLICATION),
    ],
)
def test_a_line_belongs_to_a_part(
    file: str, text: str, function: str, part: Part, line_of: LineOf
) -> None:
    """What a line does decides, then where it stands."""
    frame = line_of(file, text, function)
    assert place((frame, LOOP)) == (part, frame)


def test_the_lines_that_the_rules_look_for_are_there() -> None:
    """A system call on each way, and a copy of payloads on each side, by file."""
    found: dict[Part, set[str]] = {}
    for path in (ROOT / "mrc").rglob("*.py"):
        for number in range(1, len(path.read_text().splitlines()) + 1):
            part, _ = place((Frame(str(path), number, "f"),))
            found.setdefault(part, set()).add(path.name)
    assert {"send_socket.py", "receive_socket.py"} <= found[Part.SYSTEM_CALL]
    assert {"packetizer.py", "responder.py"} <= found[Part.COPY]


def test_what_numpy_does_is_work_of_the_line_that_asked(line_of: LineOf) -> None:
    """The innermost frame of ours takes the blame for what it calls elsewhere."""
    asked = line_of("mrc/wire/x.py", "np.array_equal(steps, pattern)", "is_one_run")
    assert place((NUMPY, asked, LOOP)) == (Part.WIRE, asked)


def test_a_stack_without_a_frame_of_ours_is_the_event_loop() -> None:
    """What runs between callbacks is the loop's."""
    assert place((LOOP,)) == (Part.LOOP, LOOP)


def test_every_part_is_explained() -> None:
    """The JSON says what each part holds."""
    assert ABOUT.keys() == set(Part)


def two_parts() -> Counter[Stack]:
    """Three stacks in the engine, one in the loop."""
    return Counter({(ENGINE, LOOP): 3, (LOOP,): 1})


def test_parts_add_up_to_what_a_run_costs_undisturbed() -> None:
    """Shares come from the stacks, their sum from the transfer in which none were taken."""
    side = side_of("sender", two_parts(), BARE, PROFILED)
    assert (side.us, side.profiled_us, side.samples, side.busy) == (40.0, 44.0, 4, 0.4)
    assert {share.part: share.us for share in side.shares} == {Part.ENGINE: 30.0, Part.LOOP: 10.0}
    assert side.overhead == pytest.approx(0.1)


def test_spots_are_functions_or_lines() -> None:
    """Two lines of a function are one spot, or two."""
    stacks: Counter[Stack] = Counter({(ENGINE,): 1, (ENGINE._replace(line=301),): 1})
    (by_function,) = side_of("sender", stacks, BARE, PROFILED).shares
    (by_line,) = side_of("sender", stacks, BARE, PROFILED, by_line=True).shares
    assert [spot.name for spot in by_function.spots] == ["mrc/engine.py _pump"]
    assert [spot.name for spot in by_line.spots] == [
        "mrc/engine.py:300 _pump",
        "mrc/engine.py:301 _pump",
    ]


def test_parts_are_sorted_by_time_or_by_the_path_of_a_run() -> None:
    """The costliest first, or as a run meets them."""
    shares = side_of("sender", two_parts(), BARE, PROFILED).shares
    assert [share.part for share in sort_shares(shares, "time")] == [Part.ENGINE, Part.LOOP]
    assert [share.part for share in sort_shares(shares, "path")] == [Part.LOOP, Part.ENGINE]


def test_text_and_json_tell_the_same() -> None:
    """A bar for each part, its costliest lines below, and what the profiler itself costs."""
    side = side_of("sender", two_parts(), BARE, PROFILED)
    text = list(text_of(side, "a run", "time", spots=1))
    assert text[0].startswith("sender: 40.0 us of processor time for a run, 40% of a core; 4")
    assert text[1].split() == ["engine", "30.0", "us", "75%", "#" * 40]
    assert text[2].split() == ["30.0", "mrc/engine.py", "_pump"]
    assert text[-1].startswith("  taking the stacks: +10.0%")
    parts = document_of(side, "time")["parts"]
    assert [(part["name"], part["us"], part["ratio"]) for part in parts] == [
        ("engine", 30.0, 0.75),
        ("event loop", 10.0, 0.25),
    ]


def test_the_rate_is_told_for_what_was_counted() -> None:
    """Runs give gigabits a second, round trips the time of one."""
    assert rate_line(BARE, ping_pong=False) == "4.92 Gbit/s"
    assert rate_line(BARE, ping_pong=True) == "100.0 us a round trip"


@pytest.mark.slow
@pytest.mark.parametrize("ping_pong", [False, True])
def test_a_real_transfer_is_profiled_on_both_sides(ping_pong: bool, tmp_path: Path) -> None:
    """Both sides have stacks, and their parts add up."""
    job = Job(
        paths=2,
        icrc=True,
        locked=False,
        ping_pong=ping_pong,
        seconds=0.2,
        interval_s=0.001,
        folder=str(tmp_path),
        bare_seconds=0.05,
    )
    told, _ = asyncio.run(transfer("worker", asdict(job), package="profiling"))
    for name in ("sender", "receiver"):
        side = side_of(name, read_stacks(job.stacks(name)), told["bare"], told["profiled"])
        assert sum(share.us for share in side.shares) == pytest.approx(side.us)
        assert side.samples > 0


def test_stacks_are_taken_of_what_uses_the_processor(tmp_path: Path) -> None:
    """A function that computes is found in them, called by this test."""
    file = tmp_path / "stacks"
    with sampled(file, interval_s=0.001):
        burn(processor_s=0.05)
    names = [[frame.function for frame in stack] for stack in read_stacks(file)]
    callers = {stack[stack.index("burn") + 1] for stack in names if "burn" in stack}
    assert callers == {"test_stacks_are_taken_of_what_uses_the_processor"}


def burn(processor_s: float) -> None:
    """Use the processor for so long."""
    end_s = time.process_time() + processor_s
    while time.process_time() < end_s:
        pass


def test_nothing_is_taken_any_more_afterwards(tmp_path: Path) -> None:
    """The timer is off, and its signal means what it meant before."""
    before = signal.getsignal(signal.SIGPROF)
    with sampled(tmp_path / "stacks", interval_s=0.001):
        pass
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGPROF) is before


def test_a_function_that_has_not_begun_is_not_blamed() -> None:
    """What led to it is its caller's; a function that has begun stands for itself."""
    inner, outer = burn.__code__, place.__code__
    begins = inner.co_code.index(RESUME)
    caller = (outer, len(outer.co_code) - 2, 20)
    seen: Counter[RawStack] = Counter(
        {((inner, begins, 10), caller): 2, ((inner, begins + 2, 11), caller): 3}
    )
    of_caller = Frame(outer.co_filename, 20, "place")
    of_burn = Frame(inner.co_filename, 11, "burn")
    assert merge(seen) == {(of_caller,): 2, (of_burn, of_caller): 3}
