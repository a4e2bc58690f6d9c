"""``trio-grpc describe``: services, methods and messages as a .proto file would have them."""

from __future__ import annotations

from typing import Any

import click
from rich.syntax import Syntax

from trio_grpc.cli._call_options import CallOptions, call_options
from trio_grpc.cli._connection import ConnectionOptions, connect, connection_options, open_channel_for
from trio_grpc.cli._output import Output, output_options
from trio_grpc.cli._proto_text import kind_of, proto_text
from trio_grpc.cli._running import run_async
from trio_grpc.cli._schema import SchemaOptions, Undescribed, schema_options


@click.command("describe")
@connection_options
@click.argument("symbol", required=False)
@schema_options
@call_options
@output_options
def command(
    connection: ConnectionOptions, symbol: str | None, schema: SchemaOptions, call: CallOptions, output: Output
) -> None:
    """Describe a SYMBOL of the server at TARGET: a service, method, message or enum; all services without one."""

    async def main() -> None:
        async with open_channel_for(connection) as channel:
            if schema.by_reflection:
                await connect(channel, connection)
            known = schema.open(channel, call.question_timeout, call.metadata)
            names = [symbol] if symbol is not None else await known.services()
            missing: Undescribed | None = None
            first = True
            for name in names:
                try:
                    found = await known.find_symbol(name)
                except Undescribed as failure:
                    # The others are described all the same.
                    missing = missing or failure
                else:
                    _show(output, found, first=first)
                    first = False
            if missing is not None:
                raise missing

    run_async(main)


def _show(output: Output, symbol: Any, *, first: bool) -> None:
    text = proto_text(symbol)
    if output.json:
        output.document({"name": symbol.full_name, "kind": kind_of(symbol), "text": text})
        return
    if not first:
        output.show("")
    # The name in full: inside the text it is only its last part.
    output.show(f"// {symbol.full_name}", style="dim")
    if output.console.is_terminal:
        # The terminal's own colours, which somebody has chosen for its background.
        output.show(Syntax(text, "protobuf", theme="ansi_light", background_color="default", word_wrap=True))
    else:
        output.show(text)


__all__ = ["command"]
