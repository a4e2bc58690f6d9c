"""The fields of a protobuf message, for the few that a channel reads by itself.

A channel's own calls bring messages with one or two numbers in them. Reading these few bytes here keeps the channel
free of generated code, and of the descriptor pool that comes with it.
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT = 0
FIXED64 = 1
LENGTH_DELIMITED = 2
FIXED32 = 5
_FIXED = {FIXED64: 8, FIXED32: 4}
#: Of a varint: ten groups of seven bits carry 64 (protobuf, "Encoding").
_LONGEST_VARINT = 10


def wire_fields(data: bytes | bytearray) -> Iterator[tuple[int, int, int | bytes]]:
    """Go through the fields of a serialized message, in their order.

    Args:
        data: the message.

    Yields:
        The number of a field, its wire type, and its value: an unsigned int for a varint, bytes for everything else.

    Raises:
        ValueError: that is no message. Groups, which no message of gRPC has, are none either.
    """
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if not number:
            raise ValueError("a field has the number 0")
        if wire_type == VARINT:
            value, position = _varint(data, position)
            yield number, wire_type, value
            continue
        if wire_type == LENGTH_DELIMITED:
            length, position = _varint(data, position)
        elif wire_type in _FIXED:
            length = _FIXED[wire_type]
        else:
            raise ValueError(f"field {number} has the wire type {wire_type}")
        end = position + length
        if end > len(data):
            raise ValueError(f"field {number} ends after the message")
        yield number, wire_type, bytes(data[position:end])
        position = end


def text_field(number: int, text: str) -> bytes:
    """Return a message's string field; nothing for an empty one, as in proto3."""
    return bytes_field(number, text.encode()) if text else b""


def varint_field(number: int, value: int) -> bytes:
    """Return a message's field that is a number, which is not negative; nothing for 0, as in proto3."""
    return _to_varint(number << 3 | VARINT) + _to_varint(value) if value else b""


def bytes_field(number: int, data: bytes) -> bytes:
    """Return a message's field of bytes, or of another message."""
    return _to_varint(number << 3 | LENGTH_DELIMITED) + _to_varint(len(data)) + data


def _varint(data: bytes | bytearray, position: int) -> tuple[int, int]:
    value = 0
    for shift, byte in enumerate(data[position : position + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position + shift + 1
    raise ValueError("a number does not end")


def _to_varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


__all__ = [
    "FIXED32",
    "FIXED64",
    "LENGTH_DELIMITED",
    "VARINT",
    "bytes_field",
    "text_field",
    "varint_field",
    "wire_fields",
]
