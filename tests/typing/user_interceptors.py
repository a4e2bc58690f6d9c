"""Interceptors as users would write them; read by type checkers, never run."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import trio
from echo_trio_grpc import EchoServicer
from typing_extensions import assert_type

import trio_grpc
import trio_grpc.testing

user: ContextVar[str] = ContextVar("user")


async def log(call: trio_grpc.InterceptedCall, proceed: trio_grpc.Proceed) -> None:
    call.metadata.add("key", "value")
    if call.timeout is None:
        call.timeout = 10
    call.compression = trio_grpc.Compression.GZIP
    call.wait_for_ready = True
    call.state.started = trio.current_time()
    try:
        await proceed()
    finally:
        assert_type(call.status, trio_grpc.StatusCode | None)
        assert_type(call.trailing_metadata, trio_grpc.Metadata)
        assert_type(call.method, trio_grpc.Method[Any, Any])
        assert_type(call.peer, str)


async def retry(call: trio_grpc.InterceptedCall, proceed: trio_grpc.Proceed) -> None:
    if not call.awaited:
        return await proceed()
    try:
        await proceed()
    except trio_grpc.RpcError:
        await proceed()


async def authenticate(context: trio_grpc.ServicerContext[Any], proceed: trio_grpc.Proceed) -> None:
    token = context.metadata.get("token")
    if not isinstance(token, str):
        await context.abort(trio_grpc.StatusCode.UNAUTHENTICATED)
    user.set(token)
    context.state.token = token
    await proceed()
    assert_type(context.status, trio_grpc.StatusCode | None)


class Counting:
    """Fits both sides."""

    def __init__(self) -> None:
        self.messages = 0

    async def __call__(
        self, call: trio_grpc.InterceptedCall | trio_grpc.ServicerContext[Any], proceed: trio_grpc.Proceed
    ) -> None:
        call.map_requests(self.count)
        call.map_responses(self.count)
        await proceed()

    def count(self, message: Any) -> Any:
        self.messages += 1
        return message


async def main() -> None:
    counting = Counting()
    of_clients: list[trio_grpc.ClientInterceptor] = [log, retry, counting]
    of_servers: Sequence[trio_grpc.ServerInterceptor] = (authenticate, counting)
    async with trio_grpc.open_channel("localhost:1", interceptors=of_clients):
        await trio_grpc.serve([EchoServicer()], "localhost:0", interceptors=of_servers)
    async with trio_grpc.testing.open_channel_pair(
        EchoServicer(), interceptors=[log], server_interceptors=[authenticate]
    ):
        pass


if __name__ == "__main__":
    trio.run(main)
