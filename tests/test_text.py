"""Text from outside, and how it is shown."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from mrc.text import printable


@given(st.text())
def test_shown_text_cannot_steer_a_terminal(text: str) -> None:
    """Whatever a peer calls a file, what is printed has no control codes and an end."""
    shown = printable(text)
    assert shown.isprintable() or shown == ""
    assert len(shown) <= 200


def test_bytes_that_are_no_text_are_shown_as_bytes() -> None:
    """A name that is no UTF-8 can still be recognised."""
    assert printable(os.fsdecode(b"a\xff\x1b[2J")) == "a\\xff\\x1b[2J"
