"""From the bytes of one connection, both ways, to what each frame says. Looks on, and has no opinion.

It takes what the two sides have agreed on as they say it: header compression, windows, and where messages begin. What
cannot be read is shown as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from trio_grpc._transport import frames
from trio_grpc._transport.header_codec import HeaderBlockError, HeaderDecoder, HeaderListTooLarge

_TYPES = {
    frames.DATA: "DATA",
    frames.HEADERS: "HEADERS",
    frames.PRIORITY: "PRIORITY",
    frames.RST_STREAM: "RST_STREAM",
    frames.SETTINGS: "SETTINGS",
    frames.PUSH_PROMISE: "PUSH_PROMISE",
    frames.PING: "PING",
    frames.GOAWAY: "GOAWAY",
    frames.WINDOW_UPDATE: "WINDOW_UPDATE",
    frames.CONTINUATION: "CONTINUATION",
}
_FLAGS: dict[int, dict[int, str]] = {
    frames.DATA: {frames.END_STREAM: "END_STREAM", frames.PADDED: "PADDED"},
    frames.HEADERS: {
        frames.END_STREAM: "END_STREAM",
        frames.END_HEADERS: "END_HEADERS",
        frames.PADDED: "PADDED",
        frames.PRIORITY_FLAG: "PRIORITY",
    },
    frames.SETTINGS: {frames.ACK: "ACK"},
    frames.PING: {frames.ACK: "ACK"},
    frames.CONTINUATION: {frames.END_HEADERS: "END_HEADERS"},
}
_SETTINGS = {
    frames.SETTINGS_HEADER_TABLE_SIZE: "HEADER_TABLE_SIZE",
    frames.SETTINGS_ENABLE_PUSH: "ENABLE_PUSH",
    frames.SETTINGS_MAX_CONCURRENT_STREAMS: "MAX_CONCURRENT_STREAMS",
    frames.SETTINGS_INITIAL_WINDOW_SIZE: "INITIAL_WINDOW_SIZE",
    frames.SETTINGS_MAX_FRAME_SIZE: "MAX_FRAME_SIZE",
    frames.SETTINGS_MAX_HEADER_LIST_SIZE: "MAX_HEADER_LIST_SIZE",
    0x8: "ENABLE_CONNECT_PROTOCOL",  # RFC 8441; h2 says it in its first SETTINGS
}
#: More headers than anybody sends; a peer must not fill the memory.
_MAX_HEADER_LIST = 2**20
#: gRPC's prefix of a message: one byte of flag, four of length.
_PREFIX = 5


@attrs.define
class MessageSeen:
    """A gRPC message that has passed entirely.

    Attributes:
        compressed: its flag.
        data: its bytes as they went.
    """

    compressed: bool
    data: bytes


@attrs.define
class FrameSeen:
    """One frame.

    Attributes:
        sent: whether this side has sent it.
        type: its name, or its number in hexadecimal.
        stream: the number of its stream, 0 for the connection.
        length: bytes of its payload.
        flags: the names of its flags.
        headers: what a complete header block says.
        settings: names and values.
        messages: gRPC messages that end in it.
        partial: bytes of a message that has begun and not ended.
        increment: of a WINDOW_UPDATE.
        windows: what the sender of DATA may still send after it, for the connection and for its stream; of the
            receiver's credit where this is a WINDOW_UPDATE. None where the frame does not change them.
        error: the name of an error code.
        last_stream: of a GOAWAY.
        text: debug data of a GOAWAY, payload of a PING, or what could not be read.
    """

    sent: bool
    type: str
    stream: int
    length: int
    flags: list[str]
    headers: list[tuple[str, str]] | None = None
    settings: dict[str, int] | None = None
    messages: list[MessageSeen] = attrs.field(factory=list)
    partial: int = 0
    increment: int | None = None
    windows: tuple[int, int | None] | None = None
    error: str | None = None
    last_stream: int | None = None
    text: str | None = None


class _Credit:
    """What one side may still send: for the connection, and for each stream."""

    def __init__(self) -> None:
        self.connection = frames.DEFAULT_WINDOW
        self.initial = frames.DEFAULT_WINDOW
        self._streams: dict[int, int] = {}

    def of(self, stream: int) -> int:
        return self._streams.setdefault(stream, self.initial)

    def change(self, stream: int, amount: int) -> tuple[int, int | None]:
        """Change the window of a stream, or with 0 the connection's; return both."""
        if stream == 0:
            self.connection += amount
            return self.connection, None
        self._streams[stream] = self.of(stream) + amount
        return self.connection, self._streams[stream]

    def use(self, stream: int, amount: int) -> tuple[int, int | None]:
        """Count bytes of DATA, which take of both."""
        self.connection -= amount
        return self.change(stream, -amount)

    def begin_with(self, initial: int) -> None:
        """A new initial window changes those of all streams (RFC 9113, 6.9.2)."""
        for stream in self._streams:
            self._streams[stream] += initial - self.initial
        self.initial = initial


class _Side:
    """What is known of the bytes that one side sends."""

    def __init__(self, sent: bool) -> None:
        self.sent = sent
        self.credit = _Credit()
        self.waiting = bytearray()
        # The preface has no frame header.
        self.preface = len(frames.PREFACE) if sent else 0
        self.decoder = HeaderDecoder[tuple[tuple[bytes, bytes], ...]](tuple, max_list_size=_MAX_HEADER_LIST)
        self.block: bytearray | None = None
        self.messages: dict[int, bytearray] = {}


