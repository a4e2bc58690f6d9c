"""The ``ring_hash`` policy: calls with one key go to one backend, and most keys stay where they are when others come.

After gRFC A42 (the ring, states, picks), A61 (who reconnects by itself) and A76 (the key, picks without one).
"""

from __future__ import annotations

import random
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import attrs

from trio_grpc._balancing.connectivity import ConnectivityState
from trio_grpc._balancing.endpoint import Endpoint
from trio_grpc._balancing.json_fields import text, uint32
from trio_grpc._balancing.policy import LoadBalancingPolicy, PickInfo, PolicyContext, PolicyFactory
from trio_grpc._balancing.subchannel import Subchannel, all_failed
from trio_grpc._options import int_between

_IDLE = ConnectivityState.IDLE
_CONNECTING = ConnectivityState.CONNECTING
_READY = ConnectivityState.READY
_FAILED = ConnectivityState.TRANSIENT_FAILURE

_DEFAULT_MIN_SIZE = 1024
#: What a configuration may ask for (gRFC A42: 8 Mi, Envoy's default for the maximum) ...
_LARGEST_SIZE = 2**23
#: ... and what it gets at most: rings are made anew for each list of addresses (grpc-go and C-core cap them so too).
_SIZE_CAP = 4096
#: Names of metadata as HTTP/2 has them.
_HEADER = re.compile(r"[0-9a-z_.-]+")


def _check_header(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"RingHash.{attribute.name} must be str, not {type(value).__name__}")
    if value and not _HEADER.fullmatch(value):
        raise ValueError(f"RingHash.{attribute.name} must be a name of metadata, in lower case, not {value!r}")
    if value.endswith("-bin"):
        raise ValueError(f"RingHash.{attribute.name} must not name binary metadata, got {value!r}")


@attrs.frozen(kw_only=True)
class RingHash:
    """The ``ring_hash`` policy (gRFC A42, A76), for ``load_balancing=`` of `open_channel`.

    Each address has many places on a ring of hashes, and a call goes to the address whose place follows the hash of the
    call's key. So calls with one key meet the same backend, and its cache, for as long as it is there; when addresses
    come or go most keys stay where they are. While a backend is down its calls go to the next one on the ring.

    Connections are made when calls need them, not before; a call whose backend is not connected yet waits for it, also
    where others are READY. The channel is IDLE until the first call, and TRANSIENT_FAILURE when two backends have
    failed and none is READY.

    The ring depends on the set of addresses only, and is the same in every process. It differs from those of other gRPC
    libraries, which hash with XXH64 (this one with BLAKE2b, 8 bytes): one key may lead there to another backend.

    Attributes:
        min_ring_size: places on the ring at least, all addresses together. The more, the more even the shares.
        max_ring_size: places at most, but one for each address. Both sizes are capped at 4096. Addresses that are
            listed twice get twice as many places.
        request_hash_header: the metadata of a call that is its key, several values joined by commas; only metadata of
            the call itself, not that of the channel. Empty, or for calls without it: any backend, READY ones first.

    Raises:
        TypeError: a value is of a wrong type.
        ValueError: a size is out of range, the minimum is over the maximum, or that is no name of text metadata.
    """

    min_ring_size: int = attrs.field(default=_DEFAULT_MIN_SIZE, validator=int_between(1, _LARGEST_SIZE))
    max_ring_size: int = attrs.field(default=_SIZE_CAP, validator=int_between(1, _LARGEST_SIZE))
    request_hash_header: str = attrs.field(default="", validator=_check_header)

    def __attrs_post_init__(self) -> None:
        if self.min_ring_size > self.max_ring_size:
            raise ValueError(
                f"RingHash.min_ring_size must not be over max_ring_size, {self.max_ring_size}, got {self.min_ring_size}"
            )

    @classmethod
    def from_json(cls, config: Mapping[str, object]) -> RingHash:
        """Return the policy that a service config asks for (gRFC A42, A76).

        Raises:
            ServiceConfigError: a field is wrong.
            ValueError: a size is out of range, or the header's name is none.
        """
        return cls(
            min_ring_size=uint32(config, "minRingSize", _DEFAULT_MIN_SIZE),
            max_ring_size=uint32(config, "maxRingSize", _SIZE_CAP),
            request_hash_header=text(config, "requestHashHeader", ""),
        )

    def __call__(self, context: PolicyContext) -> LoadBalancingPolicy:
        """Return the policy for one channel."""
        return RingHashPolicy(context, self)


