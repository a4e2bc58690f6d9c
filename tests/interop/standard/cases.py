"""The standard interoperability test cases, as a client on trio_grpc runs them.

Each case is an async function that raises if the server, or our client, does not do what the case demands.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import time_ns
from typing import Any

import attrs
import trio

from tests.interop.standard.empty_pb2 import Empty
from tests.interop.standard.messages_pb2 import (
    BoolValue,
    EchoStatus,
    Payload,
    ResponseParameters,
    SimpleRequest,
    SimpleResponse,
    StreamingInputCallRequest,
    StreamingOutputCallRequest,
)
from tests.interop.standard.service import ECHO_INITIAL, ECHO_TRAILING
from tests.interop.standard.testing_trio_grpc import TestServiceStub, UnimplementedServiceStub
from trio_grpc import Channel, Compression, MetadataLike, RpcError, StatusCode

REQUEST_SIZE = 271828
RESPONSE_SIZE = 314159
UPLOADS = (27182, 8, 1828, 45904)
DOWNLOADS = (31415, 9, 2653, 58979)


class CaseFailed(AssertionError):
    """A case did not go as it must."""


@attrs.frozen(kw_only=True)
class Soak:
    """The options of the soak cases, with the defaults of the other implementations' clients."""

    iterations: int = 10
    max_failures: int = 0
    max_latency_ms: int = 1000
    overall_timeout_seconds: float = 10
    min_time_ms_between_rpcs: int = 0
    request_size: int = REQUEST_SIZE
    response_size: int = RESPONSE_SIZE


@attrs.frozen
class Client:
    """What a case works with.

    Attributes:
        channel: open for the length of the case.
        open_channel: opens another one to the same server.
        soak: options of the soak cases.
        concurrency: calls at once in concurrent_large_unary.
    """

    channel: Channel
    open_channel: Callable[[], AbstractAsyncContextManager[Channel]]
    soak: Soak = Soak()
    concurrency: int = 100

    @property
    def stub(self) -> TestServiceStub:
        return TestServiceStub(self.channel)


def check(condition: object, *what: object) -> None:
    if not condition:
        raise CaseFailed(" ".join(str(one) for one in what))


@asynccontextmanager
async def ends_with(code: StatusCode, message: str | None = None) -> AsyncIterator[None]:
    """The block must end with this status."""
    try:
        yield
    except RpcError as error:
        if error.code is not code:
            raise
        check(message is None or error.message == message, "status message is", repr(error.message))
    else:
        raise CaseFailed(f"ended with OK instead of {code.name}")


def large_request(**fields: Any) -> SimpleRequest:
    return SimpleRequest(response_size=RESPONSE_SIZE, payload=Payload(body=bytes(REQUEST_SIZE)), **fields)


def check_large(response: SimpleResponse) -> None:
    check(response.payload.body == bytes(RESPONSE_SIZE), "payload of", len(response.payload.body), "bytes")


def output_request(*sizes: int, upload: int = 0) -> StreamingOutputCallRequest:
    return StreamingOutputCallRequest(
        response_parameters=[ResponseParameters(size=size) for size in sizes],
        payload=Payload(body=bytes(upload)) if upload else None,
    )


async def empty_unary(client: Client) -> None:
    check(await client.stub.EmptyCall(Empty()) == Empty(), "an empty message has content")


async def cacheable_unary(client: Client) -> None:
    first = SimpleRequest(payload=Payload(body=str(time_ns()).encode()))
    other = SimpleRequest(payload=Payload(body=str(time_ns() + 1).encode()))
    metadata = {"x-user-ip": "1.2.3.4"}
    one, two, three = [
        await client.stub.CacheableUnaryCall(request, metadata=metadata) for request in (first, first, other)
    ]
    check(one.payload == two.payload, "the same request got another response: no cache")
    check(one.payload != three.payload, "another request got the same response")


async def large_unary(client: Client) -> None:
    check_large(await client.stub.UnaryCall(large_request()))


async def client_compressed_unary(client: Client) -> None:
    async with ends_with(StatusCode.INVALID_ARGUMENT):
        await client.stub.UnaryCall(large_request(expect_compressed=BoolValue(value=True)))
    await client_compressed_unary_noprobe(client)


async def client_compressed_unary_noprobe(client: Client) -> None:
    """As above, for servers that do not look at the compressed flag."""
    for compressed in (True, False):
        request = large_request(expect_compressed=BoolValue(value=compressed))
        compression = Compression.GZIP if compressed else Compression.NONE
        check_large(await client.stub.UnaryCall(request, compression=compression))


