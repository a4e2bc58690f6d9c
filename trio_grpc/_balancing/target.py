"""Target names: what the string given to ``open_channel`` or ``serve`` means (gRPC naming)."""

from __future__ import annotations

import attrs

#: Port of a ``dns`` name that has none (gRPC naming).
DEFAULT_PORT = 443


@attrs.frozen
class TcpTarget:
    """A host name or address and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@attrs.frozen
class UnixTarget:
    """The path of a unix socket."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


def parse_target(text: str, *, default_port: int | None = DEFAULT_PORT) -> TcpTarget | UnixTarget:
    """Return what a target or listening address means.

    Args:
        text: ``host:port``, ``host``, ``[v6 address]:port``, or one of these behind ``dns:``, ``dns:///``, ``ipv4:``,
            ``ipv6:``; or ``unix:path``, ``unix:///absolute/path``.
        default_port: the port where none is given; None to insist on one.

    Raises:
        ValueError: the text is none of these; the message shows it.
    """
    if not text:
        raise ValueError("target is empty: give 'host:port' or 'unix:path'")
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "unix":
        path = rest[2:] if rest.startswith("///") else rest
        if not path:
            raise ValueError(f"target {text!r} has no path")
        return UnixTarget(path)
    if colon and scheme == "dns":
        if rest.startswith("//"):
            authority, slash, rest = rest[2:].partition("/")
            if not slash:
                raise ValueError(f"target {text!r}: write dns:///host:port")
            if authority:
                raise ValueError(f"target {text!r}: a DNS server of its own ({authority}) is not supported")
        return _parse_host_port(rest, text, default_port)
    if colon and scheme in ("ipv4", "ipv6"):
        return _parse_host_port(rest, text, default_port)
    if "://" in text:
        raise ValueError(f"target {text!r} is a URL; gRPC names look like 'host:port', 'dns:///host:port', 'unix:path'")
    return _parse_host_port(text, text, default_port)


def _parse_host_port(address: str, text: str, default_port: int | None) -> TcpTarget:
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
    if port_text is None:
        if default_port is None:
            raise ValueError(f"address {text!r} has no port")
        return TcpTarget(host, default_port)
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > 65535:
        raise ValueError(f"target {text!r}: port {port_text!r} is not a number from 0 to 65535")
    return TcpTarget(host, int(port_text))
