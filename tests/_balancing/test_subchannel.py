"""One backend: when it is connected to, and what its states say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from trio_grpc._balancing.backoff import Backoff
from trio_grpc._balancing.subchannel import CONNECT_TIMEOUT, ConnectFailed, State, Subchannel
from trio_grpc._transport.connection import Connection
from trio_grpc._transport.service_nursery import ServiceNursery

Clock = trio.testing.MockClock


class FakeConnection:
    """A connection that the test makes ready, drains and ends."""

    def __init__(self, on_draining: Callable[[], None]) -> None:
        self.ready = trio.Event()
        self.closed = trio.Event()
        self.draining = False
        self.took_calls = False
        self.reason: BaseException | None = None
        self.table = SimpleNamespace(refusal=None)
        self._on_draining = on_draining
        self.runs = 0

    async def run(self) -> None:
        self.runs += 1
        try:
            await self.closed.wait()
        finally:
            self.closed.set()

    async def aclose(self) -> None:
        self.closed.set()
        await trio.lowlevel.checkpoint()

    def drain(self) -> None:
        self.draining = True
        self._on_draining()


class Bench:
    """A subchannel whose attempts do what the test's ``dial`` does."""

    def __init__(self, services: ServiceNursery) -> None:
        self.connections: list[FakeConnection] = []
        self.attempts: list[float] = []
        self.dial: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self.speaks = True
        self.subchannel = Subchannel("backend", self._connect, services, Backoff(jitter=0))

    async def _connect(self, on_draining: Callable[[], None]) -> Connection:
        self.attempts.append(trio.current_time())
        await self.dial()
        connection = FakeConnection(on_draining)
        if self.speaks:
            connection.ready.set()
        self.connections.append(connection)
        return cast(Connection, connection)

    async def get(self, wait_for_ready: bool = False) -> FakeConnection:
        return cast(FakeConnection, await self.subchannel.wait_connection(wait_for_ready))


@asynccontextmanager
async def open_bench() -> AsyncIterator[Bench]:
    async def farewell() -> None:
        bench.subchannel.shut_down()
        await trio.lowlevel.checkpoint()

    async with ServiceNursery(farewell) as services:
        bench = Bench(services)
        yield bench


