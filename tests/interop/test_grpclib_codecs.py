"""JSON with grpclib, which takes no message and no status of another content type than its codec's."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import trio

import trio_grpc
from trio_grpc import Cardinality, JsonCodec, Method, RpcError, Server, Servicer, ServicerContext, StatusCode

grpclib_client = pytest.importorskip("grpclib.client", reason="grpclib is among the libraries of the benchmarks")
from grpclib.const import Status  # noqa: E402
from grpclib.encoding.base import CodecBase  # noqa: E402
from grpclib.exceptions import GRPCError  # noqa: E402

PATIENCE = 20


class TheirJson(CodecBase):
    __content_subtype__ = "json"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return json.dumps(message).encode()

    def decode(self, data: bytes, message_type: Any) -> Any:
        return json.loads(data)


class Words(Servicer):
    __trio_grpc_methods__ = {  # noqa: RUF012 # as in generated code
        name: Method.at(f"/words.Words/{name}", Cardinality.UNARY_UNARY, codec=JsonCodec())
        for name in ("count", "fail")
    }

    async def count(self, request: Any, context: ServicerContext[Any]) -> Any:
        return {"words": len(request["text"].split())}

    async def fail(self, request: Any, context: ServicerContext[Any]) -> Any:
        raise RpcError(StatusCode.NOT_FOUND, "no such word")


def ask(address: str) -> list[Any]:
    """What a client of grpclib gets from each method."""
    host, _, port = address.rpartition(":")

    async def main() -> list[Any]:
        channel = grpclib_client.Channel(host, int(port), codec=TheirJson())
        got: list[Any] = []
        try:
            for name in "count", "fail", "missing":
                method = grpclib_client.UnaryUnaryMethod(channel, f"/words.Words/{name}", dict, dict)
                try:
                    got.append(await method({"text": "two words"}, timeout=PATIENCE))
                except GRPCError as error:
                    got.append(error.status)
        finally:
            channel.close()
        return got

    return asyncio.run(main())


async def test_their_client_reads_replies_and_errors(nursery: trio.Nursery) -> None:
    server: Server = await nursery.start(trio_grpc.serve, [Words()], "127.0.0.1:0")
    got = await trio.to_thread.run_sync(ask, server.addresses[0])
    assert got == [{"words": 2}, Status.NOT_FOUND, Status.UNIMPLEMENTED]
    nursery.cancel_scope.cancel()
