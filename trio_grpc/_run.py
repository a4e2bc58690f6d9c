"""A whole program that serves: the event loop, a server, and the signals that end both."""

from __future__ import annotations

import logging
import os
import signal
import ssl
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from functools import partial
from math import inf
from typing import Any, TypeVar

import trio
from trio.lowlevel import checkpoint

from trio_grpc._codec import Codec
from trio_grpc._compression import Compression
from trio_grpc._options import ConnectionLifetime, KeepaliveEnforcement, Limits, ServerKeepalive
from trio_grpc._server import Address, Server, prepare_server, serve_prepared
from trio_grpc._servicer import ServerInterceptor, Servicer
from trio_grpc._shared_addresses import SharedAddresses
from trio_grpc._signals import DEFAULT_GRACE, check_grace, drain_in_two_steps, drain_on_signal
from trio_grpc._transport.service_nursery import ServiceNursery
from trio_grpc._workers import Link, check_workers, supervise

ValueT_contra = TypeVar("ValueT_contra", contravariant=True)

_logger = logging.getLogger("trio_grpc")


def run(
    servicers: Iterable[Servicer],
    address: Address | Sequence[Address],
    *,
    workers: int = 1,
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

    With ``workers``, that many processes serve the address, since one process of Python keeps one core busy. New
    connections are spread over them by the kernel, connections and not calls: a few busy clients may all meet in one
    worker. This process makes them with fork, restarts each that dies (at once, or after a second, and later and later,
    if it was young), and passes signals on, so that there is one drain for all. Start no threads before. What this
    process holds is the workers' as well, as copies: state is not shared. What comes after `run` in the program happens
    in this process alone.

    Where it serves is logged (logger ``trio_grpc``, level INFO), with the real port where 0 was asked for, and so are
    signals. A program that does more than this uses `serve` and `drain_on_signal`.

    Args:
        servicers: as for `serve`, and so are all arguments that are not named here.
        address: as for `serve`.
        workers: how many processes serve. There is no word for "all cores": ``len(os.sched_getaffinity(0))`` are those
            that this process may use (on Linux), and one or two of them may be needed for other things. More than 1
            needs fork and SO_REUSEPORT, which Windows has not; only Linux then spreads connections evenly.
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
        RuntimeError: this is not the main thread, or trio runs already; or a worker has failed before any served.
        ValueError: an argument is malformed, or two servicers implement the same method.
        TypeError: an object is no servicer, or an argument is of a wrong type.
    """
    check_grace(grace)
    check_workers(workers)
    # What is wrong comes out here, and not in every worker.
    make_server = prepare_server(
        servicers,
        ssl_context=ssl_context,
        limits=limits,
        keepalive=keepalive,
        keepalive_enforcement=keepalive_enforcement,
        connection_lifetime=connection_lifetime,
        compression=compression,
        codec=codec,
        interceptors=interceptors,
        handshake_timeout=handshake_timeout,
    )
    if workers == 1:
        second = trio.run(_serve_until, make_server, address, partial(_drain_on_signal, grace))
    else:
        second = _run_workers(make_server, address, workers, grace)
    if second is not None:
        raise SystemExit(128 + second)


Watch = Callable[[Server], Awaitable[signal.Signals | None]]


async def _serve_until(
    make_server: Callable[..., Server], address: Address | Sequence[Address], watch: Watch
) -> signal.Signals | None:
    """Serve until a function that is given the server returns; return what that has."""
    over = trio.Event()
    result: signal.Signals | None = None

    async def run_watch(server: Server) -> None:
        nonlocal result
        result = await watch(server)
        over.set()

    # The server is the body and not a task beside one: what ends it comes out as itself, in no group.
    async with ServiceNursery(checkpoint) as services:
        started = _WhenStarted[Server](lambda server: services.start_soon(run_watch, server))
        await serve_prepared(make_server, address, task_status=started)
        await over.wait()
    return result


async def _drain_on_signal(grace: float | None, server: Server) -> signal.Signals | None:
    where = ", ".join(server.addresses)
    receiving = _WhenStarted[None](lambda _: _logger.info("serving on %s", where))
    return await drain_on_signal(server, grace=grace, task_status=receiving)


def _run_workers(
    make_server: Callable[..., Server], address: Address | Sequence[Address], workers: int, grace: float | None
) -> signal.Signals | None:
    if _trio_runs():
        # In the words of trio.run; a fork of a running event loop would be worse than two of them.
        raise RuntimeError("Attempted to call run() from inside a run()")
    shared = SharedAddresses(address)

    def work(link: Link) -> None:
        async def main() -> None:
            await _serve_until(make_server, shared.listeners(), partial(_drain_on_order, grace, link))

        trio.run(main)

    try:
        return supervise(workers, work, grace=grace, where=", ".join(shared.names), on_drain=shared.close)
    finally:
        shared.close()


def _trio_runs() -> bool:
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True


async def _drain_on_order(grace: float | None, link: Link, server: Server) -> signal.Signals | None:
    """What `drain_on_signal` is to a program of one process: drain when the supervisor says so, or when it has gone.

    A worker's own signals count as well, but the same request does not count twice when it comes both ways.
    """
    send, requests = trio.open_memory_channel[int](inf)
    passed_on = 0

    async def pass_on(source: AsyncIterable[int]) -> None:
        nonlocal passed_on
        count = 0
        async for number in source:
            count += 1
            if count > passed_on:
                passed_on = count
                send.send_nowait(number)

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as own:
        async with ServiceNursery() as services:
            services.start_soon(pass_on, own)
            services.start_soon(pass_on, _Orders(link))
            link.report_up()
            return await drain_in_two_steps([server], grace, requests)


class _Orders:
    """The signals that the supervisor passes on; its death counts as SIGTERM."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._ended = False

    def __aiter__(self) -> _Orders:
        return self

    async def __anext__(self) -> int:
        if self._ended:
            raise StopAsyncIteration
        await trio.lowlevel.wait_readable(self._link.orders)
        order = os.read(self._link.orders, 1)
        if order:
            return order[0]
        self._ended = True
        _logger.warning("the process above worker %d has gone: draining", os.getpid())
        return signal.SIGTERM


class _WhenStarted(trio.TaskStatus[ValueT_contra]):
    """Calls a function when a task says that it has started."""

    def __init__(self, function: Callable[[Any], object]) -> None:
        self._function = function

    def started(self, value: ValueT_contra | None = None) -> None:
        self._function(value)
