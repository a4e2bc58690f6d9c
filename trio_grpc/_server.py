"""The server: listeners, connections, and their orderly end."""

from __future__ import annotations

import errno
import logging
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, final

import attrs
import trio

from trio_grpc._balancing.target import UnixTarget, parse_target
from trio_grpc._call_counts import CallCounts, since_epoch
from trio_grpc._codec import Codec, choose_codec
from trio_grpc._compression import Compression, accept_encoding, get_compressor
from trio_grpc._event_log import EventLog
from trio_grpc._generic_handlers import GenericHandlers
from trio_grpc._generic_servicer import GenericServicer
from trio_grpc._handler_pool import HandlerPool
from trio_grpc._intercepted_handler import InterceptedHandler
from trio_grpc._interceptors import check_interceptors
from trio_grpc._lone_exception import unwrapped
from trio_grpc._options import (
    ConnectionLifetime,
    KeepaliveEnforcement,
    Limits,
    ServerKeepalive,
    check_kind,
    check_seconds,
    check_timeout,
    option_or_default,
)
from trio_grpc._registry import new_id
from trio_grpc._registry import servers as open_servers
from trio_grpc._servicer import (
    MethodHandler,
    ServerInterceptor,
    Servicer,
    find_handlers,
    handler_maker,
    not_implemented,
)
from trio_grpc._status import StatusCode
from trio_grpc._transport.byte_stream import wrap
from trio_grpc._transport.connection import FAREWELL_TIME, Connection
from trio_grpc._transport.service_nursery import ServiceNursery
from trio_grpc._transport.side import Side
from trio_grpc._transport.stream import Stream
from trio_grpc._transport.tls import TlsError, offer_h2, start_tls, tls_info

_logger = logging.getLogger("trio_grpc")

Listener = trio.abc.Listener[Any]
Address = str | Listener

#: Seconds to wait when accepting fails for want of file descriptors or memory (trio.serve_listeners: 100 ms).
_ACCEPT_PAUSE = 0.1
_ACCEPT_ERRORS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}


@attrs.frozen
class ServerStatistics:
    """What a server holds right now.

    Attributes:
        connections: live connections.
        streams: RPCs whose last frame is neither written nor orphaned.
        handlers: handlers that run.
        control_frames: control frames queued and not yet taken by a writer.
    """

    connections: int
    streams: int
    handlers: int
    control_frames: int


