"""Makes what `peers` needs beside this environment: one for purerpc, and the programs of grpc-go."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.machine import ROOT

HELP = "make what `peers` needs: an environment for purerpc, the programs of grpc-go"
PURERPC_ENVIRONMENT = ROOT / ".venv-purerpc"
PURERPC_LOCK = ROOT / "requirements" / "purerpc.txt"
GO = ROOT / "benchmarks" / "go"
GO_PROGRAMS = GO / "bin"
_GO_PACKAGES = ("google.golang.org/grpc/benchmark/client", "google.golang.org/grpc/benchmark/server")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds nothing: the command has no flags."""


def main(arguments: argparse.Namespace) -> int:
    """Makes both; what is there already is brought up to date with its lock.

    Returns:
        0, or the code of the first step that failed.
    """
    return _purerpc() or _grpc_go()


def _purerpc() -> int:
    """Makes an environment for purerpc, because it wants h2 < 4 and everything else here h2 4."""
    _say(f"purerpc: making {PURERPC_ENVIRONMENT}, because it needs an older h2")
    python = PURERPC_ENVIRONMENT / "bin" / "python"
    return _run(sys.executable, "-m", "venv", PURERPC_ENVIRONMENT) or _run(
        python, "-m", "pip", "install", "--quiet", "--no-deps", "-r", PURERPC_LOCK
    )


def _grpc_go() -> int:
    """Builds grpc-go's own benchmark client and server, in the release that go.mod names."""
    if shutil.which("go") is None:
        _say("grpc-go: skipped, because Go is not installed; `peers` will do without it")
        return 0
    _say(f"grpc-go: building its benchmark client and server into {GO_PROGRAMS}; a minute, the first time")
    return _run("go", "build", "-trimpath", "-buildvcs=false", "-o", f"{GO_PROGRAMS}{os.sep}", *_GO_PACKAGES, cwd=GO)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _run(*command: str | Path, cwd: Path = ROOT) -> int:
    code = subprocess.run(command, cwd=cwd, check=False).returncode
    if code:
        _say(f"failed with code {code}: {' '.join(map(str, command))}")
    return code


def go_versions(program: Path = GO_PROGRAMS / "client") -> dict[str, str]:
    """Returns the versions that Go wrote into a program as it built it; empty if there are none."""
    built = program.read_bytes()
    found = {
        # After the marker: two bytes of flags, and sixteen that were addresses once; then the length of the version.
        "go": re.search(rb"\xff Go buildinf:.{18}.go(\d[\w.]*)", built, re.DOTALL),
        "grpc-go": re.search(rb"mod\tgoogle\.golang\.org/grpc\tv(\S+)\t", built),
    }
    return {name: match.group(1).decode() for name, match in found.items() if match}
