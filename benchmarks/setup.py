"""Makes the environment that purerpc needs (.venv-purerpc)."""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks.machine import ROOT

HELP = "make the environment that purerpc needs (.venv-purerpc)"
PURERPC_ENVIRONMENT = ROOT / ".venv-purerpc"
PURERPC_LOCK = ROOT / "requirements" / "purerpc.txt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds nothing: the command has no flags."""


def main(arguments: argparse.Namespace) -> int:
    """Makes the environment that purerpc needs, because it wants h2 < 4 and everything else here h2 4.

    The same as `make bench-env`, for those who are not at a make.
    """
    print(f"making {PURERPC_ENVIRONMENT}", flush=True)
    python = str(PURERPC_ENVIRONMENT / "bin" / "python")
    for command in (
        [sys.executable, "-m", "venv", str(PURERPC_ENVIRONMENT)],
        [python, "-m", "pip", "install", "--quiet", "--no-deps", "-r", str(PURERPC_LOCK)],
    ):
        if code := subprocess.run(command, check=False).returncode:
            print(f"failed with code {code}: {' '.join(command)}", file=sys.stderr)
            return code
    return 0
