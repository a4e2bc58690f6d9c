"""The code generator, on the sample .proto files of tests/protos/samples."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import json
import os
import stat
import subprocess
import sys
import tempfile
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.compiler import plugin_pb2
from hypothesis import given
from hypothesis import strategies as st

import trio_grpc
import trio_grpc.protoc
import trio_grpc.testing
from trio_grpc.protoc_plugin import generate, main, module_name, module_path, relative_name, render_import

ROOT = Path(__file__).parent.parent
SAMPLES = Path(__file__).parent / "protos" / "samples"
ALL_SAMPLES = sorted(path.relative_to(SAMPLES).as_posix() for path in SAMPLES.rglob("*.proto"))


# How the samples are generated and imported


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """All samples generated into a directory that can be imported from."""
    directory = tmp_path_factory.mktemp("generated")
    files = [str(SAMPLES / name) for name in ALL_SAMPLES]
    assert trio_grpc.protoc.main([f"-I{SAMPLES}", f"--out={directory}", *files]) == 0
    before = set(sys.modules)
    sys.path.insert(0, str(directory))
    importlib.invalidate_caches()
    try:
        yield directory
    finally:
        sys.path.remove(str(directory))
        for name in set(sys.modules) - before:
            if str(directory) in str(getattr(sys.modules[name], "__path__", "")) + (sys.modules[name].__file__ or ""):
                del sys.modules[name]


def text_of(root: Path, proto: str) -> str:
    return (root / module_path(proto)).read_text(encoding="utf-8")


@pytest.fixture
def load(root: Path) -> Any:
    """Imports the generated module of a sample."""
    return lambda proto: importlib.import_module(module_name(proto, "_trio_grpc"))


def request_for(*names: str, parameter: str = "") -> plugin_pb2.CodeGeneratorRequest:
    """What protoc would ask for some samples."""
    from grpc_tools import protoc

    request = plugin_pb2.CodeGeneratorRequest(file_to_generate=names, parameter=parameter)
    include = Path(protoc.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory, "descriptors")
        arguments = [f"-I{SAMPLES}", f"-I{include}", f"-o{out}", "--include_imports", "--include_source_info"]
        assert protoc.main(["protoc", *arguments, *names]) == 0
        request.proto_file.extend(descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file)
    return request


def wire_names(servicer: Any) -> dict[str, str]:
    return {attribute: method.name for attribute, method in servicer.__trio_grpc_methods__.items()}


# What is generated


@pytest.mark.parametrize("proto", ALL_SAMPLES)
def test_every_file_becomes_a_module_that_can_be_imported_and_exports_its_services(proto: str, load: Any) -> None:
    module = load(proto)
    descriptor = importlib.import_module(module_name(proto, "_pb2")).DESCRIPTOR
    services = descriptor.services_by_name
    assert sorted(module.__all__) == sorted(f"{name}{kind}" for name in services for kind in ("Stub", "Servicer"))
    for name, service in services.items():
        servicer = getattr(module, f"{name}Servicer")
        assert servicer.__trio_grpc_pb2__.DESCRIPTOR is descriptor
        methods = servicer.__trio_grpc_methods__
        assert [method.name for method in methods.values()] == [method.name for method in service.methods]
        for method, rpc in zip(methods.values(), service.methods, strict=True):
            assert method.service == service.full_name
            assert method.request_type.DESCRIPTOR is rpc.input_type
            assert method.response_type.DESCRIPTOR is rpc.output_type
            assert method.cardinality.value == (rpc.client_streaming, rpc.server_streaming)


@pytest.mark.parametrize("proto", ALL_SAMPLES)
async def test_stub_and_servicer_have_an_attribute_for_each_rpc(proto: str, load: Any) -> None:
    module = load(proto)
    for name in module.__all__:
        if not name.endswith("Stub"):
            continue
        servicer = getattr(module, name.removesuffix("Stub") + "Servicer")
        async with trio_grpc.open_channel("localhost:1") as channel:
            stub = getattr(module, name)(channel)
        assert vars(stub).keys() == servicer.__trio_grpc_methods__.keys()
        for attribute, method in servicer.__trio_grpc_methods__.items():
            words = method.cardinality.name.title().replace("_", "")
            assert type(getattr(stub, attribute)) is getattr(trio_grpc, f"{words}Method")
            # Not hidden behind a mangled name, and not inherited.
            assert inspect.isfunction(vars(servicer)[attribute])
            assert inspect.iscoroutinefunction(vars(servicer)[attribute]) is not method.cardinality.server_streaming


@pytest.mark.parametrize("proto", ALL_SAMPLES)
def test_annotations_can_be_evaluated_and_name_the_messages(proto: str, load: Any) -> None:
    module = load(proto)
    for name in module.__all__:
        if name.endswith("Stub"):
            assert typing.get_type_hints(getattr(module, name).__init__)["channel"] is trio_grpc.Channel
            continue
        servicer = getattr(module, name)
        for attribute, method in servicer.__trio_grpc_methods__.items():
            hints = typing.get_type_hints(getattr(servicer, attribute))
            request = hints["requests" if method.cardinality.client_streaming else "request"]
            if method.cardinality.client_streaming:
                assert typing.get_origin(request) is trio_grpc.RequestStream
                (request,) = typing.get_args(request)
            assert request in (method.request_type, Any)
            assert typing.get_args(hints["context"]) in ((method.response_type,), (Any,))


def test_reads_as_somebody_would_write_it(root: Path) -> None:
    assert text_of(root, "public_import.proto") == (
        '''\
# Generated by protoc-gen-trio_grpc from public_import.proto. Do not edit.
# isort: skip_file
# fmt: off
"""The services of `public_import.proto`."""

from __future__ import annotations

import trio_grpc

from left import types_pb2 as _types_pb2
import public_import_pb2 as _public_import_pb2
import public_imported_pb2 as _public_imported_pb2

__all__ = (
    "PublicServicer",
    "PublicStub",
)

_method_Public_Get: trio_grpc.Method[
    _types_pb2.Thing,
    _public_imported_pb2.Thing,
] = trio_grpc.Method(
    service="samples.public_import.Public",
    name="Get",
    cardinality=trio_grpc.Cardinality.UNARY_UNARY,
    request_type=_types_pb2.Thing,
    response_type=_public_imported_pb2.Thing,
)


class PublicStub:
    """Calls the service `samples.public_import.Public`."""

    def __init__(self, channel: trio_grpc.Channel) -> None:
        """Makes a stub; its calls go through the channel."""
        self.Get: trio_grpc.UnaryUnaryMethod[
            _types_pb2.Thing,
            _public_imported_pb2.Thing,
        ] = trio_grpc.UnaryUnaryMethod(channel, _method_Public_Get)


class PublicServicer(trio_grpc.Servicer):
    """Serves `samples.public_import.Public`; override its rpcs."""

    __trio_grpc_pb2__ = _public_import_pb2
    __trio_grpc_methods__ = {
        "Get": _method_Public_Get,
    }

    async def Get(
        self,
        request: _types_pb2.Thing,
        context: trio_grpc.ServicerContext[_public_imported_pb2.Thing],
        /,
    ) -> _public_imported_pb2.Thing:
        raise trio_grpc.RpcError(
            trio_grpc.StatusCode.UNIMPLEMENTED,
            "samples.public_import.Public/Get is not implemented",
        )
'''
    )


def test_handlers_of_streams_take_a_request_stream_and_may_be_generators_or_coroutines(load: Any) -> None:
    servicer = load("a/b.proto").ImporterServicer
    assert inspect.signature(servicer.Root).return_annotation == "AsyncIterator[_b_pb2.Thing] | Awaitable[None]"
    parameters = inspect.signature(servicer.Root).parameters
    assert parameters["requests"].annotation == "trio_grpc.RequestStream[_no_package_pb2.Unpackaged]"
    # An override may name its parameters as it likes.
    assert {parameter.kind for parameter in parameters.values()} == {inspect.Parameter.POSITIONAL_ONLY}


def test_a_file_without_services_becomes_an_empty_module(root: Path) -> None:
    assert text_of(root, "no_services.proto") == (
        '''\
# Generated by protoc-gen-trio_grpc from no_services.proto. Do not edit.
# isort: skip_file
# fmt: off
"""`no_services.proto` has no services."""

from __future__ import annotations

__all__: list[str] = []
'''
    )


async def test_a_service_without_rpcs_has_a_stub_and_a_servicer(load: Any) -> None:
    module = load("no_rpcs.proto")
    async with trio_grpc.open_channel("localhost:1") as channel:
        assert vars(module.NothingStub(channel)) == {}
    assert module.Nothing_ElseServicer.__trio_grpc_methods__ == {}


def test_a_file_without_package_has_services_of_plain_names(load: Any) -> None:
    assert load("no_package.proto").BareServicer.__trio_grpc_methods__["Get"].path == "/Bare/Get"


# Names


def test_keywords_get_an_underscore_and_keep_their_wire_name(load: Any) -> None:
    assert wire_names(load("naming.proto").KeywordsServicer) == {
        "import__": "import",  # import_ is an rpc of its own
        "import_": "import_",
        "None_": "None",
        "async_": "async",
        "await_": "await",
        "match": "match",  # a keyword only where no name is
    }


def test_names_that_python_or_the_generated_classes_need_get_underscores(load: Any) -> None:
    names = wire_names(load("naming.proto").ClashesServicer)
    assert {attribute: name for attribute, name in names.items() if attribute != name} == {
        "__init___": "__init__",
        "__init____": "__init___",
        "__secret__": "__secret",
        "__class___": "__class__",
        "__trio_grpc_methods___": "__trio_grpc_methods__",
    }
    assert set(names.values()) > {"mro", "self", "str", "trio_grpc", "Any", "Awaitable"}


def test_no_attribute_of_the_base_class_is_overridden_by_an_rpc() -> None:
    # All with two underscores in front, which rpcs never keep; else protoc_plugin must reserve them.
    assert [name for name in dir(trio_grpc.Servicer) if not name.startswith("__")] == []


def test_services_with_names_of_keywords_or_of_each_others_classes_stay_apart(load: Any) -> None:
    module = load("naming.proto")
    for name in ("class", "Greeter", "GreeterStub", "GreeterServicer", "trio_grpc"):
        (method,) = getattr(module, f"{name}Servicer").__trio_grpc_methods__.values()
        assert method.path == f"/samples.naming.{name}/Do"
    assert module.AServicer.__trio_grpc_methods__["B_C"].path == "/samples.naming.A/B_C"
    assert module.A_BServicer.__trio_grpc_methods__["C"].path == "/samples.naming.A_B/C"


def test_messages_with_names_of_keywords_are_reached(load: Any) -> None:
    methods = load("keyword_messages.proto").KeywordMessagesServicer.__trio_grpc_methods__
    assert methods["Odd"].request_type.DESCRIPTOR.full_name == "samples.keyword_messages.None"
    assert methods["Odd"].response_type.DESCRIPTOR.full_name == "samples.keyword_messages.None.class"
    assert methods["Half"].response_type.DESCRIPTOR.full_name == "samples.keyword_messages.Fine.del"


async def test_renamed_rpcs_are_served_and_called_under_their_wire_names(load: Any) -> None:
    module = load("naming.proto")
    thing = importlib.import_module("naming_pb2").Thing

    class Keywords(module.KeywordsServicer):  # type: ignore[misc, name-defined]
        async def import__(self, request: Any, context: Any) -> Any:
            assert context.method.path == "/samples.naming.Keywords/import"
            return request

        async def None_(self, request: Any, context: Any) -> Any:
            yield request
            yield request

    class Clashes(module.ClashesServicer):  # type: ignore[misc, name-defined]
        async def __init___(self, request: Any, context: Any) -> Any:
            return request

        async def __secret__(self, request: Any, context: Any) -> Any:
            return request

        async def mro(self, request: Any, context: Any) -> Any:
            return request

    async with trio_grpc.testing.open_channel_pair(Keywords(), Clashes()) as (channel, _server):
        keywords, clashes = module.KeywordsStub(channel), module.ClashesStub(channel)
        assert await keywords.import__(thing()) == thing()
        async with keywords.None_(thing()) as replies:
            assert [reply async for reply in replies] == [thing(), thing()]
        for attribute in ("__init___", "__secret__", "mro"):
            assert await getattr(clashes, attribute)(thing()) == thing()


@pytest.mark.parametrize("attribute", ["import_", "None_", "async_", "await_"])
async def test_an_rpc_that_is_not_overridden_is_unimplemented_and_says_its_wire_name(load: Any, attribute: str) -> None:
    module = load("naming.proto")
    thing = importlib.import_module("naming_pb2").Thing
    servicer = module.KeywordsServicer()
    name = wire_names(servicer)[attribute]
    async with trio_grpc.testing.open_channel_pair(servicer) as (channel, _server):
        method = getattr(module.KeywordsStub(channel), attribute)
        arguments = [] if method.method.cardinality.client_streaming else [thing()]
        async with method.open(*arguments) as call:
            with pytest.raises(trio_grpc.RpcError) as caught:
                await call.receive()
    assert caught.value.code is trio_grpc.StatusCode.UNIMPLEMENTED
    assert caught.value.message == f"samples.naming.Keywords/{name} is not implemented"


# Names in snake case


SNAKES = """
import json
import trio
import snake_case_trio_grpc
from snake_case_pb2 import Thing
from snake_case_trio_grpc import WordsServicer, WordsStub
import trio_grpc.testing

