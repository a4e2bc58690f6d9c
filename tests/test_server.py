"""`serve` and `Server`: listening, ending in good order, ending at once, and clients that misbehave."""

from __future__ import annotations

import errno
import logging
import math
import socket
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer, EchoStub

import trio_grpc
from tests.echo_service import Context, Echo, Waiting
from trio_grpc import Channel, Limits, RpcError, Server, StatusCode
from trio_grpc.testing import MemoryListener, open_channel_pair

Clock = trio.testing.MockClock

#: What a client says first: the preface and empty SETTINGS (RFC 9113, 3.4).
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
GOAWAY = 7


def frame_types(data: bytes) -> list[int]:
    """The types of the frames that ``data`` consists of."""
    types = []
    while data:
        length = int.from_bytes(data[:3], "big")
        types.append(data[3])
        data = data[9 + length :]
    return types


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    data = b""
    while True:
        chunk = await stream.receive_some()
        if not chunk:
            return data
        data += chunk


async def call_it(address: str) -> None:
    """One call through a channel of its own."""
    async with trio_grpc.open_channel(address) as channel:
        assert (await EchoStub(channel).Unary(EchoRequest(count=7))).count == 7


class Outcomes:
    """How calls that run in tasks of their own ended."""

    def __init__(self) -> None:
        self.replies: list[EchoReply] = []
        self.codes: list[StatusCode] = []

    async def call(self, channel: Channel, count: int = 0) -> None:
        try:
            self.replies.append(await EchoStub(channel).Unary(EchoRequest(count=count)))
        except RpcError as error:
            self.codes.append(error.code)


# -- listening


async def test_port_0_gives_a_free_port(nursery: trio.Nursery) -> None:
    servers: list[Server] = [await nursery.start(trio_grpc.serve, [Echo()], "127.0.0.1:0") for _ in range(2)]
    ports = [int(server.addresses[0].removeprefix("127.0.0.1:")) for server in servers]
    assert all(ports)
    assert ports[0] != ports[1]
    for server in servers:
        assert repr(server) == f"<Server on {server.addresses[0]}>"
        await call_it(server.addresses[0])


async def test_several_addresses(nursery: trio.Nursery, tmp_path: Path) -> None:
    listener = MemoryListener()
    (ready_made,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    echo = Echo()
    addresses = ["127.0.0.1:0", f"unix:{tmp_path / 's'}", listener, ready_made, "127.0.0.1:0"]
    server: Server = await nursery.start(trio_grpc.serve, [echo], addresses)
    assert len(server.addresses) == 5
    assert len(set(server.addresses)) == 5
    assert server.addresses[1] == f"unix:{tmp_path / 's'}"
    assert server.addresses[2] == "memory"
    assert server.addresses[3] == f"127.0.0.1:{ready_made.socket.getsockname()[1]}"
    for address in (*server.addresses[:2], *server.addresses[3:]):
        await call_it(address)
    async with trio_grpc.open_channel(listener.connect) as channel:
        await EchoStub(channel).Unary(EchoRequest())
    assert echo.calls == 5


async def test_a_bind_error_is_a_bare_os_error(nursery: trio.Nursery) -> None:
    server: Server = await nursery.start(trio_grpc.serve, [Echo()], "127.0.0.1:0")
    with pytest.raises(OSError, match=r".") as caught:
        await trio_grpc.serve([Echo()], server.addresses[0])
    assert caught.value.errno == errno.EADDRINUSE
    await call_it(server.addresses[0])


async def test_a_bind_error_lets_go_of_the_addresses_before_it(nursery: trio.Nursery, tmp_path: Path) -> None:
    server: Server = await nursery.start(trio_grpc.serve, [Echo()], "127.0.0.1:0")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        free = f"127.0.0.1:{sock.getsockname()[1]}"
    path = tmp_path / "s"
    with pytest.raises(OSError, match=r"."):
        await trio_grpc.serve([Echo()], [free, f"unix:{path}", server.addresses[0]])
    assert not path.exists()
    # It can be bound again.
    again: Server = await nursery.start(trio_grpc.serve, [Echo()], free)
    await call_it(again.addresses[0])


async def test_a_bind_error_comes_out_of_nursery_start(nursery: trio.Nursery) -> None:
    server: Server = await nursery.start(trio_grpc.serve, [Echo()], "127.0.0.1:0")
    async with trio.open_nursery() as inner:
        with pytest.raises(OSError, match=r"."):
            await inner.start(trio_grpc.serve, [Echo()], server.addresses[0])


@pytest.mark.parametrize("address", ["", "127.0.0.1", "127.0.0.1:", "127.0.0.1:http", ":50051", "http://localhost:1"])
async def test_malformed_addresses(address: str) -> None:
    with pytest.raises(ValueError, match=r"target|address"):
        await trio_grpc.serve([Echo()], address)


@pytest.mark.parametrize("thing", [Echo, object(), None, EchoStub])
async def test_things_that_are_no_servicers(thing: Any) -> None:
    with pytest.raises(TypeError, match="servicer"):
        await trio_grpc.serve([thing], "127.0.0.1:0")


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("ssl_context", True, TypeError),
        ("limits", {"max_frame_size": 16_384}, TypeError),
        ("limits", 0, TypeError),
        ("keepalive", 20, TypeError),
        ("codec", "json", TypeError),
        ("handshake_timeout", "5", TypeError),
        ("handshake_timeout", None, TypeError),
        ("handshake_timeout", -1, ValueError),
        ("handshake_timeout", math.nan, ValueError),
        ("servicers", 5, TypeError),
        ("servicers", [], ValueError),
        ("address", 50051, TypeError),
        ("address", None, TypeError),
        ("address", b"127.0.0.1:0", TypeError),
        ("address", ("127.0.0.1", 50051), TypeError),
    ],
)
async def test_wrong_options_are_refused_at_once(option: str, value: Any, error: type[Exception]) -> None:
    arguments: dict[str, Any] = {"servicers": [Echo()], "address": MemoryListener(), option: value}
    with pytest.raises(error, match=f"^{option} must"):
        await trio_grpc.serve(**arguments)