@final
class Server:
    """A running server; `serve` makes it and gives it as its started value.

    Attributes:
        addresses: where it listens, as targets for `open_channel`; with the real port where 0 was asked for.
    """

    def __init__(
        self,
        handlers: Mapping[str, Any],
        listeners: Sequence[Listener],
        addresses: Sequence[str],
        *,
        ssl_context: ssl.SSLContext | None,
        limits: Limits,
        keepalive: ServerKeepalive,
        keepalive_enforcement: KeepaliveEnforcement,
        connection_lifetime: ConnectionLifetime,
        handshake_timeout: float,
        socket_files: Sequence[SocketFile],
        servicers: Sequence[Servicer],
        generic: Any,
    ) -> None:
        self.addresses: tuple[str, ...] = tuple(addresses)
        self._handlers: Mapping[str, MethodHandler] = handlers
        self._listeners = listeners
        self._ssl_context = ssl_context
        self._limits = limits
        self._keepalive = keepalive
        self._keepalive_enforcement = keepalive_enforcement
        self._connection_lifetime = connection_lifetime
        self._handshake_timeout = handshake_timeout
        self._socket_files = socket_files
        self._servicers = servicers
        #: What is asked where `_handlers` has nothing, None where nobody is.
        self._generic: GenericHandlers | None = generic
        self._id: int = new_id()
        self._calls = CallCounts()
        self._events = EventLog()
        #: What it listens on, by ids.
        self._listener_ids = {new_id(): listener for listener in listeners}
        self._connections: dict[Connection, HandlerPool] = {}
        self._accepting = trio.CancelScope()
        self._draining = False
        self._grace_scope = trio.CancelScope()
        self._drained = trio.Event()
        self._handshakes: set[trio.CancelScope] = set()
        self._nursery: trio.Nursery | None = None
        #: Readers and writers of all connections.
        self._services = ServiceNursery()

    def statistics(self) -> ServerStatistics:
        """Return what the server holds right now."""
        connections = tuple(self._connections)
        return ServerStatistics(
            connections=len(connections),
            streams=sum(connection.table.slots_used for connection in connections),
            handlers=sum(pool.running for pool in self._connections.values()),
            control_frames=sum(connection.control_buffer.pending_frames for connection in connections),
        )

    def __repr__(self) -> str:
        return f"<Server on {', '.join(self.addresses)}{', draining' if self._draining else ''}>"

    # -- running

    async def run(self) -> None:
        """Serve until cancelled or drained."""
        self._events.add(f"listening on {', '.join(self.addresses)}")
        open_servers.enter(self._id, self)
        try:
            # Ctrl-C and a listener that breaks come out as what they are, not in the groups of our two nurseries.
            with unwrapped():
                async with self._services, trio.open_nursery() as nursery:
                    self._nursery = nursery
                    with self._accepting:
                        async with trio.open_nursery() as accepting:
                            for listener in self._listeners:
                                accepting.start_soon(self._accept, listener, nursery)
        finally:
            await _close(self._listeners, self._socket_files)
            open_servers.leave(self._id)
            self._drained.set()

    async def _accept(self, listener: Listener, nursery: trio.Nursery) -> None:
        try:
            while True:
                try:
                    stream = await listener.accept()
                except ConnectionAbortedError as error:
                    # The client has gone already. trio's own listeners go on by themselves.
                    _logger.info("cannot accept a connection: %s", error)
                except OSError as error:
                    if error.errno not in _ACCEPT_ERRORS:
                        raise
                    _logger.error("cannot accept connections: %s; pausing", error)
                    await trio.sleep(_ACCEPT_PAUSE)
                else:
                    nursery.start_soon(self._serve_stream, stream)
        except trio.ClosedResourceError:
            # `drain` closed the listener.
            return
        finally:
            await trio.aclose_forcefully(listener)

    async def _serve_stream(self, stream: trio.abc.Stream) -> None:
        """Serve one connection; nothing that its peer does can reach another one."""
        peer = _peer_name(stream)
        try:
            if self._ssl_context is not None:
                with trio.CancelScope() as scope:
                    self._handshakes.add(scope)
                    try:
                        secure = await self._start_tls(stream, peer)
                    finally:
                        self._handshakes.discard(scope)
                if scope.cancelled_caught or secure is None:
                    return
                stream = secure
            if self._draining:
                await trio.aclose_forcefully(stream)
                return
            await self._serve_connection(stream, peer)
        except Exception:
            _logger.exception("internal error while serving %s", peer)
            await trio.aclose_forcefully(stream)

    async def _start_tls(self, stream: trio.abc.Stream, peer: str) -> trio.abc.Stream | None:
        assert self._ssl_context is not None
        problem: object = f"no handshake within {self._handshake_timeout:g} s"
        with trio.move_on_after(self._handshake_timeout):
            try:
                return await start_tls(stream, self._ssl_context, Side.SERVER)
            except TlsError as error:
                problem = error
        _logger.info("TLS with %s failed: %s", peer, problem)
        return None

    async def _serve_connection(self, stream: trio.abc.Stream, peer: str) -> None:
        pool = HandlerPool(self._limits.max_concurrent_streams)
        connection = Connection(
            Side.SERVER,
            wrap(stream),
            self._limits,
            peer=peer,
            handshake_timeout=self._handshake_timeout,
            on_stream=partial(self._start_rpc, pool),
            keepalive=self._keepalive,
            enforcement=self._keepalive_enforcement,
            lifetime=self._connection_lifetime,
            tls=tls_info(stream),
        )
        connection.table.calls = self._calls
        self._connections[connection] = pool
        # Reader and writer outlive the handlers, so that a `finally` in a handler can still answer its call.
        service = self._services.start_soon(connection.run, name=f"connection from {peer}")
        try:
            async with pool:
                try:
                    await connection.closed.wait()
                finally:
                    connection.stop_accepting()
        finally:
            with trio.CancelScope(shield=True):
                try:
                    with trio.move_on_after(2 * FAREWELL_TIME):
                        await connection.finish()
                finally:
                    service.cancel()
                    await connection.closed.wait()
                    del self._connections[connection]
                    self._calls.started += connection.table.opened
                    self._calls.started_at(since_epoch(connection.reader.last_opened))

    def _start_rpc(self, pool: HandlerPool, stream: Stream) -> None:
        """Find the handler of a new stream and start it, or refuse the stream. Called by the reader: never blocks."""
        request = stream.request
        assert request is not None
        handler = self._handlers.get(request.path) or self._generic
        if handler is None:
            stream.refuse(StatusCode.UNIMPLEMENTED, not_implemented(request.path))
            return
        if request.encoding != "identity" and get_compressor(request.encoding) is None:
            # gRPC compression.md: the refusal must say what would be accepted.
            stream.refuse(
                StatusCode.UNIMPLEMENTED,
                f"request encoding {request.encoding!r} is not supported here; supported: {accept_encoding()}",
                accept_encoding=accept_encoding(),
            )
            return
        deadline = inf
        if request.timeout is not None:
            deadline = stream.request_time + request.timeout
            if deadline <= trio.current_time():
                stream.refuse(StatusCode.DEADLINE_EXCEEDED, "deadline exceeded before the call arrived")
                return
        pool.start(stream, partial(handler.run, stream, deadline))

    # -- ending

    async def drain(self, grace: float | None = None) -> None:
        """Stop in good order: no new connections and calls, let the running ones finish, return when all is over.

        Servicers learn of it at once (`Servicer.__trio_grpc_draining__`; the health service then says NOT_SERVING), and
        the listeners close. Clients are told with GOAWAY in two steps, so that no call is lost on its way.
        Called again, a smaller grace shortens the wait. Cancelling it gives up waiting, not draining.

        Args:
            grace: seconds after which running handlers are cancelled, at once if there are none; None waits for them as
                long as it takes.

        Raises:
            TypeError, ValueError: ``grace`` is no number; nothing has begun.
        """
        self._start_drain(grace)
        await self._drained.wait()

    async def wait_ended(self) -> None:
        """Wait until the server has ended, drained or cancelled, its handlers included."""
        await self._drained.wait()

    def _start_drain(self, grace: float | None) -> None:
        """Drain without waiting for the end; or shorten the grace."""
        if grace is not None:
            check_timeout(grace, "grace")
            self._grace_scope.deadline = min(self._grace_scope.deadline, trio.current_time() + max(grace, 0))
        if not self._draining:
            self._draining = True
            self._events.add("draining")
            self._tell_servicers()
            self._accepting.cancel()
            for handshake in tuple(self._handshakes):
                handshake.cancel()
            assert self._nursery is not None
            try:
                self._nursery.start_soon(self._drain)
            except RuntimeError:
                # The nursery is closed already: nothing is left to drain.
                pass

    def _tell_servicers(self) -> None:
        """Tell each servicer that draining begins."""
        for servicer in self._servicers:
            try:
                servicer.__trio_grpc_draining__()
            except Exception:
                _logger.exception("exception in %s.__trio_grpc_draining__", type(servicer).__name__)

    async def _drain(self) -> None:
        with self._grace_scope:
            async with trio.open_nursery() as nursery:
                for connection in tuple(self._connections):
                    nursery.start_soon(connection.drain)
        for pool in tuple(self._connections.values()):
            pool.cancel()


