"""`trio-grpc bench`: what it prints, its JSON, and its exit codes."""

from __future__ import annotations

import json
import signal
import time

import pytest

from tests.cli.conftest import CommandLine, start

QUICK = ("--calls", "20", "--warm-up", "0", "-c", "2")
UNARY = "echo.Echo/Unary"


def test_for_people(command: CommandLine, target: str) -> None:
    done = command("bench", target, UNARY, *QUICK)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("20 calls in ")
    for word in "per second", "fastest", "mean", "99.9 %", "slowest", "calls by latency", "up to", "█":
        assert word in done.out
    assert all(len(line) <= 80 for line in done.out.splitlines())


def test_for_programs(command: CommandLine, target: str) -> None:
    done = command("bench", target, UNARY, *QUICK, "--connections", "2", "--json", "-d", '{"text": "x"}')
    (told,) = done.documents
    assert done.code == 0
    assert (told["target"], told["method"]) == (target, UNARY)
    assert (told["concurrency"], told["connections"], told["rate"]) == (2, 2, None)
    assert (told["calls"], told["ok"], told["failures"]) == (20, 20, {})
    assert (told["messages_sent"], told["messages_received"]) == (20, 20)
    assert told["calls_per_second"] > 0
    latency = told["latency_ms"]
    assert list(latency) == ["min", "mean", "p50", "p75", "p90", "p95", "p99", "p99.9", "max"]
    assert 0 < latency["min"] <= latency["p50"] <= latency["p99"] <= latency["max"]
    assert sum(row["calls"] for row in told["histogram"]) == 20


def test_a_duration_and_a_rate(command: CommandLine, target: str) -> None:
    done = command("bench", target, UNARY, "--duration", "0.3", "--rate", "100", "--warm-up", "0.1", "--json")
    (told,) = done.documents
    assert done.code == 0
    assert 25 <= told["calls"] <= 30
    assert told["seconds"] == pytest.approx(0.3, abs=0.2)


def test_streams(command: CommandLine, target: str) -> None:
    for name in "ServerStream", "ClientStream", "Bidi":
        done = command("bench", target, f"echo.Echo/{name}", *QUICK, "--json", "-d", '{"count": 2}')
        assert (done.code, done.documents[0]["ok"]) == (0, 20)


def test_where_no_call_succeeds(command: CommandLine, target: str) -> None:
    done = command("bench", target, UNARY, *QUICK, "-d", '{"text": "fail", "count": 5}')
    assert done.code == 64 + 5
    assert "20 failed with NOT_FOUND, the first: as you like" in done.out
    assert done.err == "trio-grpc: no call succeeded: NOT_FOUND: as you like\n"


def test_what_is_wrong_with_the_command_line(command: CommandLine, target: str) -> None:
    for options, message in (
        (("--calls", "1", "--duration", "1"), "--calls and --duration both say when it is over"),
        (("-c", "0"), "0 is not in the range x>=1"),
        (("--rate", "0"), "is not in the range"),
        (("--rate", "nan"), "--rate must be a number of calls, not nan"),
        (("--rate", "inf"), "--rate must be a number of calls, not inf"),
        (("--duration", "soon"), "'soon' is no number of seconds"),
        (("-d", "{}{}"), "takes one request, but there are 2"),
        (("-d", '{"txt": 1}'), 'has no field named "txt"'),
    ):
        done = command("bench", target, UNARY, *options)
        assert done.code in (1, 2)
        assert message in done.err
        assert done.err.count("\n") == 1


def test_a_method_that_is_not_there(command: CommandLine, target: str) -> None:
    done = command("bench", target, "echo.Echo/Unry", *QUICK)
    assert done.code == 1
    assert "Unry" in done.err
    assert "Unary" in done.err


def test_a_server_that_is_not_there(command: CommandLine) -> None:
    done = command("bench", "unix:/nowhere/socket", UNARY, *QUICK)
    assert done.code == 64 + 14
    assert "cannot reach unix:/nowhere/socket" in done.err


def test_ctrl_c_ends_it_early_and_tells_what_was_measured(target: str) -> None:
    # Nothing tells when it has begun to measure, and a busy machine takes its time.
    out = err = ""
    for patience in 2.5, 8.0, 20.0:
        process = start("bench", target, UNARY, "--duration", "50", "--warm-up", "0.1", "--json")
        time.sleep(patience)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 130
        if out:
            break
    assert err == ""
    told = json.loads(out)
    assert told["ok"] > 0
    assert told["seconds"] < 25
