"""The lock between mrc-send and mrc-recv: on unless told otherwise, clear about what is wrong."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

import mrc
from mrc.cli.failures import FileTrouble
from mrc.cli.locks import TOKEN_VARIABLE, LockWishes
from mrc.cli.names import part_name
from mrc.errors import ConfigError
from tests.cli.commands import Ended, eventually, receiver, running, send

GIVEN = "a-token-that-was-given-before"
FINGERPRINT = "A" * 43
LOCKED = mrc.Url.parse(f"mrc://127.0.0.1:1/{FINGERPRINT}.{'A' * 22}")
PINNED = mrc.Url.parse(f"mrc://127.0.0.1:1/{FINGERPRINT}")
OPEN = mrc.Url.parse("mrc://127.0.0.1:1/")


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    """A file with a token, as an editor leaves it."""
    path = tmp_path / "token"
    path.write_text(GIVEN + "\n")
    return str(path)


# ---- what the options come to --------------------------------------------------------------------


def test_a_receiver_has_a_lock_unless_told_otherwise() -> None:
    """Nobody has to ask for it, and --insecure is the one way out."""
    lock = LockWishes(insecure=False).lock(one_time=True)
    assert lock is not None
    assert lock.key.token
    assert lock.one_time
    assert LockWishes(insecure=True).lock(one_time=True) is None


def test_a_token_comes_from_a_file_or_from_the_environment(
    token_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the user names comes before what the environment says; both sides read it alike."""
    monkeypatch.setenv(TOKEN_VARIABLE, "x" * 20)
    for wishes, token in (
        (LockWishes(insecure=False, token_file=token_file), GIVEN),
        (LockWishes(insecure=False), "x" * 20),
    ):
        assert wishes.token_for(PINNED) == token
        lock = wishes.lock(one_time=False)
        assert lock is not None
        assert lock.key.token == ""


def test_the_environment_does_not_disturb_a_whole_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL with its own token can be pasted on a machine of a fleet."""
    monkeypatch.setenv(TOKEN_VARIABLE, GIVEN)
    assert LockWishes(insecure=False).token_for(LOCKED) is None


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        (OPEN, {"insecure": False}, "no fingerprint.*paste the whole URL.*or pass --insecure"),
        (LOCKED, {"insecure": True}, "leave out --insecure"),
        (OPEN, {"insecure": True, "token_file": "x"}, "--insecure is for no lock"),
    ],
)
def test_wishes_that_contradict_the_url_are_refused(
    url: mrc.Url, options: dict[str, Any], words: str
) -> None:
    """Nothing is sent in another way than the user believes."""
    with pytest.raises(ConfigError, match=words):
        LockWishes(**options).token_for(url)


@pytest.mark.parametrize("option", ["token_file", "identity"])
def test_no_lock_takes_no_keys(option: str) -> None:
    """--insecure beside what belongs to a lock is a mistake."""
    with pytest.raises(ConfigError, match="--insecure is for no lock"):
        LockWishes(insecure=True, **{option: "x"}).lock(one_time=False)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """A token or identity that is not there is trouble with that file."""
    missing = str(tmp_path / "no" / "file")
    for wishes in (
        LockWishes(insecure=False, token_file=missing),
        LockWishes(insecure=False, identity=missing),
    ):
        with pytest.raises(FileTrouble, match=f"{missing}: No such file or directory"):
            wishes.lock(one_time=False)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff" * 20)
    with pytest.raises(ConfigError, match=f"{binary}: a token is text"):
        LockWishes(insecure=False, token_file=str(binary)).lock(one_time=False)


# ---- the two commands ----------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A file of a few packets."""
    path = tmp_path / "small"
    path.write_bytes(os.urandom(10_000))
    return path


def _transfer(
    tmp_path: Path, small: Path, recv_options: tuple[str, ...], send_options: tuple[str, ...]
) -> tuple[str, Ended, Ended]:
    """Send a file; return the URL and how both sides ended."""
    with receiver(tmp_path / "out", "--once", *recv_options) as recv:
        url = recv.url()
        return url, send(*send_options, small, url), recv.end()


