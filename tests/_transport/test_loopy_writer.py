"""The loopy writer: batches, the round, windows, and who waits for whom."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import hpack
import pytest
import trio
import trio.testing
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
)

from tests.support.gated_stream import GatedStream, parse_frames
from trio_grpc._transport import frames
from trio_grpc._transport.control_buffer import (
    WRITE_QUOTA,
    ApplySettings,
    ControlBuffer,
    Farewell,
    OutgoingStream,
    RawFrame,
    RefuseStream,
    WindowOpened,
)
from trio_grpc._transport.flow_control import OutgoingWindows
from trio_grpc._transport.frames import MAX_STREAM_ID, ErrorCode
from trio_grpc._transport.header_codec import Field, HeaderTemplate
from trio_grpc._transport.loopy_writer import LoopyWriter

TURN = 16_384
WRITE_SIZE = 262_144
HEAD = HeaderTemplate(((b":status", b"200"),))
TAIL = HeaderTemplate(((b"grpc-status", b"0"),))


class Bench:
    """A loopy writer with nothing around it."""

    def __init__(self) -> None:
        self.buffer = ControlBuffer()
        self.byte_stream = GatedStream()
        self.windows = OutgoingWindows()
        self.streams: dict[int, OutgoingStream] = {}
        self.exhausted = 0
        self.writer = LoopyWriter(
            self.buffer, self.byte_stream, self.windows, streams=self.streams, on_ids_exhausted=self._on_ids_exhausted
        )
        self.decoder = hpack.Decoder()
        self._seen = 0

    def _on_ids_exhausted(self) -> None:
        self.exhausted += 1

    def server_stream(self, stream_id: int, *, remote_closed: bool = True) -> OutgoingStream:
        """A stream that the peer has opened."""
        stream = OutgoingStream(self.buffer, stream_id, self.windows.initial)
        stream.remote_closed = remote_closed
        self.streams[stream_id] = stream
        return stream

    def client_stream(self, literals: list[Field] | None = None) -> OutgoingStream:
        """A stream of ours that has no id yet."""
        stream = OutgoingStream(self.buffer, 0, 0)
        stream.head = HEAD
        stream.head_literals = literals or []
        return stream

    async def settle(self) -> list[Frame]:
        """Let the writer write what it can; return the frames since last time."""
        await trio.testing.wait_all_tasks_blocked()
        return self.new_frames()

    def new_frames(self) -> list[Frame]:
        fresh = self.byte_stream.writes[self._seen :]
        self._seen = len(self.byte_stream.writes)
        return parse_frames(b"".join(fresh))

    def apply(self, **changes: int) -> None:
        self.buffer.put(ApplySettings(frames.frame(frames.SETTINGS, frames.ACK, 0), **changes))

    def credit(self, increment: int, stream: OutgoingStream | None = None) -> None:
        """What the reader does with a WINDOW_UPDATE."""
        if stream is None:
            self.windows.connection += increment
            if self.windows.starved:
                self.windows.starved = False
                self.buffer.put(WindowOpened())
        else:
            stream.window += increment
            if stream.pending_bytes and not stream.active and not stream.queued:
                stream.announce()


def queue(stream: OutgoingStream, data: bytes, *, end: bool = False) -> None:
    stream.chunks.append(data)
    stream.pending_bytes += len(data)
    stream.end_stream = end or stream.end_stream
    stream.announce()


def finish(stream: OutgoingStream) -> None:
    stream.tail = TAIL
    stream.end_stream = True
    stream.announce()


@asynccontextmanager
async def running(bench: Bench) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.writer.run)
        yield
        nursery.cancel_scope.cancel()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    async with running(bench):
        yield bench


def data_sizes(found: list[Frame]) -> list[tuple[int, int]]:
    return [(frame.stream_id, len(frame.data)) for frame in found if isinstance(frame, DataFrame)]


def names(found: list[Frame]) -> list[str]:
    return [type(frame).__name__.removesuffix("Frame") for frame in found]


def ping(number: int) -> RawFrame:
    return RawFrame(frames.frame(frames.PING, frames.ACK, 0, b"%08d" % number), is_response=True)


# -- an idle writer


def write_alone(bench: Bench, stream: OutgoingStream) -> None:
    assert bench.buffer.write_alone is not None, "the writer is not idle"
    bench.buffer.write_alone(stream)


def reply(bench: Bench, stream_id: int, data: bytes) -> OutgoingStream:
    stream = bench.server_stream(stream_id)
    stream.head = HEAD
    stream.chunks.append(data)
    stream.pending_bytes = len(data)
    stream.tail = TAIL
    stream.end_stream = True
    return stream


async def test_what_an_idle_writer_is_given_is_out_at_once(bench: Bench) -> None:
    await bench.settle()
    bench.byte_stream.room = 1000
    stream = reply(bench, 1, b"data")
    write_alone(bench, stream)
    # No other task has run.
    assert names(bench.new_frames()) == ["Headers", "Data", "Headers"]
    assert stream.local_closed
    assert bench.buffer.write_alone is not None
    assert bench.buffer.pending_frames == 0
    assert await bench.settle() == []


@pytest.mark.parametrize("room", [0, 1, 9, 10, 40])
async def test_what_the_socket_does_not_take_at_once_is_written_next(bench: Bench, room: int) -> None:
    await bench.settle()
    bench.byte_stream.room = room
    write_alone(bench, reply(bench, 1, bytes(100)))
    # Others come now, behind it, by way of the writer.
    assert bench.buffer.write_alone is None
    bench.buffer.put(ping(1))
    finish(bench.server_stream(3))
    assert names(await bench.settle()) == ["Headers", "Data", "Headers", "Ping", "Headers"]


async def test_a_writer_that_has_been_woken_is_not_idle(bench: Bench) -> None:
    await bench.settle()
    bench.buffer.put(ping(1))
    assert bench.buffer.write_alone is None
    await bench.settle()
    assert bench.buffer.write_alone is not None


async def test_a_writer_in_the_midst_of_a_write_is_not_idle(bench: Bench) -> None:
    bench.byte_stream.hold()
    bench.buffer.put(ping(1))
    await bench.settle()
    assert bench.buffer.write_alone is None
    bench.byte_stream.release()
    await bench.settle()
    assert bench.buffer.write_alone is not None


async def test_a_writer_that_has_not_begun_is_not_idle() -> None:
    # Otherwise a first call would overtake the SETTINGS that are queued.
    bench = Bench()
    bench.buffer.put(ping(1))
    async with running(bench):
        while not bench.byte_stream.writes:
            assert bench.buffer.write_alone is None
            await trio.lowlevel.checkpoint()
        await bench.settle()
        assert bench.buffer.write_alone is not None


async def test_a_buffer_that_is_closed_has_no_idle_writer() -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_until_closed, bench)
        await bench.settle()
        assert bench.buffer.write_alone is not None
        bench.buffer.close()
        assert bench.buffer.write_alone is None


async def run_until_closed(bench: Bench) -> None:
    with pytest.raises(trio.EndOfChannel):
        await bench.writer.run()


async def test_a_writer_that_was_cancelled_is_not_idle() -> None:
    bench = Bench()
    async with running(bench):
        await bench.settle()
        assert bench.buffer.write_alone is not None
    assert bench.buffer.write_alone is None


async def test_windows_hold_for_what_an_idle_writer_is_given(bench: Bench) -> None:
    bench.windows.connection = 0
    await bench.settle()
    bench.byte_stream.room = 10_000
    stream = reply(bench, 1, b"data")
    write_alone(bench, stream)
    assert names(await bench.settle()) == ["Headers"]
    assert bench.windows.starved
    bench.credit(3)
    assert data_sizes(await bench.settle()) == [(1, 3)]
    bench.credit(1)
    assert names(await bench.settle()) == ["Data", "Headers"]


async def test_more_than_one_turn_is_left_to_the_round(bench: Bench) -> None:
    await bench.settle()
    bench.byte_stream.room = 10**6
    write_alone(bench, reply(bench, 1, bytes(40_000)))
    assert data_sizes(bench.new_frames()) == [(1, TURN)]
    queue(bench.server_stream(3), b"small", end=True)
    found = data_sizes(await bench.settle())
    assert (3, 5) in found[:2]
    assert sum(size for stream_id, size in found if stream_id == 1) == 40_000 - TURN


async def test_a_reset_that_the_peer_caused_counts_until_it_is_out(bench: Bench) -> None:
    await bench.settle()
    bench.byte_stream.room = 1000
    stream = bench.server_stream(1)
    stream.reset_code = ErrorCode.CANCEL
    stream.reset_is_response = True
    bench.buffer.count_response()
    write_alone(bench, stream)
    assert bench.buffer.pending_responses == 0
    assert names(bench.new_frames()) == ["RstStream"]


# -- batches


async def test_all_that_is_queued_goes_out_in_one_write(bench: Bench) -> None:
    for number in range(100):
        bench.buffer.put(ping(number))
    stream = bench.server_stream(1)
    stream.head = HEAD
    queue(stream, b"data")
    finish(stream)
    found = await bench.settle()
    assert len(bench.byte_stream.writes) == 1
    assert names(found) == ["Ping"] * 100 + ["Headers", "Data", "Headers"]


async def test_small_messages_of_one_stream_share_a_data_frame(bench: Bench) -> None:
    stream = bench.server_stream(1)
    for number in range(10):
        queue(stream, bytes([number]))
    assert [frame.data for frame in await bench.settle() if isinstance(frame, DataFrame)] == [bytes(range(10))]


async def test_an_idle_writer_writes_nothing(bench: Bench) -> None:
    bench.buffer.put(WindowOpened())
    assert await bench.settle() == []
    assert not bench.byte_stream.writes


async def test_a_write_is_at_most_256_kib_and_one_turn(bench: Bench) -> None:
    bench.windows.connection = 2**30
    bench.apply(initial_window_size=2**24)
    await bench.settle()
    bench.byte_stream.writes.clear()
    for number in range(100):
        queue(bench.server_stream(2 * number + 1), bytes(100_000))
    await bench.settle()
    assert sum(map(len, bench.byte_stream.writes)) > 100 * 100_000
    assert max(map(len, bench.byte_stream.writes)) <= WRITE_SIZE + TURN + 9


# -- the head, the tail, and what is between


async def test_a_request_takes_its_id_as_it_is_written(bench: Bench) -> None:
    first, second = bench.client_stream(), bench.client_stream()
    first.end_stream = second.end_stream = True
    second.announce()
    first.announce()
    found = await bench.settle()
    assert [frame.stream_id for frame in found] == [1, 3]
    assert (second.stream_id, first.stream_id) == (1, 3)
    assert bench.writer.last_stream_id == 3
    assert all("END_STREAM" in frame.flags for frame in found)
    assert second.local_closed


async def test_a_request_with_a_message(bench: Bench) -> None:
    stream = bench.client_stream([(b"x-key", b"value")])
    queue(stream, b"request", end=True)
    head, data = await bench.settle()
    assert isinstance(head, HeadersFrame)
    assert "END_STREAM" not in head.flags
    assert bench.decoder.decode(head.data) == [(":status", "200"), ("x-key", "value")]
    assert isinstance(data, DataFrame)
    assert data.data == b"request"
    assert "END_STREAM" in data.flags
    assert stream.local_closed
    assert bench.streams == {1: stream}


async def test_a_half_close_that_comes_late_is_an_empty_data_frame(bench: Bench) -> None:
    stream = bench.client_stream()
    queue(stream, b"request")
    await bench.settle()
    stream.end_stream = True
    stream.announce()
    (end,) = await bench.settle()
    assert isinstance(end, DataFrame)
    assert end.data == b""
    assert "END_STREAM" in end.flags


async def test_trailers_queue_behind_the_data_of_their_stream(bench: Bench) -> None:
    stream = bench.server_stream(1)
    stream.head = HEAD
    queue(stream, bytes(70_000))
    finish(stream)
    assert names(await bench.settle()) == ["Headers", "Data", "Data", "Data", "Data"]
    bench.credit(100_000)
    bench.credit(1, stream)
    assert data_sizes(await bench.settle()) == [(1, 1)]
    bench.credit(100_000, stream)
    *data, tail = await bench.settle()
    assert sum(size for _, size in data_sizes(data)) == 70_000 - 65_536
    assert isinstance(tail, HeadersFrame)
    assert "END_STREAM" in tail.flags


async def test_trailers_alone(bench: Bench) -> None:
    finish(bench.server_stream(1))
    (tail,) = await bench.settle()
    assert isinstance(tail, HeadersFrame)
    assert "END_STREAM" in tail.flags


async def test_a_server_that_ends_early_says_that_it_wants_no_more(bench: Bench) -> None:
    """RFC 9113, 8.1."""
    finish(bench.server_stream(1, remote_closed=False))
    tail, reset = await bench.settle()
    assert isinstance(tail, HeadersFrame)
    assert isinstance(reset, RstStreamFrame)
    assert reset.error_code == ErrorCode.NO_ERROR


async def test_a_long_header_block_is_continued(bench: Bench) -> None:
    finish(bench.server_stream(1))
    other = bench.server_stream(3)
    other.tail_literals = [(b"x-long", b"v" * 40_000)]
    finish(other)
    found = await bench.settle()
    assert names(found) == ["Headers", "Headers", "Continuation", "Continuation"]
    block = b"".join(frame.data for frame in found[1:] if isinstance(frame, (HeadersFrame, ContinuationFrame)))
    first = found[0]
    assert isinstance(first, HeadersFrame)
    bench.decoder.max_header_list_size = 100_000
    bench.decoder.decode(first.data)
    assert ("x-long", "v" * 40_000) in bench.decoder.decode(block)
    assert ["END_HEADERS" in frame.flags for frame in found] == [True, False, False, True]


# -- refusals and resets


async def test_a_refusal_is_written_as_it_is(bench: Bench) -> None:
    bench.buffer.put(RefuseStream(5, ((b"grpc-status", b"12"),), ErrorCode.NO_ERROR))
    bench.buffer.put(RefuseStream(7, None, ErrorCode.REFUSED_STREAM))
    bench.buffer.put(RefuseStream(9, ((b"grpc-status", b"12"),), None))
    found = await bench.settle()
    assert [(type(frame), frame.stream_id) for frame in found] == [
        (HeadersFrame, 5),
        (RstStreamFrame, 5),
        (RstStreamFrame, 7),
        (HeadersFrame, 9),
    ]
    assert bench.buffer.pending_responses == 0


async def test_a_reset_goes_out_instead_of_what_is_queued(bench: Bench) -> None:
    stream = bench.server_stream(1)
    stream.head = HEAD
    queue(stream, b"data")
    stream.reset_code = ErrorCode.CANCEL
    (reset,) = await bench.settle()
    assert isinstance(reset, RstStreamFrame)
    assert reset.error_code == ErrorCode.CANCEL
    assert (stream.local_closed, stream.pending_bytes) == (True, 0)


async def test_a_reset_is_written_once(bench: Bench) -> None:
    stream = bench.server_stream(1)
    stream.reset_code = ErrorCode.CANCEL
    stream.announce()
    assert len(await bench.settle()) == 1
    stream.announce()
    assert await bench.settle() == []


async def test_a_request_reset_before_it_was_written_writes_nothing(bench: Bench) -> None:
    """A reset of an idle stream makes Java and grpc-js close the connection."""
    stream = bench.client_stream()
    queue(stream, b"request", end=True)
    stream.reset_code = ErrorCode.CANCEL
    assert await bench.settle() == []
    assert stream.local_closed
    # And no id is wasted.
    other = bench.client_stream()
    other.announce()
    assert [frame.stream_id for frame in await bench.settle()] == [1]


async def test_a_reset_stops_data_that_is_under_way(bench: Bench) -> None:
    bench.byte_stream.hold()
    bench.windows.connection = 2**20
    bench.apply(initial_window_size=2**20)
    stream = bench.server_stream(1)
    queue(stream, bytes(2**20))
    await bench.settle()
    stream.reset_code = ErrorCode.CANCEL
    stream.announce()
    bench.byte_stream.release()
    found = await bench.settle()
    assert names(found) == ["RstStream"]
    assert not stream.active


async def test_a_reset_that_the_peer_caused_counts_until_it_is_written(bench: Bench) -> None:
    bench.byte_stream.hold()
    bench.buffer.put(RawFrame(frames.frame(frames.PING, 0, 0, bytes(8))))
    await bench.settle()
    stream = bench.server_stream(1)
    stream.reset_code = ErrorCode.PROTOCOL_ERROR
    stream.reset_is_response = True
    bench.buffer.count_response()
    stream.announce()
    bench.byte_stream.release_one()
    await bench.settle()
    assert bench.buffer.pending_responses == 1
    bench.byte_stream.release()
    await bench.settle()
    assert bench.buffer.pending_responses == 0


# -- windows


async def test_nothing_is_written_beyond_the_stream_window(bench: Bench) -> None:
    bench.windows.connection = 2**20
    stream = bench.server_stream(1)
    queue(stream, bytes(100_000))
    assert sum(size for _, size in data_sizes(await bench.settle())) == 65_535
    assert (stream.window, stream.pending_bytes, stream.active) == (0, 34_465, False)
    bench.credit(10_000, stream)
    assert data_sizes(await bench.settle()) == [(1, 10_000)]
    bench.credit(100_000, stream)
    assert sum(size for _, size in data_sizes(await bench.settle())) == 24_465


async def test_nothing_is_written_beyond_the_connection_window(bench: Bench) -> None:
    bench.apply(initial_window_size=2**20)
    streams = [bench.server_stream(stream_id) for stream_id in (1, 3)]
    for stream in streams:
        queue(stream, bytes(50_000))
    assert sum(size for _, size in data_sizes(await bench.settle())) == 65_535
    assert bench.windows.connection == 0
    assert bench.windows.starved
    bench.credit(1)
    assert sum(size for _, size in data_sizes(await bench.settle())) == 1
    bench.credit(2**20)
    await bench.settle()
    assert [stream.pending_bytes for stream in streams] == [0, 0]


async def test_a_writer_without_connection_credit_sleeps_and_writes_all_else(bench: Bench) -> None:
    bench.windows.connection = 0
    stream = bench.server_stream(1)
    queue(stream, b"data")
    assert await bench.settle() == []
    for number in range(3):
        bench.buffer.put(ping(number))
        assert names(await bench.settle()) == ["Ping"]


async def test_empty_messages_need_no_credit_to_end(bench: Bench) -> None:
    bench.windows.connection = 0
    stream = bench.server_stream(1)
    stream.window = -100
    stream.head = HEAD
    finish(stream)
    assert names(await bench.settle()) == ["Headers", "Headers"]


async def test_windows_go_negative_when_the_peer_cuts_its_initial_window(bench: Bench) -> None:
    """RFC 9113, 6.9.2."""
    bench.windows.connection = 2**20
    stream = bench.server_stream(1)
    queue(stream, bytes(50_000))
    await bench.settle()
    bench.apply(initial_window_size=1000)
    await bench.settle()
    assert stream.window == 1000 - 50_000
    queue(stream, bytes(5000))
    assert await bench.settle() == []
    bench.credit(49_000, stream)
    assert await bench.settle() == []
    bench.credit(10, stream)
    assert data_sizes(await bench.settle()) == [(1, 10)]
    bench.apply(initial_window_size=3000)
    assert data_sizes(await bench.settle()) == [(1, 2000)]
    bench.credit(10_000, stream)
    assert data_sizes(await bench.settle()) == [(1, 2990)]


async def test_a_new_stream_starts_with_the_window_that_was_acknowledged(bench: Bench) -> None:
    bench.apply(initial_window_size=10)
    stream = bench.client_stream()
    queue(stream, bytes(100))
    found = await bench.settle()
    assert names(found) == ["Settings", "Headers", "Data"]
    assert data_sizes(found) == [(1, 10)]


async def test_trailers_of_a_stream_whose_data_was_dropped_need_no_window(bench: Bench) -> None:
    """A handler's deadline drops its data while the stream waits in the round, where its window has gone negative."""
    bench.byte_stream.hold()
    bench.windows.connection = 2**20
    streams = [bench.server_stream(stream_id) for stream_id in range(1, 60, 2)]
    for stream in streams:
        queue(stream, bytes(60_000))
    await bench.settle()
    waiting = [stream for stream in streams if stream.active and stream.pending_bytes]
    assert waiting
    bench.apply(initial_window_size=0)
    for stream in waiting:
        stream.drop_chunks()
        finish(stream)
    bench.byte_stream.release()
    found = await bench.settle()
    assert {frame.stream_id for frame in found if isinstance(frame, HeadersFrame)} == {
        stream.stream_id for stream in waiting
    }
    assert data_sizes(found) == []


