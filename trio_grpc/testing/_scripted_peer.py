"""A peer that plays one end of an HTTP/2 connection frame by frame, for tests of what the other end does about it.

It has no task of its own and no opinion: what a test tells it to send goes out as it is, right or wrong, and what comes
in is read when the test asks for it. It knows frames and gRPC's message prefix, nothing of calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TypeVar, final

import attrs
import trio

from trio_grpc._status import StatusCode
from trio_grpc._transport import frames
from trio_grpc._transport.frames import ErrorCode
from trio_grpc._transport.header_codec import Field, HeaderDecoder, HeaderEncoder, HeaderTemplate
from trio_grpc._transport.headers import request_template, response_fields, trailer_fields, trailers_only_fields
from trio_grpc._transport.messages import MessageAssembler, frame_message
from trio_grpc._transport.side import Side

#: Nothing that a test sends or receives is too large.
_NO_LIMIT = 2**32
_NO_FIELDS: tuple[Field, ...] = ()
_READ_SIZE = 65_536


@attrs.frozen
class Frame:
    """One frame that the peer received; a kind of its own for each type, `UnknownFrame` for the rest."""


@attrs.frozen
class DataFrame(Frame):
    """DATA without its padding.

    Attributes:
        stream_id: the stream.
        data: the payload.
        end_stream: whether it ends its side of the stream.
    """

    stream_id: int
    data: bytes
    end_stream: bool


@attrs.frozen
class HeadersFrame(Frame):
    """HEADERS with its CONTINUATION frames, decoded.

    Attributes:
        stream_id: the stream.
        fields: names and values in wire order.
        end_stream: whether it ends its side of the stream.
    """

    stream_id: int
    fields: tuple[tuple[bytes, bytes], ...]
    end_stream: bool

    def __getitem__(self, name: str) -> str:
        """Return the first value of a field.

        Raises:
            KeyError: there is no such field.
        """
        wanted = name.encode("ascii")
        for field, value in self.fields:
            if field == wanted:
                return value.decode("latin-1")
        raise KeyError(name)

    def get(self, name: str) -> str | None:
        """Return the first value of a field, None if there is none."""
        try:
            return self[name]
        except KeyError:
            return None


@attrs.frozen
class RstStreamFrame(Frame):
    """RST_STREAM.

    Attributes:
        stream_id: the stream.
        error_code: an `ErrorCode`, or another number.
    """

    stream_id: int
    error_code: int


@attrs.frozen
class SettingsFrame(Frame):
    """SETTINGS.

    Attributes:
        settings: values by identifier.
        ack: whether it acknowledges ours.
    """

    settings: dict[int, int]
    ack: bool


@attrs.frozen
class PingFrame(Frame):
    """PING.

    Attributes:
        payload: its eight bytes.
        ack: whether it answers one of ours.
    """

    payload: bytes
    ack: bool


@attrs.frozen
class GoawayFrame(Frame):
    """GOAWAY.

    Attributes:
        last_stream_id: streams above it were not processed.
        error_code: an `ErrorCode`, or another number.
        debug_data: text for people.
    """

    last_stream_id: int
    error_code: int
    debug_data: bytes


@attrs.frozen
class WindowUpdateFrame(Frame):
    """WINDOW_UPDATE.

    Attributes:
        stream_id: the stream, 0 for the connection.
        increment: new credit in bytes.
    """

    stream_id: int
    increment: int


@attrs.frozen
class UnknownFrame(Frame):
    """A frame of a type that has no class here.

    Attributes:
        frame_type: its type.
        flags: its flags.
        stream_id: its stream.
        payload: its payload as it came.
    """

    frame_type: int
    flags: int
    stream_id: int
    payload: bytes


FrameT = TypeVar("FrameT", bound=Frame)


@final
class ScriptedPeer:
    """One end of a connection, played by a test.

    Make it with `ScriptedPeer.client` or `ScriptedPeer.server` over any trio stream::

        peer = ScriptedPeer.client(await listener.connect())
        async with peer:
            await peer.handshake()
            await peer.send_request(1, "/echo.Echo/Unary")
            await peer.send_message(1, b"", end_stream=True)
            headers = await peer.expect(HeadersFrame, stream_id=1)
            assert headers["grpc-status"] == "0"

    Arguments mean the same everywhere: ``stream_id`` is the stream (0 the connection), ``end_stream`` sets END_STREAM,
    ``fields`` and ``metadata`` are names and values in their order, ``message`` of a gRPC message its bytes without the
    prefix, ``error_code`` a number of `ErrorCode`. Nothing is checked, so that all of it may be wrong.

    All ``send_*`` methods write one or more frames at once; inside ``async with peer.one_segment():`` they are held
    back and leave together. Frames are received only when asked for.

    Attributes:
        stream: the byte stream, for what the methods do not cover.
        auto_ack: whether SETTINGS and PING are answered when they are received, after this end's own preface.
    """

    def __init__(self, stream: trio.abc.Stream, side: Side, *, auto_ack: bool = True) -> None:
        self.stream = stream
        self.auto_ack = auto_ack
        self._side = side
        self._held: list[bytes] | None = None
        #: Answers that wait for this end's preface; None once it was sent.
        self._owed: list[bytes] | None = []
        self._received = bytearray()
        self._preface_seen = side is Side.CLIENT
        self._encoder = HeaderEncoder()
        self._decoder: HeaderDecoder[tuple[Field, ...]] = HeaderDecoder(tuple, max_list_size=_NO_LIMIT)
        self._assemblers: dict[int, MessageAssembler] = {}

    @classmethod
    def client(cls, stream: trio.abc.Stream, *, auto_ack: bool = True) -> ScriptedPeer:
        """Play the client, against a server.

        Args:
            stream: the byte stream to the other end.
            auto_ack: answer PING and SETTINGS of the other end by itself.
        """
        return cls(stream, Side.CLIENT, auto_ack=auto_ack)

    @classmethod
    def server(cls, stream: trio.abc.Stream, *, auto_ack: bool = True) -> ScriptedPeer:
        """Play the server, against a client.

        Args:
            stream: the byte stream to the other end.
            auto_ack: answer PING and SETTINGS of the other end by itself.
        """
        return cls(stream, Side.SERVER, auto_ack=auto_ack)

    async def __aenter__(self) -> ScriptedPeer:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Vanish: close the byte stream without a word."""
        await trio.aclose_forcefully(self.stream)

    # -- sending

    def one_segment(self) -> _Segment:
        """Hold back what is sent inside this ``async with`` block, and write it as one piece at its end."""
        return _Segment(self)

    async def send_raw(self, data: bytes) -> None:
        """Send bytes as they are.

        Raises:
            trio.BrokenResourceError: the other end is gone.
        """
        if self._held is not None:
            self._held.append(data)
            await trio.lowlevel.checkpoint()
        else:
            await self.stream.send_all(data)

    async def send_frame(self, frame_type: int, flags: int, stream_id: int, payload: bytes = b"") -> None:
        """Send a frame of any kind, right or wrong.

        Args:
            frame_type: its type, as on the wire.
            flags: its flags.
            stream_id: the stream's number.
            payload: what comes behind the nine bytes of its head.
        """
        await self.send_raw(frames.frame(frame_type, flags, stream_id, payload))

    async def send_preface(self, settings: Mapping[int, int] | None = None) -> None:
        """Send what a connection begins with: the client preface (client) and SETTINGS (RFC 9113, 3.4)."""
        preface = frames.PREFACE if self._side is Side.CLIENT else b""
        owed, self._owed = self._owed or [], None
        await self.send_raw(b"".join((preface, _settings_frame(settings or {}), *owed)))

    async def handshake(self, settings: Mapping[int, int] | None = None) -> SettingsFrame:
        """Exchange prefaces and acknowledge both ways; return the other end's SETTINGS.

        Args:
            settings: of this end.

        Raises:
            AssertionError: the other end sends something else.
        """
        await self.send_preface(settings)
        theirs: SettingsFrame | None = None
        acknowledged = False
        while theirs is None or not acknowledged:
            frame = await self.receive_frame()
            if isinstance(frame, SettingsFrame) and frame.ack:
                acknowledged = True
            elif isinstance(frame, SettingsFrame) and theirs is None:
                theirs = frame
                if not self.auto_ack:
                    await self.send_settings_ack()
            elif not isinstance(frame, WindowUpdateFrame):
                raise AssertionError(f"expected a handshake, received {frame}")
        return theirs

    async def send_settings(self, settings: Mapping[int, int]) -> None:
        """Send SETTINGS."""
        await self.send_raw(_settings_frame(settings))

    async def send_settings_ack(self) -> None:
        """Acknowledge the other end's SETTINGS; not needed with ``auto_ack``."""
        await self.send_frame(frames.SETTINGS, frames.ACK, 0)

    async def send_headers(
        self,
        stream_id: int,
        fields: Iterable[tuple[str | bytes, str | bytes]],
        *,
        end_stream: bool = False,
        fragments: int = 1,
    ) -> None:
        """Send a header block with exactly these fields.

        Args:
            stream_id: the stream.
            fields: names and values; nothing is checked or added.
            end_stream: set END_STREAM.
            fragments: cut the block into one HEADERS and this many less one CONTINUATION frames.
        """
        block = self.encode_headers(fields)
        size = max(1, -(-len(block) // fragments))
        flags = frames.END_STREAM if end_stream else 0
        await self.send_raw(frames.header_block_frames(block, flags, stream_id, size if fragments > 1 else 16_384))

    def encode_headers(self, fields: Iterable[tuple[str | bytes, str | bytes]]) -> bytes:
        """Return a header block for frames that the test puts together itself."""
        return self._encoder.encode(HeaderTemplate(()), [(_to_bytes(name), _to_bytes(value)) for name, value in fields])

    async def send_request(
        self,
        stream_id: int,
        path: str,
        metadata: Iterable[tuple[str | bytes, str | bytes]] = (),
        *,
        end_stream: bool = False,
    ) -> None:
        """Send the headers of a gRPC request, ``metadata`` after the usual fields.

        Args:
            stream_id: the stream's number.
            path: ``/service/method``.
            metadata: further fields.
            end_stream: set END_STREAM.
        """
        head = request_template(path, "localhost", "http", "scripted-peer")
        await self.send_headers(stream_id, (*head, *metadata), end_stream=end_stream)

    async def send_response(self, stream_id: int, metadata: Iterable[tuple[str | bytes, str | bytes]] = ()) -> None:
        """Send the headers of a gRPC response, ``metadata`` after the usual fields.

        Args:
            stream_id: the stream's number.
            metadata: further fields.
        """
        await self.send_headers(stream_id, (*response_fields(), *metadata))

    async def send_trailers(
        self,
        stream_id: int,
        code: StatusCode = StatusCode.OK,
        message: str = "",
        *,
        end_stream: bool = True,
    ) -> None:
        """Send the trailers that end a gRPC response.

        Args:
            stream_id: the stream's number.
            code: the status code.
            message: its text.
            end_stream: set END_STREAM.
        """
        await self.send_headers(stream_id, trailer_fields(code, message), end_stream=end_stream)

    async def send_trailers_only(self, stream_id: int, code: StatusCode, message: str = "") -> None:
        """Send a whole gRPC response that has no message, in one header block.

        Args:
            stream_id: the stream's number.
            code: the status code.
            message: its text.
        """
        await self.send_headers(stream_id, trailers_only_fields(code, message), end_stream=True)

    async def send_data(
        self, stream_id: int, data: bytes = b"", *, end_stream: bool = False, padding: int | None = None
    ) -> None:
        """Send one DATA frame, whatever its size.

        Args:
            stream_id: the stream.
            data: the payload.
            end_stream: set END_STREAM.
            padding: bytes of padding, 0 to 255; None for a frame without the PADDED flag.
        """
        flags = frames.END_STREAM if end_stream else 0
        if padding is not None:
            flags |= frames.PADDED
            data = bytes((padding,)) + data + bytes(padding)
        await self.send_frame(frames.DATA, flags, stream_id, data)

    async def send_message(
        self, stream_id: int, message: bytes, *, compressed: bool = False, end_stream: bool = False
    ) -> None:
        """Send one gRPC message behind its prefix, in one DATA frame.

        Args:
            stream_id: the stream's number.
            message: its bytes, without the prefix.
            compressed: what the prefix says.
            end_stream: set END_STREAM.
        """
        await self.send_data(stream_id, frame_message(message, compressed), end_stream=end_stream)

    async def send_rst_stream(self, stream_id: int, error_code: int) -> None:
        """Send RST_STREAM.

        Args:
            stream_id: the stream's number.
            error_code: one of `ErrorCode`, or any number.
        """
        await self.send_raw(frames.rst_stream(stream_id, error_code))

    async def send_ping(self, payload: bytes = bytes(8), *, ack: bool = False) -> None:
        """Send PING, or the answer to one.

        Args:
            payload: eight bytes.
            ack: whether it is an answer.
        """
        await self.send_frame(frames.PING, frames.ACK if ack else 0, 0, payload)

    async def send_goaway(
        self, last_stream_id: int, error_code: int = ErrorCode.NO_ERROR, debug_data: bytes = b""
    ) -> None:
        """Send GOAWAY.

        Args:
            last_stream_id: the highest stream that was or will be worked on.
            error_code: one of `ErrorCode`, or any number.
            debug_data: a text for whoever reads logs.
        """
        await self.send_raw(frames.goaway(last_stream_id, error_code, debug_data))

    async def send_window_update(self, stream_id: int, increment: int) -> None:
        """Send WINDOW_UPDATE; stream 0 is the connection.

        Args:
            stream_id: the stream's number, 0 for the connection.
            increment: bytes of credit.
        """
        await self.send_raw(frames.window_update(stream_id, increment))

    # -- receiving

    async def receive_frame(self) -> Frame:
        """Return the next frame, whatever it is.

        Raises:
            trio.EndOfChannel: the other end has closed the connection after its last whole frame.
            trio.BrokenResourceError: the connection broke.
            AssertionError: the other end does not speak HTTP/2.
        """
        if not self._preface_seen:
            preface = await self._take(len(frames.PREFACE))
            if preface != frames.PREFACE:
                raise AssertionError(f"expected the HTTP/2 client preface, received {preface!r}")
            self._preface_seen = True
        frame_type, flags, stream_id, payload = await self._receive_raw_frame()
        if frame_type == frames.DATA:
            return DataFrame(stream_id, _strip_padding(flags, payload), bool(flags & frames.END_STREAM))
        if frame_type == frames.HEADERS:
            return await self._receive_headers(flags, stream_id, payload)
        if frame_type == frames.RST_STREAM and len(payload) == 4:
            return RstStreamFrame(stream_id, _error_code(frames.read_uint32(payload, 0)))
        if frame_type == frames.WINDOW_UPDATE and len(payload) == 4:
            return WindowUpdateFrame(stream_id, frames.read_uint32(payload, 0))
        if frame_type == frames.SETTINGS and not stream_id and len(payload) % 6 == 0:
            return await self._receive_settings(flags, payload)
        if frame_type == frames.PING and not stream_id and len(payload) == 8:
            if not flags & frames.ACK:
                await self._answer(frames.frame(frames.PING, frames.ACK, 0, payload))
            return PingFrame(payload, bool(flags & frames.ACK))
        if frame_type == frames.GOAWAY and not stream_id and len(payload) >= 8:
            code = _error_code(frames.read_uint32(payload, 4))
            return GoawayFrame(frames.read_uint32(payload, 0), code, payload[8:])
        return UnknownFrame(frame_type, flags, stream_id, payload)

    async def expect(self, kind: type[FrameT], **attributes: object) -> FrameT:
        """Return the next frame, which must be of this kind and have these attributes.

        What a connection sends for its own upkeep is passed over unless it is what is asked for: SETTINGS, PING,
        WINDOW_UPDATE.

        Args:
            kind: a class of frame, such as `HeadersFrame`.
            attributes: what its attributes must be; those not named may be anything.

        Raises:
            AssertionError: the next frame is another one, or the connection has ended.
        """
        wanted = kind.__name__ + "".join(f", {name}={value!r}" for name, value in attributes.items())
        while True:
            try:
                frame = await self.receive_frame()
            except trio.EndOfChannel:
                raise AssertionError(f"expected {wanted}; the connection was closed") from None
            if isinstance(frame, kind) and all(getattr(frame, name) == value for name, value in attributes.items()):
                return frame
            if not isinstance(frame, (SettingsFrame, PingFrame, WindowUpdateFrame)):
                raise AssertionError(f"expected {wanted}; received {frame}")

    async def receive_message(self, stream_id: int) -> bytes:
        """Return the next gRPC message of a stream, put together from as many DATA frames as it takes.

        Raises:
            AssertionError: the stream ends or another frame than its DATA comes first.
        """
        assembler = self._assemblers.setdefault(stream_id, MessageAssembler(_NO_LIMIT))
        while not assembler.messages:
            frame = await self.expect(DataFrame, stream_id=stream_id)
            assembler.feed(frame.data, 0, len(frame.data))
            if frame.end_stream and not assembler.messages:
                raise AssertionError(f"expected a message on stream {stream_id}; the stream ended")
        return bytes(assembler.messages.popleft())

    async def expect_eof(self) -> None:
        """Wait until the other end closes the connection, which must be the next thing it does.

        A connection that the operating system reset counts as closed.

        Raises:
            AssertionError: a frame came first that is not of the kinds that `expect` passes over.
        """
        while True:
            try:
                frame = await self.receive_frame()
            except (trio.EndOfChannel, trio.BrokenResourceError):
                return
            if not isinstance(frame, (SettingsFrame, PingFrame, WindowUpdateFrame)):
                raise AssertionError(f"expected the end of the connection; received {frame}")

    async def expect_silence(self, seconds: float = 1.0) -> None:
        """Wait, and see that nothing comes but what `expect` passes over. Made for virtual clocks.

        Raises:
            AssertionError: a frame came, or the connection was closed.
        """
        with trio.move_on_after(seconds):
            try:
                while True:
                    frame = await self.receive_frame()
                    if not isinstance(frame, (SettingsFrame, PingFrame, WindowUpdateFrame)):
                        raise AssertionError(f"expected silence; received {frame}")
            except trio.EndOfChannel:
                raise AssertionError("expected silence; the connection was closed") from None

    async def _receive_raw_frame(self) -> tuple[int, int, int, bytes]:
        await trio.lowlevel.checkpoint()
        await self._fill(frames.FRAME_HEADER_LENGTH)
        high, low, frame_type, flags, stream_id = frames.FRAME_HEADER.unpack_from(self._received, 0)
        # Taken only when it is whole, so that a wait that is cancelled loses nothing.
        frame = await self._take(frames.FRAME_HEADER_LENGTH + (high << 8 | low))
        return frame_type, flags, stream_id, frame[frames.FRAME_HEADER_LENGTH :]

    async def _receive_headers(self, flags: int, stream_id: int, payload: bytes) -> HeadersFrame:
        fragments = [_strip_padding(flags, payload)]
        end_stream = bool(flags & frames.END_STREAM)
        if flags & frames.PRIORITY_FLAG:
            fragments[0] = fragments[0][5:]
        while not flags & frames.END_HEADERS:
            frame_type, flags, other_id, payload = await self._receive_raw_frame()
            if frame_type != frames.CONTINUATION or other_id != stream_id:
                raise AssertionError(f"expected CONTINUATION on stream {stream_id}; received type {frame_type}")
            fragments.append(payload)
        return HeadersFrame(stream_id, self._decoder.decode(b"".join(fragments)), end_stream)

    async def _receive_settings(self, flags: int, payload: bytes) -> SettingsFrame:
        settings = {
            int.from_bytes(payload[start : start + 2], "big"): frames.read_uint32(payload, start + 2)
            for start in range(0, len(payload), 6)
        }
        if not flags & frames.ACK:
            table_size = settings.get(frames.SETTINGS_HEADER_TABLE_SIZE)
            if table_size is not None:
                self._encoder.set_max_table_size(table_size)
            await self._answer(frames.frame(frames.SETTINGS, frames.ACK, 0))
        return SettingsFrame(settings, bool(flags & frames.ACK))

    async def _answer(self, frame: bytes) -> None:
        if not self.auto_ack:
            return
        if self._owed is None:
            await self.send_raw(frame)
        else:
            self._owed.append(frame)

    async def _fill(self, length: int) -> None:
        """Receive until ``length`` bytes are there."""
        while len(self._received) < length:
            data = await self.stream.receive_some(_READ_SIZE)
            if not data:
                if self._received:
                    raise trio.BrokenResourceError(f"connection closed inside a frame: {bytes(self._received[:64])!r}")
                raise trio.EndOfChannel
            self._received += data

    async def _take(self, length: int) -> bytes:
        await self._fill(length)
        data = bytes(self._received[:length])
        del self._received[:length]
        return data

    def _hold(self) -> None:
        if self._held is not None:
            raise RuntimeError("one_segment blocks cannot be nested")
        self._held = []

    async def _release(self) -> None:
        held, self._held = self._held or [], None
        await self.send_raw(b"".join(held))


class _Segment:
    """The block that `ScriptedPeer.one_segment` opens."""

    __slots__ = ("_peer",)

    def __init__(self, peer: ScriptedPeer) -> None:
        self._peer = peer

    async def __aenter__(self) -> None:
        self._peer._hold()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._peer._release()


def _settings_frame(settings: Mapping[int, int]) -> bytes:
    payload = b"".join(
        identifier.to_bytes(2, "big") + value.to_bytes(4, "big") for identifier, value in settings.items()
    )
    return frames.frame(frames.SETTINGS, 0, 0, payload)


def _strip_padding(flags: int, payload: bytes) -> bytes:
    return payload[1 : len(payload) - payload[0]] if flags & frames.PADDED else payload


def _error_code(code: int) -> int:
    """Return the `ErrorCode` of a number, which reads better in a failed assertion, where there is one."""
    try:
        return ErrorCode(code)
    except ValueError:
        return code


def _to_bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1")
