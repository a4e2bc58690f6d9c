"""The ``ring_hash`` policy by itself: its ring, its states, its picks."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, cast

import pytest

from tests.support.policies import FakeContext, FakeSubchannel, State
from trio_grpc import Endpoint, PickInfo, RingHash, RoundRobin, Subchannel
from trio_grpc._balancing.ring_hash import Ring, RingHashPolicy

ENDPOINTS = [Endpoint(f"10.0.0.{n}:1") for n in range(1, 6)]
ONE, TWO, THREE, FOUR, FIVE = ENDPOINTS
BY_KEY = RingHash(request_hash_header="key")


def info(*keys: str) -> PickInfo:
    return PickInfo("/echo.Echo/Unary", [(b"key", key.encode()) for key in keys])


class Bench:
    """A policy and its channel."""

    def __init__(self, *endpoints: Endpoint, options: RingHash = BY_KEY, random_hash: Any = None) -> None:
        self.context = FakeContext()
        self.policy = RingHashPolicy(self.context, options, random_hash or (lambda: 0))
        self.update(*endpoints)

    def update(self, *endpoints: Endpoint) -> None:
        self.policy.update_endpoints(endpoints)
        self.context.tell(self.policy)

    def become(self, state: State, *endpoints: Endpoint) -> None:
        for endpoint in endpoints:
            self.subchannel(endpoint).become(state)
            self.context.tell(self.policy)

    def subchannel(self, endpoint: Endpoint) -> FakeSubchannel:
        return self.context.by_name(endpoint.address)

    @property
    def states(self) -> list[State]:
        return [subchannel.state for subchannel in self.context.made]

    def pick(self, *keys: str) -> Endpoint | None:
        """Pick for a call, and let the policy hear what came of it."""
        picker = self.context.pickers[-1]
        picked = picker(info(*keys))
        self.context.tell(self.policy)
        assert picked is None or isinstance(picked, Subchannel)
        return None if picked is None else picked.endpoint

    def order(self, key: str = "k") -> list[Endpoint]:
        """The endpoints, as a walk from the key's place meets them."""
        bench = Bench(*[subchannel.endpoint for subchannel in self.context.made if not subchannel.lost])
        found: list[Endpoint] = []
        bench.become(State.READY, *[subchannel.endpoint for subchannel in bench.context.made])
        while len(found) < len(bench.context.made):
            endpoint = bench.pick(key)
            assert endpoint is not None
            found.append(endpoint)
            bench.become(State.TRANSIENT_FAILURE, endpoint)
        return found


# -- the ring


def ring_of(weights: dict[str, int], low: int, high: int) -> Counter[str]:
    """How many places each address has."""
    context = FakeContext()
    ring = Ring({context.new_subchannel(Endpoint(name)): weight for name, weight in weights.items()}, low, high)
    assert ring._hashes == sorted(ring._hashes)
    assert ring.size == len(ring._owners) == len(ring._hashes)
    return Counter(owner.endpoint.address for owner in ring._owners)


@pytest.mark.parametrize(
    ("weights", "low", "high", "places"),
    [
        ([1, 1, 1], 1024, 4096, [342, 342, 342]),
        ([1], 1024, 4096, [1024]),
        ([1, 2], 100, 4096, [34, 68]),
        ([2, 4, 6], 6, 4096, [1, 2, 3]),
        ([1, 1, 1], 1, 2, [1, 1, 1]),
        ([1, 1, 1, 3], 1, 2, [1, 1, 1, 1]),
        ([1, 100], 1024, 4096, [11, 1100]),
        ([1, 100], 4096, 4096, [40, 4056]),
        ([3, 3], 10, 10, [5, 5]),
    ],
)
def test_places_of_the_ring(weights: list[int], low: int, high: int, places: list[int]) -> None:
    names = [f"10.0.0.{n}:1" for n in range(len(weights))]
    counts = ring_of(dict(zip(names, weights, strict=True)), low, high)
    assert [counts[name] for name in names] == places


