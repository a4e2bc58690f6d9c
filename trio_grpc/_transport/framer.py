"""Bytes to frames and back to order: the first room of both planes.

Control plane: SETTINGS and PING go, one whole frame at a time, through an `h2.connection.H2Connection`, which never
sees a stream, and which is kept only while there is something to remember: an idle connection has none. Data plane: all
other frames are split by their 9-byte header and handled here, because h2 turns most stream errors into connection
errors and gives up live streams at a GOAWAY. So this room owes RFC 9113's checks itself: first frame, contiguity of
CONTINUATION, lengths, stream ids where a type fixes them, padding. It does no I/O and keeps no streams: it calls a
`FrameHandler`.

The copyless read (grpc-go #8657): payload bytes of DATA are handed on as positions in the bytes that were read, also
while a frame is still incomplete. There is no frame buffer and no object per frame.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Generic, Protocol, TypeVar

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from trio_grpc._transport import frames
from trio_grpc._transport.control_buffer import ApplySettings
from trio_grpc._transport.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PRIORITY_FLAG,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ConnectionFault,
    ErrorCode,
)
from trio_grpc._transport.header_codec import HeaderBlockError, HeaderDecoder, HeaderListTooLarge

RecordT = TypeVar("RecordT")
RecordT_contra = TypeVar("RecordT_contra", contravariant=True)

#: Bytes of one header block, all its CONTINUATIONs together, beyond which the connection ends without decoding it: this
#: or twice the *list* limit. Big enough that metadata over that limit is decoded and stays a stream error.
MAX_HEADER_BLOCK = 262_144
#: HEADERS and CONTINUATION frames of one block; h2 stops at 64 too (CVE-2024-27316 class of floods). More only where
#: the bytes above fill more frames of the default size (Rust's h2 derives its bound so too).
_MAX_FRAMES = 64
#: Entries of one SETTINGS frame; RFC 9113 defines six.
_MAX_SETTINGS = 32
#: HPACK gives nothing for a bigger table here, and a peer must not choose our memory.
_MAX_HEADER_TABLE_SIZE = 4096
#: The flags of a header block in one frame, with END_STREAM.
_PLAIN_HEADERS = END_HEADERS | END_STREAM
#: Settings that h2 is shown: 1 to 6 of RFC 9113, 6.5.2. Unknown ones are ignored there, but remembered for ever.
_KNOWN_SETTINGS = range(1, 7)

_SETTING = struct.Struct(">HL")


class FrameHandler(Protocol[RecordT_contra]):
    """What the reader does with what the framer finds. Nothing here may block or raise for a stream's fault."""

    def on_headers(self, stream_id: int, record: RecordT_contra | HeaderListTooLarge, end_stream: bool) -> None:
        """A whole, decoded header block."""

    def on_data(self, stream_id: int, data: bytes, start: int, stop: int, flow_length: int, end_stream: bool) -> None:
        """Payload bytes ``data[start:stop]``; ``flow_length`` counts the whole frame, once, with its first bytes."""

    def on_reset(self, stream_id: int, error_code: int) -> None:
        """RST_STREAM."""

    def on_window_update(self, stream_id: int, increment: int) -> None:
        """WINDOW_UPDATE with a non-zero increment; stream 0 is the connection."""

    def on_block_begun(self) -> None:
        """A HEADERS frame without END_HEADERS: its block is still to be finished."""

    def on_overhead(self) -> None:
        """A legal frame that carries nothing, and of which nobody else is told."""

    def on_stream_fault(self, stream_id: int, error_code: int, reason: str) -> None:
        """A rule broken in a frame of one stream, for which RFC 9113 wants a stream error."""

    def on_goaway(self, last_stream_id: int, error_code: int, debug_data: bytes) -> None:
        """GOAWAY."""

    def on_settings(
        self, settings: ApplySettings, max_concurrent_streams: int | None, max_header_list_size: int | None
    ) -> None:
        """The peer's SETTINGS, already validated, with the ACK to write."""

    def on_settings_acknowledged(self) -> None:
        """The peer has applied our SETTINGS."""

    def on_ping(self, reply: bytes) -> None:
        """A PING; ``reply`` is its ACK frame."""

    def on_ping_acknowledged(self, payload: bytes) -> None:
        """The ACK of a PING of ours."""


