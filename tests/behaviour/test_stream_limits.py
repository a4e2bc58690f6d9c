"""SETTINGS_MAX_CONCURRENT_STREAMS both ways: a client waits its turn, a server refuses one stream (RFC 9113, 5.1.2)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.behaviour.scripted import (
    BIDI,
    CLIENT_STREAM,
    QUIET,
    Background,
    Echo,
    ScriptedServer,
    expect_call,
    expect_reply,
    send_call,
    send_reply,
    start_server,
)
from trio_grpc import Limits, StatusCode
from trio_grpc._transport.stream_table import StreamTable
from trio_grpc.testing import ErrorCode, HeadersFrame, RstStreamFrame, ScriptedPeer, open_channel_pair

pytestmark = pytest.mark.usefixtures("quiet_log")

MAX_CONCURRENT_STREAMS = 3
ONE = Limits(adaptive_window=False, max_concurrent_streams=1)


# ---------------------------------------------------------------------------------------------------------------------
# The client waits


class Queue:
    """A channel at its peer's limit of one stream, and calls in a known order behind it."""

    def __init__(self, scripted: ScriptedServer, nursery: trio.Nursery) -> None:
        self.scripted = scripted
        self.nursery = nursery
        self.peer: ScriptedPeer
        self.first: Background[EchoReply]

    async def start(self, limit: int = 1) -> None:
        self.first = Background(self.nursery, self.scripted.stub.Unary, EchoRequest(count=0))
        self.peer = await self.scripted.accept({MAX_CONCURRENT_STREAMS: limit})
        assert (await expect_call(self.peer, 1)).count == 0

    async def add(self, count: int, **options: Any) -> Background[EchoReply]:
        """One more call, which has taken its place when this returns."""
        call = Background(self.nursery, self.scripted.stub.Unary, EchoRequest(count=count), **options)
        await trio.testing.wait_all_tasks_blocked()
        return call

    async def answer(self, stream_id: int, count: int) -> None:
        await send_reply(self.peer, stream_id, EchoReply(count=count))

    async def expect(self, stream_id: int, count: int) -> None:
        """The next stream is that call's, and no other follows."""
        assert (await expect_call(self.peer, stream_id)).count == count
        await self.peer.expect_silence(0.1)

    @property
    def waiting(self) -> int:
        return self.scripted.channel.statistics().waiting


