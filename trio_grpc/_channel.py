"""The channel: the client's handle on a target, and the lifetime of everything behind it."""

from __future__ import annotations

import logging
import os
import ssl
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from math import inf, isnan
from types import TracebackType
from typing import Any, final

import attrs
import trio

from trio_grpc._balancing.backoff import Backoff
from trio_grpc._balancing.balancer import Balancer
from trio_grpc._balancing.connectivity import ConnectivityState
from trio_grpc._balancing.dialer import Dialer, once
from trio_grpc._balancing.endpoint import Endpoint
from trio_grpc._balancing.http_proxy import HttpProxy, ProxyOption, choose_proxy
from trio_grpc._balancing.naming import Name, resolve_name, static_name, unresolved
from trio_grpc._balancing.policies import PolicyName, policy_by_name
from trio_grpc._balancing.policy import PickInfo, PolicyFactory, check_factory
from trio_grpc._balancing.resolver import Resolver
from trio_grpc._balancing.service_config import UNRESOLVED, ServiceConfig, ServiceConfigLike, to_service_config
from trio_grpc._balancing.subchannel import CONNECT_TIMEOUT
from trio_grpc._balancing.target import DEFAULT_PORT, TcpTarget
from trio_grpc._call_counts import CallCounts
from trio_grpc._codec import Codec
from trio_grpc._compression import Compression, accept_encoding, compression_name
from trio_grpc._credentials import Attacher, CallCredentialsLike
from trio_grpc._event_log import EventLog
from trio_grpc._interceptors import ClientInterceptor, check_interceptors
from trio_grpc._metadata import MetadataLike, encode_metadata
from trio_grpc._method import Cardinality, Method
from trio_grpc._options import Keepalive, Limits, check_ascii, check_async_callable, check_kind, check_text, name_of
from trio_grpc._plain_codecs import FunctionCodec
from trio_grpc._registry import channels as open_channels
from trio_grpc._registry import new_id
from trio_grpc._retry import RetryThrottle
from trio_grpc._transport.byte_stream import wrap
from trio_grpc._transport.connection import FAREWELL_TIME, Connection
from trio_grpc._transport.header_codec import HeaderTemplate
from trio_grpc._transport.headers import content_type_of, request_template
from trio_grpc._transport.service_nursery import ServiceNursery
from trio_grpc._transport.side import Side
from trio_grpc._transport.timers import Timer, keep_task
from trio_grpc._transport.tls import tls_info
from trio_grpc._version import USER_AGENT

_logger = logging.getLogger("trio_grpc")

Target = str | trio.abc.Stream | Callable[[], Awaitable[trio.abc.Stream]]
#: What ``load_balancing=`` takes: a name, or what makes the policy of a channel.
LoadBalancing = PolicyName | PolicyFactory

#: Seconds without calls after which a channel goes IDLE (grpc-go's default), and the least that it may be (C-core's).
IDLE_TIMEOUT = 1800.0
_LEAST_IDLE_TIMEOUT = 1.0


@attrs.frozen
class ChannelStatistics:
    """What a channel holds right now.

    Attributes:
        state: the connectivity state, one of gRPC's five names in lower case.
        connections: live connections to all backends, those that are draining included.
        streams: calls on the wire or queued for it.
        waiting: calls that wait for a peer's stream limit.
        control_frames: control frames queued and not yet taken by a writer.
        unconnected: calls that wait for a connection.
    """

    state: str
    connections: int
    streams: int
    waiting: int
    control_frames: int
    unconnected: int = 0


