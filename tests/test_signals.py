"""`drain_on_signal`: in this process, on the virtual clock. Signals in processes of their own: test_run.py."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.support.echo import Context, Echo, Requests
from trio_grpc import Limits, RpcError, Server, StatusCode, drain_on_signal
from trio_grpc.testing import MemoryListener

Clock = trio.testing.MockClock

SIGINT, SIGTERM = signal.SIGINT, signal.SIGTERM


class Endless:
    """A conversation that never ends by itself, and notes when it is over."""

    def __init__(self, farewell: float = 0.0) -> None:
        self.ended_at: float | None = None
        self._farewell = farewell

    async def __call__(self, requests: Requests, context: Context) -> AsyncIterator[EchoReply]:
        try:
            yield EchoReply(text="first")
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(self._farewell)
            self.ended_at = trio.current_time()


async def start(nursery: trio.Nursery, *handlers: Any) -> list[tuple[Server, MemoryListener]]:
    """A server for each handler."""
    started = []
    for handler in handlers:
        listener = MemoryListener()

        async def serve(
            handler: Any = handler, listener: Any = listener, *, task_status: trio.TaskStatus[Server]
        ) -> None:
            limits = Limits(adaptive_window=False)
            await trio_grpc.serve([Echo(bidi=handler)], listener, limits=limits, task_status=task_status)

        started.append((await nursery.start(serve), listener))
    return started


class Drainer:
    """`drain_on_signal` beside the test."""

    def __init__(self, *servers: Server, **options: Any) -> None:
        self.servers = servers
        self.options = options
        self.second: signal.Signals | None = None
        self.returned_at: float | None = None

    async def __call__(self, *, task_status: trio.TaskStatus[None]) -> None:
        self.second = await drain_on_signal(*self.servers, task_status=task_status, **self.options)
        self.returned_at = trio.current_time()


async def talk(listener: MemoryListener, *, task_status: trio.TaskStatus[None]) -> None:
    """Open a conversation and stay in it until the server ends it."""
    async with trio_grpc.open_channel(listener.connect) as channel, EchoStub(channel).Bidi() as call:
        assert (await call.receive()).text == "first"
        task_status.started()
        with pytest.raises(RpcError) as caught:
            await call.receive()
        assert caught.value.code is StatusCode.UNAVAILABLE


@pytest.fixture(autouse=True)
def handlers_are_put_back() -> Any:
    before = [signal.getsignal(number) for number in (SIGINT, SIGTERM)]
    yield
    assert [signal.getsignal(number) for number in (SIGINT, SIGTERM)] == before


@pytest.mark.parametrize("number", [SIGINT, SIGTERM])
async def test_the_first_signal_drains_and_cancels_when_the_grace_is_over(
    autojump_clock: Clock, nursery: trio.Nursery, number: signal.Signals
) -> None:
    endless = Endless()
    ((server, listener),) = await start(nursery, endless)
    drainer = Drainer(server, grace=0.5)
    await nursery.start(drainer)
    await nursery.start(talk, listener)
    await trio.sleep(10)
    signal.raise_signal(number)
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(ConnectionRefusedError):
        await listener.connect()
    assert endless.ended_at is None
    await server.wait_ended()
    assert endless.ended_at == 10.5
    assert trio.current_time() == 10.5
    await trio.testing.wait_all_tasks_blocked()
    assert (drainer.second, drainer.returned_at) == (None, 10.5)


async def test_calls_that_finish_in_time_are_not_disturbed(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    async def some(requests: Requests, context: Context) -> AsyncIterator[EchoReply]:
        for count in range(3):
            yield EchoReply(count=count)
            await trio.sleep(1)

    ((server, listener),) = await start(nursery, some)
    drainer = Drainer(server)
    await nursery.start(drainer)
    async with trio_grpc.open_channel(listener.connect) as channel, EchoStub(channel).Bidi() as call:
        counts = [(await call.receive()).count]
        signal.raise_signal(SIGTERM)
        counts += [reply.count async for reply in call]
        assert counts == [0, 1, 2]
        await server.wait_ended()
    await trio.testing.wait_all_tasks_blocked()
    assert (drainer.second, drainer.returned_at) == (None, 3)


@pytest.mark.parametrize("grace", [None, 100])
@pytest.mark.parametrize("second", [SIGINT, SIGTERM])
async def test_the_second_signal_ends_at_once(
    autojump_clock: Clock, nursery: trio.Nursery, grace: float | None, second: signal.Signals
) -> None:
    endless = Endless()
    ((server, listener),) = await start(nursery, endless)
    drainer = Drainer(server, grace=grace)
    await nursery.start(drainer)
    await nursery.start(talk, listener)
    signal.raise_signal(SIGTERM)
    await trio.sleep(7)
    assert endless.ended_at is None
    signal.raise_signal(second)
    await server.wait_ended()
    assert (endless.ended_at, trio.current_time()) == (7, 7)
    await trio.testing.wait_all_tasks_blocked()
    assert (drainer.second, drainer.returned_at) == (second, 7)


async def test_two_signals_that_come_together(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    ((server, listener),) = await start(nursery, Endless())
    drainer = Drainer(server, grace=None)
    await nursery.start(drainer)
    await nursery.start(talk, listener)
    signal.raise_signal(SIGTERM)
    signal.raise_signal(SIGINT)
    await server.wait_ended()
    await trio.testing.wait_all_tasks_blocked()
    assert drainer.second is SIGINT


async def test_handlers_still_clean_up_after_the_second_signal(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    endless = Endless(farewell=3)
    ((server, listener),) = await start(nursery, endless)
    drainer = Drainer(server)
    before = signal.getsignal(SIGTERM)
    await nursery.start(drainer)
    assert signal.getsignal(SIGTERM) is not before
    await nursery.start(talk, listener)
    signal.raise_signal(SIGTERM)
    await trio.testing.wait_all_tasks_blocked()
    signal.raise_signal(SIGTERM)
    await trio.testing.wait_all_tasks_blocked()
    # A third one would have the effect that it has in any program.
    assert endless.ended_at is None
    assert signal.getsignal(SIGTERM) is before
    await server.wait_ended()
    assert endless.ended_at == 3


async def test_several_servers_are_drained_side_by_side(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    endless = [Endless(), Endless(farewell=1), Endless()]
    started = await start(nursery, *endless)
    drainer = Drainer(*(server for server, _ in started), grace=2)
    await nursery.start(drainer)
    for _, listener in started:
        await nursery.start(talk, listener)
    signal.raise_signal(SIGTERM)
    for server, _ in started:
        await server.wait_ended()
    assert [one.ended_at for one in endless] == [2, 3, 2]
    await trio.testing.wait_all_tasks_blocked()
    assert (drainer.second, drainer.returned_at) == (None, 3)


@pytest.mark.parametrize("end", ["drain", "cancel"])
async def test_it_returns_when_the_servers_end_by_themselves(autojump_clock: Clock, end: str) -> None:
    async with trio.open_nursery() as nursery, trio.open_nursery() as serving:
        ((server, _),) = await start(serving, Endless())
        drainer = Drainer(server)
        await nursery.start(drainer)
        await trio.sleep(1)
        assert drainer.returned_at is None
        if end == "drain":
            await server.drain()
        serving.cancel_scope.cancel()
    assert (drainer.second, drainer.returned_at) == (None, 1)


async def test_the_end_of_a_drain_that_was_shortened_by_hand(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    endless = Endless()
    ((server, listener),) = await start(nursery, endless)
    drainer = Drainer(server, grace=100)
    await nursery.start(drainer)
    await nursery.start(talk, listener)
    signal.raise_signal(SIGTERM)
    await trio.sleep(1)
    await server.drain(grace=2)
    assert endless.ended_at == 3
    await trio.testing.wait_all_tasks_blocked()
    assert (drainer.second, drainer.returned_at) == (None, 3)


async def test_other_signals_may_be_asked_for(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    usr1 = getattr(signal, "SIGUSR1", signal.SIGTERM)
    ((server, _),) = await start(nursery, Endless())
    before = signal.getsignal(SIGINT)
    drainer = Drainer(server, signals=[usr1])
    await nursery.start(drainer)
    assert signal.getsignal(SIGINT) is before
    signal.raise_signal(usr1)
    await server.wait_ended()


async def test_cancelling_it_puts_the_handlers_back_and_leaves_the_server_alone(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    ((server, listener),) = await start(nursery, Endless())
    before = signal.getsignal(SIGTERM)
    with trio.move_on_after(1) as scope:
        await drain_on_signal(server)
    assert scope.cancelled_caught
    assert signal.getsignal(SIGTERM) is before
    async with trio_grpc.open_channel(listener.connect) as channel:
        assert (await EchoStub(channel).Unary(EchoRequest(text="there?"))).text == "there?"
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("grace", "error", "text"),
    [
        ("5", TypeError, "grace must be a number of seconds or None, not str"),
        (True, TypeError, "grace must be a number of seconds or None, not bool"),
        (-1, ValueError, "grace must be 0 or more seconds, got -1"),
        (float("nan"), ValueError, "grace must be 0 or more seconds, got nan"),
    ],
)
async def test_a_malformed_grace_is_refused(
    nursery: trio.Nursery, grace: Any, error: type[Exception], text: str
) -> None:
    ((server, _),) = await start(nursery, Endless())
    with pytest.raises(error, match=text):
        await drain_on_signal(server, grace=grace)
    nursery.cancel_scope.cancel()


async def test_no_signals_are_refused(nursery: trio.Nursery) -> None:
    ((server, _),) = await start(nursery, Endless())
    with pytest.raises(ValueError, match="signals must not be empty"):
        await drain_on_signal(server, signals=[])
    nursery.cancel_scope.cancel()


async def test_no_server_is_refused() -> None:
    with pytest.raises(TypeError, match="needs a server"):
        await drain_on_signal()
    with pytest.raises(TypeError, match="server must be Server, not str"):
        await drain_on_signal("127.0.0.1:50051")  # type: ignore[arg-type]


async def test_only_the_main_thread_receives_signals(nursery: trio.Nursery) -> None:
    async def main() -> None:
        async with trio.open_nursery() as inner:
            ((server, _),) = await start(inner, Endless())
            with pytest.raises(RuntimeError, match="main thread"):
                await drain_on_signal(server)
            inner.cancel_scope.cancel()

    await trio.to_thread.run_sync(trio.run, main)
    nursery.cancel_scope.cancel()


def test_ctrl_c_that_is_not_asked_for_comes_out_bare() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            ((server, _),) = await start(nursery, Endless())

            async def press() -> None:
                await trio.testing.wait_all_tasks_blocked()
                signal.raise_signal(SIGINT)

            nursery.start_soon(press)
            try:
                await drain_on_signal(server, signals=[SIGTERM])
            except BaseException as error:
                seen.append(error)
                nursery.cancel_scope.cancel()

    seen: list[BaseException] = []
    before: Callable[..., Any] = signal.signal(SIGINT, signal.default_int_handler)  # type: ignore[assignment]
    try:
        trio.run(main, restrict_keyboard_interrupt_to_checkpoints=True)
    finally:
        signal.signal(SIGINT, before)
    assert [type(error) for error in seen] == [KeyboardInterrupt]
