"""What every test gets: reproducible Hypothesis runs, and honest skips for what needs root."""

import os

import pytest
from hypothesis import settings

# `from tests.support import ...` shows the values of a failed assert as a test module does.
pytest.register_assert_rewrite("tests.support")

# The same examples on every run and every machine, with no deadline: a slow machine is not a bug.
# To look further than usual: tools/test --hypothesis-profile=explore
settings.register_profile("steady", derandomize=True, deadline=None, database=None, print_blob=True)
settings.register_profile("explore", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile("steady")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with a reason that the summary lists, tests marked `root` when run by anyone else."""
    if os.geteuid() == 0:
        return
    for item in items:
        if item.get_closest_marker("root") is not None:
            item.add_marker(pytest.mark.skip(reason="needs root"))
