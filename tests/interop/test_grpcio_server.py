"""Our client against a real grpcio server."""

from __future__ import annotations

import itertools
import json
import socket
import ssl
from collections.abc import AsyncIterator
from math import inf
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub
from google.protobuf.wrappers_pb2 import StringValue

import trio_grpc
from tests.interop.conftest import Certificates
from tests.interop.counting import CountingStream
from tests.interop.waiting import until
from trio_grpc import (
    Channel,
    Compression,
    HedgingPolicy,
    MethodConfig,
    RetryPolicy,
    RpcError,
    ServiceConfig,
    StatusCode,
)
from trio_grpc.testing import ManualResolver

pytestmark = pytest.mark.watchdog(30)

MB = 2**20
MESSAGES = ["plain", "naïve", "50 % of 100%25", "日本語 ✓", "line\nbreak\ttab", " edges "]


@pytest.fixture
async def channel(peer: dict[str, str]) -> AsyncIterator[Channel]:
    async with trio_grpc.open_channel(peer["aio"]) as channel:
        yield channel
        await trio.testing.wait_all_tasks_blocked()
        statistics = channel.statistics()
        assert (statistics.streams, statistics.waiting) == (0, 0)


@pytest.fixture
def echo(channel: Channel) -> EchoStub:
    return EchoStub(channel)


_numbers = itertools.count()


def fresh(name: str) -> bytes:
    """A name that no other call has on the peer, also if this test has been tried before."""
    return f"{name} {next(_numbers)}".encode()


async def spawn(echo: EchoStub, **options: Any) -> str:
    """Have the peer start another server; return its address."""
    arguments = [[f"grpc.{key}", value] for key, value in options.items()]
    reply = await echo.Unary(EchoRequest(text="spawn", payload=json.dumps(arguments).encode()))
    return reply.text


async def four_kinds(stub: EchoStub, payload: bytes = b"payload") -> None:
    """One call of each kind, checked."""
    request = EchoRequest(payload=payload, count=3)
    reply = await stub.Unary(request)
    assert (reply.payload, reply.count) == (payload, 3)
    async with stub.ServerStream(request) as call:
        replies = [reply async for reply in call]
    assert replies == [EchoReply(payload=payload, count=number) for number in range(3)]
    reply = await stub.ClientStream([request, request])
    assert (reply.payload, reply.count) == (payload * 2, 2)
    async with stub.Bidi() as call:
        for number in range(3):
            await call.send(EchoRequest(payload=payload, count=number))
            reply = await call.receive()
            assert (reply.payload, reply.count) == (payload, number)
        await call.done_sending()
        with pytest.raises(trio.EndOfChannel):
            await call.receive()


@pytest.mark.parametrize("kind", ["aio", "threads", "unix"])
async def test_four_kinds(peer: dict[str, str], kind: str) -> None:
    async with trio_grpc.open_channel(peer[kind]) as channel:
        await four_kinds(EchoStub(channel))


async def test_four_kinds_over_tls(peer: dict[str, str], certificates: Certificates) -> None:
    async with trio_grpc.open_channel(peer["tls"], ssl_context=certificates.client_context()) as channel:
        await four_kinds(EchoStub(channel))


async def test_a_tls_port_refuses_a_client_that_does_not_trust_it(peer: dict[str, str]) -> None:
    async with trio_grpc.open_channel(peer["tls"], ssl_context=ssl.create_default_context()) as channel:
        with pytest.raises(RpcError, match=r"(?i)certificate verify failed") as caught:
            await EchoStub(channel).Unary(EchoRequest())
    assert caught.value.code is StatusCode.UNAVAILABLE


