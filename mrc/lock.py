"""The lock on a listener's door: who it is, told by a fingerprint, and who may enter, by a token.

A locked listener has a certificate that nobody signed; the URL it prints names the certificate's
fingerprint, so a peer knows whom it reached, and carries a token, so the listener knows that the
peer has read the URL. Fleets keep the certificate in a file and hand out the token themselves.

Knows keys and tokens, and no connection.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from enum import Enum, auto
from typing import Self

from mrc.errors import ConfigError, PeerNotTrusted
from mrc.identity import Identity, base64url, fingerprint_of

TOKEN_BYTES = 16
"""128 bits: nobody guesses that through a network."""
TOKEN_CHARACTERS_MIN = 16
"""Of a token that people choose: too long to be tried out at one connection a guess."""
TOKEN_CHARACTERS_MAX = 1024
_FINGERPRINT_CHARACTERS = 43
_TOKEN_CHARACTERS = 22
_KEY = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)?")
_TYPO_CHARACTERS_MAX = 4
"""Two fingerprints that differ in no more are one of them misspelt: others differ in about 42."""


@dataclass(frozen=True, slots=True, repr=False)
class Key:
    """What opens a locked door: the part of its URL behind the last slash.

    Attributes:
        fingerprint: of the listener's certificate, 43 characters of base64url.
        token: what the listener wants to hear; empty when the peer has it from elsewhere.
    """

    fingerprint: str
    token: str = ""

    def __str__(self) -> str:
        """Spell it as in a URL: it holds the token, so it belongs in no log."""
        return f"{self.fingerprint}.{self.token}" if self.token else self.fingerprint

    def __repr__(self) -> str:
        """Say which door it is for, and not how to open it."""
        return f"Key({self.fingerprint}{', token' if self.token else ''})"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read FINGERPRINT or FINGERPRINT.TOKEN.

        Raises:
            ConfigError: it is misspelt or incomplete; the message says how.
        """
        if not _KEY.fullmatch(text):
            odd = sorted(set(re.findall(r"[^A-Za-z0-9_.-]", text)))
            what = f"has {''.join(odd)!r:.40} in it" if odd else "has an empty part, or a third one"
            raise ConfigError(f"the key in the URL {what}: {_COPY}")
        fingerprint, _, token = text.partition(".")
        _check_spelling("fingerprint", fingerprint, _FINGERPRINT_CHARACTERS)
        if token:
            _check_spelling("token", token, _TOKEN_CHARACTERS)
        return cls(fingerprint, token)

    def check_certificate_untrusted(self, certificate: bytes, peer: str) -> None:
        """Make sure that a certificate (DER) is the one this key is for.

        Raises:
            PeerNotTrusted: it is another one.
        """
        found = fingerprint_of(certificate)
        if hmac.compare_digest(found, self.fingerprint):
            return
        wrong = sum(a != b for a, b in zip(found, self.fingerprint, strict=True))
        meaning = (
            f"{wrong} of {len(found)} characters differ: a slip in the URL; {_COPY}"
            if wrong <= _TYPO_CHARACTERS_MAX
            else "either the receiver was restarted, then paste the URL it prints now, or somebody"
            " else answers in its place; nothing was sent"
        )
        raise PeerNotTrusted(
            f"{peer} shows the fingerprint {found}, the URL has {self.fingerprint}: {meaning}",
            peer=peer,
            expected=self.fingerprint,
            found=found,
        )


_COPY = "copy the whole URL again"


def _check_spelling(what: str, text: str, characters: int) -> None:
    """Make sure that a part of a key is what we would print for the bytes it means.

    Raises:
        ConfigError: it is not.
    """
    if len(text) != characters:
        raise ConfigError(
            f"the {what} in the URL has {len(text)} characters, not {characters}: {_COPY}"
        )
    try:
        canonical = base64url(base64.urlsafe_b64decode(text + "=="))
    except binascii.Error:
        canonical = ""
    if canonical != text:
        raise ConfigError(f"the {what} in the URL is misspelt near its end: {_COPY}")


def check_token(token: str) -> str:
    """Return a token that people chose, if it can be one.

    Raises:
        ConfigError: it is too short to be safe, too long, or has blanks or control characters.
    """
    if not TOKEN_CHARACTERS_MIN <= len(token) <= TOKEN_CHARACTERS_MAX:
        raise ConfigError(
            f"a token of {len(token)} characters; it needs {TOKEN_CHARACTERS_MIN} to"
            f" {TOKEN_CHARACTERS_MAX}, at random (openssl rand -hex 16)"
        )
    if not token.isprintable() or " " in token:
        raise ConfigError("a token with blanks or control characters in it")
    return token


class Verdict(Enum):
    """What a token is worth."""

    GOOD = auto()
    WRONG = auto()
    USED = auto()


class Lock:
    """What a listener shows and asks for; made by `new` or `load`.

    Attributes:
        key: what the URL carries.
        context: for the server's side of TLS 1.3.
        one_time: one peer is let in, and then nobody.
    """

    def __init__(self, identity: Identity, token: str | None = None, *, one_time: bool = False):
        """Make a lock of an identity.

        Raises:
            ConfigError: it is none, or the token cannot be one.
            LocalError: there is no place for a temporary file.
        """
        own = base64url(secrets.token_bytes(TOKEN_BYTES))
        self._token_digest = _digest(own if token is None else check_token(token))
        self.context = identity.context()
        self.key = Key(identity.fingerprint(), own if token is None else "")
        self.one_time = one_time
        self._used = False

    @classmethod
    def new(cls, token: str | None = None, *, one_time: bool = False) -> Self:
        """Make a lock with an identity of its own, which ends with the process.

        Args:
            token: what peers were told beforehand, at least 16 characters; the URL then carries
                none. None: 128 random bits, in the URL.
            one_time: let in one peer only.

        Raises:
            ConfigError: the token is too short to be safe.
        """
        return cls(Identity.new(), token, one_time=one_time)

    @classmethod
    def load(cls, path: str, token: str | None = None, *, one_time: bool = False) -> Self:
        """Make a lock with an identity that is kept in a file, made there if it is missing.

        Args:
            path: private key and certificate in PEM, readable by its owner alone.
            token: as for `new`.
            one_time: as for `new`.

        Raises:
            ConfigError: others may read the file, or it holds no identity.
            LocalError: it can be neither read nor made.
        """
        return cls(Identity.load(path), token, one_time=one_time)

    def admit_untrusted(self, token: str) -> Verdict:
        """Judge a token in a time that tells nothing about it; a good one may be good only once."""
        # Digests, so that not even its length shows.
        digest = _digest(token)
        if not hmac.compare_digest(digest, self._token_digest):
            return Verdict.WRONG
        if self._used:
            return Verdict.USED
        self._used = self.one_time
        return Verdict.GOOD

    def reopen(self) -> None:
        """Let in one peer more: nothing came of the one that used the token."""
        self._used = False


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
