"""Servicers written for grpcio's server without asyncio: their handlers run in threads."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import grpc
import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

from tests.support.streams import converse, use_streams
from trio_grpc import RpcError, StatusCode
from trio_grpc.grpcio import GrpcioServicers
from trio_grpc.testing import open_channel_pair


class PlainEcho:
    """The echo service with plain functions."""

    def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
        assert threading.current_thread() is not threading.main_thread()
        return EchoReply(text=request.text)

    def ServerStream(self, request: EchoRequest, context: Any) -> Iterator[EchoReply]:
        for number in range(request.count):
            yield EchoReply(count=number)

    def ClientStream(self, requests: Iterator[EchoRequest], context: Any) -> EchoReply:
        payloads = [request.payload for request in requests]
        return EchoReply(payload=b"".join(payloads), count=len(payloads))

    def Bidi(self, requests: Iterator[EchoRequest], context: Any) -> Iterator[EchoReply]:
        for request in requests:
            yield EchoReply(text=request.text)


def opened(module: ModuleType, servicer: Any, **options: Any) -> Any:
    servicers = GrpcioServicers(**options)
    module.add_EchoServicer_to_server(servicer, servicers)
    return open_channel_pair(servicers)


async def test_all_kinds_of_calls(grpcio_echo: ModuleType) -> None:
    async with opened(grpcio_echo, PlainEcho()) as (channel, _):
        echo = EchoStub(channel)
        assert (await echo.Unary(EchoRequest(text="x"))).text == "x"
        await use_streams(echo)


async def test_what_the_context_does(grpcio_echo: ModuleType) -> None:
    seen: dict[str, Any] = {}
    called = threading.Event()

    class Telling(PlainEcho):
        def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
            seen.update(remaining=context.time_remaining())
            seen.update(code=context.code(), active=context.is_active(), added=context.add_callback(called.set))
            context.send_initial_metadata((("first", "1"),))
            context.set_trailing_metadata((("last", "2"),))
            seen["context"] = context
            return EchoReply()

    async with (
        opened(grpcio_echo, Telling()) as (channel, _),
        EchoStub(channel).Unary.open(EchoRequest(), timeout=50) as call,
    ):
        await call.receive()
        assert list(await call.wait_initial_metadata()) == [("first", "1")]
        assert list(call.trailing_metadata) == [("last", "2")]
    assert 0 < seen["remaining"] <= 50
    assert (seen["code"], seen["active"], seen["added"]) == (None, True, True)
    assert called.is_set()
    assert not seen["context"].is_active()


@pytest.mark.parametrize("how", ["abort", "set", "status", "cancel"])
async def test_status(how: str, grpcio_echo: ModuleType) -> None:
    class Status:
        code = grpc.StatusCode.NOT_FOUND
        details = "no such thing"
        trailing_metadata = (("key", "value"),)

    class Failing(PlainEcho):
        def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
            if how == "abort":
                context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")
            elif how == "status":
                context.abort_with_status(Status())
            elif how == "cancel":
                context.cancel()
            context.set_code(grpc.StatusCode.NOT_FOUND)
            context.set_details("no such thing")
            return EchoReply()

    async with opened(grpcio_echo, Failing()) as (channel, _):
        with pytest.raises(RpcError) as info:
            await EchoStub(channel).Unary(EchoRequest())
    error = info.value
    if how == "cancel":
        assert (error.code, error.message) == (StatusCode.CANCELLED, "cancelled by the handler")
    else:
        assert (error.code, error.message) == (StatusCode.NOT_FOUND, "no such thing")
        assert list(error.trailing_metadata) == ([("key", "value")] if how == "status" else [])


async def test_an_exception_has_the_code_that_was_set_before(
    grpcio_echo: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(PlainEcho):
        def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            context.set_details(b"no such thing")
            raise KeyError("secret")

    async with opened(grpcio_echo, Failing()) as (channel, _):
        with pytest.raises(RpcError) as info:
            await EchoStub(channel).Unary(EchoRequest())
    assert (info.value.code, info.value.message) == (StatusCode.NOT_FOUND, "no such thing")
    assert [record.exc_info is not None for record in caplog.records] == [True]
    caplog.clear()


async def test_a_callback_that_raises_changes_nothing(
    grpcio_echo: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    class Calling(PlainEcho):
        def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
            assert context.add_callback(lambda: {}["missing"])
            return EchoReply(text=request.text)

    async with opened(grpcio_echo, Calling()) as (channel, _):
        assert (await EchoStub(channel).Unary(EchoRequest(text="fine"))).text == "fine"
    assert "exception in a callback of /echo.Echo/Unary" in caplog.text
    caplog.clear()


async def test_a_handler_learns_that_its_client_has_gone(grpcio_echo: ModuleType) -> None:
    started = trio.Event()
    token = trio.lowlevel.current_trio_token()
    events: list[str] = []

    class Working(PlainEcho):
        def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
            gone = threading.Event()
            context.add_callback(gone.set)
            token.run_sync_soon(started.set)
            events.append(f"told: {gone.wait(20)}")
            events.append(f"active: {context.is_active()}")
            return EchoReply()

    async with opened(grpcio_echo, Working()) as (channel, _), trio.open_nursery() as nursery:
        nursery.start_soon(EchoStub(channel).Unary, EchoRequest())
        await started.wait()
        nursery.cancel_scope.cancel()
    assert events == ["told: True", "active: False"]


async def test_a_thread_of_the_handler_reads_requests(grpcio_echo: ModuleType) -> None:
    """As servicers of grpcio do, to answer in between."""
    seen: list[Any] = []

    class Conversing(PlainEcho):
        def Bidi(self, requests: Iterator[EchoRequest], context: Any) -> Iterator[EchoReply]:
            replies: queue.SimpleQueue[EchoReply | None] = queue.SimpleQueue()

            def read() -> None:
                context.send_initial_metadata((("first", "1"),))
                seen.append(context.time_remaining())
                seen.append(context.add_callback(lambda: seen.append(context.time_remaining())))
                for request in requests:
                    replies.put(EchoReply(text=request.text))
                replies.put(None)

            reader = threading.Thread(target=read)
            reader.start()
            while (reply := replies.get()) is not None:
                yield reply
            reader.join()

    async with opened(grpcio_echo, Conversing()) as (channel, _), EchoStub(channel).Bidi() as call:
        assert list(await call.wait_initial_metadata()) == [("first", "1")]
        await converse(call)
    assert seen == [None, True, None]


@pytest.mark.parametrize("end", ["the handler's", "the client's"])
async def test_a_thread_that_reads_requests_ends_with_the_handler(end: str, grpcio_echo: ModuleType) -> None:
    raised: list[BaseException] = []
    reading = threading.Event()

    class Leaving(PlainEcho):
        def Bidi(self, requests: Iterator[EchoRequest], context: Any) -> Iterator[EchoReply]:
            def read() -> None:
                next(requests)
                reading.set()
                for _ in range(2):
                    try:
                        next(requests)
                    except BaseException as error:
                        raised.append(error)

            threads.append(threading.Thread(target=read))
            threads[0].start()
            yield EchoReply()
            reading.wait(20)
            if end == "the client's":
                gone = threading.Event()
                context.add_callback(gone.set)
                gone.wait(20)

    threads: list[threading.Thread] = []
    async with opened(grpcio_echo, Leaving()) as (channel, _):
        async with EchoStub(channel).Bidi() as call:
            await call.send(EchoRequest())
            await call.receive()
            await trio.to_thread.run_sync(reading.wait, 20)
            if end == "the handler's":
                with pytest.raises(trio.EndOfChannel):
                    await call.receive()
        await trio.to_thread.run_sync(threads[0].join, 20)
    assert not threads[0].is_alive()
    assert [type(error) for error in raised] == [trio.BrokenResourceError] * 2


async def test_a_stream_whose_client_has_gone_ends(grpcio_echo: ModuleType) -> None:
    ended = threading.Event()

    class Endless(PlainEcho):
        def ServerStream(self, request: EchoRequest, context: Any) -> Iterator[EchoReply]:
            try:
                while True:
                    yield EchoReply()
            finally:
                ended.set()

    async with opened(grpcio_echo, Endless()) as (channel, _), EchoStub(channel).ServerStream(EchoRequest()) as stream:
        await stream.receive()
    assert ended.wait(20)


async def test_no_more_run_at_once_than_there_are_workers(grpcio_echo: ModuleType) -> None:
    lock = threading.Lock()
    running = 0
    most = 0
    # Whether the second worker comes while the first is still there is not for the system's scheduler to say.
    meeting = threading.Barrier(2)

    class Counting(PlainEcho):
        def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            meeting.wait(20)
            context.is_active()
            trio.from_thread.run(trio.testing.wait_all_tasks_blocked)
            with lock:
                running -= 1
            return EchoReply()

    async with opened(grpcio_echo, Counting(), max_workers=2) as (channel, _), trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(EchoStub(channel).Unary, EchoRequest())
    assert most == 2


async def test_the_health_service_of_grpcio() -> None:
    """A servicer that everybody has: plain functions, and a stream that waits in its thread."""
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc

    servicers = GrpcioServicers()
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, servicers)
    async with open_channel_pair(servicers) as (channel, _):
        stub = health_pb2_grpc.HealthStub(channel)
        servicer.set("", health_pb2.HealthCheckResponse.SERVING)
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == 1
        async with stub.Watch(health_pb2.HealthCheckRequest()) as watch:
            assert (await watch.receive()).status == 1
            servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
            assert (await watch.receive()).status == 2
