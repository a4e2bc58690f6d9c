"""What a program's channels, servers and connections are doing: ``grpc.channelz.v1.Channelz``, servicer and stub."""

from __future__ import annotations

from trio_grpc.channelz._servicer import ChannelzServicer as ChannelzServicer
from trio_grpc.channelz._v1.channelz_pb2 import Address as Address
from trio_grpc.channelz._v1.channelz_pb2 import Channel as Channel
from trio_grpc.channelz._v1.channelz_pb2 import ChannelConnectivityState as ChannelConnectivityState
from trio_grpc.channelz._v1.channelz_pb2 import ChannelData as ChannelData
from trio_grpc.channelz._v1.channelz_pb2 import ChannelRef as ChannelRef
from trio_grpc.channelz._v1.channelz_pb2 import ChannelTrace as ChannelTrace
from trio_grpc.channelz._v1.channelz_pb2 import ChannelTraceEvent as ChannelTraceEvent
from trio_grpc.channelz._v1.channelz_pb2 import GetChannelRequest as GetChannelRequest
from trio_grpc.channelz._v1.channelz_pb2 import GetChannelResponse as GetChannelResponse
from trio_grpc.channelz._v1.channelz_pb2 import GetServerRequest as GetServerRequest
from trio_grpc.channelz._v1.channelz_pb2 import GetServerResponse as GetServerResponse
from trio_grpc.channelz._v1.channelz_pb2 import GetServerSocketsRequest as GetServerSocketsRequest
from trio_grpc.channelz._v1.channelz_pb2 import GetServerSocketsResponse as GetServerSocketsResponse
from trio_grpc.channelz._v1.channelz_pb2 import GetServersRequest as GetServersRequest
from trio_grpc.channelz._v1.channelz_pb2 import GetServersResponse as GetServersResponse
from trio_grpc.channelz._v1.channelz_pb2 import GetSocketRequest as GetSocketRequest
from trio_grpc.channelz._v1.channelz_pb2 import GetSocketResponse as GetSocketResponse
from trio_grpc.channelz._v1.channelz_pb2 import GetSubchannelRequest as GetSubchannelRequest
from trio_grpc.channelz._v1.channelz_pb2 import GetSubchannelResponse as GetSubchannelResponse
from trio_grpc.channelz._v1.channelz_pb2 import GetTopChannelsRequest as GetTopChannelsRequest
from trio_grpc.channelz._v1.channelz_pb2 import GetTopChannelsResponse as GetTopChannelsResponse
from trio_grpc.channelz._v1.channelz_pb2 import Security as Security
from trio_grpc.channelz._v1.channelz_pb2 import Server as Server
from trio_grpc.channelz._v1.channelz_pb2 import ServerData as ServerData
from trio_grpc.channelz._v1.channelz_pb2 import ServerRef as ServerRef
from trio_grpc.channelz._v1.channelz_pb2 import Socket as Socket
from trio_grpc.channelz._v1.channelz_pb2 import SocketData as SocketData
from trio_grpc.channelz._v1.channelz_pb2 import SocketOption as SocketOption
from trio_grpc.channelz._v1.channelz_pb2 import SocketOptionLinger as SocketOptionLinger
from trio_grpc.channelz._v1.channelz_pb2 import SocketOptionTcpInfo as SocketOptionTcpInfo
from trio_grpc.channelz._v1.channelz_pb2 import SocketOptionTimeout as SocketOptionTimeout
from trio_grpc.channelz._v1.channelz_pb2 import SocketRef as SocketRef
from trio_grpc.channelz._v1.channelz_pb2 import Subchannel as Subchannel
from trio_grpc.channelz._v1.channelz_pb2 import SubchannelRef as SubchannelRef
from trio_grpc.channelz._v1.channelz_trio_grpc import ChannelzStub as ChannelzStub

__all__ = (
    "Address",
    "Channel",
    "ChannelConnectivityState",
    "ChannelData",
    "ChannelRef",
    "ChannelTrace",
    "ChannelTraceEvent",
    "ChannelzServicer",
    "ChannelzStub",
    "GetChannelRequest",
    "GetChannelResponse",
    "GetServerRequest",
    "GetServerResponse",
    "GetServerSocketsRequest",
    "GetServerSocketsResponse",
    "GetServersRequest",
    "GetServersResponse",
    "GetSocketRequest",
    "GetSocketResponse",
    "GetSubchannelRequest",
    "GetSubchannelResponse",
    "GetTopChannelsRequest",
    "GetTopChannelsResponse",
    "Security",
    "Server",
    "ServerData",
    "ServerRef",
    "Socket",
    "SocketData",
    "SocketOption",
    "SocketOptionLinger",
    "SocketOptionTcpInfo",
    "SocketOptionTimeout",
    "SocketRef",
    "Subchannel",
    "SubchannelRef",
)
