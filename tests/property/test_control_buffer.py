"""Every control frame is written or orphaned, exactly once, whatever happens to the connection and when.

A real connection of either side runs over a byte stream that a machine holds, releases, breaks, feeds and ends; calls
come and go meanwhile. At the end all accounts must balance: frames, streams, slots, replies, windows and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import hpack
import trio
import trio.testing
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, RstStreamFrame, SettingsFrame
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.gated_stream import GatedStream, parse_frames
from trio_grpc._options import Limits
from trio_grpc._status import StatusCode
from trio_grpc._transport import frames
from trio_grpc._transport.connection import Connection
from trio_grpc._transport.control_buffer import WRITE_QUOTA, RawFrame
from trio_grpc._transport.header_codec import HeaderTemplate
from trio_grpc._transport.headers import request_template, response_fields, trailer_fields
from trio_grpc._transport.messages import frame_message
from trio_grpc._transport.side import Side
from trio_grpc._transport.stream import Stream

bounded = settings(max_examples=300, derandomize=True, deadline=None)

REQUEST = HeaderTemplate(
    tuple(request_template("/echo.Echo/Bidi", "localhost", "http", "tests", "application/grpc", "identity", ""))
)
RESPONSE = HeaderTemplate(tuple(response_fields("identity", "identity")))
TRAILERS = HeaderTemplate(tuple(trailer_fields(0)))
WINDOW = 65_535


class Tracked(RawFrame):
    """A PING with bytes of its own, which counts its orphanings."""

    def __init__(self, number: int, is_response: bool) -> None:
        super().__init__(frames.frame(frames.PING, 0, 0, b"track%03d" % number), is_response)
        self.orphaned = 0

    def orphan(self) -> None:
        self.orphaned += 1


@attrs.define(eq=False)
class Rpc:
    """One stream and what its producer has queued."""

    stream: Stream
    number: int
    data: bytearray = attrs.field(factory=bytearray)
    credit: int = 0
    faults: int = 0


class Machine:
    """A connection, its byte stream, and everything that was done to them."""

    def __init__(self, side: Side, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        self.side = side
        self.draw = draw
        self.byte_stream = GatedStream()
        self.encoder = hpack.Encoder()
        self.tracked: list[Tracked] = []
        self.rpcs: list[Rpc] = []
        self.credit = WINDOW
        #: The peer's initial window before its first SETTINGS and after each of them.
        self.initial_windows = [WINDOW]
        self.eof_fed = False
        self.draining = False
        self.next_peer_id = 1
        self.connection = Connection(
            side,
            self.byte_stream,
            Limits(adaptive_window=False, max_concurrent_streams=8),
            peer="peer",
            handshake_timeout=1000,
            on_stream=self.take_stream,
        )
        self.scope = trio.CancelScope()

    # -- our side

    def take_stream(self, stream: Stream) -> None:
        self.rpcs.append(Rpc(stream, stream.stream_id))

    def open(self) -> None:
        # All choices come first: one of them may end the example, and must not leave a slot behind.
        messages, ends = self.choose(3), bool(self.choose(2))
        if self.side is Side.SERVER:
            self.feed_request()
        elif self.connection.table.acquire_nowait():
            number = len(self.rpcs)
            stream = self.connection.open_stream(REQUEST, [(b"x-number", b"%d" % number)])
            rpc = Rpc(stream, number)
            self.rpcs.append(rpc)
            for _ in range(messages):
                self.queue(rpc, 100)
            stream.end_stream = ends
            stream.announce()

    def queue(self, rpc: Rpc, size: int) -> None:
        """What `Stream.send_message` does, but for the waiting."""
        stream = rpc.stream
        if (
            stream.pending_bytes >= WRITE_QUOTA
            or stream.local_closed
            or stream.end_stream
            or stream.reset_code is not None
        ):
            return
        if self.side is Side.SERVER and not stream.responded:
            stream.responded = True
            stream.head = RESPONSE
        message = bytes([rpc.number % 256]) * size
        rpc.data += frame_message(message)
        stream.queue_message(message)

    def send(self) -> None:
        rpc, size = self.choose_rpc(), (0, 1, 100, 9000, 70_000)[self.choose(5)]
        if rpc is not None:
            self.queue(rpc, size)
            if rpc.stream.stream_id or self.side is Side.CLIENT:
                rpc.stream.announce()

    def flood(self) -> None:
        for rpc in self.rpcs[-4:]:
            self.queue(rpc, 70_000)
            if rpc.stream.stream_id or self.side is Side.CLIENT:
                rpc.stream.announce()

    def finish(self) -> None:
        rpc = self.choose_rpc()
        if rpc is None:
            return
        if self.side is Side.CLIENT:
            rpc.stream.done_sending()
        else:
            if not rpc.stream.responded:
                rpc.stream.responded = True
                rpc.stream.head = RESPONSE
            rpc.stream.finish(TRAILERS)

    def cancel(self) -> None:
        rpc = self.choose_rpc()
        if rpc is None:
            return
        if self.side is Side.CLIENT:
            rpc.stream.cancel("cancelled")
        elif self.choose(2):
            rpc.stream.refuse(StatusCode.ABORTED, "refused")
        else:
            rpc.stream.drop_chunks()
            rpc.data = bytearray()
            rpc.stream.finish(TRAILERS)

    def put(self) -> None:
        frame = Tracked(len(self.tracked), bool(self.choose(2)))
        self.tracked.append(frame)
        self.connection.control_buffer.put(frame)

    # -- the peer's side

    def feed(self, data: bytes) -> None:
        if not self.eof_fed and not self.byte_stream.closed:
            self.byte_stream.feed(data)

    def feed_settings(self) -> None:
        settings_: dict[int, int] = {}
        if self.choose(2):
            settings_[frames.SETTINGS_INITIAL_WINDOW_SIZE] = (0, 10, WINDOW, 200_000)[self.choose(4)]
        if self.choose(2):
            settings_[frames.SETTINGS_MAX_FRAME_SIZE] = (16_384, 100_000)[self.choose(2)]
        if self.choose(2):
            settings_[frames.SETTINGS_HEADER_TABLE_SIZE] = (0, 200, 4096)[self.choose(3)]
        self.initial_windows.append(settings_.get(frames.SETTINGS_INITIAL_WINDOW_SIZE, self.initial_windows[-1]))
        payload = b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in settings_.items())
        self.feed(frames.frame(frames.SETTINGS, 0, 0, payload))

    def feed_pings(self) -> None:
        for number in range((1, 5, 150)[self.choose(3)]):
            self.feed(frames.frame(frames.PING, 0, 0, b"ping%04d" % number))

    def feed_credit(self) -> None:
        increment = (1, 5000, 100_000)[self.choose(3)]
        rpc = self.choose_rpc()
        if rpc is None or not rpc.stream.stream_id or self.choose(2):
            self.credit += increment
            self.feed(frames.window_update(0, increment))
        else:
            rpc.credit += increment
            self.feed(frames.window_update(rpc.stream.stream_id, increment))

    def feed_request(self) -> None:
        block = self.encoder.encode(REQUEST.fields)
        self.feed(frames.frame(frames.HEADERS, frames.END_HEADERS, self.next_peer_id, block))
        if self.choose(2):
            self.feed(frames.frame(frames.DATA, frames.END_STREAM, self.next_peer_id, frame_message(b"request")))
        self.next_peer_id += 2

    def feed_answer(self) -> None:
        rpc = self.choose_rpc()
        if rpc is None or not rpc.stream.stream_id or self.side is Side.SERVER:
            return
        stream_id = rpc.stream.stream_id
        step = self.choose(4)
        if rpc.stream.head_record is None or step == 0:
            self.feed(frames.frame(frames.HEADERS, frames.END_HEADERS, stream_id, self.encoder.encode(RESPONSE.fields)))
        elif step < 3:
            self.feed(frames.frame(frames.DATA, 0, stream_id, frame_message(b"reply")))
        else:
            block = self.encoder.encode(TRAILERS.fields)
            self.feed(frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream_id, block))

    def feed_stream_fault(self) -> None:
        """DATA that is no message, or credit of nothing: the answer is a reset."""
        rpc = self.choose_rpc()
        if rpc is not None and rpc.stream.stream_id:
            rpc.faults += 1
            if self.choose(2):
                self.feed(frames.frame(frames.DATA, 0, rpc.stream.stream_id, b"\x07\0\0\0\0"))
            else:
                self.feed(frames.frame(frames.WINDOW_UPDATE, 0, rpc.stream.stream_id, bytes(4)))

    def feed_reset(self) -> None:
        rpc = self.choose_rpc()
        if rpc is not None and rpc.stream.stream_id:
            self.feed(frames.rst_stream(rpc.stream.stream_id, (0, 7, 8)[self.choose(3)]))

    def feed_goaway(self) -> None:
        self.feed(frames.goaway((0, 1, 5, frames.MAX_STREAM_ID)[self.choose(4)], 0))

    # -- the byte stream and the end

    def hold(self) -> None:
        self.byte_stream.hold()

    def release_one(self) -> None:
        self.byte_stream.release_one()

    def release(self) -> None:
        self.byte_stream.release()

    def end(self) -> None:
        how = self.choose(6)
        if how == 0:
            self.byte_stream.fail_at = len(self.byte_stream.writes) + self.choose(2)
        elif how == 1:
            self.feed(b"\0\0\0\x07\0\0\0\0\x01" * 3)
        elif how == 2 and not self.eof_fed:
            self.eof_fed = True
            self.byte_stream.feed_eof()
        elif how == 3:
            self.scope.cancel()
        elif how == 4:
            self.nursery.start_soon(self.connection.aclose)
        else:
            self.draining = True
            self.nursery.start_soon(self.connection.drain)

    # -- choices

    def choose(self, count: int) -> int:
        return self.draw(st.integers(0, count - 1))

    def choose_rpc(self) -> Rpc | None:
        recent = self.rpcs[-4:]
        return recent[self.choose(len(recent))] if recent else None

    async def run(self, steps: Sequence[Callable[[], None]]) -> None:
        # Bounds on what is done after the end: a peer that is gone sends nothing.
        async with trio.open_nursery() as self.nursery:
            self.nursery.start_soon(self.run_connection)
            if self.side is Side.SERVER:
                self.feed(frames.PREFACE)
            # Nobody gets at a connection before it has said its preface.
            await trio.testing.wait_all_tasks_blocked()
            self.feed_settings()
            for step in steps:
                step()
                pause = self.choose(4)
                if pause == 0:
                    await self.settle()
                elif pause == 1:
                    await trio.lowlevel.checkpoint()
            self.byte_stream.release()
            await self.settle()
            self.nursery.start_soon(self.connection.aclose)
            await self.settle()
            if not self.connection.closed.is_set():
                # A server waits for its client to hang up, for a while.
                assert self.side is Side.SERVER
                if not self.eof_fed:
                    self.byte_stream.feed_eof()
                await self.settle()
            assert self.connection.closed.is_set()
            self.nursery.cancel_scope.cancel()

    async def run_connection(self) -> None:
        with self.scope:
            await self.connection.run()

    async def settle(self) -> None:
        await trio.testing.wait_all_tasks_blocked()
        if not self.byte_stream.blocked and not self.connection._said_farewell:
            # With nothing left to write, all replies are written and the reader reads.
            assert self.connection.control_buffer.pending_responses == 0
            assert self.connection.control_buffer._throttled is None

    # -- the accounts

    def check(self) -> None:
        written = self.byte_stream.written
        for frame in self.tracked:
            assert written.count(frame.data) + frame.orphaned == 1, frame
        table = self.connection.table
        assert (table.slots_used, table.streams) == (0, {})
        assert self.connection.control_buffer.pending_responses == 0
        assert self.byte_stream.cancelled_writes == 0 or self.scope.cancel_called
        for rpc in self.rpcs:
            stream = rpc.stream
            assert stream.left_table
            assert not stream.chunks
            assert stream.pending_bytes == 0
            assert not stream.active
            if self.side is Side.CLIENT:
                assert stream.outcome is not None
                if not stream.stream_id:
                    assert stream.outcome.unprocessed or stream.outcome.closed_locally
        self.check_wire(parse_frames(written))

    def check_wire(self, found: list[Frame]) -> None:
        by_stream: dict[int, list[Frame]] = {}
        sent: dict[int, int] = {}
        credit = {rpc.stream.stream_id: rpc.credit for rpc in self.rpcs}
        acknowledged = 0
        decoder = hpack.Decoder()
        total = 0
        for frame in found:
            if isinstance(frame, SettingsFrame) and "ACK" in frame.flags:
                acknowledged += 1
            if isinstance(frame, HeadersFrame):
                fields = dict(decoder.decode(frame.data))
                if self.side is Side.CLIENT:
                    rpc = self.rpcs[int(fields["x-number"])]
                    assert rpc.stream.stream_id == frame.stream_id
            if isinstance(frame, DataFrame):
                stream_id, length = frame.stream_id, len(frame.data)
                total += length
                sent[stream_id] = sent.get(stream_id, 0) + length
                # By the settings that are acknowledged at this point of the wire, and not by newer ones.
                assert not length or sent[stream_id] <= self.initial_windows[acknowledged] + credit[stream_id]
            if isinstance(frame, (HeadersFrame, DataFrame, RstStreamFrame)):
                assert frame.stream_id
                by_stream.setdefault(frame.stream_id, []).append(frame)
        assert total <= self.credit
        if self.side is Side.CLIENT:
            # Ids appear in order and without a gap: none was wasted on a call that was never written.
            assert list(by_stream) == [2 * number + 1 for number in range(len(by_stream))]
            assert {rpc.stream.stream_id for rpc in self.rpcs if rpc.stream.stream_id} == set(by_stream)
        # The last GOAWAY is the farewell, after which nothing is written; a drain says two more before it.
        goaways = [index for index, frame in enumerate(found) if isinstance(frame, GoAwayFrame)]
        assert len(goaways) <= (3 if self.draining else 1)
        if self.connection._said_farewell and goaways and not self.draining:
            assert goaways == [len(found) - 1]
        for rpc in self.rpcs:
            self.check_stream(rpc, by_stream.get(rpc.stream.stream_id, []))

    def check_stream(self, rpc: Rpc, found: list[Frame]) -> None:
        ends = [
            index
            for index, frame in enumerate(found)
            if "END_STREAM" in frame.flags or isinstance(frame, RstStreamFrame)
        ]
        data = b"".join(frame.data for frame in found if isinstance(frame, DataFrame))
        resets = [frame for frame in found if isinstance(frame, RstStreamFrame)]
        # A stream that has ended is reset once more for each fault that the peer goes on to make in it.
        assert len(resets) <= 1 + rpc.faults
        if ends:
            # After an end nothing comes but a reset: of a call given up, or because the server wants to hear no more.
            assert all(isinstance(frame, RstStreamFrame) for frame in found[ends[0] + 1 :]), found
        if self.side is Side.CLIENT:
            assert bytes(rpc.data).startswith(data)
            if ends and "END_STREAM" in found[ends[0]].flags:
                assert data == rpc.data
            if found:
                assert isinstance(found[0], HeadersFrame)


STEPS = [
    "open",
    "open",
    "send",
    "flood",
    "finish",
    "cancel",
    "put",
    "feed_settings",
    "feed_pings",
    "feed_credit",
    "feed_credit",
    "feed_answer",
    "feed_answer",
    "feed_stream_fault",
    "feed_reset",
    "hold",
    "release_one",
    "release_one",
    "release",
]
LAST = ["feed_goaway", "end"]
steps = st.tuples(
    st.lists(st.sampled_from(STEPS), min_size=12, max_size=40),
    st.lists(st.sampled_from(LAST), max_size=2),
    st.lists(st.sampled_from(STEPS), max_size=6),
).map(lambda parts: [*parts[0], *parts[1], *parts[2]])


@bounded
@given(st.sampled_from(Side), steps, st.data())
def test_every_frame_is_written_or_orphaned_once(side: Side, names: list[str], data: st.DataObject) -> None:
    async def main() -> None:
        machine = Machine(side, data.draw)
        await machine.run([getattr(machine, name) for name in names])
        machine.check()

    trio.run(main, clock=trio.testing.MockClock())
