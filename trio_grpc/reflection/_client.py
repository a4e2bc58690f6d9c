"""The client of reflection: which services a server has, and the .proto files behind their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

import trio
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError

from trio_grpc._channel import Channel
from trio_grpc._metadata import MetadataLike
from trio_grpc._status import RpcError, StatusCode
from trio_grpc.reflection._v1 import reflection_pb2
from trio_grpc.reflection._v1.reflection_trio_grpc import ServerReflectionStub
from trio_grpc.reflection._v1alpha import reflection_pb2 as alpha_pb2
from trio_grpc.reflection._v1alpha.reflection_trio_grpc import ServerReflectionStub as AlphaStub

#: Files that one symbol may need. A server that answers with more and more must not keep us for ever.
_MOST_FILES = 10_000


class ReflectionClient:
    """Asks a server about itself, and keeps what it says in a descriptor pool of its own.

    Asks ``grpc.reflection.v1``, and ``v1alpha`` where a server has only that (gRPC's server reflection protocol).

    Args:
        channel: to the server; it must have the protobuf codec.
        timeout: seconds for each question.
        metadata: sent with each question.

    Attributes:
        pool: what was learnt. Never protobuf's default pool: another server may have other files of the same names.
    """

    def __init__(self, channel: Channel, *, timeout: float | None = None, metadata: MetadataLike | None = None) -> None:
        self.pool: Any = descriptor_pool.DescriptorPool()
        self._channel = channel
        self._timeout = timeout
        self._metadata = metadata
        self._alpha = False
        self._known: set[str] = set()

    async def list_services(self) -> list[str]:
        """Return the full names of the services, in order.

        Raises:
            RpcError: the call failed; UNIMPLEMENTED, the server has no reflection.
        """
        answer = await self._ask(list_services="*")
        return sorted(service.name for service in answer.list_services_response.service)

    async def load_symbol(self, symbol: str) -> None:
        """Load the file that defines a service, method, message or enum, and all that it imports, into the pool.

        Raises:
            RpcError: NOT_FOUND, the server does not know it; or the call failed.
            ValueError: the server's files do not fit together.
        """
        answer = await self._ask(file_containing_symbol=symbol)
        await self._load(answer.file_descriptor_response.file_descriptor_proto)

    async def _load(self, serialized: Sequence[bytes]) -> None:
        """Load files, after those that they import."""
        files: dict[str, Any] = {}

        def take(answered: Sequence[bytes]) -> None:
            for data in answered:
                try:
                    file = descriptor_pb2.FileDescriptorProto.FromString(data)
                except (DecodeError, UnicodeDecodeError) as error:  # the pure-Python protobuf raises the latter
                    raise ValueError(f"the server's reflection gave what is no file: {error}") from error
                files.setdefault(file.name, file)
            if len(files) > _MOST_FILES:
                raise ValueError(f"the server's reflection gave more than {_MOST_FILES} files for one symbol")

        take(serialized)
        missing = [name for file in files.values() for name in file.dependency]
        while missing:
            name = missing.pop()
            if name in files or name in self._known:
                continue
            try:
                take((await self._ask(file_by_filename=name)).file_descriptor_response.file_descriptor_proto)
            except RpcError as error:
                own = _own_file(name)
                if error.code is not StatusCode.NOT_FOUND or own is None:
                    raise
                # Servers need not have the files that protobuf itself brings.
                files[name] = own
            if name not in files:
                raise ValueError(f"the server's reflection did not give {name}, which it was asked for")
            missing.extend(files[name].dependency)
        try:
            ordered = in_import_order(files)
        except CycleError as error:
            raise ValueError(f"the server's reflection has files that import each other: {error.args[1][0]}") from error
        for file in ordered:
            if file.name in self._known:
                continue
            try:
                self.pool.AddSerializedFile(file.SerializeToString())
            except TypeError as error:
                name = file.name
                raise ValueError(f"the server's reflection gave a {name} that is no valid file: {error}") from error
            self._known.add(file.name)

    async def _ask(self, **question: str) -> Any:
        """Return the answer to one question.

        Raises:
            RpcError: as the server's answer says.
        """
        if not self._alpha:
            try:
                return await self._converse(ServerReflectionStub, reflection_pb2, question)
            except RpcError as error:
                if error.code is not StatusCode.UNIMPLEMENTED:
                    raise
                self._alpha = True
        return await self._converse(AlphaStub, alpha_pb2, question)

    async def _converse(self, stub: Any, messages: Any, question: dict[str, str]) -> Any:
        async with stub(self._channel).ServerReflectionInfo(timeout=self._timeout, metadata=self._metadata) as call:
            try:
                await call.send(messages.ServerReflectionRequest(**question))
                await call.done_sending()
            except trio.BrokenResourceError:
                # The call has ended, and `receive` knows how.
                pass
            try:
                answer = await call.receive()
            except trio.EndOfChannel as end:
                raise RpcError(StatusCode.INTERNAL, "the server's reflection gave no answer") from end
            async for _ in call:
                # Its status is part of the answer.
                pass
        if answer.HasField("error_response"):
            error = answer.error_response
            known = StatusCode.OK < error.error_code <= StatusCode.UNAUTHENTICATED
            raise RpcError(StatusCode(error.error_code) if known else StatusCode.UNKNOWN, error.error_message)
        return answer


def in_import_order(files: Mapping[str, Any]) -> list[Any]:
    """Return files, each after those of them that it imports: a descriptor pool takes them in no other order.

    Args:
        files: ``FileDescriptorProto`` messages by their names.

    Raises:
        graphlib.CycleError: some import each other.
    """
    sorter = TopologicalSorter({name: [one for one in file.dependency if one in files] for name, file in files.items()})
    return [files[name] for name in sorter.static_order()]


def _own_file(name: str) -> Any:
    """Return a file that protobuf brings, None if it brings none of this name."""
    if not name.startswith("google/protobuf/"):
        return None
    try:
        default: Any = descriptor_pool.Default  # protobuf's stubs have no types for it
        found = default().FindFileByName(name)
    except KeyError:
        return None
    file = descriptor_pb2.FileDescriptorProto()
    found.CopyToProto(file)
    return file


__all__ = ["ReflectionClient", "in_import_order"]