def test_the_ring_depends_on_the_set_of_addresses_only() -> None:
    keys = [f"key {n}" for n in range(200)]
    benches = [Bench(*ENDPOINTS), Bench(*reversed(ENDPOINTS)), Bench(TWO, FIVE)]
    benches[2].update(FIVE, THREE, ONE, TWO, FOUR)
    for bench in benches:
        bench.become(State.READY, *ENDPOINTS)
    picks = [[bench.pick(key) for key in keys] for bench in benches]
    assert picks[0] == picks[1] == picks[2]


def test_the_ring_is_the_same_in_every_process() -> None:
    """As it was in the one in which this was written; Python's own hashes differ from that."""
    bench = Bench(*ENDPOINTS)
    bench.become(State.READY, *ENDPOINTS)
    picks = [bench.pick(str(n)) for n in range(40)]
    assert "".join(str(endpoint)[7] for endpoint in picks) == "3234554223234454544513122322351415232131"


def test_keys_are_spread_over_all() -> None:
    bench = Bench(*ENDPOINTS)
    bench.become(State.READY, *ENDPOINTS)
    shares = Counter(bench.pick(f"key {n}") for n in range(2000))
    assert all(280 < shares[endpoint] < 520 for endpoint in ENDPOINTS)


def test_most_keys_stay_when_a_backend_comes_or_goes() -> None:
    keys = [f"key {n}" for n in range(1000)]
    bench = Bench(*ENDPOINTS[:4])
    bench.become(State.READY, *ENDPOINTS[:4])
    before = [bench.pick(key) for key in keys]
    bench.update(*ENDPOINTS)
    bench.become(State.READY, FIVE)
    moved = [new for old, new in zip(before, (bench.pick(key) for key in keys), strict=True) if old != new]
    # A fifth belongs to the new one. (The others have fewer places than before, so that some more have to move.)
    assert 150 < moved.count(FIVE) < 250
    assert len(moved) < 400
    bench.update(*ENDPOINTS[:4])
    assert [bench.pick(key) for key in keys] == before


def test_an_address_that_is_listed_twice_gets_twice_as_many() -> None:
    bench = Bench(ONE, TWO, TWO)
    bench.become(State.READY, ONE, TWO)
    assert len(bench.context.made) == 2
    shares = Counter(bench.pick(f"key {n}") for n in range(3000))
    assert 1.7 < shares[TWO] / shares[ONE] < 2.3


def test_sizes_are_capped() -> None:
    bench = Bench(ONE, TWO, options=RingHash(min_ring_size=100_000, max_ring_size=8_388_608))
    assert bench.policy._ring.size == 4096


# -- keys


def test_values_of_a_key_are_joined_by_commas() -> None:
    bench = Bench(*ENDPOINTS)
    bench.become(State.READY, *ENDPOINTS)
    for n in range(20):
        assert bench.pick(f"a{n}", "b") == bench.pick(f"a{n},b")
    assert any(bench.pick(f"a{n}", "b") != bench.pick(f"a{n}") for n in range(20))


@pytest.mark.parametrize("keys", [(), ("",)])
@pytest.mark.parametrize("options", [RingHash(), BY_KEY])
def test_calls_without_a_key_go_anywhere(keys: tuple[str, ...], options: RingHash) -> None:
    generator = random.Random(3)
    bench = Bench(*ENDPOINTS, options=options, random_hash=lambda: generator.getrandbits(64))
    bench.become(State.READY, *ENDPOINTS)
    shares = Counter(bench.pick(*keys) for _ in range(1000))
    assert all(shares[endpoint] > 130 for endpoint in ENDPOINTS)


def test_without_a_header_keys_are_nothing() -> None:
    generator = random.Random(3)
    bench = Bench(*ENDPOINTS, options=RingHash(), random_hash=lambda: generator.getrandbits(64))
    bench.become(State.READY, *ENDPOINTS)
    assert {bench.pick("k") for _ in range(100)} == set(ENDPOINTS)


# -- states and picks


