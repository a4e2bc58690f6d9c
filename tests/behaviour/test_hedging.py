"""Several attempts of a call at a time, the quickest of which counts (gRFC A6, hedging)."""

from __future__ import annotations

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
    hedging_policy,
)
from trio_grpc import PickInfo, RetryThrottling, RpcError, StatusCode
from trio_grpc.testing import ErrorCode, ManualResolver, RstStreamFrame, open_channel_pair

Clock = trio.testing.MockClock
pytestmark = pytest.mark.usefixtures("quiet_log")

HELLO = EchoRequest(text="hello")
SLOW = End(after=10)


def fail(after: float, message: str = "", **options: Any) -> End:
    return End(**{"code": StatusCode.UNAVAILABLE, "after": after, "message": message, **options})


def cancelled(flaky: Flaky) -> list[bool]:
    return [attempt.cancelled for attempt in flaky.attempts]


async def test_a_quick_answer_needs_no_hedge(autojump_clock: Clock) -> None:
    flaky = Flaky(End(after=0.9))
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, hedging_policy=hedging_policy())
        assert (await EchoStub(channel).Unary(HELLO)).text == "hello"
        await trio.sleep(10)
    assert len(flaky.attempts) == 1


async def test_the_first_answer_wins_and_the_others_are_cancelled(autojump_clock: Clock) -> None:
    flaky = Flaky(SLOW, End(after=1.5), SLOW)
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, hedging_policy=hedging_policy())
        began = trio.current_time()
        async with EchoStub(channel).Unary.open(HELLO) as call:
            assert (await call.wait_initial_metadata())["attempt"] == "2"
            assert (await call.receive()).text == "hello"
        assert trio.current_time() - began == pytest.approx(2.5)
        await trio.testing.wait_all_tasks_blocked()
        assert channel.statistics().streams == 0
    assert flaky.times == [0, 1, 2]
    assert flaky.previous == [[], ["1"], ["2"]]
    assert cancelled(flaky) == [True, False, True]


@every_kind
async def test_calls_of_every_kind_are_hedged(operation: Operation, autojump_clock: Clock) -> None:
    flaky = Flaky(SLOW, SLOW, End(after=0.5))
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, hedging_policy=hedging_policy())
        expected = await operation(EchoStub(channel))
        await trio.testing.wait_all_tasks_blocked()
        assert (channel._retry_bytes, channel.statistics().streams) == (0, 0)
        channel._use_config(None)
        flaky._ends = []
        assert await operation(EchoStub(channel)) == expected
    assert flaky.times[:3] == [0, 1, 2]
    assert cancelled(flaky) == [True, True, False, False]


async def test_without_a_delay_all_attempts_go_at_once(autojump_clock: Clock) -> None:
    flaky = Flaky(SLOW, SLOW, End(after=3))
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, hedging_policy=hedging_policy(hedging_delay=0))
        await EchoStub(channel).Unary(HELLO)
    assert flaky.times == [0, 0, 0]
    assert sorted(flaky.previous) == [[], ["1"], ["2"]]


async def test_a_failure_that_is_not_fatal_calls_for_the_next_attempt_at_once(autojump_clock: Clock) -> None:
    flaky = Flaky(fail(0.25), SLOW, End(after=1))
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, hedging_policy=hedging_policy())
        began = trio.current_time()
        await EchoStub(channel).Unary(HELLO)
        assert trio.current_time() - began == pytest.approx(2.25)
    # The delay counts from there.
    assert flaky.times == [0, 0.25, 1.25]


@every_kind
async def test_a_fatal_failure_ends_the_call(operation: Operation, autojump_clock: Clock) -> None:
    flaky = Flaky(SLOW, End(code=StatusCode.ABORTED, after=0.5, message="fatal", read=1), SLOW)
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, hedging_policy=hedging_policy())
        with pytest.raises(RpcError, match="ABORTED: fatal") as caught:
            await operation(EchoStub(channel))
        assert caught.value.trailing_metadata["attempt"] == "2"
        await trio.sleep(10)
        assert (channel._retry_bytes, channel.statistics().streams) == (0, 0)
    assert cancelled(flaky) == [True, False]


@every_kind
async def test_where_all_attempts_fail_the_last_failure_counts(operation: Operation, autojump_clock: Clock) -> None:
    flaky = Flaky(fail(3, "one"), fail(1, "two", read=0), fail(5, "three", read=0))
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, hedging_policy=hedging_policy())
        with pytest.raises(RpcError, match="UNAVAILABLE: three") as caught:
            await operation(EchoStub(channel))
        assert caught.value.trailing_metadata["attempt"] == "3"
    assert flaky.times == [0, 1, 2]


