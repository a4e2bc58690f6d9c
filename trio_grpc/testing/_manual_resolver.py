"""A resolver that says what the test tells it to."""

from __future__ import annotations

from trio_grpc._balancing.endpoint import Endpoint
from trio_grpc._balancing.resolver import Resolution
from trio_grpc._balancing.service_config import ServiceConfigLike
from trio_grpc._balancing.target import ResolverTarget
from trio_grpc._options import check_kind


class ManualResolver:
    """Publishes what `update` and `fail` are given, to all channels that use it.

    Give it to `trio_grpc.open_channel` for a scheme; for ``dns`` it takes the place of the real one::

        resolver = ManualResolver("127.0.0.1:50051", "127.0.0.1:50052")
        async with trio_grpc.open_channel("test:///greeter", resolvers={"test": resolver}) as channel:
            ...
            resolver.update("127.0.0.1:50052")

    Args:
        endpoints: what it publishes first; without any, channels wait for `update` or `fail`.
        service_config: the service config that it publishes with them: one, or its JSON.

    Raises:
        ValueError: an address is malformed, or there is a service config without endpoints.

    Attributes:
        targets: what channels have asked for, in order: one for each time that a channel has left IDLE.
        requests: how often a channel has asked to resolve again.
    """

    def __init__(self, *endpoints: Endpoint | str, service_config: ServiceConfigLike | None = None) -> None:
        self.targets: list[ResolverTarget] = []
        self.requests: int = 0
        self._resolutions: set[Resolution] = set()
        self._published: tuple[tuple[Endpoint, ...], ServiceConfigLike | None] | Exception | None = None
        if endpoints:
            self.update(*endpoints, service_config=service_config)
        elif service_config is not None:
            raise ValueError("service_config is published with endpoints, and there are none")

    def update(self, *endpoints: Endpoint | str, service_config: ServiceConfigLike | None = None) -> None:
        """Publish these endpoints in the place of those before; a channel that comes later gets them too.

        Args:
            endpoints: the endpoints.
            service_config: published with them; a wrong one as well, which channels then refuse.

        Raises:
            ValueError: an address is malformed.
            TypeError: one is neither an `Endpoint` nor text.
        """
        published = tuple(Endpoint(one) if isinstance(one, str) else one for one in endpoints)
        for endpoint in published:
            check_kind("each endpoint", endpoint, Endpoint, " or str")
        self._publish((published, service_config))

    def fail(self, error: Exception) -> None:
        """Publish that resolving failed; a channel that comes later fails too.

        Args:
            error: why; channels without endpoints fail their calls with it.
        """
        self._publish(error)

    def _publish(self, published: tuple[tuple[Endpoint, ...], ServiceConfigLike | None] | Exception) -> None:
        self._published = published
        for resolution in self._resolutions:
            _tell(resolution, published)

    async def __call__(self, target: ResolverTarget, resolution: Resolution, /) -> None:
        self.targets.append(target)
        self._resolutions.add(resolution)
        try:
            if self._published is not None:
                _tell(resolution, self._published)
            while True:
                await resolution.wait_stale()
                self.requests += 1
        finally:
            self._resolutions.discard(resolution)


def _tell(resolution: Resolution, published: tuple[tuple[Endpoint, ...], ServiceConfigLike | None] | Exception) -> None:
    if isinstance(published, Exception):
        resolution.fail(published)
    else:
        endpoints, service_config = published
        resolution.update(endpoints, service_config)
