"""Retries under a policy (gRFC A6), for every kind of call."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.behaviour.scripted import Background, ScriptedServer
from tests.support.backends import Backend
from tests.support.retries import (
    FAIL,
    OPERATIONS,
    End,
    Flaky,
    Operation,
    answer,
    assert_no_garbage_of_calls,
    configure,
    every_kind,
    head_of,
    retry_policy,
)
from trio_grpc import MethodConfig, RetryThrottling, RpcError, ServiceConfig, StatusCode
from trio_grpc.testing import ErrorCode, ManualResolver, open_channel_pair

Clock = trio.testing.MockClock
pytestmark = pytest.mark.usefixtures("quiet_log", "exact_backoff")

HELLO = EchoRequest(text="hello")


@pytest.fixture
def exact_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose the middle of the jitter."""
    monkeypatch.setattr(random, "uniform", lambda low, high: (low + high) / 2)


# ---------------------------------------------------------------------------------------------------------------------
# Awaited unary calls


async def test_a_failed_call_is_tried_again_after_longer_and_longer_waits(autojump_clock: Clock) -> None:
    flaky = Flaky(FAIL, FAIL, FAIL)
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, retry_policy=retry_policy())
        reply = await EchoStub(channel).Unary(HELLO)
    assert reply.text == "hello"
    assert flaky.times == [0, 1, 3, 7]
    assert flaky.previous == [[], ["1"], ["2"], ["3"]]


async def test_the_error_is_that_of_the_last_attempt(autojump_clock: Clock) -> None:
    flaky = Flaky(*[End(code=StatusCode.UNAVAILABLE, message=f"number {number}") for number in range(9)])
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, retry_policy=retry_policy(max_attempts=3))
        with pytest.raises(RpcError, match="number 2") as caught:
            await EchoStub(channel).Unary(HELLO)
    assert caught.value.trailing_metadata["attempt"] == "3"
    assert len(flaky.attempts) == 3


async def test_a_code_that_is_not_listed_ends_the_call(autojump_clock: Clock) -> None:
    flaky = Flaky(FAIL, End(code=StatusCode.ABORTED))
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, retry_policy=retry_policy())
        with pytest.raises(RpcError, match="ABORTED"):
            await EchoStub(channel).Unary(HELLO)
    assert len(flaky.attempts) == 2


async def test_response_headers_commit_a_call(autojump_clock: Clock) -> None:
    flaky = Flaky(End(code=StatusCode.UNAVAILABLE, headers=True))
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, retry_policy=retry_policy())
        with pytest.raises(RpcError) as caught:
            await EchoStub(channel).Unary(HELLO)
    assert caught.value.initial_metadata["attempt"] == "1"
    assert len(flaky.attempts) == 1


async def test_pushback_sets_the_wait_exactly_and_begins_the_backoff_anew(autojump_clock: Clock) -> None:
    flaky = Flaky(FAIL, End(code=StatusCode.UNAVAILABLE, pushback=("70000",)), FAIL)
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, retry_policy=retry_policy())
        await EchoStub(channel).Unary(HELLO)
    assert flaky.times == [0, 1, 71, 72]


@pytest.mark.parametrize("values", [("-1",), ("soon",), ("1", "1")])
async def test_pushback_may_forbid_retries(values: tuple[str, ...], autojump_clock: Clock) -> None:
    flaky = Flaky(End(code=StatusCode.UNAVAILABLE, pushback=values))
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, retry_policy=retry_policy())
        with pytest.raises(RpcError) as caught:
            await EchoStub(channel).Unary(HELLO)
    assert caught.value.trailing_metadata.get_all("grpc-retry-pushback-ms") == values
    assert len(flaky.attempts) == 1


