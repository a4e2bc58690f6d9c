"""A real client and a real server joined in memory, for test suites."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from math import inf
from types import TracebackType
from typing import Any

import attrs
import trio

from trio_grpc._balancing.service_config import ServiceConfigLike
from trio_grpc._channel import Channel
from trio_grpc._codec import Codec
from trio_grpc._compression import Compression
from trio_grpc._credentials import CallCredentialsLike
from trio_grpc._interceptors import ClientInterceptor
from trio_grpc._metadata import MetadataLike
from trio_grpc._open_channel import open_channel
from trio_grpc._options import ConnectionLifetime, Keepalive, KeepaliveEnforcement, Limits, ServerKeepalive
from trio_grpc._server import Server, serve
from trio_grpc._servicer import ServerInterceptor, Servicer
from trio_grpc._transport.service_nursery import ServiceNursery
from trio_grpc.testing._faults import Faults
from trio_grpc.testing._memory_listener import MemoryListener


class ChannelPair:
    """A channel and the server at its other end; made by `open_channel_pair`."""

    def __init__(
        self,
        servicers: tuple[Servicer, ...],
        *,
        limits: Limits | None,
        server_limits: Limits | None,
        keepalive: Keepalive | None,
        server_keepalive: ServerKeepalive | None,
        keepalive_enforcement: KeepaliveEnforcement | None,
        connection_lifetime: ConnectionLifetime | None,
        codec: Codec | None,
        compression: Compression | str | None,
        server_compression: Compression | str | None,
        metadata: MetadataLike | None,
        service_config: ServiceConfigLike | None,
        sockets: bool,
        faults: Faults | None,
        server_ssl_context: ssl.SSLContext | None,
        ssl_context: ssl.SSLContext | None,
        server_hostname: str | None,
        interceptors: Iterable[ClientInterceptor],
        server_interceptors: Iterable[ServerInterceptor],
        credentials: CallCredentialsLike | None,
        retries: bool,
    ) -> None:
        # Bandwidth probes are timers of a kind, and a virtual clock has no bandwidth: off unless asked for. So is the
        # server's keepalive, a test that hangs must not spin it, and the timer of idle channels.
        quiet = Limits(adaptive_window=False)
        limits = quiet if limits is None else limits
        self._listener = MemoryListener(sockets=sockets, faults=faults)
        self._servicers = servicers
        self._serve_options: dict[str, Any] = {
            "limits": limits if server_limits is None else server_limits,
            "keepalive": ServerKeepalive(time=inf) if server_keepalive is None else server_keepalive,
            "keepalive_enforcement": keepalive_enforcement,
            "connection_lifetime": connection_lifetime,
            "codec": codec,
            "compression": server_compression,
            "ssl_context": server_ssl_context,
            "interceptors": server_interceptors,
        }
        self._services = ServiceNursery(self._farewell, 2.0)
        self._channel = open_channel(
            self._listener.connect,
            limits=limits,
            keepalive=keepalive,
            codec=codec,
            compression=compression,
            metadata=metadata,
            service_config=service_config,
            ssl_context=ssl_context,
            server_hostname=server_hostname,
            idle_timeout=None,
            interceptors=interceptors,
            retries=retries,
        )
        # Nobody reads along within a process.
        self._channel._attacher.secure = True
        if credentials is not None:
            self._channel._use_credentials(credentials)
        self._scope = trio.CancelScope()
        self._started = _Started()

    async def _farewell(self) -> None:
        self._scope.cancel()
        await self._started.ended.wait()

    async def _serve(self) -> None:
        try:
            with self._scope:
                # A server without any is of use in tests: no call to it is answered with anything but UNIMPLEMENTED.
                servicers = self._servicers or (Servicer(),)
                await serve(servicers, self._listener, task_status=self._started, **self._serve_options)
        except Exception as error:
            self._started.error = error
        finally:
            self._started.ready.set()
            self._started.ended.set()

    async def __aenter__(self) -> tuple[Channel, Server]:
        await self._services.__aenter__()
        try:
            self._services.start_soon(self._serve)
            await self._started.ready.wait()
            if self._started.server is None:
                assert self._started.error is not None
                raise self._started.error
            await self._channel.__aenter__()
        except BaseException as error:
            await self._services.__aexit__(type(error), error, error.__traceback__)
            raise
        return self._channel, self._started.server

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._channel.__aexit__(exc_type, exc_value, traceback)
        finally:
            await self._services.__aexit__(exc_type, exc_value, traceback)


@attrs.define(eq=False)
class _Started(trio.TaskStatus[Server]):
    """Takes the server that `serve` starts, without a nursery of the user's."""

    server: Server | None = None
    error: Exception | None = None
    ready: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)

    def started(self, value: Any = None) -> None:
        self.server = value
        self.ready.set()