@final
class Channel:
    """A gRPC channel; made by `open_channel`.

    An async context manager: its connections live as long as the block. Leaving the block ends calls that are still in
    flight: they raise `trio.ClosedResourceError`. A channel that is entered by hand and dropped takes a nursery along,
    which trio answers with a RuntimeError; a `ResourceWarning` then names the channel.

    Attributes:
        target: what the channel connects to, for messages.
        codec: turns messages into bytes and back.
        limits: what its connections accept, and what calls may send.
    """

    # Of the class: `__del__` looks at it also where `__init__` was called in a wrong way.
    _entered = False

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
        load_balancing: LoadBalancing | None,
        service_config: ServiceConfigLike | None,
        service_config_from_dns: bool,
        resolvers: Mapping[str, Resolver] | None,
        idle_timeout: float | None,
        interceptors: Iterable[ClientInterceptor],
        credentials: CallCredentialsLike | None,
        retries: bool,
        make_method: Callable[[Channel, Method[Any, Any]], Any],
    ) -> None:
        if keepalive is not None:
            check_kind("keepalive", keepalive, Keepalive, " or None")
        if ssl_context is not None:
            check_kind("ssl_context", ssl_context, ssl.SSLContext, " or None")
        if server_hostname is not None:
            check_text("server_hostname", server_hostname)
            if ssl_context is None:
                raise ValueError("server_hostname is for TLS: it needs an ssl_context")
        if authority is not None:
            check_ascii("authority", authority)
        if user_agent is not None:
            check_ascii("user_agent", user_agent)
        check_kind("service_config_from_dns", service_config_from_dns, bool)
        name = _name_of(target, resolvers, service_config_from_dns)
        proxy = _proxy_of(name, http_proxy)
        if proxy is not None:
            name = unresolved(name)
        self.target: str = name.text
        self._dialer = Dialer(ssl_context, server_hostname or name.hostname, proxy)
        self._scheme = "http" if ssl_context is None else "https"
        self._authority = authority or name.authority
        self._user_agent = f"{user_agent} {USER_AGENT}" if user_agent else USER_AGENT
        self.limits = limits
        self._keepalive = keepalive
        self.codec = codec
        #: Makes what the attributes of a stub are: the rooms above know how.
        self._make_method = make_method
        #: The wire name of ``compression=``, for the rooms above.
        self._default_encoding: str = "identity" if compression is None else compression_name(compression)
        self._metadata = encode_metadata(metadata)
        self._interceptors = check_interceptors(interceptors)
        #: Makes what attaches credentials to calls. As gRPC's local credentials, a unix socket needs no TLS.
        self._attacher = Attacher(
            self.target, secure=ssl_context is not None or name.local, scheme=self._scheme, authority=self._authority
        )
        if credentials is not None:
            self._use_credentials(credentials)
        #: What calls look at: one attribute for all of it, None where there is none.
        self._service_config: ServiceConfig | None = None
        self._retry_throttle: RetryThrottle | None = None
        default_config = None if service_config is None else to_service_config(service_config)
        self._use_config(default_config)
        if name.custom or service_config_from_dns:
            # As in all of gRPC, calls wait for what the resolver says of them.
            self._service_config = UNRESOLVED
        #: Bytes that calls keep to send them again.
        self._retry_bytes = 0
        self._retries = check_kind("retries", retries, bool)
        self._id: int = new_id()
        self._events = EventLog()
        #: ``succeeded`` without those on subchannels that there are: an attempt that succeeds is a call that does.
        self._calls: CallCounts = CallCounts()
        self._services = ServiceNursery(self._farewell, 2 * FAREWELL_TIME)
        self._balancer = Balancer(
            name,
            _policy_of(load_balancing),
            self._connect,
            self._describe,
            self._services,
            request_head=self._own_request_head,
            backoff=Backoff(),
            idle_timeout=_check_idle_timeout(idle_timeout),
            default_config=default_config,
            on_config=self._use_config,
            events=self._events,
            calls=self._calls,
        )
        #: Put between each connection and its bytes, above TLS: for those who look at frames.
        self._tap: Callable[[trio.abc.Stream], trio.abc.Stream] | None = None
        #: Calls with a timeout would otherwise start it and end it, where they come one after the other.
        self._timer_task: Timer
        self._own_stream = target if isinstance(target, trio.abc.Stream) else None
        self._heads: dict[tuple[str, str, str], HeaderTemplate] = {}

    # -- lifetime

    async def __aenter__(self) -> Channel:
        if self._entered:
            raise RuntimeError("a channel can be entered only once")
        self._entered = True
        await self._services.__aenter__()
        open_channels.enter(self._id, self)
        self._timer_task = keep_task()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._services.closing = True
        self._timer_task.cancel()
        try:
            await self._services.__aexit__(exc_type, exc_value, traceback)
        finally:
            open_channels.leave(self._id)

    async def aclose(self) -> None:
        """Close early: end all calls with `trio.ClosedResourceError`, say goodbye, wait for the connections to end.

        Idempotent; leaving the block does the same.
        """
        self._services.closing = True
        await self._farewell()
        await trio.lowlevel.checkpoint()

    def __del__(self) -> None:
        if self._entered and not self.closed:
            # Its nursery was not left either: trio raises RuntimeError, but cannot tell whose it was.
            warnings.warn(
                f"{self!r} was entered and never left: use 'async with trio_grpc.open_channel(...) as channel'",
                ResourceWarning,
                stacklevel=1,
                source=self,
            )

    @property
    def closed(self) -> bool:
        """Whether `aclose` was called or the block was left."""
        return self._services.closing

    async def _farewell(self) -> None:
        self._balancer.shut_down()
        connections = tuple(self._balancer.connections)
        with trio.move_on_after(FAREWELL_TIME):
            async with trio.open_nursery() as nursery:
                for connection in connections:
                    nursery.start_soon(connection.aclose)
        if self._own_stream is not None:
            # No call may ever have used it.
            await trio.aclose_forcefully(self._own_stream)

    def statistics(self) -> ChannelStatistics:
        """Return what the channel holds right now."""
        connections = self._balancer.connections
        return ChannelStatistics(
            state=self.state.value,
            connections=len(connections),
            streams=sum(connection.table.slots_used for connection in connections),
            waiting=sum(connection.table.waiting for connection in connections),
            control_frames=sum(connection.control_buffer.pending_frames for connection in connections),
            unconnected=self._balancer.waiting,
        )

    # -- connectivity

    @property
    def state(self) -> ConnectivityState:
        """The connectivity state right now."""
        return self._balancer.connectivity.state

    def connect(self) -> None:
        """Leave IDLE now, without a call; in other states nothing happens.

        Raises:
            trio.ClosedResourceError: the channel is closed.
            RuntimeError: it has not been entered.
        """
        self._check_open()
        self._balancer.connect()

    async def wait_ready(self) -> None:
        """Connect, and wait until the channel is READY. Failed attempts are waited through; bound it by a cancel scope.

        Raises:
            trio.ClosedResourceError: the channel is closed.
            RuntimeError: it has not been entered.
        """
        while True:
            self.connect()
            state = self.state
            if state is ConnectivityState.READY:
                await trio.lowlevel.checkpoint()
                return
            await self._balancer.connectivity.wait_for_change(state)

    async def wait_for_state_change(self, last: ConnectivityState) -> ConnectivityState:
        """Wait until the state is another than ``last``; return it. States that come and go quickly may be missed.

        Args:
            last: the state that the caller knows of, from `state` or from here.

        Raises:
            trio.ClosedResourceError: ``last`` is SHUTDOWN, which never changes.
            TypeError: ``last`` is no `ConnectivityState`.
        """
        check_kind("last", last, ConnectivityState)
        return await self._balancer.connectivity.wait_for_change(last)

    def __repr__(self) -> str:
        return f"<Channel to {self.target}, {self.state.value}>"

    # -- for stubs that grpcio's code generator has made: x_pb2_grpc.XStub(channel)

    def unary_unary(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """Return what calls a method with one request and one response, a `UnaryUnaryMethod`.

        Stubs that grpcio has generated call this, with the arguments of `grpc.aio.Channel`. It serves just as well
        where there is no generated code at all.

        Args:
            method: the path, as ``/package.Service/Method``.
            request_serializer: takes a request and returns its bytes; None for requests that are bytes.
            response_deserializer: takes bytes and returns a response; None for responses that stay bytes.
            _registered_method: has no effect.

        Raises:
            ValueError: that is no path of a method.
            TypeError: an argument is of another type.
        """
        return self._bind(Cardinality.UNARY_UNARY, method, request_serializer, response_deserializer)

    def unary_stream(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """Return what calls a method with a stream of responses, a `UnaryStreamMethod`. See `unary_unary`."""
        return self._bind(Cardinality.UNARY_STREAM, method, request_serializer, response_deserializer)

    def stream_unary(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """Return what calls a method with a stream of requests, a `StreamUnaryMethod`. See `unary_unary`."""
        return self._bind(Cardinality.STREAM_UNARY, method, request_serializer, response_deserializer)

    def stream_stream(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """Return what calls a method with a stream each way, a `StreamStreamMethod`. See `unary_unary`."""
        return self._bind(Cardinality.STREAM_STREAM, method, request_serializer, response_deserializer)

    def _bind(
        self,
        cardinality: Cardinality,
        path: str,
        serializer: Callable[[Any], bytes] | None,
        deserializer: Callable[[bytes], Any] | None,
    ) -> Any:
        codec = FunctionCodec(serializer, deserializer)
        return self._make_method(self, Method.at(path, cardinality, codec=codec))

    # -- for the rooms above (one RPC); private, so that what users see does not drag in the transport

    def _connection_nowait(self) -> Connection | None:
        """Return the connection for a new call where all go to one. Each call asks: nothing is dearer than need be."""
        return self._balancer.connection

    def _pick_nowait(self, info: PickInfo) -> Connection | None:
        """Return a connection for an attempt of a call if there is one right now."""
        return self._balancer.pick_nowait(info)

    async def _wait_connection(self, info: PickInfo, wait_for_ready: bool) -> Connection:
        """Return a connection for an attempt of a call, see `Balancer.wait_connection`."""
        if not self.closed:
            self._check_open()
        return await self._balancer.wait_connection(info, wait_for_ready)

    async def _wait_resolved(self, wait_for_ready: bool) -> None:
        """Wait while the service config is `UNRESOLVED` and a call may wait, see `Balancer.wait_resolved`."""
        if not self.closed:
            self._check_open()
        await self._balancer.wait_resolved(wait_for_ready)

    def _unready_reason(self) -> str:
        """Return why a call would have to wait for a connection right now, empty if it would not."""
        return self._balancer.unready_reason()

    def _full_reason(self) -> str:
        """Return which peers take no more streams right now, empty if all do."""
        return self._balancer.full_reason()

    async def _sleep(self, seconds: float) -> None:
        """Sleep between two attempts of a call.

        Raises:
            trio.ClosedResourceError: the channel was closed.
        """
        with trio.move_on_after(seconds):
            state = self.state
            while True:
                state = await self._balancer.connectivity.wait_for_change(state)

    def _check_open(self) -> None:
        if self.closed:
            raise trio.ClosedResourceError("channel closed")
        if not self._entered:
            raise RuntimeError("the channel is not open: use 'async with trio_grpc.open_channel(...) as channel'")

    def _request_head(self, path: str, encoding: str, codec: str) -> HeaderTemplate:
        """Return the header fields that all requests of one method share.

        One object per method, encoding and codec, however many stubs there are: encoders remember templates by
        identity.
        """
        key = (path, encoding, codec)
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = self._make_request_head(path, encoding, codec)
        return head

    def _own_request_head(self, path: str) -> HeaderTemplate:
        """Return the header fields of a call that the channel makes for itself: protobuf, whatever its codec is."""
        return self._make_request_head(path, "identity", "proto")

    def _make_request_head(self, path: str, encoding: str, codec: str) -> HeaderTemplate:
        return HeaderTemplate(
            (
                *request_template(
                    path,
                    self._authority,
                    self._scheme,
                    self._user_agent,
                    content_type_of(codec),
                    encoding,
                    accept_encoding(),
                ),
                *self._metadata,
            )
        )

    def _use_config(self, config: ServiceConfig | None) -> None:
        """From now on this holds for calls."""
        self._service_config = config
        throttling = None if config is None else config.retry_throttling
        self._retry_throttle = RetryThrottle.of(throttling, self._retry_throttle)

    def _use_credentials(self, credentials: CallCredentialsLike) -> None:
        """Attach credentials to all calls of stubs that are made from now on."""
        self._interceptors = (*self._interceptors, self._attacher.attach(credentials))

    # -- connecting

    async def _connect(self, endpoint: Endpoint, on_draining: Callable[[], None]) -> Connection:
        stream = await self._dialer.dial(endpoint._dialled)
        # Before it is wrapped: that takes the socket out of a plain one.
        tls = tls_info(stream)
        if self._tap is not None:
            stream = self._tap(stream)
        return Connection(
            Side.CLIENT,
            wrap(stream),
            self.limits,
            peer=endpoint.address,
            handshake_timeout=CONNECT_TIMEOUT,
            on_draining=on_draining,
            keepalive=self._keepalive,
            on_too_many_pings=partial(self._slow_down, self._keepalive),
            tls=tls,
        )

    def _describe(self, endpoint: Endpoint) -> str:
        """Return what errors about connecting to an endpoint call it."""
        return self._dialer.describe(endpoint._dialled, endpoint.address)

    def _slow_down(self, used: Keepalive | None) -> None:
        """A server has said ``too_many_pings`` to a connection that used this: new ones ask half as often (gRFC A8)."""
        if used is None or self._keepalive is None:
            return
        # Two connections with the same fault are one fault.
        time = max(self._keepalive.time, 2 * used.time)
        if time > self._keepalive.time:
            self._keepalive = attrs.evolve(self._keepalive, time=time)
            _logger.warning("keepalive of new connections to %s: every %g s", self.target, time)


def _name_of(target: Target, resolvers: Mapping[str, Resolver] | None, service_config_from_dns: bool) -> Name:
    if resolvers is not None and not isinstance(resolvers, Mapping):
        raise TypeError(f"resolvers must be a mapping of schemes, not {type(resolvers).__name__}")
    schemes = {} if resolvers is None else dict(resolvers)
    for scheme, resolver in schemes.items():
        check_async_callable(f"resolvers[{scheme!r}]", resolver)
    if isinstance(target, str):
        return resolve_name(target, schemes, service_config_from_dns=service_config_from_dns)
    if isinstance(target, trio.abc.Stream):
        return static_name(Endpoint(type(target).__name__, connect=once(target)))
    if not callable(target):
        raise TypeError(f"target must be str, trio.abc.Stream or an async callable, not {type(target).__name__}")
    check_async_callable("target", target, ", str or trio.abc.Stream")
    return static_name(Endpoint(name_of(target), connect=target))


def _proxy_of(name: Name, option: ProxyOption) -> HttpProxy | None:
    if name.custom:
        # Where the user's own resolver leads, the environment knows nothing of. A proxy that is named holds for all.
        return choose_proxy(TcpTarget(name.hostname, DEFAULT_PORT), option, {})
    return choose_proxy(name.address, option, os.environ)


def _policy_of(load_balancing: LoadBalancing | None) -> PolicyFactory | None:
    if isinstance(load_balancing, str):
        try:
            return policy_by_name(load_balancing)
        except ValueError as error:
            raise ValueError(f"load_balancing: {error}") from error
    if load_balancing is None:
        return None
    return check_factory("load_balancing", load_balancing, "str, a policy or None")


def _check_idle_timeout(idle_timeout: object) -> float:
    if idle_timeout is None:
        return inf
    if not isinstance(idle_timeout, int | float) or isinstance(idle_timeout, bool):
        raise TypeError(f"idle_timeout must be a number of seconds or None, not {type(idle_timeout).__name__}")
    if isnan(idle_timeout) or idle_timeout <= 0:
        raise ValueError(f"idle_timeout must be a positive number of seconds or None, got {idle_timeout}")
    return max(float(idle_timeout), _LEAST_IDLE_TIMEOUT)


__all__ = ["Channel", "ChannelStatistics", "LoadBalancing", "Target"]
