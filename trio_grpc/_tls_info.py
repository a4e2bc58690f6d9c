"""What TLS has found out about a connection and who is at its other end."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@attrs.frozen(kw_only=True)
class TlsInfo:
    """What TLS has found out about a connection, for handlers and for those who make calls.

    Attributes:
        version: the protocol, ``"TLSv1.3"`` or ``"TLSv1.2"``.
        cipher: OpenSSL's name of the cipher suite.
        alpn: the application protocol that both ends agreed on; always ``"h2"`` in a connection of ours.
        peer_certificate: the peer's certificate as `ssl.SSLSocket.getpeercert` tells it. Empty where the peer has sent
            none, or one that this end does not verify: nothing in such a one would prove anything.
        peer_certificate_der: the same certificate as it came (DER); None where the peer has sent none.
    """

    version: str
    cipher: str
    alpn: str | None = "h2"
    peer_certificate: Mapping[str, Any] = attrs.field(default=_NOTHING, repr=False)
    peer_certificate_der: bytes | None = attrs.field(default=None, repr=False)

    @property
    def common_name(self) -> str | None:
        """The common name of the peer's certificate, the last one if it has several; None without any."""
        names = [
            value
            for attributes in self.peer_certificate.get("subject", ())
            for name, value in attributes
            if name == "commonName"
        ]
        return names[-1] if names else None

    @property
    def subject_alternative_names(self) -> tuple[tuple[str, str], ...]:
        """The names that the peer's certificate is for, each with its kind: ``("DNS", "a.example")``, ``("URI", ...)``.

        Kinds are OpenSSL's words: ``DNS``, ``IP Address``, ``URI`` (SPIFFE's), ``email``, and others.
        """
        return tuple(self.peer_certificate.get("subjectAltName", ()))


__all__ = ["TlsInfo"]