class Framer(Generic[RecordT]):
    """The incoming half of one connection, up to whole frames.

    Attributes:
        settings_received: the peer's first SETTINGS frame has arrived (RFC 9113, 3.4).
        block_stream: the stream of a header block that is still arriving, 0 where there is none.
        preface: our preface and first SETTINGS frame, to be written first.
    """

    __slots__ = (
        "_block",
        "_block_ends_stream",
        "_block_length",
        "_client_side",
        "_decoder",
        "_h2",
        "_handler",
        "_max_block",
        "_max_block_frames",
        "_max_frame_size",
        "_padding_left",
        "_payload_ends_stream",
        "_payload_left",
        "_payload_stream",
        "_preface_left",
        "_settings",
        "_settings_acknowledged",
        "_tail",
        "block_stream",
        "preface",
        "settings_received",
    )

    def __init__(
        self,
        handler: FrameHandler[RecordT],
        decoder: HeaderDecoder[RecordT],
        *,
        client_side: bool,
        settings: dict[int, int],
        max_frame_size: int,
    ) -> None:
        self._handler = handler
        self._decoder = decoder
        self._max_frame_size = max_frame_size
        self.settings_received: bool = False
        self._tail = b""
        self._preface_left = b"" if client_side else PREFACE
        # A DATA payload that is still arriving.
        self._payload_stream = 0
        self._payload_left = 0
        self._padding_left = 0
        self._payload_ends_stream = False
        # A header block that is still arriving.
        self.block_stream: int = 0
        self._block_ends_stream = False
        self._block: list[bytes] = []
        self._block_length = 0
        self._max_block = max(MAX_HEADER_BLOCK, 2 * decoder.max_list_size)
        self._max_block_frames = max(_MAX_FRAMES, 2 * self._max_block // frames.DEFAULT_MAX_FRAME_SIZE)
        self._client_side = client_side
        # Here from the first SETTINGS of the peer until ours are acknowledged: it takes more memory than all the rest.
        self._h2: h2.connection.H2Connection | None = None
        self._settings_acknowledged = False
        self.preface: bytes
        self.preface, self._settings = _opening(client_side, tuple(settings.items()))

    def ping(self, payload: bytes) -> bytes:
        """Return a PING frame with these eight bytes."""
        return _send_ping(self._client_side, payload)

    def receive(self, data: bytes) -> None:
        """Take the next bytes of the connection.

        Frames before a faulty one have been handed on when this raises.

        Raises:
            ConnectionFault: RFC 9113 demands a connection error.
        """
        if self._tail:
            data = self._tail + data
            self._tail = b""
        position = 0
        if self._preface_left:
            position = self._receive_preface(data)
            if self._preface_left:
                return
        end = len(data)
        unpack = frames.FRAME_HEADER.unpack_from
        on_data = self._handler.on_data
        if self._payload_left or self._padding_left:
            position = self._continue_payload(data, position, end)
        while end - position >= 9:
            high, low, frame_type, flags, stream_id = unpack(data, position)
            length = high << 8 | low
            if frame_type == HEADERS:
                # Nearly every header block: one frame, unpadded, without priority.
                stop = position + 9 + length
                if (
                    flags | END_STREAM == _PLAIN_HEADERS
                    and stop <= end
                    and length <= self._max_frame_size
                    and 0 < stream_id < 0x80000000
                    and not self.block_stream
                    and self.settings_received
                ):
                    self._decode_block(stream_id, data[position + 9 : stop], flags & END_STREAM == END_STREAM)
                    position = stop
                    continue
            elif frame_type == DATA and not self.block_stream and self.settings_received:
                if not flags & PADDED and length <= self._max_frame_size and 0 < stream_id < 0x80000000:
                    start = position + 9
                    stop = start + length
                    if stop <= end:
                        on_data(stream_id, data, start, stop, length, flags & END_STREAM == END_STREAM)
                        position = stop
                        continue
                    self._payload_stream = stream_id
                    self._payload_left = stop - end
                    self._payload_ends_stream = flags & END_STREAM == END_STREAM
                    on_data(stream_id, data, start, end, length, False)
                    return
                position = self._receive_unusual_data(data, position, end, length, flags, stream_id & 0x7FFFFFFF)
                if position < 0:
                    return
                continue
            if not self.settings_received and (frame_type != SETTINGS or flags & ACK):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, _describe_stranger(data[position:], "SETTINGS"))
            if length > self._max_frame_size:
                raise ConnectionFault(
                    ErrorCode.FRAME_SIZE_ERROR,
                    f"frame of {length} bytes is over SETTINGS_MAX_FRAME_SIZE {self._max_frame_size}",
                )
            stop = position + 9 + length
            if stop > end:
                break
            self._receive_frame(frame_type, flags, stream_id & 0x7FFFFFFF, data[position + 9 : stop])
            position = stop
        if position < end:
            self._tail = data[position:]
            # A TLS alert is shorter than a frame header; the fourth octet is enough to know that this is not SETTINGS.
            if not self.settings_received and end - position > 3 and data[position + 3] != SETTINGS:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, _describe_stranger(self._tail, "SETTINGS"))

    # -- beginnings

    def _receive_preface(self, data: bytes) -> int:
        expected = self._preface_left
        got = data[: len(expected)]
        if not expected.startswith(got):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, _describe_stranger(data, "the HTTP/2 client preface"))
        self._preface_left = expected[len(got) :]
        return len(got)

    # -- DATA

    def _continue_payload(self, data: bytes, position: int, end: int) -> int:
        """Go on with a DATA frame whose header came in an earlier read."""
        if self._payload_left:
            stop = min(position + self._payload_left, end)
            self._payload_left -= stop - position
            last = not self._payload_left and self._payload_ends_stream
            self._handler.on_data(self._payload_stream, data, position, stop, 0, last)
            position = stop
        if not self._payload_left and self._padding_left:
            skipped = min(self._padding_left, end - position)
            self._padding_left -= skipped
            position += skipped
        return position

    def _receive_unusual_data(
        self, data: bytes, position: int, end: int, length: int, flags: int, stream_id: int
    ) -> int:
        """Padded, oversized or misplaced DATA; return the new position, or -1 when the bytes in hand are used up."""
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA on stream 0")
        if length > self._max_frame_size:
            # RFC 9113, 4.2: may stay a stream error, as DATA changes no state of the connection.
            self._handler.on_stream_fault(
                stream_id,
                ErrorCode.FRAME_SIZE_ERROR,
                f"DATA frame of {length} bytes is over SETTINGS_MAX_FRAME_SIZE {self._max_frame_size}",
            )
        start = position + 9
        padding = 0
        payload = length
        if flags & PADDED:
            if not length:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "padded DATA frame without a pad length")
            if start == end:
                self._tail = data[position:]
                return -1
            padding = data[start]
            start += 1
            payload -= 1 + padding
            if payload < 0:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA padding is longer than the frame")
        if not payload and not flags & END_STREAM:
            self._handler.on_overhead()
        self._payload_stream = stream_id
        self._payload_ends_stream = flags & END_STREAM == END_STREAM
        stop = min(start + payload, end)
        self._payload_left = start + payload - stop
        self._padding_left = padding
        last = not self._payload_left and self._payload_ends_stream
        self._handler.on_data(stream_id, data, start, stop, length, last)
        if self._payload_left:
            return -1
        skipped = min(padding, end - stop)
        self._padding_left -= skipped
        return stop + skipped

    # -- whole frames

    def _receive_frame(self, frame_type: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self.block_stream and (frame_type != CONTINUATION or stream_id != self.block_stream):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted by another frame")
        if frame_type == HEADERS:
            self._receive_headers(flags, stream_id, payload)
        elif frame_type == WINDOW_UPDATE:
            self._receive_window_update(stream_id, payload)
        elif frame_type == RST_STREAM:
            if not stream_id:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "RST_STREAM on stream 0")
            _check_length("RST_STREAM", payload, 4)
            self._handler.on_reset(stream_id, frames.read_uint32(payload, 0))
        elif frame_type == SETTINGS:
            self._receive_settings(flags, stream_id, payload)
        elif frame_type == PING:
            self._receive_ping(flags, stream_id, payload)
        elif frame_type == GOAWAY:
            if stream_id:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
            if len(payload) < 8:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY shorter than 8 bytes")
            self._handler.on_goaway(
                frames.read_uint32(payload, 0) & 0x7FFFFFFF, frames.read_uint32(payload, 4), payload[8:]
            )
        elif frame_type == CONTINUATION:
            self._receive_continuation(flags, stream_id, payload)
        elif frame_type == PRIORITY:
            if not stream_id:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
            if len(payload) != 5:
                self._handler.on_stream_fault(stream_id, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY is not 5 bytes long")
            elif frames.read_uint32(payload, 0) & 0x7FFFFFFF == stream_id:
                self._handler.on_stream_fault(stream_id, ErrorCode.PROTOCOL_ERROR, "stream depends on itself")
            else:
                self._handler.on_overhead()
        elif frame_type == PUSH_PROMISE:
            # RFC 9113, 8.4: a client that sent ENABLE_PUSH=0 and every server must treat it as a connection error.
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE is not allowed here")
        else:
            # Unknown frame types are ignored (RFC 9113, 4.1).
            self._handler.on_overhead()

    def _receive_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS on stream 0")
        depends_on_itself = False
        if flags & (PADDED | PRIORITY_FLAG):
            start, stop = 0, len(payload)
            if flags & PADDED:
                if not payload:
                    raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "padded HEADERS frame without a pad length")
                start, stop = 1, stop - payload[0]
            if flags & PRIORITY_FLAG:
                if stop - start < 5:
                    raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for its priority fields")
                # Priorities are deprecated (RFC 9113, 5.3.2) and ignored, but for nonsense (RFC 7540, 5.3.1).
                depends_on_itself = frames.read_uint32(payload, start) & 0x7FFFFFFF == stream_id
                start += 5
            if start > stop:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS padding is longer than the frame")
            payload = payload[start:stop]
        end_stream = flags & END_STREAM == END_STREAM
        if flags & END_HEADERS:
            self._decode_block(stream_id, payload, end_stream)
        else:
            self.block_stream = stream_id
            self._block_ends_stream = end_stream
            self._block = [payload]
            self._block_length = len(payload)
            self._handler.on_block_begun()
        if depends_on_itself:
            # After the block: an HPACK table must see all of them.
            self._handler.on_stream_fault(stream_id, ErrorCode.PROTOCOL_ERROR, "stream depends on itself")

    def _receive_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not self.block_stream:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._block.append(payload)
        self._block_length += len(payload)
        if self._block_length > self._max_block:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"header block over {self._max_block} bytes (follows from option max_header_list_size)",
            )
        if len(self._block) > self._max_block_frames:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"header block in over {self._max_block_frames} frames")
        if flags & END_HEADERS:
            block, self._block = b"".join(self._block), []
            self.block_stream = 0
            self._decode_block(stream_id, block, self._block_ends_stream)

    def _decode_block(self, stream_id: int, block: bytes, end_stream: bool) -> None:
        record: RecordT | HeaderListTooLarge
        try:
            record = self._decoder.decode(block)
        except HeaderListTooLarge as error:
            record = error
        except HeaderBlockError as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, str(error)) from error
        self._handler.on_headers(stream_id, record, end_stream)

    def _receive_window_update(self, stream_id: int, payload: bytes) -> None:
        _check_length("WINDOW_UPDATE", payload, 4)
        increment = frames.read_uint32(payload, 0) & 0x7FFFFFFF
        if increment:
            self._handler.on_window_update(stream_id, increment)
        elif stream_id:
            self._handler.on_stream_fault(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        else:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0 on the connection")

    # -- the control plane

    def _receive_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & ACK:
            if payload:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS ACK with a payload")
            self._settings_acknowledged = True
            self._feed_settings(frames.frame(SETTINGS, ACK, 0))
            self._handler.on_settings_acknowledged()
            return
        if len(payload) % 6:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS length is not a multiple of 6")
        if len(payload) > 6 * _MAX_SETTINGS:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"over {_MAX_SETTINGS} entries in one SETTINGS frame")
        values: dict[int, int] = {}
        kept = bytearray()
        for identifier, value in _SETTING.iter_unpack(payload):
            if identifier == frames.SETTINGS_ENABLE_PUSH and value == 1 and self._client_side:
                # RFC 9113, 6.5.2. The oldest h2 that we allow does not mind.
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a server must not set ENABLE_PUSH to 1")
            if identifier == frames.SETTINGS_HEADER_TABLE_SIZE:
                value = min(value, _MAX_HEADER_TABLE_SIZE)
            if identifier in _KNOWN_SETTINGS:
                kept += _SETTING.pack(identifier, value)
                values[identifier] = value
        self.settings_received = True
        ack = self._feed_settings(frames.frame(SETTINGS, 0, 0, bytes(kept)))
        self._handler.on_settings(
            ApplySettings(
                ack,
                values.get(frames.SETTINGS_HEADER_TABLE_SIZE),
                values.get(frames.SETTINGS_INITIAL_WINDOW_SIZE),
                values.get(frames.SETTINGS_MAX_FRAME_SIZE),
            ),
            values.get(frames.SETTINGS_MAX_CONCURRENT_STREAMS),
            values.get(frames.SETTINGS_MAX_HEADER_LIST_SIZE),
        )

    def _receive_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        _check_length("PING", payload, 8)
        reply = _receive_ping(self._client_side, frames.frame(PING, flags & ACK, 0, payload))
        if flags & ACK:
            self._handler.on_ping_acknowledged(payload)
        else:
            self._handler.on_ping(reply)

    def _feed_settings(self, data: bytes) -> bytes:
        """Hand h2 a SETTINGS frame; return what it answers."""
        if self._h2 is None:
            self._h2 = _open_h2(self._client_side, self._settings)
        answer = _feed(self._h2, data)
        if self.settings_received and self._settings_acknowledged:
            # Later SETTINGS are rare, and judged without regard to earlier ones.
            self._h2 = None
        return answer


