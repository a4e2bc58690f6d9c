"""What `compare` says of two files, and what it refuses.  The files are made up: nothing is measured here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare, results
from benchmarks.__main__ import main

Cases = dict[str, list[dict[str, Any]]]


class Desk:
    """Writes files of results and compares them."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys
        self.code = 0
        self.out = ""
        self.err = ""

    def file(self, name: str, cases: Cases, **changes: Any) -> str:
        record = {
            "format": 1,
            "command": "run",
            "machine": {"processor": "abacus", "cores": 2},
            "versions": {"trio": "0.30"},
            "options": {"duration": 3.0, "cores": [0, 1], "json": name},
            "cases": cases,
        }
        path = self.folder / name
        path.write_text(json.dumps({**record, **changes}))
        return str(path)

    def compare(self, *arguments: str) -> dict[str, Any]:
        """Runs the command; returns what it left on disk, if anything."""
        path = self.folder / "comparison.json"
        path.unlink(missing_ok=True)
        self.code = main(["compare", *arguments, "--json", str(path)])
        self.out, self.err = self.capsys.readouterr()
        return json.loads(path.read_text()) if path.exists() else {}

    def compare_cases(self, before: Cases, after: Cases, *arguments: str) -> dict[str, Any]:
        return self.compare(self.file("before.json", before), self.file("after.json", after), *arguments)

    def line(self, *starts_with: str) -> str:
        """Returns the one line of the table that has these cells first, its blanks made single."""
        lines = [" ".join(line.split()) for line in self.out.splitlines()]
        (found,) = [line for line in lines if line.startswith(" ".join(starts_with))]
        return found


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, capsys)


def rounds(key: str, *values: float) -> list[dict[str, Any]]:
    return [{key: value} for value in values]


def test_the_table_has_a_line_for_each_figure_of_each_case(desk: Desk) -> None:
    before = {
        "unary": [{"p50_us": 200.0, "ops_per_second": 1000.0}, {"p50_us": 202.0, "ops_per_second": 1010.0}],
        "streaming": rounds("ops_per_second", 500.0, 500.0),
    }
    after = {
        "unary": [{"p50_us": 180.0, "ops_per_second": 1090.0}, {"p50_us": 181.8, "ops_per_second": 1100.0}],
        "streaming": rounds("ops_per_second", 400.0, 400.0),
    }
    desk.compare_cases(before, after)
    assert desk.code == 0
    assert "unary (2 rounds before, 2 after)" in desk.out
    # The order is that of benchmarks.metrics, not of the file.
    assert desk.out.index("Ops/s") < desk.out.index("50th-Lat")
    assert desk.line("Ops/s", "1,005").startswith("Ops/s 1,005 1.0% 1,095 0.9% +8.96% ")
    assert desk.line("Ops/s", "1,005").endswith("better")
    assert desk.line("50th-Lat").startswith("50th-Lat µs 201 1.0% 180.9 1.0% -10.00% ")
    assert desk.line("50th-Lat").endswith("better")
    assert desk.line("Ops/s", "500") == "Ops/s 500 0.0% 400 0.0% -20.00% -20.00% to -20.00% WORSE"
    assert desk.out.count("Before  spread") == 2
    assert "Two rounds say little of noise" in desk.out


def test_the_file_has_the_same_figures_for_machines(desk: Desk) -> None:
    record = desk.compare_cases({"a": rounds("p99_us", 10.0, 10.0)}, {"a": rounds("p99_us", 11.0, 11.0)})
    assert record["command"] == "compare"
    assert record["compared"] == "run"
    assert record["warnings"] == []
    assert record["before"]["file"].endswith("before.json")
    assert record["after"]["machine"] == {"processor": "abacus", "cores": 2}
    (row,) = record["cases"]["a"]
    assert row["metric"] == "p99_us"
    assert (row["before"], row["after"], row["rounds_before"], row["rounds_after"]) == (10.0, 11.0, 2, 2)
    assert row["percentage"] == pytest.approx(10.0)
    assert row["verdict"] == "WORSE"
    assert "results in" in desk.err


