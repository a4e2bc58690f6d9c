"""`python -m benchmarks floor`: the floor moves the product's bytes, and is above it whichever way is better."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from benchmarks import copies, floor, results, turns
from benchmarks.__main__ import main
from benchmarks.codec import loopback
from benchmarks.libraries import floor as adapter
from benchmarks.peers import RunFailedError
from benchmarks.protos import bench_pb2
from benchmarks.workloads import FLOOR_WORKLOADS, LIBRARIES, WORKLOADS, plays
from trio_grpc._transport import frames
from trio_grpc._transport.messages import frame_message

WARM_UP = 10
CALLS = 20


@pytest.mark.parametrize("size", [0, 1, 100, 127, 128, 16_383, 16_384, 65_536])
def test_a_message_takes_what_protobuf_and_grpc_make_of_it(size: int) -> None:
    message = bench_pb2.Message(payload=bytes(size))
    assert adapter.message_bytes(size) == len(frame_message(message.SerializeToString()))


def bytes_of_calls(data: bytearray) -> int:
    """Counts HEADERS and DATA frames: credit and bandwidth samples come when they come."""
    total = position = 0
    while position < len(data):
        high, low, frame_type, _, _ = frames.FRAME_HEADER.unpack_from(data, position)
        length = 9 + (high << 8 | low)
        total += length if frame_type in (frames.HEADERS, frames.DATA) else 0
        position += length
    return total


@pytest.mark.parametrize("name", ["unary_1", "unary_100", "ping_pong_200"])
def test_the_floor_moves_the_bytes_that_the_product_moves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = WORKLOADS[name]
    sent: defaultdict[int, bytearray] = defaultdict(bytearray)
    send = copies._WatchedSocket.send

    def keeping_send(self: Any, data: bytes, flags: int = 0) -> int:
        written = send(self, data, flags)
        sent[id(self)] += data[:written]
        return written

    async def steady_state(codec: copies.WatchedCodec) -> None:
        message = bench_pb2.Message(payload=bytes(workload.size))
        async with loopback(codec) as stub, stub.Bidi() as bidi:

            async def turn() -> None:
                if name == "ping_pong_200":
                    await bidi.send(message)
                    await bidi.receive()
                else:
                    await stub.Unary(message)

            for _ in range(WARM_UP):
                await turn()
            sent.clear()
            for _ in range(CALLS):
                await turn()

    monkeypatch.setattr(copies._WatchedSocket, "send", keeping_send)
    with copies.watched() as ledger:
        trio.run(steady_state, copies.WatchedCodec(ledger))
    expected = [CALLS * adapter.request_bytes(workload), CALLS * adapter.reply_bytes(workload)]
    assert sorted(map(bytes_of_calls, sent.values())) == sorted(expected)


def test_a_stream_is_written_in_frames_that_are_full() -> None:
    small = WORKLOADS["server_stream_100b"]
    messages, length = adapter.flood_batch(small)
    assert messages == 65_536 // 107
    assert length == messages * 107 + 9
    large = WORKLOADS["stream_1mb"]
    assert adapter.flood_batch(large) == (
        1,
        adapter.message_bytes(large.size) + (large.size // adapter.FRAME_SIZE + 1) * 9,
    )


def test_calls_in_flight_are_read_a_batch_at_a_time() -> None:
    many = WORKLOADS["unary_100"]
    assert adapter.read_size(many, 36) == 32 * 36
    assert adapter.read_size(many, 10) == 1024
    assert adapter.read_size(many, 2**20) == adapter.READ_SIZE
    assert adapter.read_size(replace(many, concurrency=1), 36) == adapter.READ_SIZE


def test_each_workload_of_the_floor_is_one_that_it_plays() -> None:
    assert all(plays(LIBRARIES["floor"], WORKLOADS[name]) for name in FLOOR_WORKLOADS)
    assert not any(WORKLOADS[name].tls for name in FLOOR_WORKLOADS)


def test_a_distance_is_above_one_where_the_floor_is_better() -> None:
    rate, latency = WORKLOADS["unary_100"], WORKLOADS["unary_1"]
    assert floor.distance(rate, [100.0, 50.0], [300.0, 200.0]).value == pytest.approx(250 / 75)
    assert floor.distance(rate, [100.0, 50.0], [300.0, 200.0]).highest == pytest.approx(4.0)
    assert floor.distance(latency, [200.0], [100.0]).value == 2.0


def test_protobuf_does_its_work() -> None:
    work = floor.protobuf_work(10)
    data: Any = work["serialise"]()
    assert work["parse"]() == bench_pb2.Message.FromString(data)
    assert floor.sizes((WORKLOADS["unary_1"], WORKLOADS["stream_1mb"], WORKLOADS["unary_1mb"])) == [0, 2**20]


def test_a_run_without_an_operation_is_no_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(turns, "run_once", lambda library, workload, options: {workload.figure.value: 0.0})
    path = tmp_path / "floor.json"
    assert main(["floor", "--workloads", "unary_100", "--cores", "none", "--json", str(path)]) == 1
    assert "floor: trio_grpc: nothing came through" in capsys.readouterr().err
    assert not path.exists()


def test_a_run_that_fails_ends_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RunFailedError("server said nothing")

    monkeypatch.setattr(turns, "run_once", fail)
    assert main(["floor", "--cores", "none", "--json", str(tmp_path / "floor.json")]) == 1
    assert "floor: server said nothing" in capsys.readouterr().err


def test_one_short_run_gives_a_table_and_json(
    smoke: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "floor.json"
    arguments = ["--workloads", "unary_1", "--rounds", "1", "--json", str(path)]
    assert main(["floor", *arguments, *smoke]) == 0
    output = capsys.readouterr()
    assert "x floor" in output.out
    assert "[round 1/1 1/1] unary_1" in output.err
    cases = results.read(path)["cases"]
    assert set(cases) == {
        "unary_1 trio_grpc",
        "unary_1 floor",
        "unary_1 floor_blocking",
        "protobuf 0 B serialise",
        "protobuf 0 B parse",
    }
    ours, bare = cases["unary_1 trio_grpc"][0], cases["unary_1 floor"][0]
    assert ours["times_floor"] == pytest.approx(ours["p50_us"] / bare["p50_us"])


@pytest.mark.parametrize(
    ("flag", "complaint"),
    [
        ("--workloads=mixed", "unknown workload 'mixed'; known: unary_100, unary_1, ping_pong_200"),
        ("--rounds=0", "not a whole number above 0"),
        ("--warmup=-1", "not a number above 0"),
        ("--json=.", "is a folder"),
    ],
)
def test_a_bad_flag_is_named(flag: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["floor", flag])
    error = capsys.readouterr().err
    assert f"argument {flag.partition('=')[0]}: " in error
    assert complaint in error
