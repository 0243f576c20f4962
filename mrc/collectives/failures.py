"""What goes wrong between ranks, said so that one knows where to look: which rank, where, how long.

A dead path is none of it: the endpoint leaves it by itself. These are about a rank that is gone or
silent on all its paths, one that does something else, and one that does not come.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Self

import mrc
from mrc import connection
from mrc.errors import ConfigError, PeerProtocolError, TransportError
from mrc.units import NS_PER_S, format_ns

TEXT_CHARACTERS_MAX = 2000
"""Of what another rank says about a failure."""


@dataclass(frozen=True, slots=True)
class Obituary:
    """What is known of a rank that failed, as ranks tell it to each other.

    Attributes:
        rank: its number in the whole job.
        address: of its listener.
        why: in words.
        heard_ns: how long ago it was last heard, by whoever found out; -1 for never.
        paths: one line a path towards it, with its state and when it last answered.
        states: how many of them are in which state, in words.
    """

    rank: int
    address: str
    why: str
    heard_ns: int = -1
    paths: tuple[str, ...] = ()
    states: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a message."""
        return {
            "rank": self.rank,
            "address": self.address,
            "why": self.why,
            "heard_ns": self.heard_ns,
            "paths": list(self.paths),
            "states": self.states,
        }

    @classmethod
    def from_json_untrusted(cls, value: object, ranks: int) -> Self:
        """Read what another rank says.

        Raises:
            PeerProtocolError: something is missing, or is no such thing.
        """
        match value:
            case {
                "rank": int(rank),
                "address": str(address),
                "why": str(why),
                "heard_ns": int(heard_ns),
                "paths": list(paths),
                "states": str(states),
            } if (
                type(rank) is int
                and 0 <= rank < ranks
                and -1 <= heard_ns < 1 << 63
                and len(paths) <= connection.PATHS_SHOWN_MAX
            ):
                texts = (address, why, states, *map(str, paths))
                if all(len(text) <= TEXT_CHARACTERS_MAX and text.isprintable() for text in texts):
                    return cls(rank, address, why, heard_ns, tuple(map(str, paths)), states)
        raise PeerProtocolError(f"not the news of a failure: {value!r:.80}")


class RankFailed(TransportError):
    """A rank is gone, or was silent on all paths for the detection timeout.

    Attributes:
        rank: its number in the communicator that raises this.
        job_rank: its number in the whole job.
        address: of its listener.
        heard_ns: how long ago it was last heard; -1 for never.
        paths: one line a path towards it.
    """

    def __init__(self, obituary: Obituary, rank: int | None = None) -> None:
        self.obituary = obituary
        self.job_rank = obituary.rank
        self.rank = obituary.rank if rank is None else rank
        self.address = obituary.address
        self.heard_ns = obituary.heard_ns
        heard = "never heard"
        if obituary.heard_ns >= 0:
            heard = f"last heard {format_ns(obituary.heard_ns)} before it was given up"
        also = f" (rank {self.job_rank} of the job)" if self.rank != self.job_rank else ""
        paths = f"; paths then: {obituary.states}" if obituary.states else ""
        super().__init__(
            f"rank {self.rank}{also} at {obituary.address} failed: {obituary.why}; {heard}{paths}",
            peer=obituary.address,
            paths=obituary.paths,
        )


class OperationTimeout(TransportError, TimeoutError):
    """An operation was not over in time, though every rank is alive.

    Attributes:
        waited_for: the ranks that had not done their part.
    """

    def __init__(self, message: str, waited_for: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.waited_for = waited_for


class OperationBroken(TransportError):
    """Another rank gave an operation up; the communicator is of no use any more."""


class CommunicatorClosed(ConfigError):
    """It was closed on this side, and is used all the same."""


class LinkFailed(Exception):
    """The queue pair to a rank failed; the cause says how.

    Attributes:
        rank: in the communicator.
        error: what the queue pair said.
    """

    def __init__(self, rank: int, error: mrc.MrcError) -> None:
        super().__init__(f"link to rank {rank}: {error}")
        self.rank = rank
        self.error = error


def path_lines(qp: mrc.QueuePair) -> tuple[str, ...]:
    """Say of the first paths to a peer what state they are in, and when they last answered."""
    return connection.path_lines(_paths(qp))


def path_states(qp: mrc.QueuePair) -> str:
    """Say how many paths to a peer are in which state."""
    states = Counter(path.state for path in _paths(qp))
    return ", ".join(f"{count} {state}" for state, count in states.most_common())


def heard_ns(qp: mrc.QueuePair) -> int:
    """Return how long ago a path to a peer last answered; -1 for never."""
    confirmed_ns = max((path.confirmed_ns for path in _paths(qp)), default=-1)
    return time.monotonic_ns() - confirmed_ns if confirmed_ns >= 0 else -1


def _paths(qp: mrc.QueuePair) -> list[mrc.PathStatistics]:
    try:
        return list(qp.statistics().paths)
    except ConfigError:
        return []


def seconds(duration_s: float) -> str:
    """Spell a timeout."""
    return format_ns(duration_s * NS_PER_S)
