"""What a server serves, as descriptors: names of services, and the files that define what they speak of.

It looks things up in protobuf's descriptor pools and knows nothing of the service that asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool

from trio_grpc._method import Method


class Catalogue:
    """Services and their files.

    One name may be found in more than one pool: a program can have another health.proto than ours in the default pool.
    So things are looked up in the pool that the user gives, then in the files of the services and what those import,
    and only then in all else that the pools of the services have.

    Args:
        pool: what the user gives, if anything.
    """

    def __init__(self, pool: DescriptorPool | None) -> None:
        self._own_pool: Any = pool
        # As a list: there are few, and pools need not be hashable.
        self._pools: list[Any] = [] if pool is None else [pool]
        self._services: set[str] = set()
        self._served_files: dict[str, FileDescriptor] = {}

    def add(self, methods: Mapping[str, Method[Any, Any]], module: ModuleType | None) -> None:
        """Add the services of these methods.

        Args:
            methods: the methods.
            module: the `_pb2` module that describes the services, if there is one.
        """
        self._services.update(method.service for method in methods.values())
        # Codecs may have other messages than protobuf's.
        types = [one for method in methods.values() for one in (method.request_type, method.response_type)]
        descriptors = [getattr(module, "DESCRIPTOR", None)]
        descriptors += [getattr(getattr(message_type, "DESCRIPTOR", None), "file", None) for message_type in types]
        for descriptor in descriptors:
            if not isinstance(descriptor, FileDescriptor):
                continue
            for file in _imports(descriptor):
                self._served_files.setdefault(file.name, file)
            if not any(descriptor.pool is known for known in self._pools):
                self._pools.append(descriptor.pool)

    def services(self) -> list[str]:
        """The full names of all services, in alphabetical order."""
        return sorted(self._services)

    def file(self, name: str) -> list[bytes]:
        """The file of this name and what it imports, as all files here: serialized, the one asked for first.

        Raises:
            KeyError: there is none.
        """
        return _with_imports(self._find(name, lambda pool: pool.FindFileByName(name)))

    def file_of_symbol(self, symbol: str) -> list[bytes]:
        """The file that defines a service, method, message, enum, enum value, field, oneof or extension.

        Args:
            symbol: its full name.

        Raises:
            KeyError: there is none.
        """
        return _with_imports(self._find(symbol, lambda pool: _find_symbol(pool, symbol)))

    def file_of_extension(self, message: str, number: int) -> list[bytes]:
        """The file that defines the extension of a message with this number.

        Raises:
            KeyError: there is none.
        """

        def find(pool: Any) -> Any:
            return pool.FindExtensionByNumber(pool.FindMessageTypeByName(message), number).file

        return _with_imports(self._find(f"{message}, {number}", find))

    def extension_numbers(self, message: str) -> list[int]:
        """The numbers of all known extensions of a message, in order.

        Raises:
            KeyError: there is no such message.
        """
        # All pools: a message may be extended where it is not served.
        found = list(self._search(lambda pool: pool.FindAllExtensions(pool.FindMessageTypeByName(message))))
        if not found:
            raise KeyError(message)
        return sorted({extension.number for extensions in found for extension in extensions})

    def _find(self, key: str, look_up: Callable[[Any], Any]) -> Any:
        """The file that a look-up finds."""
        others = []
        for found in self._search(look_up):
            served = self._served_files.get(found.name)
            if found.pool is self._own_pool or (served is not None and served.pool is found.pool):
                return found
            others.append(found)
        if not others:
            raise KeyError(key)
        return others[0]

    def _search(self, look_up: Callable[[Any], Any]) -> Iterator[Any]:
        """What the pools have, in their order."""
        for pool in self._pools:
            try:
                found = look_up(pool)
            except (KeyError, TypeError):
                # TypeError: a pool over a database of files fails to load one, that of a broken file, say.
                continue
            yield found


def _find_symbol(pool: Any, symbol: str) -> Any:
    # Pools do not know methods by their names, and the pure-Python ones no oneofs.
    scope, _, name = symbol.rpartition(".")
    parts: Iterable[tuple[Callable[[str], Any], str]] = (
        (pool.FindServiceByName, "methods_by_name"),
        (pool.FindMessageTypeByName, "oneofs_by_name"),
    )
    for find, members in parts:
        try:
            parent = find(scope)
        except KeyError:
            continue
        if name in getattr(parent, members):
            return parent.file
    return pool.FindFileContainingSymbol(symbol)


def _with_imports(file: FileDescriptor) -> list[bytes]:
    return [one.serialized_pb for one in _imports(file)]


def _imports(file: FileDescriptor) -> list[FileDescriptor]:
    """A file and everything that it imports, directly or not, each once."""
    found = [file]
    seen = {file.name}
    # The list grows while it is walked through.
    for one in found:
        for imported in one.dependencies:
            if imported.name not in seen:
                seen.add(imported.name)
                found.append(imported)
    return found
