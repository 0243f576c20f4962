"""Messages over kernel TCP or MPTCP, for comparison: the same sizes, the same number under way.

The receiver checks every message as MRC's does and answers it with one byte; a message is complete
when that has come back. Orders of `receive`: address, port, protocol (`tcp` or `mptcp`), record,
period_ms. Orders of `send`: those, and name, message_bytes, depth, start_s, stop_s, pause_ms.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from time import monotonic_ns
from typing import Any

import numpy as np

from netns.traffic.common import run_blocking, save, say, wait_for_zero_ns
from netns.traffic.payload import Expected

CONNECT_TIMEOUT_S = 5.0
SILENCE_TIMEOUT_S = 30.0
PROTOCOLS = {"tcp": socket.IPPROTO_TCP, "mptcp": socket.IPPROTO_MPTCP}


def _socket(told: dict[str, Any]) -> socket.socket:
    family = socket.AF_INET6 if ":" in told["address"] else socket.AF_INET
    return socket.socket(family, socket.SOCK_STREAM, PROTOCOLS[told["protocol"]])


class _Incoming:
    """One connection at the receiver."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.name = ""
        self.bytes = 0
        self.corrupt = 0
        self.samples: list[tuple[int, int]] = []
        self.arrivals: list[int] = []
        self.error = ""

    def serve(self) -> None:
        """Take messages until the sender closes."""
        try:
            with self.connection:
                with self.connection.makefile("rb", buffering=0) as stream:
                    hello = json.loads(_line(stream))
                self.name = hello["name"]
                self._take(hello["message_bytes"])
        except OSError as error:
            self.error = str(error)

    def _take(self, size: int) -> None:
        expected, message, filled = Expected(size), np.full(size, 0, np.uint8), 0
        while got := self.connection.recv_into(message.data[filled:]):
            self.bytes += got
            filled += got
            if filled == size:
                # Before the answer: the record is made when the sender has had the last one.
                self.corrupt += not expected.matches(len(self.arrivals), message)
                self.arrivals.append(monotonic_ns())
                self.connection.sendall(b"!")
                filled = 0

    def record(self) -> dict[str, Any]:
        """Return all that was seen."""
        return {
            "name": self.name,
            "messages": len(self.arrivals),
            "corrupt": self.corrupt,
            # A stream keeps its order.
            "out_of_order": 0,
            "samples": self.samples,
            "arrivals_ns": self.arrivals,
            "error": self.error,
            "reverse_changes": [],
        }


def _line(stream: Any) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = stream.read(1)
        if not byte:
            raise ConnectionError("closed before its first line")
        line += byte
    return line


def receive(told: dict[str, Any]) -> None:
    """Take connections until standard input ends."""
    flows: list[_Incoming] = []
    with _socket(told) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # On every address: subflows of MPTCP come to those that were announced.
        listener.bind(("", told["port"]))
        listener.listen()

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    flow = _Incoming(listener.accept()[0])
                    flows.append(flow)
                    threading.Thread(target=flow.serve, daemon=True).start()

        def sample() -> None:
            while True:
                now_ns = monotonic_ns()
                for flow in tuple(flows):
                    flow.samples.append((now_ns, flow.bytes))
                time.sleep(told["period_ms"] / 1e3)

        for work in (accept, sample):
            threading.Thread(target=work, daemon=True).start()
        try:
            say(f"ready {told['address']}")
            sys.stdin.read()
        finally:
            save(told["record"], {"flows": [flow.record() for flow in flows], "errors": []})


class _Outgoing:
    """The connection of a sender."""

    def __init__(self, told: dict[str, Any], connection: socket.socket) -> None:
        self.told = told
        self.connection = connection
        self.expected = Expected(told["message_bytes"])
        self.began: list[int] = []
        self.completions: list[tuple[int, int]] = []
        self.error = ""
        self._room = threading.Semaphore(told["depth"])
        self._closing = False

    def connect(self) -> None:
        """Connect and tell the receiver what will come."""
        self.connection.settimeout(CONNECT_TIMEOUT_S)
        self.connection.connect((self.told["address"], self.told["port"]))
        self.connection.settimeout(SILENCE_TIMEOUT_S)
        hello = {"name": self.told["name"], "message_bytes": self.told["message_bytes"]}
        self.connection.sendall(json.dumps(hello).encode() + b"\n")

    def send(self, zero_ns: int) -> None:
        """Keep `depth` messages under way until the time is up, then wait for the last."""
        begin_ns, stop_ns = (zero_ns + int(self.told[at] * 1e9) for at in ("start_s", "stop_s"))
        time.sleep(max(0, begin_ns - monotonic_ns()) / 1e9)
        # Only now: a receiver that has nothing to answer yet is not silent.
        answers = threading.Thread(target=self._take_answers, daemon=True)
        answers.start()
        try:
            while monotonic_ns() < stop_ns:
                self._wait_for_room()
                if self.told["pause_ms"] and self.began:
                    time.sleep(self.told["pause_ms"] / 1e3)
                self.began.append(monotonic_ns())
                self.connection.sendall(self.expected.message(len(self.began) - 1).data)
            for _ in range(self.told["depth"]):
                self._wait_for_room()
        except OSError as error:
            self.error = self.error or str(error)
        finally:
            self._closing = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            answers.join()

    def _wait_for_room(self) -> None:
        if not self._room.acquire(timeout=SILENCE_TIMEOUT_S):
            raise TimeoutError(f"no answer within {SILENCE_TIMEOUT_S:g} s")
        if self.error:
            raise ConnectionError(self.error)

    def _take_answers(self) -> None:
        error = "the receiver closed the connection"
        try:
            while got := self.connection.recv(4096):
                now_ns = monotonic_ns()
                for _ in got:
                    self.completions.append((self.began[len(self.completions)], now_ns))
                    if len(self.completions) == 1:
                        say("moving")
                    self._room.release()
        except OSError as trouble:
            error = str(trouble)
        if not self._closing:
            self.error = error
            self._room.release()

    def record(self) -> dict[str, Any]:
        """Return all that was seen."""
        return {
            "name": self.told["name"],
            "messages": len(self.began),
            "completions_ns": self.completions,
            "samples": [],
            "path_samples": [],
            "changes": [],
            "ports": [],
            "paths": [],
            "error": self.error,
        }


def send(told: dict[str, Any]) -> None:
    """Send messages and leave the record, however it ends."""
    with _socket(told) as connection:
        flow = _Outgoing(told, connection)
        flow.connect()
        try:
            say("connected []")
            flow.send(wait_for_zero_ns())
        finally:
            save(told["record"], flow.record())


if __name__ == "__main__":
    run_blocking(send=send, receive=receive)
