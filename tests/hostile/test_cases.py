"""The list of cases is true: each test it names exists, and none of this folder is missing."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.hostile.cases import CASES

TESTS = Path(__file__).resolve().parent.parent


@cache
def named_in(file: str) -> frozenset[str]:
    """Return the names of the tests that pytest collects from a file, those always skipped not."""
    path = TESTS / file
    if not path.is_file() or not path.name.startswith("test_"):
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not any("mark.skip" in ast.unparse(each) for each in node.decorator_list)
    )


@pytest.mark.parametrize("case", CASES)
def test_each_case_has_its_tests(case: str) -> None:
    """Every test named for it is there under that name."""
    assert CASES[case]
    for test in CASES[case]:
        file, _, name = test.partition("::")
        assert name in named_in(file), test


def test_no_test_is_named_twice_for_one_case() -> None:
    """A list with repetitions would look longer than it is."""
    assert all(len(set(tests)) == len(tests) for tests in CASES.values())


def test_every_hostile_test_belongs_to_a_case() -> None:
    """What is tested in this folder can be found by what it is about."""
    listed = {test for tests in CASES.values() for test in tests}
    here = {
        f"hostile/{path.name}::{name}"
        for path in Path(__file__).parent.glob("test_*.py")
        if path.name != Path(__file__).name
        for name in named_in(f"hostile/{path.name}")
    }
    assert here - listed == set()


def test_a_test_that_is_not_there_is_noticed() -> None:
    """Neither a file nor a name that does not exist passes, nor what pytest would not collect."""
    assert "test_each_case_has_its_tests" in named_in("hostile/test_cases.py")
    assert "test_nobody_wrote" not in named_in("hostile/test_cases.py")
    assert named_in("hostile/test_nobody_wrote.py") == frozenset()
    assert named_in("hostile/cases.py") == frozenset()
