"""`python -m benchmarks compare BEFORE.json AFTER.json`: what changed between two sittings, and what is only noise.

Both files are results of the same command, measured apart.  For each case that both have, and each figure of it:
the mean of the rounds before and after, their spread (the distance from the smallest round to the largest, as a
share of the median round), the change in percent, and the interval that holds the true change with the confidence
asked for.  A change whose interval holds zero is within the noise.  The arithmetic, and why it is this one, is in
`benchmarks.statistics`.

Two sittings differ in more than the code if the machine was in another mood; `paired` measures two revisions at the
same time.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import results
from benchmarks.arguments import json_path
from benchmarks.machine import RESULTS
from benchmarks.metrics import METRICS, Metric
from benchmarks.statistics import Change, change, spread

HELP = "say what changed between two files of results, and what is only noise"
DEFAULT_JSON = RESULTS / "compare.json"
#: Keys of the older form (that of `peers`) that mean the same as one of `benchmarks.metrics`.
OLDER_KEYS = {
    "operations": "total_ops",
    "rate": "ops_per_second",
    "client_cpu_us_per_operation": "client_cpu_us_per_op",
    "server_cpu_us_per_operation": "server_cpu_us_per_op",
}
#: Options that say where results go, not how they were measured.
NOT_CIRCUMSTANCES = ("json", "json_path")


EXPLANATION = """\
For example, before and after a change of the code:

  python -m benchmarks run --rounds 5 --json before.json
  python -m benchmarks run --rounds 5 --json after.json
  python -m benchmarks compare before.json after.json --fail-if-worse 5

Before and After are the means of the rounds; spread is the distance from the smallest round to the largest, as a share
of the median. The interval is that of Welch's t-test: it holds the true change with the confidence asked for, and where
it holds zero, the change is within the noise. One round tells nothing of noise, two tell little. What rounds cannot
tell is whether the machine was in another mood the second time: `python -m benchmarks paired` can.
"""


@dataclass(frozen=True)
class Row:
    """One figure of one case, in two sittings or of two sides.

    Attributes:
        metric: What it is.
        before: It by round.
        after: It by round.
        change: How much it changed.
    """

    metric: Metric
    before: tuple[float, ...]
    after: tuple[float, ...]
    change: Change

    @property
    def verdict(self) -> str:
        """What became of it, in a few words."""
        beyond_noise = self.change.beyond_noise
        if beyond_noise is None:
            return "same" if not self.change.value else "noise unknown"
        if not beyond_noise:
            return "same" if self.change.low == self.change.high else "within the noise"
        if self.metric.higher_is_better is None:
            return "differs"
        return "better" if (self.change.value > 0) == self.metric.higher_is_better else "WORSE"

    @property
    def surely_worse(self) -> float | None:
        """By what fraction it got worse at least, noise taken off; None if nobody can tell."""
        if self.change.low is None or self.change.high is None or self.metric.higher_is_better is None:
            return None
        return -self.change.high if self.metric.higher_is_better else self.change.low

    def as_json(self) -> dict[str, Any]:
        """Returns it for a file."""
        return {
            "metric": self.metric.key,
            "title": self.metric.title,
            "unit": self.metric.unit,
            "before": fmean(self.before),
            "after": fmean(self.after),
            "rounds_before": len(self.before),
            "rounds_after": len(self.after),
            "spread_before": spread(self.before),
            "spread_after": spread(self.after),
            "percentage": _json_percent(self.change.value),
            "percentage_low": _json_percent(self.change.low),
            "percentage_high": _json_percent(self.change.high),
            "verdict": self.verdict,
        }


def _json_percent(fraction: float | None) -> float | None:
    """JSON has no infinity: a figure that was 0 before has no percentage."""
    return None if fraction is None or math.isinf(fraction) else 100 * fraction


def _convert_older(path: Path) -> dict[str, Any] | None:
    """Returns the older form of results in today's, or None if the file has neither."""
    try:
        older = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(older, dict) or not isinstance(older.get("runs"), dict) or "command" not in older:
        return None
    cases = {}
    for workload, libraries in older["runs"].items():
        if not isinstance(libraries, dict):
            return None
        for library, runs in libraries.items():
            if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
                return None
            cases[f"{workload} {library}"] = [
                {OLDER_KEYS.get(key, key): value for key, value in run.items()} for run in runs
            ]
    return {**older, "cases": cases}


