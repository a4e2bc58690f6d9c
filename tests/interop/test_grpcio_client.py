"""A real grpcio client against our server."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
import trio
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer
from google.protobuf.wrappers_pb2 import StringValue

import trio_grpc
from tests.interop.conftest import Certificates
from tests.interop.counting import CountingListener
from tests.interop.waiting import until
from tests.interop.wire import GrpcioStub, status_bytes
from trio_grpc import Compression, Limits, RequestStream, RpcError, Server, ServicerContext, StatusCode

pytestmark = pytest.mark.watchdog(30)

MB = 2**20
#: No call of grpcio's waits longer, should we never answer.
PATIENCE = 20
MESSAGES = ["plain", "naïve", "50 % of 100%25", "日本語 ✓", "line\nbreak\ttab", " edges "]

ResultT = TypeVar("ResultT")
Context = ServicerContext[EchoReply]


class Echo(EchoServicer):
    """Echoes; a request's ``text`` says what else it does.

    Attributes:
        started: handlers that reached their wait, ever.
        running, peak: handlers at the gate now, and at most.
        gate: opened by the test.
        ended: set when a handler's ``finally`` has run.
        remaining: what `ServicerContext.time_remaining` said.
    """

    def __init__(self) -> None:
        self.started = trio.Event()
        self.running = 0
        self.peak = 0
        self.gate = trio.Event()
        self.ended = trio.Event()
        self.remaining: list[float] = []
        self.metadata: list[trio_grpc.Metadata] = []

    async def _act(self, request: EchoRequest, context: Context) -> None:
        self.remaining.append(context.time_remaining())
        self.metadata.append(context.metadata)
        if request.text == "wait":
            self.started.set()
            try:
                await trio.sleep_forever()
            finally:
                self.ended.set()
        elif request.text == "gate":
            self.running += 1
            self.peak = max(self.peak, self.running)
            if self.running == request.count:
                self.started.set()
            await self.gate.wait()
            self.running -= 1
        elif request.text == "abort":
            await context.abort(StatusCode(request.count), request.payload.decode())
        elif request.text == "details":
            error = RpcError(StatusCode(request.count), request.payload.decode(), details=[StringValue(value="why")])
            raise error
        elif request.text == "raise":
            raise RuntimeError("secret")
        elif request.text == "flaky" and context.metadata.get("grpc-previous-rpc-attempts") != "2":
            context.set_trailing_metadata({"grpc-retry-pushback-ms": "1"})
            await context.abort(StatusCode.UNAVAILABLE, "busy")
        elif request.text == "gzip":
            context.set_compression(Compression.GZIP)

    async def _metadata(self, context: Context) -> None:
        pairs = list(context.metadata)
        await context.send_initial_metadata([(key, value) for key, value in pairs if key.startswith("x-")])
        context.set_trailing_metadata([(key, value) for key, value in pairs if key.startswith("t-")])

    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        await self._act(request, context)
        if request.text == "metadata":
            await self._metadata(context)
        if request.text == "size":
            return EchoReply(payload=bytes(request.count))
        return EchoReply(payload=request.payload, count=request.count)

    async def ServerStream(self, request: EchoRequest, context: Context, /) -> AsyncIterator[EchoReply]:
        if request.text in ("wait", "gate"):
            yield EchoReply(text="first")
        await self._act(request, context)
        for number in range(request.count):
            yield EchoReply(payload=request.payload, count=number)

    async def ClientStream(self, requests: RequestStream[EchoRequest], context: Context, /) -> EchoReply:
        payload, count = b"", 0
        async for request in requests:
            if not count:
                await self._act(request, context)
            payload += request.payload
            count += 1
        return EchoReply(payload=payload, count=count)

    async def Bidi(self, requests: RequestStream[EchoRequest], context: Context, /) -> AsyncIterator[EchoReply]:
        async for request in requests:
            await self._act(request, context)
            yield EchoReply(payload=request.payload, count=request.count)


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
async def server(echo: Echo, nursery: trio.Nursery) -> AsyncIterator[Server]:
    server: Server = await nursery.start(trio_grpc.serve, [echo], "127.0.0.1:0")
    yield server
    # The grpcio channel is closed by now, and with it every call.
    await until(lambda: not server.statistics().connections)
    assert server.statistics() == trio_grpc.ServerStatistics(connections=0, streams=0, handlers=0, control_frames=0)


async def in_thread(function: Callable[..., ResultT], *args: Any) -> ResultT:
    return await trio.to_thread.run_sync(function, *args, abandon_on_cancel=True)


@contextmanager
def connected(address: str, credentials: grpc.ChannelCredentials | None = None, **options: Any) -> Iterator[GrpcioStub]:
    """A grpcio channel with a connection of its own."""
    arguments = [("grpc.use_local_subchannel_pool", 1), *((f"grpc.{key}", value) for key, value in options.items())]
    if credentials is None:
        channel = grpc.insecure_channel(address, arguments)
    else:
        channel = grpc.secure_channel(address, credentials, arguments)
    with channel:
        yield GrpcioStub(channel)


def four_kinds(address: str, payload: bytes = b"payload", credentials: grpc.ChannelCredentials | None = None) -> None:
    """One call of each kind, checked; runs in a thread."""
    with connected(address, credentials) as stub:
        request = EchoRequest(payload=payload, count=3)
        reply = stub.Unary(request, timeout=PATIENCE)
        assert (reply.payload, reply.count) == (payload, 3)
        replies = list(stub.ServerStream(request, timeout=PATIENCE))
        assert replies == [EchoReply(payload=payload, count=number) for number in range(3)]
        reply = stub.ClientStream(iter([request, request]), timeout=PATIENCE)
        assert (reply.payload, reply.count) == (payload * 2, 2)
        requests = [EchoRequest(payload=payload, count=number) for number in range(3)]
        replies = list(stub.Bidi(iter(requests), timeout=PATIENCE))
        assert [(reply.payload, reply.count) for reply in replies] == [(payload, number) for number in range(3)]


def failure(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The grpc.RpcError that a call raises; its methods are grpc.Call's."""
    with pytest.raises(grpc.RpcError) as caught:
        function(*args, timeout=PATIENCE, **options)
    return caught.value


