"""Metadata on its way: to the handler, back before the first reply, and back with the status."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.behaviour.scripted import UNARY, ScriptedServer, expect_reply, expect_status
from tests.support.echo import Context, Echo, Requests
from trio_grpc import Limits, Metadata, RpcError, StatusCode
from trio_grpc.testing import HeadersFrame, open_channel_pair

Clock = trio.testing.MockClock

PAIRS: list[tuple[str, str | bytes]] = [
    ("x-text", "plain"),
    ("x-text", "again"),
    ("x-empty", ""),
    ("x-punctuation", 'a, b; c=d % "e" ~'),
    ("x-data-bin", b""),
    ("x-data-bin", b"\0"),
    ("x-data-bin", bytes(range(256))),
    ("x-one-bin", b"abcd"),
    ("authorization", "Bearer secret"),
    ("x-text", "third"),
]


def of(metadata: Metadata, *prefixes: str) -> list[tuple[str, str | bytes]]:
    """The user's own pairs, without ``user-agent``."""
    return [(key, value) for key, value in metadata if key != "user-agent"]


class Mirror(Echo):
    """Sends the metadata of each call back, twice, and remembers it."""

    def __init__(self, *, fail: bool = False) -> None:
        self.fail = fail
        super().__init__(unary=self.reply, server_stream=self.stream, client_stream=self.reply, bidi=self.stream)
        self.seen: list[Metadata] = []

    async def reply(self, _request: object, context: Context) -> EchoReply:
        self.seen.append(context.metadata)
        pairs = of(context.metadata)
        await context.send_initial_metadata(pairs)
        context.set_trailing_metadata(reversed(pairs))
        if self.fail:
            raise RpcError(StatusCode.ABORTED, "text")
        return EchoReply()

    async def stream(self, _requests: object, context: Context) -> AsyncIterator[EchoReply]:
        yield await self.reply(_requests, context)


def call_of(stub: EchoStub, kind: str, metadata: Any) -> Any:
    if kind == "unary":
        return stub.Unary.open(EchoRequest(), metadata=metadata)
    if kind == "server stream":
        return stub.ServerStream(EchoRequest(), metadata=metadata)
    if kind == "client stream":
        return stub.ClientStream.open(metadata=metadata)
    return stub.Bidi(metadata=metadata)


all_kinds = pytest.mark.parametrize("kind", ["unary", "server stream", "client stream", "bidi"])


@all_kinds
@pytest.mark.parametrize("fail", [False, True], ids=["ok", "error"])
async def test_metadata_makes_the_round_trip(kind: str, fail: bool, autojump_clock: Clock) -> None:
    mirror = Mirror(fail=fail)
    async with open_channel_pair(mirror) as (channel, _), call_of(EchoStub(channel), kind, PAIRS) as call:
        assert of(await call.wait_initial_metadata()) == PAIRS
        if fail:
            with pytest.raises(RpcError) as caught:
                await call.receive()
            assert of(caught.value.initial_metadata) == PAIRS
            assert of(caught.value.trailing_metadata) == PAIRS[::-1]
        else:
            await call.receive()
            if ("stream" in kind and "client" not in kind) or kind == "bidi":
                with pytest.raises(trio.EndOfChannel):
                    await call.receive()
        assert of(call.trailing_metadata) == PAIRS[::-1]
    (seen,) = mirror.seen
    assert of(seen) == PAIRS


