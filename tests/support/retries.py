"""A service whose attempts end as a test says, and the policies that tests of retries and hedges ask for."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer, EchoStub

from trio_grpc import (
    Channel,
    HedgingPolicy,
    MethodConfig,
    RequestStream,
    RetryPolicy,
    RetryThrottling,
    RpcError,
    ServiceConfig,
    ServicerContext,
    StatusCode,
)
from trio_grpc._attempts import Attempts
from trio_grpc._balancing.config_in_force import ConfigInForce
from trio_grpc._transport.stream import Stream
from trio_grpc.testing import HeadersFrame, ScriptedPeer

Context = ServicerContext[EchoReply]
PUSHBACK = "grpc-retry-pushback-ms"


@attrs.frozen(kw_only=True)
class End:
    """How one attempt ends.

    Attributes:
        code: its status; OK for an echo.
        after: seconds that it takes before it does anything.
        headers: whether initial metadata goes out first, and commits the call.
        then: seconds between the two.
        pushback: values of that metadata, sent with the status.
        message: of the status.
        read: requests that it reads of a stream before it ends; None for all of them.
    """

    code: StatusCode = StatusCode.OK
    after: float = 0
    headers: bool = False
    then: float = 0
    pushback: tuple[str, ...] = ()
    message: str = ""
    read: int | None = None


OK = End()
FAIL = End(code=StatusCode.UNAVAILABLE, message="overloaded")


@attrs.define
class Attempt:
    """What the service has seen of one attempt.

    Attributes:
        time: when it began.
        previous: what it said of attempts before it.
        requests: those that it has read.
        cancelled: whether it was.
        context: of its handler.
    """

    time: float
    previous: list[str]
    context: Context
    requests: list[EchoRequest] = attrs.field(factory=list)
    cancelled: bool = False


class Flaky(EchoServicer):
    """Echoes, once the ends that it was given are used up.

    Attributes:
        attempts: all that began, in order.
        name: goes into the initial metadata, and into replies without a text.
    """

    def __init__(self, *ends: End, name: str = "") -> None:
        self._ends = list(ends)
        self.attempts: list[Attempt] = []
        self.name = name

    @property
    def times(self) -> list[float]:
        """When the attempts began, in seconds after the first."""
        return [round(attempt.time - self.attempts[0].time, 3) for attempt in self.attempts]

    @property
    def previous(self) -> list[list[str]]:
        return [attempt.previous for attempt in self.attempts]

    async def _run(
        self,
        requests: AsyncIterator[EchoRequest] | EchoRequest,
        context: Context,
        reply: Callable[[EchoRequest], Awaitable[None]],
    ) -> None:
        """Read requests, reply to each where all goes well, and end as this attempt should."""
        end = self._ends.pop(0) if self._ends else OK
        previous = context.metadata.get_all("grpc-previous-rpc-attempts")
        attempt = Attempt(trio.current_time(), [str(value) for value in previous], context)
        self.attempts.append(attempt)
        number = len(self.attempts)
        succeeds = end.code is StatusCode.OK
        try:
            await trio.sleep(end.after)
            if end.headers or succeeds:
                await context.send_initial_metadata({"attempt": str(number), "server": self.name})
            await trio.sleep(end.then)
            if isinstance(requests, EchoRequest):
                attempt.requests.append(requests)
                if succeeds:
                    await reply(requests)
            elif end.read != 0:
                async for request in requests:
                    attempt.requests.append(request)
                    if succeeds:
                        await reply(request)
                    if len(attempt.requests) == end.read:
                        break
            if not succeeds:
                raise RpcError(
                    end.code,
                    end.message,
                    trailing_metadata=[("attempt", str(number)), *((PUSHBACK, value) for value in end.pushback)],
                )
        except trio.Cancelled:
            attempt.cancelled = True
            raise

    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        await self._run(request, context, _no_reply)
        return EchoReply(payload=request.payload, count=request.count, text=request.text or self.name)

    async def ServerStream(self, request: EchoRequest, context: Context, /) -> None:
        async def reply(_: EchoRequest) -> None:
            for number in range(request.count):
                await context.send(EchoReply(payload=request.payload, count=number, text=self.name))

        await self._run(request, context, reply)

    async def ClientStream(self, requests: RequestStream[EchoRequest], context: Context, /) -> EchoReply:
        await self._run(requests, context, _no_reply)
        read = self._attempt_of(context).requests
        return EchoReply(payload=b"".join(request.payload for request in read), count=len(read), text=self.name)

    async def Bidi(self, requests: RequestStream[EchoRequest], context: Context, /) -> None:
        async def reply(request: EchoRequest) -> None:
            await context.send(EchoReply(payload=request.payload, count=request.count, text=request.text or self.name))

        await self._run(requests, context, reply)

    def _attempt_of(self, context: Context) -> Attempt:
        (attempt,) = [attempt for attempt in self.attempts if attempt.context is context]
        return attempt


async def _no_reply(_: EchoRequest) -> None:
    """The reply is the handler's."""


