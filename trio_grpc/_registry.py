"""Which channels and servers are open in this run of trio, so that channelz can list them; and the ids of everything.

A channel or server is here from its ``async with`` or `serve` to the end of that, and nowhere else: not in another run
of trio in the same process, whose tasks could not be asked anyway. It is held weakly, since a channel that was entered
by hand and dropped must still be found missing (`Channel`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from trio.lowlevel import RunVar

T = TypeVar("T")

_ids = count(1)


def new_id() -> int:
    """Return an id that nothing else in this process has; later ones are higher (gRFC A14)."""
    return next(_ids)


class Listing(Generic[T]):
    """All that is open of one kind.

    Args:
        name: of the kind, for debuggers.
    """

    def __init__(self, name: str) -> None:
        self._open: RunVar[WeakValueDictionary[int, T]] = RunVar(f"trio_grpc_open_{name}")

    def enter(self, id_: int, opened: T) -> None:
        """It is open from now on. The ids of what enters a run need not rise."""
        try:
            self._open.get()[id_] = opened
        except LookupError:
            self._open.set(WeakValueDictionary({id_: opened}))

    def leave(self, id_: int) -> None:
        """It is closed."""
        self._open.get().pop(id_, None)

    def __iter__(self) -> Iterator[T]:
        """Iterate over what is open now, in no order."""
        try:
            opened = self._open.get()
        except LookupError:
            return iter(())
        return iter(tuple(opened.values()))


# Their types are above this room.
channels: Listing[Any] = Listing("channels")
servers: Listing[Any] = Listing("servers")


__all__ = ["Listing", "channels", "new_id", "servers"]
