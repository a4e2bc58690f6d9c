"""`trio_grpc.reflection`: each kind of question, in both versions."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any, ClassVar

import pytest
import trio.testing
from google.protobuf import descriptor_database, descriptor_pb2, descriptor_pool, message_factory, text_format

import trio_grpc
from tests.echo_service import Echo
from tests.interop.standard.service import InteropServicer
from tests.support.service_modules import ROOT
from trio_grpc import Cardinality, Method, RpcError, Servicer, StatusCode
from trio_grpc.health import HealthServicer
from trio_grpc.orca import MetricRecorder, OrcaServicer
from trio_grpc.reflection import ReflectionServicer, ReflectionV1AlphaServicer, with_reflection
from trio_grpc.reflection._v1 import reflection_pb2 as v1
from trio_grpc.reflection._v1 import reflection_trio_grpc as stubs_v1
from trio_grpc.reflection._v1alpha import reflection_pb2 as v1alpha
from trio_grpc.reflection._v1alpha import reflection_trio_grpc as stubs_v1alpha
from trio_grpc.testing import open_channel_pair

Clock = trio.testing.MockClock

BOTH = [
    pytest.param((v1, stubs_v1), id="v1"),
    pytest.param((v1alpha, stubs_v1alpha), id="v1alpha"),
]
V1 = (v1, stubs_v1)

#: Files that exist nowhere but here: what imports what, and one of each thing that has a name.
FILES = """
file {
  name: "base.proto" package: "base" syntax: "proto2"
  message_type { name: "Base" extension_range { start: 100 end: 200 } }
}
file { name: "left.proto" package: "left" dependency: "base.proto" public_dependency: 0 syntax: "proto2" }
file {
  name: "right.proto" package: "right" dependency: "base.proto" syntax: "proto2"
  extension { name: "more" number: 150 type: TYPE_INT32 label: LABEL_OPTIONAL extendee: ".base.Base" }
}
file {
  name: "zoo/top.proto" package: "zoo" dependency: "left.proto" dependency: "right.proto" syntax: "proto2"
  message_type {
    name: "Animal"
    field { name: "legs" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL oneof_index: 0 }
    oneof_decl { name: "how" }
    nested_type {
      name: "Nest"
      extension { name: "deep" number: 101 type: TYPE_INT32 label: LABEL_OPTIONAL extendee: ".base.Base" }
      enum_type { name: "Kind" value { name: "GROUND" number: 0 } }
    }
  }
  enum_type { name: "Size" value { name: "SMALL" number: 0 } }
  extension { name: "top" number: 100 type: TYPE_STRING label: LABEL_OPTIONAL extendee: ".base.Base" }
  service { name: "Keeper" method { name: "Feed" input_type: ".zoo.Animal" output_type: ".zoo.Animal" } }
}
"""


def files() -> list[descriptor_pb2.FileDescriptorProto]:
    return list(text_format.Parse(FILES, descriptor_pb2.FileDescriptorSet()).file)


@pytest.fixture
def pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for file in files():
        pool.AddSerializedFile(file.SerializeToString())
    return pool


class Keeper(Servicer):
    """A servicer whose messages are in a pool of their own, as generated code would make it."""

    def __init__(self, pool: Any) -> None:
        animal = message_factory.GetMessageClass(pool.FindMessageTypeByName("zoo.Animal"))
        self.__trio_grpc_methods__ = {  # type: ignore[misc]
            "Feed": Method("zoo.Keeper", "Feed", Cardinality.UNARY_UNARY, animal, animal)
        }

    async def Feed(self, request: Any, context: Any) -> Any:
        return request


class Client:
    """Asks on one stream."""

    def __init__(self, messages: Any, call: Any) -> None:
        self._messages = messages
        self._call = call

    async def ask(self, **question: Any) -> Any:
        extension = question.get("file_containing_extension")
        if extension is not None:
            message, number = extension
            question["file_containing_extension"] = self._messages.ExtensionRequest(
                containing_type=message, extension_number=number
            )
        request = self._messages.ServerReflectionRequest(host="here", **question)
        await self._call.send(request)
        response = await self._call.receive()
        assert response.valid_host == "here"
        assert response.original_request == request
        return response

    async def files(self, **question: Any) -> list[str]:
        """The names of the files that are the answer."""
        response = await self.ask(**question)
        assert response.WhichOneof("message_response") == "file_descriptor_response", response
        return [
            descriptor_pb2.FileDescriptorProto.FromString(data).name
            for data in response.file_descriptor_response.file_descriptor_proto
        ]

    async def error(self, **question: Any) -> tuple[int, str]:
        response = await self.ask(**question)
        assert response.WhichOneof("message_response") == "error_response", response
        return response.error_response.error_code, response.error_response.error_message

    async def services(self) -> list[str]:
        response = await self.ask(list_services="")
        return [service.name for service in response.list_services_response.service]


@asynccontextmanager
async def asking(version: tuple[ModuleType, ModuleType], servicers: Sequence[Servicer]) -> AsyncIterator[Client]:
    messages, stubs = version
    async with (
        open_channel_pair(*servicers) as (channel, _),
        stubs.ServerReflectionStub(channel).ServerReflectionInfo() as call,
    ):
        yield Client(messages, call)
        await call.done_sending()
        with pytest.raises(trio.EndOfChannel):
            await call.receive()


@pytest.mark.parametrize("version", BOTH)
async def test_services(version: Any, autojump_clock: Clock) -> None:
    async with asking(version, with_reflection([HealthServicer(), Echo()])) as client:
        assert await client.services() == [
            "echo.Echo",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        ]


async def test_one_version_alone(autojump_clock: Clock) -> None:
    async with asking(V1, [ReflectionServicer([Echo()])]) as client:
        assert await client.services() == ["echo.Echo", "grpc.reflection.v1.ServerReflection"]
    async with asking((v1alpha, stubs_v1alpha), [ReflectionV1AlphaServicer([])]) as client:
        assert await client.services() == ["grpc.reflection.v1alpha.ServerReflection"]
    async with open_channel_pair(ReflectionServicer([])) as (channel, _):
        with pytest.raises(RpcError) as caught:
            async with stubs_v1alpha.ServerReflectionStub(channel).ServerReflectionInfo() as call:
                await call.receive()
        assert caught.value.code is StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("version", BOTH)
async def test_a_file_of_generated_modules(version: Any, autojump_clock: Clock) -> None:
    async with asking(version, with_reflection([Echo(), HealthServicer()])) as client:
        assert await client.files(file_by_filename="echo.proto") == ["echo.proto"]
        for symbol in ("echo.Echo", "echo.Echo.Unary", "echo.EchoRequest", "echo.EchoReply.count"):
            assert await client.files(file_containing_symbol=symbol) == ["echo.proto"]
        # Ours have the names that the contract gives them, and a pool of their own.
        health = "grpc/health/v1/health.proto"
        assert await client.files(file_by_filename=health) == [health]
        for symbol in ("grpc.health.v1.Health.Watch", "grpc.health.v1.HealthCheckResponse.ServingStatus"):
            assert await client.files(file_containing_symbol=symbol) == [health]
        for name in ("v1", "v1alpha"):
            assert await client.files(file_containing_symbol=f"grpc.reflection.{name}.ServerReflection") == [
                f"grpc/reflection/{name}/reflection.proto"
            ]


async def test_a_standard_service_whose_file_imports_others(autojump_clock: Clock) -> None:
    async with asking(V1, with_reflection([OrcaServicer(MetricRecorder())])) as client:
        assert set(await client.files(file_containing_symbol="xds.service.orca.v3.OpenRcaService")) == {
            "xds/service/orca/v3/orca.proto",
            "xds/data/orca/v3/orca_load_report.proto",
            "google/protobuf/duration.proto",
        }


async def test_a_file_is_what_was_generated_from(autojump_clock: Clock) -> None:
    async with asking(V1, with_reflection([Echo()])) as client:
        response = await client.ask(file_by_filename="echo.proto")
    (data,) = response.file_descriptor_response.file_descriptor_proto
    file = descriptor_pb2.FileDescriptorProto.FromString(data)
    assert [method.name for method in file.service[0].method] == ["Unary", "ServerStream", "ClientStream", "Bidi"]


ALL = ["zoo/top.proto", "left.proto", "right.proto", "base.proto"]


@pytest.mark.parametrize("where", ["given", "of the servicer"])
@pytest.mark.parametrize("version", BOTH)
async def test_a_pool_of_ones_own(version: Any, where: str, pool: Any, autojump_clock: Clock) -> None:
    servicers = with_reflection([Echo()], pool=pool) if where == "given" else with_reflection([Keeper(pool), Echo()])
    async with asking(version, servicers) as client:
        assert ("zoo.Keeper" in await client.services()) == (where != "given")
        assert await client.files(file_by_filename="zoo/top.proto") == ALL
        assert await client.files(file_by_filename="right.proto") == ["right.proto", "base.proto"]
        for symbol in (
            "zoo.Keeper",
            "zoo.Keeper.Feed",
            "zoo.Animal",
            "zoo.Animal.legs",
            "zoo.Animal.how",
            "zoo.Animal.Nest",
            "zoo.Animal.Nest.deep",
            "zoo.Animal.Nest.Kind",
            "zoo.Animal.Nest.GROUND",
            "zoo.Size",
            "zoo.SMALL",
            "zoo.top",
        ):
            assert await client.files(file_containing_symbol=symbol) == ALL, symbol
        # The default pool is there as well.
        assert await client.files(file_containing_symbol="echo.Echo.Bidi") == ["echo.proto"]


@pytest.mark.parametrize("version", BOTH)
async def test_extensions(version: Any, pool: Any, autojump_clock: Clock) -> None:
    async with asking(version, with_reflection([Keeper(pool)])) as client:
        response = await client.ask(all_extension_numbers_of_type="base.Base")
        numbers = response.all_extension_numbers_response
        assert (numbers.base_type_name, list(numbers.extension_number)) == ("base.Base", [100, 101, 150])
        response = await client.ask(all_extension_numbers_of_type="zoo.Animal")
        numbers = response.all_extension_numbers_response
        assert (numbers.base_type_name, list(numbers.extension_number)) == ("zoo.Animal", [])
        assert await client.files(file_containing_extension=("base.Base", 100)) == ALL
        assert await client.files(file_containing_extension=("base.Base", 101)) == ALL
        assert await client.files(file_containing_extension=("base.Base", 150)) == ["right.proto", "base.proto"]


NOT_FOUND = StatusCode.NOT_FOUND.value


@pytest.mark.parametrize("version", BOTH)
async def test_errors_leave_the_stream_open(version: Any, pool: Any, autojump_clock: Clock) -> None:
    async with asking(version, with_reflection([Keeper(pool)])) as client:
        assert await client.error(file_by_filename="nope.proto") == (NOT_FOUND, "not found: nope.proto")
        for symbol in ("zoo.Nobody", "zoo.Keeper.Nothing", "zoo.Animal.nothing", "zoo", "", ".", "Ä.\x00"):
            assert await client.error(file_containing_symbol=symbol) == (NOT_FOUND, f"not found: {symbol}")
        for extension in (("base.Base", 102), ("base.Base", -1), ("zoo.Nobody", 100)):
            code, message = await client.error(file_containing_extension=extension)
            assert (code, message) == (NOT_FOUND, f"not found: {extension[0]}, {extension[1]}")
        assert await client.error(all_extension_numbers_of_type="zoo.Nobody") == (NOT_FOUND, "not found: zoo.Nobody")
        assert await client.error() == (StatusCode.INVALID_ARGUMENT.value, "unknown kind of question")
        assert "zoo.Keeper" in await client.services()


async def test_many_questions_at_once(autojump_clock: Clock) -> None:
    messages = v1
    async with (
        open_channel_pair(*with_reflection([Echo()])) as (channel, _),
        stubs_v1.ServerReflectionStub(channel).ServerReflectionInfo() as call,
    ):
        names = [name for name, _ in zip(itertools.cycle(["echo.proto", "nope.proto"]), range(500), strict=False)]
        for name in names:
            await call.send(messages.ServerReflectionRequest(file_by_filename=name))
        await call.done_sending()
        responses = [response async for response in call]
    assert [response.original_request.file_by_filename for response in responses] == names
    assert [response.HasField("error_response") for response in responses] == [False, True] * 250


async def test_a_pool_over_a_database(autojump_clock: Clock) -> None:
    database = descriptor_database.DescriptorDatabase()
    for file in files():
        database.Add(file)
    broken = files()[0]
    broken.name = "broken.proto"
    broken.dependency.append("missing.proto")
    broken.package = "broken"
    database.Add(broken)
    pool = descriptor_pool.DescriptorPool(database)
    async with asking(V1, with_reflection([Echo()], pool=pool)) as client:
        # Methods first: nothing has been loaded yet.
        assert await client.files(file_containing_symbol="zoo.Keeper.Feed") == ALL
        assert await client.files(file_by_filename="left.proto") == ["left.proto", "base.proto"]
        assert await client.error(file_by_filename="broken.proto") == (NOT_FOUND, "not found: broken.proto")
        assert await client.files(file_by_filename="echo.proto") == ["echo.proto"]


@pytest.fixture
def old_health() -> descriptor_pool.DescriptorPool:
    """A pool with the file of FILES, and with a health service of other contents, like that of grpcio."""
    pool = descriptor_pool.DescriptorPool()
    health = """
        name: "grpc_health/v1/health.proto" package: "grpc.health.v1" syntax: "proto3"
        message_type { name: "HealthCheckRequest" } message_type { name: "HealthCheckResponse" }
        service {
          name: "Health"
          method {
            name: "Check" input_type: ".grpc.health.v1.HealthCheckRequest"
            output_type: ".grpc.health.v1.HealthCheckResponse"
          }
        }
    """
    for file in [*files(), text_format.Parse(health, descriptor_pb2.FileDescriptorProto())]:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


async def test_what_is_served_goes_before_its_namesakes(old_health: Any, autojump_clock: Clock) -> None:
    ours, theirs = "grpc/health/v1/health.proto", "grpc_health/v1/health.proto"
    symbols = ("grpc.health.v1.Health", "grpc.health.v1.Health.List", "grpc.health.v1.HealthCheckRequest")
    async with asking(V1, with_reflection([Keeper(old_health), HealthServicer()])) as client:
        for symbol in symbols:
            assert await client.files(file_containing_symbol=symbol) == [ours]
        # It is there, if somebody asks for it and for no other.
        assert await client.files(file_by_filename=theirs) == [theirs]
    async with asking(V1, with_reflection([Keeper(old_health)])) as client:
        assert await client.files(file_containing_symbol="grpc.health.v1.Health") == [theirs]
    # But a pool that is given is given on purpose.
    async with asking(V1, with_reflection([HealthServicer()], pool=old_health)) as client:
        assert await client.files(file_containing_symbol="grpc.health.v1.Health") == [theirs]


async def test_a_file_of_services_alone_goes_before_its_namesakes(pool: Any, autojump_clock: Clock) -> None:
    other = descriptor_pb2.FileDescriptorProto(name="other.proto", package="grpc.testing", syntax="proto3")
    other.service.add(name="TestService")
    pool.AddSerializedFile(other.SerializeToString())
    async with asking(V1, with_reflection([Keeper(pool), InteropServicer()])) as client:
        folder = "tests/interop/standard"
        assert await client.files(file_containing_symbol="grpc.testing.TestService") == [
            f"{folder}/{name}.proto" for name in ("testing", "empty", "messages")
        ]


@pytest.mark.slow
def test_services_whose_messages_are_all_elsewhere() -> None:
    """Nobody has to import the module of the file that declares them."""
    script = """
