"""The standard services under real clients: `python -m tests.interop.services` (what `make interop-services` runs).

Health, reflection and channelz of a server of ours, asked by grpcurl, ``buf curl``, grpc_health_probe and grpcio, in
plaintext and over TLS. Tools that are missing are installed like the interop peers, or left out with the reason. Exits
with 1 if a step failed; a step gets three tries, which the table shows.
"""

from __future__ import annotations

import argparse
import json
import logging
import queue
import ssl
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import attrs
import trio
from google.protobuf import descriptor_pb2, descriptor_pool, text_format

import trio_grpc
from tests.interop.standard.installing import CACHE, Unavailable, go_programs, python_packages
from tests.interop.standard.matrix import FAILED, PASSED, SKIPPED, Certificates, Result, describe, report
from tests.interop.standard.peers import BUF, GRPCURL
from tests.interop.standard.service import InteropServicer
from trio_grpc.channelz import ChannelzServicer
from trio_grpc.health import HealthListRequest, HealthListResponse, HealthServicer, ServingStatus
from trio_grpc.reflection import ReflectionV1AlphaServicer, with_reflection

HEALTH_PROBE = "v0.4.63"
#: Seconds for one run of a program, or one call of grpcio's.
PATIENCE = 30.0
#: Seconds for a try of a step.
STEP_PATIENCE = 120.0
TRIES = 3

TEST, HEALTH, CHANNELZ = "grpc.testing.TestService", "grpc.health.v1.Health", "grpc.channelz.v1.Channelz"
REFLECTION, REFLECTION_ALPHA = "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"
SERVICES = [CHANNELZ, HEALTH, REFLECTION, REFLECTION_ALPHA, TEST]
METHODS = ["Check", "List", "Watch"]
SERVING, NOT_SERVING = ServingStatus.SERVING, ServingStatus.NOT_SERVING

#: What no generated module has: a message that is extended in another file.
EXTENSIONS = """
file {
  name: "shop/base.proto" package: "shop" syntax: "proto2"
  message_type { name: "Order" extension_range { start: 100 end: 200 } }
}
file {
  name: "shop/more.proto" package: "shop" dependency: "shop/base.proto" syntax: "proto2"
  extension { name: "gift" number: 150 type: TYPE_BOOL label: LABEL_OPTIONAL extendee: ".shop.Order" }
}
"""


class Failed(AssertionError):
    """A step did not go as it must."""


def check(condition: object, *what: object) -> None:
    if not condition:
        raise Failed(" ".join(str(one) for one in what))


@attrs.frozen(kw_only=True)
class Bench:
    """A running server of ours, and how to reach it.

    Attributes:
        server: serves the interop service, health, channelz and reflection.
        health: its health servicer.
        authority: a PEM file with the root of its certificate; None for plaintext.
        program: the tool under test; empty where that is a library.
    """

    server: trio_grpc.Server
    health: HealthServicer
    authority: Path | None
    program: Path

    @property
    def address(self) -> str:
        return self.server.addresses[0]

    async def run(self, *arguments: object, expect: int = 0) -> str:
        """Run the tool; return what it printed, errors included."""
        done = None
        with trio.move_on_after(PATIENCE):
            done = await trio.run_process(
                [str(self.program), *[str(argument) for argument in arguments]],
                capture_stdout=True,
                stderr=subprocess.STDOUT,
                check=False,
            )
        check(done is not None, "not ended within", PATIENCE, "s")
        assert done is not None
        text = done.stdout.decode(errors="replace")
        check(done.returncode == expect, f"exit code {done.returncode}, expected {expect}:", text[-400:])
        return text


def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for file in text_format.Parse(EXTENSIONS, descriptor_pb2.FileDescriptorSet()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


@asynccontextmanager
async def serving(
    certificates: Certificates | None, program: Path, *, alpha_only: bool = False
) -> AsyncIterator[Bench]:
    """A server for the length of the block, which may drain it."""
    context = None
    if certificates is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificates.chain, certificates.key)
    test = InteropServicer()
    health = HealthServicer([test])
    servicers: Sequence[trio_grpc.Servicer] = [test, health, ChannelzServicer()]
    servicers = (
        [*servicers, ReflectionV1AlphaServicer(servicers)] if alpha_only else with_reflection(servicers, pool=_pool())
    )
    async with trio.open_nursery() as nursery:
        server = await nursery.start(
            partial(trio_grpc.serve, servicers, "127.0.0.1:0", ssl_context=context),
        )
        yield Bench(
            server=server,
            health=health,
            authority=certificates.authority if certificates is not None else None,
            program=program,
        )
        nursery.cancel_scope.cancel()