async def test_trailers_of_a_stream_whose_data_was_dropped_need_no_connection_window(bench: Bench) -> None:
    bench.windows.connection = 10
    stream = bench.server_stream(1)
    queue(stream, bytes(1000))
    await bench.settle()
    assert stream.active
    stream.drop_chunks()
    finish(stream)
    assert names(await bench.settle()) == ["Headers"]
    bench.credit(1000)
    assert await bench.settle() == []
    assert not stream.active


# -- settings


async def test_settings_apply_with_their_acknowledgement_and_not_before(bench: Bench) -> None:
    """Everything behind the ACK follows the new rules, everything before it the old ones."""
    old, new = bench.server_stream(1), bench.server_stream(3)
    old.tail_literals = new.tail_literals = [(b"x-long", b"v" * 20_000)]
    finish(old)
    bench.apply(max_frame_size=32_768, header_table_size=0)
    finish(new)
    found = await bench.settle()
    assert names(found) == ["Headers", "Continuation", "Settings", "Headers"]
    last = found[-1]
    assert isinstance(last, HeadersFrame)
    # A table size update of 0 opens the first block after it (RFC 7541, 4.2).
    assert last.data[0] == 0x20


async def test_a_bigger_window_wakes_the_streams_that_waited_for_it(bench: Bench) -> None:
    bench.windows.connection = 2**20
    streams = [bench.server_stream(stream_id) for stream_id in (1, 3, 5)]
    for stream in streams:
        queue(stream, bytes(70_000))
    await bench.settle()
    bench.apply(initial_window_size=70_000)
    found = await bench.settle()
    assert isinstance(found[0], SettingsFrame)
    assert sorted(data_sizes(found)) == [(1, 4465), (3, 4465), (5, 4465)]


