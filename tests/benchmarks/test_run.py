"""`python -m benchmarks run`: its arithmetic, its complaints, and short runs of everything it can combine."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import trio

from benchmarks import allocations, results, run, run_end
from benchmarks.__main__ import main, parser
from benchmarks.certificates import make_certificates
from benchmarks.ends import EndFailedError
from benchmarks.metrics import METRICS
from benchmarks.run_end import Counters, Plan, percentile, summary
from benchmarks.traffic import TRAFFIC, Bench, Metadata, Tally, message
from trio_grpc.testing import MemoryListener

#: Seconds here are real ones: as few as figures can be had in.
SHORT = ["--rounds", "1", "--benchtime", "0.1", "--warmup", "0.05", "--calls", "4", "--cores", "none"]


@pytest.fixture(autouse=True)
def short_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "COUNTING", 0.02)


def case(workload: str, request_size: int = 10, response_size: int = 20) -> run.Case:
    plan = Plan(workload, 4, 1, request_size, response_size, False, "none", False, None)
    return run.Case(TRAFFIC[workload], plan)


def end(sent: int, received: int, cpu: float = 0.0, allocated: int = 0, **more: float) -> dict[str, Any]:
    return {
        "seconds": 2.0,
        "cpu": cpu,
        "foreign_cpu": 0.5 * cpu,
        "sent": sent,
        "received": received,
        "allocations": allocated,
        "bytes": 100 * allocated,
        **more,
    }


def test_figures_are_per_operation_of_each_end_and_per_second() -> None:
    timed = [end(101, 100, cpu=0.5, p50_us=7.0), end(99, 100, cpu=1.0)]
    record = run.figures(case("unary"), timed, [end(10, 10, allocated=50), end(5, 5, allocated=35)])
    assert record == {
        "total_ops": 100,
        "send_ops": 101,
        "recv_ops": 100,
        "ops_per_second": 50.0,
        "request_throughput": 101 * 10 / 2,
        "response_throughput": 100 * 20 / 2,
        "p50_us": 7.0,
        "client_cpu_us_per_op": 5000.0,
        "server_cpu_us_per_op": 1e6 / 99,
        "allocs_per_op": 5 + 7,
        "bytes_per_op": 500 + 700,
        "foreign_cpu": 0.25,
    }


def test_each_message_of_unconstrained_streams_is_an_operation_and_one_process_has_one_cpu() -> None:
    record = run.figures(case("unconstrained"), [end(300, 100, cpu=2.0)], [])
    assert record["total_ops"] == 400
    assert record["cpu_us_per_op"] == 5000.0
    assert not record.keys() & {"client_cpu_us_per_op", "server_cpu_us_per_op", "allocs_per_op", "bytes_per_op"}


@pytest.mark.parametrize("timed", [[end(1, 0), end(1, 1)], [end(1, 1), end(0, 1)], [end(0, 0)]])
def test_a_time_in_which_nothing_ends_gives_no_figures(timed: list[dict[str, Any]]) -> None:
    with pytest.raises(EndFailedError, match=r"no operation ended in 2\.00 s: --benchtime is too short"):
        run.figures(case("unary"), timed, [])


def test_a_count_without_operations_gives_no_figures() -> None:
    with pytest.raises(EndFailedError, match="while allocations were counted"):
        run.figures(case("unary"), [end(1, 1)], [end(0, 0, allocated=9)])


def test_counting_goes_on_until_every_loop_has_made_some_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter([[end(30, 30, allocated=3), end(40, 40)], [end(10, 10, allocated=1), end(1, 1, allocated=2)]])
    monkeypatch.setattr(run, "ask", lambda ends, command, timeout: next(told))
    client, server = run.count(case("unary"), (None, None))  # type: ignore[arg-type]
    assert client == {"sent": 40, "received": 40, "allocations": 4, "bytes": 400}
    assert server == {"sent": 41, "received": 41, "allocations": 2, "bytes": 200}


def test_a_measurement_in_which_nothing_ends_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    looks = iter([[end(0, 0), end(0, 0)], [end(1, 1), end(0, 0)], [end(2, 2), end(1, 1)]])

    def ask(ends: object, command: str, timeout: float) -> list[dict[str, Any]]:
        asked.append(command)
        return next(looks) if command == "look" else [end(3, 3), end(3, 3)]

    monkeypatch.setattr(run, "ask", ask)
    monkeypatch.setattr(run, "started", lambda *_: contextlib.nullcontext(()))
    arguments = parser().parse_args(["run", "--benchtime", "0.001", "--warmup", "0.001"])
    assert run.measure(case("unary"), arguments, counts=False)["total_ops"] == 3
    assert asked == ["mark", "look", "look", "look", "mark"]


def test_the_larger_share_of_a_core_that_was_lost_is_told_if_it_is_known() -> None:
    timed = [end(1, 1, cpu=1.0), {**end(1, 1), "foreign_cpu": None}]
    assert run.figures(case("unary"), timed, [])["foreign_cpu"] == 0.25
    assert "foreign_cpu" not in run.figures(case("unary"), timed[1:], [])


def test_percentiles_are_values_that_were_measured() -> None:
    ordered = list(range(1, 101))
    assert [percentile(ordered, percent) for percent in (1, 50, 90, 99, 100)] == [1, 50, 90, 99, 100]
    assert [percentile([7], percent) for percent in (0, 50, 99)] == [7, 7, 7]
    assert summary([3000, 1000, 2000]) == {"p50_us": 2.0, "p90_us": 3.0, "p99_us": 3.0, "average_us": 2.0}
    assert summary([]) == {}


def test_a_mark_tells_what_came_since_the_last_one() -> None:
    tally = Tally(sent=5, received=5, latencies=[1])
    counters = Counters(tally)
    tally.sent += 2
    tally.received += 1
    tally.latencies.append(4000)
    assert counters.look() == {"sent": 2, "received": 1}
    first = counters.mark(count=False)
    assert (first["sent"], first["received"], first["average_us"], first["allocations"]) == (2, 1, 4.0, 0)
    second = counters.mark(count=False)
    assert (second["sent"], second["received"]) == (0, 0)
    assert "average_us" not in second


@pytest.mark.skipif(allocations.missing() is not None, reason="nothing can count allocations here")
def test_allocations_are_counted_from_the_mark_that_asks_to_the_next() -> None:
    counters = Counters(Tally())
    assert counters.mark(count=True)["allocations"] == 0
    kept = [bytes(1000) for _ in range(100)]
    counted = counters.mark(count=False)
    assert 100 <= counted["allocations"] < 200
    assert counted["bytes"] >= 100_000
    del kept
    assert counters.mark(count=False)["allocations"] == 0


def test_payloads_have_their_size_and_are_the_same_every_time() -> None:
    assert [len(message(size).payload) for size in (0, 1, 350)] == [0, 1, 350]
    assert message(350) == message(350)
    assert len(message(2 * 1024**2 + 1).payload) == 2 * 1024**2 + 1


def test_a_payload_is_compressed_to_about_half() -> None:
    payload = message(1_000_000).payload
    assert 0.45 < len(zlib.compress(payload)) / len(payload) < 0.65


def test_rich_metadata_is_a_deadline_a_trace_of_each_call_and_a_token() -> None:
    assert Metadata(rich=False).options(60) == {}
    metadata = Metadata(rich=True)
    first, second = (metadata.options(60) for _ in range(2))
    assert first["timeout"] == 60
    (_, trace), (name, token) = first["metadata"]
    assert name == "authorization"
    assert len(token) == 800
    assert len(trace) == 55
    assert trace != dict(second["metadata"])["traceparent"]


@pytest.mark.parametrize("asked", [True, False])
async def test_what_the_plan_says_is_what_the_server_sees(
    asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.abc.Clock
) -> None:
    seen: list[Any] = []

    class Watched(Bench):
        async def Unary(self, request: Any, context: Any) -> Any:
            seen.append((len(request.payload), context.request_compressed, context.time_remaining(), context.metadata))
            return await super().Unary(request, context)

    monkeypatch.setattr(run_end, "Bench", Watched)
    tls = str(make_certificates(tmp_path)) if asked else None
    plan = Plan("unary", 1, 2, 3000, 5000, asked, "wan" if asked else "none", asked, tls)
    listener = MemoryListener()
    async with trio.open_nursery() as services:
        async with contextlib.AsyncExitStack() as channels:
            await run_end.serve(plan, listener, Tally(), services)
            first, second = await run_end.connect(plan, listener.connect, services, channels)
            # Connecting is a call of each channel; they come before everything that is measured.
            assert [size for size, *_ in seen] == [0, 0]
            for stub in (first, second):
                started = trio.current_time()
                reply = await stub.Unary(message(plan.request_size), **Metadata(plan.rich).options(60))
                assert len(reply.payload) == 5000
                # There and back in 30 ms each, and some packets.
                assert (0.060 < trio.current_time() - started < 0.070) is asked
        services.cancel_scope.cancel()
    size, compressed, remaining, metadata = seen[-1]
    assert (size, compressed) == (3000, asked)
    assert ("traceparent" in metadata) is ("authorization" in metadata) is asked
    assert (remaining <= 60) is asked


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("350", 350), ("10KB", 10_000), ("1 mib", 1024**2), ("1GiB", 1024**3), ("3B", 3)]
)
def test_sizes(text: str, value: int) -> None:
    assert run.size(text) == value
    assert run.size(run.readable(value)) == value


@pytest.mark.parametrize("text", ["", "-1", "1.5", "10 kilo", "KB", "2GiB"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=repr(text)):
        run.size(text)


def test_every_combination_of_what_was_listed_is_a_case_of_its_own() -> None:
    arguments = parser().parse_args(
        ["run", "--workload", "streaming,unary", "--calls", "1,100", "--request-size", "0,10KB", "--response-size", "3"]
    )
    assert [one.title for one in run.cases(arguments, None)] == [
        "streaming x1 0B/3B",
        "streaming x1 10KB/3B",
        "streaming x100 0B/3B",
        "streaming x100 10KB/3B",
        "unary x1 0B/3B",
        "unary x1 10KB/3B",
        "unary x100 0B/3B",
        "unary x100 10KB/3B",
    ]


def test_limits_are_the_defaults_unless_the_plan_needs_more() -> None:
    small, large = case("unary").plan, Plan("unary", 2000, 1, 0, 5 * 1024**2, False, "none", False, None)
    assert small.limits.max_receive_message_length == 4 * 1024**2
    assert small.limits.max_concurrent_streams == 1000
    assert large.limits.max_receive_message_length == 5 * 1024**2 + 16
    assert large.limits.max_concurrent_streams == 2000


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--workload", "duplex"], "argument --workload: unknown workload 'duplex'; known: unary, streaming"),
        (["--benchtime", "0"], "argument --benchtime: '0' is not a number above 0"),
        (["--warmup", "-1"], "argument --warmup: '-1' is not a number above 0"),
        (["--rounds", "x"], "argument --rounds: 'x' is not a whole number above 0"),
        (["--calls", "1,0"], "argument --calls: '0' is not a whole number above 0"),
        (["--connections", "0"], "argument --connections: '0' is not a whole number above 0"),
        (["--request-size", "1,big"], "argument --request-size: 'big' is not a size such as 350, 10KB or 1MiB"),
        (["--response-size", "2GiB"], "argument --response-size: '2GiB' is more than 1 GiB"),
        (["--compression", "zip"], "argument --compression: invalid choice: 'zip'"),
        (["--network", "moon"], "argument --network: invalid choice: 'moon'"),
        (["--metadata", "poor"], "argument --metadata: invalid choice: 'poor'"),
        (["--cores", "1"], "argument --cores: '1' is neither SERVER,CLIENT core numbers nor `none`"),
        (["--json", "no/such/folder/x"], "argument --json: the folder 'no/such/folder' does not exist"),
    ],
)
def test_a_bad_flag_is_named(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", *arguments])
    assert named in capsys.readouterr().err


def test_a_short_run_gives_a_table_and_results_that_compare_can_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    assert main(["run", *SHORT, "--workload", "unary", "--request-size", "350", "--json", str(path)]) == 0
    output = capsys.readouterr()
    assert "unary x4 350B/1B" in output.out
    assert "two processes over loopback TCP" in output.out
    assert "[  1/1] round 1/1 unary x4 350B/1B" in output.err
    back = results.read(path)
    ((title, (record,)),) = back["cases"].items()
    assert title == "unary x4 350B/1B"
    assert record.keys() <= METRICS.keys()
    assert record["total_ops"] == record["send_ops"] == record["recv_ops"] > 0
    assert {"p50_us", "p90_us", "p99_us", "average_us", "client_cpu_us_per_op", "server_cpu_us_per_op"} < record.keys()
    assert ("allocs_per_op" in record) is (allocations.missing() is None)
    assert back["options"]["request_size"] == [350]


def test_everything_at_once_in_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    flags = ["--bufconn", "--tls", "--compression", "gzip", "--metadata", "rich", "--network", "lan"]
    flags += ["--connections", "2", "--workload", "streaming,unconstrained", "--json", str(path)]
    assert main(["run", *SHORT, *flags]) == 0
    output = capsys.readouterr().out
    assert "one process, in memory" in output
    assert "network lan (100 Mbit/s, 2 ms one way, MTU 1500)" in output
    streaming, unconstrained = (rounds[0] for rounds in results.read(path)["cases"].values())
    # Two latencies of 2 ms, whatever the machine does.
    assert streaming["p50_us"] >= 4000
    assert "p50_us" not in unconstrained
    assert unconstrained["total_ops"] == unconstrained["send_ops"] + unconstrained["recv_ops"]
    assert streaming["cpu_us_per_op"] > 0


def test_tls_without_the_package_for_certificates_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "trustme", None)
    assert main(["run", *SHORT, "--tls"]) == 1
    assert "failed: --tls needs a package that `make env` installs: " in capsys.readouterr().err


def test_a_process_that_fails_is_told_with_its_reason_and_the_other_cases_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(case: run.Case, arguments: argparse.Namespace, counts: bool) -> dict[str, float]:
        if case.traffic.name == "streaming":
            return run.figures(case, [end(10, 10), end(10, 10)], [])
        return measure_really(case, arguments, counts)

    measure_really = run.measure
    monkeypatch.setattr(run, "measure", measure)
    # The plan is right where it is made, and wrong where it is carried out.
    monkeypatch.setattr(Plan, "to_json", lambda plan: json.dumps({"workload": plan.workload}))
    path = tmp_path / "run.json"
    assert main(["run", *SHORT, "--workload", "unary,streaming", "--json", str(path)]) == 1
    output = capsys.readouterr()
    assert "failed: unary x4 1B/1B: the server process ended with code 1: TypeError: " in output.err
    assert "unary" not in output.out
    assert list(results.read(path)["cases"]) == ["streaming x4 1B/1B"]
