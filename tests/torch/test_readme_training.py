"""The README's training program runs as printed, started by torchrun."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torch.job import ROOT


@pytest.mark.slow
def test_the_training_program_runs_as_printed(tmp_path: Path) -> None:
    """Two ranks, whose launcher has a store of its own on MASTER_PORT."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (program,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        if "import mrc.torch" in block
    )
    script = tmp_path / "train.py"
    script.write_text(program, encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node=2", str(script)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained by 2 ranks over mrc\n"
