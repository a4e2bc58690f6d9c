"""`paired`: its sums and complaints, and short runs of revisions that a small repository of the test's own has."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from benchmarks import compare, paired, results
from benchmarks.__main__ import main
from benchmarks.arguments import default_cores
from benchmarks.machine import ROOT
from benchmarks.paired import Options, Revision, Sitting
from benchmarks.peers import RunFailedError
from benchmarks.workloads import WORKLOADS, Workload

GIT = shutil.which("git")
needs_git = pytest.mark.skipif(GIT is None, reason="git is not installed")
needs_two_cores = pytest.mark.skipif(default_cores() is None, reason="there are no two cores to pin to")

QUICK = ["--workloads", "unary_1", "--rounds", "2", "--duration", "0.05", "--warmup", "0.02"]


def git(folder: Path, *arguments: str) -> str:
    assert GIT is not None
    identity = ["-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run([GIT, *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Three commits: `good` has this tree's package, `broken` one that cannot be imported, `empty` none."""
    folder = tmp_path_factory.mktemp("repository")
    git(folder, "init", "--quiet")
    shutil.copytree(ROOT / "trio_grpc", folder / "trio_grpc", ignore=shutil.ignore_patterns("__pycache__"))
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "good")
    git(folder, "tag", "good")
    face = folder / "trio_grpc" / "__init__.py"
    text = face.read_text()
    face.write_text('raise ImportError("this revision is broken")\n')
    git(folder, "commit", "--quiet", "-a", "-m", "broken")
    git(folder, "tag", "broken")
    git(folder, "rm", "--quiet", "-r", "trio_grpc")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "empty")
    git(folder, "tag", "empty")
    git(folder, "reset", "--quiet", "--hard", "good")
    assert face.read_text() == text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paired, "REPOSITORY", folder)
        yield folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that temporary folders are made in, to see what is left of them."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def left_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


REVISIONS = (Revision("old", "a" * 40, "1" * 40), Revision("WORKTREE", "b" * 40, None))


def options(rounds: int, *workloads: str, confidence: float = 0.95) -> Options:
    played = tuple(WORKLOADS[name] for name in workloads)
    return Options(REVISIONS, played, rounds, duration=1.0, warmup=0.1, cores=(3, 5), confidence=confidence)


def pair(a: float, b: float) -> tuple[dict[str, float], dict[str, float]]:
    return {"ops_per_second": a, "p50_us": 1e6 / a}, {"ops_per_second": b, "p50_us": 1e6 / b}


def words(lines: Iterator[str]) -> list[str]:
    return [" ".join(line.split()) for line in lines]


def test_the_report_tells_every_round_and_the_sums() -> None:
    sitting = Sitting({"unary_1": [pair(100.0, 120.0), pair(120.0, 120.0), pair(100.0, 121.0), pair(120.0, 121.0)]})
    lines = words(paired.report(sitting, options(4, "unary_1")))
    assert lines[:2] == [
        "A = aaaaaaaaaa (old)",
        "B = bbbbbbbbbb with the uncommitted changes of the working tree",
    ]
    assert "B against A A on core Ops/s 50th-Lat" in lines
    assert "round 1 3 +20.00% -16.67%" in lines
    assert "round 2 5 +0.00% +0.00%" in lines
    assert "round 3 3 +21.00% -17.36%" in lines
    assert "round 4 5 +0.83% -0.83%" in lines
    # The fourth root of 1.2 * 1 * 1.21 * 121/120.
    (rate,) = [line for line in lines if line.startswith("Ops/s")]
    assert rate.startswith("Ops/s 110 18.2% 120.5 0.8% +10.00% ")
    assert rate.endswith(" better")
    (latency,) = [line for line in lines if line.startswith("50th-Lat")]
    assert latency.endswith(" better")
    assert not any("DISTURBED" in line or "other programs" in line for line in lines)


def test_a_figure_that_some_round_has_not_got_is_left_out() -> None:
    rounds = [pair(100.0, 110.0), pair(100.0, 110.0)]
    assert [row.metric.key for row in paired.rows(rounds, 0.95)] == ["ops_per_second", "p50_us"]
    rounds[1][0]["p50_us"] = 0.0
    assert [row.metric.key for row in paired.rows(rounds, 0.95)] == ["ops_per_second"]


def test_two_rounds_and_disturbances_are_told_of() -> None:
    sitting = Sitting({"unary_1": [pair(100.0, 200.0), pair(100.0, 200.0)]}, {"unary_1": [0.01, 0.3]})
    lines = words(paired.report(sitting, options(2, "unary_1")))
    assert any(line.startswith("Ops/s 100 0.0% 200 0.0% +100.00%") and "noise unknown" in line for line in lines)
    assert "Two rounds say nothing of noise: measure with --rounds 6 or more." in lines
    assert any(line.startswith("1 of 2 rounds lost more than 5% of a core") for line in lines)


