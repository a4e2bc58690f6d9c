"""A user's interceptors that log, trace and measure: one object fits where it should, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from echo_trio_grpc import EchoServicer
from opentelemetry.propagators.textmap import TextMapPropagator
from typing_extensions import assert_type

import trio_grpc
from trio_grpc.call_log import CallLog
from trio_grpc.opentelemetry import ClientMetrics, ClientTracing, GrpcTraceBinPropagator, ServerMetrics, ServerTracing
from trio_grpc.prometheus import ClientMetrics as PrometheusClient
from trio_grpc.prometheus import ServerMetrics as PrometheusServer

either = CallLog()
for_clients: list[trio_grpc.ClientInterceptor] = [either, ClientTracing(), ClientMetrics(), PrometheusClient()]
for_servers: list[trio_grpc.ServerInterceptor] = [either, ServerTracing(), ServerMetrics(), PrometheusServer()]
propagator: TextMapPropagator = GrpcTraceBinPropagator()


class CountBytes(trio_grpc.CallObserver):
    def __init__(self) -> None:
        self.sent = 0

    def attempt_ended(self, attempt: trio_grpc.Attempt, /) -> None:
        assert_type(attempt.status, trio_grpc.StatusCode | None)
        assert_type(attempt.kind, trio_grpc.AttemptKind)

    def message_sent(self, size: int, compressed: bool, attempt: trio_grpc.Attempt | None, /) -> None:
        self.sent += size


async def count(call: trio_grpc.InterceptedCall | trio_grpc.ServicerContext[Any], proceed: trio_grpc.Proceed) -> None:
    call.observe(CountBytes())
    await proceed()


def user_of(call: trio_grpc.InterceptedCall | trio_grpc.ServicerContext[Any]) -> Mapping[str, object]:
    return {"user": call.metadata.get("user")}


async def use_them(servicer: EchoServicer) -> None:
    trio_grpc.open_channel("localhost:1", interceptors=[*for_clients, count, CallLog(fields=user_of)])
    await trio_grpc.serve([servicer], "localhost:1", interceptors=[*for_servers, count])
