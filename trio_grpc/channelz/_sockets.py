"""What the operating system knows of a socket, as messages of channelz: its ends and its options."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any

from trio_grpc._transport.byte_stream import Socket
from trio_grpc.channelz._v1.channelz_pb2 import Address, SocketOption, SocketOptionTcpInfo

#: Options that are told by their numbers.
_OPTIONS = (
    ("SO_SNDBUF", socket.SOL_SOCKET, socket.SO_SNDBUF),
    ("SO_RCVBUF", socket.SOL_SOCKET, socket.SO_RCVBUF),
    ("SO_KEEPALIVE", socket.SOL_SOCKET, socket.SO_KEEPALIVE),
)
_TCP_OPTIONS = tuple(
    (name, socket.IPPROTO_TCP, getattr(socket, name))
    for name in ("TCP_NODELAY", "TCP_USER_TIMEOUT")
    if hasattr(socket, name)
)
#: The beginning of Linux's struct tcp_info, which later kernels only add to: six bytes, two halves of one, some flags
#: that have no field, and the numbers from rto to reordering.
_TCP_INFO = struct.Struct("=6B2B21I")


def local_address(sock: Socket) -> Address | None:
    """Return this end of a socket, None where it has none any more."""
    return _address(sock, sock.getsockname)


def remote_address(sock: Socket) -> Address | None:
    """Return the other end of a socket, None where it has none any more."""
    return _address(sock, sock.getpeername)


def named_address(name: str) -> Address:
    """Return an end that only has a name: streams in memory, a user's own."""
    return Address(other_address=Address.OtherAddress(name=name))


def _address(sock: Socket, ask: Callable[[], Any]) -> Address | None:
    try:
        name = ask()
    except OSError:
        return None
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        host, port = name[:2]
        # A link-local address has its interface behind it.
        packed = socket.inet_pton(sock.family, host.partition("%")[0])
        return Address(tcpip_address=Address.TcpIpAddress(ip_address=packed, port=port))
    if isinstance(name, bytes):
        # An abstract one begins with a zero byte, for which people write "@".
        name = name.replace(b"\0", b"@", 1).decode(errors="replace")
    return Address(uds_address=Address.UdsAddress(filename=str(name)))


def address_text(address: Address | None) -> str:
    """Return what humans call an end."""
    if address is None:
        return "?"
    kind = address.WhichOneof("address")
    if kind == "tcpip_address":
        packed = address.tcpip_address.ip_address
        host = socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
        return f"[{host}]:{address.tcpip_address.port}" if ":" in host else f"{host}:{address.tcpip_address.port}"
    if kind == "uds_address":
        return f"unix:{address.uds_address.filename}"
    return address.other_address.name


def socket_options(sock: Socket) -> list[SocketOption]:
    """Return what can be asked of a socket here, TCP_INFO among it where that is Linux's."""
    options: list[SocketOption] = []
    tcp = sock.family in (socket.AF_INET, socket.AF_INET6)
    for name, level, number in (*_OPTIONS, *_TCP_OPTIONS) if tcp else _OPTIONS:
        try:
            options.append(SocketOption(name=name, value=str(sock.getsockopt(level, number))))
        except OSError:
            # This system has it not, or the connection has gone.
            continue
    if tcp:
        info = _tcp_info(sock)
        if info is not None:
            option = SocketOption(name="TCP_INFO")
            option.additional.Pack(info)
            options.append(option)
    return options


def _tcp_info(sock: Socket) -> SocketOptionTcpInfo | None:
    number = getattr(socket, "TCP_INFO", None)
    if number is None:
        return None
    try:
        data = sock.getsockopt(socket.IPPROTO_TCP, number, _TCP_INFO.size)
    except OSError:
        return None
    if len(data) < _TCP_INFO.size:
        # Of another system.
        return None
    state, ca_state, retransmits, probes, backoff, options, scales, _, *numbers = _TCP_INFO.unpack(data)
    # In the order of their field numbers, which is that of the struct.
    values = [state, ca_state, retransmits, probes, backoff, options, scales & 15, scales >> 4, *numbers]
    fields = SocketOptionTcpInfo.DESCRIPTOR.fields
    return SocketOptionTcpInfo(**{field.name: value for field, value in zip(fields, values, strict=True)})


__all__ = ["address_text", "local_address", "named_address", "remote_address", "socket_options"]
