"""One stream: its two halves, its table, its credit, and its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from trio_grpc._status import StatusCode
from trio_grpc._transport.control_buffer import WRITE_QUOTA, ControlBuffer, ControlFrame, OutgoingStream, RawFrame
from trio_grpc._transport.flow_control import IncomingWindows
from trio_grpc._transport.frames import ErrorCode, read_uint32
from trio_grpc._transport.header_codec import HeaderTemplate
from trio_grpc._transport.headers import RequestHeaders, ResponseHeaders, parse_request, parse_response
from trio_grpc._transport.messages import MessageTooLarge, TooManyMessages, frame_message
from trio_grpc._transport.stream import Outcome, Stream
from trio_grpc._transport.stream_table import StreamTable

HEAD = HeaderTemplate(((b":status", b"200"),))
OK = Outcome(StatusCode.OK)


def response_head() -> ResponseHeaders:
    record = parse_response([(b":status", b"200"), (b"content-type", b"application/grpc")])
    assert isinstance(record, ResponseHeaders)
    return record


def request_head() -> RequestHeaders:
    record = parse_request(
        [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/s/m"),
            (b":authority", b"a"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ]
    )
    assert isinstance(record, RequestHeaders)
    return record


class Bench:
    """Streams with a control buffer and a table, and no connection."""

    def __init__(self, *, window: int = 1000, limit: int = 10**6, adaptive: bool = False) -> None:
        self.buffer = ControlBuffer()
        self.table: StreamTable[Stream] = StreamTable(100, lambda: None)
        self.windows = IncomingWindows(window, 65_535, adaptive=adaptive)
        self.windows.tolerance = 0
        self.limit = limit

    def _make(self, stream_id: int) -> Stream:
        assert self.table.acquire_nowait()
        stream = Stream(
            self.buffer,
            self.table,
            self.windows,
            stream_id=stream_id,
            send_window=65_535 if stream_id else 0,
            message_limit=self.limit,
            peer="peer",
        )
        if stream_id:
            self.table.streams[stream_id] = stream
        return stream

    def client(self, stream_id: int = 1) -> Stream:
        """A call on the wire: its request headers are written."""
        return self._make(stream_id)

    def queued_client(self) -> Stream:
        """A call whose request headers wait for the writer."""
        stream = self._make(0)
        stream.head = HEAD
        stream.announce()
        return stream

    def server(self, stream_id: int = 1) -> Stream:
        stream = self._make(stream_id)
        stream.request = request_head()
        return stream

    def take(self) -> list[ControlFrame]:
        """Everything that is queued."""
        found = []
        while True:
            try:
                frame = self.buffer.receive_nowait()
            except trio.WouldBlock:
                return found
            if isinstance(frame, Stream):
                frame.queued = False
            found.append(frame)

    def credits(self) -> list[int]:
        """The increments of the WINDOW_UPDATEs that are queued."""
        return [read_uint32(frame.data, 9) for frame in self.take() if isinstance(frame, RawFrame)]


def arrive(stream: Stream, data: bytes) -> bool:
    """What the reader does with a DATA frame; say whether there was credit for it."""
    return stream.peer_data(data, 0, len(data), len(data)) >= 0


async def started(nursery: trio.Nursery, operation: Callable[[], Any]) -> list[Any]:
    """Start an operation in a task and let it get as far as it can; its result appears in the list."""
    results: list[Any] = []

    async def run() -> None:
        try:
            results.append(await operation())
        except (Exception, trio.Cancelled) as error:
            results.append(error)
            if isinstance(error, trio.Cancelled):
                raise

    nursery.start_soon(run)
    await trio.testing.wait_all_tasks_blocked()
    return results


# -- leaving the table


@pytest.mark.parametrize("local_first", [True, False])
def test_a_stream_leaves_when_both_halves_are_closed(local_first: bool) -> None:
    bench = Bench()
    stream = bench.client()
    first, second = (
        (stream.close_local, stream.close_remote) if local_first else (stream.close_remote, stream.close_local)
    )
    first()
    assert bench.table.slots_used == 1
    second()
    assert stream.left_table
    assert (bench.table.slots_used, bench.table.streams) == (0, {})


def test_a_stream_leaves_once() -> None:
    bench = Bench()
    stream, other = bench.client(1), bench.client(3)
    for _ in range(3):
        stream.close_local()
        stream.close_remote()
        stream.abandon("again")
        stream.orphan()
    assert bench.table.slots_used == 1
    assert bench.table.streams == {3: other}


@pytest.mark.parametrize("end", ["trailers", "reset"])
def test_trailers_and_resets_end_both_directions(end: str) -> None:
    bench = Bench()
    stream = bench.server()
    if end == "trailers":
        stream.finish(HEAD)
    else:
        stream.reset(ErrorCode.CANCEL)
    assert not stream.left_table
    stream.close_local()  # by the writer, with the last frame
    assert stream.left_table


async def test_one_may_wait_until_it_has_left() -> None:
    bench = Bench()
    stream = bench.server()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.wait_left_table)
        stream.finish(HEAD)
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks
        stream.close_local()
    await stream.wait_left_table()


# -- resets and cancellation


def test_a_reset_is_queued_once_and_the_first_code_stays() -> None:
    bench = Bench()
    stream = bench.client()
    stream.reset(ErrorCode.CANCEL)
    stream.reset(ErrorCode.PROTOCOL_ERROR)
    assert stream.reset_code == ErrorCode.CANCEL
    assert bench.take() == [stream]


def test_a_stream_that_has_left_is_not_reset() -> None:
    bench = Bench()
    stream = bench.client()
    stream.close_local()
    stream.close_remote()
    stream.reset(ErrorCode.CANCEL)
    assert stream.reset_code is None
    assert bench.take() == []


def test_a_reset_that_the_peer_caused_counts_for_the_throttle_once() -> None:
    bench = Bench()
    stream = bench.client()
    stream.reset(ErrorCode.PROTOCOL_ERROR, is_response=True)
    stream.reset(ErrorCode.PROTOCOL_ERROR, is_response=True)
    assert bench.buffer.pending_responses == 1


def test_after_the_connection_a_reset_counts_no_more() -> None:
    bench = Bench()
    stream = bench.client()
    bench.buffer.close()
    stream.reset(ErrorCode.PROTOCOL_ERROR, is_response=True)
    assert bench.buffer.pending_responses == 0
    assert stream.left_table


def test_cancelling_ends_the_call_and_frees_what_came() -> None:
    bench = Bench()
    stream = bench.client()
    arrive(stream, frame_message(b"unread") + b"\0\0")
    stream.cancel("enough")
    assert stream.outcome is not None
    assert (stream.outcome.code, stream.outcome.closed_locally) == (StatusCode.CANCELLED, True)
    assert not stream.assembler.messages
    assert not stream.assembler.mid_message
    assert stream.reset_code == ErrorCode.CANCEL


def test_the_first_outcome_wins() -> None:
    stream = Bench().client()
    calls: list[None] = []
    stream.on_ended = lambda: calls.append(None)
    stream.end(OK)
    stream.cancel("late")
    stream.end(Outcome(StatusCode.INTERNAL))
    assert stream.outcome is OK
    assert len(calls) == 1


# -- a call that was never written


@pytest.mark.parametrize("how", ["the buffer closes", "the writer opens no more"])
async def test_an_orphaned_call_wakes_its_caller_who_may_try_again(how: str) -> None:
    bench = Bench()
    reason = OSError("gone")
    async with trio.open_nursery() as nursery:
        stream = bench.queued_client()
        nursery.start_soon(stream.wait_outcome)
        await trio.testing.wait_all_tasks_blocked()
        if how == "the buffer closes":
            bench.buffer.close(reason)
        else:
            bench.take()
            stream.orphan()
    outcome = stream.outcome
    assert outcome is not None
    assert (outcome.code, outcome.unprocessed) == (StatusCode.UNAVAILABLE, True)
    assert outcome.cause is (reason if how == "the buffer closes" else None)
    assert bench.table.slots_used == 0


def test_an_orphaned_call_that_was_cancelled_stays_cancelled() -> None:
    bench = Bench()
    stream = bench.queued_client()
    stream.cancel("enough")
    bench.buffer.close()
    assert stream.outcome is not None
    assert stream.outcome.code is StatusCode.CANCELLED
    assert bench.table.slots_used == 0


def test_a_call_announced_after_the_end_is_orphaned_at_once() -> None:
    bench = Bench()
    bench.buffer.close()
    stream = bench.queued_client()
    assert stream.outcome is not None
    assert stream.outcome.unprocessed
    assert bench.table.slots_used == 0


def test_a_call_on_the_wire_is_not_called_unprocessed() -> None:
    bench = Bench()
    stream = bench.client()
    queue = bench.buffer
    stream.queue_message(b"more")
    stream.announce()
    queue.close()
    # The connection gives it its status; here only the books are closed.
    assert stream.outcome is None
    assert stream.left_table


# -- sending


async def test_messages_are_queued_behind_their_prefixes() -> None:
    bench = Bench()
    stream = bench.client()
    assert await stream.send_message(b"small")
    big = bytes(10_000)
    assert await stream.send_message(big, True)
    assert b"".join(stream.chunks) == frame_message(b"small") + frame_message(big, True)
    assert stream.pending_bytes == 5 + 5 + 5 + 10_000
    # A big message is not copied to put its prefix in front.
    assert any(chunk is big for chunk in stream.chunks)
    assert bench.take() == [stream]


async def test_the_quota_makes_the_producer_wait_before_it_queues() -> None:
    bench = Bench()
    stream = bench.client()
    assert await stream.send_message(bytes(WRITE_QUOTA))
    before = stream.pending_bytes
    async with trio.open_nursery() as nursery:
        results = await started(nursery, lambda: stream.send_message(b"next"))
        assert not results
        assert stream.pending_bytes == before
        stream.chunks.clear()
        stream.pending_bytes = 0
        stream.wake_producer()
        await trio.testing.wait_all_tasks_blocked()
        assert results == [True]
    assert b"".join(stream.chunks) == frame_message(b"next")


async def test_a_producer_cancelled_in_the_quota_has_queued_nothing() -> None:
    bench = Bench()
    stream = bench.client()
    await stream.send_message(bytes(WRITE_QUOTA))
    before = list(stream.chunks)
    with trio.move_on_after(0) as scope:
        await stream.send_message(b"never")
    assert scope.cancelled_caught
    assert list(stream.chunks) == before


async def test_a_send_that_queued_cannot_be_cancelled_any_more() -> None:
    bench = Bench()
    stream = bench.client()
    await stream.send_message(bytes(WRITE_QUOTA))
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def send() -> bool:
            with scope:
                return await stream.send_message(b"next")
            raise AssertionError

        results = await started(nursery, send)
        stream.drop_chunks()
        scope.cancel()  # after it was woken, before it has run
        await trio.testing.wait_all_tasks_blocked()
        assert results == [True]
    assert b"".join(stream.chunks) == frame_message(b"next")


@pytest.mark.parametrize("end", ["reset", "half-close", "trailers", "orphan", "peer reset"])
async def test_a_stream_that_has_ended_takes_no_message(end: str) -> None:
    bench = Bench()
    stream = bench.server() if end in {"trailers", "peer reset"} else bench.client()
    if end == "reset":
        stream.reset(ErrorCode.CANCEL)
    elif end == "half-close":
        stream.done_sending()
    elif end == "trailers":
        stream.finish(HEAD)
    elif end == "peer reset":
        stream.abandon("reset")
    else:
        stream.orphan()
    assert not await stream.send_message(b"late")
    assert not stream.chunks


@pytest.mark.parametrize("end", ["reset", "orphan", "peer reset"])
async def test_a_producer_in_the_quota_is_woken_by_the_end(end: str) -> None:
    bench = Bench()
    stream = bench.server()
    await stream.send_message(bytes(WRITE_QUOTA))
    async with trio.open_nursery() as nursery:
        results = await started(nursery, lambda: stream.send_message(b"late"))
        if end == "reset":
            stream.reset(ErrorCode.CANCEL)
        elif end == "orphan":
            stream.orphan()
        else:
            stream.abandon("reset")
        await trio.testing.wait_all_tasks_blocked()
        assert results == [False]


async def test_ends_are_queued_once() -> None:
    bench = Bench()
    stream = bench.client()
    stream.done_sending()
    stream.done_sending()
    assert bench.take() == [stream]
    server = bench.server(3)
    server.finish(HEAD, [(b"a", b"1")])
    server.finish(HEAD, [(b"a", b"2")])
    assert server.tail_literals == [(b"a", b"1")]
    assert bench.take() == [server]


# -- receiving


async def test_messages_are_received_in_order() -> None:
    stream = Bench().client()
    arrive(stream, frame_message(b"a") + frame_message(b"b"))
    assert await stream.receive() == b"a"
    assert await stream.receive() == b"b"


async def test_a_receiver_waits_for_a_whole_message() -> None:
    stream = Bench().client()
    async with trio.open_nursery() as nursery:
        results = await started(nursery, stream.receive)
        data = frame_message(b"message")
        arrive(stream, data[:8])
        await trio.testing.wait_all_tasks_blocked()
        assert not results
        arrive(stream, data[8:])
        await trio.testing.wait_all_tasks_blocked()
        assert results == [b"message"]


async def test_what_came_before_the_end_is_received_before_the_end() -> None:
    stream = Bench().client()
    arrive(stream, frame_message(b"last"))
    stream.peer_end()
    stream.end(OK)
    assert await stream.receive() == b"last"
    assert await stream.receive() is None
    assert await stream.receive() is None


@pytest.mark.parametrize("end", ["outcome", "cancel", "peer reset", "request end"])
async def test_a_waiting_receiver_is_woken_by_the_end(end: str) -> None:
    bench = Bench()
    stream = bench.server() if end in {"peer reset", "request end"} else bench.client()
    async with trio.open_nursery() as nursery:
        results = await started(nursery, stream.receive)
        if end == "outcome":
            stream.peer_end()
            stream.end(OK)
        elif end == "cancel":
            stream.cancel("enough")
        elif end == "peer reset":
            stream.abandon("reset")
        else:
            stream.peer_end()
        await trio.testing.wait_all_tasks_blocked()
        assert results == [None]


async def test_one_task_receives_at_a_time() -> None:
    stream = Bench().client()
    async with trio.open_nursery() as nursery:
        results = await started(nursery, stream.receive)
        with pytest.raises(trio.BusyResourceError):
            await stream.receive()
        with pytest.raises(trio.BusyResourceError):
            await stream.wait_outcome()
        arrive(stream, frame_message(b"mine"))
        await trio.testing.wait_all_tasks_blocked()
        assert results == [b"mine"]


async def test_a_cancelled_receiver_loses_nothing() -> None:
    stream = Bench().client()
    with trio.move_on_after(0):
        await stream.receive()
    arrive(stream, frame_message(b"a"))
    with trio.CancelScope() as scope:
        scope.cancel()
        await stream.receive()
    assert scope.cancelled_caught
    assert await stream.receive() == b"a"
    assert stream.outcome is None


async def test_a_receiver_that_was_woken_has_its_message_even_when_cancelled() -> None:
    stream = Bench().client()
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def receive() -> object:
            with scope:
                return await stream.receive()

        results = await started(nursery, receive)
        arrive(stream, frame_message(b"a"))
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert results == [b"a"]


async def test_only_a_unary_caller_takes_the_call_with_it_when_cancelled() -> None:
    bench = Bench()
    unary, block = bench.client(1), bench.client(3)
    with trio.move_on_after(0):
        await block.wait_outcome()
    assert block.outcome is None
    with trio.move_on_after(0):
        await unary.wait_outcome(cancels=True)
    assert unary.outcome is not None
    assert unary.reset_code == ErrorCode.CANCEL


async def test_a_unary_caller_is_woken_at_the_end_and_not_before() -> None:
    stream = Bench().client()
    stream.single_reply = True
    async with trio.open_nursery() as nursery:
        results = await started(nursery, stream.wait_outcome)
        stream.peer_head(response_head())
        arrive(stream, frame_message(b"reply"))
        await trio.testing.wait_all_tasks_blocked()
        assert not results
        stream.peer_end()
        stream.end(OK)
        await trio.testing.wait_all_tasks_blocked()
        assert results == [None]


def test_a_second_reply_is_a_fault() -> None:
    stream = Bench().client()
    stream.single_reply = True
    arrive(stream, frame_message(b"reply"))
    with pytest.raises(TooManyMessages):
        arrive(stream, frame_message(b"another"))


def test_a_message_over_the_limit_is_a_fault() -> None:
    stream = Bench(limit=10).client()
    with pytest.raises(MessageTooLarge):
        arrive(stream, frame_message(bytes(11)))


async def test_response_headers_are_waited_for() -> None:
    stream = Bench().client()
    async with trio.open_nursery() as nursery:
        first = await started(nursery, stream.wait_head)
        second = await started(nursery, stream.wait_head)
        record = response_head()
        stream.peer_head(record)
        await trio.testing.wait_all_tasks_blocked()
        assert (first, second) == ([None], [None])
    assert stream.head_record is record
    with trio.testing.assert_checkpoints():
        await stream.wait_head()


async def test_the_end_comes_instead_of_response_headers() -> None:
    stream = Bench().client()
    async with trio.open_nursery() as nursery:
        results = await started(nursery, stream.wait_head)
        stream.cancel("enough")
        await trio.testing.wait_all_tasks_blocked()
        assert results == [None]


# -- turns


async def turns_of_others(operation: Callable[[], Any], times: int) -> int:
    """How often another task ran while an operation that never has to wait was done so many times."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        for _ in range(times):
            await operation()
        nursery.cancel_scope.cancel()
    return turns