def open_channel_pair(
    *servicers: Servicer,
    limits: Limits | None = None,
    server_limits: Limits | None = None,
    keepalive: Keepalive | None = None,
    server_keepalive: ServerKeepalive | None = None,
    keepalive_enforcement: KeepaliveEnforcement | None = None,
    connection_lifetime: ConnectionLifetime | None = None,
    codec: Codec | None = None,
    compression: Compression | str | None = None,
    server_compression: Compression | str | None = None,
    metadata: MetadataLike | None = None,
    service_config: ServiceConfigLike | None = None,
    sockets: bool = False,
    faults: Faults | None = None,
    server_ssl_context: ssl.SSLContext | None = None,
    ssl_context: ssl.SSLContext | None = None,
    server_hostname: str | None = None,
    interceptors: Iterable[ClientInterceptor] = (),
    server_interceptors: Iterable[ServerInterceptor] = (),
    credentials: CallCredentialsLike | None = None,
    retries: bool = True,
) -> ChannelPair:
    """Join a real client and a real server in memory, for the length of an ``async with`` block.

    Works under ``autojump_clock``: nothing in it waits in real time. The bandwidth probes of the transport are off
    unless ``limits`` says otherwise, and so is keepalive at both ends.

    A fixture for pytest-trio::

        @pytest.fixture
        async def greeter():
            async with open_channel_pair(Greeter()) as (channel, server):
                yield GreeterStub(channel)

    Args:
        servicers: what the server serves.
        limits: of both ends.
        server_limits: of the server, where they differ.
        keepalive: the client's; default none.
        server_keepalive: the server's; default none.
        keepalive_enforcement: how often the client may ask; default `~trio_grpc.KeepaliveEnforcement`.
        connection_lifetime: how long the server keeps the connection; default for ever.
        codec: of both ends; default protobuf.
        compression: algorithm for requests; default none.
        server_compression: algorithm for responses; default none.
        metadata: what the channel sends with every call.
        service_config: of the channel, see `~trio_grpc.open_channel`.
        sockets: join them by a `socket.socketpair`, the production I/O path, instead of in-memory streams.
        faults: what lies between the two, see `Faults`.
        server_ssl_context: TLS at the server.
        ssl_context: TLS at the client.
        server_hostname: the name that the server's certificate must carry.
        interceptors: of the channel.
        server_interceptors: of the server.
        credentials: of the channel. What it sends stays in this process, so they do not need TLS here.
        retries: of the channel, see `~trio_grpc.open_channel`.

    Returns:
        An async context manager that gives the `Channel` and the `Server`.

    Raises:
        TypeError: an object is no servicer, or an interceptor is not callable.
        ValueError: two servicers implement the same method, there is no such compression, ``metadata`` cannot be
            sent, the service config is wrong, or ``faults`` are given for sockets.
    """
    return ChannelPair(
        servicers,
        limits=limits,
        server_limits=server_limits,
        keepalive=keepalive,
        server_keepalive=server_keepalive,
        keepalive_enforcement=keepalive_enforcement,
        connection_lifetime=connection_lifetime,
        codec=codec,
        compression=compression,
        server_compression=server_compression,
        metadata=metadata,
        service_config=service_config,
        sockets=sockets,
        faults=faults,
        server_ssl_context=server_ssl_context,
        ssl_context=ssl_context,
        server_hostname=server_hostname,
        interceptors=interceptors,
        server_interceptors=server_interceptors,
        credentials=credentials,
        retries=retries,
    )
