"""What each idea gains: the product against itself without the idea, on the workloads where that should matter.

Product and variant play by turns, in processes of their own, so that the machine's moods meet both.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

from benchmarks import results, turns
from benchmarks.arguments import names
from benchmarks.peers import Options, RunFailedError, format_figure
from benchmarks.statistics import Change, median, paired_change
from benchmarks.variants import VARIANTS, Variant
from benchmarks.workloads import LIBRARIES, OURS, WORKLOADS, Library, Workload

HELP = "what each idea of the product gains: the product against variants of it without the idea"

#: Under the table.
FOOT = """\
Faster in the middle round; in brackets the worst and the best round, and where the mean of the rounds lies with 95 %
confidence: if that holds zero, the difference is within the noise."""

EPILOG = "ideas, by the name of the variant that goes without:\n" + "\n".join(
    f"  {variant.name:24} {variant.idea}\n  {'':24} (variant: {variant.title})" for variant in VARIANTS.values()
)


@dataclasses.dataclass(frozen=True)
class Pair:
    """One idea on one workload.

    Attributes:
        variant: The product without the idea.
        workload: What is played.
    """

    variant: Variant
    workload: Workload

    @property
    def case(self) -> str:
        """Its name in the results; the product's own rounds are kept under another."""
        return f"{self.workload.name} {self.variant.name}"


def as_library(variant: Variant) -> Library:
    """Returns the library that runs a variant."""
    ours = LIBRARIES[OURS]
    return dataclasses.replace(ours, name=variant.name, arguments=(*ours.arguments, "--variant", variant.name))


def pairs(variants: tuple[Variant, ...], workloads: tuple[Workload, ...] | None) -> list[Pair]:
    """Returns what is to be measured: each variant on its own workloads, or on those that were named."""
    return [
        Pair(variant, workload)
        for variant in variants
        for workload in workloads or tuple(WORKLOADS[name] for name in variant.workloads)
    ]


def measure(todo: list[Pair], options: Options) -> dict[str, list[dict[str, Any]]]:
    """Plays all pairs in each round, telling on stderr how far it is.

    Raises:
        RunFailedError: A run gave no figures.
    """
    figures: dict[str, list[dict[str, Any]]] = {}
    for round_number in range(options.rounds):
        for index, pair in enumerate(todo, 1):
            print(
                f"[round {round_number + 1}/{options.rounds} {index:2}/{len(todo)}] {pair.case:42} ",
                end="",
                file=sys.stderr,
                flush=True,
            )
            both = [(f"{pair.case}: product", LIBRARIES[OURS]), (f"{pair.case}: variant", as_library(pair.variant))]
            # Who goes first alternates.
            for name, library in both if round_number % 2 == 0 else both[::-1]:
                figures.setdefault(name, []).append(turns.play(library, pair.workload, options))
            key = pair.workload.figure.value
            product, variant = (format_figure(figures[name][-1][key]) for name, _ in both)
            unit = pair.workload.unit
            print(f"product {product:>9}, variant {variant:>9} {unit}", file=sys.stderr, flush=True)
    return figures


@dataclasses.dataclass(frozen=True)
class Gain:
    """How much better the product is than a variant, as fractions: 0.05 is five percent faster.

    Attributes:
        median: In the middle round.
        lowest: In the worst round.
        highest: In the best round.
        mean: The mean of the rounds, and the interval that its noise leaves it.
    """

    median: float
    lowest: float
    highest: float
    mean: Change

    def __str__(self) -> str:
        """Says what it means."""
        rounds = f"rounds {self.lowest:+.1%} to {self.highest:+.1%}"
        words = f"{abs(self.median):.1%} {'faster' if self.median >= 0 else 'slower'}"
        if self.mean.low is None or self.mean.high is None:
            return f"{words} ({rounds}), noise unknown"
        noise = f"{rounds}; mean {self.mean.low:+.1%} to {self.mean.high:+.1%}"
        if not self.mean.beyond_noise:
            return f"within the noise: {self.median:+.1%} ({noise})"
        return f"{words} ({noise})"


def gain(product: list[float], variant: list[float], higher_is_better: bool) -> Gain:
    """Compares the product with a variant round by round, because both of a round met the same machine.

    Args:
        product: The product's figure, by round; an even number, as who goes first alternates.
        variant: The variant's figure, by round.
        higher_is_better: The direction of the figure.
    """
    pairs = zip(product, variant, strict=True)
    ratios = [ours / theirs if higher_is_better else theirs / ours for ours, theirs in pairs]
    return Gain(median(ratios) - 1, min(ratios) - 1, max(ratios) - 1, paired_change(ratios))


def table(todo: list[Pair], figures: dict[str, list[dict[str, Any]]]) -> str:
    """Writes the report: one block per idea."""
    lines: list[str] = []
    variant: Variant | None = None
    for pair in todo:
        if pair.variant is not variant:
            variant = pair.variant
            lines += ["", f"{variant.idea}", f"  against {variant.name}: {variant.title}"]
        key = pair.workload.figure.value
        product, other = ([run[key] for run in figures[f"{pair.case}: {which}"]] for which in ("product", "variant"))
        seen = gain(product, other, pair.workload.higher_is_better)
        medians = f"{format_figure(median(product)):>10} against {format_figure(median(other)):>10}"
        lines.append(f"  {pair.workload.name:20} {medians} {pair.workload.unit:14} product is {seen}")
    return "\n".join([*lines[1:], "", FOOT])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `ideas`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument(
        "--variants",
        type=names(VARIANTS, "variant"),
        default=tuple(VARIANTS.values()),
        metavar="A,B",
        help="what to do without (default: each of the variants below)",
    )
    parser.add_argument(
        "--workloads",
        type=names(WORKLOADS, "workload"),
        metavar="X,Y",
        help="play these (default: for each variant those where its idea should matter)",
    )
    turns.add_flags(parser, "ideas", rounds=6, duration=2.0, even=True)


def main(arguments: argparse.Namespace) -> int:
    """Measures, prints the table, writes the JSON."""
    todo = pairs(arguments.variants, arguments.workloads)
    options = turns.run_options(arguments, tuple(dict.fromkeys(pair.workload for pair in todo)))
    try:
        figures = measure(todo, options)
    except RunFailedError as error:
        print(f"\nideas: {error}", file=sys.stderr)
        return 1
    print(table(todo, figures))
    asked_for = {"variants": [variant.name for variant in arguments.variants], **turns.asked_for(options)}
    results.write(arguments.json, results.record("ideas", asked_for, figures))
    return 0
