"""The .proto files of ORCA (gRFC A51), and what is generated from them."""

from __future__ import annotations

from google.protobuf import duration_pb2

from trio_grpc import _private_pool

# What our file imports must be where it is itself.
_private_pool.Default().AddSerializedFile(duration_pb2.DESCRIPTOR.serialized_pb)  # type: ignore[no-untyped-call]
