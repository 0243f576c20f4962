"""Every kept input and every past crash, through its target; and that the targets can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fuzzing import corpus
from fuzzing.targets import TARGETS
from hypothesis import given
from hypothesis import strategies as st

from mrc.cli import names
from mrc.collectives.mesh import Mesh
from mrc.perf import serving
from mrc.proto.endpoint import Endpoint
from mrc.proto.memory import MemoryTable
from mrc.proto.requestor import Requestor
from mrc.wire.seal import ReplayWindow

pytestmark = pytest.mark.slow


def replay(target: str) -> None:
    """Run all inputs of a target; the failing one is named."""
    for path in corpus.inputs(target):
        try:
            TARGETS[target].run(path.read_bytes())
        except BaseException as error:
            error.add_note(f"repeat it with: tools/fuzz {target} --repeat {path}")
            raise


@pytest.mark.parametrize("target", TARGETS)
def test_kept_inputs_find_nothing_wrong(target: str) -> None:
    """What once reached something new, or failed, is taken as it should be."""
    replay(target)


@pytest.mark.parametrize("target", TARGETS)
def test_any_input_finds_nothing_wrong(target: str) -> None:
    """Bytes of any kind are a hostile peer; whatever it does, nothing goes wrong."""
    run = TARGETS[target].run

    @given(data=st.binary(max_size=200))
    def any_input(data: bytes) -> None:
        run(data)

    any_input()


@pytest.mark.parametrize("target", TARGETS)
def test_inputs_are_kept(target: str) -> None:
    """Each target has inputs, none longer than the fuzzer tries, and few enough for a checkout."""
    sizes = [path.stat().st_size for path in corpus.kept(target).iterdir()]
    assert len(sizes) > 20
    assert max(sizes) <= TARGETS[target].bytes_max


def test_what_is_kept_stays_small() -> None:
    """All inputs of all targets together take little room."""
    files = [path for path in corpus.KEPT.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= corpus.KEPT_BYTES_MAX


# Faults put into the product, which the kept inputs must find.


def _always(*_: Any) -> bool:
    return True


def _find_anything(table: MemoryTable, r_key: int, va: int, length: int, _: int) -> Any:
    """Forget whose region it is, and what is sealed."""
    region = table.region(r_key)
    if region is None or not 0 <= va - region.va <= region.length - length:
        return None
    return region.data[va - region.va :][:length]


def _complete_early(requestor: Requestor) -> bool:
    """Report what SACKs cover, without waiting for the Transport ACK."""
    requestor._transport_acked = requestor.window.una  # noqa: SLF001 - the fault
    return _COMPLETE(requestor)


async def _end_at_once(_: Mesh) -> None:
    """Accept nobody."""
    raise OSError("no listener")


_COMPLETE = Requestor._complete  # noqa: SLF001 - to put a fault in front of it

FAULTS: dict[str, tuple[str, Any, str, Callable[..., Any]]] = {
    "replays open": ("decoders", ReplayWindow, "is_fresh", _always),
    "any region may be written": ("responder", MemoryTable, "find", _find_anything),
    "writes complete early": ("requestor", Requestor, "_complete", _complete_early),
    "memory stays open": ("rendezvous", Endpoint, "deregister", lambda *_: None),
    "any name will do": ("manifest", names, "_objection", lambda _: ""),
    "nobody is accepted": ("ranks", Mesh, "_accept", _end_at_once),
    "any buffer will do": ("perf", serving, "check_room", lambda _: None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_product_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the product did wrong, the kept inputs of the target would tell."""
    target, where, name, wrong = FAULTS[fault]
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises((AssertionError, OSError)):
        replay(target)
