"""The ``weighted_round_robin`` policy: calls to each backend in turn, more to those that can do more (gRFC A58)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from math import inf, isfinite
from statistics import fmean
from typing import Any

import attrs
import trio

from trio_grpc._balancing.connect_to_all import ConnectToAllPolicy
from trio_grpc._balancing.json_fields import boolean, duration, number
from trio_grpc._balancing.load_report import LOAD_METADATA, LoadReport, read_load_report
from trio_grpc._balancing.policy import (
    CallEnd,
    LoadBalancingPolicy,
    Pick,
    Picker,
    PickInfo,
    PolicyContext,
    PolicyFactory,
)
from trio_grpc._balancing.subchannel import Subchannel
from trio_grpc._balancing.turns import Turns
from trio_grpc._options import check_seconds, flag

#: Weights are not looked at more often than this (gRFC A58).
_SHORTEST_UPDATE_PERIOD = 0.1
#: How far a weight may be from the mean of all: beyond, backends would starve on one odd report, or drown (grpc-java).
_MIN_RATIO, _MAX_RATIO = 0.1, 10.0


def _check_period(record: object, attribute: attrs.Attribute[Any], value: object) -> None:
    name = f"{type(record).__name__}.{attribute.name}"
    if not check_seconds(name, value) and attribute.name == "oob_reporting_period":
        raise ValueError(f"{name} must be more than 0 seconds")


def _check_penalty(record: object, attribute: attrs.Attribute[Any], value: object) -> None:
    name = f"{type(record).__name__}.{attribute.name}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not 0 <= value < inf:
        raise ValueError(f"{name} must be a number of 0 or more, got {value}")


@attrs.frozen(kw_only=True)
class WeightedRoundRobin:
    """The ``weighted_round_robin`` policy (gRFC A58), for ``load_balancing=`` of `open_channel`.

    The channel keeps a connection to every address, as with ``round_robin``. Backends report their load with their
    responses (gRFC A51; those of this library with `trio_grpc.orca`), and the weight of one is what it could serve:
    its queries per second, divided by how busy that makes it. A backend whose weight is not known counts as average. As
    long as less than two are known all get as many calls.

    Attributes:
        blackout_period: seconds for which a backend must have reported before its weight counts: after it has been
            connected to, and after its weight had expired.
        weight_expiration_period: seconds after which a weight counts no more if no new report comes.
        weight_update_period: seconds after which new reports change the shares; at least 0.1, less is taken as that.
        error_utilization_penalty: how much busier errors make a backend look: this times the part of its queries that
            fail is added to its utilization. 0 ignores errors.
        enable_oob_load_report: have backends report on a call of its own instead of with each response: for streams,
            which end seldom.
        oob_reporting_period: seconds between reports on that call; the backend may have them less often.

    Raises:
        TypeError: a value is of a wrong type.
        ValueError: a number is negative or NaN.
    """

    blackout_period: float = attrs.field(default=10.0, validator=_check_period)
    weight_expiration_period: float = attrs.field(default=180.0, validator=_check_period)
    weight_update_period: float = attrs.field(default=1.0, validator=_check_period)
    error_utilization_penalty: float = attrs.field(default=1.0, validator=_check_penalty)
    enable_oob_load_report: bool = attrs.field(default=False, validator=flag)
    oob_reporting_period: float = attrs.field(default=10.0, validator=_check_period)

    @classmethod
    def from_json(cls, config: Mapping[str, object]) -> WeightedRoundRobin:
        """Return the policy that a service config asks for (gRFC A58).

        Raises:
            ServiceConfigError: a field is wrong.
            ValueError: a number is negative.
        """
        defaults = cls()
        return cls(
            blackout_period=duration(config, "blackoutPeriod", defaults.blackout_period),
            weight_expiration_period=duration(config, "weightExpirationPeriod", defaults.weight_expiration_period),
            weight_update_period=duration(config, "weightUpdatePeriod", defaults.weight_update_period),
            error_utilization_penalty=number(config, "errorUtilizationPenalty", defaults.error_utilization_penalty),
            enable_oob_load_report=boolean(config, "enableOobLoadReport", defaults.enable_oob_load_report),
            oob_reporting_period=duration(config, "oobReportingPeriod", defaults.oob_reporting_period),
        )

    def __call__(self, context: PolicyContext) -> LoadBalancingPolicy:
        """Return the policy for one channel."""
        return WeightedRoundRobinPolicy(context, self)


class WeightedRoundRobinPolicy(ConnectToAllPolicy):
    """What `WeightedRoundRobin` does in one channel.

    Args:
        context: the channel.
        options: what the user has asked for.
        fraction: returns numbers from 0 to 1: how long a backend waits for its first turn.
    """

    def __init__(
        self, context: PolicyContext, options: WeightedRoundRobin, fraction: Callable[[], float] = random.random
    ) -> None:
        super().__init__(context)
        self._options = options
        self._backends: dict[Subchannel, _Backend] = {}
        self._ready: list[_Backend] = []
        #: One for all pickers: what is READY may change with every moment, and turns go on.
        self._turns: Turns[_Backend] = Turns(fraction)
        self._next_update = -inf

    def reconfigure(self, make_policy: PolicyFactory) -> bool:
        if not isinstance(make_policy, WeightedRoundRobin):
            return False
        self._options = make_policy
        for backend in self._backends.values():
            backend.configure(make_policy)
        self.renew_picker()
        return True

    def became_ready(self, subchannel: Subchannel) -> None:
        backend = self._backends.get(subchannel)
        if backend is None:
            backend = self._backends[subchannel] = _Backend(subchannel, self._options)
        backend.became_ready()

    def forget(self, subchannel: Subchannel) -> None:
        backend = self._backends.pop(subchannel, None)
        if backend is not None:
            backend.forget()

    def make_picker(self, ready: tuple[Subchannel, ...]) -> Picker:
        self._ready = [self._backends[subchannel] for subchannel in ready]
        self._update(trio.current_time())
        return self._pick

    def _pick(self, _: PickInfo) -> Pick:
        # No timer does this, which would tick for channels that nobody calls.
        now = trio.current_time()
        if now >= self._next_update:
            self._update(now)
        return self._turns.next().pick

    def _update(self, now: float) -> None:
        self._next_update = now + max(self._options.weight_update_period, _SHORTEST_UPDATE_PERIOD)
        weights = effective_weights([backend.weight(now) for backend in self._ready])
        self._turns.set_weights(dict(zip(self._ready, weights, strict=True)))


class _Backend:
    """What one backend has reported.

    Args:
        subchannel: leads there.
        options: how reports count.
    """

    def __init__(self, subchannel: Subchannel, options: WeightedRoundRobin) -> None:
        self._subchannel = subchannel
        self._options = options
        self._weight = 0.0
        self._last_report = -inf
        #: Since when it reports without a gap; inf while it does not.
        self._reporting_since = inf
        #: Seconds between reports on a call of their own, None where they come with other calls; and what ends that.
        self._period: float | None = None
        self._stop_watching: Callable[[], None] | None = None
        #: One for all calls.
        self.pick = Pick(subchannel, self._ended)
        self.configure(options)

    def configure(self, options: WeightedRoundRobin) -> None:
        """Reports come, and count, like this from now on."""
        self._options = options
        period = options.oob_reporting_period if options.enable_oob_load_report else None
        if period != self._period:
            self.forget()
            self._period = period
            if period is None:
                self._stop_watching = None
                self.pick = Pick(self._subchannel, self._ended)
            else:
                self._stop_watching = self._subchannel._watch_load(period, self.take)
                self.pick = Pick(self._subchannel)

    def became_ready(self) -> None:
        """There is a new connection: who knows what is at its other end."""
        self._reporting_since = inf

    def forget(self) -> None:
        """It is not on the list any more."""
        if self._stop_watching is not None:
            self._stop_watching()

    def _ended(self, end: CallEnd) -> None:
        data = end.trailing_metadata.get(LOAD_METADATA)
        if isinstance(data, bytes):
            self.take(data)

    def take(self, data: bytes | bytearray) -> None:
        """Take a report; what cannot be read, or says nothing of the load, is as good as none (gRFC A58)."""
        try:
            report = read_load_report(data)
        except ValueError:
            return
        weight = weight_of(report, self._options.error_utilization_penalty)
        if weight:
            now = trio.current_time()
            if self._reporting_since == inf or self._expired(now):
                self._reporting_since = now
            self._last_report = now
            self._weight = weight

    def weight(self, now: float) -> float:
        """Return what counts now, 0 while nothing does."""
        blackout = now - self._reporting_since < self._options.blackout_period
        return 0.0 if blackout or self._expired(now) else self._weight

    def _expired(self, now: float) -> bool:
        return now - self._last_report >= self._options.weight_expiration_period


def weight_of(report: LoadReport, error_utilization_penalty: float) -> float:
    """Return the queries per second that a backend could serve, as it reports its load; 0 if it does not say."""
    utilization = report.application_utilization if report.application_utilization > 0 else report.cpu_utilization
    if not (report.qps > 0 and utilization > 0):
        return 0.0
    if report.eps > 0:
        utilization += report.eps / report.qps * error_utilization_penalty
    weight = report.qps / utilization
    return weight if isfinite(weight) else 0.0


def effective_weights(weights: list[float]) -> list[float]:
    """Return the weights to take turns by: with an average one for each that is 0, and none too far from that.

    If less than two are above 0 all are the same.
    """
    if sum(weight > 0 for weight in weights) < 2:
        return [1.0] * len(weights)
    # As parts of the largest: a sum of the numbers that backends may send is not always a number.
    largest = max(weights)
    parts = [weight / largest for weight in weights]
    mean = fmean([part for part, weight in zip(parts, weights, strict=True) if weight > 0])
    return [
        min(max(part, mean * _MIN_RATIO), mean * _MAX_RATIO) if weight > 0 else mean
        for part, weight in zip(parts, weights, strict=True)
    ]


__all__ = ["WeightedRoundRobin"]
