"""Observers of calls: attempts, sizes, and that nothing of it reaches the call."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer, EchoStub

from tests.echo_service import Context, Echo
from tests.support.retries import TWO_RETRIES
from trio_grpc import (
    Attempt,
    AttemptKind,
    CallObserver,
    Endpoint,
    InterceptedCall,
    Limits,
    Proceed,
    RpcError,
    ServicerContext,
    StatusCode,
    open_channel,
)
from trio_grpc.testing import MemoryListener, open_channel_pair

Clock = trio.testing.MockClock


class Notes(CallObserver):
    """Writes everything down."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.attempts: list[Attempt] = []

    def attempt_started(self, attempt: Attempt, /) -> None:
        assert attempt.status is attempt.ended is attempt.connected is None
        self.attempts.append(attempt)
        self.events.append(("started", attempt.kind.value, attempt.previous))

    def attempt_connected(self, attempt: Attempt, /) -> None:
        assert attempt.connected is not None
        assert attempt.sent_messages == 0
        self.events.append("connected")

    def attempt_ended(self, attempt: Attempt, /) -> None:
        assert attempt.ended is not None
        assert attempt.status is not None
        self.events.append(("ended", attempt.status.name))

    def message_sent(self, size: int, compressed: bool, attempt: Attempt | None, /) -> None:
        self.events.append(("sent", size, compressed))

    def message_received(self, size: int, compressed_size: int | None, attempt: Attempt | None, /) -> None:
        self.events.append(("received", size, compressed_size))


class Observing:
    """An interceptor for either side; each call has notes of its own."""

    def __init__(self) -> None:
        self.notes: list[Notes] = []

    async def __call__(self, call: InterceptedCall | ServicerContext[Any], proceed: Proceed) -> None:
        notes = Notes()
        self.notes.append(notes)
        call.observe(notes)
        await proceed()

    @property
    def events(self) -> list[Any]:
        (notes,) = self.notes
        return notes.events


REQUEST = EchoRequest(text="x")
SIZE = len(REQUEST.SerializeToString())
FIRST = ("started", "original", 0)


async def unary(echo: EchoStub) -> None:
    await echo.Unary(REQUEST)


async def opened(echo: EchoStub) -> None:
    async with echo.Unary.open(REQUEST) as call:
        await call.receive()


async def server_stream(echo: EchoStub) -> None:
    async with echo.ServerStream(EchoRequest(count=2, text="x")) as call:
        async for _ in call:
            pass


async def client_stream(echo: EchoStub) -> None:
    await echo.ClientStream([REQUEST, REQUEST])


async def bidi(echo: EchoStub) -> None:
    async with echo.Bidi() as call:
        await call.send(REQUEST)
        await call.receive()
        await call.done_sending()
        with pytest.raises(trio.EndOfChannel):
            await call.receive()


STREAM_SIZE = len(EchoRequest(count=2, text="x").SerializeToString())
COUNT_SIZE = len(EchoReply(count=2).SerializeToString())


