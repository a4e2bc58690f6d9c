"""The peers of the interoperability matrix as data: where each comes from, how it is started, and what it gets wrong.

A reason in `expected` is about the peer and has been checked against it. A fault of ours never stands here.
"""

from __future__ import annotations

import shutil
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs

from tests.interop.standard.cases import CASES
from tests.interop.standard.installing import (
    Unavailable,
    debian,
    debian_source,
    digest,
    go_programs,
    maven_classpath,
    node_modules,
    once,
    python_packages,
    run,
)

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

GRPC_GO = "v1.85.0"
GRPC_JAVA = "1.79.0"
GRPC_CPP = "1.51.1-3"
BUF = "1.75.0"
GRPCURL = "v1.9.4"

Argv = Sequence[str | Path]


@attrs.frozen
class Endpoint:
    """Where a server is, or shall be.

    Attributes:
        port: on 127.0.0.1.
        tls: whether it speaks TLS.
        authority, chain, key: PEM files: the root, and the server's own.
        name: the name in the certificate.
    """

    port: int
    tls: bool
    authority: Path
    chain: Path
    key: Path
    name: str = "localhost"


@attrs.frozen(kw_only=True)
class Peer:
    """One other implementation.

    Attributes:
        name: what the matrix calls it.
        version: which release.
        install: gets it onto the machine; raises `Unavailable`.
        server: the command of its server; None if it has none.
        client: the command that runs one case; None if it has none.
        client_cases: what its client can do.
        tls: whether both speak TLS.
        certificates: where its programs have their certificates from, if they cannot be given any: a folder with
            gRPC's well-known ``ca.pem``, ``server1.pem`` and ``server1.key``.
        environment: added to the environment of both.
        expected: reasons by ``direction case``, where the direction is ``to`` (its server) or ``from`` (its client).
    """

    name: str
    version: str
    install: Callable[[], object]
    server: Callable[[Endpoint], Argv] | None = None
    client: Callable[[Endpoint, str], Argv] | None = None
    client_cases: Sequence[str] = ()
    tls: bool = False
    certificates: Callable[[], Path] | None = None
    environment: Callable[[], Mapping[str, str]] = dict
    expected: Mapping[str, str] = attrs.field(factory=dict)


#: The cases of the standard that every implementation's client has.
BASIC = (
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "custom_metadata",
    "status_code_and_message",
    "special_status_message",
    "unimplemented_method",
    "unimplemented_service",
    "cancel_after_begin",
    "cancel_after_first_response",
    "timeout_on_sleeping_server",
)
#: All but the two of ours that stand in for others.
COMMON = tuple(case for case in CASES if not case.endswith("_noprobe"))
SOAKS = ("rpc_soak", "channel_soak")
COMPRESSED = (
    "client_compressed_unary",
    "server_compressed_unary",
    "client_compressed_streaming",
    "server_compressed_streaming",
)

_NO_CACHE = "has no cache, and needs one in front of it"
_NO_ID = "its server never fills server_id"
_NO_FLAG = "its server does not look at the compressed flag of requests"


def _tls(endpoint: Endpoint, *, server: bool) -> list[str]:
    if not endpoint.tls:
        return []
    if server:
        return ["--use_tls=true", f"--tls_cert_file={endpoint.chain}", f"--tls_key_file={endpoint.key}"]
    return ["--use_tls=true", f"--ca_file={endpoint.authority}", f"--server_host_override={endpoint.name}"]


def _client_flags(endpoint: Endpoint, case: str) -> list[str]:
    return ["--server_host=127.0.0.1", f"--server_port={endpoint.port}", f"--test_case={case}"]


def _flag(value: bool) -> str:
    return str(value).lower()


_TEST_CERTIFICATES = ("ca.pem", "server1.pem", "server1.key")


def _test_ca(endpoint: Endpoint) -> list[str]:
    """The flags of clients that have their certificates built in."""
    if not endpoint.tls:
        return ["--use_tls=false"]
    return ["--use_tls=true", "--use_test_ca=true", f"--server_host_override={endpoint.name}"]


# -- grpcio


