"""The standard interoperability server, on trio_grpc; options are those of the other implementations' servers.

``python -m tests.interop.standard.server --port=8080``
"""

# ruff: noqa: T201 -- a command line
from __future__ import annotations

import argparse
import ssl
import sys
from collections.abc import Sequence

import trio

import trio_grpc
from tests.interop.standard.options import boolean
from tests.interop.standard.service import InteropServicer


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="server", description=__doc__.partition("\n")[0])
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", type=int, default=8080, help="0 for any free one")
    parser.add_argument("--use_tls", type=boolean, nargs="?", const=True, default=False)
    parser.add_argument("--tls_cert_file", help="the server's certificate chain, PEM")
    parser.add_argument("--tls_key_file", help="its key, PEM")
    options = parser.parse_args(arguments)
    if options.use_tls and not (options.tls_cert_file and options.tls_key_file):
        parser.error("--use_tls needs --tls_cert_file and --tls_key_file")
    return options


async def main(options: argparse.Namespace) -> None:
    context = None
    if options.use_tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(options.tls_cert_file, options.tls_key_file)
    async with trio.open_nursery() as nursery:
        server = await nursery.start(
            lambda task_status: trio_grpc.serve(
                [InteropServicer()],
                f"{options.host}:{options.port}",
                ssl_context=context,
                task_status=task_status,
            )
        )
        print("listening on", *server.addresses, flush=True)


if __name__ == "__main__":
    try:
        trio.run(main, parse(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
