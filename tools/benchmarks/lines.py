"""The worker's end of the JSON lines that `child` reads, and how a worker starts and ends."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

ORPHANED = 3
"""Exit status of a worker whose parent is gone."""


def emit(message: dict[str, Any]) -> None:
    """Tell the parent."""
    print(json.dumps(message), flush=True)


def run(main: Coroutine[Any, Any, None], *, with_uvloop: bool = True) -> None:
    """Run a worker, and end it when the parent is gone.

    Args:
        main: what it does.
        with_uvloop: take uvloop if it is installed.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _runner(with_uvloop=with_uvloop)(main)


def _runner(*, with_uvloop: bool) -> Callable[[Coroutine[Any, Any, None]], None]:
    if with_uvloop:
        try:
            import uvloop
        except ImportError:
            return asyncio.run
        return uvloop.run
    return asyncio.run


def _end_with_parent() -> None:
    """Standard input is a pipe that the parent never writes to: it ends when the parent does."""
    # Not through sys.stdin: its lock, held by this thread, would make a normal exit abort.
    os.read(sys.stdin.fileno(), 1)
    os._exit(ORPHANED)
