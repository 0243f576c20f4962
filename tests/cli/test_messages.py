"""What the two ends say to each other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrc.cli.failures import AbortCode
from mrc.cli.messages import (
    Abort,
    Accept,
    Bye,
    Credit,
    Entries,
    FileDigest,
    Finished,
    Hello,
    Message,
    Mode,
    Offer,
    Open,
    Phase,
    Prefix,
    Resume,
    Sink,
    Status,
    Stored,
    batch_to_json,
    hello_untrusted,
    message_untrusted,
    messages_untrusted,
    to_json,
)
from mrc.errors import PeerProtocolError, PeerVersionError

SHA = "0" * 64
MESSAGES: list[Message] = [
    Hello(Sink.FOLDER),
    Offer(Mode.FILES, 1 << 24, 3, 10),
    Offer(Mode.STREAM, 1 << 21, name="x"),
    Entries([{"path": "a"}]),
    Accept(),
    Open(0, 3, 9, {"va": 1 << 40, "r_key": 7, "length": 5}),
    Open(1, 0, 0, None),
    Prefix(0, 3, SHA),
    Resume(0, 3),
    FileDigest(0, 5, SHA),
    Credit(0, 3, 7),
    Stored(0, SHA),
    Bye(),
    Finished(),
    Status(Phase.HASHING, 9),
    Abort(AbortCode.FILES, "x: No space left on device"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_survive_the_journey(message: Message) -> None:
    """Each message is read back from its JSON as it was."""
    assert message_untrusted(json.loads(json.dumps(to_json(message)))) == message


def test_what_is_said_together_travels_in_one_line() -> None:
    """A batch is read back as its messages; one message alone is no batch."""
    line = json.loads(json.dumps(batch_to_json(MESSAGES)))
    assert messages_untrusted(line) == MESSAGES
    assert batch_to_json(MESSAGES[:1]) == to_json(MESSAGES[0])


@pytest.mark.parametrize(
    "messages",
    [None, {}, "bye", [5], [{"type": "batch", "messages": []}], [{"type": "bye"}] * 513],
)
def test_a_batch_is_a_bounded_list_of_messages(messages: object) -> None:
    """Batches do not nest, are not endless, and hold nothing else."""
    with pytest.raises(PeerProtocolError):
        messages_untrusted({"type": "batch", "messages": messages})


WORDS = st.sampled_from(["type", "file", "blocks", "sha256", "region", "bytes", "code", "text"])
TYPES = st.sampled_from([message.TYPE for message in MESSAGES])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=70) | TYPES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(WORDS | st.text(max_size=6), VALUES), TYPES)
def test_no_other_exception_leaves_the_readers(line: dict[str, Any], kind: str) -> None:
    """Whatever object a peer sends is a message or is refused with a protocol exception."""
    for candidate in (line, {**line, "type": kind}):
        for reader in (message_untrusted, hello_untrusted):
            try:
                reader(candidate)
            except (PeerProtocolError, PeerVersionError):
                continue


@pytest.mark.parametrize(
    ("message", "change"),
    [
        (Open(0, 0, 0, {"va": 0, "r_key": 0, "length": 1}), {"region": {"va": 0, "r_key": 0}}),
        (Open(0, 0, 0, None), {"region": {"va": (1 << 64) - 4, "r_key": 0, "length": 5}}),
        (Open(0, 0, 0, None), {"region": 5}),
        (Open(0, 0, 0, None), {"file": -1}),
        (Open(0, 0, 0, None), {"file": 1 << 18}),
        (Open(0, 0, 0, None), {"blocks": True}),
        (Credit(0, 0, 0), {"ready": -1}),
        (Prefix(0, 0, SHA), {"sha256": "A" * 64}),
        (Prefix(0, 0, SHA), {"sha256": "0" * 63}),
        (Offer(Mode.FILES, 1 << 24, 1, 0), {"block_bytes": (1 << 24) + 1}),
        (Offer(Mode.FILES, 1 << 24, 1, 0), {"block_bytes": 4096}),
        (Offer(Mode.FILES, 1 << 24, 1, 0), {"entries": 0}),
        (Offer(Mode.FILES, 1 << 24, 1, 0), {"mode": "exec"}),
        (Abort(AbortCode.FILES, ""), {"text": "x" * 3000}),
        (Abort(AbortCode.FILES, ""), {"code": "because"}),
    ],
)
def test_fields_are_checked(message: Message, change: dict[str, Any]) -> None:
    """Types, bounds and vocabularies of fields are enforced."""
    with pytest.raises(PeerProtocolError):
        message_untrusted(to_json(message) | change)


@pytest.mark.parametrize(
    "line", [{}, {"service": "mrc-perf"}, {"service": "mrc-file", "version": 2}, {"type": "hello"}]
)
def test_another_service_or_version_is_named_as_such(line: dict[str, Any]) -> None:
    """A peer that is no receiver of files, or a newer one, is a version error."""
    with pytest.raises(PeerVersionError):
        hello_untrusted(line)
