"""The reader alone: when it reads, what it starts, what it credits; for bad frames see tests/behaviour."""

from __future__ import annotations

from collections.abc import Sequence

import hpack
import pytest
import trio
import trio.testing

from trio_grpc._options import Limits
from trio_grpc._status import StatusCode
from trio_grpc._transport import frames
from trio_grpc._transport.byte_stream import Buffer, ByteStream
from trio_grpc._transport.connection import Connection
from trio_grpc._transport.control_buffer import (
    THROTTLE_LIMIT,
    ApplySettings,
    ControlFrame,
    RawFrame,
    RefuseStream,
    WindowOpened,
)
from trio_grpc._transport.frames import ConnectionFault, ErrorCode
from trio_grpc._transport.header_codec import Field, HeaderTemplate
from trio_grpc._transport.reader import BANDWIDTH_PING
from trio_grpc._transport.side import Side
from trio_grpc._transport.stream import Stream

REQUEST: list[Field] = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a.B/C"),
    (b":authority", b"localhost"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
]
RESPONSE: list[Field] = [(b":status", b"200"), (b"content-type", b"application/grpc")]
SETTINGS = frames.frame(frames.SETTINGS, 0, 0)


class Reads(ByteStream):
    """Gives one piece per read."""

    def __init__(self, pieces: Sequence[bytes] = ()) -> None:
        self.pieces = list(pieces)
        self.sizes: list[int] = []

    async def receive(self, size: int) -> bytes:
        await trio.lowlevel.checkpoint()
        self.sizes.append(size)
        if not self.pieces:
            return b""
        piece = self.pieces.pop(0)
        if len(piece) > size:
            self.pieces.insert(0, piece[size:])
        return piece[:size]

    async def send(self, pieces: Sequence[Buffer]) -> None:
        raise AssertionError("nobody writes here")

    async def send_eof(self) -> None:
        raise AssertionError("nobody writes here")

    async def aclose(self) -> None:
        raise AssertionError("nobody closes this")


class Bench:
    """The reader of a connection that does not run."""

    def __init__(self, side: Side = Side.SERVER, limits: Limits | None = None, pieces: Sequence[bytes] = ()) -> None:
        self.started: list[Stream] = []
        self.byte_stream = Reads(pieces)
        self.connection = Connection(
            side,
            self.byte_stream,
            Limits(adaptive_window=False) if limits is None else limits,
            peer="somebody",
            handshake_timeout=10,
            on_stream=self.started.append,
        )
        self.reader = self.connection.reader
        self.table = self.connection.table
        self.encoder = hpack.Encoder()

    @property
    def greeting(self) -> bytes:
        return (frames.PREFACE if self.connection.side is Side.SERVER else b"") + SETTINGS

    def begin(self) -> None:
        # What `Connection.run` sends with the preface.
        self.connection.incoming.initial_credit()
        self.read(self.greeting)
        self.replies()

    def read(self, data: bytes) -> None:
        """One read."""
        try:
            self.reader.framer.receive(data)
        finally:
            self.reader._end_batch()

    def replies(self) -> list[ControlFrame]:
        """What was queued for the writer since last time."""
        replies = []
        try:
            while True:
                replies.append(self.connection.control_buffer.receive_nowait())
        except trio.WouldBlock:
            return replies

    def raw(self) -> list[bytes]:
        return [reply.data for reply in self.replies() if isinstance(reply, RawFrame)]

    def headers(self, stream_id: int, fields: list[Field] | None = None, end_stream: bool = False) -> bytes:
        block = self.encoder.encode(REQUEST if fields is None else fields)
        return frames.header_block_frames(block, frames.END_STREAM if end_stream else 0, stream_id, 16_384)

    def client_stream(self, stream_id: int) -> Stream:
        """A stream of ours, as the writer leaves it after its headers."""
        assert self.table.acquire_nowait()
        stream = self.connection.open_stream(HeaderTemplate(()), ())
        stream.take_stream_id(stream_id, 65_535)
        stream.head = None
        self.table.streams[stream_id] = stream
        self.connection.writer._next_stream_id = stream_id + 2
        return stream


def data(stream_id: int, payload: bytes, end_stream: bool = False) -> bytes:
    return frames.frame(frames.DATA, frames.END_STREAM if end_stream else 0, stream_id, payload)


# ---------------------------------------------------------------------------------------------------------------------
# Reading


async def test_it_reads_to_the_end() -> None:
    bench = Bench()
    pieces = [bench.greeting, bench.headers(1), data(1, b"\0\0\0\0\0", end_stream=True)]
    bench.byte_stream.pieces = pieces[:]
    await bench.reader.run()
    [stream] = bench.started
    assert list(stream.assembler.messages) == [b""]
    assert stream.remote_closed