@pytest.mark.parametrize(
    ("key", "before", "after", "verdict"),
    [
        ("ops_per_second", (100.0, 120.0, 80.0), (105.0, 125.0, 85.0), "within the noise"),
        ("ops_per_second", (100.0, 101.0, 99.0), (105.0, 106.0, 104.0), "better"),
        ("p50_us", (100.0, 101.0, 99.0), (105.0, 106.0, 104.0), "WORSE"),
        ("times_floor", (100.0, 101.0, 99.0), (105.0, 106.0, 104.0), "differs"),
        ("moonlight", (100.0, 101.0, 99.0), (105.0, 106.0, 104.0), "differs"),
        ("allocs_per_op", (7.0, 7.0), (7.0, 7.0), "same"),
        ("allocs_per_op", (6.0, 8.0), (6.0, 8.0), "within the noise"),
        ("allocs_per_op", (7.0,), (8.0,), "noise unknown"),
        ("allocs_per_op", (7.0,), (7.0,), "same"),
    ],
)
def test_the_verdict_knows_the_noise_and_which_way_is_better(
    key: str, before: tuple[float, ...], after: tuple[float, ...], verdict: str, desk: Desk
) -> None:
    record = desk.compare_cases({"a": rounds(key, *before)}, {"a": rounds(key, *after)})
    assert record["cases"]["a"][0]["verdict"] == verdict
    assert verdict in desk.out


def test_more_confidence_asked_for_makes_wider_intervals(desk: Desk) -> None:
    before, after = {"a": rounds("p50_us", 100.0, 101.0, 99.0)}, {"a": rounds("p50_us", 105.0, 106.0, 104.0)}
    assert desk.compare_cases(before, after)["cases"]["a"][0]["verdict"] == "WORSE"
    assert "95% interval" in desk.out
    assert desk.compare_cases(before, after, "--confidence", "99.9")["cases"]["a"][0]["verdict"] == "within the noise"
    assert "99.9% interval" in desk.out


def test_unknown_figures_are_shown_by_their_keys_and_words_are_not_figures(desk: Desk) -> None:
    record = {"moonlight": 3, "note": "cloudy", "starved": True, "tenths": [1, 2]}
    compared = desk.compare_cases({"a": [record]}, {"a": [record]})
    assert [row["metric"] for row in compared["cases"]["a"]] == ["moonlight"]
    assert desk.line("moonlight") == "moonlight 3 3 +0.00% same"
    assert "One round says nothing of noise" in desk.out


def test_a_figure_that_was_zero_has_no_percentage_but_can_be_worse(desk: Desk) -> None:
    record = desk.compare_cases(
        {"a": rounds("copies_per_message", 0, 0)}, {"a": rounds("copies_per_message", 1, 1)}, "--fail-if-worse", "50"
    )
    assert desk.line("Copies/message") == "Copies/message 0 0.0% 1 0.0% from 0 WORSE"
    assert record["cases"]["a"][0]["percentage"] is None
    assert desk.code == 1


def test_only_the_metrics_asked_for_are_compared(desk: Desk) -> None:
    cases = {"a": [{"p50_us": 1.0, "p99_us": 2.0, "moonlight": 3.0}]}
    record = desk.compare_cases(cases, cases, "--metrics", "moonlight,p99_us")
    assert [row["metric"] for row in record["cases"]["a"]] == ["p99_us", "moonlight"]


def test_a_metric_that_nobody_has_is_refused_with_those_there_are(desk: Desk) -> None:
    cases = {"a": [{"p50_us": 1.0, "moonlight": 3.0}]}
    assert desk.compare_cases(cases, cases, "--metrics", "p50_us,p51_us") == {}
    assert desk.code == 2
    assert "argument --metrics: no case has p51_us on both sides; before, there are: p50_us, moonlight" in desk.err


def test_files_without_a_figure_in_common_are_refused(desk: Desk) -> None:
    desk.compare_cases({"a": rounds("p50_us", 1.0)}, {"a": rounds("p99_us", 1.0)})
    assert desk.code == 1
    assert desk.err == "the cases in common have no figure in common\n"


