"""What generated code and the public face look like to a user's strict type checkers.

The `user_*.py` files beside this one are a user's project. The tests put them, and modules generated from all samples,
into a project directory and let mypy and pyright read it, both as strict as they can be. The directory lies in pytest's
cache: nothing in it changes from run to run but what the code changes, so mypy is quick.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trio_grpc.protoc
from trio_grpc.protoc_plugin import module_path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PROTOS = HERE.parent / "protos"
SAMPLES = PROTOS / "samples"
# All but the one of which protoc makes a .pyi that is not Python.
FILES = sorted(
    {"echo.proto", *(path.relative_to(SAMPLES).as_posix() for path in SAMPLES.rglob("*.proto"))}
    - {"keyword_messages.proto"}
)

# A user of the samples: types reach through odd names, packages and well-known types.
ODD_NAMES = """
from typing import Any

from google.protobuf.empty_pb2 import Empty
from google.protobuf.struct_pb2 import Struct
from google.protobuf.field_mask_pb2 import FieldMask
from typing_extensions import assert_type

import trio_grpc
from a.b_pb2 import Thing as AThing
from a.b_trio_grpc import ImporterServicer, ImporterStub
from c_x.plain_pb2 import Plain
from deep.er.still.types_pb2 import Thing as DeepThing
from dotted.name_with_hyphens_trio_grpc import DottedStub
from left.types_pb2 import Thing as LeftThing
from naming_pb2 import Thing
from naming_trio_grpc import ClashesServicer, ClashesStub, KeywordsStub, MessagesStub, classStub
from no_package_trio_grpc import BareStub
from package.snake_case_pb2 import Thing as SnakeThing
from package.snake_case_trio_grpc import WordsServicer, WordsStub
from right.types_pb2 import Thing as RightThing
from same_names_trio_grpc import SameNamesStub
from well_known_trio_grpc import WellKnownStub


async def names(channel: trio_grpc.Channel) -> None:
    keywords = KeywordsStub(channel)
    assert_type(await keywords.import__(Thing()), Thing)
    assert_type(await keywords.async_([Thing()]), Thing)
    async with keywords.None_(Thing()) as things:
        assert_type(await things.receive(), Thing)
    clashes = ClashesStub(channel)
    assert_type(await clashes.__init___(Thing()), Thing)
    assert_type(await clashes.trio_grpc(Thing()), Thing)
    assert_type(await clashes.Any(Thing()), Thing)
    assert_type(await clashes.mro(Thing()), Thing)
    async with clashes.Awaitable(Thing()) as things:
        assert_type(await things.receive(), Thing)
    assert_type(await classStub(channel).Do(Thing()), Thing)
    async with MessagesStub(channel).Nested(Thing.Inner()) as replies:
        assert_type(await replies.receive(), Thing.Inner.Innermost)


async def packages(channel: trio_grpc.Channel) -> None:
    importer = ImporterStub(channel)
    assert_type(await importer.Own(AThing()), Empty)
    async with importer.Hyphens(Plain()) as replies:
        assert_type(await replies.receive(), DeepThing)
    assert_type(await SameNamesStub(channel).Turn(LeftThing()), RightThing)
    async with WellKnownStub(channel).Pick() as call:
        await call.send(FieldMask())
        assert_type(await call.receive(), Struct)
    reply: Any = await importer.Keyword([])
    print(reply, BareStub(channel), DottedStub(channel))


async def snake_case(channel: trio_grpc.Channel) -> None:
    words = WordsStub(channel)
    assert_type(await words.get_thing(SnakeThing()), SnakeThing)
    assert_type(await words.get_http_status([SnakeThing()]), SnakeThing)
    async with words.get_other_thing(SnakeThing()) as things:
        assert_type(await things.receive(), SnakeThing)
    async with words.http_get() as both:
        await both.send(SnakeThing())
        assert_type(await both.receive(), SnakeThing)


class Words(WordsServicer):
    async def get_thing(self, request: SnakeThing, context: trio_grpc.ServicerContext[SnakeThing]) -> SnakeThing:
        return request


class Importer(ImporterServicer):
    async def Own(self, request: AThing, context: trio_grpc.ServicerContext[Empty]) -> Empty:
        return Empty()


class Clashes(ClashesServicer):
    async def __secret__(self, request: Thing, context: trio_grpc.ServicerContext[Thing]) -> Thing:
        return request

    async def trio_grpc(self, request: Thing, context: trio_grpc.ServicerContext[Thing]) -> Thing:
        return request
"""

# Every line that is marked must be found wrong, and no other.
MISTAKES = """
from collections.abc import AsyncIterator

import trio_grpc
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer, EchoStub

Context = trio_grpc.ServicerContext[EchoReply]


async def calls(channel: trio_grpc.Channel) -> None:
    echo = EchoStub(channel)
    await echo.Unary(EchoReply())  # wrong
    await echo.Unary(EchoRequest(), timeout="1")  # wrong
    await echo.Unary(EchoRequest(), metadata={"key": 1})  # wrong
    await echo.Unary(EchoRequest(), wait=True)  # wrong
    text: int = (await echo.Unary(EchoRequest())).text  # wrong
    echo.unary  # wrong
    await echo.ServerStream(EchoRequest())  # wrong
    async with echo.Bidi() as chat:
        await chat.send(EchoReply())  # wrong
    async with echo.ServerStream(EchoRequest()) as replies:
        request: EchoRequest = await replies.receive()  # wrong
    await echo.ClientStream([EchoReply()])  # wrong
    print(text, request)