def test_nothing_is_connected_before_a_call_asks_for_it() -> None:
    bench = Bench(*ENDPOINTS)
    assert bench.context.state is State.IDLE
    assert bench.states == [State.IDLE] * 5
    wanted = bench.pick("k")
    assert wanted is not None
    assert bench.subchannel(wanted).state is State.CONNECTING
    assert bench.context.state is State.CONNECTING
    assert bench.states.count(State.IDLE) == 4
    # It waits for this one, however often it asks.
    assert bench.pick("k") == wanted
    bench.become(State.READY, wanted)
    assert bench.context.state is State.READY
    assert bench.pick("k") == wanted
    assert bench.states.count(State.IDLE) == 4


def test_a_call_waits_for_its_backend_while_others_are_ready() -> None:
    bench = Bench(*ENDPOINTS)
    first, second, *_ = bench.order()
    bench.become(State.READY, second)
    assert bench.pick("k") == first
    assert bench.subchannel(first).state is State.CONNECTING
    assert bench.context.state is State.READY


def test_while_its_backend_is_down_a_key_goes_to_the_next_on_the_ring() -> None:
    bench = Bench(*ENDPOINTS)
    first, second, third, *_ = bench.order()
    bench.become(State.READY, first, second, third)
    bench.become(State.TRANSIENT_FAILURE, first)
    assert bench.pick("k") == second
    bench.become(State.TRANSIENT_FAILURE, second)
    assert bench.pick("k") == third
    bench.become(State.READY, first)
    assert bench.pick("k") == first


def test_a_second_backend_is_waited_for_and_no_third() -> None:
    bench = Bench(*ENDPOINTS)
    first, second, third, fourth, fifth = bench.order()
    bench.become(State.TRANSIENT_FAILURE, first)
    # (One is always being tried then, without a call.)
    assert bench.pick("k") == second
    assert bench.subchannel(second).state is State.CONNECTING
    bench.become(State.TRANSIENT_FAILURE, second)
    assert bench.context.state is State.TRANSIENT_FAILURE
    assert bench.pick("k") is None
    assert bench.subchannel(third).state is State.CONNECTING
    bench.become(State.READY, fifth)
    assert bench.pick("k") == fifth
    assert bench.subchannel(fourth).state is State.IDLE or bench.subchannel(fourth).connects == 1


def test_while_some_have_failed_and_none_is_ready_one_after_the_other_is_tried() -> None:
    bench = Bench(*ENDPOINTS)
    tried = [bench.pick("k")]
    for count in range(1, 5):
        assert tried[-1] is not None
        bench.become(State.TRANSIENT_FAILURE, tried[-1])
        connecting = [one.endpoint for one in bench.context.made if one.state is State.CONNECTING]
        assert len(connecting) == 1
        tried += connecting
        assert bench.context.state is (State.CONNECTING if count == 1 else State.TRANSIENT_FAILURE)
    assert set(tried) == set(ENDPOINTS)
    bench.become(State.READY, cast(Endpoint, tried[-1]))
    assert bench.context.state is State.READY


def test_one_that_failed_goes_on_by_itself_and_counts_as_failed_until_it_succeeds() -> None:
    bench = Bench(ONE, TWO)
    bench.become(State.TRANSIENT_FAILURE, ONE, TWO)
    assert bench.context.state is State.TRANSIENT_FAILURE
    assert bench.context.published[-1] == (State.TRANSIENT_FAILURE, "10.0.0.1:1 refused; 10.0.0.2:1 refused")
    bench.become(State.IDLE, ONE)
    assert bench.subchannel(ONE).state is State.CONNECTING
    assert bench.context.state is State.TRANSIENT_FAILURE
    assert bench.pick("k") is None
    bench.become(State.READY, ONE)
    assert bench.pick("k") == ONE


def test_a_lost_connection_is_made_again_for_the_next_call() -> None:
    bench = Bench(ONE, TWO)
    bench.become(State.READY, ONE, TWO)
    (wanted, other) = bench.order()
    bench.become(State.IDLE, wanted)
    assert bench.context.resolutions == 1
    assert bench.subchannel(wanted).state is State.IDLE
    bench.become(State.IDLE, other)
    assert bench.context.state is State.IDLE
    assert bench.pick("k") == wanted
    assert bench.subchannel(wanted).state is State.CONNECTING