async def test_a_fault_comes_out_after_what_was_good_before_it() -> None:
    bench = Bench()
    good = bench.headers(1) + bench.headers(3)
    bench.byte_stream.pieces = [bench.greeting + good + data(5, b"idle")]
    with pytest.raises(ConnectionFault, match="DATA on idle stream 5"):
        await bench.reader.run()
    assert [stream.stream_id for stream in bench.started] == [1, 3]
    assert bench.reader.last_peer_stream_id == 3


async def test_it_waits_while_too_many_replies_are_unwritten() -> None:
    bench = Bench()
    ping = frames.frame(frames.PING, 0, 0, bytes(8))
    bench.byte_stream.pieces = [bench.greeting, ping * (THROTTLE_LIMIT - 2), ping, ping, b"never looked at"]
    control_buffer = bench.connection.control_buffer
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.reader.run)
        await trio.testing.wait_all_tasks_blocked()
        # The ACK of its SETTINGS counts too.
        assert control_buffer.pending_responses == THROTTLE_LIMIT
        assert len(bench.byte_stream.pieces) == 2
        # Taken out of the channel is not written.
        bench.replies()
        await trio.testing.wait_all_tasks_blocked()
        assert len(bench.byte_stream.pieces) == 2
        control_buffer.responses_written(1)
        await trio.testing.wait_all_tasks_blocked()
        assert control_buffer.pending_responses == THROTTLE_LIMIT
        assert len(bench.byte_stream.pieces) == 1
        bench.byte_stream.pieces.clear()
        # The end of the connection wakes it as well.
        control_buffer.close()
        await trio.testing.wait_all_tasks_blocked()
        assert not nursery.child_tasks


async def test_the_time_of_the_last_read(autojump_clock: trio.testing.MockClock) -> None:
    bench = Bench(pieces=[frames.PREFACE, SETTINGS])
    receive = bench.byte_stream.receive

    async def slow(size: int) -> bytes:
        await trio.sleep(3)
        return await receive(size)

    bench.byte_stream.receive = slow  # type: ignore[method-assign]
    await bench.reader.run()
    # The end is no bytes.
    assert bench.reader.last_read == 6


async def test_reads_grow_with_what_comes_and_shrink_with_whom_they_wake() -> None:
    bench = Bench()
    bench.begin()
    bulk = [data(1, bytes(16_384)) for _ in range(100)]
    bench.byte_stream.pieces = [b"".join(bulk)]
    bench.read(bench.headers(1))
    bench.started[0].cancelled = "nobody wants this"
    await bench.reader.run()
    sizes = bench.byte_stream.sizes
    assert sizes[0] < sizes[-1] <= 262_144
    assert sizes == sorted(sizes)
    bench.byte_stream.sizes.clear()
    bench.byte_stream.pieces = [b"".join(bench.headers(stream_id) for stream_id in range(3, 1003, 2))]
    await bench.reader.run()
    assert bench.byte_stream.sizes[-1] < bench.byte_stream.sizes[0]


# ---------------------------------------------------------------------------------------------------------------------
# Requests, at a server


def test_handlers_start_after_the_read() -> None:
    """So that a whole request in one read finds its message there, and one that was reset in it costs no handler."""
    bench = Bench()
    bench.begin()
    seen: list[tuple[int, int, bool]] = []

    def on_stream(stream: Stream) -> None:
        seen.append((stream.stream_id, len(stream.assembler.messages), stream.cancelled is not None))

    bench.reader._on_stream = on_stream
    bench.read(
        bench.headers(1)
        + data(1, b"\0\0\0\0\0", end_stream=True)
        + bench.headers(3)
        + bench.headers(5)
        + frames.rst_stream(5, ErrorCode.CANCEL)
    )
    assert seen == [(1, 1, False), (3, 0, False)]


async def test_a_request_is_timed_from_its_arrival(autojump_clock: trio.testing.MockClock) -> None:
    bench = Bench()
    bench.byte_stream.pieces = [bench.greeting, bench.headers(1)]
    await trio.sleep(5)
    await bench.reader.run()
    assert bench.started[0].request_time == 5


def test_new_streams_that_are_not_accepted_may_be_retried() -> None:
    bench = Bench()
    bench.begin()
    bench.reader.accepting = False
    bench.read(bench.headers(1))
    [refusal] = bench.replies()
    assert isinstance(refusal, RefuseStream)
    assert (refusal.stream_id, refusal.fields, refusal.error_code) == (1, None, ErrorCode.REFUSED_STREAM)
    # It counts as looked at: its late frames are not those of an idle stream.
    bench.read(data(1, b"late"))
    assert bench.reader.last_peer_stream_id == 1
    assert not bench.started


