"""The ``least_request`` policy: of a few connections drawn by lot, a call goes to the one with the fewest others."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import attrs

from trio_grpc._balancing.connect_to_all import ConnectToAllPolicy
from trio_grpc._balancing.json_fields import uint32
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
from trio_grpc._options import int_between

#: Below two there is no choice; more than ten cost more than they bring (grpc-go, balancer/leastrequest).
_LEAST_CHOICES, _MOST_CHOICES = 2, 10


@attrs.frozen(kw_only=True)
class LeastRequest:
    """The ``least_request`` policy (gRFC A48), for ``load_balancing=`` of `open_channel`.

    The channel keeps a connection to every address, as with ``round_robin``. For each call it draws some that are READY
    by lot, the same one perhaps twice, and takes that which has the fewest calls of this channel in flight. So slow
    backends get fewer calls, and many clients do not all run to the same one. Streams count for as long as they last.

    Attributes:
        choice_count: how many are drawn, 2 to 10.

    Raises:
        TypeError: the number is no int.
        ValueError: it is out of range.
    """

    choice_count: int = attrs.field(default=2, validator=int_between(_LEAST_CHOICES, _MOST_CHOICES))

    @classmethod
    def from_json(cls, config: Mapping[str, object]) -> LeastRequest:
        """Return the policy that a service config asks for (gRFC A48); more than 10 are taken as 10.

        Raises:
            ServiceConfigError: a field is wrong.
            ValueError: the number is too small.
        """
        return cls(choice_count=min(uint32(config, "choiceCount", _LEAST_CHOICES), _MOST_CHOICES))

    def __call__(self, context: PolicyContext) -> LoadBalancingPolicy:
        """Return the policy for one channel."""
        return LeastRequestPolicy(context, self.choice_count)


class LeastRequestPolicy(ConnectToAllPolicy):
    """What `LeastRequest` does in one channel.

    Args:
        context: the channel.
        choice_count: how many backends are drawn for each call.
        randrange: draws.
    """

    def __init__(
        self, context: PolicyContext, choice_count: int, randrange: Callable[[int], int] = random.randrange
    ) -> None:
        super().__init__(context)
        self._choice_count = choice_count
        self._randrange = randrange
        #: They last as long as the subchannels: a connection that is lost ends its calls, which are counted off then.
        self._backends: dict[Subchannel, _Backend] = {}

    def reconfigure(self, make_policy: PolicyFactory) -> bool:
        if not isinstance(make_policy, LeastRequest):
            return False
        self._choice_count = make_policy.choice_count
        self.renew_picker()
        return True

    def became_ready(self, subchannel: Subchannel) -> None:
        if subchannel not in self._backends:
            self._backends[subchannel] = _Backend(subchannel)

    def forget(self, subchannel: Subchannel) -> None:
        self._backends.pop(subchannel, None)

    def make_picker(self, ready: tuple[Subchannel, ...]) -> Picker:
        backends = [self._backends[subchannel] for subchannel in ready]
        count = len(backends)
        others = range(self._choice_count - 1)
        randrange = self._randrange

        def pick(_: PickInfo) -> Pick:
            least = backends[randrange(count)]
            for _other in others:
                drawn = backends[randrange(count)]
                if drawn.in_flight < least.in_flight:
                    least = drawn
            least.in_flight += 1
            return least.pick

        return pick


class _Backend:
    """How many calls one backend has from this channel, those that only wait for a free stream included."""

    __slots__ = ("in_flight", "pick")

    def __init__(self, subchannel: Subchannel) -> None:
        self.in_flight = 0
        #: One for all calls.
        self.pick = Pick(subchannel, self._ended)

    def _ended(self, _: CallEnd) -> None:
        self.in_flight -= 1


__all__ = ["LeastRequest"]
