"""Lines of JSON from a peer that may say anything, in pieces of any size."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrc.errors import PeerProtocolError, PeerRefused, PeerUnreachable
from mrc.rendezvous import LINE_BYTES_MAX, Channel
from mrc.tls import NO_TLS_HERE
from tests.rendezvous.memory_stream import MemoryStream

MESSAGE = {"protocol": "mrc-rendezvous/1", "text": "é" * 100}
LINE = json.dumps(MESSAGE).encode() + b"\n"


def heard(chunks: Iterable[bytes | Exception], count: int = 1, **limits: int) -> list[Any]:
    """Receive so many messages."""

    async def listen() -> list[Any]:
        channel = Channel(MemoryStream(chunks))
        return [await channel.receive_untrusted(**limits) for _ in range(count)]

    return asyncio.run(listen())


@given(st.lists(st.integers(1, 3 * len(LINE) - 1), max_size=5))
def test_lines_may_come_in_any_pieces(cuts: list[int]) -> None:
    """Three messages are three messages, however TCP hands them out."""
    data, places = LINE * 3, sorted({0, *cuts, 3 * len(LINE)})
    chunks = [data[start:end] for start, end in pairwise(places)]
    assert heard(chunks, 4) == [MESSAGE] * 3 + [None]


@given(st.lists(st.binary(min_size=1) | st.sampled_from([b"{", b"}\n", b"{}\n", b"\n", b'"a":'])))
def test_whatever_comes_it_is_a_message_the_end_or_one_error(chunks: list[bytes]) -> None:
    """Nothing a peer says raises anything else."""
    try:
        (message,) = heard(chunks)
    except (PeerProtocolError, PeerRefused):
        return
    assert message is None or isinstance(message, dict)


@pytest.mark.parametrize("byte", b'\x00\n \x15\x16GS["n0}\xff')
def test_what_begins_otherwise_is_not_waited_for(byte: int) -> None:
    """One byte is enough to know that a peer speaks something else."""

    async def listen() -> None:
        stream = MemoryStream([bytes([byte]), AssertionError("it went on reading")])
        await Channel(stream).receive_untrusted()

    with pytest.raises((PeerProtocolError, PeerRefused)):
        asyncio.run(listen())


def test_an_alert_says_that_there_is_a_lock() -> None:
    """What a locked door answers to a peer that speaks no TLS is understood."""
    with pytest.raises(PeerRefused, match="lock on its door"):
        heard([NO_TLS_HERE])


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("ended", [True, False])
def test_a_line_has_a_longest_length(extra: int, ended: bool) -> None:
    """Up to the limit it is read; beyond, nobody waits for its end."""
    text = b'{"a":"' + b"x" * (1000 + extra - 8) + b'"}'
    if extra or not ended:
        with pytest.raises(PeerProtocolError, match=r"over 1000 bytes|does not speak"):
            heard([text + b"\n" * ended], bytes_max=1000)
    else:
        (message,) = heard([text + b"\n"], bytes_max=1000)
        assert len(message["a"]) == 992


def test_no_more_is_kept_than_a_line() -> None:
    """A peer that never ends its line is given up after the first chunk beyond the limit."""
    chunk = b"{" + b" " * (LINE_BYTES_MAX // 4)
    chunks: list[bytes | Exception] = [chunk] * 5
    with pytest.raises(PeerProtocolError, match="over 65536 bytes"):
        heard([*chunks[:4], AssertionError("it went on reading")])


@pytest.mark.parametrize("half", [b"{", LINE[:-1]])
def test_an_end_in_the_middle_of_a_line_is_an_error(half: bytes) -> None:
    """Half a message is none."""
    with pytest.raises(PeerProtocolError):
        heard([half])


def test_a_broken_connection_is_an_end() -> None:
    """A reset means the same as a close."""
    assert heard([ConnectionResetError()]) == [None]


def test_what_tls_refuses_is_no_end() -> None:
    """Somebody on the way who alters bytes is told from a peer that closes."""
    with pytest.raises(PeerProtocolError, match="altered on its way"):
        heard([ssl.SSLError(1, "bad record mac")])


def test_a_connection_that_is_gone_has_no_channel() -> None:
    """A socket without a name was reset before it was looked at."""
    with pytest.raises(PeerUnreachable, match="before it was looked at"):
        Channel(MemoryStream(names={}))
