"""A byte stream in memory whose writes a test lets through, holds back or breaks, and whose reads it cuts."""

from __future__ import annotations

from collections.abc import Sequence

import hyperframe.frame
import trio

from trio_grpc._transport.byte_stream import Buffer, ByteStream


class GatedStream(ByteStream):
    """What is fed with `feed` is read; what is written is kept.

    Attributes:
        writes: the bytes of each write that has begun, in order.
        done: how many of them the stream has taken.
        gate: while it is closed (`hold`), writes wait.
        fail_at: the number of the write (from 0) that raises, None for never.
        room: bytes that it takes without waiting; such bytes are a write of their own.
    """

    def __init__(self) -> None:
        send, receive = trio.open_memory_channel[bytes](float("inf"))
        self._feed = send
        self._incoming = receive
        self._rest = b""
        self._gate: trio.Event | None = None
        self.writes: list[bytes] = []
        self.done = 0
        self.reads = 0
        self.fail_at: int | None = None
        self.room = 0
        self.eof_sent = False
        self.closed = False
        self.cancelled_writes = 0

    # -- for the test

    def feed(self, data: bytes) -> None:
        """Let the reader read these bytes."""
        self._feed.send_nowait(data)

    def feed_eof(self) -> None:
        """Let the reader find the end of the stream."""
        self._feed.close()

    def hold(self) -> None:
        """Let writes wait from now on."""
        if self._gate is None:
            self._gate = trio.Event()

    def release(self) -> None:
        """Let a waiting write and all later ones through."""
        if self._gate is not None:
            self._gate.set()
            self._gate = None

    def release_one(self) -> None:
        """Let the write that waits now through, and none after it."""
        if self._gate is not None:
            gate, self._gate = self._gate, trio.Event()
            gate.set()

    @property
    def blocked(self) -> bool:
        """Whether a write waits."""
        return len(self.writes) > self.done

    @property
    def written(self) -> bytes:
        """All bytes that the stream was given."""
        return b"".join(self.writes)

    def frames(self) -> list[hyperframe.frame.Frame]:
        """All frames that the stream was given."""
        return parse_frames(self.written)

    # -- for the connection

    async def receive(self, size: int) -> bytes:
        self.reads += 1
        if self.closed:
            raise trio.ClosedResourceError
        if not self._rest:
            try:
                self._rest = await self._incoming.receive()
            except trio.EndOfChannel:
                return b""
            except trio.ClosedResourceError:
                raise trio.ClosedResourceError from None
        else:
            await trio.lowlevel.checkpoint()
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    async def send(self, pieces: Sequence[Buffer]) -> None:
        if self.closed:
            raise trio.ClosedResourceError
        number = len(self.writes)
        self.writes.append(b"".join(pieces))
        try:
            if self._gate is None:
                await trio.lowlevel.checkpoint()
            else:
                await self._gate.wait()
        except trio.Cancelled:
            self.cancelled_writes += 1
            raise
        if self.closed:
            raise trio.ClosedResourceError
        if self.fail_at is not None and number >= self.fail_at:
            raise BrokenPipeError("broken on purpose")
        self.done += 1

    def send_nowait(self, data: Buffer) -> int:
        taken = bytes(data[: self.room])
        if taken:
            self.room -= len(taken)
            self.writes.append(taken)
            self.done += 1
        return len(taken)

    async def send_eof(self) -> None:
        self.eof_sent = True
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self.closed = True
        self._incoming.close()
        self.release()
        await trio.lowlevel.checkpoint()


def parse_frames(data: bytes) -> list[hyperframe.frame.Frame]:
    """Return the frames in these bytes, of which the first may be the client's preface."""
    if data.startswith(b"PRI * HTTP/2.0"):
        data = data[24:]
    found = []
    view = memoryview(data)
    while view:
        frame, length = hyperframe.frame.Frame.parse_frame_header(view[:9])
        assert len(view) >= 9 + length, "a frame is cut"
        frame.parse_body(view[9 : 9 + length])
        found.append(frame)
        view = view[9 + length :]
    return found
