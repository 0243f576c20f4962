"""What is typed on the command line, and how commands end."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import click
import pytest

from mrc.cli import recv, send
from mrc.cli.addresses import reachable_host
from mrc.cli.failures import (
    AbortCode,
    ExitCode,
    FileTrouble,
    IntegrityError,
    Interrupted,
    OutputClosed,
    PeerSilent,
    PeerStopped,
    abort_code,
    exit_code,
    file_trouble,
)
from mrc.cli.options import AddressType, UrlType
from mrc.errors import (
    ConfigError,
    LocalError,
    PeerLost,
    PeerProtocolError,
    PeerRefused,
    PeerUnreachable,
    PeerVersionError,
    RetriesExceeded,
)

FINGERPRINT = "A" * 43
TOKEN = "A" * 22


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("mrc://192.0.2.7:18515/", "192.0.2.7", 18515),
        ("mrc://host", "host", 18515),
        ("MRC://host:1/", "host", 1),
        ("host:7", "host", 7),
        ("mrc://[2001:db8::1]:9/", "2001:db8::1", 9),
        ("[fe80::1%eth0]", "fe80::1%eth0", 18515),
    ],
)
@pytest.mark.parametrize("key", ["", f"{FINGERPRINT}.{TOKEN}", FINGERPRINT])
def test_urls_are_read(text: str, host: str, port: int, key: str) -> None:
    """What mrc-recv prints is read back, with a lock and without, and shorter forms people type."""
    url = UrlType().convert(f"{text.rstrip('/')}/{key}" if key else text, None, None)
    assert url.address == (host, port)
    assert str(url.key or "") == key


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no host"),
        ("mrc://", "names no host"),
        ("http://host/", "not an address"),
        ("mrc://host:0/", "port 0"),
        ("mrc://host:65536/", "65535"),
        ("mrc://host:x/", "not an address"),
        ("mrc://host/path", "fingerprint in the URL has 4 characters, not 43"),
        ("mrc://host/?q", "has '[?]' in it"),
        ("mrc://user@host/", "not an address"),
        ("::1", "IPv6 in brackets"),
        ("2001:db8::1:18515", "IPv6 in brackets"),
    ],
)
def test_other_urls_are_refused(text: str, words: str) -> None:
    """What cannot be meant is an error that says why."""
    with pytest.raises(click.BadParameter, match=words):
        UrlType().convert(text, None, None)


@pytest.mark.parametrize("text", ["host:1/" + FINGERPRINT, "host:1:2", "http://host"])
def test_other_places_to_listen_at_are_refused(text: str) -> None:
    """A receiver is told host and port; the key is its own."""
    with pytest.raises(click.BadParameter, match=r"."):
        AddressType().convert(text, None, None)
    assert AddressType().convert("127.0.0.1:0", None, None) == ("127.0.0.1", 0)


def test_a_wildcard_is_never_advertised() -> None:
    """The printed URL names an address somebody can connect to."""
    assert reachable_host("0.0.0.0") not in {"", "0.0.0.0"}
    assert reachable_host("::") not in {"", "::"}
    assert reachable_host("192.0.2.1") == "192.0.2.1"


def _options() -> Iterator[tuple[str, click.Option]]:
    for command in (send.command, recv.command):
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.name != "version":
                yield f"{command.name} {parameter.opts[0]}", parameter


@pytest.mark.parametrize(("name", "option"), list(_options()), ids=lambda value: str(value)[:30])
def test_every_option_explains_itself(name: str, option: click.Option) -> None:
    """Each has a sentence, and its default can be read in --help."""
    assert option.help
    assert option.show_default or "Default" in option.help, name


PEER_STOPPED = [
    (AbortCode.FILES, 1),
    (AbortCode.INTEGRITY, 5),
    (AbortCode.INTERRUPTED, 4),
    (AbortCode.OUTPUT_CLOSED, 1),
    (AbortCode.PROTOCOL, 7),
    (AbortCode.REFUSED, 1),
    (AbortCode.INTERNAL, 1),
]


@pytest.mark.parametrize(
    ("error", "before", "after"),
    [
        (None, 0, 0),
        (ConfigError("x"), 2, 2),
        (PeerUnreachable("x"), 3, 4),
        (PeerRefused("x"), 3, 4),
        (PeerLost("x"), 3, 4),
        (PeerSilent("x"), 3, 4),
        (RetriesExceeded("x"), 3, 4),
        (PeerVersionError("x"), 7, 7),
        (PeerProtocolError("x"), 7, 7),
        (IntegrityError("x"), 5, 5),
        (FileTrouble(28, "full", "f"), 6, 6),
        (LocalError(98, "in use"), 2, 4),
        (OutputClosed("x"), 1, 1),
        (Interrupted(signal.SIGINT), 130, 130),
        (Interrupted(signal.SIGTERM), 143, 143),
        (KeyError("x"), 1, 1),
        *((PeerStopped("x", code=code), number, number) for code, number in PEER_STOPPED),
    ],
)
def test_every_failure_has_its_exit_code(
    error: BaseException | None, before: int, after: int
) -> None:
    """The code tells who can act, and whether the peer had been reached."""
    assert exit_code(error, established=False) == before
    assert exit_code(error, established=True) == after


def test_every_failure_has_a_word_for_the_peer() -> None:
    """What one side ends with, the other can tell apart."""
    assert abort_code(FileTrouble(28, "full", "f")) is AbortCode.FILES
    assert abort_code(PeerProtocolError("x")) is AbortCode.PROTOCOL
    assert abort_code(Interrupted(signal.SIGINT)) is AbortCode.INTERRUPTED
    assert abort_code(KeyError("x")) is AbortCode.INTERNAL
    assert {exit_code(PeerStopped("", code=code), established=True) for code in AbortCode} <= set(
        ExitCode
    )


def test_file_trouble_names_the_file_first() -> None:
    """The kernel's words stay, its numbers too, and our own trouble is not wrapped twice."""
    trouble = file_trouble(PermissionError(13, "Permission denied"), "f\n")
    assert str(trouble) == "f\\x0a: Permission denied"
    assert (trouble.errno, trouble.filename) == (13, "f\n")
    assert isinstance(trouble, OSError)
    assert file_trouble(trouble, "g") is trouble