def _grpcio(flavour: str) -> Peer:
    def install() -> None:
        try:
            import grpc  # noqa: F401
        except ImportError:
            raise Unavailable("grpcio is not in this environment") from None

    return Peer(
        name=f"grpcio {flavour}",
        version="of requirements/dev.txt",
        install=install,
        server=lambda endpoint: [
            sys.executable,
            "-m",
            "tests.interop.standard.grpcio_server",
            f"--flavour={flavour}",
            f"--port={endpoint.port}",
            *_tls(endpoint, server=True),
        ],
        client=lambda endpoint, case: [
            sys.executable,
            "-m",
            "tests.interop.standard.grpcio_client",
            f"--flavour={flavour}",
            *_client_flags(endpoint, case),
            *_tls(endpoint, server=False),
        ],
        client_cases=[case for case in COMMON if case != "cacheable_unary"],
        tls=True,
        expected={
            "to cacheable_unary": _NO_CACHE,
            "to client_compressed_unary": _NO_FLAG + ", which grpcio does not show",
            "to client_compressed_streaming": _NO_FLAG + ", which grpcio does not show",
        },
    )


# -- grpc-go


def _go_program(name: str) -> Path:
    source = "google.golang.org/grpc/interop"
    return (
        go_programs("grpc-go", {"client": f"{source}/client@{GRPC_GO}", "server": f"{source}/server@{GRPC_GO}"}) / name
    )


_GO = Peer(
    name="grpc-go",
    version=GRPC_GO,
    install=lambda: _go_program("client"),
    server=lambda endpoint: [_go_program("server"), f"--port={endpoint.port}", *_tls(endpoint, server=True)],
    client=lambda endpoint, case: [
        _go_program("client"),
        *_client_flags(endpoint, case),
        *_tls(endpoint, server=False),
        "--use_test_ca=true",
    ],
    client_cases=[*BASIC, *SOAKS, "pick_first_unary"],
    tls=True,
    expected={
        "to cacheable_unary": _NO_CACHE,
        "to client_compressed_unary": _NO_FLAG,
        "to client_compressed_streaming": _NO_FLAG,
        "to client_compressed_unary_noprobe": "its server has no gzip",
        "to client_compressed_streaming_noprobe": "its server has no gzip",
        "to server_compressed_unary": "its server has no gzip",
        "to server_compressed_streaming": "its server has no gzip",
        "to pick_first_unary": _NO_ID,
    },
)

# -- grpc-js


def _js_modules() -> Path:
    return node_modules("grpc-js", HERE / "grpc_js" / "package.json")


_JS = Peer(
    name="grpc-js",
    version="of grpc_js/package.json",
    install=_js_modules,
    server=lambda endpoint: [
        "node",
        HERE / "grpc_js" / "server.js",
        f"--port={endpoint.port}",
        *_tls(endpoint, server=True),
    ],
    client=lambda endpoint, case: [
        "node",
        HERE / "grpc_js" / "client.js",
        *_client_flags(endpoint, case),
        *_tls(endpoint, server=False),
    ],
    client_cases=[case for case in COMMON if case not in ("cacheable_unary", "client_compressed_streaming")],
    tls=True,
    environment=lambda: {"NODE_PATH": str(_js_modules())},
    expected={
        "to cacheable_unary": _NO_CACHE,
        "to client_compressed_unary": _NO_FLAG + ", which grpc-js does not show",
        "to client_compressed_streaming": _NO_FLAG + ", which grpc-js does not show",
        "to server_compressed_unary": "its servers cannot compress",
        "to server_compressed_streaming": "its servers cannot compress",
    },
)

# -- grpc-java


def _java_classpath() -> str:
    return maven_classpath("grpc-java", f"io.grpc:grpc-interop-testing:{GRPC_JAVA}")


def _java(main: str) -> list[str]:
    # The first compiler's code is fast enough, and a case takes half a second instead of one.
    fast = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    return ["java", *fast, "-cp", _java_classpath(), f"io.grpc.testing.integration.{main}"]


def _java_certificates() -> Path:
    (jar,) = Path(_java_classpath()).parent.glob(f"grpc-testing-{GRPC_JAVA}.jar")

    def make(folder: Path) -> None:
        with zipfile.ZipFile(jar) as archive:
            for name in _TEST_CERTIFICATES:
                (folder / name).write_bytes(archive.read(f"certs/{name}"))

    return once("grpc-java-certificates", [GRPC_JAVA], make)


