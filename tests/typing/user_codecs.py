"""A user's codecs, methods without generated code, and generic servicers."""

from __future__ import annotations

from typing import Any

from typing_extensions import assert_type

import trio_grpc
from trio_grpc.grpcio import GrpcioServicers

codecs: list[trio_grpc.Codec] = [
    trio_grpc.BytesCodec(),
    trio_grpc.JsonCodec(ignore_unknown_fields=True),
    trio_grpc.FunctionCodec(str.encode, bytes.decode, name="text"),
]
method = trio_grpc.Method[Any, Any].at("/a.B/C", trio_grpc.Cardinality.UNARY_UNARY, codec=codecs[0])
assert_type(method, trio_grpc.Method[Any, Any])


class Everything(trio_grpc.GenericServicer):
    def find(
        self, call: trio_grpc.IncomingCall, /
    ) -> tuple[trio_grpc.Method[Any, Any], trio_grpc.GenericHandler] | None:
        assert_type(call.metadata, trio_grpc.Metadata)
        return (method, self.answer) if call.path == method.path else None

    async def answer(self, request: bytes, context: trio_grpc.ServicerContext[bytes]) -> bytes:
        return request


async def use_them(channel: trio_grpc.Channel) -> None:
    await trio_grpc.serve([Everything(), GrpcioServicers(max_workers=4)], "localhost:1", codec=codecs[1])
    await trio_grpc.UnaryUnaryMethod(channel, method)(b"")
    await channel.unary_unary("/a.B/C")(b"")