class RingHashPolicy(LoadBalancingPolicy):
    """What `RingHash` does in one channel.

    Args:
        context: the channel.
        options: what the user has asked for.
        random_hash: returns the 64 bits that a call without a key has for its hash.
    """

    def __init__(
        self,
        context: PolicyContext,
        options: RingHash,
        random_hash: Callable[[], int] = lambda: random.getrandbits(64),
    ) -> None:
        super().__init__(context)
        self._options = options
        self._random_hash = random_hash
        self._subchannels: dict[Endpoint, Subchannel] = {}
        #: How often each address is on the list.
        self._weights: Counter[Endpoint] = Counter()
        #: TRANSIENT_FAILURE lasts until READY, attempts in between notwithstanding (A42).
        self._states: dict[Subchannel, ConnectivityState] = {}
        self._ring = Ring({}, 1, 1)

    # -- what the policy is told

    def reconfigure(self, make_policy: PolicyFactory) -> bool:
        if not isinstance(make_policy, RingHash):
            return False
        self._options = make_policy
        if self._weights:
            self._make_ring()
            self._publish()
        return True

    def update_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        weights = self._weights = Counter(endpoints)
        old, self._subchannels = self._subchannels, {}
        for endpoint in weights:
            subchannel = old.pop(endpoint, None)
            if subchannel is None:
                subchannel = self.context.new_subchannel(endpoint)
                self._states[subchannel] = _IDLE
            self._subchannels[endpoint] = subchannel
        for subchannel in old.values():
            del self._states[subchannel]
            self.context.shut_down(subchannel)
        if not weights:
            self.context.request_resolution()
        self._make_ring()
        self._publish()

    def _make_ring(self) -> None:
        options = self._options
        self._ring = Ring(
            {self._subchannels[endpoint]: weight for endpoint, weight in self._weights.items()},
            min(options.min_ring_size, _SIZE_CAP),
            min(options.max_ring_size, _SIZE_CAP),
        )

    def subchannel_changed(self, subchannel: Subchannel, state: ConnectivityState) -> None:
        before = self._states[subchannel]
        if state is _READY or before is not _FAILED:
            self._states[subchannel] = state
        elif state is _IDLE:
            # Its backoff is over. Those that have failed go on by themselves until they succeed (A61).
            subchannel.connect()
        if state is _FAILED or (state is _IDLE and before is _READY):
            self.context.request_resolution()
        self._publish()

    def exit_idle(self) -> None:
        # Not for a call: any will do.
        self._pick_any()
        self._publish()

    def _publish(self) -> None:
        states = Counter(self._states.values())
        if not states:
            self.context.publish(_FAILED, error=ValueError("the resolver found no addresses"))
        elif states[_READY]:
            self.context.publish(_READY, self._pick)
        else:
            if states[_FAILED] and not states[_CONNECTING] and states[_IDLE]:
                # Where no calls come that would ask for the others, we still want to know of them (A42).
                self._connect(next(one for one, state in self._states.items() if state is _IDLE))
            self._publish_unready(states)

    def _publish_unready(self, states: Counter[ConnectivityState]) -> None:
        # One backend that is down says little of the others, and asking all would take long: two make a failure (A42).
        if states[_FAILED] >= 2 or states[_FAILED] == len(self._states):
            self.context.publish(_FAILED, self._pick, all_failed(self._states))
        elif states[_FAILED] or states[_CONNECTING]:
            self.context.publish(_CONNECTING, self._pick)
        else:
            self.context.publish(_IDLE, self._pick)

    # -- picking

    def _connect(self, subchannel: Subchannel) -> None:
        # Noted at once: until the policy is told there may be more calls, and each would connect to another one.
        self._states[subchannel] = _CONNECTING
        subchannel.connect()

    def _pick(self, info: PickInfo) -> Subchannel | None:
        header = self._options.request_hash_header
        if header:
            # Keys that end in -bin, which have bytes for values, are no option.
            key = ",".join(str(value) for value in info.metadata.get_all(header))
            if key:
                return self._pick_by(_hash(key))
        return self._pick_any()

    def _pick_by(self, number: int) -> Subchannel | None:
        """Return the backend that a hash leads to, or one of those behind it where it has failed.

        A call waits for two attempts to connect at most: if both fail it takes what is READY, or fails.
        """
        asked = False
        for place, subchannel in enumerate(self._ring.walk(number)):
            state = self._states[subchannel]
            if state is _READY:
                return subchannel
            if state is not _FAILED and not asked:
                asked = True
                if state is _IDLE:
                    self._connect(subchannel)
                if place < 2:
                    return subchannel
        return None

    def _pick_any(self) -> Subchannel | None:
        """Return a READY backend, or else one that the call may wait for; have one connect at a time (A76)."""
        asked = False
        for subchannel in self._ring.walk(self._random_hash()):
            state = self._states[subchannel]
            if state is _READY:
                return subchannel
            if state is _IDLE and not asked:
                asked = True
                if _CONNECTING not in self._states.values():
                    self._connect(subchannel)
        return next((subchannel for subchannel, state in self._states.items() if state is _CONNECTING), None)


