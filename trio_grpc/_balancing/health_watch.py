"""What a policy is told of backends that say themselves whether they take calls (gRFC A17).

It stands between the subchannels of a session and its policy. A connection is told of as READY only while the backend
at its other end says that it serves; until its first answer it is CONNECTING, otherwise TRANSIENT_FAILURE.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from trio_grpc._balancing.backoff import Backoff
from trio_grpc._balancing.connectivity import ConnectivityState
from trio_grpc._balancing.subchannel import ConnectFailed, Subchannel
from trio_grpc._balancing.subchannel_call import keep_calling
from trio_grpc._balancing.wire_fields import VARINT, text_field, wire_fields
from trio_grpc._status import StatusCode
from trio_grpc._transport.header_codec import HeaderTemplate
from trio_grpc._transport.stream import Outcome

_logger = logging.getLogger("trio_grpc")

_PATH = "/grpc.health.v1.Health/Watch"
#: HealthCheckResponse.ServingStatus of grpc.health.v1.
_SERVING = 1
_STATUSES = {0: "UNKNOWN", _SERVING: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}

_CONNECTING = ConnectivityState.CONNECTING
_READY = ConnectivityState.READY
_FAILED = ConnectivityState.TRANSIENT_FAILURE


class HealthWatch:
    """Tells a policy of the states of its subchannels. All of it happens in the policy's task.

    Args:
        tell: tells the policy.
        start: starts a task, and returns the scope that cancels it.
        post: has a function called in the policy's task.
        request_head: makes the head of a request from its path.
        backoff: the waits between calls to one backend.
    """

    def __init__(
        self,
        tell: Callable[[Subchannel, ConnectivityState], None],
        start: Callable[[Callable[..., Any]], trio.CancelScope],
        post: Callable[..., None],
        request_head: Callable[[str], HeaderTemplate],
        backoff: Backoff,
    ) -> None:
        self._tell = tell
        self._start = start
        self._post = post
        self._request_head = request_head
        self._backoff = backoff
        self._service: str | None = None
        #: The subchannels that are connected, with their watches while there is a service to ask for.
        self._connected: dict[Subchannel, _Watch | None] = {}
        #: Addresses whose servers cannot be asked: told once, and not again for each connection.
        self._silent: set[str] = set()

    def set_service(self, service: str | None) -> None:
        """Ask for the health of another service from now on; of the server as a whole with "", of nothing with None."""
        if service == self._service:
            return
        self._service = service
        for subchannel in list(self._connected):
            # What the policy is told may make it let go of others.
            if subchannel in self._connected:
                self.forget(subchannel)
                self._connected[subchannel] = None
                if service is not None:
                    self._watch(subchannel, service)
                    self._tell(subchannel, _CONNECTING)
                else:
                    subchannel.error = None
                    self._tell(subchannel, _READY)

    def subchannel_changed(self, subchannel: Subchannel, state: ConnectivityState) -> None:
        """A subchannel has come to a state, by its connection alone."""
        self.forget(subchannel)
        if state is _READY:
            self._connected[subchannel] = None
            if self._service is not None:
                # The policy was told that it is CONNECTING, and that it still is.
                self._watch(subchannel, self._service)
                return
        self._tell(subchannel, state)

    def forget(self, subchannel: Subchannel) -> None:
        """A subchannel has lost its connection, or is not the policy's any more."""
        watch = self._connected.pop(subchannel, None)
        if watch is not None:
            watch.scope.cancel()

    def _watch(self, subchannel: Subchannel, service: str) -> None:
        connection = subchannel._connection
        if connection is None:
            # It has moved on since; that news is under way.
            return
        watch = _Watch(subchannel, service, partial(self._post, self._report))
        self._connected[subchannel] = watch
        head = self._request_head(_PATH)
        watch.scope = self._start(
            partial(
                keep_calling,
                connection,
                head,
                text_field(1, service),
                backoff=self._backoff,
                on_start=watch.on_start,
                on_message=watch.on_message,
                on_end=watch.on_end,
            )
        )

    def _report(self, watch: _Watch, state: ConnectivityState, problem: str = "") -> None:
        subchannel = watch.subchannel
        if self._connected.get(subchannel) is not watch:
            return
        address = subchannel.endpoint.address
        if watch.unimplemented and address not in self._silent:
            self._silent.add(address)
            _logger.warning("%s does not serve %s, and counts as healthy while it is connected", address, _PATH)
        if state is _FAILED:
            subchannel.error = ConnectFailed(problem)
        elif state is watch.told:
            return
        elif state is _READY:
            subchannel.error = None
        watch.told = state
        self._tell(subchannel, state)


class _Watch:
    """The calls that ask one backend for its health, over one connection.

    Attributes:
        subchannel: leads to it.
        scope: cancels them.
        told: the state that the policy knows.
        unimplemented: the server does not have the method.
    """

    def __init__(self, subchannel: Subchannel, service: str, report: Callable[..., None]) -> None:
        self.subchannel = subchannel
        self.scope = trio.CancelScope()
        self.told = _CONNECTING
        self.unimplemented = False
        self._name = f"service {service!r}" if service else "the server"
        self._report = report

    # These are called in the task of the calls, which must not run what is the user's.

    def on_start(self) -> None:
        self._report(self, _CONNECTING)

    def on_message(self, message: bytes | bytearray) -> None:
        try:
            status = _status_of(message)
        except ValueError as error:
            self._fail(f"its health service answers what is no HealthCheckResponse: {error}")
            return
        if status == _SERVING:
            self._report(self, _READY)
        else:
            self._fail(f"{self._name} is {_STATUSES.get(status, status)}, says its health service")

    def on_end(self, outcome: Outcome) -> None:
        if outcome.code is StatusCode.UNIMPLEMENTED:
            self.unimplemented = True
            self._report(self, _READY)
            return
        text = f"{outcome.code.name}: {outcome.message}" if outcome.message else outcome.code.name
        self._fail(f"watching the health of {self._name} ended with {text}")

    def _fail(self, problem: str) -> None:
        self._report(self, _FAILED, f"connected to {self.subchannel.endpoint}, but {problem}")


def _status_of(message: bytes | bytearray) -> int:
    """Return the status in a HealthCheckResponse: its first field, 0 where it is missing.

    Raises:
        ValueError: that is no such message.
    """
    status = 0
    for number, wire_type, value in wire_fields(message):
        if number == 1 and wire_type == VARINT:
            assert isinstance(value, int)
            status = value
    return status


__all__ = ["HealthWatch"]
