"""From a message to the bytes that a stream carries, and back."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import pytest
from echo_pb2 import EchoReply

from trio_grpc import RpcError, StatusCode
from trio_grpc._attempt import call_error
from trio_grpc._codec import ProtobufCodec
from trio_grpc._message_coding import bytes_decoder, decompress
from trio_grpc._transport.messages import CompressedBytes


def test_protobuf_reads_the_buffer_where_it_lies_and_others_get_bytes() -> None:
    class Other:
        name = "json"

        def encoder(self, message_type: type[Any], /) -> Any:
            raise NotImplementedError

        def decoder(self, message_type: type[Any], /) -> Any:
            return lambda data: data

    data = bytearray(EchoReply(text="a").SerializeToString())
    assert bytes_decoder(ProtobufCodec(), EchoReply)(data) == EchoReply(text="a")
    decoded = bytes_decoder(Other(), EchoReply)(data)
    assert type(decoded) is bytes
    assert decoded == data


def test_decompression() -> None:
    assert decompress(CompressedBytes(gzip.compress(b"text")), "gzip", 100, call_error) == b"text"
    assert decompress(CompressedBytes(zlib.compress(b"text")), "deflate", 4, call_error) == b"text"


@pytest.mark.parametrize(
    ("data", "encoding", "code", "text"),
    [
        (b"text", "identity", StatusCode.INTERNAL, "no grpc-encoding"),
        (b"text", "br", StatusCode.INTERNAL, "'br', which is not supported here; supported: identity,"),
        (b"text", "gzip", StatusCode.INTERNAL, "failed to decompress"),
        (gzip.compress(b"text")[:-5], "gzip", StatusCode.INTERNAL, "failed to decompress"),
        (gzip.compress(bytes(101)), "gzip", StatusCode.RESOURCE_EXHAUSTED, "100 bytes after decompression"),
    ],
    ids=["flag without encoding", "unknown", "garbage", "cut", "bomb"],
)
def test_decompression_that_fails(data: bytes, encoding: str, code: StatusCode, text: str) -> None:
    with pytest.raises(RpcError, match=text) as caught:
        decompress(CompressedBytes(data), encoding, 100, call_error)
    assert caught.value.code is code
    assert caught.value.received
