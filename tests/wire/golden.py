"""The golden bytes of `tests/golden/vectors.json`, one vector for each header."""

import json
from dataclasses import dataclass
from pathlib import Path

from mrc.wire.fields import HEADERS, Header

FILE = Path(__file__).resolve().parent.parent / "golden" / "vectors.json"
_BY_NAME = {header.name: header for header in HEADERS}


@dataclass(frozen=True)
class Vector:
    """Fields and bytes of one header, or of two that always follow each other."""

    name: str
    headers: tuple[Header, ...]
    fields: dict[str, int]
    data: bytes

    def fields_of(self, header: Header) -> dict[str, int]:
        """The fields that belong to one of the headers."""
        return {name: value for name, value in self.fields.items() if name in header.fields}

    def data_of(self, header: Header) -> bytes:
        """The bytes of one of the headers."""
        before = self.headers[: self.headers.index(header)]
        start = sum(each.size for each in before)
        return self.data[start : start + header.size]


def _load() -> dict[str, Vector]:
    vectors = (
        Vector(
            entry["name"],
            tuple(_BY_NAME[name] for name in entry["header"].split("+")),
            # Numbers of 64 bits stand as hexadecimal strings.
            {key: int(str(value), 0) for key, value in entry["fields"].items()},
            bytes.fromhex(entry["hex"]),
        )
        for entry in json.loads(FILE.read_text(encoding="utf-8"))
    )
    return {vector.name: vector for vector in vectors}


VECTORS = _load()
