"""A cancel scope is an RPC's cancellation, on both sides and at every moment."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.behaviour.scripted import ScriptedServer, expect_call, send_reply
from tests.support.checkpoints import counting
from tests.support.echo import Context, Echo, Requests, sleep_forever
from trio_grpc import Channel, RpcError, Server, StatusCode
from trio_grpc.testing import DataFrame, HeadersFrame, MemoryListener, RstStreamFrame, ScriptedPeer, open_channel_pair

Clock = trio.testing.MockClock
Operation = Callable[[EchoStub], Awaitable[Any]]

#: Bigger than a window and a write quota together: senders and receivers have to wait in the middle.
BIG = bytes(200_000)


async def unary(stub: EchoStub) -> None:
    assert (await stub.Unary(EchoRequest(text="a"))).text == "a"


async def unary_with_timeout(stub: EchoStub) -> None:
    assert (await stub.Unary(EchoRequest(text="a"), timeout=100)).text == "a"


async def unary_big(stub: EchoStub) -> None:
    assert (await stub.Unary(EchoRequest(payload=BIG))).payload == BIG


async def unary_block(stub: EchoStub) -> None:
    async with stub.Unary.open(EchoRequest(text="a"), timeout=100) as call:
        await call.wait_initial_metadata()
        assert (await call.receive()).text == "a"


async def server_stream(stub: EchoStub) -> None:
    async with stub.ServerStream(EchoRequest(count=3)) as call:
        assert [reply.count async for reply in call] == [0, 1, 2]


async def server_stream_big(stub: EchoStub) -> None:
    async with stub.ServerStream(EchoRequest(count=3, payload=BIG)) as call:
        assert [len(reply.payload) async for reply in call] == [len(BIG)] * 3


async def server_stream_left_early(stub: EchoStub) -> None:
    async with stub.ServerStream(EchoRequest(count=10**6)) as call:
        async for _ in call:
            break


async def client_stream(stub: EchoStub) -> None:
    assert (await stub.ClientStream([EchoRequest(payload=b"a")] * 3)).count == 3


async def client_stream_from_generator(stub: EchoStub) -> None:
    async def requests() -> AsyncIterator[EchoRequest]:
        for _ in range(3):
            await trio.lowlevel.checkpoint()
            yield EchoRequest(payload=BIG[:50_000])

    assert (await stub.ClientStream(requests(), timeout=100)).count == 3


async def client_stream_block(stub: EchoStub) -> None:
    async with stub.ClientStream.open() as call:
        for _ in range(3):
            await call.send(EchoRequest(payload=BIG))
        await call.done_sending()
        assert (await call.receive()).count == 3


async def bidi(stub: EchoStub) -> None:
    async with stub.Bidi(timeout=100) as call:
        for number in range(3):
            await call.send(EchoRequest(count=number))
            assert (await call.receive()).count == number
        await call.done_sending()
        assert [reply async for reply in call] == []


async def bidi_big(stub: EchoStub) -> None:
    async with stub.Bidi() as call, trio.open_nursery() as nursery:

        @nursery.start_soon
        async def send() -> None:
            try:
                for _ in range(3):
                    await call.send(EchoRequest(payload=BIG))
            except trio.BrokenResourceError:
                return  # receiving tells why
            await call.done_sending()

        assert [len(reply.payload) async for reply in call] == [len(BIG)] * 3


OPERATIONS: list[Operation] = [
    unary,
    unary_with_timeout,
    unary_big,
    unary_block,
    server_stream,
    server_stream_big,
    server_stream_left_early,
    client_stream,
    client_stream_from_generator,
    client_stream_block,
    bidi,
    bidi_big,
]
all_operations = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)


async def assert_nothing_left(channel: Channel, server: Server, connections: int = 1) -> None:
    await trio.testing.wait_all_tasks_blocked()
    at_client, at_server = channel.statistics(), server.statistics()
    assert (at_client.streams, at_client.waiting, at_client.control_frames) == (0, 0, 0)
    assert (at_server.streams, at_server.handlers, at_server.control_frames) == (0, 0, 0)
    assert (at_client.connections, at_server.connections) == (connections, connections)


@all_operations
@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
async def test_a_caller_cancelled_at_any_checkpoint_leaves_nothing(
    operation: Operation, sockets: bool, monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock
) -> None:
    async with open_channel_pair(Echo(), sockets=sockets) as (channel, server):
        stub = EchoStub(channel)
        await unary(stub)
        number = 0
        with counting(monkeypatch) as checkpoints:
            while await checkpoints.cancel_at(number + 1, lambda: operation(stub)):
                number += 1
                if sockets:
                    # What is in the kernel's buffers is not seen by wait_all_tasks_blocked.
                    await trio.sleep(0.01)
                await assert_nothing_left(channel, server)
                # The connection is whole: its next call is served, by the same connection.
                await unary(stub)
        assert number >= 1
        if sockets:
            await trio.sleep(0.01)
        await assert_nothing_left(channel, server)


@pytest.mark.parametrize("operation", [unary, server_stream, client_stream, bidi], ids=lambda one: one.__name__)
async def test_a_caller_cancelled_while_it_connects_leaves_nothing(
    operation: Operation, monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock
) -> None:
    number = 0
    reached = True
    with counting(monkeypatch) as checkpoints:
        while reached:
            number += 1
            async with open_channel_pair(Echo()) as (channel, server):
                stub = EchoStub(channel)
                reached = await checkpoints.cancel_at(number, lambda: operation(stub))  # noqa: B023
                # The attempt goes on for the next caller.
                await unary(stub)
                await assert_nothing_left(channel, server)
    assert number > 2


def codes_of(error: Any) -> set[object]:
    """The status codes in an error, also of a group that the test's own nursery made; other errors as they are."""
    if hasattr(error, "exceptions"):
        return set().union(*map(codes_of, error.exceptions))
    return {error.code if isinstance(error, RpcError) else type(error)}


