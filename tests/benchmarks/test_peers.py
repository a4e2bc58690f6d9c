"""`peers`: the arithmetic of its targets, what it reads from grpc-go, and a run too short to mean anything."""

from __future__ import annotations

import math
import shutil
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from benchmarks import peers, setup
from benchmarks.__main__ import main
from benchmarks.certificates import client_context, make_certificates, server_context
from benchmarks.libraries import base, grpc_go
from benchmarks.libraries.base import RICH_TOKEN, Meter, RunOptions, rich_calls
from benchmarks.metrics import METRICS
from benchmarks.results import read
from benchmarks.workloads import LIBRARIES, OURS, WORKLOADS, Against, Figure, Target, Workload, plays

# What the benchmark client of grpc-go writes when it ends.
SUMMARY = """\
qps: 63612.333333333336
Latency: (50/90/99 %ile): 1.513µs/2.25ms/1m3.5s
Client CPU utilization: 2.98s
Client CPU profile: /tmp/profile.cpu
Client Mem Profile: /tmp/profile.mem
"""


def results_of(figures: dict[tuple[str, str], list[dict[str, float]]]) -> peers.Results:
    results = peers.Results()
    for (workload, library), runs in figures.items():
        for run in runs:
            results.add(WORKLOADS[workload], LIBRARIES[library], run)
    return results


def options_for(workload: Workload, **changes: Any) -> RunOptions:
    known = {"warmup": 0.3, "duration": 2.5, "calls": 1, "pause": 1.0, "server_pid": None, "loop": "asyncio"}
    return RunOptions(workload, "127.0.0.1", 50051, **{**known, **changes})


# -- targets


@pytest.mark.parametrize(("bound", "passed"), [(0.6, True), (0.61, False)])
def test_a_target_may_compare_us_with_ourselves_in_another_workload(bound: float, passed: bool) -> None:
    results = results_of(
        {
            ("unary_100", OURS): [{"ops_per_second": 100.0, "client_cpu_us_per_op": 10.0}, {"ops_per_second": 110.0}],
            ("unary_100_rich", OURS): [
                {"ops_per_second": 60.0, "client_cpu_us_per_op": 20.0},
                {"ops_per_second": 66.0},
            ],
            ("unary_100_rich", "grpcio_aio"): [{"ops_per_second": 1.0}],
        }
    )
    target = Target(Figure.RATE, Against.OUR_OTHER, bound, at_least=True, other="unary_100")
    verdict = peers.judge(results, WORKLOADS["unary_100_rich"], target)
    assert verdict.passed is passed
    assert verdict.text == f"ops_per_second at least {bound:g} x our own unary_100"
    assert verdict.measured == "0.60 of unary_100; by CPU per operation 0.50"


def test_a_target_against_another_workload_that_was_not_played_is_not_judged() -> None:
    results = results_of({("unary_100_tls", OURS): [{"ops_per_second": 65.0}]})
    (target,) = WORKLOADS["unary_100_tls"].targets
    assert peers.judge(results, WORKLOADS["unary_100_tls"], target).passed is None


@pytest.mark.parametrize(("ours", "passed"), [(190.0, True), (191.0, False)])
def test_a_target_may_be_a_distance_to_the_floor(ours: float, passed: bool) -> None:
    results = results_of({("unary_1", OURS): [{"p50_us": ours}], ("unary_1", "floor"): [{"p50_us": 100.0}]})
    (target,) = (target for target in WORKLOADS["unary_1"].targets if target.against is Against.FLOOR)
    verdict = peers.judge(results, WORKLOADS["unary_1"], target)
    assert verdict.passed is passed
    assert verdict.text == "p50_us at most 1.9 x floor"


def test_a_peer_that_got_nothing_done_is_no_divisor() -> None:
    results = results_of(
        {("unary_100", OURS): [{"ops_per_second": 9.0}], ("unary_100", "grpcio_aio"): [{"ops_per_second": 0.0}]}
    )
    for target in WORKLOADS["unary_100"].targets:
        assert peers.judge(results, WORKLOADS["unary_100"], target).passed is None


def test_the_figures_that_judge_are_known_to_whoever_compares_results() -> None:
    for figure in Figure:
        assert figure.value in METRICS


def test_every_target_names_a_workload_that_there_is_and_figures_of_its_own_kind() -> None:
    for workload in WORKLOADS.values():
        for target in workload.targets:
            assert (target.against is Against.OUR_OTHER) == bool(target.other)
            assert not target.other or WORKLOADS[target.other].figure is target.figure


