"""TLS contexts for channels and servers: safe defaults, and certificates that are replaced without a restart."""

from __future__ import annotations

from trio_grpc.tls._contexts import ClientCertificates as ClientCertificates
from trio_grpc.tls._contexts import client_context as client_context
from trio_grpc.tls._contexts import server_context as server_context

__all__ = ("ClientCertificates", "client_context", "server_context")
