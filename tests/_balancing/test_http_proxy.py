"""HTTP proxies: which targets have one, and the tunnel through it (gRFC A1; RFC 9110, 9.3.6)."""

from __future__ import annotations

import base64
import logging
from typing import Any

import pytest
import trio
import trio.testing

from trio_grpc._balancing.http_proxy import HttpProxy, ProxyError, choose_proxy, open_tunnel
from trio_grpc._balancing.target import TcpTarget

TARGET = TcpTarget("backend.example", 50051)
PROXY = HttpProxy(TcpTarget("proxy.example", 3128))


def chosen(environment: dict[str, str], host: str = "backend.example", port: int = 50051) -> str | None:
    """The address of the proxy that the environment puts before a host."""
    proxy = choose_proxy(TcpTarget(host, port), None, environment)
    return None if proxy is None else str(proxy.address)


# -- from the environment


@pytest.mark.parametrize(
    ("environment", "proxy"),
    [
        ({}, None),
        ({"http_proxy": "http://h:1"}, "h:1"),
        ({"https_proxy": "http://s:2", "http_proxy": "http://h:1"}, "s:2"),
        ({"grpc_proxy": "http://g:3", "https_proxy": "http://s:2", "http_proxy": "http://h:1"}, "g:3"),
        # The first that is set decides, also with "none".
        ({"grpc_proxy": "", "http_proxy": "http://h:1"}, None),
        ({"grpc_proxy": " ", "http_proxy": "http://h:1"}, None),
        # Others than these are for other programs: HTTP_PROXY can come from a request to a CGI script.
        ({"HTTP_PROXY": "http://h:1", "HTTPS_PROXY": "http://h:1", "all_proxy": "http://h:1"}, None),
    ],
)
def test_the_first_name_that_is_set_decides(environment: dict[str, str], proxy: str | None) -> None:
    assert chosen(environment) == proxy


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("http://proxy.example:3128", "proxy.example:3128"),
        ("http://proxy.example:3128/", "proxy.example:3128"),
        ("HTTP://Proxy.Example:3128", "proxy.example:3128"),
        (" http://proxy.example:3128 ", "proxy.example:3128"),
        ("proxy.example:3128", "proxy.example:3128"),
        ("http://proxy.example", "proxy.example:443"),
        ("10.0.0.1:8080", "10.0.0.1:8080"),
        ("http://[2001:db8::1]:3128", "[2001:db8::1]:3128"),
        ("http://user:secret@proxy.example:3128", "proxy.example:3128"),
    ],
)
def test_urls(url: str, proxy: str) -> None:
    assert chosen({"http_proxy": url}) == proxy
    option = choose_proxy(TARGET, url, {})
    assert option is not None
    assert str(option.address) == proxy
    assert str(option) == f"HTTP proxy {proxy}"


MALFORMED = [
    "https://user:secret@proxy.example:3128",
    "socks5://user:secret@proxy.example:1080",
    "http://user:secret@",
    "http://user:secret@proxy.example:http",
    "http://user:secret@proxy.example:65536",
    "http://user:secret@[proxy.example:1",
    "http://user:secret@proxy.example:1/path",
    "http://user:secret@proxy.example:1?query",
    "user:secret@:3128",
    "",
]


@pytest.mark.parametrize("url", MALFORMED)
def test_a_malformed_url_as_the_option_is_refused_and_not_shown(url: str) -> None:
    for target in (TARGET, None):
        with pytest.raises(ValueError, match=r"^http_proxy: ") as caught:
            choose_proxy(target, url, {})
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", MALFORMED[:-1])
def test_a_malformed_url_in_the_environment_is_logged_and_not_used(url: str, caplog: pytest.LogCaptureFixture) -> None:
    assert chosen({"https_proxy": url, "http_proxy": "http://h:1"}) is None
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "https_proxy" in record.getMessage()
    assert "secret" not in caplog.text


@pytest.mark.parametrize("option", [True, b"http://proxy.example", 3128, PROXY])
def test_an_option_of_another_type_is_refused(option: Any) -> None:
    with pytest.raises(TypeError, match=f"http_proxy must be.*{type(option).__name__}"):
        choose_proxy(TARGET, option, {})


def test_the_option_rules_out_the_environment() -> None:
    environment = {"http_proxy": "http://h:1", "no_proxy": "*"}
    assert choose_proxy(TARGET, False, environment) is None
    proxy = choose_proxy(TARGET, "http://o:2", environment)
    assert proxy is not None
    assert proxy.address == TcpTarget("o", 2)
    # Said in so many words, it holds for targets on this machine, too.
    assert choose_proxy(TcpTarget("localhost", 1), "http://o:2", environment) == proxy


def test_what_is_not_reached_over_tcp_has_no_proxy() -> None:
    assert choose_proxy(None, None, {"http_proxy": "http://h:1"}) is None
    assert choose_proxy(None, "http://o:2", {}) is None


