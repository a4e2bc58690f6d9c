"""Contexts made by `trio_grpc.tls`: what they refuse, what they say of files, and what a change of a file does."""

from __future__ import annotations

import logging
import os
import re
import ssl
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
import trustme
from cryptography.hazmat.primitives import serialization
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer, EchoStub

import trio_grpc
import trio_grpc.tls
from tests.echo_service import Context, Echo
from trio_grpc import RpcError, StatusCode, TlsInfo
from trio_grpc.testing import MemoryListener, open_channel_pair
from trio_grpc.tls._validity import good_until

Clock = trio.testing.MockClock
AUTHORITY = trustme.CA()
OTHER_AUTHORITY = trustme.CA()


@attrs.frozen
class Files:
    """PEM files in a folder, as an operator has them."""

    folder: Path

    def authorities(self, authority: trustme.CA = AUTHORITY, name: str = "ca.pem") -> Path:
        return self._write(name, authority.cert_pem.bytes())

    def issue(self, identity: str, *, authority: trustme.CA = AUTHORITY, name: str = "own", **options: Any) -> Path:
        """Write a certificate and its key into one file."""
        leaf = authority.issue_cert(identity, **options)
        return self._write(f"{name}.pem", leaf.private_key_and_cert_chain_pem.bytes())

    def pair(self, identity: str, *, authority: trustme.CA = AUTHORITY, name: str = "own") -> tuple[Path, Path]:
        leaf = authority.issue_cert(identity)
        certificate = self._write(f"{name}.crt", leaf.cert_chain_pems[0].bytes())
        return certificate, self._write(f"{name}.key", leaf.private_key_pem.bytes())

    def _write(self, name: str, content: bytes) -> Path:
        # In the place of what was there, as one who cares for his certificates does it: another inode, whatever the
        # clock of the file system.
        path = self.folder / name
        fresh = path.with_name(f"{name}.new")
        fresh.write_bytes(content)
        fresh.replace(path)
        return path


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


class Curious(EchoServicer):
    """Remembers what TLS says of its clients."""

    def __init__(self) -> None:
        self.seen: list[TlsInfo | None] = []

    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        self.seen.append(context.tls)
        return EchoReply(text="" if context.tls is None else context.tls.common_name or "")


def pair(servicer: EchoServicer, server: ssl.SSLContext | None, client: ssl.SSLContext | None, **options: Any) -> Any:
    name = None if client is None else "localhost"
    return open_channel_pair(
        servicer, server_ssl_context=server, ssl_context=client, **{"server_hostname": name, **options}
    )


async def failure(server: ssl.SSLContext, client: ssl.SSLContext, **options: Any) -> str:
    async with pair(Echo(), server, client, **options) as (channel, _):
        with pytest.raises(RpcError) as caught:
            await EchoStub(channel).Unary(EchoRequest())
    assert caught.value.code is StatusCode.UNAVAILABLE
    return caught.value.message


# -- what is known of the other end


async def test_handlers_and_callers_are_told_of_each_other(files: Files) -> None:
    server = trio_grpc.tls.server_context(files.issue("localhost"), client_authorities=files.authorities())
    client = trio_grpc.tls.client_context(
        files.authorities(), certificate=files.issue("client.example", name="client", common_name="the client")
    )
    curious = Curious()
    async with pair(curious, server, client) as (channel, _), EchoStub(channel).Unary.open(EchoRequest()) as call:
        assert (await call.receive()).text == "the client"
        there = call.tls
    here = curious.seen[0]
    assert here is not None
    assert there is not None
    for info in (here, there):
        assert info.version == "TLSv1.3"
        assert info.alpn == "h2"
        assert "AES" in info.cipher or "CHACHA" in info.cipher
    assert here.common_name == "the client"
    assert here.subject_alternative_names == (("DNS", "client.example"),)
    assert here.peer_certificate["subjectAltName"] == (("DNS", "client.example"),)
    assert here.peer_certificate_der is not None
    assert ssl.DER_cert_to_PEM_cert(here.peer_certificate_der).startswith("-----BEGIN CERTIFICATE-----")
    assert there.subject_alternative_names == (("DNS", "localhost"),)
    assert there.common_name is None


