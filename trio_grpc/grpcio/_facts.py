"""What both kinds of context know about their RPC, in grpcio's words; nothing here waits."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any, NamedTuple

import grpc

from trio_grpc._codec import decode_status_details
from trio_grpc._compression import Compression
from trio_grpc._metadata import MetadataValue
from trio_grpc._servicer import UNEXPECTED, ServicerContext
from trio_grpc._status import RpcError, StatusCode

__all__ = ["Facts", "Metadatum", "our_code"]

_logger = logging.getLogger("trio_grpc")

_COMPRESSIONS = {
    grpc.Compression.NoCompression: Compression.NONE,
    grpc.Compression.Deflate: Compression.DEFLATE,
    grpc.Compression.Gzip: Compression.GZIP,
}
#: What grpcio-status puts a google.rpc.Status into.
_DETAILS_KEY = "grpc-status-details-bin"


class Metadatum(NamedTuple):
    """One entry of the metadata.

    Attributes:
        key: in lower case.
        value: text; bytes where the key ends with ``-bin``.
    """

    key: str
    value: MetadataValue


class Facts:
    """The part of a grpcio context that only tells or notes something.

    Args:
        context: the RPC's own.
    """

    def __init__(self, context: ServicerContext[Any]) -> None:
        self._context = context
        self._code: grpc.StatusCode | None = None
        self._details = ""
        self._trailing: tuple[tuple[str, Any], ...] = ()
        self._status_details: tuple[Any, ...] = ()
        self._compress_next = True
        self._ended = False
        self._callbacks: list[Callable[[], None]] = []

    # -- who calls

    def invocation_metadata(self) -> tuple[Metadatum, ...]:
        """Return the metadata that came with the request."""
        return tuple(Metadatum(key, value) for key, value in self._context.metadata)

    def peer(self) -> str:
        """Return the client's address as grpcio writes it: ``ipv4:...``, ``ipv6:...`` or ``unix:...``."""
        address = self._context.peer
        if address.startswith("["):
            # C-core encodes the brackets, which are no part of a URI's path.
            host, _, port = address[1:].rpartition("]:")
            return f"ipv6:%5B{host}%5D:{port}"
        host, colon, port = address.rpartition(":")
        if colon and port.isdigit() and not address.startswith("unix"):
            return f"ipv4:{address}"
        return address

    def peer_identities(self) -> tuple[bytes, ...] | None:
        """Return the names in the client's certificate, None without one that was verified."""
        key = self.peer_identity_key()
        return None if key is None else self.auth_context()[key]

    def peer_identity_key(self) -> str | None:
        """Return which entry of `auth_context` has these names, None if none does."""
        known = self.auth_context()
        for key in "x509_subject_alternative_name", "x509_common_name":
            if key in known:
                return key
        return None

    def auth_context(self) -> Mapping[str, tuple[bytes, ...]]:
        """Return what TLS has found out, empty in plaintext."""
        tls = self._context.tls
        if tls is None:
            return {}
        known: dict[str, tuple[bytes, ...]] = {"transport_security_type": (b"ssl",)}
        if tls.common_name is not None:
            known["x509_common_name"] = (tls.common_name.encode(),)
        if tls.subject_alternative_names:
            known["x509_subject_alternative_name"] = tuple(name.encode() for _, name in tls.subject_alternative_names)
        if tls.peer_certificate_der is not None:
            known["x509_pem_cert"] = (ssl.DER_cert_to_PEM_cert(tls.peer_certificate_der).encode(),)
        return known

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline, None without one."""
        seconds = self._context.time_remaining()
        return None if seconds == inf else seconds

    # -- the status to be

    def set_code(self, code: grpc.StatusCode | int) -> None:
        """Set the status code with which the RPC ends when its handler returns.

        Raises:
            ValueError: there is no such code.
        """
        self._code = their_code(code)

    def set_details(self, details: str | bytes | None) -> None:
        """Set the text of the status with which the RPC ends when its handler returns.

        Raises:
            TypeError: that is no text.
        """
        self._details = text_of(details)

    def details(self) -> str:
        """Return what `set_details` was told."""
        return self._details

    def set_trailing_metadata(self, trailing_metadata: Iterable[tuple[str, Any]]) -> None:
        """Set what goes out with the status.

        Raises:
            TypeError, ValueError: the metadata is malformed.
        """
        pairs = tuple((key, value) for key, value in trailing_metadata)
        plain = tuple(pair for pair in pairs if pair[0] != _DETAILS_KEY)
        self._context.set_trailing_metadata(plain)
        self._trailing = pairs
        # Ours are objects, and the key is gRPC's own.
        self._status_details = tuple(
            detail for key, value in pairs if key == _DETAILS_KEY for detail in decode_status_details(value)
        )

    def trailing_metadata(self) -> tuple[tuple[str, Any], ...]:
        """Return what `set_trailing_metadata` was told."""
        return self._trailing

    # -- compression

    def set_compression(self, compression: grpc.Compression) -> None:
        """Compress the responses, if the client accepts that; call it before the first response.

        Raises:
            RuntimeError: the response headers were sent already.
        """
        self._context.set_compression(_COMPRESSIONS[compression])

    def disable_next_message_compression(self) -> None:
        """Send the next response as it is, whatever `set_compression` chose."""
        self._compress_next = False

    # -- for the handler's adapter

    def _take_compress(self) -> bool:
        compress, self._compress_next = self._compress_next, True
        return compress

    def _reply_compressed(self) -> None:
        """Let a reply that is about to be returned be sent as the handler has asked for it."""
        if not self._take_compress() and not self._context._stream.responded:
            self._context.set_compression(Compression.NONE)

    def _is_cancelled(self) -> bool:
        return self._context._stream.cancelled is not None

    async def _settle(self) -> None:
        """Give the RPC the status that the handler has set, where that is an error."""
        if self._code is not None and self._code is not grpc.StatusCode.OK:
            await self._record(self._code, self._details)

    async def _explain(self, error: Exception) -> None:
        """Give the RPC the status that the handler has set before it raised, as grpcio does; the log has the rest."""
        context = self._context
        told = context.status is not None or self._is_cancelled()
        if told or self._code in (None, grpc.StatusCode.OK) or (isinstance(error, RpcError) and not error.received):
            return
        context._handler._log(context._stream, error)
        await self._record(self._code, self._details or UNEXPECTED)

    async def _record(self, code: grpc.StatusCode | int | None, details: str | bytes | None) -> None:
        await self._context.abort(our_code(code), text_of(details), details=self._status_details)

    def _tell_ended(self) -> None:
        """Call what waits for the end, once. What that raises is no matter of the RPC."""
        self._ended = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception:
                _logger.exception("exception in a callback of %s", self._context.method.path)


def text_of(details: Any) -> str:
    """Return the text of a status, which grpcio takes as bytes or None as well.

    Raises:
        TypeError: that is no text.
    """
    if isinstance(details, bytes):
        return details.decode("utf-8", "replace")
    if details is not None and not isinstance(details, str):
        raise TypeError(f"details must be str, not {type(details).__name__}")
    return details or ""


def their_code(code: Any) -> grpc.StatusCode:
    """Return grpcio's object for a status code.

    Raises:
        ValueError: there is no such code.
    """
    if isinstance(code, grpc.StatusCode):
        return code
    for known in grpc.StatusCode:
        if known.value[0] == code:
            return known
    raise ValueError(f"code must be a grpc.StatusCode or one's number, got {code!r}")


def our_code(code: Any) -> StatusCode:
    """Return our object for one of grpcio's status codes, or for its number."""
    return StatusCode(their_code(code).value[0])
