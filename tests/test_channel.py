"""`open_channel`: targets, connecting, reconnecting, closing, and what comes out of its block."""

from __future__ import annotations

import builtins
import gc
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.echo_service import Echo, Waiting
from trio_grpc import Limits, ProtobufCodec, RpcError, Server, StatusCode
from trio_grpc.testing import MemoryListener, open_channel_pair

Dial = Callable[[], Awaitable[trio.abc.Stream]]


async def nowhere() -> trio.abc.Stream:
    """A target that nothing may call."""
    raise AssertionError("nobody asked for a connection")


class Backend:
    """A place where servers come and go, in memory.

    Attributes:
        dials: connection attempts, ever.
        server: the one that is up.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self.dials = 0
        self.server: Server | None = None
        self._nursery = nursery
        self._listener: MemoryListener | None = None
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def dial(self) -> trio.abc.Stream:
        self.dials += 1
        if self._listener is None:
            await trio.lowlevel.checkpoint()
            raise ConnectionRefusedError("no server here")
        return await self._listener.connect()

    async def start(self, servicer: Echo, limits: Limits | None = None) -> Server:
        self._listener = MemoryListener()
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        server: Server = await self._nursery.start(self._serve, servicer, limits or Limits(adaptive_window=False))
        self.server = server
        return server

    async def _serve(self, servicer: Echo, limits: Limits, task_status: trio.TaskStatus[Server]) -> None:
        listener, ended = self._listener, self._ended
        assert listener is not None
        with self._scope:
            await trio_grpc.serve([servicer], listener, limits=limits, task_status=task_status)
        ended.set()

    async def stop(self) -> None:
        self._listener = None
        self._scope.cancel()
        await self._ended.wait()


@pytest.fixture
def backend(nursery: trio.Nursery) -> Backend:
    return Backend(nursery)


# -- targets


@pytest.mark.parametrize(
    ("target", "meaning"),
    [
        ("localhost:1", "localhost:1"),
        ("127.0.0.1:65535", "127.0.0.1:65535"),
        ("[::1]:50051", "[::1]:50051"),
        ("[::1]", "[::1]:443"),
        ("::1", "[::1]:443"),
        ("example.org", "example.org:443"),
        ("dns:example.org:5", "example.org:5"),
        ("dns:///example.org:5", "example.org:5"),
        ("dns:///example.org", "example.org:443"),
        ("ipv4:10.0.0.1:5", "10.0.0.1:5"),
        ("ipv6:[fe80::1]:5", "[fe80::1]:5"),
        ("unix:relative/path", "unix:relative/path"),
        ("unix:/absolute/path", "unix:/absolute/path"),
        ("unix:///absolute/path", "unix:/absolute/path"),
        ("unix:with:colon", "unix:with:colon"),
    ],
)
def test_targets(target: str, meaning: str) -> None:
    channel = trio_grpc.open_channel(target)
    assert channel.target == meaning
    assert repr(channel) == f"<Channel to {meaning}, idle>"


@pytest.mark.parametrize(
    "target",
    [
        "",
        ":50051",
        "localhost:",
        "localhost:http",
        "localhost:-1",
        "localhost:65536",
        "localhost:1²",
        "localhost: 1",
        "[::1",
        "[::1]50051",
        "http://localhost:1",
        "https://localhost",
        "unix:",
        "dns://8.8.8.8:x/localhost:1",
        "dns://localhost:1",
        "dns:",
    ],
)
def test_malformed_targets_are_refused_at_once(target: str) -> None:
    with pytest.raises(ValueError, match=r"target|address") as caught:
        trio_grpc.open_channel(target)
    assert not target or repr(target) in str(caught.value)


@pytest.mark.parametrize("target", [None, 50051, ("localhost", 50051), b"localhost:50051", trio.StapledStream])
def test_targets_of_other_types_are_refused_at_once(target: Any) -> None:
    with pytest.raises(TypeError, match="target must be"):
        trio_grpc.open_channel(target)


@pytest.mark.parametrize("metadata", [{"grpc-timeout": "1S"}, {"Bad Key": "x"}, {"x-key": "line\nbreak"}])
def test_malformed_metadata_of_the_channel_is_refused_at_once(metadata: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(metadata))):
        trio_grpc.open_channel(nowhere, metadata=metadata)


def test_an_unknown_compression_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="brotli"):
        trio_grpc.open_channel(nowhere, compression="brotli")


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("ssl_context", True, TypeError),
        ("ssl_context", "cert.pem", TypeError),
        ("server_hostname", b"localhost", TypeError),
        ("server_hostname", "local\nhost", ValueError),
        ("authority", 5, TypeError),
        ("authority", "a\r\nb", ValueError),
        ("authority", "b\u00fccher.example", ValueError),
        ("user_agent", ["app"], TypeError),
        ("user_agent", "app\n", ValueError),
        ("limits", {"max_frame_size": 16_384}, TypeError),
        ("limits", 0, TypeError),
        ("keepalive", 20, TypeError),
        ("codec", "json", TypeError),
        ("codec", ProtobufCodec, TypeError),
        ("resolvers", 5, TypeError),
        ("resolvers", "test", TypeError),
        ("load_balancing", trio_grpc.PickFirst, TypeError),
        ("load_balancing", dict, TypeError),
        ("retries", 1, TypeError),
    ],
)
def test_wrong_options_are_refused_at_once(option: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"^{option} must"):
        trio_grpc.open_channel(nowhere, **{option: value})


def test_names_of_all_sorts_are_taken() -> None:
    trio_grpc.open_channel(nowhere, authority="[::1]:50051", user_agent="app/1.0 (test; x86)")
    trio_grpc.open_channel(nowhere, server_hostname="b\u00fccher.example", ssl_context=ssl.create_default_context())


def test_a_name_for_tls_without_tls_is_refused() -> None:
    with pytest.raises(ValueError, match="server_hostname is for TLS: it needs an ssl_context"):
        trio_grpc.open_channel(nowhere, server_hostname="name.example")


def test_a_policy_that_was_not_made_into_an_object_is_refused() -> None:
    with pytest.raises(TypeError, match=r"not the class RoundRobin; RoundRobin\(\) may be meant"):
        trio_grpc.open_channel(nowhere, load_balancing=trio_grpc.RoundRobin)


@pytest.mark.parametrize("channel", [None, 5, "127.0.0.1:1", trio_grpc.Channel])
def test_stubs_are_made_of_channels(channel: Any) -> None:
    with pytest.raises(TypeError, match=f"^channel must be Channel, not {type(channel).__name__}$"):
        EchoStub(channel)


# -- entering and closing


async def test_opening_a_channel_does_not_connect() -> None:
    async with trio_grpc.open_channel(nowhere) as channel:
        EchoStub(channel)
        await trio.testing.wait_all_tasks_blocked()
        assert channel.statistics().state == "idle"
        assert not channel.closed
    assert channel.closed
    assert channel.statistics().state == "shutdown"


async def open_all(echo: EchoStub) -> list[Callable[[], Awaitable[object]]]:
    """One way to start a call of each kind."""

    async def enter(call: Any) -> None:
        async with call:
            raise AssertionError("the block was entered")

    request = EchoRequest()
    return [
        lambda: echo.Unary(request),
        lambda: enter(echo.Unary.open(request)),
        lambda: enter(echo.ServerStream(request)),
        lambda: echo.ClientStream([request]),
        lambda: enter(echo.ClientStream.open()),
        lambda: enter(echo.Bidi()),
    ]


async def test_calls_before_entering_tell_what_to_do() -> None:
    for start in await open_all(EchoStub(trio_grpc.open_channel(nowhere))):
        with pytest.raises(RuntimeError, match="async with"):
            await start()


async def test_a_channel_is_entered_once() -> None:
    channel = trio_grpc.open_channel(nowhere)
    async with channel:
        with pytest.raises(RuntimeError, match="once"):
            await channel.__aenter__()
    with pytest.raises(RuntimeError, match="once"):
        await channel.__aenter__()


async def test_calls_after_leaving_raise_closed() -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        echo = EchoStub(channel)
        await echo.Unary(EchoRequest())
    for start in await open_all(echo):
        with pytest.raises(trio.ClosedResourceError):
            await start()


async def test_calls_after_aclose_raise_closed() -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        echo = EchoStub(channel)
        await echo.Unary(EchoRequest())
        await channel.aclose()
        assert channel.closed
        assert channel.statistics() == trio_grpc.ChannelStatistics("shutdown", 0, 0, 0, 0)
        for start in await open_all(echo):
            with pytest.raises(trio.ClosedResourceError):
                await start()
        assert channel.statistics().connections == 0


async def test_closing_twice_and_again_after_leaving() -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        await EchoStub(channel).Unary(EchoRequest())
        await channel.aclose()
        await channel.aclose()
    await channel.aclose()
    assert channel.statistics().state == "shutdown"


async def test_aclose_before_entering() -> None:
    channel = trio_grpc.open_channel(nowhere)
    await channel.aclose()
    for start in await open_all(EchoStub(channel)):
        with pytest.raises(trio.ClosedResourceError):
            await start()


async def test_aclose_is_a_checkpoint() -> None:
    async with trio_grpc.open_channel(nowhere) as channel:
        with trio.testing.assert_checkpoints():
            await channel.aclose()


def enterings(echo: EchoStub) -> dict[str, Callable[[], Awaitable[object]]]:
    """Operations that wait for the server, by what they wait for."""

    async def receive() -> None:
        async with echo.ServerStream(EchoRequest()) as call:
            assert (await call.receive()).text == "first"
            await call.receive()

    async def wait_initial_metadata() -> None:
        async with echo.ClientStream.open() as call:
            await call.wait_initial_metadata()

    async def send() -> None:
        async with echo.ClientStream.open() as call:
            while True:
                await call.send(EchoRequest(payload=bytes(10_000)))

    async def receive_reply() -> None:
        async with echo.ClientStream.open() as call:
            await call.receive()

    return {
        "unary": lambda: echo.Unary(EchoRequest()),
        "receive": receive,
        "receive reply": receive_reply,
        "initial metadata": wait_initial_metadata,
        "send": send,
        "client stream": lambda: echo.ClientStream([EchoRequest()]),
    }


OPERATIONS = ["unary", "receive", "receive reply", "initial metadata", "send", "client stream"]


async def expect_closed(operation: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(trio.ClosedResourceError):
        await operation()


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("way", ["leave", "aclose"])
async def test_closing_the_channel_in_the_middle_of_an_operation(operation: str, way: str) -> None:
    servicer = Waiting()
    async with trio.open_nursery() as nursery, open_channel_pair(servicer) as (channel, server):
        nursery.start_soon(expect_closed, enterings(EchoStub(channel))[operation])
        await servicer.started.wait()
        await trio.testing.wait_all_tasks_blocked()
        if way == "aclose":
            await channel.aclose()
            await trio.testing.wait_all_tasks_blocked()
            # The server has heard of it, and so did the task that waited.
            assert not nursery.child_tasks
            assert server.statistics().streams == 0
            assert servicer.ended == 1


@pytest.mark.parametrize("way", ["leave", "aclose"])
async def test_closing_the_channel_while_a_call_waits_for_the_stream_limit(way: str) -> None:
    servicer = Waiting()
    async with (
        trio.open_nursery() as nursery,
        open_channel_pair(servicer, server_limits=Limits(max_concurrent_streams=1)) as (channel, _),
    ):
        for operation in enterings(EchoStub(channel)).values():
            nursery.start_soon(expect_closed, operation)
        await servicer.started.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert channel.statistics().waiting == len(OPERATIONS) - 1
        if way == "aclose":
            await channel.aclose()
            await trio.testing.wait_all_tasks_blocked()
            assert not nursery.child_tasks


@pytest.mark.parametrize("way", ["leave", "aclose"])
async def test_closing_the_channel_while_it_connects(autojump_clock: trio.testing.MockClock, way: str) -> None:
    async def never() -> trio.abc.Stream:
        await trio.sleep_forever()
        raise AssertionError

    start = trio.current_time()
    async with trio.open_nursery() as nursery, trio_grpc.open_channel(never) as channel:
        nursery.start_soon(expect_closed, lambda: EchoStub(channel).Unary(EchoRequest()))
        await trio.testing.wait_all_tasks_blocked()
        assert channel.statistics().state == "connecting"
        if way == "aclose":
            await channel.aclose()
            await trio.testing.wait_all_tasks_blocked()
            assert not nursery.child_tasks
            assert channel.statistics().state == "shutdown"
    assert trio.current_time() == start


@pytest.mark.parametrize("way", ["leave", "aclose"])
async def test_closing_the_channel_while_the_server_keeps_silent(
    autojump_clock: trio.testing.MockClock, way: str
) -> None:
    streams: list[trio.abc.Stream] = []

    async def silent() -> trio.abc.Stream:
        near, far = trio.testing.memory_stream_pair()
        streams.append(far)
        return near

    start = trio.current_time()
    async with trio.open_nursery() as nursery, trio_grpc.open_channel(silent) as channel:
        nursery.start_soon(expect_closed, lambda: EchoStub(channel).Unary(EchoRequest()))
        await trio.testing.wait_all_tasks_blocked()
        if way == "aclose":
            await channel.aclose()
            await trio.testing.wait_all_tasks_blocked()
            assert not nursery.child_tasks
            assert channel.statistics().connections == 0
    # Well before the silent server's time is up.
    assert trio.current_time() - start < 3


@pytest.mark.parametrize("way", ["leave", "aclose"])
async def test_closing_the_channel_while_a_call_waits_for_the_next_attempt(
    autojump_clock: trio.testing.MockClock, backend: Backend, way: str
) -> None:
    async with trio.open_nursery() as nursery, trio_grpc.open_channel(backend.dial) as channel:
        echo = EchoStub(channel)
        nursery.start_soon(expect_closed, lambda: echo.Unary(EchoRequest(), wait_for_ready=True))
        await trio.testing.wait_all_tasks_blocked()
        assert channel.statistics().state == "transient failure"
        start = trio.current_time()
        if way == "aclose":
            await channel.aclose()
            await trio.testing.wait_all_tasks_blocked()
            assert not nursery.child_tasks
    assert trio.current_time() == start
    assert backend.dials == 1


# -- connecting


async def test_a_refused_connection(autojump_clock: trio.testing.MockClock) -> None:
    refused = ConnectionRefusedError(111, "Connection refused")

    async def dial() -> trio.abc.Stream:
        raise refused

    async with trio_grpc.open_channel(dial) as channel:
        for start in await open_all(EchoStub(channel)):
            with pytest.raises(RpcError, match="Connection refused") as caught:
                await start()
            assert caught.value.code is StatusCode.UNAVAILABLE
            assert caught.value.__cause__ is refused
        assert channel.statistics().state == "transient failure"


async def test_a_refused_connection_over_tcp() -> None:
    # Bound and not listening: nobody else gets the port meanwhile.
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        async with trio_grpc.open_channel(address) as channel:
            with pytest.raises(RpcError) as caught:
                await EchoStub(channel).Unary(EchoRequest())
    error = caught.value
    assert error.code is StatusCode.UNAVAILABLE
    assert address in error.message
    assert os.strerror(111) in error.message
    assert isinstance(error.__cause__, ConnectionRefusedError)


class Resolver(trio.abc.HostnameResolver):
    """Knows no name."""

    async def getaddrinfo(self, host: object, *args: object, **options: object) -> Any:
        await trio.lowlevel.checkpoint()
        raise socket.gaierror(socket.EAI_NONAME, f"no such host: {host!r}")

    async def getnameinfo(self, *args: object) -> Any:
        raise NotImplementedError


async def test_a_name_that_cannot_be_resolved(autojump_clock: trio.testing.MockClock) -> None:
    trio.socket.set_custom_hostname_resolver(Resolver())
    async with trio_grpc.open_channel("nowhere.example:50051") as channel:
        with pytest.raises(RpcError, match=r"nowhere\.example:50051.*no such host") as caught:
            await EchoStub(channel).Unary(EchoRequest())
    assert caught.value.code is StatusCode.UNAVAILABLE
    assert isinstance(caught.value.__cause__, socket.gaierror)


async def test_a_name_that_is_none() -> None:
    # The codec for host names raises UnicodeError, no OSError.
    target = "a" * 100 + ".example:50051"
    async with trio_grpc.open_channel(target) as channel:
        with pytest.raises(RpcError, match=target) as caught:
            await EchoStub(channel).Unary(EchoRequest())
    assert caught.value.code is StatusCode.UNAVAILABLE
    assert caught.value.__cause__ is not None


async def test_a_target_that_raises_what_it_likes(caplog: pytest.LogCaptureFixture) -> None:
    mistake = ZeroDivisionError("a mistake in the application")

    async def dial() -> trio.abc.Stream:
        raise mistake

    async with trio_grpc.open_channel(dial) as channel:
        with pytest.raises(RpcError, match="a mistake in the application") as caught:
            await EchoStub(channel).Unary(EchoRequest())
    assert caught.value.code is StatusCode.UNAVAILABLE
    assert caught.value.__cause__ is mistake
    assert "internal error" not in caplog.text


async def test_calls_fail_at_once_until_an_attempt_in_the_background_succeeds(
    autojump_clock: trio.testing.MockClock, backend: Backend
) -> None:
    async with trio_grpc.open_channel(backend.dial) as channel:
        echo = EchoStub(channel)
        for _ in range(3):
            with pytest.raises(RpcError) as caught:
                await echo.Unary(EchoRequest())
            assert caught.value.code is StatusCode.UNAVAILABLE
        assert backend.dials == 1
        await backend.start(Echo())
        # At most a second and its jitter (gRPC connection-backoff).
        await trio.sleep(1.3)
        await echo.Unary(EchoRequest())
        assert backend.dials == 2


async def test_concurrent_calls_share_one_attempt(autojump_clock: trio.testing.MockClock, backend: Backend) -> None:
    await backend.start(Echo())

    async def slow() -> trio.abc.Stream:
        await trio.sleep(1)
        return await backend.dial()

    async with trio_grpc.open_channel(slow) as channel:
        echo = EchoStub(channel)
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(echo.Unary, EchoRequest())
        assert backend.dials == 1
        assert channel.statistics().connections == 1


async def test_a_cancelled_caller_does_not_end_the_attempt_of_the_others(
    autojump_clock: trio.testing.MockClock, backend: Backend
) -> None:
    await backend.start(Echo())

    async def slow() -> trio.abc.Stream:
        await trio.sleep(10)
        return await backend.dial()

    async with trio_grpc.open_channel(slow) as channel:
        echo = EchoStub(channel)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(echo.Unary, EchoRequest())
            with trio.move_on_after(1) as scope:
                await echo.Unary(EchoRequest())
            assert scope.cancelled_caught
        assert backend.dials == 1


async def test_wait_for_ready_waits_for_a_server(autojump_clock: trio.testing.MockClock, backend: Backend) -> None:
    async def start_late() -> None:
        await trio.sleep(30)
        await backend.start(Echo())

    async with trio_grpc.open_channel(backend.dial) as channel, trio.open_nursery() as nursery:
        echo = EchoStub(channel)
        nursery.start_soon(start_late)
        reply = await echo.Unary(EchoRequest(count=1), wait_for_ready=True)
        assert reply.count == 1
        # Exponential backoff: a handful of attempts in half a minute.
        assert 3 <= backend.dials <= 10


async def test_wait_for_ready_of_a_stream(autojump_clock: trio.testing.MockClock, backend: Backend) -> None:
    async def start_late() -> None:
        await trio.sleep(30)
        await backend.start(Echo())

    async with trio_grpc.open_channel(backend.dial) as channel, trio.open_nursery() as nursery:
        nursery.start_soon(start_late)
        async with EchoStub(channel).ServerStream(EchoRequest(count=2), wait_for_ready=True) as call:
            assert [reply.count async for reply in call] == [0, 1]


@pytest.mark.parametrize("kind", ["Unary", "ServerStream"])
async def test_wait_for_ready_ends_with_the_deadline(
    autojump_clock: trio.testing.MockClock, backend: Backend, kind: str
) -> None:
    async def call_it(echo: EchoStub) -> None:
        if kind == "Unary":
            await echo.Unary(EchoRequest(), wait_for_ready=True, timeout=10)
        else:
            async with echo.ServerStream(EchoRequest(), wait_for_ready=True, timeout=10):
                pass

    start = trio.current_time()
    async with trio_grpc.open_channel(backend.dial) as channel:
        with pytest.raises(RpcError) as caught:
            await call_it(EchoStub(channel))
        assert caught.value.code is StatusCode.DEADLINE_EXCEEDED
        assert trio.current_time() - start == pytest.approx(10)
        assert backend.dials > 1


async def test_an_ambient_deadline_ends_wait_for_ready_as_trio_does(
    autojump_clock: trio.testing.MockClock, backend: Backend
) -> None:
    async with trio_grpc.open_channel(backend.dial) as channel:
        with pytest.raises(trio.TooSlowError):
            with trio.fail_after(10):
                await EchoStub(channel).Unary(EchoRequest(), wait_for_ready=True)


class Far:
    """What a target connects to when there is no server: the far ends are the test's."""

    def __init__(self) -> None:
        self.streams: list[trio.StapledStream[Any, Any]] = []
        self.connected = trio.Event()

    async def dial(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        near, far = trio.testing.memory_stream_pair()
        self.streams.append(far)
        self.connected.set()
        return near


async def test_a_server_that_never_speaks(autojump_clock: trio.testing.MockClock) -> None:
    far = Far()
    start = trio.current_time()
    async with trio_grpc.open_channel(far.dial) as channel:
        with pytest.raises(RpcError, match=r"SETTINGS|no answer") as caught:
            await EchoStub(channel).Unary(EchoRequest())
        assert caught.value.code is StatusCode.UNAVAILABLE
        assert trio.current_time() - start == pytest.approx(20)
        # The half-open connection is closed.
        with trio.fail_after(3):
            assert await read_all(far.streams[0])


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    data = b""
    while True:
        chunk = await stream.receive_some()
        if not chunk:
            return data
        data += chunk


async def test_the_timeout_of_a_call_to_a_server_that_never_speaks(autojump_clock: trio.testing.MockClock) -> None:
    far = Far()
    start = trio.current_time()
    async with trio_grpc.open_channel(far.dial) as channel:
        with pytest.raises(RpcError) as caught:
            await EchoStub(channel).Unary(EchoRequest(), timeout=3)
        assert caught.value.code is StatusCode.DEADLINE_EXCEEDED
        assert trio.current_time() - start == pytest.approx(3)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2p1\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        bytes(9),
        b"",
    ],
    ids=["HTTP/1.1", "SSH", "TLS alert", "zeros", "end of file"],
)
async def test_a_server_that_speaks_something_else(autojump_clock: trio.testing.MockClock, answer: bytes) -> None:
    far = Far()

    async def speak() -> None:
        await far.connected.wait()
        if answer:
            await far.streams[0].send_all(answer)
        await far.streams[0].send_stream.aclose()

    start = trio.current_time()
    async with trio.open_nursery() as nursery, trio_grpc.open_channel(far.dial) as channel:
        nursery.start_soon(speak)
        with pytest.raises(RpcError, match="failed to connect") as caught:
            await EchoStub(channel).Unary(EchoRequest())
        assert caught.value.code is StatusCode.UNAVAILABLE
        # A fault is told, not waited for.
        assert trio.current_time() - start < 2


