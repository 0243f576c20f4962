"""The layers of the package, read from its imports by syntax tree.

Running the imports would prove nothing: numpy alone brings in most of what the core must not use.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "mrc"

SHARED = frozenset({"errors", "text", "units"})

# For each part, the other parts it may import. Nothing points up; wire stands on nothing at all.
MAY_IMPORT = {
    "perf": SHARED | {"api", "cli", "collectives", "plans"},
    "torch": SHARED | {"api", "collectives"},
    "collectives": SHARED | {"api", "plans"},
    "cli": SHARED | {"api"},
    "api": SHARED | {"engine", "rendezvous", "lock", "udp", "proto", "wire"},
    "engine": SHARED | {"udp", "proto", "wire"},
    "rendezvous": SHARED | {"lock"},
    "lock": SHARED,
    "udp": SHARED,
    "sim": SHARED | {"plans", "proto", "wire"},
    "plans": SHARED,
    "proto": SHARED | {"wire"},
    "wire": frozenset[str](),
    "errors": frozenset[str](),
    "text": frozenset[str](),
    "units": frozenset({"errors"}),
}

# Modules that belong to a part under another name.
PART_OF = {
    "collectives.plans": "plans",
    "collectives.algorithms": "plans",
    "__init__": "api",
    "connection": "api",
    "seals": "api",
    "regions": "api",
    "json_channel": "api",
    "mailbox": "api",
    "messages": "api",
    "qp_facts": "api",
    "socket_facts": "engine",
    "door": "rendezvous",
    "tls": "rendezvous",
    "identity": "lock",
}

# The core is handed the time, its randomness and its bytes, and can reach for none of them.
CORE = frozenset({"wire", "proto"})
FORBIDDEN_IN_CORE = frozenset(
    """
    asyncio concurrent ctypes datetime fcntl importlib io logging mmap multiprocessing os pathlib
    random secrets select selectors shutil signal socket ssl subprocess tempfile threading time uuid
    """.split()  # noqa: SIM905  # a list of these, one a line, would hide the table above
)
THIRD_PARTY_IN_CORE = frozenset({"cryptography", "isal", "numpy"})


def part_of(module: str) -> str:
    """The part that a module belongs to, from its dotted name below the package."""
    name, _, below = module.partition(".")
    inner = f"{name}.{below.partition('.')[0]}"
    return PART_OF.get(inner) or PART_OF.get(name, name)


def imports(source: str, package: str) -> Iterator[str]:
    """Every module named by an import anywhere in a source; relative ones below `package`."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                base = node.module or ""
                if node.level:
                    parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                    base = ".".join([*parents, base] if base else parents)
                # `from mrc import wire` names a part, `from mrc.wire import psn` a module of one.
                yield from (f"{base}.{alias.name}" for alias in node.names)
            case ast.Name(id="__import__"):
                yield "importlib"


def breaches(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """What a module imports against the rules, one line each."""
    part = part_of(module)
    if part not in MAY_IMPORT:
        return [f"mrc.{module}: give this new part a row in MAY_IMPORT"]
    package = f"mrc.{module}" if is_package else f"mrc.{module}".rpartition(".")[0]
    found = []
    for name in imports(source, package):
        top, _, below = name.partition(".")
        if top == "mrc":
            target = part_of(below) if below else "api"
            # A name that is no part is something that mrc/__init__.py offers.
            target = target if target in MAY_IMPORT else "api"
            if target != part and target not in MAY_IMPORT[part]:
                found.append(f"mrc.{module} ({part}) imports {name} ({target})")
        elif part in CORE and (
            top in FORBIDDEN_IN_CORE
            or (top not in sys.stdlib_module_names and top not in THIRD_PARTY_IN_CORE)
        ):
            found.append(f"mrc.{module} ({part}) imports {name}")
    return found


def test_no_module_imports_what_its_layer_may_not_know() -> None:
    """An import goes down the layers, and the core imports nothing of the world outside."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        is_package = parts[-1] == "__init__" and len(parts) > 1
        module = ".".join(parts[:-1] if is_package else parts)
        source = path.read_text(encoding="utf-8")
        found += breaches(module, source, is_package=is_package)
    assert found == []


def test_the_testbed_uses_the_public_interface_only() -> None:
    """`import mrc`, what `mrc.collectives` offers and the command lines: it judges the endpoint.

    So it must not know its inside.
    """
    found = []
    for path in sorted((ROOT / "netns").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        names = [name for name in imports(source, "netns") if name.partition(".")[0] == "mrc"]
        # What mrc/__init__.py offers has one dot and is no part of the package.
        inside = [name for name in names if part_of(name[4:]) in MAY_IMPORT or name.count(".") > 1]
        secret = sorted(set(inside) - {"mrc", "mrc.collectives"})
        found += [f"{path.relative_to(ROOT)} imports {name}" for name in secret]
    assert found == []


def test_bootstrap_needs_nothing_but_the_standard_library() -> None:
    """The module that installs everything else runs before anything is installed."""
    source = (ROOT / "tools" / "bootstrap.py").read_text(encoding="utf-8")
    tops = {name.partition(".")[0] for name in imports(source, "")}
    assert tops <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("wire.psn", "import time"),
        ("wire.psn", "import mrc.errors"),
        ("wire.psn", "from mrc import errors"),
        ("wire.psn", "from ..proto import qp"),
        ("wire.psn", "import scapy.all"),
        ("proto.qp", "def late():\n    from random import Random"),
        ("proto.qp", "if TYPE_CHECKING:\n    from asyncio import Event"),
        ("proto.qp", "from ..udp.socket import SendSocket"),
        ("proto.qp", "from mrc import connect"),
        ("proto.qp", "clock = __import__('time')"),
        ("udp.socket", "from mrc.wire import psn"),
        ("engine", "from . import api"),
        ("cli.send", "from mrc.proto.qp import QueuePair"),
        ("novelty", ""),
    ],
)
def test_a_breach_is_found(module: str, source: str) -> None:
    """The reader of imports sees every way to write a forbidden one."""
    assert len(breaches(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("wire.icrc", "import struct\nimport numpy as np\nfrom isal import isal_zlib"),
        ("wire.icrc", "from . import psn\nfrom .fields import BTH"),
        ("proto.qp", "from mrc.errors import ConfigError\nfrom ..wire import psn"),
        ("engine", "import asyncio\nfrom mrc.proto import qp"),
        ("__init__", "from mrc.api import connect\nfrom .errors import MrcError"),
        ("cli.send", "import mrc\nfrom mrc import connect\nfrom mrc.errors import MrcError"),
    ],
)
def test_a_permitted_import_is_let_through(module: str, source: str) -> None:
    """The reader of imports objects to nothing that the rules allow."""
    assert breaches(module, source) == []
