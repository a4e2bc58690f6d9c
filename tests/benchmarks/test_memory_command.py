"""`python -m benchmarks memory`: its sums, its refusals, and one run of each case with a handful of everything."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import memory, memory_end, results
from benchmarks.__main__ import main

SMALL = ["memory", "--rounds", "1", "--pause", "0.05"]


def test_each_is_the_difference_over_the_number() -> None:
    figures = memory.each(10 * 2**20, 30 * 2**20, 1000)
    assert figures == {"kib_each": 20.48, "rss_before_mib": 10.0, "rss_after_mib": 30.0}


def test_streams_are_spread_over_as_many_connections_as_it_takes() -> None:
    assert memory.streams(1000).name == "1,000 idle streams on one connection"
    assert memory.streams(1001).name == "1,001 idle streams on 2 connections"


def test_rss_is_that_of_the_process() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    assert memory_end.rss(os.getpid()) == pytest.approx(pages, rel=0.2)


def idle(kib: float) -> list[dict[str, Any]]:
    return [{"kib_each": kib, "rss_before_mib": 30.0, "rss_after_mib": 60.0}]


def test_the_target_is_in_bytes_and_only_for_the_cases_it_is_about() -> None:
    cases = {"a: server": idle(25_000 / 1024), "b: server": idle(25_001 / 1024), "b: client": idle(99.0)}
    text = memory.table(cases, {"a: server", "b: server"})
    assert "PASS  a: server: 25,000 bytes" in text
    assert "FAIL  b: server: 25,001 bytes" in text
    assert "b: client: " not in text
    assert "target" not in memory.table(cases, set())


@pytest.fixture
def lowered_limit() -> Any:
    set_limit = resource.setrlimit
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    set_limit(resource.RLIMIT_NOFILE, (200, hard))
    yield hard
    set_limit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_limit_of_open_files_is_raised_where_it_may_be(lowered_limit: int) -> None:
    assert memory.allow_open_files(210) is None
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (210, lowered_limit)
    assert memory.allow_open_files(100) is None
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (210, lowered_limit)


def test_what_is_missing_of_open_files_is_said(
    lowered_limit: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(kind: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert main([*SMALL, "--connections", "1000000"]) == 1
    assert "1,000,074 open files for each process, and the limit here is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (
            ["--connections", "10,x"],
            "argument --connections: '10,x' is neither a list of whole numbers above 0 nor `0`",
        ),
        (["--streams", "1,0"], "argument --streams: '1,0' is neither a list"),
        (["--slow-reader", "-1"], "argument --slow-reader: '-1' is not a whole number of 0 or more"),
        (["--breakdown", "both"], "argument --breakdown: invalid choice: 'both'"),
    ],
)
def test_bad_flags_are_named(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["memory", *arguments])
    assert ended.value.code == 2
    assert named in capsys.readouterr().err


def test_nothing_to_measure_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--connections", "0", "--streams", "0", "--slow-reader", "0"]) == 1
    assert "nothing to measure" in capsys.readouterr().err


def test_one_small_run_of_what_is_not_traced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "memory.json"
    few = ["--connections", "0", "--streams", "3", "--slow-reader", "2"]
    assert main([*SMALL, *few, "--json", str(file)]) == 0
    cases = results.read(file)["cases"]
    assert list(cases) == [
        f"{name}: {side}"
        for name in ("3 idle streams on one connection", "slow reader of 2 MiB")
        for side in ("server", "client")
    ]
    for name, (figures,) in cases.items():
        assert ("peak_mib" if "slow" in name else "kib_each") in figures
        assert figures["rss_before_mib"] > 1
        assert "breakdown" not in figures
    assert "3 idle streams on one connection: client" in capsys.readouterr().out


def test_one_small_run_that_is_traced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "memory.json"
    few = ["--connections", "3", "--streams", "0", "--slow-reader", "0"]
    assert main([*SMALL, *few, "--breakdown", "client", "--json", str(file)]) == 0
    cases = results.read(file)["cases"]
    assert list(cases) == ["3 idle connections: server", "3 idle connections: client"]
    (server,), (client,) = cases.values()
    assert "breakdown" not in server
    assert client["breakdown"]["bytes"] > 0
    assert any(row["where"].startswith("trio_grpc/") for row in client["breakdown"]["files"])
    assert "3 idle connections: client: " in capsys.readouterr().out


def test_an_end_that_fails_fails_the_run_with_its_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    failing = tmp_path / "python"
    failing.write_text("#!/bin/sh\necho 'no such thing' >&2\nexit 3\n")
    failing.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(failing))
    assert main([*SMALL, "--connections", "1", "--streams", "0", "--slow-reader", "0"]) == 1
    assert "FAILED: the server ended with code 3: no such thing" in capsys.readouterr().err
