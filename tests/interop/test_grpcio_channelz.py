"""Channelz with grpcio at the other end of either side: its client asks us, and ours asks its servicer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
import trio
from echo_pb2 import EchoRequest
from echo_trio_grpc import EchoStub
from grpc_channelz.v1 import channelz, channelz_pb2, channelz_pb2_grpc

import trio_grpc
from tests.echo_service import Echo
from trio_grpc.channelz import (
    ChannelzServicer,
    ChannelzStub,
    GetServerSocketsRequest,
    GetServersRequest,
    GetSubchannelRequest,
)

pytestmark = pytest.mark.watchdog(30)


async def test_grpcio_asks_about_a_channel_of_ours(nursery: trio.Nursery) -> None:
    server = await nursery.start(trio_grpc.serve, [Echo(), ChannelzServicer()], "127.0.0.1:0")
    address = server.addresses[0]

    def ask() -> None:
        with grpc.insecure_channel(address) as asking:
            stub = channelz_pb2_grpc.ChannelzStub(asking)
            (channel,) = stub.GetTopChannels(channelz_pb2.GetTopChannelsRequest(), timeout=20).channel
            assert channel.ref.name == address
            assert channel.data.state.state == channelz_pb2.ChannelConnectivityState.READY
            assert (channel.data.calls_started, channel.data.calls_succeeded, channel.data.calls_failed) == (3, 3, 0)
            (ref,) = channel.subchannel_ref
            request = channelz_pb2.GetSubchannelRequest(subchannel_id=ref.subchannel_id)
            (socket_ref,) = stub.GetSubchannel(request, timeout=20).subchannel.socket_ref
            request = channelz_pb2.GetSocketRequest(socket_id=socket_ref.socket_id)
            data = stub.GetSocket(request, timeout=20).socket.data
            assert (data.streams_started, data.streams_succeeded) == (3, 3)
            assert (data.messages_sent, data.messages_received) == (3, 3)
            with pytest.raises(grpc.RpcError, match="there is no server with id 99999"):
                stub.GetServer(channelz_pb2.GetServerRequest(server_id=99999), timeout=20)

    async with trio_grpc.open_channel(address) as channel:
        for _ in range(3):
            await EchoStub(channel).Unary(EchoRequest())
        await trio.to_thread.run_sync(ask)
    nursery.cancel_scope.cancel()


@pytest.fixture
def address() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.enable_channelz", 1)])
    channelz.add_channelz_servicer(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


async def test_we_ask_grpcio_about_itself(address: str) -> None:
    async with trio_grpc.open_channel(address) as channel:
        stub = ChannelzStub(channel)
        servers = (await stub.GetServers(GetServersRequest())).server
        # Others may be left of tests before this one.
        server = max(servers, key=lambda one: one.ref.server_id)
        # This very call, as C-core counts it.
        assert server.data.calls_started >= 1
        sockets = await stub.GetServerSockets(GetServerSocketsRequest(server_id=server.ref.server_id))
        # Its C-core knows more of a socket than the messages of grpcio-channelz, which then fails in GetSocket.
        assert sockets.end
        assert len(sockets.socket_ref) == 1
        with pytest.raises(trio_grpc.RpcError, match="NOT_FOUND"):
            await stub.GetSubchannel(GetSubchannelRequest(subchannel_id=99999))
