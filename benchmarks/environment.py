"""`python -m benchmarks setup` and `generate`: purerpc's own environment, and the generated code of `bench.proto`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers import ROOT

PURERPC_ENVIRONMENT = ROOT / ".venv-purerpc"
PURERPC_LOCK = ROOT / "requirements" / "purerpc.txt"
PROTO = Path("benchmarks/protos/bench.proto")


def setup() -> int:
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


def generate() -> int:
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