def test_streams_above_our_goaway_are_ignored() -> None:
    bench = Bench()
    bench.begin()
    bench.read(bench.headers(1))
    bench.reader.refuse_above = 1
    table_entry = frames.frame(frames.HEADERS, frames.END_HEADERS, 3, b"\x40\x06x-late\x01v")
    bench.read(
        table_entry
        + data(3, b"late")
        + frames.window_update(3, 5)
        + frames.rst_stream(3, ErrorCode.CANCEL)
        + frames.window_update(5, 0)
    )
    assert [reply.stream_id for reply in bench.replies() if isinstance(reply, RefuseStream)] == [5]
    assert bench.reader.last_peer_stream_id == 1
    # Up to it all goes on.
    bench.read(data(1, b"\0\0\0\0\0"))
    assert len(bench.started[0].assembler.messages) == 1


def test_the_limit_counts_streams_until_they_have_left() -> None:
    bench = Bench(limits=Limits(adaptive_window=False, max_concurrent_streams=2))
    bench.begin()
    bench.read(bench.headers(1) + bench.headers(3) + bench.headers(5))
    assert [reply.stream_id for reply in bench.replies() if isinstance(reply, RefuseStream)] == [5]
    bench.read(frames.rst_stream(1, ErrorCode.CANCEL) + bench.headers(7))
    assert [stream.stream_id for stream in bench.started] == [1, 3, 7]
    assert bench.table.slots_used == 2


# ---------------------------------------------------------------------------------------------------------------------
# Responses, at a client


def test_late_frames_of_our_streams_are_ignored() -> None:
    bench = Bench(Side.CLIENT)
    bench.begin()
    stream = bench.client_stream(7)
    stream.cancel("enough")
    stream.close_local()
    assert not bench.table.streams
    bench.replies()
    bench.read(
        bench.headers(7, RESPONSE)
        + data(7, b"\0\0\0\0\0")
        + frames.window_update(7, 1)
        + bench.headers(7, [(b"grpc-status", b"0")], end_stream=True)
        + frames.rst_stream(7, ErrorCode.CANCEL)
        + frames.rst_stream(5, ErrorCode.CANCEL)
    )
    assert bench.replies() == []
    with pytest.raises(ConnectionFault, match="HEADERS on idle stream 9"):
        bench.read(bench.headers(9, RESPONSE))


def test_a_response_ends_its_stream() -> None:
    bench = Bench(Side.CLIENT)
    bench.begin()
    stream = bench.client_stream(1)
    stream.end_stream = True
    stream.close_local()
    bench.read(bench.headers(1, RESPONSE) + data(1, b"\0\0\0\0\1x"))
    assert stream.outcome is None
    assert bench.table.slots_used == 1
    bench.read(bench.headers(1, [(b"grpc-status", b"0"), (b"x-t", b"1")], end_stream=True))
    assert stream.outcome is not None
    assert (stream.outcome.code, stream.outcome.fields) == (StatusCode.OK, ((b"x-t", b"1"),))
    assert list(stream.assembler.messages) == [b"x"]
    assert bench.table.slots_used == 0
    # Nothing to say: both sides have ended.
    assert bench.replies() == []


def test_the_first_outcome_stands() -> None:
    bench = Bench(Side.CLIENT)
    bench.begin()
    stream = bench.client_stream(1)
    bench.read(
        bench.headers(1, [*RESPONSE, (b"grpc-status", b"5")], end_stream=True)
        + frames.rst_stream(1, ErrorCode.INTERNAL_ERROR)
        + data(1, b"\x09")
    )
    assert stream.outcome is not None
    assert stream.outcome.code is StatusCode.NOT_FOUND


# ---------------------------------------------------------------------------------------------------------------------
# Credit


def test_the_connection_is_credited_once_per_read() -> None:
    bench = Bench(limits=Limits(adaptive_window=False, initial_connection_window_size=65_535))
    bench.begin()
    bench.read(bench.headers(1))
    # Small reads are not worth a frame, until a quarter of the window is owed.
    bench.read(data(1, b"\0\0\1\0\0" + bytes(8000)))
    assert bench.raw() == []
    bench.read(data(1, bytes(8000)) + data(1, bytes(8000)))
    assert bench.raw() == [frames.window_update(0, 24_005)]
    # Whoever the DATA was for.
    bench.read(frames.rst_stream(1, ErrorCode.CANCEL) + data(1, bytes(16_384)))
    assert bench.raw() == [frames.window_update(0, 16_384)]


def test_more_than_the_connection_window_is_a_fault() -> None:
    bench = Bench(limits=Limits(adaptive_window=False, initial_connection_window_size=65_535))
    bench.begin()
    bench.read(bench.headers(1))
    with pytest.raises(ConnectionFault) as caught:
        bench.read(data(1, b"\0\0\0\0\0" * 3276) * 5)
    assert caught.value.error_code is ErrorCode.FLOW_CONTROL_ERROR


