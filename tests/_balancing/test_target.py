"""Target names."""

from __future__ import annotations

import pytest

from trio_grpc._balancing.target import DEFAULT_PORT, TcpTarget, UnixTarget, parse_target


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:50051", "localhost", 50051),
        ("example.org", "example.org", 443),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("[::1]:50051", "::1", 50051),
        ("[::1]", "::1", 443),
        ("::1", "::1", 443),
        ("dns:example.org:1", "example.org", 1),
        ("dns:example.org", "example.org", 443),
        ("dns:///example.org:65535", "example.org", 65535),
        ("ipv4:10.0.0.1:8080", "10.0.0.1", 8080),
        ("ipv6:[2001:db8::1]:8080", "2001:db8::1", 8080),
        ("ipv6:2001:db8::1", "2001:db8::1", 443),
    ],
)
def test_tcp(text: str, host: str, port: int) -> None:
    assert parse_target(text) == TcpTarget(host, port)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("unix:relative/path", "relative/path"),
        ("unix:/run/service", "/run/service"),
        ("unix:///run/service", "/run/service"),
    ],
)
def test_unix(text: str, path: str) -> None:
    assert parse_target(text) == UnixTarget(path)
    assert str(UnixTarget(path)) == f"unix:{path}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("unix:", "no path"),
        (":50051", "no host"),
        ("dns:", "no host"),
        ("host:", "port"),
        ("host:http", "'http' is not a number"),
        ("host:-1", "'-1'"),
        ("host:65536", "'65536'"),
        ("host:٣", "port"),
        ("[::1", "IPv6"),
        ("localhost:50051:1", "'localhost:50051:1' is not an IPv6 address"),
        ("[localhost:1]:50051", "'localhost:1' is not an IPv6 address"),
        ("10.0.0.1:1,10.0.0.2:1", "several addresses look like ipv4:10.0.0.1:50051,10.0.0.2:50051"),
        ("dns:///a,b:50051", "several addresses look like ipv4:"),
        ("[::1]50051", "IPv6"),
        ("http://example.org", "URL"),
        ("dns://8.8.8.8/example.org", "8.8.8.8"),
        ("dns://example.org", "dns:///"),
    ],
)
def test_malformed(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        parse_target(text)
    assert text in str(caught.value) or not text


def test_an_address_to_listen_on_needs_its_port() -> None:
    assert parse_target("localhost:0", default_port=None) == TcpTarget("localhost", 0)
    with pytest.raises(ValueError, match="no port"):
        parse_target("localhost", default_port=None)


@pytest.mark.parametrize("text", ["localhost:50051", "[::1]:50051", "10.0.0.1:1"])
def test_targets_write_themselves_as_they_are_read(text: str) -> None:
    assert str(parse_target(text)) == text


def test_the_default_port_is_that_of_https() -> None:
    assert DEFAULT_PORT == 443
