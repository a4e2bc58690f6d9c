"""docs/performance.md: its commands can be run as they stand there, and its tables leave nothing out."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from benchmarks import paired, results
from benchmarks.__main__ import COMMANDS, parser
from benchmarks.machine import ROOT
from benchmarks.paired import Revision
from benchmarks.variants import VARIANTS
from benchmarks.workloads import WORKLOADS, Against

PAGE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
SAMPLES = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
    if line.startswith("python -m benchmarks")
]


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_cells(text: str) -> list[str]:
    return re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)


def test_the_samples_have_flags_that_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What a sample reads is what another one has written, and a checkout may have no history.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paired, "revision", lambda text: Revision(text, "a" * 40, "b" * 40))
    for name in ("before.json", "after.json"):
        results.write(Path(name), results.record("run", {}, {"case": [{"ops_per_second": 1.0}]}))
    known = parser()
    commands = {known.parse_args(shlex.split(sample)[3:]).command for sample in SAMPLES}
    assert commands >= {"run", "compare", "paired", "ideas", "frames", "codec"}


def test_every_command_answers_a_question() -> None:
    cells = first_cells(section("Which command answers which question"))
    assert sorted(cells) == sorted(f"`python -m benchmarks {command}`" for command in COMMANDS)


def test_every_workload_is_explained() -> None:
    cells = first_cells(section("How it is measured"))
    assert cells == [f"`{name}`" for name in WORKLOADS]


def test_every_idea_has_a_row_for_each_of_its_workloads() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", section("Four ideas, and what they gain here"), re.MULTILINE)
    assert rows == [(variant.name, workload) for variant in VARIANTS.values() for workload in variant.workloads]


def test_every_target_has_a_row_with_its_bound() -> None:
    cells = [cell for cell in first_cells(section("Targets")) if cell[1:].partition("`")[0] in WORKLOADS]
    targets = [(workload.name, target) for workload in WORKLOADS.values() for target in workload.targets]
    assert [cell[1:].partition("`")[0] for cell in cells] == [name for name, _ in targets]
    for cell, (_, target) in zip(cells, targets, strict=True):
        assert ("at least" in cell) is target.at_least
        assert f"{target.bound:g}" in cell or (target.bound == 1 and target.against is not Against.NUMBER)
