"""JSON objects between two applications, as messages of their queue pair."""

from __future__ import annotations

import json
from typing import Any

from mrc.connection import Connection
from mrc.errors import ConfigError, PeerProtocolError
from mrc.messages import Kind


class JsonChannel:
    """JSON objects both ways, as messages of the queue pair: they survive dead paths."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def send(self, message: dict[str, Any]) -> None:
        """Send one object of at most 1 MiB as JSON.

        Raises:
            ConfigError: too long, or not JSON.
            TransportError: the queue pair failed.
        """
        if not isinstance(message, dict):
            raise ConfigError(f"the channel carries JSON objects, not {type(message).__name__}")
        try:
            data = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"not to be said in JSON: {error}") from error
        await self._connection.ring.send(Kind.CONTROL, data)

    async def receive(self) -> dict[str, Any]:
        """Return the next object.

        Raises:
            PeerProtocolError: the peer sent something else.
            TransportError: the queue pair failed, or the peer is gone.
        """
        ring = self._connection.ring
        data = await ring.take(ring.control)
        try:
            message = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise PeerProtocolError("the peer sent a control message that is no JSON") from error
        if not isinstance(message, dict):
            raise PeerProtocolError("the peer sent a control message that is no JSON object")
        return message
