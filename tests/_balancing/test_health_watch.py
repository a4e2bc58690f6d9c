"""What a policy is told of connected backends, by what their health services say; the calls are the test's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import trio

from tests.support.policies import FakeContext, State
from trio_grpc import Endpoint, StatusCode
from trio_grpc._balancing.backoff import Backoff
from trio_grpc._balancing.health_watch import HealthWatch
from trio_grpc._transport.header_codec import HeaderTemplate
from trio_grpc._transport.stream import Outcome
from trio_grpc.health import HealthCheckRequest, HealthCheckResponse, ServingStatus

ONE, TWO = (Endpoint(f"{n}.{n}.{n}.{n}:1") for n in (1, 2))


class KeptCall:
    """What the watch has asked to be kept up, and its scope.

    Attributes:
        over: it was cancelled.
    """

    def __init__(self, call: Any) -> None:
        self.connection, self.head, self.request = call.args
        self.backoff = call.keywords["backoff"]
        self.start = call.keywords["on_start"]
        self.answer_raw = call.keywords["on_message"]
        self.on_end = call.keywords["on_end"]
        self.over = False

    def cancel(self) -> None:
        self.over = True

    def answer(self, status: Any) -> None:
        self.answer_raw(HealthCheckResponse(status=status).SerializeToString())

    def end(self, code: StatusCode, message: str = "") -> None:
        self.on_end(Outcome(code, message))

    @property
    def service(self) -> str:
        return HealthCheckRequest.FromString(self.request).service


class Bench:
    """A watch over subchannels of the test's.

    Attributes:
        calls: that were begun, in order.
        told: what the policy was told, addresses with states.
    """

    def __init__(self, service: str | None = "Greeter") -> None:
        self.calls: list[KeptCall] = []
        self.told: list[tuple[str, State]] = []
        self.context = FakeContext()
        #: What is to be called in the policy's task, while the test holds it up.
        self.held_up: list[Callable[[], None]] | None = None
        self.watch = HealthWatch(
            lambda subchannel, state: self.told.append((str(subchannel.endpoint)[0], state)),
            self._start,
            self._post,
            lambda path: HeaderTemplate(((b":path", path.encode()),)),
            Backoff(),
        )
        self.watch.set_service(service)

    def _post(self, function: Callable[..., None], *args: Any) -> None:
        if self.held_up is None:
            function(*args)
        else:
            self.held_up.append(partial(function, *args))

    def let_go(self) -> None:
        held_up, self.held_up = self.held_up, None
        assert held_up is not None
        for function in held_up:
            function()

    def _start(self, call: Any) -> trio.CancelScope:
        self.calls.append(KeptCall(call))
        return cast(trio.CancelScope, self.calls[-1])

    def add(self, endpoint: Endpoint) -> Any:
        subchannel: Any = self.context.new_subchannel(endpoint)
        subchannel._oldest = None
        # What the real one does with it is tried in its own tests.
        subchannel._hold = partial(setattr, subchannel, "held")
        self.watch.add(subchannel)
        return subchannel

    def new(self, endpoint: Endpoint = ONE) -> Any:
        subchannel = self.add(endpoint)
        self.become(subchannel, State.CONNECTING)
        self.become(subchannel, State.READY)
        return subchannel

    def become(self, subchannel: Any, state: State) -> None:
        subchannel.become(state)
        subchannel._oldest = object() if state is State.READY else None
        self.watch.subchannel_changed(subchannel, state)

    @property
    def states(self) -> list[State]:
        return [state for _, state in self.told]


def test_without_a_service_all_is_told_as_it_is() -> None:
    bench = Bench(None)
    subchannel = bench.new()
    bench.become(subchannel, State.IDLE)
    bench.become(subchannel, State.TRANSIENT_FAILURE)
    assert bench.states == [State.CONNECTING, State.READY, State.IDLE, State.TRANSIENT_FAILURE]
    assert bench.calls == []


def test_a_backend_is_ready_when_it_says_that_it_serves() -> None:
    bench = Bench()
    subchannel = bench.new()
    (call,) = bench.calls
    assert call.service == "Greeter"
    assert call.connection is subchannel._oldest
    assert dict(call.head.fields)[b":path"] == b"/grpc.health.v1.Health/Watch"
    call.start()
    assert bench.states == [State.CONNECTING]
    call.answer(ServingStatus.SERVING)
    assert bench.states == [State.CONNECTING, State.READY]
    assert subchannel.error is None


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (ServingStatus.NOT_SERVING, "NOT_SERVING"),
        (ServingStatus.UNKNOWN, "UNKNOWN"),
        (ServingStatus.SERVICE_UNKNOWN, "SERVICE_UNKNOWN"),
        (77, "77"),
    ],
)
def test_any_other_answer_fails_and_says_so(status: Any, word: str) -> None:
    bench = Bench()
    subchannel = bench.new()
    bench.calls[0].answer(status)
    assert bench.states == [State.CONNECTING, State.TRANSIENT_FAILURE]
    assert str(subchannel.error) == f"connected to 1.1.1.1:1, but service 'Greeter' is {word}, says its health service"
    bench.calls[0].answer(ServingStatus.SERVING)
    assert bench.states[2:] == [State.READY]
    assert subchannel.error is None


def test_a_policy_is_not_told_again_what_it_knows() -> None:
    # Each time it would have the addresses resolved again.
    bench = Bench()
    bench.new()
    for status in (ServingStatus.NOT_SERVING, ServingStatus.UNKNOWN, ServingStatus.SERVING):
        for _ in range(100):
            bench.calls[0].answer(status)
    # Another reason is news.
    failed = State.TRANSIENT_FAILURE
    assert bench.states == [State.CONNECTING, failed, failed, State.READY]


def test_the_server_as_a_whole_has_no_name() -> None:
    bench = Bench("")
    subchannel = bench.new()
    assert bench.calls[0].request == b""
    bench.calls[0].answer(ServingStatus.NOT_SERVING)
    assert str(subchannel.error) == "connected to 1.1.1.1:1, but the server is NOT_SERVING, says its health service"


def test_the_last_status_counts_and_other_fields_are_skipped() -> None:
    bench = Bench()
    bench.new()
    # A later version may say more, and a field may come twice (protobuf, "Encoding").
    bench.calls[0].answer_raw(b"\x08\x02\x12\x03new\x0a\x01x\x08\x01")
    assert bench.states[1:] == [State.READY]


def test_an_answer_that_is_none_fails() -> None:
    bench = Bench()
    subchannel = bench.new()
    bench.calls[0].answer_raw(b"\x0a\x05x")
    assert bench.states[1:] == [State.TRANSIENT_FAILURE]
    assert "no HealthCheckResponse: field 1 ends after the message" in str(subchannel.error)


def test_a_call_that_fails_fails_the_backend_until_it_answers_again() -> None:
    bench = Bench()
    subchannel = bench.new()
    (call,) = bench.calls
    call.answer(ServingStatus.SERVING)
    call.end(StatusCode.INTERNAL, "a defect")
    assert bench.states[2:] == [State.TRANSIENT_FAILURE]
    error = str(subchannel.error)
    assert error == "connected to 1.1.1.1:1, but watching the health of service 'Greeter' ended with INTERNAL: a defect"
    call.start()
    assert bench.states[3:] == [State.CONNECTING]
    # Whoever stays TRANSIENT_FAILURE through that has something to say.
    assert str(subchannel.error) == error
    call.answer(ServingStatus.SERVING)
    assert bench.states[4:] == [State.READY]


def test_even_a_good_end_is_an_end() -> None:
    bench = Bench()
    subchannel = bench.new()
    bench.calls[0].answer(ServingStatus.SERVING)
    bench.calls[0].end(StatusCode.OK)
    assert bench.states[2:] == [State.TRANSIENT_FAILURE]
    assert str(subchannel.error).endswith("ended with OK")


def test_a_server_without_health_counts_as_healthy(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "trio_grpc")
    bench = Bench()
    subchannel = bench.new()
    bench.calls[0].end(StatusCode.UNIMPLEMENTED, "unknown service")
    assert bench.states[1:] == [State.READY]
    # Asked again over each new connection, as the server may be a new one; but told once.
    bench.become(subchannel, State.IDLE)
    bench.become(subchannel, State.CONNECTING)
    bench.become(subchannel, State.READY)
    bench.calls[1].answer(ServingStatus.SERVING)
    bench.calls[1].end(StatusCode.UNIMPLEMENTED, "unknown service")
    assert bench.states[2:] == [State.IDLE, State.CONNECTING, State.READY]
    (message,) = caplog.messages
    assert message == (
        "1.1.1.1:1 does not serve /grpc.health.v1.Health/Watch, and counts as healthy while it is connected"
    )
    caplog.clear()


def test_the_watch_ends_with_the_connection() -> None:
    bench = Bench()
    subchannel = bench.new()
    (call,) = bench.calls
    bench.become(subchannel, State.IDLE)
    assert call.over
    # What was under way is not told any more.
    call.answer(ServingStatus.SERVING)
    call.end(StatusCode.UNAVAILABLE)
    call.start()
    assert bench.states == [State.CONNECTING, State.IDLE]


def test_the_watch_ends_with_the_subchannel() -> None:
    bench = Bench()
    subchannel = bench.new()
    for _ in range(2):
        bench.watch.forget(subchannel)
    assert bench.calls[0].over
    bench.calls[0].answer(ServingStatus.SERVING)
    bench.watch.set_service("Other")
    assert bench.states == [State.CONNECTING]


def test_a_connection_that_has_gone_meanwhile_is_not_asked() -> None:
    bench = Bench()
    subchannel = bench.add(ONE)
    bench.watch.subchannel_changed(subchannel, State.READY)
    assert (bench.calls, bench.told) == ([], [])
    bench.watch.subchannel_changed(subchannel, State.IDLE)
    assert bench.states == [State.IDLE]


def test_another_service_is_asked_for_at_once() -> None:
    bench = Bench()
    bench.new(ONE)
    bench.new(TWO)
    for call in bench.calls:
        call.answer(ServingStatus.SERVING)
    bench.told.clear()
    bench.watch.set_service("Greeter")
    assert (bench.told, len(bench.calls)) == ([], 2)
    bench.watch.set_service("Other")
    assert bench.told == [("1", State.CONNECTING), ("2", State.CONNECTING)]
    assert [call.over for call in bench.calls] == [True, True, False, False]
    assert [call.service for call in bench.calls[2:]] == ["Other", "Other"]
    # An old answer is no answer.
    bench.calls[0].answer(ServingStatus.NOT_SERVING)
    bench.calls[2].answer(ServingStatus.NOT_SERVING)
    bench.calls[3].answer(ServingStatus.SERVING)
    assert bench.told[2:] == [("1", State.TRANSIENT_FAILURE), ("2", State.READY)]


def test_switched_on_and_off() -> None:
    bench = Bench(None)
    subchannel = bench.new()
    bench.watch.set_service("Greeter")
    assert bench.states[1:] == [State.READY, State.CONNECTING]
    bench.calls[0].answer(ServingStatus.NOT_SERVING)
    bench.watch.set_service(None)
    assert bench.calls[0].over
    assert bench.states[3:] == [State.TRANSIENT_FAILURE, State.READY]
    assert subchannel.error is None
    bench.calls[0].answer(ServingStatus.NOT_SERVING)
    assert len(bench.told) == 5


def test_a_policy_may_let_go_of_subchannels_while_it_is_told() -> None:
    bench = Bench()
    bench.new(ONE)
    two = bench.new(TWO)
    bench.watch._tell = lambda subchannel, state: bench.watch.forget(two)
    bench.watch.set_service("Other")
    assert [call.over for call in bench.calls] == [True, True, False]


def test_no_call_may_use_a_connection_before_its_backend_has_said_yes() -> None:
    bench = Bench()
    subchannel = bench.add(ONE)
    assert subchannel.held
    bench.become(subchannel, State.CONNECTING)
    bench.become(subchannel, State.READY)
    assert subchannel.held
    (call,) = bench.calls
    call.answer(ServingStatus.SERVING)
    assert not subchannel.held
    call.answer(ServingStatus.NOT_SERVING)
    assert subchannel.held
    call.answer(ServingStatus.SERVING)
    bench.become(subchannel, State.IDLE)
    # The next connection may be there before the policy hears of it.
    assert subchannel.held
    bench.watch.set_service(None)
    assert not subchannel.held
    bench.become(subchannel, State.READY)
    assert not subchannel.held


def test_the_watch_moves_to_another_connection_of_the_same_backend() -> None:
    bench = Bench()
    subchannel = bench.new()
    bench.calls[0].answer(ServingStatus.SERVING)
    bench.watch.move(subchannel)
    assert len(bench.calls) == 1
    subchannel._oldest = object()
    bench.watch.move(subchannel)
    assert [call.over for call in bench.calls] == [True, False]
    assert bench.calls[1].connection is subchannel._oldest
    bench.calls[1].start()
    # It is the same backend, and nothing has changed so far.
    assert bench.states == [State.CONNECTING, State.READY]
    assert not subchannel.held
    bench.calls[1].answer(ServingStatus.SERVING)
    assert len(bench.told) == 2
    bench.calls[1].answer(ServingStatus.NOT_SERVING)
    assert bench.states[2:] == [State.TRANSIENT_FAILURE]


def test_the_watch_does_not_move_without_a_connection_or_a_service() -> None:
    bench = Bench()
    subchannel = bench.new()
    subchannel._oldest = None
    bench.watch.move(subchannel)
    assert [call.over for call in bench.calls] == [False]
    bench.watch.set_service(None)
    subchannel._oldest = object()
    bench.watch.move(subchannel)
    bench.watch.forget(subchannel)
    bench.watch.move(subchannel)
    assert len(bench.calls) == 1


def test_of_answers_that_wait_to_be_told_only_the_newest_counts() -> None:
    bench = Bench()
    subchannel = bench.new()
    (call,) = bench.calls
    bench.held_up = []
    for _ in range(1000):
        call.answer(ServingStatus.SERVING)
        call.answer(ServingStatus.NOT_SERVING)
    assert len(bench.held_up) == 1
    bench.let_go()
    assert bench.states[1:] == [State.TRANSIENT_FAILURE]
    assert "NOT_SERVING" in str(subchannel.error)
    call.answer(ServingStatus.SERVING)
    assert bench.states[2:] == [State.READY]


def test_an_answer_of_the_next_call_does_not_overtake_the_end_of_this_one() -> None:
    bench = Bench()
    bench.new()
    (call,) = bench.calls
    bench.held_up = []
    call.answer(ServingStatus.NOT_SERVING)
    call.end(StatusCode.UNAVAILABLE)
    call.start()
    call.answer(ServingStatus.SERVING)
    bench.let_go()
    assert bench.states[1:] == [State.TRANSIENT_FAILURE, State.TRANSIENT_FAILURE, State.CONNECTING, State.READY]
