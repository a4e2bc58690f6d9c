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
from trio_grpc._transport.header_codec import HeaderTemplate
from trio_grpc._transport.service_nursery import ServiceNursery
from trio_grpc._transport.stream_table import StreamTable

Clock = trio.testing.MockClock


class FakeConnection:
    """A connection that the test makes ready, drains and ends."""

    def __init__(self, on_draining: Callable[[], None], limit: int) -> None:
        self.ready = trio.Event()
        self.closed = trio.Event()
        self.draining = False
        self.retired = False
        self.took_calls = False
        self.reason: BaseException | None = None
        self.table: StreamTable[Any] = StreamTable(limit, lambda: None)
        self._on_draining = on_draining
        self.runs = 0

    async def run(self) -> None:
        self.runs += 1
        try:
            await self.closed.wait()
        finally:
            self.table.refuse(OSError("closed"))
            self.closed.set()

    async def aclose(self) -> None:
        self.closed.set()
        await trio.lowlevel.checkpoint()

    def drain(self) -> None:
        self.draining = True
        self.table.refuse(OSError("draining"))
        self._on_draining()

    def retire(self) -> None:
        self.draining = self.retired = True
        self.table.refuse(OSError("retired"))


def no_calls(path: str) -> HeaderTemplate:
    raise AssertionError(f"a call of {path}")


class Bench:
    """A subchannel whose attempts do what the test's ``dial`` does.

    Attributes:
        history: the states that were told.
        moves: the connections for new calls that were told.
        gone: how often it was told that there is nothing left of it.
    """

    def __init__(self, services: ServiceNursery) -> None:
        self.connections: list[FakeConnection] = []
        self.attempts: list[float] = []
        self.history: list[State] = []
        self.moves: list[Any] = []
        self.gone: list[Subchannel] = []
        self.dial: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self.speaks = True
        self.limit = 100
        self.live: set[Connection] = set()
        self.subchannel = Subchannel(
            Endpoint("backend", connect=trio.sleep_forever),
            self._connect,
            services,
            Backoff(jitter=0),
            on_change=lambda _, state: self.history.append(state),
            on_move=lambda subchannel: self.moves.append(subchannel._connection),
            on_gone=self.gone.append,
            request_head=no_calls,
            connections=self.live,
            label="backend",
        )

    async def _connect(self, endpoint: Endpoint, on_draining: Callable[[], None]) -> Connection:
        assert endpoint.address == "backend"
        self.attempts.append(trio.current_time())
        await self.dial()
        connection = FakeConnection(on_draining, self.limit)
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


# ---------------------------------------------------------------------------------------------------------------------
# Several connections (gRFC A105)


class Calls:
    """Calls that take slots of a subchannel.

    Attributes:
        served: the connections of those that have one, in order.
    """

    def __init__(self, bench: Bench, nursery: trio.Nursery) -> None:
        self.served: list[FakeConnection] = []
        self.scopes: list[trio.CancelScope] = []
        self.refused = 0
        self._bench = bench
        self._nursery = nursery

    async def add(self, count: int = 1) -> None:
        for _ in range(count):
            self._nursery.start_soon(self._call)
            await settle()

    async def _call(self) -> None:
        first = self._bench.subchannel._connection
        assert first is not None
        with trio.CancelScope() as scope:
            self.scopes.append(scope)
            try:
                self.served.append(await first.table.acquire())
            except OSError:
                self.refused += 1


@asynccontextmanager
async def open_scaling(nursery: trio.Nursery, limit: int = 1, most: int = 3) -> AsyncIterator[tuple[Bench, Calls]]:
    """A READY subchannel that may have several connections, each with a limit of streams."""
    async with open_bench() as bench:
        bench.limit = limit
        bench.subchannel._scale(most)
        await bench.connect()
        yield bench, Calls(bench, nursery)


