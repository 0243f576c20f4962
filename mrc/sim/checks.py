"""The checkers: what must be true of endpoints, whatever the network does to them.

They see all hosts at once, which no host does, and compare what one side believes with what the
other side has. Bytes and completions are judged where they appear (`mrc.sim.connection`,
`mrc.sim.target`); windows, timers and memory by `mrc.sim.rules` after every wake-up; how queue
pairs end, and whether all counters agree when everything is done, here.
"""

from __future__ import annotations

from mrc.proto.config import RETRY_FOREVER
from mrc.proto.events import EvState, QpFailed, QpFailure
from mrc.proto.qp import QpState
from mrc.sim.connection import Connection, End
from mrc.sim.failure import CheckFailed
from mrc.sim.host import Host
from mrc.sim.network import Network
from mrc.sim.rules import (
    ENDPOINT_LIMITS,
    QP_LIMITS,
    RETRY_SHARE_MIN,
    WINDOW_LIMITS,
    check_backoff,
    check_belief,
    check_duplicates,
    check_eagerness,
    check_ledger,
    check_limits,
    check_receive_window,
    check_send_window,
    check_timers,
    time_of,
)

THOROUGH_EVERY = 16
"""Every so many wake-ups of a host the checks that cost more are made as well."""


class Checks:
    """Looks at hosts after each wake-up, and at everything at the end."""

    def __init__(self, hosts: list[Host], connections: list[Connection], network: Network) -> None:
        self._hosts = hosts
        self._connections = connections
        self._network = network
        self._wakes = 0
        self.healed_ns: int | None = None
        """When everything that had failed was mended."""
        for host in hosts:
            host.after_wake = self.after_wake
        for connection in connections:
            connection.on_failure = self.on_failure

    # After each wake-up.

    def after_wake(self, host: Host) -> None:
        """Check everything at a host that has just done all it can do for now."""
        self._wakes += 1
        thorough = self._wakes % THOROUGH_EVERY == 0
        for connection in self._connections:
            for end in connection.ends:
                if end.host is host and end.is_there:
                    self._check_end(end, connection.other(end), thorough=thorough)
        if thorough:
            check_limits(host.endpoint, ENDPOINT_LIMITS, f"host {host.name}")

    def _check_end(self, end: End, there: End, *, thorough: bool) -> None:
        qp, where = end.qp, end.name
        assert qp is not None
        requestor, responder = qp.requestor, qp.responder
        assert requestor is not None
        assert responder is not None
        check_send_window(requestor, where, thorough=thorough)
        check_receive_window(responder, where, thorough=thorough)
        check_duplicates(responder, end.host.ledger, qp.qpn, there.name)
        if there.qp is not None and there.qp.responder is not None:
            check_belief(requestor, there.qp.responder, where, thorough=thorough)
        if qp.state is QpState.RTS:
            check_timers(qp, requestor, where)
            check_backoff(requestor, qp.config, time_of(end.host.endpoint), where)
            check_eagerness(qp, requestor, where)
        if thorough:
            check_limits(qp, QP_LIMITS, where)
            room = 2 * requestor.window.size_max
            check_limits(qp, tuple((name, room) for name in WINDOW_LIMITS), where)

    # How queue pairs end.

    def on_failure(self, connection: Connection, end: End, event: QpFailed) -> None:
        """Judge the failure of a queue pair.

        Raises:
            CheckFailed: it had no reason to fail.
        """
        where = end.name
        if event.failure is QpFailure.REMOTE_ACCESS:
            if connection.other(end).closed:
                return
            raise CheckFailed("failure", f"{where}: refused although its region is open")
        if event.failure is not QpFailure.RETRY_EXCEEDED:
            raise CheckFailed("failure", f"{where}: {event.failure.value}")
        config = end.host.options.config
        if config.retry_exponential >= RETRY_FOREVER:
            raise CheckFailed("failure", f"{where}: gave up, and was told never to")
        intervals = 1 + config.retry_linear + (2 << config.retry_exponential) - 2
        least_ns = int(RETRY_SHARE_MIN * intervals * config.timeout_ns)
        if event.silent_ns < least_ns:
            raise CheckFailed(
                "failure", f"{where}: gave up after {event.silent_ns} ns, not {least_ns} ns"
            )
        since_ns = self._hosts[0].true_ns - event.silent_ns
        if self.healed_ns is not None and since_ns > self.healed_ns:
            raise CheckFailed("failure", f"{where}: gave up though nothing fails any more")

    # Now and then, and at the end.

    def check_memory(self) -> None:
        """Check every byte that peers may write to, and those around it."""
        for connection in self._connections:
            for end in connection.ends:
                name = connection.other(end).name
                for target in (*end.retired, end.target):
                    if target is not None:
                        target.check(name)

    def at_the_end(self) -> None:
        """Check what must be true when all is written and nothing is on its way."""
        self._check_account()
        self.check_memory()
        for connection in self._connections:
            for end in connection.ends:
                if end.announced:
                    raise CheckFailed("immediates", f"{end.name}: one never arrived")
                self._check_qp_at_the_end(connection, end)
                check_ledger(end, connection.other(end))

    def _check_qp_at_the_end(self, connection: Connection, end: End) -> None:
        """Check counters of both halves of one direction: what one sent, the other has."""
        where, there = end.name, connection.other(end)
        assert end.qp is not None
        assert there.qp is not None
        requestor, responder = end.qp.requestor, there.qp.responder
        assert requestor is not None
        assert responder is not None
        sent, got = requestor.statistics(), responder.statistics()
        messages = end.messages_posted
        mtu = min(end.host.options.config.mtu, there.host.options.config.mtu)
        packets = sum(-(-len(message.data) // mtu) for message in messages)
        size = sum(len(message.data) for message in messages)
        with_immediate = sum(message.options.immediate for message in messages)
        for what, found, wanted in (
            ("bytes in flight", sent.inflight_bytes, 0),
            ("packets in flight", requestor.window.outstanding, 0),
            ("writes posted", sent.writes_posted, len(messages)),
            ("writes done", sent.writes_done, len(messages)),
            ("messages done", got.messages_done, len(messages)),
            ("immediates", got.immediates, with_immediate),
            ("bytes sent", sent.payload_bytes_sent, size),
            ("bytes placed", got.payload_bytes_placed, size),
            ("packets placed", got.packets_received, packets),
            ("packets sent once", sent.packets_sent - sent.packets_retransmitted, packets),
            ("packets held", responder.window.ooo_count, 0),
        ):
            if found != wanted:
                raise CheckFailed("counters", f"{where}: {found} {what}, not {wanted}")

    def _check_account(self) -> None:
        """Check that every datagram is accounted for, by the network and by the endpoints."""
        network = self._network
        if network.on_the_way:
            raise CheckFailed("account", f"{network.on_the_way} datagrams neither lost nor found")
        sent = sum(host.sent + host.sent_before for host in self._hosts)
        if network.sent + network.refused != sent:
            raise CheckFailed("account", f"{sent} sent, {network.sent} + {network.refused} went")
        read = sum(host.received + host.received_before for host in self._hosts)
        if network.delivered != read:
            raise CheckFailed("account", f"{network.delivered} delivered, {read} were read")
        for host in self._hosts:
            counted = host.endpoint.statistics()
            for what, found, wanted in (
                ("sent", counted.datagrams_sent, host.sent),
                ("received", counted.datagrams_received, host.received),
            ):
                if found != wanted:
                    raise CheckFailed(
                        "account", f"host {host.name} counts {found} {what}, not {wanted}"
                    )

    def unusable_evs(self) -> list[str]:
        """Return the EVs that are not in use though nothing is wrong with any."""
        return [
            f"{host.name}: EV {path.index} of plane {path.plane} is {path.state.value}"
            for host in self._hosts
            for peer in host.endpoint.peers.values()
            for path in peer.paths.paths
            if path.state not in (EvState.GOOD, EvState.SKIP)
        ]
