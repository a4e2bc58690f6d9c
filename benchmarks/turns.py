"""What commands share that let libraries play by turns: their flags, and what `peers.run_once` wants to know."""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.arguments import add_cores, json_path, positive
from benchmarks.machine import RESULTS
from benchmarks.peers import Options, RunFailedError, run_once
from benchmarks.workloads import Library, Workload


def _even(text: str) -> int:
    value: int = positive(int)(text)
    if value % 2:
        raise argparse.ArgumentTypeError(f"{text!r} is odd: who goes first alternates, so rounds come in twos")
    return value


def add_flags(
    parser: argparse.ArgumentParser, command: str, *, rounds: int, duration: float, even: bool = False
) -> None:
    """Adds the flags that say how long and where to measure, and where the results go."""
    parser.add_argument(
        "--rounds",
        type=_even if even else positive(int),
        default=rounds,
        help=f"rounds of everything{', an even number' if even else ''} (default: {rounds})",
    )
    parser.add_argument(
        "--duration",
        type=positive(float),
        default=duration,
        metavar="SECONDS",
        help=f"of each measurement (default: {duration:g})",
    )
    parser.add_argument(
        "--warmup", type=positive(float), default=0.5, metavar="SECONDS", help="before each measurement (default: 0.5)"
    )
    add_cores(parser)
    parser.add_argument(
        "--json",
        type=json_path,
        default=RESULTS / f"{command}.json",
        metavar="FILE",
        help=f"where the results go (default: benchmarks/results/{command}.json)",
    )


def run_options(arguments: argparse.Namespace, workloads: tuple[Workload, ...]) -> Options:
    """Returns what the flags say, for `peers.run_once`."""
    return Options(
        workloads=workloads,
        libraries=(),
        rounds=arguments.rounds,
        duration=arguments.duration,
        warmup=arguments.warmup,
        # Of workloads that are no rates; none of these commands plays them unless told to.
        calls=100_000,
        pause=3.0,
        cores=arguments.cores,
        malloc="default",
        retries=0,
        json_path=arguments.json,
    )


def play(library: Library, workload: Workload, options: Options) -> dict[str, Any]:
    """Plays one workload with one library, in two new processes.

    Raises:
        RunFailedError: No figures came, or nothing got through.
    """
    run = run_once(library, workload, options)
    if not run[workload.figure.value]:
        raise RunFailedError(f"{library.name}: nothing came through in {options.duration:g} s; try more --duration")
    return run


def asked_for(options: Options) -> dict[str, Any]:
    """Returns the flags for the record."""
    return {
        "workloads": [workload.name for workload in options.workloads],
        "rounds": options.rounds,
        "duration": options.duration,
        "warmup": options.warmup,
        "cores": options.cores,
    }