async def test_a_frame_is_at_most_as_long_as_the_peer_says(bench: Bench) -> None:
    bench.windows.connection = 2**30
    bench.apply(initial_window_size=2**20)
    queue(bench.server_stream(1), bytes(100_000))
    assert max(size for _, size in data_sizes(await bench.settle())) == 16_384
    bench.apply(max_frame_size=2**20)
    queue(bench.server_stream(3), bytes(600_000))
    # Alone on the connection, after its first turn it fills the peer's whole frame.
    assert data_sizes(await bench.settle())[1:] == [(3, 600_000 - 16_384)]


# -- the round


async def test_streams_take_turns(bench: Bench) -> None:
    bench.windows.connection = 2**30
    bench.apply(initial_window_size=2**20, max_frame_size=2**20)
    streams = [bench.server_stream(stream_id) for stream_id in (1, 3, 5)]
    for stream in streams:
        queue(stream, bytes(100_000))
    order = [(stream_id, size) for stream_id, size in data_sizes(await bench.settle()) if size == TURN]
    # Six full turns each, always in the same order: nobody gets a second one before all others had theirs.
    assert [stream_id for stream_id, _ in order[:18]] == [1, 3, 5] * 6


async def test_a_big_upload_does_not_starve_a_small_call(bench: Bench) -> None:
    bench.windows.connection = 2**30
    bench.apply(initial_window_size=2**30)
    await bench.settle()
    bench.byte_stream.hold()
    big = bench.server_stream(1)
    queue(big, bytes(2**23))
    await bench.settle()
    small = bench.server_stream(3)
    small.head = HEAD
    queue(small, b"reply")
    finish(small)
    bench.byte_stream.release_one()
    found = await bench.settle()
    # It is in the very next write, ahead of the big one.
    assert names(found[:3]) == ["Headers", "Data", "Headers"]
    assert {frame.stream_id for frame in found[:3]} == {3}
    bench.byte_stream.release()


