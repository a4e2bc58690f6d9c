"""Runs every library through every workload in one sitting, side by side, and reports ratios and targets.

Each run is a fresh server process and a fresh client process, pinned to one core each, talking over loopback TCP.
Rounds are interleaved (every library plays a workload before any plays the next), so that a change in the machine's
mood meets all of them.  What a workload is belongs to `benchmarks.workloads`, the sums to `benchmarks.statistics`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.arguments import add_cores, add_retries, json_path, names, positive
from benchmarks.certificates import make_certificates
from benchmarks.machine import RESULTS, ROOT, versions
from benchmarks.results import record, write
from benchmarks.setup import go_versions
from benchmarks.statistics import Ratio, median, passes, ratio, spread
from benchmarks.workloads import (
    LIBRARIES,
    MEBIBYTE,
    OURS,
    WORKLOADS,
    Against,
    Figure,
    Library,
    Shape,
    Target,
    Workload,
    plays,
)

DEFAULT_JSON = RESULTS / "peers.json"
SERVER_START_TIMEOUT = 20.0
# Beyond warm-up and duration: start-up, samples of a starved call, one slow close.
RUN_GRACE = 75.0
CLOSE_TIMEOUT = 5.0
SLOWEST_CALLS_PER_SECOND = 2000
# Above this share of either core taken by other programs, a run is marked as disturbed.
DISTURBED = 0.05
MALLOC_KEEP = {"MALLOC_TRIM_THRESHOLD_": "268435456", "MALLOC_MMAP_THRESHOLD_": "134217728"}


class RunFailedError(Exception):
    """One run gave no figures; the text says why."""


@dataclass(frozen=True)
class Options:
    """What was asked for on the command line.

    Attributes:
        workloads: In order.
        libraries: In order, without those that cannot run here.
        rounds: How often everything is measured.
        duration: Seconds of each measurement.
        warmup: Seconds before each measurement.
        calls: Calls of `million`.
        pause: Seconds that `slow_reader` pauses.
        cores: The server's and the client's core; None leaves both to the scheduler.
        malloc: Whether the C allocator keeps its default settings or is told to keep memory.
        retries: How often a run that other programs disturbed is repeated.
        json_path: Where the results go.
        certificates: The folder of certificates for workloads over TLS; None until there is one.
    """

    workloads: tuple[Workload, ...]
    libraries: tuple[Library, ...]
    rounds: int
    duration: float
    warmup: float
    calls: int
    pause: float
    cores: tuple[int, int] | None
    malloc: str
    retries: int
    json_path: Path
    certificates: Path | None = None


@dataclass
class Results:
    """Every run of one sitting, by workload and library, in round order."""

    runs: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, workload: Workload, library: Library, run: dict[str, Any]) -> None:
        """Adds the figures of one run."""
        self.runs.setdefault(workload.name, {}).setdefault(library.name, []).append(run)

    def figures(self, workload: Workload, library: str, figure: Figure) -> list[float]:
        """Returns one figure of one library, by round; empty if it has none."""
        runs = self.runs.get(workload.name, {}).get(library, [])
        return [run[figure.value] for run in runs if figure.value in run]

    def best_peer(self, workload: Workload, figure: Figure, higher_is_better: bool) -> str | None:
        """Returns the peer with the best median, or None if no peer was measured."""
        medians = {
            name: median(values)
            for name, library in LIBRARIES.items()
            if library.is_peer and (values := self.figures(workload, name, figure))
        }
        if not medians:
            return None
        return (max if higher_is_better else min)(medians, key=lambda name: medians[name])


def environment_python(library: Library) -> str:
    """Returns the Python that runs `library`."""
    if library.environment is None:
        return sys.executable
    return str(ROOT / library.environment / "bin" / "python")


def missing(library: Library) -> str | None:
    """Says why `library` cannot run here, or None if it can."""
    for program in library.programs:
        if not (ROOT / program).exists():
            return f"{program} is missing; `python -m benchmarks setup` builds it, with Go"
    python = environment_python(library)
    if not Path(python).exists():
        return f"its environment {library.environment} is missing; `python -m benchmarks setup` makes it"
    if not library.requires:
        return None
    probe = subprocess.run(
        [python, "-c", f"import {library.requires}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if probe.returncode:
        last = (probe.stderr.strip().splitlines() or ["?"])[-1]
        return f"`import {library.requires}` fails with {python}: {last}"
    return None


def _command(library: Library, end: str, workload: Workload, core: int | None, options: Options) -> list[str]:
    command = [environment_python(library), "-m", f"benchmarks.libraries.{library.module}", end]
    command += ["--workload", workload.name, *library.arguments]
    # Commands that sweep over these vary a workload without giving it a new name.
    command += ["--concurrency", str(workload.concurrency), "--size", str(workload.size)]
    if core is not None:
        command += ["--core", str(core)]
    if workload.tls:
        command += ["--certificates", str(options.certificates)]
    return command


def _environment(options: Options) -> dict[str, str] | None:
    return {**os.environ, **MALLOC_KEEP} if options.malloc == "keep" else None


def _read_line(process: subprocess.Popen[str], timeout: float, what: str, errors: Any) -> str:
    """Reads the first line that `process` prints, or explains why there is none."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    assert process.stdout is not None
    stdout = process.stdout
    threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
    try:
        line = lines.get(timeout=timeout)
    except queue.Empty:
        raise RunFailedError(f"{what} said nothing for {timeout:.0f} s") from None
    if not line.strip():
        process.wait(CLOSE_TIMEOUT)
        errors.seek(0)
        tail = errors.read().strip().splitlines()[-1:] or ["it printed nothing"]
        raise RunFailedError(f"{what} ended with code {process.returncode}: {tail[0]}")
    return line


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(CLOSE_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


def run_once(
    library: Library, workload: Workload, options: Options, on_started: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Plays one workload with one library, in two new processes.

    Args:
        library: The library.
        workload: The workload.
        options: The rest.
        on_started: Told the ids of the server's and the client's process, while they play.

    Raises:
        RunFailedError: No figures came.
    """
    server_core, client_core = options.cores or (None, None)
    with tempfile.TemporaryFile("w+") as errors:
        server = subprocess.Popen(
            _command(library, "server", workload, server_core, options),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=_environment(options),
        )
        try:
            port = int(_read_line(server, SERVER_START_TIMEOUT, "server", errors))
            command = _command(library, "client", workload, client_core, options)
            command += ["--target", f"127.0.0.1:{port}", "--server-pid", str(server.pid)]
            command += ["--duration", str(options.duration), "--warmup", str(options.warmup)]
            command += ["--calls", str(options.calls), "--pause", str(options.pause)]
            client = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, env=_environment(options)
            )
            try:
                if on_started is not None:
                    on_started(server.pid, client.pid)
                timeout = options.warmup + options.duration + RUN_GRACE
                if workload.shape is Shape.MILLION:
                    timeout += options.calls / SLOWEST_CALLS_PER_SECOND
                elif workload.shape is Shape.SLOW_READER:
                    timeout += options.pause
                run: dict[str, Any] = json.loads(_read_line(client, timeout, "client", errors))
                try:
                    client.wait(CLOSE_TIMEOUT)
                except subprocess.TimeoutExpired:
                    run["note"] = f"the client did not end within {CLOSE_TIMEOUT:.0f} s of its figures"
            finally:
                _end(client)
        finally:
            _end(server)
    return run


def run_undisturbed(library: Library, workload: Workload, options: Options) -> dict[str, Any]:
    """Plays one workload, again if other programs took too much of a core; the least disturbed run counts.

    Which run counts never depends on its figures.
    """
    best = run_once(library, workload, options)
    for attempt in range(options.retries):
        if best.get("foreign_cpu", 0.0) <= DISTURBED or workload.once:
            break
        print("~", end="", file=sys.stderr, flush=True)
        # A moment for whatever it was to end.
        time.sleep(0.5 * (attempt + 1))
        best = min(best, run_once(library, workload, options), key=lambda run: run.get("foreign_cpu", 0.0))
    return best


def measure(options: Options) -> Results:
    """Runs everything, telling on stderr how far it is."""
    results = Results()
    plan = [
        (round_number, workload, library)
        for round_number in range(options.rounds)
        for workload in options.workloads
        # Each round begins with another library, so that none always runs after the same neighbour.
        for library in _rotated(options.libraries, round_number)
        if plays(library, workload) and not (workload.once and round_number)
    ]
    started = time.monotonic()
    for index, (round_number, workload, library) in enumerate(plan, 1):
        head = (
            f"[{index:3}/{len(plan)}] round {round_number + 1}/{options.rounds} {workload.name:18} {library.name:14} "
        )
        print(head, end="", file=sys.stderr, flush=True)
        try:
            run = run_undisturbed(library, workload, options)
        except RunFailedError as error:
            results.failures.append(
                {"workload": workload.name, "library": library.name, "round": round_number, "error": str(error)}
            )
            print(f"FAILED: {error}", file=sys.stderr, flush=True)
            continue
        results.add(workload, library, run)
        load = f"CPU client {run['client_cpu']:.0%} server {run.get('server_cpu', 0.0):.0%}"
        value = format_figure(run.get(workload.figure.value, 0.0))
        if run.get("foreign_cpu", 0.0) > DISTURBED:
            load += f" DISTURBED by other programs: {run['foreign_cpu']:.0%}"
        print(f"{value:>10} {workload.unit:14} {load}", file=sys.stderr, flush=True)
    print(f"measured in {time.monotonic() - started:.0f} s", file=sys.stderr)
    return results


def _rotated(libraries: tuple[Library, ...], by: int) -> tuple[Library, ...]:
    by %= len(libraries)
    return libraries[by:] + libraries[:by]


def format_figure(value: float) -> str:
    """Writes a figure with three or more significant digits and no more decimals than those need."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


@dataclass(frozen=True)
class Verdict:
    """What became of one target.

    Attributes:
        workload: The workload's name.
        text: The target in words.
        measured: What was measured, in words.
        passed: None if it could not be judged.
    """

    workload: str
    text: str
    measured: str
    passed: bool | None


def judge(results: Results, workload: Workload, target: Target) -> Verdict:
    """Compares our figure with a target."""
    relation = "at least" if target.at_least else "at most"
    ours = results.figures(workload, OURS, target.figure)
    if target.against is Against.NUMBER:
        text = f"{target.figure.value} {relation} {target.bound:g}"
        if not ours:
            return Verdict(workload.name, text, "not measured", None)
        value = median(ours)
        return Verdict(workload.name, text, format_figure(value), passes(value, target.bound, target.at_least))
    peer: str | None = target.against.value
    played = workload
    if target.against is Against.BEST_PEER:
        peer = results.best_peer(workload, target.figure, target.at_least)
    elif target.against is Against.OUR_OTHER:
        peer, played = OURS, WORKLOADS[target.other]
    text = f"{target.figure.value} {relation} {target.bound:g} x {target.against.value} {target.other}".rstrip()
    theirs = results.figures(played, peer, target.figure) if peer else []
    measured = _ratio(ours, theirs)
    if measured is None:
        return Verdict(workload.name, text, "not measured", None)
    passed = passes(measured.value, target.bound, target.at_least)
    words = f"{measured} of {target.other or peer}"
    # Where a core is the limit, the CPU that a busier side spends on one operation says the same as the rate does,
    # and says it on a busy machine too.
    if peer and target.figure in (Figure.RATE, Figure.MEGABYTES) and workload.size < MEBIBYTE:
        own = _busier_side(results, workload, OURS)
        other = _busier_side(results, played, peer)
        if own and other:
            words += f"; by CPU per operation {other / own:.2f}"
    return Verdict(workload.name, text, words, passed)


def _busier_side(results: Results, workload: Workload, library: str) -> float:
    """Returns the CPU time of one operation on the side that needs more of it, in µs."""
    runs = results.runs.get(workload.name, {}).get(library, [])
    return max(
        (median(values) if (values := [run[key] for run in runs if key in run]) else 0.0)
        for key in ("client_cpu_us_per_op", "server_cpu_us_per_op")
    )


def _ours_to(results: Results, workload: Workload, library: str) -> Ratio | None:
    ours = results.figures(workload, OURS, workload.figure)
    theirs = results.figures(workload, library, workload.figure)
    return _ratio(ours, theirs)


def _ratio(ours: list[float], theirs: list[float]) -> Ratio | None:
    """Returns a ratio, or None if one side was not measured, or got nothing done."""
    try:
        return ratio(ours, theirs)
    except ValueError:
        return None


def table(results: Results, options: Options) -> str:
    """Writes the report: one block per workload, then the targets."""
    lines: list[str] = []
    for workload in options.workloads:
        runs = results.runs.get(workload.name, {})
        if not runs:
            continue
        direction = "higher is better" if workload.higher_is_better else "lower is better"
        lines += ["", f"{workload.name}: {workload.title} ({direction})"]
        lines.append(
            f"  {'library':14} {workload.unit:>14} {'spread':>7} {'p99 µs':>10} "
            f"{'client µs/op':>13} {'server µs/op':>13}   ours / it"
        )
        for name in (library.name for library in options.libraries if library.name in runs):
            values = results.figures(workload, name, workload.figure)
            if not values:
                continue
            p99 = [run["p99_us"] for run in runs[name] if "p99_us" in run]
            cpu = [
                [run[key] for run in runs[name] if key in run]
                for key in ("client_cpu_us_per_op", "server_cpu_us_per_op")
            ]
            against = _ours_to(results, workload, name) if name != OURS else None
            cells = [format_figure(median(column)) if column else "" for column in (p99, *cpu)]
            lines.append(
                f"  {name:14} {format_figure(median(values)):>14} {spread(values):>7.0%} {cells[0]:>10} "
                f"{cells[1]:>13} {cells[2]:>13}   {against or ''}{_aside(LIBRARIES[name])}"
            )
        best = results.best_peer(workload, workload.figure, workload.higher_is_better)
        if best is not None and (against := _ours_to(results, workload, best)) is not None:
            lines.append(f"  ours / best Python peer ({best}): {against}")
        lines += _notes(runs)
    verdicts = [judge(results, workload, target) for workload in options.workloads for target in workload.targets]
    if verdicts:
        lines += ["", "targets"]
    for verdict in verdicts:
        word = {True: "PASS", False: "FAIL", None: " -- "}[verdict.passed]
        lines.append(f"  {word}  {verdict.workload:18} {verdict.text:54} {verdict.measured}")
    shares = [
        run.get("foreign_cpu", 0.0)
        for by_library in results.runs.values()
        for runs in by_library.values()
        for run in runs
    ]
    if disturbed := sum(share > DISTURBED for share in shares):
        lines.append(
            f"  {disturbed} of {len(shares)} runs lost more than {DISTURBED:.0%} of a core to other programs "
            f"(at worst {max(shares):.0%}): repeat on a quiet machine before believing a close call"
        )
    for failure in results.failures:
        lines.append(
            f"  run failed: round {failure['round'] + 1} {failure['workload']} {failure['library']}: {failure['error']}"
        )
    return "\n".join(lines).lstrip("\n")


def _aside(library: Library) -> str:
    return f"  ({library.reference})" if library.reference else ""


def _notes(runs: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Returns what a block has to say beyond its columns: memory runs tell their course."""
    lines = []
    for name, by_round in runs.items():
        last = by_round[-1]
        if "rss_peak_mib" in last:
            for side, peak in last["rss_peak_mib"].items():
                lines.append(
                    f"  {name} {side} RSS: {last['rss_before_mib'][side]:.1f} MiB before, {peak:.1f} at the peak"
                )
            lines.append(f"  {name} growth while paused: {last['rss_growth_paused_mib']:.2f} MiB")
            lines.append(f"  {name} resumed at {last['resumed_megabytes_per_second']:.0f} MB/s")
        if "rates_per_tenth" in last:
            rates = " ".join(f"{rate:,.0f}" for rate in last["rates_per_tenth"])
            lines.append(f"  {name} calls/s per tenth: {rates}")
            for side in ("client", "server"):
                memory = " ".join(f"{value:.1f}" for value in last[f"{side}_rss_mib_per_tenth"])
                lines.append(f"  {name} {side} RSS MiB per tenth: {memory}")
        if "note" in last:
            lines.append(f"  {name}: {last['note']}")
    return lines


def _versions(library: Library) -> dict[str, str]:
    return go_versions() if library.programs else versions(environment_python(library))


def as_json(results: Results, options: Options) -> dict[str, Any]:
    """Returns everything that goes to disk: circumstances, every run as a round of its case, medians, verdicts."""
    medians = {
        workload.name: {
            library: {"figure": workload.figure.value, "median": median(values), "spread": spread(values)}
            for library in results.runs.get(workload.name, {})
            if (values := results.figures(workload, library, workload.figure))
        }
        for workload in options.workloads
    }
    verdicts = [judge(results, workload, target) for workload in options.workloads for target in workload.targets]
    asked_for = {
        "rounds": options.rounds,
        "duration": options.duration,
        "warmup": options.warmup,
        "calls": options.calls,
        "pause": options.pause,
        "cores": options.cores,
        "malloc": options.malloc,
        "retries": options.retries,
    }
    cases = {
        f"{workload} {library}": runs
        for workload, by_library in results.runs.items()
        for library, runs in by_library.items()
    }
    return {
        **record("peers", asked_for, cases),
        # Not all of them run in this environment.
        "versions": {library.name: _versions(library) for library in options.libraries},
        "failures": results.failures,
        "medians": medians,
        "targets": [
            {"workload": v.workload, "target": v.text, "measured": v.measured, "passed": v.passed} for v in verdicts
        ],
    }


HELP = "compare with other gRPC libraries, in one sitting"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `peers`."""
    workloads = [name for name, workload in WORKLOADS.items() if workload.by_default]
    libraries = [name for name, library in LIBRARIES.items() if library.by_default]
    parser.add_argument(
        "--workloads",
        type=names(WORKLOADS, "workload"),
        default=tuple(WORKLOADS[name] for name in workloads),
        metavar="A,B",
        help=f"of {', '.join(WORKLOADS)} (default: {','.join(workloads)})",
    )
    parser.add_argument(
        "--libraries",
        type=names(LIBRARIES, "library"),
        default=tuple(LIBRARIES[name] for name in libraries),
        metavar="X,Y",
        help=f"of {', '.join(LIBRARIES)} (default: {','.join(libraries)})",
    )
    parser.add_argument("--rounds", type=positive(int), default=3, help="rounds of everything (default: 3)")
    parser.add_argument(
        "--duration", type=positive(float), default=3.0, metavar="SECONDS", help="of each measurement (default: 3)"
    )
    parser.add_argument(
        "--warmup", type=positive(float), default=0.7, metavar="SECONDS", help="before each measurement (default: 0.7)"
    )
    parser.add_argument("--calls", type=positive(int), default=1_000_000, help="calls of `million` (default: 1000000)")
    parser.add_argument(
        "--pause", type=positive(float), default=6.0, metavar="SECONDS", help="of `slow_reader` (default: 6)"
    )
    add_cores(parser)
    add_retries(parser)
    parser.add_argument(
        "--malloc",
        choices=["default", "keep"],
        default="default",
        help="`keep` tells glibc to keep freed memory instead of giving it back to the system after each large "
        "message, for every library; page faults otherwise rule the 1 MiB workloads (default: default)",
    )
    parser.add_argument(
        "--json",
        type=json_path,
        default=DEFAULT_JSON,
        metavar="FILE",
        help="where the results go (default: benchmarks/results/peers.json)",
    )


def main(arguments: argparse.Namespace) -> int:
    """Measures, prints the table, writes the JSON.

    Returns:
        0 if every run gave figures; 1 if one failed or nothing could run.
    """
    able = []
    for library in arguments.libraries:
        reason = missing(library)
        if reason is None:
            able.append(library)
        else:
            print(f"skipping {library.name}: {reason}", file=sys.stderr)
    if not able:
        print("no library left to measure", file=sys.stderr)
        return 1
    options = Options(
        workloads=arguments.workloads,
        libraries=tuple(able),
        rounds=arguments.rounds,
        duration=arguments.duration,
        warmup=arguments.warmup,
        calls=arguments.calls,
        pause=arguments.pause,
        cores=arguments.cores,
        malloc=arguments.malloc,
        retries=arguments.retries,
        json_path=arguments.json,
    )
    if options.cores is None:
        print("not pinning: both processes may share cores, and figures will wander", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        if any(workload.tls for workload in options.workloads):
            options = dataclasses.replace(options, certificates=make_certificates(Path(folder)))
        results = measure(options)
    write(options.json_path, as_json(results, options))
    print(table(results, options))
    return 1 if results.failures else 0
