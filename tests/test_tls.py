"""TLS: ALPN, trust, names, and ends that do not speak it. All in memory but one smoke test over TCP."""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
import trio
import trio.testing
import trustme
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer, EchoStub

import trio_grpc
from tests.echo_service import Context, Echo, Waiting
from trio_grpc import Limits, RpcError, Server, StatusCode
from trio_grpc.testing import MemoryListener, open_channel_pair

Clock = trio.testing.MockClock
AUTHORITY = trustme.CA()
OTHER_AUTHORITY = trustme.CA()
QUIET = Limits(adaptive_window=False)


def server_context(name: str = "localhost", authority: trustme.CA = AUTHORITY, **validity: datetime) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name, **validity).configure_cert(context)
    return context


def client_context(authority: trustme.CA = AUTHORITY) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def serve_one(listener: MemoryListener, behave: Callable[[trio.abc.Stream], Any]) -> None:
    """Be another server, for one connection."""
    stream = await listener.accept()
    await behave(stream)


async def hangs_up(stream: trio.abc.ReceiveStream) -> bool:
    """Whether the other end closes, in good manners or bad, without having said anything."""
    try:
        return not await stream.receive_some()
    except trio.BrokenResourceError:
        return True


async def failure(target: Any, **options: Any) -> RpcError:
    """The error of a call that cannot connect."""
    async with trio_grpc.open_channel(target, limits=QUIET, **options) as channel:
        with pytest.raises(RpcError) as caught:
            await EchoStub(channel).Unary(EchoRequest())
        assert channel.statistics().state == "transient failure"
    assert caught.value.code is StatusCode.UNAVAILABLE
    assert caught.value.__cause__ is not None
    return caught.value


@pytest.mark.parametrize("sockets", [False, True])
async def test_all_kinds(sockets: bool) -> None:
    pair = open_channel_pair(
        Echo(),
        server_ssl_context=server_context(),
        ssl_context=client_context(),
        server_hostname="localhost",
        sockets=sockets,
    )
    async with pair as (channel, _):
        echo = EchoStub(channel)
        payload = bytes(range(256)) * 4096
        assert (await echo.Unary(EchoRequest(payload=payload))).payload == payload
        async with echo.ServerStream(EchoRequest(count=300, payload=b"x" * 1000)) as down:
            assert [reply.count async for reply in down] == list(range(300))
        assert (await echo.ClientStream([EchoRequest(payload=payload)] * 2)).payload == payload * 2
        async with echo.Bidi() as both:
            for count in range(10):
                await both.send(EchoRequest(count=count, payload=payload))
                assert (await both.receive()).count == count


async def test_over_tcp(nursery: trio.Nursery) -> None:
    class Curious(EchoServicer):
        async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
            return EchoReply(text=f"{context.peer} {context.authority}")

    def serve(task_status: trio.TaskStatus[Server]) -> Any:
        context = server_context("127.0.0.1")
        return trio_grpc.serve([Curious()], "127.0.0.1:0", ssl_context=context, task_status=task_status)

    server: Server = await nursery.start(serve)
    async with trio_grpc.open_channel(server.addresses[0], ssl_context=client_context()) as channel:
        peer, authority = (await EchoStub(channel).Unary(EchoRequest())).text.split()
    assert peer.startswith("127.0.0.1:")
    assert authority == server.addresses[0]


async def test_many_calls_at_once() -> None:
    pair = open_channel_pair(
        Echo(), server_ssl_context=server_context(), ssl_context=client_context(), server_hostname="localhost"
    )
    async with pair as (channel, _), trio.open_nursery() as nursery:
        for count in range(200):
            nursery.start_soon(EchoStub(channel).Unary, EchoRequest(count=count, payload=bytes(2000)))


# -- trust and names