from trio_grpc.reflection._catalogue import Catalogue
from tests.interop.standard.testing_trio_grpc import TestServiceServicer as servicer
catalogue = Catalogue(None)
catalogue.add(servicer.__trio_grpc_methods__, servicer.__trio_grpc_pb2__)
assert len(catalogue.file_of_symbol("grpc.testing.TestService.EmptyCall")) == 3
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


async def test_services_without_descriptors_are_listed(autojump_clock: Clock) -> None:
    class Plain(Servicer):
        __trio_grpc_methods__: ClassVar[dict[str, Any]] = {
            "Say": Method("plain.Plain", "Say", Cardinality.UNARY_UNARY, dict, dict)
        }

    async with asking(V1, [ReflectionServicer([Plain()])]) as client:
        assert await client.services() == ["grpc.reflection.v1.ServerReflection", "plain.Plain"]
        assert await client.error(file_containing_symbol="plain.Plain") == (NOT_FOUND, "not found: plain.Plain")


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="servicer must be an instance of a generated"):
        with_reflection([Echo])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="servicer must be an instance of a generated"):
        with_reflection(["echo.Echo"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="pool must be a DescriptorPool, not list"):
        with_reflection([Echo()], pool=[])  # type: ignore[arg-type]


async def test_the_servicers_come_out_as_they_went_in(autojump_clock: Clock) -> None:
    echo = Echo()
    servicers = with_reflection(one for one in [echo])
    assert servicers[0] is echo
    assert [type(one) for one in servicers[1:]] == [ReflectionServicer, ReflectionV1AlphaServicer]
    assert issubclass(ReflectionServicer, trio_grpc.Servicer)
