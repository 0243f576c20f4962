"""Collectives over MRC: many ranks that exchange in lockstep, over every path at once.

    async with collectives.join() as communicator:
        await communicator.all_reduce(gradient)

`join` finds the other ranks; see `mrc.collectives.communicator` for what they can do together,
`mrc.collectives.plans` for how to try an algorithm of one's own, and `mrc.collectives.blocking` for
scripts without an event loop.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mrc.collectives.blocking import BlockingCommunicator, BlockingWork, join_blocking
    from mrc.collectives.bootstrap import Bootstrap
    from mrc.collectives.communicator import Communicator
    from mrc.collectives.failures import (
        CommunicatorClosed,
        OperationBroken,
        OperationTimeout,
        RankFailed,
    )
    from mrc.collectives.interfaces import InterfaceList
    from mrc.collectives.joined import World, join
    from mrc.collectives.member import Work
    from mrc.collectives.plans import Operation, Plan, Receive, Reduce, Send, interpret, register
    from mrc.collectives.reduction import ReduceOp
else:
    _HOMES = (
        "blocking",
        "bootstrap",
        "communicator",
        "failures",
        "interfaces",
        "joined",
        "member",
        "plans",
        "reduction",
    )

    def __getattr__(name: str) -> object:
        """Bring a public name when it is first asked for: plans alone need no network."""
        if name in __all__:
            for home in _HOMES:
                found = vars(import_module(f"mrc.collectives.{home}"))
                if name in found:
                    globals()[name] = found[name]
                    return found[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "BlockingCommunicator",
    "BlockingWork",
    "Bootstrap",
    "Communicator",
    "CommunicatorClosed",
    "InterfaceList",
    "Operation",
    "OperationBroken",
    "OperationTimeout",
    "Plan",
    "RankFailed",
    "Receive",
    "Reduce",
    "ReduceOp",
    "Send",
    "Work",
    "World",
    "interpret",
    "join",
    "join_blocking",
    "register",
]
