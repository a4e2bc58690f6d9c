"""The reader: the only task that reads from a byte stream, and what each frame of the peer means for the streams.

One class for both sides; where a client and a server differ, the branch is on `Side`. It keeps the incoming books,
raises the outgoing ones, never runs user code, and never waits for an application: messages are assembled and left for
their receiver, whose unread bytes the stream's window bounds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

import trio

from trio_grpc._status import StatusCode
from trio_grpc._transport import frames
from trio_grpc._transport.budget import Budget
from trio_grpc._transport.byte_stream import ByteStream
from trio_grpc._transport.control_buffer import (
    ApplySettings,
    ControlBuffer,
    RawFrame,
    RefuseStream,
    WindowOpened,
)
from trio_grpc._transport.flow_control import IncomingWindows, OutgoingWindows
from trio_grpc._transport.framer import Framer
from trio_grpc._transport.frames import MAX_WINDOW, ConnectionFault, ErrorCode, error_name
from trio_grpc._transport.header_codec import Field, HeaderDecoder, HeaderListTooLarge
from trio_grpc._transport.headers import (
    Malformed,
    Record,
    RequestHeaders,
    RequestTrailers,
    ResponseHeaders,
    extend_request,
    extend_response,
    http_to_status,
    parse_request,
    parse_response,
    rst_to_status,
    trailers_only_fields,
)
from trio_grpc._transport.messages import (
    ForeignBody,
    MeasuredAssembler,
    MessageError,
    MessageTooLarge,
    NotMessages,
    UnwantedBody,
    WrongLength,
)
from trio_grpc._transport.side import Side
from trio_grpc._transport.stream import Outcome, Stream
from trio_grpc._transport.stream_table import UNLIMITED_STREAMS, StreamTable

_logger = logging.getLogger("trio_grpc")

#: Bytes of a read: the first, the least, the most. In between the reader aims at `_BATCH` woken tasks per read, so that
#: the two ends of a connection work at the same time. With 100 calls in flight and reads of 256 KiB they take turns,
#: each handling all 100 while the other sleeps: 27,000 calls/s and 44,000 ping-pongs/s instead of 52,000 and 94,000. It
#: counts tasks, not messages: a firehose into one consumer is read in big pieces, lest others wait behind it.
_FIRST_READ = 16_384
_LEAST_READ = 1024
_MOST_READ = 262_144
_BATCH = 32
#: With fewer calls the batch is half of them, or the ends take turns again: 16 calls of 10 KB 7,250/s -> 10,250/s, 32
#: empty ones +12 % (6 and 3 interleaved rounds). One or two firehoses wake too few to be read in small pieces.
_LEAST_BATCH = 5
#: The payload of our bandwidth PINGs; other payloads belong to whoever sent them.
BANDWIDTH_PING = b"trio_bdp"
_STATUS_CODES = tuple(StatusCode)
#: HTTP statuses with which requests are refused that are not gRPC at all: wrong method, wrong content-type.
_STRANGERS = (405, 415)
#: Gaps in a client's stream ids that are remembered; clients leave none.
_SKIPPED = 64
#: Seconds for a header block to be finished, all its CONTINUATIONs: in its midst a connection can carry nothing else.
#: As long as a live peer has to answer a keepalive PING (gRFC A8).
_BLOCK_TIMEOUT = 20.0
#: Seconds. A call that was reset when it was older is not premature: whoever waits before each reset is held back by
#: the stream limit. Envoy takes 1 s; but deadlines that short are common in gRPC, and each one missed is a reset.
_YOUNG = 0.1
#: Premature resets that a second pays for (nghttp2), and another call that was not reset prematurely: of eleven calls
#: ten may be, because some clients ask several servers and keep the first answer. (Envoy: one in two.)
_RESETS_PER_SECOND = 33
_RESETS_PER_CALL = 10
#: Overhead frames that a second pays for, and a new call.
_OVERHEAD_PER_SECOND = 100
_OVERHEAD_PER_CALL = 10
#: Bytes of DATA received that pay for an overhead frame. Of DATA sent each byte does: the peer must give it back, and
#: each honest WINDOW_UPDATE gives back one at least.
_BYTES_PER_OVERHEAD = 64
#: What counts as this many overhead frames: what we answer (each answer is bounded by the throttle too), and what takes
#: the way through h2.
_COSTLY = 10


class Reader:
    """The reading half of one connection, and its `FrameHandler`.

    Attributes:
        last_peer_stream_id: the highest stream id the peer has opened (server): what our GOAWAY says we processed.
        refuse_above: streams above this id came after our last GOAWAY and are ignored.
        accepting: new streams are served; otherwise they are refused as safe to retry.
        last_read: trio's time of the last bytes that came.
        last_opened: trio's time of the last stream that the peer has opened (server); -inf before the first.
        last_message: trio's time of the last whole message; -inf before the first.
        messages: whole messages that came so far.
        framer: cuts them into frames, and makes our PINGs.
    """

    __slots__ = (
        "_batch_bytes",
        "_block_deadline",
        "_byte_stream",
        "_control_buffer",
        "_incoming",
        "_is_server",
        "_last_opened",
        "_message_limit",
        "_new_streams",
        "_on_goaway",
        "_on_ping",
        "_on_pong",
        "_on_settings",
        "_on_stream",
        "_outgoing",
        "_overhead",
        "_peer",
        "_premature",
        "_resets",
        "_settings_seen",
        "_skipped",
        "_streams",
        "_table",
        "accepting",
        "framer",
        "last_message",
        "last_opened",
        "last_peer_stream_id",
        "last_read",
        "messages",
        "refuse_above",
    )

    def __init__(
        self,
        side: Side,
        byte_stream: ByteStream,
        control_buffer: ControlBuffer,
        table: StreamTable[Stream],
        incoming: IncomingWindows,
        outgoing: OutgoingWindows,
        *,
        settings: dict[int, int],
        message_limit: int,
        max_header_list_size: int,
        max_frame_size: int,
        max_premature_resets: int | None,
        max_overhead_frames: int | None,
        peer: str,
        last_opened: Callable[[], int],
        on_stream: Callable[[Stream], None] | None,
        on_goaway: Callable[[int, int, bytes], None],
        on_settings: Callable[[], None],
        on_pong: Callable[[bytes], None],
        on_ping: Callable[[float], None] | None = None,
    ) -> None:
        self._is_server = side is Side.SERVER
        self._byte_stream = byte_stream
        self._control_buffer = control_buffer
        self._table = table
        self._streams = table.streams
        self._incoming = incoming
        self._outgoing = outgoing
        self._message_limit = message_limit
        self._peer = peer
        self._last_opened = last_opened
        self._on_stream = on_stream
        self._on_goaway = on_goaway
        self._on_settings = on_settings
        self._on_pong = on_pong
        self._on_ping = on_ping
        self._new_streams: list[Stream] = []
        self._settings_seen = False
        #: Stream ids that a client left out: closed without ever having been open (RFC 9113, 5.1.1).
        self._skipped: tuple[range, ...] = ()
        self._batch_bytes = 0
        self._block_deadline = inf
        self._premature = 0
        self._resets = Budget(max_premature_resets, per_second=_RESETS_PER_SECOND, per_progress=_RESETS_PER_CALL)
        self._overhead = Budget(max_overhead_frames, per_second=_OVERHEAD_PER_SECOND, per_progress=1)
        self.last_read: float = 0.0
        self.last_opened: float = -inf
        self.last_message: float = -inf
        self.messages: int = 0
        self.last_peer_stream_id: int = 0
        self.refuse_above = frames.MAX_STREAM_ID
        self.accepting = True
        client = side is Side.CLIENT
        decoder: HeaderDecoder[Record] = HeaderDecoder(
            parse_response if client else parse_request,
            max_list_size=max_header_list_size,
            extend=extend_response if client else extend_request,
        )
        self.framer: Framer[Record] = Framer(
            self, decoder, client_side=client, settings=settings, max_frame_size=max_frame_size
        )

    async def run(self) -> None:
        """Read until the end of the byte stream.

        Raises:
            ConnectionFault: the peer broke the protocol.
            OSError, trio.BrokenResourceError, trio.ClosedResourceError: the byte stream is gone.
        """
        control_buffer = self._control_buffer
        byte_stream = self._byte_stream
        framer = self.framer
        incoming = self._incoming
        table = self._table
        size = _FIRST_READ
        # The clock itself: `trio.current_time` takes three times as long to ask it.
        current_time = trio.lowlevel.current_clock().current_time
        now = current_time()
        self._resets.begin(now)
        self._overhead.begin(now)
        while True:
            await control_buffer.throttle()
            if not framer.block_stream:
                data = await byte_stream.receive(size)
            else:
                data = await self._receive_in_block(size)
            if not data:
                return
            self.last_read = current_time()
            try:
                framer.receive(data)
            finally:
                self._end_batch()
            wakeups, incoming.wakeups = incoming.wakeups, 0
            batch = min(max(table.slots_used >> 1, _LEAST_BATCH), _BATCH)
            if wakeups > batch:
                size = max(size >> 1, _LEAST_READ)
            elif len(data) == size and wakeups * 2 < batch:
                size = min(size << 1, _MOST_READ)

    async def _receive_in_block(self, size: int) -> bytes:
        """Read while a header block is still to be finished."""
        with trio.CancelScope(deadline=self._block_deadline):
            return await self._byte_stream.receive(size)
        raise ConnectionFault(
            ErrorCode.ENHANCE_YOUR_CALM, f"header block was not finished within {_BLOCK_TIMEOUT:g} s of its beginning"
        )

    def _end_batch(self) -> None:
        """What is done once per read: connection credit, bandwidth samples, and starting the new handlers."""
        if self._batch_bytes:
            estimator = self._incoming.estimator
            if estimator is not None and estimator.receive(self._batch_bytes, self.last_read):
                self._control_buffer.put(RawFrame(self.framer.ping(BANDWIDTH_PING)))
            self._batch_bytes = 0
            credit = self._incoming.credit()
            if credit:
                self._control_buffer.put(RawFrame(frames.window_update(0, credit)))
        if self._new_streams:
            new_streams, self._new_streams = self._new_streams, []
            on_stream = self._on_stream
            assert on_stream is not None
            self._incoming.wakeups += len(new_streams)
            for stream in new_streams:
                on_stream(stream)

    # -- HEADERS

    def on_headers(self, stream_id: int, record: Record | HeaderListTooLarge, end_stream: bool) -> None:
        stream = self._streams.get(stream_id)
        if self._is_server:
            if stream is None:
                self._open(stream_id, record, end_stream)
            else:
                self._request_trailers(stream, record, end_stream)
        elif stream is not None:
            self._response_headers(stream, record, end_stream)
        else:
            self._check_not_idle(stream_id, "HEADERS")
            self.on_overhead()

    def _open(self, stream_id: int, record: Record | HeaderListTooLarge, end_stream: bool) -> None:
        """A request (server)."""
        if not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"client opened stream {stream_id}, which is even")
        if stream_id <= self.last_peer_stream_id:
            self._reopen(stream_id)
            return
        if stream_id > self.refuse_above:
            self.on_overhead()
            return
        if stream_id > self.last_peer_stream_id + 2:
            gap = range(self.last_peer_stream_id + 1, stream_id)
            self._skipped = (*self._skipped, gap)[-_SKIPPED:]
        self.last_peer_stream_id = stream_id
        if end_stream and isinstance(record, RequestHeaders) and record.content_length:
            record = Malformed(f"content-length is {record.content_length}, but no DATA follows")
        fields: tuple[Field, ...] | None = None
        if isinstance(record, RequestHeaders):
            if self.accepting and self._table.acquire_nowait():
                self._open_stream(stream_id, record, end_stream)
                return
            # Safe to retry (RFC 9113, 8.7): nothing of this stream was looked at.
            error_code: int | None = ErrorCode.REFUSED_STREAM
        elif isinstance(record, HeaderListTooLarge):
            fields = trailers_only_fields(
                StatusCode.RESOURCE_EXHAUSTED,
                f"request metadata of {record.size} bytes is over the limit of {record.limit} bytes "
                "(option max_header_list_size)",
            )
            error_code = None if end_stream else ErrorCode.NO_ERROR
        else:
            reason = record.reason if isinstance(record, Malformed) else "request headers without pseudo-header fields"
            _logger.debug("%s: malformed request on stream %d: %s", self._peer, stream_id, reason)
            error_code = ErrorCode.PROTOCOL_ERROR
        if not end_stream:
            self._table.cut_short(stream_id)
        self._control_buffer.put(RefuseStream(stream_id, fields, error_code))
        self._take_overhead(_COSTLY)

    def _open_stream(self, stream_id: int, record: RequestHeaders, end_stream: bool) -> None:
        stream = Stream(
            self._control_buffer,
            self._table,
            self._incoming,
            stream_id=stream_id,
            send_window=self._outgoing.initial,
            message_limit=self._message_limit,
            peer=self._peer,
        )
        stream.request = record
        stream.request_time = self.last_opened = self.last_read
        stream.remote_closed = end_stream
        self._streams[stream_id] = stream
        refusal = record.refusal
        if refusal is None:
            if record.content_length is not None:
                stream.assembler = MeasuredAssembler(stream.assembler, record.content_length)
            self._new_streams.append(stream)
        elif refusal.http_status in _STRANGERS:
            stream.assembler = UnwantedBody(record.content_length)
            if end_stream:
                stream.answer_stranger(refusal.http_status, refusal.code, refusal.message)
        else:
            stream.refuse(refusal.code, refusal.message, http_status=refusal.http_status)

    def _reopen(self, stream_id: int) -> None:
        """HEADERS on a stream that has left the table, or never was in it (server)."""
        if self._table.was_cut_short(stream_id):
            # Trailers that crossed our answer.
            self.on_overhead()
            return
        if any(stream_id in skipped for skipped in self._skipped):
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"client opened stream {stream_id} after {self.last_peer_stream_id}"
            )
        # RFC 9113, 5.1: the peer itself has ended this stream.
        raise ConnectionFault(ErrorCode.STREAM_CLOSED, f"HEADERS on closed stream {stream_id}")

    def _request_trailers(self, stream: Stream, record: Record | HeaderListTooLarge, end_stream: bool) -> None:
        """A second header block of a request (server): gRPC has no use for it, but it may end the stream."""
        if stream.remote_closed:
            self.on_stream_fault(stream.stream_id, ErrorCode.STREAM_CLOSED, "HEADERS after END_STREAM")
        elif not end_stream or not isinstance(record, RequestTrailers):
            self.on_stream_fault(stream.stream_id, ErrorCode.PROTOCOL_ERROR, "malformed trailers of a request")
        else:
            self._end_request(stream)

    def _response_headers(self, stream: Stream, record: Record | HeaderListTooLarge, end_stream: bool) -> None:
        """Response headers or trailers (client)."""
        if stream.remote_closed:
            self.on_overhead()
            return
        if isinstance(record, HeaderListTooLarge):
            self._fail(
                stream,
                StatusCode.RESOURCE_EXHAUSTED,
                f"response metadata of {record.size} bytes is over the limit of {record.limit} bytes "
                "(option max_header_list_size)",
                ErrorCode.CANCEL,
                end_stream,
            )
            return
        if not isinstance(record, ResponseHeaders):
            reason = record.reason if isinstance(record, Malformed) else "not a response"
            self._fail(
                stream,
                StatusCode.INTERNAL,
                f"malformed response headers: {reason}",
                ErrorCode.PROTOCOL_ERROR,
                end_stream,
            )
            return
        if record.http_status is None:
            if stream.head_record is None or stream.trailers_record is not None:
                self._fail(
                    stream,
                    StatusCode.INTERNAL,
                    "trailers out of place",
                    ErrorCode.PROTOCOL_ERROR,
                    end_stream,
                )
                return
            # Without END_STREAM they wait for it: a proxy may send that in an empty DATA frame.
            stream.trailers_record = record
            if end_stream:
                self._end_response(stream)
            return
        if record.http_status < 200:
            # 1xx: an interim answer (RFC 9113, 8.1).
            if end_stream:
                self._fail(
                    stream,
                    StatusCode.INTERNAL,
                    f"response ended with interim HTTP status {record.http_status}",
                    ErrorCode.PROTOCOL_ERROR,
                    end_stream,
                )
            self.on_overhead()
            return
        if stream.head_record is not None:
            self._fail(stream, StatusCode.INTERNAL, "second response headers", ErrorCode.PROTOCOL_ERROR, end_stream)
            return
        stream.peer_head(record)
        if not record.is_grpc:
            stream.assembler = ForeignBody()
        elif record.content_length is not None:
            stream.assembler = MeasuredAssembler(stream.assembler, record.content_length)
        if end_stream:
            self._end_response(stream)

    # -- DATA

    def on_data(self, stream_id: int, data: bytes, start: int, stop: int, flow_length: int, end_stream: bool) -> None:
        if flow_length:
            self._batch_bytes += flow_length
            if not self._incoming.receive(flow_length):
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the connection window")
        stream = self._streams.get(stream_id)
        if stream is None:
            self._check_not_idle(stream_id, "DATA")
            # It has left the table: the connection is credited. A client's fault (RFC 9113, 5.1) is answered; a server
            # is not reproached with what came late.
            if (
                self._is_server
                and flow_length
                and stream_id <= self.refuse_above
                and not self._table.was_cut_short(stream_id)
            ):
                self.on_stream_fault(stream_id, ErrorCode.STREAM_CLOSED, "DATA on a closed stream")
            self.on_overhead()
            return
        if stream.reset_code is not None:
            self.on_overhead()
            return
        if stream.remote_closed:
            self.on_stream_fault(stream_id, ErrorCode.STREAM_CLOSED, "DATA after END_STREAM")
            return
        if stream.cancelled is not None:
            self.on_overhead()
            return
        if not self._is_server and (stream.head_record is None or stream.trailers_record is not None):
            if start != stop or stream.trailers_record is None:
                self._fail(stream, StatusCode.INTERNAL, "DATA outside a response", ErrorCode.PROTOCOL_ERROR, end_stream)
                return
        elif start != stop or flow_length:
            try:
                messages = stream.peer_data(data, start, stop, flow_length)
            except MessageError as error:
                self._message_fault(stream, error, end_stream)
                return
            if messages != 0:
                if messages < 0:
                    self.on_stream_fault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the stream window")
                    return
                self.messages += messages
                self.last_message = self.last_read
        elif not end_stream:
            self.on_overhead()
        if end_stream:
            if self._is_server:
                self._end_request(stream)
            else:
                self._end_response(stream)

    def _message_fault(self, stream: Stream, error: MessageError, end_stream: bool) -> None:
        code, message = StatusCode.INTERNAL, str(error)
        if isinstance(error, MessageTooLarge):
            code = StatusCode.RESOURCE_EXHAUSTED
        elif self._is_server and isinstance(error, NotMessages):
            self._answer_stranger(stream)
            return
        elif self._is_server and isinstance(error, WrongLength):
            self.on_stream_fault(stream.stream_id, ErrorCode.PROTOCOL_ERROR, message)
            return
        elif isinstance(error, NotMessages):
            head = stream.head_record
            assert head is not None
            if head.grpc_status is None:
                code, message = _not_grpc(head, message)
            else:
                code, message = _STATUS_CODES[head.grpc_status], head.message
        if self._is_server:
            if end_stream:
                stream.close_remote()
            stream.refuse(code, message)
        else:
            self._fail(stream, code, message, ErrorCode.CANCEL, end_stream)

    # -- ends

    def _answer_stranger(self, stream: Stream) -> None:
        request = stream.request
        assert request is not None
        assert request.refusal is not None
        stream.answer_stranger(request.refusal.http_status, request.refusal.code, request.refusal.message)

    def _end_request(self, stream: Stream) -> None:
        assembler = stream.assembler
        if assembler.mid_message:
            if isinstance(assembler, (MeasuredAssembler, UnwantedBody)) and assembler.short:
                # RFC 9113, 8.1.1: a malformed request.
                self.on_stream_fault(stream.stream_id, ErrorCode.PROTOCOL_ERROR, f"request ended {assembler.place}")
                return
            stream.close_remote()
            stream.refuse(StatusCode.INTERNAL, f"request ended {assembler.place}")
            return
        stream.peer_end()
        if isinstance(assembler, UnwantedBody):
            self._answer_stranger(stream)

    def _end_response(self, stream: Stream) -> None:
        """END_STREAM of a response: its status is in the trailers, or in headers that are both (Trailers-Only)."""
        head = stream.head_record
        assert head is not None
        record = stream.trailers_record or head
        if record.grpc_status is not None:
            outcome = _outcome_of(record)
            if record.grpc_status == 0 and stream.assembler.mid_message:
                outcome = Outcome(StatusCode.INTERNAL, f"response ended {stream.assembler.place}")
        elif not head.is_grpc:
            code, message = _not_grpc(head)
            outcome = Outcome(code, message, fields=record.fields, received=True)
        else:
            message = "response ended without grpc-status"
            outcome = Outcome(StatusCode.UNKNOWN, message, fields=record.fields, received=True)
        stream.peer_end()
        stream.end(outcome)
        if not stream.local_closed:
            # PROTOCOL-HTTP2: the status stands, and what we still had to send is of no use to anyone.
            stream.reset(ErrorCode.NO_ERROR)

    def _fail(self, stream: Stream, code: StatusCode, message: str, error_code: int, end_stream: bool) -> None:
        """End one call for a fault found on this side (client)."""
        if end_stream:
            stream.close_remote()
        stream.end(Outcome(code, message))
        stream.discard_incoming()
        stream.reset(error_code, is_response=True)

    def on_reset(self, stream_id: int, error_code: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            self._check_not_idle(stream_id, "RST_STREAM")
            self.on_overhead()
            return
        # The peer has forgotten the stream: a reset of ours that is still queued has no reader.
        if stream.reset_is_response and not stream.reset_written:
            self._control_buffer.responses_written(1)
        stream.reset_written = True
        if self._is_server:
            answered = stream.responded or stream.end_stream
            stream.abandon(f"reset by peer with {error_name(error_code)}")
            if not answered and self.last_read - stream.request_time < _YOUNG:
                self._reset_prematurely(stream)
        else:
            stream.lose(
                Outcome(
                    rst_to_status(error_code),
                    f"stream reset by peer with {error_name(error_code)}",
                    unprocessed=error_code == ErrorCode.REFUSED_STREAM,
                    received=True,
                )
            )

    def on_stream_fault(self, stream_id: int, error_code: int, reason: str) -> None:
        self._check_not_idle(stream_id, reason)
        stream = self._streams.get(stream_id)
        _logger.debug("%s: stream %d: %s", self._peer, stream_id, reason)
        if stream is None:
            self._control_buffer.put(RefuseStream(stream_id, None, error_code))
            self._take_overhead(_COSTLY)
            return
        stream.reset(error_code, is_response=True)
        if self._is_server:
            stream.abandon(reason)
            # A peer that makes us reset its streams has them reset as cheaply (CVE-2025-8671).
            self._reset_prematurely(stream)
        else:
            stream.end(Outcome(StatusCode.INTERNAL, reason))

    def _check_not_idle(self, stream_id: int, what: str) -> None:
        """RFC 9113, 5.1: anything but HEADERS and PRIORITY on a stream that was never opened is a connection error."""
        if self._is_server:
            idle = stream_id > self.last_peer_stream_id and stream_id <= self.refuse_above
            idle = idle or not stream_id & 1
        else:
            idle = stream_id > self._last_opened() or not stream_id & 1
        if idle:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{what} on idle stream {stream_id}")

    # -- budgets

    def _reset_prematurely(self, stream: Stream) -> None:
        """A call ended for nothing (server): it cost the client two small frames and us the start of a handler."""
        if self._new_streams and stream in self._new_streams:
            # It was to be started after this read.
            self._new_streams.remove(stream)
        self._premature += 1
        self._resets.left -= 1
        if self._resets.left < 0 and not self._resets.refill(self.last_read, self._table.opened - self._premature):
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM,
                "too many calls were reset before they were answered (option max_premature_resets)",
            )

    def on_overhead(self) -> None:
        self._take_overhead(1)

    def _take_overhead(self, cost: int) -> None:
        """A frame that carries nothing. Rare among those that do; without those, a flood (RFC 9113, 10.5)."""
        self._overhead.left -= cost
        if self._overhead.left < 0:
            progress = (
                self._table.opened * _OVERHEAD_PER_CALL
                + self._incoming.received // _BYTES_PER_OVERHEAD
                + self._outgoing.spent
            )
            if not self._overhead.refill(self.last_read, progress):
                raise ConnectionFault(
                    ErrorCode.ENHANCE_YOUR_CALM, "too many frames that carry nothing (option max_overhead_frames)"
                )

    # -- the connection

    def on_block_begun(self) -> None:
        self._block_deadline = self.last_read + _BLOCK_TIMEOUT

    def on_window_update(self, stream_id: int, increment: int) -> None:
        self._take_overhead(1)
        if not stream_id:
            windows = self._outgoing
            windows.connection += increment
            windows.granted += increment
            if windows.connection > MAX_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "connection window over 2**31-1")
            if windows.starved:
                windows.starved = False
                self._control_buffer.put(WindowOpened())
            return
        stream = self._streams.get(stream_id)
        if stream is None:
            self._check_not_idle(stream_id, "WINDOW_UPDATE")
            return
        if stream.window + increment > MAX_WINDOW:
            self.on_stream_fault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "stream window over 2**31-1")
            return
        stream.window += increment
        if stream.pending_bytes and not stream.active and not stream.queued:
            stream.announce()

    def on_goaway(self, last_stream_id: int, error_code: int, debug_data: bytes) -> None:
        self._take_overhead(_COSTLY)
        self._on_goaway(last_stream_id, error_code, debug_data)

    def on_settings(
        self, settings: ApplySettings, max_concurrent_streams: int | None, max_header_list_size: int | None
    ) -> None:
        self._take_overhead(_COSTLY)
        if max_header_list_size is not None:
            self._table.peer_header_list_limit = max_header_list_size
        if settings.initial_window_size is not None:
            # RFC 9113, 6.9.2. The writer, which will apply the change, cannot end the connection.
            room = MAX_WINDOW - (settings.initial_window_size - self._outgoing.initial)
            if room < MAX_WINDOW and any(stream.window > room for stream in self._streams.values()):
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS raise a stream window over 2**31-1")
        self._control_buffer.put(settings)
        if not self._is_server:
            if max_concurrent_streams is not None:
                self._table.set_limit(max_concurrent_streams)
            elif not self._settings_seen:
                self._table.set_limit(UNLIMITED_STREAMS)
        self._settings_seen = True
        self._on_settings()

    def on_settings_acknowledged(self) -> None:
        self._take_overhead(_COSTLY)
        # From now on the peer counts by our window, not by RFC 9113's.
        self._incoming.tolerance = 0

    def on_ping(self, reply: bytes) -> None:
        self._take_overhead(_COSTLY)
        self._control_buffer.put(RawFrame(reply, is_response=True))
        if self._on_ping is not None:
            self._on_ping(self.last_read)

    def on_ping_acknowledged(self, payload: bytes) -> None:
        self._take_overhead(_COSTLY)
        if payload != BANDWIDTH_PING:
            self._on_pong(payload)
            return
        estimator = self._incoming.estimator
        if estimator is not None:
            window = estimator.acknowledge(self.last_read)
            if window is not None:
                self._incoming.grow(window)


#: How nearly every call ends.
_OK = Outcome(StatusCode.OK, received=True)


def _outcome_of(record: ResponseHeaders) -> Outcome:
    """The outcome that a record with a ``grpc-status`` tells."""
    assert record.grpc_status is not None
    if not (record.grpc_status or record.message or record.status_details or record.fields):
        return _OK
    code = _STATUS_CODES[record.grpc_status]
    return Outcome(code, record.message, record.status_details, record.fields, received=True)


def _not_grpc(head: ResponseHeaders, body: str = "") -> tuple[StatusCode, str]:
    """Status and text for an answer that is not gRPC (gRPC: http-grpc-status-mapping)."""
    assert head.http_status is not None
    return (
        http_to_status(head.http_status),
        f"peer answered with HTTP status {head.http_status} and content-type {head.content_type!r}"
        + (f": {body}" if body else ""),
    )
