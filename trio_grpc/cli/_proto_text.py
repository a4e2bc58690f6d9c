"""Descriptors as the text of a .proto file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, MethodDescriptor, ServiceDescriptor

_SCALARS = {
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_UINT64: "uint64",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_FIXED64: "fixed64",
    FieldDescriptor.TYPE_FIXED32: "fixed32",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_SFIXED32: "sfixed32",
    FieldDescriptor.TYPE_SFIXED64: "sfixed64",
    FieldDescriptor.TYPE_SINT32: "sint32",
    FieldDescriptor.TYPE_SINT64: "sint64",
}


def proto_text(symbol: Any) -> str:
    """Return what a .proto file would say of a service, method, message or enum, with full names of types.

    Comments are not there: servers do not keep them.
    """
    if isinstance(symbol, ServiceDescriptor):
        lines = [f"service {symbol.name} {{", *(f"  {_method(one)}" for one in symbol.methods), "}"]
    elif isinstance(symbol, MethodDescriptor):
        lines = [_method(symbol)]
    elif isinstance(symbol, EnumDescriptor):
        lines = list(_enum(symbol))
    else:
        lines = list(_message(symbol))
    return "\n".join(lines)


def kind_of(symbol: object) -> str:
    """Return what a symbol is: ``service``, ``method``, ``enum`` or ``message``."""
    kinds: list[tuple[type, str]] = [
        (ServiceDescriptor, "service"),
        (MethodDescriptor, "method"),
        (EnumDescriptor, "enum"),
        (Descriptor, "message"),
    ]
    return next(word for kind, word in kinds if isinstance(symbol, kind))


def method_summary(method: Any) -> dict[str, Any]:
    """Return what ``--json`` says of a method."""
    return {
        "name": method.name,
        "request": method.input_type.full_name,
        "response": method.output_type.full_name,
        "client_streaming": bool(method.client_streaming),
        "server_streaming": bool(method.server_streaming),
    }


def _method(method: Any) -> str:
    request = ("stream " if method.client_streaming else "") + method.input_type.full_name
    response = ("stream " if method.server_streaming else "") + method.output_type.full_name
    return f"rpc {method.name} ({request}) returns ({response});"


def _enum(enum: Any) -> Iterator[str]:
    yield f"enum {enum.name} {{"
    if enum.GetOptions().allow_alias:
        yield "  option allow_alias = true;"
    for value in enum.values:
        yield f"  {value.name} = {value.number};"
    yield "}"


def _message(message: Any) -> Iterator[str]:
    yield f"message {message.name} {{"
    told: set[str] = set()
    for field in message.fields:
        oneof = field.containing_oneof
        if oneof is None or _is_optional(field):
            yield f"  {_field(field)}"
        elif oneof.name not in told:
            told.add(oneof.name)
            yield f"  oneof {oneof.name} {{"
            for one in oneof.fields:
                yield f"    {_field(one)}"
            yield "  }"
    for enum in message.enum_types:
        yield from (f"  {line}" for line in _enum(enum))
    for nested in message.nested_types:
        if not nested.GetOptions().map_entry:
            yield from (f"  {line}" for line in _message(nested))
    yield "}"


def _is_optional(field: Any) -> bool:
    """Whether it was declared ``optional`` in proto3, for which protoc makes a oneof of one field."""
    oneof = field.containing_oneof
    return len(oneof.fields) == 1 and oneof.name == f"_{field.name}"


def _field(field: Any) -> str:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        key, value = kind.fields_by_name["key"], kind.fields_by_name["value"]
        return f"map<{_type(key)}, {_type(value)}> {field.name} = {field.number};"
    label = ""
    if field.is_repeated:
        label = "repeated "
    elif field.is_required:
        label = "required "
    elif field.containing_oneof is not None and _is_optional(field):
        label = "optional "
    return f"{label}{_type(field)} {field.name} = {field.number};"


def _type(field: Any) -> str:
    kind = field.message_type or field.enum_type
    name: str = _SCALARS[field.type] if kind is None else kind.full_name
    return name


__all__ = ["kind_of", "method_summary", "proto_text"]