async def test_a_stream_as_the_target_serves_until_it_ends(nursery: trio.Nursery) -> None:
    listener = MemoryListener()
    server: Server = await nursery.start(trio_grpc.serve, [Echo()], listener)
    async with trio_grpc.open_channel(await listener.connect()) as channel:
        echo = EchoStub(channel)
        assert (await echo.Unary(EchoRequest(count=1))).count == 1
        await server.drain()
        with pytest.raises(RpcError, match="cannot be made again") as caught:
            await echo.Unary(EchoRequest())
        assert caught.value.code is StatusCode.UNAVAILABLE


# -- connecting again


async def test_the_next_server_is_found_without_a_new_channel(
    autojump_clock: trio.testing.MockClock, backend: Backend
) -> None:
    first = Waiting()
    await backend.start(first)
    codes: list[StatusCode] = []

    async def call_it(echo: EchoStub) -> None:
        with pytest.raises(RpcError) as caught:
            await echo.Unary(EchoRequest())
        codes.append(caught.value.code)

    async with trio_grpc.open_channel(backend.dial) as channel:
        echo = EchoStub(channel)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call_it, echo)
            await first.started.wait()
            await backend.stop()
        assert codes == [StatusCode.UNAVAILABLE]
        await trio.testing.wait_all_tasks_blocked()
        assert (channel.statistics().state, channel.statistics().connections) == ("idle", 0)
        with pytest.raises(RpcError, match="no server here"):
            await echo.Unary(EchoRequest())
        await backend.start(Echo())
        await trio.sleep(1.3)
        assert (await echo.Unary(EchoRequest(count=2))).count == 2


