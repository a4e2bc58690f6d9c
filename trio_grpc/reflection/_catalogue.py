"""What a server serves, as descriptors: names of services, and the files that define what they speak of.

It looks things up in protobuf's descriptor pools and knows nothing of the service that asks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool

from trio_grpc._method import Method


class Catalogue:
    """Services and their files.

    Args:
        pool: where descriptors are looked up first; None if only those pools are asked that the services' messages
            are in.
    """

    def __init__(self, pool: DescriptorPool | None) -> None:
        # As lists: there are few, and pools need not be hashable.
        self._pools: list[Any] = [] if pool is None else [pool]
        self._services: set[str] = set()

    def add(self, methods: Mapping[str, Method[Any, Any]]) -> None:
        """Add the services of these methods."""
        for method in methods.values():
            self._services.add(method.service)
            for message_type in (method.request_type, method.response_type):
                # Codecs may have other messages than protobuf's.
                descriptor = getattr(message_type, "DESCRIPTOR", None)
                pool = getattr(getattr(descriptor, "file", None), "pool", None)
                if pool is not None and not any(pool is known for known in self._pools):
                    self._pools.append(pool)

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
        for found in self._search(look_up):
            return found
        raise KeyError(key)

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
    """Serialize a file and everything that it imports, directly or not, each once."""
    seen = {file.name}
    pending = deque([file])
    serialized = []
    while pending:
        one = pending.popleft()
        serialized.append(one.serialized_pb)
        for imported in one.dependencies:
            if imported.name not in seen:
                seen.add(imported.name)
                pending.append(imported)
    return serialized
