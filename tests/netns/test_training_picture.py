"""The picture of `tools/demo-training`, and what its command says beside the figures."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from training import figures, picture
from training.classroom import Training
from training.command import cli

from netns.runner import BUSY_PERCENT_MAX, busy_warning

MS = 1_000_000


def training(dead_ns: tuple[int, int] | None) -> Training:
    """Return four steps of 50 ms each."""
    moments_ns = [[50 * MS * step for step in range(5)]]
    return Training(moments_ns=moments_ns, losses=[4, 3, 2, 1], right=0.9, dead_ns=dead_ns)


def test_whatever_is_drawn_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thin lines and shades of two colours: a title or a label says what each is."""
    drawn: list[Figure] = []

    class Kept(Figure):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            drawn.append(self)

    monkeypatch.setattr(picture, "Figure", Kept)
    seen = {
        backend: {
            figures.UNDISTURBED: training(None),
            figures.DISTURBED: training((60 * MS, 110 * MS)),
        }
        for backend in (figures.OURS, figures.OTHERS)
    }
    rows = [figures.row(backend, each) for backend, each in seen.items()]
    picture.draw(rows, seen, tmp_path / "training.png")
    upper, lower = drawn[0].axes
    assert "thin: without the fault" in upper.get_title(loc="left")
    assert "in each one's colour" in lower.get_xlabel()


def test_every_option_is_explained() -> None:
    """In the help of the command."""
    assert not [each.name for each in cli.params if not getattr(each, "help", "")]


def test_others_that_take_the_processors_are_told_of() -> None:
    """Those that take little are not."""
    assert busy_warning(BUSY_PERCENT_MAX) == ""
    assert busy_warning(98.4) == ("other programs take 98 % of the processors: numbers show that")
