"""Channels that leave out backends whose calls fail more than those of the others (gRFC A50)."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
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
    ConnectivityState,
    FailurePercentageEjection,
    HealthCheckConfig,
    LeastRequest,
    OutlierDetection,
    PickFirst,
    RingHash,
    RoundRobin,
    RpcError,
    ServiceConfig,
    StatusCode,
    SuccessRateEjection,
    WeightedRoundRobin,
)
from trio_grpc.health import HealthServicer, ServingStatus
from trio_grpc.testing import ManualResolver

Clock = trio.testing.MockClock

settle = trio.testing.wait_all_tasks_blocked

FAILURES = FailurePercentageEjection(threshold=50, minimum_hosts=3, request_volume=5)


def by_failures(child: Any, **options: Any) -> OutlierDetection:
    options = {"success_rate_ejection": None, "failure_percentage_ejection": FAILURES, **options}
    return OutlierDetection(child=child, **options)


class Moody(Echo):
    """Fails as it is told to.

    Attributes:
        fault: what its calls raise; None for nothing.
        sleeps: seconds that a call takes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fault: RpcError | None = None
        self.sleeps = 0.0

    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        reply = await super().Unary(request, context)
        await trio.sleep(self.sleeps)
        if self.fault is not None:
            raise self.fault
        return reply


class Place(Backend):
    """A backend with moods, and with a health service."""

    def __init__(self, nursery: trio.Nursery, name: str) -> None:
        super().__init__(nursery, name)
        self.health = HealthServicer()
        self.others = (self.health,)
        self.moody = Moody()

    @property
    def calls(self) -> int:
        return self.moody.calls

    def fail(self) -> None:
        self.moody.fault = RpcError(StatusCode.INTERNAL, "out of sorts")

    def recover(self) -> None:
        self.moody.fault = None


async def start_places(nursery: trio.Nursery, count: int = 5) -> list[Place]:
    places = [Place(nursery, f"backend {number}") for number in range(count)]
    for place in places:
        await place.start(place.moody)
    return places


@contextlib.asynccontextmanager
async def open_over(
    places: Sequence[Place], policy: Any, **options: Any
) -> AsyncIterator[tuple[Channel, ManualResolver]]:
    resolver = ManualResolver(*(place.endpoint for place in places))
    options = {"load_balancing": policy, "idle_timeout": None, **options}
    async with trio_grpc.open_channel("test:///echo", resolvers={"test": resolver}, **options) as channel:
        # All are connected to before anything is counted.
        channel.connect()
        await settle()
        yield channel, resolver


async def call(channel: Channel, times: int, **options: Any) -> Counter[StatusCode]:
    """Make calls, ten in a second; return how they ended."""
    outcomes: Counter[StatusCode] = Counter()
    for number in range(times):
        try:
            await EchoStub(channel).Unary(EchoRequest(), **options)
        except RpcError as error:
            outcomes[error.code] += 1
        else:
            outcomes[StatusCode.OK] += 1
        if number % 10 == 9:
            await trio.sleep(1)
    return outcomes


async def shares(channel: Channel, places: Sequence[Place], times: int = 50) -> list[int]:
    before = [place.calls for place in places]
    await call(channel, times)
    return [place.calls - count for place, count in zip(places, before, strict=True)]


def about(*shares: float) -> list[Any]:
    """Shares as they are when turns go on where they were: a little off after backends have come and gone."""
    return [pytest.approx(share, abs=2) if share else 0 for share in shares]


@pytest.mark.parametrize("child", [RoundRobin(), LeastRequest(), WeightedRoundRobin(), RingHash()])
async def test_a_backend_that_fails_gets_no_calls_for_a_while(
    nursery: trio.Nursery, autojump_clock: Clock, child: Any
) -> None:
    places = await start_places(nursery)
    bad = places[1]
    bad.fail()
    async with open_over(places, by_failures(child)) as (channel, _):
        # Those of ring_hash are connected to when they are called.
        await call(channel, 150)
        assert bad.calls > 0
        assert trio.current_time() == pytest.approx(15)
        before = bad.calls
        outcomes = await call(channel, 200)
        assert bad.calls == before
        assert outcomes == {StatusCode.OK: 200}
        bad.recover()
        await trio.sleep(20)
        # Its time was over; it was not even connected to anew.
        assert min(await shares(channel, places, 200)) > 0
        assert bad.dials == 1