async def test_the_throttle_stops_retries_and_successes_let_them_go_on(autojump_clock: Clock) -> None:
    flaky = Flaky(*[FAIL] * 4)
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, RetryThrottling(max_tokens=6, token_ratio=0.5), retry_policy=retry_policy())
        stub = EchoStub(channel)
        with pytest.raises(RpcError):
            await stub.Unary(HELLO)
        # The third failure left 3 of 6 tokens.
        assert len(flaky.attempts) == 3
        with pytest.raises(RpcError):
            await stub.Unary(HELLO)
        assert len(flaky.attempts) == 4
        for _ in range(3):
            await stub.Unary(HELLO)
        assert channel._retry_throttle is not None
        assert channel._retry_throttle.tokens == 3.5
        flaky._ends = [FAIL]
        with pytest.raises(RpcError):
            await stub.Unary(HELLO)
        assert channel._retry_throttle.tokens == 2.5


async def test_calls_without_a_policy_give_tokens_too(autojump_clock: Clock) -> None:
    async with open_channel_pair(Flaky()) as (channel, _):
        configure(channel, RetryThrottling(max_tokens=6, token_ratio=0.5))
        assert channel._retry_throttle is not None
        channel._retry_throttle.failed()
        await EchoStub(channel).Unary(HELLO)
        assert channel._retry_throttle.tokens == 5.5


async def test_the_deadline_covers_all_attempts_and_their_waits(autojump_clock: Clock) -> None:
    flaky = Flaky(*[End(code=StatusCode.UNAVAILABLE, message="overloaded", after=2)] * 4)
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, retry_policy=retry_policy())
        began = trio.current_time()
        with pytest.raises(RpcError) as caught:
            await EchoStub(channel).Unary(HELLO, timeout=6)
        assert trio.current_time() - began == pytest.approx(6)
    assert caught.value.code is StatusCode.DEADLINE_EXCEEDED
    assert caught.value.message == "deadline of 6 s exceeded; the last attempt ended with UNAVAILABLE: overloaded"
    assert flaky.times == [0, 3]


async def test_the_deadline_tells_of_the_last_attempt_also_where_the_next_one_has_no_connection(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    backend = Backend(nursery, "backend")
    await backend.start(Flaky(FAIL))
    resolver = ManualResolver(backend.endpoint)
    config = ServiceConfig(methods=[MethodConfig(retry_policy=retry_policy())])
    async with trio_grpc.open_channel("test:///a", resolvers={"test": resolver}, service_config=config) as channel:
        call = Background(nursery, EchoStub(channel).Unary, HELLO, timeout=6, wait_for_ready=True)
        await trio.sleep(0.5)
        await backend.stop()
        error = await call.error()
    assert (error.code, error.message) == (
        StatusCode.DEADLINE_EXCEEDED,
        "deadline of 6 s exceeded; the last attempt ended with UNAVAILABLE: overloaded",
    )


async def test_each_attempt_is_told_what_is_left_of_the_deadline(autojump_clock: Clock) -> None:
    left = []

    class Telling(Flaky):
        async def Unary(self, request: EchoRequest, context: Any, /) -> EchoReply:
            left.append(round(context.time_remaining()))
            return await super().Unary(request, context)

    async with open_channel_pair(Telling(FAIL, FAIL)) as (channel, _):
        configure(channel, retry_policy=retry_policy())
        await EchoStub(channel).Unary(HELLO, timeout=10)
    assert left == [10, 9, 7]


async def test_a_status_that_comes_with_the_deadline_is_not_tried_again(autojump_clock: Clock) -> None:
    flaky = Flaky(End(code=StatusCode.DEADLINE_EXCEEDED, after=50))
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, retry_policy=retry_policy(retryable_status_codes={StatusCode.DEADLINE_EXCEEDED}))
        with pytest.raises(RpcError, match="DEADLINE_EXCEEDED"):
            await EchoStub(channel).Unary(HELLO, timeout=5)
    assert len(flaky.attempts) == 1