class Words(WordsServicer):
    async def get_thing(self, request, context):
        assert context.method.path == "/samples.snake_case.Words/GetThing"
        return request

    async def get_other_thing(self, request, context):
        yield request

async def main():
    async with trio_grpc.testing.open_channel_pair(Words()) as (channel, _):
        words = WordsStub(channel)
        assert vars(words).keys() == Words.__trio_grpc_methods__.keys()
        assert await words.get_thing(Thing()) == Thing()
        async with words.get_other_thing(Thing()) as things:
            assert [thing async for thing in things] == [Thing()]
        try:
            await words.get2(Thing())
        except trio_grpc.RpcError as error:
            assert error.message == "samples.snake_case.Words/Get2 is not implemented"
        else:
            raise AssertionError

trio.run(main)
print(json.dumps({
    name: {attribute: method.name for attribute, method in servicer.__trio_grpc_methods__.items()}
    for name, servicer in vars(snake_case_trio_grpc).items()
    if name.endswith("Servicer")
}))
"""


def test_names_in_snake_case_if_asked_for(tmp_path: Path) -> None:
    arguments = [f"-I{SAMPLES}", f"--out={tmp_path}", "--snake-case", "snake_case.proto"]
    assert trio_grpc.protoc.main(arguments) == 0
    # In a process of its own, which knows the module in this form only.
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SNAKES],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path))},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert json.loads(done.stdout) == {
        "WordsServicer": {
            "get": "Get",
            "get_thing": "GetThing",
            "get_other_thing": "getOtherThing",
            "get_http_status": "GetHTTPStatus",
            "http_get": "HTTPGet",
            "list_v2_items": "ListV2Items",
            "get2": "Get2",
            "x": "X",
            "as_it_is": "as_it_is",
            "half_way": "Half_Way",
        },
        # What two rpcs would be called is the name of the one that has it already.
        "SameServicer": {"get_thing_": "GetThing", "get_thing": "get_thing", "get_thing__": "Get_Thing"},
        "ReservedServicer": {
            "import__": "Import",  # import_ is an rpc of its own
            "import_": "import_",
            "none": "None",
            "__secret__": "__Secret",
            "__init___": "__Init__",
        },
    }


def test_names_are_the_protos_unless_asked() -> None:
    response = generate(request_for("snake_case.proto"))
    assert "self.GetHTTPStatus: " in response.file[0].content
    assert "get_http_status" not in response.file[0].content


# Imports


def imports_of(text: str) -> list[str]:
    """The lines that import messages."""
    return [line for line in text.splitlines() if "_pb2" in line and line.split()[0] in ("from", "import")] + [
        line for line in text.splitlines() if "import_module" in line
    ]


def test_imports_are_absolute_as_protocs_own(root: Path) -> None:
    assert imports_of(text_of(root, "a/b.proto")) == [
        "from a import b_pb2 as _b_pb2",
        "from c_x import plain_pb2 as _plain_pb2",
        "from deep.er.still import types_pb2 as _types_pb2",
        "from google.protobuf import empty_pb2 as _empty_pb2",
        "import no_package_pb2 as _no_package_pb2",
        '_d_e_pb2 = importlib.import_module("c.in.d_e_pb2")',
    ]
    assert imports_of(text_of(root, "dotted.name-with-hyphens.proto")) == [
        "from dotted import name_with_hyphens_pb2 as _name_with_hyphens_pb2",
    ]


def test_modules_of_the_same_name_get_names_that_differ(root: Path) -> None:
    assert imports_of(text_of(root, "same_names.proto")) == [
        "from left import types_pb2 as _left_dot_types__pb2",
        "from right import types_pb2 as _right_dot_types__pb2",
        "import same_names_pb2 as _same_names_pb2",
    ]


@pytest.mark.parametrize(
    ("proto", "expected"),
    [
        (
            "a/b.proto",
            [
                "from . import b_pb2 as _b_pb2",
                "from ..c_x import plain_pb2 as _plain_pb2",
                "from ..deep.er.still import types_pb2 as _types_pb2",
                "from google.protobuf import empty_pb2 as _empty_pb2",
                "from .. import no_package_pb2 as _no_package_pb2",
                '_d_e_pb2 = importlib.import_module("..c.in.d_e_pb2", __package__)',
            ],
        ),
        ("c/in/d-e.proto", ["from . import d_e_pb2 as _d_e_pb2"]),
        (
            "deep/er/service.proto",
            [
                "from . import service_pb2 as _service_pb2",
                "from .still import types_pb2 as _deep_dot_er_dot_still_dot_types__pb2",
                "from ...left import types_pb2 as _left_dot_types__pb2",
                "from ... import no_package_pb2 as _no_package_pb2",
            ],
        ),
        ("no_package.proto", ["from . import no_package_pb2 as _no_package_pb2"]),
    ],
)
def test_imports_are_relative_if_asked_for(proto: str, expected: list[str]) -> None:
    response = generate(request_for(proto, parameter="relative_imports"))
    assert not response.error
    assert imports_of(response.file[0].content) == expected


def test_relative_imports_leave_files_of_google_to_their_distributions_unless_they_are_generated_too() -> None:
    def file(name: str, package: str, *dependencies: str) -> descriptor_pb2.FileDescriptorProto:
        made = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3", dependency=dependencies)
        made.message_type.add(name="Status")
        return made

    service = file("app.proto", "app", "google/rpc/status.proto")
    service.service.add(name="App").method.add(
        name="Get", input_type=".google.rpc.Status", output_type=".google.rpc.Status"
    )
    files = [file("google/rpc/status.proto", "google.rpc"), service]

    def imports(*generated: str) -> list[str]:
        response = generate(
            plugin_pb2.CodeGeneratorRequest(file_to_generate=generated, proto_file=files, parameter="relative_imports")
        )
        return imports_of(response.file[0].content)

    assert imports("app.proto") == [
        "from . import app_pb2 as _app_pb2",
        "from google.rpc import status_pb2 as _status_pb2",
    ]
    assert imports("app.proto", "google/rpc/status.proto") == [
        "from . import app_pb2 as _app_pb2",
        "from .google.rpc import status_pb2 as _status_pb2",
    ]


IMPORT_ALL = """
import importlib, pickle, sys

