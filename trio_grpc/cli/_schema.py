"""What a server's services look like: asked by reflection, or read from files."""

from __future__ import annotations

import abc
import difflib
import importlib
import tempfile
from collections.abc import Callable, Sequence
from functools import wraps
from graphlib import CycleError
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from trio_grpc._channel import Channel
from trio_grpc._metadata import MetadataLike
from trio_grpc._method import Cardinality, Method
from trio_grpc._status import RpcError, StatusCode
from trio_grpc.cli._failure import ExitCode, Failure, check_text, rpc_failure
from trio_grpc.reflection._client import ReflectionClient, in_import_order

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


class Undescribed(Failure):
    """A service that is there, but has no description."""


class Schema(abc.ABC):
    """Knows services, methods and messages by name."""

    pool: Any

    @abc.abstractmethod
    async def services(self) -> list[str]:
        """Return the full names of all services, in order.

        Raises:
            Failure: nobody could tell.
        """

    @abc.abstractmethod
    async def load(self, symbol: str) -> bool:
        """Have a symbol in `pool`; False if it is not known.

        Raises:
            Failure: nobody could tell.
        """

    async def find_service(self, name: str) -> Any:
        """Return the descriptor of a service.

        Raises:
            Failure: there is none of this name; the line has those that are near.
        """
        if await self.load(check_text(name)):
            try:
                return self.pool.FindServiceByName(name)
            except KeyError:
                pass
        raise await self._unknown("service", name)

    async def find_method(self, name: str) -> Method[Any, Any]:
        """Return a method: ``package.Service/Method``, or with a dot for the slash.

        Raises:
            Failure: there is none of this name; the line has those that are near.
        """
        service_name, separator, method_name = check_text(name).strip("/").rpartition("/")
        if not separator:
            service_name, separator, method_name = name.rpartition(".")
        if not service_name or not method_name:
            raise Failure(f"{name!r} is no method: write SERVICE/METHOD, as in pkg.Greeter/SayHello", ExitCode.USAGE)
        service = await self.find_service(service_name)
        method = service.methods_by_name.get(method_name)
        if method is None:
            raise Failure(f"{service_name} has no method {method_name!r}{_near(method_name, service.methods_by_name)}")
        return Method(
            service=service_name,
            name=method_name,
            cardinality=Cardinality.of(bool(method.client_streaming), bool(method.server_streaming)),
            request_type=message_factory.GetMessageClass(method.input_type),
            response_type=message_factory.GetMessageClass(method.output_type),
        )

    async def find_symbol(self, name: str) -> Any:
        """Return the descriptor of a service, method, message or enum.

        Raises:
            Failure: there is none of this name; the line has services that are near.
        """
        name = check_text(name).strip("/").replace("/", ".")
        if await self.load(name):
            for find in (
                self.pool.FindServiceByName,
                self.pool.FindMessageTypeByName,
                self.pool.FindEnumTypeByName,
                self.pool.FindMethodByName,
            ):
                try:
                    return find(name)
                except KeyError:
                    continue
        raise await self._unknown("symbol", name)

    async def _unknown(self, kind: str, name: str) -> Failure:
        services = await self.services()
        if name in services:
            # One without a .proto file, or whose file the server was not told of.
            return Undescribed(f"{name} is listed, but not described: nobody knows its methods and messages")
        return Failure(f"unknown {kind} {name!r}{_near(name, services)}")


class ServerSchema(Schema):
    """Asks the server, by reflection."""

    def __init__(self, channel: Channel, timeout: float, metadata: MetadataLike | None = None) -> None:
        self._client = ReflectionClient(channel, timeout=timeout, metadata=metadata)
        self.pool = self._client.pool
        self._target = channel.target

    async def services(self) -> list[str]:
        try:
            return await self._client.list_services()
        except RpcError as error:
            raise self._failure(error) from error

    async def load(self, symbol: str) -> bool:
        try:
            await self._client.load_symbol(symbol)
        except RpcError as error:
            if error.code is StatusCode.NOT_FOUND:
                return False
            raise self._failure(error) from error
        except ValueError as error:
            raise Failure(str(error)) from error
        return True

    def _failure(self, error: RpcError) -> Failure:
        if error.code is StatusCode.UNIMPLEMENTED:
            return Failure(
                f"{self._target} has no reflection: describe the service with --proto FILE or --descriptors FILE",
                ExitCode.RPC + StatusCode.UNIMPLEMENTED.value,
            )
        return rpc_failure(error, "reflection")


