"""How far trio_grpc is above what no library could go below: the same bytes over bare sockets, and protobuf alone.

The product and its floors play by turns in one sitting, in processes of their own.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import results, turns
from benchmarks.arguments import names, size_title
from benchmarks.peers import Options, RunFailedError, format_figure
from benchmarks.statistics import Ratio, median, ratio
from benchmarks.workloads import FLOOR_WORKLOADS, LIBRARIES, OURS, WORKLOADS, Workload, plays

HELP = "the distance of trio_grpc to bare sockets and to protobuf alone"
FLOOR = "floor"
BLOCKING = "floor_blocking"
#: Longer says nothing more about protobuf.
PROTOBUF_DURATION = 0.3

EPILOG = """\
raw trio   trio's TCP streams alone: as many bytes as the gRPC workload has on the wire, in the same batches. Calls in
           flight are written together and read 32 at a time; streams are written 64 KiB at a time.
blocking   blocking sockets and recv_into, where the workload has one call or stream at a time: the kernel alone
protobuf   serialising and parsing one message of the workload, in this process: ns for both together

x floor    how many times worse the product's figure is than that of raw trio: 1.00 would be the floor itself.
           The range is that of the rounds.
"""


def measure(options: Options) -> dict[str, list[dict[str, Any]]]:
    """Plays everything in each round, telling on stderr how far it is.

    Raises:
        RunFailedError: A run gave no figures.
    """
    figures: dict[str, list[dict[str, Any]]] = {}
    for round_number in range(options.rounds):
        for index, workload in enumerate(options.workloads, 1):
            head = f"[round {round_number + 1}/{options.rounds} {index}/{len(options.workloads)}] {workload.name:20}"
            print(head, end="", file=sys.stderr, flush=True)
            players = [name for name in (OURS, FLOOR, BLOCKING) if plays(LIBRARIES[name], workload)]
            key = workload.figure.value
            # Who goes first changes with the round.
            turn = round_number % len(players)
            for name in players[turn:] + players[:turn]:
                run = turns.play(LIBRARIES[name], workload, options)
                figures.setdefault(f"{workload.name} {name}", []).append(run)
                print(f"  {name} {format_figure(run[key])}", end="", file=sys.stderr, flush=True)
            ours, floor = (figures[f"{workload.name} {name}"][-1] for name in (OURS, FLOOR))
            ours["times_floor"] = distance(workload, [ours[key]], [floor[key]]).value
            print(f" {workload.unit}: {ours['times_floor']:.2f} x floor", file=sys.stderr, flush=True)
        for size in sizes(options.workloads):
            for name, work in protobuf_work(size).items():
                nanoseconds = time_work(work, min(PROTOBUF_DURATION, options.duration))
                figures.setdefault(f"protobuf {size_title(size)} {name}", []).append({"ns_per_op": nanoseconds})
    return figures


def distance(workload: Workload, ours: list[float], floor: list[float]) -> Ratio:
    """Returns how many times worse our figure is than the floor's, whichever way is better."""
    return ratio(floor, ours) if workload.higher_is_better else ratio(ours, floor)


def sizes(workloads: tuple[Workload, ...]) -> list[int]:
    """Returns the payload sizes of some workloads, each once."""
    return sorted({workload.size for workload in workloads})


def protobuf_work(size: int) -> dict[str, Callable[[], object]]:
    """Returns what is to be done with one message: serialising and parsing it."""
    from benchmarks.protos import bench_pb2

    message = bench_pb2.Message(payload=bytes(size))
    data = message.SerializeToString()
    return {"serialise": message.SerializeToString, "parse": lambda: bench_pb2.Message.FromString(data)}


def time_work(work: Callable[[], object], duration: float) -> float:
    """Returns the nanoseconds that `work` takes, measured for at least `duration` seconds."""
    clock = time.perf_counter_ns
    repeats = 0
    started = now = clock()
    end = started + duration * 1e9
    while now < end:
        # The clock is looked at once in a while only: it costs as much as an empty message.
        for _ in range(100):
            work()
        repeats += 100
        now = clock()
    return (now - started) / repeats


def table(options: Options, figures: dict[str, list[dict[str, Any]]]) -> str:
    """Writes the report."""
    titles = ("trio_grpc", "raw trio", "x floor", "blocking", "protobuf")
    lines = ["{:20} {:14} {:>10} {:>12} {:>22} {:>12} {:>12}".format("workload", "unit", *titles)]
    for workload in options.workloads:
        key = workload.figure.value
        ours, floor, blocking = (
            [run[key] for run in figures.get(f"{workload.name} {name}", [])] for name in (OURS, FLOOR, BLOCKING)
        )
        protobuf = sum(
            median([figure["ns_per_op"] for figure in figures[f"protobuf {size_title(workload.size)} {name}"]])
            for name in ("serialise", "parse")
        )
        lines.append(
            f"{workload.name:20} {workload.unit:14} {format_figure(median(ours)):>10} "
            f"{format_figure(median(floor)):>12} {distance(workload, ours, floor)!s:>22} "
            f"{format_figure(median(blocking)) if blocking else '-':>12} {protobuf:>9,.0f} ns"
        )
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `floor`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    known = {name: WORKLOADS[name] for name in FLOOR_WORKLOADS}
    chosen = tuple(workload for workload in known.values() if workload.by_default)
    parser.add_argument(
        "--workloads",
        type=names(known, "workload"),
        default=chosen,
        metavar="A,B",
        help=f"of {', '.join(known)} (default: {','.join(workload.name for workload in chosen)})",
    )
    turns.add_flags(parser, "floor", rounds=3, duration=2.0)


def main(arguments: argparse.Namespace) -> int:
    """Measures, prints the table, writes the JSON."""
    options = turns.run_options(arguments, arguments.workloads)
    try:
        figures = measure(options)
    except RunFailedError as error:
        print(f"\nfloor: {error}", file=sys.stderr)
        return 1
    print(table(options, figures))
    results.write(arguments.json, results.record("floor", turns.asked_for(options), figures))
    return 0
