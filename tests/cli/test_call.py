"""`trio-grpc call`: JSON in, JSON out, and the exit codes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine, Done, serving, start


def test_a_unary_call_prints_its_reply(command: CommandLine, target: str) -> None:
    done = command("call", target, "echo.Echo/Unary", "-d", '{"text": "grüß", "payload": "AAE="}')
    assert done.code == 0
    assert json.loads(done.out) == {"text": "grüß", "payload": "AAE="}
    assert done.err == ""


def test_no_data_is_an_empty_request(command: CommandLine, target: str) -> None:
    assert command("call", target, "echo.Echo/Unary", "--json").documents == [{}]
    (reply,) = command("call", target, "echo.Echo/Unary", "--json", "--defaults").documents
    assert reply == {"text": "", "payload": "", "count": 0}


@pytest.mark.parametrize(
    ("method", "data", "replies"),
    [
        ("ServerStream", '{"count": 2}', [{}, {"count": 1}]),
        ("ClientStream", '{"payload": "AA=="} {"payload": "AQ=="}', [{"payload": "AAE=", "count": 2}]),
        ("ClientStream", "", [{}]),
        ("Bidi", '{"count": 1}\n{"count": 2}', [{"count": 1}, {"count": 2}]),
    ],
)
def test_streams_take_and_give_one_document_after_the_other(
    command: CommandLine, target: str, method: str, data: str, replies: list[object]
) -> None:
    done = command("call", target, f"echo.Echo/{method}", "--json", "-d", data)
    assert done.code == 0
    assert done.documents == replies


def test_a_file_has_the_request(command: CommandLine, target: str, tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text('{"count": 5}')
    assert command("call", target, "echo.Echo/Unary", "--json", "-d", f"@{tmp_path}/request.json").documents == [
        {"count": 5}
    ]
    done = command("call", target, "echo.Echo/Unary", "-d", f"@{tmp_path}/nothing.json")
    assert done.code == 2
    assert done.err == f"trio-grpc: cannot read {tmp_path}/nothing.json: No such file or directory\n"


def test_stdin_is_sent_as_it_comes(target: str) -> None:
    process = start("call", target, "echo.Echo/Bidi", "--json", "-d", "-", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    for number in (1, 2):
        process.stdin.write(json.dumps({"count": number}) + "\n")
        process.stdin.flush()
        # The reply comes while stdin is open.
        assert json.loads(process.stdout.readline()) == {"count": number}
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "", "")


def test_a_method_that_takes_one_request_takes_it_from_stdin(
    command: CommandLine, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"count": 3}'))
    assert command("call", target, "echo.Echo/Unary", "--json", "-d", "-").documents == [{"count": 3}]


@pytest.mark.parametrize("code", [3, 5, 16])
def test_a_status_is_one_line_and_an_exit_code(command: CommandLine, target: str, code: int) -> None:
    done = command("call", target, "echo.Echo/Unary", "-d", json.dumps({"text": "fail", "count": code}))
    name = {3: "INVALID_ARGUMENT", 5: "NOT_FOUND", 16: "UNAUTHENTICATED"}[code]
    assert (done.code, done.out) == (64 + code, "")
    assert done.err == f'detail google.protobuf.Duration: "7s"\ntrio-grpc: {name}: as you like\n'


def test_metadata_goes_and_comes(command: CommandLine, target: str) -> None:
    done = command("call", target, "echo.Echo/Unary", "-v", "-H", "seen: yes", "-d", '{"text": "metadata"}')
    assert done.err.splitlines() == [
        "initial metadata: seen: yes",
        "initial metadata: raw-bin: AQ==",
        "trailing metadata: after: all",
        "status: OK",
    ]


def test_what_is_printed_is_what_came(command: CommandLine, target: str) -> None:
    """No emojis for their names, and no markup."""
    value = "10.0.0.1:100:x [bold]y[/bold]"
    data = '{"text": "metadata"}'
    done = command("call", target, "echo.Echo/Unary", "-v", "-H", f"seen: {value}", "-d", data)
    assert done.err.startswith(f"initial metadata: seen: {value}\n")
    data = json.dumps({"text": f"{value} :smile: " * 50})
    assert json.loads(command("call", target, "echo.Echo/Unary", "-d", data).out) == json.loads(data)


def test_a_server_gives_no_orders_to_the_terminal(command: CommandLine, target: str) -> None:
    done = command("call", target, "echo.Echo/Unary", "-d", '{"text": "escape"}')
    assert done.err == "trio-grpc: NOT_FOUND: \\x1b[31mred\\x07 \\x9b1m\n"
    text = "\x1b[31m \x7f \x9b1m"
    for options in (), ("--json",):
        done = command("call", target, "echo.Echo/Unary", *options, "-d", json.dumps({"text": text}))
        assert json.loads(done.out) == {"text": text}
        assert not set(text) & set(done.out) - set("[31m ")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_terminal_of_any_encoding_can_be_written_to(target: str, encoding: str, options: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "trio_grpc", "call", target, "echo.Echo/Unary", "-v", *options]
    data = json.dumps({"text": "ä 😀"})
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([*command, "-d", data], env=environment, capture_output=True, check=True)
    assert json.loads(done.stdout.decode(encoding)) == json.loads(data)
    assert (b"\\u" in done.stdout) == (encoding != "utf-8")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("[" * 100_000, "it is nested too deeply"),
        ('{"text": ' * 50_000 + "1" + "}" * 50_000, "it is nested too deeply"),
        ('{"count": ' + "9" * 5_000 + "}", "Exceeds the limit"),
    ],
    ids=["open", "deep", "digits"],
)
@pytest.mark.parametrize("method", ["Unary", "Bidi"])
def test_json_that_python_does_not_read_is_one_line(
    command: CommandLine, target: str, method: str, data: str, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "data").write_text(data)
    done = command("call", target, f"echo.Echo/{method}", "-d", f"@{tmp_path / 'data'}")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert done.err.startswith(f"trio-grpc: that JSON cannot be read: {problem}")


@pytest.mark.parametrize("token", ["", "a b", "a\n", "ä"])
def test_a_token_that_cannot_be_sent_is_wrong_usage(command: CommandLine, token: str) -> None:
    done = command("call", "unix:nowhere", "echo.Echo/Unary", "--token", token)
    assert done.code == 2
    assert done.err.startswith("trio-grpc: --token is empty, or has blanks")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("nonsense", "--header 'nonsense' has no colon: write NAME:VALUE"),
        ("x-bin: ?", "--header x-bin: its value must be base64, as the name ends in -bin"),
        ("grpc-x: 1", "--header grpc-x: "),
    ],
)
def test_metadata_that_cannot_be_sent_is_wrong_usage(
    command: CommandLine, target: str, header: str, problem: str
) -> None:
    done = command("call", target, "echo.Echo/Unary", "-H", header)
    assert done.code == 2
    assert done.err.startswith(f"trio-grpc: {problem}")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ('{"txt": 1}', "JSON does not fit echo.EchoRequest: "),
        ('{"count": "many"}', "JSON does not fit echo.EchoRequest: "),
        ("[1]", "JSON does not fit echo.EchoRequest: it must be an object, not [1]"),
        ('{"count": ', "that is no JSON: Expecting value at line 1, column 11"),
        ("{} {}", "echo.Echo/Unary takes one request, but there are 2 JSON documents"),
    ],
)
def test_json_that_does_not_fit_is_one_line(command: CommandLine, target: str, data: str, problem: str) -> None:
    done = command("call", target, "echo.Echo/Unary", "-d", data)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"trio-grpc: {problem}")
    assert done.err.count("\n") == 1


def test_json_that_does_not_fit_ends_a_stream(command: CommandLine, target: str) -> None:
    done = command("call", target, "echo.Echo/Bidi", "--json", "-d", '{"count": 1} {"nope": 1}')
    assert done.code == 1
    assert "has no field named" in done.err


@pytest.mark.parametrize(
    ("method", "code", "problem"),
    [
        ("echo.Echo/Unry", 1, "echo.Echo has no method 'Unry': did you mean Unary?"),
        ("echo.Ecko/Unary", 1, "unknown service 'echo.Ecko': did you mean echo.Echo?"),
        ("Unary", 2, "'Unary' is no method: write SERVICE/METHOD, as in pkg.Greeter/SayHello"),
    ],
)
def test_an_unknown_method_is_one_line(command: CommandLine, target: str, method: str, code: int, problem: str) -> None:
    done = command("call", target, method)
    assert (done.code, done.out, done.err) == (code, "", f"trio-grpc: {problem}\n")


def test_a_token_does_not_travel_in_plaintext(command: CommandLine) -> None:
    done = command("call", "127.0.0.1:1", "echo.Echo/Unary", "--token", "secret")
    assert done.code != 0
    assert "plaintext" in done.err
    assert "secret" not in done.err


@pytest.mark.parametrize("method", ["Unary", "Bidi"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_stdin_is_utf_8_whatever_the_locale_says(
    command: CommandLine, target: str, monkeypatch: pytest.MonkeyPatch, method: str, encoding: str
) -> None:
    def answer(data: bytes) -> Done:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding=encoding))
        return command("call", target, f"echo.Echo/{method}", "--json", "-d", "-")

    assert answer('{"text": "grüß"}'.encode()).documents == [{"text": "grüß"}]
    done = answer(b'\xff\xfe{"text": "x"}')
    assert (done.code, done.out, done.err) == (1, "", "trio-grpc: stdin is no UTF-8 text\n")


def test_a_server_that_is_not_there_yet_is_waited_for(command: CommandLine, tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/socket"
    waiting = start("call", target, "echo.Echo/Unary", "--json", "--wait-for-ready", "-d", '{"count": 3}')
    try:
        with serving(tmp_path / "socket", "tests.cli.served:Served"):
            out, err = waiting.communicate(timeout=20)
    finally:
        waiting.kill()
    assert (waiting.returncode, out, err) == (0, '{"count": 3}\n', "")


def test_a_server_that_does_not_come_is_waited_for_until_the_deadline(command: CommandLine, tmp_path: Path) -> None:
    done = command("call", f"unix:{tmp_path}/s", "a.B/C", "--wait-for-ready", "--timeout", "0.1")
    assert (done.code, done.err.count("\n")) == (68, 1)
    assert done.err.startswith(f"trio-grpc: cannot reach unix:{tmp_path}/s within 0.1 s: ")
    assert "No such file or directory" in done.err


def test_a_compression_that_does_not_exist_is_wrong_usage(command: CommandLine) -> None:
    done = command("call", "unix:nowhere", "a.B/C", "--compression", "lzw")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "--compression: compression 'lzw' is not registered; known: " in done.err


def test_a_text_without_an_end_is_one_line(command: CommandLine, target: str) -> None:
    done = command("call", target, "echo.Echo/Bidi", "-d", '{"text": "a')
    assert done.err == "trio-grpc: that is no JSON: Unterminated string starting at line 1, column 10\n"