def test_one_wake_up_for_many_window_updates() -> None:
    bench = Bench()
    bench.begin()
    bench.read(bench.headers(1, end_stream=True))
    stream = bench.started[0]
    stream.window = 0
    stream.queue_message(bytes(100))
    bench.read(frames.window_update(1, 1) * 50 + frames.window_update(0, 1) * 50)
    assert bench.replies() == [stream]
    assert (stream.window, bench.connection.outgoing.connection) == (50, 65_585)
    # A stream with nothing to write is not woken at all.
    stream.queued = False
    stream.drop_chunks()
    bench.read(frames.window_update(1, 1))
    assert bench.replies() == []


def test_a_starved_writer_is_woken_once() -> None:
    bench = Bench()
    bench.begin()
    bench.connection.outgoing.starved = True
    bench.read(frames.window_update(0, 1) * 3)
    [news] = bench.replies()
    assert isinstance(news, WindowOpened)


def test_windows_of_all_streams_are_checked_against_new_settings() -> None:
    bench = Bench()
    bench.begin()
    bench.read(bench.headers(1) + bench.headers(3) + frames.window_update(3, 2**31 - 1 - 65_535))
    same = frames.frame(frames.SETTINGS, 0, 0, b"\0\4" + (65_535).to_bytes(4, "big"))
    less = frames.frame(frames.SETTINGS, 0, 0, b"\0\4" + (1).to_bytes(4, "big"))
    more = frames.frame(frames.SETTINGS, 0, 0, b"\0\4" + (65_536).to_bytes(4, "big"))
    bench.read(same + less)
    assert [type(reply) for reply in bench.replies()] == [ApplySettings, ApplySettings]
    with pytest.raises(ConnectionFault) as caught:
        bench.read(more)
    assert caught.value.error_code is ErrorCode.FLOW_CONTROL_ERROR


def test_bandwidth_is_probed_while_bulk_data_comes_in() -> None:
    bench = Bench(limits=Limits())
    bench.begin()
    ping = frames.frame(frames.PING, 0, 0, BANDWIDTH_PING)
    pong = frames.frame(frames.PING, frames.ACK, 0, BANDWIDTH_PING)
    bench.read(bench.headers(1) + data(1, b"\0\0\0\0\0"))
    assert bench.raw() == []
    bench.reader.last_read = 1.0
    bench.read(data(1, b"\0\0\xff\0\0" + bytes(40_000)))
    assert ping in bench.raw()
    # One probe at a time.
    bench.read(data(1, bytes(20_000)))
    assert ping not in bench.raw()
    before = bench.connection.incoming.stream_target
    bench.reader.last_read = 1.01
    bench.read(pong)
    assert bench.connection.incoming.stream_target == 2 * 60_005 > before
    # One that nobody asked for changes nothing.
    bench.read(pong)
    assert bench.connection.incoming.stream_target == 2 * 60_005


def test_the_credit_of_a_small_window_is_lent_until_it_is_acknowledged() -> None:
    bench = Bench(limits=Limits(adaptive_window=False, initial_window_size=100))
    bench.begin()
    bench.read(bench.headers(1) + data(1, b"\0\0\0\x40\0" + bytes(10_000)))
    assert not bench.replies()
    bench.read(frames.frame(frames.SETTINGS, frames.ACK, 0))
    bench.read(bench.headers(3) + data(3, b"\0\0\0\x40\0" + bytes(96)))
    [fault] = bench.replies()
    assert isinstance(fault, Stream)
    assert (fault.stream_id, fault.reset_code) == (3, ErrorCode.FLOW_CONTROL_ERROR)


# -- how much is read at once


@pytest.mark.parametrize(
    ("calls", "woken_per_kib", "settles_at"),
    [
        # One firehose into one consumer: big reads.
        (1, 0, 262_144),
        # Half of the calls at once, as long as that is not too many: the ends work at the same time.
        (16, 0.5, 16_384),
        (64, 0.5, 65_536),
        (200, 0.5, 65_536),
        (64, 4, 8_192),
        (200, 40, 1_024),
    ],
)
async def test_reads_follow_the_tasks_that_they_wake(calls: int, woken_per_kib: float, settles_at: int) -> None:
    bench = Bench(limits=Limits(adaptive_window=False, max_overhead_frames=None))
    unknown = frames.frame(0xFA, 0, 0, bytes(1015)) * 8192
    bench.byte_stream.pieces = [bench.greeting + unknown]
    bench.table.slots_used = calls
    incoming = bench.connection.incoming

    class Waking(Reads):
        async def receive(self, size: int) -> bytes:
            incoming.wakeups = int(size / 1024 * woken_per_kib) or 1
            return await super().receive(size)

    waking = Waking(bench.byte_stream.pieces)
    bench.reader._byte_stream = waking
    await bench.reader.run()
    # The last read found the end.
    assert waking.sizes[-2] in (settles_at, settles_at // 2)
