"""Keys, tokens and identities: what a URL tells, what a file keeps, who is let in."""

from __future__ import annotations

import base64
import os
import re
import ssl
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from mrc.errors import ConfigError, LocalError, PeerNotTrusted
from mrc.identity import Identity, base64url, fingerprint_of
from mrc.lock import Key, Lock, Verdict
from mrc.rendezvous import Url

FINGERPRINT = fingerprint_of(b"a certificate")
TOKEN = "A" * 22
GIVEN = "a token that was given before".replace(" ", "-")


# ---- the key in the URL --------------------------------------------------------------------------


def test_a_key_is_read_as_it_is_printed() -> None:
    """Fingerprint and token survive the way through a URL; both are of harmless characters."""
    key = Lock.new().key
    assert Key.parse(str(key)) == key
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}\.[A-Za-z0-9_-]{22}", str(key))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty part"),
        (f"{FINGERPRINT[:-1]}.{TOKEN}", "fingerprint in the URL has 42 characters, not 43"),
        (f"{FINGERPRINT}x.{TOKEN}", "fingerprint in the URL has 44 characters, not 43"),
        (f"{FINGERPRINT}.{TOKEN[:-1]}", "token in the URL has 21 characters, not 22"),
        (f"{FINGERPRINT}.{TOKEN[:-1]}B", "token in the URL is misspelt near its end"),
        (f"{'A' * 42}B", "fingerprint in the URL is misspelt near its end"),
        (f"{FINGERPRINT}.", "empty part"),
        (f"{FINGERPRINT}.{TOKEN}.x", "a third one"),
        (f"{FINGERPRINT[:-1]}+", "has '[+]' in it"),
        (f"{FINGERPRINT}.{TOKEN}\n", r"has '\\n' in it"),
        (f"{FINGERPRINT[:-1]}é", "has 'é' in it"),
    ],
)
def test_a_misspelt_key_is_told_as_such(text: str, words: str) -> None:
    """What was not printed by a receiver says where it went wrong, and what to do."""
    with pytest.raises(ConfigError, match=f"{words}.*copy the whole URL again"):
        Key.parse(text)


@given(
    st.text()
    | st.text("AQgw-_.=", min_size=43, max_size=43)
    | st.tuples(st.binary(min_size=32, max_size=32), st.binary(min_size=15, max_size=17)).map(
        lambda parts: ".".join(map(base64url, parts))
    )
)
def test_whatever_stands_for_a_key_it_is_read_or_refused(text: str) -> None:
    """A key that is read is spelt in one way only; all else is a configuration error."""
    try:
        key = Key.parse(text)
    except ConfigError:
        return
    assert str(key) == text


def test_a_key_does_not_show_its_token() -> None:
    """What a debugger or a traceback prints of it opens no door."""
    key = Key(FINGERPRINT, TOKEN)
    assert TOKEN not in repr(key)
    assert TOKEN not in repr(Url.parse(f"mrc://host/{key}"))
    assert TOKEN not in Url.parse(f"mrc://host/{key}").public


@pytest.mark.parametrize("text", ["mrc://host:x/", "http://host/", "mrc://ho st/", "host:99999/"])
def test_a_mistyped_url_is_refused_without_its_token(text: str) -> None:
    """The message that says what is wrong can be shown to anybody."""
    with pytest.raises(ConfigError) as caught:
        Url.parse(text + str(Key(FINGERPRINT, TOKEN)))
    assert TOKEN not in str(caught.value)


# ---- the certificate -----------------------------------------------------------------------------


def test_another_certificate_is_not_trusted_and_both_fingerprints_are_named() -> None:
    """The error says who was expected, who answered, and what that can mean."""
    found = fingerprint_of(b"another")
    with pytest.raises(PeerNotTrusted, match=r"somebody else answers.*nothing was sent") as caught:
        Key(FINGERPRINT).check_certificate_untrusted(b"another", "host:1")
    assert FINGERPRINT in str(caught.value)
    assert found in str(caught.value)
    assert (caught.value.expected, caught.value.found) == (FINGERPRINT, found)


