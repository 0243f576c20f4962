"""One direction of one link: a rate, a queue, a delay, and everything that can go wrong with it.

Two classes wait for the rate: data, first in first out, and what is hasty (control packets and
trimmed headers), which overtakes all data that has not begun to leave, but takes no more than half
of the rate while data waits (UET 1.0 §3.6.17). The rate is never exceeded: what is hasty puts data
that comes after it off by the time it takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrc.sim.chance import Chance
from mrc.sim.clock import Timeline
from mrc.sim.datagram import Datagram
from mrc.sim.options import Kind, LinkOptions

if TYPE_CHECKING:
    from mrc.sim.network import Network

OVERHEAD_BYTES = 28
"""IP and UDP headers, which take their time on the wire as well."""
_FLIPS_MAX = 3


class Link:
    """Carries datagrams from its one end to the other, or does not."""

    def __init__(
        self, name: str, options: LinkOptions, timeline: Timeline, chance: Chance, network: Network
    ) -> None:
        self.name = name
        self.options = options
        self.entered = 0
        """Datagrams that came to its near end."""
        self._timeline = timeline
        self._chance = chance
        self._network = network
        self._ns_per_byte = 8e9 / options.rate_bps if options.rate_bps else 0.0
        self._data_free_ns = 0
        self._hasty_free_ns = 0
        self._last_ns = 0
        self._masked_place = 0
        self._cuts = 0
        self._epoch = 0
        self._faulty = options != options.healed()

    # What happens to the link itself.

    def heal(self) -> None:
        """End all its faults."""
        self.options = self.options.healed()
        self._faulty = False
        self._cuts = 0

    def cut(self) -> None:
        """Swallow everything that enters from now on; what is on its way still arrives."""
        self._cuts += 1

    def mend(self) -> None:
        """Take one cut back; the link works when none is left."""
        self._cuts = max(0, self._cuts - 1)

    def flush(self) -> None:
        """Lose everything that waits and everything on its way."""
        self._epoch += 1
        self._data_free_ns = self._hasty_free_ns = self._timeline.now_ns

    @property
    def backlog_bytes(self) -> int:
        """Data that waits to leave."""
        if not self._ns_per_byte:
            return 0
        waits_ns = max(0, self._data_free_ns - self._timeline.now_ns)
        return int(waits_ns / self._ns_per_byte)

    def drained_ns(self, rest_bytes: int) -> int:
        """Return when no more than that will wait to leave, if nothing enters."""
        return self._data_free_ns - int(rest_bytes * self._ns_per_byte)

    # What happens to datagrams.

    def enter(self, datagram: Datagram) -> None:
        """Take a datagram at the near end."""
        self.entered += 1
        if self._cuts:
            self._network.lose(datagram, "cut")
            return
        extra_ns = 0
        if self._faulty:
            if (reason := self._misfortune(datagram)) is not None:
                self._network.lose(datagram, reason)
                return
            extra_ns = self._disturb(datagram)
        leaves_ns = self._queue(datagram)
        if leaves_ns is None:
            self._network.lose(datagram, "queue full")
            return
        options = self.options
        arrives_ns = leaves_ns + options.delay_ns
        if options.jitter_ns:
            arrives_ns += self._chance.below(options.jitter_ns)
        if not datagram.is_hasty:
            # Whatever the jitter, data leaves in the order in which it came.
            arrives_ns = self._last_ns = max(arrives_ns, self._last_ns)
        self._timeline.at(arrives_ns + extra_ns, self._arrive, (datagram, self._epoch))

    def _misfortune(self, datagram: Datagram) -> str | None:
        """Return why a datagram is lost here, if it is."""
        options = self.options
        if options.size_max and len(datagram.data) > options.size_max:
            return "too large"
        if options.loss_of in (Kind.ALL, datagram.kind):
            place = self._masked_place
            self._masked_place += 1
            if options.mask is not None and place in options.mask:
                return "mask"
            if options.loss and self._chance.happens(options.loss):
                return "loss"
        return None

    def _disturb(self, datagram: Datagram) -> int:
        """Do to a datagram what the faults of the link do; return by how much it comes later."""
        options, chance, network = self.options, self._chance, self._network
        if options.rewrite_ports:
            datagram.rewrite_port()
        if options.corrupt and chance.happens(options.corrupt):
            bits = 8 * len(datagram.data)
            datagram.flip([chance.below(bits) for _ in range(chance.between(1, _FLIPS_MAX))])
            network.note(datagram, "corrupt")
        if options.mark and chance.happens(options.mark) and datagram.mark():
            network.note(datagram, "mark")
        if options.trim and chance.happens(options.trim):
            self._trim(datagram)
        if options.duplicate and chance.happens(options.duplicate):
            twin = network.duplicate(datagram)
            late_ns = 1 + chance.below(options.reorder_ns + 1)
            arrives_ns = self._timeline.now_ns + options.delay_ns + late_ns
            self._timeline.at(arrives_ns, self._arrive, (twin, self._epoch))
        if options.reorder and chance.happens(options.reorder):
            return chance.below(options.reorder_ns + 1)
        return 0

    def _trim(self, datagram: Datagram) -> None:
        if datagram.trim(last_hop=self.options.last_hop):
            self._network.note(datagram, "trim")

    def _queue(self, datagram: Datagram) -> int | None:
        """Return when the datagram has left the near end, or None when the queue is full."""
        now_ns = self._timeline.now_ns
        if not self._ns_per_byte:
            return now_ns
        options, backlog_bytes = self.options, self.backlog_bytes
        if not datagram.is_hasty:
            size_bytes = len(datagram.data)
            if options.trim_bytes and backlog_bytes + size_bytes > options.trim_bytes:
                self._trim(datagram)
        takes_ns = int((len(datagram.data) + OVERHEAD_BYTES) * self._ns_per_byte)
        if datagram.is_hasty:
            begins_ns = max(now_ns, self._hasty_free_ns)
            if (begins_ns - now_ns) / self._ns_per_byte > options.queue_bytes:
                return None
            # While data waits, it is left half of the rate: headers must not starve it.
            self._hasty_free_ns = begins_ns + (2 * takes_ns if backlog_bytes else takes_ns)
            self._data_free_ns = max(now_ns, self._data_free_ns) + takes_ns
            return self._hasty_free_ns
        if backlog_bytes + size_bytes > options.queue_bytes:
            return None
        if options.mark_bytes and backlog_bytes > options.mark_bytes and datagram.mark():
            self._network.note(datagram, "mark")
        self._data_free_ns = max(now_ns, self._data_free_ns) + takes_ns
        return self._data_free_ns

    def _arrive(self, what: tuple[Datagram, int]) -> None:
        """Hand a datagram on at the far end, unless the queue it was in is gone."""
        datagram, epoch = what
        if epoch != self._epoch:
            self._network.lose(datagram, "reboot")
            return
        datagram.hop += 1
        if datagram.hop < len(datagram.links):
            datagram.links[datagram.hop].enter(datagram)
        else:
            self._network.deliver(datagram)