async def test_a_stream_that_is_always_full_does_not_starve_the_others(bench: Bench) -> None:
    """A producer that queues again at once gets its turn behind those who wait."""
    bench.windows.connection = 2**30
    bench.apply(initial_window_size=2**30)
    await bench.settle()
    bench.byte_stream.hold()
    streams = [bench.server_stream(stream_id) for stream_id in (1, 3, 5, 7)]
    written = {stream.stream_id: 0 for stream in streams}
    for _ in range(40):
        for stream in streams:
            while stream.pending_bytes < WRITE_QUOTA:
                queue(stream, bytes(7001))
        bench.byte_stream.release_one()
        for stream_id, size in data_sizes(await bench.settle()):
            written[stream_id] += size
    assert max(written.values()) - min(written.values()) <= 2 * TURN
    bench.byte_stream.release()


async def test_streams_that_come_and_go_do_not_starve_the_round(bench: Bench) -> None:
    """What a stream has when it is announced goes out at once, but never fills the whole write."""
    bench.windows.connection = 2**30
    bench.apply(initial_window_size=2**30)
    await bench.settle()
    bench.byte_stream.hold()
    big = bench.server_stream(1)
    queue(big, bytes(2**23))
    small = [bench.server_stream(2 * number + 3) for number in range(40)]
    turns = 0
    for _ in range(40):
        for stream in small:
            if not stream.pending_bytes:
                queue(stream, bytes(TURN))
        bench.byte_stream.release_one()
        turns += data_sizes(await bench.settle()).count((1, TURN))
    # 40 writes have room for some 680 turns.
    assert turns >= 8
    bench.byte_stream.release()


