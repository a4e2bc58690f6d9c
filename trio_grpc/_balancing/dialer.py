"""How a channel gets a byte stream to one address: TCP, a tunnel, a unix socket or the user's own, and TLS over it."""

from __future__ import annotations

import os
import ssl
from collections.abc import Awaitable, Callable
from typing import cast

import attrs
import trio

from trio_grpc._balancing.http_proxy import HttpProxy, ProxyError, open_tunnel
from trio_grpc._balancing.target import TcpTarget, UnixTarget
from trio_grpc._transport.side import Side
from trio_grpc._transport.tls import TlsError, offer_h2, start_tls

#: What can be dialled: an address of ours, or the user's function that returns a new stream per connection.
Address = TcpTarget | UnixTarget | Callable[[], Awaitable[trio.abc.Stream]]


@attrs.frozen
class Dialer:
    """Opens byte streams the way one channel wants them. Knows no HTTP/2, and nothing of when to dial or how often.

    Attributes:
        ssl_context: TLS with this context, which must offer ``h2``; None: plaintext.
        server_hostname: the name that the peer's certificate must carry, whatever the address; and SNI.
        http_proxy: what TCP addresses are reached through. It resolves names itself, and may not let addresses pass:
            give it the target as the user wrote it (gRFC A1, case 1).
    """

    ssl_context: ssl.SSLContext | None
    server_hostname: str
    http_proxy: HttpProxy | None = None

    def describe(self, address: Address, text: str) -> str:
        """Return what errors about connecting to an address, otherwise called ``text``, are to call it."""
        if self.http_proxy is None or not isinstance(address, TcpTarget):
            return text
        return f"{text} through {self.http_proxy}"

    async def dial(self, address: Address) -> trio.abc.Stream:
        """Return a connected stream, after the TLS handshake where there is TLS. Knows no timeout of its own.

        Raises:
            OSError: the address cannot be reached, or does not speak TLS with ALPN ``h2``.
            Exception: whatever a function of the user's raises.
        """
        if isinstance(address, TcpTarget):
            stream: trio.abc.Stream = await self._open_tcp(address)
        elif isinstance(address, UnixTarget):
            stream = await trio.open_unix_socket(address.path)
        else:
            stream = await address()
            # It is the user's: annotations prove nothing.
            if not isinstance(cast("object", stream), trio.abc.Stream):
                raise TypeError(f"what connects must return a trio.abc.Stream, not {type(stream).__name__}")
        if self.ssl_context is None:
            return stream
        offer_h2(self.ssl_context)
        try:
            return await start_tls(stream, self.ssl_context, Side.CLIENT, self.server_hostname)
        except TlsError as error:
            raise TlsError(f"TLS handshake failed: {error}") from error.__cause__

    async def _open_tcp(self, address: TcpTarget) -> trio.SocketStream:
        proxy = self.http_proxy
        if proxy is None:
            return await _open_tcp(address)
        try:
            stream = await _open_tcp(proxy.address)
        except OSError as error:
            raise ProxyError(f"the proxy cannot be reached: {error}") from error
        try:
            await open_tunnel(stream, proxy, address)
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream


async def _open_tcp(address: TcpTarget) -> trio.SocketStream:
    try:
        return await trio.open_tcp_stream(address.host, address.port)
    except OSError as error:
        # trio says that all attempts failed, and why only in a group. Users want the reason in the first line.
        attempts = getattr(error.__cause__, "exceptions", ())
        reasons = {attempt.errno: os.strerror(attempt.errno) for attempt in attempts if attempt.errno is not None}
        if not reasons:
            raise
        if len(reasons) > 1:
            raise OSError("; ".join(reasons.values())) from error
        # With a number it is of the right subclass, e.g. ConnectionRefusedError.
        raise OSError(*reasons.popitem()) from error


def once(stream: trio.abc.Stream) -> Callable[[], Awaitable[trio.abc.Stream]]:
    """Return an address at which this stream is found once, and never again."""
    unused = [stream]

    async def dial() -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        if not unused:
            raise OSError("the stream that the channel was opened with has ended and cannot be made again")
        return unused.pop()

    return dial
