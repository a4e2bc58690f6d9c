"""What finds the endpoints behind a target: the protocol between resolvers and channels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, cast

import trio

from trio_grpc._balancing.endpoint import Endpoint
from trio_grpc._balancing.json_fields import ServiceConfigError
from trio_grpc._balancing.service_config import ServiceConfig, ServiceConfigLike, to_service_config
from trio_grpc._balancing.target import ResolverTarget


class Resolution:
    """Where a resolver puts what it finds, and learns that it may be out of date. Made by the channel.

    Args:
        on_update: takes each list of endpoints, with the service config that was published with it, or what is wrong
            with that.
        on_error: takes each failure.
    """

    __slots__ = ("_on_error", "_on_update", "_stale", "updates")

    def __init__(
        self,
        on_update: Callable[[tuple[Endpoint, ...], ServiceConfig | ServiceConfigError | None], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._on_update = on_update
        self._on_error = on_error
        self._stale = trio.Event()
        #: How many lists were published; for the channel.
        self.updates: int = 0

    def update(
        self,
        endpoints: Iterable[Endpoint],
        service_config: ServiceConfigLike | ServiceConfigError | None = None,
    ) -> None:
        """Publish all endpoints that there are now, in the place of those published before.

        Args:
            endpoints: the endpoints.
            service_config: what the owner of the service asks of its clients: a config, or its JSON, or the error that
                the resolver has found in it. It goes before the one that the channel was opened with; None leaves that
                one in force. A wrong one is not used: the one before stays, and where there is none, it is as if
                resolving had failed (gRFC A21).

        Raises:
            TypeError: one of the endpoints is no `Endpoint`, or the service config is none of these.
        """
        if isinstance(endpoints, Endpoint):
            raise TypeError(
                "resolvers publish several Endpoint objects, as in update([endpoint]), not a single Endpoint"
            )
        published = tuple(endpoints)
        for endpoint in published:
            if not isinstance(endpoint, Endpoint):
                raise TypeError(f"resolvers publish Endpoint objects, not {type(endpoint).__name__}")
        config: ServiceConfig | ServiceConfigError | None
        try:
            if service_config is None or isinstance(service_config, ServiceConfigError):
                config = service_config
            else:
                config = to_service_config(service_config)
        except ServiceConfigError as error:
            config = error
        self.updates += 1
        self._on_update(published, config)

    def fail(self, error: Exception) -> None:
        """Publish that resolving failed. A channel that knows endpoints keeps them; one that does not fails its calls.

        To raise the error instead also ends the resolver, which the channel then starts again with backoff.

        Raises:
            TypeError: it is no `Exception`.
        """
        if not isinstance(cast("object", error), Exception):
            raise TypeError(f"resolvers fail with an exception, not {type(error).__name__}")
        self._on_error(error)

    async def wait_stale(self) -> None:
        """Wait until the channel asks for the endpoints to be resolved again, as it does when a connection fails.

        It may ask often, and asks at once where there are no endpoints or the service config is wrong: a resolver waits
        a while before it obeys.
        """
        await self._stale.wait()
        self._stale = trio.Event()

    def request(self) -> None:
        """Ask the resolver to resolve again, when it can; for the channel."""
        self._stale.set()


class Resolver(Protocol):
    """Finds the endpoints behind targets of one scheme: an async function, or an object that can be called like one.

    It is called when the channel leaves IDLE, runs as a task of the channel, and is cancelled when the channel goes
    IDLE or is closed. It may end when what it has published is for ever. When it raises, the error is published and the
    resolver is called again after a backoff.
    """

    async def __call__(self, target: ResolverTarget, resolution: Resolution, /) -> None:
        """Resolve ``target``, and publish what is found to ``resolution``.

        Args:
            target: what the channel was opened with, taken apart.
            resolution: takes lists of endpoints, or an error.
        """


__all__ = ["Resolution", "Resolver"]
