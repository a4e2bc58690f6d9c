"""`python -m benchmarks paired REV_A REV_B`: two git revisions of trio_grpc, measured at the same time.

Sittings that follow one another also measure the machine's mood.  Here both revisions play the same workload at the
same moment, each on a core of its own, and swap cores after every round, so that whatever slows the machine slows
both, and the better core serves each of them equally often.  What counts is the ratio of each round.

Server and client of one revision are two processes on its one core.  They could be one process, but then client and
server would share an event loop: each would find the other's work done when it looks for its own, which no real
program sees, and batches would form that exist nowhere else.  Two processes run the code exactly as it is deployed;
that the core also switches between them costs both revisions the same.

Only the package `trio_grpc` comes from a revision.  What plays the workloads is this tree's `benchmarks`, and
the dependencies are this environment's.  Every process says which package it imported, and that is checked.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from benchmarks import results
from benchmarks.arguments import cores, default_cores, json_path, names, positive
from benchmarks.certificates import make_certificates
from benchmarks.compare import Row, add_confidence, figure, percent, table
from benchmarks.machine import RESULTS, ROOT
from benchmarks.metrics import METRICS
from benchmarks.peers import DISTURBED, RUN_GRACE, SERVER_START_TIMEOUT, RunFailedError
from benchmarks.statistics import paired_change
from benchmarks.workloads import LIBRARIES, OURS, WORKLOADS, Workload, plays

HELP = "measure two git revisions at the same time, on a core each"
DEFAULT_JSON = RESULTS / "paired.json"
#: Where revisions come from.
REPOSITORY = ROOT
PACKAGE = "trio_grpc"
WORKING_TREE = ("WORKTREE", ".")
SIDES = ("A", "B")
#: What is taken of a run.  CPU time says something on a busy machine too.
FIGURES = ("ops_per_second", "p50_us", "average_us", "p99_us", "client_cpu_us_per_op", "server_cpu_us_per_op")
#: A workload that plays only once repeats itself inside, and is about memory.
PAIRED_WORKLOADS = {
    name: workload for name, workload in WORKLOADS.items() if plays(LIBRARIES[OURS], workload) and not workload.once
}


EXPLANATION = """\
For example, what the changes in this folder gain, and what the last commit did:

  python -m benchmarks paired HEAD WORKTREE
  python -m benchmarks paired HEAD~1 HEAD --workloads unary_100,unary_1 --rounds 10