@pytest.mark.parametrize(
    "metadata",
    [
        {"x-key": "value", "x-data-bin": b"\xff"},
        [("x-key", "value"), ("x-data-bin", b"\xff")],
        (("X-Key", "value"), ("X-Data-Bin", b"\xff")),
        Metadata([("x-key", "value"), ("x-data-bin", b"\xff")]),
        iter([("x-key", "value"), ("x-data-bin", b"\xff")]),
    ],
    ids=["dict", "list", "upper case", "Metadata", "iterator"],
)
async def test_metadata_is_given_in_many_ways(metadata: Any, autojump_clock: Clock) -> None:
    mirror = Mirror()
    async with open_channel_pair(mirror) as (channel, _):
        await EchoStub(channel).Unary(EchoRequest(), metadata=metadata)
    assert of(mirror.seen[0]) == [("x-key", "value"), ("x-data-bin", b"\xff")]


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ({"": "value"}, ValueError),
        ({":path": "/x"}, ValueError),
        ({"grpc-timeout": "1S"}, ValueError),
        ({"grpc-status": "0"}, ValueError),
        ({"te": "gzip"}, ValueError),
        ({"content-type": "text/html"}, ValueError),
        ({"connection": "close"}, ValueError),
        ({"x key": "value"}, ValueError),
        ({"x-key": "line\nbreak"}, ValueError),
        ({"x-key": "ümlaut"}, ValueError),
        ({"x-key": b"bytes"}, TypeError),
        ({"x-key-bin": "text"}, TypeError),
        ({"x-key": 5}, TypeError),
        ({5: "value"}, TypeError),
        ("x-key", (TypeError, ValueError)),
        (5, TypeError),
    ],
    ids=repr,
)
async def test_malformed_metadata_is_refused_before_anything_is_sent(
    metadata: Any, error: Any, autojump_clock: Clock
) -> None:
    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        with pytest.raises(error):
            await context.send_initial_metadata(metadata)
        with pytest.raises(error):
            context.set_trailing_metadata(metadata)
        return EchoReply(text="fine")

    async with open_channel_pair(Echo(unary=handler)) as (channel, server):
        stub = EchoStub(channel)
        with pytest.raises(error):
            await stub.Unary(EchoRequest(), metadata=metadata)
        for kind in ("unary", "server stream", "client stream", "bidi"):
            with pytest.raises(error):
                call_of(stub, kind, metadata)
        assert (channel.statistics().streams, channel.statistics().connections) == (0, 0)
        # The handler's mistakes did not cost it its answer.
        assert (await stub.Unary(EchoRequest())).text == "fine"
        assert server.statistics().streams == 0


