"""One HTTP/2 stream as one RPC on the wire: message bytes in and out, and how it ended.

Both sides of a connection use this class. It holds a control buffer and a table, never a connection. The reader feeds
the incoming half (methods ``peer_*``), the loopy writer empties the outgoing half (`OutgoingStream`), and one RPC's own
tasks do the rest. It knows bytes, header records and status, no protobuf and no user code.

    idle --head written/received--> open --local_closed / remote_closed--> half closed --both--> out of the table
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter, time
from typing import Protocol

import attrs
import trio
from trio.lowlevel import (
    Abort,
    RaiseCancelT,
    Task,
    checkpoint,
    checkpoint_if_cancelled,
    current_task,
    wait_task_rescheduled,
)

from trio_grpc._status import StatusCode
from trio_grpc._tls_info import TlsInfo
from trio_grpc._transport import frames
from trio_grpc._transport.allocator import LARGE_MESSAGE, settle_allocator
from trio_grpc._transport.control_buffer import WRITE_QUOTA, ControlBuffer, OutgoingStream, RawFrame
from trio_grpc._transport.flow_control import IncomingWindows
from trio_grpc._transport.frames import ErrorCode
from trio_grpc._transport.header_codec import NO_TEMPLATE, Field, HeaderTemplate
from trio_grpc._transport.headers import RequestHeaders, ResponseHeaders, trailer_fields, trailers_only_fields
from trio_grpc._transport.messages import (
    PREFIX_LENGTH,
    Message,
    MessageAssembler,
    NoMoreMessages,
    TooManyMessages,
    prefix,
)
from trio_grpc._transport.stream_table import StreamTable
from trio_grpc._transport.waking import wake

#: A message at least this long is queued behind its prefix without copying the two together.
_SCATTER_LENGTH = 8192
#: What the streams of one connection may be granted together beyond their initial windows.
_WINDOW_BUDGET = 32 * 2**20
#: Operations, and seconds of real time, after which a task that never had to wait yields to the scheduler. A unary call
#: beside a 100 B firehose has a p50 of 770 µs at 64, 465 at 32, 292 at 16; the firehose itself loses 5 %.
_TURN_OPERATIONS = 16
_TURN_SECONDS = 0.001
#: Calls in flight on a connection up to which each is written by itself when the writer is idle. CPU of a unary call on
#: the client with 4 as against 1: two at once -20 %, four at once -20 %. With 8 or 16 as against 4: eight at once -22 %
#: to +3 %, sixteen +10 to +12 %, thirty-two +4 %: there batches are better.
_FEW_STREAMS = 4

#: An attribute of an enum is dear to look up.
_OK = StatusCode.OK


@attrs.frozen(slots=True)
class Outcome:
    """How a stream ended, as the client sees it.

    Attributes:
        code, message, details: the status; ``details`` are the raw bytes of ``grpc-status-details-bin``.
        fields: trailing metadata as it came.
        cause: the local exception behind it, if there is one.
        unprocessed: the server has certainly not run this call, so it may be tried again elsewhere.
        closed_locally: the application closed the call or its channel.
        received: the server has ended the call, by a status or a reset.
    """

    code: StatusCode
    message: str = ""
    details: bytes = b""
    fields: tuple[Field, ...] = ()
    cause: BaseException | None = None
    unprocessed: bool = False
    closed_locally: bool = False
    received: bool = False


class Answer(Protocol):
    """Where a client's call has its answer from: a stream, or what stands for one."""

    @property
    def outcome(self) -> Outcome | None:
        """How it ended, None while it lives."""

    @property
    def head_record(self) -> ResponseHeaders | None:
        """The response headers, None until they came."""

    @property
    def peer(self) -> str:
        """The peer's address."""

    @property
    def tls(self) -> TlsInfo | None:
        """What TLS knows of the peer, None in plaintext."""


