"""A name server on loopback, for tests: UDP and TCP on one port, made of dnspython's messages."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import trio


class NameServer:
    """Answers from records that a test gives it.

    Args:
        records: texts of the records of each name and kind, such as ``{("a.example.", "A"): ["10.0.0.1"]}``.

    Attributes:
        records: the same, to be changed at any time. A name that has none of any kind does not exist.
        queries: what was asked: how, name, kind, and the size of UDP answers that the client takes.
        port: where it listens.
    """

    def __init__(self, records: Mapping[tuple[str, str], Sequence[str]]) -> None:
        self.records = dict(records)
        self.queries: list[tuple[str, str, str, int]] = []
        self.port = 0

    def answer(self, wire: bytes, way: str) -> bytes:
        query = dns.message.from_wire(wire)
        (question,) = query.question
        name, kind = question.name.to_text(), dns.rdatatype.to_text(question.rdtype)
        self.queries.append((way, name, kind, query.payload))
        response = dns.message.make_response(query)
        response.flags |= dns.flags.AA | dns.flags.RA
        texts = self.records.get((name, kind))
        if texts:
            response.answer.append(dns.rrset.from_text(question.name, 30, "IN", kind, *texts))
        elif not any(known == name for known, _ in self.records):
            response.set_rcode(dns.rcode.NXDOMAIN)
        answer = response.to_wire(max_size=65535)
        if way == "UDP" and len(answer) > max(query.payload, 512):
            truncated = dns.message.make_response(query)
            truncated.flags |= dns.flags.TC
            answer = truncated.to_wire()
        return answer

    async def serve_udp(self, endpoint: trio.socket.SocketType) -> None:
        with endpoint:
            while True:
                wire, client = await endpoint.recvfrom(65535)
                await endpoint.sendto(self.answer(wire, "UDP"), client)

    async def serve_tcp(self, stream: trio.SocketStream) -> None:
        async with stream:
            data = b""
            while chunk := await stream.receive_some():
                data += chunk
                size = int.from_bytes(data[:2], "big") + 2
                if 2 < size <= len(data):
                    answer = self.answer(data[2:size], "TCP")
                    data = data[size:]
                    await stream.send_all(len(answer).to_bytes(2, "big") + answer)


@asynccontextmanager
async def open_name_server(
    records: Mapping[tuple[str, str], Sequence[str]], host: str = "127.0.0.1"
) -> AsyncIterator[NameServer]:
    """Run a name server for the length of the block."""
    server = NameServer(records)
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host=host)
        server.port = listener.socket.getsockname()[1]
        endpoint = trio.socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
        await endpoint.bind((host, server.port))
        nursery.start_soon(server.serve_udp, endpoint)
        nursery.start_soon(trio.serve_listeners, server.serve_tcp, [listener])
        yield server
        nursery.cancel_scope.cancel()