class FrameLog:
    """Reads both directions of one connection, as this side sees them."""

    def __init__(self) -> None:
        self._sides = {True: _Side(True), False: _Side(False)}

    def feed(self, sent: bool, data: bytes) -> Iterator[FrameSeen]:
        """Give the frames that are complete now.

        Args:
            sent: whether this side has sent the bytes.
            data: what has passed.
        """
        side = self._sides[sent]
        side.waiting += data
        if side.preface:
            gone = min(side.preface, len(side.waiting))
            del side.waiting[:gone]
            side.preface -= gone
        while len(side.waiting) >= frames.FRAME_HEADER_LENGTH:
            high, low, kind, flags, stream = frames.FRAME_HEADER.unpack_from(side.waiting)
            length = (high << 8) | low
            end = frames.FRAME_HEADER_LENGTH + length
            if len(side.waiting) < end:
                return
            payload = bytes(side.waiting[frames.FRAME_HEADER_LENGTH : end])
            del side.waiting[:end]
            yield self._read(side, kind, flags, stream & frames.MAX_STREAM_ID, payload)

    def _read(self, side: _Side, kind: int, flags: int, stream: int, payload: bytes) -> FrameSeen:
        names = [name for bit, name in _FLAGS.get(kind, {}).items() if flags & bit]
        seen = FrameSeen(side.sent, _TYPES.get(kind, f"0x{kind:x}"), stream, len(payload), names)
        other = self._sides[not side.sent]
        if kind == frames.DATA:
            seen.windows = side.credit.use(stream, len(payload))
            self._read_messages(side, seen, _without_padding(payload, flags))
        elif kind in (frames.HEADERS, frames.CONTINUATION):
            if kind == frames.HEADERS:
                payload = _without_padding(payload, flags)[5 if flags & frames.PRIORITY_FLAG else 0 :]
                side.block = bytearray()
            if side.block is not None:
                side.block += payload
                if flags & frames.END_HEADERS:
                    self._read_headers(side, seen)
        elif kind == frames.SETTINGS and not flags & frames.ACK:
            seen.settings = _settings(payload)
            # It is the other side that may send so much.
            initial = seen.settings.get("INITIAL_WINDOW_SIZE")
            if initial is not None:
                other.credit.begin_with(initial)
        elif kind == frames.WINDOW_UPDATE and len(payload) == 4:
            seen.increment = int.from_bytes(payload, "big") & frames.MAX_WINDOW
            seen.windows = other.credit.change(stream, seen.increment)
        elif kind == frames.RST_STREAM and len(payload) == 4:
            seen.error = _error(payload)
        elif kind == frames.GOAWAY and len(payload) >= 8:
            seen.last_stream = int.from_bytes(payload[:4], "big") & frames.MAX_STREAM_ID
            seen.error = _error(payload[4:8])
            seen.text = payload[8:].decode(errors="backslashreplace") or None
        elif kind == frames.PING:
            seen.text = payload.hex()
        return seen

    def _read_headers(self, side: _Side, seen: FrameSeen) -> None:
        assert side.block is not None
        block, side.block = bytes(side.block), None
        try:
            fields = side.decoder.decode(block)
        except (HeaderBlockError, HeaderListTooLarge) as error:
            seen.text = f"cannot be read: {error}"
            return
        seen.headers = [
            (name.decode(errors="backslashreplace"), value.decode(errors="backslashreplace")) for name, value in fields
        ]

    def _read_messages(self, side: _Side, seen: FrameSeen, data: bytes) -> None:
        waiting = side.messages.setdefault(seen.stream, bytearray())
        waiting += data
        while len(waiting) >= _PREFIX:
            end = _PREFIX + int.from_bytes(waiting[1:_PREFIX], "big")
            if len(waiting) < end:
                break
            seen.messages.append(MessageSeen(bool(waiting[0]), bytes(waiting[_PREFIX:end])))
            del waiting[:end]
        seen.partial = len(waiting)


def _without_padding(payload: bytes, flags: int) -> bytes:
    if not flags & frames.PADDED or not payload:
        return payload
    return payload[1 : max(1, len(payload) - payload[0])]


def _settings(payload: bytes) -> dict[str, int]:
    pairs: dict[str, int] = {}
    for start in range(0, len(payload) - 5, 6):
        number = int.from_bytes(payload[start : start + 2], "big")
        pairs[_SETTINGS.get(number, f"0x{number:x}")] = int.from_bytes(payload[start + 2 : start + 6], "big")
    return pairs


def _error(payload: bytes) -> str:
    code = int.from_bytes(payload, "big")
    try:
        return frames.ErrorCode(code).name
    except ValueError:
        return f"0x{code:x}"


def document(seen: FrameSeen) -> dict[str, Any]:
    """Return what ``--json`` prints of a frame; messages are added by those who can read them."""
    values: dict[str, Any] = {
        "direction": "sent" if seen.sent else "received",
        "stream": seen.stream,
        "type": seen.type,
        "flags": seen.flags,
        "length": seen.length,
    }
    if seen.headers is not None:
        values["headers"] = [list(pair) for pair in seen.headers]
    if seen.windows is not None:
        connection, stream = seen.windows
        values["windows"] = {"connection": connection} | ({} if stream is None else {"stream": stream})
    for name in ("settings", "increment", "error", "last_stream", "text"):
        value = getattr(seen, name)
        if value is not None:
            values[name] = value
    if seen.partial:
        values["partial_message"] = seen.partial
    return values


__all__ = ["FrameLog", "FrameSeen", "MessageSeen", "document"]