async def test_a_receiver_that_never_waits_yields_every_64_messages_at_least() -> None:
    stream = Bench(window=2**20).client()
    for _ in range(6400):
        arrive(stream, frame_message(b""))
    assert 100 <= await turns_of_others(stream.receive, 6400) < 6400


async def test_a_receiver_that_never_waits_yields_every_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def perf_counter() -> float:
        nonlocal now
        now += 0.0011
        return now

    monkeypatch.setattr("trio_grpc._transport.stream.perf_counter", perf_counter)
    stream = Bench(window=2**20).client()
    for _ in range(10):
        arrive(stream, frame_message(b""))
    assert await turns_of_others(stream.receive, 10) >= 7


async def test_a_sender_that_never_waits_yields_too() -> None:
    stream = Bench().client()
    assert await turns_of_others(lambda: stream.send_message(b""), 640) >= 10


async def test_reading_the_end_again_and_again_yields_too() -> None:
    stream = Bench().client()
    stream.peer_end()
    stream.end(OK)
    assert await turns_of_others(stream.receive, 640) >= 10


async def test_every_operation_looks_for_cancellation() -> None:
    stream = Bench().client()
    arrive(stream, frame_message(b"a"))
    for operation in (stream.receive, lambda: stream.send_message(b"x"), stream.wait_head):
        with trio.CancelScope() as scope:
            scope.cancel()
            await operation()
        assert scope.cancelled_caught
    assert not stream.chunks
    assert len(stream.assembler.messages) == 1


