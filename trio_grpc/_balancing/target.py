"""Target names: what the strings given to ``open_channel`` and ``serve`` mean (gRPC naming)."""

from __future__ import annotations

import ipaddress
from collections.abc import Container

import attrs

#: Port of a ``dns`` name that has none (gRPC naming).
DEFAULT_PORT = 443
#: Bits of the addresses that these schemes list.
_VERSIONS = {"ipv4": 4, "ipv6": 6}


@attrs.frozen
class TcpTarget:
    """A host name or address and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def version(self) -> int | None:
        """The version of IP whose literal address the host is, None for a name."""
        try:
            return ipaddress.ip_address(self.host).version
        except ValueError:
            return None


@attrs.frozen
class UnixTarget:
    """The path of a unix socket; it starts with a NUL where the name is abstract (Linux, unix(7))."""

    path: str

    @property
    def abstract(self) -> bool:
        """Whether it has no file."""
        return self.path.startswith("\0")

    def __str__(self) -> str:
        return f"unix-abstract:{self.path[1:]}" if self.abstract else f"unix:{self.path}"


@attrs.frozen
class ResolverTarget:
    """A target as resolvers see it: a URI taken apart.

    Attributes:
        scheme: which resolver is asked.
        authority: what stands between ``//`` and the next slash; mostly empty.
        path: the name to resolve, without the slash before it.
    """

    scheme: str
    authority: str
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}/{self.path}"


def split_target(text: str, schemes: Container[str]) -> ResolverTarget:
    """Take a target apart; one that has none of the schemes is a ``dns`` name, as in all of gRPC.

    Args:
        text: the target.
        schemes: schemes that are known.

    Raises:
        ValueError: the text is a URI of an unknown scheme, or has no path.
    """
    if not text:
        raise ValueError("target is empty: give 'host:port' or 'unix:path'")
    scheme, colon, rest = text.partition(":")
    if not colon or scheme not in schemes:
        if "://" in text:
            raise ValueError(
                f"target {text!r} is a URL; gRPC names look like 'host:port', 'dns:///host:port', 'unix:path' (other "
                "schemes need an entry in resolvers=)"
            )
        return ResolverTarget("dns", "", text)
    if rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        if not slash:
            raise ValueError(f"target {text!r}: write {scheme}:///{rest[2:]}")
        return ResolverTarget(scheme, authority, path)
    return ResolverTarget(scheme, "", rest)


def parse_target(text: str, *, default_port: int | None = DEFAULT_PORT) -> TcpTarget | UnixTarget:
    """Return the one place that a target or listening address means.

    Args:
        text: ``host:port``, ``host``, ``[v6 address]:port``, or one of these behind ``dns:``, ``dns:///``, ``ipv4:``,
            ``ipv6:``; or ``unix:path``, ``unix:///absolute/path``, ``unix-abstract:name``.
        default_port: the port where none is given; None to insist on one.

    Raises:
        ValueError: the text is none of these; the message shows it.
    """
    if text.startswith("unix:"):
        path = text[len("unix:") :]
        path = path[2:] if path.startswith("///") else path
        if not path:
            raise ValueError(f"target {text!r} has no path")
        return UnixTarget(path)
    target = split_target(text, ("dns", "unix-abstract", *_VERSIONS))
    if target.authority:
        raise ValueError(f"target {text!r}: {target.authority!r} is no part of an address")
    if target.scheme == "unix-abstract":
        if not target.path:
            raise ValueError(f"target {text!r} has no name")
        return UnixTarget(f"\0{target.path}")
    address = parse_host_port(target.path, text, default_port)
    version = _VERSIONS.get(target.scheme)
    if version is not None and address.version != version:
        raise ValueError(f"target {text!r}: {address.host!r} is not an IPv{version} address")
    return address


def parse_addresses(target: ResolverTarget) -> list[TcpTarget]:
    """Return the addresses that an ``ipv4`` or ``ipv6`` target lists, separated by commas.

    Raises:
        ValueError: one of them is no such address; the message shows it.
    """
    addresses = []
    for one in target.path.split(","):
        address = parse_target(f"{target.scheme}:{one.strip()}")
        assert isinstance(address, TcpTarget)
        addresses.append(address)
    return addresses


def parse_host_port(address: str, text: str, default_port: int | None) -> TcpTarget:
    """Return what ``host:port``, ``host`` or ``[v6 address]:port`` means.

    Args:
        address: that.
        text: the target that it is from, for messages.
        default_port: the port where none is given; None to insist on one.

    Raises:
        ValueError: it is none of these; the message shows the target.
    """
    port_text: str | None = None
    if address.startswith("["):
        host, bracket, rest = address[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"target {text!r}: a literal IPv6 address looks like [::1]:50051")
        if rest:
            port_text = rest[1:]
    elif address.count(":") > 1:
        # A bare IPv6 address, which leaves no room for a port.
        host = address
    else:
        host, colon, rest = address.partition(":")
        if colon:
            port_text = rest
    if not host:
        raise ValueError(f"target {text!r} has no host")
    if "," in host:
        raise ValueError(f"target {text!r}: several addresses look like ipv4:10.0.0.1:50051,10.0.0.2:50051")
    if ":" in host and TcpTarget(host, 0).version != 6:
        raise ValueError(f"target {text!r}: {host!r} is not an IPv6 address")
    if port_text is None:
        if default_port is None:
            raise ValueError(f"address {text!r} has no port")
        return TcpTarget(host, default_port)
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > 65535:
        raise ValueError(f"target {text!r}: port {port_text!r} is not a number from 0 to 65535")
    return TcpTarget(host, int(port_text))