async def test_a_server_that_restarts_on_the_same_port() -> None:
    async def run(address: str, servicer: Echo, task_status: trio.TaskStatus[Server]) -> None:
        with trio.CancelScope() as scope:
            scopes.append(scope)
            await trio_grpc.serve([servicer], address, task_status=task_status)
        ended.set()

    scopes: list[trio.CancelScope] = []
    async with trio.open_nursery() as nursery:
        ended = trio.Event()
        server: Server = await nursery.start(run, "127.0.0.1:0", Echo())
        address = server.addresses[0]
        async with trio_grpc.open_channel(address) as channel:
            echo = EchoStub(channel)
            for number in range(3):
                assert (await echo.Unary(EchoRequest(count=number))).count == number
                scopes[-1].cancel()
                await ended.wait()
                ended = trio.Event()
                again: Server = await nursery.start(run, address, Echo())
                assert again.addresses == (address,)
            assert (await echo.Unary(EchoRequest(count=9))).count == 9
        scopes[-1].cancel()


async def test_after_goaway_new_calls_go_to_a_new_connection_and_old_ones_go_on(
    autojump_clock: trio.testing.MockClock, backend: Backend
) -> None:
    old, new = Waiting(), Echo()
    first = await backend.start(old)
    async with trio.open_nursery() as nursery, trio_grpc.open_channel(backend.dial) as channel:
        echo = EchoStub(channel)
        async with echo.ServerStream(EchoRequest(count=3)) as call:
            assert (await call.receive()).text == "first"
            nursery.start_soon(first.drain)
            await trio.testing.wait_all_tasks_blocked()
            assert channel.statistics().state == "idle"
            await backend.start(new)
            assert (await echo.Unary(EchoRequest(count=4))).count == 4
            assert (channel.statistics().state, channel.statistics().connections) == ("ready", 2)
            old.gate.set()
            assert [reply.count async for reply in call] == [0, 1, 2]
        await trio.testing.wait_all_tasks_blocked()
        assert channel.statistics().connections == 1
        assert (old.calls, new.calls) == (1, 1)


