"""The standard interoperability cases between our own client and our own server, and the data of the other runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.interop.conftest import ROOT, Certificates
from tests.interop.standard import tool_client
from tests.interop.standard.cases import CASES, Client
from tests.interop.standard.peers import PEERS, Peer
from tests.interop.standard.proxies import OWN_CASES, PROXIES, STANDARD_CASES
from tests.interop.standard.service import InteropServicer
from trio_grpc import Channel
from trio_grpc.testing import open_channel_pair

#: A case that only the clients of C++ have.
EXTRA = "half_duplex"


@asynccontextmanager
async def open_channel(servicer: InteropServicer) -> AsyncIterator[Channel]:
    async with open_channel_pair(servicer) as (channel, _):
        yield channel


@pytest.mark.parametrize("name", CASES)
async def test_our_client_with_our_server(name: str) -> None:
    servicer = InteropServicer()
    async with open_channel(servicer) as channel:
        await CASES[name](Client(channel, lambda: open_channel(servicer)))


@pytest.mark.watchdog(60)
@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "tls"])
def test_the_command_lines(certificates: Certificates, tls: bool) -> None:
    module = "tests.interop.standard"
    folder = certificates.directory
    (folder / "ca.pem").write_bytes(certificates.root)
    pair = [f"--tls_cert_file={folder / 'server.pem'}", f"--tls_key_file={folder / 'server.key'}"]
    command = [
        sys.executable,
        "-m",
        f"{module}.server",
        "--host=127.0.0.1",
        "--port=0",
        *(["--use_tls", *pair] if tls else []),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as server:
        try:
            assert server.stdout is not None
            words = server.stdout.readline().split()
            port = words[-1].rpartition(":")[2]
            assert words[:2] == ["listening", "on"]

            def run(case: str) -> subprocess.CompletedProcess[str]:
                target = ["--server_host=127.0.0.1", f"--server_port={port}", "--server_host_override=localhost"]
                flags = [*target, f"--test_case={case}", f"--use_tls={str(tls).lower()}"]
                return subprocess.run(
                    [sys.executable, "-m", f"{module}.client", *flags, f"--ca_file={folder / 'ca.pem'}"],
                    capture_output=True,
                    cwd=ROOT,
                    text=True,
                    check=False,
                )

            done = run("large_unary")
            assert (done.returncode, done.stdout) == (0, "large_unary: passed\n"), done.stderr
        finally:
            server.terminate()
    failed = run("large_unary")
    assert failed.returncode == 1
    assert "UNAVAILABLE" in failed.stderr


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_the_data_of_a_peer_speak_of_cases_that_there_are(peer: Peer) -> None:
    cases = {*CASES, *tool_client.CASES, EXTRA}
    assert set(peer.client_cases) <= cases
    assert_known(peer.expected, [f"{direction} {case}" for direction in ("to", "from") for case in cases])


@pytest.mark.parametrize("name", [proxy.name for proxy in PROXIES])
def test_the_data_of_a_proxy_speak_of_cases_that_there_are(name: str) -> None:
    (proxy,) = [proxy for proxy in PROXIES if proxy.name == name]
    assert_known(proxy.expected, [*STANDARD_CASES, *OWN_CASES])


def assert_known(expected: Mapping[str, str], keys: Sequence[str]) -> None:
    assert set(expected) <= {*keys, *[f"{key} tls" for key in keys]}
    assert all(expected.values())