# -- h2


#: Our settings, by identifier.
_Settings = tuple[tuple[int, int], ...]


def _make_h2(client_side: bool, settings: _Settings) -> h2.connection.H2Connection:
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=client_side, header_encoding=None))
    connection.local_settings = h2.settings.Settings(
        client=client_side,
        initial_values={h2.settings.SettingCodes(code): value for code, value in settings},
    )
    connection.initiate_connection()
    return connection


def _open_h2(client_side: bool, settings: _Settings) -> h2.connection.H2Connection:
    """Return an h2 connection that has said its preface and heard the peer's."""
    connection = _make_h2(client_side, settings)
    connection.clear_outbound_data_buffer()
    if not client_side:
        connection.receive_data(PREFACE)
    return connection


@lru_cache
def _opening(client_side: bool, settings: _Settings) -> tuple[bytes, _Settings]:
    """Return the preface, our first SETTINGS included, and those settings: the same objects for all connections."""
    return _make_h2(client_side, settings).data_to_send(), settings


# PING has no state in h2, so connections share a few. Each is taken out while it is used: there may be threads.
_FOR_PINGS: dict[bool, list[h2.connection.H2Connection]] = {False: [], True: []}


def _take_for_ping(client_side: bool) -> h2.connection.H2Connection:
    try:
        return _FOR_PINGS[client_side].pop()
    except IndexError:
        return _open_h2(client_side, ())