# -- grpcurl


async def grpcurl(bench: Bench, *arguments: object, expect: int = 0, options: Sequence[object] = ()) -> str:
    security = ["-plaintext"] if bench.authority is None else ["-cacert", bench.authority]
    return await bench.run(*security, *options, bench.address, *arguments, expect=expect)


async def grpcurl_list(bench: Bench) -> None:
    check((await grpcurl(bench, "list")).split() == SERVICES)
    check((await grpcurl(bench, "list", HEALTH)).split() == [f"{HEALTH}.{name}" for name in METHODS])
    check("UnaryCall" in await grpcurl(bench, "list", TEST))


async def grpcurl_list_unknown(bench: Bench) -> None:
    check("not found" in (await grpcurl(bench, "list", "grpc.testing.Nobody", expect=1)).lower())


async def grpcurl_describe(bench: Bench) -> None:
    everything = await grpcurl(bench, "describe")
    check(all(f"{service} is a service" in everything for service in SERVICES), everything)
    for symbol, word in (
        (f"{TEST}.UnaryCall", "is a method"),
        ("grpc.testing.SimpleRequest", "is a message"),
        ("grpc.testing.PayloadType", "is an enum"),
        ("grpc.health.v1.HealthCheckResponse.ServingStatus", "is an enum"),
        ("grpc.health.v1.HealthListResponse.statuses", "is a field"),
        ("shop.gift", "is an extension"),
    ):
        check(word in await grpcurl(bench, "describe", symbol), symbol)


async def grpcurl_call(bench: Bench) -> None:
    request = '{"responseSize": 3, "payload": {"body": "AAAA"}}'
    answer = json.loads(await grpcurl(bench, f"{TEST}/UnaryCall", options=["-d", request]))
    check(answer["payload"] == {"body": "AAAA"}, answer)


async def grpcurl_health(bench: Bench) -> None:
    for service, status in (("", SERVING), (TEST, SERVING), (TEST, NOT_SERVING)):
        bench.health.set(service, status)
        request = json.dumps({"service": service})
        answer = json.loads(await grpcurl(bench, f"{HEALTH}/Check", options=["-d", request]))
        check(answer == {"status": status.name}, answer)
    # It exits with 64 + the status code.
    answer = await grpcurl(bench, f"{HEALTH}/Check", options=["-d", '{"service": "x"}'], expect=64 + 5)
    check("unknown service" in answer, answer)
    answer = json.loads(await grpcurl(bench, f"{HEALTH}/List"))
    check(answer == {"statuses": {"": {"status": "SERVING"}, TEST: {"status": "NOT_SERVING"}}}, answer)


async def grpcurl_channelz(bench: Bench) -> None:
    """What its own connection is like, which it cannot be told but over this one."""
    (server,) = json.loads(await grpcurl(bench, f"{CHANNELZ}/GetServers"))["server"]
    check(server["data"]["calls_started"] == "2", server)  # that of reflection, and this one
    request = json.dumps({"server_id": server["ref"]["server_id"]})
    sockets = json.loads(await grpcurl(bench, f"{CHANNELZ}/GetServerSockets", options=["-d", request]))
    check(sockets["end"] is True, sockets)
    check(len(sockets["socket_ref"]) == 1, sockets)
    listening = server["listen_socket"][0]
    request = json.dumps({"socket_id": listening["socket_id"]})
    found = json.loads(await grpcurl(bench, f"{CHANNELZ}/GetSocket", options=["-d", request]))["socket"]
    check(found["local"]["tcpip_address"]["ip_address"] == "fwAAAQ==", found)
    check(found["ref"]["name"] == bench.address, found)
    answer = await grpcurl(bench, f"{CHANNELZ}/GetChannel", options=["-d", '{"channel_id": 99999999}'], expect=64 + 5)
    check("no channel with id 99999999" in answer, answer)


