"""Servicers written for grpcio on grpcio's own server and on ours: a grpcio client sees no difference."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
import trio
from echo_pb2 import EchoReply, EchoRequest

import trio_grpc
from tests.interop.wire import GrpcioStub
from trio_grpc import BytesCodec, Cardinality, JsonCodec, Method, Server, UnaryUnaryMethod
from trio_grpc.grpcio import GrpcioServicers

pytestmark = pytest.mark.watchdog(40)

PATIENCE = 20


def handlers(servicer: Any) -> dict[str, Any]:
    """What generated code makes of a servicer."""
    codec = {
        "request_deserializer": EchoRequest.FromString,
        "response_serializer": EchoReply.SerializeToString,
    }
    return {
        "Unary": grpc.unary_unary_rpc_method_handler(servicer.Unary, **codec),
        "ServerStream": grpc.unary_stream_rpc_method_handler(servicer.ServerStream, **codec),
        "ClientStream": grpc.stream_unary_rpc_method_handler(servicer.ClientStream, **codec),
        "Bidi": grpc.stream_stream_rpc_method_handler(servicer.Bidi, **codec),
    }


def add(servicer: Any, server: Any) -> None:
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo.Echo", handlers(servicer)),))
    server.add_registered_method_handlers("echo.Echo", handlers(servicer))


def facts(context: Any) -> EchoReply:
    """What a context says of its RPC."""
    metadata = sorted((key, value) for key, value in context.invocation_metadata() if key.startswith("x-"))
    remaining = context.time_remaining()
    peer = context.peer().rpartition(":")[0]
    text = f"{metadata} {remaining is not None and 0 < remaining <= PATIENCE} {peer} {context.peer_identity_key()}"
    return EchoReply(text=text)


class AioEcho:
    async def _act(self, request: EchoRequest, context: Any) -> None:
        await context.send_initial_metadata((("first", "1"), ("first-bin", b"\x00\xff")))
        context.set_trailing_metadata((("last", "2"),))
        if request.text == "abort":
            await context.abort(grpc.StatusCode.NOT_FOUND, "näh", (("last", "3"),))
        elif request.text == "abort, trailing kept":
            await context.abort(grpc.StatusCode.NOT_FOUND, "gone")
        elif request.text == "code":
            context.set_code(grpc.StatusCode.DATA_LOSS)
            context.set_details("lost")
        elif request.text == "caught":
            try:
                await context.abort(grpc.StatusCode.ABORTED, "stands")
            except grpc.aio.AbortError:
                pass

    async def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
        await self._act(request, context)
        return facts(context)

    async def ServerStream(self, request: EchoRequest, context: Any) -> AsyncIterator[EchoReply]:
        await self._act(request, context)
        for number in range(request.count):
            yield EchoReply(count=number)

    async def ClientStream(self, requests: Any, context: Any) -> EchoReply:
        count = 0
        while await context.read() is not grpc.aio.EOF:
            count += 1
        return EchoReply(count=count)

    async def Bidi(self, requests: Any, context: Any) -> None:
        async for request in requests:
            await context.write(EchoReply(text=request.text))


class PlainEcho:
    def _act(self, request: EchoRequest, context: Any) -> None:
        context.send_initial_metadata((("first", "1"), ("first-bin", b"\x00\xff")))
        context.set_trailing_metadata((("last", "2"),))
        if request.text == "abort, trailing kept":
            context.abort(grpc.StatusCode.NOT_FOUND, "gone")
        elif request.text in {"code", "code, then an exception"}:
            context.set_code(grpc.StatusCode.DATA_LOSS)
            context.set_details("lost")
            if "exception" in request.text:
                raise KeyError(request.text)

    def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
        self._act(request, context)
        return facts(context)

    def ServerStream(self, request: EchoRequest, context: Any) -> Iterator[EchoReply]:
        self._act(request, context)
        for number in range(request.count):
            yield EchoReply(count=number)

    def ClientStream(self, requests: Iterator[EchoRequest], context: Any) -> EchoReply:
        return EchoReply(count=sum(1 for _ in requests))

    def Bidi(self, requests: Iterator[EchoRequest], context: Any) -> Iterator[EchoReply]:
        for request in requests:
            yield EchoReply(text=request.text)


@contextmanager
def aio_server() -> Iterator[str]:
    """grpcio's server on asyncio, in a thread of its own."""
    ready: futures.Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = futures.Future()

    async def main() -> None:
        server = grpc.aio.server()
        add(AioEcho(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        stop = asyncio.Event()
        ready.set_result((f"127.0.0.1:{port}", asyncio.get_running_loop(), stop))
        await stop.wait()
        await server.stop(0)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    address, loop, stop = ready.result(PATIENCE)
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE)


@contextmanager
def plain_server() -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(4))
    add(PlainEcho(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait(PATIENCE)


def pairs(metadata: Any) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in metadata or () if not key.startswith("grpc-")]


def outcome(call: Any) -> Any:
    """Everything that a client sees of a call."""
    try:
        replies = [(reply.count, reply.text) for reply in call]
    except grpc.RpcError:
        replies = ["failed"]
    return replies, pairs(call.initial_metadata()), call.code(), call.details(), pairs(call.trailing_metadata())


def ask(address: str, words: list[str]) -> list[Any]:
    """Calls of all kinds, and what became of them."""
    seen: list[Any] = []
    options = {"timeout": PATIENCE, "metadata": (("x-key", "value"), ("x-key-bin", b"\x01\xff"))}
    with grpc.insecure_channel(address) as channel:
        stub = GrpcioStub(channel)
        for word in words:
            call = stub.Unary.future(EchoRequest(text=word), **options)
            error = call.exception()
            reply = "failed" if error is not None else call.result().text
            seen.append((word, reply, pairs(call.initial_metadata()), call.code(), call.details()))
            seen.append((word, pairs(call.trailing_metadata())))
            seen.append((word, outcome(stub.ServerStream(EchoRequest(text=word, count=2), **options))))
        seen.append(stub.ClientStream(iter([EchoRequest()] * 3), **options).count)
        seen.append(outcome(stub.Bidi(iter([EchoRequest(text="a"), EchoRequest(text="b")]), **options)))
        with pytest.raises(grpc.RpcError) as info:
            stub.Missing(EchoRequest(), **options)
        seen.append(info.value.code())
    return seen


@pytest.mark.parametrize(
    ("servicer", "reference", "words"),
    [
        (AioEcho(), aio_server, ["fine", "abort", "abort, trailing kept", "code", "caught"]),
        (PlainEcho(), plain_server, ["fine", "abort, trailing kept", "code", "code, then an exception"]),
    ],
    ids=["asyncio's syntax", "threads"],
)
async def test_a_client_sees_no_difference(
    servicer: Any,
    reference: Callable[[], Any],
    words: list[str],
    nursery: trio.Nursery,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def ask_theirs() -> list[Any]:
        with reference() as address:
            return ask(address, words)

    theirs = await trio.to_thread.run_sync(ask_theirs)
    servicers = GrpcioServicers()
    add(servicer, servicers)
    server: Server = await nursery.start(trio_grpc.serve, [servicers], "127.0.0.1:0")
    ours = await trio.to_thread.run_sync(ask, server.addresses[0], words)
    assert ours == theirs
    nursery.cancel_scope.cancel()
    caplog.clear()  # of exceptions that were asked for


async def test_reflection_of_grpcio_on_our_server(nursery: trio.Nursery) -> None:
    from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

    servicers = GrpcioServicers()
    add(AioEcho(), servicers)
    reflection.enable_server_reflection(["echo.Echo", reflection.SERVICE_NAME], servicers)
    server: Server = await nursery.start(trio_grpc.serve, [servicers], "127.0.0.1:0")

    def names() -> list[str]:
        with grpc.insecure_channel(server.addresses[0]) as channel:
            requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
            (reply,) = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(requests)
            return [service.name for service in reply.list_services_response.service]

    assert await trio.to_thread.run_sync(names) == ["echo.Echo", reflection.SERVICE_NAME]
    nursery.cancel_scope.cancel()


async def test_json_and_bytes_with_a_server_of_grpcio() -> None:
    """grpcio takes any content type, and has functions instead of codecs."""
    import json

    server = grpc.server(futures.ThreadPoolExecutor(2))
    handler = grpc.unary_unary_rpc_method_handler(
        lambda request, _: {"got": request}, json.loads, lambda reply: json.dumps(reply).encode()
    )
    server.add_registered_method_handlers("a.B", {"C": handler})
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        async with trio_grpc.open_channel(address) as channel:
            in_json = Method[Any, Any].at("/a.B/C", Cardinality.UNARY_UNARY, codec=JsonCodec())
            assert await UnaryUnaryMethod(channel, in_json)({"x": [1]}) == {"got": {"x": [1]}}
            in_bytes = Method[Any, Any].at("/a.B/C", Cardinality.UNARY_UNARY, codec=BytesCodec())
            assert await UnaryUnaryMethod(channel, in_bytes)(b"[1]") == b'{"got": [1]}'
    finally:
        await trio.to_thread.run_sync(server.stop(0).wait, PATIENCE)
