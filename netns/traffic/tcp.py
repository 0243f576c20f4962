"""Messages over kernel TCP or MPTCP, for comparison: the same sizes, the same number under way.

The receiver answers every message with one byte; a message is complete when that has come back.
Orders of `receive`: address, port, protocol (`tcp` or `mptcp`), record, period_ms. Orders of
`send`: those, and name, message_bytes, depth, start_s, stop_s, pause_ms.
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

from netns.traffic.common import orders, save, say

CONNECT_TIMEOUT_S = 5.0
SILENCE_TIMEOUT_S = 30.0
READ_BYTES = 1 << 18
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
        self.samples: list[tuple[int, int]] = []
        self.arrivals: list[int] = []
        self.error = ""

    def serve(self) -> None:
        try:
            with self.connection.makefile("rb", buffering=0) as stream:
                hello = json.loads(_line(stream))
            self.name, size = hello["name"], hello["message_bytes"]
            buffer, answered = bytearray(READ_BYTES), 0
            while got := self.connection.recv_into(buffer):
                self.bytes += got
                while self.bytes >= (answered + 1) * size:
                    self.arrivals.append(monotonic_ns())
                    answered += 1
                    self.connection.sendall(b"!")
        except OSError as error:
            self.error = str(error)

    def record(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "messages": len(self.arrivals),
            "corrupt": 0,
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
        say(f"ready {told['address']}")

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
        sys.stdin.read()
    save(told["record"], {"flows": [flow.record() for flow in flows], "errors": []})


def send(told: dict[str, Any]) -> None:
    """Send messages until the time is up, then wait for the last answer."""
    size = told["message_bytes"]
    data = bytes(size)
    completions: list[tuple[int, int]] = []
    began: list[int] = []
    room = threading.Semaphore(told["depth"])
    error = ""
    connection = _socket(told)
    connection.settimeout(CONNECT_TIMEOUT_S)
    connection.connect((told["address"], told["port"]))
    connection.settimeout(SILENCE_TIMEOUT_S)
    hello = {"name": told["name"], "message_bytes": size}
    connection.sendall(json.dumps(hello).encode() + b"\n")
    say("connected []")
    zero_ns = int(sys.stdin.readline())

    def answers() -> None:
        nonlocal error
        try:
            while got := connection.recv(4096):
                now_ns = monotonic_ns()
                for _ in got:
                    completions.append((began[len(completions)], now_ns))
                    room.release()
        except OSError as trouble:
            error = error or str(trouble)

    listening = threading.Thread(target=answers, daemon=True)
    listening.start()
    stop_ns = zero_ns + int(told["stop_s"] * 1e9)
    time.sleep(max(0, zero_ns + int(told["start_s"] * 1e9) - monotonic_ns()) / 1e9)
    try:
        while monotonic_ns() < stop_ns:
            if not room.acquire(timeout=SILENCE_TIMEOUT_S):
                raise TimeoutError(f"no answer within {SILENCE_TIMEOUT_S:g} s")
            if told["pause_ms"] and began:
                time.sleep(told["pause_ms"] / 1e3)
            began.append(monotonic_ns())
            connection.sendall(data)
        deadline_ns = monotonic_ns() + int(SILENCE_TIMEOUT_S * 1e9)
        while len(completions) < len(began) and not error and monotonic_ns() < deadline_ns:
            time.sleep(0.001)
    except OSError as trouble:
        error = str(trouble)
    connection.close()
    record = {
        "name": told["name"],
        "messages": len(began),
        "completions_ns": completions,
        "samples": [],
        "path_samples": [],
        "changes": [],
        "ports": [],
        "paths": [],
        "error": error,
    }
    save(told["record"], record)


if __name__ == "__main__":
    told_now = orders()
    {"send": send, "receive": receive}[told_now["role"]](told_now)
