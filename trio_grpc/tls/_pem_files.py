"""Certificates, keys and authorities in PEM files: what is wrong with one in words, and whether one has changed."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import NoReturn, TypeAlias

import attrs

from trio_grpc.tls._validity import good_until

_logger = logging.getLogger("trio_grpc")

PathLike: TypeAlias = "str | os.PathLike[str]"
Password: TypeAlias = "str | bytes | Callable[[], str | bytes]"

#: What tells one version of a file from the next, however it was replaced; None where it cannot be looked at.
FileState: TypeAlias = "tuple[int, int, int, int] | None"

_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_KEY = b"PRIVATE KEY-----"
#: PKCS #8's own word, and the header of the older form (RFC 1421, 4.6.1.1).
_ENCRYPTED = (b"-----BEGIN ENCRYPTED PRIVATE KEY-----", b"Proc-Type: 4,ENCRYPTED")


def state_of(path: str) -> FileState:
    """Return the state of a file right now. Links are followed, so a link that leads elsewhere is a change."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev


@attrs.frozen
class CertificateChain:
    """A certificate, those of the authorities between it and the root, and its private key.

    Attributes:
        certificate: the file with the certificates, the own one first.
        key: the file with the private key, which may be the same.
        password: decrypts the key; None for a key that is not encrypted.
    """

    certificate: str
    key: str
    password: Password | None = attrs.field(default=None, repr=False)

    @property
    def files(self) -> tuple[str, ...]:
        return (self.certificate, self.key)

    def load(self, context: ssl.SSLContext) -> None:
        """Let a context show this certificate.

        Raises:
            OSError: a file cannot be read; the text names it.
            ValueError: there is something else in it; the text names it.
        """
        certificate = _read("certificate", self.certificate)
        if _CERTIFICATE not in certificate:
            raise ValueError(f"certificate file {self.certificate!r} has no certificate in PEM form")
        key = _read("key", self.key)
        if _KEY not in key:
            raise ValueError(f"key file {self.key!r} has no private key in PEM form")
        encrypted = any(mark in key for mark in _ENCRYPTED)
        if encrypted and self.password is None:
            raise ValueError(f"key file {self.key!r} is encrypted: it needs a key_password")
        try:
            # Without a password OpenSSL would ask for one at the terminal.
            password = _no_password if self.password is None else self.password
            context.load_cert_chain(self.certificate, self.key, password)
        except ssl.SSLError as error:
            self._explain(error, encrypted)
        end = good_until(certificate)
        if end is not None and end <= datetime.now(timezone.utc):
            # No reason to refuse it: some peer may have a clock of its own.
            _logger.warning("certificate file %r: the certificate has expired on %s", self.certificate, end.date())

    def _explain(self, error: ssl.SSLError, encrypted: bool) -> NoReturn:
        reason = error.reason or ""
        if reason == "KEY_VALUES_MISMATCH":
            both = f"key file {self.key!r} does not belong to certificate file {self.certificate!r}"
            raise ValueError(both) from error
        if encrypted:
            raise ValueError(f"key file {self.key!r} cannot be decrypted with this key_password") from error
        words = reason.replace("_", " ").lower() or str(error)
        raise ValueError(f"certificate file {self.certificate!r} with key file {self.key!r}: {words}") from error


@attrs.frozen
class Authorities:
    """The authorities whose certificates are believed.

    Attributes:
        source: the file, or its content.
        option: what the user calls it.
    """

    source: str | bytes
    option: str

    @property
    def files(self) -> tuple[str, ...]:
        return () if isinstance(self.source, bytes) else (self.source,)

    def make_context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        """Return Python's default context, made to believe these and no others.

        Raises:
            OSError: the file cannot be read; the text names it.
            ValueError: there is something else in it; the text names it.
        """
        name = self.option if isinstance(self.source, bytes) else f"{self.option} file {self.source!r}"
        pem = self.source if isinstance(self.source, bytes) else _read(self.option, self.source)
        if _CERTIFICATE not in pem:
            raise ValueError(f"{name} has no certificate in PEM form")
        try:
            # What is around the certificates are comments.
            return ssl.create_default_context(purpose, cadata=pem.decode("ascii", "replace").replace("\ufffd", "?"))
        except ssl.SSLError as error:
            words = (error.reason or "").replace("_", " ").lower() or str(error)
            raise ValueError(f"{name} cannot be read as certificates: {words}") from error


def _read(option: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        # Of the same subclass, as it has the number. Python's own does not say which option it is about.
        raise OSError(error.errno, f"{option}: {error.strerror}", path) from None


def _no_password() -> NoReturn:
    raise ValueError("the key is encrypted: it needs a key_password")
