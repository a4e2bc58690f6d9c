"""Handlers with interceptors around them: the server's chain, from the context of one RPC to the user's handler."""

from __future__ import annotations

from functools import partial
from typing import Any

from trio_grpc._codec import Codec
from trio_grpc._message_coding import InterceptedCoder
from trio_grpc._method import Method
from trio_grpc._observing import Observation
from trio_grpc._options import Limits
from trio_grpc._servicer import Handler, MethodHandler, ServerInterceptor, ServicerContext
from trio_grpc._status import StatusCode
from trio_grpc._transport.stream import Stream


class InterceptedHandler(MethodHandler):
    """One method of one servicer, behind the interceptors of its server.

    Args:
        interceptors: the first is outermost.
        method, function, codec, limits: see `MethodHandler`.
    """

    __slots__ = ("_interceptors", "_plain_call")

    def __init__(
        self,
        interceptors: tuple[ServerInterceptor, ...],
        method: Method[Any, Any],
        function: Handler,
        codec: Codec,
        limits: Limits,
    ) -> None:
        super().__init__(method, function, codec, limits)
        self._interceptors = interceptors
        self._plain_call = self._call
        self._call = self._intercept

    async def _intercept(self, stream: Stream, context: ServicerContext[Any]) -> None:
        context._handled = False
        await self._proceed(stream, context, 0)
        if stream.responded or stream.end_stream or context._status is not None or stream.cancelled is not None:
            return
        if not context._handled:
            # Nor for a stream of replies: an empty one is more likely a forgotten 'await' than meant.
            raise RuntimeError(
                f"the interceptors of {self.method.path} returned without 'await proceed()' and without an answer"
            )
        if not self.method.cardinality.server_streaming:
            raise RuntimeError(f"the interceptors of {self.method.path} returned, but the RPC has no reply")

    async def _proceed(self, stream: Stream, context: ServicerContext[Any], index: int) -> None:
        """Run what is further in than ``index`` interceptors, and note on the context how it went."""
        try:
            if index < len(self._interceptors):
                await self._interceptors[index](context, partial(self._proceed, stream, context, index + 1))
            else:
                if context._handled:
                    raise RuntimeError("proceed() was awaited again: a handler runs once for each RPC")
                context._handled = True
                run = self._plain_call
                if context._request_maps or context._response_maps or context._observers:
                    observation = Observation(context._observers) if context._observers else None
                    handler = WatchedHandler.copied(self, context._response_maps, context._request_maps, observation)
                    context._handler = handler
                    run = handler._choose_call()
                await run(stream, context)
        except BaseException as error:
            context._ended = self._status_code(stream, context, error)
            raise
        context._ended = StatusCode.OK if stream.cancelled is None else StatusCode.CANCELLED


class WatchedHandler(InterceptedCoder[Any, Any], InterceptedHandler):
    """The handler of an RPC whose interceptors want to see its messages."""

    tells_sent = True


__all__ = ["InterceptedHandler"]
