"""The .proto file of channelz (gRFC A14), and what is generated from it."""

from __future__ import annotations

from google.protobuf import any_pb2, duration_pb2, timestamp_pb2, wrappers_pb2

from trio_grpc import _private_pool

# What our file imports must be where it is itself.
for _imported in (any_pb2, duration_pb2, timestamp_pb2, wrappers_pb2):
    _private_pool.Default().AddSerializedFile(_imported.DESCRIPTOR.serialized_pb)  # type: ignore[no-untyped-call]