def test_the_reference_from_another_world_is_shown_and_is_no_python_peer() -> None:
    workload = WORKLOADS["unary_100"]
    results = results_of(
        {("unary_100", OURS): [{"ops_per_second": 50.0}], ("unary_100", "grpc_go"): [{"ops_per_second": 100.0}]}
    )
    assert results.best_peer(workload, Figure.RATE, higher_is_better=True) is None
    options = peers.Options((workload,), (LIBRARIES["grpc_go"],), 1, 1.0, 1.0, 1, 1.0, None, "default", 0, Path())
    (row,) = (line for line in peers.table(results, options).splitlines() if line.startswith("  grpc_go"))
    assert row.endswith("0.50  (reference: Go, one core a side)")


def test_what_a_library_cannot_say_it_does_not_play() -> None:
    assert not plays(LIBRARIES["purerpc"], WORKLOADS["unary_100_rich"])
    assert plays(LIBRARIES["purerpc"], WORKLOADS["unary_100_tls"])
    assert not plays(LIBRARIES["grpc_go"], WORKLOADS["unary_100_tls"])
    assert not plays(LIBRARIES["grpc_go"], WORKLOADS["stream_1mb"])


# -- grpc-go


def test_what_the_client_of_grpc_go_prints_is_understood() -> None:
    rate, latencies = grpc_go.summary(SUMMARY)
    assert rate == pytest.approx(63612.333333333336)
    assert latencies == pytest.approx({"p50_us": 1.513, "p90_us": 2250.0, "p99_us": 63.5e6})


@pytest.mark.parametrize("output", ["", "qps: 1.0\n", SUMMARY.replace("/1m3.5s", ""), SUMMARY.replace("qps", "rate")])
def test_a_summary_that_lacks_something_is_refused(output: str) -> None:
    with pytest.raises(grpc_go.UnexpectedOutputError, match="no rate and latencies"):
        grpc_go.summary(output)


@pytest.mark.parametrize(
    ("text", "expected"), [("850ns", 0.85), ("133.4µs", 133.4), ("1.5ms", 1500.0), ("2s", 2e6), ("1h0m0.5s", 3600.5e6)]
)
def test_durations_of_go_are_read(text: str, expected: float) -> None:
    assert grpc_go.microseconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "5", "5 ms", "ms", "5days", "-1s"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(grpc_go.UnexpectedOutputError, match="no duration"):
        grpc_go.microseconds(text)


def test_a_workload_becomes_flags_and_times_are_rounded_up_to_whole_seconds() -> None:
    flags = grpc_go.flags(options_for(WORKLOADS["ping_pong_200"]))
    assert flags == ["-port=50051", "-rpc_type=streaming", "-c=1", "-r=200", "-req=100", "-resp=100", "-w=1", "-d=3"]


def test_all_that_grpc_go_is_said_to_play_has_flags_and_nothing_else() -> None:
    for workload in WORKLOADS.values():
        options = options_for(workload)
        if plays(LIBRARIES["grpc_go"], workload):
            assert grpc_go.flags(options)
        else:
            with pytest.raises(SystemExit, match="cannot be said"):
                grpc_go.flags(options)


def test_a_rate_that_was_counted_elsewhere_gives_operations_and_cpu_per_operation() -> None:
    meter = Meter(options_for(WORKLOADS["unary_1mb"]))
    meter.begin()
    sum(number * number for number in range(100_000))
    meter.end()
    meter.rate = 200.0
    run = meter.result()
    assert run["ops_per_second"] == pytest.approx(200.0)
    assert run["megabytes_per_second"] == pytest.approx(200 * 1.048576)
    assert run["total_ops"] == round(200 * run["seconds"])
    assert run["client_cpu_us_per_op"] == pytest.approx(run["client_cpu"] / 200 * 1e6)


def test_without_its_programs_grpc_go_is_skipped_with_the_way_to_make_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "ROOT", tmp_path)
    assert main(["peers", "--libraries", "grpc_go"]) == 1
    complaint = capsys.readouterr().err
    assert "skipping grpc_go: benchmarks/go/bin/client is missing; `python -m benchmarks setup` builds it" in complaint


