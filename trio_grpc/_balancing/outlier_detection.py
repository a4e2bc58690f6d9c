"""The ``outlier_detection`` policy: backends whose calls fail more than those of the others get none for a while.

After gRFC A50, with the corrections that its implementations share. The policy is the channel of a child policy, which
does the balancing. It counts how the calls end that the child picks for, and lets the subchannels of an address that it
ejects look TRANSIENT_FAILURE to the child.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import sqrt
from typing import Any

import attrs
import trio

from trio_grpc._balancing.connectivity import ConnectivityState
from trio_grpc._balancing.endpoint import Endpoint
from trio_grpc._balancing.graceful_switch import GracefulSwitch
from trio_grpc._balancing.json_fields import duration, mapping, require, uint32, within
from trio_grpc._balancing.policy import (
    CallEnd,
    LoadBalancingPolicy,
    Pick,
    Picker,
    PickInfo,
    PolicyContext,
    PolicyFactory,
    check_factory,
)
from trio_grpc._balancing.subchannel import ConnectFailed, Subchannel
from trio_grpc._options import check_seconds, int_between
from trio_grpc._status import StatusCode

_logger = logging.getLogger("trio_grpc")

_IDLE = ConnectivityState.IDLE
_READY = ConnectivityState.READY
_FAILED = ConnectivityState.TRANSIENT_FAILURE

#: Looks are not taken more often than this, which would keep a channel busy with nothing else (as with weights, A58).
_SHORTEST_INTERVAL = 0.1
#: Counts in a service config are unsigned 32-bit numbers.
_MOST = 2**32 - 1


def _seconds(record: object, attribute: attrs.Attribute[Any], value: object) -> None:
    check_seconds(f"{type(record).__name__}.{attribute.name}", value)


def _interval(record: object, attribute: attrs.Attribute[Any], value: object) -> None:
    name = f"{type(record).__name__}.{attribute.name}"
    if check_seconds(name, value) == 0:
        raise ValueError(f"{name} must be more than 0 seconds")


def _factory(record: object, attribute: attrs.Attribute[Any], value: object) -> None:
    check_factory(f"{type(record).__name__}.{attribute.name}", value, "a load balancing policy")


def _optional(kind: type) -> Any:
    def check(record: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value is not None and not isinstance(value, kind):
            name = f"{type(record).__name__}.{attribute.name}"
            raise TypeError(f"{name} must be {kind.__name__} or None, not {type(value).__name__}")

    return check


@attrs.frozen(kw_only=True)
class SuccessRateEjection:
    """Ejects addresses whose share of good calls is far below that of the others; for `OutlierDetection`.

    Attributes:
        stdev_factor: an outlier is below the mean by more than this many thousandths of the standard deviation.
        enforcement_percentage: of the outliers, how many percent are ejected.
        minimum_hosts: addresses with enough calls that there must be, or none is looked at.
        request_volume: calls in one interval that are enough.

    Raises:
        TypeError: a number is no int.
        ValueError: it is out of range.
    """

    stdev_factor: int = attrs.field(default=1900, validator=int_between(0, _MOST))
    enforcement_percentage: int = attrs.field(default=100, validator=int_between(0, 100))
    minimum_hosts: int = attrs.field(default=5, validator=int_between(0, _MOST))
    request_volume: int = attrs.field(default=100, validator=int_between(0, _MOST))


@attrs.frozen(kw_only=True)
class FailurePercentageEjection:
    """Ejects addresses of whose calls too many fail, however many of the others' do; for `OutlierDetection`.

    Attributes:
        threshold: an outlier has more failures than this, in percent.
        enforcement_percentage: of the outliers, how many percent are ejected.
        minimum_hosts: addresses with enough calls that there must be, or none is looked at.
        request_volume: calls in one interval that are enough.

    Raises:
        TypeError: a number is no int.
        ValueError: it is out of range.
    """

    threshold: int = attrs.field(default=85, validator=int_between(0, 100))
    enforcement_percentage: int = attrs.field(default=100, validator=int_between(0, 100))
    minimum_hosts: int = attrs.field(default=5, validator=int_between(0, _MOST))
    request_volume: int = attrs.field(default=50, validator=int_between(0, _MOST))


@attrs.frozen(kw_only=True)
class OutlierDetection:
    """The ``outlier_detection`` policy (gRFC A50), for ``load_balancing=`` of `open_channel`: a policy around another.

    It counts by address how calls end. Every interval it looks for outliers among the addresses and ejects them: calls
    go to the others until the ejection is over. Each ejection is longer than the one before, and good intervals in
    between make the next one shorter again.

    A call that ends with another status than OK is a failure, also where the status is the application's. One that was
    never sent, or that its caller cancelled, is no sign of anything and not counted.

    Nothing is ejected from policies that do not watch health, such as ``pick_first`` (gRFC A61).

    Attributes:
        child: does the balancing: a policy such as ``RoundRobin()``.
        interval: seconds between two looks; at least 0.1, less is taken as that.
        base_ejection_time: seconds that the first ejection lasts; the n-th lasts n times as long.
        max_ejection_time: seconds that an ejection lasts at most, unless the base is more.
        max_ejection_percent: how many percent of the addresses may be ejected at one time; one always may.
        success_rate_ejection: looks for addresses that are worse than the others; None for not.
        failure_percentage_ejection: looks for addresses that are bad; None for not.

    Raises:
        TypeError: a value is of a wrong type.
        ValueError: a number is out of range.
    """

    child: PolicyFactory = attrs.field(validator=_factory)
    interval: float = attrs.field(default=10.0, validator=_interval)
    base_ejection_time: float = attrs.field(default=30.0, validator=_seconds)
    max_ejection_time: float = attrs.field(default=300.0, validator=_seconds)
    max_ejection_percent: int = attrs.field(default=10, validator=int_between(0, 100))
    success_rate_ejection: SuccessRateEjection | None = attrs.field(
        factory=SuccessRateEjection, validator=_optional(SuccessRateEjection)
    )
    failure_percentage_ejection: FailurePercentageEjection | None = attrs.field(
        default=None, validator=_optional(FailurePercentageEjection)
    )

    @classmethod
    def from_json(
        cls, config: Mapping[str, object], *, parse_child: Callable[[object, str], PolicyFactory]
    ) -> OutlierDetection:
        """Return the policy that a service config asks for. One without either ejection ejects nothing.

        Args:
            config: the policy's part of the config.
            parse_child: makes a policy from a list of policies and its path.

        Raises:
            ServiceConfigError: a field is wrong; the message names it.
        """
        require(config, "childPolicy")
        return cls(
            child=parse_child(config["childPolicy"], "childPolicy"),
            interval=duration(config, "interval", 10.0),
            base_ejection_time=duration(config, "baseEjectionTime", 30.0),
            max_ejection_time=duration(config, "maxEjectionTime", 300.0),
            max_ejection_percent=uint32(config, "maxEjectionPercent", 10),
            success_rate_ejection=_read_success_rate(config),
            failure_percentage_ejection=_read_failure_percentage(config),
        )

    @property
    def _interval(self) -> float:
        return max(self.interval, _SHORTEST_INTERVAL)

    @property
    def _counts(self) -> bool:
        """Whether there is anything to count calls for."""
        return self.success_rate_ejection is not None or self.failure_percentage_ejection is not None

    def __call__(self, context: PolicyContext) -> LoadBalancingPolicy:
        """Return the policy for one channel."""
        return OutlierDetectionPolicy(context, self)


def _read_success_rate(config: Mapping[str, object]) -> SuccessRateEjection | None:
    fields = mapping(config, "successRateEjection")
    if fields is None:
        return None
    with within("successRateEjection"):
        return SuccessRateEjection(
            stdev_factor=uint32(fields, "stdevFactor", 1900),
            enforcement_percentage=uint32(fields, "enforcementPercentage", 100),
            minimum_hosts=uint32(fields, "minimumHosts", 5),
            request_volume=uint32(fields, "requestVolume", 100),
        )


def _read_failure_percentage(config: Mapping[str, object]) -> FailurePercentageEjection | None:
    fields = mapping(config, "failurePercentageEjection")
    if fields is None:
        return None
    with within("failurePercentageEjection"):
        return FailurePercentageEjection(
            threshold=uint32(fields, "threshold", 85),
            enforcement_percentage=uint32(fields, "enforcementPercentage", 100),
            minimum_hosts=uint32(fields, "minimumHosts", 5),
            request_volume=uint32(fields, "requestVolume", 50),
        )


class OutlierDetectionPolicy(LoadBalancingPolicy, PolicyContext):
    """What `OutlierDetection` does in one channel.

    Args:
        context: the channel.
        options: what the user has asked for.
        randrange: decides which outliers are ejected where not all are.
        clock: tells the time.
    """

    def __init__(
        self,
        context: PolicyContext,
        options: OutlierDetection,
        randrange: Callable[[int], int] = random.randrange,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        super().__init__(context)
        self._options = options
        self._randrange = randrange
        self._clock = clock
        self._addresses: dict[str, _Address] = {}
        self._tracked: dict[Subchannel, _Tracked] = {}
        #: When the interval began that goes on; None while nothing is counted.
        self._interval_began: float | None = None
        self._cancel_timer: Callable[[], None] | None = None
        self._published: tuple[ConnectivityState, Picker | Subchannel | None, Exception | None] | None = None
        self._child = GracefulSwitch(self, lambda: None)
        self._child.switch_to(options.child)

    # -- what it is told

    def reconfigure(self, make_policy: PolicyFactory) -> bool:
        if not isinstance(make_policy, OutlierDetection):
            return False
        self._options = make_policy
        self._set_timer()
        self._child.switch_to(make_policy.child)
        if self._published is not None:
            self.publish(*self._published)
        return True

    def update_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        old, self._addresses = self._addresses, {}
        for text in dict.fromkeys(endpoint.address for endpoint in endpoints):
            self._addresses[text] = old.pop(text) if text in old else _Address(text)
        if self._interval_began is None:
            self._set_timer()
        self._child.update_endpoints(endpoints)

    def subchannel_changed(self, subchannel: Subchannel, state: ConnectivityState) -> None:
        tracked = self._tracked[subchannel]
        tracked.state = state
        if tracked.ejected:
            tracked.keep_error()
        else:
            self._child.subchannel_changed(subchannel, state)

    def resolver_failed(self, error: Exception) -> None:
        self._child.resolver_failed(error)

    def exit_idle(self) -> None:
        self._child.exit_idle()

    # -- what the child asks for

    def new_subchannel(self, endpoint: Endpoint) -> Subchannel:
        subchannel = self.context.new_subchannel(endpoint)
        address = self._addresses.get(endpoint.address)
        self._tracked[subchannel] = tracked = _Tracked(subchannel, address)
        if address is not None:
            address.tracked.add(tracked)
            if tracked.ejected and self.watches_health:
                # The child does not know it yet.
                self.context.call_later(0, partial(self._tell_ejected, tracked))
        return subchannel

    def shut_down(self, subchannel: Subchannel) -> None:
        tracked = self._tracked.pop(subchannel, None)
        if tracked is not None and tracked.address is not None:
            tracked.address.tracked.discard(tracked)
        self.context.shut_down(subchannel)

    def publish(
        self,
        state: ConnectivityState,
        picker: Picker | Subchannel | None = None,
        error: Exception | None = None,
    ) -> None:
        self._published = (state, picker, error)
        watched, self.watches_health = self.watches_health, self._child.watches_health
        if watched and not self.watches_health:
            # Another child has taken over, from which nothing is ejected. It may publish when it hears of that.
            self._take_all_back()
            state, picker, error = self._published
        if picker is not None and self._options._counts and self.watches_health:
            picker = self._counting(picker)
        self.context.publish(state, picker, error)

    def request_resolution(self) -> None:
        self.context.request_resolution()

    def call_later(self, seconds: float, function: Callable[[], None]) -> Callable[[], None]:
        return self.context.call_later(seconds, function)

    # -- counting

    def _counting(self, picker: Picker | Subchannel) -> Picker:
        tracked_by = self._tracked

        def pick(info: PickInfo) -> Subchannel | Pick | None:
            picked = picker if isinstance(picker, Subchannel) else picker(info)
            if isinstance(picked, Pick):
                tracked = tracked_by.get(picked.subchannel)
                if tracked is None or tracked.address is None:
                    return picked
                if picked.on_end is not None:
                    return Pick(picked.subchannel, partial(_tell_both, tracked.address.count, picked.on_end))
            elif isinstance(picked, Subchannel):
                tracked = tracked_by.get(picked)
                if tracked is None or tracked.address is None:
                    return picked
            else:
                return picked
            return tracked.pick

        return pick

    # -- ejecting

    def _set_timer(self) -> None:
        """The options are new: the interval that goes on has its new length, counted from its beginning (A50)."""
        if self._cancel_timer is not None:
            self._cancel_timer()
            self._cancel_timer = None
        if not self._options._counts:
            self._interval_began = None
            self._take_all_back()
            return
        now = self._clock()
        if self._interval_began is None:
            self._interval_began = now
            for address in self._addresses.values():
                address.take_counts()
        wait = max(self._interval_began + self._options._interval - now, 0)
        self._cancel_timer = self.context.call_later(wait, self._sweep)

    def _sweep(self) -> None:
        """An interval is over."""
        now = self._interval_began = self._clock()
        options = self._options
        self._cancel_timer = self.context.call_later(options._interval, self._sweep)
        tallies = [_Tally(address, *address.take_counts()) for address in self._addresses.values()]
        if self.watches_health:
            if options.success_rate_ejection is not None:
                self._eject_by_success_rate(options.success_rate_ejection, tallies, now)
            if options.failure_percentage_ejection is not None:
                self._eject_by_failures(options.failure_percentage_ejection, tallies, now)
        longest = max(options.base_ejection_time, options.max_ejection_time)
        for address in tuple(self._addresses.values()):
            if address.ejected_at is None:
                address.multiplier = max(address.multiplier - 1, 0)
            elif now > address.ejected_at + min(options.base_ejection_time * address.multiplier, longest):
                _logger.info("calls go to %s again", address.text)
                self._take_back(address)

    def _eject_by_success_rate(self, options: SuccessRateEjection, tallies: list[_Tally], now: float) -> None:
        tallies = [tally for tally in tallies if tally.calls >= max(options.request_volume, 1)]
        if len(tallies) < options.minimum_hosts or not tallies:
            return
        mean = sum(tally.success_rate for tally in tallies) / len(tallies)
        stdev = sqrt(sum((tally.success_rate - mean) ** 2 for tally in tallies) / len(tallies))
        least = mean - stdev * options.stdev_factor / 1000
        for tally in tallies:
            if tally.success_rate < least:
                why = f"{tally.success_rate:.1%} of its calls succeeded, and {least:.1%} is the least"
                self._eject(tally.address, options.enforcement_percentage, now, why)

    def _eject_by_failures(self, options: FailurePercentageEjection, tallies: list[_Tally], now: float) -> None:
        # A50 has all addresses count for the minimum; Envoy, C-core, Java and Go count those with enough calls.
        tallies = [tally for tally in tallies if tally.calls >= max(options.request_volume, 1)]
        if len(tallies) < options.minimum_hosts:
            return
        for tally in tallies:
            if tally.failures * 100 > options.threshold * tally.calls:
                why = f"{tally.failures} of its {tally.calls} calls failed, and {options.threshold} % is the most"
                self._eject(tally.address, options.enforcement_percentage, now, why)

    def _eject(self, address: _Address, enforcement_percentage: int, now: float, why: str) -> None:
        """Eject an outlier, if chance will have it and not too many are ejected already."""
        ejected = sum(one.ejected_at is not None for one in self._addresses.values())
        # "Will eject at least one address regardless of the value" (A50).
        full = ejected and ejected * 100 >= self._options.max_ejection_percent * len(self._addresses)
        if address.ejected_at is not None or full or self._randrange(100) >= enforcement_percentage:
            return
        address.multiplier += 1
        address.ejected_at = now
        address.error = ConnectFailed(f"{address.text} gets no calls for a while as an outlier: {why}")
        _logger.info("%s", address.error)
        for tracked in tuple(address.tracked):
            self._tell_ejected(tracked)

    def _tell_ejected(self, tracked: _Tracked) -> None:
        if tracked.ejected and tracked.subchannel in self._tracked:
            tracked.keep_error()
            self._child.subchannel_changed(tracked.subchannel, _FAILED)

    def _take_back(self, address: _Address) -> None:
        """An ejection is over, if there was one."""
        if address.ejected_at is None:
            return
        address.ejected_at = None
        for tracked in tuple(address.tracked):
            if tracked.subchannel in self._tracked:
                tracked.restore_error()
                self._child.subchannel_changed(tracked.subchannel, tracked.state)

    def _take_all_back(self) -> None:
        for address in tuple(self._addresses.values()):
            address.multiplier = 0
            self._take_back(address)


class _Address:
    """What is known of one address.

    Attributes:
        text: the address.
        ejected_at: when it was ejected; None while it is not.
        multiplier: how many times as long as the first one its last ejection is; falls when it behaves.
        error: why it is ejected.
        tracked: the subchannels that lead there.
    """

    __slots__ = ("_failures", "_successes", "ejected_at", "error", "multiplier", "text", "tracked")

    def __init__(self, text: str) -> None:
        self.text = text
        self.ejected_at: float | None = None
        self.multiplier = 0
        self.error: Exception | None = None
        self.tracked: set[_Tracked] = set()
        self._successes = 0
        self._failures = 0

    def count(self, end: CallEnd) -> None:
        """A call has ended. One that was not sent, or that its caller cancelled, says nothing of the backend."""
        if end.code is StatusCode.OK:
            self._successes += 1
        elif end.code is not None and not (end.local and end.code is StatusCode.CANCELLED):
            self._failures += 1

    def take_counts(self) -> tuple[int, int]:
        """Return successes and failures since this was called last."""
        counts = (self._successes, self._failures)
        self._successes = self._failures = 0
        return counts


class _Tracked:
    """One subchannel of the child's.

    Attributes:
        subchannel: the same.
        address: where it leads; None where the resolver has not published that.
        state: its own, whatever the child was told.
        pick: picks it, and counts.
    """

    __slots__ = ("_own_error", "address", "pick", "state", "subchannel")

    def __init__(self, subchannel: Subchannel, address: _Address | None) -> None:
        self.subchannel = subchannel
        self.address = address
        self.state = _IDLE
        self.pick = Pick(subchannel, None if address is None else address.count)
        self._own_error: Exception | None = None

    @property
    def ejected(self) -> bool:
        return self.address is not None and self.address.ejected_at is not None

    def keep_error(self) -> None:
        """Let the subchannel say why it was ejected, and remember what it has to say otherwise."""
        assert self.address is not None
        if self.subchannel.error is not self.address.error:
            self._own_error = self.subchannel.error
            self.subchannel.error = self.address.error

    def restore_error(self) -> None:
        """Let the subchannel say for itself why it has failed, where it has."""
        assert self.address is not None
        if self.subchannel.error is self.address.error:
            self.subchannel.error = None if self.state is _READY else self._own_error
        self._own_error = None


@attrs.frozen
class _Tally:
    """The calls of one interval to one address."""

    address: _Address
    successes: int
    failures: int

    @property
    def calls(self) -> int:
        return self.successes + self.failures

    @property
    def success_rate(self) -> float:
        return self.successes / self.calls


def _tell_both(count: Callable[[CallEnd], None], on_end: Callable[[CallEnd], None], end: CallEnd) -> None:
    count(end)
    on_end(end)


__all__ = ["FailurePercentageEjection", "OutlierDetection", "SuccessRateEjection"]
