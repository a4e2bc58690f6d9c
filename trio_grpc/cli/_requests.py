"""Requests from the command line, a file or stdin."""

from __future__ import annotations

import functools
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO, TypeVar

import attrs
import click
import trio
from google.protobuf.descriptor_pool import DescriptorPool

from trio_grpc._method import Method
from trio_grpc.cli._failure import ExitCode, Failure
from trio_grpc.cli._messages import Documents, parse_documents, to_message

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


@attrs.frozen
class RequestData:
    """What ``--data`` says.

    Attributes:
        text: JSON; None where it comes from stdin, as the call goes on.
    """

    text: str | None

    def messages(self, method: Method[Any, Any], pool: DescriptorPool) -> list[Any]:
        """Return all requests; for calls that know them before they begin.

        Raises:
            Failure: they are no JSON, do not fit, or are too many or too few for the method.
        """
        text = _told(_stdin().read) if self.text is None else self.text
        documents = parse_documents(text)
        if not method.cardinality.client_streaming:
            if not documents:
                documents = [{}]
            if len(documents) > 1:
                raise Failure(f"{method.path[1:]} takes one request, but there are {len(documents)} JSON documents")
        return [to_message(method.request_type, document, pool) for document in documents]

    async def stream(self, method: Method[Any, Any], pool: DescriptorPool) -> AsyncIterator[Any]:
        """Give each request as soon as it is there.

        Raises:
            Failure: they are no JSON, or do not fit.
        """
        if self.text is not None:
            for message in self.messages(method, pool):
                yield message
            return
        documents = Documents()
        stdin = _stdin()
        ended = False
        while not ended:
            # A thread: not every stdin can be waited for. It is left behind when the call ends before the input.
            line = await trio.to_thread.run_sync(_told, stdin.readline, abandon_on_cancel=True)
            ended = not line
            ready: Iterator[Any] = documents.end() if ended else documents.feed(line)
            for document in ready:
                yield to_message(method.request_type, document, pool)


def data_option(command: CommandT) -> CommandT:
    """Add ``--data`` to a command, which gets a `RequestData` as its argument ``data``."""

    @click.option(
        "-d",
        "--data",
        "given",
        metavar="JSON",
        help="The request as JSON; @FILE reads a file, - reads stdin. For streams of requests: several JSON documents "
        "one after the other; those from stdin are sent as they come. Default: one empty request; none for a stream.",
    )
    @functools.wraps(command)
    def with_data(*args: Any, given: str | None, **options: Any) -> Any:
        return command(*args, data=RequestData(_read(given)), **options)

    return with_data  # type: ignore[return-value]  # the same, but for its arguments


def _stdin() -> TextIO:
    """Return stdin, to be read as what JSON is, UTF-8 (RFC 8259, 8.1), whatever the locale says."""
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")
    return sys.stdin


def _told(read: Callable[[], str]) -> str:
    try:
        return read()
    except UnicodeDecodeError as error:
        raise Failure("stdin is no UTF-8 text") from error


def _read(given: str | None) -> str | None:
    if given is None:
        return ""
    if given in ("-", "@-"):
        return None
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8")
    except OSError as error:
        raise Failure(f"cannot read {given[1:]}: {error.strerror}", ExitCode.USAGE) from error
    except UnicodeDecodeError as error:
        raise Failure(f"{given[1:]} is no UTF-8 text", ExitCode.USAGE) from error


__all__ = ["RequestData", "data_option"]