async def server_compressed_unary(client: Client) -> None:
    for compressed in (True, False):
        async with client.stub.UnaryCall.open(large_request(response_compressed=BoolValue(value=compressed))) as call:
            check_large(await call.receive())
            check(call.response_compressed == compressed, "compressed flag is", call.response_compressed)


async def client_streaming(client: Client) -> None:
    response = await client.stub.StreamingInputCall(
        StreamingInputCallRequest(payload=Payload(body=bytes(size))) for size in UPLOADS
    )
    check(response.aggregated_payload_size == sum(UPLOADS), "aggregated size", response.aggregated_payload_size)


async def client_compressed_streaming(client: Client) -> None:
    async with ends_with(StatusCode.INVALID_ARGUMENT):
        await client.stub.StreamingInputCall(
            [StreamingInputCallRequest(payload=Payload(body=bytes(27182)), expect_compressed=BoolValue(value=True))]
        )
    await client_compressed_streaming_noprobe(client)


async def client_compressed_streaming_noprobe(client: Client) -> None:
    """As above, for servers that do not look at the compressed flag."""
    async with client.stub.StreamingInputCall.open(compression=Compression.GZIP) as call:
        for size, compressed in ((27182, True), (45904, False)):
            request = StreamingInputCallRequest(
                payload=Payload(body=bytes(size)), expect_compressed=BoolValue(value=compressed)
            )
            await call.send(request, compress=compressed)
        await call.done_sending()
        response = await call.receive()
    check(response.aggregated_payload_size == 73086, "aggregated size", response.aggregated_payload_size)


async def server_streaming(client: Client) -> None:
    async with client.stub.StreamingOutputCall(output_request(*DOWNLOADS)) as call:
        sizes = [len(response.payload.body) async for response in call]
    check(tuple(sizes) == DOWNLOADS, "sizes", sizes)


async def server_compressed_streaming(client: Client) -> None:
    wanted = [(31415, True), (92653, False)]
    request = StreamingOutputCallRequest(
        response_parameters=[
            ResponseParameters(size=size, compressed=BoolValue(value=compressed)) for size, compressed in wanted
        ]
    )
    async with client.stub.StreamingOutputCall(request) as call:
        got = [(len(response.payload.body), call.response_compressed) async for response in call]
    check(got == wanted, "sizes and compressed flags", got)


async def ping_pong(client: Client) -> None:
    async with client.stub.FullDuplexCall() as call:
        for upload, download in zip(UPLOADS, DOWNLOADS, strict=True):
            await call.send(output_request(download, upload=upload))
            size = len((await call.receive()).payload.body)
            check(size == download, "size", size)
        await call.done_sending()
        async for response in call:
            raise CaseFailed(f"one response too many: {len(response.payload.body)} bytes")


async def empty_stream(client: Client) -> None:
    async with client.stub.FullDuplexCall() as call:
        await call.done_sending()
        check([response async for response in call] == [], "responses came")
    check(call.status is StatusCode.OK, "status", call.status)


async def custom_metadata(client: Client) -> None:
    initial, trailing = "test_initial_metadata_value", b"\xab\xab\xab"
    metadata: MetadataLike = [(ECHO_INITIAL, initial), (ECHO_TRAILING, trailing)]
    async with client.stub.UnaryCall.open(large_request(), metadata=metadata) as unary:
        check_large(await unary.receive())
        check((await unary.wait_initial_metadata()).get(ECHO_INITIAL) == initial, "initial metadata is not echoed")
        check(unary.trailing_metadata.get(ECHO_TRAILING) == trailing, "trailing metadata is not echoed")
    async with client.stub.FullDuplexCall(metadata=metadata) as duplex:
        await duplex.send(output_request(RESPONSE_SIZE, upload=REQUEST_SIZE))
        await duplex.done_sending()
        sizes = [len(response.payload.body) async for response in duplex]
        check(sizes == [RESPONSE_SIZE], "sizes", sizes)
        check((await duplex.wait_initial_metadata()).get(ECHO_INITIAL) == initial, "initial metadata is not echoed")
        check(duplex.trailing_metadata.get(ECHO_TRAILING) == trailing, "trailing metadata is not echoed")


async def _status(client: Client, message: str, *, duplex: bool) -> None:
    status = EchoStatus(code=StatusCode.UNKNOWN, message=message)
    async with ends_with(StatusCode.UNKNOWN, message):
        await client.stub.UnaryCall(SimpleRequest(response_status=status))
    if duplex:
        async with ends_with(StatusCode.UNKNOWN, message), client.stub.FullDuplexCall() as call:
            await call.send(StreamingOutputCallRequest(response_status=status))
            await call.done_sending()
            async for _ in call:
                raise CaseFailed("a response came")


