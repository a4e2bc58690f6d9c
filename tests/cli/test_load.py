"""The load of `trio-grpc bench`, on a clock that jumps: rates, ends, and what waits count for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer

from tests.echo_service import Context, Echo
from trio_grpc import Metadata, RpcError, StatusCode
from trio_grpc.cli._load import Load, Plan, Results
from trio_grpc.testing import open_channel_pair

Clock = trio.testing.MockClock
METHODS = EchoServicer.__trio_grpc_methods__


class Slow(Echo):
    """Takes a tenth of a second for each call."""

    def __init__(self) -> None:
        super().__init__()
        self.running = 0
        self.most = 0

    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        self.running += 1
        self.most = max(self.most, self.running)
        await trio.sleep(0.1)
        self.running -= 1
        if request.text:
            raise RpcError(StatusCode[request.text], "no")
        return await super().Unary(request, context)


def plan(**options: Any) -> Plan:
    given: dict[str, Any] = {
        "concurrency": 4,
        "duration": None,
        "calls": None,
        "rate": None,
        "warm_up": 0,
        "timeout": None,
        "metadata": Metadata(),
    }
    return Plan(**(given | options))


async def load(
    servicer: EchoServicer, the_plan: Plan, name: str = "Unary", requests: Sequence[EchoRequest] = (EchoRequest(),)
) -> Results:
    async with open_channel_pair(servicer) as (channel, _):
        data = [request.SerializeToString() for request in requests]
        return await Load([channel], METHODS[name], data, the_plan).run()


async def test_as_many_as_go(autojump_clock: Clock) -> None:
    servicer = Slow()
    results = await load(servicer, plan(duration=2.0))
    assert (results.calls, results.latencies.count) == (80, 80)
    assert results.rate == pytest.approx(40, rel=0.03)
    assert results.latencies.percentile(50) == pytest.approx(0.1, rel=0.02)
    assert servicer.most == 4


async def test_so_many_calls(autojump_clock: Clock) -> None:
    servicer = Slow()
    results = await load(servicer, plan(calls=10))
    assert (results.calls, servicer.calls, results.sent, results.received) == (10, 10, 10, 10)
    assert results.seconds == pytest.approx(0.3)


async def test_a_rate(autojump_clock: Clock) -> None:
    results = await load(Slow(), plan(duration=2.0, rate=10.0))
    assert results.calls == 20
    assert results.latencies.percentile(99) == pytest.approx(0.1, rel=0.02)


async def test_calls_that_come_too_late_count_their_wait(autojump_clock: Clock) -> None:
    """At 20 per second with one at a time, each call waits a twentieth of a second more than the one before."""
    results = await load(Slow(), plan(calls=10, rate=20.0, concurrency=1))
    assert results.latencies.smallest == pytest.approx(0.1)
    assert results.latencies.largest == pytest.approx(0.1 + 9 * 0.05)


async def test_what_warms_up_is_not_counted(autojump_clock: Clock) -> None:
    servicer = Slow()
    results = await load(servicer, plan(calls=4, warm_up=0.95))
    assert results.calls == 4
    assert servicer.calls == 44
    assert results.seconds == pytest.approx(0.1)


async def test_failures_are_counted_by_their_status(autojump_clock: Clock) -> None:
    results = await load(Slow(), plan(calls=8), requests=[EchoRequest(text="NOT_FOUND")])
    assert results.failures == {StatusCode.NOT_FOUND: 8}
    assert results.messages == {StatusCode.NOT_FOUND: "no"}
    assert (results.calls, results.latencies.count) == (8, 0)


async def test_deadlines(autojump_clock: Clock) -> None:
    results = await load(Slow(), plan(calls=4, timeout=0.05))
    assert results.failures == {StatusCode.DEADLINE_EXCEEDED: 4}


@pytest.mark.parametrize(
    ("name", "requests", "sent", "received"),
    [
        ("ServerStream", [EchoRequest(count=3)], 5, 15),
        ("ClientStream", [EchoRequest(), EchoRequest()], 10, 5),
        ("Bidi", [EchoRequest(), EchoRequest()], 10, 10),
    ],
)
async def test_streams(name: str, requests: list[EchoRequest], sent: int, received: int, autojump_clock: Clock) -> None:
    results = await load(Echo(), plan(calls=5), name, requests)
    assert (results.calls, results.failures) == (5, {})
    assert (results.sent, results.received) == (sent, received)


async def test_a_stream_that_fails(autojump_clock: Clock) -> None:
    class Failing(Echo):
        async def Bidi(self, requests: Any, context: Context, /) -> Any:
            raise RpcError(StatusCode.ABORTED, "no")
            yield EchoReply()

    results = await load(Failing(), plan(calls=5), "Bidi", [EchoRequest()] * 3)
    assert results.failures == {StatusCode.ABORTED: 5}


async def test_stopping_it_early(autojump_clock: Clock) -> None:
    async with open_channel_pair(Slow()) as (channel, _):
        running = Load([channel], METHODS["Unary"], [b""], plan(duration=100.0))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.run)
            await trio.sleep(1.05)
            running.stop()
    assert running.results.calls == 40
    assert running.results.seconds == pytest.approx(1.05)


async def test_metadata_go_with_each_call(autojump_clock: Clock) -> None:
    seen: list[Any] = []

    class Looking(Echo):
        async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
            seen.append(context.metadata.get("key"))
            return EchoReply()

    await load(Looking(), plan(calls=3, metadata=Metadata({"key": "value"})))
    assert seen == ["value"] * 3
