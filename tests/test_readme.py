"""The README's programs run as printed."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_ten_line_program_runs_as_printed() -> None:
    """The Python block of the README does a verified remote write."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 3
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", blocks[0]],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("written and verified:")
    assert done.stderr == ""


def test_the_all_reduce_runs_as_printed() -> None:
    """The next block, as four ranks; the last one is for PyTorch: tests/torch."""
    _, program, _ = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    job = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program],
            env=os.environ | job | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    try:
        ended = [(*rank.communicate(timeout=60), rank.returncode) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert ended == [("averaged over 4 ranks: 1.5\n", "", 0), *[("", "", 0)] * 3]


def test_no_placeholder_is_left() -> None:
    """Figures and output in the README are real ones."""
    assert not re.search(r"^@\w+@$", README.read_text(), re.MULTILINE)


def test_every_file_the_readme_names_is_there() -> None:
    """Links and paths in the README lead somewhere."""
    text = README.read_text()
    names = set(re.findall(r"\]\(([^)#]+)\)", text)) | set(re.findall(r"`(tools/\w+)`", text))
    missing = [name for name in names if not (README.parent / name).exists()]
    assert not missing