def retry_policy(**options: Any) -> RetryPolicy:
    """Four attempts, a second apart and then twice as long each time, where a server is unavailable."""
    return RetryPolicy(
        **{
            "max_attempts": 4,
            "initial_backoff": 1,
            "max_backoff": 100,
            "backoff_multiplier": 2,
            "retryable_status_codes": {StatusCode.UNAVAILABLE},
            **options,
        }
    )


#: Two retries, about a second apart.
TWO_RETRIES = ServiceConfig(
    methods=[MethodConfig(retry_policy=retry_policy(max_attempts=3, max_backoff=1, backoff_multiplier=1))]
)


def hedging_policy(**options: Any) -> HedgingPolicy:
    """Three attempts, a second apart."""
    return HedgingPolicy(
        **{
            "max_attempts": 3,
            "hedging_delay": 1,
            "non_fatal_status_codes": {StatusCode.UNAVAILABLE},
            **options,
        }
    )


def configure(channel: Channel, throttling: RetryThrottling | None = None, **options: Any) -> None:
    """Give a channel a service config with these options for all methods."""
    config = ServiceConfig(methods=[MethodConfig(**options)], retry_throttling=throttling)
    channel._balancer.config_in_force = ConfigInForce(channel.target, config)
    channel._use_config(config)


# -- one call of every kind

A, B = EchoRequest(text="a", count=1), EchoRequest(text="b")

#: Makes a call, and returns the texts of its replies.
Operation = Callable[[EchoStub], Awaitable[list[str]]]


async def unary(stub: EchoStub) -> list[str]:
    return [(await stub.Unary(A)).text]


async def unary_with_timeout(stub: EchoStub) -> list[str]:
    return [(await stub.Unary(A, timeout=1000)).text]


async def unary_block(stub: EchoStub) -> list[str]:
    async with stub.Unary.open(A) as call:
        return [(await call.receive()).text]


async def server_stream(stub: EchoStub) -> list[str]:
    async with stub.ServerStream(A, timeout=1000) as call:
        return [reply.text async for reply in call]


async def client_stream(stub: EchoStub) -> list[str]:
    async def requests() -> AsyncIterator[EchoRequest]:
        yield A
        await trio.sleep(3)
        yield B

    return [(await stub.ClientStream(requests())).text]


async def client_stream_block(stub: EchoStub) -> list[str]:
    async with stub.ClientStream.open() as call:
        with contextlib.suppress(trio.BrokenResourceError):
            await call.send(A)
            await call.send(B)
        await call.done_sending()
        return [(await call.receive()).text]


async def bidi(stub: EchoStub) -> list[str]:
    async with stub.Bidi() as call:
        with contextlib.suppress(trio.BrokenResourceError):
            await call.send(A)
            await trio.sleep(3)
            await call.send(B)
        await call.done_sending()
        await call.wait_initial_metadata()
        return [reply.text async for reply in call]


OPERATIONS = [unary, unary_with_timeout, unary_block, server_stream, client_stream, client_stream_block, bidi]
every_kind = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)


async def head_of(peer: ScriptedPeer, stream_id: int) -> HeadersFrame:
    """The head of a call; what comes of others is passed over."""
    while True:
        frame = await peer.receive_frame()
        if isinstance(frame, HeadersFrame) and frame.stream_id == stream_id:
            return frame


async def answer(peer: ScriptedPeer, stream_id: int) -> None:
    """A whole answer."""
    async with peer.one_segment():
        await peer.send_response(stream_id)
        await peer.send_message(stream_id, EchoReply(text="done").SerializeToString())
        await peer.send_trailers(stream_id)


def _is_of_a_call(thing: object) -> bool:
    """Whether something is part of a call as its client sees it: a stream, or what stands for one."""
    return isinstance(thing, Attempts) or (isinstance(thing, Stream) and thing.request is None)


async def assert_no_garbage_of_calls(run: Callable[[], Awaitable[None]]) -> None:
    """Make calls twice; the second time, without the collector, leaves nothing of them that the first has not left."""
    await run()
    gc.collect()
    gc.disable()
    try:
        # Not those of other tests, which may have failed.
        before = sum(map(_is_of_a_call, gc.get_objects()))
        await run()
        assert sum(map(_is_of_a_call, gc.get_objects())) == before
    finally:
        gc.enable()
