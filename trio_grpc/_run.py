"""A whole program that serves: the event loop, a server, and the signals that end both."""

from __future__ import annotations

import logging
import signal
import ssl
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import trio
from trio.lowlevel import checkpoint

from trio_grpc._codec import Codec
from trio_grpc._compression import Compression
from trio_grpc._options import ConnectionLifetime, KeepaliveEnforcement, Limits, ServerKeepalive
from trio_grpc._server import Address, Server, serve
from trio_grpc._servicer import ServerInterceptor, Servicer
from trio_grpc._signals import DEFAULT_GRACE, check_grace, drain_on_signal
from trio_grpc._transport.service_nursery import ServiceNursery

ValueT_contra = TypeVar("ValueT_contra", contravariant=True)

_logger = logging.getLogger("trio_grpc")


def run(
    servicers: Iterable[Servicer],
    address: Address | Sequence[Address],
    *,
    grace: float | None = DEFAULT_GRACE,
    ssl_context: ssl.SSLContext | None = None,
    limits: Limits | None = None,
    keepalive: ServerKeepalive | None = None,
    keepalive_enforcement: KeepaliveEnforcement | None = None,
    connection_lifetime: ConnectionLifetime | None = None,
    compression: Compression | str | None = None,
    codec: Codec | None = None,
    interceptors: Iterable[ServerInterceptor] = (),
    handshake_timeout: float = 120.0,
) -> None:
    """Serve until SIGINT (Ctrl-C) or SIGTERM: a whole program in one call, without a trio of your own around it.

    The first signal drains the server, and `run` returns when that is over. A second signal meanwhile cancels the calls
    that still run, and `run` raises ``SystemExit(128 + number)``, which is how shells report a process that a signal
    has ended. Handlers clean up in both cases; a third signal does not wait for them.

    Where it serves is logged (logger ``trio_grpc``, level INFO), with the real port where 0 was asked for, and so are
    signals. A program that does more than this uses `serve` and `drain_on_signal`.

    Args:
        servicers: as for `serve`, and so are all arguments that are not named here.
        address: as for `serve`.
        grace: seconds after which the drain cancels handlers that still run; None waits for them as long as it takes.
            Default: 5, half of what Docker lets pass before it kills.
        ssl_context: as for `serve`.
        limits: as for `serve`.
        keepalive: as for `serve`.
        keepalive_enforcement: as for `serve`.
        connection_lifetime: as for `serve`.
        compression: as for `serve`.
        codec: as for `serve`.
        interceptors: as for `serve`.
        handshake_timeout: as for `serve`.

    Raises:
        SystemExit: a second signal came before the drain had ended.
        OSError: an address cannot be bound.
        RuntimeError: this is not the main thread, or trio runs already.
        ValueError: an argument is malformed, or two servicers implement the same method.
        TypeError: an object is no servicer, or an argument is of a wrong type.
    """
    check_grace(grace)
    second: signal.Signals | None = None

    async def main() -> None:
        over = trio.Event()

        async def watch(server: Server) -> None:
            nonlocal second
            where = ", ".join(server.addresses)
            receiving = _WhenStarted[None](lambda _: _logger.info("serving on %s", where))
            second = await drain_on_signal(server, grace=grace, task_status=receiving)
            over.set()

        # The server is the body and not a task beside one: what ends it comes out as itself, in no group.
        async with ServiceNursery(checkpoint) as services:
            await serve(
                servicers,
                address,
                ssl_context=ssl_context,
                limits=limits,
                keepalive=keepalive,
                keepalive_enforcement=keepalive_enforcement,
                connection_lifetime=connection_lifetime,
                compression=compression,
                codec=codec,
                interceptors=interceptors,
                handshake_timeout=handshake_timeout,
                task_status=_WhenStarted[Server](lambda server: services.start_soon(watch, server)),
            )
            await over.wait()

    trio.run(main)
    if second is not None:
        raise SystemExit(128 + second)


class _WhenStarted(trio.TaskStatus[ValueT_contra]):
    """Calls a function when a task says that it has started."""

    def __init__(self, function: Callable[[Any], object]) -> None:
        self._function = function

    def started(self, value: ValueT_contra | None = None) -> None:
        self._function(value)
