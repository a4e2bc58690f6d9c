"""How long to wait between connection attempts (gRPC connection-backoff): pure arithmetic, with randomness injected."""

from __future__ import annotations

from collections.abc import Callable

import attrs


@attrs.frozen
class Backoff:
    """Exponential backoff with jitter; defaults are gRPC's (grpc-go backoff/backoff.go).

    Attributes:
        base: seconds after the first failure.
        multiplier: growth per failure.
        jitter: the share by which each wait varies either way.
        maximum: seconds at most, before jitter.
    """

    base: float = 1.0
    multiplier: float = 1.6
    jitter: float = 0.2
    maximum: float = 120.0

    def delay(self, failures: int, uniform: Callable[[float, float], float]) -> float:
        """Return the seconds to wait after ``failures`` failures in a row (at least 1)."""
        # Past some 11 failures the cap rules; bounding the exponent keeps the power a sane float for ever.
        wait = min(self.base * self.multiplier ** min(failures - 1, 64), self.maximum)
        return wait * uniform(1 - self.jitter, 1 + self.jitter)
