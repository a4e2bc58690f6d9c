"""Interceptors as options, and what an intercepted call is before there is a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer, EchoStub

import trio_grpc
from tests.support.echo import Echo
from trio_grpc import InterceptedCall, Proceed, RpcError, StatusCode
from trio_grpc._interceptors import check_interceptors, intercept
from trio_grpc._options import name_of
from trio_grpc.testing import MemoryListener, open_channel_pair

Clock = trio.testing.MockClock


async def pass_on(_: Any, proceed: Proceed) -> None:
    await proceed()


class Counting:
    """An interceptor may be an object."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, _: Any, proceed: Proceed) -> None:
        self.calls += 1
        await proceed()


async def yielding(_: Any, proceed: Proceed) -> Any:
    """As context managers and the fixtures of tests are written."""
    yield
    await proceed()


class Yielding:
    async def __call__(self, _: Any, proceed: Proceed) -> Any:
        yield
        await proceed()


class Started:
    """An instance for each call, which is awaited."""

    def __init__(self, _: Any, proceed: Proceed) -> None:
        self._proceed = proceed

    def __await__(self) -> Any:
        return self._proceed().__await__()


# -- the options


OPENERS: list[Callable[[Any], Any]] = [
    lambda interceptors: trio_grpc.open_channel("localhost:1", interceptors=interceptors),
    lambda interceptors: open_channel_pair(EchoServicer(), interceptors=interceptors),
]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (pass_on, "interceptors must be a list of async callables, not function"),
        (1, "interceptors must be a list of async callables, not int"),
        ([pass_on, "log"], r"interceptors\[1\] must be an async callable, not str"),
        ([Counting], r"interceptors\[0\] must be .*, not the class Counting: did you mean Counting\(\)\?"),
        ([yielding], r"interceptors\[0\] must be .*, but yielding has a 'yield'"),
        ([Yielding()], r"interceptors\[0\] must be .*, but Yielding has a 'yield'"),
    ],
)
async def test_wrong_interceptors_fail_at_once(wrong: Any, text: str) -> None:
    for open_one in OPENERS:
        with pytest.raises(TypeError, match=text):
            open_one(wrong)
    with pytest.raises(TypeError, match=text):
        await trio_grpc.serve([EchoServicer()], MemoryListener(), interceptors=wrong)
    with pytest.raises(TypeError, match=text):
        async with open_channel_pair(EchoServicer(), server_interceptors=wrong):
            raise AssertionError


async def test_an_iterable_of_any_callables_will_do() -> None:
    here, there = Counting(), Counting()
    async with open_channel_pair(
        Echo(), interceptors=(one for one in (here, here)), server_interceptors=iter([there])
    ) as (channel, _):
        for _ in range(2):
            await EchoStub(channel).Unary(EchoRequest())
    assert (here.calls, there.calls) == (4, 2)
    async with open_channel_pair(Echo(), interceptors=[Started], server_interceptors=[Started]) as (channel, _):
        assert (await EchoStub(channel).Unary(EchoRequest(text="a"))).text == "a"


def test_interceptors_are_kept_in_order() -> None:
    first, second = Counting(), Counting()
    assert check_interceptors([first, second]) == (first, second)
    assert check_interceptors(()) == ()


def test_interceptors_have_names_in_messages() -> None:
    assert name_of(pass_on) == "pass_on"
    assert name_of(Counting.__call__) == "Counting.__call__"
    assert name_of(Counting()) == "Counting"


# -- the objects of a stub


async def test_stubs_of_channels_without_interceptors_know_nothing_of_them() -> None:
    plainly, around = open_channel_pair(Echo()), open_channel_pair(Echo(), interceptors=[pass_on])
    async with plainly as (channel, _), around as (other, _):
        for name in ("Unary", "ServerStream", "ClientStream", "Bidi"):
            plain, intercepted = getattr(EchoStub(channel), name), getattr(EchoStub(other), name)
            assert type(plain).__module__ == "trio_grpc._stub"
            assert type(plain).__mro__[1].__name__ == "_Method"
            assert isinstance(intercepted, type(plain))
            assert type(intercepted) is not type(plain)
            assert intercepted.method is plain.method
        assert isinstance(EchoStub(other).Bidi(), trio_grpc.StreamStreamCall)
        assert isinstance(EchoStub(other).Bidi.open(), trio_grpc.StreamStreamCall)
        assert isinstance(EchoStub(other).ServerStream.open(EchoRequest()), trio_grpc.UnaryStreamCall)
        assert isinstance(EchoStub(other).ClientStream.open(), trio_grpc.StreamUnaryCall)
        assert isinstance(EchoStub(other).Unary.open(EchoRequest()), trio_grpc.UnaryUnaryCall)
        with pytest.raises(TypeError, match="no_such"):
            EchoStub(other).Bidi(no_such=1)  # type: ignore[call-arg]


