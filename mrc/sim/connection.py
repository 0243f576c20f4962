"""The application: a connection between two hosts, what it writes, and what it must be told.

A queue pair that fails, or whose host is gone, is replaced: both ends are destroyed, connected anew
out of band, and what had not been reported done is posted again, in order. So nothing a network
does in the end keeps a message from arriving.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from mrc.proto.config import QpAttributes
from mrc.proto.events import Event, ImmediateReceived, QpFailed, WriteDone
from mrc.proto.memory import Region
from mrc.proto.qp import QpState, QueuePair
from mrc.sim.addresses import UDP_PORT
from mrc.sim.chance import Chance
from mrc.sim.clock import Timeline
from mrc.sim.failure import CheckFailed
from mrc.sim.host import Host
from mrc.sim.options import Options, WriteOptions
from mrc.sim.target import Target
from mrc.sim.trace import Trace
from mrc.wire.psn import PSN_MODULUS
from mrc.wire.seal import SECRET_BYTES, Seal, make_seal

_NEAR_WRAP_BITS = 6
_ACTIVATE_NS_MAX = 500_000
"""The ends of a connection become ready to send within that time, in any order."""


@dataclass(slots=True, eq=False)
class Message:
    """One write of the workload."""

    number: int
    options: WriteOptions
    data: bytes
    done: bool = False


@dataclass(slots=True, eq=False)
class _Posted:
    """A message that a queue pair was given."""

    message: Message
    work_id: int
    source: bytearray
    """What was posted; scribbled over as soon as it is reported done."""


@dataclass(slots=True, eq=False)
class End:
    """One end of a connection: what it has to write, and its queue pair of the moment."""

    host: Host
    name: str
    """Of the direction in which it writes, for people."""
    messages: list[Message] = field(default_factory=list)
    """All that it has to write, in the order of posting."""
    due: deque[Message] = field(default_factory=deque)
    """Those whose time has come and which wait to be posted."""
    qp: QueuePair | None = None
    target: Target | None = None
    """Where the other end writes to."""
    region: Region | None = None
    closed: bool = False
    """Its memory was deregistered, and the other end does not know."""
    posted: deque[_Posted] = field(default_factory=deque)
    announced: deque[Message] = field(default_factory=deque)
    """Messages with immediate that were posted and not yet received, on this queue pair."""
    messages_posted: list[Message] = field(default_factory=list)
    """All messages posted on this queue pair."""
    verified: int = 0
    """How many of those, from the first on, have been seen at the other end."""
    retired: list[Target] = field(default_factory=list)
    """Memory that is no longer registered, and must not change any more."""

    def start_anew(self) -> None:
        """Forget what the queue pair before was told; what it did not report done is due again."""
        self.due.extendleft(posted.message for posted in reversed(self.posted))
        self.posted.clear()
        self.announced.clear()
        self.messages_posted.clear()
        self.verified = 0

    @property
    def is_there(self) -> bool:
        """Whether its endpoint has its queue pair: a crash leaves one behind that is nobody's."""
        return self.qp is not None and self.host.endpoint.qps.get(self.qp.qpn) is self.qp

    @property
    def undone(self) -> list[Message]:
        """Messages not reported done."""
        return [message for message in self.messages if not message.done]


