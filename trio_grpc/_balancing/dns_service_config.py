"""The service config that the owner of a name has put into DNS: a TXT record of ``_grpc_config.host`` (gRFC A2)."""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence

from trio_grpc._balancing.json_fields import ServiceConfigError
from trio_grpc._balancing.service_config_choice import choose_service_config

_logger = logging.getLogger("trio_grpc")


class DnsServiceConfig:
    """Looks up service configs, and chooses from each list of them for this client.

    Args:
        texts: looks up the TXT records of a name.
        hostname: of this machine.
        random_percentage: what decides whether a choice that is for some of the clients is for this one; drawn here if
            it is not given.
    """

    def __init__(
        self,
        texts: Callable[[str], Awaitable[Sequence[str]]],
        *,
        hostname: str | None = None,
        random_percentage: float | None = None,
    ) -> None:
        self._texts = texts
        self._hostname = socket.gethostname() if hostname is None else hostname
        # Once: a client does not change sides with each look-up.
        self._random_percentage = random.uniform(0, 100) if random_percentage is None else random_percentage

    async def look_up(self, host: str) -> Mapping[str, object] | ServiceConfigError | None:
        """Return the service config for clients of a host, or what is wrong with it; None where there is none.

        A look-up that fails is one that finds none: the addresses do not depend on it.
        """
        try:
            attributes = await self._texts(f"_grpc_config.{host}")
        except Exception as error:
            _logger.info("no service config for %s from DNS: %s", host, str(error) or type(error).__name__)
            return None
        try:
            return choose_service_config(attributes, hostname=self._hostname, random_percentage=self._random_percentage)
        except ServiceConfigError as error:
            return error