class Ring:
    """Places of subchannels on a ring of hashes.

    Args:
        weights: of each subchannel; the places of two relate as their weights do.
        min_size: places at least.
        max_size: places at most; this counts where it is at odds with the other one or with the weights. But each has
            one.

    Attributes:
        size: how many places there are.
    """

    def __init__(self, weights: dict[Subchannel, int], min_size: int, max_size: int) -> None:
        self._owners: list[Subchannel] = []
        self._hashes: list[int] = []
        self._subchannels = len(weights)
        places: list[tuple[int, str, Subchannel]] = []
        if weights:
            total, lightest = sum(weights.values()), min(weights.values())
            # The lightest gets a whole number of places, and the ring its minimum (as Envoy makes it).
            size = min(-(-min_size * lightest // total) * total // lightest, max_size)
            so_far = 0
            # In an order of their own: if not all can have their share, it must not depend on the resolver who has.
            for subchannel, weight in sorted(weights.items(), key=lambda item: item[0].endpoint.address):
                address = subchannel.endpoint.address
                begin, end = size * so_far // total, size * (so_far + weight) // total
                # One at least: who has none would never get a call, nor be connected to for one.
                count = max(end - begin, 1)
                places += [(_hash(f"{address}_{number}"), address, subchannel) for number in range(count)]
                so_far += weight
        for number, _, subchannel in sorted(places, key=lambda place: place[:2]):
            self._hashes.append(number)
            self._owners.append(subchannel)
        self.size: int = len(places)

    def walk(self, number: int) -> Iterator[Subchannel]:
        """Go around the ring from the first place at or after a hash; tell each subchannel once."""
        start = bisect_left(self._hashes, number)
        seen: set[Subchannel] = set()
        for place in range(start, start + self.size):
            subchannel = self._owners[place % self.size]
            if subchannel not in seen:
                yield subchannel
                seen.add(subchannel)
                if len(seen) == self._subchannels:
                    return


def _hash(key: str) -> int:
    """Return 64 bits that depend on the key alone; Python's own hash differs from process to process."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")


__all__ = ["RingHash"]