package, *modules = sys.argv[1:]
for name in modules:
    module = importlib.import_module(f"{package}.{name}_trio_grpc")
    for servicer in (getattr(module, name) for name in module.__all__ if name.endswith("Servicer")):
        for method in servicer.__trio_grpc_methods__.values():
            assert method.request_type.__module__.startswith((package, "google.protobuf.")), method
    messages = importlib.import_module(f"{package}.{name}_pb2")
    for name in messages.DESCRIPTOR.message_types_by_name:
        message_type = getattr(messages, name)
        assert pickle.loads(pickle.dumps(message_type())) == message_type()
"""


@pytest.mark.parametrize("package", ["some_package", "some_package.deeper"])
def test_with_relative_imports_the_output_works_inside_a_package(package: str, tmp_path: Path) -> None:
    out = tmp_path.joinpath(*package.split("."))
    files = [str(SAMPLES / name) for name in ALL_SAMPLES]
    assert trio_grpc.protoc.main([f"-I{SAMPLES}", f"--out={out}", "--relative-imports", *files]) == 0
    # In a process of its own: protobuf has one class for each message, wherever its module is imported from.
    subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT_ALL, package, *(module_name(name, "") for name in ALL_SAMPLES)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path))},
        check=True,
    )


@pytest.mark.parametrize(
    ("proto", "module"),
    [
        ("x.proto", "x_pb2"),
        ("a/b.proto", "a.b_pb2"),
        ("c/in/d-e.proto", "c.in.d_e_pb2"),
        ("a-b/c.d.proto", "a_b.c.d_pb2"),
        ("old.protodevel", "old_pb2"),
        ("my file.proto", "my file_pb2"),
    ],
)
def test_modules_are_named_as_protoc_does(proto: str, module: str) -> None:
    assert module_name(proto, "_pb2") == module
    assert module_path(proto, "_pb2", ".pyi") == module.replace(".", "/") + ".pyi"


@pytest.mark.parametrize(
    ("module", "package", "statement"),
    [
        ("x_pb2", "", "from . import x_pb2 as _x"),
        ("a.x_pb2", "", "from .a import x_pb2 as _x"),
        ("x_pb2", "a", "from .. import x_pb2 as _x"),
        ("a.x_pb2", "a", "from . import x_pb2 as _x"),
        ("a.b.x_pb2", "a", "from .b import x_pb2 as _x"),
        ("a.x_pb2", "a.b", "from .. import x_pb2 as _x"),
        ("a.c.x_pb2", "a.b", "from ..c import x_pb2 as _x"),
        ("c.x_pb2", "a.b", "from ...c import x_pb2 as _x"),
        ("a.a_pb2", "a.a", "from .. import a_pb2 as _x"),
    ],
)
def test_a_module_is_spelt_relative_to_a_package(module: str, package: str, statement: str) -> None:
    assert render_import(relative_name(module, package), "_x") == statement


# Comments and options

DOCSTRINGS = {
    "Quotes": 'A line with "quotes" and \'others\', ending in "one".\nIt says "quoted"',
    "Backslashes": "C:\\new\\table \\x41 \\N{BULLET} \\",
    "TripleQuotes": '""" and \\""" and """"""',
    "TrailingBackslash": "ends with a backslash \\",
    "NonAscii": "Schöne Grüße 世界 🎉",
    "Trailing": "A trailing comment.",
    "Both": "Before.\n\nAfter.",
    "Bare": None,
    "Blank": None,
    "Braces": "{braces} {0} %s $x",
}


@pytest.mark.parametrize("rpc", DOCSTRINGS)
def test_the_comment_of_an_rpc_becomes_its_docstring(rpc: str, load: Any) -> None:
    assert inspect.getdoc(getattr(load("comments.proto").CommentedServicer, rpc)) == DOCSTRINGS[rpc]


def test_the_comment_of_an_rpc_documents_the_stubs_attribute(root: Path) -> None:
    stub = next(
        node
        for node in ast.parse(text_of(root, "comments.proto")).body
        if isinstance(node, ast.ClassDef) and node.name == "CommentedStub"
    )
    (init,) = (node for node in stub.body if isinstance(node, ast.FunctionDef))
    found: dict[str, str | None] = {}
    for node in init.body[1:]:
        match node:
            case ast.AnnAssign(target=ast.Attribute(attr=attribute)):
                found[attribute] = None
            case ast.Expr(value=ast.Constant(value=str(text))):
                found[list(found)[-1]] = inspect.cleandoc(text)
            case _:
                pytest.fail(ast.unparse(node))
    assert found == DOCSTRINGS


def test_comments_of_services_and_of_the_package_become_docstrings(load: Any) -> None:
    module = load("comments.proto")
    assert inspect.getdoc(module) == "The services of `comments.proto`.\n\nComments of all sorts. Grüße, 世界!"
    text = 'A service with a block comment.\n\n  - an indented line\n\nThe end: """'
    assert inspect.getdoc(module.CommentedStub) == inspect.getdoc(module.CommentedServicer) == text
    assert inspect.getdoc(module.UncommentedStub) == "Calls the service `samples.comments.Uncommented`."
    assert inspect.getdoc(module.UncommentedServicer) == "Serves `samples.comments.Uncommented`; override its rpcs."