# -- credit


async def test_credit_goes_back_as_the_application_takes_the_bytes() -> None:
    bench = Bench(window=1000)
    stream = bench.client()
    for _ in range(10):
        arrive(stream, frame_message(bytes(95)))
    assert stream.receive_window == 0
    assert bench.credits() == []
    total = 0
    for taken in range(1, 11):
        await stream.receive()
        total += sum(bench.credits())
        # In portions: never more than was taken, never a quarter of the window behind.
        assert 0 <= 100 * taken - total < 250
    assert stream.receive_window == total


async def test_a_consumer_that_does_not_read_gives_no_credit() -> None:
    bench = Bench(window=1000)
    stream = bench.client()
    assert arrive(stream, frame_message(bytes(995)))
    await trio.testing.wait_all_tasks_blocked()
    assert bench.credits() == []
    assert not arrive(stream, b"x")


async def test_padding_is_credited() -> None:
    bench = Bench(window=1000)
    stream = bench.client()
    for _ in range(100):
        data = frame_message(b"x")
        assert stream.peer_data(data, 0, 6, 206)
        assert await stream.receive() == b"x"
        # The window never runs dry, though only 6 of 206 bytes are ever taken.
        bench.take()
        assert stream.receive_window > 206


async def test_a_message_larger_than_the_window_gets_credit_only_while_someone_waits() -> None:
    bench = Bench(window=1000)
    stream = bench.client()
    data = frame_message(bytes(5000))
    arrive(stream, data[:1000])
    assert bench.credits() == []
    async with trio.open_nursery() as nursery:
        results = await started(nursery, stream.receive)
        assert bench.credits() == [4005]
        arrive(stream, data[1000:])
        await trio.testing.wait_all_tasks_blocked()
        assert results == [bytes(5000)]


