"""The command line with a grpcio server, its reflection and its health service at the other end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from tests.cli.conftest import CommandLine
from tests.interop.conftest import Certificates

pytestmark = pytest.mark.watchdog(30)

PROTO = str(Path(__file__).parents[1] / "protos" / "echo.proto")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


def failure(command: CommandLine, code: int, *arguments: str) -> str:
    """Runs a command that must end with one line and this exit code, and returns the line."""
    done = command(*arguments)
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1), done
    return done.err.removeprefix("trio-grpc: ").rstrip("\n")


def test_list_and_describe(command: CommandLine, peer: dict[str, str]) -> None:
    services = ["echo.Echo", "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"]
    assert command("list", peer["aio"], "--json").documents == [services]
    methods = command("list", peer["unix"], "echo.Echo").out.split()
    assert methods == ["echo.Echo/Unary", "echo.Echo/ServerStream", "echo.Echo/ClientStream", "echo.Echo/Bidi"]
    (request,) = command("describe", peer["aio"], "echo.EchoRequest", "--json").documents
    assert request["kind"] == "message"
    assert "int32 count = 2;" in request["text"]


@pytest.mark.parametrize(
    ("method", "data", "replies"),
    [
        ("Unary", '{"text": "x"}', [{"text": "x"}]),
        ("ServerStream", '{"count": 2}', [{}, {"count": 1}]),
        ("ClientStream", '{"payload": "AA=="} {"payload": "AQ=="}', [{"payload": "AAE=", "count": 2}]),
        ("Bidi", '{"text": "a"} {"text": "b"}', [{"text": "a"}, {"text": "b"}]),
    ],
)
@pytest.mark.parametrize("server", ["aio", "threads"])
def test_calls_of_all_kinds(
    command: CommandLine, peer: dict[str, str], server: str, method: str, data: str, replies: list[Any]
) -> None:
    # The threads have no reflection.
    options = ["--proto", PROTO] if server == "threads" else []
    done = command("call", peer[server], f"echo.Echo/{method}", "-d", data, "--json", *options)
    assert (done.code, done.documents, done.err) == (0, replies, "")


def test_the_details_of_an_error_are_json(command: CommandLine, peer: dict[str, str]) -> None:
    data = json.dumps({"text": "abort-details", "count": 5, "payload": "YWI="})
    done = command("call", peer["aio"], "echo.Echo/Unary", "-d", data)
    detail, last = done.err.splitlines()
    name, _, document = detail.removeprefix("detail ").partition(": ")
    assert (done.code, name, last) == (69, "google.protobuf.StringValue", "trio-grpc: NOT_FOUND: ab")
    assert json.loads(document) == "why"


def test_a_deadline(command: CommandLine, peer: dict[str, str]) -> None:
    line = failure(command, 68, "call", peer["aio"], "echo.Echo/Unary", "-d", '{"text": "wait"}', "--timeout", "0.2")
    assert line.startswith("DEADLINE_EXCEEDED")


def test_compression_is_not_asked_of_reflection(command: CommandLine, peer: dict[str, str]) -> None:
    pytest.importorskip("zstandard", reason="the extra zstd")
    # grpcio has no zstd, and says so of the call itself.
    line = failure(command, 77, "call", peer["aio"], "echo.Echo/Unary", "--compression", "zstd")
    assert line.startswith("INTERNAL: ")
    done = command("call", peer["aio"], "echo.Echo/Unary", "--compression", "gzip", "-d", '{"count": 1}', "--json")
    assert done.documents == [{"count": 1}]


def test_a_reply_that_is_too_large(command: CommandLine, peer: dict[str, str]) -> None:
    call = ["call", peer["aio"], "echo.Echo/Unary", "--json", "-d", '{"text": "size", "count": 5000000}']
    assert "--max-message-size BYTES" in failure(command, 72, *call)
    done = command(*call, "--max-message-size", "5000100")
    assert done.code == 0
    assert len(done.out) > 5_000_000


def test_health(command: CommandLine, peer: dict[str, str]) -> None:
    assert command("health", peer["aio"], "--json").documents == [{"service": "", "status": "SERVING"}]
    assert command("health", peer["aio"], "echo.Echo").code == 4
    assert "does not know the service 'nothing'" in failure(command, 69, "health", peer["aio"], "nothing")
    assert "has no health service" in failure(command, 76, "health", peer["threads"])


@pytest.mark.parametrize("arguments", [["list"], ["describe"], ["call", "echo.Echo/Unary"]])
def test_a_server_without_reflection(command: CommandLine, peer: dict[str, str], arguments: list[str]) -> None:
    name, *rest = arguments
    line = failure(command, 76, name, peer["threads"], *rest)
    assert line == f"{peer['threads']} has no reflection: describe the service with --proto FILE or --descriptors FILE"


def test_tls(command: CommandLine, peer: dict[str, str], certificates: Certificates, tmp_path: Path) -> None:
    (tmp_path / "root.pem").write_bytes(certificates.root)
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    right, wrong = ["--cacert", str(tmp_path / "root.pem")], ["--cacert", str(tmp_path / "other.pem")]
    assert command("list", peer["tls"], *right).code == 0
    assert failure(command, 78, "list", peer["tls"]).endswith("; with --tls it may work")
    assert failure(command, 78, "list", peer["aio"], "--tls").endswith("; without --tls it may work")
    assert failure(command, 78, "list", peer["tls"], *wrong).endswith("; --cacert FILE says whom to believe")
    line = failure(command, 78, "list", peer["tls"], *right, "--server-name", "other.example")
    assert "'other.example'" in line
    assert line.endswith("; --server-name NAME says what name the certificate has")


@contextmanager
def certified(authority: trustme.CA, first: datetime, last: datetime) -> Iterator[str]:
    """Runs a server whose certificate is valid at some time, and gives its target."""
    issued = authority.issue_cert("localhost", not_before=first, not_after=last)
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    server = grpc.server(futures.ThreadPoolExecutor(1))
    credentials = grpc.ssl_server_credentials([(issued.private_key_pem.bytes(), chain)])
    port = server.add_secure_port("localhost:0", credentials)
    server.start()
    try:
        yield f"localhost:{port}"
    finally:
        server.stop(0).wait()


@pytest.mark.parametrize(
    ("days", "words"), [((-9, -2), "certificate has expired"), ((2, 9), "certificate is not yet valid")]
)
def test_a_certificate_that_is_not_valid_now(
    command: CommandLine, tmp_path: Path, days: tuple[int, int], words: str
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "root.pem")
    first, last = (datetime.now(timezone.utc) + timedelta(days=number) for number in days)
    with certified(authority, first, last) as target:
        line = failure(command, 78, "health", target, "--cacert", str(tmp_path / "root.pem"))
    assert line.startswith(f"cannot reach {target}: ")
    assert words in line
