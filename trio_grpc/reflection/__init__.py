"""The standard reflection service, ``grpc.reflection.v1`` and ``v1alpha``: what a server serves, for tools to read."""

from __future__ import annotations

from trio_grpc.reflection._servicers import ReflectionServicer as ReflectionServicer
from trio_grpc.reflection._servicers import ReflectionV1AlphaServicer as ReflectionV1AlphaServicer
from trio_grpc.reflection._servicers import with_reflection as with_reflection

__all__ = ("ReflectionServicer", "ReflectionV1AlphaServicer", "with_reflection")
