"""A real grpcio server in a process of its own, one for all tests here, and certificates that both libraries trust."""

from __future__ import annotations

import functools
import inspect
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import attrs
import pytest
import trio
import trustme

from tests.support.stacks import describe_tasks

ROOT = Path(__file__).parent.parent.parent
PATIENCE_SECONDS = 25.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests with a real peer a second and a third try, which pytest's summary shows.

    Its timers and threads are real, so a machine with something else to do can make it late. Outside this folder
    only measurements of memory are tried again: a test that fails now and then has mostly found something.
    """
    for item in items:
        if isinstance(item, pytest.Function) and item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.flaky(reruns=2))
            if inspect.iscoroutinefunction(item.obj):
                item.obj = _bounded(item.obj)


def _bounded(function: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Cancel a test that waits for its peer in vain, well before the watchdog, whose end leaves trio in pieces.

    Not with a deadline, which would go out with every call.
    """

    @functools.wraps(function)
    async def run(**arguments: object) -> None:
        scope = trio.CancelScope()
        report = ""

        def give_up() -> None:
            nonlocal report
            report = describe_tasks()
            scope.cancel()

        token = trio.lowlevel.current_trio_token()
        timer = threading.Timer(PATIENCE_SECONDS, token.run_sync_soon, [give_up])
        timer.start()
        try:
            with scope:
                await function(**arguments)
        finally:
            timer.cancel()
            timer.join()
        if scope.cancelled_caught:
            pytest.fail(f"still waits after {PATIENCE_SECONDS:g} s of real time\n{report}")

    return run


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
