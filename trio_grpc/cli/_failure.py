"""What goes wrong, in one line each that a terminal can print, and the exit codes."""

from __future__ import annotations

import enum
import re

import click

from trio_grpc._status import RpcError


class ExitCode(enum.IntEnum):
    """What the command tells a shell. A call that ended with another status than OK: 64 plus its code, as grpcurl."""

    OK = 0
    FAILURE = 1
    """What was asked for could not be done; the line on stderr says why."""
    USAGE = 2
    """The command line itself is wrong."""
    RPC = 64
    """The first of the codes for statuses: 78 is 64 plus UNAVAILABLE, 14."""
    INTERRUPTED = 130
    """Ctrl-C, as shells have it: 128 plus SIGINT."""


#: C0 but for the line end, DEL, and C1.
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Return a text that a terminal prints and does not act on, whatever a server has put into it."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


class Failure(click.ClickException):
    """Ends the command with one line on stderr, which names the thing and says what to do.

    Args:
        message: the line.
        exit_code: for the shell.
    """

    def __init__(self, message: str, exit_code: int = ExitCode.FAILURE) -> None:
        super().__init__(" ".join(message.split()))
        vars(self)["exit_code"] = exit_code  # click has it for the class


def rpc_failure(error: RpcError, what: str = "") -> Failure:
    """Return the failure for a call that ended with another status than OK.

    Args:
        error: what the call raised.
        what: what the call was for, where the user did not ask for this one.
    """
    subject = f"{what}: " if what else ""
    text = f": {error.message}" if error.message else ""
    hint = (
        "; of replies, --max-message-size BYTES accepts larger ones"
        if "(option max_receive_message_length)" in text
        else ""
    )
    return Failure(f"{subject}{error.code.name}{text}{hint}", ExitCode.RPC + error.code.value)


def check_text(name: str) -> str:
    """Return a name from the command line, which Python has with surrogates where it is no text.

    Raises:
        Failure: it is none, so nothing has this name.
    """
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise Failure(f"{name!r} is no UTF-8 text, as names are", ExitCode.USAGE) from error
    return name


__all__ = ["ExitCode", "Failure", "check_text", "printable", "rpc_failure"]
