"""`python -m benchmarks frames`: every way of parsing finds the same, and what is counted is what was allocated."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import allocations, frames, results
from benchmarks.__main__ import main
from benchmarks.arguments import size_title, sizes

counts = pytest.mark.skipif(allocations.missing() is not None, reason="needs a C compiler")


@pytest.mark.parametrize("parser", frames.PARSERS)
@pytest.mark.parametrize("size", [999, 16_384, 300_000])
def test_each_parser_finds_every_payload_byte(parser: str, size: int) -> None:
    reads, count = frames.data_frames(size, 2)
    assert sum(map(len, reads)) == count * (size + 9)
    parse, totals = frames.PARSERS[parser](reads)
    parse()
    parse()
    assert totals.payload == 2 * count * size


def test_a_parser_that_loses_bytes_gives_no_figure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(frames.PARSERS, "no object", lambda _: ((lambda: None), frames.Totals()))
    assert main(["frames", "--sizes", "100", "--rounds", "1", "--json", str(tmp_path / "f.json")]) == 1
    assert not (tmp_path / "f.json").exists()


@counts
def test_allocations_are_counted_with_their_bytes_also_when_freed_at_once() -> None:
    def allocate(times: int) -> allocations.Counted:
        with allocations.counted() as counted:
            for _ in range(times):
                bytes(10_000)
        return counted

    allocate(1)
    few, many = allocate(1), allocate(201)
    # The loop's own counter may add a small integer for some.
    assert 200 <= many.allocations - few.allocations < 400
    assert 200 * 10_000 < many.bytes - few.bytes < 200 * 10_100


@counts
def test_a_new_object_for_each_frame_is_seen_and_a_reused_one_is_not() -> None:
    by_parser = {}
    for parser in ("no object", "reused record", "new object"):
        run = frames.data_case(parser, 16_384)
        run()
        by_parser[parser] = frames.count_case(run)["allocs_per_op"]
    assert by_parser["reused record"] == pytest.approx(by_parser["no object"], abs=0.5)
    assert by_parser["new object"] > by_parser["no object"] + 0.5


@counts
def test_a_remembered_block_costs_fewer_allocations_than_one_that_is_not() -> None:
    by_case = {}
    for name in ("decode, remembered", "decode, not remembered", "encode, remembered", "encode, not remembered"):
        run = frames.HEADER_CASES[name](100)
        run()
        by_case[name] = frames.count_case(run)["allocs_per_op"]
    assert by_case["decode, remembered"] < by_case["decode, not remembered"]
    assert by_case["encode, remembered"] < by_case["encode, not remembered"]


def test_a_compiler_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    allocations._hook.cache_clear()
    try:
        assert "no-such-compiler" in (allocations.missing() or "")
    finally:
        monkeypatch.undo()
        allocations._hook.cache_clear()


def test_one_short_run_gives_a_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "frames.json"
    assert main(["frames", "--sizes", "1K", "--rounds", "2", "--duration", "0.001", "--json", str(path)]) == 0
    output = capsys.readouterr()
    assert "DATA 1 KB, no object" in output.out
    assert "block, decode, hpack" in output.out
    assert "[round 2/2" in output.err
    cases = results.read(path)["cases"]
    assert set(cases) == {f"DATA 1 KB, {name}" for name in frames.PARSERS} | {
        f"block, {name}" for name in frames.HEADER_CASES
    }
    assert all(len(by_round) == 2 and by_round[0]["ns_per_op"] > 0 for by_round in cases.values())


def test_sizes_are_read_and_written() -> None:
    assert sizes("350, 10K,1m,1024B") == (350, 10_240, 1_048_576, 1024)
    assert [size_title(size) for size in (0, 350, 10_240, 1_048_576)] == ["0 B", "350 B", "10 KB", "1 MB"]


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "ten", "", "1K,", "K"])
def test_bad_sizes_are_named(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["frames", f"--sizes={text}"])
    assert "argument --sizes: " in capsys.readouterr().err
