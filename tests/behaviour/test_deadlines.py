"""A scope's deadline is the call's deadline, at the caller, on the wire and in the handler."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.behaviour.scripted import (
    SERVER_STREAM,
    UNARY,
    ScriptedServer,
    expect_call,
    expect_status,
    send_call,
    send_reply,
)
from tests.support.echo import Context, Echo, Requests, reply_to, sleep_forever
from trio_grpc import RpcError, StatusCode
from trio_grpc._transport.headers import decode_timeout
from trio_grpc.testing import DataFrame, HeadersFrame, MemoryListener, RstStreamFrame, ScriptedPeer, open_channel_pair

Clock = trio.testing.MockClock


def timeout_of(headers: HeadersFrame) -> float:
    """The timeout that a request carries, infinity for none."""
    value = headers.get("grpc-timeout")
    return math.inf if value is None else decode_timeout(value.encode())


async def raises_deadline_exceeded(operation: Callable[[], Awaitable[object]]) -> RpcError:
    with pytest.raises(RpcError) as caught:
        await operation()
    assert caught.value.code is StatusCode.DEADLINE_EXCEEDED
    return caught.value


# -- on the wire


class Wire:
    """What a scripted server sees of the calls of a client, one after the other."""

    def __init__(self, scripted: ScriptedServer, nursery: trio.Nursery) -> None:
        self.scripted = scripted
        self.nursery = nursery
        self.stub = scripted.stub
        self.peer: ScriptedPeer | None = None
        self.stream_id = -1

    async def timeout_of(self, call: Callable[[EchoStub], Awaitable[object]]) -> float:
        async def caller() -> None:
            await call(self.stub)

        self.nursery.start_soon(caller)
        if self.peer is None:
            self.peer = await self.scripted.accept()
        self.stream_id += 2
        headers = await self.peer.expect(HeadersFrame, stream_id=self.stream_id)
        async with self.peer.one_segment():
            await self.peer.send_response(self.stream_id)
            await self.peer.send_message(self.stream_id, b"")
            await self.peer.send_trailers(self.stream_id)
        while not isinstance(await self.peer.receive_frame(), (DataFrame, RstStreamFrame)):
            pass  # WINDOW_UPDATEs, if anything
        return timeout_of(headers)


@pytest.fixture
async def wire(nursery: trio.Nursery) -> AsyncIterator[Wire]:
    async with ScriptedServer() as scripted:
        yield Wire(scripted, nursery)
        nursery.cancel_scope.cancel()


def unary(timeout: float | None = None) -> Callable[[EchoStub], Awaitable[object]]:
    async def call(stub: EchoStub) -> None:
        await stub.Unary(EchoRequest(), timeout=timeout)

    return call


BLOCKS: dict[str, Callable[..., Any]] = {
    "unary": lambda stub, **options: stub.Unary.open(EchoRequest(), **options),
    "server stream": lambda stub, **options: stub.ServerStream(EchoRequest(), **options),
    "client stream": lambda stub, **options: stub.ClientStream.open(**options),
    "bidi": lambda stub, **options: stub.Bidi(**options),
}
all_blocks = pytest.mark.parametrize("kind", BLOCKS)


def block(kind: str, timeout: float | None = None) -> Callable[[EchoStub], Awaitable[object]]:
    async def call(stub: EchoStub) -> None:
        async with BLOCKS[kind](stub, timeout=timeout) as opened:
            await opened.receive()

    return call


def within(deadline: float, call: Callable[[EchoStub], Awaitable[object]]) -> Callable[[EchoStub], Awaitable[object]]:
    async def inner(stub: EchoStub) -> None:
        with trio.move_on_after(deadline):
            await call(stub)

    return inner


async def test_no_deadline_no_header(wire: Wire, autojump_clock: Clock) -> None:
    assert await wire.timeout_of(unary()) == math.inf
    for kind in BLOCKS:
        assert await wire.timeout_of(block(kind)) == math.inf


async def test_a_unary_call_sends_the_ambient_deadline(wire: Wire, autojump_clock: Clock) -> None:
    assert await wire.timeout_of(within(5, unary())) == pytest.approx(5)
    assert await wire.timeout_of(within(100, within(5, within(50, unary())))) == pytest.approx(5)


async def test_a_unary_call_sends_its_timeout(wire: Wire, autojump_clock: Clock) -> None:
    assert await wire.timeout_of(unary(3)) == pytest.approx(3)
    assert await wire.timeout_of(unary(math.inf)) == math.inf


async def test_a_unary_call_sends_the_earlier_of_both(wire: Wire, autojump_clock: Clock) -> None:
    assert await wire.timeout_of(within(5, unary(3))) == pytest.approx(3)
    assert await wire.timeout_of(within(3, unary(5))) == pytest.approx(3)


async def test_a_shielded_call_is_not_bound_by_what_it_is_shielded_from(wire: Wire, autojump_clock: Clock) -> None:
    async def shielded(stub: EchoStub) -> None:
        with trio.CancelScope(shield=True):
            await unary()(stub)

    assert await wire.timeout_of(within(5, shielded)) == math.inf


async def test_a_call_with_requests_of_an_iterable_is_a_block_to_the_wire(wire: Wire, autojump_clock: Clock) -> None:
    async def call(stub: EchoStub, timeout: float | None) -> None:
        await stub.ClientStream([EchoRequest()], timeout=timeout)

    assert await wire.timeout_of(lambda stub: call(stub, 3)) == pytest.approx(3)


@all_blocks
async def test_a_block_sends_only_its_timeout(kind: str, wire: Wire, autojump_clock: Clock) -> None:
    """Ambient scopes may move: watchdogs do, and nursery.start ends one."""
    assert await wire.timeout_of(within(5, block(kind))) == math.inf
    assert await wire.timeout_of(within(5, block(kind, 30))) == pytest.approx(30)
    assert await wire.timeout_of(block(kind, 3)) == pytest.approx(3)


async def test_the_time_spent_on_the_way_to_the_wire_counts(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    async with ScriptedServer() as scripted:
        nursery.start_soon(within(10, unary()), scripted.stub)
        await trio.sleep(4)  # the connection attempt takes so long
        peer = await scripted.accept()
        headers = await peer.expect(HeadersFrame, stream_id=1)
        assert timeout_of(headers) == pytest.approx(6)
        nursery.cancel_scope.cancel()


# -- at the caller


async def test_the_timeout_of_a_unary_call(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo(unary=sleep_forever)) as (channel, server):
        error = await raises_deadline_exceeded(lambda: EchoStub(channel).Unary(EchoRequest(), timeout=2))
        assert trio.current_time() == 2
        assert "2 s" in error.message
        await trio.testing.wait_all_tasks_blocked()
        assert (channel.statistics().streams, server.statistics().handlers) == (0, 0)


async def test_the_timeout_of_a_call_with_requests(autojump_clock: Clock) -> None:
    async def requests() -> AsyncIterator[EchoRequest]:
        yield EchoRequest()
        await trio.sleep_forever()

    async with open_channel_pair(Echo()) as (channel, _):
        await raises_deadline_exceeded(lambda: EchoStub(channel).ClientStream(requests(), timeout=2))
        assert trio.current_time() == 2


async def test_expired_timeouts_write_nothing(autojump_clock: Clock) -> None:
    async with ScriptedServer() as scripted, trio.open_nursery() as nursery:
        nursery.start_soon(scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        await send_reply(peer, 1, EchoReply())
        for timeout in (0, -1, -math.inf):
            await raises_deadline_exceeded(lambda: scripted.stub.Unary(EchoRequest(), timeout=timeout))  # noqa: B023
            for kind in BLOCKS:
                await raises_deadline_exceeded(lambda: block(kind, timeout)(scripted.stub))  # noqa: B023
        await peer.expect_silence()
        scripted.assert_nothing_left()


@pytest.mark.parametrize("timeout", [1e-10, 1e-6, 0.1, 99_999.999, 1e6, 1e12, 1e300])
async def test_timeouts_of_any_size(timeout: float, autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        stub = EchoStub(channel)
        await stub.Unary(EchoRequest())
        # On a virtual clock even the shortest is long enough.
        assert (await stub.Unary(EchoRequest(text="a"), timeout=timeout)).text == "a"
        async with stub.ServerStream(EchoRequest(count=2), timeout=timeout) as call:
            assert len([reply async for reply in call]) == 2


async def test_a_timeout_that_is_no_number(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        with pytest.raises(ValueError, match="timeout"):
            await EchoStub(channel).Unary(EchoRequest(), timeout=math.nan)
        with pytest.raises(ValueError, match="timeout"):
            EchoStub(channel).Bidi(timeout=math.nan)
        with pytest.raises(TypeError):
            await EchoStub(channel).Unary(EchoRequest(), timeout="5")  # type: ignore[arg-type]
        assert channel.statistics().streams == 0


async def test_an_ambient_deadline_is_trios_own_cancellation(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo(unary=sleep_forever, bidi=sleep_forever)) as (channel, _):
        stub = EchoStub(channel)
        with pytest.raises(trio.TooSlowError), trio.fail_after(1):
            await stub.Unary(EchoRequest())
        with pytest.raises(trio.TooSlowError), trio.fail_after(1):
            async with stub.Bidi() as call:
                await call.receive()
        # Also when both end at the same moment: the outer scope has been there first.
        with pytest.raises(trio.TooSlowError), trio.fail_after(1):
            await stub.Unary(EchoRequest(), timeout=1)


async def test_a_scope_that_moves_its_deadline_moves_that_of_a_block(autojump_clock: Clock) -> None:
    """A watchdog around a block is fed while the call goes on."""

    async def slow(request: EchoRequest, context: Context) -> AsyncIterator[EchoReply]:
        for count in range(5):
            await trio.sleep(1)
            yield EchoReply(count=count)

    async with open_channel_pair(Echo(server_stream=slow)) as (channel, _):
        with trio.fail_after(1.5) as scope:
            async with EchoStub(channel).ServerStream(EchoRequest()) as call:
                async for _ in call:
                    scope.deadline = trio.current_time() + 1.5
        assert trio.current_time() == 5


# -- the timeout of a block


async def test_the_timeout_of_a_block_ends_the_call_and_not_the_body(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo(bidi=sleep_forever)) as (channel, server):
        stub = EchoStub(channel)
        async with stub.Bidi(timeout=2) as call:
            await trio.sleep(10)
            assert trio.current_time() == 10
            assert call.status is StatusCode.DEADLINE_EXCEEDED
            # The call itself ended when its time was over.
            assert (channel.statistics().streams, server.statistics().handlers) == (0, 0)
            await raises_deadline_exceeded(call.receive)
            await raises_deadline_exceeded(call.receive)
            await raises_deadline_exceeded(call.wait_initial_metadata)
            with pytest.raises(trio.BrokenResourceError):
                await call.send(EchoRequest())
            await trio.sleep(1)


@all_blocks
async def test_operations_in_flight_end_when_the_time_is_over(kind: str, autojump_clock: Clock) -> None:
    servicer = Echo(unary=sleep_forever, server_stream=sleep_forever, client_stream=sleep_forever, bidi=sleep_forever)
    async with open_channel_pair(servicer) as (channel, _), BLOCKS[kind](EchoStub(channel), timeout=2) as call:
        await raises_deadline_exceeded(call.receive)
        assert trio.current_time() == 2


async def test_a_sender_that_waits_ends_when_the_time_is_over(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo(bidi=sleep_forever)) as (channel, _):
        stub = EchoStub(channel)
        async with stub.Bidi(timeout=2) as call:
            with pytest.raises(trio.BrokenResourceError):  # noqa: PT012 # the first ones fit into the window
                while True:
                    await call.send(EchoRequest(payload=bytes(50_000)))
            assert trio.current_time() == 2
            await raises_deadline_exceeded(call.receive)


async def test_a_call_that_ended_in_time_keeps_its_messages(autojump_clock: Clock) -> None:
    """The timeout is the call's; when its reader gets round to it does not matter any more."""
    async with open_channel_pair(Echo()) as (channel, _):
        stub = EchoStub(channel)
        async with stub.ServerStream(EchoRequest(count=5), timeout=2) as call:
            assert (await call.receive()).count == 0
            await trio.sleep(10)
            assert call.status is StatusCode.OK
            assert [reply.count async for reply in call] == [1, 2, 3, 4]
        async with stub.Unary.open(EchoRequest(text="a"), timeout=2) as unary_call:
            await trio.sleep(10)
            assert (await unary_call.receive()).text == "a"
        async with stub.ClientStream.open(timeout=2) as upload:
            await upload.send(EchoRequest())
            await upload.done_sending()
            await trio.sleep(10)
            assert (await upload.receive()).count == 1


