"""With which settings a rank's endpoint opens, where the caller gives none."""

from __future__ import annotations

import numpy as np
import pytest

import mrc
from mrc import collectives
from tests.collectives.cluster import bootstraps, each


def config_of(url: str, config: mrc.Config | None = None) -> mrc.Config:
    """Return the settings of the endpoint of a rank whose rank 0 is at an address."""
    start = collectives.Bootstrap(rank=1, size=2, url=mrc.Url.parse(url))
    return collectives.join(start, config=config)._endpoint.config  # noqa: SLF001


@pytest.mark.parametrize(
    "url", ["127.0.0.1:4000", "127.9.8.7:4000", "[::1]:4000", "localhost:4000"]
)
def test_there_is_no_icrc_where_rank_0_is_at_a_loopback_address(url: str) -> None:
    """What never leaves a host's memory is not checked by kernels either."""
    assert not config_of(url).icrc


@pytest.mark.parametrize(
    "url", ["192.0.2.7:4000", "10.0.0.1:4000", "[2001:db8::1]:4000", "rank0.example:4000"]
)
def test_there_is_an_icrc_where_rank_0_is_elsewhere(url: str) -> None:
    """Also at a name, which may mean this host here and another one there."""
    assert config_of(url).icrc


@pytest.mark.parametrize("icrc", [True, False])
@pytest.mark.parametrize("url", ["127.0.0.1:4000", "192.0.2.7:4000"])
def test_settings_that_are_given_are_taken_as_they_are(url: str, icrc: bool) -> None:
    """Nothing is guessed where the caller has said it."""
    given = mrc.Config(icrc=icrc)
    assert config_of(url, given) is given


@pytest.mark.asyncio
@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_ranks_that_call_loopback_by_different_names_agree(host: str) -> None:
    """Both ends of a queue pair must have the iCRC, or neither."""
    first, other = bootstraps(2)
    other = collectives.Bootstrap(
        rank=1, size=2, url=mrc.Url.parse(f"{host}:{first.url.address.port}")
    )

    async def one(start: collectives.Bootstrap) -> int:
        async with collectives.join(start) as world:
            array = np.array([world.rank + 1])
            await world.all_reduce(array)
            return int(array[0])

    assert await each([one(first), one(other)]) == [3, 3]
