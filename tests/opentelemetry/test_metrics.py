"""Metrics with gRFC A66's names: what is counted, with which labels."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.echo_service import Context, Echo
from tests.support.retries import TWO_RETRIES
from trio_grpc import RpcError, StatusCode
from trio_grpc.opentelemetry import ClientMetrics, ServerMetrics
from trio_grpc.opentelemetry._metrics import _canonical
from trio_grpc.testing import open_channel_pair

Clock = trio.testing.MockClock


class Measured:
    """Instruments, and what they have recorded."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader])

    def metrics(self) -> dict[str, Any]:
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        metric = self.metrics().get(name)
        return [] if metric is None else [(dict(point.attributes), point) for point in metric.data.data_points]


@pytest.fixture
def measured() -> Measured:
    return Measured()


METHOD = {"grpc.method": "echo.Echo/Unary"}


class Slow(Echo):
    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        self.calls += 1
        await trio.sleep(0.3)
        if request.text == "fail":
            raise RpcError(StatusCode.NOT_FOUND, "no")
        if request.text == "flaky" and self.calls < 3:
            raise RpcError(StatusCode.UNAVAILABLE, "busy")
        return EchoReply(text=request.text)


async def test_a_server(autojump_clock: Clock, measured: Measured) -> None:
    interceptors = [ServerMetrics(measured.provider)]
    async with open_channel_pair(Slow(), server_interceptors=interceptors) as (channel, _):
        echo = EchoStub(channel)
        await echo.Unary(EchoRequest(text="x"))
        await echo.Unary(EchoRequest(text="x"))
        with pytest.raises(RpcError):
            await echo.Unary(EchoRequest(text="fail"))
    ((labels, started),) = measured.points("grpc.server.call.started")
    assert (labels, started.value) == (METHOD, 3)
    durations = {labels["grpc.status"]: point for labels, point in measured.points("grpc.server.call.duration")}
    assert {status: point.count for status, point in durations.items()} == {"OK": 2, "NOT_FOUND": 1}
    assert durations["OK"].sum == pytest.approx(0.6, abs=0.05)
    sizes = {
        labels["grpc.status"]: point.sum
        for labels, point in measured.points("grpc.server.call.rcvd_total_compressed_message_size")
    }
    assert sizes == {"OK": 6, "NOT_FOUND": 6}
    sizes = {
        labels["grpc.status"]: point.sum
        for labels, point in measured.points("grpc.server.call.sent_total_compressed_message_size")
    }
    assert sizes == {"OK": 6, "NOT_FOUND": 0}
    assert {name: metric.unit for name, metric in measured.metrics().items()} == {
        "grpc.server.call.started": "{call}",
        "grpc.server.call.duration": "s",
        "grpc.server.call.sent_total_compressed_message_size": "By",
        "grpc.server.call.rcvd_total_compressed_message_size": "By",
    }
    bounds = durations["OK"].explicit_bounds
    assert (len(bounds), bounds[:3], bounds[-1]) == (41, (0.0, 0.00001, 0.00005), 100.0)


