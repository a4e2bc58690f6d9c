"""The code on the pages of docs/, and what the pages claim that it does."""

from __future__ import annotations

import ast
import collections
import contextlib
import importlib
import inspect
import json
import logging
import lzma
import math
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
import trio.testing
import trustme
from google.protobuf import descriptor_pb2

import trio_grpc.call_log
import trio_grpc.channelz
import trio_grpc.grpcio
import trio_grpc.health
import trio_grpc.opentelemetry
import trio_grpc.orca
import trio_grpc.prometheus
import trio_grpc.protoc
import trio_grpc.reflection
import trio_grpc.testing
import trio_grpc.tls
from tests.support.network import Network
from tests.support.streams import use_streams
from trio_grpc import _compression
from trio_grpc.testing import HeadersFrame, MemoryListener, ScriptedPeer, open_channel_pair

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def blocks(text: str, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def quick_start(name: str) -> str:
    """A file of the README's quick start, which the pages build on."""
    found = re.search(rf"`{re.escape(name)}`[^\n]*\n\n```\w+\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    assert found is not None, name
    return found[1]


README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the service of the quick start."""
    for name in ("greeter.proto", "server.py"):
        (tmp_path / name).write_text(quick_start(name), encoding="utf-8")
    assert trio_grpc.protoc.main([f"-I{tmp_path}", f"--out={tmp_path}", "greeter.proto"]) == 0
    return tmp_path


@pytest.fixture
def modules(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names that code on the pages uses without importing them."""
    monkeypatch.syspath_prepend(project)
    names = ("greeter_pb2", "greeter_trio_grpc", "server")
    namespace: dict[str, Any] = {"math": math, "trio": trio, "trio_grpc": trio_grpc}
    for name in names:
        namespace |= vars(importlib.import_module(name))
    yield namespace
    for name in names:
        del sys.modules[name]


@pytest.fixture
def cancellation(modules: dict[str, Any]) -> dict[str, Any]:
    return execute("cancellation.md", modules)


@pytest.fixture
def errors(modules: dict[str, Any]) -> dict[str, Any]:
    return execute("errors.md", modules)


def execute(name: str, namespace: dict[str, Any]) -> dict[str, Any]:
    for block in blocks(page(name)):
        exec(compile(block, name, "exec"), namespace)  # noqa: S102, RUF100
    return namespace


# ---------------------------------------------------------------------------------------------------------------------
# tutorial.md


def test_the_tutorials_code_is_the_examples() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (EXAMPLES / "route_guide").glob("*.p*"))
    text, _, rest = page("tutorial.md").partition("\n## Metadata\n")
    assert rest
    found = [*blocks(text), *blocks(text, "protobuf")]
    assert len(found) > 10
    assert [block for block in found if block not in sources] == []


@pytest.fixture
def route_guide(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The route guide, and the code that the tutorial adds to it."""
    monkeypatch.syspath_prepend(EXAMPLES / "route_guide")
    namespace: dict[str, Any] = {"partial": partial, "ssl": ssl, "trio_grpc": trio_grpc}
    for name in ("route_guide_pb2", "route_guide_trio_grpc", "server", "client"):
        namespace |= vars(importlib.import_module(name))
    for block in blocks(page("tutorial.md").partition("\n## Metadata\n")[2]):
        exec(compile(block, "tutorial.md", "exec"), namespace)  # noqa: S102, RUF100
    yield namespace
    for name in ("server", "client", "places"):
        del sys.modules[name]


async def test_tutorial_metadata(route_guide: dict[str, Any]) -> None:
    base: Any = route_guide["RouteGuide"]

    class Guide(base):  # type: ignore[misc]
        async def GetPlace(self, request: Any, context: trio_grpc.ServicerContext[Any]) -> Any:
            assert context.metadata["authorization"] == "Bearer 1234"
            context.set_trailing_metadata({"map-edition": "7"})
            return await super().GetPlace(request, context)

    async with open_channel_pair(Guide()) as (channel, _):
        stub = route_guide["RouteGuideStub"](channel)
        point = route_guide["PLACES"][42].at
        assert await route_guide["get_place_and_edition"](stub, point) == ("Stone Cross", "7")


async def test_tutorial_compression(route_guide: dict[str, Any]) -> None:
    base: Any = route_guide["RouteGuide"]
    flags: list[bool] = []

    class Guide(base):  # type: ignore[misc]
        async def RecordWalk(self, requests: Any, context: trio_grpc.ServicerContext[Any]) -> Any:
            async def watched() -> AsyncIterator[Any]:
                async for request in requests:
                    flags.append(context.request_compressed)
                    yield request

            return await super().RecordWalk(watched(), context)

    async with open_channel_pair(Guide()) as (channel, _):
        stub = route_guide["RouteGuideStub"](channel)
        points = [place.at for place in route_guide["PLACES"][:3]]
        summary = await route_guide["record_walk_quietly"](stub, points)
        assert summary.points == 3
    assert flags == [False, True, True]


async def test_tutorial_tls(route_guide: dict[str, Any], tmp_path: Path, nursery: trio.Nursery) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    both = str(tmp_path / "both.pem")
    server = await route_guide["serve_with_tls"](nursery, "127.0.0.1:0", both, both)
    port = server.addresses[0].rpartition(":")[2]

    async def talk(channel: trio_grpc.Channel) -> None:
        await route_guide["RouteGuideStub"](channel).GetPlace(route_guide["PLACES"][42].at)

    route_guide["talk"] = talk
    await route_guide["talk_with_tls"](f"localhost:{port}", str(tmp_path / "ca.pem"))
    with pytest.raises(trio_grpc.RpcError, match="certificate verify failed") as caught:
        await route_guide["talk_with_tls"](f"localhost:{port}")
    assert caught.value.code is trio_grpc.StatusCode.UNAVAILABLE
    nursery.cancel_scope.cancel()


# ---------------------------------------------------------------------------------------------------------------------
# testing.md


@pytest.mark.slow
def test_the_testing_page_is_a_suite_that_passes(project: Path) -> None:
    conftest, *tests = blocks(page("testing.md"))
    (project / "conftest.py").write_text(conftest, encoding="utf-8")
    (project / "pytest.ini").write_text(blocks(page("testing.md"), "ini")[0], encoding="utf-8")
    (project / "test_greeter.py").write_text("\n\n".join(tests), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    count = len(re.findall(r"^(?:async )?def test_", "\n".join(tests), re.MULTILINE))
    assert re.search(rf"^{count} passed in ", done.stdout, re.MULTILINE), done.stdout


# ---------------------------------------------------------------------------------------------------------------------
# cancellation.md


@contextlib.asynccontextmanager
async def greeter_of(namespace: dict[str, Any], servicer: Any) -> AsyncIterator[Any]:
    async with open_channel_pair(servicer) as (channel, _):
        yield namespace["GreeterStub"](channel)


def spy(namespace: dict[str, Any], thinking_time: float = 0.0, interval: float = 0.5) -> Any:
    """A greeter that notes what it learns: deadlines as seconds, and how its handlers end."""

    base: Any = namespace["GreeterServicer"]

    class Spy(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self.deadlines: list[float] = []
            self.ends: list[tuple[str, float]] = []

        @contextlib.contextmanager
        def handling(self, context: trio_grpc.ServicerContext[Any]) -> Iterator[None]:
            self.deadlines.append(round(context.time_remaining(), 3))
            started = trio.current_time()
            how = "done"
            try:
                yield
            except trio.Cancelled:
                how = "cancelled"
                raise
            finally:
                self.ends.append((how, round(trio.current_time() - started, 3)))

        async def Greet(self, request: Any, context: trio_grpc.ServicerContext[Any]) -> Any:
            with self.handling(context):
                await trio.sleep(thinking_time)
                return namespace["Greeting"](text=f"Hello, {request.text}!")

        async def GreetOften(self, request: Any, context: trio_grpc.ServicerContext[Any]) -> Any:
            with self.handling(context):
                for number in range(1000):
                    await context.send(namespace["Greeting"](text=str(number)))
                    await trio.sleep(interval)

    return Spy()


async def test_the_faster_one_wins(cancellation: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    slow, fast = spy(cancellation, 60), spy(cancellation, 2)
    async with greeter_of(cancellation, slow) as first, greeter_of(cancellation, fast) as second:
        assert await cancellation["the_faster_one"]([first, second]) == "Hello, you!"
        await trio.testing.wait_all_tasks_blocked()
    assert slow.ends == [("cancelled", 2.0)]
    assert fast.ends == [("done", 2.0)]


async def test_a_scope_around_calls(cancellation: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    quick, slow = spy(cancellation, 0.3), spy(cancellation, 0.6)
    async with greeter_of(cancellation, quick) as greeter:
        assert await cancellation["within_a_scope"](greeter) == ["Hello, you!", "Hello, me!"]
    assert quick.deadlines == [1.0, 0.7]
    async with greeter_of(cancellation, slow) as greeter:
        with pytest.raises(trio.TooSlowError):
            await cancellation["within_a_scope"](greeter)
        await trio.testing.wait_all_tasks_blocked()
    assert slow.ends == [("done", 0.6), ("cancelled", 0.4)]


async def test_timeouts_of_calls(cancellation: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    slow = spy(cancellation, 60)
    async with greeter_of(cancellation, slow) as greeter:
        assert await cancellation["with_a_timeout"](greeter) == "DEADLINE_EXCEEDED"
        # The earlier of two wins, in its own manner.
        with trio.move_on_after(5):
            assert await cancellation["with_a_timeout"](greeter) == "DEADLINE_EXCEEDED"
        with trio.move_on_after(0.5) as scope:
            await cancellation["with_a_timeout"](greeter)
        assert scope.cancelled_caught
        await trio.testing.wait_all_tasks_blocked()
    assert slow.deadlines == [1.0, 1.0, 0.5]
    assert slow.ends == [("cancelled", 1.0), ("cancelled", 1.0), ("cancelled", 0.5)]


async def test_a_timeout_of_a_block(cancellation: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    servicer = spy(cancellation)
    async with greeter_of(cancellation, servicer) as greeter:
        started = trio.current_time()
        assert await cancellation["with_a_timeout_on_a_block"](greeter) == ("0", "DEADLINE_EXCEEDED")
        assert trio.current_time() - started == 3.0
    assert servicer.deadlines == [1.0]
    assert servicer.ends == [("cancelled", 1.0)]


async def test_scopes_around_blocks_are_not_announced(
    cancellation: dict[str, Any], autojump_clock: trio.testing.MockClock
) -> None:
    servicer = spy(cancellation, interval=1)
    async with greeter_of(cancellation, servicer) as greeter:
        with trio.move_on_after(10):
            await cancellation["watch"](greeter, 3)
        with trio.move_on_after(0.5):
            assert await cancellation["watch"](greeter, 100)
        await trio.testing.wait_all_tasks_blocked()
    assert servicer.deadlines == [math.inf, math.inf]
    assert servicer.ends == [("cancelled", 10.0), ("cancelled", 0.5)]


async def test_a_handler_that_cleans_up(cancellation: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    servicer = cancellation["Careful"]()
    async with greeter_of(cancellation, servicer) as greeter:
        async with greeter.GreetOften(cancellation["Name"](text="you")) as greetings:
            await greetings.receive()
        assert servicer.log == ["opened"]
        await trio.sleep(0.6)
        assert servicer.log == ["opened", "closed"]


async def test_handlers_pass_their_deadline_on(
    cancellation: dict[str, Any], autojump_clock: trio.testing.MockClock
) -> None:
    base: Any = cancellation["Relay"]

    class RelayBoth(base):  # type: ignore[misc]
        async def GreetOften(self, request: Any, context: trio_grpc.ServicerContext[Any]) -> Any:
            await trio.sleep(0.25)
            async with self.greeter.GreetOften(request) as greetings:
                async for greeting in greetings:
                    yield greeting

    servicer = spy(cancellation, 60)
    name = cancellation["Name"](text="you")
    async with greeter_of(cancellation, servicer) as inner, greeter_of(cancellation, RelayBoth(inner)) as greeter:
        with pytest.raises(trio_grpc.RpcError) as caught:
            await greeter.Greet(name, timeout=1)
        assert caught.value.code is trio_grpc.StatusCode.DEADLINE_EXCEEDED
        async with greeter.GreetOften(name, timeout=1) as greetings:
            await greetings.receive()
        await trio.testing.wait_all_tasks_blocked()
    assert servicer.deadlines == [1.0, 0.75]
    assert servicer.ends == [("cancelled", 1.0), ("cancelled", 0.0)]


async def test_drain_with_grace(cancellation: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    servicer = spy(cancellation, 60)
    async with open_channel_pair(servicer) as (channel, server), trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(trio_grpc.RpcError) as caught:
                await cancellation["GreeterStub"](channel).Greet(cancellation["Name"](text="you"))
            assert caught.value.code is trio_grpc.StatusCode.UNAVAILABLE

        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        await server.drain(grace=5)
    assert servicer.ends == [("cancelled", 5.0)]


# ---------------------------------------------------------------------------------------------------------------------
# shutdown.md


@pytest.fixture
def shutdown(modules: dict[str, Any]) -> dict[str, Any]:
    return execute("shutdown.md", modules)


async def test_serving_for_an_hour(shutdown: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    listener = MemoryListener()
    await shutdown["serve_for_an_hour"](shutdown["Greeter"](), listener)
    assert trio.current_time() == 3600
    with pytest.raises(ConnectionRefusedError):
        await listener.connect()


async def test_serving_until_a_signal(
    shutdown: dict[str, Any], autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    listener = MemoryListener()
    nursery.start_soon(shutdown["serve_until_signal"], spy(shutdown, 60), listener)
    async with trio_grpc.open_channel(listener.connect) as channel:

        async def press() -> None:
            await trio.sleep(1)
            signal.raise_signal(signal.SIGTERM)

        nursery.start_soon(press)
        with pytest.raises(trio_grpc.RpcError) as caught:
            await shutdown["GreeterStub"](channel).Greet(shutdown["Name"](text="you"))
    assert caught.value.code is trio_grpc.StatusCode.UNAVAILABLE
    assert trio.current_time() == 6


def test_a_whole_program(shutdown: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    signature = inspect.signature(trio_grpc.run)
    monkeypatch.setattr(trio_grpc, "run", lambda *args, **options: calls.append(signature.bind(*args, **options)))
    shutdown["main"]()
    shutdown["main_with_workers"]()
    assert [call.arguments["address"] for call in calls] == ["0.0.0.0:50051"] * 2
    assert calls[1].arguments["workers"] == 4
    assert isinstance(calls[0].arguments["servicers"][0], trio_grpc.Servicer)


# ---------------------------------------------------------------------------------------------------------------------
# many_machines.md


async def test_a_channel_to_many_machines(modules: dict[str, Any]) -> None:
    names = execute("many_machines.md", modules)
    async with names["open_channel_to_all"]() as channel:
        assert channel.state is trio_grpc.ConnectivityState.IDLE


def test_the_table_of_many_machines_is_that_of_the_demo() -> None:
    """With other numbers, each time."""
    story = (EXAMPLES / "many_machines" / "demo.py").read_text(encoding="utf-8")
    _, heading, *rows = blocks(page("many_machines.md"), "text")[0].splitlines()
    assert heading.split()[1:4] == ["machine-1", "machine-2", "machine-3"]
    told = [row[:34].rstrip() for row in rows]
    assert len(told) == 11
    for name in told:
        assert f'"{name}"' in story or name in {f"machine-{number} is restarted" for number in (1, 2, 3)}


# ---------------------------------------------------------------------------------------------------------------------
# compression.md


@pytest.fixture
def compression(modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(_compression, "_compressors", _compression._compressors.copy())
    monkeypatch.setattr("trio_grpc._servicer._HEADS", {})
    return execute("compression.md", modules | {"lzma": lzma, "partial": partial})


async def test_compressed_requests(compression: dict[str, Any], nursery: trio.Nursery) -> None:
    compressed = []
    base: Any = compression["Greeter"]

    class Noting(base):  # type: ignore[misc]
        async def Greet(self, request: Any, context: trio_grpc.ServicerContext[Any]) -> Any:
            compressed.append(context.request_compressed)
            return await super().Greet(request, context)

    listener = MemoryListener()
    nursery.start_soon(trio_grpc.serve, [Noting()], listener)
    assert len(await compression["upload"](listener.connect, "x" * 1000)) == 2
    assert compressed == [True, False]
    nursery.cancel_scope.cancel()


async def test_compressed_responses(compression: dict[str, Any], nursery: trio.Nursery) -> None:
    listener = MemoryListener()
    await compression["serve_compressing"](nursery, listener)
    async with trio_grpc.open_channel(listener.connect) as channel:
        greeter = compression["GreeterStub"](channel)
        for length in (10, 1000):
            async with greeter.Greet.open(compression["Name"](text="x" * length), compression="x-lzma") as call:
                assert len((await call.receive()).text) > length
                assert call.response_compressed == (length == 1000)
    nursery.cancel_scope.cancel()


def test_a_compressor_of_ones_own(compression: dict[str, Any]) -> None:
    compressor = compression["Lzma"]()
    data = compressor.compress(bytes(1000))
    assert compressor.decompress(data, 1000) == bytes(1000)
    with pytest.raises(trio_grpc.DecompressedTooLarge):
        compressor.decompress(data, 999)
    for malformed in (data[:-1], data + b"x", b"x"):
        with pytest.raises(trio_grpc.CompressionError):
            compressor.decompress(malformed, 1000)


# ---------------------------------------------------------------------------------------------------------------------
# codegen.md


async def test_code_that_is_generated(modules: dict[str, Any]) -> None:
    namespace = execute("codegen.md", modules)
    async with greeter_of(namespace, namespace["Greeter"]()) as greeter:
        assert await namespace["ask"](greeter) == "Hello, you!"


def test_the_options_of_the_generator_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        trio_grpc.protoc.main(["--help"])
    known = capsys.readouterr().out
    mentioned = set(re.findall(r"--[a-z]+(?:-[a-z]+)*\b", page("codegen.md"))) - {"--strict"}
    assert mentioned == {"--out", "--relative-imports", "--snake-case"}
    assert {option for option in mentioned if option not in known} == set()


# ---------------------------------------------------------------------------------------------------------------------
# errors.md


async def test_asking_for_an_error(errors: dict[str, Any]) -> None:
    async with greeter_of(errors, errors["Strict"]()) as greeter:
        assert await errors["ask"](greeter) == "INVALID_ARGUMENT: a name, please"
        assert (await greeter.Greet(errors["Name"](text="you"))).text == "Hello, you!"
        assert await status_of(errors, greeter, "nobody") == ("NOT_FOUND", "there is nobody")


async def status_of(namespace: dict[str, Any], greeter: Any, text: str = "you") -> tuple[str, str]:
    with pytest.raises(trio_grpc.RpcError) as caught:
        await greeter.Greet(namespace["Name"](text=text))
    return caught.value.code.name, caught.value.message


async def test_details_and_metadata(errors: dict[str, Any]) -> None:
    async with greeter_of(errors, errors["Helpful"]()) as greeter:
        with pytest.raises(trio_grpc.RpcError) as caught:
            await greeter.Greet(errors["Name"]())
    assert caught.value.details == (errors["Greeting"](text="come back tomorrow"),)
    assert caught.value.trailing_metadata["retry-after"] == "86400"
    assert str(caught.value) == "RESOURCE_EXHAUSTED: too many greetings"


async def test_bugs_keep_their_words_to_themselves(errors: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    async with greeter_of(errors, errors["Buggy"]()) as greeter:
        with caplog.at_level(logging.ERROR, logger="trio_grpc"):
            code, message = await status_of(errors, greeter)
    assert code == "UNKNOWN"
    assert "swordfish" not in message
    assert "swordfish" in caplog.text


async def test_received_errors_are_passed_on_only_by_hand(
    errors: dict[str, Any], cancellation: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    frank, relay = errors["Frank"], cancellation["Relay"]
    async with greeter_of(errors, errors["Strict"]()) as inner:
        async with greeter_of(errors, frank(inner)) as greeter:
            assert await status_of(errors, greeter, "nobody") == ("NOT_FOUND", "there is nobody")
        with caplog.at_level(logging.CRITICAL, logger="trio_grpc"):
            async with greeter_of(errors, relay(inner)) as greeter:
                assert (await status_of(errors, greeter, "nobody"))[0] == "UNKNOWN"


async def test_abort_in_a_nursery_counts_and_raise_does_not(
    errors: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    base: Any = errors["GreeterServicer"]

    class Nurseries(base):  # type: ignore[misc]
        async def Greet(self, request: Any, context: trio_grpc.ServicerContext[Any]) -> Any:
            async with trio.open_nursery():
                if request.text == "abort":
                    await context.abort(trio_grpc.StatusCode.NOT_FOUND, "no")
                raise trio_grpc.RpcError(trio_grpc.StatusCode.NOT_FOUND, "no")

    async with greeter_of(errors, Nurseries()) as greeter:
        assert await status_of(errors, greeter, "abort") == ("NOT_FOUND", "no")
        with caplog.at_level(logging.CRITICAL, logger="trio_grpc"):
            assert (await status_of(errors, greeter, "raise"))[0] == "UNKNOWN"


async def test_a_sender_learns_from_its_receiver(errors: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests" / "protos")
    echo_pb2 = importlib.import_module("echo_pb2")
    echo = importlib.import_module("echo_trio_grpc")

    class Refusing(echo.EchoServicer):  # type: ignore[misc, name-defined]
        async def Bidi(self, requests: Any, context: trio_grpc.ServicerContext[Any]) -> None:
            await context.abort(trio_grpc.StatusCode.PERMISSION_DENIED, "no")

    async with open_channel_pair(Refusing()) as (channel, _), echo.EchoStub(channel).Bidi() as call:
        requests = (echo_pb2.EchoRequest(payload=bytes(1000)) for _ in range(10_000))
        await errors["send_all"](call, requests)
        with pytest.raises(trio_grpc.RpcError, match="PERMISSION_DENIED: no"):
            await call.receive()
        with pytest.raises(trio.BrokenResourceError):
            await call.send(echo_pb2.EchoRequest())
        call.cancel()
        with pytest.raises(trio.ClosedResourceError):
            await call.receive()


# ---------------------------------------------------------------------------------------------------------------------
# interceptors.md


@pytest.fixture
def interceptors(modules: dict[str, Any]) -> dict[str, Any]:
    return execute("interceptors.md", modules)


async def test_tokens(interceptors: dict[str, Any], caplog: pytest.LogCaptureFixture, nursery: trio.Nursery) -> None:
    caplog.set_level(logging.INFO, "calls")
    serve = partial(trio_grpc.serve, interceptors=[interceptors["authenticate"]])
    server = await nursery.start(serve, [interceptors["Personal"]()], "127.0.0.1:0")
    assert (await interceptors["greet_with_a_token"](server.addresses[0])).text == "Hello, Ada!"
    (record,) = [record for record in caplog.records if record.name == "calls"]
    assert re.fullmatch(r"/\S*Greeter/Greet: StatusCode\.OK after \d\.\d{3} s", record.getMessage())
    async with trio_grpc.open_channel(server.addresses[0]) as channel:
        assert await status_of(interceptors, interceptors["GreeterStub"](channel)) == (
            "UNAUTHENTICATED",
            "who are you?",
        )
    nursery.cancel_scope.cancel()


async def test_translated_exceptions(interceptors: dict[str, Any]) -> None:
    base: Any = interceptors["GreeterServicer"]

    class Book(base):  # type: ignore[misc]
        async def Greet(self, request: Any, context: trio_grpc.ServicerContext[Any]) -> Any:
            return {}[request.text]

    around = [interceptors["translate_key_errors"]]
    async with open_channel_pair(Book(), server_interceptors=around) as (channel, _):
        greeter = interceptors["GreeterStub"](channel)
        assert await status_of(interceptors, greeter) == ("NOT_FOUND", "there is no 'you'")


async def test_attempts(interceptors: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    base: Any = interceptors["GreeterServicer"]
    attempts: list[float] = []

    class Busy(base):  # type: ignore[misc]
        async def Greet(self, request: Any, context: trio_grpc.ServicerContext[Any]) -> Any:
            attempts.append(trio.current_time())
            await context.abort(trio_grpc.StatusCode.UNAVAILABLE)

    around = [interceptors["try_three_times"]]
    async with open_channel_pair(Busy(), interceptors=around) as (channel, _):
        greeter = interceptors["GreeterStub"](channel)
        assert (await status_of(interceptors, greeter))[0] == "UNAVAILABLE"
        assert len(attempts) == 1
        greeter.Greet = trio_grpc.UnaryUnaryMethod(channel, attrs.evolve(greeter.Greet.method, idempotent=True))
        assert (await status_of(interceptors, greeter))[0] == "UNAVAILABLE"
    assert [round(attempt - attempts[1], 3) for attempt in attempts[1:]] == [0, 0.1, 0.3]


async def test_bounded_blocks_and_attempts(
    interceptors: dict[str, Any], autojump_clock: trio.testing.MockClock
) -> None:
    greeter = spy(interceptors, thinking_time=10)
    around = [interceptors["at_most_a_minute"], interceptors["a_second_each"]]
    async with open_channel_pair(greeter, interceptors=around) as (channel, _):
        stub = interceptors["GreeterStub"](channel)
        assert (await status_of(interceptors, stub))[0] == "DEADLINE_EXCEEDED"
        assert greeter.deadlines == [1.0]
        started = trio.current_time()
        with pytest.raises(trio.TooSlowError):
            async with stub.GreetOften(interceptors["Name"](text="you")):
                await trio.sleep_forever()
        assert trio.current_time() - started == pytest.approx(60)


async def test_counted_messages(interceptors: dict[str, Any]) -> None:
    here, there = collections.Counter[str](), collections.Counter[str]()
    count_messages = interceptors["count_messages"]
    async with open_channel_pair(
        spy(interceptors), interceptors=[count_messages(here)], server_interceptors=[count_messages(there)]
    ) as (channel, _):
        await interceptors["GreeterStub"](channel).Greet(interceptors["Name"](text="you"))
    assert here == there == {"Greet": 2}


# ---------------------------------------------------------------------------------------------------------------------
# health.md


@pytest.mark.parametrize("trouble", ["silent", "broken"])
async def test_health_of_a_database(
    modules: dict[str, Any], autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, trouble: str
) -> None:
    namespace = execute("health.md", modules)
    health = trio_grpc.health.HealthServicer(["Greeter"])

    class Database:
        trouble = ""

        async def ping(self) -> None:
            if self.trouble == "broken":
                raise ConnectionResetError
            await trio.sleep(3600 if self.trouble else 0)

    database = Database()
    async with open_channel_pair(health) as (channel, _):
        nursery.start_soon(namespace["watch_database"], health, database)
        waiting = trio.Event()

        async def wait() -> None:
            await namespace["wait_until_serving"](channel)
            waiting.set()

        await trio.testing.wait_all_tasks_blocked()
        assert await namespace["is_serving"](channel)
        database.trouble = trouble
        await trio.sleep(13)
        assert not await namespace["is_serving"](channel)
        nursery.start_soon(wait)
        await trio.sleep(60)
        assert not waiting.is_set()
        database.trouble = ""
        await trio.sleep(13)
        assert waiting.is_set()
    nursery.cancel_scope.cancel()


async def test_health_before_a_drain(modules: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    namespace = execute("health.md", modules)
    health = trio_grpc.health.HealthServicer(["Greeter"])
    async with open_channel_pair(health) as (channel, server), trio.open_nursery() as nursery:
        nursery.start_soon(namespace["leave"], health, server)
        await trio.sleep(1)
        assert not await namespace["is_serving"](channel)
        await trio.sleep(10)
        with pytest.raises(trio_grpc.RpcError, match="UNAVAILABLE"):
            await namespace["is_serving"](channel)


async def test_serving_with_health(modules: dict[str, Any], nursery: trio.Nursery) -> None:
    namespace = execute("health.md", modules)
    server = await namespace["serve_with_health"](nursery, "127.0.0.1:0")
    async with trio_grpc.open_channel(server.addresses[0]) as channel:
        assert await namespace["is_serving"](channel)
    await server.drain()


# ---------------------------------------------------------------------------------------------------------------------
# tls.md


async def test_tls_with_names_and_client_certificates(
    modules: dict[str, Any], tmp_path: Path, nursery: trio.Nursery
) -> None:
    namespace = execute("tls.md", {**modules, "partial": partial, "ssl": ssl})
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name in ("localhost", "greeter.example", "client.example"):
        authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(tmp_path / name)
    trusted = str(tmp_path / "ca.pem")
    client, local, forwarded = (str(tmp_path / name) for name in ("client.example", "localhost", "greeter.example"))

    async def greet(channel: trio_grpc.Channel) -> str:
        async with channel:
            reply = await namespace["GreeterStub"](channel).Greet(namespace["Name"](text="you"))
            return str(reply.text)

    server = await namespace["serve_known_clients"](nursery, "127.0.0.1:0", local, local, trusted)
    port = server.addresses[0].rpartition(":")[2]
    channel = namespace["open_channel_with_certificate"](f"localhost:{port}", client, client, trusted)
    assert await greet(channel) == "Hello, you!"
    other = await namespace["serve_known_clients"](nursery, "127.0.0.1:0", forwarded, forwarded, trusted)
    with pytest.raises(trio_grpc.RpcError, match=r"the peer refused: .*alert"):
        await greet(namespace["open_forwarded_channel"](other.addresses[0], trusted))
    server = await namespace["serve_securely"](nursery, "127.0.0.1:0", local, local)
    port = server.addresses[0].rpartition(":")[2]
    assert await greet(namespace["open_secure_channel"](f"localhost:{port}", trusted)) == "Hello, you!"
    strict = namespace["strict_server_context"](local, local)
    assert strict.minimum_version is ssl.TLSVersion.TLSv1_3
    nursery.cancel_scope.cancel()


async def test_a_handler_that_looks_at_certificates(modules: dict[str, Any], tmp_path: Path) -> None:
    namespace = execute("tls.md", {**modules, "partial": partial, "ssl": ssl})
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name in ("localhost", "client.example", "other.example"):
        authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(tmp_path / name)
    trusted = tmp_path / "ca.pem"
    server_context = trio_grpc.tls.server_context(tmp_path / "localhost", client_authorities=trusted)
    said: dict[str, str] = {}
    for name in ("client.example", "other.example"):
        async with open_channel_pair(
            namespace["GreeterOfKnown"](),
            server_ssl_context=server_context,
            ssl_context=trio_grpc.tls.client_context(trusted, certificate=tmp_path / name),
            server_hostname="localhost",
        ) as (channel, _):
            try:
                said[name] = (await namespace["GreeterStub"](channel).Greet(namespace["Name"](text="you"))).text
            except trio_grpc.RpcError as error:
                said[name] = str(error)
    assert said == {"client.example": "Hello, you!", "other.example": "PERMISSION_DENIED: this is not for you"}


# ---------------------------------------------------------------------------------------------------------------------
# credentials.md


async def test_tokens_that_are_fetched_and_credentials_of_single_calls(
    modules: dict[str, Any], tmp_path: Path, nursery: trio.Nursery
) -> None:
    seen: list[tuple[Any, ...]] = []
    issued = 0

    async def ask_the_issuer() -> dict[str, Any]:
        nonlocal issued
        await trio.lowlevel.checkpoint()
        issued += 1
        return {"access_token": f"token-{issued}", "expires_in": 3600}

    async def note(context: Any, proceed: Any) -> None:
        seen.append(context.metadata.get_all("authorization"))
        await proceed()

    names = {**modules, "ask_the_issuer": ask_the_issuer, "make_signature": "signed-for-{}".format}
    namespace = execute("credentials.md", names)
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    client_context = ssl.create_default_context()
    authority.configure_trust(client_context)
    server: trio_grpc.Server = await nursery.start(
        partial(trio_grpc.serve, ssl_context=context, interceptors=[note]), [namespace["Greeter"]()], "127.0.0.1:0"
    )
    reply = await namespace["greet_with_token"](server.addresses[0], client_context)
    assert reply.text == "Hello, you!"
    async with trio_grpc.open_channel(
        server.addresses[0], ssl_context=client_context, credentials=namespace["sign"]
    ) as channel:
        stub = namespace["GreeterStub"](channel)
        await namespace["greet_as"](stub, "users-own")
    service = namespace["GreeterStub"](channel).Greet.method.path.rpartition("/")[0]
    assert seen == [
        ("Bearer token-1",),
        (f"Bearer signed-for-https://{server.addresses[0]}{service}", "Bearer users-own"),
    ]
    nursery.cancel_scope.cancel()


# ---------------------------------------------------------------------------------------------------------------------
# channels.md


@pytest.fixture
def channels(modules: dict[str, Any]) -> dict[str, Any]:
    return execute("channels.md", modules)


@pytest.fixture
async def listeners(modules: dict[str, Any], nursery: trio.Nursery) -> list[MemoryListener]:
    """Two servers."""
    found = [MemoryListener(), MemoryListener()]
    for listener in found:
        await nursery.start(trio_grpc.serve, [modules["Greeter"]()], listener)
    return found


async def test_waiting_for_somebody(channels: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    async def nobody() -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        raise ConnectionRefusedError("nobody there")

    async with trio_grpc.open_channel(nobody) as channel:
        said = await channels["greet_when_there_is_somebody"](channels["GreeterStub"](channel))
    assert said.startswith("DEADLINE_EXCEEDED: deadline of 10 s exceeded; not connected: failed to connect to ")
    assert said.endswith("nobody there")


async def test_warming_up_and_logging_states(
    channels: dict[str, Any],
    listeners: list[MemoryListener],
    nursery: trio.Nursery,
    capsys: pytest.CaptureFixture[str],
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with trio_grpc.open_channel(listeners[0].connect) as channel:
        nursery.start_soon(channels["log_states"], channel)
        await trio.testing.wait_all_tasks_blocked()
        await channels["warm_up"](channel)
        await trio.testing.wait_all_tasks_blocked()
    await trio.testing.wait_all_tasks_blocked()
    assert capsys.readouterr().out.split() == ["IDLE", "CONNECTING", "READY"]


async def test_a_resolver_that_reads_a_file(channels: dict[str, Any], tmp_path: Path, nursery: trio.Nursery) -> None:
    servers = [await nursery.start(trio_grpc.serve, [channels["Greeter"]()], "127.0.0.1:0") for _ in range(2)]
    path = tmp_path / "greeters"
    path.write_text("".join(f"{server.addresses[0]}\n" for server in servers))
    async with channels["open_channel_to_file"](path) as channel:
        reply = await channels["GreeterStub"](channel).Greet(channels["Name"](text="you"))
        assert reply.text == "Hello, you!"


async def test_a_policy_of_ones_own(
    channels: dict[str, Any],
    listeners: list[MemoryListener],
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, two = (
        trio_grpc.Endpoint(name, connect=channels["endpoint_in_memory"](listener).connect)
        for name, listener in zip(("one", "two"), listeners, strict=True)
    )
    resolver = trio_grpc.testing.ManualResolver(two, one)
    open_channel = partial(trio_grpc.open_channel, resolvers={"test": resolver})
    monkeypatch.setattr(trio_grpc, "open_channel", open_channel)
    async with channels["open_ranked_channel"]("test:///greeter") as channel:
        greet = channels["GreeterStub"](channel).Greet
        await channel.wait_ready()
        await trio.testing.wait_all_tasks_blocked()
        for order, first in (((two, one), "two"), ((one, two), "one")):
            resolver.update(*order)
            await trio.testing.wait_all_tasks_blocked()
            async with greet.open(channels["Name"](text="you")) as call:
                assert (await call.receive()).text == "Hello, you!"
                assert call.peer == first
        resolver.update()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio_grpc.RpcError, match="no endpoints"):
            await greet(channels["Name"](text="you"))


async def test_a_policy_with_a_picker(
    channels: dict[str, Any],
    listeners: list[MemoryListener],
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, two = (
        trio_grpc.Endpoint(name, connect=channels["endpoint_in_memory"](listener).connect)
        for name, listener in zip(("one", "two"), listeners, strict=True)
    )
    made: list[Any] = []

    class Sharded(channels["Sharded"]):  # type: ignore[misc]
        def __init__(self, context: trio_grpc.PolicyContext) -> None:
            super().__init__(context)
            made.append(self)

    channels["Sharded"] = Sharded
    resolvers = {"test": trio_grpc.testing.ManualResolver(one, two)}
    monkeypatch.setattr(trio_grpc, "open_channel", partial(trio_grpc.open_channel, resolvers=resolvers))
    async with channels["open_sharded_channel"]("test:///greeter") as channel:
        greet = channels["GreeterStub"](channel).Greet
        await channel.wait_ready()
        await trio.testing.wait_all_tasks_blocked()
        for shard, name in (("1", "two"), ("0", "one"), ("3", "two")):
            async with greet.open(channels["Name"](text="you"), metadata={"shard": shard}) as call:
                assert (await call.receive()).text == "Hello, you!"
                assert call.peer == name
        with pytest.raises(trio_grpc.RpcError, match="a name, please"):
            await greet(channels["Name"]())
        await trio.testing.wait_all_tasks_blocked()
        assert [policy.failures for policy in made] == [1]


def test_channels_that_the_page_opens(channels: dict[str, Any]) -> None:
    assert channels["open_balanced_channel"]().target == "greeter.example:50051"


# ---------------------------------------------------------------------------------------------------------------------
# service_config.md


def test_each_service_config_is_the_same_in_json_and_as_objects(modules: dict[str, Any]) -> None:
    found = re.findall(
        r"^```json\n(.*?)^```\n\n```python\n(.*?)^```$", page("service_config.md"), re.DOTALL | re.MULTILINE
    )
    assert len(found) == len(blocks(page("service_config.md"), "json")) == 6
    for config, code in found:
        exec(compile(code, "service_config.md", "exec"), modules)  # noqa: S102, RUF100
        assert trio_grpc.ServiceConfig.from_json(config) == modules["config"]
        assert modules["config"] != trio_grpc.ServiceConfig()


def test_every_field_of_a_service_config_is_on_the_page() -> None:
    text = page("service_config.md")
    records = (
        trio_grpc.ServiceConfig,
        trio_grpc.MethodConfig,
        trio_grpc.RetryPolicy,
        trio_grpc.HedgingPolicy,
        trio_grpc.RetryThrottling,
        trio_grpc.HealthCheckConfig,
        trio_grpc.ConnectionScaling,
    )
    for record in records:
        for field in attrs.fields(record):
            assert field.name.startswith("_") or f"{field.name}=" in text or f"`{field.name}`" in text, field.name


async def test_service_configs_of_channels_and_resolvers(
    modules: dict[str, Any], tmp_path: Path, nursery: trio.Nursery
) -> None:
    names = execute("service_config.md", modules)
    assert names["open_configured_channel"]("localhost:1").target == "localhost:1"
    server = await nursery.start(trio_grpc.serve, [names["Greeter"]()], "127.0.0.1:0")
    (tmp_path / "greeter").mkdir()
    (tmp_path / "greeter" / "addresses").write_text(f"{server.addresses[0]}\n")
    config = tmp_path / "greeter" / "service_config.json"
    config.write_text('{"methodConfig": [{"name": [{}], "timeout": "5"}]}')
    names["REGISTRY"] = str(tmp_path)
    resolvers = {"registry": names["consult_registry"]}
    async with trio_grpc.open_channel("registry:///greeter", resolvers=resolvers) as channel:
        greet = names["GreeterStub"](channel).Greet
        with pytest.raises(trio_grpc.RpcError, match=r"service config: methodConfig\[0\].timeout: must be a duration"):
            await greet(names["Name"](text="you"))
        config.write_text(blocks(page("service_config.md"), "json")[0])
        assert (await greet(names["Name"](text="you"), wait_for_ready=True)).text == "Hello, you!"


def test_complaints_about_service_configs(modules: dict[str, Any]) -> None:
    complain = execute("service_config.md", modules)["complain"]
    (comment,) = re.findall(r"# (methodConfig.*)", page("service_config.md"))
    policy = {"maxAttempts": 1, "initialBackoff": "1s", "maxBackoff": "1s", "backoffMultiplier": 1}
    policy["retryableStatusCodes"] = [14]
    assert complain(json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": policy}]})) == comment
    assert complain("{}") is None


# ---------------------------------------------------------------------------------------------------------------------
# load_balancing.md


@pytest.fixture
def load_balancing(modules: dict[str, Any]) -> dict[str, Any]:
    return execute("load_balancing.md", {**modules, "partial": partial})


def test_channels_that_balance_by_load_and_by_key(load_balancing: dict[str, Any]) -> None:
    for channel in load_balancing["open_balanced_channels"]("greeter.example:50051"):
        assert channel.target == "greeter.example:50051"


async def test_a_key_in_the_metadata(
    load_balancing: dict[str, Any], listeners: list[MemoryListener], autojump_clock: trio.testing.MockClock
) -> None:
    endpoints = [
        trio_grpc.Endpoint(name, connect=listener.connect)
        for name, listener in zip(("one", "two"), listeners, strict=True)
    ]
    async with trio_grpc.open_channel(
        "test:///greeter",
        resolvers={"test": trio_grpc.testing.ManualResolver(*endpoints)},
        load_balancing=trio_grpc.RingHash(request_hash_header="user"),
    ) as channel:
        for _ in range(3):
            reply = await load_balancing["greet_user"](load_balancing["GreeterStub"](channel), "you")
            assert reply.text == "Hello, you!"
        assert channel.statistics().connections == 1


async def test_reporting_what_was_measured(
    load_balancing: dict[str, Any], autojump_clock: trio.testing.MockClock
) -> None:
    class Queue(list[int]):
        capacity = 8

    calls = SimpleNamespace(calls=0)
    load = trio_grpc.orca.MetricRecorder()
    listener = MemoryListener()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load_balancing["measure"], load, calls, Queue([1, 2]))
        greeter = load_balancing["CountingGreeter"]()
        server = await load_balancing["serve_and_report"](nursery, greeter, listener, load)
        await trio.sleep(0.5)
        calls.calls = 50
        await trio.sleep(1)
        async with trio_grpc.open_channel(listener.connect) as channel:
            greet = load_balancing["GreeterStub"](channel).Greet
            async with greet.open(load_balancing["Name"](text="you")) as call:
                assert (await call.receive()).text == "Hello, you!"
                (data,) = call.trailing_metadata.get_all("endpoint-load-metrics-bin")
        report = trio_grpc.orca.OrcaLoadReport.FromString(data)
        assert (report.rps_fractional, report.application_utilization) == (50, 0.25)
        assert report.request_cost == {"letters": 3}
        await server.drain()
        nursery.cancel_scope.cancel()


async def test_reports_on_a_call_of_their_own(
    load_balancing: dict[str, Any], autojump_clock: trio.testing.MockClock
) -> None:
    listener = MemoryListener()
    load = trio_grpc.orca.MetricRecorder(cpu_utilization=0.5)
    async with trio.open_nursery() as nursery:
        server = await load_balancing["serve_reports"](nursery, load_balancing["Greeter"](), listener, load)
        async with load_balancing["open_channel_that_asks"](listener.connect) as channel:
            await channel.wait_ready()
            await trio.testing.wait_all_tasks_blocked()
            assert server.statistics().streams == 1
        await server.drain()


# ---------------------------------------------------------------------------------------------------------------------
# proxies.md


async def test_channels_with_a_proxy_and_without(
    modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    network = Network()
    network.install(monkeypatch)
    monkeypatch.setenv("http_proxy", "http://elsewhere.example:1")
    proxies = execute("proxies.md", modules)

    listener = network.listen("proxy.example:3128")

    async def serve_proxy() -> None:
        async with await listener.accept() as stream:
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")

    async def failure(channel: trio_grpc.Channel) -> str:
        async with channel:
            return (await status_of(proxies, proxies["GreeterStub"](channel)))[1]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_proxy)
        assert await failure(proxies["open_proxied_channel"]()) == blocks(page("proxies.md"), "text")[0].rstrip()
    assert "elsewhere.example:1" in await failure(trio_grpc.open_channel("greeter.example:50051"))
    assert await failure(proxies["open_direct_channel"]())
    assert network.dialled == ["proxy.example:3128", "elsewhere.example:1", "greeter.example:50051"]


# ---------------------------------------------------------------------------------------------------------------------
# reflection.md


async def test_serving_with_reflection(modules: dict[str, Any], nursery: trio.Nursery) -> None:
    namespace = execute("reflection.md", modules)
    server = await namespace["serve_with_reflection"](nursery, "127.0.0.1:0")
    assert [type(servicer).__name__ for servicer in server._servicers] == [
        "Greeter",
        "HealthServicer",
        "ReflectionServicer",
        "ReflectionV1AlphaServicer",
    ]
    await server.drain()


def test_reflection_of_plugins(modules: dict[str, Any], tmp_path: Path) -> None:
    namespace = execute("reflection.md", modules)
    files = descriptor_pb2.FileDescriptorSet()
    modules["Name"].DESCRIPTOR.file.CopyToProto(files.file.add())
    (tmp_path / "plugins.binpb").write_bytes(files.SerializeToString())
    servicers = namespace["with_plugins"]([namespace["Greeter"]()], tmp_path / "plugins.binpb")
    assert len(servicers) == 3


# ---------------------------------------------------------------------------------------------------------------------
# retries.md


@pytest.fixture
def retries(modules: dict[str, Any]) -> dict[str, Any]:
    return execute("retries.md", modules)


async def test_patience_with_a_server_that_pushes_back(
    retries: dict[str, Any], nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    listener = trio_grpc.testing.MemoryListener()
    await nursery.start(trio_grpc.serve, [retries["Busy"]()], listener)
    began = trio.current_time()
    assert (await retries["greet_with_patience"](listener.connect)).text == "Hello, you!"
    assert trio.current_time() - began == pytest.approx(2.5)


async def test_no_patience_with_a_slow_server(
    retries: dict[str, Any], nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    class Slow(retries["Greeter"]):  # type: ignore[misc, name-defined]
        calls = 0

        async def Greet(self, request: Any, context: Any) -> Any:
            self.calls += 1
            if self.calls == 1:
                await trio.sleep_forever()
            return await super().Greet(request, context)

    slow = Slow()
    listener = trio_grpc.testing.MemoryListener()
    await nursery.start(trio_grpc.serve, [slow], listener)
    began = trio.current_time()
    assert (await retries["greet_without_patience"](listener.connect)).text == "Hello, you!"
    assert trio.current_time() - began == pytest.approx(0.05)
    assert slow.calls == 2


# ---------------------------------------------------------------------------------------------------------------------
# keepalive.md


@pytest.fixture
def keepalive(modules: dict[str, Any]) -> dict[str, Any]:
    return execute("keepalive.md", {**modules, "partial": partial, "open_channel_pair": open_channel_pair})


async def test_listening_with_keepalive(keepalive: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    listener = trio_grpc.testing.MemoryListener()
    heard: list[str] = []

    async def vanish() -> None:
        """A server that says one word, and then nothing any more."""
        peer = trio_grpc.testing.ScriptedPeer.server(await listener.accept())
        await peer.handshake()
        await peer.expect(trio_grpc.testing.HeadersFrame)
        await peer.send_response(1)
        await peer.send_message(1, keepalive["Greeting"](text="Hello").SerializeToString())
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(vanish)
        with pytest.raises(trio_grpc.RpcError, match="keepalive: no answer to a PING in 20 s") as caught:
            await keepalive["listen"](listener.connect, heard)
        nursery.cancel_scope.cancel()
    assert caught.value.code is trio_grpc.StatusCode.UNAVAILABLE
    assert heard == ["Hello"]
    assert trio.current_time() == pytest.approx(80)


async def test_serving_patiently(keepalive: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    listener = trio_grpc.testing.MemoryListener()
    async with trio.open_nursery() as nursery:
        server = await keepalive["serve_patiently"](nursery, listener)
        option = trio_grpc.Keepalive(time=30, permit_without_calls=True)
        async with trio_grpc.open_channel(listener.connect, keepalive=option) as channel:
            await keepalive["GreeterStub"](channel).Greet(keepalive["Name"](text="you"))
            # 50 PINGs, and not yet long enough for the channel to go idle by itself.
            await trio.sleep(1500)
            assert server.statistics().connections == 1
        await server.drain()


async def test_connections_grow_old(keepalive: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    listener = trio_grpc.testing.MemoryListener()
    async with trio.open_nursery() as nursery:
        server = await keepalive["serve_behind_a_load_balancer"](nursery, listener)
        async with trio_grpc.open_channel(listener.connect) as channel:
            await keepalive["GreeterStub"](channel).Greet(keepalive["Name"](text="you"))
            await trio.sleep(899)
            assert server.statistics().connections == 1
            await trio.sleep(2)
            assert server.statistics().connections == 0
        await server.drain()


async def test_a_quiet_day(keepalive: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    await keepalive["test_a_quiet_day"]()


# ---------------------------------------------------------------------------------------------------------------------
# index.md


async def test_the_front_page(
    modules: dict[str, Any], autojump_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    await execute("index.md", modules)["main"]()
    assert capsys.readouterr().out == "Hello, trio!\n"


# ---------------------------------------------------------------------------------------------------------------------
# structured_concurrency.md


async def test_leaving_a_block_ends_the_handler(
    modules: dict[str, Any], autojump_clock: trio.testing.MockClock
) -> None:
    names = execute("structured_concurrency.md", modules)
    servicer = spy(names)
    async with greeter_of(names, servicer) as greeter:
        assert await names["first_greeting"](greeter) == "0"
        await trio.testing.wait_all_tasks_blocked()
        assert [how for how, _ in servicer.ends] == ["cancelled"]


async def test_a_scope_is_sent_to_each_call(modules: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    names = execute("structured_concurrency.md", modules)
    servicer = spy(names, thinking_time=0.25)
    async with greeter_of(names, servicer) as greeter:
        await names["two_greetings"](greeter)
    assert servicer.deadlines == [pytest.approx(1), pytest.approx(0.75)]


async def test_greeting_all(modules: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    names = execute("structured_concurrency.md", modules)
    async with greeter_of(names, spy(names, thinking_time=1)) as greeter:
        assert await names["greet_all"](greeter, ["a", "b"]) == {"a": "Hello, a!", "b": "Hello, b!"}
    assert trio.current_time() == pytest.approx(1)


# ---------------------------------------------------------------------------------------------------------------------
# flow_control.md


async def test_the_fountain_stands_still(modules: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    names = execute("flow_control.md", modules)
    fountain = names["Fountain"]()
    async with greeter_of(names, fountain) as greeter, trio.open_nursery() as nursery:
        nursery.start_soon(names["sip"], greeter)
        await trio.sleep(1)
        claimed = int(re.search(r"about (\d+) messages", page("flow_control.md"))[1])  # type: ignore[index]
        assert fountain.sent == pytest.approx(claimed, rel=0.05)
        standing = fountain.sent
        await trio.sleep(3000)
        assert fountain.sent == standing
        nursery.cancel_scope.cancel()


# ---------------------------------------------------------------------------------------------------------------------
# coming_from_*.md


COMING_FROM = ("coming_from_grpc_aio.md", "coming_from_grpclib.md", "coming_from_purerpc.md")


def rows(name: str) -> list[list[str]]:
    """The cells of the tables of names."""
    found = re.findall(r"^\| (.*) \|$", page(name).partition("\n## Names\n")[2], re.MULTILINE)
    return [
        cells for line in found if len(cells := [cell.strip() for cell in line.split(" |")]) == 3 and "---" not in line
    ]


def names_in(cells: list[str], *packages: str) -> set[tuple[str, str]]:
    """Dotted names of these packages, with the argument that stands behind each, or none."""
    pattern = rf"`((?:{'|'.join(packages)})(?:\.\w+)+)(?:\((\w+)=\))?`"
    return {(name, argument) for cell in cells for name, argument in re.findall(pattern, cell)}


def look_up(name: str, argument: str) -> None:
    """Fail where there is no such name, or it takes no such argument."""
    parts = name.split(".")
    found: Any = importlib.import_module(parts[0])
    for position, part in enumerate(parts[1:], 2):
        if not hasattr(found, part) and inspect.ismodule(found):
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(".".join(parts[:position]))
        if inspect.isclass(found) and not hasattr(found, part):
            # An attribute of instances, which the class's docstring tells of.
            assert re.search(rf"^\s+{part}(, \w+)*: ", found.__doc__ or "", re.MULTILINE), name
            assert position == len(parts), name
            return
        found = getattr(found, part)
    if argument:
        assert argument in inspect.signature(found).parameters, f"{name}({argument}=)"


@pytest.mark.parametrize("name", COMING_FROM)
def test_our_names_in_the_tables_exist(name: str) -> None:
    for theirs, ours, note in rows(name)[1:]:
        found = names_in([ours], "trio_grpc", "trio")
        assert found or ours in {"\N{EN DASH}", "trio_grpc"}, theirs
        for known in found | names_in([note], "trio_grpc", "trio"):
            look_up(*known)


@pytest.mark.parametrize(
    ("name", "package"), [("coming_from_grpc_aio.md", "grpc"), ("coming_from_grpclib.md", "grpclib")]
)
def test_their_names_in_the_tables_exist(name: str, package: str) -> None:
    pytest.importorskip(package)
    found = names_in([theirs for theirs, _, _ in rows(name)], package)
    found |= names_in([page(name)], package)
    assert len(found) > 40
    # In a process of its own: both have health services, whose messages would meet in protobuf's default pool.
    program = (
        "import json, sys; from tests.test_docs import look_up; [look_up(*one) for one in json.loads(sys.argv[1])]"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(sorted(found))],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "protos")))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_channel_arguments_of_grpcio_exist() -> None:
    cython = pytest.importorskip("grpc._cython.cygrpc")
    core = Path(cython.__file__).read_bytes()
    found = re.findall(r'^\| `"(grpc\.\w[\w.]*)"` \|', page("coming_from_grpc_aio.md"), re.MULTILINE)
    assert len(found) > 20
    assert [option for option in found if option.encode() + b"\0" not in core] == []


@pytest.mark.parametrize("name", COMING_FROM)
def test_samples_of_others_are_python(name: str) -> None:
    found = blocks(page(name), "py")
    assert len(found) >= 5
    for block in found:
        compile(block, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.fixture(params=COMING_FROM)
def newcomer(request: pytest.FixtureRequest, modules: dict[str, Any]) -> dict[str, Any]:
    return execute(request.param, modules)


async def test_coming_from_calls(newcomer: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    listener = MemoryListener()
    async with trio.open_nursery() as nursery:
        await nursery.start(trio_grpc.serve, [newcomer["Greeter"]()], listener)
        assert await newcomer["greet"](listener.connect) == ["Hello, you!", "Hello, you!", "Hi, you!"]
        nursery.cancel_scope.cancel()
    await newcomer["test_greeting"]()


async def test_coming_from_streams(newcomer: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    from echo_pb2 import EchoRequest
    from echo_trio_grpc import EchoStub

    from tests.echo_service import Echo

    async with open_channel_pair(Echo()) as (channel, _):
        requests = [EchoRequest(text=text) for text in ("one", "two")]
        assert [reply.text for reply in await newcomer["talk"](EchoStub(channel), requests)] == ["one", "two"]


async def test_coming_from_deadlines(newcomer: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    thinker = spy(newcomer, thinking_time=5)
    async with greeter_of(newcomer, thinker) as greeter:
        assert await newcomer["greet_in_time"](greeter) == "too slow"
        await trio.testing.wait_all_tasks_blocked()
    assert trio.current_time() == pytest.approx(1)
    assert thinker.deadlines == [pytest.approx(1)]
    async with greeter_of(newcomer, spy(newcomer)) as greeter:
        assert await newcomer["greet_in_time"](greeter) != "too slow"


async def test_coming_from_errors(newcomer: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    servicer = newcomer.get("Strict", vars(sys.modules["server"])["Greeter"])()
    async with greeter_of(newcomer, servicer) as greeter:
        code, message, *_ = await newcomer["explain"](greeter)
        assert (code, message) == (trio_grpc.StatusCode.INVALID_ARGUMENT, "a name, please")


async def test_coming_from_metadata(newcomer: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    seen: list[Any] = []

    class Watched(newcomer["GreeterServicer"]):  # type: ignore[misc]
        async def Greet(self, request: Any, context: Any) -> Any:
            seen.append(context.metadata.get("token"))
            await context.send_initial_metadata({"first": "1"})
            context.set_trailing_metadata({"last": "2"})
            return newcomer["Greeting"](text="Hello!")

    listener = MemoryListener()
    async with trio.open_nursery() as nursery:
        await nursery.start(trio_grpc.serve, [Watched()], listener)
        async with trio_grpc.open_channel(listener.connect) as channel:
            greeter = newcomer["GreeterStub"](channel)
            if "greet_with_metadata" in newcomer:
                initial, greeting, trailing = await newcomer["greet_with_metadata"](greeter)
                assert (initial["first"], greeting.text, trailing["last"]) == ("1", "Hello!", "2")
            else:
                assert await newcomer["greet_with_token"](greeter) == "Hello!"
        async with trio_grpc.open_channel(listener.connect, interceptors=[newcomer["add_token"]]) as channel:
            await newcomer["GreeterStub"](channel).Greet(newcomer["Name"]())
        assert seen == ["1234", "1234"]
        nursery.cancel_scope.cancel()


async def test_coming_from_grpclib_deadlines_pass_on(
    modules: dict[str, Any], autojump_clock: trio.testing.MockClock
) -> None:
    names = execute("coming_from_grpclib.md", modules)
    behind = spy(names, thinking_time=5)
    async with (
        greeter_of(names, behind) as second,
        greeter_of(names, names["Passing"](second)) as first,
    ):
        with pytest.raises(trio_grpc.RpcError) as caught:
            await first.Greet(names["Name"](text="you"), timeout=1)
        assert caught.value.code is trio_grpc.StatusCode.DEADLINE_EXCEEDED
    assert behind.deadlines == [pytest.approx(1)]
    async with names["open_channel_with_token"]("localhost:1"):
        pass


async def test_coming_from_purerpc_metadata(modules: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    names = execute("coming_from_purerpc.md", modules)
    async with greeter_of(names, names["Guarded"]()) as greeter:
        assert await names["greet_with_token"](greeter) == "Hello!"
        with pytest.raises(trio_grpc.RpcError, match="a token, please"):
            await greeter.Greet(names["Name"]())


async def test_coming_from_grpc_aio_at_most(modules: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    names = execute("coming_from_grpc_aio.md", modules)
    limit = names["AtMost"](2)
    codes: list[Any] = []
    async with open_channel_pair(spy(names, thinking_time=1), server_interceptors=[limit]) as (channel, _):
        greeter = names["GreeterStub"](channel)

        async def greet() -> None:
            try:
                await greeter.Greet(names["Name"](text="you"))
            except trio_grpc.RpcError as error:
                codes.append(error.code)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(greet)
        assert codes == [trio_grpc.StatusCode.RESOURCE_EXHAUSTED] * 3
        assert limit.limiter.borrowed_tokens == 0
        await greet()
        assert len(codes) == 3


# ---------------------------------------------------------------------------------------------------------------------
# api.md


@pytest.mark.parametrize(
    "module",
    [
        trio_grpc,
        trio_grpc.call_log,
        trio_grpc.channelz,
        trio_grpc.grpcio,
        trio_grpc.health,
        trio_grpc.opentelemetry,
        trio_grpc.orca,
        trio_grpc.prometheus,
        trio_grpc.reflection,
        trio_grpc.testing,
        trio_grpc.tls,
    ],
    ids=lambda module: module.__name__,
)
def test_the_reference_has_every_public_name(module: Any) -> None:
    documented = set(
        re.findall(rf"^\.\. auto\w+:: {re.escape(module.__name__)}\.(\w+)\b(?!\.)", page("api.md"), re.MULTILINE)
    )
    assert documented == set(module.__all__) - {"__version__"}


def test_every_page_is_in_the_table_of_contents() -> None:
    index = page("index.md")
    names = {path.stem for path in DOCS.glob("*.md")} - {"index", "performance"}
    assert {name for name in names if not re.search(rf"^{name}$", index, re.MULTILINE)} == set()


# ---------------------------------------------------------------------------------------------------------------------
# codecs.md


async def test_codecs(modules: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    names = execute("codecs.md", modules)
    async with trio.open_nursery() as nursery:
        listener = MemoryListener()
        json_codec = trio_grpc.JsonCodec()
        servicers = [names["Greeter"]()]
        await nursery.start(partial(trio_grpc.serve, servicers, listener, codec=json_codec))
        reply = await names["greet_in_json"](listener.connect)
        assert reply.text == "Hello, you!"
        nursery.cancel_scope.cancel()


async def test_codecs_without_generated_code(modules: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    names = execute("codecs.md", modules)
    async with open_channel_pair(names["Words"]()) as (channel, _):
        assert await names["count_words"](channel, "one two three") == 3


async def test_codecs_proxy(autojump_clock: trio.testing.MockClock) -> None:
    """The proxy passes on all that a call has, and says what happened behind it."""
    from echo_pb2 import EchoReply, EchoRequest
    from echo_trio_grpc import EchoStub

    from tests.echo_service import Echo

    seen: list[Any] = []

    class Behind(Echo):
        async def Unary(self, request: EchoRequest, context: Any, /) -> EchoReply:
            seen.append((context.metadata.get("key"), context.time_remaining()))
            await context.send_initial_metadata({"first": "1"})
            context.set_trailing_metadata({"last": "2"})
            if request.text == "fail":
                details = [EchoRequest(text="detail")]
                await context.abort(
                    trio_grpc.StatusCode.DATA_LOSS, "gone", details=details, trailing_metadata={"last": "3"}
                )
            if request.text == "wait":
                try:
                    await trio.sleep_forever()
                finally:
                    seen.append("cancelled")
            return await super().Unary(request, context)

    names: dict[str, Any] = {"trio_grpc": trio_grpc, "trio": trio}
    exec(blocks(page("codecs.md"))[-1], names)  # noqa: S102, RUF100
    async with open_channel_pair(Behind()) as (behind, _), open_channel_pair(names["Proxy"](behind)) as (channel, _):
        echo = EchoStub(channel)
        async with echo.Unary.open(EchoRequest(text="x"), timeout=9, metadata={"key": "value"}) as call:
            assert (await call.receive()).text == "x"
            assert list(await call.wait_initial_metadata()) == [("first", "1")]
            assert list(call.trailing_metadata) == [("last", "2")]
        assert seen == [("value", pytest.approx(9, abs=0.5))]
        with pytest.raises(trio_grpc.RpcError) as info:
            await echo.Unary(EchoRequest(text="fail"))
        error = info.value
        assert (error.code, error.message) == (trio_grpc.StatusCode.DATA_LOSS, "gone")
        assert error.details == (EchoRequest(text="detail"),)
        assert list(error.trailing_metadata) == [("last", "3")]
        with trio.move_on_after(1) as scope:
            await echo.Unary(EchoRequest(text="wait"))
        assert scope.cancelled_caught
        await trio.testing.wait_all_tasks_blocked()
        assert seen[-1] == "cancelled"
        await use_streams(echo)
        with pytest.raises(trio_grpc.RpcError, match="not implemented"):
            await channel.unary_unary("/a.B/C")(b"")
    async with open_channel_pair(names["Proxy"](behind)) as (channel, _):
        with pytest.raises(trio_grpc.RpcError):
            await EchoStub(channel).Unary(EchoRequest())


async def test_codecs_proxy_lets_clients_repeat_calls(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    from echo_pb2 import EchoReply, EchoRequest
    from echo_trio_grpc import EchoStub

    from tests.echo_service import Echo

    seen: list[Any] = []

    class Behind(Echo):
        async def Unary(self, request: EchoRequest, context: Any, /) -> EchoReply:
            seen.append([pair for pair in context.metadata if pair[0] != "user-agent"])
            if len(seen) == 1:
                await context.abort(trio_grpc.StatusCode.UNAVAILABLE, "again")
            return EchoReply(text="at last")

        async def ServerStream(self, request: EchoRequest, context: Any, /) -> Any:
            await context.send_initial_metadata()
            await trio.sleep(9)
            yield EchoReply()

    policy = trio_grpc.RetryPolicy(
        max_attempts=2,
        initial_backoff=1,
        max_backoff=1,
        backoff_multiplier=1,
        retryable_status_codes=[trio_grpc.StatusCode.UNAVAILABLE],
    )
    config = trio_grpc.ServiceConfig(methods=[trio_grpc.MethodConfig(names=["echo.Echo"], retry_policy=policy)])
    names: dict[str, Any] = {"trio_grpc": trio_grpc, "trio": trio}
    exec(blocks(page("codecs.md"))[-1], names)  # noqa: S102, RUF100
    listener = MemoryListener()
    async with open_channel_pair(Behind()) as (behind, _):
        await nursery.start(trio_grpc.serve, [names["Proxy"](behind)], listener)
        async with trio_grpc.open_channel(listener.connect, service_config=config) as channel:
            assert (await EchoStub(channel).Unary(EchoRequest())).text == "at last"
            # Headers are passed on when they come, not with the first message.
            async with EchoStub(channel).ServerStream(EchoRequest(), timeout=5) as stream:
                began = trio.current_time()
                assert not await stream.wait_initial_metadata()
                assert trio.current_time() == began
        # Others than us send headers that no client of ours may choose.
        async with ScriptedPeer.client(await listener.connect()) as peer:
            await peer.handshake()
            await peer.send_request(1, "/echo.Echo/Unary", [("grpc-unknown", "x"), ("latin", b"n\xe4h")])
            await peer.send_message(1, b"", end_stream=True)
            assert (await peer.expect(HeadersFrame, stream_id=1)).get("grpc-status") is None
        nursery.cancel_scope.cancel()
    assert seen == [[], [("grpc-previous-rpc-attempts", "1")], [("latin", "näh")]]


# ---------------------------------------------------------------------------------------------------------------------
# observability.md


async def test_observability(
    modules: dict[str, Any], autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trio_grpc.calls")
    names = execute("observability.md", modules)
    listener = MemoryListener()
    async with trio.open_nursery() as nursery:
        await nursery.start(names["serve_greeter"], listener)
        assert (await names["greet"](listener.connect)).text == "Hello, you!"
        nursery.cancel_scope.cancel()
    texts = [record.getMessage() for record in caplog.records]
    assert "client Greeter.Greet: OK after 0.000 s" in texts
    assert "server Greeter.Greet: OK after 0.000 s" in texts
    page_text = page("observability.md")
    attributes = {name for record in caplog.records for name in vars(record) if name.startswith("rpc_")}
    assert attributes == set(re.findall(r"`(rpc_\w+)`", page_text))


async def test_observability_with_interceptors(modules: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    names = execute("observability.md", modules)
    observer = names["CountBytes"]()
    interceptors = [*names["client_interceptors"], names["log_with_users"], names["counting"](observer)]
    listener = MemoryListener()
    async with trio.open_nursery() as nursery:
        await nursery.start(names["serve_with_metrics"], listener)
        async with trio_grpc.open_channel(listener.connect, interceptors=interceptors) as channel:
            await names["GreeterStub"](channel).Greet(names["Name"](text="you"))
        nursery.cancel_scope.cancel()
    assert observer.sent == 5
    assert 'grpc_server_handled_total{grpc_code="OK",grpc_method="Greet"' in names["scrape"]()
    async with open_channel_pair(names["Greeter"](), server_interceptors=names["server_interceptors"]) as (channel, _):
        await names["GreeterStub"](channel).Greet(names["Name"](text="you"))


# ---------------------------------------------------------------------------------------------------------------------
# grpcio.md


async def test_grpcio(
    project: Path, modules: dict[str, Any], autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{project}", f"--grpc_python_out={project}"]
    await trio.run_process([*command, "greeter.proto"], cwd=project)
    names = execute("grpcio.md", modules)
    monkeypatch.delitem(sys.modules, "greeter_pb2_grpc")
    async with trio.open_nursery() as nursery:
        listener = MemoryListener()
        await nursery.start(names["serve_greeter"], listener)
        assert (await names["greet"](listener.connect)).text == "Hello, you!"
        async with trio_grpc.open_channel(listener.connect) as channel:
            with pytest.raises(trio_grpc.RpcError, match="who are you") as info:
                await names["GreeterStub"](channel).Greet(names["Name"]())
            assert info.value.code is trio_grpc.StatusCode.INVALID_ARGUMENT
        nursery.cancel_scope.cancel()


# ---------------------------------------------------------------------------------------------------------------------
# channelz.md


async def test_channelz(modules: dict[str, Any], autojump_clock: trio.testing.MockClock) -> None:
    namespace = execute("channelz.md", modules)

    async def refuse() -> trio.abc.Stream:
        raise OSError("nobody is there")

    async with open_channel_pair(trio_grpc.channelz.ChannelzServicer()) as (admin, _):
        channelz = trio_grpc.channelz.ChannelzStub(admin)
        async with contextlib.AsyncExitStack() as stack:
            # More than a page of them.
            for number in range(120):
                channel = await stack.enter_async_context(trio_grpc.open_channel(refuse))
                if number in (5, 115):
                    with trio.move_on_after(0.5):
                        await channel.wait_ready()
            troubles = await namespace["find_trouble"](channelz)
        assert len(troubles) == 2
        for name, text in troubles:
            assert "refuse" in name
            assert text.endswith("nobody is there")
        assert await namespace["find_trouble"](channelz) == []


async def test_channelz_for_operators(modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = execute("channelz.md", modules)
    served: list[Any] = []

    async def serve(servicers: Any, address: str, *, task_status: trio.TaskStatus[None]) -> None:
        served.extend([*servicers, address])
        task_status.started()

    monkeypatch.setattr(trio_grpc, "serve", serve)
    async with trio.open_nursery() as nursery:
        await namespace["serve_for_operators"](nursery)
    assert isinstance(served[0], trio_grpc.channelz.ChannelzServicer)
    assert served[1:] == ["127.0.0.1:50052"]
