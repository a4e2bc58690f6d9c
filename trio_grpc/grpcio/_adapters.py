"""From a handler as grpcio knows it to one of ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from inspect import isasyncgenfunction, iscoroutinefunction
from threading import get_ident
from typing import Any

import trio

from trio_grpc._generic_servicer import GenericHandler
from trio_grpc._lone_exception import unwrapped
from trio_grpc._method import Cardinality, Method
from trio_grpc._plain_codecs import FunctionCodec
from trio_grpc._servicer import ServicerContext
from trio_grpc.grpcio._context import GrpcioContext
from trio_grpc.grpcio._facts import Facts
from trio_grpc.grpcio._thread_context import GrpcioThreadContext, ThreadRequests

__all__ = ["adapt"]


def adapt(path: str, theirs: Any, limiter: trio.CapacityLimiter) -> tuple[Method[Any, Any], GenericHandler]:
    """Return our method and our handler for one of theirs.

    Args:
        path: as ``/package.Service/Method``.
        theirs: a ``grpc.RpcMethodHandler``.
        limiter: for handlers that take a thread.

    Raises:
        TypeError: the handler has no function of its kind.
        ValueError: that is no path of a method.
    """
    cardinality = Cardinality.of(bool(theirs.request_streaming), bool(theirs.response_streaming))
    kind = cardinality.name.lower()
    behaviour = getattr(theirs, kind)
    if not callable(behaviour):
        raise TypeError(f"the handler of {path} has no function {kind}, got {behaviour!r}")
    # What the server sends are responses.
    codec = FunctionCodec(theirs.response_serializer, theirs.request_deserializer)
    method = Method[Any, Any].at(path, cardinality, codec=codec)
    if _is_async(behaviour):
        run = _streaming if cardinality.server_streaming else _replying
        return method, partial(run, behaviour, cardinality.client_streaming)
    return method, _in_thread(behaviour, cardinality, limiter)


def _is_async(behaviour: Any) -> bool:
    while isinstance(behaviour, partial):
        behaviour = behaviour.func
    return any(
        iscoroutinefunction(function) or isasyncgenfunction(function)
        for function in (behaviour, getattr(behaviour, "__call__", None))  # noqa: B004 # an object with an async __call__
    )


async def _replying(behaviour: Any, streaming: bool, request: Any, context: ServicerContext[Any]) -> Any:
    """Run an ``async def`` that returns the reply."""
    theirs = GrpcioContext(context, request if streaming else None)
    reply = await _until_ended(theirs, behaviour(request, theirs))
    theirs._reply_compressed()
    return reply


async def _streaming(behaviour: Any, streaming: bool, request: Any, context: ServicerContext[Any]) -> None:
    """Run an async generator, or an ``async def`` that writes."""
    theirs = GrpcioContext(context, request if streaming else None, writable=True)
    replies = behaviour(request, theirs)
    await _until_ended(theirs, _write_all(replies, theirs) if hasattr(replies, "__aiter__") else replies)


async def _write_all(replies: Any, theirs: GrpcioContext) -> None:
    try:
        async for reply in replies:
            await theirs.write(reply)
    finally:
        close = getattr(replies, "aclose", None)
        if close is not None:
            await close()


async def _until_ended(theirs: Facts, running: Awaitable[Any]) -> Any:
    """Run a handler to its end, and give the RPC the status that it has chosen."""
    try:
        reply = await running
    except Exception as error:
        await theirs._explain(error)
        raise
    finally:
        theirs._tell_ended()
    await theirs._settle()
    return reply


def _in_thread(behaviour: Any, cardinality: Cardinality, limiter: trio.CapacityLimiter) -> GenericHandler:
    """Return what runs a plain function in a thread, which keeps it until it returns."""

    @wraps(behaviour)
    async def run(request: Any, context: ServicerContext[Any]) -> Any:
        theirs = GrpcioThreadContext(context)
        given = ThreadRequests(theirs, request) if cardinality.client_streaming else request

        def work() -> Any:
            theirs._own_thread = get_ident()
            result = behaviour(given, theirs)
            if not cardinality.server_streaming:
                return result
            try:
                for reply in result:
                    theirs._send(reply)
            finally:
                # A generator whose client has gone must not wait for the garbage collector.
                close = getattr(result, "close", None)
                if close is not None:
                    close()
            return None

        running = _run_watched(theirs, partial(trio.to_thread.run_sync, work, limiter=limiter))
        reply = await _until_ended(theirs, running)
        theirs._reply_compressed()
        return reply

    return run


async def _run_watched(theirs: GrpcioThreadContext, run: Callable[[], Awaitable[Any]]) -> Any:
    """Run something that cannot be cancelled, and tell those who asked when it should have been."""

    async def watch() -> None:
        try:
            await trio.sleep_forever()
        finally:
            theirs._tell_ended()

    with unwrapped():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            result = await run()
            nursery.cancel_scope.cancel()
    return result
