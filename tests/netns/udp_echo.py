"""Asks an echo in another namespace of the lab whether UDP gets there and back.

    python -m tests.netns.udp_echo ADDRESS --via HOST [--size N] [--flows N] [--segments N]

Both ends are in this one process: the echo's socket is made inside the namespace of HOST, found by
the name of our own. Exit status 0 when every flow was answered.
"""

import argparse
import socket
import subprocess
import sys
import threading

from netns.kernel import in_namespace

UDP_SEGMENT, SOL_UDP = 103, 17


def main() -> int:
    """Ask, and return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--via", required=True)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--flows", type=int, default=1)
    parser.add_argument("--segments", type=int, default=1)
    parser.add_argument("--wait-ms", type=int, default=400)
    told = parser.parse_args()
    family = socket.AF_INET6 if ":" in told.address else socket.AF_INET
    echo = in_namespace(_namespace_of(told.via), lambda: socket.socket(family, socket.SOCK_DGRAM))
    echo.bind((told.address, 0))
    port = echo.getsockname()[1]
    threading.Thread(target=_answer, args=(echo,), daemon=True).start()
    return 0 if all(_ask(family, told, port) for _ in range(told.flows)) else 1


def _namespace_of(host: str) -> str:
    own = subprocess.run(
        ["ip", "netns", "identify"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return f"{own.rpartition('-')[0]}-{host}"


def _answer(echo: socket.socket) -> None:
    while True:
        data, source = echo.recvfrom(65536)
        echo.sendto(data, source)


def _ask(family: int, told: argparse.Namespace, port: int) -> bool:
    with socket.socket(family, socket.SOCK_DGRAM) as asker:
        asker.settimeout(told.wait_ms / 1e3)
        asker.connect((told.address, port))
        if told.segments > 1:
            asker.setsockopt(SOL_UDP, UDP_SEGMENT, told.size)
        asker.send(bytes(told.size * told.segments))
        try:
            for _ in range(told.segments):
                asker.recv(65536)
        except OSError:
            return False
        return True


if __name__ == "__main__":
    sys.exit(main())
