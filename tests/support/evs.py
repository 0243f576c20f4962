"""EVs of a peer by themselves, without an endpoint or traffic around them."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from mrc.proto.config import Config
from mrc.proto.ev import Path
from mrc.proto.events import Event
from mrc.proto.paths import PathSet
from mrc.proto.peer import evs_per_plane
from tests.support.pair import FIRST_EV_PORT


def path_set(planes: int = 1, **config: Any) -> PathSet:
    """EVs of a peer with that many planes, no traffic on them."""
    settings = Config(**config)
    count = evs_per_plane(settings, planes)
    evs = [(plane, FIRST_EV_PORT + i, 0) for plane in range(planes) for i in range(count)]
    events: deque[Event] = deque()
    return PathSet(settings, random.Random(1), 1, evs, events)


def choose(paths: PathSet, count: int = 1) -> list[Path]:
    """Choose EVs for that many runs."""
    chosen = [paths.choose() for _ in range(count)]
    assert None not in chosen
    return [path for path in chosen if path is not None]


def active(paths: PathSet) -> list[int]:
    """Indexes of the EVs that one turn uses."""
    return sorted({path.index for path in choose(paths, 2 * paths.active_count)})
