"""`python -m benchmarks plots`: measures unary calls over concurrency and message size, and draws them as SVG.

Every point is a run of `peers`: a new server process and a new client process, one core each, loopback TCP.  Rounds
are interleaved.  The flame graphs are sampled in runs of their own, so that being watched costs no point anything.
The figures are kept as JSON, from which `--from` draws the same pictures again, to the byte.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import flame, results
from benchmarks.arguments import add_cores, add_retries, count, counts, json_path, names, positive
from benchmarks.libraries.base import cpu_seconds
from benchmarks.machine import RESULTS, ROOT
from benchmarks.peers import DISTURBED, Options, RunFailedError, format_figure, missing, run_once, run_undisturbed
from benchmarks.statistics import median
from benchmarks.workloads import LIBRARIES, MEBIBYTE, OURS, WORKLOADS, Library, Workload

HELP = "draw ops/s over concurrency and message size, and flame graphs, as SVG"

DOCUMENTATION = ROOT / "docs" / "performance"
DEFAULT_LIBRARIES = (OURS, "grpcio_aio", "grpcio_sync", "grpclib", "floor")
#: What is not said by flag: the whole thing, and a smoke run whose figures mean nothing.
FULL: dict[str, Any] = {
    "concurrency": (1, 2, 5, 10, 20, 50, 100, 200),
    "sizes": (0, 64, 256, 1024, 4096, 16_384, 65_536, 262_144, MEBIBYTE),
    "rounds": 3,
    "duration": 2.0,
    "warmup": 0.5,
    "flame": 10,
    "json": RESULTS / "plots.json",
    "out": DOCUMENTATION,
}
QUICK: dict[str, Any] = {
    "concurrency": (1, 10),
    "sizes": (0, 4096),
    "rounds": 1,
    "duration": 0.2,
    "warmup": 0.1,
    "flame": 1,
    "json": RESULTS / "plots-quick.json",
    "out": RESULTS / "plots-quick",
}
#: Calls in flight while the message size is what changes.
CONCURRENCY_OF_SIZES = 16
#: What the flame graphs look into, and only inside of trio's run loop: starting up is not the hot path.
FLAME_WORKLOAD = "unary_100"
HOT_PATH = "run (trio/_core/_run.py"
# Seconds: of CPU that the server uses only when calls come, until the client makes any, and for py-spy to begin.
BUSY = 0.03
LONGEST_START = 10.0
START_OF_SAMPLER = 2.0
# Branches of stacks below this share are not kept; a picture could not show them.
LEAST_SHARE = 0.001


@dataclass(frozen=True)
class Point:
    """One place on a picture's horizontal axis.

    Attributes:
        sweep: What changes along the axis, `concurrency` or `size`.
        workload: What is played there.
    """

    sweep: str
    workload: Workload

    @property
    def value(self) -> int:
        """Where on the axis."""
        return self.workload.concurrency if self.sweep == "concurrency" else self.workload.size

    def case(self, library: str) -> str:
        """Returns the case's name in the results."""
        return f"{self.sweep} {self.value}: {library}"


def points(concurrency: Sequence[int], sizes: Sequence[int]) -> list[Point]:
    """Returns everything that is to be measured."""
    unary = WORKLOADS["unary_1"]
    return [
        *(Point("concurrency", replace(unary, concurrency=number)) for number in concurrency),
        *(Point("size", replace(unary, concurrency=CONCURRENCY_OF_SIZES, size=size)) for size in sizes),
    ]


def figures(point: Point, library: Library, run: dict[str, Any]) -> dict[str, Any]:
    """Returns what is kept of one run."""
    rate = run["ops_per_second"]
    kept = {
        "point": {"sweep": point.sweep, "value": point.value, "library": library.name},
        "ops_per_second": rate,
        "client_cpu_us_per_op": run.get("client_cpu_us_per_op"),
        "server_cpu_us_per_op": run.get("server_cpu_us_per_op"),
        "foreign_cpu": run.get("foreign_cpu"),
        # As many calls are always in flight, so the mean of their times follows from the rate (Little's law).
        "average_us": point.workload.concurrency / rate * 1e6 if rate else None,
    }
    return {key: value for key, value in kept.items() if value is not None}