async def test_calls_that_wait_get_more_connections_up_to_the_maximum(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    async with open_scaling(nursery) as (bench, calls):
        await calls.add()
        assert len(bench.attempts) == 1
        await calls.add(4)
        assert len(bench.attempts) == 3
        assert calls.served == bench.connections
        # Who waits takes whatever becomes free first.
        for connection in bench.connections[1:]:
            connection.table.leave(0)
            await settle()
        assert calls.served[3:] == bench.connections[1:]
        assert bench.history == [State.CONNECTING, State.READY]
        assert bench.moves == bench.connections[:1]


async def test_the_oldest_connection_with_a_free_slot_is_taken(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    async with open_scaling(nursery) as (bench, calls):
        await calls.add(3)
        for connection in reversed(bench.connections):
            connection.table.leave(0)
        await calls.add(3)
        assert calls.served[3:] == bench.connections
        assert len(bench.attempts) == 3


async def test_the_channels_own_calls_get_no_further_connection(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    async with open_scaling(nursery) as (bench, calls):
        await calls.add()
        nursery.start_soon(bench.connections[0].table.acquire_background)
        await settle()
        assert len(bench.attempts) == 1
        await calls.add()
        assert calls.served == bench.connections
        assert len(bench.attempts) == 2
        bench.connections[0].table.leave(0)
        await settle()


async def test_one_attempt_at_a_time(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    async with open_scaling(nursery, most=10) as (bench, calls):

        async def slowly() -> None:
            await trio.sleep(1)

        bench.dial = slowly
        await calls.add(9)
        await trio.sleep(20)
        assert bench.attempts == [0, *range(8)]
        assert len(calls.served) == 9


async def test_no_more_than_one_where_nothing_else_is_said(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    async with open_scaling(nursery, most=1) as (bench, calls):
        await calls.add(3)
        assert len(bench.attempts) == 1
        assert calls.served == [None]
        bench.connections[0].drain()
        await settle()
        assert calls.refused == 2


async def test_a_further_attempt_that_fails_backs_off_and_hurts_nobody(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    async with open_scaling(nursery) as (bench, calls):
        bench.dial = refuse
        await calls.add(2)
        await trio.sleep(0.5)
        await calls.add()
        await trio.sleep(2)
        assert bench.attempts == [0, 0, 1]
        assert bench.history == [State.CONNECTING, State.READY]
        assert len(calls.served) == 1
        bench.dial = trio.lowlevel.checkpoint
        await trio.sleep(1)
        assert len(calls.served) == 3
        assert bench.subchannel.error is None


async def test_nobody_waits_any_more_when_the_backoff_is_over(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    async with open_scaling(nursery) as (bench, calls):
        bench.dial = refuse
        await calls.add(2)
        calls.scopes[1].cancel()
        await trio.sleep(100)
        assert bench.attempts == [0, 0]
        await calls.add()
        assert bench.attempts == [0, 0, 100]


async def test_losing_one_of_several_leaves_it_ready(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    async with open_scaling(nursery, limit=2) as (bench, calls):
        await calls.add(3)
        first, second = bench.connections
        await trio.sleep(5)
        first.closed.set()
        await settle()
        assert bench.history == [State.CONNECTING, State.READY]
        assert bench.moves == [first, second]
        await calls.add()
        assert calls.served == [first, first, second, second]
        second.drain()
        assert bench.state is State.IDLE
        assert bench.moves == [first, second, None]


async def test_who_waits_goes_on_waiting_when_one_of_several_drains(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    async with open_scaling(nursery, most=2) as (bench, calls):
        await calls.add(4)
        first, second = bench.connections
        await trio.sleep(5)
        first.drain()
        await settle()
        third = bench.connections[2]
        assert calls.served == [first, second, third]
        second.table.leave(0)
        await settle()
        assert calls.served == [first, second, third, second]
        assert calls.refused == 0


async def test_who_waits_is_told_when_the_last_one_is_lost(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    async with open_scaling(nursery, most=2) as (bench, calls):
        await calls.add(4)
        await trio.sleep(5)
        bench.dial = refuse
        bench.connections[1].closed.set()
        await settle()
        assert (bench.state, calls.refused) == (State.READY, 0)
        bench.connections[0].closed.set()
        await settle()
        assert (bench.state, calls.refused) == (State.TRANSIENT_FAILURE, 2)
        await trio.sleep(1.01)
        assert bench.history == [State.CONNECTING, State.READY, State.TRANSIENT_FAILURE, State.IDLE]


async def test_losing_the_last_one_in_the_middle_of_an_attempt(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    async with open_scaling(nursery) as (bench, calls):

        async def slowly() -> None:
            await trio.sleep(1)

        bench.dial = slowly
        await calls.add(2)
        bench.connections[0].closed.set()
        await settle()
        assert bench.state is State.CONNECTING
        await trio.sleep(2)
        assert bench.history == [State.CONNECTING, State.READY, State.CONNECTING, State.READY]
        assert len(bench.attempts) == 2


async def test_a_raised_maximum_counts_at_once_and_a_lowered_one_ends_nothing(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    async with open_scaling(nursery, most=1) as (bench, calls):
        await calls.add(3)
        bench.subchannel._scale(2)
        await settle()
        assert len(bench.connections) == 2
        assert calls.served == [None, bench.connections[1]]
        bench.subchannel._scale(1)
        await calls.add(2)
        await trio.sleep(3600)
        assert not any(connection.retired for connection in bench.connections)
        bench.connections[1].table.leave(0)
        bench.connections[1].drain()
        await settle()
        assert len(bench.attempts) == 2
        assert bench.state is State.READY


async def test_connections_without_calls_stay_until_the_peer_ends_them(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    """So gRFC A105 has it: servers have max_connection_idle for this."""
    async with open_scaling(nursery) as (bench, calls):
        await calls.add(3)
        for connection in bench.connections:
            connection.table.leave(0)
        await trio.sleep(3600)
        assert len(bench.live) == 3


@pytest.mark.parametrize("for_good", [False, True])
async def test_all_connections_are_given_up_together(
    nursery: trio.Nursery, autojump_clock: Clock, for_good: bool
) -> None:
    async with open_scaling(nursery) as (bench, calls):
        await calls.add(2)
        bench.dial = trio.sleep_forever
        await calls.add(2)
        if for_good:
            bench.subchannel._shut_down(retire=True)
        else:
            bench.subchannel.disconnect()
        await settle()
        assert bench.state is (State.SHUTDOWN if for_good else State.IDLE)
        assert calls.refused == 2
        assert all(connection.retired for connection in bench.connections)
        assert bench.subchannel._connection is None
        assert len(bench.attempts) == 3


async def test_a_backend_that_takes_no_second_connection_is_given_time(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    async with open_scaling(nursery, most=2) as (bench, calls):
        await calls.add()
        # It answers, and says goodbye at once.
        bench.limit = 0
        await calls.add()
        while trio.current_time() < 60:
            if bench.connections[-1] is not bench.connections[0] and not bench.connections[-1].draining:
                bench.connections[-1].drain()
            await trio.sleep(0.01)
        # After the first few, one in a second.
        assert len(bench.attempts) <= 66
        assert bench.history == [State.CONNECTING, State.READY]
        assert calls.refused == 0


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


async def test_while_it_is_held_no_call_gets_its_connection(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        bench.subchannel._hold(True)
        first = await bench.connect()
        assert bench.subchannel._connection is None
        assert bench.subchannel._oldest is cast(Any, first)
        bench.subchannel._hold(False)
        assert bench.subchannel._connection is cast(Any, first)
        bench.subchannel._hold(True)
        assert bench.subchannel._connection is None
        # It is lost and found all the same.
        first.drain()
        assert bench.state is State.IDLE
        assert bench.subchannel._oldest is None
        second = await bench.connect()
        assert bench.subchannel._connection is None
        bench.subchannel._hold(False)
        assert bench.subchannel._connection is cast(Any, second)
