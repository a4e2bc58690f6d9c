"""The two functions that make contexts, and what both have by default."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from trio_grpc.tls._pem_files import Authorities, CertificateChain, Password, PathLike
from trio_grpc.tls._reloading import ReloadingContext

#: What a server does about certificates of clients.
ClientCertificates: TypeAlias = Literal["required", "optional"]
Configure: TypeAlias = Callable[[ssl.SSLContext], Any]


def client_context(
    authorities: PathLike | bytes | None = None,
    *,
    certificate: PathLike | None = None,
    key: PathLike | None = None,
    key_password: Password | None = None,
    configure: Configure | None = None,
) -> ssl.SSLContext:
    """Return a context for ``open_channel(ssl_context=...)``.

    TLS 1.2 or newer, ALPN ``h2``, no compression, no renegotiation (RFC 9113, 9.2), and a server must prove its name.
    Ciphers and all else are what `ssl.create_default_context` chooses.

    Files are looked at whenever a handshake begins. Where one has changed, new connections use what is in it now, and
    those that there are go on. Files that cannot be used are logged (logger ``trio_grpc``, level ERROR), once for each
    change, and what there was before stays in use.

    Args:
        authorities: a PEM file with the certificates of the authorities that are believed, or its content as bytes.
            None: those of the system, which are read once.
        certificate: a PEM file with the client's own certificate and those of the authorities between it and the root,
            for servers that want to know their clients.
        key: a PEM file with the certificate's private key; None where that is in the certificate's file.
        key_password: decrypts the key; or a function that returns that, called each time that the key is read.
        configure: called with each context that is made, to set what else you like.

    Raises:
        OSError: a file cannot be read; the text names it.
        ValueError: a file has something else in it, or key and certificate do not belong together; the text names them.
        TypeError: an argument is of the wrong type.
    """
    trusted = None if authorities is None else _authorities("authorities", authorities)
    if certificate is None and (key is not None or key_password is not None):
        raise ValueError(f"{'key_password' if key is None else 'key'} is of use only together with certificate")
    own = None if certificate is None else _chain(certificate, key, key_password)

    def make() -> ssl.SSLContext:
        # Python loads those of the system if it is given none, and only then.
        context = ssl.create_default_context() if trusted is None else trusted.make_context(ssl.Purpose.SERVER_AUTH)
        return _prepare(context, own, configure)

    files = (*(() if trusted is None else trusted.files), *(() if own is None else own.files))
    _check_configure(configure)
    return ReloadingContext.of(ssl.PROTOCOL_TLS_CLIENT, files, make)


def server_context(
    certificate: PathLike,
    key: PathLike | None = None,
    *,
    key_password: Password | None = None,
    client_authorities: PathLike | bytes | None = None,
    client_certificates: ClientCertificates = "required",
    configure: Configure | None = None,
) -> ssl.SSLContext:
    """Return a context for ``serve(ssl_context=...)``.

    Defaults, and what happens when a file changes, are those of `client_context`.

    Args:
        certificate: a PEM file with the server's certificate and those of the authorities between it and the root.
        key: a PEM file with the certificate's private key; None where that is in the certificate's file.
        key_password: decrypts the key; or a function that returns that, called each time that the key is read.
        client_authorities: a PEM file with the certificates of the authorities that may vouch for clients, or its
            content as bytes. Clients are then asked for a certificate, which handlers find in `ServicerContext.tls`.
            None: clients are not asked.
        client_certificates: with ``client_authorities``, whether a client without a certificate is refused
            (``"required"``) or served (``"optional"``). One whose certificate is not good is refused in any case.
        configure: called with each context that is made, to set what else you like.

    Raises:
        OSError: a file cannot be read; the text names it.
        ValueError: a file has something else in it, or key and certificate do not belong together (the text names
            them), or ``client_certificates`` is another word.
        TypeError: an argument is of the wrong type.
    """
    if client_certificates not in ("required", "optional"):
        raise ValueError(f"client_certificates must be 'required' or 'optional', got {client_certificates!r}")
    own = _chain(certificate, key, key_password)
    trusted = None if client_authorities is None else _authorities("client_authorities", client_authorities)

    def make() -> ssl.SSLContext:
        if trusted is None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        else:
            context = trusted.make_context(ssl.Purpose.CLIENT_AUTH)
            context.verify_mode = ssl.CERT_REQUIRED if client_certificates == "required" else ssl.CERT_OPTIONAL
        return _prepare(context, own, configure)

    _check_configure(configure)
    return ReloadingContext.of(ssl.PROTOCOL_TLS_SERVER, (*own.files, *(() if trusted is None else trusted.files)), make)


def _check_configure(configure: object) -> None:
    if configure is not None and not callable(configure):
        raise TypeError(f"configure must be a function or None, not {type(configure).__name__}")


def _prepare(context: ssl.SSLContext, own: CertificateChain | None, configure: Configure | None) -> ssl.SSLContext:
    """Set what contexts of both sides have in common."""
    # RFC 9113, 9.2 and 9.2.1. Python's own defaults are as strict, in most of its builds.
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if own is not None:
        own.load(context)
    if configure is not None:
        configure(context)
    # Last: a context of ours that offers anything else is of no use.
    context.set_alpn_protocols(["h2"])
    return context


def _chain(certificate: PathLike, key: PathLike | None, password: Password | None) -> CertificateChain:
    if password is not None and not isinstance(password, (str, bytes)) and not callable(password):
        raise TypeError(f"key_password must be str, bytes, a function or None, not {type(password).__name__}")
    path = _path("certificate", certificate)
    return CertificateChain(path, path if key is None else _path("key", key), password)


def _authorities(option: str, source: PathLike | bytes) -> Authorities:
    return Authorities(source if isinstance(source, bytes) else _path(option, source), option)


def _path(option: str, path: PathLike) -> str:
    try:
        text: object = os.fspath(path)
    except TypeError:
        text = path
    if not isinstance(text, str):
        raise TypeError(f"{option} must be the path of a PEM file, not {type(text).__name__}")
    if "-----BEGIN" in text or "\0" in text:
        # It may be a key, which is not for messages.
        raise ValueError(f"{option} must be the path of a PEM file, not what is in one")
    return text


__all__ = ["ClientCertificates", "client_context", "server_context"]