def generate_with_comment(comment: str) -> str:
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", package="x", syntax="proto3")
    file.message_type.add(name="M")
    file.service.add(name="S").method.add(name="Get", input_type=".x.M", output_type=".x.M")
    file.source_code_info.location.add(path=[6, 0, 2, 0], leading_comments=comment)
    response = generate(plugin_pb2.CodeGeneratorRequest(file_to_generate=["x.proto"], proto_file=[file]))
    assert not response.error
    return response.file[0].content


COMMENT_CHARACTERS = st.sampled_from("\"'\\\n\r\t *ab{}#%N\0\x0b\x85\u2028\u202e\ufeff") | st.characters(
    exclude_categories=["Cs"]
)


@given(st.text(COMMENT_CHARACTERS))
def test_no_comment_breaks_the_module_or_loses_a_word(comment: str) -> None:
    tree = ast.parse(generate_with_comment(comment).encode())
    (handler,) = (node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef))
    assert (ast.get_docstring(handler) or "").split() == comment.lstrip("*").split()


def test_a_comment_that_is_not_utf8_is_taken_as_far_as_it_goes() -> None:
    request = request_for("public_import.proto")
    file = request.proto_file[-1]
    file.source_code_info.ClearField("location")
    file.source_code_info.location.add(path=[6, 0], leading_comments="caf?")
    data = request.SerializeToString().replace(b"caf?", b"caf\xe9")
    text = generate(plugin_pb2.CodeGeneratorRequest.FromString(data)).file[0].content
    assert '"""caf\N{REPLACEMENT CHARACTER}"""' in text


