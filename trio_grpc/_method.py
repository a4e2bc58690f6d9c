"""The description of one RPC method: its names, its kind and its message types.

Generated code makes one `Method` per rpc of a service; both sides of a call read it. It says what a method
*is*, never how it is called or served, and treats message types as plain classes.
"""

from __future__ import annotations

import enum
from typing import Any, Generic, TypeVar

import attrs

from trio_grpc._codec import Codec, choose_codec

__all__ = ["Cardinality", "Method"]

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class Cardinality(enum.Enum):
    """How many messages a method takes and gives."""

    UNARY_UNARY = (False, False)
    """One request, one response."""
    UNARY_STREAM = (False, True)
    """One request, a stream of responses."""
    STREAM_UNARY = (True, False)
    """A stream of requests, one response."""
    STREAM_STREAM = (True, True)
    """A stream each way."""

    client_streaming: bool
    """Whether the client sends a stream of messages."""
    server_streaming: bool
    """Whether the server sends a stream of messages."""

    def __init__(self, client_streaming: bool, server_streaming: bool) -> None:
        # Attributes, not properties: they are read for every call.
        self.client_streaming = client_streaming
        self.server_streaming = server_streaming

    @classmethod
    def of(cls, client_streaming: bool, server_streaming: bool) -> Cardinality:
        """Return the kind of method for which these sides stream.

        Args:
            client_streaming: whether the client may send any number of messages.
            server_streaming: whether the server may.
        """
        return next(kind for kind in cls if kind.value == (client_streaming, server_streaming))


def _check_name(_: Method[Any, Any], attribute: attrs.Attribute[str], value: str) -> None:
    """Refuse what would not make a path of the form ``/service/name``."""
    if not isinstance(value, str):
        raise TypeError(f"method {attribute.name} must be str, not {type(value).__name__}")
    if not (value and value.isascii() and value.isprintable()) or " " in value or "/" in value:
        raise ValueError(f"method {attribute.name} must be printable ASCII without spaces and '/', got {value!r}")


def _check_codec(_: Method[Any, Any], __: attrs.Attribute[Codec | None], value: Codec | None) -> None:
    if value is not None:
        choose_codec(value)


def _make_path(method: Method[Any, Any]) -> str:
    return f"/{method.service}/{method.name}"


def _make_full_name(method: Method[Any, Any]) -> str:
    return f"{method.service}.{method.name}"


@attrs.frozen(eq=False, repr=False)
class Method(Generic[RequestT, ResponseT]):
    """One RPC method. Two methods are the same only if they are the same object.

    Attributes:
        service: Full name of the service, such as ``pkg.Greeter``.
        name: Name of the method on the wire, such as ``SayHello``.
        cardinality: Which sides stream.
        request_type: Class of the request messages.
        response_type: Class of the response messages.
        idempotent: Whether the method may be repeated without harm (``idempotency_level`` in the .proto
            file).
        codec: Turns this method's messages into bytes and back; None for the codec of the channel or server.
        path: The HTTP/2 ``:path`` of the method, such as ``/pkg.Greeter/SayHello``.
        full_name: The method's full protobuf name, such as ``pkg.Greeter.SayHello``.
    """

    service: str = attrs.field(validator=_check_name)
    name: str = attrs.field(validator=_check_name)
    cardinality: Cardinality = attrs.field(validator=attrs.validators.instance_of(Cardinality))
    request_type: type[RequestT]
    response_type: type[ResponseT]
    idempotent: bool = False
    codec: Codec | None = attrs.field(default=None, validator=_check_codec)
    # Made once: the path is read for every call.
    path: str = attrs.field(init=False, default=attrs.Factory(_make_path, takes_self=True))
    full_name: str = attrs.field(init=False, default=attrs.Factory(_make_full_name, takes_self=True))

    @classmethod
    def at(
        cls,
        path: str,
        cardinality: Cardinality,
        request_type: type[Any] = object,
        response_type: type[Any] = object,
        *,
        codec: Codec | None = None,
    ) -> Method[Any, Any]:
        """Return a method by its path, for programs without generated code.

        Args:
            path: as ``/package.Service/Method``.
            cardinality: Which sides stream.
            request_type: Class of the request messages, as far as the codec cares.
            response_type: Class of the response messages.
            codec: Turns messages into bytes and back; None for the codec of the channel or server.

        Raises:
            ValueError: That is no such path.
            TypeError: An argument is of another type.
        """
        if not isinstance(path, str):
            raise TypeError(f"method path must be str, not {type(path).__name__}")
        root, separator, rest = path.partition("/")
        service, slash, name = rest.rpartition("/")
        if root or not (separator and slash):
            raise ValueError(f"method path must look like '/package.Service/Method', got {path!r}")
        return cls(service, name, cardinality, request_type, response_type, codec=codec)

    def __repr__(self) -> str:
        return (
            f"<Method {self.path} {self.cardinality.name} "
            f"{self.request_type.__qualname__} -> {self.response_type.__qualname__}>"
        )