async def test_four_kinds(server: Server) -> None:
    await in_thread(four_kinds, server.addresses[0])


async def test_four_kinds_over_a_unix_socket(echo: Echo, nursery: trio.Nursery, tmp_path: Path) -> None:
    server: Server = await nursery.start(trio_grpc.serve, [echo], f"unix:{tmp_path / 's'}")
    assert server.addresses == (f"unix:{tmp_path / 's'}",)
    await in_thread(four_kinds, server.addresses[0])


async def test_four_kinds_over_tls(echo: Echo, nursery: trio.Nursery, certificates: Certificates) -> None:
    serve = partial(trio_grpc.serve, ssl_context=certificates.server_context())
    server: Server = await nursery.start(serve, [echo], "127.0.0.1:0")
    address = server.addresses[0].replace("127.0.0.1", "localhost")
    await in_thread(four_kinds, address, b"secret", grpc.ssl_channel_credentials(certificates.root))


async def test_a_client_without_trust_cannot_call_and_others_still_can(
    echo: Echo, nursery: trio.Nursery, certificates: Certificates
) -> None:
    serve = partial(trio_grpc.serve, ssl_context=certificates.server_context())
    server: Server = await nursery.start(serve, [echo], "127.0.0.1:0")
    address = server.addresses[0].replace("127.0.0.1", "localhost")

    def call_it() -> Any:
        with connected(address, grpc.ssl_channel_credentials()) as stub:
            return failure(stub.Unary, EchoRequest()).code()

    assert await in_thread(call_it) is grpc.StatusCode.UNAVAILABLE
    assert not echo.metadata
    await in_thread(four_kinds, address, b"secret", grpc.ssl_channel_credentials(certificates.root))