async def test_pushback_delays_the_next_attempt(autojump_clock: Clock) -> None:
    flaky = Flaky(fail(0.5, pushback=("3000",)), SLOW, End(after=0.5))
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, hedging_policy=hedging_policy())
        await EchoStub(channel).Unary(HELLO)
    assert flaky.times == [0, 3.5, 4.5]


@pytest.mark.parametrize("value", ["-1", "later"])
async def test_pushback_may_end_the_hedging(value: str, autojump_clock: Clock) -> None:
    flaky = Flaky(End(after=5), fail(0.5, pushback=(value,)))
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, hedging_policy=hedging_policy())
        # What is under way goes on.
        await EchoStub(channel).Unary(HELLO)
        assert len(flaky.attempts) == 2
        # And where nothing is, the call has failed.
        flaky._ends = [fail(0.5, "no more", pushback=(value,))]
        with pytest.raises(RpcError, match="no more"):
            await EchoStub(channel).Unary(HELLO)
    assert len(flaky.attempts) == 3


async def test_the_throttle_keeps_hedges_back(autojump_clock: Clock) -> None:
    flaky = Flaky(End(after=5))
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, RetryThrottling(max_tokens=2, token_ratio=0.5), hedging_policy=hedging_policy())
        stub = EchoStub(channel)
        throttle = channel._retry_throttle
        assert throttle is not None
        throttle.failed()
        assert (await stub.Unary(HELLO)).text == "hello"
        assert (len(flaky.attempts), throttle.tokens) == (1, 1.5)
        # A failure after which the next one is not permitted is that of the call.
        flaky._ends = [fail(0.2, "overloaded")]
        with pytest.raises(RpcError, match="overloaded"):
            await stub.Unary(HELLO)
        assert (len(flaky.attempts), throttle.tokens) == (2, 0.5)
        # So is one whose hedge was put off by pushback, and forbidden later.
        throttle._milli = 2000
        flaky._ends = [fail(0.2, "wait", pushback=("500",)), fail(0.2, "more")]

        with pytest.raises(RpcError, match="wait"):
            await stub.Unary(HELLO)
        assert (len(flaky.attempts), throttle.tokens) == (3, 1)


async def test_tokens_of_hedged_calls(autojump_clock: Clock) -> None:
    flaky = Flaky(fail(0.5), End(after=5), End(after=0.5))
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, RetryThrottling(max_tokens=10, token_ratio=0.5), hedging_policy=hedging_policy())
        stub = EchoStub(channel)
        throttle = channel._retry_throttle
        assert throttle is not None
        await stub.Unary(HELLO)
        # One has failed, one has succeeded, and the one that was cancelled is neither.
        assert throttle.tokens == 9.5
        # Committed, it counts at its end.
        flaky._ends = [End(code=StatusCode.UNAVAILABLE, headers=True, then=0.5)]
        async with stub.ServerStream(HELLO) as call:
            await call.wait_initial_metadata()
            assert throttle.tokens == 9.5
            with pytest.raises(RpcError):
                await call.receive()
        assert throttle.tokens == 8.5


@every_kind
async def test_the_deadline_ends_all_attempts(operation: Operation, autojump_clock: Clock) -> None:
    flaky = Flaky(*[SLOW] * 3)
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, hedging_policy=hedging_policy(), timeout=1.5)
        began = trio.current_time()
        with pytest.raises(RpcError, match="DEADLINE_EXCEEDED"):
            await operation(EchoStub(channel))
        assert trio.current_time() - began < 4.1
        await trio.sleep(10)
        assert (channel._retry_bytes, channel.statistics().streams) == (0, 0)
    assert flaky.times == [0, 1]
    assert cancelled(flaky) == [True, True]


@every_kind
@pytest.mark.parametrize("seconds", [0, 0.5, 1.5, 2.5])
async def test_cancelling_a_call_cancels_all_attempts(
    seconds: float, operation: Operation, autojump_clock: Clock
) -> None:
    flaky = Flaky(*[SLOW] * 3)
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, hedging_policy=hedging_policy())
        with trio.move_on_after(seconds) as scope:
            await operation(EchoStub(channel))
        assert scope.cancelled_caught
        await trio.sleep(10)
        statistics = channel.statistics()
        assert (channel._retry_bytes, statistics.streams, statistics.unconnected) == (0, 0, 0)
    assert cancelled(flaky) == [True] * {0: 0, 0.5: 1, 1.5: 2, 2.5: 3}[seconds]