# -- exceptions

BEHIND = {"http_proxy": "http://h:1"}


@pytest.mark.parametrize(
    ("entry", "direct", "proxied"),
    [
        ("example.org", ["example.org", "EXAMPLE.org.", "a.example.org", "b.a.example.org"], ["anexample.org", "org"]),
        (".example.org", ["a.example.org", "b.a.example.org"], ["example.org", "anexample.org"]),
        ("*.example.org", ["a.example.org"], ["example.org", "anexample.org"]),
        ("Example.ORG.", ["example.org", "a.example.org"], ["example.com"]),
        ("a.example.org", ["a.example.org"], ["example.org", "b.example.org"]),
        ("*", ["example.org", "10.0.0.1", "2001:db8::1"], []),
        ("10.0.0.1", ["10.0.0.1", "::ffff:10.0.0.1"], ["10.0.0.2", "110.0.0.1", "x.10.0.0.1"]),
        ("10.1.0.0/16", ["10.1.0.0", "10.1.255.255"], ["10.2.0.0", "name.example", "2001:db8::1"]),
        ("10.1.2.3/16", ["10.1.255.255"], ["10.2.0.0"]),
        ("2001:db8::1", ["2001:db8::1", "2001:DB8:0::1"], ["2001:db8::2"]),
        ("[2001:db8::1]", ["2001:db8::1"], ["2001:db8::2"]),
        ("2001:db8::/32", ["2001:db8::1", "2001:db8:ffff::", "2001:db8::1%eth0"], ["2001:db9::", "10.0.0.1"]),
        ("example.org:50051", ["example.org", "a.example.org"], ["example.com"]),
        ("example.org:1", [], ["example.org"]),
        ("10.0.0.1:50051", ["10.0.0.1"], ["10.0.0.2"]),
        ("10.0.0.1:1", [], ["10.0.0.1"]),
        ("[2001:db8::1]:50051", ["2001:db8::1"], ["2001:db8::2"]),
        ("[2001:db8::1]:1", [], ["2001:db8::1"]),
        # Nothing of this names anything.
        ("", [], ["example.org", "10.0.0.1"]),
        (" ,, . ,/,*.,:,[],[]:,10.0.0.0/33,/8,10.0.0.0/", [], ["example.org", "10.0.0.0"]),
    ],
)
@pytest.mark.parametrize("name", ["no_proxy", "no_grpc_proxy"])
def test_exceptions(name: str, entry: str, direct: list[str], proxied: list[str]) -> None:
    for one in (entry, f"other.example, {entry}", f"{entry} ,other.example"):
        for host in direct:
            assert chosen({**BEHIND, name: one}, host) is None, host
        for host in proxied:
            assert chosen({**BEHIND, name: one}, host) == "h:1", host


def test_the_exceptions_of_grpc_rule_out_the_general_ones() -> None:
    environment = {**BEHIND, "no_grpc_proxy": "a.example", "no_proxy": "b.example"}
    assert chosen(environment, "a.example") is None
    assert chosen(environment, "b.example") == "h:1"
    assert chosen({**environment, "no_grpc_proxy": ""}, "b.example") == "h:1"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "127.0.0.1", "127.8.9.10", "::1", "0.0.0.0", "::"])
def test_this_machine_is_never_behind_a_proxy_of_the_environment(host: str) -> None:
    assert chosen({**BEHIND, "no_proxy": ""}, host) is None


# -- the request


class Answering:
    """A proxy that gives one answer, whatever it is asked."""

    def __init__(self) -> None:
        self.near, self.far = trio.testing.memory_stream_pair()

    async def request(self) -> bytes:
        data = b""
        while not data.endswith(b"\r\n\r\n"):
            data += await self.far.receive_some(1)
        return data


@pytest.fixture
def answering() -> Answering:
    return Answering()


async def ask(answering: Answering, proxy: HttpProxy = PROXY, target: TcpTarget = TARGET) -> list[str]:
    """The lines of the request."""
    await answering.far.send_all(b"HTTP/1.1 200 OK\r\n\r\n")
    await open_tunnel(answering.near, proxy, target)
    return (await answering.request()).decode("ascii").split("\r\n")


async def test_the_request(answering: Answering) -> None:
    line, *fields, end, nothing = await ask(answering)
    assert line == "CONNECT backend.example:50051 HTTP/1.1"
    assert (end, nothing) == ("", "")
    named = dict(field.split(": ", 1) for field in fields)
    assert set(named) == {"Host", "User-Agent"}
    assert named["Host"] == "backend.example:50051"
    assert named["User-Agent"].startswith("grpc-python-trio/")


@pytest.mark.parametrize(
    ("host", "authority"),
    [("2001:db8::1", "[2001:db8::1]:50051"), ("bücher.example", "xn--bcher-kva.example:50051")],
)
async def test_hosts_in_the_request(answering: Answering, host: str, authority: str) -> None:
    line, field, *_ = await ask(answering, target=TcpTarget(host, 50051))
    assert line == f"CONNECT {authority} HTTP/1.1"
    assert field == f"Host: {authority}"


