"""Attributes of a queue pair as JSON: out to the peer, and in from one that is not trusted yet."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from mrc.errors import ConfigError, PeerProtocolError
from mrc.proto.config import QpAttributes
from mrc.wire.icrc import packed_address

_PLAIN = {field.name: field.type for field in fields(QpAttributes) if field.name != "planes"}
_HOST_CHARACTERS_MAX = 64


def to_json(attributes: QpAttributes) -> dict[str, Any]:
    """Return the attributes as plain values."""
    return asdict(attributes)


def from_json_untrusted(value: object) -> QpAttributes:
    """Read what a peer says of its queue pair.

    Raises:
        PeerProtocolError: a field is missing, of another type, or out of range.
    """
    if not isinstance(value, dict):
        raise PeerProtocolError("queue pair attributes: not an object")
    plain: dict[str, Any] = {}
    for name, kind in _PLAIN.items():
        given = value.get(name)
        if type(given).__name__ != kind:
            raise PeerProtocolError(f"queue pair attribute {name}: {given!r:.40} is not {kind}")
        plain[name] = given
    try:
        return QpAttributes(planes=_planes_untrusted(value.get("planes")), **plain)
    except ConfigError as error:
        raise PeerProtocolError(f"queue pair attributes: {error}") from error


def _planes_untrusted(value: object) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, list):
        raise PeerProtocolError("queue pair attributes: planes are missing")
    planes = []
    for item in value:
        match item:
            case [str(host), int(port)] if _is_address(host) and port is not True:
                planes.append((host, port))
            case _:
                raise PeerProtocolError(f"queue pair attributes: plane {item!r:.60}")
    return tuple(planes)


def _is_address(host: str) -> bool:
    try:
        return len(host) <= _HOST_CHARACTERS_MAX and bool(packed_address(host))
    except ValueError:
        return False
