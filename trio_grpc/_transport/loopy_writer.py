"""The loopy writer: the only task that writes to a byte stream (grpc-go's name and idea).

It sleeps until the control buffer has one frame, takes all that are there without waiting (one batch), and writes them
round-robin: each turn one stream that has data *and* window, so that a big upload never starves a small call. It keeps
the outgoing books: stream ids, HPACK encoder, windows, the peer's settings. Encoding happens here, as bytes enter the
batch, because an HPACK table moves where bytes move. It never runs user code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, MutableMapping
from time import time
from typing import Any

import trio
from trio.lowlevel import enable_ki_protection

from trio_grpc._transport import frames
from trio_grpc._transport.byte_stream import ByteStream
from trio_grpc._transport.control_buffer import (
    WRITE_QUOTA,
    ApplySettings,
    ControlBuffer,
    ControlFrame,
    Farewell,
    OutgoingStream,
    RawFrame,
    RefuseStream,
    WindowOpened,
)
from trio_grpc._transport.flow_control import OutgoingWindows
from trio_grpc._transport.frames import DATA, END_HEADERS, END_STREAM, HEADERS, MAX_STREAM_ID, ErrorCode
from trio_grpc._transport.header_codec import NO_TEMPLATE, HeaderEncoder

#: One stream's share of a turn while others wait (grpc-go: 16 KiB).
_TURN = 16_384
#: Bytes put together before they go to the byte stream (design: writes of at most 256 KiB).
_WRITE_SIZE = 262_144
#: Bytes of one write that may be first turns. The rest belongs to the streams in the round; and as all of a batch fits
#: into one write, a PING's ACK at its end never waits for a second one.
_FIRST_TURNS = _WRITE_SIZE // 2
#: Buffers put together before they go to the byte stream (IOV_MAX).
_MAX_PIECES = 1024

#: Wakes the writer for what `LoopyWriter._write_alone` has left.
_REST = WindowOpened()

#: The round before its first stream: an empty deque takes 600 bytes, and most connections never need their own.
_NOBODY: deque[OutgoingStream] = deque(maxlen=0)

_PACK_HEADER = frames.FRAME_HEADER.pack


class LoopyWriter:
    """The writing half of one connection.

    Attributes:
        windows: outgoing credit, shared with the reader, which raises it.
        refusing: no more streams may be opened; those still without an id are orphaned.
        header_blocks: header blocks written so far.
        last_message: when the end of a message left last, in seconds since the epoch; 0.0 before the first.
    """

    def __init__(
        self,
        control_buffer: ControlBuffer,
        byte_stream: ByteStream,
        windows: OutgoingWindows,
        *,
        streams: MutableMapping[int, Any],
        on_ids_exhausted: Callable[[], None],
    ) -> None:
        self._control_buffer = control_buffer
        self._byte_stream = byte_stream
        self.windows = windows
        self._streams = streams
        self._on_ids_exhausted = on_ids_exhausted
        self._encoder = HeaderEncoder()
        self._active: deque[OutgoingStream] = _NOBODY
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._size = 0
        self._responses = 0
        self._next_stream_id = 1
        self._leaving = False
        self.refusing: bool = False
        self.header_blocks: int = 0
        self.last_message: float = 0.0

    @property
    def last_stream_id(self) -> int:
        """The highest stream id that this side has opened, 0 for none (client)."""
        return self._next_stream_id - 2 if self._next_stream_id > 1 else 0

    async def run(self) -> None:
        """Write until the `Farewell` is out.

        Raises:
            trio.EndOfChannel: the control buffer was closed.
            OSError, trio.BrokenResourceError, trio.ClosedResourceError: the byte stream is gone.
        """
        control_buffer = self._control_buffer
        while True:
            self._drain()
            while self._pieces or (self._active and self._has_credit()):
                self._fill()
                if not self._pieces:
                    break
                await self._flush()
                if self._leaving:
                    break
                self._drain()
            if self._leaving:
                return
            control_frame = await control_buffer.receive(self._write_alone)
            if control_buffer.closed:
                # The buffer was closed while this frame was on its way here: nobody else can orphan it.
                control_frame.orphan()
                raise trio.EndOfChannel
            self._take(control_frame)
            del control_frame  # a writer that sleeps must not keep a stream alive

    @enable_ki_protection
    def _write_alone(self, stream: OutgoingStream) -> None:
        """Write what one stream has, without waiting, in the task that would have woken the writer for it.

        Only while the writer sleeps and has nothing else to write. What the byte stream does not take at once is the
        writer's, its errors too: no caller ever waits for the socket, and a call that is cancelled cannot cut a write.
        """
        self._take_stream(stream)
        pieces = self._pieces
        if pieces:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            sent = self._byte_stream.send_nowait(data)
            if sent == len(data):
                self._pieces = []
                self._size = 0
            else:
                self._pieces = [memoryview(data)[sent:] if sent else data]
                self._size = len(data) - sent
        if self._pieces or self._active:
            self._control_buffer.put(_REST)
        elif self._responses:
            responses, self._responses = self._responses, 0
            self._control_buffer.responses_written(responses)

    # -- taking control frames

    def _drain(self) -> None:
        """Take everything that is in the channel now: one batch."""
        receive_nowait = self._control_buffer.receive_nowait
        take = self._take
        try:
            while not self._leaving:
                take(receive_nowait())
        except trio.WouldBlock:
            return

    def _take(self, control_frame: ControlFrame) -> None:
        if isinstance(control_frame, OutgoingStream):
            self._take_stream(control_frame)
        elif isinstance(control_frame, RawFrame):
            self._write(control_frame.data)
        elif isinstance(control_frame, ApplySettings):
            self._apply_settings(control_frame)
        elif isinstance(control_frame, RefuseStream):
            self._refuse_stream(control_frame)
        elif isinstance(control_frame, Farewell):
            self._write(control_frame.data)
            self._leaving = True
        else:
            # News whose whole effect is that the writer woke up and looks at its pieces and its round again.
            assert isinstance(control_frame, WindowOpened)
        if control_frame.is_response:
            self._responses += 1

    def _take_stream(self, stream: OutgoingStream) -> None:
        stream.queued = False
        if stream.reset_code is not None:
            if not stream.reset_written:
                self._reset(stream)
            return
        if stream.local_closed:
            return
        head = stream.head
        now = 0.0
        if head is not None:
            if not stream.stream_id:
                now = self._assign_stream_id(stream)
                if not now:
                    return
            block = self._encoder.encode(head, stream.head_literals)
            stream.head = None
            stream.head_literals = ()
            if stream.end_stream and not stream.pending_bytes and stream.tail is None:
                self._write_block(block, END_STREAM, stream.stream_id)
                stream.close_local()
                return
            self._write_block(block, 0, stream.stream_id)
        # A first turn at once: most calls end here, without ever entering the round.
        first_turn = stream.pending_bytes and not stream.active and self._size < _FIRST_TURNS
        if first_turn:
            if not self._write_data(stream, _TURN):
                return
            if not stream.chunks:
                self.last_message = now or time()
        if not stream.chunks:
            # Also of a stream in the round, whose data was dropped: what ends it needs no credit.
            self._finish(stream)
        elif not stream.active:
            self._enter_round(stream)

    def _assign_stream_id(self, stream: OutgoingStream) -> float:
        """Take the next id, in one step with encoding (RFC 9113, 5.1.1: ids must appear in increasing order).

        Returns:
            When that was, in seconds since the epoch; 0.0 when there is none for this stream.
        """
        stream_id = self._next_stream_id
        if self.refusing:
            stream.orphan()
            return 0.0
        self._next_stream_id = stream_id + 2
        if self._next_stream_id > MAX_STREAM_ID:
            self.refusing = True
            self._on_ids_exhausted()
        self._streams[stream_id] = stream
        return stream.take_stream_id(stream_id, self.windows.initial)

    def _reset(self, stream: OutgoingStream) -> None:
        stream.reset_written = True
        if stream.reset_is_response:
            self._responses += 1
        if stream.stream_id:
            self._write(frames.rst_stream(stream.stream_id, stream.reset_code or 0))
        # Without an id nothing of the stream was written, and nothing will be: a reset of an idle stream makes
        # Java and grpc-js close the connection.
        stream.close_reset()

    def _refuse_stream(self, refusal: RefuseStream) -> None:
        if refusal.fields is not None:
            block = self._encoder.encode(NO_TEMPLATE, refusal.fields)
            self._write_block(block, END_STREAM, refusal.stream_id)
        if refusal.error_code is not None:
            self._write(frames.rst_stream(refusal.stream_id, refusal.error_code))

    def _apply_settings(self, settings: ApplySettings) -> None:
        """Apply and acknowledge in one step, so that nothing after the ACK follows the old rules."""
        if settings.header_table_size is not None:
            self._encoder.set_max_table_size(settings.header_table_size)
        if settings.max_frame_size is not None:
            self.windows.max_frame_size = settings.max_frame_size
        if settings.initial_window_size is not None:
            change = settings.initial_window_size - self.windows.initial
            self.windows.initial = settings.initial_window_size
            for stream in self._streams.values():
                stream.window += change
                if change > 0:
                    self._activate(stream)
        self._write(settings.ack)

    def _activate(self, stream: OutgoingStream) -> None:
        if stream.chunks and not stream.active and stream.window > 0 and not stream.queued and stream.head is None:
            self._enter_round(stream)

    # -- the round

    def _enter_round(self, stream: OutgoingStream) -> None:
        stream.active = True
        if self._active is _NOBODY:
            self._active = deque()
        self._active.append(stream)

    def _has_credit(self) -> bool:
        if self.windows.connection > 0:
            return True
        self.windows.starved = True
        return False

    def _fill(self) -> None:
        """Give streams their turns until the write is full or nobody can go on."""
        active = self._active
        while active and self._size < _WRITE_SIZE and len(self._pieces) < _MAX_PIECES and self._has_credit():
            stream = active.popleft()
            if stream.local_closed or stream.reset_code is not None or not stream.chunks:
                stream.active = False
                continue
            # Alone, a stream may use the peer's whole frame size; in company one turn is 16 KiB.
            share = _TURN if active else self.windows.max_frame_size
            if not self._write_data(stream, share):
                stream.active = False
            elif stream.chunks:
                active.append(stream)
            else:
                self.last_message = time()
                stream.active = False
                self._finish(stream)

    def _write_data(self, stream: OutgoingStream, share: int) -> bool:
        """Write one DATA frame of at most ``share`` bytes; False when the stream's own window stops it."""
        windows = self.windows
        pending = stream.pending_bytes
        room = min(share, windows.connection, stream.window, windows.max_frame_size)
        chunks = stream.chunks
        pieces = self._pieces
        if pending <= room:
            # Everything fits: the common case, with nothing to cut.
            last = stream.end_stream and stream.tail is None
            stream_id = stream.stream_id
            pieces.append(_PACK_HEADER(pending >> 8, pending & 0xFF, DATA, last, stream_id))
            pieces.extend(chunks)
            chunks.clear()
            stream.pending_bytes = 0
            stream.window -= pending
            windows.connection -= pending
            self._size += pending + 9
            # Asked here and not by `wake_producer` alone: mostly nobody waits, and this runs for every frame.
            if stream._quota_task is not None:
                stream.wake_producer()
            if last:
                stream.close_local()
            return True
        if room <= 0:
            return stream.window > 0
        stream.pending_bytes = pending - room
        stream.window -= room
        windows.connection -= room
        pieces.append(_PACK_HEADER(room >> 8, room & 0xFF, DATA, 0, stream.stream_id))
        self._size += room + 9
        while room:
            chunk = chunks.popleft()
            if len(chunk) > room:
                view = memoryview(chunk)
                pieces.append(view[:room])
                chunks.appendleft(view[room:])
                break
            pieces.append(chunk)
            room -= len(chunk)
        if stream._quota_task is not None and stream.pending_bytes < WRITE_QUOTA:
            stream.wake_producer()
        return stream.window > 0

    def _finish(self, stream: OutgoingStream) -> None:
        """Write what ends the stream, if its producer has said so: the data before it is out."""
        if stream.local_closed or not stream.end_stream:
            return
        if stream.tail is not None:
            block = self._encoder.encode(stream.tail, stream.tail_literals)
            self._write_block(block, END_STREAM, stream.stream_id)
            if not stream.remote_closed:
                self._write(frames.rst_stream(stream.stream_id, ErrorCode.NO_ERROR))
        else:
            self._write(_PACK_HEADER(0, 0, DATA, END_STREAM, stream.stream_id))
        stream.close_local()

    # -- writing

    def _write_block(self, block: bytes, flags: int, stream_id: int) -> None:
        self.header_blocks += 1
        length = len(block)
        if length <= self.windows.max_frame_size:
            # Two or three of these per call: no more function calls than need be.
            frame = _PACK_HEADER(length >> 8, length & 0xFF, HEADERS, flags | END_HEADERS, stream_id) + block
        else:
            frame = frames.header_block_frames(block, flags, stream_id, self.windows.max_frame_size)
        self._pieces.append(frame)
        self._size += len(frame)

    def _write(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)

    async def _flush(self) -> None:
        pieces, self._pieces, self._size = self._pieces, [], 0
        responses, self._responses = self._responses, 0
        self._control_buffer.hindered = True
        try:
            await self._byte_stream.send(pieces)
        finally:
            self._control_buffer.hindered = bool(self._active)
            if responses:
                self._control_buffer.responses_written(responses)

    def orphan_all(self) -> None:
        """Orphan what is still in the round (the connection has ended)."""
        while self._active:
            stream = self._active.popleft()
            stream.active = False
            if not stream.local_closed:
                stream.orphan()