async def test_a_waiting_receiver_gets_the_credit_when_the_prefix_comes() -> None:
    bench = Bench(window=1000)
    stream = bench.client()
    data = frame_message(bytes(5000))
    async with trio.open_nursery() as nursery:
        await started(nursery, stream.receive)
        assert bench.credits() == []
        arrive(stream, data[:5])
        assert sum(bench.credits()) == 5000 - 995
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("window", [1, 2, 4, 7])
async def test_even_the_smallest_window_gets_a_message_through(window: int) -> None:
    bench = Bench(window=window)
    stream = bench.client()
    data = frame_message(b"a message of some length")
    at_peer = window
    async with trio.open_nursery() as nursery:
        results = await started(nursery, stream.receive)
        position = 0
        while position < len(data):
            at_peer += sum(bench.credits())
            assert at_peer > 0, "stalled"
            assert arrive(stream, data[position : position + 1])
            position += 1
            at_peer -= 1
        await trio.testing.wait_all_tasks_blocked()
        assert results == [b"a message of some length"]


async def test_windows_balance_whatever_the_order() -> None:
    """Our books and the peer's agree after any sequence of arrivals and receipts."""
    bench = Bench(window=1000)
    stream = bench.client()
    at_peer = 1000
    sent = taken = 0
    for step in range(2000):
        size = step * 31 % 300
        if at_peer >= size + 5 and step % 3:
            assert arrive(stream, frame_message(bytes(size)))
            at_peer -= size + 5
            sent += 1
        elif taken < sent:
            await stream.receive()
            taken += 1
        at_peer += sum(bench.credits())
        assert stream.receive_window == at_peer
        assert 0 <= at_peer <= 1000
    assert taken > 100