@pytest.mark.parametrize(
    ("before", "after", "bound", "code"),
    [
        # Worse by 5 %, surely by 2.7 %.
        ((100.0, 101.0, 99.0), (105.0, 106.0, 104.0), "2.5", 1),
        ((100.0, 101.0, 99.0), (105.0, 106.0, 104.0), "3", 0),
        ((105.0, 106.0, 104.0), (100.0, 101.0, 99.0), "0", 0),
        # Much worse, but it may all be noise.
        ((100.0, 50.0, 150.0), (150.0, 75.0, 225.0), "0", 0),
    ],
)
def test_only_what_is_worse_beyond_the_noise_fails(
    before: tuple[float, ...], after: tuple[float, ...], bound: str, code: int, desk: Desk
) -> None:
    record = desk.compare_cases(
        {"a": rounds("p50_us", *before)}, {"a": rounds("p50_us", *after)}, "--fail-if-worse", bound
    )
    assert desk.code == code
    assert len(record["worse"]) == code
    told = f"worse by more than {bound}%: a: 50th-Lat" if code else f"nothing got worse by more than {bound}%"
    assert told in desk.out


def test_fewer_operations_are_worse_and_a_figure_without_direction_never_is(desk: Desk) -> None:
    desk.compare_cases(
        {"a": [{"ops_per_second": 100.0, "moonlight": 1.0}] * 2},
        {"a": [{"ops_per_second": 80.0, "moonlight": 9.0}] * 2},
        "--fail-if-worse",
        "10",
    )
    assert desk.code == 1
    assert desk.out.count("worse by more than") == 1
    assert "a: Ops/s 100 to 80, -20.00%, surely worse by 20.00%" in desk.out


def test_single_rounds_cannot_pass_for_good(desk: Desk) -> None:
    single = {"a": rounds("p50_us", 1.0)}
    desk.compare_cases(single, single, "--fail-if-worse", "10")
    assert desk.code == 1
    assert "can judge nothing: there are single rounds only" in desk.err


def test_single_rounds_among_others_are_named(desk: Desk) -> None:
    cases = {"a": rounds("p50_us", 1.0), "b": rounds("p50_us", 1.0, 1.0)}
    desk.compare_cases(cases, cases, "--fail-if-worse", "10")
    assert desk.code == 0
    assert "1 figures of single rounds were not judged" in desk.err


def test_figures_without_direction_alone_cannot_pass_for_good(desk: Desk) -> None:
    cases = {"a": rounds("moonlight", 1.0, 1.0)}
    desk.compare_cases(cases, cases, "--fail-if-worse", "10")
    assert desk.code == 1
    assert "of no figure it is known which way is better" in desk.err


def test_results_of_different_commands_are_refused(desk: Desk) -> None:
    cases = {"a": rounds("p50_us", 1.0)}
    desk.compare(desk.file("b.json", cases), desk.file("a.json", cases, command="codec"))
    assert desk.code == 1
    assert desk.err == "cannot compare results of 'run' with those of 'codec'\n"


def test_files_without_a_case_in_common_are_refused(desk: Desk) -> None:
    desk.compare_cases({"a": rounds("p50_us", 1.0)}, {"b": rounds("p50_us", 1.0)})
    assert desk.code == 1
    assert "no case in common: " in desk.err
    assert "before.json has a; " in desk.err


def test_what_else_differs_is_warned_of(desk: Desk) -> None:
    before = desk.file("b.json", {"a": rounds("p50_us", 1.0), "c": rounds("p50_us", 1.0)})
    after = desk.file(
        "a.json",
        {"a": rounds("p50_us", 1.0)},
        machine={"processor": "slide rule", "cores": 2},
        versions={"trio": "0.31", "uvloop": "0.2", "grpclib": {"h2": "4.4"}},
        options={"duration": 1.0, "cores": None, "json": "elsewhere"},
        failures=[{"error": "fell over"}],
    )
    record = desk.compare(before, after)
    assert record["warnings"] == [
        'machine processor differs: "abacus" before, "slide rule" after',
        'versions trio differs: "0.30" before, "0.31" after',
        'versions uvloop differs: none before, "0.2" after',
        "versions grpclib: only after",
        "options duration differs: 3.0 before, 1.0 after",
        "options cores differs: [0, 1] before, none after",
        "only before, so left out: c",
        "runs that failed after: 1",
    ]
    assert all(f"warning: {line}\n" in desk.err for line in record["warnings"])
    assert desk.code == 0


