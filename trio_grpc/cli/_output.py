"""What the commands print: tables and colours for people, JSON for programs."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import Any, TextIO, TypeVar

import attrs
import click
from rich.console import Console, RenderableType
from rich.json import JSON

from trio_grpc.cli._failure import printable

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


@attrs.frozen
class Output:
    """Where a command prints its results.

    Attributes:
        json: for programs: `document` is what is printed.
        console: for people: stdout. Colours are for terminals only, and not where NO_COLOR is set.
        errors: stderr, for what is no result: progress, notes.
    """

    json: bool
    console: Console
    errors: Console

    @classmethod
    def to_streams(cls, as_json: bool) -> Output:
        """Return one that prints to stdout and stderr as they are now."""
        for stream in (sys.stdout, sys.stderr):
            # A terminal of another encoding gets what it has no character for as a number.
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return cls(as_json, _console(sys.stdout), _console(sys.stderr))

    def document(self, value: Any) -> None:
        """Print one value as one line of JSON, and let it go at once: the reader may wait for it."""
        click.echo(json.dumps(value, ensure_ascii=_must_escape(value)))
        sys.stdout.flush()

    def value(self, value: Any) -> None:
        """Print one value, for programs in one line and for people in several."""
        if self.json:
            self.document(value)
        else:
            self.show(JSON.from_data(value, indent=2, ensure_ascii=_must_escape(value)))

    def show(self, renderable: RenderableType, *, style: str | None = None) -> None:
        """Print something for people; text is taken as it is, without rich's markup."""
        if isinstance(renderable, str):
            renderable = printable(renderable)
        self.console.print(renderable, style=style, markup=False)

    def note(self, text: str) -> None:
        """Print something that is no result, to stderr."""
        self.errors.print(printable(text), style="dim", markup=False)


def _must_escape(value: Any) -> bool:
    """Return whether JSON must do without some characters as they are."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return True
    return printable(text) != text


def _console(file: TextIO) -> Console:
    # What is printed can be copied and piped as it is: no line ends, colours or emojis that are not in it.
    return Console(file=file, highlight=False, soft_wrap=True, emoji=False)


def output_options(command: CommandT) -> CommandT:
    """Add ``--json`` to a command, which gets an `Output` as its argument ``output``."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON: one document, or one on each line of a stream.")
    @functools.wraps(command)
    def with_output(*args: Any, as_json: bool, **options: Any) -> Any:
        return command(*args, output=Output.to_streams(as_json), **options)

    return with_output  # type: ignore[return-value]  # the same, but for one argument


__all__ = ["Output", "output_options"]
