"""`python -m benchmarks codec`: a copy is seen where there is one, and only there."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import trio

from benchmarks import allocations, codec, copies, results, variants
from benchmarks.__main__ import main


def put_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, function_name, function in variants.functions(name):
        monkeypatch.setattr(owner, function_name, function)


def test_regions_overlap_without_being_counted_twice() -> None:
    buffer = bytearray(100)
    regions = copies.Regions()
    regions.add(buffer, 10, 30)
    regions.add(memoryview(buffer)[20:], 0, 20)
    regions.add(bytes(100), 0, 100)
    base = copies.address(buffer)
    assert regions.covered(base, base + 100) == 30
    assert regions.covered(base, base + 15) == 5
    assert regions.covered(base + 25, base + 35) == 10
    assert regions.covered(base + 40, base + 100) == 0
    # A view that is kept would forbid this.
    buffer.extend(bytes(1000))
    base = copies.address(buffer)
    assert regions.covered(base, base + 100) == 30


def test_an_address_is_where_the_bytes_are() -> None:
    buffer = bytearray(10)
    assert copies.address(memoryview(buffer)[3:]) == copies.address(buffer) + 3
    assert copies.address(bytes(buffer)) != copies.address(buffer)


def test_a_small_message_is_copied_at_most_once_on_its_way_in() -> None:
    ledger = trio.run(codec.watch_copies, 350, 2)
    # Two calls with a request and a reply each; protobuf puts tag and length in front.
    assert ledger.received == ledger.sent == 4 * 353
    assert ledger.receive_copies <= ledger.received


@pytest.mark.parametrize(
    ("variant", "size", "least"),
    [
        ("frame_buffer", 350, 2.0),
        # How the kernel cuts a large message is its own affair, and with it what the product copies.
        ("frame_buffer", 300_000, 1.9),
        ("second_materialisation", 350, 2.0),
        ("second_materialisation", 300_000, 1.0),
    ],
)
def test_a_variant_that_copies_is_caught(
    variant: str, size: int, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on(variant, monkeypatch)
    ledger = trio.run(codec.watch_copies, size, 2)
    assert ledger.receive_copies >= least * ledger.received
    # What is joined with its prefix is copied behind the ledger's back, within one function.
    if variant == "second_materialisation" and size > 8192:
        assert ledger.send_copies >= ledger.sent


def test_bytes_that_nobody_saw_come_are_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies._WatchedSocket, "recv", socket.socket.recv)
    with pytest.raises(copies.NotSeenError, match="kernel gave"):
        trio.run(codec.watch_copies, 350, 1)


@pytest.mark.skipif(allocations.missing() is not None, reason="needs a C compiler")
def test_a_larger_message_takes_more_memory() -> None:
    few, many = (trio.run(codec.count_allocations, size)["bytes_per_op"] for size in (100, 50_100))
    # Serialised and assembled at both ends.
    assert many - few >= 4 * 50_000


def test_one_short_run_gives_a_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "codec.json"
    assert main(["codec", "--sizes", "350,10K", "--rounds", "2", "--duration", "0.01", "--json", str(path)]) == 0
    output = capsys.readouterr()
    assert "copies in" in output.out
    assert "[round 2/2] 10 KB" in output.err
    cases = results.read(path)["cases"]
    assert list(cases) == ["350 B", "10 KB"]
    for by_round in cases.values():
        assert len(by_round) == 2
        assert all(figures["ns_per_op"] > 0 and "copies_per_message" in figures for figures in by_round)


@pytest.mark.parametrize("flag", ["--sizes=0", "--rounds=0", "--duration=never", "--json=/no/such/folder/x"])
def test_a_bad_flag_is_named(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["codec", flag])
    assert f"argument {flag.partition('=')[0]}: " in capsys.readouterr().err