async def test_a_peer_that_has_finished_gets_no_credit() -> None:
    bench = Bench(window=1000)
    stream = bench.client()
    arrive(stream, frame_message(bytes(900)))
    stream.peer_end()
    stream.end(OK)
    await stream.receive()
    assert bench.credits() == []


async def test_a_stream_that_was_reset_gets_no_credit() -> None:
    bench = Bench(window=1000)
    stream = bench.client()
    arrive(stream, frame_message(bytes(900)))
    stream.reset(ErrorCode.CANCEL)
    await stream.receive()
    assert bench.credits() == []


async def test_growth_goes_to_streams_with_a_waiting_receiver_only() -> None:
    bench = Bench(window=1000)
    bench.windows.stream_target = 100_000
    idle, waiting = bench.client(1), bench.client(3)
    arrive(idle, frame_message(bytes(600)))
    await idle.receive()
    assert bench.credits() == [605]
    async with trio.open_nursery() as nursery:
        await started(nursery, waiting.receive)
        assert bench.credits() == [99_000]
        nursery.cancel_scope.cancel()


async def test_growth_stays_within_the_budget_of_the_connection() -> None:
    bench = Bench(window=1000)
    bench.windows.stream_target = 16 * 2**20
    streams = [bench.client(2 * number + 1) for number in range(64)]
    async with trio.open_nursery() as nursery:
        for stream in streams:
            await started(nursery, stream.receive)
        granted = sum(stream.receive_window for stream in streams)
        assert granted <= 64 * 2**20
        assert max(stream.receive_window for stream in streams[-8:]) <= 32 * 2**20 // 56
        nursery.cancel_scope.cancel()


