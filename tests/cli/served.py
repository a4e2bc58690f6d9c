"""What the server of these tests serves, by import path."""

from __future__ import annotations

from typing import Any

from echo_pb2 import EchoReply, EchoRequest
from google.protobuf import duration_pb2

from tests.echo_service import Context, Echo
from trio_grpc import Cardinality, JsonCodec, Method, Servicer, StatusCode


class Served(Echo):
    """Fails with the status code that a request asks for as its count, where its text is ``fail``."""

    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        if request.text == "fail":
            detail = duration_pb2.Duration(seconds=7)
            await context.abort(StatusCode(request.count), "as you like", details=[detail])
        if request.text == "escape":
            await context.abort(StatusCode.NOT_FOUND, "\x1b[31mred\x07 \x9b1m")
        if request.text == "metadata":
            await context.send_initial_metadata([("seen", str(context.metadata.get("seen"))), ("raw-bin", b"\x01")])
            context.set_trailing_metadata([("after", "all")])
        return await super().Unary(request, context)


class Undescribed(Servicer):
    """Has no .proto file."""

    __trio_grpc_methods__ = {"count": Method.at("/a.Words/Count", Cardinality.UNARY_UNARY, codec=JsonCodec())}  # noqa: RUF012

    async def count(self, request: Any, context: Any) -> Any:
        raise NotImplementedError


def several() -> list[Served]:
    return [Served()]


def nothing_of_use() -> int:
    return 5


def needs_an_argument(_name: str) -> Served:
    return Served()
