"""open_channel_pair: the options that it passes on."""

from __future__ import annotations

from typing import Any

import pytest
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

from tests.support.echo import Context, Echo
from trio_grpc import MethodConfig, RetryPolicy, RpcError, ServiceConfig, ServiceConfigError, StatusCode
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


async def test_a_service_config(autojump_clock: trio.testing.MockClock) -> None:
    attempts = 0

    async def unary(request: EchoRequest, context: Context) -> EchoReply:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise RpcError(StatusCode.UNAVAILABLE, "not now")
        return EchoReply(text=f"after {attempts - 1}")

    policy = RetryPolicy(
        max_attempts=3,
        initial_backoff=1,
        max_backoff=1,
        backoff_multiplier=1,
        retryable_status_codes=[StatusCode.UNAVAILABLE],
    )
    config = ServiceConfig(methods=[MethodConfig(retry_policy=policy)])
    async with open_channel_pair(Echo(unary=unary), service_config=config) as (channel, _):
        assert (await EchoStub(channel).Unary(EchoRequest())).text == "after 2"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"metadata": {"a name": "x"}}, ValueError),
        ({"compression": "lzw"}, ValueError),
        ({"server_compression": "lzw"}, ValueError),
        ({"service_config": "{"}, ServiceConfigError),
    ],
)
async def test_wrong_options(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        async with open_channel_pair(Echo(), **options):
            pass
