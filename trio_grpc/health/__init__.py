"""The standard health service, ``grpc.health.v1.Health``: its servicer, its stub and its messages."""

from __future__ import annotations

from trio_grpc.health._servicer import HealthServicer as HealthServicer
from trio_grpc.health._servicer import ServingStatus as ServingStatus
from trio_grpc.health._v1.health_pb2 import HealthCheckRequest as HealthCheckRequest
from trio_grpc.health._v1.health_pb2 import HealthCheckResponse as HealthCheckResponse
from trio_grpc.health._v1.health_pb2 import HealthListRequest as HealthListRequest
from trio_grpc.health._v1.health_pb2 import HealthListResponse as HealthListResponse
from trio_grpc.health._v1.health_trio_grpc import HealthStub as HealthStub

__all__ = (
    "HealthCheckRequest",
    "HealthCheckResponse",
    "HealthListRequest",
    "HealthListResponse",
    "HealthServicer",
    "HealthStub",
    "ServingStatus",
)
