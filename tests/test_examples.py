"""The examples: in memory on the virtual clock, as the demo that a newcomer sees, and to type checkers."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import dns.message
import dns.rcode
import pytest
import trio
import trio.testing

import trio_grpc.protoc
import trio_grpc.testing

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
NAMES = ["helloworld", "route_guide", "many_machines"]


class Example:
    """The modules of one example."""

    def __init__(self, name: str) -> None:
        self.server: ModuleType = importlib.import_module("server")
        self.client: ModuleType = importlib.import_module("client")
        self.stub: ModuleType = importlib.import_module(f"{name}_trio_grpc")
        self.pb2: ModuleType = importlib.import_module(f"{name}_pb2")


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Example]:
    """The example that the test's parameter names."""
    # The examples are programs of their own: their modules have the same names.
    monkeypatch.syspath_prepend(EXAMPLES / request.param)
    yield Example(request.param)
    for name in ("server", "client", "places"):
        sys.modules.pop(name, None)


helloworld = pytest.mark.parametrize("load", ["helloworld"], indirect=True)
route_guide = pytest.mark.parametrize("load", ["route_guide"], indirect=True)


@helloworld
async def test_helloworld(
    load: Example, autojump_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    started = trio.current_time()
    async with trio_grpc.testing.open_channel_pair(load.server.Greeter()) as (channel, server):
        await load.client.talk(channel)
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics().handlers == 0  # what was cancelled here has ended there
    assert trio.current_time() - started == pytest.approx(1.2, abs=0.1)
    output = capsys.readouterr().out.splitlines()
    client = [line for line in output if not line.startswith(("--", "SayHello"))]
    assert client == [
        "reply: Hello, trio!",
        "RpcError: INVALID_ARGUMENT, 'tell me your name'",
        "RpcError: DEADLINE_EXCEEDED, 'deadline of 0.5 s exceeded'",
        "moved on after 0.5 s, as trio code does",
        "reply: Hello, hare!",
    ]
    server_side = [line for line in output if line.startswith("SayHello")]
    assert server_side.count("SayHello('sloth'): the client waits for 0.5 s") == 2
    assert server_side.count("SayHello('sloth'): cancelled, there is nobody left to greet") == 2
    assert server_side.count("SayHello('tortoise'): the client has no deadline") == 1
    assert server_side.count("SayHello('tortoise'): cancelled, there is nobody left to greet") == 1


@route_guide
async def test_route_guide(
    load: Example, autojump_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with trio_grpc.testing.open_channel_pair(load.server.RouteGuide()) as (channel, server):
        await load.client.talk(channel)
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics().handlers == 0  # what was cancelled here has ended there
    output = capsys.readouterr().out.splitlines()
    assert "at 7058, 9358 is Stone Cross" in output
    assert "RpcError: NOT_FOUND, 'nothing at 1, 1'" in output
    assert "10 points, 10 of them places, 61.1 km" in output
    received = [line for line in output if re.match("received '", line)]
    assert received == ["received 'lovely view'", "received 'lovely view'", "received 'but no coffee'"]
    listed = [int(match[1]) for line in output if (match := re.match(r"ListPlaces: listed (\d+) places", line))]
    # All of a corner; three and perhaps one more on its way; what half a second allows.
    assert listed[0] == 9
    assert listed[1] in (3, 4)
    assert listed[2] in (9, 10)
    assert {f"RpcError: DEADLINE_EXCEEDED after {count} places" for count in (9, 10)}.intersection(output)


@route_guide
def test_the_map_has_a_hundred_places_and_no_two_together(load: Example) -> None:
    places = load.server.PLACES
    side = importlib.import_module("places").SIDE
    assert len({place.name for place in places}) == len(places) == 100
    assert len({place.at.east for place in places}) == len({place.at.north for place in places}) == 100
    assert all(0 <= place.at.east < side and 0 <= place.at.north < side for place in places)


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Modules of the many machines by name."""
    monkeypatch.syspath_prepend(EXAMPLES / "many_machines")
    yield importlib.import_module
    for name in ("server", "load", "name_server"):
        sys.modules.pop(name, None)


async def test_calls_to_many_machines_are_counted_by_phase(
    machines: Callable[[str], ModuleType], autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    load, server = machines("load"), machines("server")
    calls = load.Load(load.Phase("up"), ["plain"])
    async with trio_grpc.testing.open_channel_pair(server.Machine("machine-1")) as (channel, running):
        nursery.start_soon(calls.call, channel, "plain", 2.0)
        await calls.wait_answers("machine-1")
        await calls.wait_flowing()
        assert calls.phase.judge({}, frozenset()) == ""
        calls.phase = down = load.Phase("down")
        await running.drain()
        # The end of the pair is the end of its channel's only connection: every call fails from here on.
        while not down.failures:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert down.judge({"plain": 1000}, frozenset({"UNAVAILABLE"})) in ("", "no call was answered")
    assert "0 may" in down.judge({"patient": 1000}, frozenset({"UNAVAILABLE"}))
    assert down.judge({"plain": 1000}, frozenset({"ABORTED"})) == "calls plain failed with UNAVAILABLE"


def test_the_name_server_of_many_machines_knows_one_name(machines: Callable[[str], ModuleType]) -> None:
    answer = machines("name_server").answer
    addresses = ["127.0.0.2", "127.0.0.3"]

    def ask(name: str, kind: str) -> tuple[str, list[str]]:
        query = dns.message.make_query(name, kind)
        response = dns.message.from_wire(answer(query.to_wire(), "machines.example", addresses))
        assert response.id == query.id
        return dns.rcode.to_text(response.rcode()), sorted(str(one) for records in response.answer for one in records)

    assert ask("machines.example.", "A") == ("NOERROR", addresses)
    assert ask("machines.example.", "AAAA") == ("NOERROR", [])
    assert ask("other.example.", "A") == ("NXDOMAIN", [])


@pytest.mark.slow
def test_the_demo_of_many_machines_fails_loudly(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "many_machines", tmp_path / "many_machines")
    (tmp_path / "many_machines" / "server.py").write_text("raise SystemExit(3)")
    done = run_program(tmp_path / "many_machines" / "demo.py", "--loopback")
    assert done.returncode == 1
    assert re.search(r"RuntimeError: the server on machine-[123] has not started", done.stderr)


@pytest.mark.slow
def test_the_demo_tells_its_story_and_ends_well() -> None:
    done = run_demo(EXAMPLES)
    assert done.stderr == ""
    assert done.returncode == 0
    for text in (
        "server    listening on 127.0.0.1:",
        "client          reply: Hello, trio!",
        "client          RpcError: INVALID_ARGUMENT, 'tell me your name'",
        "client          RpcError: DEADLINE_EXCEEDED, '",  # in the words of the side whose timer was the first
        "server    SayHello('tortoise'): cancelled, there is nobody left to greet",
        "client          received North Bay at 0, 0",
        "client          10 points, 10 of them places, 61.1 km",
        "client          RpcError: DEADLINE_EXCEEDED after ",
        "server    stopped",
        "Both examples did what they should.",
    ):
        assert text in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "text", "problem"),
    [
        ("server", "raise SystemExit(3)", "examples/helloworld/server.py does not listen"),
        ("client", "raise SystemExit(3)", "examples/helloworld/client.py ended with exit status 3"),
        ("client", "raise ValueError('oh')", "examples/helloworld/client.py ended with exit status 1"),
    ],
)
def test_the_demo_fails_loudly(tmp_path: Path, program: str, text: str, problem: str) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    (tmp_path / "examples" / "helloworld" / f"{program}.py").write_text(text)
    done = run_demo(tmp_path / "examples")
    assert done.returncode == 1
    assert done.stderr.endswith(f"\nThe demo FAILED: {problem}.\n")
    assert "did what they should" not in done.stdout


def run_demo(folder: Path) -> subprocess.CompletedProcess[str]:
    return run_program(folder / "run_demo.py")


def run_program(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, path, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_code_is_what_the_generator_makes(name: str, tmp_path: Path) -> None:
    assert trio_grpc.protoc.main([f"-I{EXAMPLES / name}", f"--out={tmp_path}", f"{name}.proto"]) == 0
    for made in sorted(tmp_path.iterdir()):
        assert made.read_bytes() == (EXAMPLES / name / made.name).read_bytes(), made.name
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.slow
@pytest.mark.watchdog(300)
@pytest.mark.parametrize("name", NAMES)
def test_mypy_strict_finds_nothing(name: str) -> None:
    pytest.importorskip("mypy")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--python-version=3.10", "--config-file="),
            *("--follow-imports=silent", "--explicit-package-bases", *own_files(name)),
        ],
        cwd=EXAMPLES / name,
        env={**os.environ, "MYPYPATH": os.pathsep.join((".", str(ROOT))), "MYPY_CACHE_DIR": str(ROOT / ".mypy_cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.watchdog(300)
@pytest.mark.parametrize("name", NAMES)
def test_pyright_strict_finds_nothing(name: str, tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    project = tmp_path / name
    shutil.copytree(EXAMPLES / name, project)
    configuration = {
        "include": own_files(name),
        "extraPaths": [".", str(ROOT)],
        "pythonVersion": "3.10",
        "typeCheckingMode": "strict",
    }
    (project / "pyrightconfig.json").write_text(json.dumps(configuration))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable],
        cwd=project,
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 errors, 0 warnings" in done.stdout


def own_files(name: str) -> list[str]:
    """The Python files of an example, without protoc's own."""
    return sorted(path.name for path in (EXAMPLES / name).glob("*.py") if not path.name.endswith("_pb2.py"))
