"""`trio_grpc.channelz`: what it tells of channels, subchannels, servers and connections is what has happened."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import pytest
import trio
import trio.testing
import trustme
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.echo_service import Context, Echo, Waiting
from trio_grpc import Keepalive, RpcError, StatusCode
from trio_grpc.channelz import (
    Channel,
    ChannelConnectivityState,
    ChannelTrace,
    ChannelTraceEvent,
    ChannelzServicer,
    ChannelzStub,
    GetChannelRequest,
    GetServerRequest,
    GetServerSocketsRequest,
    GetServersRequest,
    GetSocketRequest,
    GetSubchannelRequest,
    GetTopChannelsRequest,
    Server,
    Socket,
    SocketData,
    SocketOptionTcpInfo,
    Subchannel,
)
from trio_grpc.health import HealthServicer
from trio_grpc.testing import ManualResolver, MemoryListener, open_channel_pair

State = ChannelConnectivityState
Clock = trio.testing.MockClock


@attrs.frozen
class Looker:
    """Looks at everything but its own channel and server, which were the first ones.

    Attributes:
        stub: asks.
    """

    stub: ChannelzStub

    async def channels(self) -> list[Channel]:
        reply = await self.stub.GetTopChannels(GetTopChannelsRequest())
        assert reply.end
        return list(reply.channel)[1:]

    async def channel(self) -> Channel:
        (channel,) = await self.channels()
        assert (await self.stub.GetChannel(GetChannelRequest(channel_id=channel.ref.channel_id))).channel == channel
        return channel

    async def subchannels(self) -> list[Subchannel]:
        return [
            (await self.stub.GetSubchannel(GetSubchannelRequest(subchannel_id=ref.subchannel_id))).subchannel
            for channel in await self.channels()
            for ref in channel.subchannel_ref
        ]

    async def subchannel(self) -> Subchannel:
        (subchannel,) = await self.subchannels()
        return subchannel

    async def server(self) -> Server:
        reply = await self.stub.GetServers(GetServersRequest())
        assert reply.end
        _, server = reply.server
        again = (await self.stub.GetServer(GetServerRequest(server_id=server.ref.server_id))).server
        # All but the times that trio's clock has measured, which the clock on the wall knows only roughly.
        if server.data.HasField("last_call_started_timestamp"):
            again.data.last_call_started_timestamp.CopyFrom(server.data.last_call_started_timestamp)
        assert again == server
        return server

    async def socket(self, socket_id: int, *, summary: bool = False) -> Socket:
        reply = await self.stub.GetSocket(GetSocketRequest(socket_id=socket_id, summary=summary))
        assert reply.socket.ref.socket_id == socket_id
        return reply.socket

    async def client_socket(self) -> Socket:
        (ref,) = (await self.subchannel()).socket_ref
        found = await self.socket(ref.socket_id)
        assert found.ref == ref
        return found

    async def server_sockets(self) -> list[Socket]:
        server_id = (await self.server()).ref.server_id
        reply = await self.stub.GetServerSockets(GetServerSocketsRequest(server_id=server_id))
        assert reply.end
        return [await self.socket(ref.socket_id) for ref in reply.socket_ref]

    async def server_socket(self) -> Socket:
        (found,) = await self.server_sockets()
        return found


@pytest.fixture
async def look() -> AsyncIterator[Looker]:
    async with open_channel_pair(ChannelzServicer()) as (channel, _):
        yield Looker(ChannelzStub(channel))


def calls(data: Any) -> tuple[int, int, int]:
    return data.calls_started, data.calls_succeeded, data.calls_failed


def streams(found: Socket) -> tuple[int, int, int]:
    data = found.data
    return data.streams_started, data.streams_succeeded, data.streams_failed


def messages(found: Socket) -> tuple[int, int]:
    return found.data.messages_sent, found.data.messages_received


def descriptions(trace: ChannelTrace) -> list[str]:
    return [event.description for event in trace.events]


async def all_calls(look: Looker) -> list[tuple[int, int, int]]:
    """What channel, subchannel and server say of their calls, on a pair that makes no retries."""
    return [
        calls((await look.channel()).data),
        calls((await look.subchannel()).data),
        calls((await look.server()).data),
    ]


class Failing(Echo):
    """Ends each call with the status that its request names by its number; 0 for OK."""

    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        if request.count:
            raise RpcError(StatusCode(request.count), "as you wish")
        return EchoReply()


# -- calls, streams and messages


async def test_nothing_has_happened_yet(look: Looker) -> None:
    async with open_channel_pair(Echo()) as (channel, server):
        found = await look.channel()
        assert found.ref.name == found.data.target == channel.target
        assert found.data.state.state == State.IDLE
        assert calls(found.data) == (0, 0, 0)
        assert not found.data.HasField("last_call_started_timestamp")
        assert not found.subchannel_ref
        assert not found.data.trace.events
        assert (await look.server()).ref.name == ", ".join(server.addresses)
        assert await look.server_sockets() == []


async def test_unary_calls(look: Looker) -> None:
    before = time.time()
    async with open_channel_pair(Failing()) as (channel, _):
        stub = EchoStub(channel)
        for _ in range(3):
            await stub.Unary(EchoRequest())
        for code in (StatusCode.NOT_FOUND, StatusCode.INTERNAL):
            with pytest.raises(RpcError):
                await stub.Unary(EchoRequest(count=code))
        assert await all_calls(look) == [(5, 3, 2)] * 3
        client, server = await look.client_socket(), await look.server_socket()
        # A status that is not OK is an orderly end of a stream.
        assert streams(client) == streams(server) == (5, 5, 0)
        assert messages(client) == (5, 3)
        assert messages(server) == (3, 5)
        for data in (
            (await look.channel()).data.last_call_started_timestamp,
            (await look.subchannel()).data.last_call_started_timestamp,
            (await look.server()).data.last_call_started_timestamp,
            client.data.last_local_stream_created_timestamp,
            server.data.last_remote_stream_created_timestamp,
            client.data.last_message_sent_timestamp,
            client.data.last_message_received_timestamp,
            server.data.last_message_sent_timestamp,
            server.data.last_message_received_timestamp,
        ):
            assert before <= data.ToNanoseconds() / 1e9 <= time.time()
        assert not client.data.HasField("last_remote_stream_created_timestamp")
        assert not server.data.HasField("last_local_stream_created_timestamp")


async def test_streaming_calls(look: Looker) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        stub = EchoStub(channel)
        async with stub.ServerStream(EchoRequest(count=10)) as replies:
            assert len([reply async for reply in replies]) == 10
        await stub.ClientStream([EchoRequest()] * 20)
        async with stub.Bidi() as call:
            for _ in range(30):
                await call.send(EchoRequest())
                await call.receive()
            await call.done_sending()
            with pytest.raises(trio.EndOfChannel):
                await call.receive()
        assert await all_calls(look) == [(3, 3, 0)] * 3
        assert messages(await look.client_socket()) == (51, 41)
        assert messages(await look.server_socket()) == (41, 51)
        assert streams(await look.client_socket()) == streams(await look.server_socket()) == (3, 3, 0)


async def test_large_messages_are_messages_too(look: Looker) -> None:
    payload = bytes(1_000_000)
    async with open_channel_pair(Echo()) as (channel, _):
        async with EchoStub(channel).Bidi() as call:
            for _ in range(3):
                await call.send(EchoRequest(payload=payload))
                assert (await call.receive()).payload == payload
        assert messages(await look.client_socket()) == messages(await look.server_socket()) == (3, 3)


async def test_calls_in_flight_have_neither_succeeded_nor_failed(look: Looker) -> None:
    waiting = Waiting()
    async with open_channel_pair(waiting) as (channel, _), trio.open_nursery() as nursery:
        nursery.start_soon(EchoStub(channel).Unary, EchoRequest())
        await waiting.started.wait()
        assert await all_calls(look) == [(1, 0, 0)] * 3
        assert streams(await look.client_socket()) == streams(await look.server_socket()) == (1, 0, 0)
        waiting.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert await all_calls(look) == [(1, 1, 0)] * 3
        assert streams(await look.client_socket()) == streams(await look.server_socket()) == (1, 1, 0)


async def _cancel(stub: EchoStub) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stub.Unary, EchoRequest())
        await trio.sleep(1)
        nursery.cancel_scope.cancel()


async def _time_out(stub: EchoStub) -> None:
    with pytest.raises(RpcError):
        await stub.Unary(EchoRequest(), timeout=1)


async def _leave(stub: EchoStub) -> None:
    async with stub.Bidi():
        await trio.sleep(1)


async def _close(stub: EchoStub) -> None:
    async with stub.ServerStream(EchoRequest()) as call:
        await trio.sleep(1)
        call.cancel()
        await call.aclose()


@pytest.mark.parametrize("give_up", [_cancel, _time_out, _leave, _close])
async def test_calls_that_are_given_up_have_failed(
    look: Looker, autojump_clock: Clock, give_up: Callable[[EchoStub], Any]
) -> None:
    async with open_channel_pair(Waiting()) as (channel, _):
        for count in (1, 2):
            await give_up(EchoStub(channel))
            await trio.testing.wait_all_tasks_blocked()
            assert await all_calls(look) == [(count, 0, count)] * 3
        # Server and client may each end the stream first where both have a timer: nothing is said of who failed it.
        if give_up is not _time_out:
            assert streams(await look.client_socket()) == streams(await look.server_socket()) == (2, 0, 2)


async def test_a_deadline_that_the_server_keeps(look: Looker) -> None:
    """Its status is an orderly end of the stream, and a failed call."""

    class Late(Echo):
        async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
            raise RpcError(StatusCode.DEADLINE_EXCEEDED, "not in time")

    async with open_channel_pair(Late()) as (channel, _):
        with pytest.raises(RpcError):
            await EchoStub(channel).Unary(EchoRequest())
        assert await all_calls(look) == [(1, 0, 1)] * 3
        assert streams(await look.client_socket()) == (1, 1, 0)


async def test_methods_that_are_not_there(look: Looker) -> None:
    async with open_channel_pair(HealthServicer()) as (channel, _):
        with pytest.raises(RpcError, match="UNIMPLEMENTED"):
            await EchoStub(channel).Unary(EchoRequest())
        assert await all_calls(look) == [(1, 0, 1)] * 3


async def test_calls_that_go_down_with_their_connection(look: Looker, autojump_clock: Clock) -> None:
    waiting = Waiting()
    async with open_channel_pair(waiting) as (channel, server), trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(RpcError, match="UNAVAILABLE"):
                await EchoStub(channel).Unary(EchoRequest())

        nursery.start_soon(call)
        await waiting.started.wait()
        await server.drain(grace=0)
        await trio.testing.wait_all_tasks_blocked()
        # The server is gone, and the connection with it; what it has counted stays with the subchannel.
        assert calls((await look.channel()).data) == (1, 0, 1)
        subchannel = await look.subchannel()
        assert calls(subchannel.data) == (1, 0, 1)
        assert subchannel.data.HasField("last_call_started_timestamp")
        assert not subchannel.socket_ref


async def test_calls_without_a_connection(look: Looker, autojump_clock: Clock) -> None:
    async def refuse() -> trio.abc.Stream:
        raise OSError("nobody is there")

    async with trio_grpc.open_channel(refuse) as channel:
        for count in (1, 2, 3):
            with pytest.raises(RpcError, match="nobody is there"):
                await EchoStub(channel).Unary(EchoRequest())
            found = await look.channel()
            assert calls(found.data) == (count, 0, count)
        assert found.data.HasField("last_call_started_timestamp")
        assert found.data.state.state == State.TRANSIENT_FAILURE
        subchannel = await look.subchannel()
        assert calls(subchannel.data) == (0, 0, 0)
        assert not subchannel.data.HasField("last_call_started_timestamp")


async def test_retries_are_calls_of_the_subchannel(look: Looker, autojump_clock: Clock) -> None:
    class Busy(Echo):
        async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
            self.calls += 1
            if self.calls < 3:
                raise RpcError(StatusCode.UNAVAILABLE, "busy")
            return EchoReply()

    policy = {
        "maxAttempts": 4,
        "initialBackoff": "0.1s",
        "maxBackoff": "1s",
        "backoffMultiplier": 1,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    config = {"methodConfig": [{"name": [{}], "retryPolicy": policy}]}
    async with open_channel_pair(Busy(), service_config=config) as (channel, _):
        await EchoStub(channel).Unary(EchoRequest())
        assert await all_calls(look) == [(1, 1, 0), (3, 1, 2), (3, 1, 2)]


@pytest.mark.parametrize("interceptors", [0, 2])
async def test_a_call_is_counted_once_with_interceptors_too(look: Looker, interceptors: int) -> None:
    async def pass_on(call: Any, proceed: Any) -> None:
        await proceed()

    around = [pass_on] * interceptors
    async with open_channel_pair(Failing(), interceptors=around) as (channel, _):
        stub = EchoStub(channel)
        await stub.Unary(EchoRequest())
        with pytest.raises(RpcError):
            await stub.Unary(EchoRequest(count=StatusCode.INTERNAL))
        await stub.ClientStream([EchoRequest()])
        async with stub.Unary.open(EchoRequest()) as call:
            await call.receive()
        async with stub.Unary.open(EchoRequest(count=StatusCode.INTERNAL)) as call:
            with pytest.raises(RpcError):
                await call.receive()
        assert await all_calls(look) == [(5, 3, 2)] * 3


async def test_the_watching_of_health_is_no_call(look: Looker) -> None:
    config = {"healthCheckConfig": {"serviceName": ""}, "loadBalancingConfig": [{"round_robin": {}}]}
    async with open_channel_pair(Echo(), HealthServicer(), service_config=config) as (channel, _):
        await channel.wait_ready()
        found = await look.channel()
        assert calls(found.data) == calls((await look.subchannel()).data) == (0, 0, 0)
        assert not found.data.HasField("last_call_started_timestamp")
        # But it is a stream, and it has messages.
        client = await look.client_socket()
        assert streams(client) == (1, 0, 0)
        assert messages(client) == (1, 1)
        assert client.data.HasField("last_local_stream_created_timestamp")
        await EchoStub(channel).Unary(EchoRequest())
        assert calls((await look.channel()).data) == calls((await look.subchannel()).data) == (1, 1, 0)


# -- what there is


async def test_states_and_events_of_a_channel(look: Looker) -> None:
    async with open_channel_pair(Echo()) as (channel, server):
        await channel.wait_ready()
        found, subchannel = await look.channel(), await look.subchannel()
        assert found.data.state.state == subchannel.data.state.state == State.READY
        assert descriptions(found.data.trace) == [
            "connecting", f"{channel.target} has 1 endpoint", "subchannel made", "ready",
        ]  # fmt: skip
        assert descriptions(subchannel.data.trace) == ["connecting", "ready"]
        assert found.data.trace.num_events_logged == 4
        (made,) = [event for event in found.data.trace.events if event.HasField("subchannel_ref")]
        assert made.subchannel_ref == subchannel.ref == found.subchannel_ref[0]
        assert {event.severity for event in found.data.trace.events} == {ChannelTraceEvent.CT_INFO}
        times = [event.timestamp.ToNanoseconds() for event in found.data.trace.events]
        assert times == sorted(times)
        assert found.data.trace.creation_timestamp.ToNanoseconds() <= times[0]
        await server.drain()
        await trio.testing.wait_all_tasks_blocked()
        found = await look.channel()
        assert found.data.state.state == State.IDLE
        assert descriptions(found.data.trace)[4] == "idle"


async def test_failures_are_warnings_and_only_the_last_events_are_kept(look: Looker, autojump_clock: Clock) -> None:
    attempts = 0

    async def refuse() -> trio.abc.Stream:
        nonlocal attempts
        attempts += 1
        raise OSError(f"nobody is there {attempts}")

    async with trio_grpc.open_channel(refuse) as channel:
        with trio.move_on_after(1700):
            await channel.wait_ready()
        trace = (await look.subchannel()).data.trace
        assert attempts > 15
        # Each attempt: connecting, transient failure, idle.
        assert trace.num_events_logged >= 3 * attempts - 1
        assert len(trace.events) == 30
        failures = [event for event in trace.events if event.severity == ChannelTraceEvent.CT_WARNING]
        assert f"nobody is there {attempts}" in failures[-1].description
        assert failures[-1].description.startswith("transient failure: ")
        warnings = [one for one in (await look.channel()).data.trace.events if one.severity == 2]
        assert "nobody is there" in warnings[0].description


async def test_subchannels_come_and_go(look: Looker, nursery: trio.Nursery) -> None:
    waiting, listeners = Waiting(), [MemoryListener(), MemoryListener()]
    for listener in listeners:
        await nursery.start(trio_grpc.serve, [waiting], listener)
    ends = [
        trio_grpc.Endpoint(f"backend {number}", connect=listener.connect) for number, listener in enumerate(listeners)
    ]
    resolver = ManualResolver(*ends)
    async with (
        trio_grpc.open_channel("test:x", resolvers={"test": resolver}, load_balancing="round_robin") as channel,
        trio.open_nursery() as callers,
    ):
        await channel.wait_ready()
        await trio.testing.wait_all_tasks_blocked()
        one, two = await look.subchannels()
        assert [one.data.target, two.data.target] == ["backend 0", "backend 1"]
        for _ in range(2):
            callers.start_soon(EchoStub(channel).Unary, EchoRequest())
        await trio.testing.wait_all_tasks_blocked()
        resolver.update(ends[1])
        await trio.testing.wait_all_tasks_blocked()
        # It is shut down, and there to be seen while its call goes on.
        one, two = await look.subchannels()
        assert [one.data.state.state, two.data.state.state] == [State.SHUTDOWN, State.READY]
        assert calls(one.data) == calls(two.data) == (1, 0, 0)
        waiting.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        (two,) = await look.subchannels()
        assert calls(two.data) == (1, 1, 0)
        found = await look.channel()
        # What has gone has not taken its calls with it.
        assert calls(found.data) == (2, 2, 0)
        assert [text for text in descriptions(found.data.trace) if "subchannel" in text or "endpoint" in text] == [
            "test:x has 2 endpoints", "subchannel made", "subchannel made", "test:x has 1 endpoint", "subchannel gone",
        ]  # fmt: skip
        with pytest.raises(RpcError, match=f"NOT_FOUND.*no subchannel with id {one.ref.subchannel_id}"):
            await look.stub.GetSubchannel(GetSubchannelRequest(subchannel_id=one.ref.subchannel_id))
        resolver.fail(OSError("name server is down"))
        await trio.testing.wait_all_tasks_blocked()
        last = (await look.channel()).data.trace.events[-1]
        assert (last.description, last.severity) == (
            "resolving failed: name server is down",
            ChannelTraceEvent.CT_WARNING,
        )
    nursery.cancel_scope.cancel()


async def test_service_configs_are_events(look: Looker, autojump_clock: Clock) -> None:
    resolver = ManualResolver("1.2.3.4:5", service_config={})
    async with trio_grpc.open_channel("test:x", resolvers={"test": resolver}) as channel:
        channel.connect()
        await trio.testing.wait_all_tasks_blocked()
        resolver.update("1.2.3.4:5", service_config={"loadBalancingConfig": [{"round_robin": {}}]})
        await trio.testing.wait_all_tasks_blocked()
        texts = [text for text in descriptions((await look.channel()).data.trace) if "config" in text]
        assert texts == ["there is a service config", "another service config"]


async def test_servers_say_that_they_drain(look: Looker) -> None:
    waiting = Waiting()
    async with open_channel_pair(waiting) as (channel, server), trio.open_nursery() as nursery:
        nursery.start_soon(EchoStub(channel).Unary, EchoRequest())
        await waiting.started.wait()
        nursery.start_soon(server.drain)
        await trio.testing.wait_all_tasks_blocked()
        trace = (await look.server()).data.trace
        assert descriptions(trace) == [f"listening on {', '.join(server.addresses)}", "draining"]
        waiting.gate.set()


async def test_what_is_closed_is_not_listed(look: Looker) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        await channel.wait_ready()
        found, server, client = await look.channel(), await look.server(), await look.client_socket()
        await channel.aclose()
        assert (await look.channel()).data.state.state == State.SHUTDOWN
    assert await look.channels() == []
    ask = look.stub
    for reply in (
        partial(ask.GetChannel, GetChannelRequest(channel_id=found.ref.channel_id)),
        partial(ask.GetServer, GetServerRequest(server_id=server.ref.server_id)),
        partial(ask.GetServerSockets, GetServerSocketsRequest(server_id=server.ref.server_id)),
        partial(ask.GetSocket, GetSocketRequest(socket_id=client.ref.socket_id)),
        partial(ask.GetSocket, GetSocketRequest(socket_id=server.listen_socket[0].socket_id)),
    ):
        with pytest.raises(RpcError, match=r"NOT_FOUND: there is no (channel|server|socket) with id \d"):
            await reply()


def test_another_run_of_trio_sees_nothing_of_this_one() -> None:
    async def count() -> tuple[int, int]:
        async with open_channel_pair(ChannelzServicer()) as (channel, _):
            stub = ChannelzStub(channel)
            channels = await stub.GetTopChannels(GetTopChannelsRequest())
            servers = await stub.GetServers(GetServersRequest())
            return len(channels.channel), len(servers.server)

    async def main() -> None:
        async with open_channel_pair(Echo()):
            assert await count() == (2, 2)
            assert await trio.to_thread.run_sync(trio.run, count) == (1, 1)

    trio.run(main)


async def test_ids_differ_whatever_they_are_of(look: Looker) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        await channel.wait_ready()
        await trio.testing.wait_all_tasks_blocked()
        found, subchannel, server = await look.channel(), await look.subchannel(), await look.server()
        ids = [
            found.ref.channel_id,
            subchannel.ref.subchannel_id,
            server.ref.server_id,
            (await look.client_socket()).ref.socket_id,
            (await look.server_socket()).ref.socket_id,
            *[ref.socket_id for ref in server.listen_socket],
        ]
        assert len(set(ids)) == len(ids) == 6
        assert min(ids) > 0


# -- pages


@asynccontextmanager
async def channels(count: int) -> AsyncIterator[None]:
    if not count:
        yield
        return
    async with trio_grpc.open_channel(f"localhost:{count}"), channels(count - 1):
        yield


async def test_pages_of_channels(look: Looker) -> None:
    async with channels(6):
        everything = [channel.ref.channel_id for channel in await look.channels()]
        assert everything == sorted(everything)
        start, seen, ends = everything[0], [], []
        for _ in range(3):
            page = await look.stub.GetTopChannels(GetTopChannelsRequest(start_channel_id=start, max_results=2))
            seen += [channel.ref.channel_id for channel in page.channel]
            ends.append(page.end)
            start = seen[-1] + 1
        assert seen == everything
        assert ends == [False, False, True]
        # A start between two ids, and one behind all of them.
        page = await look.stub.GetTopChannels(GetTopChannelsRequest(start_channel_id=everything[2] + 1, max_results=1))
        assert [channel.ref.channel_id for channel in page.channel] == [everything[3]]
        page = await look.stub.GetTopChannels(GetTopChannelsRequest(start_channel_id=start))
        assert (list(page.channel), page.end) == ([], True)


async def test_a_page_has_no_more_than_a_hundred(look: Looker) -> None:
    async with channels(100):
        for wish in (0, 1000):
            page = await look.stub.GetTopChannels(GetTopChannelsRequest(max_results=wish))
            assert (len(page.channel), page.end) == (100, False)


async def test_pages_of_servers_and_their_sockets(look: Looker, nursery: trio.Nursery) -> None:
    for _ in range(2):
        await nursery.start(trio_grpc.serve, [Echo()], MemoryListener())
    first = await look.stub.GetServers(GetServersRequest(max_results=1))
    assert (len(first.server), first.end) == (1, False)
    rest = await look.stub.GetServers(GetServersRequest(start_server_id=first.server[0].ref.server_id + 1))
    assert (len(rest.server), rest.end) == (2, True)
    listener = MemoryListener()
    server = await nursery.start(trio_grpc.serve, [Echo()], listener)
    async with trio.open_nursery() as opening:
        for _ in range(3):
            await opening.start(_stay_connected, listener)
        listed = await look.stub.GetServers(GetServersRequest())
        server_id = max(one.ref.server_id for one in listed.server)
        page = await look.stub.GetServerSockets(GetServerSocketsRequest(server_id=server_id, max_results=2))
        assert (len(page.socket_ref), page.end) == (2, False)
        start = page.socket_ref[-1].socket_id + 1
        page = await look.stub.GetServerSockets(
            GetServerSocketsRequest(server_id=server_id, start_socket_id=start, max_results=2)
        )
        assert (len(page.socket_ref), page.end) == (1, True)
        opening.cancel_scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert server.statistics().connections == 0
    nursery.cancel_scope.cancel()


async def _stay_connected(listener: MemoryListener, task_status: trio.TaskStatus[None]) -> None:
    async with trio_grpc.open_channel(listener.connect) as channel:
        await channel.wait_ready()
        task_status.started()
        await trio.sleep_forever()


@pytest.mark.parametrize("method", ["GetTopChannels", "GetServers", "GetServerSockets"])
async def test_a_negative_page_size(look: Looker, method: str) -> None:
    request: Any = {
        "GetTopChannels": GetTopChannelsRequest(max_results=-1),
        "GetServers": GetServersRequest(max_results=-1),
        "GetServerSockets": GetServerSocketsRequest(max_results=-1),
    }[method]
    if method == "GetServerSockets":
        request.server_id = (await look.stub.GetServers(GetServersRequest())).server[0].ref.server_id
    with pytest.raises(RpcError, match="INVALID_ARGUMENT: max_results must not be negative, got -1"):
        await getattr(look.stub, method)(request)


# -- sockets


async def test_flow_control_windows(look: Looker) -> None:
    async with open_channel_pair(Waiting()) as (channel, _), EchoStub(channel).Bidi() as call:
        await channel.wait_ready()
        await trio.testing.wait_all_tasks_blocked()
        before, server = await look.client_socket(), await look.server_socket()
        # What one side may send is what the other one has granted.
        assert before.data.local_flow_control_window == server.data.remote_flow_control_window
        assert before.data.remote_flow_control_window == server.data.local_flow_control_window
        await call.send(EchoRequest(payload=bytes(1000)))
        await trio.testing.wait_all_tasks_blocked()
        after = await look.client_socket()
        sent = before.data.local_flow_control_window.value - after.data.local_flow_control_window.value
        assert 1000 < sent < 1020


async def test_keepalive_pings(look: Looker, autojump_clock: Clock) -> None:
    keepalive = Keepalive(time=10, timeout=5, permit_without_calls=True)
    async with open_channel_pair(Echo(), keepalive=keepalive) as (channel, _):
        await channel.wait_ready()
        assert (await look.client_socket()).data.keep_alives_sent == 0
        await trio.sleep(35)
        assert (await look.client_socket()).data.keep_alives_sent == 3
        assert (await look.server_socket()).data.keep_alives_sent == 0


async def test_streams_in_memory_have_names(look: Looker) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        await channel.wait_ready()
        found = await look.client_socket()
        assert found.remote.other_address.name == found.remote_name
        assert not found.HasField("local")
        assert not found.HasField("security")
        assert not found.data.option
        (listening,) = (await look.server()).listen_socket
        assert (await look.socket(listening.socket_id)).local.other_address.name == listening.name


@asynccontextmanager
async def over(address: str, **options: Any) -> AsyncIterator[tuple[Looker, str]]:
    """A server and a channel to it, with a connection, both of which are looked at; real sockets."""
    async with trio.open_nursery() as nursery, open_channel_pair(ChannelzServicer()) as (admin, _):
        serve = partial(trio_grpc.serve, ssl_context=options.pop("server_ssl_context", None))
        server = await nursery.start(serve, [Echo()], address)
        async with trio_grpc.open_channel(server.addresses[0], **options) as channel:
            await EchoStub(channel).Unary(EchoRequest())
            yield Looker(ChannelzStub(admin)), server.addresses[0]
        nursery.cancel_scope.cancel()


async def test_tcp() -> None:
    async with over("127.0.0.1:0") as (look, address):
        client, server = await look.client_socket(), await look.server_socket()
        assert client.local == server.remote
        assert client.remote == server.local
        end = client.remote.tcpip_address
        assert f"{socket.inet_ntoa(end.ip_address)}:{end.port}" == address == client.remote_name
        assert client.ref.name.endswith(f" -> {address}")
        options = {option.name: option for option in client.data.option}
        assert int(options["SO_RCVBUF"].value) > 0
        assert options["TCP_NODELAY"].value == "1"
        if hasattr(socket, "TCP_INFO"):
            info = SocketOptionTcpInfo()
            assert options["TCP_INFO"].additional.Unpack(info)
            assert info.tcpi_state == 1  # established
            assert 0 < info.tcpi_rtt < 10_000_000
            assert info.tcpi_snd_mss > 100
            assert info.tcpi_snd_cwnd > 0
        assert not (await look.socket(client.ref.socket_id, summary=True)).data.option
        (listening,) = (await look.server()).listen_socket
        found = await look.socket(listening.socket_id)
        assert found.local == client.remote
        assert not found.HasField("remote")
        assert found.data == SocketData()


async def test_unix_sockets(tmp_path: Any) -> None:
    async with over(f"unix:{tmp_path}/socket") as (look, _):
        client = await look.client_socket()
        assert client.remote.uds_address.filename == f"{tmp_path}/socket"
        assert client.local.uds_address.filename == ""
        assert {option.name for option in client.data.option} >= {"SO_RCVBUF"}
        assert "TCP_INFO" not in {option.name for option in client.data.option}


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX") or not hasattr(socket, "TCP_INFO"), reason="a feature of Linux")
async def test_abstract_unix_sockets(tmp_path: Any) -> None:
    async with over(f"unix-abstract:{tmp_path}/socket") as (look, _):
        assert (await look.client_socket()).remote.uds_address.filename == f"@{tmp_path}/socket"


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
async def test_tls(version: str) -> None:
    import ssl

    authority = trustme.CA()
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate = authority.issue_cert("localhost")
    certificate.configure_cert(server_context)
    server_context.maximum_version = ssl.TLSVersion[version]
    context = ssl.create_default_context()
    authority.configure_trust(context)
    options = {"ssl_context": context, "server_hostname": "localhost", "server_ssl_context": server_context}
    async with over("127.0.0.1:0", **options) as (look, _):
        client, server = await look.client_socket(), await look.server_socket()
        der = ssl.PEM_cert_to_DER_cert(certificate.cert_chain_pems[0].bytes().decode())
        assert client.security.tls.remote_certificate == der
        # The client has none.
        assert server.security.tls.remote_certificate == b""
        kind = client.security.tls.WhichOneof("cipher_suite")
        if version == "TLSv1_3":
            assert kind == "standard_name"
            assert client.security.tls.standard_name.startswith("TLS_")
        else:
            assert kind == "other_name"
            assert client.security.tls.other_name.startswith("ECDHE-")
        assert client.security.tls == type(client.security.tls).FromString(
            server.security.tls.SerializeToString() + client.security.tls.SerializeToString()
        )
        assert client.remote.HasField("tcpip_address")
        assert "TCP_INFO" in {option.name for option in client.data.option} or not hasattr(socket, "TCP_INFO")
