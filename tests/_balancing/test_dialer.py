"""The dialer: what opens a byte stream to an address, and what it says when it cannot."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import pytest
import trio
import trio.testing

from trio_grpc._balancing.dialer import Dialer, once
from trio_grpc._balancing.http_proxy import HttpProxy
from trio_grpc._balancing.target import TcpTarget, UnixTarget

PLAIN = Dialer(None, "localhost")


class Refused(trio.abc.SocketFactory):
    """Makes sockets that fail to connect, each for the next reason."""

    def __init__(self, *reasons: int) -> None:
        self.reasons = list(reasons)

    def socket(self, *_args: Any) -> Any:
        reasons = self.reasons

        class Socket(trio.socket.SocketType):
            def __init__(self) -> None:
                """Be made, unlike trio's."""

            async def connect(self, _address: object) -> None:
                await trio.lowlevel.checkpoint()
                number = reasons.pop(0)
                raise OSError(number, os.strerror(number))

            def setsockopt(self, *_args: Any) -> None: ...

            def close(self) -> None: ...

        return Socket()


class Resolver(trio.abc.HostnameResolver):
    """Each name has two addresses."""

    async def getaddrinfo(self, host: object, port: Any, *args: object, **options: object) -> Any:
        await trio.lowlevel.checkpoint()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in ("192.0.2.1", "192.0.2.2")]

    async def getnameinfo(self, *args: object) -> Any:
        raise NotImplementedError


async def test_all_attempts_refused_for_one_reason_are_that_reason(autojump_clock: trio.testing.MockClock) -> None:
    trio.socket.set_custom_hostname_resolver(Resolver())
    trio.socket.set_custom_socket_factory(Refused(errno.ECONNREFUSED, errno.ECONNREFUSED))
    with pytest.raises(ConnectionRefusedError, match=os.strerror(errno.ECONNREFUSED)):
        await PLAIN.dial(TcpTarget("name.example", 1))


async def test_attempts_that_fail_for_several_reasons_name_them_all(autojump_clock: trio.testing.MockClock) -> None:
    trio.socket.set_custom_hostname_resolver(Resolver())
    trio.socket.set_custom_socket_factory(Refused(errno.ECONNREFUSED, errno.EHOSTUNREACH))
    with pytest.raises(OSError, match=r"refused; No route to host"):
        await PLAIN.dial(TcpTarget("name.example", 1))


def test_only_what_goes_through_a_proxy_is_said_to() -> None:
    proxied = Dialer(None, "localhost", HttpProxy(TcpTarget("proxy.example", 3128)))
    tcp = TcpTarget("name.example", 1)
    assert proxied.describe(tcp, "name.example:1") == "name.example:1 through HTTP proxy proxy.example:3128"
    assert proxied.describe(UnixTarget("x"), "unix:x") == "unix:x"
    assert proxied.describe(trio.lowlevel.checkpoint, "mine") == "mine"  # type: ignore[arg-type]
    assert PLAIN.describe(tcp, "name.example:1") == "name.example:1"


async def test_a_function_is_called_for_each_stream() -> None:
    streams = [trio.testing.memory_stream_pair()[0] for _ in range(2)]
    waiting = list(streams)

    async def dial() -> trio.abc.Stream:
        return waiting.pop(0)

    assert [await PLAIN.dial(dial), await PLAIN.dial(dial)] == streams


async def test_a_stream_is_found_once() -> None:
    stream, _ = trio.testing.memory_stream_pair()
    address = once(stream)
    assert await PLAIN.dial(address) is stream
    with pytest.raises(OSError, match="cannot be made again"):
        await PLAIN.dial(address)