async def grpcurl_alpha(certificates: Certificates | None, program: Path) -> None:
    async with serving(certificates, program, alpha_only=True) as bench:
        check((await grpcurl(bench, "list")).split() == [CHANNELZ, HEALTH, REFLECTION_ALPHA, TEST])
        check("is a method" in await grpcurl(bench, "describe", f"{TEST}.UnaryCall"))


async def grpcurl_drain(certificates: Certificates | None, program: Path) -> None:
    async with serving(certificates, program) as bench:
        outputs: list[str] = []

        async def watch() -> None:
            outputs.append(await grpcurl(bench, f"{HEALTH}/Watch", options=["-d", "{}"], expect=64 + 14))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await _until_watched(bench)
            await _drain(bench)
        (output,) = outputs
        check(output.index('"SERVING"') < output.index('"NOT_SERVING"') < output.index("draining"), output)


# -- buf curl


async def buf(bench: Bench, *arguments: object, path: str = "", expect: int = 0) -> str:
    security = ["--http2-prior-knowledge"] if bench.authority is None else ["--cacert", bench.authority]
    scheme = "http" if bench.authority is None else "https"
    return await bench.run(
        "curl", "--protocol=grpc", *security, *arguments, f"{scheme}://{bench.address}{path}", expect=expect
    )


async def buf_list(bench: Bench) -> None:
    for protocol in ("grpc-v1", "grpc-v1alpha"):
        services = await buf(bench, f"--reflect-protocol={protocol}", "--list-services")
        check(sorted(services.split()) == SERVICES, services)
    methods = await buf(bench, "--list-methods")
    check(f"{HEALTH}/Watch" in methods.split(), methods)


async def buf_call(bench: Bench) -> None:
    for protocol in ("grpc-v1", "grpc-v1alpha"):
        request = '--data={"responseSize": 3, "payload": {"body": "AAAA"}}'
        answer = json.loads(await buf(bench, f"--reflect-protocol={protocol}", request, path=f"/{TEST}/UnaryCall"))
        check(answer["payload"] == {"body": "AAAA"}, answer)


async def buf_health(bench: Bench) -> None:
    answer = json.loads(await buf(bench, "--data={}", path=f"/{HEALTH}/Check"))
    check(answer == {"status": "SERVING"}, answer)
    # It exits with 8 times the status code.
    answer = await buf(bench, '--data={"service": "x"}', path=f"/{HEALTH}/Check", expect=8 * 5)
    check("unknown service" in answer, answer)


# -- grpc_health_probe


async def probe(bench: Bench, service: str = "", expect: int = 0) -> str:
    arguments: list[object] = [f"-addr={bench.address}", f"-service={service}", f"-connect-timeout={PATIENCE:g}s"]
    arguments.append(f"-rpc-timeout={PATIENCE:g}s")
    if bench.authority is not None:
        arguments += ["-tls", f"-tls-ca-cert={bench.authority}"]
    return await bench.run(*arguments, expect=expect)


async def probe_statuses(bench: Bench) -> None:
    check("status: SERVING" in await probe(bench))
    check("status: SERVING" in await probe(bench, TEST))
    # Its exit codes: 3 for a failed call, 4 for an unhealthy server.
    bench.health.set(TEST, NOT_SERVING)
    check("NOT_SERVING" in await probe(bench, TEST, expect=4))
    check("status: SERVING" in await probe(bench))
    await probe(bench, "x", expect=3)


# -- grpcio


@contextmanager
def grpcio_channel(bench: Bench, options: Sequence[tuple[str, Any]] = ()) -> Iterator[Any]:
    import grpc

    # Each test has a connection of its own.
    options = [("grpc.use_local_subchannel_pool", 1), *options]
    if bench.authority is None:
        channel = grpc.insecure_channel(bench.address, options)
    else:
        credentials = grpc.ssl_channel_credentials(bench.authority.read_bytes())
        channel = grpc.secure_channel(bench.address, credentials, options)
    with channel:
        yield channel


