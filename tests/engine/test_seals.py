"""How two sides agree on keys: what is offered, what is chosen, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from mrc import seals
from mrc.errors import PeerProtocolError
from mrc.seals import Offer, preferred_cipher
from mrc.wire.seal import Cipher

HEADER = bytes(36)


def offer(cipher: Cipher) -> Offer:
    """Return the offer of a machine that would rather use this cipher."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seals, "preferred_cipher", lambda: cipher)
        return Offer()


@pytest.mark.parametrize("ours", list(Cipher))
@pytest.mark.parametrize("theirs", list(Cipher))
def test_both_sides_come_to_the_same_keys(ours: Cipher, theirs: Cipher) -> None:
    """Whatever each prefers: what one seals the other opens."""
    one, other = offer(ours), offer(theirs)
    here = one.accept_untrusted(other.to_json(), connecting=True)
    there = other.accept_untrusted(one.to_json(), connecting=False)
    for sender, receiver in ((here, there), (there, here)):
        sealed = HEADER + sender.sealer.seal(HEADER, b"data")
        assert receiver.opener.open_untrusted(sealed, len(HEADER)) == b"data"


def test_every_offer_is_fresh() -> None:
    """No two queue pairs have the same secret."""
    assert len({Offer().to_json()["secret"] for _ in range(10)}) == 10


def test_preference_is_a_measured_cipher() -> None:
    """One of the two, the same each time it is asked for."""
    assert preferred_cipher() in Cipher
    assert preferred_cipher() is preferred_cipher()


GOOD = {"cipher": "aes-256-gcm", "secret": "00" * 32}


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        "x",
        {},
        {"cipher": "aes-256-gcm"},
        GOOD | {"cipher": "rot13"},
        GOOD | {"cipher": 1},
        GOOD | {"secret": "00" * 31},
        GOOD | {"secret": "00" * 33},
        GOOD | {"secret": "0 " * 32},
        GOOD | {"secret": "zz" * 32},
        GOOD | {"secret": 7},
    ],
)
def test_anything_else_is_refused(said: Any) -> None:
    """No offer, half an offer, an unknown cipher, a secret of another size."""
    with pytest.raises(PeerProtocolError, match="handshake"):
        Offer().accept_untrusted(said, connecting=True)


def test_our_own_secret_sent_back_is_refused() -> None:
    """A peer that only echoes contributes nothing."""
    mine = Offer()
    with pytest.raises(PeerProtocolError, match="our own"):
        mine.accept_untrusted(mine.to_json(), connecting=True)