def test_a_workload_that_failed_is_told_of_with_the_reason() -> None:
    sitting = Sitting(failures={"unary_1": "it fell over"})
    assert "failed: it fell over" in words(paired.report(sitting, options(2, "unary_1")))


def test_what_goes_to_disk_can_be_compared(tmp_path: Path) -> None:
    sitting = Sitting({"unary_1": [pair(100.0, 110.0), pair(100.0, 110.0)]}, checked=8)
    path = tmp_path / "paired.json"
    results.write(path, paired.as_json(sitting, options(2, "unary_1")))
    record = compare.read(path)
    assert list(record["cases"]) == ["unary_1 A", "unary_1 B"]
    assert [figures["ops_per_second"] for figures in record["cases"]["unary_1 B"]] == [110.0, 110.0]
    assert record["core_of_a_by_round"] == [3, 5]
    assert record["revisions"]["A"] == {
        "asked": "old",
        "commit": "a" * 40,
        "tree": "1" * 40,
        "uncommitted_changes": False,
    }
    assert record["revisions"]["B"]["uncommitted_changes"] is True
    (rate, latency) = record["differences"]["unary_1"]
    assert rate["metric"] == "ops_per_second"
    assert rate["percentage"] == pytest.approx(10.0)
    assert rate["percentage_by_round"] == pytest.approx([10.0, 10.0])
    assert latency["verdict"] == "noise unknown"


def test_only_what_neither_end_used_was_taken_by_other_programs() -> None:
    # The core was busy for 0.95: the client says that others than itself took 0.5, of which 0.4 were the server's.
    run = {"foreign_cpu": 0.5, "client_cpu": 0.45, "server_cpu": 0.4}
    assert paired.foreign_cpu({**run, "foreign_cpu": 0.55}) == pytest.approx(0.1)
    assert paired.foreign_cpu({**run, "foreign_cpu": 0.1}) == 0.0
    assert paired.foreign_cpu({"client_cpu": 0.5}) == 0.0


@pytest.mark.parametrize(
    ("text", "cores"), [("0\n", {0}), ("0-1\n", {0, 1}), ("2,6\n", {2, 6}), ("0-1,8-9", {0, 1, 8, 9})]
)
def test_lists_of_cores_are_read_as_linux_writes_them(text: str, cores: set[int]) -> None:
    assert paired.core_list(text) == cores


def test_threads_of_one_core_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def measure(options: Options) -> Sitting:
        return Sitting({workload.name: [pair(1.0, 1.0)] * options.rounds for workload in options.workloads})

    monkeypatch.setattr(paired, "siblings", lambda core: {0, 1})
    monkeypatch.setattr(paired, "measure", measure)
    monkeypatch.setattr(paired, "revision", lambda text: Revision(text, text * 40, None))
    monkeypatch.setattr(paired, "default_cores", lambda: (0, 1))
    assert main(["paired", "a", "b", *QUICK, "--json", str(tmp_path / "r.json")]) == 0
    assert "cores 0 and 1 are threads of one physical core" in capsys.readouterr().err


def test_a_run_that_finished_nothing_has_no_figures() -> None:
    with pytest.raises(RunFailedError, match=r"A finished no operation in 1\.00 s"):
        paired.figures({"total_ops": 0, "seconds": 1.0}, "A")


@needs_git
def test_revisions_are_named_as_git_names_them(repository: Path) -> None:
    good = git(repository, "rev-parse", "good").strip()
    tree = git(repository, "rev-parse", "good:trio_grpc").strip()
    assert paired.revision("good") == Revision("good", good, tree)
    assert paired.revision("broken~1").commit == good
    assert paired.revision(good[:8]).label == good[:10]
    # Nothing was changed since.
    assert paired.revision(".") == Revision(".", good, tree)


@needs_git
def test_the_working_tree_with_its_changes_is_a_revision_too(repository: Path, tmp_path: Path) -> None:
    added = repository / "trio_grpc" / "added.py"
    added.write_text("")
    try:
        changed = paired.revision("WORKTREE")
        paired.check_out(changed, tmp_path / "changed")
    finally:
        added.unlink()
    assert changed.tree is None
    assert changed.commit == paired.revision("good").commit
    assert (tmp_path / "changed" / "trio_grpc" / "added.py").exists()
    paired.check_out(paired.revision("good"), tmp_path / "good")
    assert not (tmp_path / "good" / "trio_grpc" / "added.py").exists()
    assert (tmp_path / "good" / "trio_grpc" / "__init__.py").exists()
    assert [path.name for path in (tmp_path / "good").iterdir()] == ["trio_grpc"]


