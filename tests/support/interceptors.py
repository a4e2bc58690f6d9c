"""Interceptors that change nothing, around every call of every channel and server that a test makes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

import trio_grpc
from trio_grpc import _channel, _server
from trio_grpc._intercepted_handler import InterceptedHandler


async def pass_on(_: Any, proceed: trio_grpc.Proceed) -> None:
    await proceed()


async def look_at_call(call: trio_grpc.InterceptedCall, proceed: trio_grpc.Proceed) -> None:
    """Looks at everything."""
    call.map_requests(lambda request: request)
    call.map_responses(lambda response: response)
    _ = (call.metadata, call.timeout, call.request, call.state)
    try:
        await proceed()
    finally:
        _ = (call.status, call.peer, call.reply, call.initial_metadata, call.trailing_metadata)


async def look_at_rpc(context: trio_grpc.ServicerContext[Any], proceed: trio_grpc.Proceed) -> None:
    """Looks at everything but what a bad request may have."""
    context.map_requests(lambda request: request)
    context.map_responses(lambda response: response)
    _ = (context.deadline, context.peer, context.state)
    try:
        await proceed()
    finally:
        assert context.status is not None


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put them outside of those that a test gives itself."""
    make_channel, find_handlers = _channel.Channel.__init__, _server.find_handlers

    def make_channel_with(self: trio_grpc.Channel, *args: Any, interceptors: Iterable[Any], **options: Any) -> None:
        make_channel(self, *args, interceptors=(pass_on, look_at_call, *interceptors), **options)

    def find_handlers_with(servicers: Any, codec: Any, limits: Any, make_handler: Any) -> Any:
        own = getattr(make_handler, "args", ((),))[0]

        def make(*args: Any) -> InterceptedHandler:
            return InterceptedHandler((pass_on, look_at_rpc, *own), *args)

        return find_handlers(servicers, codec, limits, make)

    monkeypatch.setattr(_channel.Channel, "__init__", make_channel_with)
    monkeypatch.setattr(_server, "find_handlers", find_handlers_with)