@pytest.mark.parametrize(
    ("act", "sent", "received"),
    [
        (unary, [SIZE], [SIZE]),
        (opened, [SIZE], [SIZE]),
        (server_stream, [STREAM_SIZE], [0, len(EchoReply(count=1).SerializeToString())]),
        (client_stream, [SIZE, SIZE], [COUNT_SIZE]),
        (bidi, [SIZE], [SIZE]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_both_sides_of_all_kinds(act: Any, sent: list[int], received: list[int], autojump_clock: Clock) -> None:
    client, server = Observing(), Observing()
    async with open_channel_pair(Echo(), interceptors=[client], server_interceptors=[server]) as (channel, _):
        await act(EchoStub(channel))
        await trio.testing.wait_all_tasks_blocked()
    assert client.events[:2] == [FIRST, "connected"]
    assert ("ended", "OK") in client.events
    messages = [event for event in client.events if event[0] in ("sent", "received")]
    assert sorted(messages) == sorted(
        [("sent", size, False) for size in sent] + [("received", size, None) for size in received]
    )
    (attempt,) = client.notes[0].attempts
    assert (attempt.sent_messages, attempt.sent_bytes) == (len(sent), sum(sent))
    assert (attempt.received_messages, attempt.received_bytes) == (len(received), sum(received))
    assert attempt.peer
    assert sorted(server.events) == sorted(
        [("received", size, None) for size in sent] + [("sent", size, False) for size in received]
    )


async def test_compressed_messages(autojump_clock: Clock) -> None:
    client, server = Observing(), Observing()
    request = EchoRequest(text="x" * 1000)
    size = len(request.SerializeToString())
    pair = open_channel_pair(
        Echo(), compression="gzip", server_compression="gzip", interceptors=[client], server_interceptors=[server]
    )
    async with pair as (channel, _), EchoStub(channel).Unary.open(request) as call:
        await call.receive()
        assert call.response_compressed
    (sent,) = [event for event in client.events if event[0] == "sent"]
    (received,) = [event for event in client.events if event[0] == "received"]
    assert sent[2] is True
    assert 0 < sent[1] < size
    assert received[1] == size
    assert 0 < received[2] < size
    assert server.events == [("received", size, sent[1]), ("sent", received[2], True)]
    assert client.notes[0].attempts[0].received_bytes == received[2]


HEDGES = {
    "methodConfig": [
        {"name": [{}], "hedgingPolicy": {"maxAttempts": 2, "hedgingDelay": "1s", "nonFatalStatusCodes": []}}
    ]
}


class Flaky(Echo):
    """Fails twice, then echoes."""

    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        reply = await super().Unary(request, context)
        if self.calls < 3:
            raise RpcError(StatusCode.UNAVAILABLE, "busy")
        return reply


@pytest.mark.parametrize("act", [unary, opened])
async def test_retries_are_attempts(act: Any, autojump_clock: Clock) -> None:
    client = Observing()
    async with open_channel_pair(Flaky(), interceptors=[client], service_config=TWO_RETRIES) as (channel, _):
        await act(EchoStub(channel))
    sent = ("sent", SIZE, False)
    assert client.events == [
        FIRST, "connected", sent, ("ended", "UNAVAILABLE"),
        ("started", "retry", 1), "connected", sent, ("ended", "UNAVAILABLE"),
        ("started", "retry", 2), "connected", sent, ("ended", "OK"),
        ("received", SIZE, None),
    ]  # fmt: skip
    first, second, third = client.notes[0].attempts
    assert first.started <= first.ended < second.started - 0.7  # type: ignore[operator]
    assert (third.received_messages, second.received_messages) == (1, 0)


@pytest.mark.parametrize("act", [unary, opened])
async def test_hedges_are_attempts(act: Any, autojump_clock: Clock) -> None:
    class SlowFirst(Echo):
        async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
            reply = await super().Unary(request, context)
            if self.calls == 1:
                await trio.sleep_forever()
            return reply

    client = Observing()
    async with open_channel_pair(SlowFirst(), interceptors=[client], service_config=HEDGES) as (channel, _):
        await act(EchoStub(channel))
    original, hedge = client.notes[0].attempts
    assert (original.kind, hedge.kind) == (AttemptKind.ORIGINAL, AttemptKind.HEDGE)
    assert (original.status, hedge.status) == (StatusCode.CANCELLED, StatusCode.OK)
    assert (original.received_messages, hedge.received_messages) == (0, 1)


@pytest.mark.parametrize("act", [unary, opened])
async def test_a_hedge_that_finds_no_room_was_cancelled(act: Any, autojump_clock: Clock) -> None:
    class Slow(Echo):
        async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
            await trio.sleep(2)
            if self.calls == 0:
                self.calls += 1
                await context.abort(StatusCode.UNAVAILABLE)
            return await super().Unary(request, context)

    async def try_twice(call: InterceptedCall, proceed: Proceed) -> None:
        with pytest.raises(RpcError):
            await proceed()
        await proceed()

    client = Observing()
    # A failure before it is not the end of an attempt that went well.
    interceptors = [client, try_twice] if act is unary else [client]
    servicer = Slow()
    servicer.calls = 0 if act is unary else 1
    async with open_channel_pair(
        servicer, interceptors=interceptors, service_config=HEDGES, server_limits=Limits(max_concurrent_streams=1)
    ) as (channel, _):
        await act(EchoStub(channel))
    *_, original, hedge = client.notes[0].attempts
    assert (original.kind, hedge.kind) == (AttemptKind.ORIGINAL, AttemptKind.HEDGE)
    assert (original.status, hedge.status) == (StatusCode.OK, StatusCode.CANCELLED)
    assert hedge.connected is None


@pytest.mark.parametrize("act", [unary, opened])
async def test_transparent_retries_are_attempts(act: Any, autojump_clock: Clock, nursery: trio.Nursery) -> None:
    from trio_grpc.testing import DataFrame, ErrorCode, HeadersFrame, ScriptedPeer

    client = Observing()
    listener = MemoryListener()

    async def behave() -> None:
        async with ScriptedPeer.server(await listener.accept()) as peer:
            await peer.handshake()
            await peer.expect(HeadersFrame, stream_id=1)
            await peer.expect(DataFrame, stream_id=1)
            await peer.send_rst_stream(1, ErrorCode.REFUSED_STREAM)
            await peer.expect(HeadersFrame, stream_id=3)
            await peer.send_response(3)
            await peer.send_message(3, EchoReply(text="x").SerializeToString())
            await peer.send_trailers(3, 0)

    nursery.start_soon(behave)
    async with open_channel(listener.connect, interceptors=[client]) as channel:
        await act(EchoStub(channel))
    kinds = [(attempt.kind.value, attempt.previous) for attempt in client.notes[0].attempts]
    assert kinds == [("original", 0), ("transparent_retry", 0)]


async def test_an_attempt_without_a_connection_ends_too(autojump_clock: Clock) -> None:
    async def refuse() -> trio.abc.Stream:
        raise OSError("nobody is there")

    client = Observing()
    async with open_channel(refuse, interceptors=[client]) as channel:
        for act in unary, opened, bidi:
            with pytest.raises(RpcError, match="nobody is there"):
                await act(EchoStub(channel))
            assert client.notes[-1].events == [FIRST, ("ended", "UNAVAILABLE")]


@pytest.mark.parametrize("act", [unary, opened])
async def test_an_attempt_that_waits_for_a_connection_until_its_time_is_over(act: Any, autojump_clock: Clock) -> None:
    async def never() -> trio.abc.Stream:
        await trio.sleep_forever()
        raise AssertionError

    client = Observing()
    async with open_channel(never, interceptors=[client]) as channel:
        echo = EchoStub(channel)
        call = partial(echo.Unary, REQUEST, timeout=1)
        if act is opened:
            call = echo.Unary.open(REQUEST, timeout=1).__aenter__
        with pytest.raises(RpcError):
            await call()
        assert client.notes[-1].events == [FIRST, ("ended", "DEADLINE_EXCEEDED")]
        with trio.move_on_after(1):
            await act(echo)
        assert client.notes[-1].events == [FIRST, ("ended", "CANCELLED")]


async def test_a_block_that_is_left_early_is_cancelled(autojump_clock: Clock) -> None:
    client = Observing()
    async with open_channel_pair(Echo(), interceptors=[client]) as (channel, _):
        async with EchoStub(channel).ServerStream(EchoRequest(count=1000)) as call:
            await call.receive()
        assert client.events[-1] == ("ended", "CANCELLED")


async def test_the_first_attempt_of_a_channel_was_delayed(autojump_clock: Clock) -> None:
    client = Observing()
    async with open_channel_pair(Echo(), interceptors=[client]) as (channel, _):
        for act in unary, unary, opened:
            await act(EchoStub(channel))
    assert [notes.attempts[0].delayed for notes in client.notes] == [True, False, False]


@pytest.mark.parametrize("side", ["client", "server"])
async def test_what_an_observer_raises_is_logged_and_goes_no_further(
    side: str, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(CallObserver):
        def attempt_started(self, attempt: Attempt, /) -> None:
            raise KeyError("started")

        def attempt_ended(self, attempt: Attempt, /) -> None:
            raise KeyError("ended")

        def message_sent(self, size: int, compressed: bool, attempt: Attempt | None, /) -> None:
            raise KeyError("sent")

        def message_received(self, size: int, compressed_size: int | None, attempt: Attempt | None, /) -> None:
            raise KeyError("received")

    async def observe(call: Any, proceed: Proceed) -> None:
        call.observe(Broken())
        await proceed()

    options: Any = {"interceptors" if side == "client" else "server_interceptors": [observe]}
    async with open_channel_pair(Echo(), **options) as (channel, _):
        for act in unary, bidi:
            await act(EchoStub(channel))
    expected = {"sent", "received"} | ({"attempt_started", "attempt_ended"} if side == "client" else set())
    for name in expected:
        assert f"exception in Broken.{name if 'attempt' in name else f'message_{name}'}" in caplog.text


async def test_several_observers_and_maps(autojump_clock: Clock) -> None:
    """Sizes are those on the wire, after all maps."""
    first, second = Observing(), Observing()

    async def shout(call: Any, proceed: Proceed) -> None:
        call.map_requests(lambda request: EchoRequest(text=request.text * 10))
        await proceed()

    async with open_channel_pair(Echo(), interceptors=[first, shout, second]) as (channel, _):
        await EchoStub(channel).Unary(REQUEST)
    assert first.events == second.events
    assert first.events[2] == ("sent", 12, False)


async def test_observers_when_the_service_config_comes_late(autojump_clock: Clock) -> None:
    """A block that waits for its resolver is observed all the same."""
    from trio_grpc.testing import ManualResolver

    resolver = ManualResolver()
    client = Observing()
    listener = MemoryListener()
    from trio_grpc import serve

    async with trio.open_nursery() as nursery:
        await nursery.start(serve, [Flaky()], listener)
        async with (
            open_channel(
                "manual:///x", resolvers={"manual": resolver}, interceptors=[client], idle_timeout=None
            ) as channel,
            trio.open_nursery() as calls,
        ):
            calls.start_soon(opened, EchoStub(channel))
            await trio.testing.wait_all_tasks_blocked()
            assert client.events == []
            resolver.update(Endpoint("memory", connect=listener.connect), service_config=TWO_RETRIES)
        nursery.cancel_scope.cancel()
    assert [attempt.kind.value for attempt in client.notes[0].attempts] == ["original", "retry", "retry"]
    assert client.events[-1] == ("received", SIZE, None)


def test_only_observers_observe() -> None:
    context: Any = object.__new__(ServicerContext)
    context._handled = False
    with pytest.raises(TypeError, match="observer must be a CallObserver, not int"):
        context.observe(5)


async def test_a_handler_cannot_observe(autojump_clock: Clock) -> None:
    class Late(EchoServicer):
        async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
            with pytest.raises(RuntimeError, match="by interceptors only"):
                context.observe(Notes())
            return EchoReply()

    async with open_channel_pair(Late()) as (channel, _):
        await EchoStub(channel).Unary(REQUEST)


async def test_a_call_knows_its_target_and_its_state_is_shared(autojump_clock: Clock) -> None:
    seen: list[Any] = []

    async def outer(call: InterceptedCall, proceed: Proceed) -> None:
        await proceed()
        seen.extend([call.target, call.state.from_inside])

    async def inner(call: InterceptedCall, proceed: Proceed) -> None:
        call.state.from_inside = "inner"
        await proceed()

    async with open_channel_pair(Echo(), interceptors=[outer, inner]) as (channel, _):
        await EchoStub(channel).Unary(REQUEST)
        assert seen == [channel.target, "inner"]
