"""Servicers that are asked for methods by their paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoRequest
from echo_trio_grpc import EchoStub

from tests.behaviour.scripted import expect_status
from tests.echo_service import Echo
from trio_grpc import (
    BytesCodec,
    Cardinality,
    GenericServicer,
    IncomingCall,
    Method,
    Proceed,
    RpcError,
    ServicerContext,
    StatusCode,
    serve,
)
from trio_grpc.testing import MemoryListener, ScriptedPeer, open_channel_pair

Clock = trio.testing.MockClock


class Finding(GenericServicer):
    """Asks a function, and has a handler that echoes bytes.

    Attributes:
        seen: what it was asked for.
    """

    def __init__(self, find: Callable[[IncomingCall], bool] = lambda _: True, answer: bytes = b"") -> None:
        self._find = find
        self._answer = answer
        self.seen: list[IncomingCall] = []

    def find(self, call: IncomingCall, /) -> Any:
        self.seen.append(call)
        if not self._find(call):
            return None
        return Method[Any, Any].at(call.path, Cardinality.UNARY_UNARY, codec=BytesCodec()), self.answer

    async def answer(self, request: bytes, context: ServicerContext[bytes]) -> bytes:
        return self._answer + request


async def test_it_is_told_what_is_known_of_the_call(autojump_clock: Clock) -> None:
    servicer = Finding()
    async with open_channel_pair(servicer) as (channel, _):
        assert await channel.unary_unary("/a.B/C")(b"x", metadata={"key": "value"}) == b"x"
    (call,) = servicer.seen
    assert (call.path, call.metadata["key"]) == ("/a.B/C", "value")
    assert call.authority
    assert call.peer


async def test_those_that_list_their_methods_go_first(autojump_clock: Clock) -> None:
    servicer = Finding()
    async with open_channel_pair(servicer, Echo()) as (channel, _):
        assert (await EchoStub(channel).Unary(EchoRequest(text="x"))).text == "x"
        assert servicer.seen == []
        await channel.unary_unary("/echo.Echo/Other")(b"")
    assert [call.path for call in servicer.seen] == ["/echo.Echo/Other"]


async def test_they_are_asked_in_their_order(autojump_clock: Clock) -> None:
    first = Finding(lambda call: call.path == "/a.B/First", b"first ")
    second = Finding(answer=b"second ")
    async with open_channel_pair(first, second) as (channel, _):
        assert await channel.unary_unary("/a.B/First")(b"x") == b"first x"
        assert await channel.unary_unary("/a.B/Second")(b"x") == b"second x"
    assert len(first.seen) == 2
    assert len(second.seen) == 1


async def test_where_none_has_the_method(autojump_clock: Clock) -> None:
    async with open_channel_pair(Finding(lambda _: False)) as (channel, _):
        for _ in range(2):
            with pytest.raises(RpcError, match=r"method /a.B/C is not implemented here") as info:
                await channel.unary_unary("/a.B/C")(b"")
            assert info.value.code is StatusCode.UNIMPLEMENTED
        with pytest.raises(RpcError, match="is not implemented here"):
            async with channel.stream_stream("/a.B/C")() as call:
                await call.receive()


async def test_what_the_search_raises_is_the_status(autojump_clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    def find(call: IncomingCall) -> bool:
        if call.path == "/a.B/Forbidden":
            raise RpcError(StatusCode.PERMISSION_DENIED, "not you")
        if call.path == "/a.B/Broken":
            raise KeyError("secret")
        return True

    async with open_channel_pair(Finding(find)) as (channel, _):
        with pytest.raises(RpcError, match="not you") as info:
            await channel.unary_unary("/a.B/Forbidden")(b"")
        assert info.value.code is StatusCode.PERMISSION_DENIED
        with pytest.raises(RpcError, match="exception in the handler") as info:
            await channel.unary_unary("/a.B/Broken")(b"")
        assert info.value.code is StatusCode.UNKNOWN
        assert "KeyError: 'secret'" in caplog.text
        assert "/a.B/Broken" in caplog.text
        caplog.clear()
        assert await channel.unary_unary("/a.B/Fine")(b"x") == b"x"


async def test_what_the_search_raises_comes_whole(autojump_clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    detail = EchoRequest(text="more")

    def find(call: IncomingCall) -> bool:
        details: list[Any] = [detail] if call.path == "/a.B/Fine" else ["no message"]
        raise RpcError(StatusCode.NOT_FOUND, "gone", details=details, trailing_metadata=[("key", "value")])

    async with open_channel_pair(Finding(find)) as (channel, server):
        async with channel.stream_stream("/a.B/Fine")() as call:
            # The client goes on sending: nothing of it may stay behind.
            with pytest.raises(RpcError, match="gone") as info:
                await call.receive()
        assert info.value.code is StatusCode.NOT_FOUND
        assert info.value.details == (detail,)
        assert list(info.value.trailing_metadata) == [("key", "value")]
        with pytest.raises(RpcError, match="exception in the handler") as info:
            await channel.unary_unary("/a.B/Wrong")(b"x" * 200_000)
        assert info.value.code is StatusCode.UNKNOWN
        assert "cannot be encoded" in caplog.text
        caplog.clear()
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics().streams == server.statistics().handlers == 0


async def test_metadata_that_are_malformed(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    servicer = Finding()
    listener = MemoryListener()
    await nursery.start(serve, [servicer], listener)
    async with ScriptedPeer.client(await listener.connect()) as peer:
        await peer.handshake()
        await peer.send_request(1, "/a.B/C", [("key-bin", "!")])
        await peer.send_message(1, b"", end_stream=True)
        assert "malformed request" in await expect_status(peer, 1, StatusCode.INTERNAL)
    assert servicer.seen == []
    nursery.cancel_scope.cancel()


async def test_interceptors_go_around(autojump_clock: Clock) -> None:
    seen: list[Any] = []

    async def note(context: ServicerContext[Any], proceed: Proceed) -> None:
        await proceed()
        seen.append((context.method.path, context.status))

    async with open_channel_pair(Finding(), server_interceptors=[note], server_compression="gzip") as (channel, _):
        call = channel.unary_unary("/a.B/C").open(b"x" * 1000)
        async with call:
            assert await call.receive() == b"x" * 1000
            assert call.response_compressed
    assert seen == [("/a.B/C", StatusCode.OK)]


async def test_a_deadline_ends_its_handler(autojump_clock: Clock) -> None:
    ended: list[float] = []

    class Sleeping(Finding):
        async def answer(self, request: bytes, context: ServicerContext[bytes]) -> bytes:
            try:
                await trio.sleep_forever()
            finally:
                ended.append(trio.current_time())
            raise AssertionError

    async with open_channel_pair(Sleeping()) as (channel, _):
        started = trio.current_time()
        with pytest.raises(RpcError) as info:
            await channel.unary_unary("/a.B/C")(b"", timeout=3)
        assert info.value.code is StatusCode.DEADLINE_EXCEEDED
        await trio.testing.wait_all_tasks_blocked()
    assert ended == [pytest.approx(started + 3, abs=0.1)]


async def test_it_is_told_of_draining(autojump_clock: Clock) -> None:
    told: list[bool] = []

    class Draining(Finding):
        def __trio_grpc_draining__(self) -> None:
            told.append(True)

    listener = MemoryListener()
    async with trio.open_nursery() as nursery:
        server = await nursery.start(serve, [Draining()], listener)
        await server.drain()
    assert told == [True]


def test_it_must_say_what_it_finds() -> None:
    class Nothing(GenericServicer):
        pass

    with pytest.raises(TypeError, match="find"):
        Nothing()  # type: ignore[abstract]