class Connection:
    """Two ends, connected and reconnected until everything is written."""

    def __init__(
        self,
        index: int,
        hosts: tuple[Host, Host],
        options: Options,
        timeline: Timeline,
        chance: Chance,
        trace: Trace | None,
    ) -> None:
        self.index = index
        a, b = hosts
        self.ends = (
            End(a, f"connection {index} {a.name}>{b.name}"),
            End(b, f"connection {index} {b.name}>{a.name}"),
        )
        self.established = False
        self.times_connected = 0
        self.on_failure: Callable[[Connection, End, QpFailed], None] = _accept
        """Judges whether a queue pair may fail now."""
        self._options = options
        self._timeline = timeline
        self._chance = chance
        self._trace = trace
        self._reconnecting = False
        for number, write in enumerate(options.writes):
            if write.connection == index:
                message = Message(number, write, chance.data(write.size_bytes))
                end = self.ends[write.backwards]
                end.messages.append(message)
                timeline.at(write.at_ns, self._fall_due, (end, message))

    def other(self, end: End) -> End:
        """Return the end at the other side."""
        return self.ends[end is self.ends[0]]

    @property
    def finished(self) -> bool:
        """Whether everything is written and nothing waits."""
        return self.established and all(
            not end.undone
            and end.qp is not None
            and end.qp.requestor is not None
            and end.qp.requestor.idle
            for end in self.ends
        )

    def state(self) -> str:
        """Return what it waits for, for people."""
        if not self.established:
            return f"connection {self.index} is not established"
        return ", ".join(
            f"{end.name} {end.qp.state.value} with {len(end.undone)} messages undone"
            for end in self.ends
            if end.qp is not None
        )

    # Coming and going.

    def connect(self, _: object = None) -> None:
        """Connect both ends out of band, if both hosts are up; a restart tries it again."""
        self._reconnecting = False
        if not all(end.host.up for end in self.ends):
            return
        self.close()
        self.times_connected += 1
        self.established = True
        attributes = [self._offer(end) for end in self.ends]
        answers = zip(self.ends, attributes, reversed(attributes), self._seals(), strict=True)
        for end, local, remote, seal in answers:
            assert end.qp is not None
            host = end.host
            peer = host.peer(self.other(end).host)
            host.endpoint.connect_qp(end.qp, peer, local, remote, host.local_ns(), seal)
            ready_ns = self._timeline.now_ns + self._chance.below(_ACTIVATE_NS_MAX)
            self._timeline.at(ready_ns, self._activate, (end, end.qp))
            end.start_anew()
        if self._trace is not None:
            qpns = [end.qp.qpn for end in self.ends if end.qp is not None]
            self._trace.note("connect", connection=self.index, qpns=qpns)

    def _offer(self, end: End) -> QpAttributes:
        """Create a queue pair and what it may write to; return what the other side must know."""
        host = end.host
        end.qp = host.endpoint.create_qp()
        if self._options.near_wrap:
            end.qp.first_psn = PSN_MODULUS - 1 - self._chance.below(1 << _NEAR_WRAP_BITS)
        self._register(end)
        return host.endpoint.attributes(
            end.qp,
            tuple((port.host, UDP_PORT) for port in host.ports),
            receive_buffer_bytes=host.options.receive_buffer_bytes,
        )

    def _seals(self) -> tuple[Seal, Seal] | tuple[None, None]:
        """Return keys for both ends, never the same again, where queue pairs are sealed."""
        cipher = self._options.secured
        if cipher is None:
            return None, None
        secrets = self._chance.data(SECRET_BYTES), self._chance.data(SECRET_BYTES)
        return (
            make_seal(cipher, secrets, connecting=True),
            make_seal(cipher, secrets, connecting=False),
        )

    def _register(self, end: End) -> None:
        """Register what the other end writes to, anew where the host or the region is gone."""
        memory = end.host.endpoint.memory
        if end.region is not None and memory.region(end.region.r_key) is end.region:
            return
        if end.target is not None and not end.closed:
            end.target.retire()
            end.retired.append(end.target)
        end.closed = False
        messages = [(m.number, m.data) for m in self.other(end).messages if not m.done]
        end.target = Target(messages)
        end.region = end.host.endpoint.register(end.target.buffer)

    def _activate(self, what: tuple[End, QueuePair]) -> None:
        end, qp = what
        if end.qp is qp and qp.state is QpState.RTR:
            qp.activate()
            end.host.wake_by(self._timeline.now_ns)

    def close(self) -> None:
        """Destroy what there is of the queue pairs; their memory stays."""
        for end in self.ends:
            if end.qp is not None and end.is_there:
                end.host.endpoint.destroy_qp(end.qp)
            end.qp = None
        self.established = False

    def break_off(self) -> None:
        """One end is gone; the other end does not know."""
        self.established = False

    def reconnect_later(self) -> None:
        """Connect anew after a while."""
        self.break_off()
        if not self._reconnecting:
            self._reconnecting = True
            again_ns = self._timeline.now_ns + self._options.reconnect_ns
            self._timeline.at(again_ns, self.connect)

    def close_region(self, end: End) -> None:
        """Deregister what is written to at an end, in the middle of it all."""
        if end.region is not None and end.target is not None and end.host.up and not end.closed:
            end.host.endpoint.deregister(end.region)
            end.target.check(self.other(end).name)
            end.target.retire()
            end.retired.append(end.target)
            end.closed = True

    # Posting.

    def _fall_due(self, what: tuple[End, Message]) -> None:
        end, message = what
        end.due.append(message)
        end.host.wake_by(self._timeline.now_ns)

    def post_due(self, host: Host) -> None:
        """Post what is due at a host, as far as its queue pair is ready to send."""
        for end in self.ends:
            if end.host is host and end.due and end.qp is not None:
                while end.due and end.qp.state is QpState.RTS:
                    self._post(end, end.due.popleft())

    def _post(self, end: End, message: Message) -> None:
        there = self.other(end)
        assert end.qp is not None
        assert there.region is not None
        assert there.target is not None
        source = bytearray(message.data)
        immediate = message.number if message.options.immediate else None
        va = there.region.va + there.target.slots[message.number].offset
        r_key = there.region.r_key
        work_id = end.host.endpoint.post_write(end.qp, source, va, r_key, immediate)
        end.posted.append(_Posted(message, work_id, source))
        end.messages_posted.append(message)
        if immediate is not None:
            end.announced.append(message)
        if self._trace is not None:
            details = {"bytes": len(source), "immediate": immediate is not None}
            self._trace.note("post", message=message.number, **details)

    # Being told.

    def on_event(self, host: Host, event: Event) -> None:
        """Take an event of one of the ends' queue pairs, and judge it."""
        qpn = getattr(event, "qpn", None)
        for end in self.ends:
            if end.host is host and end.qp is not None and end.qp.qpn == qpn:
                match event:
                    case WriteDone():
                        self._on_done(end, event)
                    case ImmediateReceived():
                        self._on_immediate(end, event)
                    case QpFailed():
                        self._on_failed(end, event)

    def _on_done(self, end: End, event: WriteDone) -> None:
        name, there = end.name, self.other(end)
        if not end.posted or end.posted[0].work_id != event.work_id:
            raise CheckFailed("completion", f"{name}: work {event.work_id} is not the next")
        posted = end.posted.popleft()
        number = posted.message.number
        target = there.target
        assert target is not None
        if not target.has(number):
            raise CheckFailed("completion", f"{name}: message {number} done before its data")
        if posted.message in end.announced:
            raise CheckFailed("completion", f"{name}: message {number} done before its immediate")
        posted.message.done = True
        target.take(number)
        posted.source[:] = bytes(len(posted.source))
        if self._trace is not None:
            self._trace.note("done", message=number)

    def _on_immediate(self, end: End, event: ImmediateReceived) -> None:
        there = self.other(end)
        name = there.name
        if not there.announced or there.announced[0].number != event.imm:
            raise CheckFailed("immediates", f"{name}: immediate {event.imm} is not the next")
        message = there.announced.popleft()
        self._check_place(end, event, message)
        taken_ns = self._timeline.now_ns + end.host.options.take_ns
        self._timeline.at(taken_ns, self._take, (end, end.qp))
        if self._trace is not None:
            self._trace.note("immediate", message=message.number)

    def _check_place(self, end: End, event: ImmediateReceived, message: Message) -> None:
        """Check that an immediate tells of the right bytes, and that all before it are there."""
        there = self.other(end)
        name = there.name
        assert end.target is not None
        assert end.region is not None
        slot = end.target.slots[message.number]
        place = end.region.r_key, end.region.va + slot.offset, len(message.data)
        if (event.r_key, event.va, event.length) != place:
            raise CheckFailed("immediates", f"{name}: immediate {event.imm} names another place")
        while there.verified < len(there.messages_posted):
            before = there.messages_posted[there.verified]
            if not end.target.has(before.number):
                raise CheckFailed(
                    "immediates", f"{name}: immediate {event.imm} before message {before.number}"
                )
            there.verified += 1
            if before is message:
                break

    def _take(self, what: tuple[End, QueuePair]) -> None:
        """The application takes an immediate."""
        end, qp = what
        if end.qp is qp and qp.responder is not None:
            qp.responder.release_immediates(1)

    def _on_failed(self, end: End, event: QpFailed) -> None:
        self.on_failure(self, end, event)
        if self._trace is not None:
            why = f"{event.failure.value} after {event.silent_ns} ns"
            self._trace.note("failed", connection=self.index, host=end.host.name, why=why)
        self.reconnect_later()


def _accept(*_: object) -> None:
    """Let any queue pair fail."""