@pytest.mark.parametrize("host", ["a\r\nHost: b", "a b", "a\x7f", "a\tb", "\u2028"])
async def test_a_host_that_would_break_the_request_is_refused(answering: Answering, host: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        await open_tunnel(answering.near, PROXY, TcpTarget(host, 1))
    await answering.near.aclose()
    assert not await answering.far.receive_some()


@pytest.mark.parametrize(
    ("user_info", "credentials"),
    [
        ("user:secret", "user:secret"),
        ("user", "user:"),
        ("user:", "user:"),
        ("u%40b:p%3Aw%2F%20", "u@b:p:w/ "),
        ("us%C3%A9r:p%E2%82%AC", "usér:p€"),
    ],
)
async def test_user_and_password(answering: Answering, user_info: str, credentials: str) -> None:
    proxy = choose_proxy(TARGET, f"http://{user_info}@proxy.example:3128", {})
    assert proxy is not None
    lines = await ask(answering, proxy)
    value = next(line for line in lines if line.startswith("Proxy-Authorization: Basic ")).split()[-1]
    assert base64.b64decode(value).decode() == credentials
    # Nothing that is logged or raised shows them.
    assert value not in f"{proxy} {proxy!r}"


# -- the answer

TUNNELS = [
    b"HTTP/1.1 200 Connection established\r\n\r\n",
    b"HTTP/1.0 200 OK\r\nVia: 1.0 proxy\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 200 OK\nVia: lone line feeds\n\n",
    b"HTTP/1.1 200 OK\nVia: mixed\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nX: y\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: ".ljust(16_380, b"y") + b"\r\n\r\n",
]


@pytest.mark.parametrize("answer", TUNNELS)
@pytest.mark.parametrize("size", [1, 2, 3, 1_000_000])
async def test_what_the_server_says_first_is_not_lost(answering: Answering, answer: bytes, size: int) -> None:
    said = answer + b"\n\r\n first words"

    async def answer_slowly() -> None:
        await answering.request()
        step = max(size, len(said) // 100)
        for start in range(0, len(said), step):
            await answering.far.send_all(said[start : start + step])
            await trio.testing.wait_all_tasks_blocked()
        await answering.far.send_stream.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_slowly)
        await open_tunnel(answering.near, PROXY, TARGET)
    rest = b""
    while chunk := await answering.near.receive_some():
        rest += chunk
    assert rest == b"\n\r\n first words"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n<html>", "407 Proxy Auth"),
        (b"HTTP/1.1 403\r\n\r\n", "answered 403"),
        (b"HTTP/1.0 502 Bad Gateway\r\n\r\n", "answered 502 Bad Gateway"),
        (b"HTTP/1.1 301 Moved\r\nLocation: http://x\r\n\r\n", "answered 301 Moved"),
        (b"HTTP/1.1 500 \x1b[31m\xff\x00\r\n\r\n", "answered 500 ?[31mÿ?"),
        (b"HTTP/1.1 500 " + b"x" * 1000 + b"\r\n\r\n", "answered 500 " + "x" * 200),
        (b"", "hung up without an answer"),
        (b"HTTP/1.1 099 x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", "begins with b'HTTP/1.1 099 x'"),
        (b"HTTP/1.1 200 OK\r\n", "hung up in the middle of an answer"),
        (b"HTTP/1.1 200 OK\r\nX: ".ljust(16_381, b"y") + b"\r\n\r\n", "longer than 16384 bytes"),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "not HTTP/1.1: it begins with b'SS'"),
        (bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)), "not HTTP/1.1"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "not HTTP/1.1"),
        (b"HTTP/2 200 OK\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 OK\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1200 OK\r\n\r\n", "not HTTP/1.1"),
        (b"\r\n\r\n", "not HTTP/1.1"),
    ],
)
async def test_no_tunnel(answering: Answering, answer: bytes, text: str) -> None:
    if answer:
        await answering.far.send_all(answer)
    await answering.far.send_stream.aclose()
    with pytest.raises(ProxyError) as caught:
        await open_tunnel(answering.near, PROXY, TARGET)
    assert text in str(caught.value)
    assert len(str(caught.value)) < 300


async def test_an_endless_row_of_interim_answers_is_no_answer(answering: Answering) -> None:
    await answering.far.send_all(b"HTTP/1.1 100 Continue\r\n\r\n" * 2000)
    with pytest.raises(ProxyError, match="longer than 16384 bytes"):
        await open_tunnel(answering.near, PROXY, TARGET)


async def test_a_proxy_that_breaks_the_connection(answering: Answering) -> None:
    await trio.aclose_forcefully(answering.far)
    with pytest.raises(ProxyError, match="broke the connection"):
        await open_tunnel(answering.near, PROXY, TARGET)
