"""`trio-grpc serve`: what import paths may name, and what is said of those that may not."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine, serving, start
from tests.cli.served import Served
from trio_grpc.cli._serve import load_servicers


@pytest.mark.parametrize("path", ["tests.cli.served:Served", "tests.cli.served:several"])
def test_classes_and_functions_make_servicers(path: str) -> None:
    (servicer,) = load_servicers(path)
    assert isinstance(servicer, Served)


@pytest.mark.parametrize(
    ("path", "code", "problem"),
    [
        (
            "tests.cli.served",
            2,
            "'tests.cli.served' names no servicer: write MODULE:NAME, as in greeter.server:Greeter",
        ),
        ("tests.nowhere:X", 1, "there is no module 'tests.nowhere' on the import path (--app-dir adds a folder)"),
        ("tests.cli.served:Nobody", 1, "module 'tests.cli.served' has no 'Nobody'"),
        ("tests.cli.served:nothing_of_use", 1, "tests.cli.served:nothing_of_use is int, not a servicer, nor "),
        ("tests.cli.served:needs_an_argument", 1, "tests.cli.served:needs_an_argument cannot be called without "),
    ],
)
def test_what_is_no_servicer_is_one_line(command: CommandLine, path: str, code: int, problem: str) -> None:
    done = command("serve", path)
    assert done.code == code
    assert done.err.startswith(f"trio-grpc: {problem}")
    assert done.err.count("\n") == 1


def test_an_address_that_is_taken_is_named(command: CommandLine) -> None:
    done = command("serve", "tests.cli.served:Served", "-a", "unix:/nowhere/socket")
    assert done.code == 1
    assert "cannot serve on unix:/nowhere/socket: " in done.err


def test_files_for_tls_need_a_certificate(command: CommandLine) -> None:
    done = command("serve", "tests.cli.served:Served", "--key", __file__)
    assert (done.code, done.err) == (
        2,
        "trio-grpc: --key and --client-cacert are for TLS: add --cert FILE (trio-grpc serve --help tells more)\n",
    )


def test_a_client_with_the_right_certificate_is_served_and_others_are_told_why(
    command: CommandLine, tmp_path: Path
) -> None:
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name in ("greeter.example", "client.example"):
        authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(str(tmp_path / f"{name}.pem"))
    expired = authority.issue_cert("greeter.example", not_after=datetime(2020, 1, 1, tzinfo=timezone.utc))
    expired.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "expired.pem"))
    tls = ("--cacert", str(tmp_path / "ca.pem"), "--server-name", "greeter.example")
    served = "tests.cli.served:Served"
    certificates = (
        "--cert", str(tmp_path / "greeter.example.pem"), "--client-cacert", str(tmp_path / "ca.pem"),
    )  # fmt: skip
    with serving(tmp_path / "strict", served, *certificates) as target:
        assert command("health", target, *tls, "--cert", str(tmp_path / "client.example.pem")).out == "SERVING\n"
        done = command("health", target, *tls)
        assert done.code == 64 + 14
        assert "certificate required" in done.err
        assert done.err.count("\n") == 1
    with serving(tmp_path / "old", served, "--cert", str(tmp_path / "expired.pem")) as target:
        done = command("health", target, *tls)
        assert done.code == 64 + 14
        assert "certificate verify failed for 'greeter.example': certificate has expired" in done.err
        assert done.err.count("\n") == 1


def test_logs_for_programs(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    process = start("serve", "tests.cli.served:Served", "--address", f"unix:{path}", "--json")
    assert process.stderr is not None
    try:
        record = json.loads(process.stderr.readline())
    finally:
        process.terminate()
    _, err = process.communicate(timeout=20)
    assert record["message"] == f"serving on unix:{path}"
    assert (record["level"], record["logger"]) == ("INFO", "trio_grpc")
    assert record["process"] == process.pid
    assert all(json.loads(line)["level"] == "INFO" for line in err.splitlines())