async def test_messages_of_1_mb_in_all_kinds(echo: EchoStub) -> None:
    await four_kinds(echo, bytes(range(256)) * (MB // 256))


async def test_a_client_stream_of_many_messages(echo: EchoStub) -> None:
    async def requests() -> AsyncIterator[EchoRequest]:
        for number in range(500):
            yield EchoRequest(payload=number.to_bytes(2, "big"))

    reply = await echo.ClientStream(requests())
    assert reply.count == 500
    assert reply.payload == b"".join(number.to_bytes(2, "big") for number in range(500))


async def test_metadata_both_ways(echo: EchoStub) -> None:
    metadata = [
        ("x-text", "a, b"),
        ("x-repeated", "one"),
        ("x-repeated", "two"),
        ("x-octets-bin", b"\x00\xff,\x80"),
        ("x-empty-bin", b""),
        ("t-text", "end"),
        ("t-repeated", "1"),
        ("t-repeated", "2"),
        ("t-octets-bin", bytes(range(256))),
    ]
    async with echo.Unary.open(EchoRequest(text="metadata"), metadata=metadata) as call:
        initial = await call.wait_initial_metadata()
        reply = await call.receive()
        trailing = call.trailing_metadata
    received = [(key, value) for key, value in json.loads(reply.text) if key[:2] in ("x-", "t-")]
    # What grpcio shows is str for text and bytes for -bin keys, in our order.
    assert sorted(received) == sorted((key, repr(value)) for key, value in metadata)
    assert [value for key, value in received if key == "x-repeated"] == ["'one'", "'two'"]
    assert initial["x-text"] == "a, b"
    assert initial.get_all("x-repeated") == ("one", "two")
    assert initial["x-octets-bin"] == b"\x00\xff,\x80"
    assert initial["x-empty-bin"] == b""
    assert trailing["t-text"] == "end"
    assert trailing.get_all("t-repeated") == ("1", "2")
    assert trailing["t-octets-bin"] == bytes(range(256))
    assert not any(key.startswith("t-") for key in initial.keys())  # noqa: SIM118 -- iterating gives pairs
    assert not any(key.startswith("x-") for key in trailing.keys())  # noqa: SIM118


async def test_metadata_of_a_stream(echo: EchoStub) -> None:
    metadata = {"x-key": "initial", "t-key": "trailing"}
    async with echo.Bidi(metadata=metadata) as call:
        # The headers come before the first message of ours.
        initial = await call.wait_initial_metadata()
        assert initial["x-key"] == "initial"
        assert call.status is None
        await call.done_sending()
        assert [reply async for reply in call] == []
        assert call.status is StatusCode.OK
        assert call.trailing_metadata["t-key"] == "trailing"


@pytest.mark.parametrize("message", MESSAGES)
async def test_a_status_with_its_message(echo: EchoStub, message: str) -> None:
    with pytest.raises(RpcError) as caught:
        await echo.Unary(EchoRequest(text="abort", count=9, payload=message.encode()))
    assert caught.value.code is StatusCode.FAILED_PRECONDITION
    assert caught.value.message == message


@pytest.mark.parametrize("code", [code for code in StatusCode if code is not StatusCode.OK])
async def test_every_status_code(echo: EchoStub, code: StatusCode) -> None:
    with pytest.raises(RpcError) as caught:
        await echo.Unary(EchoRequest(text="abort", count=code, payload=b"so"))
    assert (caught.value.code, caught.value.message) == (code, "so")


async def test_a_status_after_messages(echo: EchoStub) -> None:
    async with echo.Bidi() as call:
        await call.send(EchoRequest(payload=b"fine"))
        assert (await call.receive()).payload == b"fine"
        await call.send(EchoRequest(text="abort", count=10, payload=b"enough"))
        with pytest.raises(RpcError) as caught:
            await call.receive()
        assert (caught.value.code, caught.value.message) == (StatusCode.ABORTED, "enough")
        assert call.status is StatusCode.ABORTED


async def test_status_details(echo: EchoStub) -> None:
    with pytest.raises(RpcError) as caught:
        await echo.Unary(EchoRequest(text="abort-details", count=5, payload="où?".encode()))
    error = caught.value
    assert (error.code, error.message) == (StatusCode.NOT_FOUND, "où?")
    assert error.details == (StringValue(value="why"),)
    assert error.trailing_metadata["t-also"] == "this"


async def test_a_handlers_exception_is_unknown(echo: EchoStub) -> None:
    with pytest.raises(RpcError) as caught:
        await echo.Unary(EchoRequest(text="raise"))
    assert caught.value.code is StatusCode.UNKNOWN


async def test_an_unimplemented_method(channel: Channel) -> None:
    method = trio_grpc.Method(
        service="echo.Echo",
        name="Missing",
        cardinality=trio_grpc.Cardinality.UNARY_UNARY,
        request_type=EchoRequest,
        response_type=EchoReply,
    )
    with pytest.raises(RpcError) as caught:
        await trio_grpc.UnaryUnaryMethod(channel, method)(EchoRequest())
    assert caught.value.code is StatusCode.UNIMPLEMENTED


# -- deadlines


async def test_without_a_deadline_none_is_on_the_wire(echo: EchoStub) -> None:
    reply = await echo.Unary(EchoRequest(text="time-remaining"))
    assert json.loads(reply.text) in (None, inf)


async def test_the_timeout_is_on_the_wire(echo: EchoStub) -> None:
    reply = await echo.Unary(EchoRequest(text="time-remaining"), timeout=300)
    assert 200 < json.loads(reply.text) < 301


async def test_the_deadline_of_a_scope_is_on_the_wire(echo: EchoStub) -> None:
    with trio.fail_after(500):
        reply = await echo.Unary(EchoRequest(text="time-remaining"))
    assert 400 < json.loads(reply.text) < 501


async def test_the_timeout_of_a_stream_is_on_the_wire(echo: EchoStub) -> None:
    async with echo.Bidi(timeout=300) as call:
        await call.send(EchoRequest(text="time-remaining"))
        assert 200 < json.loads((await call.receive()).text) < 301
        await call.done_sending()


async def test_deadline_exceeded(echo: EchoStub) -> None:
    name = fresh("deadline")
    with pytest.raises(RpcError) as caught:
        await echo.Unary(EchoRequest(text="wait", payload=name), timeout=1)
    assert caught.value.code is StatusCode.DEADLINE_EXCEEDED
    # The handler ends too.
    await echo.Unary(EchoRequest(text="cancelled", payload=name))


async def test_deadline_exceeded_in_a_stream(echo: EchoStub) -> None:
    name = fresh("deadline in stream")
    async with echo.ServerStream(EchoRequest(text="wait", payload=name), timeout=1) as call:
        assert (await call.receive()).text == "first"
        with pytest.raises(RpcError) as caught:
            await call.receive()
        assert caught.value.code is StatusCode.DEADLINE_EXCEEDED
    await echo.Unary(EchoRequest(text="cancelled", payload=name))


async def test_deadline_exceeded_told_by_the_server(echo: EchoStub) -> None:
    # The server's word alone: our own timer is not consulted, because the handler aborts with it.
    with pytest.raises(RpcError) as caught:
        await echo.Unary(EchoRequest(text="abort", count=4, payload=b"the server's clock"), timeout=100)
    assert (caught.value.code, caught.value.message) == (StatusCode.DEADLINE_EXCEEDED, "the server's clock")


# -- cancellation


@pytest.mark.parametrize("kind", ["Unary", "ServerStream", "ClientStream", "Bidi"])
async def test_cancelling_our_scope_cancels_the_handler(echo: EchoStub, kind: str) -> None:
    request = EchoRequest(text="wait", payload=fresh("cancelled scope"))

    async def call_it() -> None:
        if kind == "Unary":
            await echo.Unary(request)
        elif kind == "ServerStream":
            async with echo.ServerStream(request) as call:
                async for _ in call:
                    pass
        elif kind == "ClientStream":
            async with echo.ClientStream.open() as call:
                await call.send(request)
                await call.receive()
        else:
            async with echo.Bidi() as call:
                await call.send(request)
                await call.receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call_it)
        await echo.Unary(EchoRequest(text="started", payload=request.payload))
        nursery.cancel_scope.cancel()
    await echo.Unary(EchoRequest(text="cancelled", payload=request.payload))


async def test_leaving_the_block_cancels_the_handler(echo: EchoStub) -> None:
    name = fresh("left block")
    async with echo.ServerStream(EchoRequest(text="wait", payload=name)) as call:
        assert (await call.receive()).text == "first"
        # A handler that is cancelled at its first yield never comes to the `finally` that this test asks about.
        await echo.Unary(EchoRequest(text="started", payload=name))
    await echo.Unary(EchoRequest(text="cancelled", payload=name))


# -- many calls, limits, compression


async def test_1000_concurrent_calls_on_one_connection(channel: Channel, echo: EchoStub) -> None:
    replies: list[int] = []
    name = fresh("thousand")

    async def call_it(number: int) -> None:
        reply = await echo.Unary(EchoRequest(text="gate", payload=name, count=number))
        replies.append(reply.count)

    async with trio.open_nursery() as nursery:
        for number in range(1000):
            nursery.start_soon(call_it, number)
        # All of them are in the handler at once.
        await echo.Unary(EchoRequest(text="running", payload=name, count=1000))
        assert channel.statistics().connections == 1
        await echo.Unary(EchoRequest(text="release", payload=name))
    assert sorted(replies) == list(range(1000))


async def test_the_peers_stream_limit_makes_calls_wait(echo: EchoStub) -> None:
    address = await spawn(echo, max_concurrent_streams=2)
    name = fresh("stream limit")
    async with trio_grpc.open_channel(address) as channel:
        limited = EchoStub(channel)
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(limited.Unary, EchoRequest(text="gate", payload=name))
            await echo.Unary(EchoRequest(text="running", payload=name, count=2))
            statistics = channel.statistics()
            assert (statistics.connections, statistics.streams, statistics.waiting) == (1, 2, 4)
            await echo.Unary(EchoRequest(text="release", payload=name))
    assert (await echo.Unary(EchoRequest(text="peak", payload=name))).count == 2


async def test_unary_calls_beside_a_stream(echo: EchoStub) -> None:
    async with echo.ServerStream(EchoRequest(count=10_000, payload=b"x" * 100)) as call:
        received = 0
        async for reply in call:
            assert reply.count == received
            received += 1
            if received % 1000 == 0:
                assert (await echo.Unary(EchoRequest(count=received))).count == received
    assert received == 10_000


async def test_a_reply_over_the_limit(echo: EchoStub) -> None:
    with pytest.raises(RpcError, match="max_receive_message_length") as caught:
        await echo.Unary(EchoRequest(text="size", count=4 * MB))
    assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
    # The connection lives, and the limit is exact: 3 MiB and a little is under it.
    assert len((await echo.Unary(EchoRequest(text="size", count=3 * MB))).payload) == 3 * MB


async def test_a_streamed_reply_over_the_limit(channel: Channel, echo: EchoStub) -> None:
    async with echo.ServerStream(EchoRequest(text="size", count=5 * MB)) as call:
        with pytest.raises(RpcError, match="max_receive_message_length") as caught:
            await call.receive()
    assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
    await echo.Unary(EchoRequest())
    assert channel.statistics().connections == 1


async def test_a_request_over_the_peers_limit(channel: Channel, echo: EchoStub) -> None:
    with pytest.raises(RpcError) as caught:
        await echo.Unary(EchoRequest(payload=bytes(5 * MB)))
    assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
    await echo.Unary(EchoRequest())
    assert channel.statistics().connections == 1


async def test_a_streamed_request_over_the_peers_limit(echo: EchoStub) -> None:
    with pytest.raises(RpcError) as caught:
        await echo.ClientStream([EchoRequest(payload=b"small"), EchoRequest(payload=bytes(5 * MB))])
    assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
    await echo.Unary(EchoRequest())


async def test_gzip_both_ways(echo: EchoStub) -> None:
    streams: list[CountingStream] = []
    address = await spawn(echo, default_compression_algorithm=2)

    async def connect() -> trio.abc.Stream:
        host, port = address.split(":")
        streams.append(CountingStream(await trio.open_tcp_stream(host, int(port))))
        return streams[-1]

    payload = b"compressible " * (MB // 13)
    async with trio_grpc.open_channel(connect) as channel:
        squeezed = EchoStub(channel)
        reply = await squeezed.Unary(EchoRequest(payload=payload), compression=Compression.GZIP)
        assert reply.payload == payload
        (stream,) = streams
        assert stream.sent < MB // 10
        assert stream.received < MB // 10
        # Streams, too; and a request that is not compressed beside one that is.
        async with squeezed.Bidi(compression="gzip") as call:
            await call.send(EchoRequest(payload=payload))
            assert (await call.receive()).payload == payload
            await call.done_sending()
        assert stream.sent < MB // 5
        reply = await squeezed.Unary(EchoRequest(payload=payload))
        assert reply.payload == payload
        assert stream.sent > MB


# -- the server goes away


async def test_goaway_while_a_stream_runs(echo: EchoStub) -> None:
    address = await spawn(echo)
    name = fresh("goaway")
    async with trio_grpc.open_channel(address) as channel:
        leaving = EchoStub(channel)
        async with leaving.ServerStream(EchoRequest(text="gate", payload=name, count=100)) as call:
            assert (await call.receive()).text == "first"
            await echo.Unary(EchoRequest(text="stop", payload=address.encode(), count=20))
            await until(lambda: channel.statistics().state != "ready")
            # The stream that runs is not disturbed.
            assert channel.statistics().connections == 1
            await echo.Unary(EchoRequest(text="release", payload=name))
            assert [reply.count async for reply in call] == list(range(100))
            assert call.status is StatusCode.OK
        await until(lambda: channel.statistics().connections == 0)
        with pytest.raises(RpcError, match="refused") as caught:
            await leaving.Unary(EchoRequest())
        assert caught.value.code is StatusCode.UNAVAILABLE
        assert isinstance(caught.value.__cause__, OSError)


async def test_a_server_that_cancels_its_streams_as_it_goes(echo: EchoStub) -> None:
    address = await spawn(echo)
    async with trio_grpc.open_channel(address) as channel:
        leaving = EchoStub(channel)
        async with leaving.ServerStream(EchoRequest(text="gate", payload=fresh("cut off"))) as call:
            assert (await call.receive()).text == "first"
            await echo.Unary(EchoRequest(text="stop", payload=address.encode(), count=0))
            with pytest.raises(RpcError) as caught:
                await call.receive()
            assert caught.value.code in (StatusCode.UNAVAILABLE, StatusCode.CANCELLED)


async def test_many_calls_while_the_server_goes_away(echo: EchoStub) -> None:
    """Every call ends. grpcio cancels what reaches it between its stop and its GOAWAY."""
    address = await spawn(echo)
    other = await spawn(echo)
    async with trio_grpc.open_channel(address) as channel:
        leaving = EchoStub(channel)
        codes: list[StatusCode] = []

        async def call_until_it_fails() -> None:
            try:
                while True:
                    await leaving.Unary(EchoRequest())
            except RpcError as error:
                codes.append(error.code)

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(call_until_it_fails)
            await until(lambda: channel.statistics().state == "ready")
            await echo.Unary(EchoRequest(text="stop", payload=address.encode(), count=20))
        assert len(codes) == 10
        assert set(codes) <= {StatusCode.UNAVAILABLE, StatusCode.CANCELLED}
    async with trio_grpc.open_channel(other) as channel:
        await EchoStub(channel).Unary(EchoRequest())


# -- several servers


async def test_round_robin_over_real_servers(echo: EchoStub) -> None:
    """Calls go to each in turn; to the others when one goes away; and to one that comes back at another address."""
    addresses = [await spawn(echo) for _ in range(3)]
    resolver = ManualResolver(*addresses)
    async with trio_grpc.open_channel(
        "test:///echo", resolvers={"test": resolver}, load_balancing="round_robin"
    ) as channel:
        stub = EchoStub(channel)

        async def peers(calls: int) -> set[str]:
            found = set()
            for _ in range(calls):
                async with stub.Unary.open(EchoRequest()) as call:
                    await call.receive()
                    found.add(call.peer)
            return found

        await channel.wait_ready()
        await until(lambda: channel.statistics().connections == 3)
        await trio.testing.wait_all_tasks_blocked()
        while await peers(3) != set(addresses):
            await trio.lowlevel.checkpoint()
        gone = addresses.pop()
        await echo.Unary(EchoRequest(text="stop", payload=gone.encode(), count=20))
        await until(lambda: channel.statistics().connections == 2)
        assert await peers(4) == set(addresses)
        addresses.append(await spawn(echo))
        resolver.update(*addresses)
        while await peers(3) != set(addresses):
            await trio.lowlevel.checkpoint()


async def test_a_list_of_addresses_one_of_which_is_closed(echo: EchoStub) -> None:
    address = await spawn(echo)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        target = "ipv4:{}:{},{}".format(*closed.getsockname(), address)
        async with trio_grpc.open_channel(target) as channel, EchoStub(channel).Unary.open(EchoRequest()) as call:
            await call.receive()
            assert call.peer == address


async def test_calls_of_every_kind_are_tried_again(peer: dict[str, str], echo: EchoStub) -> None:
    """After what the server asks for, which is a millisecond, and not after our own minute."""
    policy = RetryPolicy(
        max_attempts=4,
        initial_backoff=60,
        max_backoff=60,
        backoff_multiplier=1,
        retryable_status_codes=[StatusCode.UNAVAILABLE],
    )
    config = ServiceConfig(methods=[MethodConfig(retry_policy=policy)])
    async with trio_grpc.open_channel(peer["aio"], service_config=config) as channel:
        flaky = EchoStub(channel)
        for kind in ("Unary", "ServerStream", "ClientStream", "Bidi"):
            request = EchoRequest(text="flaky", payload=fresh(kind), count=1)
            if kind == "Unary":
                await flaky.Unary(request)
            elif kind == "ServerStream":
                async with flaky.ServerStream(request) as call:
                    assert len([reply async for reply in call]) == 1
            elif kind == "ClientStream":
                assert (await flaky.ClientStream([request, request])).count == 2
            else:
                async with flaky.Bidi() as call:
                    await call.send(request)
                    await call.done_sending()
                    assert len([reply async for reply in call]) == 1
            asked = await echo.Unary(EchoRequest(text="attempts", payload=request.payload))
            assert asked.text == "0 1 2"


async def test_the_attempts_of_a_hedged_call(peer: dict[str, str], echo: EchoStub) -> None:
    """The one that fails brings the next one forward, and those that are not needed are cancelled."""
    policy = HedgingPolicy(max_attempts=3, hedging_delay=60, non_fatal_status_codes=[StatusCode.UNAVAILABLE])
    config = ServiceConfig(methods=[MethodConfig(hedging_policy=policy)])
    async with trio_grpc.open_channel(peer["aio"], service_config=config) as channel:
        name = fresh("hedged")
        await EchoStub(channel).Unary(EchoRequest(text="flaky", payload=name))
        assert (await echo.Unary(EchoRequest(text="attempts", payload=name))).text == "0 1 2"
    at_once = attrs.evolve(policy, hedging_delay=0)
    config = ServiceConfig(methods=[MethodConfig(hedging_policy=at_once)])
    async with trio_grpc.open_channel(peer["aio"], service_config=config) as channel:
        name = fresh("waiting")
        with trio.CancelScope() as scope:
            async with EchoStub(channel).Bidi() as call:
                await call.send(EchoRequest(text="wait", payload=name))
                await echo.Unary(EchoRequest(text="started", payload=name))
                scope.cancel()
                await call.receive()
        await echo.Unary(EchoRequest(text="cancelled", payload=name))