async def test_hedges_may_be_turned_off(autojump_clock: Clock) -> None:
    flaky = Flaky(SLOW)
    async with open_channel_pair(flaky, retries=False) as (channel, _):
        configure(channel, hedging_policy=hedging_policy())
        await EchoStub(channel).Unary(HELLO)
    assert len(flaky.attempts) == 1


async def test_a_request_over_the_buffer_limit_is_not_hedged(autojump_clock: Clock) -> None:
    flaky = Flaky(SLOW, SLOW)
    limits = trio_grpc.Limits(adaptive_window=False, retry_buffer_size=100)
    async with open_channel_pair(flaky, limits=limits) as (channel, _):
        configure(channel, hedging_policy=hedging_policy())
        await EchoStub(channel).Unary(EchoRequest(payload=bytes(200)))
        async with EchoStub(channel).ServerStream(EchoRequest(payload=bytes(200), count=1)) as call:
            assert len([reply async for reply in call]) == 1
    assert len(flaky.attempts) == 2


# ---------------------------------------------------------------------------------------------------------------------
# Streams of requests


async def test_what_is_sent_goes_to_all_attempts(autojump_clock: Clock) -> None:
    flaky = Flaky(SLOW, End(after=3.5), SLOW)
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, hedging_policy=hedging_policy())
        async with EchoStub(channel).Bidi() as call:
            for text in "abcdefg":
                await call.send(EchoRequest(text=text))
                await trio.sleep(0.75)
            await call.done_sending()
            assert (await call.wait_initial_metadata())["attempt"] == "2"
            assert [reply.text async for reply in call] == list("abcdefg")
            assert call.status is StatusCode.OK
    assert flaky.times == [0, 1, 2]
    assert cancelled(flaky) == [True, False, True]


