"""`python -m benchmarks memory`: what an idle connection, an idle stream and a slow reader cost in resident memory.

Server and client are processes of their own, new for each case and round.  What one connection costs is the
difference of resident memory (RSS) before and after many of them, idle for two seconds and both after a garbage
collection, divided by their number.  RSS is what the process has in memory of its own: what the kernel keeps for each
socket is not in it.
"""

from __future__ import annotations

import argparse
import json
import resource
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import results
from benchmarks.arguments import count, counts, json_path, positive
from benchmarks.machine import RESULTS, ROOT
from benchmarks.memory_end import rss
from benchmarks.statistics import median, passes, spread
from benchmarks.workloads import MEBIBYTE

HELP = "resident memory of idle connections, idle streams and slow readers"

#: What an idle connection may cost a server, in bytes.
TARGET = 25_000
SIDES = ("server", "client")
# Made before the first look at memory, so that what is only made once is not counted.
WARM_UP = 10
# Streams of one connection: what a server of ours allows by default.
STREAMS_PER_CONNECTION = 1000
# Files that a process has open besides its connections.
OTHER_FILES = 64
START_TIMEOUT = 30.0
ANSWER_TIMEOUT = 60.0
SLOWEST_OPENS_PER_SECOND = 20
SAMPLE_SECONDS = 0.01
# Idle is what has been so for a while: a server lets go of idle handlers after a second.
SETTLE_SECONDS = 2.0


class MeasurementError(Exception):
    """A case gave no figures; the text says why."""


class End:
    """The process of one side, seen from here.

    Args:
        side: `server` or `client`.
        arguments: Further arguments of its command line.
    """

    def __init__(self, side: str, *arguments: str) -> None:
        self.side = side
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- closed by close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.memory_end", side, *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self.pid = self._process.pid

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._errors):
            assert file is not None
            file.close()

    def read(self, timeout: float, meanwhile: Callable[[], None] | None = None) -> Any:
        """Returns the next answer, and calls `meanwhile` again and again until it is there.

        Raises:
            MeasurementError: The process has ended, or says nothing.
        """
        stdout = self._process.stdout
        assert stdout is not None
        give_up_at = time.monotonic() + timeout
        while not select.select([stdout], [], [], SAMPLE_SECONDS)[0]:
            if meanwhile is not None:
                meanwhile()
            if time.monotonic() > give_up_at:
                raise MeasurementError(f"the {self.side} said nothing for {timeout:.0f} s")
        if not (line := stdout.readline()):
            code = self._process.wait()
            self._errors.seek(0)
            said = (self._errors.read().strip().splitlines() or ["it printed nothing"])[-1]
            raise MeasurementError(f"the {self.side} ended with code {code}: {said.strip()}")
        return json.loads(line)

    def ask(
        self,
        command: str,
        *arguments: int,
        timeout: float = ANSWER_TIMEOUT,
        meanwhile: Callable[[], None] | None = None,
    ) -> Any:
        """Has the process do something, and returns its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(" ".join([command, *map(str, arguments)]).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # It has ended; reading tells why.
        return self.read(timeout, meanwhile)


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    Attributes:
        name: What the table and the JSON call it.
        measure: Takes both ends, which are new, and says which of them is looked into; returns the figures by side.
        most_files: Files that either end has open at once.
        has_target: Whether the target for idle connections is about it.
    """

    name: str
    measure: Callable[[dict[str, End], str | None], dict[str, dict[str, Any]]]
    most_files: int
    has_target: bool = False


def each(before: int, after: int, number: int) -> dict[str, Any]:
    """Returns the figures of one side: RSS before and after `number` things were made, in bytes."""
    return {
        "kib_each": (after - before) / number / 1024,
        "rss_before_mib": before / MEBIBYTE,
        "rss_after_mib": after / MEBIBYTE,
    }


def _open_timeout(number: int) -> float:
    return ANSWER_TIMEOUT + number / SLOWEST_OPENS_PER_SECOND


def _difference(
    ends: dict[str, End], traced: str | None, number: int, make: Callable[[], None]
) -> dict[str, dict[str, Any]]:
    """Returns what `make` adds to each side, which makes `number` things."""
    if traced:
        ends[traced].ask("trace")
    before = {side: end.ask("rss") for side, end in ends.items()}
    make()
    time.sleep(SETTLE_SECONDS)
    figures = {side: each(before[side], end.ask("rss"), number) for side, end in ends.items()}
    if traced:
        figures[traced]["breakdown"] = ends[traced].ask("report", number)
    return figures