@all_operations
@pytest.mark.parametrize("by", ["peer", "deadline"])
async def test_a_handler_cancelled_at_any_checkpoint_leaves_nothing(
    operation: Operation, by: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock
) -> None:
    number = 0
    running = 0
    codes: set[object] = set()

    class Armed(Echo):
        """Arms the counter in the task of the first handler."""

        def _arm(self, context: Context) -> None:
            stream = context._stream
            scope_cancel = stream.on_ended
            assert scope_cancel is not None
            if by == "peer":
                action = lambda: stream.abandon("reset by peer")
            else:
                action = scope_cancel
            if number:
                checkpoints.arm(trio.lowlevel.current_task(), number, action)

        async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
            self._arm(context)
            await trio.lowlevel.checkpoint()
            return await super().Unary(request, context)

        def ServerStream(self, request: EchoRequest, context: Context, /) -> Any:
            self._arm(context)
            return watched(super().ServerStream(request, context))

        async def ClientStream(self, requests: Requests, context: Context, /) -> EchoReply:
            self._arm(context)
            return await super().ClientStream(requests, context)

        def Bidi(self, requests: Requests, context: Context, /) -> Any:
            self._arm(context)
            return watched(super().Bidi(requests, context))

    async def watched(replies: AsyncGenerator[EchoReply, None]) -> AsyncIterator[EchoReply]:
        nonlocal running
        running += 1
        try:
            async with aclosing(replies):
                async for reply in replies:
                    yield reply
        finally:
            running -= 1

    async with open_channel_pair(Armed()) as (channel, server):
        stub = EchoStub(channel)
        await unary(stub)
        with counting(monkeypatch) as checkpoints:
            while True:
                number += 1
                with trio.move_on_after(10):
                    try:
                        await operation(stub)
                    except Exception as error:
                        codes.update(codes_of(error))
                reached = checkpoints.disarm()
                await assert_nothing_left(channel, server)
                assert running == 0
                arm, number = number, 0
                await unary(stub)
                number = arm
                if not reached:
                    break
    assert number > 1
    # The server's scope has no deadline here: cancelled from within, it says that the server is ending. The reset that
    # the server was told of never happened, so what the client goes on sending is for a closed stream.
    allowed = {StatusCode.UNAVAILABLE, trio.BrokenResourceError}
    assert codes <= (allowed | {StatusCode.INTERNAL} if by == "peer" else allowed)


