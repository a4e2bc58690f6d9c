"""Call objects: what they tell, and what the end of a stream means for their user."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoRequest
from echo_trio_grpc import EchoStub

from tests.behaviour.scripted import ScriptedServer
from tests.support.echo import Context, Echo, Requests, sleep_forever
from trio_grpc import Compression, Limits, Metadata, RpcError, StatusCode
from trio_grpc._attempt import call_error, outcome_error
from trio_grpc._options import check_timeout
from trio_grpc._transport.headers import ResponseHeaders, parse_response
from trio_grpc._transport.stream import Outcome
from trio_grpc.testing import HeadersFrame, open_channel_pair

Clock = trio.testing.MockClock


class FakeStream:
    """As much of a stream as an error needs."""

    peer = "10.0.0.1:443"

    def __init__(self, *, stream_id: int = 1, head: list[tuple[bytes, bytes]] | None = None) -> None:
        self.stream_id = stream_id
        self.head_record: ResponseHeaders | None = None
        if head is not None:
            record = parse_response([(b":status", b"200"), (b"content-type", b"application/grpc"), *head])
            assert isinstance(record, ResponseHeaders)
            self.head_record = record


def error_of(outcome: Outcome, stream: Any = None, deadline: float = math.inf) -> BaseException:
    return outcome_error(outcome, stream or FakeStream(), deadline)


# -- outcomes


def test_an_outcome_becomes_an_error_with_all_that_came() -> None:
    cause = OSError("lost")
    outcome = Outcome(StatusCode.ABORTED, "text", fields=((b"x-end", b"2"),), cause=cause)
    error = error_of(outcome, FakeStream(head=[(b"x-start", b"1")]))
    assert isinstance(error, RpcError)
    assert (error.code, error.message, error.received) == (StatusCode.ABORTED, "text", True)
    assert error.initial_metadata == [("x-start", "1")]
    assert error.trailing_metadata == [("x-end", "2")]
    assert error.__cause__ is cause


def test_each_error_is_a_new_object() -> None:
    outcome = Outcome(StatusCode.ABORTED, "text")
    assert error_of(outcome) is not error_of(outcome)


def test_trailers_only_have_no_initial_metadata() -> None:
    stream = FakeStream(head=[(b"grpc-status", b"10"), (b"x-key", b"1")])
    error = error_of(Outcome(StatusCode.ABORTED, fields=((b"x-key", b"1"),)), stream)
    assert isinstance(error, RpcError)
    assert error.initial_metadata == []
    assert error.trailing_metadata == [("x-key", "1")]


def test_a_call_closed_on_this_side_is_no_rpc_error() -> None:
    error = error_of(Outcome(StatusCode.CANCELLED, "call closed", closed_locally=True))
    assert type(error) is trio.ClosedResourceError


async def test_a_late_cancelled_of_the_server_is_the_deadline(autojump_clock: Clock) -> None:
    """The server's timer was a little faster than ours."""
    outcome = Outcome(StatusCode.CANCELLED, "stream reset by peer with CANCEL")
    await trio.sleep(5)
    for deadline, code in ((5, StatusCode.DEADLINE_EXCEEDED), (5.1, StatusCode.CANCELLED)):
        error = error_of(outcome, deadline=deadline)
        assert isinstance(error, RpcError)
        assert error.code is code


def test_unreadable_details_are_no_details() -> None:
    error = error_of(Outcome(StatusCode.ABORTED, details=b"\xff\xff"))
    assert isinstance(error, RpcError)
    assert error.details == ()


def test_errors_of_calls_are_marked_as_received() -> None:
    error = call_error(StatusCode.INTERNAL, "text")
    assert (error.code, error.message, error.received) == (StatusCode.INTERNAL, "text", True)
    assert not RpcError(StatusCode.INTERNAL).received


# -- arguments


@pytest.mark.parametrize("timeout", [0, -1, 5, 1e300, math.inf, -math.inf])
def test_timeouts(timeout: float) -> None:
    assert check_timeout(timeout) == timeout


def test_a_timeout_is_a_number() -> None:
    with pytest.raises(ValueError, match="NaN"):
        check_timeout(math.nan)


# -- what a call tells


async def test_what_a_call_tells_before_during_and_after(autojump_clock: Clock) -> None:
    async def handler(requests: Requests, context: Context) -> None:
        await requests.receive()
        context.set_trailing_metadata({"x-key": "value"})
        raise RpcError(StatusCode.ABORTED, "text")

    async with open_channel_pair(Echo(bidi=handler)) as (channel, _):
        call = EchoStub(channel).Bidi()
        assert repr(call) == "<StreamStreamCall /echo.Echo/Bidi open>"
        assert (call.status, call.peer, call.trailing_metadata) == (None, "", Metadata())
        async with call as entered:
            assert entered is call
            assert call.status is None
            assert call.peer
            await call.send(EchoRequest())
            with pytest.raises(RpcError):
                await call.receive()
            assert repr(call) == "<StreamStreamCall /echo.Echo/Bidi ABORTED>"
        assert call.status is StatusCode.ABORTED
        assert call.trailing_metadata == [("x-key", "value")]


