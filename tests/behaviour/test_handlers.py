"""What a handler may do, what becomes of what it raises, and that nothing of it reaches another call."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import attrs
import echo_pb2
import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub
from google.protobuf.wrappers_pb2 import StringValue

import trio_grpc
from tests.support.echo import Context, Echo, Requests, SecretError
from trio_grpc import Channel, Limits, Metadata, RpcError, Server, StatusCode
from trio_grpc.testing import MemoryListener, open_channel_pair

Clock = trio.testing.MockClock

SECRET = "the password is swordfish"
#: More than a window and a write quota: a sender has to wait.
BIG = bytes(200_000)


async def status_of(operation: Callable[[], Awaitable[object]]) -> RpcError:
    with pytest.raises(RpcError) as caught:
        await operation()
    return caught.value


async def read(opened: Any) -> list[Any]:
    """All replies of a server stream or of a bidi call without requests."""
    async with opened as call:
        if hasattr(call, "done_sending"):
            await call.done_sending()
        return [reply async for reply in call]


def errors_of(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.ERROR]


async def assert_still_serving(channel: Channel, server: Server) -> None:
    """One connection, nothing of the last call left, and another call is served."""
    await trio.testing.wait_all_tasks_blocked()
    assert (server.statistics().streams, server.statistics().handlers) == (0, 0)
    assert server.statistics().connections == 1
    assert [reply.count for reply in await read(EchoStub(channel).ServerStream(EchoRequest(count=2)))] == [0, 1]
    await trio.testing.wait_all_tasks_blocked()
    assert server.statistics().connections == 1


# -- generators


async def run_generator(
    handler: Callable[[Requests, Context], Any], *, limits: Limits | None = None, timeout: float | None = None
) -> tuple[list[int], StatusCode | None]:
    """Run a bidi handler against a client that never sends; the counts it got and the status."""
    counts: list[int] = []
    async with open_channel_pair(Echo(bidi=handler), limits=limits) as (channel, server):
        async with EchoStub(channel).Bidi(timeout=timeout) as call:
            try:
                while True:
                    counts.append((await call.receive()).count)
            except (RpcError, trio.EndOfChannel):
                pass
            status = call.status
        await assert_still_serving(channel, server)
    return counts, status


async def test_yield_is_send(autojump_clock: Clock) -> None:
    async def handler(requests: Requests, context: Context) -> AsyncIterator[EchoReply]:
        yield EchoReply(count=1)
        await context.send(EchoReply(count=2))
        yield EchoReply(count=3)

    assert await run_generator(handler) == ([1, 2, 3], StatusCode.OK)


async def test_what_a_send_raises_is_raised_at_the_yield(autojump_clock: Clock) -> None:
    raised: list[BaseException] = []

    async def handler(requests: Requests, context: Context) -> AsyncIterator[EchoReply]:
        for reply in (EchoReply(payload=bytes(1000)), "no message"):
            try:
                yield reply  # type: ignore[misc]
            except Exception as error:
                raised.append(error)
        # It may go on: nothing has happened to the stream.
        yield EchoReply(count=1)

    limits = Limits(max_send_message_length=100, adaptive_window=False)
    assert await run_generator(handler, limits=limits) == ([1], StatusCode.OK)
    too_large, wrong_type = raised
    assert isinstance(too_large, RpcError)
    assert too_large.code is StatusCode.RESOURCE_EXHAUSTED
    assert isinstance(wrong_type, TypeError)


async def test_what_a_send_raises_and_nobody_catches_is_the_status(autojump_clock: Clock) -> None:
    async def handler(requests: Requests, context: Context) -> AsyncIterator[EchoReply]:
        yield EchoReply(payload=bytes(1000))

    limits = Limits(max_send_message_length=100, adaptive_window=False)
    assert await run_generator(handler, limits=limits) == ([], StatusCode.RESOURCE_EXHAUSTED)


async def test_cancellation_is_raised_at_the_yield(autojump_clock: Clock) -> None:
    steps: list[str] = []

    async def handler(requests: Requests, context: Context) -> AsyncIterator[EchoReply]:
        try:
            while True:
                yield EchoReply(payload=BIG)
                steps.append("sent")
        except trio.Cancelled:
            steps.append("cancelled")
            raise
        finally:
            steps.append("finally")

    async with open_channel_pair(Echo(bidi=handler)) as (channel, server):
        async with EchoStub(channel).Bidi():
            await trio.testing.wait_all_tasks_blocked()
        await assert_still_serving(channel, server)
    assert steps == ["sent", "cancelled", "finally"]


async def test_a_peer_that_is_gone_is_raised_at_the_yield_where_cancellation_is_shielded(autojump_clock: Clock) -> None:
    raised: list[str] = []

    async def handler(requests: Requests, context: Context) -> AsyncIterator[EchoReply]:
        with trio.CancelScope(shield=True):
            try:
                while True:
                    yield EchoReply(payload=BIG)
            except trio.BrokenResourceError as error:
                raised.append(str(error))
                raise

    async with open_channel_pair(Echo(bidi=handler)) as (channel, server):
        async with EchoStub(channel).Bidi():
            await trio.testing.wait_all_tasks_blocked()
        await assert_still_serving(channel, server)
    assert raised == ["reset by peer with CANCEL"]


async def test_one_task_drives_a_generator_and_closes_it(autojump_clock: Clock) -> None:
    """So scopes and nurseries in it never change hands."""
    tasks: list[trio.lowlevel.Task] = []

    async def handler(requests: Requests, context: Context) -> AsyncIterator[EchoReply]:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                with trio.CancelScope():
                    for count in range(3):
                        tasks.append(trio.lowlevel.current_task())
                        yield EchoReply(count=count)
                nursery.cancel_scope.cancel()
        finally:
            tasks.append(trio.lowlevel.current_task())

    assert await run_generator(handler) == ([0, 1, 2], StatusCode.OK)
    assert len(tasks) == 4
    assert len(set(tasks)) == 1
    tasks.clear()
    async with open_channel_pair(Echo(bidi=handler)) as (channel, server):
        async with EchoStub(channel).Bidi() as call:
            await call.receive()
        await assert_still_serving(channel, server)
    assert len(set(tasks)) == 1


async def test_a_timeout_inside_a_generator_covers_its_sends(autojump_clock: Clock) -> None:
    steps: list[str] = []

    async def handler(requests: Requests, context: Context) -> AsyncIterator[EchoReply]:
        with trio.move_on_after(1) as scope:
            while True:
                yield EchoReply(payload=BIG)
        assert scope.cancelled_caught
        steps.append("moved on")

    async with open_channel_pair(Echo(bidi=handler)) as (channel, server):
        async with EchoStub(channel).Bidi() as call:
            await trio.sleep(2)
            assert steps == ["moved on"]
            assert len([reply async for reply in call]) >= 1
            assert call.status is StatusCode.OK
        await assert_still_serving(channel, server)


async def test_a_generator_that_swallows_its_cancellation_ends(autojump_clock: Clock) -> None:
    async def returns(requests: Requests, context: Context) -> AsyncIterator[EchoReply]:
        try:
            while True:
                yield EchoReply(payload=BIG)
        except trio.Cancelled:
            return

    async def goes_on(requests: Requests, context: Context) -> AsyncIterator[EchoReply]:
        for _ in range(3):
            try:
                while True:
                    yield EchoReply(payload=BIG)
            except trio.Cancelled:
                pass

    async def replaces(requests: Requests, context: Context) -> AsyncIterator[EchoReply]:
        try:
            while True:
                yield EchoReply(payload=BIG)
        except trio.Cancelled:
            raise ValueError from None

    for handler in (returns, goes_on, replaces):
        async with open_channel_pair(Echo(bidi=handler)) as (channel, server):
            async with EchoStub(channel).Bidi():
                await trio.testing.wait_all_tasks_blocked()
            await assert_still_serving(channel, server)


async def test_a_generator_that_is_left_before_its_first_yield(autojump_clock: Clock) -> None:
    steps: list[str] = []

    async def handler(requests: Requests, context: Context) -> AsyncIterator[EchoReply]:
        try:
            await trio.sleep_forever()
            yield EchoReply()
        finally:
            steps.append("finally")

    assert await run_generator(handler, timeout=1) == ([], StatusCode.DEADLINE_EXCEEDED)
    assert steps == ["finally"]


async def test_a_generator_that_awaits_in_its_finally(autojump_clock: Clock) -> None:
    steps: list[str] = []

    async def handler(requests: Requests, context: Context) -> AsyncIterator[EchoReply]:
        try:
            while True:
                yield EchoReply(payload=BIG)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(3)
                steps.append("slow finally")

    async with open_channel_pair(Echo(bidi=handler)) as (channel, server):
        async with EchoStub(channel).Bidi():
            await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(1)
        assert server.statistics().handlers == 1
        await trio.sleep(3)
        await assert_still_serving(channel, server)
    assert steps == ["slow finally"]


class Iterator:
    """An async iterator that is no generator."""

    def __init__(self, last: int, *, error: Exception | None = None) -> None:
        self.last = last
        self.count = 0
        self.error = error
        self.closed = 0

    def __aiter__(self) -> Iterator:
        return self

    async def __anext__(self) -> EchoReply:
        await trio.lowlevel.checkpoint()
        self.count += 1
        if self.count > self.last:
            if self.error is not None:
                raise self.error
            raise StopAsyncIteration
        return EchoReply(count=self.count)


class ClosableIterator(Iterator):
    async def aclose(self) -> None:
        self.closed += 1
        await trio.lowlevel.checkpoint()


async def test_other_iterators_work_too(autojump_clock: Clock) -> None:
    assert await run_generator(lambda requests, context: Iterator(3)) == ([1, 2, 3], StatusCode.OK)
    failing = Iterator(1, error=RpcError(StatusCode.ABORTED))
    assert await run_generator(lambda requests, context: failing) == ([1], StatusCode.ABORTED)


async def test_a_memory_channel_can_be_what_a_handler_returns(autojump_clock: Clock) -> None:
    send_replies, receive_replies = trio.open_memory_channel[EchoReply](10)
    with send_replies:
        for count in range(3):
            send_replies.send_nowait(EchoReply(count=count))
    assert await run_generator(lambda requests, context: receive_replies) == ([0, 1, 2], StatusCode.OK)
    with pytest.raises(trio.ClosedResourceError):
        receive_replies.receive_nowait()


@pytest.mark.parametrize("end", ["exhausted", "cancelled", "failed"])
async def test_an_iterator_that_can_be_closed_is_closed_once(end: str, autojump_clock: Clock) -> None:
    iterator = ClosableIterator(3 if end != "cancelled" else 10**9)
    if end == "failed":
        iterator.error = SecretError()
    async with open_channel_pair(Echo(bidi=lambda requests, context: iterator)) as (channel, server):
        async with EchoStub(channel).Bidi() as call:
            for _ in range(3):
                await call.receive()
            if end != "cancelled":
                with pytest.raises((trio.EndOfChannel, RpcError)):
                    await call.receive()
        await assert_still_serving(channel, server)
    assert iterator.closed == 1


async def test_a_handler_that_is_a_coroutine_sends_by_itself(autojump_clock: Clock) -> None:
    async def handler(requests: Requests, context: Context) -> None:
        for count in range(3):
            await context.send(EchoReply(count=count))

    assert await run_generator(handler) == ([0, 1, 2], StatusCode.OK)


async def test_any_task_of_a_handler_may_send(autojump_clock: Clock) -> None:
    async def handler(requests: Requests, context: Context) -> None:
        async def send(count: int) -> None:
            await trio.sleep(count)
            await context.send(EchoReply(count=count))

        async with trio.open_nursery() as nursery:
            for count in range(10):
                nursery.start_soon(send, count)

    assert await run_generator(handler) == (list(range(10)), StatusCode.OK)


async def test_two_tasks_that_wait_to_send_are_one_too_many(autojump_clock: Clock) -> None:
    busy: list[BaseException] = []

    async def handler(requests: Requests, context: Context) -> None:
        async def send() -> None:
            try:
                while True:
                    await context.send(EchoReply(payload=BIG))
            except trio.BusyResourceError as error:
                busy.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            nursery.start_soon(send)

    async with open_channel_pair(Echo(bidi=handler)) as (channel, server):
        async with EchoStub(channel).Bidi():
            await trio.testing.wait_all_tasks_blocked()
            assert len(busy) == 1
        await assert_still_serving(channel, server)


async def test_two_tasks_that_receive_are_one_too_many(autojump_clock: Clock) -> None:
    busy: list[BaseException] = []

    async def handler(requests: Requests, context: Context) -> None:
        async def receive() -> None:
            try:
                await requests.receive()
            except trio.BusyResourceError as error:
                busy.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            nursery.start_soon(receive)

    assert await run_generator(handler) == ([], StatusCode.OK)
    assert len(busy) == 1


# -- abort


async def test_abort_is_the_status(autojump_clock: Clock) -> None:
    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        context.set_trailing_metadata({"from": "set"})
        await context.abort(
            StatusCode.FAILED_PRECONDITION,
            "not now: 100 % ✓",
            details=[StringValue(value="detail")],
            trailing_metadata={"from": "abort", "data-bin": b"\0\xff"},
        )

    async with open_channel_pair(Echo(unary=handler)) as (channel, server):
        error = await status_of(lambda: EchoStub(channel).Unary(EchoRequest()))
        await assert_still_serving(channel, server)
    assert (error.code, error.message) == (StatusCode.FAILED_PRECONDITION, "not now: 100 % ✓")
    assert error.details == (StringValue(value="detail"),)
    assert error.trailing_metadata == [("from", "abort"), ("data-bin", b"\0\xff")]


async def abort_and_swallow(context: Context) -> None:
    try:
        await context.abort(StatusCode.ABORTED, "first")
    except RpcError:
        pass


async def returns_reply(context: Context) -> EchoReply:
    await abort_and_swallow(context)
    return EchoReply(text="unheard")


async def raises_other(context: Context) -> EchoReply:
    await abort_and_swallow(context)
    raise SecretError(SECRET)


async def raises_status(context: Context) -> EchoReply:
    await abort_and_swallow(context)
    raise RpcError(StatusCode.INTERNAL, "second")


async def aborts_again(context: Context) -> EchoReply:
    await abort_and_swallow(context)
    await context.abort(StatusCode.INTERNAL, "second")


async def aborts_in_nursery(context: Context) -> EchoReply:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        await context.abort(StatusCode.ABORTED, "first")


async def aborts_in_child(context: Context) -> EchoReply:
    async def child() -> None:
        await context.abort(StatusCode.ABORTED, "first")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(child)
        await trio.sleep_forever()
    raise AssertionError


async def aborts_in_one_child_and_fails_in_another(context: Context) -> EchoReply:
    async def aborts() -> None:
        await context.abort(StatusCode.ABORTED, "first")

    async def fails() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise SecretError(SECRET)

    async with trio.open_nursery() as outer, trio.open_nursery() as nursery:
        outer.start_soon(fails)
        nursery.start_soon(aborts)
    raise AssertionError


async def aborts_while_cancelled(context: Context) -> EchoReply:
    with trio.CancelScope() as scope:
        scope.cancel()
        await context.abort(StatusCode.ABORTED, "first")
    return EchoReply(text="unheard")


async def aborts_in_finally_of_a_cancelled_task(context: Context) -> EchoReply:
    async def child() -> None:
        try:
            await trio.sleep_forever()
        finally:
            await context.abort(StatusCode.ABORTED, "first")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(child)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return EchoReply(text="unheard")


@pytest.mark.parametrize(
    "handler",
    [
        returns_reply,
        raises_other,
        raises_status,
        aborts_again,
        aborts_in_nursery,
        aborts_in_child,
        aborts_in_one_child_and_fails_in_another,
        aborts_while_cancelled,
        aborts_in_finally_of_a_cancelled_task,
    ],
    ids=lambda handler: handler.__name__,
)
@pytest.mark.parametrize("kind", ["unary", "stream"])
async def test_the_record_of_abort_wins(
    handler: Callable[[Context], Awaitable[EchoReply]], kind: str, autojump_clock: Clock
) -> None:
    async def unary(request: EchoRequest, context: Context) -> EchoReply:
        return await handler(context)

    async def bidi(requests: Requests, context: Context) -> None:
        await context.send(EchoReply(count=1))
        await handler(context)

    async with open_channel_pair(Echo(unary=unary, bidi=bidi)) as (channel, server):
        stub = EchoStub(channel)
        if kind == "unary":
            error = await status_of(lambda: stub.Unary(EchoRequest()))
        else:
            async with stub.Bidi() as call:
                assert (await call.receive()).count == 1
                error = await status_of(call.receive)
        assert (error.code, error.message) == (StatusCode.ABORTED, "first")
        await assert_still_serving(channel, server)


async def test_abort_needs_an_error(autojump_clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        await context.abort(StatusCode.OK, "not an error")

    async with open_channel_pair(Echo(unary=handler)) as (channel, _):
        error = await status_of(lambda: EchoStub(channel).Unary(EchoRequest()))
    assert error.code is StatusCode.UNKNOWN
    assert "StatusCode.OK" in caplog.text


async def test_the_record_of_abort_wins_over_the_deadline(autojump_clock: Clock) -> None:
    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        await abort_and_swallow(context)
        await trio.sleep_forever()
        raise AssertionError

    async with open_channel_pair(Echo(unary=handler)) as (channel, server):
        (connection,) = await connections_of(channel)
        outcomes: list[Any] = []
        with trio.move_on_after(5):
            # A client whose clock is slower than the server's.
            head = channel._request_head("/echo.Echo/Unary", "identity", "proto")
            stream = connection.open_stream(head, [(b"grpc-timeout", b"1S")])
            connection.table.acquire_nowait()
            stream.queue_message(b"")
            stream.end_stream = True
            stream.announce()
            await stream.wait_outcome()
            outcomes.append(stream.outcome)
        assert outcomes[0].code is StatusCode.ABORTED
        await assert_still_serving(channel, server)


async def connections_of(channel: Channel) -> set[Any]:
    await read(EchoStub(channel).ServerStream(EchoRequest(count=1)))
    return set(channel._balancer.connections)


# -- RpcError


async def test_an_error_that_a_handler_makes_is_its_status(autojump_clock: Clock) -> None:
    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        raise RpcError(
            StatusCode.NOT_FOUND, "no such thing", details=[StringValue(value="x")], trailing_metadata={"key": "value"}
        )

    async with open_channel_pair(Echo(unary=handler)) as (channel, _):
        error = await status_of(lambda: EchoStub(channel).Unary(EchoRequest()))
    assert (error.code, error.message) == (StatusCode.NOT_FOUND, "no such thing")
    assert error.details == (StringValue(value="x"),)
    assert error.trailing_metadata == [("key", "value")]


@pytest.mark.parametrize("code", [code for code in StatusCode if code])
async def test_every_code_arrives(code: StatusCode, autojump_clock: Clock) -> None:
    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        raise RpcError(code, "text")

    async with open_channel_pair(Echo(unary=handler)) as (channel, _):
        error = await status_of(lambda: EchoStub(channel).Unary(EchoRequest()))
    assert (error.code, error.message) == (code, "text")


async def test_a_status_may_follow_replies(autojump_clock: Clock) -> None:
    async def handler(request: EchoRequest, context: Context) -> AsyncIterator[EchoReply]:
        yield EchoReply(count=1)
        raise RpcError(StatusCode.DATA_LOSS, "the rest is lost")

    async with open_channel_pair(Echo(server_stream=handler)) as (channel, _):
        stub = EchoStub(channel)
        async with stub.ServerStream(EchoRequest()) as call:
            assert (await call.receive()).count == 1
            for _ in range(2):
                error = await status_of(call.receive)
                assert (error.code, error.message) == (StatusCode.DATA_LOSS, "the rest is lost")


@attrs.frozen
class GarbageCodec:
    """Makes replies that nobody can parse."""

    name: str = "proto"

    def encoder(self, message_type: type[Any], /) -> Callable[[Any], bytes]:
        if message_type is echo_pb2.EchoReply:
            return lambda message: b"\xff\xff\xff"
        return message_type.SerializeToString

    def decoder(self, message_type: type[Any], /) -> Callable[[bytes], Any]:
        return message_type.FromString  # type: ignore[no-any-return]


async def fails_unary(stub: EchoStub) -> None:
    await stub.Unary(EchoRequest())


async def fails_with_timeout(stub: EchoStub) -> None:
    await stub.Unary(EchoRequest(text="sleep"), timeout=1)


async def fails_block_timeout(stub: EchoStub) -> None:
    async with stub.Unary.open(EchoRequest(text="sleep"), timeout=1) as call:
        await call.receive()


async def fails_block_expired(stub: EchoStub) -> None:
    async with stub.Bidi(timeout=0):
        pass


async def fails_stream(stub: EchoStub) -> None:
    await read(stub.ServerStream(EchoRequest()))


async def fails_upload(stub: EchoStub) -> None:
    await stub.ClientStream([])


async def fails_send_limit(stub: EchoStub) -> None:
    await stub.Unary(EchoRequest(payload=bytes(2000)))


FAILURES = [
    fails_unary,
    fails_with_timeout,
    fails_block_timeout,
    fails_block_expired,
    fails_stream,
    fails_upload,
    fails_send_limit,
]


@pytest.mark.parametrize("call", FAILURES, ids=lambda call: call.__name__)
@pytest.mark.parametrize("way", ["bare", "in a group", "wrapped"])
async def test_an_error_that_a_handler_received_is_not_its_status(
    call: Callable[[EchoStub], Awaitable[None]], way: str, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_request: object, context: Context) -> Any:
        if getattr(_request, "text", "") == "sleep":
            await trio.sleep_forever()
        raise RpcError(StatusCode.PERMISSION_DENIED, SECRET)

    failing = Echo(unary=fail, client_stream=fail, server_stream=fail)
    limits = Limits(max_send_message_length=1000, adaptive_window=False)
    async with open_channel_pair(failing, limits=limits) as (inner, _):
        stub = EchoStub(inner)

        async def handler(request: EchoRequest, context: Context) -> EchoReply:
            if way == "in a group":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(call, stub)
            elif way == "wrapped":
                try:
                    await call(stub)
                except RpcError as error:
                    raise RpcError(StatusCode.UNAVAILABLE, "try again") from error
            else:
                await call(stub)
            raise AssertionError

        async with open_channel_pair(Echo(unary=handler)) as (outer, _):
            error = await status_of(lambda: EchoStub(outer).Unary(EchoRequest()))
    if way == "wrapped":
        assert (error.code, error.message) == (StatusCode.UNAVAILABLE, "try again")
        assert not errors_of(caplog)
    else:
        assert error.code is StatusCode.UNKNOWN
        assert SECRET not in str(error)
        assert len(errors_of(caplog)) == 1


@pytest.mark.parametrize("kind", ["unary", "unary block", "stream", "upload"])
async def test_a_reply_that_cannot_be_parsed_is_an_error_that_was_received(kind: str, autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo(), codec=GarbageCodec()) as (inner, _):
        stub = EchoStub(inner)

        async def handler(request: EchoRequest, context: Context) -> EchoReply:
            if kind == "unary":
                await stub.Unary(EchoRequest())
            elif kind == "unary block":
                async with stub.Unary.open(EchoRequest()) as call:
                    await call.receive()
            elif kind == "stream":
                await read(stub.ServerStream(EchoRequest(count=1)))
            else:
                await stub.ClientStream([])
            raise AssertionError

        error = await status_of(lambda: stub.Unary(EchoRequest()))
        assert error.code is StatusCode.INTERNAL
        async with open_channel_pair(Echo(unary=handler)) as (outer, _):
            error = await status_of(lambda: EchoStub(outer).Unary(EchoRequest()))
    assert error.code is StatusCode.UNKNOWN


# -- exceptions nobody expected


HANDLER_KINDS = ["Unary", "ServerStream", "ClientStream", "Bidi", "Bidi coroutine", "after replies", "in a child"]


@pytest.mark.parametrize("kind", HANDLER_KINDS)
async def test_an_unexpected_exception_is_unknown_without_its_text(
    kind: str, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> Any:
        raise SecretError(SECRET)

    async def fail_generator(*_: object) -> AsyncIterator[EchoReply]:
        if kind == "after replies":
            yield EchoReply()
        raise SecretError(SECRET)
        yield EchoReply()

    async def fail_in_child(*_: object) -> Any:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)

    servicer = Echo(
        unary=fail_in_child if kind == "in a child" else fail,
        client_stream=fail,
        server_stream=fail_generator,
        bidi=fail if kind == "Bidi coroutine" else fail_generator,
    )
    async with open_channel_pair(servicer) as (channel, server):
        stub = EchoStub(channel)
        operations: dict[str, Callable[[], Awaitable[object]]] = {
            "Unary": lambda: stub.Unary(EchoRequest()),
            "in a child": lambda: stub.Unary(EchoRequest()),
            "ServerStream": lambda: read(stub.ServerStream(EchoRequest())),
            "after replies": lambda: read(stub.ServerStream(EchoRequest())),
            "ClientStream": lambda: stub.ClientStream([]),
            "Bidi": lambda: read(stub.Bidi()),
            "Bidi coroutine": lambda: read(stub.Bidi()),
        }
        error = await status_of(operations[kind])
        await trio.testing.wait_all_tasks_blocked()
        assert (server.statistics().streams, server.statistics().handlers) == (0, 0)
    assert error.code is StatusCode.UNKNOWN
    assert error.message == "exception in the handler"
    assert not error.trailing_metadata
    assert SECRET not in repr(error)
    (record,) = errors_of(caplog)
    assert record.exc_info is not None
    assert record.name == "trio_grpc"
    assert "/echo.Echo/" in record.getMessage()
    assert SECRET in caplog.text


@pytest.mark.parametrize("reply", [None, "text", EchoRequest(), b""], ids=repr)
async def test_a_reply_of_another_type_is_the_handlers_fault(
    reply: Any, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(*_: object) -> Any:
        return reply

    async def generator(*_: object) -> AsyncIterator[Any]:
        yield reply

    async with open_channel_pair(Echo(unary=handler, client_stream=handler, bidi=generator)) as (channel, server):
        stub = EchoStub(channel)
        for operation in (
            lambda: stub.Unary(EchoRequest()),
            lambda: stub.ClientStream([]),
            lambda: read(stub.Bidi()),
        ):
            assert (await status_of(operation)).code is StatusCode.UNKNOWN
        await assert_still_serving(channel, server)
    assert len(errors_of(caplog)) == 3


@pytest.mark.parametrize("result", [None, 5, [EchoReply()]], ids=repr)
async def test_a_streaming_handler_that_returns_no_stream(
    result: Any, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_channel_pair(Echo(bidi=lambda requests, context: result)) as (channel, server):
        assert (await status_of(lambda: read(EchoStub(channel).Bidi()))).code is StatusCode.UNKNOWN
        await assert_still_serving(channel, server)
    assert len(errors_of(caplog)) == 1


async def test_a_status_that_cannot_be_encoded_is_unknown(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        raise RpcError(StatusCode.ABORTED, "text", details=["no message"])

    async with open_channel_pair(Echo(unary=handler)) as (channel, server):
        assert (await status_of(lambda: EchoStub(channel).Unary(EchoRequest()))).code is StatusCode.UNKNOWN
        await assert_still_serving(channel, server)
    assert len(errors_of(caplog)) == 1


@pytest.mark.parametrize("end", ["peer", "deadline", "server"])
@pytest.mark.parametrize("kind", ["unary", "bidi"])
async def test_a_handler_that_is_cancelled_and_fails_at_once_reaches_nobody(
    end: str, kind: str, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its nursery makes one group of Cancelled and the other exception, which is no `Exception`."""

    async def fail_on_cancel() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise SecretError(SECRET)

    async def handler(*_: object) -> Any:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_on_cancel)
            nursery.start_soon(trio.sleep_forever)

    async def generator(*args: object) -> AsyncIterator[EchoReply]:
        yield EchoReply()
        await handler(*args)

    servicer = Echo(unary=handler, bidi=generator)
    async with open_channel_pair(servicer) as (channel, server):
        stub = EchoStub(channel)
        async with stub.ClientStream.open() as other:
            await other.send(EchoRequest())
            with trio.move_on_after(1 if end == "peer" else 5):
                try:
                    if kind == "unary":
                        await stub.Unary(EchoRequest(), timeout=1 if end == "deadline" else None)
                    else:
                        async with stub.Bidi(timeout=1 if end == "deadline" else None) as call:
                            await call.receive()
                            await call.receive()
                except RpcError:
                    assert end == "deadline"
            await trio.testing.wait_all_tasks_blocked()
            if end == "server":
                return
            assert server.statistics().handlers == 1
            # Another call on the same connection goes on as if nothing had happened.
            await other.send(EchoRequest())
            await other.done_sending()
            assert (await other.receive()).count == 2
        await assert_still_serving(channel, server)
    assert "serving" not in caplog.text


