"""Measures trio_grpc's own client and server with one kind of traffic: rates, latencies, CPU and allocations.

Server and client are a process each, pinned to a core each, and talk over loopback TCP; `--bufconn` joins them in one
process and in memory.  Every case is measured `--rounds` times, in new processes each time.
"""

from __future__ import annotations

import argparse
import itertools
import re
import ssl
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import allocations, results
from benchmarks.arguments import cores, default_cores, json_path, names, positive
from benchmarks.certificates import make_certificates
from benchmarks.ends import End, EndFailedError, ask, started
from benchmarks.machine import RESULTS
from benchmarks.metrics import METRICS
from benchmarks.network import NETWORKS
from benchmarks.run_end import Plan
from benchmarks.statistics import median, spread
from benchmarks.traffic import TRAFFIC, Traffic

HELP = "measure trio_grpc alone: rates, latencies, CPU and allocations of one kind of traffic"
DEFAULT_JSON = RESULTS / "run.json"
#: Seconds for a process to start and connect, and to answer when it is busy.
TIMEOUT = 30.0
#: A measurement in which nothing has ended is made longer, up to so many times --benchtime.
_LONGEST = 10
#: Allocations are counted for so many seconds at a time, until each loop has made some operations, but not for ever.
COUNTING = 0.3
_OPERATIONS_PER_LOOP = 10
#: Above this share of a core taken by other programs, a round is marked as disturbed.
_DISTURBED = 0.05
_LARGEST = 1024**3
_UNITS = {"": 1, "B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3}

EXPLANATION = f"""\
what the figures mean:
  An operation is a round trip; for `unconstrained`, a message sent or received by the client.
  TotalOps, SendOps, RecvOps  operations in a round, and messages that the client has sent and received
  ReqT/op, RespT/op           bytes of payload a second that the client has sent and received
  ..-Lat                      of round trips, as the client's application sees them; `unconstrained` has none
  Client/Server CPU/op        user and system time of that process, divided by the operations that it has seen itself;
                              with --bufconn there is one process, and CPU/op is that of both sides
  Foreign CPU                 share of a core that other programs took from the end that lost most; above 5 % a round is
                              marked while it runs, and is better repeated on a quiet machine
  Allocs/op, Bytes/op         blocks of memory that Python's allocators hand out, and their sizes, at both ends
                              together, freed again or not. Counted for {COUNTING:g} s or more after the time is up;
                              nothing else is measured then. Not in it: objects from the interpreter's free lists, and
                              what C code takes from the C library by itself (protobuf's arenas, OpenSSL, zlib).
                              In it: three integers with which a loop of ours takes the time. Needs a C compiler;
                              left out without one.
  --network                   its shim works in both processes: CPU and allocations are with it, most of all where
                              packets are many. Compare with `local`, whose shim adds nothing to the traffic.

network modes (the figures of grpc-go's benchmark; in each direction, added by each end to what it sends):
  {{networks}}
"""


def size(text: str) -> int:
    """Parses a number of bytes, such as 350, 10KB or 1MiB."""
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip(), re.IGNORECASE)
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 350, 10KB or 1MiB")
    if (value := int(match[1]) * unit) > _LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is more than 1 GiB")
    return value


def several(parse: Any) -> Any:
    """Returns an argparse type for a comma-separated list."""

    def parse_all(text: str) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(parse(part) for part in text.split(",")))

    return parse_all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `run`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    networks = "\n  ".join(
        f"{name:10}{'no shim at all' if network is None else network}" for name, network in NETWORKS.items()
    )
    parser.epilog = EXPLANATION.format(networks=networks)
    parser.add_argument(
        "--workload",
        type=names(TRAFFIC, "workload"),
        default=tuple(TRAFFIC.values()),
        metavar="A,B",
        help=f"of {', '.join(f'{one.name} ({one.title})' for one in TRAFFIC.values())} (default: all)",
    )
    parser.add_argument(
        "--calls",
        type=several(positive(int)),
        default=(100,),
        metavar="N,M",
        help="concurrent calls, or streams, on each connection (default: 100)",
    )
    for side in ("request", "response"):
        parser.add_argument(
            f"--{side}-size",
            type=several(size),
            default=(1,),
            metavar="BYTES,..",
            help=f"payload of a {side}: 350, 10KB, 1MiB, .. (default: 1)",
        )
    parser.add_argument("--connections", type=positive(int), default=1, metavar="N", help="connections (default: 1)")
    parser.add_argument(
        "--compression", choices=["off", "gzip"], default="off", help="of both directions (default: off)"
    )
    parser.add_argument(
        "--metadata",
        choices=["plain", "rich"],
        default="plain",
        help="`rich`: each call has a deadline, a traceparent of its own and an 800-byte bearer token (default: plain)",
    )
    parser.add_argument("--network", choices=list(NETWORKS), default="none", help="see below (default: none)")
    parser.add_argument("--bufconn", action="store_true", help="both ends in one process, joined in memory: no TCP")
    parser.add_argument(
        "--tls",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="with certificates made at the start (default: --no-tls)",
    )
    parser.add_argument(
        "--benchtime",
        type=positive(float),
        default=3.0,
        metavar="SECONDS",
        help="of each measurement; one in which nothing has ended by then is made longer (default: 3)",
    )
    parser.add_argument(
        "--warmup", type=positive(float), default=0.7, metavar="SECONDS", help="before each measurement (default: 0.7)"
    )
    parser.add_argument("--rounds", type=positive(int), default=3, help="rounds of everything (default: 3)")
    parser.add_argument(
        "--cores",
        type=cores,
        default=default_cores(),
        metavar="SERVER,CLIENT",
        help="cores to pin the two processes to, or `none`; --bufconn takes the second (default: the first two)",
    )
    parser.add_argument(
        "--json",
        type=json_path,
        default=DEFAULT_JSON,
        metavar="FILE",
        help="where the results go (default: benchmarks/results/run.json)",
    )