def read(path: Path) -> dict[str, Any]:
    """Reads results in today's form, or in the older one, which is converted.

    Raises:
        BadResultsError: The file cannot be read, has neither form, or holds a comparison.
    """
    try:
        read = results.read(path)
    except results.BadResultsError:
        older = _convert_older(path)
        if older is None:
            raise
        read = older
    if not isinstance(read.get("command"), str):
        raise results.BadResultsError(f"{path}: it does not say which command measured")
    if read["command"] == "compare":
        raise results.BadResultsError(f"{path}: a comparison, not measurements")
    for case, rounds in read["cases"].items():
        if not isinstance(rounds, list) or not rounds or not all(isinstance(record, dict) for record in rounds):
            raise results.BadResultsError(f"{path}: case {case!r} is no list of rounds")
        for record in rounds:
            for key, value in record.items():
                if isinstance(value, float) and not math.isfinite(value):
                    raise results.BadResultsError(f"{path}: {key!r} of case {case!r} is not a finite number")
    return read


def warnings(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Returns what else differs between two sittings, besides the code that was to be compared."""
    lines: list[str] = []
    for part in ("machine", "versions", "options"):
        lines += _differences(part, before.get(part), after.get(part))
    for here, there, word in ((before, after, "before"), (after, before, "after")):
        alone = [case for case in here["cases"] if case not in there["cases"]]
        if alone:
            lines.append(f"only {word}, so left out: {', '.join(alone)}")
        if here.get("failures"):
            lines.append(f"runs that failed {word}: {len(here['failures'])}")
    return lines


def _differences(name: str, before: Any, after: Any) -> Iterator[str]:
    if isinstance(before, dict) != isinstance(after, dict):
        yield f"{name}: only {'before' if isinstance(before, dict) else 'after'}"
    elif isinstance(before, dict):
        for key in dict.fromkeys([*before, *after]):
            if key not in NOT_CIRCUMSTANCES:
                yield from _differences(f"{name} {key}", before.get(key), after.get(key))
    elif before != after:
        told = ["none" if value is None else json.dumps(value, ensure_ascii=False) for value in (before, after)]
        yield f"{name} differs: {told[0]} before, {told[1]} after"


def _values(rounds: Sequence[dict[str, Any]], key: str) -> tuple[float, ...]:
    return tuple(record[key] for record in rounds if _is_number(record.get(key)))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def metric_keys(rounds: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the keys of all figures of a case: known ones in the order of `benchmarks.metrics`, then the others."""
    found = dict.fromkeys(key for record in rounds for key, value in record.items() if _is_number(value))
    return [key for key in METRICS if key in found] + [key for key in found if key not in METRICS]


def metric(key: str) -> Metric:
    """Returns what is known of a figure; an unknown one is called by its key, and neither direction is better."""
    return METRICS.get(key) or Metric(key, key, "", None)


def rows(
    before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]], wanted: Sequence[str] | None, confidence: float
) -> list[Row]:
    """Compares the rounds of one case, figure by figure.

    Args:
        before: A record a round.
        after: The same of the other sitting.
        wanted: Keys of figures; None means all that both have.
        confidence: How surely intervals hold the true change.
    """
    compared = []
    for key in metric_keys(before):
        values = _values(before, key), _values(after, key)
        if all(values) and (wanted is None or key in wanted):
            compared.append(Row(metric(key), *values, change(*values, confidence)))
    return compared


