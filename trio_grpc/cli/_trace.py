"""``trio-grpc trace``: a call's frames made readable."""

from __future__ import annotations

from typing import Any

import click
import trio

from trio_grpc._status import RpcError
from trio_grpc.cli._call_options import CallOptions, call_options
from trio_grpc.cli._connection import ConnectionOptions, connect, connection_options, open_channel_for
from trio_grpc.cli._conversation import converse
from trio_grpc.cli._frames import FrameLog
from trio_grpc.cli._output import Output, output_options
from trio_grpc.cli._requests import RequestData, data_option
from trio_grpc.cli._running import run_async
from trio_grpc.cli._schema import Schema, SchemaOptions, schema_options
from trio_grpc.cli._tap import TappedStream
from trio_grpc.cli._trace_lines import TraceReport


@click.command("trace")
@connection_options
@click.argument("method")
@data_option
@schema_options
@call_options
@click.option("--compression", metavar="NAME", help="Compress requests: gzip, deflate or zstd.")
@click.option("--no-messages", is_flag=True, help="Show sizes of messages, not what they say.")
@output_options
def command(
    connection: ConnectionOptions,
    method: str,
    data: RequestData,
    schema: SchemaOptions,
    call: CallOptions,
    compression: str | None,
    no_messages: bool,
    output: Output,
) -> None:
    """Call METHOD of the server at TARGET, and show each HTTP/2 frame of its connection, both ways.

    Frames have their time, direction (-> is sent), stream, type, flags and length, and below that what they say:
    headers, settings, messages as JSON, and how much the other side may still send. What reflection asks goes through a
    connection of its own, which is not shown. The exit codes are those of call.
    """

    async def main() -> None:
        async with open_channel_for(connection) as asking:
            known: Schema = schema.open(asking, call.question_timeout, call.metadata)
            if schema.by_reflection:
                await connect(asking, connection)
            described = await known.find_method(method)
        report = TraceReport(described, known.pool, output, not no_messages)
        log = FrameLog()
        began = trio.current_time()

        def look(sent: bool, passed: bytes) -> None:
            seconds = trio.current_time() - began
            for seen in log.feed(sent, passed):
                report.frame(seconds, seen)

        status = "OK"
        async with open_channel_for(connection, compression=compression) as channel:
            channel._tap = lambda stream: TappedStream(stream, look)
            await connect(channel, connection)
            try:
                await converse(
                    channel,
                    described,
                    data,
                    known.pool,
                    on_reply=_see_nothing,
                    timeout=call.timeout,
                    metadata=call.metadata,
                )
            except RpcError as error:
                status = error.code.name
                raise
            finally:
                ended = trio.current_time() - began
                # What is still to come, such as an acknowledgement of settings, belongs to it.
                with trio.CancelScope(shield=True):
                    await channel.aclose()
                report.summary(ended, status)

    run_async(main)


def _see_nothing(_reply: Any) -> None:
    """Its frame has shown it."""


__all__ = ["command"]
