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
from tests.support.backends import Backend
from tests.support.retries import FAIL, End, Flaky, configure, retry_policy
from trio_grpc import RetryThrottling, RpcError, StatusCode
from trio_grpc.testing import open_channel_pair

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
    assert caught.value.message == (
        "deadline of 6 s exceeded; the last attempt ended with UNAVAILABLE: overloaded"
        if not channel._interceptors
        else "deadline of 6 s exceeded"
    )
    assert flaky.times == [0, 3]


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
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, retry_policy=retry_policy())
        channel._retries = False
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
