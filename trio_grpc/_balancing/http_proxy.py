"""HTTP proxies (gRFC A1): whether one stands before a target, and the CONNECT tunnel through it.

The proxy is not asked about gRPC: it joins two TCP connections (RFC 9110, 9.3.6), and whatever runs through the tunnel,
TLS included, is between us and the target.
"""

from __future__ import annotations

import base64
import ipaddress
import logging
import urllib.parse
from collections.abc import Mapping
from typing import Literal

import attrs
import trio

from trio_grpc._balancing.target import TcpTarget
from trio_grpc._version import USER_AGENT

_logger = logging.getLogger("trio_grpc")

#: What `open_channel` takes: a URL; False for no proxy; None for what the environment says.
ProxyOption = str | Literal[False] | None

# The names and their order are C-core's (doc/core/default_http_proxy_mapper.md): the first that is set decides, and an
# empty value says "none".
_PROXY_NAMES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTION_NAMES = ("no_grpc_proxy", "no_proxy")
#: Port of a proxy whose URL has none, as in C-core and grpc-go.
_DEFAULT_PORT = 443
#: Bytes of an answer's head at most: what Node.js, and so grpc-js, takes.
_MAX_ANSWER = 16_384
#: Characters of an answer that an error shows at most.
_MAX_SHOWN = 200


class ProxyError(OSError):
    """The proxy gave no tunnel; the text says what it did instead."""


@attrs.frozen
class HttpProxy:
    """One proxy.

    Attributes:
        address: where it listens.
        authorization: the value of ``proxy-authorization``; None without user and password. Never shown.
    """

    address: TcpTarget
    authorization: str | None = attrs.field(default=None, repr=False)

    def __str__(self) -> str:
        return f"HTTP proxy {self.address}"


# ---------------------------------------------------------------------------------------------------------------------
# Which proxy


def choose_proxy(target: TcpTarget | None, option: ProxyOption, environment: Mapping[str, str]) -> HttpProxy | None:
    """Return the proxy before a target, None for a direct connection.

    Args:
        target: as the user wrote it: names are not resolved, the proxy does that. None: it is reached in another way.
        option: ``http_proxy=`` of `open_channel`. A URL holds for every TCP target, and the environment is not asked.
        environment: usually `os.environ`. A value that is no URL of an HTTP proxy is logged and not used, as in
            C-core: it may be meant for other programs.

    Raises:
        ValueError: the option is no URL of an HTTP proxy.
        TypeError: the option is of none of the types it may have.
    """
    # A wrong option is told whatever the target is.
    proxy = None if option is None else _parse_option(option)
    if target is None:
        return None
    return proxy if option is not None else _find_proxy(target, environment)


def _parse_option(option: str | Literal[False]) -> HttpProxy | None:
    if option is False:
        return None
    if not isinstance(option, str):
        raise TypeError(f"http_proxy must be a URL, False or None, not {type(option).__name__}")
    try:
        return _parse_proxy(option)
    except ValueError as error:
        raise ValueError(f"http_proxy: {error}") from None


def _find_proxy(target: TcpTarget, environment: Mapping[str, str]) -> HttpProxy | None:
    name = next((name for name in _PROXY_NAMES if name in environment), None)
    if name is None or not environment[name].strip():
        return None
    if _is_loopback(target.host) or _is_exception(target, environment):
        return None
    try:
        return _parse_proxy(environment[name])
    except ValueError as error:
        _logger.error("the environment variable %s is not used: %s", name, error)
        return None


def _parse_proxy(text: str) -> HttpProxy:
    # Errors never show the text: it may hold a password.
    text = text.strip()
    try:
        parts = urllib.parse.urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("it is no URL like 'http://user:password@host:port'") from None
    if parts.scheme != "http":
        # Neither C-core nor grpc-go speak TLS, or SOCKS, to the proxy itself.
        raise ValueError(f"proxies are reached by 'http', not by {parts.scheme!r}")
    if not host or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError("it is no URL like 'http://user:password@host:port'")
    authorization = None
    if parts.username is not None:
        # RFC 7617, 2: in UTF-8, as nearly every proxy takes it.
        credentials = urllib.parse.unquote(parts.username) + ":" + urllib.parse.unquote(parts.password or "")
        authorization = "Basic " + base64.b64encode(credentials.encode()).decode("ascii")
    return HttpProxy(TcpTarget(host, _DEFAULT_PORT if port is None else port), authorization)


def _is_loopback(host: str) -> bool:
    # No proxy elsewhere can reach what is meant; Go's proxies from the environment leave it out as well.
    address = _parse_address(host)
    if address is None:
        return _plain_name(host) == "localhost"
    return address.is_loopback or address.is_unspecified