def test_results_of_peers_are_read_in_their_older_form(desk: Desk) -> None:
    def older(rate: float) -> dict[str, Any]:
        run = {"workload": "unary_1", "operations": 3, "rate": rate, "rates_per_tenth": [1.0]}
        return {"command": "peers", "runs": {"unary_1": {"trio_grpc": [run, run], "grpclib": [run]}}}

    for name, rate in (("b.json", 100.0), ("a.json", 120.0)):
        (desk.folder / name).write_text(json.dumps(older(rate)))
    record = desk.compare(str(desk.folder / "b.json"), str(desk.folder / "a.json"))
    assert list(record["cases"]) == ["unary_1 trio_grpc", "unary_1 grpclib"]
    assert desk.line("Ops/s", "100", "0.0%") == "Ops/s 100 0.0% 120 0.0% +20.00% +20.00% to +20.00% better"
    assert "TotalOps" in desk.out


def test_what_another_command_writes_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    results.write(path, results.record("codec", {"rounds": 1}, {"350 B": [{"ns_per_op": 1.5}]}))
    assert compare.read(path)["cases"] == {"350 B": [{"ns_per_op": 1.5}]}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "r.json: No such file"),
        ("{", "r.json: no JSON"),
        ("{}", "r.json: no results of"),
        ('{"command": "peers", "runs": {"unary_1": []}}', "r.json: no results of"),
        ('{"command": "peers", "runs": {"unary_1": {"floor": [1]}}}', "r.json: no results of"),
        ('{"format": 1, "command": "run", "cases": {"a": {}}}', "r.json: case 'a' is no list of rounds"),
        ('{"format": 1, "command": "run", "cases": {"a": []}}', "r.json: case 'a' is no list of rounds"),
        ('{"format": 1, "command": "run", "cases": {"a": [{"x": NaN}]}}', "'x' of case 'a' is not a finite number"),
        ('{"format": 1, "cases": {"a": [{"x": 1}]}}', "r.json: it does not say which command measured"),
        ('{"format": 1, "command": "compare", "cases": {}}', "r.json: a comparison, not measurements"),
    ],
)
def test_a_file_that_is_no_results_is_refused_by_name(text: str | None, complaint: str, desk: Desk) -> None:
    path = desk.folder / "r.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit, match="2"):
        desk.compare(str(path), str(path))
    err = desk.capsys.readouterr().err
    assert "argument BEFORE: " in err
    assert complaint in err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--metrics", ","], "argument --metrics: no metric named"),
        (["--fail-if-worse", "-1"], "argument --fail-if-worse: '-1' is not a percentage of 0 or more"),
        (["--fail-if-worse", "a lot"], "argument --fail-if-worse: 'a lot' is not a percentage of 0 or more"),
        (["--fail-if-worse", "inf"], "argument --fail-if-worse: 'inf' is not a percentage of 0 or more"),
        (["--confidence", "100"], "argument --confidence: '100' is not a percentage from 50 to 99.99"),
        (["--confidence", "very"], "argument --confidence: 'very' is not a percentage from 50 to 99.99"),
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["--json", "no/such/folder/x.json"], "argument --json: the folder 'no/such/folder' does not exist"),
    ],
)
def test_a_bad_flag_is_named(arguments: list[str], complaint: str, desk: Desk) -> None:
    path = desk.file("r.json", {"a": rounds("p50_us", 1.0)})
    with pytest.raises(SystemExit, match="2"):
        main(["compare", path, path, *arguments])
    assert complaint in desk.capsys.readouterr().err