_JAVA = Peer(
    name="grpc-java",
    version=GRPC_JAVA,
    install=_java_certificates,
    server=lambda endpoint: [
        *_java("TestServiceServer"),
        f"--port={endpoint.port}",
        f"--use_tls={_flag(endpoint.tls)}",
    ],
    client=lambda endpoint, case: [
        *_java("TestServiceClient"),
        *_client_flags(endpoint, case),
        *_test_ca(endpoint),
    ],
    tls=True,
    certificates=_java_certificates,
    client_cases=[*BASIC, *SOAKS, *COMPRESSED, "cacheable_unary", "pick_first_unary"],
    expected={
        "to cacheable_unary": _NO_CACHE,
        "to client_compressed_unary": _NO_FLAG,
        "to client_compressed_streaming": _NO_FLAG,
        "to server_compressed_streaming": "its server compresses the responses of UnaryCall only",
        "to pick_first_unary": _NO_ID,
    },
)

# -- gRPC C++


def _cpp_program(name: str) -> Path:
    makefile = HERE / "grpc_cpp.mk"

    def make(folder: Path) -> None:
        debian("libgrpc++-dev", "libprotobuf-dev", "protobuf-compiler-grpc", "pkg-config", "g++", "make")
        source = folder / "source"
        source.mkdir()
        debian_source("grpc", GRPC_CPP, source)
        run("make", "--silent", "--jobs=2", f"--file={makefile}", cwd=source)
        for program in ("interop-client", "interop-server"):
            (source / program).rename(folder / program)
        for file in _TEST_CERTIFICATES:
            (source / "src" / "core" / "tsi" / "test_creds" / file).rename(folder / file)
        shutil.rmtree(source)

    return once("grpc-cpp", [GRPC_CPP, digest(makefile), *_TEST_CERTIFICATES], make) / name


_CPP = Peer(
    name="gRPC C++",
    version=GRPC_CPP,
    install=lambda: _cpp_program(""),
    server=lambda endpoint: [
        _cpp_program("interop-server"),
        f"--port={endpoint.port}",
        f"--use_tls={_flag(endpoint.tls)}",
    ],
    client=lambda endpoint, case: [
        _cpp_program("interop-client"),
        *_client_flags(endpoint, case),
        *_test_ca(endpoint),
        "--soak_iterations=10",
        "--soak_overall_timeout_seconds=30",
        "--soak_per_iteration_max_acceptable_latency_ms=1000",
    ],
    client_cases=[*BASIC, *SOAKS, *COMPRESSED, "half_duplex", "pick_first_unary"],
    tls=True,
    certificates=lambda: _cpp_program(""),
    expected={
        "to cacheable_unary": _NO_CACHE,
        "to pick_first_unary": _NO_ID,
        "from pick_first_unary tls": "its client speaks plaintext in this case (its own TLS server refuses it too)",
    },
)

# -- programs that call any server


def _tool(name: str, program: str, version: str, path: Callable[[], Path | str], cases: Sequence[str]) -> Peer:
    return Peer(
        name=name,
        version=version,
        install=path,
        client=lambda endpoint, case: [
            sys.executable,
            "-m",
            "tests.interop.standard.tool_client",
            f"--program={program}",
            f"--path={path()}",
            *_client_flags(endpoint, case),
            *_tls(endpoint, server=False),
        ],
        client_cases=cases,
        tls=True,
    )


def _nghttp(program: str) -> str:
    debian("nghttp2-client")
    return program


_TOOL_CASES = [case for case in BASIC if not case.startswith("cancel")] + [
    "server_compressed_unary",
    "server_compressed_streaming",
]
_TOOLS = (
    _tool("buf curl", "buf", BUF, lambda: python_packages("buf", f"buf-bin=={BUF}") / "buf", _TOOL_CASES),
    _tool(
        "grpcurl",
        "grpcurl",
        GRPCURL,
        lambda: (
            go_programs("grpcurl", {"grpcurl": f"github.com/fullstorydev/grpcurl/cmd/grpcurl@{GRPCURL}"}) / "grpcurl"
        ),
        _TOOL_CASES,
    ),
    _tool("nghttp", "nghttp", "of Debian", lambda: _nghttp("nghttp"), _TOOL_CASES),
    _tool("h2load", "h2load", "of Debian", lambda: _nghttp("h2load"), ["h2load_small", "h2load_large"]),
)

PEERS: Sequence[Peer] = (_grpcio("aio"), _grpcio("sync"), _GO, _JS, _JAVA, _CPP, *_TOOLS)
