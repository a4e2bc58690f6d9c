"""The HTTP/2 frame layer as numbers and bytes (RFC 9113, sections 4 and 6).

Constants, the 9-byte frame header, and the few frames that this library writes by hand. No state, no I/O, no header
compression, and no opinion on which frame is allowed when: that is the framer's.
"""

from __future__ import annotations

import enum
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # RFC 9113, 3.4

DATA = 0x0
HEADERS = 0x1
PRIORITY = 0x2
RST_STREAM = 0x3
SETTINGS = 0x4
PUSH_PROMISE = 0x5
PING = 0x6
GOAWAY = 0x7
WINDOW_UPDATE = 0x8
CONTINUATION = 0x9

ACK = 0x1
END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY_FLAG = 0x20

SETTINGS_HEADER_TABLE_SIZE = 0x1
SETTINGS_ENABLE_PUSH = 0x2
SETTINGS_MAX_CONCURRENT_STREAMS = 0x3
SETTINGS_INITIAL_WINDOW_SIZE = 0x4
SETTINGS_MAX_FRAME_SIZE = 0x5
SETTINGS_MAX_HEADER_LIST_SIZE = 0x6

FRAME_HEADER_LENGTH = 9
DEFAULT_WINDOW = 65_535  # RFC 9113, 6.9.2
DEFAULT_MAX_FRAME_SIZE = 16_384  # RFC 9113, 4.2
MAX_WINDOW = 2**31 - 1  # RFC 9113, 6.9.1
MAX_STREAM_ID = 2**31 - 1  # RFC 9113, 5.1.1

#: Unpacks a frame header into (length >> 8, length & 0xFF, type, flags, reserved bit and stream id).
FRAME_HEADER = struct.Struct(">HBBBL")
_UINT32 = struct.Struct(">L")
_TWO_UINT32 = struct.Struct(">LL")


class ErrorCode(enum.IntEnum):
    """HTTP/2 error codes (RFC 9113, 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class ConnectionFault(Exception):
    """The peer broke a rule for which RFC 9113 demands a connection error (5.4.1).

    Attributes:
        error_code: the code that our GOAWAY frame carries.
        reason: one line for people; it also travels as GOAWAY debug data.
    """

    def __init__(self, error_code: int, reason: str) -> None:
        super().__init__(reason)
        self.error_code = error_code
        self.reason = reason


def error_name(code: int) -> str:
    """Return the name of an HTTP/2 error code, or its number in hexadecimal where it has none."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return hex(code)


def frame(frame_type: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return one whole frame."""
    length = len(payload)
    return FRAME_HEADER.pack(length >> 8, length & 0xFF, frame_type, flags, stream_id) + payload


def header_block_frames(block: bytes, flags: int, stream_id: int, max_frame_size: int) -> bytes:
    """Return a HEADERS frame and as many CONTINUATION frames as the block needs (RFC 9113, 6.10)."""
    length = len(block)
    if length <= max_frame_size:
        return FRAME_HEADER.pack(length >> 8, length & 0xFF, HEADERS, flags | END_HEADERS, stream_id) + block
    parts = [frame(HEADERS, flags, stream_id, block[:max_frame_size])]
    for start in range(max_frame_size, length, max_frame_size):
        last = start + max_frame_size >= length
        parts.append(frame(CONTINUATION, END_HEADERS if last else 0, stream_id, block[start : start + max_frame_size]))
    return b"".join(parts)


def rst_stream(stream_id: int, error_code: int) -> bytes:
    """Return a RST_STREAM frame (RFC 9113, 6.4)."""
    return frame(RST_STREAM, 0, stream_id, _UINT32.pack(error_code))


def window_update(stream_id: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame (RFC 9113, 6.9); stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, _UINT32.pack(increment))


def goaway(last_stream_id: int, error_code: int, debug_data: bytes = b"") -> bytes:
    """Return a GOAWAY frame (RFC 9113, 6.8)."""
    return frame(GOAWAY, 0, 0, _TWO_UINT32.pack(last_stream_id, error_code) + debug_data)


def read_uint32(data: bytes, position: int) -> int:
    """Return the unsigned 32-bit number at ``position``."""
    number: int = _UINT32.unpack_from(data, position)[0]
    return number
