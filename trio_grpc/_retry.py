"""Which failed attempt of a call another one may follow, and when: the rules of gRFC A6, without doing anything.

Three things may follow: a transparent retry where the server has certainly not run the call, a retry under a
`RetryPolicy`, or the next hedge under a `HedgingPolicy`. One token bucket per channel keeps the latter two from making
an overload worse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import inf

from trio_grpc._balancing.service_config import HedgingPolicy, RetryPolicy, RetryThrottling
from trio_grpc._status import StatusCode
from trio_grpc._transport.header_codec import Field

#: Tells the server how many attempts came before this one; transparent retries do not count.
_PREVIOUS_ATTEMPTS = b"grpc-previous-rpc-attempts"
#: By this trailing metadata a server says when to try again, or never to.
_PUSHBACK = b"grpc-retry-pushback-ms"
#: A signed 32-bit number in ASCII, without unnecessary zeros.
_MILLISECONDS = re.compile(rb"-?(0|[1-9][0-9]{0,9})")
_MAX_MILLISECONDS = 2**31 - 1
#: Backoffs vary by this share either way, by an amendment of gRFC A6.
_JITTER = 0.2
#: Ratios of tokens have three decimals; counted in whole thousandths they add up exactly, as in C-core.
_MILLI = 1000

#: Returns a number between the two.
Uniform = Callable[[float, float], float]


class RetryThrottle:
    """The tokens of one channel: failures take one, successes give a share of one back.

    Attributes:
        tokens: how many there are.
    """

    __slots__ = ("_milli", "_throttling")

    def __init__(self, throttling: RetryThrottling) -> None:
        self._throttling = throttling
        self._milli = round(throttling.max_tokens * _MILLI)

    @classmethod
    def of(cls, throttling: RetryThrottling | None, current: RetryThrottle | None = None) -> RetryThrottle | None:
        """Return the throttle for a service config: the current one, with its count, where that has the same values."""
        if throttling is None:
            return None
        if current is not None and current._throttling == throttling:
            return current
        return cls(throttling)

    @property
    def tokens(self) -> float:
        return self._milli / _MILLI

    @property
    def permits(self) -> bool:
        """Whether a retry or a hedge may be sent."""
        return self._milli > self._throttling.max_tokens * _MILLI / 2

    def succeeded(self) -> None:
        """A call has ended well, whatever its method."""
        most = self._throttling.max_tokens
        ratio = round(min(self._throttling.token_ratio, most) * _MILLI)
        self._milli = min(self._milli + ratio, round(most * _MILLI))

    def failed(self) -> None:
        """An attempt has failed in a way that may come from overload."""
        self._milli = max(self._milli - _MILLI, 0)

    def __repr__(self) -> str:
        return f"<RetryThrottle {self.tokens:g} of {self._throttling.max_tokens:g}>"


def pushback(fields: Iterable[Field]) -> float | None:
    """Return the seconds after which a server wants to be tried again.

    Args:
        fields: the trailing metadata of a failed attempt.

    Returns:
        None where the server does not say; inf where it says "never", which anything but one number of milliseconds
        means.
    """
    values = [value for name, value in fields if name == _PUSHBACK]
    if not values:
        return None
    if len(values) > 1 or not _MILLISECONDS.fullmatch(values[0]):
        return inf
    milliseconds = int(values[0])
    return milliseconds / 1000 if 0 <= milliseconds <= _MAX_MILLISECONDS else inf


def with_previous(fields: Iterable[Field], previous: int) -> list[Field]:
    """Return the metadata of an attempt after so many others. A number that was passed on to us is not ours."""
    return [(_PREVIOUS_ATTEMPTS, b"%d" % previous), *(field for field in fields if field[0] != _PREVIOUS_ATTEMPTS)]


class Transparency:
    """The transparent retries of one call: without limit while it has not left this client, once after that."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused = False

    def allows(self, sent: bool) -> bool:
        """Whether an attempt that the server has not run may be repeated, unseen; ``sent``: the server has met it."""
        if not sent:
            return True
        refused, self._refused = self._refused, True
        return not refused