class Stream(OutgoingStream):
    """A stream of either side, of a call of any kind.

    One class for all of them: where two classes pass through the same code, CPython does not specialise it, and a
    message of a ping-pong took 9 % more instructions.

    Attributes:
        peer: the peer's address.
        assembler: cuts the DATA payloads into messages.
        receive_window: credit that the peer has left on this stream, in bytes.
        unconsumed: bytes of messages and prefixes that came and that no receiver has taken.
        left_table: the last frame of both sides is written, received or orphaned.
        request: the request headers (server).
        request_time: when they came, in trio's time (server): deadlines count from here.
        responded: response headers have been queued (server).
        head_record: the response headers (client), None until they came.
        message_compressed: the message parsed last carried the compressed flag.
        single_reply: the method has one response (client): a second is a fault, and only the end is waited for.
        trailers_record: trailers that came without END_STREAM and wait for it (client).
        outcome: how it ended (client), None while it lives.
        cancelled: why the peer or the connection ended it early (server).
        on_head: called when the response headers have come (client).
        observer: set in an `ObservedStream` alone; told what is queued.
        on_outcome: called once with ``outcome`` when that is set (client).
        on_ended: called once when ``outcome`` (client) or ``cancelled`` (server: the handler's scope) is set.
        remote_closed: the peer has sent its last frame.
    """

    __slots__ = (
        "_answers",
        "_ended_event",
        "_head_event",
        "_operations",
        "_receiver",
        "_receiver_cancels",
        "_table",
        "_turn_ends",
        "_windows",
        "assembler",
        "cancelled",
        "head_record",
        "left_table",
        "message_compressed",
        "observer",
        "on_ended",
        "on_head",
        "on_outcome",
        "outcome",
        "peer",
        "receive_window",
        "request",
        "request_time",
        "responded",
        "single_reply",
        "trailers_record",
        "unconsumed",
    )

    def __init__(
        self,
        control_buffer: ControlBuffer,
        table: StreamTable[Stream],
        windows: IncomingWindows,
        *,
        stream_id: int,
        send_window: int,
        message_limit: int,
        peer: str,
    ) -> None:
        super().__init__(control_buffer, stream_id, send_window)
        self._table = table
        self._windows = windows
        self.peer: str = peer
        self.assembler: MessageAssembler = MessageAssembler(message_limit)
        self.receive_window: int = windows.stream_window
        self.unconsumed: int = 0
        self.request: RequestHeaders | None = None
        self.request_time: float = 0.0
        self.head_record: ResponseHeaders | None = None
        self.trailers_record: ResponseHeaders | None = None
        self.responded: bool = False
        self.single_reply: bool = False
        self.outcome: Outcome | None = None
        self.cancelled: str | None = None
        self.on_ended: Callable[[], None] | None = None
        self.on_head: Callable[[], None] | None = None
        self.on_outcome: Callable[[Outcome], None] | None = None
        self.observer: SendObserver  # not set: see `ObservedStream`
        self.left_table: bool = False
        self.message_compressed: bool = False
        self._receiver: Task | None = None
        self._receiver_cancels = False
        self._head_event: trio.Event | None = None
        self._ended_event: trio.Event | None = None
        self._answers = True
        self._operations = _TURN_OPERATIONS
        self._turn_ends = 0.0

    # -- in the table, and out of it

    def take_stream_id(self, stream_id: int, window: int) -> float:
        # All that `OutgoingStream` does, without asking it: each call of a client comes here.
        self.stream_id = stream_id
        self.window = window
        self._table.last_opened = now = time()
        return now

    def close_local(self) -> None:
        super().close_local()
        if not self.remote_closed and (self.tail is not None or self.reset_code is not None):
            # Trailers or a reset end both directions: what still comes is credited to the connection and dropped.
            self.remote_closed = True
            self._remember_cut()
        if self.remote_closed:
            self._leave()
        if self.reset_code is None and self.outcome is None and self.request is None and self.head is not None:
            # Queued and never written: the caller may try again elsewhere.
            reason = self.control_buffer.close_reason or self._table.refusal
            self.end(
                Outcome(
                    StatusCode.UNAVAILABLE,
                    "connection closed before the call left it",
                    cause=reason,
                    unprocessed=True,
                    closed_locally=isinstance(reason, trio.ClosedResourceError),
                )
            )

    def _remember_cut(self) -> None:
        """This side ends the stream before its peer has. Only servers hold it against a peer that goes on by itself."""
        if self.request is not None:
            self._table.cut_short(self.stream_id)

    def close_remote(self) -> None:
        """The peer has sent its last frame on this stream."""
        self.remote_closed: bool = True
        if self.local_closed:
            self._leave()

    def _leave(self) -> None:
        if not self.left_table:
            self.left_table = True
            self._table.leave(self.stream_id)
            if self._ended_event is not None:
                self._ended_event.set()

    @property
    def peer_header_list_limit(self) -> float:
        """Bytes of a header list that the peer accepts, inf where it has not said."""
        return self._table.peer_header_list_limit

    @property
    def tls(self) -> TlsInfo | None:
        """What TLS knows of the peer, None in plaintext."""
        return self._table.tls

    @property
    def peer_encoding(self) -> str:
        """The ``grpc-encoding`` of the peer's messages, ``identity`` before its headers came."""
        headers = self.request if self.request is not None else self.head_record
        return "identity" if headers is None else headers.encoding

    async def wait_left_table(self) -> None:
        """Wait until the last frame of both sides is written, received or orphaned."""
        if not self.left_table:
            if self._ended_event is None:
                self._ended_event = trio.Event()
            await self._ended_event.wait()

    # -- sending

    async def take_turn(self) -> None:
        """Look for cancellation; yield to the scheduler after `_TURN_OPERATIONS` or `_TURN_SECONDS`, not at each."""
        self._operations -= 1
        if self._operations < 0 or perf_counter() > self._turn_ends:
            await checkpoint()
            self.start_turn()
        else:
            await checkpoint_if_cancelled()

    def start_turn(self) -> None:
        """The task has just waited for something: its next operations need not yield."""
        self._operations = _TURN_OPERATIONS
        self._turn_ends = perf_counter() + _TURN_SECONDS

    def announce_alone(self) -> None:
        """`announce` where the task has nothing more to write before it waits for something.

        An idle writer is not woken then; its one step is made here, and saves a round through the scheduler. Where
        other calls are about, they wake it soon, and all leave in one write.
        """
        if not self.queued:
            write_alone = self.control_buffer.write_alone
            if write_alone is not None and self._table.slots_used <= _FEW_STREAMS:
                write_alone(self)
            else:
                self.queued = True
                self.control_buffer.put(self)

    def queue_message(self, data: bytes, compressed: bool = False) -> None:
        """Queue a message behind its prefix. Not cancellable any more; the caller has looked at the write quota."""
        length = len(data)
        if length < _SCATTER_LENGTH:
            self.chunks.append(prefix(length, compressed) + data)
        else:
            if length >= LARGE_MESSAGE:
                settle_allocator()
            self.chunks.append(prefix(length, compressed))
            self.chunks.append(data)
        self.pending_bytes += PREFIX_LENGTH + length
        self.control_buffer.messages += 1

    async def send_message(self, data: bytes, compressed: bool = False) -> bool:
        """Wait for write quota and queue a message; False when the stream can take no more.

        Raises:
            trio.BusyResourceError: another task is waiting to send on this stream.
        """
        if self.pending_bytes >= WRITE_QUOTA:
            await self.wait_write_quota()
            self.start_turn()
        else:
            await self.take_turn()
        if self.local_closed or self.end_stream or self.reset_code is not None:
            # What ended the stream may have cancelled the sender too, and then that is what it is told.
            await checkpoint_if_cancelled()
            return False
        self.queue_message(data, compressed)
        if self._answers:
            # Mostly the only one before the task waits again.
            self._answers = False
            self.announce_alone()
        elif not self.queued:
            self.queued = True
            self.control_buffer.put(self)
        return True

    def done_sending(self) -> None:
        """Half-close (client): END_STREAM follows what is queued."""
        if not self.end_stream:
            self.end_stream = True
            self.announce()

    def finish(self, tail: HeaderTemplate, literals: Sequence[Field] = (), *, alone: bool = False) -> None:
        """Queue trailers (server) behind the data.

        Args:
            tail: the trailers that recur.
            literals: those of this RPC only.
            alone: see `announce_alone`; not for the reader, which may hold a reset of the same stream in its hands.
        """
        if not self.end_stream:
            self.tail = tail
            self.tail_literals = literals
            self.end_stream = True
            if alone:
                self.announce_alone()
            else:
                self.announce()

    def fail(self, fields: Sequence[Field], *, alone: bool = False) -> None:
        """Queue trailers with another status than OK (server), see `finish`."""
        if not self.end_stream and self.cancelled is None:
            self._count_failure()
        self.finish(NO_TEMPLATE, fields, alone=alone)

    def reset(self, error_code: int, *, is_response: bool = False) -> None:
        """Queue RST_STREAM in place of everything still queued; nothing where the stream has ended already."""
        if self.left_table or self.reset_code is not None:
            return
        self.reset_code = error_code
        if not self.remote_closed:
            self._remember_cut()
        if is_response and not self.control_buffer.closed:
            self.reset_is_response = True
            self.control_buffer.count_response()
        self.wake_producer()
        self.announce()

    # -- receiving

    async def receive(self) -> Message | None:
        """Return the next message, or None when no more will come.

        Raises:
            trio.BusyResourceError: another task is already receiving.
        """
        if self.assembler.messages:
            await self.take_turn()
        while not self.assembler.messages:
            if self.remote_closed or self.outcome is not None or self.cancelled is not None:
                await self.take_turn()
                return None
            await self._wait_receivable()
            self._answers = True
            self.start_turn()
        return self.take_message()

    def take_message(self) -> Message:
        """Take a message that is waiting, and give its credit back."""
        message = self.assembler.messages.popleft()
        self.unconsumed -= PREFIX_LENGTH + len(message)
        if not self.remote_closed:
            self._top_up()
        return message

    def take_no_more(self) -> None:
        """The only request of a method has been taken: another one ends the RPC whenever it comes (server).

        Raises:
            TooManyMessages: it has begun already.
        """
        self.assembler = NoMoreMessages(self.assembler)

    async def wait_outcome(self, *, cancels: bool = False) -> None:
        """Wait for the end of a call.

        Args:
            cancels: a caller that is cancelled while it waits resets the stream.

        Raises:
            trio.BusyResourceError: another task is already receiving.
        """
        while self.outcome is None:
            await self._wait_receivable(cancels)

    async def _wait_receivable(self, cancels: bool = False) -> None:
        if self._receiver is not None:
            raise trio.BusyResourceError("another task is already receiving on this call")
        self._receiver = current_task()
        self._receiver_cancels = cancels
        if not self.remote_closed:
            self._top_up()
        await wait_task_rescheduled(self._abort_receive)

    def _abort_receive(self, _: RaiseCancelT) -> Abort:
        self._receiver = None
        if self._receiver_cancels:
            self.cancel("call cancelled by its caller")
        return Abort.SUCCEEDED

    def _wake_receiver(self) -> None:
        task = self._receiver
        if task is not None:
            self._receiver = None
            self._windows.wakeups += 1
            wake(task)

    def _top_up(self) -> None:
        """Give stream credit back, in portions of at least a quarter window.

        A waiting receiver consumes whatever comes, so its stream is topped up to the bandwidth-delay product, and at
        least to the rest of the message it waits for: otherwise a message over the window would never complete.
        """
        windows = self._windows
        if self._receiver is None:
            target = windows.stream_window
            credit = target - self.unconsumed - self.receive_window
        else:
            target = windows.stream_target
            if target > windows.stream_window:
                target = max(windows.stream_window, min(target, _WINDOW_BUDGET // (len(self._table.streams) or 1)))
            missing = self.assembler.missing
            target = max(target, missing)
            credit = target - self.receive_window
        if credit > 0 and credit * 4 >= target and self.stream_id and self.reset_code is None:
            self.receive_window += credit
            self.control_buffer.put(RawFrame(frames.window_update(self.stream_id, credit)))

    def discard_incoming(self) -> None:
        """Free messages that nobody will take."""
        self.assembler.discard()
        self.unconsumed = 0

    # -- what the reader reports

    def peer_data(self, data: bytes, start: int, stop: int, flow_length: int) -> int:
        """DATA arrived: return how many messages became whole with it, -1 when the peer had no credit for it.

        Raises:
            MessageError: a prefix that ends the call.
        """
        if flow_length:
            self.receive_window -= flow_length
            if self.receive_window + self._windows.tolerance < 0:
                return -1
        self.unconsumed += stop - start
        complete = self.assembler.feed(data, start, stop)
        awaited = complete
        if complete and self.single_reply:
            # Its messages are taken at the end only, so a second one would never be stopped by the window.
            if len(self.assembler.messages) > 1:
                raise TooManyMessages
            awaited = 0
        if self._receiver is not None:
            if awaited:
                self._wake_receiver()
            elif self.receive_window * 2 < self._windows.stream_target + self.assembler.missing:
                self._top_up()
        return complete

    def peer_head(self, record: ResponseHeaders) -> None:
        """Response headers arrived (client)."""
        self.head_record = record
        if self._head_event is not None:
            self._head_event.set()
        if self.on_head is not None:
            self.on_head()

    def peer_end(self) -> None:
        """END_STREAM arrived."""
        self.close_remote()
        if self.request is not None:
            self._wake_receiver()

    async def wait_head(self) -> None:
        """Wait until response headers came or the stream ended (client)."""
        if self.head_record is None and self.outcome is None:
            if self._head_event is None:
                self._head_event = trio.Event()
            await self._head_event.wait()
        else:
            await checkpoint()

    # -- ends

    def end(self, outcome: Outcome) -> None:
        """The call has its status (client). The first outcome wins."""
        if self.outcome is not None:
            return
        self.outcome = outcome
        if outcome.code is _OK:
            self._table.calls.succeeded += 1
        else:
            self._count_failure()
        if self.on_outcome is not None:
            self.on_outcome(outcome)
        if self.on_ended is not None:
            self.on_ended()
        if self._head_event is not None:
            self._head_event.set()
        self._wake_receiver()
        self.wake_producer()

    def _count_failure(self) -> None:
        self._table.calls.failed += 1

    def lose(self, outcome: Outcome) -> None:
        """Nothing more will come (client): the server has reset the stream or never saw it, or has gone."""
        self._count_failed_stream()
        self.close_remote()
        if not self.local_closed:
            self.close_local()
        self.end(outcome)

    def close_reset(self) -> None:
        self._count_failed_stream()
        super().close_reset()

    def _count_failed_stream(self) -> None:
        """What the server sends ends here. Only where it has ended that itself is it a success (gRFC A14)."""
        if self.stream_id and not (self.remote_closed if self.request is None else self.local_closed):
            self._table.failed += 1

    def cancel(self, reason: str, error_code: int = ErrorCode.CANCEL) -> None:
        """The application gives the call up (client)."""
        if self.outcome is None:
            self.end(Outcome(StatusCode.CANCELLED, reason, closed_locally=True))
        self.discard_incoming()
        self.reset(error_code)

    def answer_stranger(self, http_status: int, code: StatusCode, message: str) -> None:
        """Answer a request that is not gRPC (server), in a way that its client can show to a human."""
        if not self.end_stream:
            self.responded = True
            self.head = NO_TEMPLATE
            self.head_literals = (
                (b":status", b"%d" % http_status),
                (b"content-type", b"text/plain; charset=utf-8"),
                *trailer_fields(code, message),
            )
            body = f"{message}\n".encode()
            self.chunks.append(body)
            self.pending_bytes += len(body)
            self.fail(trailer_fields(code, message))
        self._cancel_handler(message)

    def refuse(
        self, code: StatusCode, message: str, *, http_status: int = 200, accept_encoding: str | None = None
    ) -> None:
        """End the RPC with a status that no handler has chosen (server), and cancel its handler.

        Args:
            code: the status code.
            message: the status message.
            http_status: the ``:status`` where no response headers have gone out yet.
            accept_encoding: the ``grpc-accept-encoding`` that goes with the refusal of an encoding.
        """
        if not self.end_stream:
            if self.responded:
                self.fail(trailer_fields(code, message))
            else:
                assert self.request is not None
                fields = trailers_only_fields(
                    code,
                    message,
                    http_status=http_status,
                    accept_encoding=accept_encoding,
                    content_type=self.request.content_type,
                )
                self.fail(fields)
        self._cancel_handler(message)

    def abandon(self, reason: str) -> None:
        """The peer reset the stream or the connection is gone (server): nothing more is written, the handler ends."""
        self._count_failed_stream()
        if not self.end_stream:
            self._count_failure()
        self.close_remote()
        if not self.local_closed:
            self.close_local()
        self._cancel_handler(reason)

    def _cancel_handler(self, reason: str) -> None:
        self.discard_incoming()
        if self.cancelled is None:
            self.cancelled = reason
            self._wake_receiver()
            self.wake_producer()
            if self.on_ended is not None:
                self.on_ended()

    def orphan(self) -> None:
        """The connection will never write what is left of this stream."""
        if self.left_table:
            self.queued = False
            return
        self.remote_closed = True
        super().orphan()


class SendObserver(Protocol):
    """Wants to know what a stream sends."""

    def message_queued(self, size: int, compressed: bool) -> None: ...


class ObservedStream(Stream):
    """A stream whose messages somebody counts.

    A stream becomes one after it was made. Others know nothing of it: to ask each of them whether it is observed would
    cost all calls something, and the classes of both being in use costs only the programs that observe calls.
    """

    __slots__ = ()

    def queue_message(self, data: bytes, compressed: bool = False) -> None:
        self.observer.message_queued(len(data), compressed)
        super().queue_message(data, compressed)


class BackgroundStream(Stream):
    """A stream that the channel keeps for itself, in a slot from `StreamTable.acquire_background` (client)."""

    __slots__ = ()

    def take_stream_id(self, stream_id: int, window: int) -> float:
        last_opened = self._table.last_opened
        self._table.last_background = now = super().take_stream_id(stream_id, window)
        self._table.last_opened = last_opened
        return now

    def _count_failure(self) -> None:
        """No call has failed."""

    def _leave(self) -> None:
        if not self.left_table:
            self._table.background -= 1
        super()._leave()
