"""A byte stream in memory that has a length, a width, and faults.

Nothing here has a task: what is sent is queued together with the time at which it arrives, and whoever receives waits
until then. So links cost nothing to leave behind, and tests on a virtual clock see exact times.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable
from math import inf

import trio

from trio_grpc._transport import frames

#: Bytes that may be under way in one direction before a sender waits, as in a socket's buffers.
_UNDER_WAY = 65_536
#: With a bandwidth, bytes arrive in pieces of this size (a little less than an Ethernet frame holds).
_PIECE = 1_400


class Conditions:
    """What all links of one `Faults` have in common.

    Attributes:
        latency: seconds that bytes are under way.
        bandwidth: bytes per second in each direction; None for no limit.
        frozen: nothing arrives.
    """

    def __init__(self, latency: float, bandwidth: float | None) -> None:
        self.latency = latency
        self.bandwidth = bandwidth
        self.frozen = False


class Pipe:
    """One direction of a link.

    Args:
        conditions: of the link.
        frame_reader: looks at what passes, and may leave frames out or put some in.
        cut: called when the bytes of `cut_after` have arrived.
    """

    def __init__(self, conditions: Conditions, frame_reader: FrameReader, cut: Callable[[], None]) -> None:
        self._conditions = conditions
        self._frames = frame_reader
        self._cut = cut
        self._queue: deque[tuple[float, bytes]] = deque()
        self._under_way = 0
        self._free_at = -inf
        self._last_arrival = -inf
        self._changed = trio.Event()
        self._left: float = inf
        self.ended = False
        self.broken = False
        self.abandoned = False

    def wake(self) -> None:
        """Let those who wait look again."""
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def break_off(self) -> None:
        """Lose all that is under way."""
        self.broken = True
        self._queue.clear()
        self._under_way = 0
        self.wake()

    def end(self) -> None:
        """Let the receiver have what is under way, and then the end."""
        self._append(self._frames.rest())
        self.ended = True
        self.wake()

    def cut_after(self, count: int) -> None:
        """Let so many more bytes arrive."""
        self._left = count
        if count == 0:
            self._cut()

    def inject(self, frame: bytes) -> None:
        """Put a frame of ours between those that pass, as soon as it can be."""
        if not self.broken and not self.ended:
            self._append(self._frames.inject(frame))
            self.wake()

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes; wait while as many are under way as may be.

        Raises:
            trio.BrokenResourceError: the other end is gone.
        """
        await self.wait_room()
        if self.broken or self.abandoned:
            raise trio.BrokenResourceError("the link is cut" if self.broken else "the other end is closed")
        if self.ended:
            # Closed by another task while this one waited, which is told by the end of the link.
            return
        self._append(self._frames.feed(bytes(data)))
        self.wake()

    async def wait_room(self) -> None:
        """Wait while as many bytes are under way as may be; or until nobody takes them any more."""
        await trio.lowlevel.checkpoint()
        while self._under_way >= _UNDER_WAY and not (self.broken or self.abandoned or self.ended):
            await self._changed.wait()

    def _append(self, data: bytes) -> None:
        if not data:
            return
        self._under_way += len(data)
        latency, bandwidth = self._conditions.latency, self._conditions.bandwidth
        now = trio.current_time()
        size = len(data) if bandwidth is None else _PIECE
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            self._free_at = max(self._free_at, now) + (0 if bandwidth is None else len(piece) / bandwidth)
            # Bytes keep their order, also where the latency has become less.
            self._last_arrival = max(self._last_arrival, self._free_at + latency)
            self._queue.append((self._last_arrival, piece))

    async def receive(self, max_bytes: int | None) -> bytes:
        """Wait for bytes; none at the end.

        Raises:
            trio.BrokenResourceError: the link was cut.
        """
        await trio.lowlevel.checkpoint()
        while True:
            if self.broken:
                raise trio.BrokenResourceError("the link is cut")
            if not self._queue and self.ended:
                return b""
            arrival = self._queue[0][0] if self._queue and not self._conditions.frozen else inf
            if arrival <= trio.current_time():
                return self._take(max_bytes)
            changed = self._changed
            with trio.move_on_at(arrival):
                await changed.wait()

    def _take(self, max_bytes: int | None) -> bytes:
        now = trio.current_time()
        limit = min(inf if max_bytes is None else max_bytes, self._left, _UNDER_WAY)
        taken = bytearray()
        while self._queue and len(taken) < limit and self._queue[0][0] <= now:
            arrival, piece = self._queue.popleft()
            room = int(limit - len(taken))
            taken += piece[:room]
            if len(piece) > room:
                self._queue.appendleft((arrival, piece[room:]))
        self._under_way -= len(taken)
        self._left -= len(taken)
        if self._left <= 0:
            self._left = inf
            self._cut()
        self.wake()
        return bytes(taken)


