"""Span contexts in metadata: how OpenTelemetry's propagators read and write it, and gRPC's own binary form."""

from __future__ import annotations

import base64
import binascii
from typing import Any, final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import (
    CarrierT,
    Getter,
    Setter,
    TextMapPropagator,
    default_getter,
    default_setter,
)

from trio_grpc._metadata import Metadata

__all__ = ["GETTER", "SETTER", "GrpcTraceBinPropagator"]

#: The binary form of OpenCensus: version 0; field 0, 16 bytes of trace id; field 1, 8 of span id; field 2, the flags.
_KEY = "grpc-trace-bin"
_LENGTH = 29


class _MetadataGetter(Getter[Metadata]):
    """Binary values are base64 to propagators, which know text only (gRFC A72)."""

    def get(self, carrier: Metadata, key: str) -> list[str] | None:
        values = carrier.get_all(key.lower())
        return [_text(value) for value in values] or None

    def keys(self, carrier: Metadata) -> list[str]:
        return list(carrier.keys())


class _MetadataSetter(Setter[Metadata]):
    def set(self, carrier: Metadata, key: str, value: str) -> None:
        key = key.lower()
        carrier.set_all(key, [base64.b64decode(value) if key.endswith("-bin") else value])


GETTER = _MetadataGetter()
SETTER = _MetadataSetter()


@final
class GrpcTraceBinPropagator(TextMapPropagator):
    """Carries span contexts in ``grpc-trace-bin``, as OpenCensus does and gRPC's other languages can (gRFC A72).

    For services that still talk to such ones: put it beside the W3C propagator in a composite one.
    """

    @property
    def fields(self) -> set[str]:
        """The keys that it writes."""
        return {_KEY}

    def inject(
        self, carrier: CarrierT, context: Context | None = None, setter: Setter[CarrierT] = default_setter
    ) -> None:
        """Write the current span's context; nothing without a valid one."""
        span = trace.get_current_span(context).get_span_context()
        if span.is_valid:
            data = b"\x00\x00%b\x01%b\x02%b" % (
                span.trace_id.to_bytes(16, "big"),
                span.span_id.to_bytes(8, "big"),
                bytes([span.trace_flags & 0xFF]),
            )
            setter.set(carrier, _KEY, base64.b64encode(data).decode())

    def extract(
        self, carrier: CarrierT, context: Context | None = None, getter: Getter[CarrierT] = default_getter
    ) -> Context:
        """Return a context with the span that the carrier names; the one given where it names none that is valid."""
        context = Context() if context is None else context
        try:
            values = getter.get(carrier, _KEY) or [""]
            data = base64.b64decode(values[0], validate=True)
        except (ValueError, binascii.Error):
            return context
        if len(data) != _LENGTH or (data[0], data[1], data[18], data[27]) != (0, 0, 1, 2):
            return context
        span = trace.SpanContext(
            trace_id=int.from_bytes(data[2:18], "big"),
            span_id=int.from_bytes(data[19:27], "big"),
            is_remote=True,
            trace_flags=trace.TraceFlags(data[28]),
        )
        return trace.set_span_in_context(trace.NonRecordingSpan(span), context) if span.is_valid else context


def _text(value: Any) -> str:
    return value if isinstance(value, str) else base64.b64encode(value).decode()
