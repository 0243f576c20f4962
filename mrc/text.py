"""Text from outside, made safe to show to a person: from a peer, a disk, a command line."""

from __future__ import annotations

SHOWN_CHARACTERS_MAX = 200
"""A peer's text longer than this is cut when shown: a terminal line is for people."""


def printable(text: str, characters_max: int = SHOWN_CHARACTERS_MAX) -> str:
    """Make text from outside safe to show: no control codes, no broken characters."""
    shown = "".join(
        character if character.isprintable() else _escaped(character) for character in text
    )
    if len(shown) > characters_max:
        return shown[: characters_max - 1] + "…"
    return shown


def _escaped(character: str) -> str:
    """Spell one character that a terminal must not get: a raw byte as the byte it stands for."""
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{{{code:x}}}"
