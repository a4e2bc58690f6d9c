"""In which order addresses are tried."""

from __future__ import annotations

import pytest
import trio

from trio_grpc import Endpoint
from trio_grpc._balancing.happy_eyeballs import CONNECTION_ATTEMPT_DELAY, interleave


@pytest.mark.parametrize(
    ("addresses", "order"),
    [
        ("", ""),
        ("1.1.1.1:1", "1.1.1.1:1"),
        (
            "[::1]:1 [::2]:1 [::3]:1 1.1.1.1:1 2.2.2.2:1",
            "[::1]:1 1.1.1.1:1 [::2]:1 2.2.2.2:1 [::3]:1",
        ),
        ("1.1.1.1:1 2.2.2.2:1 [::1]:1", "1.1.1.1:1 [::1]:1 2.2.2.2:1"),
        ("1.1.1.1:1 1.1.1.1:1 1.1.1.1:2", "1.1.1.1:1 1.1.1.1:2"),
        ("unix:/a [::1]:1 name:1 1.1.1.1:1", "unix:/a [::1]:1 1.1.1.1:1 name:1"),
    ],
)
def test_families_take_turns(addresses: str, order: str) -> None:
    endpoints = [Endpoint(address) for address in addresses.split()]
    assert [endpoint.address for endpoint in interleave(endpoints)] == order.split()


def test_what_the_user_dials_has_no_family() -> None:
    one, two = (Endpoint("1.1.1.1:1", connect=trio.sleep_forever), Endpoint("[::1]:1", connect=trio.sleep_forever))
    assert interleave([one, two, one]) == [one, two]


def test_the_delay_is_that_of_the_grfc() -> None:
    assert CONNECTION_ATTEMPT_DELAY == 0.25