async def test_methods_can_be_made_with_keywords() -> None:
    async with open_channel_pair(Echo(), interceptors=[pass_on]) as (channel, _):
        method = trio_grpc.UnaryUnaryMethod(channel=channel, method=EchoStub(channel).Unary.method)
        assert (await method(EchoRequest(text="a"))).text == "a"


# -- the chain


def make_call(timeout: float | None = None, awaited: bool = True) -> InterceptedCall:
    method: Any = EchoServicer.__trio_grpc_methods__["Unary"]
    return InterceptedCall(
        method,
        target="target",
        awaited=awaited,
        request=None,
        timeout=timeout,
        fields=(),
        wait_for_ready=None,
        compression=None,
    )


async def test_a_call_without_interceptors_is_its_end(autojump_clock: Clock) -> None:
    async def end(call: InterceptedCall) -> None:
        call.reply = "reply"

    call = make_call()
    await intercept(call, (), end)
    assert (call.reply, call.status) == ("reply", StatusCode.OK)


async def test_each_interceptor_has_the_call_to_itself(autojump_clock: Clock) -> None:
    calls: list[InterceptedCall] = []

    async def keep(call: InterceptedCall, proceed: Proceed) -> None:
        calls.append(call)
        call.metadata.add("key", str(len(calls)))
        call.state.__dict__.setdefault("first", call)
        await proceed()
        call.reply += str(calls.index(call))

    async def end(call: InterceptedCall) -> None:
        call.reply = "reply"

    outside = make_call()
    await intercept(outside, (keep, keep, keep), end)
    assert [call.metadata.get_all("key") for call in (outside, *calls)] == [("1",), ("1",), ("1", "2"), ("1", "2", "3")]
    assert [call.reply for call in (outside, *calls)] == ["reply210", "reply210", "reply21", "reply2"]
    assert all(call.state.first is calls[0] for call in calls)


async def test_the_time_of_a_call_is_over_for_its_interceptors_too(autojump_clock: Clock) -> None:
    ends = 0

    async def again_and_again(_: InterceptedCall, proceed: Proceed) -> None:
        while True:
            try:
                await proceed()
            except RpcError:
                pass

    async def end(call: InterceptedCall) -> None:
        nonlocal ends
        ends += 1
        await trio.sleep(1)
        raise RpcError(StatusCode.DEADLINE_EXCEEDED)

    with pytest.raises(RpcError, match=r"deadline of 2\.5 s exceeded"):
        await intercept(make_call(2.5), (again_and_again,), end)
    assert ends == 4


async def test_what_a_call_is_before_it_runs(autojump_clock: Clock) -> None:
    call = make_call(7, awaited=False)
    assert call.method.name == "Unary"
    assert (call.timeout, call.status, call.peer, call.reply) == (7, None, "", None)
    assert (len(call.metadata), len(call.initial_metadata), len(call.trailing_metadata)) == (0, 0, 0)
    assert repr(call) == "<InterceptedCall /echo.Echo/Unary open>"
    call.state.anything = 1
    await trio.sleep(8)
    assert call.timeout == 0


# -- a context's state


async def test_the_state_of_a_context_is_there_without_interceptors() -> None:
    async def handler(_: EchoRequest, context: trio_grpc.ServicerContext[EchoReply]) -> EchoReply:
        assert not hasattr(context.state, "count")
        context.state.count = 7
        assert context.status is None
        return EchoReply(count=context.state.count)

    async with open_channel_pair(Echo(unary=handler)) as (channel, _):
        for _ in range(2):
            assert (await EchoStub(channel).Unary(EchoRequest())).count == 7
