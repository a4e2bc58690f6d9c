"""Interceptors that change nothing, around every call of every channel and server that a test makes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

import trio_grpc
from trio_grpc import _channel, _server
from trio_grpc._interceptors import check_interceptors


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

    def of_channel(interceptors: Iterable[Any]) -> tuple[Any, ...]:
        return (pass_on, look_at_call, *check_interceptors(interceptors))

    def of_server(interceptors: Iterable[Any]) -> tuple[Any, ...]:
        return (pass_on, look_at_rpc, *check_interceptors(interceptors))

    monkeypatch.setattr(_channel, "check_interceptors", of_channel)
    monkeypatch.setattr(_server, "check_interceptors", of_server)
