"""What fuzzing has found in the product, each as the smallest case of it."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from fuzzing import rendezvous
from fuzzing.rendezvous import HERE, HERE_6, SilentEngine, hello
from fuzzing.vloop import virtual_loop


def test_a_handshake_that_does_not_fit_leaves_no_peer() -> None:
    """Whoever disagrees about the iCRC again and again must not fill the table of peers."""
    shake_hands(hello() | {"qp": hello()["qp"] | {"icrc": False}})


@pytest.mark.parametrize("scope", ["\0", "\ud800"])
def test_an_interface_that_cannot_be_named_is_refused(scope: str) -> None:
    """A plane with a scope that is no name is the peer's mistake like any other."""
    planes = [[f"fe80::1%{scope}", 4971]]
    shake_hands(hello() | {"qp": hello()["qp"] | {"planes": planes}}, host=HERE_6)


def shake_hands(first: dict[str, Any], host: str = HERE) -> None:
    """Let a peer begin with this, and fail if it raises, or leaves anything behind."""
    lines = [json.dumps(line).encode() + b"\n" for line in (first, {"ready": True})]
    work = rendezvous.shake_hands(
        partial(SilentEngine, host), [*lines, b""], secured=False, connecting=False
    )
    virtual_loop().run(work)
