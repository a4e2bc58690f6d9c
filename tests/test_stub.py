"""What the attributes of a stub are."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.behaviour.scripted import ScriptedServer, expect_call, send_reply
from tests.support.echo import Echo
from trio_grpc import (
    Channel,
    RpcError,
    StatusCode,
    StreamStreamCall,
    StreamStreamMethod,
    StreamUnaryCall,
    StreamUnaryMethod,
    UnaryStreamCall,
    UnaryStreamMethod,
    UnaryUnaryCall,
    UnaryUnaryMethod,
)
from trio_grpc.testing import open_channel_pair

Clock = trio.testing.MockClock


@pytest.fixture
async def channel() -> AsyncIterator[Channel]:
    async with open_channel_pair(Echo()) as (channel, _):
        yield channel


@pytest.fixture
def stub(channel: Channel) -> EchoStub:
    return EchoStub(channel)


METHODS = {
    "Unary": UnaryUnaryMethod,
    "ServerStream": UnaryStreamMethod,
    "ClientStream": StreamUnaryMethod,
    "Bidi": StreamStreamMethod,
}


async def test_each_method_has_the_object_of_its_kind(stub: EchoStub, channel: Channel, autojump_clock: Clock) -> None:
    for name, kind in METHODS.items():
        method = getattr(stub, name)
        assert type(method) is kind
        assert method.method.path == f"/echo.Echo/{name}"
        assert repr(method) == f"<{kind.__name__} /echo.Echo/{name} on {channel!r}>"


async def test_open_gives_the_call_object_of_each_kind(stub: EchoStub, autojump_clock: Clock) -> None:
    assert type(stub.Unary.open(EchoRequest())) is UnaryUnaryCall
    assert type(stub.ServerStream.open(EchoRequest())) is UnaryStreamCall
    assert type(stub.ServerStream(EchoRequest())) is UnaryStreamCall
    assert type(stub.ClientStream.open()) is StreamUnaryCall
    assert type(stub.Bidi.open()) is StreamStreamCall
    assert type(stub.Bidi()) is StreamStreamCall


def test_every_method_takes_the_same_options() -> None:
    options = {"timeout", "metadata", "wait_for_ready", "compression", "credentials"}
    for kind in METHODS.values():
        for function in (kind.__call__, kind.open):
            parameters = inspect.signature(function).parameters.values()
            named = {one.name: one for one in parameters if one.kind is one.KEYWORD_ONLY}
            assert set(named) == options
            assert all(one.default is None for one in named.values())


async def test_a_unary_call_returns_the_reply(stub: EchoStub, autojump_clock: Clock) -> None:
    assert await stub.Unary(EchoRequest(text="a", count=5)) == EchoReply(text="a", count=5)


@pytest.mark.parametrize("kind", ["list", "tuple", "generator", "iterator", "async generator", "memory channel"])
async def test_requests_come_from_any_iterable(kind: str, stub: EchoStub, autojump_clock: Clock) -> None:
    requests = [EchoRequest(text=text) for text in "abc"]

    def generator() -> Iterator[EchoRequest]:
        yield from requests

    async def async_generator() -> AsyncIterator[EchoRequest]:
        for request in requests:
            await trio.sleep(1)
            yield request

    send_requests, receive_requests = trio.open_memory_channel[EchoRequest](10)
    with send_requests, receive_requests:
        for request in requests:
            send_requests.send_nowait(request)
        send_requests.close()
        sources: dict[str, Any] = {
            "list": requests,
            "tuple": tuple(requests),
            "generator": generator(),
            "iterator": iter(requests),
            "async generator": async_generator(),
            "memory channel": receive_requests,
        }
        reply = await stub.ClientStream(sources[kind])
    assert (reply.text, reply.count) == ("abc", 3)


@pytest.mark.parametrize("requests", [EchoRequest(), None, 5], ids=["a message", "None", "a number"])
async def test_requests_must_be_iterable_and_nothing_is_sent(requests: Any) -> None:
    text = f"requests must be an iterable or async iterable of messages, not {type(requests).__name__}"
    async with trio_grpc.open_channel("127.0.0.1:1") as channel:
        with pytest.raises(TypeError, match=text):
            await EchoStub(channel).ClientStream(requests)
        assert channel.state is trio_grpc.ConnectivityState.IDLE


async def test_an_iterator_that_is_no_generator_stays_the_callers(stub: EchoStub, autojump_clock: Clock) -> None:
    send_requests, receive_requests = trio.open_memory_channel[EchoRequest](10)
    with send_requests, receive_requests:
        send_requests.send_nowait(EchoRequest())
        with pytest.raises(RpcError):
            await stub.ClientStream(receive_requests, timeout=1)
        send_requests.send_nowait(EchoRequest(text="next"))
        assert receive_requests.receive_nowait().text == "next"


def ways_to_call(stub: EchoStub, **options: Any) -> list[Callable[[], Awaitable[object]]]:
    async def make(call: Callable[..., object], *arguments: object) -> None:
        call(*arguments, **options)
        raise AssertionError("the call was made")

    return [
        lambda: stub.Unary(EchoRequest(), **options),
        lambda: make(stub.Unary.open, EchoRequest()),
        lambda: make(stub.ServerStream, EchoRequest()),
        lambda: stub.ClientStream([], **options),
        lambda: make(stub.ClientStream.open),
        lambda: make(stub.Bidi),
    ]


async def test_arguments_are_checked_before_the_call_begins(
    stub: EchoStub, channel: Channel, autojump_clock: Clock
) -> None:
    bad: list[Callable[[], Awaitable[object]]] = [
        lambda: stub.Unary(EchoReply()),  # type: ignore[arg-type]
        lambda: stub.Unary(EchoRequest(), metadata={"bad key": "value"}),
        lambda: stub.Unary(EchoRequest(), timeout=float("nan")),
        lambda: stub.Unary(EchoRequest(), compression="nope"),
        lambda: stub.ClientStream([], metadata={"bad key": "value"}),
    ]
    for operation in bad:
        with pytest.raises((TypeError, ValueError)):
            await operation()
    wrong: Any
    for wrong in (True, False):
        for operation in ways_to_call(stub, timeout=wrong):
            with pytest.raises(TypeError, match="timeout must be a number of seconds, not bool"):
                await operation()
    for wrong in ("x", 1, 0.5):
        for operation in ways_to_call(stub, wait_for_ready=wrong):
            with pytest.raises(TypeError, match=f"wait_for_ready must be bool or None, not {type(wrong).__name__}"):
                await operation()
    with pytest.raises(TypeError):
        await stub.Unary(request=EchoRequest())  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        await stub.Unary(EchoRequest(), 5)  # type: ignore[misc]
    assert channel.statistics().connections == 0


async def test_the_codec_must_know_the_messages(autojump_clock: Clock) -> None:
    method: trio_grpc.Method[Any, Any] = trio_grpc.Method(
        service="s", name="m", cardinality=trio_grpc.Cardinality.UNARY_UNARY, request_type=int, response_type=EchoReply
    )
    async with open_channel_pair() as (channel, _):
        with pytest.raises(TypeError, match="int"):
            UnaryUnaryMethod(channel, method)


async def test_a_call_of_a_method_that_the_server_lacks(autojump_clock: Clock) -> None:
    async with open_channel_pair() as (channel, _):
        stub = EchoStub(channel)
        with pytest.raises(RpcError, match="Echo/Unary") as caught:
            await stub.Unary(EchoRequest())
        assert caught.value.code is StatusCode.UNIMPLEMENTED
        with pytest.raises(RpcError) as caught:
            await stub.ClientStream(EchoRequest() for _ in range(100))
        assert caught.value.code is StatusCode.UNIMPLEMENTED


async def test_a_refused_unary_call_is_tried_once_more_with_all_its_arguments(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    async with ScriptedServer() as scripted:
        replies: list[EchoReply] = []

        async def caller() -> None:
            replies.append(await scripted.stub.Unary(EchoRequest(text="a"), metadata={"x-key": "value"}, timeout=10))

        nursery.start_soon(caller)
        peer = await scripted.accept()
        assert (await expect_call(peer, 1)).text == "a"
        await trio.sleep(4)
        await peer.send_rst_stream(1, 7)
        headers = await peer.expect(trio_grpc.testing.HeadersFrame, stream_id=3)
        assert headers["x-key"] == "value"
        # The time that has passed is not given back.
        assert headers["grpc-timeout"].startswith(("6", "5999"))
        assert EchoRequest.FromString(await peer.receive_message(3)).text == "a"
        await send_reply(peer, 3, EchoReply(text="b"))
        await trio.testing.wait_all_tasks_blocked()
        assert [reply.text for reply in replies] == ["b"]
        scripted.assert_nothing_left()


async def test_calls_may_be_made_from_many_tasks_and_stubs(channel: Channel, autojump_clock: Clock) -> None:
    counts: list[int] = []

    async def call(number: int) -> None:
        counts.append((await EchoStub(channel).Unary(EchoRequest(count=number))).count)

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(call, number)
    assert sorted(counts) == list(range(50))
    assert channel.statistics().connections == 1
