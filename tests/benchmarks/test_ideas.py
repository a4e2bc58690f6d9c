"""`python -m benchmarks ideas`: each variant does what it says and answers right, and its gain is summed up right."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from benchmarks import frames, ideas, results, turns, variants
from benchmarks.__main__ import main
from benchmarks.codec import loopback
from benchmarks.libraries import trio_grpc as adapter
from benchmarks.libraries.base import Meter, RunOptions, ServeOptions
from benchmarks.protos import bench_pb2
from benchmarks.statistics import Change
from benchmarks.variants import VARIANTS, VariantError
from benchmarks.workloads import WORKLOADS
from trio_grpc._transport.byte_stream import SocketByteStream
from trio_grpc._transport.control_buffer import ControlBuffer, RawFrame
from trio_grpc._transport.header_codec import HeaderDecoder, HeaderEncoder, HeaderTemplate
from trio_grpc._transport.loopy_writer import LoopyWriter
from trio_grpc._transport.reader import Reader

CALLS = 20


def put_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, function_name, function in variants.functions(name):
        monkeypatch.setattr(owner, function_name, function)


async def converse() -> None:
    """Calls of many kinds, each answered right."""
    large = os.urandom(200_000)
    async with loopback() as stub:

        async def call(payload: bytes) -> None:
            assert (await stub.Unary(bench_pb2.Message(payload=payload))).payload == payload

        async with trio.open_nursery() as nursery:
            for number in range(CALLS):
                nursery.start_soon(call, b"%d" % number * 50)
        await call(large)
        async with stub.Bidi() as bidi:
            for number in range(5):
                await bidi.send(bench_pb2.Message(payload=b"%d" % number))
                assert (await bidi.receive()).payload == b"%d" % number
        async with stub.ServerStream(bench_pb2.StreamRequest(count=50, size=100)) as stream:
            assert [len(message.payload) async for message in stream] == [100] * 50


@pytest.mark.parametrize("name", VARIANTS)
def test_each_variant_answers_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on(name, monkeypatch)
    trio.run(converse)


# That the variants which copy do copy is seen in test_codec.py, by the memory that the bytes lie in.


@pytest.mark.parametrize(("name", "batched"), [(None, True), ("one_write_per_frame", False)])
def test_without_the_batch_each_control_frame_is_a_write(
    name: str | None, batched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = 0
    send, send_nowait = SocketByteStream.send, SocketByteStream.send_nowait

    def counting_send_nowait(self: SocketByteStream, data: Any) -> int:
        nonlocal writes
        writes += 1
        return send_nowait(self, data)

    async def counting_send(self: SocketByteStream, pieces: Any) -> None:
        nonlocal writes
        writes += 1
        await send(self, pieces)

    async def many_calls() -> None:
        async with loopback() as stub:
            await stub.Unary(bench_pb2.Message())
            nonlocal writes
            writes = 0
            async with trio.open_nursery() as nursery:
                for _ in range(CALLS):
                    nursery.start_soon(stub.Unary, bench_pb2.Message())
            assert (writes < CALLS) is batched

    monkeypatch.setattr(SocketByteStream, "send", counting_send)
    # Few calls are written without waking the writer.
    monkeypatch.setattr(SocketByteStream, "send_nowait", counting_send_nowait)
    if name is not None:
        put_on(name, monkeypatch)
    trio.run(many_calls)


def test_an_object_is_made_for_each_data_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[frames.DataFrame] = []

    class CountedFrame(frames.DataFrame):
        def __init__(self, *fields: Any) -> None:
            super().__init__(*fields)
            made.append(self)

    monkeypatch.setattr(frames, "DataFrame", CountedFrame)
    put_on("frame_object", monkeypatch)
    trio.run(converse)
    # Requests and replies of the calls and the bidi stream; the large ones take several each.
    assert len(made) > 2 * (CALLS + 1 + 5)
    assert sum(frame.stop - frame.start for frame in made) > 2 * 200_000


@pytest.mark.parametrize(("name", "alone"), [(None, True), ("woken_writer", False)])
def test_an_idle_writer_is_woken_for_each_write(name: str | None, alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Any] = []
    write_alone = LoopyWriter._write_alone

    def counting_write_alone(self: LoopyWriter, stream: Any) -> None:
        steps.append(stream)
        write_alone(self, stream)

    monkeypatch.setattr(LoopyWriter, "_write_alone", counting_write_alone)
    if name is not None:
        put_on(name, monkeypatch)
    trio.run(converse)
    assert bool(steps) is alone


@pytest.mark.parametrize(("name", "waits"), [(None, True), ("no_throttle", False)])
def test_without_the_throttle_the_reader_does_not_wait(
    name: str | None, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def throttle() -> bool:
        buffer = ControlBuffer(throttle_limit=1)
        buffer.put(RawFrame(b"reply", is_response=True))
        with trio.move_on_after(1) as scope:
            await buffer.throttle()
        return scope.cancelled_caught

    if name is not None:
        put_on(name, monkeypatch)
    assert trio.run(throttle, clock=MockClock(autojump_threshold=0)) is waits


@pytest.mark.parametrize(("name", "remembers"), [(None, True), ("forgetful_headers", False)])
def test_without_memory_each_block_is_made_and_read_anew(
    name: str | None, remembers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name is not None:
        put_on(name, monkeypatch)
    encoder, decoder = HeaderEncoder(), HeaderDecoder(list, max_list_size=10_000)
    template = HeaderTemplate([(b"a", b"b")])
    blocks = [encoder.encode(template) for _ in range(4)]
    records = [decoder.decode(block) for block in blocks]
    assert records == [[(b"a", b"b")]] * 4
    assert (blocks[2] is blocks[3]) is remembers
    assert (records[2] is records[3]) is remembers


def test_a_variant_whose_place_has_gone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(LoopyWriter, "_drain")
    with pytest.raises(VariantError, match=r"one_write_per_frame: there is no function .*LoopyWriter\._drain"):
        variants.apply("one_write_per_frame")


def test_a_variant_whose_parameters_have_gone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_data(self: Reader, stream_id: int, data: bytes) -> None:
        raise NotImplementedError

    monkeypatch.setattr(Reader, "on_data", on_data)
    with pytest.raises(VariantError, match=r"frame_buffer: .*Reader\.on_data has no parameter start, stop"):
        variants.apply("frame_buffer")


def test_lines_run_first_and_the_function_stays_what_it_was() -> None:
    made = variants.with_lines(_double, "number += OFFSET", "OFFSET = 10")
    assert made(1) == 22
    assert made(1, times=3) == 33
    assert _double(1) == 2
    assert made.__name__ == "_double"


def _double(number: int, *, times: int = 2) -> int:
    """A docstring."""
    return number * times


def test_both_ends_become_the_variant_before_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []
    monkeypatch.setattr(adapter, "apply", seen.append)
    monkeypatch.setattr(trio, "run", lambda _: seen.append("run"))
    workload = WORKLOADS["unary_1"]
    adapter.serve(ServeOptions(0, workload, "trio", variant="frame_object"))
    adapter.run(Meter(RunOptions(workload, "h", 1, 0.1, 0.1, 1, 1.0, None, "trio", variant="frame_object")))
    assert seen == ["frame_object", "run"] * 2
    assert ideas.as_library(VARIANTS["frame_object"]).arguments[-2:] == ("--variant", "frame_object")


def test_each_variant_knows_where_it_should_matter() -> None:
    assert all(variant.workloads and set(variant.workloads) <= set(WORKLOADS) for variant in VARIANTS.values())


def test_a_gain_is_the_median_of_the_rounds_ratios_whichever_way_is_better() -> None:
    product, variant = [110.0, 220.0, 330.0, 484.0], [100.0, 200.0, 300.0, 400.0]
    faster = ideas.gain(product, variant, higher_is_better=True)
    assert faster.median == faster.lowest == pytest.approx(0.1)
    assert faster.highest == pytest.approx(0.21)
    # The geometric mean of 1.1 three times and 1.21.
    assert faster.mean.value == pytest.approx(1.1 ** (5 / 4) - 1)
    assert ideas.gain(product, variant, higher_is_better=False).median == pytest.approx(1 / 1.1 - 1)


def test_a_gain_is_judged_by_its_rounds() -> None:
    noise = ideas.gain([110.0, 90.0, 91.0, 111.0], [100.0] * 4, higher_is_better=True)
    assert noise.mean.beyond_noise is False
    real = ideas.gain([110.0, 111.0, 111.0, 110.0], [100.0] * 4, higher_is_better=True)
    assert real.mean.beyond_noise is True


def test_a_gain_in_words() -> None:
    rounds = "rounds +5.0% to +20.0%"
    assert str(ideas.Gain(0.1, 0.05, 0.2, Change(0.1, 0.08, 0.15))) == f"10.0% faster ({rounds}; mean +8.0% to +15.0%)"
    assert str(ideas.Gain(-0.1, 0.05, 0.2, Change(-0.1, -0.15, -0.05))).startswith("10.0% slower (rounds")
    assert str(ideas.Gain(0.03, 0.05, 0.2, Change(0.02, -0.1, 0.1))) == (
        f"within the noise: +3.0% ({rounds}; mean -10.0% to +10.0%)"
    )
    assert str(ideas.Gain(0.03, 0.05, 0.2, Change(0.03))) == f"3.0% faster ({rounds}), noise unknown"


def test_a_run_without_an_operation_is_no_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(turns, "run_once", lambda library, workload, options: {workload.figure.value: 0.0})
    path = tmp_path / "ideas.json"
    assert main(["ideas", "--variants", "frame_buffer", "--cores", "none", "--json", str(path)]) == 1
    assert "ideas: trio_grpc: nothing came through" in capsys.readouterr().err
    assert not path.exists()


def test_one_short_run_gives_a_table_and_json(
    smoke: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ideas.json"
    arguments = ["--variants", "frame_object", "--workloads", "unary_1", "--rounds", "2", "--json", str(path)]
    assert main(["ideas", *arguments, *smoke]) == 0
    output = capsys.readouterr()
    assert "no object per DATA frame" in output.out
    assert "noise unknown" in output.out
    assert "[round 2/2  1/1] unary_1 frame_object" in output.err
    cases = results.read(path)["cases"]
    assert list(cases) == ["unary_1 frame_object: product", "unary_1 frame_object: variant"]
    assert all(by_round[0]["p50_us"] > 0 for by_round in cases.values())


@pytest.mark.parametrize(
    ("flag", "complaint"),
    [
        ("--variants=nobody", "unknown variant 'nobody'; known: frame_buffer"),
        ("--workloads=", "no workload named"),
        ("--rounds=0", "not a whole number above 0"),
        ("--rounds=3", "'3' is odd"),
        ("--cores=1", "neither SERVER,CLIENT"),
    ],
)
def test_a_bad_flag_is_named(flag: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["ideas", flag])
    error = capsys.readouterr().err
    assert f"argument {flag.partition('=')[0]}: " in error
    assert complaint in error
