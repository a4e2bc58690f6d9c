"""Finding handlers, and one RPC from the server's side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer, EchoStub

import trio_grpc
from tests.behaviour.scripted import CLIENT_STREAM, UNARY, ScriptedServer, expect_status, start_server
from tests.support.echo import Context, Echo, Requests
from trio_grpc import Compression, Limits, RpcError, Servicer, StatusCode
from trio_grpc._codec import ProtobufCodec
from trio_grpc._servicer import find_handlers, handler_maker
from trio_grpc.testing import HeadersFrame, open_channel_pair

Clock = trio.testing.MockClock
PATHS = {"/echo.Echo/Unary", "/echo.Echo/ServerStream", "/echo.Echo/ClientStream", "/echo.Echo/Bidi"}


def find(*servicers: Any) -> dict[str, Any]:
    return dict(find_handlers(servicers, handler_maker(ProtobufCodec(), Limits())))


# -- finding them


def test_handlers_are_found_by_path() -> None:
    assert set(find(Echo())) == PATHS
    assert find() == {}
    assert find(Servicer()) == {}


@pytest.mark.parametrize("thing", [EchoServicer, 5, None, "Echo", EchoStub], ids=repr)
def test_only_instances_of_servicers_serve(thing: Any) -> None:
    with pytest.raises(TypeError, match="servicer"):
        find(thing)


def test_a_method_has_one_implementation() -> None:
    with pytest.raises(ValueError, match="Echo/Unary"):
        find(Echo(), Echo())


def test_a_method_is_callable() -> None:
    class Broken(EchoServicer):
        Bidi: Any = 5

    with pytest.raises(TypeError, match=r"Broken\.Bidi"):
        find(Broken())


def test_a_servicer_may_be_any_object_with_its_methods() -> None:
    """The base class is a convenience: what counts is the table of methods."""

    class Plain:
        __trio_grpc_methods__: ClassVar = {"Anything": EchoServicer.__trio_grpc_methods__["Unary"]}

        async def Anything(self, request: EchoRequest, context: Context) -> EchoReply:
            return EchoReply()

    assert set(find(Plain())) == {"/echo.Echo/Unary"}


async def test_methods_may_be_instance_attributes_and_wrapped_functions(autojump_clock: Clock) -> None:
    servicer = EchoServicer()

    async def unary(request: EchoRequest, context: Context) -> EchoReply:
        return EchoReply(text="from an attribute")

    servicer.Unary = unary  # type: ignore[assignment, method-assign]
    async with open_channel_pair(servicer) as (channel, _):
        assert (await EchoStub(channel).Unary(EchoRequest())).text == "from an attribute"


async def test_methods_that_are_not_overridden_are_unimplemented(autojump_clock: Clock) -> None:
    async with open_channel_pair(EchoServicer()) as (channel, _):
        stub = EchoStub(channel)
        for method in ("Unary", "ClientStream"):
            argument: Any = EchoRequest() if method == "Unary" else []
            with pytest.raises(RpcError, match=f"echo.Echo/{method} is not implemented") as caught:
                await getattr(stub, method)(argument)
            assert caught.value.code is StatusCode.UNIMPLEMENTED
        for opened in (stub.ServerStream(EchoRequest()), stub.Bidi()):
            async with opened as call:
                with pytest.raises(RpcError) as caught:
                    await call.receive()
                assert caught.value.code is StatusCode.UNIMPLEMENTED


# -- requests


@pytest.mark.parametrize("count", [0, 2])
async def test_a_method_with_one_request_has_one_request(
    count: int, autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        async with peer.one_segment():
            await peer.send_request(1, UNARY, end_stream=not count)
            for number in range(count):
                await peer.send_message(1, b"", end_stream=number == count - 1)
        text = await expect_status(peer, 1, StatusCode.INTERNAL)
        assert UNARY in text or "message" in text
        await endpoint.assert_serves(peer, 3)
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("path", [UNARY, CLIENT_STREAM])
async def test_a_request_that_cannot_be_parsed_is_the_clients_fault(
    path: str, autojump_clock: Clock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, path)
        await peer.send_message(1, b"\xff\xff\xff", end_stream=True)
        assert "EchoRequest" in await expect_status(peer, 1, StatusCode.INTERNAL)
        await endpoint.assert_serves(peer, 3)
    assert not caplog.records
    nursery.cancel_scope.cancel()


async def test_a_handler_may_answer_a_request_that_cannot_be_parsed(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    async def handler(requests: Requests, context: Context) -> EchoReply:
        bad = 0
        while True:
            try:
                await requests.receive()
            except RpcError:
                bad += 1
            except trio.EndOfChannel:
                return EchoReply(count=bad)

    listener = trio_grpc.testing.MemoryListener()
    await nursery.start(trio_grpc.serve, [Echo(client_stream=handler)], listener)
    async with trio_grpc.testing.ScriptedPeer.client(await listener.connect()) as peer:
        await peer.handshake()
        await peer.send_request(1, CLIENT_STREAM)
        for data in (b"", b"\xff\xff\xff", b"", b"\xff\xff\xff"):
            await peer.send_message(1, data)
        await peer.send_data(1, b"", end_stream=True)
        await peer.expect(HeadersFrame, stream_id=1)
        assert EchoReply.FromString(await peer.receive_message(1)).count == 2
        await expect_status(peer, 1, StatusCode.OK)
    nursery.cancel_scope.cancel()


# -- replies


async def test_the_send_limit_holds_for_handlers_too(autojump_clock: Clock) -> None:
    async def stream(requests: Requests, context: Context) -> None:
        with pytest.raises(RpcError, match="max_send_message_length"):
            await context.send(EchoReply(payload=bytes(1000)))
        await context.send(EchoReply(text="small"))

    limits = Limits(max_send_message_length=100, adaptive_window=False)
    client_limits = Limits(adaptive_window=False)
    async with open_channel_pair(Echo(bidi=stream), limits=client_limits, server_limits=limits) as (channel, _):
        stub = EchoStub(channel)
        with pytest.raises(RpcError, match="max_send_message_length") as caught:
            await stub.Unary(EchoRequest(payload=bytes(1000)))
        assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
        async with stub.Bidi() as call:
            assert (await call.receive()).text == "small"


@pytest.mark.parametrize("compression", [Compression.GZIP, "deflate", Compression.NONE])
async def test_compressed_replies(compression: Any, autojump_clock: Clock) -> None:
    payload = b"text " * 1000

    async def unary(request: EchoRequest, context: Context) -> EchoReply:
        context.set_compression(compression)
        return EchoReply(payload=payload)

    async with open_channel_pair(Echo(unary=unary)) as (channel, _):
        stub = EchoStub(channel)
        async with stub.Unary.open(EchoRequest()) as call:
            assert (await call.receive()).payload == payload
            assert call.response_compressed is (compression is not Compression.NONE)


async def test_compression_is_chosen_before_the_first_reply(autojump_clock: Clock) -> None:
    async def handler(requests: Requests, context: Context) -> None:
        with pytest.raises(ValueError, match="nope"):
            context.set_compression("nope")
        await context.send(EchoReply())
        with pytest.raises(RuntimeError, match="before the first response"):
            context.set_compression(Compression.GZIP)

    async with open_channel_pair(Echo(bidi=handler)) as (channel, _), EchoStub(channel).Bidi() as call:
        await call.receive()
        with pytest.raises(trio.EndOfChannel):
            await call.receive()


async def test_a_client_that_takes_no_compression_gets_none(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    async def unary(request: EchoRequest, context: Context) -> EchoReply:
        context.set_compression(Compression.GZIP)
        return EchoReply(text="plain")

    listener = trio_grpc.testing.MemoryListener()
    await nursery.start(trio_grpc.serve, [Echo(unary=unary)], listener)
    async with trio_grpc.testing.ScriptedPeer.client(await listener.connect()) as peer:
        await peer.handshake()
        for stream_id, fields in ((1, []), (3, [("grpc-accept-encoding", "identity,br")])):
            await peer.send_request(stream_id, UNARY, fields)
            await peer.send_message(stream_id, b"", end_stream=True)
            headers = await peer.expect(HeadersFrame, stream_id=stream_id)
            assert headers.get("grpc-encoding") in {None, "identity"}
            assert EchoReply.FromString(await peer.receive_message(stream_id)).text == "plain"
            await expect_status(peer, stream_id, StatusCode.OK)
    nursery.cancel_scope.cancel()


# -- codecs


class TextCodec:
    """Messages are strings."""

    name = "text"

    def __init__(self) -> None:
        self.types: set[type] = set()

    def encoder(self, message_type: type[Any], /) -> Callable[[Any], bytes]:
        return lambda message: str(message).encode()

    def decoder(self, message_type: type[Any], /) -> Callable[[bytes], Any]:
        def decode(data: bytes) -> str:
            self.types.add(type(data))
            return data.decode()

        return decode


class Shout(Servicer):
    method: trio_grpc.Method[str, str] = trio_grpc.Method(
        service="text.Shout",
        name="Shout",
        cardinality=trio_grpc.Cardinality.UNARY_UNARY,
        request_type=str,
        response_type=str,
    )
    __trio_grpc_methods__: ClassVar = {"Shout": method}

    async def Shout(self, request: str, context: trio_grpc.ServicerContext[str]) -> str:
        return request.upper()


async def test_other_codecs_get_bytes_and_give_bytes(autojump_clock: Clock) -> None:
    codec = TextCodec()
    async with open_channel_pair(Shout(), codec=codec) as (channel, _):
        shout = trio_grpc.UnaryUnaryMethod(channel, Shout.method)
        for text in ("hello", "", "long " * 30_000):
            assert await shout(text) == text.upper()
            assert await shout(text, compression="gzip") == text.upper()
    assert codec.types == {bytes}


async def test_the_content_type_names_the_codec(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    async with ScriptedServer(codec=TextCodec()) as scripted:
        shout = trio_grpc.UnaryUnaryMethod(scripted.channel, Shout.method)
        nursery.start_soon(shout, "a")
        peer = await scripted.accept()
        headers = await peer.expect(HeadersFrame, stream_id=1)
        assert headers["content-type"] == "application/grpc+text"
        nursery.cancel_scope.cancel()
