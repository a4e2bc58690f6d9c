"""`python -m benchmarks interceptors`: what it says, and when it complains."""

from __future__ import annotations

import json

import pytest

from benchmarks import interceptors
from benchmarks.__main__ import main


def play(monkeypatch: pytest.MonkeyPatch, each: float) -> None:
    """Let each interceptor cost so many microseconds of 100."""

    def measure(plan: tuple[int, int], duration: float) -> dict[str, float]:
        return {side: 100 + each * count for side, count in zip(("client", "server"), plan, strict=True)}

    monkeypatch.setattr(interceptors, "measure", measure)


def test_costs_are_shares_of_the_throughput(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, 12.5)
    assert main(["interceptors", "--rounds", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["limit"] == 0.15
    assert told["cost_of_each"] == {
        "client 1": pytest.approx(1 / 9),
        "client 2": pytest.approx(0.1),
        "server 1": pytest.approx(1 / 9),
        "server 2": pytest.approx(0.1),
    }


def test_interceptors_that_cost_too_much_are_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, 25)
    assert main(["interceptors", "--rounds", "1"]) == 1
    assert "server 1: each costs  20.0% of the throughput" in capsys.readouterr().out


def test_real_processes() -> None:
    costs = interceptors.measure((1, 1), 0.1)
    assert set(costs) == {"client", "server"}
    assert all(0 < cost < 100_000 for cost in costs.values())