def test_methods_are_idempotent_if_the_proto_says_so(load: Any) -> None:
    methods = load("options.proto").OptionsServicer.__trio_grpc_methods__
    assert {name for name, method in methods.items() if method.idempotent} == {"Safe", "Idempotent"}


def test_what_is_deprecated_is_said_to_be(load: Any) -> None:
    module = load("options.proto")
    assert inspect.getdoc(module.OptionsServicer.Old) == (
        "Was good once.\n\nDeprecated: the .proto says so of this rpc."
    )
    assert inspect.getdoc(module.OldStub) == ("Was all good once.\n\nDeprecated: the .proto says so of this service.")


# The plugin


def test_advertises_what_protoc_asks_for() -> None:
    response = generate(request_for("edition.proto"))
    features = plugin_pb2.CodeGeneratorResponse
    assert response.supported_features == features.FEATURE_PROTO3_OPTIONAL | features.FEATURE_SUPPORTS_EDITIONS
    assert response.minimum_edition <= descriptor_pb2.EDITION_PROTO2
    assert response.maximum_edition >= descriptor_pb2.EDITION_2023


def test_the_output_depends_on_the_file_only() -> None:
    alone = {name: generate(request_for(name)).file[0].content for name in ("a/b.proto", "same_names.proto")}
    request = request_for(*ALL_SAMPLES)
    together = {file.name: file.content for file in generate(request).file}
    assert list(together) == [module_path(name) for name in request.file_to_generate]
    files = sorted(request.proto_file, key=lambda file: file.name, reverse=True)
    del request.proto_file[:]
    request.proto_file.extend(files)
    shuffled = {file.name: file.content for file in generate(request).file}
    assert together == shuffled
    for name, content in alone.items():
        assert together[module_path(name)] == content


