"""`trio_grpc.testing.FakeServicer`: answers that a test chooses, and calls that it looks at."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer, EchoStub

import trio_grpc
from tests.echo_service import Echo
from trio_grpc import Cardinality, Method, RpcError, StatusCode
from trio_grpc.testing import FakeCall, FakeServicer, open_channel_pair

Clock = trio.testing.MockClock


async def test_it_replies_and_keeps_what_it_was_asked() -> None:
    fake = FakeServicer(EchoServicer)
    unary = fake.on(EchoServicer.Unary).reply(EchoReply(text="hello"))
    async with open_channel_pair(fake) as (channel, _):
        reply = await EchoStub(channel).Unary(EchoRequest(text="hi"), metadata=[("who", "me")], timeout=5)
    assert reply.text == "hello"
    (call,) = unary.calls
    assert call.request.text == "hi"
    assert call.metadata["who"] == "me"
    assert 0 < call.time_remaining <= 5
    assert not call.cancelled


async def test_outcomes_come_in_their_order_and_the_last_one_stays() -> None:
    fake = FakeServicer(EchoServicer)
    fake.on(EchoServicer.Unary).abort(StatusCode.NOT_FOUND, "not yet").reply(EchoReply(count=1)).reply(
        EchoReply(count=2)
    )
    async with open_channel_pair(fake) as (channel, _):
        stub = EchoStub(channel)
        with pytest.raises(RpcError, match="not yet") as caught:
            await stub.Unary(EchoRequest())
        assert caught.value.code is StatusCode.NOT_FOUND
        assert [(await stub.Unary(EchoRequest())).count for _ in range(3)] == [1, 2, 2]
    assert len(fake.on(EchoServicer.Unary).calls) == 4


async def test_streams_give_all_replies_and_then_a_status() -> None:
    fake = FakeServicer(EchoServicer)
    error = RpcError(StatusCode.DATA_LOSS, "that was all")
    fake.on(EchoServicer.ServerStream).reply(EchoReply(count=1), EchoReply(count=2), then=error).reply()
    fake.on(EchoServicer.Bidi).reply(EchoReply(count=3))
    fake.on(EchoServicer.ClientStream).reply(EchoReply(count=4))
    async with open_channel_pair(fake) as (channel, _):
        stub = EchoStub(channel)
        received = []
        with pytest.raises(RpcError) as caught:  # noqa: PT012 -- what came before the error counts
            async with stub.ServerStream(EchoRequest()) as replies:
                async for reply in replies:
                    received.append(reply.count)  # noqa: PERF401
        assert received == [1, 2]
        assert caught.value.code is StatusCode.DATA_LOSS
        async with stub.ServerStream(EchoRequest()) as replies:
            assert [reply async for reply in replies] == []
        async with stub.Bidi() as chat:
            await chat.send(EchoRequest(text="a"))
            await chat.send(EchoRequest(text="b"))
            await chat.done_sending()
            assert [reply.count async for reply in chat] == [3]
        assert (await stub.ClientStream([EchoRequest(), EchoRequest()])).count == 4
    assert [request.text for request in fake.on(EchoServicer.Bidi).calls[0].requests] == ["a", "b"]
    (call,) = fake.on(EchoServicer.ClientStream).calls
    with pytest.raises(ValueError, match="the call had 2 requests: look at 'requests'"):
        _ = call.request


async def test_a_function_decides() -> None:
    async def double(call: FakeCall[EchoRequest]) -> EchoReply:
        return EchoReply(count=2 * call.request.count)

    fake = FakeServicer(EchoServicer)
    fake.on(EchoServicer.Unary).run(double)
    async with open_channel_pair(fake) as (channel, _):
        assert (await EchoStub(channel).Unary(EchoRequest(count=21))).count == 42


async def test_delays_pass_on_trios_clock_and_cancelled_calls_are_told(autojump_clock: Clock) -> None:
    fake = FakeServicer(EchoServicer)
    unary = fake.on(EchoServicer.Unary).reply(EchoReply(), delay=3600)
    async with open_channel_pair(fake) as (channel, _):
        stub = EchoStub(channel)
        with trio.move_on_after(60):
            await stub.Unary(EchoRequest())
        started = trio.current_time()
        await stub.Unary(EchoRequest())
        assert trio.current_time() - started == pytest.approx(3600)
    assert [call.cancelled for call in unary.calls] == [True, False]


async def test_a_method_that_was_told_nothing_says_how_to_tell_it() -> None:
    async with open_channel_pair(FakeServicer(EchoServicer)) as (channel, _):
        with pytest.raises(RpcError) as caught:
            await EchoStub(channel).Unary(EchoRequest())
    assert caught.value.code is StatusCode.UNIMPLEMENTED
    assert caught.value.message == "the fake was not told what to do: fake.on(EchoServicer.Unary).reply(...)"


def uNary(self: object, request: EchoRequest, context: object) -> None: ...


def test_what_makes_no_sense_is_refused_at_once() -> None:
    fake = FakeServicer(EchoServicer)
    with pytest.raises(TypeError, match=r"/echo\.Echo/Unary replies EchoReply, not EchoRequest"):
        fake.on(EchoServicer.Unary).reply(EchoRequest())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"/echo\.Echo/Unary gives one response, not 2"):
        fake.on(EchoServicer.Unary).reply(EchoReply(), EchoReply())
    with pytest.raises(TypeError, match=r"/echo\.Echo/Bidi gives a stream"):
        fake.on(EchoServicer.Bidi).run(lambda call: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match="EchoServicer has no method 'uNary': did you mean Unary"):
        fake.on(uNary)
    with pytest.raises(ValueError, match=r"method must be EchoServicer\.Unary itself, not its name"):
        fake.on("Unary")  # type: ignore[arg-type]
    for other in Echo.Unary, Echo().Unary:
        with pytest.raises(ValueError, match=r"method must be EchoServicer\.Unary, of the class that the fake"):
            fake.on(other)
    with pytest.raises(ValueError, match="delay must be 0 or more seconds, got -1"):
        fake.on(EchoServicer.Unary).reply(EchoReply(), delay=-1)
    with pytest.raises(ValueError, match="delay must be 0 or more seconds, got -1"):
        fake.on(EchoServicer.Unary).abort(StatusCode.NOT_FOUND, delay=-1)
    with pytest.raises(TypeError, match="then must be RpcError or None, not str"):
        fake.on(EchoServicer.Bidi).reply(then="end")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"/echo\.Echo/Unary can run an async function, not EchoReply"):
        fake.on(EchoServicer.Unary).run(EchoReply())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"servicer_class must be a generated \.\.\.Servicer class"):
        FakeServicer(EchoServicer())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="OK"):
        fake.on(EchoServicer.Unary).abort(StatusCode.OK)


async def test_an_rpc_may_be_called_as_a_method_of_the_fake(autojump_clock: Clock) -> None:
    method: Method[EchoRequest, EchoReply] = Method("a.B", "on", Cardinality.UNARY_UNARY, EchoRequest, EchoReply)

    class Servicer(trio_grpc.Servicer):
        __trio_grpc_methods__ = {"on": method}  # noqa: RUF012 # as in generated code

        async def on(self, request: EchoRequest, context: trio_grpc.ServicerContext[EchoReply]) -> EchoReply:
            raise NotImplementedError

    fake = FakeServicer(Servicer)
    fake.on(Servicer.on).reply(EchoReply(text="x"))
    async with open_channel_pair(fake) as (channel, _):
        assert (await trio_grpc.UnaryUnaryMethod(channel, method)(EchoRequest())).text == "x"