async def test_more_than_may_be_kept_commits_to_the_attempt_that_is_furthest(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    limits = trio_grpc.Limits(adaptive_window=False, retry_buffer_size=1000)
    async with ScriptedServer(limits=limits) as scripted:
        configure(scripted.channel, hedging_policy=hedging_policy(max_attempts=2))
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.Bidi() as call:
            # SETTINGS_INITIAL_WINDOW_SIZE: nothing may be sent before the first WINDOW_UPDATE.
            peer = await accepted.result()
            await head_of(peer, 1)
            await peer.send_settings({4: 0})
            await trio.testing.wait_all_tasks_blocked()
            await call.send(EchoRequest(payload=bytes(600)))
            await head_of(peer, 3)
            await peer.send_window_update(3, 10_000)
            await trio.testing.wait_all_tasks_blocked()
            await call.send(EchoRequest(payload=bytes(600)))
            await call.done_sending()
            assert scripted.channel._retry_bytes == 0
            while True:
                frame = await peer.receive_frame()
                if isinstance(frame, RstStreamFrame):
                    break
            assert (frame.stream_id, frame.error_code) == (1, ErrorCode.CANCEL)
            await answer(peer, 3)
            assert (await call.receive()).text == "done"
        await peer.aclose()


async def test_a_sender_that_cannot_be_kept_waits_for_the_first_stream(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    limits = trio_grpc.Limits(adaptive_window=False, retry_buffer_size=100)
    async with ScriptedServer(limits=limits) as scripted:
        configure(scripted.channel, hedging_policy=hedging_policy(max_attempts=2, hedging_delay=0))
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.Bidi() as call:
            peer = await accepted.result()
            for stream_id in (1, 3):
                await head_of(peer, stream_id)
            # Both are repeated, but there is no connection.
            await peer.send_goaway(0, ErrorCode.NO_ERROR)
            await trio.testing.wait_all_tasks_blocked()
            assert (call.status, call.peer) == (None, "")
            sender = Background(nursery, call.send, EchoRequest(payload=bytes(200)))
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await call.send(EchoRequest(payload=bytes(200)))
            second = await scripted.accept()
            await head_of(second, 1)
            await sender.result()
            assert len(EchoRequest.FromString(await second.receive_message(1)).payload) == 200
            await answer(second, 1)
            assert (await call.receive()).text == "done"
        await peer.aclose()
        await second.aclose()


async def test_sending_ends_where_the_call_has_ended(autojump_clock: Clock) -> None:
    flaky = Flaky(SLOW, End(code=StatusCode.ABORTED, read=0))
    async with open_channel_pair(flaky) as (channel, _):
        configure(channel, hedging_policy=hedging_policy())
        async with EchoStub(channel).Bidi() as call:
            await trio.sleep(2)
            with pytest.raises(trio.BrokenResourceError):
                await call.send(HELLO)
            with pytest.raises(RpcError, match="ABORTED"):
                await call.receive()
        call = EchoStub(channel).Bidi()
        async with call:
            await call.done_sending()
            with pytest.raises(trio.ClosedResourceError, match="send after done_sending"):
                await call.send(HELLO)
        with pytest.raises(trio.ClosedResourceError):
            await call.send(HELLO)
        assert call.status is StatusCode.CANCELLED


async def test_one_task_receives(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    async with open_channel_pair(Flaky(SLOW, SLOW, SLOW)) as (channel, _):
        configure(channel, hedging_policy=hedging_policy())
        async with EchoStub(channel).ServerStream(EchoRequest(count=1)) as call:
            receiver = Background(nursery, call.receive)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await call.receive()
            assert (await receiver.result()).count == 0


# ---------------------------------------------------------------------------------------------------------------------
# Connections


def open_backends(*backends: Backend, **options: Any) -> trio_grpc.Channel:
    resolver = ManualResolver(*(backend.endpoint for backend in backends))
    return trio_grpc.open_channel(
        "test:///all", resolvers={"test": resolver}, load_balancing="round_robin", idle_timeout=None, **options
    )


@every_kind
async def test_attempts_go_to_different_backends(
    operation: Operation, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    backends = [Backend(nursery, name) for name in "abc"]
    slow, quick = [Flaky(SLOW), Flaky(SLOW)], Flaky()
    for backend, servicer in zip(backends, [*slow, quick], strict=True):
        await backend.start(servicer)  # type: ignore[arg-type]
    async with open_backends(*backends) as channel:
        configure(channel, hedging_policy=hedging_policy())
        await channel.wait_ready()
        await trio.testing.wait_all_tasks_blocked()
        # A backend that has just come may have a turn of its own before the others.
        channel._pick_nowait(PickInfo("/a.B/C"))
        began = trio.current_time()
        await operation(EchoStub(channel))
        assert trio.current_time() - began < 5
    assert [len(flaky.attempts) for flaky in (*slow, quick)][2] == 1
    assert all(attempt.cancelled for flaky in slow for attempt in flaky.attempts)


async def test_an_attempt_without_a_connection_has_failed(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backend = Backend(nursery, "a")
    async with trio_grpc.open_channel(backend.endpoint._dialled) as channel:
        for code in (StatusCode.UNAVAILABLE, StatusCode.ABORTED):
            configure(channel, hedging_policy=hedging_policy(non_fatal_status_codes={code}))
            with pytest.raises(RpcError, match=r"UNAVAILABLE: failed to connect .* no server here") as caught:
                await EchoStub(channel).Unary(HELLO)
            assert isinstance(caught.value.__cause__, ConnectionRefusedError)
            with pytest.raises(RpcError, match="UNAVAILABLE: failed to connect"):
                async with EchoStub(channel).Bidi():
                    raise AssertionError("entered")
        assert channel.statistics().unconnected == 0


async def test_a_lost_connection_costs_no_call_that_is_hedged(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backends = [Backend(nursery, name) for name in "ab"]
    for backend in backends:
        await backend.start(Flaky(*[SLOW] * 50))  # type: ignore[arg-type]
    async with open_backends(*backends) as channel:
        configure(channel, hedging_policy=hedging_policy(max_attempts=5))
        await channel.wait_ready()
        calls = [Background(nursery, operation, EchoStub(channel)) for operation in OPERATIONS]
        await trio.sleep(1.5)
        await backends[0].stop()
        for call in calls:
            await call.result()


async def test_a_refused_attempt_is_repeated_once_and_does_not_count(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    async with ScriptedServer() as scripted:
        throttling = RetryThrottling(max_tokens=10, token_ratio=1)
        configure(scripted.channel, throttling, hedging_policy=hedging_policy(max_attempts=2, hedging_delay=5))
        throttle = scripted.channel._retry_throttle
        assert throttle is not None
        call = Background(nursery, scripted.stub.Unary, HELLO)
        peer = await scripted.accept()
        await head_of(peer, 1)
        await peer.send_rst_stream(1, ErrorCode.REFUSED_STREAM)
        assert (await head_of(peer, 3)).get("grpc-previous-rpc-attempts") is None
        assert throttle.tokens == 10
        await peer.send_rst_stream(3, ErrorCode.REFUSED_STREAM)
        assert (await head_of(peer, 5)).get("grpc-previous-rpc-attempts") == "1"
        assert throttle.tokens == 9
        await peer.send_rst_stream(5, ErrorCode.REFUSED_STREAM)
        assert (await call.error()).code is StatusCode.UNAVAILABLE
        await peer.aclose()


async def test_an_answer_without_messages_is_an_answer(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    """OK in Trailers-Only."""
    async with ScriptedServer() as scripted:
        throttling = RetryThrottling(max_tokens=10, token_ratio=0.5)
        configure(scripted.channel, throttling, hedging_policy=hedging_policy(hedging_delay=0))
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.ServerStream(HELLO) as call:
            peer = await accepted.result()
            for stream_id in (1, 3, 5):
                await head_of(peer, stream_id)
            throttle = scripted.channel._retry_throttle
            assert throttle is not None
            throttle.failed()
            await peer.send_trailers_only(3, StatusCode.OK)
            assert [reply async for reply in call] == []
            assert throttle.tokens == 9.5
        await trio.testing.wait_all_tasks_blocked()
        scripted.assert_nothing_left()
        await peer.aclose()


async def test_answers_that_cross_the_cancellation_are_dropped(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    async with ScriptedServer() as scripted:
        configure(scripted.channel, hedging_policy=hedging_policy(hedging_delay=0, max_attempts=2))
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.ServerStream(HELLO) as call:
            peer = await accepted.result()
            for stream_id in (1, 3):
                await head_of(peer, stream_id)
            async with peer.one_segment():
                for stream_id in (3, 1):
                    await peer.send_response(stream_id)
                    await peer.send_message(stream_id, EchoReply(text=str(stream_id)).SerializeToString())
                    await peer.send_trailers(stream_id)
            assert [reply.text async for reply in call] == ["3"]
        await trio.testing.wait_all_tasks_blocked()
        scripted.assert_nothing_left()
        await peer.aclose()


@pytest.mark.parametrize("early", [True, False], ids=["aclose", "leaving the block"])
async def test_closing_the_channel_ends_the_call(early: bool, nursery: trio.Nursery, autojump_clock: Clock) -> None:
    async with open_channel_pair(Flaky(SLOW, SLOW)) as (channel, _):
        configure(channel, hedging_policy=hedging_policy())
        stub = EchoStub(channel)
        awaited = Background(nursery, stub.Unary, HELLO)
        call = stub.Bidi()
        await call.__aenter__()
        receiver = Background(nursery, call.receive)
        await trio.sleep(0.5)
        if early:
            await channel.aclose()
    for background in (awaited, receiver):
        with pytest.raises(trio.ClosedResourceError, match="channel closed"):
            await background.result()
    await call.__aexit__(None, None, None)


@pytest.mark.parametrize("early", [True, False], ids=["aclose", "leaving the block"])
@every_kind
async def test_closing_the_channel_ends_a_call_that_only_waits_for_its_next_attempt(
    operation: Operation, early: bool, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    later = End(code=StatusCode.UNAVAILABLE, pushback=("10000",))
    async with open_channel_pair(Flaky(later)) as (channel, _):
        configure(channel, hedging_policy=hedging_policy(hedging_delay=100))
        call = Background(nursery, operation, EchoStub(channel))
        await trio.sleep(4)
        began = trio.current_time()
        if early:
            await channel.aclose()
    # `send` says "call closed", as it does whatever has closed the call.
    with pytest.raises(trio.ClosedResourceError, match="closed"):
        await call.result()
    assert trio.current_time() - began < 1
    assert channel._retry_bytes == 0


async def test_interceptors_see_one_call(autojump_clock: Clock) -> None:
    seen = []

    async def watch(call: trio_grpc.InterceptedCall, proceed: trio_grpc.Proceed) -> None:
        await proceed()
        seen.append((call.status, call.initial_metadata["server"], call.peer != ""))

    flaky = Flaky(name="me")
    async with open_channel_pair(flaky, interceptors=[watch]) as (channel, _):
        configure(channel, hedging_policy=hedging_policy())
        for operation in OPERATIONS:
            flaky._ends = [SLOW, SLOW]
            await operation(EchoStub(channel))
    assert seen == [(StatusCode.OK, "me", True)] * len(OPERATIONS)


async def test_hedged_calls_leave_no_garbage(autojump_clock: Clock) -> None:
    flaky = Flaky()
    async with open_channel_pair(flaky) as (channel, _):
        stub = EchoStub(channel)

        async def run() -> None:
            configure(channel, RetryThrottling(max_tokens=1000, token_ratio=1), hedging_policy=hedging_policy())
            for operation in OPERATIONS:
                flaky._ends = [SLOW, FAIL, End(after=1)]
                await operation(stub)
                flaky._ends = [FAIL] * 3
                with pytest.raises(RpcError):
                    await operation(stub)
            await trio.testing.wait_all_tasks_blocked()
            # The writer still has the last stream in its hands; now that is the one of a plain call.
            channel._use_config(None)
            await stub.Unary(HELLO)

        await assert_no_garbage_of_calls(run)
