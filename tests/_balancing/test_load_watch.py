"""Reports of load on a call of its own: what is asked for, over which connections, and for how long."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from math import inf
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.support.backends import Backend
from trio_grpc import Channel, ConnectivityState, Endpoint, PolicyContext, RpcError, Servicer, StatusCode, Subchannel
from trio_grpc._balancing.load_watch import load_report_request
from trio_grpc.orca import MetricRecorder, OrcaLoadReport, OrcaLoadReportRequest, OrcaServicer
from trio_grpc.testing import ManualResolver

Clock = trio.testing.MockClock

settle = trio.testing.wait_all_tasks_blocked


@pytest.mark.parametrize(
    ("period", "seconds", "nanos"),
    [(10, 10, 0), (0.25, 0, 250_000_000), (1e-12, 0, 0), (1.9999999999, 2, 0), (inf, 315_576_000_000, 0)],
)
def test_the_request(period: float, seconds: int, nanos: int) -> None:
    request = OrcaLoadReportRequest.FromString(load_report_request(period))
    assert (request.report_interval.seconds, request.report_interval.nanos) == (seconds, nanos)


class Watcher(trio_grpc.LoadBalancingPolicy):
    """Connects to one address, gives it all calls, and asks for its load."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self.reports: list[tuple[float, float]] = []
        self.subchannel: Subchannel | None = None
        self.stop: Any = None

    def update_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        self.subchannel = self.context.new_subchannel(endpoints[0])
        self.stop = self.subchannel._watch_load(10, self.take)
        self.subchannel.connect()

    def take(self, data: bytes | bytearray) -> None:
        report = OrcaLoadReport.FromString(bytes(data))
        self.reports.append((round(trio.current_time(), 3), report.cpu_utilization))

    def subchannel_changed(self, subchannel: Subchannel, state: ConnectivityState) -> None:
        if state is ConnectivityState.READY:
            self.context.publish(state, subchannel)
        elif state is ConnectivityState.IDLE:
            self.context.publish(ConnectivityState.CONNECTING)
            subchannel.connect()


class Bench:
    """A channel whose policy asks one backend for its load."""

    def __init__(self, nursery: trio.Nursery, *others: Servicer) -> None:
        self.backend = Backend(nursery, "a")
        self.backend.others = others
        self.policy: Any = None

    def _make_policy(self, context: PolicyContext) -> trio_grpc.LoadBalancingPolicy:
        self.policy = Watcher(context)
        return self.policy  # type: ignore[no-any-return]

    @contextlib.asynccontextmanager
    async def open(self, idle_timeout: float | None = None) -> AsyncIterator[Channel]:
        await self.backend.start()
        async with trio_grpc.open_channel(
            "test:///x",
            resolvers={"test": ManualResolver(self.backend.endpoint)},
            load_balancing=self._make_policy,
            idle_timeout=idle_timeout,
        ) as channel:
            await channel.wait_ready()
            await settle()
            yield channel


async def test_the_load_is_reported_again_and_again(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    load = MetricRecorder(cpu_utilization=0.5)
    bench = Bench(nursery, OrcaServicer(load, min_report_interval=1))
    async with bench.open():
        assert bench.policy.reports == [(0, 0.5)]
        load.cpu_utilization = 0.75
        await trio.sleep(25)
        assert bench.policy.reports == [(0, 0.5), (10, 0.75), (20, 0.75)]
        bench.policy.stop()
        await trio.sleep(100)
        assert len(bench.policy.reports) == 3
        assert bench.backend.server is not None
        assert bench.backend.server.statistics().streams == 0


async def test_it_is_asked_over_each_new_connection(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    bench = Bench(nursery, OrcaServicer(MetricRecorder(cpu_utilization=0.5), min_report_interval=1))
    async with bench.open() as channel:
        await bench.backend.stop()
        await bench.backend.start()
        await trio.sleep(3)
        assert channel.state is ConnectivityState.READY
        (first, _), (second, _) = bench.policy.reports
        assert (first, second) == (0, pytest.approx(1, abs=0.25))


async def test_a_connection_that_drains_is_not_kept_by_it(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    bench = Bench(nursery, OrcaServicer(MetricRecorder(), min_report_interval=1))
    async with bench.open() as channel:
        with trio.fail_after(1):
            await bench.backend.drain()
        await settle()
        assert channel.statistics().connections == 0


async def test_it_does_not_keep_a_channel_from_going_idle(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    bench = Bench(nursery, OrcaServicer(MetricRecorder(), min_report_interval=1))
    async with bench.open(idle_timeout=60) as channel:
        await trio.sleep(100)
        assert channel.state is ConnectivityState.IDLE
        assert channel.statistics().connections == 0


async def test_a_server_without_the_service_is_asked_once_and_told_of_once(
    nursery: trio.Nursery, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(nursery)
    with caplog.at_level(logging.WARNING, "trio_grpc"):
        async with bench.open() as channel:
            await trio.sleep(100)
            await EchoStub(channel).Unary(EchoRequest())
            await bench.backend.stop()
            await bench.backend.start()
            await trio.sleep(100)
            assert channel.state is ConnectivityState.READY
    assert bench.policy.reports == []
    assert caplog.messages == [
        "a does not serve /xds.service.orca.v3.OpenRcaService/StreamCoreMetrics, and its load is not known"
    ]


class Ending(OrcaServicer):
    """Its calls end with an error, before they have reported anything."""

    def __init__(self) -> None:
        super().__init__(MetricRecorder())
        self.times: list[float] = []

    async def StreamCoreMetrics(self, request: Any, context: Any, /) -> Any:
        self.times.append(trio.current_time())
        raise RpcError(StatusCode.INTERNAL, "out of order")
        yield


async def test_a_call_that_fails_is_tried_again_with_backoff(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    servicer = Ending()
    bench = Bench(nursery, servicer)
    async with bench.open():
        await trio.sleep(60)
    waits = [after - before for before, after in zip(servicer.times, servicer.times[1:], strict=False)]
    assert len(waits) >= 5
    for count, wait in enumerate(waits):
        assert 0.79 * 1.6**count <= wait <= 1.21 * 1.6**count