async def test_a_block_left_in_time_leaves_no_timer(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        await channel.wait_ready()
        for _ in range(10):
            async with EchoStub(channel).Bidi(timeout=1000):
                pass
        await trio.testing.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline > 1000
        assert trio.current_time() == 0


async def test_an_expired_call_in_an_expired_scope_is_cancelled(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo(bidi=sleep_forever)) as (channel, _):
        with trio.move_on_after(3) as scope:
            async with EchoStub(channel).Bidi(timeout=2) as call:
                await raises_deadline_exceeded(call.receive)
                await trio.sleep_forever()
        assert scope.cancelled_caught


# -- in the handler


async def test_a_handler_knows_its_deadline(autojump_clock: Clock) -> None:
    seen: list[tuple[float, float, float]] = []

    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        await trio.sleep(1)
        seen.append((context.deadline, context.time_remaining(), trio.current_effective_deadline()))
        return EchoReply()

    async with open_channel_pair(Echo(unary=handler)) as (channel, _):
        stub = EchoStub(channel)
        await stub.Unary(EchoRequest(), timeout=5)
        await stub.Unary(EchoRequest())
    assert seen[0] == pytest.approx((5, 4, 5))
    assert seen[1] == (math.inf, math.inf, math.inf)


async def test_a_handlers_time_is_never_negative(autojump_clock: Clock) -> None:
    remaining: list[float] = []

    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        with trio.CancelScope(shield=True):
            await trio.sleep(3)
        remaining.append(context.time_remaining())
        return EchoReply()

    async with open_channel_pair(Echo(unary=handler)) as (channel, _):
        await raises_deadline_exceeded(lambda: EchoStub(channel).Unary(EchoRequest(), timeout=1))
        await trio.sleep(5)
    assert remaining == [0]


class Peer:
    """A scripted client that has deadlines and never resets."""

    def __init__(self, peer: ScriptedPeer, server: trio_grpc.Server) -> None:
        self.peer = peer
        self.server = server

    async def call(self, stream_id: int, timeout: str, path: str = UNARY, request: EchoRequest | None = None) -> None:
        async with self.peer.one_segment():
            await self.peer.send_request(stream_id, path, [("grpc-timeout", timeout)])
            await self.peer.send_message(stream_id, (request or EchoRequest()).SerializeToString(), end_stream=True)

    async def assert_alive(self, stream_id: int) -> None:
        await send_call(self.peer, stream_id, EchoRequest())
        await self.peer.expect(HeadersFrame, stream_id=stream_id)
        await self.peer.receive_message(stream_id)
        await expect_status(self.peer, stream_id, StatusCode.OK)

    def assert_nothing_left(self) -> None:
        assert (self.server.statistics().streams, self.server.statistics().handlers) == (0, 0)


async def start_peer(servicer: Echo, nursery: trio.Nursery, settings: dict[int, int] | None = None) -> Peer:
    listener = MemoryListener()
    limits = trio_grpc.Limits(adaptive_window=False)

    async def serve(*, task_status: trio.TaskStatus[trio_grpc.Server]) -> None:
        await trio_grpc.serve([servicer], listener, limits=limits, task_status=task_status)

    server = await nursery.start(serve)
    peer = ScriptedPeer.client(await listener.connect())
    await peer.handshake(settings)
    return Peer(peer, server)


async def test_a_handler_is_cancelled_at_its_deadline(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    ended: list[float] = []

    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        try:
            await trio.sleep_forever()
            raise AssertionError
        finally:
            ended.append(trio.current_time())

    peer = await start_peer(Echo(unary=handler), nursery)
    await peer.call(1, "50m")
    assert "deadline" in await expect_status(peer.peer, 1, StatusCode.DEADLINE_EXCEEDED)
    assert ended == [pytest.approx(0.05)]
    peer.assert_nothing_left()
    nursery.cancel_scope.cancel()


async def test_a_stream_of_replies_ends_at_its_deadline(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    async def handler(request: EchoRequest, context: Context) -> AsyncIterator[EchoReply]:
        while True:
            yield EchoReply(count=1)
            await trio.sleep(0.02)

    peer = await start_peer(Echo(server_stream=handler), nursery)
    await peer.call(1, "50m", SERVER_STREAM)
    await peer.peer.expect(HeadersFrame, stream_id=1)
    for _ in range(3):
        assert await peer.peer.receive_message(1)
    await expect_status(peer.peer, 1, StatusCode.DEADLINE_EXCEEDED)
    assert trio.current_time() == pytest.approx(0.05)
    peer.assert_nothing_left()
    nursery.cancel_scope.cancel()


async def test_the_deadline_counts_while_the_handler_waits_for_the_window(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    """The trailers need no credit, and what was queued is dropped."""
    peer = await start_peer(Echo(), nursery)
    await peer.call(1, "1S", SERVER_STREAM, EchoRequest(count=1000, payload=bytes(1000)))
    await peer.peer.expect(HeadersFrame, stream_id=1)
    received = 0
    while isinstance(frame := await peer.peer.receive_frame(), DataFrame):
        received += len(frame.data)
    assert received == 65_535
    assert isinstance(frame, HeadersFrame)
    assert frame["grpc-status"] == "4"
    assert trio.current_time() == pytest.approx(1)
    peer.assert_nothing_left()
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", ["unary", "server stream", "error"])
async def test_the_deadline_counts_until_the_trailers_are_written(
    kind: str, autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    """The handler has returned, but its client does not open the window: the stream must not stay for ever."""

    async def stream(request: EchoRequest, context: Context) -> AsyncIterator[EchoReply]:
        yield reply_to(request)
        if kind == "error":
            raise RpcError(StatusCode.ABORTED, "too late")

    peer = await start_peer(Echo(server_stream=stream), nursery, {4: 0})
    await peer.peer.send_window_update(0, 10**6)
    path = UNARY if kind == "unary" else SERVER_STREAM
    await peer.call(1, "1S", path, EchoRequest(payload=bytes(1000)))
    await peer.peer.expect(HeadersFrame, stream_id=1)
    await trio.sleep(0.5)
    assert peer.server.statistics().streams == 1
    assert peer.server.statistics().handlers == 1
    await trio.sleep(1)
    peer.assert_nothing_left()
    # The client is told, if only that nothing more comes.
    frame = await peer.peer.receive_frame()
    assert isinstance(frame, (RstStreamFrame, HeadersFrame))
    assert frame.stream_id == 1
    nursery.cancel_scope.cancel()


async def test_a_call_without_a_deadline_waits_for_its_window_as_long_as_it_takes(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    peer = await start_peer(Echo(), nursery, {4: 0})
    await send_call(peer.peer, 1, EchoRequest(payload=bytes(1000)))
    await peer.peer.expect(HeadersFrame, stream_id=1)
    # As long as it shows that it is there: this one answers PINGs only while the test receives.
    await trio.sleep(7000)
    assert peer.server.statistics().handlers == 1
    await peer.peer.send_window_update(1, 10_000)
    assert len(await peer.peer.receive_message(1)) > 1000
    await expect_status(peer.peer, 1, StatusCode.OK)
    peer.assert_nothing_left()
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("timeout", ["0n", "0S", "0H"])
async def test_a_call_expired_on_arrival_runs_no_handler(
    timeout: str, autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    servicer = Echo()
    peer = await start_peer(servicer, nursery)
    for stream_id, path in ((1, UNARY), (3, SERVER_STREAM)):
        await peer.call(stream_id, timeout, path)
        await expect_status(peer.peer, stream_id, StatusCode.DEADLINE_EXCEEDED)
    assert not servicer.contexts
    peer.assert_nothing_left()
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("path", [UNARY, SERVER_STREAM])
async def test_a_deadline_of_a_nanosecond(path: str, autojump_clock: Clock, nursery: trio.Nursery) -> None:
    """It may be over before or after the handler has begun."""
    servicer = Echo(unary=sleep_forever, server_stream=sleep_forever)
    peer = await start_peer(servicer, nursery)
    await peer.call(1, "1n", path)
    await expect_status(peer.peer, 1, StatusCode.DEADLINE_EXCEEDED)
    peer.assert_nothing_left()
    nursery.cancel_scope.cancel()


async def test_a_deadline_does_not_reach_the_next_call_of_the_same_worker(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        await trio.sleep(request.count)
        return reply_to(request)

    async with open_channel_pair(Echo(unary=handler)) as (channel, _):
        stub = EchoStub(channel)
        for _ in range(3):
            await stub.Unary(EchoRequest(count=0), timeout=1)
            assert (await stub.Unary(EchoRequest(count=10))).count == 10
            await raises_deadline_exceeded(lambda: stub.Unary(EchoRequest(count=5), timeout=1))


async def test_each_of_many_handlers_has_its_own_deadline(autojump_clock: Clock) -> None:
    ended: dict[int, float] = {}

    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        try:
            await trio.sleep_forever()
            raise AssertionError
        finally:
            ended[request.count] = trio.current_time()

    async with open_channel_pair(Echo(unary=handler)) as (channel, _), trio.open_nursery() as nursery:

        async def call(number: int) -> None:
            await raises_deadline_exceeded(lambda: EchoStub(channel).Unary(EchoRequest(count=number), timeout=number))

        for number in range(1, 101):
            nursery.start_soon(call, number)
    assert ended == {number: pytest.approx(number) for number in range(1, 101)}


async def test_a_handler_that_answers_after_its_deadline_is_not_heard(autojump_clock: Clock) -> None:
    async def stubborn(request: EchoRequest, context: Context) -> EchoReply:
        with trio.CancelScope(shield=True):
            await trio.sleep(5)
        return EchoReply(text="late")

    async with open_channel_pair(Echo(unary=stubborn)) as (channel, server):
        await raises_deadline_exceeded(lambda: EchoStub(channel).Unary(EchoRequest(), timeout=1))
        assert server.statistics().handlers == 1
        await trio.sleep(5)
        assert (server.statistics().handlers, server.statistics().streams) == (0, 0)


async def test_a_handler_that_swallows_its_cancellation_and_answers(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    async def swallows(request: EchoRequest, context: Context) -> EchoReply:
        if context.time_remaining() < math.inf:
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                pass
        return EchoReply(text="in spite of all")

    peer = await start_peer(Echo(unary=swallows), nursery)
    await peer.call(1, "1S")
    # It may still be heard, or it may not: the writer and the deadline race. But it ends.
    while True:
        frame = await peer.peer.receive_frame()
        if isinstance(frame, RstStreamFrame) or (isinstance(frame, HeadersFrame) and frame.end_stream):
            break
    peer.assert_nothing_left()
    await peer.assert_alive(3)
    nursery.cancel_scope.cancel()


# -- calls made by handlers


async def test_calls_of_a_handler_inherit_its_deadline(autojump_clock: Clock) -> None:
    """With no code: unary calls by the scope, blocks by the RPC."""
    seen: list[float] = []

    async def note(request: EchoRequest, context: Context) -> EchoReply:
        seen.append(context.time_remaining())
        return EchoReply()

    async def note_stream(requests: Requests, context: Context) -> None:
        seen.append(context.time_remaining())

    async with open_channel_pair(Echo(unary=note, bidi=note_stream)) as (inner, _):
        inner_stub = EchoStub(inner)

        async def forward(request: EchoRequest, context: Context) -> EchoReply:
            await trio.sleep(2)
            await inner_stub.Unary(EchoRequest())
            async with inner_stub.Bidi() as call:
                assert [reply async for reply in call] == []
            async with inner_stub.Bidi(timeout=1) as call:
                assert [reply async for reply in call] == []
            async with inner_stub.Bidi(timeout=1000) as call:
                assert [reply async for reply in call] == []
            with trio.fail_after(0.5):  # not the RPC's: only cancels
                async with inner_stub.Bidi() as call:
                    assert [reply async for reply in call] == []
            return EchoReply()

        async with open_channel_pair(Echo(unary=forward)) as (outer, _):
            await EchoStub(outer).Unary(EchoRequest(), timeout=10)
    assert seen == pytest.approx([8, 8, 1, 8, 8], abs=0.01)


async def test_a_chain_of_calls_ends_together(autojump_clock: Clock) -> None:
    ended: list[tuple[str, float]] = []

    async def last(request: EchoRequest, context: Context) -> EchoReply:
        try:
            await trio.sleep_forever()
            raise AssertionError
        finally:
            ended.append(("last", trio.current_time()))

    async with open_channel_pair(Echo(unary=last)) as (inner, inner_server):
        inner_stub = EchoStub(inner)

        async def middle(request: EchoRequest, context: Context) -> EchoReply:
            try:
                return await inner_stub.Unary(EchoRequest())
            finally:
                ended.append(("middle", trio.current_time()))

        async with open_channel_pair(Echo(unary=middle)) as (outer, outer_server):
            await raises_deadline_exceeded(lambda: EchoStub(outer).Unary(EchoRequest(), timeout=3))
            await trio.testing.wait_all_tasks_blocked()
            assert (inner_server.statistics().handlers, outer_server.statistics().handlers) == (0, 0)
    assert sorted(ended) == [("last", pytest.approx(3)), ("middle", pytest.approx(3))]


@pytest.mark.parametrize("timeout", ["1", dt.timedelta(seconds=1)], ids=lambda timeout: type(timeout).__name__)
async def test_a_timeout_of_another_type_is_named_in_the_error(timeout: Any) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        stub = EchoStub(channel)
        with pytest.raises(TypeError, match=rf"timeout must be .* not {type(timeout).__name__}"):
            await stub.Unary(EchoRequest(), timeout=timeout)
        with pytest.raises(TypeError, match=rf"timeout must be .* not {type(timeout).__name__}"):
            stub.ServerStream(EchoRequest(), timeout=timeout)