async def test_there_is_nothing_to_tell_in_plaintext() -> None:
    curious = Curious()
    async with pair(curious, None, None) as (channel, _):
        async with EchoStub(channel).Unary.open(EchoRequest()) as call:
            await call.receive()
            assert call.tls is None
        assert curious.seen == [None]


async def test_a_client_without_a_certificate_is_told_as_such(files: Files) -> None:
    server = trio_grpc.tls.server_context(files.issue("localhost"))
    curious = Curious()
    async with pair(curious, server, trio_grpc.tls.client_context(files.authorities())) as (channel, _):
        await EchoStub(channel).Unary(EchoRequest())
    (info,) = curious.seen
    assert info is not None
    assert info.peer_certificate == {}
    assert info.peer_certificate_der is None
    assert info.common_name is None
    assert info.subject_alternative_names == ()


# -- certificates of clients


async def test_clients_without_a_certificate_are_refused(files: Files) -> None:
    server = trio_grpc.tls.server_context(files.issue("localhost"), client_authorities=files.authorities())
    message = await failure(server, trio_grpc.tls.client_context(files.authorities()))
    assert "the peer refused: " in message


async def test_clients_without_a_certificate_are_served_where_it_is_optional(files: Files) -> None:
    server = trio_grpc.tls.server_context(
        files.issue("localhost"), client_authorities=files.authorities(), client_certificates="optional"
    )
    own = files.issue("client.example", name="client", common_name="known")
    for certificate, name in ((None, ""), (own, "known")):
        client = trio_grpc.tls.client_context(files.authorities(), certificate=certificate)
        async with pair(Curious(), server, client) as (channel, _):
            assert (await EchoStub(channel).Unary(EchoRequest())).text == name


@pytest.mark.parametrize("policy", ["required", "optional"])
async def test_certificates_of_other_authorities_are_refused(files: Files, policy: Any) -> None:
    server = trio_grpc.tls.server_context(
        files.issue("localhost"), client_authorities=files.authorities(), client_certificates=policy
    )
    stranger = files.issue("client.example", authority=OTHER_AUTHORITY, name="client")
    client = trio_grpc.tls.client_context(files.authorities(), certificate=stranger)
    assert "the peer refused: " in await failure(server, client)


# -- a change of files


async def test_new_connections_use_a_new_certificate_and_old_ones_go_on(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trio_grpc")
    server = trio_grpc.tls.server_context(files.issue("localhost", common_name="old"))
    listener = MemoryListener()
    client = trio_grpc.tls.client_context(files.authorities())

    async def name_of_server() -> str | None:
        async with (
            trio_grpc.open_channel(listener.connect, ssl_context=client, server_hostname="localhost") as channel,
            EchoStub(channel).Unary.open(EchoRequest()) as call,
        ):
            await call.receive()
            assert call.tls is not None
            return call.tls.common_name

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(trio_grpc.serve, ssl_context=server), [Echo()], listener)
        async with (
            trio_grpc.open_channel(listener.connect, ssl_context=client, server_hostname="localhost") as channel,
            EchoStub(channel).Bidi() as running,
        ):
            await running.send(EchoRequest(count=1))
            assert (await running.receive()).count == 1
            files.issue("localhost", common_name="new")
            assert await name_of_server() == "new"
            await running.send(EchoRequest(count=2))
            assert (await running.receive()).count == 2
            assert running.tls is not None
            assert running.tls.common_name == "old"
        assert await name_of_server() == "new"
        nursery.cancel_scope.cancel()
    changes = [record for record in caplog.records if "TLS files have changed" in record.message]
    assert len(changes) == 1
    assert "own.pem" in changes[0].message


@pytest.mark.parametrize("break_it", [Path.unlink, lambda path: path.write_text("no certificate")])
def test_a_broken_file_keeps_the_old_certificate_and_is_logged_once(
    files: Files, caplog: pytest.LogCaptureFixture, break_it: Callable[[Path], object]
) -> None:
    own = files.issue("localhost")
    context: Any = trio_grpc.tls.server_context(own)
    before = context.current()
    break_it(own)
    for _ in range(3):
        assert context.current() is before
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert str(own) in record.message
    files.issue("localhost")
    assert context.current() is not before