@pytest.mark.parametrize("seed", ["0", "1"])
def test_the_output_does_not_depend_on_the_hash_seed(seed: str) -> None:
    request = request_for(*ALL_SAMPLES)
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "trio_grpc.protoc_plugin"],
        input=request.SerializeToString(),
        capture_output=True,
        env=environment,
        check=True,
    )
    assert done.stderr == b""
    assert plugin_pb2.CodeGeneratorResponse.FromString(done.stdout) == generate(request)


@pytest.mark.skipif(os.name != "posix", reason="the plugin is wrapped in a script")
@pytest.mark.parametrize("options", [[], ["--trio_grpc_opt=relative_imports"]])
def test_works_as_a_plugin_of_protoc(tmp_path: Path, root: Path, options: Sequence[str]) -> None:
    plugin = tmp_path / "protoc-gen-trio_grpc"
    plugin.write_text(f"#!{sys.executable}\nimport sys\nfrom trio_grpc.protoc_plugin import main\nsys.exit(main())\n")
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", f"-I{SAMPLES}", f"--plugin={plugin}"),
            *(f"--trio_grpc_out={out}", *options, "a/b.proto", "no_services.proto"),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=SAMPLES,
        check=True,
    )
    assert sorted(path.relative_to(out).as_posix() for path in out.rglob("*.py")) == [
        "a/b_trio_grpc.py",
        "no_services_trio_grpc.py",
    ]
    assert ("from . import" in text_of(out, "a/b.proto")) is bool(options)
    assert (text_of(out, "a/b.proto") == text_of(root, "a/b.proto")) is not bool(options)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (
            plugin_pb2.CodeGeneratorRequest(parameter="relative_imports,fast"),
            "unknown option 'fast'; the options are: relative_imports, snake_case",
        ),
        (
            plugin_pb2.CodeGeneratorRequest(file_to_generate=["x.proto"]),
            "x.proto: the request does not contain this file",
        ),
        (
            plugin_pb2.CodeGeneratorRequest(
                file_to_generate=["x.proto"],
                proto_file=[
                    descriptor_pb2.FileDescriptorProto(
                        name="x.proto",
                        service=[
                            descriptor_pb2.ServiceDescriptorProto(
                                name="S",
                                method=[
                                    descriptor_pb2.MethodDescriptorProto(name="Get", input_type=".M", output_type=".M")
                                ],
                            )
                        ],
                    )
                ],
            ),
            "x.proto: the request does not define the message .M",
        ),
    ],
)
def test_an_error_goes_to_protoc(request_: plugin_pb2.CodeGeneratorRequest, error: str) -> None:
    response = generate(request_)
    assert response.error == error
    assert not response.file


