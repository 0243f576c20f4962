"""What a peer says is read against one table: understood as it was said, or refused."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from fuzzing.perf import MESSAGES

from mrc.cli.failures import ExitCode, exit_code
from mrc.errors import PeerError, PeerProtocolError, PeerRefused, PeerVersionError
from mrc.perf.conversation import (
    Accept,
    Finding,
    Message,
    Offer,
    Ready,
    Reason,
    Refuse,
    Result,
    message_untrusted,
    offer_untrusted,
    to_json,
)
from mrc.perf.settings import Kind

ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    1 << 80,
    0.5,
    float("nan"),
    "x" * 2000,
    [],
    [None],
    {},
    {"va": 1},
)


def travelled(message: Message) -> dict[str, Any]:
    """Return a message as it arrives."""
    line: dict[str, Any] = json.loads(json.dumps(to_json(message)))
    return line


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.TYPE)
def test_a_message_survives_the_way_through_json(message: Message) -> None:
    """What is said is what is understood."""
    assert message_untrusted(travelled(message), type(message)) == message


@pytest.mark.parametrize("value", ODD, ids=repr)
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.TYPE)
def test_an_odd_value_in_any_place_is_refused_with_the_one_exception(
    message: Message, value: Any
) -> None:
    """Each field has a type and bounds; where a value fits both it is taken as it is."""
    for field in fields(message):
        line = {**travelled(message), field.name: value}
        try:
            read = message_untrusted(line, type(message))
        except PeerError:
            continue
        assert getattr(read, field.name) in (value, tuple(value or ()) if value == [] else value)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.TYPE)
def test_a_missing_field_is_refused_unless_it_may_be_nothing(message: Message) -> None:
    """Nothing is made up for what a peer leaves out."""
    for field in fields(message):
        line = travelled(message)
        del line[field.name]
        if "None" in str(field.type):
            assert getattr(message_untrusted(line, type(message)), field.name) is None
        else:
            with pytest.raises(PeerProtocolError, match=field.name):
                message_untrusted(line, type(message))


def test_another_message_than_the_expected_is_refused() -> None:
    """Each step of the conversation has one message."""
    with pytest.raises(PeerProtocolError, match="in place of ready"):
        message_untrusted(to_json(Accept("0")), Ready)


def test_a_refusal_carries_its_reason() -> None:
    """Whatever was expected, a refusal is understood, and safe to show."""
    with pytest.raises(PeerRefused, match=r"busy\\x1b"):
        message_untrusted(to_json(Refuse(Reason.UNWANTED, "busy\x1b")), Accept)


@pytest.mark.parametrize(
    ("reason", "kind", "code"),
    [
        (Reason.VERSION, PeerVersionError, ExitCode.PROTOCOL),
        (Reason.PROTOCOL, PeerProtocolError, ExitCode.PROTOCOL),
        (Reason.UNWANTED, PeerRefused, ExitCode.NOT_REACHED),
    ],
)
def test_the_word_of_a_refusal_decides_the_exit_code(
    reason: Reason, kind: type[PeerError], code: ExitCode
) -> None:
    """A script can tell a listener that is busy from one that does not fit."""
    with pytest.raises(kind, match="the peer refused: so") as refused:
        message_untrusted(to_json(Refuse(reason, "so")), Accept)
    assert exit_code(refused.value, established=False) is code


def test_another_version_is_told_from_nonsense() -> None:
    """A peer of another version, or another program, is named as such."""
    offer = Offer(Kind.LATENCY, 1, 1 << 20, 64, bidirectional=False, verify=False, seed=1)
    for wrong in ({"version": 2}, {"service": "mrc-file"}):
        with pytest.raises(PeerVersionError):
            offer_untrusted({**to_json(offer), **wrong})


def test_a_list_without_end_is_refused() -> None:
    """What a peer tells is bounded."""
    line = next(to_json(message) for message in MESSAGES if isinstance(message, Result))
    line["findings"] = [to_json_of(Finding(1, "x"))] * 1000
    with pytest.raises(PeerProtocolError, match="at most"):
        message_untrusted(line, Result)


def to_json_of(finding: Finding) -> dict[str, Any]:
    """Return a finding as it travels."""
    return {"weight": finding.weight, "text": finding.text}
