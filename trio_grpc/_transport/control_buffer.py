"""The control buffer: everything a connection is going to write, in one unbounded trio memory channel.

Callers never touch the socket. They queue *control frames*: bytes to write as they are, a change for the writer's
books, or an `OutgoingStream` itself, which is the news "this stream has something to write". A stream is queued at most
once at a time (``queued``), so a producer that sends a thousand small messages while the writer sleeps costs one place
in the channel, and the writer may put them into one DATA frame.

Law: every control frame is written or orphaned, exactly once. `ControlBuffer.put` never raises: once the buffer is
closed it orphans.

The throttle (grpc-go's answer to reply floods) counts *transport response frames*: frames that the peer caused. Each
counts until the writer has really handed it to the byte stream, and the reader waits before its next read while there
are too many of them. Our own WINDOW_UPDATEs do not count: grpc-go #9251 shows what counting them costs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from time import time

import attrs
import trio
from trio.lowlevel import Abort, RaiseCancelT, Task, current_task, wait_task_rescheduled

from trio_grpc._transport.header_codec import Field, HeaderTemplate
from trio_grpc._transport.waking import wake

#: Replies queued and not yet taken by the socket at which the reader pauses; grpc-go and grpc-java use 100.
THROTTLE_LIMIT = 100
#: Bytes that one stream may have queued before its producer waits; grpc-go's default write quota.
WRITE_QUOTA = 65_536

_NO_FIELDS: tuple[Field, ...] = ()


class ControlFrame:
    """One item of the control buffer.

    Attributes:
        is_response: the peer caused this frame, so it counts for the throttle.
    """

    __slots__ = ()
    is_response = False

    def orphan(self) -> None:
        """Called instead of writing when the connection ended first."""


@attrs.define(slots=True, eq=False)
class RawFrame(ControlFrame):
    """Bytes to write as they are, ahead of any stream's data."""

    data: bytes
    is_response: bool = False


@attrs.define(slots=True, eq=False)
class ApplySettings(ControlFrame):
    """The peer's new settings together with their ACK: the writer applies them as it writes the ACK (RFC 9113, 6.5.3).

    A field is None where the peer's frame did not name that setting.
    """

    ack: bytes
    header_table_size: int | None = None
    initial_window_size: int | None = None
    max_frame_size: int | None = None
    is_response = True


@attrs.define(slots=True, eq=False)
class RefuseStream(ControlFrame):
    """An answer to a request for which no stream was made: header fields that end the stream, a reset, or both."""

    stream_id: int
    fields: tuple[Field, ...] | None
    error_code: int | None
    is_response = True


class WindowOpened(ControlFrame):
    """News that the connection window is open again."""

    __slots__ = ()


@attrs.define(slots=True, eq=False)
class Farewell(ControlFrame):
    """The last thing a connection writes; the writer returns once these bytes are out."""

    data: bytes


class OutgoingStream(ControlFrame):
    """The writer's half of a stream: what it has yet to write, and its books.

    Producers fill it in and queue it; only the writer takes things out. Attributes are open because the two sit in
    different rooms, not because anyone else may use them.

    Attributes:
        stream_id: 0 until the writer takes one (client); the peer's choice (server).
        head, head_literals: initial header block still to be written, None when written or not yet known.
        chunks, pending_bytes: message bytes, prefixes included, still to be written.
        tail, tail_literals: trailers to write after the chunks (server).
        end_stream: END_STREAM goes out with the last chunk (client), or with the trailers.
        reset_code: RST_STREAM with this code goes out instead of whatever is still here.
        reset_is_response: the peer caused that reset, so it counts for the throttle.
        reset_written: that reset is out, or has no reader any more.
        remote_closed: the peer has finished. Where it has not, RST_STREAM(NO_ERROR) follows trailers (RFC 9113, 8.1).
        window: credit left for this stream, negative after a cut of the peer's initial window.
        queued: it is in the channel now. active: it is in the writer's round now.
        local_closed: its last frame is written or orphaned.
        control_buffer: where it queues itself.
    """

    __slots__ = (
        "_quota_task",
        "active",
        "chunks",
        "control_buffer",
        "end_stream",
        "head",
        "head_literals",
        "local_closed",
        "pending_bytes",
        "queued",
        "remote_closed",
        "reset_code",
        "reset_is_response",
        "reset_written",
        "stream_id",
        "tail",
        "tail_literals",
        "window",
    )

    def __init__(self, control_buffer: ControlBuffer, stream_id: int, window: int) -> None:
        self.control_buffer: ControlBuffer = control_buffer
        self.stream_id: int = stream_id
        self.window: int = window
        self.head: HeaderTemplate | None = None
        self.head_literals: Sequence[Field] = _NO_FIELDS
        self.chunks: deque[bytes | bytearray | memoryview] = deque()
        self.pending_bytes: int = 0
        self.tail: HeaderTemplate | None = None
        self.tail_literals: Sequence[Field] = _NO_FIELDS
        self.end_stream: bool = False
        self.reset_code: int | None = None
        self.reset_is_response: bool = False
        self.reset_written: bool = False
        self.remote_closed: bool = False
        self.queued: bool = False
        self.active: bool = False
        self.local_closed: bool = False
        self._quota_task: Task | None = None

    # -- producer's side

    def announce(self) -> None:
        """Queue the news that there is something to write, unless it is queued already."""
        if not self.queued:
            self.queued = True
            self.control_buffer.put(self)

    async def wait_write_quota(self) -> None:
        """Wait until this stream may queue more bytes, or can never write again.

        Raises:
            trio.BusyResourceError: another task is waiting to send on this stream.
        """
        while self.pending_bytes >= WRITE_QUOTA and not self.local_closed and self.reset_code is None:
            if self._quota_task is not None:
                raise trio.BusyResourceError("another task is already sending on this call")
            self._quota_task = current_task()
            await wait_task_rescheduled(self._abort_quota_wait)

    def _abort_quota_wait(self, _: RaiseCancelT) -> Abort:
        self._quota_task = None
        return Abort.SUCCEEDED

    # -- writer's side

    def wake_producer(self) -> None:
        """Let a producer that waits for quota look again."""
        if self._quota_task is not None:
            task, self._quota_task = self._quota_task, None
            wake(task)

    def drop_chunks(self) -> None:
        """Free what will not be written."""
        self.chunks.clear()
        self.pending_bytes = 0
        self.wake_producer()

    def take_stream_id(self, stream_id: int, window: int) -> float:
        """Enter the connection's table: called by the writer in one step with encoding the initial header block.

        Returns:
            When that was, in seconds since the epoch.
        """
        self.stream_id = stream_id
        self.window = window
        return time()

    def close_local(self) -> None:
        """Called by the writer with the last frame of this side, and by `orphan`."""
        self.local_closed = True
        self.drop_chunks()

    def close_reset(self) -> None:
        """Called by the writer when the last frame of this side is a reset."""
        self.close_local()

    def orphan(self) -> None:
        """The connection will never write what is left here."""
        self.queued = False
        self.close_local()