def test_empty_options_are_no_error() -> None:
    assert not generate(plugin_pb2.CodeGeneratorRequest(parameter=" ,relative_imports, ")).error


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["--help"], b"", "a plugin that protoc runs"),
        (["x.proto"], b"", "python -m trio_grpc.protoc"),
        ([], b"not a request", "is not a CodeGeneratorRequest"),
    ],
)
def test_what_is_no_request_of_protoc_is_explained_in_one_line(
    arguments: list[str],
    stdin: bytes,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin), isatty=lambda: False))
    assert main(arguments) == 1
    output, error = capsysbinary.readouterr()
    assert output == b""
    assert error.startswith(b"protoc-gen-trio_grpc: ")
    assert message in error.decode()
    assert error.count(b"\n") == 1


def test_the_committed_module_of_the_tests_is_what_the_generator_makes(tmp_path: Path) -> None:
    protos = SAMPLES.parent
    assert trio_grpc.protoc.main([f"-I{protos}", f"--out={tmp_path}", str(protos / "echo.proto")]) == 0
    for name in ("echo_trio_grpc.py", "echo_pb2.pyi"):
        assert (protos / name).read_text(encoding="utf-8") == (tmp_path / name).read_text(encoding="utf-8")


def test_importing_the_generator_needs_nothing_of_the_runtime() -> None:
    source = ast.parse(inspect.getsource(sys.modules["trio_grpc.protoc_plugin"]))
    modules = {
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(source)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert not any(str(module).startswith("trio") for module in modules)
