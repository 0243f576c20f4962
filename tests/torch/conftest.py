"""What tests of `mrc.torch` share."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

import mrc.torch  # noqa: F401 - registers the backend
from tests.torch.job import Jobs


@pytest.fixture(scope="session")
def jobs() -> Iterator[Jobs]:
    """Start jobs of several ranks, each a process."""
    with Jobs() as started:
        yield started


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of one rank, in this process."""
    dist.init_process_group("mrc", rank=0, world_size=1, store=HashStore())
    yield
    dist.destroy_process_group()
