"""The servicer of channelz: finds what it is asked for among all that is open in this run of trio (gRFC A14)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, ClassVar, TypeVar

from trio_grpc._channel import Channel
from trio_grpc._method import Method
from trio_grpc._registry import channels, servers
from trio_grpc._server import Server
from trio_grpc._servicer import Servicer, ServicerContext
from trio_grpc._status import RpcError, StatusCode
from trio_grpc._transport.connection import Connection
from trio_grpc.channelz import _views
from trio_grpc.channelz._v1 import channelz_pb2
from trio_grpc.channelz._v1.channelz_pb2 import (
    GetChannelRequest,
    GetChannelResponse,
    GetServerRequest,
    GetServerResponse,
    GetServerSocketsRequest,
    GetServerSocketsResponse,
    GetServersRequest,
    GetServersResponse,
    GetSocketRequest,
    GetSocketResponse,
    GetSubchannelRequest,
    GetSubchannelResponse,
    GetTopChannelsRequest,
    GetTopChannelsResponse,
)
from trio_grpc.channelz._v1.channelz_trio_grpc import ChannelzServicer as GeneratedServicer

#: How many of a list a page has at most, and without a wish of the client's (C-core, grpc-java).
_PAGE = 100

T = TypeVar("T")


class ChannelzServicer(Servicer):
    """Serves ``grpc.channelz.v1.Channelz``: what the channels, servers and connections of this run of trio are doing.

    It shows all of them, whoever has opened them, from their ``async with`` or `serve` to the end of that. There is
    nothing to turn on: they count all the time. Whoever may call it reads addresses, certificates and error messages,
    so do not serve it to strangers.
    """

    # Not the generated class as a base: what it infers is not typed enough for a public one.
    __trio_grpc_methods__: ClassVar[Mapping[str, Method[Any, Any]]] = GeneratedServicer.__trio_grpc_methods__
    __trio_grpc_pb2__: ModuleType | None = channelz_pb2

    async def GetTopChannels(
        self, request: GetTopChannelsRequest, context: ServicerContext[GetTopChannelsResponse], /
    ) -> GetTopChannelsResponse:
        page, end = _page(_channels(), lambda channel: channel._id, request.start_channel_id, request.max_results)
        return GetTopChannelsResponse(channel=[_views.channel_message(channel) for channel in page], end=end)

    async def GetServers(
        self, request: GetServersRequest, context: ServicerContext[GetServersResponse], /
    ) -> GetServersResponse:
        page, end = _page(_servers(), lambda server: server._id, request.start_server_id, request.max_results)
        return GetServersResponse(server=[_views.server_message(server) for server in page], end=end)

    async def GetServer(
        self, request: GetServerRequest, context: ServicerContext[GetServerResponse], /
    ) -> GetServerResponse:
        return GetServerResponse(server=_views.server_message(_find_server(request.server_id)))

    async def GetServerSockets(
        self, request: GetServerSocketsRequest, context: ServicerContext[GetServerSocketsResponse], /
    ) -> GetServerSocketsResponse:
        connections = _find_server(request.server_id)._connections
        page, end = _page(connections, lambda one: one.id, request.start_socket_id, request.max_results)
        return GetServerSocketsResponse(socket_ref=[_views.connection_ref(one) for one in page], end=end)

    async def GetChannel(
        self, request: GetChannelRequest, context: ServicerContext[GetChannelResponse], /
    ) -> GetChannelResponse:
        for channel in _channels():
            if channel._id == request.channel_id:
                return GetChannelResponse(channel=_views.channel_message(channel))
        raise _not_found("channel", request.channel_id)

    async def GetSubchannel(
        self, request: GetSubchannelRequest, context: ServicerContext[GetSubchannelResponse], /
    ) -> GetSubchannelResponse:
        for channel in _channels():
            for subchannel in channel._balancer.subchannels:
                if subchannel._id == request.subchannel_id:
                    return GetSubchannelResponse(subchannel=_views.subchannel_message(subchannel))
        raise _not_found("subchannel", request.subchannel_id)

    async def GetSocket(
        self, request: GetSocketRequest, context: ServicerContext[GetSocketResponse], /
    ) -> GetSocketResponse:
        for connection in _connections():
            if connection.id == request.socket_id:
                return GetSocketResponse(socket=_views.connection_message(connection, summary=request.summary))
        for server in _servers():
            listener = server._listener_ids.get(request.socket_id)
            if listener is not None:
                return GetSocketResponse(socket=_views.listener_message(request.socket_id, listener))
        raise _not_found("socket", request.socket_id)


def _channels() -> Iterator[Channel]:
    return iter(channels)


def _servers() -> Iterator[Server]:
    return iter(servers)


def _connections() -> Iterator[Connection]:
    for channel in _channels():
        yield from channel._balancer.connections
    for server in _servers():
        yield from server._connections


def _find_server(server_id: int) -> Server:
    for server in _servers():
        if server._id == server_id:
            return server
    raise _not_found("server", server_id)


def _page(things: Iterable[T], id_of: Callable[[T], int], start: int, max_results: int) -> tuple[list[T], bool]:
    """Return a page of things by their ids, and whether it is the last one."""
    if max_results < 0:
        raise RpcError(StatusCode.INVALID_ARGUMENT, f"max_results must not be negative, got {max_results}")
    size = min(max_results or _PAGE, _PAGE)
    left = sorted((thing for thing in things if id_of(thing) >= start), key=id_of)
    return left[:size], len(left) <= size


def _not_found(what: str, id_: int) -> RpcError:
    return RpcError(StatusCode.NOT_FOUND, f"there is no {what} with id {id_}")


__all__ = ["ChannelzServicer"]