@pytest.mark.parametrize("stream_count", [1, 10, 300])
async def test_a_ping_is_answered_behind_at_most_one_write(bench: Bench, stream_count: int) -> None:
    bench.windows.connection = 2**30
    bench.apply(initial_window_size=2**30)
    await bench.settle()
    bench.byte_stream.hold()
    for number in range(stream_count):
        queue(bench.server_stream(2 * number + 1), bytes(2**20))
    bench.buffer.put(ping(0))
    await bench.settle()
    # One write may be under way when the PING comes; then it is the next one's turn.
    bench.byte_stream.release_one()
    bench.buffer.put(ping(1))
    await trio.testing.wait_all_tasks_blocked()
    bench.byte_stream.release_one()
    found = await bench.settle()
    writes = [parse_frames(write) for write in bench.byte_stream.writes]
    answered = [index for index, write in enumerate(writes) if any(isinstance(frame, PingFrame) for frame in write)]
    assert len(writes) == 4
    assert answered[0] == 1
    assert answered[1] <= 3
    assert found
    bench.byte_stream.release()


async def test_a_write_quota_frees_the_producer_as_bytes_leave(bench: Bench) -> None:
    stream = bench.server_stream(1)
    queue(stream, bytes(WRITE_QUOTA + 65_535))
    woken = trio.Event()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def producer() -> None:
            await stream.wait_write_quota()
            woken.set()

        await trio.testing.wait_all_tasks_blocked()
        # One window is out, one quota is left.
        assert stream.pending_bytes == WRITE_QUOTA
        assert not woken.is_set()
        bench.credit(1)
        bench.credit(1, stream)
    assert woken.is_set()


