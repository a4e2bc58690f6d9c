"""`trio-grpc trace`: the frames of a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trustme

from tests.cli.conftest import CommandLine, serving

UNARY = "echo.Echo/Unary"


def frames(documents: list[Any], kind: str, direction: str) -> list[Any]:
    return [one for one in documents if one.get("type") == kind and one["direction"] == direction]


def test_for_people(command: CommandLine, target: str) -> None:
    done = command("trace", target, UNARY, "-d", '{"text": "grüß"}')
    assert (done.code, done.err) == (0, "")
    for text in (
        "-> conn  SETTINGS",
        "<- conn  SETTINGS",
        "INITIAL_WINDOW_SIZE = ",
        "-> 1     HEADERS END_HEADERS",
        ":path: /echo.Echo/Unary",
        "-> 1     DATA END_STREAM",
        "message, 8 B",
        '{"text": "grüß"}',
        "grpc-status: 0",
        "the server may send 1048576 on the connection",
        "OK after ",
        "first response: ",
    ):
        assert text in done.out
    assert done.out.count('{"text": "grüß"}') == 2


def test_for_programs(command: CommandLine, target: str) -> None:
    done = command("trace", target, UNARY, "-d", '{"text": "x"}', "--json")
    *seen, last = done.documents
    assert done.code == 0
    (request,) = frames(seen, "HEADERS", "sent")
    assert [":path", "/echo.Echo/Unary"] in request["headers"]
    (data,) = frames(seen, "DATA", "sent")
    assert data["messages"] == [{"length": 3, "compressed": False, "message": {"text": "x"}}]
    assert data["flags"] == ["END_STREAM"]
    head, trailers = frames(seen, "HEADERS", "received")
    assert [":status", "200"] in head["headers"]
    assert ["grpc-status", "0"] in trailers["headers"]
    assert [one["seconds"] for one in seen] == sorted(one["seconds"] for one in seen)
    summary = last["summary"]
    assert summary["status"] == "OK"
    assert summary["frames_sent"] == sum(one["direction"] == "sent" for one in seen)
    assert summary["bytes_received"] == sum(9 + one["length"] for one in seen if one["direction"] == "received")
    assert set(summary["times"]) == {
        "request headers", "first request", "response headers", "first response", "trailers",
    }  # fmt: skip


def test_reflection_is_not_part_of_it(command: CommandLine, target: str) -> None:
    done = command("trace", target, UNARY, "--json")
    assert len(frames(done.documents[:-1], "HEADERS", "sent")) == 1


def test_compressed_messages_are_read(command: CommandLine, target: str) -> None:
    text = "x" * 500
    done = command("trace", target, UNARY, "-d", f'{{"text": "{text}"}}', "--json", "--compression", "gzip")
    (data,) = frames(done.documents[:-1], "DATA", "sent")
    (message,) = data["messages"]
    assert message["compressed"]
    assert message["length"] < 100
    assert message["message"] == {"text": text}


def test_sizes_alone(command: CommandLine, target: str) -> None:
    done = command("trace", target, UNARY, "-d", '{"text": "secret"}', "--no-messages")
    assert "secret" not in done.out
    assert "message, 8 B" in done.out


def test_streams(command: CommandLine, target: str) -> None:
    done = command("trace", target, "echo.Echo/Bidi", "-d", '{"text": "a"} {"text": "b"}', "--json")
    sent = [one["message"] for data in frames(done.documents[:-1], "DATA", "sent") for one in data.get("messages", ())]
    assert sent == [{"text": "a"}, {"text": "b"}]


def test_a_long_message_is_cut_for_people(command: CommandLine, target: str) -> None:
    done = command("trace", target, UNARY, "-d", f'{{"text": "{"x" * 5000}"}}')
    assert "... (5012 characters)" in done.out
    assert "x" * 1000 not in done.out


def test_a_call_that_fails(command: CommandLine, target: str) -> None:
    done = command("trace", target, UNARY, "-d", '{"text": "fail", "count": 5}')
    assert done.code == 64 + 5
    assert "grpc-status: 5" in done.out
    assert "NOT_FOUND after" in done.out
    assert done.err == "trio-grpc: NOT_FOUND: as you like\n"


def test_a_server_that_is_not_there(command: CommandLine) -> None:
    done = command("trace", "unix:/nowhere/socket", UNARY)
    assert done.code == 64 + 14
    assert "cannot reach unix:/nowhere/socket" in done.err
    assert done.err.count("\n") == 1


def test_it_looks_above_tls(command: CommandLine, tmp_path: Path) -> None:
    authority = trustme.CA()
    leaf = authority.issue_cert("server.example")
    for name, blob in (
        ("ca.pem", authority.cert_pem),
        ("server.pem", leaf.cert_chain_pems[0]),
        ("server.key", leaf.private_key_pem),
    ):
        blob.write_to_path(tmp_path / name)
    options = ("--cert", f"{tmp_path}/server.pem", "--key", f"{tmp_path}/server.key")
    with serving(tmp_path / "socket", "tests.cli.served:Served", *options) as target:
        tls = ("--cacert", f"{tmp_path}/ca.pem", "--server-name", "server.example")
        done = command("trace", target, UNARY, *tls, "--json")
    assert (done.code, done.err) == (0, "")
    (request,) = frames(done.documents[:-1], "HEADERS", "sent")
    assert [":scheme", "https"] in request["headers"]