def measure(
    plan: Sequence[Point], libraries: Sequence[Library], options: Options
) -> tuple[dict[str, list[dict[str, Any]]], int]:
    """Runs everything, telling on stderr how far it is.

    Returns:
        The figures by case and round, and how many runs failed.
    """
    cases: dict[str, list[dict[str, Any]]] = {}
    failures = 0
    total = options.rounds * len(plan) * len(libraries)
    begun = time.monotonic()
    index = 0
    for round_number in range(options.rounds):
        for point in plan:
            for library in libraries:
                index += 1
                head = f"[{index:3}/{total}] round {round_number + 1}/{options.rounds} "
                print(f"{head}{point.case(library.name):32} ", end="", file=sys.stderr, flush=True)
                try:
                    run = run_undisturbed(library, point.workload, options)
                except RunFailedError as error:
                    failures += 1
                    print(f"FAILED: {error}", file=sys.stderr, flush=True)
                    continue
                cases.setdefault(point.case(library.name), []).append(figures(point, library, run))
                left = (time.monotonic() - begun) / index * (total - index)
                said = f"{format_figure(run['ops_per_second']):>10} calls/s   {left:.0f} s left"
                if not run["ops_per_second"]:
                    said += "   NOT DRAWN: no call ended"
                elif run.get("foreign_cpu", 0.0) > DISTURBED:
                    said += f"   DISTURBED by other programs: {run['foreign_cpu']:.0%}"
                print(said, file=sys.stderr, flush=True)
    return cases, failures


def sample(seconds: int, options: Options) -> dict[str, flame.Stacks]:
    """Returns the stacks of both ends of our own run, by end.

    Raises:
        flame.FlameError: There are none.
        RunFailedError: The run itself failed.
    """
    print(f"sampling {FLAME_WORKLOAD} for {seconds} s", file=sys.stderr, flush=True)
    samplers: dict[str, flame.Sampler] = {}

    def watch(server: int, client: int) -> None:
        # Calls have begun when the server, which has nothing else to do, is busy.
        idle, give_up_at = cpu_seconds(server), time.monotonic() + LONGEST_START
        while cpu_seconds(server) < idle + BUSY and time.monotonic() < give_up_at:
            time.sleep(0.05)
        for end, pid in (("server", server), ("client", client)):
            samplers[end] = flame.Sampler(pid, seconds)

    stacks: dict[str, flame.Stacks] = {}
    try:
        run_once(
            LIBRARIES[OURS],
            WORKLOADS[FLAME_WORKLOAD],
            replace(options, warmup=START_OF_SAMPLER, duration=seconds),
            watch,
        )
        for end in tuple(samplers):
            stacks[end] = samplers.pop(end).result()
    finally:
        for sampler in samplers.values():
            sampler.close()
    return {end: flame.pruned(flame.within(seen, HOT_PATH), LEAST_SHARE) for end, seen in stacks.items()}


@dataclass(frozen=True)
class Style:
    """How a library is drawn: colours that the colour-blind can tell apart, and a marker for those who print."""

    title: str
    colour: str
    marker: str
    width: float = 1.4
    dashed: bool = False


STYLES = {
    OURS: Style("trio_grpc", "#d55e00", "o", width=2.6),
    "grpcio_aio": Style("grpc.aio", "#0072b2", "s"),
    "grpcio_sync": Style("grpcio sync", "#009e73", "^"),
    "grpclib": Style("grpclib", "#cc79a7", "D"),
    "grpclib_uvloop": Style("grpclib, uvloop", "#882255", "d"),
    "purerpc": Style("purerpc", "#56b4e9", "v"),
    "purerpc_trio": Style("purerpc, trio", "#117733", "<"),
    "grpc_go": Style("grpc-go, one core", "#444444", "x", dashed=True),
    "floor": Style("floor: bare TCP", "#888888", ".", dashed=True),
    "floor_blocking": Style("floor: blocking sockets", "#bbbbbb", ",", dashed=True),
}


@dataclass(frozen=True)
class Chart:
    """One picture of lines.

    Attributes:
        file: Its file's name.
        sweep: What its horizontal axis is.
        figure: What its vertical axis is, a key of a case's record.
        title: What it shows.
        across: The horizontal axis in words.
        up: The vertical axis in words.
    """

    file: str
    sweep: str
    figure: str
    title: str
    across: str
    up: str


CHARTS = (
    Chart(
        "unary-concurrency.svg",
        "concurrency",
        "ops_per_second",
        "Unary calls per second, empty messages",
        "calls in flight, on one channel",
        "calls per second",
    ),
    Chart(
        "unary-latency.svg",
        "concurrency",
        "average_us",
        "Mean time of a unary call, empty messages",
        "calls in flight, on one channel",
        "mean time of a call",
    ),
    Chart(
        "unary-size.svg",
        "size",
        "ops_per_second",
        f"Unary calls per second, {CONCURRENCY_OF_SIZES} in flight",
        "size of request and of reply",
        "calls per second",
    ),
)