@dataclass(frozen=True)
class Case:
    """One row of the plan.

    Attributes:
        traffic: The workload.
        plan: What the ends are told.
    """

    traffic: Traffic
    plan: Plan

    def operations(self, end: Mapping[str, Any]) -> int:
        """Returns how many operations an end has seen."""
        return self.traffic.operations(end["sent"], end["received"])

    @property
    def title(self) -> str:
        """What it is called: the flags that take several values. The others are the same for all cases."""
        plan = self.plan
        return f"{plan.workload} x{plan.calls} {readable(plan.request_size)}/{readable(plan.response_size)}"


def readable(number: int) -> str:
    """Writes a size the way it would be given."""
    for unit in ("GiB", "GB", "MiB", "MB", "KiB", "KB"):
        if number and number % _UNITS[unit.upper()] == 0:
            return f"{number // _UNITS[unit.upper()]}{unit}"
    return f"{number}B"


def cases(arguments: argparse.Namespace, certificates: str | None) -> list[Case]:
    """Returns every combination of the flags that take several values."""
    return [
        Case(
            traffic,
            Plan(
                workload=traffic.name,
                calls=calls,
                connections=arguments.connections,
                request_size=request_size,
                response_size=response_size,
                gzip=arguments.compression == "gzip",
                network=arguments.network,
                rich=arguments.metadata == "rich",
                tls=certificates,
            ),
        )
        for traffic, calls, request_size, response_size in itertools.product(
            arguments.workload, arguments.calls, arguments.request_size, arguments.response_size
        )
    ]


def measure(case: Case, arguments: argparse.Namespace, counts: bool) -> dict[str, float]:
    """Plays a case once.

    Raises:
        EndFailedError: There are no figures.
    """
    with started(case.plan, arguments.cores, arguments.bufconn, TIMEOUT) as ends:
        time.sleep(arguments.warmup)
        ask(ends, "mark", TIMEOUT)
        for _ in range(_LONGEST):
            time.sleep(arguments.benchtime)
            if all(end["sent"] and end["received"] for end in ask(ends, "look", TIMEOUT)):
                break
        timed = ask(ends, "count" if counts else "mark", TIMEOUT)
        counted = count(case, ends) if counts else []
    return figures(case, timed, counted)


def count(case: Case, ends: tuple[End, ...]) -> list[dict[str, Any]]:
    """Returns what each end has told while allocations were counted, which must have begun."""
    total: list[Counter[str]] = [Counter() for _ in ends]
    enough = _OPERATIONS_PER_LOOP * case.plan.calls * case.plan.connections
    for _ in range(_LONGEST):
        time.sleep(COUNTING)
        for sums, told in zip(total, ask(ends, "count", TIMEOUT), strict=True):
            sums.update({key: told[key] for key in ("sent", "received", "allocations", "bytes")})
        if all(case.operations(sums) >= enough for sums in total):
            break
    return [dict(sums) for sums in total]