# -- ids


async def test_when_ids_run_out_the_connection_is_told_and_the_rest_is_orphaned(bench: Bench) -> None:
    bench.writer._next_stream_id = MAX_STREAM_ID
    last, late = bench.client_stream(), bench.client_stream()
    last.announce()
    late.announce()
    found = await bench.settle()
    assert [frame.stream_id for frame in found] == [MAX_STREAM_ID]
    assert bench.exhausted == 1
    assert bench.writer.last_stream_id == MAX_STREAM_ID
    assert late.local_closed
    assert not late.stream_id


async def test_a_connection_that_opens_no_more_orphans_what_has_no_id(bench: Bench) -> None:
    bench.writer.refusing = True
    stream = bench.client_stream()
    queue(stream, b"request", end=True)
    assert await bench.settle() == []
    assert (stream.local_closed, stream.pending_bytes) == (True, 0)


# -- ends


async def test_the_farewell_is_the_last_thing_written() -> None:
    bench = Bench()
    ended = trio.Event()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def run() -> None:
            await bench.writer.run()
            ended.set()

        bench.buffer.put(ping(0))
        bench.buffer.put(Farewell(frames.goaway(0, 0)))
        bench.buffer.put(ping(1))
        await trio.testing.wait_all_tasks_blocked()
        assert ended.is_set()
    found = bench.byte_stream.frames()
    assert names(found) == ["Ping", "GoAway"]
    assert isinstance(found[1], GoAwayFrame)
    # What came too late is still there to be orphaned.
    assert bench.buffer.pending_frames == 1
    bench.buffer.close()
    assert bench.buffer.pending_responses == 0