async def test_no_metadata_at_all(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        stub = EchoStub(channel)
        for metadata in (None, {}, [], Metadata()):
            async with stub.Unary.open(EchoRequest(), metadata=metadata) as call:
                assert await call.wait_initial_metadata() == []
                await call.receive()
                assert call.trailing_metadata == []


# -- when it goes out


async def test_initial_metadata_goes_out_before_the_first_reply(autojump_clock: Clock) -> None:
    gate = trio.Event()

    async def handler(requests: Requests, context: Context) -> AsyncIterator[EchoReply]:
        await context.send_initial_metadata({"x-key": "value"})
        await gate.wait()
        yield EchoReply()

    async with open_channel_pair(Echo(bidi=handler)) as (channel, _), EchoStub(channel).Bidi() as call:
        assert of(await call.wait_initial_metadata()) == [("x-key", "value")]
        gate.set()
        await call.receive()
        # Asked again, it says the same.
        assert of(await call.wait_initial_metadata()) == [("x-key", "value")]


async def test_without_being_sent_it_goes_with_the_first_reply(autojump_clock: Clock) -> None:
    """Servers delay their headers, so that an early error needs none of its own."""

    async def handler(requests: Requests, context: Context) -> AsyncIterator[EchoReply]:
        await trio.sleep(5)
        yield EchoReply()

    async with open_channel_pair(Echo(bidi=handler)) as (channel, _), EchoStub(channel).Bidi() as call:
        assert await call.wait_initial_metadata() == []
        assert trio.current_time() == 5


@pytest.mark.parametrize("first", ["metadata", "reply"])
async def test_initial_metadata_is_sent_once(first: str, autojump_clock: Clock) -> None:
    async def handler(requests: Requests, context: Context) -> None:
        if first == "metadata":
            await context.send_initial_metadata({"x-key": "first"})
        else:
            await context.send(EchoReply())
        with pytest.raises(RuntimeError, match="already"):
            await context.send_initial_metadata({"x-key": "second"})

    async with open_channel_pair(Echo(bidi=handler)) as (channel, _), EchoStub(channel).Bidi() as call:
        expected = [("x-key", "first")] if first == "metadata" else []
        assert of(await call.wait_initial_metadata()) == expected
        await call.done_sending()
        while call.status is None:
            try:
                await call.receive()
            except trio.EndOfChannel:
                break
        assert call.status is StatusCode.OK


async def test_trailing_metadata_is_what_was_set_last(autojump_clock: Clock) -> None:
    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        context.set_trailing_metadata({"x-key": "first", "x-other": "gone"})
        context.set_trailing_metadata({"x-key": "second"})
        return EchoReply()

    async with open_channel_pair(Echo(unary=handler)) as (channel, _):
        stub = EchoStub(channel)
        async with stub.Unary.open(EchoRequest()) as call:
            assert call.trailing_metadata == []
            await call.receive()
            assert call.trailing_metadata == [("x-key", "second")]


async def test_an_early_error_has_its_metadata_in_one_block(autojump_clock: Clock) -> None:
    """Trailers-Only: it is all trailing."""

    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        context.set_trailing_metadata({"x-key": "value"})
        raise RpcError(StatusCode.ABORTED, "text")

    async with open_channel_pair(Echo(unary=handler)) as (channel, _):
        with pytest.raises(RpcError) as caught:
            await EchoStub(channel).Unary(EchoRequest())
        assert caught.value.trailing_metadata == [("x-key", "value")]
        assert caught.value.initial_metadata == []


async def test_a_channels_own_metadata_goes_with_every_call(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    async with ScriptedServer(metadata={"x-channel": "a", "x-data-bin": b"\0"}, user_agent="mine/1.0") as scripted:
        nursery.start_soon(lambda: scripted.stub.Unary(EchoRequest(), metadata={"x-call": "b"}))
        peer = await scripted.accept()
        headers = await peer.expect(HeadersFrame, stream_id=1)
        assert (headers["x-channel"], headers["x-call"], headers["x-data-bin"]) == ("a", "b", "AA")
        assert headers["user-agent"].startswith("mine/1.0 grpc-python-trio/")
        nursery.cancel_scope.cancel()


# -- the wire


async def test_binary_values_go_out_without_padding_and_never_joined(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    async with ScriptedServer() as scripted:
        values = [b"", b"a", b"ab", b"abc", b"abcd"]
        pairs = [("x-bin", value) for value in values]
        nursery.start_soon(lambda: scripted.stub.Unary(EchoRequest(), metadata=pairs))
        peer = await scripted.accept()
        headers = await peer.expect(HeadersFrame, stream_id=1)
        assert [value for name, value in headers.fields if name == b"x-bin"] == [
            b"",
            b"YQ",
            b"YWI",
            b"YWJj",
            b"YWJjZA",
        ]
        nursery.cancel_scope.cancel()


async def test_binary_values_come_in_padded_unpadded_and_joined(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    seen: list[Any] = []

    class Noting(Echo):
        async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
            seen.append(context.metadata.get_all("x-bin"))
            return EchoReply()

    listener = trio_grpc.testing.MemoryListener()
    await nursery.start(trio_grpc.serve, [Noting()], listener)
    async with trio_grpc.testing.ScriptedPeer.client(await listener.connect()) as peer:
        await peer.handshake()
        for stream_id, values in ((1, ["YQ=="]), (3, ["YQ"]), (5, ["YQ,Yg=="]), (7, ["YQ, Yg", "YWJj"])):
            await peer.send_request(stream_id, UNARY, [("x-bin", value) for value in values])
            await peer.send_message(stream_id, b"", end_stream=True)
            await expect_reply(peer, stream_id, EchoReply())
    assert seen == [(b"a",), (b"a",), (b"a", b"b"), (b"a", b"b", b"abc")]
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("value", ["*", "YQ=", "Y", "YQ==YQ==", "Y Q"])
async def test_bad_base64_fails_its_call_cleanly(
    value: str, autojump_clock: Clock, nursery: trio.Nursery, quiet_log: None
) -> None:
    """The fault is the peer's: a status for it, and no traceback for us."""

    class Looking(Echo):
        async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
            assert context.metadata is not None
            return EchoReply()

    listener = trio_grpc.testing.MemoryListener()
    await nursery.start(trio_grpc.serve, [Looking()], listener)
    async with trio_grpc.testing.ScriptedPeer.client(await listener.connect()) as peer:
        await peer.handshake()
        await peer.send_request(1, UNARY, [("x-bin", value)])
        await peer.send_message(1, b"", end_stream=True)
        assert "x-bin" in await expect_status(peer, 1, StatusCode.INTERNAL)
        await peer.send_request(3, UNARY, [("x-bin", "YQ")])
        await peer.send_message(3, b"", end_stream=True)
        await expect_reply(peer, 3, EchoReply())
    nursery.cancel_scope.cancel()


async def test_bad_base64_in_an_answer_does_not_hide_its_status(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    async with ScriptedServer() as scripted:
        errors: list[RpcError] = []

        async def caller() -> None:
            with pytest.raises(RpcError) as caught:
                await scripted.stub.Unary(EchoRequest())
            errors.append(caught.value)

        nursery.start_soon(caller)
        peer = await scripted.accept()
        await peer.expect(HeadersFrame, stream_id=1)
        await peer.send_response(1, [("x-bin", "*"), ("x-text", "kept"), ("x-bin", "YQ")])
        trailers = [
            ("grpc-status", "10"),
            ("grpc-message", "text"),
            ("y-bin", "YQ,*"),
            ("y-text", "kept"),
            ("z-bin", ""),
        ]
        await peer.send_headers(1, trailers, end_stream=True)
        await trio.testing.wait_all_tasks_blocked()
        (error,) = errors
        assert (error.code, error.message) == (StatusCode.ABORTED, "text")
        assert error.initial_metadata == [("x-text", "kept"), ("x-bin", b"a")]
        assert error.trailing_metadata == [("y-text", "kept"), ("z-bin", b"")]


async def test_binary_values_of_answers_come_in_padded_unpadded_and_joined(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    values = ["YQ==", "YQ", "YQ,Yg==", "YQ, Yg", "", "YWJj", "YWJjZA"]
    expected = (b"a", b"a", b"a", b"b", b"a", b"b", b"", b"abc", b"abcd")
    async with ScriptedServer() as scripted:
        seen: list[Metadata] = []

        async def caller() -> None:
            async with scripted.stub.Unary.open(EchoRequest()) as call:
                seen.append(await call.wait_initial_metadata())
                await call.receive()
                seen.append(call.trailing_metadata)

        nursery.start_soon(caller)
        peer = await scripted.accept()
        await peer.expect(HeadersFrame, stream_id=1)
        await peer.send_response(1, [("x-bin", value) for value in values])
        await peer.send_message(1, b"")
        await peer.send_headers(1, [("grpc-status", "0"), *(("y-bin", value) for value in values)], end_stream=True)
        await trio.testing.wait_all_tasks_blocked()
        assert [metadata.get_all(key) for metadata, key in zip(seen, ("x-bin", "y-bin"), strict=True)] == [expected] * 2


@pytest.mark.parametrize("size", [9_000, 15_000, 20_000, 70_000])
@pytest.mark.parametrize("where", ["request", "initial", "trailing"])
async def test_large_metadata_fails_its_call_only(size: int, where: str, autojump_clock: Clock) -> None:
    """Within the limit it arrives; beyond it the call fails with a text, and its neighbours go on."""

    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        value = "v" * request.count
        if where == "initial":
            await context.send_initial_metadata({"x-large": value})
        elif where == "trailing":
            context.set_trailing_metadata({"x-large": value})
        return EchoReply()

    async with open_channel_pair(Echo(unary=handler)) as (channel, server):
        stub = EchoStub(channel)
        async with stub.ClientStream.open() as neighbour:
            await neighbour.send(EchoRequest())
            metadata = {"x-large": "v" * size} if where == "request" else None
            fits = size < 16_000
            request = EchoRequest(count=0 if where == "request" else size)
            if fits:
                await stub.Unary(request, metadata=metadata)
            else:
                with pytest.raises(RpcError) as caught:
                    await stub.Unary(request, metadata=metadata)
                assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
                assert "max_header_list_size" in caught.value.message
            await stub.Unary(EchoRequest())
            await neighbour.send(EchoRequest())
            await neighbour.done_sending()
            assert (await neighbour.receive()).count == 2
        await trio.testing.wait_all_tasks_blocked()
        assert (channel.statistics().streams, server.statistics().streams) == (0, 0)
        assert server.statistics().connections == 1


async def test_a_long_error_text_arrives_shortened_rather_than_not_at_all(autojump_clock: Clock) -> None:
    """The sender knows the peer's limit: the status matters more than the last word of its text."""

    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        raise RpcError(StatusCode.ABORTED, "why? " * 20_000)

    async with open_channel_pair(Echo(unary=handler)) as (channel, _):
        with pytest.raises(RpcError) as caught:
            await EchoStub(channel).Unary(EchoRequest())
        assert caught.value.code is StatusCode.ABORTED
        assert caught.value.message.startswith("why? why? ")


async def test_limits_of_metadata_are_an_option(autojump_clock: Clock) -> None:
    mirror = Mirror()
    limits = Limits(max_header_list_size=100_000, adaptive_window=False)
    async with open_channel_pair(mirror, limits=limits) as (channel, _):
        pairs = [("x-large", "v" * 50_000)]
        async with EchoStub(channel).Unary.open(EchoRequest(), metadata=pairs) as call:
            assert of(await call.wait_initial_metadata()) == pairs
            await call.receive()
            assert call.trailing_metadata == pairs
