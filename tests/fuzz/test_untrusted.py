"""Functions that read what a network brings.

They say so in their name, raise one kind of exception, and are reached by the inputs that are kept.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
from fuzzing import corpus
from fuzzing.targets import TARGETS

from mrc.errors import PeerError
from mrc.wire.fields import BadPacket

PACKAGE = corpus.ROOT / "mrc"
SUFFIX = "_untrusted"

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Function(NamedTuple):
    """A function or method of the package."""

    module: str
    name: str
    """Qualified, as in `Class.method`."""
    node: FunctionNode

    @property
    def key(self) -> str:
        """How the tables below call it."""
        return f"{self.module}.{self.name}"


def functions() -> Iterator[Function]:
    """Yield every function of the package, but for the simulator, which has no network."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        if parts[1] != "sim":
            yield from _inside(ast.parse(path.read_text(encoding="utf-8")), ".".join(parts), "")


def _inside(node: ast.AST, module: str, above: str) -> Iterator[Function]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield Function(module, above + child.name, child)
                yield from _inside(child, module, f"{above}{child.name}.<locals>.")
            case ast.ClassDef():
                yield from _inside(child, module, f"{above}{child.name}.")
            case _:
                yield from _inside(child, module, above)


FUNCTIONS = tuple(functions())
UNTRUSTED = [function for function in FUNCTIONS if function.name.endswith(SUFFIX)]


# Reached.


@pytest.mark.slow
def test_kept_inputs_reach_every_function_that_reads_what_a_network_brings() -> None:
    """No function ends in _untrusted that no target ever calls."""
    wanted = {(f.module.replace(".", "/") + ".py", f.name) for f in UNTRUSTED}
    reached: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name.endswith(SUFFIX):
            file = Path(code.co_filename)
            if file.is_relative_to(PACKAGE):
                reached.add((str(file.relative_to(PACKAGE.parent)), code.co_qualname))

    for target, data in smallest_first():
        if wanted <= reached:
            break
        sys.setprofile(note)
        try:
            TARGETS[target].run(data)
        finally:
            sys.setprofile(None)
    assert sorted(wanted - reached) == []


def smallest_first() -> list[tuple[str, bytes]]:
    """Return every kept input with its target; the small ones are the quick ones."""
    found = [(name, path.read_bytes()) for name in TARGETS for path in corpus.inputs(name)]
    return sorted(found, key=lambda each: len(each[1]))


# Named.

PARSERS = frozenset(
    "loads unpack unpack_from iter_unpack from_bytes frombuffer fromhex getpeercert".split()  # noqa: SIM905
)
"""What makes values of bytes: whoever calls one of these reads what somebody else wrote."""

READS_SOMETHING_ELSE = {
    "mrc.json_channel.JsonChannel.receive": "the name that users call; it raises PeerProtocolError",
    "mrc.tls.TlsStream.certificate": "hands it on to `check_certificate_untrusted`",
    "mrc.cli.journal._parse": "reads the local disk",
    "mrc.collectives.interfaces": "reads what the kernel says of this host",
    "mrc.collectives.transfer.Link.__init__": "looks at slots of its own",
    "mrc.perf.collective.measuring._meet": "text of every rank, which is only shown",
    "mrc.proto.memory.bytes_of": "looks at a buffer of the application",
    "mrc.proto.window": "looks at a buffer of its own",
    "mrc.wire.runs.Nonces": "looks at a buffer of its own",
    "mrc.wire.runs.SegmentViews": "any words are a row; the dispatcher judges them",
    "mrc.udp": "reads what the kernel says, not what a peer does",
}
"""Functions, classes or modules that may parse without the suffix, and why."""


def parses(function: Function) -> bool:
    """Tell whether a function calls a parser itself."""
    calls = (node.func for node in ast.walk(function.node) if isinstance(node, ast.Call))
    names = (getattr(call, "attr", getattr(call, "id", "")) for call in calls)
    return any(name in PARSERS for name in names)


def excuse(key: str) -> str | None:
    """Return the row that lets a function parse without the suffix."""
    return next((row for row in READS_SOMETHING_ELSE if f"{key}.".startswith(f"{row}.")), None)


def test_functions_that_parse_say_so_in_their_name() -> None:
    """Whoever makes values of bytes ends in _untrusted, or has a reason in the table."""
    silent = [f.key for f in FUNCTIONS if parses(f) and not f.name.endswith(SUFFIX)]
    assert [key for key in silent if excuse(key) is None] == []


def test_every_reason_is_needed() -> None:
    """The table excuses nothing that is not there any more."""
    silent = [f.key for f in FUNCTIONS if parses(f) and not f.name.endswith(SUFFIX)]
    assert READS_SOMETHING_ELSE.keys() - {excuse(key) for key in silent} == set()


def test_a_parser_without_the_suffix_is_found() -> None:
    """The reader of the source sees a call of a parser wherever it stands."""
    source = "class A:\n async def b(self):\n  if 1:\n   return [json.loads(x) for x in y]"
    (found,) = _inside(ast.parse(source), "mrc.m", "")
    assert (found.key, parses(found), excuse(found.key)) == ("mrc.m.A.b", True, None)


# One kind of exception.

MAY_ALSO_RAISE = {
    "mrc.wire.icrc.check_icrc_untrusted": {"ValueError"},  # for the caller's own addresses
    "mrc.connection.Connection.establish_untrusted": {"ConfigError"},  # the sides do not agree
    "mrc.connection.accept_untrusted": {"MrcError"},  # what our own side refuses as well
    "mrc.collectives.store.LocalStore._do_untrusted": {"MrcError"},  # what the job has failed with
    "mrc.door.Door._proven_untrusted": {"MrcError", "EOFError", "OSError"},  # the connection's end
    "mrc.cli.sending.Sender._on_stored_untrusted": {"IntegrityError"},  # the data, not the words
}
"""What a function raises beside the one of its layer."""


def family(module: str) -> type[Exception]:
    """Return the one exception of a layer: a bad packet below, the peer's mistake above."""
    packets = module.startswith(("mrc.wire.", "mrc.proto.")) and module != "mrc.proto.attributes"
    return BadPacket if packets else PeerError


def raised(function: Function) -> set[str]:
    """Return the names of exceptions that a function says or is seen to raise."""
    section = re.search(r"Raises:\n((?:    .*\n?|\n)*)", ast.get_docstring(function.node) or "")
    lines = section[1].splitlines() if section is not None else []
    rows = [re.match(r"    (\w+(?:, \w+)*):", line) for line in lines]
    names = {name for row in rows if row is not None for name in row[1].split(", ")}
    for node in ast.walk(function.node):
        match node:
            case ast.Raise(exc=ast.Call(func=ast.Name(id=name)) | ast.Name(id=name)):
                names.add(name)
    return names


@pytest.mark.parametrize("function", UNTRUSTED, ids=lambda function: function.key)
def test_a_reader_raises_the_one_exception_of_its_layer(function: Function) -> None:
    """Whoever calls it knows what to catch, whatever the bytes are."""
    module = importlib.import_module(function.module)
    for name in raised(function) - MAY_ALSO_RAISE.get(function.key, set()):
        kind = getattr(module, name, getattr(builtins, name, None))
        assert isinstance(kind, type), name
        assert issubclass(kind, family(function.module)), name


def test_every_further_exception_is_needed() -> None:
    """The table allows nothing that is not raised any more."""
    by_key = {function.key: raised(function) for function in UNTRUSTED}
    stale = {key: names - by_key.get(key, set()) for key, names in MAY_ALSO_RAISE.items()}
    assert {key: names for key, names in stale.items() if names} == {}
