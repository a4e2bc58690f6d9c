"""Interceptors: around the call on either side, in order, with the call's data and nobody else's."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.support.echo import Context, Echo, SecretError, sleep_forever
from trio_grpc import InterceptedCall, Metadata, Proceed, RpcError, ServicerContext, StatusCode
from trio_grpc.testing import MemoryListener, open_channel_pair

Clock = trio.testing.MockClock

user: ContextVar[str] = ContextVar("user", default="nobody")


async def unary(stub: EchoStub, **options: Any) -> EchoReply:
    return await stub.Unary(EchoRequest(text="a", count=2), **options)


async def unary_block(stub: EchoStub, **options: Any) -> EchoReply:
    async with stub.Unary.open(EchoRequest(text="a", count=2), **options) as call:
        return await call.receive()


async def server_stream(stub: EchoStub, **options: Any) -> EchoReply:
    async with stub.ServerStream(EchoRequest(text="a", count=2), **options) as call:
        replies = [reply async for reply in call]
    assert len(replies) == 2
    return replies[0]


async def client_stream(stub: EchoStub, **options: Any) -> EchoReply:
    return await stub.ClientStream([EchoRequest(text="a"), EchoRequest(text="b")], **options)


async def client_stream_block(stub: EchoStub, **options: Any) -> EchoReply:
    async with stub.ClientStream.open(**options) as call:
        await call.send(EchoRequest(text="a"))
        await call.done_sending()
        return await call.receive()


async def bidi(stub: EchoStub, **options: Any) -> EchoReply:
    async with stub.Bidi(**options) as call:
        await call.send(EchoRequest(text="a"))
        await call.done_sending()
        reply = await call.receive()
        with pytest.raises(trio.EndOfChannel):
            await call.receive()
        return reply


AWAITED = [unary, client_stream]
BLOCKS = [unary_block, server_stream, client_stream_block, bidi]
every_kind = pytest.mark.parametrize("make_call", [*AWAITED, *BLOCKS])
MakeCall = Callable[..., Awaitable[EchoReply]]


# -- contextvars and data of one call


async def identify(context: ServicerContext[Any], proceed: Proceed) -> None:
    name = context.metadata.get("user")
    if name is not None:
        assert user.get() == "nobody"
        user.set(str(name))
        context.state.user = name
    await proceed()


async def test_a_context_variable_reaches_its_own_handler_and_no_other(autojump_clock: Clock) -> None:
    async def answer(context: Context) -> EchoReply:
        await trio.sleep(1)
        assert getattr(context.state, "user", "nobody") == user.get()
        return EchoReply(text=user.get())

    async def once(_: object, context: Context) -> EchoReply:
        return await answer(context)

    async def often(_: object, context: Context) -> AsyncIterator[EchoReply]:
        for _number in range(2):
            yield await answer(context)

    servicer = Echo(unary=once, server_stream=often, client_stream=once, bidi=often)
    async with open_channel_pair(servicer, server_interceptors=[identify]) as (channel, server):
        stub = EchoStub(channel)

        async def call(name: str | None) -> None:
            metadata = {} if name is None else {"user": name}
            for make_call in (unary, server_stream, client_stream):
                assert (await make_call(stub, metadata=metadata)).text == (name or "nobody")

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(call, f"user {number}")
        # The workers that have run these handlers wait for more.
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(call, None)
        assert server.statistics().connections == 1
    assert user.get() == "nobody"


# -- order


@every_kind
async def test_the_first_interceptor_is_outermost(make_call: MakeCall) -> None:
    steps: list[str] = []

    def noting(name: str) -> Any:
        async def interceptor(_: object, proceed: Proceed) -> None:
            steps.append(f"{name} before")
            await proceed()
            steps.append(f"{name} after")

        return interceptor

    async with open_channel_pair(
        Echo(), interceptors=[noting("a"), noting("b")], server_interceptors=[noting("c"), noting("d")]
    ) as (channel, _):
        await make_call(EchoStub(channel))
        await trio.testing.wait_all_tasks_blocked()
    assert sorted(steps) == sorted(f"{name} {when}" for name in "abcd" for when in ("before", "after"))
    at_client, at_server = ([step for step in steps if step[0] in names] for names in ("ab", "cd"))
    assert at_client == ["a before", "b before", "b after", "a after"]
    assert at_server == ["c before", "d before", "d after", "c after"]


# -- a client's interceptor changes what is sent


async def tell_metadata(context: Context) -> EchoReply:
    return EchoReply(text=",".join(f"{key}={value!r}" for key, value in context.metadata if key != "user-agent"))


class Telling(Echo):
    """Every reply tells the metadata that came with the request."""

    def __init__(self) -> None:
        async def once(_: object, context: Context) -> EchoReply:
            return await tell_metadata(context)

        async def twice(_: object, context: Context) -> AsyncIterator[EchoReply]:
            yield await tell_metadata(context)
            yield await tell_metadata(context)

        async def bidi(_: object, context: Context) -> AsyncIterator[EchoReply]:
            yield await tell_metadata(context)

        super().__init__(unary=once, server_stream=twice, client_stream=once, bidi=bidi)


@every_kind
async def test_metadata_may_be_changed(make_call: MakeCall) -> None:
    async def add(call: InterceptedCall, proceed: Proceed) -> None:
        assert call.metadata == [("key", "value"), ("key-bin", b"\0,=")]
        call.metadata.add("token", "swordfish")
        call.metadata.delete_all("key-bin")
        await proceed()

    async def look(call: InterceptedCall, proceed: Proceed) -> None:
        assert call.metadata == [("key", "value"), ("token", "swordfish")]
        await proceed()

    own = Metadata({"key": "value", "key-bin": b"\0,="})
    async with open_channel_pair(Telling(), interceptors=[add, look]) as (channel, _):
        reply = await make_call(EchoStub(channel), metadata=own)
    assert reply.text == "key='value',token='swordfish'"
    assert own == [("key", "value"), ("key-bin", b"\0,=")]


@every_kind
async def test_metadata_that_can_be_read_only_once_is_sent(make_call: MakeCall) -> None:
    async def retry(call: InterceptedCall, proceed: Proceed) -> None:
        await proceed()
        if call.awaited:
            await proceed()

    async with open_channel_pair(Telling(), interceptors=[retry]) as (channel, _):
        reply = await make_call(EchoStub(channel), metadata=(pair for pair in [("key", "value")]))
    assert reply.text == "key='value'"


@pytest.mark.parametrize("make_call", [unary, unary_block, server_stream])
async def test_the_request_may_be_replaced_or_changed(make_call: MakeCall) -> None:
    async def replace(call: InterceptedCall, proceed: Proceed) -> None:
        assert call.request.text == "a"
        call.request = EchoRequest(text="b", count=2)
        await proceed()

    async def change(call: InterceptedCall, proceed: Proceed) -> None:
        call.request.text += "c"
        await proceed()

    async with open_channel_pair(Echo(), interceptors=[replace, change]) as (channel, _):
        assert (await make_call(EchoStub(channel))).text == "bc"


@every_kind
async def test_other_options_may_be_changed(make_call: MakeCall, autojump_clock: Clock) -> None:
    async def compress(call: InterceptedCall, proceed: Proceed) -> None:
        assert (call.compression, call.wait_for_ready) == ("deflate", False)
        call.compression = "gzip"
        call.wait_for_ready = True
        await proceed()

    failures = 1
    seen: list[str] = []

    async def look(context: ServicerContext[Any], proceed: Proceed) -> None:
        await proceed()
        seen.append(context._stream.request.encoding)  # type: ignore[union-attr]

    listener = MemoryListener()

    async def dial() -> trio.abc.Stream:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise OSError("not yet")
        return await listener.connect()

    serve = partial(trio_grpc.serve, interceptors=[look])
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, [Echo()], listener)
        async with trio_grpc.open_channel(dial, interceptors=[compress]) as channel:
            assert (await make_call(EchoStub(channel), compression="deflate", wait_for_ready=False)).text
        nursery.cancel_scope.cancel()
    assert seen == ["gzip"]


@pytest.mark.parametrize(
    ("option", "value", "kind", "text"),
    [
        ("compression", "no such", ValueError, "'no such' is not registered"),
        ("wait_for_ready", "yes", TypeError, "wait_for_ready must be bool or None, not str"),
    ],
)
@every_kind
async def test_a_wrong_option_fails_where_it_is_used(
    make_call: MakeCall, option: str, value: object, kind: type[Exception], text: str
) -> None:
    async def wrong(call: InterceptedCall, proceed: Proceed) -> None:
        setattr(call, option, value)
        await proceed()

    async with open_channel_pair(Echo(), interceptors=[wrong]) as (channel, _):
        with pytest.raises(kind, match=text):
            await make_call(EchoStub(channel))


@pytest.mark.parametrize("options", [{"timeout": "1"}, {"timeout": float("nan")}, {"metadata": {"te": "x"}}])
async def test_arguments_are_checked_before_interceptors_run(options: dict[str, Any]) -> None:
    async def never(_: object, proceed: Proceed) -> None:
        raise AssertionError

    async with open_channel_pair(Echo(), interceptors=[never]) as (channel, _):
        stub = EchoStub(channel)
        for make in (stub.Unary.open, stub.ServerStream):
            with pytest.raises((TypeError, ValueError), match=next(iter(options))):
                make(EchoRequest(), **options)
        for make_one in (stub.ClientStream.open, stub.Bidi):
            with pytest.raises((TypeError, ValueError), match=next(iter(options))):
                make_one(**options)
        for make_call in AWAITED:
            with pytest.raises((TypeError, ValueError), match=next(iter(options))):
                await make_call(stub, **options)


# -- what it sees of how the call went


class Marked(Echo):
    """Marks its metadata, and fails when it is asked to."""

    def __init__(self) -> None:
        async def mark(context: Context) -> None:
            await context.send_initial_metadata({"first": "1"})
            context.set_trailing_metadata({"last": "2"})
            if "fail" in context.metadata:
                raise RpcError(StatusCode.NOT_FOUND, "not here")

        async def once(_: object, context: Context) -> EchoReply:
            await mark(context)
            return EchoReply(text="a")

        async def twice(_: object, context: Context) -> AsyncIterator[EchoReply]:
            await mark(context)
            yield EchoReply(text="a")
            yield EchoReply(text="a")

        async def bidi(_: object, context: Context) -> AsyncIterator[EchoReply]:
            await mark(context)
            yield EchoReply(text="a")

        super().__init__(unary=once, server_stream=twice, client_stream=once, bidi=bidi)


@pytest.mark.parametrize("fails", [False, True])
@every_kind
async def test_an_interceptor_sees_how_the_call_went(make_call: MakeCall, fails: bool) -> None:
    seen = []

    async def look(call: InterceptedCall, proceed: Proceed) -> None:
        assert (call.status, call.reply, call.peer) == (None, None, "")
        assert (call.initial_metadata, call.trailing_metadata) == ([], [])
        assert call.awaited == (make_call in AWAITED)
        assert call.method.service == "echo.Echo"
        assert repr(call) == f"<InterceptedCall {call.method.path} open>"
        try:
            await proceed()
        finally:
            seen.append((call.status, list(call.initial_metadata), list(call.trailing_metadata)))
            assert call.peer == "MemoryListener.connect"
            assert call.reply == (EchoReply(text="a") if call.awaited and not fails else None)
            assert call.status is not None
            assert repr(call) == f"<InterceptedCall {call.method.path} {call.status.name}>"

    async with open_channel_pair(Marked(), interceptors=[look, look]) as (channel, _):
        if fails:
            with pytest.raises(RpcError) as caught:
                await make_call(EchoStub(channel), metadata={"fail": "yes"})
            assert caught.value.code is StatusCode.NOT_FOUND
        else:
            await make_call(EchoStub(channel))
    status = StatusCode.NOT_FOUND if fails else StatusCode.OK
    assert seen == [(status, [("first", "1")], [("last", "2")])] * 2


async def test_an_attempt_that_nobody_answered_has_no_peer() -> None:
    async def again(call: InterceptedCall, proceed: Proceed) -> None:
        with pytest.raises(RpcError):
            await proceed()
        assert (call.status, call.peer) == (StatusCode.NOT_FOUND, "MemoryListener.connect")
        await channel.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await proceed()
        assert (call.status, call.peer, call.trailing_metadata) == (StatusCode.CANCELLED, "", [])
        raise KeyError("seen")

    async with open_channel_pair(Marked(), interceptors=[again]) as (channel, _):
        with pytest.raises(KeyError, match="seen"):
            await EchoStub(channel).Unary(EchoRequest(), metadata={"fail": "yes"})


async def test_a_block_that_is_left_early_was_cancelled(autojump_clock: Clock) -> None:
    seen = []

    async def look(call: InterceptedCall, proceed: Proceed) -> None:
        await proceed()
        seen.append(call.status)

    async with open_channel_pair(Echo(), interceptors=[look]) as (channel, _), EchoStub(channel).Bidi():
        pass
    assert seen == [StatusCode.CANCELLED]


@pytest.mark.parametrize("make_call", [unary, client_stream])
async def test_the_status_of_a_call_that_its_caller_cancels(make_call: MakeCall, autojump_clock: Clock) -> None:
    seen = []

    async def look(call: InterceptedCall, proceed: Proceed) -> None:
        with pytest.raises(trio.Cancelled):
            await proceed()
        seen.append(call.status)
        await trio.lowlevel.checkpoint()

    servicer = Echo(unary=sleep_forever, client_stream=sleep_forever)
    async with open_channel_pair(servicer, interceptors=[look]) as (channel, _):
        with trio.move_on_after(1) as scope:
            await make_call(EchoStub(channel))
    assert scope.cancelled_caught
    assert seen == [StatusCode.CANCELLED]


@pytest.mark.parametrize("make_call", AWAITED)
async def test_the_status_of_a_call_that_is_cancelled_together_with_other_tasks(
    make_call: MakeCall, autojump_clock: Clock
) -> None:
    seen: list[StatusCode | None] = []

    async def in_a_nursery(_: InterceptedCall, proceed: Proceed) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            await proceed()

    async def look(call: InterceptedCall, proceed: Proceed) -> None:
        try:
            await proceed()
        finally:
            seen.append(call.status)

    servicer = Echo(unary=sleep_forever, client_stream=sleep_forever)
    async with open_channel_pair(servicer, interceptors=[look, in_a_nursery]) as (channel, _):
        with trio.move_on_after(1) as scope:
            await make_call(EchoStub(channel))
    assert scope.cancelled_caught
    assert seen == [StatusCode.CANCELLED]


# -- messages


@every_kind
async def test_messages_may_be_mapped_on_either_side(make_call: MakeCall) -> None:
    def marking(name: str) -> Any:
        async def interceptor(intercepted: Any, proceed: Proceed) -> None:
            def mark(message: Any) -> Any:
                changed = type(message)()
                changed.CopyFrom(message)
                changed.text += name
                return changed

            intercepted.map_requests(mark)
            intercepted.map_responses(mark)
            await proceed()

        return interceptor

    async with open_channel_pair(
        Echo(), interceptors=[marking("1"), marking("2")], server_interceptors=[marking("3"), marking("4")]
    ) as (channel, _):
        reply = await make_call(EchoStub(channel))
    # What is further out sees requests first and responses last.
    assert reply.text == ("a1234b12344321" if make_call is client_stream else "a12344321")


async def test_an_error_of_a_map_is_its_users(autojump_clock: Clock) -> None:
    def refuse(_: object) -> Any:
        raise SecretError("no")

    async def requests(call: InterceptedCall, proceed: Proceed) -> None:
        call.map_requests(refuse)
        await proceed()

    async def responses(call: InterceptedCall, proceed: Proceed) -> None:
        call.map_responses(refuse)
        await proceed()

    for interceptor in (requests, responses):
        async with open_channel_pair(Echo(), interceptors=[interceptor]) as (channel, _):
            for make_call in (unary, unary_block, server_stream, client_stream, client_stream_block, bidi):
                with pytest.raises(SecretError):
                    await make_call(EchoStub(channel))


async def test_an_rpc_error_of_a_map_ends_a_stream_with_its_status() -> None:
    async def interceptor(call: InterceptedCall, proceed: Proceed) -> None:
        def refuse(_: object) -> Any:
            raise RpcError(StatusCode.DATA_LOSS, "bad checksum")

        call.map_responses(refuse)
        await proceed()
        assert call.status is StatusCode.DATA_LOSS

    async with open_channel_pair(Echo(), interceptors=[interceptor]) as (channel, _), EchoStub(channel).Bidi() as call:
        await call.send(EchoRequest())
        with pytest.raises(RpcError, match="bad checksum"):
            await call.receive()


async def test_only_interceptors_may_map_messages_of_a_handler(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(_: EchoRequest, context: Context) -> EchoReply:
        for map_messages in (context.map_requests, context.map_responses):
            with pytest.raises(RuntimeError, match="interceptors only"):
                map_messages(lambda message: message)
        return EchoReply(text="a")

    async def late(context: ServicerContext[Any], proceed: Proceed) -> None:
        await proceed()
        with pytest.raises(RuntimeError, match="before they await"):
            context.map_responses(lambda message: message)

    for interceptors in ([], [late]):
        async with open_channel_pair(Echo(unary=handler), server_interceptors=interceptors) as (channel, _):
            assert (await unary(EchoStub(channel))).text == "a"


# -- answers, attempts


async def test_an_awaited_call_may_be_answered_without_it() -> None:
    cache: dict[bytes, Any] = {}

    async def cached(call: InterceptedCall, proceed: Proceed) -> None:
        key = call.request.SerializeToString()
        if key not in cache:
            await proceed()
            cache[key] = call.reply
        call.reply = cache[key]

    async def outer(call: InterceptedCall, proceed: Proceed) -> None:
        await proceed()
        assert call.status is StatusCode.OK

    servicer = Echo()
    async with open_channel_pair(servicer, interceptors=[outer, cached]) as (channel, _):
        stub = EchoStub(channel)
        assert (await unary(stub)).text == "a"
        assert (await unary(stub)).text == "a"
        assert (await stub.Unary(EchoRequest(text="b"))).text == "b"
    assert len(servicer.contexts) == 2


@pytest.mark.parametrize("make_call", AWAITED)
async def test_an_awaited_call_may_be_tried_again(make_call: MakeCall, autojump_clock: Clock) -> None:
    attempts: list[list[Any]] = []

    async def fail_twice(_: object, context: Context) -> EchoReply:
        attempts.append(context.metadata.get_all("attempt-id") + context.metadata.get_all("added"))  # type: ignore[arg-type]
        if len(attempts) < 3:
            raise RpcError(StatusCode.UNAVAILABLE)
        return EchoReply(text="at last")

    async def retry(call: InterceptedCall, proceed: Proceed) -> None:
        for attempt in range(5):
            call.metadata.set_all("attempt-id", [str(attempt)])
            try:
                return await proceed()
            except RpcError:
                assert call.status is StatusCode.UNAVAILABLE
                await trio.sleep(1)
        raise AssertionError

    async def further_in(call: InterceptedCall, proceed: Proceed) -> None:
        call.metadata.add("added", "once")
        call.map_responses(lambda reply: EchoReply(text=reply.text + "!"))
        await proceed()

    servicer = Echo(unary=fail_twice, client_stream=fail_twice)
    async with open_channel_pair(servicer, interceptors=[retry, further_in]) as (channel, _):
        reply = await make_call(EchoStub(channel))
    assert reply.text == "at last!"
    assert attempts == [("0", "once"), ("1", "once"), ("2", "once")]


async def test_attempts_may_run_at_the_same_time(autojump_clock: Clock) -> None:
    async def slow_first(_: EchoRequest, context: Context) -> EchoReply:
        if len(servicer.contexts) == 1:
            await trio.sleep_forever()
        return EchoReply(text=str(len(servicer.contexts)))

    async def hedge(call: InterceptedCall, proceed: Proceed) -> None:
        async def attempt() -> None:
            await proceed()
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(attempt)
                await trio.sleep(1)
        assert call.status is StatusCode.OK

    servicer = Echo(unary=slow_first)
    async with open_channel_pair(servicer, interceptors=[hedge]) as (channel, _):
        assert (await unary(EchoStub(channel), timeout=10)).text == "2"
        assert trio.current_time() < 3


@pytest.mark.parametrize("make_call", AWAITED)
async def test_an_awaited_call_must_have_a_reply_or_an_error(make_call: MakeCall) -> None:
    async def forget(_: object, proceed: Proceed) -> None:
        await trio.lowlevel.checkpoint()

    async def swallow(_: object, proceed: Proceed) -> None:
        try:
            await proceed()
        except RpcError:
            pass

    async with open_channel_pair(Marked(), interceptors=[forget]) as (channel, _):
        with pytest.raises(RuntimeError, match="forget returned, but the call has no reply"):
            await make_call(EchoStub(channel))
    async with open_channel_pair(Marked(), interceptors=[swallow]) as (channel, _):
        with pytest.raises(RuntimeError, match="swallow returned, but the call has no reply"):
            await make_call(EchoStub(channel), metadata={"fail": "yes"})


async def test_an_error_of_an_interceptor_is_that_of_a_call_to_a_handler(caplog: pytest.LogCaptureFixture) -> None:
    """A handler that lets the error of a call that it made escape has failed itself."""

    async def refuse(call: InterceptedCall, proceed: Proceed) -> None:
        raise RpcError(StatusCode.UNAUTHENTICATED, "no token")

    async with open_channel_pair(Echo(), interceptors=[refuse]) as (behind, _):
        for make_call in (unary, client_stream, bidi):

            async def handler(_: EchoRequest, context: Context, make_call: MakeCall = make_call) -> EchoReply:
                return await make_call(EchoStub(behind))

            async with open_channel_pair(Echo(unary=handler)) as (channel, _):
                with pytest.raises(RpcError) as caught:
                    await unary(EchoStub(channel))
            assert caught.value.code is StatusCode.UNKNOWN


async def test_the_status_that_a_handler_raises_in_a_block_is_its_own() -> None:
    async def pass_on(_: object, proceed: Proceed) -> None:
        await proceed()

    async with open_channel_pair(Echo(), interceptors=[pass_on]) as (behind, _):

        async def handler(_: EchoRequest, context: Context) -> EchoReply:
            async with EchoStub(behind).Bidi():
                raise RpcError(StatusCode.NOT_FOUND, "mine")

        async with open_channel_pair(Echo(unary=handler)) as (channel, _):
            with pytest.raises(RpcError, match="mine"):
                await unary(EchoStub(channel))


# -- around a block


@pytest.mark.parametrize("make_call", BLOCKS)
async def test_a_block_needs_its_call(make_call: MakeCall) -> None:
    async def forget(_: object, proceed: Proceed) -> None:
        await trio.lowlevel.checkpoint()

    servicer = Echo()
    async with open_channel_pair(servicer, interceptors=[forget]) as (channel, _):
        with pytest.raises(RuntimeError, match="an interceptor returned without"):
            await make_call(EchoStub(channel))
    assert not servicer.contexts


@pytest.mark.parametrize("kind", [SecretError, KeyboardInterrupt, StopIteration, StopAsyncIteration])
async def test_what_a_block_raises_comes_out_as_itself(kind: type[BaseException]) -> None:
    error = kind("why")
    seen: list[BaseException] = []

    async def look(_: object, proceed: Proceed) -> None:
        try:
            await proceed()
        except BaseException as passing:
            seen.append(passing)
            raise
        finally:
            await trio.lowlevel.checkpoint()

    error.__cause__ = cause = ValueError("cause")
    caught = None
    async with open_channel_pair(Echo(), interceptors=[look, look]) as (channel, _):
        try:
            async with EchoStub(channel).Bidi():
                raise error
        except BaseException as raised:  # noqa: BLE001, RUF100
            caught = raised
    assert caught is error
    # No coroutine can raise this one.
    assert seen[0] is (seen[1] if isinstance(error, StopIteration) else error)
    assert error.__cause__ is cause
    assert error.__context__ is None


async def test_the_end_of_a_generator_that_holds_a_block_passes(autojump_clock: Clock) -> None:
    ended = []

    async def look(_: object, proceed: Proceed) -> None:
        try:
            await proceed()
        finally:
            await trio.sleep(1)
            ended.append(True)

    async with open_channel_pair(Echo(), interceptors=[look]) as (channel, _):

        async def numbers() -> AsyncIterator[int]:
            async with EchoStub(channel).Bidi():
                yield 1

        generator: Any = numbers()
        assert await generator.__anext__() == 1
        await generator.aclose()
    assert ended == [True]


async def test_the_exception_of_a_block_cannot_be_swallowed() -> None:
    async def swallow(_: object, proceed: Proceed) -> None:
        try:
            await proceed()
        except SecretError:
            pass

    error = SecretError()
    async with open_channel_pair(Echo(), interceptors=[swallow]) as (channel, _):
        with pytest.raises(RuntimeError, match="swallowed") as caught:
            async with EchoStub(channel).Bidi():
                raise error
    assert caught.value.__cause__ is error


async def test_the_exception_of_a_block_may_be_turned_into_another() -> None:
    async def translate(_: object, proceed: Proceed) -> None:
        try:
            await proceed()
        except RpcError as error:
            raise SecretError from error

    async with open_channel_pair(Marked(), interceptors=[translate]) as (channel, _):
        for make_call in (*AWAITED, *BLOCKS):
            with pytest.raises(SecretError) as caught:
                await make_call(EchoStub(channel), metadata={"fail": "yes"})
            assert isinstance(caught.value.__cause__, RpcError)


async def test_a_block_runs_once() -> None:
    async def twice(_: object, proceed: Proceed) -> None:
        await proceed()
        await proceed()

    async with open_channel_pair(Echo(), interceptors=[twice]) as (channel, _):
        with pytest.raises(RuntimeError, match="only once"):
            async with EchoStub(channel).Bidi():
                pass
        call = EchoStub(channel).Bidi()
        with pytest.raises(RuntimeError, match="only once"):
            async with call:
                pass
        with pytest.raises(RuntimeError, match="entered only once"):
            await call.__aenter__()


async def test_a_block_belongs_to_the_task_that_has_it() -> None:
    async def elsewhere(_: object, proceed: Proceed) -> None:
        async def attempt() -> None:
            with pytest.raises(RuntimeError, match="not by another task"):
                await proceed()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(attempt)
        await proceed()

    async with open_channel_pair(Echo(), interceptors=[elsewhere]) as (channel, _):
        assert (await bidi(EchoStub(channel))).text == "a"


async def test_a_block_that_cannot_be_opened_may_be_opened_again(autojump_clock: Clock) -> None:
    attempts = []

    async def patient(call: InterceptedCall, proceed: Proceed) -> None:
        while True:
            try:
                return await proceed()
            except RpcError as error:
                attempts.append((call.status, error.code))
                await trio.sleep(3)

    listener = MemoryListener()

    async def dial() -> trio.abc.Stream:
        if not attempts:
            raise OSError("not yet")
        return await listener.connect()

    async with trio.open_nursery() as nursery:
        await nursery.start(trio_grpc.serve, [Echo()], listener)
        async with trio_grpc.open_channel(dial, interceptors=[patient]) as channel:
            assert (await bidi(EchoStub(channel))).text == "a"
        nursery.cancel_scope.cancel()
    assert attempts == [(StatusCode.UNAVAILABLE, StatusCode.UNAVAILABLE)]


async def test_a_nursery_of_an_interceptor_is_around_the_block(autojump_clock: Clock) -> None:
    beats: list[float] = []

    async def beating(_: object, proceed: Proceed) -> None:
        async def beat() -> None:
            while True:
                beats.append(trio.current_time())
                await trio.sleep(1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(beat)
            await proceed()
            nursery.cancel_scope.cancel()

    async with open_channel_pair(Echo(), interceptors=[beating]) as (channel, _):
        async with EchoStub(channel).Bidi():
            await trio.sleep(2.5)
        await trio.sleep(5)
    assert len(beats) == 3


async def test_a_context_variable_is_set_for_the_block() -> None:
    async def name(_: object, proceed: Proceed) -> None:
        token = user.set("block")
        try:
            await proceed()
        finally:
            user.reset(token)

    async with open_channel_pair(Echo(), interceptors=[name]) as (channel, _):
        async with EchoStub(channel).Bidi():
            assert user.get() == "block"
        assert user.get() == "nobody"


async def test_blocks_of_one_task_may_lie_in_each_other() -> None:
    steps: list[int] = []

    async def count(call: InterceptedCall, proceed: Proceed) -> None:
        number = len(steps)
        steps.append(number)
        with trio.CancelScope():
            await proceed()
        steps.append(number)

    async with open_channel_pair(Echo(), interceptors=[count]) as (channel, _):
        stub = EchoStub(channel)
        async with stub.Bidi(), stub.ServerStream(EchoRequest(count=1)) as replies:
            assert len([reply async for reply in replies]) == 1
            await unary(stub)
    assert steps == [0, 1, 2, 2, 1, 0]


# -- scopes and timeouts


async def too_slow(_: object, proceed: Proceed) -> None:
    with trio.fail_after(2):
        await proceed()


@pytest.mark.parametrize("make_call", AWAITED)
async def test_a_scope_of_an_interceptor_bounds_an_awaited_call(make_call: MakeCall, autojump_clock: Clock) -> None:
    servicer = Echo(unary=sleep_forever, client_stream=sleep_forever)
    async with open_channel_pair(servicer, interceptors=[too_slow]) as (channel, _):
        started = trio.current_time()
        with pytest.raises(trio.TooSlowError):
            await make_call(EchoStub(channel))
        assert trio.current_time() == pytest.approx(started + 2)
    if make_call is unary:
        # As a scope of the caller would, it went out with the call.
        assert servicer.contexts[0].deadline == pytest.approx(started + 2, abs=0.01)


async def test_a_scope_of_an_interceptor_is_around_the_block(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo(), interceptors=[too_slow]) as (channel, _):
        started = trio.current_time()
        with pytest.raises(trio.TooSlowError):
            async with EchoStub(channel).Bidi():
                await trio.sleep_forever()
        assert trio.current_time() == pytest.approx(started + 2)


@every_kind
async def test_the_timeout_of_a_call_bounds_its_interceptors(make_call: MakeCall, autojump_clock: Clock) -> None:
    async def get_token(_: object, proceed: Proceed) -> None:
        await trio.sleep_forever()

    async with open_channel_pair(Echo(), interceptors=[get_token]) as (channel, _):
        started = trio.current_time()
        with pytest.raises(RpcError) as caught:
            await make_call(EchoStub(channel), timeout=2)
        assert trio.current_time() == pytest.approx(started + 2)
    assert (caught.value.code, caught.value.message) == (StatusCode.DEADLINE_EXCEEDED, "deadline of 2 s exceeded")


class Sleeping(Echo):
    def __init__(self) -> None:
        super().__init__(
            unary=sleep_forever, server_stream=sleep_forever, client_stream=sleep_forever, bidi=sleep_forever
        )


@every_kind
async def test_interceptors_see_that_a_call_has_timed_out(make_call: MakeCall, autojump_clock: Clock) -> None:
    seen = []

    async def look(call: InterceptedCall, proceed: Proceed) -> None:
        assert call.timeout == pytest.approx(5)
        await trio.sleep(1)
        assert call.timeout == pytest.approx(4)
        with pytest.raises(RpcError, match="deadline") as caught:
            await proceed()
        seen.append(caught.value.code)
        seen.append(call.status)
        raise caught.value

    async with open_channel_pair(Sleeping(), interceptors=[look]) as (channel, _):
        started = trio.current_time()
        with pytest.raises(RpcError) as caught:
            await make_call(EchoStub(channel), timeout=5)
        assert trio.current_time() == pytest.approx(started + 5)
    assert seen == [StatusCode.DEADLINE_EXCEEDED] * 2
    assert caught.value.code is StatusCode.DEADLINE_EXCEEDED


async def test_a_call_that_has_timed_out_is_not_tried_again(autojump_clock: Clock) -> None:
    async def stubborn(_: object, proceed: Proceed) -> None:
        while True:
            try:
                return await proceed()
            except RpcError:
                await trio.sleep(1)

    async with open_channel_pair(Sleeping(), interceptors=[stubborn]) as (channel, _):
        for make_call in AWAITED:
            started = trio.current_time()
            with pytest.raises(RpcError) as caught:
                await make_call(EchoStub(channel), timeout=5)
            assert trio.current_time() == pytest.approx(started + 5)
            assert caught.value.code is StatusCode.DEADLINE_EXCEEDED


@every_kind
async def test_a_timeout_may_be_set(make_call: MakeCall, autojump_clock: Clock) -> None:
    async def bounded(call: InterceptedCall, proceed: Proceed) -> None:
        if call.timeout is None:
            call.timeout = 3
        await proceed()

    async def look(call: InterceptedCall, proceed: Proceed) -> None:
        assert call.timeout == pytest.approx(3)
        await proceed()

    servicer = Sleeping()
    async with open_channel_pair(servicer, interceptors=[bounded, look]) as (channel, _):
        started = trio.current_time()
        with pytest.raises(RpcError) as caught:
            await make_call(EchoStub(channel))
        assert trio.current_time() == pytest.approx(started + 3)
    assert caught.value.code is StatusCode.DEADLINE_EXCEEDED
    assert servicer.contexts[0].deadline == pytest.approx(started + 3, abs=0.01)


async def test_a_timeout_can_be_shortened_only(autojump_clock: Clock) -> None:
    async def change(call: InterceptedCall, proceed: Proceed) -> None:
        assert call.timeout == pytest.approx(5)
        call.timeout = 3
        assert call.timeout == pytest.approx(3)
        call.timeout = 8
        assert call.timeout == pytest.approx(5)
        call.timeout = 3
        call.timeout = None
        assert call.timeout == pytest.approx(5)
        call.timeout = 4
        with pytest.raises(TypeError, match="timeout"):
            call.timeout = "1"  # type: ignore[assignment]
        with pytest.raises(ValueError, match="timeout"):
            call.timeout = float("nan")
        await proceed()

    async def look(call: InterceptedCall, proceed: Proceed) -> None:
        call.timeout = 4.5
        assert call.timeout == pytest.approx(4)
        await proceed()

    async with open_channel_pair(Echo(), interceptors=[change, look]) as (channel, _):
        for make_call in (*AWAITED, *BLOCKS):
            await make_call(EchoStub(channel), timeout=5)


@pytest.mark.parametrize("make_call", AWAITED)
async def test_each_attempt_may_have_a_timeout_of_its_own(make_call: MakeCall, autojump_clock: Clock) -> None:
    async def retry(call: InterceptedCall, proceed: Proceed) -> None:
        while True:
            call.timeout = 1
            try:
                return await proceed()
            except RpcError:
                assert call.status is StatusCode.DEADLINE_EXCEEDED

    servicer = Sleeping()
    async with open_channel_pair(servicer, interceptors=[retry]) as (channel, _):
        started = trio.current_time()
        with pytest.raises(RpcError, match="deadline"):
            await make_call(EchoStub(channel), timeout=3.5)
        assert trio.current_time() == pytest.approx(started + 3.5)
    assert len(servicer.contexts) == 4


async def test_the_timeout_of_a_block_leaves_its_body_alone(autojump_clock: Clock) -> None:
    async def slow(_: object, proceed: Proceed) -> None:
        await trio.sleep(0.5)
        await proceed()
        await trio.sleep(10)

    async with open_channel_pair(Sleeping(), interceptors=[slow]) as (channel, _):
        call = EchoStub(channel).Bidi(timeout=1)
        async with call:
            await trio.sleep(5)
            with pytest.raises(RpcError) as caught:
                await call.receive()
    assert caught.value.code is StatusCode.DEADLINE_EXCEEDED


# -- the server's side


def noting_status(into: list[StatusCode | None]) -> Any:
    async def interceptor(context: ServicerContext[Any], proceed: Proceed) -> None:
        assert context.status is None
        try:
            await proceed()
        finally:
            into.append(context.status)

    return interceptor


async def failing_call(channel: trio_grpc.Channel, make_call: MakeCall = unary, **options: Any) -> RpcError:
    with pytest.raises(RpcError) as caught:
        await make_call(EchoStub(channel), **options)
    return caught.value


@every_kind
async def test_an_interceptor_may_refuse_an_rpc(make_call: MakeCall) -> None:
    seen: list[StatusCode | None] = []

    async def authenticate(context: ServicerContext[Any], proceed: Proceed) -> None:
        if context.metadata.get("token") != "swordfish":
            await context.abort(StatusCode.UNAUTHENTICATED, "no token", trailing_metadata={"realm": "sea"})
        await proceed()

    servicer = Echo()
    interceptors = [noting_status(seen), authenticate]
    async with open_channel_pair(servicer, server_interceptors=interceptors) as (channel, _):
        error = await failing_call(channel, make_call)
        assert (error.code, error.message) == (StatusCode.UNAUTHENTICATED, "no token")
        assert error.trailing_metadata == [("realm", "sea")]
        assert not servicer.contexts
        await make_call(EchoStub(channel), metadata={"token": "swordfish"})
        await trio.testing.wait_all_tasks_blocked()
    assert len(servicer.contexts) == 1
    assert seen == [StatusCode.UNAUTHENTICATED, StatusCode.OK]


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        (partial(RpcError, StatusCode.NOT_FOUND), StatusCode.NOT_FOUND),
        (SecretError, StatusCode.UNKNOWN),
    ],
)
@every_kind
async def test_the_status_of_an_rpc(
    make_call: MakeCall, raised: Callable[[], Exception], status: StatusCode, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> Any:
        raise raised()

    seen: list[StatusCode | None] = []
    servicer = Echo(unary=fail, server_stream=fail, client_stream=fail, bidi=fail)
    async with open_channel_pair(servicer, server_interceptors=[noting_status(seen)] * 2) as (channel, _):
        assert (await failing_call(channel, make_call)).code is status
    assert seen == [status] * 2


async def test_the_status_that_a_handler_aborted_with_stands() -> None:
    async def handler(_: object, context: Context) -> EchoReply:
        with pytest.raises(RpcError):
            await context.abort(StatusCode.DATA_LOSS)
        return EchoReply()

    seen: list[StatusCode | None] = []
    async with open_channel_pair(Echo(unary=handler), server_interceptors=[noting_status(seen)]) as (channel, _):
        assert (await failing_call(channel)).code is StatusCode.DATA_LOSS
    assert seen == [StatusCode.DATA_LOSS]


async def test_the_status_of_an_rpc_that_ends_early(autojump_clock: Clock) -> None:
    async def stubborn(*_: object) -> EchoReply:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            pass
        return EchoReply()

    for handler in (sleep_forever, stubborn):
        seen: list[StatusCode | None] = []
        async with open_channel_pair(Echo(unary=handler), server_interceptors=[noting_status(seen)]) as (channel, _):
            with trio.move_on_after(1):
                async with EchoStub(channel).Unary.open(EchoRequest()):
                    await trio.sleep_forever()
            await trio.testing.wait_all_tasks_blocked()
            assert seen == [StatusCode.CANCELLED]
    seen = []
    async with open_channel_pair(Echo(unary=sleep_forever), server_interceptors=[noting_status(seen)]) as (channel, _):
        await failing_call(channel, timeout=1)
        await trio.testing.wait_all_tasks_blocked()
        assert seen == [StatusCode.DEADLINE_EXCEEDED]
        async with EchoStub(channel).Unary.open(EchoRequest()):
            await trio.testing.wait_all_tasks_blocked()
            await channel.aclose()
    assert seen == [StatusCode.DEADLINE_EXCEEDED, StatusCode.CANCELLED]


async def with_other_tasks(*_: object) -> Any:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        await trio.sleep_forever()


async def with_a_task_that_fails(*_: object) -> Any:
    async def fail_at_the_end() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise SecretError

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail_at_the_end)
        await trio.sleep_forever()


async def hiding(_: object, context: Context) -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(2)
        await context.send(EchoReply())


@pytest.mark.parametrize("handler", [with_other_tasks, with_a_task_that_fails])
async def test_the_status_of_a_handler_that_is_cancelled_together_with_its_tasks(
    handler: Callable[..., Any], autojump_clock: Clock
) -> None:
    seen: list[StatusCode | None] = []
    async with open_channel_pair(Echo(unary=handler), server_interceptors=[noting_status(seen)] * 2) as (
        channel,
        server,
    ):
        await failing_call(channel, timeout=1)
        await trio.testing.wait_all_tasks_blocked()
        assert seen == [StatusCode.DEADLINE_EXCEEDED] * 2
        seen.clear()
        async with EchoStub(channel).Unary.open(EchoRequest()):
            await trio.testing.wait_all_tasks_blocked()
        await trio.testing.wait_all_tasks_blocked()
        assert seen == [StatusCode.CANCELLED] * 2
        seen.clear()
        async with EchoStub(channel).Unary.open(EchoRequest()) as call:
            await trio.testing.wait_all_tasks_blocked()
            await server.drain(grace=0)
            with pytest.raises(RpcError) as caught:
                await call.receive()
        assert caught.value.code is StatusCode.UNAVAILABLE
        assert seen == [StatusCode.UNAVAILABLE] * 2


async def test_an_rpc_whose_client_has_gone_was_cancelled_whatever_its_handler_raises(autojump_clock: Clock) -> None:
    seen: list[StatusCode | None] = []
    async with open_channel_pair(Echo(unary=hiding), server_interceptors=[noting_status(seen)]) as (channel, _):
        async with EchoStub(channel).Unary.open(EchoRequest()):
            await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(3)
    assert seen == [StatusCode.CANCELLED]


async def test_an_interceptor_may_turn_exceptions_into_statuses(caplog: pytest.LogCaptureFixture) -> None:
    async def translate(context: ServicerContext[Any], proceed: Proceed) -> None:
        try:
            await proceed()
        except KeyError as error:
            assert context.status is StatusCode.UNKNOWN
            raise RpcError(StatusCode.NOT_FOUND, f"no {error}") from error

    async def fail(*_: object) -> EchoReply:
        raise KeyError("such thing")

    seen: list[StatusCode | None] = []
    interceptors = [noting_status(seen), translate]
    async with open_channel_pair(Echo(unary=fail), server_interceptors=interceptors) as (channel, _):
        error = await failing_call(channel)
        assert (error.code, error.message) == (StatusCode.NOT_FOUND, "no 'such thing'")
    assert seen == [StatusCode.NOT_FOUND]
    assert not caplog.records


@every_kind
async def test_an_interceptor_may_fail_an_rpc_that_went_well(make_call: MakeCall) -> None:
    async def regret(context: ServicerContext[Any], proceed: Proceed) -> None:
        await proceed()
        raise RpcError(StatusCode.ABORTED, "after all")

    async with open_channel_pair(Echo(), server_interceptors=[regret]) as (channel, _):
        assert str(await failing_call(channel, make_call)) == "ABORTED: after all"


@every_kind
async def test_an_interceptor_may_set_trailing_metadata_at_the_end(make_call: MakeCall) -> None:
    async def measure(context: ServicerContext[Any], proceed: Proceed) -> None:
        await proceed()
        context.set_trailing_metadata({"cost": "7"})

    seen = []

    async def look(call: InterceptedCall, proceed: Proceed) -> None:
        await proceed()
        seen.append(list(call.trailing_metadata))

    async with open_channel_pair(Echo(), interceptors=[look], server_interceptors=[measure]) as (channel, _):
        await make_call(EchoStub(channel))
    assert seen == [[("cost", "7")]]


@pytest.mark.parametrize("end", ["reply", "abort", "raise", "fail"])
async def test_an_interceptor_may_add_trailing_metadata_to_whatever_there_is(end: str) -> None:
    async def add(context: ServicerContext[Any], proceed: Proceed) -> None:
        context.add_trailing_metadata({"before": "1"})
        try:
            await proceed()
        finally:
            context.add_trailing_metadata([("after", "2"), ("after", "3")])

    async def unary(request: EchoRequest, context: Context) -> EchoReply:
        context.set_trailing_metadata({"own": "set"})
        if end == "abort":
            await context.abort(StatusCode.ABORTED, trailing_metadata={"own": "aborted"})
        if end == "raise":
            context.set_trailing_metadata({})
            raise RpcError(StatusCode.ABORTED, trailing_metadata={"own": "raised"})
        if end == "fail":
            raise ZeroDivisionError
        return EchoReply()

    async with open_channel_pair(Echo(unary=unary), server_interceptors=[add]) as (channel, _):
        async with EchoStub(channel).Unary.open(EchoRequest()) as call:
            try:
                await call.receive()
            except RpcError as error:
                trailing_metadata = error.trailing_metadata
            else:
                trailing_metadata = call.trailing_metadata
        own = {"reply": "set", "abort": "aborted", "raise": "raised", "fail": "set"}[end]
        assert list(trailing_metadata) == [("own", own), ("before", "1"), ("after", "2"), ("after", "3")]


async def test_added_trailing_metadata_over_the_limit_of_the_client() -> None:
    async def add(context: ServicerContext[Any], proceed: Proceed) -> None:
        await proceed()
        context.add_trailing_metadata({"large": "x" * 20_000})

    async with open_channel_pair(Echo(), server_interceptors=[add]) as (channel, _):
        with pytest.raises(RpcError, match="trailing metadata") as caught:
            await EchoStub(channel).Unary(EchoRequest())
        assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
        assert not caught.value.trailing_metadata


@every_kind
async def test_an_interceptor_may_answer_in_the_place_of_a_handler(make_call: MakeCall) -> None:
    async def answer(context: ServicerContext[Any], proceed: Proceed) -> None:
        for _ in range(2 if make_call is server_stream else 1):
            await context.send(EchoReply(text="mine"))

    servicer = Echo()
    async with open_channel_pair(servicer, server_interceptors=[answer]) as (channel, _):
        assert (await make_call(EchoStub(channel))).text == "mine"
    assert not servicer.contexts


@pytest.mark.parametrize("make_call", [*AWAITED, unary_block, client_stream_block])
async def test_an_rpc_with_one_reply_needs_it(make_call: MakeCall, caplog: pytest.LogCaptureFixture) -> None:
    async def swallow(context: ServicerContext[Any], proceed: Proceed) -> None:
        if "fail" in context.metadata:
            with pytest.raises(SecretError):
                await proceed()

    async def fail(*_: object) -> EchoReply:
        raise SecretError

    servicer = Echo(unary=fail, client_stream=fail)
    async with open_channel_pair(servicer, server_interceptors=[swallow]) as (channel, _):
        for metadata in ({}, {"fail": "yes"}):
            assert (await failing_call(channel, make_call, metadata=metadata)).code is StatusCode.UNKNOWN
            assert "interceptors of /echo.Echo/" in str(caplog.records[-1].exc_info)


@every_kind
async def test_an_rpc_is_not_answered_by_forgetting_it(make_call: MakeCall, caplog: pytest.LogCaptureFixture) -> None:
    async def forget(*_: object) -> None:
        pass

    async with open_channel_pair(Echo(), server_interceptors=[forget]) as (channel, _):
        assert (await failing_call(channel, make_call)).code is StatusCode.UNKNOWN
    assert "returned without 'await proceed()' and without an answer" in str(caplog.records[-1].exc_info)


async def test_an_interceptor_may_answer_with_an_empty_stream() -> None:
    async def answer(context: ServicerContext[Any], _: Proceed) -> None:
        await context.send_initial_metadata()

    servicer = Echo()
    async with (
        open_channel_pair(servicer, server_interceptors=[answer]) as (channel, _),
        EchoStub(channel).ServerStream(EchoRequest(count=2)) as call,
    ):
        assert [reply async for reply in call] == []
    assert not servicer.contexts


async def test_a_handler_runs_once(caplog: pytest.LogCaptureFixture) -> None:
    async def twice(context: ServicerContext[Any], proceed: Proceed) -> None:
        await proceed()
        await proceed()

    servicer = Echo()
    async with open_channel_pair(servicer, server_interceptors=[twice]) as (channel, _):
        assert (await failing_call(channel)).code is StatusCode.UNKNOWN
    assert "a handler runs once" in str(caplog.records[-1].exc_info)
    assert len(servicer.contexts) == 1


@every_kind
async def test_a_scope_of_an_interceptor_bounds_the_handler(make_call: MakeCall, autojump_clock: Clock) -> None:
    async def bound(context: ServicerContext[Any], proceed: Proceed) -> None:
        with trio.move_on_after(2) as scope:
            await proceed()
        if scope.cancelled_caught:
            await context.abort(StatusCode.RESOURCE_EXHAUSTED, "2 s are enough")

    async with open_channel_pair(Sleeping(), server_interceptors=[bound]) as (channel, _):
        started = trio.current_time()
        assert (await failing_call(channel, make_call)).message == "2 s are enough"
        assert trio.current_time() == pytest.approx(started + 2)


async def test_interceptors_of_a_server_know_the_rpc() -> None:
    seen: list[Any] = []

    async def look(context: ServicerContext[Any], proceed: Proceed) -> None:
        seen.append((context.method.name, context.authority, bool(context.peer), context.time_remaining()))
        await proceed()

    async with open_channel_pair(Echo(), server_interceptors=[look]) as (channel, _):
        for make_call in (unary, server_stream, client_stream, bidi):
            await make_call(EchoStub(channel))
    expected = [(name, "localhost", True, float("inf")) for name in ("Unary", "ServerStream", "ClientStream", "Bidi")]
    assert seen == expected


async def test_rpcs_without_a_handler_are_refused_before_interceptors() -> None:
    async def never(context: ServicerContext[Any], proceed: Proceed) -> None:
        raise AssertionError

    async with open_channel_pair(server_interceptors=[never]) as (channel, _):
        assert (await failing_call(channel)).code is StatusCode.UNIMPLEMENTED


# -- what they leave behind


async def test_calls_with_interceptors_leave_no_garbage(autojump_clock: Clock) -> None:
    async def pass_on(_: Any, proceed: Proceed) -> None:
        await proceed()

    async def look(call: InterceptedCall, proceed: Proceed) -> None:
        call.map_responses(lambda response: response)
        try:
            await proceed()
        finally:
            assert call.status is not None

    both = [pass_on, look]
    async with open_channel_pair(Marked(), interceptors=both, server_interceptors=[pass_on] * 2) as (channel, _):
        stub = EchoStub(channel)

        async def make_calls() -> None:
            for make_call in (*AWAITED, *BLOCKS):
                for metadata in ({}, {"fail": "yes"}):
                    try:
                        await make_call(stub, metadata=metadata, timeout=1)
                    except RpcError:
                        pass

        await make_calls()
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
        before = {id(thing) for thing in gc.get_objects() if isinstance(thing, InterceptedCall)}
        gc.disable()
        try:
            await make_calls()
            await trio.testing.wait_all_tasks_blocked()
            left = [thing for thing in gc.get_objects() if isinstance(thing, InterceptedCall)]
        finally:
            gc.enable()
    assert [call for call in left if id(call) not in before] == []