async def status_code_and_message(client: Client) -> None:
    await _status(client, "test status message", duplex=True)


async def special_status_message(client: Client) -> None:
    message = "\t\ntest with whitespace\r\nand Unicode BMP \u263a and non-BMP \U0001f608\t\n"
    await _status(client, message, duplex=False)


async def unimplemented_method(client: Client) -> None:
    async with ends_with(StatusCode.UNIMPLEMENTED):
        await client.stub.UnimplementedCall(Empty())


async def unimplemented_service(client: Client) -> None:
    async with ends_with(StatusCode.UNIMPLEMENTED):
        await UnimplementedServiceStub(client.channel).UnimplementedCall(Empty())


async def cancel_after_begin(client: Client) -> None:
    async with client.stub.StreamingInputCall.open() as call:
        call.cancel()
        check(call.status is StatusCode.CANCELLED, "status", call.status)
    # The connection must not have suffered.
    await empty_unary(client)


async def cancel_after_first_response(client: Client) -> None:
    async with client.stub.FullDuplexCall() as call:
        await call.send(output_request(31415, upload=27182))
        check(len((await call.receive()).payload.body) == 31415, "size of the first response")
        call.cancel()
        check(call.status is StatusCode.CANCELLED, "status", call.status)
    await empty_unary(client)


async def timeout_on_sleeping_server(client: Client) -> None:
    async with ends_with(StatusCode.DEADLINE_EXCEEDED), client.stub.FullDuplexCall(timeout=0.001) as call:
        try:
            await call.send(StreamingOutputCallRequest(payload=Payload(body=bytes(27182))))
        except trio.BrokenResourceError:
            # Over already; receiving tells why.
            pass
        async for _ in call:
            raise CaseFailed("a response came")


async def concurrent_large_unary(client: Client) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(client.concurrency):
            nursery.start_soon(large_unary, client)


async def _soak(client: Client, call: Callable[[], Awaitable[SimpleResponse]]) -> None:
    soak = client.soak
    failures: list[str] = []
    done = 0
    with trio.move_on_after(soak.overall_timeout_seconds):
        for number in range(soak.iterations):
            started = trio.current_time()
            try:
                response = await call()
                latency = (trio.current_time() - started) * 1000
                if len(response.payload.body) != soak.response_size:
                    failures.append(f"call {number} had a response of {len(response.payload.body)} bytes")
                elif latency > soak.max_latency_ms:
                    failures.append(f"call {number} took {latency:.0f} ms")
            except RpcError as error:
                failures.append(f"call {number}: {error}")
            done += 1
            await trio.sleep_until(started + soak.min_time_ms_between_rpcs / 1000)
    check(done == soak.iterations, "only", done, "calls of", soak.iterations, "in time")
    check(len(failures) <= soak.max_failures, "; ".join(failures))


def _soak_request(soak: Soak) -> SimpleRequest:
    return SimpleRequest(response_size=soak.response_size, payload=Payload(body=bytes(soak.request_size)))


async def rpc_soak(client: Client) -> None:
    await _soak(client, lambda: client.stub.UnaryCall(_soak_request(client.soak)))


async def channel_soak(client: Client) -> None:
    async def call() -> SimpleResponse:
        async with client.open_channel() as channel:
            return await TestServiceStub(channel).UnaryCall(_soak_request(client.soak))

    await _soak(client, call)


async def pick_first_unary(client: Client) -> None:
    ids = {
        (
            await client.stub.UnaryCall(
                SimpleRequest(response_size=1, payload=Payload(body=b"\0"), fill_server_id=True)
            )
        ).server_id
        for _ in range(20)
    }
    check(len(ids) == 1 and "" not in ids, "server ids", sorted(ids))


CASES: dict[str, Callable[[Client], Awaitable[None]]] = {
    case.__name__: case
    for case in (
        empty_unary,
        cacheable_unary,
        large_unary,
        client_compressed_unary,
        client_compressed_unary_noprobe,
        server_compressed_unary,
        client_streaming,
        client_compressed_streaming,
        client_compressed_streaming_noprobe,
        server_streaming,
        server_compressed_streaming,
        ping_pong,
        empty_stream,
        custom_metadata,
        status_code_and_message,
        special_status_message,
        unimplemented_method,
        unimplemented_service,
        cancel_after_begin,
        cancel_after_first_response,
        timeout_on_sleeping_server,
        concurrent_large_unary,
        rpc_soak,
        channel_soak,
        pick_first_unary,
    )
}
