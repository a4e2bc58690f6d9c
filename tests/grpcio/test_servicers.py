"""Servicers written for grpc.aio, on a server of ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import ModuleType
from typing import Any

import grpc
import grpc.aio
import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

from tests.echo_service import Echo
from tests.support.streams import use_streams
from trio_grpc import Compression, Proceed, RpcError, ServicerContext, StatusCode, serve
from trio_grpc.grpcio import GrpcioContext, GrpcioServicers
from trio_grpc.testing import ChannelPair, MemoryListener, open_channel_pair

Clock = trio.testing.MockClock
Opener = Callable[..., ChannelPair]


class AioEcho:
    """The echo service as it is written for grpc.aio."""

    async def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
        return EchoReply(text=request.text)

    async def ServerStream(self, request: EchoRequest, context: Any) -> AsyncIterator[EchoReply]:
        for number in range(request.count):
            yield EchoReply(count=number)

    async def ClientStream(self, requests: AsyncIterator[EchoRequest], context: Any) -> EchoReply:
        payloads = [request.payload async for request in requests]
        return EchoReply(payload=b"".join(payloads), count=len(payloads))

    async def Bidi(self, requests: AsyncIterator[EchoRequest], context: Any) -> AsyncIterator[EchoReply]:
        async for request in requests:
            yield EchoReply(text=request.text)


@pytest.fixture
def opened(grpcio_echo: ModuleType) -> Opener:
    def open_pair(servicer: Any, **options: Any) -> Any:
        servicers = GrpcioServicers()
        grpcio_echo.add_EchoServicer_to_server(servicer, servicers)
        return open_channel_pair(servicers, **options)

    return open_pair


async def test_all_kinds_of_calls(autojump_clock: Clock, opened: Opener) -> None:
    async with opened(AioEcho()) as (channel, _):
        echo = EchoStub(channel)
        assert await echo.Unary(EchoRequest(text="x")) == EchoReply(text="x")
        await use_streams(echo)


async def test_both_ends_generated_by_grpcio(autojump_clock: Clock, opened: Opener, grpcio_echo: ModuleType) -> None:
    async with opened(AioEcho()) as (channel, _):
        stub = grpcio_echo.EchoStub(channel)
        assert (await stub.Unary(EchoRequest(text="x"))).text == "x"


async def test_streams_by_read_and_write(autojump_clock: Clock, opened: Opener) -> None:
    class Writing(AioEcho):
        async def ServerStream(self, request: EchoRequest, context: Any) -> None:  # type: ignore[override]
            for number in range(request.count):
                await context.write(EchoReply(count=number))

        async def ClientStream(self, requests: Any, context: Any) -> EchoReply:
            count = 0
            while await context.read() is not grpc.aio.EOF:
                count += 1
            return EchoReply(count=count)

        async def Bidi(self, requests: Any, context: Any) -> None:  # type: ignore[override]
            while (request := await context.read()) is not grpc.aio.EOF:
                await context.write(EchoReply(text=request.text))

    async with opened(Writing()) as (channel, _):
        echo = EchoStub(channel)
        async with echo.ServerStream(EchoRequest(count=2)) as stream:
            assert [reply.count async for reply in stream] == [0, 1]
        assert (await echo.ClientStream([EchoRequest()] * 3)).count == 3
        async with echo.Bidi() as call:
            await call.send(EchoRequest(text="x"))
            assert (await call.receive()).text == "x"
            await call.done_sending()
            with pytest.raises(trio.EndOfChannel):
                await call.receive()


async def test_read_and_write_where_there_is_no_stream(autojump_clock: Clock, opened: Opener) -> None:
    class Wrong(AioEcho):
        async def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
            with pytest.raises(grpc.aio.UsageError, match="stream of requests"):
                await context.read()
            with pytest.raises(grpc.aio.UsageError, match="stream of responses"):
                await context.write(EchoReply())
            return EchoReply(text="both")

    async with opened(Wrong()) as (channel, _):
        assert (await EchoStub(channel).Unary(EchoRequest())).text == "both"


async def _fail(kind: str, echo: EchoStub) -> RpcError:
    async def call() -> None:
        if kind == "unary":
            await echo.Unary(EchoRequest())
        else:
            async with echo.ServerStream(EchoRequest()) as stream:
                [reply async for reply in stream]

    with pytest.raises(RpcError) as info:
        await call()
    return info.value


def failing(act: Callable[[Any], Any]) -> Any:
    """A servicer whose handlers do something with their context."""

    class Failing(AioEcho):
        async def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
            await act(context)
            return EchoReply()

        async def ServerStream(self, request: EchoRequest, context: Any) -> AsyncIterator[EchoReply]:
            await act(context)
            yield EchoReply()

    return Failing()


@pytest.mark.parametrize("kind", ["unary", "stream"])
class TestStatus:
    async def test_abort(self, kind: str, autojump_clock: Clock, opened: Opener) -> None:
        async def act(context: Any) -> None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing", (("key", "value"), ("key-bin", b"\x00")))

        async with opened(failing(act)) as (channel, _):
            error = await _fail(kind, EchoStub(channel))
        assert (error.code, error.message) == (StatusCode.NOT_FOUND, "no such thing")
        assert list(error.trailing_metadata) == [("key", "value"), ("key-bin", b"\x00")]

    async def test_an_abort_stands_when_its_exception_is_caught(
        self, kind: str, autojump_clock: Clock, opened: Opener
    ) -> None:
        async def act(context: Any) -> None:
            with pytest.raises(grpc.aio.AbortError):
                await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")

        async with opened(failing(act)) as (channel, _):
            assert (await _fail(kind, EchoStub(channel))).code is StatusCode.NOT_FOUND

    async def test_an_abort_keeps_trailing_metadata_that_were_set_before(
        self, kind: str, autojump_clock: Clock, opened: Opener
    ) -> None:
        async def act(context: Any) -> None:
            context.set_trailing_metadata((("key", "value"),))
            await context.abort(grpc.StatusCode.NOT_FOUND)

        async with opened(failing(act)) as (channel, _):
            assert list((await _fail(kind, EchoStub(channel))).trailing_metadata) == [("key", "value")]

    async def test_abort_with_a_status_that_has_details(self, kind: str, autojump_clock: Clock, opened: Opener) -> None:
        from trio_grpc._codec import encode_status_details

        detail = EchoRequest(text="more")

        class Status:
            code = grpc.StatusCode.FAILED_PRECONDITION
            details = "not now"
            trailing_metadata = (
                ("grpc-status-details-bin", encode_status_details(9, "not now", [detail])),
                ("key", "value"),
            )

        async def act(context: Any) -> None:
            await context.abort_with_status(Status())

        async with opened(failing(act)) as (channel, _):
            error = await _fail(kind, EchoStub(channel))
        assert (error.code, error.message) == (StatusCode.FAILED_PRECONDITION, "not now")
        assert error.details == (detail,)
        assert list(error.trailing_metadata) == [("key", "value")]

    @pytest.mark.parametrize("code", [grpc.StatusCode.RESOURCE_EXHAUSTED, 8])
    async def test_set_code(self, kind: str, code: Any, autojump_clock: Clock, opened: Opener) -> None:
        async def act(context: Any) -> None:
            assert (context.code(), context.details()) == (grpc.StatusCode.OK, "")
            context.set_code(code)
            context.set_details("too much")
            assert (context.code(), context.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too much")

        async with opened(failing(act)) as (channel, _):
            error = await _fail(kind, EchoStub(channel))
        assert (error.code, error.message) == (StatusCode.RESOURCE_EXHAUSTED, "too much")

    async def test_a_code_that_is_none(self, kind: str, autojump_clock: Clock, opened: Opener) -> None:
        async def act(context: Any) -> None:
            with pytest.raises(ValueError, match=r"code must be a grpc.StatusCode or one's number, got 99"):
                context.set_code(99)
            with pytest.raises(ValueError, match="OK"):
                await context.abort(grpc.StatusCode.OK, "fine")
            await context.abort(grpc.StatusCode.DATA_LOSS)

        async with opened(failing(act)) as (channel, _):
            assert (await _fail(kind, EchoStub(channel))).code is StatusCode.DATA_LOSS

    async def test_an_exception_is_unknown(
        self, kind: str, autojump_clock: Clock, opened: Opener, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def act(context: Any) -> None:
            raise KeyError("secret")

        async with opened(failing(act)) as (channel, _):
            error = await _fail(kind, EchoStub(channel))
        assert (error.code, error.message) == (StatusCode.UNKNOWN, "exception in the handler")
        assert "KeyError" in caplog.text
        caplog.clear()

    @pytest.mark.parametrize(("details", "message"), [("not here", "not here"), ("", "exception in the handler")])
    async def test_an_exception_has_the_code_that_was_set_before(
        self,
        kind: str,
        details: str,
        message: str,
        autojump_clock: Clock,
        opened: Opener,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        async def act(context: Any) -> None:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            context.set_details(details)
            context.set_trailing_metadata((("key", "value"),))
            raise KeyError("secret")

        async with opened(failing(act)) as (channel, _):
            error = await _fail(kind, EchoStub(channel))
        assert (error.code, error.message) == (StatusCode.NOT_FOUND, message)
        assert list(error.trailing_metadata) == [("key", "value")]
        assert [record.exc_info is not None for record in caplog.records] == [True]
        caplog.clear()

    @pytest.mark.parametrize("how", ["abort", "raise"])
    async def test_a_status_that_is_raised_goes_before_a_code_that_was_set(
        self, kind: str, how: str, autojump_clock: Clock, opened: Opener
    ) -> None:
        async def act(context: Any) -> None:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            if how == "abort":
                await context.abort(grpc.StatusCode.DATA_LOSS, "lost")
            raise RpcError(StatusCode.DATA_LOSS, "lost")

        async with opened(failing(act)) as (channel, _):
            error = await _fail(kind, EchoStub(channel))
        assert (error.code, error.message) == (StatusCode.DATA_LOSS, "lost")

    @pytest.mark.parametrize(("details", "message"), [(None, ""), (b"n\xc3\xa4h", "näh")])
    async def test_details_that_are_no_str(
        self, kind: str, details: Any, message: str, autojump_clock: Clock, opened: Opener
    ) -> None:
        async def act(context: Any) -> None:
            with pytest.raises(TypeError, match="details must be str, not int"):
                context.set_details(5)
            await context.abort(grpc.StatusCode.DATA_LOSS, details)

        async with opened(failing(act)) as (channel, _):
            assert (await _fail(kind, EchoStub(channel))).message == message


async def test_a_done_callback_that_raises_changes_nothing(
    autojump_clock: Clock, opened: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[str] = []

    class Calling(AioEcho):
        async def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
            context.add_done_callback(lambda _: {}["missing"])
            context.add_done_callback(lambda _: called.append("second"))
            return EchoReply(text=request.text)

    async with opened(Calling()) as (channel, _):
        assert (await EchoStub(channel).Unary(EchoRequest(text="fine"))).text == "fine"
    assert called == ["second"]
    assert "exception in a callback of /echo.Echo/Unary" in caplog.text
    caplog.clear()


async def test_what_the_context_tells(autojump_clock: Clock, opened: Opener) -> None:
    seen: dict[str, Any] = {}

    class Telling(AioEcho):
        async def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
            seen.update(
                metadata=context.invocation_metadata(),
                remaining=context.time_remaining(),
                peer=context.peer(),
                identities=context.peer_identities(),
                identity_key=context.peer_identity_key(),
                auth=context.auth_context(),
                cancelled=context.cancelled(),
                done=context.done(),
                context=context,
            )
            context.add_done_callback(lambda ended: seen.update(ended=ended))
            await context.send_initial_metadata((("first", "1"),))
            context.set_trailing_metadata((("last", "2"),))
            seen["trailing"] = context.trailing_metadata()
            return EchoReply()

    async with opened(Telling()) as (channel, _):
        metadata = [("a", "b"), ("a-bin", b"\x01")]
        async with EchoStub(channel).Unary.open(EchoRequest(), metadata=metadata, timeout=8) as call:
            await call.receive()
            assert list(await call.wait_initial_metadata()) == [("first", "1")]
            assert list(call.trailing_metadata) == [("last", "2")]
    mine = [entry for entry in seen["metadata"] if entry.key.startswith("a")]
    assert mine == metadata
    assert [(entry.key, entry.value) for entry in mine] == metadata
    assert seen["remaining"] == pytest.approx(8, abs=0.1)
    assert (seen["identities"], seen["identity_key"], seen["auth"]) == (None, None, {})
    assert (seen["cancelled"], seen["done"]) == (False, False)
    assert seen["ended"] is seen["context"]
    assert seen["context"].done()
    assert seen["trailing"] == (("last", "2"),)


async def test_without_a_deadline_no_time_remains_to_be_told(autojump_clock: Clock, opened: Opener) -> None:
    seen: list[Any] = []

    async def act(context: Any) -> None:
        seen.append(context.time_remaining())

    async with opened(failing(act)) as (channel, _):
        await EchoStub(channel).Unary(EchoRequest())
    assert seen == [None]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("127.0.0.1:5", "ipv4:127.0.0.1:5"),
        ("[::1]:5", "ipv6:%5B::1%5D:5"),
        ("unix:/tmp/socket", "unix:/tmp/socket"),
        ("unix:", "unix:"),
        ("MemoryStream", "MemoryStream"),
    ],
)
def test_peers_are_written_as_grpcio_writes_them(ours: str, theirs: str) -> None:
    class Context:
        peer = ours

    assert GrpcioContext(Context()).peer() == theirs  # type: ignore[arg-type]


async def test_cancelling_the_call_cancels_the_handler(autojump_clock: Clock, opened: Opener) -> None:
    events: list[Any] = []
    started = trio.Event()
    ended = trio.Event()

    class Sleeping(AioEcho):
        async def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
            context.add_done_callback(lambda context: events.append(("done", context.cancelled())))
            started.set()
            try:
                await trio.sleep_forever()
            finally:
                events.append(("finally", context.cancelled()))
                ended.set()
            raise AssertionError

    async with opened(Sleeping()) as (channel, _), trio.open_nursery() as nursery:
        nursery.start_soon(EchoStub(channel).Unary, EchoRequest())
        await started.wait()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await ended.wait()
            await trio.testing.wait_all_tasks_blocked()
    assert events == [("finally", True), ("done", True)]


async def test_compression(autojump_clock: Clock, opened: Opener) -> None:
    class Compressing(AioEcho):
        async def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
            context.set_compression(grpc.Compression.Gzip)
            if request.text:
                context.disable_next_message_compression()
            return EchoReply(text="x" * 1000)

        async def ServerStream(self, request: EchoRequest, context: Any) -> AsyncIterator[EchoReply]:
            context.set_compression(grpc.Compression.Deflate)
            yield EchoReply(text="x" * 1000)
            context.disable_next_message_compression()
            yield EchoReply(text="x" * 1000)
            yield EchoReply(text="x" * 1000)

    compressed: list[bool] = []
    async with opened(Compressing()) as (channel, _):
        echo = EchoStub(channel)
        for text in "", "plain":
            async with echo.Unary.open(EchoRequest(text=text)) as call:
                await call.receive()
                compressed.append(call.response_compressed)
        async with echo.ServerStream(EchoRequest()) as stream:
            async for _ in stream:
                compressed.append(stream.response_compressed)  # noqa: PERF401
    assert compressed == [True, False, True, False, True]


async def test_beside_servicers_of_our_own(autojump_clock: Clock, grpcio_echo: ModuleType) -> None:
    """Ours go first where both have a method."""
    servicers = GrpcioServicers()
    other = grpc.method_handlers_generic_handler(
        "other.Echo",
        {
            "Unary": grpc.unary_unary_rpc_method_handler(
                AioEcho().Unary, EchoRequest.FromString, EchoReply.SerializeToString
            )
        },
    )
    servicers.add_generic_rpc_handlers((other,))
    async with open_channel_pair(Echo(), servicers) as (channel, _):
        assert (await EchoStub(channel).Unary(EchoRequest(count=7))).count == 7
        theirs = channel.unary_unary("/other.Echo/Unary", EchoRequest.SerializeToString, EchoReply.FromString)
        for _ in range(2):
            assert (await theirs(EchoRequest(text="x"))).text == "x"
        for path in "/other.Echo/Other", "/another.Echo/Unary":
            with pytest.raises(RpcError, match=f"method {path} is not implemented here") as info:
                await channel.unary_unary(path)(b"")
            assert info.value.code is StatusCode.UNIMPLEMENTED


async def test_server_interceptors_go_around(autojump_clock: Clock, opened: Opener) -> None:
    seen: list[Any] = []

    async def note(context: ServicerContext[Any], proceed: Proceed) -> None:
        context.map_responses(lambda reply: (seen.append(reply), reply)[1])
        await proceed()
        seen.append((context.method.path, context.status))

    async with opened(AioEcho(), server_interceptors=[note], server_compression=Compression.GZIP) as (channel, _):
        await EchoStub(channel).Unary(EchoRequest(text="x"))
    assert seen == [EchoReply(text="x"), ("/echo.Echo/Unary", StatusCode.OK)]


async def test_a_partial_and_an_object_can_be_handlers(autojump_clock: Clock) -> None:
    class Reply:
        async def __call__(self, request: bytes, context: Any) -> bytes:
            return request + b"!"

    async def reply(more: bytes, request: bytes, context: Any) -> bytes:
        return request + more

    servicers = GrpcioServicers()
    handlers = {
        "Object": grpc.unary_unary_rpc_method_handler(Reply()),
        "Partial": grpc.unary_unary_rpc_method_handler(partial(reply, b"?")),
    }
    servicers.add_registered_method_handlers("a.B", handlers)
    async with open_channel_pair(servicers) as (channel, _):
        assert await channel.unary_unary("/a.B/Object")(b"x") == b"x!"
        assert await channel.unary_unary("/a.B/Partial")(b"x") == b"x?"


def test_the_same_service_twice(grpcio_echo: ModuleType) -> None:
    servicers = GrpcioServicers()
    handlers = {"Unary": grpc.unary_unary_rpc_method_handler(AioEcho().Unary)}
    servicers.add_registered_method_handlers("echo.Echo", handlers)
    with pytest.raises(ValueError, match=r"/echo.Echo/Unary is implemented by more than one servicer"):
        servicers.add_registered_method_handlers("echo.Echo", handlers)


async def test_a_method_of_ours_and_of_theirs_is_refused(autojump_clock: Clock) -> None:
    servicers = GrpcioServicers()
    servicers.add_registered_method_handlers(
        "echo.Echo", {"Unary": grpc.unary_unary_rpc_method_handler(AioEcho().Unary)}
    )
    with pytest.raises(ValueError, match=r"/echo.Echo/Unary is implemented by more than one servicer"):
        await serve([Echo(), servicers], MemoryListener())


def test_what_is_no_handler() -> None:
    with pytest.raises(TypeError, match=r"must be grpc.GenericRpcHandler objects, got 5"):
        GrpcioServicers().add_generic_rpc_handlers((5,))
    with pytest.raises(TypeError, match="max_workers must be int or None, not str"):
        GrpcioServicers(max_workers="many")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_workers must be 1 or more, got 0"):
        GrpcioServicers(max_workers=0)


def test_without_grpcio_the_error_says_what_to_do() -> None:
    program = """
import sys
sys.modules["grpc"] = None
import trio_grpc
trio_grpc.GenericServicer
try:
    import trio_grpc.grpcio
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "trio_grpc.grpcio needs grpcio: pip install grpcio\n"
