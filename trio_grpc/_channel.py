"""The channel: the client's handle on a target, and the lifetime of everything behind it."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any, Literal, final

import attrs
import trio

from trio_grpc._balancing.backoff import Backoff
from trio_grpc._balancing.dialer import Address, Dialer, once
from trio_grpc._balancing.http_proxy import ProxyOption, choose_proxy
from trio_grpc._balancing.subchannel import CONNECT_TIMEOUT, Subchannel
from trio_grpc._balancing.target import TcpTarget, parse_target
from trio_grpc._codec import Codec, ProtobufCodec
from trio_grpc._compression import Compression, accept_encoding, compression_name
from trio_grpc._metadata import MetadataLike, encode_metadata
from trio_grpc._options import Keepalive, Limits
from trio_grpc._transport.byte_stream import wrap
from trio_grpc._transport.connection import FAREWELL_TIME, Connection
from trio_grpc._transport.header_codec import HeaderTemplate
from trio_grpc._transport.headers import request_template
from trio_grpc._transport.service_nursery import ServiceNursery
from trio_grpc._transport.side import Side
from trio_grpc._version import USER_AGENT

_logger = logging.getLogger("trio_grpc")

Target = str | trio.abc.Stream | Callable[[], Awaitable[trio.abc.Stream]]


@attrs.frozen
class ChannelStatistics:
    """What a channel holds right now.

    Attributes:
        state: the connectivity state, one of gRPC's five names in lower case.
        connections: live connections, those that are draining included.
        streams: calls on the wire or queued for it.
        waiting: calls that wait for the peer's stream limit.
        control_frames: control frames queued and not yet taken by a writer.
    """

    state: str
    connections: int
    streams: int
    waiting: int
    control_frames: int


@final
class Channel:
    """A gRPC channel; made by `open_channel`.

    An async context manager: its connections live as long as the block. Leaving the block ends calls that are still in
    flight: they raise `trio.ClosedResourceError`.

    Attributes:
        target: what the channel connects to, for messages.
        codec: turns messages into bytes and back.
        limits: what its connections accept, and what calls may send.
    """

    def __init__(
        self,
        target: Target,
        *,
        ssl_context: ssl.SSLContext | None,
        server_hostname: str | None,
        authority: str | None,
        user_agent: str | None,
        limits: Limits,
        keepalive: Keepalive | None,
        compression: Compression | str | None,
        metadata: MetadataLike | None,
        codec: Codec,
        http_proxy: ProxyOption,
    ) -> None:
        if keepalive is not None and not isinstance(keepalive, Keepalive):
            raise TypeError(f"keepalive must be Keepalive or None, not {type(keepalive).__name__}")
        self._address: Address
        self.target: str
        tcp_target: TcpTarget | None = None
        hostname = "localhost"
        default_authority = "localhost"
        if isinstance(target, str):
            address = parse_target(target)
            self.target = str(address)
            if isinstance(address, TcpTarget):
                hostname = address.host
                default_authority = str(address)
                tcp_target = address
            self._address = address
        elif isinstance(target, trio.abc.Stream):
            self.target = type(target).__name__
            self._address = once(target)
        elif callable(target):
            self.target = getattr(target, "__qualname__", None) or type(target).__name__
            self._address = target
        else:
            raise TypeError(f"target must be str, trio.abc.Stream or an async callable, not {type(target).__name__}")
        self._dialer = Dialer(
            ssl_context, server_hostname or hostname, choose_proxy(tcp_target, http_proxy, os.environ)
        )
        self._scheme = "http" if ssl_context is None else "https"
        self._authority = authority or default_authority
        self._user_agent = f"{user_agent} {USER_AGENT}" if user_agent else USER_AGENT
        self.limits = limits
        self._keepalive = keepalive
        self.codec = codec
        #: The wire name of ``compression=``, for the rooms above.
        self._default_encoding: str = "identity" if compression is None else compression_name(compression)
        self._metadata = encode_metadata(metadata)
        self._services = ServiceNursery(self._farewell, 2 * FAREWELL_TIME)
        self._subchannel = Subchannel(self._dialer.describe(self.target), self._connect, self._services, Backoff())
        self._entered = False
        self._heads: dict[tuple[str, str], HeaderTemplate] = {}

    # -- lifetime

    async def __aenter__(self) -> Channel:
        if self._entered:
            raise RuntimeError("a channel can be entered only once")
        self._entered = True
        await self._services.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._services.closing = True
        await self._services.__aexit__(exc_type, exc_value, traceback)

    async def aclose(self) -> None:
        """Close early: end all calls with `trio.ClosedResourceError`, say goodbye, wait for the connections to end.

        Idempotent; leaving the block does the same.
        """
        self._services.closing = True
        await self._farewell()
        await trio.lowlevel.checkpoint()

    @property
    def closed(self) -> bool:
        """Whether `aclose` was called or the block was left."""
        return self._services.closing

    async def _farewell(self) -> None:
        self._subchannel.shut_down()
        connections = tuple(self._subchannel.connections)
        with trio.move_on_after(FAREWELL_TIME):
            async with trio.open_nursery() as nursery:
                for connection in connections:
                    nursery.start_soon(connection.aclose)

    def statistics(self) -> ChannelStatistics:
        """Return what the channel holds right now."""
        connections = self._subchannel.connections
        return ChannelStatistics(
            state=self._subchannel.state.value,
            connections=len(connections),
            streams=sum(connection.table.slots_used for connection in connections),
            waiting=sum(connection.table.waiting for connection in connections),
            control_frames=sum(connection.control_buffer.pending_frames for connection in connections),
        )

    def __repr__(self) -> str:
        return f"<Channel to {self.target}, {self._subchannel.state.value}>"

    # -- for the rooms above (one RPC); private, so that what users see does not drag in the transport

    def _connection_nowait(self) -> Connection | None:
        """Return the connection for a new call if there is one right now."""
        return self._subchannel.connection

    async def _wait_connection(self, wait_for_ready: bool) -> Connection:
        """Return a connection for a new call, see `Subchannel.wait_connection`."""
        if not self._entered and not self.closed:
            raise RuntimeError("the channel is not open: use 'async with trio_grpc.open_channel(...) as channel'")
        return await self._subchannel.wait_connection(wait_for_ready)

    def _request_head(self, path: str, encoding: str) -> HeaderTemplate:
        """Return the header fields that all requests of one method share.

        One object per method and encoding, however many stubs there are: encoders remember templates by identity.
        """
        head = self._heads.get((path, encoding))
        if head is None:
            head = self._heads[path, encoding] = self._make_request_head(path, encoding)
        return head

    def _make_request_head(self, path: str, encoding: str) -> HeaderTemplate:
        content_type = "application/grpc" if self.codec.name == "proto" else f"application/grpc+{self.codec.name}"
        return HeaderTemplate(
            (
                *request_template(
                    path,
                    self._authority,
                    self._scheme,
                    self._user_agent,
                    content_type,
                    encoding,
                    accept_encoding(),
                ),
                *self._metadata,
            )
        )

    def _start_service(self, async_fn: Callable[..., Awaitable[object]], *args: Any) -> trio.CancelScope:
        """Run a background task of one RPC for as long as the channel lives, at most."""
        return self._services.start_soon(async_fn, *args)

    # -- connecting

    async def _connect(self, on_draining: Callable[[], None]) -> Connection:
        return Connection(
            Side.CLIENT,
            wrap(await self._dialer.dial(self._address)),
            self.limits,
            peer=self.target,
            handshake_timeout=CONNECT_TIMEOUT,
            on_draining=on_draining,
            keepalive=self._keepalive,
            on_too_many_pings=partial(self._slow_down, self._keepalive),
        )

    def _slow_down(self, used: Keepalive | None) -> None:
        """A server has said ``too_many_pings`` to a connection that used this: new ones ask half as often (gRFC A8)."""
        if used is None or self._keepalive is None:
            return
        # Two connections with the same fault are one fault.
        time = max(self._keepalive.time, 2 * used.time)
        if time > self._keepalive.time:
            self._keepalive = attrs.evolve(self._keepalive, time=time)
            _logger.warning("keepalive of new connections to %s: every %g s", self.target, time)


def open_channel(
    target: Target,
    *,
    ssl_context: ssl.SSLContext | None = None,
    server_hostname: str | None = None,
    authority: str | None = None,
    user_agent: str | None = None,
    limits: Limits | None = None,
    keepalive: Keepalive | None = None,
    compression: Compression | str | None = None,
    metadata: MetadataLike | None = None,
    codec: Codec | None = None,
    http_proxy: str | Literal[False] | None = None,
) -> Channel:
    """Open a channel for the length of an ``async with`` block.

    The channel connects when its first call needs it, and again after a lost connection. All its tasks end with the
    block.

    Args:
        target: ``"host:port"``, ``"dns:///host:port"``, ``"ipv4:1.2.3.4:5"``, ``"unix:path"``; or a connected
            `trio.abc.Stream`, which the channel then owns; or an async callable that returns a new one per connection.
        ssl_context: TLS with this context, e.g. from `ssl.create_default_context`. Its ALPN protocols are set to
            ``h2``, which the peer must select (RFC 9113, 3.2). None: plaintext.
        server_hostname: the name that the peer's certificate must carry, and SNI; default: the target's host.
        authority: the ``:authority`` pseudo-header; default: the target's ``host:port``, ``localhost`` for unix
            sockets and streams.
        user_agent: the application's own part of the ``user-agent``, put in front of ours.
        limits: what the channel accepts; default `Limits`.
        keepalive: when to ask whether a quiet server is still there; None for never.
        compression: algorithm for requests; per call, ``compression=`` overrides it.
        metadata: metadata sent with every call.
        codec: turns messages into bytes; default protobuf.
        http_proxy: the proxy before the target, as ``"http://user:password@host:port"``; False for none. None: what
            the environment says right now (gRFC A1), which is the first of ``grpc_proxy``, ``https_proxy`` and
            ``http_proxy``, unless ``no_grpc_proxy`` or else ``no_proxy`` names the target. Unix sockets, and streams
            that are not opened by the channel, are never proxied.

    Returns:
        A `Channel`, to be entered with ``async with``.

    Raises:
        ValueError: the target, the metadata or the URL of the proxy is malformed.
        TypeError: the target is of none of these types, or an option is of the wrong type.
    """
    return Channel(
        target,
        ssl_context=ssl_context,
        server_hostname=server_hostname,
        authority=authority,
        user_agent=user_agent,
        limits=limits if limits is not None else Limits(),
        keepalive=keepalive,
        compression=compression,
        metadata=metadata,
        codec=codec if codec is not None else ProtobufCodec(),
        http_proxy=http_proxy,
    )


__all__ = ["Channel", "ChannelStatistics", "Target", "open_channel"]
