"""Wrong command lines, help and completion."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine
from trio_grpc.cli._main import COMMANDS


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["lst"], "no such command 'lst': did you mean list?"),
        (["dance"], "no such command 'dance': "),
        (["list"], "Missing argument 'TARGET'"),
        (["list", "x", "--jsn"], "No such option"),
        (["list", "x", "--timeout", "soon"], "Invalid value for '--timeout'"),
        (["list", "x", "--key", __file__], "--key belongs to a certificate: add --cert FILE"),
        (["list", "x", "--cacert", "nowhere.pem"], "Invalid value for '--cacert': File 'nowhere.pem' does not exist"),
        (["health", "x", "--watch", "--list"], "--watch and --list exclude each other"),
        (["list", "dns://"], ""),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(command: CommandLine, arguments: list[str], problem: str) -> None:
    done = command(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"trio-grpc: {problem}")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_a_page(command: CommandLine, name: str) -> None:
    done = command(name, "--help")
    assert done.code == 0
    assert done.out.startswith(f"Usage: trio-grpc {name} ")


def test_help_lists_the_commands_and_exit_codes(command: CommandLine) -> None:
    page = command("--help").out
    assert [name for name in COMMANDS if f"  {name} " not in page] == []
    assert "Exit codes: 0" in page


def test_a_command_alone_imports_no_other() -> None:
    script = "import sys\nfrom trio_grpc.cli._main import run\nrun(['list', '--help'])\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = done.stdout.splitlines()[-1].split()
    assert "trio_grpc.cli._list" in modules
    assert not {"trio_grpc.cli._serve", "trio_grpc.cli._health", "trio_grpc._server"}.intersection(modules)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_prints_a_script(command: CommandLine, shell: str) -> None:
    done = command("completion", shell)
    assert done.code == 0
    assert "_TRIO_GRPC_COMPLETE" in done.out
    (told,) = command("completion", shell, "--json").documents
    assert told == {"shell": shell, "script": done.out.removesuffix("\n")}


def test_a_shell_that_nobody_knows_is_wrong_usage(command: CommandLine) -> None:
    assert command("completion", "tcsh").code == 2


def test_commands_are_completed() -> None:
    environment = {
        **os.environ,
        "_TRIO_GRPC_COMPLETE": "bash_complete",
        "COMP_WORDS": "trio-grpc he",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "trio_grpc"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["plain,health"]


def test_a_reader_that_has_enough_is_no_error(target: str) -> None:
    shell = f"{sys.executable} -m trio_grpc describe {target} | head -1"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("// echo.Echo\n", "")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_disk_that_is_full_is_one_line(target: str, options: list[str]) -> None:
    command = [sys.executable, "-m", "trio_grpc", "list", target, *options]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("trio-grpc: cannot write what there is to print: ")


@pytest.mark.parametrize("options", ["", "--json"])
def test_streams_that_are_closed_are_nothing(target: str, options: str) -> None:
    shell = f"{sys.executable} -m trio_grpc call {target} echo.Echo/Bidi {options} -d - <&- >&-"
    done = subprocess.run(["bash", "-c", shell], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    shell = f"{sys.executable} -m trio_grpc describe {target} nothing 2>&-"
    done = subprocess.run(["bash", "-c", shell], stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "unix:nowhere", "--connect-timeout", "nan"],
        ["health", "unix:nowhere", "--timeout", "nan"],
        ["serve", "module:name", "--grace", "nan"],
    ],
)
def test_a_time_that_is_no_number_is_wrong_usage(command: CommandLine, arguments: list[str]) -> None:
    done = command(*arguments)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"'{arguments[2]}': 'nan' is no number of seconds" in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["call", "echo.Echo/\udcff"],
        ["call", "\udcff/Unary"],
        ["list", "\udcff"],
        ["describe", "\udcff"],
        ["health", "\udcff"],
    ],
)
def test_a_name_that_is_no_text_is_wrong_usage(command: CommandLine, target: str, arguments: list[str]) -> None:
    name, *rest = arguments
    done = command(name, target, *rest)
    assert (done.code, done.err) == (2, f"trio-grpc: {rest[0]!r} is no UTF-8 text, as names are\n")


@pytest.mark.parametrize("value", ["soon", "nan"])
def test_seconds_that_are_no_number(command: CommandLine, value: str) -> None:
    done = command("list", "unix:nowhere", "--timeout", value)
    assert done.code == 2
    assert f"Invalid value for '--timeout': '{value}' is no number of seconds" in done.err


def test_ctrl_c_while_it_is_loaded_is_no_traceback() -> None:
    script = """
import builtins, sys
load = builtins.__import__
def interrupted(name, *rest):
    if name == "click":
        raise KeyboardInterrupt
    return load(name, *rest)
builtins.__import__ = interrupted
from trio_grpc.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


def test_without_its_libraries_the_command_says_how_to_get_them() -> None:
    script = "import sys\nsys.modules['click'] = None\nfrom trio_grpc.__main__ import main\nmain()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "trio-grpc needs click: install it with pip install 'trio-grpc[cli]'\n"