def in_bytes(number: float) -> str:
    """Writes a size as people say it: `64 B`, `4 KiB`, `1 MiB`."""
    for unit, name in ((MEBIBYTE, "MiB"), (1024, "KiB")):
        if number >= unit:
            return f"{number / unit:g} {name}"
    return f"{number:g} B"


def in_thousands(number: float) -> str:
    """Writes a rate shortly: `200`, `5k`, `1.5M`."""
    for unit, name in ((1_000_000, "M"), (1000, "k")):
        if number >= unit:
            return f"{number / unit:g}{name}"
    return f"{number:g}"


def in_time(microseconds: float) -> str:
    """Writes a time as people say it: `200 µs`, `5 ms`, `1 s`."""
    for unit, name in ((1_000_000, "s"), (1000, "ms")):
        if microseconds >= unit:
            return f"{microseconds / unit:g} {name}"
    return f"{microseconds:g} µs"


def spread_out(places: Sequence[float], least: float) -> list[float]:
    """Moves places on a line apart until each has `least` room to the next, as little as that takes."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    # Groups of neighbours that touch: the sum of where their members would have the group begin, and the members.
    groups: list[tuple[float, list[int]]] = []
    for index in order:
        wish, members = places[index], [index]
        while groups and groups[-1][0] / len(groups[-1][1]) + least * len(groups[-1][1]) > wish / len(members):
            sum_before, before = groups.pop()
            wish = sum_before + wish - least * len(before) * len(members)
            members = before + members
        groups.append((wish, members))
    moved = list(places)
    for wish, members in groups:
        for step, index in enumerate(members):
            moved[index] = wish / len(members) + step * least
    return moved


def disturbed(cases: dict[str, list[dict[str, Any]]]) -> str | None:
    """Says how many runs other programs took a core from; None if they left all alone."""
    runs = [run for rounds in cases.values() for run in rounds]
    number = sum(run.get("foreign_cpu", 0.0) > DISTURBED for run in runs)
    return f"{number} of {len(runs)} runs disturbed by other programs" if number else None


def about(measured: dict[str, Any], basis: str, packages: Sequence[str]) -> list[str]:
    """Returns what every picture says about its circumstances, in lines.

    Args:
        measured: The results.
        basis: What its figures are, e.g. `medians of 3 rounds`.
        packages: Whose versions matter.
    """
    found, versions = measured["machine"], measured["versions"]
    processor = found["processor"].replace("(R)", "").replace("(TM)", "")
    where = "one for each side" if measured["options"]["cores"] else "shared by both sides"
    lines = [
        f"{processor}, {found['cores']} cores, {where} · {measured['time'][:10]} · {basis}",
        " · ".join(
            [
                f"{found['implementation']} {found['python']}",
                *(f"{name} {versions[name]}" for name in packages if name in versions),
            ]
        ),
    ]
    if measured["options"]["quick"]:
        lines.insert(0, "A smoke run: these figures mean nothing.")
    return lines


def series(chart: Chart, cases: dict[str, list[dict[str, Any]]]) -> dict[str, list[tuple[int, list[float]]]]:
    """Returns, by library, each place on the axis with its figure of every round."""
    lines: dict[str, list[tuple[int, list[float]]]] = {}
    for rounds in cases.values():
        # A run in which nothing came to its end has no place on a logarithmic axis.
        values = [one[chart.figure] for one in rounds if one.get(chart.figure)]
        point = rounds[0]["point"]
        if point["sweep"] == chart.sweep and values:
            lines.setdefault(point["library"], []).append((point["value"], values))
    return {library: sorted(line) for library, line in lines.items()}


def draw(chart: Chart, measured: dict[str, Any], path: Path) -> None:
    """Draws one picture.  The same figures give the same bytes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

    lines = series(chart, measured["cases"])
    rounds = measured["options"]["rounds"]
    basis = "one round" if rounds == 1 else f"medians of {rounds} rounds and their range"
    if caveat := disturbed(measured["cases"]):
        basis += f" · {caveat}"
    said = about(measured, basis, ("trio", "grpcio", "grpclib", "protobuf"))
    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": "trio_grpc",
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],  # matplotlib brings it along, so that every machine measures text alike
        "font.size": 9.5,
    }
    with mpl.rc_context(settings):
        figure = Figure(figsize=(7.6, 4.7))
        axes = figure.add_axes((0.115, 0.115, 0.715, 0.775 - 0.038 * len(said)))
        for library in (name for name in STYLES if name in lines):
            style, line = STYLES[library], lines[library]
            across = [place for place, _ in line]
            up = [median(values) for _, values in line]
            axes.fill_between(
                across,
                [min(values) for _, values in line],
                [max(values) for _, values in line],
                color=style.colour,
                alpha=0.18,
                linewidth=0,
            )
            axes.plot(
                across,
                up,
                color=style.colour,
                marker=style.marker,
                markersize=4.5,
                linewidth=style.width,
                linestyle="--" if style.dashed else "-",
                zorder=3 if library == OURS else 2,
            )
        ticks = sorted({place for line in lines.values() for place, _ in line})
        if chart.sweep == "size":
            # So that empty messages have a place on it, too.
            axes.set_xscale("symlog", base=2, linthresh=64, linscale=1)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: in_bytes(value)))
        else:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_yscale("log")
        written = in_time if chart.figure.endswith("_us") else in_thousands
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=100))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_minor_locator(NullLocator())
        axes.grid(visible=True, color="#e4e4e4", linewidth=0.7)
        axes.set_axisbelow(True)
        for spine in ("top", "right"):
            axes.spines[spine].set_visible(False)
        axes.set_xlabel(chart.across)
        axes.set_ylabel(chart.up)
        axes.yaxis.set_label_coords(-0.128, 0.5)
        figure.text(0.012, 0.95, chart.title, fontsize=12.5, fontweight="bold", va="center")
        for index, text in enumerate(said):
            figure.text(0.012, 0.905 - 0.038 * index, text, fontsize=8, color="#555555", va="center")
        _label_ends(axes, lines)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None}, facecolor="white")


