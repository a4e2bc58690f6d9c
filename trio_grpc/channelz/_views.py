"""Channels, servers and connections as the messages of channelz: made when somebody asks, of what they count anyway.

They all count as little as they can. What follows from other numbers is worked out here: how many streams ended well
from those begun, those failed and those that are open, for one.
"""

from __future__ import annotations

from math import inf

from trio_grpc._balancing.connectivity import ConnectivityState
from trio_grpc._balancing.subchannel import Subchannel
from trio_grpc._call_counts import CallCounts, since_epoch
from trio_grpc._channel import Channel
from trio_grpc._event_log import EventLog
from trio_grpc._server import Listener, Server, listener_name
from trio_grpc._transport.connection import Connection
from trio_grpc._transport.side import Side
from trio_grpc.channelz import _sockets
from trio_grpc.channelz._v1 import channelz_pb2

#: Ciphers of TLS 1.3 have IANA's names in OpenSSL, the older ones have OpenSSL's own.
_STANDARD = "TLS_"


def channel_message(channel: Channel) -> channelz_pb2.Channel:
    """Return what there is to tell of a channel."""
    subchannels = channel._balancer.subchannels
    calls = CallCounts()
    calls.started = channel._calls.started
    calls.succeeded = channel._calls.succeeded + sum(subchannel._calls.succeeded for subchannel in subchannels)
    calls.failed = channel._calls.failed
    calls.last_started = max(
        [channel._calls.last_started, *[_attempts(subchannel).last_started for subchannel in subchannels]]
    )
    return channelz_pb2.Channel(
        ref=channelz_pb2.ChannelRef(channel_id=channel._id, name=channel.target),
        data=_channel_data(channel.state, channel.target, channel._events, calls),
        subchannel_ref=[_subchannel_ref(one._id, one.endpoint.address) for one in subchannels],
    )


def subchannel_message(subchannel: Subchannel) -> channelz_pb2.Subchannel:
    """Return what there is to tell of a subchannel; its calls are attempts."""
    name = subchannel.endpoint.address
    return channelz_pb2.Subchannel(
        ref=_subchannel_ref(subchannel._id, name),
        data=_channel_data(subchannel.state, name, subchannel._events, _attempts(subchannel)),
        socket_ref=[connection_ref(connection) for connection in subchannel._running],
    )


def server_message(server: Server) -> channelz_pb2.Server:
    """Return what there is to tell of a server."""
    connections = tuple(server._connections)
    started = server._calls.started + sum(connection.table.opened for connection in connections)
    # A stream that has its status queued, or is of no use to anybody any more, has been counted if it failed.
    open_calls = sum(
        1
        for connection in connections
        for stream in connection.table.streams.values()
        if not stream.end_stream and stream.cancelled is None
    )
    failed = server._calls.failed
    last = max([server._calls.last_started, *[since_epoch(one.reader.last_opened) for one in connections]])
    return channelz_pb2.Server(
        ref=channelz_pb2.ServerRef(server_id=server._id, name=", ".join(server.addresses)),
        data=channelz_pb2.ServerData(
            trace=_trace(server._events),
            calls_started=started,
            calls_succeeded=started - failed - open_calls,
            calls_failed=failed,
            last_call_started_timestamp=_timestamp(last),
        ),
        listen_socket=[_listener_ref(id_, one) for id_, one in server._listener_ids.items()],
    )


def connection_ref(connection: Connection) -> channelz_pb2.SocketRef:
    """Return what names a connection."""
    local, remote = _ends(connection)
    name = f"{_sockets.address_text(local)} -> {_sockets.address_text(remote)}"
    return channelz_pb2.SocketRef(socket_id=connection.id, name=name)


def connection_message(connection: Connection, *, summary: bool) -> channelz_pb2.Socket:
    """Return what there is to tell of a connection; a summary leaves out the options of its socket."""
    local, remote = _ends(connection)
    message = channelz_pb2.Socket(
        ref=connection_ref(connection),
        data=_connection_data(connection),
        local=local,
        remote=remote,
        remote_name=connection.peer,
    )
    tls = connection.table.tls
    if tls is not None:
        # Python does not tell which certificate of our own was used.
        message.security.tls.remote_certificate = tls.peer_certificate_der or b""
        if tls.cipher.startswith(_STANDARD):
            message.security.tls.standard_name = tls.cipher
        else:
            message.security.tls.other_name = tls.cipher
    if not summary and connection.socket is not None:
        message.data.option.extend(_sockets.socket_options(connection.socket))
    return message