def grpcio_check(bench: Bench) -> None:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpcio_channel(bench) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        def status(service: str) -> str:
            reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE)
            return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))

        check((status(""), status(TEST)) == ("SERVING", "SERVING"))
        trio.from_thread.run_sync(bench.health.set, TEST, NOT_SERVING)
        check((status(""), status(TEST)) == ("SERVING", "NOT_SERVING"))
        try:
            status("x")
        except grpc.RpcError as error:
            check(error.code() is grpc.StatusCode.NOT_FOUND, error)
        else:
            raise Failed("an unknown service has a status")
        # Its modules do not have this method yet.
        list_all = channel.unary_unary(
            f"/{HEALTH}/List", HealthListRequest.SerializeToString, HealthListResponse.FromString
        )
        check(set(list_all(HealthListRequest(), timeout=PATIENCE).statuses) == {"", TEST})


def grpcio_watch(bench: Bench) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpcio_channel(bench) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        changes = stub.Watch(health_pb2.HealthCheckRequest(service="late"), timeout=PATIENCE)
        check(next(changes).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
        for status in (SERVING, NOT_SERVING, SERVING):
            trio.from_thread.run_sync(bench.health.set, "late", status)
            check(next(changes).status == status)
        changes.cancel()


def grpcio_health_aware(bench: Bench) -> None:
    """A channel that asks for health itself, and calls nobody who is not well (gRFC A17)."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    config = {"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": TEST}}
    with grpcio_channel(bench, [("grpc.service_config", json.dumps(config))]) as channel:
        states: queue.SimpleQueue[Any] = queue.SimpleQueue()
        channel.subscribe(states.put, try_to_connect=True)

        def wait_for(*wanted: Any) -> None:
            while states.get(timeout=PATIENCE) not in wanted:
                pass

        wait_for(grpc.ChannelConnectivity.READY)
        stub = health_pb2_grpc.HealthStub(channel)
        stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        trio.from_thread.run_sync(bench.health.set, TEST, NOT_SERVING)
        wait_for(grpc.ChannelConnectivity.TRANSIENT_FAILURE)
        try:
            stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        except grpc.RpcError as error:
            check(error.code() is grpc.StatusCode.UNAVAILABLE, error)
        else:
            raise Failed("it calls a server that is not well")
        trio.from_thread.run_sync(bench.health.set, TEST, SERVING)
        wait_for(grpc.ChannelConnectivity.READY)
        stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)


async def grpcio_drain(certificates: Certificates | None, program: Path) -> None:
    async with serving(certificates, program) as bench:

        def watch() -> None:
            import grpc
            from grpc_health.v1 import health_pb2, health_pb2_grpc

            said = []
            with grpcio_channel(bench) as channel:
                changes = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
                try:
                    for change in changes:
                        said.append(change.status)  # noqa: PERF401 (what was said before an error counts)
                except grpc.RpcError as error:
                    check(error.code() is grpc.StatusCode.UNAVAILABLE, error)
                    check("draining" in error.details(), error)
            check(said == [SERVING, NOT_SERVING], said)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(trio.to_thread.run_sync, watch, abandon_on_cancel=True))
            await _until_watched(bench)
            await _drain(bench)


def grpcio_reflection(bench: Bench) -> None:
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    with grpcio_channel(bench) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        check(sorted(database.get_services()) == SERVICES)
        pool = descriptor_pool.DescriptorPool(database)
        service = pool.FindServiceByName(TEST)
        check(service.methods_by_name["UnaryCall"].input_type.full_name == "grpc.testing.SimpleRequest")
        check(sorted(pool.FindServiceByName(HEALTH).methods_by_name) == METHODS)
        check(list(database.FindAllExtensionNumbers("shop.Order")) == [150])
        check(database.FindFileByName("shop/base.proto").message_type[0].name == "Order")
        for ask in (
            partial(database.FindFileByName, "nope.proto"),
            partial(database.FindFileContainingSymbol, "grpc.testing.Nobody"),
            partial(database.FindAllExtensionNumbers, "shop.Nobody"),
        ):
            try:
                ask()
            except KeyError:
                continue
            raise Failed(f"an answer to {ask}")
        # Its database does not ask for extensions, although it could.
        answers = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            reflection_pb2.ServerReflectionRequest(
                file_containing_extension=reflection_pb2.ExtensionRequest(
                    containing_type="shop.Order", extension_number=number
                )
            )
            for number in (151, 150)
        )
        check(next(answers).error_response.error_code == trio_grpc.StatusCode.NOT_FOUND)
        found = next(answers).file_descriptor_response.file_descriptor_proto
        names = [descriptor_pb2.FileDescriptorProto.FromString(data).name for data in found]
        check(names == ["shop/more.proto", "shop/base.proto"], names)


def grpcio_channelz(bench: Bench) -> None:
    import grpc
    from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpcio_channel(bench) as channel:
        health, stub = health_pb2_grpc.HealthStub(channel), channelz_pb2_grpc.ChannelzStub(channel)
        for _ in range(3):
            health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        try:
            health.Check(health_pb2.HealthCheckRequest(service="x"), timeout=PATIENCE)
        except grpc.RpcError as error:
            check(error.code() is grpc.StatusCode.NOT_FOUND, error)
        (server,) = stub.GetServers(channelz_pb2.GetServersRequest(), timeout=PATIENCE).server
        data = server.data
        check((data.calls_started, data.calls_succeeded, data.calls_failed) == (5, 3, 1), server)
        check(server.ref.name == bench.address, server)
        request = channelz_pb2.GetServerSocketsRequest(server_id=server.ref.server_id)
        (ref,) = stub.GetServerSockets(request, timeout=PATIENCE).socket_ref
        found = stub.GetSocket(channelz_pb2.GetSocketRequest(socket_id=ref.socket_id), timeout=PATIENCE).socket
        data = found.data
        check((data.streams_started, data.streams_succeeded, data.streams_failed) == (7, 6, 0), found)
        # Seven requests, and replies but for the one that failed and the one that this is.
        check((data.messages_sent, data.messages_received) == (5, 7), found)
        check(found.HasField("security") == (bench.authority is not None), found)
        end = found.local.tcpip_address
        check((end.ip_address, end.port) == (bytes([127, 0, 0, 1]), int(bench.address.rpartition(":")[2])), found)
        info = channelz_pb2.SocketOptionTcpInfo()
        for option in data.option:
            if option.name == "TCP_INFO":
                check(option.additional.Unpack(info), option)
                check(info.tcpi_rtt > 0, info)
        try:
            stub.GetSubchannel(channelz_pb2.GetSubchannelRequest(subchannel_id=99999999), timeout=PATIENCE)
        except grpc.RpcError as error:
            check(error.code() is grpc.StatusCode.NOT_FOUND, error)
        else:
            raise Failed("there is a subchannel")


# -- all of them


async def _until_watched(bench: Bench) -> None:
    """Wait until somebody watches and has been told what is; nobody there could set an event."""
    with trio.move_on_after(PATIENCE):
        while not bench.health._watchers:  # noqa: ASYNC110
            await trio.sleep(0.01)
    check(bench.health._watchers, "nobody watches")


async def _drain(bench: Bench) -> None:
    """Drain without a grace: nothing but the end of the watching can end it."""
    with trio.move_on_after(PATIENCE) as scope:
        await bench.server.drain()
    check(not scope.cancelled_caught, "the drain does not end")


@attrs.frozen
class Step:
    """One thing that a client does: with a bench that it is given, or one that it makes."""

    name: str
    run: Callable[[Bench], Awaitable[None]] | None = None
    run_alone: Callable[[Certificates | None, Path], Awaitable[None]] | None = None


def _in_thread(name: str, function: Callable[[Bench], None]) -> Step:
    # Abandoned when its time is over: not all of grpcio's calls can be given a timeout.
    return Step(name, partial(trio.to_thread.run_sync, function, abandon_on_cancel=True))


@attrs.frozen
class Client:
    """A tool or library: its version, how it gets onto the machine, what it does."""

    name: str
    version: str
    install: Callable[[], Path]
    steps: Sequence[Step]


def _go_program(name: str, package: str, version: str) -> Path:
    return go_programs(name, {name: f"{package}@{version}"}) / name


def _grpcio() -> Path:
    try:
        import grpc  # noqa: F401
        import grpc_channelz.v1.channelz_pb2  # noqa: F401
        import grpc_health.v1.health_pb2  # noqa: F401
        import grpc_reflection.v1alpha.reflection_pb2  # noqa: F401
    except ImportError as error:
        raise Unavailable(f"{error.name} is not in this environment") from None
    return Path()


CLIENTS: Sequence[Client] = (
    Client(
        "grpcio",
        "of requirements/dev.txt",
        _grpcio,
        (
            _in_thread("reflection", grpcio_reflection),
            _in_thread("health", grpcio_check),
            _in_thread("watch", grpcio_watch),
            _in_thread("health-aware channel", grpcio_health_aware),
            _in_thread("channelz", grpcio_channelz),
            Step("watch during a drain", run_alone=grpcio_drain),
        ),
    ),
    Client(
        "grpcurl",
        GRPCURL,
        lambda: _go_program("grpcurl", "github.com/fullstorydev/grpcurl/cmd/grpcurl", GRPCURL),
        (
            Step("list", grpcurl_list),
            Step("list what is not there", grpcurl_list_unknown),
            Step("describe", grpcurl_describe),
            Step("call", grpcurl_call),
            Step("health", grpcurl_health),
            Step("channelz", grpcurl_channelz),
            Step("v1alpha alone", run_alone=grpcurl_alpha),
            Step("watch during a drain", run_alone=grpcurl_drain),
        ),
    ),
    Client(
        "buf curl",
        BUF,
        lambda: python_packages("buf", f"buf-bin=={BUF}") / "buf",
        (Step("list", buf_list), Step("call", buf_call), Step("health", buf_health)),
    ),
    Client(
        "grpc_health_probe",
        HEALTH_PROBE,
        lambda: _go_program("grpc_health_probe", "github.com/grpc-ecosystem/grpc-health-probe", HEALTH_PROBE),
        (Step("health", probe_statuses),),
    ),
)
#: A step of our own: nothing has been logged, which we do for faults only.
LOG = "(our log)"


class _Log(logging.Handler):
    """Collects what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


async def _run_step(step: Step, certificates: Certificates | None, program: Path) -> None:
    with trio.move_on_after(STEP_PATIENCE) as scope:
        if step.run_alone is not None:
            await step.run_alone(certificates, program)
        else:
            assert step.run is not None
            async with serving(certificates, program) as bench:
                await step.run(bench)
    check(not scope.cancelled_caught, "not ended within", STEP_PATIENCE, "s")


async def _run_client(client: Client, certificates: Certificates) -> list[Result]:
    make = partial(Result, peer=client.name, version=client.version, direction="from")
    try:
        program = await trio.to_thread.run_sync(client.install)
    except Unavailable as reason:
        sys.stdout.write(f"{client.name}: SKIPPED ({reason})\n")
        return [make(tls=False, case="", outcome=SKIPPED, message=str(reason))]
    results = []
    for tls in (False, True):
        log = _Log()
        logging.getLogger("trio_grpc").addHandler(log)
        for step in client.steps:
            started = monotonic()
            message = ""
            tries = 0
            while tries < TRIES:
                tries += 1
                try:
                    await _run_step(step, certificates if tls else None, program)
                except Exception as error:
                    message = describe(error)
                    sys.stdout.write(f"{client.name}{' tls' if tls else ''}, {step.name}: try {tries}: {message}\n")
                else:
                    message = ""
                    break
            outcome = FAILED if message else PASSED
            seconds = round(monotonic() - started, 3)
            results.append(
                make(tls=tls, case=step.name, outcome=outcome, message=message, seconds=seconds, tries=tries)
            )
        logging.getLogger("trio_grpc").removeHandler(log)
        message = "; ".join(log.texts)
        results.append(make(tls=tls, case=LOG, outcome=FAILED if message else PASSED, message=message))
    return results


async def main(names: Sequence[str]) -> int:
    started = monotonic()
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder:
        certificates = Certificates(Path(folder))
        for client in CLIENTS:
            if not names or client.name in names:
                results += await _run_client(client, certificates)
    steps = dict.fromkeys(step.name for client in CLIENTS for step in client.steps)
    titles: Mapping[str, str] = {"from": "the peer's client, our standard services"}
    return report(results, [*steps, LOG], titles, CACHE / "services.json", monotonic() - started)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--clients", type=lambda text: text.split(","), default=(), help=", ".join(client.name for client in CLIENTS)
    )
    chosen = parser.parse_args().clients
    known = [client.name for client in CLIENTS]
    for name in chosen:
        if name not in known:
            parser.error(f"no client is called {name!r}, but these are: {', '.join(known)}")
    sys.exit(trio.run(main, chosen))