def _label_ends(axes: Any, lines: dict[str, list[tuple[int, list[float]]]]) -> None:
    """Writes each line's name beside its end: nobody has to match colours with a legend."""
    shown = [name for name in STYLES if name in lines]
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = [to_axes.transform((lines[name][-1][0], median(lines[name][-1][1]))) for name in shown]
    for name, (right, _), up in zip(shown, ends, spread_out([float(up) for _, up in ends], 0.058), strict=True):
        axes.text(
            right + 0.018,
            up,
            STYLES[name].title,
            transform=axes.transAxes,
            color=STYLES[name].colour,
            fontweight="bold" if name == OURS else "normal",
            va="center",
            clip_on=False,
        )


def draw_all(measured: dict[str, Any], folder: Path) -> list[Path]:
    """Draws every picture that there are figures for, and returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for chart in CHARTS:
        if series(chart, measured["cases"]):
            draw(chart, measured, folder / chart.file)
            files.append(folder / chart.file)
    for end, stacks in measured.get("stacks", {}).items():
        said = about(measured, f"{sum(stacks.values()):,} samples", ("trio", "protobuf"))
        path = folder / f"flame-{end}.svg"
        path.write_text(flame.draw(stacks, f"Where the {end}'s time goes: unary calls, 100 in flight", said))
        files.append(path)
    return files


def table(measured: dict[str, Any]) -> str:
    """Writes the figures behind the pictures: calls per second, and where the samples of the flame graphs ended."""
    lines: list[str] = []
    for sweep, written in (("concurrency", str), ("size", in_bytes)):
        by_library = series(Chart("", sweep, "ops_per_second", "", "", ""), measured["cases"])
        if not by_library:
            continue
        shown = [name for name in STYLES if name in by_library]
        lines += ["", f"{f'calls/s by {sweep}':22}" + "".join(f"{name:>15}" for name in shown)]
        rows = {name: dict(line) for name, line in by_library.items()}
        for value in sorted({value for line in rows.values() for value in line}):
            cells = [format_figure(median(rows[name][value])) if value in rows[name] else "" for name in shown]
            lines.append(f"{written(value):>22}" + "".join(f"{cell:>15}" for cell in cells))
    if caveat := disturbed(measured["cases"]):
        lines += ["", f"{caveat}: repeat on a quiet machine before believing these figures"]
    for end, stacks in measured.get("stacks", {}).items():
        lines += ["", f"where the {end}'s time is spent, by file"]
        shares = list(flame.shares_by_file(stacks).items())[:12]
        lines += [f"{share:>22.1%}  {file}" for file, share in shares]
    return "\n".join(lines).lstrip("\n")


def _sizes(text: str) -> tuple[int, ...]:
    """Parses a comma-separated list of whole numbers of 0 or more; `none` is the empty list."""
    if text.strip() == "none":
        return ()
    try:
        return tuple(dict.fromkeys(count(part.strip()) for part in text.split(",")))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a list of numbers of bytes nor `none`") from None


def _folder(text: str) -> Path:
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no folder")
    return path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `plots`."""
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FILE",
        help="measure nothing: draw what an earlier `plots` left in this file",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a smoke run: few points, a fraction of a second each, into benchmarks/results; its figures mean nothing",
    )
    parser.add_argument(
        "--libraries",
        type=names(LIBRARIES, "library"),
        default=tuple(LIBRARIES[name] for name in DEFAULT_LIBRARIES),
        metavar="X,Y",
        help=f"of {', '.join(LIBRARIES)} (default: {','.join(DEFAULT_LIBRARIES)})",
    )
    listed = {key: ",".join(map(str, FULL[key])) for key in ("concurrency", "sizes")}
    parser.add_argument(
        "--concurrency",
        type=counts,
        metavar="N,M",
        help=f"calls in flight to measure; 0 leaves this out (default: {listed['concurrency']})",
    )
    parser.add_argument(
        "--sizes",
        type=_sizes,
        metavar="N,M",
        help=f"message sizes to measure in bytes; `none` leaves this out (default: {listed['sizes']})",
    )
    parser.add_argument("--rounds", type=positive(int), help=f"rounds of everything (default: {FULL['rounds']})")
    parser.add_argument(
        "--duration", type=positive(float), metavar="SECONDS", help=f"of each point (default: {FULL['duration']:g})"
    )
    parser.add_argument(
        "--warmup", type=positive(float), metavar="SECONDS", help=f"before each point (default: {FULL['warmup']:g})"
    )
    parser.add_argument(
        "--flame",
        type=count,
        metavar="SECONDS",
        help=f"how long to sample for the flame graphs; 0 leaves them out (default: {FULL['flame']})",
    )
    add_cores(parser)
    add_retries(parser)
    parser.add_argument(
        "--out", type=_folder, metavar="FOLDER", help="where the pictures go (default: docs/performance)"
    )
    parser.add_argument(
        "--json", type=json_path, metavar="FILE", help="where the figures go (default: benchmarks/results/plots.json)"
    )