def figure(value: float) -> str:
    """Writes a figure with four significant digits, and no more decimals than those need."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.4g}"


def percent(fraction: float | None) -> str:
    """Writes a change as a percentage with its sign."""
    if fraction is None:
        return ""
    return f"{100 * fraction:+.2f}%" if math.isfinite(fraction) else "from 0"


def _heading(metric: Metric) -> str:
    """Returns title and unit, unless the title is a rate and so says its unit itself."""
    return metric.title if metric.title.endswith("/s") else f"{metric.title} {metric.unit}".rstrip()


def table(compared: Sequence[Row], confidence: float, sides: tuple[str, str] = ("Before", "After")) -> list[str]:
    """Writes the rows of one case.

    Args:
        compared: The rows.
        confidence: For the head of the interval's column.
        sides: What is compared, for the heads of its columns.
    """
    head = ("Title", sides[0], "spread", sides[1], "spread", "Percentage", f"{100 * confidence:g}% interval", "Verdict")
    lines = [head]
    for row in compared:
        changed = row.change
        known = changed.low is not None and math.isfinite(changed.value)
        lines.append(
            (
                _heading(row.metric),
                figure(fmean(row.before)),
                f"{spread(row.before):.1%}" if len(row.before) > 1 else "",
                figure(fmean(row.after)),
                f"{spread(row.after):.1%}" if len(row.after) > 1 else "",
                percent(changed.value),
                f"{percent(changed.low)} to {percent(changed.high)}" if known else "",
                row.verdict,
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    written = []
    for line in lines:
        cells = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        # A verdict is words: those read better from one edge.
        written.append("  ".join([*cells[:-1], line[-1]]).rstrip())
    return written


def worse(by_case: dict[str, list[Row]], bound: float) -> list[str]:
    """Returns what got worse by more than a fraction of `bound`, noise taken off, a line each."""
    return [
        f"{case}: {row.metric.title} {figure(fmean(row.before))} to {figure(fmean(row.after))}, "
        f"{percent(row.change.value)}, surely worse by {100 * amount:.2f}%"
        for case, compared in by_case.items()
        for row in compared
        if (amount := row.surely_worse) is not None and amount > bound
    ]


def _results_file(text: str) -> tuple[str, dict[str, Any]]:
    try:
        return text, read(Path(text))
    except results.BadResultsError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _keys(text: str) -> tuple[str, ...]:
    keys = tuple(dict.fromkeys(key.strip() for key in text.split(",") if key.strip()))
    if not keys:
        raise argparse.ArgumentTypeError("no metric named")
    return keys


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _bound(text: str) -> float:
    value = _number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage of 0 or more")
    return value / 100


def confidence(text: str) -> float:
    """Parses a confidence in percent."""
    value = _number(text)
    if not 50 <= value <= 99.99:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage from 50 to 99.99")
    return value / 100


def add_confidence(parser: argparse.ArgumentParser) -> None:
    """Adds the flag that `compare` and `paired` share."""
    parser.add_argument(
        "--confidence",
        type=confidence,
        default=0.95,
        metavar="PERCENT",
        help="how surely an interval holds the true change; at 95, one figure in twenty that did not change at all is "
        "still called changed (default: 95)",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `compare`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXPLANATION
    parser.add_argument("before", type=_results_file, metavar="BEFORE", help="results of a command: a JSON file")
    parser.add_argument("after", type=_results_file, metavar="AFTER", help="later results of the same command")
    parser.add_argument(
        "--metrics",
        type=_keys,
        metavar="A,B",
        help="figures to compare, by their keys in the files, as ops_per_second,p99_us (default: all)",
    )
    add_confidence(parser)
    parser.add_argument(
        "--fail-if-worse",
        type=_bound,
        metavar="PERCENT",
        help="end with code 1 if a figure got worse by more than this even at the better end of its interval, or if "
        "single rounds leave nothing to judge: for CI",
    )
    parser.add_argument(
        "--json",
        type=json_path,
        default=DEFAULT_JSON,
        metavar="FILE",
        help="where the comparison goes (default: benchmarks/results/compare.json)",
    )


def main(arguments: argparse.Namespace) -> int:
    """Compares, prints a table for each case, writes the JSON.

    Returns:
        0; 1 if the files cannot be compared or `--fail-if-worse` found something; 2 if nobody has a metric.
    """
    (before_name, before), (after_name, after) = arguments.before, arguments.after
    if before["command"] != after["command"]:
        print(f"cannot compare results of {before['command']!r} with those of {after['command']!r}", file=sys.stderr)
        return 1
    common = [case for case in before["cases"] if case in after["cases"]]
    if not common:
        told = [", ".join(side["cases"]) or "none" for side in (before, after)]
        print(f"no case in common: {before_name} has {told[0]}; {after_name} has {told[1]}", file=sys.stderr)
        return 1
    by_case = {
        case: rows(before["cases"][case], after["cases"][case], arguments.metrics, arguments.confidence)
        for case in common
    }
    keys = {row.metric.key for compared in by_case.values() for row in compared}
    missing = [key for key in arguments.metrics or () if key not in keys]
    if missing:
        known = dict.fromkeys(key for case in common for key in metric_keys(before["cases"][case]))
        print(
            f"argument --metrics: no case has {', '.join(missing)} on both sides; "
            f"before, there are: {', '.join(known)}",
            file=sys.stderr,
        )
        return 2
    if not keys:
        print("the cases in common have no figure in common", file=sys.stderr)
        return 1
    warned = warnings(before, after)
    for line in warned:
        print(f"warning: {line}", file=sys.stderr)
    _print_tables(by_case, before, after, arguments.confidence)
    # Nothing was measured now: the circumstances that count are those of the two files.
    record: dict[str, Any] = {
        "format": results.FORMAT,
        "command": "compare",
        "compared": before["command"],
        "before": {"file": before_name, **_circumstances(before)},
        "after": {"file": after_name, **_circumstances(after)},
        "confidence": arguments.confidence,
        "warnings": warned,
        "cases": {case: [row.as_json() for row in compared] for case, compared in by_case.items()},
    }
    code = 0
    if arguments.fail_if_worse is not None:
        record["fail_if_worse"] = arguments.fail_if_worse
        record["worse"], code = _judge(by_case, arguments.fail_if_worse)
    results.write(arguments.json, record)
    return code


def _circumstances(read: dict[str, Any]) -> dict[str, Any]:
    return {key: read.get(key) for key in ("time", "machine", "versions", "options")}


def _print_tables(
    by_case: dict[str, list[Row]], before: dict[str, Any], after: dict[str, Any], confidence: float
) -> None:
    for case, compared in by_case.items():
        rounds = [len(side["cases"][case]) for side in (before, after)]
        print(f"{case} ({rounds[0]} {'round' if rounds[0] == 1 else 'rounds'} before, {rounds[1]} after)")
        for line in table(compared, confidence):
            print(f"  {line}")
        print()
    print("Before and After are means of the rounds; spread is largest round - smallest, as a share of the median.")
    print(
        f"Where an interval holds zero, the change is within the noise; of figures that did not change at all, "
        f"{100 * (1 - confidence):.3g} in 100 are called changed all the same."
    )
    fewest = min(min(len(row.before), len(row.after)) for compared in by_case.values() for row in compared)
    if fewest < 3:
        words = "One round says nothing" if fewest == 1 else "Two rounds say little"
        print(f"{words} of noise: measure both sides with --rounds 5 or more.")


def _judge(by_case: dict[str, list[Row]], bound: float) -> tuple[list[str], int]:
    """Says what got worse; returns it with the exit code."""
    told = worse(by_case, bound)
    for line in told:
        print(f"worse by more than {100 * bound:g}%: {line}")
    directed = [row for rows in by_case.values() for row in rows if row.metric.higher_is_better is not None]
    judged = [row for row in directed if row.surely_worse is not None]
    if not judged:
        reason = "there are single rounds only" if directed else "of no figure it is known which way is better"
        print(f"--fail-if-worse can judge nothing: {reason}", file=sys.stderr)
        return told, 1
    if len(judged) < len(directed):
        print(f"warning: {len(directed) - len(judged)} figures of single rounds were not judged", file=sys.stderr)
    if not told:
        print(f"nothing got worse by more than {100 * bound:g}% beyond the noise.")
    return told, 1 if told else 0