def test_a_single_backend() -> None:
    bench = Bench(ONE)
    assert bench.pick("k") == ONE
    bench.become(State.TRANSIENT_FAILURE, ONE)
    assert bench.context.state is State.TRANSIENT_FAILURE
    assert bench.pick("k") is None
    assert bench.context.resolutions == 1


def test_calls_without_a_key_take_what_is_ready_and_have_one_more_connected() -> None:
    hashes = iter(range(0, 2**64, 2**58))
    bench = Bench(*ENDPOINTS, options=RingHash(), random_hash=lambda: next(hashes))
    waited = bench.pick()
    assert waited is not None
    # A hash of its own each time, yet no second connection while there is the first one to wait for.
    assert {bench.pick() for _ in range(20)} == {waited}
    assert bench.states.count(State.CONNECTING) == 1
    bench.become(State.READY, waited)
    assert {bench.pick() for _ in range(20)} == {waited}
    assert bench.states.count(State.CONNECTING) == 1


def test_the_user_connects() -> None:
    bench = Bench(*ENDPOINTS)
    bench.policy.exit_idle()
    bench.context.tell(bench.policy)
    assert bench.context.state is State.CONNECTING
    assert bench.states.count(State.CONNECTING) == 1
    bench.policy.exit_idle()
    assert bench.states.count(State.CONNECTING) == 1


def test_addresses_come_and_go() -> None:
    bench = Bench(ONE, TWO)
    bench.become(State.READY, ONE, TWO)
    bench.update(TWO, THREE)
    assert bench.subchannel(ONE).lost
    assert {bench.pick(str(n)) for n in range(50)} == {TWO, THREE}
    assert bench.subchannel(THREE).state is State.CONNECTING


def test_no_addresses() -> None:
    bench = Bench(ONE)
    bench.update()
    assert bench.context.published[-1] == (State.TRANSIENT_FAILURE, "the resolver found no addresses")
    assert bench.context.resolutions == 1


def test_other_options_keep_the_connections() -> None:
    bench = Bench(ONE, TWO, options=RingHash())
    bench.become(State.READY, ONE, TWO)
    # Without a header, the hash is that of the bench: always the same.
    assert len({bench.pick(str(n)) for n in range(50)}) == 1
    assert bench.policy.reconfigure(RingHash(request_hash_header="key", min_ring_size=10))
    assert {bench.pick(str(n)) for n in range(50)} == {ONE, TWO}
    assert bench.policy._ring.size == 10
    assert len(bench.context.made) == 2
    assert not bench.policy.reconfigure(RoundRobin())


def test_other_options_before_there_are_addresses() -> None:
    context = FakeContext()
    assert RingHashPolicy(context, RingHash()).reconfigure(BY_KEY)
    assert not context.published


# -- options


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"min_ring_size": 0}, ValueError, r"RingHash\.min_ring_size must be between 1 and 8388608, got 0"),
        ({"max_ring_size": 2**23 + 1}, ValueError, r"RingHash\.max_ring_size must be between 1 and 8388608"),
        (
            {"min_ring_size": 20, "max_ring_size": 10},
            ValueError,
            r"min_ring_size must not be over max_ring_size, 10, got 20",
        ),
        ({"max_ring_size": 10.0}, TypeError, r"RingHash\.max_ring_size must be int, not float"),
        ({"request_hash_header": "Key"}, ValueError, r"RingHash\.request_hash_header must be a name of metadata"),
        ({"request_hash_header": "a b"}, ValueError, "must be a name of metadata"),
        ({"request_hash_header": "key-bin"}, ValueError, "must not name binary metadata"),
        ({"request_hash_header": b"key"}, TypeError, r"RingHash\.request_hash_header must be str, not bytes"),
    ],
)
def test_wrong_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        RingHash(**options)


def test_equal_options_are_equal() -> None:
    assert RingHash() == RingHash(min_ring_size=1024, max_ring_size=4096, request_hash_header="")
    assert RingHash() != BY_KEY
