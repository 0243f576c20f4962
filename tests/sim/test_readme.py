"""What the simulator's README shows works as shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "mrc" / "sim" / "README.md"


def test_simulation_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """The example runs, breaks no rule, and shows the plane that was cut."""
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    exec(block, {})  # noqa: S102  # the README's own words
    printed = capsys.readouterr().out
    assert printed.startswith("all rules held")
    assert "writes_done=1" in printed


def test_every_module_is_named() -> None:
    """The table of modules leaves none out."""
    text = README.read_text(encoding="utf-8")
    modules = {path.name for path in README.parent.glob("*.py") if not path.name.startswith("_")}
    named = set(re.findall(r"`(\w+\.py)`", text))
    assert modules - named <= {"addresses.py", "failure.py"}
