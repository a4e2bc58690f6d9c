"""The control buffer: one queue, its throttle and its end."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from trio_grpc._transport.control_buffer import (
    THROTTLE_LIMIT,
    WRITE_QUOTA,
    ControlBuffer,
    ControlFrame,
    OutgoingStream,
    RawFrame,
    RefuseStream,
)


class Tracked(RawFrame):
    """Counts its orphanings."""

    orphaned = 0

    def orphan(self) -> None:
        self.orphaned += 1


def response() -> RawFrame:
    return RawFrame(b"", is_response=True)


async def test_frames_come_out_in_their_order() -> None:
    buffer = ControlBuffer()
    frames = [RawFrame(bytes([number])) for number in range(3)]
    for frame in frames:
        buffer.put(frame)
    assert buffer.pending_frames == 3
    assert await buffer.receive() is frames[0]
    assert buffer.receive_nowait() is frames[1]
    assert buffer.receive_nowait() is frames[2]
    with pytest.raises(trio.WouldBlock):
        buffer.receive_nowait()
    assert buffer.pending_frames == 0


async def test_a_receiver_is_woken() -> None:
    buffer = ControlBuffer()
    frame = RawFrame(b"x")
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def receive() -> None:
            assert await buffer.receive() is frame

        await trio.testing.wait_all_tasks_blocked()
        buffer.put(frame)


# -- its end


async def test_closing_orphans_what_is_queued_in_order_and_once() -> None:
    orphans: list[int] = []

    class Named(ControlFrame):
        def __init__(self, name: int) -> None:
            self.name = name

        def orphan(self) -> None:
            orphans.append(self.name)

    buffer = ControlBuffer()
    for name in range(3):
        buffer.put(Named(name))
    reason = OSError("gone")
    buffer.close(reason)
    assert orphans == [0, 1, 2]
    buffer.close(ValueError())
    assert orphans == [0, 1, 2]
    assert buffer.close_reason is reason
    assert buffer.pending_frames == 0


async def test_putting_never_raises_and_orphans_after_the_end() -> None:
    buffer = ControlBuffer()
    buffer.close()
    frame = Tracked(b"x", is_response=True)
    buffer.put(frame)
    assert frame.orphaned == 1
    assert buffer.pending_responses == 0


async def test_a_frame_put_by_an_orphan_is_orphaned_too() -> None:
    """What is told of its end may well answer with a reset."""
    buffer = ControlBuffer()
    late = Tracked(b"late")

    class Answering(ControlFrame):
        def orphan(self) -> None:
            buffer.put(late)

    buffer.put(Answering())
    buffer.close()
    assert late.orphaned == 1


async def test_the_end_wakes_the_writer() -> None:
    buffer = ControlBuffer()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def receive() -> None:
            with pytest.raises(trio.EndOfChannel):
                await buffer.receive()

        await trio.testing.wait_all_tasks_blocked()
        buffer.close()


async def test_the_end_is_synchronous_and_so_safe_when_cancelled() -> None:
    buffer = ControlBuffer()
    frame = Tracked(b"x")
    buffer.put(frame)
    with trio.testing.assert_no_checkpoints(), trio.CancelScope() as scope:  # noqa: ASYNC100 # the point of it
        scope.cancel()
        buffer.close()
    assert frame.orphaned == 1


# -- the throttle


async def test_below_the_limit_the_reader_does_not_wait() -> None:
    buffer = ControlBuffer(throttle_limit=3)
    buffer.put(response())
    buffer.put(RefuseStream(1, None, 7))
    with trio.testing.assert_no_checkpoints():
        await buffer.throttle()
    assert buffer.pending_responses == 2


async def is_throttled(buffer: ControlBuffer) -> bool:
    with trio.move_on_after(0) as scope:
        await buffer.throttle()
    return scope.cancelled_caught


async def test_only_what_the_peer_caused_counts() -> None:
    buffer = ControlBuffer(throttle_limit=1)
    for _ in range(1000):
        buffer.put(RawFrame(b"window update"))
    assert not await is_throttled(buffer)
    buffer.count_response()
    assert await is_throttled(buffer)


async def test_a_response_counts_until_it_is_written_not_until_it_is_taken() -> None:
    buffer = ControlBuffer(throttle_limit=2)
    buffer.put(response())
    buffer.put(response())
    buffer.receive_nowait()
    buffer.receive_nowait()
    assert await is_throttled(buffer)
    buffer.responses_written(1)
    assert not await is_throttled(buffer)


async def test_the_reader_wakes_below_the_limit_and_not_before() -> None:
    buffer = ControlBuffer(throttle_limit=2)
    for _ in range(4):
        buffer.put(response())
    woken = trio.Event()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def reader() -> None:
            await buffer.throttle()
            woken.set()

        for count in (1, 1):
            buffer.responses_written(count)
            await trio.testing.wait_all_tasks_blocked()
            assert not woken.is_set()
        buffer.responses_written(1)
        await trio.testing.wait_all_tasks_blocked()
        assert woken.is_set()


async def test_the_count_may_jump_over_the_limit_in_both_directions() -> None:
    """A reader must be woken whatever the count was before: the crossing of the limit is never seen as such."""
    buffer = ControlBuffer(throttle_limit=100)
    for _ in range(1000):
        buffer.put(response())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(buffer.throttle)
        await trio.testing.wait_all_tasks_blocked()
        buffer.responses_written(1000)
    assert buffer.pending_responses == 0


async def test_a_woken_reader_looks_again() -> None:
    buffer = ControlBuffer(throttle_limit=1)
    buffer.put(response())
    passed = trio.Event()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def reader() -> None:
            await buffer.throttle()
            passed.set()

        await trio.testing.wait_all_tasks_blocked()
        buffer.responses_written(1)
        buffer.put(response())  # before the reader has run
        await trio.testing.wait_all_tasks_blocked()
        assert not passed.is_set()
        buffer.responses_written(1)
    assert passed.is_set()


async def test_the_end_wakes_the_reader() -> None:
    buffer = ControlBuffer(throttle_limit=1)
    buffer.put(response())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(buffer.throttle)
        await trio.testing.wait_all_tasks_blocked()
        buffer.close()
    assert buffer.pending_responses == 0
    assert not await is_throttled(buffer)


async def test_a_cancelled_reader_is_forgotten() -> None:
    buffer = ControlBuffer(throttle_limit=1)
    buffer.put(response())
    assert await is_throttled(buffer)
    buffer.responses_written(1)  # would wake a task that sleeps for another reason now


def test_the_limit_is_the_one_of_others() -> None:
    assert THROTTLE_LIMIT == 100
    assert WRITE_QUOTA == 65_536


# -- streams in it


def stream_of(buffer: ControlBuffer) -> OutgoingStream:
    return OutgoingStream(buffer, 1, 65_535)


async def test_a_stream_is_queued_once_however_often_it_has_news() -> None:
    buffer = ControlBuffer()
    stream = stream_of(buffer)
    for _ in range(1000):
        stream.announce()
    assert buffer.pending_frames == 1


async def test_an_orphaned_stream_is_closed_and_its_bytes_are_freed() -> None:
    buffer = ControlBuffer()
    stream = stream_of(buffer)
    stream.chunks.append(b"x" * 100)
    stream.pending_bytes = 100
    stream.announce()
    buffer.close()
    assert (stream.local_closed, stream.queued, stream.pending_bytes) == (True, False, 0)
    assert not stream.chunks
    stream.announce()
    assert not stream.queued


async def wait_blocked(stream: OutgoingStream, nursery: trio.Nursery) -> trio.Event:
    done = trio.Event()

    async def producer() -> None:
        await stream.wait_write_quota()
        done.set()

    nursery.start_soon(producer)
    await trio.testing.wait_all_tasks_blocked()
    return done


async def test_below_the_quota_a_producer_does_not_wait() -> None:
    stream = stream_of(ControlBuffer())
    stream.pending_bytes = WRITE_QUOTA - 1
    with trio.testing.assert_no_checkpoints():
        await stream.wait_write_quota()


async def test_a_woken_producer_looks_again() -> None:
    stream = stream_of(ControlBuffer())
    stream.pending_bytes = WRITE_QUOTA
    async with trio.open_nursery() as nursery:
        done = await wait_blocked(stream, nursery)
        stream.wake_producer()
        await trio.testing.wait_all_tasks_blocked()
        assert not done.is_set()
        stream.pending_bytes -= 1
        stream.wake_producer()
    assert done.is_set()


@pytest.mark.parametrize("end", ["reset", "close", "orphan"])
async def test_a_producer_does_not_wait_for_a_stream_that_will_never_write(end: str) -> None:
    stream = stream_of(ControlBuffer())
    stream.pending_bytes = 10 * WRITE_QUOTA
    async with trio.open_nursery() as nursery:
        done = await wait_blocked(stream, nursery)
        if end == "reset":
            stream.reset_code = 8
            stream.wake_producer()
        elif end == "close":
            stream.close_local()
        else:
            stream.orphan()
    assert done.is_set()


async def test_one_producer_waits_at_a_time() -> None:
    stream = stream_of(ControlBuffer())
    stream.pending_bytes = WRITE_QUOTA
    async with trio.open_nursery() as nursery:
        await wait_blocked(stream, nursery)
        with pytest.raises(trio.BusyResourceError):
            await stream.wait_write_quota()
        nursery.cancel_scope.cancel()
    # The one that was cancelled has left its place.
    with trio.move_on_after(0) as scope:
        await stream.wait_write_quota()
    assert scope.cancelled_caught
