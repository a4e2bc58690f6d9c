"""`trio-grpc health`: exit codes for probes, and watching."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.cli.conftest import CommandLine, serving, start, wait_for_socket


def test_a_server_that_serves_is_exit_code_0(command: CommandLine, target: str) -> None:
    done = command("health", target)
    assert (done.code, done.out) == (0, "SERVING\n")
    assert command("health", target, "echo.Echo", "--json").documents == [{"service": "echo.Echo", "status": "SERVING"}]


def test_an_unknown_service_is_named(command: CommandLine, target: str) -> None:
    done = command("health", target, "nobody")
    assert (done.code, done.out) == (64 + 5, "")
    assert "does not know the service 'nobody': --list shows" in done.err


def test_list_shows_each_service(command: CommandLine, target: str) -> None:
    assert command("health", target, "--list").out.splitlines() == ["SERVING", "echo.Echo: SERVING"]


def test_nobody_there_is_the_code_of_unavailable(command: CommandLine, tmp_path: Path) -> None:
    assert command("health", f"unix:{tmp_path}/nobody").code == 64 + 14


def test_a_server_without_the_service_is_the_code_of_unimplemented(command: CommandLine, tmp_path: Path) -> None:
    with serving(tmp_path / "socket", "tests.cli.served:several", "--no-health", "--no-reflection") as target:
        done = command("health", target)
        assert done.code == 64 + 12
        assert "has no health service" in done.err
        done = command("list", target)
        assert done.code == 64 + 12
        assert "has no reflection: describe the service with --proto FILE or --descriptors FILE" in done.err


def test_channelz_is_served_where_it_is_asked_for(command: CommandLine, tmp_path: Path) -> None:
    with serving(tmp_path / "socket", "tests.cli.served:several") as target:
        assert "grpc.channelz.v1.Channelz" not in command("list", target).out
    with serving(tmp_path / "other", "tests.cli.served:several", "--channelz") as target:
        done = command("call", target, "grpc.channelz.v1.Channelz/GetServers", "--json")
        assert done.code == 0
        assert "listening on unix:" in done.out


def test_watch_tells_of_each_change_until_ctrl_c(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    server = start("serve", "tests.cli.served:Served", "--address", f"unix:{path}")
    wait_for_socket(path, server)
    watch = start("health", "--watch", "--json", f"unix:{path}")
    try:
        assert watch.stdout is not None
        assert json.loads(watch.stdout.readline())["status"] == "SERVING"
        server.send_signal(signal.SIGTERM)
        assert json.loads(watch.stdout.readline())["status"] == "NOT_SERVING"
        assert json.loads(watch.stdout.readline())["status"].startswith("UNREACHABLE (UNAVAILABLE: ")
        watch.send_signal(signal.SIGINT)
        out, err = watch.communicate(timeout=20)
        assert (watch.returncode, out, err.strip()) == (130, "", "")
    finally:
        for process in (server, watch):
            process.kill()
            process.communicate()