async def test_credit_beyond_what_the_peer_has_seen_of_our_settings() -> None:
    """Until it has acknowledged them, the peer may believe in RFC 9113's 65,535 bytes."""
    bench = Bench(window=1000)
    bench.windows.tolerance = 64_535
    stream = bench.client()
    assert arrive(stream, frame_message(bytes(60_000)))
    assert stream.receive_window < 0
    bench.windows.tolerance = 0
    await stream.receive()
    # What it used in good faith is made up for.
    assert stream.receive_window == 1000
    assert not arrive(stream, bytes(1001))


# -- the server's ends


@pytest.mark.parametrize("responded", [False, True])
def test_a_refusal_has_the_status_in_trailers_or_in_a_response_of_its_own(responded: bool) -> None:
    bench = Bench()
    stream = bench.server()
    stream.responded = responded
    cancelled: list[None] = []
    stream.on_ended = lambda: cancelled.append(None)
    stream.refuse(StatusCode.UNIMPLEMENTED, "no")
    names = [name for name, _ in stream.tail_literals]
    assert (b":status" in names) is not responded
    assert (b"grpc-status", b"12") in stream.tail_literals
    assert stream.cancelled == "no"
    assert len(cancelled) == 1
    assert bench.take() == [stream]


def test_a_refusal_after_the_trailers_only_cancels() -> None:
    bench = Bench()
    stream = bench.server()
    stream.finish(HEAD)
    stream.refuse(StatusCode.INTERNAL, "late")
    assert not stream.tail_literals
    assert stream.cancelled == "late"


