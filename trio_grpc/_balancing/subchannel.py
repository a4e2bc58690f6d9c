"""A channel's way to one endpoint: at most one live connection, attempted when asked for, with backoff."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import trio

from trio_grpc._balancing.backoff import Backoff
from trio_grpc._balancing.connectivity import ConnectivityState
from trio_grpc._balancing.endpoint import Endpoint
from trio_grpc._transport.connection import Connection
from trio_grpc._transport.service_nursery import ServiceNursery

#: Seconds that one attempt may take, TCP, TLS and the peer's SETTINGS together (gRPC's minimum connect timeout).
CONNECT_TIMEOUT = 20.0
#: Connections in a row that may end within the first backoff, and without having taken a call, before the next one has
#: to wait. A rolling restart may well end a connection that has just been made; more than a few are no restart.
_SHORT_LIVES = 3

#: Makes a `Connection` that is not running yet; what it raises is why the attempt failed.
Connect = Callable[[Endpoint, Callable[[], None]], Awaitable[Connection]]


class ConnectFailed(Exception):
    """There is no connection, and nothing to wait for; ``__cause__`` says why."""


#: Failures that an error names one by one.
_TOLD = 4
_ENDED_AT_ONCE = ConnectFailed("the connection ended at once")


class Subchannel:
    """A channel's connection to one endpoint, as load balancing policies see it; made by `PolicyContext`.

    It connects when it is told to. A failed attempt makes it TRANSIENT_FAILURE until its backoff is over, then IDLE. A
    connection that ends, or that the peer wants to end, makes it IDLE: calls that are still in flight on it go on.

    Attributes:
        endpoint: where it leads.
        state: its connectivity state right now.
        error: why the last attempt failed, or why the backend is not healthy; None after a success.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        connect: Connect,
        services: ServiceNursery,
        backoff: Backoff,
        *,
        on_change: Callable[[Subchannel, ConnectivityState], None],
        connections: set[Connection],
        label: str,
    ) -> None:
        self.endpoint: Endpoint = endpoint
        self.state: ConnectivityState = ConnectivityState.IDLE
        self.error: Exception | None = None
        #: For new calls; None unless the state is READY.
        self._connection: Connection | None = None
        #: All of the channel that still run.
        self._connections = connections
        self._connect = connect
        #: What errors call the endpoint.
        self._label = label
        self._services = services
        self._backoff = backoff
        self._on_change = on_change
        self._failures = 0
        self._short_lives = 0
        self._ready_at = 0.0
        #: Which attempt speaks for us, its backoff included; one that was given up may still be winding down.
        self._attempt_number = 0
        self._attempt_scope: trio.CancelScope | None = None

    def connect(self) -> None:
        """Start an attempt if the state is IDLE; otherwise nothing happens."""
        if self.state is ConnectivityState.IDLE:
            self._start(self._attempt)
            self._set(ConnectivityState.CONNECTING)

    def disconnect(self) -> None:
        """Give up an attempt, take no new calls on a connection; calls in flight go on, and so does a backoff."""
        if self.state in (ConnectivityState.CONNECTING, ConnectivityState.READY):
            self._give_up()
            self._set(ConnectivityState.IDLE)

    def _shut_down(self, *, retire: bool) -> None:
        """No more connections, ever. The one that there is ends after its calls, unless the channel ends it itself."""
        if not retire:
            self._connection = None
        self._give_up()
        self._set(ConnectivityState.SHUTDOWN)

    def _start(self, async_fn: Callable[..., Awaitable[None]], *args: Any) -> None:
        self._attempt_number += 1
        name = f"connect to {self.endpoint}"
        self._attempt_scope = self._services.start_soon(async_fn, self._attempt_number, *args, name=name)

    def _give_up(self) -> None:
        self._attempt_number += 1
        if self._attempt_scope is not None:
            self._attempt_scope.cancel()
            self._attempt_scope = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.retire()

    def _set(self, state: ConnectivityState) -> None:
        if self.state is not ConnectivityState.SHUTDOWN:
            self.state = state
            self._on_change(self, state)

    async def _attempt(self, number: int) -> None:
        """One attempt, and the backoff after it where it fails."""
        cause = await self._make_connection(number)
        if cause is not None and number == self._attempt_number:
            await self._back_off(number, self._fail(cause))

    def _fail(self, cause: BaseException) -> float:
        """Return the seconds to wait before the next attempt."""
        self._failures += 1
        error = ConnectFailed(f"failed to connect to {self._label}: {str(cause) or type(cause).__name__}")
        error.__cause__ = cause
        self.error = error
        self._set(ConnectivityState.TRANSIENT_FAILURE)
        return self._backoff.delay(self._failures, random.uniform)

    async def _back_off(self, number: int, delay: float) -> None:
        await trio.sleep(delay)
        if number == self._attempt_number:
            self._attempt_scope = None
            self._set(ConnectivityState.IDLE)

    async def _make_connection(self, number: int) -> BaseException | None:
        """Return why there is none. READY counts from the peer's SETTINGS, not from the TCP connection."""
        with trio.move_on_after(CONNECT_TIMEOUT):
            try:
                connection = await self._connect(self.endpoint, self._on_draining)
            except Exception as error:
                # Not only OSError: an endpoint may be the user's own function, and host names raise UnicodeError.
                return error
            self._connections.add(connection)
            self._services.start_soon(self._run, connection, name=f"connection to {self.endpoint}")
            try:
                await _wait_any(connection.ready, connection.closed)
            finally:
                # Cancelled in its last step, or given up meanwhile, it belongs to nobody.
                ended = connection.closed.is_set()
                if connection.ready.is_set() and not ended and number == self._attempt_number:
                    self._succeed(connection)
                elif not ended:
                    self._services.start_soon(_close, connection)
            return connection.reason or _ENDED_AT_ONCE if ended else None
        return TimeoutError(f"no answer within {CONNECT_TIMEOUT:g} s")

    async def _run(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            if self._connection is connection:
                self._lose(connection)

    def _succeed(self, connection: Connection) -> None:
        self._attempt_scope = None
        self._failures = 0
        self.error = None
        self._ready_at = trio.current_time()
        self._connection = connection
        self._set(ConnectivityState.READY)
        if connection.draining:
            self._on_draining()

    def _on_draining(self) -> None:
        """The connection takes no more calls: the next one may be made at once, without backoff."""
        connection = self._connection
        if connection is not None and connection.draining:
            self._lose(connection)

    def _lose(self, connection: Connection) -> None:
        self._connection = None
        if self.state is not ConnectivityState.READY:
            return
        # A peer that accepts and says goodbye at once must not be dialled in a tight loop. One that has taken calls
        # first may say it as often as it likes: proxies limit the requests of a connection.
        if not connection.took_calls and trio.current_time() - self._ready_at < self._backoff.base:
            self._short_lives += 1
            if self._short_lives > _SHORT_LIVES:
                delay = self._fail(connection.reason or connection.table.refusal or _ENDED_AT_ONCE)
                self._start(self._back_off, delay)
                return
        else:
            self._short_lives = 0
        self._set(ConnectivityState.IDLE)

    def __repr__(self) -> str:
        return f"<Subchannel to {self.endpoint}, {self.state.value}>"


def all_failed(subchannels: Iterable[Subchannel], last: Subchannel | None = None) -> Exception | None:
    """Return one error for all those that have failed; its cause is that of ``last``, or of the one that is last."""
    errors = {str(subchannel.error): subchannel.error for subchannel in subchannels if subchannel.error is not None}
    if len(errors) < 2:
        return next(iter(errors.values()), None)
    texts = list(errors)
    more = len(texts) - _TOLD
    error = ConnectFailed("; ".join(texts[:_TOLD]) + (f"; and {more} more" if more > 0 else ""))
    final = errors[texts[-1]] if last is None or last.error is None else last.error
    error.__cause__ = final.__cause__
    return error


async def _close(connection: Connection) -> None:
    """End a connection that nobody has used."""
    with trio.move_on_after(1):
        await connection.aclose()


async def _wait_any(*events: trio.Event) -> None:
    """Wait until one of the events is set."""

    async def wait(event: trio.Event) -> None:
        await event.wait()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for event in events:
            nursery.start_soon(wait, event)


__all__ = ["Subchannel"]
