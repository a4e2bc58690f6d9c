"""Channels that ask their backends whether they are well, and send calls to those that say so (gRFC A17)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.echo_service import Waiting
from tests.support.backends import Backend
from trio_grpc import (
    Channel,
    ConnectionScaling,
    ConnectivityState,
    HealthCheckConfig,
    Limits,
    RpcError,
    ServiceConfig,
    StatusCode,
)
from trio_grpc.health import HealthCheckRequest, HealthCheckResponse, HealthServicer, ServingStatus
from trio_grpc.testing import ManualResolver

Clock = trio.testing.MockClock

settle = trio.testing.wait_all_tasks_blocked

SERVICE = "echo.Echo"


class Watched(HealthServicer):
    """A health service that counts who watches it.

    Attributes:
        watches: begun so far.
        watching: right now.
        metadata: what the last one sent.
        ends: what ends a watch, and those that begin from then on: before their answer, or after it.
    """

    def __init__(self) -> None:
        super().__init__([SERVICE])
        self.watches: list[float] = []
        self.watching = 0
        self.metadata: dict[str, Any] = {}
        self.ends: RpcError | None = None
        self.answers_first = False

    async def Watch(self, request: HealthCheckRequest, context: Any, /) -> AsyncIterator[HealthCheckResponse]:
        self.watches.append(trio.current_time())
        self.metadata = dict(context.metadata)
        self.watching += 1
        try:
            if self.ends is not None and not self.answers_first:
                raise self.ends
            replies: Any = super().Watch(request, context)
            async with contextlib.aclosing(replies):
                async for reply in replies:
                    yield reply
                    if self.ends is not None:
                        raise self.ends
        finally:
            self.watching -= 1


class Healthy(Backend):
    """A backend with a health service."""

    def __init__(self, nursery: trio.Nursery, name: str) -> None:
        super().__init__(nursery, name)
        self.health = Watched()
        self.others = (self.health,)

    def say(self, status: ServingStatus) -> None:
        self.health.set(SERVICE, status)


async def start_backends(nursery: trio.Nursery, count: int) -> list[Healthy]:
    backends = [Healthy(nursery, f"backend {number}") for number in range(count)]
    for backend in backends:
        await backend.start()
    return backends


@contextlib.asynccontextmanager
async def open_over(
    backends: Sequence[Backend], service: str | None = SERVICE, **options: Any
) -> AsyncIterator[tuple[Channel, ManualResolver]]:
    resolver = ManualResolver(*(backend.endpoint for backend in backends))
    options = {"service_config": config(service), "load_balancing": "round_robin", "idle_timeout": None, **options}
    async with trio_grpc.open_channel("test:///echo", resolvers={"test": resolver}, **options) as channel:
        yield channel, resolver


def config(service: str | None) -> ServiceConfig:
    return ServiceConfig(health_check=None if service is None else HealthCheckConfig(service_name=service))


async def call(channel: Channel, times: int = 1) -> None:
    for _ in range(times):
        await EchoStub(channel).Unary(EchoRequest())


async def refused(channel: Channel) -> str:
    with pytest.raises(RpcError) as caught:
        await call(channel)
    assert caught.value.code is StatusCode.UNAVAILABLE
    return caught.value.message


async def test_calls_go_to_the_healthy_only(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    one, two = await start_backends(nursery, 2)
    two.say(ServingStatus.NOT_SERVING)
    async with open_over([one, two]) as (channel, _):
        await channel.wait_ready()
        await settle()
        await call(channel, 10)
        assert (one.calls, two.calls) == (10, 0)
        two.say(ServingStatus.SERVING)
        one.say(ServingStatus.NOT_SERVING)
        await settle()
        await call(channel, 10)
        assert (one.calls, two.calls) == (10, 10)
        # Nothing was connected to anew for that.
        assert (one.dials, two.dials) == (1, 1)
        assert (len(one.health.watches), len(two.health.watches)) == (1, 1)


async def test_a_call_waits_for_the_first_answer(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    class Late(Watched):
        async def Watch(self, request: HealthCheckRequest, context: Any, /) -> AsyncIterator[HealthCheckResponse]:
            await trio.sleep(7)
            async for reply in super().Watch(request, context):
                yield reply

    (backend,) = [Healthy(nursery, "backend")]
    backend.others = (Late(),)
    await backend.start()
    async with open_over([backend]) as (channel, _):
        channel.connect()
        await trio.sleep(1)
        assert channel.state is ConnectivityState.CONNECTING
        assert backend.dials == 1
        await call(channel)
        assert trio.current_time() == 7


async def test_calls_fail_with_the_reason_where_none_is_healthy(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    one, two = await start_backends(nursery, 2)
    one.say(ServingStatus.NOT_SERVING)
    async with open_over([one, two], "Greeter") as (channel, _):
        assert await refused(channel) == (
            "connected to backend 0, but service 'Greeter' is SERVICE_UNKNOWN, says its health service; "
            "connected to backend 1, but service 'Greeter' is SERVICE_UNKNOWN, says its health service "
            "(target test:///echo)"
        )
        assert channel.state is ConnectivityState.TRANSIENT_FAILURE
        # Some are patient.
        async with trio.open_nursery() as calls:
            calls.start_soon(lambda: EchoStub(channel).Unary(EchoRequest(), wait_for_ready=True))
            await trio.sleep(100)
            one.health.set("Greeter", ServingStatus.SERVING)
        assert one.calls == 1
        assert trio.current_time() == 100


async def test_a_call_in_flight_survives_the_news(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backend = Healthy(nursery, "backend")
    waiting = Waiting()
    await backend.start(waiting)
    async with open_over([backend]) as (channel, _), trio.open_nursery() as calls:
        calls.start_soon(call, channel)
        await waiting.started.wait()
        backend.say(ServingStatus.NOT_SERVING)
        await trio.sleep(5)
        assert channel.state is ConnectivityState.TRANSIENT_FAILURE
        waiting.gate.set()


async def test_pick_first_does_not_ask(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    (backend,) = await start_backends(nursery, 1)
    backend.say(ServingStatus.NOT_SERVING)
    async with open_over([backend], load_balancing="pick_first") as (channel, _):
        await call(channel, 2)
        assert backend.health.watches == []


async def test_a_server_without_health_counts_as_healthy(
    nursery: trio.Nursery, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "trio_grpc")
    backend = Backend(nursery, "backend")
    await backend.start()
    async with open_over([backend]) as (channel, _):
        await call(channel, 2)
        await trio.sleep(1000)
        await call(channel, 2)
    assert caplog.messages == [
        "backend does not serve /grpc.health.v1.Health/Watch, and counts as healthy while it is connected"
    ]
    caplog.clear()


async def test_a_watch_that_fails_is_begun_again_with_backoff(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    (backend,) = await start_backends(nursery, 1)
    backend.health.ends = RpcError(StatusCode.INTERNAL, "a defect")
    async with open_over([backend]) as (channel, _):
        assert await refused(channel) == (
            "connected to backend 0, but watching the health of service 'echo.Echo' ended with INTERNAL: a defect "
            "(target test:///echo)"
        )
        await trio.sleep(20)
        waits = [
            later - earlier for earlier, later in zip(backend.health.watches, backend.health.watches[1:], strict=False)
        ]
        for wait, expected in zip(waits, (1, 1.6, 2.56, 4.096), strict=False):
            assert 0.8 * expected <= wait <= 1.2 * expected
        assert len(waits) >= 4
        # A failed attempt in between is no reason to let calls wait.
        assert channel.state is ConnectivityState.TRANSIENT_FAILURE
        backend.health.ends = None
        await trio.sleep(20)
        await call(channel)
        assert backend.dials == 1


async def test_a_watch_that_had_its_answer_is_begun_again_at_once(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    (backend,) = await start_backends(nursery, 1)
    async with open_over([backend]) as (channel, _):
        await call(channel)
        await trio.sleep(100)
        backend.health.ends = RpcError(StatusCode.ABORTED, "a new version")
        backend.health.answers_first = True
        backend.say(ServingStatus.NOT_SERVING)
        await trio.testing.wait_all_tasks_blocked()
        # Also a server that does so all the time costs no busy loop.
        await trio.sleep(10)
        starts = backend.health.watches
        assert starts[:2] == [0, 100]
        assert len(starts) < 15
        backend.health.ends = None
        backend.say(ServingStatus.SERVING)
        await trio.sleep(20)
        await call(channel)


async def test_the_channel_goes_idle_all_the_same_and_ends_its_watches(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    one, two = await start_backends(nursery, 2)
    two.health.ends = RpcError(StatusCode.INTERNAL, "a defect")
    async with open_over([one, two], idle_timeout=60) as (channel, _):
        await call(channel)
        await trio.sleep(59)
        assert channel.statistics().state == "ready"
        assert one.health.watching == 1
        await trio.sleep(20)
        assert channel.state is ConnectivityState.IDLE
        assert channel.statistics().connections == 0
        assert one.health.watching == 0
        await call(channel)
        assert (one.dials, two.dials) == (2, 2)


async def test_a_channel_is_not_idle_while_a_call_waits_for_the_stream_that_its_watch_has(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    backend = Healthy(nursery, "backend")
    await backend.start(limits=Limits(adaptive_window=False, max_concurrent_streams=1))
    resolver = ManualResolver(backend.endpoint, service_config=config(SERVICE))
    async with trio_grpc.open_channel(
        "test:///echo", resolvers={"test": resolver}, load_balancing="round_robin", idle_timeout=60
    ) as channel:
        await channel.wait_ready()
        async with trio.open_nursery() as calls:
            calls.start_soon(call, channel)
            await trio.sleep(1000)
            assert channel.statistics().waiting == 1
            assert (backend.dials, backend.calls) == (1, 0)
            resolver.update(backend.endpoint, service_config=config(None))
        assert backend.calls == 1
        await trio.sleep(120)
        assert channel.state is ConnectivityState.IDLE


async def test_the_watch_ends_with_the_address(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    one, two = await start_backends(nursery, 2)
    async with open_over([one, two]) as (channel, resolver):
        await channel.wait_ready()
        await settle()
        assert (one.health.watching, two.health.watching) == (1, 1)
        resolver.update(one.endpoint)
        await settle()
        assert (one.health.watching, two.health.watching) == (1, 0)
        assert channel.statistics().connections == 1


async def test_a_server_that_drains_is_not_kept_by_a_watch(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    one, two = await start_backends(nursery, 2)
    async with open_over([one, two]) as (channel, _):
        await channel.wait_ready()
        await settle()
        async with trio.open_nursery() as calls:
            calls.start_soon(call, channel, 100)
            await trio.lowlevel.checkpoint()
            before = trio.current_time()
            await one.drain()
            assert trio.current_time() - before < 1
        assert one.calls + two.calls == 100
        # Somebody who comes back is asked again.
        one.health.resume()
        await one.start()
        await trio.sleep(10)
        await call(channel, 10)
        assert one.calls == 5
        assert one.health.watching == 1


async def test_another_service_and_none_take_effect_at_once(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    one, two = await start_backends(nursery, 2)
    one.health.set("Greeter", ServingStatus.SERVING)
    async with open_over([one, two]) as (channel, resolver):
        await channel.wait_ready()
        await settle()
        await call(channel, 10)
        assert (one.calls, two.calls) == (5, 5)
        resolver.update(one.endpoint, two.endpoint, service_config=config("Greeter"))
        await settle()
        await call(channel, 10)
        assert (one.calls, two.calls) == (15, 5)
        one.health.set("Greeter", ServingStatus.NOT_SERVING)
        await settle()
        assert "service 'Greeter' is NOT_SERVING" in await refused(channel)
        resolver.update(one.endpoint, two.endpoint, service_config=config(None))
        await settle()
        await call(channel, 10)
        assert (one.calls, two.calls) == (20, 10)
        assert (one.health.watching, two.health.watching) == (0, 0)
        resolver.update(one.endpoint, two.endpoint, service_config=config(""))
        await settle()
        await call(channel, 10)
        assert (one.health.watching, two.health.watching) == (1, 1)


async def test_the_watch_carries_the_metadata_of_the_channel(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    (backend,) = await start_backends(nursery, 1)
    async with open_over([backend], metadata={"authorization": "Bearer t0ken"}) as (channel, _):
        await call(channel)
        assert backend.health.metadata["authorization"] == "Bearer t0ken"


async def test_the_watch_takes_one_of_the_streams_that_a_server_allows(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    # "This stream counts toward MAX_CONCURRENT_STREAMS" (A17, Caveats).
    backend = Healthy(nursery, "backend")
    await backend.start(limits=Limits(adaptive_window=False, max_concurrent_streams=2))
    async with open_over([backend]) as (channel, _):
        await call(channel, 3)
        assert backend.calls == 3
        assert channel.statistics().streams == 1


async def test_the_watch_moves_when_its_connection_goes_and_another_stays(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    backend = Healthy(nursery, "backend")
    waiting = Waiting()
    await backend.start(waiting, limits=Limits(adaptive_window=False, max_concurrent_streams=2))
    scaled = ServiceConfig(
        health_check=HealthCheckConfig(service_name=SERVICE),
        connection_scaling=ConnectionScaling(max_connections_per_subchannel=2),
    )
    async with open_over([backend], service_config=scaled) as (channel, _):
        async with trio.open_nursery() as calls:
            for _ in range(3):
                calls.start_soon(call, channel)
            await trio.sleep(1)
            # One connection carries the watch and a call, the other one two calls.
            assert waiting.entered == 3
            assert channel.statistics().connections == 2
            waiting.gate.set()
        oldest = min(channel._balancer.connections, key=lambda connection: not connection.table.background)
        await oldest.aclose()
        await settle()
        assert (backend.health.watching, len(backend.health.watches)) == (1, 2)
        assert channel.state is ConnectivityState.READY
        await call(channel)
        backend.say(ServingStatus.NOT_SERVING)
        await settle()
        assert "NOT_SERVING" in await refused(channel)
        assert backend.dials == 2


async def test_a_policy_that_picks_what_is_not_ready_yet_waits_for_the_answer_too(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    one, two = await start_backends(nursery, 2)
    one.say(ServingStatus.NOT_SERVING)
    two.say(ServingStatus.NOT_SERVING)
    async with open_over([one, two], load_balancing=trio_grpc.RingHash()) as (channel, _):
        async with trio.open_nursery() as calls:
            for _ in range(4):
                calls.start_soon(lambda: EchoStub(channel).Unary(EchoRequest(), wait_for_ready=True))
            await trio.sleep(100)
            assert (one.calls, two.calls) == (0, 0)
            one.say(ServingStatus.SERVING)
            two.say(ServingStatus.SERVING)
        assert one.calls + two.calls == 4
