"""Endpoint requests under way: what was asked of whom, on which EV, and which answer is the one.

A request id has 16 bits. The high eight are the tag by which the peer tells us from its neighbours,
so there are 256 ids to a tag; over long paths more probes than that are under way. An answer
repeats id and time of what it answers, and both together say which request that was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from mrc.proto.ev import Path
from mrc.proto.peer import Peer
from mrc.proto.qp import QueuePair
from mrc.wire.control import EndpointResponse, timestamp

AN_ID_MAX = 16
"""Requests under way with one id, about 150 bytes each; beyond it the oldest give way."""


@dataclass(frozen=True, slots=True)
class Request:
    """An endpoint request that waits for its answer; `qp` is the one it was sent for."""

    peer: Peer
    qp: QueuePair
    path: Path
    op: int
    mask: int
    sent_ns: int

    def is_answered_by(self, response: EndpointResponse) -> bool:
        """Tell whether a response is of our kind and repeats our time."""
        return response.op == self.op and response.tx_timestamp == timestamp(self.sent_ns)


class Requests:
    """Those of one endpoint, by id."""

    def __init__(self) -> None:
        self._pending: dict[int, list[Request]] = {}
        """By id, oldest first."""
        self._counts: Counter[int] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._pending.values()))

    def add(self, request: Request) -> int:
        """Remember a request that leaves now; return its id.

        Peers that share an address may have given us the same tag, so ids are counted by tag.
        """
        tag = request.qp.remote_tag
        self._counts[tag] += 1
        request_id = tag << 8 | self._counts[tag] & 0xFF
        pending = self._pending.setdefault(request_id, [])
        if len(pending) >= AN_ID_MAX:
            del pending[0]
        pending.append(request)
        return request_id

    def claimed_by(self, response: EndpointResponse, host: str) -> Request | None:
        """Return the request to a peer at this address that a response answers, or claims to."""
        pending = self._pending.get(response.request_id, ())
        claimed = [request for request in pending if host in request.peer.hosts]
        right = (request for request in claimed if request.is_answered_by(response))
        return next(right, claimed[-1] if claimed else None)

    def is_answered(self, request: Request, response: EndpointResponse) -> bool:
        """Tell whether a response is the right answer to a request, which waits no more then.

        A wrong one under the right keys is the peer's guess: it has one.
        """
        right = request.is_answered_by(response)
        if right:
            self._keep(response.request_id, lambda other: other is not request)
        elif request.qp.seal is not None:
            self._keep(response.request_id, lambda other: other.peer is not request.peer)
        return right

    def forget(self, peer: Peer) -> None:
        """Expect no answer of a peer any more."""
        for request_id in list(self._pending):
            self._keep(request_id, lambda request: request.peer is not peer)

    def _keep(self, request_id: int, wanted: Callable[[Request], bool]) -> None:
        """Keep of the requests with one id those that are wanted."""
        kept = [request for request in self._pending[request_id] if wanted(request)]
        if kept:
            self._pending[request_id] = kept
        else:
            del self._pending[request_id]