async def test_a_function_that_raises_later_keeps_the_old_certificate(
    files: Files, caplog: pytest.LogCaptureFixture, autojump_clock: Clock
) -> None:
    def configure(context: ssl.SSLContext) -> None:
        if broken:
            raise KeyError("secret")

    broken = False
    server = trio_grpc.tls.server_context(files.issue("localhost"), configure=configure)
    client = trio_grpc.tls.client_context(files.authorities(), configure=configure)
    broken = True
    files.issue("localhost")
    files.authorities()
    options = {"ssl_context": client, "server_ssl_context": server, "server_hostname": "localhost"}
    async with open_channel_pair(Echo(), **options) as (channel, _):
        assert (await EchoStub(channel).Unary(EchoRequest(text="x"))).text == "x"
    logged = [record for record in caplog.records if "stay in use" in record.message]
    assert len(logged) == 2
    assert all(record.exc_info for record in logged)
    caplog.clear()


def test_a_key_that_comes_after_its_certificate(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    certificate, key = files.pair("localhost")
    context: Any = trio_grpc.tls.server_context(certificate, key)
    before = context.current()
    new_certificate, new_key = files.pair("localhost", name="new")
    new_certificate.replace(certificate)
    assert context.current() is before
    assert f"key file '{key}' does not belong to certificate file '{certificate}'" in caplog.text
    new_key.replace(key)
    assert context.current() is not before


def test_a_folder_behind_a_link_that_is_replaced_as_in_kubernetes(tmp_path: Path) -> None:
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
        Files(tmp_path / version).issue("localhost")
    (tmp_path / "data").symlink_to("one")
    own = tmp_path / "own.pem"
    own.symlink_to("data/own.pem")
    context: Any = trio_grpc.tls.server_context(own)
    before = context.current()
    assert context.current() is before
    (tmp_path / "data.new").symlink_to("two")
    (tmp_path / "data.new").replace(tmp_path / "data")
    assert context.current() is not before


async def test_authorities_are_replaced_too(files: Files) -> None:
    client = trio_grpc.tls.client_context(files.authorities())
    own = trio_grpc.tls.server_context(files.issue("localhost"))
    other = trio_grpc.tls.server_context(files.issue("localhost", authority=OTHER_AUTHORITY, name="other"))
    assert "certificate verify failed" in await failure(other, client)
    files.authorities(OTHER_AUTHORITY)
    async with pair(Echo(), other, client) as (channel, _):
        await EchoStub(channel).Unary(EchoRequest())
    # What was believed before is not believed any more.
    assert "certificate verify failed" in await failure(own, client)


# -- what is wrong with files


def test_files_that_are_not_there(files: Files) -> None:
    missing = files.folder / "missing.pem"
    own = files.issue("localhost")
    cases: list[tuple[str, Callable[[], object]]] = [
        ("certificate", lambda: trio_grpc.tls.server_context(missing)),
        ("key", lambda: trio_grpc.tls.server_context(own, missing)),
        ("client_authorities", lambda: trio_grpc.tls.server_context(own, client_authorities=missing)),
        ("authorities", lambda: trio_grpc.tls.client_context(missing)),
    ]
    for option, make in cases:
        with pytest.raises(FileNotFoundError) as caught:
            make()
        assert str(caught.value) == f"[Errno 2] {option}: {os.strerror(2)}: '{missing}'"
        assert caught.value.filename == str(missing)


def test_files_with_something_else_in_them(files: Files) -> None:
    own = files.issue("localhost")
    certificate, key = files.pair("localhost")
    other_certificate, _ = files.pair("localhost", name="other")
    text = files.folder / "text"
    text.write_text("hello")
    garbage = files.folder / "garbage"
    garbage.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    cases: list[tuple[str, Callable[[], object]]] = [
        (f"certificate file '{text}' has no certificate", lambda: trio_grpc.tls.server_context(text)),
        (f"certificate file '{key}' has no certificate", lambda: trio_grpc.tls.server_context(key, certificate)),
        (f"key file '{certificate}' has no private key", lambda: trio_grpc.tls.server_context(certificate)),
        (
            f"key file '{key}' does not belong to certificate file",
            lambda: trio_grpc.tls.server_context(other_certificate, key),
        ),
        (f"authorities file '{text}' has no certificate", lambda: trio_grpc.tls.client_context(text)),
        (f"authorities file '{garbage}' cannot be read", lambda: trio_grpc.tls.client_context(garbage)),
        ("authorities has no certificate", lambda: trio_grpc.tls.client_context(b"hello")),
        (f"certificate file '{garbage}' with key file '{key}': ", lambda: trio_grpc.tls.server_context(garbage, key)),
        ("client_certificates must be", lambda: trio_grpc.tls.server_context(own, client_certificates="no")),  # type: ignore[arg-type]
        ("key is of use only together with certificate", lambda: trio_grpc.tls.client_context(key=key)),
        ("certificate must be the path of a PEM file, not", lambda: trio_grpc.tls.server_context(own.read_text())),
    ]
    for message, make in cases:
        with pytest.raises(ValueError, match="^" + message.replace("(", r"\(")):
            make()


def test_a_key_in_place_of_its_path_is_not_told(files: Files) -> None:
    certificate, key = files.pair("localhost")
    with pytest.raises(ValueError, match=r"^key must be the path of a PEM file, not what is in one$") as caught:
        trio_grpc.tls.server_context(certificate, key.read_text())
    assert caught.value.__context__ is None


def test_wrong_types_are_named(files: Files) -> None:
    own = files.issue("localhost")
    cases: list[tuple[str, Callable[[], object]]] = [
        ("certificate must be the path", lambda: trio_grpc.tls.server_context(7)),  # type: ignore[arg-type]
        ("key must be the path", lambda: trio_grpc.tls.server_context(own, b"key")),  # type: ignore[arg-type]
        ("authorities must be the path", lambda: trio_grpc.tls.client_context(["a"])),  # type: ignore[arg-type]
        ("key_password must be", lambda: trio_grpc.tls.server_context(own, key_password=7)),  # type: ignore[arg-type]
        ("configure must be a function", lambda: trio_grpc.tls.server_context(own, configure=7)),  # type: ignore[arg-type]
        ("configure must be a function", lambda: trio_grpc.tls.client_context(configure=7)),  # type: ignore[arg-type]
    ]
    for message, make in cases:
        with pytest.raises(TypeError, match=message):
            make()


@pytest.mark.parametrize("year", [1950, 1999, 2049, 2050, 2999])
def test_when_a_certificate_expires(year: int) -> None:
    end = datetime(year, 2, 3, 4, 5, 6, tzinfo=timezone.utc)
    leaf = AUTHORITY.issue_cert("localhost", not_before=end.replace(month=1), not_after=end)
    for pem in leaf.cert_chain_pems[0].bytes(), b"words\n" + leaf.private_key_and_cert_chain_pem.bytes():
        assert good_until(pem) == end


def test_words_before_a_certificate_are_no_certificate(files: Files) -> None:
    """Only a line of its own begins one, says OpenSSL."""
    own = files.issue("localhost")
    end = good_until(own.read_bytes())
    own.write_bytes("Grüße: -----BEGIN CERTIFICATE-----\n".encode() + own.read_bytes())
    trio_grpc.tls.server_context(own)
    assert good_until(own.read_bytes()) == end


def test_an_end_that_nobody_can_read_is_no_reason_to_refuse_a_certificate() -> None:
    """OpenSSL forgives more than RFC 5280, 4.1.2.5."""
    pem = AUTHORITY.issue_cert("localhost").cert_chain_pems[0].bytes()
    der = ssl.PEM_cert_to_DER_cert(pem.decode())
    end = good_until(pem)
    assert end is not None
    written = end.strftime("%Y%m%d%H%M%SZ" if end.year >= 2050 else "%y%m%d%H%M%SZ").encode()
    assert der.count(written) == 1
    for other in b"x" * len(written), written[:-1] + b"+":
        changed = ssl.DER_cert_to_PEM_cert(der.replace(written, other)).encode()
        assert good_until(changed) is None
    for size in range(0, len(der), 7):
        assert good_until(ssl.DER_cert_to_PEM_cert(der[:size]).encode()) in (end, None)


# -- passwords


@pytest.fixture
def encrypted(files: Files) -> tuple[Path, Path]:
    """A certificate, and its key behind the password ``sesame``."""
    leaf = AUTHORITY.issue_cert("localhost")
    key: Any = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"sesame"),
    )
    certificate, path = files.pair("localhost")
    certificate.write_bytes(leaf.cert_chain_pems[0].bytes())
    path.write_bytes(pem)
    return certificate, path


