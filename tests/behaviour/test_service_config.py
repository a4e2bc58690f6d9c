"""Service configs of channels: whose holds, what becomes of wrong ones, and how the policy is changed meanwhile."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.echo_service import Context, Echo
from tests.support.backends import Backend
from trio_grpc import (
    Channel,
    ClientInterceptor,
    ConnectivityState,
    MethodConfig,
    PickFirst,
    PolicyContext,
    RequestStream,
    ResolverTarget,
    RetryPolicy,
    RetryThrottling,
    RoundRobin,
    RpcError,
    ServiceConfig,
    ServiceConfigError,
    StatusCode,
)
from trio_grpc.testing import ManualResolver

Clock = trio.testing.MockClock

settle = trio.testing.wait_all_tasks_blocked

ROUND_ROBIN = '{"loadBalancingConfig": [{"round_robin": {}}]}'
PICK_FIRST = '{"loadBalancingConfig": [{"pick_first": {}}]}'
WRONG = '{"methodConfig": [{"name": [{}], "timeout": "1h"}]}'


async def start_backends(nursery: trio.Nursery, count: int) -> list[Backend]:
    backends = [Backend(nursery, f"backend {number}") for number in range(count)]
    for backend in backends:
        await backend.start()
    return backends


@contextlib.asynccontextmanager
async def open_over(
    backends: Sequence[Backend], published: Any = None, **options: Any
) -> AsyncIterator[tuple[Channel, ManualResolver]]:
    """A channel over these, with a service config from the resolver."""
    resolver = ManualResolver(*(backend.endpoint for backend in backends), service_config=published)
    async with trio_grpc.open_channel("test:///echo", resolvers={"test": resolver}, **options) as channel:
        yield channel, resolver


async def call(channel: Channel, times: int = 1) -> None:
    for number in range(times):
        assert (await EchoStub(channel).Unary(EchoRequest(count=number))).count == number


async def spread(channel: Channel, backends: Sequence[Backend]) -> list[int]:
    """How many of six calls go to each backend, once everything has settled."""
    channel.connect()
    await settle()
    # Where a backend is new, round_robin may give it one turn before the cycle.
    await call(channel)
    before = [backend.calls for backend in backends]
    await call(channel, 6)
    return [backend.calls - count for backend, count in zip(backends, before, strict=True)]


# ---------------------------------------------------------------------------------------------------------------------
# Whose config holds


@pytest.mark.parametrize(
    "config",
    [
        ROUND_ROBIN,
        ROUND_ROBIN.encode(),
        {"loadBalancingPolicy": "ROUND_ROBIN"},
        ServiceConfig(load_balancing=RoundRobin()),
    ],
)
async def test_a_config_in_any_form_says_where_calls_go(
    config: Any, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    backends = await start_backends(nursery, 3)
    async with open_over(backends) as (channel, _):
        assert await spread(channel, backends) == [6, 0, 0]
    async with open_over(backends, config) as (channel, _):
        assert await spread(channel, backends) == [2, 2, 2]
    resolver = ManualResolver(*(backend.endpoint for backend in backends))
    async with trio_grpc.open_channel("x:///y", resolvers={"x": resolver}, service_config=config) as channel:
        assert await spread(channel, backends) == [2, 2, 2]


async def test_the_channels_own_policy_goes_before_all_configs(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backends = await start_backends(nursery, 2)
    async with open_over(backends, ROUND_ROBIN, load_balancing="pick_first") as (channel, resolver):
        assert await spread(channel, backends) == [6, 0]
        resolver.update(*(backend.endpoint for backend in backends), service_config=ROUND_ROBIN)
        assert await spread(channel, backends) == [6, 0]


async def test_the_resolvers_config_goes_before_the_channels(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backends = await start_backends(nursery, 2)
    endpoints = [backend.endpoint for backend in backends]
    resolver = ManualResolver()
    own = ServiceConfig(methods=[MethodConfig(timeout=1)])
    published = ServiceConfig(load_balancing=RoundRobin())
    async with trio_grpc.open_channel("x:///y", resolvers={"x": resolver}, service_config=own) as channel:
        channel.connect()
        await settle()
        resolver.update(*endpoints, service_config=published)
        assert await spread(channel, backends) == [3, 3]
        assert channel._service_config is published
        # One that is equal makes no difference, nor does what else is published.
        connected = [backend.dials for backend in backends]
        resolver.update(*endpoints, service_config=ROUND_ROBIN)
        assert await spread(channel, backends) == [3, 3]
        assert channel._service_config is published
        resolver.fail(OSError("no names now"))
        assert await spread(channel, backends) == [3, 3]
        assert [backend.dials for backend in backends] == connected
        # None leaves the channel's.
        resolver.update(*endpoints)
        assert await spread(channel, backends) == [6, 0]
        assert channel._service_config is own


async def test_a_config_outlives_the_time_without_calls(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backends = await start_backends(nursery, 2)
    async with open_over(backends, ROUND_ROBIN, idle_timeout=60) as (channel, resolver):
        assert await spread(channel, backends) == [3, 3]
        await trio.sleep(200)
        assert channel.state is ConnectivityState.IDLE
        assert channel._service_config == ServiceConfig(load_balancing=RoundRobin())
        resolver.update(*(backend.endpoint for backend in backends), service_config=WRONG)
        # There was a good one before it, if not in this session.
        assert await spread(channel, backends) == [3, 3]


async def test_the_throttle_keeps_its_tokens_while_its_values_stay(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    (backend,) = await start_backends(nursery, 1)
    throttling = RetryThrottling(max_tokens=10, token_ratio=0.1)
    own = ServiceConfig(retry_throttling=throttling)
    async with open_over([backend], service_config=own) as (channel, resolver):
        throttle = channel._retry_throttle
        assert throttle is not None
        await call(channel)
        throttle.failed()
        left = throttle.tokens
        assert left < 10
        published = ServiceConfig(retry_throttling=throttling, load_balancing=RoundRobin())
        resolver.update(backend.endpoint, service_config=published)
        assert channel._service_config is published
        assert channel._retry_throttle is throttle
        resolver.update(backend.endpoint, service_config={"retryThrottling": {"maxTokens": 10, "tokenRatio": 0.2}})
        assert channel._retry_throttle is not throttle
        assert channel._retry_throttle is not None
        assert channel._retry_throttle.tokens == 10
        resolver.update(backend.endpoint, service_config={})
        assert channel._retry_throttle is None


async def test_a_channel_without_config_has_none(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backends = await start_backends(nursery, 1)
    async with trio_grpc.open_channel(backends[0].dial) as channel:
        await call(channel)
        assert channel._service_config is None


# ---------------------------------------------------------------------------------------------------------------------
# Wrong ones


@pytest.mark.parametrize(
    ("option", "error", "text"),
    [
        (WRONG, ServiceConfigError, 'methodConfig[0].timeout: must be a duration like "1.5s", got "1h"'),
        ("{", ServiceConfigError, "service config: is not JSON: "),
        (1, TypeError, "service_config must be a ServiceConfig, JSON text or a mapping, not int"),
        (PickFirst(), TypeError, "service_config must be a ServiceConfig, JSON text or a mapping, not PickFirst"),
    ],
)
def test_a_wrong_option_fails_at_once(option: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        trio_grpc.open_channel("localhost:1", service_config=option)
    assert text in str(caught.value)


@pytest.mark.parametrize("own", [None, ROUND_ROBIN])
async def test_a_wrong_first_config_is_as_if_resolving_had_failed(
    own: Any, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    backends = await start_backends(nursery, 2)
    endpoints = [backend.endpoint for backend in backends]
    async with open_over(backends, WRONG, service_config=own) as (channel, resolver):
        with pytest.raises(RpcError) as caught:
            await call(channel)
        assert caught.value.code is StatusCode.UNAVAILABLE
        assert caught.value.message == (
            "failed to resolve test:///echo: service config: methodConfig[0].timeout: must be a duration like "
            '"1.5s", got "1h"'
        )
        assert isinstance(caught.value.__cause__, ServiceConfigError)
        assert channel.state is ConnectivityState.TRANSIENT_FAILURE
        await settle()
        # It may be better when it is resolved again.
        assert resolver.requests == 1
        assert [backend.dials for backend in backends] == [0, 0]
        resolver.update(*endpoints, service_config=ROUND_ROBIN)
        assert await spread(channel, backends) == [3, 3]


async def test_a_resolver_may_find_the_fault_itself(autojump_clock: Clock) -> None:
    async def resolver(target: ResolverTarget, resolution: trio_grpc.Resolution, /) -> None:
        await trio.lowlevel.checkpoint()
        resolution.update([], service_config=ServiceConfigError("grpc_config[0]", "must be an object"))

    async with trio_grpc.open_channel("x:///y", resolvers={"x": resolver}) as channel:
        with pytest.raises(RpcError, match=r"x:///y: service config: grpc_config\[0\]: must be an object"):
            await call(channel)


async def test_a_call_may_wait_through_a_wrong_config(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    (backend,) = await start_backends(nursery, 1)
    async with open_over([backend], WRONG) as (channel, resolver), trio.open_nursery() as calls:

        async def wait() -> None:
            await EchoStub(channel).Unary(EchoRequest(), wait_for_ready=True)

        calls.start_soon(wait)
        await settle()
        assert backend.calls == 0
        resolver.update(backend.endpoint)
    assert backend.calls == 1


async def test_with_a_wrong_config_the_one_before_stays_and_the_endpoints_change(
    nursery: trio.Nursery, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    backends = await start_backends(nursery, 3)
    async with open_over(backends[:2], ROUND_ROBIN) as (channel, resolver):
        assert await spread(channel, backends) == [3, 3, 0]
        config = channel._service_config
        with caplog.at_level(logging.WARNING, "trio_grpc"):
            resolver.update(*(backend.endpoint for backend in backends[1:]), service_config=WRONG)
            assert await spread(channel, backends) == [0, 3, 3]
        assert channel._service_config is config
        (record,) = caplog.records
        assert record.getMessage() == (
            "test:///echo: the resolver's new service config is refused: service config: methodConfig[0].timeout: "
            'must be a duration like "1.5s", got "1h"'
        )


async def test_also_no_config_is_one_that_may_stay(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backends = await start_backends(nursery, 2)
    async with open_over(backends) as (channel, resolver):
        assert await spread(channel, backends) == [6, 0]
        resolver.update(backends[1].endpoint, service_config=WRONG)
        assert await spread(channel, backends) == [0, 6]


async def test_a_resolver_is_told_of_what_is_no_config(autojump_clock: Clock) -> None:
    async def resolver(target: ResolverTarget, resolution: trio_grpc.Resolution, /) -> None:
        await trio.lowlevel.checkpoint()
        resolution.update([], service_config=1)  # type: ignore[arg-type]

    async with trio_grpc.open_channel("x:///y", resolvers={"x": resolver}) as channel:
        with pytest.raises(RpcError, match="failed to resolve x:///y: service_config must be a ServiceConfig, JSON"):
            await call(channel)


async def test_a_policy_that_cannot_be_made_fails_calls(
    nursery: trio.Nursery, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def make(context: PolicyContext) -> trio_grpc.LoadBalancingPolicy:
        raise ZeroDivisionError("a mistake in the application")

    backends = await start_backends(nursery, 1)
    async with open_over(backends, ServiceConfig(load_balancing=make)) as (channel, _):
        with pytest.raises(RpcError, match="a mistake in the application") as caught:
            await call(channel)
        assert caught.value.code is StatusCode.UNAVAILABLE
    assert "the load balancing policy of the channel to test:///echo failed" in caplog.text


# ---------------------------------------------------------------------------------------------------------------------
# Another policy while calls go on


async def test_no_call_notices_that_the_policy_changes(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backends = await start_backends(nursery, 3)
    endpoints = [backend.endpoint for backend in backends]
    calls = 0
    async with open_over(backends, PICK_FIRST) as (channel, resolver), trio.open_nursery() as callers:

        async def keep_calling() -> None:
            nonlocal calls
            while True:
                await call(channel)
                calls += 1
                await trio.sleep(0.05)

        for _ in range(4):
            callers.start_soon(keep_calling)
        for round_ in range(10):
            await trio.sleep(1)
            resolver.update(*endpoints, service_config=PICK_FIRST if round_ % 2 else ROUND_ROBIN)
        await trio.sleep(1)
        callers.cancel_scope.cancel()
    assert calls == pytest.approx(4 * 220, rel=0.01)
    assert sum(backend.calls for backend in backends) in range(calls, calls + 5)


async def test_calls_in_flight_go_on_where_they_are(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    (backend,) = await start_backends(nursery, 1)
    async with open_over([backend], PICK_FIRST) as (channel, resolver):
        async with EchoStub(channel).Bidi() as chat:
            await chat.send(EchoRequest(count=1))
            assert (await chat.receive()).count == 1
            resolver.update(backend.endpoint, service_config=ROUND_ROBIN)
            await trio.sleep(1)
            assert backend.dials == 2
            assert channel.statistics().connections == 2
            await chat.send(EchoRequest(count=2))
            assert (await chat.receive()).count == 2
            await chat.done_sending()
        await trio.sleep(1)
        assert channel.statistics().connections == 1


async def test_the_old_policy_serves_while_the_new_one_connects(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    (backend,) = await start_backends(nursery, 1)

    async def never() -> trio.abc.Stream:
        await trio.sleep(math.inf)
        raise AssertionError

    silent = trio_grpc.Endpoint("silent", connect=never)
    async with open_over([backend], PICK_FIRST) as (channel, resolver):
        await call(channel)
        resolver.update(silent, service_config=ROUND_ROBIN)
        for _ in range(19):
            await trio.sleep(1)
            await call(channel)
        assert channel.state is ConnectivityState.READY
        # Its attempt is over after 20 seconds.
        await trio.sleep(2)
        with pytest.raises(RpcError, match="failed to connect to silent"):
            await call(channel)
        assert channel.statistics().connections == 0


async def test_a_policy_that_is_not_ready_is_replaced_at_once(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backends = [Backend(nursery, "down"), *await start_backends(nursery, 2)]
    async with open_over(backends[:1], PICK_FIRST) as (channel, resolver):
        with pytest.raises(RpcError, match="failed to connect to down"):
            await call(channel)
        resolver.update(*(backend.endpoint for backend in backends), service_config=ROUND_ROBIN)
        await settle()
        assert await spread(channel, backends) == [0, 3, 3]


async def test_an_option_of_the_policy_changes(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backends = await start_backends(nursery, 2)
    shuffled = {"loadBalancingConfig": [{"pick_first": {"shuffleAddressList": True}}]}
    async with open_over(backends, PICK_FIRST) as (channel, resolver):
        await call(channel)
        resolver.update(backends[1].endpoint, service_config=shuffled)
        assert await spread(channel, backends) == [0, 6]
        assert channel.statistics().connections == 1


# ---------------------------------------------------------------------------------------------------------------------
# Before the resolver has said anything

Operation = Callable[..., Awaitable[Any]]


async def unary(stub: EchoStub, request: EchoRequest, **options: Any) -> Any:
    return await stub.Unary(request, **options)


async def unary_block(stub: EchoStub, request: EchoRequest, **options: Any) -> Any:
    async with stub.Unary.open(request, **options) as call:
        return await call.receive()


async def server_stream(stub: EchoStub, request: EchoRequest, **options: Any) -> Any:
    async with stub.ServerStream(request, **options) as call:
        return await call.receive()


async def client_stream(stub: EchoStub, request: EchoRequest, **options: Any) -> Any:
    return await stub.ClientStream([request], **options)


async def bidi(stub: EchoStub, request: EchoRequest, **options: Any) -> Any:
    async with stub.Bidi(**options) as call:
        await call.send(request)
        await call.done_sending()
        return await call.receive()


OPERATIONS = (unary, unary_block, server_stream, client_stream, bidi)

every_kind = pytest.mark.parametrize("operation", OPERATIONS)


async def plain(call: trio_grpc.InterceptedCall, proceed: trio_grpc.Proceed) -> None:
    await proceed()


async def mapping(call: trio_grpc.InterceptedCall, proceed: trio_grpc.Proceed) -> None:
    call.map_requests(lambda request: request)
    call.map_responses(lambda response: response)
    await proceed()


#: Also where an interceptor stands in between, and one that looks at the messages.
intercepted = pytest.mark.parametrize("interceptors", [(), (plain,), (mapping,)], ids=["", "plain", "mapping"])


@contextlib.asynccontextmanager
async def unresolved(
    interceptors: Sequence[ClientInterceptor] = (), **options: Any
) -> AsyncIterator[tuple[EchoStub, ManualResolver]]:
    resolver = ManualResolver()
    options = {"resolvers": {"x": resolver}, "interceptors": interceptors, **options}
    async with trio_grpc.open_channel("x:///y", **options) as channel:
        yield EchoStub(channel), resolver


class Hanging(Echo):
    """Never answers."""

    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        await trio.sleep(math.inf)
        raise AssertionError

    async def ServerStream(self, request: EchoRequest, context: Context, /) -> AsyncIterator[EchoReply]:
        await trio.sleep(math.inf)
        yield EchoReply()

    async def ClientStream(self, requests: RequestStream[EchoRequest], context: Context, /) -> EchoReply:
        await trio.sleep(math.inf)
        raise AssertionError

    async def Bidi(self, requests: RequestStream[EchoRequest], context: Context, /) -> AsyncIterator[EchoReply]:
        await trio.sleep(math.inf)
        yield EchoReply()


@every_kind
@intercepted
async def test_the_first_call_waits_for_its_timeout_and_counts_the_wait(
    operation: Operation, interceptors: Sequence[ClientInterceptor], nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    backend = Backend(nursery, "backend")
    await backend.start(Hanging())
    async with unresolved(interceptors) as (stub, resolver), trio.open_nursery() as calls:

        async def resolve() -> None:
            await trio.sleep(3)
            resolver.update(backend.endpoint, service_config={"methodConfig": [{"name": [{}], "timeout": "5s"}]})

        calls.start_soon(resolve)
        with pytest.raises(RpcError) as caught:
            await operation(stub, EchoRequest(count=1))
        assert caught.value.code is StatusCode.DEADLINE_EXCEEDED
        assert trio.current_time() == pytest.approx(5)


@intercepted
@pytest.mark.parametrize("kind", ["Unary", "ServerStream", "ClientStream", "Bidi"])
async def test_a_block_that_is_entered_later_learns_what_was_not_known_when_it_was_made(
    kind: str, interceptors: Sequence[ClientInterceptor], nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    backend = Backend(nursery, "backend")
    await backend.start(Hanging())
    async with unresolved(interceptors) as (stub, resolver):
        requests = [EchoRequest()] if kind in ("Unary", "ServerStream") else []
        call = getattr(stub, kind).open(*requests)
        resolver.update(backend.endpoint, service_config={"methodConfig": [{"name": [{}], "timeout": "5s"}]})
        with pytest.raises(RpcError, match="DEADLINE_EXCEEDED"):
            # What makes the channel resolve the name.
            await stub.Unary(EchoRequest())
        began = trio.current_time()
        with pytest.raises(RpcError, match="DEADLINE_EXCEEDED"), trio.fail_after(10):
            async with call:
                await call.receive()
        assert trio.current_time() - began == pytest.approx(5)


@every_kind
@intercepted
async def test_the_first_call_learns_that_it_is_to_wait_for_ready(
    operation: Operation, interceptors: Sequence[ClientInterceptor], nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    backend = Backend(nursery, "backend")
    async with unresolved(interceptors) as (stub, resolver), trio.open_nursery() as calls:

        async def appear() -> None:
            await trio.sleep(1)
            resolver.update(backend.endpoint, service_config={"methodConfig": [{"name": [{}], "waitForReady": True}]})
            await trio.sleep(10)
            await backend.start()

        calls.start_soon(appear)
        assert (await operation(stub, EchoRequest(payload=b"x", count=1))).payload == b"x"
        assert backend.refusals > 1


@every_kind
@intercepted
async def test_the_first_call_is_held_to_the_limits(
    operation: Operation, interceptors: Sequence[ClientInterceptor], nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    (backend,) = await start_backends(nursery, 1)
    for field in ("maxRequestMessageBytes", "maxResponseMessageBytes"):
        config = {"methodConfig": [{"name": [{}], field: 100}]}
        async with unresolved(interceptors) as (stub, resolver), trio.open_nursery() as calls:

            async def resolve(resolver: ManualResolver = resolver, config: Any = config) -> None:
                await trio.sleep(1)
                resolver.update(backend.endpoint, service_config=config)

            calls.start_soon(resolve)
            with pytest.raises(RpcError) as caught:
                await operation(stub, EchoRequest(payload=bytes(200), count=1))
            assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
            assert (field in caught.value.message) == (field == "maxRequestMessageBytes")
            assert (await operation(stub, EchoRequest(payload=bytes(50), count=1))).payload == bytes(50)


@every_kind
@intercepted
async def test_the_first_call_is_tried_again(
    operation: Operation, interceptors: Sequence[ClientInterceptor], nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    class Failing(Echo):
        def fail(self) -> None:
            self.calls += 1
            if self.calls == 1:
                raise RpcError(StatusCode.ABORTED, "not now")
            self.calls -= 1

        async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
            self.fail()
            return await super().Unary(request, context)

        async def ServerStream(self, request: EchoRequest, context: Context, /) -> AsyncIterator[EchoReply]:
            self.fail()
            async for reply in super().ServerStream(request, context):
                yield reply

        async def ClientStream(self, requests: RequestStream[EchoRequest], context: Context, /) -> EchoReply:
            self.fail()
            return await super().ClientStream(requests, context)

        async def Bidi(self, requests: RequestStream[EchoRequest], context: Context, /) -> AsyncIterator[EchoReply]:
            self.fail()
            async for reply in super().Bidi(requests, context):
                yield reply

    policy = RetryPolicy(
        max_attempts=2,
        initial_backoff=1,
        max_backoff=1,
        backoff_multiplier=1,
        retryable_status_codes=[StatusCode.ABORTED],
    )
    backend = Backend(nursery, "backend")
    await backend.start(Failing())
    async with unresolved(interceptors) as (stub, resolver), trio.open_nursery() as calls:

        async def resolve() -> None:
            await trio.sleep(1)
            config = ServiceConfig(methods=[MethodConfig(retry_policy=policy)])
            resolver.update(backend.endpoint, service_config=config)

        calls.start_soon(resolve)
        assert (await operation(stub, EchoRequest(payload=b"x", count=1))).payload == b"x"
        assert backend.calls == 2


@every_kind
@intercepted
async def test_the_time_of_a_call_ends_while_it_waits_for_the_resolver(
    operation: Operation, interceptors: Sequence[ClientInterceptor], autojump_clock: Clock
) -> None:
    async with unresolved(interceptors) as (stub, _):
        with pytest.raises(RpcError) as caught:
            await operation(stub, EchoRequest(), timeout=5)
        assert caught.value.code is StatusCode.DEADLINE_EXCEEDED
        assert caught.value.message.endswith("exceeded; not connected: still resolving x:///y")
        assert trio.current_time() == pytest.approx(5)
        with trio.move_on_after(1) as scope:
            await operation(stub, EchoRequest())
        assert scope.cancelled_caught


@every_kind
@intercepted
async def test_a_resolver_that_fails_fails_calls_that_do_not_wait_for_ready(
    operation: Operation, interceptors: Sequence[ClientInterceptor], nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    (backend,) = await start_backends(nursery, 1)
    own = ServiceConfig(methods=[MethodConfig(wait_for_ready=True)])
    async with unresolved(interceptors, service_config=own) as (stub, resolver), trio.open_nursery() as calls:
        resolver.fail(OSError("no names"))
        # The channel's own config does not count yet: the resolver might have another one.
        with pytest.raises(RpcError, match="failed to resolve x:///y: no names") as caught:
            await operation(stub, EchoRequest())
        assert caught.value.code is StatusCode.UNAVAILABLE

        async def resolve() -> None:
            await trio.sleep(10)
            assert backend.calls == 0
            resolver.update(backend.endpoint)

        calls.start_soon(resolve)
        await operation(stub, EchoRequest(count=1), wait_for_ready=True)
        assert backend.calls == 1


@every_kind
@intercepted
async def test_a_channel_is_closed_while_calls_wait_for_the_resolver(
    operation: Operation, interceptors: Sequence[ClientInterceptor], autojump_clock: Clock
) -> None:
    async with trio.open_nursery() as calls:

        async def operate() -> None:
            with pytest.raises(trio.ClosedResourceError, match="channel closed"):
                await operation(stub, EchoRequest())

        async with unresolved(interceptors) as (stub, _):
            calls.start_soon(operate)
            await trio.sleep(1)
    with pytest.raises(trio.ClosedResourceError, match="channel closed"):
        await operation(stub, EchoRequest())


async def test_a_channel_that_waits_for_its_resolver_is_not_idle(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    (backend,) = await start_backends(nursery, 1)
    async with unresolved(idle_timeout=10) as (stub, resolver), trio.open_nursery() as calls:
        calls.start_soon(unary, stub, EchoRequest())
        await trio.sleep(100)
        assert len(resolver.targets) == 1
        resolver.update(backend.endpoint)
    assert backend.calls == 1


async def test_what_is_published_after_the_channel_went_idle_changes_nothing(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    backends = await start_backends(nursery, 2)
    resolutions: list[trio_grpc.Resolution] = []

    async def resolver(_: ResolverTarget, resolution: trio_grpc.Resolution, /) -> None:
        resolutions.append(resolution)
        resolution.update([backend.endpoint for backend in backends], ROUND_ROBIN)

    async with trio_grpc.open_channel("x:///y", resolvers={"x": resolver}, idle_timeout=10) as channel:
        assert await spread(channel, backends) == [3, 3]
        await trio.sleep(100)
        assert channel.state is ConnectivityState.IDLE
        assert await spread(channel, backends) == [3, 3]
        before, now = resolutions
        for config in ({"methodConfig": [{"name": [{}], "timeout": "0s"}]}, PICK_FIRST, WRONG):
            before.update([], config)
            assert await spread(channel, backends) == [3, 3]
        now.update([backends[1].endpoint], ROUND_ROBIN)
        assert await spread(channel, backends) == [0, 6]
