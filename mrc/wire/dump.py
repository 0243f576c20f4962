"""Text for people: any MRC datagram, one line a header, its fields by the names of the tables.

Knows nothing of queue pairs or addresses, so it does not check the iCRC (`icrc` does) and takes
every value as it stands: that a packet makes sense is not its business, only that it has its bytes.
"""

from __future__ import annotations

from enum import IntEnum

from mrc.wire.control import EndpointOp, NackReason, SackMark, Syndrome
from mrc.wire.fields import (
    BTH,
    LAYOUTS,
    SETH,
    TSETH,
    WRITE_OPCODES,
    BadPacket,
    Buffer,
    Field,
    Header,
    Opcode,
)
from mrc.wire.icrc import ICRC_BYTES
from mrc.wire.runs import COUNTER_BYTES, SEAL_BYTES

_LABEL_WIDTH = 9


def _names(values: type[IntEnum]) -> dict[int, str]:
    return {value.value: value.name for value in values}


_NAMES: dict[tuple[str, str], dict[int, str]] = {
    ("BTH", "opcode"): _names(Opcode),
    ("SETH", "m"): _names(SackMark),
    ("NETH", "nack_reason"): _names(NackReason),
    ("AETH", "syndrome"): _names(Syndrome),
    ("ERTH", "op"): _names(EndpointOp),
    ("EETH", "op"): _names(EndpointOp),
}
"""Fields whose values have names; a value without one is printed in hexadecimal."""

_HEXADECIMAL = frozenset(
    (
        "p_key",
        "dqp",
        "va",
        "r_key",
        "imm",
        "entropy",
        "spdcid",
        "dpdcid",
        "sack_bitmap",
        "vendor_info",
        "port_status_mask",
    )
)
"""Fields that are patterns of bits or names of something rather than counts."""


def dump_untrusted(datagram: Buffer, *, trimmed: bool = False, sealed: bool = False) -> list[str]:
    """Return the lines that tell what is in a datagram: BTH, its headers, the rest, the iCRC.

    Args:
        datagram: the whole UDP payload.
        trimmed: a switch cut it behind its headers (its DSCP says so): there is no iCRC and only
            what was left of the payload.
        sealed: it has a seal before its iCRC; nothing in the packet itself tells.

    Raises:
        BadPacket: no MRC opcode, or shorter than its headers, its pad, its seal and its iCRC.
    """
    bth = BTH.unpack_untrusted(datagram)
    try:
        opcode = Opcode(bth["opcode"])
    except ValueError:
        raise BadPacket(f"opcode {bth['opcode']:#04x} is not one of MRC 1.0") from None
    lines = [_line(BTH, bth)]
    offset = BTH.size
    for header in LAYOUTS[opcode]:
        if header is TSETH and not bth["ts"]:
            continue
        lines.append(_line(header, header.unpack_untrusted(datagram, offset)))
        offset += header.size
    body_bytes = len(datagram) - offset
    if trimmed:
        return [*lines, _labelled("trimmed", f"{body_bytes} bytes of payload left, no iCRC")]
    trailer_bytes = ICRC_BYTES + (SEAL_BYTES if sealed else 0)
    body_bytes -= trailer_bytes + bth["pad"]
    if body_bytes < 0:
        raise BadPacket(
            f"{opcode.name}: no room for {bth['pad']} bytes of pad and {trailer_bytes} behind them"
        )
    if opcode in WRITE_OPCODES:
        lines.append(_labelled("payload", f"{body_bytes} bytes, pad {bth['pad']}"))
    elif body_bytes or bth["pad"]:
        lines.append(_labelled("surplus", f"{body_bytes + bth['pad']} bytes"))
    if sealed:
        counter = int.from_bytes(datagram[-ICRC_BYTES - COUNTER_BYTES : -ICRC_BYTES], "big")
        tag = bytes(datagram[-trailer_bytes : -ICRC_BYTES - COUNTER_BYTES]).hex()
        lines.append(_labelled("seal", f"counter={counter} tag={tag}"))
    value = int.from_bytes(datagram[-ICRC_BYTES:], "little")
    return [*lines, _labelled("iCRC", f"{value:#010x}")]


def _line(header: Header, values: dict[str, int]) -> str:
    pairs = (
        _pair(header, field, values[name], values) for name, (_, field) in header.fields.items()
    )
    return _labelled(header.name, " ".join(pairs))


def _labelled(label: str, text: str) -> str:
    return f"{label:<{_LABEL_WIDTH}}{text}"


def _pair(header: Header, field: Field, value: int, values: dict[str, int]) -> str:
    """Return `name=value`, the way people write the value of this field."""
    if header is SETH and field.name == "ack_psn_offset" and values["pr"]:
        # The same 16 bits, without a sign, when a probe is answered.
        return f"probe_id={value & 0xFFFF}"
    names = _NAMES.get((header.name, field.name))
    if names is not None and value in names:
        text = names[value]
    elif names is not None or field.name in _HEXADECIMAL:
        text = f"{value:#0{2 + -(-field.width // 4)}x}"
    else:
        text = str(value)
    return f"{field.name}={text}"
