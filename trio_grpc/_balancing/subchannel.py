"""One backend of a channel: at most one live connection to it, made when needed and made again when lost."""

from __future__ import annotations

import enum
import random
from collections.abc import Awaitable, Callable
from typing import NoReturn

import trio

from trio_grpc._balancing.backoff import Backoff
from trio_grpc._transport.connection import Connection
from trio_grpc._transport.service_nursery import ServiceNursery

#: Seconds that one attempt may take, TCP, TLS and the peer's SETTINGS together (gRPC's minimum connect timeout).
CONNECT_TIMEOUT = 20.0
#: Connections in a row that may end within the first backoff, and without having taken a call, before the next one has
#: to wait. A rolling restart may well end a connection that has just been made; more than a few are no restart.
_SHORT_LIVES = 3


class State(enum.Enum):
    """gRPC's connectivity states."""

    IDLE = "idle"
    CONNECTING = "connecting"
    READY = "ready"
    TRANSIENT_FAILURE = "transient failure"
    SHUTDOWN = "shutdown"


class ConnectFailed(Exception):
    """A connection attempt failed; ``__cause__`` says how."""


class Subchannel:
    """Connects on demand, with backoff.

    Args:
        address: for messages.
        connect: makes a `Connection` that is not running yet; what it raises is why the attempt failed.
        services: where connections and attempts run.
        backoff: the waits between attempts.

    Attributes:
        connection: the connection for new calls; None unless the state is READY.
        state: the connectivity state.
        connections: all that still run, draining ones included.
    """

    def __init__(
        self,
        address: str,
        connect: Callable[[Callable[[], None]], Awaitable[Connection]],
        services: ServiceNursery,
        backoff: Backoff,
    ) -> None:
        self.address = address
        self.connection: Connection | None = None
        self.state = State.IDLE
        self.connections: set[Connection] = set()
        self._connect = connect
        self._services = services
        self._backoff = backoff
        self._failures = 0
        self._short_lives = 0
        self._ready_at = 0.0
        self._retry_at = 0.0
        self._last_error: ConnectFailed | None = None
        self._attempt_ended: trio.Event | None = None
        self._attempt_scope: trio.CancelScope | None = None
        self._shut_down = trio.Event()

    async def wait_connection(self, wait_for_ready: bool) -> Connection:
        """Return a connection that takes new calls, making one if need be.

        Raises:
            ConnectFailed: an attempt failed, or backoff forbids another now; never with ``wait_for_ready``.
            trio.ClosedResourceError: the channel is closed.
        """
        while True:
            if self._services.closing:
                raise trio.ClosedResourceError("channel closed")
            connection = self.connection
            if connection is not None and not connection.draining:
                return connection
            if self._attempt_ended is None:
                wait = self._retry_at - trio.current_time()
                if self.state is State.TRANSIENT_FAILURE and wait > 0:
                    if not wait_for_ready:
                        self._raise_last_error()
                    with trio.move_on_after(wait):
                        await self._shut_down.wait()
                    continue
                self._attempt_ended = trio.Event()
                self.state = State.CONNECTING
                self._attempt_scope = self._services.start_soon(self._attempt, name=f"connect to {self.address}")
            await self._attempt_ended.wait()
            if self.connection is None and not wait_for_ready and self.state is State.TRANSIENT_FAILURE:
                self._raise_last_error()

    def _raise_last_error(self) -> NoReturn:
        assert self._last_error is not None
        # A new object for each caller: a shared one would collect everybody's tracebacks.
        raise ConnectFailed(str(self._last_error)) from self._last_error.__cause__

    async def _attempt(self) -> None:
        """One attempt; READY counts from the peer's SETTINGS, not from the TCP connection."""
        cause: BaseException | None = None
        try:
            with trio.move_on_after(CONNECT_TIMEOUT) as scope:
                try:
                    connection = await self._connect(self._on_draining)
                except Exception as error:
                    # Not only OSError: a target may be the user's own function, and host names raise UnicodeError.
                    cause = error
                else:
                    self.connections.add(connection)
                    self._services.start_soon(self._run, connection, name=f"connection to {self.address}")
                    try:
                        await _wait_any(connection.ready, connection.closed)
                    finally:
                        if not connection.ready.is_set():
                            self._stop(connection)
                    if connection.ready.is_set() and not connection.closed.is_set():
                        self._succeed(connection)
                        return
                    cause = connection.reason
            if scope.cancelled_caught:
                cause = TimeoutError(f"no answer within {CONNECT_TIMEOUT:g} s")
        finally:
            if self.state is State.CONNECTING:
                self._fail(cause)
            assert self._attempt_ended is not None
            ended, self._attempt_ended = self._attempt_ended, None
            ended.set()

    async def _run(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)
            if self.connection is connection:
                self._go_idle(connection)

    def _stop(self, connection: Connection) -> None:
        """Give up a connection that never became ready."""

        async def close() -> None:
            with trio.move_on_after(1):
                await connection.aclose()

        if not connection.closed.is_set():
            self._services.start_soon(close)

    def _succeed(self, connection: Connection) -> None:
        if self._shut_down.is_set():
            return
        self._failures = 0
        self._last_error = None
        self._ready_at = trio.current_time()
        self.connection = connection
        self.state = State.READY
        if connection.draining:
            self._on_draining()

    def _fail(self, cause: BaseException | None) -> None:
        self._failures += 1
        self._retry_at = trio.current_time() + self._backoff.delay(self._failures, random.uniform)
        self.state = State.TRANSIENT_FAILURE
        reason = str(cause) or type(cause).__name__ if cause is not None else "attempt abandoned"
        self._last_error = ConnectFailed(f"failed to connect to {self.address}: {reason}")
        self._last_error.__cause__ = cause

    def _on_draining(self) -> None:
        """The connection takes no more calls: the next one makes a new connection at once, without backoff."""
        connection = self.connection
        if connection is not None and connection.draining:
            self._go_idle(connection)

    def _go_idle(self, connection: Connection) -> None:
        self.connection = None
        if self.state is not State.READY:
            return
        self.state = State.IDLE
        # A peer that accepts and says goodbye at once must not be dialled in a tight loop. One that has taken calls
        # first may say it as often as it likes: proxies limit the requests of a connection.
        if not connection.took_calls and trio.current_time() - self._ready_at < self._backoff.base:
            self._short_lives += 1
            if self._short_lives > _SHORT_LIVES:
                self._fail(connection.reason or connection.table.refusal)
        else:
            self._short_lives = 0

    def shut_down(self) -> None:
        """No more connections, ever. Who waits for one is woken."""
        self.state = State.SHUTDOWN
        self.connection = None
        self._shut_down.set()
        if self._attempt_scope is not None:
            self._attempt_scope.cancel()


async def _wait_any(*events: trio.Event) -> None:
    """Wait until one of the events is set."""

    async def wait(event: trio.Event) -> None:
        await event.wait()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for event in events:
            nursery.start_soon(wait, event)
