"""Stubs that grpcio's generator has made, on channels of ours."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest

import trio_grpc
from tests.echo_service import Echo
from trio_grpc import InterceptedCall, Proceed, RpcError, StatusCode
from trio_grpc.testing import open_channel_pair

Clock = trio.testing.MockClock


async def test_all_kinds_of_calls(autojump_clock: Clock, grpcio_echo: ModuleType) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        stub = grpcio_echo.EchoStub(channel)
        assert await stub.Unary(EchoRequest(text="x"), timeout=5) == EchoReply(text="x")
        async with stub.ServerStream(EchoRequest(count=3)) as call:
            assert [reply.count async for reply in call] == [0, 1, 2]
        parts = [EchoRequest(payload=b"a"), EchoRequest(payload=b"b")]
        assert await stub.ClientStream(parts) == EchoReply(payload=b"ab", count=2)
        async with stub.Bidi() as call:
            await call.send(EchoRequest(text="ping"))
            assert (await call.receive()).text == "ping"


def test_the_attributes_are_what_those_of_our_stubs_are(grpcio_echo: ModuleType) -> None:
    stub = grpcio_echo.EchoStub(trio_grpc.open_channel("localhost:1"))
    assert isinstance(stub.Unary, trio_grpc.UnaryUnaryMethod)
    assert isinstance(stub.ServerStream, trio_grpc.UnaryStreamMethod)
    assert isinstance(stub.ClientStream, trio_grpc.StreamUnaryMethod)
    assert isinstance(stub.Bidi, trio_grpc.StreamStreamMethod)
    assert stub.Unary.method.path == "/echo.Echo/Unary"
    assert stub.Unary.method.full_name == "echo.Echo.Unary"


async def test_interceptors_see_the_calls(autojump_clock: Clock, grpcio_echo: ModuleType) -> None:
    seen: list[Any] = []

    async def note(call: InterceptedCall, proceed: Proceed) -> None:
        await proceed()
        seen.append((call.method.name, call.request, call.reply))

    async with open_channel_pair(Echo(), interceptors=[note]) as (channel, _):
        await grpcio_echo.EchoStub(channel).Unary(EchoRequest(text="x"))
    assert seen == [("Unary", EchoRequest(text="x"), EchoReply(text="x"))]


async def test_a_response_that_cannot_be_read(autojump_clock: Clock) -> None:
    def fail(data: bytes) -> Any:
        raise ValueError(f"{len(data)} bytes of nonsense")

    async with open_channel_pair(Echo()) as (channel, _):
        call = channel.unary_unary("/echo.Echo/Unary", EchoRequest.SerializeToString, fail)
        with pytest.raises(RpcError, match="3 bytes of nonsense") as info:
            await call(EchoRequest(text="x"))
        assert info.value.code is StatusCode.INTERNAL


async def test_without_functions_messages_are_bytes(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        call = channel.unary_unary("/echo.Echo/Unary")
        request = EchoRequest(text="x").SerializeToString()
        assert EchoReply.FromString(await call(request)) == EchoReply(text="x")
        assert EchoReply.FromString(await call(bytearray(request))) == EchoReply(text="x")
        with pytest.raises(TypeError, match="must be bytes, bytearray or memoryview, not str"):
            await call("text")


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("echo.Echo/Unary", "method path must look like '/package.Service/Method', got 'echo.Echo/Unary'"),
        ("/Unary", "must look like"),
        ("//Unary", "method service must be printable ASCII"),
        ("/echo.Echo/", "method name must be printable ASCII"),
        ("", "must look like"),
    ],
)
def test_paths_that_are_none(path: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        trio_grpc.open_channel("localhost:1").unary_unary(path)


async def test_options_that_are_those_of_grpcio_are_named(autojump_clock: Clock, grpcio_echo: ModuleType) -> None:
    import grpc

    async with open_channel_pair(Echo()) as (channel, _):
        stub = grpcio_echo.EchoStub(channel)
        with pytest.raises(TypeError, match=r"must be a trio_grpc\.Compression or str, not grpc\.Compression$"):
            await stub.Unary(EchoRequest(), compression=grpc.Compression.Gzip)
        assert await stub.Unary(EchoRequest(), compression="gzip")


def test_wrong_functions() -> None:
    channel = trio_grpc.open_channel("localhost:1")
    with pytest.raises(TypeError, match="encode must be a function or None, not int"):
        channel.stream_stream("/a.B/C", 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="method path must be str, not bytes"):
        channel.unary_stream(b"/a.B/C")  # type: ignore[arg-type]