# -- what goes on the wire


async def test_a_call_cancelled_before_it_was_written_writes_nothing(autojump_clock: Clock) -> None:
    """All kinds: an RST_STREAM on an idle stream makes Java and grpc-js close the connection."""
    async with ScriptedServer() as scripted, trio.open_nursery() as nursery:
        nursery.start_soon(scripted.stub.Unary, EchoRequest(text="first"))
        peer = await scripted.accept()
        await expect_call(peer, 1)
        await send_reply(peer, 1, EchoReply())
        for operation in OPERATIONS:
            with trio.CancelScope() as scope:
                scope.cancel()
                await operation(scripted.stub)
            assert scope.cancelled_caught
        # Also when they got as far as the queue, but not as the wire.
        for method in (scripted.stub.Bidi, scripted.stub.ClientStream.open):
            async with method() as call:
                call.cancel()
        await peer.expect_silence()
        scripted.assert_nothing_left()
        # No id was wasted either.
        nursery.start_soon(scripted.stub.Unary, EchoRequest(text="second"))
        await expect_call(peer, 3)
        await send_reply(peer, 3, EchoReply())


@pytest.mark.parametrize("operation", ["unary", "receive", "send", "leave", "cancel", "aclose"])
async def test_the_peer_sees_cancel_at_once(operation: str, autojump_clock: Clock) -> None:
    async with ScriptedServer() as scripted, trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        leave = trio.Event()

        @nursery.start_soon
        async def caller() -> None:
            with scope:
                if operation == "unary":
                    await scripted.stub.Unary(EchoRequest())
                async with scripted.stub.Bidi() as call:
                    if operation == "receive":
                        await call.receive()
                    elif operation == "send":
                        while True:
                            await call.send(EchoRequest(payload=BIG))
                    await leave.wait()
                    if operation == "cancel":
                        call.cancel()
                        await trio.sleep_forever()
                    elif operation == "aclose":
                        await call.aclose()
                        await trio.sleep_forever()

        peer = await scripted.accept()
        await peer.expect(HeadersFrame, stream_id=1)
        await trio.testing.wait_all_tasks_blocked()
        started = trio.current_time()
        if operation in {"unary", "receive", "send"}:
            scope.cancel()
        else:
            leave.set()
        while not isinstance(frame := await peer.receive_frame(), RstStreamFrame):
            assert isinstance(frame, DataFrame)
        assert (frame.stream_id, frame.error_code) == (1, 8)
        assert trio.current_time() == started
        await peer.expect_silence()
        scope.cancel()


async def test_a_call_that_ended_well_is_not_reset(autojump_clock: Clock) -> None:
    async with ScriptedServer() as scripted, trio.open_nursery() as nursery:

        @nursery.start_soon
        async def caller() -> None:
            for operation in (unary, server_stream_of_one):
                await operation(scripted.stub)

        async def server_stream_of_one(stub: EchoStub) -> None:
            async with stub.ServerStream(EchoRequest()) as call:
                assert len([reply async for reply in call]) == 1

        peer = await scripted.accept()
        for stream_id in (1, 3):
            await peer.expect(HeadersFrame, stream_id=stream_id)
            await peer.receive_message(stream_id)
            await send_reply(peer, stream_id, EchoReply(text="a"))
        await peer.expect_silence()