def connections(number: int, with_call: bool) -> Case:
    """Returns the case of `number` idle connections."""

    def measure(ends: dict[str, End], traced: str | None) -> dict[str, dict[str, Any]]:
        client = ends["client"]

        def connect(number: int) -> None:
            client.ask("connect", number, int(with_call), timeout=_open_timeout(number))

        connect(WARM_UP)
        return _difference(ends, traced, number, lambda: connect(number))

    name = f"{number:,} idle connections" + ("" if with_call else ", no call made")
    return Case(name, measure, number + WARM_UP + OTHER_FILES, has_target=with_call)


def streams(number: int) -> Case:
    """Returns the case of `number` idle streams, on as few connections as can have them."""
    shares = [min(STREAMS_PER_CONNECTION, number - first) for first in range(0, number, STREAMS_PER_CONNECTION)]

    def measure(ends: dict[str, End], traced: str | None) -> dict[str, dict[str, Any]]:
        client = ends["client"]
        # The first connection is for the warm-up alone.
        client.ask("connect", len(shares) + 1, 1)
        client.ask("streams", WARM_UP, 0)

        def open_all() -> None:
            for connection, share in enumerate(shares, 1):
                client.ask("streams", share, connection, timeout=_open_timeout(share))

        return _difference(ends, traced, number, open_all)

    on = "one connection" if len(shares) == 1 else f"{len(shares)} connections"
    return Case(f"{number:,} idle streams on {on}", measure, len(shares) + 1 + OTHER_FILES)


def slow_reader(mebibytes: int, pause: float) -> Case:
    """Returns the case of a stream of `mebibytes` to a client that stops reading for `pause` seconds."""

    def measure(ends: dict[str, End], traced: str | None) -> dict[str, dict[str, Any]]:
        client = ends["client"]
        client.ask("connect", 1, 1)
        client.ask("read_slowly", 4, MEBIBYTE, 0)
        before = {side: end.ask("rss") for side, end in ends.items()}
        peaks = dict(before)

        def sample() -> None:
            for side, end in ends.items():
                peaks[side] = max(peaks[side], rss(end.pid))

        timeout = ANSWER_TIMEOUT + pause + mebibytes / SLOWEST_OPENS_PER_SECOND
        taken = client.ask("read_slowly", mebibytes, MEBIBYTE, round(pause * 1000), timeout=timeout, meanwhile=sample)
        if taken != mebibytes:
            raise MeasurementError(f"{taken} messages came of {mebibytes}")
        return {
            side: {
                "peak_mib": peaks[side] / MEBIBYTE,
                "rss_growth_mib": (peaks[side] - before[side]) / MEBIBYTE,
                "rss_before_mib": before[side] / MEBIBYTE,
            }
            for side in ends
        }

    return Case(f"slow reader of {mebibytes:,} MiB", measure, OTHER_FILES)


def play(case: Case, traced: str | None) -> dict[str, dict[str, Any]]:
    """Measures one case with two new processes.

    Raises:
        MeasurementError: It gave no figures.
    """
    server = End("server")
    try:
        client = End("client", server.read(START_TIMEOUT))
        try:
            return case.measure({"server": server, "client": client}, traced)
        finally:
            client.close()
    finally:
        server.close()