def test_abandoning_frees_everything_and_cancels_once() -> None:
    bench = Bench()
    stream = bench.server()
    cancelled: list[None] = []
    stream.on_ended = lambda: cancelled.append(None)
    stream.queue_message(b"reply")
    arrive(stream, frame_message(b"request"))
    stream.abandon("reset by peer")
    stream.abandon("connection lost")
    assert stream.cancelled == "reset by peer"
    assert len(cancelled) == 1
    assert stream.left_table
    assert not stream.chunks
    assert not stream.assembler.messages


# -- writing without the writer's task


class IdleWriter:
    """Stands for a writer that sleeps."""

    def __init__(self, bench: Bench) -> None:
        self.taken: list[OutgoingStream] = []
        bench.buffer.write_alone = self.taken.append


async def test_the_first_message_after_a_wait_goes_to_an_idle_writer_at_once() -> None:
    bench = Bench()
    stream = bench.server()
    writer = IdleWriter(bench)
    assert await stream.send_message(b"first")
    assert writer.taken == [stream]
    # A task that sends without waiting has more to say: that is for batches.
    assert await stream.send_message(b"second")
    assert await stream.send_message(b"third")
    assert writer.taken == [stream]
    assert bench.take() == [stream]
    async with trio.open_nursery() as nursery:
        received = await started(nursery, stream.receive)
        arrive(stream, frame_message(b"request"))
        await trio.testing.wait_all_tasks_blocked()
        assert received == [b"request"]
    writer = IdleWriter(bench)
    assert await stream.send_message(b"answer")
    assert writer.taken == [stream]


async def test_the_end_of_a_reply_goes_to_an_idle_writer_at_once() -> None:
    bench = Bench()
    stream = bench.server()
    writer = IdleWriter(bench)
    stream.finish(HEAD, alone=True)
    assert writer.taken == [stream]
    assert bench.take() == []


async def test_among_other_calls_nothing_is_written_alone() -> None:
    bench = Bench()
    streams = [bench.server(stream_id) for stream_id in range(1, 11, 2)]
    writer = IdleWriter(bench)
    for stream in streams:
        assert await stream.send_message(b"data")
        stream.finish(HEAD, alone=True)
    assert writer.taken == []
    assert bench.take() == streams


async def test_a_stream_that_is_queued_is_not_written_before_what_is_before_it() -> None:
    bench = Bench()
    stream = bench.server()
    stream.announce()
    writer = IdleWriter(bench)
    stream.finish(HEAD, alone=True)
    assert writer.taken == []
    assert bench.take() == [stream]


async def test_what_the_reader_refuses_waits_for_the_writer() -> None:
    bench = Bench()
    stream = bench.server()
    writer = IdleWriter(bench)
    stream.refuse(StatusCode.INTERNAL, "bad prefix")
    assert writer.taken == []
    assert bench.take() == [stream]
