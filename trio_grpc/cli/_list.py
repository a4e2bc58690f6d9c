"""``trio-grpc list``: which services there are, and which methods one of them has."""

from __future__ import annotations

import click

from trio_grpc.cli._call_options import CallOptions, call_options
from trio_grpc.cli._connection import ConnectionOptions, connect, connection_options, open_channel_for
from trio_grpc.cli._output import Output, output_options
from trio_grpc.cli._proto_text import method_summary
from trio_grpc.cli._running import run_async
from trio_grpc.cli._schema import SchemaOptions, schema_options


@click.command("list")
@connection_options
@click.argument("service", required=False)
@schema_options
@call_options
@output_options
def command(
    connection: ConnectionOptions, service: str | None, schema: SchemaOptions, call: CallOptions, output: Output
) -> None:
    """List the services of the server at TARGET, or the methods of one SERVICE.

    The server is asked by reflection, unless there are files.
    """

    async def main() -> None:
        async with open_channel_for(connection) as channel:
            if schema.by_reflection:
                await connect(channel, connection)
            known = schema.open(channel, call.question_timeout, call.metadata)
            if service is None:
                names = await known.services()
                if output.json:
                    output.document(names)
                else:
                    for name in names:
                        output.show(name)
                return
            methods = (await known.find_service(service)).methods
            if output.json:
                output.document([method_summary(method) for method in methods])
                return
            for method in methods:
                output.show(f"{service}/{method.name}")

    run_async(main)


__all__ = ["command"]
