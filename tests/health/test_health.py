"""`trio_grpc.health`: what Check, List and Watch say, and how watchers end."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoRequest
from echo_trio_grpc import EchoServicer, EchoStub

from tests.echo_service import Echo
from trio_grpc import RpcError, Server, StatusCode, UnaryStreamCall
from trio_grpc.health import (
    HealthCheckRequest,
    HealthCheckResponse,
    HealthListRequest,
    HealthServicer,
    HealthStub,
    ServingStatus,
)
from trio_grpc.testing import open_channel_pair

Clock = trio.testing.MockClock
Watch = UnaryStreamCall[HealthCheckRequest, HealthCheckResponse]

SERVING, NOT_SERVING = ServingStatus.SERVING, ServingStatus.NOT_SERVING
UNKNOWN, SERVICE_UNKNOWN = ServingStatus.UNKNOWN, ServingStatus.SERVICE_UNKNOWN


@asynccontextmanager
async def serving(*servicers: Any) -> AsyncIterator[tuple[HealthStub, Server]]:
    async with open_channel_pair(*servicers) as (channel, server):
        yield HealthStub(channel), server


async def check(stub: HealthStub, service: str = "") -> int:
    return (await stub.Check(HealthCheckRequest(service=service))).status


def watch(stub: HealthStub, service: str = "") -> Watch:
    return stub.Watch(HealthCheckRequest(service=service))


async def statuses(stub: HealthStub) -> dict[str, int]:
    reply = await stub.List(HealthListRequest())
    return {name: answer.status for name, answer in reply.statuses.items()}


def test_our_enumeration_is_the_contracts() -> None:
    assert {status.name: status.value for status in ServingStatus} == dict(HealthCheckResponse.ServingStatus.items())


# -- Check and List


async def test_the_server_as_a_whole_serves_from_the_beginning(autojump_clock: Clock) -> None:
    async with serving(HealthServicer()) as (stub, _):
        assert await check(stub) == SERVING
        assert await statuses(stub) == {"": SERVING}


async def test_check_of_an_unknown_service(autojump_clock: Clock) -> None:
    async with serving(HealthServicer()) as (stub, _):
        with pytest.raises(RpcError, match=r"unknown service 'pkg\.Nobody'") as caught:
            await check(stub, "pkg.Nobody")
    assert caught.value.code is StatusCode.NOT_FOUND


async def test_services_that_serve_from_the_beginning(autojump_clock: Clock) -> None:
    async with serving(HealthServicer(["pkg.A", Echo()])) as (stub, _):
        assert await statuses(stub) == {"": SERVING, "pkg.A": SERVING, "echo.Echo": SERVING}


@pytest.mark.parametrize("service", [7, None, object()])
def test_what_is_no_service(service: Any) -> None:
    with pytest.raises(TypeError, match="services must be names or servicers, got"):
        HealthServicer([service])


async def test_set(autojump_clock: Clock) -> None:
    health = HealthServicer()
    async with serving(health) as (stub, _):
        health.set("pkg.A", NOT_SERVING)
        health.set("", UNKNOWN)
        assert await check(stub, "pkg.A") == NOT_SERVING
        assert await check(stub) == UNKNOWN
        health.set("pkg.A", SERVING)
        assert await statuses(stub) == {"": UNKNOWN, "pkg.A": SERVING}


def test_set_takes_statuses_of_names() -> None:
    health = HealthServicer()
    with pytest.raises(ValueError, match="SERVICE_UNKNOWN, which means that it was never set"):
        health.set("pkg.A", SERVICE_UNKNOWN)
    with pytest.raises(ValueError, match="7 is not a valid ServingStatus"):
        health.set("pkg.A", 7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="service must be str, not bytes"):
        health.set(b"pkg.A", SERVING)  # type: ignore[arg-type]


async def test_list_has_a_limit(autojump_clock: Clock) -> None:
    health = HealthServicer([f"pkg.S{number}" for number in range(99)])
    async with serving(health) as (stub, _):
        assert len(await statuses(stub)) == 100
        health.set("pkg.OneTooMany", SERVING)
        with pytest.raises(RpcError, match=r"101 services .* \(100\)") as caught:
            await statuses(stub)
        assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED


async def test_shutdown_and_resume(autojump_clock: Clock) -> None:
    health = HealthServicer(["pkg.A"])
    async with serving(health) as (stub, _):
        health.shutdown()
        assert await statuses(stub) == {"": NOT_SERVING, "pkg.A": NOT_SERVING}
        health.set("pkg.A", SERVING)
        health.set("pkg.B", SERVING)
        assert await statuses(stub) == {"": NOT_SERVING, "pkg.A": NOT_SERVING}
        health.resume()
        assert await statuses(stub) == {"": SERVING, "pkg.A": SERVING}
        health.set("pkg.A", NOT_SERVING)
        assert await statuses(stub) == {"": SERVING, "pkg.A": NOT_SERVING}


# -- Watch


async def test_watch_begins_with_what_is_and_tells_changes(autojump_clock: Clock) -> None:
    health = HealthServicer(["pkg.A"])
    async with serving(health) as (stub, _), watch(stub, "pkg.A") as changes:
        assert (await changes.receive()).status == SERVING
        for status in (NOT_SERVING, SERVING, UNKNOWN):
            health.set("pkg.A", status)
            assert (await changes.receive()).status == status


async def test_watch_is_silent_without_a_change(autojump_clock: Clock) -> None:
    health = HealthServicer(["pkg.A"])
    async with serving(health) as (stub, _), watch(stub, "pkg.A") as changes:
        await changes.receive()
        health.set("pkg.A", SERVING)
        health.set("pkg.B", NOT_SERVING)
        health.set("", NOT_SERVING)
        with trio.move_on_after(3600) as scope:
            await changes.receive()
        assert scope.cancelled_caught


async def test_watch_of_an_unknown_service_stays_open(autojump_clock: Clock) -> None:
    health = HealthServicer()
    async with serving(health) as (stub, _), watch(stub, "pkg.Late") as changes:
        assert (await changes.receive()).status == SERVICE_UNKNOWN
        await trio.sleep(3600)
        health.set("pkg.Late", SERVING)
        assert (await changes.receive()).status == SERVING
        assert await check(stub, "pkg.Late") == SERVING


async def test_changes_in_quick_succession_are_one(autojump_clock: Clock) -> None:
    health = HealthServicer()
    async with serving(health) as (stub, _), watch(stub) as changes:
        assert (await changes.receive()).status == SERVING
        for _ in range(1000):
            health.set("", NOT_SERVING)
            health.set("", SERVING)
        health.set("", UNKNOWN)
        assert (await changes.receive()).status == UNKNOWN


async def test_a_slow_watcher_gets_the_newest(autojump_clock: Clock) -> None:
    health = HealthServicer()
    context: Any = None
    replies = health.Watch(HealthCheckRequest(), context)
    # `yield` is `await context.send(...)`, which waits for a client that does not read. So does this.
    assert (await anext(replies)).status == SERVING
    for status in (NOT_SERVING, SERVING, UNKNOWN, NOT_SERVING, UNKNOWN):
        health.set("", status)
        await trio.sleep(60)
    assert (await anext(replies)).status == UNKNOWN
    with trio.move_on_after(60) as scope:
        await anext(replies)
    assert scope.cancelled_caught


async def test_a_slow_watcher_that_missed_nothing_in_the_end(autojump_clock: Clock) -> None:
    health = HealthServicer()
    context: Any = None
    replies = health.Watch(HealthCheckRequest(), context)
    assert (await anext(replies)).status == SERVING
    health.set("", NOT_SERVING)
    health.set("", SERVING)
    with trio.move_on_after(60) as scope:
        await anext(replies)
    assert scope.cancelled_caught


async def test_all_watchers_of_all_services_are_told(autojump_clock: Clock) -> None:
    health = HealthServicer(["pkg.A"])
    async with (
        serving(health) as (stub, _),
        watch(stub) as first,
        watch(stub) as second,
        watch(stub, "pkg.A") as third,
    ):
        calls = (first, second, third)
        for call in calls:
            assert (await call.receive()).status == SERVING
        health.shutdown()
        for call in calls:
            assert (await call.receive()).status == NOT_SERVING
        # Not the end of watching: this can be taken back.
        await trio.sleep(3600)
        health.resume()
        for call in calls:
            assert (await call.receive()).status == SERVING


async def test_watchers_that_leave_are_forgotten(autojump_clock: Clock) -> None:
    health = HealthServicer()
    async with serving(health) as (stub, server):
        async with watch(stub, "pkg.Stays") as stays:
            await stays.receive()
            for number in range(100):
                async with watch(stub, f"pkg.Nobody{number}") as call, watch(stub, "pkg.Stays") as other:
                    await call.receive()
                    await other.receive()
            await trio.testing.wait_all_tasks_blocked()
            assert server.statistics().handlers == 1
            assert set(health._watchers) == {"pkg.Stays"}
            health.set("pkg.Stays", SERVING)
            assert (await stays.receive()).status == SERVING
        await trio.testing.wait_all_tasks_blocked()
        assert not health._watchers


# -- draining


async def ending_of(call: Watch) -> tuple[list[int], RpcError]:
    """What a watch still says, and how it ends."""
    said: list[int] = []
    try:
        async for reply in call:
            said.append(reply.status)  # noqa: PERF401 (what was said before an error counts)
    except RpcError as error:
        return said, error
    pytest.fail("ended with OK")


async def test_a_drain_ends_all_watching(autojump_clock: Clock) -> None:
    health = HealthServicer(["pkg.A"])
    health.set("pkg.Down", NOT_SERVING)
    async with (
        serving(health) as (stub, server),
        watch(stub) as a,
        watch(stub, "pkg.A") as b,
        watch(stub, "pkg.Down") as c,
        watch(stub, "x") as d,
    ):
        calls = (a, b, c, d)
        assert [(await call.receive()).status for call in calls] == [SERVING, SERVING, NOT_SERVING, SERVICE_UNKNOWN]
        started = trio.current_time()
        await server.drain()
        # Without a grace: nothing but the watchers' own end could end this.
        assert trio.current_time() - started < 10
        for call, expected in zip(calls, ([NOT_SERVING], [NOT_SERVING], [], []), strict=True):
            said, error = await ending_of(call)
            assert said == expected
            assert (error.code, error.message) == (StatusCode.UNAVAILABLE, "server is draining")


async def test_health_during_a_drain(autojump_clock: Clock) -> None:
    """A call keeps the connection; between the two GOAWAYs, calls that were on their way still arrive."""
    health = HealthServicer(["pkg.A"])
    seen: list[int] = []

    class Draining(EchoServicer):
        def __trio_grpc_draining__(self) -> None:
            seen.append(health._statuses["pkg.A"])

        async def Unary(self, request: EchoRequest, context: Any, /) -> Any:
            await trio.sleep(60)
            return await Echo().Unary(request, context)

    async with open_channel_pair(health, Draining()) as (channel, server), trio.open_nursery() as nursery:
        nursery.start_soon(EchoStub(channel).Unary, EchoRequest())
        await trio.testing.wait_all_tasks_blocked()
        assert await check(HealthStub(channel), "pkg.A") == SERVING
        nursery.start_soon(server.drain)
        nursery.start_soon(server.drain, 3600)
        # The servicers are told in the order in which `serve` got them, once, and before anything else happens.
        await trio.testing.wait_all_tasks_blocked()
        assert seen == [NOT_SERVING]
        assert await health.Check(HealthCheckRequest(), None) == HealthCheckResponse(status="NOT_SERVING")  # type: ignore[arg-type]


async def test_a_watch_that_begins_during_a_drain_ends_too(autojump_clock: Clock) -> None:
    health = HealthServicer()
    async with serving(health) as (stub, _):
        health.__trio_grpc_draining__()
        async with watch(stub) as call:
            said, error = await ending_of(call)
        assert (said, error.code) == ([NOT_SERVING], StatusCode.UNAVAILABLE)
        health.resume()
        async with watch(stub) as call:
            assert (await call.receive()).status == SERVING
            with trio.move_on_after(3600) as scope:
                await call.receive()
            assert scope.cancelled_caught


async def test_a_servicer_that_fails_to_hear_of_draining(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    class Deaf(EchoServicer):
        def __trio_grpc_draining__(self) -> None:
            raise ValueError("what?")

    health = HealthServicer()
    async with serving(Deaf(), health) as (stub, server), watch(stub) as call:
        await call.receive()
        with caplog.at_level(logging.ERROR, "trio_grpc"):
            await server.drain()
        said, _ = await ending_of(call)
        assert said == [NOT_SERVING]
    (record,) = caplog.records
    assert record.getMessage() == "exception in Deaf.__trio_grpc_draining__"


async def test_a_server_that_is_cancelled_ends_watching_too(autojump_clock: Clock) -> None:
    async with open_channel_pair(HealthServicer()) as (channel, server), watch(HealthStub(channel)) as call:
        await call.receive()
        assert server._nursery is not None
        server._nursery.cancel_scope.cancel()
        said, error = await ending_of(call)
    assert (said, error.code) == ([], StatusCode.UNAVAILABLE)


@pytest.mark.parametrize(("services", "kind"), [("pkg.A", "str"), (Echo(), "Echo")])
def test_services_are_a_list(services: Any, kind: str) -> None:
    with pytest.raises(TypeError, match=f"services must be a list of names or servicers, not {kind}"):
        HealthServicer(services)