class FrameReader:
    """Follows the frames of one direction, whatever pieces they come in.

    Args:
        preface: what stands before the first frame.
        keep: asked for each frame: its type, its flags and its stream; False leaves it out.
    """

    def __init__(self, preface: bytes, keep: Callable[[int, int, int], bool]) -> None:
        self._preface_left = preface
        self._keep = keep
        #: Of the frame head that is not complete, and how many bytes of it were passed on already.
        self._head = bytearray()
        self._head_passed = 0
        self._payload_left = 0
        self._passing = True
        self._frames_seen = 0
        self._waiting: list[bytes] = []
        #: Frames may be left out: a head is passed on when it is complete, and not byte by byte.
        self.filtering = False
        #: Not HTTP/2 without TLS: nothing can be told of its frames.
        self.opaque = False

    def feed(self, data: bytes) -> bytes:
        """Return what is to be passed on."""
        passed = bytearray()
        position = 0
        while position < len(data):
            if self.opaque:
                return bytes(passed) + data[position:]
            if self._preface_left:
                piece = data[position : position + len(self._preface_left)]
                self.opaque = not self._preface_left.startswith(piece)
                if not self.opaque:
                    self._preface_left = self._preface_left[len(piece) :]
                    passed += piece
                    position += len(piece)
            elif self._payload_left:
                piece = data[position : position + self._payload_left]
                self._payload_left -= len(piece)
                position += len(piece)
                if self._passing:
                    passed += piece
            else:
                if not self._head:
                    passed += self._between_frames()
                piece = data[position : position + frames.FRAME_HEADER_LENGTH - len(self._head)]
                position += len(piece)
                passed += self._feed_head(piece)
        if not self._payload_left and not self._head:
            passed += self._between_frames()
        return bytes(passed)

    def _feed_head(self, piece: bytes) -> bytes:
        self._head += piece
        if not self.filtering:
            self._head_passed += len(piece)
        passed = b"" if self.filtering else piece
        if len(self._head) < frames.FRAME_HEADER_LENGTH:
            return passed
        high, low, frame_type, flags, stream_id = frames.FRAME_HEADER.unpack_from(self._head, 0)
        if not self._frames_seen and frame_type != frames.SETTINGS:
            # RFC 9113, 3.4: the first frame of either side. A TLS record looks otherwise.
            self.opaque = True
            return passed + self.rest()
        self._frames_seen += 1
        self._payload_left = high << 8 | low
        keep = self._keep(frame_type, flags, stream_id & frames.MAX_STREAM_ID)
        # What has begun to arrive must arrive.
        self._passing = keep or self._head_passed > 0
        rest = self.rest()
        return passed + rest if self._passing else passed

    def inject(self, frame: bytes) -> bytes:
        """Return the frame if it can be passed on now; otherwise it follows the one that passes."""
        self._waiting.append(frame)
        return b"" if self._payload_left or self._head else self._between_frames()

    def rest(self) -> bytes:
        """Return what was held back."""
        rest = bytes(self._head[self._head_passed :])
        self._head.clear()
        self._head_passed = 0
        return rest

    def _between_frames(self) -> bytes:
        if not self._frames_seen:
            # SETTINGS come first.
            return b""
        waiting = b"".join(self._waiting)
        self._waiting.clear()
        return waiting


class _One:
    """Refuses a second task, as all of trio's streams do."""

    def __init__(self, problem: str) -> None:
        self._problem = problem
        self._busy = False

    def __enter__(self) -> None:
        if self._busy:
            raise trio.BusyResourceError(self._problem)
        self._busy = True

    def __exit__(self, *_: object) -> None:
        self._busy = False


class LinkEnd(trio.abc.HalfCloseableStream):
    """One end of a link, a byte stream like any other."""

    def __init__(self, outgoing: Pipe, incoming: Pipe) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._closed = False
        self._sent_eof = False
        self._one_sender = _One("another task is using this stream to send")
        self._one_receiver = _One("another task is using this stream to receive")

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with self._one_sender:
            if self._closed or self._sent_eof:
                raise trio.ClosedResourceError
            await self._outgoing.send(data)
            if self._closed:
                raise trio.ClosedResourceError

    async def wait_send_all_might_not_block(self) -> None:
        with self._one_sender:
            if self._closed:
                raise trio.ClosedResourceError
            await self._outgoing.wait_room()
            if self._closed:
                raise trio.ClosedResourceError

    async def send_eof(self) -> None:
        with self._one_sender:
            if self._closed:
                raise trio.ClosedResourceError
            if not self._sent_eof:
                self._sent_eof = True
                self._outgoing.end()
            await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if max_bytes is not None and operator.index(max_bytes) < 1:
            raise ValueError("max_bytes must be at least 1")
        with self._one_receiver:
            if self._closed:
                raise trio.ClosedResourceError
            try:
                return await self._incoming.receive(max_bytes)
            except trio.BrokenResourceError:
                if self._closed:
                    raise trio.ClosedResourceError from None
                raise

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._outgoing.end()
            # What comes after this is for nobody, and its sender is told.
            self._incoming.abandoned = True
            self._incoming.break_off()
        await trio.lowlevel.checkpoint()


__all__ = ["Conditions", "FrameReader", "LinkEnd", "Pipe"]