def listener_message(id_: int, listener: Listener) -> channelz_pb2.Socket:
    """Return what there is to tell of what a server listens on."""
    sock = getattr(listener, "socket", None)
    local = None if sock is None else _sockets.local_address(sock)
    return channelz_pb2.Socket(
        ref=_listener_ref(id_, listener), local=local or _sockets.named_address(_listener_name(listener))
    )


def _connection_data(connection: Connection) -> channelz_pb2.SocketData:
    table, reader, writer = connection.table, connection.reader, connection.writer
    streams = table.streams.values()
    if connection.side is Side.CLIENT:
        # Each stream takes the next odd id.
        started = (writer.last_stream_id + 1) // 2
        open_streams = sum(not stream.remote_closed for stream in streams)
    else:
        started = table.opened
        open_streams = sum(not stream.local_closed for stream in streams)
    data = channelz_pb2.SocketData(
        streams_started=started,
        streams_succeeded=started - table.failed - open_streams,
        streams_failed=table.failed,
        messages_sent=connection.control_buffer.messages,
        messages_received=reader.messages,
        keep_alives_sent=connection.keepalive_pings,
        last_local_stream_created_timestamp=_timestamp(max(table.last_opened, table.last_background)),
        last_remote_stream_created_timestamp=_timestamp(since_epoch(reader.last_opened)),
        last_message_sent_timestamp=_timestamp(writer.last_message),
        last_message_received_timestamp=_timestamp(since_epoch(reader.last_message)),
    )
    data.local_flow_control_window.value = connection.outgoing.connection
    data.remote_flow_control_window.value = connection.incoming.connection
    return data


def _attempts(subchannel: Subchannel) -> CallCounts:
    """Return what all attempts on a subchannel have come to so far."""
    tables = [connection.table for connection in subchannel._running]
    calls = CallCounts()
    calls.started = subchannel._calls.started + sum(table.opened for table in tables)
    calls.succeeded = subchannel._calls.succeeded
    calls.failed = subchannel._calls.failed
    calls.last_started = max([subchannel._calls.last_started, *[table.last_opened for table in tables]])
    return calls


def _channel_data(
    state: ConnectivityState, target: str, events: EventLog, calls: CallCounts
) -> channelz_pb2.ChannelData:
    return channelz_pb2.ChannelData(
        state=channelz_pb2.ChannelConnectivityState(state=state.name),
        target=target,
        trace=_trace(events),
        calls_started=calls.started,
        calls_succeeded=calls.succeeded,
        calls_failed=calls.failed,
        last_call_started_timestamp=_timestamp(calls.last_started),
    )


def _trace(events: EventLog) -> channelz_pb2.ChannelTrace:
    return channelz_pb2.ChannelTrace(
        num_events_logged=events.count,
        creation_timestamp=_timestamp(events.created),
        events=[
            channelz_pb2.ChannelTraceEvent(
                description=event.text,
                severity="CT_WARNING" if event.warning else "CT_INFO",
                timestamp=_timestamp(event.time),
                subchannel_ref=None if event.subchannel is None else _subchannel_ref(*event.subchannel),
            )
            for event in events.events
        ],
    )


def _subchannel_ref(id_: int, name: str) -> channelz_pb2.SubchannelRef:
    return channelz_pb2.SubchannelRef(subchannel_id=id_, name=name)


def _listener_ref(id_: int, listener: Listener) -> channelz_pb2.SocketRef:
    return channelz_pb2.SocketRef(socket_id=id_, name=_listener_name(listener))


def _listener_name(listener: Listener) -> str:
    try:
        return listener_name(listener)
    except OSError:
        # A server that drains has closed it.
        return "closed"


def _ends(connection: Connection) -> tuple[channelz_pb2.Address | None, channelz_pb2.Address]:
    sock = connection.socket
    local = None if sock is None else _sockets.local_address(sock)
    remote = None if sock is None else _sockets.remote_address(sock)
    return local, remote or _sockets.named_address(connection.peer)


def _timestamp(seconds: float) -> dict[str, int] | None:
    """Return the fields of a time since the epoch; None where there was none: 0.0 or -inf.

    Not a message: that of `google.protobuf.timestamp_pb2` is of another pool.
    """
    if seconds in (0.0, -inf):
        return None
    whole = int(seconds)
    return {"seconds": whole, "nanos": int((seconds - whole) * 1e9)}


__all__ = [
    "channel_message",
    "connection_message",
    "connection_ref",
    "listener_message",
    "server_message",
    "subchannel_message",
]