class FileSchema(Schema):
    """Knows what a set of .proto files says."""

    def __init__(self, files: Any) -> None:
        self.pool: Any = descriptor_pool.DescriptorPool()
        self._services: list[str] = []
        try:
            # protoc's order is that of imports; other tools' sets need not be.
            ordered = in_import_order({file.name: file for file in files.file})
        except CycleError as error:
            raise Failure(f"the files import each other: {', '.join(sorted(set(error.args[1])))}") from error
        add: Any = self.pool.AddSerializedFile  # protobuf's stubs have no types for it
        for file in ordered:
            try:
                add(file.SerializeToString())
            except TypeError as error:
                raise Failure(f"{file.name} cannot be used: {error}") from error
            prefix = f"{file.package}." if file.package else ""
            self._services.extend(prefix + service.name for service in file.service)

    async def services(self) -> list[str]:
        return sorted(self._services)

    async def load(self, symbol: str) -> bool:
        try:
            self.pool.FindFileContainingSymbol(symbol)
        except KeyError:
            return False
        return True


@attrs.frozen
class SchemaOptions:
    """Where the description of services comes from; by reflection where nothing is given.

    Attributes:
        protos: .proto files.
        include: folders in which these, and what they import, are looked for.
        descriptors: files with a ``FileDescriptorSet``, as ``protoc --descriptor_set_out --include_imports`` makes.
    """

    protos: tuple[str, ...]
    include: tuple[str, ...]
    descriptors: tuple[str, ...]

    @property
    def by_reflection(self) -> bool:
        """Whether the server is asked."""
        return not self.protos and not self.descriptors

    def open(self, channel: Channel | None, timeout: float, metadata: MetadataLike | None = None) -> Schema:
        """Return the schema.

        Args:
            channel: to the server that is asked; None where there are files.
            timeout: seconds for each question.
            metadata: for questions.

        Raises:
            Failure: a file cannot be used.
        """
        if self.by_reflection:
            assert channel is not None
            return ServerSchema(channel, timeout, metadata)
        files = descriptor_pb2.FileDescriptorSet()
        for path in self.descriptors:
            try:
                files.MergeFromString(Path(path).read_bytes())
            except OSError as error:
                raise Failure(f"cannot read {path}: {error.strerror}") from error
            except Exception as error:  # protobuf's error, which has no public name in every version
                raise Failure(f"{path} is no set of descriptors: {error}") from error
        if self.protos:
            files.MergeFrom(_compile(self.protos, self.include))
        unique = {file.name: file for file in files.file}
        return FileSchema(descriptor_pb2.FileDescriptorSet(file=unique.values()))


def schema_options(command: CommandT) -> CommandT:
    """Add the options about descriptions to a command, which gets a `SchemaOptions` as its argument ``schema``."""

    @click.option("--proto", "protos", multiple=True, metavar="FILE", help="A .proto file; the server is not asked.")
    @click.option("-I", "--include", multiple=True, metavar="DIR", help="Where .proto files and their imports are.")
    @click.option("--descriptors", multiple=True, metavar="FILE", help="A FileDescriptorSet; the server is not asked.")
    @wraps(command)
    def with_schema(
        *args: Any, protos: tuple[str, ...], include: tuple[str, ...], descriptors: tuple[str, ...], **options: Any
    ) -> Any:
        return command(*args, schema=SchemaOptions(protos, include, descriptors), **options)

    return with_schema  # type: ignore[return-value]  # the same, but for its arguments


def _compile(protos: Sequence[str], include: Sequence[str]) -> Any:
    """Return the descriptors of .proto files and their imports."""
    try:
        protoc: Any = importlib.import_module("grpc_tools.protoc")
    except ModuleNotFoundError as error:
        raise Failure("--proto needs protoc: install it with pip install 'trio-grpc[tools]'") from error
    for path in protos:
        if not Path(path).exists() and not any((Path(folder) / path).exists() for folder in include):
            raise Failure(f"there is no file {path}")
    folders = list(include) or sorted({str(Path(path).parent) for path in protos})
    bundled = Path(protoc.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "descriptors"
        arguments = [
            "protoc",
            *(f"-I{name}" for name in folders),
            f"-I{bundled}",
            f"--descriptor_set_out={out}",
            "--include_imports",
            *protos,
        ]
        # It explains itself on stderr.
        if protoc.main(arguments) != 0:
            raise Failure(f"protoc cannot read {', '.join(protos)}: see above")
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def _near(name: str, names: Sequence[str] | Any) -> str:
    """Return a hint for a name that is not known."""
    known = sorted(names)
    if not known:
        return ": there are none"
    last = name.rpartition(".")[2].lower()
    near = [one for one in known if one.rpartition(".")[2].lower() == last]
    near = near or difflib.get_close_matches(name, known, n=2, cutoff=0.5)
    if near:
        return f": did you mean {' or '.join(near)}?"
    shown = ", ".join(known[:8])
    return f": there are {shown}{' and more' if len(known) > 8 else ''}"


__all__ = ["FileSchema", "Schema", "SchemaOptions", "ServerSchema", "Undescribed", "schema_options"]
