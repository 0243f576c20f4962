"""Every operation of `mrc.torch` gives what gloo's gives in the same processes."""

from typing import Any

import pytest
import torch.distributed as dist

from tests.torch import grid
from tests.torch.job import Jobs


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_every_operation_gives_what_gloos_gives(jobs: Jobs, ranks: int) -> None:
    """Integers bit for bit, floats within the usual tolerance; of 0, 1, 7 and 1000 elements."""
    for said in jobs.run("everything", ranks):
        assert said["wrong"] == []
        assert said["checks"] > 150


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_group_of_one_rank_does_what_there_is_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent, and everything is where it belongs."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    gloo: Any = dist.new_group(backend="gloo")
    assert grid.differences(gloo) + grid.lacking() == []
