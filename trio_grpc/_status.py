"""Status codes, and the one exception that carries a failed RPC.

The words of a status live here. How a status looks on the wire, how an HTTP status or an RST_STREAM becomes
one, and how error details are serialized belong to the transport and to the codec.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any

from trio_grpc._metadata import Metadata, MetadataLike

__all__ = ["RpcError", "StatusCode"]


class StatusCode(enum.IntEnum):
    """The status codes of gRPC."""

    OK = 0
    """The RPC succeeded."""
    CANCELLED = 1
    """The RPC was cancelled, usually by its caller."""
    UNKNOWN = 2
    """The server failed without saying how, or with a code that this side does not know."""
    INVALID_ARGUMENT = 3
    """The request is wrong whatever the state of the system."""
    DEADLINE_EXCEEDED = 4
    """The deadline passed before the RPC completed; it may have succeeded all the same."""
    NOT_FOUND = 5
    """Something the request names does not exist."""
    ALREADY_EXISTS = 6
    """Something the request would create exists."""
    PERMISSION_DENIED = 7
    """The caller is known and is not allowed to do this."""
    RESOURCE_EXHAUSTED = 8
    """A quota or a size limit was reached."""
    FAILED_PRECONDITION = 9
    """The system is not in the state that the request needs; repeating the request alone does not help."""
    ABORTED = 10
    """A conflict with other work ended the operation; repeat it at a higher level."""
    OUT_OF_RANGE = 11
    """The request went past the end of something."""
    UNIMPLEMENTED = 12
    """The server does not have this method, or not with these options."""
    INTERNAL = 13
    """Something that must hold is broken, often the protocol itself."""
    UNAVAILABLE = 14
    """The server cannot be reached now; repeating the RPC later may help."""
    DATA_LOSS = 15
    """Data is lost or corrupt for good."""
    UNAUTHENTICATED = 16
    """The caller did not say acceptably who it is."""

    # IntEnum's own answer changed from "StatusCode.OK" to "0" in Python 3.11.
    def __str__(self) -> str:
        return f"StatusCode.{self.name}"

    def __format__(self, format_spec: str) -> str:
        return format(str(self), format_spec) if not format_spec else format(int(self), format_spec)


class RpcError(Exception):
    """An RPC ended with a status other than OK.

    Clients get it from the operations that receive; handlers raise it to choose the status of their RPC.

    Args:
        code: The status code; not OK.
        message: The text for the developer at the other end.
        details: Protobuf messages that describe the error, as in ``google.rpc.Status``.
        initial_metadata: What the server sent before its first message.
        trailing_metadata: What the server sent with the status.

    Attributes:
        code: The status code.
        message: The text; may be empty.
        details: The protobuf messages. One whose type is not known to this program stays a
            ``google.protobuf.any_pb2.Any``.
        initial_metadata: Empty if there was none.
        trailing_metadata: Empty if there was none.

    Raises:
        ValueError: ``code`` is OK or no status code.
        TypeError: ``message`` is not a string, or ``details`` is one.
    """

    code: StatusCode
    message: str
    details: tuple[Any, ...]
    initial_metadata: Metadata
    trailing_metadata: Metadata
    #: Set on errors that a call of ours raised: a handler that lets one escape has failed itself, and says UNKNOWN.
    received: bool = False
    #: The address of the server that it came from, which interceptors are told.
    _peer: str = ""

    def __init__(
        self,
        code: StatusCode,
        message: str = "",
        *,
        details: Iterable[Any] = (),
        initial_metadata: MetadataLike | None = None,
        trailing_metadata: MetadataLike | None = None,
    ) -> None:
        if code.__class__ is not StatusCode:
            code = StatusCode(code)
        if code is StatusCode.OK:
            raise ValueError("RpcError cannot carry StatusCode.OK: a call that succeeded is not an error")
        if not isinstance(message, str):
            raise TypeError(f"RpcError message must be str, not {type(message).__name__}")
        if isinstance(details, (str, bytes)):
            raise TypeError("RpcError details takes protobuf messages; the text of the error is its message")
        # These two arguments, and the instance's dictionary as state, are what pickle and copy rebuild an
        # exception from: nothing more is needed for either.
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.details = tuple(details)
        self.initial_metadata = _as_metadata(initial_metadata)
        self.trailing_metadata = _as_metadata(trailing_metadata)

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}" if self.message else self.code.name

    def __repr__(self) -> str:
        # Only the types of the details: protobuf prints messages over several lines.
        types = ", ".join([type(detail).__name__ for detail in self.details])
        details = f", details=[{types}]" if types else ""
        return f"{type(self).__name__}({self.code}, {self.message!r}{details})"


def _as_metadata(metadata: MetadataLike | None) -> Metadata:
    if metadata is None:
        return Metadata()
    return metadata if isinstance(metadata, Metadata) else Metadata(metadata)
