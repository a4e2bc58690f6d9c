"""A name server that knows one name, as that of a cluster knows the pods behind a headless service."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import trio


async def serve_name(
    name: str, addresses: Sequence[str], *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
) -> None:
    """Answer over UDP on this machine until cancelled; the started value is the port."""
    with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as endpoint:
        await endpoint.bind(("127.0.0.1", 0))
        task_status.started(endpoint.getsockname()[1])
        while True:
            data, client = await endpoint.recvfrom(65535)
            await endpoint.sendto(answer(data, name, addresses), client)


def answer(data: bytes, name: str, addresses: Sequence[str]) -> bytes:
    """Return the answer to a query: all addresses of the name, and that there are no others."""
    query = dns.message.from_wire(data)
    response = dns.message.make_response(query)
    response.flags |= dns.flags.AA
    asked = query.question[0]
    if asked.name.to_text(omit_final_dot=True) != name:
        response.set_rcode(dns.rcode.NXDOMAIN)
    elif asked.rdtype == dns.rdatatype.A:
        # Good for 5 seconds, as in Kubernetes.
        response.answer.append(dns.rrset.from_text(asked.name, 5, "IN", "A", *addresses))
    return response.to_wire()
