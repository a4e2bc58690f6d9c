"""`trio-grpc list` and `describe`: what they show, and what they say when they cannot."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine, serving

PROTOS = Path(__file__).parents[1] / "protos"


def test_list_shows_the_services(command: CommandLine, target: str) -> None:
    done = command("list", target)
    assert done.code == 0
    assert done.out.splitlines() == [
        "echo.Echo",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    ]


def test_list_of_a_service_shows_its_methods_as_call_takes_them(command: CommandLine, target: str) -> None:
    done = command("list", target, "echo.Echo")
    assert done.code == 0
    assert done.out.splitlines() == [
        "echo.Echo/Unary",
        "echo.Echo/ServerStream",
        "echo.Echo/ClientStream",
        "echo.Echo/Bidi",
    ]


def test_json_is_one_document(command: CommandLine, target: str) -> None:
    (document,) = command("list", target, "--json", "echo.Echo").documents
    assert document[1] == {
        "name": "ServerStream",
        "request": "echo.EchoRequest",
        "response": "echo.EchoReply",
        "client_streaming": False,
        "server_streaming": True,
    }


def test_an_unknown_service_is_one_line_with_what_is_near(command: CommandLine, target: str) -> None:
    done = command("list", target, "Echo")
    assert (done.code, done.out) == (1, "")
    assert done.err == "trio-grpc: unknown service 'Echo': did you mean echo.Echo?\n"


def test_files_are_asked_instead_of_a_server(command: CommandLine) -> None:
    done = command("list", "127.0.0.1:1", "--proto", str(PROTOS / "echo.proto"))
    assert (done.code, done.out) == (0, "echo.Echo\n")


def test_a_set_of_descriptors_is_asked_too(command: CommandLine, tmp_path: Path) -> None:
    import echo_pb2
    from google.protobuf import descriptor_pb2

    path = tmp_path / "descriptors"
    proto = descriptor_pb2.FileDescriptorProto()
    echo_pb2.DESCRIPTOR.CopyToProto(proto)
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[proto]).SerializeToString())
    assert command("list", "127.0.0.1:1", "--descriptors", str(path)).out == "echo.Echo\n"
    path.write_bytes(b"nonsense")
    done = command("list", "127.0.0.1:1", "--descriptors", str(path))
    assert done.code == 1
    assert done.err.startswith(f"trio-grpc: {path} is no set of descriptors: ")


def test_a_file_that_is_not_there_is_named(command: CommandLine) -> None:
    done = command("list", "127.0.0.1:1", "--proto", "nowhere.proto")
    assert (done.code, done.err) == (1, "trio-grpc: there is no file nowhere.proto\n")


def test_a_server_that_is_not_there_is_named(command: CommandLine, tmp_path: Path) -> None:
    done = command("list", f"unix:{tmp_path}/nobody")
    assert done.code == 64 + 14
    assert done.err.startswith(f"trio-grpc: cannot reach unix:{tmp_path}/nobody: failed to connect to ")
    assert done.err.count("\n") == 1


def test_describe_speaks_proto(command: CommandLine, target: str) -> None:
    done = command("describe", target, "echo.Echo")
    assert done.code == 0
    assert "  rpc Bidi (stream echo.EchoRequest) returns (stream echo.EchoReply);" in done.out.splitlines()
    assert done.out.startswith("// echo.Echo\nservice Echo {\n")


def test_describe_finds_messages_and_methods(command: CommandLine, target: str) -> None:
    assert "message EchoRequest {" in command("describe", target, "echo.EchoRequest").out
    assert command("describe", target, "echo.Echo/Unary").out == (
        "// echo.Echo.Unary\nrpc Unary (echo.EchoRequest) returns (echo.EchoReply);\n"
    )


def test_describe_without_a_name_shows_all_services(command: CommandLine, target: str) -> None:
    names = [document["name"] for document in command("describe", "--json", target).documents]
    assert names[:2] == ["echo.Echo", "grpc.health.v1.Health"]


def test_an_unknown_symbol_is_one_line(command: CommandLine, target: str) -> None:
    done = command("describe", target, "echo.Ecko")
    assert (done.code, done.out) == (1, "")
    assert done.err == "trio-grpc: unknown symbol 'echo.Ecko': did you mean echo.Echo?\n"


def test_a_service_that_nobody_has_described_is_named(command: CommandLine, tmp_path: Path) -> None:
    servicers = ("tests.cli.served:Undescribed", "tests.cli.served:Served")
    with serving(tmp_path / "socket", *servicers) as target:
        line = "trio-grpc: a.Words is listed, but not described: nobody knows its methods and messages\n"
        for arguments in (
            ("list", target, "a.Words"),
            ("describe", target, "a.Words"),
            ("call", target, "a.Words/Count"),
        ):
            done = command(*arguments)
            assert (done.code, done.out, done.err) == (1, "", line)
        # Those that are described are shown all the same.
        done = command("describe", target)
        assert (done.code, done.err) == (1, line)
        assert done.out.startswith("// echo.Echo\nservice Echo {\n")
        assert "\n\n// grpc.health.v1.Health\n" in done.out


def test_colours_are_those_of_the_terminal(command: CommandLine, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    out = command("describe", target, "echo.EchoRequest").out
    assert "\x1b[" in out
    # Fixed ones, of 256 or more, may be white on white.
    assert "38;" not in out
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", command("describe", target, "echo.EchoRequest").out)
