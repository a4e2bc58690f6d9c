"""Streams of messages both ways: order, back-pressure, and how each side learns of the other's end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

from tests.behaviour.scripted import ScriptedServer
from tests.support.echo import Context, Echo, Requests, sleep_forever
from trio_grpc import Channel, Limits, RpcError, Server, StatusCode
from trio_grpc.testing import HeadersFrame, open_channel_pair

Clock = trio.testing.MockClock

WINDOW = 65_535
QUOTA = 65_536
#: Windows so small, or frames so large, that every message meets them differently.
LIMITS = {
    "default": Limits(adaptive_window=False),
    "tiny windows": Limits(initial_window_size=1, adaptive_window=False),
    "odd windows": Limits(initial_window_size=777, adaptive_window=False),
    "large windows": Limits(initial_window_size=2**22, initial_connection_window_size=2**23, max_frame_size=2**20),
}
all_limits = pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS.keys())
#: Lengths of payloads on both sides of every boundary there is.
SIZES = [0, 1, 5, 770, 8191, 8192, 16_379, 16_384, 16_385, WINDOW - 5, WINDOW, WINDOW + 1, 200_000]


def payload(size: int) -> bytes:
    return bytes(at * 7 % 251 for at in range(min(size, 1000))) * (size // 1000 + 1) if size else b""


def sized(size: int) -> bytes:
    return payload(size)[:size]


@all_limits
@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
async def test_messages_of_all_sizes_arrive_in_order(limits: Limits, sockets: bool, autojump_clock: Clock) -> None:
    sizes = SIZES if limits.initial_window_size > 1 else [size for size in SIZES if size <= 1000]
    async with open_channel_pair(Echo(), limits=limits, sockets=sockets) as (channel, _):
        stub = EchoStub(channel)
        for size in sizes:
            assert (await stub.Unary(EchoRequest(payload=sized(size)))).payload == sized(size)
        total = await stub.ClientStream(EchoRequest(payload=sized(size)) for size in sizes)
        assert total.payload == b"".join(sized(size) for size in sizes)
        assert total.count == len(sizes)
        for size in sizes:
            async with stub.ServerStream(EchoRequest(payload=sized(size), count=3)) as replies:
                assert [(reply.count, reply.payload) async for reply in replies] == [(n, sized(size)) for n in range(3)]
        async with stub.Bidi() as call, trio.open_nursery() as nursery:

            @nursery.start_soon
            async def send() -> None:
                for size in sizes:
                    await call.send(EchoRequest(payload=sized(size)))
                await call.done_sending()

            assert [reply.payload async for reply in call] == [sized(size) for size in sizes]


async def test_streams_without_a_message(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        stub = EchoStub(channel)
        assert (await stub.ClientStream([])).count == 0
        async with stub.ServerStream(EchoRequest(count=0)) as replies:
            assert [reply async for reply in replies] == []
        async with stub.Bidi() as call:
            await call.done_sending()
            assert [reply async for reply in call] == []
            assert call.status is StatusCode.OK


async def test_thousands_of_small_messages(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        stub = EchoStub(channel)
        async with stub.ServerStream(EchoRequest(count=5000)) as replies:
            assert [reply.count async for reply in replies] == list(range(5000))
        assert (await stub.ClientStream(EchoRequest() for _ in range(5000))).count == 5000


# -- back-pressure


async def test_a_consumer_that_stops_reading_stops_the_producer(autojump_clock: Clock) -> None:
    sent = 0

    async def handler(request: EchoRequest, context: Context) -> AsyncIterator[EchoReply]:
        nonlocal sent
        while True:
            yield EchoReply(payload=bytes(1000), count=sent)
            sent += 1

    async with open_channel_pair(Echo(server_stream=handler)) as (channel, _):
        stub = EchoStub(channel)
        async with stub.ServerStream(EchoRequest()) as call:
            assert (await call.receive()).count == 0
            await trio.sleep(1000)
            # What the window and the quota hold, and not a message more.
            assert sent * 1000 <= WINDOW + QUOTA + 2000
            before = sent
            await trio.sleep(1000)
            assert sent == before
            for count in range(1, 1000):
                assert (await call.receive()).count == count
            assert sent > 900


async def test_a_handler_that_stops_reading_stops_its_client(autojump_clock: Clock) -> None:
    gate = trio.Event()

    async def handler(requests: Requests, context: Context) -> EchoReply:
        await gate.wait()
        return EchoReply(count=len([request async for request in requests]))

    async with open_channel_pair(Echo(client_stream=handler)) as (channel, _):
        stub = EchoStub(channel)
        async with stub.ClientStream.open() as call:
            sent = 0
            with trio.move_on_after(1000):
                while True:
                    await call.send(EchoRequest(payload=bytes(1000)))
                    sent += 1
            assert sent * 1000 <= WINDOW + QUOTA + 2000
            gate.set()
            await call.done_sending()
            # The send that was cancelled has sent nothing.
            assert (await call.receive()).count == sent


async def test_a_waiting_consumer_does_not_stop_its_neighbours(autojump_clock: Clock) -> None:
    """Connection credit goes back when data arrives; one stream that nobody reads holds up nobody else."""
    async with open_channel_pair(Echo()) as (channel, _):
        stub = EchoStub(channel)
        async with stub.ServerStream(EchoRequest(count=10**6, payload=bytes(1000))) as unread:
            await unread.receive()
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(30):
                assert len((await stub.Unary(EchoRequest(payload=bytes(100_000)))).payload) == 100_000


async def test_handlers_that_never_read_do_not_use_up_the_connection(autojump_clock: Clock) -> None:
    async def refuse(requests: Requests, context: Context) -> EchoReply:
        raise RpcError(StatusCode.PERMISSION_DENIED)

    async with open_channel_pair(Echo(client_stream=refuse)) as (channel, _):
        stub = EchoStub(channel)
        for _ in range(100):
            with pytest.raises(RpcError) as caught:
                await stub.ClientStream(EchoRequest(payload=bytes(20_000)) for _ in range(5))
            assert caught.value.code is StatusCode.PERMISSION_DENIED
        assert len((await stub.Unary(EchoRequest(payload=bytes(10**6)))).payload) == 10**6


@all_limits
async def test_both_directions_full_at_once_do_not_deadlock(limits: Limits, autojump_clock: Clock) -> None:
    """Neither side reads while it sends; only when one of them begins to read can anything move."""
    count = 100 if limits.initial_window_size > 1 else 3
    size = 10_000 if limits.initial_window_size > 1 else 300

    async def handler(requests: Requests, context: Context) -> None:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def send() -> None:
                for number in range(count):
                    await context.send(EchoReply(count=number, payload=bytes(size)))

            received.extend([request.count async for request in requests])

    received: list[int] = []
    async with open_channel_pair(Echo(bidi=handler), limits=limits) as (channel, _):
        stub = EchoStub(channel)
        async with stub.Bidi() as call, trio.open_nursery() as nursery:

            @nursery.start_soon
            async def send() -> None:
                for number in range(count):
                    await call.send(EchoRequest(count=number, payload=bytes(size)))
                await call.done_sending()

            await trio.sleep(10)
            assert [reply.count async for reply in call] == list(range(count))
    assert received == list(range(count))


@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
async def test_a_firehose_does_not_starve_a_small_call(sockets: bool, autojump_clock: Clock) -> None:
    """Neither the server's generator, nor the client's reader, nor its consumer keeps others from running."""
    received = 0

    async def drink(stub: EchoStub) -> None:
        nonlocal received
        async with stub.ServerStream(EchoRequest(count=10**9, payload=bytes(100))) as call:
            async for _ in call:
                received += 1

    async with open_channel_pair(Echo(), sockets=sockets) as (channel, _), trio.open_nursery() as nursery:
        stub = EchoStub(channel)
        for _ in range(3):
            nursery.start_soon(drink, stub)
        await trio.lowlevel.checkpoint()
        while not received:
            await trio.lowlevel.checkpoint()
        for number in range(20):
            before = received
            assert (await stub.Unary(EchoRequest(count=number))).count == number
            # Within a few windows' worth of messages, not after hundreds of thousands.
            assert received - before < 20_000
        nursery.cancel_scope.cancel()


# -- beginnings


async def test_opening_does_not_wait_for_the_server(autojump_clock: Clock) -> None:
    async with ScriptedServer() as scripted, trio.open_nursery() as nursery:
        opened = trio.Event()

        @nursery.start_soon
        async def caller() -> None:
            async with scripted.stub.Bidi() as call:
                opened.set()
                await call.send(EchoRequest(text="first"))
                assert (await call.receive()).text == "first"

        peer = await scripted.accept()
        await opened.wait()
        await peer.expect(HeadersFrame, stream_id=1, end_stream=False)
        # The server needs the first message before it says anything at all.
        message = await peer.receive_message(1)
        async with peer.one_segment():
            await peer.send_response(1)
            await peer.send_message(1, message)
            await peer.send_trailers(1)
        await trio.testing.wait_all_tasks_blocked()


async def test_a_server_may_speak_first(autojump_clock: Clock) -> None:
    async def handler(requests: Requests, context: Context) -> AsyncIterator[EchoReply]:
        yield EchoReply(text="first")
        async for request in requests:
            yield EchoReply(text=request.text)

    async with open_channel_pair(Echo(bidi=handler)) as (channel, _), EchoStub(channel).Bidi() as call:
        assert (await call.receive()).text == "first"
        await call.send(EchoRequest(text="second"))
        assert (await call.receive()).text == "second"


async def test_requests_go_out_one_by_one_as_they_are_sent(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo()) as (channel, _), EchoStub(channel).Bidi() as call:
        for number in range(100):
            await call.send(EchoRequest(count=number))
            assert (await call.receive()).count == number


# -- ends


async def test_after_the_end_a_receiver_is_told_so_again_and_again(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        stub = EchoStub(channel)
        async with stub.ServerStream(EchoRequest(count=1)) as call:
            await call.receive()
            for _ in range(3):
                with pytest.raises(trio.EndOfChannel):
                    await call.receive()
            assert [reply async for reply in call] == []


async def test_a_handler_sees_the_end_of_the_requests_again_and_again(autojump_clock: Clock) -> None:
    async def handler(requests: Requests, context: Context) -> EchoReply:
        count = len([request async for request in requests])
        for _ in range(3):
            with pytest.raises(trio.EndOfChannel):
                await requests.receive()
        return EchoReply(count=count)

    async with open_channel_pair(Echo(client_stream=handler)) as (channel, _):
        assert (await EchoStub(channel).ClientStream([EchoRequest()] * 3)).count == 3


async def test_sending_after_done_sending_says_closed(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        stub = EchoStub(channel)
        for opened in (stub.Bidi(), stub.ClientStream.open()):
            async with opened as call:
                await call.done_sending()
                await call.done_sending()
                with pytest.raises(trio.ClosedResourceError):
                    await call.send(EchoRequest())


@pytest.mark.parametrize("code", [StatusCode.OK, StatusCode.ABORTED])
async def test_sending_on_a_call_that_has_ended_says_broken_and_receiving_says_why(
    code: StatusCode, autojump_clock: Clock
) -> None:
    async def handler(requests: Requests, context: Context) -> None:
        await requests.receive()
        await context.send(EchoReply(text="enough"))
        if code:
            raise RpcError(code, "why")

    async with open_channel_pair(Echo(bidi=handler)) as (channel, server):
        stub = EchoStub(channel)
        async with stub.Bidi() as call:
            await call.send(EchoRequest())
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(2):
                with pytest.raises(trio.BrokenResourceError):
                    await call.send(EchoRequest())
            # done_sending is no error then: whoever sends in a loop ends with it.
            await call.done_sending()
            assert (await call.receive()).text == "enough"
            for _ in range(2):
                with pytest.raises((trio.EndOfChannel, RpcError)) as caught:
                    await call.receive()
                assert isinstance(caught.value, RpcError) is bool(code)
            assert call.status is code
        assert server.statistics().streams == 0


async def test_a_sender_that_waits_is_told_when_the_call_ends(autojump_clock: Clock) -> None:
    async def handler(requests: Requests, context: Context) -> None:
        await trio.sleep(5)
        raise RpcError(StatusCode.ABORTED, "why")

    async with open_channel_pair(Echo(bidi=handler)) as (channel, _), EchoStub(channel).Bidi() as call:
        with pytest.raises(trio.BrokenResourceError):  # noqa: PT012 # the first ones fit into the window
            while True:
                await call.send(EchoRequest(payload=bytes(50_000)))
        assert trio.current_time() == 5
        with pytest.raises(RpcError, match="why"):
            await call.receive()


async def test_a_server_that_has_heard_enough_answers_early(autojump_clock: Clock) -> None:
    async def handler(requests: Requests, context: Context) -> EchoReply:
        return EchoReply(count=(await requests.receive()).count)

    async with open_channel_pair(Echo(client_stream=handler)) as (channel, server):
        stub = EchoStub(channel)
        sent = 0

        def endless() -> Iterator[EchoRequest]:
            nonlocal sent
            while True:
                sent += 1
                yield EchoRequest(count=sent, payload=bytes(10_000))

        closed: list[bool] = []

        async def endless_async() -> AsyncIterator[EchoRequest]:
            try:
                for request in endless():
                    yield request
            finally:
                closed.append(True)

        async def silent() -> AsyncIterator[EchoRequest]:
            try:
                yield EchoRequest(count=7)
                await trio.sleep_forever()
            finally:
                closed.append(True)

        assert (await stub.ClientStream(endless())).count == 1
        assert sent < 50
        assert (await stub.ClientStream(endless_async())).count == sent_at_start(sent)
        # One that waits for something of its own does not outwait the answer.
        assert (await stub.ClientStream(silent())).count == 7
        assert closed == [True, True]
        await trio.testing.wait_all_tasks_blocked()
        assert (channel.statistics().streams, server.statistics().streams) == (0, 0)


def sent_at_start(sent: int) -> int:
    # The counter goes on where the generator before has stopped.
    return pytest.approx(sent, abs=50)  # type: ignore[return-value]


class UserError(Exception):
    pass


@pytest.mark.parametrize("kind", ["iterable", "generator", "iterator class"])
async def test_what_the_iterable_raises_comes_out_and_cancels_the_call(kind: str, autojump_clock: Clock) -> None:
    error = UserError()

    def plain() -> Iterator[EchoRequest]:
        yield EchoRequest()
        raise error

    async def generator() -> AsyncIterator[EchoRequest]:
        yield EchoRequest()
        await trio.lowlevel.checkpoint()
        raise error

    class Requested:
        def __init__(self) -> None:
            self.count = 0

        def __aiter__(self) -> Requested:
            return self

        async def __anext__(self) -> EchoRequest:
            await trio.lowlevel.checkpoint()
            self.count += 1
            if self.count == 2:
                raise error
            return EchoRequest()

    makers: dict[str, Callable[[], Any]] = {"iterable": plain, "generator": generator, "iterator class": Requested}
    async with open_channel_pair(Echo()) as (channel, server):
        with pytest.raises(UserError) as caught:
            await EchoStub(channel).ClientStream(makers[kind]())
        assert caught.value is error
        assert error.__context__ is None
        await trio.testing.wait_all_tasks_blocked()
        assert (channel.statistics().streams, server.statistics().handlers) == (0, 0)


async def test_a_message_of_another_type_is_the_callers_fault(autojump_clock: Clock) -> None:
    wrong: Any = EchoReply()
    async with open_channel_pair(Echo()) as (channel, server):
        stub = EchoStub(channel)
        with pytest.raises(TypeError, match="EchoRequest"):
            await stub.Unary(wrong)
        with pytest.raises(TypeError, match="EchoRequest"):
            stub.ServerStream(wrong)
        with pytest.raises(TypeError, match="EchoRequest"):
            await stub.ClientStream([wrong])
        with pytest.raises(TypeError):
            await stub.ClientStream(EchoRequest())  # type: ignore[arg-type]
        async with stub.Bidi() as call:
            with pytest.raises(TypeError, match="EchoRequest"):
                await call.send(wrong)
            # The call has not noticed.
            await call.send(EchoRequest(text="a"))
            assert (await call.receive()).text == "a"
        await trio.testing.wait_all_tasks_blocked()
        assert (channel.statistics().streams, server.statistics().streams) == (0, 0)


# -- tasks


async def test_sends_and_receives_in_different_tasks(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        stub = EchoStub(channel)
        async with stub.Bidi() as call, trio.open_nursery() as nursery:
            received: list[int] = []

            @nursery.start_soon
            async def receiver() -> None:
                received.extend([reply.count async for reply in call])

            @nursery.start_soon
            async def sender() -> None:
                for number in range(100):
                    await call.send(EchoRequest(count=number))
                    if number % 10 == 0:
                        await trio.sleep(1)
                await call.done_sending()

        assert received == list(range(100))


async def test_one_task_at_a_time(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo(bidi=sleep_forever, unary=sleep_forever)) as (channel, _):
        stub = EchoStub(channel)
        async with stub.Bidi() as call, stub.Unary.open(EchoRequest()) as unary, trio.open_nursery() as nursery:

            async def fill() -> None:
                while True:
                    await call.send(EchoRequest(payload=bytes(50_000)))

            nursery.start_soon(call.receive)
            nursery.start_soon(unary.receive)
            nursery.start_soon(fill)
            await trio.testing.wait_all_tasks_blocked()
            operations: list[Callable[[], Awaitable[object]]] = [
                call.receive,
                lambda: call.send(EchoRequest()),
                unary.receive,
            ]
            for operation in operations:
                with pytest.raises(trio.BusyResourceError):
                    await operation()
            nursery.cancel_scope.cancel()


async def test_several_tasks_may_wait_for_initial_metadata(autojump_clock: Clock) -> None:
    async def handler(requests: Requests, context: Context) -> None:
        await trio.sleep(1)
        await context.send_initial_metadata({"key": "value"})
        await trio.sleep_forever()

    async with open_channel_pair(Echo(bidi=handler)) as (channel, _), EchoStub(channel).Bidi() as call:
        seen: list[Any] = []

        async def wait() -> None:
            seen.append((await call.wait_initial_metadata())["key"])

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(wait)
        assert seen == ["value"] * 5


async def test_a_thousand_calls_at_once(autojump_clock: Clock) -> None:
    """More than the server takes at once: the rest waits in line."""
    running = 0
    most = 0

    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(0.01)
        running -= 1
        return EchoReply(count=request.count)

    limits = Limits(max_concurrent_streams=100, adaptive_window=False)
    async with open_channel_pair(Echo(unary=handler), limits=limits) as (channel, server):
        stub = EchoStub(channel)
        counts: list[int] = []

        async def call(number: int) -> None:
            counts.append((await stub.Unary(EchoRequest(count=number))).count)

        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(call, number)
        assert sorted(counts) == list(range(1000))
        assert most == 100
        await assert_idle(channel, server)


async def assert_idle(channel: Channel, server: Server) -> None:
    await trio.testing.wait_all_tasks_blocked()
    assert (channel.statistics().streams, channel.statistics().waiting) == (0, 0)
    assert (server.statistics().streams, server.statistics().handlers) == (0, 0)


# -- operations are checkpoints


async def test_every_operation_is_a_checkpoint(autojump_clock: Clock) -> None:
    async def bidi(requests: Requests, context: Context) -> None:
        with trio.testing.assert_checkpoints():
            await context.send_initial_metadata()
        with trio.testing.assert_checkpoints():
            await requests.receive()
        await context.send(EchoReply())
        with trio.testing.assert_checkpoints():
            try:
                await context.abort(StatusCode.ABORTED)
            except RpcError:
                pass

    async with open_channel_pair(Echo(bidi=bidi)) as (channel, server):
        stub = EchoStub(channel)
        for _ in range(2):  # with and without a connection
            with trio.testing.assert_checkpoints():
                await stub.Unary(EchoRequest())
        with trio.testing.assert_checkpoints():
            await stub.ClientStream([])
        for opened in (stub.Unary.open(EchoRequest()), stub.ServerStream(EchoRequest()), stub.ClientStream.open()):
            with trio.testing.assert_checkpoints():
                await opened.__aenter__()
            # Leaving lets others run, but raises no Cancelled over what the block ended with.
            with trio.CancelScope() as scope:
                scope.cancel()
                await opened.__aexit__(None, None, None)
            assert not scope.cancelled_caught
        async with stub.Bidi() as call:
            with trio.testing.assert_checkpoints():
                await call.wait_initial_metadata()
            with trio.testing.assert_checkpoints():
                await call.wait_initial_metadata()
            await call.send(EchoRequest())
            with trio.testing.assert_checkpoints():
                await call.receive()
            with trio.testing.assert_checkpoints():
                await call.done_sending()
            with trio.testing.assert_checkpoints():
                await call.aclose()
            with trio.testing.assert_checkpoints():
                await call.aclose()
        async with stub.Unary.open(EchoRequest()) as unary:
            for _ in range(2):
                with trio.testing.assert_checkpoints():
                    await unary.receive()
        async with stub.Unary.open(EchoRequest()) as unary:
            await trio.testing.wait_all_tasks_blocked()
            with trio.testing.assert_checkpoints():
                await unary.receive()  # the reply has come already
        with trio.testing.assert_checkpoints():
            await server.drain(0)
        for _ in range(2):
            with trio.testing.assert_checkpoints():
                await channel.aclose()


async def test_every_operation_looks_for_cancellation(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        stub = EchoStub(channel)
        await stub.Unary(EchoRequest())
        async with stub.Bidi() as call:
            await call.send(EchoRequest(count=1))
            await call.send(EchoRequest(count=2))
            await trio.testing.wait_all_tasks_blocked()
            operations: list[Callable[[], Awaitable[object]]] = [
                call.receive,  # messages are waiting
                lambda: call.send(EchoRequest()),
                call.wait_initial_metadata,
                lambda: stub.Unary(EchoRequest()),
                lambda: stub.ClientStream([]),
                stub.Bidi().__aenter__,
            ]
            for operation in operations:
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await operation()
                assert scope.cancelled_caught
            # Nothing was taken, nothing was sent.
            assert [(await call.receive()).count for _ in range(2)] == [1, 2]
            await call.done_sending()
            assert [reply async for reply in call] == []


async def test_a_consumer_that_always_finds_messages_lets_others_run(autojump_clock: Clock) -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with open_channel_pair(Echo()) as (channel, _):
        stub = EchoStub(channel)
        async with stub.ServerStream(EchoRequest(count=2000)) as call:
            await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(count_turns)
                for _ in range(2000):
                    await call.receive()
                nursery.cancel_scope.cancel()
    assert turns >= 2000 // 64 - 1