async def test_calls_that_wait_for_the_stream_limit_move_to_the_next_connection(
    autojump_clock: trio.testing.MockClock, backend: Backend
) -> None:
    old, new = Waiting(), Echo()
    first = await backend.start(old, Limits(max_concurrent_streams=1))
    async with trio_grpc.open_channel(backend.dial) as channel:
        echo = EchoStub(channel)
        replies: list[EchoReply] = []

        async def call_it(number: int) -> None:
            replies.append(await echo.Unary(EchoRequest(count=number)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call_it, 0)
            await old.started.wait()
            for number in range(1, 5):
                nursery.start_soon(call_it, number)
            await trio.testing.wait_all_tasks_blocked()
            assert channel.statistics().waiting == 4
            await backend.start(new)
            nursery.start_soon(first.drain)
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(reply.count for reply in replies) == [1, 2, 3, 4]
            old.gate.set()
        assert sorted(reply.count for reply in replies) == [0, 1, 2, 3, 4]
    assert (old.calls, new.calls) == (1, 4)


# -- what comes out of the block


class Oops(Exception):
    """A user's own."""


async def raise_in_channel(error: BaseException) -> None:
    async with trio_grpc.open_channel(nowhere):
        raise error


async def raise_in_connected_channel(error: BaseException) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        await EchoStub(channel).Unary(EchoRequest())
        raise error


async def raise_in_pair(error: BaseException) -> None:
    async with open_channel_pair(Echo()):
        raise error


async def raise_in_server_stream(error: BaseException) -> None:
    async with open_channel_pair(Waiting()) as (channel, _), EchoStub(channel).ServerStream(EchoRequest()) as call:
        await call.receive()
        raise error


async def raise_in_client_stream(error: BaseException) -> None:
    async with open_channel_pair(Echo()) as (channel, _), EchoStub(channel).ClientStream.open() as call:
        await call.send(EchoRequest())
        raise error


async def raise_in_bidi(error: BaseException) -> None:
    async with open_channel_pair(Echo()) as (channel, _), EchoStub(channel).Bidi(timeout=10) as call:
        await call.send(EchoRequest())
        await call.receive()
        raise error


async def raise_in_iterator(error: BaseException) -> None:
    async def requests() -> Any:
        yield EchoRequest()
        raise error

    async with open_channel_pair(Echo()) as (channel, _):
        await EchoStub(channel).ClientStream(requests())


async def raise_after_the_server_died(error: BaseException) -> None:
    listener = MemoryListener()
    async with trio_grpc.open_channel(listener.connect) as channel:
        async with trio.open_nursery() as nursery:
            await nursery.start(trio_grpc.serve, [Echo()], listener)
            await EchoStub(channel).Unary(EchoRequest())
            nursery.cancel_scope.cancel()
        raise error


@pytest.mark.parametrize(
    "block",
    [
        raise_in_channel,
        raise_in_connected_channel,
        raise_in_pair,
        raise_in_server_stream,
        raise_in_client_stream,
        raise_in_bidi,
        raise_in_iterator,
        raise_after_the_server_died,
    ],
    ids=lambda function: function.__name__,
)
@pytest.mark.parametrize("kind", ["exception", "group", "exit"])
async def test_a_users_exception_comes_out_as_itself(
    block: Callable[[BaseException], Awaitable[None]], kind: str
) -> None:
    error: BaseException
    cause = KeyError("the cause")
    if kind == "group":
        # Python 3.10 has no groups of its own; trio brings the backport.
        group: Any = getattr(builtins, "ExceptionGroup", None) or pytest.importorskip("exceptiongroup").ExceptionGroup
        error = group("a user's", [Oops("one")])
    elif kind == "exit":
        error = SystemExit(3)
    else:
        error = Oops("one")
    error.__cause__ = cause
    caught: BaseException | None = None
    try:
        await block(error)
    except BaseException as one:
        caught = one
    assert caught is error
    assert error.__cause__ is cause
    assert error.__context__ is None


async def test_a_lone_rpc_error_comes_out_of_every_block_as_itself() -> None:
    with pytest.raises(RpcError) as caught:
        async with open_channel_pair() as (channel, _), EchoStub(channel).ServerStream(EchoRequest()) as call:
            await call.receive()
    assert caught.value.code is StatusCode.UNIMPLEMENTED


async def test_the_right_scope_takes_the_cancellation(autojump_clock: trio.testing.MockClock) -> None:
    servicer = Waiting()
    with trio.move_on_after(5) as outer:
        async with open_channel_pair(servicer) as (channel, _):
            echo = EchoStub(channel)
            with trio.move_on_after(1) as inner:
                await echo.Unary(EchoRequest())
            assert inner.cancelled_caught
            with trio.move_on_after(1) as inner:
                async with echo.ServerStream(EchoRequest()) as call:
                    await call.receive()
                    await call.receive()
            assert inner.cancelled_caught
            await trio.testing.wait_all_tasks_blocked()
            assert servicer.ended == 2
            await echo.Unary(EchoRequest())
    assert outer.cancelled_caught
    assert servicer.ended == 3


async def test_a_call_can_be_finished_in_a_finally_of_a_cancelled_block(
    autojump_clock: trio.testing.MockClock,
) -> None:
    counts: list[int] = []
    with trio.move_on_after(1):
        async with open_channel_pair(Echo()) as (channel, _):
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    counts.append((await EchoStub(channel).Unary(EchoRequest(count=5))).count)
    assert counts == [5]


# -- leaks


def open_descriptors() -> int:
    # The listing has a descriptor of its own, each time.
    return len(list(Path("/dev/fd").iterdir()))


def cycles(server: Server, silent: str, refused: str) -> dict[str, Callable[[], Awaitable[None]]]:
    """Ways to open a channel and close it again, by what it is in the middle of."""

    async def in_a_call() -> None:
        async with (
            trio_grpc.open_channel(server.addresses[0]) as channel,
            EchoStub(channel).ServerStream(EchoRequest(), timeout=60) as call,
        ):
            assert (await call.receive()).text == "first"

    async def idle() -> None:
        async with trio_grpc.open_channel(server.addresses[0]):
            pass

    async def twice() -> None:
        async with (
            trio_grpc.open_channel(server.addresses[0]) as channel,
            trio.open_nursery() as nursery,
            EchoStub(channel).ServerStream(EchoRequest()) as call,
        ):
            await call.receive()
            nursery.start_soon(expect_closed, call.receive)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(channel.aclose)
            await channel.aclose()
        await channel.aclose()

    async def connecting() -> None:
        async with trio.open_nursery() as nursery, trio_grpc.open_channel(silent) as channel:
            nursery.start_soon(expect_closed, lambda: EchoStub(channel).Unary(EchoRequest()))
            await trio.testing.wait_all_tasks_blocked()
            assert channel.statistics().state == "connecting"

    async def failed() -> None:
        async with trio_grpc.open_channel(refused) as channel:
            with pytest.raises(RpcError):
                await EchoStub(channel).Unary(EchoRequest())

    async def cancelled() -> None:
        with trio.CancelScope() as scope:
            async with (
                trio_grpc.open_channel(server.addresses[0]) as channel,
                EchoStub(channel).ServerStream(EchoRequest()) as call,
            ):
                await call.receive()
                scope.cancel()
                await call.receive()
        assert scope.cancelled_caught

    async def unused_stream() -> None:
        async with trio_grpc.open_channel(await trio.open_tcp_stream(*split_address(server.addresses[0]))):
            pass

    functions = (in_a_call, idle, twice, connecting, failed, cancelled, unused_stream)
    return {function.__name__: function for function in functions}


#: A leak of one descriptor or task in each would show in two.
CYCLE_COUNT = 50
CYCLES = ["in_a_call", "idle", "twice", "connecting", "failed", "cancelled", "unused_stream"]


def split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="descriptors are counted in /dev/fd")
@pytest.mark.parametrize("name", CYCLES)
async def test_opening_and_closing_leaves_nothing_behind(nursery: trio.Nursery, name: str) -> None:
    servicer = Waiting()
    server: Server = await nursery.start(trio_grpc.serve, [servicer], "127.0.0.1:0")

    def count() -> tuple[int, int]:
        return open_descriptors(), trio.lowlevel.current_statistics().tasks_living

    # One listens and accepts nobody; one is bound and does not listen: nobody else gets the port meanwhile.
    with socket.socket() as silent, socket.socket() as refused:
        for sock in (silent, refused):
            sock.bind(("127.0.0.1", 0))
        silent.listen(1000)
        cycle = cycles(server, *("{}:{}".format(*sock.getsockname()) for sock in (silent, refused)))[name]
        descriptors, tasks = count()
        for _ in range(CYCLE_COUNT):
            await cycle()
        # The server's ends close when the kernel says so, and a few may still be open.
        with trio.move_on_after(20):
            while count()[0] > descriptors or count()[1] > tasks:  # noqa: ASYNC110 -- it tells nobody
                await trio.sleep(0.001)
        assert count()[0] <= descriptors
        assert count()[1] <= tasks
    assert servicer.ended == servicer.entered


