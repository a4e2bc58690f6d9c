"""Targets that name a name server, with a real one on loopback, and a real server behind the name it answers for."""

from __future__ import annotations

import json

import pytest
import trio
from echo_pb2 import EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.echo_service import Echo
from tests.support.name_server import open_name_server
from trio_grpc import RpcError, Server, StatusCode
from trio_grpc._balancing.name_server import NameServer
from trio_grpc._balancing.target import TcpTarget


async def test_calls_go_where_the_name_server_says(nursery: trio.Nursery) -> None:
    server: Server = await nursery.start(trio_grpc.serve, [Echo()], "127.0.0.1:0")
    port = server.addresses[0].rpartition(":")[2]
    async with open_name_server({("echo.example.", "A"): ["127.0.0.1"]}) as name_server:
        authority = f"127.0.0.1:{name_server.port}"
        async with trio_grpc.open_channel(f"dns://{authority}/echo.example:{port}") as channel:
            assert (await EchoStub(channel).Unary(EchoRequest(count=3), timeout=10)).count == 3
        asked = sorted(query[1:] for query in name_server.queries)
        assert asked == [("echo.example.", "A", 1232), ("echo.example.", "AAAA", 1232)]
        async with trio_grpc.open_channel(f"dns://{authority}/nobody.example:{port}") as channel:
            with pytest.raises(RpcError) as caught:
                await EchoStub(channel).Unary(EchoRequest(), timeout=10)
            assert caught.value.code is StatusCode.UNAVAILABLE
            assert caught.value.message == (
                f"failed to resolve dns://{authority}/nobody.example:{port}: "
                "The DNS query name does not exist: nobody.example."
            )
    nursery.cancel_scope.cancel()


async def test_a_service_config_from_dns(nursery: trio.Nursery) -> None:
    server: Server = await nursery.start(trio_grpc.serve, [Echo()], "127.0.0.1:0")
    port = server.addresses[0].rpartition(":")[2]
    config = {"methodConfig": [{"name": [{"service": "echo.Echo"}], "maxRequestMessageBytes": 3}]}
    # The strings of a record are at most 255 bytes long.
    attribute = "grpc_config=" + json.dumps([{"serviceConfig": config}])
    text = " ".join(json.dumps(attribute[start : start + 50]) for start in range(0, len(attribute), 50))
    records = {("echo.example.", "A"): ["127.0.0.1"], ("_grpc_config.echo.example.", "TXT"): [text]}
    async with open_name_server(records) as name_server:
        target = f"dns://127.0.0.1:{name_server.port}/echo.example:{port}"
        for enabled in (False, True):
            async with trio_grpc.open_channel(target, service_config_from_dns=enabled) as channel:
                await channel.wait_ready()
                call = EchoStub(channel).Unary(EchoRequest(text="too much"), timeout=10)
                if enabled:
                    with pytest.raises(RpcError, match="3 bytes") as caught:
                        await call
                    assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
                else:
                    await call
    nursery.cancel_scope.cancel()


async def test_an_answer_that_is_too_large_for_udp_comes_by_tcp() -> None:
    addresses = [f"10.0.{number // 200}.{number % 200}" for number in range(400)]
    async with open_name_server({("many.example.", "A"): addresses}) as name_server:
        asked = NameServer(TcpTarget("127.0.0.1", name_server.port), "this")
        assert sorted(await asked.addresses("many.example", 1)) == sorted(addresses)
        assert [way for way, _, kind, _ in name_server.queries if kind == "A"] == ["UDP", "TCP"]