async def serve(
    servicers: Iterable[Servicer],
    address: Address | Sequence[Address],
    *,
    ssl_context: ssl.SSLContext | None = None,
    limits: Limits | None = None,
    keepalive: ServerKeepalive | None = None,
    keepalive_enforcement: KeepaliveEnforcement | None = None,
    connection_lifetime: ConnectionLifetime | None = None,
    compression: Compression | str | None = None,
    codec: Codec | None = None,
    interceptors: Iterable[ServerInterceptor] = (),
    handshake_timeout: float = 120.0,
    task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
) -> None:
    r"""Serve until cancelled or drained.

    Start it with ``server = await nursery.start(trio_grpc.serve, [servicer], "127.0.0.1:50051")``. Cancelling it
    cancels the handlers, lets their ``finally`` blocks run, and says goodbye to the clients.

    Args:
        servicers: instances of generated servicer classes; and of `GenericServicer`, which are asked for methods that
            none of those has.
        address: ``"host:port"`` (port 0 for any free one), ``"unix:path"``, ``"unix-abstract:name"``, a
            `trio.abc.Listener`, or several of these.
        ssl_context: TLS with this context. Its ALPN protocols are set to ``h2``, which clients must offer.
        limits: what each connection accepts; default `Limits`.
        keepalive: when to ask whether a quiet client is still there; default `ServerKeepalive`.
        keepalive_enforcement: how often clients may ask whether the server is; default `KeepaliveEnforcement`.
        connection_lifetime: how long connections are kept; default for ever.
        compression: algorithm for responses to clients that accept it; `ServicerContext.set_compression` overrides it.
        codec: turns messages into bytes; default protobuf. A method may have one of its own (`Method.codec`).
        interceptors: run around every RPC, the first of them outermost.
        handshake_timeout: seconds for TLS, and for the client's first SETTINGS frame (120, as grpc-go).
        task_status: for `trio.Nursery.start`; the started value is the running `Server`.

    Raises:
        OSError: an address cannot be bound.
        ValueError: there are no servicers, an address is malformed, two servicers implement the same method, or there
            is no such compression.
        TypeError: an object is no servicer, or an option is of the wrong type.
    """
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
    await serve_prepared(make_server, address, task_status=task_status)