class AttemptRules:
    """What retries and hedges have in common.

    Attributes:
        previous: attempts made so far but for the first, without transparent retries.
    """

    __slots__ = ("_codes", "_max_attempts", "_throttle", "previous")

    def __init__(self, max_attempts: int, codes: frozenset[StatusCode], throttle: RetryThrottle | None) -> None:
        self._max_attempts = max_attempts
        self._codes = codes
        self._throttle = throttle
        self.previous: int = 0

    def succeeded(self) -> None:
        """The call has ended with OK."""
        if self._throttle is not None:
            self._throttle.succeeded()

    def failed(self, code: StatusCode, fields: Iterable[Field]) -> bool:
        """An attempt has ended with another status. Return whether the policy lists it."""
        listed = code in self._codes
        if self._throttle is not None and (listed or pushback(fields) == inf):
            self._throttle.failed()
        return listed

    def ended(self, code: StatusCode, fields: Iterable[Field]) -> None:
        """The attempt that the call is committed to has ended: nothing follows, but it counts."""
        if code is StatusCode.OK:
            self.succeeded()
        else:
            self.failed(code, fields)

    def _more(self) -> bool:
        return self.previous + 1 < self._max_attempts and (self._throttle is None or self._throttle.permits)


class Retries(AttemptRules):
    """The retries of one call.

    Args:
        policy: when to retry; None for never, where only the throttle wants to know.
        throttle: of the channel.
        uniform: chooses within the jitter.
    """

    __slots__ = ("_backoffs", "_policy", "_uniform")

    def __init__(self, policy: RetryPolicy | None, throttle: RetryThrottle | None, uniform: Uniform) -> None:
        if policy is None:
            super().__init__(1, frozenset(), throttle)
        else:
            super().__init__(policy.max_attempts, policy.retryable_status_codes, throttle)
        self._policy = policy
        self._uniform = uniform
        #: Since the last pushback.
        self._backoffs = 0

    def next_delay(self, code: StatusCode, fields: Iterable[Field]) -> float | None:
        """An attempt has failed. Return the seconds to the next one, which then counts; None where there is none."""
        asked = pushback(fields)
        if not self.failed(code, fields) or asked == inf or not self._more():
            return None
        self.previous += 1
        if asked is not None:
            self._backoffs = 0
            return asked
        return self._backoff()

    def _backoff(self) -> float:
        policy = self._policy
        assert policy is not None
        self._backoffs += 1
        try:
            delay = policy.initial_backoff * policy.backoff_multiplier ** (self._backoffs - 1)
        except OverflowError:
            delay = inf
        return min(delay, policy.max_backoff) * self._uniform(1 - _JITTER, 1 + _JITTER)


class Hedges(AttemptRules):
    """The hedges of one call.

    Args:
        policy: when to hedge.
        throttle: of the channel.
    """

    __slots__ = ("_delay", "_stopped")

    def __init__(self, policy: HedgingPolicy, throttle: RetryThrottle | None) -> None:
        super().__init__(policy.max_attempts, policy.non_fatal_status_codes, throttle)
        self._delay = policy.hedging_delay
        self._stopped = False

    @property
    def delay(self) -> float | None:
        """Seconds from one attempt to the next; None where there are no more."""
        return None if self._stopped or self.previous + 1 >= self._max_attempts else self._delay

    def next_delay(self, fields: Iterable[Field]) -> float | None:
        """An attempt has failed, not fatally. Return the seconds to the next one; None where there are no more."""
        asked = pushback(fields)
        if asked == inf:
            self.stop()
        if self.delay is None:
            return None
        return asked or 0.0

    def begin(self) -> bool:
        """The time of the next attempt has come. Return whether it may be sent; if not, there are no more."""
        if self._stopped or not self._more():
            self.stop()
            return False
        self.previous += 1
        return True

    def stop(self) -> None:
        """Send no more."""
        self._stopped = True
