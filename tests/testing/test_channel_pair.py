"""open_channel_pair: the options that it passes on."""

from __future__ import annotations

from typing import Any

import pytest
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

from tests.support.echo import Context, Echo
from trio_grpc.testing import open_channel_pair


async def test_metadata_and_compression_of_either_side() -> None:
    async def unary(request: EchoRequest, context: Context) -> EchoReply:
        return EchoReply(text=f"{context.metadata['who']} {context.request_compressed}".ljust(200))

    options: dict[str, Any] = {"metadata": {"who": "me"}, "compression": "gzip", "server_compression": "deflate"}
    for chosen, expected in (
        (("metadata",), ("me False", False)),
        (("metadata", "compression"), ("me True", False)),
        (("metadata", "server_compression"), ("me False", True)),
    ):
        pair = open_channel_pair(Echo(unary=unary), **{name: options[name] for name in chosen})
        async with pair as (channel, _), EchoStub(channel).Unary.open(EchoRequest(text="a" * 200)) as call:
            reply = await call.receive()
            assert (reply.text.strip(), call.response_compressed) == expected


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"metadata": {"a name": "x"}}, ValueError),
        ({"compression": "lzw"}, ValueError),
        ({"server_compression": "lzw"}, ValueError),
    ],
)
async def test_wrong_options(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        async with open_channel_pair(Echo(), **options):
            pass