class ControlBuffer:
    """The channel, its throttle counter, and its end.

    Args:
        throttle_limit: replies not yet written at which the reader waits.

    Attributes:
        closed: nothing is taken any more; what is put is orphaned.
        close_reason: why the connection ended, for those who are orphaned.
        write_alone: takes a stream in place of `put`, and writes it at once; None unless the writer is idle: it sleeps,
            and there is nothing that it has yet to write.
        hindered: the writer stands in a write, or waits for credit of the connection.
        messages: those that streams have queued so far.
    """

    __slots__ = (
        "_limit",
        "_receive_frames",
        "_responses",
        "_send_frames",
        "_throttled",
        "close_reason",
        "closed",
        "hindered",
        "messages",
        "write_alone",
    )

    def __init__(self, throttle_limit: int = THROTTLE_LIMIT) -> None:
        send_frames, receive_frames = trio.open_memory_channel[ControlFrame](float("inf"))
        self._send_frames = send_frames
        self._receive_frames = receive_frames
        self._limit = throttle_limit
        self._responses = 0
        self._throttled: Task | None = None
        self.closed: bool = False
        self.close_reason: BaseException | None = None
        self.write_alone: Callable[[OutgoingStream], None] | None = None
        self.hindered: bool = False
        self.messages: int = 0

    @property
    def pending_responses(self) -> int:
        """Transport response frames queued or in the batch in hand."""
        return self._responses

    @property
    def pending_frames(self) -> int:
        """Control frames in the channel; none once it is closed."""
        return self._receive_frames.statistics().current_buffer_used

    def put(self, control_frame: ControlFrame) -> None:
        """Queue a control frame, or orphan it when the buffer is closed. Never raises, never blocks."""
        if self.closed:
            control_frame.orphan()
            return
        if control_frame.is_response:
            self._responses += 1
        self.write_alone = None
        self._send_frames.send_nowait(control_frame)

    def count_response(self) -> None:
        """Count a reply that travels inside a stream (a reset that the peer caused)."""
        self._responses += 1

    def responses_written(self, count: int) -> None:
        """The byte stream has taken ``count`` response frames.

        Acts on the count as it is now, not on the crossing of the limit, so the reader cannot be left parked.
        """
        if self.closed:
            # Nothing is counted any more: `close` may have come while the writer wrote.
            return
        self._responses -= count
        if self._responses < self._limit:
            self._wake_reader()

    async def receive(self, write_alone: Callable[[OutgoingStream], None] | None = None) -> ControlFrame:
        """Wait for the next control frame (the writer only).

        Args:
            write_alone: what may be called meanwhile, by whoever has something to write; see the attribute. The channel
                must be empty.
        """
        self.write_alone = write_alone
        try:
            return await self._receive_frames.receive()
        finally:
            self.write_alone = None

    def receive_nowait(self) -> ControlFrame:
        """Return the next control frame or raise `trio.WouldBlock` (the writer only)."""
        return self._receive_frames.receive_nowait()

    async def throttle(self) -> None:
        """Wait while too many replies are still unwritten (the reader only, before each read)."""
        while self._responses >= self._limit and not self.closed:
            self._throttled = current_task()
            await wait_task_rescheduled(self._abort_throttle)

    def _abort_throttle(self, _: RaiseCancelT) -> Abort:
        self._throttled = None
        return Abort.SUCCEEDED

    def _wake_reader(self) -> None:
        if self._throttled is not None:
            task, self._throttled = self._throttled, None
            wake(task)

    def close(self, reason: BaseException | None = None) -> None:
        """Take no more frames and orphan those in the channel. Synchronous, so safe in a cancelled scope."""
        if self.closed:
            return
        self.closed = True
        self.close_reason = reason
        self.write_alone = None
        # The receiving end stays open until it is empty: closing it first would drop items without a word.
        while True:
            try:
                control_frame = self._receive_frames.receive_nowait()
            except trio.WouldBlock:
                break
            control_frame.orphan()
        self._send_frames.close()
        self._receive_frames.close()
        self._responses = 0
        self._wake_reader()
