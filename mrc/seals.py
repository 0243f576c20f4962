"""How the two ends of a rendezvous agree on the keys of their queue pair.

Inside TLS each side says 32 random bytes of its own and which cipher it would rather use; from both
follow the keys (`mrc.wire.seal`). Whoever listens outside TLS learns neither, and a connection's
keys are of no use for another.
"""

from __future__ import annotations

import secrets
from functools import lru_cache
from time import perf_counter_ns
from typing import Any

from mrc.errors import PeerProtocolError
from mrc.wire.seal import SECRET_BYTES, Cipher, Seal, make_seal

_TRIALS = 8
_TRIAL_BYTES = 4096


@lru_cache(maxsize=1)
def preferred_cipher() -> Cipher:
    """Return the faster cipher on this processor, from a trial of a few packets (under 0.2 ms)."""
    return min(Cipher, key=_fastest_ns)


def _fastest_ns(cipher: Cipher) -> int:
    sealer = make_seal(cipher, (bytes(SECRET_BYTES), bytes(SECRET_BYTES)), connecting=True).sealer
    packet, took_ns = bytes(_TRIAL_BYTES), []
    for _ in range(_TRIALS):
        begun_ns = perf_counter_ns()
        sealer.seal(b"", packet)
        took_ns.append(perf_counter_ns() - begun_ns)
    return min(took_ns)


class Offer:
    """What this side contributes to the keys of one queue pair.

    Attributes:
        chosen: the cipher that both came to, None until the peer's offer is accepted.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._cipher = preferred_cipher()
        self.chosen: Cipher | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what to tell the peer; only ever inside TLS."""
        return {"cipher": self._cipher, "secret": self._secret.hex()}

    def accept_untrusted(self, theirs: object, *, connecting: bool) -> Seal:
        """Make the keys from this offer and the peer's.

        Where the two would rather use different ciphers it is ChaCha20-Poly1305: nowhere slow.

        Args:
            theirs: what the peer said.
            connecting: whether this side opened the rendezvous.

        Raises:
            PeerProtocolError: it is no such offer, or this side's own.
        """
        match theirs:
            case {"cipher": str(name), "secret": str(digits)}:
                cipher, secret = _cipher_untrusted(name), _secret_untrusted(digits)
            case _:
                raise PeerProtocolError("handshake: no offer of keys in a locked connection")
        if secret == self._secret:
            raise PeerProtocolError("handshake: the peer's secret is our own sent back")
        self.chosen = self._cipher if cipher is self._cipher else Cipher.CHACHA20_POLY1305
        both = (self._secret, secret) if connecting else (secret, self._secret)
        return make_seal(self.chosen, both, connecting=connecting)


def _cipher_untrusted(name: str) -> Cipher:
    try:
        return Cipher(name)
    except ValueError as error:
        known = ", ".join(Cipher)
        raise PeerProtocolError(f"handshake: cipher {name!r:.40}; known are {known}") from error


def _secret_untrusted(digits: str) -> bytes:
    try:
        secret = bytes.fromhex(digits)
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES or len(digits) != 2 * SECRET_BYTES:
        raise PeerProtocolError(f"handshake: the secret is not {SECRET_BYTES} bytes in hex")
    return secret
