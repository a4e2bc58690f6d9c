"""grpcio's own weighted_round_robin believes what our servers report of their load."""

from __future__ import annotations

import json
from functools import partial

import grpc
import pytest
import trio
from echo_pb2 import EchoReply, EchoRequest

import trio_grpc
from tests.echo_service import Echo
from trio_grpc.orca import LoadReporter, MetricRecorder, OrcaServicer

pytestmark = pytest.mark.watchdog(30)

#: No call of grpcio's waits longer, should we never answer.
PATIENCE = 20


@pytest.mark.parametrize("out_of_band", [False, True], ids=["with each call", "on a call of its own"])
async def test_grpcio_weighs_our_servers(nursery: trio.Nursery, out_of_band: bool) -> None:
    echoes, addresses = [], []
    for utilization in (0.8, 0.4, 0.2):
        load = MetricRecorder(qps=100, cpu_utilization=utilization)
        echoes.append(Echo())
        serve = partial(
            trio_grpc.serve,
            [echoes[-1], *([OrcaServicer(load, min_report_interval=0.1)] if out_of_band else [])],
            "127.0.0.1:0",
            interceptors=[] if out_of_band else [LoadReporter(load)],
        )
        addresses.append((await nursery.start(serve)).addresses[0])
    policy = {
        "blackoutPeriod": "0s",
        "weightUpdatePeriod": "0.1s",
        "enableOobLoadReport": out_of_band,
        "oobReportingPeriod": "0.1s",
    }
    config = {"loadBalancingConfig": [{"weighted_round_robin": policy}]}

    def call_until_weighed() -> None:
        """Call until the shares are right, or the test's patience is at its end."""
        target = "ipv4:" + ",".join(addresses)
        with grpc.insecure_channel(target, options=[("grpc.service_config", json.dumps(config))]) as channel:
            call = channel.unary_unary(
                "/echo.Echo/Unary",
                request_serializer=EchoRequest.SerializeToString,
                response_deserializer=EchoReply.FromString,
            )
            shares: list[int] = []
            while not all(
                abs(share - right) <= 2 for share, right in zip(shares or [0] * 3, (20, 40, 80), strict=True)
            ):
                trio.from_thread.check_cancelled()
                before = [echo.calls for echo in echoes]
                for _ in range(140):
                    call(EchoRequest(), timeout=PATIENCE)
                shares = [echo.calls - calls for echo, calls in zip(echoes, before, strict=True)]

    await trio.to_thread.run_sync(call_until_weighed)
    nursery.cancel_scope.cancel()