def prepare_server(
    servicers: Iterable[Servicer],
    *,
    ssl_context: ssl.SSLContext | None,
    limits: Limits | None,
    keepalive: ServerKeepalive | None,
    keepalive_enforcement: KeepaliveEnforcement | None,
    connection_lifetime: ConnectionLifetime | None,
    compression: Compression | str | None,
    codec: Codec | None,
    interceptors: Iterable[ServerInterceptor],
    handshake_timeout: float,
) -> Callable[..., Server]:
    """Check all that `serve` is told but the address, and return what makes the server; needs no trio.

    Raises:
        ValueError, TypeError: as `serve`.
    """
    limits = option_or_default("limits", limits, Limits)
    if not isinstance(servicers, Iterable):
        raise TypeError(f"servicers must be a list of servicers, not {type(servicers).__name__}")
    servicers = tuple(servicers)
    keepalive = option_or_default("keepalive", keepalive, ServerKeepalive)
    keepalive_enforcement = option_or_default("keepalive_enforcement", keepalive_enforcement, KeepaliveEnforcement)
    connection_lifetime = option_or_default("connection_lifetime", connection_lifetime, ConnectionLifetime)
    around = check_interceptors(interceptors)
    # Chosen once, so that RPCs of a server without interceptors know nothing of any.
    handler_class = partial(InterceptedHandler, around) if around else MethodHandler
    make_handler = handler_maker(choose_codec(codec), limits, handler_class, compression)
    check_seconds("handshake_timeout", handshake_timeout)
    handlers = find_handlers(servicers, make_handler)
    generic = [servicer for servicer in servicers if isinstance(servicer, GenericServicer)]
    if not servicers:
        raise ValueError("servicers must not be empty: there would be nothing to serve")
    if ssl_context is not None:
        offer_h2(check_kind("ssl_context", ssl_context, ssl.SSLContext, " or None"))
    return partial(
        Server,
        handlers,
        ssl_context=ssl_context,
        limits=limits,
        keepalive=keepalive,
        keepalive_enforcement=keepalive_enforcement,
        connection_lifetime=connection_lifetime,
        handshake_timeout=handshake_timeout,
        servicers=servicers,
        generic=GenericHandlers(generic, make_handler) if generic else None,
    )