@pytest.mark.parametrize("retries", [False, True])
async def test_a_client_with_retries(retries: bool, autojump_clock: Clock, measured: Measured) -> None:
    interceptors = [ClientMetrics(measured.provider, retries=retries)]
    async with open_channel_pair(Slow(), interceptors=interceptors, service_config=TWO_RETRIES) as (channel, _):
        await EchoStub(channel).Unary(EchoRequest(text="flaky"))
        target = channel.target
    common = {**METHOD, "grpc.target": target}
    ((labels, started),) = measured.points("grpc.client.attempt.started")
    assert (labels, started.value) == (common, 3)
    attempts = measured.points("grpc.client.attempt.duration")
    assert {labels["grpc.status"]: point.count for labels, point in attempts} == {"UNAVAILABLE": 2, "OK": 1}
    ((labels, duration),) = measured.points("grpc.client.call.duration")
    assert labels == {**common, "grpc.status": "OK"}
    assert 2.4 < duration.sum < 3.5
    sent = measured.points("grpc.client.attempt.sent_total_compressed_message_size")
    assert {labels["grpc.status"]: point.sum for labels, point in sent} == {"UNAVAILABLE": 14, "OK": 7}
    received = measured.points("grpc.client.attempt.rcvd_total_compressed_message_size")
    assert {labels["grpc.status"]: point.sum for labels, point in received} == {"UNAVAILABLE": 0, "OK": 7}
    if retries:
        ((labels, count),) = measured.points("grpc.client.call.retries")
        assert (labels, count.sum) == (common, 2)
        ((labels, delay),) = measured.points("grpc.client.call.retry_delay")
        assert (labels, 1.5 < delay.sum < 2.5) == (common, True)
    assert ("grpc.client.call.retries" in measured.metrics()) is retries
    assert measured.points("grpc.client.call.hedges") == []
    assert measured.points("grpc.client.call.transparent_retries") == []


async def test_hedges(autojump_clock: Clock, measured: Measured) -> None:
    config = {"methodConfig": [{"name": [{}], "hedgingPolicy": {"maxAttempts": 2, "hedgingDelay": "0.1s"}}]}
    interceptors = [ClientMetrics(measured.provider, retries=True)]
    async with open_channel_pair(Slow(), interceptors=interceptors, service_config=config) as (channel, _):
        await EchoStub(channel).Unary(EchoRequest(text="x"))
    ((_, count),) = measured.points("grpc.client.call.hedges")
    assert count.sum == 1
    attempts = measured.points("grpc.client.attempt.duration")
    assert {labels["grpc.status"]: point.count for labels, point in attempts} == {"OK": 1, "CANCELLED": 1}


async def test_streams_and_blocks_that_are_left_early(autojump_clock: Clock, measured: Measured) -> None:
    pair = open_channel_pair(
        Echo(),
        interceptors=[ClientMetrics(measured.provider)],
        server_interceptors=[ServerMetrics(measured.provider)],
    )
    async with pair as (channel, _):
        async with EchoStub(channel).ServerStream(EchoRequest(count=100_000, payload=b"x" * 1000)) as call:
            await call.receive()
        await trio.testing.wait_all_tasks_blocked()
    for name in "grpc.client.call.duration", "grpc.client.attempt.duration", "grpc.server.call.duration":
        ((labels, point),) = measured.points(name)
        assert (labels["grpc.status"], point.count) == ("CANCELLED", 1)
        assert labels["grpc.method"] == "echo.Echo/ServerStream"


@pytest.mark.parametrize(
    ("target", "canonical"),
    [
        ("localhost:50051", "dns:///localhost:50051"),
        ("dns:///localhost:50051", "dns:///localhost:50051"),
        ("unix:/tmp/socket", "unix:/tmp/socket"),
        ("ipv6:[::1]:5", "ipv6:[::1]:5"),
        ("127.0.0.1:5", "dns:///127.0.0.1:5"),
        ("[::1]:5", "dns:///[::1]:5"),
        ("MemoryListener.connect", "MemoryListener.connect"),
    ],
)
def test_targets_are_canonical(target: str, canonical: str) -> None:
    assert _canonical(target) == canonical


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="retries must be bool, not int"):
        ClientMetrics(retries=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("opentelemetry", "opentelemetry-api", "otel"), ("prometheus", "prometheus-client", "prometheus")],
)
def test_without_the_extra_the_error_says_what_to_do(module: str, package: str, extra: str) -> None:
    program = f"""
import sys
sys.modules["opentelemetry"] = sys.modules["prometheus_client"] = None
import trio_grpc.call_log
try:
    import trio_grpc.{module}
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == f"trio_grpc.{module} needs {package}: pip install 'trio-grpc[{extra}]'\n"
