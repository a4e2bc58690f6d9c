"""Traces and metrics for OpenTelemetry, as gRFC A72 and A66 have them. Needs the extra ``otel``.

All four are interceptors. The program chooses the SDK, and where it sends things.
"""

try:
    __import__("opentelemetry.trace")
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "trio_grpc.opentelemetry needs opentelemetry-api: pip install 'trio-grpc[otel]'", name=_error.name
    ) from _error

from trio_grpc.opentelemetry._metrics import ClientMetrics as ClientMetrics
from trio_grpc.opentelemetry._metrics import ServerMetrics as ServerMetrics
from trio_grpc.opentelemetry._propagation import GrpcTraceBinPropagator as GrpcTraceBinPropagator
from trio_grpc.opentelemetry._tracing import ClientTracing as ClientTracing
from trio_grpc.opentelemetry._tracing import ServerTracing as ServerTracing

__all__ = ["ClientMetrics", "ClientTracing", "GrpcTraceBinPropagator", "ServerMetrics", "ServerTracing"]
