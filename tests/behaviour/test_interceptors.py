"""Interceptors: around the call on either side, in order, with the call's data and nobody else's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

from tests.support.echo import Context, Echo
from trio_grpc import Proceed, ServicerContext
from trio_grpc.testing import open_channel_pair

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
