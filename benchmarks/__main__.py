"""The command line of the benchmarks.  Each command's work is in a module of its own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks import environment, peers


def parser() -> argparse.ArgumentParser:
    """Returns the parser of `python -m benchmarks`."""
    root = argparse.ArgumentParser(prog="python -m benchmarks", description="Measures trio_grpc.")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser("peers", help="compare with other Python gRPC libraries, in one sitting")
    peers.add_arguments(command)
    commands.add_parser("setup", help="make the environment that purerpc needs (.venv-purerpc)")
    commands.add_parser("generate", help="make the generated code of benchmarks/protos again")
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code."""
    arguments = parser().parse_args(argv)
    if arguments.command == "peers":
        return peers.main(arguments)
    if arguments.command == "setup":
        return environment.setup()
    return environment.generate()


if __name__ == "__main__":
    sys.exit(main())