def test_a_slip_in_the_fingerprint_is_told_from_another_receiver() -> None:
    """When nearly all characters agree, the URL was copied wrong; it is refused all the same."""
    slipped = ("B" if FINGERPRINT[0] != "B" else "C") + FINGERPRINT[1:]
    with pytest.raises(PeerNotTrusted, match="1 of 43 characters differ: a slip in the URL"):
        Key(slipped).check_certificate_untrusted(b"a certificate", "host:1")


def test_the_right_certificate_is_trusted() -> None:
    """Whose digest is the fingerprint is the one."""
    Key(FINGERPRINT).check_certificate_untrusted(b"a certificate", "host:1")


# ---- tokens --------------------------------------------------------------------------------------


def test_every_lock_is_its_own() -> None:
    """Neither certificate nor token of one lock opens, or is taken for, another."""
    one, other = Lock.new(), Lock.new()
    assert one.key.fingerprint != other.key.fingerprint
    assert one.admit_untrusted(other.key.token) is Verdict.WRONG
    assert len(base64.urlsafe_b64decode(one.key.token + "==")) == 16


@pytest.mark.parametrize("token", ["", "x", GIVEN[:-1], GIVEN + "x", GIVEN.upper(), "\ud800"])
def test_a_wrong_token_is_wrong_whatever_it_is(token: str) -> None:
    """Only the very token opens."""
    lock = Lock.new(GIVEN)
    assert lock.admit_untrusted(token) is Verdict.WRONG
    assert lock.admit_untrusted(GIVEN) is Verdict.GOOD


def test_a_token_that_was_given_is_not_in_the_url() -> None:
    """Who was told it beforehand does not need to read it there, and nobody else shall."""
    lock = Lock.new(GIVEN)
    assert lock.key.token == ""
    assert str(lock.key) == lock.key.fingerprint


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ("", "0 characters"),
        ("fifteen-letters", "15 characters"),
        ("x" * 1025, "1025 characters"),
        ("sixteen letters!", "blanks"),
        ("sixteen-letters!\n", "control"),
    ],
)
def test_a_token_that_could_be_guessed_or_mistyped_is_refused(token: str, words: str) -> None:
    """A fleet that chooses a weak token hears of it at once, not from an intruder."""
    with pytest.raises(ConfigError, match=words):
        Lock.new(token)


def test_a_one_time_lock_lets_in_one() -> None:
    """The second who knows the token is told that it was used; a guesser is told nothing of it."""
    lock = Lock.new(one_time=True)
    assert lock.admit_untrusted(lock.key.token) is Verdict.GOOD
    assert lock.admit_untrusted(lock.key.token) is Verdict.USED
    assert lock.admit_untrusted("guessed") is Verdict.WRONG


def test_a_one_time_lock_can_be_opened_again() -> None:
    """When nothing came of the one that was let in, the next may try."""
    lock = Lock.new(one_time=True)
    lock.admit_untrusted(lock.key.token)
    lock.reopen()
    assert lock.admit_untrusted(lock.key.token) is Verdict.GOOD


def test_a_token_is_good_as_often_as_it_is_said() -> None:
    """Unless a lock is for one time only."""
    lock = Lock.new()
    assert {lock.admit_untrusted(lock.key.token) for _ in range(3)} == {Verdict.GOOD}


@pytest.mark.parametrize(
    ("url", "token", "words"),
    [
        (f"host/{FINGERPRINT}", None, "carries no token"),
        (f"host/{FINGERPRINT}.{TOKEN}", GIVEN, "two tokens"),
        ("host", GIVEN, "without a fingerprint"),
    ],
)
def test_a_url_needs_one_token_and_somebody_to_show_it_to(
    url: str, token: str | None, words: str
) -> None:
    """None, two, or one for whoever answers are mistakes that are found before connecting."""
    with pytest.raises(ConfigError, match=words):
        Url.parse(url).with_token(token)


