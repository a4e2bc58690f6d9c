"""Descriptors and messages of the standard services, kept where they clash with nobody's.

All generated modules of a program share protobuf's default pool, which refuses a second, different file of one name and
a second definition of one message. A program that has both `trio_grpc.health` and grpcio-health-checking, or a copy of
the same .proto of its own, would run into that. So the `_pb2` modules of our services, which are otherwise what protoc
makes of their .proto files, import this room in place of ``descriptor_pool`` and ``builder`` of protobuf: the one has
the default pool, the other registers what it builds there (in the pure-Python protobuf, which e.g. musl libc gets).
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.builder import BuildMessageAndEnumDescriptors as BuildMessageAndEnumDescriptors
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message
from google.protobuf.reflection import GeneratedProtocolMessageType

__all__ = ["BuildMessageAndEnumDescriptors", "BuildTopDescriptorsAndMessages", "Default"]

_POOL = DescriptorPool()


def Default() -> DescriptorPool:  # noqa: N802 (protobuf's name for it)
    """Return the pool, always the same one."""
    return _POOL


def BuildTopDescriptorsAndMessages(  # noqa: N802
    file: FileDescriptor, module_name: str, namespace: dict[str, Any]
) -> None:
    """Fill the namespace of a file's module: classes of messages and enums, descriptors of services."""

    def build(message: Descriptor, prefix: str) -> type[Message]:
        attributes: dict[str, Any] = {
            name: build(nested, f"{prefix}{message.name}.") for name, nested in message.nested_types_by_name.items()
        }
        attributes |= {
            "DESCRIPTOR": message,
            "__module__": module_name,
            "__qualname__": f"{prefix}{message.name}",
        }
        metaclass: Any = GeneratedProtocolMessageType  # Any: protobuf's stubs do not tell what it takes
        built: type[Message] = metaclass(message.name, (Message,), attributes)
        return built

    for name, enum in file.enum_types_by_name.items():
        namespace[f"_{name.upper()}"] = enum
        namespace[name] = EnumTypeWrapper(enum)
        namespace.update((value.name, value.number) for value in enum.values)
    for name, service in file.services_by_name.items():
        namespace[f"_{name.upper()}"] = service
    for name, message in file.message_types_by_name.items():
        namespace[name] = build(message, "")
