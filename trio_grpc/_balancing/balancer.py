"""What a channel's calls get their connections from: a resolver, a load balancing policy and its subchannels at work.

While a channel is not IDLE there is a session: its resolver runs, its policy is told what happens, and what the policy
publishes decides where calls go. The policy may be the user's, and news come from tasks that must not run users' code:
so all of it is told in one task of the session, in order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from math import inf
from time import time
from typing import Any, NoReturn, cast

import trio

from trio_grpc._balancing.backoff import Backoff
from trio_grpc._balancing.config_in_force import ConfigInForce
from trio_grpc._balancing.connectivity import ConnectivityState, ConnectivityTracker
from trio_grpc._balancing.endpoint import Endpoint
from trio_grpc._balancing.graceful_switch import GracefulSwitch
from trio_grpc._balancing.health_watch import HealthWatch
from trio_grpc._balancing.idleness import watch_idleness
from trio_grpc._balancing.json_fields import ServiceConfigError
from trio_grpc._balancing.naming import Name
from trio_grpc._balancing.policy import (
    CallEnd,
    LoadBalancingPolicy,
    Pick,
    Picker,
    PickInfo,
    PolicyContext,
    PolicyFactory,
    check_policy,
    check_published,
)
from trio_grpc._balancing.resolver import Resolution
from trio_grpc._balancing.resolving import run_resolver
from trio_grpc._balancing.service_config import ServiceConfig
from trio_grpc._balancing.subchannel import Connect, ConnectFailed, Subchannel
from trio_grpc._call_counts import CallCounts
from trio_grpc._event_log import EventLog
from trio_grpc._options import check_kind, check_seconds
from trio_grpc._transport.connection import Connection
from trio_grpc._transport.header_codec import HeaderTemplate
from trio_grpc._transport.service_nursery import ServiceNursery
from trio_grpc._transport.stream import Outcome

_logger = logging.getLogger("trio_grpc")

#: Peers that an error names one by one.
_TOLD = 4


class Balancer:
    """Gives calls their connections.

    Args:
        name: the target.
        make_policy: makes the policy of each session; None leaves that to the service config.
        connect: makes connections.
        describe: says what errors about connecting to an endpoint call it.
        services: where everything runs.
        request_head: makes the request head of a call that the channel makes for itself, from its path.
        backoff: the waits between attempts of one subchannel, and between failures of the resolver.
        idle_timeout: seconds without calls after which the channel goes IDLE; inf for never.
        default_config: what holds while the resolver publishes no service config.
        on_config: told each service config that holds from then on.
        events: told what happens.
        calls: counts when calls begin that have to wait, and what calls on subchannels that have gone have come to.

    Attributes:
        connection: the connection for all new calls, where the policy has chosen one for all.
        connectivity: the state of the channel.
        connections: all that still run, draining ones included.
        waiting: calls that wait for a connection.
        config_in_force: what is asked of the channel, and so of its policy.
        subchannels: those that there are, and those that have been shut down while a connection of theirs still runs.
    """

    def __init__(
        self,
        name: Name,
        make_policy: PolicyFactory | None,
        connect: Connect,
        describe: Callable[[Endpoint], str],
        services: ServiceNursery,
        *,
        request_head: Callable[[str], HeaderTemplate],
        backoff: Backoff,
        idle_timeout: float = inf,
        default_config: ServiceConfig | None = None,
        on_config: Callable[[ServiceConfig | None], None] = lambda _: None,
        events: EventLog | None = None,
        calls: CallCounts | None = None,
    ) -> None:
        self.connection: Connection | None = None
        self.connectivity = ConnectivityTracker()
        self.connections: set[Connection] = set()
        self.waiting = 0
        self.subchannels: dict[Subchannel, None] = {}
        self.config_in_force = ConfigInForce(name.text, default_config)
        self._name = name
        self._make_policy = make_policy
        self._connect = connect
        self._describe = describe
        self._services = services
        self._request_head = request_head
        self._backoff = backoff
        self._idle_timeout = idle_timeout
        self._on_config = on_config
        self._events = EventLog() if events is None else events
        self._calls = CallCounts() if calls is None else calls
        self._single: Subchannel | None = None
        self._picker: Picker | None = None
        self._error: Exception | None = None
        self._session: _Session | None = None
        self._changed = trio.Event()

    # -- for calls

    def pick_nowait(self, info: PickInfo) -> Connection | None:
        """Return a connection for an attempt of a call if there is one right now."""
        subchannel = self._pick(info)
        return None if subchannel is None else subchannel._connection

    def _pick(self, info: PickInfo) -> Subchannel | None:
        """Return what an attempt is to use, or to wait for."""
        info._drop()
        if self._picker is None:
            return self._single
        picked = self._picker(info)
        if picked is None or isinstance(picked, Subchannel):
            return picked
        if not isinstance(cast("object", picked), Pick):
            raise TypeError(f"a picker must return a Subchannel, a Pick or None, not {type(picked).__name__}")
        if picked.on_end is not None:
            assert self._session is not None
            info._report = partial(self._session._report, picked.on_end)
            if picked.subchannel._connection is None:
                info._drop()
        return picked.subchannel

    async def wait_connection(self, info: PickInfo, wait_for_ready: bool) -> Connection:
        """Return a connection that takes new calls, making one if need be.

        Raises:
            ConnectFailed: attempts have failed; never with ``wait_for_ready``.
            trio.ClosedResourceError: the channel is closed.
        """
        self._calls.started_at(time())
        self.waiting += 1
        try:
            while True:
                if self._services.closing:
                    raise trio.ClosedResourceError("channel closed")
                subchannel = self._pick(info)
                connection = None if subchannel is None else subchannel._connection
                if connection is not None and not connection.draining:
                    return connection
                changed = self._changed
                state = self.connectivity.state
                # What a picker has chosen without there being a connection yet is worth waiting for.
                if subchannel is None and state is ConnectivityState.TRANSIENT_FAILURE and not wait_for_ready:
                    self._raise_error()
                if subchannel is None and state is ConnectivityState.IDLE:
                    self.connect()
                await changed.wait()
        finally:
            self.waiting -= 1

    async def wait_resolved(self, wait_for_ready: bool) -> None:
        """Wait until the resolver has said what holds for calls, or until a call would fail without knowing."""
        self.waiting += 1
        try:
            while not (self.config_in_force.resolved or self._services.closing):
                changed = self._changed
                state = self.connectivity.state
                if state is ConnectivityState.TRANSIENT_FAILURE and not wait_for_ready:
                    return
                if state is ConnectivityState.IDLE:
                    self.connect()
                await changed.wait()
        finally:
            self.waiting -= 1

    def _raise_error(self) -> NoReturn:
        # A new object for each caller: a shared one would collect everybody's tracebacks.
        raise ConnectFailed(self._error_text()) from self._cause()

    def _error_text(self) -> str:
        error = self._error
        text = (str(error) or type(error).__name__) if error is not None else "no connection"
        return text if self._name.text in text else f"{text} (target {self._name.text})"

    def _cause(self) -> BaseException | None:
        return self._error.__cause__ if isinstance(self._error, ConnectFailed) else self._error

    def unready_reason(self) -> str:
        """Return why a call would have to wait for a connection right now, empty if it would not; for messages."""
        state = self.connectivity.state
        if state is ConnectivityState.TRANSIENT_FAILURE:
            return self._error_text()
        if state is not ConnectivityState.CONNECTING:
            return ""
        if self._session is not None and not self._session.resolved:
            return f"still resolving {self._name.text}"
        return f"still connecting to {self._name.text}"

    def full_reason(self) -> str:
        """Return which peers have as many streams as they allow, empty if none has; for messages."""
        full = {
            f"{connection.peer} allows {connection.table.limit} at a time"
            for connection in self.connections
            if connection.table.refusal is None and connection.table.slots_used >= connection.table.limit
        }
        more = len(full) - _TOLD
        return "; ".join(sorted(full)[:_TOLD]) + (f"; and {more} more" if more > 0 else "")

    def take_config(self, published: ServiceConfig | ServiceConfigError | None) -> None:
        """Take the service config that the resolver has published with its endpoints, if that is one to be used.

        Raises:
            ServiceConfigError: it is wrong, and there is none before it that could stay.
        """
        before, first = self.config_in_force.config, not self.config_in_force.resolved
        self.config_in_force.take(published)
        config = self.config_in_force.config
        if config is not before and self._session is not None:
            self._session.configure()
        if config is not before or first:
            if config is not None:
                self._events.add("another service config" if before is not None else "there is a service config")
            self._on_config(config)
            self._wake(self.connectivity.state)

    # -- states

    def connect(self) -> None:
        """Leave IDLE; in other states nothing happens."""
        if self._session is None:
            session = _Session(self, self._name, self._services)
            # The user's function: what it raises comes out of here, and leaves everything as it was. It may publish.
            try:
                session.start(self._make_policy or session.make_switch)
            except BaseException:
                self._go_idle()
                raise
            self._session = session
            if self.connectivity.state is ConnectivityState.IDLE:
                self._set_state(ConnectivityState.CONNECTING)
        elif self.connectivity.state is ConnectivityState.IDLE:
            self._session.exit_idle()

    def shut_down(self) -> None:
        """No more connections, ever. Who waits for one is woken. ``connections`` are left to the caller."""
        self._end_session(retire=False)
        self._wake(ConnectivityState.SHUTDOWN)

    def _go_idle(self) -> None:
        self._end_session(retire=True)
        self._wake(ConnectivityState.IDLE)

    def _end_session(self, *, retire: bool) -> None:
        session, self._session = self._session, None
        self._single = self._picker = self.connection = None
        if session is not None:
            session.close(retire=retire)

    def _set_state(self, state: ConnectivityState) -> None:
        before = self.connectivity.state
        self.connectivity.set(state)
        if self.connectivity.state is not before:
            failed = state is ConnectivityState.TRANSIENT_FAILURE
            self._events.add(f"{state.value}: {self._error_text()}" if failed else state.value, warning=failed)

    def _wake(self, state: ConnectivityState) -> None:
        self._set_state(state)
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    # -- for sessions

    def _publish(self, state: ConnectivityState, picker: Picker | Subchannel | None, error: Exception | None) -> None:
        self._single = picker if isinstance(picker, Subchannel) else None
        self._picker = None if isinstance(picker, Subchannel) else picker
        self.connection = None if self._single is None else self._single._connection
        self._error = error
        self._wake(state)

    def _add(self, subchannel: Subchannel) -> None:
        self.subchannels[subchannel] = None
        self._tell_event("subchannel made", subchannel)

    def _forget(self, subchannel: Subchannel) -> None:
        """A subchannel has gone with its last connection."""
        if self.subchannels.pop(subchannel, subchannel) is None:
            self._calls.succeeded += subchannel._calls.succeeded
            self._calls.started_at(subchannel._calls.last_started)
            self._tell_event("subchannel gone", subchannel)

    def _tell_event(self, text: str, subchannel: Subchannel) -> None:
        self._events.add(text, subchannel=(subchannel._id, subchannel.endpoint.address))

    def _subchannel_moved(self, subchannel: Subchannel) -> None:
        # At once, whenever the policy hears of it: no call may get a connection that takes none.
        if subchannel is self._single:
            self.connection = subchannel._connection

    async def _watch_idleness(self) -> None:
        await watch_idleness(self._idle_timeout, self._activity)
        self._go_idle()

    def _activity(self) -> object | None:
        """Return something that changes with each call; None while there is one."""
        tables = [connection.table for connection in self.connections]
        if self.waiting or any(table.slots_used > table.background or table.calls_wait for table in tables):
            return None
        return sum(table.opened for table in tables)


class _Session(PolicyContext):
    """One stay of a channel outside IDLE."""

    def __init__(self, balancer: Balancer, name: Name, services: ServiceNursery) -> None:
        self.resolution = Resolution(self._on_update, self._on_error)
        self._balancer = balancer
        self._name = name
        self._services = services
        self._policy: LoadBalancingPolicy | None = None
        self._switch: GracefulSwitch | None = None
        #: The resolver has published endpoints.
        self.resolved = False
        #: How many it has published last.
        self._endpoints = -1
        self._health = HealthWatch(
            self._tell_state, self._start_soon, self._post, balancer._request_head, balancer._backoff
        )
        self._watches_health = False
        self._subchannels: set[Subchannel] = set()
        self._scopes: set[trio.CancelScope] = set()
        self._closed = False
        self._send_news, self._receive_news = trio.open_memory_channel[tuple[Callable[..., None], tuple[Any, ...]]](inf)

    def start(self, make_policy: PolicyFactory) -> None:
        try:
            self._policy = check_policy(make_policy(self))
        except BaseException:
            self.close(retire=False)
            raise
        self.watch_health()
        self._start_soon(self._tell)
        self._start_soon(run_resolver, self._name.resolver, self._name.target, self.resolution, self._balancer._backoff)
        if self._balancer._idle_timeout < inf:
            self._start_soon(self._balancer._watch_idleness)

    def make_switch(self, context: PolicyContext) -> LoadBalancingPolicy:
        """Return the policy where the service config says which one it is; none, before there is one."""
        self._switch = GracefulSwitch(context, self.watch_health)
        return self._switch

    def close(self, *, retire: bool) -> None:
        """End at once; connections end after the calls in flight on them where they are to ``retire``."""
        self._closed = True
        for scope in self._scopes:
            scope.cancel()
        for subchannel in self._subchannels:
            subchannel._shut_down(retire=retire)

    def configure(self) -> None:
        """There is another service config; its policy comes with the endpoints."""
        self.watch_health()
        for subchannel in self._subchannels:
            subchannel._scale(self._balancer.config_in_force.max_connections)

    def exit_idle(self) -> None:
        assert self._policy is not None
        self._post(self._policy.exit_idle)

    def watch_health(self) -> None:
        self._post(self._watch_health)

    def _start_soon(self, async_fn: Callable[..., Any], *args: Any) -> trio.CancelScope:
        async def run() -> None:
            try:
                await async_fn(*args)
            finally:
                self._scopes.discard(scope)

        scope = self._services.start_soon(run, name=async_fn)
        self._scopes.add(scope)
        return scope

    # -- telling the policy

    def _post(self, function: Callable[..., None], *args: Any) -> None:
        if not self._closed:
            self._send_news.send_nowait((function, args))

    async def _tell(self) -> None:
        with self._send_news, self._receive_news:
            async for function, args in self._receive_news:
                try:
                    function(*args)
                except Exception as error:
                    _logger.exception("the load balancing policy of the channel to %s failed", self._name.text)
                    failure = ConnectFailed(f"the load balancing policy failed: {type(error).__name__}: {error}")
                    failure.__cause__ = error
                    self.publish(ConnectivityState.TRANSIENT_FAILURE, error=failure)

    def _report(self, on_end: Callable[[CallEnd], None], outcome: Outcome | None) -> None:
        """An attempt has ended for which the policy had picked; None: it was never made."""
        if outcome is None:
            end = CallEnd(None, True)
        else:
            end = CallEnd(outcome.code, not outcome.received, outcome.fields)
        self._post(self._tell_end, on_end, end)

    def _tell_end(self, on_end: Callable[[CallEnd], None], end: CallEnd) -> None:
        try:
            on_end(end)
        except Exception:
            # No reason to fail calls: what the policy has published is as good as before, and it may not publish again.
            _logger.exception("a Pick's on_end of the channel to %s failed", self._name.text)

    def _on_update(self, endpoints: tuple[Endpoint, ...], config: ServiceConfig | ServiceConfigError | None) -> None:
        if self._closed:
            # The user's resolver may keep the resolution of another stay, and this one has its own.
            return
        try:
            self._balancer.take_config(config)
        except ServiceConfigError as error:
            self._on_error(error)
            self.resolution.request()
            return
        if len(endpoints) != self._endpoints:
            self._endpoints = len(endpoints)
            many = "1 endpoint" if len(endpoints) == 1 else f"{len(endpoints)} endpoints"
            self._balancer._events.add(f"{self._name.text} has {many}", warning=not endpoints)
        self.resolved = True
        self._post(self._tell_update, endpoints, self._balancer.config_in_force.policy)

    def _tell_update(self, endpoints: tuple[Endpoint, ...], make_policy: PolicyFactory) -> None:
        assert self._policy is not None
        if self._switch is not None:
            self._switch.switch_to(make_policy)
        self._policy.update_endpoints(endpoints)

    def _on_error(self, error: Exception) -> None:
        assert self._policy is not None
        self._balancer._events.add(f"resolving failed: {str(error) or type(error).__name__}", warning=True)
        if self.resolved:
            # No call fails of it, so nobody else would tell.
            text = "resolving %s failed, and what was found before stays: %s: %s"
            _logger.warning(text, self._name.text, type(error).__name__, error)
            self._post(self._policy.resolver_failed, error)
            return
        failure = ConnectFailed(f"failed to resolve {self._name.text}: {str(error) or type(error).__name__}")
        failure.__cause__ = error
        self._post(self.publish, ConnectivityState.TRANSIENT_FAILURE, None, failure)

    def _on_move(self, subchannel: Subchannel) -> None:
        self._balancer._subchannel_moved(subchannel)
        self._post(self._health.move, subchannel)

    def _on_change(self, subchannel: Subchannel, state: ConnectivityState) -> None:
        self._post(self._tell_change, subchannel, state)

    def _tell_change(self, subchannel: Subchannel, state: ConnectivityState) -> None:
        if subchannel in self._subchannels:
            self._health.subchannel_changed(subchannel, state)

    def _tell_state(self, subchannel: Subchannel, state: ConnectivityState) -> None:
        assert self._policy is not None
        self._policy.subchannel_changed(subchannel, state)

    def _watch_health(self) -> None:
        assert self._policy is not None
        self._watches_health = self._policy.watches_health
        self._health.set_service(self._balancer.config_in_force.health_service if self._watches_health else None)

    # -- what the policy asks for

    def new_subchannel(self, endpoint: Endpoint) -> Subchannel:
        check_kind("endpoint", endpoint, Endpoint)
        subchannel = Subchannel(
            endpoint,
            self._balancer._connect,
            self._services,
            self._balancer._backoff,
            on_change=self._on_change,
            on_move=self._on_move,
            on_gone=self._balancer._forget,
            request_head=self._balancer._request_head,
            label=self._balancer._describe(endpoint),
            connections=self._balancer.connections,
        )
        subchannel._scale(self._balancer.config_in_force.max_connections)
        self._balancer._add(subchannel)
        self._subchannels.add(subchannel)
        self._health.add(subchannel)
        return subchannel

    def shut_down(self, subchannel: Subchannel) -> None:
        self._subchannels.discard(subchannel)
        self._health.forget(subchannel)
        subchannel._shut_down(retire=True)

    def publish(
        self,
        state: ConnectivityState,
        picker: Picker | Subchannel | None = None,
        error: Exception | None = None,
    ) -> None:
        check_published(state, picker, error)
        if not self._closed:
            self._balancer._publish(state, picker, error)
            if self._policy is not None and self._policy.watches_health is not self._watches_health:
                # A policy inside of it has made room for another one.
                self.watch_health()

    def request_resolution(self) -> None:
        self.resolution.request()

    def call_later(self, seconds: float, function: Callable[[], None]) -> Callable[[], None]:
        check_seconds("seconds", seconds)
        if not callable(function):
            raise TypeError(f"function must be callable, not {type(function).__name__}")
        called_off = False

        async def wait() -> None:
            await trio.sleep(seconds)
            self._post(call)

        def call() -> None:
            # It may have been called off after its time had come.
            if not called_off:
                function()

        def call_off() -> None:
            nonlocal called_off
            called_off = True
            scope.cancel()

        scope = self._start_soon(wait)
        return call_off
