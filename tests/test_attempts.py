"""What stands for the stream of a call: corners that no single behaviour reaches, and all of them at random."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoRequest
from echo_trio_grpc import EchoStub

from tests.support.retries import FAIL, OPERATIONS, End, Flaky, configure, hedging_policy, retry_policy
from trio_grpc import Channel, Limits, RetryThrottling, RpcError, StatusCode
from trio_grpc._attempts import Attempts, Request
from trio_grpc._call import CallFactory
from trio_grpc._hedging import HedgedAttempts
from trio_grpc._transport.stream import Outcome
from trio_grpc.testing import open_channel_pair

Clock = trio.testing.MockClock
HELLO = EchoRequest(text="hello")


def factory_of(channel: Channel) -> CallFactory[Any, Any]:
    return EchoStub(channel).Bidi._factory.configured()


def request_of(channel: Channel, deadline: float = float("inf")) -> Request:
    return factory_of(channel).request("identity", (), deadline, None)


def attempts_of(channel: Channel, **options: Any) -> Attempts:
    configure(channel, **options)
    return factory_of(channel).attempts(request_of(channel), None)


def used(channel: Channel) -> tuple[int, int, int]:
    statistics = channel.statistics()
    return statistics.streams, statistics.unconnected, channel._retry_bytes


async def test_a_connection_that_is_not_wanted_any_more_is_given_back(autojump_clock: Clock) -> None:
    """A call may be closed at the moment at which its next attempt gets a connection."""
    flaky = Flaky()
    async with open_channel_pair(flaky) as (channel, _):
        assert await request_of(channel).open(0, lambda: False) is None
        await trio.testing.wait_all_tasks_blocked()
        assert used(channel) == (0, 0, 0)
        await EchoStub(channel).Unary(HELLO)
    assert len(flaky.attempts) == 1


async def test_headers_that_the_server_would_not_take_are_a_failed_attempt(autojump_clock: Clock) -> None:
    flaky = Flaky()
    codes = {StatusCode.RESOURCE_EXHAUSTED}
    metadata = {"big": "x" * 1000}
    async with open_channel_pair(flaky, server_limits=Limits(max_header_list_size=500, adaptive_window=False)) as (
        channel,
        _,
    ):
        await channel.wait_ready()
        for options in (
            {"retry_policy": retry_policy(retryable_status_codes=codes, max_attempts=3)},
            {"hedging_policy": hedging_policy(non_fatal_status_codes=codes)},
        ):
            configure(channel, **options)
            with pytest.raises(RpcError, match="RESOURCE_EXHAUSTED"):
                await EchoStub(channel).Unary(HELLO, metadata=metadata)
            async with EchoStub(channel).Bidi(metadata=metadata) as call:
                await call.done_sending()
                with pytest.raises(RpcError, match="RESOURCE_EXHAUSTED"):
                    await call.receive()
            await trio.testing.wait_all_tasks_blocked()
            assert used(channel) == (0, 0, 0)
    assert flaky.attempts == []


@pytest.mark.parametrize("hedged", [False, True], ids=["retries", "hedges"])
async def test_an_attempt_that_fails_when_the_call_is_over_changes_nothing(hedged: bool, autojump_clock: Clock) -> None:
    async with open_channel_pair(Flaky()) as (channel, _):
        throttling = RetryThrottling(max_tokens=10, token_ratio=1)
        options: dict[str, Any] = {"hedging_policy": hedging_policy()} if hedged else {"retry_policy": retry_policy()}
        attempts = attempts_of(channel, throttling=throttling, **options)
        await attempts.open()
        attempts.cancel("enough")
        failure = Outcome(StatusCode.UNAVAILABLE, "too late")
        if isinstance(attempts, HedgedAttempts):
            attempts._failed(failure, None)
            attempts._hedge()
        attempts._finish(failure)
        await trio.sleep(100)
        assert attempts.outcome is not None
        assert attempts.outcome.code is StatusCode.CANCELLED
        assert used(channel) == (0, 0, 0)
        assert channel._retry_throttle is not None
        assert channel._retry_throttle.tokens == 10


@pytest.mark.parametrize("hedged", [False, True], ids=["retries", "hedges"])
async def test_its_end_is_told_once(hedged: bool, autojump_clock: Clock) -> None:
    async with open_channel_pair(Flaky(*[End(code=StatusCode.ABORTED)] * 3)) as (channel, _):
        options: dict[str, Any] = {"hedging_policy": hedging_policy()} if hedged else {"retry_policy": retry_policy()}
        for way in ("by the server", "by us", "between attempts"):
            attempts = attempts_of(channel, **options)
            ends: list[str] = []
            attempts.on_ended = lambda ends=ends, way=way: ends.append(way)  # type: ignore[misc]
            if way != "between attempts":
                await attempts.open()
            if way == "by the server":
                attempts.done_sending()
                await attempts.wait_outcome()
            else:
                attempts.end(Outcome(StatusCode.DEADLINE_EXCEEDED))
            attempts.end(Outcome(StatusCode.UNKNOWN))
            attempts.cancel("again")
            assert ends == [way]
            attempts.discard_incoming()
            attempts.reset(8)
            await trio.testing.wait_all_tasks_blocked()
            assert attempts.left_table
        assert used(channel) == (0, 0, 0)


async def test_sending_and_half_closing_from_two_tasks(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    """Whoever sends when another task has said that no more comes is told that it was too late."""
    async with open_channel_pair(Flaky(FAIL)) as (channel, _):
        attempts = attempts_of(channel, retry_policy=retry_policy())
        await attempts.open()
        assert await attempts.send_message(b"")
        attempts.done_sending()
        assert not await attempts.send_message(b"")
        await attempts.wait_outcome()
        assert not await attempts.send_message(b"")
        attempts = attempts_of(channel, hedging_policy=hedging_policy())
        await attempts.open()
        attempts.done_sending()
        assert not await attempts.send_message(b"")
        await attempts.wait_head()
        await attempts.wait_head()
        assert attempts.head_record is not None
        await attempts.wait_outcome()


@pytest.mark.parametrize("hedged", [False, True], ids=["retries", "hedges"])
async def test_no_attempt_begins_after_the_deadline(hedged: bool, autojump_clock: Clock) -> None:
    """Where the status of one comes together with the deadline, that is the end."""
    flaky = Flaky(*[End(code=StatusCode.UNAVAILABLE, after=2)] * 9)
    async with open_channel_pair(flaky) as (channel, _):
        options: dict[str, Any] = (
            {"hedging_policy": hedging_policy(hedging_delay=100)} if hedged else {"retry_policy": retry_policy()}
        )
        configure(channel, **options)
        attempts = factory_of(channel).attempts(request_of(channel, trio.current_time() + 1), (b"", False))
        await attempts.open()
        await attempts.wait_outcome()
        assert attempts.outcome is not None
        await trio.sleep(200)
    assert len(flaky.attempts) == 1


@pytest.mark.parametrize("hedged", [False, True], ids=["retries", "hedges"])
async def test_empty_messages_are_bounded_too(hedged: bool, autojump_clock: Clock) -> None:
    limits = Limits(adaptive_window=False, retry_buffer_size=50)
    async with open_channel_pair(Flaky(End(after=10)), limits=limits) as (channel, _):
        options: dict[str, Any] = {"hedging_policy": hedging_policy()} if hedged else {"retry_policy": retry_policy()}
        attempts = attempts_of(channel, **options)
        await attempts.open()
        for _ in range(10):
            assert await attempts.send_message(b"")
            assert not attempts.settled
        assert channel._retry_bytes == 50
        assert await attempts.send_message(b"")
        assert attempts.settled
        assert channel._retry_bytes == 0
        attempts.cancel("enough")


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_happens_nothing_is_left(seed: int, nursery: trio.Nursery, autojump_clock: Clock) -> None:
    """Many calls whose attempts end in all ways, given up and timed out at any moment."""
    rng = random.Random(seed)
    codes = [StatusCode.OK] * 3 + [StatusCode.UNAVAILABLE] * 4 + [StatusCode.ABORTED]

    class Random(Flaky):
        """Each attempt ends in its own way."""

        def next_end(self) -> End:
            return End(
                code=rng.choice(codes),
                after=rng.choice((0, 0, 0.3, 1, 5)),
                headers=rng.random() < 0.1,
                then=rng.choice((0, 0, 1)),
                pushback=rng.choice(((), (), ("0",), ("700",), ("-1",))),
                read=rng.choice((None, None, 0, 1)),
            )

    flaky = Random()
    ended = 0
    codes_seen: set[StatusCode] = set()
    limits = Limits(adaptive_window=False, max_concurrent_streams=rng.choice((2, 10, 100)))

    async def run(channel: Channel, number: int) -> None:
        nonlocal ended
        await trio.sleep(rng.random() * 5)
        flaky._ends = [flaky.next_end() for _ in range(9)]
        options: dict[str, Any] = {}
        if rng.random() < 0.7:
            options = rng.choice(
                (
                    {
                        "retry_policy": retry_policy(
                            max_attempts=rng.randint(2, 5), initial_backoff=rng.choice((0.01, 1))
                        )
                    },
                    {
                        "hedging_policy": hedging_policy(
                            max_attempts=rng.randint(2, 5), hedging_delay=rng.choice((0, 0.5))
                        )
                    },
                )
            )
        throttling = RetryThrottling(max_tokens=rng.choice((4, 1000)), token_ratio=0.5)
        configure(channel, throttling, timeout=rng.choice((None, None, 0.5, 3)), **options)
        try:
            with trio.move_on_after(rng.choice((1000, 1000, 0, 0.5, 2))):
                await rng.choice(OPERATIONS)(EchoStub(channel))
        except RpcError as error:
            codes_seen.add(error.code)
        except trio.ClosedResourceError:
            assert channel.closed
        ended += 1

    async with open_channel_pair(flaky, server_limits=limits) as (channel, _):
        for number in range(60):
            nursery.start_soon(run, channel, number)
        if seed % 4 == 0:
            await trio.sleep(3)
            await channel.aclose()
        await trio.sleep(2000)
        assert ended == 60
        assert codes_seen <= {StatusCode.UNAVAILABLE, StatusCode.ABORTED, StatusCode.DEADLINE_EXCEEDED}
        assert used(channel) == (0, 0, 0)
        if not channel.closed:
            channel._use_config(None)
            flaky._ends = []
            assert (await EchoStub(channel).Unary(HELLO)).text == "hello"
