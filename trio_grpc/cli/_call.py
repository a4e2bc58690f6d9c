"""``trio-grpc call``: JSON in, JSON out."""

from __future__ import annotations

import json
from typing import Any

import click
from google.protobuf import message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from trio_grpc._compression import compression_name
from trio_grpc._metadata import Metadata
from trio_grpc._status import RpcError
from trio_grpc.cli._call_options import CallOptions, call_options, metadata_document
from trio_grpc.cli._connection import (
    ConnectionOptions,
    connect,
    connection_options,
    open_channel_for,
    wait_until_reached,
)
from trio_grpc.cli._conversation import converse
from trio_grpc.cli._failure import Failure
from trio_grpc.cli._messages import to_document
from trio_grpc.cli._output import Output, output_options
from trio_grpc.cli._requests import RequestData, data_option
from trio_grpc.cli._running import run_async
from trio_grpc.cli._schema import Schema, SchemaOptions, schema_options


@click.command("call")
@connection_options
@click.argument("method")
@data_option
@schema_options
@call_options
@click.option("--compression", metavar="NAME", help="Compress requests: gzip, deflate or zstd.")
@click.option(
    "--wait-for-ready", is_flag=True, help="Wait for a server that cannot be reached yet; --timeout bounds it."
)
@click.option("--defaults", is_flag=True, help="Print fields that are not set, too.")
@click.option("-v", "--verbose", is_flag=True, help="Print metadata and status as well, on stderr.")
@output_options
def command(
    connection: ConnectionOptions,
    method: str,
    data: RequestData,
    schema: SchemaOptions,
    call: CallOptions,
    compression: str | None,
    wait_for_ready: bool,
    defaults: bool,
    verbose: bool,
    output: Output,
) -> None:
    """Call METHOD, as package.Service/Method, of the server at TARGET.

    Requests and replies are JSON by protobuf's mapping. What they look like is asked of the server, by reflection,
    unless there are files. A status other than OK is one line on stderr, and the exit code is 64 plus its number.
    """
    if compression is not None:
        try:
            compression_name(compression)
        except ValueError as error:
            raise click.UsageError(f"--compression: {error}") from error

    async def main() -> None:
        # Not compressed, what the command itself asks by reflection: that has to work with every server.
        async with open_channel_for(connection) as channel:
            if wait_for_ready:
                await wait_until_reached(channel, connection, call.timeout)
            else:
                await connect(channel, connection)
            known = schema.open(channel, call.question_timeout, call.metadata)
            described = await known.find_method(method)
            report = _Report(output, known.pool, defaults, verbose)
            try:
                initial, trailing = await converse(
                    channel,
                    described,
                    data,
                    known.pool,
                    on_reply=report.reply,
                    timeout=call.timeout,
                    metadata=call.metadata,
                    wait_for_ready=wait_for_ready,
                    compression=compression,
                )
            except RpcError as error:
                report.end(error.code.name, error.initial_metadata, error.trailing_metadata)
                await report.details(error, known)
                raise
            report.end("OK", initial, trailing)

    run_async(main)


class _Report:
    """Prints how a call goes."""

    def __init__(self, output: Output, pool: DescriptorPool, defaults: bool, verbose: bool) -> None:
        self._output = output
        self._pool = pool
        self._defaults = defaults
        self._verbose = verbose

    def reply(self, message: Any) -> None:
        """Print a reply."""
        self._output.value(to_document(message, self._pool, defaults=self._defaults))

    def end(self, status: str, initial: Metadata, trailing: Metadata) -> None:
        """Tell how the call ended, to those who want to know."""
        if not self._verbose:
            return
        for title, metadata in (("initial metadata", initial), ("trailing metadata", trailing)):
            for name, values in metadata_document(metadata).items():
                for value in values:
                    self._output.note(f"{title}: {name}: {value}")
        self._output.note(f"status: {status}")

    async def details(self, error: RpcError, schema: Schema) -> None:
        """Print the details of an error, as far as anybody knows their types."""
        for detail in error.details:
            name = detail.DESCRIPTOR.full_name
            if name == "google.protobuf.Any":
                name = detail.type_url.rpartition("/")[2]
                try:
                    await schema.load(name)
                except Failure:
                    # Then it is printed as bytes.
                    pass
            document = json.dumps(to_document(self._unpacked(name, detail), self._pool), ensure_ascii=False)
            self._output.note(f"detail {name}: {document}")

    def _unpacked(self, name: str, detail: Any) -> Any:
        """Return the message of a type of this name in an ``Any``, where the pool has the type."""
        if detail.DESCRIPTOR.full_name != "google.protobuf.Any":
            return detail
        try:
            find: Any = self._pool.FindMessageTypeByName  # protobuf's stubs have no types for it
            message_type = message_factory.GetMessageClass(find(name))
            return message_type.FromString(detail.value)
        except (KeyError, DecodeError):
            return detail


__all__ = ["command"]
