"""Channels that watch the health of their backends (gRFC A17), with grpcio at the other end of either side."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
import trio
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

import trio_grpc
from tests.echo_service import Echo
from trio_grpc.health import HealthServicer, ServingStatus

pytestmark = pytest.mark.watchdog(30)

CONFIG = {
    "healthCheckConfig": {"serviceName": "echo.Echo"},
    "loadBalancingConfig": [{"round_robin": {}}],
}


class GrpcioServer:
    """A server of grpcio's with its own health service.

    Attributes:
        address: where it is.
        calls: that it has had.
    """

    def __init__(self) -> None:
        self.calls = 0
        self._health = health.HealthServicer()
        self._server = grpc.server(ThreadPoolExecutor(4))
        unary = grpc.unary_unary_rpc_method_handler(
            self._echo, request_deserializer=EchoRequest.FromString, response_serializer=EchoReply.SerializeToString
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo.Echo", {"Unary": unary}),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self.say(True)
        self._server.start()

    def _echo(self, request: EchoRequest, context: object) -> EchoReply:
        self.calls += 1
        return EchoReply(count=request.count)

    def say(self, well: bool) -> None:
        statuses = health_pb2.HealthCheckResponse
        self._health.set("echo.Echo", statuses.SERVING if well else statuses.NOT_SERVING)

    def stop(self) -> None:
        self._server.stop(0).wait()


@pytest.fixture
def servers() -> Iterator[list[GrpcioServer]]:
    servers = [GrpcioServer(), GrpcioServer()]
    yield servers
    for server in servers:
        server.stop()


async def until(told: Callable[[list[int]], bool], counts: Callable[[], list[int]], call: EchoStub) -> None:
    """Make ten calls again and again, until the shares of the servers are as they should be."""
    shares: list[int] = []
    while not shares or not told(shares):
        before = counts()
        for _ in range(10):
            await call.Unary(EchoRequest(), wait_for_ready=True)
        shares = [after - count for after, count in zip(counts(), before, strict=True)]
        await trio.sleep(0.01)


async def test_our_channel_heeds_the_health_that_grpcio_serves(servers: list[GrpcioServer]) -> None:
    one, two = servers
    two.say(False)

    def counts() -> list[int]:
        return [one.calls, two.calls]

    async with trio_grpc.open_channel(f"ipv4:{one.address},{two.address}", service_config=CONFIG) as channel:
        echo = EchoStub(channel)
        for _ in range(10):
            await echo.Unary(EchoRequest(), wait_for_ready=True)
        assert counts() == [10, 0]
        two.say(True)
        await until([5, 5].__eq__, counts, echo)
        one.say(False)
        await until([0, 10].__eq__, counts, echo)


async def test_grpcio_heeds_the_health_that_we_serve(nursery: trio.Nursery) -> None:
    echoes, healths, addresses = [Echo(), Echo()], [HealthServicer(), HealthServicer()], []
    for echo, servicer in zip(echoes, healths, strict=True):
        server = await nursery.start(trio_grpc.serve, [echo, servicer], "127.0.0.1:0")
        addresses.append(server.addresses[0])
    healths[0].set("echo.Echo", ServingStatus.SERVING)
    healths[1].set("echo.Echo", ServingStatus.NOT_SERVING)

    def use() -> None:
        def until(shares: list[int]) -> None:
            while True:
                trio.from_thread.check_cancelled()
                before = [echo.calls for echo in echoes]
                for _ in range(10):
                    call(EchoRequest(), timeout=20, wait_for_ready=True)
                if [echo.calls - count for echo, count in zip(echoes, before, strict=True)] == shares:
                    return

        target, options = "ipv4:" + ",".join(addresses), [("grpc.service_config", json.dumps(CONFIG))]
        with grpc.insecure_channel(target, options=options) as channel:
            call = channel.unary_unary(
                "/echo.Echo/Unary",
                request_serializer=EchoRequest.SerializeToString,
                response_deserializer=EchoReply.FromString,
            )
            until([10, 0])
            assert echoes[1].calls == 0
            trio.from_thread.run_sync(healths[1].set, "echo.Echo", ServingStatus.SERVING)
            until([5, 5])
            trio.from_thread.run_sync(healths[0].set, "echo.Echo", ServingStatus.NOT_SERVING)
            until([0, 10])

    await trio.to_thread.run_sync(use)
    nursery.cancel_scope.cancel()