@pytest.mark.slow
def test_a_transfer_is_secured_and_says_so_without_telling_the_token(
    tmp_path: Path, small: Path
) -> None:
    """Both documents say that it was; the token stands in neither."""
    url, *sides = _transfer(tmp_path, small, ("--json",), ("--json",))
    key = mrc.Url.parse(url).key
    assert key is not None
    for side in sides:
        assert (side.code, side.document["start"]["secured"]) == (0, True)
        assert key.token not in side.out.decode()
        assert "insecure" not in side.err
    assert sides[0].document["start"]["url"] == url.removesuffix(f".{key.token}")


@pytest.mark.slow
def test_insecure_is_said_by_both_sides(tmp_path: Path, small: Path) -> None:
    """One line says what it means; the documents say it too, and the URL has no key."""
    url, *sides = _transfer(tmp_path, small, ("--json", "--insecure"), ("--json", "--insecure"))
    assert mrc.Url.parse(url).key is None
    for side in sides:
        assert (side.code, side.document["start"]["secured"]) == (0, False)
        (line,) = [line for line in side.err.splitlines() if "--insecure" in line]
        assert "anyone on the network can read and alter" in line


@pytest.mark.slow
def test_a_fleet_brings_its_own_token(tmp_path: Path, small: Path, token_file: str) -> None:
    """With one on both sides the URL carries none, and is of no use without."""
    option = ("--token-file", token_file)
    url, sent, received = _transfer(tmp_path, small, option, option)
    assert (sent.code, received.code) == (0, 0)
    assert "." not in url.rpartition("/")[2]
    without = send(small, url)
    assert without.code == 2
    assert "MRC_TOKEN" in without.err


@pytest.mark.slow
def test_an_identity_is_kept_from_run_to_run(tmp_path: Path, small: Path) -> None:
    """The fingerprint in the URL stays, the token does not: yesterday's URL is refused."""
    path = tmp_path / "identity.pem"
    option = ("--identity", str(path))
    first, sent, _ = _transfer(tmp_path, small, option, ())
    assert sent.code == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with receiver(tmp_path / "out", *option) as recv:
        url = mrc.Url.parse(recv.url())
        yesterdays = mrc.Url(url.address, mrc.Url.parse(first).key)
        assert url.public == yesterdays.public
        refused = send("--quiet", small, yesterdays)
    assert refused.code == 3
    assert "the token is wrong" in refused.err
    assert refused.err.count("\n") == 1


@pytest.mark.slow
def test_another_receiver_in_its_place_is_exit_3(tmp_path: Path, small: Path) -> None:
    """The sender names both fingerprints and sends nothing."""
    with receiver(tmp_path / "out", "--json") as recv:
        url = mrc.Url.parse(recv.url())
        sent = send("--quiet", small, mrc.Url(url.address, LOCKED.key))
    assert sent.code == 3
    assert url.key is not None
    for fingerprint in (FINGERPRINT, url.key.fingerprint):
        assert fingerprint in sent.err
    assert sent.err.count("\n") == 1
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.slow
def test_a_sender_without_the_key_is_exit_3(tmp_path: Path, small: Path) -> None:
    """--insecure does not open a lock."""
    with receiver(tmp_path / "out") as recv:
        url = mrc.Url.parse(recv.url())
        sent = send("--quiet", "--insecure", small, f"mrc://{url.address}/")
    assert sent.code == 3
    assert "paste the whole URL" in sent.err


@pytest.mark.slow
def test_once_means_one_sender(tmp_path: Path, small: Path) -> None:
    """While one is being served a second with the same URL is refused, and told why."""
    with receiver(tmp_path / "out", "--once") as recv:
        url = recv.url()
        with running("mrc-send", "-", url, stdin=b"") as first:
            eventually((tmp_path / "out" / part_name("stdin")).exists, "the stream has begun")
            refused = send("--quiet", small, url)
            assert first.end(b"from the first").code == 0
        assert recv.end().code == 0
    assert refused.code == 3
    assert "token already used" in refused.err
    assert (tmp_path / "out" / "stdin").read_bytes() == b"from the first"


@pytest.mark.slow
def test_a_url_that_was_cut_short_is_exit_2(tmp_path: Path, small: Path) -> None:
    """It is told apart from a wrong one before anything is connected."""
    sent = send(small, str(LOCKED)[:-1])
    assert sent.code == 2
    assert "token in the URL has 21 characters, not 22" in sent.err