@pytest.mark.parametrize("password", ["sesame", b"sesame", lambda: "sesame"])
async def test_an_encrypted_key(files: Files, encrypted: tuple[Path, Path], password: Any) -> None:
    server = trio_grpc.tls.server_context(*encrypted, key_password=password)
    async with pair(Echo(), server, trio_grpc.tls.client_context(files.authorities())) as (channel, _):
        await EchoStub(channel).Unary(EchoRequest())


def test_an_encrypted_key_without_its_password(encrypted: tuple[Path, Path]) -> None:
    certificate, key = encrypted
    with pytest.raises(ValueError, match=f"^key file '{key}' is encrypted: it needs a key_password$"):
        trio_grpc.tls.server_context(certificate, key)
    with pytest.raises(ValueError, match=f"^key file '{key}' cannot be decrypted with this key_password$"):
        trio_grpc.tls.server_context(certificate, key, key_password="simsalabim")


# -- defaults, and what is set beside them


def test_defaults(files: Files) -> None:
    both = [trio_grpc.tls.client_context(files.authorities()), trio_grpc.tls.server_context(files.issue("localhost"))]
    contexts: Any = [*both, *(context.current() for context in both)]  # type: ignore[attr-defined]
    for context in contexts:
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert context.options & ssl.OP_NO_COMPRESSION
        assert context.options & ssl.OP_NO_RENEGOTIATION
    client, server = both
    assert client.verify_mode is ssl.CERT_REQUIRED
    assert client.check_hostname
    assert server.verify_mode is ssl.CERT_NONE
    assert trio_grpc.tls.client_context().verify_mode is ssl.CERT_REQUIRED


