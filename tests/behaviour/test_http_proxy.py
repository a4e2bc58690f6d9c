"""Channels through HTTP proxies: who is reached through one, what errors say, and what a tunnel carries (gRFC A1)."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
import trustme
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer, EchoStub

import trio_grpc
from tests.echo_service import Context, Echo
from tests.support.network import Network
from trio_grpc import Limits, RpcError, Server, StatusCode
from trio_grpc.testing import MemoryListener

Clock = trio.testing.MockClock
QUIET = Limits(adaptive_window=False)
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class Proxy:
    """An HTTP proxy in a network.

    Attributes:
        answer: what it says before it joins the two connections; None to keep silent.
        requests: the heads of the requests it got.
        with_first_bytes: whether it sends its answer together with the server's first bytes.
    """

    def __init__(self, network: Network) -> None:
        self.answer: bytes | None = ESTABLISHED
        self.requests: list[str] = []
        self.with_first_bytes = False
        self.hang_ups = 0
        self._network = network

    async def serve(self, listener: trio.abc.Listener[trio.abc.Stream]) -> None:
        async with listener, trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._serve_one, await listener.accept())

    async def _serve_one(self, stream: trio.abc.Stream) -> None:
        async with stream:
            await self._answer(stream)

    async def _answer(self, stream: trio.abc.Stream) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += await stream.receive_some(1)
        self.requests.append(head.decode("ascii"))
        if self.answer is None or b" 200 " not in self.answer:
            if self.answer is not None:
                await stream.send_all(self.answer)
            assert not await stream.receive_some()
            self.hang_ups += 1
            return
        authority = head.split()[1].decode("ascii")
        host, _, port = authority.rpartition(":")
        try:
            onward = await self._network.open_tcp_stream(host.strip("[]"), int(port))
        except OSError:
            await stream.send_all(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            return
        async with onward:
            await self._join(stream, onward)

    async def _join(self, stream: trio.abc.Stream, onward: trio.abc.Stream) -> None:
        assert self.answer is not None
        if self.with_first_bytes:
            await stream.send_all(self.answer + await onward.receive_some())
        else:
            await stream.send_all(self.answer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pump, stream, onward, nursery.cancel_scope)
            nursery.start_soon(self._pump, onward, stream, nursery.cancel_scope)

    async def _pump(self, source: trio.abc.Stream, sink: trio.abc.Stream, scope: trio.CancelScope) -> None:
        try:
            while data := await source.receive_some():
                await sink.send_all(data)
        except trio.BrokenResourceError:
            pass
        scope.cancel()


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    network = Network()
    network.install(monkeypatch)
    return network


@pytest.fixture
def proxy(network: Network, nursery: trio.Nursery) -> Proxy:
    proxy = Proxy(network)
    nursery.start_soon(proxy.serve, network.listen("proxy.example:3128"))
    return proxy


URL = "http://user:secret@proxy.example:3128"


async def serve(
    nursery: trio.Nursery, listener: MemoryListener, servicer: EchoServicer | None = None, **options: Any
) -> Server:
    def start(task_status: trio.TaskStatus[Server]) -> Awaitable[None]:
        return trio_grpc.serve([servicer or Echo()], listener, limits=QUIET, task_status=task_status, **options)

    server: Server = await nursery.start(start)
    return server


async def call_it(target: Any, **options: Any) -> EchoReply:
    async with trio_grpc.open_channel(target, limits=QUIET, **options) as channel:
        return await EchoStub(channel).Unary(EchoRequest(text="hello"))


async def failure(target: str, **options: Any) -> RpcError:
    with pytest.raises(RpcError) as caught:
        await call_it(target, **options)
    assert caught.value.code is StatusCode.UNAVAILABLE
    assert "secret" not in str(caught.value)
    return caught.value


# -- tunnels


@pytest.mark.parametrize("with_first_bytes", [False, True])
@pytest.mark.parametrize("sockets", [False, True])
async def test_all_kinds_of_call_through_a_tunnel(
    network: Network, nursery: trio.Nursery, autojump_clock: Clock, with_first_bytes: bool, sockets: bool
) -> None:
    proxy = Proxy(network)
    proxy.with_first_bytes = with_first_bytes
    nursery.start_soon(proxy.serve, network.listen("proxy.example:3128", sockets=sockets))
    await serve(nursery, network.listen("backend.example:50051"))
    async with trio_grpc.open_channel("backend.example:50051", limits=QUIET, http_proxy=URL) as channel:
        echo = EchoStub(channel)
        payload = bytes(range(256)) * 1024
        assert (await echo.Unary(EchoRequest(payload=payload))).payload == payload
        async with echo.ServerStream(EchoRequest(count=100, payload=b"x" * 1000)) as down:
            assert [reply.count async for reply in down] == list(range(100))
        assert (await echo.ClientStream([EchoRequest(payload=payload)] * 2)).payload == payload * 2
        async with echo.Bidi() as both:
            for count in range(3):
                await both.send(EchoRequest(count=count, payload=payload))
                assert (await both.receive()).count == count
    assert network.dialled == ["proxy.example:3128", "backend.example:50051"]
    # "user:secret" in Base64.
    assert "Proxy-Authorization: Basic dXNlcjpzZWNyZXQ=\r\n" in proxy.requests[0]


async def test_the_authority_stays_the_targets(
    network: Network, proxy: Proxy, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    class Curious(EchoServicer):
        async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
            return EchoReply(text=context.authority)

    await serve(nursery, network.listen("backend.example:50051"), Curious())
    assert (await call_it("backend.example:50051", http_proxy=URL)).text == "backend.example:50051"


async def test_tls_with_the_target_through_the_tunnel(
    network: Network, proxy: Proxy, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("backend.example").configure_cert(context)
    await serve(nursery, network.listen("backend.example:50051"), ssl_context=context)
    await serve(nursery, network.listen("other.example:50051"), ssl_context=context)
    own = ssl.create_default_context()
    authority.configure_trust(own)
    assert (await call_it("backend.example:50051", http_proxy=URL, ssl_context=own)).text == "hello"
    # The certificate must be the target's; the proxy's name plays no part.
    error = await failure("other.example:50051", http_proxy=URL, ssl_context=own)
    assert "other.example" in error.message
    assert "certificate" in error.message


async def test_each_connection_has_a_tunnel_of_its_own(
    network: Network, proxy: Proxy, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    listener = network.listen("backend.example:50051")
    server = await serve(nursery, listener)
    async with trio_grpc.open_channel("backend.example:50051", limits=QUIET, http_proxy=URL) as channel:
        echo = EchoStub(channel)
        await echo.Unary(EchoRequest())
        await server.drain()
        with pytest.raises(RpcError, match="the proxy answered 502 Bad Gateway"):
            await echo.Unary(EchoRequest())
    assert len(proxy.requests) == 2


# -- which proxy


@pytest.fixture
async def backend(network: Network, nursery: trio.Nursery) -> str:
    await serve(nursery, network.listen("backend.example:50051"))
    return "backend.example:50051"


async def test_the_environment_decides_when_the_channel_is_opened(
    network: Network, proxy: Proxy, backend: str, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = trio_grpc.open_channel(backend, limits=QUIET)
    monkeypatch.setenv("http_proxy", URL)
    through_proxy = trio_grpc.open_channel(backend, limits=QUIET)
    monkeypatch.setenv("no_proxy", "other.example, .example")
    exempt = trio_grpc.open_channel(backend, limits=QUIET)
    for channel, requests in ((direct, 0), (through_proxy, 1), (exempt, 1)):
        async with channel:
            await EchoStub(channel).Unary(EchoRequest())
        assert len(proxy.requests) == requests


async def test_a_channel_may_do_without_the_proxy_of_the_environment(
    network: Network, proxy: Proxy, backend: str, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("grpc_proxy", URL)
    await call_it(backend, http_proxy=False)
    assert not proxy.requests
    assert network.dialled == [backend]


async def test_unix_sockets_and_streams_are_never_proxied(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    path = f"unix:{tmp_path / 's'}"
    await nursery.start(trio_grpc.serve, [Echo()], path)
    listener = MemoryListener()
    await serve(nursery, listener)
    for option in (None, "http://127.0.0.1:1"):
        targets: list[Any] = [path, listener.connect, await listener.connect()]
        for target in targets:
            assert (await call_it(target, http_proxy=option)).text == "hello"


@pytest.mark.parametrize("exceptions", ["", "localhost,127.0.0.0/8"])
async def test_this_machine_is_reached_although_there_is_a_proxy(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, exceptions: str
) -> None:
    # Nothing listens at port 1.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", exceptions)
    server: Server = await nursery.start(trio_grpc.serve, [Echo()], "127.0.0.1:0")
    port = server.addresses[0].rpartition(":")[2]
    for host in ("localhost", "127.0.0.1"):
        assert (await call_it(f"{host}:{port}")).text == "hello"


async def test_over_real_sockets(nursery: trio.Nursery) -> None:
    class System(Network):
        async def open_tcp_stream(self, host: str, port: int) -> trio.abc.Stream:
            return await trio.open_tcp_stream(host, port)

    server: Server = await nursery.start(trio_grpc.serve, [Echo()], "127.0.0.1:0")
    proxy = Proxy(System())
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(proxy.serve, listener)
    url = "http://{}:{}".format(*listener.socket.getsockname())
    assert (await call_it(server.addresses[0], http_proxy=url)).text == "hello"
    assert proxy.requests[0].startswith(f"CONNECT {server.addresses[0]} HTTP/1.1\r\n")


@pytest.mark.parametrize("target", ["backend.example:50051", "unix:/x", MemoryListener().connect])
def test_a_wrong_option_is_refused_at_once(target: Any) -> None:
    wrong: Any = True
    with pytest.raises(TypeError, match="http_proxy"):
        trio_grpc.open_channel(target, http_proxy=wrong)
    for url in ("", "https://proxy.example", "http://"):
        with pytest.raises(ValueError, match="http_proxy"):
            trio_grpc.open_channel(target, http_proxy=url)


# -- errors


def prefix(target: str) -> str:
    return f"failed to connect to {target} through HTTP proxy proxy.example:3128: "


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 4\r\n\r\nsorry",
            "the proxy answered 407 Proxy",
        ),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "the proxy answered 403 Forbidden"),
        (b"nonsense", "the proxy's answer is not HTTP/1.1"),
    ],
)
async def test_a_proxy_that_refuses(
    proxy: Proxy, backend: str, autojump_clock: Clock, answer: bytes, text: str
) -> None:
    proxy.answer = answer
    error = await failure(backend, http_proxy=URL)
    assert error.message.startswith(prefix(backend) + text)
    assert isinstance(error.__cause__, OSError)
    await trio.testing.wait_all_tasks_blocked()
    # The stream to it was closed.
    assert proxy.hang_ups == 1


async def test_a_proxy_that_cannot_be_reached(network: Network, backend: str, autojump_clock: Clock) -> None:
    error = await failure(backend, http_proxy=URL)
    assert error.message.startswith(prefix(backend) + "the proxy cannot be reached: ")
    assert "refused" in error.message
    assert network.dialled == ["proxy.example:3128"]


async def test_a_proxy_that_keeps_silent(proxy: Proxy, backend: str, autojump_clock: Clock) -> None:
    proxy.answer = None
    error = await failure(backend, http_proxy=URL)
    assert error.message == prefix(backend) + "no answer within 20 s"
    assert trio.current_time() == pytest.approx(20)
    await trio.testing.wait_all_tasks_blocked()
    assert proxy.hang_ups == 1


async def test_leaving_the_channel_while_the_proxy_keeps_silent(
    proxy: Proxy, backend: str, autojump_clock: Clock
) -> None:
    proxy.answer = None

    async def call_closed(call: Callable[[EchoRequest], Awaitable[EchoReply]]) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await call(EchoRequest())

    async with trio.open_nursery() as nursery, trio_grpc.open_channel(backend, http_proxy=URL) as channel:
        nursery.start_soon(call_closed, EchoStub(channel).Unary)
        await trio.testing.wait_all_tasks_blocked()
    assert trio.current_time() < 1
    await trio.testing.wait_all_tasks_blocked()
    assert proxy.hang_ups == 1
