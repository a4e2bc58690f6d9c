"""The command line of the benchmarks.  Each command is a module of its own, which is imported only when it is used.

A command's module has `HELP` (one line), `add_arguments(parser)` and `main(arguments) -> int` (the exit code).
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any

#: In the order of `--help`: what each measures is said by its own `HELP`.
COMMANDS = (
    "run",
    "compare",
    "paired",
    "peers",
    "floor",
    "codec",
    "frames",
    "imports",
    "interceptors",
    "ideas",
    "memory",
    "plots",
    "setup",
    "generate",
)


def _module(command: str) -> Any:
    return importlib.import_module(f"benchmarks.{command}")


def parser() -> argparse.ArgumentParser:
    """Returns the parser of `python -m benchmarks`."""
    root = argparse.ArgumentParser(prog="python -m benchmarks", description="Measures trio_grpc.")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = _module(name)
        command = commands.add_parser(name, help=module.HELP, description=module.__doc__.partition("\n")[0])
        module.add_arguments(command)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code."""
    arguments = parser().parse_args(argv)
    code: int = _module(arguments.command).main(arguments)
    return code


if __name__ == "__main__":
    sys.exit(main())