def _send_ping(client_side: bool, payload: bytes) -> bytes:
    connection = _take_for_ping(client_side)
    connection.ping(payload)
    data: bytes = connection.data_to_send()
    _FOR_PINGS[client_side].append(connection)
    return data


def _receive_ping(client_side: bool, data: bytes) -> bytes:
    connection = _take_for_ping(client_side)
    answer = _feed(connection, data)
    # Not where h2 refused: that one is spent.
    _FOR_PINGS[client_side].append(connection)
    return answer


def _feed(connection: h2.connection.H2Connection, data: bytes) -> bytes:
    """Hand h2 one whole frame; return what it answers, or translate its refusal.

    h2's own GOAWAY is thrown away: it says last-stream-id 0, and the peer would run its calls a second time.
    """
    try:
        connection.receive_data(data)
    except h2.exceptions.ProtocolError as error:
        raise ConnectionFault(int(error.error_code), str(error) or type(error).__name__) from error
    answer: bytes = connection.data_to_send()
    return answer


def _check_length(name: str, payload: bytes, length: int) -> None:
    if len(payload) != length:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"{name} is {len(payload)} bytes long instead of {length}")


def _describe_stranger(data: bytes, expected: str) -> str:
    """Say what a peer that does not speak HTTP/2 seems to speak."""
    if data[:2] == b"\x16\x03":
        return "peer sent a TLS handshake to a plaintext port"
    if data[:2] == b"\x15\x03":
        return "peer answered with a TLS alert: it expects TLS"
    if b"HTTP/1." in data[:4096] or data[:4] in (b"GET ", b"POST", b"HEAD", b"PUT "):
        line = data.partition(b"\n")[0].rstrip(b"\r")
        return f"peer speaks HTTP/1.x, not HTTP/2 with prior knowledge: it said {line[:80]!r}"
    return f"peer did not begin with {expected} but with {data[:24]!r}"
