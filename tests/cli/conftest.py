"""A server for all tests of the command line, and a way to run commands."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from trio_grpc.cli._main import run

ROOT = Path(__file__).parents[2]


@attrs.frozen
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def documents(self) -> list[Any]:
        """What ``--json`` printed."""
        return [json.loads(line) for line in self.out.splitlines()]


class CommandLine:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Done:
        self._capsys.readouterr()
        code = run(arguments)
        captured = self._capsys.readouterr()
        assert "Traceback" not in captured.err
        return Done(code, captured.out, captured.err)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


def start(*arguments: str, stdin: int | None = None) -> subprocess.Popen[str]:
    """Starts the command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "trio_grpc", *arguments],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'protos'}", "PATH": "/usr/bin:/bin"},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_socket(path: Path, process: subprocess.Popen[str]) -> None:
    for _ in range(2000):
        with socket.socket(socket.AF_UNIX) as client:
            # The file is there a moment before the server listens.
            if client.connect_ex(str(path)) == 0:
                return
        if process.poll() is not None:
            raise AssertionError(process.communicate()[1])
        time.sleep(0.01)
    raise AssertionError("the server has not started")


@contextmanager
def serving(path: Path, *arguments: str) -> Iterator[str]:
    """Runs a server for the length of a block, and gives its target."""
    process = start("serve", *arguments, "--address", f"unix:{path}")
    try:
        wait_for_socket(path, process)
        yield f"unix:{path}"
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with reflection and health."""
    with serving(tmp_path_factory.mktemp("served") / "socket", "tests.cli.served:Served") as target:
        yield target