def test_setup_does_without_go(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    commands: list[tuple[str | Path, ...]] = []

    def run(*command: str | Path, **options: Path) -> int:
        commands.append(command)
        return 0

    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(setup, "_run", run)
    assert main(["setup"]) == 0
    assert "grpc-go: skipped, because Go is not installed" in capsys.readouterr().err
    assert all(command[0] != "go" for command in commands)


def test_the_versions_of_grpc_go_are_those_that_its_program_was_built_of(tmp_path: Path) -> None:
    program = tmp_path / "client"
    built_of = (
        b"path\tx\nmod\tgoogle.golang.org/grpc\tv1.85.0\th1:sum=\ndep\tgoogle.golang.org/other\tv0.1.0\th1:sum=\n"
    )
    program.write_bytes(b"\x7fELF go1.1 \xff Go buildinf:\x08\x02" + bytes(16) + b"\x08go1.26.8\xff\x02" + built_of)
    assert setup.go_versions(program) == {"go": "1.26.8", "grpc-go": "1.85.0"}
    program.write_bytes(b"no program of Go")
    assert setup.go_versions(program) == {}


# -- rich calls, and TLS


def test_rich_calls_carry_a_deadline_a_token_of_800_bytes_and_a_trace_of_their_own() -> None:
    calls: list[dict[str, Any]] = []
    call = rich_calls(lambda request, **options: calls.append(options))
    call("request")
    call("request")
    assert len(RICH_TOKEN.removeprefix("Bearer ")) == 800
    assert [options["timeout"] for options in calls] == [30.0, 30.0]
    first, second = (dict(options["metadata"]) for options in calls)
    assert first["authorization"] == second["authorization"] == RICH_TOKEN
    assert first["traceparent"] != second["traceparent"]
    assert len(first["traceparent"]) == len("00-") + 32 + 1 + 16 + len("-01")


def test_the_certificates_of_a_sitting_are_those_of_one_authority(tmp_path: Path) -> None:
    folder = make_certificates(tmp_path)
    client, server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client_context(folder).wrap_bio(server, client, server_hostname="127.0.0.1")
    theirs = server_context(folder).wrap_bio(client, server, server_side=True)
    done: set[ssl.SSLObject] = set()
    # Three flights each way are more than any version needs.
    for _ in range(3):
        for end in (ours, theirs):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            done.add(end)
    assert done == {ours, theirs}
    assert ours.selected_alpn_protocol() == "h2"


def test_an_end_without_certificates_refuses_a_workload_over_tls(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["end", "server", "--workload", "unary_100_tls"])
    with pytest.raises(SystemExit, match="2"):
        base.main(lambda options: None, lambda meter: None)
    assert "argument --certificates: unary_100_tls needs it" in capsys.readouterr().err


async def test_the_calls_of_a_rich_workload_are_rich() -> None:
    seen: list[dict[str, Any]] = []

    class Client:
        async def unary(self, request: Any, **options: Any) -> None:
            seen.append(options)
            await trio.lowlevel.checkpoint()

        async def ping_pong(self, request: Any, meter: Meter) -> None:
            raise AssertionError

        consume = ping_pong

    for workload in (WORKLOADS["unary_100"], WORKLOADS["unary_100_rich"]):
        seen.clear()
        await base.play(Client(), base.TrioRuntime(), Meter(options_for(workload, warmup=0.01, duration=0.01)))
        assert {bool(options) for options in seen} == {workload.rich}


def test_a_short_run_gives_a_table_and_json(
    smoke: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.json"
    arguments = ["--workloads", "unary_1,unary_100_tls", "--libraries", "trio_grpc,floor"]
    arguments += ["--rounds", "1", "--retries", "0", "--json", str(path)]
    assert main(["peers", *arguments, *smoke]) == 0
    output = capsys.readouterr()
    assert "[  1/3] round 1/1" in output.err
    assert "(floor: the same bytes over bare TCP)" in output.out
    results = read(path)
    assert set(results["cases"]) == {"unary_1 trio_grpc", "unary_1 floor", "unary_100_tls trio_grpc"}
    assert results["cases"]["unary_1 floor"][0]["total_ops"] > 0
    assert results["versions"]["trio_grpc"] == results["versions"]["floor"]
    assert math.isfinite(results["medians"]["unary_1"]["floor"]["median"])
    targets = {target["target"]: target["passed"] for target in results["targets"]}
    assert targets["p50_us at most 1.9 x floor"] in (True, False)
    assert targets["ops_per_second at least 0.65 x our own unary_100"] is None
