"""Endpoints."""

from __future__ import annotations

import pytest
import trio

from trio_grpc import Endpoint
from trio_grpc._balancing.target import TcpTarget, UnixTarget


@pytest.mark.parametrize(
    ("text", "address", "dialled"),
    [
        ("127.0.0.1:5", "127.0.0.1:5", TcpTarget("127.0.0.1", 5)),
        ("[::1]:5", "[::1]:5", TcpTarget("::1", 5)),
        ("ipv4:10.0.0.1:5", "10.0.0.1:5", TcpTarget("10.0.0.1", 5)),
        ("name.example", "name.example:443", TcpTarget("name.example", 443)),
        ("unix:///run/s", "unix:/run/s", UnixTarget("/run/s")),
        ("unix-abstract:s", "unix-abstract:s", UnixTarget("\0s")),
    ],
)
def test_addresses(text: str, address: str, dialled: TcpTarget | UnixTarget) -> None:
    endpoint = Endpoint(text)
    assert endpoint.address == str(endpoint) == address
    assert endpoint._dialled == dialled
    assert endpoint == Endpoint(address)
    assert hash(endpoint) == hash(Endpoint(address))


def test_one_with_a_connect_of_its_own_may_be_called_anything() -> None:
    async def connect() -> trio.abc.Stream:
        raise AssertionError

    endpoint = Endpoint("the third: from the left", connect=connect)
    assert endpoint._dialled is connect
    assert endpoint == Endpoint("the third: from the left", connect=connect)
    assert endpoint != Endpoint("the third: from the left", connect=trio.sleep_forever)


def test_wrong_ones_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="'host:port'"):
        Endpoint("host:port")
    with pytest.raises(TypeError, match=r"Endpoint\.address must be str"):
        Endpoint(("127.0.0.1", 5))  # type: ignore[arg-type]
    for no_function in (5, trio.StapledStream, "127.0.0.1:5", False):
        with pytest.raises(TypeError, match=r"Endpoint\.connect must be an async callable"):
            Endpoint("127.0.0.1:5", connect=no_function)  # type: ignore[arg-type]