def service_configs() -> None:
    trio_grpc.MethodConfig(timeout="1s")  # wrong
    trio_grpc.MethodConfig(names=[1])  # wrong
    trio_grpc.HedgingPolicy(max_attempts=2, non_fatal_status_codes=[14])  # wrong
    trio_grpc.HedgingPolicy(hedging_delay=1)  # wrong
    trio_grpc.ServiceConfig(load_balancing="round_robin")  # wrong
    trio_grpc.ServiceConfig(methods=[trio_grpc.ServiceConfig()])  # wrong
    trio_grpc.open_channel("localhost", load_balancing="fastest")  # wrong
    trio_grpc.open_channel("localhost", service_config=[])  # wrong


class Echo(EchoServicer):
    async def Unary(self, request: EchoReply, context: Context) -> EchoReply:  # wrong
        return EchoReply()

    async def ServerStream(self, request: EchoRequest, context: Context) -> EchoReply:  # wrong
        return EchoReply()

    async def ClientStream(
        self, requests: trio_grpc.RequestStream[EchoRequest], context: Context
    ) -> EchoReply:
        return EchoRequest()  # wrong

    async def Bidi(
        self, requests: trio_grpc.RequestStream[EchoRequest], context: Context
    ) -> AsyncIterator[EchoReply]:
        async for request in requests:
            yield request  # wrong
            await context.send(request)  # wrong
"""


@pytest.fixture(scope="module")
def project(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's project with generated modules."""
    cache: pytest.Cache | None = getattr(pytestconfig, "cache", None)  # pytest can run without one
    directory = tmp_path_factory.mktemp("typing") if cache is None else cache.mkdir("typing")
    made = [f"-I{SAMPLES}", f"-I{PROTOS}", *FILES]
    assert trio_grpc.protoc.main([f"--out={directory}", *made]) == 0
    # In relative form, which only a package can be, and with names in snake case.
    assert trio_grpc.protoc.main([f"--out={directory / 'package'}", "--relative-imports", "--snake-case", *made]) == 0
    write(directory / "package" / "__init__.py", "")
    for path in HERE.glob("user_*.py"):
        write(directory / path.name, path.read_text(encoding="utf-8"))
    write(directory / "odd_names.py", ODD_NAMES)
    write(directory / "mistakes.py", MISTAKES)
    return directory


def write(path: Path, text: str) -> None:
    path.write_bytes(text.encode())


@pytest.fixture(scope="module")
def correct(project: Path) -> list[str]:
    """The files of the project in which checkers must find nothing: all but protoc's own and the mistakes."""
    generated = [module_path(name) for name in FILES]
    users = [path.name for path in sorted(HERE.glob("user_*.py"))]
    files = [*users, "odd_names.py", *generated, *(f"package/{name}" for name in generated)]
    assert all((project / name).is_file() for name in files)
    return files


def run_mypy(project: Path, files: list[str]) -> str:
    """What mypy has to say about files, but not about what they import."""
    pytest.importorskip("mypy")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--python-version=3.10", "--config-file="),
            *("--explicit-package-bases", "--follow-imports=silent", "--show-traceback", "--hide-error-context"),
            *("--no-error-summary", "--no-pretty", "--cache-dir=.mypy_cache", *files),
        ],
        cwd=project,
        env={**os.environ, "MYPYPATH": os.pathsep.join((".", str(ROOT)))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert done.stderr == ""
    # Stubs are followed noisily. protoc's are not strict.
    return "".join(line for line in done.stdout.splitlines(keepends=True) if not re.match(r"\S+_pb2\.pyi:", line))


def run_pyright(project: Path, files: list[str]) -> list[str]:
    """What pyright has to say about files, one line for each complaint."""
    pytest.importorskip("pyright")
    configuration = {
        "include": files,
        "extraPaths": [".", str(ROOT)],
        "pythonVersion": "3.10",
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    write(project / "pyrightconfig.json", json.dumps(configuration))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable],
        cwd=project,
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] >= len(files)
    return [
        f"{Path(found['file']).relative_to(project.resolve()).as_posix()}:{found['range']['start']['line'] + 1}: "
        f"{found['severity']}: {found['message']} [{found.get('rule')}]"
        for found in report["generalDiagnostics"]
    ]


@pytest.mark.slow
@pytest.mark.watchdog(300)
def test_mypy_strict_finds_nothing_in_a_users_project(project: Path, correct: list[str]) -> None:
    assert run_mypy(project, correct) == ""


@pytest.mark.slow
@pytest.mark.watchdog(300)
def test_pyright_strict_finds_nothing_in_a_users_project(project: Path, correct: list[str]) -> None:
    assert run_pyright(project, correct) == []


def wrong_lines() -> set[int]:
    return {number for number, line in enumerate(MISTAKES.split("\n"), 1) if line.endswith("# wrong")}


@pytest.mark.slow
@pytest.mark.watchdog(300)
def test_mypy_strict_finds_every_mistake(project: Path) -> None:
    output = run_mypy(project, ["mistakes.py"])
    assert {int(line) for line in re.findall(r"^mistakes\.py:(\d+): error", output, re.MULTILINE)} == wrong_lines(), (
        output
    )


@pytest.mark.slow
@pytest.mark.watchdog(300)
def test_pyright_strict_finds_every_mistake(project: Path) -> None:
    complaints = run_pyright(project, ["mistakes.py"])
    assert {int(line.split(":")[1]) for line in complaints} == wrong_lines(), complaints
