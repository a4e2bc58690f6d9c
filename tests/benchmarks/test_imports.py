"""`python -m benchmarks imports`: what it says, and when it complains."""

from __future__ import annotations

import json

import pytest

from benchmarks import imports
from benchmarks.__main__ import main

FIRST, OURS, *OTHERS = imports.PROGRAMS


def play(monkeypatch: pytest.MonkeyPatch, costs: dict[str, int]) -> None:
    """Let importing cost what a test says."""
    by_program = {imports.PROGRAMS[name]: cost for name, cost in costs.items()}
    monkeypatch.setattr(imports, "microseconds", by_program.__getitem__)


def test_ratios_are_to_trio_and_protobuf(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    play(monkeypatch, {FIRST: 100_000, OURS: 102_000, **dict.fromkeys(OTHERS, 250_000)})
    assert main(["imports", "--rounds", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "base_ms": 100.0,
        "limit": 1.5,
        "ratios": {FIRST: 1.0, OURS: 1.02, **dict.fromkeys(OTHERS, 2.5)},
    }


def test_an_import_that_costs_too_much_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, {FIRST: 100_000, OURS: 150_000, **dict.fromkeys(OTHERS, 250_000)})
    assert main(["imports", "--rounds", "1"]) == 1
    assert "150.0 ms   1.50 x" in capsys.readouterr().out


def test_only_imports_of_the_program_are_counted() -> None:
    assert imports.microseconds("pass") == 0
    assert imports.microseconds("import colorsys") > 0
