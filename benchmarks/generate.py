"""Makes the generated code of every library again, from `benchmarks/protos/bench.proto`."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.machine import ROOT
from benchmarks.setup import PURERPC_ENVIRONMENT

HELP = "make the generated code of benchmarks/protos again"
PROTO = Path("benchmarks/protos/bench.proto")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds nothing: the command has no flags."""


def main(arguments: argparse.Namespace) -> int:
    """Makes the generated code of every library again, from `bench.proto`."""
    protos = ROOT / PROTO.parent
    plugins = {
        "grpclib_python": Path(sys.executable).parent / "protoc-gen-grpclib_python",
        "purerpc": PURERPC_ENVIRONMENT / "bin" / "protoc-gen-purerpc",
        "trio_grpc": Path(sys.executable).parent / "protoc-gen-trio_grpc",
    }
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--python_out=.", "--pyi_out=."]
        command.append("--grpc_python_out=.")
        for name, plugin in plugins.items():
            if not plugin.exists():
                print(f"skipping {name}: {plugin} is missing", file=sys.stderr)
                continue
            (Path(folder) / name).mkdir()
            command += [f"--plugin=protoc-gen-{name}={plugin}", f"--{name}_out={folder}/{name}"]
        code = subprocess.run([*command, str(PROTO)], cwd=ROOT, check=False).returncode
        if code:
            return code
        for name, destination in (
            ("grpclib_python", protos / "for_grpclib" / "bench_grpc.py"),
            ("purerpc", protos / "for_purerpc" / "bench_grpc.py"),
            ("trio_grpc", protos / "bench_trio_grpc.py"),
        ):
            made = Path(folder) / name / PROTO.parent / destination.name
            if made.exists():
                shutil.copyfile(made, destination)
                print(f"made {destination.relative_to(ROOT)}")
    return 0
