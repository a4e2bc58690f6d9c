"""`python -m benchmarks plots`: what is drawn from given figures, flame graphs from given stacks, and one small run."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree as ET

import pytest

from benchmarks import flame, peers, plots, results
from benchmarks.__main__ import main, parser
from benchmarks.workloads import LIBRARIES

# Both come with the dependency group `bench`, which the environment of the oldest releases does not have.
draws = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
samples = pytest.mark.skipif(not (Path(sys.executable).parent / "py-spy").exists(), reason="py-spy is not installed")

STACKS = {
    "<module> (a.py:1);run (trio/_core/_run.py:9);one (trio_grpc/_call.py:1);deep (h2/x.py:2)": 60,
    "<module> (a.py:1);run (trio/_core/_run.py:9);one (trio_grpc/_call.py:1)": 30,
    "<module> (a.py:1);run (trio/_core/_run.py:9);two (benchmarks/b.py:7)": 9,
    "<module> (a.py:1);start (b.py:1)": 1,
}
RUN = "run (trio/_core/_run.py:9)"
ONE = "one (trio_grpc/_call.py:1)"


def texts(svg: Path) -> list[str]:
    return [text for element in ET.fromstring(svg.read_text()).iter() if (text := (element.text or "").strip())]


def measured(**options: Any) -> dict[str, Any]:
    """Results as `plots` leaves them, with figures made up."""
    cases: dict[str, list[dict[str, Any]]] = {}
    for library, factor in (("trio_grpc", 3.0), ("grpcio_aio", 1.0), ("floor", 9.0)):
        for point in plots.points((1, 10, 100), (0, 1024, 1_048_576)):
            rates = [factor * 1000 * (index + 1) for index in range(2)]
            cases[point.case(library)] = [
                plots.figures(point, LIBRARIES[library], {"ops_per_second": rate, "foreign_cpu": 0.0}) for rate in rates
            ]
    asked = {"quick": False, "rounds": 2, "cores": [0, 1], **options}
    return {
        "format": results.FORMAT,
        "command": "plots",
        "time": "2026-01-02T03:04:05+00:00",
        "machine": {"python": "3.11.7", "implementation": "CPython", "system": "s", "processor": "Chip", "cores": 2},
        "versions": {"trio": "0.31.0", "grpcio": "1.80.0"},
        "options": asked,
        "cases": cases,
        "stacks": {"server": STACKS, "client": STACKS},
    }


def test_every_library_has_a_style_of_its_own() -> None:
    assert set(plots.STYLES) == set(LIBRARIES)
    assert len({(style.colour, style.marker) for style in plots.STYLES.values()}) == len(LIBRARIES)


def test_the_mean_time_of_a_call_follows_from_the_rate_and_the_calls_in_flight() -> None:
    (point,) = plots.points((100,), ())
    kept = plots.figures(point, LIBRARIES["trio_grpc"], {"ops_per_second": 50_000.0})
    assert kept["average_us"] == 2000.0
    assert "average_us" not in plots.figures(point, LIBRARIES["trio_grpc"], {"ops_per_second": 0.0})


def test_points_vary_one_thing_each() -> None:
    by_concurrency, by_size = plots.points((7,), (512,))
    assert (by_concurrency.workload.concurrency, by_concurrency.workload.size) == (7, 0)
    assert (by_size.workload.concurrency, by_size.workload.size) == (plots.CONCURRENCY_OF_SIZES, 512)
    assert by_size.case("floor") == "size 512: floor"


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([0.1, 0.5, 0.9], [0.1, 0.5, 0.9]),
        ([0.5, 0.5], [0.45, 0.55]),
        ([0.9, 0.5, 0.52], [0.9, 0.46, 0.56]),
        # The pair that moves apart meets a third, and all three share the room.
        ([0.5, 0.5, 0.56], [0.42, 0.52, 0.62]),
        ([], []),
    ],
)
def test_labels_are_moved_apart_as_little_as_it_takes(places: list[float], expected: list[float]) -> None:
    assert plots.spread_out(places, 0.1) == pytest.approx(expected)


def test_labels_keep_their_order_and_their_distance() -> None:
    places = [0.3, 0.31, 0.29, 0.7, 0.33, 0.69, 0.71]
    moved = plots.spread_out(places, 0.05)
    order = sorted(range(len(places)), key=lambda index: places[index])
    ordered = [moved[index] for index in order]
    assert all(after - before >= 0.05 - 1e-9 for before, after in itertools.pairwise(ordered))
    assert sum(moved) == pytest.approx(sum(places))


def test_axes_are_written_as_people_say_it() -> None:
    assert [plots.in_bytes(number) for number in (0, 64, 4096, 1_048_576)] == ["0 B", "64 B", "4 KiB", "1 MiB"]
    assert [plots.in_thousands(number) for number in (200, 5000, 1_500_000)] == ["200", "5k", "1.5M"]
    assert [plots.in_time(number) for number in (50, 2000, 1_000_000)] == ["50 µs", "2 ms", "1 s"]


@draws
def test_the_same_figures_give_the_same_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "plots.json"
    source.write_text(json.dumps(measured()))
    made = []
    for name in ("a", "b"):
        assert main(["plots", "--from", str(source), "--out", str(tmp_path / name)]) == 0
        made.append({path.name: path.read_bytes() for path in sorted((tmp_path / name).iterdir())})
    assert made[0] == made[1]
    charts = ["unary-concurrency.svg", "unary-latency.svg", "unary-size.svg"]
    assert sorted(made[0]) == ["flame-client.svg", "flame-server.svg", *charts]
    for chart in charts:
        words = texts(tmp_path / "a" / chart)
        assert {"trio_grpc", "grpc.aio", "floor: bare TCP"} <= set(words)
        assert "Chip, 2 cores, one for each side · 2026-01-02 · medians of 2 rounds and their range" in words
        assert "CPython 3.11.7 · trio 0.31.0 · grpcio 1.80.0" in words
    assert {"1", "10", "100", "10k"} <= set(texts(tmp_path / "a" / "unary-concurrency.svg"))
    assert {"0 B", "1 KiB", "1 MiB"} <= set(texts(tmp_path / "a" / "unary-size.svg"))
    assert "4,500" in capsys.readouterr().out


@draws
def test_a_smoke_run_says_so_in_its_pictures(tmp_path: Path) -> None:
    plots.draw(plots.CHARTS[0], measured(quick=True, rounds=1), tmp_path / "chart.svg")
    assert "A smoke run: these figures mean nothing." in texts(tmp_path / "chart.svg")


@draws
def test_a_picture_says_how_many_runs_were_disturbed(tmp_path: Path) -> None:
    noisy = measured()
    noisy["cases"]["concurrency 1: floor"][1]["foreign_cpu"] = 0.3
    plots.draw(plots.CHARTS[0], noisy, tmp_path / "chart.svg")
    assert any("1 of 36 runs disturbed by other programs" in text for text in texts(tmp_path / "chart.svg"))
    assert "1 of 36 runs disturbed by other programs: repeat" in plots.table(noisy)


@draws
def test_what_was_not_measured_is_not_drawn(tmp_path: Path) -> None:
    only_sizes = measured()
    only_sizes["stacks"] = {}
    only_sizes["cases"] = {name: case for name, case in only_sizes["cases"].items() if name.startswith("size")}
    assert [path.name for path in plots.draw_all(only_sizes, tmp_path)] == ["unary-size.svg"]


def test_a_run_in_which_nothing_ended_has_no_point() -> None:
    one = copy.deepcopy(measured())
    one["cases"]["concurrency 10: trio_grpc"] = [
        plots.figures(plots.points((10,), ())[0], LIBRARIES["trio_grpc"], {"ops_per_second": 0.0})
    ]
    assert [place for place, _ in plots.series(plots.CHARTS[0], one["cases"])["trio_grpc"]] == [1, 100]


def test_a_tree_adds_up() -> None:
    root = flame.tree(STACKS)
    assert root.samples == 100
    one = root.callees["<module> (a.py:1)"].callees[RUN].callees[ONE]
    assert (one.samples, one.own) == (90, 30)


def test_the_trunk_ends_where_it_forks() -> None:
    assert flame.without_trunk(flame.tree(STACKS)).name == RUN


def test_within_leaves_out_what_is_elsewhere() -> None:
    inside = flame.within(STACKS, "run (trio/")
    assert sum(inside.values()) == 99
    assert all(stack.startswith(RUN) for stack in inside)
    with pytest.raises(flame.FlameError, match="never saw nowhere"):
        flame.within(STACKS, "nowhere")


def test_pruning_keeps_every_sample_of_what_is_left() -> None:
    kept = flame.pruned(STACKS, 0.5)
    assert kept == {
        f"<module> (a.py:1);{RUN};{ONE};deep (h2/x.py:2)": 60,
        f"<module> (a.py:1);{RUN};{ONE}": 30,
        f"<module> (a.py:1);{RUN}": 9,
        "<module> (a.py:1)": 1,
    }


def test_shares_are_by_the_innermost_file() -> None:
    shares = flame.shares_by_file(STACKS)
    assert shares == pytest.approx({"h2/x.py": 0.6, "trio_grpc/_call.py": 0.3, "benchmarks/b.py": 0.09, "b.py": 0.01})


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("f (trio_grpc/_call.py:1)", "trio_grpc"),
        ("__init__ (<attrs generated methods trio_grpc._transport.stream.Outcome>:39)", "trio_grpc"),
        ("f (trio/_core/_run.py:1)", "trio"),
        ("f (h2/connection.py:1)", "protobuf, h2, hpack"),
        ("f (benchmarks/libraries/base.py)", "the benchmark"),
        ("f (socket.py:1)", "Python's own and the rest"),
    ],
)
def test_a_frame_is_of_the_colour_of_whose_it_is(name: str, title: str) -> None:
    assert flame.kind(name).title == title


def test_a_flame_graph_is_small_and_tells_shares_of_what_can_be_seen(tmp_path: Path) -> None:
    narrow = {f"{RUN};f{number} (socket.py:1)": 1 for number in range(2000)}
    svg = tmp_path / "flame.svg"
    svg.write_text(flame.draw({**STACKS, f"{RUN};<b> & co (x.py:1)": 2000, **narrow}, "Title", ["About"]))
    words = texts(svg)
    assert any(word.startswith("<b> & co (x.py:1): 4") for word in words)
    assert not any(word.startswith("f17 ") for word in words)
    assert svg.stat().st_size < 10_000


@pytest.mark.parametrize("text", ["no count", "7", "a;b seven"])
def test_what_is_no_stack_is_refused(text: str) -> None:
    with pytest.raises(flame.FlameError, match="which is no stack"):
        flame.parse(text)


def test_stacks_of_one_name_are_added() -> None:
    assert flame.parse("a (x.py:1);b (x.py:2) 3\na (x.py:1) 1\na (x.py:1);b (x.py:2) 4\n") == {
        "a (x.py:1);b (x.py:2)": 7,
        "a (x.py:1)": 1,
    }


@samples
def test_a_process_is_sampled() -> None:
    code = "def busy():\n  while True: sum(range(1000))\nprint(1, flush=True)\nbusy()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            stacks = flame.Sampler(process.pid, 1).result()
        except flame.FlameError as error:
            if "right to trace" in str(error):
                pytest.skip(str(error))
            raise
        finally:
            process.kill()
    assert any("busy (<string>" in stack for stack in stacks)


@samples
def test_a_process_that_is_not_there_is_no_flame_graph() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(flame.FlameError, match="py-spy cannot sample"):
        flame.Sampler(process.pid, 1).result()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--sizes", "1,-2"], "argument --sizes: '1,-2' is neither a list of numbers of bytes nor `none`"),
        (["--concurrency", "x"], "argument --concurrency: 'x' is neither a list"),
        (["--flame", "soon"], "argument --flame: 'soon' is not a whole number"),
        (["--libraries", "nobody"], "argument --libraries: unknown library 'nobody'"),
        (["--out", __file__], "argument --out:"),
    ],
)
def test_bad_flags_are_named(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plots", *arguments])
    assert ended.value.code == 2
    assert named in capsys.readouterr().err


def test_only_results_of_plots_can_be_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plots", "--from", str(tmp_path / "none.json")]) == 1
    assert "--from: " in capsys.readouterr().err
    other = tmp_path / "other.json"
    results.write(other, {"format": 1, "command": "codec", "cases": {}})
    assert main(["plots", "--from", str(other)]) == 1
    assert "was left by `codec`, not by `plots`" in capsys.readouterr().err


@draws
def test_one_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plots.json"
    few = ["--libraries", "floor", "--concurrency", "3", "--sizes", "none", "--flame", "0"]
    few += ["--duration", "0.1", "--warmup", "0.05", "--retries", "0"]
    assert main(["plots", "--quick", *few, "--json", str(file), "--out", str(tmp_path / "out")]) == 0
    kept = results.read(file)
    assert list(kept["cases"]) == ["concurrency 3: floor"]
    assert all("ops_per_second" in rounds[0] for rounds in kept["cases"].values())
    assert "results in" in capsys.readouterr().err
    # On a machine that is busy enough, not one call may have ended.
    expected = [chart.file for chart in plots.CHARTS if plots.series(chart, kept["cases"])]
    assert sorted(path.name for path in (tmp_path / "out").glob("*")) == sorted(expected)


class FakeSampler:
    """Has its samples at once."""

    open: ClassVar[list[int]] = []
    seen: ClassVar[dict[str, int]] = STACKS

    def __init__(self, pid: int, seconds: int) -> None:
        self.pid = pid
        self.open.append(pid)

    def result(self) -> flame.Stacks:
        self.open.remove(self.pid)
        return self.seen

    def close(self) -> None:
        self.open.remove(self.pid)


@pytest.fixture
def fake_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_once(library: Any, workload: Any, options: Any, on_started: Any) -> dict[str, Any]:
        on_started(1001, 1002)
        if options.cores == (9, 9):
            raise peers.RunFailedError("the client ended with code 1")
        return {}

    monkeypatch.setattr(plots, "run_once", run_once)
    monkeypatch.setattr(plots, "missing", lambda library: None)
    monkeypatch.setattr(plots, "LONGEST_START", 0.0)
    monkeypatch.setattr(flame, "Sampler", FakeSampler)


ONLY_FLAMES = ["plots", "--quick", "--libraries", "floor", "--concurrency", "0", "--sizes", "none"]


def test_both_ends_are_sampled_inside_of_the_run_loop(fake_sampling: None, tmp_path: Path) -> None:
    file = tmp_path / "plots.json"
    assert main([*ONLY_FLAMES, "--json", str(file), "--out", str(tmp_path / "out")]) == 0
    stacks = results.read(file)["stacks"]
    assert stacks == dict.fromkeys(("server", "client"), flame.within(STACKS, plots.HOT_PATH))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["flame-client.svg", "flame-server.svg"]
    assert FakeSampler.open == []


def test_a_run_that_fails_ends_its_samplers(fake_sampling: None, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = parser().parse_args(ONLY_FLAMES)
    arguments.cores = (9, 9)
    assert plots.main(arguments) == 1
    assert "no flame graphs: the client ended with code 1" in capsys.readouterr().err
    assert FakeSampler.open == []


def test_nothing_measured_is_nothing_drawn(
    fake_sampling: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = ["--libraries", "floor", "--concurrency", "0", "--sizes", "none", "--flame", "0"]
    assert main(["plots", "--quick", *none, "--out", str(tmp_path / "out")]) == 1
    assert "nothing was measured" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