async def test_a_grace_that_is_no_number_is_refused_at_once(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    served = await start(nursery, Echo())
    for grace, error in (("5", TypeError), (math.nan, ValueError)):
        with pytest.raises(error, match="grace must be a number"):
            await served.server.drain(grace)  # type: ignore[arg-type]
    async with trio_grpc.open_channel(served.listener.connect) as channel:
        assert (await EchoStub(channel).Unary(EchoRequest(count=1))).count == 1


async def test_a_service_has_one_servicer() -> None:
    with pytest.raises(ValueError, match=r"/echo\.Echo/Unary"):
        await trio_grpc.serve([Echo(), Echo()], "127.0.0.1:0")


async def test_methods_that_nobody_overrides_are_unimplemented() -> None:
    async with open_channel_pair(EchoServicer()) as (channel, _):
        echo = EchoStub(channel)
        for call in (echo.Unary(EchoRequest()), echo.ClientStream([EchoRequest()])):
            with pytest.raises(RpcError) as caught:
                await call
            assert caught.value.code is StatusCode.UNIMPLEMENTED


async def test_statistics(autojump_clock: Clock) -> None:
    waiting = Waiting()
    async with trio.open_nursery() as nursery, open_channel_pair(waiting) as (channel, server):
        assert server.statistics() == trio_grpc.ServerStatistics(0, 0, 0, 0)
        for _ in range(3):
            nursery.start_soon(EchoStub(channel).Unary, EchoRequest())
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics() == trio_grpc.ServerStatistics(1, 3, 3, 0)
        waiting.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics() == trio_grpc.ServerStatistics(1, 0, 0, 0)
        await channel.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics() == trio_grpc.ServerStatistics(0, 0, 0, 0)


# -- draining


class Served:
    """A server of a test, in memory, and the task that it runs in.

    Attributes:
        listener: connects to it.
        server: what `trio_grpc.serve` started.
        returned: set when `trio_grpc.serve` has returned.
        scope: around `trio_grpc.serve`.
    """

    def __init__(self) -> None:
        self.listener = MemoryListener()
        self.returned = trio.Event()
        self.scope = trio.CancelScope()
        self.server: Server

    async def run(self, servicer: EchoServicer, options: dict[str, Any], task_status: trio.TaskStatus[Server]) -> None:
        with self.scope:
            await trio_grpc.serve([servicer], self.listener, task_status=task_status, **options)
        self.returned.set()


async def start(nursery: trio.Nursery, servicer: EchoServicer, **options: Any) -> Served:
    served = Served()
    served.server = await nursery.start(served.run, servicer, {"limits": Limits(adaptive_window=False), **options})
    return served


async def test_draining_an_idle_server(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    served = await start(nursery, Echo())
    await served.server.drain()
    await trio.testing.wait_all_tasks_blocked()
    assert served.returned.is_set()
    assert "draining" in repr(served.server)
    # Again, and with a grace.
    await served.server.drain()
    await served.server.drain(grace=1)
    assert trio.current_time() == 0


async def test_draining_closes_the_listener_first_and_lets_calls_finish(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    waiting, outcomes, drained = Waiting(), Outcomes(), trio.Event()
    served = await start(nursery, waiting)

    async def drain() -> None:
        await served.server.drain()
        drained.set()

    async with trio_grpc.open_channel(served.listener.connect) as channel, trio.open_nursery() as calls:
        calls.start_soon(outcomes.call, channel, 5)
        await waiting.started.wait()
        nursery.start_soon(drain)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ConnectionRefusedError):
            await served.listener.connect()
        with pytest.raises(RpcError) as caught:
            await EchoStub(channel).Unary(EchoRequest())
        assert caught.value.code is StatusCode.UNAVAILABLE
        # As long as it takes.
        await trio.sleep(1000)
        assert not drained.is_set()
        assert not served.returned.is_set()
        assert served.server.statistics().handlers == 1
        waiting.gate.set()
        await drained.wait()
        await served.returned.wait()
    assert [reply.count for reply in outcomes.replies] == [5]
    assert waiting.ended == 1


async def test_draining_lets_streams_of_all_kinds_finish(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    waiting = Waiting()
    served = await start(nursery, waiting)
    async with trio_grpc.open_channel(served.listener.connect) as channel:
        echo = EchoStub(channel)
        async with (
            echo.ServerStream(EchoRequest(count=3)) as down,
            echo.ClientStream.open() as up,
            echo.Bidi() as both,
        ):
            assert (await down.receive()).text == "first"
            assert (await both.receive()).text == "first"
            nursery.start_soon(served.server.drain)
            await trio.testing.wait_all_tasks_blocked()
            waiting.gate.set()
            assert [reply.count async for reply in down] == [0, 1, 2]
            for payload in (b"a", b"b"):
                await up.send(EchoRequest(payload=payload))
                await both.send(EchoRequest(payload=payload))
                assert (await both.receive()).payload == payload
            await up.done_sending()
            assert (await up.receive()).payload == b"ab"
            await both.done_sending()
            with pytest.raises(trio.EndOfChannel):
                await both.receive()
            await served.returned.wait()


async def test_draining_closes_idle_connections(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    served = await start(nursery, Echo())
    async with trio_grpc.open_channel(served.listener.connect) as channel:
        await EchoStub(channel).Unary(EchoRequest())
        assert channel.statistics().connections == 1
        await served.server.drain()
        await trio.testing.wait_all_tasks_blocked()
        assert (channel.statistics().state, channel.statistics().connections) == ("idle", 0)
    assert trio.current_time() < 1


async def test_grace_cancels_and_drain_returns_after_the_handlers_finally(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    waiting, outcomes = Waiting(farewell=0.5), Outcomes()
    served = await start(nursery, waiting)
    async with trio_grpc.open_channel(served.listener.connect) as channel, trio.open_nursery() as calls:
        for _ in range(3):
            calls.start_soon(outcomes.call, channel)
        await trio.testing.wait_all_tasks_blocked()
        begin = trio.current_time()
        await served.server.drain(grace=5)
        assert trio.current_time() - begin >= 5.5
        assert trio.current_time() - begin < 7
        assert waiting.ended == 3
        await served.returned.wait()
    assert outcomes.codes == [StatusCode.UNAVAILABLE] * 3
    assert served.server.statistics() == trio_grpc.ServerStatistics(0, 0, 0, 0)


async def test_handlers_that_take_long_to_clean_up_are_waited_for(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    waiting, outcomes = Waiting(farewell=100), Outcomes()
    served = await start(nursery, waiting)
    async with trio_grpc.open_channel(served.listener.connect) as channel, trio.open_nursery() as calls:
        calls.start_soon(outcomes.call, channel)
        await waiting.started.wait()
        await served.server.drain(grace=5)
        assert waiting.ended == 1
        assert trio.current_time() >= 105


@pytest.mark.parametrize("grace", [0, -1])
async def test_no_grace_cancels_at_once(autojump_clock: Clock, nursery: trio.Nursery, grace: float) -> None:
    waiting, outcomes = Waiting(), Outcomes()
    served = await start(nursery, waiting)
    async with trio_grpc.open_channel(served.listener.connect) as channel, trio.open_nursery() as calls:
        calls.start_soon(outcomes.call, channel)
        await waiting.started.wait()
        await served.server.drain(grace)
        assert waiting.ended == 1
    assert outcomes.codes == [StatusCode.UNAVAILABLE]
    assert trio.current_time() < 3


@pytest.mark.parametrize(
    ("first", "second", "ends"),
    [(100, 3, 4), (None, 3, 4), (5, 100, 5), (5, None, 5), (100, 0, 1)],
)
async def test_a_second_drain_can_only_shorten_the_grace(
    autojump_clock: Clock, nursery: trio.Nursery, first: float | None, second: float | None, ends: float
) -> None:
    waiting, outcomes = Waiting(), Outcomes()
    served = await start(nursery, waiting)
    times: list[float] = []

    async def drain(grace: float | None) -> None:
        await served.server.drain(grace)
        times.append(trio.current_time())

    async with trio_grpc.open_channel(served.listener.connect) as channel, trio.open_nursery() as calls:
        calls.start_soon(outcomes.call, channel)
        await waiting.started.wait()
        calls.start_soon(drain, first)
        await trio.sleep(1)
        calls.start_soon(drain, second)
    assert len(times) == 2
    assert all(ends <= time < ends + 2 for time in times)


async def test_a_drain_that_is_cancelled_goes_on_and_can_be_shortened(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    waiting, outcomes = Waiting(), Outcomes()
    served = await start(nursery, waiting)
    async with trio_grpc.open_channel(served.listener.connect) as channel, trio.open_nursery() as calls:
        calls.start_soon(outcomes.call, channel)
        await waiting.started.wait()
        with trio.move_on_after(1) as scope:
            await served.server.drain()
        assert scope.cancelled_caught
        with pytest.raises(ConnectionRefusedError):
            await served.listener.connect()
        assert served.server.statistics().handlers == 1
        with trio.fail_after(10):
            await served.server.drain(grace=1)
        assert waiting.ended == 1
        await served.returned.wait()


async def test_a_cancelled_drain_still_cancels_handlers_at_its_grace(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    waiting, outcomes = Waiting(), Outcomes()
    served = await start(nursery, waiting)
    async with trio_grpc.open_channel(served.listener.connect) as channel, trio.open_nursery() as calls:
        calls.start_soon(outcomes.call, channel)
        await waiting.started.wait()
        with trio.move_on_after(1):
            await served.server.drain(grace=5)
        await trio.sleep(10)
        assert waiting.ended == 1
        assert served.returned.is_set()


async def test_cancelling_serve_ends_a_drain(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    waiting, outcomes, drained = Waiting(), Outcomes(), trio.Event()
    served = await start(nursery, waiting)

    async def drain() -> None:
        await served.server.drain()
        drained.set()

    async with trio_grpc.open_channel(served.listener.connect) as channel, trio.open_nursery() as calls:
        calls.start_soon(outcomes.call, channel)
        await waiting.started.wait()
        nursery.start_soon(drain)
        await trio.sleep(1)
        served.scope.cancel()
        await drained.wait()
        assert waiting.ended == 1
        await served.returned.wait()


async def test_draining_does_not_wait_for_a_client_that_answers_no_ping(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    served = await start(nursery, Echo())
    stream = await served.listener.connect()
    await stream.send_all(PREFACE)
    await trio.testing.wait_all_tasks_blocked()
    assert served.server.statistics().connections == 1
    await served.server.drain()
    assert frame_types(await read_all(stream)).count(GOAWAY) >= 2
    assert trio.current_time() < 10


async def test_draining_ends_connections_that_have_not_said_a_word(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    served = await start(nursery, Echo())
    stream = await served.listener.connect()
    await trio.testing.wait_all_tasks_blocked()
    await served.server.drain()
    await read_all(stream)
    assert trio.current_time() < 10


# -- cancelling


async def test_cancelling_serve_cancels_the_handlers_and_waits_for_them(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    waiting, outcomes = Waiting(farewell=0.5), Outcomes()
    served = await start(nursery, waiting)
    async with trio_grpc.open_channel(served.listener.connect) as channel, trio.open_nursery() as calls:
        for _ in range(3):
            calls.start_soon(outcomes.call, channel)
        await trio.testing.wait_all_tasks_blocked()
        served.scope.cancel()
        await served.returned.wait()
        assert waiting.ended == 3
        with pytest.raises(ConnectionRefusedError):
            await served.listener.connect()
    assert served.scope.cancelled_caught
    assert outcomes.codes == [StatusCode.UNAVAILABLE] * 3
    assert trio.current_time() < 3


async def test_a_cancelled_handler_can_still_answer(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    """Reader and writer outlive the handlers: what a ``finally`` says reaches the client."""

    class Polite(EchoServicer):
        async def ServerStream(self, request: EchoRequest, context: Context, /) -> None:
            try:
                await context.send(EchoReply(text="first"))
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await context.send(EchoReply(text="last"))
                    await context.abort(StatusCode.ABORTED, "sorry")

    served = await start(nursery, Polite())
    async with (
        trio_grpc.open_channel(served.listener.connect) as channel,
        EchoStub(channel).ServerStream(EchoRequest()) as call,
    ):
        assert (await call.receive()).text == "first"
        served.scope.cancel()
        assert (await call.receive()).text == "last"
        with pytest.raises(RpcError, match="sorry") as caught:
            await call.receive()
        assert caught.value.code is StatusCode.ABORTED


async def test_a_call_made_while_a_cancelled_server_cleans_up_goes_to_the_next_one(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    old, new, outcomes = Waiting(farewell=10), Echo(), Outcomes()
    first = await start(nursery, old)
    current = first

    async def connect() -> trio.abc.Stream:
        return await current.listener.connect()

    async with trio_grpc.open_channel(connect) as channel, trio.open_nursery() as calls:
        calls.start_soon(outcomes.call, channel)
        await old.started.wait()
        current = await start(nursery, new)
        first.scope.cancel()
        # At once, before GOAWAY can have come; then again when it has.
        await EchoStub(channel).Unary(EchoRequest())
        await EchoStub(channel).Unary(EchoRequest())
        assert (old.entered, new.calls) == (1, 2)
        await first.returned.wait()
    assert outcomes.codes == [StatusCode.UNAVAILABLE]


async def test_a_client_that_does_not_read_is_not_waited_for(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    class Firehose(EchoServicer):
        async def ServerStream(self, request: EchoRequest, context: Context, /) -> None:
            while True:
                await context.send(EchoReply(payload=bytes(10_000)))

    served = await start(nursery, Firehose())
    async with (
        trio_grpc.open_channel(served.listener.connect) as channel,
        EchoStub(channel).ServerStream(EchoRequest()) as call,
    ):
        await call.receive()
        await trio.testing.wait_all_tasks_blocked()
        served.scope.cancel()
        await served.returned.wait()
    assert trio.current_time() < 5


async def test_cancelling_serve_in_the_middle_of_everything(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    waiting = Waiting()
    served = await start(nursery, waiting)
    silent = await served.listener.connect()
    async with trio_grpc.open_channel(served.listener.connect) as channel:
        echo = EchoStub(channel)
        async with echo.ServerStream(EchoRequest()) as down, echo.Bidi() as both:
            await down.receive()
            await both.receive()
            served.scope.cancel()
            await served.returned.wait()
            for receive in (down.receive, both.receive):
                with pytest.raises(RpcError) as caught:
                    await receive()
                assert caught.value.code is StatusCode.UNAVAILABLE
            with pytest.raises(trio.BrokenResourceError):
                await both.send(EchoRequest())
    assert waiting.ended == 2
    await silent.aclose()


async def test_a_listener_that_breaks_ends_serve_with_its_own_error(autojump_clock: Clock) -> None:
    broken = OSError(errno.EBADF, "this listener is broken")

    class Broken(MemoryListener):
        async def accept(self) -> trio.abc.Stream:
            await trio.sleep(1)
            raise broken

    with pytest.raises(OSError, match="this listener is broken") as caught:
        await trio_grpc.serve([Echo()], [MemoryListener(), Broken()])
    assert caught.value is broken


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
async def test_want_of_descriptors_only_pauses_accepting(
    autojump_clock: Clock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    class Poor(MemoryListener):
        failures = 3

        async def accept(self) -> trio.abc.Stream:
            if self.failures:
                self.failures -= 1
                await trio.lowlevel.checkpoint()
                raise OSError(number, "poor")
            return await super().accept()

    listener = Poor()
    await nursery.start(trio_grpc.serve, [Echo()], listener)
    async with trio_grpc.open_channel(listener.connect) as channel:
        await EchoStub(channel).Unary(EchoRequest())
    assert trio.current_time() == pytest.approx(0.3)
    assert caplog.text.count("poor") == 3


async def test_clients_that_give_up_before_they_are_accepted(
    autojump_clock: Clock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    class Hasty(MemoryListener):
        failures = 3

        async def accept(self) -> trio.abc.Stream:
            if self.failures:
                self.failures -= 1
                await trio.lowlevel.checkpoint()
                raise ConnectionAbortedError(errno.ECONNABORTED, "gone")
            return await super().accept()

    listener = Hasty()
    await nursery.start(trio_grpc.serve, [Echo()], listener)
    async with trio_grpc.open_channel(listener.connect) as channel:
        await EchoStub(channel).Unary(EchoRequest())
    assert trio.current_time() == 0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


# -- clients that misbehave


def garbage(*chunks: bytes) -> Callable[[trio.abc.Stream], Awaitable[None]]:
    async def behave(stream: trio.abc.Stream) -> None:
        try:
            for chunk in chunks:
                await stream.send_all(chunk)
                await trio.testing.wait_all_tasks_blocked()
        except trio.BrokenResourceError:
            # The server has hung up already.
            return

    return behave


CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(200)
BAD_CLIENTS = {
    "nothing": garbage(),
    "HTTP/1.1": garbage(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "TLS": garbage(CLIENT_HELLO),
    "zeros": garbage(bytes(100)),
    "half a preface": garbage(PREFACE[:10]),
    "preface with another end": garbage(PREFACE[:20] + b"XXXX" + PREFACE[24:]),
    "no SETTINGS": garbage(PREFACE[:24] + bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + bytes(8)),
    "frame over the limit": garbage(PREFACE, b"\xff\xff\xff\x00\x00\x00\x00\x00\x01"),
    "DATA on an idle stream": garbage(PREFACE, bytes([0, 0, 1, 0, 0, 0, 0, 0, 1, 0])),
    "HEADERS that are no HPACK": garbage(PREFACE, bytes([0, 0, 4, 1, 5, 0, 0, 0, 1]) + b"\xff\xff\xff\xff"),
    "HEADERS on an even stream": garbage(PREFACE, bytes([0, 0, 1, 1, 5, 0, 0, 0, 2]) + b"\x88"),
    "window overflow": garbage(PREFACE, struct.pack(">HBBBLL", 0, 4, 8, 0, 0, 2**31 - 1)),
    "half a frame": garbage(PREFACE, bytes([0, 0, 100, 0])),
}


@pytest.mark.parametrize("name", BAD_CLIENTS)
async def test_one_bad_client_cannot_stop_the_server(
    autojump_clock: Clock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    served = await start(nursery, Echo())
    async with trio_grpc.open_channel(served.listener.connect) as channel:
        echo = EchoStub(channel)
        async with echo.Bidi() as call:
            await call.send(EchoRequest(count=1))
            assert (await call.receive()).count == 1
            stream = await served.listener.connect()
            await BAD_CLIENTS[name](stream)
            await stream.aclose()
            await trio.testing.wait_all_tasks_blocked()
            # Neither the running call nor new ones notice, on this connection or another one.
            await call.send(EchoRequest(count=2))
            assert (await call.receive()).count == 2
        async with trio_grpc.open_channel(served.listener.connect) as other:
            await EchoStub(other).Unary(EchoRequest())
        await trio.sleep(5)
        assert served.server.statistics().connections == 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("name", [name for name in BAD_CLIENTS if name != "nothing" and "half" not in name])
async def test_the_server_hangs_up_on_a_bad_client(autojump_clock: Clock, nursery: trio.Nursery, name: str) -> None:
    served = await start(nursery, Echo(), handshake_timeout=30)
    stream = await served.listener.connect()
    await BAD_CLIENTS[name](stream)
    types = frame_types(await read_all(stream))
    assert types[-1] == GOAWAY
    assert trio.current_time() < 5


@pytest.mark.parametrize("chunks", [[], [PREFACE[:10]], [PREFACE[:24]], [PREFACE[:30]]])
async def test_a_client_that_does_not_shake_hands_is_dropped(
    autojump_clock: Clock, nursery: trio.Nursery, chunks: list[bytes]
) -> None:
    served = await start(nursery, Echo(), handshake_timeout=30)
    stream = await served.listener.connect()
    await garbage(*chunks)(stream)
    await trio.sleep(29)
    assert served.server.statistics().connections == 1
    types = frame_types(await read_all(stream))
    assert types[-1] == GOAWAY
    assert 30 <= trio.current_time() < 33
    # It waits a moment for the client to hang up first.
    await trio.sleep(2)
    assert served.server.statistics().connections == 0


async def test_a_reset_right_after_accept(nursery: trio.Nursery) -> None:
    server: Server = await nursery.start(trio_grpc.serve, [Echo()], "127.0.0.1:0")
    host, port = server.addresses[0].split(":")
    for _ in range(20):
        with socket.create_connection((host, int(port))) as sock:
            # Closing sends RST instead of FIN.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await call_it(server.addresses[0])
    while server.statistics().connections:  # noqa: ASYNC110 -- real sockets close when the kernel says so
        await trio.sleep(0.001)


# -- more calls than handlers may run


async def test_resetting_streams_does_not_start_more_handlers_than_the_limit(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    """Rapid reset: a reset frees the stream at once, its handler may take its time."""
    waiting, outcomes = Waiting(farewell=100), Outcomes()
    served = await start(nursery, waiting, limits=Limits(max_concurrent_streams=2, adaptive_window=False))
    async with trio_grpc.open_channel(served.listener.connect) as channel, trio.open_nursery() as calls:
        for _ in range(50):
            with trio.move_on_after(0.1):
                await EchoStub(channel).Unary(EchoRequest())
        await trio.testing.wait_all_tasks_blocked()
        assert (served.server.statistics().handlers, served.server.statistics().streams) == (2, 0)
        # Those who wait for their turn have done nothing wrong.
        waiting.gate.set()
        for count in (1, 2):
            calls.start_soon(outcomes.call, channel, count)
        await trio.testing.wait_all_tasks_blocked()
        assert (served.server.statistics().handlers, served.server.statistics().streams) == (2, 2)
        assert waiting.entered == 2
    assert sorted(reply.count for reply in outcomes.replies) == [1, 2]
    # The 48 that were reset while they waited have never run.
    assert waiting.entered == 4


async def test_a_stream_may_be_used_again_as_soon_as_its_trailers_came(autojump_clock: Clock) -> None:
    limits = Limits(max_concurrent_streams=1, adaptive_window=False)
    async with open_channel_pair(Echo(), server_limits=limits) as (channel, _):
        echo = EchoStub(channel)
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(partial(echo.Unary, EchoRequest(), timeout=5))


async def test_draining_with_calls_that_wait_for_a_handler(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    waiting, outcomes = Waiting(farewell=3), Outcomes()
    served = await start(nursery, waiting, limits=Limits(max_concurrent_streams=1, adaptive_window=False))
    async with trio_grpc.open_channel(served.listener.connect) as channel, trio.open_nursery() as calls:
        with trio.move_on_after(1):
            await EchoStub(channel).Unary(EchoRequest())
        calls.start_soon(outcomes.call, channel)
        await trio.testing.wait_all_tasks_blocked()
        await served.server.drain(grace=0)
        assert waiting.ended == 1
    assert outcomes.codes == [StatusCode.UNAVAILABLE]
