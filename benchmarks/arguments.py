"""Types of command-line arguments that several commands share: each refuses a bad value by name."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any


def names(known: dict[str, Any], what: str) -> Any:
    """Returns an argparse type for a comma-separated list of names, which become the values that `known` has."""

    def parse(text: str) -> tuple[Any, ...]:
        names = [name.strip() for name in text.split(",") if name.strip()]
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            wrong = f"unknown {what} {', '.join(map(repr, unknown))}" if unknown else f"no {what} named"
            raise argparse.ArgumentTypeError(f"{wrong}; known: {', '.join(known)}")
        return tuple(known[name] for name in dict.fromkeys(names))

    return parse


def positive(kind: type[int | float]) -> Any:
    """Returns an argparse type for numbers above zero."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = kind(0)
        if not 0 < value < float("inf"):
            article = "whole number" if kind is int else "number"
            raise argparse.ArgumentTypeError(f"{text!r} is not a {article} above 0")
        return value

    return parse


def count(text: str) -> int:
    """Parses a whole number of 0 or more."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def counts(text: str) -> tuple[int, ...]:
    """Parses a comma-separated list of whole numbers above 0; `0` alone is the empty list."""
    if text.strip() == "0":
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a list of whole numbers above 0 nor `0` for none")
    return tuple(dict.fromkeys(map(int, parts)))


def cores(text: str) -> tuple[int, int] | None:
    """Parses `SERVER,CLIENT`, two cores to pin to, or `none`."""
    if text == "none":
        return None
    parts = text.split(",")
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is neither SERVER,CLIENT core numbers nor `none`")
    pair = (int(parts[0]), int(parts[1]))
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    for core in pair:
        if core not in allowed:
            raise argparse.ArgumentTypeError(f"core {core} is not one of this process's cores {sorted(allowed)}")
    return pair


def default_cores() -> tuple[int, int] | None:
    """Returns the first two cores that this process may use; None if there are no two, or nobody can tell."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[1]) if len(allowed) > 1 else None


def json_path(text: str) -> Path:
    """Parses the name of a file to write."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"the folder {str(path.parent)!r} does not exist")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder")
    return path


def size(text: str) -> int:
    """Parses bytes: a whole number above 0, or one followed by K or M (1024 bytes, 1024 times that)."""
    digits, factor = text.upper().removesuffix("B"), 1
    for suffix, times in (("K", 1024), ("M", 1024 * 1024)):
        if digits.endswith(suffix):
            digits, factor = digits[:-1], times
    if not digits.isdecimal() or not int(digits):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 350, 10K or 1M")
    return int(digits) * factor


def sizes(text: str) -> tuple[int, ...]:
    """Parses sizes separated by commas."""
    return tuple(dict.fromkeys(size(part.strip()) for part in text.split(",")))


def size_title(value: int) -> str:
    """Writes bytes as `size` reads them."""
    for suffix, factor in (("MB", 1024 * 1024), ("KB", 1024)):
        if value and value % factor == 0:
            return f"{value // factor} {suffix}"
    return f"{value} B"


def add_cores(parser: argparse.ArgumentParser) -> None:
    """Adds `--cores`, for commands that pin a server and a client."""
    parser.add_argument(
        "--cores",
        type=cores,
        default=default_cores(),
        metavar="SERVER,CLIENT",
        help="cores to pin the two processes to, or `none` (default: the first two)",
    )


def add_retries(parser: argparse.ArgumentParser) -> None:
    """Adds `--retries`, for commands that repeat a run which other programs disturbed."""
    parser.add_argument(
        "--retries",
        type=count,
        default=2,
        help="how often a run is repeated that lost more than 5 %% of a core to other programs (default: 2)",
    )