async def test_a_backend_that_is_slow_is_an_outlier_of_its_deadlines(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    places = await start_places(nursery)
    places[2].moody.sleeps = 100
    async with open_over(places, by_failures(RoundRobin())) as (channel, _):
        outcomes = await call(channel, 50, timeout=0.05)
        assert [outcomes[StatusCode.OK], outcomes[StatusCode.DEADLINE_EXCEEDED]] == about(40, 10)
        await trio.sleep(10)
        assert await call(channel, 50, timeout=0.05) == {StatusCode.OK: 50}


async def test_callers_that_give_up_make_no_outlier(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    places = await start_places(nursery)
    places[2].moody.sleeps = 100
    async with open_over(places, by_failures(RoundRobin())) as (channel, _):
        for _ in range(50):
            with trio.move_on_after(0.05):
                await EchoStub(channel).Unary(EchoRequest())
        await trio.sleep(10)
        before = places[2].calls
        with trio.move_on_after(10):
            await call(channel, 50)
        assert places[2].calls > before


async def test_streams_count_when_they_end(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    class Breaks(Moody):
        async def ServerStream(self, request: EchoRequest, context: Context, /) -> AsyncIterator[EchoReply]:
            yield EchoReply()
            await trio.sleep(1)
            if self.fault is not None:
                raise self.fault

    places = [Place(nursery, f"backend {number}") for number in range(4)]
    for place in places:
        place.moody = Breaks()
        await place.start(place.moody)
    places[0].fail()

    async def stream(channel: Channel) -> None:
        with contextlib.suppress(RpcError):
            async with EchoStub(channel).ServerStream(EchoRequest()) as replies:
                async for _ in replies:
                    pass

    async with open_over(places, by_failures(RoundRobin())) as (channel, _):
        await channel.wait_ready()
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as calls:
            for _ in range(20):
                calls.start_soon(stream, channel)
        await trio.sleep(10)
        assert (await shares(channel, places))[0] == 0


async def test_lost_connections_count_too(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    places = await start_places(nursery)
    bad = places[0]
    bad.moody.sleeps = 0.5
    async with open_over(places, by_failures(RoundRobin())) as (channel, _):
        async with trio.open_nursery() as calls:
            for _ in range(40):
                calls.start_soon(call, channel, 1)
            await trio.sleep(0.2)
            await bad.stop()
        await bad.start(bad.moody)
        await trio.sleep(15)
        # It is up again, and ejected.
        assert bad.calls == pytest.approx(8, abs=2)
        assert await shares(channel, places) == about(0, *[12.5] * 4)
        bad.moody.sleeps = 0
        await trio.sleep(40)
        assert await shares(channel, places) == about(*[10] * 5)


async def test_one_backend_of_a_few_is_not_the_outlier_of_a_bad_day(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    places = await start_places(nursery)
    for place in places:
        place.fail()
    ejection = SuccessRateEjection(minimum_hosts=3, request_volume=5)
    async with open_over(places, OutlierDetection(child=RoundRobin(), success_rate_ejection=ejection)) as (channel, _):
        await call(channel, 150)
        # All are equally bad, and nobody is an outlier.
        assert await shares(channel, places) == about(*[10] * 5)
        for place in places[1:]:
            place.recover()
        await call(channel, 150)
        assert (await shares(channel, places))[0] == 0


async def test_no_more_than_may_be_are_left_out(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    places = await start_places(nursery)
    for place in places[:3]:
        place.fail()
    async with open_over(places, by_failures(RoundRobin(), max_ejection_percent=40)) as (channel, _):
        await call(channel, 150)
        assert (await shares(channel, places)).count(0) == 2


async def test_with_health_watching_each_leaves_out_its_own(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    places = await start_places(nursery)
    places[0].fail()
    places[1].health.set("", ServingStatus.NOT_SERVING)
    config = ServiceConfig(health_check=HealthCheckConfig(service_name=""))
    async with open_over(places, by_failures(RoundRobin()), service_config=config) as (channel, _):
        await call(channel, 105)
        assert places[1].calls == 0
        assert (await shares(channel, places, 60)) == about(0, 0, 20, 20, 20)
        # An ejected one that says it is well stays ejected; an ill one that is ejected is still ill afterwards.
        places[0].health.set("", ServingStatus.NOT_SERVING)
        places[0].recover()
        await trio.sleep(50)
        assert (await shares(channel, places, 60)) == about(0, 0, 20, 20, 20)
        places[0].health.set("", ServingStatus.SERVING)
        places[1].health.set("", ServingStatus.SERVING)
        await settle()
        assert (await shares(channel, places, 60)) == about(*[12] * 5)


async def test_calls_say_why_where_all_are_ejected(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    places = await start_places(nursery, 3)
    for place in places:
        place.fail()
    async with open_over(places, by_failures(RoundRobin(), max_ejection_percent=100)) as (channel, _):
        await call(channel, 110)
        assert channel.state is ConnectivityState.TRANSIENT_FAILURE
        with pytest.raises(RpcError) as caught:
            await EchoStub(channel).Unary(EchoRequest())
        assert caught.value.code is StatusCode.UNAVAILABLE
        assert "backend 1 gets no calls for a while as an outlier: " in caught.value.message
        # The patient outlast it.
        for place in places:
            place.recover()
        await EchoStub(channel).Unary(EchoRequest(), wait_for_ready=True)
        assert trio.current_time() == pytest.approx(50)


def json_config(**fields: Any) -> dict[str, Any]:
    policy = {
        "childPolicy": [{"round_robin": {}}],
        "failurePercentageEjection": {"threshold": 50, "minimumHosts": 3, "requestVolume": 5},
        **fields,
    }
    return {"loadBalancingConfig": [{"outlier_detection_experimental": policy}]}


async def test_another_service_config_keeps_what_is_known(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    places = await start_places(nursery)
    endpoints = [place.endpoint for place in places]
    places[0].fail()
    async with open_over(places, None, service_config=json_config()) as (channel, resolver):
        await call(channel, 105)
        assert (await shares(channel, places, 40)) == about(0, 10, 10, 10, 10)
        # Another length of the ejection, and another child.
        resolver.update(*endpoints, service_config=json_config(baseEjectionTime="100s"))
        await settle()
        assert [place.dials for place in places] == [1] * 5
        child: Any = [{"least_request_experimental": {}}]
        resolver.update(*endpoints, service_config=json_config(baseEjectionTime="100s", childPolicy=child))
        await trio.sleep(60)
        assert (await shares(channel, places, 100))[0] == 0
        # Another policy knows nothing.
        resolver.update(*endpoints, service_config={"loadBalancingConfig": [{"round_robin": {}}]})
        await settle()
        assert (await shares(channel, places, 50)) == about(*[10] * 5)


async def test_the_child_decides_whether_health_is_watched(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    places = await start_places(nursery, 3)
    endpoints = [place.endpoint for place in places]
    for place in places:
        place.health.set("", ServingStatus.NOT_SERVING)
    watched = {"healthCheckConfig": {"serviceName": ""}}
    config = {**json_config(childPolicy=[{"pick_first": {}}]), **watched}
    async with open_over(places, None, service_config=config) as (channel, resolver):
        assert (await shares(channel, places, 10)) == [10, 0, 0]
        resolver.update(*endpoints, service_config={**json_config(), **watched})
        await settle()
        with pytest.raises(RpcError) as caught:
            await EchoStub(channel).Unary(EchoRequest())
        assert "the server is NOT_SERVING" in caught.value.message
        resolver.update(*endpoints, service_config=config)
        await settle()
        assert (await shares(channel, places, 10)) == [10, 0, 0]


async def test_pick_first_is_left_alone(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    places = await start_places(nursery, 3)
    places[0].fail()
    async with open_over(places, by_failures(PickFirst(), interval=1)) as (channel, _):
        assert await call(channel, 100) == {StatusCode.INTERNAL: 100}
        assert places[0].calls == 100


async def test_it_ends_with_the_channel_and_begins_again_after_idle(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    places = await start_places(nursery)
    places[0].fail()
    async with open_over(places, by_failures(RoundRobin()), idle_timeout=60) as (channel, _):
        await call(channel, 105)
        await trio.sleep(100)
        assert channel.state is ConnectivityState.IDLE
        places[0].recover()
        channel.connect()
        await settle()
        assert await shares(channel, places) == about(*[10] * 5)