@needs_git
@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nothing", "'nothing': fatal: bad revision 'nothing'"),
        ("--all", "'--all': fatal: bad revision '--all'"),
        ("good..broken", "'good..broken': fatal: "),
        ("empty", "'empty': fatal: "),
    ],
)
def test_revisions_that_are_none_are_refused_in_gits_words(name: str, complaint: str, repository: Path) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        paired.revision(name)
    assert str(refused.value).startswith(complaint)


@needs_git
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nothing", "good"], "argument REV_A: 'nothing': fatal: bad revision 'nothing'"),
        (["good", "nothing"], "argument REV_B: 'nothing': fatal: bad revision 'nothing'"),
        (["good", "good", "--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["good", "good", "--rounds", "3"], "argument --rounds: '3' is odd"),
        (["good", "good", "--rounds", "0"], "argument --rounds: '0' is not a whole number above 0"),
        (["good", "good", "--cores", "none"], "argument --cores: 'none' is not A,B"),
        (["good", "good", "--cores", "0,0"], "argument --cores: '0,0' is not A,B"),
        (["good", "good", "--cores", "0,99999"], "argument --cores: core 99999 is not one of"),
        (["good", "good", "--workloads", "million"], "argument --workloads: unknown workload 'million'"),
        (["good", "good", "--duration", "0"], "argument --duration: '0' is not a number above 0"),
        (["good", "good", "--confidence", "1"], "argument --confidence: '1' is not a percentage from 50 to 99.99"),
    ],
)
def test_a_bad_flag_is_named(
    arguments: list[str], complaint: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["paired", *arguments])
    assert complaint in capsys.readouterr().err


@needs_git
def test_one_core_is_too_few(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paired, "default_cores", lambda: None)
    assert main(["paired", "good", "good"]) == 1
    assert "need two cores" in capsys.readouterr().err


@needs_git
@needs_two_cores
def test_a_short_run_gives_tables_and_json_and_leaves_no_folder(
    repository: Path,
    temporary: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    played: list[tuple[tuple[int, int], list[dict[str, Any]]]] = []

    async def play_once(
        folders: tuple[Path, Path], certificates: Path, workload: Workload, cores: tuple[int, int], options: Options
    ) -> list[dict[str, Any]]:
        # Processes are slow to start: the second round repeats the figures of the first.
        figures = played[0][1] if played else await play_pair(folders, certificates, workload, cores, options)
        played.append((cores, figures))
        return figures

    play_pair = paired.play_pair
    monkeypatch.setattr(paired, "play_pair", play_once)
    path = tmp_path / "paired.json"
    assert main(["paired", "good", "WORKTREE", *QUICK, "--json", str(path)]) == 0
    out, err = capsys.readouterr()
    (first, _), (second, _) = played
    assert first == second[::-1] == default_cores()
    assert "trio_grpc is the same in both revisions" in err
    assert "[  2/2] round 2/2 unary_1" in err
    assert "unary_1: unary, empty messages, one call at a time: latency" in out
    record: dict[str, Any] = json.loads(path.read_text())
    assert record["imports"]["processes_checked"] == 8
    assert record["failures"] == {}
    for side in ("A", "B"):
        by_round = record["cases"][f"unary_1 {side}"]
        assert len(by_round) == 2
        assert all(figures["ops_per_second"] > 0 and figures["p50_us"] > 0 for figures in by_round)
    assert left_in(temporary) == []


@needs_git
@needs_two_cores
def test_a_revision_that_does_not_run_fails_by_its_side_and_words(
    repository: Path, temporary: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "paired.json"
    assert main(["paired", "broken", "good", *QUICK, "--json", str(path)]) == 1
    reason = "A's server ended with code 1: ImportError: this revision is broken"
    assert f"failed: {reason}" in capsys.readouterr().out
    assert json.loads(path.read_text())["failures"] == {"unary_1": reason}
    assert left_in(temporary) == []


@needs_two_cores
def test_a_package_from_elsewhere_is_noticed(tmp_path: Path) -> None:
    # Folders without a package: the processes then find the one of this tree.
    folders = (tmp_path / "A", tmp_path / "B")
    for folder in folders:
        folder.mkdir()
    cores = default_cores()
    assert cores is not None
    with pytest.raises(RunFailedError, match=r"A's server imported .* instead of .*A/trio_grpc/__init__\.py"):
        trio.run(paired.play_pair, folders, tmp_path, WORKLOADS["unary_1"], cores, options(2, "unary_1"))


@needs_git
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_nothing_left(
    number: signal.Signals,
    repository: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def be_told_to_end(*arguments: Any) -> Any:
        assert left_in(temporary) != []
        os.kill(os.getpid(), number)
        await trio.sleep_forever()

    monkeypatch.setattr(paired, "play_pair", be_told_to_end)
    monkeypatch.setattr(paired, "default_cores", lambda: (0, 1))
    assert main(["paired", "good", "good", *QUICK]) == 130
    assert "ended by a signal: nothing is written" in capsys.readouterr().err
    assert left_in(temporary) == []
