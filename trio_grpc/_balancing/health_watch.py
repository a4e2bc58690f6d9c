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
from trio_grpc._transport.connection import Connection
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
        #: All subchannels; those that are connected while there is a service to ask for, with their watches.
        self._watches: dict[Subchannel, _Watch | None] = {}
        self._connected: set[Subchannel] = set()
        #: Addresses whose servers cannot be asked: told once, and not again for each connection.
        self._silent: set[str] = set()

    def add(self, subchannel: Subchannel) -> None:
        """There is a new subchannel."""
        self._watches[subchannel] = None
        subchannel._hold(self._service is not None)

    def forget(self, subchannel: Subchannel) -> None:
        """A subchannel is not the policy's any more; maybe it was told twice."""
        if subchannel in self._watches:
            self._stop(subchannel)
            self._connected.discard(subchannel)
            del self._watches[subchannel]

    def set_service(self, service: str | None) -> None:
        """Ask for the health of another service from now on; of the server as a whole with "", of nothing with None."""
        if service == self._service:
            return
        self._service = service
        for subchannel in list(self._watches):
            # What the policy is told may make it let go of others.
            if subchannel in self._watches:
                self._stop(subchannel)
                if subchannel in self._connected:
                    self._begin(subchannel, _CONNECTING)

    def subchannel_changed(self, subchannel: Subchannel, state: ConnectivityState) -> None:
        """A subchannel has come to a state, by its connections alone."""
        self._stop(subchannel)
        if state is _READY:
            self._connected.add(subchannel)
            self._begin(subchannel, None)
        else:
            self._connected.discard(subchannel)
            self._tell(subchannel, state)

    def move(self, subchannel: Subchannel) -> None:
        """The oldest connection of a subchannel is another one now."""
        watch = self._watches.get(subchannel)
        if watch is not None and subchannel._oldest not in (None, watch.connection):
            # The backend is the same one, and what it has said holds until it says something else.
            watch.scope.cancel()
            self._watch(subchannel, watch.told)

    def _stop(self, subchannel: Subchannel) -> None:
        watch = self._watches[subchannel]
        if watch is not None:
            watch.scope.cancel()
            self._watches[subchannel] = None
        # Whatever connection comes next: no call may be quicker than what the backend has to say.
        subchannel._hold(self._service is not None)

    def _begin(self, subchannel: Subchannel, told: ConnectivityState | None) -> None:
        """There is a connection that nobody has been asked about.

        Args:
            subchannel: has it.
            told: what to tell the policy while there is no answer; None where it knows that already.
        """
        if self._service is None:
            _clear_error(subchannel)
            self._tell(subchannel, _READY)
            return
        self._watch(subchannel, _CONNECTING)
        if told is not None:
            self._tell(subchannel, told)

    def _watch(self, subchannel: Subchannel, told: ConnectivityState) -> None:
        connection, service = subchannel._oldest, self._service
        if connection is None or service is None:
            # It has moved on since; that news is under way.
            return
        watch = _Watch(subchannel, connection, service, told, self._post, self._report)
        self._watches[subchannel] = watch
        watch.scope = self._start(
            partial(
                keep_calling,
                connection,
                self._request_head(_PATH),
                text_field(1, service),
                backoff=self._backoff,
                on_start=watch.on_start,
                on_message=watch.on_message,
                on_end=watch.on_end,
            )
        )

    def _report(self, watch: _Watch, state: ConnectivityState, problem: str) -> None:
        subchannel = watch.subchannel
        if self._watches.get(subchannel) is not watch:
            return
        address = subchannel.endpoint.address
        if watch.unimplemented and address not in self._silent:
            self._silent.add(address)
            _logger.warning("%s does not serve %s, and counts as healthy while it is connected", address, _PATH)
        if (state, problem) == (watch.told, watch.problem):
            # A server may say it again as often as it likes.
            return
        if state is _FAILED:
            subchannel.error = ConnectFailed(problem)
        elif state is _READY:
            _clear_error(subchannel)
        watch.told, watch.problem = state, problem
        subchannel._hold(state is not _READY)
        self._tell(subchannel, state)


def _clear_error(subchannel: Subchannel) -> None:
    """What a watch has said is no more. News come late: why the connection has been lost since stays."""
    if subchannel.state is _READY:
        subchannel.error = None


class _Watch:
    """The calls that ask one backend for its health, over one connection.

    Attributes:
        subchannel: leads to it.
        connection: carries them.
        scope: cancels them.
        told: the state that the policy knows.
        problem: why, where that is a failure that this watch has told.
        unimplemented: the server does not have the method.
    """

    def __init__(
        self,
        subchannel: Subchannel,
        connection: Connection,
        service: str,
        told: ConnectivityState,
        post: Callable[..., None],
        report: Callable[[_Watch, ConnectivityState, str], None],
    ) -> None:
        self.subchannel = subchannel
        self.connection = connection
        self.scope = trio.CancelScope()
        self.told = told
        self.problem = ""
        self.unimplemented = False
        self._ended = False
        self._name = f"service {service!r}" if service else "the server"
        self._post = post
        self._report = report
        #: The answer that is posted and not yet reported.
        self._answer: _Answer | None = None

    # These are called in the task of the calls, which must not run what is the user's.

    def on_start(self) -> None:
        if self._ended:
            self._post(self._report, self, _CONNECTING, "")

    def on_message(self, message: bytes | bytearray) -> None:
        state, problem = self._read(message)
        if self._answer is None:
            self._answer = _Answer(state, problem)
            self._post(self._report_answer, self._answer)
        else:
            # Only the newest counts, and a backend that keeps changing its mind fills no memory.
            self._answer.state, self._answer.problem = state, problem

    def on_end(self, outcome: Outcome) -> None:
        self._ended = True
        self._answer = None
        if outcome.code is StatusCode.UNIMPLEMENTED:
            self.unimplemented = True
            self._post(self._report, self, _READY, "")
            return
        text = f"{outcome.code.name}: {outcome.message}" if outcome.message else outcome.code.name
        problem = self._problem(f"watching the health of {self._name} ended with {text}")
        self._post(self._report, self, _FAILED, problem)

    def _report_answer(self, answer: _Answer) -> None:
        if answer is self._answer:
            self._answer = None
        self._report(self, answer.state, answer.problem)

    def _read(self, message: bytes | bytearray) -> tuple[ConnectivityState, str]:
        try:
            status = _status_of(message)
        except ValueError as error:
            return _FAILED, self._problem(f"its health service answers what is no HealthCheckResponse: {error}")
        if status == _SERVING:
            return _READY, ""
        return _FAILED, self._problem(f"{self._name} is {_STATUSES.get(status, status)}, says its health service")

    def _problem(self, problem: str) -> str:
        return f"connected to {self.subchannel.endpoint}, but {problem}"


class _Answer:
    """What a backend has said, in the words of a policy."""

    __slots__ = ("problem", "state")

    def __init__(self, state: ConnectivityState, problem: str) -> None:
        self.state = state
        self.problem = problem


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