def _is_exception(target: TcpTarget, environment: Mapping[str, str]) -> bool:
    name = next((name for name in _EXCEPTION_NAMES if name in environment), None)
    return name is not None and any(_covers(entry.strip(), target) for entry in environment[name].split(","))


def _covers(entry: str, target: TcpTarget) -> bool:
    """Whether one entry of ``no_proxy`` means this target: a name, ``.suffix``, address or network, maybe a port."""
    if entry == "*":
        return True
    if "/" in entry:
        try:
            network = ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
        address = _parse_address(target.host)
        return address is not None and address in network
    host, port = entry, ""
    if entry.startswith("["):
        host, _, port = entry[1:].partition("]")
        port = port.removeprefix(":")
    elif entry.count(":") == 1:
        host, _, port = entry.partition(":")
    if port and port != str(target.port):
        return False
    address = _parse_address(host)
    if address is not None:
        return address == _parse_address(target.host)
    # Names end at a dot: `example.org` is no exception for `anexample.org`, as it is in C-core. As in Go, a name means
    # itself and what is below it, and with a dot in front only that.
    name, wanted = _plain_name(target.host), _plain_name(host.removeprefix("*"))
    if not wanted.strip("."):
        return False
    return name.endswith(wanted) if wanted.startswith(".") else name == wanted or name.endswith(f".{wanted}")


def _plain_name(host: str) -> str:
    return host.lower().rstrip(".")


def _parse_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


# ---------------------------------------------------------------------------------------------------------------------
# The tunnel


async def open_tunnel(stream: trio.abc.Stream, proxy: HttpProxy, target: TcpTarget) -> None:
    """Turn a stream to a proxy into one to the target. Knows no timeout of its own.

    Not a byte behind the proxy's answer is read: a server may well speak first.

    Raises:
        ProxyError: the proxy gave no tunnel. The stream is of no further use.
    """
    try:
        await stream.send_all(_connect_request(proxy, target))
        status, reason, room = 100, "", _MAX_ANSWER
        # Interim answers come before the final one (RFC 9110, 15.2).
        while status < 200:
            head = await _read_head(stream, room)
            room -= len(head)
            status, reason = _parse_status(head)
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise ProxyError(f"the proxy broke the connection: {error.__cause__ or error}") from error
    if status >= 300:
        raise ProxyError(f"the proxy answered {status} {reason}".rstrip())


def _connect_request(proxy: HttpProxy, target: TcpTarget) -> bytes:
    host = target.host if target.host.isascii() else target.host.encode("idna").decode("ascii")
    if any(char <= " " or char == "\x7f" for char in host):
        raise ValueError(f"host name {host!r} has a character that no host name has")
    authority = str(TcpTarget(host, target.port))
    lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}", f"User-Agent: {USER_AGENT}"]
    if proxy.authorization is not None:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    return "\r\n".join([*lines, "", ""]).encode("ascii")


async def _read_head(stream: trio.abc.Stream, room: int) -> bytes:
    head = bytearray()
    # The shortest end of a head is two line feeds (RFC 9112, 2.2 lets a lone one end a line). So two octets are
    # sure to belong to the head until one of them has been seen, and a hundred short reads per connection cost nothing.
    while not head.endswith((b"\n\n", b"\n\r\n")):
        chunk = await stream.receive_some(1 if head.endswith((b"\n", b"\n\r")) else 2)
        if not chunk:
            raise ProxyError(f"the proxy hung up {'in the middle of' if head else 'without'} an answer")
        head += chunk
        if len(head) > room:
            raise ProxyError(f"the proxy's answer is longer than {_MAX_ANSWER} bytes")
        if not b"HTTP/1.".startswith(head[:7]):
            raise ProxyError(f"the proxy's answer is not HTTP/1.1: it begins with {bytes(head)!r}")
    return bytes(head)


def _parse_status(head: bytes) -> tuple[int, str]:
    line = head.partition(b"\n")[0].rstrip(b"\r")
    version, _, rest = line.partition(b" ")
    status, _, reason = rest.partition(b" ")
    # Below 100 there is no status (RFC 9110, 15), and nothing to wait for after it.
    if len(version) != 8 or len(status) != 3 or not status.isdigit() or status < b"100":
        raise ProxyError(f"the proxy's answer is not HTTP/1.1: it begins with {line[:_MAX_SHOWN]!r}")
    text = reason.decode("latin-1")[:_MAX_SHOWN]
    return int(status), "".join(char if char.isprintable() else "?" for char in text)
