"""Which service config holds for a channel: the resolver's, or the one that the channel was opened with (gRFC A21)."""

from __future__ import annotations

import logging

from trio_grpc._balancing.json_fields import ServiceConfigError
from trio_grpc._balancing.pick_first import PickFirst
from trio_grpc._balancing.policy import PolicyFactory
from trio_grpc._balancing.service_config import ServiceConfig

_logger = logging.getLogger("trio_grpc")


class ConfigInForce:
    """The service config of one channel, for as long as that lives.

    Args:
        target: the channel's, for messages.
        default: holds while the resolver publishes none.

    Attributes:
        config: what holds now; None: nothing is asked.
        resolved: the resolver has said once, without a fault, what holds, be it nothing.
    """

    def __init__(self, target: str, default: ServiceConfig | None) -> None:
        self.config = default
        self.resolved = False
        self._target = target
        self._default = default

    def take(self, published: ServiceConfig | ServiceConfigError | None) -> None:
        """Take what the resolver has published with its endpoints.

        Raises:
            ServiceConfigError: it is wrong, and there is none before it that could stay.
        """
        if isinstance(published, ServiceConfigError):
            if not self.resolved:
                raise published
            _logger.warning("%s: the resolver's new service config is refused: %s", self._target, published)
            return
        self.resolved = True
        config = self._default if published is None else published
        if config != self.config:
            # One that is equal changes nothing: what was derived from the other is still right.
            self.config = config

    @property
    def policy(self) -> PolicyFactory:
        """The load balancing policy."""
        policy = None if self.config is None else self.config.load_balancing
        return PickFirst() if policy is None else policy

    @property
    def health_service(self) -> str | None:
        """What backends are asked about (gRFC A17); None: nothing."""
        health_check = None if self.config is None else self.config.health_check
        return None if health_check is None else health_check.service_name

    @property
    def max_connections(self) -> int:
        """How many connections to each endpoint there may be (gRFC A105)."""
        scaling = None if self.config is None else self.config.connection_scaling
        return 1 if scaling is None else scaling.max_connections_per_subchannel
