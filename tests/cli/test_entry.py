"""The first moments of the commands: ended before they have begun, they end well."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mrc.cli.entry import PERF, RECV, SEND, Output
from mrc.cli.failures import ExitCode, Interrupted
from mrc.cli.report import document, failure
from tests.cli.commands import DEADLINE_S, command, environment

ENDS = [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)]


def _signalled(
    tmp_path: Path, words: list[str], number: signal.Signals
) -> subprocess.CompletedProcess[str]:
    """Run a command that gets a signal while it imports its first package."""
    stub = f"import os; os.kill(os.getpid(), {int(number)}); raise SystemExit('went on')"
    (tmp_path / "click.py").write_text(stub)
    return subprocess.run(
        words,
        env={**environment(), "PYTHONPATH": f"{tmp_path}:{environment()['PYTHONPATH']}"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.mark.parametrize(("number", "code"), ENDS)
@pytest.mark.parametrize("name", ["mrc-send", "mrc-recv"])
def test_a_signal_among_the_imports_ends_in_one_line(
    tmp_path: Path, name: str, number: signal.Signals, code: int
) -> None:
    """The code is the signal's, and there is no traceback."""
    ended = _signalled(tmp_path, command(name), number)
    assert ended.returncode == code
    assert (ended.stdout, ended.stderr) == ("", f"{name}: stopped by {number.name}\n")


@pytest.mark.parametrize(("number", "code"), ENDS)
@pytest.mark.parametrize("name", ["mrc-send", "mrc-recv"])
def test_a_signal_among_the_imports_keeps_the_promise_of_json(
    tmp_path: Path, name: str, number: signal.Signals, code: ExitCode
) -> None:
    """The document is the one that would be printed a moment later."""
    ended = _signalled(tmp_path, command(name, "--json"), number)
    error = failure(Interrupted(number), code)
    assert json.loads(ended.stdout) == document(name, {}, [], error)
    assert ended.returncode == code


def test_an_ignored_interrupt_stays_ignored(tmp_path: Path) -> None:
    """A command in the background of a shell does not hear of the Ctrl-C in the foreground."""
    words = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command("mrc-send")]
    ended = _signalled(tmp_path, words, signal.SIGINT)
    assert ended.stderr == "went on\n"


def test_the_beginning_is_light() -> None:
    """Nothing is imported that takes long before signals are seen to."""
    code = "import mrc.cli.entry, sys; print({'asyncio', 'click', 'numpy', 'ssl'} & {*sys.modules})"
    words = [sys.executable, "-c", code]
    seen = subprocess.run(words, env=environment(), capture_output=True, text=True, check=True)
    assert seen.stdout == "set()\n"


@pytest.mark.parametrize(
    ("words", "output"),
    [
        ([], Output.WORDS),
        (["h", "-b"], Output.WORDS),
        (["h", "-J"], Output.DOCUMENT),
        (["-bJ"], Output.DOCUMENT),
        (["-Jb"], Output.DOCUMENT),
        (["-Jn5"], Output.DOCUMENT),
        (["--json"], Output.DOCUMENT),
        (["--json-stream"], Output.STREAM),
        (["-J", "--json-stream"], Output.STREAM),
        (["--", "-J"], Output.WORDS),
        (["-pJ"], Output.WORDS),
    ],
)
def test_what_is_promised_is_known_before_all_words_are(words: list[str], output: Output) -> None:
    """Among other short flags or alone: whoever ends mrc-perf early prints what was asked for."""
    assert PERF.output(words) is output


def test_letters_of_one_command_are_not_those_of_another() -> None:
    """Only mrc-perf has a short word for JSON, and a stream."""
    assert SEND.output(["-J", "--json-stream"]) is Output.WORDS
    assert RECV.output(["--json"]) is Output.DOCUMENT


@pytest.mark.slow
def test_a_signal_among_the_imports_is_a_line_of_a_stream(tmp_path: Path) -> None:
    """Whoever reads line by line gets one, as a moment later."""
    ended = _signalled(tmp_path, command("mrc-perf", "--json-stream"), signal.SIGTERM)
    error = failure(Interrupted(signal.SIGTERM), ExitCode.TERMINATED)
    assert json.loads(ended.stdout) == {"event": "error", "data": error}
    assert ended.returncode == ExitCode.TERMINATED