@pytest.mark.parametrize("moment", [0.5, 1.5], ids=["during the wait", "during the second attempt"])
async def test_a_cancelled_call_has_no_further_attempts(moment: float, autojump_clock: Clock) -> None:
    flaky = Flaky(FAIL, End(after=50))
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, retry_policy=retry_policy())
        with trio.move_on_after(moment) as scope:
            await EchoStub(channel).Unary(HELLO)
        assert scope.cancelled_caught
        await trio.sleep(100)
        assert [attempt.cancelled for attempt in flaky.attempts] == [False, True][: 1 + (moment > 1)]


async def test_closing_the_channel_ends_the_wait(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    flaky = Flaky(FAIL)
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, retry_policy=retry_policy(initial_backoff=1000, max_backoff=1000))

        async def close() -> None:
            await trio.sleep(1)
            await channel.aclose()

        nursery.start_soon(close)
        began = trio.current_time()
        with pytest.raises(trio.ClosedResourceError, match="channel closed"):
            await EchoStub(channel).Unary(HELLO)
        assert trio.current_time() - began < 2


async def test_a_request_over_the_buffer_limit_has_one_attempt(autojump_clock: Clock) -> None:
    limits = trio_grpc.Limits(adaptive_window=False, retry_buffer_size=1000)
    for size, attempts in ((900, 2), (1100, 1)):
        flaky = Flaky(FAIL)
        async with open_channel_pair(flaky, limits=limits) as (channel, _):
            configure(channel, retry_policy=retry_policy())
            if attempts == 2:
                await EchoStub(channel).Unary(EchoRequest(payload=bytes(size)))
            else:
                with pytest.raises(RpcError, match="overloaded"):
                    await EchoStub(channel).Unary(EchoRequest(payload=bytes(size)))
        assert len(flaky.attempts) == attempts


async def test_retries_may_be_turned_off(autojump_clock: Clock) -> None:
    flaky = Flaky(FAIL)
    async with open_channel_pair(flaky, retries=False) as (channel, _):
        configure(channel, retry_policy=retry_policy())
        with pytest.raises(RpcError, match="overloaded"):
            await EchoStub(channel).Unary(HELLO)


async def test_failing_to_connect_is_a_failed_attempt(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backend = Backend(nursery, "a")
    flaky = Flaky()
    async with trio_grpc.open_channel(backend.endpoint._dialled) as channel:
        configure(channel, retry_policy=retry_policy(max_attempts=5, initial_backoff=3))
        began = trio.current_time()

        async def start() -> None:
            await trio.sleep(2)
            await backend.start(flaky)  # type: ignore[arg-type]

        nursery.start_soon(start)
        assert (await EchoStub(channel).Unary(HELLO)).text == "hello"
        assert trio.current_time() - began == pytest.approx(3)
    assert flaky.previous == [["1"]]


# ---------------------------------------------------------------------------------------------------------------------
# Every kind of call


@every_kind
async def test_calls_of_every_kind_are_tried_again(operation: Operation, autojump_clock: Clock) -> None:
    flaky = Flaky(FAIL, FAIL)
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, retry_policy=retry_policy())
        await operation(EchoStub(channel))
        await trio.testing.wait_all_tasks_blocked()
        assert channel._retry_bytes == 0
    # Some operations take three seconds to send what they send.
    assert flaky.times[1] in (1, 4)
    assert flaky.previous == [[], ["1"], ["2"]]
    # Each attempt was given all that the first was given.
    assert len({len(attempt.requests) for attempt in flaky.attempts}) == 1


@every_kind
async def test_the_last_failure_is_that_of_the_call(operation: Operation, autojump_clock: Clock) -> None:
    flaky = Flaky(*[End(code=StatusCode.UNAVAILABLE, message=f"number {number}") for number in range(9)])
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, retry_policy=retry_policy(max_attempts=2))
        with pytest.raises(RpcError, match="UNAVAILABLE: number 1") as caught:
            await operation(EchoStub(channel))
        assert caught.value.trailing_metadata["attempt"] == "2"
    assert len(flaky.attempts) == 2