async def refuse() -> None:
    await trio.lowlevel.checkpoint()
    raise ConnectionRefusedError("nobody there")


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def test_it_connects_on_demand_and_once(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        assert bench.subchannel.state is State.IDLE
        first = await bench.get()
        assert await bench.get() is first
        assert bench.subchannel.state is State.READY
        assert len(bench.attempts) == 1
        assert first.runs == 1


async def test_a_connection_counts_when_the_peer_has_spoken(autojump_clock: Clock) -> None:
    async with open_bench() as bench, trio.open_nursery() as nursery:
        bench.speaks = False
        got: list[FakeConnection] = []

        @nursery.start_soon
        async def caller() -> None:
            got.append(await bench.get())

        await settle()
        assert bench.subchannel.state is State.CONNECTING
        assert not got
        bench.connections[0].ready.set()
        await settle()
        assert got == bench.connections
        assert bench.subchannel.state is State.READY


async def test_a_failed_attempt_says_why_to_each_caller_anew(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        bench.dial = refuse
        errors: list[ConnectFailed] = []
        for _ in range(2):
            with pytest.raises(ConnectFailed, match="failed to connect to backend: nobody there") as caught:
                await bench.get()
            errors.append(caught.value)
        assert len(bench.attempts) == 1  # the second caller came within the backoff
        assert errors[0] is not errors[1]
        assert isinstance(errors[0].__cause__, ConnectionRefusedError)
        assert errors[0].__cause__ is errors[1].__cause__
        assert bench.subchannel.state is State.TRANSIENT_FAILURE


async def test_who_waits_for_ready_waits_through_failures_with_backoff(autojump_clock: Clock) -> None:
    async with open_bench() as bench:

        async def refuse_thrice() -> None:
            if len(bench.attempts) <= 3:
                await refuse()

        bench.dial = refuse_thrice
        await bench.get(wait_for_ready=True)
        assert bench.attempts == pytest.approx([0, 1, 2.6, 5.16])
        assert bench.subchannel.state is State.READY


async def test_a_success_resets_the_backoff(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        bench.dial = refuse
        for _ in range(3):
            with pytest.raises(ConnectFailed):
                await bench.get()
            await trio.sleep(10)
        bench.dial = trio.lowlevel.checkpoint
        connection = await bench.get()
        connection.closed.set()
        await settle()
        assert bench.subchannel.state is State.IDLE
        bench.dial = refuse
        with pytest.raises(ConnectFailed):
            await bench.get()
        failed_at = trio.current_time()
        bench.dial = trio.lowlevel.checkpoint
        await bench.get(wait_for_ready=True)
        assert trio.current_time() == pytest.approx(failed_at + 1)


async def test_a_silent_backend_fails_after_a_while(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        bench.speaks = False
        with pytest.raises(ConnectFailed, match="no answer within 20 s") as caught:
            await bench.get()
        assert isinstance(caught.value.__cause__, TimeoutError)
        assert trio.current_time() == CONNECT_TIMEOUT
        await settle()
        assert bench.connections[0].closed.is_set()
        assert not bench.subchannel.connections


async def test_a_connection_that_ends_before_it_was_ready_gives_its_reason(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        bench.speaks = False
        reason = ValueError("spoke HTTP/1.1")

        async def end_soon() -> None:
            async def end() -> None:
                await settle()
                bench.connections[0].reason = reason
                bench.connections[0].closed.set()

            nursery.start_soon(end)
            await trio.lowlevel.checkpoint()

        bench.dial = end_soon
        async with trio.open_nursery() as nursery:
            with pytest.raises(ConnectFailed, match="spoke HTTP") as caught:
                await bench.get()
        assert caught.value.__cause__ is reason


async def test_callers_share_an_attempt_and_one_of_them_may_leave(autojump_clock: Clock) -> None:
    async with open_bench() as bench, trio.open_nursery() as nursery:
        gate = trio.Event()
        bench.dial = gate.wait
        got: list[FakeConnection] = []
        scopes = [trio.CancelScope() for _ in range(3)]

        async def caller(scope: trio.CancelScope) -> None:
            with scope:
                got.append(await bench.get())

        for scope in scopes:
            nursery.start_soon(caller, scope)
        await settle()
        scopes[0].cancel()
        await settle()
        gate.set()
        await settle()
        assert got == [bench.connections[0]] * 2
        assert len(bench.attempts) == 1


async def test_a_draining_connection_is_replaced_at_once_and_runs_on(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        old = await bench.get()
        old.drain()
        assert bench.subchannel.state is State.IDLE
        assert bench.subchannel.connection is None
        new = await bench.get()
        assert new is not old
        assert len(bench.subchannel.connections) == 2
        old.closed.set()
        await settle()
        assert bench.subchannel.state is State.READY
        assert bench.subchannel.connections == {cast(Any, new)}


async def test_a_backend_that_says_goodbye_again_and_again_is_given_time(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        for _ in range(4):
            (await bench.get()).drain()
        assert bench.subchannel.state is State.TRANSIENT_FAILURE
        with pytest.raises(ConnectFailed):
            await bench.get()
        assert trio.current_time() == 0
        await bench.get(wait_for_ready=True)
        assert trio.current_time() == pytest.approx(1)


async def test_connections_that_lived_for_a_while_are_replaced_for_ever(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        for _ in range(50):
            connection = await bench.get()
            await trio.sleep(2)
            connection.drain()
        assert bench.subchannel.state is State.IDLE


async def test_a_backend_that_takes_calls_may_say_goodbye_as_often_as_it_likes(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        for _ in range(50):
            connection = await bench.get()
            connection.took_calls = True
            connection.drain()
        assert bench.subchannel.state is State.IDLE
        assert trio.current_time() == 0


async def test_shutting_down_wakes_everybody(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery, open_bench() as bench:
        bench.dial = trio.sleep_forever
        ended: list[str] = []

        async def caller(wait_for_ready: bool) -> None:
            with pytest.raises(trio.ClosedResourceError):
                await bench.get(wait_for_ready)
            ended.append("caller")

        nursery.start_soon(caller, True)
        nursery.start_soon(caller, False)
        await settle()
        bench.subchannel._services.closing = True
        bench.subchannel.shut_down()
        await settle()
        assert ended == ["caller", "caller"]
        assert bench.subchannel.state is State.SHUTDOWN
        assert trio.current_time() == 0
        with pytest.raises(trio.ClosedResourceError):
            await bench.get()


def test_the_names_of_the_states_are_grpcs() -> None:
    assert [state.name for state in State] == ["IDLE", "CONNECTING", "READY", "TRANSIENT_FAILURE", "SHUTDOWN"]
