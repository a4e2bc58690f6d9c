"""The benchmarks' arithmetic, verdicts and complaints about flags.  No figure of a real run is asserted on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.__main__ import main, parser
from benchmarks.libraries.base import Meter, RunOptions
from benchmarks.statistics import Ratio, median, passes, ratio, spread
from benchmarks.workloads import LIBRARIES, WORKLOADS, Against, Figure, Target, plays


def test_median_is_the_middle_or_the_mean_of_the_middle_two() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5


def test_median_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing"):
        median([])


def test_spread_is_the_range_as_a_fraction_of_the_median() -> None:
    assert spread([90.0, 100.0, 120.0]) == pytest.approx(0.3)
    assert spread([5.0]) == 0.0
    assert spread([0.0, 0.0]) == 0.0


def test_ratio_divides_medians_and_ranges_over_rounds() -> None:
    measured = ratio([10.0, 30.0, 20.0], [5.0, 10.0, 4.0])
    assert measured == Ratio(4.0, 2.0, 5.0)
    assert str(measured) == "4.00 (2.00 to 5.00)"


def test_ratio_of_one_round_has_no_range_and_tiny_ones_are_not_shown_as_zero() -> None:
    assert str(ratio([3.0], [2.0])) == "1.50"
    assert str(ratio([1.0], [1e6])) == "<0.01"


@pytest.mark.parametrize(("ours", "theirs"), [([], [1.0]), ([1.0], []), ([1.0], [0.0])])
def test_ratio_without_two_sides_is_refused(ours: list[float], theirs: list[float]) -> None:
    with pytest.raises(ValueError, match=r"nothing"):
        ratio(ours, theirs)


def test_bounds_are_inclusive_in_both_directions() -> None:
    assert passes(5.0, 5.0, at_least=True)
    assert not passes(4.99, 5.0, at_least=True)
    assert passes(0.7, 0.7, at_least=False)
    assert not passes(0.71, 0.7, at_least=False)


def results_of(**rates: list[float]) -> peers.Results:
    results = peers.Results()
    for library, values in rates.items():
        for value in values:
            results.add(WORKLOADS["unary_100"], LIBRARIES[library], {"ops_per_second": value})
    return results


def test_the_best_peer_is_never_ours_nor_the_floor() -> None:
    results = results_of(trio_grpc=[900.0], floor=[999.0], grpclib=[100.0], grpcio_sync=[200.0])
    workload = WORKLOADS["unary_100"]
    assert results.best_peer(workload, Figure.RATE, higher_is_better=True) == "grpcio_sync"
    assert results.best_peer(workload, Figure.RATE, higher_is_better=False) == "grpclib"
    assert results.best_peer(workload, Figure.P50, higher_is_better=False) is None


@pytest.mark.parametrize(("bound", "passed"), [(4.5, True), (4.6, False)])
def test_a_target_is_judged_against_the_best_peer(bound: float, passed: bool) -> None:
    results = results_of(trio_grpc=[900.0, 950.0], grpclib=[100.0, 100.0], grpcio_sync=[200.0, 205.0])
    target = Target(Figure.RATE, Against.BEST_PEER, bound, at_least=True)
    verdict = peers.judge(results, WORKLOADS["unary_100"], target)
    assert verdict.passed is passed
    assert "grpcio_sync" in verdict.measured


def test_a_target_without_figures_is_not_judged() -> None:
    for target in WORKLOADS["unary_100"].targets:
        assert peers.judge(results_of(trio_grpc=[900.0]), WORKLOADS["unary_100"], target).passed is None


def test_an_absolute_target_needs_no_peer() -> None:
    results = peers.Results()
    results.add(WORKLOADS["slow_reader"], LIBRARIES["trio_grpc"], {"rss_growth_mib": 9.0})
    target = Target(Figure.RSS_GROWTH, Against.NUMBER, 64.0, at_least=False)
    assert peers.judge(results, WORKLOADS["slow_reader"], target).passed is True


def test_what_is_for_one_library_or_a_few_workloads_is_played_by_no_other() -> None:
    assert plays(LIBRARIES["trio_grpc"], WORKLOADS["million"])
    assert not plays(LIBRARIES["grpclib"], WORKLOADS["million"])
    assert plays(LIBRARIES["floor"], WORKLOADS["unary_1"])
    assert not plays(LIBRARIES["floor"], WORKLOADS["mixed"])


def test_the_meter_reports_percentiles_of_what_came_after_the_warm_up() -> None:
    options = RunOptions(WORKLOADS["unary_1"], "127.0.0.1", 1, 0.1, 0.1, 1, 1.0, None, "asyncio")
    meter = Meter(options)
    meter.latencies.append(10**9)
    meter.begin()
    meter.latencies.extend(microseconds * 1000 for microseconds in range(1, 101))
    meter.count += 100
    meter.end()
    result = json.loads(json.dumps(meter.result()))
    assert result["total_ops"] == 100
    assert result["latencies"] == 100
    assert result["p50_us"] == 51.0
    assert result["p99_us"] == 100.0
    assert result["average_us"] == 50.5


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--workloads", "unary_1,nonsense"], "argument --workloads: unknown workload 'nonsense'; known: unary_100"),
        (["--workloads", ","], "argument --workloads: no workload named"),
        (["--libraries", "grpcio"], "argument --libraries: unknown library 'grpcio'; known: trio_grpc"),
        (["--rounds", "0"], "argument --rounds: '0' is not a whole number above 0"),
        (["--rounds", "1.5"], "argument --rounds: '1.5' is not a whole number above 0"),
        (["--duration", "-1"], "argument --duration: '-1' is not a number above 0"),
        (["--duration", "inf"], "argument --duration: 'inf' is not a number above 0"),
        (["--warmup", "soon"], "argument --warmup: 'soon' is not a number above 0"),
        (["--retries", "-1"], "argument --retries: '-1' is not a whole number of 0 or more"),
        (["--cores", "one"], "argument --cores: 'one' is neither"),
        (["--cores", "0,99999"], "argument --cores: core 99999 is not one of"),
        (["--json", "no/such/folder/x.json"], "argument --json: the folder 'no/such/folder' does not exist"),
        (["--json", "."], "argument --json: '.' is a folder"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
    ],
)
def test_a_bad_flag_is_named(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["peers", *arguments])
    assert complaint in capsys.readouterr().err


def test_names_are_taken_once_and_in_the_order_given() -> None:
    arguments = parser().parse_args(["peers", "--libraries", "grpclib, trio_grpc,grpclib"])
    assert [library.name for library in arguments.libraries] == ["grpclib", "trio_grpc"]


def test_a_library_whose_environment_is_missing_is_skipped_with_the_way_to_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "ROOT", tmp_path)
    assert main(["peers", "--libraries", "purerpc"]) == 1
    complaint = capsys.readouterr().err
    assert "skipping purerpc" in complaint
    assert "python -m benchmarks setup" in complaint