@every_kind
async def test_cancelling_a_call_while_it_waits(operation: Operation, autojump_clock: Clock) -> None:
    flaky = Flaky(FAIL, FAIL)
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, retry_policy=retry_policy(initial_backoff=20))
        with trio.move_on_after(10) as scope:
            await operation(EchoStub(channel))
        assert scope.cancelled_caught
        await trio.sleep(100)
        assert (channel._retry_bytes, channel.statistics().streams) == (0, 0)
    assert len(flaky.attempts) == 1


@every_kind
async def test_the_timeout_of_a_call_is_over_while_it_waits(operation: Operation, autojump_clock: Clock) -> None:
    flaky = Flaky(FAIL, FAIL)
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, retry_policy=retry_policy(initial_backoff=20), timeout=10)
        began = trio.current_time()
        with pytest.raises(RpcError) as caught:
            await operation(EchoStub(channel))
        assert trio.current_time() - began == pytest.approx(10)
        assert caught.value.code is StatusCode.DEADLINE_EXCEEDED
        assert caught.value.message.endswith("; the last attempt ended with UNAVAILABLE: overloaded")
        await trio.sleep(100)
        assert (channel._retry_bytes, channel.statistics().streams) == (0, 0)
    assert len(flaky.attempts) == 1


async def test_the_initial_metadata_is_that_of_the_attempt_that_counts(autojump_clock: Clock) -> None:
    async with open_channel_pair(Flaky(FAIL)) as (channel, _):
        configure(channel, retry_policy=retry_policy())
        async with EchoStub(channel).Unary.open(HELLO) as call:
            assert (await call.wait_initial_metadata())["attempt"] == "2"
            assert (await call.receive()).text == "hello"
            assert call.status is StatusCode.OK


async def test_response_headers_commit_a_block(autojump_clock: Clock) -> None:
    flaky = Flaky(FAIL, End(code=StatusCode.UNAVAILABLE, headers=True, message="late"))
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, RetryThrottling(max_tokens=10, token_ratio=1), retry_policy=retry_policy())
        async with EchoStub(channel).ServerStream(HELLO) as call:
            assert (await call.wait_initial_metadata())["attempt"] == "2"
            with pytest.raises(RpcError, match="late"):
                await call.receive()
        assert channel._retry_throttle is not None
        assert channel._retry_throttle.tokens == 8
        async with EchoStub(channel).ServerStream(HELLO) as call:
            assert [reply async for reply in call] == []
        assert channel._retry_throttle.tokens == 9
        # What the caller itself ends is no sign of anything.
        async with EchoStub(channel).Bidi() as call:
            await call.send(HELLO)
            await call.receive()
        assert channel._retry_throttle.tokens == 9
    assert len(flaky.attempts) == 4


async def test_a_stream_of_requests_is_replayed_and_goes_on(autojump_clock: Clock) -> None:
    flaky = Flaky(End(code=StatusCode.UNAVAILABLE, read=1), End(code=StatusCode.UNAVAILABLE, read=2))
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, retry_policy=retry_policy())
        async with EchoStub(channel).Bidi() as call:
            for text in "abcde":
                await call.send(EchoRequest(text=text))
                await trio.sleep(0.7)
            await call.done_sending()
            assert [reply.text async for reply in call] == list("abcde")
    assert [[request.text for request in attempt.requests] for attempt in flaky.attempts] == [
        ["a"],
        ["a", "b"],
        list("abcde"),
    ]