def test_a_token_completes_a_url() -> None:
    """What was given beforehand takes the place of what the URL lacks."""
    url = Url.parse(f"host/{FINGERPRINT}").with_token(GIVEN)
    assert url.key == Key(FINGERPRINT, GIVEN)
    assert Url.parse("host").with_token(None).key is None


# ---- identities in files -------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where an identity is to be kept."""
    return tmp_path / "identity.pem"


def test_an_identity_is_made_once_and_kept(path: Path) -> None:
    """The fingerprint stays from run to run, the token does not, and nobody else can read it."""
    made, read = Lock.load(str(path)), Lock.load(str(path))
    assert made.key.fingerprint == read.key.fingerprint
    assert made.key.token != read.key.token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_an_identity_that_others_can_reach_is_refused(path: Path, mode: int) -> None:
    """A private key that others may have read is none."""
    Lock.load(str(path))
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"{path}: others may read this private key.*chmod 600"):
        Lock.load(str(path))


def _without_certificate(identity: bytes) -> bytes:
    return identity.partition(b"-----BEGIN CERTIFICATE")[0]


def _of_two(identity: bytes) -> bytes:
    other = Identity.new().pem
    return _without_certificate(identity) + other.removeprefix(_without_certificate(other))


def _encrypted(identity: bytes) -> bytes:
    key = serialization.load_pem_private_key(identity, None)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    ) + identity.removeprefix(_without_certificate(identity))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda _: b"", "no private key"),
        (lambda _: b"junk\n" * 1000, "no private key"),
        (lambda identity: identity[: len(identity) // 2], "no private key"),
        (_without_certificate, "no private key"),
        (_of_two, "no private key"),
        (_encrypted, "without a passphrase"),
    ],
    ids=["empty", "junk", "half", "certificate missing", "another's certificate", "encrypted"],
)
def test_a_file_that_holds_no_identity_is_refused(
    path: Path, spoil: Callable[[bytes], bytes], words: str
) -> None:
    """It is named, and never replaced: somebody may need it."""
    Lock.load(str(path))
    path.write_bytes(spoil(path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=f"{path}: .*{words}"):
        Lock.load(str(path))
    assert path.read_bytes() == before


def test_a_place_that_cannot_hold_an_identity_is_local_trouble(tmp_path: Path) -> None:
    """The kernel's reason and the name of the file are kept."""
    missing = tmp_path / "missing" / "identity"
    with pytest.raises(LocalError, match="No such file") as caught:
        Lock.load(str(missing))
    assert caught.value.filename == str(missing)
    with pytest.raises(LocalError):
        Lock.load(str(tmp_path))


def test_two_receivers_that_make_the_same_identity_share_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes second takes what the first has made."""
    make = Identity.new
    first: list[Lock] = []

    def overtaken() -> Identity:
        monkeypatch.setattr(Identity, "new", make)
        first.append(Lock.load(str(path)))
        return make()

    monkeypatch.setattr(Identity, "new", overtaken)
    assert Lock.load(str(path)).key.fingerprint == first[0].key.fingerprint
    assert list(path.parent.iterdir()) == [path]


def test_a_new_identity_stays_on_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that OpenSSL reads is its owner's alone and is gone when the lock is made."""
    seen: list[int] = []
    load = ssl.SSLContext.load_cert_chain

    def watch(context: ssl.SSLContext, name: str, **options: object) -> None:
        seen.append(stat.S_IMODE(os.stat(name).st_mode))  # noqa: PTH116
        load(context, name)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", watch)
    Lock.new()
    assert seen == [0o600]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "mistyped",
    ["mrc:///{}", "mrc://host:/{}", "mrc://[::1]:/{}", "/{}", "host:{}", "mrc://host:18515:{}",
     "mrc://host:18515.{}", "mrc://host:18515 {}", "{}", "mrc://{}"],
)  # fmt: skip
def test_a_mistyped_url_shows_no_token(mistyped: str) -> None:
    """Wherever the key stands in it, the message does not have it, and no name is looked up."""
    key = f"{FINGERPRINT}.{TOKEN}"
    with pytest.raises(ConfigError) as caught:
        Url.parse(mistyped.format(key))
    assert TOKEN not in str(caught.value)