def test_every_context_is_configured(files: Files) -> None:
    seen: list[ssl.SSLContext] = []

    def configure(context: ssl.SSLContext) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        seen.append(context)

    context: Any = trio_grpc.tls.server_context(files.issue("localhost"), configure=configure)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    files.issue("localhost")
    assert context.current().minimum_version is ssl.TLSVersion.TLSv1_3
    assert len(seen) == 2


def test_a_setting_that_would_be_lost_is_refused(files: Files) -> None:
    own = files.issue("localhost")
    context = trio_grpc.tls.server_context(own)
    settings: list[Callable[[], object]] = [
        lambda: setattr(context, "minimum_version", ssl.TLSVersion.TLSv1_3),
        lambda: setattr(context, "sni_callback", None),
        lambda: context.load_cert_chain(own),
        lambda: context.load_verify_locations(own),
        context.load_default_certs,
        lambda: context.set_ciphers("DEFAULT"),
        lambda: context.set_ecdh_curve("prime256v1"),
        lambda: context.load_dh_params(own),
    ]
    for change in settings:
        with pytest.raises(TypeError, match=r"give client_context or server_context a function configure="):
            change()


def test_what_it_is_asked_is_known_of_the_files_in_use(files: Files) -> None:
    context = trio_grpc.tls.client_context(files.authorities())
    names = [authority["serialNumber"] for authority in context.get_ca_certs()]
    assert context.cert_store_stats()["x509_ca"] == len(names) == 1
    assert context.get_ca_certs(binary_form=True)
    assert context.session_stats()["connect"] == 0
    files.authorities(OTHER_AUTHORITY)
    context.current()  # type: ignore[attr-defined] # as a handshake does
    assert [authority["serialNumber"] for authority in context.get_ca_certs()] != names
    few = trio_grpc.tls.server_context(
        files.issue("localhost"), configure=lambda context: context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    )
    assert len(few.get_ciphers()) < len(context.get_ciphers())


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
@pytest.mark.parametrize("old", ["client", "server"])
async def test_tls_1_1_is_refused(files: Files, old: str) -> None:
    server: Any = trio_grpc.tls.server_context(files.issue("localhost"))
    client: Any = trio_grpc.tls.client_context(files.authorities())
    ancient: Any = (client if old == "client" else server).current()
    # Without security levels, which would not let such a version begin.
    ancient.set_ciphers("ALL:@SECLEVEL=0")
    ancient.minimum_version = ancient.maximum_version = ssl.TLSVersion.TLSv1_1
    other = (server if old == "client" else client).current()
    other.set_ciphers("ALL:@SECLEVEL=0")
    message = await failure(server, client)
    assert "TLS handshake failed: " in message
    assert re.search("protocol version|unsupported protocol", message)