def main(arguments: argparse.Namespace) -> int:
    """Measures or reads, draws, prints the table.

    Returns:
        0 if every run gave figures, else 1.
    """
    for key, value in (QUICK if arguments.quick else FULL).items():
        if getattr(arguments, key) is None:
            setattr(arguments, key, value)
    failures = 0
    if arguments.source is not None:
        try:
            measured = results.read(arguments.source)
        except results.BadResultsError as error:
            print(f"--from: {error}", file=sys.stderr)
            return 1
        if measured["command"] != "plots":
            print(f"--from: {arguments.source} was left by `{measured['command']}`, not by `plots`", file=sys.stderr)
            return 1
    else:
        measured, failures = _measure_all(arguments)
        if not measured["cases"] and not measured["stacks"]:
            print("nothing was measured, so nothing is drawn", file=sys.stderr)
            return 1
        results.write(arguments.json, measured)
    for path in draw_all(measured, arguments.out):
        print(f"drew {path}", file=sys.stderr)
    print(table(measured))
    return 1 if failures else 0


def _measure_all(arguments: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """Returns what goes to disk, and how much failed."""
    able = []
    for library in arguments.libraries:
        if (reason := missing(library)) is None:
            able.append(library)
        else:
            print(f"skipping {library.name}: {reason}", file=sys.stderr)
    options = Options(
        workloads=(),
        libraries=tuple(able),
        rounds=arguments.rounds,
        duration=arguments.duration,
        warmup=arguments.warmup,
        calls=1,
        pause=1.0,
        cores=arguments.cores,
        malloc="default",
        retries=0 if arguments.quick else arguments.retries,
        json_path=arguments.json,
    )
    cases, failures = measure(points(arguments.concurrency, arguments.sizes), able, options)
    stacks: dict[str, flame.Stacks] = {}
    if arguments.flame:
        try:
            stacks = sample(arguments.flame, options)
        except (flame.FlameError, RunFailedError) as error:
            print(f"no flame graphs: {error}", file=sys.stderr)
            failures += 1
    asked = {key: getattr(arguments, key) for key in ("quick", "rounds", "duration", "warmup", "flame", "cores")}
    return {**results.record("plots", asked, cases), "stacks": stacks}, failures