async def test_calls_wait_in_order(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        queue = Queue(scripted, nursery)
        await queue.start()
        calls = [await queue.add(count) for count in range(1, 6)]
        assert queue.waiting == 5
        await queue.peer.expect_silence()
        for number, call in enumerate([queue.first, *calls]):
            await queue.answer(2 * number + 1, number)
            assert (await call.result()).count == number
            if number < 5:
                await queue.expect(2 * number + 3, number + 1)
                assert queue.waiting == 4 - number
        scripted.assert_nothing_left()


async def test_a_cancelled_waiter_passes_its_turn_on(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        queue = Queue(scripted, nursery)
        await queue.start()
        calls = [await queue.add(count) for count in range(1, 6)]
        # The first, one in the middle, and the last.
        for index in (0, 2, 4):
            calls[index].scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert queue.waiting == 2
        await queue.answer(1, 0)
        await queue.expect(3, 2)
        await queue.answer(3, 2)
        await queue.expect(5, 4)
        await queue.answer(5, 4)
        assert (await calls[1].result()).count == 2
        assert (await calls[3].result()).count == 4
        scripted.assert_nothing_left()


async def test_a_waiter_that_is_cancelled_as_it_gets_its_turn(
    nursery: trio.Nursery, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot was handed to it; it must come back, and nothing of the call may go on the wire."""
    async with ScriptedServer() as scripted:
        queue = Queue(scripted, nursery)
        await queue.start()
        second, third = await queue.add(1), await queue.add(2)
        leave = StreamTable.leave

        def leave_and_cancel(self: StreamTable[Any], stream_id: int) -> None:
            leave(self, stream_id)
            second.scope.cancel()

        monkeypatch.setattr(StreamTable, "leave", leave_and_cancel)
        await queue.answer(1, 0)
        await queue.expect(3, 2)
        await queue.answer(3, 2)
        assert (await third.result()).count == 2
        await trio.testing.wait_all_tasks_blocked()
        assert not second.running
        scripted.assert_nothing_left()


async def test_a_deadline_also_bounds_the_wait(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        queue = Queue(scripted, nursery)
        await queue.start()
        short = await queue.add(1, timeout=3)
        patient = await queue.add(2, timeout=30)
        began = trio.current_time()
        error = await short.error()
        assert error.code is StatusCode.DEADLINE_EXCEEDED
        assert error.message.startswith("deadline of 3 s exceeded")
        assert trio.current_time() - began == pytest.approx(3)
        # Who knows why can do something about it.
        why = r"deadline exceeded; no free stream: MemoryListener\.connect allows 1 at a time"
        with pytest.raises(trio_grpc.RpcError, match=why):
            async with scripted.stub.Bidi(timeout=2):
                raise AssertionError("unreachable")
        await queue.answer(1, 0)
        headers = await queue.peer.expect(HeadersFrame, stream_id=3)
        # What is left of the 30 seconds goes on the wire.
        assert headers["grpc-timeout"] == "25000000u"
        await queue.peer.receive_message(3)
        await queue.answer(3, 2)
        assert (await patient.result()).count == 2
        scripted.assert_nothing_left()


async def test_the_limit_follows_the_settings_up_and_down(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        queue = Queue(scripted, nursery)
        await queue.start(limit=2)
        calls = [queue.first, await queue.add(1)]
        await queue.expect(3, 1)
        calls += [await queue.add(2), await queue.add(3), await queue.add(4, timeout=5)]
        assert queue.waiting == 3
        # Cut to 0: the streams that are open go on, nobody else gets in.
        await queue.peer.send_settings({MAX_CONCURRENT_STREAMS: 0})
        await queue.answer(1, 0)
        await queue.answer(3, 1)
        await queue.peer.expect_silence(10)
        assert (await calls[4].error()).code is StatusCode.DEADLINE_EXCEEDED
        assert queue.waiting == 2
        # Settings without this one change nothing.
        await queue.peer.send_settings({4: 100_000})
        await queue.peer.expect_silence()
        await queue.peer.send_settings({MAX_CONCURRENT_STREAMS: 5})
        # Two slots at once, so these two may overtake one another on their way.
        counts = [(await expect_call(queue.peer, stream_id)).count for stream_id in (5, 7)]
        assert sorted(counts) == [2, 3]
        await queue.answer(7, counts[1])
        await queue.answer(5, counts[0])
        assert [(await call.result()).count for call in calls[:4]] == [0, 1, 2, 3]
        scripted.assert_nothing_left()


async def test_without_a_limit_all_go_at_once(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        calls = [Background(nursery, scripted.stub.Unary, EchoRequest(count=count)) for count in range(150)]
        peer = await scripted.accept({4: 65_535})
        counts = {(await expect_call(peer, 2 * number + 1)).count: 2 * number + 1 for number in range(150)}
        for count, stream_id in counts.items():
            await send_reply(peer, stream_id, EchoReply(count=count))
        assert [(await call.result()).count for call in calls] == list(range(150))
        scripted.assert_nothing_left()


async def test_a_stream_holds_its_slot_until_both_sides_have_ended(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        accepted = Background(nursery, scripted.accept, {MAX_CONCURRENT_STREAMS: 1})
        async with scripted.stub.Bidi() as call:
            peer = await accepted.result()
            await peer.expect(HeadersFrame, stream_id=1)
            waiting = Background(nursery, scripted.stub.Unary, EchoRequest())
            await call.done_sending()
            await trio.sleep(1)
            assert scripted.channel.statistics().waiting == 1
            await peer.send_trailers_only(1, StatusCode.OK)
            with pytest.raises(trio.EndOfChannel):
                await call.receive()
            await trio.testing.wait_all_tasks_blocked()
            assert scripted.channel.statistics().waiting == 0
        waiting.scope.cancel()


async def test_a_call_left_early_frees_its_slot(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        accepted = Background(nursery, scripted.accept, {MAX_CONCURRENT_STREAMS: 1})
        peer: ScriptedPeer | None = None
        for number in range(5):
            async with scripted.stub.Bidi():
                peer = peer or await accepted.result()
                await peer.expect(HeadersFrame, stream_id=2 * number + 1)
            await peer.expect(RstStreamFrame, stream_id=2 * number + 1, error_code=ErrorCode.CANCEL)
        scripted.assert_nothing_left()


async def test_waiters_of_a_lost_connection_go_to_the_next(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        queue = Queue(scripted, nursery)
        await queue.start()
        calls = [await queue.add(1), await queue.add(2)]
        await trio.sleep(2)
        await queue.peer.aclose()
        assert (await queue.first.error()).code is StatusCode.UNAVAILABLE
        peer = await scripted.accept()
        counts = [(await expect_call(peer, stream_id)).count for stream_id in (1, 3)]
        assert sorted(counts) == [1, 2]
        for stream_id, count in zip((1, 3), counts, strict=True):
            await send_reply(peer, stream_id, EchoReply(count=count))
        assert [(await call.result()).count for call in calls] == [1, 2]
        scripted.assert_nothing_left()


async def test_waiters_of_a_closed_channel_are_told(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        queue = Queue(scripted, nursery)
        await queue.start()
        waiting = await queue.add(1)
        await scripted.channel.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await waiting.result()
        with pytest.raises(trio.ClosedResourceError):
            await queue.first.result()


# ---------------------------------------------------------------------------------------------------------------------
# The server refuses


async def test_a_stream_over_the_limit_is_refused_alone(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, limits=ONE)
    async with await endpoint.connect() as peer:
        # Before the client has seen the limit.
        async with peer.one_segment():
            await peer.send_preface()
            await peer.send_request(1, BIDI)
            await peer.send_request(3, CLIENT_STREAM)
            await peer.send_message(3, EchoRequest().SerializeToString(), end_stream=True)
        await peer.expect(RstStreamFrame, stream_id=3, error_code=ErrorCode.REFUSED_STREAM)
        await peer.send_message(1, EchoRequest(text="one").SerializeToString(), end_stream=True)
        await expect_reply(peer, 1, EchoReply(text="one"))
        await endpoint.assert_serves(peer, 5)
        await endpoint.assert_nothing_left(connections=1)
    assert endpoint.servicer.started == 2


async def test_the_header_block_of_a_refused_stream_is_decoded(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, limits=ONE)
    async with await endpoint.client() as peer:
        await peer.send_request(1, BIDI)
        # Literal with incremental indexing: enters the table as entry 62, which the next block refers to.
        block = peer.encode_headers([]) + b"\x40\x06x-late\x01v"
        await peer.send_request(3, BIDI)
        await peer.expect(RstStreamFrame, stream_id=3, error_code=ErrorCode.REFUSED_STREAM)
        request = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", BIDI),
            ("content-type", "application/grpc"),
        ]
        await peer.send_frame(1, 4, 5, peer.encode_headers(request) + block)
        await peer.expect(RstStreamFrame, stream_id=5, error_code=ErrorCode.REFUSED_STREAM)
        await peer.send_rst_stream(1, ErrorCode.CANCEL)
        await peer.send_frame(1, 4, 7, peer.encode_headers(request) + b"\xbe")
        await peer.send_message(7, EchoRequest(text="seven").SerializeToString(), end_stream=True)
        await expect_reply(peer, 7, EchoReply(text="seven"))


async def test_a_stream_counts_until_its_trailers_are_written(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, limits=ONE)
    async with await endpoint.client() as peer:
        await peer.send_settings({4: 0})
        await send_call(peer, 1, EchoRequest(text="one"))
        await trio.sleep(1)
        assert endpoint.server.statistics().streams == 1
        await send_call(peer, 3, EchoRequest(text="three"))
        await peer.expect(HeadersFrame, stream_id=1)
        await peer.expect(RstStreamFrame, stream_id=3, error_code=ErrorCode.REFUSED_STREAM)
        await peer.send_window_update(1, 100)
        assert EchoReply.FromString(await peer.receive_message(1)).text == "one"
        await peer.expect(HeadersFrame, stream_id=1, end_stream=True)
        await peer.send_settings({4: 100})
        await endpoint.assert_serves(peer, 5)
        await endpoint.assert_nothing_left(connections=1)


async def test_handlers_are_bounded_whatever_is_reset(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Rapid reset: streams that were reset are not open, but their handlers may still run."""

    class Stubborn(Echo):
        async def ClientStream(self, requests: Any, context: Any) -> EchoReply:
            self.started += 1
            with trio.CancelScope(shield=True):
                await self.gate.wait()
            self.ended += 1
            return EchoReply()

    limits = Limits(adaptive_window=False, max_concurrent_streams=10)
    endpoint = await start_server(nursery, limits=limits, servicer=Stubborn())
    async with await endpoint.client() as peer:
        for stream_id in range(1, 201, 2):
            await peer.send_request(stream_id, CLIENT_STREAM)
            await trio.sleep(0.01)
            await peer.send_rst_stream(stream_id, ErrorCode.CANCEL)
            await trio.sleep(0.01)
        assert endpoint.server.statistics().handlers == 10
        endpoint.servicer.gate.set()
        await endpoint.assert_nothing_left(connections=1)
        # What was answered before its reset came.
        received = []
        with trio.move_on_after(1):
            while True:
                received.append(await peer.receive_frame())
        assert all(frame["grpc-status"] == "14" for frame in received if isinstance(frame, HeadersFrame))
        await endpoint.assert_serves(peer, 301)
    assert endpoint.servicer.started <= 11


@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
async def test_many_calls_through_one_slot(sockets: bool, autojump_clock: Any) -> None:
    class Slow(Echo):
        running = 0

        async def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
            assert not self.running
            self.running += 1
            await trio.sleep(0.01)
            self.running -= 1
            return EchoReply(count=request.count)

    replies: list[int] = []

    async def call(stub: EchoStub, count: int) -> None:
        replies.append((await stub.Unary(EchoRequest(count=count))).count)

    async with open_channel_pair(Slow(), limits=QUIET, server_limits=ONE, sockets=sockets) as (channel, server):
        stub = EchoStub(channel)
        async with trio.open_nursery() as calls:
            for count in range(50):
                calls.start_soon(call, stub, count)
        assert sorted(replies) == list(range(50))
        assert trio.current_time() == pytest.approx(0.5, abs=0.05)
        assert server.statistics().streams == 0
