"""One endpoint: when it is connected to, and what its states say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from trio_grpc._balancing.backoff import Backoff
from trio_grpc._balancing.connectivity import ConnectivityState as State
from trio_grpc._balancing.endpoint import Endpoint
from trio_grpc._balancing.subchannel import CONNECT_TIMEOUT, ConnectFailed, Subchannel, all_failed
from trio_grpc._transport.connection import Connection
from trio_grpc._transport.service_nursery import ServiceNursery

Clock = trio.testing.MockClock


class FakeConnection:
    """A connection that the test makes ready, drains and ends."""

    def __init__(self, on_draining: Callable[[], None]) -> None:
        self.ready = trio.Event()
        self.closed = trio.Event()
        self.draining = False
        self.retired = False
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

    def retire(self) -> None:
        self.draining = self.retired = True


class Bench:
    """A subchannel whose attempts do what the test's ``dial`` does.

    Attributes:
        history: the states that were told.
    """

    def __init__(self, services: ServiceNursery) -> None:
        self.connections: list[FakeConnection] = []
        self.attempts: list[float] = []
        self.history: list[State] = []
        self.dial: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self.speaks = True
        self.live: set[Connection] = set()
        self.subchannel = Subchannel(
            Endpoint("backend", connect=trio.sleep_forever),
            self._connect,
            services,
            Backoff(jitter=0),
            on_change=lambda _, state: self.history.append(state),
            connections=self.live,
            label="backend",
        )

    async def _connect(self, endpoint: Endpoint, on_draining: Callable[[], None]) -> Connection:
        assert endpoint.address == "backend"
        self.attempts.append(trio.current_time())
        await self.dial()
        connection = FakeConnection(on_draining)
        if self.speaks:
            connection.ready.set()
        self.connections.append(connection)
        return cast(Connection, connection)

    @property
    def state(self) -> State:
        return self.subchannel.state

    async def connect(self) -> FakeConnection:
        """Connect, and expect that to work."""
        self.subchannel.connect()
        await settle()
        assert self.state is State.READY
        return self.connections[-1]


@asynccontextmanager
async def open_bench() -> AsyncIterator[Bench]:
    async def farewell() -> None:
        bench.subchannel._shut_down(retire=False)
        await trio.lowlevel.checkpoint()

    async with ServiceNursery(farewell) as services:
        bench = Bench(services)
        yield bench


async def refuse() -> None:
    await trio.lowlevel.checkpoint()
    raise ConnectionRefusedError("nobody there")


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def test_it_connects_when_told_and_once(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        assert bench.state is State.IDLE
        bench.subchannel.connect()
        assert bench.state is State.CONNECTING
        bench.subchannel.connect()
        await settle()
        bench.subchannel.connect()
        await settle()
        assert bench.history == [State.CONNECTING, State.READY]
        (connection,) = bench.connections
        assert connection.runs == 1
        assert bench.subchannel._connection is cast(Any, connection)


async def test_a_connection_counts_when_the_peer_has_spoken(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        bench.speaks = False
        bench.subchannel.connect()
        await settle()
        assert bench.state is State.CONNECTING
        assert bench.subchannel._connection is None
        bench.connections[0].ready.set()
        await settle()
        assert bench.state is State.READY


async def test_a_failed_attempt_says_why_and_waits_for_its_backoff(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        bench.dial = refuse
        bench.subchannel.connect()
        await settle()
        assert bench.state is State.TRANSIENT_FAILURE
        assert str(bench.subchannel.error) == "failed to connect to backend: nobody there"
        assert isinstance(bench.subchannel.error.__cause__, ConnectionRefusedError)
        bench.subchannel.connect()
        await trio.sleep(0.99)
        assert bench.state is State.TRANSIENT_FAILURE
        await trio.sleep(0.02)
        assert bench.state is State.IDLE
        assert bench.attempts == [0]


async def test_failures_in_a_row_wait_longer_and_a_success_ends_the_row(autojump_clock: Clock) -> None:
    async with open_bench() as bench:

        async def refuse_thrice() -> None:
            if len(bench.attempts) % 4:
                await refuse()

        bench.dial = refuse_thrice
        for _ in range(2):
            for wait in (1, 1.6, 2.56):
                start = trio.current_time()
                bench.subchannel.connect()
                while bench.state is not State.IDLE:  # noqa: ASYNC110 # nobody tells
                    await trio.sleep(0.01)
                assert trio.current_time() - start == pytest.approx(wait, abs=0.02)
            connection = await bench.connect()
            assert bench.subchannel.error is None
            await trio.sleep(5)
            connection.closed.set()
            await settle()
            assert bench.state is State.IDLE


async def test_a_silent_backend_fails_after_a_while(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        bench.speaks = False
        bench.subchannel.connect()
        await trio.sleep(CONNECT_TIMEOUT - 0.1)
        assert bench.state is State.CONNECTING
        await trio.sleep(0.2)
        assert bench.state is State.TRANSIENT_FAILURE
        assert "no answer within 20 s" in str(bench.subchannel.error)
        assert isinstance(cast(Exception, bench.subchannel.error).__cause__, TimeoutError)
        assert bench.connections[0].closed.is_set()
        assert not bench.live


async def test_a_connection_that_ends_before_it_was_ready_gives_its_reason(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        bench.speaks = False
        bench.subchannel.connect()
        await settle()
        bench.connections[0].reason = reason = ValueError("spoke HTTP/1.1")
        bench.connections[0].closed.set()
        await settle()
        assert bench.state is State.TRANSIENT_FAILURE
        assert "spoke HTTP" in str(bench.subchannel.error)
        assert cast(Exception, bench.subchannel.error).__cause__ is reason


async def test_a_draining_connection_is_replaced_at_once_and_runs_on(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        old = await bench.connect()
        old.drain()
        assert bench.state is State.IDLE
        assert bench.subchannel._connection is None
        new = await bench.connect()
        assert new is not old
        assert len(bench.live) == 2
        old.closed.set()
        await settle()
        assert bench.state is State.READY
        assert bench.live == {cast(Any, new)}


async def test_a_backend_that_says_goodbye_again_and_again_is_given_time(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        for _ in range(4):
            (await bench.connect()).drain()
        assert bench.state is State.TRANSIENT_FAILURE
        assert trio.current_time() == 0
        await trio.sleep(1.01)
        assert bench.state is State.IDLE
        await bench.connect()


async def test_connections_that_lived_for_a_while_are_replaced_for_ever(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        for _ in range(50):
            connection = await bench.connect()
            await trio.sleep(2)
            connection.drain()
        assert bench.state is State.IDLE


async def test_a_backend_that_takes_calls_may_say_goodbye_as_often_as_it_likes(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        for _ in range(50):
            connection = await bench.connect()
            connection.took_calls = True
            connection.drain()
        assert bench.state is State.IDLE
        assert trio.current_time() == 0


async def test_disconnecting_gives_up_an_attempt(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        bench.dial = trio.sleep_forever
        bench.subchannel.connect()
        await settle()
        bench.subchannel.disconnect()
        assert bench.state is State.IDLE
        assert bench.subchannel.error is None
        bench.dial = trio.lowlevel.checkpoint
        await bench.connect()
        assert bench.history == [State.CONNECTING, State.IDLE, State.CONNECTING, State.READY]


async def test_disconnecting_retires_a_connection(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        connection = await bench.connect()
        bench.subchannel.disconnect()
        assert bench.state is State.IDLE
        assert connection.retired
        assert not connection.closed.is_set()
        assert len(bench.live) == 1
        connection.closed.set()
        await settle()
        assert bench.history[-1] is State.IDLE


async def test_disconnecting_leaves_a_backoff_alone(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        bench.dial = refuse
        bench.subchannel.connect()
        await settle()
        bench.subchannel.disconnect()
        assert bench.state is State.TRANSIENT_FAILURE
        await trio.sleep(1.01)
        assert bench.state is State.IDLE


async def test_a_connection_that_comes_when_nobody_wants_it_any_more_is_closed(autojump_clock: Clock) -> None:
    async with open_bench() as bench:

        async def shielded() -> None:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)

        bench.dial = shielded
        bench.subchannel.connect()
        await settle()
        bench.subchannel.disconnect()
        await trio.sleep(2)
        assert bench.state is State.IDLE
        assert [connection.closed.is_set() for connection in bench.connections] == [True]
        assert not bench.live


async def test_shutting_down_is_for_good(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        connection = await bench.connect()
        bench.subchannel._shut_down(retire=True)
        assert connection.retired
        bench.subchannel.connect()
        connection.closed.set()
        await settle()
        assert bench.state is State.SHUTDOWN
        assert bench.history == [State.CONNECTING, State.READY, State.SHUTDOWN]
        assert len(bench.attempts) == 1


def test_one_error_tells_of_several(autojump_clock: Clock) -> None:
    def failed(text: str) -> Any:
        error = ConnectFailed(text)
        error.__cause__ = OSError(text)
        return SimpleNamespace(error=error)

    one, two = failed("one"), failed("two")
    assert all_failed([]) is None
    assert all_failed([one, SimpleNamespace(error=None)]) is one.error  # type: ignore[list-item]
    both = all_failed([one, two], one)
    assert str(both) == "one; two"
    assert cast(Exception, both).__cause__ is one.error.__cause__
    assert str(all_failed([failed(str(number)) for number in range(10)])) == "0; 1; 2; 3; and 6 more"