async def test_a_cancelled_call_never_cuts_a_write(autojump_clock: Clock) -> None:
    """The peer reads nothing while calls are cancelled in the middle of their bytes; then every frame is whole."""
    listener = MemoryListener(sockets=True)
    async with (
        AsyncExitStack() as exits,
        trio_grpc.open_channel(listener.connect) as channel,
        trio.open_nursery() as nursery,
    ):
        stub = EchoStub(channel)

        async def caller(number: int) -> None:
            with trio.move_on_after(number):
                if number % 2:
                    await stub.Unary(EchoRequest(payload=bytes(10**6)))
                else:
                    async with stub.Bidi() as call:
                        while True:
                            await call.send(EchoRequest(payload=bytes(30_000)))

        async def start_all() -> None:
            for number in range(1, 21):
                nursery.start_soon(caller, number)

        nursery.start_soon(start_all)
        # Small kernel buffers, so that a single write is cut in many pieces.
        stream = await listener.accept()
        assert isinstance(stream, trio.SocketStream)
        stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
        peer = await exits.enter_async_context(ScriptedPeer.server(stream))
        # Windows so large that they hold nothing back: all of it is stuck in the writes themselves.
        await peer.handshake({4: 2**30})
        await peer.send_window_update(0, 2**30)
        await trio.sleep(30)  # until all are cancelled
        seen: dict[int, list[object]] = {}
        while len(seen) < 20 or not all(isinstance(frames[-1], RstStreamFrame) for frames in seen.values()):
            frame = await peer.receive_frame()
            if isinstance(frame, (HeadersFrame, DataFrame, RstStreamFrame)):
                seen.setdefault(frame.stream_id, []).append(frame)
        assert list(seen) == sorted(seen)
        for frames in seen.values():
            assert isinstance(frames[0], HeadersFrame)
            assert not any(isinstance(frame, RstStreamFrame) for frame in frames[:-1])
        nursery.start_soon(stub.Unary, EchoRequest(text="after"))
        assert (await expect_call(peer, 41)).text == "after"
        await send_reply(peer, 41, EchoReply())


# -- the handler's side


class Witness:
    """Handlers of all kinds that run for ever, and tell when their ``finally`` has run."""

    def __init__(self) -> None:
        self.started = 0
        self.finally_at: list[float] = []

    def servicer(self) -> Echo:
        return Echo(
            unary=self.sleep, server_stream=self.send_for_ever, client_stream=self.receive_for_ever, bidi=self.generate
        )

    async def sleep(self, request: EchoRequest, context: Context) -> EchoReply:
        self.started += 1
        try:
            await trio.sleep_forever()
            raise AssertionError
        finally:
            self.finally_at.append(trio.current_time())

    async def send_for_ever(self, request: EchoRequest, context: Context) -> None:
        self.started += 1
        try:
            while True:
                await context.send(EchoReply(payload=bytes(1000)))
                await trio.sleep(0.01)
        finally:
            self.finally_at.append(trio.current_time())

    async def receive_for_ever(self, requests: Requests, context: Context) -> EchoReply:
        self.started += 1
        try:
            while True:
                await requests.receive()
        finally:
            self.finally_at.append(trio.current_time())

    async def generate(self, requests: Requests, context: Context) -> AsyncIterator[EchoReply]:
        self.started += 1
        try:
            while True:
                yield EchoReply(payload=bytes(1000))
        finally:
            self.finally_at.append(trio.current_time())


PATHS = ["Unary", "ServerStream", "ClientStream", "Bidi"]


@pytest.mark.parametrize("method", PATHS)
@pytest.mark.parametrize("end", ["cancel", "reset", "close channel"])
async def test_a_client_that_leaves_cancels_the_handler(method: str, end: str, autojump_clock: Clock) -> None:
    witness = Witness()
    async with open_channel_pair(witness.servicer()) as (channel, server):
        stub = EchoStub(channel)
        scope = trio.CancelScope()

        async def caller() -> None:
            with scope:
                try:
                    if method == "Unary":
                        await stub.Unary(EchoRequest())
                    elif method == "ServerStream":
                        async with stub.ServerStream(EchoRequest()) as replies:
                            await trio.sleep_forever()
                    elif method == "ClientStream":
                        await stub.ClientStream(never())
                    else:
                        async with stub.Bidi():
                            await trio.sleep_forever()
                    assert replies
                except trio.ClosedResourceError:
                    assert end != "cancel"

        async def never() -> AsyncIterator[EchoRequest]:
            await trio.sleep_forever()
            yield EchoRequest()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(caller)
            await trio.sleep(1.005)
            assert witness.started == 1
            assert server.statistics().handlers == 1
            assert not witness.finally_at
            if end == "close channel":
                await channel.aclose()
                scope.cancel()
            elif end == "cancel":
                scope.cancel()
            else:
                (connection,) = channel._balancer.connections
                (stream,) = connection.table.streams.values()
                stream.cancel("from the outside")
                scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert len(witness.finally_at) == 1
            assert witness.finally_at[0] < 1.1
            assert (server.statistics().handlers, server.statistics().streams) == (0, 0)