def figures(case: Case, timed: list[dict[str, Any]], counted: list[dict[str, Any]]) -> dict[str, float]:
    """Returns the figures of a round, by the keys of `METRICS`.

    Args:
        case: What was played.
        timed: What each end has told of the timed phase, the client first; of the only end, if there is one.
        counted: The same of the phase in which allocations were counted; empty without one.

    Raises:
        EndFailedError: No operation ended in the time.
    """
    client = timed[0]
    seconds = client["seconds"]
    operations = case.operations(client)
    if not all(case.operations(end) for end in timed):
        raise EndFailedError(f"no operation ended in {seconds:.2f} s: --benchtime is too short for this")
    record: dict[str, float] = {
        "total_ops": operations,
        "send_ops": client["sent"],
        "recv_ops": client["received"],
        "ops_per_second": operations / seconds,
        "request_throughput": client["sent"] * case.plan.request_size / seconds,
        "response_throughput": client["received"] * case.plan.response_size / seconds,
        **{key: client[key] for key in ("p50_us", "p90_us", "p99_us", "average_us") if key in client},
    }
    keys = ("cpu_us_per_op",) if len(timed) == 1 else ("client_cpu_us_per_op", "server_cpu_us_per_op")
    for key, end in zip(keys, timed, strict=True):
        record[key] = end["cpu"] * 1e6 / case.operations(end)
    if counted and not all(case.operations(end) for end in counted):
        raise EndFailedError("no operation ended while allocations were counted")
    if counted:
        # Each end by its own operations: the two are not told to begin at exactly the same time.
        for key, what in (("bytes_per_op", "bytes"), ("allocs_per_op", "allocations")):
            record[key] = sum(end[what] / case.operations(end) for end in counted)
    shares = [end["foreign_cpu"] / end["seconds"] for end in timed if end["foreign_cpu"] is not None]
    if shares:
        record["foreign_cpu"] = max(shares)
    return record


def table(measured: dict[str, list[dict[str, float]]]) -> str:
    """Writes the report: a line for each figure of each case."""
    lines = []
    for title, rounds in measured.items():
        lines += ["", title, f"  {'':16}{'median':>14}  {'':4}{'spread':>7}"]
        for key in METRICS:
            values = [record[key] for record in rounds if key in record]
            if values:
                metric = METRICS[key]
                lines.append(
                    f"  {metric.title:16}{_number(median(values)):>14}  {metric.unit:4}"
                    + (f"{spread(values):>7.1%}" if len(values) > 1 else "")
                )
    return "\n".join(line.rstrip() for line in lines).lstrip("\n")


def _number(value: float) -> str:
    if value >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3f}"


def main(arguments: argparse.Namespace) -> int:
    """Measures, prints the table, writes the JSON.

    Returns:
        0 if every round of every case gave figures, else 1.
    """
    if arguments.cores is None:
        print("not pinning: both processes may share a core, and figures will wander", file=sys.stderr)
    if problem := allocations.missing():
        print(f"leaving out Allocs/op and Bytes/op: {problem}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        try:
            certificates = str(make_certificates(Path(folder))) if arguments.tls else None
        except ImportError as error:
            print(f"failed: --tls needs a package that `make env` installs: {error}", file=sys.stderr)
            return 1
        measured, failures = measure_all(cases(arguments, certificates), arguments, not problem)
    if measured:
        results.write(arguments.json, results.record("run", options(arguments), measured))
        print(f"{describe(arguments)}\n\n{table(measured)}")
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


def measure_all(
    plan: Sequence[Case], arguments: argparse.Namespace, counts: bool
) -> tuple[dict[str, list[dict[str, float]]], list[str]]:
    """Plays everything, round by round, telling on stderr how far it is.

    Returns:
        The figures of each round by case, without cases that have none; and what went wrong.
    """
    measured: dict[str, list[dict[str, float]]] = {}
    failures = []
    total = arguments.rounds * len(plan)
    for index, (round_number, case) in enumerate(itertools.product(range(arguments.rounds), plan), 1):
        head = f"[{index:3}/{total}] round {round_number + 1}/{arguments.rounds} {case.title:32} "
        print(head, end="", file=sys.stderr, flush=True)
        try:
            record = measure(case, arguments, counts)
        except EndFailedError as error:
            print("FAILED", file=sys.stderr)
            failures.append(f"{case.title}: {error}")
            continue
        measured.setdefault(case.title, []).append(record)
        p50 = f"  p50 {_number(record['p50_us'])} µs" if "p50_us" in record else ""
        disturbed = ""
        if record.get("foreign_cpu", 0.0) > _DISTURBED:
            disturbed = f"  DISTURBED by other programs: {record['foreign_cpu']:.0%} of a core"
        print(f"{_number(record['ops_per_second']):>10} ops/s{p50}{disturbed}", file=sys.stderr, flush=True)
    return measured, failures


def options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the flags for the file."""
    flags = {key: value for key, value in vars(arguments).items() if key not in ("command", "json")}
    return {**flags, "workload": [traffic.name for traffic in arguments.workload]}


def describe(arguments: argparse.Namespace) -> str:
    """Says under which circumstances all cases were measured."""
    network = NETWORKS[arguments.network]
    parts = [
        "one process, in memory: CPU and allocations are those of both sides together"
        if arguments.bufconn
        else "two processes over loopback TCP",
        f"{arguments.connections} connection{'s' if arguments.connections > 1 else ''}",
        f"network {arguments.network}{f' ({network})' if network else ''}",
        f"TLS ({ssl.OPENSSL_VERSION})" if arguments.tls else "no TLS",
        f"compression {arguments.compression}",
        f"{arguments.metadata} metadata",
        f"{arguments.rounds} x {arguments.benchtime:g} s",
    ]
    return "; ".join(parts)