Each revision is put into a temporary folder, and its server and client run on one core, while those of the other
revision run on the other core; after every round they swap. A percentage is B against A. The interval is that of a
t-test on the rounds' ratios: it holds the true difference with the confidence asked for, and where it holds zero, the
difference is within the noise. A revision measured against itself shows how far the machine can be trusted.
The benchmarks are those of this folder: a revision whose `trio_grpc` they cannot use fails by name.
"""


@dataclass(frozen=True)
class Revision:
    """What one side measures.

    Attributes:
        asked: As it was named.
        commit: The commit's full hash; that of HEAD for the working tree.
        tree: The hash of git's tree object of the package; None for a working tree that differs from `commit`.
    """

    asked: str
    commit: str
    tree: str | None

    @property
    def label(self) -> str:
        """Returns the short hash and how it was asked for."""
        if self.tree is None:
            return f"{self.commit[:10]} with the uncommitted changes of the working tree"
        return self.commit[:10] if self.commit.startswith(self.asked) else f"{self.commit[:10]} ({self.asked})"


class _GitError(Exception):
    """Git refused; the text is its own."""


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise _GitError("git is not installed") from None
    if done.returncode:
        raise _GitError((done.stderr.strip().splitlines() or [f"git ended with code {done.returncode}"])[0])
    return done.stdout.strip()


def revision(text: str) -> Revision:
    """Parses a revision as git does; `WORKTREE` or `.` is the working tree with its uncommitted changes."""
    try:
        if text in WORKING_TREE:
            commit = _git("rev-parse", "HEAD")
            if _git("status", "--porcelain", "--", PACKAGE):
                return Revision(text, commit, tree=None)
        else:
            # The first says best what is wrong with a name, the second refuses what names several commits.
            _git("rev-list", "--max-count=1", "--end-of-options", text, "--")
            commit = _git("rev-parse", "--verify", f"{text}^{{commit}}")
        return Revision(text, commit, _git("rev-parse", "--verify", f"{commit}:./{PACKAGE}"))
    except _GitError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error


def check_out(revision: Revision, folder: Path) -> None:
    """Puts the package of `revision`, and nothing else, into a new folder."""
    if revision.tree is None:
        shutil.copytree(REPOSITORY / PACKAGE, folder / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
        return
    # Of its own session, as every process here: a Ctrl-C is this process's affair, which ends the others in order.
    archive = ["git", "archive", "--format=zip", revision.commit, PACKAGE]
    done = subprocess.run(archive, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True, start_new_session=True)
    with zipfile.ZipFile(io.BytesIO(done.stdout)) as zipped:
        zipped.extractall(folder)


@dataclass(frozen=True)
class Options:
    """What was asked for on the command line.

    Attributes:
        revisions: A and B.
        workloads: In order.
        rounds: How often everything is measured; even.
        duration: Seconds of each measurement.
        warmup: Seconds before each measurement.
        cores: The cores of A and B in the first round.
        confidence: How surely intervals hold the true difference.
    """

    revisions: tuple[Revision, Revision]
    workloads: tuple[Workload, ...]
    rounds: int
    duration: float
    warmup: float
    cores: tuple[int, int]
    confidence: float


@dataclass
class Sitting:
    """What came of it.

    Attributes:
        pairs: The figures of A and B in each round, by workload.
        foreign: The largest share of a core that other programs took, by workload and round.
        failures: Workloads that could not be played, with the reason.
        checked: How many processes proved that they had imported their revision's package.
    """

    pairs: dict[str, list[tuple[dict[str, float], dict[str, float]]]] = field(default_factory=dict)
    foreign: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    checked: int = 0


class _End:
    """A process that is one end of a run, and the lines that it prints."""

    def __init__(self, name: str, process: trio.Process, errors: Any) -> None:
        self.name = name
        self.process = process
        self._errors = errors
        self._unread = b""

    async def line(self, timeout: float) -> str:
        """Returns the next line that the process prints.

        Raises:
            RunFailedError: It ended instead, or said nothing in time.
        """
        assert self.process.stdout is not None
        with trio.move_on_after(timeout):
            while b"\n" not in self._unread:
                data = await self.process.stdout.receive_some()
                if not data:
                    await self.process.wait()
                    self._errors.seek(0)
                    # The last line of a traceback; groups draw a frame to the left of it.
                    lines = [text.strip(" |+-") for text in self._errors.read().decode(errors="replace").splitlines()]
                    said = next((text for text in reversed(lines) if text), "it printed nothing")
                    raise RunFailedError(f"{self.name} ended with code {self.process.returncode}: {said}")
                self._unread += data
            line, _, self._unread = self._unread.partition(b"\n")
            return line.decode()
        raise RunFailedError(f"{self.name} said nothing for {timeout:.0f} s")

    async def send(self, line: str) -> None:
        """Says something to the process.

        Raises:
            RunFailedError: It does not listen any more.
        """
        assert self.process.stdin is not None
        try:
            await self.process.stdin.send_all(line.encode())
        except trio.BrokenResourceError:
            raise RunFailedError(f"{self.name} ended before it was told to begin") from None


@asynccontextmanager
async def _open_end(side: str, end: str, folder: Path, arguments: list[str]) -> AsyncIterator[_End]:
    """Starts one end of a run; ends it with the block, however that ends."""
    command = [sys.executable, "-m", "benchmarks.libraries.trio_grpc_revision", end, *arguments]
    # The folder comes first, and has nothing but the package in it; the benchmarks are then found in this tree.
    path = [str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    with tempfile.TemporaryFile() as errors:
        process = await trio.lowlevel.open_process(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        try:
            yield _End(f"{side}'s {end}", process, errors)
        finally:
            # Its figures are told, or of no interest any more.
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
                for pipe in (process.stdin, process.stdout):
                    assert pipe is not None
                    await pipe.aclose()


async def play_pair(
    folders: tuple[Path, Path], certificates: Path, workload: Workload, cores: tuple[int, int], options: Options
) -> list[dict[str, Any]]:
    """Plays one workload with both revisions at the same time.

    Args:
        folders: Where the packages of A and B are.
        certificates: Where those are that workloads over TLS need.
        workload: The workload.
        cores: The cores of A and B.
        options: What was asked for.

    Returns:
        What A's and B's client told.

    Raises:
        RunFailedError: One of the four processes failed, or had imported another package.
    """
    async with AsyncExitStack() as stack:

        async def start(end: str, arguments: list[list[str]]) -> list[_End]:
            started = []
            for side, folder, core, more in zip(SIDES, folders, cores, arguments, strict=True):
                command = ["--workload", workload.name, "--core", str(core), *more]
                if workload.tls:
                    command += ["--certificates", str(certificates)]
                started.append(await stack.enter_async_context(_open_end(side, end, folder, command)))
            for process, folder in zip(started, folders, strict=True):
                imported = await process.line(SERVER_START_TIMEOUT)
                wanted = (folder / PACKAGE / "__init__.py").resolve()
                if imported != str(wanted):
                    raise RunFailedError(f"{process.name} imported {imported} instead of {wanted}")
            return started

        servers = await start("server", [[], []])
        ports = [await server.line(SERVER_START_TIMEOUT) for server in servers]
        times = ["--duration", str(options.duration), "--warmup", str(options.warmup)]
        clients = await start(
            "client",
            [
                ["--target", f"127.0.0.1:{port}", "--server-pid", str(server.process.pid), *times]
                for port, server in zip(ports, servers, strict=True)
            ],
        )
        # Only now, when nothing is left to import, so that both measure the same seconds.
        for client in clients:
            await client.send("go\n")
        timeout = options.warmup + options.duration + RUN_GRACE
        return [json.loads(await client.line(timeout)) for client in clients]


def figures(run: dict[str, Any], name: str) -> dict[str, float]:
    """Returns the figures of a run by the keys of `benchmarks.metrics`.

    Raises:
        RunFailedError: It finished nothing.
    """
    if not run["total_ops"]:
        raise RunFailedError(f"{name} finished no operation in {run['seconds']:.2f} s")
    return {key: run[key] for key in FIGURES if key in run}


def foreign_cpu(run: dict[str, Any]) -> float:
    """Returns the share of a run's core that programs other than its two ends took.

    What the client tells takes only one end at a time off: it supposes that each has its own core.
    """
    return float(max(0.0, run.get("foreign_cpu", 0.0) - max(run["client_cpu"], run.get("server_cpu", 0.0))))


async def measure(options: Options) -> Sitting:
    """Checks both revisions out, measures, tells on stderr how far it is, and clears up."""
    sitting = Sitting()
    with tempfile.TemporaryDirectory(prefix="trio_grpc-paired-") as name:
        folders = (Path(name) / SIDES[0], Path(name) / SIDES[1])
        for side, folder in zip(options.revisions, folders, strict=True):
            await trio.to_thread.run_sync(check_out, side, folder)
        certificates = await trio.to_thread.run_sync(make_certificates, Path(name))
        plan = list(itertools.product(range(options.rounds), options.workloads))
        for index, (number, workload) in enumerate(plan, 1):
            if workload.name in sitting.failures:
                continue
            cores = options.cores if number % 2 == 0 else options.cores[::-1]
            head = f"[{index:3}/{len(plan)}] round {number + 1}/{options.rounds} {workload.name:18} "
            print(head, end="", file=sys.stderr, flush=True)
            try:
                runs = await play_pair(folders, certificates, workload, cores, options)
                pair = figures(runs[0], SIDES[0]), figures(runs[1], SIDES[1])
            except RunFailedError as error:
                # A round that is missing would leave the cores unevenly swapped.
                sitting.failures[workload.name] = str(error)
                sitting.pairs.pop(workload.name, None)
                print(f"FAILED: {error}", file=sys.stderr, flush=True)
                continue
            # Two servers and two clients.
            sitting.checked += 4
            sitting.pairs.setdefault(workload.name, []).append(pair)
            foreign = max(map(foreign_cpu, runs))
            sitting.foreign.setdefault(workload.name, []).append(foreign)
            rates = [
                f"{figure(side['ops_per_second']):>9} on core {core}" for side, core in zip(pair, cores, strict=True)
            ]
            load = f"  DISTURBED by other programs: {foreign:.0%}" if foreign > DISTURBED else ""
            changed = percent(pair[1]["ops_per_second"] / pair[0]["ops_per_second"] - 1)
            print(f"A {rates[0]}, B {rates[1]}: {changed} Ops/s{load}", file=sys.stderr, flush=True)
    return sitting


async def measure_unless_told_to_end(options: Options) -> Sitting | None:
    """Measures; returns None if a signal ended it early, with no process and no folder left behind."""
    sitting: Sitting | None = None
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:

        async def watch(scope: trio.CancelScope) -> None:
            async for _ in signals:
                scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, nursery.cancel_scope)
            sitting = await measure(options)
            nursery.cancel_scope.cancel()
    return sitting


def rows(pairs: list[tuple[dict[str, float], dict[str, float]]], confidence: float) -> list[Row]:
    """Sums the rounds of one workload up, figure by figure."""
    summed = []
    for key in FIGURES:
        before, after = (tuple(pair[side].get(key, 0.0) for pair in pairs) for side in (0, 1))
        # Not every workload has every figure, and a very short run may have used no tick of CPU time.
        if all(before) and all(after):
            ratios = [b / a for a, b in zip(before, after, strict=True)]
            summed.append(Row(METRICS[key], before, after, paired_change(ratios, confidence)))
    return summed


def report(sitting: Sitting, options: Options) -> Iterator[str]:
    """Writes a block for each workload: every round, then the sums."""
    for side, revision in zip(SIDES, options.revisions, strict=True):
        yield f"{side} = {revision.label}"
    for workload in options.workloads:
        yield ""
        yield f"{workload.name}: {workload.title}"
        if workload.name in sitting.failures:
            yield f"  failed: {sitting.failures[workload.name]}"
            continue
        summed = rows(sitting.pairs[workload.name], options.confidence)
        yield "  B against A  A on core" + "".join(f"{row.metric.title:>15}" for row in summed)
        for number in range(options.rounds):
            changes = (percent(row.after[number] / row.before[number] - 1) for row in summed)
            core = options.cores[number % 2]
            yield f"  round {number + 1:<5}  {core:>9}" + "".join(f"{change:>15}" for change in changes)
        yield from (f"  {line}" for line in table(summed, options.confidence, SIDES))
    if not sitting.pairs:
        return
    yield ""
    yield "A and B are means of the rounds; the percentage is the (geometric) mean of B / A in each round."
    if options.rounds == 2:
        yield "Two rounds say nothing of noise: measure with --rounds 6 or more."
    shares = [share for by_round in sitting.foreign.values() for share in by_round]
    if disturbed := sum(share > DISTURBED for share in shares):
        yield (
            f"{disturbed} of {len(shares)} rounds lost more than {DISTURBED:.0%} of a core to other programs "
            f"(at worst {max(shares):.0%}): repeat on a quiet machine before believing a close call"
        )


def as_json(sitting: Sitting, options: Options) -> dict[str, Any]:
    """Returns what goes to disk: a case for each side of each workload, and the differences between them."""
    record = results.record(
        "paired",
        {
            "workloads": [workload.name for workload in options.workloads],
            "rounds": options.rounds,
            "duration": options.duration,
            "warmup": options.warmup,
            "cores": options.cores,
        },
        {
            f"{workload} {SIDES[side]}": [pair[side] for pair in pairs]
            for workload, pairs in sitting.pairs.items()
            for side in (0, 1)
        },
    )
    record["revisions"] = {
        side: {
            "asked": revision.asked,
            "commit": revision.commit,
            "tree": revision.tree,
            "uncommitted_changes": revision.tree is None,
        }
        for side, revision in zip(SIDES, options.revisions, strict=True)
    }
    record["imports"] = {
        "processes_checked": sitting.checked,
        "meaning": f"each of these processes had imported {PACKAGE} from the folder that its revision was put into",
    }
    record["core_of_a_by_round"] = [options.cores[number % 2] for number in range(options.rounds)]
    record["foreign_cpu_by_round"] = sitting.foreign
    record["confidence"] = options.confidence
    record["differences"] = {
        workload: [
            {
                **row.as_json(),
                "percentage_by_round": [100 * (b / a - 1) for a, b in zip(row.before, row.after, strict=True)],
            }
            for row in rows(pairs, options.confidence)
        ]
        for workload, pairs in sitting.pairs.items()
    }
    record["failures"] = sitting.failures
    return record


def core_list(text: str) -> set[int]:
    """Parses Linux's way to list cores: `0-3,8`."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores


def siblings(core: int) -> set[int]:
    """Returns the cores that are threads of the same physical one, itself included; just itself if nobody can tell."""
    try:
        return core_list(Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text())
    except OSError:
        return {core}


def _even(text: str) -> int:
    number: int = positive(int)(text)
    if number % 2:
        raise argparse.ArgumentTypeError(
            f"{text!r} is odd: cores are swapped after each round, and evenly only if it is even"
        )
    return number


def _two_cores(text: str) -> tuple[int, int]:
    pair = cores(text) if "," in text else None
    if pair is None or pair[0] == pair[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is not A,B: two different core numbers")
    return pair


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `paired`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXPLANATION
    others = [name for name, workload in PAIRED_WORKLOADS.items() if not workload.by_default]
    what = "a git revision, or WORKTREE (also .) for the working tree with its uncommitted changes"
    parser.add_argument("a", type=revision, metavar="REV_A", help=f"what to compare with: {what}")
    parser.add_argument("b", type=revision, metavar="REV_B", help="what to compare: the same")
    parser.add_argument(
        "--workloads",
        type=names(PAIRED_WORKLOADS, "workload"),
        default=tuple(workload for workload in PAIRED_WORKLOADS.values() if workload.by_default),
        metavar="X,Y",
        help=f"of {', '.join(PAIRED_WORKLOADS)} (default: all but {', '.join(others)})",
    )
    parser.add_argument("--rounds", type=_even, default=6, help="rounds of everything, an even number (default: 6)")
    parser.add_argument(
        "--duration", type=positive(float), default=3.0, metavar="SECONDS", help="of each measurement (default: 3)"
    )
    parser.add_argument(
        "--warmup", type=positive(float), default=1.0, metavar="SECONDS", help="before each measurement (default: 1)"
    )
    parser.add_argument(
        "--cores",
        type=_two_cores,
        default=default_cores(),
        metavar="A,B",
        help="the cores of the two revisions in the first round (default: the first two)",
    )
    add_confidence(parser)
    parser.add_argument(
        "--json",
        type=json_path,
        default=DEFAULT_JSON,
        metavar="FILE",
        help="where the results go (default: benchmarks/results/paired.json)",
    )


def main(arguments: argparse.Namespace) -> int:
    """Measures, prints the tables, writes the JSON.

    Returns:
        0 if every run gave figures; 1 if one failed or there are no two cores; 130 if a signal ended it.
    """
    if arguments.cores is None:
        print("two revisions at the same time need two cores to pin them to", file=sys.stderr)
        return 1
    options = Options(
        revisions=(arguments.a, arguments.b),
        workloads=arguments.workloads,
        rounds=arguments.rounds,
        duration=arguments.duration,
        warmup=arguments.warmup,
        cores=arguments.cores,
        confidence=arguments.confidence,
    )
    if options.cores[1] in siblings(options.cores[0]):
        print(
            f"cores {options.cores[0]} and {options.cores[1]} are threads of one physical core: "
            "the revisions will take time from each other",
            file=sys.stderr,
        )
    if arguments.a.tree is not None and arguments.a.tree == arguments.b.tree:
        print(f"{PACKAGE} is the same in both revisions: all that differs will be noise", file=sys.stderr)
    sitting = trio.run(measure_unless_told_to_end, options)
    if sitting is None:
        print("\nended by a signal: nothing is written", file=sys.stderr)
        return 130
    print("\n".join(report(sitting, options)))
    results.write(arguments.json, as_json(sitting, options))
    return 1 if sitting.failures else 0
