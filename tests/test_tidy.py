"""The house rules that no linter checks: sizes, leftovers, and traces of one machine."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CODE_FOLDERS = ("mrc", "tools", "tests", "netns")
MADE_BY_TOOLS = frozenset({"__pycache__", "build", "dist"})
HIDDEN_BUT_OURS = frozenset({".ci", ".github", ".gitignore"})

# One idea fits in 150 to 400 lines. Beyond 600 the docstring has to defend it; nothing defends 800.
MODULE_LINES_MAX = 800
MODULE_LINES_UNEXPLAINED_MAX = 600
EXPLANATION = "Reason for the length:"
FUNCTION_LINES_MAX = 70

# Written so that no pattern matches its own text.
UNFINISHED = re.compile(r"\b(?:T[O]DO|FIX[M]E|X[X]X|HA[C]K|W[I]P)\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|Users|work)/\w|\.\./share[d]\b")
REGISTRY_HOST = re.compile(
    r"pypi\.org|pythonhosted\.org|(?:deb|security)\.debian\.org|archive\.ubuntu\.com"
    r"|registry\.npmjs\.org|crates\.io|proxy\.golang\.org",
    re.IGNORECASE,
)


def our_files() -> Iterator[Path]:
    """Every file of the repository that a person wrote."""
    folders = [ROOT]
    while folders:
        for path in sorted(folders.pop().iterdir()):
            hidden = path.name.startswith(".") and path.name not in HIDDEN_BUT_OURS
            if hidden or path.name in MADE_BY_TOOLS or path.suffix == ".egg-info":
                continue
            if path.is_dir():
                folders.append(path)
            elif path.is_file():
                yield path


def is_python(path: Path) -> bool:
    """Whether a file is Python by its suffix or, for a command, by its first line."""
    if path.suffix == ".py":
        return True
    with path.open("rb") as file:
        return not path.suffix and re.match(rb"#!.*python", file.readline()) is not None


def sources() -> list[tuple[str, str]]:
    """Name and text of every Python file of ours."""
    return [
        (str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
        for path in our_files()
        if path.relative_to(ROOT).parts[0] in CODE_FOLDERS and is_python(path)
    ]


def size_breaches(name: str, source: str) -> list[str]:
    """Modules and functions longer than they may be."""
    tree = ast.parse(source)
    lines = source.count("\n")
    found = []
    if lines > MODULE_LINES_MAX:
        found.append(f"{name}: {lines} lines, {MODULE_LINES_MAX} at most")
    elif lines > MODULE_LINES_UNEXPLAINED_MAX and EXPLANATION not in (
        ast.get_docstring(tree) or ""
    ):
        found.append(f"{name}: {lines} lines and no {EXPLANATION!r} in its docstring")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                found.append(
                    f"{name}:{node.lineno}: {node.name} has {length} lines,"
                    f" {FUNCTION_LINES_MAX} at most"
                )
    return found


def matching_lines(pattern: re.Pattern[str], name: str, text: str) -> list[str]:
    """The lines of a text in which a pattern is found, with their numbers."""
    return [
        f"{name}:{number}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_modules_and_functions_keep_their_size() -> None:
    """A module has at most 800 lines, over 600 only with a reason, and a function at most 70."""
    assert [breach for name, source in sources() for breach in size_breaches(name, source)] == []


@pytest.mark.parametrize("pattern", [UNFINISHED, MACHINE_PATH, REGISTRY_HOST])
def test_no_leftovers(pattern: re.Pattern[str]) -> None:
    """No file holds a mark of unfinished work, a path of one machine, or a registry's address."""
    found = []
    for path in our_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += matching_lines(pattern, str(path.relative_to(ROOT)), text)
    assert found == []


def test_no_file_is_empty() -> None:
    """A file with nothing in it says nothing; only the marker of a typed package may."""
    empty = [path for path in our_files() if not path.read_bytes().strip()]
    assert [str(path.relative_to(ROOT)) for path in empty if path.name != "py.typed"] == []


def test_the_files_a_newcomer_looks_for_are_there() -> None:
    """README and LICENSE stand at the root, and the commands the README names can be run."""
    assert (ROOT / "README.md").is_file()
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    for command in ("tools/test", "tools/demo", ".ci/run"):
        assert (ROOT / command).stat().st_mode & 0o111, command


def test_a_module_or_function_too_long_is_found() -> None:
    """The measuring itself fails what is one line over, and passes what is just within."""
    within = "def f():\n" + "    pass\n" * (FUNCTION_LINES_MAX - 1)
    assert size_breaches("m", within) == []
    assert len(size_breaches("m", within + "    pass\n")) == 1

    docstring = f'"""A table. {EXPLANATION} one row per opcode."""\n'
    long = "x = 1\n" * MODULE_LINES_UNEXPLAINED_MAX
    assert size_breaches("m", long) == []
    assert len(size_breaches("m", long + "x = 1\n")) == 1
    assert size_breaches("m", docstring + long) == []
    assert len(size_breaches("m", docstring + "x = 1\n" * MODULE_LINES_MAX)) == 1


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (UNFINISHED, "# {}: later".format("to" + "do").upper()),
        (MACHINE_PATH, "see /{}/me/notes".format("home")),
        (REGISTRY_HOST, "https://pypi{}org/simple".format(".")),
    ],
)
def test_a_leftover_is_found(pattern: re.Pattern[str], line: str) -> None:
    """Each pattern finds what it is there for."""
    assert matching_lines(pattern, "m", line) == [f"m:1: {line.strip()}"]
