"""What both ends of the interop tests know: the echo service for grpcio, and a hand-made google.rpc.Status."""

from __future__ import annotations

from typing import Any

import grpc
from echo_pb2 import EchoReply, EchoRequest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message

SERVICE = "echo.Echo"


def method_handlers(servicer: Any) -> grpc.GenericRpcHandler:
    """Return what a grpcio server registers for an object with the four methods."""
    makers = {
        "Unary": grpc.unary_unary_rpc_method_handler,
        "ServerStream": grpc.unary_stream_rpc_method_handler,
        "ClientStream": grpc.stream_unary_rpc_method_handler,
        "Bidi": grpc.stream_stream_rpc_method_handler,
    }
    handlers = {
        name: make(
            getattr(servicer, name),
            request_deserializer=EchoRequest.FromString,
            response_serializer=EchoReply.SerializeToString,
        )
        for name, make in makers.items()
    }
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


class GrpcioStub:
    """The four methods as grpcio's callables."""

    def __init__(self, channel: grpc.Channel) -> None:
        def bind(make: Any, name: str) -> Any:
            return make(
                f"/{SERVICE}/{name}",
                request_serializer=EchoRequest.SerializeToString,
                response_deserializer=EchoReply.FromString,
            )

        self.Unary = bind(channel.unary_unary, "Unary")
        self.ServerStream = bind(channel.unary_stream, "ServerStream")
        self.ClientStream = bind(channel.stream_unary, "ClientStream")
        self.Bidi = bind(channel.stream_stream, "Bidi")
        self.Missing = bind(channel.unary_unary, "Missing")


def status_bytes(code: int, message: str, *details: Message) -> bytes:
    """Encode google.rpc.Status (code = 1, message = 2, repeated Any details = 3) by hand: no side checks itself."""
    text = message.encode()
    encoded = b"\x08" + _varint(code) + b"\x12" + _varint(len(text)) + text
    for detail in details:
        packed = AnyMessage()
        packed.Pack(detail)
        data = packed.SerializeToString()
        encoded += b"\x1a" + _varint(len(data)) + data
    return encoded


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
