"""What importing costs, next to trio and protobuf, which every program of ours imports too."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys

from benchmarks.arguments import positive
from benchmarks.statistics import median

HELP = "what importing costs, in units of trio and google.protobuf.message together"
#: What `import trio_grpc` may cost.
LIMIT = 1.5

#: Each in a process of its own. A name of trio_grpc is loaded when it is first used.
PROGRAMS = {
    "trio and google.protobuf.message": "import trio, google.protobuf.message",
    "import trio_grpc": "import trio, google.protobuf.message; import trio_grpc",
    "what a client uses": "import trio, google.protobuf.message; "
    "from trio_grpc import open_channel, UnaryUnaryMethod, RpcError, StatusCode",
    "what a server uses": "import trio, google.protobuf.message; "
    "from trio_grpc import serve, Servicer, ServicerContext, RpcError, StatusCode",
    "all public names": "import trio, google.protobuf.message; from trio_grpc import *",
}
_LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=positive(int), default=7, help="processes for each program (default: 7)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def microseconds(program: str) -> int:
    """Returns what the imports of a program took in a fresh process, without the interpreter's own start."""
    command = [sys.executable, "-X", "importtime", "-c", f"import sys; sys.stderr.write('begin\\n'); {program}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return sum(int(cost) for cost in _LINE.findall(done.stderr.partition("begin\n")[2]))


def main(arguments: argparse.Namespace) -> int:
    """Prints medians of rounds in which all programs take turns; 1 where importing costs more than it may."""
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(arguments.rounds):
        for name, program in PROGRAMS.items():
            times[name].append(microseconds(program))
    base, *_ = medians = [median(values) for values in times.values()]
    ratios = {name: value / base for name, value in zip(PROGRAMS, medians, strict=True)}
    if arguments.json:
        print(json.dumps({"base_ms": base / 1000, "limit": LIMIT, "ratios": ratios}, indent=2))
    else:
        for name, value in zip(PROGRAMS, medians, strict=True):
            print(f"{name:34} {value / 1000:8.1f} ms {ratios[name]:6.2f} x")
    return int(ratios["import trio_grpc"] >= LIMIT)


__all__ = ["HELP", "LIMIT", "add_arguments", "main"]