@pytest.mark.parametrize("method", PATHS)
@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
async def test_a_connection_that_is_cut_cancels_its_handlers(
    method: str, sockets: bool, autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    witness = Witness()
    listener = MemoryListener(sockets=sockets)
    server = await nursery.start(trio_grpc.serve, [witness.servicer()], listener)
    stream = await listener.connect()
    peer = ScriptedPeer.client(stream)
    await peer.handshake()
    for stream_id in (1, 3, 5):
        await peer.send_request(stream_id, f"/echo.Echo/{method}")
        if method in {"Unary", "ServerStream"}:
            await peer.send_message(stream_id, b"", end_stream=True)
    await trio.sleep(1)
    assert witness.started == 3
    await trio.aclose_forcefully(stream)
    await trio.sleep(0.1)
    assert len(witness.finally_at) == 3
    assert server.statistics() == trio_grpc.ServerStatistics(connections=0, streams=0, handlers=0, control_frames=0)
    nursery.cancel_scope.cancel()


async def test_a_cancelled_handler_may_clean_up_in_peace(autojump_clock: Clock) -> None:
    steps: list[str] = []

    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(5)
                steps.append("cleaned up")
                try:
                    await context.send(EchoReply())
                except trio.BrokenResourceError:
                    steps.append("nobody listens")
        raise AssertionError

    async with open_channel_pair(Echo(unary=handler)) as (channel, server):
        with trio.move_on_after(1):
            await EchoStub(channel).Unary(EchoRequest())
        await trio.sleep(1)
        assert server.statistics().handlers == 1
        await trio.sleep(5)
        assert steps == ["cleaned up", "nobody listens"]
        assert server.statistics().handlers == 0


async def test_leaving_a_block_cancels_what_is_unfinished_and_nothing_else(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo()) as (channel, server):
        stub = EchoStub(channel)
        async with stub.Bidi() as kept:
            await kept.send(EchoRequest(count=1))
            for _ in range(50):
                async with stub.ServerStream(EchoRequest(count=10**9)) as call:
                    assert (await call.receive()).count == 0
                await trio.testing.wait_all_tasks_blocked()
                assert server.statistics().handlers == 1
                assert channel.statistics().streams == 1
            assert (await kept.receive()).count == 1
            await kept.done_sending()
            assert [reply async for reply in kept] == []


async def test_cancelling_serve_ends_handlers_that_run(autojump_clock: Clock) -> None:
    """Nothing of ours swallows Cancelled."""
    witness = Witness()
    listener = MemoryListener()
    async with trio_grpc.open_channel(listener.connect) as channel, trio.open_nursery() as nursery:
        stub = EchoStub(channel)
        async with trio.open_nursery() as server_nursery:
            await server_nursery.start(trio_grpc.serve, [witness.servicer()], listener)

            async def caller() -> None:
                with pytest.raises(RpcError) as caught:
                    await stub.Unary(EchoRequest())
                assert caught.value.code is StatusCode.UNAVAILABLE

            for _ in range(3):
                nursery.start_soon(caller)
            await trio.sleep(1)
            assert witness.started == 3
            server_nursery.cancel_scope.cancel()
        assert witness.finally_at == [1, 1, 1]


# -- at the caller


async def test_a_cancelled_receive_takes_nothing_and_leaves_the_call_alive(autojump_clock: Clock) -> None:
    gate = trio.Event()

    async def handler(request: EchoRequest, context: Context) -> AsyncIterator[EchoReply]:
        yield EchoReply(count=1)
        await gate.wait()
        yield EchoReply(count=2)

    async with open_channel_pair(Echo(server_stream=handler)) as (channel, _):
        stub = EchoStub(channel)
        async with stub.ServerStream(EchoRequest()) as call:
            assert (await call.receive()).count == 1
            for _ in range(3):
                with trio.move_on_after(1) as scope:
                    await call.receive()
                assert scope.cancelled_caught
            gate.set()
            await trio.sleep(1)
            with trio.CancelScope() as scope:
                scope.cancel()
                await call.receive()
            assert scope.cancelled_caught
            assert (await call.receive()).count == 2
            with pytest.raises(trio.EndOfChannel):
                await call.receive()


@pytest.mark.parametrize("kind", ["unary", "client stream"])
async def test_a_cancelled_receive_of_a_block_with_one_reply_leaves_the_call_alive(
    kind: str, autojump_clock: Clock
) -> None:
    async def slow(_request: object, context: Context) -> EchoReply:
        await trio.sleep(5)
        return EchoReply(text="late")

    async with open_channel_pair(Echo(unary=slow, client_stream=slow)) as (channel, _):
        stub = EchoStub(channel)
        opened: Any = stub.Unary.open(EchoRequest()) if kind == "unary" else stub.ClientStream.open()
        async with opened as call:
            with trio.move_on_after(1) as scope:
                await call.receive()
            assert scope.cancelled_caught
            assert (await call.receive()).text == "late"


async def test_after_cancel_operations_say_closed(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo()) as (channel, _), EchoStub(channel).Bidi() as call:
        call.cancel()
        call.cancel()
        assert call.status is StatusCode.CANCELLED
        for operation in (
            call.receive,
            lambda: call.send(EchoRequest()),
            call.done_sending,
            call.wait_initial_metadata,
        ):
            with pytest.raises(trio.ClosedResourceError):
                await operation()
        await call.aclose()


async def test_cancel_wakes_operations_in_flight(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo(bidi=sleep_forever)) as (channel, server):
        async with EchoStub(channel).Bidi() as call, trio.open_nursery() as nursery:
            ended: list[str] = []

            async def expect_closed(name: str, operation: Callable[[], Awaitable[object]]) -> None:
                with pytest.raises(trio.ClosedResourceError):  # noqa: PT012 # sends that fit into the window succeed
                    while True:
                        await operation()
                ended.append(name)

            nursery.start_soon(expect_closed, "receive", call.receive)
            nursery.start_soon(expect_closed, "send", lambda: call.send(EchoRequest(payload=BIG)))
            nursery.start_soon(expect_closed, "metadata", call.wait_initial_metadata)
            await trio.testing.wait_all_tasks_blocked()
            assert not ended
            call.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(ended) == ["metadata", "receive", "send"]
        await assert_nothing_left(channel, server)


async def test_a_scope_around_the_caller_that_expires_is_trios_own(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo(unary=sleep_forever)) as (channel, server):
        stub = EchoStub(channel)
        with trio.move_on_after(1) as scope:
            await stub.Unary(EchoRequest())
        assert scope.cancelled_caught
        with pytest.raises(trio.TooSlowError):
            with trio.fail_after(1):
                await stub.Unary(EchoRequest())
        await assert_nothing_left(channel, server)


async def test_a_waiter_for_the_stream_limit_can_be_cancelled(autojump_clock: Clock) -> None:
    limits = trio_grpc.Limits(max_concurrent_streams=1, adaptive_window=False)
    async with open_channel_pair(Echo(bidi=sleep_forever), limits=limits) as (channel, server):
        stub = EchoStub(channel)
        async with stub.Bidi(), trio.open_nursery() as nursery:
            await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(1) as scope:
                await stub.Unary(EchoRequest())
            assert scope.cancelled_caught
            with pytest.raises(RpcError) as caught:
                await stub.Unary(EchoRequest(), timeout=1)
            assert caught.value.code is StatusCode.DEADLINE_EXCEEDED
            assert channel.statistics().waiting == 0
            nursery.cancel_scope.cancel()
        await unary(stub)
        await assert_nothing_left(channel, server)