async def test_a_handler_that_fails_while_the_server_is_cancelled_does_not_come_out_of_serve(
    autojump_clock: Clock,
) -> None:
    async def fail_on_cancel(*_: object) -> Any:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def child() -> None:
                try:
                    await trio.sleep_forever()
                finally:
                    raise SecretError(SECRET)

            await trio.sleep_forever()

    listener = MemoryListener()
    async with trio_grpc.open_channel(listener.connect) as channel, trio.open_nursery() as nursery:
        stub = EchoStub(channel)
        async with trio.open_nursery() as server_nursery:
            await server_nursery.start(trio_grpc.serve, [Echo(unary=fail_on_cancel)], listener)

            async def caller() -> None:
                with pytest.raises(RpcError):
                    await stub.Unary(EchoRequest())

            nursery.start_soon(caller)
            await trio.testing.wait_all_tasks_blocked()
            server_nursery.cancel_scope.cancel()


# -- isolation


variable: ContextVar[int] = ContextVar("variable", default=-1)


async def test_context_variables_belong_to_one_call(autojump_clock: Clock) -> None:
    """100 at a time, three times over, so that workers are used again."""
    seen: list[int] = []
    tasks: set[int] = set()

    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        seen.append(variable.get())
        tasks.add(id(trio.lowlevel.current_task()))
        variable.set(request.count)
        for _ in range(3):
            await trio.sleep(request.count % 7 / 100)
            assert variable.get() == request.count
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def child() -> None:
                assert variable.get() == request.count

        return EchoReply(count=variable.get())

    async def call(number: int) -> None:
        variable.set(-2)  # the client's own, which must not show on the other side
        assert (await stub.Unary(EchoRequest(count=number))).count == number

    async with open_channel_pair(Echo(unary=handler)) as (channel, _):
        stub = EchoStub(channel)
        for start in range(0, 300, 100):
            async with trio.open_nursery() as nursery:
                for number in range(start, start + 100):
                    nursery.start_soon(call, number)
    assert seen == [-1] * 300
    assert len(tasks) < 150


