"""What a checker says when something is not as it must be."""

from __future__ import annotations


class CheckFailed(AssertionError):
    """A rule was broken: `rule` names it, the message says where and how."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule
