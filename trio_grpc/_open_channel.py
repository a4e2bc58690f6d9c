"""How a channel is made: its options, and their defaults."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from typing import Literal

from trio_grpc._balancing.resolver import Resolver
from trio_grpc._balancing.service_config import ServiceConfigLike
from trio_grpc._channel import IDLE_TIMEOUT, Channel, LoadBalancing, Target
from trio_grpc._codec import Codec, choose_codec
from trio_grpc._compression import Compression
from trio_grpc._credentials import CallCredentialsLike
from trio_grpc._interceptors import ClientInterceptor
from trio_grpc._metadata import MetadataLike
from trio_grpc._options import Keepalive, Limits, option_or_default
from trio_grpc._stub import bind


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
    load_balancing: LoadBalancing | None = None,
    service_config: ServiceConfigLike | None = None,
    service_config_from_dns: bool = False,
    resolvers: Mapping[str, Resolver] | None = None,
    idle_timeout: float | None = IDLE_TIMEOUT,
    interceptors: Iterable[ClientInterceptor] = (),
    credentials: CallCredentialsLike | None = None,
    retries: bool = True,
) -> Channel:
    """Open a channel for the length of an ``async with`` block.

    The channel connects when its first call needs it, and again after a lost connection. All its tasks end with the
    block.

    Args:
        target: ``"host:port"``, ``"dns:///host:port"``, ``"dns://1.2.3.4:53/host:port"``,
            ``"ipv4:1.2.3.4:5,1.2.3.5:5"``, ``"ipv6:[::1]:5"``, ``"unix:path"``, ``"unix-abstract:name"``, a name of one
            of ``resolvers``; or a connected `trio.abc.Stream`, which the channel then owns; or an async callable that
            returns a new one per connection.
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
        codec: turns messages into bytes; default protobuf. A method may have one of its own (`Method.codec`).
        http_proxy: the proxy before the target, as ``"http://user:password@host:port"``; False for none. None: what
            the environment says right now (gRFC A1), which is the first of ``grpc_proxy``, ``https_proxy`` and
            ``http_proxy``, unless ``no_grpc_proxy`` or else ``no_proxy`` names the target. Unix sockets, and streams
            that are not opened by the channel, are never proxied.
        load_balancing: which of the target's addresses calls go to: the name of a policy, such as ``"round_robin"``;
            one with options, such as `RingHash`; or a class of your own made from `LoadBalancingPolicy`. None: what
            the service config says, ``"pick_first"`` where it says nothing.
        service_config: what holds for calls while the resolver publishes no service config: one, or its JSON.
        service_config_from_dns: look up the TXT record ``_grpc_config.host`` (gRFC A2) together with the addresses of
            the target's host; its service config goes before ``service_config``. It takes dnspython.
        resolvers: resolvers by the scheme of the targets that they resolve; they go before the built-in ones.
        idle_timeout: seconds without calls after which the channel lets go of its connections until the next call; at
            least 1 (a smaller one is taken for that), 30 minutes by default as in grpc-go. None: never.
        interceptors: run around every call, the first of them outermost.
        credentials: asked for metadata by each call, such as `BearerToken`; or an async callable that is given a
            `CallInfo` and returns metadata. They take ``ssl_context`` or a unix socket, unless they allow plaintext.
        retries: False turns off the retries and hedges that a service config asks for (C-core's
            ``grpc.enable_retries``). A call that the server has certainly not run is repeated all the same.

    Returns:
        A `Channel`, to be entered with ``async with``.

    Raises:
        ValueError: the target, the metadata or an option is malformed, or there are credentials but no TLS; the message
            names it.
        TypeError: the target or an option is of none of these types.
        ModuleNotFoundError: the target names a name server, or there is ``service_config_from_dns``: both take
            dnspython (``pip install 'trio-grpc[dns]'``).
    """
    return Channel(
        target,
        ssl_context=ssl_context,
        server_hostname=server_hostname,
        authority=authority,
        user_agent=user_agent,
        limits=option_or_default("limits", limits, Limits),
        keepalive=keepalive,
        compression=compression,
        metadata=metadata,
        codec=choose_codec(codec),
        http_proxy=http_proxy,
        load_balancing=load_balancing,
        service_config=service_config,
        service_config_from_dns=service_config_from_dns,
        resolvers=resolvers,
        idle_timeout=idle_timeout,
        interceptors=interceptors,
        credentials=credentials,
        retries=retries,
        make_method=bind,
    )


__all__ = ["open_channel"]
