"""A kernel socket whose sends fail as a script says."""

import socket
from collections import deque
from typing import Any

from mrc.udp.linux import UDP_SEGMENT


class ScriptedSocket(socket.socket):
    """A kernel socket that answers the next sends with errors from a script; 0 is no error."""

    segmenting_fails_with = 0

    def __init__(self, family: int, kind: int = socket.SOCK_DGRAM) -> None:
        super().__init__(family, kind)
        self.setblocking(False)
        self.script: deque[int] = deque()

    def sendmsg(self, buffers: Any, ancillary: Any = (), *rest: Any) -> int:
        """Fail as the script says, or as a device that cannot segment, else send."""
        code = self.script.popleft() if self.script else 0
        if not code and any(kind == UDP_SEGMENT for _, kind, _ in ancillary):
            code = self.segmenting_fails_with
        if code:
            raise OSError(code, "scripted")
        return super().sendmsg(buffers, ancillary, *rest)