async def test_messages_of_1_mb_in_all_kinds(server: Server) -> None:
    await in_thread(four_kinds, server.addresses[0], bytes(range(256)) * (MB // 256))


async def test_metadata_both_ways(server: Server, echo: Echo) -> None:
    metadata = [
        ("x-text", "a, b"),
        ("x-repeated", "one"),
        ("x-repeated", "two"),
        ("x-octets-bin", b"\x00\xff,\x80"),
        ("t-text", "end"),
        ("t-repeated", "1"),
        ("t-repeated", "2"),
        ("t-octets-bin", bytes(range(256))),
    ]

    def call_it() -> tuple[Any, Any]:
        with connected(server.addresses[0]) as stub:
            request = EchoRequest(text="metadata")
            _, call = stub.Unary.with_call(request, metadata=metadata, timeout=PATIENCE)
            return call.initial_metadata(), call.trailing_metadata()

    initial, trailing = await in_thread(call_it)
    (received,) = echo.metadata
    assert [pair for pair in received if pair[0][:2] in ("x-", "t-")] == metadata
    assert "grpc-python/" in str(received["user-agent"])
    assert [tuple(pair) for pair in initial if pair[0].startswith("x-")] == metadata[:4]
    assert [tuple(pair) for pair in trailing if pair[0].startswith("t-")] == metadata[4:]


@pytest.mark.parametrize("message", MESSAGES)
async def test_a_status_with_its_message(server: Server, message: str) -> None:
    def call_it() -> Any:
        with connected(server.addresses[0]) as stub:
            return failure(stub.Unary, EchoRequest(text="abort", count=9, payload=message.encode()))

    error = await in_thread(call_it)
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert error.details() == message


async def test_every_status_code(server: Server) -> None:
    def call_all() -> list[int]:
        with connected(server.addresses[0]) as stub:
            return [
                failure(stub.Unary, EchoRequest(text="abort", count=code, payload=b"so")).code().value[0]
                for code in range(1, 17)
            ]

    assert await in_thread(call_all) == list(range(1, 17))


async def test_a_status_after_messages(server: Server) -> None:
    def call_it() -> tuple[bytes, Any]:
        with connected(server.addresses[0]) as stub:
            requests = [EchoRequest(payload=b"fine"), EchoRequest(text="abort", count=10, payload=b"enough")]
            call = stub.Bidi(iter(requests), timeout=PATIENCE)
            first = next(call).payload
            with pytest.raises(grpc.RpcError):
                next(call)
            return first, call

    first, call = await in_thread(call_it)
    assert first == b"fine"
    assert (call.code(), call.details()) == (grpc.StatusCode.ABORTED, "enough")


async def test_status_details(server: Server) -> None:
    def call_it() -> Any:
        with connected(server.addresses[0]) as stub:
            return failure(stub.Unary, EchoRequest(text="details", count=5, payload="où?".encode()))

    error = await in_thread(call_it)
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "où?")
    trailing = dict(error.trailing_metadata())
    assert trailing["grpc-status-details-bin"] == status_bytes(5, "où?", StringValue(value="why"))


async def test_a_handlers_exception_is_unknown_and_stays_here(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    def call_it() -> Any:
        with connected(server.addresses[0]) as stub:
            return failure(stub.Unary, EchoRequest(text="raise"))

    error = await in_thread(call_it)
    assert error.code() is grpc.StatusCode.UNKNOWN
    assert "secret" not in error.details()
    assert "secret" in caplog.text


async def test_an_unimplemented_method(server: Server) -> None:
    def call_it() -> Any:
        with connected(server.addresses[0]) as stub:
            return failure(stub.Missing, EchoRequest())

    error = await in_thread(call_it)
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "/echo.Echo/Missing" in error.details()


# -- deadlines


async def test_the_clients_deadline_reaches_the_handler(server: Server, echo: Echo) -> None:
    def call_it() -> None:
        with connected(server.addresses[0]) as stub:
            stub.Unary(EchoRequest(), timeout=300)
            list(stub.Bidi(iter([EchoRequest()]), timeout=600))
            stub.Unary(EchoRequest())

    await in_thread(call_it)
    assert 200 < echo.remaining[0] < 301
    assert 500 < echo.remaining[1] < 601
    assert echo.remaining[2] == inf


@pytest.mark.parametrize("kind", ["Unary", "ServerStream", "ClientStream", "Bidi"])
async def test_deadline_exceeded_ends_both(server: Server, echo: Echo, kind: str) -> None:
    def call_it() -> Any:
        request: Any = EchoRequest(text="wait")
        with connected(server.addresses[0]) as stub:
            if kind in ("ClientStream", "Bidi"):
                request = iter([request])
            # Connected first, and time enough for a busy machine: the call has to arrive before its deadline.
            stub.Unary(EchoRequest())
            with pytest.raises(grpc.RpcError) as caught:
                # A reply has no length, a stream of replies is read to its end.
                list(getattr(stub, kind)(request, timeout=1))
            return caught.value

    error = await in_thread(call_it)
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await echo.ended.wait()


# -- cancellation


@pytest.mark.parametrize("kind", ["Unary", "ServerStream", "ClientStream", "Bidi"])
async def test_a_client_that_cancels_cancels_the_handler(server: Server, echo: Echo, kind: str) -> None:
    request = EchoRequest(text="wait")
    release = threading.Event()

    def call_it() -> Any:
        with connected(server.addresses[0]) as stub:
            if kind == "Unary":
                call = stub.Unary.future(request, timeout=PATIENCE)
            elif kind == "ServerStream":
                call = stub.ServerStream(request, timeout=PATIENCE)
            elif kind == "ClientStream":
                call = stub.ClientStream.future(iter([request]), timeout=PATIENCE)
            else:
                call = stub.Bidi(iter([request]), timeout=PATIENCE)
            trio.from_thread.run(echo.started.wait)
            call.cancel()
            # The channel stays open until the handler has heard of it: the reset and not the connection's end tells it.
            release.wait(PATIENCE)
            return call.code()

    async def watch() -> None:
        await echo.ended.wait()
        assert server.statistics().connections == 1
        release.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        code = await in_thread(call_it)
    assert code is grpc.StatusCode.CANCELLED


async def test_a_client_that_closes_its_channel_cancels_the_handler(server: Server, echo: Echo) -> None:
    def call_it() -> None:
        with connected(server.addresses[0]) as stub:
            # grpcio cancels a call that nobody holds.
            call = stub.Unary.future(EchoRequest(text="wait"), timeout=PATIENCE)
            trio.from_thread.run(echo.started.wait)
            assert not call.done()

    await in_thread(call_it)
    await echo.ended.wait()


async def test_cancelling_the_server_ends_the_clients_call(echo: Echo) -> None:
    results: list[Any] = []

    def call_it(address: str) -> None:
        with connected(address) as stub:
            results.append(failure(stub.Unary, EchoRequest(text="wait")))

    async with trio.open_nursery() as callers:
        async with trio.open_nursery() as nursery:
            server: Server = await nursery.start(trio_grpc.serve, [echo], "127.0.0.1:0")
            callers.start_soon(in_thread, call_it, server.addresses[0])
            await echo.started.wait()
            nursery.cancel_scope.cancel()
        assert echo.ended.is_set()
    assert results[0].code() is grpc.StatusCode.UNAVAILABLE


# -- many calls, limits, compression


async def test_1000_concurrent_calls_on_one_connection(server: Server, echo: Echo) -> None:
    def call_all() -> list[int]:
        with connected(server.addresses[0]) as stub:
            calls = [
                stub.Unary.future(EchoRequest(text="gate", count=1000, payload=b"%d" % number), timeout=PATIENCE)
                for number in range(1000)
            ]
            return [int(call.result().payload) for call in calls]

    async def open_the_gate() -> None:
        await echo.started.wait()
        assert server.statistics().connections == 1
        assert server.statistics().handlers == 1000
        echo.gate.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_the_gate)
        assert await in_thread(call_all) == list(range(1000))
    assert echo.peak == 1000


async def test_our_stream_limit_makes_the_client_wait(echo: Echo, nursery: trio.Nursery) -> None:
    serve = partial(trio_grpc.serve, limits=Limits(max_concurrent_streams=2))
    server: Server = await nursery.start(serve, [echo], "127.0.0.1:0")

    def call_all() -> list[int]:
        with connected(server.addresses[0]) as stub:
            stub.Unary(EchoRequest(), timeout=PATIENCE)
            calls = [stub.Unary.future(EchoRequest(text="gate", count=2), timeout=PATIENCE) for _ in range(8)]
            return [call.result().count for call in calls]

    async def open_the_gate() -> None:
        await echo.started.wait()
        echo.gate.set()

    nursery.start_soon(open_the_gate)
    assert await in_thread(call_all) == [2] * 8
    assert echo.peak == 2


async def test_a_burst_over_our_stream_limit_before_the_client_knows_it(echo: Echo, nursery: trio.Nursery) -> None:
    """What comes before our SETTINGS are known is refused with REFUSED_STREAM, and grpcio tries it again unseen."""
    serve = partial(trio_grpc.serve, limits=Limits(max_concurrent_streams=1))
    server: Server = await nursery.start(serve, [echo], "127.0.0.1:0")

    def call_all() -> list[int]:
        with connected(server.addresses[0]) as stub:
            calls = [stub.Unary.future(EchoRequest(count=number), timeout=PATIENCE) for number in range(50)]
            return [call.result().count for call in calls]

    assert await in_thread(call_all) == list(range(50))


async def test_unary_calls_beside_a_stream(server: Server) -> None:
    def call_it() -> int:
        with connected(server.addresses[0]) as stub:
            received = 0
            for reply in stub.ServerStream(EchoRequest(count=5000, payload=b"x" * 100), timeout=PATIENCE):
                assert reply.count == received
                received += 1
                if received % 1000 == 0:
                    assert stub.Unary(EchoRequest(count=received), timeout=PATIENCE).count == received
            return received

    assert await in_thread(call_it) == 5000


async def test_a_request_over_our_limit(server: Server, echo: Echo) -> None:
    def call_it() -> list[Any]:
        with connected(server.addresses[0]) as stub:
            large = EchoRequest(payload=bytes(5 * MB))
            errors = [
                failure(stub.Unary, large),
                failure(stub.ClientStream, iter([EchoRequest(payload=b"small"), large])),
            ]
            # The connection lives.
            assert stub.Unary(EchoRequest(count=7), timeout=PATIENCE).count == 7
            assert server.statistics().connections == 1
            return errors

    for error in await in_thread(call_it):
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "max_receive_message_length" in error.details()


async def test_a_reply_over_the_clients_limit(server: Server) -> None:
    def call_it() -> Any:
        with connected(server.addresses[0]) as stub:
            error = failure(stub.Unary, EchoRequest(text="size", count=5 * MB))
            assert stub.Unary(EchoRequest(count=7), timeout=PATIENCE).count == 7
            return error

    assert (await in_thread(call_it)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_gzip_both_ways(echo: Echo, nursery: trio.Nursery) -> None:
    (sockets,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    listener = CountingListener(sockets)
    await nursery.start(trio_grpc.serve, [echo], listener)
    payload = b"compressible " * (MB // 13)

    def call_it() -> tuple[int, int]:
        with connected(f"127.0.0.1:{listener.port}") as stub:
            request = EchoRequest(payload=payload, text="gzip")
            reply = stub.Unary(request, compression=grpc.Compression.Gzip, timeout=PATIENCE)
            assert reply.payload == payload
            (stream,) = listener.streams
            small = stream.received, stream.sent
            replies = list(stub.Bidi(iter([request]), compression=grpc.Compression.Gzip, timeout=PATIENCE))
            assert [reply.payload for reply in replies] == [payload]
            assert stream.received < MB // 5
            assert stub.Unary(EchoRequest(payload=payload), timeout=PATIENCE).payload == payload
            assert stream.received > MB
            return small

    received, sent = await in_thread(call_it)
    assert received < MB // 10
    assert sent < MB // 10


async def test_deflate(echo: Echo, server: Server) -> None:
    def call_it() -> bytes:
        with connected(server.addresses[0]) as stub:
            request = EchoRequest(payload=b"compressible " * 1000)
            reply: EchoReply = stub.Unary(request, compression=grpc.Compression.Deflate, timeout=PATIENCE)
            return reply.payload

    assert await in_thread(call_it) == b"compressible " * 1000


# -- our server goes away


async def test_draining_while_a_stream_runs(echo: Echo, nursery: trio.Nursery) -> None:
    server: Server = await nursery.start(trio_grpc.serve, [echo], "127.0.0.1:0")
    drained = trio.Event()

    def call_it() -> tuple[list[int], Any]:
        with connected(server.addresses[0]) as stub:
            call = stub.ServerStream(EchoRequest(text="gate", count=100), timeout=PATIENCE)
            assert next(call).text == "first"
            trio.from_thread.run_sync(nursery.start_soon, drain)
            counts = [reply.count for reply in call]
            assert call.code() is grpc.StatusCode.OK
            trio.from_thread.run(drained.wait)
            return counts, failure(stub.Unary, EchoRequest())

    async def drain() -> None:
        async with trio.open_nursery() as drains:
            drains.start_soon(server.drain)
            await until(lambda: "draining" in repr(server))
            echo.gate.set()
        drained.set()

    counts, error = await in_thread(call_it)
    assert counts == list(range(100))
    assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_no_call_is_lost_to_a_drain(echo: Echo, nursery: trio.Nursery) -> None:
    """The two GOAWAYs: a client in a tight loop is moved from one server to the next without an error."""
    first: Server = await nursery.start(trio_grpc.serve, [echo], "127.0.0.1:0")
    address = first.addresses[0]
    ended = threading.Event()

    def call_on() -> int:
        count = 0
        with connected(address) as stub:
            while not ended.is_set():
                assert stub.Unary(EchoRequest(count=count), timeout=PATIENCE, wait_for_ready=True).count == count
                count += 1
        return count

    async def replace() -> None:
        await until(lambda: bool(echo.metadata))
        await first.drain()
        before = len(echo.metadata)
        await nursery.start(trio_grpc.serve, [echo], address)
        await until(lambda: len(echo.metadata) >= before + 10)
        ended.set()

    async with trio.open_nursery() as replacing:
        replacing.start_soon(replace)
        count = await in_thread(call_on)
    assert count == len(echo.metadata)


async def test_grpcio_tries_again_what_our_handlers_refuse(server: Server, echo: Echo) -> None:
    """Failures come as Trailers-Only, so that they do not commit its calls, and pushback is heard."""
    policy = {
        "maxAttempts": 4,
        "initialBackoff": "60s",
        "maxBackoff": "60s",
        "backoffMultiplier": 1,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    config = json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": policy}]})

    def call() -> None:
        with connected(server.addresses[0], service_config=config) as stub:
            request = EchoRequest(text="flaky", count=1)
            stub.Unary(request, timeout=PATIENCE)
            assert len(list(stub.ServerStream(request, timeout=PATIENCE))) == 1
            assert stub.ClientStream(iter([request]), timeout=PATIENCE).count == 1
            assert len(list(stub.Bidi(iter([request]), timeout=PATIENCE))) == 1

    await in_thread(call)
    previous = [metadata.get("grpc-previous-rpc-attempts") for metadata in echo.metadata]
    assert previous == [None, "1", "2"] * 4
