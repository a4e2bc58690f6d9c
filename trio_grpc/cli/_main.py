"""The group of commands, and what all of them have in common: how they run, and how they end."""

from __future__ import annotations

import difflib
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from trio_grpc._status import RpcError
from trio_grpc._version import __version__
from trio_grpc.cli._failure import ExitCode, printable, rpc_failure

#: What a disk says that takes no more.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

#: The commands in the order of ``--help``. Each is a room of its own, loaded when it is used; the line is its help.
COMMANDS = {
    "list": "List the services of a server, or the methods of one.",
    "describe": "Show services, methods and messages as a .proto file would.",
    "call": "Call a method, with JSON in and JSON out.",
    "health": "Ask whether a server is healthy.",
    "serve": "Serve servicers that are named by import path.",
    "bench": "Load a method, and tell how quick it is.",
    "trace": "Make a call, and show its frames.",
    "completion": "Print the script that makes a shell complete commands.",
}


class Commands(click.Group):
    """Loads a command when it is used."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            near = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
            context.fail(f"no such command {name!r}: {hint}")
        command: click.Command = importlib.import_module(f"trio_grpc.cli._{name}").command
        return command

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group("trio-grpc", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(version)s")
def commands() -> None:
    """Ask, call, watch and load gRPC servers.

    TARGET is an address as channels take it: host:port, unix:path, dns:///host:port.

    Exit codes: 0, it was done; 1, it could not be; 2, the command line is wrong; 64 plus the number of the status, a
    call ended with another status than OK; 130, Ctrl-C. The commands' own pages say where they differ.
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        arguments: what stands behind ``trio-grpc``; None for what this process was given.

    Returns:
        The exit code. What went wrong stands on stderr, in one line.
    """
    try:
        _open_closed_streams()
        code: Any = commands.main(arguments, prog_name="trio-grpc", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.UsageError as error:
        # click's own form has three lines.
        page = f" ({error.ctx.command_path} --help tells more)" if error.ctx is not None else ""
        return _say(error.format_message().rstrip(".") + page, ExitCode.USAGE)
    except click.ClickException as error:
        return _say(error.format_message(), error.exit_code)
    except RpcError as error:
        failure = rpc_failure(error)
        return _say(failure.message, failure.exit_code)
    except BrokenPipeError:
        # Whoever reads has enough, as `head` has. Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILURE
    except OSError as error:
        if error.errno not in _FULL:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # as above
        return _say(f"cannot write what there is to print: {error.strerror}", ExitCode.FAILURE)
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    return code if isinstance(code, int) else ExitCode.OK


def _say(message: str, exit_code: int) -> int:
    click.echo(f"trio-grpc: {printable(' '.join(message.split()))}", err=True)
    return exit_code


def _open_closed_streams() -> None:
    """Give the command streams where the shell has closed them, with ``>&-`` say: Python has None there."""
    for name, mode in ("stdin", "r"), ("stdout", "w"), ("stderr", "w"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 # for all of the program


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run())


__all__ = ["commands", "main", "run"]
