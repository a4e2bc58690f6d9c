"""In which order a client tries the addresses of one name, and how soon the next one (RFC 8305, gRFC A61)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from trio_grpc._balancing.endpoint import Endpoint
from trio_grpc._balancing.target import TcpTarget

#: Seconds after which the next address is tried, the one before it being silent (gRFC A61; RFC 8305, 5).
CONNECTION_ATTEMPT_DELAY = 0.25


def interleave(endpoints: Iterable[Endpoint]) -> list[Endpoint]:
    """Return the endpoints, each once, with address families taking turns (RFC 8305, 4).

    The family of the first comes first; within a family the order stays. Names, unix sockets and endpoints with a
    ``connect`` of their own make one family together.
    """
    families: dict[int | None, list[Endpoint]] = {}
    for endpoint in dict.fromkeys(endpoints):
        families.setdefault(_family(endpoint), []).append(endpoint)
    queues = [deque(family) for family in families.values()]
    order: list[Endpoint] = []
    while queues:
        order += [queue.popleft() for queue in queues]
        queues = [queue for queue in queues if queue]
    return order


def _family(endpoint: Endpoint) -> int | None:
    location = endpoint._location
    return location.version if isinstance(location, TcpTarget) else None