@pytest.mark.parametrize("protocols", [["http/1.1"], []])
async def test_a_peer_without_h2_is_refused(
    files: Files, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture, protocols: list[str]
) -> None:
    caplog.set_level(logging.INFO, "trio_grpc")
    listener = MemoryListener()
    context = trio_grpc.tls.server_context(files.issue("localhost"))
    await nursery.start(partial(trio_grpc.serve, ssl_context=context), [Echo()], listener)
    other = ssl.create_default_context(cafile=files.authorities())
    if protocols:
        other.set_alpn_protocols(protocols)
    stream = trio.SSLStream(await listener.connect(), other, server_hostname="localhost")
    try:
        assert await stream.receive_some() == b""
    except trio.BrokenResourceError:
        pass
    await trio.testing.wait_all_tasks_blocked()
    assert re.search(r"TLS with .* failed: (no ALPN protocol was agreed on|.*no application protocol)", caplog.text)


# -- names and times


async def test_the_expected_name_is_the_one_that_is_overridden(files: Files) -> None:
    server = trio_grpc.tls.server_context(files.issue("greeter.example"), client_authorities=files.authorities())
    client = trio_grpc.tls.client_context(
        files.authorities(), certificate=files.issue("client.example", name="client", common_name="known")
    )
    async with pair(Curious(), server, client, server_hostname="greeter.example") as (channel, _):
        assert (await EchoStub(channel).Unary(EchoRequest())).text == "known"
    message = await failure(server, client, server_hostname="other.example")
    assert "certificate verify failed for 'other.example': " in message
    assert "certificate is not valid for 'other.example'" in message


async def test_a_certificate_that_has_expired(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    past = {
        "not_before": datetime(2020, 1, 1, tzinfo=timezone.utc),
        "not_after": datetime(2020, 1, 2, tzinfo=timezone.utc),
    }
    own = files.issue("localhost", name="old", **past)
    client = trio_grpc.tls.client_context(files.authorities())
    context = trio_grpc.tls.server_context(own)
    # Its owner is told before any client.
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        f"certificate file '{own}': the certificate has expired on 2020-01-02"
    ]
    message = await failure(context, client)
    assert message.endswith("TLS handshake failed: certificate verify failed for 'localhost': certificate has expired")
    assert "\n" not in message
    # That of a client as well.
    server = trio_grpc.tls.server_context(files.issue("localhost"), client_authorities=files.authorities())
    message = await failure(server, trio_grpc.tls.client_context(files.authorities(), certificate=own))
    assert re.search(r"the peer refused: .*certificate expired", message)


async def test_a_client_that_gets_its_certificate_renewed(files: Files) -> None:
    server = trio_grpc.tls.server_context(files.issue("localhost"), client_authorities=files.authorities())
    own = files.issue("client.example", name="client", common_name="old")
    client = trio_grpc.tls.client_context(files.authorities(), certificate=own)
    for name in ("old", "new"):
        files.issue("client.example", name="client", common_name=name)
        async with pair(Curious(), server, client) as (channel, _):
            assert (await EchoStub(channel).Unary(EchoRequest())).text == name


async def test_certificates_that_change_all_the_time_lose_no_call(files: Files) -> None:
    server = trio_grpc.tls.server_context(files.issue("localhost"))
    client = trio_grpc.tls.client_context(files.authorities())
    listener, echo = MemoryListener(), Echo()

    async def calls(count: int) -> None:
        for number in range(count):
            async with trio_grpc.open_channel(
                listener.connect, ssl_context=client, server_hostname="localhost"
            ) as channel:
                assert (await EchoStub(channel).Unary(EchoRequest(count=number))).count == number
            files.issue("localhost")

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(trio_grpc.serve, ssl_context=server), [echo], listener)
        async with trio.open_nursery() as callers:
            for _ in range(4):
                callers.start_soon(calls, 10)
        nursery.cancel_scope.cancel()
    assert echo.calls == 40
