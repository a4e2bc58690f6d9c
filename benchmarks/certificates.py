"""Certificates for workloads over TLS: one authority and one server, made anew for each sitting."""

from __future__ import annotations

import ssl
from pathlib import Path

AUTHORITY = "authority.pem"
CHAIN = "chain.pem"
KEY = "key.pem"


def make_certificates(folder: Path) -> Path:
    """Puts an authority, and a server's chain and key for 127.0.0.1 and localhost, into `folder`, and returns it."""
    # Only the process that makes them needs it; those of the libraries read files.
    import trustme

    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(str(folder / AUTHORITY))
    server.private_key_pem.write_to_path(str(folder / KEY))
    for pem in server.cert_chain_pems:
        pem.write_to_path(str(folder / CHAIN), append=True)
    return folder


def server_context(folder: Path) -> ssl.SSLContext:
    """Returns what a server of HTTP/2 shows."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / CHAIN, folder / KEY)
    context.set_alpn_protocols(["h2"])
    return context


def client_context(folder: Path) -> ssl.SSLContext:
    """Returns what a client of HTTP/2 trusts."""
    context = ssl.create_default_context(cafile=str(folder / AUTHORITY))
    context.set_alpn_protocols(["h2"])
    return context