async def test_idle_workers_end_and_busy_ones_go_on(autojump_clock: Clock) -> None:
    tasks: list[trio.lowlevel.Task] = []

    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        tasks.append(trio.lowlevel.current_task())
        await trio.sleep(request.count)
        return EchoReply(count=request.count)

    def workers() -> int:
        assert nursery is not None
        return len(nursery.child_tasks)

    async with open_channel_pair(Echo(unary=handler)) as (channel, _):
        stub = EchoStub(channel)
        async with trio.open_nursery() as calls:
            for seconds in (0, 0, 0, 5):
                calls.start_soon(stub.Unary, EchoRequest(count=seconds))
            await trio.testing.wait_all_tasks_blocked()
            nursery = tasks[0].parent_nursery
            assert workers() == 4
            await trio.sleep(2)
            assert workers() == 1
            # One that is used again in time is the same one.
            await stub.Unary(EchoRequest())
            await stub.Unary(EchoRequest())
            assert workers() == 2
            assert tasks[-1] is tasks[-2]
        await trio.sleep(2)
        assert workers() == 0
        assert (await stub.Unary(EchoRequest())).count == 0


async def test_handlers_see_the_context_of_their_server(autojump_clock: Clock) -> None:
    seen: list[int] = []

    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        seen.append(variable.get())
        return EchoReply()

    token = variable.set(7)
    try:
        async with open_channel_pair(Echo(unary=handler)) as (channel, _):
            for _ in range(2):
                await EchoStub(channel).Unary(EchoRequest())
    finally:
        variable.reset(token)
    assert seen == [7, 7]


async def test_a_context_takes_attributes_of_the_users_own(autojump_clock: Clock) -> None:
    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        assert not hasattr(context, "user")
        context.user = request.text  # type: ignore[attr-defined]
        await trio.sleep(1)
        return EchoReply(text=context.user)  # type: ignore[attr-defined]

    async with open_channel_pair(Echo(unary=handler)) as (channel, _), trio.open_nursery() as nursery:

        async def call(name: str) -> None:
            assert (await EchoStub(channel).Unary(EchoRequest(text=name))).text == name

        for name in "abc":
            nursery.start_soon(call, name)


async def test_what_a_context_tells(autojump_clock: Clock) -> None:
    contexts: list[Context] = []

    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        contexts.append(context)
        assert context.metadata == [("key", "value")] or "key" in context.metadata
        return EchoReply()

    async with open_channel_pair(Echo(unary=handler)) as (channel, _):
        await EchoStub(channel).Unary(EchoRequest(), metadata={"key": "value"})
    (context,) = contexts
    assert context.method.path == "/echo.Echo/Unary"
    assert context.authority == "localhost"
    assert isinstance(context.metadata, Metadata)
    assert context.metadata["key"] == "value"
    assert context.peer
