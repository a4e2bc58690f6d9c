"""Addresses that several processes serve together: bound before these are made, listened on in each of them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack

import trio

from trio_grpc._balancing.target import TcpTarget, UnixTarget, parse_target
from trio_grpc._server import Address, errors_name, listed_addresses, listen_unix, socket_name

#: As many as the system allows; it cuts this down (listen(2), net.core.somaxconn).
_BACKLOG = 0xFFFF


class SharedAddresses:
    """Bound sockets, and what a process listens with.

    A TCP address is bound here and not listened on. That reserves its port, also the one that the system chose for
    port 0, and finds out at once when it is taken. Each process listens with a socket of its own beside it
    (SO_REUSEPORT, socket(7)): the kernel then spreads new connections over the processes, and knows when one has died.
    Unix sockets have no such thing: there is one socket, and all processes accept from it.

    Args:
        address: as for `serve`, without listeners: a stream of theirs is not one for each process.

    Attributes:
        names: the addresses, as targets for `open_channel`.

    Raises:
        OSError: an address cannot be bound.
        TypeError, ValueError: an address is malformed, or a listener.
    """

    def __init__(self, address: Address | Sequence[Address]) -> None:
        self.names: list[str] = []
        self._reserved: list[socket.socket] = []
        self._unix: list[socket.socket] = []
        self._files = ExitStack()
        texts: list[str] = []
        for one in listed_addresses(address):
            if isinstance(one, trio.abc.Listener):
                raise ValueError(f"workers: processes cannot share a {type(one).__name__}, give addresses as text")
            texts.append(one)
        targets = [(text, parse_target(text, default_port=None)) for text in texts]
        try:
            for text, target in targets:
                with errors_name(text):
                    self._bind(target)
        except BaseException:
            self.close()
            raise

    def _bind(self, target: TcpTarget | UnixTarget) -> None:
        if isinstance(target, UnixTarget):
            sock, file = listen_unix(target)
            self._unix.append(sock)
            if file is not None:
                self._files.callback(file.remove)
            self.names.append(str(target))
        else:
            bound = _bind_tcp(target)
            self._reserved.extend(bound)
            self.names.extend(socket_name(sock.getsockname()) for sock in bound)

    def listeners(self) -> list[trio.SocketListener]:
        """Listen, in one of the processes; what was bound before it was made is handed over or closed.

        Raises:
            OSError: the system refuses.
        """
        listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(sock)) for sock in self._unix]
        for reserved in self._reserved:
            sock = _tcp_socket(reserved.family)
            sock.bind(reserved.getsockname())
            sock.listen(_BACKLOG)
            listeners.append(trio.SocketListener(trio.socket.from_stdlib_socket(sock)))
            reserved.close()
        return listeners

    def close(self) -> None:
        """Let new connections be refused, as soon as the other processes have closed theirs; remove socket files."""
        for sock in (*self._reserved, *self._unix):
            sock.close()
        self._files.close()


def _tcp_socket(family: socket.AddressFamily | int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    # As trio.open_tcp_listeners: a restarted server need not wait for old connections to be forgotten.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == socket.AF_INET6:
        # "[::]" beside "0.0.0.0" is no conflict.
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return sock


def _bind_tcp(target: TcpTarget) -> list[socket.socket]:
    """Bind every address that the host has, as trio.open_tcp_listeners does."""
    bound: list[socket.socket] = []
    unsupported: OSError | None = None
    resolved = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    try:
        for family, _, _, _, name in resolved:
            try:
                sock = _tcp_socket(family)
            except OSError as error:
                # A host may have an IPv6 address where the system has no IPv6.
                unsupported = error
                continue
            bound.append(sock)
            sock.bind(name)
    except BaseException:
        for sock in bound:
            sock.close()
        raise
    if not bound:
        assert unsupported is not None
        raise unsupported
    return bound