async def test_the_end_of_the_buffer_ends_the_writer() -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def run() -> None:
            with pytest.raises(trio.EndOfChannel):
                await bench.writer.run()

        await trio.testing.wait_all_tasks_blocked()
        bench.buffer.close()


async def test_after_the_end_of_the_buffer_nothing_more_of_a_batch_is_written() -> None:
    bench = Bench()
    bench.windows.connection = 2**30
    bench.byte_stream.hold()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def run() -> None:
            with pytest.raises((trio.EndOfChannel, trio.ClosedResourceError)):
                await bench.writer.run()

        streams = [bench.server_stream(2 * number + 1) for number in range(100)]
        for stream in streams:
            queue(stream, bytes(60_000))
        await trio.testing.wait_all_tasks_blocked()
        bench.buffer.close()
        bench.writer.orphan_all()
        bench.byte_stream.release()
    assert len(bench.byte_stream.writes) == 1
    assert all(stream.local_closed or not stream.active for stream in streams)
    assert not any(stream.active for stream in streams)
    assert not any(stream.chunks for stream in streams if stream.local_closed)


async def test_a_broken_byte_stream_comes_out() -> None:
    bench = Bench()
    bench.byte_stream.fail_at = 0
    for number in range(3):
        bench.buffer.put(ping(number))
    with pytest.raises(BrokenPipeError):
        await bench.writer.run()
    assert bench.buffer.pending_responses == 0


async def test_a_cancelled_writer_settles_its_replies() -> None:
    bench = Bench()
    bench.byte_stream.hold()
    async with running(bench):
        bench.buffer.put(ping(0))
        await bench.settle()
        assert bench.buffer.pending_responses == 1
    assert bench.byte_stream.cancelled_writes == 1
    assert bench.buffer.pending_responses == 0
