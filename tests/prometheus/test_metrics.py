"""Metrics for Prometheus: what a scrape sees after some calls."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub
from prometheus_client import CollectorRegistry, generate_latest

from tests.echo_service import Context, Echo
from trio_grpc import RpcError, StatusCode
from trio_grpc.prometheus import ClientMetrics, ServerMetrics
from trio_grpc.testing import open_channel_pair

Clock = trio.testing.MockClock


class Failing(Echo):
    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        await trio.sleep(0.3)
        if request.text:
            raise RpcError(StatusCode[request.text], "no")
        return EchoReply()


UNARY = {"grpc_type": "unary", "grpc_service": "echo.Echo", "grpc_method": "Unary"}


@pytest.mark.parametrize("side", ["client", "server"])
async def test_each_side(side: str, autojump_clock: Clock) -> None:
    registry = CollectorRegistry()
    metrics: Any = ClientMetrics(registry) if side == "client" else ServerMetrics(registry)
    options: Any = {"interceptors" if side == "client" else "server_interceptors": [metrics]}

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"grpc_{side}_{name}", {**UNARY, **labels})

    async with open_channel_pair(Failing(), **options) as (channel, _):
        echo = EchoStub(channel)
        for text in "", "", "NOT_FOUND", "CANCELLED":
            try:
                await echo.Unary(EchoRequest(text=text))
            except RpcError:
                assert text
    assert value("started_total") == 4
    assert value("handled_total", grpc_code="OK") == 2
    assert value("handled_total", grpc_code="NotFound") == 1
    assert value("handled_total", grpc_code="Canceled") == 1
    sent, received = (4, 2) if side == "client" else (2, 4)
    assert (value("msg_sent_total"), value("msg_received_total")) == (sent, received)
    assert value("handling_seconds_count") == 4
    assert value("handling_seconds_sum") == pytest.approx(1.2, abs=0.1)
    assert value("handling_seconds_bucket", le="0.25") == 0
    assert value("handling_seconds_bucket", le="0.5") == 4


async def test_types_of_streams(autojump_clock: Clock) -> None:
    registry = CollectorRegistry()
    metrics = ServerMetrics(registry, buckets=None)
    async with open_channel_pair(Echo(), server_interceptors=[metrics]) as (channel, _):
        echo = EchoStub(channel)
        async with echo.ServerStream(EchoRequest(count=3)) as stream:
            assert len([reply async for reply in stream]) == 3
        await echo.ClientStream([EchoRequest()] * 2)
        async with echo.Bidi() as call:
            await call.send(EchoRequest())
            await call.receive()
        await trio.testing.wait_all_tasks_blocked()
    text = generate_latest(registry).decode()
    for kind, method, sent in ("server_stream", "ServerStream", 3), ("client_stream", "ClientStream", 1):
        labels = f'grpc_method="{method}",grpc_service="echo.Echo",grpc_type="{kind}"'
        assert f"grpc_server_msg_sent_total{{{labels}}} {sent}.0" in text
    assert 'grpc_code="Canceled",grpc_method="Bidi",grpc_service="echo.Echo",grpc_type="bidi_stream"} 1.0' in text
    assert "handling_seconds" not in text


def test_a_registry_takes_them_once() -> None:
    registry = CollectorRegistry()
    ClientMetrics(registry)
    ServerMetrics(registry)
    with pytest.raises(ValueError, match="grpc_client_started"):
        ClientMetrics(registry)


def test_codes_are_those_of_go() -> None:
    from trio_grpc.prometheus._metrics import _CODES

    assert set(_CODES.values()) == {
        "OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists",
        "PermissionDenied", "ResourceExhausted", "FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented",
        "Internal", "Unavailable", "DataLoss", "Unauthenticated",
    }  # fmt: skip