async def test_a_certificate_of_an_authority_that_is_not_trusted(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    listener, echo = MemoryListener(), Echo()
    await nursery.start(_serve, [echo], listener, server_context())
    error = await failure(listener.connect, ssl_context=client_context(OTHER_AUTHORITY), server_hostname="localhost")
    assert "certificate verify failed" in error.message
    assert isinstance(error.__cause__, OSError)
    assert echo.calls == 0
    # Others are served on.
    await _call(listener)


async def test_a_certificate_with_another_name(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    listener = MemoryListener()
    await nursery.start(_serve, [Echo()], listener, server_context("elsewhere.example"))
    error = await failure(listener.connect, ssl_context=client_context(), server_hostname="localhost")
    assert "TLS handshake failed: certificate verify failed for 'localhost': " in error.message
    assert "certificate is not valid for 'localhost'" in error.message
    # The name can be overridden, as for a tunnel.
    await _call(listener, server_hostname="elsewhere.example")


async def test_a_certificate_that_has_expired(
    autojump_clock: Clock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trio_grpc")
    listener = MemoryListener()
    old = {name: datetime(2020, 1, day, tzinfo=timezone.utc) for name, day in (("not_before", 1), ("not_after", 2))}
    await nursery.start(_serve, [Echo()], listener, server_context(**old))
    error = await failure(listener.connect, ssl_context=client_context(), server_hostname="localhost")
    assert error.message.endswith("certificate verify failed for 'localhost': certificate has expired")
    # The server is told as well (RFC 8446, 6.2).
    await trio.testing.wait_all_tasks_blocked()
    assert re.search(r"TLS with .* failed: the peer refused: .*alert certificate expired", caplog.text)


async def test_a_target_that_is_an_address_names_it(nursery: trio.Nursery) -> None:
    def serve(task_status: trio.TaskStatus[Server]) -> Any:
        return trio_grpc.serve(
            [Echo()], "127.0.0.1:0", ssl_context=server_context("127.0.0.2"), task_status=task_status
        )

    server: Server = await nursery.start(serve)
    error = await failure(server.addresses[0], ssl_context=client_context())
    assert "certificate verify failed for '127.0.0.1': " in error.message


async def test_the_servers_name_is_sent(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    names: list[str | None] = []
    context = server_context("name.example")
    context.sni_callback = lambda _object, name, _context: names.append(name)
    listener = MemoryListener()
    await nursery.start(_serve, [Echo()], listener, context)
    await _call(listener, server_hostname="name.example")
    assert names == ["name.example"]


async def test_a_client_certificate_that_is_asked_for(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    context = server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    AUTHORITY.configure_trust(context)
    listener, echo = MemoryListener(), Echo()
    await nursery.start(_serve, [echo], listener, context)
    error = await failure(listener.connect, ssl_context=client_context(), server_hostname="localhost")
    # In TLS 1.3 the client has shaken hands by then; in 1.2 it has not.
    assert re.search(r"the peer refused: .*alert", error.message)
    assert echo.calls == 0
    known = client_context()
    AUTHORITY.issue_cert("client.example").configure_cert(known)
    await _call(listener, ssl_context=known)
    assert echo.calls == 1


async def _serve(
    servicers: list[EchoServicer],
    listener: MemoryListener,
    context: ssl.SSLContext | None,
    task_status: trio.TaskStatus[Server],
) -> None:
    await trio_grpc.serve(
        servicers, listener, ssl_context=context, limits=QUIET, handshake_timeout=30, task_status=task_status
    )


async def _call(
    listener: MemoryListener, ssl_context: ssl.SSLContext | None = None, server_hostname: str = "localhost"
) -> None:
    context = client_context() if ssl_context is None else ssl_context
    async with trio_grpc.open_channel(
        listener.connect, ssl_context=context, server_hostname=server_hostname, limits=QUIET
    ) as channel:
        assert (await EchoStub(channel).Unary(EchoRequest(count=7))).count == 7


# -- ALPN


@pytest.mark.parametrize("protocols", [None, ["http/1.1"], ["h2c", "spdy/3"]])
async def test_a_server_that_does_not_select_h2(
    autojump_clock: Clock, nursery: trio.Nursery, protocols: list[str] | None
) -> None:
    context = server_context()
    if protocols is not None:
        context.set_alpn_protocols(protocols)
    listener = MemoryListener()

    async def behave(stream: trio.abc.Stream) -> None:
        tls = trio.SSLStream(stream, context, server_side=True)
        await tls.do_handshake()
        assert await hangs_up(tls)

    nursery.start_soon(serve_one, listener, behave)
    error = await failure(listener.connect, ssl_context=client_context(), server_hostname="localhost")
    assert "TLS handshake failed: no ALPN protocol was agreed on, where HTTP/2 needs 'h2'" in error.message


@pytest.mark.parametrize("protocols", [None, ["http/1.1"]])
async def test_a_client_that_does_not_offer_h2(
    autojump_clock: Clock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture, protocols: list[str] | None
) -> None:
    caplog.set_level(logging.INFO, "trio_grpc")
    listener = MemoryListener()
    server: Server = await nursery.start(_serve, [Echo()], listener, server_context())
    context = client_context()
    if protocols is not None:
        context.set_alpn_protocols(protocols)
    tls = trio.SSLStream(await listener.connect(), context, server_hostname="localhost")
    assert await hangs_up(tls)
    await trio.testing.wait_all_tasks_blocked()
    assert server.statistics().connections == 0
    assert "TLS with" in caplog.text
    assert all(record.levelno == logging.INFO for record in caplog.records)
    await _call(listener)


async def test_h2_is_offered_and_selected_whatever_the_contexts_say(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    listener = MemoryListener()
    context = server_context()
    context.set_alpn_protocols(["http/1.1"])
    await nursery.start(_serve, [Echo()], listener, context)
    own = client_context()
    own.set_alpn_protocols(["spdy/3"])
    await _call(listener, ssl_context=own)


# -- one end speaks TLS, the other does not


async def test_a_tls_client_and_a_plain_server(
    autojump_clock: Clock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    listener = MemoryListener()
    server: Server = await nursery.start(_serve, [Echo()], listener, None)
    error = await failure(listener.connect, ssl_context=client_context(), server_hostname="localhost")
    assert "TLS handshake failed: the peer does not speak TLS" in error.message
    # Long before any timeout: both notice at the first bytes.
    assert trio.current_time() < 5
    async with trio_grpc.open_channel(listener.connect, limits=QUIET) as channel:
        await EchoStub(channel).Unary(EchoRequest())
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics().connections == 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_plain_client_and_a_tls_server(
    autojump_clock: Clock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    listener = MemoryListener()
    caplog.set_level(logging.INFO, "trio_grpc")
    server: Server = await nursery.start(_serve, [Echo()], listener, server_context())
    error = await failure(listener.connect)
    assert "closed by MemoryListener.connect before it said a word, as servers do that want TLS" in error.message
    assert trio.current_time() < 5
    await trio.testing.wait_all_tasks_blocked()
    assert "failed: the peer does not speak TLS" in caplog.text
    assert server.statistics().connections == 0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    await _call(listener)


@pytest.mark.parametrize("chunk", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\x16\x03\x01\x00\xc8\x01"])
async def test_one_bad_client_cannot_stop_a_tls_server(
    autojump_clock: Clock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture, chunk: bytes
) -> None:
    listener = MemoryListener()
    await nursery.start(_serve, [Echo()], listener, server_context())
    stream = await listener.connect()
    if chunk:
        await stream.send_all(chunk)
    await trio.testing.wait_all_tasks_blocked()
    await stream.aclose()
    await _call(listener)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_ends_without_a_version_in_common(
    autojump_clock: Clock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trio_grpc")
    old, new = server_context(), client_context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    new.minimum_version = ssl.TLSVersion.TLSv1_3
    listener = MemoryListener()
    await nursery.start(_serve, [Echo()], listener, old)
    error = await failure(listener.connect, ssl_context=new, server_hostname="localhost")
    assert re.search(r"TLS handshake failed: the peer refused: .*alert protocol version", error.message)
    await trio.testing.wait_all_tasks_blocked()
    assert "failed: unsupported protocol" in caplog.text


async def test_a_server_that_hangs_up_in_the_middle_of_the_handshake(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    listener = MemoryListener()

    async def behave(stream: trio.abc.Stream) -> None:
        await stream.receive_some()
        await stream.aclose()

    nursery.start_soon(serve_one, listener, behave)
    error = await failure(listener.connect, ssl_context=client_context(), server_hostname="localhost")
    assert error.message.endswith("TLS handshake failed: the peer hung up in the middle of it")


async def test_a_name_that_no_certificate_can_carry(autojump_clock: Clock) -> None:
    listener = MemoryListener()
    error = await failure(listener.connect, ssl_context=client_context(), server_hostname=".example")
    assert isinstance(error.__cause__, ValueError)
    # The stream was closed all the same.
    assert not await (await listener.accept()).receive_some()


# -- time


async def test_a_server_that_never_shakes_hands(autojump_clock: Clock) -> None:
    listener = MemoryListener()
    error = await failure(listener.connect, ssl_context=client_context(), server_hostname="localhost")
    assert "no answer" in error.message
    assert trio.current_time() == pytest.approx(20)
    # Its end was closed.
    stream = await listener.accept()
    data = b""
    while chunk := await stream.receive_some():
        data += chunk
    assert data[:1] == b"\x16"


async def test_a_client_that_never_shakes_hands(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    listener = MemoryListener()
    await nursery.start(_serve, [Echo()], listener, server_context())
    stream = await listener.connect()
    with trio.fail_after(31):
        assert not await stream.receive_some()
    assert trio.current_time() == pytest.approx(30)


async def test_draining_does_not_wait_for_handshakes(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    listener = MemoryListener()
    server: Server = await nursery.start(_serve, [Echo()], listener, server_context())
    stream = await listener.connect()
    await trio.testing.wait_all_tasks_blocked()
    await server.drain()
    assert not await stream.receive_some()
    assert trio.current_time() < 1


async def test_draining_while_a_stream_runs(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    waiting = Waiting()
    pair = open_channel_pair(
        waiting, server_ssl_context=server_context(), ssl_context=client_context(), server_hostname="localhost"
    )
    async with pair as (channel, server), EchoStub(channel).ServerStream(EchoRequest(count=3)) as call:
        assert (await call.receive()).text == "first"
        nursery.start_soon(server.drain)
        await trio.testing.wait_all_tasks_blocked()
        waiting.gate.set()
        assert [reply.count async for reply in call] == [0, 1, 2]


async def test_a_server_that_is_cancelled_mid_call(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    waiting, listener, scope = Waiting(), MemoryListener(), trio.CancelScope()

    async def serve(task_status: trio.TaskStatus[Server]) -> None:
        with scope:
            await _serve([waiting], listener, server_context(), task_status)

    await nursery.start(serve)
    async with (
        trio_grpc.open_channel(
            listener.connect, ssl_context=client_context(), server_hostname="localhost", limits=QUIET
        ) as channel,
        EchoStub(channel).ServerStream(EchoRequest()) as call,
    ):
        assert (await call.receive()).text == "first"
        scope.cancel()
        with pytest.raises(RpcError, match="shutting down") as caught:
            await call.receive()
        assert caught.value.code is StatusCode.UNAVAILABLE


async def test_a_connection_that_breaks_without_goodbye(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    streams: list[trio.abc.Stream] = []
    waiting = Waiting()

    class Tapped(MemoryListener):
        async def accept(self) -> trio.abc.Stream:
            streams.append(await super().accept())
            return streams[-1]

    listener = Tapped()
    await nursery.start(_serve, [waiting], listener, server_context())
    async with (
        trio_grpc.open_channel(
            listener.connect, ssl_context=client_context(), server_hostname="localhost", limits=QUIET
        ) as channel,
        EchoStub(channel).ServerStream(EchoRequest()) as call,
    ):
        assert (await call.receive()).text == "first"
        # The transport under the TLS goes away: no close_notify.
        await trio.aclose_forcefully(streams[0])
        with pytest.raises(RpcError) as caught:
            await call.receive()
        assert caught.value.code is StatusCode.UNAVAILABLE
        await trio.testing.wait_all_tasks_blocked()
        assert waiting.ended == 1
