"""Options about a call: its deadline and its metadata."""

from __future__ import annotations

import base64
import binascii
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import click

from trio_grpc._metadata import Metadata, MetadataError
from trio_grpc.cli._seconds import POSITIVE_SECONDS

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

#: Seconds for questions that the command asks by itself, where no --timeout says otherwise.
QUESTION_TIMEOUT = 20.0


@attrs.frozen
class CallOptions:
    """What calls are made with.

    Attributes:
        timeout: seconds; None for as long as it takes.
        metadata: sent with each call.
    """

    timeout: float | None
    metadata: Metadata

    @property
    def question_timeout(self) -> float:
        """Seconds for questions beside the call, such as those of reflection."""
        return QUESTION_TIMEOUT if self.timeout is None else self.timeout


def call_options(command: CommandT) -> CommandT:
    """Add ``--timeout`` and ``--header`` to a command, which gets a `CallOptions` as its argument ``call``."""

    @click.option(
        "--timeout",
        type=POSITIVE_SECONDS,
        metavar="SECONDS",
        help="The call's deadline, which the server is told.",
    )
    @click.option(
        "-H",
        "--header",
        "headers",
        multiple=True,
        metavar="NAME:VALUE",
        help="Metadata; the value of a name that ends in -bin is base64. May be repeated.",
    )
    @functools.wraps(command)
    def with_call(*args: Any, timeout: float | None, headers: tuple[str, ...], **options: Any) -> Any:
        return command(*args, call=CallOptions(timeout, parse_metadata(headers)), **options)

    return with_call  # type: ignore[return-value]  # the same, but for its arguments


def parse_metadata(headers: tuple[str, ...]) -> Metadata:
    """Return the metadata that options ask for.

    Raises:
        click.UsageError: one of them is malformed.
    """
    metadata = Metadata()
    for header in headers:
        name, separator, value = header.partition(":")
        name, value = name.strip().lower(), value.strip()
        if not separator:
            raise click.UsageError(f"--header {header!r} has no colon: write NAME:VALUE")
        try:
            if name.endswith("-bin"):
                metadata.add(name, base64.b64decode(value + "=" * (-len(value) % 4), validate=True))
            else:
                metadata.add(name, value)
        except binascii.Error as error:
            raise click.UsageError(f"--header {name}: its value must be base64, as the name ends in -bin") from error
        except (MetadataError, ValueError, TypeError) as error:
            raise click.UsageError(f"--header {name}: {error}") from error
    return metadata


def metadata_document(metadata: Metadata) -> dict[str, list[str]]:
    """Return metadata as JSON has it: a list for each name, bytes as base64."""
    document: dict[str, list[str]] = {}
    for name, value in metadata:
        text = base64.b64encode(value).decode() if isinstance(value, bytes) else value
        document.setdefault(name, []).append(text)
    return document


__all__ = ["CallOptions", "call_options", "metadata_document", "parse_metadata"]
