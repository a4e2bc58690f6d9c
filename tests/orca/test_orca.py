"""`trio_grpc.orca`: what servers report of their load, with each call and on a call of its own."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator
from math import inf, nan
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

from tests.echo_service import Context, Echo
from trio_grpc import RequestStream, RpcError, StatusCode
from trio_grpc.orca import (
    LoadReporter,
    MetricRecorder,
    OpenRcaServiceStub,
    OrcaLoadReport,
    OrcaLoadReportRequest,
    OrcaServicer,
    call_metrics,
)
from trio_grpc.testing import open_channel_pair

Clock = trio.testing.MockClock


def report_of(metadata: Any) -> OrcaLoadReport | None:
    values = metadata.get_all("endpoint-load-metrics-bin")
    assert len(values) <= 1
    return OrcaLoadReport.FromString(values[0]) if values else None


# -- what is recorded


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("cpu_utilization", -0.1, "cpu_utilization must be a number of 0 or more, got -0.1"),
        ("cpu_utilization", nan, "cpu_utilization must be a number of 0 or more, got nan"),
        ("application_utilization", inf, "application_utilization must be a number of 0 or more, got inf"),
        ("memory_utilization", 1.1, "memory_utilization must be a number from 0 to 1, got 1.1"),
        ("qps", -1, "qps must be a number of 0 or more, got -1"),
        ("eps", -1, "eps must be a number of 0 or more, got -1"),
    ],
)
def test_numbers_out_of_range(name: str, value: float, message: str) -> None:
    recorder = MetricRecorder()
    with pytest.raises(ValueError, match=message):
        setattr(recorder, name, value)
    with pytest.raises(ValueError, match=message):
        MetricRecorder(**{name: value})
    assert getattr(recorder, name) is None


def test_numbers_that_are_none() -> None:
    recorder = MetricRecorder()
    with pytest.raises(TypeError, match="qps must be a number, not str"):
        recorder.qps = "5"  # type: ignore[assignment]
    with pytest.raises(TypeError, match="cpu_utilization must be a number, not bool"):
        recorder.cpu_utilization = True
    with pytest.raises(TypeError, match=r"utilization\['disk'\] must be a number, not NoneType"):
        recorder.utilization["disk"] = None  # type: ignore[assignment]
    with pytest.raises(TypeError, match="names in request_cost must be str, not int"):
        recorder.request_cost[5] = 1.0  # type: ignore[index]


def test_tables_check_what_is_put_into_them() -> None:
    recorder = MetricRecorder()
    recorder.utilization.update(disk=0.5, network=1)
    del recorder.utilization["disk"]
    with pytest.raises(ValueError, match=r"utilization\['disk'\] must be a number from 0 to 1, got 1.5"):
        recorder.utilization["disk"] = 1.5
    with pytest.raises(ValueError, match=r"named_metrics\['queue'\] must be a number that is finite, got inf"):
        recorder.named_metrics["queue"] = inf
    recorder.request_cost["rows"] = -5
    assert recorder.utilization == {"network": 1}
    assert recorder.request_cost == {"rows": -5}
    assert recorder.named_metrics == {}
    with pytest.raises(AttributeError):
        recorder.utilization = recorder.named_metrics


# -- with each call


class Reporting(Echo):
    """Reports of each call, and ends it as the request says."""

    async def _end(self, text: str, context: Context) -> None:
        metrics = call_metrics()
        metrics.request_cost["words"] = len(text.split())
        metrics.cpu_utilization = 0.25
        context.set_trailing_metadata({"own": "value"})
        if text == "abort":
            await context.abort(StatusCode.NOT_FOUND, "nothing", trailing_metadata={"own": "aborted"})
        if text == "raise":
            context.set_trailing_metadata({})
            raise RpcError(StatusCode.NOT_FOUND, "nothing", trailing_metadata={"own": "raised"})
        if text == "fail":
            raise ZeroDivisionError
        if text == "sleep":
            await trio.sleep(100)

    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        await self._end(request.text, context)
        return await super().Unary(request, context)

    async def ServerStream(self, request: EchoRequest, context: Context, /) -> AsyncIterator[EchoReply]:
        yield EchoReply()
        await self._end(request.text, context)

    async def ClientStream(self, requests: RequestStream[EchoRequest], context: Context, /) -> EchoReply:
        reply = await super().ClientStream(requests, context)
        await self._end("", context)
        return reply


async def trailing_metadata_of(stub: EchoStub, text: str = "") -> Any:
    async with stub.Unary.open(EchoRequest(text=text)) as call:
        try:
            await call.receive()
        except RpcError as error:
            return error.trailing_metadata
        return call.trailing_metadata


async def test_a_call_reports_of_itself_and_of_the_server(autojump_clock: Clock) -> None:
    server = MetricRecorder(cpu_utilization=0.75, memory_utilization=0.5, qps=100, eps=2)
    server.utilization["disk"] = 0.125
    server.named_metrics["queue"] = 5
    server.request_cost["words"] = 1000
    async with open_channel_pair(Reporting(), server_interceptors=[LoadReporter(server)]) as (channel, _):
        report = report_of(await trailing_metadata_of(EchoStub(channel), "two words"))
        assert report == OrcaLoadReport(
            cpu_utilization=0.25,
            mem_utilization=0.5,
            rps_fractional=100,
            eps=2,
            utilization={"disk": 0.125},
            named_metrics={"queue": 5},
            request_cost={"words": 2},
        )
        server.qps = None
        server.eps = 3
        report = report_of(await trailing_metadata_of(EchoStub(channel)))
        assert report is not None
        assert (report.rps_fractional, report.eps) == (0, 3)


@pytest.mark.parametrize(
    ("text", "own"),
    [("", "value"), ("abort", "aborted"), ("raise", "raised"), ("fail", "value"), ("two words", "value")],
)
async def test_a_report_comes_beside_whatever_ends_the_call(autojump_clock: Clock, text: str, own: str) -> None:
    async with open_channel_pair(Reporting(), server_interceptors=[LoadReporter()]) as (channel, _):
        metadata = await trailing_metadata_of(EchoStub(channel), text)
        assert metadata["own"] == own
        report = report_of(metadata)
        assert report is not None
        assert report.request_cost == {"words": len(text.split())}


async def test_streams_report_too(autojump_clock: Clock) -> None:
    async with open_channel_pair(Reporting(), server_interceptors=[LoadReporter()]) as (channel, _):
        stub = EchoStub(channel)
        async with stub.ServerStream(EchoRequest(text="a b c")) as call:
            assert len([reply async for reply in call]) == 1
            report = report_of(call.trailing_metadata)
            assert report is not None
            assert report.request_cost == {"words": 3}
        async with stub.ClientStream.open() as uploading:
            await uploading.done_sending()
            await uploading.receive()
            assert report_of(uploading.trailing_metadata) is not None


async def test_each_call_reports_of_itself_alone(autojump_clock: Clock) -> None:
    """Also where one task handles them all."""
    async with open_channel_pair(Reporting(), Idle(), server_interceptors=[LoadReporter()]) as (channel, _):
        for words in range(1, 4):
            report = report_of(await trailing_metadata_of(EchoStub(channel), "word " * words))
            assert report is not None
            assert report.request_cost == {"words": words}


class Idle(OrcaServicer):
    """(Another service of the same server.)"""

    def __init__(self) -> None:
        super().__init__(MetricRecorder())


async def test_nothing_to_report_is_no_report(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo(), server_interceptors=[LoadReporter(MetricRecorder())]) as (channel, _):
        assert report_of(await trailing_metadata_of(EchoStub(channel))) is None


async def test_without_a_reporter_a_handler_is_told_that_nobody_hears_it(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_channel_pair(Reporting()) as (channel, _):
        assert report_of(await trailing_metadata_of(EchoStub(channel))) is None
    assert "there is no LoadReporter around this call (interceptors= of serve)" in caplog.text


def test_a_reporter_is_given_a_recorder() -> None:
    with pytest.raises(TypeError, match="server must be MetricRecorder or None, not dict"):
        LoadReporter({})  # type: ignore[arg-type]


# -- on a call of its own


def ask(stub: OpenRcaServiceStub, seconds: float = 0) -> Any:
    return stub.StreamCoreMetrics(OrcaLoadReportRequest(report_interval=dt.timedelta(seconds=seconds)))


async def test_the_load_is_told_again_and_again(autojump_clock: Clock) -> None:
    server = MetricRecorder(cpu_utilization=0.5)
    server.request_cost["words"] = 5
    async with (
        open_channel_pair(OrcaServicer(server)) as (channel, _),
        ask(OpenRcaServiceStub(channel), 40) as reports,
    ):
        assert await reports.receive() == OrcaLoadReport(cpu_utilization=0.5)
        assert trio.current_time() == pytest.approx(0)
        server.cpu_utilization = None
        server.application_utilization = 2
        for count in range(1, 4):
            assert await reports.receive() == OrcaLoadReport(application_utilization=2)
            assert trio.current_time() == pytest.approx(40 * count)


@pytest.mark.parametrize(("asked", "minimum", "interval"), [(0, 30, 30), (-5, 30, 30), (7.5, 30, 30), (2.5, 1, 2.5)])
async def test_the_server_has_a_shortest_interval(
    autojump_clock: Clock, asked: float, minimum: float, interval: float
) -> None:
    servicer = OrcaServicer(MetricRecorder(qps=1), min_report_interval=minimum)
    async with open_channel_pair(servicer) as (channel, _), ask(OpenRcaServiceStub(channel), asked) as reports:
        for count in range(3):
            await reports.receive()
            assert trio.current_time() == pytest.approx(interval * count)


async def test_a_drain_ends_the_reports(autojump_clock: Clock) -> None:
    servicer = OrcaServicer(MetricRecorder())
    async with open_channel_pair(servicer) as (channel, server), ask(OpenRcaServiceStub(channel)) as reports:
        await reports.receive()
        with trio.fail_after(1):
            await server.drain()
        with pytest.raises(RpcError, match="server is draining") as caught:
            await reports.receive()
    assert caught.value.code is StatusCode.UNAVAILABLE


@pytest.mark.parametrize("interval", [0, -1, nan])
def test_an_interval_must_be_one(interval: float) -> None:
    with pytest.raises(ValueError, match="min_report_interval must be"):
        OrcaServicer(MetricRecorder(), min_report_interval=interval)
