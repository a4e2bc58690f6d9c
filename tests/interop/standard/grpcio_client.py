"""A client of the standard interoperability tests on grpcio, in both its flavours; one of our peers.

``python -m tests.interop.standard.grpcio_client --flavour=aio --server_port=8080 --test_case=large_unary``

The cases are written once, as coroutines over `Caller`: the asyncio flavour awaits its calls, the other one blocks in
them, which in a program that runs one case does no harm.
"""

# ruff: noqa: T201 -- a command line
from __future__ import annotations

import argparse
import asyncio
import queue
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from tests.interop.standard import messages_pb2 as pb
from tests.interop.standard.empty_pb2 import Empty
from tests.interop.standard.grpcio_server import METHODS, SERVICE
from tests.interop.standard.options import boolean

#: No call waits longer, should the server never answer.
PATIENCE = 30
UPLOADS = (27182, 8, 1828, 45904)
DOWNLOADS = (31415, 9, 2653, 58979)
GZIP = grpc.Compression.Gzip


class CaseFailed(AssertionError):
    """A case did not go as it must."""


def check(condition: object, *what: object) -> None:
    if not condition:
        raise CaseFailed(" ".join(str(one) for one in what))


def bind(channel: Any, name: str, service: str = SERVICE) -> Any:
    request_type, response_type, kind = METHODS.get(name, (Empty, Empty, "unary_unary"))
    return getattr(channel, kind)(
        f"/{service}/{name}",
        request_serializer=request_type.SerializeToString,
        response_deserializer=response_type.FromString,
    )


class Duplex:
    """One FullDuplexCall, whichever the flavour."""

    def __init__(self, aio: bool, method: Any, **options: Any) -> None:
        self._aio = aio
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.call = method(**options) if aio else method(iter(self._requests.get, None), **options)

    async def send(self, request: Any) -> None:
        if self._aio:
            await self.call.write(request)
        else:
            self._requests.put(request)

    async def done_sending(self) -> None:
        if self._aio:
            await self.call.done_writing()
        else:
            self._requests.put(None)

    async def receive(self) -> Any:
        """The next response, None after the last one."""
        if self._aio:
            response = await self.call.read()
            if response is grpc.aio.EOF:
                code = await self.call.code()
                if code is not grpc.StatusCode.OK:
                    raise grpc.aio.AioRpcError(code, None, None, details=await self.call.details())
                return None
            return response
        return next(self.call, None)

    async def code(self) -> grpc.StatusCode:
        return await self.call.code() if self._aio else self.call.code()

    async def metadata(self) -> tuple[dict[str, Any], dict[str, Any]]:
        initial, trailing = self.call.initial_metadata(), self.call.trailing_metadata()
        if self._aio:
            initial, trailing = await initial, await trailing
        return dict(initial), dict(trailing)