async def test_a_stream_that_was_never_used_is_closed_with_the_channel(autojump_clock: trio.testing.MockClock) -> None:
    for way in ("leave", "aclose", "never entered"):
        near, far = trio.testing.memory_stream_pair()
        channel = trio_grpc.open_channel(near)
        if way != "never entered":
            async with channel:
                if way == "aclose":
                    await channel.aclose()
                    assert not await far.receive_some()
        else:
            await channel.aclose()
        assert not await far.receive_some()


async def test_a_channel_that_is_dropped_open_says_so() -> None:
    # That its nursery goes with it makes trio raise; only the warning tells whose it was.
    async with trio_grpc.open_channel(nowhere) as channel:
        with pytest.warns(ResourceWarning, match="nowhere, idle> was entered and never left: use 'async with"):
            channel.__del__()
    # Warnings are errors.
    channel.__del__()
    trio_grpc.open_channel(nowhere).__del__()


def test_a_channel_that_cannot_be_made_goes_away_without_noise() -> None:
    wrong: Any = "often"
    with pytest.raises(TypeError, match="keepalive"):
        trio_grpc.open_channel(nowhere, keepalive=wrong)
    with pytest.raises(TypeError, match="missing"):
        trio_grpc.Channel("localhost:1")  # type: ignore[call-arg]
    gc.collect()