async def serve_prepared(
    make_server: Callable[..., Server],
    address: Address | Sequence[Address],
    *,
    task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Do what is left of `serve` after `prepare_server`: listen and run."""
    listeners: list[Listener] = []
    addresses: list[str] = []
    socket_files: list[SocketFile] = []
    wanted = listed_addresses(address)
    try:
        for one in wanted:
            if isinstance(one, trio.abc.Listener):
                listeners.append(one)
                addresses.append(listener_name(one))
                continue
            target = parse_target(one, default_port=None)
            with errors_name(one):
                if isinstance(target, UnixTarget):
                    sock, socket_file = listen_unix(target)
                    listeners.append(trio.SocketListener(trio.socket.from_stdlib_socket(sock)))
                    if socket_file is not None:
                        socket_files.append(socket_file)
                    addresses.append(str(target))
                else:
                    opened = await trio.open_tcp_listeners(target.port, host=target.host)
                    listeners.extend(opened)
                    addresses.extend(listener_name(listener) for listener in opened)
    except BaseException:
        await _close(listeners, socket_files)
        raise
    server = make_server(listeners, addresses, socket_files=socket_files)
    task_status.started(server)
    await server.run()


@contextmanager
def errors_name(address: str) -> Iterator[None]:
    """Let an `OSError` say which address it was that a socket could not bind."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            # E.g. a path that is too long: Python's own error, which has a text and no number.
            raise OSError(f"{error}: {address!r}") from error
        error.filename = address
        raise


def listed_addresses(address: Any) -> list[Address]:
    """Return what ``address=`` of `serve` lists."""
    if isinstance(address, (str, trio.abc.Listener)):
        return [address]
    # Bytes would be a list of numbers.
    listed: list[Any] = [address]
    if isinstance(address, Iterable) and not isinstance(address, bytes):
        listed = list(address)
    for one in listed:
        if not isinstance(one, (str, trio.abc.Listener)):
            raise TypeError(f"address must be str, trio.abc.Listener or a list of these, not {type(one).__name__}")
    return listed


@attrs.frozen
class SocketFile:
    """The file of a unix socket that we have bound, told from one that another server has put in its place."""

    path: Path
    device: int
    inode: int

    @classmethod
    def of(cls, path: str) -> SocketFile:
        status = Path(path).stat()
        return cls(Path(path), status.st_dev, status.st_ino)

    def remove(self) -> None:
        try:
            status = self.path.stat()
            if (status.st_dev, status.st_ino) == (self.device, self.inode):
                self.path.unlink()
        except FileNotFoundError:
            # Somebody else has cleaned up.
            return


async def _close(listeners: Iterable[Listener], socket_files: Iterable[SocketFile]) -> None:
    """Close everything, whatever has been cancelled."""
    with trio.CancelScope(shield=True):
        for listener in listeners:
            await trio.aclose_forcefully(listener)
    for socket_file in socket_files:
        socket_file.remove()


def listen_unix(target: UnixTarget) -> tuple[socket.socket, SocketFile | None]:
    """Listen on a unix socket, and return its file if it has one.

    A socket file that a dead server left is replaced, one of a living server is not.
    """
    if not target.abstract:
        _remove_stale(target.path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.bind(target.path)
        sock.listen(4096)
        return sock, None if target.abstract else SocketFile.of(target.path)
    except BaseException:
        sock.close()
        raise


def _remove_stale(path: str) -> None:
    """Remove a socket file on which nobody listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            if Path(path).is_socket():
                Path(path).unlink()
        except OSError:
            # No such file, a full backlog, no permission: binding will tell.
            return


def listener_name(listener: Listener) -> str:
    if isinstance(listener, trio.SocketListener):
        return socket_name(listener.socket.getsockname())
    return getattr(listener, "name", None) or type(listener).__name__


def _peer_name(stream: trio.abc.Stream) -> str:
    if isinstance(stream, trio.SocketStream):
        try:
            return socket_name(stream.socket.getpeername())
        except OSError:
            return "a peer that has gone"
    return type(stream).__name__


def socket_name(name: Any) -> str:
    if isinstance(name, tuple):
        host, port = name[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if isinstance(name, bytes):
        # The kernel gives abstract names as bytes, others as text.
        return f"unix-abstract:{name[1:].decode(errors='replace')}"
    return f"unix:{name}" if name else "unix:"
