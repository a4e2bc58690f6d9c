"""Spans of calls and of their attempts, with the names of gRFC A72."""

from __future__ import annotations

import time
from typing import Any, final

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.propagators.textmap import TextMapPropagator

from trio_grpc._interceptors import InterceptedCall, Proceed
from trio_grpc._metadata import Metadata
from trio_grpc._method import Method
from trio_grpc._observing import Attempt, AttemptKind, CallObserver
from trio_grpc._servicer import ServicerContext
from trio_grpc._status import RpcError, StatusCode
from trio_grpc._version import __version__
from trio_grpc.opentelemetry._propagation import GETTER, SETTER

__all__ = ["ClientTracing", "ServerTracing"]


class _Tracing:
    """What both sides have in common.

    Args:
        tracer_provider: makes the spans; default: the global one, when the first call is made.
        propagator: carries span contexts in metadata; default: the global one, which is W3C Trace Context and Baggage.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        *,
        propagator: TextMapPropagator | None = None,
    ) -> None:
        self._tracer = trace.get_tracer("trio_grpc", __version__, tracer_provider)
        self._propagator = propagate.get_global_textmap() if propagator is None else propagator


@final
class ClientTracing(_Tracing):
    """An interceptor for `open_channel`: a span for each call, and one in it for each attempt.

    They are called ``Sent.package.Service.Method`` and ``Attempt.package.Service.Method``. The call's span is the
    current one while the call, or its block, runs. Servers are told of the attempt's.

    Args:
        tracer_provider: makes the spans; default: the global one.
        propagator: carries span contexts in metadata; default: the global one.
    """

    async def __call__(self, call: InterceptedCall, proceed: Proceed, /) -> None:
        """Run the call in a span."""
        name = call.method.full_name
        span = self._tracer.start_span(f"Sent.{name}", kind=trace.SpanKind.CLIENT, attributes=_attributes(call.method))
        context = trace.set_span_in_context(span)
        attempts = _Attempts(self._tracer, self._propagator, name, context)
        call.observe(attempts)
        try:
            await _run(span, context, call, proceed)
        finally:
            attempts.end()


@final
class ServerTracing(_Tracing):
    """An interceptor for `serve`: a span for each RPC, whose parent is the client's.

    It is called ``Recv.package.Service.Method``, and is the current one while the handler runs.

    Args:
        tracer_provider: makes the spans; default: the global one.
        propagator: reads span contexts from metadata; default: the global one.
    """

    async def __call__(self, context: ServicerContext[Any], proceed: Proceed, /) -> None:
        """Run the RPC in a span."""
        try:
            metadata = context.metadata
        except RpcError:
            # A binary value is malformed. That ends the RPCs whose handlers look at it, and no others.
            metadata = Metadata()
        parent = self._propagator.extract(metadata, getter=GETTER)
        span = self._tracer.start_span(
            f"Recv.{context.method.full_name}",
            parent,
            kind=trace.SpanKind.SERVER,
            attributes=_attributes(context.method),
        )
        context.observe(_Messages(span))
        await _run(span, trace.set_span_in_context(span, parent), context, proceed)


async def _run(
    span: trace.Span, context: contexts.Context, call: InterceptedCall | ServicerContext[Any], proceed: Proceed
) -> None:
    token = contexts.attach(context)
    message = ""
    try:
        await proceed()
    except RpcError as error:
        message = error.message
        raise
    finally:
        contexts.detach(token)
        status = StatusCode.UNKNOWN if call.status is None else call.status
        span.set_attribute("rpc.grpc.status_code", status.value)
        if call.peer:
            span.set_attribute("network.peer.address", call.peer)
        _end(span, status, message)


def _end(span: trace.Span, status: StatusCode, message: str = "", end_time: int | None = None) -> None:
    # gRFC A72: a status that is not OK is an error, and its code is in the description.
    if status is StatusCode.OK:
        span.set_status(trace.StatusCode.OK)
    else:
        span.set_status(trace.StatusCode.ERROR, f"{status.name}: {message}" if message else status.name)
    span.end(end_time)


def _attributes(method: Method[Any, Any]) -> dict[str, str]:
    """OpenTelemetry's own attributes for RPCs, beside what gRFC A72 names."""
    return {"rpc.system": "grpc", "rpc.service": method.service, "rpc.method": method.name}


class _Messages(CallObserver):
    """Writes the messages of one span down as its events."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._sent = 0
        self._received = 0

    def message_sent(self, size: int, compressed: bool, attempt: Attempt | None, /) -> None:
        key = "message-size-compressed" if compressed else "message-size"
        self._span.add_event("Outbound message", {"sequence-number": self._sent, key: size})
        self._sent += 1

    def message_received(self, size: int, compressed_size: int | None, attempt: Attempt | None, /) -> None:
        attributes = {"sequence-number": self._received, "message-size": size}
        if compressed_size is not None:
            attributes["message-size-compressed"] = compressed_size
        self._span.add_event("Inbound message", attributes)
        self._received += 1


class _Attempts(CallObserver):
    """Has a span for each attempt of one call."""

    def __init__(
        self, tracer: trace.Tracer, propagator: TextMapPropagator, name: str, context: contexts.Context
    ) -> None:
        self._tracer = tracer
        self._propagator = propagator
        self._name = name
        self._context = context
        self._spans: dict[Attempt, tuple[trace.Span, _Messages]] = {}
        self._ended: dict[Attempt, int] = {}

    def attempt_started(self, attempt: Attempt, /) -> None:
        span = self._tracer.start_span(
            f"Attempt.{self._name}",
            self._context,
            attributes={
                "previous-rpc-attempts": attempt.previous,
                "transparent-retry": attempt.kind is AttemptKind.TRANSPARENT_RETRY,
            },
        )
        self._spans[attempt] = span, _Messages(span)
        metadata = Metadata() if attempt.metadata is None else Metadata(attempt.metadata)
        self._propagator.inject(metadata, trace.set_span_in_context(span, self._context), SETTER)
        attempt.metadata = metadata

    def attempt_connected(self, attempt: Attempt, /) -> None:
        if attempt.delayed:
            self._spans[attempt][0].add_event("Delayed LB pick complete")

    def attempt_ended(self, attempt: Attempt, /) -> None:
        # Messages that have come with the status are received after it, and an ended span takes no events.
        self._ended[attempt] = time.time_ns()

    def message_sent(self, size: int, compressed: bool, attempt: Attempt | None, /) -> None:
        assert attempt is not None
        self._spans[attempt][1].message_sent(size, compressed, attempt)

    def message_received(self, size: int, compressed_size: int | None, attempt: Attempt | None, /) -> None:
        if attempt is not None:
            self._spans[attempt][1].message_received(size, compressed_size, attempt)

    def end(self) -> None:
        """The call is over, and so are its attempts."""
        for attempt, (span, _) in self._spans.items():
            status = StatusCode.UNKNOWN if attempt.status is None else attempt.status
            _end(span, status, end_time=self._ended.get(attempt))