class Caller:
    """Calls methods in one flavour."""

    def __init__(self, aio: bool, target: str, credentials: grpc.ChannelCredentials | None, override: str) -> None:
        self.aio = aio
        self._target = target
        self._credentials = credentials
        self._options = [("grpc.ssl_target_name_override", override)] if override else []
        self.channel = self.open_channel()

    def open_channel(self) -> Any:
        module: Any = grpc.aio if self.aio else grpc
        if self._credentials is None:
            return module.insecure_channel(self._target, self._options)
        return module.secure_channel(self._target, self._credentials, self._options)

    async def unary(self, request: Any, name: str = "UnaryCall", *, service: str = SERVICE, **options: Any) -> Any:
        call = bind(self.channel, name, service)(request, timeout=PATIENCE, **options)
        return await call if self.aio else call

    async def unary_with_metadata(self, request: Any, metadata: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        method = bind(self.channel, "UnaryCall")
        if self.aio:
            call = method(request, metadata=metadata, timeout=PATIENCE)
            return await call, dict(await call.initial_metadata()), dict(await call.trailing_metadata())
        reply, call = method.with_call(request, metadata=metadata, timeout=PATIENCE)
        return reply, dict(call.initial_metadata()), dict(call.trailing_metadata())

    async def upload(self, requests: list[Any], **options: Any) -> Any:
        call = bind(self.channel, "StreamingInputCall")(iter(requests), timeout=PATIENCE, **options)
        return await call if self.aio else call

    async def download(self, request: Any) -> list[Any]:
        call = bind(self.channel, "StreamingOutputCall")(request, timeout=PATIENCE)
        return [response async for response in call] if self.aio else list(call)

    def duplex(self, timeout: float = PATIENCE, **options: Any) -> Duplex:
        return Duplex(self.aio, bind(self.channel, "FullDuplexCall"), timeout=timeout, **options)

    async def close(self) -> None:
        if self.aio:
            await self.channel.close()
        else:
            self.channel.close()


async def fails(code: grpc.StatusCode, call: Any, message: str | None = None) -> None:
    """The call must end with this status."""
    try:
        await call
    except grpc.RpcError as error:
        check(error.code() is code, "status", error.code(), error.details())
        check(message is None or error.details() == message, "status message", repr(error.details()))
    else:
        raise CaseFailed(f"ended with OK instead of {code}")


def large_request(**fields: Any) -> pb.SimpleRequest:
    return pb.SimpleRequest(response_size=314159, payload=pb.Payload(body=bytes(271828)), **fields)


def check_large(response: pb.SimpleResponse) -> None:
    check(response.payload.body == bytes(314159), "payload of", len(response.payload.body), "bytes")


def output_request(*sizes: int, upload: int = 0) -> pb.StreamingOutputCallRequest:
    return pb.StreamingOutputCallRequest(
        response_parameters=[pb.ResponseParameters(size=size) for size in sizes], payload=pb.Payload(body=bytes(upload))
    )


async def empty_unary(caller: Caller) -> None:
    check(await caller.unary(Empty(), "EmptyCall") == Empty())


async def large_unary(caller: Caller) -> None:
    check_large(await caller.unary(large_request()))


async def client_compressed_unary(caller: Caller) -> None:
    expecting = large_request(expect_compressed=pb.BoolValue(value=True))
    await fails(grpc.StatusCode.INVALID_ARGUMENT, caller.unary(expecting))
    check_large(await caller.unary(expecting, compression=GZIP))
    check_large(await caller.unary(large_request(expect_compressed=pb.BoolValue(value=False))))


async def server_compressed_unary(caller: Caller) -> None:
    for compressed in (True, False):
        check_large(await caller.unary(large_request(response_compressed=pb.BoolValue(value=compressed))))


async def client_streaming(caller: Caller) -> None:
    requests = [pb.StreamingInputCallRequest(payload=pb.Payload(body=bytes(size))) for size in UPLOADS]
    check((await caller.upload(requests)).aggregated_payload_size == sum(UPLOADS), "aggregated size")


async def client_compressed_streaming(caller: Caller) -> None:
    requests = [
        pb.StreamingInputCallRequest(payload=pb.Payload(body=bytes(size)), expect_compressed=pb.BoolValue(value=True))
        for size in (27182, 45904)
    ]
    await fails(grpc.StatusCode.INVALID_ARGUMENT, caller.upload(requests[:1]))
    # The standard's second message is uncompressed; grpcio's clients have no switch for single messages.
    check((await caller.upload(requests, compression=GZIP)).aggregated_payload_size == 73086, "aggregated size")


async def server_streaming(caller: Caller) -> None:
    responses = await caller.download(output_request(*DOWNLOADS))
    check(tuple(len(response.payload.body) for response in responses) == DOWNLOADS, "sizes")


async def server_compressed_streaming(caller: Caller) -> None:
    parameters = [
        pb.ResponseParameters(size=31415, compressed=pb.BoolValue(value=True)),
        pb.ResponseParameters(size=92653, compressed=pb.BoolValue(value=False)),
    ]
    responses = await caller.download(pb.StreamingOutputCallRequest(response_parameters=parameters))
    check([len(response.payload.body) for response in responses] == [31415, 92653], "sizes")


async def ping_pong(caller: Caller) -> None:
    call = caller.duplex()
    for upload, download in zip(UPLOADS, DOWNLOADS, strict=True):
        await call.send(output_request(download, upload=upload))
        response = await call.receive()
        check(response is not None and len(response.payload.body) == download, "size")
    await call.done_sending()
    check(await call.receive() is None, "one response too many")


async def empty_stream(caller: Caller) -> None:
    call = caller.duplex()
    await call.done_sending()
    check(await call.receive() is None, "a response came")


async def custom_metadata(caller: Caller) -> None:
    initial, trailing = "test_initial_metadata_value", b"\xab\xab\xab"
    metadata = (("x-grpc-test-echo-initial", initial), ("x-grpc-test-echo-trailing-bin", trailing))
    response, *unary = await caller.unary_with_metadata(large_request(), metadata)
    check_large(response)
    call = caller.duplex(metadata=metadata)
    await call.send(output_request(314159, upload=271828))
    response = await call.receive()
    check(len(response.payload.body) == 314159, "size")
    await call.done_sending()
    check(await call.receive() is None, "one response too many")
    for got_initial, got_trailing in (unary, await call.metadata()):
        check(got_initial.get("x-grpc-test-echo-initial") == initial, "initial metadata", got_initial)
        check(got_trailing.get("x-grpc-test-echo-trailing-bin") == trailing, "trailing metadata", got_trailing)


async def status_code_and_message(caller: Caller) -> None:
    status = pb.EchoStatus(code=2, message="test status message")
    await fails(grpc.StatusCode.UNKNOWN, caller.unary(pb.SimpleRequest(response_status=status)), status.message)
    call = caller.duplex()
    await call.send(pb.StreamingOutputCallRequest(response_status=status))
    await call.done_sending()
    await fails(grpc.StatusCode.UNKNOWN, call.receive(), status.message)


async def special_status_message(caller: Caller) -> None:
    message = "\t\ntest with whitespace\r\nand Unicode BMP \u263a and non-BMP \U0001f608\t\n"
    request = pb.SimpleRequest(response_status=pb.EchoStatus(code=2, message=message))
    await fails(grpc.StatusCode.UNKNOWN, caller.unary(request), message)


async def unimplemented_method(caller: Caller) -> None:
    await fails(grpc.StatusCode.UNIMPLEMENTED, caller.unary(Empty(), "UnimplementedCall"))


async def unimplemented_service(caller: Caller) -> None:
    call = caller.unary(Empty(), "UnimplementedCall", service="grpc.testing.UnimplementedService")
    await fails(grpc.StatusCode.UNIMPLEMENTED, call)


async def cancel_after_begin(caller: Caller) -> None:
    method = bind(caller.channel, "StreamingInputCall")
    if caller.aio:
        call = method(timeout=PATIENCE)
        call.cancel()
        check(await call.code() is grpc.StatusCode.CANCELLED, "status")
    else:

        def never() -> Iterator[Any]:
            time.sleep(0.2)
            yield from ()

        call = method.future(never(), timeout=PATIENCE)
        call.cancel()
        check(call.code() is grpc.StatusCode.CANCELLED, "status")
    await empty_unary(caller)


async def cancel_after_first_response(caller: Caller) -> None:
    call = caller.duplex()
    await call.send(output_request(31415, upload=27182))
    check(len((await call.receive()).payload.body) == 31415, "size")
    call.call.cancel()
    check(await call.code() is grpc.StatusCode.CANCELLED, "status")
    if not caller.aio:
        # Its thread waits for requests.
        await call.done_sending()
    await empty_unary(caller)


async def timeout_on_sleeping_server(caller: Caller) -> None:
    call = caller.duplex(timeout=0.001)

    async def run() -> None:
        try:
            await call.send(pb.StreamingOutputCallRequest(payload=pb.Payload(body=bytes(27182))))
        except asyncio.InvalidStateError:
            # Over already.
            pass
        await call.receive()

    await fails(grpc.StatusCode.DEADLINE_EXCEEDED, run())


async def concurrent_large_unary(caller: Caller) -> None:
    if caller.aio:
        await asyncio.gather(*[large_unary(caller) for _ in range(100)])
    else:
        method = bind(caller.channel, "UnaryCall")
        for future in [method.future(large_request(), timeout=PATIENCE) for _ in range(100)]:
            check_large(future.result())


async def rpc_soak(caller: Caller) -> None:
    for _ in range(10):
        await large_unary(caller)


async def channel_soak(caller: Caller) -> None:
    for _ in range(10):
        await large_unary(caller)
        await caller.close()
        caller.channel = caller.open_channel()


async def pick_first_unary(caller: Caller) -> None:
    request = pb.SimpleRequest(response_size=1, fill_server_id=True)
    ids = {(await caller.unary(request)).server_id for _ in range(20)}
    check(len(ids) == 1 and "" not in ids, "server ids", sorted(ids))


CASES = {
    case.__name__: case
    for case in (
        empty_unary,
        large_unary,
        client_compressed_unary,
        server_compressed_unary,
        client_streaming,
        client_compressed_streaming,
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


async def main(options: argparse.Namespace) -> None:
    credentials = None
    if options.use_tls:
        root = Path(options.ca_file).read_bytes()  # noqa: ASYNC240 -- before the first call
        credentials = grpc.ssl_channel_credentials(root)
    target = f"{options.server_host}:{options.server_port}"
    caller = Caller(options.flavour == "aio", target, credentials, options.server_host_override)
    try:
        await CASES[options.test_case](caller)
    finally:
        await caller.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--flavour", choices=("sync", "aio"), required=True)
    parser.add_argument("--server_host", default="localhost")
    parser.add_argument("--server_port", type=int, required=True)
    parser.add_argument("--server_host_override", default="")
    parser.add_argument("--test_case", choices=tuple(CASES), required=True)
    parser.add_argument("--use_tls", type=boolean, nargs="?", const=True, default=False)
    parser.add_argument("--ca_file")
    arguments = parser.parse_args()
    try:
        asyncio.run(main(arguments))
    except Exception as error:
        print(f"{arguments.test_case}: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
