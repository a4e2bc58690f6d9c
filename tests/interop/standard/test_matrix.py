"""What the runs with peers make of cases that fail now and then."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.interop.standard.matrix import FAILED, KNOWN, PASSED, TRIES, CaseFailed, Result, attempt, report


class Case:
    """Fails a few times, then passes."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.runs = 0

    async def run(self) -> None:
        self.runs += 1
        await trio.lowlevel.checkpoint()
        if self.runs <= self.failures:
            raise CaseFailed(f"no luck at run {self.runs}")


@pytest.mark.parametrize("failures", [0, 1, TRIES - 1])
async def test_a_case_is_tried_until_it_passes(autojump_clock: object, failures: int) -> None:
    case = Case(failures)
    done = await attempt(case.run)
    assert (done.message, done.tries, case.runs) == ("", failures + 1, failures + 1)
    assert list(done.failed_tries) == [f"CaseFailed: no luck at run {number + 1}" for number in range(failures)]


@pytest.mark.parametrize("tries", [1, TRIES])
async def test_a_case_that_fails_each_time_has_failed(autojump_clock: object, tries: int) -> None:
    case = Case(100)
    done = await attempt(case.run, tries)
    assert (done.message, done.tries, case.runs) == (f"CaseFailed: no luck at run {tries}", tries, tries)
    assert len(done.failed_tries) == tries - 1


async def test_cancellation_is_no_failure(autojump_clock: object) -> None:
    with trio.move_on_after(1) as scope:
        await attempt(trio.sleep_forever)
    assert scope.cancelled_caught


def result(case: str, outcome: str, failed_tries: Sequence[str] = (), **fields: Any) -> Result:
    return Result(
        peer="grpc-x",
        version="1",
        direction="to",
        tls=True,
        case=case,
        outcome=outcome,
        tries=len(failed_tries) + 1,
        failed_tries=failed_tries,
        **fields,
    )


def test_tries_are_shown_and_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sub" / "matrix.json"
    lucky = [
        result("first", PASSED),
        result("second", PASSED, ["too\nlate"]),
        result("third", KNOWN, message="has none"),
    ]
    assert report(lucky, ["first", "second", "third"], {"to": "there"}, file, 1) == 0
    text = capsys.readouterr().out
    marks = {words[0]: words[1] for line in text.splitlines() if len(words := line.split()) == 2}
    assert marks == {"first": "ok", "second": "ok~", "third": "known", "grpc-x": "tls"}
    assert "try 1 of grpc-x tls, to, second: too late\n" in text
    assert "2 passed, 1 known failure, 1 tried more than once, in 1 s" in text
    assert [(one["case"], one["tries"], one["failed_tries"]) for one in json.loads(file.read_text())] == [
        ("first", 1, []),
        ("second", 2, ["too\nlate"]),
        ("third", 1, []),
    ]


def test_what_fails_each_time_fails_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unlucky = [result("first", FAILED, ["one", "two"], message="three")]
    assert report(unlucky, ["first"], {"to": "there"}, tmp_path / "matrix.json", 1) == 1
    text = capsys.readouterr().out
    assert "FAIL~" in text
    assert "try 1 of grpc-x tls, to, first: one\ntry 2 of grpc-x tls, to, first: two\n" in text
    assert "FAILED grpc-x tls, to, first: three\n" in text
