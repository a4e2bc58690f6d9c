"""mTLS, renewed certificates and call credentials with grpcio at the other end."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import grpc
import pytest
import trio
import trustme
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer, EchoStub

import trio_grpc
import trio_grpc.tls
from trio_grpc import BearerToken, RpcError, Server, StatusCode

pytestmark = pytest.mark.watchdog(30)

PATH = EchoServicer.__trio_grpc_methods__["Unary"].path
PATIENCE = 20


@attrs.frozen
class Operator:
    """Has an authority, and a folder with the files of all."""

    folder: Path
    authority: trustme.CA = attrs.field(factory=trustme.CA)

    def __attrs_post_init__(self) -> None:
        self.authority.cert_pem.write_to_path(self.folder / "ca.pem")
        self.issue("server", "localhost")
        self.issue("client", "client.example")

    def issue(self, file: str, identity: str, common_name: str = "first") -> None:
        leaf = self.authority.issue_cert(identity, common_name=common_name)
        leaf.private_key_pem.write_to_path(self.folder / f"{file}.key")
        leaf.cert_chain_pems[0].write_to_path(self.folder / f"{file}.crt")

    def path(self, name: str) -> Path:
        return self.folder / name

    def read(self, name: str) -> bytes:
        return self.path(name).read_bytes()


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path)


class Curious(EchoServicer):
    async def Unary(self, request: EchoRequest, context: Any, /) -> EchoReply:
        return EchoReply(text=f"{context.tls.common_name} {context.metadata['authorization']}")


async def test_grpcio_clients_with_certificates_and_tokens(operator: Operator, nursery: trio.Nursery) -> None:
    context = trio_grpc.tls.server_context(
        operator.path("server.crt"), operator.path("server.key"), client_authorities=operator.path("ca.pem")
    )
    server: Server = await nursery.start(partial(trio_grpc.serve, ssl_context=context), [Curious()], "127.0.0.1:0")
    port = server.addresses[0].rpartition(":")[2]

    def call() -> str:
        ours = grpc.ssl_channel_credentials(
            operator.read("ca.pem"), operator.read("client.key"), operator.read("client.crt")
        )
        both = grpc.composite_channel_credentials(ours, grpc.access_token_call_credentials("theirs"))
        with grpc.secure_channel(f"localhost:{port}", both) as channel:
            unary = channel.unary_unary(PATH, EchoRequest.SerializeToString, EchoReply.FromString)
            return str(unary(EchoRequest(), timeout=PATIENCE).text)

    assert await trio.to_thread.run_sync(call) == "first Bearer theirs"
    operator.issue("server", "localhost", "second")
    operator.issue("client", "client.example", "second")
    assert await trio.to_thread.run_sync(call) == "second Bearer theirs"
    nursery.cancel_scope.cancel()


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers with what it knows of its caller."""

    def service(self, handler_call_details: Any) -> Any:
        def unary(_request: EchoRequest, context: Any) -> EchoReply:
            (name,) = context.auth_context()["x509_common_name"]
            return EchoReply(text=f"{name.decode()} {dict(context.invocation_metadata())['authorization']}")

        return grpc.unary_unary_rpc_method_handler(unary, EchoRequest.FromString, EchoReply.SerializeToString)


@pytest.fixture
def grpcio_address(operator: Operator) -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers([_Handler()])
    credentials = grpc.ssl_server_credentials(
        [(operator.read("server.key"), operator.read("server.crt"))], operator.read("ca.pem"), True
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    yield f"localhost:{port}"
    server.stop(0).wait()


async def test_a_grpcio_server_that_wants_a_certificate_and_a_token(operator: Operator, grpcio_address: str) -> None:
    async def fetch() -> tuple[str, float]:
        await trio.lowlevel.checkpoint()
        return "ours", 3600

    context = trio_grpc.tls.client_context(
        operator.path("ca.pem"), certificate=operator.path("client.crt"), key=operator.path("client.key")
    )
    async with trio_grpc.open_channel(grpcio_address, ssl_context=context, credentials=BearerToken(fetch)) as channel:
        reply = await EchoStub(channel).Unary(EchoRequest(), timeout=PATIENCE)
    assert reply.text == "first Bearer ours"


async def test_a_grpcio_server_that_is_shown_no_certificate(operator: Operator, grpcio_address: str) -> None:
    context = trio_grpc.tls.client_context(operator.path("ca.pem"))
    async with trio_grpc.open_channel(grpcio_address, ssl_context=context) as channel:
        with pytest.raises(RpcError, match="as servers do that want TLS or a certificate") as caught:
            await EchoStub(channel).Unary(EchoRequest(), timeout=PATIENCE)
    assert caught.value.code is StatusCode.UNAVAILABLE
