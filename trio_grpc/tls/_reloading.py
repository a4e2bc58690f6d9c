"""An `ssl.SSLContext` that looks at its files when a handshake begins, and uses what is in them then.

A context cannot be changed in place for this: what it trusts can only grow, OpenSSL keeps a certificate for each kind
of key, and a load that fails half-way has replaced half. So each change makes a new context, which takes the place of
the one before only when all of it was right. Connections have the context that they began with.

The files are looked at in the handshake's own task: three calls of ``stat``, and no thread, watch or timer.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from trio_grpc.tls._pem_files import FileState, state_of

_logger = logging.getLogger("trio_grpc")

#: What a user may want to read of a context.
_READABLE = (
    "options",
    "verify_flags",
    "minimum_version",
    "maximum_version",
)


class ReloadingContext(ssl.SSLContext):
    """Hands each handshake to a context that was made of the files as they are."""

    _make: Callable[[], ssl.SSLContext]
    _files: Sequence[str]
    _states: tuple[FileState, ...]
    _latest: ssl.SSLContext
    _sealed: bool = False

    @classmethod
    def of(cls, protocol: int, files: Sequence[str], make: Callable[[], ssl.SSLContext]) -> ReloadingContext:
        """Return a context, made for the first time.

        Args:
            protocol: `ssl.PROTOCOL_TLS_CLIENT` or `ssl.PROTOCOL_TLS_SERVER`.
            files: what is looked at.
            make: makes a context of them; raises OSError or ValueError where that cannot be.
        """
        self = cls(protocol)
        self._make = make
        self._files = tuple(files)
        # Before they are read: a change meanwhile is seen next time.
        self._states = self._look()
        self._latest = latest = make()
        self.check_hostname = latest.check_hostname
        self.verify_mode = latest.verify_mode
        for name in _READABLE:
            setattr(self, name, getattr(latest, name))
        self._sealed = True
        return self

    def _look(self) -> tuple[FileState, ...]:
        return tuple(map(state_of, self._files))

    def current(self) -> ssl.SSLContext:
        """Return the context for a handshake that begins now."""
        states = self._look()
        if states != self._states:
            # Whatever comes of it, once per change.
            object.__setattr__(self, "_states", states)
            try:
                object.__setattr__(self, "_latest", self._make())
            except Exception as error:
                # Of a function of the user's, where it is nothing that files can be.
                unexpected = None if isinstance(error, (OSError, ValueError)) else error
                _logger.error(
                    "TLS files have changed, but the ones from before stay in use: %s", error, exc_info=unexpected
                )
            else:
                _logger.info("TLS files have changed and are in use: %s", ", ".join(dict.fromkeys(self._files)))
        return self._latest

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return self.current().wrap_bio(*args, **options)

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        return self.current().wrap_socket(*args, **options)

    # What is set on this one would be of no use, and nobody would notice.

    def __setattr__(self, name: str, value: object) -> None:
        if self._sealed:
            _refuse(name)
        super().__setattr__(name, value)

    def load_cert_chain(self, *_args: Any, **_options: Any) -> None:
        _refuse("load_cert_chain")

    def load_dh_params(self, *_args: Any, **_options: Any) -> None:
        _refuse("load_dh_params")

    def load_verify_locations(self, *_args: Any, **_options: Any) -> None:
        _refuse("load_verify_locations")

    def load_default_certs(self, *_args: Any, **_options: Any) -> None:
        _refuse("load_default_certs")

    def set_ciphers(self, *_args: Any, **_options: Any) -> None:
        _refuse("set_ciphers")

    def set_ecdh_curve(self, *_args: Any, **_options: Any) -> None:
        _refuse("set_ecdh_curve")

    # What can be asked of it is known by the one that is in use.

    def get_ca_certs(self, binary_form: bool = False) -> Any:
        return self._latest.get_ca_certs(binary_form)

    def get_ciphers(self) -> Any:
        return self._latest.get_ciphers()

    def cert_store_stats(self) -> dict[str, int]:
        return self._latest.cert_store_stats()

    def session_stats(self) -> dict[str, int]:
        return self._latest.session_stats()


def _refuse(name: str) -> NoReturn:
    raise TypeError(
        f"{name}: contexts of trio_grpc.tls are made anew when their files change; "
        "give client_context or server_context a function configure= that does this to each"
    )
