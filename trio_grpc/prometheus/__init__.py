"""Metrics for Prometheus, with the names of grpc-ecosystem's middleware. Needs the extra ``prometheus``."""

try:
    __import__("prometheus_client")
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "trio_grpc.prometheus needs prometheus-client: pip install 'trio-grpc[prometheus]'", name=_error.name
    ) from _error

from trio_grpc.prometheus._metrics import ClientMetrics as ClientMetrics
from trio_grpc.prometheus._metrics import ServerMetrics as ServerMetrics

__all__ = ["ClientMetrics", "ServerMetrics"]
