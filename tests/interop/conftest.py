"""A real grpcio server in a process of its own, one for all tests here, and certificates that both libraries trust."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trustme

ROOT = Path(__file__).parent.parent.parent


@attrs.frozen
class Certificates:
    """A throw-away certificate authority, and a server's certificate for ``localhost``.

    Attributes:
        directory: where the files lie.
        root: the authority's certificate.
        chain, key: the server's.
    """

    directory: Path
    root: bytes
    chain: bytes
    key: bytes

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.root.decode())

    def server_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.directory / "server.pem", self.directory / "server.key")
        return context


@pytest.fixture(autouse=True)
def no_internal_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Faults of ours end a connection and are logged: a peer that tries again would hide them."""
    yield
    assert "internal error" not in "\n".join(record.getMessage() for record in caplog.get_records("call"))


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    key = issued.private_key_pem.bytes()
    (directory / "server.pem").write_bytes(chain)
    (directory / "server.key").write_bytes(key)
    return Certificates(directory, authority.cert_pem.bytes(), chain, key)


@pytest.fixture(scope="session")
def peer(certificates: Certificates) -> Iterator[dict[str, str]]:
    """The addresses of the grpcio server: ``aio``, ``threads``, ``tls``, ``unix``."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "protos")])
    with subprocess.Popen(
        [sys.executable, "-m", "tests.interop.grpcio_server", str(certificates.directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        cwd=ROOT,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, f"the grpcio server ended with {process.wait()}"
            addresses: dict[str, str] = json.loads(line)
            yield addresses
            process.stdin.close()
            assert process.wait(10) == 0
        finally:
            process.kill()
