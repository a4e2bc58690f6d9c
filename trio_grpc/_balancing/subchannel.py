"""A channel's way to one endpoint: a connection, or several if allowed, attempted when asked for, with backoff."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import trio

from trio_grpc._balancing.backoff import Backoff
from trio_grpc._balancing.connectivity import ConnectivityState
from trio_grpc._balancing.endpoint import Endpoint
from trio_grpc._balancing.load_watch import LoadWatch
from trio_grpc._call_counts import CallCounts
from trio_grpc._event_log import EventLog
from trio_grpc._registry import new_id
from trio_grpc._transport.connection import Connection
from trio_grpc._transport.header_codec import HeaderTemplate
from trio_grpc._transport.service_nursery import ServiceNursery
from trio_grpc._transport.stream_table import SlotLine

_logger = logging.getLogger("trio_grpc")

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
    """A channel's way to one endpoint, as load balancing policies see it; made by `PolicyContext`.

    It connects when it is told to. A failed attempt makes it TRANSIENT_FAILURE until its backoff is over, then IDLE. A
    connection that ends, or that the peer wants to end, makes it IDLE: calls that are still in flight on it go on.

    Where ``connectionScaling`` allows it, a subchannel that is READY makes one more connection when calls wait because
    of the peer's stream limit. It stays READY for as long as it has one. When it loses the last one in the middle of
    another attempt, or in the backoff after one, it becomes CONNECTING or TRANSIENT_FAILURE.

    Attributes:
        endpoint: where it leads.
        state: its connectivity state right now, by its connections alone; what a policy is told also knows of health.
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
        on_move: Callable[[Subchannel], None],
        on_gone: Callable[[Subchannel], None],
        request_head: Callable[[str], HeaderTemplate],
        connections: set[Connection],
        label: str,
    ) -> None:
        self.endpoint: Endpoint = endpoint
        self.state: ConnectivityState = ConnectivityState.IDLE
        self.error: Exception | None = None
        #: For new calls, or for them to ask first; None unless the state is READY. ``on_move`` is told of another one,
        #: and of another oldest one.
        self._connection: Connection | None = None
        self._oldest: Connection | None = None
        #: Connections are not for calls yet, see `_hold`.
        self._held = False
        #: All that take new calls, the oldest first, with the times since when.
        self._usable: dict[Connection, float] = {}
        self._max_connections = 1
        #: Where calls wait for any of them; None until there may be several.
        self._line: SlotLine | None = None
        #: All of the channel that still run, and those of them that are ours.
        self._connections = connections
        self._running: dict[Connection, None] = {}
        self._on_gone = on_gone
        self._id: int = new_id()
        self._events = EventLog()
        #: Of attempts; ``started`` without those on connections that run.
        self._calls = CallCounts()
        self._connect = connect
        #: What errors call the endpoint.
        self._label = label
        self._services = services
        self._backoff = backoff
        self._on_change = on_change
        self._on_move = on_move
        self._request_head = request_head
        self._load_watches: set[LoadWatch] = set()
        self._failures = 0
        self._short_lives = 0
        #: What the state would be without a connection.
        self._attempts = ConnectivityState.IDLE
        #: Which attempt speaks for us, its backoff included; one that was given up may still be winding down.
        self._attempt_number = 0
        self._attempt_scope: trio.CancelScope | None = None

    def connect(self) -> None:
        """Start an attempt if the state is IDLE; otherwise nothing happens."""
        if self.state is ConnectivityState.IDLE:
            self._start_attempt()

    def disconnect(self) -> None:
        """Give up an attempt, take no new calls on a connection; calls in flight go on, and so does a backoff."""
        if self.state in (ConnectivityState.CONNECTING, ConnectivityState.READY):
            if self._attempts is ConnectivityState.CONNECTING:
                self._give_up_attempt()
            self._retire()
            self._update()

    def _shut_down(self, *, retire: bool) -> None:
        """No more connections, ever. Those that there are end after their calls, unless the channel ends them."""
        self._give_up_attempt()
        if not retire:
            self._usable.clear()
        self._retire()
        self._attempts = ConnectivityState.SHUTDOWN
        self._update()
        self._check_gone()

    def _check_gone(self) -> None:
        """Tell when there is nothing left to be seen of it."""
        if self.state is ConnectivityState.SHUTDOWN and not self._running:
            self._on_gone(self)

    def _scale(self, max_connections: int) -> None:
        """Have at most so many connections from now on; those that are more stay (gRFC A105)."""
        self._max_connections = max_connections
        if max_connections > 1 and self._line is None and self.state is not ConnectivityState.SHUTDOWN:
            self._line = SlotLine(self._connect_also)
            for connection in self._usable:
                self._line.add(connection.table, connection)
        self._connect_also()

    def _connect_also(self) -> None:
        """Make one more connection where calls wait, and there may be one."""
        if (
            self._line is not None
            and self._line.calls_wait
            and 0 < len(self._usable) < self._max_connections
            and self._attempts is ConnectivityState.IDLE
        ):
            self._start_attempt()

    def _start_attempt(self) -> None:
        self._start(self._attempt)
        self._attempts = ConnectivityState.CONNECTING
        self._update()

    def _start(self, async_fn: Callable[..., Awaitable[None]], *args: Any) -> None:
        self._attempt_number += 1
        name = f"connect to {self.endpoint}"
        self._attempt_scope = self._services.start_soon(async_fn, self._attempt_number, *args, name=name)

    def _give_up_attempt(self) -> None:
        self._attempt_number += 1
        self._attempts = ConnectivityState.IDLE
        if self._attempt_scope is not None:
            self._attempt_scope.cancel()
            self._attempt_scope = None

    def _retire(self) -> None:
        connections, self._usable = tuple(self._usable), {}
        self._move()
        for connection in connections:
            connection.retire()

    def _hold(self, held: bool) -> None:
        """Have no calls go out, or have them go out again: the backend has not said yet that it takes any (A17)."""
        self._held = held
        self._move()

    def _move(self) -> None:
        """Let ``_connection`` be the oldest one."""
        oldest = next(iter(self._usable), None)
        connection = None if self._held else oldest
        if oldest is not self._oldest or connection is not self._connection:
            self._oldest, self._connection = oldest, connection
            self._on_move(self)
            for watch in self._load_watches:
                watch.move(oldest)

    def _watch_load(self, period: float, on_report: Callable[[bytes | bytearray], None]) -> Callable[[], None]:
        """Have the backend report its load on a call of its own (gRFC A51); return what ends that."""
        watch = LoadWatch(
            str(self.endpoint), period, on_report, self._services.start_soon, self._request_head, self._backoff
        )
        self._load_watches.add(watch)
        watch.move(self._oldest)

        def stop() -> None:
            self._load_watches.discard(watch)
            watch.move(None)

        return stop

    def _update(self) -> None:
        state = ConnectivityState.READY if self._usable else self._attempts
        if state is not self.state:
            self.state = state
            failed = state is ConnectivityState.TRANSIENT_FAILURE
            self._events.add(f"{state.value}: {self.error}" if failed else state.value, warning=failed)
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
        if self._usable:
            _logger.info("%s; there are %d connections besides", error, len(self._usable))
        self._attempts = ConnectivityState.TRANSIENT_FAILURE
        self._update()
        return self._backoff.delay(self._failures, random.uniform)

    async def _back_off(self, number: int, delay: float) -> None:
        await trio.sleep(delay)
        if number == self._attempt_number:
            self._attempt_scope = None
            self._attempts = ConnectivityState.IDLE
            self._update()
            self._connect_also()

    async def _make_connection(self, number: int) -> BaseException | None:
        """Return why there is none. READY counts from the peer's SETTINGS, not from the TCP connection."""
        with trio.move_on_after(CONNECT_TIMEOUT):
            try:
                connection = await self._connect(self.endpoint, self._on_draining)
            except Exception as error:
                # Not only OSError: an endpoint may be the user's own function, and host names raise UnicodeError.
                return error
            connection.table.calls = self._calls
            self._connections.add(connection)
            self._running[connection] = None
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
            del self._running[connection]
            self._calls.started += connection.table.opened
            self._calls.started_at(connection.table.last_opened)
            if connection in self._usable:
                self._lose(connection)
            self._check_gone()

    def _succeed(self, connection: Connection) -> None:
        self._attempt_scope = None
        self._attempts = ConnectivityState.IDLE
        self._failures = 0
        self.error = None
        self._usable[connection] = trio.current_time()
        if self._line is not None and not connection.draining:
            self._line.add(connection.table, connection)
        self._move()
        self._update()
        if connection.draining:
            self._on_draining()
        self._connect_also()

    def _on_draining(self) -> None:
        """A connection takes no more calls: the next one may be made at once, without backoff."""
        for connection in tuple(self._usable):
            if connection.draining:
                self._lose(connection)

    def _lose(self, connection: Connection) -> None:
        lived = trio.current_time() - self._usable.pop(connection)
        self._move()
        # A peer that accepts and says goodbye at once must not be dialled in a tight loop. One that has taken calls
        # first may say it as often as it likes: proxies limit the requests of a connection.
        if connection.took_calls or lived >= self._backoff.base:
            self._short_lives = 0
        else:
            self._short_lives += 1
            if self._short_lives > _SHORT_LIVES and self._attempts is ConnectivityState.IDLE:
                delay = self._fail(connection.reason or connection.table.refusal or _ENDED_AT_ONCE)
                self._start(self._back_off, delay)
        self._update()
        self._connect_also()

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