def allow_open_files(needed: int) -> str | None:
    """Raises the limit of open files, which the processes started here inherit.

    Returns:
        What is missing; None if nothing is.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    try:
        if hard != resource.RLIM_INFINITY and hard < needed:
            # Only a superuser may.
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, needed))
        else:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (ValueError, OSError):
        return f"{needed:,} open files for each process, and the limit here is {max(soft, hard):,}"
    return None


def _in_short(figure: dict[str, Any]) -> str:
    return f"{figure['kib_each']:.1f} KiB each" if "kib_each" in figure else f"{figure['peak_mib']:.1f} MiB at the peak"


def table(cases: dict[str, list[dict[str, Any]]], judged: set[str]) -> str:
    """Writes the report.

    Args:
        cases: The figures of each round by case, where a case is one side of what was measured.
        judged: Those cases that the target is about.
    """
    width = max(map(len, cases))
    lines: list[str] = []
    for title, key, unit in (("what is idle", "kib_each", "KiB each"), ("who waits", "peak_mib", "MiB peak")):
        rows = {name: rounds for name, rounds in cases.items() if key in rounds[0]}
        if not rows:
            continue
        last = "after" if key == "kib_each" else "growth"
        lines += ["", f"{title:{width}} {unit:>10} {'spread':>7} {'before':>10} {last:>10}"]
        for name, rounds in rows.items():
            values = [one[key] for one in rounds]
            before, after = (
                f"{median([one[other] for one in rounds]):,.1f} MiB"
                for other in ("rss_before_mib", "rss_after_mib" if key == "kib_each" else "rss_growth_mib")
            )
            lines.append(f"{name:{width}} {median(values):>10.1f} {spread(values):>7.0%} {before:>10} {after:>10}")
    if targets := [name for name in cases if name in judged]:
        lines += ["", f"target: an idle connection costs a server at most {TARGET:,} bytes"]
        for name in targets:
            measured = median([one["kib_each"] for one in cases[name]]) * 1024
            word = "PASS" if passes(measured, TARGET, at_least=False) else "FAIL"
            lines.append(f"  {word}  {name}: {measured:,.0f} bytes")
    return "\n".join(lines).lstrip("\n")


def breakdown_table(name: str, breakdown: dict[str, Any]) -> str:
    """Writes where the Python allocations of one thing were made."""
    lines = ["", f"{name}: {breakdown['bytes']:,.0f} bytes of Python allocations each"]
    for key, title in (
        ("files", "by file"),
        ("lines", "by line"),
        ("types", "objects by type, without what they hold"),
    ):
        lines.append(f"  {'bytes':>8} {'pieces':>7}  {title}")
        lines += [
            f"  {row['bytes']:>8,.0f} {row['pieces']:>7.2f}  {row['where']}"
            + (f"    {row['text']}" if "text" in row else "")
            for row in breakdown[key]
            if round(row["bytes"]) > 0
        ]
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `memory`."""
    parser.add_argument(
        "--connections",
        type=counts,
        default=(1000, 10_000),
        metavar="N,M",
        help="how many idle connections; 0 leaves them out (default: 1000,10000)",
    )
    parser.add_argument(
        "--no-call", action="store_true", help="measure the connections also without the one call that each makes"
    )
    parser.add_argument(
        "--streams",
        type=counts,
        default=(1000,),
        metavar="N,M",
        help=f"how many idle streams, {STREAMS_PER_CONNECTION} to a connection; 0 leaves them out (default: 1000)",
    )
    parser.add_argument(
        "--slow-reader",
        type=count,
        default=1024,
        metavar="MIB",
        help="how much to stream to a client that stops reading; 0 leaves it out (default: 1024)",
    )
    parser.add_argument(
        "--pause", type=positive(float), default=6.0, metavar="SECONDS", help="how long it stops (default: 6)"
    )
    parser.add_argument("--rounds", type=positive(int), default=3, help="rounds of everything (default: 3)")
    parser.add_argument(
        "--breakdown",
        nargs="?",
        choices=SIDES,
        const="server",
        metavar="SIDE",
        help="also tell where the memory of one connection or stream is allocated, on the `server` (default) or the "
        "`client`; tracing costs memory itself, so believe no RSS of such a run",
    )
    parser.add_argument(
        "--json",
        type=json_path,
        default=RESULTS / "memory.json",
        metavar="FILE",
        help="where the results go (default: benchmarks/results/memory.json)",
    )


def main(arguments: argparse.Namespace) -> int:
    """Measures, prints the table, writes the JSON.

    Returns:
        0 if every case gave figures, else 1.
    """
    kinds = (True, False) if arguments.no_call else (True,)
    plan = [connections(number, with_call) for number in arguments.connections for with_call in kinds]
    plan += [streams(number) for number in arguments.streams]
    if arguments.slow_reader:
        plan.append(slow_reader(arguments.slow_reader, arguments.pause))
    if not plan:
        print("nothing to measure: --connections, --streams and --slow-reader are all 0", file=sys.stderr)
        return 1
    if missing := allow_open_files(max(case.most_files for case in plan)):
        print(f"missing: {missing}; raise it (ulimit -Hn) or ask for less (--connections)", file=sys.stderr)
        return 1
    cases: dict[str, list[dict[str, Any]]] = {}
    failures = 0
    for round_number in range(arguments.rounds):
        for index, case in enumerate(plan, 1):
            head = f"[{index}/{len(plan)}] round {round_number + 1}/{arguments.rounds} {case.name:40} "
            print(head, end="", file=sys.stderr, flush=True)
            try:
                figures = play(case, arguments.breakdown)
            except MeasurementError as error:
                failures += 1
                print(f"FAILED: {error}", file=sys.stderr, flush=True)
                continue
            for side, figure in figures.items():
                cases.setdefault(f"{case.name}: {side}", []).append(figure)
            print(", ".join(f"{side} {_in_short(figures[side])}" for side in SIDES), file=sys.stderr, flush=True)
    if not cases:
        return 1
    asked = ("connections", "no_call", "streams", "slow_reader", "pause", "rounds", "breakdown")
    options = {key: getattr(arguments, key) for key in asked}
    results.write(arguments.json, results.record("memory", options, cases))
    # Tracing has its own memory in the process, so nothing is judged by such a run.
    judged = {f"{case.name}: server" for case in plan if case.has_target and not arguments.breakdown}
    print(table(cases, judged))
    for name, rounds in cases.items():
        if "breakdown" in rounds[-1]:
            print(breakdown_table(name, rounds[-1]["breakdown"]))
    return 1 if failures else 0
