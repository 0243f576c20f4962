"""JSON as only a hostile peer sends it: documents that are right but for a few places."""

from __future__ import annotations

from typing import Any

from fuzzing.feed import Feed

_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 255, 256, 65536, 1 << 24, 1 << 32, (1 << 46) + 1, 1 << 62,
    1 << 64, -(1 << 70), 10**300, 0.0, 1.0, -0.5, 1e300, float("nan"), float("inf"), "", "a", ".",
    "..", "0", "\0", "\x1b[2J", "é", "\ud800", "\udcff", "x" * 300, "9" * 5000, [], {}, [[]], [{}],
    {"a": 1}, {"": {}},
)  # fmt: skip


def value(feed: Feed) -> Any:
    """Return any JSON value, most of the time an odd one."""
    kind = feed.below(len(_VALUES) + 2)
    if kind == len(_VALUES):
        return feed.signed(1 + feed.below(9))
    if kind > len(_VALUES):
        return feed.take(feed.below(24)).decode("utf-8", "surrogateescape")
    return _VALUES[kind]


def spoil(feed: Feed, document: Any) -> Any:
    """Return the document with one place replaced, removed or doubled."""
    deeper = document and feed.flag()
    if isinstance(document, dict) and deeper:
        key = feed.pick(sorted(document))
        rest = {name: each for name, each in document.items() if name != key}
        return rest if feed.below(4) == 3 else rest | {key: spoil(feed, document[key])}
    if isinstance(document, list) and deeper:
        at = feed.below(len(document))
        again = 2 if feed.below(4) == 3 else 1
        return [*document[:at], *[spoil(feed, document[at])] * again, *document[at + 1 :]]
    return value(feed)