async def test_a_call_left_early_is_cancelled(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        async with EchoStub(channel).Bidi() as call:
            pass
        assert call.status is StatusCode.CANCELLED


async def test_a_reply_is_kept_for_whoever_asks_again(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        stub = EchoStub(channel)
        async with stub.Unary.open(EchoRequest(text="a")) as unary:
            first = await unary.receive()
            assert await unary.receive() is first
        async with stub.ClientStream.open() as upload:
            await upload.done_sending()
            assert await upload.receive() is await upload.receive()


async def test_initial_metadata_of_a_call_that_ends_without_any(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo(unary=sleep_forever)) as (channel, _):
        stub = EchoStub(channel)
        async with stub.Unary.open(EchoRequest(), timeout=1) as call:
            with pytest.raises(RpcError) as caught:
                await call.wait_initial_metadata()
            assert caught.value.code is StatusCode.DEADLINE_EXCEEDED


async def test_a_callback_for_the_end_is_called_once_also_if_it_comes_late(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo()) as (channel, _), EchoStub(channel).ServerStream(EchoRequest()) as call:
        calls: list[str] = []
        call._call_when_ended(lambda: calls.append("first"))
        await trio.testing.wait_all_tasks_blocked()
        assert calls == ["first"]
        call._call_when_ended(lambda: calls.append("late"))
        call._call_when_ended(None)
        assert calls == ["first", "late"]


# -- replies that are none


@pytest.mark.parametrize("kind", ["unary", "unary block", "client stream"])
@pytest.mark.parametrize("count", [0, 2, 3])
async def test_a_method_with_one_reply_has_one_reply(
    kind: str, count: int, autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    async with ScriptedServer() as scripted:
        errors: list[RpcError] = []

        async def call() -> None:
            if kind == "unary":
                await scripted.stub.Unary(EchoRequest())
            elif kind == "unary block":
                async with scripted.stub.Unary.open(EchoRequest()) as opened:
                    await opened.receive()
            else:
                await scripted.stub.ClientStream([])

        async def caller() -> None:
            with pytest.raises(RpcError) as caught:
                await call()
            errors.append(caught.value)

        nursery.start_soon(caller)
        peer = await scripted.accept()
        await peer.expect(HeadersFrame, stream_id=1)
        await peer.send_response(1)
        for _ in range(count):
            await peer.send_message(1, b"")
        await peer.send_trailers(1)
        await trio.testing.wait_all_tasks_blocked()
        (error,) = errors
        assert error.code in {StatusCode.INTERNAL, StatusCode.UNIMPLEMENTED}
        assert error.message
        scripted.assert_nothing_left()


@pytest.mark.parametrize("kind", ["unary", "stream"])
async def test_a_reply_that_cannot_be_parsed_ends_the_call(
    kind: str, autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    async with ScriptedServer() as scripted:
        errors: list[RpcError] = []

        async def caller() -> None:
            if kind == "unary":
                with pytest.raises(RpcError) as caught:
                    await scripted.stub.Unary(EchoRequest())
                errors.append(caught.value)
                return
            async with scripted.stub.ServerStream(EchoRequest()) as call:
                for _ in range(2):  # it stays ended
                    with pytest.raises(RpcError) as caught:
                        await call.receive()
                    errors.append(caught.value)

        nursery.start_soon(caller)
        peer = await scripted.accept()
        await peer.expect(HeadersFrame, stream_id=1)
        await peer.send_response(1)
        await peer.send_message(1, b"\xff\xff\xff")
        if kind == "unary":
            await peer.send_trailers(1)
        await trio.testing.wait_all_tasks_blocked()
        assert {error.code for error in errors} == {StatusCode.INTERNAL}
        assert "EchoReply" in errors[0].message
        scripted.assert_nothing_left()


async def test_the_send_limit_is_told_before_anything_is_sent(autojump_clock: Clock) -> None:
    limits = Limits(max_send_message_length=100, adaptive_window=False)
    big = EchoRequest(payload=bytes(100))
    async with open_channel_pair(Echo(), limits=limits) as (channel, server):
        stub = EchoStub(channel)
        with pytest.raises(RpcError, match="max_send_message_length") as caught:
            await stub.Unary(big)
        assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(RpcError, match="max_send_message_length"):
            stub.ServerStream(big)
        assert server.statistics().connections == 0
        with pytest.raises(RpcError, match="max_send_message_length"):
            await stub.ClientStream([EchoRequest(), big])
        async with stub.Bidi() as call:
            with pytest.raises(RpcError, match="max_send_message_length"):
                await call.send(big)
            # It is the message's fault, not the call's.
            await call.send(EchoRequest(text="a"))
            assert (await call.receive()).text == "a"
        assert (await stub.Unary(EchoRequest(payload=bytes(98)))).payload == bytes(98)


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.DEFLATE, "gzip", Compression.NONE, None])
async def test_compressed_requests(compression: Any, autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        stub = EchoStub(channel)
        payload = b"text " * 1000
        assert (await stub.Unary(EchoRequest(payload=payload), compression=compression)).payload == payload
        async with stub.Bidi(compression=compression) as call:
            await call.send(EchoRequest(payload=payload))
            assert (await call.receive()).payload == payload


async def test_an_unknown_compression_is_refused_at_once(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo()) as (channel, server):
        stub = EchoStub(channel)
        with pytest.raises(ValueError, match="nope"):
            await stub.Unary(EchoRequest(), compression="nope")
        with pytest.raises(ValueError, match="nope"):
            stub.Bidi(compression="nope")
        assert server.statistics().connections == 0
