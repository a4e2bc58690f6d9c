"""`trio_grpc.testing.Faults`: what goes wrong between client and server, exactly when and as a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
import trustme
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer, EchoStub

import trio_grpc
from tests.echo_service import Context, Echo, Waiting
from trio_grpc import Keepalive, RpcError, StatusCode
from trio_grpc.testing import ErrorCode, Faults, MemoryListener, open_channel_pair
from trio_grpc.tls import client_context, server_context

Clock = trio.testing.MockClock


async def test_without_faults_nothing_is_noticed() -> None:
    async with open_channel_pair(Echo(), faults=Faults()) as (channel, _):
        stub = EchoStub(channel)
        reply = await stub.Unary(EchoRequest(payload=bytes(300_000)))
        assert len(reply.payload) == 300_000
        async with stub.ServerStream(EchoRequest(payload=bytes(50_000), count=20)) as replies:
            assert len([reply async for reply in replies]) == 20


async def test_latency_is_added_to_each_way(autojump_clock: Clock) -> None:
    faults = Faults(latency=0.25)
    async with open_channel_pair(Echo(), faults=faults) as (channel, _):
        stub = EchoStub(channel)
        await channel.wait_ready()
        started = trio.current_time()
        await stub.Unary(EchoRequest())
        assert trio.current_time() - started == pytest.approx(0.5)
        faults.latency = 1
        started = trio.current_time()
        await stub.Unary(EchoRequest())
        assert trio.current_time() - started == pytest.approx(2)


async def test_messages_under_way_do_not_wait_for_each_other(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo(), faults=Faults(latency=1)) as (channel, _):
        await channel.wait_ready()
        started = trio.current_time()
        async with EchoStub(channel).ServerStream(EchoRequest(count=100)) as replies:
            assert len([reply async for reply in replies]) == 100
        assert trio.current_time() - started == pytest.approx(2)


async def test_bandwidth_bounds_what_arrives(autojump_clock: Clock) -> None:
    faults = Faults(bandwidth=10_000)
    async with open_channel_pair(Echo(), faults=faults) as (channel, _):
        await channel.wait_ready()
        started = trio.current_time()
        async with EchoStub(channel).ServerStream(EchoRequest(count=10)) as replies:
            async for _ in replies:
                pass
        assert trio.current_time() - started < 0.2
        faults.bandwidth = 1_000
        started = trio.current_time()
        await EchoStub(channel).Unary(EchoRequest(payload=bytes(5_000)))
        # There and back, with some bytes of headers.
        assert 10 < trio.current_time() - started < 11


async def test_a_cut_ends_calls_with_unavailable_and_the_next_one_reconnects(autojump_clock: Clock) -> None:
    faults = Faults()
    async with open_channel_pair(Waiting(), faults=faults, retries=False) as (channel, server):
        async with EchoStub(channel).ServerStream(EchoRequest(count=1)) as replies:
            await replies.receive()
            assert faults.connections == 1
            faults.cut()
            assert faults.connections == 0
            with pytest.raises(RpcError) as caught:
                await replies.receive()
        assert caught.value.code is StatusCode.UNAVAILABLE
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics().connections == 0
        await channel.wait_ready()
        assert faults.connections == 1


@pytest.mark.parametrize("toward", ["client", "server"])
async def test_a_cut_comes_in_the_middle_of_a_message(autojump_clock: Clock, toward: str) -> None:
    faults = Faults()
    async with open_channel_pair(Echo(), faults=faults, retries=False) as (channel, _):
        stub = EchoStub(channel)
        await stub.Unary(EchoRequest(payload=bytes(5_000)))
        faults.cut_after(2_000, toward=toward)  # type: ignore[arg-type]
        with pytest.raises(RpcError) as caught:
            await stub.Unary(EchoRequest(payload=bytes(5_000)))
        assert caught.value.code is StatusCode.UNAVAILABLE
        assert faults.connections == 0
        assert len((await stub.Unary(EchoRequest(payload=bytes(5_000)), wait_for_ready=True)).payload) == 5_000


async def test_a_cut_after_nothing_is_a_cut_now() -> None:
    faults = Faults()
    async with open_channel_pair(Echo(), faults=faults) as (channel, _):
        await channel.wait_ready()
        faults.cut_after(0, toward="server")
        assert faults.connections == 0


async def test_what_is_frozen_arrives_after_the_thaw(autojump_clock: Clock) -> None:
    faults = Faults()
    async with open_channel_pair(Echo(), faults=faults) as (channel, _):
        stub = EchoStub(channel)
        await channel.wait_ready()
        faults.freeze()
        with pytest.raises(RpcError) as caught:
            await stub.Unary(EchoRequest(), timeout=3)
        assert caught.value.code is StatusCode.DEADLINE_EXCEEDED
        faults.thaw()
        assert (await stub.Unary(EchoRequest(text="late"), timeout=3)).text == "late"


async def test_keepalive_ends_a_frozen_connection(autojump_clock: Clock) -> None:
    faults = Faults()
    keepalive = Keepalive(time=30, timeout=5)
    async with open_channel_pair(Waiting(), faults=faults, keepalive=keepalive, retries=False) as (channel, _):
        async with EchoStub(channel).ServerStream(EchoRequest(count=1)) as replies:
            await replies.receive()
            faults.freeze()
            started = trio.current_time()
            with pytest.raises(RpcError) as caught:
                await replies.receive()
        assert caught.value.code is StatusCode.UNAVAILABLE
        assert trio.current_time() - started == pytest.approx(35)


async def test_goaway_loses_no_call(autojump_clock: Clock) -> None:
    faults = Faults(latency=0.1)
    waiting = Waiting()
    async with open_channel_pair(waiting, faults=faults) as (channel, _):
        stub = EchoStub(channel)
        await channel.wait_ready()
        answers: list[str] = []

        async def ask(text: str) -> None:
            answers.append((await stub.Unary(EchoRequest(text=text))).text)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "seen by the server")
            await waiting.started.wait()
            faults.goaway(debug_data=b"restarting")
            # It leaves before the client knows.
            nursery.start_soon(ask, "too late")
            await trio.sleep(1)
            waiting.gate.set()
        assert sorted(answers) == ["seen by the server", "too late"]
        # Nobody has worked on it twice.
        assert waiting.calls == 2


@pytest.mark.parametrize(
    ("error_code", "status"),
    [
        (ErrorCode.CANCEL, StatusCode.CANCELLED),
        (ErrorCode.INTERNAL_ERROR, StatusCode.INTERNAL),
        (ErrorCode.ENHANCE_YOUR_CALM, StatusCode.RESOURCE_EXHAUSTED),
    ],
)
async def test_a_reset_ends_one_stream_at_both_ends(
    autojump_clock: Clock, error_code: ErrorCode, status: StatusCode
) -> None:
    faults = Faults()
    async with open_channel_pair(Waiting(), faults=faults) as (channel, server):
        stub = EchoStub(channel)
        async with stub.ServerStream(EchoRequest(count=1)) as first, stub.ServerStream(EchoRequest(count=1)) as second:
            await first.receive()
            await second.receive()
            one, other = faults.open_streams
            faults.reset_stream(one, error_code)
            with pytest.raises(RpcError) as caught:
                await first.receive()
            assert caught.value.code is status
            await trio.testing.wait_all_tasks_blocked()
            assert server.statistics().handlers == 1
            assert faults.open_streams == (other,)
            assert second.status is None


async def test_refused_connections_are_tried_again(autojump_clock: Clock) -> None:
    faults = Faults()
    faults.refuse_connections()
    async with open_channel_pair(Echo(), faults=faults, retries=False) as (channel, _):
        stub = EchoStub(channel)
        with pytest.raises(RpcError, match="connections are refused") as caught:
            await stub.Unary(EchoRequest())
        assert caught.value.code is StatusCode.UNAVAILABLE
        faults.accept_connections()
        await stub.Unary(EchoRequest(), wait_for_ready=True)


async def test_each_connection_of_a_listener_is_concerned(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    faults = Faults()
    listener = MemoryListener(faults=faults)
    server = await nursery.start(trio_grpc.serve, [Echo()], listener)
    async with trio_grpc.open_channel(listener.connect) as one, trio_grpc.open_channel(listener.connect) as two:
        await one.wait_ready()
        await two.wait_ready()
        assert faults.connections == 2
        faults.cut()
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics().connections == 0
    nursery.cancel_scope.cancel()


async def test_frames_cannot_be_put_into_tls() -> None:
    authority = trustme.CA()
    with (
        authority.cert_pem.tempfile() as cacert,
        authority.issue_cert("greeter.example").private_key_and_cert_chain_pem.tempfile() as certificate,
    ):
        faults = Faults()
        async with open_channel_pair(
            Echo(),
            faults=faults,
            server_ssl_context=server_context(certificate),
            ssl_context=client_context(cacert),
            server_hostname="greeter.example",
        ) as (channel, _):
            await EchoStub(channel).Unary(EchoRequest())
            with pytest.raises(RuntimeError, match="has TLS"):
                faults.goaway()
            with pytest.raises(RuntimeError, match="has TLS"):
                faults.reset_stream()
            faults.cut()
            assert faults.connections == 0


class Slow(EchoServicer):
    """Replies in many small writes."""

    async def ServerStream(self, request: EchoRequest, context: Context, /) -> AsyncIterator[EchoReply]:
        for number in range(request.count):
            yield EchoReply(count=number)
            await trio.sleep(0.01)


async def test_a_goaway_waits_for_the_end_of_the_frame_that_passes(autojump_clock: Clock) -> None:
    faults = Faults(bandwidth=1_000)
    async with (
        open_channel_pair(Slow(), faults=faults) as (channel, _),
        EchoStub(channel).ServerStream(EchoRequest(count=50)) as replies,
    ):
        await replies.receive()
        for _ in range(3):
            faults.goaway()
            await trio.sleep(0.0137)
        assert [reply.count async for reply in replies] == list(range(1, 50))


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Faults(latency=-1), ValueError, "latency must be 0 or more seconds, got -1"),
        (lambda: Faults(latency="1"), TypeError, "latency must be a number of seconds, not str"),
        (lambda: Faults(bandwidth=0), ValueError, "bandwidth must be more than 0 bytes per second, got 0"),
        (lambda: Faults(bandwidth=True), TypeError, "bandwidth must be bytes per second, not bool"),
        (lambda: Faults().cut_after(-1, toward="client"), ValueError, "count must not be negative, got -1"),
        (lambda: Faults().cut_after(1, toward="me"), ValueError, "toward must be 'client' or 'server', not 'me'"),
        (lambda: Faults().goaway(-1), ValueError, "error_code must be a number of 32 bits, got -1"),
        (lambda: Faults().goaway(1 << 32), ValueError, "error_code must be a number of 32 bits, got 4294967296"),
        (lambda: Faults().goaway(debug_data="x"), TypeError, "debug_data must be bytes, not str"),
        (lambda: Faults().reset_stream(None, -1), ValueError, "error_code must be a number of 32 bits, got -1"),
        (lambda: Faults().reset_stream("1"), TypeError, "stream_id must be int or None, not str"),
        (lambda: Faults().reset_stream(1), ValueError, "no connection has an open stream 1"),
        (lambda: MemoryListener(sockets=True, faults=Faults()), ValueError, "sockets must be False"),
    ],
)
def test_wrong_values_are_refused(make: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()  # type: ignore[operator]


async def test_ends_of_a_link_behave_as_byte_streams() -> None:
    async def make() -> tuple[trio.abc.HalfCloseableStream, trio.abc.HalfCloseableStream]:
        far: list[trio.abc.Stream] = []
        near = await Faults().connect(far.append)
        return near, far[0]  # type: ignore[return-value]

    await trio.testing.check_half_closeable_stream(make, None)
