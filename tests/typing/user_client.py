"""A client as a user would write it; read by type checkers, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator

import trio
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub
from typing_extensions import assert_type

import trio_grpc
from trio_grpc.health import HealthCheckRequest, HealthStub, ServingStatus


async def unary(echo: EchoStub) -> None:
    reply = await echo.Unary(EchoRequest(text="a"))
    assert_type(reply, EchoReply)
    assert_type(reply.text, str)
    assert_type(
        await echo.Unary(
            EchoRequest(),
            timeout=1.5,
            metadata={"key": "value", "key-bin": b"value"},
            wait_for_ready=True,
            compression=trio_grpc.Compression.GZIP,
        ),
        EchoReply,
    )
    async with echo.Unary.open(EchoRequest(), metadata=[("key", "one"), ("key", "two")]) as call:
        assert_type(await call.wait_initial_metadata(), trio_grpc.Metadata)
        assert_type(await call.receive(), EchoReply)
        assert_type(call.trailing_metadata, trio_grpc.Metadata)


async def server_stream(echo: EchoStub) -> list[str]:
    async with echo.ServerStream(EchoRequest(count=3), timeout=1) as replies:
        first = await replies.receive()
        assert_type(first, EchoReply)
        return [first.text] + [reply.text async for reply in replies]


async def client_stream(echo: EchoStub) -> None:
    async def requests() -> AsyncIterator[EchoRequest]:
        yield EchoRequest()

    assert_type(await echo.ClientStream([EchoRequest(), EchoRequest()]), EchoReply)
    assert_type(await echo.ClientStream(requests(), compression="gzip"), EchoReply)
    async with echo.ClientStream.open(metadata=trio_grpc.Metadata({"key": "value"})) as call:
        await call.send(EchoRequest())
        await call.done_sending()
        assert_type(await call.receive(), EchoReply)


async def bidi(echo: EchoStub) -> None:
    async with echo.Bidi(wait_for_ready=False) as chat, trio.open_nursery() as nursery:
        nursery.start_soon(chat.send, EchoRequest())
        async for reply in chat:
            assert_type(reply, EchoReply)
            await chat.done_sending()


async def fails(echo: EchoStub) -> trio_grpc.StatusCode:
    try:
        await echo.Unary(EchoRequest())
    except trio_grpc.RpcError as error:
        assert_type(error.message, str)
        return error.code
    return trio_grpc.StatusCode.OK


async def is_serving(channel: trio_grpc.Channel) -> bool:
    reply = await HealthStub(channel).Check(HealthCheckRequest(service="echo.Echo"))
    return reply.status == ServingStatus.SERVING


CONFIG = trio_grpc.ServiceConfig(
    load_balancing=trio_grpc.PickFirst(shuffle_address_list=True),
    methods=[
        trio_grpc.MethodConfig(
            names=["echo.Echo"],
            timeout=5,
            retry_policy=trio_grpc.RetryPolicy(
                max_attempts=3,
                initial_backoff=0.1,
                max_backoff=1,
                backoff_multiplier=2,
                retryable_status_codes=[trio_grpc.StatusCode.UNAVAILABLE],
            ),
        ),
        trio_grpc.MethodConfig(names=("echo.Echo/Unary",), hedging_policy=trio_grpc.HedgingPolicy(max_attempts=2)),
    ],
    retry_throttling=trio_grpc.RetryThrottling(max_tokens=10, token_ratio=0.1),
    health_check=trio_grpc.HealthCheckConfig(service_name="echo.Echo"),
)


async def resolve(target: trio_grpc.ResolverTarget, resolution: trio_grpc.Resolution, /) -> None:
    resolution.update([trio_grpc.Endpoint(target.path)], service_config={"loadBalancingConfig": [{"round_robin": {}}]})
    await trio.lowlevel.checkpoint()


async def configured() -> None:
    assert_type(trio_grpc.ServiceConfig.from_json("{}"), trio_grpc.ServiceConfig)
    assert_type(CONFIG.method_config("/echo.Echo/Unary").timeout, float | None)
    async with trio_grpc.open_channel("x:///y", resolvers={"x": resolve}, service_config=CONFIG) as channel:
        await unary(EchoStub(channel))
    async with trio_grpc.open_channel("localhost", load_balancing="round_robin", service_config="{}") as channel:
        await unary(EchoStub(channel))


async def main() -> None:
    async with trio_grpc.open_channel("localhost:50051") as channel:
        assert_type(channel, trio_grpc.Channel)
        echo = EchoStub(channel)
        await unary(echo)
        with trio.fail_after(1):
            assert_type(await server_stream(echo), list[str])


if __name__ == "__main__":
    trio.run(main)
