"""``trio-grpc health``: for people, scripts and probes."""

from __future__ import annotations

import click
import trio

from trio_grpc._metadata import Metadata
from trio_grpc._status import RpcError, StatusCode
from trio_grpc.cli._call_options import CallOptions, call_options
from trio_grpc.cli._connection import ConnectionOptions, connect, connection_options, open_channel_for
from trio_grpc.cli._failure import ExitCode, Failure, check_text
from trio_grpc.cli._output import Output, output_options
from trio_grpc.cli._running import run_async
from trio_grpc.health._v1.health_pb2 import HealthCheckRequest, HealthCheckResponse, HealthListRequest
from trio_grpc.health._v1.health_trio_grpc import HealthStub

#: The exit code for a server that answers, but not SERVING; grpc_health_probe's.
UNHEALTHY = 4
#: Seconds for the answer, where no --timeout says otherwise: a probe must end.
_TIMEOUT = 10.0
#: Seconds between two tries of --watch to reach the server.
_PAUSE = 1.0

_STYLES = {"SERVING": "green", "NOT_SERVING": "red"}


@click.command("health")
@connection_options
@click.argument("service", default="")
@click.option("--watch", is_flag=True, help="Go on and print each change, until Ctrl-C.")
@click.option("--list", "list_all", is_flag=True, help="Print the status of each service that the server knows.")
@call_options
@output_options
def command(
    connection: ConnectionOptions, service: str, watch: bool, list_all: bool, call: CallOptions, output: Output
) -> int:
    """Ask the server at TARGET for its health, or for that of one SERVICE (grpc.health.v1).

    Exit codes: 0, SERVING; 4, it answers something else; 64 plus the number of the status where the question failed:
    69, the server does not know this service; 76, it has no health service; 78, it cannot be reached.
    """
    if watch and list_all:
        raise click.UsageError("--watch and --list exclude each other")
    check_text(service)

    async def main() -> int:
        async with open_channel_for(connection) as channel:
            stub = HealthStub(channel)
            if watch:
                await _watch(stub, service, call.metadata, output)
            await connect(channel, connection)
            timeout = _TIMEOUT if call.timeout is None else call.timeout
            try:
                if list_all:
                    answer = await stub.List(HealthListRequest(), timeout=timeout, metadata=call.metadata)
                    statuses = {name: one.status for name, one in sorted(answer.statuses.items())}
                else:
                    request = HealthCheckRequest(service=service)
                    statuses = {service: (await stub.Check(request, timeout=timeout, metadata=call.metadata)).status}
            except RpcError as error:
                raise _explained(error, connection.target, service) from error
        for name, status in statuses.items():
            _show(output, name, _word(status))
        return ExitCode.OK if all(_word(status) == "SERVING" for status in statuses.values()) else UNHEALTHY

    return run_async(main)


async def _watch(stub: HealthStub, service: str, metadata: Metadata, output: Output) -> None:
    """Print each change for ever; a server that goes away is a change."""
    last = ""

    def change(word: str) -> None:
        nonlocal last
        if word != last:
            _show(output, service, word)
        last = word

    while True:
        try:
            async with stub.Watch(HealthCheckRequest(service=service), metadata=metadata) as statuses:
                async for answer in statuses:
                    change(_word(answer.status))
            change("UNKNOWN")  # it ended without a reason
        except RpcError as error:
            if error.code is StatusCode.UNIMPLEMENTED:
                raise Failure("the server has no health service to watch", ExitCode.RPC + error.code.value) from error
            change(f"UNREACHABLE ({error.code.name}: {error.message})")
        await trio.sleep(_PAUSE)


def _word(status: int) -> str:
    try:
        return HealthCheckResponse.ServingStatus.Name(status)
    except ValueError:
        return f"STATUS_{status}"


def _show(output: Output, service: str, word: str) -> None:
    if output.json:
        output.document({"service": service, "status": word})
    else:
        output.show(f"{service}: {word}" if service else word, style=_STYLES.get(word, "yellow"))


def _explained(error: RpcError, target: str, service: str) -> Exception:
    code = ExitCode.RPC + error.code.value
    if error.code is StatusCode.UNIMPLEMENTED:
        return Failure(f"{target} has no health service, or not this part of it: {error.message}", code)
    if error.code is StatusCode.NOT_FOUND:
        return Failure(f"{target} does not know the service {service!r}: --list shows those that it knows", code)
    return error


__all__ = ["UNHEALTHY", "command"]