async def test_more_than_may_be_kept_commits_a_call(autojump_clock: Clock) -> None:
    flaky = Flaky(FAIL, End(code=StatusCode.UNAVAILABLE, message="committed"))
    limits = trio_grpc.Limits(adaptive_window=False, retry_buffer_size=100)
    async with open_channel_pair(flaky, limits=limits) as (channel, _):
        configure(channel, retry_policy=retry_policy())
        async with EchoStub(channel).ClientStream.open() as call:
            await call.send(EchoRequest(payload=bytes(60)))
            await trio.sleep(0.5)
            await call.done_sending()
            await trio.lowlevel.checkpoint()
        async with EchoStub(channel).ClientStream.open() as call:
            await call.send(EchoRequest(payload=bytes(60)))
            await call.send(EchoRequest(payload=bytes(60)))
            await call.done_sending()
            with pytest.raises(RpcError, match="committed"):
                await call.receive()


async def test_a_channel_that_is_closed_ends_a_call_that_waits(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    async with open_channel_pair(Flaky(FAIL)) as (channel, _):
        configure(channel, retry_policy=retry_policy(initial_backoff=1000, max_backoff=1000))

        async def close() -> None:
            await trio.sleep(1)
            await channel.aclose()

        async with EchoStub(channel).Unary.open(HELLO) as call:
            nursery.start_soon(close)
            began = trio.current_time()
            with pytest.raises(trio.ClosedResourceError, match="channel closed"):
                await call.receive()
            assert trio.current_time() - began < 2


# ---------------------------------------------------------------------------------------------------------------------
# No connection


@every_kind
async def test_no_connection_is_a_failed_attempt_of_every_kind(
    operation: Operation, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    backend = Backend(nursery, "a")
    flaky = Flaky()
    async with trio_grpc.open_channel(backend.endpoint._dialled) as channel:
        configure(channel, retry_policy=retry_policy(initial_backoff=3))

        async def start() -> None:
            await trio.sleep(2)
            await backend.start(flaky)  # type: ignore[arg-type]

        nursery.start_soon(start)
        await operation(EchoStub(channel))
    assert flaky.previous == [["1"]]


async def test_a_block_is_not_entered_where_all_attempts_find_no_connection(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    backend = Backend(nursery, "a")
    async with trio_grpc.open_channel(backend.endpoint._dialled) as channel:
        configure(channel, retry_policy=retry_policy(initial_backoff=3))
        began = trio.current_time()
        with pytest.raises(RpcError, match=r"UNAVAILABLE: failed to connect .* no server here") as caught:
            async with EchoStub(channel).Bidi():
                raise AssertionError("entered")
        assert isinstance(caught.value.__cause__, ConnectionRefusedError)
        assert trio.current_time() - began == pytest.approx(3 + 6 + 12)
        with pytest.raises(RpcError, match="DEADLINE_EXCEEDED"):
            async with EchoStub(channel).Bidi(timeout=7):
                raise AssertionError("entered")
        with trio.move_on_after(7) as scope:
            async with EchoStub(channel).Bidi():
                raise AssertionError("entered")
        assert scope.cancelled_caught
        assert channel.statistics().unconnected == 0


async def test_a_connection_that_is_lost_costs_no_call_that_may_be_tried_again(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    backends = [Backend(nursery, name) for name in "ab"]
    for backend in backends:
        await backend.start(Flaky(*[End(after=10)] * 9))  # type: ignore[arg-type]
    resolver = ManualResolver(*[backend.endpoint for backend in backends])
    async with trio_grpc.open_channel(
        "test:all", resolvers={"test": resolver}, load_balancing="round_robin"
    ) as channel:
        configure(channel, retry_policy=retry_policy())
        await channel.wait_ready()
        stub = EchoStub(channel)
        calls = [Background(nursery, operation, stub) for operation in OPERATIONS]
        await trio.sleep(1)
        await backends[0].stop()
        for call in calls:
            await call.result()


# ---------------------------------------------------------------------------------------------------------------------
# Answers that are none


async def test_an_answer_that_is_not_grpc_does_not_commit(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    for operation in OPERATIONS:
        async with ScriptedServer() as scripted:
            configure(scripted.channel, retry_policy=retry_policy())
            call = Background(nursery, operation, scripted.stub)
            peer = await scripted.accept()
            await head_of(peer, 1)
            await peer.send_headers(1, [(":status", "503"), ("content-type", "text/html")])
            await trio.sleep(0.5)
            await peer.send_data(1, b"<h1>Sorry</h1>", end_stream=True)
            head = await head_of(peer, 3)
            assert head["grpc-previous-rpc-attempts"] == "1"
            await answer(peer, 3)
            assert await call.result() == ["done"]
            await peer.aclose()


async def test_an_answer_without_messages_is_a_success(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    """OK in Trailers-Only."""
    async with ScriptedServer() as scripted:
        configure(scripted.channel, RetryThrottling(max_tokens=10, token_ratio=0.5), retry_policy=retry_policy())
        throttle = scripted.channel._retry_throttle
        assert throttle is not None
        throttle.failed()
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.ServerStream(HELLO) as call:
            peer = await accepted.result()
            await head_of(peer, 1)
            await peer.send_trailers_only(1, StatusCode.OK)
            assert [reply async for reply in call] == []
        assert throttle.tokens == 9.5
        await peer.aclose()


async def test_a_refused_call_does_not_count_as_an_attempt(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    for operation in OPERATIONS:
        async with ScriptedServer() as scripted:
            throttling = RetryThrottling(max_tokens=10, token_ratio=1)
            configure(scripted.channel, throttling, retry_policy=retry_policy(max_attempts=2))
            call = Background(nursery, operation, scripted.stub)
            peer = await scripted.accept()
            await head_of(peer, 1)
            await peer.send_rst_stream(1, ErrorCode.REFUSED_STREAM)
            assert (await head_of(peer, 3)).get("grpc-previous-rpc-attempts") is None
            assert scripted.channel._retry_throttle is not None
            assert scripted.channel._retry_throttle.tokens == 10
            # Refused again, it is an attempt that has failed.
            await peer.send_rst_stream(3, ErrorCode.REFUSED_STREAM)
            assert (await head_of(peer, 5)).get("grpc-previous-rpc-attempts") == "1"
            assert scripted.channel._retry_throttle.tokens == 9
            await peer.send_rst_stream(5, ErrorCode.REFUSED_STREAM)
            assert (await call.error()).code is StatusCode.UNAVAILABLE
            await peer.aclose()


# ---------------------------------------------------------------------------------------------------------------------
# What else a service config says of a method


@every_kind
async def test_the_timeout_of_a_method(operation: Operation, autojump_clock: Clock) -> None:
    async with open_channel_pair(Flaky(End(after=100))) as (channel, _):
        configure(channel, timeout=20)
        began = trio.current_time()
        with pytest.raises(RpcError, match="DEADLINE_EXCEEDED"):
            await operation(EchoStub(channel))
        assert trio.current_time() - began == pytest.approx(20)


async def test_the_shorter_timeout_holds(autojump_clock: Clock) -> None:
    async with open_channel_pair(Flaky(*[End(after=100)] * 4)) as (channel, _):
        configure(channel, timeout=20)
        stub = EchoStub(channel)
        for own, seconds in ((5, 5), (50, 20)):
            began = trio.current_time()
            with pytest.raises(RpcError, match=f"DEADLINE_EXCEEDED: deadline of {seconds} s exceeded"):
                await stub.Unary(HELLO, timeout=own)
            assert trio.current_time() - began == pytest.approx(seconds)
            began = trio.current_time()
            async with stub.ServerStream(HELLO, timeout=own) as call:
                with pytest.raises(RpcError, match="DEADLINE_EXCEEDED"):
                    await call.receive()
            assert trio.current_time() - began == pytest.approx(seconds)


@every_kind
async def test_wait_for_ready_of_a_method(operation: Operation, nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backend = Backend(nursery, "a")
    async with trio_grpc.open_channel(backend.endpoint._dialled) as channel:
        configure(channel, wait_for_ready=True)

        async def start() -> None:
            await trio.sleep(20)
            await backend.start(Flaky())  # type: ignore[arg-type]

        nursery.start_soon(start)
        with pytest.raises(RpcError, match="UNAVAILABLE"):
            await EchoStub(channel).Unary(HELLO, wait_for_ready=False)
        await operation(EchoStub(channel))


@every_kind
async def test_message_sizes_of_a_method(operation: Operation, autojump_clock: Clock) -> None:
    async with open_channel_pair(Flaky(name="x" * 50)) as (channel, _):
        configure(channel, max_request_message_bytes=4)
        with pytest.raises(
            RpcError, match=r"RESOURCE_EXHAUSTED: message of 5 bytes .* 4 bytes .*maxRequestMessageBytes"
        ):
            await operation(EchoStub(channel))
        configure(channel, max_response_message_bytes=2)
        with pytest.raises(RpcError, match=r"RESOURCE_EXHAUSTED: received message of .* over the limit of 2 bytes"):
            await operation(EchoStub(channel))
        configure(channel, max_request_message_bytes=2**30, max_response_message_bytes=2**30)
        await operation(EchoStub(channel))


async def test_a_larger_limit_of_a_method_does_not_raise_the_channels(autojump_clock: Clock) -> None:
    limits = trio_grpc.Limits(adaptive_window=False, max_send_message_length=2)
    async with open_channel_pair(Flaky(), limits=limits) as (channel, _):
        configure(channel, max_request_message_bytes=1000)
        with pytest.raises(RpcError, match="max_send_message_length"):
            await EchoStub(channel).Unary(HELLO)


async def test_a_new_config_holds_for_calls_that_begin_then(autojump_clock: Clock) -> None:
    flaky = Flaky(*[FAIL] * 3)
    async with open_channel_pair(flaky) as (channel, _):
        stub = EchoStub(channel)
        with pytest.raises(RpcError):
            await stub.Unary(HELLO)
        configure(channel, retry_policy=retry_policy(max_attempts=2))
        with pytest.raises(RpcError):
            await stub.Unary(HELLO)
        assert len(flaky.attempts) == 3
        channel._use_config(None)
        flaky._ends = [FAIL]
        with pytest.raises(RpcError):
            await stub.Unary(HELLO)
        assert len(flaky.attempts) == 4


async def test_methods_have_configs_of_their_own(autojump_clock: Clock) -> None:
    config = ServiceConfig(
        methods=[
            MethodConfig(names=["echo.Echo"], retry_policy=retry_policy(max_attempts=2)),
            MethodConfig(names=["echo.Echo/Unary"]),
        ]
    )
    flaky = Flaky(FAIL, FAIL)
    async with open_channel_pair(flaky, service_config=config) as (channel, _):
        with pytest.raises(RpcError, match="overloaded"):
            await EchoStub(channel).Unary(HELLO)
        async with EchoStub(channel).ServerStream(EchoRequest(count=1)) as call:
            assert len([reply async for reply in call]) == 1
    assert len(flaky.attempts) == 3


@every_kind
@pytest.mark.parametrize("default", [False, True], ids=["no default", "a default"])
async def test_the_first_call_already_has_the_config_that_comes_with_the_addresses(
    default: bool, operation: Operation, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    backend = Backend(nursery, "a")
    flaky = Flaky(FAIL)
    await backend.start(flaky)  # type: ignore[arg-type]
    resolver = ManualResolver()
    published = ServiceConfig(methods=[MethodConfig(retry_policy=retry_policy(), timeout=50)])
    async with trio_grpc.open_channel(
        "test:///a", resolvers={"test": resolver}, service_config="{}" if default else None
    ) as channel:
        call = Background(nursery, operation, EchoStub(channel))
        await trio.sleep(5)
        assert call.running
        resolver.update(backend.endpoint, service_config=published)
        await call.result()
        assert len(flaky.attempts) == 2
        left = flaky.attempts[0].context.time_remaining()
        assert left < 50


@every_kind
async def test_a_name_that_is_not_resolved_in_time(operation: Operation, autojump_clock: Clock) -> None:
    resolver = ManualResolver()
    config = ServiceConfig(methods=[MethodConfig(timeout=10)])
    async with trio_grpc.open_channel("test:///a", resolvers={"test": resolver}, service_config=config) as channel:
        with trio.move_on_after(5) as scope:
            await operation(EchoStub(channel))
        assert scope.cancelled_caught
        assert channel.statistics().unconnected == 0
        for options in ({"timeout": 2}, {"timeout": 2, "wait_for_ready": True}):
            began = trio.current_time()
            with pytest.raises(RpcError, match=r"DEADLINE_EXCEEDED.*still resolving test:///a"):
                await EchoStub(channel).Unary(HELLO, **options)  # type: ignore[arg-type]
            with pytest.raises(RpcError, match=r"DEADLINE_EXCEEDED.*still resolving test:///a"):
                async with EchoStub(channel).Bidi(**options):  # type: ignore[arg-type]
                    raise AssertionError("entered")
            assert trio.current_time() - began == pytest.approx(4)
        resolver.fail(OSError("no such name"))
        with pytest.raises(RpcError, match="UNAVAILABLE: failed to resolve test:///a: no such name"):
            await operation(EchoStub(channel))


# ---------------------------------------------------------------------------------------------------------------------
# Around calls


async def test_a_handler_that_calls_on_hands_its_deadline_to_all_attempts(autojump_clock: Clock) -> None:
    left = []

    class Telling(Flaky):
        async def ServerStream(self, request: EchoRequest, context: Any, /) -> None:
            left.append(round(context.time_remaining()))
            await super().ServerStream(request, context)

    class Caller(Flaky):
        async def Unary(self, request: EchoRequest, context: Any, /) -> EchoReply:
            async with stub.ServerStream(EchoRequest(count=1)) as call:
                async for reply in call:
                    return reply
            raise AssertionError("no reply")

    async with open_channel_pair(Telling(*[FAIL] * 9)) as (channel, _):
        configure(channel, retry_policy=retry_policy(max_attempts=5, initial_backoff=2))
        stub = EchoStub(channel)
        async with open_channel_pair(Caller()) as (front, _):
            with pytest.raises(RpcError) as caught:
                await EchoStub(front).Unary(HELLO, timeout=10)
            assert caught.value.code is StatusCode.DEADLINE_EXCEEDED
        await trio.sleep(100)
        assert channel.statistics().streams == 0
    assert left == [10, 8, 4]


async def test_interceptors_are_outside_of_the_attempts(autojump_clock: Clock) -> None:
    seen = []

    async def watch(call: trio_grpc.InterceptedCall, proceed: trio_grpc.Proceed) -> None:
        await proceed()
        seen.append((call.status, call.initial_metadata["attempt"]))

    flaky = Flaky()
    async with open_channel_pair(flaky, interceptors=[watch]) as (channel, _):
        configure(channel, retry_policy=retry_policy())
        for number, operation in enumerate(OPERATIONS):
            flaky._ends = [FAIL]
            await operation(EchoStub(channel))
            assert seen == [(StatusCode.OK, str(2 * n + 2)) for n in range(number + 1)]


async def test_calls_that_are_tried_again_leave_no_garbage(autojump_clock: Clock) -> None:
    flaky = Flaky()
    async with open_channel_pair(flaky) as (channel, _):
        stub = EchoStub(channel)

        async def run() -> None:
            configure(channel, RetryThrottling(max_tokens=1000, token_ratio=1), retry_policy=retry_policy())
            for operation in OPERATIONS:
                flaky._ends = [FAIL]
                await operation(stub)
            await trio.testing.wait_all_tasks_blocked()
            # The writer still has the last stream in its hands; now that is the one of a plain call.
            channel._use_config(None)
            await stub.Unary(HELLO)

        await assert_no_garbage_of_calls(run)
